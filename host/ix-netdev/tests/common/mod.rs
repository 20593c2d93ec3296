//! A host of a few lines behind a device: answers ARP and echoes UDP.
#![allow(dead_code)] // Each test file uses a part.

use ix_mem::{PacketMemory, Pool, Sizes};
use ix_netdev::{OpenOptions, OpenedDevice};
use ix_nic::{Nic, RingSizes, RxPacket, attach, deal};
use ix_skip::{Need, skip};
use ix_testbed::Namespace;
use ix_wire::IpAddr;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const OUR_IP: [u8; 4] = [10, 9, 0, 2];
pub const LINUX_IP: [u8; 4] = [10, 9, 0, 1];
pub const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

pub fn options() -> OpenOptions {
    OpenOptions {
        addresses: vec![IpAddr::v4(OUR_IP)],
        flow_hash_key: KEY,
        ..OpenOptions::default()
    }
}

/// A fresh namespace, or none and a line that says how to get one.
pub fn namespace(test: &str) -> Option<Namespace> {
    match Namespace::new() {
        Ok(namespace) => Some(namespace),
        Err(e) => {
            skip(test, Need::Root, e);
            None
        }
    }
}

/// What waits for something that happens soon.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !happened() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// CAP_NET_ADMIN in a set of capabilities.
pub const NET_ADMIN: u32 = 1 << 12;

/// Takes all capabilities but these off the calling thread.
pub fn keep_capabilities(kept: u32) {
    let header = [0x2008_0522u32, 0];
    let sets = [kept, kept, 0, 0, 0, 0];
    // SAFETY: header and sets have the layout of version 3, and live across the call.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }, 0);
}

/// Frames to work with, and the queue pairs of a device.
pub struct Host {
    pub memory: PacketMemory,
    pub rx: Pool,
    pub tx: Pool,
    pub nics: Vec<Box<dyn Nic>>,
    pub packets: Vec<usize>,
    pub burst: Vec<RxPacket>,
    pub queued: VecDeque<ix_mem::Mbuf>,
    /// Whom it answers for.
    pub ip: [u8; 4],
}

impl Host {
    pub fn empty() -> Host {
        let sizes = Sizes { rx_frames: 4096, tx_frames: 2048, arena_bytes: 0 };
        Host::over(PacketMemory::new(sizes).expect("memory"))
    }

    /// A host without devices, with this memory.
    pub fn over(memory: PacketMemory) -> Host {
        // SAFETY: the only pools of this memory.
        let (rx, tx) = unsafe { (Pool::new(memory.rx_frames()), Pool::new(memory.tx_frames())) };
        let (nics, packets, burst, queued) = Default::default();
        Host { memory, rx, tx, nics, packets, burst, queued, ip: OUR_IP }
    }

    /// A host on all queue pairs of an open device.
    pub fn on(device: &mut OpenedDevice) -> Host {
        let mut host = Host::empty();
        let fds = deal(&device.info, 0, std::mem::take(&mut device.queue_fds));
        for (queue, fds) in fds.into_iter().enumerate() {
            let rings = RingSizes { rx: 512, fill: 1024, tx: 512 };
            let nic = attach(&device.info, queue, fds, &host.memory, &mut host.rx, rings);
            host.add(nic.expect("attaches"));
            device.finish(queue).expect("finishes");
        }
        host
    }

    pub fn add(&mut self, nic: Box<dyn Nic>) {
        self.nics.push(nic);
        self.packets.push(0);
    }

    /// Takes the frames that wait on a queue, each whole.
    pub fn receive(&mut self, queue: usize) -> Vec<Vec<u8>> {
        let n = self.nics[queue].receive(&self.memory, &mut self.rx, 64, &mut self.burst);
        assert_eq!(n, self.burst.len());
        assert!(self.burst.last().is_none_or(|last| !last.more), "ends within a frame");
        self.packets[queue] += n;
        let (mut frames, mut continues) = (Vec::<Vec<u8>>::new(), false);
        for packet in self.burst.drain(..) {
            let bytes = packet.mbuf.bytes(&self.memory);
            match frames.last_mut() {
                Some(frame) if continues => frame.extend_from_slice(bytes),
                _ => frames.push(bytes.to_vec()),
            }
            continues = packet.more;
            self.rx.put(packet.mbuf);
        }
        frames
    }

    /// Sends a frame; false when there are no buffers for it.
    pub fn send(&mut self, queue: usize, frame: &[u8]) -> bool {
        let Some(mut mbuf) = self.tx.take_frame(&self.memory, frame.len()) else { return false };
        mbuf.write_at(&self.memory, 0, frame);
        self.queued.push_back(mbuf);
        self.nics[queue].transmit(&self.memory, &mut self.tx, &mut self.queued);
        true
    }

    pub fn kick(&mut self, queue: usize) {
        self.nics[queue].transmit(&self.memory, &mut self.tx, &mut self.queued);
        self.nics[queue].kick(&self.memory, &mut self.tx);
    }

