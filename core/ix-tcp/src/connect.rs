//! How connections begin: RFC 9293 sections 3.10.1 (active open) and 3.10.7.2 (a SYN arrives at a
//! listener), RFC 4987 section 3.6 (SYN cookies).
use crate::accurate::{self, Accurate};
use crate::ack_pace::AckPace;
use crate::cc::{Control, Kind};
use crate::config::Config;
use crate::ecn::{EcnMode, EcnState, NOT_ECT};
use crate::listen::PeerOptions;
use crate::output::{Output, RxBuf, SegmentOut};
use crate::records::{TxRecord, TxRecords};
use crate::rtt::RttEstimator;
use crate::state::State;
use crate::tcb::{Flags, LossTimer, NEVER, Phase, Tcb};
use ix_wire::EcnBytes;
use ix_wire::{FlowTuple, SackBlocks, Seq, TcpFlags, TcpHeader, TcpOptions};

/// Bytes of the timestamp option with its padding. They reduce the peer's MSS (RFC 9293 section
/// 3.7.1).
pub(crate) const TIMESTAMP_BYTES: u16 = 12;

/// Largest window that a SYN can offer: its window field is never scaled (RFC 7323 section 2.2).
pub(crate) const SYN_WINDOW_MAX: u32 = 65_535;

impl<B: RxBuf> Tcb<B> {
    /// Active open: the SYN is sent at the next [`Self::output`]. `ts_offset` is the random start
    /// of this connection's timestamps.
    pub fn connect(cfg: &Config, tuple: FlowTuple, iss: Seq, ts_offset: u32, now_us: u64) -> Self {
        let mut tcb = Self::new(cfg, tuple, State::SynSent, iss, ts_offset, now_us);
        tcb.flags.put(Flags::TIMESTAMPS, cfg.timestamps);
        tcb.flags.put(Flags::SACK, cfg.sack);
        tcb.flags.put(Flags::WINDOW_SCALING, cfg.window_scaling);
        let dctcp = cfg.congestion == crate::CongestionControl::Dctcp;
        let asks = cfg.ecn.asks() || dctcp && cfg.ecn != EcnMode::Off;
        tcb.ecn.put(EcnState::USED, asks);
        if asks && cfg.ecn.is_accurate() {
            tcb.ecn.put(EcnState::ACCURATE, true);
            tcb.rare_mut().accurate = Some(Accurate::default());
        }
        tcb
    }

    /// Passive open from an acceptable SYN: the SYN-ACK is sent at the next [`Self::output`].
    pub fn accept(
        cfg: &Config,
        tuple: FlowTuple,
        syn: &TcpHeader,
        iss: Seq,
        ts_offset: u32,
        now_us: u64,
    ) -> Self {
        let mut tcb = Self::new(cfg, tuple, State::SynReceived, iss, ts_offset, now_us);
        tcb.flags.set(Flags::PASSIVE);
        tcb.peer_syn(cfg, syn, now_us);
        tcb
    }

    /// A connection established by the ACK of a valid SYN cookie; `peer` is what the cookie kept of
    /// the SYN. Give the same segment to [`Self::segment`] next: it may carry data.
    pub fn accept_cookie(
        cfg: &Config,
        tuple: FlowTuple,
        ack: &TcpHeader,
        peer: &PeerOptions,
        ts_offset: u32,
        now_us: u64,
    ) -> Self {
        let mut tcb = Self::new(cfg, tuple, State::SynReceived, ack.ack, ts_offset, now_us);
        tcb.flags.set(Flags::PASSIVE);
        tcb.agree(cfg, *peer, 0);
        tcb.rcv_nxt = ack.seq;
        tcb.rcv_adv = ack.seq + u32::from(cfg.cookie_window());
        tcb.last_ack_sent = ack.seq;
        tcb.snd_wnd = u32::from(ack.window) << tcb.snd_shift;
        tcb.snd_wnd_max = tcb.snd_wnd;
        tcb.snd_wl1 = ack.seq;
        tcb.snd_wl2 = ack.ack;
        if let Some((val, _)) = ack.options.timestamp {
            tcb.remember_ts(val, now_us);
        }
        tcb.enter(State::Established);
        tcb.start_bbr();
        tcb.start_keepalive(now_us);
        tcb
    }

