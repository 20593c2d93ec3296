//! A service on Linux sockets: epoll, sleeping or spinning, one thread.
use crate::socket::{self, is_passing};
use crate::{End, Service, Verdict, clock};
use ix_sys::Epoll;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// First token of listeners; connections have their slot as token.
const LISTENER: u64 = 1 << 32;
/// Longest sleep, so that the thread notices the end of a run.
const SLEEP_MS: i32 = 20;

struct Slot<C> {
    stream: TcpStream,
    conn: C,
    connecting: bool,
    /// Waiting for room to send.
    blocked: bool,
}

struct Loop<S: Service> {
    service: S,
    epoll: Epoll,
    listeners: Vec<TcpListener>,
    target: Option<SocketAddr>,
    slots: Vec<Option<Slot<S::Conn>>>,
    free: Vec<usize>,
    buf: Vec<u8>,
}

/// Serves a listener until the service has finished.
pub fn serve<S: Service>(listener: TcpListener, service: S, spin: bool) -> io::Result<S> {
    serve_all(vec![listener], service, spin)
}

/// Serves several listeners until the service has finished.
pub fn serve_all<S: Service>(listeners: Vec<TcpListener>, service: S, spin: bool) -> io::Result<S> {
    let mut state = Loop::new(service)?;
    for (token, listener) in (LISTENER..).zip(&listeners) {
        state.epoll.add(listener, EPOLLIN, token)?;
    }
    state.listeners = listeners;
    state.run(spin)
}

/// Keeps this many connections open until the service has finished or no connection is left.
pub fn connect<S: Service>(
    to: SocketAddr,
    connections: usize,
    service: S,
    spin: bool,
) -> io::Result<S> {
    let mut state = Loop::new(service)?;
    state.target = Some(to);
    for _ in 0..connections {
        state.dial()?;
    }
    state.run(spin)
}

impl<S: Service> Loop<S> {
    fn new(service: S) -> io::Result<Loop<S>> {
        Ok(Loop {
            service,
            epoll: Epoll::new(256)?,
            listeners: Vec::new(),
            target: None,
            slots: Vec::new(),
            free: Vec::new(),
            buf: vec![0; 256 << 10],
        })
    }

    fn run(mut self, spin: bool) -> io::Result<S> {
        let timeout_ms = if spin { 0 } else { SLEEP_MS };
        while !self.service.finished(clock::now_ns())
            && (!self.listeners.is_empty() || self.free.len() < self.slots.len())
        {
            for index in 0..self.epoll.wait(timeout_ms)? {
                match self.epoll.event(index) {
                    (_, token @ LISTENER..) => self.accept((token - LISTENER) as usize)?,
                    (events, token) => self.ready(token as usize, events)?,
                }
            }
        }
        for slot in self.slots.iter().flatten() {
            self.service.left_open(&slot.conn, clock::now_ns());
        }
        Ok(self.service)
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        while let Some(listener) = self.listeners.get(listener)
            && let Some(stream) = socket::accept(listener)?
        {
            let Some(mut conn) = self.service.open() else {
                socket::reset_on_close(&stream)?;
                continue;
            };
            self.service.connected(&mut conn, clock::now_ns());
            let index = self.insert(Slot { stream, conn, connecting: false, blocked: false });
            self.watch_new(index, EPOLLIN)?;
            self.flush(index)?;
        }
        Ok(())
    }

    fn dial(&mut self) -> io::Result<()> {
        let Some(target) = self.target else { return Ok(()) };
        let Some(conn) = self.service.open() else { return Ok(()) };
        match socket::connect(target) {
            Ok(stream) => {
                let index = self.insert(Slot { stream, conn, connecting: true, blocked: false });
                self.watch_new(index, EPOLLOUT)
            }
            Err(error) => {
                self.service.closed(conn, End::Failed(error.to_string()));
                Ok(())
            }
        }
    }

    fn insert(&mut self, slot: Slot<S::Conn>) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.slots[index] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() - 1
            }
        }
    }

    fn watch_new(&mut self, index: usize, interest: libc::c_int) -> io::Result<()> {
        let Some(slot) = &self.slots[index] else { return Ok(()) };
        self.epoll.add(&slot.stream, interest, index as u64)
    }

    fn ready(&mut self, index: usize, events: libc::c_int) -> io::Result<()> {
        let Some(slot) = &mut self.slots[index] else { return Ok(()) };
        if slot.connecting {
            if let Some(error) = slot.stream.take_error()? {
                return self.end(index, End::Failed(error.to_string()));
            }
            slot.connecting = false;
            self.epoll.change(&slot.stream, EPOLLIN, index as u64)?;
            self.service.connected(&mut slot.conn, clock::now_ns());
            return self.flush(index);
        }
        if events & (EPOLLIN | EPOLLHUP | EPOLLERR) != 0 {
            match slot.stream.read(&mut self.buf) {
                Ok(0) => return self.end(index, End::Eof),
                Ok(n) => self.service.input(&mut slot.conn, &self.buf[..n], clock::now_ns()),
                Err(error) if is_passing(&error) => {}
                Err(error) => return self.end(index, End::Failed(error.to_string())),
            }
        }
        self.flush(index)
    }

    /// Sends the service's output, then asks for the verdict.
    fn flush(&mut self, index: usize) -> io::Result<()> {
        let Some(slot) = &mut self.slots[index] else { return Ok(()) };
        let mut blocked = false;
        loop {
            let data = self.service.output(&slot.conn);
            if data.is_empty() {
                break;
            }
            match slot.stream.write(data) {
                Ok(n) => self.service.advance(&mut slot.conn, n),
                Err(error) if is_passing(&error) => {
                    blocked = true;
                    break;
                }
                Err(error) => return self.end(index, End::Failed(error.to_string())),
            }
        }
        if blocked != slot.blocked {
            slot.blocked = blocked;
            let interest = if blocked { EPOLLIN | EPOLLOUT } else { EPOLLIN };
            self.epoll.change(&slot.stream, interest, index as u64)?;
        }
        match self.service.verdict(&slot.conn) {
            Verdict::Open => Ok(()),
            Verdict::Close => self.end(index, End::Ours),
            Verdict::Reset => {
                socket::reset_on_close(&slot.stream)?;
                self.end(index, End::Ours)
            }
        }
    }

    fn end(&mut self, index: usize, end: End) -> io::Result<()> {
        let Some(Slot { stream, conn, .. }) = self.slots[index].take() else { return Ok(()) };
        // Closing removes it from the epoll set as well.
        drop(stream);
        self.free.push(index);
        if self.service.closed(conn, end) { self.dial() } else { Ok(()) }
    }
}
