//! The receive buffer of a connection grows to what it needs.
//!
//! A fixed window limits a long path, and a large one for everybody would promise memory that is
//! not there. So a connection begins with `rcv_buf_bytes`, and [`RightSize`] says what it needs.
//! The buffer never grows beyond what [`Output::receive_room`] says is free, and shrinks to that,
//! but not below the first size; the edge that was offered stays (RFC 9293 section 3.8.6). So what
//! the peer may still send is reported as promised ([`Output::promise`]) until it cannot any more,
//! or has been idle for a while ([`Tcb::rest`]).
//!
//! [`RightSize`]: crate::right_size::RightSize
use crate::config::{Config, RCV_BUF_UNIT_BYTES};
use crate::output::{Output, RxBuf};
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Tcb, reassembly_of};
use crate::timer::IDLE_US;
use ix_wire::Seq;

/// The buffer is reconsidered whenever the stream passes a multiple of this.
const CHECK_BYTES: u32 = 32 << 10;

/// The least that a buffer holds of much data: a buffer has room for two segments that are not
/// longer, and those are joined.
pub const FURTHER_BUFFER_BYTES: u32 = 832;

/// Spare room for what arrives until the next round trip, segments (as Linux).
const SPARE_SEGMENTS: u32 = 16;

/// The unit of timestamps.
const TIMESTAMP_US: u32 = 1_000;

impl<B: RxBuf> Tcb<B> {
    /// To be called after data was taken in order; `before` was the next octet, `timestamp` came
    /// with the data.
    #[inline]
    pub(crate) fn right_size_if_due(
        &mut self,
        before: Seq,
        cfg: &Config,
        now_us: u64,
        timestamp: Option<(u32, u32)>,
        out: &mut impl Output<B>,
    ) {
        if (before.0 ^ self.rcv_nxt.0) >= CHECK_BYTES {
            self.right_size(cfg, now_us, timestamp, out);
        }
    }

    #[cold]
    #[inline(never)]
    fn right_size(
        &mut self,
        cfg: &Config,
        now_us: u64,
        timestamp: Option<(u32, u32)>,
        out: &mut impl Output<B>,
    ) {
        let (least, most) = (cfg.rcv_buf_first(), cfg.rcv_buf_most());
        if most <= least || self.rare.as_ref().is_some_and(|rare| rare.right_size.is_fixed) {
            return self.settle_promise(cfg, out);
        }
        let sample_us = self.receive_rtt_us(now_us, timestamp);
        let taken = self.rcv_nxt - self.rcv_held_bytes;
        let spare = SPARE_SEGMENTS * u32::from(self.rcv_mss);
        let before = self.rcv_buf_bytes(cfg);
        let measure = &mut self.rare_mut().right_size;
        sample_us.into_iter().for_each(|sample_us| measure.sample(sample_us));
        let wanted = measure.measure(taken, now_us as u32).unwrap_or(0).saturating_add(spare);
        let free = least.saturating_add(out.receive_room(self.promised()));
        let bytes = wanted.max(before).min(most).min(free);
        // No more than the units can express is ever configured.
        self.rcv_buf = if bytes <= least { 0 } else { (bytes / RCV_BUF_UNIT_BYTES) as u16 };
        self.settle_promise(cfg, out);
    }

