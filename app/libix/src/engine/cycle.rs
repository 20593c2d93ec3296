//! The cycle: calls out, answers and event conditions in.
use super::connection::Connection;
use super::flow::{EMIT_CALLS, Emitted};
use super::{Begin, Engine, FETCH_AHEAD, Listener, Pending, User};
use crate::error::{Dead, Error};
use crate::raw::receive::Datagram;
use crate::raw::{Event, Received, TxArena, Wait, call};
use ix_abi::{Cookie, Handle, SentNews};
use std::net::{IpAddr, SocketAddr};

/// Longest wait while connections starve for transmit memory: no event says that it is back, µs.
const STARVED_US: u64 = 1000;
/// With no more connections than this, each stays in the cache by itself.
const CACHED_CONNECTIONS: usize = 512;

/// What an engine tells its user by [`tell`].
pub trait Observer {
    /// What the user attaches.
    type User: User;

    /// The engine.
    fn engine(&mut self) -> &mut Engine<Self::User>;

    /// More bytes came on a connection ([`super::Connection::received`]).
    fn received(&mut self, cookie: Cookie);

    /// The peer has acknowledged `bytes`, or (0) the window has opened.
    fn sent(&mut self, cookie: Cookie, bytes: u32);

    /// The connection attempt has succeeded.
    fn connected(&mut self, cookie: Cookie);

    /// The peer will send no more.
    fn ended(&mut self, cookie: Cookie);

    /// The connection is gone, or the attempt failed: it can be looked at for the last time.
    fn dead(&mut self, cookie: Cookie, why: Dead);

    /// A peer finished its handshake with a listener: [`Engine::accept`] or [`Engine::reject`].
    fn knocked(&mut self, listener: u64, handle: Handle, peer: SocketAddr);

    /// A datagram from `peer` came to a UDP socket, sent to `local`, an address of ours.
    fn datagram(&mut self, socket: u64, peer: SocketAddr, local: IpAddr, data: &[u8]);

    /// An event that the engine has no part in.
    fn other(&mut self, event: Event);
}

/// Takes in the event conditions of the last cycle and tells what happened; after the last one,
/// which connections died of a call that was refused.
#[inline]
pub fn tell<O: Observer>(observer: &mut O) {
    loop {
        if let Some((cookie, data, news)) = observer.engine().take_data() {
            tell_data(observer, cookie, data, news);
            continue;
        }
        let Some(event) = observer.engine().take_event() else { break };
        match event {
            Event::Recv { cookie, data, news, .. } => tell_data(observer, cookie, data, news),
            Event::Sent { cookie, bytes, .. } => {
                if observer.engine().acked(cookie, bytes) {
                    observer.sent(cookie, bytes);
                }
            }
            rare => tell_rare(observer, rare),
        }
    }
    tell_failures(observer);
}

#[inline]
fn tell_data<O: Observer>(observer: &mut O, cookie: Cookie, data: Received, news: SentNews) {
    if observer.engine().came(cookie, data, news) {
        if news.bytes() > 0 {
            observer.sent(cookie, news.bytes());
        }
        observer.received(cookie);
    }
}

/// What does not happen with every message.
#[inline(never)]
fn tell_rare<O: Observer>(observer: &mut O, event: Event) {
    match event {
        Event::Recv { .. } | Event::Sent { .. } => {}
        Event::Knock { listener, handle, peer } => observer.knocked(listener, handle, peer),
        Event::Connected { cookie, handle, outcome } => match outcome {
            Ok(()) => {
                if observer.engine().established(cookie, handle) {
                    observer.connected(cookie);
                }
            }
            Err(error) => tell_dead(observer, cookie, Dead::NotConnected(error)),
        },
        Event::Eof { cookie } => observer.ended(cookie),
        Event::Dead { cookie, reason } => tell_dead(observer, cookie, reason),
        Event::UdpRecv { cookie, data, peer, local, notes } => {
            let (data, follows) = (Datagram::new(data), notes.follows());
            if follows > 0 || observer.engine().udp.is_gathering() {
                return gather(observer, (cookie, peer, local), data, follows);
            }
            observer.datagram(cookie, peer, local, data.bytes());
            observer.engine().push_quietly(data.done());
        }
        Event::UdpError { data, .. } => {
            if let Some(data) = data {
                observer.engine().push_quietly(Datagram::new(data).done());
            }
            observer.other(event);
        }
        Event::UdpSent { cookie } => observer.engine().udp.sent(cookie),
        other => observer.other(other),
    }
}

