//! A listener that asks for no particular backlog has the default one: so many connections may
//! wait to be accepted, and the next SYN is dropped and counted.
use crate::peer::{OURS, PEER, PEER_MAC, segment};
use ix_abi::{Call, Endpoint};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Parsed, RxChecks, Seq, TcpFlags};

const DEFAULT: u16 = 4096;

#[test]
fn a_listener_holds_the_default_backlog() {
    let clock = VirtualClock::default();
    let options = SimOptions::default();
    let device = SimDevice::new(options, &clock);
    let mac = device.options().mac;
    let config = Config { arp: vec![(PEER, PEER_MAC)], ..Config::with_address(OURS, 24) };
    let sizes = Some(Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 });
    let mut rig = BareRig::new(RigOptions { config, sizes, clock }, device.nics());
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 80 };
    let listen = Call::Listen { at, backlog: 0, cookie: 1 }.encode();
    let (codes, _) = rig.run(0, &[listen], 0);
    assert!(codes[0] > 0);
    device.take_sent(); // the announcement of our address
    // Nobody accepts.
    for n in 0..DEFAULT {
        device.deliver(segment(mac, 1000 + n, TcpFlags::SYN, Seq(1), Seq(0)));
        rig.run(0, &[], 0); // receives
        rig.run(0, &[], 0); // sends
        let reply = device.next_sent().expect("a SYN-ACK");
        let Ok(Parsed::Tcp(reply)) = ix_wire::parse(&reply, RxChecks::default()) else {
            panic!("no segment")
        };
        assert_eq!(reply.header.flags, TcpFlags::SYN | TcpFlags::ACK);
        device.deliver(segment(mac, 1000 + n, TcpFlags::ACK, Seq(2), reply.header.seq + 1));
        rig.run(0, &[], 0);
    }
    assert_eq!(rig.metrics().total("knocks"), Some(DEFAULT.into()));
    assert_eq!(rig.metrics().total("drops.backlog"), Some(0));
    device.deliver(segment(mac, 999, TcpFlags::SYN, Seq(1), Seq(0)));
    rig.run(0, &[], 0);
    rig.run(0, &[], 0);
    assert_eq!(device.next_sent(), None);
    assert_eq!(rig.metrics().total("drops.backlog"), Some(1));
}
