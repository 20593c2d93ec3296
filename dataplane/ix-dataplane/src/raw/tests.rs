//! Packet queues and signals in virtual time: what the application is told, and what leaves.
use crate::config::Config;
use crate::observe::metrics::{ControlPage, Snapshot};
use crate::test_rig::{TestRig, TestThread, device};
use ix_abi::{
    Call, CallError, Endpoint, Event, PacketInfo, SgArray, SgEntry, error, packet_flag, packet_kind,
};
use ix_mem::Sizes;
use ix_nic::{NicKind, XdpBind, XdpFeatures, XdpMode};
use ix_rig::SimDevice;
use ix_wire::{Checksum, FrameHeader, IpAddr, ipv4};
use std::sync::Arc;

pub(crate) const OURS: [u8; 4] = [10, 0, 0, 2];
pub(crate) const PEER: [u8; 4] = [10, 0, 0, 1];
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const FRAMES: usize = 64;
const SIZES: Sizes = Sizes { rx_frames: FRAMES, tx_frames: FRAMES, arena_bytes: 2 << 20 };

pub(crate) struct Host {
    pub(crate) device: SimDevice,
    pub(crate) threads: Vec<TestThread>,
    page: Arc<ControlPage>,
    pub(crate) arena: u64,
    now_us: u64,
}

pub(crate) fn host(threads: usize, rules: &str) -> Host {
    let mut config = Config::with_address(IpAddr::v4([10, 0, 0, 2]), 24);
    config.vnic_rules = rules.parse().unwrap();
    host_of(threads, config)
}

pub(crate) fn host_of(threads: usize, mut config: Config) -> Host {
    let device = device(threads);
    config.address_check = crate::config::AddressCheck::Off;
    let TestRig { threads, shared, page } = TestRig::new(config, SIZES, &device);
    let arena = shared.memory.arena().0 as u64;
    let mut host = Host { device, threads, page, arena, now_us: 0 };
    // Takes the rules over.
    host.cycle(0);
    host
}

pub(crate) fn link(dst: [u8; 6]) -> FrameHeader {
    FrameHeader {
        eth_src: PEER_MAC,
        eth_dst: dst,
        src: IpAddr::v4(PEER),
        dst: IpAddr::v4(OURS),
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident: 1,
    }
}

/// An IPv4 packet of this protocol to us.
fn packet(protocol: u8) -> Vec<u8> {
    let mut frame = vec![0x77; 14 + 20 + 30];
    link(MAC).emit(&mut frame, protocol, 30);
    frame
}

fn datagram(port: u16) -> Vec<u8> {
    let mut frame = vec![0x66; 14 + 28 + 30];
    link(MAC).emit_udp(&mut frame, 9, port, 30, Checksum::of(&[0x66; 30]));
    frame
}

fn of_type(dst: [u8; 6], src: [u8; 6], ethertype: u16) -> Vec<u8> {
    [&dst[..], &src, &ethertype.to_be_bytes(), &[0x55; 46]].concat()
}

impl Host {
    fn call(&mut self, thread: usize, call: Call) -> i64 {
        CallError::encode(self.threads[thread].elastic.run_call(call))
    }

    fn bind(&mut self, kind: u64, number: u64, cookie: u64) -> i64 {
        self.call(0, Call::PacketBind { device: 0, kind, number, cookie })
    }

    /// The events of a cycle; those of the calls before it as well.
    pub(crate) fn cycle(&mut self, thread: usize) -> Vec<Event> {
        self.now_us += 10;
        let thread = &mut self.threads[thread];
        let report = thread.elastic.turn(self.now_us);
        let slots = thread.arrays.first_events(report.events);
        let events = slots.map(|slot| Event::decode(&slot).expect("an event")).collect();
        thread.elastic.io.cx.attached[0].events.reset();
        events
    }

    pub(crate) fn hears(&mut self, frame: &[u8]) -> Vec<Event> {
        self.device.deliver(frame.to_vec());
        self.cycle(0)
    }

    /// Writes a frame into transmit memory in two pieces and sends it.
    fn send(&mut self, queue: i64, frame: &[u8]) -> i64 {
        self.send_at(0, queue, frame)
    }

