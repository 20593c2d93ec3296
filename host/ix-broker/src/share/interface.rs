//! What is asked of `ix share`, and done: vNICs with their links, filters in the registry and in
//! the kernel.
use super::has_ended;
use super::link::Link;
use crate::control::{Backend, Name, Response, Ticket};
use crate::vnic::{Enforcer, Granted, Made, Place, changed_rate, draw, linux_addresses, refuse};
use ix_netdev::Exchange;
use ix_netdev::Namespace;
use ix_proto::control::vnic::{
    FilterAssigned, FilterCreated, FilterDerived, FiltersCreated, FiltersRevoked, Limit, Limits,
    RateChange, RatesSet, SharedFilter, SharedInterface, SharedRates, SharedRatesSet, SharedVnic,
    VnicCreated, VnicDeleted,
};
use ix_proto::control::{Look, Refusal, Request, Topic, VnicDevice, vnic};
use ix_vnic::{Direction, Filter, Policy, Rate, Registry, VnicId};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The registry of one interface, and what carries it out.
pub struct InterfaceShare {
    here: Namespace,
    exchange: Exchange,
    granted: Granted,
    links: BTreeMap<VnicId, Link>,
    /// When shares are looked at next, while there is somebody to share with.
    share_out: Option<Instant>,
}

/// So often shares are given to those that use them.
const SHARE_OUT: Duration = Duration::from_millis(100);
/// What becomes of rates whose link is out of reach.
const DEAF: &str = "its dataplane does not hear of its rates, as its link is in another namespace, and not in \
    its owner's: what is beyond them is dropped and counted (over_rate, over_share)";
/// Weights at most.
const WEIGHT_MAX: u32 = 1000;
/// The least rate that the kernel's programs tell apart, bits a second.
const RATE_MIN: u64 = 1000;

impl InterfaceShare {
    /// Nobody has a vNIC yet.
    pub fn new(here: Namespace, exchange: Exchange, policy: Policy) -> InterfaceShare {
        let (granted, links) = (Granted::new(Registry::new(policy)), BTreeMap::new());
        InterfaceShare { here, exchange, granted, links, share_out: None }
    }

