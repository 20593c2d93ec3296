//! The transmission control block: the state of one connection, and its plain accessors.
//!
//! Its behaviour is in other files by role: `connect` (made), `admit` and `arrive` (a segment
//! arrives), `ack` (its acknowledgement), `rcv` (its payload), `receive_buffer` (how much of it may
//! wait), `rack` and `recovery` (loss), `snd` (output), `window` (flow control), `timer`, `close`,
//! `pmtu`.
use crate::accurate::Accurate;
use crate::ack_limit::ChallengeSpacing;
use crate::ack_pace::AckPace;
use crate::cc::{Control, Kind};
use crate::config::Config;
use crate::connect::ms_of;
use crate::ecn::EcnState;
use crate::loss::{DUP_THRESH, LossState};
use crate::message_end::MessageEnds;
use crate::output::{DeadReason, Output, RxBuf, TcpEvent};
use crate::reassembly::Reassembly;
use crate::records::TxRecords;
use crate::right_size::RightSize;
use crate::rtt::RttEstimator;
use crate::state::State;
use crate::stats::TcpCounter;
use crate::window_limit::WindowLimited;
use ix_wire::{FlowTuple, Seq};

/// A set of facts about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub const NONE: Flags = Flags(0);

    #[inline]
    pub fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }

    /// All of them.
    pub fn bits(self) -> u16 {
        self.0
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
    /// An acknowledgement must be sent at the next output.
    pub const ACK_NOW: u16 = 1 << 3;
    /// An acknowledgement is due, and may wait for data.
    pub const ACK_DELAYED: u16 = 1 << 4;
    /// The application ended the send stream.
    pub const FIN_QUEUED: u16 = 1 << 5;
    /// Nagle's algorithm is on.
    pub const NAGLE: u16 = 1 << 6;
    /// The application has closed the connection and reads no more.
    pub const ORPHAN: u16 = 1 << 7;
    /// The application was told that the connection is over.
    pub const DEAD_SAID: u16 = 1 << 8;
    /// The connection began with the peer's SYN.
    pub const PASSIVE: u16 = 1 << 9;
    /// Sending stopped because the congestion window was full.
    pub const CWND_LIMITED: u16 = 1 << 10;
    /// At the last transmission no buffer was free.
    pub const TX_BLOCKED: u16 = 1 << 11;
    /// The path reorders segments (RFC 8985 section 6.2 step 3).
    pub const REORDERING: u16 = 1 << 12;
    /// An ICMP message says that the peer cannot be reached (RFC 1122 section 4.2.3.9).
    pub const SOFT_ERROR: u16 = 1 << 13;
    /// The loss timer must be set again at the end of [`Tcb::output`].
    pub const REARM: u16 = 1 << 14;
    /// In TIME-WAIT: a SYN was refused with an acknowledgement.
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
    /// The pace at which data is sent.
    Pace,
    /// A timeout or a tail loss probe whose time has become later, which is computed only when this
    /// one comes.
    Earlier,
}

/// The phase of loss recovery.
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
/// The fields are in the order of use: first what every segment touches, in four cache lines, then
/// the name.
#[repr(C)]
pub struct Tcb<B> {
    pub(crate) rcv_nxt: Seq,
    /// Right edge of the window that was offered. It never moves left.
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
    /// Bytes delivered and not returned.
    pub(crate) rcv_held_bytes: u32,
    /// Buffers delivered and not returned.
    pub(crate) rcv_held_bufs: u16,
    /// Size of the receive buffer, in units of `RCV_BUF_UNIT_BYTES`; 0: as configured.
    pub(crate) rcv_buf: u16,
    pub(crate) flags: Flags,
    pub(crate) state: State,
    pub(crate) phase: Phase,
    pub(crate) loss_timer: LossTimer,
    pub(crate) snd_shift: u8,
    pub(crate) rcv_shift: u8,
    /// State of the delay of acknowledgements.
    pub(crate) ack_pace: AckPace,
    /// Largest payload of one segment, without the bytes of options other than SACK.
    pub(crate) mss: u16,
    /// Largest payload received in one segment.
    pub(crate) rcv_mss: u16,
    /// When `ts_recent` was set, in units of 2^20 µs.
    pub(crate) ts_recent_age: u32,

