//! Filters as eBPF: the program checks a packet as [`ix_vnic::Filter::matches`] does.
//!
//! The filters are part of the program, not data in a map. To change filters is to replace the
//! program, which the kernel does between two packets, so no packet sees half of a change. The
//! program first stores the header on the stack, one word of 64 bits for each field, all ones if
//! the packet lacks the field; an address of IPv6 has four words of 32 bits, the first one first.
//! Then each filter is a sequence of comparisons. Parsing mirrors [`ix_vnic::Header::read`].
use crate::asm::{Assembler, Label, Reg, Size};
use ix_vnic::{
    Direction, EXTENSIONS, EXTENSIONS_MAX, FRAGMENT, Field, Filter, ICMPV6, Level,
    ND_ADVERTISEMENT, ND_SOLICITATION, ND_TYPES, Ranges, UNTAGGED,
};

// Offsets of fields on the stack, below R10.
const VLAN: i16 = -8;
const ETHERTYPE: i16 = -16;
pub(crate) const ETH_SRC: i16 = -24;
const ETH_DST: i16 = -32;
const PROTOCOL: i16 = -40;
const SRC: i16 = -48;
const DST: i16 = -56;
const SRC_PORT: i16 = -64;
const DST_PORT: i16 = -72;
pub(crate) const ARP_SENDER_MAC: i16 = -80;
pub(crate) const ARP_SENDER: i16 = -88;
pub(crate) const ARP_TARGET: i16 = -96;
/// The type of an ICMPv6 message of a packet without a tag.
pub(crate) const ICMPV6_TYPE: i16 = -104;
/// The same of a message of Neighbour Discovery about neighbours, directly behind the IPv6 header.
pub(crate) const ND_KIND: i16 = -112;
/// The Ethernet address in its only option; without an option, the sender's.
pub(crate) const ND_MAC: i16 = -120;
/// Addresses of IPv6. Only where there is a protocol, or a kind of Neighbour Discovery.
pub(crate) const SRC_V6: i16 = -136;
pub(crate) const DST_V6: i16 = -152;
pub(crate) const ND_TARGET: i16 = -168;
/// The lowest one.
pub(crate) const LAST: i16 = ND_TARGET;

/// Stack slot of a field, for packets in this direction.
fn slot_of(filter: &Filter, field: Field) -> i16 {
    let (direction, is_v6) = (filter.direction(), filter.level().is_v6());
    let side = |service: i16, peer: i16| match direction {
        Direction::Receive => [service, peer],
        Direction::Transmit => [peer, service],
    };
    match field {
        Field::Vlan => VLAN,
        Field::EtherType => ETHERTYPE,
        Field::ServiceMac => side(ETH_DST, ETH_SRC)[0],
        Field::PeerMac => side(ETH_DST, ETH_SRC)[1],
        Field::Protocol => PROTOCOL,
        Field::ServiceAddress if is_v6 => side(DST_V6, SRC_V6)[0],
        Field::PeerAddress if is_v6 => side(DST_V6, SRC_V6)[1],
        Field::ServiceAddress => side(DST, SRC)[0],
        Field::PeerAddress => side(DST, SRC)[1],
        Field::ServicePort => side(DST_PORT, SRC_PORT)[0],
        Field::PeerPort => side(DST_PORT, SRC_PORT)[1],
    }
}

