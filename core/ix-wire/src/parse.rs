//! Parses a received frame.
use crate::packet::{
    ChecksumMode, IcmpPacket, IpMeta, Parsed, Payload, RxChecks, TcpPacket, UdpPacket,
};
use crate::tcp::{TcpHeader, TcpOptions};
use crate::udp::UdpHeader;
use crate::{
    ArpPacket, Checksum, DropReason, IpAddr, NdPacket, be16, ethernet, icmp, ipv4, ipv6, nd,
    parse_usual, parse_usual_v6, tcp,
};

/// Parses an Ethernet frame. Returns what it holds, or why it is dropped.
#[inline]
pub fn parse(frame: &[u8], checks: RxChecks) -> Result<Parsed, DropReason> {
    parse_first(frame, frame.len(), checks)
}

/// As [`parse`], for a frame of `total_len` bytes of which `frame` is the first buffer. All headers
/// must be in it.
///
/// If the packet does continue in other buffers, its transport checksum is not verified yet:
/// [`verify_rest`] does it. `partial` already says whether it is the sum of the pseudo-header.
#[inline]
pub fn parse_first(frame: &[u8], total_len: usize, checks: RxChecks) -> Result<Parsed, DropReason> {
    let mut parsed = Parsed::NONE;
    parse_into(frame, total_len, checks, &mut parsed).map(|()| parsed)
}

/// As [`parse_first`], but writes to `into`, where the packet will be read: moving a value that was
/// just stored in pieces stalls the processor. After an error the content of `into` means nothing.
#[inline]
pub fn parse_into(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    if let Some(head) = frame.first_chunk()
        && parse_usual(head, frame, total_len, checks, into).is_some()
    {
        return Ok(());
    }
    parse_any(frame, total_len, checks, into)
}

/// [`parse_into`] for a packet that is not the usual one. Not inlined, so that the usual one does
/// not pay for it.
#[inline(never)]
pub fn parse_any(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    let (eth, packet) =
        frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>().ok_or(DropReason::EthTruncated)?;
    if eth[6] & 1 != 0 {
        return Err(DropReason::EthBadSource);
    }
    match be16(eth, 12) {
        ethernet::TYPE_IPV4 => {}
        ethernet::TYPE_ARP => {
            *into = Parsed::Arp(ArpPacket::parse(packet)?);
            return Ok(());
        }
        ethernet::TYPE_IPV6 => return parse_v6(frame, total_len, checks, into),
        other => return Err(unknown_type(other)),
    }

    let available = total_len.max(frame.len()) - ethernet::HEADER_BYTES;
    let datagram = Datagram::<ipv4::Header>::parse(eth, packet, available)?;
    match datagram.ip.protocol {
        ipv4::PROTOCOL_TCP => return parse_tcp(&datagram, checks.transport, into),
        ipv4::PROTOCOL_UDP => *into = parse_udp(&datagram, checks.transport)?,
        ipv4::PROTOCOL_ICMP => *into = parse_icmp(&datagram)?,
        _ => return Err(DropReason::IpUnknownProtocol),
    }
    Ok(())
}

/// [`parse_into`] for an IPv6 packet. Not inlined, so that IPv4 does not pay for it.
#[inline(never)]
fn parse_v6(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    if let Some(head) = frame.first_chunk()
        && parse_usual_v6(head, frame, total_len, checks, into).is_some()
    {
        return Ok(());
    }
    parse_any_v6(frame, total_len, checks, into)
}

/// [`parse_any`] for an IPv6 packet that is not the usual one.
#[inline(never)]
pub(crate) fn parse_any_v6(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    let (eth, packet) =
        frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>().ok_or(DropReason::EthTruncated)?;
    let available = total_len.saturating_sub(ethernet::HEADER_BYTES).max(packet.len());
    let datagram = Datagram::<ipv6::Header>::parse(eth, packet, available)?;
    match datagram.ip.protocol {
        ipv4::PROTOCOL_TCP => return parse_tcp(&datagram, checks.transport, into),
        ipv4::PROTOCOL_UDP => *into = parse_udp(&datagram, checks.transport)?,
        ipv6::PROTOCOL_ICMP => *into = parse_icmp_v6(&datagram)?,
        _ => return Err(DropReason::IpUnknownProtocol),
    }
    Ok(())
}