/// Takes in a piece of a datagram that is longer than a buffer; the last one brings the whole.
#[cold]
fn gather<O: Observer>(
    observer: &mut O,
    (cookie, peer, local): (Cookie, SocketAddr, IpAddr),
    piece: Datagram,
    follows: u16,
) {
    let mut whole = std::mem::take(observer.engine().udp.gathered());
    whole.extend_from_slice(piece.bytes());
    observer.engine().push_quietly(piece.done());
    if follows == 0 {
        observer.datagram(cookie, peer, local, &whole);
        whole.clear();
    }
    *observer.engine().udp.gathered() = whole;
}

/// Tells which connections died of a call that was refused. One whose own event came is gone
/// already.
#[inline]
pub(crate) fn tell_failures<O: Observer>(observer: &mut O) {
    while let Some((cookie, why)) = observer.engine().failed.pop() {
        tell_dead(observer, cookie, why);
    }
}

/// The connection goes whatever the user does with it: its received bytes go with the next cycle.
fn tell_dead<O: Observer>(observer: &mut O, cookie: Cookie, why: Dead) {
    if observer.engine().get(cookie).is_some() {
        observer.dead(cookie, why);
        observer.engine().forget(cookie);
    }
}

impl<U: User> Engine<U> {
    /// Moves calls that waited for room into the batch, and asks for transmit memory when it is
    /// short.
    #[inline]
    pub fn refill(&mut self) {
        if self.memory.is_short(self.thread.tx()) {
            self.ask_for_memory();
        }
        self.batch.refill(&mut self.thread);
        self.udp.flush(&mut self.thread, &mut self.batch);
    }

    #[cold]
    fn ask_for_memory(&mut self) {
        if let Some(call) = self.memory.request(self.thread.now_us()) {
            self.make(call, Pending::Memory);
        }
    }

    /// Appends the calls of all connections that were touched, as far as there is room; the rest
    /// waits one cycle, which then does not sleep.
    ///
    /// `fill` may add bytes to a connection just before its calls are appended. It returns whether
    /// it is to be asked again in the next cycle, for lack of transmit memory.
    #[inline]
    pub fn emit(
        &mut self,
        mut fill: impl FnMut(Cookie, &mut Connection<U::Connection>, &TxArena) -> bool,
    ) {
        self.unfinished = false;
        // Each once: one that is to be asked again joins the end.
        for _ in 0..self.dirty.len() {
            if !self.batch.has_room(&self.thread, EMIT_CALLS) {
                break;
            }
            let Some(cookie) = self.dirty.pop_front() else { break };
            let Some(connection) = self.connections.get_mut(cookie) else { continue };
            connection.dirty = false;
            if fill(cookie, connection, self.thread.tx()) {
                connection.dirty = true;
                self.dirty.push_back(cookie);
            }
            let sendv = |offered| Pending::Sendv(cookie, offered);
            match connection.flow.emit(&mut self.thread, &mut self.batch, u64::MAX, sendv) {
                Emitted::Alive => {}
                Emitted::Unfinished => self.unfinished = true,
                Emitted::Gone => self.forget(cookie),
            }
        }
    }

    /// Whether the next cycle has anything to carry out.
    pub fn has_calls(&self) -> bool {
        !self.batch.pending().is_empty() || !self.dirty.is_empty() || self.has_backlog()
    }

