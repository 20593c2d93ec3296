//! The loop as a handler sees it, and its bookkeeping between cycles.
use super::batch::{Batch, Pending};
use super::connection::{Connection, EMIT_CALLS, Emitted, Ending, Fin};
use super::packets::Packets;
use super::slab::Slab;
use super::team::{Member, Team};
use super::udp::Udp;
use super::{Conn, RETRY_US};
use crate::error::{Dead, Error};
use crate::raw::{Event, Thread, TxArena, Wait, call};
use ix_abi::{Handle, group_of};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU8;

/// Bytes of transmit memory that are asked for at a time.
const TX_STEP_BYTES: u64 = 2 << 20;
/// After a refusal of transmit memory, ask again this much later.
const TX_RETRY_US: u64 = 100_000;
/// Bytes that a connection may hold unless said otherwise.
const SEND_LIMIT_BYTES: u64 = 1 << 20;

/// So many connections stay in the cache by themselves.
const CACHED_CONNECTIONS: usize = 512;

/// Dataplane's name of a listener once it is known.
type Listener = Option<Result<u64, Error>>;

struct Timer {
    token: u64,
    due_us: u64,
    /// Dataplane's name, once it is known.
    id: Option<u64>,
}

/// Connections, listeners and timers of one event loop; `S` is the state of a connection.
pub struct Io<S> {
    pub(super) connections: Slab<Connection<S>>,
    listeners: Slab<Listener>,
    timers: Slab<Timer>,
    pub(super) udp: Udp,
    pub(super) packets: Packets,
    /// Connections with calls to append, each once.
    dirty: VecDeque<u64>,
    pub(super) failed: Vec<(u64, Dead)>,
    pub(super) starved: Vec<u64>,
    pub(super) send_limit: u64,
    tx_asked: bool,
    tx_refused_us: Option<u64>,
    /// What came of `EventLoop::shared_memory`.
    pub(super) shared: Option<Result<&'static [AtomicU8], Error>>,
    stop: bool,
    /// The flow groups of this thread have left, as [`Io::drain`] wanted.
    pub(super) drained: bool,
    pub(super) drain_refused: Option<Error>,
    /// `None`: connections never move.
    pub(super) member: Option<Box<Member<S>>>,
    /// The last one to be dropped: the elastic thread, to whose memory the others refer.
    pub(super) batch: Batch,
}

impl<S> Io<S> {
    pub(super) fn new(thread: Thread, team: Option<&Team<S>>) -> Io<S> {
        let index = thread.index();
        Io {
            connections: Slab::new(index),
            listeners: Slab::new(index),
            timers: Slab::new(index),
            udp: Udp::default(),
            packets: Packets::new(index),
            dirty: VecDeque::new(),
            failed: Vec::new(),
            starved: Vec::new(),
            send_limit: SEND_LIMIT_BYTES,
            tx_asked: false,
            tx_refused_us: None,
            shared: None,
            stop: false,
            drained: false,
            drain_refused: None,
            member: team.map(|team| Box::new(Member::new(team))),
            batch: Batch::new(thread),
        }
    }

    /// Time of this cycle, µs of the dataplane's monotonic clock.
    pub fn now_us(&self) -> u64 {
        self.batch.thread.now_us()
    }

    /// Which elastic thread this is.
    pub fn thread_index(&self) -> u32 {
        self.batch.thread.index()
    }

    /// Transmit memory, to fill buffers for [`Conn::send_zc`] and [`Conn::send_shared`].
    pub fn tx(&self) -> &TxArena {
        self.batch.thread.tx()
    }

    /// Connections, those that are closing included.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Ids of all connections, those that are closing included.
    pub fn ids(&self) -> Vec<u64> {
        self.connections.ids().collect()
    }

    /// Resets all connections, without a callback.
    pub fn abort_all(&mut self) {
        self.ids().into_iter().for_each(|id| self.end(id, Ending::Abort));
    }

