//! The XDP programs of interfaces, instruction by instruction, and what their maps hold.
pub(crate) mod program;
pub(crate) mod shared_program;

pub(crate) use shared_program::{Maps, links as near, shared_program};

/// Ports of one protocol.
pub(crate) const PORTS: u32 = 1 << 16;
/// Ports of one family: of TCP, then of UDP.
pub(crate) const FAMILY_PORTS: u32 = 2 * PORTS;
/// Ports of both families: of IPv4, then of IPv6.
pub(crate) const ALL_PORTS: u32 = 2 * FAMILY_PORTS;
/// Source, destination, and identification with protocol, bytes.
pub(crate) const FRAGMENT_KEY: usize = 12;
/// Source, destination and identification of IPv6, bytes.
pub(crate) const FRAGMENT_KEY_V6: usize = 36;
/// Most owners of ports of one interface; 0 is Linux.
pub(crate) const OWNERS: u32 = 64;
/// Where the packets of an owner go: nowhere said, so to Linux; to the sockets; into its link.
pub(crate) const TO_SOCKETS: u32 = 1;
/// See [`TO_SOCKETS`].
pub(crate) const TO_LINK: u32 = 2;
