//! AF_XDP on veth against the Linux stack, in namespaces of its own.
mod common;

use common::*;
use ix_mem::{PacketMemory, Pool, Sizes};
use ix_netdev::{DeviceSpec, OpenError, OpenOptions, OpenedDevice, open};
use ix_nic::{AttachError, Nic, RingSizes, Steering, attach};
use ix_sys::limits::raise_memlock;
use ix_testbed::{Namespace, VethEnd};
use ix_wire::{
    Checksum, ChecksumMode, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, TcpHeader,
    TcpOptions, TcpPacket,
};
use std::collections::HashSet;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::RawFd;
use std::time::Duration;

/// A veth pair: `ix0` for us in one namespace, `peer0` with Linux's address in another.
struct Link {
    ix: Namespace,
    linux: Namespace,
}

impl Link {
    fn new(test: &str, queues: u32) -> Option<Link> {
        let link = Link { ix: namespace(test)?, linux: Namespace::new().unwrap() };
        let (ours, theirs) = (VethEnd::new("ix0"), VethEnd::new("peer0"));
        link.ix.add_veth(&ours.queues(queues), &link.linux, &theirs.queues(queues)).unwrap();
        link.linux.add_address("peer0", LINUX_IP, 24).unwrap();
        link.linux.set_up("peer0", true).unwrap();
        link.ix.set_up("ix0", true).unwrap();
        // Until the kernel has looked at the carrier, the first packets are lost.
        link.linux.wait_running("peer0", Duration::from_secs(5)).unwrap();
        link.ix.wait_running("ix0", Duration::from_secs(5)).unwrap();
        Some(link)
    }

    fn open(&self, spec: &str) -> Result<OpenedDevice, OpenError> {
        self.open_with(spec, &options())
    }

    fn open_with(&self, spec: &str, options: &OpenOptions) -> Result<OpenedDevice, OpenError> {
        let spec: DeviceSpec = spec.parse().expect("a spec");
        self.ix.run(|| open(&spec, options))
    }

    /// Linux's end echoes `count` messages with us.
    fn echo(&self, host: &mut Host, count: usize, window: usize) -> usize {
        host.serve(|| self.linux.run(|| echo(&client(), count, window)))
    }
}

#[test]
fn echoes_a_hundred_thousand_frames_and_leaks_nothing() {
    let Some(link) = Link::new("afxdp echo", 1) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let mut host = Host::on(&mut device);
    assert_eq!(link.echo(&mut host, 100_000, 32), 100_000);
    assert_eq!(host.nics[0].drops(), Default::default());
    assert!(host.nics[0].info().partial_checksums, "the peer is Linux");
    assert_eq!(host.nics[0].info().steering, Steering::Software);
    host.assert_nothing_leaks();
}

#[test]
fn every_mode_works_or_says_why_not() {
    let Some(link) = Link::new("afxdp modes", 1) else { return };
    for (spec, says) in [
        ("afxdp:ix0,mode=generic", &["generic", "copy"][..]),
        ("afxdp:ix0,mode=copy", &["native", "copy, multi-buffer", "need-wakeup"]),
        ("afxdp:ix0", &["native", "copy", "zero-copy refused: Operation not supported"]),
    ] {
        let mut device = link.open(spec).unwrap();
        let mut host = Host::on(&mut device);
        let mode = &host.nics[0].info().mode;
        assert!(says.iter().all(|word| mode.contains(word)), "{spec}: {mode}");
        assert_eq!(link.echo(&mut host, 2000, 16), 2000, "{spec}");
        // The next turn binds the same queue at once: the kernel answers EBUSY for a while.
        host.assert_nothing_leaks();
    }
    let device = link.open("afxdp:ix0,mode=zerocopy").unwrap();
    let mut host = Host::empty();
    let rings = RingSizes::default();
    let Err(e) = attach(&device.info, 0, device.queue_fds, &host.memory, &mut host.rx, rings)
    else {
        panic!("veth has no zero-copy")
    };
    assert!(matches!(e, AttachError::Refused { .. }));
    assert!(e.to_string().contains("zero-copy refused: Operation not supported"), "{e}");
    assert!(e.to_string().ends_with("; leave mode=zerocopy out"), "{e}");
    assert_eq!(host.rx.in_use(), 0);
}

