//! Receive filters in a network card, in addition to the XDP program, which checks them as well.
//!
//! A card with one queue in use has no packets to spread, so its own rules steer a filter's packets
//! to that queue (`ethtool -n` shows them), before anything else the card does with packets. With
//! several queues its redirection table spreads flows, which a rule would override. A filter that
//! the card cannot express or refuses is checked in software only, and reported once.
mod rule;

use ix_sys::Interface;
use ix_vnic::Filter;
use rule::FlowRule;
use std::io;

/// A place for flow rules.
pub(crate) trait WriteRules: Send {
    /// Inserts a rule; returns its location.
    fn insert(&self, rule: &FlowRule) -> io::Result<u32>;
    /// Deletes the rule at a location.
    fn delete(&self, place: u32) -> io::Result<()>;
}

impl WriteRules for Interface {
    fn insert(&self, rule: &FlowRule) -> io::Result<u32> {
        self.insert_flow_rule(rule.bytes())
    }

    fn delete(&self, place: u32) -> io::Result<()> {
        self.delete_flow_rule(place)
    }
}

/// The flow rules that the broker has set in a card; dropping this deletes them.
pub(crate) struct HardwareFilters {
    name: String,
    device: Box<dyn WriteRules>,
    /// Filters that the card has, with their locations.
    inside: Vec<(Filter, Vec<u32>)>,
    was_told: bool,
}

impl HardwareFilters {
    /// `None` if the interface has no flow rules.
    pub fn of(name: &str) -> Option<HardwareFilters> {
        let interface = Interface::new(name).ok()?;
        interface.has_flow_rules().then(|| HardwareFilters::open(name, Box::new(interface)))
    }

    fn open(name: &str, device: Box<dyn WriteRules>) -> HardwareFilters {
        HardwareFilters { name: name.to_owned(), device, inside: Vec::new(), was_told: false }
    }

    /// The filters that the card has.
    pub fn filters(&self) -> impl Iterator<Item = &Filter> {
        self.inside.iter().map(|(filter, _)| filter)
    }

    /// Sets the card's filters, as far as it can have them. Returns a line for the user when the
    /// card refuses one for the first time.
    pub fn set(&mut self, filters: &[Filter]) -> Option<String> {
        let (keep, gone) = std::mem::take(&mut self.inside)
            .into_iter()
            .partition(|(filter, _)| filters.contains(filter));
        self.inside = keep;
        gone.into_iter().for_each(|(_, places): (_, Vec<u32>)| self.delete(&places));
        let mut line = None;
        for filter in filters {
            if self.filters().any(|inside| inside == filter) {
                continue;
            }
            let Some(rules) = FlowRule::of(filter, 0) else { continue };
            match self.insert(&rules) {
                Ok(places) => self.inside.push((filter.clone(), places)),
                Err(e) => line = line.or_else(|| self.refusal(filter, &e)),
            }
        }
        line
    }

    /// Inserts all rules or none.
    fn insert(&self, rules: &[FlowRule]) -> io::Result<Vec<u32>> {
        let mut places = Vec::new();
        for rule in rules {
            match self.device.insert(rule) {
                Ok(place) => places.push(place),
                Err(e) => {
                    self.delete(&places);
                    return Err(e);
                }
            }
        }
        Ok(places)
    }

    fn delete(&self, places: &[u32]) {
        // The interface may have been removed.
        places.iter().for_each(|place| drop(self.device.delete(*place)));
    }

    fn refusal(&mut self, filter: &Filter, e: &io::Error) -> Option<String> {
        let name = &self.name;
        let first = !std::mem::replace(&mut self.was_told, true);
        first.then(|| {
            format!(
                "afxdp:{name}: the card refuses the filter `{filter}`: {e}; it is checked in software \
                 (`ethtool -K {name} ntuple on` may help)"
            )
        })
    }
}

impl Drop for HardwareFilters {
    fn drop(&mut self) {
        self.inside.iter().for_each(|(_, places)| self.delete(places));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    /// A card with room for a few rules, which may refuse.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        rules: BTreeMap<u32, FlowRule>,
        refuses: Option<i32>,
    }

    const ROOM: u32 = 4;

    impl WriteRules for Fake {
        fn insert(&self, rule: &FlowRule) -> io::Result<u32> {
            let mut state = self.0.lock().unwrap();
            if let Some(errno) = state.refuses {
                return Err(io::Error::from_raw_os_error(errno));
            }
            let place = (0..ROOM).find(|place| !state.rules.contains_key(place));
            let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
            state.rules.insert(place, *rule);
            Ok(place)
        }

        fn delete(&self, place: u32) -> io::Result<()> {
            let gone = self.0.lock().unwrap().rules.remove(&place);
            gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    impl Fake {
        fn open(&self) -> HardwareFilters {
            HardwareFilters::open("eth9", Box::new(self.clone()))
        }

        fn refuse(&self, errno: Option<i32>) {
            self.0.lock().unwrap().refuses = errno;
        }

        fn rules(&self) -> Vec<FlowRule> {
            self.0.lock().unwrap().rules.values().copied().collect()
        }
    }

    fn filters(texts: &[&str]) -> Vec<Filter> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    const WEB: &str = "rx tcp service 10.0.0.5:80";
    const NAMES: &str = "rx udp service 10.0.0.5:53";
    /// Three rules.
    const PORTS: &str = "rx tcp service 10.0.0.5:1-4";
    const TAGS: &str = "rx eth vlan *";

    #[test]
    fn the_card_has_what_it_can_say() {
        let card = Fake::default();
        let mut hardware = card.open();
        assert_eq!(hardware.set(&filters(&[WEB, TAGS, NAMES])), None);
        assert!(hardware.filters().eq(&filters(&[WEB, NAMES])), "one is none that rules can say");
        let rules = |text: &str| FlowRule::of(&filters(&[text])[0], 0).expect("rules");
        assert_eq!(card.rules(), [rules(WEB), rules(NAMES)].concat());
        // What stays is not written again, and what goes makes room.
        assert_eq!(hardware.set(&filters(&[PORTS, NAMES])), None);
        assert_eq!(card.rules().len(), 4);
        assert_eq!(hardware.set(&[]), None);
        assert!(card.rules().is_empty() && hardware.filters().next().is_none());
        hardware.set(&filters(&[WEB]));
        drop(hardware);
        assert!(card.rules().is_empty(), "nothing is left");
    }

    #[test]
    fn what_is_refused_is_in_software_and_told_once() {
        let card = Fake::default();
        let mut hardware = card.open();
        card.refuse(Some(libc::EOPNOTSUPP));
        let line = hardware.set(&filters(&[WEB, NAMES])).expect("told");
        assert!(
            line.starts_with("afxdp:eth9: the card refuses the filter `rx tcp service"),
            "{line}"
        );
        assert!(line.contains("Operation not supported") && line.contains("ntuple on"), "{line}");
        assert_eq!(hardware.set(&filters(&[WEB])), None, "once");
        assert_eq!(hardware.filters().count(), 0);
        card.refuse(None);
        assert_eq!(hardware.set(&filters(&[WEB, NAMES])), None);
        // No room for all of its rules: none is left.
        assert_eq!(hardware.set(&filters(&[WEB, NAMES, PORTS])), None, "told before");
        assert!(hardware.filters().eq(&filters(&[WEB, NAMES])));
        assert_eq!(card.rules().len(), 2);
    }

    #[test]
    fn an_interface_without_flow_rules_says_so() {
        assert!(HardwareFilters::of("lo").is_none());
    }
}
