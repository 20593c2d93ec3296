//! What the tests of the TCP core share: a buffer that detects leaks, an output that records, a
//! peer played by hand ([`Script`]), and two ends on a bad link in virtual time ([`net::Net`]).
#![allow(dead_code)] // each test file uses a part

pub mod net;

use ix_tcp::{
    Config, DeadReason, Output, PeerOptions, RxBuf, SegmentOut, State, Tcb, TcpCounter, TcpEvent,
    TcpStats,
};
use ix_wire::{FlowTuple, IpAddr, Seq, TcpFlags, TcpHeader, TcpOptions};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const FIN: TcpFlags = TcpFlags::FIN;
pub const RST: TcpFlags = TcpFlags::RST;

/// Received payload. It must leave the core through `deliver` or `discard`.
pub struct Buf {
    pub bytes: Vec<u8>,
    inside: Rc<Cell<i64>>,
}

impl RxBuf for Buf {
    fn len(&self) -> usize {
        self.bytes.len()
    }
    fn trim_front(&mut self, n: usize) {
        self.bytes.drain(..n);
    }
    fn truncate(&mut self, n: usize) {
        self.bytes.truncate(n);
    }
}

/// A transmitted segment with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub seg: SegmentOut,
    pub payload: Vec<u8>,
}

impl Sent {
    pub fn has(&self, flags: TcpFlags) -> bool {
        self.seg.flags.contains(flags)
    }
}

/// Room of a buffer for payload, as in the dataplane, roughly.
pub const BUFFER_BYTES: usize = 1700;

/// Records everything; holds the send stream.
#[derive(Default)]
pub struct Recorder {
    pub sent: VecDeque<Sent>,
    pub delivered: Vec<u8>,
    pub events: Vec<TcpEvent>,
    pub stats: TcpStats,
    pub stream: VecDeque<u8>,
    pub acked: u64,
    /// Bytes and buffers delivered and not returned.
    pub held: (u32, u32),
    /// Bytes in the last buffer delivered.
    pub last: usize,
    pub no_buffers: bool,
    /// How many bytes of memory are free for further received data; `None`: without a limit.
    pub room: Option<u32>,
    /// What was promised beyond the first size of the receive buffer.
    pub promised: u32,
    /// Other connections have used up the challenge ACKs of this second.
    pub no_challenges: bool,
    /// Buffers inside the core.
    pub inside: Rc<Cell<i64>>,
}

impl Output<Buf> for Recorder {
    fn transmit(&mut self, _: &FlowTuple, seg: &SegmentOut) -> bool {
        if self.no_buffers {
            return false;
        }
        let (at, len) = (seg.payload_offset as usize, seg.payload_len as usize);
        assert!(at + len <= self.stream.len(), "segment outside the send stream: {seg:?}");
        let payload = self.stream.range(at..at + len).copied().collect();
        self.sent.push_back(Sent { seg: *seg, payload });
        true
    }
    fn deliver(&mut self, buf: Buf) {
        assert!(!buf.bytes.is_empty(), "empty delivery");
        assert!(!self.events.contains(&TcpEvent::Eof), "data after the end");
        self.held.0 += buf.bytes.len() as u32;
        self.held.1 += 1;
        self.last = buf.bytes.len();
        self.delivered.extend_from_slice(&buf.bytes);
        self.inside.set(self.inside.get() - 1);
    }
    fn append(&mut self, buf: Buf) -> Result<(), Buf> {
        if self.held.1 == 0 || self.last + buf.bytes.len() > BUFFER_BYTES {
            return Err(buf);
        }
        self.held.0 += buf.bytes.len() as u32;
        self.last += buf.bytes.len();
        self.delivered.extend_from_slice(&buf.bytes);
        self.inside.set(self.inside.get() - 1);
        Ok(())
    }
    fn join(&mut self, front: &mut Buf, back: Buf) -> Result<(), Buf> {
        if front.bytes.len() + back.bytes.len() > BUFFER_BYTES {
            return Err(back);
        }
        front.bytes.extend_from_slice(&back.bytes);
        self.inside.set(self.inside.get() - 1);
        Ok(())
    }
    fn discard(&mut self, _: Buf) {
        self.inside.set(self.inside.get() - 1);
    }
    fn acked(&mut self, bytes: u32) {
        assert!(bytes > 0);
        self.stream.drain(..bytes as usize);
        self.acked += u64::from(bytes);
    }
    fn event(&mut self, event: TcpEvent) {
        let dead = |event: &TcpEvent| matches!(event, TcpEvent::Dead(_));
        assert!(!self.events.iter().any(dead), "{event:?} after the end");
        self.events.push(event);
    }
    fn count(&mut self, counter: TcpCounter) {
        self.stats.count(counter);
    }
    fn receive_room(&self, promised: u32) -> u32 {
        assert_eq!(promised, self.promised);
        self.room.unwrap_or(u32::MAX)
    }
    fn promise(&mut self, before: u32, now: u32) {
        assert_eq!(std::mem::replace(&mut self.promised, now), before);
    }
    fn may_challenge(&mut self, _: u64) -> bool {
        !self.no_challenges
    }
}

