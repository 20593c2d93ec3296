//! The simulated device from both of its ends.
use ix_mem::{HEADROOM_BYTES, PacketMemory, Pool, Sizes};
use ix_nic::{Nic, SetReta, frame_flow_group};
use ix_random::Rng;
use ix_rig::{Promise, SimDevice, SimNic, SimOptions, Spread, VirtualClock};
use ix_wire::{Checksum, FlowHash, FrameHeader, IpAddr, ipv4};
use std::collections::VecDeque;

const KEY: [u64; 2] = [3, 4];

fn device(options: SimOptions) -> SimDevice {
    SimDevice::new(options, &VirtualClock::default())
}

/// The dataplane's end: packet memory, and packets that wait to be sent.
struct Host {
    memory: PacketMemory,
    rx: Pool,
    tx: Pool,
    packets: VecDeque<ix_mem::Mbuf>,
}

impl Host {
    fn new() -> Host {
        let sizes = Sizes { rx_frames: 16, tx_frames: 16, arena_bytes: 0 };
        let memory = PacketMemory::new(sizes).unwrap();
        // SAFETY: the only pools of this memory.
        let (rx, tx) = unsafe { ix_dataplane::pools(&memory, 1, [16, 16]) }.remove(0);
        Host { memory, rx, tx, packets: VecDeque::new() }
    }

    /// At most `max` packets: their bytes, and whether each is continued.
    fn receive(&mut self, nic: &mut SimNic, max: usize) -> Vec<(Vec<u8>, bool)> {
        let mut got = Vec::new();
        assert_eq!(nic.receive(&self.memory, &mut self.rx, max, &mut got), got.len());
        let take = |packet: ix_nic::RxPacket| {
            let bytes = packet.mbuf.bytes(&self.memory).to_vec();
            self.rx.put(packet.mbuf);
            (bytes, packet.more)
        };
        got.into_iter().map(take).collect()
    }

    fn queue(&mut self, frame: &[u8]) {
        let mut mbuf = self.tx.take().unwrap();
        mbuf.set_range(HEADROOM_BYTES, frame.len());
        mbuf.bytes_mut(&self.memory).copy_from_slice(frame);
        self.packets.push_back(mbuf);
    }

    /// Hands over what waits, with or without ringing the doorbell.
    fn send(&mut self, nic: &mut SimNic, rings: bool) {
        nic.transmit(&self.memory, &mut self.tx, &mut self.packets);
        if rings {
            nic.kick(&self.memory, &mut self.tx);
        }
    }

    fn assert_nothing_leaks(&self) {
        assert_eq!((self.rx.in_use(), self.tx.in_use()), (0, 0));
    }
}

fn datagram(src_port: u16) -> Vec<u8> {
    let header = FrameHeader {
        eth_src: [2, 0, 0, 0, 0, 9],
        eth_dst: [2, 0, 0, 0, 0, 1],
        src: IpAddr::v4([10, 0, 0, 9]),
        dst: IpAddr::v4([10, 0, 0, 1]),
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident: 1,
    };
    let mut frame = vec![0; 60];
    header.emit_udp(&mut frame, src_port, 80, 18, Checksum::of(&[0; 18]));
    frame
}

#[test]
fn the_table_says_where_frames_come_in() {
    let hash = FlowHash::new(KEY);
    let spread = Spread::Table(hash);
    let device = device(SimOptions { queues: 3, spread, ..SimOptions::default() });
    let mut host = Host::new();
    let mut nics: Vec<SimNic> = (0..3).map(|queue| device.queue(queue)).collect();
    let hash = FlowHash::new(KEY);
    let mut used = [false; 3];
    for port in 0..200 {
        let frame = datagram(port);
        // What TAP's program computes.
        let group = frame_flow_group(&hash, &frame);
        assert_eq!(device.deliver(frame.clone()), group % 3);
        assert_eq!(host.receive(&mut nics[group % 3], 64), [(frame.clone(), false)]);
        used[group % 3] = true;
        device.set(group, 2).unwrap();
        assert_eq!(device.deliver(frame.clone()), 2);
        assert_eq!(host.receive(&mut nics[2], 64), [(frame, false)]);
        device.set(group, group % 3).unwrap();
    }
    assert_eq!(used, [true; 3]);
    assert!(device.set(128, 0).is_err() && device.set(0, 3).is_err());
    let arp = vec![0; 60];
    assert_eq!(device.deliver(arp.clone()), 0, "what is not IPv4 is flow group 0");
    device.deliver_on(1, arp);
    assert_eq!(host.receive(&mut nics[1], 64).len(), 1);
}

