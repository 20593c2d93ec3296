//! ICMP and ARP of the receive path.
use crate::cycle::ElasticThread;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::Work;
use ix_abi::error;
use ix_mem::{HEADROOM_BYTES, Mbuf};
use ix_tcp::icmp::{ErrorMessage, IcmpError, IcmpErrorKind, reply_to_echo};
use ix_wire::{ArpPacket, IcmpPacket, ipv4};

impl ElasticThread {
    pub(crate) fn handle_icmp(&mut self, work: &Work, mbuf: Mbuf, packet: &IcmpPacket) {
        match IcmpError::parse(mbuf.bytes(&self.shared.memory), packet) {
            Some(error) if error.protocol == ipv4::PROTOCOL_UDP => {
                return self.udp_error(work, mbuf, &error);
            }
            Some(error) => self.flow_error(work, &error),
            None if work.tails == 0 => self.answer_echo(work, &mbuf, packet),
            None => {}
        }
        self.give_back(work, mbuf);
    }

    /// An error about a segment of ours goes to its flow, which judges it (RFC 5927), and to the
    /// application (RFC 9293 section 3.8.3).
    fn flow_error(&mut self, work: &Work, error: &IcmpError) {
        let ElasticThread { shared, groups, io, .. } = self;
        let hash = shared.flow_hash.hash(&error.tuple);
        let Some(group) = groups[work.group as usize].as_mut() else { return };
        let Some(slot) = group.find(hash, &error.tuple) else { return };
        let Some(flow) = group.at(slot) else { return };
        let id = flow.side.id;
        let (cfg, now_us) = (&shared.config.tcp, io.now_us);
        let (kind, seq) = (error.kind.path_error(), error.quoted_seq);
        if flow.tcb.believes_error(seq) {
            io.announce_error(&flow.side, error);
        }
        flow.tcb.icmp_error(cfg, now_us, kind, seq, &mut io.of(&mut flow.side));
        self.touch(id);
    }

    fn answer_echo(&mut self, work: &Work, mbuf: &Mbuf, packet: &IcmpPacket) {
        // One that came in fragments would have to go in fragments.
        let mtu = self.io.ports[work.port as usize].info.mtu;
        if usize::from(packet.payload.len) + usize::from(packet.payload.start) > mtu + 14 {
            return;
        }
        let Some(mut reply) = self.io.tx_pool.take() else {
            return self.io.metrics.drop_local(LocalDrop::NoTxFrame);
        };
        let request = mbuf.bytes(&self.shared.memory);
        reply.set_range(HEADROOM_BYTES, request.len().min(ix_mem::ROOM_BYTES));
        let bytes = reply.bytes_mut(&self.shared.memory);
        bytes.copy_from_slice(&request[..bytes.len()]);
        match reply_to_echo(bytes, packet) {
            Some(len) => {
                reply.truncate(len);
                self.io.ports[work.port as usize].queue.push_back(reply);
            }
            None => self.io.tx_pool.put(reply),
        }
    }

    pub(crate) fn handle_arp(&mut self, work: &Work, mbuf: Mbuf, packet: &ArpPacket) {
        self.io.handle_arp_packet(work.port, packet);
        self.give_back(work, mbuf);
    }
}

/// What an error is to an application.
pub(crate) fn code_of(error: &IcmpError) -> u16 {
    let code = match error.kind {
        IcmpErrorKind::PortUnreachable => error::REFUSED,
        IcmpErrorKind::FragNeeded { .. } => error::TOO_LONG,
        _ => error::UNREACHABLE,
    };
    code as u16
}

impl Io {
    /// Sends an ICMP error about `received`, within the limit of their rate.
    pub(crate) fn send_icmp_error(&mut self, port: u8, message: &ErrorMessage, received: &[u8]) {
        if !self.icmp_errors.allow(self.now_us) {
            return;
        }
        let Some(mut mbuf) = self.tx_pool.take() else {
            return self.metrics.drop_local(LocalDrop::NoTxFrame);
        };
        mbuf.set_range(HEADROOM_BYTES, ErrorMessage::FRAME_BYTES_MAX);
        self.ip_ident = self.ip_ident.wrapping_add(1);
        let len = message.emit(received, self.ip_ident, mbuf.bytes_mut(&self.shared.memory));
        mbuf.truncate(len);
        self.ports[port as usize].queue.push_back(mbuf);
    }
}
