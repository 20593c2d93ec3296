//! A filter as flow rules of a network card: `struct ethtool_rx_flow_spec` of linux/ethtool.h.
//!
//! A rule compares fields under masks, so a range takes as many rules as it has aligned blocks, and
//! lists multiply. A card cannot select frames without a VLAN tag: there a rule takes more than its
//! filter, and the XDP program after it passes the rest on.
use ix_sys::interface::{LOCATION, LOCATION_ANY, RULE_BYTES};
use ix_vnic::{Direction, Field, Filter, Level, Ranges, UNTAGGED};

/// Most rules for one filter: cards have few.
const RULES_MAX: usize = 16;

// Flow types.
const TCP_V4_FLOW: u32 = 0x01;
const UDP_V4_FLOW: u32 = 0x02;
const TCP_V6_FLOW: u32 = 0x05;
const UDP_V6_FLOW: u32 = 0x06;
const IP_USER_FLOW: u32 = 0x0d;
const IPV6_USER_FLOW: u32 = 0x0e;
const ETHER_FLOW: u32 = 0x12;
/// With the VLAN's number.
const FLOW_EXT: u32 = 0x8000_0000;
/// With the Ethernet destination.
const FLOW_MAC_EXT: u32 = 0x4000_0000;
/// `ip_ver` of an `ethtool_usrip4_spec`.
const ETH_RX_NFC_IP4: u8 = 1;

// Offsets.
const VALUES: usize = 4;
/// Distance from a field to its mask: `m_u - h_u`, and `m_ext - h_ext`.
const TO_MASK: usize = 72;
const EXT: usize = 56;
const COOKIE: usize = 152;

/// Offset of a field, and its number of bytes.
type Place = (usize, usize);
const IP_SRC: Place = (VALUES, 4);
const IP_DST: Place = (VALUES + 4, 4);
const PORT_SRC: Place = (VALUES + 8, 2);
const PORT_DST: Place = (VALUES + 10, 2);
/// Of an `ethtool_usrip4_spec`.
const IP_VERSION: usize = VALUES + 13;
const IP_PROTOCOL: Place = (VALUES + 14, 1);
/// Of an `ethtool_tcpip6_spec`.
const IPV6_SRC: Place = (VALUES, 16);
const IPV6_DST: Place = (VALUES + 16, 16);
const PORT_SRC_V6: Place = (VALUES + 32, 2);
const PORT_DST_V6: Place = (VALUES + 34, 2);
/// Of an `ethtool_usrip6_spec`, behind four bytes of the payload and the traffic class.
const IPV6_PROTOCOL: Place = (VALUES + 37, 1);
/// Of an `ethhdr`.
const ETH_DST: Place = (VALUES, 6);
const ETH_SRC: Place = (VALUES + 6, 6);
const ETH_TYPE: Place = (VALUES + 12, 2);
/// Of an `ethtool_flow_ext`.
const EXT_DST: Place = (EXT + 2, 6);
const EXT_VLAN: Place = (EXT + 10, 2);

/// One rule, in the kernel's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowRule([u8; RULE_BYTES]);

impl FlowRule {
    /// Rules that send what a receive filter takes to a queue; `None` if rules cannot express the
    /// filter.
    pub fn of(filter: &Filter, queue: u32) -> Option<Vec<FlowRule>> {
        if filter.direction() != Direction::Receive || filter.fields().is_empty() {
            return None;
        }
        let mut flow_type = match filter.level() {
            Level::Tcp => TCP_V4_FLOW,
            Level::Udp => UDP_V4_FLOW,
            Level::Ipv4 => IP_USER_FLOW,
            Level::Tcp6 => TCP_V6_FLOW,
            Level::Udp6 => UDP_V6_FLOW,
            Level::Ipv6 => IPV6_USER_FLOW,
            Level::Ethernet => ETHER_FLOW,
        };
        let mut rules = vec![FlowRule([0; RULE_BYTES])];
        let mut says_something = filter.level() != Level::Ethernet;
        for (field, values) in filter.fields() {
            let Some((place, flag)) = place_of(filter.level(), *field, values)? else { continue };
            says_something = true;
            flow_type |= flag;
            rules = multiply(&rules, place, values)?;
        }
        let finish = |mut rule: FlowRule| {
            rule.put(0, &flow_type.to_ne_bytes());
            if filter.level() == Level::Ipv4 {
                rule.0[IP_VERSION] = ETH_RX_NFC_IP4;
            }
            rule.put(COOKIE, &u64::from(queue).to_ne_bytes());
            rule.put(LOCATION, &LOCATION_ANY.to_ne_bytes());
            rule
        };
        says_something.then(|| rules.into_iter().map(finish).collect())
    }

