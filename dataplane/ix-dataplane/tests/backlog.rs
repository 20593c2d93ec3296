//! Backlogs. A listener that asks for no particular one has the default: so many connections may
//! wait to be accepted, and the next SYN is dropped and counted. A handshake that finds the backlog
//! full is not finished, and finishes when there is room.
use crate::peer::{OURS, PEER, PEER_MAC, segment};
use ix_abi::{Call, CallSlot, Endpoint, EventSlot, event_kind};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Parsed, RxChecks, Seq, TcpFlags, TcpHeader};

const DEFAULT: u16 = 4096;
/// Our SYN-ACK is sent again by then.
const SYN_ACK_AGAIN_US: u64 = 1_100_000;

/// A dataplane with a listener, and peers that speak TCP by hand.
struct Host {
    rig: BareRig,
    device: SimDevice,
    clock: VirtualClock,
    listener: u64,
}

impl Host {
    fn new(backlog: u32, holds: bool) -> Host {
        let clock = VirtualClock::default();
        let device = SimDevice::new(SimOptions::default(), &clock);
        let config = Config { arp: vec![(PEER, PEER_MAC)], ..Config::with_address(OURS, 24) };
        let sizes = Some(Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 });
        let options = RigOptions { config, sizes, clock: clock.clone() };
        let mut rig = BareRig::new(options, device.nics());
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 80 };
        let (codes, _) = rig.run(0, &[Call::Listen { at, backlog, cookie: 1, holds }.encode()], 0);
        device.take_sent(); // the announcement of our address
        Host { rig, device, clock, listener: u64::try_from(codes[0]).expect("a listener") }
    }

    fn run(&mut self, calls: &[CallSlot]) -> Vec<EventSlot> {
        self.rig.run(0, calls, self.clock.now_us()).1
    }

    /// Delivers a segment to the listener; the answer, if there is one.
    fn deliver(&mut self, port: u16, flags: TcpFlags, seq: Seq, ack: Seq) -> Option<TcpHeader> {
        let mac = self.device.options().mac;
        self.device.deliver(segment(mac, port, flags, seq, ack));
        self.run(&[]); // receives
        self.answer()
    }

    /// What the next cycle sends, first.
    fn answer(&mut self) -> Option<TcpHeader> {
        self.run(&[]);
        let frame = self.device.next_sent()?;
        match ix_wire::parse(&frame, RxChecks::default()) {
            Ok(Parsed::Tcp(segment)) => Some(segment.header),
            _ => panic!("no segment"),
        }
    }

    fn syn(&mut self, port: u16) -> Option<TcpHeader> {
        self.deliver(port, TcpFlags::SYN, Seq(1), Seq(0))
    }

    fn total(&self, counter: &str) -> u64 {
        self.rig.metrics().total(counter).expect("a counter")
    }
}

#[test]
fn a_listener_holds_the_default_backlog() {
    let mut host = Host::new(0, false);
    // Nobody accepts.
    for n in 0..DEFAULT {
        let reply = host.syn(1000 + n).expect("a SYN-ACK");
        assert_eq!(reply.flags, TcpFlags::SYN | TcpFlags::ACK);
        host.deliver(1000 + n, TcpFlags::ACK, Seq(2), reply.seq + 1);
    }
    assert_eq!(host.total("knocks"), u64::from(DEFAULT));
    assert_eq!(host.total("drops.backlog"), 0);
    assert_eq!(host.syn(999), None);
    assert_eq!(host.total("drops.backlog"), 1);
}

/// The last acknowledgement of a handshake that finds no place is ignored. Its SYN-ACK is sent
/// again, and what answers that opens the connection, if there is a place now.
#[test]
fn a_handshake_waits_for_a_place() {
    let mut host = Host::new(2, false);
    let syn_acks = [1000, 1001].map(|port| host.syn(port).expect("a SYN-ACK").seq);
    host.deliver(1000, TcpFlags::ACK, Seq(2), syn_acks[0] + 1);
    let third = host.syn(1002).expect("a SYN-ACK").seq;
    host.deliver(1001, TcpFlags::ACK, Seq(2), syn_acks[1] + 1);
    assert_eq!(host.total("knocks"), 2);
    assert_eq!(host.deliver(1002, TcpFlags::ACK, Seq(2), third + 1), None);
    assert_eq!((host.total("knocks"), host.total("drops.backlog")), (2, 1));
    host.clock.advance(SYN_ACK_AGAIN_US);
    let again = host.answer().expect("the SYN-ACK again");
    assert_eq!((again.flags, again.seq), (TcpFlags::SYN | TcpFlags::ACK, third));
    assert_eq!(host.deliver(1002, TcpFlags::ACK, Seq(2), third + 1), None);
    assert_eq!(host.total("knocks"), 2, "nobody has made room");
    // What acknowledges anything else is refused all the same.
    let refused = host.deliver(1002, TcpFlags::ACK, Seq(2), third + 77).expect("a reset");
    assert_eq!((refused.flags, refused.seq), (TcpFlags::RST, third + 77));
}

/// A place that is held stays taken, although its connection was accepted or has ended, until the
/// application says that it is free.
#[test]
fn places_are_held_until_they_are_freed() {
    let mut host = Host::new(2, true);
    let knock = |host: &mut Host, port| {
        let seq = host.syn(port).expect("a SYN-ACK").seq;
        let mac = host.device.options().mac;
        host.device.deliver(segment(mac, port, TcpFlags::ACK, Seq(2), seq + 1));
        let events = host.run(&[]);
        let knock = events.iter().find(|event| event.kind == event_kind::KNOCK);
        knock.expect("it knocks").handle
    };
    let [accepted, _] = [1000, 1001].map(|port| knock(&mut host, port));
    host.run(&[Call::Accept { handle: accepted, cookie: 5 }.encode()]);
    host.deliver(1001, TcpFlags::RST, Seq(2), Seq(0));
    assert_eq!(host.syn(1002), None);
    let listener = host.listener;
    host.run(&[Call::Backlog { listener, backlog: 0, freed: 1 }.encode()]);
    knock(&mut host, 1002);
    assert_eq!(host.syn(1003), None);
    // A longer backlog, and more places freed than were held.
    host.run(&[Call::Backlog { listener, backlog: 3, freed: 0 }.encode()]);
    knock(&mut host, 1003);
    assert_eq!(host.syn(1004), None);
    host.run(&[Call::Backlog { listener, backlog: 0, freed: 99 }.encode()]);
    for port in 1004..1007 {
        knock(&mut host, port);
    }
    assert_eq!(host.syn(1007), None);
    assert_eq!(host.total("misrouted"), 0);
}
