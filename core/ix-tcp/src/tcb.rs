//! The transmission control block: what one connection remembers, and its plain accessors.
//!
//! What happens to it stands elsewhere by role: `connect` (made), `admit` and `arrive` (a segment
//! arrives), `ack` (its acknowledgement), `rcv` (its payload), `rack` and `recovery` (loss), `snd`
//! (output), `window` (flow control), `timer`, `close`, `pmtu`.
use crate::accurate::Accurate;
use crate::ack_limit::ChallengeSpacing;
use crate::ack_pace::AckPace;
use crate::cc::{Control, Kind};
use crate::config::Config;
use crate::connect::ms_of;
use crate::ecn::EcnState;
use crate::loss::LossState;
use crate::output::{DeadReason, Output, RxBuf, TcpEvent};
use crate::reassembly::Reassembly;
use crate::records::TxRecords;
use crate::rtt::RttEstimator;
use crate::state::State;
use crate::stats::TcpCounter;
use ix_wire::{FlowTuple, Seq};

/// Yes-or-no facts about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub const NONE: Flags = Flags(0);

    #[inline]
    pub fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }

    #[inline]
    pub fn set(&mut self, flag: u16) {
        self.0 |= flag;
    }

    #[inline]
    pub fn clear(&mut self, flag: u16) {
        self.0 &= !flag;
    }

    #[inline]
    pub fn put(&mut self, flag: u16, on: bool) {
        if on { self.set(flag) } else { self.clear(flag) }
    }

    /// Timestamps are in use (RFC 7323).
    pub const TIMESTAMPS: u16 = 1;
    /// Selective acknowledgements are in use (RFC 2018).
    pub const SACK: u16 = 1 << 1;
    /// Window scaling is in use, or (SYN-SENT) offered.
    pub const WINDOW_SCALING: u16 = 1 << 2;
    /// An acknowledgement must go out at the next output.
    pub const ACK_NOW: u16 = 1 << 3;
    /// An acknowledgement is owed, and may wait for data.
    pub const ACK_DELAYED: u16 = 1 << 4;
    /// The application ended the send stream.
    pub const FIN_QUEUED: u16 = 1 << 5;
    /// Nagle's algorithm.
    pub const NAGLE: u16 = 1 << 6;
    /// The application has closed the connection and reads no more.
    pub const ORPHAN: u16 = 1 << 7;
    /// The application knows that the connection is over.
    pub const DEAD_SAID: u16 = 1 << 8;
    /// The connection began with a SYN of the peer.
    pub const PASSIVE: u16 = 1 << 9;
    /// Sending stopped because the congestion window was full.
    pub const CWND_LIMITED: u16 = 1 << 10;
    /// The last transmission found no buffer.
    pub const TX_BLOCKED: u16 = 1 << 11;
    /// The path reorders segments (RFC 8985 section 6.2 step 3).
    pub const REORDERING: u16 = 1 << 12;
    /// The network says that the peer cannot be reached (RFC 1122 section 4.2.3.9).
    pub const SOFT_ERROR: u16 = 1 << 13;
    /// The loss timer is to be set anew at the end of [`Tcb::output`].
    pub const REARM: u16 = 1 << 14;
    /// In TIME-WAIT: a SYN was turned away, and answered with an acknowledgement.
    pub const SYN_REFUSED: u16 = 1 << 15;
}

/// What the loss timer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LossTimer {
    /// Retransmission timeout (RFC 6298).
    Rto,
    /// Tail loss probe (RFC 8985 section 7).
    Tlp,
    /// Reordering window (RFC 8985 section 6.2 step 5).
    Reorder,
    /// Zero-window probe (RFC 9293 section 3.8.6.1), or the override of silly-window avoidance.
    Persist,
    /// Nothing is outstanding; memory of busier times can be freed.
    Idle,
}

/// How loss recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Nothing is known to be lost.
    Open,
    /// Fast recovery (RFC 6675, RFC 6582), until `LossState::recover`.
    Recovery,
    /// After a retransmission timeout, until `LossState::recover`.
    Timeout,
}