    /// What polls readable when an owner has ended.
    pub fn owner_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let owners = self.links.values().filter_map(|link| link.owner.as_ref());
        owners.map(|(_, fd)| fd.as_fd())
    }

    /// When [`InterfaceShare::share_out`] is to be called, if it is.
    pub fn due(&self) -> Option<Instant> {
        self.share_out
    }

    /// Gives what some leave of a full interface to those that want more, and tells their
    /// dataplanes; answers what went wrong.
    pub fn share_out(&mut self, now: Instant) -> Vec<String> {
        if self.share_out.is_none_or(|due| due > now) {
            return Vec::new();
        }
        // One that is alone now is looked at once more, and held to nothing.
        self.share_out = self.shares().then_some(now + SHARE_OUT);
        let changed = match self.exchange.share_out(now) {
            Ok(changed) => changed,
            Err(e) => return vec![e.to_string()],
        };
        for (near, part) in changed {
            let Some(link) = self.links.values_mut().find(|link| link.near == near) else {
                continue;
            };
            link.part = part;
            // Whoever does not hear is not called ten times a second.
            if link.hears {
                link.tell(&self.here);
            }
        }
        Vec::new()
    }

    fn shares(&self) -> bool {
        self.links.len() > 1 && self.exchange.link_bits_per_s().is_some()
    }

    /// The number of vNICs has changed.
    fn begin_sharing(&mut self) {
        if self.shares() {
            self.share_out.get_or_insert_with(Instant::now);
        }
    }

    /// Deletes the vNICs whose owners have ended; answers a line about each. First of all their
    /// traffic is Linux's: the rest takes the kernel some milliseconds each.
    pub fn bury_orphans(&mut self) -> Vec<String> {
        let is_orphan = |link: &Link| link.owner.as_ref().is_some_and(|(_, fd)| has_ended(fd));
        let ended = self.links.iter().filter(|(_, link)| is_orphan(link)).map(|(id, _)| *id);
        let orphans: Vec<VnicId> = ended.collect();
        for link in orphans.iter().filter_map(|id| self.links.get(id)) {
            self.exchange.cut(&link.near);
        }
        let mut lines = Vec::new();
        for id in orphans {
            if let Some(link) = self.links.get(&id) {
                let pid = link.owner.as_ref().map_or(0, |(pid, _)| *pid);
                lines.push(format!("vNIC {} is gone: process {pid} ended", link.name));
            }
            lines.extend(self.delete(id).err());
        }
        lines
    }

    /// Somebody removed a link of the host; answers a line if it was one of ours.
    pub fn link_gone(&mut self, name: &str) -> Vec<String> {
        let ours = self.links.iter_mut().find(|(_, link)| link.near == name || link.far == name);
        let Some((id, link)) = ours else { return Vec::new() };
        // An end that was moved to another namespace is a tenant's right; ours is always here.
        if link.far == name && matches!(self.here.link(&link.near), Ok(Some(_))) {
            link.tell(&self.here);
            let rates = match link.hears {
                true => "its dataplane hears of its rates by its owner's",
                false => DEAF,
            };
            let line =
                format!("link {name} of vNIC {} is in another namespace now: {rates}", link.name);
            return vec![line];
        }
        let (id, line) = (*id, format!("vNIC {} is gone: its link was removed", link.name));
        [Some(line), self.delete(id).err()].into_iter().flatten().collect()
    }

    /// Somebody gave a link of the host another name.
    pub fn link_renamed(&mut self, from: &str, to: &str) {
        for link in self.links.values_mut().filter(|link| link.far == from && link.near != from) {
            link.far = to.to_owned();
        }
    }

    fn create(
        &mut self,
        name: &str,
        queues: usize,
        owner: Option<u32>,
        device: VnicDevice,
    ) -> Response {
        let key = draw().map_err(Refusal::Vnic)?;
        let id = self.granted.registry.create_vnic(name, queues, key.clone()).map_err(refuse)?;
        let InterfaceShare { here, exchange, .. } = self;
        let made = Link::new(name, device, queues, here, exchange).and_then(|mut link| {
            let owned = owner.map_or(Ok(()), |pid| link.set_owner(pid));
            if owned.is_err() {
                exchange.remove_port(&link.near);
                link.remove(here);
            }
            owned.map(|()| link)
        });
        match made {
            Ok(link) => {
                let answer = VnicCreated {
                    vnic: name.to_owned(),
                    link: link.far.clone(),
                    device: link.device.clone(),
                    capability: key.reveal(),
                };
                self.links.insert(id, link);
                self.begin_sharing();
                Ok(answer.into())
            }
            Err(why) => {
                self.granted.registry.delete_vnic(id);
                Err(Refusal::Vnic(why))
            }
        }
    }

    /// First its traffic is Linux's, then its filters leave the programs, then its link goes. An
    /// error says what of the filters stayed; the vNIC is gone.
    fn delete(&mut self, id: VnicId) -> Result<(), String> {
        if let Some(link) = self.links.get(&id) {
            self.exchange.cut(&link.near);
        }
        self.granted.registry.delete_vnic(id);
        let applied = self.apply();
        if let Some(link) = self.links.remove(&id) {
            self.exchange.remove_port(&link.near);
            link.remove(&self.here);
        }
        self.begin_sharing();
        applied.map_err(|e| e.to_string())
    }

    /// Other rates or another weight of a vNIC.
    fn rate(
        &mut self,
        name: &str,
        rx: RateChange,
        tx: RateChange,
        weight: Option<u32>,
    ) -> Response {
        let id = self.granted.registry.vnic_named(name).map_err(refuse)?;
        let speed = self.exchange.link_bits_per_s();
        let Some(link) = self.links.get_mut(&id) else { return Err(gone(name)) };
        let mut rates = link.rates;
        rates.rx = within(changed_rate(rx, rates.rx, speed)?)?;
        rates.tx = within(changed_rate(tx, rates.tx, speed)?)?;
        if let Some(weight) = weight {
            if !(1..=WEIGHT_MAX).contains(&weight) {
                let why = format!("a weight of {weight} is not between 1 and {WEIGHT_MAX}");
                return Err(Refusal::BadRequest(why));
            }
            rates.weight = weight;
        }
        let set = self.exchange.set_rates(&link.near, rates);
        set.map_err(|e| Refusal::Vnic(e.to_string()))?;
        link.rates = rates;
        link.tell(&self.here);
        let note = (!link.hears).then(|| DEAF.to_owned());
        let set = SharedRatesSet { vnic: name.to_owned(), rates: rates_of(link), note };
        Ok(RatesSet::Shared(set).into())
    }

    /// Grants filters, to a vNIC at once if one is named; all or none.
    fn grant(&mut self, filters: &[Filter], holder: &str, vnic: Option<&str>) -> Response {
        let named = |name| self.granted.registry.vnic_named(name).map_err(refuse);
        let place = Place { vnic: vnic.map(named).transpose()?, queue: None };
        let (granted, mut kernel) = self.parts();
        let made = granted.create(&mut kernel, filters, holder, place, linux_addresses())?;
        let each = |(filter, made): (&Filter, Made)| FilterCreated {
            filter: made.id.0,
            text: filter.clone(),
            queue: None,
            capability: made.capability,
        };
        Ok(FiltersCreated { filters: filters.iter().zip(made).map(each).collect() }.into())
    }

    /// What is granted, and the kernel that puts it into force.
    fn parts(&mut self) -> (&mut Granted, Kernel<'_>) {
        let InterfaceShare { exchange, granted, links, .. } = self;
        (granted, Kernel { exchange, links })
    }

    /// Puts what is granted into the kernel.
    fn apply(&mut self) -> Result<(), Refusal> {
        let (granted, mut kernel) = self.parts();
        kernel.apply(granted)
    }

    /// Everything but the capabilities.
    fn view(&self) -> SharedInterface {
        let link = |id: VnicId| self.links.get(&id);
        let vnic = |view: ix_vnic::VnicView| {
            let link = link(view.id);
            let counts = link.map(|link| self.exchange.counts(&link.near)).unwrap_or_default();
            SharedVnic {
                vnic: view.name,
                queues: view.queues,
                link: link.map(|link| link.far.clone()),
                device: link.map(|link| link.device.clone()),
                owner: link.and_then(|link| Some(link.owner.as_ref()?.0)),
                sent: counts.sent,
                sent_bytes: counts.sent_bytes,
                received: counts.received,
                foreign_mac: counts.foreign_mac,
                foreign: counts.foreign,
                over_rate: counts.over_rate,
                over_share: counts.over_share,
                received_over_rate: counts.received_over_rate,
                rates: link.map(rates_of),
            }
        };
        let filter = |view: ix_vnic::FilterView| SharedFilter {
            filter: view.id.0,
            text: view.filter,
            holder: view.holder,
            derived_from: view.parent.map(|id| id.0),
            vnic: view.assigned.and_then(link).map(|link| link.name.clone()),
        };
        let policy = self.granted.registry.policy();
        SharedInterface {
            vnics: self.granted.registry.vnics().into_iter().map(vnic).collect(),
            filters: self.granted.registry.filters().into_iter().map(filter).collect(),
            limits: Limits {
                vnics: policy.vnics_max,
                queues: policy.queues_max,
                filters: policy.filters_max,
                derived_of_a_holder: policy.derived_max,
                overlap: policy.may_overlap,
            },
            linux: linux_addresses(),
            in_hardware: Vec::new(),
            in_software: vec![Limit::Filters, Limit::Rates, Limit::Weights],
            link_bits_per_s: self.exchange.link_bits_per_s(),
            refused: BTreeMap::new(),
        }
    }

    fn answer(&mut self, request: &Request) -> Response {
        match request {
            Request::Vnic => Ok(vnic::View::Shared(Box::new(self.view())).into()),
            Request::VnicCreate { name, queues, owner, device } => {
                self.create(name, *queues, *owner, *device)
            }
            Request::Rate {
                vnic: Some(name),
                rx,
                tx,
                weight,
                flow: RateChange::Keep,
                queue: None,
            } => self.rate(name, *rx, *tx, *weight),
            Request::Rate { .. } => Err(Refusal::Unsupported(
                "limit that: it knows vNICs (`ix ctl rate --vnic NAME`), and neither flows nor queues",
            )),
            Request::FilterCreate { queue: Some(_), .. }
            | Request::FilterAssign { queue: Some(_), .. }
            | Request::FilterAssign { vnic: None, .. } => Err(Refusal::Unsupported(
                "assign that: it knows vNICs (--vnic, --to), whose dataplanes know their queues",
            )),
            Request::VnicDelete { name } => {
                let id = self.granted.registry.vnic_named(name).map_err(refuse)?;
                // It is gone in any case: a refusal would let the client try again.
                if let Err(e) = self.delete(id) {
                    eprintln!("ix: vNIC {name} is deleted, but not all that it left behind: {e}");
                }
                Ok(VnicDeleted { deleted: name.clone() }.into())
            }
            Request::FilterCreate { filters, holder, vnic, queue: None } => {
                let holder = holder.as_deref().or(vnic.as_deref()).unwrap_or("operator");
                self.grant(filters, holder, vnic.as_deref())
            }
            Request::FilterDerive { capability: from, filter } => {
                let (granted, mut kernel) = self.parts();
                let made = granted.derive(&mut kernel, from, filter.clone(), None)?;
                Ok(FilterDerived { filter: made.id.0, capability: made.capability }.into())
            }
            Request::FilterAssign { capability: filter, vnic: Some(vnic), queue: None } => {
                let (granted, mut kernel) = self.parts();
                let id = granted.assign_vnic(&mut kernel, filter, vnic)?;
                Ok(FilterAssigned { filter: id.0, queue: None }.into())
            }
            Request::FilterRevoke { capability: what } => {
                let (granted, mut kernel) = self.parts();
                Ok(FiltersRevoked { revoked: granted.revoke(&mut kernel, what)? }.into())
            }
            Request::FilterRemove { filter } => {
                let (granted, mut kernel) = self.parts();
                Ok(FiltersRevoked { revoked: granted.remove(&mut kernel, *filter)? }.into())
            }
            _ => Err(Refusal::Unsupported("do that: it shares an interface, and runs no program")),
        }
    }
}

