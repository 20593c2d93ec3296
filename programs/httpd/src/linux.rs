//! The server on Linux sockets: epoll, sleeping or spinning, one thread; responses by `writev`.
use crate::answers::{Answers, Memory};
use crate::deadlines::Deadlines;
use crate::peer::{Overdue, Patience, Peer};
use crate::site::Site;
use anyhow::Result;
use ix_programs::clock;
use ix_programs::socket::{self, is_passing};
use ix_sys::Epoll;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

/// Token of the listener; connections have their slot and its use.
const LISTENER: u64 = u64::MAX;
/// Bytes of waiting responses from which a connection's requests wait.
const SEND_LIMIT_BYTES: usize = 256 << 10;
/// Most pieces of one write.
const PIECES: usize = 64;
const READ_BYTES: usize = 64 << 10;

/// The heap: Linux copies from anywhere.
pub(crate) struct Heap;

impl Memory for Heap {
    type Block = Rc<[u8]>;
    const LARGEST_BYTES: usize = usize::MAX;

    fn block(&self, content: &[u8]) -> Option<Rc<[u8]>> {
        Some(Rc::from(content))
    }
}

struct Connection {
    stream: TcpStream,
    peer: Peer,
    out: VecDeque<(Rc<[u8]>, Range<usize>)>,
    out_bytes: usize,
    /// Requests that wait for room to reply.
    rest: Vec<u8>,
    /// Events that epoll watches for.
    interest: libc::c_int,
}

/// A slot for connections; the token in epoll and wheel also has the number of its use.
#[derive(Default)]
struct Slot {
    uses: u32,
    connection: Option<Connection>,
}

struct Server {
    epoll: Epoll,
    listener: TcpListener,
    slots: Vec<Slot>,
    free: Vec<u32>,
    answers: Answers<Heap>,
    patience: Patience,
    deadlines: Deadlines,
    most_connections: usize,
    now_us: u64,
    buf: Vec<u8>,
}

/// Serves a site until there is an error.
pub(crate) fn serve(
    listener: TcpListener,
    site: &Arc<Site>,
    patience: Patience,
    most_connections: usize,
    spin: bool,
) -> Result<()> {
    let now_us = clock::now_ns() / 1000;
    let mut answers = Answers::new(Heap, Arc::clone(site));
    answers.load();
    let mut server = Server {
        epoll: Epoll::new(256)?,
        listener,
        slots: Vec::new(),
        free: Vec::new(),
        answers,
        patience,
        deadlines: Deadlines::new(patience.shortest_us(), now_us),
        most_connections,
        now_us,
        buf: vec![0; READ_BYTES],
    };
    server.epoll.add(&server.listener, EPOLLIN, LISTENER)?;
    let sleep_ms = if spin { 0 } else { (server.deadlines.step_us() / 1000).max(1) as i32 };
    loop {
        server.turn(sleep_ms)?;
    }
}

impl Server {
    fn turn(&mut self, sleep_ms: i32) -> Result<()> {
        let events = self.epoll.wait(sleep_ms)?;
        self.now_us = clock::now_ns() / 1000;
        self.answers.set_time(self.now_us, SystemTime::now);
        for index in 0..events {
            match self.epoll.event(index) {
                (_, LISTENER) => self.accept()?,
                (events, token) => self.ready(token, events),
            }
        }
        self.expire();
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let stream = match socket::accept(&self.listener) {
                Ok(Some(stream)) => stream,
                Ok(None) => return Ok(()),
                // Out of descriptors or memory: the others are still served.
                Err(error) if is_shortage(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if self.slots.len() - self.free.len() >= self.most_connections {
                // The connection is closed in any case.
                let _ = socket::reset_on_close(&stream);
                continue;
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u32
            });
            let slot = &mut self.slots[index as usize];
            slot.uses = slot.uses.wrapping_add(1);
            let token = u64::from(slot.uses) << 32 | u64::from(index);
            self.epoll.add(&stream, EPOLLIN, token)?;
            slot.connection = Some(Connection {
                stream,
                peer: Peer::new(self.now_us),
                out: VecDeque::new(),
                out_bytes: 0,
                rest: Vec::new(),
                interest: EPOLLIN,
            });
            self.deadlines.insert(token, self.now_us + self.patience.shortest_us());
        }
    }

    /// Serves a connection, unless it has ended since the event.
    fn ready(&mut self, token: u64, events: libc::c_int) {
        let Some(connection) = find(&mut self.slots, token) else { return };
        let lives = if events & EPOLLERR != 0 {
            Ok(false)
        } else {
            let reads = events & (EPOLLIN | EPOLLHUP) != 0;
            connection.serve(reads, &mut self.answers, &mut self.buf, self.now_us)
        };
        // Any error ends this connection, and no others.
        let watched = lives
            .and_then(|lives| Ok(lives && connection.watch(&self.epoll, token).map(|()| true)?));
        if !watched.unwrap_or(false) {
            self.remove(token);
        }
    }

