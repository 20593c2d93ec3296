//! BBR version 3 (draft-ietf-ccwg-bbr, as of August 2026): models the path by the highest rate at
//! which it delivers and its shortest round trip, and sends at that rate.
//!
//! Names are the draft's. Rates are bytes per second, volumes bytes; `u64::MAX` and `u32::MAX`
//! are its "Infinity". The rest of TCP detects losses and says what it has found.
mod max_filter;
mod rate;
#[cfg(test)]
mod tests;

use max_filter::MaxFilter;
use rate::{Sample, Sampler};

/// BBR.LossThresh: 2 %, as a divisor.
const LOSS_THRESH_DIVISOR: u64 = 50;
/// BBR.Beta: 0.7.
const BETA: (u64, u64) = (7, 10);
/// BBR.Headroom: 0.15.
const HEADROOM: (u64, u64) = (15, 100);
/// BBR.MinPipeCwnd, segments.
const MIN_PIPE_SEGMENTS: u32 = 4;
const MIN_RTT_FILTER_US: u64 = 10_000_000;
const EXTRA_ACKED_ROUNDS: u32 = 10;
const PROBE_RTT_INTERVAL_US: u64 = 5_000_000;
const PROBE_RTT_DURATION_US: u64 = 200_000;
/// BBRStartupFullLossCnt.
const STARTUP_LOSSES: u8 = 6;
const FULL_BW_ROUNDS: u8 = 3;
const DRAIN_ROUNDS_MAX: u32 = 3;
/// BBR.PacingMarginPercent: 1.
const PACING_PERCENT: u64 = 99;
/// Largest C.send_quantum.
const QUANTUM_MAX_BYTES: u64 = 64 << 10;
/// Round trips between probes for bandwidth, at most.
const RENO_ROUNDS_MAX: u32 = 63;
/// Shortest pause between them.
const PROBE_WAIT_US: u64 = 2_000_000;
/// What is added to it by chance, at most.
const PROBE_WAIT_RANDOM_US: u64 = 1_000_000;
const INFINITE: u32 = u32::MAX;
/// Nominal round-trip time before the first sample.
const NOMINAL_RTT_US: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl State {
    fn is_probe_bw(self) -> bool {
        matches!(self, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// IsProbingBW.
    fn is_probing(self) -> bool {
        matches!(self, State::Startup | State::Refill | State::Up)
    }

    /// BBR.pacing_gain, percent.
    fn pacing_percent(self) -> u64 {
        match self {
            State::Startup => 277,
            State::Drain => 50,
            State::Down => 90,
            State::Up => 125,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
        }
    }

    /// BBR.cwnd_gain, percent.
    fn cwnd_percent(self) -> u64 {
        match self {
            State::Up => 225,
            State::ProbeRtt => 50,
            _ => 200,
        }
    }
}

/// BBR.ack_phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// What the connection tells with an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Bytes that it newly acknowledges, cumulatively or selectively.
    pub delivered: u32,
    /// Bytes still in flight.
    pub in_flight: u32,
    /// The congestion window, and nothing else, has held data back.
    pub is_cwnd_limited: bool,
    /// The peer acknowledges selectively.
    pub has_sack: bool,
}

/// What to restore after a loss that was none.
#[derive(Clone, Copy, Debug)]
struct Undo {
    state: Option<State>,
    bw_shortterm: u64,
    inflight_shortterm: u32,
    inflight_longterm: u32,
}

/// State of BBR of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    /// Time of the last call that told it.
    clock_us: u64,
    rate: Sampler,
    sample: Sample,
    mss: u32,
    initial_cwnd: u32,
    cwnd: u32,
    pacing_rate: u64,
    has_sack: bool,
    state: State,
    random: u32,

    round_count: u32,
    next_round_delivered: u64,
    round_start: bool,

    /// Highest rates of the cycle before, and of this one.
    max_bw_filter: [u64; 2],
    max_bw: u64,
    bw_shortterm: u64,
    bw: u64,
    min_rtt_us: u32,
    min_rtt_stamp_us: u64,
    inflight_longterm: u32,
    inflight_shortterm: u32,

    bw_latest: u64,
    inflight_latest: u64,
    loss_round_delivered: u64,
    loss_round_start: bool,
    is_loss_in_round: bool,
    is_mark_in_round: bool,
    /// Ranges that were lost in this round, and the end of the last one.
    loss_events: u8,
    last_lost_end: u32,

    extra_acked_start_us: u64,
    extra_acked_delivered: u64,
    extra_acked: MaxFilter,

    full_bw_reached: bool,
    full_bw_now: bool,
    full_bw: u64,
    full_bw_count: u8,
    drain_start_round: u32,

    ack_phase: AckPhase,
    is_bw_probe_sample: bool,
    bw_probe_up_acked: u32,
    probe_up_acked_per_inc: u32,
    bw_probe_up_rounds: u32,
    rounds_since_probe_up: u32,
    bw_probe_wait_us: u64,
    cycle_stamp_us: u64,
    prev_probe_too_high: bool,
    prev_probe_precautionary: bool,

    probe_rtt_min_delay_us: u32,
    probe_rtt_min_stamp_us: u64,
    probe_rtt_expired: bool,
    /// 0: not yet.
    probe_rtt_done_us: u64,
    probe_rtt_round_done: bool,
    idle_restart: bool,

    prior_cwnd: u32,
    undo: Undo,
    in_recovery: bool,
    /// Recovery went on in this round trip of losses.
    recovered_in_round: bool,
}

