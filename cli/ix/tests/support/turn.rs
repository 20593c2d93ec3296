//! Who has the machine. The tests of one binary run beside each other; one that measures, or that
//! keeps every core busy, waits until it is alone.
use std::sync::{Condvar, Mutex, PoisonError};

/// How many elastic threads may run at once in tests that do not measure. More than a small machine
/// has cores: such tests mostly wait.
const PLACES: usize = 4;

struct Places {
    taken: [bool; PLACES],
    /// Tests that wait for all places; no part is given away meanwhile.
    whole_waiting: usize,
}

static PLACES_NOW: Mutex<Places> = Mutex::new(Places { taken: [false; PLACES], whole_waiting: 0 });
static CHANGED: Condvar = Condvar::new();

/// Some places, or all of them; given back when dropped.
pub struct Turn {
    /// Never empty.
    held: Vec<usize>,
}

impl Turn {
    /// Places for so many elastic threads.
    pub fn part(threads: usize) -> Turn {
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let held: Vec<usize> = places.free().take(threads.clamp(1, PLACES)).collect();
            if (places.whole_waiting, held.len()) == (0, threads.clamp(1, PLACES)) {
                held.iter().for_each(|place| places.taken[*place] = true);
                return Turn { held };
            }
            places = CHANGED.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The whole machine.
    pub fn whole() -> Turn {
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        places.whole_waiting += 1;
        while places.taken.contains(&true) {
            places = CHANGED.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
        places.whole_waiting -= 1;
        places.taken = [true; PLACES];
        Turn { held: (0..PLACES).collect() }
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
