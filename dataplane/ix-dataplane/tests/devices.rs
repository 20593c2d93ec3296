//! Several devices: what comes in by one is answered by its own gateway, and one that takes nothing
//! does not keep the others from sending.
use crate::peer::listen;
use ix_abi::{Call, CallSlot, Endpoint, EventSlot, SgArray, event_kind};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{
    Checksum, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, TcpHeader, TcpOptions,
    TcpPacket, ipv4,
};

const OURS: [IpAddr; 2] = [IpAddr::v4([10, 1, 0, 2]), IpAddr::v4([10, 2, 0, 2])];
const GATEWAYS: [IpAddr; 2] = [IpAddr::v4([10, 1, 0, 1]), IpAddr::v4([10, 2, 0, 1])];
const GATEWAY_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
/// A host behind the gateways.
const FAR: IpAddr = IpAddr::v4([192, 0, 2, 7]);
/// Frames for building packets.
const TX_FRAMES: usize = 1024;

struct Host {
    rig: BareRig,
    devices: [SimDevice; 2],
    clock: VirtualClock,
}

/// A segment that has left, with the Ethernet address that it went to.
struct Left {
    packet: TcpPacket,
    payload_len: usize,
}

impl Host {
    /// `wire`: how many frames the first device sends until they are taken off the wire.
    fn new(wire: usize) -> Host {
        let clock = VirtualClock::default();
        let device = |nth: usize, wire| {
            let mac = [2, 0, 0, 0, 0, nth as u8 + 1];
            SimDevice::new(SimOptions { mac, wire, ..SimOptions::default() }, &clock)
        };
        let devices = [device(0, wire), device(1, usize::MAX)];
        let config = Config {
            host_addrs: OURS.map(|own| (own, 24)).to_vec(),
            gateway_addrs: GATEWAYS.to_vec(),
            arp: GATEWAYS.into_iter().zip(GATEWAY_MACS).collect(),
            ..Config::default()
        };
        let sizes = Some(Sizes { rx_frames: 1024, tx_frames: TX_FRAMES, arena_bytes: 2 << 20 });
        let options = RigOptions { config, sizes, clock: clock.clone() };
        let rig = BareRig::with_devices(options, devices.iter().map(SimDevice::nics).collect());
        let mut host = Host { rig, devices, clock };
        host.run(&[listen()]);
        host
    }

    fn run(&mut self, calls: &[CallSlot]) -> (Vec<i64>, Vec<EventSlot>) {
        self.rig.run(0, calls, self.clock.now_us())
    }

    /// A segment of the far host arrives by a device, from its gateway.
    fn deliver(
        &mut self,
        nth: usize,
        port: u16,
        flags: TcpFlags,
        seq: Seq,
        ack: Seq,
    ) -> Vec<EventSlot> {
        let link = FrameHeader {
            eth_src: GATEWAY_MACS[nth],
            eth_dst: self.devices[nth].options().mac,
            src: FAR,
            dst: OURS[nth],
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            ident: 1,
        };
        let header = TcpHeader {
            src_port: port,
            dst_port: 80,
            seq,
            ack,
            flags,
            window: u16::MAX,
            urgent: 0,
            options: TcpOptions::NONE,
        };
        let mut frame = vec![0; 128];
        let len = link.emit_tcp(&mut frame, &header, 0, Checksum::new());
        frame.truncate(len.max(60));
        self.devices[nth].deliver(frame);
        self.run(&[]).1
    }

    /// The segments that have left by a device.
    fn left(&mut self, nth: usize) -> Vec<Left> {
        self.run(&[]);
        let frames = std::iter::from_fn(|| self.devices[nth].next_sent());
        let segment = |frame: Vec<u8>| match ix_wire::parse(&frame, RxChecks::default()) {
            Ok(Parsed::Tcp(packet)) => {
                Some(Left { packet, payload_len: packet.payload.len.into() })
            }
            _ => None,
        };
        frames.filter_map(segment).collect()
    }

    /// A connection that the far host has made by a device: its handle, and our next number.
    fn accepted(&mut self, nth: usize, port: u16) -> (u64, Seq) {
        self.deliver(nth, port, TcpFlags::SYN, Seq(1), Seq(0));
        let ours = self.left(nth).last().expect("a SYN-ACK").packet.header.seq + 1;
        let events = self.deliver(nth, port, TcpFlags::ACK, Seq(2), ours);
        let knock = events.iter().find(|e| e.kind == event_kind::KNOCK).expect("a knock");
        let handle = knock.handle;
        self.run(&[Call::Accept { handle, cookie: port.into() }.encode()]);
        (handle, ours)
    }
}

