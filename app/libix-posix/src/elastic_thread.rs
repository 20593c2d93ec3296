//! What this library keeps for each elastic thread: its driver, and the calls to be made there. A
//! connection stays with the elastic thread that has its flow group. Any thread of the program may
//! use it, because the state of all sockets is behind one lock. Different elastic threads run
//! cycles at the same time.
use crate::confined::{ELASTIC_THREADS_MAX, Locked};
use crate::slab::Id;
use crate::{clock, pid, wake};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use libix::engine::{Batch, Memory};
use libix::raw::{Received, TxArena, Will, call};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

/// How long no cycle must have run before the helper runs one.
pub const TICK: Duration = Duration::from_millis(1);

/// Memory of an elastic thread when a socket found too little, or since its sockets were last told
/// of more.
#[derive(Clone, Copy)]
pub struct Seen {
    /// Free, with what may still come: what the limits follow.
    pub spare: u64,
    /// Free: what a refused allocation waits for.
    pub free: u64,
}

impl Seen {
    /// None.
    pub const NONE: Seen = Seen { spare: 0, free: 0 };
}

/// Wakes a sleeping helper when the program has run no cycle for a [`TICK`].
///
/// Most cycles are followed by another one sooner, so the helper of a process that runs some now
/// and then, one of many, is not woken at all. With one that runs many it looks each tick instead.
#[derive(Clone, Copy, Debug)]
pub struct Alarm {
    timer: RawFd,
    is_set: bool,
    /// How often it was set, each time soon after the last one, and when that was, µs.
    often: u32,
    set_us: u64,
}

impl Alarm {
    /// Setting it so often costs more than a helper that looks each tick.
    const OFTEN: u32 = 4;
    /// Soon: within this time, µs. To set and to stop the timer costs about as much as to wake the
    /// helper once, and a helper that looks each tick is woken once in a millisecond.
    const SOON_US: u64 = 1_000;

    /// Not set.
    pub const fn new(timer: RawFd) -> Alarm {
        Alarm { timer, is_set: false, often: 0, set_us: 0 }
    }

    /// The program has come out of a cycle.
    pub fn came_out(&mut self) {
        if !self.is_set {
            let now_us = clock::now_us();
            let is_soon = now_us < self.set_us + Alarm::SOON_US;
            self.often = if is_soon { self.often + 1 } else { 0 };
            (self.is_set, self.set_us) = (true, now_us);
            wake::set_timer(self.timer, TICK);
        }
    }

    /// It runs another one.
    pub fn goes_in(&mut self) {
        if self.is_set && self.often < Alarm::OFTEN {
            self.is_set = false;
            wake::set_timer(self.timer, Duration::ZERO);
        }
    }

    /// Wakes the helper at once.
    pub fn ring(self) {
        wake::set_timer(self.timer, Duration::from_nanos(1));
    }
}

/// The driver of an elastic thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No thread drives it.
    Free,
    /// A thread of the program.
    Program,
    /// Our helper, while the program does something else.
    Helper,
}

/// What a cookie names, in its upper bits. Ids of sockets leave these bits free.
pub mod cookie {
    /// A listening port.
    pub const PORT: u64 = 1 << 63;
    /// Memory that a call names: a datagram to send, or room for a result.
    pub const MEMORY: u64 = 1 << 62;
}

/// What the return value of a call is for.
#[derive(Clone, Copy, Default)]
pub enum Pending {
    /// Nothing.
    #[default]
    Nothing,
    /// How many of this many bytes the window took.
    Sendv(Id, u64),
    /// The handle of a connection.
    Connect(Id),
    /// An error: the connection has ended.
    Accept(Id),
    /// The handle of a listener.
    Listen(Id),
    /// The handle of a UDP port.
    UdpBind(Id),
    /// An error: the memory under this cookie is free.
    UdpSendv(u64),
    /// Information about the flow.
    Info(Id),
    /// Transmit memory.
    Memory,
    /// Whether a connection is another process's now.
    Give(Id),
}

impl Pending {
    /// Whether a thread waits for the return value, and no event follows.
    pub fn is_urgent(&self) -> bool {
        let outcome =
            matches!(self, Pending::Connect(_) | Pending::Listen(_) | Pending::UdpBind(_));
        outcome || matches!(self, Pending::Info(_) | Pending::Memory | Pending::Give(_))
    }
}

