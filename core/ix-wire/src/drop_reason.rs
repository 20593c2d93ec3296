//! Every way a packet can be refused.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Why a packet was refused. Each reason is a drop counter: [`DropReason::index`] is its
        /// place in an array of [`DropReason::COUNT`], [`DropReason::name`] its name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their indices.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The counter's name, as metrics and `ix ctl` show it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $name,)*
                }
            }

            /// One sentence for people: when this happens.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(DropReason::$variant => concat!($($doc),+).trim_ascii(),)*
                }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than an Ethernet header.
    EthTruncated = "eth_truncated",
    /// The sender's Ethernet address is a group address.
    EthBadSource = "eth_bad_source",
    /// The frame carries an 802.1Q or 802.1ad tag; VLANs belong to the device below.
    EthVlan = "eth_vlan",
    /// An IPv6 packet; there is no IPv6 yet.
    EthIpv6 = "eth_ipv6",
    /// Neither IPv4 nor ARP (802.3 length fields included).
    EthUnknownType = "eth_unknown_type",
    /// The frame is for another Ethernet address.
    EthNotForUs = "eth_not_for_us",
    /// Shorter than an ARP packet for Ethernet and IPv4.
    ArpTruncated = "arp_truncated",
    /// ARP for other hardware or another protocol than Ethernet and IPv4.
    ArpUnsupported = "arp_unsupported",
    /// Neither an ARP request nor a reply.
    ArpBadOperation = "arp_bad_operation",
    /// The sender names itself by a group, zero or loopback address.
    ArpBadSender = "arp_bad_sender",
    /// Shorter than an IPv4 header.
    IpTruncated = "ip_truncated",
    /// The version field is not 4.
    IpBadVersion = "ip_bad_version",
    /// The header length is below 20 bytes or beyond the packet.
    IpBadHeaderLength = "ip_bad_header_length",
    /// The total length is shorter than the header or longer than what came.
    IpBadTotalLength = "ip_bad_total_length",
    /// The header checksum is wrong.
    IpBadChecksum = "ip_bad_checksum",
    /// An option is cut off or has an impossible length.
    IpBadOption = "ip_bad_option",
    /// A source-routed packet (RFC 7126 section 4.3 and 4.4: drop by default).
    IpSourceRoute = "ip_source_route",
    /// A fragment that is too short, overlaps others, or belongs to a datagram that is too long, in
    /// too many pieces, or never became whole.
    IpFragment = "ip_fragment",
    /// The source address is multicast, broadcast, loopback, our own, or in 0.0.0.0/8
    /// (RFC 1122 3.2.1.3).
    IpMartianSource = "ip_martian_source",
    /// The destination is loopback or in 0.0.0.0/8, which may not be seen on a wire.
    IpMartianDestination = "ip_martian_destination",
    /// The packet is for another IP address.
    IpNotForUs = "ip_not_for_us",
    /// Neither TCP, UDP nor ICMP.
    IpUnknownProtocol = "ip_unknown_protocol",
    /// Shorter than an ICMP header.
    IcmpTruncated = "icmp_truncated",
    /// The ICMP checksum is wrong.
    IcmpBadChecksum = "icmp_bad_checksum",
    /// Shorter than a UDP header.
    UdpTruncated = "udp_truncated",
    /// The UDP length is below 8 bytes or beyond the IP packet.
    UdpBadLength = "udp_bad_length",
    /// The UDP checksum is wrong.
    UdpBadChecksum = "udp_bad_checksum",
    /// Shorter than a TCP header.
    TcpTruncated = "tcp_truncated",
    /// The data offset is below 20 bytes or beyond the segment.
    TcpBadDataOffset = "tcp_bad_data_offset",
    /// The TCP checksum is wrong.
    TcpBadChecksum = "tcp_bad_checksum",
    /// A segment to a group address, of Ethernet or IP (RFC 9293 section 3.9.2.3, MUST-57).
    TcpNotUnicast = "tcp_not_unicast",
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's place among [`Self::ALL`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn indices_and_names_are_unique_and_dense() {
        let names: HashSet<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), DropReason::COUNT);
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i);
            assert!(
                reason
                    .name()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            assert!(reason.describe().ends_with(['.', ')']) && !reason.describe().starts_with(' '));
        }
    }
}
