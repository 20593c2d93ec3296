//! The connections of one elastic thread, on the raw contract ([`crate::raw`]).
//!
//! All that keep connections on batched system calls have the same work: a note beside each slot of
//! the call array of what its answer is for, calls that the array has no room for, cookies that
//! never name two connections, bytes that `sendv` did not take, received bytes that are owed a
//! `recv_done`, transmit memory that stays until it is acknowledged, and an end that waits for all
//! of this. It is done here once.
//!
//! A cycle of an [`Engine`], which allocates nothing for a message:
//!
//! 1. [`Engine::emit`] appends the calls of connections that were touched: at most one `recv_done`
//!    and one `sendv` each, and the end after the last byte. Just before, the user may add bytes to
//!    it.
//! 2. [`Engine::run_io`] gives the thread to the dataplane.
//! 3. [`Engine::next_answer`] takes the answers in. Those of the engine's own calls it keeps; the
//!    user gets those of calls that it made itself, by [`Engine::push`].
//! 4. [`tell`] takes the event conditions in and tells an [`Observer`] what happened.
//!
//! What a user attaches to connections, UDP sockets and calls is its own ([`User`]). Events are
//! read by the engine alone, and calls that give memory back are made by it alone. This is why
//! received bytes can be looked at without `unsafe`.
//!
//! # Parts
//!
//! An [`Engine`] is made of parts. Who cannot have a whole one uses them by themselves:
//!
//! * [`Memory`]: when to ask for more transmit memory.
//! * [`Batch`]: what each answer is for, and the calls that wait for the next batch.
//! * [`Flow`]: the send queue and the partial `sendv`, the bytes that are owed a `recv_done`, and
//!   the end that waits for both.
//!
//! # Users
//!
//! * [`crate::event`] adds callbacks, timers, packet queues, and mailboxes between threads.
//! * The load generator (`ix-load`) measures on it, and has web servers on it beside the load.
//! * The POSIX layer (`libix-posix`) has the parts: a [`Memory`] and a [`Batch`] for each elastic
//!   thread, a [`Flow`] for each connection.
//! * The sockets of the packet scripts (`ix-scripts`) have the parts, too.
//!
//! # What stays apart, and why
//!
//! * The POSIX layer: any thread of the program may change any socket, so the sockets of all
//!   elastic threads lie behind one lock, which no thread holds while a cycle runs. An engine is
//!   owned by one thread and has the elastic thread in it. A socket of the POSIX layer is also more
//!   than a connection: it exists before and after its flow, keeps unread bytes when the flow is
//!   gone, is tried on the next elastic thread when one refuses it, and may have its other end in
//!   the same process. So it has its own table of sockets, whose names are the cookies of all
//!   elastic threads, and its own list of sockets with calls to make. Its connections stay on their
//!   elastic thread, so it needs no parcels.
//! * The sockets of the packet scripts: each call runs in a cycle of its own and returns its
//!   outcome at once. Which calls share a cycle decides which segments leave together, and that is
//!   what a script checks. `close` goes out with the last byte instead of after the last
//!   acknowledgement, so that the dataplane itself meets what comes afterwards. Received bytes are
//!   copied when they come, and cookies are the numbers of descriptors.
mod batch;
mod connection;
mod cycle;
mod flow;
mod groups;
mod lost;
mod memory;
mod migrate;
mod send;
mod table;
mod udp;

use crate::error::{Dead, Error};
use crate::raw::call::{self, Batched};
pub use crate::raw::receive::ReceiveQueue;
use crate::raw::{Thread, TxArena};
use crate::turns::Turns;
pub use batch::Batch;
pub use connection::Connection;
pub(crate) use cycle::tell_failures;
pub use cycle::{Observer, tell};
pub use flow::{EMIT_CALLS, Emitted, Ending, Flow};
use groups::Groups;
use ix_abi::{Cookie, FlowOption, Handle, SgEntry, group_of};
pub use memory::Memory;
pub(crate) use migrate::Parcel;
pub(crate) use send::SendLimit;
pub use send::{Lease, Release, SendQueue};
use std::collections::HashMap;
use std::net::SocketAddr;
pub(crate) use table::{Place, Table};
use udp::Udp;

/// A connection is fetched into the cache this many events before its own.
pub(crate) const FETCH_AHEAD: usize = 4;

/// What the dataplane calls a listener or a socket, once it is known.
pub(crate) type Name = Option<Result<u64, Error>>;