/// What this library keeps for one elastic thread.
pub struct ElasticThread {
    /// Its driver.
    pub role: Role,
    /// Wake descriptors of threads of the program that want to drive it.
    pub wants_role: Vec<RawFd>,
    /// The helper while it sleeps without a time limit.
    pub helper_sleeps: Option<Alarm>,
    /// The driver was told to come out.
    pub kicked: bool,
    /// How many cycles it has run.
    pub cycle: u64,
    /// The Linux descriptor that the dataplane watches while it sleeps.
    pub watched: Option<RawFd>,
    /// Transmit memory, once the dataplane runs.
    pub tx: Option<Locked<TxArena>>,
    /// Its requests for more transmit memory.
    pub memory: Memory,
    /// In this cycle a sender found no transmit memory.
    pub starved: bool,
    /// Sockets that wait for transmit memory.
    pub starving: Vec<Id>,
    /// The least transmit memory since they were last told of more.
    pub memory_seen: Seen,
    /// Sockets with calls to make.
    pub dirty: VecDeque<Id>,
    /// Connections that hold back a short segment (`TCP_CORK`).
    pub corked: Vec<Id>,
    /// Connections that enter the accept queue when bytes arrive (`TCP_DEFER_ACCEPT`).
    pub deferred: Vec<Id>,
    /// Ports to be opened.
    pub new_ports: Vec<Id>,
    /// Ports whose backlog has changed.
    pub backlogs: Vec<Id>,
    /// Handles of listeners to be closed.
    pub old_ports: Vec<u64>,
    /// UDP ports to be bound.
    pub new_udp_ports: Vec<Id>,
    /// Handles of UDP ports to be unbound.
    pub old_udp_ports: Vec<u64>,
    /// UDP ports whose groups the dataplane is to be told: on the first elastic thread, for all.
    pub group_ports: Vec<Id>,
    /// The batch being written, and calls that wait for the next one.
    pub batch: Batch<Pending>,
    /// What is carried out if this process ends before its next batch.
    pub will: Option<Will>,
    /// Connections of which something is noted there.
    pub noted: Vec<Id>,
}

impl ElasticThread {
    /// An elastic thread without a driver and without calls.
    pub const fn new() -> ElasticThread {
        ElasticThread {
            role: Role::Free,
            wants_role: Vec::new(),
            helper_sleeps: None,
            kicked: false,
            cycle: 0,
            watched: None,
            tx: None,
            memory: Memory::new(),
            starved: false,
            starving: Vec::new(),
            memory_seen: Seen::NONE,
            dirty: VecDeque::new(),
            corked: Vec::new(),
            deferred: Vec::new(),
            new_ports: Vec::new(),
            backlogs: Vec::new(),
            old_ports: Vec::new(),
            new_udp_ports: Vec::new(),
            old_udp_ports: Vec::new(),
            group_ports: Vec::new(),
            batch: Batch::new(),
            will: None,
            noted: Vec::new(),
        }
    }

    /// Whether there are calls to make.
    pub fn has_calls(&self) -> bool {
        !self.dirty.is_empty()
            || !self.new_ports.is_empty()
            || !self.backlogs.is_empty()
            || !self.old_ports.is_empty()
            || !self.new_udp_ports.is_empty()
            || !self.old_udp_ports.is_empty()
            || !self.group_ports.is_empty()
            || self.batch.has_backlog()
    }

    /// A datagram was read: its buffer is returned with the next batch.
    pub fn give_back(&mut self, data: Received) {
        self.batch.put_off(call::udp_recv_done(data), Pending::Nothing);
    }

    /// In a forked child: forgets buffers in the parent's packet memory, which is not mapped here,
    /// without returning them.
    pub fn forked(&mut self) {
        core::mem::forget(core::mem::replace(self, ElasticThread::new()));
    }
}

/// How many threads of the program wait by way of each elastic thread.
static AT_HOME: [AtomicU32; ELASTIC_THREADS_MAX] =
    [const { AtomicU32::new(0) }; ELASTIC_THREADS_MAX];

/// The home of a thread of the program, with the process that it was chosen in.
struct Home(Cell<Option<(i32, usize)>>);

impl Drop for Home {
    fn drop(&mut self) {
        if let Some((pid, elastic)) = self.0.get()
            && pid == pid::own()
        {
            AT_HOME[elastic].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The home of the calling thread: the elastic thread, of `count`, that it drives when it waits.
/// It is the one with the fewest threads when the thread first waited. The thread stays there, and
/// so do the connections that arrive there.
pub fn home(count: usize) -> usize {
    thread_local! { static HOME: Home = const { Home(Cell::new(None)) } }
    if count == 1 {
        return 0;
    }
    let pid = pid::own();
    let at_home = HOME.try_with(|home| match home.0.get() {
        Some((owner, elastic)) if owner == pid && elastic < count => elastic,
        _ => {
            let threads = |elastic: &usize| AT_HOME[*elastic].load(Ordering::Relaxed);
            let elastic = (0..count).min_by_key(threads).unwrap_or(0);
            AT_HOME[elastic].fetch_add(1, Ordering::Relaxed);
            home.0.set(Some((pid, elastic)));
            elastic
        }
    });
    at_home.unwrap_or(0)
}

/// In a forked child: its only thread has no home yet.
pub fn forked() {
    AT_HOME.iter().for_each(|threads| threads.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_spread_over_the_elastic_threads_and_stay() {
        assert_eq!(home(1), 0);
        let mine = home(2);
        let other = std::thread::spawn(|| (home(2), home(2))).join().unwrap();
        assert_eq!((other.0, other.1, home(2)), (1 - mine, 1 - mine, mine));
        // That thread has ended, so a new one takes its place.
        assert_eq!(std::thread::spawn(|| home(2)).join().unwrap(), 1 - mine);
    }
}
