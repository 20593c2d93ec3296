//! The contract: an application that writes anything into its call array and its transmit memory,
//! while a peer opens connections, sends, resets and replies. In every case the dataplane returns
//! codes, reports only true events, and has all resources back at the end.
use super::rig::{OWN, OWN_MAC, PEER, PEER_MAC, Rig};
use crate::bytes::Bytes;
use ix_abi::{Call, CallError, CallSlot, Endpoint, Event, EventSlot};
use ix_wire::{
    Checksum, ChecksumMode, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, TcpHeader,
    TcpOptions, parse,
};

/// Ports of the peer's connections.
const PORTS: usize = 4;
const PORT: u16 = 7;
/// Numbers that an application may have kept.
const KEPT_MAX: usize = 64;

/// The call that names something.
type CallOf = fn(u64) -> Call;

/// The peer's knowledge of one of its connections.
#[derive(Clone, Copy, Default)]
struct Remote {
    port: u16,
    ours: u16,
    nxt: Seq,
    ack: Seq,
}

struct Application {
    rig: Rig,
    /// Handles, ids, addresses: all that was ever returned.
    kept: Vec<u64>,
    handles: Vec<u64>,
    sockets: Vec<u64>,
    datagrams: Vec<u64>,
    listeners: Vec<u64>,
    timers: Vec<u64>,
    calls: Vec<CallSlot>,
    /// Frames that the application made and no one has checked yet: they may be anything.
    own_frames: usize,
    remotes: [Remote; PORTS],
}

/// Runs the input, then ends everything and checks that nothing is left.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mut app = Application::new();
    while !bytes.is_empty() {
        app.step(&mut bytes);
    }
    app.end();
}

impl Application {
    fn new() -> Application {
        let remote = |i: usize| Remote { port: 1000 + i as u16, ours: PORT, ..Remote::default() };
        let mut app = Application {
            rig: Rig::new(),
            kept: Vec::new(),
            handles: Vec::new(),
            sockets: Vec::new(),
            datagrams: Vec::new(),
            listeners: Vec::new(),
            timers: Vec::new(),
            calls: Vec::new(),
            own_frames: 0,
            remotes: std::array::from_fn(remote),
        };
        let at = Endpoint { port: PORT, ..Endpoint::default() };
        app.calls.push(Call::Listen { at, backlog: 5, cookie: 0, holds: false }.encode());
        app.cycle();
        app
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() % 16 {
            0..=5 => {
                let call = self.call(bytes);
                self.calls.push(call);
            }
            6 => self.poke(bytes),
            7..=9 => self.cycle(),
            10 => {
                self.rig.clock.advance(bytes.scaled(28));
                self.cycle();
            }
            _ => self.hear(bytes),
        }
    }

    /// A significant number, or a random one.
    fn number(&self, bytes: &mut Bytes<'_>) -> u64 {
        let (base, len) = self.rig.arena;
        match bytes.u8() % 8 {
            0..=2 if !self.kept.is_empty() => self.kept[usize::from(bytes.u8()) % self.kept.len()],
            3 => base + bytes.scaled(23) % (len + 64),
            4 => bytes.u64(),
            5 => u64::from_be_bytes([0, 0, 0xff, 0xff, PEER[0], PEER[1], PEER[2], PEER[3]]),
            _ => bytes.scaled(20),
        }
    }

    /// A call of any words.
    fn call(&self, bytes: &mut Bytes<'_>) -> CallSlot {
        let op = u32::from(bytes.u8() % 32);
        let mut args = [0; 6];
        let count = bytes.u8() % 7;
        args.iter_mut().take(count.into()).for_each(|arg| *arg = self.number(bytes));
        CallSlot { op, args, ..CallSlot::default() }
    }

    /// Writes two words into transmit memory: mostly an entry of a scatter-gather array.
    fn poke(&mut self, bytes: &mut Bytes<'_>) {
        let (base, len) = self.rig.arena;
        let at = base + ((bytes.scaled(23) % (len - 16)) & !7);
        let words = [self.number(bytes), self.number(bytes)];
        self.rig.write(at, words);
        self.keep(at);
    }

    fn keep(&mut self, number: u64) {
        if self.kept.len() == KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push(number);
    }

    fn cycle(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        let (rets, events) = self.rig.cycle(&calls);
        for (slot, ret) in calls.iter().zip(rets) {
            let Ok(name) = CallError::check(ret) else { continue };
            let call = Call::decode(slot).expect("only a call that makes sense is carried out");
            let list = match call {
                Call::PacketSendV { .. } => {
                    self.own_frames += 1;
                    continue;
                }
                Call::Listen { .. } => &mut self.listeners,
                Call::UdpBind { .. } | Call::UdpShare { .. } => &mut self.sockets,
                Call::TimerSet { .. } => &mut self.timers,
                Call::Connect { .. } => &mut self.handles,
                _ => continue,
            };
            list.push(name);
            self.keep(name);
        }
        events.iter().for_each(|event| self.event(event));
        while let Some(frame) = self.rig.device.next_sent() {
            self.read(&frame);
        }
        self.rig.clock.advance(20);
    }

    fn event(&mut self, slot: &EventSlot) {
        match Event::decode(slot).unwrap_or_else(|why| panic!("{why}: {slot:?}")) {
            Event::Knock { handle, .. } | Event::Connected { handle, .. } => {
                self.handles.push(handle);
            }
            Event::UdpRecv { data, .. } | Event::PacketRecv { data, .. } => {
                self.datagrams.push(data.addr);
            }
            _ => {}
        }
        // Whatever they mean.
        self.keep(slot.handle);
        if slot.data != 0 {
            self.keep(slot.data);
        }
    }

