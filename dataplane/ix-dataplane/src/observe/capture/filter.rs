//! Which packets a capture takes: a small expression, `tcp and port 80 and not host 10.0.0.9`.
use super::subject::{Protocol, Subject};
use core::fmt;
use ix_wire::{FLOW_GROUPS, IpAddr};

/// Longest expression, characters.
pub const TEXT_MAX: usize = 1000;
/// Deepest nesting: evaluation and parsing recur.
const DEPTH_MAX: usize = 32;

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Every packet.
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
    /// Both.
    And(Box<Filter>, Box<Filter>),
    /// At least one.
    Or(Box<Filter>, Box<Filter>),
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError(String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilterError {}

impl Filter {
    /// Whether a packet is taken.
    pub fn matches(&self, packet: &Subject) -> bool {
        match self {
            Filter::All => true,
            Filter::Host(host) => packet.src == Some(*host) || packet.dst == Some(*host),
            Filter::Port(port) => packet.ports.is_some_and(|(a, b)| a == *port || b == *port),
            Filter::Flow(host, port) => packet.peer() == Some((*host, *port)),
            Filter::Is(protocol) => packet.protocol == Some(*protocol),
            Filter::Group(group) => packet.group == Some(*group),
            Filter::Thread(thread) => packet.thread == *thread,
            Filter::Drops => packet.dropped,
            Filter::In => !packet.sent,
            Filter::Out => packet.sent,
            Filter::Not(a) => !a.matches(packet),
            Filter::And(a, b) => a.matches(packet) && b.matches(packet),
            Filter::Or(a, b) => a.matches(packet) || b.matches(packet),
        }
    }
}

impl core::str::FromStr for Filter {
    type Err = FilterError;

    /// Words: `host A`, `port N`, `flow A:N`, `tcp`, `udp`, `icmp`, `arp`, `group N`, `thread N`,
    /// `drops`, `in`, `out`; joined by `and`, `or`, `not` and parentheses. Nothing: every packet.
    fn from_str(text: &str) -> Result<Filter, FilterError> {
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
        match parser.words.first() {
            None => Ok(filter),
            Some(word) => Err(FilterError(format!("`{word}` where `and` or `or` was expected"))),
        }
    }
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
        let mut left = self.both()?;
        while self.takes("or") {
            left = Filter::Or(left.into(), self.both()?.into());
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Filter, FilterError> {
        let mut left = self.one()?;
        while self.takes("and") {
            left = Filter::And(left.into(), self.one()?.into());
        }
        Ok(left)
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
