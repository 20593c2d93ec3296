//! Several vNICs and Linux on one interface, isolated by the kernel.
//!
//! Each vNIC has its own link, a veth pair of which its dataplane opens one end with AF_XDP. So
//! tenants share neither sockets nor packet memory. An XDP program on the interface sends packets
//! that a vNIC's receive filters take into its link, and passes all others to Linux. An XDP program
//! on the link's near end sends packets that the vNIC's transmit filters take out of the interface,
//! and drops and counts all others: so the tenant's dataplane need not be trusted. All programs are
//! attached by BPF links and go with their owner; Linux then has the interface as before.
mod limits;
mod programs;
mod share;

use crate::asm::Insn;
use crate::error::{OpenError, bpf_error};
use crate::groups::{Groups, hear_all, hear_neighbours};
use ix_sys::Interface;
use ix_sys::bpf::{Map, MapKind, PROGRAM_XDP_FRAGS, Program, ProgramKind, Rows};
use ix_vnic::{Field, Filter};
use ix_wire::IpAddr;
pub use limits::PortRates;
use limits::{LIMIT_WORDS, LIMITS};
use programs::Maps;
use share::{Fullness, Usage};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const ATTACH_GENERIC: u32 = 1 << 1;
const ATTACH_NATIVE: u32 = 1 << 2;

/// Most links.
pub const PORTS_MAX: usize = 64;
/// Most IPv6 addresses of filters whose groups are joined one by one: cards have few places.
const GROUPS_MAX: usize = 256;
/// Row of the interface itself in the counter map, after those of the links.
const LINK_ROW: u32 = PORTS_MAX as u32;

/// Packets of a vNIC's link, and its drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Packets that left the interface.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets with another Ethernet source than the interface's.
    pub foreign_mac: u64,
    /// Packets that none of its filters takes.
    pub foreign: u64,
    /// Packets beyond its rate.
    pub over_rate: u64,
    /// Packets beyond its share of the full interface.
    pub over_share: u64,
    /// Packets that went into the link.
    pub received: u64,
    /// Packets for it beyond its rate.
    pub received_over_rate: u64,
}

/// Words of a row of the counter map, before the clocks.
#[derive(Clone, Copy)]
enum Count {
    Sent = 0,
    SentBytes = 1,
    ForeignMac = 2,
    Foreign = 3,
    OverRate = 4,
    OverShare = 5,
    Received = 6,
    ReceivedOverRate = 7,
}

const CLOCKS_AT: usize = 8;
const BOOK_WORDS: usize = CLOCKS_AT + LIMITS;

/// One interface with the links of its vNICs.
#[derive(Debug)]
pub struct Exchange {
    name: String,
    ifindex: u32,
    mac: [u8; 6],
    uplink: Hung,
    links: Map,
    books: Rows<BOOK_WORDS>,
    limits: Rows<LIMIT_WORDS>,
    /// Speed of the interface, bits per second, if known: then links share it by weight.
    link_bits_per_s: Option<u64>,
    fullness: Fullness,
    /// Time of the last accounting.
    looked: Option<Instant>,
    /// Receive filters, with the slot of each one's link.
    rules: Vec<(Filter, u32)>,
    /// Groups of their IPv6 addresses.
    groups: Option<Groups>,
    ports: BTreeMap<String, Port>,
}

/// A link of a vNIC, by its near end.
#[derive(Debug)]
struct Port {
    slot: u32,
    hung: Hung,
    /// What may leave through it.
    filters: Vec<Filter>,
    rates: PortRates,
    /// Counters of the slot when the link was added.
    begin: [u64; BOOK_WORDS],
    /// Counters at the last accounting.
    seen: [u64; BOOK_WORDS],
    /// It has sent something, or tried to, before that.
    is_active: bool,
    /// What it may send while the interface is full, bits per second.
    part: Option<u64>,
}

