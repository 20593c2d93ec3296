//! Counts of refused requests, by reason. They show attempts to do what is not allowed.
use ix_proto::control::{Code, Refusal};
use std::collections::BTreeMap;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<Code, u64>);

impl Refusals {
    /// Counts a refusal.
    pub(super) fn count(&mut self, refusal: &Refusal) {
        *self.0.entry(refusal.code()).or_default() += 1;
    }

    /// The counts, by code.
    pub(super) fn counts(&self) -> BTreeMap<Code, u64> {
        self.0.clone()
    }
}
