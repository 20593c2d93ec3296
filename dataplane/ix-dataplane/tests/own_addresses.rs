//! Packets from one of our addresses to another, or to itself: they never leave, whatever the next
//! hop is, they do not keep devices from being served, and no frame is taken that devices need.
use crate::peer::{listen, segment};
use ix_abi::{Call, CallSlot, Endpoint, Event, EventSlot, SgArray};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{IpAddr, Parsed, RxChecks, Seq, TcpFlags};

const OURS: [IpAddr; 2] = [IpAddr::v4([10, 0, 0, 2]), IpAddr::v4([10, 2, 0, 2])];
const GATEWAYS: [IpAddr; 2] = [IpAddr::v4([10, 0, 0, 1]), IpAddr::v4([10, 2, 0, 1])];
const GATEWAY_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
/// A host behind the gateways.
const FAR: IpAddr = IpAddr::v4([192, 0, 2, 7]);
const PORT: u16 = 4000;
/// Bytes of a scatter-gather array of one entry.
const ARRAY: u64 = 64;

struct Host {
    rig: BareRig,
    devices: [SimDevice; 2],
    clock: VirtualClock,
}

impl Host {
    /// Each address is a device's. All transmit memory is one scatter-gather array and its bytes.
    fn new(rx_frames: usize) -> Host {
        let clock = VirtualClock::default();
        let devices = [1, 2].map(|nth| {
            let mac = [2, 0, 0, 0, 0, nth];
            SimDevice::new(SimOptions { mac, ..SimOptions::default() }, &clock)
        });
        let config = Config {
            host_addrs: OURS.map(|own| (own, 24)).to_vec(),
            gateway_addrs: GATEWAYS.to_vec(),
            arp: GATEWAYS.into_iter().zip(GATEWAY_MACS).collect(),
            ..Config::default()
        };
        let sizes = Some(Sizes { rx_frames, tx_frames: 2048, arena_bytes: 2 << 20 });
        let options = RigOptions { config, sizes, clock: clock.clone() };
        let rig = BareRig::with_devices(options, devices.iter().map(SimDevice::nics).collect());
        Host { rig, devices, clock }
    }

    fn run(&mut self, calls: &[CallSlot]) -> (Vec<i64>, Vec<Event>) {
        let (codes, slots) = self.rig.run(0, calls, self.clock.now_us());
        let decode = |slot: &EventSlot| Event::decode(slot).expect("an event");
        (codes, slots.iter().map(decode).collect())
    }

    /// A block of transmit memory of this many bytes.
    fn bytes(&mut self, len: u64) -> SgArray {
        let addr = self.rig.transmit_memory().0;
        self.rig.write(addr, &[addr + ARRAY, len]);
        SgArray { addr, entries: 1 }
    }

    fn socket(&mut self, at: IpAddr) -> u32 {
        let at = Endpoint { addr: at.0, port: PORT };
        let (codes, _) = self.run(&[Call::UdpBind { at, cookie: 5 }.encode()]);
        u32::try_from(codes[0]).expect("a socket")
    }

    fn datagram(&mut self, socket: u32, to: IpAddr) -> CallSlot {
        let (to, sg) = (Endpoint { addr: to.0, port: PORT }, self.bytes(32));
        Call::UdpSendV { socket, to, sg, cookie: 7 }.encode()
    }

    fn drops(&self, reason: &str) -> u64 {
        let drops = self.rig.metrics();
        drops.threads[0].get(&format!("drops.{reason}")).expect("a reason")
    }

    fn left(&self, nth: usize) -> Vec<Vec<u8>> {
        self.devices[nth].take_sent().into_iter().map(|(_, frame)| frame).collect()
    }
}

fn datagrams(events: &[Event]) -> Vec<u64> {
    let data = |event: &Event| match event {
        Event::UdpRecv { data, .. } => Some(data.addr),
        _ => None,
    };
    events.iter().filter_map(data).collect()
}

/// The next hop by the second device to the first one's address is a gateway.
#[test]
fn an_own_address_behind_a_gateway_that_is_known_is_ours() {
    let mut host = Host::new(1024);
    let (first, second) = (host.socket(OURS[0]), host.socket(OURS[1]));
    let far = host.datagram(second, FAR);
    host.run(&[far]);
    host.run(&[]);
    let by_gateway =
        |frames: &[Vec<u8>]| frames.iter().filter(|f| f[..6] == GATEWAY_MACS[1]).count();
    assert_eq!(by_gateway(&host.left(1)), 1, "the gateway is known from here on");
    // What announces the address.
    host.left(0);
    let own = host.datagram(second, OURS[0]);
    let (codes, mut events) = host.run(&[own]);
    assert_eq!(codes, [32]);
    events.extend(host.run(&[]).1);
    assert_eq!((host.left(0).len(), by_gateway(&host.left(1))), (0, 0), "nothing leaves");
    assert_eq!(datagrams(&events).len(), 1);
    let own = host.datagram(first, OURS[1]);
    let mut events = host.run(&[own]).1;
    events.extend(host.run(&[]).1);
    assert_eq!(datagrams(&events).len(), 1, "and back");
}