    /// The rule in the kernel's layout.
    pub fn bytes(&self) -> &[u8; RULE_BYTES] {
        &self.0
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn compare(&mut self, (at, bytes): Place, value: u128, mask: u128) {
        self.put(at, &value.to_be_bytes()[16 - bytes..]);
        self.put(at + TO_MASK, &mask.to_be_bytes()[16 - bytes..]);
    }
}

/// Offset of a field for a filter of this level, and the flag that it needs. Inner `None`: the flow
/// type implies the field; outer `None`: rules cannot check it.
#[allow(clippy::option_option)]
fn place_of(level: Level, field: Field, values: &Ranges) -> Option<Option<(Place, u32)>> {
    let ethernet = level == Level::Ethernet;
    let place = match field {
        Field::Vlan if values.contains(UNTAGGED.into()) => {
            // Only frames without a tag.
            return (values.as_slice() == [(UNTAGGED.into(), UNTAGGED.into())]).then_some(None);
        }
        Field::Vlan => return Some(Some((EXT_VLAN, FLOW_EXT))),
        Field::EtherType if ethernet => ETH_TYPE,
        Field::Protocol if level == Level::Ipv4 => IP_PROTOCOL,
        Field::Protocol if level == Level::Ipv6 => IPV6_PROTOCOL,
        Field::EtherType | Field::Protocol => return Some(None),
        Field::ServiceMac if ethernet => ETH_DST,
        Field::ServiceMac => return Some(Some((EXT_DST, FLOW_MAC_EXT))),
        Field::PeerMac if ethernet => ETH_SRC,
        Field::PeerMac => return None,
        Field::ServiceAddress if level.is_v6() => IPV6_DST,
        Field::PeerAddress if level.is_v6() => IPV6_SRC,
        Field::ServicePort if level.is_v6() => PORT_DST_V6,
        Field::PeerPort if level.is_v6() => PORT_SRC_V6,
        Field::ServiceAddress => IP_DST,
        Field::PeerAddress => IP_SRC,
        Field::ServicePort => PORT_DST,
        Field::PeerPort => PORT_SRC,
    };
    Some(Some((place, 0)))
}

/// Multiplies rules by the blocks of a field's values; `None`: too many.
fn multiply(rules: &[FlowRule], place: Place, values: &Ranges) -> Option<Vec<FlowRule>> {
    // A VLAN's number has twelve bits of its two bytes; the others are for the priority.
    let bits = if place == EXT_VLAN { 12 } else { 8 * place.1 as u32 };
    let full = u128::MAX >> (128 - bits);
    let mut made = Vec::new();
    for (low, high) in values.as_slice() {
        let (mut low, high) = (*low, (*high).min(full));
        while low <= high {
            // The largest aligned block that begins here and ends within the range.
            let mut block = 1u128;
            while low & block == 0 && block <= full >> 1 && low + (2 * block - 1) <= high {
                block *= 2;
            }
            let mask = full & !(block - 1);
            for mut rule in rules.iter().copied() {
                if made.len() == RULES_MAX {
                    return None;
                }
                rule.compare(place, low, mask);
                made.push(rule);
            }
            let Some(next) = low.checked_add(block) else { break };
            low = next;
        }
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_vnic::Header;
    use proptest::prelude::*;

    fn rules(text: &str) -> Option<Vec<FlowRule>> {
        FlowRule::of(&text.parse().expect(text), 3)
    }

    /// A rule of zeros with these bytes in it.
    fn bytes(parts: &[(usize, &[u8])]) -> FlowRule {
        let mut rule = FlowRule([0; RULE_BYTES]);
        rule.put(COOKIE, &[3]);
        rule.put(LOCATION, &[0xff; 4]);
        parts.iter().for_each(|(at, bytes)| rule.put(*at, bytes));
        rule
    }

    /// Offsets and numbers are those of linux/ethtool.h; values and masks are in network order.
    #[test]
    fn rules_are_what_the_kernel_reads() {
        let tcp = bytes(&[
            (0, &[0x01]),
            (4, &[10, 9, 0, 0, 10, 0, 0, 5, 0, 0, 0, 80]),
            (76, &[255, 255, 255, 0, 255, 255, 255, 255, 0, 0, 255, 255]),
        ]);
        assert_eq!(rules("rx tcp service 10.0.0.5:80 peer 10.9.0.0/24"), Some(vec![tcp]));
        let udp = bytes(&[
            (0, &[0x02, 0, 0, 0x40]),
            (12, &[0, 53]),
            (84, &[255, 255]),
            (58, &[2, 0, 0, 0, 0, 7]),
            (130, &[255; 6]),
        ]);
        assert_eq!(rules("rx udp peer *:53 service-mac 02:00:00:00:00:07"), Some(vec![udp]));
        let ip = bytes(&[
            (0, &[0x0d, 0, 0, 0x80]),
            (8, &[10, 0, 0, 5]),
            (80, &[255; 4]),
            (17, &[1, 132]),
            (90, &[255]),
            (66, &[0x01, 0x23]),
            (138, &[0x0f, 0xff]),
        ]);
        assert_eq!(rules("rx ip service 10.0.0.5 proto 132 vlan 291"), Some(vec![ip]));
        let ether = bytes(&[
            (0, &[0x12]),
            (4, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]),
            (76, &[255; 14]),
        ]);
        let text = "rx eth type 0x88b5 service 02:00:00:00:00:01 peer 02:00:00:00:00:02";
        assert_eq!(rules(text), Some(vec![ether]));
        let tcp6 = bytes(&[
            (0, &[0x05]),
            (4, &[0x20, 0x01, 0x0d, 0xb8]),
            (20, &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 80]),
            (76, &[255; 6]),
            (92, &[255; 16]),
            (110, &[255; 2]),
        ]);
        let text = "rx tcp service [2001:db8::5]:80 peer 2001:db8::/48";
        assert_eq!(rules(text), Some(vec![tcp6]));
        let ip6 = bytes(&[
            (0, &[0x0e]),
            (20, &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]),
            (92, &[255; 16]),
            (41, &[58]),
            (113, &[255]),
        ]);
        assert_eq!(rules("rx ip6 service 2001:db8::5 proto 58"), Some(vec![ip6]));
    }

    #[test]
    fn ranges_are_blocks_and_lists_multiply() {
        let ports = rules("rx tcp service 10.0.0.5:80,8000-8003").expect("two blocks");
        let masks: Vec<_> = ports.iter().map(|rule| &rule.0[86..88]).collect();
        assert_eq!(masks, [[255, 255], [255, 252]]);
        assert_eq!(rules("rx tcp service 10.0.0.1,10.0.0.4:1-6").map(|r| r.len()), Some(8));
        for text in [
            "rx tcp service 10.0.0.5:1-65534",    // 30 blocks
            "rx eth",                             // all of it
            "rx eth vlan *",                      // all of it
            "rx ip service 10.0.0.5 vlan none,7", // with a tag or without
            "rx tcp service *:80 peer-mac 02:00:00:00:00:02",
            "tx tcp service 10.0.0.5:80",
        ] {
            assert_eq!(rules(text), None, "{text}");
        }
    }

    /// What the card would see of a packet, at a rule's offsets.
    fn fields(level: Level, header: &Header) -> Option<[u8; RULE_BYTES]> {
        let mut seen = FlowRule([0; RULE_BYTES]);
        seen.put(EXT_DST.0, &header.eth_dst);
        if header.vlan != UNTAGGED {
            seen.put(EXT_VLAN.0, &header.vlan.to_be_bytes());
        }
        if level == Level::Ethernet {
            seen.put(ETH_DST.0, &header.eth_dst);
            seen.put(ETH_SRC.0, &header.eth_src);
            seen.put(ETH_TYPE.0, &header.ethertype.to_be_bytes());
            return Some(seen.0);
        }
        let ip = header.ip?;
        seen.put(IP_SRC.0, &(ip.src as u32).to_be_bytes());
        seen.put(IP_DST.0, &(ip.dst as u32).to_be_bytes());
        seen.0[IP_PROTOCOL.0] = ip.protocol;
        if level != Level::Ipv4 {
            let wanted = if level == Level::Tcp { 6 } else { 17 };
            let (src, dst) = ip.ports.filter(|_| ip.protocol == wanted)?;
            seen.put(PORT_SRC.0, &src.to_be_bytes());
            seen.put(PORT_DST.0, &dst.to_be_bytes());
        }
        Some(seen.0)
    }

    proptest! {
        /// The rules together take exactly what the filter takes, among frames without a tag.
        #[test]
        fn rules_take_what_their_filter_takes(
            ports in (0u16..20, 0u16..20),
            src in 0u128..8,
            dst in 0u128..8,
            protocol in prop::sample::select(vec![1u8, 6, 17]),
            text in prop::sample::select(vec![
                "rx tcp service 10.0.0.1-10.0.0.6:3-11",
                "rx udp service 10.0.0.2,10.0.0.5 peer 10.0.0.0/30:0-7",
                "rx ip service 10.0.0.4/30 proto 0-6",
                "rx eth type 0x0800-0x0803",
                "rx tcp peer *:17",
            ]),
        ) {
            let filter: Filter = text.parse().expect(text);
            let base = 0x0a00_0000;
            let (src, dst) = (base + src, base + dst);
            let ports = (protocol != 1).then_some(ports);
            let header = Header {
                eth_src: [2; 6],
                eth_dst: [4; 6],
                vlan: UNTAGGED,
                ethertype: 0x0800,
                ip: Some(ix_vnic::IpHeader { src, dst, protocol, ports }),
                arp: None,
                nd: None,
            };
            let seen = fields(filter.level(), &header);
            let takes = |rule: &FlowRule, seen: &[u8; RULE_BYTES]| {
                let places = (VALUES..VALUES + TO_MASK).filter(|at| *at != IP_VERSION);
                places.into_iter().all(|at| (seen[at] ^ rule.0[at]) & rule.0[at + TO_MASK] == 0)
            };
            let rules = FlowRule::of(&filter, 0).expect("few rules");
            let taken = seen.is_some_and(|seen| rules.iter().any(|rule| takes(rule, &seen)));
            prop_assert_eq!(taken, filter.matches(&header), "{} {:?}", text, header);
        }
    }
}
