//! Which holder has which part of the header space of one interface.
//!
//! An operator grants a filter to a holder and gets a capability for it. A process with the
//! capability may assign the filter to a vNIC whose capability it has too, derive narrower
//! filters, which have capabilities of their own to be passed on, and revoke the filter with all
//! that was derived from it. Packets that match no assigned filter go to Linux. The caller supplies
//! the random bits of capabilities.
use crate::capability::Capability;
use crate::filter::{Direction, Filter, Level};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Number of a vNIC. Not secret; gives no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnicId(pub u32);

/// Number of a filter. Not secret; gives no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId(pub u32);

/// Limits of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most vNICs.
    pub vnics_max: usize,
    /// Most queue pairs of one vNIC.
    pub queues_max: usize,
    /// Most filters that operators grant.
    pub filters_max: usize,
    /// Most filters derived from those of one holder. So the holder of a capability cannot use up
    /// the filters of others.
    pub derived_max: usize,
    /// Whether a new filter may overlap with another holder's, or with Linux. A packet that matches
    /// several goes to the older filter.
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

/// Why a request is refused. For a wrong capability there is only one reason, so that guessing
/// reveals nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The capability is forged, revoked, or for something else.
    NoSuchCapability,
    /// No vNIC has this name.
    NoSuchVnic(String),
    /// No filter has this number.
    NoSuchFilter(FilterId),
    /// A vNIC with this name already exists.
    NameTaken(String),
    /// The name is not 1 to 10 lower-case letters, digits and dashes.
    BadName(String),
    /// There are already this many vNICs, the most allowed.
    TooManyVnics(usize),
    /// The number of queue pairs that were asked for, and the most allowed.
    Queues(usize, usize),
    /// There are already this many filters, the most allowed.
    TooManyFilters(usize),
    /// From this holder's filters there are already this many derived, the most allowed.
    TooManyDerived(String, usize),
    /// No packet matches the filter.
    Empty,
    /// It overlaps with another holder's filter.
    Held {
        /// The holder.
        holder: String,
        /// The holder's filter.
        filter: Filter,
    },
    /// It matches packets of an address that Linux has.
    Linux(IpAddr),
    /// It matches all of Linux's frames of an EtherType: IPv4, ARP or IPv6.
    LinuxFrames(u16),
    /// It is not within this filter, which it should be derived from.
    Wider(Filter),
    /// The vNIC of this name has no queue of this number; the last is the number of its queues.
    NoSuchQueue(String, usize, usize),
    /// The filter is not assigned to a vNIC, so it has no queues.
    Unassigned(FilterId),
    /// The filter receives packets of flows, which go to the queue of their flow group.
    Flows(Filter),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoSuchCapability => f.write_str("no such capability: forged or revoked"),
            Refusal::NoSuchVnic(name) => write!(f, "there is no vNIC `{name}`"),
            Refusal::NoSuchFilter(id) => write!(f, "there is no filter {}", id.0),
            Refusal::NameTaken(name) => write!(f, "vNIC `{name}` already exists"),
            Refusal::BadName(name) => {
                let name = name.escape_debug();
                write!(
                    f,
                    "invalid name `{name}`: use 1 to 10 lower-case letters, digits and dashes"
                )
            }
            Refusal::TooManyVnics(most) => write!(f, "too many vNICs: at most {most}"),
            Refusal::Queues(asked, most) => {
                write!(f, "{asked} queue pairs are not between 1 and {most}")
            }
            Refusal::TooManyFilters(most) => {
                write!(f, "too many filters: at most {most}")
            }
            Refusal::TooManyDerived(holder, most) => write!(
                f,
                "too many filters derived from those of {holder}: at most {most}; revoke one"
            ),
            Refusal::Empty => f.write_str("no packet matches the filter"),
            Refusal::Held { holder, filter } => {
                write!(f, "it overlaps with a filter of {holder}: {filter}")
            }
            Refusal::Linux(address) => write!(f, "it overlaps with Linux, which has {address}"),
            Refusal::LinuxFrames(kind) => {
                write!(
                    f,
                    "it overlaps with Linux, which receives all other frames of type {kind:#06x}"
                )
            }
            Refusal::Wider(filter) => write!(f, "it is wider than the granted filter: {filter}"),
            Refusal::NoSuchQueue(name, queue, queues) => {
                write!(f, "vNIC `{name}` has no queue {queue}: its queues are 0 to {}", queues - 1)
            }
            Refusal::Unassigned(id) => write!(f, "filter {} is assigned to no vNIC", id.0),
            Refusal::Flows(filter) => write!(
                f,
                "`{filter}` matches TCP, UDP, ICMP, ARP or Neighbour Discovery, which go to the queue of \
                 their flow group; only other packets (`rx eth type …`, `rx ip proto …`) can go to a chosen queue"
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
    /// Number of filters between it and the granted one.
    depth: u32,
    assigned: Option<VnicId>,
    /// The queue of that vNIC that it is assigned to; `None`: all.
    queue: Option<usize>,
}