    /// What [`Output::promise`] was told last.
    fn promised(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.promised)
    }

    /// Reports what the peer may send and the application may hold now, if that is more than of
    /// every connection. After the buffer shrank that is what was offered before.
    fn settle_promise(&mut self, cfg: &Config, out: &mut impl Output<B>) {
        let offered = self.rcv_held_bytes.saturating_add(self.rcv_wnd());
        let bytes = offered.max(self.rcv_buf_bytes(cfg));
        self.promise(if bytes > cfg.rcv_buf_first() { bytes } else { 0 }, out);
    }

    /// The only place that changes what is promised.
    pub(crate) fn promise(&mut self, bytes: u32, out: &mut impl Output<B>) {
        let before = self.promised();
        if bytes != before {
            self.rare_mut().promised = bytes;
            out.promise(before, bytes);
        }
    }

    /// To be called when others need memory: gives back what is promised to a peer that has sent
    /// nothing for a while, and shrinks the buffer to the first size.
    ///
    /// The peer may still send all that it was offered. But after a pause it begins with an initial
    /// window (RFC 5681 section 4.1), for which every connection has room; it is promised its
    /// window again before it has sent much, and meanwhile others are promised nothing further.
    pub fn rest(&mut self, now_us: u64, out: &mut impl Output<B>) {
        let is_idle = now_us.saturating_sub(self.last_rcv_us) >= IDLE_US;
        let Some(rare) = self.rare.as_ref().filter(|rare| is_idle && rare.promised > 0) else {
            return;
        };
        if !rare.right_size.is_fixed {
            self.rcv_buf = 0;
        }
        self.promise(0, out);
    }

    /// To be called when payload that the peer could send was dropped because memory is short,
    /// after its header was given to [`Self::segment`]. An acknowledgement tells the peer at once
    /// that something is missing, and another one when the application has returned a buffer: the
    /// window is open, so no window update would (RFC 5681 section 4.2).
    #[cold]
    pub fn payload_dropped(&mut self) {
        if self.state.receives() {
            self.flags.set(Flags::ACK_NOW);
            self.rare_mut().is_starved = true;
        }
    }

    /// Whether payload was dropped since this was asked last.
    #[inline]
    pub(crate) fn was_starved(&mut self) -> bool {
        self.rare.as_mut().is_some_and(|rare| core::mem::take(&mut rare.is_starved))
    }

    /// How many buffers may be held, in order and not, with this one that arrives after a gap:
    /// beyond the limit of every connection only as far as memory is free now. Behind a gap the
    /// window cannot shrink, for nothing is taken.
    pub(crate) fn buffers_behind_gap(&self, cfg: &Config, out: &impl Output<B>) -> u32 {
        let queued = self.reassembly().map_or(0, |reassembly| reassembly.len() as u32);
        let few = cfg.rcv_buffers_first();
        if queued + u32::from(self.rcv_held_bufs) < few {
            return few;
        }
        let room = out.receive_room(self.promised()) / FURTHER_BUFFER_BYTES;
        self.rcv_buffers_max(cfg).min(few.saturating_add(room))
    }

    /// To be called when memory is short: discards what waits behind a gap beyond the limit of
    /// every connection, the latest data first. The peer sends it again, though it may have been
    /// acknowledged selectively (RFC 2018 section 8).
    pub fn prune(&mut self, cfg: &Config, out: &mut impl Output<B>) {
        let Some(reassembly) = reassembly_of(&mut self.rare) else { return };
        let most = cfg.rcv_buffers_first().saturating_sub(u32::from(self.rcv_held_bufs)) as usize;
        while reassembly.len() > most
            && let Some(last) = reassembly.pop_last()
        {
            out.count(TcpCounter::OutOfOrderDropped);
            out.discard(last);
        }
        self.settle_reassembly();
    }

    /// A sample of the round-trip time by what the peer echoes, if it does. Shorter ones than a
    /// timestamp can express come from our own estimate.
    fn receive_rtt_us(&self, now_us: u64, timestamp: Option<(u32, u32)>) -> Option<u32> {
        let own_us = Some(self.rtt.srtt_us()).filter(|_| self.rtt.has_sample());
        let echoed = timestamp.filter(|_| self.flags.has(Flags::TIMESTAMPS));
        let Some((_, echoed)) = echoed else { return own_us };
        let age = self.ts_at(now_us).wrapping_sub(echoed) as i32;
        match u32::try_from(age) {
            Ok(0 | 1) => Some(own_us.map_or(TIMESTAMP_US, |us| us.min(TIMESTAMP_US))),
            Ok(age) => Some(age.saturating_mul(TIMESTAMP_US)),
            // It echoes what was never sent.
            Err(_) => own_us,
        }
    }

    /// How many buffers the application may hold.
    #[inline]
    pub(crate) fn rcv_buffers_max(&self, cfg: &Config) -> u32 {
        let further = self.rcv_buf_bytes(cfg).saturating_sub(cfg.rcv_buf_bytes);
        cfg.rcv_buffers_max + further / FURTHER_BUFFER_BYTES
    }

    /// The same of a buffer that has a size of its own: one that has grown was promised its memory,
    /// one whose size the application has set has a share like all others.
    #[cold]
    pub(crate) fn rcv_buffers_own(&self, cfg: &Config) -> u32 {
        match self.rare.as_ref().is_some_and(|rare| rare.right_size.is_fixed) {
            true => cfg.rcv_buffers_first(),
            false => self.rcv_buffers_max(cfg),
        }
    }
}