/// As [`parse_into`], for a frame in memory that the sender can still change: all headers are read
/// from `head`, a copy of the front of `frame`, and only payload is read from `frame`. Headers
/// longer than the copy are treated as if the frame ended there.
pub fn parse_copied(
    head: &[u8],
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    parse_any(head, total_len, checks, into)?;
    let Some(rest) = frame.get(head.len()..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
    let accept_partial = checks.transport == ChecksumMode::AcceptPartial;
    let (ip, payload, protocol, verified, failed) = match into {
        Parsed::Tcp(p) => {
            let protocol = ipv4::PROTOCOL_TCP;
            p.partial &= accept_partial;
            (&p.ip, &mut p.payload, protocol, p.partial, DropReason::TcpBadChecksum)
        }
        Parsed::Udp(p) => {
            let field = ethernet::HEADER_BYTES + usize::from(p.ip.header_len) + 6;
            // Zero means that the sender computed none (RFC 768).
            let none = head.get(field..field + 2).is_none_or(|sum| sum == [0, 0]);
            let none = none && !p.ip.dst.is_v6();
            let protocol = ipv4::PROTOCOL_UDP;
            p.partial &= accept_partial;
            (&p.ip, &mut p.payload, protocol, p.partial || none, DropReason::UdpBadChecksum)
        }
        Parsed::Icmp(p) => {
            let protocol = icmp_of(&p.ip);
            (&p.ip, &mut p.payload, protocol, false, DropReason::IcmpBadChecksum)
        }
        // What the copy holds was verified, and it is longer than any of them.
        Parsed::Arp(_) | Parsed::Nd(_) => return Ok(()),
    };
    // The payload continues behind the copy: so far it was counted as following in other buffers.
    let held = usize::from(payload.more).min(rest.len());
    payload.len += held as u16;
    payload.more -= held as u16;
    let is_icmp = matches!(protocol, ipv4::PROTOCOL_ICMP | ipv6::PROTOCOL_ICMP);
    let skipped = checks.transport == ChecksumMode::Skip && !is_icmp;
    if held == 0 || payload.more > 0 || verified || skipped {
        return Ok(());
    }
    let start = ethernet::HEADER_BYTES + usize::from(ip.header_len);
    let front = head.get(start..).unwrap_or(&[]);
    let mut sum = pseudo_header(ip, protocol, front.len() + held);
    sum.add_bytes(front);
    sum.add_bytes(&rest[..held]);
    if sum.is_valid() { Ok(()) } else { Err(failed) }
}

/// Verifies the transport checksum of a packet that continues in other buffers, as [`parse`] does
/// for one that does not. `parsed` is what [`parse_first`] has returned for the buffer `first`,
/// with the same `checks`; `rest` are the other buffers, in order.
pub fn verify_rest<'a>(
    first: &[u8],
    parsed: &Parsed,
    rest: impl Iterator<Item = &'a [u8]>,
    checks: RxChecks,
) -> Result<(), DropReason> {
    let skipped = checks.transport == ChecksumMode::Skip;
    let accept_partial = checks.transport == ChecksumMode::AcceptPartial;
    let (ip, payload, protocol, verified, failed) = match parsed {
        Parsed::Tcp(p) => {
            let verified = skipped || accept_partial && p.partial;
            (&p.ip, p.payload, ipv4::PROTOCOL_TCP, verified, DropReason::TcpBadChecksum)
        }
        Parsed::Udp(p) => {
            // Zero means that the sender computed none (RFC 768).
            let field = ethernet::HEADER_BYTES + usize::from(p.ip.header_len) + 6;
            let none = first.get(field..field + 2).is_none_or(|sum| sum == [0, 0]);
            let none = none && !p.ip.dst.is_v6();
            let verified = skipped || none || accept_partial && p.partial;
            (&p.ip, p.payload, ipv4::PROTOCOL_UDP, verified, DropReason::UdpBadChecksum)
        }
        Parsed::Icmp(p) => (&p.ip, p.payload, icmp_of(&p.ip), false, DropReason::IcmpBadChecksum),
        Parsed::Arp(_) | Parsed::Nd(_) => return Ok(()),
    };
    if payload.more == 0 || verified {
        return Ok(());
    }
    let start = ethernet::HEADER_BYTES + usize::from(ip.header_len);
    let front = first.get(start..payload.range().end).unwrap_or(&[]);
    let mut left = usize::from(payload.more);
    let mut sum = pseudo_header(ip, protocol, front.len() + left);
    sum.add_bytes(front);
    for piece in rest {
        let piece = &piece[..piece.len().min(left)];
        sum.add_bytes(piece);
        left -= piece.len();
    }
    if left == 0 && sum.is_valid() { Ok(()) } else { Err(failed) }
}

