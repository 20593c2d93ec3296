//! Bugs that are planted on purpose: the model of the state machine must find each of them.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The new thread processes what its own queues bring before what the old thread hands over.
    LocalFirst,
    /// A third thread takes the new way at once, while packets are on the old one.
    NoQuestion,
    /// The old thread does not wait until devices use the changed table.
    NoBound,
}

#[cfg(test)]
thread_local! {
    static PLANTED: core::cell::Cell<Option<Bug>> = const { core::cell::Cell::new(None) };
}

/// Plants a bug in the machines of this Linux thread, or none.
#[cfg(test)]
pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted; never outside of tests.
#[inline(always)]
pub(super) fn is(bug: Bug) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(bug);
    #[cfg(not(test))]
    {
        let _ = bug;
        false
    }
}