/// Stores the header of the frame from R7 to R8 on the stack. Jumps to `bad` if the frame is too
/// short for its type. Uses R0 to R6. The Ethernet addresses stand `front` bytes before R7, where
/// a tag behind them was skipped.
pub(crate) fn lay_out(a: &mut Assembler, front: i16, bad: Label) {
    let (data, end, at, field) = (Reg::R7, Reg::R8, Reg::R6, Reg::R4);
    a.mov_imm(field, -1);
    (LAST..0).step_by(8).for_each(|slot| a.store(Size::Double, Reg::R10, slot, field));
    a.mov(at, data);
    needs(a, at, end, 14, bad);
    for (slot, offset) in [(ETH_DST, 0), (ETH_SRC, 6)] {
        mac(a, slot, data, offset - front);
    }
    a.mov_imm(Reg::R3, i32::from(UNTAGGED));
    half(a, field, data, 12);
    let (tagged, untagged, known) = (a.label(), a.label(), a.label());
    a.jump_eq32(field, 0x8100, tagged);
    a.jump_ne32(field, 0x88a8, untagged);
    a.place(tagged);
    needs(a, at, end, 18, bad);
    half(a, Reg::R3, data, 14);
    a.and_imm(Reg::R3, 0x0fff);
    half(a, field, data, 16);
    a.add_imm(at, 4);
    a.place(untagged);
    a.add_imm(at, 14);
    a.store(Size::Double, Reg::R10, VLAN, Reg::R3);
    a.store(Size::Double, Reg::R10, ETHERTYPE, field);
    let (arp, v6) = (a.label(), a.label());
    a.jump_eq32(field, 0x0806, arp);
    a.jump_eq32(field, 0x86dd, v6);
    a.jump_ne32(field, 0x0800, known);
    lay_out_ipv4(a, bad, known);
    a.place(arp);
    lay_out_arp(a, known);
    a.jump(known);
    a.place(v6);
    lay_out_ipv6(a, front, bad, known);
    a.place(known);
}

/// Parses the IPv6 packet at R6; falls through at its end.
fn lay_out_ipv6(a: &mut Assembler, front: i16, bad: Label, done: Label) {
    let (end, at, field, protocol) = (Reg::R8, Reg::R6, Reg::R4, Reg::R5);
    needs(a, at, end, 40, bad);
    a.load(Size::Byte, field, at, 0);
    a.shr_imm(field, 4);
    a.jump_ne32(field, 6, bad);
    for (slot, offset) in [(SRC_V6, 8), (DST_V6, 24)] {
        address(a, slot, at, offset);
    }
    a.load(Size::Byte, protocol, at, 6);
    let (plain, ports, behind, part) = (a.label(), a.label(), a.label(), a.label());
    a.jump_eq32(protocol, ICMPV6.into(), plain);
    a.add_imm(at, 40);
    for _ in 0..EXTENSIONS_MAX {
        let (extension, fragment, next) = (a.label(), a.label(), a.label());
        EXTENSIONS.iter().for_each(|kind| a.jump_eq32(protocol, (*kind).into(), extension));
        a.jump_eq32(protocol, FRAGMENT.into(), fragment);
        a.jump(behind);
        a.place(fragment);
        needs(a, at, end, 8, bad);
        half(a, field, at, 2);
        a.load(Size::Byte, protocol, at, 0);
        a.and_imm(field, 0xfff9);
        a.jump_ne32(field, 0, part);
        a.add_imm(at, 8);
        a.jump(next);
        a.place(extension);
        needs(a, at, end, 8, bad);
        a.load(Size::Byte, protocol, at, 0);
        a.load(Size::Byte, field, at, 1);
        a.add_imm(field, 1);
        a.shl_imm(field, 3);
        a.add(at, field);
        a.place(next);
    }
    for kind in EXTENSIONS.into_iter().chain([FRAGMENT]) {
        a.jump_eq32(protocol, kind.into(), bad);
    }
    a.place(behind);
    a.jump_eq32(protocol, 6, ports);
    a.jump_eq32(protocol, 17, ports);
    a.jump_ne32(protocol, ICMPV6.into(), part);
    needs(a, at, end, 4, bad);
    icmpv6_type(a, at);
    for kind in ND_TYPES {
        a.jump_eq32(field, kind.into(), done);
    }
    a.place(part);
    a.store(Size::Double, Reg::R10, PROTOCOL, protocol);
    a.jump(done);
    a.place(ports);
    needs(a, at, end, 4, bad);
    a.store(Size::Double, Reg::R10, PROTOCOL, protocol);
    for (slot, offset) in [(SRC_PORT, 0), (DST_PORT, 2)] {
        half(a, field, at, offset);
        a.store(Size::Double, Reg::R10, slot, field);
    }
    a.jump(done);

    a.place(plain);
    needs(a, at, end, 44, bad);
    a.mov(Reg::R3, at);
    a.add_imm(Reg::R3, 40);
    icmpv6_type(a, Reg::R3);
    let nd = a.label();
    a.jump_eq32(field, ND_SOLICITATION.into(), nd);
    a.jump_eq32(field, ND_ADVERTISEMENT.into(), nd);
    for kind in ND_TYPES {
        a.jump_eq32(field, kind.into(), done);
    }
    a.jump(part);
    a.place(nd);
    lay_out_nd(a, front, done);
}

