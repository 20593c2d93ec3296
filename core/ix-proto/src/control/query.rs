//! The query for connections: which ones, and in which order.
use super::text;
use crate::GroupSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Most connections of one answer.
pub const CONNECTIONS_MAX: usize = 5000;
/// Longest time between the two surveys of a rate, ms.
pub const INTERVAL_MAX_MS: u64 = 1000;

/// A query for connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// Most connections in the reply, up to 5,000.
    pub max: usize,
    /// Only those of this elastic thread.
    pub thread: Option<usize>,
    /// Only those of this process of the program, by its number in Linux.
    pub process: Option<u32>,
    /// Only those of these flow groups, such as `0-15`.
    #[serde(with = "text::option")]
    pub groups: Option<GroupSet>,
    /// Only those to this peer: an address, a network, or an address with a port.
    #[serde(with = "text::option")]
    pub peer: Option<PeerFilter>,
    /// Only those in this state; RFC 9293's name.
    #[serde(with = "text::option")]
    pub state: Option<StateFilter>,
    /// The order: `rate`, `rtt`, `retransmits`, `queued`, `bytes`, `age` or `idle`.
    pub sort: Sort,
    /// Milliseconds between two surveys, for rates; 0: one survey, without rates.
    pub interval_ms: u64,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            max: 1000,
            thread: None,
            process: None,
            groups: None,
            peer: None,
            state: None,
            sort: Sort::default(),
            interval_ms: 0,
        }
    }
}

impl Query {
    /// Returns an error if the query cannot be answered.
    pub fn check(&self) -> Result<(), String> {
        if self.max > CONNECTIONS_MAX {
            return Err(format!("max {} is more than {CONNECTIONS_MAX}", self.max));
        }
        if self.interval_ms > INTERVAL_MAX_MS {
            return Err(format!("interval_ms {} is not 0 to {INTERVAL_MAX_MS}", self.interval_ms));
        }
        if self.sort == Sort::Rate && self.interval_ms == 0 {
            return Err("to sort by rate takes an interval_ms".to_owned());
        }
        Ok(())
    }
}

/// The order of an answer; the largest values come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// Payload per second, in both directions.
    Rate,
    /// Smoothed round-trip time.
    Rtt,
    /// Segments sent again.
    Retransmits,
    /// Waiting bytes, in both directions.
    Queued,
    /// Payload so far, in both directions.
    #[default]
    Bytes,
    /// Age.
    Age,
    /// Time without segments.
    Idle,
}

impl Sort {
    /// All orders; `ix top` switches between them in this order.
    pub const ALL: [Sort; 7] = [
        Sort::Rate,
        Sort::Rtt,
        Sort::Retransmits,
        Sort::Queued,
        Sort::Bytes,
        Sort::Age,
        Sort::Idle,
    ];
}

impl Sort {
    /// What it sorts by, for help texts.
    pub const fn describe(self) -> &'static str {
        match self {
            Sort::Rate => "Payload per second, in both directions",
            Sort::Rtt => "Smoothed round-trip time",
            Sort::Retransmits => "Segments sent again",
            Sort::Queued => "Waiting bytes, in both directions",
            Sort::Bytes => "Payload so far, in both directions",
            Sort::Age => "Age",
            Sort::Idle => "Time without segments",
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Rtt => "rtt",
            Sort::Retransmits => "retransmits",
            Sort::Queued => "queued",
            Sort::Bytes => "bytes",
            Sort::Age => "age",
            Sort::Idle => "idle",
        }
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Peers: an address, a network (`10.0.0.0/8`), or an address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerFilter {
    address: IpAddr,
    prefix_bits: u32,
    port: Option<u16>,
}

impl PeerFilter {
    /// Whether a peer is one of these.
    pub fn matches(&self, peer: IpAddr, port: u16) -> bool {
        let same = match (self.address, peer) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let (ours, theirs) = (u32::from(ours), u32::from(theirs));
                (ours ^ theirs).checked_shr(32 - self.prefix_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let (ours, theirs) = (u128::from(ours), u128::from(theirs));
                (ours ^ theirs).checked_shr(128 - self.prefix_bits).unwrap_or(0) == 0
            }
            _ => false,
        };
        same && self.port.is_none_or(|wanted| wanted == port)
    }

    fn whole(address: IpAddr, port: Option<u16>) -> PeerFilter {
        PeerFilter { address, prefix_bits: if address.is_ipv4() { 32 } else { 128 }, port }
    }
}