#[test]
fn linux_keeps_what_is_not_ours() {
    let Some(link) = Link::new("afxdp passes on", 1) else { return };
    let theirs = [10, 9, 0, 3];
    link.ix.add_address("ix0", theirs, 24).unwrap();
    let linux_hears = |payload: &'static [u8], to: [u8; 4]| {
        let server = link.ix.run(|| UdpSocket::bind("0.0.0.0:7").unwrap());
        server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        link.linux.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::from(LINUX_IP), 0)).unwrap();
            socket.send_to(payload, (Ipv4Addr::from(to), 7)).unwrap();
        });
        server.recv(&mut [0; 64]).is_ok()
    };
    let two = OpenOptions {
        addresses: ["10.9.0.2", "10.9.0.9"].map(|a| a.parse().unwrap()).to_vec(),
        ..options()
    };
    let mut device = link.open_with("afxdp:ix0", &two).unwrap();
    assert!(linux_hears(b"before a queue is attached", theirs));
    let mut host = Host::on(&mut device);
    assert!(linux_hears(b"to Linux's address on the shared interface", theirs));
    assert!(host.receive(0).is_empty());
    // Both our addresses come to us, even where Linux knows the neighbour already.
    let mac = device.info.mac;
    for ours in [OUR_IP, [10, 9, 0, 9]] {
        link.linux.add_neighbour("peer0", ours.into(), mac).unwrap();
        assert!(!linux_hears(b"ours", ours));
        let frames = host.receive(0);
        assert!(frames.iter().any(|f| f[30..34] == ours && f.ends_with(b"ours")), "{frames:?}");
    }
    host.assert_nothing_leaks();
    drop(host);
    drop(device);
    assert!(linux_hears(b"after we are gone", theirs));
}

/// Frames of the types that a filter names are ours, from filter to filter; all others stay
/// Linux's.
/// A group that a program of Linux listens to stays Linux's: an XDP program gives a packet to one
/// of both, and a program of IX's may name any group. When nobody listens there any more it is
/// ours.
#[test]
fn a_group_that_linux_listens_to_stays_linuxs() {
    const PORT: u16 = 5353;
    let Some(link) = Link::new("a_group_that_linux_listens_to_stays_linuxs", 1) else { return };
    let (own, group) = (Ipv4Addr::new(10, 9, 0, 77), Ipv4Addr::new(239, 1, 2, 3));
    link.ix.add_address("ix0", own, 24).expect("an address");
    let listener = link.ix.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))).expect("bound");
    listener.join_multicast_v4(&group, &own).expect("joined");
    listener.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut device = link.open("afxdp:ix0").expect("opened");
    let groups = [group, Ipv4Addr::new(239, 1, 2, 4)].map(|group| IpAddr::v4(group.octets()));
    let mut set = || link.ix.run(|| device.set_groups(groups.to_vec())).expect("set");
    assert_eq!(set(), groups[..1]);
    let sender = link.linux.run(|| UdpSocket::bind((Ipv4Addr::from(LINUX_IP), 0))).expect("bound");
    sender.send_to(b"news", (group, PORT)).expect("sent");
    let mut bytes = [0; 16];
    assert_eq!(listener.recv(&mut bytes).expect("Linux has it"), 4);
    drop(listener);
    eventually("nobody listens", || set().is_empty());
    // Ours count once.
    assert_eq!(set(), []);
    let again = link.ix.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))).expect("bound");
    again.join_multicast_v4(&group, &own).expect("joined");
    assert_eq!(set(), groups[..1]);
}

