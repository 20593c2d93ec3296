//! Carries out the requests to `ix share`: creates and deletes vNICs with their links, and changes
//! filters in the registry and in the kernel.
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
use ix_sys::process::Process;
use ix_sys::say;
use ix_vnic::{Direction, Filter, Policy, Rate, Registry, VnicId};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A shared interface: the registry, the vNICs' links, and the kernel's programs.
pub struct InterfaceShare {
    here: Namespace,
    exchange: Exchange,
    granted: Granted,
    links: BTreeMap<VnicId, Link>,
    /// When to divide the interface again; none while there is nobody to share with.
    share_out: Option<Instant>,
}

/// Time between two divisions of the interface.
const SHARE_OUT: Duration = Duration::from_millis(100);
/// What happens to rates whose link cannot be reached.
const DEAF: &str = "its dataplane cannot learn its rates, because its link is in another namespace, which is not \
    its owner's: packets beyond the rates are dropped and counted (over_rate, over_share)";
/// Largest weight.
const WEIGHT_MAX: u32 = 1000;
/// The smallest rate that the kernel's programs can enforce, bits per second.
const RATE_MIN: u64 = 1000;

impl InterfaceShare {
    /// An interface without vNICs.
    pub fn new(here: Namespace, exchange: Exchange, policy: Policy) -> InterfaceShare {
        let (granted, links) = (Granted::new(Registry::new(policy)), BTreeMap::new());
        InterfaceShare { here, exchange, granted, links, share_out: None }
    }

