//! A device whose packets are longer than a buffer: what is sent is one frame of several buffers,
//! and every buffer comes back.
use crate::peer::{OURS, PEER, PEER_MAC, listen, segment};
use ix_abi::{Call, CallError, CallSlot, Endpoint, EventSlot, FlowOption, SgArray, event_kind};
use ix_dataplane::Config;
use ix_mem::{ROOM_BYTES, Sizes};
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::icmp::IcmpHeader;
use ix_wire::{
    Checksum, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, TcpHeader, TcpOptions, ipv4,
};

const MTU: usize = 9000;
const OURS_V6: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
const PEER_V6: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const SIZES: Sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 };

struct Host {
    rig: BareRig,
    device: SimDevice,
    now_us: u64,
    is_v6: bool,
}

impl Host {
    fn new(is_v6: bool, sizes: Sizes) -> Host {
        let clock = VirtualClock::default();
        let options = SimOptions { mtu: MTU, ..SimOptions::default() };
        let device = SimDevice::new(options, &clock);
        let (ours, prefix, peer) = if is_v6 { (OURS_V6, 64, PEER_V6) } else { (OURS, 24, PEER) };
        let mut config =
            Config { arp: vec![(peer, PEER_MAC)], ..Config::with_address(ours, prefix) };
        // As a dataplane's boot does by its devices.
        config.tcp.mss = MTU as u16 - 40;
        let options = RigOptions { config, sizes: Some(sizes), clock };
        let mut host = Host { rig: BareRig::new(options, device.nics()), device, now_us: 0, is_v6 };
        host.run(&[listen()]);
        host.passes(3_000_000);
        host.device.take_sent();
        host
    }

    fn run(&mut self, calls: &[CallSlot]) -> (Vec<i64>, Vec<EventSlot>) {
        self.now_us += 10;
        self.rig.run(0, calls, self.now_us)
    }

    fn passes(&mut self, us: u64) {
        self.now_us += us;
        self.run(&[]);
        self.run(&[]);
    }

    fn hears(&mut self, frame: Vec<u8>) -> Vec<EventSlot> {
        self.device.deliver(frame);
        self.run(&[]).1
    }

    /// Frames that were sent since.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        self.run(&[]);
        self.device.take_sent().into_iter().map(|(_, frame)| frame).collect()
    }

    /// Puts a pattern of this length into transmit memory, and one entry that names it.
    fn pattern(&mut self, len: usize) -> (SgArray, Vec<u8>) {
        let (base, _) = self.rig.transmit_memory();
        let words: Vec<u64> = (0..len.div_ceil(8) as u64).map(|n| n.wrapping_mul(0x9e37)).collect();
        self.rig.write(base, &[base + 64, len as u64]);
        self.rig.write(base + 64, &words);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(len);
        (SgArray { addr: base, entries: 1 }, bytes)
    }

    fn link(&self) -> FrameHeader {
        FrameHeader {
            eth_src: PEER_MAC,
            eth_dst: self.device.options().mac,
            src: if self.is_v6 { PEER_V6 } else { PEER },
            dst: if self.is_v6 { OURS_V6 } else { OURS },
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            ident: 1,
        }
    }

    fn udp_socket(&mut self) -> u32 {
        self.udp_socket_at(4000)
    }

    fn udp_socket_at(&mut self, port: u16) -> u32 {
        let at = Endpoint { addr: [0; 16], port };
        self.run(&[Call::UdpBind { at, cookie: 5 }.encode()]).0[0] as u32
    }

    fn send_datagram(&mut self, socket: u32, len: usize) -> (i64, Vec<Vec<u8>>, Vec<u8>) {
        let (sg, bytes) = self.pattern(len);
        let to = Endpoint { addr: self.link().src.0, port: 9 };
        let (codes, _) = self.run(&[Call::UdpSendV { socket, to, sg, cookie: 7 }.encode()]);
        (codes[0], self.sent(), bytes)
    }

    /// All buffers are free: as many as there are can be used again.
    fn nothing_is_held(&mut self) {
        let socket = self.udp_socket_at(4999);
        for _ in 0..SIZES.tx_frames {
            let (code, frames, _) = self.send_datagram(socket, 8900);
            assert_eq!((code, frames.len()), (8900, 1));
        }
    }
}

