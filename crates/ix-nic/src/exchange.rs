//! Several vNICs and Linux on one interface, kept apart in the kernel.
//!
//! Each vNIC has a link of its own, a veth pair whose one end its dataplane opens with AF_XDP; so
//! tenants share neither sockets nor packet memory. An XDP program on the interface sends what a
//! vNIC's receive filters take into its link, and passes everything else to Linux. An XDP program on
//! the link's near end sends what the vNIC's transmit filters take out of the interface, and drops and
//! counts everything else: the tenant's dataplane need not be trusted. All programs hang on BPF links
//! and go with their owner; Linux has the interface then as before.
use crate::bpf::asm::{Assembler, Insn, Label, Reg, Size};
use crate::bpf::{
    HELPER_MAP_LOOKUP, HELPER_REDIRECT, Map, MapKind, PROGRAM_XDP_FRAGS, Program, ProgramKind,
};
use crate::classify::{self, ARP_SENDER, ARP_SENDER_MAC, ARP_TARGET, ETH_SRC};
use crate::error::OpenError;
use crate::netdev::Interface;
use ix_vnic::{Field, Filter};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const ATTACH_GENERIC: u32 = 1 << 1;
const ATTACH_NATIVE: u32 = 1 << 2;

/// What a vNIC's link has carried out of the interface, and what it was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Packets that left.
    pub sent: u32,
    /// Packets with another Ethernet source than the interface's.
    pub foreign_mac: u32,
    /// Packets that none of its filters takes.
    pub foreign: u32,
}

const COUNT_SENT: i32 = 0;
const COUNT_FOREIGN_MAC: i32 = 1;
const COUNT_FOREIGN: i32 = 2;

/// One interface with the links of its vNICs.
#[derive(Debug)]
pub struct Exchange {
    name: String,
    ifindex: u32,
    mac: [u8; 6],
    uplink: Hung,
    /// What goes into which link, by number.
    rules: Vec<(Filter, u32)>,
    ports: BTreeMap<String, Port>,
}

/// A link of a vNIC, by its near end.
#[derive(Debug)]
struct Port {
    ifindex: u32,
    hung: Hung,
    counts: Map,
    /// What may leave through it.
    filters: Vec<Filter>,
}

/// A program that hangs on an interface.
#[derive(Debug)]
struct Hung {
    link: OwnedFd,
    flags: u32,
}

impl Hung {
    /// Hangs it where it is fastest.
    fn up(ifindex: u32, places: &[u32], insns: &[Insn]) -> io::Result<Hung> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for place in places {
            for flags in [PROGRAM_XDP_FRAGS, 0] {
                let program = Program::load(ProgramKind::Xdp, c"ix_exchange", insns, flags)?;
                match program.attach_xdp(ifindex, *place) {
                    Ok(link) => return Ok(Hung { link, flags }),
                    Err(e) => last = e,
                }
            }
        }
        Err(last)
    }

    fn replace(&self, insns: &[Insn]) -> io::Result<()> {
        let program = Program::load(ProgramKind::Xdp, c"ix_exchange", insns, self.flags)?;
        program.replace_in(self.link.as_fd())
    }
}

