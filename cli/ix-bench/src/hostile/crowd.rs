//! The crowd: connections of Linux that read slowly, and hosts behind the client's end whose
//! packets are made here, one by one.
use super::{ROAD_LINKS, SIZE};
use crate::lab::Lab;
use ix_report::problem::{Problem, Result};
use ix_sys::socket::set_option;
use ix_testbed::{Namespace, PacketSocket};
use ix_wire::{Checksum, FrameHeader, IpAddr, MacAddr, Seq, TcpFlags, TcpHeader, TcpOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time until a crowd has come together.
const GATHER: Duration = Duration::from_secs(60);
/// Messages that a slow reader asks for.
const WANTED: usize = 1024;
/// A slow reader's receive buffer, bytes; Linux doubles it.
const LITTLE: i32 = 2048;
/// Time between two reads of a slow reader.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Packets that are sent at once, before the next millisecond.
const BURST: usize = 32;
/// A request is sent again if its answer has not come by then.
const AGAIN: Duration = Duration::from_millis(500);
/// Within this time every half-open peer sends its SYN again.
const SYN_EVERY: Duration = Duration::from_secs(10);
/// Initial sequence number of all hosts.
const ISN: u32 = 0x1000_0000;
const PORT: u16 = 2000;

/// How many peers there are of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Ask for more than they read.
    pub slow: usize,
    /// Send SYNs, and nothing after them.
    pub half_open: usize,
    /// Ask for something, and never open their windows for it.
    pub closed: usize,
}

impl Crowd {
    /// A crowd of a tenth.
    pub fn tenth(self) -> Crowd {
        let Crowd { slow, half_open, closed } = self;
        Crowd { slow: slow / 10, half_open: half_open / 10, closed: closed / 10 }
    }
}

/// What the threads of a crowd share.
#[derive(Default)]
struct Told {
    /// They shall end their connections.
    over: AtomicBool,
    /// Nothing is left at the server.
    gone: AtomicBool,
    /// Parts of the crowd that are complete.
    met: AtomicUsize,
}

/// A crowd that has come together.
pub struct Gathering {
    told: Arc<Told>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Gathering {
    /// Waits until all are there.
    pub fn meet(lab: &Lab, beyond: &Namespace, at: SocketAddr, crowd: Crowd) -> Result<Gathering> {
        let cannot = |e| Problem::new("cannot gather the crowd", e);
        let told = Arc::new(Told::default());
        let mut threads = Vec::new();
        let cpu = lab.client_cpus.last().copied().unwrap_or(lab.cpus.1);
        if crowd.slow > 0 {
            let streams = lab.client_namespace().run(|| connect_all(at, crowd.slow));
            let (streams, told) = (streams.map_err(cannot)?, Arc::clone(&told));
            threads.push(std::thread::spawn(move || read_slowly(streams, cpu, &told)));
        }
        if crowd.half_open + crowd.closed > 0 {
            let wire = Wire::open(lab, beyond, at)?;
            let told = Arc::clone(&told);
            threads.push(std::thread::spawn(move || Hosts::new(wire, crowd).live(cpu, &told)));
        }
        let gathering = Gathering { told, threads };
        let end = Instant::now() + GATHER;
        while gathering.told.met.load(Ordering::Acquire) < gathering.threads.len() {
            if gathering.threads.iter().any(JoinHandle::is_finished) {
                return Err(gathering.leave(|| ()).err().unwrap_or_else(|| {
                    Problem::new("cannot gather the crowd", "a part of it has left early")
                }));
            }
            if Instant::now() > end {
                let why = format!("it is not complete after {} s", GATHER.as_secs());
                return Err(Problem::new("cannot gather the crowd", why));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(gathering)
    }

    /// Ends all connections. `settled` waits until the server has nothing of them left; meanwhile
    /// the hosts reset what comes to them.
    pub fn leave(mut self, settled: impl FnOnce()) -> Result<()> {
        self.told.over.store(true, Ordering::Release);
        settled();
        self.told.gone.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let failed = |e| Problem::new("the crowd has failed", e);
            match thread.join() {
                Ok(outcome) => outcome.map_err(failed)?,
                Err(_) => return Err(failed(std::io::Error::other("it panicked"))),
            }
        }
        Ok(())
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        self.told.over.store(true, Ordering::Release);
        self.told.gone.store(true, Ordering::Release);
    }
}

/// Whether nothing more can be asked for now, or ever.
fn gives_up(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
    matches!(error.kind(), WouldBlock | ConnectionReset | BrokenPipe)
}

fn connect_all(at: SocketAddr, count: usize) -> std::io::Result<Vec<TcpStream>> {
    (0..count)
        .map(|_| {
            let stream = TcpStream::connect_timeout(&at, GATHER)?;
            set_option(stream.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, LITTLE)?;
            stream.set_nonblocking(true)?;
            ix_sys::socket::reset_on_close(&stream)?;
            Ok(stream)
        })
        .collect()
}

/// Each asks for [`WANTED`] messages, as far as they fit, and reads one now and then.
fn read_slowly(mut streams: Vec<TcpStream>, cpu: usize, told: &Told) -> std::io::Result<()> {
    ix_sys::cpu::pin(cpu)?;
    let request = vec![7u8; SIZE];
    for stream in &mut streams {
        for _ in 0..WANTED {
            match stream.write(&request) {
                Ok(_) => {}
                Err(e) if gives_up(&e) => break,
                Err(e) => return Err(e),
            }
        }
    }
    told.met.fetch_add(1, Ordering::Release);
    let pause = READ_EVERY / streams.len().max(1) as u32;
    let mut reset = vec![false; streams.len()];
    loop {
        for (stream, reset) in streams.iter_mut().zip(&mut reset) {
            if told.over.load(Ordering::Acquire) {
                return Ok(());
            }
            match stream.read(&mut [0; SIZE]) {
                _ if *reset => {}
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The dataplane had no frame left, and says how many it has reset.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => *reset = true,
                Err(e) => return Err(e),
            }
            std::thread::sleep(pause);
        }
    }
}

/// Frames from and to the hosts of the crowd.
struct Wire {
    socket: PacketSocket,
    /// Of the frames that it sends: receiver and sender.
    macs: (MacAddr, MacAddr),
    server: (Ipv4Addr, u16),
}

/// A segment that has come to a host.
struct Seen {
    host: Host,
    header: TcpHeader,
    bytes: usize,
}

/// A host of the crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    number: u16,
    /// Its window is closed; otherwise its handshake is half open.
    closed: bool,
}

impl Host {
    fn address(self) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(198, 18 + u8::from(self.closed), high, low)
    }

