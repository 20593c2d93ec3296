//! Bugs that are planted on purpose, to test that the simulator finds them. Only with the feature
//! `planted`, which only those tests use.
use core::cell::Cell;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A timer sometimes never fires.
    LostTimer,
    /// The peer's window is taken to be one octet larger.
    WindowOffByOne,
    /// Acknowledgement numbers are compared as if they did not wrap.
    WrongWrap,
    /// An expired retransmission timer has no effect.
    SkippedRetransmission,
    /// The generation of a handle is not checked.
    StaleHandle,
}

std::thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants this bug, or none, for this Linux thread.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this thread has this bug.
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
