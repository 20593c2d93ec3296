//! Which sockets of Linux are the program's.
use crate::listeners;
use std::collections::{BTreeMap, BTreeSet};

/// Sockets that may be known before those that have ended are looked for.
const LOOK_AT: usize = 65_536;
/// The last ones that were told are known though Linux does not name them: a socket of TCP that
/// does not listen yet.
const NEW: u64 = 4096;

/// File numbers of the program's sockets on Linux that are told before they hear a port.
#[derive(Default)]
pub(super) struct OwnSockets {
    /// Each with its place in the order in which they were told.
    known: BTreeMap<u64, u64>,
    told: u64,
    /// Sockets that may be known before the next look.
    most: usize,
}

impl OwnSockets {
    /// This is one.
    pub fn insert(&mut self, socket: u64) {
        self.insert_among(socket, || listeners::all().unwrap_or_default().into_iter().collect());
    }

    /// The same; `hearing`: all sockets of Linux that hear a port.
    fn insert_among(&mut self, socket: u64, hearing: impl FnOnce() -> BTreeSet<u64>) {
        self.told += 1;
        self.known.insert(socket, self.told);
        if self.known.len() > self.most.max(LOOK_AT) {
            let hearing = hearing();
            let old = self.told.saturating_sub(NEW);
            self.known.retain(|socket, told| *told > old || hearing.contains(socket));
            // So that a program with very many does not have them looked for each time.
            self.most = 2 * self.known.len();
        }
    }

    /// Whether this is one.
    pub fn has(&self, socket: u64) -> bool {
        self.known.contains_key(&socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_hear_and_new_ones_stay_known() {
        let mut own = OwnSockets::default();
        let hearing = || BTreeSet::from([1, 7]);
        for socket in 1..=2 * LOOK_AT as u64 {
            own.insert_among(socket, hearing);
        }
        assert!(own.has(1) && own.has(7) && !own.has(2));
        assert!((2 * LOOK_AT as u64 - NEW + 1..=2 * LOOK_AT as u64).all(|socket| own.has(socket)));
        assert!(own.known.len() <= LOOK_AT);
        // More than that are alive: they are not looked for each time.
        let mut looks = 0;
        for socket in 1..=4 * LOOK_AT as u64 {
            own.insert_among(socket, || {
                looks += 1;
                (1..=socket).collect()
            });
        }
        assert!(own.has(2) && looks <= 3, "{looks}");
    }
}
