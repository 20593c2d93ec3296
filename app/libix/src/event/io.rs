//! The loop as a handler sees it, and its state between cycles.
use super::Conn;
use super::packets::Packets;
use super::team::Team;
use crate::engine::{Connection, Ending, Engine, SendLimit, Table, User};
use crate::error::Error;
use crate::raw::{Thread, TxArena, Wait, call};
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;

/// What a loop attaches to connections of the engine.
pub(super) struct Attached<S>(PhantomData<S>);

impl<S> User for Attached<S> {
    type Connection = S;
    type Socket = ();
    type Call = Pending;
}

/// The purpose of a call of the loop itself, for its result.
#[derive(Clone, Copy)]
pub(super) enum Pending {
    /// A timer, and its delay.
    Timer(u64, u64),
    SharedMemory,
    Drain,
    PacketBind(u64),
    PacketInfo,
    /// A frame that is being sent.
    Packet(u64),
    /// A signal: target thread and value.
    Signal(u32, u64),
}

struct Timer {
    token: u64,
    due_us: u64,
    /// The dataplane's name of it, once known.
    id: Option<u64>,
}

/// Connections, listeners and timers of one event loop; `S` is the state of a connection.
pub struct Io<S> {
    timers: Table<Timer>,
    pub(super) packets: Packets,
    pub(super) send_limit: SendLimit,
    /// Result of `EventLoop::shared_memory`.
    pub(super) shared: Option<Result<&'static [AtomicU64], Error>>,
    stop: bool,
    /// The flow groups of this thread have left, as [`Io::drain`] asked.
    pub(super) drained: bool,
    pub(super) drain_refused: Option<Error>,
    /// How many dataplanes have ended.
    pub(super) lost: u64,
    /// The address to which the datagram in the present callback was sent.
    pub(super) asked: Option<IpAddr>,
    /// `None`: connections never move.
    pub(super) team: Option<Team<S>>,
    /// Dropped last: it has the elastic thread, to whose memory the others refer.
    pub(super) engine: Engine<Attached<S>>,
}

impl<S> Io<S> {
    pub(super) fn new(thread: Thread, team: Option<&Team<S>>) -> Io<S> {
        let index = thread.index();
        let mut engine = Engine::new(thread);
        if team.is_some() {
            engine.remember_groups();
        }
        Io {
            timers: Table::new(index),
            packets: Packets::new(index),
            send_limit: SendLimit::Auto,
            shared: None,
            stop: false,
            drained: false,
            drain_refused: None,
            lost: 0,
            asked: None,
            team: team.cloned(),
            engine,
        }
    }

    /// Time of this cycle, µs of the dataplane's monotonic clock.
    pub fn now_us(&self) -> u64 {
        self.engine.now_us()
    }

    /// Number of the elastic thread.
    pub fn thread_index(&self) -> u32 {
        self.engine.thread().index()
    }

    /// Transmit memory, to fill buffers for [`Conn::send_zc`] and [`Conn::send_shared`].
    pub fn tx(&self) -> &TxArena {
        self.engine.tx()
    }

    /// Number of connections, with those that are closing.
    pub fn connections(&self) -> usize {
        self.engine.len()
    }

    /// Ids of all connections, with those that are closing.
    pub fn ids(&self) -> Vec<u64> {
        self.engine.cookies().collect()
    }

    /// Resets all connections, without a callback.
    pub fn abort_all(&mut self) {
        self.ids().into_iter().for_each(|id| self.end(id, Ending::Abort));
    }

    /// Sets the most bytes that a connection may hold, unsent and unacknowledged together. Until
    /// it is set, each may hold 1 MiB, and up to 16 MiB if its path holds that much and transmit
    /// memory is not short.
    pub fn set_send_limit(&mut self, bytes: u64) {
        self.send_limit = SendLimit::Set(bytes);
    }

