//! Plays a script.
use crate::assertion;
use crate::calls::{Attempt, Pending};
use crate::expect::{Conversation, Strictness, differs, text};
use crate::script::{Body, Call, Event, Packet, Quoted, Script, Segment, What, When};
use crate::settings::Settings;
use crate::sockets::{Answer, Sockets, octets};
use crate::stack::Addresses;
use crate::values::{error_name, error_of};
use crate::wire::{self, ReadBody, Way};
use libc::c_int;
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

/// How to play scripts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where the script's sequence numbers begin on the wire.
    pub remote_base: u32,
    /// As another stack's scripts are read: packets at the end that nobody expects, PSH, window
    /// scale and windows that depend on it do not matter.
    pub lenient: bool,
}

impl Default for Options {
    /// Numbers that wrap within the first segments.
    fn default() -> Options {
        Options { remote_base: 0xffff_ff00, lenient: false }
    }
}

/// What a script showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    /// Packets both ways.
    pub packets: usize,
    /// Virtual time that it took, µs.
    pub virtual_us: u64,
}

/// Where a script and the stack part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The script.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What, and why.
    pub why: String,
    /// The packet that was expected, as the script writes it.
    pub expected: Option<String>,
    /// The packet that came.
    pub actual: Option<String>,
    /// The script asks for something that is not built, or is not understood.
    pub unsupported: bool,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.why)?;
        if let Some(expected) = &self.expected {
            write!(f, "\n    expected  {expected}")?;
        }
        if let Some(actual) = &self.actual {
            write!(f, "\n    actual    {actual}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Virtual time at which scripts begin: late enough that "time zero" means nothing.
const START_US: u64 = 1_000_000_000;
/// How far times may be off if the script says nothing, µs.
const TOLERANCE_US: u64 = 4_000;
/// How long an event "at any time" is waited for, µs.
const PATIENCE_US: u64 = 3_600_000_000;
const SYN: u16 = 2;
const ACK: u16 = 16;

/// The script's port of a conversation.
pub(crate) fn remote_port(conversation: u8) -> u16 {
    40_000 + u16::from(conversation)
}

/// Plays `script`.
pub fn run(script: &Script, options: Options) -> Result<Played, Failure> {
    let mut runner = Runner::new(script, options)?;
    for event in &script.events {
        runner.play(event)?;
    }
    runner.end()
}

/// What is known while a script is played.
pub(crate) struct Runner<'a> {
    script: &'a Script,
    options: Options,
    pub sockets: Sockets,
    pub fds: HashMap<i64, c_int>,
    /// The socket that assertions are about.
    pub under_test: c_int,
    conversations: HashMap<u8, Conversation>,
    sent: VecDeque<(u64, Vec<u8>)>,
    pending: Option<Pending>,
    /// Octets that a call wrote before it blocked, and when it gives up.
    pub begun: usize,
    pub begun_until: Option<u64>,
    tolerance_us: u64,
    ts_tick_us: u64,
    /// Time of the event before, µs since the begin.
    before_us: i64,
    packets: usize,
}

impl<'a> Runner<'a> {
    fn new(script: &'a Script, options: Options) -> Result<Runner<'a>, Failure> {
        let mut settings = Settings::default();
        let mut at =
            Addresses { local: Ipv4Addr::new(192, 168, 0, 1), remote: Ipv4Addr::new(192, 0, 2, 1) };
        let (mut tolerance_us, mut ts_tick_us) = (TOLERANCE_US, 0);
        for (line, name, value) in &script.options {
            let bad = |why: &str| unsupported(script, *line, format!("--{name}={value}: {why}"));
            let number = || value.parse::<u64>().map_err(|_| bad("not a number"));
            let address = || value.parse::<Ipv4Addr>().map_err(|_| bad("not an IPv4 address"));
            match name.as_str() {
                "tolerance_usecs" => tolerance_us = number()?,
                "tcp_ts_tick_usecs" => ts_tick_us = number()?,
                "mtu" if number()? > 1900 => return Err(bad("a segment must fit one frame")),
                "mtu" => settings.set_mtu(u16::try_from(number()?).map_err(|_| bad("too long"))?),
                "local_ip" => at.local = address()?,
                "remote_ip" => at.remote = address()?,
                "ip_version" if value == "ipv4" => {}
                "ip_version" => return Err(bad("IPv6 is not built yet")),
                "strict_segments" | "tcp_ts_ecr_scaled" | "non_fatal" => {}
                _ => return Err(bad("this option is not understood")),
            }
        }
        Ok(Runner {
            script,
            options,
            sockets: Sockets::new(settings, at, START_US),
            fds: HashMap::new(),
            under_test: -1,
            conversations: HashMap::new(),
            sent: VecDeque::new(),
            pending: None,
            begun: 0,
            begun_until: None,
            tolerance_us,
            ts_tick_us,
            before_us: 0,
            packets: 0,
        })
    }

    fn fail(&self, line: usize, why: impl Into<String>) -> Failure {
        Failure { unsupported: false, ..unsupported(self.script, line, why) }
    }

    pub fn conversation(&mut self, number: u8) -> &mut Conversation {
        let base = self.options.remote_base;
        self.conversations.entry(number).or_insert_with(|| Conversation::new(base))
    }

    /// Since the begin, µs.
    fn elapsed_us(&self) -> i64 {
        (self.sockets.now_us() - START_US) as i64
    }

    /// Earliest and latest time of an event, µs since the begin.
    fn span(&self, when: When) -> (i64, i64) {
        let before = self.before_us;
        match when {
            When::At(us) => (us, us),
            When::After(us) => (before + us, before + us),
            When::Between(first, last) => (first, last),
            When::AfterBetween(first, last) => (before + first, before + last),
            When::Any => (self.elapsed_us(), self.elapsed_us() + PATIENCE_US as i64),
        }
    }

    fn play(&mut self, event: &Event) -> Result<(), Failure> {
        let line = event.line;
        let span = self.span(event.when);
        match &event.what {
            What::Expect(packet) => self.expect(line, packet, span)?,
            What::Inject(packet) => {
                self.advance(span.0)?;
                self.inject(line, packet)?;
            }
            What::Call(call, ends) => {
                self.advance(span.0)?;
                let base = self.before_us;
                let ends = ends.map(|end| match end {
                    When::At(us) => us,
                    When::After(us) => base + us,
                    _ => base,
                });
                self.call(line, call, ends)?;
            }
            What::Command(command) => {
                self.advance(span.0)?;
                self.command(line, command)?;
            }
            What::Code(code) => {
                self.advance(span.0)?;
                self.assert(line, code)?;
            }
        }
        self.before_us = match event.when {
            When::At(_) | When::After(_) => span.0,
            _ => self.elapsed_us(),
        };
        Ok(())
    }

    /// Lets time pass until `until_us` since the begin, looking after a call that blocks.
    fn advance(&mut self, until_us: i64) -> Result<(), Failure> {
        let until = START_US + until_us.max(self.elapsed_us()) as u64;
        while let Some(pending) = &self.pending {
            let give_up = pending.gives_up_us.unwrap_or(u64::MAX);
            let due = match self.sockets.started() {
                true => self.sockets.stack().next_deadline_us().unwrap_or(u64::MAX),
                false => u64::MAX,
            };
            let next = due.max(self.sockets.now_us() + 1).min(give_up);
            self.try_pending()?;
            if next > until || self.pending.is_none() {
                break;
            }
            self.sockets.advance(next);
            self.collect();
        }
        self.sockets.advance(until);
        self.collect();
        self.try_pending()
    }

    fn collect(&mut self) {
        if self.sockets.started() {
            let sent = &mut self.sockets.stack().sent;
            self.sent.extend(sent.drain(..));
        }
    }

    fn inject(&mut self, line: usize, packet: &Packet) -> Result<(), Failure> {
        self.packets += 1;
        let at = self.sockets.at;
        let number = packet.conversation;
        let default =
            Way { from: at.remote, to: at.local, from_port: remote_port(number), to_port: 8080 };
        let conversation = self.conversation(number);
        let way = *conversation.way.get_or_insert(default);
        let (protocol, bytes) = match &packet.body {
            Body::Tcp(segment) => {
                let (live, payload) = conversation.live(segment);
                (wire::TCP, wire::tcp(way, &live, &payload))
            }
            Body::Udp(len) => (wire::UDP, wire::udp(way, &octets(0, *len as usize))),
            Body::Icmp { kind, mtu, quoted } => {
                let quoted = match quoted {
                    Quoted::Segment(seq, len) => {
                        let seq = seq.wrapping_add(conversation.local_base.unwrap_or(0));
                        let segment = Segment { seq, flags: ACK, ..Segment::default() };
                        let payload = vec![0; (*len).min(65_000) as usize];
                        let tcp = wire::tcp(way.back(), &segment, &payload);
                        wire::ipv4(way.back(), wire::TCP, 0, 63, &tcp)
                    }
                    Quoted::Datagram(len) => {
                        let udp = wire::udp(way.back(), &octets(0, *len as usize));
                        wire::ipv4(way.back(), wire::UDP, 0, 63, &udp)
                    }
                };
                let quoted = &quoted[..quoted.len().min(28)];
                (wire::ICMP, wire::icmp_error(*kind, mtu.unwrap_or(0), quoted))
            }
        };
        if bytes.len() > 65_515 {
            return Err(self.fail(line, format!("a packet of {} bytes", bytes.len())));
        }
        let (ecn, ttl) = (packet.ecn.unwrap_or(0), packet.ttl.unwrap_or(64));
        let bytes = wire::ipv4(way, protocol, ecn, ttl, &bytes);
        self.sockets.deliver(&bytes);
        self.collect();
        self.try_pending()
    }

    /// The next packet that was sent, if one is by `until_us`.
    fn next_sent(&mut self, until_us: i64) -> Result<Option<(u64, Vec<u8>)>, Failure> {
        self.try_pending()?;
        self.collect();
        loop {
            if let Some(sent) = self.sent.pop_front() {
                return Ok(Some(sent));
            }
            if !self.sockets.started() {
                return Ok(None);
            }
            let give_up = self.pending.as_ref().and_then(|pending| pending.gives_up_us);
            let due = self.sockets.stack().next_deadline_us().unwrap_or(u64::MAX);
            let next = due.min(give_up.unwrap_or(u64::MAX));
            let limit = START_US + until_us.max(0) as u64;
            if next > limit {
                return Ok(None);
            }
            self.advance(next.max(self.sockets.now_us() + 1) as i64 - START_US as i64)?;
        }
    }

    fn expect(&mut self, line: usize, packet: &Packet, span: (i64, i64)) -> Result<(), Failure> {
        let tolerance = self.tolerance_us as i64;
        let expected = match &packet.body {
            Body::Tcp(segment) => text(segment),
            Body::Udp(len) => format!("udp ({len})"),
            Body::Icmp { kind, .. } => format!("icmp type {} code {}", kind.0, kind.1),
        };
        let wrong = |this: &Self, why: String, actual: Option<String>| Failure {
            expected: Some(expected.clone()),
            actual,
            ..this.fail(line, why)
        };
        let Some((at, bytes)) = self.next_sent(span.1 + tolerance)? else {
            let by = seconds(span.1 + tolerance);
            return Err(wrong(self, format!("nothing was sent until {by} s"), None));
        };
        self.packets += 1;
        let at_us = (at - START_US) as i64;
        let read = match wire::read(&bytes) {
            Ok(read) => read,
            Err(why) => return Err(wrong(self, format!("a broken packet was sent: {why}"), None)),
        };
        let mut actual = format!("{:?}", read.body);
        let differs = match (&packet.body, &read.body) {
            (Body::Tcp(wanted), ReadBody::Tcp(live, payload)) => {
                let (segment, why) = self.compare(packet, wanted, live, payload, read.way, at)?;
                actual = text(&segment);
                why
            }
            (Body::Udp(len), ReadBody::Udp(payload)) => (payload.len() != *len as usize)
                .then(|| format!("{} bytes not {len}", payload.len())),
            (Body::Icmp { kind, .. }, ReadBody::Icmp(actual_kind, code)) => {
                (*kind != (*actual_kind, *code)).then(|| "another kind of ICMP".into())
            }
            _ => Some("a packet of another protocol".to_string()),
        };
        let actual = format!("{actual}  at {} s", seconds(at_us));
        if let Some(why) = differs {
            return Err(wrong(self, why, Some(actual)));
        }
        if packet.ecn.is_some_and(|ecn| ecn != read.ecn) {
            let why = format!("ECN field {} not {}", read.ecn, packet.ecn.unwrap_or(0));
            return Err(wrong(self, why, Some(actual)));
        }
        if at_us < span.0 - tolerance || at_us > span.1 + tolerance {
            let (first, last) = (seconds(span.0), seconds(span.1));
            let due = if first == last { first } else { format!("{first} to {last}") };
            let why = format!("sent at {} s, expected at {due} s", seconds(at_us));
            return Err(wrong(self, why, Some(actual)));
        }
        Ok(())
    }

    /// Compares a segment; what the script has as one may be sent as several.
    fn compare(
        &mut self,
        packet: &Packet,
        wanted: &Segment,
        live: &Segment,
        payload: &[u8],
        way: Way,
        at: u64,
    ) -> Result<(Segment, Option<String>), Failure> {
        let lenient = self.options.lenient;
        let how = Strictness {
            push: !lenient,
            windows: !lenient,
            ts_tick_us: self.ts_tick_us,
            tolerance_us: self.tolerance_us,
        };
        let taken = self.conversations.values().any(|other| other.way == Some(way.back()));
        let conversation = self.conversation(packet.conversation);
        let opens = live.flags & (SYN | ACK) == SYN;
        if conversation.way.is_none() || opens && conversation.fresh && !taken {
            conversation.way = Some(way.back());
        }
        if conversation.way != Some(way.back()) {
            let segment = conversation.in_script(live);
            return Ok((segment, Some("a segment of another conversation".into())));
        }
        let mut segment = conversation.script(live, wanted, at);
        if !conversation.payload_is_right(&segment, payload) {
            return Ok((segment, Some("payload that is not the stream's".into())));
        }
        while segment.len < wanted.len
            && let Some((_, bytes)) = self.sent.front()
            && let Ok(read) = wire::read(bytes)
            && let ReadBody::Tcp(next, more) = &read.body
            && Some(read.way.back()) == self.conversation(packet.conversation).way
        {
            let conversation = self.conversation(packet.conversation);
            let next = conversation.script(next, wanted, at);
            if next.seq != segment.seq.wrapping_add(segment.len) || next.len == 0 {
                break;
            }
            if !conversation.payload_is_right(&next, more) {
                return Ok((next, Some("payload that is not the stream's".into())));
            }
            segment.flags |= next.flags;
            segment.len += next.len;
            self.sent.pop_front();
        }
        let why = differs(wanted, &segment, how);
        Ok((segment, why))
    }

    fn command(&mut self, line: usize, command: &str) -> Result<(), Failure> {
        let mut settings = self.sockets.settings.clone();
        settings.command(command).map_err(|why| unsupported(self.script, line, why))?;
        if self.sockets.started() && settings.tcp != self.sockets.settings.tcp {
            let why = "settings must come before the first listen, connect or packet";
            return Err(unsupported(self.script, line, why));
        }
        self.sockets.settings = settings;
        Ok(())
    }

    fn assert(&mut self, line: usize, code: &str) -> Result<(), Failure> {
        let handle = self.sockets.get(self.under_test).map_or(0, |socket| socket.handle);
        let info = if self.sockets.started() { self.sockets.stack().inspect(handle) } else { None };
        let checked = assertion::check(code, |name| {
            let (info, loss) = info.as_ref().ok_or("there is no connection to ask")?;
            let value = assertion::value_of(name, info, loss);
            value.ok_or_else(|| format!("`{name}` is nothing that this stack tells"))
        });
        checked.map_err(|why| match why.contains("does not hold") {
            true => self.fail(line, why),
            false => unsupported(self.script, line, why),
        })
    }

    fn call(&mut self, line: usize, call: &Call, ends: Option<i64>) -> Result<(), Failure> {
        if let Some(pending) = &self.pending {
            let why = format!("`{}` of line {} still blocks", pending.call.name, pending.line);
            return Err(self.fail(line, why));
        }
        (self.begun, self.begun_until) = (0, None);
        let attempt = self.attempt(call, None);
        self.collect();
        match attempt.map_err(|why| unsupported(self.script, line, why))? {
            Attempt::Done(answer) => self.answered(line, call, answer),
            Attempt::Blocks => {
                let tolerance = self.tolerance_us as i64;
                let window = |end: i64| {
                    let at = |us: i64| START_US + us.max(0) as u64;
                    (at(end - tolerance), at(end + tolerance))
                };
                if ends.is_none() && self.begun_until.is_none() {
                    return Err(self.fail(line, format!("`{}` blocks", call.name)));
                }
                self.pending = Some(Pending {
                    line,
                    call: call.clone(),
                    ends: ends.map(window),
                    gives_up_us: self.begun_until,
                    written: self.begun,
                });
                Ok(())
            }
        }
    }

    /// Whether the call that blocks returns now.
    fn try_pending(&mut self) -> Result<(), Failure> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        let now_us = self.sockets.now_us();
        let call = pending.call.clone();
        let attempt = self.attempt(&call, Some(&mut pending));
        let line = pending.line;
        self.collect();
        let answer = match attempt.map_err(|why| unsupported(self.script, line, why))? {
            Attempt::Done(answer) => answer,
            Attempt::Blocks if pending.gives_up_us.is_some_and(|at| now_us >= at) => Ok(0),
            Attempt::Blocks => {
                if pending.ends.is_some_and(|(_, last)| now_us > last) {
                    return Err(self.fail(line, format!("`{}` still blocks", call.name)));
                }
                self.pending = Some(pending);
                return Ok(());
            }
        };
        if pending.ends.is_some_and(|(first, _)| now_us < first) {
            let at = seconds(self.elapsed_us());
            return Err(self.fail(line, format!("`{}` returned at {at} s already", call.name)));
        }
        self.answered(line, &call, answer)
    }

    fn answered(&mut self, line: usize, call: &Call, answer: Answer) -> Result<(), Failure> {
        let told = |answer: Answer| match answer {
            Ok(number) => number.to_string(),
            Err(error) => format!("-1 {}", error_name(error.into())),
        };
        let right = match (call.answer, &call.errno, answer) {
            (None, ..) => true,
            (Some(-1), Some(name), Err(error)) => {
                let wanted = error_of(name).ok_or_else(|| {
                    unsupported(self.script, line, format!("the error `{name}` is not understood"))
                })?;
                wanted == i64::from(error)
            }
            (Some(-1), None, Err(_)) => true,
            (Some(wanted), _, Ok(number)) => wanted == number,
            _ => false,
        };
        if right {
            return Ok(());
        }
        let errno = call.errno.as_deref().unwrap_or("");
        let wanted = format!("{} {errno}", call.answer.unwrap_or(0));
        let why = format!("`{}` answered {}, not {}", call.name, told(answer), wanted.trim());
        Err(self.fail(line, why))
    }

    fn end(mut self) -> Result<Played, Failure> {
        let line = self.script.events.last().map_or(1, |event| event.line);
        if let Some(ends) = self.pending.as_ref().map(|pending| pending.ends) {
            let until = ends.map_or(self.sockets.now_us(), |(_, last)| last + 1);
            self.advance(until as i64 - START_US as i64)?;
        }
        if let Some(pending) = &self.pending {
            return Err(self.fail(pending.line, format!("`{}` still blocks", pending.call.name)));
        }
        self.collect();
        if !self.options.lenient
            && let Some((at, bytes)) = self.sent.front()
        {
            let (at_us, bytes) = ((at - START_US) as i64, bytes.clone());
            let actual = self.describe(&bytes);
            let why = format!("a packet that the script does not expect, at {} s", seconds(at_us));
            return Err(Failure { actual: Some(actual), ..self.fail(line, why) });
        }
        Ok(Played { packets: self.packets, virtual_us: self.elapsed_us() as u64 })
    }

    fn describe(&self, bytes: &[u8]) -> String {
        match wire::read(bytes) {
            Err(why) => why,
            Ok(read) => match &read.body {
                ReadBody::Tcp(live, _) => {
                    let back = Some(read.way.back());
                    match self.conversations.values().find(|other| other.way == back) {
                        Some(conversation) => text(&conversation.in_script(live)),
                        None => text(live),
                    }
                }
                other => format!("{other:?}"),
            },
        }
    }
}

fn unsupported(script: &Script, line: usize, why: impl Into<String>) -> Failure {
    let (expected, actual) = (None, None);
    Failure {
        file: script.file.clone(),
        line,
        why: why.into(),
        expected,
        actual,
        unsupported: true,
    }
}

fn seconds(us: i64) -> String {
    format!("{}.{:06}", us / 1_000_000, us.rem_euclid(1_000_000))
}
