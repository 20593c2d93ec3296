//! One elastic thread on a simulated device and clock, with a raw IP link to the script.
use crate::settings::Settings;
use crate::wire;
use ix_abi::FlowOption;
use ix_dataplane::config::AddressCheck;
use ix_dataplane::{Config, CycleReport};
use ix_mem::Sizes;
use ix_rig::{Core, Rig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_tcp::{LossInfo, TcbInfo};
use ix_wire::IpAddr;
use libix::engine::{Batch, Flow, Memory};
use libix::raw::call::{self, Batched};
use libix::raw::{Event, Thread, TxBuf, Wait};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr as NetAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

/// Frames each way, and transmit memory: more than a script can fill.
const FRAMES: usize = 4096;
const ARENA_BYTES: usize = 32 << 20;
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_V4: [u8; 2] = [8, 0];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];

/// An event of the dataplane, with received bytes copied out.
#[derive(Clone, Debug)]
pub enum StackEvent {
    /// A flow waits at a listener: cookie of the listener, handle, peer.
    Knock(u64, u64, std::net::SocketAddr),
    /// Bytes of a flow: cookie, bytes, and how many of its own were acknowledged with them.
    Received(u64, Vec<u8>, u32),
    /// A datagram: cookie, bytes, sender.
    Datagram(u64, Vec<u8>, std::net::SocketAddr),
    /// Everything else that is about a flow.
    Other(Event),
}

/// What the answer of a call is for.
#[derive(Clone, Copy, Default)]
enum Pending {
    /// Nothing.
    #[default]
    Nothing,
    /// The maker of the call, or of an offer of so many bytes.
    Caller(u64),
    /// Transmit memory.
    Memory,
}

/// An elastic thread in virtual time.
pub struct Stack {
    thread: Thread,
    batch: Batch<Pending>,
    memory: Memory,
    /// The answer that the caller is for, with the bytes that it has offered.
    answer: Option<(u64, Result<u64, libix::Error>)>,
    core: Rc<RefCell<Core>>,
    device: SimDevice,
    clock: VirtualClock,
    /// Events that were not taken yet.
    pub events: VecDeque<StackEvent>,
    /// IP packets that were sent, each with its time, and not taken.
    pub sent: VecDeque<(u64, Vec<u8>)>,
}

/// Addresses of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The stack's.
    pub local: NetAddr,
    /// The script's.
    pub remote: NetAddr,
}

impl Addresses {
    /// Those of a script that names none.
    pub const V4: Addresses = Addresses {
        local: NetAddr::V4(Ipv4Addr::new(192, 168, 0, 1)),
        remote: NetAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    };
    /// The same of IPv6: packetdrill's.
    pub const V6: Addresses = Addresses {
        local: NetAddr::V6(Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1)),
        remote: NetAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    };

    /// Whether they are of one family.
    pub fn suit(self) -> bool {
        self.local.is_ipv6() == self.remote.is_ipv6()
    }
}

impl Stack {
    /// A fresh elastic thread at `now_us`.
    pub fn new(settings: &Settings, backlog: u32, at: Addresses, now_us: u64) -> Stack {
        let config = configuration(settings, backlog, at);
        let clock = VirtualClock::new(now_us);
        let options = SimOptions {
            mac: OWN_MAC,
            mtu: settings.mtu.into(),
            ring: FRAMES,
            ..SimOptions::default()
        };
        let device = SimDevice::new(options, &clock);
        let sizes = Sizes { rx_frames: FRAMES, tx_frames: FRAMES, arena_bytes: ARENA_BYTES };
        let options = RigOptions { config, sizes: Some(sizes), clock: clock.clone() };
        let elastic = Rig::new(options, device.nics()).threads.remove(0);
        let core = Rc::new(RefCell::new(Core::new(elastic, &clock, ())));
        let thread = ix_rig::enter(&core, 0);
        let mut stack = Stack {
            thread,
            batch: Batch::new(),
            memory: Memory::new(),
            answer: None,
            core,
            device,
            clock,
            events: VecDeque::new(),
            sent: VecDeque::new(),
        };
        while !stack.is_at_rest() {
            stack.cycle();
        }
        stack.sent.clear();
        stack
    }

