//! Long frames between a tap and a Linux TCP socket, where the driver helps and where it does not.

use crate::common::*;
use ix_mem::HEADROOM_BYTES;
use ix_netdev::{DeviceSpec, OpenedDevice, open};
use ix_nic::{RingSizes, Steering, attach, frame_flow_group};
use ix_testbed::{Namespace, PacketSocket};
use ix_wire::{
    Checksum, ChecksumMode, FlowHash, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags,
    TcpHeader, TcpOptions, TcpPacket,
};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

const PORT: u16 = 7;
const MTU: usize = 1500;
const MSS: usize = MTU - 52;
/// So many bytes Linux sends us: some long frames' worth.
const UPLOAD: usize = 1 << 20;
/// The same where most of it is lost at first.
const HARD_UPLOAD: usize = 64 << 10;
/// So many we send: what the window of a new connection takes.
const DOWNLOAD: usize = 40 * MSS + 100;
const PATIENCE: Duration = Duration::from_secs(20);

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// What Linux's socket does: connects, sends, and reads; everything compared.
fn linux_peer(upload: usize) {
    let server = SocketAddrV4::new(OUR_IP.into(), PORT);
    let mut stream = TcpStream::connect(server).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let upload: Vec<u8> = (0..upload).map(byte).collect();
    stream.write_all(&upload).expect("sends");
    let mut download = vec![0; DOWNLOAD];
    stream.read_exact(&mut download).expect("receives");
    assert!(download.iter().enumerate().all(|(i, b)| *b == byte(i)), "what came is what was sent");
}

/// The other end: a TCP of a few lines, without loss or close.
struct Peer {
    mac: [u8; 6],
    linux_mac: [u8; 6],
    flow: Option<TcpPacket>,
    rcv_nxt: Seq,
    snd_nxt: Seq,
    ident: u16,
    received: usize,
    timestamp: (u32, u32),
    longest_in: usize,
}

impl Peer {
    fn header(&self, flags: TcpFlags) -> Option<TcpHeader> {
        let opens = flags.contains(TcpFlags::SYN);
        let flow = self.flow.as_ref()?;
        Some(TcpHeader {
            src_port: PORT,
            dst_port: flow.header.src_port,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags,
            window: 60_000,
            urgent: 0,
            options: TcpOptions {
                mss: opens.then_some(MTU as u16 - 40),
                window_scale: opens.then_some(4),
                timestamp: Some(self.timestamp),
                ..TcpOptions::NONE
            },
        })
    }

    /// Queues a segment.
    fn say(&mut self, host: &mut Host, flags: TcpFlags, payload: &[u8]) {
        let header = self.header(flags).expect("a flow");
        self.ident = self.ident.wrapping_add(1);
        let link = FrameHeader {
            eth_src: self.mac,
            eth_dst: self.linux_mac,
            src: IpAddr::v4(OUR_IP),
            dst: IpAddr::v4(LINUX_IP),
            ttl: 64,
            tos: 0,
            ident: self.ident.into(),
        };
        let mut bytes = [0; 2048];
        let len = link.emit_tcp(&mut bytes, &header, payload.len(), Checksum::of(payload));
        bytes[len..len + payload.len()].copy_from_slice(payload);
        let mut mbuf = host.tx.take().expect("a frame");
        mbuf.set_range(HEADROOM_BYTES, len + payload.len());
        mbuf.bytes_mut(&host.memory).copy_from_slice(&bytes[..len + payload.len()]);
        host.queued.push_back(mbuf);
        self.snd_nxt += payload.len() as u32;
    }

