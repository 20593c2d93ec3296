//! Whole frames to send: Ethernet, IPv4 and transport header in one go, in front of the payload.
use crate::ipv4::{self, Ipv4Emit};
use crate::{Checksum, IpAddr, MacAddr, TcpHeader, ethernet, icmp, tcp, udp};

/// Bytes of the longest headers that we send in front of a payload.
pub const HEADERS_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + tcp::HEADER_BYTES_MAX;

/// The link and network part of a packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Ethernet source: the device's address.
    pub eth_src: MacAddr,
    /// Ethernet destination: the next hop's address.
    pub eth_dst: MacAddr,
    /// IP source.
    pub src: IpAddr,
    /// IP destination.
    pub dst: IpAddr,
    /// Hop limit; [`ipv4::DEFAULT_TTL`] unless there is a reason.
    pub ttl: u8,
    /// The ECN bits, 0 to 3.
    pub ecn: u8,
    /// Identification of the datagram; sent with DF set, any value will do (RFC 6864).
    pub ident: u16,
}

impl FrameHeader {
    /// Writes Ethernet and IP header for `payload_len` bytes of `protocol`; answers their length.
    ///
    /// # Panics
    /// When `frame` is shorter than that.
    #[inline]
    pub fn emit(&self, frame: &mut [u8], protocol: u8, payload_len: usize) -> usize {
        let at = ethernet::emit(frame, self.eth_dst, self.eth_src, ethernet::TYPE_IPV4);
        let ip = Ipv4Emit {
            src: self.src,
            dst: self.dst,
            protocol,
            ttl: self.ttl,
            ecn: self.ecn,
            dont_fragment: true,
            ident: self.ident,
            payload_len,
        };
        at + ip.emit(&mut frame[at..])
    }

    /// Writes all headers of a TCP segment whose payload has `payload_len` bytes that sum to
    /// `payload` (it may lie behind the headers or anywhere else); answers their length.
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

    /// Writes all headers of an ICMP message whose body has `body_len` bytes that sum to `body`;
    /// answers their length.
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
        let at = self.emit(frame, ipv4::PROTOCOL_ICMP, icmp::HEADER_BYTES + body_len);
        at + header.emit(&mut frame[at..], body)
    }
}
