//! The programs of a link by which a run shares an interface whose queues another run has. At its
//! near end: what the run's own ports send leaves by the interface, all else is dropped, so the
//! dataplane at the far end need not be trusted. At the far end everything is the run's.
use super::super::program::{
    ETHERTYPE, ICMPV6, IPV4, IPV4_END, IPV6, IPV6_END, IPV6_NEXT_HEADER, MD_DATA, MD_DATA_END,
    MD_RX_QUEUE, check_length, jump_if_ours, jump_if_ours_v6,
};
use super::{
    BITS, BODY, CTX, DATA, DESTINATION_PORT, END, FIELD, FRAGMENT, Family, ICMP, ICMP_ERRORS,
    PACKET, PROTOCOL, QUOTED, QUOTED_END, QUOTED_PORT, QUOTED_PROTOCOL, SOURCE, XDP_DROP, body,
    half, lookup, note_packet, remember, unless_owned, v6,
};
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use crate::xdp::{FRAGMENT_KEY, FRAGMENT_KEY_V6};
use ix_sys::bpf::{HELPER_REDIRECT, HELPER_REDIRECT_MAP, Map, Memory};
use ix_wire::{IpAddr, MacAddr};
use std::os::fd::RawFd;

// Offsets in the frame.
const ETHERNET_SOURCE: i16 = 6;
/// Where a packet comes from, behind the IP header.
const SOURCE_PORT: i16 = 0;
/// ICMPv6's complaint about a header (RFC 4443 section 3.4).
const PARAMETER_PROBLEM: u32 = 4;

/// The program at the far end: all packets go to the sockets.
pub(crate) fn far(sockets: &Map) -> Vec<Insn> {
    let mut a = Assembler::new();
    a.load(Size::Word, Reg::R2, Reg::R1, MD_RX_QUEUE);
    a.mov_map(Reg::R1, sockets.raw());
    // Linux would answer for its address.
    a.mov_imm(Reg::R3, XDP_DROP);
    a.call(HELPER_REDIRECT_MAP);
    a.exit();
    a.finish()
}

/// What the program at the near end knows.
pub(crate) struct Near<'a> {
    /// The map of ports.
    pub owned: &'a Map,
    /// Whose the link is.
    pub owner: u32,
    /// The interface that packets leave by, and its Ethernet address.
    pub uplink: (u32, MacAddr),
    /// The addresses that are shared.
    pub addresses: &'a [IpAddr],
    /// Packets whose first fragment was IX's, with their owners.
    pub fragments: &'a Memory<FRAGMENT_KEY>,
    /// The same of IPv6.
    pub fragments_v6: &'a Memory<FRAGMENT_KEY_V6>,
}

/// The program at the near end.
pub(crate) fn near(near: &Near<'_>) -> Vec<Insn> {
    let mut a = Assembler::new();
    let [other, drop, send] = std::array::from_fn(|_| a.label());
    if near.addresses.is_empty() {
        a.mov_imm(Reg::R0, XDP_DROP);
        a.exit();
        return a.finish();
    }
    let own_v6: Vec<IpAddr> = near.addresses.iter().copied().filter(|own| own.is_v6()).collect();
    let has_v4 = own_v6.len() < near.addresses.len();
    a.mov(CTX, Reg::R1);
    a.load(Size::Word, DATA, CTX, MD_DATA);
    a.load(Size::Word, END, CTX, MD_DATA_END);
    // The shorter of the two headers.
    check_length(&mut a, DATA, END, IPV4_END, drop);
    let mac = near.uplink.1;
    a.load(Size::Word, FIELD, DATA, ETHERNET_SOURCE);
    a.jump_ne32(FIELD, u32::from_ne_bytes([mac[0], mac[1], mac[2], mac[3]]), drop);
    a.load(Size::Half, FIELD, DATA, ETHERNET_SOURCE + 4);
    a.jump_ne32(FIELD, u32::from(u16::from_ne_bytes([mac[4], mac[5]])), drop);
    a.load(Size::Half, FIELD, DATA, ETHERTYPE);
    if has_v4 {
        a.jump_ne32(FIELD, u32::from(IPV4.to_be()), other);
        near_v4(&mut a, near, (send, drop));
        a.place(other);
    }
    if !own_v6.is_empty() {
        a.jump_ne32(FIELD, u32::from(IPV6.to_be()), drop);
        near_v6(&mut a, near, &own_v6, (send, drop));
    }
    a.place(drop);
    a.mov_imm(Reg::R0, XDP_DROP);
    a.exit();
    a.place(send);
    a.mov_imm(Reg::R1, near.uplink.0 as i32);
    a.mov_imm(Reg::R2, 0);
    a.call(HELPER_REDIRECT);
    a.exit();
    a.finish()
}