/// One TCP connection. `B` is the owning token of a received buffer.
///
/// The order is that of use: what every segment touches comes first, four cache lines in all, then
/// the name.
#[repr(C)]
pub struct Tcb<B> {
    pub(crate) rcv_nxt: Seq,
    /// Right edge of the window that we have offered; never moves left.
    pub(crate) rcv_adv: Seq,
    pub(crate) last_ack_sent: Seq,
    pub(crate) ts_recent: u32,
    pub(crate) snd_una: Seq,
    pub(crate) snd_nxt: Seq,
    pub(crate) snd_wnd: u32,
    pub(crate) snd_wl1: Seq,
    pub(crate) snd_wl2: Seq,
    /// Bytes appended and not acknowledged.
    pub(crate) snd_buf_bytes: u32,
    /// Bytes delivered and not given back.
    pub(crate) rcv_held_bytes: u32,
    /// Buffers delivered and not given back.
    pub(crate) rcv_held_bufs: u16,
    /// The application's bound on received bytes that it holds, in units of
    /// [`RCV_LIMIT_UNIT_BYTES`]; 0: as configured.
    pub(crate) rcv_limit: u16,
    pub(crate) flags: Flags,
    pub(crate) state: State,
    pub(crate) phase: Phase,
    pub(crate) loss_timer: LossTimer,
    pub(crate) snd_shift: u8,
    pub(crate) rcv_shift: u8,
    /// How long acknowledgements wait.
    pub(crate) ack_pace: AckPace,
    /// Largest payload of one segment, options other than SACK taken off.
    pub(crate) mss: u16,
    /// Largest payload seen in one segment.
    pub(crate) rcv_mss: u16,
    /// When `ts_recent` was set, in units of 2^20 µs.
    pub(crate) ts_recent_age: u32,

    pub(crate) reassembly: Option<Box<Reassembly<B>>>,
    pub(crate) last_rcv_us: u64,
    pub(crate) delack_at_us: u64,
    pub(crate) loss_at_us: u64,
    /// Last restart of the retransmission timer (RFC 6298 section 5).
    pub(crate) rto_base_us: u64,
    pub(crate) ts_offset: u32,
    /// When data was sent last, in units of 2^10 µs.
    pub(crate) last_snd_ms: u32,

    pub(crate) records: TxRecords,
    pub(crate) rtt: RttEstimator,
    pub(crate) cc: Control,

    /// Transmission time of the latest segment known to be delivered (RACK.xmit_ts).
    pub(crate) rack_xmit_us: u64,
    /// Its end (RACK.end_seq).
    pub(crate) rack_end: Seq,
    /// Its round-trip time (RACK.rtt).
    pub(crate) rack_rtt_us: u32,
    /// Highest sequence number known to be delivered (RACK.fack).
    pub(crate) rack_fack: Seq,
    /// Octets between `snd_una` and `snd_nxt` that were selectively acknowledged.
    pub(crate) sacked_bytes: u32,
    /// Octets there that are taken for lost and not retransmitted.
    pub(crate) lost_bytes: u32,
    /// Duplicate acknowledgements in a row, from a peer without SACK.
    pub(crate) dupacks: u16,
    pub(crate) sacked_segs: u16,
    pub(crate) loss: Option<Box<LossState>>,

    pub(crate) tuple: FlowTuple,
    /// Largest window the peer has offered.
    pub(crate) snd_wnd_max: u32,
    /// Keepalive, FIN-WAIT-2 or TIME-WAIT, as the state says.
    pub(crate) state_at_us: u64,
    pub(crate) retransmits: u32,
    pub(crate) keepalive_idle_s: u16,
    /// Unanswered keepalive probes.
    pub(crate) keepalives: u8,
    pub(crate) ecn: EcnState,
    /// What most connections never need.
    pub(crate) rare: Option<Box<Rare>>,
}