impl Recorder {
    pub fn buf(&self, bytes: &[u8]) -> Buf {
        self.inside.set(self.inside.get() + 1);
        Buf { bytes: bytes.to_vec(), inside: self.inside.clone() }
    }
}

pub fn tuple(local: u8, remote: u8) -> FlowTuple {
    FlowTuple {
        local: IpAddr::v4([10, 0, 0, local]),
        remote: IpAddr::v4([10, 0, 0, remote]),
        local_port: 1000 + u16::from(local),
        remote_port: 1000 + u16::from(remote),
    }
}

/// One end under test, and the time.
pub struct End {
    pub cfg: Config,
    pub tcb: Tcb<Buf>,
    pub out: Recorder,
    pub now_us: u64,
}

impl End {
    pub fn new(cfg: Config, tcb: Tcb<Buf>, now_us: u64) -> End {
        End { cfg, tcb, out: Recorder::default(), now_us }
    }

    pub fn segment(&mut self, hdr: &TcpHeader, payload: &[u8]) {
        let buf = (!payload.is_empty()).then(|| self.out.buf(payload));
        self.tcb.segment(&self.cfg, self.now_us, hdr, buf, &mut self.out);
    }

    /// A segment whose IP header had this ECN field.
    pub fn segment_with(&mut self, hdr: &TcpHeader, payload: &[u8], ecn: u8) {
        if self.tcb.minds_mark(ecn) {
            let len = payload.len() as u32;
            self.tcb.mark(&self.cfg, self.now_us, hdr, len, ecn, &mut self.out);
        }
        self.segment(hdr, payload);
    }

    pub fn output(&mut self) {
        self.tcb.output(&self.cfg, self.now_us, &mut self.out);
    }

