//! Neighbour Discovery as state machines: the cache of next hops (RFC 4861 section 7), the check
//! that nobody else has an address of ours (RFC 4862 section 5.4), and what routers tell (RFC 4861
//! section 6.3, RFC 4862 section 5.5).
use ix_wire::{IpAddr, MacAddr, NdKind, NdPacket};

mod autoconf;
mod cache;
mod duplicate;
mod identifier;
mod temporary;

pub use autoconf::{AddressChange, Autoconf};
pub use cache::{NdCache, NdLimits};
pub use duplicate::{DuplicateCheck, DuplicateEvent};
pub use identifier::{Identifiers, RETRIES_MAX};

/// A message to send. A host with several devices sends it with the address of the sending device
/// ([`NdOut::from`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdOut {
    /// The message, without the sender's Ethernet address.
    packet: NdPacket,
    /// It tells the sender's Ethernet address.
    tells_link: bool,
    /// Ethernet destination, unless the message is for a group.
    pub eth_dst: MacAddr,
}

impl NdOut {
    /// The message as the device with this Ethernet address sends it.
    pub fn from(&self, mac: MacAddr) -> NdPacket {
        NdPacket { eth_src: mac, link: self.tells_link.then_some(mac), ..self.packet }
    }

    /// What the message is, from whom to whom, and the address that it is about.
    pub fn message(&self) -> (NdKind, IpAddr, IpAddr, IpAddr) {
        let NdPacket { kind, src, dst, target, .. } = self.packet;
        (kind, src, dst, target)
    }
}

/// Where messages to send go.
pub trait NdOutput {
    /// Sends a message. It may be lost: it is sent again.
    fn send_nd(&mut self, message: NdOut);
}

/// Collects the messages, for callers that send later and for tests.
impl NdOutput for Vec<NdOut> {
    fn send_nd(&mut self, message: NdOut) {
        self.push(message);
    }
}

/// A question for `target`: to its group, or to the host with this Ethernet address.
fn solicitation(src: IpAddr, target: IpAddr, to: Option<MacAddr>) -> NdOut {
    let dst = if to.is_some() { target } else { ix_wire::ipv6::solicited_node(target) };
    let (kind, eth_src, link) = (NdKind::Solicitation, [0; 6], None);
    NdOut {
        packet: NdPacket { kind, src, dst, eth_src, target, link },
        // Section 4.3: not before the address is ours.
        tells_link: !src.is_unspecified(),
        eth_dst: to.unwrap_or([0; 6]),
    }
}

/// The message that `own` is ours: to all hosts, or to the one that has asked.
fn advertisement(own: IpAddr, asked_by: Option<(IpAddr, MacAddr)>) -> NdOut {
    let (dst, eth_dst) = asked_by.unwrap_or((ix_wire::ipv6::ALL_NODES, [0; 6]));
    let solicited = asked_by.is_some();
    let kind = NdKind::Advertisement { router: false, solicited, overrides: true };
    let packet = NdPacket { kind, src: own, dst, eth_src: [0; 6], target: own, link: None };
    NdOut { packet, tells_link: true, eth_dst }
}