    /// Descriptors that poll readable when an owner has ended.
    pub fn owner_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let owners = self.links.values().filter_map(|link| link.owner.as_ref());
        owners.map(|owner| owner.as_fd())
    }

    /// When to call [`InterfaceShare::share_out`]; none: not at all.
    pub fn due(&self) -> Option<Instant> {
        self.share_out
    }

    /// Divides a full interface: what some vNICs do not use goes to those that want more. Tells
    /// their dataplanes; returns a line about each error.
    pub fn share_out(&mut self, now: Instant) -> Vec<String> {
        if self.share_out.is_none_or(|due| due > now) {
            return Vec::new();
        }
        // A vNIC that is alone now is looked at once more, to lift its limit.
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
            // A dataplane that cannot be told is not tried ten times a second.
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

    /// Deletes the vNICs whose owners have ended; returns a line about each. First Linux gets all
    /// their traffic back, because the rest takes the kernel some milliseconds for each vNIC.
    pub fn bury_orphans(&mut self) -> Vec<String> {
        let is_orphan = |link: &Link| link.owner.as_ref().is_some_and(has_ended);
        let ended = self.links.iter().filter(|(_, link)| is_orphan(link)).map(|(id, _)| *id);
        let orphans: Vec<VnicId> = ended.collect();
        for link in orphans.iter().filter_map(|id| self.links.get(id)) {
            self.exchange.cut(&link.near);
        }
        let mut lines = Vec::new();
        for id in orphans {
            if let Some(link) = self.links.get(&id) {
                let pid = link.owner.as_ref().map_or(0, Process::pid);
                lines.push(format!("vNIC {} is gone: process {pid} ended", link.name));
            }
            lines.extend(self.delete(id).err());
        }
        lines
    }

    /// Handles the removal of a link of the host; returns a line if it was a vNIC's link.
    pub fn link_gone(&mut self, name: &str) -> Vec<String> {
        let ours = self.links.iter_mut().find(|(_, link)| link.near == name || link.far == name);
        let Some((id, link)) = ours else { return Vec::new() };
        // A tenant may move its end to another namespace; our end always stays here.
        if link.far == name && matches!(self.here.link(&link.near), Ok(Some(_))) {
            link.tell(&self.here);
            let rates = match link.hears {
                true => "its dataplane learns its rates there, through its owner",
                false => DEAF,
            };
            let line =
                format!("link {name} of vNIC {} is in another namespace now: {rates}", link.name);
            return vec![line];
        }
        let (id, line) = (*id, format!("vNIC {} is gone: its link was removed", link.name));
        [Some(line), self.delete(id).err()].into_iter().flatten().collect()
    }

    /// Handles a link of the host that was renamed.
    pub fn link_renamed(&mut self, from: &str, to: &str) {
        for link in self.links.values_mut().filter(|link| link.far == from && link.near != from) {
            link.far = to.to_owned();
        }
    }

    /// Handles another MTU or Ethernet address of the shared interface: its vNICs have the same.
    /// Returns lines about it.
    pub fn interface_altered(&mut self) -> Vec<String> {
        let Some(interface) = self.interface() else { return Vec::new() };
        for link in self.links.values() {
            link.set_mtu(&self.here, interface.mtu);
        }
        if interface.mac == self.exchange.mac() {
            return Vec::new();
        }
        // Frames with it can leave before a dataplane sends any.
        if let Err(e) = self.exchange.set_mac(interface.mac) {
            return vec![e.to_string()];
        }
        let name = &interface.name;
        let line = format!("{name} has another Ethernet address now, and so have its vNICs");
        let deaf =
            self.links.values_mut().filter_map(|link| link.set_mac(&self.here, interface.mac));
        [line].into_iter().chain(deaf).collect()
    }

    /// What the kernel says of the interface now, by its number: its name may have changed.
    fn interface(&self) -> Option<ix_netdev::Link> {
        let links = self.here.links().ok()?;
        links.into_iter().find(|link| link.index == self.exchange.ifindex())
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
                if let Some(interface) = self.interface() {
                    link.set_mtu(&self.here, interface.mtu);
                }
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

    /// Deletes a vNIC: first Linux gets its traffic back, then its filters are removed from the
    /// programs, then its link is removed. After an error the vNIC is deleted as well; the error
    /// says which filters stayed.
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

    /// Changes the rates or the weight of a vNIC.
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
                let why = format!("a weight of {weight} is not from 1 to {WEIGHT_MAX}");
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

    /// Grants all of these filters, or none; assigns them to the vNIC that is named.
    fn grant(&mut self, filters: &[Filter], holder: &str, vnic: Option<&str>) -> Response {
        let named = |name| self.granted.registry.vnic_named(name).map_err(refuse);
        let place = Place { vnic: vnic.map(named).transpose()?, queue: None };
        let (granted, mut kernel) = self.parts();
        let made = granted.create(&mut kernel, filters, holder, place, linux_addresses()?)?;
        let each = |(filter, made): (&Filter, Made)| FilterCreated {
            filter: made.id.0,
            text: filter.clone(),
            queue: None,
            capability: made.capability,
        };
        Ok(FiltersCreated { filters: filters.iter().zip(made).map(each).collect() }.into())
    }

    /// The granted filters, and the kernel's programs that apply them.
    fn parts(&mut self) -> (&mut Granted, Kernel<'_>) {
        let InterfaceShare { exchange, granted, links, .. } = self;
        (granted, Kernel { exchange, links })
    }

    /// Makes the kernel apply all granted filters.
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
                owner: link.and_then(|link| Some(link.owner.as_ref()?.pid())),
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
            linux: linux_addresses().unwrap_or_default(),
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
                "limit that: it limits vNICs (`ix ctl rate --vnic NAME`), and neither flows nor queues",
            )),
            Request::FilterCreate { queue: Some(_), .. }
            | Request::FilterAssign { queue: Some(_), .. }
            | Request::FilterAssign { vnic: None, .. } => Err(Refusal::Unsupported(
                "assign that: name a vNIC (--vnic, --to); only dataplanes know their queues",
            )),
            Request::VnicDelete { name } => {
                let id = self.granted.registry.vnic_named(name).map_err(refuse)?;
                // The vNIC is deleted in any case: after a refusal the client would try again.
                if let Err(e) = self.delete(id) {
                    say!("vNIC {name} is deleted, but some of its filters stay: {e}");
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
            _ => Err(Refusal::Unsupported("do that: it shares an interface and runs no program")),
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

/// Refuses a rate that is too small for the kernel's programs.
fn within(rate: Option<Rate>) -> Result<Option<Rate>, Refusal> {
    match rate.and_then(|rate| rate.bits_per_s) {
        Some(bits) if bits < RATE_MIN => {
            Err(Refusal::Vnic(format!("a rate of {bits}bit is too little: at least {RATE_MIN}bit")))
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
        Err(Refusal::Unsupported("show that: use `ix ctl vnic`"))
    }

    fn begin(&mut self, request: &Request, _ticket: Ticket) -> Option<Response> {
        Some(self.answer(request))
    }
}

/// Removes the vNICs' links.
impl Drop for InterfaceShare {
    fn drop(&mut self) {
        for link in self.links.values() {
            link.remove(&self.here);
        }
    }
}