/// The vNICs and filters of one interface.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    policy: Policy,
    linux: Vec<IpAddr>,
    vnics: BTreeMap<VnicId, Vnic>,
    filters: BTreeMap<FilterId, Held>,
    last: u32,
}

/// An assigned filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The vNIC that it is assigned to.
    pub vnic: VnicId,
    /// The queue of the vNIC that it is assigned to; `None`: all.
    pub queue: Option<usize>,
    /// The packets that it matches.
    pub filter: Filter,
}

/// A copy of a vNIC's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicView {
    /// Its number.
    pub id: VnicId,
    /// Its name.
    pub name: String,
    /// Its queue pairs.
    pub queues: usize,
}

/// A copy of a filter's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterView {
    /// Its number.
    pub id: FilterId,
    /// The packets that it matches.
    pub filter: Filter,
    /// The holder that it was granted to.
    pub holder: String,
    /// The filter that it was derived from.
    pub parent: Option<FilterId>,
    /// The vNIC that it is assigned to.
    pub assigned: Option<VnicId>,
    /// The queue of that vNIC that it is assigned to; `None`: all.
    pub queue: Option<usize>,
}

/// EtherTypes that Linux needs to be reachable: IPv4, ARP, IPv6.
const LINUX_FRAMES: [u16; 3] = [0x0800, 0x0806, 0x86dd];

impl Registry {
    /// A registry without vNICs and filters.
    pub fn new(policy: Policy) -> Registry {
        Registry { policy, ..Registry::default() }
    }

    /// The limits.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Sets the addresses that Linux has on the interface. Filters that were granted before remain.
    pub fn set_linux(&mut self, addresses: Vec<IpAddr>) {
        self.linux = addresses;
    }