    fn remove(&mut self, token: u64) {
        let index = token as u32;
        // Closing removes it from the epoll set as well.
        self.slots[index as usize].connection = None;
        self.free.push(index);
    }

    fn expire(&mut self) {
        let Server { deadlines, slots, answers, patience, free, epoll, .. } = self;
        let now_us = self.now_us;
        deadlines.expire(now_us, |token| {
            let connection = find(slots, token)?;
            let sending = connection.out_bytes > 0;
            let (due_us, then) = connection.peer.due(sending, patience);
            if due_us > now_us {
                return Some(due_us);
            }
            if then == Overdue::Answer {
                let answer = connection.peer.session.time_out();
                connection.peer.since_us = now_us;
                connection.answer(answers, answer);
                let lives = connection
                    .flush(now_us)
                    .and_then(|lives| Ok(lives && connection.watch(epoll, token).map(|()| true)?));
                if lives.unwrap_or(false) {
                    return Some(now_us + patience.shortest_us());
                }
            } else if then == Overdue::Abort {
                // Without it the connection closes normally, which is fine, too.
                let _ = socket::reset_on_close(&connection.stream);
            }
            slots[token as u32 as usize].connection = None;
            free.push(token as u32);
            None
        });
    }
}

/// The connection of a token, unless it has ended.
fn find(slots: &mut [Slot], token: u64) -> Option<&mut Connection> {
    let slot = slots.get_mut(token as u32 as usize)?;
    if u64::from(slot.uses) == token >> 32 { slot.connection.as_mut() } else { None }
}

impl Connection {
    /// Reads, replies and sends as far as possible; returns whether the connection stays open.
    fn serve(
        &mut self,
        reads: bool,
        answers: &mut Answers<Heap>,
        buf: &mut [u8],
        now_us: u64,
    ) -> io::Result<bool> {
        if reads && self.rest.is_empty() && !self.peer.eof {
            match self.stream.read(buf) {
                Ok(0) => self.peer.eof = true,
                Ok(n) => self.process(&buf[..n], answers, now_us),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            if !self.flush(now_us)? {
                return Ok(false);
            }
            if self.rest.is_empty() || self.out_bytes >= SEND_LIMIT_BYTES / 2 {
                return Ok(true);
            }
            let rest = core::mem::take(&mut self.rest);
            self.process(&rest, answers, now_us);
        }
    }

    /// Replies to requests while there is room; the rest waits.
    fn process(&mut self, mut data: &[u8], answers: &mut Answers<Heap>, now_us: u64) {
        while !data.is_empty() {
            if self.out_bytes >= SEND_LIMIT_BYTES {
                self.rest = data.to_vec();
                return;
            }
            let session = &mut self.peer.session;
            let was_in_request = session.in_request();
            let (used, answer) = session.read(data, answers.site());
            data = &data[used..];
            if answer.is_some() || (!was_in_request && session.in_request()) {
                self.peer.since_us = now_us;
            }
            if let Some(answer) = answer {
                self.answer(answers, answer);
            }
        }
    }

    fn answer(&mut self, answers: &mut Answers<Heap>, answer: crate::session::Answer) {
        let Connection { out, out_bytes, .. } = self;
        answers.give(answer, |block, range| {
            *out_bytes += range.len();
            out.push_back((Rc::clone(block), range));
        });
    }

    /// Sends as much as the socket takes, and FIN after the last response; returns whether the
    /// connection stays open.
    fn flush(&mut self, now_us: u64) -> io::Result<bool> {
        while self.out_bytes > 0 {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut used = 0;
            for (slice, (block, range)) in slices.iter_mut().zip(&self.out) {
                *slice = IoSlice::new(&block[range.clone()]);
                used += 1;
            }
            match self.stream.write_vectored(&slices[..used]) {
                Ok(n) => self.sent(n, now_us),
                Err(error) if is_passing(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        let ended = self.peer.eof && self.rest.is_empty();
        if !self.peer.shut && (self.peer.session.is_over() || ended) {
            self.peer.shut = true;
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(!(self.peer.shut && self.peer.eof))
    }

    fn sent(&mut self, mut bytes: usize, now_us: u64) {
        self.peer.since_us = now_us;
        self.out_bytes -= bytes;
        while let Some((_, range)) = self.out.front_mut() {
            let n = bytes.min(range.len());
            range.start += n;
            bytes -= n;
            if range.start < range.end {
                break;
            }
            self.out.pop_front();
        }
    }

    /// Watches for room while bytes wait to be sent, else for requests: from a peer that does not
    /// read its responses nothing is read.
    fn watch(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        let reads = if self.rest.is_empty() && !self.peer.eof { EPOLLIN } else { 0 };
        let writes = if self.out_bytes > 0 { EPOLLOUT } else { 0 };
        let interest = reads | writes;
        if interest != self.interest {
            self.interest = interest;
            epoll.change(&self.stream, interest, token)?;
        }
        Ok(())
    }
}

fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| shortages.contains(&code))
}