/// A listener, and what it was asked for with.
struct Listener {
    name: Name,
    at: SocketAddr,
    backlog: u32,
}

/// What a user of the engine attaches.
pub trait User {
    /// To each connection.
    type Connection;
    /// To each UDP socket.
    type Socket;
    /// To each call of its own, to know the answer by.
    type Call: Copy;
}

/// What the answer of a call is for.
#[derive(Clone, Copy, Default)]
pub(crate) enum Pending<C> {
    /// Nothing.
    #[default]
    Nothing,
    Listen(u64),
    Connect(Cookie),
    Accept(Cookie),
    /// A connection that moved here, and the cookie that it had.
    Rename(Cookie, Cookie),
    /// A connection, and the bytes that were offered.
    Sendv(Cookie, u64),
    UdpBind(u64),
    /// A datagram under way.
    Datagram(u64),
    Memory,
    /// A call of the user's.
    User(C),
}

/// Where a connection begins.
#[derive(Clone, Copy)]
enum Begin {
    /// At this port.
    Port(u16),
    /// At this address, and at any port if that is 0.
    At(SocketAddr),
}

/// The connections, listeners and UDP sockets of one elastic thread.
pub struct Engine<U: User> {
    connections: Table<Connection<U::Connection>>,
    listeners: Table<Listener>,
    udp: Udp<U::Socket>,
    /// Connections with calls to append, each once.
    dirty: Turns<Cookie>,
    failed: Vec<(Cookie, Dead)>,
    starved: Vec<Cookie>,
    /// A port is asked for, perhaps once more: no event says that the answer is there.
    asks_for_port: bool,
    /// Where connections begin that were asked for and not answered, if their user has said it.
    named: Vec<(Cookie, Begin)>,
    /// The answers of the batch decide what is appended next.
    unfinished: bool,
    memory: Memory,
    /// `None`: connections never move to another thread.
    groups: Option<Box<Groups>>,
    /// Connections that moved here, by their old cookies: while the call that changes it waits for
    /// room, events still carry that.
    renaming: HashMap<Cookie, Cookie>,
    /// Event conditions of this cycle, and how many were told.
    events: usize,
    told: usize,
    batch: Batch<Pending<U::Call>>,
    /// The last one to be dropped: the elastic thread, to whose memory the others refer.
    thread: Thread,
}

impl<U: User> Engine<U> {
    /// No connections yet.
    pub fn new(thread: Thread) -> Engine<U> {
        let index = thread.index();
        Engine {
            connections: Table::new(index),
            listeners: Table::new(index),
            udp: Udp::new(index),
            dirty: Turns::new(),
            failed: Vec::new(),
            starved: Vec::new(),
            asks_for_port: false,
            named: Vec::new(),
            unfinished: false,
            memory: Memory::new(),
            groups: None,
            renaming: HashMap::new(),
            events: 0,
            told: 0,
            batch: Batch::full_size(),
            thread,
        }
    }

    /// The elastic thread.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }

    /// The elastic thread, to do what the engine has no part in.
    pub(crate) fn thread_mut(&mut self) -> &mut Thread {
        &mut self.thread
    }

    /// Gives the elastic thread back. Connections that were not reset before are left to the
    /// dataplane.
    pub fn into_thread(self) -> Thread {
        self.thread
    }

    /// Time of the last cycle, µs of the dataplane's monotonic clock.
    #[inline]
    pub fn now_us(&self) -> u64 {
        self.thread.now_us()
    }

    /// Transmit memory of the thread.
    pub fn tx(&self) -> &TxArena {
        self.thread.tx()
    }

    /// Makes a call of the user's own, now or (without room) in the next cycle.
    /// [`Engine::next_answer`] returns `tag` with its answer.
    ///
    /// # Panics
    /// With a call that gives memory back or names a connection: there are methods for those.
    pub fn push(&mut self, call: Batched, tag: U::Call) {
        assert!(!call.is_engines(), "a call that the engine makes itself");
        self.batch.push(&mut self.thread, call, Pending::User(tag));
    }

    /// The same without a tag and without looking at the call.
    pub(crate) fn push_quietly(&mut self, call: Batched) {
        self.batch.push(&mut self.thread, call, Pending::Nothing);
    }

