//! Errors of requests and connections: counted by kind, with the first of each kind as an example.
use serde::{Deserialize, Serialize};

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A connection could not be made.
    NotConnected,
    /// The server reset a connection, or the network lost it.
    Reset,
    /// The server closed a connection.
    Closed,
    /// No reply within the time limit.
    NoAnswer,
    /// Fewer or more bytes than the request asked for.
    WrongLength,
    /// The reply is about another key.
    WrongKey,
    /// The value differs from what was stored.
    WrongValue,
    /// Bytes that the protocol does not define.
    BadReply,
    /// The server refused the request.
    ServerError,
}

/// Number of kinds.
pub const FAULTS: usize = 9;

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; FAULTS] = [
        Fault::NotConnected,
        Fault::Reset,
        Fault::Closed,
        Fault::NoAnswer,
        Fault::WrongLength,
        Fault::WrongKey,
        Fault::WrongValue,
        Fault::BadReply,
        Fault::ServerError,
    ];

    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Fault::NotConnected => "not_connected",
            Fault::Reset => "reset",
            Fault::Closed => "closed",
            Fault::NoAnswer => "no_answer",
            Fault::WrongLength => "wrong_length",
            Fault::WrongKey => "wrong_key",
            Fault::WrongValue => "wrong_value",
            Fault::BadReply => "bad_reply",
            Fault::ServerError => "server_error",
        }
    }
}

/// Errors by kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    counts: [u64; FAULTS],
    first: [Option<String>; FAULTS],
}

impl Faults {
    /// Counts one error.
    pub fn add(&mut self, fault: Fault, what: impl FnOnce() -> String) {
        self.add_many(fault, 1, what);
    }

    /// Counts several errors with one cause.
    pub fn add_many(&mut self, fault: Fault, count: u64, what: impl FnOnce() -> String) {
        self.counts[fault as usize] += count;
        self.first[fault as usize].get_or_insert_with(what);
    }

    /// Adds the errors of another thread.
    pub fn merge(&mut self, other: Faults) {
        for (index, first) in other.first.into_iter().enumerate() {
            self.counts[index] += other.counts[index];
            self.first[index] = self.first[index].take().or(first);
        }
    }

    /// Number of all errors.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Kinds that occurred: kind, count, and the first error.
    pub fn kinds(&self) -> impl Iterator<Item = (Fault, u64, &str)> {
        Fault::ALL.into_iter().filter_map(|fault| {
            let count = self.counts[fault as usize];
            let first = self.first[fault as usize].as_deref().unwrap_or("");
            (count > 0).then_some((fault, count, first))
        })
    }
}