    /// State that most connections never need.
    pub(crate) rare: Option<Box<Rare<B>>>,
    pub(crate) last_rcv_us: u64,
    pub(crate) delack_at_us: u64,
    pub(crate) loss_at_us: u64,
    /// Last restart of the retransmission timer (RFC 6298 section 5).
    pub(crate) rto_base_us: u64,
    pub(crate) ts_offset: u32,
    /// When data was last sent, in units of 2^10 µs.
    pub(crate) last_snd_ms: u32,

    pub(crate) records: TxRecords,
    pub(crate) rtt: RttEstimator,
    pub(crate) cc: Control,

    /// End of the latest segment known to be delivered (RACK.end_seq).
    pub(crate) rack_end: Seq,
    /// Transmission time of that segment (RACK.xmit_ts).
    pub(crate) rack_xmit_us: u64,
    /// Round-trip time of that segment (RACK.rtt).
    pub(crate) rack_rtt_us: u32,
    /// Highest sequence number known to be delivered (RACK.fack).
    pub(crate) rack_fack: Seq,
    /// Octets between `snd_una` and `snd_nxt` that were selectively acknowledged.
    pub(crate) sacked_bytes: u32,
    /// Octets in the same range that are taken to be lost and not retransmitted.
    pub(crate) lost_bytes: u32,

    pub(crate) tuple: FlowTuple,
    /// Largest window that the peer has offered.
    pub(crate) snd_wnd_max: u32,
    /// Time of keepalive, or end of FIN-WAIT-2 or TIME-WAIT, depending on the state.
    pub(crate) state_at_us: u64,
    pub(crate) retransmits: u32,
    pub(crate) keepalive_idle_s: u16,
    /// Keepalive probes without a reply.
    pub(crate) keepalives: u8,
    pub(crate) ecn: EcnState,
}

/// A connection's state for losses, congestion marks, attacks, bulk data and the application's
/// timeouts.
#[derive(Debug)]
pub(crate) struct Rare<B> {
    /// What arrived out of order.
    pub reassembly: Option<Box<Reassembly<B>>>,
    /// Recovery of what was lost.
    pub loss: Option<Box<LossState>>,
    pub challenge_spacing: ChallengeSpacing,
    /// End of the window of data for whose congestion marks the window was already reduced. Valid
    /// with [`EcnState::REACTED`].
    pub ecn_end: Seq,
    /// Counters of accurate ECN, where it is used or asked for.
    pub accurate: Option<Accurate>,
    /// User timeout: how long data may stay unacknowledged, in units of [`USER_TIMEOUT_UNIT_US`];
    /// 0: as configured.
    pub user_timeout: u16,
    /// The application has closed the connection, and keeps the memory of what it still sends.
    pub must_progress: bool,
    /// Seconds between keepalive probes; 0: as configured.
    pub keepalive_interval_s: u16,
    /// Unanswered keepalive probes that end the connection; 0: as configured.
    pub keepalive_probes: u8,
    /// The measurement that the size of the receive buffer follows.
    pub right_size: RightSize,
    /// What [`Output::promise`] was told last.
    pub promised: u32,
    /// Payload was dropped because memory was short, and the peer was not told since that there is
    /// some again.
    pub is_starved: bool,
    /// What the application allows for segments both ways, bytes without options; 0: what the
    /// device does.
    pub mss_limit: u16,
    /// How long the peer's window held something back.
    pub window_limited: WindowLimited,
    /// Where messages end in the send stream, as long as what is before is not acknowledged.
    pub message_ends: MessageEnds,
}

impl<B> Default for Rare<B> {
    fn default() -> Self {
        Rare {
            reassembly: None,
            loss: None,
            challenge_spacing: ChallengeSpacing::default(),
            ecn_end: Seq(0),
            accurate: None,
            user_timeout: 0,
            must_progress: false,
            keepalive_interval_s: 0,
            keepalive_probes: 0,
            right_size: RightSize::default(),
            promised: 0,
            is_starved: false,
            mss_limit: 0,
            window_limited: WindowLimited::default(),
            message_ends: MessageEnds::default(),
        }
    }
}

