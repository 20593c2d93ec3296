//! Who has the machine. The tests of one binary run beside each other; one that measures, or that
//! keeps every core busy, waits until it is alone.
use std::sync::{Condvar, Mutex, PoisonError};

/// How many tests may run that need a part only: each has a core, its client finds another.
const PLACES: usize = 2;

struct Places {
    taken: [bool; PLACES],
    /// Tests that wait for all places; no part is given away meanwhile.
    whole_waiting: usize,
}

static PLACES_NOW: Mutex<Places> = Mutex::new(Places { taken: [false; PLACES], whole_waiting: 0 });
static CHANGED: Condvar = Condvar::new();

/// A place, or all of them; given back when dropped.
pub struct Turn {
    held: std::ops::Range<usize>,
}

impl Turn {
    /// One place.
    pub fn part() -> Turn {
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let free = places.taken.iter().position(|taken| !taken);
            if let (0, Some(place)) = (places.whole_waiting, free) {
                places.taken[place] = true;
                return Turn { held: place..place + 1 };
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
        Turn { held: 0..PLACES }
    }

    /// The first place that is held: an index among the CPUs that this process may use.
    pub fn place(&self) -> usize {
        self.held.start
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut places = PLACES_NOW.lock().unwrap_or_else(PoisonError::into_inner);
        places.taken[self.held.clone()].fill(false);
        CHANGED.notify_all();
    }
}