fn near_v4(a: &mut Assembler, near: &Near<'_>, (send, drop): (Label, Label)) {
    let [own, whole, first, icmp, quoted] = std::array::from_fn(|_| a.label());
    a.load(Size::Word, FIELD, DATA, SOURCE);
    jump_if_ours(a, FIELD, near.addresses, own);
    a.jump(drop);
    a.place(own);
    body(a, drop);
    half(a, BITS, DATA, FRAGMENT);
    a.load(Size::Byte, FIELD, DATA, PROTOCOL);
    a.and_imm(BITS, 0x3fff);
    a.jump_zero(BITS, whole);
    note_packet(a);
    a.and_imm(BITS, 0x1fff);
    a.jump_zero(BITS, first);
    send_if_first_was(a, (near.fragments.raw(), PACKET), near.owner, (send, drop));
    a.place(first);
    unless_sent(a, (near, Family::V4), SOURCE_PORT, drop);
    remember(a, near.fragments.raw(), PACKET);
    a.jump(send);

    a.place(whole);
    a.jump_eq32(FIELD, ICMP, icmp);
    unless_sent(a, (near, Family::V4), SOURCE_PORT, drop);
    a.jump(send);
    // An error quotes a packet that the run has received.
    a.place(icmp);
    check_length(a, BODY, END, QUOTED_END, drop);
    a.load(Size::Byte, FIELD, BODY, 0);
    ICMP_ERRORS.iter().for_each(|kind| a.jump_eq32(FIELD, *kind, quoted));
    a.jump(drop);
    a.place(quoted);
    a.load(Size::Byte, FIELD, BODY, QUOTED);
    a.jump_ne32(FIELD, 0x45, drop);
    a.load(Size::Byte, FIELD, BODY, QUOTED_PROTOCOL);
    unless_sent(a, (near, Family::V4), QUOTED_PORT + DESTINATION_PORT, drop);
    a.jump(send);
}

fn near_v6(a: &mut Assembler, near: &Near<'_>, own: &[IpAddr], (send, drop): (Label, Label)) {
    let [ours, whole, unfragmented, first, icmp] = std::array::from_fn(|_| a.label());
    check_length(a, DATA, END, IPV6_END, drop);
    jump_if_ours_v6(a, (DATA, FIELD), v6::SOURCE, own, ours);
    a.jump(drop);
    a.place(ours);
    a.mov(BODY, DATA);
    a.add_imm(BODY, IPV6_END);
    a.load(Size::Byte, FIELD, DATA, IPV6_NEXT_HEADER);
    a.jump_ne32(FIELD, u32::from(ix_vnic::FRAGMENT), whole);
    check_length(a, BODY, END, v6::EXTENSION_END, drop);
    half(a, BITS, BODY, v6::FRAGMENT_OFFSET);
    a.and_imm(BITS, 0xfff9);
    a.jump_zero(BITS, unfragmented);
    v6::note_packet(a);
    a.and_imm(BITS, 0xfff8);
    a.jump_zero(BITS, first);
    send_if_first_was(a, (near.fragments_v6.raw(), v6::PACKET), near.owner, (send, drop));
    a.place(first);
    a.load(Size::Byte, FIELD, BODY, 0);
    a.add_imm(BODY, v6::EXTENSION_END);
    unless_sent(a, (near, Family::V6), SOURCE_PORT, drop);
    remember(a, near.fragments_v6.raw(), v6::PACKET);
    a.jump(send);

    a.place(unfragmented);
    a.load(Size::Byte, FIELD, BODY, 0);
    a.add_imm(BODY, v6::EXTENSION_END);
    a.place(whole);
    a.jump_eq32(FIELD, ICMPV6, icmp);
    unless_sent(a, (near, Family::V6), SOURCE_PORT, drop);
    a.jump(send);
    a.place(icmp);
    errors_v6(a, near, (send, drop));
}

