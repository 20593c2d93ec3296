//! The XDP program where IX shares Linux's own address: what belongs to a port that IX owns goes to
//! our sockets, all else on to Linux.
//!
//! A packet of an owned port never reaches Linux, which would answer it with a RST or a "port
//! unreachable": where no socket takes it, it is dropped. Which ports are owned stands in an array,
//! which the broker changes while traffic runs. The first fragment of a packet has the ports; the
//! program remembers the packet for the fragments behind it. An error of ICMP belongs to whom the
//! packet belongs that it quotes. The part for IPv6 is in [`v6`].
pub(crate) mod links;
mod v6;

use super::program::{
    ETHERNET_END, ETHERTYPE, IPV4, IPV4_DESTINATION, IPV4_END, IPV6, MD_DATA, MD_DATA_END,
    MD_RX_QUEUE, XDP_PASS, check_length, jump_if_ours,
};
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use crate::xdp::TO_SOCKETS;
use crate::xdp::{FAMILY_PORTS, FRAGMENT_KEY, FRAGMENT_KEY_V6, PORTS};
use ix_sys::bpf::{
    HELPER_MAP_DELETE, HELPER_MAP_LOOKUP, HELPER_MAP_UPDATE, HELPER_REDIRECT_MAP, Map, Memory,
};
use ix_wire::IpAddr;
use std::os::fd::RawFd;

const XDP_DROP: i32 = 1;
const ICMP: u32 = 1;
const TCP: u32 = 6;
const UDP: u32 = 17;
/// Destination Unreachable, Time Exceeded, Parameter Problem.
const ICMP_ERRORS: [u32; 3] = [3, 11, 12];

// Offsets in the frame.
const VERSION: i16 = 14;
const IDENTIFICATION: i16 = 14 + 4;
const FRAGMENT: i16 = 14 + 6;
const PROTOCOL: i16 = 14 + 9;
const SOURCE: i16 = 14 + 12;
// Offsets behind the IP header.
const DESTINATION_PORT: i16 = 2;
const PORTS_END: i32 = 4;
const QUOTED: i16 = 8;
const QUOTED_PROTOCOL: i16 = QUOTED + 9;
const QUOTED_SOURCE: i16 = QUOTED + 12;
const QUOTED_PORT: i16 = QUOTED + 20;
const QUOTED_END: i32 = 8 + 20 + 4;

// On the stack.
const KEY: i16 = -4;
const VALUE: i16 = -8;
const PACKET: i16 = -24;
/// Whose the packet is.
const OWNER: i16 = -80;

/// What the program looks at.
pub(crate) struct Maps<'a> {
    pub sockets: &'a Map,
    /// The owner of each port: of IPv4's TCP, then of its UDP, then of IPv6's; 0: Linux.
    pub owned: &'a Map,
    /// Where the packets of each owner go.
    pub owners: &'a Map,
    /// The near end of the link of each owner that has one.
    pub links: &'a Map,
    /// Packets whose first fragment was IX's, with their owners.
    pub fragments: &'a Memory<FRAGMENT_KEY>,
    /// The same of IPv6.
    pub fragments_v6: &'a Memory<FRAGMENT_KEY_V6>,
}

/// The families of ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

const CTX: Reg = Reg::R9;
const DATA: Reg = Reg::R7;
const END: Reg = Reg::R8;
/// Behind the IP header.
const BODY: Reg = Reg::R6;
const FIELD: Reg = Reg::R4;
const BITS: Reg = Reg::R5;