    /// Appends as much as the window allows; returns how much.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let space = self.tcb.send_space(&self.cfg) as usize;
        let taken = bytes.len().min(space);
        if taken == 0 {
            return 0;
        }
        self.tcb.append(taken as u32);
        self.out.stream.extend(&bytes[..taken]);
        taken
    }

    /// Returns everything that was delivered.
    pub fn read_all(&mut self) -> Vec<u8> {
        let (bytes, bufs) = std::mem::take(&mut self.out.held);
        self.tcb.recv_done(&self.cfg, bytes, bufs);
        std::mem::take(&mut self.out.delivered)
    }

    pub fn shutdown(&mut self) {
        self.tcb.shutdown(&self.cfg, self.now_us, &mut self.out);
    }

    pub fn close(&mut self) {
        self.tcb.close(&self.cfg, self.now_us, &mut self.out);
    }

    pub fn abort(&mut self) {
        self.tcb.abort(&self.cfg, self.now_us, &mut self.out);
    }

    /// Lets timers fire, each at its time, until `until_us`.
    pub fn run_until(&mut self, until_us: u64) {
        while self.tcb.deadline() <= until_us {
            self.now_us = self.now_us.max(self.tcb.deadline());
            let before = self.tcb.deadline();
            self.tcb.timer(&self.cfg, self.now_us, &mut self.out);
            self.output();
            assert_ne!(self.tcb.deadline(), before, "a timer that fires for ever");
        }
        self.now_us = self.now_us.max(until_us);
    }

    pub fn run_to_deadline(&mut self) {
        self.run_until(self.tcb.deadline());
    }

    pub fn run_for(&mut self, us: u64) {
        self.run_until(self.now_us + us);
    }

    /// Calls `output`, and sends whatever was delayed.
    pub fn settle(&mut self) {
        self.output();
        self.run_for(2_000);
    }

    pub fn count(&self, counter: TcpCounter) -> u64 {
        self.out.stats.get(counter)
    }

    pub fn state(&self) -> State {
        self.tcb.state()
    }

    pub fn dead(&self) -> Option<DeadReason> {
        self.out.events.iter().find_map(|event| match event {
            TcpEvent::Dead(reason) => Some(*reason),
            _ => None,
        })
    }

    pub fn said(&self, event: TcpEvent) -> bool {
        self.out.events.contains(&event)
    }

    /// After the connection's end nothing may be left in it.
    pub fn check_no_leak(&mut self) {
        self.tcb.release(&mut self.out);
        assert_eq!(self.out.inside.get(), 0, "buffers leaked");
    }
}

/// What the hand-played peer offers in its SYN.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    pub window: u16,
}

impl Offer {
    /// All options.
    pub const ALL: Offer = Offer {
        mss: Some(1460),
        window_scale: Some(0),
        sack: true,
        timestamps: true,
        window: 65_535,
    };
    /// A peer without any option, as of 1981.
    pub const BARE: Offer = Offer {
        mss: Some(1460),
        window_scale: None,
        sack: false,
        timestamps: false,
        window: 65_535,
    };
    /// SACK, and nothing that makes the scripts longer.
    pub const SACK: Offer = Offer { sack: true, ..Offer::BARE };
}

/// First sequence numbers of the scripts: the stream begins one later.
pub const ISS: Seq = Seq(1000);
pub const IRS: Seq = Seq(5000);
/// Payload of a full segment between default ends without timestamps.
pub const END_MSS: usize = 1460;
/// Scripts start late, so that no test depends on time zero.
pub const START_US: u64 = 10_000_000;

/// One end under test, with a peer played by hand.
pub struct Script {
    pub end: End,
    pub offer: Offer,
    /// The next sequence number of the peer's stream.
    pub seq: Seq,
    /// What the peer acknowledges.
    pub ack: Seq,
    pub window: u16,
    /// Its timestamp clock.
    pub ts: u32,
    /// Our latest timestamp, which it echoes.
    pub echo: u32,
}

impl std::ops::Deref for Script {
    type Target = End;
    fn deref(&self) -> &End {
        &self.end
    }
}

impl std::ops::DerefMut for Script {
    fn deref_mut(&mut self) -> &mut End {
        &mut self.end
    }
}

impl Script {
    fn with(cfg: Config, tcb: Tcb<Buf>, offer: Offer) -> Script {
        let end = End::new(cfg, tcb, START_US);
        let window = offer.window;
        Script { end, offer, seq: IRS, ack: Seq(0), window, ts: 700, echo: 0 }
    }

    fn syn_options(offer: Offer, ts: (u32, u32)) -> TcpOptions {
        TcpOptions {
            mss: offer.mss,
            window_scale: offer.window_scale,
            sack_permitted: offer.sack,
            timestamp: offer.timestamps.then_some(ts),
            ..TcpOptions::NONE
        }
    }

    fn syn_header(offer: Offer, flags: TcpFlags, ack: Seq, ts: (u32, u32)) -> TcpHeader {
        let options = Self::syn_options(offer, ts);
        let (window, seq) = (offer.window, IRS);
        TcpHeader { seq, ack, flags, window, options, ..TcpHeader::default() }
    }

