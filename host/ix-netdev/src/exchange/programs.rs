//! The code of the exchange's programs.
use super::limits::{FRACTION_BITS, LIMIT_WORDS, Limit, UNITS_SHIFT, offset};
use super::{BOOK_WORDS, CLOCKS_AT, Count, LINK_ROW};
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use crate::classify::{
    self, ARP_SENDER, ARP_SENDER_MAC, ARP_TARGET, DST_V6, ETH_SRC, ICMPV6_TYPE, LAST, ND_KIND,
    ND_MAC, ND_TARGET, SRC_V6,
};
use ix_sys::bpf::{
    HELPER_KTIME_NS, HELPER_MAP_LOOKUP, HELPER_REDIRECT, HELPER_REDIRECT_MAP, HELPER_XDP_LEN, Map,
    Rows,
};
use ix_vnic::{Field, Filter, GROUP_REPORTS, ND_ADVERTISEMENT, ND_SOLICITATION, Ranges};
use std::os::fd::RawFd;

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;

// On the stack, below all header fields.
/// Key of a map.
const KEY: i16 = LAST - 8;
/// Counters of the interface.
const LINK: i16 = LAST - 16;
/// Number of the link that a packet goes into.
const SLOT: i16 = LAST - 24;

// Registers that calls preserve; the first two hold the frame's bounds before.
/// Counters of the vNIC.
const BOOK: Reg = Reg::R7;
/// Length of the packet.
const BYTES: Reg = Reg::R8;
/// First the context, then the limits of the vNIC.
const LIMITS: Reg = Reg::R9;
/// The present time, in the clocks' units.
const NOW: Reg = Reg::R6;

/// Maps of both programs.
pub(super) struct Maps<'a> {
    /// Links of the vNICs, by number.
    pub links: &'a Map,
    /// Counters and clocks of each, and of the interface.
    pub books: &'a Rows<BOOK_WORDS>,
    /// Limits of each.
    pub limits: &'a Rows<LIMIT_WORDS>,
}

/// The program on the interface: packets that filters take go into their links, all others to
/// Linux. So do packets for a link that was removed.
pub(super) fn receive(rules: &[(Filter, u32)], maps: &Maps<'_>) -> Vec<Insn> {
    let mut a = Assembler::new();
    let pass = a.label();
    begin(&mut a);
    classify::lay_out(&mut a, 0, pass);
    let taken: Vec<Label> = rules.iter().map(|_| a.label()).collect();
    for ((filter, _), taken) in rules.iter().zip(&taken) {
        classify::ask(&mut a, filter, *taken);
        for slot in [ARP_TARGET, ARP_SENDER] {
            ask_arp(&mut a, filter, slot, *taken);
        }
        ask_nd(&mut a, filter, *taken);
    }
    a.place(pass);
    verdict(&mut a, XDP_PASS);
    // The kernel refuses code that cannot be reached.
    if rules.is_empty() {
        return a.finish();
    }
    let deliver = a.label();
    for ((_, slot), taken) in rules.iter().zip(taken) {
        a.place(taken);
        a.mov_imm(Reg::R1, *slot as i32);
        a.store(Size::Word, Reg::R10, SLOT, Reg::R1);
        a.jump(deliver);
    }
    a.place(deliver);
    deliver_to_slot(&mut a, maps, pass);
    a.finish()
}

/// Sends the packet into the link in `SLOT`, within its rates.
fn deliver_to_slot(a: &mut Assembler, maps: &Maps<'_>, pass: Label) {
    let (go, over) = (a.label(), a.label());
    open_books(a, maps, SLOT, pass);
    look_at_clock(a, go);
    for limit in [Limit::ReceiveBits, Limit::ReceivePackets] {
        check(a, limit, BOOK, over);
    }
    for limit in [Limit::ReceiveBits, Limit::ReceivePackets] {
        charge(a, limit, BOOK);
    }
    a.place(go);
    count(a, Count::Received);
    a.mov_map(Reg::R1, maps.links.raw());
    a.load(Size::Word, Reg::R2, Reg::R10, SLOT);
    a.mov_imm(Reg::R3, XDP_PASS);
    a.call(HELPER_REDIRECT_MAP);
    a.exit();
    a.place(over);
    count(a, Count::ReceivedOverRate);
    verdict(a, XDP_DROP);
}

