//! Processes payload and FIN of an acceptable segment: RFC 9293 section 3.10.7.4, seventh and
//! eighth.
use crate::config::Config;
use crate::output::{DeadReason, Output, RxBuf, TcpEvent};
use crate::reassembly::{Inserted, JOIN_FROM, Reassembly};
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Tcb, reassembly_of};
use ix_wire::Seq;

impl<B: RxBuf> Tcb<B> {
    /// Sequence number of the next octet for the application.
    pub fn rcv_nxt(&self) -> Seq {
        self.rcv_nxt
    }

    /// Number of buffers that the application has and has not returned.
    #[inline]
    pub fn rcv_held_bufs(&self) -> u16 {
        self.rcv_held_bufs
    }

    /// Whether this acknowledgement says for the first time that the peer has all that was sent to
    /// it.
    #[inline]
    pub fn takes_all(&self, ack: Seq) -> bool {
        ack == self.snd_nxt && ack != self.snd_una
    }

    /// Whether what comes next is appended to the buffer before it, if it fits.
    pub fn joins_buffers(&self) -> bool {
        usize::from(self.rcv_held_bufs) >= JOIN_FROM
    }

    /// A longer segment came than all before. No estimate is above what one packet holds: a device
    /// may join several.
    #[cold]
    fn raise_rcv_mss(&mut self, cfg: &Config, len: usize) {
        let most = cfg.mss_to(self.tuple.remote);
        self.rcv_mss = self.rcv_mss.max(len.min(most.into()) as u16);
    }

    /// Takes payload that begins exactly at `rcv_nxt` and is within the window.
    #[inline(always)]
    pub(crate) fn take_in_order(&mut self, cfg: &Config, buf: B, out: &mut impl Output<B>) {
        if self.rcv_held_bufs == u16::MAX {
            out.count(TcpCounter::RcvBufferLimit);
            self.flags.set(Flags::ACK_NOW);
            out.discard(buf);
            return;
        }
        if buf.len() > usize::from(self.rcv_mss) {
            self.raise_rcv_mss(cfg, buf.len());
        }
        if let Some(reassembly) = reassembly_of(&mut self.rare) {
            // What was trimmed off the front of a segment is reported already, and arrived first.
            let (left, right) = (self.rcv_nxt, self.rcv_nxt + buf.len() as u32);
            if self.flags.has(Flags::SACK) && !reassembly.has_duplicate_until(left) {
                reassembly.note_overlap(left, right);
            }
            self.hand_over(buf, out);
            self.drain_reassembly(out);
            // RFC 5681 section 4.2: acknowledge at once when a segment fills all or part of a gap.
            self.flags.set(Flags::ACK_NOW);
        } else {
            self.hand_over(buf, out);
            self.flags.set(Flags::ACK_DELAYED);
            self.ack_pace.data_received();
        }
    }

    fn hand_over(&mut self, buf: B, out: &mut impl Output<B>) {
        let len = buf.len() as u32;
        debug_assert!(len > 0 && len <= self.rcv_wnd());
        self.rcv_nxt += len;
        self.rcv_held_bytes += len;
        let buf = match usize::from(self.rcv_held_bufs) < JOIN_FROM {
            true => Some(buf),
            false => self.unless_joined(buf, out),
        };
        if let Some(buf) = buf {
            self.rcv_held_bufs += 1;
            out.deliver(buf);
        }
    }

    /// Appends the buffer to the last one if it fits, and else returns it.
    #[cold]
    #[inline(never)]
    fn unless_joined(&self, buf: B, out: &mut impl Output<B>) -> Option<B> {
        out.append(buf).err()
    }

    /// Delivers what a gap has held back.
    pub(crate) fn drain_reassembly(&mut self, out: &mut impl Output<B>) {
        let Some(mut reassembly) = self.take_reassembly() else { return };
        while self.rcv_held_bufs < u16::MAX
            && let Some(buf) = reassembly.pop(self.rcv_nxt, |buf| out.discard(buf))
        {
            self.hand_over(buf, out);
        }
        self.rare_mut().reassembly = Some(reassembly);
        self.settle_reassembly();
    }

