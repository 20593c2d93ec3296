//! The XDP program: packets for our addresses go to our sockets, all others on to Linux.
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use crate::classify;
use ix_sys::bpf::{HELPER_REDIRECT_MAP, Map};
use ix_vnic::{Field, Filter, Level};
use ix_wire::vlan::TAG_BYTES;
use ix_wire::{IpAddr, VlanId, ethernet};

// Offsets in `struct xdp_md`.
pub(crate) const MD_DATA: i16 = 0;
pub(crate) const MD_DATA_END: i16 = 4;
pub(crate) const MD_RX_QUEUE: i16 = 16;

pub(crate) const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
pub(crate) const IPV6: u16 = 0x86dd;
/// These are not taken by filters of EtherTypes: IPv6, whose filters are asked for our addresses
/// only, and VLANs, which are separate links in Linux.
const LINUX_FRAMES: [u16; 3] = [IPV6, 0x8100, 0x88a8];

/// The bits of a tag that are the VLAN's number.
const VLAN_NUMBER: i32 = 0x0fff;

/// Verdict of an XDP program: pass to the kernel's stack.
pub(crate) const XDP_PASS: i32 = 2;

// Offsets in the frame.
pub(crate) const ETHERTYPE: i16 = 12;
pub(crate) const IPV4_DESTINATION: i16 = 14 + 16;
const ARP_FORMATS: i16 = 14;
const ARP_LENGTHS: i16 = 14 + 4;
const ARP_SENDER: i16 = 14 + 14;
const ARP_TARGET: i16 = 14 + 24;
pub(crate) const ETHERNET_END: i32 = 14;
pub(crate) const IPV4_END: i32 = 14 + 20;
const ARP_END: i32 = 14 + 28;
pub(crate) const IPV4_PROTOCOL: i16 = 14 + 9;
pub(crate) const IPV6_NEXT_HEADER: i16 = 14 + 6;
pub(crate) const IPV6_DESTINATION: i16 = 14 + 24;
pub(crate) const IPV6_END: i32 = 14 + 40;
const ND_TYPE: i16 = 14 + 40;
const ND_TARGET: i16 = 14 + 40 + 8;
const ND_END: i32 = 14 + 40 + 24;

const UDP: u32 = 17;
pub(crate) const ICMPV6: u32 = 58;
/// Neighbour Solicitation and Advertisement.
const ND_TYPES: [u32; 2] = [135, 136];

/// Goes to `pass` for a frame without the tag of this VLAN. Else lets `data` begin so much later
/// that what is behind the Ethernet addresses is where it is in a frame without a tag.
fn skip_tag(a: &mut Assembler, (data, end, field): (Reg, Reg, Reg), vlan: VlanId, pass: Label) {
    check_length(a, data, end, ETHERNET_END + TAG_BYTES as i32, pass);
    a.load(Size::Half, field, data, ETHERTYPE);
    a.jump_ne32(field, ethernet::TYPE_VLAN.to_be().into(), pass);
    a.load(Size::Half, field, data, ETHERTYPE + 2);
    a.big_endian(field, 16);
    a.and_imm(field, VLAN_NUMBER);
    a.jump_ne32(field, vlan.number().into(), pass);
    a.add_imm(data, TAG_BYTES as i32);
}