    /// Takes a frame; what comes in order is acknowledged.
    fn hear(&mut self, host: &mut Host, queue: usize, frame: &[u8], mode: ChecksumMode) {
        let checks = RxChecks { transport: mode };
        let packet = match ix_wire::parse(frame, checks) {
            Ok(Parsed::Tcp(packet)) if packet.header.dst_port == PORT => packet,
            Ok(_) => return,
            Err(e) => panic!("{e:?}"),
        };
        let header = packet.header;
        self.timestamp = (1, header.options.timestamp.map_or(0, |(now, _)| now));
        if header.flags.contains(TcpFlags::SYN) {
            (self.rcv_nxt, self.snd_nxt) = (header.seq + 1, Seq(u32::MAX - 20_000));
            self.flow = Some(packet);
            self.say(host, TcpFlags::SYN | TcpFlags::ACK, &[]);
            self.snd_nxt += 1;
        } else if self.flow.is_some() && packet.payload.len > 0 {
            self.longest_in = self.longest_in.max(frame.len());
            if header.seq == self.rcv_nxt {
                let payload = &frame[packet.payload.range()];
                let mut bytes = payload.iter().enumerate();
                assert!(bytes.all(|(i, b)| *b == byte(self.received + i)), "as it was sent");
                self.received += payload.len();
                self.rcv_nxt += payload.len() as u32;
            }
            self.say(host, TcpFlags::ACK, &[]);
        }
        host.kick(queue);
    }
}

/// What a link did with a stream each way.
struct Seen {
    /// Longest frame from Linux.
    longest_in: usize,
    /// Lengths of the frames with which our stream came to Linux.
    frames_out: Vec<usize>,
}

fn stream(ns: &Namespace, device: &OpenedDevice, host: &mut Host, upload: usize) -> Seen {
    ns.add_address("tap0", LINUX_IP, 24).expect("address");
    ns.set_up("tap0", true).expect("up");
    let mac = host.nics[0].info().mac;
    ns.add_neighbour("tap0", OUR_IP.into(), mac).expect("neighbour");
    let wire = PacketSocket::open(ns, "tap0").expect("packet socket");
    let linux_mac = ns.link("tap0").unwrap().unwrap().mac;
    let mode = match device.info.partial_checksums {
        true => ChecksumMode::AcceptPartial,
        false => ChecksumMode::Verify,
    };
    let mut peer = Peer {
        mac,
        linux_mac,
        flow: None,
        rcv_nxt: Seq(0),
        snd_nxt: Seq(0),
        ident: 65_500,
        received: 0,
        timestamp: (1, 0),
        longest_in: 0,
    };
    let hash = FlowHash::new(KEY);
    let (mut answered, mut frames_out) = (false, Vec::new());
    let mut watch = |patience| {
        while let Some(frame) = wire.receive(patience).expect("receives") {
            // Ours all have timestamps: 66 bytes of headers, more in the one with SYN.
            if frame.len() > 14 + 60 {
                frames_out.push(frame.len());
            }
        }
    };
    std::thread::scope(|scope| {
        let linux = scope.spawn(|| ns.run(|| linux_peer(upload)));
        let end = std::time::Instant::now() + PATIENCE;
        while !linux.is_finished() {
            assert!(std::time::Instant::now() < end, "{} bytes came", peer.received);
            for queue in 0..host.nics.len() {
                for frame in host.receive(queue) {
                    if device.info.steering == Steering::Table {
                        let group = frame_flow_group(&hash, &frame);
                        assert_eq!(queue, group % host.nics.len(), "on the flow's queue");
                    }
                    peer.hear(host, queue, &frame, mode);
                }
            }
            if peer.received == upload && !answered {
                answered = true;
                let download: Vec<u8> = (0..DOWNLOAD).map(byte).collect();
                for (i, piece) in download.chunks(MSS).enumerate() {
                    let last = (i + 1) * MSS >= DOWNLOAD;
                    let flags = if last { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK };
                    peer.say(host, flags, piece);
                }
                host.kick(0);
            }
            watch(Duration::ZERO);
            std::thread::yield_now();
        }
        linux.join().expect("Linux is content");
    });
    watch(Duration::from_millis(20));
    assert_eq!(frames_out.iter().map(|len| len - 66).sum::<usize>(), DOWNLOAD, "{frames_out:?}");
    Seen { longest_in: peer.longest_in, frames_out }
}

fn opened(
    test: &str,
    spec: &str,
    before: impl FnOnce() + Send,
) -> Option<(Namespace, OpenedDevice)> {
    let ns = namespace(test)?;
    let spec: DeviceSpec = spec.parse().expect("a spec");
    let device = ns.run(|| {
        before();
        open(&spec, &options()).expect("opens")
    });
    Some((ns, device))
}