/// Stores the type of the ICMPv6 message at `message`, if the packet has no tag; it is in R4 then.
fn icmpv6_type(a: &mut Assembler, message: Reg) {
    let (field, tagged) = (Reg::R4, a.label());
    a.load(Size::Double, Reg::R2, Reg::R10, VLAN);
    a.load(Size::Byte, field, message, 0);
    a.jump_ne32(Reg::R2, UNTAGGED.into(), tagged);
    a.store(Size::Double, Reg::R10, ICMPV6_TYPE, field);
    a.place(tagged);
}

/// Stores what the message of Neighbour Discovery in the IPv6 packet at R6 says, if it has no tag.
/// R4 has its type.
fn lay_out_nd(a: &mut Assembler, front: i16, done: Label) {
    let (data, end, at, field) = (Reg::R7, Reg::R8, Reg::R6, Reg::R4);
    a.load(Size::Double, Reg::R2, Reg::R10, VLAN);
    a.jump_ne32(Reg::R2, UNTAGGED.into(), done);
    needs(a, at, end, 64, done);
    a.store(Size::Double, Reg::R10, ND_KIND, field);
    address(a, ND_TARGET, at, 48);
    half(a, Reg::R3, at, 4);
    let option = a.label();
    a.jump_ne32(Reg::R3, 24, option);
    mac(a, ND_MAC, data, 6 - front);
    a.jump(done);
    a.place(option);
    a.jump_ne32(Reg::R3, 32, done);
    needs(a, at, end, 72, done);
    half(a, field, at, 64);
    let link = a.label();
    a.jump_eq32(field, 0x0101, link);
    a.jump_ne32(field, 0x0201, done);
    a.place(link);
    mac(a, ND_MAC, at, 66);
}

/// Stores an IPv6 address.
fn address(a: &mut Assembler, slot: i16, from: Reg, offset: i16) {
    for word in (0..16).step_by(4) {
        a.load(Size::Word, Reg::R4, from, offset + word);
        a.big_endian(Reg::R4, 32);
        a.store(Size::Word, Reg::R10, slot + word, Reg::R4);
    }
}

/// Parses the ARP packet at R6, if it is untagged and for IPv4 over Ethernet; falls through at its
/// end.
fn lay_out_arp(a: &mut Assembler, done: Label) {
    let (end, at, field) = (Reg::R8, Reg::R6, Reg::R4);
    a.jump_ne32(Reg::R3, u32::from(UNTAGGED), done);
    needs(a, at, end, 28, done);
    // Ethernet (1) and IPv4 (0x0800), addresses of 6 and 4 bytes.
    for (offset, wanted) in [(0, 1), (2, 0x0800), (4, 0x0604)] {
        half(a, field, at, offset);
        a.jump_ne32(field, wanted, done);
    }
    mac(a, ARP_SENDER_MAC, at, 8);
    for (slot, offset) in [(ARP_SENDER, 14), (ARP_TARGET, 24)] {
        a.load(Size::Word, field, at, offset);
        a.big_endian(field, 32);
        a.store(Size::Double, Reg::R10, slot, field);
    }
}