impl<B> Rare<B> {
    /// Whether it says nothing that a connection without it would not say.
    fn is_unused(&self) -> bool {
        self.reassembly.is_none()
            && self.loss.is_none()
            && self.challenge_spacing == ChallengeSpacing::default()
            && self.ecn_end == Seq(0)
            && self.accurate.is_none()
            && self.user_timeout == 0
            && !self.must_progress
            && self.keepalive_interval_s == 0
            && self.keepalive_probes == 0
            && self.right_size == RightSize::default()
            && self.promised == 0
            && !self.is_starved
            && self.mss_limit == 0
            && self.window_limited == WindowLimited::default()
            && self.message_ends.is_empty()
    }
}

/// The state of loss recovery, of a connection that has it. A function of the field alone, because
/// callers use others beside it.
#[inline(always)]
pub(crate) fn loss_of<B>(rare: &mut Option<Box<Rare<B>>>) -> Option<&mut LossState> {
    rare.as_mut()?.loss.as_deref_mut()
}

/// The same for what arrived out of order.
#[inline(always)]
pub(crate) fn reassembly_of<B>(rare: &mut Option<Box<Rare<B>>>) -> Option<&mut Reassembly<B>> {
    rare.as_mut()?.reassembly.as_deref_mut()
}

/// Figures of a connection, for `GET_INFO`.
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
    /// Bytes sent, and neither acknowledged nor taken to be lost.
    pub in_flight_bytes: u32,
    /// Largest payload of a segment to send.
    pub mss_bytes: u32,
    /// Number of retransmitted segments.
    pub retransmits: u32,
    /// The window that is offered to the peer.
    pub rcv_wnd_bytes: u32,
    /// Bytes accepted for sending and not acknowledged.
    pub snd_queued_bytes: u32,
    /// Of these, never sent.
    pub snd_unsent_bytes: u32,
    /// Bytes delivered in order and not returned.
    pub rcv_queued_bytes: u32,
    /// Largest payload that the peer was told to send in a segment.
    pub advmss_bytes: u32,
    /// Largest payload that was received in a segment.
    pub rcv_mss_bytes: u32,
    /// Smallest recent round-trip time, µs.
    pub min_rtt_us: u32,
    /// Time since data was last sent, in units of 2^10 µs.
    pub last_sent_ms: u32,
    /// Time since anything was last heard of the peer, in the same units.
    pub last_heard_ms: u32,
    /// Segments in flight.
    pub unacked_segments: u32,
    /// Of these, selectively acknowledged.
    pub sacked_segments: u32,
    /// Of these, taken to be lost, at most.
    pub lost_segments: u32,
    /// By how many segments the path has been seen to reorder.
    pub reordering_segments: u16,
    /// Number of times the retransmission timeout was doubled.
    pub backoff: u8,
    /// Probes of a closed window, or of an idle peer, without a reply.
    pub probes: u8,
    /// What congestion control is about.
    pub recovery: Recovery,
    /// How long the peer's window held something back, µs.
    pub rwnd_limited_us: u64,
    /// Timestamps are in use; this and what follows is known after the handshake.
    pub timestamps: bool,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Explicit congestion notification is in use.
    pub ecn: bool,
    /// A packet of a transport that is capable of it has arrived.
    pub ecn_seen: bool,
    /// Shifts of the peer's windows and of ours, when scaling is in use.
    pub window_shifts: Option<(u8, u8)>,
}

/// What congestion control is about; the numbers are Linux's of `tcpi_ca_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Recovery {
    /// Nothing is amiss.
    #[default]
    Open = 0,
    /// Something has arrived out of order.
    Disorder = 1,
    /// The window is smaller for a congestion mark, within a round trip of it.
    Reduced = 2,
    /// Fast recovery.
    Fast = 3,
    /// Recovery after a timeout.
    Timeout = 4,
}