    /// The same on another thread.
    fn send_at(&mut self, thread: usize, queue: i64, frame: &[u8]) -> i64 {
        let (head, rest) = frame.split_at(frame.len().min(20));
        let (array, data) = (self.arena, self.arena + 64);
        let pieces = [
            SgEntry { base: data, len: head.len() as u64 },
            SgEntry { base: data + 512, len: rest.len() as u64 },
        ];
        // SAFETY: transmit memory, which is this test's as it would be the application's.
        unsafe {
            (array as *mut [SgEntry; 2]).write(pieces);
            (data as *mut u8).copy_from(head.as_ptr(), head.len());
            ((data + 512) as *mut u8).copy_from(rest.as_ptr(), rest.len());
        }
        self.call(
            thread,
            Call::PacketSendV {
                queue: queue as u32,
                sg: SgArray { addr: array, entries: 2 },
                cookie: 99,
            },
        )
    }

    /// Lets time pass, and takes what was sent by then.
    pub(crate) fn waits(&mut self, us: u64) -> Vec<Vec<u8>> {
        self.now_us += us;
        self.cycle(0);
        let now_us = self.now_us;
        self.threads[0].elastic.run_housekeeping(now_us, true);
        self.cycle(0);
        self.device.take_sent().into_iter().map(|(_, frame)| frame).collect()
    }

    pub(crate) fn drops(&self, reason: &str) -> u64 {
        self.drops_of(0, reason)
    }

    fn drops_of(&self, thread: usize, reason: &str) -> u64 {
        Snapshot::of(&self.page).threads[thread].get(&format!("drops.{reason}")).unwrap()
    }

    /// Which threads' queues hear a frame that comes in at thread 0, after a turn of each and one
    /// more.
    fn heard_by(&mut self, frame: &[u8]) -> Vec<usize> {
        self.device.deliver_on(0, frame.to_vec());
        let mut heard = Vec::new();
        for thread in [0, 1, 0] {
            let events = self.cycle(thread);
            heard.extend(
                events.iter().filter(|e| matches!(e, Event::PacketRecv { .. })).map(|_| thread),
            );
        }
        heard
    }

    fn set_rules(&mut self, rules: &str) {
        self.threads[0].elastic.shared.vnic_rules.set(rules.parse().unwrap());
        (0..self.threads.len()).for_each(|thread| drop(self.cycle(thread)));
    }
}

/// What a receive filter gives to a queue comes there and nowhere else, wherever it comes in.
#[test]
fn a_filter_gives_packets_to_its_queue() {
    let mut host = host(2, "");
    host.cycle(1);
    for thread in 0..2 {
        let bound = host.call(
            thread,
            Call::PacketBind {
                device: 0,
                kind: packet_kind::ETHER_TYPE,
                number: 0x88b5,
                cookie: 7,
            },
        );
        assert!(bound > 0);
    }
    let frame = of_type(MAC, PEER_MAC, 0x88b5);
    assert_eq!(host.heard_by(&frame), [0], "where it comes in");
    for round in 0..100 {
        let queue = round % 2;
        host.set_rules(&format!("queue {queue} rx eth type 0x88b5"));
        assert_eq!(host.heard_by(&frame), [queue], "round {round}");
    }
    host.set_rules("rx eth type 0x88b5");
    assert_eq!(host.heard_by(&frame), [0]);
    // Others' filters and rates hold where it is heard.
    host.set_rules("queue 1 rx eth type 0x88b5 peer 02:00:00:00:00:09; queue 1 rate rx 1kpps");
    host.now_us += 1_000_000;
    let heard: usize = (0..10).map(|_| host.heard_by(&frame).len()).sum();
    assert_eq!((heard, host.drops_of(1, "rx_rate"), host.drops_of(0, "rx_rate")), (3, 7, 0));
    let stranger = of_type(MAC, [2, 0, 0, 0, 0, 8], 0x88b5);
    assert!(host.heard_by(&stranger).is_empty());
    assert_eq!(host.drops_of(0, "rx_filtered"), 1);
    // What is nobody's queue's there is dropped there, and its frame comes back.
    host.set_rules("queue 1 rx eth type 0x88b5-0x88b6");
    let other = of_type(MAC, PEER_MAC, 0x88b6);
    assert!(host.heard_by(&other).is_empty());
    assert_eq!(host.drops_of(1, "eth_unknown_type"), 1);
}