/// The kernel's programs: one on the shared interface, one on the near end of each link.
struct Kernel<'a> {
    exchange: &'a mut Exchange,
    links: &'a BTreeMap<VnicId, Link>,
}

impl Enforcer for Kernel<'_> {
    fn check(&self, _granted: &Granted) -> Result<(), Refusal> {
        Ok(())
    }

    fn apply(&mut self, granted: &Granted) -> Result<(), Refusal> {
        let near = |id: &VnicId| self.links.get(id).map(|link| link.near.clone());
        let known = |rule: ix_vnic::Assigned| Some((rule.filter, near(&rule.vnic)?));
        let rules = granted.registry.rules(Direction::Receive).into_iter().filter_map(known);
        let rules: Vec<_> = rules.collect();
        let told = |e: ix_netdev::OpenError| Refusal::Vnic(e.to_string());
        self.exchange.set_receive(&rules).map_err(told)?;
        let sends = granted.registry.rules(Direction::Transmit);
        for (id, link) in self.links {
            let own = sends.iter().filter(|rule| rule.vnic == *id);
            let filters: Vec<_> = own.map(|rule| rule.filter.clone()).collect();
            self.exchange.set_transmit(&link.near, &filters).map_err(told)?;
        }
        Ok(())
    }
}

fn gone(name: &str) -> Refusal {
    Refusal::Vnic(format!("there is no vNIC `{name}` any more"))
}

