//! Router advertisements and solicitations (RFC 4861 section 4, with the preferences of RFC 4191).
use crate::icmp::IcmpHeader;
use crate::{Checksum, DropReason, FrameHeader, IcmpPacket, IpAddr, MacAddr, be32, icmp, ipv6};

/// ICMPv6 type of a router solicitation.
pub const SOLICITATION: u8 = 133;
/// ICMPv6 type of a router advertisement.
pub const ADVERTISEMENT: u8 = 134;

/// Nobody but a host of the link can send a packet that arrives with this hop limit.
const HOP_LIMIT: u8 = 255;
/// Reachable and retransmission time stand between the header and the options.
const TIMES_BYTES: usize = 8;
const UNIT_BYTES: usize = 8;
const OPTION_SOURCE_LINK: u8 = 1;
const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
const PREFIX_BYTES: usize = 32;
/// Most prefixes that are read of one advertisement.
pub const PREFIXES_MAX: usize = 8;
/// A lifetime without end.
pub const INFINITE_S: u32 = u32::MAX;

/// Bytes of the longest frame that [`emit_solicitation`] writes.
pub const FRAME_BYTES_MAX: usize =
    crate::ethernet::HEADER_BYTES + ipv6::HEADER_BYTES + icmp::HEADER_BYTES + UNIT_BYTES;

/// Which router is better than others (RFC 4191 section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Preference {
    /// Only where there is no other.
    Low,
    /// As routers are that say nothing of it.
    Medium,
    /// Before all others.
    High,
}

/// A prefix of the link (section 4.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    /// Its bits; all others are zero.
    pub prefix: IpAddr,
    /// How many bits.
    pub bits: u8,
    /// Hosts with this prefix are on the link.
    pub on_link: bool,
    /// Hosts may make addresses of it (RFC 4862).
    pub autonomous: bool,
    /// How long this holds, seconds; [`INFINITE_S`]: for ever.
    pub valid_s: u32,
    /// How long such addresses begin connections.
    pub preferred_s: u32,
}

impl Prefix {
    const NONE: Prefix = Prefix {
        prefix: IpAddr::UNSPECIFIED_V6,
        bits: 0,
        on_link: false,
        autonomous: false,
        valid_s: 0,
        preferred_s: 0,
    };
}

/// What a router says of itself and of its link. Options that a host has no use for are skipped
/// (RFC 8106: it asks no name servers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement {
    /// The router's link-local address.
    pub router: IpAddr,
    /// The hop limit for packets; 0: it does not say.
    pub hop_limit: u8,
    /// Which router is better.
    pub preference: Preference,
    /// How long it serves as default router, seconds; 0: not at all.
    pub lifetime_s: u16,
    /// Its Ethernet address, if it tells.
    pub link: Option<MacAddr>,
    /// Longest packet of the link, bytes, if it tells.
    pub mtu: Option<u32>,
    prefixes: [Prefix; PREFIXES_MAX],
    count: usize,
}

impl Advertisement {
    /// Whether a message is an advertisement, or pretends to be one.
    pub fn is(packet: &IcmpPacket) -> bool {
        packet.header.kind == ADVERTISEMENT && packet.ip.dst.is_v6()
    }

