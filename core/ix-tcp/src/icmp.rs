//! ICMP and ICMPv6: replies to echo requests, errors to send, received errors.
use crate::PathError;
use ix_wire::icmp::{self, IcmpHeader};
use ix_wire::{
    Checksum, FlowTuple, FrameHeader, IcmpPacket, IpAddr, IpMeta, Payload, Seq, UdpPacket,
    ethernet, frame, icmp6, ipv4, ipv6,
};

/// Turns a received echo request into its reply, in place: swaps the addresses and updates the
/// checksum. Returns the length of the frame to send, or `None` when there is no reply.
///
/// A request to a group address gets no reply: RFC 1122 section 3.2.2.6 allows that, and a reply
/// could be used to attack others. A request that continues in other buffers gets none either.
pub fn reply_to_echo(frame: &mut [u8], packet: &IcmpPacket) -> Option<usize> {
    let is_v6 = packet.ip.dst.is_v6();
    let request = if is_v6 { icmp6::ECHO_REQUEST } else { icmp::ECHO_REQUEST };
    let wanted = packet.header.kind == request
        && packet.header.code == 0
        && packet.payload.more == 0
        && !to_group(&packet.ip);
    let ip_end = ethernet::HEADER_BYTES + usize::from(packet.ip.header_len);
    let frame_len = packet.payload.range().end;
    if !wanted || frame_len > frame.len() || ip_end + icmp::HEADER_BYTES > frame_len {
        return None;
    }
    if is_v6 {
        return Some(reply_to_echo_v6(frame, &packet.ip, ip_end, frame_len));
    }
    ethernet::emit(frame, packet.ip.eth_src, packet.ip.eth_dst, ethernet::TYPE_IPV4);
    // IP options are sent back unchanged.
    let ip = &mut frame[ethernet::HEADER_BYTES..ip_end];
    let (src, dst) = ip[12..20].split_at_mut(4);
    src.swap_with_slice(dst);
    ip[8] = ipv4::DEFAULT_TTL;
    ip[10..12].fill(0);
    let check = Checksum::of(ip).finish();
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    icmp::echo_request_to_reply(&mut frame[ip_end..frame_len]);
    Some(frame_len)
}

/// The same for a request that is longer than a frame: turns its whole ICMP message into that of
/// the reply, and returns the headers that the reply's fragments have.
pub fn reply_to_long_echo(message: &mut [u8], packet: &IcmpPacket) -> Option<FrameHeader> {
    let is_v6 = packet.ip.dst.is_v6();
    let request = if is_v6 { icmp6::ECHO_REQUEST } else { icmp::ECHO_REQUEST };
    let wanted = packet.header.kind == request && packet.header.code == 0;
    if !wanted || to_group(&packet.ip) || message.len() < icmp::HEADER_BYTES {
        return None;
    }
    match is_v6 {
        true => icmp6::echo_request_to_reply(message),
        false => icmp::echo_request_to_reply(message),
    }
    Some(back_to(&packet.ip, 0))
}

/// The same for ICMPv6. The reply has no extension headers.
fn reply_to_echo_v6(frame: &mut [u8], ip: &IpMeta, ip_end: usize, frame_len: usize) -> usize {
    let len = frame_len - ip_end;
    let link = back_to(ip, 0);
    let at = link.emit(frame, ipv6::PROTOCOL_ICMP, len);
    frame.copy_within(ip_end..frame_len, at);
    icmp6::echo_request_to_reply(&mut frame[at..at + len]);
    at + len
}

/// The headers of an answer to the sender of a packet.
fn back_to(received: &IpMeta, ident: u32) -> FrameHeader {
    FrameHeader {
        eth_src: received.eth_dst,
        eth_dst: received.eth_src,
        src: received.dst,
        dst: received.src,
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident,
    }
}

/// True if the packet was sent to more than one host, so there may be no error about it (RFC 1122
/// section 3.2.2). A directed broadcast arrives in a broadcast frame.
fn to_group(ip: &IpMeta) -> bool {
    ix_wire::is_group_mac(&ip.eth_dst) || ip.dst.is_multicast() || ip.dst.is_broadcast()
}

/// Limits the rate of errors that are sent: a token bucket (RFC 1812 section 4.3.2.8).
#[derive(Clone, Copy, Debug)]
pub struct ErrorLimiter {
    per_s: u64,
    burst: u64,
    /// The time at which the bucket would be empty if it had never been full.
    empty_us: u64,
}

impl ErrorLimiter {
    /// At most `per_s` errors a second, `burst` at once; neither zero.
    pub const fn new(per_s: u32, burst: u32) -> Self {
        assert!(per_s > 0 && burst > 0);
        Self { per_s: per_s as u64, burst: burst as u64, empty_us: 0 }
    }