    /// One cycle of all queues.
    pub fn cycle(&mut self) {
        for queue in 0..self.nics.len() {
            let mac = self.nics[queue].info().mac;
            for frame in self.receive(queue) {
                if let Some(answer) = answer_as(&frame, mac, self.ip) {
                    self.send(queue, &answer);
                }
            }
            self.kick(queue);
        }
    }

    /// Serves while `work` runs, which may be in another namespace.
    pub fn serve<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                done.store(true, Ordering::Release);
                result
            });
            while !done.load(Ordering::Acquire) {
                self.cycle();
                // The client needs a CPU too, and there are few.
                std::thread::yield_now();
            }
            match worker.join().expect("caught inside") {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Every frame is free, queued or with a device; and after closing all are free.
    pub fn assert_nothing_leaks(&mut self) {
        assert!(self.queued.is_empty());
        let held = self.nics.iter().map(|nic| nic.frames_held());
        let (rx, tx) = held.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1));
        assert_eq!((self.rx.in_use(), self.tx.in_use()), (rx as isize, tx as isize));
        for nic in &mut self.nics {
            nic.close(&mut self.rx, &mut self.tx);
            assert_eq!(nic.frames_held(), (0, 0));
        }
        assert_eq!((self.rx.in_use(), self.tx.in_use()), (0, 0));
    }
}

/// What a host at `OUR_IP` says to a frame.
pub fn answer(frame: &[u8], mac: [u8; 6]) -> Option<Vec<u8>> {
    answer_as(frame, mac, OUR_IP)
}

/// What a host at this address says to a frame.
pub fn answer_as(frame: &[u8], mac: [u8; 6], ip: [u8; 4]) -> Option<Vec<u8>> {
    let mut out = frame.to_vec();
    out.copy_within(6..12, 0);
    out[6..12].copy_from_slice(&mac);
    match (frame[12], frame[13]) {
        // ARP: a request for us becomes the answer.
        (0x08, 0x06) if frame[20..22] == [0, 1] && frame[38..42] == ip => {
            out[21] = 2;
            out.copy_within(22..32, 32);
            out[22..28].copy_from_slice(&mac);
            out[28..32].copy_from_slice(&ip);
            Some(out)
        }
        // UDP: swap ends. The swap keeps the IP checksum; no UDP checksum is fine on IPv4, and
        // the one that came in may be partial.
        (0x08, 0x00) if frame[23] == 17 && frame[30..34] == ip => {
            let (addresses, ports) = (frame[26..34].to_vec(), frame[34..38].to_vec());
            out[26..30].copy_from_slice(&addresses[4..]);
            out[30..34].copy_from_slice(&addresses[..4]);
            out[34..36].copy_from_slice(&ports[2..]);
            out[36..38].copy_from_slice(&ports[..2]);
            out[40..42].copy_from_slice(&[0, 0]);
            Some(out)
        }
        _ => None,
    }
}

/// An IPv4 frame of this protocol from Linux to us, with nothing but what steering looks at.
pub fn ipv4_frame(protocol: u8, ports: (u16, u16), ihl: u8, fragment: u16) -> Vec<u8> {
    let header = 14 + 4 * usize::from(ihl);
    let mut frame = vec![0; header + 20];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x40 | ihl;
    frame[20..22].copy_from_slice(&fragment.to_be_bytes());
    frame[23] = protocol;
    frame[26..30].copy_from_slice(&LINUX_IP);
    frame[30..34].copy_from_slice(&OUR_IP);
    frame[header..header + 2].copy_from_slice(&ports.0.to_be_bytes());
    frame[header + 2..header + 4].copy_from_slice(&ports.1.to_be_bytes());
    frame
}

/// Opens a UDP socket on Linux's end and connects it to us. The calling thread is in its namespace.
pub fn client() -> UdpSocket {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::from(LINUX_IP), 0)).expect("binds");
    socket.connect((std::net::Ipv4Addr::from(OUR_IP), 7)).expect("connects");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("sets");
    socket
}

/// Echoes `count` messages of varying length, at most `window` under way, and compares contents.
/// Answers how many came back.
pub fn echo(socket: &UdpSocket, count: usize, window: usize) -> usize {
    echo_up_to(socket, 1408, count, window)
}

/// The same with messages of up to `most` bytes.
pub fn echo_up_to(socket: &UdpSocket, most: usize, count: usize, window: usize) -> usize {
    let message = |i: usize| {
        let mut bytes = vec![i as u8; 8 + i * 37 % (most - 8)];
        bytes[..8].copy_from_slice(&(i as u64).to_be_bytes());
        bytes
    };
    let (mut sent, mut back) = (0, 0);
    let mut buffer = vec![0; most];
    while back < count {
        while sent < count && sent - back < window {
            socket.send(&message(sent)).expect("sends");
            sent += 1;
        }
        let Ok(n) = socket.recv(&mut buffer) else { break };
        let i = u64::from_be_bytes(buffer[..8].try_into().expect("8 bytes")) as usize;
        assert_eq!(buffer[..n], message(i));
        back += 1;
    }
    back
}