/// Redirects packets for one of `addresses` to `sockets[receive queue]`: IPv4 and IPv6 to it, ARP
/// that names it as target (requests, replies) or as sender (a host that uses our address: RFC 5227
/// wants us to notice), and Neighbour Discovery about it. Of packets to one of `groups` only UDP is
/// redirected: Linux hears the questions which groups have listeners, and answers them. All other
/// packets pass: other hosts' packets; and ours on a queue without a socket. So do all frames with
/// a tag or, with a VLAN, all that do not have its tag. With receive filters, only IP packets that
/// a filter takes are redirected, and frames of other EtherTypes if a filter names the type.
pub(crate) fn xdp_program(
    sockets: &Map,
    (addresses, groups): (&[IpAddr], &[IpAddr]),
    filters: Option<&[Filter]>,
    vlan: Option<VlanId>,
) -> Vec<Insn> {
    let mut a = Assembler::new();
    let [arp, ours, pass, found, other, v6] = std::array::from_fn(|_| a.label());
    let v6_addresses: Vec<IpAddr> = addresses.iter().copied().filter(|ip| ip.is_v6()).collect();
    let has_v6 = !v6_addresses.is_empty();
    // The kernel refuses code that cannot be reached.
    let has_v4 = v6_addresses.len() < addresses.len();
    let (ctx, data, end, field) = (Reg::R9, Reg::R7, Reg::R8, Reg::R4);

    a.mov(ctx, Reg::R1);
    a.load(Size::Word, data, ctx, MD_DATA);
    a.load(Size::Word, end, ctx, MD_DATA_END);
    if let Some(vlan) = vlan {
        skip_tag(&mut a, (data, end, field), vlan, pass);
    }
    check_length(&mut a, data, end, ETHERNET_END, pass);
    a.load(Size::Half, field, data, ETHERTYPE);
    let front = vlan.map_or(0, |_| TAG_BYTES as i16);
    if has_v4 {
        a.jump_eq32(field, u32::from(ARP.to_be()), arp);
        a.jump_ne32(field, u32::from(IPV4.to_be()), other);
        check_length(&mut a, data, end, IPV4_END, pass);
        a.load(Size::Word, field, data, IPV4_DESTINATION);
        jump_if_ours(&mut a, field, addresses, found);
        if groups.iter().any(|group| !group.is_v6()) {
            let group = a.label();
            jump_if_ours(&mut a, field, groups, group);
            a.jump(pass);
            a.place(group);
            a.load(Size::Byte, field, data, IPV4_PROTOCOL);
            a.jump_eq32(field, UDP, found);
        }
        a.jump(pass);

        a.place(found);
        if let Some(filters) = filters {
            classify::lay_out(&mut a, front, pass);
            filters.iter().for_each(|filter| classify::ask(&mut a, filter, ours));
            a.jump(pass);
        } else {
            a.jump(ours);
        }
        a.place(other);
    }

    if has_v6 {
        a.jump_eq32(field, u32::from(IPV6.to_be()), v6);
    }
    let named: Vec<_> = filters.into_iter().flatten().filter(|f| names_ethertype(f)).collect();
    if !named.is_empty() {
        for kept in LINUX_FRAMES {
            a.jump_eq32(field, u32::from(kept.to_be()), pass);
        }
        classify::lay_out(&mut a, front, pass);
        named.into_iter().for_each(|filter| classify::ask(&mut a, filter, ours));
    }
    a.jump(pass);

    if has_v4 {
        a.place(arp);
        check_length(&mut a, data, end, ARP_END, pass);
        // Ethernet (1) and IPv4 (0x0800), addresses of 6 and 4 bytes.
        a.load(Size::Word, field, data, ARP_FORMATS);
        a.jump_ne32(field, 0x0001_0800_u32.to_be(), pass);
        a.load(Size::Half, field, data, ARP_LENGTHS);
        a.jump_ne32(field, u32::from(0x0604_u16.to_be()), pass);
        a.load(Size::Word, field, data, ARP_TARGET);
        jump_if_ours(&mut a, field, addresses, ours);
        a.load(Size::Word, field, data, ARP_SENDER);
        jump_if_ours(&mut a, field, addresses, ours);
        a.jump(pass);
    }

    if has_v6 {
        a.place(v6);
        let groups: Vec<IpAddr> = groups.iter().copied().filter(|group| group.is_v6()).collect();
        let to = (&v6_addresses[..], &groups[..]);
        redirect_v6(
            &mut a,
            (data, end, field),
            to,
            filters.map(|some| (some, front)),
            (ours, pass),
        );
    }

    a.place(pass);
    a.mov_imm(Reg::R0, XDP_PASS);
    a.exit();

    a.place(ours);
    a.mov_map(Reg::R1, sockets.raw());
    a.load(Size::Word, Reg::R2, ctx, MD_RX_QUEUE);
    a.mov_imm(Reg::R3, XDP_PASS); // if no socket is at this index
    a.call(HELPER_REDIRECT_MAP);
    a.exit();
    a.finish()
}