    /// Whether one more error may be sent now. If so, counts it as sent.
    pub fn allow(&mut self, now_us: u64) -> bool {
        let each_us = 1_000_000_u64.div_ceil(self.per_s);
        let full_us = each_us * self.burst;
        // The bucket starts full, even if the clock starts at zero.
        let clock_us = now_us + full_us;
        let empty_us = self.empty_us.max(clock_us - full_us);
        if clock_us - empty_us < each_us {
            return false;
        }
        self.empty_us = empty_us + each_us;
        true
    }
}

impl Default for ErrorLimiter {
    /// 1000 errors per second, at most 50 at once.
    fn default() -> Self {
        Self::new(1000, 50)
    }
}

/// Longest error (RFC 1812 section 4.3.2.3).
const ERROR_BYTES_MAX: usize = 576;
/// Longest error of ICMPv6 (RFC 4443 section 2.4 (c)).
const ERROR_BYTES_MAX_V6: usize = ipv6::MTU_MIN as usize;

/// An ICMP error to send about a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorMessage {
    about: IpMeta,
    header: IcmpHeader,
}

impl ErrorMessage {
    /// Bytes that [`Self::emit`] needs at most.
    pub const FRAME_BYTES_MAX: usize = ethernet::HEADER_BYTES + ERROR_BYTES_MAX_V6;

    /// An error for a datagram to a port that no socket has. `None` if RFC 1122 section 3.2.2
    /// forbids an error; the parser has refused the other cases of that section (fragments, strange
    /// sources).
    pub fn port_unreachable(packet: &UdpPacket) -> Option<Self> {
        match packet.ip.dst.is_v6() {
            true => Self::of(packet.ip, icmp6::UNREACHABLE, icmp6::UNREACHABLE_PORT, [0; 4]),
            false => Self::of(packet.ip, icmp::UNREACHABLE, icmp::UNREACHABLE_PORT, [0; 4]),
        }
    }

    /// An error for a frame that the parser refused because of its protocol, or because of an
    /// extension header.
    pub fn protocol_unreachable(frame: &[u8]) -> Option<Self> {
        if let Some((ip, problem)) = ix_wire::parse_problem(frame) {
            let rest = problem.pointer.to_be_bytes();
            return Self::of(ip, icmp6::PARAMETER_PROBLEM, problem.code, rest);
        }
        let (ip, _) = ix_wire::parse_ip(frame).ok().filter(|(ip, _)| !ip.dst.is_v6())?;
        Self::of(ip, icmp::UNREACHABLE, icmp::UNREACHABLE_PROTOCOL, [0; 4])
    }

    /// The address that the packet was for, and that the error comes from.
    pub fn from(&self) -> IpAddr {
        self.about.dst
    }

    /// An error for a datagram that was not complete in time, whose first fragment has arrived (RFC
    /// 1122 section 3.3.2, RFC 8200 section 4.5).
    pub fn reassembly_timeout(first: IpMeta) -> Option<Self> {
        let kind = if first.dst.is_v6() { icmp6::TIME_EXCEEDED } else { icmp::TIME_EXCEEDED };
        Self::of(first, kind, 1, [0; 4])
    }

    fn of(about: IpMeta, kind: u8, code: u8, rest: [u8; 4]) -> Option<Self> {
        let header = IcmpHeader { kind, code, rest };
        (!to_group(&about)).then_some(Self { about, header })
    }

    /// Builds the frame, addressed to the sender of `received`, with as much of it as fits. Returns
    /// the frame's length.
    ///
    /// # Panics
    /// When `frame` is shorter than [`Self::FRAME_BYTES_MAX`].
    pub fn emit(&self, received: &[u8], ident: u32, frame: &mut [u8]) -> usize {
        let quote_at = frame::headers_bytes_to(self.about.src) + icmp::HEADER_BYTES;
        let is_v6 = self.about.src.is_v6();
        let error_max = if is_v6 { ERROR_BYTES_MAX_V6 } else { ERROR_BYTES_MAX };
        let quote = quote_of(received, is_v6);
        let quote = &quote[..quote.len().min(error_max + ethernet::HEADER_BYTES - quote_at)];
        let frame_len = quote_at + quote.len();
        frame[quote_at..frame_len].copy_from_slice(quote);
        let link = back_to(&self.about, ident);
        link.emit_icmp(frame, &self.header, quote.len(), Checksum::of(quote));
        frame_len
    }
}

/// The received IP packet without Ethernet header and padding.
fn quote_of(received: &[u8], is_v6: bool) -> &[u8] {
    let packet = received.get(ethernet::HEADER_BYTES..).unwrap_or(&[]);
    let total_len = match *packet {
        [_, _, _, _, high, low, ..] if is_v6 => {
            ipv6::HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]))
        }
        [_, _, high, low, ..] => usize::from(u16::from_be_bytes([high, low])),
        _ => 0,
    };
    &packet[..packet.len().min(total_len)]
}