/// The program for these addresses, and the groups that IX's sockets listen to. A datagram to all
/// hosts belongs to whom its port belongs.
pub(crate) fn shared_program(
    maps: &Maps<'_>,
    addresses: &[IpAddr],
    groups: &[IpAddr],
) -> Vec<Insn> {
    let mut a = Assembler::new();
    if addresses.is_empty() {
        // Linux has lost its address. The verifier takes no code that nothing leads to.
        a.mov_imm(Reg::R0, XDP_PASS);
        a.exit();
        return a.finish();
    }
    let [other, pass, ours] = std::array::from_fn(|_| a.label());
    let of_v6 =
        |all: &[IpAddr]| -> Vec<IpAddr> { all.iter().copied().filter(|ip| ip.is_v6()).collect() };
    let (own_v6, groups_v6) = (of_v6(addresses), of_v6(groups));
    // The verifier takes no code that nothing leads to.
    let has_v4 = own_v6.len() < addresses.len();
    a.mov(CTX, Reg::R1);
    a.load(Size::Word, DATA, CTX, MD_DATA);
    a.load(Size::Word, END, CTX, MD_DATA_END);
    check_length(&mut a, DATA, END, ETHERNET_END, pass);
    a.load(Size::Half, FIELD, DATA, ETHERTYPE);
    if has_v4 {
        a.jump_ne32(FIELD, u32::from(IPV4.to_be()), other);
        take_v4(&mut a, maps, (addresses, groups), (ours, pass));
        a.place(other);
    }
    if own_v6.is_empty() {
        a.jump(pass);
    } else {
        a.jump_ne32(FIELD, u32::from(IPV6.to_be()), pass);
        v6::take(&mut a, maps, (&own_v6, &groups_v6), (ours, pass));
    }

    a.place(ours);
    let [sockets, deliver] = std::array::from_fn(|_| a.label());
    lookup(&mut a, maps.owners.raw(), OWNER, pass);
    a.load(Size::Word, FIELD, Reg::R0, 0);
    // Its owner has just ended.
    a.jump_eq32(FIELD, 0, pass);
    a.jump_eq32(FIELD, TO_SOCKETS, sockets);
    a.mov_map(Reg::R1, maps.links.raw());
    a.load(Size::Word, Reg::R2, Reg::R10, OWNER);
    a.jump(deliver);
    a.place(sockets);
    a.mov_map(Reg::R1, maps.sockets.raw());
    a.load(Size::Word, Reg::R2, CTX, MD_RX_QUEUE);
    a.place(deliver);
    a.mov_imm(Reg::R3, XDP_DROP); // if no socket or link is at this index
    a.call(HELPER_REDIRECT_MAP);
    a.exit();

    a.place(pass);
    a.mov_imm(Reg::R0, XDP_PASS);
    a.exit();
    a.finish()
}

/// Jumps to `ours` for an IPv4 packet of IX's, else to `pass`.
fn take_v4(
    a: &mut Assembler,
    maps: &Maps<'_>,
    (addresses, groups): (&[IpAddr], &[IpAddr]),
    (ours, pass): (Label, Label),
) {
    let [found, group, whole, first, linuxs, icmp, quoted, own] =
        std::array::from_fn(|_| a.label());
    check_length(a, DATA, END, IPV4_END, pass);
    a.load(Size::Word, FIELD, DATA, IPV4_DESTINATION);
    jump_if_ours(a, FIELD, addresses, found);
    jump_if_ours(a, FIELD, groups, group);
    a.jump_ne32(FIELD, u32::MAX, pass);
    a.place(group);
    a.load(Size::Byte, FIELD, DATA, PROTOCOL);
    a.jump_ne32(FIELD, UDP, pass);

    a.place(found);
    body(a, pass);
    half(a, BITS, DATA, FRAGMENT);
    a.load(Size::Byte, FIELD, DATA, PROTOCOL);
    a.and_imm(BITS, 0x3fff);
    a.jump_zero(BITS, whole);

    // A fragment: the first one has no offset.
    note_packet(a);
    a.and_imm(BITS, 0x1fff);
    a.jump_zero(BITS, first);
    lookup(a, maps.fragments.raw(), PACKET, pass);
    of_owner(a);
    a.jump(ours);
    a.place(first);
    check_length(a, BODY, END, PORTS_END, linuxs);
    unless_owned(a, (maps.owned, Family::V4), DESTINATION_PORT, linuxs);
    remember(a, maps.fragments.raw(), PACKET);
    a.jump(ours);
    // An earlier packet with the same number may have been IX's.
    a.place(linuxs);
    forget(a, maps.fragments.raw(), PACKET);
    a.jump(pass);

    a.place(whole);
    a.jump_eq32(FIELD, ICMP, icmp);
    check_length(a, BODY, END, PORTS_END, pass);
    unless_owned(a, (maps.owned, Family::V4), DESTINATION_PORT, pass);
    a.jump(ours);

    // An error quotes a packet that we have sent.
    a.place(icmp);
    check_length(a, BODY, END, QUOTED_END, pass);
    a.load(Size::Byte, FIELD, BODY, 0);
    let [unreachable, exceeded, problem] = ICMP_ERRORS;
    a.jump_eq32(FIELD, unreachable, quoted);
    a.jump_eq32(FIELD, exceeded, quoted);
    a.jump_ne32(FIELD, problem, pass);
    a.place(quoted);
    a.load(Size::Byte, FIELD, BODY, QUOTED);
    a.jump_ne32(FIELD, 0x45, pass);
    a.load(Size::Word, FIELD, BODY, QUOTED_SOURCE);
    jump_if_ours(a, FIELD, addresses, own);
    a.jump(pass);
    a.place(own);
    a.load(Size::Byte, FIELD, BODY, QUOTED_PROTOCOL);
    unless_owned(a, (maps.owned, Family::V4), QUOTED_PORT, pass);
    a.jump(ours);
}

