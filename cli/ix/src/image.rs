//! The dataplane image, which the command carries inside itself.
/// The bytes of the executable.
pub static IMAGE: &[u8] = include_bytes!(env!("IX_IMAGE"));