/// A thread whose program does not take them gets so many, and the other one keeps what it needs.
#[test]
fn a_queue_that_nobody_serves_does_not_take_all_frames() {
    let mut host = host(2, "queue 1 rx eth type 0x88b5; rx ip");
    let bound = host.call(
        0,
        Call::PacketBind { device: 0, kind: packet_kind::IP_PROTOCOL, number: 253, cookie: 7 },
    );
    assert!(bound > 0);
    for _ in 0..host.threads[0].elastic.io.cx.rx_pool.owned() {
        host.device.deliver_on(0, of_type(MAC, PEER_MAC, 0x88b5));
        host.cycle(0);
    }
    assert!(host.drops("forward_full") > 0);
    host.device.deliver_on(0, packet(253));
    assert_eq!(host.cycle(0).len(), 1, "others are heard");
    let heard = host.cycle(1);
    assert!(heard.is_empty());
    assert!(host.drops_of(1, "eth_unknown_type") > 0);
}

#[test]
fn only_the_queue_that_has_a_transmit_filter_sends_by_it() {
    let mut host = host(2, "queue 0 tx eth type 0x88b5; tx eth type 0x88b6");
    host.cycle(1);
    let bind = |host: &mut Host, thread| {
        host.call(
            thread,
            Call::PacketBind {
                device: 0,
                kind: packet_kind::ETHER_TYPE,
                number: 0x88b5,
                cookie: 7,
            },
        )
    };
    let queues = [bind(&mut host, 0), bind(&mut host, 1)];
    let (own, common) = (of_type(PEER_MAC, MAC, 0x88b5), of_type(PEER_MAC, MAC, 0x88b6));
    for round in 0..100 {
        let holder = round % 2;
        host.set_rules(&format!("queue {holder} tx eth type 0x88b5; tx eth type 0x88b6"));
        let before = host.drops_of(1 - holder, "tx_foreign_queue");
        assert_eq!(host.send_at(holder, queues[holder], &own), 60);
        assert_eq!(host.send_at(1 - holder, queues[1 - holder], &own), -error::FILTERED);
        assert_eq!(host.send_at(1 - holder, queues[1 - holder], &common), 60);
        assert_eq!(host.drops_of(1 - holder, "tx_foreign_queue"), before + 1);
        (0..2).for_each(|thread| drop(host.cycle(thread)));
        let sent: Vec<_> = host.device.take_sent().into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(sent.iter().filter(|frame| **frame == own).count(), 1);
        assert_eq!(sent.len(), 2);
    }
}

