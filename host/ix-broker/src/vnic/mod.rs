//! The filters and rates of a dataplane's vNIC, with the holders of the filters. The broker owns
//! them.
mod filters;
#[cfg(test)]
mod tests;

pub use filters::{Enforcer, Granted, Made, Place, capability, draw, refuse};

use crate::link_rates::LinkRates;
use ix_proto::control::vnic::{
    FilterAssigned, FilterCreated, FilterDerived, FiltersCreated, FiltersRevoked, Limit, OwnFilter,
    OwnRates, OwnVnic, QueueRates, RateChange, RatesSet, View,
};
use ix_proto::control::{Answer, Refusal};
use ix_proto::limits::MESSAGE_BYTES_MAX;
use ix_vnic::{
    Assigned, Direction, FILTERS_MAX, Filter, FilterId, FilterView, Policy, Rate, Rates,
    Refusal as Why, Registry, VnicId, VnicRules, check_count,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// The holder of a filter that is granted to nobody in particular.
const HOLDER: &str = "operator";
/// Most characters of all filters together, because one message to the dataplane has all of them.
const FILTER_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4 * 3;

/// The devices of a dataplane that leave packets which its receive filters do not take to Linux.
pub trait FilteredDevices {
    /// Applies other receive filters; none: the dataplane gets all packets. After an error some
    /// devices may have applied them.
    fn set_receive_filters(&mut self, filters: Option<&[Filter]>) -> Result<(), String>;

    /// The receive filters that network cards apply as well.
    fn filters_in_hardware(&self) -> Vec<Filter>;
}

/// One dataplane's vNIC.
#[derive(Debug)]
pub struct Vnic {
    granted: Granted,
    id: VnicId,
    rates: Rates,
    /// Of single queues, beside what they have as parts of the vNIC.
    queue_rates: BTreeMap<usize, Rates>,
    /// What the sharer of the link lets it send.
    link_rates: LinkRates,
    /// Receive filters that a network card applies as well.
    in_hardware: Vec<Filter>,
    queues: usize,
    /// Speed of the slowest link, bits a second, if that is known.
    link_bits_per_s: Option<u64>,
    /// Why the dataplane cannot have any.
    no_filters: Option<&'static str>,
}

/// What becomes of the rates of a vNIC or of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateChanges {
    /// Of what it may receive.
    pub rx: RateChange,
    /// Of what it may send.
    pub tx: RateChange,
    /// Of what each of its flows may send.
    pub flow: RateChange,
}

/// The result of a request: the answer to the user, and what the dataplane must apply before.
pub struct Change {
    /// The answer.
    pub answer: Answer,
    /// Rules that the dataplane has to apply before the user gets the answer.
    pub rules: Option<VnicRules>,
}

impl Vnic {
    /// A vNIC with the rules of the configuration.
    pub fn new(rules: &VnicRules, queues: usize) -> Result<Vnic, String> {
        let name = |e: Why| e.to_string();
        let mut registry = Registry::new(Policy { queues_max: usize::MAX, ..Policy::default() });
        let id = registry.create_vnic("dataplane", queues, draw()?).map_err(name)?;
        let mut vnic = Vnic {
            granted: Granted::new(registry),
            id,
            rates: Rates { rx: rules.rx_rate, tx: rules.tx_rate, flow: rules.flow_rate },
            queue_rates: BTreeMap::new(),
            link_rates: LinkRates::default(),
            in_hardware: Vec::new(),
            queues,
            link_bits_per_s: None,
            no_filters: None,
        };
        for queue in rules.queue_rates.keys() {
            vnic.granted.registry.check_queue(id, *queue).map_err(name)?;
        }
        vnic.queue_rates.clone_from(&rules.queue_rates);
        let all = rules.filters.iter().map(|filter| (None, filter));
        let assigned = rules.assigned.iter().map(|(queue, filter)| (Some(*queue), filter));
        for (queue, filter) in all.chain(assigned) {
            let place = Place { vnic: Some(id), queue };
            let made = vnic.granted.grant(HOLDER, filter.clone(), place);
            made.map_err(|e| e.to_string())?;
        }
        fits(&vnic.granted).map_err(|e| e.to_string())?;
        Ok(vnic)
    }

    /// The dataplane gets no filters, and why.
    pub fn refuse_filters(&mut self, why: &'static str) {
        self.no_filters = Some(why);
    }