/// The sum with which the checksum of a packet of `len` bytes begins: ICMP alone has none.
#[inline]
fn pseudo_header(ip: &IpMeta, protocol: u8, len: usize) -> Checksum {
    match (protocol, ip.src.as_v4(), ip.dst.as_v4()) {
        (ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP, Some(src), Some(dst)) => {
            Checksum::pseudo_header_v4(src, dst, protocol, len)
        }
        (ipv4::PROTOCOL_ICMP, ..) => Checksum::new(),
        _ => Checksum::pseudo_header(ip.src, ip.dst, protocol, len),
    }
}

/// The protocol number of ICMP or ICMPv6.
fn icmp_of(ip: &IpMeta) -> u8 {
    if ip.dst.is_v6() { ipv6::PROTOCOL_ICMP } else { ipv4::PROTOCOL_ICMP }
}

/// A fragment of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Ethernet and IP part.
    pub ip: IpMeta,
    /// Protocol of the datagram; of all over IPv6 [`ipv6::FRAGMENT`], because only the first
    /// fragment says which it is.
    pub protocol: u8,
    /// Its identification.
    pub ident: u32,
    /// Index of the fragment's first octet in the datagram's payload, a multiple of eight.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
    /// Octets of the transport header, which the first fragment must hold, and no other one may
    /// overwrite (RFC 1858). Over IPv6 of the first fragment alone.
    pub headers_bytes: u16,
    /// The fragment's octets, all of them in the frame if the frame is complete.
    pub payload: Payload,
}

/// Parses a frame that [`parse`] refuses as [`DropReason::IpFragment`] or
/// [`DropReason::Ip6Fragment`]. The frame has `total_len` octets; `head` is a copy of its front
/// with the headers, or the frame itself.
pub fn parse_fragment(head: &[u8], total_len: usize) -> Result<Fragment, DropReason> {
    let (eth, packet) =
        head.split_first_chunk::<{ ethernet::HEADER_BYTES }>().ok_or(DropReason::EthTruncated)?;
    let available = total_len.saturating_sub(ethernet::HEADER_BYTES);
    match be16(eth, 12) {
        ethernet::TYPE_IPV4 => {}
        ethernet::TYPE_IPV6 => return parse_fragment_v6(eth, packet, available),
        other => return Err(unknown_type(other)),
    }
    let ip = ipv4::Header::parse_fragment(packet, available)?;
    let (ident, offset, more) = ipv4::fragment_place(packet);
    let len = ip.total_len - ip.header_len;
    // RFC 791 section 3.1: all but the last end at a multiple of eight, and the datagram has at
    // most 65,535 octets.
    let beyond = ip.header_len + usize::from(offset) + len > usize::from(u16::MAX);
    if len == 0 || more && !len.is_multiple_of(8) || beyond {
        return Err(DropReason::IpFragment);
    }
    let start = (ethernet::HEADER_BYTES + ip.header_len) as u16;
    let datagram: Datagram<'_, ipv4::Header> = Datagram { eth, bytes: &[], len, ip };
    Ok(Fragment {
        ip: datagram.meta(),
        protocol: datagram.ip.protocol,
        ident: ident.into(),
        offset,
        more,
        headers_bytes: match datagram.ip.protocol {
            ipv4::PROTOCOL_TCP => tcp::HEADER_BYTES as u16,
            // The transports that are known have eight; so do fragments.
            _ => 8,
        },
        payload: Payload { start, len: len as u16, more: 0 },
    })
}

fn parse_fragment_v6(
    eth: &[u8; ethernet::HEADER_BYTES],
    packet: &[u8],
    available: usize,
) -> Result<Fragment, DropReason> {
    let read = ipv6::fragment::read(packet, available)?;
    let ipv6::fragment::Read { ip, ident, offset, more, headers_bytes } = read;
    let start = (ethernet::HEADER_BYTES + ip.header_len) as u16;
    let len = (ip.total_len - ip.header_len) as u16;
    let payload = Payload { start, len, more: 0 };
    Ok(Fragment {
        ip: ip.meta(eth),
        protocol: ip.protocol,
        ident,
        offset,
        more,
        headers_bytes,
        payload,
    })
}

