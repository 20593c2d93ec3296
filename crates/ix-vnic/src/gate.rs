//! What a vNIC may do, in one line of text: `rx tcp service 10.0.0.5:80; tx …; rate tx 100Mbit`.
use crate::filter::{Direction, Filter};
use crate::rate::Rate;
use crate::set::{FILTERS_MAX, FilterSet};
use std::fmt;
use std::str::FromStr;

/// Filters and rates of one vNIC. A direction without filters carries everything; so does the
/// [`Gate::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// Filters of both directions.
    pub filters: Vec<Filter>,
    /// What it may receive.
    pub rx_rate: Option<Rate>,
    /// What it may send.
    pub tx_rate: Option<Rate>,
    /// What each of its flows may send.
    pub flow_rate: Option<Rate>,
    /// A direction whose filters are all revoked carries nothing.
    pub closed: Vec<Direction>,
}

impl Gate {
    /// Whether it holds nothing back.
    pub fn is_open(&self) -> bool {
        *self == Gate::default()
    }

    /// The filters of a direction; `None`: it carries everything.
    pub fn set(&self, direction: Direction) -> Option<FilterSet> {
        let set = FilterSet::new(direction, &self.filters);
        let open = set.filters().is_empty() && !self.closed.contains(&direction);
        (!open).then_some(set)
    }

    /// The rate of a direction.
    pub fn rate(&self, direction: Direction) -> Option<Rate> {
        match direction {
            Direction::Receive => self.rx_rate,
            Direction::Transmit => self.tx_rate,
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filters = self.filters.iter().map(Filter::to_string);
        let rate = |name: &str, rate: Option<Rate>| rate.map(|rate| format!("rate {name} {rate}"));
        let closed = self.closed.iter().map(|d| format!("none {}", name(*d)));
        let rates = rate("rx", self.rx_rate).into_iter().chain(rate("tx", self.tx_rate));
        let parts = filters.chain(rates).chain(rate("flow", self.flow_rate));
        f.write_str(&parts.chain(closed).collect::<Vec<_>>().join("; "))
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Receive => "rx",
        Direction::Transmit => "tx",
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Gate, String> {
        let mut gate = Gate::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let words: Vec<_> = part.split(' ').collect();
            match words[..] {
                ["rate", direction, rate] => {
                    let place = match direction {
                        "rx" => &mut gate.rx_rate,
                        "tx" => &mut gate.tx_rate,
                        "flow" => &mut gate.flow_rate,
                        _ => return Err(format!("`{part}`: a rate is for rx, tx or flow")),
                    };
                    *place = Some(rate.parse().map_err(|e: crate::RateError| e.to_string())?);
                }
                ["none", "rx"] => gate.closed.push(Direction::Receive),
                ["none", "tx"] => gate.closed.push(Direction::Transmit),
                _ => {
                    let filter = part.parse().map_err(|e: crate::FilterError| e.to_string())?;
                    gate.filters.push(filter);
                }
            }
        }
        for direction in [Direction::Receive, Direction::Transmit] {
            let filters = gate.filters.iter().filter(|f| f.direction() == direction).count();
            if filters > FILTERS_MAX {
                return Err(format!("{filters} {} filters are too many", name(direction)));
            }
        }
        Ok(gate)
    }
}
