//! Captures: which packets one takes, as a small expression (`tcp and port 80 and not host
//! 10.0.0.9`), and how much of each.
use crate::codec::codec_enum;
use core::fmt;
use ix_wire::{FLOW_GROUPS, IpAddr};

/// Longest expression, characters.
pub const TEXT_MAX: usize = 1000;
/// Deepest nesting: evaluation and parsing recur.
const DEPTH_MAX: usize = 32;

/// Most bytes of a packet that a capture keeps.
pub const SNAPLEN_MAX: u32 = 65_535;
/// Least and most bytes of the memory that an elastic thread captures to.
pub const RING_BYTES: core::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// A protocol that expressions know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP.
    Icmp,
    /// ARP.
    Arp,
}

codec_enum!(Protocol { 0 = Tcp, 1 = Udp, 2 = Icmp, 3 = Arp });

/// An expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// Every packet.
    #[default]
    All,
    /// Sender or receiver has this address (in ARP as well).
    Host(IpAddr),
    /// Sender's or receiver's port.
    Port(u16),
    /// The other end of a connection: address and port of the peer.
    Flow(IpAddr, u16),
    /// A protocol.
    Is(Protocol),
    /// Of this flow group.
    Group(u8),
    /// At this elastic thread.
    Thread(u8),
    /// It was dropped.
    Drops,
    /// Received.
    In,
    /// Sent.
    Out,
    /// Not this.
    Not(Box<Filter>),
    /// All of these.
    And(Vec<Filter>),
    /// At least one of these.
    Or(Vec<Filter>),
}

codec_enum!(Filter {
    0 = All,
    1 = Host(address),
    2 = Port(port),
    3 = Flow(address, port),
    4 = Is(protocol),
    5 = Group(group),
    6 = Thread(thread),
    7 = Drops,
    8 = In,
    9 = Out,
    10 = Not(filter),
    11 = And(filters),
    12 = Or(filters),
});

/// What becomes of the capture of a dataplane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureOrder {
    /// Packets that the filter takes, the first bytes of each. The memory travels with it.
    Start {
        /// Bytes of a packet, at most.
        snaplen: u32,
        /// Which.
        filter: Filter,
    },
    /// No more.
    Stop,
}

codec_enum!(CaptureOrder { 0 = Start { snaplen, filter }, 1 = Stop });

/// The error for an invalid expression, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError(String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Protocol {
    /// Its word in an expression.
    fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Icmp => "icmp",
            Protocol::Arp => "arp",
        }
    }
}

/// The expression, with no more parentheses than it needs. It is parsed to the same filter.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::All => Ok(()),
            Filter::Host(address) => write!(f, "host {address}"),
            Filter::Port(port) => write!(f, "port {port}"),
            Filter::Flow(address, port) => match address.as_v4() {
                Some(_) => write!(f, "flow {address}:{port}"),
                None => write!(f, "flow [{address}]:{port}"),
            },
            Filter::Is(protocol) => f.write_str(protocol.name()),
            Filter::Group(group) => write!(f, "group {group}"),
            Filter::Thread(thread) => write!(f, "thread {thread}"),
            Filter::Drops => f.write_str("drops"),
            Filter::In => f.write_str("in"),
            Filter::Out => f.write_str("out"),
            Filter::Not(filter) => {
                f.write_str("not ")?;
                filter.write_part(f, filter.joins())
            }
            Filter::And(parts) => join(f, parts, " and ", Filter::joins),
            Filter::Or(parts) => join(f, parts, " or ", |part| matches!(part, Filter::Or(_))),
        }
    }
}

impl Filter {
    fn joins(&self) -> bool {
        matches!(self, Filter::And(_) | Filter::Or(_))
    }

    fn write_part(&self, f: &mut fmt::Formatter<'_>, in_parentheses: bool) -> fmt::Result {
        match in_parentheses {
            true => write!(f, "({self})"),
            false => write!(f, "{self}"),
        }
    }
}

fn join(
    f: &mut fmt::Formatter<'_>,
    parts: &[Filter],
    word: &str,
    in_parentheses: fn(&Filter) -> bool,
) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(word)?;
        }
        part.write_part(f, in_parentheses(part))?;
    }
    Ok(())
}