#[test]
fn a_filter_that_names_an_ethertype_takes_its_frames() {
    let Some(link) = Link::new("afxdp EtherTypes", 1) else { return };
    let filters = |texts: &[&str]| -> Option<Vec<ix_vnic::Filter>> {
        Some(texts.iter().map(|text| text.parse().unwrap()).collect())
    };
    let named =
        filters(&["rx eth type 0x88b5 peer 02:00:00:00:00:09", "rx udp service 10.9.0.2:7"]);
    let with = OpenOptions { filters: named, ..options() };
    let mut device = link.open_with("afxdp:ix0", &with).unwrap();
    let mut host = Host::on(&mut device);
    let raw = ix_testbed::PacketSocket::open(&link.linux, "peer0").unwrap();
    let frame = |from: u8, kind: u16, len: usize| {
        let mut frame = vec![0x55; len];
        frame[..6].copy_from_slice(&[0xff; 6]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        frame
    };
    // What is sent, and what of it is heard; the last is, so that all before it has come.
    let mut heard = |all: &[(u8, u16, usize, bool)]| {
        all.iter().for_each(|(from, kind, len, _)| raw.send(&frame(*from, *kind, *len)).unwrap());
        let wanted: Vec<_> = all.iter().filter(|sent| sent.3).collect();
        let mut came = Vec::new();
        eventually("all has come", || {
            came.extend(host.receive(0));
            came.len() >= wanted.len()
        });
        let wanted: Vec<_> = wanted.iter().map(|sent| frame(sent.0, sent.1, sent.2)).collect();
        assert_eq!(came, wanted);
    };
    heard(&[
        (9, 0x88b6, 64, false),
        (8, 0x88b5, 64, false),
        (9, 0x86dd, 64, false),
        (9, 0x88b5, 20, true),
        (9, 0x88b5, 1000, true),
    ]);
    // All types: none of Linux's IPv6 and VLANs.
    device.set_filters(filters(&["rx eth type 0x0600-0xffff"])).unwrap();
    let all = [(9, 0x86dd, 64, false), (9, 0x8100, 64, false), (8, 0x88b6, 64, true)];
    heard(&all);
    // A filter of any type names none.
    for none in [filters(&["rx eth"]), None] {
        device.set_filters(none).unwrap();
        raw.send(&frame(9, 0x88b5, 64)).unwrap();
        device.set_filters(filters(&["rx eth type 0x88b7"])).unwrap();
        heard(&[(9, 0x88b7, 64, true)]);
    }
}

#[test]
fn arp_for_us_comes_to_us() {
    let Some(link) = Link::new("afxdp arp", 1) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let mut host = Host::on(&mut device);
    let raw = ix_testbed::PacketSocket::open(&link.linux, "peer0").unwrap();
    let arp = |sender: [u8; 4], target: [u8; 4]| {
        let mut frame = vec![0xff; 42];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[28..32].copy_from_slice(&sender);
        frame[38..42].copy_from_slice(&target);
        frame
    };
    for (sender, target, ours) in [
        (LINUX_IP, OUR_IP, true),
        (OUR_IP, LINUX_IP, true), // somebody uses our address
        (LINUX_IP, [10, 9, 0, 77], false),
    ] {
        raw.send(&arp(sender, target)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let heard = host.receive(0).contains(&arp(sender, target));
        assert_eq!(heard, ours, "{sender:?} asks for {target:?}");
    }
    // An ARP packet of another network protocol is not about our address.
    let mut other = arp(LINUX_IP, OUR_IP);
    other[16] = 0x81;
    raw.send(&other).unwrap();
    raw.send(&other[..30]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(host.receive(0).is_empty());
    host.assert_nothing_leaks();
}

#[test]
fn both_queues_carry_traffic() {
    let Some(link) = Link::new("afxdp two queues", 2) else { return };
    let mut device = link.open("afxdp:ix0,queues=2").unwrap();
    let mut host = Host::on(&mut device);
    let back =
        host.serve(|| link.linux.run(|| (0..64).map(|_| echo(&client(), 50, 4)).sum::<usize>()));
    assert_eq!(back, 64 * 50);
    assert!(host.packets.iter().all(|n| *n > 100), "{:?}", host.packets);
    host.assert_nothing_leaks();
}

#[test]
fn a_frame_longer_than_a_buffer_arrives_in_pieces() {
    let Some(link) = Link::new("afxdp long frames", 1) else { return };
    link.ix.set_mtu("ix0", 9000).unwrap();
    link.linux.set_mtu("peer0", 9000).unwrap();
    let mut device = link.open("afxdp:ix0").unwrap();
    let mut host = Host::on(&mut device);
    assert!(host.nics[0].info().mode.contains("multi-buffer"), "{:?}", host.nics[0].info());
    link.linux.add_neighbour("peer0", OUR_IP.into(), device.info.mac).unwrap();
    let payload: Vec<u8> = (0..8900u32).map(|i| (i * 7 % 251) as u8).collect();
    link.linux.run(|| (0..20).for_each(|_| assert!(client().send(&payload).is_ok())));
    let mut frames = Vec::new();
    eventually("all frames are in", || {
        frames.extend(host.receive(0));
        frames.len() >= 20
    });
    for frame in frames {
        assert_eq!(frame.len(), 42 + payload.len());
        assert_eq!(frame[42..], payload);
    }
    assert_eq!(host.packets[0], 20 * (42 + payload.len()).div_ceil(1792));
    host.assert_nothing_leaks();
}

/// What is longer than a buffer leaves as one frame, too.
#[test]
fn long_packets_go_both_ways() {
    let Some(link) = Link::new("afxdp long packets", 1) else { return };
    let refused = link.open("afxdp:ix0,mtu=9000").expect_err("its interface takes less");
    let text = refused.to_string();
    assert!(text.contains("1500") && text.contains("`ip link set ix0 mtu 9000`"), "{text}");
    link.ix.set_mtu("ix0", 9000).unwrap();
    link.linux.set_mtu("peer0", 9000).unwrap();
    for mode in ["", ",mode=generic"] {
        let mut device = link.open(&format!("afxdp:ix0{mode}")).unwrap();
        let mut host = Host::on(&mut device);
        let work = || link.linux.run(|| echo_up_to(&client(), 8972, 1000, 4));
        assert_eq!(host.serve(work), 1000, "{:?}", host.nics[0].info());
        host.assert_nothing_leaks();
        assert_eq!(host.nics[0].drops().tx_failed, 0);
    }
    let device = link.open("afxdp:ix0,mtu=1500").unwrap();
    assert_eq!(device.info.mtu, 1500, "as asked");
}

/// The answer to a connection's first segment that lets the peer send at once.
fn syn_ack(frame: &[u8], mac: [u8; 6], syn: &TcpPacket) -> Vec<u8> {
    let header = FrameHeader {
        eth_src: mac,
        eth_dst: syn.ip.eth_src,
        src: syn.ip.dst,
        dst: syn.ip.src,
        ttl: 64,
        tos: 0,
        ident: 0,
    };
    let tcp = TcpHeader {
        src_port: syn.header.dst_port,
        dst_port: syn.header.src_port,
        seq: Seq(77),
        ack: syn.header.seq + 1,
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 65_535,
        urgent: 0,
        options: TcpOptions { mss: Some(1460), ..TcpOptions::default() },
    };
    let mut out = vec![0; frame.len() + 64];
    let len = header.emit_tcp(&mut out, &tcp, 0, Checksum::default());
    out.truncate(len);
    out
}

/// With the program in the driver, veth has Linux cut its TCP segments; behind the driver not.
#[test]
fn unsegmented_tcp_with_partial_checksums_comes_in_whole() {
    let Some(link) = Link::new("afxdp TSO", 1) else { return };
    let mut device = link.open("afxdp:ix0,mode=generic").unwrap();
    let mut host = Host::on(&mut device);
    let mac = device.info.mac;
    link.linux.add_neighbour("peer0", OUR_IP.into(), mac).unwrap();
    let payload: Vec<u8> = (0..14_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let checks = RxChecks { transport: ChecksumMode::AcceptPartial };
    let mut data = Vec::new();
    let address = (Ipv4Addr::from(OUR_IP), 80);
    let send = || std::net::TcpStream::connect(address).map(|mut s| s.write_all(&payload));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| link.linux.run(send));
        eventually("data comes in", || {
            for frame in host.receive(0) {
                let first = &frame[..frame.len().min(1792)];
                match ix_wire::parse_first(first, frame.len(), checks) {
                    Ok(Parsed::Tcp(tcp)) if tcp.header.flags.contains(TcpFlags::SYN) => {
                        assert!(tcp.partial, "Linux leaves the checksum to the device");
                        host.send(0, &syn_ack(&frame, mac, &tcp));
                        host.kick(0);
                    }
                    Ok(Parsed::Tcp(tcp)) if frame.len() > 1514 => {
                        assert!(tcp.partial);
                        data.extend_from_slice(&frame[usize::from(tcp.payload.start)..]);
                    }
                    Ok(_) => {}
                    Err(reason) => panic!("{}", reason.name()),
                }
            }
            data.len() >= payload.len()
        });
        assert!(matches!(client.join().unwrap(), Ok(Ok(()))));
    });
    assert_eq!(data, payload);
    host.assert_nothing_leaks();
}

#[test]
fn a_link_that_is_down_comes_back_and_nothing_leaks() {
    let Some(link) = Link::new("afxdp link down", 1) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let mut host = Host::on(&mut device);
    assert_eq!(link.echo(&mut host, 100, 4), 100);
    for end in ["ix0", "peer0"] {
        let ns = if end == "ix0" { &link.ix } else { &link.linux };
        ns.set_up(end, false).unwrap();
        let frame = ipv4_frame(17, (1, 2), 5, 0);
        for _ in 0..3000 {
            assert!(host.send(0, &frame), "frames come back from a dead link");
            host.kick(0);
        }
        assert!(end == "peer0" || host.nics[0].drops().tx_failed > 0);
        eventually("nothing keeps the thread awake", || {
            host.receive(0);
            host.nics[0].arm()
        });
        ns.set_up(end, true).unwrap();
        link.linux.wait_running("peer0", Duration::from_secs(5)).unwrap();
        // Linux says that a link runs a moment before it lets packets out of it again.
        eventually("a message comes back", || link.echo(&mut host, 1, 1) == 1);
        assert_eq!(link.echo(&mut host, 1000, 4), 1000, "{end} went down and up");
    }
    link.linux.delete_link("peer0").unwrap();
    let frame = ipv4_frame(17, (1, 2), 5, 0);
    for _ in 0..3000 {
        assert!(host.send(0, &frame));
        host.kick(0);
    }
    host.receive(0);
    host.assert_nothing_leaks();
}

#[test]
fn without_frames_packets_are_dropped_and_counted() {
    let Some(link) = Link::new("afxdp overrun", 1) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let mut host = Host::on(&mut device);
    link.linux.add_neighbour("peer0", OUR_IP.into(), device.info.mac).unwrap();
    link.linux.run(|| {
        let socket = client();
        for i in 0..4000u32 {
            let _ = socket.send(&i.to_be_bytes());
            if i % 64 == 0 {
                std::thread::sleep(Duration::from_micros(200)); // below the peer's own queue
            }
        }
    });
    let mut got = 0;
    eventually("all are accounted for", || {
        got += host.receive(0).len();
        got + host.nics[0].drops().rx_overrun as usize >= 4000
    });
    assert_eq!(got as u64 + host.nics[0].drops().rx_overrun, 4000);
    assert!(got >= 512, "{got}");
    assert_eq!(link.echo(&mut host, 1000, 8), 1000, "and goes on");
    host.assert_nothing_leaks();
}

#[test]
fn attaching_needs_no_privilege_but_memory_that_may_be_locked() {
    let Some(link) = Link::new("afxdp unprivileged", 1) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let fd = device.queue_fds.pop().unwrap();
    let copy = fd.try_clone().unwrap();
    let info = device.info.clone();
    let sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 0 };
    let memory = PacketMemory::new(sizes).unwrap();
    // SAFETY: the only pool of these frames.
    let mut rx = unsafe { Pool::new(memory.rx_frames()) };
    let mut attach_bare = |fd| {
        std::thread::scope(|scope| {
            let attach = || {
                keep_capabilities(0);
                attach(&info, 0, vec![fd], &memory, &mut rx, RingSizes::default())
            };
            scope.spawn(attach).join().unwrap()
        })
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives across the calls. Other tests have the capability to ignore it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit), 0);
        limit.rlim_cur = 1 << 20;
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
    }
    let Err(e) = attach_bare(copy) else { panic!("above the limit") };
    assert!(matches!(e, AttachError::Memlock { .. }) && e.to_string().contains("ulimit"), "{e}");
    assert!(raise_memlock().unwrap() >= 4 << 20);
    let nic = match attach_bare(fd) {
        Ok(nic) => nic,
        Err(e) => panic!("{e}"),
    };
    device.finish(0).unwrap();
    let mut host = Host { memory, rx, ..Host::empty() };
    // SAFETY: the only pool of these frames, of the memory that the host has now.
    host.tx = unsafe { Pool::new(host.memory.tx_frames()) };
    host.add(nic);
    assert_eq!(link.echo(&mut host, 1000, 8), 1000);
    host.assert_nothing_leaks();
}