    /// SYN-SENT, the SYN with these flags out and taken from the record.
    pub fn asked(cfg: Config, offer: Offer, flags: TcpFlags) -> Script {
        let tcb = Tcb::connect(&cfg, tuple(1, 2), ISS, 77, START_US);
        let mut script = Script::with(cfg, tcb, offer);
        script.output();
        script.expect(flags);
        script.ack = ISS + 1;
        script
    }

    /// SYN-SENT, the SYN out and taken from the record.
    pub fn syn_sent(cfg: Config, offer: Offer) -> Script {
        let tcb = Tcb::connect(&cfg, tuple(1, 2), ISS, 77, START_US);
        let mut script = Script::with(cfg, tcb, offer);
        script.output();
        let syn = script.expect(SYN);
        assert_eq!((syn.seg.seq, syn.seg.flags), (ISS, SYN));
        script.ack = ISS + 1;
        script
    }

    /// SYN-RECEIVED by a passive open, the SYN-ACK out and taken from the record.
    pub fn syn_received(cfg: Config, offer: Offer) -> Script {
        let syn = Self::syn_header(offer, SYN, Seq(0), (700, 0));
        let tcb = Tcb::accept(&cfg, tuple(1, 2), &syn, ISS, 77, START_US);
        let mut script = Script::with(cfg, tcb, offer);
        script.output();
        let syn_ack = script.expect(SYN | ACK);
        assert_eq!((syn_ack.seg.seq, syn_ack.seg.ack), (ISS, IRS + 1));
        script.seq = IRS + 1;
        script.ack = ISS + 1;
        script
    }

    /// ESTABLISHED by a passive open.
    pub fn established(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::syn_received(cfg, offer);
        script.run_for(100);
        script.give(ACK, b"");
        assert_eq!(script.state(), State::Established);
        script.output();
        script.expect_nothing();
        script.out.events.clear();
        script
    }

    /// ESTABLISHED, past the immediate acknowledgements of a young connection.
    pub fn settled(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::established(cfg, offer);
        script.send(b"x");
        script.output();
        script.expect_data(b"x");
        script.run_for(100);
        script.ack += 1;
        script.give(ACK, b"");
        script.output();
        script.expect_nothing();
        script
    }

    /// FIN-WAIT-1, the FIN out and taken from the record.
    pub fn fin_wait_1(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::settled(cfg, offer);
        script.shutdown();
        script.output();
        let fin = script.expect(FIN | ACK);
        assert_eq!(fin.seg.seq, script.ack);
        assert_eq!(script.state(), State::FinWait1);
        script
    }

    /// FIN-WAIT-2.
    pub fn fin_wait_2(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::fin_wait_1(cfg, offer);
        script.ack += 1;
        script.give(ACK, b"");
        assert_eq!(script.state(), State::FinWait2);
        script
    }

    /// CLOSING.
    pub fn closing(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::fin_wait_1(cfg, offer);
        script.give(FIN | ACK, b"");
        script.output();
        script.expect(ACK);
        assert_eq!(script.state(), State::Closing);
        script
    }

    /// TIME-WAIT.
    pub fn time_wait(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::fin_wait_2(cfg, offer);
        script.give(FIN | ACK, b"");
        script.output();
        script.expect(ACK);
        assert_eq!(script.state(), State::TimeWait);
        script
    }

    /// CLOSE-WAIT.
    pub fn close_wait(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::settled(cfg, offer);
        script.give(FIN | ACK, b"");
        script.output();
        script.expect(ACK);
        assert_eq!(script.state(), State::CloseWait);
        script
    }

    /// LAST-ACK.
    pub fn last_ack(cfg: Config, offer: Offer) -> Script {
        let mut script = Script::close_wait(cfg, offer);
        script.shutdown();
        script.output();
        script.expect(FIN | ACK);
        assert_eq!(script.state(), State::LastAck);
        script
    }

