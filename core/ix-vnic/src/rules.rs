//! The rules of a vNIC in one line of text: `rx tcp service 10.0.0.5:80; tx …; rate tx 100Mbit`. A
//! rule of one queue begins with the queue: `queue 1 rate tx 20Mbit`.
use crate::filter::{Direction, Filter};
use crate::rate::Rate;
use crate::set::{FILTERS_MAX, FilterSet};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Filters and rates of one vNIC. A direction without filters is not restricted; neither is
/// anything in [`VnicRules::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnicRules {
    /// Filters of both directions that hold for all queues.
    pub filters: Vec<Filter>,
    /// Rate of what the vNIC may receive.
    pub rx_rate: Option<Rate>,
    /// Rate of what the vNIC may send.
    pub tx_rate: Option<Rate>,
    /// Rate of what each flow of the vNIC may send.
    pub flow_rate: Option<Rate>,
    /// Directions in which nothing may pass, because all their filters were revoked.
    pub closed: Vec<Direction>,
    /// Filters that hold for one queue alone. A received packet goes to the queue of the first of
    /// them that matches it.
    pub assigned: Vec<(usize, Filter)>,
    /// Rates of single queues, beside those of the vNIC.
    pub queue_rates: BTreeMap<usize, Rates>,
}

/// The rates of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Rate of what it may receive.
    pub rx: Option<Rate>,
    /// Rate of what it may send.
    pub tx: Option<Rate>,
    /// Rate of what each of its flows may send.
    pub flow: Option<Rate>,
}

impl VnicRules {
    /// True if nothing is restricted.
    pub fn is_open(&self) -> bool {
        *self == VnicRules::default()
    }

    /// Returns an error if a direction has more than [`FILTERS_MAX`] filters.
    pub fn check(&self) -> Result<(), String> {
        for direction in [Direction::Receive, Direction::Transmit] {
            check_count(direction, self.set(direction).map_or(0, |set| set.filters().len()))?;
        }
        Ok(())
    }

    /// The filters of a direction, of all queues; `None` if the direction is not restricted.
    pub fn set(&self, direction: Direction) -> Option<FilterSet> {
        let all = self.filters.iter().chain(self.assigned.iter().map(|(_, filter)| filter));
        let set = FilterSet::new(direction, all);
        let open = set.filters().is_empty() && !self.closed.contains(&direction);
        (!open).then_some(set)
    }

    /// The filters of a direction that hold for one queue; `None` if the direction is not
    /// restricted.
    pub fn set_of(&self, direction: Direction, queue: usize) -> Option<FilterSet> {
        self.set(direction)?;
        let assigned = |own: bool| {
            let whose = move |(at, _): &&(usize, Filter)| (*at == queue) == own;
            self.assigned.iter().filter(whose).map(|(_, filter)| filter)
        };
        let own = FilterSet::new(direction, self.filters.iter().chain(assigned(true)));
        Some(own.beside(assigned(false)))
    }

    /// Filters that steer received packets, each with its queue. The first that matches a packet
    /// decides.
    pub fn steering(&self) -> Vec<(usize, Filter)> {
        let receives = |(_, filter): &&(usize, Filter)| filter.direction() == Direction::Receive;
        self.assigned.iter().filter(receives).cloned().collect()
    }

    /// The rates of one of `queues` queues: its equal part of the vNIC's rates, limited by the
    /// queue's own rates.
    pub fn rates_of(&self, queue: usize, queues: usize) -> Rates {
        let own = self.queue_rates.get(&queue).copied().unwrap_or_default();
        let part = |whole: Option<Rate>| whole.map(|rate| rate.share(queues as u64));
        let both = |one: Option<Rate>, two| one.into_iter().chain(two).reduce(Rate::and);
        Rates {
            rx: both(part(self.rx_rate), own.rx),
            tx: both(part(self.tx_rate), own.tx),
            flow: both(self.flow_rate, own.flow),
        }
    }
}