    fn at(address: IpAddr) -> Option<Host> {
        match address.as_v4()? {
            [198, net @ (18 | 19), high, low] => {
                Some(Host { number: u16::from_be_bytes([high, low]), closed: net == 19 })
            }
            _ => None,
        }
    }
}

impl Wire {
    fn open(lab: &Lab, beyond: &Namespace, at: SocketAddr) -> Result<Wire> {
        let cannot = |e| Problem::new("cannot open the crowd's link", e);
        let mac = |namespace: &Namespace, link: &str| {
            let found = namespace.link(link).map_err(cannot)?;
            found
                .map(|link| link.mac)
                .ok_or_else(|| Problem::new("cannot open the crowd's link", link))
        };
        let (router, own) =
            (mac(lab.client_namespace(), ROAD_LINKS[0])?, mac(beyond, ROAD_LINKS[1])?);
        let SocketAddr::V4(server) = at else {
            return Err(Problem::new("cannot open the crowd's link", "the server speaks IPv6"));
        };
        let socket = PacketSocket::open(beyond, ROAD_LINKS[1]).map_err(cannot)?;
        Ok(Wire { socket, macs: (router, own), server: (*server.ip(), server.port()) })
    }

    /// Sends a segment; one that finds no room is lost.
    fn send(&self, host: Host, (seq, ack): (u32, u32), flags: TcpFlags, payload: &[u8]) {
        let mut options = TcpOptions::NONE;
        if flags == TcpFlags::SYN {
            options.mss = Some(1460);
        }
        let header = TcpHeader {
            src_port: PORT,
            dst_port: self.server.1,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: if flags == TcpFlags::SYN { 60_000 } else { 0 },
            urgent: 0,
            options,
        };
        let (src, dst) = (host.address().octets(), self.server.0.octets());
        let ip = FrameHeader {
            eth_src: self.macs.1,
            eth_dst: self.macs.0,
            src: IpAddr::v4(src),
            dst: IpAddr::v4(dst),
            ttl: 64,
            tos: 0,
            ident: 0,
        };
        let mut frame = [0u8; 256];
        let len = ip.emit_tcp(&mut frame, &header, payload.len(), Checksum::of(payload));
        frame[len..len + payload.len()].copy_from_slice(payload);
        let _ = self.socket.send(&frame[..len + payload.len()]);
    }

    /// The next segment from the server; `None` if none has come in time.
    fn receive(&self, wait: Duration) -> std::io::Result<Option<Seen>> {
        let Some(frame) = self.socket.receive(wait)? else { return Ok(None) };
        Ok(read(&frame))
    }
}

/// Reads a TCP segment for a host of the crowd out of a frame.
fn read(frame: &[u8]) -> Option<Seen> {
    // Linux has forwarded it, so it is a valid packet.
    let packet = frame.get(14..).filter(|packet| packet.len() >= 40 && packet[0] == 0x45)?;
    let host = Host::at(IpAddr::v4([packet[16], packet[17], packet[18], packet[19]]))?;
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let segment = packet.get(20..total).filter(|_| packet[9] == 6)?;
    let (header, len) = TcpHeader::parse(segment).ok()?;
    Some(Seen { host, header, bytes: segment.len() - len })
}

