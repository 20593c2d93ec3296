//! The server on Linux sockets: epoll, sleeping or spinning, one thread.
use crate::counters::Counters;
use crate::reply::Reply;
use crate::service::{Service, TOO_MANY};
use crate::session::Session;
use crate::udp;
use ix_programs::clock;
use ix_programs::socket::{self, is_passing, write_some};
use ix_sys::Epoll;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// Tokens; connections have their slot.
const LISTENER: u64 = u64::MAX;
const DATAGRAMS: u64 = u64::MAX - 1;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Most datagrams handled before connections get their turn.
const DATAGRAM_BURST: usize = 64;
/// Without a descriptor or memory for another connection, try again after this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

struct Client {
    stream: TcpStream,
    session: Session,
    /// The rest of a reply that the socket did not take. While there is one, nothing is read.
    unsent: Vec<u8>,
    /// Requests that wait for it.
    held: Vec<u8>,
}

struct Server {
    service: &'static Service,
    me: &'static Counters,
    epoll: Epoll,
    listener: Option<TcpListener>,
    datagrams: Option<UdpSocket>,
    slots: Vec<Option<Client>>,
    free: Vec<usize>,
    reply: Reply,
    buf: Vec<u8>,
}

/// Serves without end.
pub fn serve(
    service: &'static Service,
    thread: usize,
    listener: Option<TcpListener>,
    datagrams: Option<UdpSocket>,
    spin: bool,
) -> io::Result<()> {
    let epoll = Epoll::new(256)?;
    if let Some(listener) = &listener {
        epoll.add(listener, EPOLLIN, LISTENER)?;
    }
    if let Some(socket) = &datagrams {
        socket.set_nonblocking(true)?;
        epoll.add(socket, EPOLLIN, DATAGRAMS)?;
    }
    let mut server = Server {
        service,
        me: service.store.counters(thread),
        epoll,
        listener,
        datagrams,
        slots: Vec::new(),
        free: Vec::new(),
        reply: Reply::new(false),
        buf: vec![0; READ_BYTES],
    };
    let timeout_ms = if spin { 0 } else { -1 };
    loop {
        for index in 0..server.epoll.wait(timeout_ms)? {
            match server.epoll.event(index) {
                (_, LISTENER) => server.accept()?,
                (_, DATAGRAMS) => server.receive(),
                (events, token) => server.ready(token as usize, events),
            }
        }
    }
}

/// µs of the clock for [`Service::now`].
pub fn clock_us() -> u64 {
    clock::now_ns() / 1000
}

impl Server {
    fn accept(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        loop {
            let mut stream = match socket::accept(listener) {
                Ok(Some(stream)) => stream,
                Ok(None) => return Ok(()),
                // Out of descriptors or memory: served connections must not suffer.
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    return Ok(());
                }
            };
            if !self.service.admit(self.me) {
                // If the message cannot be sent, it is the client's problem.
                let _ = stream.write(TOO_MANY);
                continue;
            }
            let session = Session::default();
            let client = Client { stream, session, unsent: Vec::new(), held: Vec::new() };
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() - 1
            });
            self.epoll.add(&client.stream, EPOLLIN, index as u64)?;
            self.slots[index] = Some(client);
        }
    }

    fn receive(&mut self) {
        let Some(socket) = &self.datagrams else { return };
        for _ in 0..DATAGRAM_BURST {
            let Ok((n, from)) = socket.recv_from(&mut self.buf) else { return };
            let context = self.service.context(self.me, clock_us());
            udp::answer(&self.buf[..n], &context, &mut self.reply, |front, part| {
                udp::joined(front, part, |datagram| socket.send_to(datagram, from).is_ok())
            });
        }
    }

    fn ready(&mut self, index: usize, events: libc::c_int) {
        let Some(client) = self.slots.get_mut(index).and_then(Option::take) else { return };
        match self.turn(client, index, events) {
            Some(client) => self.slots[index] = Some(client),
            None => {
                self.free.push(index);
                self.me.curr_connections.sub(1);
            }
        }
    }

    /// Writes, carries out and reads as far as possible; `None`: the connection has ended.
    fn turn(&mut self, mut client: Client, index: usize, events: libc::c_int) -> Option<Client> {
        let was_blocked = !client.unsent.is_empty();
        if was_blocked {
            let sent = write_some(&client.stream, &client.unsent).ok()?;
            client.unsent.drain(..sent);
            if !client.unsent.is_empty() {
                return Some(client);
            }
            let held = core::mem::take(&mut client.held);
            self.carry_out(&mut client, &held)?;
        } else if events & (EPOLLIN | EPOLLHUP | EPOLLERR) != 0 {
            let mut buf = core::mem::take(&mut self.buf);
            let outcome = match client.stream.read(&mut buf) {
                Ok(0) => None,
                Ok(n) => {
                    self.me.bytes_read.add(n as u64);
                    self.carry_out(&mut client, &buf[..n])
                }
                Err(error) if is_passing(&error) => Some(()),
                Err(_) => None,
            };
            self.buf = buf;
            outcome?;
        }
        let blocked = !client.unsent.is_empty();
        if blocked != was_blocked {
            let interest = if blocked { EPOLLOUT } else { EPOLLIN };
            self.epoll.change(&client.stream, interest, index as u64).ok()?;
        }
        Some(client)
    }

    /// Carries out requests while the socket takes the replies; `None`: close.
    fn carry_out(&mut self, client: &mut Client, input: &[u8]) -> Option<()> {
        let context = self.service.context(self.me, clock_us());
        let mut taken = 0;
        loop {
            taken += client.session.feed(&input[taken..], &context, &mut self.reply);
            let more = self.reply.is_full();
            let bytes = &self.reply.bytes;
            self.me.bytes_written.add(bytes.len() as u64);
            let sent = write_some(&client.stream, bytes);
            if let Ok(sent) = sent {
                client.unsent.extend_from_slice(&bytes[sent..]);
            }
            self.reply.clear();
            sent.ok()?;
            if client.session.is_closed() {
                return None;
            }
            if !client.unsent.is_empty() {
                client.held.extend_from_slice(&input[taken..]);
                return Some(());
            }
            if !more {
                return Some(());
            }
        }
    }
}
