//! The part of the program for IPv6: extension headers are walked over, as the dataplane does.
use super::super::program::{
    ETHERNET_END, ICMPV6, IPV6_DESTINATION, IPV6_END, IPV6_NEXT_HEADER, check_length,
    jump_if_ours_v6,
};
use super::{
    BITS, BODY, DATA, DESTINATION_PORT, END, FIELD, Family, Maps, PORTS_END, forget, half, lookup,
    of_owner, remember, unless_owned,
};
use crate::asm::{Assembler, Label, Reg, Size};
use crate::xdp::FRAGMENT_KEY_V6;
use ix_vnic::{EXTENSIONS, EXTENSIONS_MAX, FRAGMENT};
use ix_wire::IpAddr;

// Offsets in the frame.
pub(super) const SOURCE: i16 = 14 + 8;
/// An extension header is at least so long, bytes.
pub(super) const EXTENSION_END: i32 = 8;
// Offsets in a fragment header.
pub(super) const FRAGMENT_OFFSET: i16 = 2;
const IDENTIFICATION: i16 = 4;
// Behind the header of an error (RFC 4443): the packet that it quotes.
const QUOTED: i16 = 8;
pub(super) const QUOTED_NEXT_HEADER: i16 = QUOTED + 6;
const QUOTED_SOURCE: i16 = QUOTED + 8;
pub(super) const QUOTED_PORT: i16 = QUOTED + 40;
pub(super) const QUOTED_END: i32 = 8 + 40 + 4;
/// Types of ICMPv6 from this one on are no errors (RFC 4443 section 2.1).
pub(super) const INFORMATIONAL: i32 = 128;

// On the stack, below what IPv4 has.
pub(super) const PACKET: i16 = -64;
const _: () = assert!(PACKET as i32 + FRAGMENT_KEY_V6 as i32 <= -28);
/// Whether the packet is the first fragment.
const IS_FIRST: i16 = -72;

/// Jumps to `ours` for an IPv6 packet of IX's, else to `pass`.
pub(super) fn take(
    a: &mut Assembler,
    maps: &Maps<'_>,
    (own, groups): (&[IpAddr], &[IpAddr]),
    (ours, pass): (Label, Label),
) {
    let [found, icmp, quoted, linuxs] = std::array::from_fn(|_| a.label());
    check_length(a, DATA, END, IPV6_END, pass);
    jump_if_ours_v6(a, (DATA, FIELD), IPV6_DESTINATION, own, found);
    jump_if_ours_v6(a, (DATA, FIELD), IPV6_DESTINATION, groups, found);
    a.jump(pass);

    a.place(found);
    a.mov_imm(Reg::R1, 0);
    a.store(Size::Double, Reg::R10, IS_FIRST, Reg::R1);
    a.mov(BODY, DATA);
    a.add_imm(BODY, IPV6_END);
    a.load(Size::Byte, FIELD, DATA, IPV6_NEXT_HEADER);
    skip_extensions(a, maps, (ours, pass));
    a.jump_eq32(FIELD, ICMPV6, icmp);
    check_length(a, BODY, END, PORTS_END, linuxs);
    unless_owned(a, (maps.owned, Family::V6), DESTINATION_PORT, linuxs);
    a.load(Size::Double, FIELD, Reg::R10, IS_FIRST);
    a.jump_zero(FIELD, ours);
    remember(a, maps.fragments_v6.raw(), PACKET);
    a.jump(ours);
    // An earlier packet with the same number may have been IX's.
    a.place(linuxs);
    a.load(Size::Double, FIELD, Reg::R10, IS_FIRST);
    a.jump_zero(FIELD, pass);
    forget(a, maps.fragments_v6.raw(), PACKET);
    a.jump(pass);

    // An error quotes a packet that we have sent. What IX sends has no extension headers.
    a.place(icmp);
    check_length(a, BODY, END, QUOTED_END, linuxs);
    a.load(Size::Byte, FIELD, BODY, 0);
    a.mov_imm(BITS, INFORMATIONAL);
    a.jump_le(BITS, FIELD, linuxs);
    jump_if_ours_v6(a, (BODY, FIELD), QUOTED_SOURCE, own, quoted);
    a.jump(pass);
    a.place(quoted);
    a.load(Size::Byte, FIELD, BODY, QUOTED_NEXT_HEADER);
    unless_owned(a, (maps.owned, Family::V6), QUOTED_PORT, pass);
    a.jump(ours);
}