#[test]
fn a_change_of_the_table_may_hold_later() {
    let clock = VirtualClock::new(100);
    let spread = Spread::Table(FlowHash::new(KEY));
    let options = SimOptions { queues: 2, spread, lag_us: Some(50), ..SimOptions::default() };
    let device = SimDevice::new(options, &clock);
    let frame = datagram(1);
    let (queue, group) =
        (device.deliver(frame.clone()), frame_flow_group(&FlowHash::new(KEY), &frame));
    device.set(group, 1 - queue).unwrap();
    for (now_us, wanted) in [(100, queue), (149, queue), (150, 1 - queue)] {
        clock.set(now_us);
        device.tick();
        assert_eq!(device.deliver(frame.clone()), wanted, "{now_us}");
        assert_eq!(device.settled(), now_us == 150);
    }
    let silent = SimOptions { promise: Promise::Silent, ..SimOptions::default() };
    assert!(!SimDevice::new(silent, &clock).settled());
}

#[test]
fn bytes_go_through_both_ways_and_frames_come_back() {
    let spread = Spread::Random(Rng::new(1));
    let device = device(SimOptions { ring: 8, spread, ..SimOptions::default() });
    let (mut host, mut nic) = (Host::new(), device.queue(0));
    for i in 0..10u8 {
        device.deliver(vec![i; 100]);
    }
    assert_eq!(nic.drops().rx_overrun, 2);
    assert_eq!(nic.backlog(), Some(8));
    assert!(!nic.arm());
    let got = [host.receive(&mut nic, 5), host.receive(&mut nic, 5)];
    assert_eq!([got[0].len(), got[1].len()], [5, 3]);
    assert!(got.concat().into_iter().eq((0..8).map(|i| (vec![i; 100], false))));
    assert!(nic.arm());
    for i in 0..10u8 {
        host.queue(&[i; 60]);
    }
    host.send(&mut nic, false);
    assert_eq!(host.packets.len(), 2, "the ring has 8 slots");
    assert_eq!(device.next_sent(), None, "nothing leaves before the doorbell");
    host.send(&mut nic, true);
    host.send(&mut nic, true);
    assert!((0..10u8).all(|i| device.next_sent() == Some(vec![i; 60])));
    host.assert_nothing_leaks();
}

#[test]
fn a_long_frame_comes_in_pieces_or_not_yet() {
    let device = device(SimOptions::default());
    let (mut host, mut nic) = (Host::new(), device.queue(0));
    let long: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    device.deliver(long.clone());
    let taken: Vec<_> = (0..14).map(|_| host.rx.take().unwrap()).collect();
    assert!(host.receive(&mut nic, 64).is_empty(), "two mbufs are too few");
    taken.into_iter().for_each(|mbuf| host.rx.put(mbuf));
    // A frame comes whole, were it beyond what was asked for.
    let got = host.receive(&mut nic, 2);
    assert_eq!(got.iter().map(|(_, more)| *more).collect::<Vec<_>>(), [true, true, false]);
    let bytes: Vec<u8> = got.into_iter().flat_map(|(bytes, _)| bytes).collect();
    assert_eq!(bytes, long);
    host.assert_nothing_leaks();
}

#[test]
fn full_queues_and_dead_links_lose_and_count() {
    let device = device(SimOptions { ring: 10, wire: 4, fences: true, ..SimOptions::default() });
    let (mut host, mut nic) = (Host::new(), device.queue(0));
    for port in 0..15 {
        device.deliver(datagram(port));
    }
    assert_eq!(nic.drops().rx_overrun, 5);
    assert_eq!(host.receive(&mut nic, 64).len(), 10);
    // What finds no room stays with the sender, in order.
    for port in 0..6 {
        host.queue(&datagram(port));
    }
    host.send(&mut nic, true);
    let fence = nic.fence().expect("this device says what it has sent");
    assert!(!fence.passed());
    let sent = device.take_sent();
    assert_eq!((sent.len(), host.packets.len()), (4, 2));
    assert!(fence.passed());
    host.send(&mut nic, true);
    let all: Vec<_> = sent.into_iter().chain(device.take_sent()).collect();
    assert!(all.into_iter().eq((0..6).map(|port| (0, datagram(port)))));
    assert!(host.packets.is_empty());
    device.set_link(false);
    device.deliver(datagram(1));
    host.queue(&datagram(1));
    host.send(&mut nic, true);
    assert_eq!((host.receive(&mut nic, 64).len(), device.take_sent().len()), (0, 0));
    assert_eq!(nic.drops().tx_failed, 1);
    assert!(nic.fence().expect("as before").passed(), "a lost frame overtakes none");
    host.assert_nothing_leaks();
}