/// The program on a link's near end: packets that its filters take leave the interface, within its
/// rates and its share; all others are dropped.
pub(super) fn transmit(
    filters: &[Filter],
    mac: [u8; 6],
    uplink: u32,
    slot: u32,
    maps: &Maps<'_>,
) -> Vec<Insn> {
    let mut a = Assembler::new();
    let (foreign, foreign_mac, fine) = (a.label(), a.label(), a.label());
    let own_mac = mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
    begin(&mut a);
    classify::lay_out(&mut a, 0, foreign);
    unless_equal(&mut a, ETH_SRC, own_mac, foreign_mac);
    filters.iter().for_each(|filter| classify::ask(&mut a, filter, fine));
    // Neighbour Discovery with our own addresses, or a check for an address of ours (RFC 4862).
    let [asks, tells, has_target, no_nd] = std::array::from_fn(|_| a.label());
    a.load(Size::Double, Reg::R4, Reg::R10, ND_KIND);
    a.jump_eq32(Reg::R4, ND_SOLICITATION.into(), asks);
    a.jump_eq32(Reg::R4, ND_ADVERTISEMENT.into(), tells);
    a.jump(no_nd);
    a.place(asks);
    unless_equal(&mut a, ND_MAC, own_mac, foreign_mac);
    filters.iter().for_each(|filter| ask_named(&mut a, filter, SRC_V6, fine));
    classify::ask_ranges_v6(&mut a, SRC_V6, &Ranges::one(0), foreign);
    filters.iter().for_each(|filter| ask_named(&mut a, filter, ND_TARGET, fine));
    a.jump(foreign);
    a.place(tells);
    unless_equal(&mut a, ND_MAC, own_mac, foreign_mac);
    filters.iter().for_each(|filter| ask_named(&mut a, filter, ND_TARGET, has_target));
    a.jump(foreign);
    if filters.iter().any(names_v6) {
        a.place(has_target);
        filters.iter().for_each(|filter| ask_named(&mut a, filter, SRC_V6, fine));
        a.jump(foreign);
    }
    a.place(no_nd);
    // The interface is in the groups of all vNICs: what they tell routers of them ends here.
    let drop = a.label();
    a.load(Size::Double, Reg::R4, Reg::R10, ICMPV6_TYPE);
    GROUP_REPORTS.iter().for_each(|kind| a.jump_eq32(Reg::R4, (*kind).into(), drop));
    // ARP with our own addresses, or a probe for an address of ours (RFC 5227).
    unless_equal(&mut a, ARP_SENDER_MAC, own_mac, foreign);
    filters.iter().for_each(|filter| ask_arp(&mut a, filter, ARP_SENDER, fine));
    unless_equal(&mut a, ARP_SENDER, 0, foreign);
    filters.iter().for_each(|filter| ask_arp(&mut a, filter, ARP_TARGET, fine));
    a.jump(foreign);
    for (label, reason) in [(foreign, Count::Foreign), (foreign_mac, Count::ForeignMac)] {
        a.place(label);
        row(&mut a, maps.books.raw(), Key::Is(slot), drop);
        a.mov(BOOK, Reg::R0);
        count(&mut a, reason);
        verdict(&mut a, XDP_DROP);
    }
    a.place(drop);
    verdict(&mut a, XDP_DROP);
    if !filters.is_empty() {
        a.place(fine);
        send_from_slot(&mut a, maps, slot, uplink, drop);
    }
    a.finish()
}

