//! The privileged side of network devices, which runs outside the wall. The broker opens a device
//! here and passes its queues to the dataplane, which attaches them with `ix-nic` and needs no
//! privilege.
//!
//! [`open`] makes an [`OpenedDevice`]: XDP programs and sockets, a TAP's queues and steering
//! program, or a memif's control socket. The broker passes on the queues' descriptors and one line
//! about the device ([`ix_nic::NicInfo`]). When the dataplane has attached them,
//! [`OpenedDevice::finish`] lets packets in. See [`open`] for the privileges that each device
//! needs.
//!
//! A device may change while the dataplane runs: a memif peer comes and goes, an interface is
//! removed and made again. The broker notices ([`OpenedDevice::service`], [`OpenedDevice::reopen`])
//! and sends a [`DeviceUpdate`].
//!
//! [`Exchange`] isolates several vNICs on one interface. [`Namespace`] reads and changes the links
//! of a network namespace, and [`LinkWatch`] reports their changes.
#![forbid(unsafe_code)]

mod afxdp;
mod asm;
mod classify;
mod device;
mod error;
mod exchange;
mod firewall;
mod groups;
mod hardware;
mod held_ports;
mod host_net;
mod host_routes;
mod keeper;
mod link;
mod listeners;
mod look;
mod memif;
mod namespace;
mod netlink;
mod program_owner;
mod spec;
mod steering;
mod tap;
mod transport;
mod wanted_hops;
mod watch;
mod xdp;
mod xdp_support;

pub use afxdp::largest_mtu;
pub use device::{DeviceEvent, DeviceUpdate, OpenOptions, OpenedDevice, SharedMemory, open};
pub use error::OpenError;
pub use exchange::{Exchange, PORTS_MAX, PortCounts, PortRates};
pub use firewall::{FirewallWatch, firewall_chains};
pub use held_ports::{Conflict, HeldPorts};
pub use host_net::{HostChanges, HostNet, Neighbour, Network};
pub use host_routes::Way;
pub use keeper::{JoinError, is_kept, keep};
pub use link::{Link, VethEnd};
pub use look::own_addresses;
pub use memif::{MemifSpec, MemifSpecError};
#[cfg(feature = "fuzzing")]
pub use memif::{Utterance, memif_conversation};
pub use namespace::Namespace;
pub use program_owner::{ProgramOwner, owner_on};
pub use spec::{DeviceSpec, SpecError};
pub use transport::{Family, Transport};
pub use watch::{LinkChange, LinkWatch};
pub use xdp_support::{XdpSupport, xdp_support};