impl Port {
    /// Usage since the last accounting, `since` ago; `book` has the present counters.
    fn look(&mut self, book: [u64; BOOK_WORDS], since: Duration) -> Usage {
        let before = std::mem::replace(&mut self.seen, book);
        let new = |what: Count| book[what as usize] - before[what as usize];
        let bits = u128::from(new(Count::SentBytes)) * 8;
        self.is_active = new(Count::Sent) + new(Count::OverShare) > 0;
        Usage {
            weight: self.rates.weight,
            bits_per_s: (bits * 1_000_000 / since.as_micros().max(1)) as u64,
            is_active: self.is_active,
            was_dropped: new(Count::OverShare) > 0,
            told: self.part,
        }
    }
}

/// A program attached to an interface.
#[derive(Debug)]
pub(crate) struct Hung {
    link: OwnedFd,
    flags: u32,
}

impl Hung {
    /// Attaches it at the fastest place. As a program for frames of one buffer, if possible: then a
    /// veth's other end segments long frames, which not every link can carry.
    pub(crate) fn up(ifindex: u32, places: &[u32], insns: &[Insn]) -> io::Result<Hung> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for place in places {
            for flags in [0, PROGRAM_XDP_FRAGS] {
                let program = Program::load(ProgramKind::Xdp, c"ix_exchange", insns, flags)?;
                match program.attach_xdp(ifindex, *place) {
                    Ok(link) => return Ok(Hung { link, flags }),
                    Err(e) => last = e,
                }
            }
        }
        Err(last)
    }

    pub(crate) fn replace(&self, insns: &[Insn]) -> io::Result<()> {
        let program = Program::load(ProgramKind::Xdp, c"ix_exchange", insns, self.flags)?;
        program.replace_in(self.link.as_fd())
    }
}