/// State of loss recovery, for tests and simulators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossInfo {
    /// Segments sent and not cumulatively acknowledged.
    pub unacked_segments: u32,
    /// Of these, selectively acknowledged.
    pub sacked_segments: u32,
    /// Of these, taken to be lost and not sent again.
    pub lost_segments: u32,
    /// Of these, sent more than once.
    pub retransmitted_segments: u32,
    /// In fast recovery.
    pub recovering: bool,
    /// After a retransmission timeout, until what was outstanding then is acknowledged.
    pub timed_out: bool,
    /// Number of times the retransmission timeout was doubled.
    pub backoff: u8,
    /// Smallest recent round-trip time, µs.
    pub min_rtt_us: u32,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Shifts of the peer's windows and of ours, when scaling is in use.
    pub window_shifts: Option<(u8, u8)>,
    /// Largest payload received in one segment, bytes.
    pub rcv_mss_bytes: u16,
    /// By how many segments the path has been seen to reorder, at least [`DUP_THRESH`].
    pub reordering_segments: u16,
    /// Probes of a closed window, or of an idle peer, without a reply.
    pub probes: u8,
}

/// Unit of the user timeout. The longest one is nearly two hours.
pub(crate) const USER_TIMEOUT_UNIT_US: u64 = 100_000;

/// A time that never comes: no timer.
pub(crate) const NEVER: u64 = u64::MAX;

impl<B: RxBuf> Tcb<B> {
    /// State.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The addresses and ports of the connection.
    #[inline]
    pub fn tuple(&self) -> &FlowTuple {
        &self.tuple
    }

    /// The first number that is not acknowledged: at the begin that of our SYN.
    pub fn snd_una(&self) -> Seq {
        self.snd_una
    }

