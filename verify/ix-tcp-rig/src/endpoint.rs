//! The stack under test with an application and a wire around it.
use super::{Audit, Buf, Ledger, Rng, Segment, byte_at, bytes_at, link::Node};
use ix_tcp::{Config, DeadReason, Output, SegmentOut, State, Tcb, TcpCounter, TcpEvent, TcpStats};
use ix_wire::{FlowTuple, Seq};
use std::collections::VecDeque;
use std::rc::Rc;

/// Everything a [`Tcb`] is told to do to the world.
#[derive(Debug)]
pub struct Surroundings {
    /// Settings of the endpoint.
    pub cfg: Config,
    /// Its initial sequence number.
    pub iss: Seq,
    /// Seed of the stream that it sends.
    pub own_seed: u32,
    /// Seed of the stream that it must receive.
    pub peer_seed: u32,
    /// First octet of the peer's stream, once known.
    pub irs: Option<Seq>,
    /// Segments that it has sent and no test has taken.
    pub sent: Vec<Segment>,
    /// Per mille of transmissions that find no buffer.
    pub tx_fails: u32,
    /// Draws which transmissions fail.
    pub rng: Rng,
    /// Bytes that its application has appended.
    pub appended: u64,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Its application has shut its half.
    pub shut: bool,
    /// Its application has closed.
    pub closed: bool,
    /// Bytes that its application was given.
    pub delivered: u64,
    /// Lengths of the buffers that the application holds, and what it has read of the first.
    pub held: VecDeque<usize>,
    /// Bytes of the first of these that were read.
    pub read_of_first: usize,
    /// It was told of the connection.
    pub established: bool,
    /// It was told of the peer's end.
    pub eof: bool,
    /// Why the connection ended, once it was told.
    pub dead: Option<DeadReason>,
    /// How often it was told that there is room to send.
    pub window_opens: u32,
    /// Counters of the core.
    pub stats: TcpStats,
    /// Checks each segment that it sends.
    pub audit: Audit,
    /// Where its receive buffers went.
    pub ledger: Rc<Ledger>,
}

/// Room of a buffer, as in a dataplane, roughly.
const ROOM_BYTES: usize = 1700;

impl Surroundings {
    /// Checks that the application may get this now, and that it is the stream's next part.
    fn check_delivered(&mut self, buf: &Buf) {
        assert!(!buf.bytes().is_empty(), "empty delivery");
        assert!(!self.eof, "data after Eof");
        assert!(self.dead.is_none(), "data after Dead");
        assert!(!self.closed, "data for an application that closed");
        let irs = self.irs.expect("data before a SYN");
        for (offset, &byte) in buf.bytes().iter().enumerate() {
            let at = irs + 1 + (self.delivered as u32).wrapping_add(offset as u32);
            assert_eq!(byte, byte_at(self.peer_seed, at), "wrong byte at {at:?}");
        }
        self.delivered += buf.bytes().len() as u64;
    }
}

impl Output<Buf> for Surroundings {
    fn transmit(&mut self, tuple: &FlowTuple, seg: &SegmentOut) -> bool {
        if self.tx_fails > 0 && self.rng.per_mille(self.tx_fails) {
            return false;
        }
        let start = self.iss + 1 + (self.acked as u32).wrapping_add(seg.payload_offset);
        let payload = bytes_at(self.own_seed, start, seg.payload_len as usize);
        let segment = Segment { hdr: seg.header(tuple), payload };
        let stream = (self.appended, self.acked, self.shut);
        self.audit.transmits(&self.cfg, seg, &segment, stream);
        self.sent.push(segment);
        true
    }

    fn deliver(&mut self, buf: Buf) {
        self.check_delivered(&buf);
        self.held.push_back(buf.bytes().len());
        buf.give_back();
    }

    fn append(&mut self, buf: Buf) -> Result<(), Buf> {
        let len = buf.bytes().len();
        match self.held.back_mut().filter(|last| **last + len <= ROOM_BYTES) {
            Some(last) => *last += len,
            None => return Err(buf),
        }
        self.check_delivered(&buf);
        buf.give_back();
        Ok(())
    }

    fn join(&mut self, front: &mut Buf, back: Buf) -> Result<(), Buf> {
        if front.bytes().len() + back.bytes().len() > ROOM_BYTES {
            return Err(back);
        }
        front.extend(back.bytes());
        back.give_back();
        Ok(())
    }

    fn discard(&mut self, buf: Buf) {
        buf.give_back();
    }

    fn acked(&mut self, bytes: u32) {
        assert!(bytes > 0, "acknowledgement of nothing");
        self.acked += u64::from(bytes);
        assert!(self.acked <= self.appended, "acknowledged {} of {}", self.acked, self.appended);
    }

    fn event(&mut self, event: TcpEvent) {
        assert!(self.dead.is_none(), "{event:?} after Dead");
        match event {
            TcpEvent::Established => {
                assert!(!self.established, "Established twice");
                self.established = true;
            }
            TcpEvent::Eof => {
                assert!(!self.eof, "Eof twice");
                self.eof = true;
            }
            TcpEvent::WindowOpen => self.window_opens += 1,
            TcpEvent::Dead(reason) => self.dead = Some(reason),
        }
    }