impl Exchange {
    /// Opens an existing interface that is up; Linux keeps all of its packets until
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
        let make = || system("make BPF maps for");
        let links = Map::new(MapKind::Dev, c"ix_links", PORTS_MAX as u32).map_err(make())?;
        let books = Rows::new(c"ix_books", LINK_ROW + 1).map_err(make())?;
        let limits = Rows::new(c"ix_limits", PORTS_MAX as u32).map_err(make())?;
        let maps = Maps { links: &links, books: &books, limits: &limits };
        let places = [ATTACH_NATIVE, ATTACH_GENERIC];
        let program = programs::receive(&[], &maps);
        let uplink = Hung::up(ifindex, &places, &program).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => OpenError::program_present(name),
            _ => bpf_error("attach an XDP program to", name, e),
        })?;
        let link_bits_per_s = interface.speed_bits_per_s();
        let name = name.to_owned();
        let (rules, groups, ports, fullness) = Default::default();
        Ok(Exchange {
            name,
            ifindex,
            mac,
            uplink,
            links,
            books,
            limits,
            link_bits_per_s,
            fullness,
            looked: None,
            rules,
            groups,
            ports,
        })
    }

    fn maps(&self) -> Maps<'_> {
        Maps { links: &self.links, books: &self.books, limits: &self.limits }
    }

    /// The interface's number.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The interface's Ethernet address, which its vNICs have as well.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// From the next packet on frames that leave through a link must have this Ethernet address,
    /// which the interface now has.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), OpenError> {
        self.mac = mac;
        let maps = Maps { links: &self.links, books: &self.books, limits: &self.limits };
        for (near, port) in &self.ports {
            let insns = programs::transmit(&port.filters, mac, self.ifindex, port.slot, &maps);
            let changed = port.hung.replace(&insns);
            changed.map_err(|e| bpf_error("change the Ethernet address of", near, e))?;
        }
        Ok(())
    }

    /// Speed of the interface, bits per second, as it reports or [`Exchange::set_link_rate`] has
    /// set.
    pub fn link_bits_per_s(&self) -> Option<u64> {
        self.link_bits_per_s
    }

    /// Sets the speed of the interface; `None`: no vNIC is limited to a share.
    pub fn set_link_rate(&mut self, bits_per_s: Option<u64>) -> Result<(), OpenError> {
        self.link_bits_per_s = bits_per_s;
        self.write_limits()
    }

    /// Adds a link by its near end, which must be up; no packet may leave through it yet.
    pub fn add_port(&mut self, near: &str) -> Result<(), OpenError> {
        let system = |what| move |e| OpenError::system(what, near, e);
        let interface = Interface::new(near).map_err(system("open a socket"))?;
        let ifindex = interface.index().map_err(system("ask for the state of"))?;
        let slot = self.free_slot().map_err(system("find room for the link"))?;
        let insns = programs::transmit(&[], self.mac, self.ifindex, slot, &self.maps());
        // After the driver: there the kernel can redirect packets to any interface.
        let hung = Hung::up(ifindex, &[ATTACH_GENERIC], &insns)
            .map_err(|e| bpf_error("attach an XDP program to", near, e))?;
        self.links.set(slot, ifindex).map_err(system("write a BPF map for"))?;
        let begin = self.books.get(slot).map_err(system("read a BPF map for"))?;
        let (filters, rates) = Default::default();
        let port =
            Port { slot, hung, filters, rates, begin, seen: begin, is_active: false, part: None };
        self.ports.insert(near.to_owned(), port);
        self.write_limits()
    }

    /// A slot that no link uses and no rule names.
    fn free_slot(&self) -> io::Result<u32> {
        let used = |slot: &u32| {
            self.ports.values().any(|port| port.slot == *slot)
                || self.rules.iter().any(|(_, of)| of == slot)
        };
        let free = (0..PORTS_MAX as u32).find(|slot| !used(slot));
        free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// From the next packet on nothing goes into a link: Linux gets what its filters take. Unlike
    /// all other changes this does not wait, and so comes first when a vNIC ends.
    pub fn cut(&mut self, near: &str) {
        if let Some(port) = self.ports.get(near) {
            // This fails if the link is already cut off.
            let _ = self.links.remove(port.slot);
        }
    }

    /// Removes a link. Its receive filters should be removed before.
    pub fn remove_port(&mut self, near: &str) {
        self.cut(near);
        self.ports.remove(near);
    }

    /// Sets a link's limits, from the next packet on.
    pub fn set_rates(&mut self, near: &str, rates: PortRates) -> Result<(), OpenError> {
        if let Some(port) = self.ports.get_mut(near) {
            port.rates = rates;
        }
        self.write_limits()
    }

    /// Measures how much each link sends, and gives unused shares to links that want more; call it
    /// several times per second. Returns the links whose share of a full interface has changed,
    /// with the rate that their dataplanes should keep; `None`: the interface is not full.
    pub fn share_out(&mut self, now: Instant) -> Result<Vec<(String, Option<u64>)>, OpenError> {
        let since = self.looked.replace(now).map(|before| now.duration_since(before));
        let Some(since) = since.filter(|since| !since.is_zero()) else {
            return self.write_limits().map(|()| Vec::new());
        };
        let mut usages = Vec::new();
        for port in self.ports.values_mut() {
            let book = self.books.get(port.slot);
            let book = book.map_err(|e| OpenError::system("read a BPF map for", &self.name, e))?;
            usages.push(port.look(book, since));
        }
        let full = self.link_bits_per_s.filter(|bits| self.fullness.look(*bits, &usages));
        let parts = full.map(|bits| share::parts(bits, &usages));
        let mut changed = Vec::new();
        for (number, (near, port)) in self.ports.iter_mut().enumerate() {
            let part = parts.as_ref().and_then(|parts| parts.get(number).copied());
            if part != port.part {
                port.part = part;
                changed.push((near.clone(), part));
            }
        }
        self.write_limits().map(|()| changed)
    }

    fn write_limits(&mut self) -> Result<(), OpenError> {
        let weights: Vec<_> =
            self.ports.values().map(|port| (port.rates.weight, port.is_active)).collect();
        let shares = self.link_bits_per_s.map(|bits| (limits::shares(bits, &weights), bits));
        for (number, port) in self.ports.values().enumerate() {
            let share = shares.as_ref().and_then(|(shares, link)| {
                let bits_per_s = port.part.unwrap_or(*shares.get(number)?);
                Some(limits::Share { bits_per_s, is_told: port.part.is_some(), link: *link })
            });
            let row = limits::row(&port.rates, share);
            let written = self.limits.set(port.slot, &row);
            written.map_err(|e| OpenError::system("write a BPF map for", &self.name, e))?;
        }
        Ok(())
    }

    /// From the next packet on each packet goes into the link whose filter takes it first; ARP
    /// about addresses in a filter goes with it.
    pub fn set_receive(&mut self, rules: &[(Filter, String)]) -> Result<(), OpenError> {
        let known = |(filter, near): &(Filter, String)| {
            self.ports.get(near).map(|port| (filter.clone(), port.slot))
        };
        let rules: Vec<_> = rules.iter().filter_map(known).collect();
        // Replacing a program takes the kernel some milliseconds.
        if rules == self.rules {
            return Ok(());
        }
        let groups = self.hear(&rules);
        let groups = groups.map_err(|e| OpenError::system("join IPv6 groups on", &self.name, e))?;
        self.uplink
            .replace(&programs::receive(&rules, &self.maps()))
            .map_err(|e| bpf_error("change the receive filters of", &self.name, e))?;
        (self.rules, self.groups) = (rules, groups);
        Ok(())
    }

    /// Joins the groups that neighbours ask for the filters' addresses.
    fn hear(&self, rules: &[(Filter, u32)]) -> io::Result<Option<Groups>> {
        let filters = rules.iter().map(|(filter, _)| filter).filter(|f| f.level().is_v6());
        let ranges = filters.filter_map(|filter| filter.field(Field::ServiceAddress));
        let ranges: Vec<_> = ranges.flat_map(|ranges| ranges.as_slice()).copied().collect();
        let all = ranges.iter().fold(0u128, |n, (low, high)| n.saturating_add(high - low));
        if all.saturating_add(ranges.len() as u128) > GROUPS_MAX as u128 {
            return hear_all(self.ifindex).map(Some);
        }
        let addresses = ranges.into_iter().flat_map(|(low, high)| low..=high);
        let addresses: Vec<_> = addresses.map(|number| IpAddr(number.to_be_bytes())).collect();
        hear_neighbours(self.ifindex, &addresses)
    }

    /// From the next packet on only these packets may leave through a link.
    pub fn set_transmit(&mut self, near: &str, filters: &[Filter]) -> Result<(), OpenError> {
        let changed = |port: &&mut Port| port.filters != filters;
        let maps = Maps { links: &self.links, books: &self.books, limits: &self.limits };
        let Some(port) = self.ports.get_mut(near).filter(changed) else { return Ok(()) };
        let insns = programs::transmit(filters, self.mac, self.ifindex, port.slot, &maps);
        let refused = |e| bpf_error("change the transmit filters of", near, e);
        port.hung.replace(&insns).map_err(refused)?;
        port.filters = filters.to_vec();
        Ok(())
    }

    /// Counters of a link.
    pub fn counts(&self, near: &str) -> PortCounts {
        let Some(port) = self.ports.get(near) else { return PortCounts::default() };
        let book = self.books.get(port.slot).unwrap_or(port.begin);
        let count = |what: Count| book[what as usize] - port.begin[what as usize];
        PortCounts {
            sent: count(Count::Sent),
            sent_bytes: count(Count::SentBytes),
            foreign_mac: count(Count::ForeignMac),
            foreign: count(Count::Foreign),
            over_rate: count(Count::OverRate),
            over_share: count(Count::OverShare),
            received: count(Count::Received),
            received_over_rate: count(Count::ReceivedOverRate),
        }
    }
}
