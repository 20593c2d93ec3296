//! Builds whole frames: Ethernet, IP and transport header at once, in front of the payload.
use crate::checksum::fold_16;
use crate::ipv4::{self, Ipv4Emit};
use crate::ipv6::{self, Ipv6Emit};
use crate::{
    Checksum, IpAddr, MacAddr, Seq, TcpFlags, TcpHeader, be32, ethernet, icmp, put_words, tcp, udp,
};

/// Bytes of the longest headers that the dataplane sends in front of a payload.
pub const HEADERS_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ipv6::HEADER_BYTES + tcp::HEADER_BYTES_MAX;

/// The same over IPv4.
pub const HEADERS_BYTES_MAX_V4: usize =
    ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + tcp::HEADER_BYTES_MAX;

/// Bytes of Ethernet and IP header in front of what is sent to an address.
#[inline]
pub fn headers_bytes_to(address: IpAddr) -> usize {
    let ip = if address.is_v6() { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
    ethernet::HEADER_BYTES + ip
}

/// The Ethernet and IP part of a packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Ethernet source: the device's address.
    pub eth_src: MacAddr,
    /// Ethernet destination: the next hop's address.
    pub eth_dst: MacAddr,
    /// IP source, of the same family as the destination.
    pub src: IpAddr,
    /// IP destination.
    pub dst: IpAddr,
    /// Hop limit, usually [`ipv4::DEFAULT_TTL`].
    pub ttl: u8,
    /// Type of service: differentiated services (RFC 2474) in the upper six bits, ECN in the lower
    /// two.
    pub tos: u8,
    /// Of IPv4 the identification, 16 bits; with DF set it may have any value (RFC 6864). Of IPv6
    /// the flow label, 20 bits; 0 is none (RFC 6437).
    pub ident: u32,
}

/// Bytes of a TCP header whose only option is a timestamp.
pub(crate) const USUAL_TCP_BYTES: usize = tcp::HEADER_BYTES + tcp::TIMESTAMP_BYTES;

/// Bytes of all headers in front of a [`UsualTcp`] segment over IPv4.
pub const USUAL_HEADERS_BYTES: usize =
    ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + USUAL_TCP_BYTES;

/// The same over IPv6.
pub const USUAL_HEADERS_BYTES_V6: usize =
    ethernet::HEADER_BYTES + ipv6::HEADER_BYTES + USUAL_TCP_BYTES;

/// The header of a segment whose only option is a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsualTcp {
    /// Our port.
    pub src_port: u16,
    /// The peer's port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Control bits, not URG.
    pub flags: TcpFlags,
    /// Window field.
    pub window: u16,
    /// TSval and TSecr (RFC 7323 section 3).
    pub timestamp: (u32, u32),
}

impl UsualTcp {
    /// The header, its checksum 0.
    #[inline(always)]
    fn words(&self) -> [u32; USUAL_TCP_BYTES / 4] {
        let offset_flags = (USUAL_TCP_BYTES as u32 / 4) << 28 | u32::from(self.flags.0) << 16;
        [
            u32::from(self.src_port) << 16 | u32::from(self.dst_port),
            self.seq.0,
            self.ack.0,
            offset_flags | u32::from(self.window),
            0,
            u32::from_be_bytes(tcp::TIMESTAMP_ONLY),
            self.timestamp.0,
            self.timestamp.1,
        ]
    }
}

#[inline]
fn sum_of(words: &[u32]) -> u64 {
    words.iter().map(|word| u64::from(*word)).sum()
}

impl FrameHeader {
    /// Writes Ethernet and IP header for `payload_len` bytes of `protocol`; returns their length.
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    #[inline]
    pub fn emit(&self, frame: &mut [u8], protocol: u8, payload_len: usize) -> usize {
        if self.dst.is_v6() {
            return self.emit_v6(frame, protocol, payload_len);
        }
        let at = ethernet::emit(frame, self.eth_dst, self.eth_src, ethernet::TYPE_IPV4);
        let ip = Ipv4Emit {
            src: self.src,
            dst: self.dst,
            protocol,
            ttl: self.ttl,
            tos: self.tos,
            dont_fragment: true,
            ident: self.ident as u16,
            payload_len,
        };
        at + ip.emit(&mut frame[at..])
    }

    #[inline]
    fn emit_v6(&self, frame: &mut [u8], protocol: u8, payload_len: usize) -> usize {
        let at = ethernet::emit(frame, self.eth_dst, self.eth_src, ethernet::TYPE_IPV6);
        let ip = Ipv6Emit {
            src: self.src,
            dst: self.dst,
            protocol,
            hop_limit: self.ttl,
            class: self.tos,
            label: self.ident,
            payload_len,
        };
        at + ip.emit(&mut frame[at..])
    }

    /// As [`Self::emit`], for a fragment of an IPv4 datagram: without DF, from octet `offset` of
    /// the datagram on (a multiple of eight), with more fragments to come or not (RFC 791 section
    /// 3.2).
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    pub fn emit_fragment(
        &self,
        frame: &mut [u8],
        protocol: u8,
        payload_len: usize,
        (offset, more): (usize, bool),
    ) -> usize {
        debug_assert!(offset.is_multiple_of(8) && offset + payload_len <= usize::from(u16::MAX));
        let len = self.emit(frame, protocol, payload_len);
        let header = &mut frame[ethernet::HEADER_BYTES..len];
        let more = if more { ipv4::FLAG_MORE_FRAGMENTS } else { 0 };
        header[6..8].copy_from_slice(&(more | (offset / 8) as u16).to_be_bytes());
        header[10..12].fill(0);
        let check = Checksum::of(header).finish();
        header[10..12].copy_from_slice(&check.to_be_bytes());
        len
    }

