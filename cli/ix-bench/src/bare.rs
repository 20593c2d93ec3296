//! A bare wake-up: one thread rings an eventfd, another sleeps on it. No packet, device or stack
//! takes part, so this is the machine's own time: no sleeping thread can wake sooner.
use crate::ping::AWAKE;
use ix_sys::event;
use ix_sys::poll::{PollFd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rings `count` times from the second hardware thread, each after a pause, for a thread on the
/// first; returns the time of each, ns.
pub fn wake_ups(cpus: (usize, usize), count: usize, pause: Duration) -> io::Result<Vec<f64>> {
    let (bell, heard) = (Bell::new()?, Heard::default());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let outcome = sleep(cpus.0, count, &bell, &heard);
            heard.ended.store(true, Ordering::Release);
            outcome
        });
        // A separate thread: the caller's affinity stays as it is.
        let times = join(scope.spawn(|| ring(cpus.1, count, pause, &bell, &heard)));
        join(sleeper).and(times)
    })
}

/// What the sleeping thread reports.
struct Heard {
    start: Instant,
    /// Nanoseconds from the start until it woke; 0: not yet.
    at_ns: AtomicU64,
    /// It no longer sleeps.
    ended: AtomicBool,
}

impl Default for Heard {
    fn default() -> Heard {
        let (at_ns, ended) = Default::default();
        Heard { start: Instant::now(), at_ns, ended }
    }
}

impl Heard {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

fn sleep(cpu: usize, count: usize, bell: &Bell, heard: &Heard) -> io::Result<()> {
    ix_sys::cpu::pin(cpu)?;
    for _ in 0..count {
        bell.wait();
        heard.at_ns.store(heard.now_ns(), Ordering::Release);
    }
    Ok(())
}

fn ring(
    cpu: usize,
    count: usize,
    pause: Duration,
    bell: &Bell,
    heard: &Heard,
) -> io::Result<Vec<f64>> {
    ix_sys::cpu::pin(cpu)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        std::thread::sleep(pause);
        let awake = Instant::now();
        while awake.elapsed() < AWAKE {
            std::hint::spin_loop();
        }
        heard.at_ns.store(0, Ordering::Relaxed);
        let rung_ns = heard.now_ns();
        bell.ring();
        while heard.at_ns.load(Ordering::Acquire) == 0 && !heard.ended.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        times.push(heard.at_ns.load(Ordering::Acquire).saturating_sub(rung_ns) as f64);
    }
    Ok(times)
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// An eventfd.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Bell> {
        event::open_blocking().map(Bell)
    }

    fn ring(&self) {
        event::ring(self.0.as_fd());
    }

    /// Waits as services do: until the descriptor is readable; then reads it.
    fn wait(&self) {
        // The read shows whether the wait was interrupted.
        let _ = poll(&mut [PollFd::readable(&self.0)], None);
        event::wait(self.0.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ring_is_heard() {
        // Not the first hardware thread: another test looks for the thread of this process that is
        // pinned there.
        let cpu = ix_sys::cpu::allowed().pop().expect("there is one");
        let times = wake_ups((cpu, cpu), 3, Duration::from_millis(1)).expect("eventfds");
        assert!(times.len() == 3 && times.iter().all(|ns| *ns > 0.0), "{times:?}");
    }
}
