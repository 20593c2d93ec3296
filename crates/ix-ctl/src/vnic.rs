//! The filters and rates of a dataplane, as its broker keeps them: one vNIC, and who holds what of
//! its part of the header space.
use crate::control::Refusal;
use crate::link_rates::LinkRates;
use ix_vnic::{
    Capability, Direction, Filter, FilterId, Gate, Policy, Rate, RateError, Refusal as Why,
    Registry, VnicId,
};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// Whom a filter is granted to when nobody is named.
const HOLDER: &str = "operator";

/// One dataplane's vNIC.
#[derive(Debug)]
pub struct Vnic {
    registry: Registry,
    id: VnicId,
    rx_rate: Option<Rate>,
    tx_rate: Option<Rate>,
    flow_rate: Option<Rate>,
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
            rx_rate: gate.rx_rate,
            tx_rate: gate.tx_rate,
            flow_rate: gate.flow_rate,
            link_rates: LinkRates::default(),
            in_hardware: Vec::new(),
            filtered: Vec::new(),
            queues,
            link_bits_per_s: None,
            changed: false,
        };
        for filter in &gate.filters {
            vnic.grant(HOLDER, filter.clone()).map_err(|e| e.to_string())?;
        }
        Ok(vnic)
    }

    /// Grants filters, and assigns them to the vNIC.
    pub fn create(
        &mut self,
        filters: &[Filter],
        holder: Option<&str>,
        linux: Vec<Ipv4Addr>,
    ) -> Result<Change, Refusal> {
        self.registry.set_linux(linux);
        let mut made: Vec<(FilterId, Value)> = Vec::new();
        for filter in filters {
            match self.grant(holder.unwrap_or(HOLDER), filter.clone()) {
                Ok(one) => made.push(one),
                Err(refusal) => {
                    // All or nothing.
                    for (id, _) in made {
                        let _ = self.registry.revoke_by_id(id);
                    }
                    return Err(refusal);
                }
            }
        }
        let made: Vec<Value> = made.into_iter().map(|(_, value)| value).collect();
        Ok(self.changed(json!({ "filters": made })))
    }

    fn grant(&mut self, holder: &str, filter: Filter) -> Result<(FilterId, Value), Refusal> {
        let key = draw().map_err(Refusal::Dataplane)?;
        let (direction, text) = (filter.direction(), filter.to_string());
        let id = self.registry.grant(holder, filter, key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, Some(self.id)).map_err(refuse)?;
        if !self.filtered.contains(&direction) {
            self.filtered.push(direction);
        }
        Ok((id, json!({ "filter": id.0, "text": text, "capability": key.reveal() })))
    }

    /// A narrower filter, or the same, with a capability to hand on. It is at work already: what it
    /// was derived from is.
    pub fn derive(&mut self, from: &str, filter: Option<Filter>) -> Result<Change, Refusal> {
        let from = capability(from)?;
        let key = draw().map_err(Refusal::Dataplane)?;
        let id = self.registry.derive(&from, filter, key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, Some(self.id)).map_err(refuse)?;
        Ok(self.changed(json!({ "filter": id.0, "capability": key.reveal() })))
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
        let rates = self.rx_rate.into_iter().chain(self.tx_rate).chain(self.flow_rate);
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

    /// Other rates; `none` lifts one.
    pub fn rate(
        &mut self,
        rx: Option<&str>,
        tx: Option<&str>,
        flow: Option<&str>,
    ) -> Result<Change, Refusal> {
        let read = |text, old| read_rate(text, old, self.link_bits_per_s);
        let rates = (read(rx, self.rx_rate)?, read(tx, self.tx_rate)?, read(flow, self.flow_rate)?);
        (self.rx_rate, self.tx_rate, self.flow_rate) = rates;
        let rates = self.rates();
        Ok(self.changed(rates))
    }

    fn rates(&self) -> Value {
        let text = |rate: Option<Rate>| rate.map(|rate| rate.to_string());
        json!({
            "rx_rate": text(self.rx_rate),
            "tx_rate": text(self.tx_rate),
            "flow_rate": text(self.flow_rate),
            "link_rate": text(self.link_rates.limit),
            "link_part": text(self.link_rates.part),
        })
    }

    /// Everything but the capabilities.
    pub fn look(&self) -> Value {
        let filter = |view: ix_vnic::FilterView| {
            json!({
                "filter": view.id.0,
                "text": view.filter.to_string(),
                "holder": view.holder,
                "derived_from": view.parent.map(|id| id.0),
                "in_hardware": self.in_hardware.iter().any(|card| card.contains(&view.filter)),
            })
        };
        let filters: Vec<Value> = self.registry.filters().into_iter().map(filter).collect();
        let mut value = self.rates();
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
        let rules = |direction| self.registry.rules(direction).into_iter().map(|rule| rule.filter);
        let mut filters: Vec<Filter> = Vec::new();
        for filter in rules(Direction::Receive).chain(rules(Direction::Transmit)) {
            // What another contains adds nothing.
            if !filters.iter().any(|other| other.contains(&filter)) {
                filters.retain(|other| !filter.contains(other));
                filters.push(filter);
            }
        }
        let is_closed = |d: &Direction| !filters.iter().any(|filter| filter.direction() == *d);
        let closed = self.filtered.iter().copied().filter(is_closed).collect();
        let Vnic { rx_rate, flow_rate, .. } = *self;
        let tx_rate = self.tx_rate.into_iter().chain(self.link_rates.both()).reduce(Rate::and);
        Gate { filters, rx_rate, tx_rate, flow_rate, closed }
    }
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
        let change = vnic.create(&filters("rx tcp service 10.0.0.5:80"), None, vec![]);
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
        vnic.create(&filters("rx tcp service 10.0.0.5:80;tx ip service 10.0.0.5"), None, vec![])
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
        let refusal = vnic.create(&both, None, linux).err().expect("refused").to_string();
        assert!(refusal.contains("Linux, which has 10.0.0.1"), "{refusal}");
        assert!(vnic.look()["filters"].as_array().expect("a list").is_empty());
    }

    #[test]
    fn rates_change_one_by_one() {
        let mut vnic = vnic();
        vnic.rate(Some("1kpps"), Some("1Mbit"), Some("2Mbit")).expect("fine");
        let change = vnic.rate(None, Some("none"), Some("none")).expect("fine");
        assert_eq!(change.gate.as_deref(), Some("gate rate rx 1kpps,burst=3028"));
        vnic.set_link(Some(1_000_000_000)).expect("what is set is below");
        let refusal = vnic.rate(None, Some("2Gbit"), None).err().expect("refused").to_string();
        assert!(refusal.contains("more than the link's 1Gbit"), "{refusal}");
        // The link's own rate holds beside ours.
        let told = LinkRates::read("ix tx 5Mbit");
        let gate = vnic.set_link_rates(told).expect("another gate");
        assert_eq!(gate, "gate rate rx 1kpps,burst=3028; rate tx 5Mbit,burst=3028");
        assert_eq!(vnic.set_link_rates(told), None, "the same");
        let part = vnic.set_link_rates(LinkRates::read("ix tx 5Mbit; ix part 3Mbit"));
        assert!(part.is_some_and(|gate| gate.ends_with("rate tx 3Mbit,burst=3028")));
        assert!(vnic.set_link_rates(told).is_some(), "the interface is not full any more");
        let change = vnic.rate(None, Some("2Mbit"), None).expect("fine");
        assert!(change.gate.is_some_and(|gate| gate.ends_with("rate tx 2Mbit,burst=3028")));
        let none = LinkRates::read("my eth0");
        assert_eq!(vnic.set_link_rates(none), None, "ours is less anyway");
        let refusal = vnic.rate(Some("0bit"), None, None).err().expect("refused").to_string();
        assert!(refusal.contains("zero"), "{refusal}");
    }
}