impl Bbr {
    /// OnInit. `srtt_us`: 0 if unknown; `random` decides when to probe.
    pub fn new(cwnd: u32, mss: u16, srtt_us: u32, random: u32, now_us: u64) -> Bbr {
        let known_rtt_us = if srtt_us > 0 { srtt_us } else { INFINITE };
        let mut bbr = Bbr {
            clock_us: now_us,
            rate: Sampler::new(now_us),
            sample: Sample::default(),
            mss: u32::from(mss.max(1)),
            initial_cwnd: cwnd,
            cwnd,
            pacing_rate: 0,
            has_sack: true,
            state: State::Startup,
            random,
            round_count: 0,
            next_round_delivered: 0,
            round_start: false,
            max_bw_filter: [0; 2],
            max_bw: 0,
            bw_shortterm: u64::MAX,
            bw: 0,
            min_rtt_us: known_rtt_us,
            min_rtt_stamp_us: now_us,
            inflight_longterm: INFINITE,
            inflight_shortterm: INFINITE,
            bw_latest: 0,
            inflight_latest: 0,
            loss_round_delivered: 0,
            loss_round_start: false,
            is_loss_in_round: false,
            is_mark_in_round: false,
            loss_events: 0,
            last_lost_end: 0,
            extra_acked_start_us: now_us,
            extra_acked_delivered: 0,
            extra_acked: MaxFilter::default(),
            full_bw_reached: false,
            full_bw_now: false,
            full_bw: 0,
            full_bw_count: 0,
            drain_start_round: 0,
            ack_phase: AckPhase::Init,
            is_bw_probe_sample: false,
            bw_probe_up_acked: 0,
            probe_up_acked_per_inc: INFINITE,
            bw_probe_up_rounds: 0,
            rounds_since_probe_up: 0,
            bw_probe_wait_us: 0,
            cycle_stamp_us: 0,
            prev_probe_too_high: false,
            prev_probe_precautionary: false,
            probe_rtt_min_delay_us: known_rtt_us,
            probe_rtt_min_stamp_us: now_us,
            probe_rtt_expired: false,
            probe_rtt_done_us: 0,
            probe_rtt_round_done: false,
            idle_restart: false,
            prior_cwnd: 0,
            undo: Undo {
                state: None,
                bw_shortterm: u64::MAX,
                inflight_shortterm: INFINITE,
                inflight_longterm: INFINITE,
            },
            in_recovery: false,
            recovered_in_round: false,
        };
        bbr.init_pacing_rate(srtt_us);
        bbr
    }

    /// InitPacingRate.
    fn init_pacing_rate(&mut self, srtt_us: u32) {
        let rtt_us = if srtt_us > 0 { u64::from(srtt_us) } else { NOMINAL_RTT_US };
        let nominal = u64::from(self.initial_cwnd) * 1_000_000 / rtt_us;
        self.pacing_rate = nominal * State::Startup.pacing_percent() / 100;
    }

