//! Neighbour Discovery (RFC 4861): solicitations and advertisements of neighbours.
use crate::icmp::IcmpHeader;
use crate::{Checksum, DropReason, FrameHeader, IpAddr, MacAddr, icmp, ipv6, is_group_mac};

/// ICMPv6 type of a Neighbour Solicitation.
pub const SOLICITATION: u8 = 135;
/// ICMPv6 type of a Neighbour Advertisement.
pub const ADVERTISEMENT: u8 = 136;

/// Nobody but a host of the link can send a packet that arrives with this hop limit (section 3.1).
const HOP_LIMIT: u8 = 255;
const TARGET_BYTES: usize = 16;
const OPTION_SOURCE_LINK: u8 = 1;
const OPTION_TARGET_LINK: u8 = 2;
/// Options have a multiple of eight octets. One has room for an Ethernet address.
const UNIT_BYTES: usize = 8;

const FLAG_ROUTER: u8 = 0x80;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

/// Bytes of the longest frame that [`NdPacket::emit_frame`] writes.
pub const FRAME_BYTES_MAX: usize = crate::ethernet::HEADER_BYTES
    + ipv6::HEADER_BYTES
    + icmp::HEADER_BYTES
    + TARGET_BYTES
    + UNIT_BYTES;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NdKind {
    /// Who has the target address? (Section 4.3.)
    Solicitation,
    /// The target address is at `link` (section 4.4).
    Advertisement {
        /// The sender is a router.
        router: bool,
        /// It answers a solicitation that was sent to one host.
        solicited: bool,
        /// An address that is known already is to be replaced.
        overrides: bool,
    },
}

/// A neighbour's message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NdPacket {
    /// What it is.
    pub kind: NdKind,
    /// IP source; `::` in a check for duplicate addresses (RFC 4862 section 5.4).
    pub src: IpAddr,
    /// IP destination.
    pub dst: IpAddr,
    /// Ethernet source.
    pub eth_src: MacAddr,
    /// The address that is asked for, or told about.
    pub target: IpAddr,
    /// The sender's Ethernet address, if the message has it: of a solicitation that of its source,
    /// of an advertisement that of the target.
    pub link: Option<MacAddr>,
}

impl NdPacket {
    /// Reads a message whose checksum is right, and checks what sections 7.1.1 and 7.1.2 demand.
    /// `hops` is the hop limit; `None`: the message came in a fragment.
    pub(crate) fn parse(
        header: &IcmpHeader,
        (src, dst): (IpAddr, IpAddr),
        eth_src: MacAddr,
        hops: Option<u8>,
        body: &[u8],
    ) -> Result<Self, DropReason> {
        let bad = DropReason::NdInvalid;
        // RFC 6980 section 5: not even one fragment that is the whole message.
        if hops != Some(HOP_LIMIT) || header.code != 0 {
            return Err(bad);
        }
        let (target, options) = body.split_first_chunk::<TARGET_BYTES>().ok_or(bad)?;
        let target = IpAddr(*target);
        if target.is_multicast() || target.is_unspecified() || target.as_v4().is_some() {
            return Err(bad);
        }
        let (kind, wanted) = if header.kind == SOLICITATION {
            (NdKind::Solicitation, OPTION_SOURCE_LINK)
        } else {
            let has = |flag: u8| header.rest[0] & flag != 0;
            let (router, overrides) = (has(FLAG_ROUTER), has(FLAG_OVERRIDE));
            let solicited = has(FLAG_SOLICITED);
            (NdKind::Advertisement { router, solicited, overrides }, OPTION_TARGET_LINK)
        };
        let link = link_of(options, wanted)?;
        let valid = match kind {
            NdKind::Solicitation if src.is_unspecified() => {
                dst == ipv6::solicited_node(target) && link.is_none()
            }
            NdKind::Solicitation => true,
            NdKind::Advertisement { solicited, .. } => {
                !(src.is_unspecified() || dst.is_multicast() && solicited)
            }
        };
        valid.then_some(Self { kind, src, dst, eth_src, target, link }).ok_or(bad)
    }

    /// Writes the whole frame, from the device with this Ethernet address to `eth_dst`, or to the
    /// group that `dst` is; returns its length.
    ///
    /// # Panics
    /// When `frame` is shorter than [`FRAME_BYTES_MAX`].
    pub fn emit_frame(&self, frame: &mut [u8], eth_dst: MacAddr) -> usize {
        let (kind, flags, option) = match self.kind {
            NdKind::Solicitation => (SOLICITATION, 0, OPTION_SOURCE_LINK),
            NdKind::Advertisement { router, solicited, overrides } => {
                let flag = |is: bool, flag: u8| if is { flag } else { 0 };
                let flags = flag(router, FLAG_ROUTER)
                    | flag(solicited, FLAG_SOLICITED)
                    | flag(overrides, FLAG_OVERRIDE);
                (ADVERTISEMENT, flags, OPTION_TARGET_LINK)
            }
        };
        let mut body = [0; TARGET_BYTES + UNIT_BYTES];
        body[..TARGET_BYTES].copy_from_slice(&self.target.0);
        let body = match self.link {
            Some(mac) => {
                body[TARGET_BYTES..TARGET_BYTES + 2].copy_from_slice(&[option, 1]);
                body[TARGET_BYTES + 2..].copy_from_slice(&mac);
                &body[..]
            }
            None => &body[..TARGET_BYTES],
        };
        let eth_dst = if self.dst.is_multicast() { ipv6::group_mac(self.dst) } else { eth_dst };
        let Self { eth_src, src, dst, .. } = *self;
        let link = FrameHeader { eth_src, eth_dst, src, dst, ttl: HOP_LIMIT, tos: 0, ident: 0 };
        let header = IcmpHeader { kind, code: 0, rest: [flags, 0, 0, 0] };
        let at = link.emit_icmp(frame, &header, body.len(), Checksum::of(body));
        frame[at..at + body.len()].copy_from_slice(body);
        at + body.len()
    }
}

/// The Ethernet address in the first option of this kind. An option without octets makes the
/// message invalid (section 4.6); other options are skipped.
fn link_of(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, DropReason> {
    let bad = DropReason::NdInvalid;
    let mut link = None;
    while let [kind, units, ..] = *options {
        let len = UNIT_BYTES * usize::from(units);
        let option = options.get(..len).filter(|option| !option.is_empty()).ok_or(bad)?;
        if let (&[_, 1, a, b, c, d, e, f], true, None) = (option, kind == wanted, link) {
            let mac = [a, b, c, d, e, f];
            if is_group_mac(&mac) || mac == [0; 6] {
                return Err(bad);
            }
            link = Some(mac);
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok(link) } else { Err(bad) }
}
