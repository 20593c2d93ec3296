//! How many requests were refused, by reason: whoever tries what is not theirs is seen.
use super::request::Refusal;
use serde_json::Value;
use std::collections::BTreeMap;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<&'static str, u64>);

impl Refusals {
    /// One more.
    pub(super) fn count(&mut self, refusal: &Refusal) {
        *self.0.entry(refusal.code()).or_default() += 1;
    }

    /// By the names that refusals have for programs.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|(code, count)| ((*code).to_owned(), Value::from(*count))).collect()
    }
}