impl std::error::Error for FilterError {}

impl core::str::FromStr for Filter {
    type Err = FilterError;

    /// Words: `host A`, `port N`, `flow A:N`, `tcp`, `udp`, `icmp`, `arp`, `group N`, `thread N`,
    /// `drops`, `in`, `out`; joined by `and`, `or`, `not` and parentheses. Nothing: every packet.
    fn from_str(text: &str) -> Result<Filter, FilterError> {
        parse(text).map_err(|FilterError(why)| {
            let shown: String = text.chars().take(SHOWN_MAX).collect();
            let more = if shown.len() < text.len() { "…" } else { "" };
            FilterError(format!("invalid filter `{}{more}`: {why}", shown.escape_debug()))
        })
    }
}

/// Most characters of an invalid expression that its error repeats.
const SHOWN_MAX: usize = 100;

fn parse(text: &str) -> Result<Filter, FilterError> {
    if text.len() > TEXT_MAX {
        return Err(FilterError(format!("longer than {TEXT_MAX} characters")));
    }
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    if words.is_empty() {
        return Ok(Filter::All);
    }
    let mut parser = Parser { words: &words, depth: 0 };
    let filter = parser.either()?;
    if let Some(word) = parser.words.first() {
        return Err(FilterError(format!("`{word}` where `and` or `or` was expected")));
    }
    // The receiver of the filter parses this text, in which an address may be longer.
    if filter.to_string().len() > TEXT_MAX {
        return Err(FilterError(format!("longer than {TEXT_MAX} characters, written in full")));
    }
    Ok(filter)
}