/// The kernel has few of the frames: the others are used too, for packets that stay and for packets
/// to be sent.
#[test]
fn frames_that_the_kernel_does_not_have_serve_as_well() {
    const NEAR: usize = 64;
    const STAY: usize = 400;
    let Some(link) = Link::new("afxdp beyond", 1) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 0 };
    let mut memory = PacketMemory::new(sizes).unwrap();
    memory.limit_devices(NEAR, NEAR);
    let (near, all_rx, all_tx) = (memory.device_frames(), memory.rx_frames(), memory.tx_frames());
    assert_eq!(memory.device_area().1, 2 * NEAR * ix_mem::FRAME_BYTES);
    // SAFETY: the only pools of these frames.
    let (rx, tx) = unsafe {
        (
            Pool::with_beyond(near.start..all_rx.end, all_rx.start..near.start),
            Pool::with_beyond(all_tx.start..near.end, near.end..all_tx.end),
        )
    };
    let mut host = Host { memory, rx, tx, ..Host::empty() };
    let rings = RingSizes { rx: 64, fill: 32, tx: 32 };
    let fds = vec![device.queue_fds.pop().unwrap()];
    let nic = attach(&device.info, 0, fds, &host.memory, &mut host.rx, rings).unwrap();
    device.finish(0).unwrap();
    host.add(nic);
    assert_eq!(link.echo(&mut host, 1000, 8), 1000);

    // Nobody returns what arrives.
    let socket = link.linux.run(client);
    let mut stay = Vec::new();
    for number in 0..STAY {
        socket.send(&[(number % 251) as u8; 600]).unwrap();
        eventually("it arrives", || {
            host.nics[0].receive(&host.memory, &mut host.rx, 64, &mut host.burst);
            for packet in host.burst.drain(..) {
                match packet.mbuf.len() {
                    600.. => stay.push(packet.mbuf),
                    _ => host.rx.put(packet.mbuf),
                }
            }
            stay.len() > number
        });
    }
    for (number, mbuf) in stay.iter().enumerate() {
        let bytes = mbuf.bytes(&host.memory);
        assert!(bytes[bytes.len() - 600..].iter().all(|b| *b == (number % 251) as u8));
    }
    let beyond = stay.iter().filter(|mbuf| !near.contains(&mbuf.frame())).count();
    assert!(beyond >= STAY - NEAR, "{beyond} of {STAY} are in other frames");
    stay.into_iter().for_each(|mbuf| host.rx.put(mbuf));
    assert_eq!(host.rx.unused_beyond(), Some(0..near.start));

    // All frames that the kernel has are taken by somebody who waits.
    let taken: Vec<_> = std::iter::from_fn(|| host.tx.take_within(&near)).collect();
    assert!(!taken.is_empty());
    assert_eq!(link.echo(&mut host, 1000, 8), 1000, "from copies");
    assert!(host.tx.taken_beyond() >= 1000);
    taken.into_iter().for_each(|mbuf| host.tx.put(mbuf));
    assert_eq!(link.echo(&mut host, 1000, 8), 1000);
    host.assert_nothing_leaks();
}

