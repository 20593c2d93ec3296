//! Who holds which part of the header space of one interface.
//!
//! An operator grants a filter to somebody, and gets a capability for it. Whoever has that may
//! assign the filter to a vNIC whose capability he has as well, derive narrower ones from it, which
//! have capabilities of their own to be handed on, and revoke it, with all that was derived. What
//! nobody has assigned is Linux's. The random bits of capabilities come from the caller.
use crate::capability::Capability;
use crate::filter::{Direction, Filter, Level};
use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

/// Names a vNIC. Not a secret, and gives no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnicId(pub u32);

/// Names a filter. Not a secret, and gives no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId(pub u32);

/// What there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// vNICs.
    pub vnics_max: usize,
    /// Queue pairs of one vNIC.
    pub queues_max: usize,
    /// Filters that operators grant.
    pub filters_max: usize,
    /// Filters that are derived from those of one holder: whoever has a capability can use up no
    /// more than these.
    pub derived_max: usize,
    /// Whether what is granted may overlap with what somebody else holds, or Linux. Who holds
    /// longer gets the packet then.
    pub may_overlap: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            vnics_max: 16,
            queues_max: 8,
            filters_max: 128,
            derived_max: 32,
            may_overlap: false,
        }
    }
}

/// Why something is refused. What concerns capabilities says no more than that: who guesses learns
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Forged, revoked, or for something else.
    NoSuchCapability,
    /// There is no vNIC of this name.
    NoSuchVnic(String),
    /// There is no filter of this number.
    NoSuchFilter(FilterId),
    /// There is a vNIC of this name.
    NameTaken(String),
    /// Not a name: 1 to 10 letters, digits and dashes.
    BadName(String),
    /// So many vNICs there are already.
    TooManyVnics(usize),
    /// So many queue pairs were asked for, and so many there may be.
    Queues(usize, usize),
    /// So many filters there are already.
    TooManyFilters(usize),
    /// So many filters are derived from this holder's already.
    TooManyDerived(String, usize),
    /// No packet belongs to the filter.
    Empty,
    /// Somebody holds a filter that it overlaps with.
    Held {
        /// Who.
        holder: String,
        /// Theirs.
        filter: Filter,
    },
    /// It takes packets of an address of Linux' own.
    Linux(Ipv4Addr),
    /// It takes all of Linux' packets of a kind: IPv4, ARP or IPv6.
    LinuxFrames(u16),
    /// It is not within the filter that it shall be derived from.
    Wider(Filter),
    /// The vNIC of this name has no queue of this number, but so many queues.
    NoSuchQueue(String, usize, usize),
    /// It is assigned to no vNIC, so it has no queues.
    Unassigned(FilterId),
    /// It receives packets of flows, whose queue is their flow group's.
    Flows(Filter),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoSuchCapability => f.write_str("no such capability: forged or revoked"),
            Refusal::NoSuchVnic(name) => write!(f, "there is no vNIC `{name}`"),
            Refusal::NoSuchFilter(id) => write!(f, "there is no filter {}", id.0),
            Refusal::NameTaken(name) => write!(f, "there is a vNIC `{name}` already"),
            Refusal::BadName(name) => {
                let name = name.escape_debug();
                write!(f, "`{name}` is no name: 1 to 10 lower-case letters, digits and dashes")
            }
            Refusal::TooManyVnics(most) => write!(f, "there are {most} vNICs, as many as may be"),
            Refusal::Queues(asked, most) => {
                write!(f, "{asked} queue pairs are not between 1 and {most}")
            }
            Refusal::TooManyFilters(most) => {
                write!(f, "there are {most} filters, as many as may be")
            }
            Refusal::TooManyDerived(holder, most) => write!(
                f,
                "{most} filters are derived from what {holder} holds, as many as may be: revoke one"
            ),
            Refusal::Empty => f.write_str("no packet belongs to the filter"),
            Refusal::Held { holder, filter } => {
                write!(f, "it overlaps with what {holder} holds: {filter}")
            }
            Refusal::Linux(address) => write!(f, "it overlaps with Linux, which has {address}"),
            Refusal::LinuxFrames(kind) => {
                write!(f, "it overlaps with Linux, which has all other frames of type {kind:#06x}")
            }
            Refusal::Wider(filter) => write!(f, "it goes beyond what was granted: {filter}"),
            Refusal::NoSuchQueue(name, queue, queues) => {
                write!(f, "vNIC `{name}` has no queue {queue}: its queues are 0 to {}", queues - 1)
            }
            Refusal::Unassigned(id) => write!(f, "filter {} is assigned to no vNIC", id.0),
            Refusal::Flows(filter) => write!(
                f,
                "`{filter}` takes TCP, UDP, ICMP or ARP, whose queue is that of their flow group: only what \
                 lies below them (`rx eth type …`, `rx ip proto …`) can be received at a queue of choice"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

#[derive(Clone, Debug)]
struct Vnic {
    name: String,
    queues: usize,
    key: Capability,
}

#[derive(Clone, Debug)]
struct Held {
    filter: Filter,
    holder: String,
    key: Capability,
    parent: Option<FilterId>,
    /// How many filters it was derived through.
    depth: u32,
    assigned: Option<VnicId>,
    /// The queue of that vNIC that holds it alone; none: all do.
    queue: Option<usize>,
}

/// The vNICs and filters of one interface.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    policy: Policy,
    linux: Vec<Ipv4Addr>,
    vnics: BTreeMap<VnicId, Vnic>,
    filters: BTreeMap<FilterId, Held>,
    last: u32,
}