/// Walks [`BODY`] and the protocol in [`FIELD`] behind the extension headers. A later fragment goes
/// where the first one went.
fn skip_extensions(a: &mut Assembler, maps: &Maps<'_>, (ours, pass): (Label, Label)) {
    let end = a.label();
    for _ in 0..EXTENSIONS_MAX {
        let [extension, fragment, next] = std::array::from_fn(|_| a.label());
        for kind in EXTENSIONS {
            a.jump_eq32(FIELD, u32::from(kind), extension);
        }
        a.jump_ne32(FIELD, u32::from(FRAGMENT), end);
        a.place(fragment);
        check_length(a, BODY, END, EXTENSION_END, pass);
        fragment_of(a, maps, (ours, pass));
        a.load(Size::Byte, FIELD, BODY, 0);
        a.add_imm(BODY, EXTENSION_END);
        a.jump(next);

        a.place(extension);
        check_length(a, BODY, END, EXTENSION_END, pass);
        a.load(Size::Byte, FIELD, BODY, 0);
        // In units of 8 bytes, without the first.
        a.load(Size::Byte, BITS, BODY, 1);
        a.add_imm(BITS, 1);
        a.shl_imm(BITS, 3);
        a.add(BODY, BITS);
        a.place(next);
    }
    a.place(end);
}

/// Decides about a fragment behind the first one, and notes the first one's key. One that is whole
/// stands alone (RFC 6946).
fn fragment_of(a: &mut Assembler, maps: &Maps<'_>, (ours, pass): (Label, Label)) {
    let [first, whole] = std::array::from_fn(|_| a.label());
    half(a, BITS, BODY, FRAGMENT_OFFSET);
    // The offset, and whether more follow.
    a.and_imm(BITS, 0xfff9);
    a.jump_zero(BITS, whole);
    note_packet(a);
    a.and_imm(BITS, 0xfff8);
    a.jump_zero(BITS, first);
    lookup(a, maps.fragments_v6.raw(), PACKET, pass);
    of_owner(a);
    a.jump(ours);
    a.place(first);
    a.mov_imm(Reg::R1, 1);
    a.store(Size::Double, Reg::R10, IS_FIRST, Reg::R1);
    a.place(whole);
}

/// Puts the key of the packet onto the stack whose fragment header [`BODY`] points to.
pub(super) fn note_packet(a: &mut Assembler) {
    // Source and destination.
    for word in 0..8 {
        a.load(Size::Word, Reg::R1, DATA, SOURCE + 4 * word);
        a.store(Size::Word, Reg::R10, PACKET + 4 * word, Reg::R1);
    }
    a.load(Size::Word, Reg::R1, BODY, IDENTIFICATION);
    a.store(Size::Word, Reg::R10, PACKET + 32, Reg::R1);
}

const _: () = assert!(IPV6_END == ETHERNET_END + 40);

#[cfg(test)]
mod tests {
    use super::super::tests::{OURS, PASSES, Rig, ports};
    use super::*;
    use crate::xdp::{FAMILY_PORTS, PORTS};

    const OWN: &str = "2001:db8::2";
    const PEER: &str = "2001:db8::1";
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    fn rig(test: &str) -> Option<Rig> {
        let both = ["10.0.0.2", OWN, "fe80::2"].map(|text| text.parse().expect("an address"));
        Rig::at(test, &both)
    }

    /// An IPv6 packet whose body begins with a header of this kind.
    fn packet(kind: u8, from: &str, to: &str, body: &[u8]) -> Vec<u8> {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address").0.to_vec();
        let length = (body.len() as u16).to_be_bytes();
        let head = [&[0x60, 0, 0, 0], &length[..], &[kind, 64]].concat();
        [vec![0; 12], vec![0x86, 0xdd], head, ip(from), ip(to), body.to_vec()].concat()
    }

    #[test]
    fn only_owned_ports_of_own_addresses_are_ours() {
        let Some(rig) = rig("only_owned_ports_of_own_addresses_are_ours") else { return };
        let tcp = |to: &str, port| packet(TCP, PEER, to, &ports(9, port));
        assert_eq!(rig.judge(&tcp(OWN, 80)), PASSES);
        rig.owned.set(FAMILY_PORTS + 80, 1).expect("set");
        rig.owned.set(FAMILY_PORTS + PORTS + 53, 1).expect("set");
        assert_eq!((rig.judge(&tcp(OWN, 80)), rig.judge(&tcp(OWN, 22))), (OURS, PASSES));
        assert_eq!(rig.judge(&tcp("fe80::2", 80)), OURS);
        assert_eq!(rig.judge(&tcp("2001:db8::3", 80)), PASSES, "another address");
        // IPv4's port of the same number is another.
        rig.owned.set(23, 1).expect("set");
        assert_eq!(rig.judge(&tcp(OWN, 23)), PASSES);
        let udp = |port| packet(UDP, PEER, OWN, &ports(9, port));
        assert_eq!((rig.judge(&udp(53)), rig.judge(&udp(80))), (OURS, PASSES));
        let short = packet(TCP, PEER, OWN, &ports(9, 80)[..3]);
        assert_eq!(rig.judge(&short), PASSES, "ends before its ports");
        // Neighbour Discovery and ping.
        for kind in [128, 129, 135, 136] {
            let body = [&[kind, 0, 0, 0, 0, 0, 0, 0], &[0; 40][..]].concat();
            assert_eq!(rig.judge(&packet(58, PEER, OWN, &body)), PASSES, "{kind}");
        }
    }

