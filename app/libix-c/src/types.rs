//! An address, and a program's state of a connection.
use core::ffi::c_void;

/// An address, 128 bits wide in network byte order (IPv4 mapped: ::ffff:a.b.c.d), and a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ix_endpoint {
    /// The address. All zero stands for all addresses of the dataplane.
    pub addr: [u8; 16],
    /// The port, host byte order.
    pub port: u16,
    /// Must be 0.
    pub reserved: [u16; 3],
}

/// A C program's state of a connection.
pub struct State(pub(crate) *mut c_void);

// SAFETY: the pointer is only stored here. It moves to another thread with its connection:
// `migrate_out` is the last callback of the old thread for it, `migrate_in` the first of the new
// one.
unsafe impl Send for State {}
