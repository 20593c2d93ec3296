//! The vNIC's rules that all elastic threads apply: its filters and rates.
use ix_vnic::VnicRules;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The vNIC's rules, with a version that rises with each change.
#[derive(Debug, Default)]
pub(crate) struct SharedRules {
    rules: Mutex<VnicRules>,
    version: AtomicU64,
}

impl SharedRules {
    pub fn new(rules: VnicRules) -> SharedRules {
        SharedRules { rules: Mutex::new(rules), version: AtomicU64::new(0) }
    }

    /// Replaces the rules; each thread applies them from its next cycle on.
    pub fn set(&self, rules: VnicRules) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
        self.version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn get(&self) -> VnicRules {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