    /// Grants filters, and assigns them to the vNIC; with `queue`, to that queue of it alone.
    pub fn create(
        &mut self,
        devices: &mut dyn FilteredDevices,
        filters: &[Filter],
        holder: Option<&str>,
        queue: Option<usize>,
        linux: Vec<IpAddr>,
    ) -> Result<Change, Refusal> {
        if let Some(why) = self.no_filters {
            return Err(Refusal::Vnic(why.to_owned()));
        }
        let (holder, place) = (holder.unwrap_or(HOLDER), Place { vnic: Some(self.id), queue });
        let made = self.granted.create(&mut Enforced(devices), filters, holder, place, linux)?;
        let each = |(filter, made): (&Filter, Made)| FilterCreated {
            filter: made.id.0,
            text: filter.clone(),
            queue: Some(queue),
            capability: made.capability,
        };
        let filters = filters.iter().zip(made).map(each).collect();
        Ok(self.changed(devices, FiltersCreated { filters }))
    }

    /// A narrower filter, or the same, with a capability to hand on. It is at work already: what it
    /// was derived from is, and at the same queue.
    pub fn derive(
        &mut self,
        devices: &mut dyn FilteredDevices,
        from: &str,
        filter: Option<Filter>,
    ) -> Result<Change, Refusal> {
        let made = self.granted.derive(&mut Enforced(devices), from, filter, Some(self.id))?;
        let answer = FilterDerived { filter: made.id.0, capability: made.capability };
        Ok(self.changed(devices, answer))
    }

    /// Only this queue holds the filter from now on; none: all do.
    pub fn assign(
        &mut self,
        devices: &mut dyn FilteredDevices,
        filter: &str,
        queue: Option<usize>,
    ) -> Result<Change, Refusal> {
        let id = self.granted.assign_queue(&mut Enforced(devices), filter, queue)?;
        Ok(self.changed(devices, FilterAssigned { filter: id.0, queue: Some(queue) }))
    }

    /// What the capability stands for is over.
    pub fn revoke(
        &mut self,
        devices: &mut dyn FilteredDevices,
        what: &str,
    ) -> Result<Change, Refusal> {
        let revoked = self.granted.revoke(&mut Enforced(devices), what)?;
        Ok(self.changed(devices, FiltersRevoked { revoked }))
    }

    /// The same by number, for operators; none: there are no filters any more, and all passes.
    pub fn remove(
        &mut self,
        devices: &mut dyn FilteredDevices,
        filter: Option<u32>,
    ) -> Result<Change, Refusal> {
        let revoked = self.granted.remove(&mut Enforced(devices), filter)?;
        Ok(self.changed(devices, FiltersRevoked { revoked }))
    }

    /// What is granted now.
    pub fn granted(&self) -> Granted {
        self.granted.clone()
    }

    /// Gives other devices the receive filters. If one refuses them, those that were added since
    /// `before` are taken back, and this returns why. What was revoked, removed or assigned since
    /// then stays so. An error: a device refuses the rest too, and nothing may run on it.
    pub fn renew(
        &mut self,
        devices: &mut dyn FilteredDevices,
        before: &Granted,
    ) -> Result<Option<String>, String> {
        let mut give = |granted: &Granted| {
            devices.set_receive_filters(receive_filters(&filters_of(granted)).as_deref())
        };
        let Err(why) = give(&self.granted) else { return Ok(None) };
        let rest = self.granted.without_added_since(before);
        if filters_of(&rest) == filters_of(&self.granted) {
            return Err(why);
        }
        give(&rest)?;
        self.granted = rest;
        Ok(Some(why))
    }

    /// Rates beyond this make no sense.
    pub fn set_link(&mut self, bits_per_s: Option<u64>) -> Result<(), String> {
        self.link_bits_per_s = bits_per_s;
        let all = std::iter::once(&self.rates).chain(self.queue_rates.values());
        let rates = all.flat_map(|rates| [rates.rx, rates.tx, rates.flow]).flatten();
        rates.map(|rate| self.check(rate)).find_map(Result::err).map_or(Ok(()), Err)
    }

    /// A network card has these receive filters.
    pub fn set_in_hardware(&mut self, filters: Vec<Filter>) {
        self.in_hardware = filters;
    }

    /// The rates of the shared link.
    pub fn link_rates(&self) -> LinkRates {
        self.link_rates
    }

    /// Sets the rates of the shared link: packets wait here instead of being dropped there. Returns
    /// the rules that the dataplane is to apply, if they change.
    pub fn set_link_rates(&mut self, rates: LinkRates) -> Option<VnicRules> {
        let before = self.rules();
        self.link_rates = rates;
        let rules = self.rules();
        (rules != before).then_some(rules)
    }