/// The hosts of the crowd.
struct Hosts {
    wire: Wire,
    half_open: usize,
    /// The next number that each host with a closed window expects; `None` before its SYN-ACK.
    closed: Vec<Option<u32>>,
    /// Whether its request was acknowledged.
    asked: Vec<bool>,
    /// How many of those there are.
    open: usize,
}

impl Hosts {
    fn new(wire: Wire, crowd: Crowd) -> Hosts {
        Hosts {
            wire,
            half_open: crowd.half_open,
            closed: vec![None; crowd.closed],
            asked: vec![false; crowd.closed],
            open: 0,
        }
    }

    fn live(mut self, cpu: usize, told: &Told) -> std::io::Result<()> {
        ix_sys::cpu::pin(cpu)?;
        self.gather(told)?;
        told.met.fetch_add(1, Ordering::Release);
        let (mut sent, begin) = (0u32, Instant::now());
        while !told.over.load(Ordering::Acquire) {
            let due = begin.elapsed().as_secs_f64() / SYN_EVERY.as_secs_f64();
            while f64::from(sent) < due * self.half_open as f64 {
                self.syn(Host { number: (sent as usize % self.half_open) as u16, closed: false });
                sent += 1;
            }
            self.answer(Duration::from_millis(1))?;
        }
        self.reset_all(told)
    }

    fn syn(&self, host: Host) {
        self.wire.send(host, (ISN, 0), TcpFlags::SYN, &[]);
    }

    fn request(&self, host: Host, ack: u32) {
        self.wire.send(host, (ISN + 1, ack), TcpFlags::ACK | TcpFlags::PSH, &[9; SIZE]);
    }

    /// Opens all connections, and sends the first SYNs of those that stay half open.
    fn gather(&mut self, told: &Told) -> std::io::Result<()> {
        for number in 0..self.half_open {
            self.syn(Host { number: number as u16, closed: false });
            self.pause(number)?;
        }
        while self.open < self.closed.len() && !told.over.load(Ordering::Acquire) {
            let round = Instant::now();
            for number in 0..self.closed.len() {
                let host = Host { number: number as u16, closed: true };
                match self.closed[number] {
                    _ if self.asked[number] => continue,
                    Some(ack) => self.request(host, ack),
                    None => self.syn(host),
                }
                self.pause(number)?;
            }
            while self.open < self.closed.len() && round.elapsed() < AGAIN {
                self.answer(Duration::from_millis(1))?;
            }
        }
        Ok(())
    }

    /// Lets queues become empty, now and then.
    fn pause(&mut self, number: usize) -> std::io::Result<()> {
        if number.is_multiple_of(BURST) { self.answer(Duration::from_millis(1)) } else { Ok(()) }
    }

    /// Answers what has come, until nothing comes for this long, but a second at most.
    fn answer(&mut self, wait: Duration) -> std::io::Result<()> {
        let end = Instant::now() + Duration::from_secs(1);
        while let Some(seen) = self.wire.receive(wait)? {
            let Host { number, closed } = seen.host;
            let number = usize::from(number);
            if closed && number < self.closed.len() {
                self.answer_closed(number, &seen);
            }
            if Instant::now() > end {
                break;
            }
        }
        Ok(())
    }

    /// What a host does that keeps its window closed.
    fn answer_closed(&mut self, number: usize, seen: &Seen) {
        let Seen { host, header, bytes } = seen;
        if header.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
            let ack = header.seq.0.wrapping_add(1);
            self.closed[number] = Some(ack);
            return self.request(*host, ack);
        }
        if header.flags.contains(TcpFlags::RST) {
            self.closed[number] = None;
            return;
        }
        let Some(ack) = self.closed[number] else { return };
        let end = ISN + 1 + SIZE as u32;
        if header.ack.0 == end && !self.asked[number] {
            self.asked[number] = true;
            self.open += 1;
        }
        // A probe: what does not fit, or is below what is expected.
        if *bytes > 0 || header.seq.0 != ack {
            self.wire.send(*host, (header.ack.0, ack), TcpFlags::ACK, &[]);
        }
    }

    /// All have gone: resets what they had, and what still comes.
    fn reset_all(&self, told: &Told) -> std::io::Result<()> {
        let half_open = (0..self.half_open).map(|number| (number, false, 1));
        let closed = (0..self.closed.len()).map(|number| (number, true, 1 + SIZE as u32));
        for (count, (number, closed, sent)) in half_open.chain(closed).enumerate() {
            let host = Host { number: number as u16, closed };
            self.wire.send(host, (ISN + sent, 0), TcpFlags::RST, &[]);
            if count.is_multiple_of(BURST) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        while !told.gone.load(Ordering::Acquire) {
            let Some(seen) = self.wire.receive(Duration::from_millis(10))? else { continue };
            if !seen.header.flags.contains(TcpFlags::RST) {
                self.wire.send(seen.host, (seen.header.ack.0, 0), TcpFlags::RST, &[]);
            }
        }
        Ok(())
    }
}
