//! What belongs to one elastic thread: who runs it, and what it is to be asked. A connection stays
//! with the elastic thread that has its flow group; any thread of the program may use it, for the
//! books of all sockets lie behind one lock. Cycles of different elastic threads run at the same
//! time.
use crate::slab::Id;
use crate::state::Pending;
use crate::sync::Locked;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use libix::Error;
use libix::engine::{Batch, Memory};
use libix::raw::{Received, TxArena, call};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Elastic threads that unmodified programs use at most.
pub const LANES_MAX: usize = 64;

/// Who runs an elastic thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody.
    Free,
    /// A thread of the program.
    Program,
    /// Our own thread, while the program does something else.
    Helper,
}

/// How a thread that waits hears that it should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// It sleeps on this bell, and runs this elastic thread when it waits next.
    Bell(RawFd, usize),
    /// It runs this elastic thread, and should come out of it.
    Driver(usize),
}

/// Those who are to be told once the lock is released.
pub struct Called {
    bells: Vec<RawFd>,
    /// A bit for each elastic thread that those with bells run when they wait next.
    homes: u64,
    /// A bit for each elastic thread whose driver should come out.
    drivers: u64,
}

impl Called {
    /// Nobody.
    pub const fn nobody() -> Called {
        Called { bells: Vec::new(), homes: 0, drivers: 0 }
    }

    /// One more.
    pub fn add(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Bell(bell, lane) => {
                self.homes |= 1 << lane;
                self.ring(bell);
            }
            Waiter::Driver(lane) => self.drivers |= 1 << lane,
        }
    }

    /// A bell of somebody who does not run the dataplane thereafter.
    pub fn ring(&mut self, bell: RawFd) {
        if !self.bells.contains(&bell) {
            self.bells.push(bell);
        }
    }

    /// Whether somebody among them runs this elastic thread when it waits next.
    pub fn is_at_home(&self, lane: usize) -> bool {
        self.homes >> lane & 1 != 0
    }

    /// A driver has come out.
    pub fn came_out(&mut self, lane: usize) {
        self.drivers &= !(1 << lane);
    }

    /// The bells.
    pub fn take_bells(&mut self) -> Vec<RawFd> {
        self.homes = 0;
        core::mem::take(&mut self.bells)
    }

    /// A bit for each elastic thread whose driver should come out.
    pub fn take_drivers(&mut self) -> u64 {
        core::mem::take(&mut self.drivers)
    }
}

/// What belongs to one elastic thread.
pub struct Lane {
    /// Who runs it.
    pub role: Role,
    /// Threads of the program that want to.
    pub wants_role: Vec<RawFd>,
    /// The helper's bell while it sleeps for long.
    pub helper_sleeps: Option<RawFd>,
    /// The driver was asked to come back.
    pub kicked: bool,
    /// Cycles so far.
    pub cycle: u64,
    /// What the dataplane watches beside its own.
    pub watched: Option<RawFd>,
    /// Transmit memory; there is some when the dataplane is entered.
    pub tx: Option<Locked<TxArena>>,
    /// What is known of requests for more of it.
    pub memory: Memory,
    /// Somebody found no transmit memory in this cycle.
    pub starved: bool,
    /// Sockets with calls to make.
    pub dirty: VecDeque<Id>,
    /// Connections that hold the end of what is unsent back (`TCP_CORK`).
    pub corked: Vec<Id>,
    /// Connections that their listener gets when something was received (`TCP_DEFER_ACCEPT`).
    pub deferred: Vec<Id>,
    /// Ports to be opened.
    pub new_ports: Vec<Id>,
    /// Listeners to be closed, by the dataplane's names.
    pub old_ports: Vec<u64>,
    /// UDP ports to be bound.
    pub new_udp_ports: Vec<Id>,
    /// UDP ports to be unbound, by the dataplane's names.
    pub old_udp_ports: Vec<u64>,
    /// The batch that is being written, and calls that wait for the next one.
    pub batch: Batch<Pending>,
}

impl Lane {
    /// Nothing yet.
    pub const fn new() -> Lane {
        Lane {
            role: Role::Free,
            wants_role: Vec::new(),
            helper_sleeps: None,
            kicked: false,
            cycle: 0,
            watched: None,
            tx: None,
            memory: Memory::new(),
            starved: false,
            dirty: VecDeque::new(),
            corked: Vec::new(),
            deferred: Vec::new(),
            new_ports: Vec::new(),
            old_ports: Vec::new(),
            new_udp_ports: Vec::new(),
            old_udp_ports: Vec::new(),
            batch: Batch::new(),
        }
    }

    /// Whether there are calls to make.
    pub fn has_calls(&self) -> bool {
        !self.dirty.is_empty()
            || !self.new_ports.is_empty()
            || !self.old_ports.is_empty()
            || !self.new_udp_ports.is_empty()
            || !self.old_udp_ports.is_empty()
            || self.batch.has_backlog()
    }

    /// A datagram was read: its buffer goes back with the next batch.
    pub fn give_back(&mut self, data: Received) {
        self.batch.put_off(call::udp_recv_done(data), Pending::Nothing);
    }

