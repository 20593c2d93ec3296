//! Frames in several buffers: a long one whose transport checksum is wrong is dropped and counted,
//! as a short one is.
use crate::peer::{OURS, PEER, PEER_MAC, listen, segment, segment_with};
use ix_abi::{Call, CallSlot, EventSlot, event_kind};
use ix_dataplane::Config;
use ix_mem::{ROOM_BYTES, Sizes};
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Parsed, RxChecks, Seq, TcpFlags};

/// Three buffers.
const BYTES: usize = 2 * ROOM_BYTES + 100;

struct Host {
    rig: BareRig,
    device: SimDevice,
}

impl Host {
    /// With a connection from port 1000 that has sent nothing yet; and our next sequence number.
    fn connected() -> (Host, Seq) {
        let clock = VirtualClock::default();
        let device = SimDevice::new(SimOptions::default(), &clock);
        let config = Config { arp: vec![(PEER, PEER_MAC)], ..Config::with_address(OURS, 24) };
        let sizes = Some(Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 });
        let rig = BareRig::new(RigOptions { config, sizes, clock }, device.nics());
        let mut host = Host { rig, device };
        host.run(&[listen()]);
        let mac = host.device.options().mac;
        host.deliver(segment(mac, 1000, TcpFlags::SYN, Seq(1), Seq(0)));
        host.run(&[]);
        let sent = std::iter::from_fn(|| host.device.next_sent());
        let ours = sent.filter_map(|frame| match ix_wire::parse(&frame, RxChecks::default()) {
            Ok(Parsed::Tcp(segment)) => Some(segment.header.seq + 1),
            _ => None,
        });
        let ours = ours.last().expect("a SYN-ACK");
        let knocks = host.deliver(segment(mac, 1000, TcpFlags::ACK, Seq(2), ours));
        let knock = knocks.iter().find(|e| e.kind == event_kind::KNOCK).expect("a knock");
        let accept = Call::Accept { handle: knock.handle, cookie: 2 };
        host.run(&[accept.encode()]);
        (host, ours)
    }

    fn run(&mut self, calls: &[CallSlot]) -> Vec<EventSlot> {
        self.rig.run(0, calls, 0).1
    }

    fn deliver(&mut self, frame: Vec<u8>) -> Vec<EventSlot> {
        self.device.deliver(frame);
        self.run(&[])
    }

    fn total(&self, counter: &str) -> u64 {
        self.rig.metrics().total(counter).expect("a counter")
    }
}

#[test]
fn the_checksum_covers_all_buffers() {
    let (mut host, ours) = Host::connected();
    let data: Vec<u8> = (0..BYTES).map(|n| n as u8).collect();
    let mac = host.device.options().mac;
    let good = segment_with(mac, 1000, TcpFlags::ACK, (Seq(2), ours), &data);
    let received =
        |events: &[EventSlot]| events.iter().filter(|e| e.kind == event_kind::RECV).count();
    // Of each buffer one byte, and the first one of all that the parser does not see.
    let all = [good.len() - BYTES, ROOM_BYTES, 2 * ROOM_BYTES, good.len() - 1];
    for (nth, at) in all.into_iter().enumerate() {
        let mut bad = good.clone();
        bad[at] ^= 4;
        assert_eq!(received(&host.deliver(bad)), 0, "byte {at}");
        assert_eq!(host.total("drops.tcp_bad_checksum"), nth as u64 + 1);
    }
    assert_eq!(received(&host.deliver(good)), 3);
    assert_eq!(host.total("drops.tcp_bad_checksum"), all.len() as u64);
}