#[test]
fn a_killed_owner_leaves_no_program_behind() {
    let Some(link) = Link::new("afxdp killed", 1) else { return };
    let spec: DeviceSpec = "afxdp:ix0".parse().unwrap();
    let mut ready = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
    let child = link.ix.run(|| {
        // SAFETY: the child only opens the device and waits. It allocates, which glibc allows in
        // the child of a threaded process.
        match unsafe { libc::fork() } {
            0 => {
                let opened = open(&spec, &options());
                // SAFETY: one readable byte; then nothing but waiting for the end, which comes also
                // when the test fails.
                unsafe {
                    libc::write(ready[1], [u8::from(opened.is_ok())].as_ptr().cast(), 1);
                    libc::alarm(20);
                    loop {
                        libc::pause();
                    }
                }
            }
            pid => pid,
        }
    });
    let mut opened = [0u8];
    // SAFETY: one writable byte.
    assert_eq!(unsafe { libc::read(ready[0], opened.as_mut_ptr().cast(), 1) }, 1);
    assert_eq!(opened, [1]);
    let text = link.open("afxdp:ix0").unwrap_err().to_string();
    let owner = format!("that of process {child}");
    assert!(text.contains("another XDP program") && text.contains(&owner), "{text}");
    // SAFETY: our own child; no memory but a null status.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    let mut device = None;
    eventually("the interface is free again", || {
        device = link.open("afxdp:ix0").ok();
        device.is_some()
    });
    assert_eq!(link.echo(&mut Host::on(&mut device.unwrap()), 100, 4), 100);
}

