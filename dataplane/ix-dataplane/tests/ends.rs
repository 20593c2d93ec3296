//! Connections that the application has closed are bounded: those in TIME-WAIT give way to new
//! ones, oldest first, and of those that still have to end so many are kept, as on Linux. And what
//! the identifications of packets tell.
use crate::peer::{OURS, PEER, PEER_MAC, listen, segment};
use ix_abi::{Call, CallError, CallSlot, Endpoint, EventSlot, FlowOption, SgArray, event_kind};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{FlowHash, FlowTuple, Parsed, RxChecks, Seq, TcpFlags, TcpHeader};

struct Host {
    rig: BareRig,
    device: SimDevice,
    clock: VirtualClock,
}

/// An accepted connection from a port of the peer: its handle, and our next sequence number.
struct Accepted {
    port: u16,
    handle: u64,
    ours: Seq,
}

impl Host {
    fn new(flows_max: usize, orphans_max: usize) -> Host {
        let clock = VirtualClock::default();
        let device = SimDevice::new(SimOptions::default(), &clock);
        let config = Config {
            arp: vec![(PEER, PEER_MAC)],
            flows_max,
            orphans_max,
            ..Config::with_address(OURS, 24)
        };
        let sizes = Some(Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 });
        let options = RigOptions { config, sizes, clock: clock.clone() };
        let rig = BareRig::new(options, device.nics());
        let mut host = Host { rig, device, clock };
        host.run(&[listen()]);
        host
    }

    fn run(&mut self, calls: &[CallSlot]) -> (Vec<i64>, Vec<EventSlot>) {
        self.rig.run(0, calls, self.clock.now_us())
    }

    /// Delivers a segment: the events, and what is sent then, each with its identification.
    fn deliver(
        &mut self,
        port: u16,
        flags: TcpFlags,
        seq: u32,
        ack: Seq,
    ) -> (Vec<EventSlot>, Vec<(TcpHeader, u16)>) {
        let mac = self.device.options().mac;
        self.device.deliver(segment(mac, port, flags, Seq(seq), ack));
        let events = self.run(&[]).1;
        (events, self.sent())
    }

    fn sent(&mut self) -> Vec<(TcpHeader, u16)> {
        self.run(&[]);
        let frames = std::iter::from_fn(|| self.device.next_sent());
        let segment = |frame: Vec<u8>| match ix_wire::parse(&frame, RxChecks::default()) {
            Ok(Parsed::Tcp(p)) => Some((p.header, u16::from_be_bytes([frame[18], frame[19]]))),
            _ => None,
        };
        frames.filter_map(segment).collect()
    }

    fn accept(&mut self, port: u16) -> Option<Accepted> {
        let (_, sent) = self.deliver(port, TcpFlags::SYN, 1, Seq(0));
        let ours = sent.first()?.0.seq + 1;
        let (events, _) = self.deliver(port, TcpFlags::ACK, 2, ours);
        let handle = events.iter().find(|e| e.kind == event_kind::KNOCK)?.handle;
        self.run(&[Call::Accept { handle, cookie: port.into() }.encode()]);
        Some(Accepted { port, handle, ours })
    }

    /// Closes our side; the flags of what is sent.
    fn close(&mut self, accepted: &Accepted) -> Vec<u16> {
        self.run(&[Call::Close { handle: accepted.handle }.encode()]);
        self.sent().iter().map(|(header, _)| header.flags.0).collect()
    }

    /// The peer acknowledges our FIN and sends its own.
    fn finish(&mut self, accepted: &Accepted) -> Vec<(TcpHeader, u16)> {
        self.deliver(accepted.port, TcpFlags::FIN | TcpFlags::ACK, 2, accepted.ours + 1).1
    }

    fn total(&self, counter: &str) -> u64 {
        self.rig.metrics().total(counter).expect("a counter")
    }
}

const FIN_ACK: u16 = TcpFlags::FIN.union(TcpFlags::ACK).0;
const RST_ACK: u16 = TcpFlags::RST.union(TcpFlags::ACK).0;

#[test]
fn the_oldest_in_time_wait_gives_way() {
    let mut host = Host::new(8, 8);
    let old: Vec<Accepted> = (0..8)
        .map(|n| {
            let accepted = host.accept(1000 + n).expect("room");
            assert_eq!(host.close(&accepted), [FIN_ACK]);
            assert_eq!(host.finish(&accepted).len(), 1);
            host.clock.advance(10_000);
            accepted
        })
        .collect();
    assert_eq!((host.total("time_wait"), host.total("flows")), (8, 8));
    // Passively, and actively.
    let new = host.accept(2000).expect("room is made");
    assert_eq!((host.total("time_wait"), host.total("time_wait_recycled")), (7, 1));
    let to = Endpoint { addr: PEER.0, port: 9 };
    let call = Call::Connect { cookie: 5, to, congestion: None, local_port: 0 };
    assert!(host.run(&[call.encode()]).0[0] > 0);
    host.sent();
    assert_eq!((host.total("time_wait"), host.total("time_wait_recycled")), (6, 2));
    // The two oldest are forgotten, and the others are not.
    for (nth, accepted) in old.iter().enumerate() {
        let sent = host.finish(accepted);
        assert_eq!(sent[0].0.flags.contains(TcpFlags::RST), nth < 2, "{nth}");
    }
    // Only those that wait give way.
    for n in 0..6 {
        host.accept(3000 + n).expect("room is made");
    }
    assert!(host.accept(3100).is_none());
    let none = CallError::encode(Err(CallError::NoResource));
    assert_eq!(host.run(&[call.encode()]).0, [none]);
    assert_eq!((host.total("time_wait"), host.total("time_wait_recycled")), (0, 8));
    assert_eq!(host.total("drops.flows_max"), 1);
    assert_eq!(host.close(&new), [FIN_ACK]);
}