#[test]
fn a_queue_takes_what_is_nobodys() {
    let mut host = host(1, "");
    for (kind, number) in [
        (packet_kind::ETHER_TYPE, 0x0800),
        (packet_kind::ETHER_TYPE, 0x0806),
        (packet_kind::ETHER_TYPE, 0x05ff),
        (packet_kind::ETHER_TYPE, 0x1_88b5),
        (packet_kind::IP_PROTOCOL, 6),
        (packet_kind::IP_PROTOCOL, 256 + 253),
        (packet_kind::UDP_PORT, 0),
        (0, 7),
        (9, 7),
    ] {
        assert_eq!(host.bind(kind, number, 0), -error::INVALID, "{kind} {number:#x}");
    }
    let kind = packet_kind::UDP_PORT;
    let unknown_device = Call::PacketBind { device: 1, kind, number: 7, cookie: 0 };
    assert_eq!(host.call(0, unknown_device), -error::INVALID);
    let own = host.bind(packet_kind::ETHER_TYPE, 0x88b5, 1);
    assert!(own > 0);
    assert_eq!(host.bind(packet_kind::ETHER_TYPE, 0x88b5, 2), -error::IN_USE);
    let any = |port| Endpoint { addr: [0; 16], port };
    assert!(host.threads[0].elastic.run_call(Call::UdpBind { at: any(7), cookie: 0 }).is_ok());
    assert_eq!(host.bind(packet_kind::UDP_PORT, 7, 2), -error::IN_USE);
    assert!(host.bind(packet_kind::UDP_PORT, 8, 2) > 0);
    assert_eq!(
        host.threads[0].elastic.run_call(Call::UdpBind { at: any(8), cookie: 0 }),
        Err(CallError::InUse)
    );
    assert_eq!(host.call(0, Call::PacketUnbind { queue: own as u32 }), 0);
    for stale in [own as u32, 0, u32::MAX] {
        assert_eq!(host.call(0, Call::PacketUnbind { queue: stale }), -error::BAD_HANDLE);
        assert_eq!(
            host.call(0, Call::PacketSendV { queue: stale, sg: SgArray::default(), cookie: 0 }),
            -error::BAD_HANDLE
        );
    }
    let more = (0..196).map(|n| host.bind(packet_kind::IP_PROTOCOL, 60 + n, 0));
    let more: Vec<i64> = more.collect();
    assert_eq!(more.iter().position(|id| *id < 0), Some(63), "one was bound before");
    assert_eq!(more[63], -error::NO_RESOURCE);
}

#[test]
fn frames_come_whole_and_go_back() {
    let mut host = host(1, "");
    host.bind(packet_kind::ETHER_TYPE, 0x88b5, 1);
    host.bind(packet_kind::IP_PROTOCOL, 253, 2);
    host.bind(packet_kind::UDP_PORT, 7, 3);
    let broadcast = of_type([0xff; 6], PEER_MAC, 0x88b5);
    for (frame, cookie) in [
        (&of_type(MAC, PEER_MAC, 0x88b5), 1),
        (&broadcast, 1),
        (&packet(253), 2),
        (&datagram(7), 3),
    ] {
        let events = host.hears(frame);
        let [Event::PacketRecv { cookie: of, data }] = events[..] else { panic!("{events:?}") };
        assert_eq!(of, cookie);
        // SAFETY: received memory, not given back yet.
        let bytes =
            unsafe { core::slice::from_raw_parts(data.addr as *const u8, data.len as usize) };
        assert_eq!(bytes, &frame[..]);
        assert_eq!(host.call(0, Call::PacketRecvDone { data: data.addr }), 0);
        assert_eq!(host.call(0, Call::PacketRecvDone { data: data.addr }), -error::BAD_HANDLE);
    }
    for (frame, reason) in [
        (of_type([2, 0, 0, 0, 0, 7], PEER_MAC, 0x88b5), "eth_not_for_us"),
        (of_type(MAC, PEER_MAC, 0x88b6), "eth_unknown_type"),
        (packet(254), "ip_unknown_protocol"),
        (datagram(8), "udp_no_socket"),
    ] {
        let before = host.drops(reason);
        assert!(host.hears(&frame).is_empty());
        assert_eq!(host.drops(reason), before + 1, "{reason}");
    }
    // What is held is bounded, and the dataplane goes on.
    let most = host.threads[0].elastic.io.cx.lent_max();
    let held = (0..most + 5).filter(|_| !host.hears(&datagram(7)).is_empty()).count();
    assert_eq!((held, host.drops("packet_queue_full")), (most, 5));
}

#[test]
fn receive_filters_hold_for_packet_queues() {
    let mut host = host(1, "rx ip proto 253 peer 10.0.0.1");
    host.bind(packet_kind::ETHER_TYPE, 0x88b5, 1);
    host.bind(packet_kind::IP_PROTOCOL, 253, 2);
    assert_eq!(host.hears(&packet(253)).len(), 1);
    assert!(host.hears(&of_type(MAC, PEER_MAC, 0x88b5)).is_empty());
    assert_eq!(host.drops("rx_filtered"), 1);
}

