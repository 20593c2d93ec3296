//! Web servers beside the load, on the same elastic thread: what a proxy under test has behind it.
//! What they say is ix-httpd's; here are the connections.
use super::Pending;
use super::flow::{acknowledge, entry, unsent_pieces};
use anyhow::{Result, bail};
use ix_abi::Cookie;
use ix_httpd::answers::Answers;
use ix_httpd::session::{Answer, Session};
use ix_httpd::site::Site;
use libix::raw::call::{self, Batched};
use libix::raw::{Event, Received, Thread, TxArena, TxShared};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

/// In cookies: of these servers, not of the load.
const BACK_END: Cookie = 1 << 63;
/// Longest wait for transmit memory while pages are loaded.
const LOAD_NS: u64 = 500_000_000;
/// Calls that one connection appends in a cycle at most.
const EMIT_CALLS: usize = 4;

/// A piece of an answer.
struct Piece(TxShared, Range<usize>);

impl Piece {
    fn bytes(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

/// One connection of the proxy.
#[derive(Default)]
struct Served {
    /// Dataplane's name; 0: there is none.
    handle: u64,
    generation: u32,
    session: Session,
    /// Answers that are not in `pieces` yet.
    owed: VecDeque<Answer>,
    /// Bytes not acknowledged, oldest first.
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are acknowledged.
    front_acked: u64,
    /// Bytes of the pieces that a `sendv` took.
    taken_bytes: u64,
    unsent_bytes: u64,
    /// Received bytes to give back.
    done_bytes: u64,
    blocked: bool,
    dirty: bool,
    /// The peer has ended its direction, and we ours.
    eof: bool,
    shut: bool,
}

impl Served {
    fn cookie(&self, index: u32) -> Cookie {
        BACK_END | u64::from(self.generation) << 32 | u64::from(index)
    }
}

/// The generation after this one, of the load's connections or of these: they leave [`BACK_END`]
/// free.
pub(super) fn next_generation(generation: u32) -> u32 {
    (generation + 1) & (u32::MAX >> 1)
}

/// The servers.
pub(super) struct BackEnds {
    answers: Answers<TxArena>,
    /// Where they listen, and whether they do.
    at: Vec<SocketAddr>,
    is_listening: bool,
    /// When there must have been memory for the pages.
    late_ns: Option<u64>,
    listeners: Vec<u64>,
    served: Vec<Served>,
    free: Vec<u32>,
    dirty: VecDeque<u32>,
}

impl BackEnds {
    /// None that listens yet.
    pub(super) fn new(thread: &Thread, site: Arc<Site>, at: Vec<SocketAddr>) -> BackEnds {
        BackEnds {
            answers: Answers::new(*thread.tx(), site),
            at,
            is_listening: false,
            late_ns: None,
            listeners: Vec::new(),
            served: Vec::new(),
            free: Vec::new(),
            dirty: VecDeque::new(),
        }
    }

    /// Puts the pages into memory; once they are there it answers, once, the calls that listen.
    pub(super) fn begin(&mut self, now_ns: u64) -> Result<Vec<(Batched, Pending)>> {
        if self.is_listening {
            return Ok(Vec::new());
        }
        let late_ns = *self.late_ns.get_or_insert(now_ns + LOAD_NS);
        if !self.answers.load() {
            if now_ns > late_ns {
                bail!("the pages do not fit into the dataplane's transmit memory; serve fewer");
            }
            return Ok(Vec::new());
        }
        self.is_listening = true;
        let listen = |at: &SocketAddr| (call::listen(*at, 0, BACK_END), Pending::Listen(*at));
        Ok(self.at.iter().map(listen).collect())
    }

    /// Whether they listen, or are about to.
    pub(super) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Whether they have calls to make.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_listening || !self.dirty.is_empty()
    }

    /// One of them listens, by this name.
    pub(super) fn listens(&mut self, listener: u64) {
        self.listeners.push(listener);
    }

    /// The calls that end everything.
    pub(super) fn end(&mut self) -> Vec<Batched> {
        let handles = self.served.drain(..).map(|served| served.handle);
        let aborts = handles.filter(|handle| *handle != 0).map(call::abort);
        aborts.chain(self.listeners.drain(..).map(call::unlisten)).collect()
    }

    /// Takes in what happened to one of these connections; false: it was another one.
    #[inline]
    pub(super) fn hears(&mut self, event: &Event) -> bool {
        match *event {
            Event::Recv { cookie, data, .. } if cookie & BACK_END != 0 => {
                self.received(cookie, data);
            }
            Event::Sent { cookie, bytes, .. } if cookie & BACK_END != 0 => {
                self.sent(cookie, bytes.into());
            }
            Event::Eof { cookie } if cookie & BACK_END != 0 => self.ended(cookie),
            Event::Dead { cookie, .. } if cookie & BACK_END != 0 => self.forget(cookie),
            _ => return false,
        }
        true
    }

    /// Takes a connection; answers its cookie.
    pub(super) fn accept(&mut self, handle: u64) -> Cookie {
        let index = self.free.pop().unwrap_or_else(|| {
            self.served.push(Served::default());
            self.served.len() as u32 - 1
        });
        let served = &mut self.served[index as usize];
        served.handle = handle;
        served.cookie(index)
    }

    /// It is gone.
    pub(super) fn forget(&mut self, cookie: Cookie) {
        let Some(index) = self.live(cookie) else { return };
        let served = &mut self.served[index as usize];
        let (generation, dirty) = (next_generation(served.generation), served.dirty);
        *served = Served { generation, dirty, ..Served::default() };
        self.free.push(index);
    }

    /// Reads requests.
    fn received(&mut self, cookie: Cookie, data: Received) {
        let Some(index) = self.live(cookie) else { return };
        let served = &mut self.served[index as usize];
        // SAFETY: buffers are given back by calls that the next `run_io` carries out; the slice
        // does not leave this function.
        let mut rest = unsafe { data.bytes() };
        while !rest.is_empty() {
            let (used, answer) = served.session.read(rest, self.answers.site());
            served.owed.extend(answer);
            rest = &rest[used..];
        }
        served.done_bytes += u64::from(data.len());
        self.mark(index);
    }

    /// Bytes were acknowledged.
    fn sent(&mut self, cookie: Cookie, bytes: u64) {
        let Some(index) = self.live(cookie) else { return };
        let Served { pieces, front_acked, taken_bytes, blocked, shut, .. } =
            &mut self.served[index as usize];
        acknowledge(pieces, |piece| piece.1.len() as u64, (front_acked, taken_bytes), bytes);
        if core::mem::take(blocked) || *shut {
            self.mark(index);
        }
    }

    /// The peer has ended its direction.
    fn ended(&mut self, cookie: Cookie) {
        let Some(index) = self.live(cookie) else { return };
        self.served[index as usize].eof = true;
        self.mark(index);
    }

    /// The window took so many of the bytes that were offered.
    pub(super) fn taken(&mut self, cookie: Cookie, taken: u64, offered: u64) {
        let Some(index) = self.live(cookie) else { return };
        let served = &mut self.served[index as usize];
        served.taken_bytes += taken;
        served.unsent_bytes -= taken;
        served.blocked = taken < offered;
        let ends = served.eof || served.session.is_over();
        if !served.blocked && (served.unsent_bytes > 0 || ends) {
            self.mark(index);
        }
    }

    /// Appends the calls of connections that were touched, as far as there is room.
    pub(super) fn emit(&mut self, thread: &mut Thread, pending: &mut Vec<Pending>) {
        if self.dirty.is_empty() {
            return;
        }
        self.answers.set_time(thread.now_us(), SystemTime::now);
        // Each once: one that lacks memory joins the end again.
        for _ in 0..self.dirty.len() {
            if thread.call_room() < EMIT_CALLS || !thread.sg_room() {
                return;
            }
            let Some(index) = self.dirty.pop_front() else { return };
            self.served[index as usize].dirty = false;
            self.emit_one(index, thread, pending);
        }
    }

    fn emit_one(&mut self, index: u32, thread: &mut Thread, pending: &mut Vec<Pending>) {
        let served = &mut self.served[index as usize];
        let handle = served.handle;
        if handle == 0 {
            return;
        }
        let cookie = served.cookie(index);
        let mut push = |thread: &mut Thread, call| {
            if thread.push(call).is_some() {
                pending.push(Pending::Nothing);
            }
        };
        let done_bytes = core::mem::take(&mut served.done_bytes);
        if done_bytes > 0 {
            push(thread, call::recv_done(handle, done_bytes));
        }
        while let Some(answer) = served.owed.front() {
            let (pieces, unsent_bytes) = (&mut served.pieces, &mut served.unsent_bytes);
            let given = self.answers.give(*answer, |block, range| {
                *unsent_bytes += range.len() as u64;
                pieces.push_back(Piece(block.clone(), range));
            });
            if !given {
                // No event says that there is memory again.
                served.dirty = true;
                self.dirty.push_back(index);
                break;
            }
            served.owed.pop_front();
        }
        let all_sent = served.unsent_bytes == 0 && served.owed.is_empty();
        if all_sent && !served.shut && (served.eof || served.session.is_over()) {
            served.shut = true;
            push(thread, call::shutdown(handle));
        }
        if served.shut && served.eof && served.pieces.is_empty() {
            push(thread, call::close(handle));
            return self.forget(cookie);
        }
        if served.unsent_bytes > 0 && !served.blocked {
            let pieces = served.pieces.iter().map(|piece| entry(piece.bytes()));
            let pieces = unsent_pieces(pieces, served.taken_bytes);
            if let Some((_, offered)) = thread.push_sendv(handle, pieces) {
                pending.push(Pending::Serve(cookie, offered));
            }
        }
    }

    fn mark(&mut self, index: u32) {
        let served = &mut self.served[index as usize];
        if !served.dirty {
            served.dirty = true;
            self.dirty.push_back(index);
        }
    }

    fn live(&self, cookie: Cookie) -> Option<u32> {
        let served = self.served.get(cookie as u32 as usize)?;
        (served.cookie(cookie as u32) == cookie && served.handle != 0).then_some(cookie as u32)
    }
}