/// Jumps to `ours` for an IPv6 packet to one of our addresses, and for Neighbour Discovery about
/// one; else to `pass`, or falls through. Who asks for an address sends to a group, which a host
/// with other addresses may be in too. With filters, one of them must take the packet, unless it is
/// of Neighbour Discovery.
fn redirect_v6(
    a: &mut Assembler,
    (data, end, field): (Reg, Reg, Reg),
    (addresses, groups): (&[IpAddr], &[IpAddr]),
    filters: Option<(&[Filter], i16)>,
    (ours, pass): (Label, Label),
) {
    check_length(a, data, end, IPV6_END, pass);
    let found = a.label();
    let to_us = if filters.is_some() { found } else { ours };
    jump_if_ours_v6(a, (data, field), IPV6_DESTINATION, addresses, to_us);
    if !groups.is_empty() {
        let no_datagram = a.label();
        a.load(Size::Byte, field, data, IPV6_NEXT_HEADER);
        a.jump_ne32(field, UDP, no_datagram);
        jump_if_ours_v6(a, (data, field), IPV6_DESTINATION, groups, to_us);
        a.jump(pass);
        a.place(no_datagram);
    }
    a.load(Size::Byte, field, data, IPV6_NEXT_HEADER);
    a.jump_ne32(field, ICMPV6, pass);
    check_length(a, data, end, ND_END, pass);
    a.load(Size::Byte, field, data, ND_TYPE);
    let nd = a.label();
    let [solicitation, advertisement] = ND_TYPES;
    a.jump_eq32(field, solicitation, nd);
    a.jump_ne32(field, advertisement, pass);
    a.place(nd);
    jump_if_ours_v6(a, (data, field), ND_TARGET, addresses, ours);
    let Some((filters, front)) = filters else { return };
    a.jump(pass);
    a.place(found);
    classify::lay_out(a, front, pass);
    filters.iter().for_each(|filter| classify::ask(a, filter, ours));
    a.load(Size::Double, field, Reg::R10, classify::ND_KIND);
    ND_TYPES.iter().for_each(|kind| a.jump_eq32(field, *kind, ours));
}

/// Jumps to `ours` if one of the addresses is at an offset of the frame.
pub(crate) fn jump_if_ours_v6(
    a: &mut Assembler,
    (data, field): (Reg, Reg),
    at: i16,
    addresses: &[IpAddr],
    ours: Label,
) {
    for IpAddr(address) in addresses {
        let other = a.label();
        let words = address.as_chunks::<4>().0;
        for (number, word) in words.iter().enumerate() {
            a.load(Size::Word, field, data, at + 4 * number as i16);
            a.jump_ne32(field, u32::from_ne_bytes(*word), other);
        }
        a.jump(ours);
        a.place(other);
    }
}

/// Whether a filter names certain EtherTypes, and does not just take all.
fn names_ethertype(filter: &Filter) -> bool {
    filter.level() == Level::Ethernet && filter.field(Field::EtherType).is_some()
}

pub(crate) fn check_length(a: &mut Assembler, data: Reg, end: Reg, bytes: i32, too_short: Label) {
    a.mov(Reg::R2, data);
    a.add_imm(Reg::R2, bytes);
    a.jump_gt(Reg::R2, end, too_short);
}

pub(crate) fn jump_if_ours(a: &mut Assembler, field: Reg, addresses: &[IpAddr], ours: Label) {
    for address in addresses.iter().filter_map(|ip| ip.as_v4()) {
        a.jump_eq32(field, u32::from_ne_bytes(address), ours);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_skip::{Need, skip};
    use ix_sys::bpf::{MapKind, Program, ProgramKind};

    /// The kernel refuses a program with code that nothing reaches.
    #[test]
    fn the_kernel_takes_the_program_of_every_mix_of_addresses() {
        let test = "the_kernel_takes_the_program_of_every_mix_of_addresses";
        let ip = |text: &str| text.parse::<IpAddr>().expect(text);
        let filter = |text: &str| text.parse::<Filter>().expect(text);
        let (v4, v6) = (ip("10.0.0.2"), ip("2001:db8::2"));
        let filters = [
            vec![],
            vec![filter("rx tcp service 10.0.0.2:80")],
            vec![filter("rx ip6 service 2001:db8::2")],
            vec![filter("rx eth type 0x88b5"), filter("rx tcp service [2001:db8::2]:80")],
        ];
        let sockets = match Map::new(MapKind::Xsk, c"ix_test", 1) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => return skip(test, Need::Root, e),
            made => made.expect("a map"),
        };
        let groups = [vec![], vec![ip("224.1.1.1"), ip("ff02::7"), ip("232.1.1.1")]];
        for addresses in [vec![v4], vec![v6], vec![v4, v6]] {
            for filters in filters.iter().map(|some| Some(&some[..])).chain([None]) {
                for (groups, vlan) in groups.iter().zip([None, VlanId::new(5)].iter().cycle()) {
                    let insns = xdp_program(&sockets, (&addresses, groups), filters, *vlan);
                    let loaded = Program::load(ProgramKind::Xdp, c"ix_test", &insns, 0);
                    loaded.unwrap_or_else(|e| panic!("{addresses:?} {groups:?} {filters:?}: {e}"));
                }
            }
        }
    }
}
