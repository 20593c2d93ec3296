//! The generator on Linux sockets: epoll, sleeping or spinning, one thread.
use crate::clock::Clock;
use crate::engine::{End, Engine, Verdict};
use crate::protocol::Protocol;
use crate::worker::Backend;
use ix_programs::socket::{self, is_passing, write_some};
use ix_sys::Epoll;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};

/// Longest sleep, so that the thread notices the end of a run.
const SLEEP_MS: u64 = 20;
/// The kernel wakes the thread later than asked: the rest of the time is spent polling.
const WAKE_NS: u64 = 1_000_000;
const EVENTS: usize = 256;
/// Most datagrams read from one socket at once.
const DATAGRAMS: usize = 32;

enum Socket {
    None,
    Tcp(TcpStream),
    Udp(UdpSocket),
}

struct Slot {
    socket: Socket,
    connecting: bool,
    /// Bytes that the kernel had no room for, and the offset of the first unsent byte.
    unsent: Option<Box<(Vec<u8>, usize)>>,
}

/// An engine on sockets.
pub struct Linux<P> {
    engine: Engine<P>,
    epoll: Epoll,
    slots: Vec<Slot>,
    targets: Vec<SocketAddr>,
    sources: Vec<IpAddr>,
    spin: bool,
    sleep: bool,
    buf: Vec<u8>,
    out: Vec<u8>,
}

impl<P: Protocol> Linux<P> {
    /// Connection i goes to target i from source i, both modulo their number.
    pub fn new(
        engine: Engine<P>,
        targets: Vec<SocketAddr>,
        sources: Vec<IpAddr>,
        spin: bool,
    ) -> io::Result<Linux<P>> {
        let slot = |_| Slot { socket: Socket::None, connecting: false, unsent: None };
        let slots = (0..engine.connections()).map(slot).collect();
        Ok(Linux {
            engine,
            epoll: Epoll::new(EVENTS)?,
            slots,
            targets,
            sources,
            spin,
            sleep: false,
            buf: vec![0; 256 << 10],
            out: Vec::with_capacity(64 << 10),
        })
    }

    fn dial(&mut self, index: u32, now_ns: u64) -> io::Result<()> {
        let at = index as usize;
        let target = self.targets[at % self.targets.len()];
        let source = match self.sources.len() {
            0 => None,
            // The source advances after each round over the targets, so every pair is used.
            n => Some(self.sources[at / self.targets.len() % n]),
        };
        let slot = &mut self.slots[at];
        let made = if self.engine.is_udp() {
            udp_socket(source, target).map(Socket::Udp)
        } else {
            socket::connect_from(source, target).map(Socket::Tcp)
        };
        match made {
            Ok(Socket::Tcp(stream)) => {
                self.epoll.add(&stream, EPOLLOUT, index.into())?;
                (slot.socket, slot.connecting) = (Socket::Tcp(stream), true);
            }
            Ok(Socket::Udp(socket)) => {
                self.epoll.add(&socket, EPOLLIN, index.into())?;
                (slot.socket, slot.connecting) = (Socket::Udp(socket), false);
                self.engine.connected(index, now_ns);
                self.flush(index, now_ns);
            }
            Ok(Socket::None) => {}
            Err(error) => {
                self.engine.closed(index, End::NotConnected(error.to_string()), now_ns);
            }
        }
        Ok(())
    }