    /// Appends a frame for a packet queue; there is room. `cookie` is what `PacketSent` names.
    pub(crate) fn push_packet(
        &mut self,
        queue: u64,
        pieces: impl Iterator<Item = SgEntry>,
        cookie: u64,
        tag: U::Call,
    ) {
        if self.thread.push_packet_sendv(queue, pieces, cookie).is_some() {
            self.batch.pushed(Pending::User(tag));
        }
    }

    /// Appends a question about the device of a packet queue; the call's answer comes with `tag`,
    /// and [`Thread::packet_info`] has the rest. False: not in this batch, there is no room.
    pub(crate) fn push_packet_info(&mut self, queue: u64, tag: U::Call) -> bool {
        self.batch.push_packet_info(&mut self.thread, queue, Pending::User(tag))
    }

    /// Whether one more call with a scatter-gather array goes out with the next cycle.
    pub fn has_room(&self) -> bool {
        self.batch.has_room(&self.thread, 1)
    }

    /// Number of connections, those that are closing included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cookies of all connections, those that are closing included.
    pub fn cookies(&self) -> impl Iterator<Item = Cookie> {
        self.connections.ids()
    }

    /// The connection with this cookie, unless it is gone.
    #[inline]
    pub fn get(&self, cookie: Cookie) -> Option<&Connection<U::Connection>> {
        self.connections.get(cookie)
    }

    /// The same, to be changed; [`Engine::touch`] has the change carried out.
    #[inline]
    pub fn get_mut(&mut self, cookie: Cookie) -> Option<&mut Connection<U::Connection>> {
        self.connections.get_mut(cookie)
    }

    /// Where a connection is, for several looks at it: until it is forgotten.
    #[inline]
    pub(crate) fn find(&self, cookie: Cookie) -> Option<Place> {
        self.connections.find(cookie)
    }

    /// The connection at a place.
    #[inline]
    pub(crate) fn at(&self, place: Place) -> Option<&Connection<U::Connection>> {
        self.connections.at(place)
    }

    /// The same, to be changed; [`Engine::touch_at`] has the change carried out.
    #[inline]
    pub(crate) fn at_mut(&mut self, place: Place) -> Option<&mut Connection<U::Connection>> {
        self.connections.at_mut(place)
    }

    /// The same, and the transmit memory for [`Connection::write`].
    #[inline]
    pub(crate) fn at_with_tx(
        &mut self,
        place: Place,
    ) -> Option<(&mut Connection<U::Connection>, &TxArena)> {
        Some((self.connections.at_mut(place)?, self.thread.tx()))
    }

    /// As [`Engine::touch`] of the connection with this cookie, which is at this place.
    #[inline]
    pub(crate) fn touch_at(&mut self, place: Place, cookie: Cookie) {
        if let Some(connection) = self.connections.at_mut(place) {
            connection.note(cookie, &mut self.dirty);
        }
    }

    /// A connection, and the transmit memory for [`Connection::write`].
    #[inline]
    pub fn get_with_tx(
        &mut self,
        cookie: Cookie,
    ) -> Option<(&mut Connection<U::Connection>, &TxArena)> {
        Some((self.connections.get_mut(cookie)?, self.thread.tx()))
    }

    /// Fetches a connection into the cache that will be used soon, without waiting for it.
    #[inline]
    pub fn prefetch(&self, cookie: Cookie) {
        self.connections.prefetch(cookie);
    }

    /// Begins a connection: the outcome is told by [`Observer::connected`] or [`Observer::dead`].
    /// What is sent before that waits. `local_port` 0: any.
    pub fn connect(&mut self, to: SocketAddr, local_port: u16, state: U::Connection) -> Cookie {
        let cookie = self.connections.insert(Connection::new(0, false, to, state));
        if local_port != 0 {
            self.named.push((cookie, Begin::Port(local_port)));
        }
        self.make(call::connect(cookie, to, local_port), Pending::Connect(cookie));
        cookie
    }

    /// The same from this address and port (0: any) of ours.
    pub fn connect_from(
        &mut self,
        to: SocketAddr,
        from: SocketAddr,
        state: U::Connection,
    ) -> Cookie {
        let cookie = self.connections.insert(Connection::new(0, false, to, state));
        self.named.push((cookie, Begin::At(from)));
        self.make(call::connect_from(cookie, to, from), Pending::Connect(cookie));
        cookie
    }

    /// Takes a flow that knocked.
    pub fn accept(&mut self, handle: Handle, peer: SocketAddr, state: U::Connection) -> Cookie {
        let cookie = self.connections.insert(Connection::new(handle, true, peer, state));
        self.make(call::accept(handle, cookie), Pending::Accept(cookie));
        self.note_group(handle, cookie);
        cookie
    }

