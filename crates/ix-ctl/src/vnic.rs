//! The filters and rates of a dataplane, as its broker keeps them: one vNIC, and who holds what of
//! its part of the header space.
use crate::control::Refusal;
use crate::link_rates::LinkRates;
use ix_vnic::{
    Assigned, Capability, Direction, Filter, FilterId, Gate, Policy, Rate, RateError, Rates,
    Refusal as Why, Registry, VnicId,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Whom a filter is granted to when nobody is named.
const HOLDER: &str = "operator";

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
    pub gate: Option<String>,
}

impl Vnic {
    /// With what the configuration grants.
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
        for filter in &gate.filters {
            vnic.grant(HOLDER, filter.clone(), None).map_err(|e| e.to_string())?;
        }
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
        let mut made: Vec<(FilterId, Value)> = Vec::new();
        let filtered = self.filtered.clone();
        for filter in filters {
            match self.grant(holder.unwrap_or(HOLDER), filter.clone(), queue) {
                Ok(one) => made.push(one),
                Err(refusal) => {
                    // All or nothing.
                    for (id, _) in made {
                        let _ = self.registry.revoke_by_id(id);
                    }
                    self.filtered = filtered;
                    return Err(refusal);
                }
            }
        }
        let made: Vec<Value> = made.into_iter().map(|(_, value)| value).collect();
        Ok(self.changed(json!({ "filters": made })))
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
        let assigned = self.registry.assign_by_id(id, Some(self.id));
        if let Err(why) = assigned.and_then(|()| self.registry.assign_queue(id, queue)) {
            let _ = self.registry.revoke_by_id(id);
            return Err(refuse(why));
        }
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
        let parent = self.registry.filter_of(&from).map_err(refuse)?;
        let queue = self.registry.queue_of(parent);
        let id = self.registry.derive(&from, filter, key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, Some(self.id)).map_err(refuse)?;
        self.registry.assign_queue(id, queue).map_err(refuse)?;
        Ok(self.changed(json!({ "filter": id.0, "capability": key.reveal() })))
    }

    /// Only this queue holds the filter from now on; none: all do.
    pub fn assign(&mut self, filter: &str, queue: Option<usize>) -> Result<Change, Refusal> {
        let id = self.registry.filter_of(&capability(filter)?).map_err(refuse)?;
        self.registry.assign_queue(id, queue).map_err(refuse)?;
        Ok(self.changed(json!({ "filter": id.0, "queue": queue })))
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
        let Rates { rx, tx, flow } = self.rates;
        let rates = rx.into_iter().chain(tx).chain(flow);
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
    pub fn set_link_rates(&mut self, rates: LinkRates) -> Option<String> {
        let before = self.gate();
        self.link_rates = rates;
        let gate = self.gate();
        (gate != before).then(|| format!("gate {gate}"))
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
        value["filters_of_a_direction_max"] = ix_vnic::FILTERS_MAX.into();
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
        Change { answer, gate: Some(format!("gate {}", self.gate())) }
    }

    /// What the dataplane is to let pass.
    pub fn gate(&self) -> Gate {
        let rules = |direction| self.registry.rules(direction);
        let mut kept: Vec<Assigned> = Vec::new();
        for rule in rules(Direction::Receive).into_iter().chain(rules(Direction::Transmit)) {
            if !kept.iter().any(|other| covers(other, &rule)) {
                kept.retain(|other| !covers(&rule, other));
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

/// Whether the narrower filter adds nothing to the wider one. Of received packets a filter of a queue
/// says whose they are, also where another takes them.
fn covers(wide: &Assigned, narrow: &Assigned) -> bool {
    let everywhere = wide.queue.is_none() || wide.queue == narrow.queue;
    let steers = narrow.filter.direction() == Direction::Receive && narrow.queue.is_some();
    everywhere && !steers && wide.filter.contains(&narrow.filter)
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

    fn filters(text: &str) -> Vec<Filter> {
        text.split(';').map(|text| text.parse().expect(text)).collect()
    }

    fn vnic() -> Vnic {
        Vnic::new(&Gate::default(), 2).expect("a vNIC")
    }

    #[test]
    fn what_was_filtered_once_is_closed_without_filters() {
        let mut vnic = vnic();
        let change = vnic.create(&filters("rx tcp service 10.0.0.5:80"), None, None, vec![]);
        let change = change.expect("granted");
        assert_eq!(change.gate.as_deref(), Some("gate rx tcp service 10.0.0.5:80"));
        let key = change.answer["filters"][0]["capability"].as_str().expect("a text").to_owned();
        let part = vnic.derive(&key, None).expect("derived");
        assert_eq!(part.gate, change.gate, "the same packets");
        assert_eq!(vnic.revoke("ff").err(), Some(Refusal::NoCapability));
        let gone = vnic.revoke(&key).expect("revoked");
        assert_eq!(
            (gone.gate.as_deref(), &gone.answer["revoked"]),
            (Some("gate none rx"), &json!(2))
        );
        assert_eq!(vnic.revoke(&key).err(), Some(Refusal::NoCapability), "stale");
        assert_eq!(vnic.remove(None).expect("lifted").gate.as_deref(), Some("gate "));
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

    #[test]
    fn what_is_a_queues_is_told_the_dataplane() {
        let mut vnic = vnic();
        let made = vnic.create(&filters("tx tcp service 10.0.0.5:80-90"), None, None, vec![]);
        let key = made.expect("granted").answer["filters"][0]["capability"].clone();
        let key = key.as_str().expect("a text");
        let gate = |change: Result<Change, Refusal>| change.expect("fine").gate.expect("a gate");
        let whole = "tx tcp service 10.0.0.5:80-90";
        assert_eq!(gate(vnic.assign(key, Some(1))), format!("gate queue 1 {whole}"));
        // What another filter of the same queue contains adds nothing; at another it does.
        let part = "tx tcp service 10.0.0.5:80";
        let derived = vnic.derive(key, filters(part).pop()).expect("a part");
        assert_eq!(derived.gate, Some(format!("gate queue 1 {whole}")));
        let part_key = derived.answer["capability"].as_str().expect("a text").to_owned();
        let both = format!("gate queue 0 {part}; queue 1 {whole}");
        assert_eq!(gate(vnic.assign(&part_key, Some(0))), both);
        assert_eq!(gate(vnic.assign(key, None)), format!("gate {whole}"));
        let beyond = vnic.assign(key, Some(2)).err().expect("refused").to_string();
        assert!(beyond.contains("no queue 2"), "{beyond}");
        assert_eq!(vnic.revoke(key).expect("its own").gate.as_deref(), Some("gate none tx"));
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
        assert!(gate.contains("; queue 1 rx eth"), "{gate}");
        let flows = vnic.create(&filters("rx tcp service 10.0.0.5"), None, Some(0), vec![]);
        assert!(flows.err().expect("refused").to_string().contains("flow group"));
        assert_eq!(vnic.rate(None, None, None, None).expect("fine").gate, Some(gate));
        let mut vnic = self::vnic();
        let both = filters("tx udp service 10.0.0.5;rx udp service 10.0.0.5");
        assert!(vnic.create(&both, None, Some(0), vec![]).is_err());
        let change = vnic.rate(None, None, None, None).expect("fine");
        assert_eq!(change.gate.as_deref(), Some("gate "), "none of them, so nothing is closed");
    }

    #[test]
    fn queues_have_rates_of_their_own() {
        let mut vnic = vnic();
        vnic.rate(None, None, Some("10Mbit"), None).expect("fine");
        let change = vnic.rate(Some(1), Some("1kpps"), Some("2Mbit"), Some("1Mbit")).expect("fine");
        assert_eq!(change.answer["queue"], 1);
        assert_eq!(
            change.gate.as_deref(),
            Some(
                "gate rate tx 10Mbit,burst=3028; queue 1 rate rx 1kpps,burst=3028; \
                 queue 1 rate tx 2Mbit,burst=3028; queue 1 rate flow 1Mbit,burst=3028"
            )
        );
        assert_eq!(vnic.look()["queue_rates"], json!([change.answer]));
        vnic.rate(Some(1), Some("none"), Some("none"), None).expect("fine");
        let change = vnic.rate(Some(1), None, None, Some("none")).expect("fine");
        assert_eq!(change.gate.as_deref(), Some("gate rate tx 10Mbit,burst=3028"));
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
        assert_eq!(change.gate.as_deref(), Some("gate rate rx 1kpps,burst=3028"));
        vnic.set_link(Some(1_000_000_000)).expect("what is set is below");
        let refusal =
            vnic.rate(None, None, Some("2Gbit"), None).err().expect("refused").to_string();
        assert!(refusal.contains("more than the link's 1Gbit"), "{refusal}");
        // The link's own rate holds beside ours.
        let told = LinkRates::read("ix tx 5Mbit");
        let gate = vnic.set_link_rates(told).expect("another gate");
        assert_eq!(gate, "gate rate rx 1kpps,burst=3028; rate tx 5Mbit,burst=3028");
        assert_eq!(vnic.set_link_rates(told), None, "the same");
        let part = vnic.set_link_rates(LinkRates::read("ix tx 5Mbit; ix part 3Mbit"));
        assert!(part.is_some_and(|gate| gate.ends_with("rate tx 3Mbit,burst=3028")));
        assert!(vnic.set_link_rates(told).is_some(), "the interface is not full any more");
        let change = vnic.rate(None, None, Some("2Mbit"), None).expect("fine");
        assert!(change.gate.is_some_and(|gate| gate.ends_with("rate tx 2Mbit,burst=3028")));
        let none = LinkRates::read("my eth0");
        assert_eq!(vnic.set_link_rates(none), None, "ours is less anyway");
        let refusal = vnic.rate(None, Some("0bit"), None, None).err().expect("refused").to_string();
        assert!(refusal.contains("zero"), "{refusal}");
    }
}
