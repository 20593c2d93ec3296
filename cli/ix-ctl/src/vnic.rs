//! The filters and rates of a dataplane, as its broker keeps them: one vNIC, and who holds what of
//! its part of the header space.
use crate::control::Refusal;
use crate::link_rates::LinkRates;
use ix_launch::MESSAGE_BYTES_MAX;
use ix_vnic::{
    Assigned, Capability, Direction, FILTERS_MAX, Filter, FilterId, FilterView, Gate, Policy, Rate,
    RateError, Rates, Refusal as Why, Registry, VnicId, check_count,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Whom a filter is granted to when nobody is named.
const HOLDER: &str = "operator";
/// Letters of all filters together: they reach the dataplane in one message, with rates and whatever else.
const FILTER_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4 * 3;

/// One dataplane's vNIC.
#[derive(Debug)]
pub struct Vnic {
    registry: Registry,
    id: VnicId,
    rates: Rates,
    /// Of single queues, beside what they have as parts of the vNIC.
    queue_rates: BTreeMap<usize, Rates>,
    /// What whoever shares the link lets it send.
    link_rates: LinkRates,
    /// Receive filters that a network card asks as well.
    in_hardware: Vec<Filter>,
    /// Directions that filters were granted for: what is not in one of them does not pass.
    filtered: Vec<Direction>,
    queues: usize,
    /// Speed of the slowest link, bits a second, if that is known.
    link_bits_per_s: Option<u64>,
    /// Devices have not heard of the last change yet.
    changed: bool,
}

/// What comes of a request: what the user hears, and whether the dataplane must hear it first.
pub struct Change {
    /// For who asked.
    pub answer: Value,
    /// The dataplane gets another gate.
    pub gate: Option<Gate>,
}

impl Vnic {
    /// With what the configuration grants, to the whole of it and to single queues.
    pub fn new(gate: &Gate, queues: usize) -> Result<Vnic, String> {
        let name = |e: Why| e.to_string();
        let mut registry = Registry::new(Policy { queues_max: usize::MAX, ..Policy::default() });
        let id = registry.create_vnic("dataplane", queues, draw()?).map_err(name)?;
        let mut vnic = Vnic {
            registry,
            id,
            rates: Rates { rx: gate.rx_rate, tx: gate.tx_rate, flow: gate.flow_rate },
            queue_rates: BTreeMap::new(),
            link_rates: LinkRates::default(),
            in_hardware: Vec::new(),
            filtered: Vec::new(),
            queues,
            link_bits_per_s: None,
            changed: false,
        };
        for queue in gate.queue_rates.keys() {
            vnic.registry.check_queue(id, *queue).map_err(name)?;
        }
        vnic.queue_rates.clone_from(&gate.queue_rates);
        let all = gate.filters.iter().map(|filter| (None, filter));
        let assigned = gate.assigned.iter().map(|(queue, filter)| (Some(*queue), filter));
        for (queue, filter) in all.chain(assigned) {
            vnic.grant(HOLDER, filter.clone(), queue).map_err(|e| e.to_string())?;
        }
        vnic.fits().map_err(|e| e.to_string())?;
        Ok(vnic)
    }

    /// Grants filters, and assigns them to the vNIC; with `queue`, to that queue of it alone.
    pub fn create(
        &mut self,
        filters: &[Filter],
        holder: Option<&str>,
        queue: Option<usize>,
        linux: Vec<Ipv4Addr>,
    ) -> Result<Change, Refusal> {
        self.registry.set_linux(linux);
        self.attempt(|vnic| {
            let grant = |filter: &Filter| {
                Ok(vnic.grant(holder.unwrap_or(HOLDER), filter.clone(), queue)?.1)
            };
            let made = filters.iter().map(grant).collect::<Result<Vec<Value>, Refusal>>()?;
            Ok(json!({ "filters": made }))
        })
    }

    /// All of a change or nothing of it, also where the dataplane could not hold what comes of it.
    fn attempt(
        &mut self,
        change: impl FnOnce(&mut Vnic) -> Result<Value, Refusal>,
    ) -> Result<Change, Refusal> {
        let before = (self.registry.clone(), self.filtered.clone());
        match change(self).and_then(|answer| self.fits().map(|()| answer)) {
            Ok(answer) => Ok(self.changed(answer)),
            Err(refusal) => {
                (self.registry, self.filtered) = before;
                Err(refusal)
            }
        }
    }

    /// Whether the dataplane can hold these filters, and what is left of them when some are revoked: to
    /// revoke may never fail. What is derived ends with what it comes from, so it counts only where that
    /// does not cover it.
    fn fits(&self) -> Result<(), Refusal> {
        let all = self.registry.filters();
        let named = |id: FilterId| all.iter().find(|view| view.id == id);
        let covered = |view: &&FilterView| {
            let parents = std::iter::successors(view.parent.and_then(named), |view| {
                view.parent.and_then(named)
            });
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
                "all filters together have {bytes} letters, and {FILTER_BYTES_MAX} at most: make lists shorter"
            );
            return Err(Refusal::Vnic(why));
        }
        Ok(())
    }

    fn grant(
        &mut self,
        holder: &str,
        filter: Filter,
        queue: Option<usize>,
    ) -> Result<(FilterId, Value), Refusal> {
        let key = draw().map_err(Refusal::Dataplane)?;
        let (direction, text) = (filter.direction(), filter.to_string());
        let id = self.registry.grant(holder, filter, key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, Some(self.id)).map_err(refuse)?;
        self.registry.assign_queue(id, queue).map_err(refuse)?;
        if !self.filtered.contains(&direction) {
            self.filtered.push(direction);
        }
        let capability = key.reveal();
        Ok((id, json!({ "filter": id.0, "text": text, "queue": queue, "capability": capability })))
    }

    /// A narrower filter, or the same, with a capability to hand on. It is at work already: what it
    /// was derived from is, and at the same queue.
    pub fn derive(&mut self, from: &str, filter: Option<Filter>) -> Result<Change, Refusal> {
        let from = capability(from)?;
        let key = draw().map_err(Refusal::Dataplane)?;
        self.attempt(|vnic| {
            let (own, registry) = (vnic.id, &mut vnic.registry);
            let parent = registry.filter_of(&from).map_err(refuse)?;
            let queue = registry.queue_of(parent);
            let id = registry.derive(&from, filter, key.clone()).map_err(refuse)?;
            registry.assign_by_id(id, Some(own)).map_err(refuse)?;
            registry.assign_queue(id, queue).map_err(refuse)?;
            Ok(json!({ "filter": id.0, "capability": key.reveal() }))
        })
    }

    /// Only this queue holds the filter from now on; none: all do.
    pub fn assign(&mut self, filter: &str, queue: Option<usize>) -> Result<Change, Refusal> {
        let key = capability(filter)?;
        self.attempt(|Vnic { registry, .. }| {
            let id = registry.filter_of(&key).map_err(refuse)?;
            registry.assign_queue(id, queue).map_err(refuse)?;
            Ok(json!({ "filter": id.0, "queue": queue }))
        })
    }

    /// What the capability stands for is over.
    pub fn revoke(&mut self, what: &str) -> Result<Change, Refusal> {
        let gone = self.registry.revoke(&capability(what)?).map_err(refuse)?;
        Ok(self.changed(json!({ "revoked": gone })))
    }

    /// The same by number, for operators; none: there are no filters any more, and all passes.
    pub fn remove(&mut self, filter: Option<u32>) -> Result<Change, Refusal> {
        let gone = match filter {
            Some(id) => self.registry.revoke_by_id(FilterId(id)).map_err(refuse)?,
            None => {
                self.filtered.clear();
                let all = self.registry.filters();
                all.iter().for_each(|f| drop(self.registry.revoke_by_id(f.id)));
                all.len()
            }
        };
        Ok(self.changed(json!({ "revoked": gone })))
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

    /// What whoever shares the link lets through.
    pub fn link_rates(&self) -> LinkRates {
        self.link_rates
    }

    /// What whoever shares the link lets through: packets shall wait here rather than be lost there.
    /// Answers the gate that the dataplane gets, if it is another one.
    pub fn set_link_rates(&mut self, rates: LinkRates) -> Option<Gate> {
        let before = self.gate();
        self.link_rates = rates;
        let gate = self.gate();
        (gate != before).then_some(gate)
    }

    fn check(&self, rate: Rate) -> Result<Rate, String> {
        let within = rate.within(self.link_bits_per_s.unwrap_or(u64::MAX));
        within.map_err(|e| e.to_string())
    }

    /// Other rates of the vNIC, or of one queue of it; `none` lifts one.
    pub fn rate(
        &mut self,
        queue: Option<usize>,
        rx: Option<&str>,
        tx: Option<&str>,
        flow: Option<&str>,
    ) -> Result<Change, Refusal> {
        let read = |text, old| read_rate(text, old, self.link_bits_per_s);
        let old = match queue {
            Some(queue) => {
                self.registry.check_queue(self.id, queue).map_err(refuse)?;
                self.queue_rates.get(&queue).copied().unwrap_or_default()
            }
            None => self.rates,
        };
        let rates =
            Rates { rx: read(rx, old.rx)?, tx: read(tx, old.tx)?, flow: read(flow, old.flow)? };
        let answer = match queue {
            Some(queue) => {
                self.queue_rates.insert(queue, rates);
                self.queue_rates.retain(|_, rates| !rates.is_empty());
                rates_of(queue, &rates)
            }
            None => {
                self.rates = rates;
                self.all_rates()
            }
        };
        Ok(self.changed(answer))
    }

    fn all_rates(&self) -> Value {
        let text = |rate: Option<Rate>| rate.map(|rate| rate.to_string());
        let of_queues = self.queue_rates.iter().map(|(queue, rates)| rates_of(*queue, rates));
        let mut value = texts(&self.rates);
        value["link_rate"] = text(self.link_rates.limit).into();
        value["link_part"] = text(self.link_rates.part).into();
        value["queue_rates"] = of_queues.collect();
        value
    }

    /// Everything but the capabilities.
    pub fn look(&self) -> Value {
        let filter = |view: ix_vnic::FilterView| {
            json!({
                "filter": view.id.0,
                "text": view.filter.to_string(),
                "holder": view.holder,
                "derived_from": view.parent.map(|id| id.0),
                "queue": view.queue,
                "in_hardware": self.in_hardware.iter().any(|card| card.contains(&view.filter)),
            })
        };
        let filters: Vec<Value> = self.registry.filters().into_iter().map(filter).collect();
        let mut value = self.all_rates();
        value["queues"] = self.queues.into();
        value["filters"] = filters.into();
        value["filters_max"] = self.registry.policy().filters_max.into();
        value["derived_of_a_holder_max"] = self.registry.policy().derived_max.into();
        value["filters_of_a_direction_max"] = FILTERS_MAX.into();
        let held = |d| self.filtered.contains(&d);
        value["rx_filtered"] = held(Direction::Receive).into();
        value["tx_filtered"] = held(Direction::Transmit).into();
        let in_hardware: Vec<_> = self.in_hardware.iter().map(Filter::to_string).collect();
        value["in_hardware"] = json!(in_hardware);
        // These ask them all.
        value["in_software"] = json!(["filters", "rates"]);
        value
    }

    /// The receive filters that devices are to have, if they changed since it was asked last.
    pub fn take_receive_filters(&mut self) -> Option<Option<Vec<Filter>>> {
        std::mem::take(&mut self.changed).then(|| receive_filters(&self.gate()))
    }

    fn changed(&mut self, answer: Value) -> Change {
        self.changed = true;
        Change { answer, gate: Some(self.gate()) }
    }

    /// What the dataplane is to let pass.
    pub fn gate(&self) -> Gate {
        let rules = |direction| self.registry.rules(direction);
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
        let closed = self.filtered.iter().copied().filter(is_closed).collect();
        let (mut filters, mut assigned) = (Vec::new(), Vec::new());
        for rule in kept {
            match rule.queue {
                Some(queue) => assigned.push((queue, rule.filter)),
                None => filters.push(rule.filter),
            }
        }
        let Rates { rx: rx_rate, tx, flow: flow_rate } = self.rates;
        let tx_rate = tx.into_iter().chain(self.link_rates.both()).reduce(Rate::and);
        let queue_rates = self.queue_rates.clone();
        Gate { filters, rx_rate, tx_rate, flow_rate, closed, assigned, queue_rates }
    }
}

/// Whether the second filter, of all queues or of one, adds nothing to the first. Of received packets a
/// filter of a queue says whose they are, also where another takes them.
fn covers(wide: (Option<usize>, &Filter), narrow: (Option<usize>, &Filter)) -> bool {
    let everywhere = wide.0.is_none() || wide.0 == narrow.0;
    let steers = narrow.1.direction() == Direction::Receive && narrow.0.is_some();
    everywhere && !steers && wide.1.contains(narrow.1)
}

/// Rates as programs read them.
fn texts(rates: &Rates) -> Value {
    let text = |rate: Option<Rate>| rate.map(|rate| rate.to_string());
    let Rates { rx, tx, flow } = *rates;
    json!({ "rx_rate": text(rx), "tx_rate": text(tx), "flow_rate": text(flow) })
}

/// Those of one queue.
fn rates_of(queue: usize, rates: &Rates) -> Value {
    let mut value = texts(rates);
    value["queue"] = queue.into();
    value
}

/// A rate as it was asked for: nothing leaves the old one, `none` lifts it, and more than the link
/// carries is refused.
pub fn read_rate(
    text: Option<&str>,
    old: Option<Rate>,
    link_bits_per_s: Option<u64>,
) -> Result<Option<Rate>, Refusal> {
    match text {
        None => Ok(old),
        Some("none") => Ok(None),
        Some(text) => {
            let rate: Rate =
                text.parse().map_err(|e: RateError| Refusal::BadRequest(e.to_string()))?;
            let within = rate.within(link_bits_per_s.unwrap_or(u64::MAX));
            within.map(Some).map_err(|e| Refusal::Vnic(e.to_string()))
        }
    }
}

/// What a device that leaves the rest to Linux is to take; none: everything.
pub fn receive_filters(gate: &Gate) -> Option<Vec<Filter>> {
    gate.set(Direction::Receive).map(|set| set.filters().to_vec())
}

/// The registry's refusal as the control socket's.
pub fn refuse(why: Why) -> Refusal {
    match why {
        Why::NoSuchCapability => Refusal::NoCapability,
        why => Refusal::Vnic(why.to_string()),
    }
}

/// From its text; one that is none is as good as a forged one.
pub fn capability(text: &str) -> Result<Capability, Refusal> {
    text.parse().map_err(|_| Refusal::NoCapability)
}

/// A capability that nobody can guess.
pub fn draw() -> Result<Capability, String> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match n {
        16 => Ok(Capability::new(bytes)),
        _ => Err(format!("cannot draw random bits: {}", std::io::Error::last_os_error())),
    }
}