fn assert_long_both_ways(test: &str, spec: &str) {
    let Some((ns, mut device)) = opened(test, spec, || {}) else { return };
    assert!(device.info.mode.contains("checksum and segmentation"), "{}", device.info.mode);
    assert!(device.info.partial_checksums);
    let mut host = Host::on(&mut device);
    let seen = stream(&ns, &device, &mut host, UPLOAD);
    assert!(seen.longest_in > 8 * MSS, "frames of Linux have up to {} bytes", seen.longest_in);
    assert_eq!(seen.frames_out.len(), 1, "41 segments are one frame: {:?}", seen.frames_out);
    for nic in &mut host.nics {
        assert_eq!(nic.drops(), Default::default());
    }
    host.assert_nothing_leaks();
}

#[test]
fn long_frames_both_ways() {
    assert_long_both_ways("tap long frames", "tap:tap0");
}

#[test]
fn long_frames_come_in_on_the_queue_of_their_flow() {
    assert_long_both_ways("tap long frames, steered", "tap:tap0,queues=3");
}

/// Makes TUNSETOFFLOAD fail on this thread, as in a container that filters system calls.
fn refuse_offloads() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal, ret) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let mut filter = [
        op(load, 0, 0, 0),
        op(equal, 0, 3, libc::SYS_ioctl as u32),
        op(load, 0, 0, 24), // low half of the second argument
        op(equal, 0, 1, libc::TUNSETOFFLOAD as u32),
        op(ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        op(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers; and a program that lives across the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let kind = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, kind, &raw const program), 0);
    }
}

#[test]
fn where_linux_gives_no_long_frames_it_still_takes_them() {
    let test = "tap without TUNSETOFFLOAD";
    let Some((ns, mut device)) = opened(test, "tap:tap0", refuse_offloads) else { return };
    assert!(device.info.mode.contains("to Linux only (Invalid arg"), "{}", device.info.mode);
    assert!(!device.info.partial_checksums);
    let mut host = Host::on(&mut device);
    let seen = stream(&ns, &device, &mut host, UPLOAD);
    assert!(seen.longest_in <= 14 + MTU, "{} bytes", seen.longest_in);
    assert_eq!(seen.frames_out.len(), 1);
    host.assert_nothing_leaks();
}

#[test]
fn without_offloads_every_segment_is_a_frame() {
    let spec = "tap:tap0,offloads=off";
    let Some((ns, mut device)) = opened("tap without offloads", spec, || {}) else { return };
    assert!(device.info.mode.contains("no offloads (as asked)"), "{}", device.info.mode);
    assert!(!device.info.partial_checksums);
    let mut host = Host::on(&mut device);
    let seen = stream(&ns, &device, &mut host, UPLOAD);
    assert!(seen.longest_in <= 14 + MTU, "{} bytes", seen.longest_in);
    assert_eq!(seen.frames_out.len(), DOWNLOAD.div_ceil(MSS));
    host.assert_nothing_leaks();
}

#[test]
fn a_frame_for_which_there_are_no_mbufs_is_lost_whole() {
    let test = "tap short of mbufs";
    let Some((ns, mut device)) = opened(test, "tap:tap0", || {}) else { return };
    // The first flight of ten segments needs nine mbufs. What is lost comes again in short frames.
    let mut host = Host::empty();
    let mut elsewhere: Vec<_> = std::iter::from_fn(|| host.rx.take()).collect();
    elsewhere.drain(..4).for_each(|mbuf| host.rx.put(mbuf));
    let fds = std::mem::take(&mut device.queue_fds);
    let rings = RingSizes::default();
    let nic = attach(&device.info, 0, fds, &host.memory, &mut host.rx, rings);
    host.add(nic.expect("attaches"));
    let seen = stream(&ns, &device, &mut host, HARD_UPLOAD);
    assert!(seen.longest_in <= 4 * 1792, "{} bytes", seen.longest_in);
    let drops = host.nics[0].drops();
    assert!(drops.rx_overrun > 0 && drops.rx_invalid == 0, "{drops:?}");
    elsewhere.drain(..).for_each(|mbuf| host.rx.put(mbuf));
    host.assert_nothing_leaks();
}
