//! The properties of a packet that a filter tests. They are read leniently, because packets that
//! the parser refused are captured, too.
use ix_proto::capture::{Filter, Protocol};
use ix_wire::{FlowTuple, IpAddr};

/// A packet as a filter sees it. A property that the packet does not have, or has wrongly, is
/// missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The protocol that it carries.
    pub protocol: Option<Protocol>,
    /// The sender's address.
    pub src: Option<IpAddr>,
    /// The receiver's address.
    pub dst: Option<IpAddr>,
    /// The sender's and the receiver's port.
    pub ports: Option<(u16, u16)>,
    /// Its flow group.
    pub group: Option<u8>,
    /// The elastic thread.
    pub thread: u8,
    /// It was dropped.
    pub dropped: bool,
    /// Sent by this dataplane; else received.
    pub sent: bool,
}

/// The protocol behind the extension headers of an IPv6 packet, and where its header begins.
fn upper_layer(frame: &[u8]) -> (u8, usize) {
    let parsed = ix_wire::parse_ip(frame).map(|(ip, next)| (next, 14 + usize::from(ip.header_len)));
    parsed.unwrap_or((frame.get(20).copied().unwrap_or(0), 14 + 40))
}

impl Subject {
    /// Whether a filter matches the packet.
    pub fn is_taken_by(&self, filter: &Filter) -> bool {
        match filter {
            Filter::All => true,
            Filter::Host(host) => self.src == Some(*host) || self.dst == Some(*host),
            Filter::Port(port) => self.ports.is_some_and(|(a, b)| a == *port || b == *port),
            Filter::Flow(host, port) => self.peer() == Some((*host, *port)),
            Filter::Is(protocol) => self.protocol == Some(*protocol),
            Filter::Group(group) => self.group == Some(*group),
            Filter::Thread(thread) => self.thread == *thread,
            Filter::Drops => self.dropped,
            Filter::In => !self.sent,
            Filter::Out => self.sent,
            Filter::Not(filter) => !self.is_taken_by(filter),
            Filter::And(filters) => filters.iter().all(|filter| self.is_taken_by(filter)),
            Filter::Or(filters) => filters.iter().any(|filter| self.is_taken_by(filter)),
        }
    }

    /// The properties that a frame itself has.
    pub fn of(frame: &[u8], sent: bool) -> Subject {
        let mut subject = Subject { sent, ..Subject::default() };
        let address = |at: usize| {
            let octets: [u8; 4] = frame.get(at..at + 4)?.try_into().ok()?;
            Some(IpAddr::v4(octets))
        };
        let number = |at: usize| {
            let octets: [u8; 2] = frame.get(at..at + 2)?.try_into().ok()?;
            Some(u16::from_be_bytes(octets))
        };
        match number(12) {
            Some(0x0806) => {
                subject.protocol = Some(Protocol::Arp);
                (subject.src, subject.dst) = (address(28), address(38));
            }
            Some(0x0800) => {
                (subject.src, subject.dst) = (address(26), address(30));
                subject.protocol = match frame.get(23) {
                    Some(1) => Some(Protocol::Icmp),
                    Some(6) => Some(Protocol::Tcp),
                    Some(17) => Some(Protocol::Udp),
                    _ => None,
                };
                let first = number(20).is_some_and(|fragment| fragment & 0x1fff == 0);
                let ported = matches!(subject.protocol, Some(Protocol::Tcp | Protocol::Udp));
                if first && ported {
                    let at = 14 + usize::from(frame[14] & 15) * 4;
                    subject.ports = number(at).zip(number(at + 2));
                }
            }
            Some(0x86dd) => {
                let address = |at: usize| {
                    let octets: [u8; 16] = frame.get(at..at + 16)?.try_into().ok()?;
                    Some(IpAddr(octets))
                };
                (subject.src, subject.dst) = (address(22), address(38));
                let (protocol, at) = upper_layer(frame);
                subject.protocol = match protocol {
                    58 => Some(Protocol::Icmp),
                    6 => Some(Protocol::Tcp),
                    17 => Some(Protocol::Udp),
                    _ => None,
                };
                if matches!(subject.protocol, Some(Protocol::Tcp | Protocol::Udp)) {
                    subject.ports = number(at).zip(number(at + 2));
                }
            }
            _ => {}
        }
        subject
    }

    /// Address and port of the other end.
    pub fn peer(&self) -> Option<(IpAddr, u16)> {
        let (from, to) = self.ports?;
        let (address, port) = if self.sent { (self.dst?, to) } else { (self.src?, from) };
        Some((address, port))
    }

    /// The flow that it belongs to, as the dataplane names it.
    pub fn tuple(&self) -> Option<FlowTuple> {
        let (src, dst, (from, to)) = (self.src?, self.dst?, self.ports?);
        let (local, local_port, remote, remote_port) =
            if self.sent { (src, from, dst, to) } else { (dst, to, src, from) };
        Some(FlowTuple { local, remote, local_port, remote_port })
    }
}
