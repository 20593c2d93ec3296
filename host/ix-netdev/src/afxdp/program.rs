//! The XDP program: packets for our addresses go to our sockets, all others on to Linux.
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use crate::classify;
use ix_sys::bpf::{HELPER_REDIRECT_MAP, Map};
use ix_vnic::{Field, Filter, Level};
use ix_wire::IpAddr;

// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
/// These go to Linux whatever the filters say: IPv6, and VLANs, which are separate links in Linux.
const LINUX_FRAMES: [u16; 3] = [0x86dd, 0x8100, 0x88a8];

/// Verdict of an XDP program: pass to the kernel's stack.
const XDP_PASS: i32 = 2;

// Offsets in the frame.
const ETHERTYPE: i16 = 12;
const IPV4_DESTINATION: i16 = 14 + 16;
const ARP_FORMATS: i16 = 14;
const ARP_LENGTHS: i16 = 14 + 4;
const ARP_SENDER: i16 = 14 + 14;
const ARP_TARGET: i16 = 14 + 24;
const ETHERNET_END: i32 = 14;
const IPV4_END: i32 = 14 + 20;
const ARP_END: i32 = 14 + 28;

/// Redirects packets for one of `addresses` to `sockets[receive queue]`: IPv4 to it, and ARP that
/// names it as target (requests, replies) or as sender (a host that uses our address: RFC 5227
/// wants us to notice). All other packets pass: VLAN tags, IPv6, other hosts' packets; and ours on
/// a queue without a socket. With receive filters, only IPv4 packets that a filter takes are
/// redirected, and frames of other EtherTypes if a filter names the type.
pub(crate) fn xdp_program(
    sockets: &Map,
    addresses: &[IpAddr],
    filters: Option<&[Filter]>,
) -> Vec<Insn> {
    let mut a = Assembler::new();
    let [arp, ours, pass, found, other] = std::array::from_fn(|_| a.label());
    let (ctx, data, end, field) = (Reg::R9, Reg::R7, Reg::R8, Reg::R4);

    a.mov(ctx, Reg::R1);
    a.load(Size::Word, data, ctx, MD_DATA);
    a.load(Size::Word, end, ctx, MD_DATA_END);
    check_length(&mut a, data, end, ETHERNET_END, pass);
    a.load(Size::Half, field, data, ETHERTYPE);
    a.jump_eq32(field, u32::from(ARP.to_be()), arp);
    a.jump_ne32(field, u32::from(IPV4.to_be()), other);
    check_length(&mut a, data, end, IPV4_END, pass);
    a.load(Size::Word, field, data, IPV4_DESTINATION);
    jump_if_ours(&mut a, field, addresses, found);
    a.jump(pass);

    a.place(found);
    if let Some(filters) = filters {
        classify::lay_out(&mut a, pass);
        filters.iter().for_each(|filter| classify::ask(&mut a, filter, ours));
        a.jump(pass);
    } else {
        a.jump(ours);
    }

    a.place(other);
    let named: Vec<_> = filters.into_iter().flatten().filter(|f| names_ethertype(f)).collect();
    if !named.is_empty() {
        for kept in LINUX_FRAMES {
            a.jump_eq32(field, u32::from(kept.to_be()), pass);
        }
        classify::lay_out(&mut a, pass);
        named.into_iter().for_each(|filter| classify::ask(&mut a, filter, ours));
    }
    a.jump(pass);

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

/// Whether a filter names certain EtherTypes, and does not just take all.
fn names_ethertype(filter: &Filter) -> bool {
    filter.level() == Level::Ethernet && filter.field(Field::EtherType).is_some()
}

fn check_length(a: &mut Assembler, data: Reg, end: Reg, bytes: i32, too_short: Label) {
    a.mov(Reg::R2, data);
    a.add_imm(Reg::R2, bytes);
    a.jump_gt(Reg::R2, end, too_short);
}

fn jump_if_ours(a: &mut Assembler, field: Reg, addresses: &[IpAddr], ours: Label) {
    for address in addresses.iter().filter_map(|ip| ip.as_v4()) {
        a.jump_eq32(field, u32::from_ne_bytes(address), ours);
    }
}