/// Refuses what the kernel's programs would not tell from less.
fn within(rate: Option<Rate>) -> Result<Option<Rate>, Refusal> {
    match rate.and_then(|rate| rate.bits_per_s) {
        Some(bits) if bits < RATE_MIN => {
            Err(Refusal::Vnic(format!("{bits}bit a second is too little: {RATE_MIN}bit at least")))
        }
        _ => Ok(rate),
    }
}

fn rates_of(link: &Link) -> SharedRates {
    SharedRates {
        rx_rate: link.rates.rx,
        tx_rate: link.rates.tx,
        weight: link.rates.weight,
        part_bits_per_s: link.part,
    }
}

impl Backend for InterfaceShare {
    fn name(&self) -> Name {
        Name { program: "ix share".to_owned(), pid: std::process::id() }
    }

    fn look(&mut self, _topic: Topic) -> Result<Look, Refusal> {
        Err(Refusal::Unsupported("tell that: `ix ctl vnic` says what it does"))
    }

    fn begin(&mut self, request: &Request, _ticket: Ticket) -> Option<Response> {
        Some(self.answer(request))
    }
}

/// The links go with the vNICs.
impl Drop for InterfaceShare {
    fn drop(&mut self) {
        for link in self.links.values() {
            link.remove(&self.here);
        }
    }
}
