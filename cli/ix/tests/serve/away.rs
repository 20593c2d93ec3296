//! A service that keeps its elastic thread half a second for each message: meanwhile the network is
//! served all the same.
use crate::support::frames::{self, Macs};
use crate::support::traffic::{close, expect, message};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_testbed::PacketSocket;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Each message of this size takes the service so long.
const SIZE: usize = 1_000_000;
const WORK_US: &str = "500000";
/// Messages of the run, and no more than these.
const MESSAGES: u64 = 4;

fn is_away(service: &Service) -> bool {
    service.stats().text("threads.0.state") == "non-responsive"
}

/// Whether this happens while the application is away from before until after: tried again and
/// again.
fn happens_while_away(service: &Service, what: &str, mut happens: impl FnMut() -> bool) {
    eventually(what, || is_away(service) && happens() && is_away(service));
}

/// Sends a frame until one that is wanted comes back, or a moment has passed.
fn answered(wire: &PacketSocket, frame: &[u8], wanted: impl Fn(&[u8]) -> bool) -> bool {
    wire.send(frame).expect("sends");
    let end = Instant::now() + Duration::from_millis(100);
    while let Ok(Some(seen)) = wire.receive(Duration::from_millis(20)) {
        if wanted(&seen) {
            return true;
        }
        if Instant::now() > end {
            break;
        }
    }
    false
}

fn pinged(wire: &PacketSocket, macs: Macs) -> bool {
    let ping = frames::ping(macs, CLIENT, *SERVICE.ip(), b"are you there");
    let is_reply = |frame: &[u8]| {
        frame.len() > 34 && frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 0
    };
    answered(wire, &ping, is_reply)
}

fn resolved(wire: &PacketSocket, macs: Macs) -> bool {
    let request = frames::arp(macs, 1, (macs.from, CLIENT), ([0; 6], *SERVICE.ip()));
    answered(wire, &request, |frame| frame.len() > 22 && frame[12..14] == [8, 6] && frame[21] == 2)
}

/// Whether everything that was written has been acknowledged.
fn acknowledged(stream: &TcpStream) -> bool {
    let mut left: libc::c_int = 0;
    // SAFETY: writes an int to a local; the descriptor is open.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut left) };
    assert_eq!(asked, 0);
    left == 0
}

fn serves_while_away(test: &str, nic: Nic) {
    let Some(net) = TestNet::alone(test, nic, 1) else { return };
    let service = net.serve(&[&SIZE.to_string(), "--work-us", WORK_US]);
    let (wire, macs) = (net.wire(), net.macs());
    let (mut bulk, mut other) = (net.connect(), net.connect());
    let mut sender = bulk.try_clone().expect("a second handle");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            (0..MESSAGES)
                .for_each(|id| sender.write_all(&message(id, SIZE)).expect("it takes all"));
        });
        let reader = scope.spawn(move || {
            (0..MESSAGES).for_each(|id| expect(&mut bulk, &message(id, SIZE)));
            bulk
        });
        happens_while_away(&service, "a ping is answered", || pinged(&wire, macs));
        happens_while_away(&service, "an ARP request is answered", || resolved(&wire, macs));
        let mut begun = false;
        happens_while_away(&service, "data is acknowledged", || {
            if !begun {
                other.write_all(&[7; 100]).expect("writes");
                begun = true;
            }
            let end = Instant::now() + Duration::from_millis(100);
            while !acknowledged(&other) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            let is_acknowledged = acknowledged(&other);
            // The next try is with new data, for this may be acknowledged when the service is back.
            begun = !is_acknowledged;
            is_acknowledged
        });
        // Everything comes back as it was sent, and the connection lives.
        close(reader.join().expect("every byte"));
    });
    let stats = service.stats();
    assert!(stats.total("away_turns") > 0, "{stats}");
    assert_eq!((stats.drops(), stats.total("device_rx_overrun")), (0, 0), "{stats}");
    drop(other);
    service.finish(PATIENCE);
}

#[test]
fn the_network_is_served_while_the_application_computes_on_tap() {
    serves_while_away("the_network_is_served_while_the_application_computes_on_tap", Nic::Tap);
}

#[test]
fn the_network_is_served_while_the_application_computes_on_afxdp() {
    serves_while_away("the_network_is_served_while_the_application_computes_on_afxdp", Nic::Afxdp);
}

/// Somebody who comes while the application is away is let in when it is back.
#[test]
fn who_comes_meanwhile_is_served_afterwards() {
    let Some(net) = TestNet::alone("who_comes_meanwhile_is_served_afterwards", Nic::Tap, 1) else {
        return;
    };
    let service = net.serve(&[&SIZE.to_string(), "--work-us", WORK_US]);
    let mut first = net.connect();
    first.write_all(&message(1, SIZE)).expect("it takes all");
    eventually("it is away", || is_away(&service));
    let mut later: Vec<TcpStream> = (0..8).map(|_| net.connect()).collect();
    expect(&mut first, &message(1, SIZE));
    // Of all there is one, and it ends.
    later.drain(..).for_each(close);
    close(first);
    service.finish(PATIENCE);
}