/// A filter at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The vNIC that it is assigned to.
    pub vnic: VnicId,
    /// The queue of the vNIC that holds it alone; none: all do.
    pub queue: Option<usize>,
    /// Its packets.
    pub filter: Filter,
}

/// A vNIC, to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicView {
    /// Its number.
    pub id: VnicId,
    /// Its name.
    pub name: String,
    /// Its queue pairs.
    pub queues: usize,
}

/// A filter, to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterView {
    /// Its number.
    pub id: FilterId,
    /// Its packets.
    pub filter: Filter,
    /// Whom it was granted to.
    pub holder: String,
    /// What it was derived from.
    pub parent: Option<FilterId>,
    /// The vNIC that it is assigned to.
    pub assigned: Option<VnicId>,
    /// The queue of that vNIC that holds it alone; none: all do.
    pub queue: Option<usize>,
}

/// Frames that Linux needs to be reached at all: IPv4, ARP, IPv6.
const LINUX_FRAMES: [u16; 3] = [0x0800, 0x0806, 0x86dd];

impl Registry {
    /// Nobody holds anything.
    pub fn new(policy: Policy) -> Registry {
        Registry { policy, ..Registry::default() }
    }

    /// What there may be.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Linux has these addresses on the interface now. What was granted before stays.
    pub fn set_linux(&mut self, addresses: Vec<Ipv4Addr>) {
        self.linux = addresses;
    }

    /// A new vNIC, without filters.
    pub fn create_vnic(
        &mut self,
        name: &str,
        queues: usize,
        key: Capability,
    ) -> Result<VnicId, Refusal> {
        let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if !(1..=10).contains(&name.len()) || !name.bytes().all(fine) {
            return Err(Refusal::BadName(name.to_owned()));
        }
        if self.vnics.values().any(|vnic| vnic.name == name) {
            return Err(Refusal::NameTaken(name.to_owned()));
        }
        if self.vnics.len() >= self.policy.vnics_max {
            return Err(Refusal::TooManyVnics(self.policy.vnics_max));
        }
        if !(1..=self.policy.queues_max).contains(&queues) {
            return Err(Refusal::Queues(queues, self.policy.queues_max));
        }
        let id = VnicId(self.next());
        self.vnics.insert(id, Vnic { name: name.to_owned(), queues, key });
        Ok(id)
    }

    /// The vNIC of a capability.
    pub fn vnic_of(&self, key: &Capability) -> Result<VnicId, Refusal> {
        // All are compared, so that the time says nothing about how many come before.
        let same =
            |found, (id, vnic): (&VnicId, &Vnic)| if vnic.key.is(key) { Some(*id) } else { found };
        self.vnics.iter().fold(None, same).ok_or(Refusal::NoSuchCapability)
    }

    /// The vNIC of a name, for operators.
    pub fn vnic_named(&self, name: &str) -> Result<VnicId, Refusal> {
        let named = self.vnics.iter().find(|(_, vnic)| vnic.name == name);
        named.map(|(id, _)| *id).ok_or_else(|| Refusal::NoSuchVnic(name.to_owned()))
    }

    /// The vNIC is gone: what was assigned to it is Linux's again, until it is assigned anew.
    pub fn delete_vnic(&mut self, id: VnicId) -> bool {
        for held in self.filters.values_mut().filter(|held| held.assigned == Some(id)) {
            (held.assigned, held.queue) = (None, None);
        }
        self.vnics.remove(&id).is_some()
    }