    /// The same for a fragment of an IPv6 datagram with this identification (RFC 8200 section 4.5).
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    pub fn emit_fragment_v6(
        &self,
        frame: &mut [u8],
        protocol: u8,
        payload_len: usize,
        (offset, more): (usize, bool),
        ident: u32,
    ) -> usize {
        debug_assert!(offset.is_multiple_of(8) && offset + payload_len <= usize::from(u16::MAX));
        let at = self.emit_v6(frame, ipv6::FRAGMENT, ipv6::FRAGMENT_BYTES + payload_len);
        let header = crate::head::<{ ipv6::FRAGMENT_BYTES }>(&mut frame[at..]);
        let place = (offset as u16 | u16::from(more)).to_be_bytes();
        let [a, b, c, d] = ident.to_be_bytes();
        *header = [protocol, 0, place[0], place[1], a, b, c, d];
        at + ipv6::FRAGMENT_BYTES
    }

    /// Writes all headers of a TCP segment; returns their length. The payload has `payload_len`
    /// bytes, which sum to `payload`; it may be behind the headers or anywhere else.
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    #[inline]
    pub fn emit_tcp(
        &self,
        frame: &mut [u8],
        header: &TcpHeader,
        payload_len: usize,
        payload: Checksum,
    ) -> usize {
        let header_len = header.len();
        let at = self.emit(frame, ipv4::PROTOCOL_TCP, header_len + payload_len);
        let segment = &mut frame[at..at + header_len];
        at + header.emit_with_checksum(segment, self.src, self.dst, payload_len, payload)
    }

    /// As [`Self::emit_tcp`], for nearly every segment of an established connection over IPv4. Each
    /// word is computed once, and used for the packet and for both sums.
    #[inline]
    pub fn emit_usual_tcp(
        &self,
        frame: &mut [u8; USUAL_HEADERS_BYTES],
        header: &UsualTcp,
        payload_len: usize,
        payload: Checksum,
    ) {
        let tcp_len = (USUAL_TCP_BYTES + payload_len) as u32;
        let (src, dst) = (be32(&self.src.0, 12), be32(&self.dst.0, 12));
        let addresses = u64::from(src) + u64::from(dst);
        let mut ip = [
            0x45 << 24 | u32::from(self.tos) << 16 | (ipv4::HEADER_BYTES as u32 + tcp_len),
            self.ident << 16 | u32::from(ipv4::FLAG_DONT_FRAGMENT),
            u32::from(self.ttl) << 24 | u32::from(ipv4::PROTOCOL_TCP) << 16,
            src,
            dst,
        ];
        ip[2] |= u32::from(!fold_16(sum_of(&ip[..3]) + addresses));
        let mut tcp = header.words();
        let pseudo = addresses + u64::from(u32::from(ipv4::PROTOCOL_TCP) + tcp_len);
        let sum = sum_of(&tcp) + pseudo + u64::from(payload.fold());
        tcp[4] = u32::from(!fold_16(sum)) << 16;
        let at = ethernet::emit(frame, self.eth_dst, self.eth_src, ethernet::TYPE_IPV4);
        put_words(&mut frame[at..at + ipv4::HEADER_BYTES], &ip);
        put_words(&mut frame[at + ipv4::HEADER_BYTES..], &tcp);
    }

    /// The same over IPv6.
    #[inline]
    pub fn emit_usual_tcp_v6(
        &self,
        frame: &mut [u8; USUAL_HEADERS_BYTES_V6],
        header: &UsualTcp,
        payload_len: usize,
        payload: Checksum,
    ) {
        let tcp_len = (USUAL_TCP_BYTES + payload_len) as u32;
        let mut words = header.words();
        let pseudo = payload.with_addresses(self.src, self.dst);
        let sum = sum_of(&words)
            + u64::from(u32::from(ipv4::PROTOCOL_TCP) + tcp_len)
            + u64::from(pseudo.fold());
        words[4] = u32::from(!fold_16(sum)) << 16;
        let at = self.emit_v6(frame, ipv4::PROTOCOL_TCP, tcp_len as usize);
        put_words(&mut frame[at..], &words);
    }

    /// Writes all headers of a UDP datagram from `src_port` to `dst_port`; otherwise as
    /// [`Self::emit_tcp`].
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    #[inline]
    pub fn emit_udp(
        &self,
        frame: &mut [u8],
        src_port: u16,
        dst_port: u16,
        payload_len: usize,
        payload: Checksum,
    ) -> usize {
        let at = self.emit(frame, ipv4::PROTOCOL_UDP, udp::HEADER_BYTES + payload_len);
        let (src, dst) = ((self.src, src_port), (self.dst, dst_port));
        at + udp::emit(&mut frame[at..], src, dst, payload_len, payload)
    }

    /// Writes all headers of an ICMP message, of ICMPv6 over IPv6; returns their length. The body
    /// has `body_len` bytes, which sum to `body`.
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    pub fn emit_icmp(
        &self,
        frame: &mut [u8],
        header: &icmp::IcmpHeader,
        body_len: usize,
        body: Checksum,
    ) -> usize {
        let len = icmp::HEADER_BYTES + body_len;
        if self.dst.is_v6() {
            let at = self.emit_v6(frame, ipv6::PROTOCOL_ICMP, len);
            // RFC 4443 section 2.3: with the pseudo-header.
            let mut sum = Checksum::pseudo_header(self.src, self.dst, ipv6::PROTOCOL_ICMP, len);
            sum.append(body);
            return at + header.emit(&mut frame[at..], sum);
        }
        let at = self.emit(frame, ipv4::PROTOCOL_ICMP, len);
        at + header.emit(&mut frame[at..], body)
    }
}
