//! The program's side of a crossing: asks, and waits for the reply. Runs on the program's threads
//! with their thread-local storage, and uses none.
use crate::sys;
use core::arch::x86_64::{__rdtscp, _rdtsc};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use ix_abi::error;
use ix_proto::crossing::{Direction, Reply, Request, replies, requests};

/// Longest time that a caller on a hardware thread of its own looks at memory before it sleeps, in
/// ticks of the time stamp counter: about 20 µs.
const SPIN_TICKS: u64 = 50_000;
/// How often a caller that shares its hardware thread with the dataplane gives it away before it
/// sleeps.
const YIELDS: u32 = 4;
/// After this many waits in a row that yields have not ended, a caller sleeps without them: others
/// have the hardware thread for long, as the other processes of a program may, and each yield is
/// a change of processes for nothing.
const IN_VAIN_MAX: u32 = 8;
/// From then on one wait in this many tries them again.
const TRIED_AGAIN: u32 = 32;
/// Time between looks at signals of a program that is always busy, in ticks: about a millisecond.
const SIGNAL_TICKS: u64 = 2_500_000;

/// One elastic thread's end of the crossing. One thread at a time may use it, but any may
/// [`Crossing::kick`].
pub struct Crossing {
    /// On the pages that the program writes.
    pub request: *const Request,
    /// On the pages that it reads.
    pub reply: *const Reply,
    /// The bell, a socket.
    pub bell: i32,
    /// The hardware thread of the elastic thread.
    pub cpu: u32,
    /// Readable while a signal is pending that the caller would take; -1: nobody asked.
    pub signals: AtomicI32,
    /// A wait also ends when this descriptor is readable; -1: none.
    pub watched: AtomicI32,
    /// Number of the last request.
    pub serial: AtomicU64,
    /// When signals were looked at last.
    pub looked_ticks: AtomicU64,
    /// Whether giving the hardware thread away brings the reply.
    pub yields: Yields,
}

/// What has come of the last waits on the dataplane's hardware thread.
#[derive(Default)]
pub struct Yields {
    /// Number of waits that yields have not ended, less what those were worth that they have.
    in_vain: AtomicU32,
}

impl Yields {
    /// None yet.
    pub const fn new() -> Yields {
        Yields { in_vain: AtomicU32::new(0) }
    }

    /// Whether the next wait begins with them.
    fn are_tried(&self) -> bool {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        in_vain < IN_VAIN_MAX || in_vain.is_multiple_of(TRIED_AGAIN)
    }

    /// Whether a wait was over before the caller had to sleep.
    fn noted(&self, brought_reply: bool) {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        let now =
            if brought_reply { in_vain.min(IN_VAIN_MAX) / 2 } else { in_vain.wrapping_add(1) };
        self.in_vain.store(now, Ordering::Relaxed);
    }
}

/// What came of a request.
pub struct Outcome {
    /// The result, or minus an [`error`].
    pub result: i64,
    /// Time of the last cycle.
    pub now_us: u64,
    /// A signal is pending.
    pub signal: bool,
}

impl Crossing {
    fn request(&self) -> &Request {
        // SAFETY: mapped as long as the process lives; atomics.
        unsafe { &*self.request }
    }

    fn reply(&self) -> &Reply {
        // SAFETY: as above.
        unsafe { &*self.reply }
    }

    /// Asks, and waits for the reply.
    pub fn ask(&self, op: u64, calls: u64, wait_us: u64) -> Outcome {
        let (request, reply) = (self.request(), self.reply());
        let serial = self.serial.load(Ordering::Relaxed) + 1;
        self.serial.store(serial, Ordering::Relaxed);
        let here = hardware_thread();
        request.op.store(op, Ordering::Relaxed);
        request.calls.store(calls, Ordering::Relaxed);
        request.wait_us.store(wait_us, Ordering::Relaxed);
        request.cpu.store(here, Ordering::Relaxed);
        if requests(request, reply).publish(serial) {
            self.ring();
        }
        let mut signal = false;
        if !self.spin(serial, here == self.cpu) && !self.sleep(serial, &mut signal) {
            // As the program may see an older time otherwise.
            let now_us = reply.now_us.load(Ordering::Relaxed);
            return Outcome { result: -error::LOST, now_us, signal };
        }
        Outcome {
            result: reply.result.load(Ordering::Relaxed) as i64,
            now_us: reply.now_us.load(Ordering::Relaxed),
            signal: signal || self.signal_waits(),
        }
    }

    /// Ends the wait of a request, or of the next one that waits.
    pub fn kick(&self) {
        self.request().kick.fetch_add(1, Ordering::SeqCst);
        self.ring();
    }