    /// Creates a vNIC without filters.
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
        // All are compared, so that the time does not tell which one is equal.
        let same =
            |found, (id, vnic): (&VnicId, &Vnic)| if vnic.key.is(key) { Some(*id) } else { found };
        self.vnics.iter().fold(None, same).ok_or(Refusal::NoSuchCapability)
    }

    /// The vNIC of a name. For operators.
    pub fn vnic_named(&self, name: &str) -> Result<VnicId, Refusal> {
        let named = self.vnics.iter().find(|(_, vnic)| vnic.name == name);
        named.map(|(id, _)| *id).ok_or_else(|| Refusal::NoSuchVnic(name.to_owned()))
    }

    /// Deletes a vNIC. The packets of its filters go to Linux until the filters are assigned again.
    /// Returns false if there is no such vNIC.
    pub fn delete_vnic(&mut self, id: VnicId) -> bool {
        for held in self.filters.values_mut().filter(|held| held.assigned == Some(id)) {
            (held.assigned, held.queue) = (None, None);
        }
        self.vnics.remove(&id).is_some()
    }

    /// Grants a filter to `holder`. For operators.
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

    /// Derives a filter from the one whose capability is `from`. It has a capability of its own,
    /// and is narrower or equal.
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

    /// Assigns a filter to all queues of a vNIC: its packets go to that vNIC, or may come from it.
    /// If it was assigned to another vNIC, that one loses it.
    pub fn assign(&mut self, filter: &Capability, vnic: VnicId) -> Result<FilterId, Refusal> {
        let id = self.filter_of(filter)?;
        self.assign_by_id(id, Some(vnic))?;
        Ok(id)
    }

    /// Assigns a filter; `None`: its packets go to Linux. For operators.
    pub fn assign_by_id(&mut self, id: FilterId, vnic: Option<VnicId>) -> Result<(), Refusal> {
        if vnic.is_some_and(|vnic| !self.vnics.contains_key(&vnic)) {
            return Err(Refusal::NoSuchCapability);
        }
        let held = self.filters.get_mut(&id).ok_or(Refusal::NoSuchFilter(id))?;
        (held.assigned, held.queue) = (vnic, None);
        Ok(())
    }

    /// Assigns a filter to one queue of its vNIC; `None`: to all. A received packet goes to the
    /// queue of the filter that matches it, so such a filter must not match packets of flows: these
    /// go to the queue of their flow group.
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

    /// The queue that a filter is assigned to; `None`: all.
    pub fn queue_of(&self, id: FilterId) -> Option<usize> {
        self.filters.get(&id)?.queue
    }

    /// Returns an error if the vNIC has no such queue.
    pub fn check_queue(&self, vnic: VnicId, queue: usize) -> Result<(), Refusal> {
        let vnic = self.vnics.get(&vnic).ok_or(Refusal::NoSuchCapability)?;
        let no_such = || Refusal::NoSuchQueue(vnic.name.clone(), queue, vnic.queues);
        if queue < vnic.queues { Ok(()) } else { Err(no_such()) }
    }

    /// Revokes a filter and all that was derived from it; their capabilities become invalid.
    /// Returns the number of revoked filters.
    pub fn revoke(&mut self, filter: &Capability) -> Result<usize, Refusal> {
        let id = self.filter_of(filter)?;
        self.revoke_by_id(id)
    }

    /// Revokes a filter. For operators.
    pub fn revoke_by_id(&mut self, id: FilterId) -> Result<usize, Refusal> {
        if !self.filters.contains_key(&id) {
            return Err(Refusal::NoSuchFilter(id));
        }
        let before = self.filters.len();
        // Children have larger numbers than their parents, so one pass finds them all.
        let mut gone = vec![id];
        for (id, held) in &self.filters {
            if held.parent.is_some_and(|parent| gone.contains(&parent)) {
                gone.push(*id);
            }
        }
        self.filters.retain(|id, _| !gone.contains(id));
        Ok(before - self.filters.len())
    }

    /// Revokes the filters that were made since `before` was a copy of this registry.
    pub fn forget_added_since(&mut self, before: &Registry) {
        // Numbers are given out once.
        self.filters.retain(|id, _| id.0 <= before.last);
    }

    /// The filter of a capability.
    pub fn filter_of(&self, key: &Capability) -> Result<FilterId, Refusal> {
        let same = |found, (id, held): (&FilterId, &Held)| {
            if held.key.is(key) { Some(*id) } else { found }
        };
        self.filters.iter().fold(None, same).ok_or(Refusal::NoSuchCapability)
    }

    /// The assigned filters of a direction, in the order in which they must be tried: derived
    /// filters before the filter that they were derived from, because they take a part of it; else
    /// the older one first.
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

    /// Returns an error if the filter overlaps with Linux or another holder.
    fn check_free(&self, holder: &str, filter: &Filter) -> Result<(), Refusal> {
        if let Some(address) = self.linux.iter().find(|ip| filter.takes_address(**ip)) {
            return Err(Refusal::Linux(*address));
        }
        // An IP filter for any address would also match addresses that Linux gets later.
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
    /// True if it matches received packets of the dataplane's own protocols: ARP, ICMP, TCP, UDP,
    /// of both families.
    fn receives_flows(&self) -> bool {
        use crate::filter::Field::{EtherType, Protocol};
        use crate::ranges::Ranges;
        let flows = |level, own: [u128; 3]| {
            let own = Ranges::new(own.map(|protocol| (protocol, protocol)));
            self.overlaps(&Filter::new(Direction::Receive, level).with(Protocol, own))
        };
        let arp = Ranges::one(0x0806);
        let arp = Filter::new(Direction::Receive, Level::Ethernet).with(EtherType, arp);
        flows(Level::Ipv4, [1, 6, 17]) || flows(Level::Ipv6, [6, 17, 58]) || self.overlaps(&arp)
    }

    /// True if it matches packets with this address at our end.
    fn takes_address(&self, address: IpAddr) -> bool {
        use crate::filter::Field::ServiceAddress;
        let value = match address {
            IpAddr::V4(v4) => u32::from(v4).into(),
            IpAddr::V6(v6) => v6.into(),
        };
        let takes = |values: &crate::ranges::Ranges| values.contains(value);
        let is_ip = self.level() != Level::Ethernet && self.level().is_v6() == address.is_ipv6();
        is_ip && self.field(ServiceAddress).is_none_or(takes)
    }

    /// True if it matches all frames of this type, whatever their addresses.
    fn takes_frames(&self, ethertype: u16) -> bool {
        use crate::filter::Field::{EtherType, ServiceAddress};
        let takes = |values: &crate::ranges::Ranges| values.contains(ethertype.into());
        let any_address = self.field(ServiceAddress).is_none();
        any_address && self.field(EtherType).is_none_or(takes)
    }
}