/// Puts the key of the fragmented packet onto the stack; its protocol is in [`FIELD`].
fn note_packet(a: &mut Assembler) {
    a.load(Size::Word, Reg::R1, DATA, SOURCE);
    a.store(Size::Word, Reg::R10, PACKET, Reg::R1);
    a.load(Size::Word, Reg::R1, DATA, IPV4_DESTINATION);
    a.store(Size::Word, Reg::R10, PACKET + 4, Reg::R1);
    a.load(Size::Half, Reg::R1, DATA, IDENTIFICATION);
    a.mov(Reg::R2, FIELD);
    a.shl_imm(Reg::R2, 16);
    a.or(Reg::R1, Reg::R2);
    a.store(Size::Word, Reg::R10, PACKET + 8, Reg::R1);
}

/// Forgets the packet of this key on the stack, if it was remembered.
fn forget(a: &mut Assembler, fragments: RawFd, key: i16) {
    a.mov_map(Reg::R1, fragments);
    a.mov(Reg::R2, Reg::R10);
    a.add_imm(Reg::R2, i32::from(key));
    a.call(HELPER_MAP_DELETE);
}

/// Remembers the packet of this key on the stack for its later fragments.
fn remember(a: &mut Assembler, fragments: RawFd, key: i16) {
    a.load(Size::Word, Reg::R1, Reg::R10, OWNER);
    a.store(Size::Word, Reg::R10, VALUE, Reg::R1);
    a.mov_map(Reg::R1, fragments);
    for (register, at) in [(Reg::R2, key), (Reg::R3, VALUE)] {
        a.mov(register, Reg::R10);
        a.add_imm(register, i32::from(at));
    }
    a.mov_imm(Reg::R4, 0);
    a.call(HELPER_MAP_UPDATE);
}

/// Points [`BODY`] behind the IP header, if that is as long as it says.
fn body(a: &mut Assembler, pass: Label) {
    a.load(Size::Byte, FIELD, DATA, VERSION);
    a.mov(BITS, FIELD);
    a.shr_imm(BITS, 4);
    a.jump_ne32(BITS, 4, pass);
    a.and_imm(FIELD, 0x0f);
    a.shl_imm(FIELD, 2);
    a.mov_imm(BITS, IPV4_END - ETHERNET_END);
    a.jump_lt(FIELD, BITS, pass);
    a.mov(BODY, DATA);
    a.add_imm(BODY, ETHERNET_END);
    a.add(BODY, FIELD);
}

/// Jumps to `pass` unless the port behind [`BODY`] is owned; the protocol is in [`FIELD`].
fn unless_owned(a: &mut Assembler, owned: (&Map, Family), at: i16, pass: Label) {
    owner_of(a, owned, at, pass);
    a.store(Size::Word, Reg::R10, OWNER, FIELD);
}

/// The packet belongs to the owner whose number R0 points to.
fn of_owner(a: &mut Assembler) {
    a.load(Size::Word, FIELD, Reg::R0, 0);
    a.store(Size::Word, Reg::R10, OWNER, FIELD);
}

/// Puts the owner of the port behind [`BODY`] into [`FIELD`], which has the protocol; jumps to
/// `pass` if it is Linux's.
fn owner_of(a: &mut Assembler, (owned, family): (&Map, Family), at: i16, pass: Label) {
    let known = a.label();
    half(a, BITS, BODY, at);
    if family == Family::V6 {
        a.add_imm(BITS, FAMILY_PORTS as i32);
    }
    a.jump_eq32(FIELD, TCP, known);
    a.jump_ne32(FIELD, UDP, pass);
    a.add_imm(BITS, PORTS as i32);
    a.place(known);
    a.store(Size::Word, Reg::R10, KEY, BITS);
    lookup(a, owned.raw(), KEY, pass);
    a.load(Size::Word, FIELD, Reg::R0, 0);
    a.jump_eq32(FIELD, 0, pass);
}

/// Looks a key on the stack up; the address of its value is in R0.
fn lookup(a: &mut Assembler, map: RawFd, key: i16, missing: Label) {
    a.mov_map(Reg::R1, map);
    a.mov(Reg::R2, Reg::R10);
    a.add_imm(Reg::R2, i32::from(key));
    a.call(HELPER_MAP_LOOKUP);
    a.jump_zero(Reg::R0, missing);
}

