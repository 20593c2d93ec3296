//! The contract across the wall: an application that writes anything into its call array and its
//! transmit memory, while a peer opens connections, sends, resets and answers. Whatever it does, the
//! dataplane answers with codes, tells nothing that is not so, and has everything back in the end.
use super::rig::{OWN, OWN_MAC, PEER, PEER_MAC, Rig};
use crate::bytes::Bytes;
use ix_abi::{CallSlot, EventSlot, call_op, event_kind};
use ix_wire::{
    Checksum, ChecksumMode, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, TcpHeader,
    TcpOptions, parse,
};

/// Ports of the peer's connections.
const PORTS: usize = 4;
const PORT: u16 = 7;
/// Numbers that an application may have kept.
const KEPT_MAX: usize = 64;

/// What the peer knows of one of its connections.
#[derive(Clone, Copy, Default)]
struct Remote {
    port: u16,
    ours: u16,
    nxt: Seq,
    ack: Seq,
}

struct Application {
    rig: Rig,
    /// Handles, identifiers, addresses: all that ever came back.
    kept: Vec<u64>,
    handles: Vec<u64>,
    sockets: Vec<u64>,
    datagrams: Vec<u64>,
    listeners: Vec<u64>,
    timers: Vec<u64>,
    calls: Vec<CallSlot>,
    /// Frames that the application made itself and nobody has seen yet: they may be anything.
    own_frames: usize,
    remotes: [Remote; PORTS],
}

/// Runs what the input says, then ends everything and looks that nothing is left.
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
        let args = [0, 0, u64::from(PORT), 5, 0, 0];
        app.calls.push(CallSlot { op: call_op::LISTEN, args, ..CallSlot::default() });
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

    /// A number that means something, or one that does not.
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

    fn call(&self, bytes: &mut Bytes<'_>) -> CallSlot {
        let op = u32::from(bytes.u8() % 31);
        let mut args = [0; 6];
        let count = bytes.u8() % 7;
        args.iter_mut().take(count.into()).for_each(|arg| *arg = self.number(bytes));
        CallSlot { op, args, ..CallSlot::default() }
    }

    /// Writes two words somewhere into transmit memory: mostly an entry of a scatter-gather array.
    fn poke(&mut self, bytes: &mut Bytes<'_>) {
        let (base, len) = self.rig.arena;
        let at = base + ((bytes.scaled(23) % (len - 16)) & !7);
        let words = [self.number(bytes), self.number(bytes)];
        // SAFETY: within transmit memory, aligned; the application owns it.
        unsafe { (at as *mut [u64; 2]).write_volatile(words) };
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
        for (call, ret) in calls.iter().zip(rets) {
            self.own_frames += usize::from(call.op == call_op::PACKET_SENDV && ret >= 0);
            let list = match call.op {
                call_op::LISTEN => &mut self.listeners,
                call_op::UDP_BIND => &mut self.sockets,
                call_op::TIMER_SET => &mut self.timers,
                call_op::CONNECT => &mut self.handles,
                _ => continue,
            };
            if ret >= 0 {
                list.push(ret as u64);
                self.keep(ret as u64);
            }
        }
        events.iter().for_each(|event| self.event(event));
        while let Some(frame) = self.rig.device.next_sent() {
            self.read(&frame);
        }
        self.rig.clock.advance(20);
    }

    fn event(&mut self, event: &EventSlot) {
        let kinds = event_kind::KNOCK..=event_kind::SIGNAL;
        assert!(kinds.contains(&event.kind), "an event of no kind: {event:?}");
        match event.kind {
            event_kind::KNOCK | event_kind::CONNECTED => self.handles.push(event.handle),
            event_kind::UDP_RECV | event_kind::PACKET_RECV => self.datagrams.push(event.data),
            _ => {}
        }
        self.keep(event.handle);
        if event.data != 0 {
            self.keep(event.data);
        }
    }

    /// The peer reads what the dataplane sends: it must be a good packet.
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
            // The application connects: one of the peer's ports answers from now on.
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

    /// The peer says something.
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

    fn calls_of(&mut self, op: u32, numbers: Vec<u64>) {
        let call = |number| CallSlot { op, args: [number, 0, 0, 0, 0, 0], ..CallSlot::default() };
        for numbers in numbers.chunks(ix_abi::CALLS_MAX) {
            self.calls = numbers.iter().map(|number| call(*number)).collect();
            self.cycle();
        }
    }

    /// Aborts, closes and gives back everything, and waits for what may last.
    fn end(mut self) {
        self.cycle();
        while self.rig.device.next_sent().is_some() {}
        for _ in 0..4 {
            let calls = [
                (call_op::UNLISTEN, std::mem::take(&mut self.listeners)),
                (call_op::TIMER_CANCEL, std::mem::take(&mut self.timers)),
                (call_op::REJECT, self.handles.clone()),
                (call_op::ABORT, std::mem::take(&mut self.handles)),
                (call_op::UDP_RECV_DONE, std::mem::take(&mut self.datagrams)),
                (call_op::UDP_UNBIND, std::mem::take(&mut self.sockets)),
            ];
            calls.into_iter().for_each(|(op, numbers)| self.calls_of(op, numbers));
        }
        // SYN-RECEIVED, TIME-WAIT, and what an application closed whose peer is silent.
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