/// Parses the IPv4 packet at R6.
fn lay_out_ipv4(a: &mut Assembler, bad: Label, done: Label) {
    let (end, at, field) = (Reg::R8, Reg::R6, Reg::R4);
    needs(a, at, end, 20, bad);
    let version = Reg::R3;
    a.load(Size::Byte, version, at, 0);
    a.mov(Reg::R5, version);
    a.shr_imm(Reg::R5, 4);
    a.jump_ne32(Reg::R5, 4, bad);
    a.and_imm(version, 0x0f);
    a.shl_imm(version, 2);
    a.mov_imm(Reg::R5, 20);
    a.jump_lt(version, Reg::R5, bad);
    for (slot, offset) in [(SRC, 12), (DST, 16)] {
        a.load(Size::Word, field, at, offset);
        a.big_endian(field, 32);
        a.store(Size::Double, Reg::R10, slot, field);
    }
    half(a, Reg::R5, at, 6);
    a.load(Size::Byte, field, at, 9);
    a.store(Size::Double, Reg::R10, PROTOCOL, field);
    // A fragment has no ports.
    a.and_imm(Reg::R5, 0x3fff);
    let (ports, whole) = (a.label(), a.label());
    a.jump_zero(Reg::R5, whole);
    a.jump(done);
    a.place(whole);
    a.jump_eq32(field, 6, ports);
    a.jump_ne32(field, 17, done);
    a.place(ports);
    a.add(at, version);
    needs(a, at, end, 4, bad);
    for (slot, offset) in [(SRC_PORT, 0), (DST_PORT, 2)] {
        half(a, field, at, offset);
        a.store(Size::Double, Reg::R10, slot, field);
    }
    a.jump(done);
}

/// Jumps to `taken` if the filter takes the header on the stack.
pub(crate) fn ask(a: &mut Assembler, filter: &Filter, taken: Label) {
    if filter.fields().is_empty() {
        // A comparison, although its result is known: the kernel must consider the following code
        // reachable.
        a.load(Size::Double, Reg::R4, Reg::R10, VLAN);
        return a.jump_le(Reg::R4, Reg::R4, taken);
    }
    let next_filter = a.label();
    for (field, values) in filter.fields() {
        let slot = slot_of(filter, *field);
        match field {
            Field::ServiceAddress | Field::PeerAddress if filter.level().is_v6() => {
                ask_ranges_v6(a, slot, values, next_filter);
            }
            _ => ask_ranges(a, slot, values, next_filter),
        }
        // No message of Neighbour Discovery, which has no protocol here.
        if *field == Field::EtherType
            && filter.level() == Level::Ipv6
            && filter.field(Field::Protocol).is_none()
        {
            let every = Ranges::new([(0, u8::MAX.into())]);
            ask_ranges(a, PROTOCOL, &every, next_filter);
        }
    }
    a.jump(taken);
    a.place(next_filter);
}

/// Jumps to `outside` unless the field's value is in one of the ranges. One jump serves all ranges:
/// the kernel follows every path of a program, and several lists would have very many. No jump
/// leads to the next instruction: the kernel removes such jumps one by one, and moves the rest of
/// the program each time.
pub(crate) fn ask_ranges(a: &mut Assembler, slot: i16, values: &Ranges, outside: Label) {
    let (value, bound, beyond, all) = (Reg::R4, Reg::R5, Reg::R2, Reg::R3);
    a.load(Size::Double, value, Reg::R10, slot);
    if values.is_empty() {
        a.mov_imm(all, -1);
    }
    for (number, (low, high)) in values.as_slice().iter().enumerate() {
        // Negative if the value is below the lower end or above the upper one.
        a.mov(beyond, value);
        constant(a, bound, *low);
        a.sub(beyond, bound);
        constant(a, bound, *high);
        a.sub(bound, value);
        a.or(beyond, bound);
        match number {
            0 => a.mov(all, beyond),
            _ => a.and(all, beyond),
        }
    }
    a.jump_negative(all, outside);
}

/// The same for an IPv6 address.
pub(crate) fn ask_ranges_v6(a: &mut Assembler, slot: i16, values: &Ranges, outside: Label) {
    let (beyond, all) = (Reg::R0, Reg::R3);
    if values.is_empty() {
        a.mov_imm(all, -1);
    }
    for (number, (low, high)) in values.as_slice().iter().enumerate() {
        less(a, slot, *low, false);
        a.mov(beyond, Reg::R2);
        less(a, slot, *high, true);
        a.or(beyond, Reg::R2);
        match number {
            0 => a.mov(all, beyond),
            _ => a.and(all, beyond),
        }
    }
    a.jump_negative(all, outside);
}

