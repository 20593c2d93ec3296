//! The path's MTU by trying it out (RFC 4821): for routers that drop what is too long and do not
//! say so, and for paths that take more again.
//!
//! Nothing of this is on a connection whose segments never became smaller. Then its state stands
//! beside that of loss recovery, so that the common path need not look for it.
use crate::config::HEADER_BYTES;
use crate::output::{Output, RxBuf};
use crate::pmtu::PMTU_MIN;
use crate::records::TxRecord;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, NEVER, Phase, Tcb};
use ix_wire::Seq;

/// After so many timeouts of one long segment in a row, its length is suspected (RFC 4821
/// section 7.7 leaves the number open; R1 of RFC 9293 section 3.8.3 is three).
const BLACK_HOLE_TIMEOUTS: u8 = 3;
/// A packet that nearly all paths take (RFC 4821 section 7.2).
const BASE_PACKET_BYTES: u16 = 1024;
/// Pause between a fall that a router asked for, or a search that has ended, and the next try
/// (RFC 1191 section 6.3, PMTU_RAISE_TIMER of RFC 8899 section 5.1.1).
pub(crate) const RISE_US: u64 = 600_000_000;
/// Probes that are lost before their size is taken for too long (MAX_PROBES of RFC 8899
/// section 5.1.2): a single one may have been lost for other reasons.
const TRIES: u8 = 3;
/// Pause after a lost probe: it cost a round trip.
const PAUSE_US: u64 = 1_000_000;
/// Closer than this to the largest size, a search is not worth its probes.
const CLOSE_ENOUGH: u16 = 16;

/// A search for the largest segment that the path takes.
#[derive(Clone, Debug)]
pub(crate) struct PathSearch {
    /// What the handshake agreed on.
    ceiling: u16,
    /// Nothing larger gets through (search_high of RFC 4821 section 7.3).
    high: u16,
    /// The probe under way: the end of its segment, and its size.
    probe: Option<(Seq, u16)>,
    /// Probes of this size that were lost.
    tries: u8,
    /// No probe before this.
    next_us: u64,
}

impl PathSearch {
    /// The size to try when `mss` gets through: first what did once, then halfway.
    fn candidate(&self, mss: u16) -> u16 {
        if self.high == self.ceiling { self.high } else { mss + (self.high - mss).div_ceil(2) }
    }

    /// A probe was lost.
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

    /// Ends the search, for a time, when there is nothing to be gained.
    fn rest_if_close(&mut self, mss: u16, now_us: u64) {
        if self.high.saturating_sub(mss) < CLOSE_ENOUGH {
            self.high = self.ceiling;
            self.next_us = now_us.saturating_add(RISE_US);
        }
    }
}

impl<B: RxBuf> Tcb<B> {
    /// Segments have `mss` octets from now on, fewer than before, and larger ones are tried from
    /// `next_us` on.
    /// Sends no longer segments than this, options not counted, from now on.
    pub fn limit_segments(&mut self, mss: u16) {
        let mss = mss.saturating_sub(self.header_bytes() - HEADER_BYTES);
        if self.handshake_done() && 0 < mss && mss < self.mss {
            self.path_fell(mss, NEVER);
        }
    }

    pub(crate) fn path_fell(&mut self, mss: u16, next_us: u64) {
        let before = self.mss;
        self.mss = mss;
        self.cc.set_mss(mss);
        let loss = self.loss_mut();
        let ceiling = loss.path.as_ref().map_or(before, |path| path.ceiling);
        loss.path = Some(PathSearch { ceiling, high: ceiling, probe: None, tries: 0, next_us });
    }

    /// The retransmission timer expired: when it does so for the same long segment again and again,
    /// smaller ones may get through (RFC 4821 section 7.7).
    pub(crate) fn suspect_black_hole(&mut self, now_us: u64, out: &mut impl Output<B>) {
        let headers = self.header_bytes();
        let sizes = [BASE_PACKET_BYTES - headers, PMTU_MIN - headers];
        let Some(mss) = sizes.into_iter().find(|size| *size < self.mss) else { return };
        let timeouts = self.rtt.backoff() + 1;
        let long = self.records.first().is_some_and(|first| first.len > mss + 1);
        if long && timeouts >= BLACK_HOLE_TIMEOUTS {
            out.count(TcpCounter::PmtuBlackHole);
            self.path_fell(mss, now_us);
        }
    }

    /// How long a segment should be that tries the path, when one should now, there being `unsent`
    /// octets. Only with SACK, which tells a lost probe from other losses.
    #[cold]
    pub(crate) fn path_probe_len(&mut self, now_us: u64, unsent: u32) -> Option<u32> {
        let calm = self.phase == Phase::Open && self.lost_bytes == 0 && self.sacked_bytes == 0;
        let path = self.loss.as_ref()?.path.as_ref()?;
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

    /// What was sent last is a probe.
    pub(crate) fn path_probe_sent(&mut self, len: u32) {
        let end = self.snd_nxt;
        if let Some(path) = self.loss.as_mut().and_then(|loss| loss.path.as_mut()) {
            path.probe = Some((end, len as u16));
        }
    }

    /// The record is sent again: if the probe is in it, that has failed.
    pub(crate) fn path_probe_again(&mut self, record: &TxRecord, now_us: u64) {
        let mss = self.mss;
        if let Some(path) = self.loss.as_mut().and_then(|loss| loss.path.as_mut())
            && let Some((end, size)) = path.probe
            && record.seq.lt(end)
            && record.end().gt(end - u32::from(size))
        {
            path.lost(mss, size, now_us);
        }
    }

    /// Whether nothing but the probe is lost: that says nothing of congestion (RFC 4821
    /// section 7.6.2).
    pub(crate) fn only_probe_is_lost(&self) -> bool {
        let path = self.loss.as_ref().and_then(|loss| loss.path.as_ref());
        path.and_then(|path| path.probe).is_some_and(|(end, size)| {
            let record = self.records.get(self.records.find(end - u32::from(size)));
            let lost = record.is_some_and(|record| record.has(TxRecord::LOST));
            lost && self.lost_bytes == u32::from(size)
        })
    }

    /// A router says that the probe was too long: the path takes segments of `size` octets.
    pub(crate) fn probe_too_long(&mut self, size: u16) -> bool {
        let mss = self.mss;
        let path = self.loss.as_mut().and_then(|loss| loss.path.as_mut());
        let Some(path) = path.filter(|path| path.probe.is_some_and(|probe| probe.1 > size)) else {
            return false;
        };
        path.probe = None;
        path.tries = 0;
        path.high = size.max(mss);
        true
    }

    /// Everything before `snd_una` has arrived. A probe that did so without being sent again proves
    /// its size.
    pub(crate) fn judge_path_probe(&mut self, now_us: u64, out: &mut impl Output<B>) {
        let snd_una = self.snd_una;
        let Some(loss) = self.loss.as_mut() else { return };
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
        out.count(TcpCounter::PmtuRaised);
    }
}
