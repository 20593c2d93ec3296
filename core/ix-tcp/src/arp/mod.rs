//! ARP as state machines: the cache of next hops (RFC 826, RFC 1122 section 2.3.2), the guard of
//! our own addresses (RFC 5227), and the queue of packets that wait for a next hop.
use ix_wire::ArpPacket;

mod cache;
mod guard;
mod pending;

pub use cache::{ArpCache, ArpChange, ArpLimits, Resolution};
pub use guard::{AddressGuard, GuardEvent, GuardMode};
pub use pending::PendingQueue;

/// Where ARP packets to send go. The Ethernet destination is [`ArpPacket::ethernet_destination`]; a
/// host with several devices writes the address of the sending device into `sender_mac`.
pub trait ArpOutput {
    /// Sends a packet. It may be lost: ARP asks again.
    fn send(&mut self, packet: ArpPacket);
}

/// Collects the packets, for callers that send later and for tests.
impl ArpOutput for Vec<ArpPacket> {
    fn send(&mut self, packet: ArpPacket) {
        self.push(packet);
    }
}
