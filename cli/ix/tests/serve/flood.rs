//! A SYN flood while honest clients come and go.
use crate::support::frames::{self, ACK, Macs, RST, SYN, Segment, stranger};
use crate::support::traffic::{close, echo};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, connect};
use ix_random::Rng;
use ix_testbed::PacketSocket;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// SYNs from everywhere, more than any backlog, while honest clients come and go.
fn syn_flood(test: &str, nic: Nic) {
    const SYNS: u64 = 100_000;
    let Some(mut net) = TestNet::alone(test, nic, 1) else { return };
    let service = net.serve(&["64"]);
    let (wire, macs) = (net.wire(), net.macs());
    let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    net.client.run(|| {
        std::thread::scope(|scope| {
            let client = || {
                while !over.load(Ordering::SeqCst) {
                    let mut stream = connect();
                    let id = served.fetch_add(1, Ordering::SeqCst);
                    echo(&mut stream, id, 64);
                    close(stream);
                    // Closing first costs a port for a minute.
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            scope.spawn(client);
            scope.spawn(client);
            flood(&wire, macs, SYNS);
            // Some that began under the flood end after it.
            over.store(true, Ordering::SeqCst);
        });
    });
    let served = served.into_inner();
    eprintln!("{nic:?}: {served} clients served under the flood");
    assert!(served > 20, "{nic:?}: only {served} clients were served");
    net.share();
    answer_half_open(&service, &wire, macs);
    let stats = service.finish(PATIENCE);
    assert!(stats.total("syn_cookies") > 0, "{nic:?}: no flood: {stats}");
    assert!(stats.total("accepted") >= served, "{stats}");
}

#[test]
fn a_syn_flood_over_tap_does_not_keep_clients_out() {
    syn_flood("a_syn_flood_over_tap_does_not_keep_clients_out", Nic::Tap);
}

#[test]
fn a_syn_flood_over_afxdp_does_not_keep_clients_out() {
    syn_flood("a_syn_flood_over_afxdp_does_not_keep_clients_out", Nic::Afxdp);
}

/// Half of the SYNs claim to come from our network, half from anywhere behind the gateway.
fn flood(wire: &PacketSocket, macs: Macs, syns: u64) {
    let mut rng = Rng::new(5);
    for i in 0..syns {
        let source = if i % 2 == 0 {
            Ipv4Addr::new(10, 88, 128 + rng.below(128) as u8, rng.below(256) as u8)
        } else {
            Ipv4Addr::from(0xc612_0000 | rng.below(1 << 17) as u32)
        };
        let syn = Segment {
            from: SocketAddrV4::new(source, 1024 + rng.below(60_000) as u16),
            seq: rng.next_u64() as u32,
            flags: SYN,
            options: vec![2, 4, 5, 180],
            payload: Vec::new(),
            ..stranger(macs)
        };
        // A full queue is a packet lost.
        let _ = wire.send(&syn.frame());
        // Faster than this the queues in front of the dataplane overflow, honest SYNs with the
        // others, and nothing is learnt about the dataplane.
        if i % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the hosts behind the forged addresses would do: answer ARP, and reset what they never
/// opened. Ends when no connection is half open.
fn answer_half_open(service: &Service, wire: &PacketSocket, macs: Macs) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() > Duration::from_millis(200) {
            looked = Instant::now();
            let stats = service.stats();
            if stats.total("half_open") == 0 {
                return;
            }
            assert!(Instant::now() < end, "half-open connections stay: {stats}");
        }
        let frame = wire.receive(Duration::from_millis(50)).expect("receive");
        let Some(answer) = frame.and_then(|frame| answer(&frame, macs)) else { continue };
        // A full queue loses it; the question comes again.
        let _ = wire.send(&answer);
    }
}

fn answer(frame: &[u8], macs: Macs) -> Option<Vec<u8>> {
    if frame.len() >= 42 && frame[12..14] == [8, 6] && frame[21] == 1 {
        let asked = frames::ip_at(frame, 38);
        let known = asked == CLIENT || asked == *SERVICE.ip();
        let answer = || frames::arp(macs, 2, (macs.from, asked), (macs.to, *SERVICE.ip()));
        return (!known).then(answer);
    }
    let seen = frames::read_tcp(frame)?;
    let foreign = *seen.to.ip() != CLIENT && seen.flags == SYN | ACK;
    let reset =
        Segment { from: seen.to, seq: seen.ack, flags: RST, payload: Vec::new(), ..stranger(macs) };
    foreign.then(|| reset.frame())
}