    /// The congestion window.
    pub fn cwnd_bytes(&self) -> u32 {
        self.cwnd
    }

    /// The rate at which to send, bytes per second.
    pub fn pacing_rate(&self) -> u64 {
        self.pacing_rate
    }

    /// C.send_quantum: how much may be sent at once.
    pub fn send_quantum(&self) -> u32 {
        let ms_bytes = (self.pacing_rate / 1000).min(QUANTUM_MAX_BYTES);
        (ms_bytes as u32).max(2 * self.mss)
    }

    /// The largest segment has changed.
    pub fn set_mss(&mut self, mss: u16) {
        self.mss = u32::from(mss.max(1));
        self.cwnd = self.cwnd.max(self.mss);
    }

    /// OnTransmit and OnPacketSent; `in_flight` is without what is sent.
    pub fn sent(&mut self, now_us: u64, in_flight: u32, bytes: u32) {
        self.clock_us = now_us;
        if in_flight == 0 && self.rate.is_app_limited() {
            self.restart_from_idle(now_us);
        }
        self.rate.sent(now_us, in_flight, bytes);
    }

    /// HandleRestartFromIdle.
    fn restart_from_idle(&mut self, now_us: u64) {
        self.idle_restart = true;
        self.extra_acked_start_us = now_us;
        if self.state.is_probe_bw() {
            self.set_pacing_rate(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(now_us);
        }
    }

    /// There is nothing to send, though the window is not full.
    pub fn limited_by_application(&mut self, in_flight: u32) {
        self.rate.limited_by_application(in_flight);
    }

    /// What was last sent at `sent_us` is acknowledged. [`Self::on_ack`] follows.
    pub fn acknowledged(&mut self, sent_us: u64, once: bool) {
        self.rate.acknowledged(sent_us, once);
    }

    /// Nothing that was sent before is outstanding.
    pub fn forget_before(&mut self, sent_us: u64) {
        self.rate.forget_before(sent_us);
    }

    /// HandleLostPacket: `bytes` up to `end`, last sent at `sent_us`, are taken to be lost.
    pub fn lost(&mut self, sent_us: u64, bytes: u32, end: u32) {
        self.rate.lost += u64::from(bytes);
        if !self.is_loss_in_round {
            self.loss_round_delivered = self.rate.delivered;
            self.save_state_upon_loss();
        }
        self.is_loss_in_round = true;
        if self.loss_events == 0 || end.wrapping_sub(bytes) != self.last_lost_end {
            self.loss_events = self.loss_events.saturating_add(1);
        }
        self.last_lost_end = end;
        if !self.is_bw_probe_sample {
            return;
        }
        let Some(packet) = self.rate.snapshot(sent_us) else { return };
        let lost = self.rate.lost - packet.lost;
        self.sample.is_app_limited = packet.is_app_limited;
        if self.is_inflight_too_high(lost, packet.in_flight) {
            let in_flight = inflight_at_loss(packet.in_flight, lost, bytes);
            self.handle_inflight_too_high(in_flight);
        }
    }

    /// The peer has echoed a congestion mark, once for a window of data: congestion, as a loss is.
    pub fn marked(&mut self, in_flight: u32) {
        if !self.is_loss_in_round {
            self.loss_round_delivered = self.rate.delivered;
            self.save_state_upon_loss();
        }
        (self.is_loss_in_round, self.is_mark_in_round) = (true, true);
        if self.is_bw_probe_sample {
            self.handle_inflight_too_high(in_flight);
        } else if self.state == State::Startup {
            self.full_bw_reached = true;
            self.inflight_longterm = self.bdp(100).max(in_flight);
        }
    }

    /// Fast recovery begins.
    pub fn enter_recovery(&mut self) {
        self.save_cwnd();
        (self.in_recovery, self.recovered_in_round) = (true, true);
    }

    /// OnEnterRTO.
    pub fn on_rto(&mut self, in_flight: u32) {
        self.save_cwnd();
        (self.in_recovery, self.recovered_in_round) = (true, true);
        self.cwnd = in_flight + self.mss;
    }

    /// Recovery ends: everything is repaired.
    pub fn leave_recovery(&mut self) {
        self.in_recovery = false;
        self.restore_cwnd();
    }

    /// HandleSpuriousLossDetection.
    pub fn undo(&mut self) {
        self.in_recovery = false;
        self.restore_cwnd();
        self.is_loss_in_round = false;
        self.reset_full_bw();
        let undo = self.undo;
        self.bw_shortterm = self.bw_shortterm.max(undo.bw_shortterm);
        self.inflight_shortterm = self.inflight_shortterm.max(undo.inflight_shortterm);
        self.inflight_longterm = self.inflight_longterm.max(undo.inflight_longterm);
        match undo.state {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_bw_reached = false;
                if self.state != State::ProbeRtt {
                    self.state = State::Startup;
                }
            }
            Some(State::Up) if self.state != State::Up && self.state != State::ProbeRtt => {
                self.start_refill();
            }
            _ => {}
        }
        self.undo.state = None;
    }