    /// In a forked child. Buffers in the parent's packet memory are forgotten, not given back: that
    /// memory is not here.
    pub fn forked(&mut self) {
        core::mem::forget(core::mem::replace(self, Lane::new()));
    }
}

/// The dataplane's name of a port on one elastic thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// It was not asked for yet.
    Unasked,
    /// It was.
    Asked,
    /// The answer.
    Is(Result<u64, Error>),
}

/// The names of a port, which every elastic thread opens for its own flow groups.
pub struct Names(Vec<Name>);

impl Names {
    /// Not asked for yet.
    pub fn unasked(lanes: usize) -> Names {
        Names(vec![Name::Unasked; lanes])
    }

    /// The name on one elastic thread.
    pub fn get(&self, lane: usize) -> Option<u64> {
        match self.0.get(lane) {
            Some(Name::Is(answer)) => answer.ok(),
            _ => None,
        }
    }

    /// What is known of one.
    pub fn set(&mut self, lane: usize, name: Name) {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, Name::Unasked);
        }
        self.0[lane] = name;
    }

    /// Whether an answer is outstanding.
    pub fn is_awaited(&self) -> bool {
        self.0.contains(&Name::Asked)
    }

    /// Once all have answered: the first refusal, or that there was none.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        let mut outcome = Ok(());
        for name in &self.0 {
            let Name::Is(answer) = name else { return None };
            outcome = outcome.and(answer.map(drop));
        }
        Some(outcome)
    }

    /// Those that there are, with their elastic threads.
    pub fn all(&self) -> impl Iterator<Item = (usize, u64)> {
        (0..self.0.len()).filter_map(|lane| self.get(lane).map(|name| (lane, name)))
    }
}

/// Threads of the program that wait by way of each elastic thread.
static AT_HOME: [AtomicU32; LANES_MAX] = [const { AtomicU32::new(0) }; LANES_MAX];

/// The elastic thread of a thread of the program.
struct Home(Cell<Option<(i32, usize)>>);

impl Drop for Home {
    fn drop(&mut self) {
        if let Some((pid, lane)) = self.0.get()
            && pid == crate::process::own_pid()
        {
            AT_HOME[lane].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The elastic thread that the calling thread runs when it waits, one of so many: the one with the
/// fewest threads when it first did. It stays there, and so do the connections that come in there.
pub fn home(lanes: usize) -> usize {
    thread_local! { static HOME: Home = const { Home(Cell::new(None)) } }
    if lanes == 1 {
        return 0;
    }
    let pid = crate::process::own_pid();
    let at_home = HOME.try_with(|home| match home.0.get() {
        Some((owner, lane)) if owner == pid && lane < lanes => lane,
        _ => {
            let threads = |lane: &usize| AT_HOME[*lane].load(Ordering::Relaxed);
            let lane = (0..lanes).min_by_key(threads).unwrap_or(0);
            AT_HOME[lane].fetch_add(1, Ordering::Relaxed);
            home.0.set(Some((pid, lane)));
            lane
        }
    });
    at_home.unwrap_or(0)
}

/// In a forked child: its only thread is at no home.
pub fn forked() {
    AT_HOME.iter().for_each(|threads| threads.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_open_when_all_have_answered() {
        let mut names = Names::unasked(2);
        assert_eq!((names.outcome(), names.is_awaited()), (None, false));
        names.set(1, Name::Asked);
        assert!(names.is_awaited());
        names.set(1, Name::Is(Ok(7)));
        assert_eq!((names.outcome(), names.get(1), names.get(0)), (None, Some(7), None));
        names.set(0, Name::Is(Err(Error::InUse)));
        assert_eq!(names.outcome(), Some(Err(Error::InUse)));
        assert_eq!(names.all().collect::<Vec<_>>(), [(1, 7)]);
        names.set(0, Name::Is(Ok(3)));
        assert_eq!(names.outcome(), Some(Ok(())));
    }

    #[test]
    fn threads_spread_over_the_elastic_threads_and_stay() {
        assert_eq!(home(1), 0);
        let mine = home(2);
        let other = std::thread::spawn(|| (home(2), home(2))).join().unwrap();
        assert_eq!((other.0, other.1, home(2)), (1 - mine, 1 - mine, mine));
        // That thread has ended, so there is room where it was.
        assert_eq!(std::thread::spawn(|| home(2)).join().unwrap(), 1 - mine);
    }

    #[test]
    fn whoever_is_called_is_called_once() {
        let mut called = Called::nobody();
        for waiter in [Waiter::Bell(5, 2), Waiter::Driver(3), Waiter::Bell(5, 2)] {
            called.add(waiter);
        }
        called.ring(6);
        called.add(Waiter::Driver(1));
        assert!(called.is_at_home(2) && !called.is_at_home(3));
        called.came_out(3);
        assert_eq!((called.take_bells(), called.take_drivers()), (vec![5, 6], 1 << 1));
        assert_eq!((called.take_bells(), called.take_drivers()), (vec![], 0));
        assert!(!called.is_at_home(2));
    }
}
