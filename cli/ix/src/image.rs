//! The dataplane as an executable of its own, which the command carries inside itself.
/// Its bytes.
pub static IMAGE: &[u8] = include_bytes!(env!("IX_IMAGE"));
