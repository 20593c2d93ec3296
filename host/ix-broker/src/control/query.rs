//! Which connections somebody wants to know of, and in which order.
use ix_dataplane::FlowRecord;
use ix_proto::GroupSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Most connections of one answer.
pub const CONNECTIONS_MAX: usize = 5000;
/// Longest time between the two looks that make a rate, ms.
pub const INTERVAL_MAX_MS: u64 = 1000;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// Most connections in the reply, up to 5,000.
    pub max: usize,
    /// Only those of this elastic thread.
    pub thread: Option<usize>,
    /// Only those of these flow groups, such as `0-15`.
    #[serde(with = "some_groups")]
    pub groups: Option<GroupSet>,
    /// Only those to this peer: an address, a network, or an address with a port.
    #[serde(with = "as_text")]
    pub peer: Option<PeerFilter>,
    /// Only those in this state; RFC 9293's name.
    #[serde(with = "as_text")]
    pub state: Option<StateFilter>,
    /// The order: `rate`, `rtt`, `retransmits`, `queued`, `bytes`, `age` or `idle`.
    pub sort: Sort,
    /// Milliseconds between two looks, for rates; 0: one look, without rates.
    pub interval_ms: u64,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            max: 1000,
            thread: None,
            groups: None,
            peer: None,
            state: None,
            sort: Sort::default(),
            interval_ms: 0,
        }
    }
}

impl Query {
    /// Why it cannot be answered.
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

    /// Whether a connection is asked for.
    pub fn wants(&self, record: &FlowRecord) -> bool {
        self.thread.is_none_or(|thread| usize::from(record.thread) == thread)
            && self.groups.is_none_or(|groups| groups.contains(record.flow_group.into()))
            && self.peer.is_none_or(|peer| peer.matches(address(&record.peer), record.peer_port))
            && self.state.is_none_or(|StateFilter(state)| record.state == state)
    }
}

/// The order of an answer; what is most stands first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// Payload a second, both ways.
    Rate,
    /// Smoothed round-trip time.
    Rtt,
    /// Segments sent again.
    Retransmits,
    /// Bytes that wait, both ways.
    Queued,
    /// Payload so far, both ways.
    #[default]
    Bytes,
    /// Age.
    Age,
    /// Time without segments.
    Idle,
}

impl Sort {
    /// All of them, in the order in which `ix top` goes through them.
    pub const ALL: [Sort; 7] = [
        Sort::Rate,
        Sort::Rtt,
        Sort::Retransmits,
        Sort::Queued,
        Sort::Bytes,
        Sort::Age,
        Sort::Idle,
    ];

    /// By what connections are compared; `moved` is payload since the look before.
    pub fn key(self, record: &FlowRecord, moved: u64) -> u64 {
        match self {
            Sort::Rate => moved,
            Sort::Rtt => record.srtt_us.into(),
            Sort::Retransmits => record.retransmits.into(),
            Sort::Queued => u64::from(record.snd_queued_bytes) + u64::from(record.rcv_queued_bytes),
            Sort::Bytes => record.bytes_in.saturating_add(record.bytes_out),
            Sort::Age => record.age_us,
            Sort::Idle => record.idle_us,
        }
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sort::Rate => "rate",
            Sort::Rtt => "rtt",
            Sort::Retransmits => "retransmits",
            Sort::Queued => "queued",
            Sort::Bytes => "bytes",
            Sort::Age => "age",
            Sort::Idle => "idle",
        })
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
    /// Whether a peer is one of them.
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

/// The states' names in RFC 9293, by their numbers in `ix_tcp::State`.
const STATES: [&str; 12] = [
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

/// The name of a state.
pub fn state_name(state: u32) -> &'static str {
    STATES.get(state as usize).copied().unwrap_or(STATES[0])
}

/// A state of RFC 9293.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFilter(u32);

impl FromStr for StateFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<StateFilter, String> {
        let named = STATES.iter().skip(2).position(|name| name.eq_ignore_ascii_case(text));
        let names = || STATES[2..11].join(", ").to_lowercase();
        let state = named.ok_or_else(|| format!("`{text}` is no state; say one of {}", names()))?;
        Ok(StateFilter(state as u32 + 2))
    }
}

impl fmt::Display for StateFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(state_name(self.0))
    }
}

/// An address as people write it.
pub fn address(bytes: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*bytes).to_canonical()
}

/// A filter as its text.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err = String>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(Error::custom)).transpose()
    }
}

/// Flow groups as their text, or none.
mod some_groups {
    use ix_proto::GroupSet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Option<GroupSet>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GroupSet>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> FlowRecord {
        let peer = Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 0x0001]).octets();
        let (thread, flow_group, peer_port, state) = (1, 7, 4000, 4);
        FlowRecord { peer, peer_port, thread, flow_group, state, ..FlowRecord::default() }
    }

    #[test]
    fn filters_pick_what_they_name() {
        let query = |text: &str| serde_json::from_str::<Query>(text).expect(text);
        for (text, picked) in [
            ("{}", true),
            (r#"{"thread":1}"#, true),
            (r#"{"thread":0}"#, false),
            (r#"{"groups":"0-7"}"#, true),
            (r#"{"groups":"8"}"#, false),
            (r#"{"peer":"10.0.0.1"}"#, true),
            (r#"{"peer":"10.0.0.1:4000"}"#, true),
            (r#"{"peer":"10.0.0.1:4001"}"#, false),
            (r#"{"peer":"10.0.0.2"}"#, false),
            (r#"{"peer":"10.0.0.2/30"}"#, true),
            (r#"{"peer":"0.0.0.0/0"}"#, true),
            (r#"{"peer":"::1"}"#, false),
            (r#"{"state":"established"}"#, true),
            (r#"{"state":"TIME-WAIT"}"#, false),
        ] {
            let query = query(text);
            assert_eq!(query.wants(&record()), picked, "{text}");
            let again = serde_json::to_string(&query).expect("JSON");
            assert_eq!(serde_json::from_str::<Query>(&again).expect(&again), query);
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
        assert_eq!([4, 10].map(state_name), ["ESTABLISHED", "TIME-WAIT"]);
        assert_eq!(state_name(99), "?");
    }
}