    fn has_backlog(&self) -> bool {
        self.batch.has_backlog() || self.udp.has_backlog()
    }

    /// Gives the thread to the dataplane for one cycle. It does not sleep while calls wait.
    pub fn run_io(&mut self, wait: Wait) -> Result<(), Error> {
        if self.told < self.events || !self.failed.is_empty() {
            self.skip_untold();
        }
        let asks_for_port = core::mem::take(&mut self.asks_for_port);
        let wait = match wait {
            _ if asks_for_port => Wait::Poll,
            _ if self.unfinished || !self.dirty.is_empty() || self.has_backlog() => Wait::Poll,
            Wait::Forever if !self.starved.is_empty() => Wait::Us(STARVED_US),
            Wait::Us(us) if !self.starved.is_empty() => Wait::Us(us.min(STARVED_US)),
            wait => wait,
        };
        (self.events, self.told) = (0, 0);
        let events = self.thread.run_io(wait);
        self.batch.carried_out();
        self.events = events?;
        Ok(())
    }

    /// Forgets the connections of which the user did not want to be told: their memory goes with
    /// this cycle.
    #[cold]
    fn skip_untold(&mut self) {
        while let Some(event) = self.take_event() {
            match event {
                Event::Dead { cookie, .. } => self.forget(cookie),
                Event::Recv { cookie, data, news, .. } => drop(self.came(cookie, data, news)),
                _ => {}
            }
        }
        while let Some((cookie, _)) = self.failed.pop() {
            self.forget(cookie);
        }
    }

    /// Takes in the answers of the last batch up to one of a call of the user's: its slot, its tag
    /// and the answer. `None`: all were read.
    #[inline]
    pub fn next_answer(&mut self) -> Option<(usize, U::Call, Result<u64, Error>)> {
        loop {
            let (slot, pending, answer) = self.batch.next_answer(&self.thread)?;
            match pending {
                Pending::Nothing => {}
                Pending::User(tag) => return Some((slot, tag, answer)),
                Pending::Sendv(cookie, offered) => self.sendv_answered(cookie, offered, answer),
                rare => self.rarely_answered(slot, rare, answer),
            }
        }
    }

    /// Answers that do not come with every message.
    #[inline(never)]
    fn rarely_answered(
        &mut self,
        slot: usize,
        pending: Pending<U::Call>,
        answer: Result<u64, Error>,
    ) {
        match pending {
            Pending::Nothing | Pending::Sendv(..) | Pending::User(_) => {}
            Pending::Accept(cookie) => {
                if answer.is_err() {
                    self.failed.push((cookie, Dead::Reset));
                }
            }
            Pending::Rename(cookie, old) => self.renamed(cookie, old, answer),
            // The broker is asked for the port, or for more ports.
            Pending::Connect(cookie) if answer == Err(Error::Again) => self.connect_again(cookie),
            Pending::Connect(cookie) => self.connect_answered(cookie, answer),
            // Linux is asked for the port.
            Pending::Listen(id) if answer == Err(Error::Again) => {
                if let Some(Listener { at, backlog, .. }) = self.listeners.get(id) {
                    let again = call::listen(*at, *backlog, id);
                    self.asks_for_port = true;
                    self.make(again, Pending::Listen(id));
                }
            }
            Pending::Listen(id) => match (self.listeners.get_mut(id), answer) {
                (Some(listener), answer) => listener.name = Some(answer),
                // Ended before it had a name.
                (None, Ok(name)) => self.push_quietly(call::unlisten(name)),
                (None, Err(_)) => {}
            },
            Pending::UdpBind(id) => self.udp_bind_answered(id, answer),
            Pending::Datagram(id) => self.udp.answered(id, answer),
            Pending::Memory => {
                let adopted = self.thread.adopt_tx(slot).is_ok();
                self.memory.answered(adopted, self.thread.now_us());
            }
        }
    }