#[test]
fn devices_are_served_beside_packets_to_own_addresses() {
    let mut host = Host::new(2048);
    host.run(&[listen()]);
    let socket = host.socket(OURS[0]);
    let own = host.datagram(socket, OURS[0]);
    host.run(&[]);
    host.left(0);
    let mac = host.devices[0].options().mac;
    host.devices[0].deliver(segment(mac, 1000, TcpFlags::SYN, Seq(1), Seq(0)));
    // Several batches of them, and the segment comes with the first.
    let (_, events) = host.run(&[own; 300]);
    assert!(datagrams(&events).len() >= 16, "{}", datagrams(&events).len());
    host.run(&[]);
    let is_reply = |frame: &Vec<u8>| {
        let parsed = ix_wire::parse(frame, RxChecks::default());
        matches!(parsed, Ok(Parsed::Tcp(p)) if p.header.flags == TcpFlags::SYN | TcpFlags::ACK)
    };
    assert!(host.left(0).iter().any(is_reply), "the peer is answered in the next cycle");
}

#[test]
fn packets_to_own_addresses_leave_frames_for_others() {
    for (rx_frames, most) in [(1024, 769), (4096, 1024)] {
        let mut host = Host::new(rx_frames);
        let socket = host.socket(OURS[0]);
        let own = host.datagram(socket, OURS[0]);
        let (codes, events) = host.run(&vec![own; 1500]);
        let taken = codes.iter().filter(|code| **code == 32).count();
        let mut heard = datagrams(&events);
        let mut given = 0;
        for _ in 0..100 {
            let back = heard[given..].iter().map(|data| Call::UdpRecvDone { data: *data }.encode());
            let back: Vec<CallSlot> = back.collect();
            given = heard.len();
            heard.extend(datagrams(&host.run(&back).1));
        }
        assert_eq!((heard.len(), host.drops("no_rx_frame")), (most, (taken - most) as u64));
    }
}

/// A bulk connection to the own address goes on at its rate, although its queue is bounded.
#[test]
fn a_stream_to_the_own_address_is_fast() {
    const BYTES: u64 = 64 << 20;
    const PIECE: u64 = 256 << 10;
    const CYCLE_US: u64 = 20;
    let mut host = Host::new(8192);
    let to = Endpoint { addr: OURS[0].0, port: 80 };
    let connect = Call::Connect { cookie: 2, to, congestion: None, local_port: 0 };
    let mut calls = vec![listen(), connect.encode()];
    let (mut given, mut received, mut cycles, mut sender) = (0, 0, 0, None);
    let sg = host.bytes(PIECE);
    while received < BYTES {
        host.clock.advance(CYCLE_US);
        let (codes, events) = host.run(&calls);
        let is_send = |call: &CallSlot| matches!(Call::decode(call), Ok(Call::SendV { .. }));
        let sends = calls.iter().zip(&codes).filter(|(call, _)| is_send(call));
        given += sends.map(|(_, code)| u64::try_from(*code).expect("bytes")).sum::<u64>();
        calls.clear();
        for event in events {
            match event {
                Event::Knock { handle, .. } => {
                    calls.push(Call::Accept { handle, cookie: 3 }.encode());
                }
                Event::Connected { handle, outcome, .. } => {
                    assert_eq!(outcome, Ok(()));
                    sender = Some(handle);
                }
                Event::Recv { handle, data, .. } => {
                    received += u64::from(data.len);
                    calls.push(Call::RecvDone { handle, bytes: data.len.into() }.encode());
                }
                Event::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if let Some(handle) = sender.filter(|_| given < BYTES + PIECE) {
            calls.push(Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode());
        }
        cycles += 1;
        assert!(cycles < 100_000, "{received} bytes");
    }
    let rate = BYTES / cycles;
    println!("{rate} bytes in a cycle, {} lost", host.drops("no_rx_frame"));
    // Half of a batch of 64, of which every other packet is an acknowledgement at worst.
    assert!(rate >= 8 * 1460, "{rate} bytes in a cycle");
}