/// The kind of a received ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpErrorKind {
    /// No route to the network.
    NetUnreachable,
    /// No route to the host.
    HostUnreachable,
    /// The host does not support the protocol.
    ProtoUnreachable,
    /// No socket has the port.
    PortUnreachable,
    /// A packet with DF was too long for a link (RFC 1191, RFC 8201).
    FragNeeded {
        /// MTU of that link; 0 if the router did not give it.
        mtu: u16,
    },
    /// A router or the host forbids it (RFC 1122, RFC 1812: codes 9, 10 and 13).
    AdminProhibited,
    /// The hop limit has expired, or a reassembly has timed out.
    TimeExceeded,
    /// A router or the host could not process the header.
    ParameterProblem,
}

impl IcmpErrorKind {
    /// `None` for messages that are not errors, and for source quench and redirects, which hosts
    /// ignore (RFC 6633; RFC 1122 section 3.2.2.2 requires hosts to follow redirects, but these are
    /// used for attacks).
    fn of(header: &IcmpHeader) -> Option<Self> {
        let [.., mtu_high, mtu_low] = header.rest;
        Some(match (header.kind, header.code) {
            (icmp::UNREACHABLE, 0 | 6 | 11) => Self::NetUnreachable,
            (icmp::UNREACHABLE, icmp::UNREACHABLE_PROTOCOL) => Self::ProtoUnreachable,
            (icmp::UNREACHABLE, icmp::UNREACHABLE_PORT) => Self::PortUnreachable,
            (icmp::UNREACHABLE, icmp::UNREACHABLE_FRAGMENTATION) => {
                Self::FragNeeded { mtu: u16::from_be_bytes([mtu_high, mtu_low]) }
            }
            (icmp::UNREACHABLE, 9 | 10 | 13) => Self::AdminProhibited,
            (icmp::UNREACHABLE, 1 | 5 | 7 | 8 | 12 | 14 | 15) => Self::HostUnreachable,
            (icmp::TIME_EXCEEDED, 0 | 1) => Self::TimeExceeded,
            (icmp::PARAMETER_PROBLEM, _) => Self::ParameterProblem,
            _ => return None,
        })
    }

    /// The same for ICMPv6 (RFC 4443 section 3).
    fn of_v6(header: &IcmpHeader) -> Option<Self> {
        Some(match (header.kind, header.code) {
            (icmp6::UNREACHABLE, icmp6::UNREACHABLE_ROUTE | icmp6::UNREACHABLE_SCOPE) => {
                Self::NetUnreachable
            }
            (icmp6::UNREACHABLE, icmp6::UNREACHABLE_ADDRESS) => Self::HostUnreachable,
            (icmp6::UNREACHABLE, icmp6::UNREACHABLE_PORT) => Self::PortUnreachable,
            // 5 and 6: a policy or a route refuses it.
            (icmp6::UNREACHABLE, icmp6::UNREACHABLE_PROHIBITED | 5 | 6) => Self::AdminProhibited,
            (icmp6::PACKET_TOO_BIG, _) => {
                let mtu = u32::from_be_bytes(header.rest);
                // RFC 8201 section 4: no link has less.
                let mtu = Some(mtu).filter(|mtu| *mtu >= ipv6::MTU_MIN.into())?;
                Self::FragNeeded { mtu: mtu.try_into().unwrap_or(u16::MAX) }
            }
            (icmp6::TIME_EXCEEDED, 0 | 1) => Self::TimeExceeded,
            (icmp6::PARAMETER_PROBLEM, 1) => Self::ProtoUnreachable,
            (icmp6::PARAMETER_PROBLEM, _) => Self::ParameterProblem,
            _ => return None,
        })
    }

    /// What the error means for a TCP connection (RFC 1122 section 4.2.3.9).
    pub fn path_error(self) -> PathError {
        match self {
            Self::FragNeeded { mtu } => PathError::FragNeeded { mtu },
            Self::NetUnreachable
            | Self::HostUnreachable
            | Self::TimeExceeded
            | Self::ParameterProblem => PathError::Soft,
            Self::ProtoUnreachable | Self::PortUnreachable | Self::AdminProhibited => {
                PathError::Hard
            }
        }
    }
}

/// A received ICMP error about a packet that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// The flow that the quoted packet belongs to, as seen from us.
    pub tuple: FlowTuple,
    /// Protocol of the quoted packet: TCP or UDP.
    pub protocol: u8,
    /// Sequence number of the quoted segment, for RFC 5927's check; `None` for UDP.
    pub quoted_seq: Option<Seq>,
    /// What went wrong.
    pub kind: IcmpErrorKind,
    /// Type and code of the message, and the detail of its header: an MTU, the index of an octet,
    /// or 0.
    pub said: [u16; 3],
    /// The message's sender: the peer or a router.
    pub by: IpAddr,
    /// The part of the quoted packet after the first eight bytes of its transport header (for UDP
    /// the whole payload): a range of the frame.
    pub quoted: Payload,
}