impl Exchange {
    /// Takes an interface that is there and up; Linux keeps all of its packets until
    /// [`Exchange::set_receive`].
    pub fn open(name: &str) -> Result<Exchange, OpenError> {
        let system = |what| move |e| OpenError::system(what, name, e);
        let interface = Interface::new(name).map_err(system("open a socket"))?;
        let ask = || system("ask for the state of");
        let ifindex = interface.index().map_err(ask())?;
        if !interface.is_up().map_err(ask())? {
            return Err(OpenError::Down { name: name.to_owned() });
        }
        let mac = interface.mac().map_err(ask())?;
        let places = [ATTACH_NATIVE, ATTACH_GENERIC];
        let uplink = Hung::up(ifindex, &places, &receive_program(&[])).map_err(|e| {
            match e.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => {
                    OpenError::ProgramPresent { name: name.to_owned() }
                }
                _ => crate::afxdp::bpf_error("attach an XDP program to", name, e),
            }
        })?;
        let name = name.to_owned();
        let (rules, ports) = Default::default();
        Ok(Exchange { name, ifindex, mac, uplink, rules, ports })
    }

    /// The interface's Ethernet address, which its vNICs have as well.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Adds a link by its near end, which must be up; nothing may leave through it yet.
    pub fn add_port(&mut self, near: &str) -> Result<(), OpenError> {
        let system = |what| move |e| OpenError::system(what, near, e);
        let interface = Interface::new(near).map_err(system("open a socket"))?;
        let ifindex = interface.index().map_err(system("ask for the state of"))?;
        let counts =
            Map::new(MapKind::Array, c"ix_counts", 3).map_err(system("make a BPF map for"))?;
        let insns = transmit_program(&[], self.mac, self.ifindex, &counts);
        // Behind the driver: there the kernel hands packets on to whatever interface it is.
        let hung = Hung::up(ifindex, &[ATTACH_GENERIC], &insns)
            .map_err(|e| crate::afxdp::bpf_error("attach an XDP program to", near, e))?;
        let port = Port { ifindex, hung, counts, filters: Vec::new() };
        self.ports.insert(near.to_owned(), port);
        Ok(())
    }

    /// Takes a link away. Its receive filters must be gone before.
    pub fn remove_port(&mut self, near: &str) {
        self.ports.remove(near);
    }

    /// From the next packet on each goes into the link whose filter takes it first; ARP about the
    /// addresses that filters name goes with them.
    pub fn set_receive(&mut self, rules: &[(Filter, String)]) -> Result<(), OpenError> {
        let known = |(filter, near): &(Filter, String)| {
            self.ports.get(near).map(|port| (filter.clone(), port.ifindex))
        };
        let rules: Vec<_> = rules.iter().filter_map(known).collect();
        // To exchange a program takes the kernel some milliseconds.
        if rules == self.rules {
            return Ok(());
        }
        self.uplink
            .replace(&receive_program(&rules))
            .map_err(|e| crate::afxdp::bpf_error("change the receive filters of", &self.name, e))?;
        self.rules = rules;
        Ok(())
    }

    /// From the next packet on only this may leave through a link.
    pub fn set_transmit(&mut self, near: &str, filters: &[Filter]) -> Result<(), OpenError> {
        let changed = |port: &&mut Port| port.filters != filters;
        let Some(port) = self.ports.get_mut(near).filter(changed) else { return Ok(()) };
        let insns = transmit_program(filters, self.mac, self.ifindex, &port.counts);
        let refused = |e| crate::afxdp::bpf_error("change the transmit filters of", near, e);
        port.hung.replace(&insns).map_err(refused)?;
        port.filters = filters.to_vec();
        Ok(())
    }

    /// What a link has carried.
    pub fn counts(&self, near: &str) -> PortCounts {
        let count = |key: i32| {
            let port = self.ports.get(near);
            port.and_then(|port| port.counts.get(key as u32).ok()).unwrap_or(0)
        };
        let (sent, foreign_mac) = (count(COUNT_SENT), count(COUNT_FOREIGN_MAC));
        PortCounts { sent, foreign_mac, foreign: count(COUNT_FOREIGN) }
    }
}

/// On the interface: into the links what their filters take, all else on to Linux.
fn receive_program(rules: &[(Filter, u32)]) -> Vec<Insn> {
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
    a.mov_imm(Reg::R0, XDP_PASS);
    a.exit();
    for ((_, ifindex), taken) in rules.iter().zip(taken) {
        a.place(taken);
        redirect(&mut a, *ifindex);
    }
    a.finish()
}

/// On a link's near end: out of the interface what its filters take; all else goes nowhere.
fn transmit_program(filters: &[Filter], mac: [u8; 6], uplink: u32, counts: &Map) -> Vec<Insn> {
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
    for (label, number) in [(foreign, COUNT_FOREIGN), (foreign_mac, COUNT_FOREIGN_MAC)] {
        a.place(label);
        count(&mut a, counts, number);
        a.mov_imm(Reg::R0, XDP_DROP);
        a.exit();
    }
    // The kernel takes no code that nothing leads to.
    if !filters.is_empty() {
        a.place(fine);
        count(&mut a, counts, COUNT_SENT);
        redirect(&mut a, uplink);
    }
    a.finish()
}

/// The frame's bounds into R7 and R8.
fn begin(a: &mut Assembler) {
    a.load(Size::Word, Reg::R7, Reg::R1, 0);
    a.load(Size::Word, Reg::R8, Reg::R1, 4);
}

/// Goes to `taken` when an address of an ARP packet is one that the filter names for our end.
fn ask_arp(a: &mut Assembler, filter: &Filter, slot: i16, taken: Label) {
    if let Some(addresses) = filter.field(Field::ServiceAddress) {
        let other = a.label();
        classify::ask_ranges(a, slot, addresses, taken, other);
        a.place(other);
    }
}

/// Goes to `other` unless a field has this value.
fn unless_equal(a: &mut Assembler, slot: i16, value: u64, other: Label) {
    let equal = a.label();
    let only = ix_vnic::Ranges::one(value);
    classify::ask_ranges(a, slot, &only, equal, other);
    a.place(equal);
}

fn redirect(a: &mut Assembler, ifindex: u32) {
    a.mov_imm(Reg::R1, ifindex as i32);
    a.mov_imm(Reg::R2, 0);
    a.call(HELPER_REDIRECT);
    a.exit();
}

/// One more of this number; the key stands below all fields.
fn count(a: &mut Assembler, counts: &Map, number: i32) {
    const KEY: i16 = -112;
    let missing = a.label();
    a.mov_imm(Reg::R1, number);
    a.store(Size::Word, Reg::R10, KEY, Reg::R1);
    a.mov_map(Reg::R1, counts.raw());
    a.mov(Reg::R2, Reg::R10);
    a.add_imm(Reg::R2, i32::from(KEY));
    a.call(HELPER_MAP_LOOKUP);
    a.jump_zero(Reg::R0, missing);
    a.mov_imm(Reg::R1, 1);
    a.atomic_add32(Reg::R0, 0, Reg::R1);
    a.place(missing);
}
