//! Who has the machine. The tests of one binary run beside each other; one that measures, or that
//! keeps every core busy, waits until it is alone.
//!
//! To be alone, a test waits for the slowest of those that run, and meanwhile the machine has less
//! and less to do. So tests that want to be alone gather, as long as others keep the places
//! occupied, and then run one after the other.
use std::collections::VecDeque;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};

/// How many elastic threads may run at once in tests that do not measure. More than a small machine
/// has cores: such tests mostly wait.
const PLACES: usize = 4;

/// How many tests gather that want to be alone: more would leave places free, because each of them
/// occupies one of libtest's threads.
static GATHERED: LazyLock<usize> = LazyLock::new(|| {
    let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    let threads = threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |threads| threads.get()));
    threads.saturating_sub(PLACES).max(1)
});

struct Places {
    taken: [bool; PLACES],
    /// Tests that wait for a part, in their order: each has a number.
    parts: VecDeque<u64>,
    next_part: u64,
    /// Tests that wait for the whole machine.
    wholes: usize,
    /// How many of them run before the next test gets a part.
    wholes_first: usize,
}

static PLACES_NOW: Mutex<Places> = Mutex::new(Places {
    taken: [false; PLACES],
    parts: VecDeque::new(),
    next_part: 0,
    wholes: 0,
    wholes_first: 0,
});
static CHANGED: Condvar = Condvar::new();

/// Some places, or all of them; given back when dropped.
pub struct Turn {
    /// Empty only where no dataplane runs.
    held: Vec<usize>,
}

impl Turn {
    /// No place: no dataplane runs.
    pub const fn none() -> Turn {
        Turn { held: Vec::new() }
    }

    /// Places for so many elastic threads.
    pub fn part(threads: usize) -> Turn {
        let wanted = threads.clamp(1, PLACES);
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        let number = places.next_part;
        places.next_part += 1;
        places.parts.push_back(number);
        loop {
            let held: Vec<usize> = places.free().take(wanted).collect();
            let is_first = places.parts.front() == Some(&number);
            if is_first && held.len() == wanted && places.wholes_first == 0 {
                places.parts.pop_front();
                held.iter().for_each(|place| places.taken[*place] = true);
                CHANGED.notify_all();
                return Turn { held };
            }
            places = CHANGED.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The whole machine.
    pub fn whole() -> Turn {
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        places.wholes += 1;
        loop {
            let is_free = !places.taken.contains(&true);
            let nothing_else = is_free && places.parts.is_empty();
            if places.wholes_first == 0 && (places.wholes >= *GATHERED || nothing_else) {
                places.wholes_first = places.wholes;
            }
            if is_free && places.wholes_first > 0 {
                places.wholes_first -= 1;
                places.wholes -= 1;
                places.taken = [true; PLACES];
                return Turn { held: (0..PLACES).collect() };
            }
            places = CHANGED.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives all places but one to others.
    pub fn shrink(&mut self) {
        self.give_back(1);
    }

    /// The first place that is held: which of the CPUs that this process may use comes first,
    /// modulo their number.
    pub fn place(&self) -> usize {
        self.held[0]
    }

    fn give_back(&mut self, but: usize) {
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        self.held.drain(but..).for_each(|place| places.taken[place] = false);
        CHANGED.notify_all();
    }
}

impl Places {
    fn free(&self) -> impl Iterator<Item = usize> {
        let taken = self.taken;
        (0..PLACES).filter(move |place| !taken[*place])
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.give_back(0);
    }
}
