//! The guard: serves elastic threads whose applications are non-responsive.
//!
//! It is a Linux thread of its own, so it does not matter what the application does: it may
//! compute, or wait in a system call of Linux. A [`crate::run::door::Door`] decides whether the
//! elastic thread's owner or the guard is inside.
use crate::clock::monotonic_ns;
use crate::observe::metrics::Place;
use crate::run::boot::Dataplane;
use crate::sync::{Ordering, fence, has_heavy_barrier, let_others_run};

/// Time between two turns for a non-responsive application, µs: like a delayed acknowledgement.
const TURN_US: u64 = 1_000;
/// Number of checks within the time that an application may stay away.
const LOOKS: u64 = 2;
/// If no thread was awake for this time, the guard sleeps until one is, µs.
const REST_US: u64 = 200_000;

impl Dataplane {
    /// Serves elastic threads of non-responsive applications, forever. Called on a Linux thread
    /// that does nothing else, with all signals blocked. Returns only if the system has no
    /// `membarrier`, or the configuration has no guard.
    pub fn guard(&self) {
        let limit_us = self.shared.config.nonresponsive_us;
        if limit_us == 0 || !has_heavy_barrier() {
            return;
        }
        // The thread that has started it is pinned to a hardware thread.
        run_on(&self.home);
        // Not the time stamp counter, whose rate would have to be measured first: this need not be
        // fast.
        let now_us = || monotonic_ns() / 1000;
        let mut awake_us = now_us();
        let mut served = false;
        loop {
            let now_us = now_us();
            let (serves, all_asleep) = self.look_after_all(now_us, limit_us);
            if served && !serves {
                run_on(&self.home);
            }
            served = serves;
            if !all_asleep {
                awake_us = now_us;
            }
            let pause_us = if served { TURN_US } else { limit_us / LOOKS };
            match now_us - awake_us >= REST_US {
                true => self.rest(),
                false => std::thread::sleep(std::time::Duration::from_micros(pause_us)),
            }
        }
    }

    /// Returns whether a thread was served, and whether all threads are asleep in the dataplane.
    fn look_after_all(&self, now_us: u64, limit_us: u64) -> (bool, bool) {
        let (mut served, mut all_asleep) = (false, true);
        for thread in 0..self.threads() {
            if !self.claims.is_entered(thread) {
                continue;
            }
            match self.page.thread(thread).whereabouts.get() {
                Place::Asleep { .. } => continue,
                Place::Application { since_us } if now_us > since_us.saturating_add(limit_us) => {
                    served |= self.serve(thread);
                }
                Place::Application { .. } | Place::Dataplane => {}
            }
            all_asleep = false;
        }
        (served, all_asleep)
    }

    /// Runs a turn for a non-responsive application's thread; false if the application has just
    /// returned.
    fn serve(&self, thread: usize) -> bool {
        let door = &self.doors[thread];
        let holds = door.hold();
        if holds {
            // The application may have left the thread before the door was held, and another thread
            // may look after it. Or all ends: the store above and this load are ordered against
            // those of `end_guard`.
            let ends = self.guard_ends.load(Ordering::SeqCst);
            if self.claims.is_entered(thread) && !ends {
                run_on(&only(self.cpu(thread)));
                // SAFETY: the owner is outside and waits until the door is released; nobody else
                // looks after a thread that is entered.
                unsafe { (*self.runners[thread].get()).serve_non_responsive() };
            }
            door.release();
        }
        holds
    }

    /// From now on the guard serves nothing more; returns when it is outside.
    pub fn end_guard(&self) {
        self.guard_ends.store(true, Ordering::SeqCst);
        for door in &self.doors {
            while door.is_held() {
                let_others_run();
            }
        }
    }

    /// Sleeps until an elastic thread wakes.
    fn rest(&self) {
        let waker = &self.shared.guard;
        waker.set_sleeping(true);
        // A thread stores that it is awake and then reads whether the guard sleeps.
        fence(Ordering::SeqCst);
        let asleep = |thread| {
            let place = self.page.thread(thread).whereabouts.get();
            !self.claims.is_entered(thread) || matches!(place, Place::Asleep { .. })
        };
        if (0..self.threads()).all(asleep) {
            let mut poll = libc::pollfd { fd: waker.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one struct; -1: for ever.
            unsafe { libc::poll(&mut poll, 1, -1) };
            crate::doorbell::drain(waker.fd());
        }
        waker.set_sleeping(false);
    }
}

/// Where the calling thread may run.
pub(crate) fn home() -> libc::cpu_set_t {
    // SAFETY: all zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: fills a local of this size; 0 is the calling thread.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    set
}

/// One hardware thread. The guard works where the elastic thread does, because its memory is in the
/// cache there and no other elastic thread is disturbed.
pub(crate) fn only(cpu: u32) -> libc::cpu_set_t {
    // SAFETY: all zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    if (cpu as usize) < libc::CPU_SETSIZE as usize {
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    set
}

/// Pins the calling thread to this set. If that is not allowed, nothing changes.
pub(crate) fn run_on(set: &libc::cpu_set_t) {
    // SAFETY: reads the set; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(set), set) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::door::Door;
    use std::cell::UnsafeCell;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// Two numbers that only the one inside may touch, and that must be equal.
    struct Room {
        door: Door,
        pair: UnsafeCell<(u64, u64)>,
    }

    // SAFETY: the pair is touched behind the door only.
    unsafe impl Sync for Room {}

    impl Room {
        fn work(&self) {
            // SAFETY: called by who is inside.
            let pair = unsafe { &mut *self.pair.get() };
            assert_eq!(pair.0, pair.1, "two were inside");
            pair.0 += 1;
            std::hint::black_box(&mut *pair);
            pair.1 += 1;
        }
    }

    #[test]
    fn owner_and_guard_are_never_inside_together() {
        if !has_heavy_barrier() {
            let need = ix_skip::Need::Kernel("a kernel with membarrier");
            ix_skip::skip("owner_and_guard_are_never_inside_together", need, "no membarrier");
            return;
        }
        let room = Room { door: Door::default(), pair: UnsafeCell::new((0, 0)) };
        let (done, held) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if room.door.hold() {
                        room.work();
                        room.door.release();
                        held.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
            // Until the guard was inside often enough between the owner's visits.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while held.load(Ordering::Relaxed) < 1000 && std::time::Instant::now() < end {
                for _ in 0..100 {
                    room.door.enter();
                    room.work();
                    room.door.leave();
                }
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(held.into_inner() >= 1000, "the guard never came in");
    }
}