/// R2 is negative if the address is below the bound; with `above`, if it is above it. Word by word
/// from the last one, each borrows from the one before.
fn less(a: &mut Assembler, slot: i16, bound: u128, above: bool) {
    let (difference, taken, borrow) = (Reg::R2, Reg::R4, Reg::R5);
    for word in (0..4).rev() {
        let part = (bound >> (96 - 32 * word)) as u32;
        let (value, limit) = if above { (taken, difference) } else { (difference, taken) };
        a.load(Size::Word, value, Reg::R10, slot + 4 * word as i16);
        constant(a, limit, part.into());
        a.sub(difference, taken);
        if word != 3 {
            a.sub(difference, borrow);
        }
        if word != 0 {
            a.mov(borrow, difference);
            a.shr_imm(borrow, 63);
        }
    }
}

/// `dst =` a value of a field, or one more; all have less than 64 bits.
fn constant(a: &mut Assembler, dst: Reg, value: u128) {
    match i32::try_from(value) {
        Ok(value) => a.mov_imm(dst, value),
        Err(_) => a.mov_imm64(dst, value.min(i64::MAX as u128) as u64),
    }
}

/// Stores an Ethernet address.
fn mac(a: &mut Assembler, slot: i16, from: Reg, offset: i16) {
    let (high, low) = (Reg::R4, Reg::R5);
    half(a, high, from, offset);
    a.shl_imm(high, 32);
    a.load(Size::Word, low, from, offset + 2);
    a.big_endian(low, 32);
    a.or(high, low);
    a.store(Size::Double, Reg::R10, slot, high);
}

/// Jumps to `bad` unless there are `bytes` bytes between `at` and `end`.
fn needs(a: &mut Assembler, at: Reg, end: Reg, bytes: i32, bad: Label) {
    a.mov(Reg::R2, at);
    a.add_imm(Reg::R2, bytes);
    a.jump_gt(Reg::R2, end, bad);
}