/// Sends errors about packets that the run has received, and nothing else of ICMPv6: neighbours are
/// Linux's.
fn errors_v6(a: &mut Assembler, near: &Near<'_>, (send, drop): (Label, Label)) {
    let [fragment, extension] = std::array::from_fn(|_| a.label());
    check_length(a, BODY, END, v6::QUOTED_END, drop);
    a.load(Size::Byte, FIELD, BODY, 0);
    a.mov_imm(BITS, v6::INFORMATIONAL);
    a.jump_le(BITS, FIELD, drop);
    a.load(Size::Byte, FIELD, BODY, v6::QUOTED_NEXT_HEADER);
    a.jump_eq32(FIELD, u32::from(ix_vnic::FRAGMENT), fragment);
    ix_vnic::EXTENSIONS.iter().for_each(|kind| a.jump_eq32(FIELD, u32::from(*kind), extension));
    unless_sent(a, (near, Family::V6), v6::QUOTED_PORT + DESTINATION_PORT, drop);
    a.jump(send);
    a.place(fragment);
    check_length(a, BODY, END, v6::QUOTED_END + v6::EXTENSION_END, drop);
    a.load(Size::Byte, FIELD, BODY, v6::QUOTED_PORT);
    let behind = v6::QUOTED_PORT + v6::EXTENSION_END as i16;
    unless_sent(a, (near, Family::V6), behind + DESTINATION_PORT, drop);
    a.jump(send);
    // Of a packet with other headers only these are complained about.
    a.place(extension);
    a.load(Size::Byte, FIELD, BODY, 0);
    a.jump_eq32(FIELD, PARAMETER_PROBLEM, send);
    a.jump(drop);
}

