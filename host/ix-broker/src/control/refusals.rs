//! How many requests were refused, by reason: whoever tries what is not theirs is seen.
use ix_proto::control::{Code, Refusal};
use std::collections::BTreeMap;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<Code, u64>);

impl Refusals {
    /// One more.
    pub(super) fn count(&mut self, refusal: &Refusal) {
        *self.0.entry(refusal.code()).or_default() += 1;
    }

    /// By the names that refusals have for programs.
    pub(super) fn counts(&self) -> BTreeMap<Code, u64> {
        self.0.clone()
    }
}