/// What a connection remembers of congestion marks, of attacks and of its application's patience.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rare {
    pub challenge_spacing: ChallengeSpacing,
    /// End of the window of data whose congestion marks have been answered; holds with
    /// [`EcnState::REACTED`].
    pub ecn_end: Seq,
    /// Counters of accurate ECN, where it is used or asked for.
    pub accurate: Option<Accurate>,
    /// How long data may stay unacknowledged, in units of [`USER_TIMEOUT_UNIT_US`]; 0: as
    /// configured.
    pub user_timeout: u16,
    /// Seconds between keepalive probes; 0: as configured.
    pub keepalive_interval_s: u16,
    /// Unanswered keepalive probes that end the connection; 0: as configured.
    pub keepalive_probes: u8,
}

/// What a connection knows about itself (for `GET_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcbInfo {
    /// State.
    pub state: State,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub srtt_us: u32,
    /// Round-trip time variation.
    pub rttvar_us: u32,
    /// Retransmission timeout, without backoff.
    pub rto_us: u32,
    /// Congestion window.
    pub cwnd_bytes: u32,
    /// Slow-start threshold.
    pub ssthresh_bytes: u32,
    /// The peer's window.
    pub snd_wnd_bytes: u32,
    /// Sent, and neither acknowledged nor taken for lost.
    pub in_flight_bytes: u32,
    /// Largest payload of a segment we send.
    pub mss_bytes: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// The window that we offer.
    pub rcv_wnd_bytes: u32,
    /// Given to send and not acknowledged.
    pub snd_queued_bytes: u32,
    /// Delivered in order and not given back.
    pub rcv_queued_bytes: u32,
}

/// How loss recovery stands, for tests and simulators that look inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossInfo {
    /// Segments sent and not cumulatively acknowledged.
    pub unacked_segments: u32,
    /// Of these, selectively acknowledged.
    pub sacked_segments: u32,
    /// Of these, taken for lost and not sent again.
    pub lost_segments: u32,
    /// Of these, sent more than once.
    pub retransmitted_segments: u32,
    /// In fast recovery.
    pub recovering: bool,
    /// After a retransmission timeout, until what was outstanding then is acknowledged.
    pub timed_out: bool,
    /// Times that the retransmission timeout has doubled.
    pub backoff: u8,
    /// Smallest round-trip time of late, µs.
    pub min_rtt_us: u32,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Shifts of the peer's windows and of ours, when scaling is in use.
    pub window_shifts: Option<(u8, u8)>,
    /// Largest payload received in one segment, bytes.
    pub rcv_mss_bytes: u16,
}

/// Unit of the user timeout; its longest is nearly two hours.
pub(crate) const USER_TIMEOUT_UNIT_US: u64 = 100_000;

/// Unit of the bound on received bytes; its largest is four megabytes.
pub(crate) const RCV_LIMIT_UNIT_BYTES: u32 = 64;

/// No timer.
pub(crate) const NEVER: u64 = u64::MAX;

impl<B: RxBuf> Tcb<B> {
    /// State.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Names the connection.
    #[inline]
    pub fn tuple(&self) -> &FlowTuple {
        &self.tuple
    }