impl FromStr for PeerFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerFilter, String> {
        let none = || {
            format!("`{text}` is no peer; say an address, address:port, or a network as 10.0.0.0/8")
        };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(PeerFilter::whole(address, None));
        }
        if let Ok(socket) = text.parse::<std::net::SocketAddr>() {
            return Ok(PeerFilter::whole(socket.ip(), Some(socket.port())));
        }
        let (address, bits) = text.split_once('/').ok_or_else(none)?;
        let network = PeerFilter::whole(address.parse().map_err(|_| none())?, None);
        let prefix_bits = bits.parse().ok().filter(|bits| *bits <= network.prefix_bits);
        Ok(PeerFilter { prefix_bits: prefix_bits.ok_or_else(none)?, ..network })
    }
}

impl fmt::Display for PeerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}", std::net::SocketAddr::new(self.address, port)),
            None => write!(f, "{}/{}", self.address, self.prefix_bits),
        }
    }
}

/// A state of a TCP connection, by its number in `ix_tcp::State`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpState(usize);

impl TcpState {
    /// The states' names in RFC 9293, by their numbers; the first is for an unknown number.
    const NAMES: [&str; 12] = [
        "?",
        "LISTEN",
        "SYN-SENT",
        "SYN-RECEIVED",
        "ESTABLISHED",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "CLOSE-WAIT",
        "CLOSING",
        "LAST-ACK",
        "TIME-WAIT",
        "CLOSED",
    ];

    /// The state of this number.
    pub fn of(number: u32) -> TcpState {
        let known = usize::try_from(number).ok().filter(|number| *number < TcpState::NAMES.len());
        TcpState(known.unwrap_or(0))
    }

    /// Its name in RFC 9293.
    pub fn name(self) -> &'static str {
        TcpState::NAMES[self.0]
    }
}

impl FromStr for TcpState {
    type Err = String;

    fn from_str(text: &str) -> Result<TcpState, String> {
        let named = TcpState::NAMES.iter().position(|name| name.eq_ignore_ascii_case(text));
        named.map(TcpState).ok_or_else(|| format!("`{text}` is no state"))
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state that a query selects connections by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFilter(TcpState);

impl StateFilter {
    /// Whether the query selects connections in this state.
    pub fn matches(self, state: TcpState) -> bool {
        self.0 == state
    }
}

impl FromStr for StateFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<StateFilter, String> {
        // No connection listens.
        let state = text.parse().ok().filter(|TcpState(number)| *number >= 2);
        let names = || TcpState::NAMES[2..11].join(", ").to_lowercase();
        let none = || format!("`{text}` is no state; say one of {}", names());
        state.map(StateFilter).ok_or_else(none)
    }
}

impl fmt::Display for StateFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_pick_what_they_name() {
        let peer = IpAddr::from([10, 0, 0, 1]);
        for (text, picked) in [
            ("10.0.0.1", true),
            ("10.0.0.1:4000", true),
            ("10.0.0.1:4001", false),
            ("10.0.0.2", false),
            ("10.0.0.2/30", true),
            ("0.0.0.0/0", true),
            ("::1", false),
        ] {
            let filter: PeerFilter = text.parse().expect(text);
            assert_eq!(filter.matches(peer, 4000), picked, "{text}");
        }
        for (text, picked) in [("established", true), ("TIME-WAIT", false)] {
            let filter: StateFilter = text.parse().expect(text);
            assert_eq!(filter.matches(TcpState::of(4)), picked, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, word) in [
            (r#"{"peer":"10.0.0.1/33"}"#, "10.0.0.1/33"),
            (r#"{"peer":"nobody"}"#, "nobody"),
            (r#"{"state":"happy"}"#, "happy"),
            (r#"{"groups":"200"}"#, "200"),
            (r#"{"sort":"name"}"#, "name"),
            (r#"{"limit":1}"#, "limit"),
        ] {
            let error = serde_json::from_str::<Query>(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        let bad = |query: Query| query.check().expect_err("refused");
        assert!(bad(Query { max: 5001, ..Query::default() }).contains("5001"));
        assert!(bad(Query { sort: Sort::Rate, ..Query::default() }).contains("interval_ms"));
        assert!(bad(Query { interval_ms: 5000, ..Query::default() }).contains("5000"));
    }

    #[test]
    fn states_have_the_numbers_of_the_state_machine() {
        // Of ix_tcp::State, in the order of RFC 9293 section 3.3.2.
        assert_eq!([4, 10].map(|n| TcpState::of(n).name()), ["ESTABLISHED", "TIME-WAIT"]);
        assert_eq!(TcpState::of(99).name(), "?");
    }
}