/// `dst =` the big-endian 16-bit number at an offset.
fn half(a: &mut Assembler, dst: Reg, from: Reg, offset: i16) {
    a.load(Size::Half, dst, from, offset);
    a.big_endian(dst, 16);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_skip::{Need, skip};
    use ix_sys::bpf::{Program, ProgramKind};
    use ix_vnic::Header;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    /// A program that returns 1 if one of the filters takes the packet, else 2.
    fn judge(filters: &[Filter]) -> std::io::Result<Program> {
        let mut a = Assembler::new();
        let (taken, other) = (a.label(), a.label());
        a.load(Size::Word, Reg::R7, Reg::R1, 0);
        a.load(Size::Word, Reg::R8, Reg::R1, 4);
        lay_out(&mut a, 0, other);
        filters.iter().for_each(|filter| ask(&mut a, filter, taken));
        a.place(other);
        a.mov_imm(Reg::R0, 2);
        a.exit();
        if !filters.is_empty() {
            a.place(taken);
            a.mov_imm(Reg::R0, 1);
            a.exit();
        }
        Program::load(ProgramKind::Xdp, c"ix_judge", &a.finish(), 0)
    }

    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let small = || prop::sample::select(vec![0u8, 1, 2, 5]);
        let kind = prop::sample::select(vec![0x0800u16, 0x0800, 0x0800, 0x0806, 0x88b5]);
        let protocol = prop::sample::select(vec![1u8, 6, 17]);
        let tag = prop::option::weighted(0.2, small());
        let ip = (
            prop::sample::select(vec![0x45u8, 0x45, 0x46, 0x44, 0x65]),
            prop::sample::select(vec![0u8, 0, 0, 0x20, 0x01]),
        );
        let ends = prop::array::uniform6(small());
        (ends, kind, protocol, tag, ip, 0usize..70).prop_map(
            |([mac, src, dst, sport, dport, pad], kind, protocol, tag, (version, flags), cut)| {
                let mut f = vec![2, 0, 0, 0, 0, mac, 2, 0, 0, 0, 0, pad];
                tag.iter().for_each(|vlan| f.extend([0x81, 0, 0, *vlan]));
                f.extend(kind.to_be_bytes());
                f.extend([version, 0, 0, 40, 0, 0, flags, 0, 64, protocol, 0, 0]);
                f.extend([10, 0, 0, src, 10, 0, 0, dst]);
                f.extend(std::iter::repeat_n(1, if version == 0x46 { 4 } else { 0 }));
                f.extend([0, sport, 0, dport]);
                f.resize(80, 0);
                // Sometimes truncated, but not below the minimum of the kernel's test.
                f.truncate(if cut < 14 { 80 } else { cut });
                f
            },
        )
    }

    /// An IPv6 packet between addresses of few values, behind extension headers.
    fn frame_v6() -> impl Strategy<Value = Vec<u8>> {
        let small = || prop::sample::select(vec![0u8, 1, 2, 5]);
        let last = prop::sample::select(vec![6u8, 6, 17, 58, 58, 58, 59]);
        let extension = (prop::sample::select(vec![0u8, 43, 44, 60]), 0u8..2, small());
        let chain = prop_oneof![
            3 => Just(Vec::new()),
            2 => prop::collection::vec(extension, 0..8)
        ];
        let body = (
            prop::sample::select(vec![128u8, 133, 134, 135, 136, 136, 137, 143]),
            prop::sample::select(vec![24u16, 32, 40]),
            prop::sample::select(vec![[1u8, 1], [2, 1], [14, 1], [1, 2]]),
        );
        let tag = prop::option::weighted(0.1, small());
        let ends = (prop::array::uniform4(small()), prop::array::uniform4(small()));
        (ends, chain, last, body, tag, 0usize..200).prop_map(
            |((high, low), chain, last, (kind, length, option), tag, cut)| {
                let mut f = vec![2, 0, 0, 0, 0, high[3], 2, 0, 0, 0, 0, 2];
                tag.iter().for_each(|vlan| f.extend([0x81, 0, 0, *vlan]));
                let kinds: Vec<u8> = chain.iter().map(|(kind, ..)| *kind).chain([last]).collect();
                f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                f.extend(length.to_be_bytes());
                f.extend([kinds[0], 255]);
                let address = |n: usize| {
                    let words = [0x2001_0db8, high[n].into(), 0xffff_ffff, low[n].into()];
                    words.map(u32::to_be_bytes).concat()
                };
                f.extend([address(0), address(1)].concat());
                for ((kind, length, field), next) in chain.iter().zip(&kinds[1..]) {
                    let length = if *kind == 44 { 0 } else { *length };
                    f.extend([*next, length, 0, if *kind == 44 { *field } else { 0 }, 0, 0, 0, 0]);
                    f.resize(f.len() + 8 * usize::from(length), 0);
                }
                match last {
                    58 => {
                        f.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
                        f.extend(address(2));
                        f.extend(option);
                        f.extend([2, 0, 0, 0, 0, 2]);
                    }
                    _ => f.extend([0, high[2], 0, low[2]]),
                }
                f.resize(f.len() + 8, 0);
                f.truncate(if cut < 14 { f.len() } else { cut });
                f
            },
        )
    }

    fn filters() -> impl Strategy<Value = Vec<Filter>> {
        let texts = prop::sample::select(vec![
            "rx tcp",
            "rx tcp service 10.0.0.1:1-2 peer 10.0.0.0/30",
            "rx tcp service 10.0.0.1,10.0.0.5:0,2,5",
            "rx udp service *:5 peer 10.0.0.5",
            "rx udp vlan 1,5",
            "rx ip proto 1 peer 10.0.0.2",
            "rx ip service 10.0.0.5 vlan *",
            "rx eth vlan *",
            "rx tcp6",
            "rx tcp service [2001:db8:1:0:ffff:ffff:0:1-2001:db8:2:0:ffff:ffff:0:2]:0-5",
            "rx udp service [2001:db8:0:1::/64,2001:db8:0:2:ffff:ffff:0:5]:1,5",
            "rx ip6",
            "rx ip6 proto 58,44 service 2001:db8:0:1::/64",
            "rx ip service 2001:db8:0:2:ffff:ffff:0:2 peer 2001:db8::/48",
            "rx ip6 peer ::-2001:db8:0:1:ffff:ffff:0:1,2001:db8:0:5::-ffff::",
            "rx eth type 0x86dd",
            "rx eth type 0x88b5 service 02:00:00:00:00:01",
            "rx eth peer 02:00:00:00:00:02-02:00:00:00:00:05 vlan none,2",
        ]);
        prop::collection::vec(texts.prop_map(|text| text.parse().expect(text)), 0..4)
    }

    /// As many filters as a shared interface may have, as long as they may be: the kernel accepts
    /// them.
    #[test]
    fn the_kernel_takes_many_long_lists() {
        let list = |part: &dyn Fn(usize) -> String| (0..16).map(part).collect::<Vec<_>>().join(",");
        let filter = |n: usize| {
            let address = list(&|i| format!("10.{}.{n}.10-10.{}.{n}.20", 100 + i, 100 + i));
            let port = list(&|i| format!("{}-{}", 1000 * (i + 1), 1000 * (i + 1) + n));
            let mac = list(&|i| format!("02:00:00:{n:02x}:00:{:02x}", 2 * i));
            let vlan = list(&|i| (2 * i).to_string());
            let text = format!(
                "rx tcp service {address}:{port} peer {address}:{port} service-mac {mac} \
                 peer-mac {mac} vlan {vlan},none"
            );
            let text = text.replace("30,none", "none");
            text.parse::<Filter>().expect("a filter")
        };
        let filter_v6 = |n: usize| {
            let address = list(&|i| format!("2001:db8:{}:{n}::10-2001:db8:{}:{n}::20", i, i));
            let port = list(&|i| format!("{}-{}", 1000 * (i + 1), 1000 * (i + 1) + n));
            let text = format!("rx tcp service [{address}]:{port} peer [{address}]:{port}");
            text.parse::<Filter>().expect("a filter")
        };
        let filters: Vec<Filter> = (0..64).map(filter_v6).collect();
        match judge(&filters) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            other => drop(other.expect("the verifier takes those of IPv6")),
        }
        let filters: Vec<Filter> = (0..128).map(filter).collect();
        let program = match judge(&filters) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                skip("the_kernel_takes_many_long_lists", Need::Root, e);
                return;
            }
            other => other.expect("the verifier takes it"),
        };
        for (n, port, verdict) in
            [(0, 1000u16, 1), (127, 16_127, 1), (127, 16_128, 2), (127, 17_000, 2)]
        {
            let mut frame = vec![2, 0, 0, n, 0, 30, 2, 0, 0, n, 0, 0, 8, 0];
            frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 100, n, 10, 10, 115, n, 20]);
            frame.extend([port.to_be_bytes(), 1000u16.to_be_bytes()].concat());
            frame.resize(80, 0);
            assert_eq!(program.test_run(&frame).expect("it runs"), verdict, "{n} {port}");
        }
    }

    #[test]
    fn the_kernel_judges_as_the_filters_do() {
        let mut runner = TestRunner::new(ProptestConfig::with_cases(64));
        if let Err(e) = judge(&[])
            && e.raw_os_error() == Some(libc::EPERM)
        {
            skip("the_kernel_judges_as_the_filters_do", Need::Root, e);
            return;
        }
        let frames = prop::collection::vec(prop_oneof![frame(), frame_v6()], 64);
        let outcome = runner.run(&(filters(), frames), |(filters, frames)| {
            let program = judge(&filters).expect("the verifier takes it");
            for frame in frames {
                let header = Header::read(&frame);
                let direction = Direction::Receive;
                let taken = header.is_some_and(|h| {
                    filters.iter().any(|f| f.direction() == direction && f.matches(&h))
                });
                let verdict = program.test_run(&frame).expect("it runs");
                prop_assert_eq!(verdict, if taken { 1 } else { 2 }, "{:02x?} {:?}", frame, filters);
            }
            Ok(())
        });
        outcome.expect("the same verdicts");
    }
}