#[test]
fn refuses_in_one_line() {
    let Some(link) = Link::new("afxdp refusals", 2) else { return };
    let refusal = |spec: &str| link.open(spec).expect_err("refused").to_string();
    for (spec, says) in [
        ("afxdp:nowhere", "no interface `nowhere`"),
        (
            "afxdp:ix0,queues=3",
            "`ix0` has 2 queues for 3 elastic threads; give 2 hardware threads with --cpus, or more \
             queues with `ethtool -L ix0 combined 3`",
        ),
    ] {
        let text = refusal(spec);
        assert!(text.contains(says) && !text.contains('\n'), "{spec}: {text}");
    }
    link.ix.set_up("ix0", false).unwrap();
    let text = refusal("afxdp:ix0,queues=2");
    assert!(text.contains("ip link set ix0 up"), "{text}");
    link.ix.set_up("ix0", true).unwrap();
    let nobody = OpenOptions { addresses: Vec::new(), ..options() };
    let text = link.open_with("afxdp:ix0,queues=2", &nobody).unwrap_err().to_string();
    assert!(text.contains("needs an address"), "{text}");
    let bare = link.ix.run(|| {
        keep_capabilities(0);
        open(&"afxdp:ix0,queues=2".parse().unwrap(), &options()).unwrap_err().to_string()
    });
    assert!(bare.contains("CAP_BPF"), "{bare}");
}