    /// Virtual time, µs.
    pub fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Carries out one call, in a cycle of its own.
    pub fn call(&mut self, call: Batched) -> Result<u64, libix::Error> {
        self.batch.push(&mut self.thread, call, Pending::Caller(0));
        self.answer_of_cycle()
    }

    /// Opens a connection whose SYN has these options.
    pub fn connect(
        &mut self,
        connect: Batched,
        options: impl IntoIterator<Item = FlowOption>,
    ) -> Result<u64, libix::Error> {
        self.batch.push(&mut self.thread, connect, Pending::Caller(0));
        for option in options {
            let set = call::set_opt(ix_abi::OPENED_LAST, option);
            self.batch.push(&mut self.thread, set, Pending::Nothing);
        }
        self.answer_of_cycle()
    }

    /// Runs a cycle and returns the answer of the call in it.
    fn answer_of_cycle(&mut self) -> Result<u64, libix::Error> {
        self.cycle();
        self.answer.take().map_or(Err(libix::Error::NoResource), |(_, answer)| answer)
    }

    /// Appends the calls of a flow, at most `limit` bytes to be sent among them, and carries them
    /// out in a cycle of their own.
    pub fn carry_out(&mut self, flow: &mut Flow, limit: u64) {
        // The sockets end flows themselves: it lives on.
        let _ = flow.emit(&mut self.thread, &mut self.batch, limit, Pending::Caller);
        self.cycle();
        if let Some((offered, answer)) = self.answer.take() {
            // A flow that cannot go on hears of its end by an event.
            flow.sendv_answered(offered, answer).ok();
        }
    }

    /// Copies `bytes` behind what a flow has to send; returns for how many transmit memory was
    /// there.
    pub fn write(&mut self, flow: &mut Flow, bytes: &[u8]) -> usize {
        self.refill();
        let mut written = flow.send.write(self.thread.tx(), bytes);
        while written < bytes.len() && self.refill() {
            written += flow.send.write(self.thread.tx(), &bytes[written..]);
        }
        written
    }

    /// Asks for transmit memory if it is short, in a cycle of its own; whether some came.
    fn refill(&mut self) -> bool {
        let now_us = self.thread.now_us();
        if !self.memory.is_short(self.thread.tx()) {
            return false;
        }
        let Some(ask) = self.memory.request(now_us) else { return false };
        self.batch.push(&mut self.thread, ask, Pending::Memory);
        self.cycle();
        !self.memory.is_asked() && !self.thread.tx().wants_memory()
    }

    /// Sends a datagram; the buffer comes back with `UdpSent` of this cookie.
    pub fn send_datagram(
        &mut self,
        from: (u64, u16),
        to: std::net::SocketAddr,
        piece: &TxBuf,
        cookie: u64,
    ) -> Result<u64, libix::Error> {
        let entry = ix_abi::SgEntry { base: piece.base(), len: piece.len() as u64 };
        let from = (from.0, to);
        self.batch.push_datagram(&mut self.thread, from, entry, cookie, Pending::Caller(0));
        self.answer_of_cycle()
    }

    /// A buffer of transmit memory with the first of `bytes`.
    pub fn buffer(&mut self, bytes: &[u8]) -> Option<TxBuf> {
        self.refill();
        let mut buffer = self.thread.tx().alloc(bytes.len())?;
        buffer.extend(bytes);
        Some(buffer)
    }