    /// Ends all connections by reset as soon as they are touched; answers which.
    pub(super) fn doom_all(&mut self) -> Vec<u64> {
        let all: Vec<u64> = self.connections.ids().collect();
        for id in &all {
            if let Some(connection) = self.connections.get_mut(*id) {
                connection.ending = Ending::Abort;
            }
        }
        all
    }

    /// Bytes that a connection holds at most, unsent and unacknowledged together.
    pub fn set_send_limit(&mut self, bytes: u64) {
        self.send_limit = bytes;
    }

    /// Ends [`super::EventLoop::run`] after this cycle.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    /// The connection with this id, unless it is gone or the handler has ended it.
    pub fn conn(&mut self, id: u64) -> Option<Conn<'_, S>> {
        let open = self.connections.get(id)?.ending == Ending::No;
        open.then(|| Conn::new(self, id))
    }

    /// Fetches a connection into the cache that will be used soon, without waiting for it.
    #[inline]
    pub fn prefetch(&self, id: u64) {
        self.connections.prefetch(id);
    }

    /// Begins a connection; the outcome is told by `on_connected` or `on_dead`. What is sent before
    /// that waits.
    pub fn connect(&mut self, to: SocketAddr, state: S) -> u64 {
        self.connect_from(0, to, state)
    }

    /// The same from a port of one's own choice; 0: any. Its answers must come to this elastic thread:
    /// a port whose flow group is another one's is refused as invalid.
    pub fn connect_from(&mut self, local_port: u16, to: SocketAddr, state: S) -> u64 {
        let id = self.connections.insert(Connection::new(0, false, to, state));
        self.batch.push(call::connect(id, to, local_port), Pending::Connect(id));
        id
    }

    /// The same from an address of ours, too, where there are several.
    pub fn connect_from_addr(&mut self, from: SocketAddr, to: SocketAddr, state: S) -> u64 {
        let id = self.connections.insert(Connection::new(0, false, to, state));
        self.batch.push(call::connect_from(id, to, from), Pending::Connect(id));
        id
    }

    /// Sets a timer: `on_timer` hears `token` once, `delay_us` from now. Answers an id.
    pub fn set_timer(&mut self, delay_us: u64, token: u64) -> u64 {
        let due_us = self.now_us().saturating_add(delay_us);
        let id = self.timers.insert(Timer { token, due_us, id: None });
        self.batch.push(call::timer_set(id, delay_us), Pending::Timer(id, delay_us));
        id
    }

    /// Stops a timer; answers whether it had not fired yet.
    pub fn cancel_timer(&mut self, id: u64) -> bool {
        let timer = self.timers.remove(id);
        if let Some(Timer { id: Some(timer), .. }) = timer {
            self.batch.push(call::timer_cancel(timer), Pending::Nothing);
        }
        timer.is_some()
    }

    /// Ends a listener. Its connections live on.
    pub fn unlisten(&mut self, listener: u64) {
        if let Some(Some(Ok(id))) = self.listeners.remove(listener) {
            self.batch.push(call::unlisten(id), Pending::Nothing);
        }
    }

    /// Opens a listener and answers its id; [`Io::listener_outcome`] says what came of it
    /// ([`super::EventLoop::listen`] waits for that). `backlog` 0: the dataplane's default.
    pub fn listen(&mut self, at: SocketAddr, backlog: u32) -> u64 {
        let id = self.listeners.insert(None);
        self.batch.push(call::listen(at, backlog, id), Pending::Listen(id));
        id
    }

    /// Whether the listener was opened, once that is known; a refused one is forgotten.
    pub fn listener_outcome(&mut self, id: u64) -> Option<Result<(), Error>> {
        let outcome = *self.listeners.get(id)?;
        if let Some(Err(_)) = outcome {
            self.listeners.remove(id);
        }
        outcome.map(|listener| listener.map(|_| ()))
    }

    pub(super) fn accept(&mut self, handle: u64, peer: SocketAddr, state: S) -> u64 {
        let id = self.connections.insert(Connection::new(handle, true, peer, state));
        self.batch.push(call::accept(handle, id), Pending::Accept(id));
        self.note_group(handle, id);
        id
    }

    /// Remembers the flow group of a connection.
    fn note_group(&mut self, handle: Handle, id: u64) {
        if let Some(member) = &mut self.member {
            member.groups.joined(group_of(handle), id);
        }
    }

    /// Ends the record of a connection.
    pub(super) fn forget(&mut self, id: u64) {
        let Some(Connection { handle, .. }) = self.connections.remove(id) else { return };
        if let Some(member) = &mut self.member
            && handle != 0
        {
            let connections = &self.connections;
            member.groups.left(group_of(handle), |id| connections.get(id).is_some());
        }
    }

    pub(super) fn reject(&mut self, handle: u64) {
        self.batch.push(call::reject(handle), Pending::Nothing);
    }

    pub(super) fn timer_fired(&mut self, id: u64) -> Option<u64> {
        self.timers.remove(id).map(|timer| timer.token)
    }

    pub(super) fn take_stop(&mut self) -> bool {
        core::mem::take(&mut self.stop)
    }

    /// Fetches the connection of an event that comes soon: of very many, each is out of the cache
    /// when its turn comes.
    #[inline]
    pub(super) fn fetch_ahead(&self, index: usize) {
        if self.connections.len() > CACHED_CONNECTIONS
            && let Some(id) = self.batch.thread.cookie(index)
        {
            self.connections.prefetch(id);
        }
    }

    #[inline]
    pub(super) fn event(&self, index: usize) -> Event {
        let event = self.batch.thread.event(index);
        match &self.member {
            None => event,
            Some(member) => member.renamed(event),
        }
    }

    /// Notes that the connection may have calls to append before the next cycle.
    #[inline]
    pub(super) fn touch(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(id)
            && !connection.dirty
            && connection.has_calls()
        {
            connection.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Appends what this cycle brought, and runs the next one. What the call array has no room for
    /// waits one cycle, which then does not sleep.
    pub(super) fn run_io(&mut self, wait: Wait) -> Result<usize, Error> {
        self.ask_for_memory();
        self.batch.refill();
        self.udp.flush(&mut self.batch);
        self.packets.flush(&mut self.batch);
        let mut unfinished = false;
        while self.batch.has_room(EMIT_CALLS)
            && let Some(id) = self.dirty.pop_front()
        {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.dirty = false;
            match connection.emit(id, &mut self.batch) {
                Emitted::Alive => {}
                Emitted::Unfinished => unfinished = true,
                Emitted::Gone => self.forget(id),
            }
        }
        let starved = !self.starved.is_empty();
        let wait = match wait {
            _ if unfinished || !self.dirty.is_empty() || self.has_backlog() => Wait::Poll,
            Wait::Forever if starved => Wait::Us(RETRY_US),
            Wait::Us(us) if starved => Wait::Us(us.min(RETRY_US)),
            wait => wait,
        };
        self.batch.run_io(wait)
    }

    /// Takes in the answers of the last batch. Calls that follow from them go to the next batch:
    /// appending would overwrite answers.
    pub(super) fn settle(&mut self) {
        for slot in 0..self.batch.answers() {
            let (pending, answer) = self.batch.answer(slot);
            match pending {
                Pending::Nothing => {}
                Pending::Sendv(id, offered) => self.sendv_answered(id, offered, answer),
                Pending::Accept(id) => {
                    if answer.is_err() {
                        self.failed.push((id, Dead::Reset));
                    }
                }
                Pending::Rename(id, old) => self.renamed(id, old, answer),
                Pending::Connect(id) => self.connect_answered(id, answer),
                Pending::Listen(id) => {
                    if let Some(listener) = self.listeners.get_mut(id) {
                        *listener = Some(answer);
                    }
                }
                Pending::UdpBind(id) => self.udp_bind_answered(id, answer),
                Pending::Datagram(id) => self.udp.answered(id, answer),
                Pending::PacketBind(id) => self.packet_bind_answered(id, answer),
                Pending::PacketInfo => self.packets.info_answer = Some(answer),
                Pending::Packet(id) => {
                    if let Err(error) = answer {
                        self.packet_left(id, Err(error));
                    }
                }
                Pending::Signal(to, value) => self.signal_answered(to, value, answer),
                Pending::Timer(id, delay_us) => self.timer_answered(id, delay_us, answer),
                Pending::Drain => self.drain_refused = answer.err(),
                Pending::SharedMemory => self.shared = Some(self.batch.thread.claim_tx(slot)),
                Pending::TxMemory => {
                    self.tx_asked = false;
                    let adopted = self.batch.thread.adopt_tx(slot);
                    self.tx_refused_us = adopted.is_err().then(|| self.now_us());
                }
            }
        }
    }

    fn sendv_answered(&mut self, id: u64, offered: u64, answer: Result<u64, Error>) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        match connection.sendv_answered(offered, answer) {
            Ok(()) => {
                // More than one array full, an end that waited for this, or a retry.
                self.touch(id);
            }
            Err(error) => {
                let handle = connection.handle;
                self.failed.push((id, Dead::Failed(error)));
                self.batch.push_later(call::abort(handle), Pending::Nothing);
            }
        }
    }

    fn connect_answered(&mut self, id: u64, answer: Result<u64, Error>) {
        match answer {
            Ok(handle) => {
                if let Some(connection) = self.connections.get_mut(id) {
                    connection.handle = handle;
                    self.note_group(handle, id);
                    self.touch(id);
                }
            }
            Err(error) => self.failed.push((id, Dead::NotConnected(error))),
        }
    }

    fn timer_answered(&mut self, id: u64, delay_us: u64, answer: Result<u64, Error>) {
        match (self.timers.get_mut(id), answer) {
            (Some(timer), Ok(name)) => timer.id = Some(name),
            // Cancelled before it had a name.
            (None, Ok(name)) => self.batch.push_later(call::timer_cancel(name), Pending::Nothing),
            (Some(_), Err(Error::NoResource)) => {
                self.batch.push_later(call::timer_set(id, delay_us), Pending::Timer(id, delay_us));
            }
            (_, Err(_)) => drop(self.timers.remove(id)),
        }
    }

    /// Asks that the flow groups of this thread go to the others.
    pub(super) fn drain(&mut self) {
        self.drained = false;
        self.batch.push(call::drain(), Pending::Drain);
    }

    /// Whether the next cycle has anything to carry out.
    pub(super) fn has_calls(&self) -> bool {
        self.batch.has_calls() || !self.dirty.is_empty() || self.has_backlog()
    }

    /// Sets timers again that ended when the thread was left.
    pub(super) fn restart_timers(&mut self) {
        let now_us = self.now_us();
        for id in self.timers.ids().collect::<Vec<_>>() {
            if let Some(timer) = self.timers.get_mut(id) {
                timer.id = None;
                let delay_us = timer.due_us.saturating_sub(now_us);
                self.batch.push(call::timer_set(id, delay_us), Pending::Timer(id, delay_us));
            }
        }
    }

    fn has_backlog(&self) -> bool {
        self.batch.has_backlog() || self.udp.has_backlog() || self.packets.has_backlog()
    }

    fn ask_for_memory(&mut self) {
        if self.tx_asked || !self.tx().wants_memory() {
            return;
        }
        let now_us = self.now_us();
        if self.tx_refused_us.is_none_or(|refused| now_us.saturating_sub(refused) >= TX_RETRY_US) {
            self.tx_asked = true;
            self.batch.push(call::tx_alloc(TX_STEP_BYTES), Pending::TxMemory);
        }
    }

    pub(super) fn end(&mut self, id: u64, ending: Ending) {
        if let Some(connection) = self.connections.get_mut(id) {
            connection.ending = ending;
            self.touch(id);
        }
    }

    pub(super) fn fin(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(id)
            && connection.fin == Fin::No
        {
            connection.fin = Fin::Wanted;
            self.touch(id);
        }
    }
}