    /// Reads an advertisement whose checksum is right, and checks what section 6.1.2 demands.
    /// `frame` is the frame that `packet` was parsed from, or a copy of it. Extension headers are
    /// refused: nobody needs them here but who hides (RFC 6980, RFC 7113).
    pub fn parse(frame: &[u8], packet: &IcmpPacket) -> Result<Advertisement, DropReason> {
        let bad = DropReason::NdInvalid;
        let IcmpPacket { ip, header, payload } = packet;
        let plain = usize::from(ip.header_len) == ipv6::HEADER_BYTES && payload.more == 0;
        if !ip.src.is_link_local_v6() || ip.ttl != HOP_LIMIT || header.code != 0 || !plain {
            return Err(bad);
        }
        let (_, options) = payload.of(frame).split_at_checked(TIMES_BYTES).ok_or(bad)?;
        let [hop_limit, flags, high, low] = header.rest;
        let lifetime_s = u16::from_be_bytes([high, low]);
        let preference = match flags >> 3 & 3 {
            1 => Preference::High,
            3 => Preference::Low,
            // RFC 4191 section 2.2: the reserved value counts as medium.
            _ => Preference::Medium,
        };
        let mut read = Advertisement {
            router: ip.src,
            hop_limit,
            preference,
            lifetime_s,
            link: None,
            mtu: None,
            prefixes: [Prefix::NONE; PREFIXES_MAX],
            count: 0,
        };
        read.read_options(options).ok_or(bad)?;
        Ok(read)
    }

    /// The prefixes.
    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes[..self.count]
    }

    /// `None`: an option has no octets, is cut off, or is not as long as its kind is.
    fn read_options(&mut self, mut options: &[u8]) -> Option<()> {
        while let [kind, units, ..] = *options {
            let len = UNIT_BYTES * usize::from(units);
            let option = options.get(..len).filter(|option| !option.is_empty())?;
            options = &options[len..];
            match kind {
                OPTION_SOURCE_LINK => {
                    let &[_, _, a, b, c, d, e, f] = option.first_chunk()?;
                    let mac = [a, b, c, d, e, f];
                    self.link = Some(mac).filter(|mac| !crate::is_group_mac(mac));
                    self.link?;
                }
                OPTION_MTU => self.mtu = Some(be32(option.first_chunk::<UNIT_BYTES>()?, 4)),
                OPTION_PREFIX => {
                    let prefix = read_prefix(option)?;
                    if let Some(place) = self.prefixes.get_mut(self.count) {
                        *place = prefix;
                        self.count += 1;
                    }
                }
                _ => {}
            }
        }
        options.is_empty().then_some(())
    }
}

/// Section 4.6.2; `None`: such a prefix cannot be.
fn read_prefix(option: &[u8]) -> Option<Prefix> {
    const ON_LINK: u8 = 0x80;
    const AUTONOMOUS: u8 = 0x40;
    let option: &[u8; PREFIX_BYTES] = option.try_into().ok()?;
    let (bits, flags) = (option[2], option[3]);
    let (valid_s, preferred_s) = (be32(option, 4), be32(option, 8));
    if bits > 128 || preferred_s > valid_s {
        return None;
    }
    let octets: [u8; 16] = core::array::from_fn(|at| option[16 + at]);
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    let prefix = IpAddr((u128::from_be_bytes(octets) & mask).to_be_bytes());
    let (on_link, autonomous) = (flags & ON_LINK != 0, flags & AUTONOMOUS != 0);
    Some(Prefix { prefix, bits, on_link, autonomous, valid_s, preferred_s })
}

/// Writes the frame of a solicitation to all routers; returns its length. The Ethernet address is
/// told unless `src` is unspecified (section 4.1).
///
/// # Panics
/// When `frame` is shorter than [`FRAME_BYTES_MAX`].
pub fn emit_solicitation(frame: &mut [u8], eth_src: MacAddr, src: IpAddr) -> usize {
    let dst = crate::mld::ALL_ROUTERS;
    let eth_dst = ipv6::group_mac(dst);
    let link = FrameHeader { eth_src, eth_dst, src, dst, ttl: HOP_LIMIT, tos: 0, ident: 0 };
    let [a, b, c, d, e, f] = eth_src;
    let option = [OPTION_SOURCE_LINK, 1, a, b, c, d, e, f];
    let body: &[u8] = if src.is_unspecified() { &[] } else { &option };
    let header = IcmpHeader { kind: SOLICITATION, code: 0, rest: [0; 4] };
    let at = link.emit_icmp(frame, &header, body.len(), Checksum::of(body));
    frame[at..at + body.len()].copy_from_slice(body);
    at + body.len()
}