/// Parses Ethernet and IP header of an IP packet of any protocol; returns them and the protocol.
/// For packets that [`parse`] refuses as [`DropReason::IpUnknownProtocol`].
pub fn parse_ip(frame: &[u8]) -> Result<(IpMeta, u8), DropReason> {
    let (eth, packet) =
        frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>().ok_or(DropReason::EthTruncated)?;
    match be16(eth, 12) {
        ethernet::TYPE_IPV4 => {
            let datagram = Datagram::<ipv4::Header>::parse(eth, packet, packet.len())?;
            Ok((datagram.meta(), datagram.ip.protocol))
        }
        ethernet::TYPE_IPV6 => {
            let datagram = Datagram::<ipv6::Header>::parse(eth, packet, packet.len())?;
            Ok((datagram.meta(), datagram.ip.protocol))
        }
        other => Err(unknown_type(other)),
    }
}

/// What the sender of an IPv6 packet that [`parse`] has refused is told by a Parameter Problem,
/// with the packet's addresses; `None`: nothing.
pub fn parse_problem(frame: &[u8]) -> Option<(IpMeta, ipv6::Problem)> {
    let (eth, packet) = frame.split_first_chunk::<{ ethernet::HEADER_BYTES }>()?;
    if be16(eth, 12) != ethernet::TYPE_IPV6 {
        return None;
    }
    let problem = ipv6::problem_of(packet)?;
    let header = ipv6::Header::without_extensions(packet)?;
    Some((header.meta(eth), problem))
}

#[cold]
fn unknown_type(ethertype: u16) -> DropReason {
    match ethertype {
        ethernet::TYPE_VLAN | ethernet::TYPE_SERVICE_VLAN => DropReason::EthVlan,
        _ => DropReason::EthUnknownType,
    }
}

/// What the parsers of transport headers need of an IP header that was checked.
trait NetHeader: Sized {
    /// Why a UDP datagram without a checksum is refused, if it is.
    const NO_UDP_CHECKSUM: Option<DropReason>;

    /// Parses the header at the front of `packet`, which has `available` bytes.
    fn read(packet: &[u8], available: usize) -> Result<Self, DropReason>;
    /// Of the header, and of header and payload, bytes.
    fn lengths(&self) -> (usize, usize);
    /// Whether the packet is for several hosts.
    fn is_to_group(&self) -> bool;
    /// The sum of the pseudo-header of a transport packet of `len` bytes.
    fn pseudo_header(&self, protocol: u8, len: usize) -> Checksum;
    /// The header for those who process the packet.
    fn meta(&self, eth: &[u8; ethernet::HEADER_BYTES]) -> IpMeta;
}

impl NetHeader for ipv4::Header {
    const NO_UDP_CHECKSUM: Option<DropReason> = None;

    #[inline(always)]
    fn read(packet: &[u8], available: usize) -> Result<Self, DropReason> {
        ipv4::Header::parse(packet, available)
    }

    #[inline(always)]
    fn lengths(&self) -> (usize, usize) {
        (self.header_len, self.total_len)
    }

    #[inline(always)]
    fn is_to_group(&self) -> bool {
        self.dst[0] >> 4 == 0xe || self.dst == [255; 4]
    }

    #[inline(always)]
    fn pseudo_header(&self, protocol: u8, len: usize) -> Checksum {
        Checksum::pseudo_header_v4(self.src, self.dst, protocol, len)
    }

    /// Called last, so that the fields are stored directly in their final place: a copy of what was
    /// just stored in pieces is slow.
    #[inline(always)]
    fn meta(&self, eth: &[u8; ethernet::HEADER_BYTES]) -> IpMeta {
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = eth;
        IpMeta {
            src: IpAddr::v4(self.src),
            dst: IpAddr::v4(self.dst),
            ttl: self.ttl,
            tos: self.tos,
            dont_fragment: self.dont_fragment,
            header_len: self.header_len as u8,
            eth_src: [s0, s1, s2, s3, s4, s5],
            eth_dst: [d0, d1, d2, d3, d4, d5],
        }
    }
}

