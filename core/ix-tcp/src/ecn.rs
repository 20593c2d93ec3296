//! Explicit congestion notification: RFC 3168, and RFC 8257's way of echoing it.
//!
//! The receiver of a packet marked CE reports it in its acknowledgements (ECE): until the sender
//! replies with CWR (RFC 3168 section 6.1.3), or, with DCTCP, on exactly those acknowledgements
//! that cover marked packets (RFC 8257 section 3.2). The sender reduces its window at most once per
//! window of data. Nothing here runs on a connection without marks.
use crate::config::Config;
use crate::listen::PeerOptions;
use crate::output::{Output, RxBuf, SegmentOut};
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Phase, Tcb, loss_of};
use ix_wire::{TcpFlags, TcpHeader};

/// Codepoints of the IP header's ECN field (RFC 3168 section 5).
pub const NOT_ECT: u8 = 0;
/// An ECN-capable transport; the codepoint that is sent.
pub const ECT0: u8 = 2;
/// Congestion experienced.
pub const CE: u8 = 3;

/// Whether connections use ECN, and which kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// Not asked for and not granted.
    Off,
    /// Granted to peers that ask.
    #[default]
    Accept,
    /// Asked for, and granted to peers that ask.
    Ask,
    /// Granted to peers that ask; accurate ECN (RFC 9768) to those that ask for it.
    AcceptAccurate,
    /// Accurate ECN is asked for, too.
    AskAccurate,
}

impl EcnMode {
    /// Every mode, by name.
    pub const ALL: [(&str, EcnMode); 5] = [
        ("off", EcnMode::Off),
        ("accept", EcnMode::Accept),
        ("ask", EcnMode::Ask),
        ("accept-accurate", EcnMode::AcceptAccurate),
        ("ask-accurate", EcnMode::AskAccurate),
    ];

    /// The mode of this name.
    pub fn named(name: &str) -> Option<EcnMode> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, mode)| *mode)
    }

    /// True if our SYNs ask for ECN.
    pub fn asks(self) -> bool {
        matches!(self, EcnMode::Ask | EcnMode::AskAccurate)
    }

    /// True if accurate ECN is preferred.
    pub fn is_accurate(self) -> bool {
        matches!(self, EcnMode::AcceptAccurate | EcnMode::AskAccurate)
    }
}

/// ECN state of a connection; zero on one without ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EcnState(u8);

impl EcnState {
    /// Both ends have agreed, or (SYN-SENT) we ask.
    pub const USED: u8 = 1;
    /// Acknowledgements carry ECE.
    pub const ECHO: u8 = 2;
    /// CWR is sent with the next new data.
    pub const REDUCED: u8 = 4;
    /// The window was reduced: ECE is ignored until `ecn_end` is acknowledged.
    pub const REACTED: u8 = 8;
    /// ECE is about exactly the packets that are acknowledged (RFC 8257).
    pub const EXACT: u8 = 16;
    /// Accurate ECN is used, or asked for.
    pub const ACCURATE: u8 = 32;
    /// The path changes ECN-capable packets: none are sent (RFC 9768).
    pub const NOT_CAPABLE: u8 = 64;
    /// The last SYN or SYN-ACK was a retransmission (RFC 9768 section 3.1.4).
    pub const SYN_AGAIN: u8 = 128;
    /// An ECN-capable packet has arrived. Known after the handshake, which ends `SYN_AGAIN`.
    pub const SEEN: u8 = 128;

    #[inline]
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    pub fn put(&mut self, bit: u8, on: bool) {
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }

    #[inline]
    pub fn is_silent(self) -> bool {
        self.0 == 0
    }
}

/// True for a SYN that asks for ECN (RFC 3168 section 6.1.1).
pub(crate) fn asks(flags: TcpFlags) -> bool {
    flags.contains(TcpFlags::ECE) && flags.contains(TcpFlags::CWR)
}

/// True for a SYN-ACK that grants it: ECE without CWR. A peer that only reflects our bits does not
/// grant it.
pub(crate) fn grants(flags: TcpFlags) -> bool {
    flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
}

impl<B: RxBuf> Tcb<B> {
    /// True if both ends use ECN.
    pub fn uses_ecn(&self) -> bool {
        self.ecn.has(EcnState::USED)
    }

    /// Whether the ECN field of an arriving packet matters to the connection. If so, call
    /// [`Self::mark`] before [`Self::segment`].
    #[inline]
    pub fn minds_mark(&self, ecn: u8) -> bool {
        ecn == CE
            || self.ecn.has(EcnState::ECHO | EcnState::ACCURATE)
            || ecn != NOT_ECT && self.ecn.0 & (EcnState::USED | EcnState::SEEN) == EcnState::USED
    }