struct Parser<'a> {
    words: &'a [&'a str],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn takes(&mut self, word: &str) -> bool {
        let taken = self.words.first() == Some(&word);
        if taken {
            self.next();
        }
        taken
    }

    fn either(&mut self) -> Result<Filter, FilterError> {
        let mut parts = vec![self.both()?];
        while self.takes("or") {
            parts.push(self.both()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::Or(parts) })
    }

    fn both(&mut self) -> Result<Filter, FilterError> {
        let mut parts = vec![self.one()?];
        while self.takes("and") {
            parts.push(self.one()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::And(parts) })
    }

    fn one(&mut self) -> Result<Filter, FilterError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(FilterError("nested too deeply".to_owned()));
        }
        let filter = match self.next() {
            None => Err(FilterError("it ends too early".to_owned())),
            Some("not") => Ok(Filter::Not(self.one()?.into())),
            Some("(") => {
                let inner = self.either()?;
                let closed = self.takes(")");
                closed.then_some(inner).ok_or(FilterError("a `(` is not closed".to_owned()))
            }
            Some(word) => self.primary(word),
        };
        self.depth -= 1;
        filter
    }

    fn primary(&mut self, word: &str) -> Result<Filter, FilterError> {
        Ok(match word {
            "tcp" => Filter::Is(Protocol::Tcp),
            "udp" => Filter::Is(Protocol::Udp),
            "icmp" => Filter::Is(Protocol::Icmp),
            "arp" => Filter::Is(Protocol::Arp),
            "drops" => Filter::Drops,
            "in" => Filter::In,
            "out" => Filter::Out,
            "host" => Filter::Host(self.operand(word, "an address")?),
            "port" => Filter::Port(self.operand(word, "a port")?),
            "flow" => {
                let peer: core::net::SocketAddr = self.operand(word, "ADDRESS:PORT of the peer")?;
                Filter::Flow(peer.ip().into(), peer.port())
            }
            "thread" => Filter::Thread(self.operand(word, "an elastic thread")?),
            "group" => match self.operand(word, "a flow group")? {
                group if usize::from(group) < FLOW_GROUPS => Filter::Group(group),
                group => return Err(FilterError(format!("there is no flow group {group}"))),
            },
            other => {
                return Err(FilterError(format!(
                    "`{other}` is none of host, port, flow, tcp, udp, icmp, arp, group, thread, \
                     drops, in, out"
                )));
            }
        })
    }

    fn operand<T: core::str::FromStr>(&mut self, of: &str, what: &str) -> Result<T, FilterError> {
        let word = self.next().unwrap_or_default();
        word.parse().map_err(|_| FilterError(format!("`{of} {word}`: {what} was expected")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::codec::tests::{harmless, survives};
    use proptest::prelude::*;

    #[test]
    fn the_longest_and_the_deepest_expression_survive() {
        let long = vec!["in"; TEXT_MAX / 7].join(" and ");
        let deep = format!("{}in{}", "(in or in and ".repeat(31), ")".repeat(31));
        for text in [long, deep] {
            survives(&text.parse::<Filter>().expect(&text));
        }
    }

    #[test]
    fn an_expression_is_written_as_it_was_read() {
        for text in [
            "",
            "tcp and port 80 and not host 10.0.0.9",
            "in or out and drops",
            "(in or out) and not (udp or arp)",
            "(in and (out and icmp)) and thread 3",
            "in or (out or group 127)",
            "not not not flow [fe80::1]:7",
            "flow 10.0.0.1:80 or host fe80::1",
        ] {
            let filter: Filter = text.parse().expect(text);
            assert_eq!(filter.to_string(), text);
        }
        let fully: Filter = "((in)and( (out)or(drops) ))".parse().expect("spaces are free");
        assert_eq!(fully.to_string(), "in and (out or drops)");
    }

    #[test]
    fn what_is_invalid_is_named() {
        for (text, says) in [
            ("port 80 tcp", "invalid filter `port 80 tcp`: `tcp` where `and`"),
            ("tcp and", "invalid filter `tcp and`: it ends too early"),
            ("host nobody", "`host nobody`: an address was expected"),
            ("group 128", "there is no flow group 128"),
        ] {
            let error = text.parse::<Filter>().expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
        let long = vec!["in"; TEXT_MAX].join(" and ");
        let error = long.parse::<Filter>().expect_err("long").to_string();
        assert!(error.len() < 2 * SHOWN_MAX && error.contains("…`: longer than 1000"), "{error}");
    }

    fn any_filter() -> impl Strategy<Value = Filter> {
        let leaf = prop_oneof![
            any::<[u8; 16]>().prop_map(|a| Filter::Host(IpAddr(a))),
            any::<[u8; 4]>().prop_map(|a| Filter::Host(IpAddr::v4(a))),
            any::<u16>().prop_map(Filter::Port),
            any::<([u8; 16], u16)>().prop_map(|(a, port)| Filter::Flow(IpAddr(a), port)),
            any::<([u8; 4], u16)>().prop_map(|(a, port)| Filter::Flow(IpAddr::v4(a), port)),
            (0..FLOW_GROUPS as u8).prop_map(Filter::Group),
            any::<u8>().prop_map(Filter::Thread),
            prop::sample::select(vec![
                Filter::Is(Protocol::Tcp),
                Filter::Is(Protocol::Udp),
                Filter::Is(Protocol::Icmp),
                Filter::Is(Protocol::Arp),
                Filter::Drops,
                Filter::In,
                Filter::Out,
            ]),
        ];
        leaf.prop_recursive(4, 12, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|filter| Filter::Not(filter.into())),
                prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::And),
                prop::collection::vec(inner, 2..4).prop_map(Filter::Or),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_filter_has_a_text(filter in any_filter()) {
            let text = filter.to_string();
            match text.parse::<Filter>() {
                Ok(read) => prop_assert_eq!(read, filter),
                Err(e) => prop_assert!(text.len() > TEXT_MAX, "{}", e),
            }
        }

        #[test]
        fn no_text_and_no_bytes_harm(
            text in "[a-z0-9 ().:]{0,80}",
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            nested in prop::collection::vec(10u8..13, 0..300),
        ) {
            if let Ok(filter) = text.parse::<Filter>() {
                survives(&filter);
                prop_assert_eq!(filter.to_string().parse(), Ok(filter));
            }
            harmless::<CaptureOrder>(&bytes);
            prop_assert!(nested.len() < 2 || Filter::decode(&nested).is_err());
        }
    }
}