/// The payload of a frame that the parser takes, checksums included.
fn payload_of(frame: &[u8]) -> Vec<u8> {
    match ix_wire::parse(frame, RxChecks::default()).expect("a right frame") {
        Parsed::Tcp(segment) => segment.payload.of(frame).to_vec(),
        Parsed::Udp(datagram) => datagram.payload.of(frame).to_vec(),
        Parsed::Icmp(message) => message.payload.of(frame).to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stream_leaves_in_long_segments() {
    let mut host = Host::new(false, SIZES);
    let mac = host.device.options().mac;
    let syn = TcpHeader {
        src_port: 1000,
        dst_port: 80,
        seq: Seq(1),
        ack: Seq(0),
        flags: TcpFlags::SYN,
        window: 60_000,
        urgent: 0,
        options: TcpOptions { mss: Some(8960), ..TcpOptions::NONE },
    };
    host.hears(crate::peer::frame_of(mac, &syn));
    let replies = host.sent();
    let Some(Ok(Parsed::Tcp(reply))) =
        replies.last().map(|frame| ix_wire::parse(frame, RxChecks::default()))
    else {
        panic!("no SYN-ACK")
    };
    assert_eq!(reply.header.options.mss, Some(8960));
    let ours = reply.header.seq + 1;
    let ack = |ack| TcpHeader {
        seq: Seq(2),
        ack,
        flags: TcpFlags::ACK,
        options: TcpOptions::NONE,
        ..syn
    };
    let events = host.hears(crate::peer::frame_of(mac, &ack(ours)));
    let handle = events.iter().find(|e| e.kind == event_kind::KNOCK).expect("a knock").handle;
    host.run(&[Call::Accept { handle, cookie: 2 }.encode()]);
    // The last segment has an odd length.
    let (sg, bytes) = host.pattern(59_999);
    let (mut taken, mut got) = (0, Vec::new());
    let mut lens = Vec::new();
    while got.len() < bytes.len() {
        if taken < bytes.len() {
            let (base, _) = host.rig.transmit_memory();
            host.rig.write(base, &[base + 64 + taken as u64, (bytes.len() - taken) as u64]);
            let (codes, _) =
                host.run(&[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode()]);
            taken += codes[0].max(0) as usize;
        }
        let frames = host.sent();
        assert!(!frames.is_empty() || taken < bytes.len(), "it goes on");
        lens.extend(frames.iter().map(Vec::len));
        frames.iter().for_each(|frame| got.extend(payload_of(frame)));
        host.hears(crate::peer::frame_of(mac, &ack(ours + got.len() as u32)));
        assert!(lens.len() < 100, "{lens:?}");
    }
    assert!(got == bytes, "other bytes arrived");
    assert!(lens.iter().filter(|len| **len == 14 + MTU).count() >= 5, "{lens:?}");
    host.nothing_is_held();
}

/// Where buffers are few a segment waits for them, whole; none of its buffers is lost.
#[test]
fn segments_wait_for_all_of_their_buffers() {
    let sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 };
    let mut host = Host::new(false, sizes);
    let socket = host.udp_socket();
    let option = FlowOption::FragmentBytes(u16::MAX);
    host.run(&[Call::UdpSetOpt { socket, option }.encode()]);
    let (sg, _) = host.pattern(65_507);
    let to = Endpoint { addr: PEER.0, port: 9 };
    let call = Call::UdpSendV { socket, to, sg, cookie: 7 }.encode();
    // More than a thousand buffers hold, in one cycle.
    let (codes, _) = host.run(&vec![call; 60]);
    let refused =
        codes.iter().filter(|code| **code == CallError::encode(Err(CallError::NoResource)));
    let refused = refused.count();
    assert!((1..60).contains(&refused), "{codes:?}");
    let frames = host.sent();
    assert_eq!(frames.len(), (60 - refused) * 8);
    assert!(frames.iter().all(|frame| frame.len() <= 14 + MTU));
    host.nothing_is_held();
}

#[test]
fn a_datagram_as_long_as_the_device_takes_is_one_frame() {
    for is_v6 in [false, true] {
        let mut host = Host::new(is_v6, SIZES);
        let socket = host.udp_socket();
        let most = MTU - if is_v6 { 48 } else { 28 };
        for len in [1, ROOM_BYTES - 100, ROOM_BYTES, 4000, 8900, most] {
            let (code, frames, bytes) = host.send_datagram(socket, len);
            assert_eq!((code, frames.len()), (len as i64, 1), "{len}");
            assert_eq!(payload_of(&frames[0]), bytes);
            if !is_v6 {
                assert_eq!(frames[0][20] & 0x40, 0x40, "DF");
            }
        }
        let (code, frames, _) = host.send_datagram(socket, most + 1);
        assert_eq!((code, frames.len()), (CallError::encode(Err(CallError::TooLong)), 0));
        host.nothing_is_held();
    }
}

/// Fragments are as long as the device takes, out and in.
#[test]
fn the_longest_datagrams_go_and_come_in_long_fragments() {
    for is_v6 in [false, true] {
        let mut host = Host::new(is_v6, SIZES);
        let socket = host.udp_socket();
        let option = FlowOption::FragmentBytes(u16::MAX);
        host.run(&[Call::UdpSetOpt { socket, option }.encode()]);
        let (code, frames, bytes) = host.send_datagram(socket, 65_507);
        assert_eq!((code, frames.len()), (65_507, 8));
        assert!(frames.iter().all(|frame| frame.len() <= 14 + MTU));
        // Back to us: the same fragments with both ends exchanged, whose checksum is the same.
        let mac = host.device.options().mac;
        let mut events = Vec::new();
        for mut frame in frames {
            frame[..6].copy_from_slice(&mac);
            frame[6..12].copy_from_slice(&PEER_MAC);
            let (at, len) = if is_v6 { (22, 16) } else { (26, 4) };
            let (src, dst) = frame[at..at + 2 * len].split_at_mut(len);
            src.swap_with_slice(dst);
            let ports_at = if is_v6 { 62 } else { 34 };
            let first = if is_v6 {
                frame[56] == 0 && frame[57] & !7 == 0
            } else {
                frame[20..22] == [0x20, 0]
            };
            if first {
                let (src, dst) = frame[ports_at..ports_at + 4].split_at_mut(2);
                src.swap_with_slice(dst);
            }
            events.extend(host.hears(frame));
        }
        let received: Vec<_> = events.iter().filter(|e| e.kind == event_kind::UDP_RECV).collect();
        let total: usize = received
            .iter()
            .map(|event| match ix_abi::Event::decode(event) {
                Ok(ix_abi::Event::UdpRecv { data, .. }) => data.len as usize,
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(total, bytes.len());
        assert_eq!(host.rig.metrics().total("drops.udp_bad_checksum"), Some(0));
        host.nothing_is_held();
    }
}

#[test]
fn a_long_ping_is_answered_in_one_frame() {
    for is_v6 in [false, true] {
        let mut host = Host::new(is_v6, SIZES);
        let most = MTU - if is_v6 { 48 } else { 28 };
        for len in [1000, 1800, 8900, most] {
            let data: Vec<u8> = (0..len).map(|n| (n * 7 / 3) as u8).collect();
            let kind = if is_v6 { 128 } else { 8 };
            let header = IcmpHeader { kind, code: 0, rest: [1, 2, 3, 4] };
            let mut frame = vec![0; 62];
            let at = host.link().emit_icmp(&mut frame, &header, len, Checksum::of(&data));
            frame.truncate(at);
            frame.extend_from_slice(&data);
            host.hears(frame);
            let replies = host.sent();
            assert_eq!(replies.len(), 1, "{len}");
            assert_eq!(payload_of(&replies[0]), data);
        }
        host.nothing_is_held();
    }
}

/// A peer that offers the usual MSS gets the usual segments.
#[test]
fn a_peer_with_short_packets_gets_short_ones() {
    let mut host = Host::new(false, SIZES);
    let mac = host.device.options().mac;
    host.hears(segment(mac, 1000, TcpFlags::SYN, Seq(1), Seq(0)));
    let reply = host.sent().pop().expect("a SYN-ACK");
    let Ok(Parsed::Tcp(reply)) = ix_wire::parse(&reply, RxChecks::default()) else { panic!() };
    let ours = reply.header.seq + 1;
    let events = host.hears(segment(mac, 1000, TcpFlags::ACK, Seq(2), ours));
    let handle = events.iter().find(|e| e.kind == event_kind::KNOCK).expect("a knock").handle;
    host.run(&[Call::Accept { handle, cookie: 2 }.encode()]);
    let (sg, _) = host.pattern(1000);
    host.run(&[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode()]);
    let frames = host.sent();
    assert!(frames.iter().all(|frame| payload_of(frame).len() <= 536), "no MSS option: 536");
}