    /// Ends [`super::EventLoop::run`] after this cycle.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    /// The connection with this id, unless it has ended or the handler has ended it.
    pub fn conn(&mut self, id: u64) -> Option<Conn<'_, S>> {
        let place = self.engine.find(id)?;
        let open = self.engine.at(place)?.ending() == Ending::No;
        open.then(|| Conn::new(self, id, place))
    }

    /// Prefetches a connection that will be used soon into the cache.
    #[inline]
    pub fn prefetch(&self, id: u64) {
        self.engine.prefetch(id);
    }

    /// Opens a connection; `on_connected` or `on_dead` reports the outcome. Bytes sent before that
    /// wait.
    pub fn connect(&mut self, to: SocketAddr, state: S) -> u64 {
        self.connect_from(0, to, state)
    }

    /// Opens a connection from the given port; 0: any. The replies must come to this elastic
    /// thread: a port whose flow group belongs to another is refused as invalid.
    pub fn connect_from(&mut self, local_port: u16, to: SocketAddr, state: S) -> u64 {
        self.engine.connect(to, local_port, state)
    }

    /// Opens a connection from the given address and port, for a dataplane with several addresses.
    pub fn connect_from_addr(&mut self, from: SocketAddr, to: SocketAddr, state: S) -> u64 {
        self.engine.connect_from(to, from, state)
    }

    /// Sets a timer: `on_timer` gets `token` once, after `delay_us`. Returns an id.
    pub fn set_timer(&mut self, delay_us: u64, token: u64) -> u64 {
        let due_us = self.now_us().saturating_add(delay_us);
        let id = self.timers.insert(Timer { token, due_us, id: None });
        self.engine.push(call::timer_set(id, delay_us), Pending::Timer(id, delay_us));
        id
    }

    /// Stops a timer; returns whether it had not fired yet.
    pub fn cancel_timer(&mut self, id: u64) -> bool {
        let timer = self.timers.remove(id);
        if let Some(Timer { id: Some(timer), .. }) = timer {
            self.engine.push_quietly(call::timer_cancel(timer));
        }
        timer.is_some()
    }

    /// Closes a listener. Its connections stay open.
    pub fn unlisten(&mut self, listener: u64) {
        self.engine.unlisten(listener);
    }

    /// Opens a listener and returns its id; [`Io::listener_outcome`] reports the result
    /// ([`super::EventLoop::listen`] waits for it). `backlog` 0: the dataplane's default.
    pub fn listen(&mut self, at: SocketAddr, backlog: u32) -> u64 {
        self.engine.listen(at, backlog)
    }

    /// Whether the listener was opened, once that is known; a refused listener is forgotten.
    pub fn listener_outcome(&mut self, id: u64) -> Option<Result<(), Error>> {
        self.engine.listener_outcome(id)
    }

    /// The connection with this id, unless it has ended.
    #[inline]
    pub(super) fn connection_mut(&mut self, id: u64) -> Option<&mut Connection<S>> {
        self.engine.get_mut(id)
    }

    /// As [`Io::connection_mut`], with the transmit memory.
    pub(super) fn connection_with_tx(&mut self, id: u64) -> Option<(&mut Connection<S>, &TxArena)> {
        let place = self.engine.find(id)?;
        self.engine.at_with_tx(place)
    }

    pub(super) fn timer_fired(&mut self, id: u64) -> Option<u64> {
        self.timers.remove(id).map(|timer| timer.token)
    }

    pub(super) fn take_stop(&mut self) -> bool {
        core::mem::take(&mut self.stop)
    }

    /// Notes that the connection may have calls to append before the next cycle.
    #[inline]
    pub(super) fn touch(&mut self, id: u64) {
        self.engine.touch(id);
    }

    /// Appends the calls of this cycle, and runs the next one. Calls that the call array has no
    /// room for wait one cycle, which then does not sleep.
    pub(super) fn run_io(&mut self, wait: Wait) -> Result<(), Error> {
        self.engine.refill();
        self.packets.flush(&mut self.engine);
        self.engine.emit(|_, _, _| false);
        self.engine.run_io(if self.packets.has_backlog() { Wait::Poll } else { wait })
    }

    /// The dataplane has ended: connections are dead with the next failures that are told. What
    /// the next one must have is asked for.
    pub(super) fn lose(&mut self) {
        self.lost += 1;
        self.engine.lose();
        self.restart_timers();
        self.lose_packets();
    }

    /// Takes in connections that were on their way here when the dataplane ended; `is_new`: there
    /// is another one.
    pub(super) fn unpack_lost(&mut self, is_new: bool) -> Vec<u64> {
        let here = self.thread_index();
        let parcels = self.team.as_ref().map(|team| team.receive_all(here));
        let parcels = parcels.into_iter().flatten();
        parcels.flat_map(|parcel| self.engine.unpack_lost(parcel, is_new)).collect()
    }

    /// Handles the results of the last batch.
    pub(super) fn settle(&mut self) {
        while let Some((slot, pending, answer)) = self.engine.next_answer() {
            match pending {
                Pending::PacketBind(id) => self.packet_bind_answered(id, answer),
                Pending::PacketInfo => {
                    self.packets.info = Some(self.engine.thread().packet_info(slot));
                }
                Pending::Packet(id) => {
                    if let Err(error) = answer {
                        self.packet_left(id, Err(error));
                    }
                }
                Pending::Signal(to, value) => self.signal_answered(to, value, answer),
                Pending::Timer(id, delay_us) => self.timer_answered(id, delay_us, answer),
                Pending::Drain => self.drain_refused = answer.err(),
                Pending::SharedMemory => {
                    self.shared = Some(self.engine.thread_mut().claim_tx(slot));
                }
            }
        }
    }

    fn timer_answered(&mut self, id: u64, delay_us: u64, answer: Result<u64, Error>) {
        match (self.timers.get_mut(id), answer) {
            (Some(timer), Ok(name)) => timer.id = Some(name),
            // Cancelled before it had a name.
            (None, Ok(name)) => self.engine.push_quietly(call::timer_cancel(name)),
            (Some(_), Err(Error::NoResource)) => {
                self.engine.push(call::timer_set(id, delay_us), Pending::Timer(id, delay_us));
            }
            (_, Err(_)) => drop(self.timers.remove(id)),
        }
    }

    /// Asks to move the flow groups of this thread to others.
    pub(super) fn drain(&mut self) {
        self.drained = false;
        self.engine.push(call::drain(), Pending::Drain);
    }

    /// Whether the next cycle has calls to carry out.
    pub(super) fn has_calls(&self) -> bool {
        self.engine.has_calls() || self.packets.has_backlog()
    }

    /// Sets timers again that ended when the thread was left.
    pub(super) fn restart_timers(&mut self) {
        let now_us = self.now_us();
        for id in self.timers.ids().collect::<Vec<_>>() {
            if let Some(timer) = self.timers.get_mut(id) {
                timer.id = None;
                let delay_us = timer.due_us.saturating_sub(now_us);
                self.engine.push(call::timer_set(id, delay_us), Pending::Timer(id, delay_us));
            }
        }
    }

    pub(super) fn end(&mut self, id: u64, ending: Ending) {
        self.engine.end(id, ending);
    }
}
