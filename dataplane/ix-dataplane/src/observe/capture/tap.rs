//! Where packets are captured: around what the cycle does with them.
use super::ring::{Mark, RingWriter};
use super::subject::{Protocol, Subject};
use super::{Capture, drop_names};
use crate::cycle::ElasticThread;
use crate::migration::Origin;
use crate::observe::metrics::LocalDrop;
use crate::receive::{Refusal, Work};
use ix_mem::Mbuf;
use ix_wire::DropReason;

impl Capture {
    /// Publishes what was staged, if the filter takes it.
    fn judge(&mut self, subject: &Subject, mark: Mark) {
        if self.wanted.filter.matches(subject) {
            self.ring.publish(&mark);
        }
    }
}

impl ElasticThread {
    /// Begins or ends this thread's part of a capture, as all are told.
    #[cold]
    pub(crate) fn look_at_capture(&mut self) {
        self.shared.updates.capture_done(self.io.index);
        let wanted = self.shared.captures.wanted();
        self.capture = wanted.map(|wanted| {
            let ring = RingWriter::new(wanted.memory.clone(), self.io.index);
            Box::new(Capture { wanted, ring, captured: vec![0; self.io.ports.len()] })
        });
    }

    /// Handles a packet of the batch, and captures it with what became of it.
    #[cold]
    #[inline(never)]
    pub(crate) fn handle_captured(&mut self, work: &Work, mbuf: Mbuf) {
        let Some(mut capture) = self.capture.take() else { return self.handle(work, mbuf) };
        let subject = self.stage(&mut capture, &mbuf, work.tails, 0);
        let len = self.whole_len(&mbuf, work.tails, 0);
        let before = self.local_drops();
        self.handle(work, mbuf);
        let after = self.local_drops();
        let grown = before.iter().zip(&after).position(|(before, after)| before != after);
        let dropped = grown.map(|index| (DropReason::COUNT + index) as u8);
        // ICMP and ARP belong to no flow.
        let flows = matches!(subject.protocol, Some(Protocol::Tcp | Protocol::Udp));
        let mark = Mark {
            time_us: self.io.now_us,
            len,
            port: work.port,
            sent: false,
            group: flows.then_some(work.group),
            held: work.from == Origin::REPLAY,
            by_thread: (work.from < Origin::REPLAY).then_some(work.from),
            dropped,
        };
        self.judge(&mut capture, subject, mark);
        self.capture = Some(capture);
    }

    /// Captures a packet that the parser refused. Its last `tails` pieces are the last that came.
    #[cold]
    pub(crate) fn capture_refused(&mut self, port: u8, mbuf: &Mbuf, tails: usize, reason: Refusal) {
        let Some(mut capture) = self.capture.take() else { return };
        let first = self.receive.tails_waiting() - tails;
        let subject = self.stage(&mut capture, mbuf, tails, first);
        let dropped = match reason {
            Refusal::Packet(reason) => reason.index(),
            Refusal::Local(reason) => DropReason::COUNT + reason as usize,
        };
        let mark = Mark {
            time_us: self.io.now_us,
            len: self.whole_len(mbuf, tails, first),
            port,
            dropped: Some(dropped as u8),
            ..Mark::default()
        };
        self.judge(&mut capture, subject, mark);
        self.capture = Some(capture);
    }

    /// Captures a frame that the parser refused and a packet queue takes.
    #[cold]
    pub(crate) fn capture_taken(&mut self, port: u8, mbuf: &Mbuf) {
        let Some(mut capture) = self.capture.take() else { return };
        let subject = self.stage(&mut capture, mbuf, 0, 0);
        let (time_us, len) = (self.io.now_us, mbuf.len() as u32);
        self.judge(&mut capture, subject, Mark { time_us, len, port, ..Mark::default() });
        self.capture = Some(capture);
    }

    /// Step 6 with a capture: what is handed to the devices.
    #[cold]
    #[inline(never)]
    pub(crate) fn transmit_captured(&mut self) -> usize {
        let Some(mut capture) = self.capture.take() else { return self.io.transmit() };
        // What is held back is not sent.
        self.io.pass_gate();
        for index in 0..self.io.ports.len() {
            let waiting = self.io.ports[index].queue.len();
            for at in capture.captured[index].min(waiting)..waiting {
                let frame = self.io.ports[index].queue[at].bytes(&self.shared.memory);
                let subject = Subject::of(frame, true);
                let len = frame.len() as u32;
                capture.ring.stage(capture.wanted.snaplen, std::iter::once(frame));
                let group = subject.tuple().map(|tuple| {
                    let hash = self.shared.flow_hash.hash(&tuple);
                    self.receive.classify(hash, index, &tuple) as u8
                });
                let time_us = self.io.now_us;
                let port = index as u8;
                let mark = Mark { time_us, len, port, sent: true, group, ..Mark::default() };
                self.judge(&mut capture, subject, mark);
            }
        }
        let sent = self.io.transmit();
        for (captured, port) in capture.captured.iter_mut().zip(&self.io.ports) {
            *captured = port.queue.len();
        }
        self.capture = Some(capture);
        sent
    }

    /// Writes the first bytes of a packet of several pieces, its tails from `first` on.
    fn stage(&self, capture: &mut Capture, mbuf: &Mbuf, tails: usize, first: usize) -> Subject {
        let memory = &self.shared.memory;
        let head = mbuf.bytes(memory);
        let tails = self.receive.peek_tails(first, tails).map(|tail| tail.bytes(memory));
        capture.ring.stage(capture.wanted.snaplen, std::iter::once(head).chain(tails));
        Subject::of(head, false)
    }

    fn whole_len(&self, mbuf: &Mbuf, tails: usize, first: usize) -> u32 {
        let tails = self.receive.peek_tails(first, tails).map(Mbuf::len);
        (mbuf.len() + tails.sum::<usize>()) as u32
    }

    fn judge(&self, capture: &mut Capture, subject: Subject, mark: Mark) {
        let (thread, dropped) = (self.io.index as u8, mark.dropped.is_some());
        debug_assert!(mark.dropped.is_none_or(|index| usize::from(index) < drop_names().count()));
        capture.judge(&Subject { group: mark.group, thread, dropped, ..subject }, mark);
    }

    fn local_drops(&self) -> [u64; LocalDrop::COUNT] {
        std::array::from_fn(|index| self.io.metrics.local_drops[index].get())
    }
}
