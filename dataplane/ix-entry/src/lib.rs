//! What launcher and image agree on: the channel between them, the image's command line, the
//! descriptors that are the dataplane's, ELF files, the stack that a program finds, and what code
//! may not contain.
//!
//! The launcher (`ix-launch`) is on the host's side, the image (`ix-image`) in the program's
//! process. Neither uses the other.
#![forbid(unsafe_code)]

mod auxv;
mod channel;
pub mod elf;
mod fds;
pub mod scan;
pub mod stack;

pub use auxv::Auxv;
pub use channel::Channel;
pub use fds::ReservedFds;

/// The image's command line, between `ix_launch::launch` and the image's `main`: `ix-image ENTRY
/// STACK CHANNEL now|later DOMAIN`. The first two are hexadecimal; then a descriptor's number; then
/// whether the dataplane begins at once or when the program first needs it; then `none`,
/// `process`, or `pku:` and the program's mappings as `START-END`, separated by commas.
pub const IMAGE_ARGV0: &str = "ix-image";

/// The image's first argument where Linux executes the image, which loads the program: `ix-image
/// load PROGRAM CHANNEL now|later DOMAIN TUNABLES ARGV0 ARGUMENTS…`, with the program's
/// environment. TUNABLES is the former `GLIBC_TUNABLES`, because the image has its own; a `-`
/// precedes it, and is alone if there was none.
pub const LOAD: &str = "load";

/// The image's first argument where it is a dataplane in a process of its own: `ix-image dataplane
/// CHANNEL`.
pub const DATAPLANE: &str = "dataplane";

/// Value of `IX_ABI` until the image writes the address of its header over the digits.
pub const ABI_PLACEHOLDER: &str = "0000000000000000";
