//! Bugs that are planted on purpose, to see that the simulator finds them. Only with the feature
//! `planted`, which nothing but those tests asks for.
use core::cell::Cell;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A timer now and then never fires.
    LostTimer,
    /// The peer's window is taken for one octet larger.
    WindowOffByOne,
    /// Acknowledgement numbers are compared as if they did not wrap.
    WrongWrap,
    /// What the retransmission timer says is not done.
    SkippedRetransmission,
    /// The generation of a handle is not looked at.
    StaleHandle,
}

std::thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// From now on this Linux thread has this bug, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether it has this one.
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
