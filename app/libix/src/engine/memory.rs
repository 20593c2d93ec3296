//! When to ask the dataplane for more transmit memory.
use crate::raw::{TxArena, call};

/// Bytes that are asked for at a time.
const STEP_BYTES: u64 = 2 << 20;
/// After a refusal, ask again this much later, µs.
const RETRY_US: u64 = 100_000;

/// What is known of a thread's requests for transmit memory.
#[derive(Default)]
pub struct Memory {
    asked: bool,
    refused_us: Option<u64>,
}

impl Memory {
    /// Nothing was asked for yet.
    pub const fn new() -> Memory {
        Memory { asked: false, refused_us: None }
    }

    /// Whether the arena is short of memory and no request is under way.
    #[inline]
    pub fn is_short(&self, tx: &TxArena) -> bool {
        !self.asked && tx.wants_memory()
    }

    /// The call that asks for memory, unless a request was refused a moment ago. The caller makes
    /// the call and reports to [`Memory::answered`].
    pub fn request(&mut self, now_us: u64) -> Option<call::Batched> {
        if self.refused_us.is_some_and(|refused| now_us.saturating_sub(refused) < RETRY_US) {
            return None;
        }
        self.asked = true;
        Some(call::tx_alloc(STEP_BYTES))
    }

    /// Whether the last request was refused: all is given out.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.refused_us.is_some()
    }

    /// Whether an answer is outstanding.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// The answer was taken in ([`crate::raw::Thread::adopt_tx`]) at `now_us`; `adopted`: memory
    /// came.
    pub fn answered(&mut self, adopted: bool, now_us: u64) {
        self.asked = false;
        self.refused_us = (!adopted).then_some(now_us);
    }
}
