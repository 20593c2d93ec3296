//! The reasons why the parser refuses a packet.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Why the parser refuses a packet. Each reason is a drop counter: [`DropReason::index`] is
        /// its index in an array of [`DropReason::COUNT`] counters, [`DropReason::name`] its name.
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

            /// One sentence for the user: when the packet is dropped for this reason.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(DropReason::$variant => concat!($($doc),+).trim_ascii(),)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The frame is shorter than an Ethernet header.
    EthTruncated = "eth_truncated",
    /// The sender's Ethernet address is a group address.
    EthBadSource = "eth_bad_source",
    /// The frame has the tag of a VLAN, 802.1Q or 802.1ad, and the device is in none (`vlan=N`).
    EthVlan = "eth_vlan",
    /// The EtherType is none of IPv4, IPv6 and ARP, or the field is an 802.3 length.
    EthUnknownType = "eth_unknown_type",
    /// The frame is for another Ethernet address.
    EthNotForUs = "eth_not_for_us",
    /// The packet is shorter than an ARP packet for Ethernet and IPv4.
    ArpTruncated = "arp_truncated",
    /// The ARP packet is for other hardware than Ethernet or another protocol than IPv4.
    ArpUnsupported = "arp_unsupported",
    /// The ARP operation is neither request nor reply.
    ArpBadOperation = "arp_bad_operation",
    /// The sender's address in the ARP packet is a group, zero or loopback address.
    ArpBadSender = "arp_bad_sender",
    /// The packet is shorter than an IP header.
    IpTruncated = "ip_truncated",
    /// The version field is not that of the EtherType.
    IpBadVersion = "ip_bad_version",
    /// The header length is below 20 bytes or beyond the packet.
    IpBadHeaderLength = "ip_bad_header_length",
    /// The total length is shorter than the header or longer than the received packet.
    IpBadTotalLength = "ip_bad_total_length",
    /// The header checksum is wrong.
    IpBadChecksum = "ip_bad_checksum",
    /// An IP option is cut off or has an impossible length.
    IpBadOption = "ip_bad_option",
    /// The packet has a source route (RFC 7126 sections 4.3 and 4.4: drop by default).
    IpSourceRoute = "ip_source_route",
    /// A fragment that is too short or overlaps others, or whose datagram is too long, has too many
    /// fragments, or was not complete in time.
    IpFragment = "ip_fragment",
    /// The source address is multicast, broadcast, loopback, the dataplane's own, or in 0.0.0.0/8
    /// (RFC 1122 3.2.1.3); of IPv6 also the unspecified one or a mapped IPv4 address.
    IpMartianSource = "ip_martian_source",
    /// The destination is a loopback address or in 0.0.0.0/8, which must not be on a wire; of IPv6
    /// also the unspecified one or a mapped IPv4 address.
    IpMartianDestination = "ip_martian_destination",
    /// An IPv6 extension header is cut off, in the wrong place, or one of more than six or of more
    /// than 200 bytes (RFC 8200, RFC 8504 section 5.3).
    Ip6Extension = "ip6_extension",
    /// An IPv6 option is not known, and says that the packet is to be dropped then (RFC 8200
    /// section 4.2).
    Ip6Option = "ip6_option",
    /// An IPv6 packet has a route that is not at its end (RFC 5095).
    Ip6Routing = "ip6_routing",
    /// A fragment of an IPv6 packet that overlaps others, or does not have all headers though it is
    /// the first one (RFC 7112), or whose packet is too long, has too many fragments, or was not
    /// complete in time.
    Ip6Fragment = "ip6_fragment",
    /// The packet is for another IP address.
    IpNotForUs = "ip_not_for_us",
    /// The IP protocol is neither TCP, UDP nor ICMP.
    IpUnknownProtocol = "ip_unknown_protocol",
    /// The message is shorter than an ICMP header.
    IcmpTruncated = "icmp_truncated",
    /// The ICMP checksum is wrong.
    IcmpBadChecksum = "icmp_bad_checksum",
    /// A message of Neighbour Discovery that came from beyond the link, is cut off, or contradicts
    /// itself (RFC 4861 section 7.1).
    NdInvalid = "nd_invalid",
    /// A query of Multicast Listener Discovery that came from beyond the link, has no Router Alert
    /// option, is cut off, or asks for what is no group (RFC 3810 sections 5.1 and 6.2).
    MldInvalid = "mld_invalid",
    /// A query of the Internet Group Management Protocol that came from beyond the link, has a
    /// wrong checksum, is cut off, or asks for what is no group (RFC 3376 sections 4.1 and 9.1).
    IgmpInvalid = "igmp_invalid",
    /// The datagram is shorter than a UDP header.
    UdpTruncated = "udp_truncated",
    /// The UDP length is below 8 bytes or longer than the IP payload.
    UdpBadLength = "udp_bad_length",
    /// The UDP checksum is wrong; over IPv6 also if there is none (RFC 8200 section 8.1).
    UdpBadChecksum = "udp_bad_checksum",
    /// The segment is shorter than a TCP header.
    TcpTruncated = "tcp_truncated",
    /// The TCP data offset is below 20 bytes or beyond the segment.
    TcpBadDataOffset = "tcp_bad_data_offset",
    /// The TCP checksum is wrong.
    TcpBadChecksum = "tcp_bad_checksum",
    /// A TCP segment to a multicast or broadcast address, of Ethernet or IP (RFC 9293 section
    /// 3.9.2.3, MUST-57).
    TcpNotUnicast = "tcp_not_unicast",
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's index in [`Self::ALL`].
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
