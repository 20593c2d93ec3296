//! Protocols with ports, and families of addresses.
use std::fmt;
use std::net::IpAddr;

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// Both.
    pub const ALL: [Transport; 2] = [Transport::Tcp, Transport::Udp];

    pub(crate) fn socket_kind(self) -> i32 {
        match self {
            Transport::Tcp => libc::SOCK_STREAM,
            Transport::Udp => libc::SOCK_DGRAM,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        })
    }
}

/// A family of addresses. Each has ports of its own, as on Linux: that of one may be IX's, and that
/// of the same number of the other one a Linux program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// That of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}