    /// Grants a filter to `holder`, as an operator may.
    pub fn grant(
        &mut self,
        holder: &str,
        filter: Filter,
        key: Capability,
    ) -> Result<FilterId, Refusal> {
        let granted = self.filters.values().filter(|held| held.parent.is_none());
        if granted.count() >= self.policy.filters_max {
            return Err(Refusal::TooManyFilters(self.policy.filters_max));
        }
        if filter.is_empty() {
            return Err(Refusal::Empty);
        }
        if !self.policy.may_overlap {
            self.check_free(holder, &filter)?;
        }
        let (holder, parent, depth) = (holder.to_owned(), None, 0);
        let (assigned, queue) = (None, None);
        Ok(self.insert(Held { filter, holder, key, parent, depth, assigned, queue }))
    }

    /// Derives from a filter whose capability is `from` a narrower one, or the same once more, with
    /// a capability of its own.
    pub fn derive(
        &mut self,
        from: &Capability,
        filter: Option<Filter>,
        key: Capability,
    ) -> Result<FilterId, Refusal> {
        let parent = self.filter_of(from)?;
        let Held { filter: whole, holder, depth, .. } = &self.filters[&parent];
        let filter = filter.unwrap_or_else(|| whole.clone());
        if !whole.contains(&filter) {
            return Err(Refusal::Wider(whole.clone()));
        }
        if filter.is_empty() {
            return Err(Refusal::Empty);
        }
        let is_theirs = |held: &&Held| held.parent.is_some() && held.holder == *holder;
        if self.filters.values().filter(is_theirs).count() >= self.policy.derived_max {
            return Err(Refusal::TooManyDerived(holder.clone(), self.policy.derived_max));
        }
        let (holder, depth, parent) = (holder.clone(), depth + 1, Some(parent));
        let (assigned, queue) = (None, None);
        Ok(self.insert(Held { filter, holder, key, parent, depth, assigned, queue }))
    }

    /// Its packets go to, or may come from, the vNIC, by any of its queues; it leaves the one that
    /// it was assigned to.
    pub fn assign(&mut self, filter: &Capability, vnic: VnicId) -> Result<FilterId, Refusal> {
        let id = self.filter_of(filter)?;
        self.assign_by_id(id, Some(vnic))?;
        Ok(id)
    }

    /// The same for operators; `None`: its packets are Linux's.
    pub fn assign_by_id(&mut self, id: FilterId, vnic: Option<VnicId>) -> Result<(), Refusal> {
        if vnic.is_some_and(|vnic| !self.vnics.contains_key(&vnic)) {
            return Err(Refusal::NoSuchCapability);
        }
        let held = self.filters.get_mut(&id).ok_or(Refusal::NoSuchFilter(id))?;
        (held.assigned, held.queue) = (vnic, None);
        Ok(())
    }

    /// Only this queue of its vNIC holds the filter from now on; `None`: all do. A received packet
    /// that a filter of a queue takes is that queue's, so it may be of no flow: those have the
    /// queue of their flow group.
    pub fn assign_queue(&mut self, id: FilterId, queue: Option<usize>) -> Result<(), Refusal> {
        let held = self.filters.get(&id).ok_or(Refusal::NoSuchFilter(id))?;
        let vnic = held.assigned.ok_or(Refusal::Unassigned(id))?;
        if let Some(queue) = queue {
            self.check_queue(vnic, queue)?;
            if held.filter.receives_flows() {
                return Err(Refusal::Flows(held.filter.clone()));
            }
        }
        if let Some(held) = self.filters.get_mut(&id) {
            held.queue = queue;
        }
        Ok(())
    }

    /// The queue that holds a filter alone, if one does.
    pub fn queue_of(&self, id: FilterId) -> Option<usize> {
        self.filters.get(&id)?.queue
    }

    /// Refuses what is no queue of the vNIC.
    pub fn check_queue(&self, vnic: VnicId, queue: usize) -> Result<(), Refusal> {
        let vnic = self.vnics.get(&vnic).ok_or(Refusal::NoSuchCapability)?;
        let no_such = || Refusal::NoSuchQueue(vnic.name.clone(), queue, vnic.queues);
        if queue < vnic.queues { Ok(()) } else { Err(no_such()) }
    }

    /// The capability is worth nothing any more, nor are those of what was derived from its filter.
    /// Answers how many filters are gone.
    pub fn revoke(&mut self, filter: &Capability) -> Result<usize, Refusal> {
        let id = self.filter_of(filter)?;
        self.revoke_by_id(id)
    }

    /// The same for operators.
    pub fn revoke_by_id(&mut self, id: FilterId) -> Result<usize, Refusal> {
        if !self.filters.contains_key(&id) {
            return Err(Refusal::NoSuchFilter(id));
        }
        let before = self.filters.len();
        // Children have greater numbers than their parents, so one pass finds them all.
        let mut gone = vec![id];
        for (id, held) in &self.filters {
            if held.parent.is_some_and(|parent| gone.contains(&parent)) {
                gone.push(*id);
            }
        }
        self.filters.retain(|id, _| !gone.contains(id));
        Ok(before - self.filters.len())
    }