    /// One script in each state that a connection can be in.
    pub fn in_each_state(cfg: &Config, offer: Offer) -> Vec<Script> {
        type Make = fn(Config, Offer) -> Script;
        let makers: [Make; 10] = [
            Script::syn_sent,
            Script::syn_received,
            Script::settled,
            Script::fin_wait_1,
            Script::fin_wait_2,
            Script::closing,
            Script::time_wait,
            Script::close_wait,
            Script::last_ack,
            Script::established,
        ];
        makers.iter().map(|make| make(cfg.clone(), offer)).collect()
    }

    /// A header of the peer, at its next number.
    pub fn header(&self, flags: TcpFlags) -> TcpHeader {
        let options = TcpOptions {
            timestamp: self.offer.timestamps.then_some((self.ts, self.echo)),
            ..TcpOptions::NONE
        };
        let (seq, ack, window) = (self.seq, self.ack, self.window);
        TcpHeader { seq, ack, flags, window, options, ..TcpHeader::default() }
    }

    /// The peer's SYN or SYN-ACK, at its next number.
    pub fn syn(&self, flags: TcpFlags) -> TcpHeader {
        Self::syn_header(self.offer, flags, self.ack, (self.ts, self.echo))
    }

    /// The peer sends the next part of its stream.
    pub fn give(&mut self, flags: TcpFlags, payload: &[u8]) {
        let hdr = self.header(flags);
        self.end.segment(&hdr, payload);
        self.seq += payload.len() as u32 + u32::from(flags.contains(FIN));
    }

    /// The peer sends something `offset` octets from its next number, which does not change.
    pub fn give_at(&mut self, offset: i32, flags: TcpFlags, payload: &[u8]) {
        let mut hdr = self.header(flags);
        hdr.seq = Seq(hdr.seq.0.wrapping_add(offset as u32));
        self.end.segment(&hdr, payload);
    }

    /// The peer acknowledges up to `ack`, with SACK blocks.
    pub fn give_sack(&mut self, ack: Seq, blocks: &[(Seq, Seq)]) {
        self.ack = ack;
        let mut hdr = self.header(ACK);
        for &(left, right) in blocks {
            hdr.options.sack.push(left, right);
        }
        self.end.segment(&hdr, b"");
    }

    /// The next segment; it must have exactly these flags (PSH apart).
    pub fn expect(&mut self, flags: TcpFlags) -> Sent {
        let sent = self.end.out.sent.pop_front().expect("nothing was sent");
        assert_eq!(sent.seg.flags.0 & !TcpFlags::PSH.0, flags.0, "{sent:?}");
        if let Some((val, _)) = sent.seg.options.timestamp {
            self.echo = val;
        }
        sent
    }

    /// The next segment; it must carry this payload.
    pub fn expect_data(&mut self, payload: &[u8]) -> Sent {
        let sent = self.expect(ACK);
        assert_eq!(sent.payload, payload, "{:?}", sent.seg);
        sent
    }

    /// The next segment; it must be a bare acknowledgement of everything the peer has sent.
    pub fn expect_ack(&mut self) -> Sent {
        let sent = self.expect(ACK);
        assert_eq!((sent.seg.payload_len, sent.seg.ack), (0, self.seq), "{sent:?}");
        sent
    }

    pub fn expect_nothing(&mut self) {
        assert_eq!(self.end.out.sent, [], "sent unexpectedly");
    }

    /// The peer acknowledges everything that we have sent.
    pub fn ack_all(&mut self) {
        let highest = self.end.out.sent.drain(..).map(|sent| {
            let fin = u32::from(sent.has(FIN));
            sent.seg.seq + sent.seg.payload_len + fin
        });
        self.ack = highest.fold(self.ack, Seq::max);
        self.give(ACK, b"");
    }
}

/// Options of a peer as a SYN cookie keeps them.
pub fn peer_options(offer: Offer) -> PeerOptions {
    PeerOptions::of_syn(&Script::syn_header(offer, SYN, Seq(0), (1, 0)), tuple(1, 2).remote)
}

/// A stream in which each byte shows its position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).rotate_left(8) as u8).collect()
}