impl IcmpError {
    /// Reads a received ICMP message as an error; `frame` is the frame that `packet` was parsed
    /// from. `None` if it is not an error, quotes no packet of a flow, or quotes one that was not
    /// sent from the address that the error came to.
    ///
    /// The sender of an error cannot be verified: a router may send it for the peer.
    pub fn parse(frame: &[u8], packet: &IcmpPacket) -> Option<Self> {
        let is_v6 = packet.ip.dst.is_v6();
        let kind = match is_v6 {
            true => IcmpErrorKind::of_v6(&packet.header)?,
            false => IcmpErrorKind::of(&packet.header)?,
        };
        let quote = packet.payload.of(frame);
        let Quoted { header_len, protocol, src, dst } =
            if is_v6 { Quoted::read_v6(quote)? } else { Quoted::read(quote)? };
        if !matches!(protocol, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP) {
            return None;
        }
        // At least eight bytes of the transport header are quoted (RFC 792).
        let &[p0, p1, p2, p3, q0, q1, q2, q3] = quote.get(header_len..)?.first_chunk::<8>()?;
        let tuple = FlowTuple {
            local: src,
            remote: dst,
            local_port: u16::from_be_bytes([p0, p1]),
            remote_port: u16::from_be_bytes([p2, p3]),
        };
        let is_tcp = protocol == ipv4::PROTOCOL_TCP;
        let quoted_seq = is_tcp.then(|| Seq(u32::from_be_bytes([q0, q1, q2, q3])));
        let at = header_len as u16 + 8;
        let quoted =
            Payload { start: packet.payload.start + at, len: packet.payload.len - at, more: 0 };
        let IcmpHeader { kind: number, code, rest } = packet.header;
        let detail = match kind {
            IcmpErrorKind::FragNeeded { mtu } => mtu,
            IcmpErrorKind::ParameterProblem if is_v6 => u16::from_be_bytes([rest[2], rest[3]]),
            IcmpErrorKind::ParameterProblem => rest[0].into(),
            _ => 0,
        };
        (tuple.local == packet.ip.dst).then_some(Self {
            tuple,
            protocol,
            quoted_seq,
            kind,
            said: [number.into(), code.into(), detail],
            by: packet.ip.src,
            quoted,
        })
    }
}

/// The IP header of a quoted packet.
struct Quoted {
    header_len: usize,
    protocol: u8,
    src: IpAddr,
    dst: IpAddr,
}

