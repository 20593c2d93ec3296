//! Times in which the machine itself stood still: a hypervisor takes hardware threads away for some
//! milliseconds now and then, and no program on them can run meanwhile.
use ix_sys::scheduling::{Policy, set_policy};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a watcher wakes.
const PERIOD: Duration = Duration::from_micros(500);
/// A watcher that is this late was delayed below Linux: on Linux only interrupts have a higher
/// priority.
const LATE: Duration = Duration::from_millis(1);

/// A real-time thread on each hardware thread that records when it is late; dropping this ends
/// them.
pub struct Stalls {
    told: Arc<Told>,
    watchers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Told {
    ended: AtomicBool,
    /// How often each watcher has woken.
    looks: Vec<AtomicU64>,
    /// Start and end of each time when a watcher was late.
    times: Mutex<Vec<(Instant, Instant)>>,
}

impl Stalls {
    /// Watches these hardware threads. Fails without the right to real-time priority.
    pub fn watch(cpus: &[usize]) -> io::Result<Stalls> {
        let looks = cpus.iter().map(|_| AtomicU64::new(0)).collect();
        let told = Arc::new(Told { looks, ..Told::default() });
        let mut stalls = Stalls { told, watchers: Vec::new() };
        for (index, &cpu) in cpus.iter().enumerate() {
            let (told, (say, said)) = (Arc::clone(&stalls.told), std::sync::mpsc::channel());
            stalls.watchers.push(std::thread::spawn(move || {
                let ready = ix_sys::cpu::pin(cpu).and_then(|()| before_others());
                let failed = ready.is_err();
                // The caller waits for this.
                let _ = say.send(ready);
                if !failed {
                    told.note(index);
                }
            }));
            said.recv().unwrap_or_else(|_| Err(io::Error::other("a watcher panicked")))?;
        }
        Ok(stalls)
    }

    /// Whether a hardware thread stood still at any moment of this time.
    pub fn any_in(&self, from: Instant, to: Instant) -> bool {
        // A watcher that is late right now reports it when it runs again.
        let looks = || self.told.looks.iter().map(|looks| looks.load(Ordering::Acquire));
        let before: Vec<u64> = looks().collect();
        while looks().zip(&before).any(|(now, before)| now < before + 2) {
            std::thread::sleep(PERIOD);
        }
        self.times().iter().any(|(start, end)| *start < to && *end > from)
    }

    /// The longest time that a hardware thread stood still.
    pub fn longest(&self) -> Duration {
        self.times().iter().map(|(start, end)| *end - *start).max().unwrap_or_default()
    }

    fn times(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, Instant)>> {
        self.told.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.told.ended.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            let _ = watcher.join();
        }
    }
}

impl Told {
    fn note(&self, index: usize) {
        while !self.ended.load(Ordering::Relaxed) {
            let due = Instant::now() + PERIOD;
            std::thread::sleep(PERIOD);
            let now = Instant::now();
            if now.saturating_duration_since(due) > LATE {
                self.times.lock().unwrap_or_else(PoisonError::into_inner).push((due, now));
            }
            self.looks[index].fetch_add(1, Ordering::Release);
        }
    }
}

/// Gives the calling thread a priority above all time-sharing programs.
fn before_others() -> io::Result<()> {
    set_policy(0, Policy::Fifo(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_disturbed_by_what_overlaps_it() {
        let stalls = Stalls { told: Arc::default(), watchers: Vec::new() };
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let (a, b, c, d) = (at(10), at(20), at(30), at(40));
        stalls.times().push((b, c));
        assert!(stalls.any_in(a, d) && stalls.any_in(a, at(25)) && !stalls.any_in(c, d));
        assert!(!stalls.any_in(a, b) && stalls.longest() == c - b);
    }
}