fn send_from_slot(a: &mut Assembler, maps: &Maps<'_>, slot: u32, uplink: u32, drop: Label) {
    let [go, own, borrow, link, over_rate, over_share] = std::array::from_fn(|_| a.label());
    a.mov_imm(Reg::R1, slot as i32);
    a.store(Size::Word, Reg::R10, SLOT, Reg::R1);
    open_books(a, maps, SLOT, drop);
    look_at_clock(a, go);
    for limit in [Limit::SendBits, Limit::SendPackets] {
        check(a, limit, BOOK, over_rate);
    }
    a.load(Size::Double, Reg::R5, LIMITS, offset(Limit::Share));
    a.jump_zero(Reg::R5, own);
    row(a, maps.books.raw(), Key::Is(LINK_ROW), drop);
    a.store(Size::Double, Reg::R10, LINK, Reg::R0);
    // Packets within its share always pass; beyond it, what the other links leave.
    check(a, Limit::Share, BOOK, borrow);
    charge(a, Limit::Share, BOOK);
    a.jump(link);
    a.place(borrow);
    a.load(Size::Double, Reg::R1, Reg::R10, LINK);
    check(a, Limit::Link, Reg::R1, over_share);
    a.place(link);
    a.load(Size::Double, Reg::R1, Reg::R10, LINK);
    charge(a, Limit::Link, Reg::R1);
    a.place(own);
    for limit in [Limit::SendBits, Limit::SendPackets] {
        charge(a, limit, BOOK);
    }
    a.place(go);
    count(a, Count::Sent);
    a.atomic_add(BOOK, 8 * Count::SentBytes as i16, BYTES);
    a.mov_imm(Reg::R1, uplink as i32);
    a.mov_imm(Reg::R2, 0);
    a.call(HELPER_REDIRECT);
    a.exit();
    for (label, reason) in [(over_rate, Count::OverRate), (over_share, Count::OverShare)] {
        a.place(label);
        count(a, reason);
        verdict(a, XDP_DROP);
    }
}

/// Loads the frame's bounds into R7 and R8; keeps the context.
fn begin(a: &mut Assembler) {
    a.mov(LIMITS, Reg::R1);
    a.load(Size::Word, Reg::R7, Reg::R1, 0);
    a.load(Size::Word, Reg::R8, Reg::R1, 4);
}

fn verdict(a: &mut Assembler, what: i32) {
    a.mov_imm(Reg::R0, what);
    a.exit();
}

/// Loads length, counters and limits into their registers; the frame's bounds are lost.
fn open_books(a: &mut Assembler, maps: &Maps<'_>, slot: i16, missing: Label) {
    a.mov(Reg::R1, LIMITS);
    a.call(HELPER_XDP_LEN);
    a.mov(BYTES, Reg::R0);
    row(a, maps.books.raw(), Key::At(slot), missing);
    a.mov(BOOK, Reg::R0);
    row(a, maps.limits.raw(), Key::At(slot), missing);
    a.mov(LIMITS, Reg::R0);
}

/// Jumps to `unlimited` if there are no limits.
fn look_at_clock(a: &mut Assembler, unlimited: Label) {
    a.load(Size::Double, Reg::R5, LIMITS, 0);
    a.jump_zero(Reg::R5, unlimited);
    a.call(HELPER_KTIME_NS);
    a.mov(NOW, Reg::R0);
    a.shl_imm(NOW, UNITS_SHIFT);
}

enum Key {
    Is(u32),
    At(i16),
}

/// Looks up a row of a map; the address is in R0.
fn row(a: &mut Assembler, map: RawFd, key: Key, missing: Label) {
    let at = match key {
        Key::At(at) => at,
        Key::Is(number) => {
            a.mov_imm(Reg::R1, number as i32);
            a.store(Size::Word, Reg::R10, KEY, Reg::R1);
            KEY
        }
    };
    a.mov_map(Reg::R1, map);
    a.mov(Reg::R2, Reg::R10);
    a.add_imm(Reg::R2, i32::from(at));
    a.call(HELPER_MAP_LOOKUP);
    a.jump_zero(Reg::R0, missing);
}