    fn check(&self, rate: Rate) -> Result<Rate, String> {
        let within = rate.within(self.link_bits_per_s.unwrap_or(u64::MAX));
        within.map_err(|e| e.to_string())
    }

    /// Changes rates of the vNIC, or of one queue of it.
    pub fn rate(&mut self, queue: Option<usize>, changes: RateChanges) -> Result<Change, Refusal> {
        let RateChanges { rx, tx, flow } = changes;
        let changed = |change, old| changed_rate(change, old, self.link_bits_per_s);
        let old = match queue {
            Some(queue) => {
                self.granted.registry.check_queue(self.id, queue).map_err(refuse)?;
                self.queue_rates.get(&queue).copied().unwrap_or_default()
            }
            None => self.rates,
        };
        let rates = Rates {
            rx: changed(rx, old.rx)?,
            tx: changed(tx, old.tx)?,
            flow: changed(flow, old.flow)?,
        };
        let answer = match queue {
            Some(queue) => {
                self.queue_rates.insert(queue, rates);
                self.queue_rates.retain(|_, rates| !rates.is_empty());
                RatesSet::Queue(QueueRates { queue, rates: shown(&rates) })
            }
            None => {
                self.rates = rates;
                RatesSet::Own(self.all_rates())
            }
        };
        Ok(Change { answer: answer.into(), rules: Some(self.rules()) })
    }

    fn all_rates(&self) -> OwnRates {
        let of =
            |(queue, rates): (&usize, &Rates)| QueueRates { queue: *queue, rates: shown(rates) };
        OwnRates {
            rates: shown(&self.rates),
            link_rate: self.link_rates.limit,
            link_part: self.link_rates.part,
            queue_rates: self.queue_rates.iter().map(of).collect(),
        }
    }

    /// Everything but the capabilities.
    pub fn look(&self) -> View {
        View::Own(Box::new(self.own()))
    }

    fn own(&self) -> OwnVnic {
        let filter = |view: FilterView| OwnFilter {
            filter: view.id.0,
            in_hardware: self.in_hardware.iter().any(|card| card.contains(&view.filter)),
            text: view.filter,
            holder: view.holder,
            derived_from: view.parent.map(|id| id.0),
            queue: view.queue,
        };
        let policy = self.granted.registry.policy();
        let held = |direction| self.granted.filtered.contains(&direction);
        OwnVnic {
            rates: self.all_rates(),
            queues: self.queues,
            filters: self.granted.registry.filters().into_iter().map(filter).collect(),
            filters_max: policy.filters_max,
            derived_of_a_holder_max: policy.derived_max,
            filters_of_a_direction_max: FILTERS_MAX,
            rx_filtered: held(Direction::Receive),
            tx_filtered: held(Direction::Transmit),
            in_hardware: self.in_hardware.clone(),
            // These apply all of them.
            in_software: vec![Limit::Filters, Limit::Rates],
            refused: BTreeMap::new(),
        }
    }

    /// The result of a change that the kernel has applied, and the dataplane not yet.
    fn changed(&mut self, devices: &dyn FilteredDevices, answer: impl Into<Answer>) -> Change {
        self.in_hardware = devices.filters_in_hardware();
        Change { answer: answer.into(), rules: Some(self.rules()) }
    }

    /// The rules that the dataplane applies.
    pub fn rules(&self) -> VnicRules {
        let Rates { rx: rx_rate, tx, flow: flow_rate } = self.rates;
        let tx_rate = tx.into_iter().chain(self.link_rates.both()).reduce(Rate::and);
        let queue_rates = self.queue_rates.clone();
        VnicRules { rx_rate, tx_rate, flow_rate, queue_rates, ..filters_of(&self.granted) }
    }
}

/// The kernel's part: receive filters of devices that share their interface with Linux.
struct Enforced<'a>(&'a mut dyn FilteredDevices);

impl Enforcer for Enforced<'_> {
    fn check(&self, granted: &Granted) -> Result<(), Refusal> {
        fits(granted)
    }

    fn apply(&mut self, granted: &Granted) -> Result<(), Refusal> {
        let filters = receive_filters(&filters_of(granted));
        self.0.set_receive_filters(filters.as_deref()).map_err(Refusal::Vnic)
    }
}