    /// A control block without a peer. Our SYN has number `iss` and is not sent.
    pub(crate) fn new(
        cfg: &Config,
        tuple: FlowTuple,
        state: State,
        iss: Seq,
        ts_offset: u32,
        now_us: u64,
    ) -> Self {
        let mut flags = Flags::NONE;
        flags.put(Flags::NAGLE, cfg.nagle);
        let mss = cfg.mss_to(tuple.remote);
        Tcb {
            rcv_nxt: Seq(0),
            rcv_adv: Seq(0),
            last_ack_sent: Seq(0),
            ts_recent: 0,
            snd_una: iss,
            snd_nxt: iss,
            snd_wnd: 0,
            snd_wl1: Seq(0),
            snd_wl2: iss,
            snd_buf_bytes: 0,
            rcv_held_bytes: 0,
            rcv_held_bufs: 0,
            rcv_buf: 0,
            flags,
            state,
            phase: Phase::Open,
            loss_timer: LossTimer::Idle,
            snd_shift: 0,
            rcv_shift: 0,
            ack_pace: AckPace::new(cfg),
            mss,
            rcv_mss: crate::MSS_DEFAULT.min(mss),
            ts_recent_age: 0,
            last_rcv_us: now_us,
            delack_at_us: NEVER,
            loss_at_us: NEVER,
            state_at_us: NEVER,
            rto_base_us: now_us,
            ts_offset,
            snd_wnd_max: 0,
            records: TxRecords::new(),
            rtt: RttEstimator::new(),
            cc: Control::new(cfg.congestion, mss, cfg.initial_window_segments),
            rack_xmit_us: 0,
            rack_end: iss,
            rack_rtt_us: 0,
            rack_fack: iss,
            sacked_bytes: 0,
            lost_bytes: 0,
            last_snd_ms: ms_of(now_us),
            retransmits: 0,
            keepalive_idle_s: cfg.keepalive_idle_s,
            keepalives: 0,
            ecn: EcnState::default(),
            rare: None,
            tuple,
        }
    }

    /// Records the peer's sequence number, window and options from its SYN.
    pub(crate) fn peer_syn(&mut self, cfg: &Config, syn: &TcpHeader, now_us: u64) {
        let mut peer = PeerOptions::of_syn(syn, self.tuple.remote);
        if self.state == State::SynSent {
            // In a simultaneous open the SYNs have crossed, so neither grants anything.
            let asked = self.uses_ecn() && syn.flags.contains(TcpFlags::ACK);
            peer.ecn &= asked;
            peer.accurate_ecn &= asked && self.ecn.has(EcnState::ACCURATE);
        }
        self.agree(cfg, peer, accurate::ace_of(syn.flags));
        let offered = match self.state {
            // Our SYN has offered it already.
            State::SynSent => self.rcv_wnd(),
            _ => self.rcv_space(cfg).min(SYN_WINDOW_MAX),
        };
        self.rcv_nxt = syn.seq + 1;
        self.rcv_adv = self.rcv_nxt + offered;
        self.last_ack_sent = self.rcv_nxt;
        self.snd_wnd = u32::from(syn.window);
        self.snd_wnd_max = self.snd_wnd;
        self.snd_wl1 = syn.seq;
        if let Some((val, _)) = syn.options.timestamp {
            self.remember_ts(val, now_us);
        }
    }

    /// Decides which options are used: those that both sides want.
    fn agree(&mut self, cfg: &Config, peer: PeerOptions, ace: u8) {
        let agreed = peer.agreed(cfg);
        self.flags.put(Flags::TIMESTAMPS, agreed.timestamps);
        self.flags.put(Flags::SACK, agreed.sack_permitted);
        self.flags.put(Flags::WINDOW_SCALING, agreed.window_scale.is_some());
        self.snd_shift = agreed.window_scale.unwrap_or(0);
        self.rcv_shift = if agreed.window_scale.is_some() { cfg.window_shift() } else { 0 };
        let mss = agreed.mss.min(self.offered_mss(cfg));
        self.mss = mss - if agreed.timestamps { TIMESTAMP_BYTES } else { 0 };
        let wanted = self.cc.kind();
        let ecn = agreed.ecn || agreed.accurate_ecn;
        let kind = if wanted == Kind::Dctcp && !ecn { Kind::Cubic } else { wanted };
        self.cc = Control::new(kind, self.mss, cfg.initial_window_segments);
        self.agree_on_ecn(&agreed, ace);
    }

    /// What the peer is told to send at most (RFC 9293 section 3.7.1).
    pub(crate) fn offered_mss(&self, cfg: &Config) -> u16 {
        let of_device = cfg.mss_to(self.tuple.remote);
        match self.rare.as_ref().map_or(0, |rare| rare.mss_limit) {
            0 => of_device,
            limit => limit.min(of_device),
        }
    }