#[test]
fn what_is_sent_is_in_our_name() {
    let mut host = host(1, "");
    let queue = host.bind(packet_kind::IP_PROTOCOL, 253, 0);
    let own = FrameHeader {
        eth_src: MAC,
        eth_dst: PEER_MAC,
        src: IpAddr::v4(OURS),
        dst: IpAddr::v4(PEER),
        ..link(MAC)
    };
    let good = |header: FrameHeader| {
        let mut frame = vec![0x44; 34 + 30];
        header.emit(&mut frame, 253, 30);
        frame
    };
    let frame = good(own);
    assert_eq!(host.send(queue, &frame), frame.len() as i64);
    let events = host.cycle(0);
    assert_eq!(events, [Event::PacketSent { cookie: 99 }]);
    assert_eq!(host.device.take_sent().into_iter().map(|(_, f)| f).collect::<Vec<_>>(), [frame]);
    assert_eq!(host.send(queue, &of_type(PEER_MAC, MAC, 0x88b5)), 60);
    let mut tagged = good(own);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    let arp = of_type(PEER_MAC, MAC, 0x0806);
    for (frame, reason) in [
        (good(FrameHeader { eth_src: PEER_MAC, ..own }), "tx_foreign_mac"),
        (good(FrameHeader { src: IpAddr::v4(PEER), ..own }), "tx_foreign_address"),
        (tagged, "tx_foreign_vlan"),
        (of_type(PEER_MAC, MAC, 0x86dd), "tx_foreign_other"),
        (of_type(PEER_MAC, MAC, 46), "tx_foreign_other"),
        (arp, "tx_foreign_other"),
    ] {
        let before = host.drops(reason);
        assert_eq!(host.send(queue, &frame), -error::FILTERED, "{reason}");
        assert_eq!(host.drops(reason), before + 1, "{reason}");
    }
    assert_eq!(host.send(queue, &[1; 13]), -error::INVALID);
    assert_eq!(host.send(queue, &[1; 1515]), -error::TOO_LONG);
    let sg = SgArray { addr: 8, entries: 1 };
    let nowhere = Call::PacketSendV { queue: queue as u32, sg, cookie: 0 };
    assert_eq!(host.call(0, nowhere), -error::FAULT);
    host.cycle(0);
    assert_eq!(host.device.take_sent().len(), 1, "only the one of another type");
    assert_eq!(host.threads[0].elastic.io.cx.tx_pool.in_use(), 0);
}

/// Beside Linux a frame's type is had by a filter that names it, and sent by one that does.
#[test]
fn filters_give_ethertypes_beside_linux() {
    let shared = |rules: &str| {
        let mut host = host(1, rules);
        let (mode, features) = (XdpMode::Auto, XdpFeatures::DEFAULT);
        host.threads[0].elastic.io.ports[0].info.kind =
            NicKind::Afxdp(XdpBind { ifindex: 1, mode, frags: false, sockets: 1, features });
        host
    };
    for rules in ["", "rx ip", "rx eth", "tx eth type 0x88b5", "rx eth type 0x88b6"] {
        let refused = shared(rules).bind(packet_kind::ETHER_TYPE, 0x88b5, 0);
        assert_eq!(refused, -error::NOT_LOCAL, "{rules}");
    }
    let mut host = shared("rx eth type 0x88b0-0x88b5");
    let queue = host.bind(packet_kind::ETHER_TYPE, 0x88b5, 7);
    assert!(queue > 0);
    let heard = host.hears(&of_type(MAC, PEER_MAC, 0x88b5));
    assert!(matches!(heard[..], [Event::PacketRecv { cookie: 7, .. }]), "{heard:?}");
    // What may be heard may not be said.
    let own = of_type(PEER_MAC, MAC, 0x88b5);
    assert_eq!(host.send(queue, &own), -error::FILTERED);
    let both = "rx eth type 0x88b5; tx eth type 0x88b5".parse().unwrap();
    host.threads[0].elastic.shared.vnic_rules.set(both);
    host.cycle(0);
    assert_eq!(host.send(queue, &own), own.len() as i64);
    // Without the filter the queue hears nothing any more.
    host.threads[0].elastic.shared.vnic_rules.set("none rx".parse().unwrap());
    host.cycle(0);
    assert!(host.hears(&of_type(MAC, PEER_MAC, 0x88b5)).is_empty());
}