    /// The connection is gone and holds nothing: drop it.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.state == State::Closed
    }

    /// Figures for `GET_INFO`.
    pub fn info(&self, cfg: &Config) -> TcbInfo {
        TcbInfo {
            state: self.state,
            srtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.rttvar_us(),
            rto_us: self.rtt.rto_us(cfg.min_rto_us, cfg.max_rto_us, cfg.initial_rto_us),
            cwnd_bytes: self.cwnd_bytes(),
            ssthresh_bytes: self.cc.ssthresh_bytes(),
            snd_wnd_bytes: self.snd_wnd,
            in_flight_bytes: self.pipe_bytes(),
            mss_bytes: u32::from(self.mss),
            retransmits: self.retransmits,
            rcv_wnd_bytes: (self.rcv_adv - self.rcv_nxt).max(0) as u32,
            snd_queued_bytes: self.snd_buf_bytes,
            rcv_queued_bytes: self.rcv_held_bytes,
        }
    }

    /// How loss recovery stands. Walks what is outstanding.
    pub fn loss_info(&self) -> LossInfo {
        use crate::records::TxRecord;
        let records = || (0..self.records.len()).filter_map(|index| self.records.get(index));
        let marked = |mark| records().filter(|record| record.has(mark)).count() as u32;
        let scaled = self.flags.has(Flags::WINDOW_SCALING);
        LossInfo {
            unacked_segments: self.records.len() as u32,
            sacked_segments: marked(TxRecord::SACKED),
            lost_segments: marked(TxRecord::LOST),
            retransmitted_segments: marked(TxRecord::RETRANSMITTED),
            recovering: self.phase == Phase::Recovery,
            timed_out: self.phase == Phase::Timeout,
            backoff: self.rtt.backoff(),
            min_rtt_us: self.rtt.min_rtt_us(),
            timestamps: self.flags.has(Flags::TIMESTAMPS),
            sack: self.flags.has(Flags::SACK),
            window_shifts: scaled.then_some((self.snd_shift, self.rcv_shift)),
            rcv_mss_bytes: self.rcv_mss,
        }
    }

    /// Time since a segment came in or data went out.
    pub fn idle_us(&self, now_us: u64) -> u64 {
        let sent_ago_ms = ms_of(now_us).wrapping_sub(self.last_snd_ms);
        now_us.saturating_sub(self.last_rcv_us).min(u64::from(sent_ago_ms) << 10)
    }

    /// The rare part, made when first needed.
    #[cold]
    pub(crate) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Whether the timer may soon find the peer gone: it has not answered lately.
    pub fn may_give_up(&self) -> bool {
        self.rtt.backoff() >= 3 || self.keepalives > 0
    }

    /// Nagle's algorithm on or off (RFC 9293 section 3.7.4).
    pub fn set_nagle(&mut self, on: bool) {
        self.flags.put(Flags::NAGLE, on);
    }

    /// Another congestion control (`TCP_CONGESTION` of sockets): the window stays. DCTCP takes
    /// effect only where ECN is in use, or on a connection that has not sent its SYN.
    pub fn set_congestion(&mut self, kind: Kind) {
        let opens = self.state == State::SynSent && self.records.is_empty();
        if kind != Kind::Dctcp || opens || self.uses_ecn() {
            self.cc.change(kind, self.mss);
            self.ecn.put(EcnState::USED, self.uses_ecn() || opens && kind == Kind::Dctcp);
            self.ecn.put(EcnState::EXACT, self.uses_ecn() && kind == Kind::Dctcp);
        }
    }

    /// The congestion control in force.
    pub fn congestion(&self) -> Kind {
        self.cc.kind()
    }

    /// Gives back every queued buffer. Needed before a connection that is not dead is dropped.
    pub fn release(&mut self, out: &mut impl Output<B>) {
        if let Some(mut reassembly) = self.reassembly.take() {
            while let Some(buf) = reassembly.pop_last() {
                out.discard(buf);
            }
        }
    }

    /// First octet of the send stream that is not acknowledged: `snd_una`, but for a SYN before it.
    #[inline]
    pub(crate) fn data_una(&self) -> Seq {
        self.snd_una + u32::from(!self.handshake_done())
    }

    /// Our SYN is acknowledged and we have the peer's.
    #[inline]
    pub(crate) fn handshake_done(&self) -> bool {
        self.state > State::SynReceived
    }

    /// End of what the application appended; FIN stands here.
    #[inline]
    pub(crate) fn data_end(&self) -> Seq {
        self.data_una() + self.snd_buf_bytes
    }

    /// Bytes appended and never sent.
    #[inline]
    pub(crate) fn unsent_bytes(&self) -> u32 {
        if self.snd_nxt == self.snd_una {
            return self.snd_buf_bytes;
        }
        (self.data_end() - self.snd_nxt).max(0) as u32
    }

    /// FIN is to be sent, perhaps after data, and never was.
    #[inline]
    pub(crate) fn fin_unsent(&self) -> bool {
        matches!(self.state, State::FinWait1 | State::LastAck | State::Closing)
            && self.snd_nxt.le(self.data_end())
    }

    /// Sent and not cumulatively acknowledged (FlightSize of RFC 5681).
    #[inline]
    pub(crate) fn flight_bytes(&self) -> u32 {
        (self.snd_nxt - self.snd_una) as u32
    }

    /// Enters another state.
    pub(crate) fn enter(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{:?} -> {next:?}", self.state);
        self.state = next;
    }

    /// Tells the application once that nothing more will come.
    pub(crate) fn say_dead(&mut self, reason: DeadReason, out: &mut impl Output<B>) {
        if !self.flags.has(Flags::DEAD_SAID) {
            self.flags.set(Flags::DEAD_SAID);
            out.event(TcpEvent::Dead(reason));
        }
    }

    /// The end: CLOSED, nothing queued, no timer.
    pub(crate) fn die(&mut self, reason: DeadReason, out: &mut impl Output<B>) {
        match reason {
            DeadReason::TimedOut | DeadReason::Unreachable => out.count(TcpCounter::TimedOut),
            DeadReason::Reset | DeadReason::Refused => out.count(TcpCounter::ResetsReceived),
            DeadReason::Closed => {}
        }
        self.bury(out);
        self.say_dead(reason, out);
    }

    /// As `die`, but the application asked for it.
    pub(crate) fn bury(&mut self, out: &mut impl Output<B>) {
        self.enter(State::Closed);
        self.release(out);
        self.flags.clear(Flags::ACK_NOW | Flags::ACK_DELAYED | Flags::TX_BLOCKED);
        self.loss_at_us = NEVER;
        self.delack_at_us = NEVER;
        self.state_at_us = NEVER;
    }

    /// The timestamp clock: milliseconds (RFC 7323 section 5.4), from a random start.
    #[inline]
    pub(crate) fn ts_at(&self, time_us: u64) -> u32 {
        ((time_us / 1000) as u32).wrapping_add(self.ts_offset)
    }

    /// RFC 9293 section 3.3.1 and 3.4, and our own accounts.
    pub(crate) fn check(&self) {
        debug_assert!(self.snd_una.le(self.snd_nxt));
        debug_assert!(self.rcv_nxt.le(self.rcv_adv));
        debug_assert!(self.sacked_bytes + self.lost_bytes <= self.flight_bytes());
        debug_assert_eq!(self.records.is_empty(), self.flight_bytes() == 0);
        #[cfg(debug_assertions)]
        self.check_records();
    }

    #[cfg(debug_assertions)]
    fn check_records(&self) {
        use crate::records::TxRecord;
        // The walk is quadratic over a window: sample the long ones.
        if self.records.len() > 64 && !self.snd_una.0.is_multiple_of(61) {
            return;
        }
        let (mut at, mut sacked, mut lost, mut segs) = (self.snd_una, 0, 0, 0);
        for record in (0..self.records.len()).filter_map(|index| self.records.get(index)) {
            assert_eq!(record.seq, at, "transmit records have a gap");
            assert!(
                record.len > 0 && !(record.has(TxRecord::SACKED) && record.has(TxRecord::LOST))
            );
            at = record.end();
            let len = u32::from(record.len);
            sacked += if record.has(TxRecord::SACKED) { len } else { 0 };
            segs += u16::from(record.has(TxRecord::SACKED));
            lost += if record.has(TxRecord::LOST) { len } else { 0 };
        }
        assert_eq!(at, self.snd_nxt, "transmit records do not reach snd_nxt");
        assert_eq!((sacked, segs), (self.sacked_bytes, self.sacked_segs));
        assert_eq!(lost, self.lost_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the size of the dataplane's token, an mbuf.
    type Token = [u8; 8];

    #[test]
    fn a_connection_is_small_and_its_hot_part_comes_first() {
        assert!(size_of::<Tcb<Token>>() <= 320, "{}", size_of::<Tcb<Token>>());
        // The common path works in the first four cache lines; the fifth holds the name, which
        // a segment needs on its way in and out, and little else.
        assert!(core::mem::offset_of!(Tcb<Token>, tuple) <= 4 * 64);
    }
}