    /// The peer reads what the dataplane sends: each must be a valid packet.
    fn read(&mut self, frame: &[u8]) {
        let checks = RxChecks { transport: ChecksumMode::Verify };
        let parsed = match parse(frame, checks) {
            Ok(parsed) => parsed,
            Err(_) if self.own_frames > 0 => {
                self.own_frames -= 1;
                return;
            }
            Err(reason) => panic!("the dataplane sends good packets: {reason:?}"),
        };
        let Parsed::Tcp(packet) = parsed else { return };
        let header = packet.header;
        let known = self.remotes.iter_mut().find(|remote| remote.port == header.dst_port);
        let Some(remote) = known else {
            // The application connects: one of the peer's ports replies from now on.
            self.remotes[0] = Remote {
                port: header.dst_port,
                ours: header.src_port,
                nxt: Seq(1),
                ack: header.seq + 1,
            };
            return;
        };
        let control = header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
        remote.ours = header.src_port;
        remote.ack = header.seq + u32::from(packet.payload.len) + u32::from(control);
        if header.flags.contains(TcpFlags::ACK) {
            remote.nxt = header.ack;
        }
    }

    /// The peer sends something.
    fn hear(&mut self, bytes: &mut Bytes<'_>) {
        let remote = self.remotes[usize::from(bytes.u8()) % PORTS];
        let what = bytes.u8() % 12;
        let (flags, len) = match what {
            0 | 1 => (TcpFlags::SYN, 0),
            2 => (TcpFlags::SYN | TcpFlags::ACK, 0),
            3 | 4 => (TcpFlags::ACK, 0),
            5 | 6 => (TcpFlags::ACK | TcpFlags::PSH, bytes.scaled(10) as usize),
            7 => (TcpFlags::ACK | TcpFlags::FIN, 0),
            8 => (TcpFlags::RST, 0),
            9 => (TcpFlags(u16::from(bytes.u8())), 0),
            10 => return self.datagram(bytes),
            _ => return self.garbage(bytes),
        };
        let syn = flags.contains(TcpFlags::SYN);
        let header = TcpHeader {
            src_port: remote.port,
            dst_port: remote.ours,
            seq: remote.nxt,
            ack: remote.ack,
            flags,
            window: if bytes.u8() & 7 == 0 { bytes.u16() } else { u16::MAX },
            urgent: 0,
            options: TcpOptions { mss: syn.then_some(1460), ..TcpOptions::NONE },
        };
        let payload = vec![0x55; len.min(1400)];
        let mut frame = vec![0; 14 + 20 + 60 + payload.len()];
        let sum = Checksum::of(&payload);
        let at = self.link().emit_tcp(&mut frame, &header, payload.len(), sum);
        self.send(frame, at, &payload);
    }

    fn datagram(&mut self, bytes: &mut Bytes<'_>) {
        let payload = vec![0x66; bytes.scaled(10) as usize];
        let mut frame = vec![0; 14 + 20 + 8 + payload.len()];
        let sum = Checksum::of(&payload);
        let port = if bytes.u8() & 1 == 0 { PORT } else { bytes.u8().into() };
        let at = self.link().emit_udp(&mut frame, 9, port, payload.len(), sum);
        self.send(frame, at, &payload);
    }

    fn garbage(&mut self, bytes: &mut Bytes<'_>) {
        let len = bytes.scaled(6) as usize;
        let payload = bytes.take(len);
        let mut frame = vec![0; 14 + 20 + payload.len()];
        let at = self.link().emit(&mut frame, bytes.u8(), payload.len());
        self.send(frame, at, payload);
    }

    fn link(&self) -> FrameHeader {
        FrameHeader {
            eth_src: PEER_MAC,
            eth_dst: OWN_MAC,
            src: IpAddr::v4(PEER),
            dst: IpAddr::v4(OWN),
            ttl: 64,
            tos: 0,
            ident: 0,
        }
    }

    fn send(&mut self, mut frame: Vec<u8>, headers: usize, payload: &[u8]) {
        frame.truncate(headers);
        frame.extend_from_slice(payload);
        self.rig.device.deliver(frame);
    }

    fn calls_of(&mut self, call: CallOf, numbers: Vec<u64>) {
        for numbers in numbers.chunks(ix_abi::CALLS_MAX) {
            self.calls = numbers.iter().map(|number| call(*number).encode()).collect();
            self.cycle();
        }
    }

    /// Aborts, closes and gives back everything, and waits for timeouts.
    fn end(mut self) {
        self.cycle();
        while self.rig.device.next_sent().is_some() {}
        for _ in 0..4 {
            let ends: [(CallOf, Vec<u64>); 6] = [
                (|listener| Call::Unlisten { listener }, std::mem::take(&mut self.listeners)),
                (|timer| Call::TimerCancel { timer }, std::mem::take(&mut self.timers)),
                (|handle| Call::Reject { handle }, self.handles.clone()),
                (|handle| Call::Abort { handle }, std::mem::take(&mut self.handles)),
                (|data| Call::UdpRecvDone { data }, std::mem::take(&mut self.datagrams)),
                (|id| Call::UdpUnbind { socket: id as u32 }, std::mem::take(&mut self.sockets)),
            ];
            ends.into_iter().for_each(|(call, numbers)| self.calls_of(call, numbers));
        }
        // SYN-RECEIVED, TIME-WAIT, and closed flows whose peer is silent.
        for _ in 0..600 {
            self.rig.clock.advance(1_000_000);
            self.cycle();
            if self.rig.left().is_empty() {
                return;
            }
        }
        panic!("left at the end: {:?}", self.rig.left());
    }
}
