//! The gate that all elastic threads are to have: filters and rates of this vNIC.
use ix_vnic::Gate;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The gate that all threads are to have.
#[derive(Debug, Default)]
pub(crate) struct Board {
    gate: Mutex<Gate>,
    version: AtomicU64,
}

impl Board {
    pub fn new(gate: Gate) -> Board {
        Board { gate: Mutex::new(gate), version: AtomicU64::new(0) }
    }

    /// Another one, from the next cycle of each thread on.
    pub fn set(&self, gate: Gate) {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = gate;
        self.version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn get(&self) -> Gate {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