    /// UpdateOnACK.
    pub fn on_ack(&mut self, progress: &Progress, now_us: u64) {
        self.clock_us = now_us;
        self.has_sack = progress.has_sack;
        let min_rtt_us = if self.min_rtt_us == INFINITE { 0 } else { self.min_rtt_us };
        self.sample = self.rate.sample(now_us, progress.delivered, min_rtt_us);
        self.update_latest_delivery_signals();
        self.update_congestion_signals();
        self.update_ack_aggregation(progress, now_us);
        self.check_full_bw_reached();
        self.check_startup_done();
        self.check_drain_done(progress, now_us);
        self.update_probe_bw_phase(progress, now_us);
        self.update_min_rtt(now_us);
        self.check_probe_rtt(progress, now_us);
        if self.loss_round_start {
            // AdvanceLatestDeliverySignals.
            self.bw_latest = self.sample.rate;
            self.inflight_latest = self.sample.delivered;
            self.loss_events = 0;
            self.recovered_in_round = self.in_recovery;
        }
        self.bw = self.max_bw.min(self.bw_shortterm);
        self.set_pacing_rate(self.state.pacing_percent());
        self.set_cwnd(progress.delivered);
    }

    fn update_latest_delivery_signals(&mut self) {
        self.loss_round_start = false;
        self.bw_latest = self.bw_latest.max(self.sample.rate);
        self.inflight_latest = self.inflight_latest.max(self.sample.delivered);
        if self.sample.prior_delivered.is_some_and(|prior| prior >= self.loss_round_delivered) {
            self.loss_round_delivered = self.rate.delivered;
            self.loss_round_start = true;
        }
    }

    fn update_congestion_signals(&mut self) {
        self.update_max_bw();
        if !self.loss_round_start {
            return;
        }
        let is_congested = self.is_mark_in_round
            || self.is_loss_in_round
                && self.is_inflight_too_high(self.sample.lost, self.sample.in_flight);
        if !self.state.is_probing() && is_congested {
            // AdaptLowerBoundsFromCongestion.
            if self.bw_shortterm == u64::MAX {
                self.bw_shortterm = self.max_bw;
            }
            if self.inflight_shortterm == INFINITE {
                self.inflight_shortterm = self.cwnd;
            }
            self.bw_shortterm = self.bw_latest.max(part(self.bw_shortterm, BETA));
            let latest = self.inflight_latest.min(u64::from(INFINITE - 1)) as u32;
            let reduced = part(self.inflight_shortterm.into(), BETA) as u32;
            self.inflight_shortterm = latest.max(reduced);
        }
        // What Startup needs of the round that ends is looked at before the flag goes.
        self.is_loss_in_round &= self.state == State::Startup;
        self.is_mark_in_round = false;
    }

    fn update_max_bw(&mut self) {
        self.round_start =
            self.sample.prior_delivered.is_some_and(|prior| prior >= self.next_round_delivered);
        if self.round_start {
            self.start_round();
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe_up = self.rounds_since_probe_up.saturating_add(1);
        }
        let rate = self.sample.rate;
        if rate > 0 && (rate >= self.max_bw || !self.sample.is_app_limited) {
            self.max_bw_filter[1] = self.max_bw_filter[1].max(rate);
            self.max_bw = self.max_bw_filter[0].max(self.max_bw_filter[1]);
        }
    }