    /// Refuses a flow that knocked.
    pub fn reject(&mut self, handle: Handle) {
        self.push_quietly(call::reject(handle));
    }

    /// Sets an option, if the connection has a handle.
    pub fn set_option(&mut self, cookie: Cookie, option: FlowOption) {
        if let Some(connection) = self.connections.get(cookie)
            && connection.flow.handle != 0
        {
            let handle = connection.flow.handle;
            self.push_quietly(call::set_opt(handle, option));
        }
    }

    /// Opens a listener and returns its id, which [`Observer::knocked`] names;
    /// [`Engine::listener_outcome`] says what came of it. `backlog` 0: the dataplane's default.
    pub fn listen(&mut self, at: SocketAddr, backlog: u32) -> u64 {
        let id = self.listeners.insert(Listener { name: None, at, backlog });
        self.make(call::listen(at, backlog, id), Pending::Listen(id));
        id
    }

    /// Whether the listener was opened, once that is known; a refused one is forgotten.
    pub fn listener_outcome(&mut self, id: u64) -> Option<Result<(), Error>> {
        let outcome = self.listeners.get(id)?.name;
        if let Some(Err(_)) = outcome {
            self.listeners.remove(id);
        }
        outcome.map(|listener| listener.map(|_| ()))
    }

    /// Ends a listener. Its connections live on.
    pub fn unlisten(&mut self, id: u64) {
        if let Some(Listener { name: Some(Ok(name)), .. }) = self.listeners.remove(id) {
            self.push_quietly(call::unlisten(name));
        }
    }

    /// Notes that a connection was changed: its calls are appended before the next cycle.
    #[inline]
    pub fn touch(&mut self, cookie: Cookie) {
        if let Some(connection) = self.connections.get_mut(cookie) {
            connection.note(cookie, &mut self.dirty);
        }
    }

    /// Notes that the user may have bytes for a connection: the next [`Engine::emit`] asks for
    /// them.
    #[inline]
    pub fn visit(&mut self, cookie: Cookie) {
        if let Some(connection) = self.connections.get_mut(cookie)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push_back(cookie);
        }
    }

    /// Sends FIN after what was given to send; receiving goes on.
    pub fn shutdown(&mut self, cookie: Cookie) {
        if let Some(connection) = self.connections.get_mut(cookie) {
            connection.shutdown();
            self.touch(cookie);
        }
    }

    /// Ends a connection in order, after what was given to send, or by a reset. It is forgotten
    /// when its last call was made.
    pub fn end(&mut self, cookie: Cookie, ending: Ending) {
        if let Some(connection) = self.connections.get_mut(cookie) {
            connection.flow.ending = ending;
            self.touch(cookie);
        }
    }

    /// Has all connections end by a reset, each when it is touched; returns which.
    pub fn doom_all(&mut self) -> Vec<Cookie> {
        let all: Vec<Cookie> = self.connections.ids().collect();
        for cookie in &all {
            if let Some(connection) = self.connections.get_mut(*cookie) {
                connection.flow.ending = Ending::Abort;
            }
        }
        all
    }

    /// A connection found no transmit memory, and no event says that there is some again:
    /// [`Engine::take_starved`] returns it after the next cycle, which does not wait for long.
    pub fn starve(&mut self, cookie: Cookie) {
        self.starved.push(cookie);
    }

    /// Whether there are such connections.
    #[inline]
    pub fn has_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Connections to be tried again.
    pub fn take_starved(&mut self) -> Vec<Cookie> {
        core::mem::take(&mut self.starved)
    }

    #[inline]
    fn make(&mut self, call: Batched, pending: Pending<U::Call>) {
        self.batch.push(&mut self.thread, call, pending);
    }

    /// Ends the record of a connection.
    fn forget(&mut self, cookie: Cookie) {
        let Some(connection) = self.connections.remove(cookie) else { return };
        let handle = connection.flow.handle;
        if let Some(groups) = &mut self.groups
            && handle != 0
        {
            let connections = &self.connections;
            groups.left(group_of(handle), |cookie| connections.get(cookie).is_some());
        }
    }

    /// Remembers the flow group of a connection.
    #[inline]
    fn note_group(&mut self, handle: Handle, cookie: Cookie) {
        if let Some(groups) = &mut self.groups {
            groups.joined(group_of(handle), cookie);
        }
    }
}
