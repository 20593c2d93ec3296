//! A dataplane that starts late. This is between the image and `libix-posix`, so it is not in the C
//! header.

/// `b"IXLATER\0"` as a little-endian number: the first field of [`Starter`].
pub const STARTER_MAGIC: u64 = u64::from_le_bytes(*b"IXLATER\0");

/// What is at the address in [`crate::ENV_HEADER`] where the dataplane starts late: when a process
/// first needs it, in that process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Starter {
    /// [`STARTER_MAGIC`].
    pub magic: u64,
    /// [`crate::ABI_VERSION`].
    pub version: u32,
    /// Always 0.
    pub reserved: u32,
    /// Starts the dataplane. Returns the address of the [`crate::ProcessHeader`], or 0 if it could
    /// not start (the broker has printed why). At most one thread may call it at a time, and no
    /// signal handler of the process may run meanwhile.
    pub start: extern "C" fn() -> u64,
    /// To be called in a forked child. The child drops its parent's dataplane, of which it has no
    /// descriptors, and may start its own once the parent's has ended.
    pub forked: extern "C" fn(),
    /// The descriptors that a dataplane in another process has in this one, each by its index; -1
    /// behind the last one. Where the dataplane is in this process it has a range of numbers
    /// instead, and none is listed here.
    pub descriptor: extern "C" fn(index: u32) -> i32,
}