/// Loads a number of 16 bits in network order.
fn half(a: &mut Assembler, to: Reg, from: Reg, at: i16) {
    a.load(Size::Half, to, from, at);
    a.big_endian(to, 16);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::ALL_PORTS;
    use ix_skip::{Need, skip};
    use ix_sys::bpf::{MapKind, Program, ProgramKind};

    const OWN: [u8; 4] = [10, 0, 0, 2];
    const PEER: [u8; 4] = [10, 0, 0, 1];
    const GROUP: [u8; 4] = [224, 1, 1, 1];
    pub(super) const PASSES: u32 = 2;
    /// Nothing is in the map of sockets.
    pub(super) const OURS: u32 = 1;

    pub(super) struct Rig {
        program: Program,
        pub owned: Map,
        _maps: (Map, Map, Map, Memory<FRAGMENT_KEY>, Memory<FRAGMENT_KEY_V6>),
    }

    impl Rig {
        fn new(test: &str) -> Option<Rig> {
            Rig::at(test, &[IpAddr::v4(OWN)])
        }

        pub fn at(test: &str, addresses: &[IpAddr]) -> Option<Rig> {
            let made = || -> std::io::Result<Rig> {
                let sockets = Map::new(MapKind::Xsk, c"ix_test", 1)?;
                let owned = Map::new(MapKind::Array, c"ix_test", ALL_PORTS)?;
                let fragments = Memory::new(c"ix_test", 16)?;
                let v6 = Memory::new(c"ix_test", 16)?;
                let owners = Map::new(MapKind::Array, c"ix_test", 4)?;
                let links = Map::new(MapKind::Dev, c"ix_test", 4)?;
                owners.set(1, TO_SOCKETS)?;
                let maps = Maps {
                    sockets: &sockets,
                    owned: &owned,
                    owners: &owners,
                    links: &links,
                    fragments: &fragments,
                    fragments_v6: &v6,
                };
                let insns = shared_program(&maps, addresses, &[IpAddr::v4(GROUP)]);
                let program = Program::load(ProgramKind::Xdp, c"ix_test", &insns, 0)?;
                Ok(Rig { program, owned, _maps: (sockets, owners, links, fragments, v6) })
            };
            match made() {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                    skip(test, Need::Root, e);
                    None
                }
                made => Some(made.expect("the verifier takes it")),
            }
        }

        pub fn judge(&self, frame: &[u8]) -> u32 {
            self.program.test_run(frame).expect("it runs")
        }
    }

    /// An IPv4 packet: header words of options, identification, fragment field, body.
    fn packet(
        protocol: u8,
        to: [u8; 4],
        options: usize,
        id: u16,
        part: u16,
        body: &[u8],
    ) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45 + options as u8, 0]);
        frame.extend((20 + 4 * options as u16 + body.len() as u16).to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend(part.to_be_bytes());
        frame.extend([64, protocol, 0, 0]);
        frame.extend([PEER, to].concat());
        frame.resize(frame.len() + 4 * options, 1);
        frame.extend(body);
        frame
    }

    pub(super) fn ports(from: u16, to: u16) -> Vec<u8> {
        [from.to_be_bytes().to_vec(), to.to_be_bytes().to_vec(), vec![0; 16]].concat()
    }

    #[test]
    fn only_owned_ports_are_ours() {
        let Some(rig) = Rig::new("only_owned_ports_are_ours") else { return };
        let tcp = |to, options, port| packet(6, to, options, 1, 0, &ports(9, port));
        let udp = |port| packet(17, OWN, 0, 1, 0, &ports(9, port));
        assert_eq!(rig.judge(&tcp(OWN, 0, 80)), PASSES);
        rig.owned.set(80, 1).expect("set");
        rig.owned.set(PORTS + 53, 1).expect("set");
        rig.owned.set(FAMILY_PORTS - 1, 1).expect("set");
        // Of IPv6.
        rig.owned.set(FAMILY_PORTS + 22, 1).expect("set");
        for options in [0, 1, 10] {
            assert_eq!(rig.judge(&tcp(OWN, options, 80)), OURS, "{options}");
            assert_eq!(rig.judge(&tcp(OWN, options, 22)), PASSES, "{options}");
        }
        assert_eq!(rig.judge(&tcp([10, 0, 0, 3], 0, 80)), PASSES, "another address");
        assert_eq!(rig.judge(&udp(80)), PASSES, "another protocol");
        assert_eq!((rig.judge(&udp(53)), rig.judge(&udp(65_535))), (OURS, OURS));
        let mut short = packet(6, OWN, 0, 1, 0, &ports(9, 80)[..3]);
        assert_eq!(rig.judge(&short), PASSES, "ends before its ports");
        short[14] = 0x44;
        assert_eq!(rig.judge(&short), PASSES, "a header that is too short");
        let mut arp = packet(6, OWN, 0, 1, 0, &ports(9, 80));
        arp[13] = 6;
        assert_eq!(rig.judge(&arp), PASSES);
        rig.owned.set(80, 2).expect("set");
        assert_eq!(rig.judge(&tcp(OWN, 0, 80)), PASSES, "its owner has ended");
        rig.owned.set(80, 0).expect("set");
        assert_eq!(rig.judge(&tcp(OWN, 0, 80)), PASSES, "given back");
    }

    /// What is sent to several hosts is ours if its port is, and if our sockets listen to the
    /// group.
    #[test]
    fn datagrams_to_groups_and_to_all_are_ours_by_port() {
        let Some(rig) = Rig::new("datagrams_to_groups_and_to_all_are_ours_by_port") else { return };
        for port in [80, PORTS + 53] {
            rig.owned.set(port, 1).expect("set");
        }
        let to = |protocol, to, port| packet(protocol, to, 0, 1, 0, &ports(9, port));
        for (protocol, address, port, expected) in [
            (17, GROUP, 53, OURS),
            (17, [255; 4], 53, OURS),
            (17, GROUP, 54, PASSES),
            (17, [255; 4], 54, PASSES),
            (17, [224, 1, 1, 2], 53, PASSES),
            (6, GROUP, 80, PASSES),
            (2, GROUP, 80, PASSES),
        ] {
            assert_eq!(rig.judge(&to(protocol, address, port)), expected, "{address:?} {port}");
        }
    }

    #[test]
    fn without_an_address_all_is_linuxs() {
        let Some(rig) = Rig::at("without_an_address_all_is_linuxs", &[]) else { return };
        rig.owned.set(80, 1).expect("set");
        assert_eq!(rig.judge(&packet(6, OWN, 0, 1, 0, &ports(9, 80))), PASSES);
    }

    #[test]
    fn fragments_follow_the_first_one() {
        const MORE: u16 = 0x2000;
        let Some(rig) = Rig::new("fragments_follow_the_first_one") else { return };
        rig.owned.set(PORTS + 53, 1).expect("set");
        let first = |id, port| packet(17, OWN, 0, id, MORE, &ports(9, port));
        // Its bytes look like an owned port, and are none.
        let next = |id| packet(17, OWN, 0, id, 185, &ports(9, 53));
        assert_eq!(rig.judge(&next(1)), PASSES, "nothing is known of it");
        assert_eq!((rig.judge(&first(1, 53)), rig.judge(&next(1))), (OURS, OURS));
        assert_eq!((rig.judge(&first(2, 54)), rig.judge(&next(2))), (PASSES, PASSES));
        let of_tcp = packet(6, OWN, 0, 1, 185, &ports(9, 53));
        assert_eq!(rig.judge(&of_tcp), PASSES, "another packet with the same number");
        // The peer's numbers come again, and this packet is Linux's.
        assert_eq!((rig.judge(&first(1, 54)), rig.judge(&next(1))), (PASSES, PASSES));
    }

    #[test]
    fn errors_belong_to_whom_they_quote() {
        let Some(rig) = Rig::new("errors_belong_to_whom_they_quote") else { return };
        rig.owned.set(80, 1).expect("set");
        let error = |kind: u8, from: [u8; 4], port: u16| {
            let mut quoted = packet(6, PEER, 0, 1, 0, &ports(port, 9)).split_off(14);
            quoted[12..16].copy_from_slice(&from);
            packet(1, OWN, 0, 1, 0, &[vec![kind, 4, 0, 0, 0, 0, 0, 0], quoted].concat())
        };
        for kind in [3, 11, 12] {
            assert_eq!(rig.judge(&error(kind, OWN, 80)), OURS, "{kind}");
            assert_eq!(rig.judge(&error(kind, OWN, 22)), PASSES, "{kind}");
        }
        assert_eq!(rig.judge(&error(3, PEER, 80)), PASSES, "another host's packet");
        assert_eq!(rig.judge(&error(8, OWN, 80)), PASSES, "an echo request");
    }
}
