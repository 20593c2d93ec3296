//! ICMP and ARP of the receive path.
use crate::receive::{Refusal, Work};
use crate::thread::ElasticThread;
use ix_wire::{ArpPacket, IcmpPacket};

impl ElasticThread {
    pub(crate) fn handle_icmp(&mut self, work: Work, _packet: &IcmpPacket) { self.give_back(work) }
    pub(crate) fn handle_arp(&mut self, work: Work, packet: &ArpPacket) {
        self.io.handle_arp_packet(work.port, packet);
        self.give_back(work);
    }
}