/// Each of many clients has a queue by its flow; a queue without a socket would leave its clients
/// without replies.
#[test]
fn a_queue_pair_serves_several_queues() {
    for (queues, pairs) in [(4, 1), (8, 1), (3, 2), (8, 2)] {
        let Some(link) = Link::new("afxdp several queues", queues) else { return };
        let mut device = link.open(&format!("afxdp:ix0,queues={pairs}")).unwrap();
        assert_eq!((device.queue_fds.len(), device.info.queues), (queues as usize, pairs));
        let says = format!(", {queues} queues");
        assert!(device.info.mode.contains(&says), "{}", device.info.mode);
        let mut host = Host::on(&mut device);
        link.linux.add_neighbour("peer0", OUR_IP.into(), device.info.mac).unwrap();
        let bells: Vec<_> = (0..pairs).map(|pair| bells(&*host.nics[pair])).collect();
        assert_eq!(bells.iter().flatten().count(), queues as usize);
        send_from_many(&link, 200, 3);
        eventually("each queue rings", || bells.iter().flatten().all(|fd| is_readable(*fd)));
        let back = host
            .serve(|| link.linux.run(|| (0..100).map(|_| echo(&client(), 40, 4)).sum::<usize>()));
        assert_eq!(back, 100 * 40, "{queues} queues, {pairs} pairs");
        assert!(host.packets.iter().all(|n| *n > 500), "{:?}", host.packets);
        assert!(host.nics.iter_mut().all(|nic| nic.drops() == Default::default()));
        host.assert_nothing_leaks();
    }
}