    fn replies(&self) -> Direction<'_> {
        replies(self.request(), self.reply())
    }

    fn has_replied(&self, serial: u64) -> bool {
        self.replies().newest() == serial
    }

    /// Waits for a bounded time without sleep; false if there is no reply yet.
    fn spin(&self, serial: u64, shares: bool) -> bool {
        if shares {
            let times = if self.yields.are_tried() { YIELDS } else { 0 };
            let brought_reply = (0..times).any(|_| {
                // SAFETY: no arguments.
                unsafe { sys::syscall(libc::SYS_sched_yield, [0; 6]) };
                self.has_replied(serial)
            });
            self.yields.noted(brought_reply);
            return brought_reply;
        }
        let since = ticks();
        while !self.has_replied(serial) {
            if ticks().wrapping_sub(since) >= SPIN_TICKS {
                return false;
            }
            core::hint::spin_loop();
        }
        true
    }

    /// Sleeps until the reply is there; false if the dataplane is gone. A signal, or what the
    /// caller watches, makes the dataplane reply early.
    #[cold]
    fn sleep(&self, serial: u64, signal: &mut bool) -> bool {
        let mut others = [&self.signals, &self.watched].map(|fd| fd.load(Ordering::Relaxed));
        let replied = loop {
            if self.replies().going_to_sleep() == serial {
                break true;
            }
            // `poll` ignores a negative descriptor.
            let [signals, watched] = others;
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polls = [poll(self.bell), poll(signals), poll(watched)];
            let args = [polls.as_mut_ptr() as u64, polls.len() as u64, 0, 0, 0, 0];
            // SAFETY: an array of ours with its length; no limit of time, no signal mask.
            unsafe { sys::syscall(libc::SYS_ppoll, args) };
            if polls[0].revents != 0 && !self.take_rings() {
                // A last look: it may have replied and ended then.
                break self.has_replied(serial);
            }
            *signal |= polls[1].revents != 0;
            if polls[1].revents != 0 || polls[2].revents != 0 {
                others = [-1; 2];
                self.kick();
            }
        };
        self.replies().awake();
        replied
    }

    /// Whether a signal is pending; looks about every millisecond.
    fn signal_waits(&self) -> bool {
        let fd = self.signals.load(Ordering::Relaxed);
        let now = ticks();
        if fd < 0 || now.wrapping_sub(self.looked_ticks.load(Ordering::Relaxed)) < SIGNAL_TICKS {
            return false;
        }
        self.looked_ticks.store(now, Ordering::Relaxed);
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one struct; returns at once.
        unsafe { sys::syscall(libc::SYS_poll, [&raw mut poll as u64, 1, 0, 0, 0, 0]) > 0 }
    }

    fn ring(&self) {
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
        let args = [self.bell as u64, b"r".as_ptr() as u64, 1, flags, 0, 0];
        // SAFETY: one byte of a constant. A socket that is full was rung.
        unsafe { sys::syscall(libc::SYS_sendto, args) };
    }

    /// Takes what was rung; false if the dataplane is gone.
    fn take_rings(&self) -> bool {
        let mut rung = [0u8; 64];
        let (to, bytes) = (rung.as_mut_ptr() as u64, rung.len() as u64);
        let args = [self.bell as u64, to, bytes, libc::MSG_DONTWAIT as u64, 0, 0];
        // SAFETY: a local of that length.
        let n = unsafe { sys::syscall(libc::SYS_recvfrom, args) };
        n != 0 && n != -i64::from(libc::ECONNRESET)
    }
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { _rdtsc() }
}

/// The hardware thread of the caller, as the kernel has written it for this instruction.
fn hardware_thread() -> u32 {
    const NUMBER: u32 = 0xfff;
    let mut both = 0;
    // SAFETY: every processor that has FSGSBASE has this instruction.
    unsafe { __rdtscp(&mut both) };
    both & NUMBER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_that_bring_nothing_are_left_out_and_tried_again() {
        let yields = Yields::new();
        let tried_of = |waits: u32, bring: bool| {
            (0..waits)
                .filter(|_| {
                    let tried = yields.are_tried();
                    yields.noted(tried && bring);
                    tried
                })
                .count() as u32
        };
        assert_eq!(tried_of(100, true), 100);
        assert_eq!(tried_of(IN_VAIN_MAX, false), IN_VAIN_MAX);
        assert_eq!(tried_of(10 * TRIED_AGAIN, false), 10);
        // They bring replies again: all are tried after one that was.
        let again = tried_of(2 * TRIED_AGAIN, true);
        assert!(again > TRIED_AGAIN, "{again}");
        assert_eq!(tried_of(100, true), 100);
    }
}
