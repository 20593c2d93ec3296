//! `afxdp`: any Linux network interface, shared with Linux.
//!
//! An XDP program hands packets for our addresses to AF_XDP sockets, one a queue, and all others on
//! to the kernel. The broker loads the program and makes the sockets; [`AfxdpNic`] is one socket
//! with its rings.
mod nic;
mod ring;
mod socket;
mod table;

pub(crate) use nic::AfxdpNic;
pub(crate) use table::AskedTable;
pub use table::{TableAnswer, TableRequest};

/// What the user insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The fastest that works: zero-copy, else copying in the driver, else in the stack.
    Auto,
    /// Zero-copy or nothing.
    ZeroCopy,
    /// Copying in the driver.
    Copy,
    /// Copying, with the program in the stack behind the driver (works with every driver).
    Generic,
}

impl XdpMode {
    /// As in `mode=`.
    pub fn name(self) -> &'static str {
        match self {
            XdpMode::Auto => "auto",
            XdpMode::ZeroCopy => "zerocopy",
            XdpMode::Copy => "copy",
            XdpMode::Generic => "generic",
        }
    }

    /// The mode that [`XdpMode::name`] names so.
    pub fn from_name(name: &str) -> Option<XdpMode> {
        let all = [XdpMode::Auto, XdpMode::ZeroCopy, XdpMode::Copy, XdpMode::Generic];
        all.into_iter().find(|mode| mode.name() == name)
    }
}

/// How the sockets of an interface bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpBind {
    /// The interface's number in the network namespace of the sockets.
    pub ifindex: u32,
    /// Ways that are still to be tried; `Generic` and `Copy` leave only copying.
    pub mode: XdpMode,
    /// The program takes frames of several buffers, so sockets shall ask for them.
    pub frags: bool,
}
