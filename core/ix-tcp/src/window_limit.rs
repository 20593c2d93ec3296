//! How long the peer's window held something back: a figure for `GET_INFO`.

/// Times in which the peer's window let nothing be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowLimited {
    /// Since when, µs; `None`: it does not.
    since_us: Option<u64>,
    /// How long in all before that, µs.
    before_us: u64,
}

impl WindowLimited {
    /// It has held something back, and nothing was sent since.
    #[inline(always)]
    pub fn is_now(self) -> bool {
        self.since_us.is_some()
    }

    pub fn total_us(self, now_us: u64) -> u64 {
        self.before_us + self.since_us.map_or(0, |since_us| now_us.saturating_sub(since_us))
    }

    /// It begins or ends now.
    pub fn change(&mut self, limited: bool, now_us: u64) {
        let before_us = self.total_us(now_us);
        *self = WindowLimited { since_us: limited.then_some(now_us), before_us };
    }
}