    /// Limits segments to `mss` bytes without options, as [`Self::limit_segments`]; before our SYN
    /// was sent also what the peer is told to send (`TCP_MAXSEG` of sockets).
    pub fn limit_offer(&mut self, cfg: &Config, mss: u16) {
        if self.handshake_done() || !self.records.is_empty() {
            return self.limit_segments(mss);
        }
        self.rare_mut().mss_limit = mss;
        let mss = mss.saturating_sub(self.option_bytes());
        if 0 < mss && mss < self.mss {
            self.mss = mss;
            self.cc = Control::new(self.cc.kind(), mss, cfg.initial_window_segments);
        }
    }

    /// Sends our SYN, for the first time or again.
    pub(crate) fn send_syn(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.records.is_empty() {
            let syn = TxRecord { sent_us: now_us, seq: self.snd_una, len: 1, marks: TxRecord::SYN };
            if self.emit_syn(cfg, now_us, false, out) {
                self.records.push(syn);
                self.snd_nxt = self.snd_una + 1;
                self.rto_base_us = now_us;
            }
            self.arm_loss_timer(cfg, now_us);
        } else if self.lost_bytes > 0 && self.emit_syn(cfg, now_us, true, out) {
            self.note_retransmitted(0, now_us, out);
            self.arm_loss_timer(cfg, now_us);
        }
    }

    /// The ECN bits of our SYN or SYN-ACK. A retransmitted SYN does not ask for ECN, because
    /// something on the path may drop SYNs that do (RFC 3168 section 6.1.1.1); one for accurate ECN
    /// asks twice (RFC 9768 section 3.1.4.1).
    fn syn_ecn(&mut self, passive: bool, again: bool) -> (TcpFlags, EcnBytes) {
        const CLASSIC: TcpFlags = TcpFlags::ECE.union(TcpFlags::CWR);
        let accurate = self.ecn.has(EcnState::ACCURATE);
        let bits = match (self.uses_ecn(), passive) {
            (false, _) => TcpFlags(0),
            (true, true) if accurate => return self.accurate_syn_ack(again),
            (true, true) => TcpFlags::ECE,
            (true, false) if again && (!accurate || self.ecn.has(EcnState::SYN_AGAIN)) => {
                self.forget_ecn();
                TcpFlags(0)
            }
            (true, false) if accurate => {
                self.ecn.put(EcnState::SYN_AGAIN, again);
                accurate::ACE_BITS
            }
            (true, false) => CLASSIC,
        };
        (bits, EcnBytes::NONE)
    }

    fn emit_syn(
        &mut self,
        cfg: &Config,
        now_us: u64,
        retransmission: bool,
        out: &mut impl Output<B>,
    ) -> bool {
        let passive = self.state == State::SynReceived;
        if !passive && !retransmission {
            self.rcv_adv = self.rcv_nxt + self.rcv_space(cfg).min(SYN_WINDOW_MAX);
        }
        let window = self.rcv_wnd();
        let (ecn_bits, ecn_bytes) = self.syn_ecn(passive, retransmission);
        let flags = if passive { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
        let options = TcpOptions {
            mss: Some(self.offered_mss(cfg)),
            window_scale: self.flags.has(Flags::WINDOW_SCALING).then(|| cfg.window_shift()),
            sack_permitted: self.flags.has(Flags::SACK),
            timestamp: self.timestamp(now_us),
            sack: SackBlocks::EMPTY,
            ecn_bytes,
        };
        let seg = SegmentOut {
            seq: self.snd_una,
            ack: if passive { self.rcv_nxt } else { Seq(0) },
            flags: flags | ecn_bits,
            window: window.min(SYN_WINDOW_MAX) as u16,
            ecn: NOT_ECT,
            options,
            payload_offset: 0,
            payload_len: 0,
            retransmission,
        };
        let sent = self.transmit(&seg, out);
        if sent && passive {
            self.acknowledged_now();
        }
        sent
    }

    pub(crate) fn remember_ts(&mut self, val: u32, now_us: u64) {
        self.ts_recent = val;
        self.ts_recent_age = (now_us >> 20) as u32;
    }
}

/// Milliseconds, approximately (1024 µs), for coarse ages.
#[inline]
pub(crate) fn ms_of(now_us: u64) -> u32 {
    (now_us >> 10) as u32
}