    /// An IP packet arrives.
    pub fn deliver(&mut self, packet: &[u8]) {
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + packet.len());
        frame.extend_from_slice(&OWN_MAC);
        frame.extend_from_slice(&ROUTER_MAC);
        let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        frame.extend_from_slice(if v6 { &ETHERTYPE_V6 } else { &ETHERTYPE_V4 });
        frame.extend_from_slice(packet);
        self.device.deliver(frame);
    }

    /// When a timer fires next.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.core.borrow().thread.elastic.next_deadline_us()
    }

    /// It is that late now; a timer that is due and stays due waits for the next tick.
    pub fn set_now(&mut self, now_us: u64) {
        self.clock.set(self.now_us().max(now_us));
    }

    /// What a flow knows about itself; `None`: it is gone.
    pub fn inspect(&self, handle: u64) -> Option<(TcbInfo, LossInfo)> {
        self.core.borrow_mut().thread.elastic.inspect(handle)
    }

    /// Whether the last cycle left nothing to do at this time.
    pub fn is_at_rest(&self) -> bool {
        let mut core = self.core.borrow_mut();
        let CycleReport { events, busy } = core.report;
        events == 0 && !busy && core.thread.elastic.may_sleep()
    }

    /// Runs one cycle.
    pub fn cycle(&mut self) {
        self.batch.refill(&mut self.thread);
        let count = self.thread.run_io(Wait::Poll).unwrap_or(0);
        self.batch.carried_out();
        while let Some((slot, pending, answer)) = self.batch.next_answer(&self.thread) {
            match pending {
                Pending::Nothing => {}
                Pending::Caller(offered) => self.answer = Some((offered, answer)),
                Pending::Memory => {
                    let adopted = self.thread.adopt_tx(slot).is_ok();
                    self.memory.answered(adopted, self.thread.now_us());
                }
            }
        }
        // The pieces of a datagram that is longer than a buffer come one after the other.
        let mut follows = 0;
        for index in 0..count {
            let event = self.take(index);
            match (self.events.back_mut(), event) {
                (Some(StackEvent::Datagram(_, whole, _)), StackEvent::Datagram(_, piece, _))
                    if follows > 0 =>
                {
                    whole.extend(piece);
                }
                (_, event) => self.events.push_back(event),
            }
            follows = match self.thread.event(index) {
                Event::UdpRecv { notes, .. } => notes.follows(),
                _ => 0,
            };
        }
        let now_us = self.now_us();
        while let Some(frame) = self.device.next_sent() {
            let Some((ethernet, packet)) = frame.split_at_checked(ETHERNET_BYTES) else { continue };
            if ethernet[12..] == ETHERTYPE_V4
                || ethernet[12..] == ETHERTYPE_V6 && !wire::is_of_the_link(packet)
            {
                self.sent.push_back((now_us, packet.to_vec()));
            }
        }
    }

    fn take(&mut self, index: usize) -> StackEvent {
        let event = self.thread.event(index);
        match event {
            Event::Knock { listener, handle, peer } => StackEvent::Knock(listener, handle, peer),
            Event::Recv { cookie, news, .. } => {
                let bytes = self.thread.received(index).to_vec();
                StackEvent::Received(cookie, bytes, news.bytes())
            }
            Event::UdpRecv { cookie, data, peer, .. } => {
                let bytes = self.thread.received(index).to_vec();
                self.batch.put_off(call::udp_recv_done(data), Pending::Nothing);
                StackEvent::Datagram(cookie, bytes, peer)
            }
            Event::UdpError { data: Some(data), .. } => {
                self.batch.put_off(call::udp_recv_done(data), Pending::Nothing);
                StackEvent::Other(event)
            }
            other => StackEvent::Other(other),
        }
    }
}

fn configuration(settings: &Settings, backlog: u32, at: Addresses) -> Config {
    // The last address but one of the network is the router's.
    let (router, prefix_bits): (NetAddr, u8) = match at.local {
        NetAddr::V4(local) => (Ipv4Addr::from(u32::from(local) | 0xfffe).into(), 16),
        NetAddr::V6(local) => {
            (Ipv6Addr::from(u128::from(local) | u128::from(u64::MAX - 1)).into(), 64)
        }
    };
    Config {
        host_addrs: vec![(IpAddr::from(at.local), prefix_bits)],
        gateway_addrs: vec![router.into()],
        arp: vec![(router.into(), ROUTER_MAC), (at.remote.into(), ROUTER_MAC)],
        address_check: AddressCheck::Off,
        secret: *b"packets: secret.",
        isn_secret: *b"packets: numbers",
        rx_frames: FRAMES,
        tx_frames: FRAMES,
        arena_bytes: ARENA_BYTES,
        backlog,
        tcp: settings.tcp.clone(),
        ttl: settings.ttl,
        ..Config::default()
    }
}