/// Linux' own IPv4 addresses in this network namespace, but those of the loopback.
pub fn linux_addresses() -> Vec<Ipv4Addr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: writes the list's head to a local.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let (mut found, mut at) = (Vec::new(), list);
    while !at.is_null() {
        // SAFETY: an element of the list, which is freed below.
        let entry = unsafe { &*at };
        // SAFETY: an address is null or a socket address of the family that it names.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|a| i32::from(a.sa_family));
        if family == Some(libc::AF_INET) {
            // SAFETY: of this family, so it is as long as this structure.
            let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
            found.push(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)));
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list from getifaddrs; nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    found.retain(|address| !address.is_loopback());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_proto::Codec;

    fn filters(text: &str) -> Vec<Filter> {
        text.split(';').map(|text| text.parse().expect(text)).collect()
    }

    /// What the dataplane is told, as text.
    fn told(change: &Change) -> Option<String> {
        change.gate.as_ref().map(Gate::to_string)
    }

    fn vnic() -> Vnic {
        Vnic::new(&Gate::default(), 2).expect("a vNIC")
    }

    #[test]
    fn what_was_filtered_once_is_closed_without_filters() {
        let mut vnic = vnic();
        let change = vnic.create(&filters("rx tcp service 10.0.0.5:80"), None, None, vec![]);
        let change = change.expect("granted");
        assert_eq!(told(&change).as_deref(), Some("rx tcp service 10.0.0.5:80"));
        let key = change.answer["filters"][0]["capability"].as_str().expect("a text").to_owned();
        let part = vnic.derive(&key, None).expect("derived");
        assert_eq!(part.gate, change.gate, "the same packets");
        assert_eq!(vnic.revoke("ff").err(), Some(Refusal::NoCapability));
        let gone = vnic.revoke(&key).expect("revoked");
        assert_eq!((told(&gone).as_deref(), &gone.answer["revoked"]), (Some("none rx"), &json!(2)));
        assert_eq!(vnic.revoke(&key).err(), Some(Refusal::NoCapability), "stale");
        assert_eq!(told(&vnic.remove(None).expect("lifted")).as_deref(), Some(""));
        assert!(!vnic.look().to_string().contains(&key));
    }

    #[test]
    fn what_a_card_has_is_told() {
        let mut vnic = vnic();
        vnic.create(
            &filters("rx tcp service 10.0.0.5:80;tx ip service 10.0.0.5"),
            None,
            None,
            vec![],
        )
        .expect("granted");
        vnic.set_in_hardware(filters("rx tcp service 10.0.0.5:80-81"));
        let told = vnic.look();
        assert_eq!(told["in_hardware"], json!(["rx tcp service 10.0.0.5:80-81"]));
        let each = |n: usize| told["filters"][n]["in_hardware"].clone();
        assert_eq!((each(0), each(1)), (json!(true), json!(false)), "{told}");
    }

    #[test]
    fn several_are_granted_or_none() {
        let mut vnic = vnic();
        let linux = vec![Ipv4Addr::new(10, 0, 0, 1)];
        let both = filters("rx ip service 10.0.0.5;tx ip service 10.0.0.1");
        let refusal = vnic.create(&both, None, None, linux).err().expect("refused").to_string();
        assert!(refusal.contains("Linux, which has 10.0.0.1"), "{refusal}");
        assert!(vnic.look()["filters"].as_array().expect("a list").is_empty());
    }

    fn key_of(change: Result<Change, Refusal>) -> String {
        let answer = change.expect("granted").answer;
        let key = &answer["filters"][0]["capability"];
        key.as_str().or(answer["capability"].as_str()).expect("a capability").to_owned()
    }

    /// What a dataplane reads of a change.
    fn gate_of(change: Result<Change, Refusal>) -> Gate {
        let gate = change.expect("fine").gate.expect("a gate");
        assert_eq!(Gate::decode(&gate.encode()), Ok(gate.clone()), "the dataplane takes it");
        gate
    }

    #[test]
    fn a_dataplane_is_never_told_more_filters_than_it_takes() {
        let mut vnic = vnic();
        let ports = |from: usize, to: usize| {
            let filter = |n| format!("tx tcp service 10.0.0.5:{n}");
            filters(&(from..=to).map(filter).collect::<Vec<_>>().join(";"))
        };
        let key = key_of(vnic.create(&filters("tx ip service 10.0.0.5"), None, None, vec![]));
        gate_of(vnic.create(&ports(1, 31), None, None, vec![]));
        // All of these were told by the first one alone. That may go, so they count.
        let refusal = vnic.create(&ports(32, 33), None, None, vec![]).err().expect("refused");
        assert!(refusal.to_string().contains("34 tx filters are too many"), "{refusal}");
        assert_eq!(vnic.look()["filters"].as_array().map(Vec::len), Some(32), "all or none");
        // The other direction has room, and what is derived goes with what covers it.
        gate_of(vnic.create(&filters("rx ip service 10.0.0.5"), None, None, vec![]));
        let derived = key_of(vnic.derive(&key, ports(40, 40).pop()));
        let refusal = vnic.assign(&key, Some(0)).err().expect("refused");
        assert!(refusal.to_string().contains("33 tx filters"), "{refusal}");
        assert_eq!(gate_of(vnic.rate(None, None, None, None)).assigned, [], "it is as it was");
        gate_of(vnic.revoke(&derived));
        gate_of(vnic.assign(&key, Some(0)));
        let left = gate_of(vnic.revoke(&key));
        assert_eq!(left.set(Direction::Transmit).map(|set| set.filters().len()), Some(31));
    }

    #[test]
    fn filters_are_no_longer_than_the_dataplane_takes() {
        let mut vnic = vnic();
        let list = |n: usize| {
            let one = |i: usize| format!("{}-{}", i * 1000 + n * 10, i * 1000 + n * 10 + 5);
            (1..=16).map(one).collect::<Vec<_>>().join(",")
        };
        let addresses = |n: usize| {
            let one = |i: usize| format!("10.{i}.{n}.100-10.{i}.{n}.120");
            (100..=115).map(one).collect::<Vec<_>>().join(",")
        };
        let long = |direction: &str, n: usize| {
            let (a, p) = (addresses(n), list(n));
            filters(&format!("{direction} tcp service {a}:{p} peer {a}:{p}")).remove(0)
        };
        let mut told = 0;
        let refusal = (1..=32).flat_map(|n| [long("rx", n), long("tx", n)]).find_map(|filter| {
            let change = vnic.create(&[filter], None, None, vec![]);
            let gate = change.as_ref().ok().and_then(|change| change.gate.as_ref());
            told = gate.map_or(told, |gate| gate.to_string().len().max(gate.encode().len()));
            change.err()
        });
        let refusal = refusal.expect("refused at last").to_string();
        assert!(refusal.contains("letters"), "{refusal}");
        assert!((FILTER_BYTES_MAX - 4096..MESSAGE_BYTES_MAX).contains(&told), "{told}");
    }

    #[test]
    fn queues_of_the_configuration_have_what_it_says() {
        let new = |text: &str| Vnic::new(&text.parse().expect("a gate"), 2);
        let text = "rx eth type 0x88b5; queue 1 tx udp service 10.0.0.5; \
                    queue 0 rate tx 2Mbit,burst=3028";
        let vnic = new(&text.replace("  ", " ")).expect("fine");
        assert_eq!(vnic.gate(), text.parse().expect("a gate"));
        assert_eq!(vnic.look()["filters"][1]["queue"], 1);
        for (wrong, word) in [
            ("queue 2 rate tx 1Mbit", "has no queue 2: its queues are 0 to 1"),
            ("queue 2 tx udp service 10.0.0.5", "has no queue 2"),
            ("queue 0 rx udp service 10.0.0.5", "flow group"),
            ("tx ip", "Linux"),
        ] {
            let why = new(wrong).expect_err(wrong);
            assert!(why.contains(word), "{wrong}: {why}");
        }
        let mut vnic = new("queue 1 rate tx 2Gbit").expect("fine");
        assert!(vnic.set_link(Some(1_000_000_000)).expect_err("beyond").contains("link's 1Gbit"));
    }

    #[test]
    fn what_is_a_queues_is_told_the_dataplane() {
        let mut vnic = vnic();
        let made = vnic.create(&filters("tx tcp service 10.0.0.5:80-90"), None, None, vec![]);
        let key = made.expect("granted").answer["filters"][0]["capability"].clone();
        let key = key.as_str().expect("a text");
        let gate = |change: Result<Change, Refusal>| told(&change.expect("fine")).expect("a gate");
        let whole = "tx tcp service 10.0.0.5:80-90";
        assert_eq!(gate(vnic.assign(key, Some(1))), format!("queue 1 {whole}"));
        // What another filter of the same queue contains adds nothing; at another it does.
        let part = "tx tcp service 10.0.0.5:80";
        let derived = vnic.derive(key, filters(part).pop()).expect("a part");
        assert_eq!(told(&derived), Some(format!("queue 1 {whole}")));
        let part_key = derived.answer["capability"].as_str().expect("a text").to_owned();
        let both = format!("queue 0 {part}; queue 1 {whole}");
        assert_eq!(gate(vnic.assign(&part_key, Some(0))), both);
        assert_eq!(gate(vnic.assign(key, None)), whole);
        let beyond = vnic.assign(key, Some(2)).err().expect("refused").to_string();
        assert!(beyond.contains("no queue 2"), "{beyond}");
        assert_eq!(told(&vnic.revoke(key).expect("its own")).as_deref(), Some("none tx"));
        assert_eq!(vnic.assign(key, Some(0)).err(), Some(Refusal::NoCapability), "stale");
    }

    #[test]
    fn received_packets_stay_at_their_queue_beside_wider_filters() {
        let mut vnic = vnic();
        let wide = filters("rx eth type 0x88b5-0x88b9");
        vnic.create(&wide, Some("web"), None, vec![]).expect("granted");
        let narrow = filters("rx eth type 0x88b5");
        let gate = vnic.create(&narrow, Some("web"), Some(1), vec![]).expect("granted").gate;
        let gate = gate.expect("a gate");
        assert!(gate.to_string().contains("; queue 1 rx eth"), "{gate}");
        let flows = vnic.create(&filters("rx tcp service 10.0.0.5"), None, Some(0), vec![]);
        assert!(flows.err().expect("refused").to_string().contains("flow group"));
        assert_eq!(vnic.rate(None, None, None, None).expect("fine").gate, Some(gate));
        let mut vnic = self::vnic();
        let both = filters("tx udp service 10.0.0.5;rx udp service 10.0.0.5");
        assert!(vnic.create(&both, None, Some(0), vec![]).is_err());
        let change = vnic.rate(None, None, None, None).expect("fine");
        assert_eq!(told(&change).as_deref(), Some(""), "none of them, so nothing is closed");
    }

    #[test]
    fn queues_have_rates_of_their_own() {
        let mut vnic = vnic();
        vnic.rate(None, None, Some("10Mbit"), None).expect("fine");
        let change = vnic.rate(Some(1), Some("1kpps"), Some("2Mbit"), Some("1Mbit")).expect("fine");
        assert_eq!(change.answer["queue"], 1);
        assert_eq!(
            told(&change).as_deref(),
            Some(
                "rate tx 10Mbit,burst=3028; queue 1 rate rx 1kpps,burst=3028; \
                 queue 1 rate tx 2Mbit,burst=3028; queue 1 rate flow 1Mbit,burst=3028"
            )
        );
        assert_eq!(vnic.look()["queue_rates"], json!([change.answer]));
        vnic.rate(Some(1), Some("none"), Some("none"), None).expect("fine");
        let change = vnic.rate(Some(1), None, None, Some("none")).expect("fine");
        assert_eq!(told(&change).as_deref(), Some("rate tx 10Mbit,burst=3028"));
        let beyond = vnic.rate(Some(2), None, Some("1Mbit"), None).err().expect("refused");
        assert!(beyond.to_string().contains("no queue 2: its queues are 0 to 1"), "{beyond}");
        vnic.set_link(Some(1_000_000_000)).expect("what is set is below");
        let refusal = vnic.rate(Some(0), None, Some("2Gbit"), None).err().expect("refused");
        assert!(refusal.to_string().contains("more than the link's 1Gbit"), "{refusal}");
    }

    #[test]
    fn rates_change_one_by_one() {
        let mut vnic = vnic();
        vnic.rate(None, Some("1kpps"), Some("1Mbit"), Some("2Mbit")).expect("fine");
        let change = vnic.rate(None, None, Some("none"), Some("none")).expect("fine");
        assert_eq!(told(&change).as_deref(), Some("rate rx 1kpps,burst=3028"));
        vnic.set_link(Some(1_000_000_000)).expect("what is set is below");
        let refusal =
            vnic.rate(None, None, Some("2Gbit"), None).err().expect("refused").to_string();
        assert!(refusal.contains("more than the link's 1Gbit"), "{refusal}");
        // The link's own rate holds beside ours.
        let five = LinkRates::read("ix tx 5Mbit");
        let gate = vnic.set_link_rates(five).expect("another gate");
        assert_eq!(gate.to_string(), "rate rx 1kpps,burst=3028; rate tx 5Mbit,burst=3028");
        assert_eq!(vnic.set_link_rates(five), None, "the same");
        let part = vnic.set_link_rates(LinkRates::read("ix tx 5Mbit; ix part 3Mbit"));
        assert!(part.is_some_and(|gate| gate.to_string().ends_with("rate tx 3Mbit,burst=3028")));
        assert!(vnic.set_link_rates(five).is_some(), "the interface is not full any more");
        let change = vnic.rate(None, None, Some("2Mbit"), None).expect("fine");
        assert!(told(&change).is_some_and(|gate| gate.ends_with("rate tx 2Mbit,burst=3028")));
        let none = LinkRates::read("my eth0");
        assert_eq!(vnic.set_link_rates(none), None, "ours is less anyway");
        let refusal = vnic.rate(None, Some("0bit"), None, None).err().expect("refused").to_string();
        assert!(refusal.contains("zero"), "{refusal}");
    }
}
