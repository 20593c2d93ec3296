//! A dataplane that begins late: between the image and `libix-posix`, no business of an application,
//! and so in no header.

/// `b"IXLATER\0"` as a little-endian number: the first field of [`Starter`].
pub const STARTER_MAGIC: u64 = u64::from_le_bytes(*b"IXLATER\0");

/// What stands at the address in [`crate::ENV_HEADER`] where the dataplane begins later: when the
/// program first needs it, in the process that does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Starter {
    /// [`STARTER_MAGIC`].
    pub magic: u64,
    /// [`crate::ABI_VERSION`].
    pub version: u32,
    /// Zero.
    pub reserved: u32,
    /// Begins: answers the address of the [`crate::ProcessHeader`], 0 when it could not (the broker has
    /// said why). For one thread at a time; no signal handler of the process may run meanwhile.
    pub start: extern "C" fn() -> u64,
    /// A forked child lets go of its parent's dataplane: it has no descriptors of it any more, and may
    /// begin anew once the parent's has ended.
    pub forked: extern "C" fn(),
}