    fn ready(&mut self, index: u32, events: libc::c_int, now_ns: u64) -> io::Result<()> {
        let slot = &mut self.slots[index as usize];
        let stream = match &mut slot.socket {
            Socket::None => return Ok(()),
            Socket::Udp(_) => {
                self.receive(index, now_ns);
                self.flush(index, now_ns);
                return Ok(());
            }
            Socket::Tcp(stream) => stream,
        };
        if slot.connecting {
            if let Some(error) = stream.take_error()? {
                self.end(index, End::NotConnected(error.to_string()), now_ns);
                return Ok(());
            }
            slot.connecting = false;
            self.epoll.change(stream, EPOLLIN, index.into())?;
            self.engine.connected(index, now_ns);
            self.flush(index, now_ns);
            return Ok(());
        }
        if events & (EPOLLIN | EPOLLHUP | EPOLLERR) != 0 {
            match stream.read(&mut self.buf) {
                Ok(0) => {
                    self.end(index, End::Closed, now_ns);
                    return Ok(());
                }
                Ok(n) => match self.engine.input(index, &self.buf[..n], now_ns) {
                    Verdict::Open => {}
                    Verdict::Reset => {
                        self.reset(index);
                        return Ok(());
                    }
                },
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    self.end(index, End::Reset(error.to_string()), now_ns);
                    return Ok(());
                }
            }
        }
        self.flush(index, now_ns);
        Ok(())
    }

    fn receive(&mut self, index: u32, now_ns: u64) {
        for _ in 0..DATAGRAMS {
            let Socket::Udp(socket) = &self.slots[index as usize].socket else { return };
            match socket.recv(&mut self.buf) {
                Ok(n) => self.engine.input_datagram(index, &self.buf[..n], now_ns),
                Err(error) if is_passing(&error) => return,
                Err(error) => return self.end(index, End::Reset(error.to_string()), now_ns),
            }
        }
    }

    /// Sends all that is ready.
    fn flush(&mut self, index: u32, now_ns: u64) {
        let slot = &self.slots[index as usize];
        match slot.socket {
            Socket::Udp(_) => self.flush_datagrams(index, now_ns),
            Socket::Tcp(_) if !slot.connecting => self.flush_stream(index, now_ns),
            Socket::Tcp(_) | Socket::None => {}
        }
    }

    fn flush_stream(&mut self, index: u32, now_ns: u64) {
        loop {
            match self.send(index, now_ns) {
                // There may be more to send.
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.end(index, End::Reset(error.to_string()), now_ns),
            }
        }
    }

    /// Sends the rest of earlier requests, or new ones if there is no rest. Returns whether a whole
    /// rest was sent.
    fn send(&mut self, index: u32, now_ns: u64) -> io::Result<bool> {
        let Linux { engine, epoll, slots, out, .. } = self;
        let slot = &mut slots[index as usize];
        let Socket::Tcp(stream) = &slot.socket else { return Ok(false) };
        let was_blocked = slot.unsent.is_some();
        slot.unsent = match slot.unsent.take() {
            None => {
                out.clear();
                engine.output(index, now_ns, out);
                if out.is_empty() {
                    return Ok(false);
                }
                let sent = write_some(stream, out)?;
                (sent < out.len()).then(|| Box::new((out.clone(), sent)))
            }
            Some(mut left) => {
                left.1 += write_some(stream, &left.0[left.1..])?;
                (left.1 < left.0.len()).then_some(left)
            }
        };
        let blocked = slot.unsent.is_some();
        if blocked != was_blocked {
            let interest = if blocked { EPOLLIN | EPOLLOUT } else { EPOLLIN };
            epoll.change(stream, interest, index.into())?;
        }
        Ok(was_blocked && !blocked)
    }

    fn flush_datagrams(&mut self, index: u32, now_ns: u64) {
        let Socket::Udp(socket) = &self.slots[index as usize].socket else { return };
        self.out.clear();
        while self.engine.output_datagram(index, now_ns, &mut self.out) {
            match socket.send(&self.out) {
                Ok(_) => {}
                // Lost as any other datagram: the request times out.
                Err(error) if is_passing(&error) => {}
                Err(error) => return self.end(index, End::Reset(error.to_string()), now_ns),
            }
            self.out.clear();
        }
    }

    fn end(&mut self, index: u32, end: End, now_ns: u64) {
        self.close(index);
        self.engine.closed(index, end, now_ns);
    }

    fn reset(&mut self, index: u32) {
        if let Socket::Tcp(stream) = &self.slots[index as usize].socket {
            // Without this the connection closes normally, which does no harm.
            let _ = socket::reset_on_close(stream);
        }
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        (slot.socket, slot.connecting, slot.unsent) = (Socket::None, false, None);
    }

    /// Whether the thread sleeps until a request is due, and never polls.
    pub fn sleep(&mut self, sleep: bool) {
        self.sleep = sleep;
    }

    /// Waits for events, at most until something is due.
    fn wait(&mut self, now_ns: u64) -> io::Result<usize> {
        if self.sleep {
            let idle_ns = self.engine.next_ns().saturating_sub(now_ns);
            return self.epoll.wait_ns(idle_ns.min(SLEEP_MS * 1_000_000));
        }
        self.epoll.wait(self.timeout_ms(now_ns))
    }

    /// Time until something is due, ms.
    fn timeout_ms(&self, now_ns: u64) -> i32 {
        if self.spin {
            return 0;
        }
        let idle_ns = self.engine.next_ns().saturating_sub(now_ns).saturating_sub(WAKE_NS);
        (idle_ns / 1_000_000).min(SLEEP_MS) as i32
    }
}

impl<P: Protocol> Backend<P> for Linux<P> {
    fn engine(&mut self) -> &mut Engine<P> {
        &mut self.engine
    }

    fn turn(&mut self, clock: &Clock) -> anyhow::Result<()> {
        let now_ns = clock.now_ns();
        while let Some(index) = self.engine.dial(now_ns) {
            self.dial(index, now_ns)?;
        }
        while let Some(index) = self.engine.take_ready() {
            self.flush(index, now_ns);
        }
        while let Some(index) = self.engine.take_stuck() {
            self.reset(index);
        }
        let events = self.wait(now_ns)?;
        for at in 0..events {
            let (what, token) = self.epoll.event(at);
            // Each event costs the kernel several µs; one reading of the clock is little.
            self.ready(token as u32, what, clock.now_ns())?;
        }
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        (0..self.slots.len() as u32).for_each(|index| self.reset(index));
        Ok(())
    }
}

fn udp_socket(source: Option<IpAddr>, target: SocketAddr) -> io::Result<UdpSocket> {
    let any = match target {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