/// Jumps to `drop` unless the port there is the run's, whose number is then on the stack.
fn unless_sent(a: &mut Assembler, (near, family): (&Near<'_>, Family), at: i16, drop: Label) {
    check_length(a, BODY, END, i32::from(at) + 2, drop);
    unless_owned(a, (near.owned, family), at, drop);
    a.jump_ne32(FIELD, near.owner, drop);
}

/// Sends a later fragment if the run has sent the first one of its packet.
fn send_if_first_was(
    a: &mut Assembler,
    (fragments, key): (RawFd, i16),
    owner: u32,
    (send, drop): (Label, Label),
) {
    lookup(a, fragments, key, drop);
    a.load(Size::Word, FIELD, Reg::R0, 0);
    a.jump_eq32(FIELD, owner, send);
    a.jump(drop);
}

#[cfg(test)]
mod tests {
    use super::super::tests::ports;
    use super::*;
    use crate::xdp::{ALL_PORTS, FAMILY_PORTS, PORTS};
    use ix_skip::{Need, skip};
    use ix_sys::bpf::{MapKind, Program, ProgramKind};

    const MAC: MacAddr = [2, 0, 0, 0, 0, 7];
    const OWN: [u8; 4] = [10, 0, 0, 2];
    const OTHER: [u8; 4] = [10, 0, 0, 3];
    const OWN_V6: &str = "2001:db8::2";
    const DROPPED: u32 = 1;
    const SENT: u32 = 4;
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    type Maps = (Map, Memory<FRAGMENT_KEY>, Memory<FRAGMENT_KEY_V6>);

    /// A program for owner 3, who has TCP port 80 and UDP port 53 of both families, and 8080 of
    /// IPv4; TCP port 81 is another's.
    fn program(test: &str) -> Option<(Program, Maps)> {
        let made = || -> std::io::Result<(Program, Maps)> {
            let owned = Map::new(MapKind::Array, c"ix_test", ALL_PORTS)?;
            for family in [0, FAMILY_PORTS] {
                owned.set(family + 80, 3)?;
                owned.set(family + 81, 4)?;
                owned.set(family + PORTS + 53, 3)?;
            }
            owned.set(8080, 3)?;
            let addresses = [IpAddr::v4(OWN), OWN_V6.parse().expect("an address")];
            let uplink = (1, MAC);
            let (fragments, v6) = (Memory::new(c"ix_test", 16)?, Memory::new(c"ix_test", 16)?);
            let insns = near(&Near {
                owned: &owned,
                owner: 3,
                uplink,
                addresses: &addresses,
                fragments: &fragments,
                fragments_v6: &v6,
            });
            let program = Program::load(ProgramKind::Xdp, c"ix_test", &insns, 0)?;
            Ok((program, (owned, fragments, v6)))
        };
        match made() {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                skip(test, Need::Root, e);
                None
            }
            made => Some(made.expect("the verifier takes it")),
        }
    }

    fn v4(protocol: u8, from: [u8; 4], part: u16, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 6];
        frame.extend(MAC);
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + body.len() as u16).to_be_bytes());
        frame.extend([0, 1]);
        frame.extend(part.to_be_bytes());
        frame.extend([64, protocol, 0, 0]);
        frame.extend([from, [10, 0, 0, 1]].concat());
        frame.extend(body);
        frame
    }

    fn v6(kind: u8, from: &str, body: &[u8]) -> Vec<u8> {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address").0.to_vec();
        let length = (body.len() as u16).to_be_bytes();
        let head = [&[0x60, 0, 0, 0], &length[..], &[kind, 64]].concat();
        let ethernet = [vec![0; 6], MAC.to_vec(), vec![0x86, 0xdd]].concat();
        [ethernet, head, ip(from), ip("2001:db8::1"), body.to_vec()].concat()
    }

    #[test]
    fn only_what_comes_from_a_runs_own_ports_leaves() {
        let test = "only_what_comes_from_a_runs_own_ports_leaves";
        let Some((program, _maps)) = program(test) else { return };
        let judge = |frame: &[u8]| program.test_run(frame).expect("it runs");
        // About a packet that came to this port.
        let icmp = |kind: u8, protocol: u8, port: u16| {
            let quoted = v4(protocol, OTHER, 0, &ports(9, port)).split_off(14);
            [&[kind, 0, 0, 0, 0, 0, 0, 0], &quoted[..]].concat()
        };
        let icmp6 = |kind: u8, next: u8, body: &[u8]| {
            let quoted = v6(next, "2001:db8::3", body).split_off(14);
            [&[kind, 0, 0, 0, 0, 0, 0, 0], &quoted[..]].concat()
        };
        let head = |body: &[u8]| [&[UDP, 0, 0, 1, 0, 0, 0, 1], body].concat();
        let mut spoofed = v4(TCP, OWN, 0, &ports(80, 9));
        spoofed[7] ^= 1;
        let mut arp = v4(TCP, OWN, 0, &ports(80, 9));
        arp[13] = 6;
        for (what, frame, verdict) in [
            ("its port", v4(TCP, OWN, 0, &ports(80, 9)), SENT),
            ("its port of UDP", v4(UDP, OWN, 0, &ports(53, 9)), SENT),
            ("another's", v4(TCP, OWN, 0, &ports(81, 9)), DROPPED),
            ("Linux's", v4(TCP, OWN, 0, &ports(22, 9)), DROPPED),
            ("another protocol", v4(UDP, OWN, 0, &ports(80, 9)), DROPPED),
            ("another address", v4(TCP, OTHER, 0, &ports(80, 9)), DROPPED),
            ("another Ethernet address", spoofed, DROPPED),
            ("no IP", arp, DROPPED),
            ("a later fragment of another's", v4(UDP, OWN, 100, &ports(0, 0)), DROPPED),
            ("another's first fragment", v4(UDP, OWN, 0x2000, &ports(54, 9)), DROPPED),
            ("a first fragment", v4(UDP, OWN, 0x2000, &ports(53, 9)), SENT),
            ("its later fragment", v4(UDP, OWN, 100, &ports(0, 0)), SENT),
            ("another packet's", v4(TCP, OWN, 100, &ports(0, 0)), DROPPED),
            ("an error", v4(1, OWN, 0, &icmp(3, TCP, 80)), SENT),
            ("an error", v4(1, OWN, 0, &icmp(11, UDP, 53)), SENT),
            ("an error about another's", v4(1, OWN, 0, &icmp(3, TCP, 81)), DROPPED),
            ("an error about Linux's", v4(1, OWN, 0, &icmp(3, TCP, 22)), DROPPED),
            ("an error about a ping", v4(1, OWN, 0, &icmp(3, 1, 80)), DROPPED),
            ("an error without a packet", v4(1, OWN, 0, &icmp(3, TCP, 80)[..20]), DROPPED),
            ("an echo request", v4(1, OWN, 0, &icmp(8, TCP, 80)), DROPPED),
            ("its port", v6(TCP, OWN_V6, &ports(80, 9)), SENT),
            ("another's", v6(TCP, OWN_V6, &ports(81, 9)), DROPPED),
            ("the other family's", v4(TCP, OWN, 0, &ports(8080, 9)), SENT),
            ("the other family's", v6(TCP, OWN_V6, &ports(8080, 9)), DROPPED),
            ("another address", v6(TCP, "2001:db8::3", &ports(80, 9)), DROPPED),
            ("an error", v6(58, OWN_V6, &icmp6(1, TCP, &ports(9, 80))), SENT),
            ("an error about another's", v6(58, OWN_V6, &icmp6(1, TCP, &ports(9, 81))), DROPPED),
            ("about a first fragment", v6(58, OWN_V6, &icmp6(3, 44, &head(&ports(9, 53)))), SENT),
            ("about another's", v6(58, OWN_V6, &icmp6(3, 44, &head(&ports(9, 54)))), DROPPED),
            ("about a header", v6(58, OWN_V6, &icmp6(4, 60, &[0; 24])), SENT),
            ("about Linux's size", v6(58, OWN_V6, &icmp6(2, 60, &[0; 24])), DROPPED),
            ("Neighbour Discovery", v6(58, OWN_V6, &icmp6(136, TCP, &ports(9, 80))), DROPPED),
        ] {
            assert_eq!(judge(&frame), verdict, "{what}: {frame:02x?}");
        }
        let fragment = |part: u16, port: u16| {
            let head = [&[UDP, 0][..], &part.to_be_bytes(), &[0, 0, 0, 1]].concat();
            v6(44, OWN_V6, &[&head[..], &ports(port, 9)].concat())
        };
        assert_eq!(judge(&fragment(185 << 3, 0)), DROPPED, "the first one is another's");
        assert_eq!(judge(&fragment(1, 54)), DROPPED);
        assert_eq!(judge(&fragment(1, 53)), SENT);
        assert_eq!(judge(&fragment(185 << 3, 0)), SENT);
        assert_eq!(judge(&fragment(0, 53)), SENT, "whole");
        assert_eq!(judge(&fragment(0, 54)), DROPPED, "whole");
    }
}
