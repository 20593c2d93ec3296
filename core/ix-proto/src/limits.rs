//! What one message of the channel between broker and image carries at most.

/// Bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Descriptors, as Linux allows (unix(7), SCM_MAX_FD).
pub const MESSAGE_FDS_MAX: usize = 253;