    /// True if the connection is gone and holds nothing, so that it can be dropped.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.state == State::Closed
    }

    /// Figures for `GET_INFO`, but for those that count time: [`Self::info_at`] has them.
    pub fn info(&self, cfg: &Config) -> TcbInfo {
        let agreed = |flag| self.handshake_done() && self.flags.has(flag);
        TcbInfo {
            state: self.state,
            srtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.rttvar_us(),
            rto_us: self.rtt.rto_us(cfg.min_rto_us, cfg.max_rto_us, cfg.initial_rto_us),
            cwnd_bytes: self.cwnd_bytes(),
            ssthresh_bytes: self.cc.told_ssthresh_bytes(),
            snd_wnd_bytes: self.snd_wnd,
            in_flight_bytes: self.pipe_bytes(),
            mss_bytes: u32::from(self.mss),
            retransmits: self.retransmits,
            rcv_wnd_bytes: (self.rcv_adv - self.rcv_nxt).max(0) as u32,
            snd_queued_bytes: self.snd_buf_bytes,
            snd_unsent_bytes: self.unsent_bytes(),
            rcv_queued_bytes: self.rcv_held_bytes,
            advmss_bytes: self.offered_mss(cfg).into(),
            rcv_mss_bytes: self.rcv_mss.into(),
            min_rtt_us: self.rtt.min_rtt_us(),
            last_sent_ms: 0,
            last_heard_ms: 0,
            unacked_segments: self.records.len() as u32,
            sacked_segments: self.sacked_segs().into(),
            lost_segments: self.lost_bytes.div_ceil(u32::from(self.mss.max(1))),
            reordering_segments: self.reordering_segments(),
            backoff: self.rtt.backoff(),
            probes: self.probes(),
            recovery: self.recovery(),
            rwnd_limited_us: 0,
            timestamps: agreed(Flags::TIMESTAMPS),
            sack: agreed(Flags::SACK),
            ecn: self.handshake_done() && self.uses_ecn(),
            ecn_seen: self.handshake_done() && self.ecn.has(EcnState::SEEN),
            window_shifts: agreed(Flags::WINDOW_SCALING)
                .then_some((self.snd_shift, self.rcv_shift)),
        }
    }

    /// State of loss recovery. Walks through all outstanding records.
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
            reordering_segments: self.reordering_segments(),
            probes: self.probes(),
        }
    }

    fn reordering_segments(&self) -> u16 {
        self.loss().map_or(DUP_THRESH, |loss| loss.reordering_segs)
    }

    fn probes(&self) -> u8 {
        match self.loss_timer {
            LossTimer::Persist => self.rtt.backoff(),
            _ => self.keepalives,
        }
    }

    /// Time since a segment arrived or data was sent.
    pub fn idle_us(&self, now_us: u64) -> u64 {
        let sent_ago_ms = ms_of(now_us).wrapping_sub(self.last_snd_ms);
        now_us.saturating_sub(self.last_rcv_us).min(u64::from(sent_ago_ms) << 10)
    }

    /// The rare part, made when it is first needed.
    #[cold]
    pub(crate) fn rare_mut(&mut self) -> &mut Rare<B> {
        self.rare.get_or_insert_default()
    }

    /// Frees the rare part, if nothing is in it.
    #[cold]
    pub(crate) fn settle_rare(&mut self) {
        self.rare.take_if(|rare| rare.is_unused());
    }

    /// The state of loss recovery, if there is one.
    #[inline(always)]
    pub(crate) fn loss(&self) -> Option<&LossState> {
        self.rare.as_ref()?.loss.as_deref()
    }

    /// Ends loss recovery, and returns its state.
    #[inline]
    pub(crate) fn take_loss(&mut self) -> Option<Box<LossState>> {
        let loss = self.rare.as_mut()?.loss.take();
        self.settle_rare();
        loss
    }

    /// Whether nothing rare is under way that the next message must heed.
    #[inline(always)]
    pub(crate) fn is_calm(&self) -> bool {
        self.rare.as_ref().is_none_or(|rare| {
            rare.loss.is_none()
                && rare.reassembly.is_none()
                && rare.message_ends.is_empty()
                && !rare.window_limited.is_now()
        })
    }

    /// What arrived out of order, if something is kept of it.
    #[inline(always)]
    pub(crate) fn reassembly(&self) -> Option<&Reassembly<B>> {
        self.rare.as_ref()?.reassembly.as_deref()
    }

    /// The same, taken out.
    #[inline]
    pub(crate) fn take_reassembly(&mut self) -> Option<Box<Reassembly<B>>> {
        self.rare.as_mut()?.reassembly.take()
    }

    /// Segments that were selectively acknowledged.
    #[inline]
    pub(crate) fn sacked_segs(&self) -> u16 {
        self.loss().map_or(0, |loss| loss.sacked_segs)
    }

    /// Duplicate acknowledgements in a row, from a peer without SACK.
    #[inline]
    pub(crate) fn dupacks(&self) -> u16 {
        self.loss().map_or(0, |loss| loss.dupacks)
    }

    /// The next duplicate acknowledgement is the first one in a row.
    #[inline]
    pub(crate) fn clear_dupacks(&mut self) {
        if let Some(loss) = loss_of(&mut self.rare) {
            loss.dupacks = 0;
        }
    }

    /// Whether the timer may soon find the peer gone, because the peer has not replied for a while.
    pub fn may_give_up(&self) -> bool {
        self.rtt.backoff() >= 3 || self.keepalives > 0
    }

    /// Turns Nagle's algorithm on or off (RFC 9293 section 3.7.4).
    pub fn set_nagle(&mut self, on: bool) {
        self.flags.put(Flags::NAGLE, on);
    }

    /// Changes the congestion control (`TCP_CONGESTION` of sockets); the window stays. DCTCP takes
    /// effect only where ECN is used, or before the SYN was sent.
    pub fn set_congestion(&mut self, kind: Kind) {
        let opens = self.state == State::SynSent && self.records.is_empty();
        if kind != Kind::Dctcp || opens || self.uses_ecn() {
            self.cc.change(kind, self.mss);
            self.start_bbr();
            self.ecn.put(EcnState::USED, self.uses_ecn() || opens && kind == Kind::Dctcp);
            self.ecn.put(EcnState::EXACT, self.uses_ecn() && kind == Kind::Dctcp);
        }
    }

    /// The congestion control algorithm in use.
    pub fn congestion(&self) -> Kind {
        self.cc.kind()
    }

    /// Frees every queued buffer, and gives back what was promised beyond the first size. Needed
    /// before a connection that is not dead is dropped.
    pub fn release(&mut self, out: &mut impl Output<B>) {
        self.promise(0, out);
        if let Some(mut reassembly) = self.take_reassembly() {
            while let Some(buf) = reassembly.pop_last() {
                out.discard(buf);
            }
        }
    }

    /// First octet of the send stream that is not acknowledged: `snd_una`, or the octet after an
    /// unacknowledged SYN.
    #[inline]
    pub(crate) fn data_una(&self) -> Seq {
        self.snd_una + u32::from(!self.handshake_done())
    }

    /// True if our SYN is acknowledged and the peer's has arrived.
    #[inline]
    pub(crate) fn handshake_done(&self) -> bool {
        self.state > State::SynReceived
    }

    /// End of what the application appended, where FIN is.
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

    /// True if FIN is to be sent, perhaps after data, and never was.
    #[inline]
    pub(crate) fn fin_unsent(&self) -> bool {
        matches!(self.state, State::FinWait1 | State::LastAck | State::Closing)
            && self.snd_nxt.le(self.data_end())
    }

    /// Bytes sent and not cumulatively acknowledged (FlightSize of RFC 5681).
    #[inline]
    pub(crate) fn flight_bytes(&self) -> u32 {
        (self.snd_nxt - self.snd_una) as u32
    }

    /// Changes the state.
    pub(crate) fn enter(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{:?} -> {next:?}", self.state);
        self.state = next;
    }

    /// Tells the application, once, that the connection is over.
    pub(crate) fn say_dead(&mut self, reason: DeadReason, out: &mut impl Output<B>) {
        if !self.flags.has(Flags::DEAD_SAID) {
            self.flags.set(Flags::DEAD_SAID);
            out.event(TcpEvent::Dead(reason));
        }
    }

    /// Ends the connection: CLOSED, nothing queued, no timer.
    pub(crate) fn die(&mut self, reason: DeadReason, out: &mut impl Output<B>) {
        match reason {
            DeadReason::TimedOut | DeadReason::Unreachable => out.count(TcpCounter::TimedOut),
            DeadReason::Reset | DeadReason::Refused => out.count(TcpCounter::ResetsReceived),
            DeadReason::Closed => {}
        }
        self.bury(out);
        self.say_dead(reason, out);
    }

    /// As `die`, because the application asked for it.
    pub(crate) fn bury(&mut self, out: &mut impl Output<B>) {
        self.enter(State::Closed);
        self.release(out);
        self.flags.clear(Flags::ACK_NOW | Flags::ACK_DELAYED | Flags::TX_BLOCKED);
        self.loss_at_us = NEVER;
        self.delack_at_us = NEVER;
        self.state_at_us = NEVER;
    }

    /// The timestamp clock: milliseconds (RFC 7323 section 5.4) from a random start.
    #[inline]
    pub(crate) fn ts_at(&self, time_us: u64) -> u32 {
        ((time_us / 1000) as u32).wrapping_add(self.ts_offset)
    }

    /// Checks the invariants of RFC 9293 section 3.3.1 and 3.4, and the sums of this file.
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
        // The walk makes the cost quadratic over a window: only some of the long ones are checked.
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
        assert_eq!((sacked, segs), (self.sacked_bytes, self.sacked_segs()));
        assert_eq!(lost, self.lost_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As large as the dataplane's token, an mbuf.
    type Token = [u8; 8];

    #[test]
    fn the_rare_part_ends_with_what_is_in_it() {
        let cfg = Config::default();
        let mut tcb: Tcb<Vec<u8>> = Tcb::connect(&cfg, FlowTuple::default(), Seq(1), 0, 0);
        assert!(tcb.rare.is_none());
        tcb.loss_mut().dupacks = 1;
        assert_eq!((tcb.dupacks(), tcb.sacked_segs()), (1, 0));
        assert!(tcb.take_loss().is_some());
        assert!(tcb.rare.is_none(), "{:?}", tcb.rare);
        tcb.rare_mut().keepalive_probes = 3;
        tcb.loss_mut();
        tcb.take_loss();
        assert!(tcb.rare.is_some_and(|rare| rare.keepalive_probes == 3));
    }

    #[test]
    fn a_connection_is_small_and_its_hot_part_comes_first() {
        assert!(size_of::<Tcb<Token>>() <= 288, "{}", size_of::<Tcb<Token>>());
        // The common path uses the first four cache lines. The fifth holds the name, which a
        // segment needs when it arrives and when it is sent, and little else.
        assert!(core::mem::offset_of!(Tcb<Token>, tuple) <= 4 * 64);
    }
}
