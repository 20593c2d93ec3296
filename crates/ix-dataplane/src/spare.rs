//! Spare frames between the threads' pools. A pool that has grown by packets handed over from other
//! threads gives a batch of frames up; one that has shrunk takes some. Off the common path: each
//! turn only compares two numbers.
use ix_mem::{Mbuf, Pool};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Frames moved at a time.
const BATCH: usize = 256;

/// The shared pool behind the threads' own.
#[derive(Default)]
pub struct Spare {
    frames: Mutex<Vec<Mbuf>>,
    count: AtomicUsize,
}

impl Spare {
    /// Brings a pool that was made with `made` frames back towards that number.
    #[inline]
    pub fn balance(&self, pool: &mut Pool, made: usize) {
        let owned = pool.owned();
        if owned > made + BATCH && pool.free() > BATCH {
            self.give(pool);
        } else if owned + BATCH < made && self.count.load(Ordering::Relaxed) > 0 {
            self.take(pool);
        }
    }

    #[cold]
    fn give(&self, pool: &mut Pool) {
        let Ok(mut frames) = self.frames.lock() else { return };
        for _ in 0..BATCH {
            let Some(mbuf) = pool.take() else { break };
            pool.disown(&mbuf);
            frames.push(mbuf);
        }
        self.count.store(frames.len(), Ordering::Relaxed);
    }

    #[cold]
    fn take(&self, pool: &mut Pool) {
        let Ok(mut frames) = self.frames.lock() else { return };
        let from = frames.len().saturating_sub(BATCH);
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

    #[test]
    fn frames_find_their_way_home() {
        // SAFETY: no memory behind the numbers; they are only counted.
        let (mut a, mut b) = unsafe { (Pool::new(0..2000), Pool::new(2000..4000)) };
        let spare = Spare::default();
        // Everything that comes in at `a` is handed over to `b`.
        for round in 0..100_000 {
            let mbuf = a.take().unwrap_or_else(|| panic!("starved in round {round}"));
            a.disown(&mbuf);
            b.adopt(&mbuf);
            b.put(mbuf);
            spare.balance(&mut a, 2000);
            spare.balance(&mut b, 2000);
        }
        assert_eq!((a.in_use(), b.in_use()), (0, 0));
        let all = a.owned() + b.owned() + spare.count.load(Ordering::Relaxed);
        assert_eq!(all, 4000);
    }
}