impl Rates {
    /// True if there is no rate.
    pub fn is_empty(&self) -> bool {
        *self == Rates::default()
    }

    /// Each rate as a part of the line of text.
    fn texts(self) -> impl Iterator<Item = String> {
        let text = |name: &str, rate: Option<Rate>| rate.map(|rate| format!("rate {name} {rate}"));
        [text("rx", self.rx), text("tx", self.tx), text("flow", self.flow)].into_iter().flatten()
    }

    /// The rate that `what` names: `rx`, `tx` or `flow`.
    pub fn place(&mut self, what: &str) -> Option<&mut Option<Rate>> {
        match what {
            "rx" => Some(&mut self.rx),
            "tx" => Some(&mut self.tx),
            "flow" => Some(&mut self.flow),
            _ => None,
        }
    }
}

impl fmt::Display for VnicRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filters = self.filters.iter().map(Filter::to_string);
        let closed = self.closed.iter().map(|d| format!("none {}", name(*d)));
        let rates = Rates { rx: self.rx_rate, tx: self.tx_rate, flow: self.flow_rate };
        let assigned = self.assigned.iter().map(|(queue, part)| format!("queue {queue} {part}"));
        let of_queue = |(queue, rates): (&usize, &Rates)| {
            let queue = *queue;
            rates.texts().map(move |part| format!("queue {queue} {part}"))
        };
        let own = self.queue_rates.iter().flat_map(of_queue);
        let parts = filters.chain(rates.texts()).chain(closed).chain(assigned).chain(own);
        f.write_str(&parts.collect::<Vec<_>>().join("; "))
    }
}

/// Returns an error if a direction may not have that many filters.
pub fn check_count(direction: Direction, filters: usize) -> Result<(), String> {
    if filters <= FILTERS_MAX {
        return Ok(());
    }
    let name = name(direction);
    Err(format!("{filters} {name} filters are too many: a direction has at most {FILTERS_MAX}"))
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Receive => "rx",
        Direction::Transmit => "tx",
    }
}

impl FromStr for VnicRules {
    type Err = String;

    fn from_str(text: &str) -> Result<VnicRules, String> {
        let (mut rules, mut rates) = (VnicRules::default(), Rates::default());
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (queue, rest) = queue_of(part)?;
            let words: Vec<_> = rest.split(' ').collect();
            match words[..] {
                ["rate", what, rate] => {
                    let rates = match queue {
                        Some(queue) => rules.queue_rates.entry(queue).or_default(),
                        None => &mut rates,
                    };
                    let none = || format!("`{part}`: a rate must be for rx, tx or flow");
                    let place = rates.place(what).ok_or_else(none)?;
                    *place = Some(rate.parse().map_err(|e: crate::RateError| e.to_string())?);
                }
                ["none", "rx"] if queue.is_none() => rules.closed.push(Direction::Receive),
                ["none", "tx"] if queue.is_none() => rules.closed.push(Direction::Transmit),
                _ => {
                    let filter = rest.parse().map_err(|e: crate::FilterError| e.to_string())?;
                    match queue {
                        Some(queue) => rules.assigned.push((queue, filter)),
                        None => rules.filters.push(filter),
                    }
                }
            }
        }
        (rules.rx_rate, rules.tx_rate, rules.flow_rate) = (rates.rx, rates.tx, rates.flow);
        rules.check()?;
        Ok(rules)
    }
}

/// Splits the queue off a part of the text, if it begins with one.
fn queue_of(part: &str) -> Result<(Option<usize>, &str), String> {
    let Some(rest) = part.strip_prefix("queue ") else { return Ok((None, part)) };
    let found = rest.split_once(' ').and_then(|(n, rest)| Some((n.parse().ok()?, rest)));
    let (queue, rest) = found
        .ok_or_else(|| format!("`{part}`: expected a queue number, then a filter or a rate"))?;
    Ok((Some(queue), rest))
}