    /// The filter of a capability.
    pub fn filter_of(&self, key: &Capability) -> Result<FilterId, Refusal> {
        let same = |found, (id, held): (&FilterId, &Held)| {
            if held.key.is(key) { Some(*id) } else { found }
        };
        self.filters.iter().fold(None, same).ok_or(Refusal::NoSuchCapability)
    }

    /// What is at work in a direction, in the order in which it is to be tried: derived filters
    /// before what they were derived from, for they take their part out of it; else the older
    /// first.
    pub fn rules(&self, direction: Direction) -> Vec<Assigned> {
        let at_work = self.filters.iter().filter(|(_, h)| h.filter.direction() == direction);
        let mut order: Vec<_> = at_work
            .filter_map(|(id, held)| {
                let (vnic, queue, filter) = (held.assigned?, held.queue, held.filter.clone());
                let assigned = Assigned { vnic, queue, filter };
                Some((std::cmp::Reverse(held.depth), *id, assigned))
            })
            .collect();
        order.sort_by_key(|(depth, id, _)| (*depth, *id));
        order.into_iter().map(|(_, _, assigned)| assigned).collect()
    }

    /// All vNICs.
    pub fn vnics(&self) -> Vec<VnicView> {
        let view = |(id, vnic): (&VnicId, &Vnic)| VnicView {
            id: *id,
            name: vnic.name.clone(),
            queues: vnic.queues,
        };
        self.vnics.iter().map(view).collect()
    }

    /// All filters.
    pub fn filters(&self) -> Vec<FilterView> {
        let view = |(id, held): (&FilterId, &Held)| FilterView {
            id: *id,
            filter: held.filter.clone(),
            holder: held.holder.clone(),
            parent: held.parent,
            assigned: held.assigned,
            queue: held.queue,
        };
        self.filters.iter().map(view).collect()
    }

    /// Refuses what is Linux's or somebody else's.
    fn check_free(&self, holder: &str, filter: &Filter) -> Result<(), Refusal> {
        if let Some(address) = self.linux.iter().find(|ip| filter.takes_address(**ip)) {
            return Err(Refusal::Linux(*address));
        }
        // An IPv4 filter of any address would take those that Linux gets tomorrow.
        if let Some(kind) = LINUX_FRAMES.iter().find(|kind| filter.takes_frames(**kind)) {
            return Err(Refusal::LinuxFrames(*kind));
        }
        let mut others = self.filters.values().filter(|held| held.holder != holder);
        match others.find(|held| held.filter.overlaps(filter)) {
            Some(held) => {
                let (holder, filter) = (held.holder.clone(), held.filter.clone());
                Err(Refusal::Held { holder, filter })
            }
            None => Ok(()),
        }
    }

    fn insert(&mut self, held: Held) -> FilterId {
        let id = FilterId(self.next());
        self.filters.insert(id, held);
        id
    }

    fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }
}

impl Filter {
    /// Whether it takes received packets of the dataplane's own protocols: ARP, ICMP, TCP, UDP.
    fn receives_flows(&self) -> bool {
        use crate::filter::Field::{EtherType, Protocol};
        use crate::ranges::Ranges;
        let own = Ranges::new([1, 6, 17].map(|protocol| (protocol, protocol)));
        let flows = Filter::new(Direction::Receive, Level::Ipv4).with(Protocol, own);
        let arp = Ranges::one(0x0806);
        let arp = Filter::new(Direction::Receive, Level::Ethernet).with(EtherType, arp);
        self.overlaps(&flows) || self.overlaps(&arp)
    }

    /// Whether it takes packets whose address at our end is this one.
    fn takes_address(&self, address: Ipv4Addr) -> bool {
        use crate::filter::Field::ServiceAddress;
        let value = u64::from(u32::from(address));
        let takes = |values: &crate::ranges::Ranges| values.contains(value);
        self.level() != Level::Ethernet && self.field(ServiceAddress).is_none_or(takes)
    }

    /// Whether it takes all frames of this type, whatever address stands in them.
    fn takes_frames(&self, ethertype: u16) -> bool {
        use crate::filter::Field::{EtherType, ServiceAddress};
        let takes = |values: &crate::ranges::Ranges| values.contains(ethertype.into());
        let any_address = self.field(ServiceAddress).is_none();
        any_address && self.field(EtherType).is_none_or(takes)
    }
}