/// Whether the dataplane can hold these filters, and also what is left when some of them are
/// revoked, because revoking must never fail. A derived filter ends with the one that it is derived
/// from, so it counts only where that does not cover it.
fn fits(granted: &Granted) -> Result<(), Refusal> {
    let all = granted.registry.filters();
    let named = |id: FilterId| all.iter().find(|view| view.id == id);
    let covered = |view: &&FilterView| {
        let parents =
            std::iter::successors(view.parent.and_then(named), |view| view.parent.and_then(named));
        parents.into_iter().any(|wide| {
            wide.assigned.is_some()
                && covers((wide.queue, &wide.filter), (view.queue, &view.filter))
        })
    };
    let counted: Vec<_> = all.iter().filter(|view| !covered(view)).collect();
    for direction in [Direction::Receive, Direction::Transmit] {
        let of = counted.iter().filter(|view| view.filter.direction() == direction).count();
        check_count(direction, of).map_err(Refusal::Vnic)?;
    }
    let bytes: usize = counted.iter().map(|view| view.filter.to_string().len()).sum();
    if bytes > FILTER_BYTES_MAX {
        let why = format!(
            "all filters together have {bytes} characters, at most {FILTER_BYTES_MAX}; make lists shorter"
        );
        return Err(Refusal::Vnic(why));
    }
    Ok(())
}

/// The rules of what is granted, without rates.
fn filters_of(granted: &Granted) -> VnicRules {
    let rules = |direction| granted.registry.rules(direction);
    fn at(rule: &Assigned) -> (Option<usize>, &Filter) {
        (rule.queue, &rule.filter)
    }
    let mut kept: Vec<Assigned> = Vec::new();
    for rule in rules(Direction::Receive).into_iter().chain(rules(Direction::Transmit)) {
        if !kept.iter().any(|other| covers(at(other), at(&rule))) {
            kept.retain(|other| !covers(at(&rule), at(other)));
            kept.push(rule);
        }
    }
    let is_closed = |d: &Direction| !kept.iter().any(|rule| rule.filter.direction() == *d);
    let closed = granted.filtered.iter().copied().filter(is_closed).collect();
    let (mut filters, mut assigned) = (Vec::new(), Vec::new());
    for rule in kept {
        match rule.queue {
            Some(queue) => assigned.push((queue, rule.filter)),
            None => filters.push(rule.filter),
        }
    }
    VnicRules { filters, closed, assigned, ..VnicRules::default() }
}

/// Whether the second filter, of all queues or of one, adds nothing to the first. A receive filter
/// of one queue steers packets, so it adds something even if another filter takes the same packets.
fn covers(wide: (Option<usize>, &Filter), narrow: (Option<usize>, &Filter)) -> bool {
    let everywhere = wide.0.is_none() || wide.0 == narrow.0;
    let steers = narrow.1.direction() == Direction::Receive && narrow.0.is_some();
    everywhere && !steers && wide.1.contains(narrow.1)
}

/// Rates in the form that clients read.
fn shown(rates: &Rates) -> ix_proto::control::vnic::Rates {
    let Rates { rx: rx_rate, tx: tx_rate, flow: flow_rate } = *rates;
    ix_proto::control::vnic::Rates { rx_rate, tx_rate, flow_rate }
}

/// A rate after a change. More than the link carries is refused.
pub fn changed_rate(
    change: RateChange,
    old: Option<Rate>,
    link_bits_per_s: Option<u64>,
) -> Result<Option<Rate>, Refusal> {
    if let RateChange::Set(rate) = change {
        let within = rate.within(link_bits_per_s.unwrap_or(u64::MAX));
        within.map_err(|e| Refusal::Vnic(e.to_string()))?;
    }
    Ok(change.apply(old))
}

/// The receive filters of a device that leaves other packets to Linux; none: it takes all packets.
pub fn receive_filters(rules: &VnicRules) -> Option<Vec<Filter>> {
    rules.set(Direction::Receive).map(|set| set.filters().to_vec())
}

/// Linux' own addresses in this network namespace, without those of the loopback. Where it has one
/// of IPv6, it is in the group of all hosts. A refusal if Linux does not say them: a filter on one
/// of them must not be granted.
pub fn linux_addresses() -> Result<Vec<IpAddr>, Refusal> {
    const ALL_HOSTS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let asked = ix_netdev::own_addresses();
    let mut found = asked.map_err(|e| Refusal::Vnic(e.to_string()))?;
    found.retain(|address| !address.is_loopback());
    if found.iter().any(IpAddr::is_ipv6) {
        found.push(ALL_HOSTS.into());
    }
    Ok(found)
}
