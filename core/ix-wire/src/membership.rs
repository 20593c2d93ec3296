//! What routers ask and hosts say of groups, the same in IGMP and in Multicast Listener Discovery
//! (RFC 3376, RFC 3810).
use crate::{BROADCAST_MAC, IpAddr, MacAddr, ipv4, ipv6};

/// Most bytes of records in one report, so that it fits into a packet of any link.
pub const BODY_BYTES_MAX: usize = 1152;
/// Bytes of a record but for addresses: type, auxiliary length, number of sources.
const RECORD_HEADER_BYTES: usize = 4;

/// A question which groups have listeners.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Query {
    /// The group that is asked for; `None`: all groups.
    pub group: Option<IpAddr>,
    /// The answer may come at any time within this, µs.
    pub within_us: u64,
    /// Who asks knows only this version of the protocol: 1 of MLD, 1 or 2 of IGMP; 0: the latest.
    pub older: u8,
}

/// What a host says of a group (RFC 3376 section 4.2.12, RFC 3810 section 5.2.12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordKind {
    /// It listens to these sources, as it did before.
    Includes = 1,
    /// It listens to all sources but these, as it did before.
    Listens = 2,
    /// It listens to these sources alone from now on; to none: it has left.
    Left = 3,
    /// It listens to all sources but these from now on.
    Joined = 4,
    /// It listens to these sources as well.
    Allows = 5,
    /// It does not listen to these sources any more.
    Blocks = 6,
}

/// What a host says of one group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record<'a> {
    /// What it says.
    pub kind: RecordKind,
    /// The group.
    pub group: IpAddr,
    /// The sources that it speaks of, of the group's family.
    pub sources: &'a [IpAddr],
}

impl Record<'_> {
    /// So many sources of a family have room in one report, if it has nothing else.
    pub const fn sources_max(is_v6: bool) -> usize {
        let address_bytes = if is_v6 { 16 } else { 4 };
        (BODY_BYTES_MAX - RECORD_HEADER_BYTES) / address_bytes - 1
    }

    /// Bytes of the record on the wire, with addresses of this length.
    fn bytes(&self, address_bytes: usize) -> usize {
        RECORD_HEADER_BYTES + (1 + self.sources.len()) * address_bytes
    }

    /// Writes the record; returns its length. The last `address_bytes` octets of an address are
    /// those of its family.
    fn emit(&self, out: &mut [u8], address_bytes: usize) -> usize {
        let from = size_of::<IpAddr>() - address_bytes;
        let [high, low] = (self.sources.len() as u16).to_be_bytes();
        out[..RECORD_HEADER_BYTES].copy_from_slice(&[self.kind as u8, 0, high, low]);
        let places = out[RECORD_HEADER_BYTES..].chunks_exact_mut(address_bytes);
        for (place, address) in places.zip([self.group].iter().chain(self.sources)) {
            place.copy_from_slice(&address.0[from..]);
        }
        self.bytes(address_bytes)
    }
}

/// Writes as many of the records as fit into [`BODY_BYTES_MAX`]; returns their number and length.
///
/// # Panics
/// When `out` is shorter than that.
pub(crate) fn emit_records(
    out: &mut [u8],
    records: &[Record<'_>],
    address_bytes: usize,
) -> (usize, usize) {
    let (mut count, mut len) = (0, 0);
    for record in records {
        if len + record.bytes(address_bytes) > BODY_BYTES_MAX {
            break;
        }
        len += record.emit(&mut out[len..], address_bytes);
        count += 1;
    }
    (count, len)
}

/// The Ethernet address of a group, or of an IPv4 broadcast (RFC 1112 section 6.4, RFC 2464 section
/// 7).
pub fn group_mac(group: IpAddr) -> MacAddr {
    match group.is_v6() {
        true => ipv6::group_mac(group),
        false if group.is_multicast() => ipv4::group_mac(group),
        false => BROADCAST_MAC,
    }
}