impl NetHeader for ipv6::Header {
    const NO_UDP_CHECKSUM: Option<DropReason> = Some(DropReason::UdpBadChecksum);

    #[inline(always)]
    fn read(packet: &[u8], available: usize) -> Result<Self, DropReason> {
        ipv6::Header::parse(packet, available)
    }

    #[inline(always)]
    fn lengths(&self) -> (usize, usize) {
        (self.header_len, self.total_len)
    }

    #[inline(always)]
    fn is_to_group(&self) -> bool {
        self.dst[0] == 0xff
    }

    #[inline(always)]
    fn pseudo_header(&self, protocol: u8, len: usize) -> Checksum {
        Checksum::pseudo_header(IpAddr(self.src), IpAddr(self.dst), protocol, len)
    }

    #[inline(always)]
    fn meta(&self, eth: &[u8; ethernet::HEADER_BYTES]) -> IpMeta {
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = eth;
        IpMeta {
            src: IpAddr(self.src),
            dst: IpAddr(self.dst),
            ttl: self.hop_limit,
            tos: self.tos,
            dont_fragment: true,
            header_len: self.header_len as u8,
            eth_src: [s0, s1, s2, s3, s4, s5],
            eth_dst: [d0, d1, d2, d3, d4, d5],
        }
    }
}

/// An IP packet with its payload.
struct Datagram<'a, H> {
    eth: &'a [u8; ethernet::HEADER_BYTES],
    ip: H,
    /// The part of the payload that is in the first buffer.
    bytes: &'a [u8],
    /// Length of the whole payload.
    len: usize,
}

impl<'a, H: NetHeader> Datagram<'a, H> {
    /// Parses the IP header at the front of `packet`. `available` is the length of the whole
    /// packet.
    #[inline(always)]
    fn parse(
        eth: &'a [u8; ethernet::HEADER_BYTES],
        packet: &'a [u8],
        available: usize,
    ) -> Result<Self, DropReason> {
        let ip = H::read(packet, available)?;
        let (header_len, total_len) = ip.lengths();
        let in_buffer = total_len.min(packet.len());
        // The header is in both: `read` has checked it.
        let bytes = packet.get(header_len..in_buffer).ok_or(DropReason::IpTruncated)?;
        Ok(Self { eth, len: total_len - header_len, ip, bytes })
    }

    #[inline(always)]
    fn meta(&self) -> IpMeta {
        self.ip.meta(self.eth)
    }

    /// The payload of a transport packet of `len` bytes whose header of `header_len` bytes is in
    /// `bytes`.
    #[inline]
    fn payload(&self, header_len: usize, len: usize) -> Payload {
        let start = ethernet::HEADER_BYTES + self.ip.lengths().0 + header_len;
        let in_buffer = len.min(self.bytes.len());
        // All are below 64 KiB: parts of an IP packet, plus at most 134 bytes.
        Payload {
            start: start as u16,
            len: (in_buffer - header_len) as u16,
            more: (len - in_buffer) as u16,
        }
    }

    /// Verifies the checksum over the first `len` bytes; `field` is the checksum field.
    /// `Some(true)`: the field is the partial sum.
    ///
    /// The partial sum is tried first, which saves summing the payload. A packet whose right
    /// checksum happens to be equal to it is accepted either way.
    #[inline]
    fn verify(&self, protocol: u8, len: usize, field: u16, mode: ChecksumMode) -> Option<bool> {
        if mode == ChecksumMode::Skip {
            return Some(false);
        }
        let mut sum = self.ip.pseudo_header(protocol, len);
        let whole = self.bytes.get(..len);
        let accept_partial = mode == ChecksumMode::AcceptPartial || whole.is_none();
        if accept_partial && field == sum.fold() {
            return Some(true);
        }
        let Some(whole) = whole else { return Some(false) };
        sum.add_bytes(whole);
        sum.is_valid().then_some(false)
    }
}

#[inline(always)]
fn parse_tcp<H: NetHeader>(
    datagram: &Datagram<'_, H>,
    mode: ChecksumMode,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    let (fixed, options) = tcp::split_header(datagram.bytes)?;
    if datagram.eth[0] & 1 != 0 || datagram.ip.is_to_group() {
        return Err(DropReason::TcpNotUnicast);
    }
    let field = tcp::checksum_field(fixed);
    let partial = datagram
        .verify(ipv4::PROTOCOL_TCP, datagram.len, field, mode)
        .ok_or(DropReason::TcpBadChecksum)?;
    match TcpOptions::parse_usual(options) {
        Some(usual) => *into = tcp_packet(datagram, fixed, options.len(), usual, partial),
        None => *into = tcp_packet_with_options(datagram, fixed, options, partial),
    }
    Ok(())
}