    /// Records the ECN field of a segment with `len` bytes of payload that is about to be given to
    /// [`Self::segment`].
    #[cold]
    pub fn mark(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        len: u32,
        ecn: u8,
        out: &mut impl Output<B>,
    ) {
        if ecn != NOT_ECT && self.uses_ecn() && self.handshake_done() && self.is_near(hdr) {
            self.ecn.put(EcnState::SEEN, true);
        }
        if self.ecn.has(EcnState::ACCURATE) {
            if self.mark_accurately(hdr, len, ecn, out) {
                self.send_ack(cfg, now_us, out);
            }
            return;
        }
        if !self.uses_ecn() || !self.handshake_done() || !self.is_near(hdr) {
            return;
        }
        let marked = ecn == CE;
        if marked {
            out.count(TcpCounter::CeReceived);
        }
        let echo = self.ecn.has(EcnState::ECHO);
        if self.ecn.has(EcnState::EXACT) {
            if marked != echo && self.flags.has(Flags::ACK_DELAYED) {
                // What was received before is acknowledged with the old mark (RFC 8257 section
                // 3.2).
                self.send_ack(cfg, now_us, out);
            }
            self.ecn.put(EcnState::ECHO, marked);
        } else if marked || hdr.flags.contains(TcpFlags::CWR) {
            self.ecn.put(EcnState::ECHO, marked);
        }
        if marked && !echo {
            // The sender should learn of it soon.
            self.flags.set(Flags::ACK_NOW);
        }
    }

    /// Whether the segment is near the window. Marks on any other are ignored (as RFC 5961 does
    /// with acknowledgements).
    pub(crate) fn is_near(&self, hdr: &TcpHeader) -> bool {
        hdr.seq.le(self.rcv_adv) && hdr.seq.ge(self.rcv_nxt - self.rcv_wnd().max(1))
    }

    /// Sets the state after the peer's SYN or SYN-ACK; `ace`: its three bits.
    pub(crate) fn agree_on_ecn(&mut self, agreed: &PeerOptions, ace: u8) {
        let granted = agreed.ecn || agreed.accurate_ecn;
        self.ecn = EcnState::default();
        self.ecn.put(EcnState::USED, granted);
        self.ecn.put(EcnState::EXACT, granted && self.cc.kind() == crate::cc::Kind::Dctcp);
        if agreed.accurate_ecn {
            self.ecn.put(EcnState::ACCURATE, true);
            self.begin_accurate(self.state == State::SynSent, ace);
        } else {
            self.rare.iter_mut().for_each(|rare| rare.accurate = None);
        }
    }

    /// Sets the ECN bits of a segment to send. Pure acknowledgements, probes and retransmissions
    /// are not ECN-capable (RFC 3168 sections 6.1.4 to 6.1.6).
    #[cold]
    pub(crate) fn stamp_ecn(&mut self, seg: &mut SegmentOut) {
        if self.ecn.has(EcnState::ACCURATE) {
            return self.stamp_accurate(seg);
        }
        if self.ecn.has(EcnState::ECHO) {
            seg.flags |= TcpFlags::ECE;
        }
        let probes = self.snd_wnd == 0;
        if seg.payload_len > 0 && !seg.retransmission && !probes && self.uses_ecn() {
            seg.ecn = ECT0;
            if self.ecn.has(EcnState::REDUCED) {
                seg.flags |= TcpFlags::CWR;
                self.ecn.put(EcnState::REDUCED, false);
            }
        }
    }

    /// Reacts to an acceptable acknowledgement that reports marks, after it was processed; `flight`
    /// is what was in flight when it arrived (RFC 3168 section 6.1.2).
    #[cold]
    pub(crate) fn congestion_echoed(&mut self, flight: u32, out: &mut impl Output<B>) {
        if !self.uses_ecn() || self.records.is_empty() && self.snd_buf_bytes == 0 {
            return;
        }
        let answered = self.rare.as_ref().map_or(self.snd_una, |rare| rare.ecn_end);
        if self.ecn.has(EcnState::REACTED) && self.snd_una.lt(answered) {
            return;
        }
        self.ecn.put(EcnState::REACTED, true);
        self.ecn.put(EcnState::REDUCED, true);
        self.rare_mut().ecn_end = self.snd_nxt;
        if self.phase != Phase::Open {
            // The loss has already reduced the window.
            return;
        }
        out.count(TcpCounter::EcnReductions);
        self.cc.on_ecn(flight);
        let pipe = self.pipe_bytes();
        self.with_bbr(|bbr| bbr.marked(pipe));
        if let Some(loss) = loss_of(&mut self.rare) {
            // What later proves spurious was not the reason for this reduction.
            (loss.undo, loss.undo_to) = (None, None);
        }
    }
}