    fn start_round(&mut self) {
        self.next_round_delivered = self.rate.delivered;
    }

    fn update_ack_aggregation(&mut self, progress: &Progress, now_us: u64) {
        let interval_us = now_us.saturating_sub(self.extra_acked_start_us);
        let mut expected = volume(self.bw, interval_us);
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_start_us = now_us;
            expected = 0;
        }
        self.extra_acked_delivered += u64::from(progress.delivered);
        let extra = self.extra_acked_delivered.saturating_sub(expected).min(self.cwnd.into());
        let rounds = if self.full_bw_reached { EXTRA_ACKED_ROUNDS } else { 1 };
        self.extra_acked.update(extra as u32, self.round_count, rounds);
    }

    fn reset_full_bw(&mut self) {
        (self.full_bw, self.full_bw_count, self.full_bw_now) = (0, 0, false);
    }

    fn check_full_bw_reached(&mut self) {
        if self.full_bw_now || !self.round_start || self.sample.is_app_limited {
            return;
        }
        if self.sample.rate * 4 >= self.full_bw * 5 {
            self.reset_full_bw();
            self.full_bw = self.sample.rate;
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= FULL_BW_ROUNDS;
        self.full_bw_reached |= self.full_bw_now;
    }

    fn check_startup_done(&mut self) {
        if self.state == State::Startup && self.loss_round_start {
            self.check_startup_high_loss();
            self.is_loss_in_round = false;
        }
        if self.state == State::Startup && self.full_bw_reached {
            self.state = State::Drain;
            self.drain_start_round = self.round_count;
        }
    }

    fn check_startup_high_loss(&mut self) {
        let many = self.loss_events >= STARTUP_LOSSES || !self.has_sack && self.is_loss_in_round;
        let (lost, in_flight) = (self.sample.lost, self.sample.in_flight);
        if self.recovered_in_round && many && self.is_inflight_too_high(lost, in_flight) {
            self.undo.state = Some(State::Startup);
            self.full_bw_reached = true;
            self.full_bw_now = true;
            let latest = self.inflight_latest.min(u64::from(INFINITE - 1)) as u32;
            self.inflight_longterm = self.bdp(100).max(latest);
        }
    }

    fn check_drain_done(&mut self, progress: &Progress, now_us: u64) {
        let rounds = self.round_count.wrapping_sub(self.drain_start_round);
        if self.state == State::Drain
            && (progress.in_flight <= self.inflight(100) || rounds > DRAIN_ROUNDS_MAX)
        {
            self.start_down(now_us);
        }
    }

    fn update_probe_bw_phase(&mut self, progress: &Progress, now_us: u64) {
        if !self.full_bw_reached || self.adapt_long_term_model(progress) {
            return;
        }
        match self.state {
            State::Down => {
                if !self.is_time_to_probe(now_us) && self.is_time_to_cruise(progress.in_flight) {
                    self.state = State::Cruise;
                }
            }
            State::Cruise => _ = self.is_time_to_probe(now_us),
            State::Refill => {
                if self.round_start {
                    self.is_bw_probe_sample = true;
                    self.start_up();
                }
            }
            State::Up => {
                if self.is_time_to_go_down(progress) {
                    self.prev_probe_too_high = false;
                    self.start_down(now_us);
                }
            }
            State::Startup | State::Drain | State::ProbeRtt => {}
        }
    }

    /// Returns whether it has decided the state.
    fn adapt_long_term_model(&mut self, progress: &Progress) -> bool {
        if self.ack_phase == AckPhase::ProbeStarting && self.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.round_start {
            self.is_bw_probe_sample = false;
            self.ack_phase = AckPhase::Init;
            if self.state.is_probe_bw() && !self.sample.is_app_limited {
                self.advance_max_bw_filter();
            }
            if self.state.is_probe_bw()
                && self.prev_probe_precautionary
                && !self.prev_probe_too_high
            {
                self.start_refill();
                return true;
            }
        }
        if !self.is_inflight_too_high(self.sample.lost, self.sample.in_flight)
            && self.inflight_longterm != INFINITE
        {
            self.inflight_longterm = self.inflight_longterm.max(self.sample.in_flight);
            if self.state == State::Up {
                self.probe_inflight_longterm_upward(progress);
            }
        }
        false
    }

    /// A cycle without a sample does not count.
    fn advance_max_bw_filter(&mut self) {
        if self.max_bw_filter[1] > 0 {
            self.max_bw_filter = [self.max_bw_filter[1], 0];
            self.max_bw = self.max_bw_filter[0];
        }
    }

    fn probe_inflight_longterm_upward(&mut self, progress: &Progress) {
        if !progress.is_cwnd_limited || self.cwnd < self.inflight_longterm {
            return;
        }
        self.bw_probe_up_acked = self.bw_probe_up_acked.saturating_add(progress.delivered);
        if self.bw_probe_up_acked >= self.probe_up_acked_per_inc {
            let steps = self.bw_probe_up_acked / self.probe_up_acked_per_inc;
            self.bw_probe_up_acked -= steps * self.probe_up_acked_per_inc;
            self.inflight_longterm =
                self.inflight_longterm.saturating_add(steps.saturating_mul(self.mss));
        }
        if self.round_start {
            self.raise_inflight_longterm_slope();
        }
    }

    fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1 << self.bw_probe_up_rounds;
        self.bw_probe_up_rounds = (self.bw_probe_up_rounds + 1).min(30);
        self.probe_up_acked_per_inc = (self.cwnd / growth).max(self.mss);
    }

    fn is_time_to_cruise(&self, in_flight: u32) -> bool {
        in_flight <= self.inflight_with_headroom() && in_flight <= self.inflight_of_max_bw()
    }

    /// IsTimeToProbeBW, with what follows.
    fn is_time_to_probe(&mut self, now_us: u64) -> bool {
        let reno_rounds = self.target_inflight() / self.mss;
        let is_time = now_us > self.cycle_stamp_us + self.bw_probe_wait_us
            || self.rounds_since_probe_up >= reno_rounds.min(RENO_ROUNDS_MAX);
        if is_time {
            self.start_refill();
        }
        is_time
    }

    fn is_time_to_go_down(&mut self, progress: &Progress) -> bool {
        if self.prev_probe_too_high && progress.in_flight >= self.inflight_longterm {
            self.prev_probe_precautionary = true;
            return true;
        }
        if progress.is_cwnd_limited && self.cwnd >= self.inflight_longterm {
            self.reset_full_bw();
            self.full_bw = self.sample.rate;
            return false;
        }
        self.full_bw_now
    }

    fn start_down(&mut self, now_us: u64) {
        self.is_loss_in_round = false;
        (self.bw_latest, self.inflight_latest) = (0, 0);
        self.probe_up_acked_per_inc = INFINITE;
        // PickProbeWait.
        let drawn = self.draw();
        self.rounds_since_probe_up = drawn & 1;
        let random_us = (u64::from(drawn) * PROBE_WAIT_RANDOM_US) >> 32;
        self.bw_probe_wait_us = PROBE_WAIT_US + random_us;
        self.cycle_stamp_us = now_us;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.state = State::Down;
    }

    fn start_refill(&mut self) {
        self.reset_short_term_model();
        self.bw_probe_up_rounds = 0;
        self.bw_probe_up_acked = 0;
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.state = State::Refill;
    }

    fn start_up(&mut self) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = self.sample.rate;
        self.state = State::Up;
        self.raise_inflight_longterm_slope();
    }

    fn reset_short_term_model(&mut self) {
        self.bw_shortterm = u64::MAX;
        self.inflight_shortterm = INFINITE;
    }

    /// IsInflightTooHigh: more was lost than LossThresh of what was in flight.
    ///
    /// LossThresh is the loss rate of a path, which a round trip only samples: of 200 packets on a
    /// path that loses one in a hundred, five are lost in one round trip of twenty. The draft takes
    /// that for congestion, ends Startup at a third of the rate, and finds the rest only seconds
    /// later. Here it is congestion only if a path that loses LossThresh would hardly lose as much:
    /// two standard deviations more than its mean. Queues that overflow lose far more.
    fn is_inflight_too_high(&self, lost: u64, in_flight: u32) -> bool {
        let packets = u64::from(in_flight / self.mss);
        let by_chance = (4 * packets / LOSS_THRESH_DIVISOR).isqrt();
        let allowed = (packets / LOSS_THRESH_DIVISOR + by_chance).max(1);
        lost > allowed * u64::from(self.mss) || lost > 0 && !self.has_sack
    }

    fn handle_inflight_too_high(&mut self, in_flight: u32) {
        self.prev_probe_too_high = true;
        self.is_bw_probe_sample = false;
        if !self.sample.is_app_limited {
            let least = part(self.target_inflight().into(), BETA) as u32;
            self.inflight_longterm = in_flight.max(least);
        }
        if self.state == State::Up {
            self.undo.state = Some(State::Up);
            self.start_down(self.clock_us);
        }
    }

    fn update_min_rtt(&mut self, now_us: u64) {
        self.probe_rtt_expired = now_us > self.probe_rtt_min_stamp_us + PROBE_RTT_INTERVAL_US;
        if let Some(rtt_us) = self.sample.rtt_us
            && (rtt_us < self.probe_rtt_min_delay_us || self.probe_rtt_expired)
        {
            self.probe_rtt_min_delay_us = rtt_us.max(1);
            self.probe_rtt_min_stamp_us = now_us;
        }
        let expired = now_us > self.min_rtt_stamp_us + MIN_RTT_FILTER_US;
        if self.probe_rtt_min_delay_us < self.min_rtt_us || expired {
            self.min_rtt_us = self.probe_rtt_min_delay_us;
            self.min_rtt_stamp_us = self.probe_rtt_min_stamp_us;
        }
    }

    fn check_probe_rtt(&mut self, progress: &Progress, now_us: u64) {
        if self.state != State::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.save_cwnd();
            self.state = State::ProbeRtt;
            self.probe_rtt_done_us = 0;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(progress, now_us);
        }
        if self.sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    fn handle_probe_rtt(&mut self, progress: &Progress, now_us: u64) {
        self.rate.limited_by_application(progress.in_flight);
        if self.probe_rtt_done_us == 0 {
            if progress.in_flight <= self.probe_rtt_cwnd() {
                self.probe_rtt_done_us = now_us + PROBE_RTT_DURATION_US;
                self.probe_rtt_round_done = false;
                self.start_round();
            }
            return;
        }
        self.probe_rtt_round_done |= self.round_start;
        if self.probe_rtt_round_done {
            self.check_probe_rtt_done(now_us);
        }
    }

    fn check_probe_rtt_done(&mut self, now_us: u64) {
        if self.probe_rtt_done_us == 0 || now_us <= self.probe_rtt_done_us {
            return;
        }
        self.probe_rtt_min_stamp_us = now_us;
        self.restore_cwnd();
        self.reset_short_term_model();
        if self.full_bw_reached {
            self.start_down(now_us);
            self.state = State::Cruise;
        } else {
            self.state = State::Startup;
        }
    }

    /// SetPacingRateWithGain.
    fn set_pacing_rate(&mut self, gain_percent: u64) {
        let rate = self.bw.saturating_mul(gain_percent * PACING_PERCENT) / 10_000;
        if self.full_bw_reached || rate > self.pacing_rate {
            // Not less than a segment in a second, whatever the model has come to.
            self.pacing_rate = rate.max(self.mss.into());
        }
    }

    fn set_cwnd(&mut self, delivered: u32) {
        let aggregated = self.bdp(self.state.cwnd_percent()).saturating_add(self.extra_acked.get());
        let max_inflight = self.with_quantization_budget(aggregated);
        let grown = self.cwnd.saturating_add(delivered);
        if self.full_bw_reached {
            self.cwnd = grown.min(max_inflight);
        } else if self.cwnd < max_inflight || self.rate.delivered < self.initial_cwnd.into() {
            self.cwnd = grown;
        }
        self.cwnd = self.cwnd.clamp(self.min_pipe_cwnd(), super::CWND_MAX_BYTES);
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        self.bound_cwnd_for_model();
    }

    fn bound_cwnd_for_model(&mut self) {
        let cap = match self.state {
            State::Down | State::Refill | State::Up => self.inflight_longterm,
            State::Cruise | State::ProbeRtt => self.inflight_with_headroom(),
            State::Startup | State::Drain => INFINITE,
        };
        let cap = cap.min(self.inflight_shortterm).max(self.min_pipe_cwnd());
        self.cwnd = self.cwnd.min(cap);
    }

    fn min_pipe_cwnd(&self) -> u32 {
        MIN_PIPE_SEGMENTS * self.mss
    }

    fn inflight_with_headroom(&self) -> u32 {
        if self.inflight_longterm == INFINITE {
            return INFINITE;
        }
        let headroom = (part(self.inflight_longterm.into(), HEADROOM) as u32).max(self.mss);
        self.inflight_longterm.saturating_sub(headroom).max(self.min_pipe_cwnd())
    }

    /// BDPMultiple.
    fn bdp(&self, gain_percent: u64) -> u32 {
        self.bdp_of(self.bw, gain_percent)
    }

    fn bdp_of(&self, bw: u64, gain_percent: u64) -> u32 {
        if self.min_rtt_us == INFINITE || bw == 0 {
            return self.initial_cwnd;
        }
        let bytes = volume(bw, self.min_rtt_us.into()) * gain_percent / 100;
        bytes.min(super::CWND_MAX_BYTES.into()) as u32
    }

    /// Inflight: what fills the path, `gain_percent` times.
    fn inflight(&self, gain_percent: u64) -> u32 {
        self.with_quantization_budget(self.bdp(gain_percent))
    }

    fn inflight_of_max_bw(&self) -> u32 {
        self.with_quantization_budget(self.bdp_of(self.max_bw, 100))
    }

    fn with_quantization_budget(&self, inflight: u32) -> u32 {
        let least = (3 * self.send_quantum()).max(self.min_pipe_cwnd());
        let further = if self.state == State::Up { 2 * self.mss } else { 0 };
        inflight.max(least) + further
    }

    fn target_inflight(&self) -> u32 {
        self.bdp(100).min(self.cwnd)
    }

    fn probe_rtt_cwnd(&self) -> u32 {
        self.bdp(State::ProbeRtt.cwnd_percent()).max(self.min_pipe_cwnd())
    }

    fn save_cwnd(&mut self) {
        let is_modulated = self.in_recovery || self.state == State::ProbeRtt;
        self.prior_cwnd = if is_modulated { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }

    /// SaveStateUponLoss: at the first loss of an episode. What this episode has changed since is
    /// what `undo` is for.
    fn save_state_upon_loss(&mut self) {
        self.save_cwnd();
        if self.in_recovery {
            return;
        }
        self.undo = Undo {
            state: None,
            bw_shortterm: self.bw_shortterm,
            inflight_shortterm: self.inflight_shortterm,
            inflight_longterm: self.inflight_longterm,
        };
    }

    /// The next random number (xorshift).
    fn draw(&mut self) -> u32 {
        let mut x = self.random | 1;
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.random = x;
        x
    }
}

/// `rate` for `us` microseconds.
fn volume(rate: u64, us: u64) -> u64 {
    (u128::from(rate) * u128::from(us) / 1_000_000) as u64
}

fn part(whole: u64, (numerator, denominator): (u64, u64)) -> u64 {
    (u128::from(whole) * u128::from(numerator) / u128::from(denominator)) as u64
}

/// InflightAtLoss: with how much in flight losses have crossed the threshold. `lost` is with the
/// `bytes` of the packet.
fn inflight_at_loss(in_flight: u32, lost: u64, bytes: u32) -> u32 {
    let before = in_flight.saturating_sub(bytes);
    let lost_before = lost.saturating_sub(u64::from(bytes));
    let allowed = u64::from(before) / LOSS_THRESH_DIVISOR;
    let prefix =
        allowed.saturating_sub(lost_before) * LOSS_THRESH_DIVISOR / (LOSS_THRESH_DIVISOR - 1);
    before + prefix.min(bytes.into()) as u32
}