    #[test]
    fn ports_are_behind_extension_headers() {
        let Some(rig) = rig("ports_are_behind_extension_headers") else { return };
        rig.owned.set(FAMILY_PORTS + 80, 1).expect("set");
        for (length, many) in [(0u8, 1usize), (2, 1), (0, 3), (1, EXTENSIONS_MAX)] {
            let extension = |next| {
                let mut header = vec![0; 8 * (usize::from(length) + 1)];
                (header[0], header[1]) = (next, length);
                header
            };
            let more = std::iter::repeat_n(extension(60), many - 1).flatten();
            let mut body: Vec<u8> = more.chain(extension(TCP)).collect();
            body.extend(ports(9, 80));
            assert_eq!(rig.judge(&packet(60, PEER, OWN, &body)), OURS, "{length} {many}");
            let cut = body.len() - 18;
            assert_eq!(rig.judge(&packet(60, PEER, OWN, &body[..cut])), PASSES, "{length} {many}");
        }
    }

    #[test]
    fn fragments_follow_the_first_one() {
        let Some(rig) = rig("fragments_follow_the_first_one") else { return };
        rig.owned.set(FAMILY_PORTS + PORTS + 53, 1).expect("set");
        let fragment = |id: u32, part: u16, body: &[u8]| {
            let head = [&[UDP, 0][..], &part.to_be_bytes(), &id.to_be_bytes()].concat();
            packet(FRAGMENT, PEER, OWN, &[&head, body].concat())
        };
        // Its bytes look like an owned port, and are none.
        let next = |id| fragment(id, 185 << 3, &ports(9, 53));
        assert_eq!(rig.judge(&next(1)), PASSES, "nothing is known of it");
        assert_eq!(rig.judge(&fragment(1, 1, &ports(9, 53))), OURS);
        assert_eq!(rig.judge(&next(1)), OURS);
        assert_eq!(rig.judge(&fragment(2, 1, &ports(9, 54))), PASSES);
        assert_eq!(rig.judge(&next(2)), PASSES);
        // The peer's numbers come again, and these packets are Linux's.
        assert_eq!(
            (rig.judge(&fragment(1, 1, &ports(9, 54))), rig.judge(&next(1))),
            (PASSES, PASSES)
        );
        assert_eq!((rig.judge(&fragment(1, 1, &ports(9, 53))), rig.judge(&next(1))), (OURS, OURS));
        let head = [&[58, 0][..], &1u16.to_be_bytes(), &1u32.to_be_bytes()].concat();
        let ping = packet(FRAGMENT, PEER, OWN, &[&head[..], &[128, 0, 0, 0], &[0; 44]].concat());
        assert_eq!((rig.judge(&ping), rig.judge(&next(1))), (PASSES, PASSES));
        // A whole packet with a fragment header is remembered for none.
        assert_eq!(rig.judge(&fragment(3, 0, &ports(9, 53))), OURS);
        assert_eq!(rig.judge(&next(3)), PASSES);
    }

    #[test]
    fn errors_belong_to_whom_they_quote() {
        let Some(rig) = rig("errors_belong_to_whom_they_quote") else { return };
        rig.owned.set(FAMILY_PORTS + 80, 1).expect("set");
        let error = |kind: u8, from: &str, port: u16| {
            let quoted = packet(TCP, from, PEER, &ports(port, 9)).split_off(14);
            packet(58, PEER, OWN, &[vec![kind, 0, 0, 0, 0, 0, 5, 0], quoted].concat())
        };
        for kind in [1, 2, 3, 4] {
            assert_eq!(rig.judge(&error(kind, OWN, 80)), OURS, "{kind}");
            assert_eq!(rig.judge(&error(kind, OWN, 22)), PASSES, "{kind}");
        }
        assert_eq!(rig.judge(&error(1, PEER, 80)), PASSES, "another host's packet");
        assert_eq!(rig.judge(&error(128, OWN, 80)), PASSES, "an echo request");
    }
}