impl Quoted {
    /// Of an IPv4 packet that is no later fragment.
    fn read(quote: &[u8]) -> Option<Quoted> {
        let fixed = quote.first_chunk::<{ ipv4::HEADER_BYTES }>()?;
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        let first_fragment = fixed[6] & 0x1f == 0 && fixed[7] == 0;
        if fixed[0] >> 4 != 4 || header_len < ipv4::HEADER_BYTES || !first_fragment {
            return None;
        }
        let &[_, _, _, _, _, _, _, _, _, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = fixed;
        let (src, dst) = (IpAddr::v4([s0, s1, s2, s3]), IpAddr::v4([d0, d1, d2, d3]));
        Some(Quoted { header_len, protocol: fixed[9], src, dst })
    }

    /// Of an IPv6 packet that is no later fragment. Those that we send have no other extension
    /// header.
    fn read_v6(quote: &[u8]) -> Option<Quoted> {
        let fixed = quote.first_chunk::<{ ipv6::HEADER_BYTES }>()?;
        let address = |at: usize| IpAddr(core::array::from_fn(|i| fixed[at + i]));
        let (src, dst) = (address(8), address(24));
        let (header_len, protocol) = match fixed[6] {
            ipv6::FRAGMENT => {
                let &[next, _, offset, place, ..] =
                    quote.get(ipv6::HEADER_BYTES..)?.first_chunk::<{ ipv6::FRAGMENT_BYTES }>()?;
                if offset != 0 || place & !7 != 0 {
                    return None;
                }
                (ipv6::HEADER_BYTES + ipv6::FRAGMENT_BYTES, next)
            }
            next => (ipv6::HEADER_BYTES, next),
        };
        (fixed[0] >> 4 == 6).then_some(Quoted { header_len, protocol, src, dst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_wire::{
        BROADCAST_MAC, DropReason, MacAddr, Parsed, RxChecks, TcpFlags, TcpHeader, checksum, frame,
    };
    use proptest::prelude::*;

    const OURS: MacAddr = [2, 0, 0, 0, 0, 2];
    const PEER: MacAddr = [2, 0, 0, 0, 0, 1];
    const OUR_IP: IpAddr = IpAddr::v4([10, 0, 0, 2]);
    const PEER_IP: IpAddr = IpAddr::v4([10, 0, 0, 1]);

    fn link() -> FrameHeader {
        let (eth_src, eth_dst, src, dst) = (PEER, OURS, PEER_IP, OUR_IP);
        FrameHeader { eth_src, eth_dst, src, dst, ttl: 3, tos: 0, ident: 77 }
    }

    fn icmp_frame(link: FrameHeader, header: IcmpHeader, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let len = link.emit_icmp(&mut frame, &header, body.len(), Checksum::of(body));
        frame.truncate(len);
        frame.extend_from_slice(body);
        frame
    }

    fn echo(link: FrameHeader, body: &[u8]) -> Vec<u8> {
        let header = IcmpHeader { kind: icmp::ECHO_REQUEST, code: 0, rest: [1, 2, 3, 4] };
        icmp_frame(link, header, body)
    }

    fn udp_frame(link: FrameHeader, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let len = link.emit_udp(&mut frame, 4000, 9, body.len(), Checksum::of(body));
        frame.truncate(len);
        frame.extend_from_slice(body);
        frame
    }

    fn icmp_of(frame: &[u8]) -> IcmpPacket {
        match ix_wire::parse(frame, RxChecks::default()) {
            Ok(Parsed::Icmp(packet)) => packet,
            other => panic!("{other:?}"),
        }
    }

    fn udp_of(frame: &[u8]) -> UdpPacket {
        match ix_wire::parse(frame, RxChecks::default()) {
            Ok(Parsed::Udp(packet)) => packet,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_echo_of_any_size_is_answered() {
        for len in [0, 1, 56, 1472, 9000] {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut frame = echo(link(), &body);
            let request_len = frame.len();
            frame.resize(request_len.max(60), 0xee);
            let packet = icmp_of(&frame);
            assert_eq!(reply_to_echo(&mut frame, &packet), Some(request_len));
            let frame = &frame[..request_len];
            let reply = icmp_of(frame);
            assert_eq!((reply.ip.src, reply.ip.dst, reply.ip.ttl), (OUR_IP, PEER_IP, 64));
            assert_eq!((reply.ip.eth_src, reply.ip.eth_dst), (OURS, PEER));
            assert_eq!((reply.header.kind, reply.header.rest), (icmp::ECHO_REPLY, [1, 2, 3, 4]));
            assert_eq!(reply.payload.of(frame), body);
        }
    }

    #[test]
    fn no_reply_to_groups_replies_or_parts() {
        let group = FrameHeader { dst: IpAddr::v4([224, 0, 0, 1]), ..link() };
        let broadcast = FrameHeader { dst: IpAddr::BROADCAST, ..link() };
        let in_broadcast_frame = FrameHeader { eth_dst: BROADCAST_MAC, ..link() };
        for link in [group, broadcast, in_broadcast_frame] {
            let mut frame = echo(link, b"ping");
            let packet = icmp_of(&frame);
            assert_eq!(reply_to_echo(&mut frame, &packet), None);
        }
        let header = IcmpHeader { kind: icmp::ECHO_REPLY, code: 0, rest: [0; 4] };
        let mut frame = icmp_frame(link(), header, b"pong");
        let packet = icmp_of(&frame);
        assert_eq!(reply_to_echo(&mut frame, &packet), None);
        let mut frame = echo(link(), b"ping");
        let mut packet = icmp_of(&frame);
        packet.payload.more = 1;
        assert_eq!(reply_to_echo(&mut frame, &packet), None);
    }

    #[test]
    fn port_unreachable_quotes_the_datagram() {
        let mut received = udp_frame(link(), b"nobody?");
        received.resize(60, 0xee);
        let message = ErrorMessage::port_unreachable(&udp_of(&received)).unwrap();
        let mut frame = vec![0; ErrorMessage::FRAME_BYTES_MAX];
        let len = message.emit(&received, 5, &mut frame);
        let error = icmp_of(&frame[..len]);
        assert_eq!((error.ip.src, error.ip.dst, error.ip.eth_dst), (OUR_IP, PEER_IP, PEER));
        assert_eq!((error.header.kind, error.header.code), (3, 3));
        assert_eq!(error.payload.of(&frame), &received[14..14 + 20 + 8 + 7], "without padding");
        // The peer can parse it.
        let understood = IcmpError::parse(&frame[..len], &error).unwrap();
        assert_eq!(understood.kind, IcmpErrorKind::PortUnreachable);
        let tuple = FlowTuple { local: PEER_IP, remote: OUR_IP, local_port: 4000, remote_port: 9 };
        assert_eq!((understood.tuple, understood.quoted_seq), (tuple, None));
    }

    #[test]
    fn rfc1812_4_3_2_3_errors_have_at_most_576_bytes() {
        let received = udp_frame(link(), &[7; 1400]);
        let message = ErrorMessage::port_unreachable(&udp_of(&received)).unwrap();
        let mut frame = vec![0; ErrorMessage::FRAME_BYTES_MAX];
        assert_eq!(message.emit(&received, 5, &mut frame), 14 + 576);
    }

    #[test]
    fn protocol_unreachable() {
        let mut received = udp_frame(link(), b"sctp");
        received[23] = 132;
        received[24..26].fill(0);
        let check = checksum::checksum(&received[14..34]);
        received[24..26].copy_from_slice(&check.to_be_bytes());
        let parsed = ix_wire::parse(&received, RxChecks::default());
        assert_eq!(parsed, Err(DropReason::IpUnknownProtocol));
        let message = ErrorMessage::protocol_unreachable(&received).unwrap();
        let mut frame = vec![0; ErrorMessage::FRAME_BYTES_MAX];
        let len = message.emit(&received, 5, &mut frame);
        let error = icmp_of(&frame[..len]);
        assert_eq!((error.header.kind, error.header.code), (3, 2));
    }

    #[test]
    fn rfc1122_3_2_2_no_error_about_groups() {
        let group = FrameHeader { dst: IpAddr::v4([239, 1, 1, 1]), ..link() };
        let in_broadcast_frame = FrameHeader { eth_dst: BROADCAST_MAC, ..link() };
        for link in [group, in_broadcast_frame] {
            let packet = udp_of(&udp_frame(link, b""));
            assert_eq!(ErrorMessage::port_unreachable(&packet), None);
        }
    }

    #[test]
    fn errors_are_limited() {
        let mut limiter = ErrorLimiter::new(100, 5);
        let mut burst = |now_us| (0..100).filter(|_| limiter.allow(now_us)).count();
        assert_eq!(burst(0), 5);
        assert_eq!(burst(9_999), 0);
        assert_eq!(burst(10_000), 1);
        assert_eq!(burst(40_000), 3);
        assert_eq!(burst(10_000_000), 5, "never more than the burst");
    }

    #[test]
    fn the_limit_holds_over_time() {
        let mut limiter = ErrorLimiter::default();
        let allowed = (0..10_000_000).step_by(100).filter(|now_us| limiter.allow(*now_us)).count();
        assert!((10_000..=10_050).contains(&allowed), "{allowed}");
    }

    /// A segment of ours from its IP header on, as errors quote it.
    fn our_segment() -> Vec<u8> {
        let link = FrameHeader { src: OUR_IP, dst: PEER_IP, ..link() };
        let header = TcpHeader {
            src_port: 80,
            dst_port: 40_000,
            seq: Seq(0x0102_0304),
            flags: TcpFlags::ACK,
            ..TcpHeader::default()
        };
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let len = link.emit_tcp(&mut frame, &header, 0, Checksum::new());
        frame[14..len].to_vec()
    }

    fn read(kind: u8, code: u8, rest: [u8; 4], quote: &[u8]) -> Option<IcmpError> {
        let frame = icmp_frame(link(), IcmpHeader { kind, code, rest }, quote);
        IcmpError::parse(&frame, &icmp_of(&frame))
    }

    /// Also requests to which only some hosts, or none, should reply: information, address mask,
    /// timestamp (RFC 1122 sections 3.2.2.7 to 3.2.2.9).
    #[test]
    fn unknown_types_are_nothing() {
        let quote = &our_segment()[..28];
        for kind in (0..=255).filter(|kind| !matches!(kind, 3 | 8 | 11 | 12)) {
            for code in [0, 1, 255] {
                let header = IcmpHeader { kind, code, rest: [0; 4] };
                let mut frame = icmp_frame(link(), header, quote);
                let packet = icmp_of(&frame);
                assert_eq!(IcmpError::parse(&frame, &packet), None, "type {kind}");
                assert_eq!(reply_to_echo(&mut frame, &packet), None, "type {kind}");
            }
        }
    }

    #[test]
    fn every_error_is_understood() {
        use IcmpErrorKind::*;
        let quote = &our_segment()[..28];
        let cases = [
            (3, 0, NetUnreachable, PathError::Soft),
            (3, 1, HostUnreachable, PathError::Soft),
            (3, 2, ProtoUnreachable, PathError::Hard),
            (3, 3, PortUnreachable, PathError::Hard),
            (3, 4, FragNeeded { mtu: 1400 }, PathError::FragNeeded { mtu: 1400 }),
            (3, 5, HostUnreachable, PathError::Soft),
            (3, 9, AdminProhibited, PathError::Hard),
            (3, 10, AdminProhibited, PathError::Hard),
            (3, 13, AdminProhibited, PathError::Hard),
            (11, 0, TimeExceeded, PathError::Soft),
            (11, 1, TimeExceeded, PathError::Soft),
            (12, 0, ParameterProblem, PathError::Soft),
        ];
        for (kind, code, expected, path_error) in cases {
            let error = read(kind, code, [0, 0, 5, 120], quote).unwrap();
            assert_eq!((error.kind, error.kind.path_error()), (expected, path_error));
            assert_eq!(error.quoted_seq, Some(Seq(0x0102_0304)));
            let detail = match expected {
                FragNeeded { mtu } => mtu,
                _ => 0,
            };
            assert_eq!((error.said, error.by), ([kind.into(), code.into(), detail], PEER_IP));
            assert_eq!(error.protocol, ipv4::PROTOCOL_TCP);
            let tuple =
                FlowTuple { local: OUR_IP, remote: PEER_IP, local_port: 80, remote_port: 40_000 };
            assert_eq!(error.tuple, tuple);
        }
        for (kind, code) in [(0, 0), (8, 0), (4, 0), (5, 1), (13, 0), (3, 16), (11, 2)] {
            assert_eq!(read(kind, code, [0; 4], quote), None, "type {kind} code {code}");
        }
    }

    #[test]
    fn quotes_that_name_no_flow_of_ours_are_ignored() {
        let edit = |edit: fn(&mut Vec<u8>)| {
            let mut quote = our_segment();
            edit(&mut quote);
            read(3, 3, [0; 4], &quote)
        };
        assert!(edit(|_| ()).is_some());
        assert_eq!(edit(|q| q.truncate(27)), None, "fewer than eight bytes of transport header");
        assert_eq!(edit(|q| q.truncate(19)), None);
        assert_eq!(edit(|q| q[0] = 0x65), None, "not IPv4");
        assert_eq!(edit(|q| q[0] = 0x44), None, "header too short");
        assert_eq!(edit(|q| q[0] = 0x4f), None, "options beyond the quote");
        assert_eq!(edit(|q| q[7] = 1), None, "a later fragment");
        assert_eq!(edit(|q| q[9] = 1), None, "ICMP");
        assert_eq!(edit(|q| q[15] = 3), None, "sent by another host");
        // A quoted first fragment, a changed TTL and checksum, and options are all possible.
        assert!(edit(|q| q[6] = 0x20).is_some());
        assert!(edit(|q| q[8] = 1).is_some());
        let with_options = edit(|q| {
            q[0] = 0x46;
            q.splice(20..20, [1, 1, 1, 0]);
        });
        assert_eq!(with_options.map(|error| error.tuple.local_port), Some(80));
    }

    fn link_v6() -> FrameHeader {
        let ip = |text: &str| text.parse().expect("an address");
        FrameHeader { src: ip("2001:db8::1"), dst: ip("2001:db8::2"), ..link() }
    }

    fn swapped(link: FrameHeader) -> FrameHeader {
        FrameHeader { src: link.dst, dst: link.src, ..link }
    }

    #[test]
    fn an_echo_over_ipv6_is_answered_without_extension_headers() {
        let body = b"over IPv6";
        let plain = {
            let header = IcmpHeader { kind: icmp6::ECHO_REQUEST, code: 0, rest: [1, 2, 3, 4] };
            icmp_frame(link_v6(), header, body)
        };
        let mut extended = plain.clone();
        extended.splice(54..54, [58, 0, 1, 4, 0, 0, 0, 0]);
        extended[19] += 8;
        extended[20] = 60;
        for mut frame in [plain.clone(), extended] {
            frame.resize(100, 0xee);
            let packet = icmp_of(&frame);
            assert_eq!(reply_to_echo(&mut frame, &packet), Some(plain.len()));
            let reply = icmp_of(&frame[..plain.len()]);
            let link = link_v6();
            assert_eq!((reply.ip.src, reply.ip.dst, reply.ip.ttl), (link.dst, link.src, 64));
            assert_eq!((reply.header.kind, reply.header.rest), (129, [1, 2, 3, 4]));
            assert_eq!((reply.ip.header_len, reply.payload.of(&frame)), (40, &body[..]));
        }
        // A request of ICMP of the other family is none.
        let header = IcmpHeader { kind: icmp::ECHO_REQUEST, code: 0, rest: [0; 4] };
        let mut frame = icmp_frame(link_v6(), header, body);
        let packet = icmp_of(&frame);
        assert_eq!(reply_to_echo(&mut frame, &packet), None);
    }

    /// RFC 4443 sections 3.1 and 2.4 (c).
    #[test]
    fn errors_over_ipv6() {
        let mut frame = vec![0; ErrorMessage::FRAME_BYTES_MAX];
        for (len, quoted) in [(7, 48 + 7), (1400, 1280 - 48)] {
            let mut received = udp_frame(link_v6(), &vec![7; len]);
            received.resize(received.len().max(120), 0xee);
            let message = ErrorMessage::port_unreachable(&udp_of(&received)).expect("an error");
            let len = message.emit(&received, 5, &mut frame);
            let error = icmp_of(&frame[..len]);
            assert_eq!((error.header.kind, error.header.code), (1, 4));
            assert_eq!(error.payload.of(&frame), &received[14..14 + quoted]);
            let understood = IcmpError::parse(&frame[..len], &error).expect("it quotes a packet");
            assert_eq!(understood.kind, IcmpErrorKind::PortUnreachable);
            let (local, remote) = (link_v6().src, link_v6().dst);
            let tuple = FlowTuple { local, remote, local_port: 4000, remote_port: 9 };
            assert_eq!((understood.tuple, understood.quoted_seq), (tuple, None));
        }
        let mut unknown = udp_frame(link_v6(), b"sctp");
        unknown[20] = 132;
        let message = ErrorMessage::protocol_unreachable(&unknown).expect("an error");
        assert_eq!(message.from(), link_v6().dst);
        let len = message.emit(&unknown, 5, &mut frame);
        let error = icmp_of(&frame[..len]);
        assert_eq!((error.header.kind, error.header.code, error.header.rest), (4, 1, [0, 0, 0, 6]));
        unknown[20] = 59;
        assert_eq!(ErrorMessage::protocol_unreachable(&unknown), None, "no next header");
    }

    #[test]
    fn every_error_of_icmpv6_is_understood() {
        use IcmpErrorKind::*;
        let ours = {
            let header = TcpHeader { src_port: 80, seq: Seq(7), ..TcpHeader::default() };
            let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
            let len = swapped(link_v6()).emit_tcp(&mut frame, &header, 0, Checksum::new());
            frame[14..len].to_vec()
        };
        let read = |kind, code, word: u32, quote: &[u8]| {
            let header = IcmpHeader { kind, code, rest: word.to_be_bytes() };
            let frame = icmp_frame(link_v6(), header, quote);
            IcmpError::parse(&frame, &icmp_of(&frame))
        };
        for (kind, code, word, expected) in [
            (1, 0, 0, Some(NetUnreachable)),
            (1, 1, 0, Some(AdminProhibited)),
            (1, 3, 0, Some(HostUnreachable)),
            (1, 4, 0, Some(PortUnreachable)),
            (1, 6, 0, Some(AdminProhibited)),
            (1, 7, 0, None),
            (2, 0, 1400, Some(FragNeeded { mtu: 1400 })),
            (2, 0, 1280, Some(FragNeeded { mtu: 1280 })),
            (2, 0, 1279, None),
            (2, 0, 100_000, Some(FragNeeded { mtu: u16::MAX })),
            (3, 0, 0, Some(TimeExceeded)),
            (4, 0, 6, Some(ParameterProblem)),
            (4, 1, 6, Some(ProtoUnreachable)),
            (128, 0, 0, None),
            // What ICMP would have as an error.
            (3, 3, 0, None),
        ] {
            let error = read(kind, code, word, &ours);
            assert_eq!(error.map(|error| error.kind), expected, "type {kind} code {code}");
        }
        let error = read(4, 0, 6, &ours).expect("an error");
        assert_eq!((error.said, error.quoted_seq), ([4, 0, 6], Some(Seq(7))));
        assert_eq!(error.tuple.local_port, 80);
        assert_eq!(read(1, 4, 0, &ours[..47]), None, "too little is quoted");
        let mut foreign = ours.clone();
        foreign[23] ^= 1;
        assert_eq!(read(1, 4, 0, &foreign), None, "sent by another host");
        assert_eq!(read(1, 4, 0, &our_segment()), None, "a packet of IPv4");
    }

    proptest! {
        #[test]
        fn any_quote_gives_a_value_or_none(
            kind: u8, code: u8, rest: [u8; 4],
            quote in prop::collection::vec(any::<u8>(), 0..80),
            four: bool,
        ) {
            let mut quote = quote;
            if let Some(first) = quote.first_mut() && four {
                *first = 0x40 | (*first & 7);
            }
            let _ = read(kind, code, rest, &quote);
        }

        /// Also with a packet that is not part of the frame.
        #[test]
        fn any_frame_is_safe(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            body in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let packet = icmp_of(&echo(link(), &body));
            let _ = IcmpError::parse(&bytes, &packet);
            let _ = reply_to_echo(&mut bytes, &packet);
            let mut frame = vec![0; ErrorMessage::FRAME_BYTES_MAX];
            let udp = udp_of(&udp_frame(link(), &body));
            if let Some(message) = ErrorMessage::port_unreachable(&udp) {
                prop_assert!(message.emit(&bytes, 0, &mut frame) <= frame.len());
            }
            if let Some(message) = ErrorMessage::protocol_unreachable(&bytes) {
                prop_assert!(message.emit(&bytes, 0, &mut frame) <= frame.len());
            }
        }
    }
}
