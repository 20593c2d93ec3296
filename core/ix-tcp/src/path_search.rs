//! Finds the path's MTU by probing (RFC 4821): for routers that drop long packets without an ICMP
//! message, and for paths that accept longer packets again.
//!
//! A connection whose segments never became smaller has no search. The state is beside that of loss
//! recovery, where the common path does not look.
use crate::loss::LossState;
use crate::output::{Output, RxBuf};
use crate::records::TxRecord;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, NEVER, Phase, Tcb, loss_of};
use ix_wire::Seq;

/// Number of timeouts in a row of one long segment after which its length is suspected (RFC 4821
/// section 7.7 leaves the number open; R1 of RFC 9293 section 3.8.3 is three).
const BLACK_HOLE_TIMEOUTS: u8 = 3;
/// Least time from the first of them to the last. Short timeouts alone say little: a peer that is
/// busy with something else for some tens of milliseconds lets three of them pass.
const BLACK_HOLE_US: u64 = 1_000_000;
/// A packet size that nearly all paths accept (RFC 4821 section 7.2).
const BASE_PACKET_BYTES: u16 = 1024;
/// Pause before the next try, after a router asked for smaller packets or a search has ended (RFC
/// 1191 section 6.3, PMTU_RAISE_TIMER of RFC 8899 section 5.1.1).
pub(crate) const RISE_US: u64 = 600_000_000;
/// Lost probes after which their size counts as too large (MAX_PROBES of RFC 8899 section 5.1.2): a
/// single one may be lost for other reasons.
const TRIES: u8 = 3;
/// Pause after a lost probe, which has cost a round trip.
const PAUSE_US: u64 = 1_000_000;
/// If the size is closer than this to the largest one, the search ends.
const CLOSE_ENOUGH: u16 = 16;

/// A search for the largest segment that the path takes.
#[derive(Clone, Debug)]
pub(crate) struct PathSearch {
    /// The size that the handshake agreed on.
    ceiling: u16,
    /// Nothing larger passes (search_high of RFC 4821 section 7.3).
    high: u16,
    /// The probe in flight: the end of its segment, and its size.
    probe: Option<(Seq, u16)>,
    /// Lost probes of this size.
    tries: u8,
    /// Time of the next probe.
    next_us: u64,
}

impl PathSearch {
    /// The size to try when `mss` passes: first the one that passed before, then halfway.
    fn candidate(&self, mss: u16) -> u16 {
        if self.high == self.ceiling { self.high } else { mss + (self.high - mss).div_ceil(2) }
    }

    /// Processes the loss of a probe.
    fn lost(&mut self, mss: u16, size: u16, now_us: u64) {
        self.probe = None;
        self.tries += 1;
        self.next_us = now_us.saturating_add(PAUSE_US);
        if self.tries >= TRIES {
            self.tries = 0;
            self.high = size - 1;
            self.rest_if_close(mss, now_us);
        }
    }

    /// Ends the search for a time if little can be gained.
    fn rest_if_close(&mut self, mss: u16, now_us: u64) {
        if self.high.saturating_sub(mss) < CLOSE_ENOUGH {
            self.high = self.ceiling;
            self.next_us = now_us.saturating_add(RISE_US);
        }
    }
}

impl<B: RxBuf> Tcb<B> {
    /// Limits the segments sent from now on to `mss` bytes without options. 0 and a larger size
    /// than now change nothing.
    pub fn limit_segments(&mut self, mss: u16) {
        let mss = mss.saturating_sub(self.option_bytes());
        if self.handshake_done() && 0 < mss && mss < self.mss {
            self.path_fell(mss, NEVER);
        }
    }

    /// Segments have `mss` octets from now on, fewer than before. Larger ones are tried from
    /// `next_us` on.
    pub(crate) fn path_fell(&mut self, mss: u16, next_us: u64) {
        let before = self.mss;
        self.mss = mss;
        self.cc.set_mss(mss);
        self.with_bbr(|bbr| bbr.set_mss(mss));
        let loss = self.loss_mut();
        let ceiling = loss.path.as_ref().map_or(before, |path| path.ceiling);
        loss.path = Some(PathSearch { ceiling, high: ceiling, probe: None, tries: 0, next_us });
    }