/// Not inlined, so that the options of the usual packet stay in registers until they are stored.
#[inline(never)]
fn tcp_packet_with_options<H: NetHeader>(
    datagram: &Datagram<'_, H>,
    fixed: &[u8; tcp::HEADER_BYTES],
    options: &[u8],
    partial: bool,
) -> Parsed {
    tcp_packet(datagram, fixed, options.len(), TcpOptions::parse_any(options), partial)
}

#[inline(always)]
fn tcp_packet<H: NetHeader>(
    datagram: &Datagram<'_, H>,
    fixed: &[u8; tcp::HEADER_BYTES],
    options_len: usize,
    options: TcpOptions,
    partial: bool,
) -> Parsed {
    Parsed::Tcp(TcpPacket {
        ip: datagram.meta(),
        header: TcpHeader::with_options(fixed, options),
        payload: datagram.payload(tcp::HEADER_BYTES + options_len, datagram.len),
        partial,
    })
}

#[inline]
fn parse_udp<H: NetHeader>(
    datagram: &Datagram<'_, H>,
    mode: ChecksumMode,
) -> Result<Parsed, DropReason> {
    let header = UdpHeader::parse(datagram.bytes, datagram.len)?;
    let len = usize::from(header.length);
    // Zero means that the sender computed none (RFC 768).
    let mode = match (header.checksum, H::NO_UDP_CHECKSUM) {
        (0, Some(reason)) => return Err(reason),
        (0, None) => ChecksumMode::Skip,
        _ => mode,
    };
    let partial = datagram
        .verify(ipv4::PROTOCOL_UDP, len, header.checksum, mode)
        .ok_or(DropReason::UdpBadChecksum)?;
    Ok(Parsed::Udp(UdpPacket {
        ip: datagram.meta(),
        src_port: header.src_port,
        dst_port: header.dst_port,
        payload: datagram.payload(crate::udp::HEADER_BYTES, len),
        partial,
    }))
}

fn parse_icmp(datagram: &Datagram<'_, ipv4::Header>) -> Result<Parsed, DropReason> {
    let header = icmp::IcmpHeader::parse(datagram.bytes)?;
    let whole = datagram.bytes.len() == datagram.len;
    if whole && !Checksum::of(datagram.bytes).is_valid() {
        return Err(DropReason::IcmpBadChecksum);
    }
    let payload = datagram.payload(icmp::HEADER_BYTES, datagram.len);
    Ok(Parsed::Icmp(IcmpPacket { ip: datagram.meta(), header, payload }))
}

fn parse_icmp_v6(datagram: &Datagram<'_, ipv6::Header>) -> Result<Parsed, DropReason> {
    let header = icmp::IcmpHeader::parse(datagram.bytes)?;
    let (ip, bytes, len) = (datagram.meta(), datagram.bytes, datagram.len);
    let is_nd = matches!(header.kind, nd::SOLICITATION | nd::ADVERTISEMENT);
    if bytes.len() == len {
        let mut sum = datagram.ip.pseudo_header(ipv6::PROTOCOL_ICMP, len);
        sum.add_bytes(bytes);
        if !sum.is_valid() {
            return Err(DropReason::IcmpBadChecksum);
        }
    } else if is_nd {
        // It cannot be verified, and none is so long.
        return Err(DropReason::NdInvalid);
    }
    if is_nd {
        let hops = (!datagram.ip.is_atomic_fragment).then_some(ip.ttl);
        let body = &bytes[icmp::HEADER_BYTES..];
        return NdPacket::parse(&header, (ip.src, ip.dst), ip.eth_src, hops, body).map(Parsed::Nd);
    }
    if ip.src.is_unspecified() && !ip.dst.is_multicast() {
        return Err(DropReason::IpMartianSource);
    }
    let payload = datagram.payload(icmp::HEADER_BYTES, len);
    Ok(Parsed::Icmp(IcmpPacket { ip, header, payload }))
}
