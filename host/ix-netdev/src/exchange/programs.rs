//! The texts of the exchange's programs.
use super::limits::{FRACTION_BITS, LIMIT_WORDS, Limit, UNITS_SHIFT, offset};
use super::{BOOK_WORDS, CLOCKS_AT, Count, LINK_ROW};
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use crate::classify::{self, ARP_SENDER, ARP_SENDER_MAC, ARP_TARGET, ETH_SRC};
use ix_sys::bpf::{
    HELPER_KTIME_NS, HELPER_MAP_LOOKUP, HELPER_REDIRECT, HELPER_REDIRECT_MAP, HELPER_XDP_LEN, Map,
    Rows,
};
use ix_vnic::{Field, Filter};
use std::os::fd::RawFd;

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;

// On the stack, below all header fields.
/// A map's key.
const KEY: i16 = -112;
/// The interface's row of the book.
const LINK: i16 = -120;
/// The number of the link that a packet goes into.
const SLOT: i16 = -128;

// Registers that calls keep; the first two hold the frame's bounds before.
/// The vNIC's row of the book.
const BOOK: Reg = Reg::R7;
/// The packet's length.
const BYTES: Reg = Reg::R8;
/// The context first, then the vNIC's limits.
const LIMITS: Reg = Reg::R9;
/// Now, in the clocks' units.
const NOW: Reg = Reg::R6;

/// What both programs use.
pub(super) struct Maps<'a> {
    /// The vNICs' links by number.
    pub links: &'a Map,
    /// Counts and clocks of each, and of the interface.
    pub books: &'a Rows<BOOK_WORDS>,
    /// Limits of each.
    pub limits: &'a Rows<LIMIT_WORDS>,
}

/// On the interface: into the links what their filters take, all else on to Linux. So is what is
/// for a link that is no more.
pub(super) fn receive(rules: &[(Filter, u32)], maps: &Maps<'_>) -> Vec<Insn> {
    let mut a = Assembler::new();
    let pass = a.label();
    begin(&mut a);
    classify::lay_out(&mut a, pass);
    let taken: Vec<Label> = rules.iter().map(|_| a.label()).collect();
    for ((filter, _), taken) in rules.iter().zip(&taken) {
        classify::ask(&mut a, filter, *taken);
        for slot in [ARP_TARGET, ARP_SENDER] {
            ask_arp(&mut a, filter, slot, *taken);
        }
    }
    a.place(pass);
    verdict(&mut a, XDP_PASS);
    // The kernel takes no code that nothing leads to.
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

/// Into the link whose number lies in `SLOT`, within its rates.
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

/// On a link's near end: out of the interface what its filters take, within its rates and its
/// share; all else goes nowhere.
pub(super) fn transmit(
    filters: &[Filter],
    mac: [u8; 6],
    uplink: u32,
    slot: u32,
    maps: &Maps<'_>,
) -> Vec<Insn> {
    let mut a = Assembler::new();
    let (foreign, foreign_mac, fine) = (a.label(), a.label(), a.label());
    let own_mac = mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    begin(&mut a);
    classify::lay_out(&mut a, foreign);
    unless_equal(&mut a, ETH_SRC, own_mac, foreign_mac);
    filters.iter().for_each(|filter| classify::ask(&mut a, filter, fine));
    // ARP in our own name, or a probe for an address of ours (RFC 5227).
    unless_equal(&mut a, ARP_SENDER_MAC, own_mac, foreign);
    filters.iter().for_each(|filter| ask_arp(&mut a, filter, ARP_SENDER, fine));
    unless_equal(&mut a, ARP_SENDER, 0, foreign);
    filters.iter().for_each(|filter| ask_arp(&mut a, filter, ARP_TARGET, fine));
    a.jump(foreign);
    let drop = a.label();
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
    // Its share passes in any case; beyond that, what the others leave.
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

/// The frame's bounds into R7 and R8; the context is kept.
fn begin(a: &mut Assembler) {
    a.mov(LIMITS, Reg::R1);
    a.load(Size::Word, Reg::R7, Reg::R1, 0);
    a.load(Size::Word, Reg::R8, Reg::R1, 4);
}

fn verdict(a: &mut Assembler, what: i32) {
    a.mov_imm(Reg::R0, what);
    a.exit();
}

/// Length, book and limits into their registers; the frame's bounds are lost.
fn open_books(a: &mut Assembler, maps: &Maps<'_>, slot: i16, missing: Label) {
    a.mov(Reg::R1, LIMITS);
    a.call(HELPER_XDP_LEN);
    a.mov(BYTES, Reg::R0);
    row(a, maps.books.raw(), Key::At(slot), missing);
    a.mov(BOOK, Reg::R0);
    row(a, maps.limits.raw(), Key::At(slot), missing);
    a.mov(LIMITS, Reg::R0);
}

/// Goes to `unlimited` when there are no limits.
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

/// A row of a map into R0.
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

/// Goes to `over` when the packet may not pass yet. What was not used is kept up to the burst.
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
    // Whoever was faster has set it as well.
    a.compare_exchange(book, clock_at(limit), floor);
    a.mov(clock, floor);
    a.place(fresh);
    a.jump_gt(clock, NOW, over);
    a.place(unlimited);
}

/// The packet passes.
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

/// One more of these.
fn count(a: &mut Assembler, what: Count) {
    a.mov_imm(Reg::R1, 1);
    a.atomic_add(BOOK, 8 * what as i16, Reg::R1);
}

/// Goes to `taken` when an address of an ARP packet is one that the filter names for our end.
fn ask_arp(a: &mut Assembler, filter: &Filter, slot: i16, taken: Label) {
    if let Some(addresses) = filter.field(Field::ServiceAddress) {
        let other = a.label();
        classify::ask_ranges(a, slot, addresses, other);
        a.jump(taken);
        a.place(other);
    }
}

/// Goes to `other` unless a field has this value.
fn unless_equal(a: &mut Assembler, slot: i16, value: u64, other: Label) {
    classify::ask_ranges(a, slot, &ix_vnic::Ranges::one(value), other);
}
