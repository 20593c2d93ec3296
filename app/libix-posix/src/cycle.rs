//! One cycle of an elastic thread, run by its driver: the calls of all threads of the program go
//! in, and the events for all of them come out.
use crate::confined::THREADS;
use crate::elastic_thread::Role;
use crate::lock::{Guard, lock};
use crate::state::Core;
use crate::stream::CORK_US;
use crate::thrift::{self, Now};
use crate::{log, lost, real, signals};
use libix::Error;
use libix::raw::Wait;
use std::os::fd::RawFd;

/// Longest sleep of a driver while a sender waits for transmit memory, µs.
const STARVED_US: u64 = 1_000;
/// Longest sleep of a driver while a socket waits to be told of transmit memory, µs: another
/// elastic thread may free some, or the dataplane give more, without an event here.
const STARVING_US: u64 = 20_000;
/// Longest sleep of a driver while a connection waits for its first bytes (`TCP_DEFER_ACCEPT`), µs.
const DEFERRED_US: u64 = 100_000;

/// Why a driver has come out of the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleEnd {
    /// There were events.
    Events,
    /// There were events for a thread that sleeps and drives this elastic thread when it waits
    /// next.
    ForOthers,
    /// There were no events, and another thread wanted the driver to come out.
    Kicked,
    /// There were no events: the time is over, or Linux's descriptor is readable.
    Otherwise,
}

/// Runs a cycle, or several until there are events. The elastic thread must have no driver. The
/// dataplane also wakes up when `linux` is readable.
pub fn run(
    mut core: Guard,
    index: usize,
    wait: Wait,
    linux: Option<RawFd>,
    role: Role,
) -> (Guard, CycleEnd) {
    debug_assert!(core.elastic_threads[index].role == Role::Free);
    // SAFETY: this thread is the driver from here until the role is free again below.
    let Some(thread) = (unsafe { THREADS[index].get() }) else {
        return (core, CycleEnd::Otherwise);
    };
    core.elastic_threads[index].role = role;
    if role == Role::Program
        && let Some(alarm) = &mut core.elastic_threads[index].helper_sleeps
    {
        alarm.goes_in();
    }
    let left = core.emit(index, thread);
    core.renews_will(index, thread.batch());
    let looks_us = core.looks_us;
    let own = &mut core.elastic_threads[index];
    // Acknowledgements free memory, and the dataplane may give more without an event.
    let starved = core::mem::take(&mut own.starved);
    let wait = if starved { at_most(wait, STARVED_US) } else { wait };
    let wait = if own.starving.is_empty() { wait } else { at_most(wait, STARVING_US) };
    let wait = if own.corked.is_empty() { wait } else { at_most(wait, CORK_US) };
    let wait = if own.deferred.is_empty() { wait } else { at_most(wait, DEFERRED_US) };
    let wait = if let Some(limit_us) = looks_us { at_most(wait, limit_us) } else { wait };
    let watches_other = own.watched != linux;
    own.watched = linux;
    // A handler that forks before the role is free again would wait for it for ever.
    let hold = signals::hold();
    drop(core);
    let events = signals::inside(index, |may_wait| {
        if watches_other {
            let _ = thread.watch(linux);
        }
        thread.run_io(if left || !may_wait { Wait::Poll } else { wait })
    });
    let mut core = lock();
    let events = match events {
        Ok(events) => events,
        Err(Error::Lost) => return (lost::recover(core, index), CycleEnd::Events),
        Err(error) => log::fatal(&format!("the dataplane failed: {error}")),
    };
    let kicked = core.came_out(index);
    core.elastic_threads[index].cycle += 1;
    core.settle(index, thread);
    core.renews_will(index, (0, 0));
    core.dispatch(index, thread, events);
    core.feed_starving(index);
    core.hand_out();
    if core.gives_memory_back(index, events == 0) {
        drop(core);
        real::give_heap_back();
        core = lock();
    }
    core.wakeups.came_out(index);
    let for_others = core.wakeups.is_at_home(index);
    core.elastic_threads[index].role = Role::Free;
    if let Some(wake_fd) = core.elastic_threads[index].wants_role.first().copied() {
        core.wake(wake_fd);
    }
    if role == Role::Program
        && let Some(alarm) = &mut core.elastic_threads[index].helper_sleeps
    {
        alarm.came_out();
    }
    if signals::are_kept() {
        drop(core);
        drop(hold);
        core = lock();
    }
    let end = match events {
        0 if kicked => CycleEnd::Kicked,
        0 => CycleEnd::Otherwise,
        _ if for_others => CycleEnd::ForOthers,
        _ => CycleEnd::Events,
    };
    (core, end)
}

impl Core {
    /// After a cycle: gives transmit memory back that nothing has used for a while. Returns whether
    /// the heap's is to be given back, without the lock.
    #[inline]
    fn gives_memory_back(&mut self, elastic: usize, heard_nothing: bool) -> bool {
        if self.sockets.was_shortened() {
            self.thrift.sockets_have_gone();
        }
        let tx = self.elastic_threads[elastic].tx.as_ref();
        let spare = tx.map_or((0, 0), |tx| tx.0.spare());
        match self.thrift.look(spare, heard_nothing) {
            Now::Nothing => false,
            Now::Later => {
                let looks_us = thrift::LOOKS_US;
                self.looks_us = Some(self.looks_us.map_or(looks_us, |us| us.min(looks_us)));
                false
            }
            Now::GiveBack { heap } => {
                tx.into_iter().for_each(|tx| tx.0.give_back());
                heap
            }
        }
    }
}

fn at_most(wait: Wait, limit_us: u64) -> Wait {
    match wait {
        Wait::Forever => Wait::Us(limit_us),
        Wait::Us(us) => Wait::Us(us.min(limit_us)),
        Wait::Poll => Wait::Poll,
    }
}