    /// The queue, made when it is first needed.
    fn reassembly_mut(&mut self) -> &mut Reassembly<B> {
        self.rare_mut().reassembly.get_or_insert_with(|| Box::new(Reassembly::new()))
    }

    /// Frees the queue if it is empty.
    pub(crate) fn settle_reassembly(&mut self) {
        if self.reassembly().is_some_and(|reassembly| reassembly.is_unused()) {
            self.take_reassembly();
            self.settle_rare();
        }
    }

    /// Takes payload within the window that follows a gap.
    pub(crate) fn take_out_of_order(
        &mut self,
        cfg: &Config,
        seq: Seq,
        buf: B,
        out: &mut impl Output<B>,
    ) {
        self.flags.set(Flags::ACK_NOW);
        let most = self.buffers_behind_gap(cfg, out);
        let room = most.saturating_sub(u32::from(self.rcv_held_bufs)) as usize;
        let mut reassembly = self.take_reassembly().unwrap_or_else(|| Box::new(Reassembly::new()));
        // Earlier data is worth more than later data: it is delivered first (cf. gvisor#9153).
        while reassembly.len() >= room.max(1)
            && reassembly.last_seq().is_some_and(|last| seq.lt(last))
            && let Some(last) = reassembly.pop_last()
        {
            out.count(TcpCounter::OutOfOrderDropped);
            out.discard(last);
        }
        let counter = match reassembly.insert(seq, buf, room, out) {
            Inserted::Queued => TcpCounter::OutOfOrder,
            Inserted::Duplicate => TcpCounter::DuplicateSegments,
            Inserted::NoRoom => TcpCounter::RcvBufferLimit,
        };
        out.count(counter);
        self.rare_mut().reassembly = Some(reassembly);
        self.settle_reassembly();
    }

    /// Octets up to `right` arrived again: the peer is told so by a DSACK (RFC 2883), at once.
    pub(crate) fn note_duplicate(&mut self, left: Seq, right: Seq, out: &mut impl Output<B>) {
        out.count(TcpCounter::DuplicateSegments);
        self.flags.set(Flags::ACK_NOW);
        if self.flags.has(Flags::SACK) && left.lt(right) {
            self.reassembly_mut().set_duplicate(left, right);
        }
    }

    /// The peer's FIN is at `seq`. It is stored if something before it is missing.
    pub(crate) fn note_fin(&mut self, seq: Seq) {
        self.flags.set(Flags::ACK_NOW);
        if seq.gt(self.rcv_nxt) {
            self.reassembly_mut().set_fin(seq);
        }
    }

    /// Processes the peer's FIN, which is `here` or stored, once everything before it is delivered.
    pub(crate) fn take_fin(
        &mut self,
        cfg: &Config,
        now_us: u64,
        here: bool,
        out: &mut impl Output<B>,
    ) {
        let rcv_nxt = self.rcv_nxt;
        let remembered =
            reassembly_of(&mut self.rare).is_some_and(|reassembly| reassembly.take_fin_at(rcv_nxt));
        if !here && !remembered {
            return;
        }
        // Nothing can follow a FIN.
        self.release(out);
        self.rcv_nxt += 1;
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt);
        self.flags.set(Flags::ACK_NOW);
        out.event(TcpEvent::Eof);
        match self.state {
            State::SynReceived | State::Established => self.enter(State::CloseWait),
            State::FinWait1 => self.enter(State::Closing),
            State::FinWait2 => self.enter_time_wait(cfg, now_us, out),
            _ => debug_assert!(false, "FIN consumed in {:?}", self.state),
        }
    }

    /// Enters TIME-WAIT: both FINs are acknowledged, but old segments may still be on the way (RFC
    /// 9293 section 3.6.1).
    pub(crate) fn enter_time_wait(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        self.enter(State::TimeWait);
        self.take_loss();
        self.records.shrink();
        self.state_at_us = now_us.saturating_add(u64::from(cfg.time_wait_us));
        self.say_dead(DeadReason::Closed, out);
    }
}
