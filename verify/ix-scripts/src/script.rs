//! A script as data.

/// A script.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Where it was read from, for messages.
    pub file: String,
    /// Lines that begin with `--`: name and value.
    pub options: Vec<(usize, String, String)>,
    /// What happens, in the order of the text.
    pub events: Vec<Event>,
}

impl Script {
    /// Whether it says itself which family it is about: `--ip_version=ipv4` or `ipv6`.
    pub fn names_its_family(&self) -> bool {
        self.options.iter().any(|(_, name, _)| name == "ip_version")
    }
}

/// One thing that happens, or has to.
#[derive(Clone, Debug)]
pub struct Event {
    /// Line of the text, from 1.
    pub line: usize,
    /// When.
    pub when: When,
    /// What.
    pub what: What,
}

/// A point in time or a span, µs: from the begin of the script, or from the event before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `1.5`: since the begin.
    At(i64),
    /// `+1.5`: after the event before.
    After(i64),
    /// `1~2`: between these, since the begin.
    Between(i64, i64),
    /// `+1~+2`: between these, after the event before.
    AfterBetween(i64, i64),
    /// `*`: at any time.
    Any,
}

/// What an event is.
#[derive(Clone, Debug)]
pub enum What {
    /// A packet comes in.
    Inject(Packet),
    /// A packet must go out.
    Expect(Packet),
    /// The program calls its system; the second time is when a call that blocks returns.
    Call(Call, Option<When>),
    /// A command line between backticks.
    Command(String),
    /// Assertions between `%{` and `}%`.
    Code(String),
}

/// A packet of a script.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Which conversation: 1, if the script names none.
    pub conversation: u8,
    /// ECN field: a value; `None`: not said.
    pub ecn: Option<u8>,
    /// Differentiated services code point, if it is said.
    pub dscp: Option<u8>,
    /// Hop limit, if it is said.
    pub ttl: Option<u8>,
    /// IPv6: flow label, if it is said.
    pub label: Option<u32>,
    /// IPv6: extension headers before the transport's, in their order: number, and what stands
    /// behind its second octet, up to padding.
    pub headers: Vec<(u8, Vec<u8>)>,
    /// How it is cut into fragments, if it is.
    pub cut: Option<Cut>,
    /// What it carries.
    pub body: Body,
}

/// How a packet is cut into fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Octets of payload of each, a multiple of eight.
    pub octets: u16,
    /// The last comes first.
    pub reversed: bool,
    /// This one, counted from 1, does not come; 0: all do.
    pub without: u16,
    /// This one comes again at the end, shifted by eight octets to the left; 0: none does.
    pub overlapping: u16,
}

/// What a packet carries.
#[derive(Clone, Debug)]
pub enum Body {
    /// TCP.
    Tcp(Segment),
    /// An ICMP error, with what it quotes: first sequence number and length of a segment.
    Icmp {
        /// Type and code.
        kind: IcmpKind,
        /// MTU of the next hop, or which octet was at fault.
        word: Option<u32>,
        /// Quoted segment; `None`: a datagram of so many bytes.
        quoted: Quoted,
    },
    /// UDP with so many bytes.
    Udp(u32),
}

/// Type and code of an ICMP error; in the family where it is `None` there is no such error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpKind {
    /// As scripts write it.
    pub name: String,
    /// ICMP (RFC 792).
    pub v4: Option<(u8, u8)>,
    /// ICMPv6 (RFC 4443).
    pub v6: Option<(u8, u8)>,
}

/// What an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoted {
    /// A segment: sequence number and length.
    Segment(u32, u32),
    /// A datagram with so many bytes.
    Datagram(u32),
}

/// A segment; sequence numbers are relative to the script's initial ones.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Control bits as on the wire: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128.
    pub flags: u16,
    /// Sequence number.
    pub seq: u32,
    /// Payload octets.
    pub len: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// Window field.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// Options; `None`: `<...>`, whatever they are.
    pub options: Option<Vec<TcpOption>>,
}

/// A TCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// End of the list.
    End,
    /// Padding.
    Nop,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks.
    Sack(Vec<(u32, u32)>),
    /// Timestamps: value and echo.
    Timestamp(u32, u32),
    /// Any other, by kind and the bytes after its length.
    Other(u8, Vec<u8>),
}

/// A system call with what it is to answer.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name.
    pub name: String,
    /// Arguments.
    pub args: Vec<Value>,
    /// Expected answer; `None`: any.
    pub answer: Option<i64>,
    /// Expected error's name.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(i64),
    /// A name, such as `SOCK_STREAM`.
    Name(String),
    /// Names and numbers joined by `|`.
    Any(Vec<Value>),
    /// Text.
    Text(String),
    /// `...`
    Dots,
    /// `[a, b]`
    List(Vec<Value>),
    /// `{name=value, …}`
    Record(Vec<(String, Value)>),
    /// `name(a, b)`
    Apply(String, Vec<Value>),
}