    #[inline]
    fn sendv_answered(&mut self, cookie: Cookie, offered: u64, answer: Result<u64, Error>) {
        let Some(connection) = self.connections.get_mut(cookie) else { return };
        match connection.flow.sendv_answered(offered, answer) {
            // More than one array full, an end that waited for this, or a retry.
            Ok(()) => connection.note(cookie, &mut self.dirty),
            Err(error) => {
                let handle = connection.flow.handle;
                self.failed.push((cookie, Dead::Failed(error)));
                self.push_quietly(call::abort(handle));
            }
        }
    }

    fn connect_again(&mut self, cookie: Cookie) {
        let Some(connection) = self.connections.get(cookie) else { return };
        let to = connection.peer;
        let named = self.named.iter().find(|(of, _)| *of == cookie).map(|(_, from)| *from);
        let again = match named {
            None => call::connect(cookie, to, 0),
            Some(Begin::Port(port)) => call::connect(cookie, to, port),
            Some(Begin::At(from)) => call::connect_from(cookie, to, from),
        };
        self.asks_for_port = true;
        self.make(again, Pending::Connect(cookie));
    }

    fn connect_answered(&mut self, cookie: Cookie, answer: Result<u64, Error>) {
        if !self.named.is_empty() {
            self.named.retain(|(of, _)| *of != cookie);
        }
        match answer {
            Ok(handle) => {
                if let Some(connection) = self.connections.get_mut(cookie) {
                    connection.flow.handle = handle;
                    self.note_group(handle, cookie);
                    self.touch(cookie);
                }
            }
            Err(error) => self.failed.push((cookie, Dead::NotConnected(error))),
        }
    }

    /// The next event condition of the last cycle, if it is what nearly every one is: data.
    #[inline]
    fn take_data(&mut self) -> Option<(Cookie, Received, SentNews)> {
        let index = self.told;
        if index == self.events || !self.renaming.is_empty() {
            return None;
        }
        let data = self.thread.recv(index)?;
        self.told = index + 1;
        self.fetch_ahead(index + FETCH_AHEAD);
        Some(data)
    }

    /// The next event condition of the last cycle, each once.
    #[inline]
    fn take_event(&mut self) -> Option<Event> {
        let index = self.told;
        if index == self.events {
            return None;
        }
        self.told = index + 1;
        self.fetch_ahead(index + FETCH_AHEAD);
        let mut event = self.thread.event(index);
        if !self.renaming.is_empty() {
            self.rename(&mut event);
        }
        Some(event)
    }

    /// Bytes came, mostly with an acknowledgement; whether there is such a connection.
    #[inline(always)]
    fn came(&mut self, cookie: Cookie, data: Received, news: SentNews) -> bool {
        let Some(connection) = self.connections.get_mut(cookie) else { return false };
        if news.bytes() > 0 {
            connection.flow.acked(news.bytes().into());
            connection.note(cookie, &mut self.dirty);
        }
        connection.flow.receive.push(data);
        true
    }

    /// Bytes were acknowledged; whether there is such a connection.
    #[inline]
    fn acked(&mut self, cookie: Cookie, bytes: u32) -> bool {
        let Some(connection) = self.connections.get_mut(cookie) else { return false };
        connection.flow.acked(bytes.into());
        connection.note(cookie, &mut self.dirty);
        true
    }

    /// A connection attempt has succeeded; whether anybody wants to know.
    fn established(&mut self, cookie: Cookie, handle: Handle) -> bool {
        let Some(connection) = self.connections.get_mut(cookie) else { return false };
        connection.flow.handle = handle;
        connection.flow.established = true;
        connection.note(cookie, &mut self.dirty);
        true
    }

    /// Fetches the connection of an event that comes soon: of very many, each is out of the cache
    /// when its turn comes.
    #[inline]
    fn fetch_ahead(&self, index: usize) {
        if self.connections.len() > CACHED_CONNECTIONS
            && let Some(cookie) = self.thread.cookie(index)
        {
            self.connections.prefetch(cookie);
        }
    }
}