    fn count(&mut self, counter: TcpCounter) {
        self.stats.count(counter);
    }
}

impl Surroundings {
    /// What surrounds an endpoint that has done nothing yet.
    pub fn new(cfg: Config, iss: Seq, own_seed: u32, peer_seed: u32) -> Surroundings {
        Surroundings {
            cfg,
            iss,
            own_seed,
            peer_seed,
            irs: None,
            sent: Vec::new(),
            tx_fails: 0,
            rng: Rng::new(u64::from(own_seed)),
            appended: 0,
            acked: 0,
            shut: false,
            closed: false,
            delivered: 0,
            held: VecDeque::new(),
            read_of_first: 0,
            established: false,
            eof: false,
            dead: None,
            window_opens: 0,
            stats: TcpStats::default(),
            audit: Audit::new(iss, own_seed),
            ledger: Rc::default(),
        }
    }
}

/// How the application behaves in a stream test.
#[derive(Clone, Debug)]
pub struct App {
    /// Bytes it sends in all, then it shuts down.
    pub sends: u64,
    /// Largest single write.
    pub write_max: u64,
    /// Bytes it reads at a time; 0: it does not read now.
    pub read_max: u64,
    /// It reads only every so often.
    pub read_every_us: u64,
}

impl Default for App {
    fn default() -> App {
        App { sends: 0, write_max: u64::MAX, read_max: u64::MAX, read_every_us: 0 }
    }
}

/// A connection with its application and its surroundings.
pub struct Endpoint {
    /// The connection, from the first SYN on.
    pub tcb: Option<Tcb<Buf>>,
    /// Its addresses and ports.
    pub tuple: FlowTuple,
    /// What it told the world.
    pub out: Surroundings,
    /// What its application does.
    pub app: App,
    /// When the test wants a turn of its own, and the last turn.
    pub wake_us: u64,
    /// The last such turn.
    pub woken_us: u64,
    /// The connection was dropped: segments are answered as where there is none.
    pub gone: bool,
    next_read_us: u64,
    ts_offset: u32,
}

impl Endpoint {
    /// Listens; the first SYN makes the connection.
    pub fn listen(cfg: Config, tuple: FlowTuple, iss: Seq, own_seed: u32, peer_seed: u32) -> Self {
        let out = Surroundings::new(cfg, iss, own_seed, peer_seed);
        let (app, ts_offset) = (App::default(), own_seed.wrapping_mul(77));
        Endpoint {
            tcb: None,
            tuple,
            out,
            app,
            wake_us: u64::MAX,
            woken_us: 0,
            gone: false,
            next_read_us: 0,
            ts_offset,
        }
    }

    /// Opens a connection.
    pub fn connect(
        cfg: Config,
        tuple: FlowTuple,
        iss: Seq,
        own_seed: u32,
        peer_seed: u32,
        now_us: u64,
    ) -> Self {
        let mut endpoint = Self::listen(cfg, tuple, iss, own_seed, peer_seed);
        let cfg = &endpoint.out.cfg;
        endpoint.tcb = Some(Tcb::connect(cfg, tuple, iss, endpoint.ts_offset, now_us));
        endpoint
    }

    /// Its state; CLOSED before the first SYN.
    pub fn state(&self) -> State {
        self.tcb.as_ref().map_or(State::Closed, |tcb| tcb.state())
    }

    /// A segment arrives.
    pub fn segment(&mut self, segment: &Segment, now_us: u64) {
        use ix_wire::TcpFlags;
        let out = &mut self.out;
        let syn = segment.hdr.flags.contains(TcpFlags::SYN);
        let cfg = out.cfg.clone();
        let asks = self.tcb.as_ref().is_none_or(|tcb| tcb.state() == State::SynSent);
        if syn && asks {
            // The last SYN seen in SYN-SENT is the one that is believed, if any is.
            out.irs = Some(segment.hdr.seq);
        }
        out.audit.given(segment, asks);
        let Some(tcb) = &mut self.tcb else {
            if syn && !segment.hdr.flags.intersects(TcpFlags::ACK | TcpFlags::RST) {
                let (tuple, iss) = (self.tuple, out.iss);
                let tcb = Tcb::accept(&cfg, tuple, &segment.hdr, iss, self.ts_offset, now_us);
                self.tcb = Some(tcb);
            }
            return;
        };
        let payload =
            (!segment.payload.is_empty()).then(|| Buf::new(&out.ledger, segment.payload.clone()));
        tcb.segment(&cfg, now_us, &segment.hdr, payload, out);
    }

    /// Calls the core.
    ///
    /// # Panics
    /// When there is no connection.
    pub fn with<R>(&mut self, f: impl FnOnce(&mut Tcb<Buf>, &Config, &mut Surroundings) -> R) -> R {
        let cfg = self.out.cfg.clone();
        f(self.tcb.as_mut().expect("a connection"), &cfg, &mut self.out)
    }