/// Jumps to `over` if the packet may not pass yet. Unused time is kept up to the burst.
fn check(a: &mut Assembler, limit: Limit, book: Reg, over: Label) {
    let (fresh, unlimited) = (a.label(), a.label());
    let (clock, floor, costs) = (Reg::R0, Reg::R2, offset(limit));
    a.load(Size::Double, Reg::R3, LIMITS, costs);
    a.load(Size::Double, Reg::R4, LIMITS, costs + 8);
    a.or(Reg::R3, Reg::R4);
    a.jump_zero(Reg::R3, unlimited);
    a.load(Size::Double, clock, book, clock_at(limit));
    a.load(Size::Double, Reg::R5, LIMITS, costs + 16);
    a.mov(floor, NOW);
    a.sub(floor, Reg::R5);
    a.jump_le(floor, clock, fresh);
    // If another processor was faster, it has stored the same.
    a.compare_exchange(book, clock_at(limit), floor);
    a.mov(clock, floor);
    a.place(fresh);
    a.jump_gt(clock, NOW, over);
    a.place(unlimited);
}

/// Charges the packet to a limit.
fn charge(a: &mut Assembler, limit: Limit, book: Reg) {
    let (cost, costs) = (Reg::R3, offset(limit));
    a.load(Size::Double, cost, LIMITS, costs);
    a.mul(cost, BYTES);
    a.shr_imm(cost, FRACTION_BITS);
    a.load(Size::Double, Reg::R4, LIMITS, costs + 8);
    a.add(cost, Reg::R4);
    a.atomic_add(book, clock_at(limit), cost);
}

fn clock_at(limit: Limit) -> i16 {
    8 * (CLOCKS_AT as i16 + limit as i16)
}

/// Increments a counter.
fn count(a: &mut Assembler, what: Count) {
    a.mov_imm(Reg::R1, 1);
    a.atomic_add(BOOK, 8 * what as i16, Reg::R1);
}

/// Jumps to `taken` for Neighbour Discovery about an address that the filter names for our end, for
/// it, or from it.
fn ask_nd(a: &mut Assembler, filter: &Filter, taken: Label) {
    if !names_v6(filter) {
        return;
    }
    let other = a.label();
    classify::ask_ranges(a, ND_KIND, &Ranges::new([(0, u8::MAX.into())]), other);
    [ND_TARGET, DST_V6, SRC_V6].into_iter().for_each(|slot| ask_named(a, filter, slot, taken));
    a.place(other);
}

/// Whether a filter names IPv6 addresses of our end.
fn names_v6(filter: &Filter) -> bool {
    filter.level().is_v6() && filter.field(Field::ServiceAddress).is_some()
}

/// Jumps to `taken` if the filter names the IPv6 address for our end.
fn ask_named(a: &mut Assembler, filter: &Filter, slot: i16, taken: Label) {
    if let Some(addresses) = filter.field(Field::ServiceAddress).filter(|_| names_v6(filter)) {
        let other = a.label();
        classify::ask_ranges_v6(a, slot, addresses, other);
        a.jump(taken);
        a.place(other);
    }
}

/// Jumps to `taken` if the filter names an address of the ARP packet for our end.
fn ask_arp(a: &mut Assembler, filter: &Filter, slot: i16, taken: Label) {
    if let Some(addresses) = filter.field(Field::ServiceAddress).filter(|_| !names_v6(filter)) {
        let other = a.label();
        classify::ask_ranges(a, slot, addresses, other);
        a.jump(taken);
        a.place(other);
    }
}

/// Jumps to `other` unless a field has this value.
fn unless_equal(a: &mut Assembler, slot: i16, value: u128, other: Label) {
    classify::ask_ranges(a, slot, &Ranges::one(value), other);
}
