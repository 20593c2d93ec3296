//! Spare frames between the threads' pools. A pool that has grown because other threads handed over
//! packets gives up a batch of frames; one that has shrunk takes some. Off the common path: each
//! turn only compares two numbers.
use ix_mem::{Mbuf, Pool};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most frames that a pool may have too many of, or too few.
const SLACK_MAX: usize = 256;

/// The shared pool behind the threads' own.
pub struct Spare {
    frames: Mutex<Vec<Mbuf>>,
    count: AtomicUsize,
    /// Frames that each pool was made with.
    made: usize,
    /// A difference of up to this many is ignored.
    slack: usize,
}

impl Spare {
    /// The spare frames of pools of `made` frames each. All that the other pools may have too many
    /// of is at most a quarter of what one pool needs: if a device gives all packets to one thread,
    /// that thread must not lose all frames.
    pub fn new(threads: usize, made: usize) -> Spare {
        let slack = (made / (4 * threads.max(1))).clamp(1, SLACK_MAX);
        Spare { frames: Mutex::default(), count: AtomicUsize::new(0), made, slack }
    }

    /// Brings a pool closer to the number of frames that it was made with.
    #[inline]
    pub fn balance(&self, pool: &mut Pool) {
        let owned = pool.owned();
        if owned > self.made + self.slack && pool.free() > self.slack {
            self.give(pool);
        } else if owned + self.slack < self.made && self.count.load(Ordering::Relaxed) > 0 {
            self.take(pool);
        }
    }

    #[cold]
    fn give(&self, pool: &mut Pool) {
        let Ok(mut frames) = self.frames.lock() else { return };
        let surplus = pool.owned().saturating_sub(self.made).min(SLACK_MAX);
        for _ in 0..surplus {
            let Some(mbuf) = pool.take() else { break };
            pool.disown(&mbuf);
            frames.push(mbuf);
        }
        self.count.store(frames.len(), Ordering::Relaxed);
    }

    #[cold]
    fn take(&self, pool: &mut Pool) {
        let Ok(mut frames) = self.frames.lock() else { return };
        let missing = self.made.saturating_sub(pool.owned()).min(SLACK_MAX);
        let from = frames.len().saturating_sub(missing);
        for mbuf in frames.drain(from..) {
            pool.adopt(&mbuf);
            pool.put(mbuf);
        }
        self.count.store(frames.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that arrives at the first pool is handed over to the others in turn.
    fn handed_over(threads: u32, made: u32) {
        let pool = |index: u32| {
            // SAFETY: no memory behind the numbers; they are only counted.
            unsafe { Pool::new(index * made..(index + 1) * made) }
        };
        let mut pools: Vec<Pool> = (0..threads).map(pool).collect();
        let spare = Spare::new(threads as usize, made as usize);
        for round in 0..100_000 {
            let mbuf = pools[0].take().unwrap_or_else(|| panic!("starved in round {round}"));
            pools[0].disown(&mbuf);
            let to = &mut pools[1 + round % (threads as usize - 1)];
            to.adopt(&mbuf);
            to.put(mbuf);
            spare.balance(to);
            spare.balance(&mut pools[0]);
        }
        assert!(pools.iter().all(|pool| pool.in_use() == 0));
        let owned: usize = pools.iter().map(Pool::owned).sum();
        assert_eq!(owned + spare.count.load(Ordering::Relaxed), (threads * made) as usize);
        assert!(pools[0].owned() >= made as usize / 2, "{}", pools[0].owned());
    }

    #[test]
    fn frames_find_their_way_home() {
        handed_over(2, 2000);
    }

    /// Each of the others has only a few too many, but together they had all.
    #[test]
    fn many_threads_do_not_keep_all_frames_of_one() {
        handed_over(16, 1024);
        handed_over(16, 256);
        handed_over(64, 256);
    }
}