/// Connections in TIME-WAIT from which nothing is expected are kept apart. What comes for one finds
/// it: a FIN that was sent again, a SYN that is newer, one that is not; and it ends in time.
#[test]
fn what_comes_for_one_in_time_wait_finds_it() {
    let mut host = Host::new(64, 64);
    let all: Vec<Accepted> = (0..4)
        .map(|n| {
            let accepted = host.accept(1000 + n).expect("room");
            assert_eq!(host.close(&accepted), [FIN_ACK]);
            assert_eq!(host.finish(&accepted).len(), 1);
            accepted
        })
        .collect();
    assert_eq!((host.total("time_wait"), host.total("flows")), (4, 4));
    host.clock.advance(1_000_000);
    // Its FIN again: acknowledged, and it waits anew.
    let again = host.finish(&all[0]);
    assert_eq!((again.len(), again[0].0.flags.0), (1, TcpFlags::ACK.0));
    assert_eq!((again[0].0.seq, again[0].0.ack), (all[0].ours + 1, Seq(3)));
    // A new SYN, above what it sent, opens a connection above what we sent.
    let (_, sent) = host.deliver(1001, TcpFlags::SYN, 1_000, Seq(0));
    assert_eq!(sent[0].0.flags.0, (TcpFlags::SYN | TcpFlags::ACK).0);
    assert!(sent[0].0.seq.gt(all[1].ours + 1));
    assert_eq!((host.total("time_wait"), host.total("flows")), (3, 4));
    // An old SYN is acknowledged, and only the reset that answers this ends it.
    host.deliver(1003, TcpFlags::RST, 3, Seq(0));
    assert_eq!(host.total("time_wait"), 3);
    let (_, sent) = host.deliver(1003, TcpFlags::SYN, 1, Seq(0));
    assert_eq!((sent[0].0.flags.0, sent[0].0.ack), (TcpFlags::ACK.0, Seq(3)));
    host.deliver(1003, TcpFlags::RST, 3, Seq(0));
    assert_eq!(host.total("time_wait"), 2);
    // The other two end after a minute, each by its own time.
    host.clock.advance(59_100_000);
    host.sent();
    assert_eq!(host.total("time_wait"), 1);
    host.clock.advance(1_000_000);
    host.sent();
    assert_eq!(host.total("time_wait"), 0);
}

#[test]
fn only_so_many_closed_connections_are_ending() {
    let mut host = Host::new(64, 4);
    let all: Vec<Accepted> = (0..6).map(|n| host.accept(1000 + n).expect("room")).collect();
    for (nth, accepted) in all.iter().enumerate() {
        assert_eq!(host.close(accepted), [if nth < 4 { FIN_ACK } else { RST_ACK }], "{nth}");
    }
    assert_eq!((host.total("orphans"), host.total("orphans_reset")), (4, 2));
    assert_eq!(host.total("flows"), 4);
    // One is done: there is room for another one.
    host.finish(&all[0]);
    assert_eq!((host.total("orphans"), host.total("time_wait")), (3, 1));
    let next = host.accept(2000).expect("room");
    assert_eq!(host.close(&next), [FIN_ACK]);
    // The peers are gone.
    for _ in 0..200 {
        host.clock.advance(1_000_000);
        host.sent();
    }
    assert_eq!((host.total("orphans"), host.total("time_wait"), host.total("flows")), (0, 0, 0));
    assert_eq!(host.total("orphans_reset"), 2);
}

/// As on Linux: a peer that acknowledges our FIN and never sends its own takes no orphan's place.
#[test]
fn peers_that_never_close_do_not_use_up_the_places_of_orphans() {
    let mut host = Host::new(64, 4);
    for n in 0..12 {
        let accepted = host.accept(1000 + n).expect("room");
        assert_eq!(host.close(&accepted), [FIN_ACK], "{n}");
        host.deliver(accepted.port, TcpFlags::ACK, 2, accepted.ours + 1);
    }
    assert_eq!((host.total("orphans"), host.total("time_wait")), (0, 12));
    assert_eq!(host.total("orphans_reset"), 0);
    // They give way to new ones, as those in TIME-WAIT do.
    for n in 0..64 {
        host.accept(2000 + n).expect("room is made");
    }
    assert_eq!((host.total("time_wait"), host.total("time_wait_recycled")), (0, 12));
}