/// A burst into every queue, while nobody polls: all packets are kept, and no queue waits until the
/// others are empty.
#[test]
fn several_queues_take_turns() {
    let Some(link) = Link::new("afxdp turns", 4) else { return };
    let mut device = link.open("afxdp:ix0").unwrap();
    let mut host = Host::on(&mut device);
    link.linux.add_neighbour("peer0", OUR_IP.into(), device.info.mac).unwrap();
    host.receive(0);
    assert!(host.nics[0].arm() && !host.nics[0].pending());
    send_from_many(&link, 200, 3);
    eventually("all wait", || host.nics[0].backlog().is_some_and(|waiting| waiting >= 600));
    assert!(!host.nics[0].arm() && host.nics[0].pending());
    // Each queue has more than a batch, so each batch is of one queue: of flows of its own.
    let ports = |frames: &[Vec<u8>]| -> HashSet<[u8; 2]> {
        let of_ip = frames.iter().filter(|frame| frame[12..14] == [8, 0]);
        of_ip.map(|frame| [frame[34], frame[35]]).collect()
    };
    let turns: Vec<_> = (0..4).map(|_| host.receive(0)).collect();
    assert!(turns.iter().all(|frames| frames.len() == 64));
    for (i, one) in turns.iter().enumerate() {
        assert!(turns[..i].iter().all(|other| ports(one).is_disjoint(&ports(other))), "{i}");
    }
    let mut got = 4 * 64;
    while host.nics[0].pending() {
        got += host.receive(0).len();
    }
    assert!(got >= 600, "{got}");
    assert_eq!(host.nics[0].drops(), Default::default());
    host.assert_nothing_leaks();
}

/// Sends `each` datagrams from each of `ports` different ports of Linux's end.
fn send_from_many(link: &Link, ports: usize, each: usize) {
    link.linux.run(|| {
        // All are open at once: a port that is closed may be given again, with another queue.
        let sockets: Vec<_> = (0..ports).map(|_| client()).collect();
        for socket in sockets {
            (0..each).for_each(|_| assert_eq!(socket.send(b"nobody").unwrap(), 6));
        }
    });
}

/// All doorbells of a queue pair.
fn bells(nic: &dyn Nic) -> Vec<RawFd> {
    let mut bells = vec![nic.doorbell().expect("has one")];
    nic.more_doorbells(&mut |fd| bells.push(fd));
    bells
}

fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, for the length of the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