    /// Sends what may be sent.
    pub fn output(&mut self, now_us: u64) {
        if self.tcb.is_some() {
            self.with(|tcb, cfg, out| tcb.output(cfg, now_us, out));
        }
    }

    /// Appends up to `bytes`; returns how many the window took.
    pub fn append(&mut self, bytes: u64) -> u64 {
        self.with(|tcb, cfg, out| {
            let taken = u64::from(tcb.send_space(cfg)).min(bytes);
            tcb.append(taken as u32);
            out.appended += taken;
            taken
        })
    }

    /// Reads up to `bytes` of what was delivered.
    pub fn read(&mut self, bytes: u64) -> u64 {
        self.with(|tcb, cfg, out| {
            let (mut read, mut buffers) = (0, 0);
            while read < bytes {
                let Some(&first) = out.held.front() else { break };
                let take = (bytes - read).min((first - out.read_of_first) as u64);
                read += take;
                out.read_of_first += take as usize;
                if out.read_of_first == first {
                    out.held.pop_front();
                    out.read_of_first = 0;
                    buffers += 1;
                }
            }
            if read > 0 {
                tcb.recv_done(cfg, read as u32, buffers);
            }
            read
        })
    }

    /// The application shuts its half.
    pub fn shutdown(&mut self, now_us: u64) {
        self.out.shut = true;
        self.with(|tcb, cfg, out| tcb.shutdown(cfg, now_us, out));
    }

    /// The application closes.
    pub fn close(&mut self, now_us: u64) {
        self.out.shut = true;
        self.out.closed = true;
        self.with(|tcb, cfg, out| tcb.close(cfg, now_us, out));
    }

    /// Drops the connection as its owner would, and checks that no buffer was lost on the way.
    pub fn finish(&mut self) {
        if let Some(mut tcb) = self.tcb.take() {
            tcb.release(&mut self.out);
            drop(tcb);
        }
        let ledger = &self.out.ledger;
        assert_eq!(ledger.lost.get(), 0, "buffers lost");
        assert_eq!(ledger.given.get(), ledger.returned.get(), "buffers kept");
    }

    /// The application's turn in a cycle.
    fn app_turn(&mut self, now_us: u64) {
        if self.tcb.is_none() {
            return;
        }
        if now_us >= self.next_read_us && !self.out.held.is_empty() {
            self.read(self.app.read_max);
            self.next_read_us = now_us + self.app.read_every_us;
        }
        let left = self.app.sends - self.out.appended;
        if self.out.established && left > 0 && !self.out.shut {
            self.append(left.min(self.app.write_max));
        }
        if self.out.established && self.out.appended == self.app.sends && !self.out.shut {
            self.shutdown(now_us);
        }
    }
}

impl Node for Endpoint {
    fn arrive(&mut self, segment: &Segment, now_us: u64) {
        if self.gone || self.tcb.as_ref().is_some_and(|tcb| tcb.is_dead()) {
            if let Some(reset) = ix_tcp::reset_for(&segment.hdr, segment.payload.len() as u32) {
                let hdr = reset.header(&self.tuple);
                self.out.sent.push(Segment { hdr, payload: Vec::new() });
            }
            return;
        }
        self.segment(segment, now_us);
    }

    fn turn(&mut self, now_us: u64) {
        self.woken_us = now_us;
        if now_us >= self.wake_us {
            self.wake_us = u64::MAX;
        }
        // What a turn finds out may make a timer due at once, but timers must not chase themselves.
        for _ in 0..8 {
            if self.tcb.as_ref().is_some_and(|tcb| tcb.deadline() <= now_us) {
                self.with(|tcb, cfg, out| tcb.timer(cfg, now_us, out));
            }
            self.app_turn(now_us);
            self.output(now_us);
            let deadline_us = self.tcb.as_ref().map_or(u64::MAX, |tcb| tcb.deadline());
            if deadline_us > now_us || self.out.tx_fails > 0 {
                return;
            }
        }
        panic!("a timer stays due at {now_us} us");
    }

    fn next_turn_us(&self) -> u64 {
        let deadline_us = self.tcb.as_ref().map_or(u64::MAX, |tcb| tcb.deadline());
        let wants_read = self.app.read_max > 0 && !self.out.held.is_empty();
        let read_us = if wants_read { self.next_read_us } else { u64::MAX };
        // What found no transmit buffer is tried again in the next cycle, as the dataplane does.
        let blocked =
            self.out.tx_fails > 0 && self.tcb.as_ref().is_some_and(|tcb| tcb.needs_output());
        let retry_us = if blocked { self.woken_us + 10 } else { u64::MAX };
        deadline_us.min(read_us).min(self.wake_us).min(retry_us)
    }

    fn take_sent(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.out.sent)
    }

    fn too_big(&mut self, segment: &Segment, mtu: u16, now_us: u64) {
        self.with(|tcb, cfg, out| {
            let error = ix_tcp::PathError::FragNeeded { mtu };
            tcb.icmp_error(cfg, now_us, error, Some(segment.hdr.seq), out);
        });
        self.wake_us = now_us;
    }
}