    /// To be called when the retransmission timer has expired. If it does so repeatedly for the
    /// same long segment, smaller ones may pass (RFC 4821 section 7.7). But a peer that replies to
    /// the segment, or has taken back the window that it was sent in, has only no memory for it, as
    /// Linux has if its program reads slowly.
    pub(crate) fn suspect_black_hole(&mut self, now_us: u64, out: &mut impl Output<B>) {
        let (headers, least) = (self.header_bytes(), self.path_mtu_min());
        let sizes = [BASE_PACKET_BYTES.max(least) - headers, least - headers];
        let Some(mss) = sizes.into_iter().find(|size| *size < self.mss) else { return };
        let timeouts = self.rtt.backoff() + 1;
        let edge = self.snd_una + self.snd_wnd;
        let suspect = |first: &TxRecord| first.len > mss + 1 && first.end().le(edge);
        let silent = |loss: &LossState| {
            !loss.answered && now_us >= loss.unanswered_since_us.saturating_add(BLACK_HOLE_US)
        };
        if timeouts >= BLACK_HOLE_TIMEOUTS
            && self.records.first().is_some_and(suspect)
            && self.loss().is_some_and(silent)
        {
            out.count(TcpCounter::PmtuBlackHole);
            self.path_fell(mss, now_us);
        }
    }

    /// Length of the segment that probes the path, if one should be sent now; `unsent` is what
    /// there is to send. Only with SACK, which distinguishes a lost probe from other losses.
    #[cold]
    pub(crate) fn path_probe_len(&mut self, now_us: u64, unsent: u32) -> Option<u32> {
        let calm = self.phase == Phase::Open && self.lost_bytes == 0 && self.sacked_bytes == 0;
        let path = self.loss()?.path.as_ref()?;
        let len = u32::from(path.candidate(self.mss));
        let room = (self.snd_room().max(0) as u32).min(unsent);
        (self.flags.has(Flags::SACK)
            && calm
            && path.probe.is_none()
            && now_us >= path.next_us
            && len > u32::from(self.mss)
            && len <= room
            && self.pipe_bytes() + len <= self.cwnd_bytes())
        .then_some(len)
    }

    /// Records that the last sent segment is a probe.
    pub(crate) fn path_probe_sent(&mut self, len: u32) {
        let end = self.snd_nxt;
        if let Some(path) = loss_of(&mut self.rare).and_then(|loss| loss.path.as_mut()) {
            path.probe = Some((end, len as u16));
        }
    }

    /// To be called when a record is sent again. If it holds the probe, the probe has failed.
    pub(crate) fn path_probe_again(&mut self, record: &TxRecord, now_us: u64) {
        let mss = self.mss;
        if let Some(path) = loss_of(&mut self.rare).and_then(|loss| loss.path.as_mut())
            && let Some((end, size)) = path.probe
            && record.seq.lt(end)
            && record.end().gt(end - u32::from(size))
        {
            path.lost(mss, size, now_us);
        }
    }

    /// Whether only the probe is lost, which is no sign of congestion (RFC 4821 section 7.6.2).
    pub(crate) fn only_probe_is_lost(&self) -> bool {
        let path = self.loss().and_then(|loss| loss.path.as_ref());
        path.and_then(|path| path.probe).is_some_and(|(end, size)| {
            let record = self.records.get(self.records.find(end - u32::from(size)));
            let lost = record.is_some_and(|record| record.has(TxRecord::LOST));
            lost && self.lost_bytes == u32::from(size)
        })
    }

    /// A router reports that the probe was too long: the path accepts segments of `size` octets.
    pub(crate) fn probe_too_long(&mut self, size: u16) -> bool {
        let mss = self.mss;
        let path = loss_of(&mut self.rare).and_then(|loss| loss.path.as_mut());
        let Some(path) = path.filter(|path| path.probe.is_some_and(|probe| probe.1 > size)) else {
            return false;
        };
        path.probe = None;
        path.tries = 0;
        path.high = size.max(mss);
        true
    }

    /// To be called when all before `snd_una` has arrived. A probe that has arrived without being
    /// sent again proves its size.
    pub(crate) fn judge_path_probe(&mut self, now_us: u64, out: &mut impl Output<B>) {
        let snd_una = self.snd_una;
        let Some(loss) = loss_of(&mut self.rare) else { return };
        let Some(path) = loss.path.as_mut() else { return };
        let Some((_, size)) = path.probe.filter(|(end, _)| snd_una.ge(*end)) else { return };
        path.probe = None;
        path.tries = 0;
        path.next_us = now_us;
        if size == path.ceiling {
            loss.path = None;
        } else {
            path.rest_if_close(size, now_us);
        }
        self.mss = size;
        self.cc.set_mss(size);
        self.with_bbr(|bbr| bbr.set_mss(size));
        out.count(TcpCounter::PmtuRaised);
    }
}