#[test]
fn transmit_filters_take_the_place_of_that() {
    let mut host = host(1, "tx eth type 0x88b5");
    let queue = host.bind(packet_kind::ETHER_TYPE, 0x88b5, 0);
    assert_eq!(host.send(queue, &of_type(PEER_MAC, MAC, 0x88b5)), 60);
    assert_eq!(host.send(queue, &of_type(PEER_MAC, MAC, 0x88b6)), -error::FILTERED);
    let to = host.arena + 4096;
    assert_eq!(host.call(0, Call::PacketInfo { queue: queue as u32, to }), 0);
    // SAFETY: written there.
    let info = unsafe { *(to as *const PacketInfo) };
    assert_eq!((info.mac, info.frame_bytes_max), (MAC, 1514));
    assert_eq!(info.flags, packet_flag::TX_FILTERED | packet_flag::ANY_ETHER_TYPE);
    assert_eq!(host.call(0, Call::PacketInfo { queue: queue as u32, to: 16 }), -error::FAULT);
    host.threads[0].elastic.shared.vnic_rules.set("none tx".parse().unwrap());
    host.cycle(0);
    assert_eq!(host.send(queue, &of_type(PEER_MAC, MAC, 0x88b5)), -error::FILTERED, "revoked");
}

#[test]
fn threads_hear_each_other_in_order_and_no_flood_fills_an_array() {
    let mut host = host(2, "");
    assert_eq!(host.call(0, Call::Signal { thread: 2, value: 1 }), -error::INVALID);
    assert_eq!(host.call(0, Call::Signal { thread: 0, value: 7 }), 0);
    assert_eq!(host.cycle(0)[0], Event::Signal { from: 0, value: 7 }, "itself");
    let mut said = 0;
    while host.call(0, Call::Signal { thread: 1, value: said }) == 0 {
        said += 1;
    }
    assert!((1000..10_000).contains(&said), "{said}");
    assert_eq!(host.call(0, Call::Signal { thread: 1, value: said }), -error::NO_RESOURCE);
    let mut heard = Vec::new();
    while heard.len() < said as usize {
        let events = host.cycle(1);
        assert!(!events.is_empty() && events.len() <= 32);
        for event in events {
            let Event::Signal { from: 0, value } = event else { panic!("{event:?}") };
            heard.push(value);
        }
    }
    assert!(heard.into_iter().eq(0..said));
    assert_eq!(host.call(0, Call::Signal { thread: 1, value: 5 }), 0, "there is room again");
}

/// No device returns a frame to its sender: the dataplane must not take one for its own.
#[test]
fn no_frame_is_sent_to_its_sender() {
    let mut host = host(1, "");
    let queue = host.bind(packet_kind::ETHER_TYPE, 0x88b5, 7);
    assert!(queue > 0);
    let to_itself = link(MAC);
    let mut forged = vec![0x66; 14 + 28 + 30];
    let ours = FrameHeader { eth_src: MAC, src: to_itself.dst, ..to_itself };
    ours.emit_udp(&mut forged, 9, 4000, 30, Checksum::of(&[0x66; 30]));
    host.device.take_sent();
    let invalid = CallError::encode(Err(CallError::Invalid));
    assert_eq!(host.send(queue, &forged), invalid);
    assert_eq!(host.send(queue, &of_type(MAC, MAC, 0x88b5)), invalid);
    assert_eq!(host.send(queue, &of_type(PEER_MAC, MAC, 0x88b5)), 60);
    host.cycle(0);
    host.cycle(0);
    assert_eq!((host.device.take_sent().len(), host.drops("udp_no_socket")), (1, 0));
    // Filters that allow any source change nothing.
    host.set_rules("tx udp; tx eth type 0x88b5");
    assert_eq!(host.send(queue, &forged), invalid);
    assert_eq!(host.send(queue, &of_type(MAC, MAC, 0x88b5)), invalid);
    assert_eq!(host.send(queue, &of_type(PEER_MAC, MAC, 0x88b5)), 60);
}