/// The application has closed them too, but keeps their memory until all is acknowledged.
#[test]
fn those_that_the_application_still_drains_count() {
    let mut host = Host::new(64, 4);
    let all: Vec<Accepted> = (0..6).map(|n| host.accept(1000 + n).expect("room")).collect();
    let (base, _) = host.rig.transmit_memory();
    host.rig.write(base, &[base + 64, 10]);
    let sg = SgArray { addr: base, entries: 1 };
    for (nth, Accepted { port, handle, .. }) in all.iter().enumerate() {
        let closed = Call::SetOpt { handle: *handle, option: FlowOption::Closed };
        let calls = [Call::SendV { handle: *handle, sg, fin: false, eor: false, done: 0 }, closed]
            .map(|call| call.encode());
        let (codes, events) = host.run(&calls);
        assert_eq!(codes, [10, 0]);
        let dead: Vec<u64> =
            events.iter().filter(|e| e.kind == event_kind::DEAD).map(|e| e.cookie).collect();
        let reset = host.sent().iter().any(|(header, _)| header.flags.contains(TcpFlags::RST));
        assert_eq!((reset, dead.contains(&(*port).into())), (nth >= 4, nth >= 4), "{nth}");
    }
    assert_eq!((host.total("orphans"), host.total("orphans_reset")), (4, 2));
    assert_eq!(host.total("flows"), 4);
    // Acknowledged, and so closed; it counts once.
    let Accepted { port, handle, ours } = all[0];
    host.deliver(port, TcpFlags::ACK, 2, ours + 10);
    assert_eq!(host.total("orphans"), 4);
    assert_eq!(host.close(&Accepted { port, handle, ours }), [FIN_ACK]);
    assert_eq!(host.total("orphans"), 4);
    // The peers keep their windows closed, and stay: nothing is acknowledged.
    for second in 0..400 {
        host.clock.advance(1_000_000);
        host.sent();
        if second % 10 == 0 {
            for Accepted { port, ours, .. } in &all[1..4] {
                host.deliver(*port, TcpFlags::ACK, 2, *ours);
            }
        }
    }
    assert_eq!((host.total("orphans"), host.total("flows")), (0, 0));
}

#[test]
fn half_of_all_flows_are_not_orphans() {
    let mut host = Host::new(8, 1000);
    let all: Vec<Accepted> = (0..6).map(|n| host.accept(1000 + n).expect("room")).collect();
    let resets = all.iter().filter(|accepted| host.close(accepted) == [RST_ACK]).count();
    assert_eq!(resets, 2);
}

#[test]
fn identifications_tell_nothing_of_others() {
    let mut host = Host::new(64, 64);
    // What belongs to no flow has none (RFC 6864).
    let (_, sent) = host.deliver(4000, TcpFlags::FIN | TcpFlags::ACK, 1, Seq(1));
    assert_eq!((sent[0].0.flags, sent[0].1), (TcpFlags::RST, 0));
    // The first one of a flow tells nothing of its place in the table.
    let hash = FlowHash::new(Config::with_address(OURS, 24).flow_hash_key);
    let told = (5000..5016).filter(|port| {
        let (_, sent) = host.deliver(*port, TcpFlags::SYN, 1, Seq(0));
        let tuple = FlowTuple { local: OURS, remote: PEER, local_port: 80, remote_port: *port };
        sent[0].1.wrapping_sub(1) == (hash.hash(&tuple) >> 16) as u16
    });
    assert!(told.count() < 2);
    // Those of a flow count by themselves, whatever else is sent.
    let all: Vec<Accepted> = (0..4).map(|n| host.accept(1000 + n).expect("room")).collect();
    let (base, _) = host.rig.transmit_memory();
    host.rig.write(base, &[base + 64, 10]);
    let sg = SgArray { addr: base, entries: 1 };
    let mut send = |accepted: &Accepted| {
        let sent = host
            .run(&[Call::SendV { handle: accepted.handle, sg, fin: false, eor: false, done: 0 }
                .encode()])
            .0;
        assert_eq!(sent, [10]);
        let idents: Vec<u16> = host.sent().iter().map(|(_, ident)| *ident).collect();
        assert_eq!(idents.len(), 1);
        idents[0]
    };
    let mut last: Vec<u16> = all.iter().map(&mut send).collect();
    let mut begins = last.clone();
    begins.sort_unstable();
    assert!(begins.windows(2).all(|pair| pair[1] - pair[0] > 8), "{begins:?}");
    for round in 0..20 {
        let nth = [0, 1, 0, 0, 2, 3, 0][round % 7];
        let ident = send(&all[nth]);
        assert_eq!(ident, last[nth].wrapping_add(1));
        last[nth] = ident;
    }
}