#[test]
fn what_comes_in_by_a_device_is_answered_by_its_gateway() {
    let mut host = Host::new(usize::MAX);
    for nth in [1, 0] {
        host.deliver(nth, 1000, TcpFlags::SYN, Seq(1), Seq(0));
        let left = host.left(nth);
        let [syn_ack] = &left[..] else { panic!("{} segments", left.len()) };
        assert_eq!(syn_ack.packet.ip.eth_dst, GATEWAY_MACS[nth]);
        assert_eq!(syn_ack.packet.ip.src, OURS[nth]);
        assert!(host.left(1 - nth).is_empty());
    }
}

#[test]
fn what_leaves_from_an_address_goes_by_its_devices_gateway() {
    let mut host = Host::new(usize::MAX);
    let to = Endpoint { addr: FAR.0, port: 9 };
    for nth in [0, 1] {
        let from = Endpoint { addr: OURS[nth].0, port: 0 };
        let call = Call::ConnectFrom { cookie: 1, to, congestion: None, from };
        assert!(host.run(&[call.encode()]).0[0] > 0, "device {nth}");
        let left = host.left(nth);
        assert_eq!(left[0].packet.ip.eth_dst, GATEWAY_MACS[nth]);
    }
}

#[test]
fn a_device_that_takes_nothing_leaves_frames_to_others() {
    let mut host = Host::new(8);
    let ours: Vec<u64> = (0..150).map(|n| host.accepted(0, 1000 + n).0).collect();
    let (other, _) = host.accepted(1, 2000);
    // From now on nobody takes what the first device sends.
    let (base, bytes) = host.rig.transmit_memory();
    let sg = SgArray { addr: base, entries: 1 };
    host.rig.write(base, &[base + 64, bytes.min(100_000) - 64]);
    for handle in ours {
        let codes =
            host.run(&[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode()]).0;
        assert!(codes[0] > 10_000, "{codes:?}");
    }
    host.rig.write(base, &[base + 64, 1000]);
    assert_eq!(
        host.run(&[Call::SendV { handle: other, sg, fin: false, eor: false, done: 0 }.encode()]).0,
        [1000]
    );
    let sent: usize = host.left(1).iter().map(|left| left.payload_len).sum();
    assert_eq!(sent, 1000);
}

/// Flows with data in flight leave frames to others on their device, and the rest of what they have
/// leaves as there is room, without a timeout.
#[test]
fn flows_with_data_in_flight_leave_frames_to_others() {
    const WIRE: usize = 8;
    const BULK: u16 = 150;
    let mut host = Host::new(WIRE);
    let ours: Vec<u64> = (0..BULK).map(|n| host.accepted(0, 1000 + n).0).collect();
    let (other, _) = host.accepted(0, 2000);
    let (base, bytes) = host.rig.transmit_memory();
    let sg = SgArray { addr: base, entries: 1 };
    host.rig.write(base, &[base + 64, bytes.min(100_000) - 64]);
    for handle in ours {
        let codes =
            host.run(&[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode()]).0;
        assert!(codes[0] > 10_000, "{codes:?}");
    }
    host.rig.write(base, &[base + 64, 1000]);
    assert_eq!(
        host.run(&[Call::SendV { handle: other, sg, fin: false, eor: false, done: 0 }.encode()]).0,
        [1000]
    );
    // The wire takes them one after the other; time stands still.
    let mut of_flow = std::collections::BTreeMap::<u16, Vec<[usize; 2]>>::new();
    let mut frames = 0;
    loop {
        let left = host.left(0);
        if left.is_empty() {
            break;
        }
        for Left { packet, payload_len } in left {
            frames += 1;
            of_flow.entry(packet.header.dst_port).or_default().push([frames, payload_len]);
        }
    }
    let other = of_flow.remove(&2000).expect("the other flow sends");
    assert!(other[0][0] < TX_FRAMES * 3 / 4, "behind {} frames", other[0][0]);
    // The initial window of segments without an option about their size.
    assert_eq!(of_flow.len(), usize::from(BULK));
    for (port, sent) in of_flow {
        assert_eq!(sent.iter().map(|[_, bytes]| bytes).sum::<usize>(), 5360, "{port}: {sent:?}");
    }
}
