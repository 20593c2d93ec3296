//! Plays a script.
mod packets;
mod program;

use crate::assertion;
use crate::calls::{Attempt, Pending};
use crate::expect::{Conversation, Strictness, differs, text};
use crate::script::{Body, Call, Event, IcmpKind, Packet, Quoted, Script, Segment, What, When};
use crate::settings::Settings;
use crate::sockets::{Answer, Role, Sockets, octets};
use crate::stack::Addresses;
use crate::values::{error_name, error_of};
use crate::wire::{self, ReadBody, Way};
use libc::c_int;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;

/// How to play scripts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where the script's sequence numbers begin on the wire.
    pub remote_base: u32,
    /// As another stack's scripts are read: packets at the end that nobody expects, PSH, window
    /// scale and windows that depend on it do not matter.
    pub lenient: bool,
    /// Scripts that do not say their family are about IPv6. The MTU is then larger by what its
    /// header is longer, so that segments are as long: so packetdrill's suites are played, too.
    pub ipv6: bool,
    /// Begin with the parameters that ship, not with those that scripts usually count on.
    pub shipped: bool,
}

/// Octets by which a header of IPv6 is longer than one of IPv4.
const LONGER_BYTES: u16 = 20;

impl Default for Options {
    /// Numbers that wrap within the first segments.
    fn default() -> Options {
        Options { remote_base: 0xffff_ff00, lenient: false, ipv6: false, shipped: false }
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
/// The longest MTU: jumbo frames.
const MTU_MAX: u64 = 9216;
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
    /// Descriptors of files.
    pub files: HashSet<i64>,
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
    /// Octets of a segment that comes in, at most: a longer packet comes in several.
    inject_mss: u32,
    /// Time of the event before, µs since the begin.
    before_us: i64,
    packets: usize,
}

impl<'a> Runner<'a> {
    fn new(script: &'a Script, options: Options) -> Result<Runner<'a>, Failure> {
        let mut settings = match options.shipped {
            true => Settings::shipped(),
            false => Settings::default(),
        };
        let longer = options.ipv6 && !script.names_its_family();
        let named = script.options.iter().rfind(|(_, name, _)| name == "ip_version");
        let v6 = named.map_or(options.ipv6, |(.., version)| version == "ipv6");
        let mut at = if v6 { Addresses::V6 } else { Addresses::V4 };
        let (mut tolerance_us, mut ts_tick_us) = (TOLERANCE_US, 0);
        let mut inject_mss = u32::MAX;
        for (line, name, value) in &script.options {
            let bad = |why: &str| unsupported(script, *line, format!("--{name}={value}: {why}"));
            let number = || value.parse::<u64>().map_err(|_| bad("not a number"));
            let address = || value.parse::<IpAddr>().map_err(|_| bad("not an IP address"));
            match name.as_str() {
                "tolerance_usecs" => tolerance_us = number()?,
                "tcp_ts_tick_usecs" => ts_tick_us = number()?,
                // How much of a longer packet that comes in is in one segment.
                "mss" => inject_mss = number()?.max(1) as u32,
                "mtu" if number()? > MTU_MAX => return Err(bad("a segment must fit one frame")),
                "mtu" => settings.set_mtu(u16::try_from(number()?).map_err(|_| bad("too long"))?),
                "local_ip" => at.local = address()?,
                "remote_ip" => at.remote = address()?,
                "ip_version" if matches!(value.as_str(), "ipv4" | "ipv6") => {}
                "ip_version" => return Err(bad("ipv4 or ipv6")),
                "strict_segments" | "tcp_ts_ecr_scaled" | "non_fatal" => {}
                _ => return Err(bad("this option is not understood")),
            }
        }
        if longer {
            let mtu = settings.mtu + LONGER_BYTES;
            settings.set_mtu(mtu);
        }
        if !at.suit() {
            let why = "local_ip and remote_ip are of two families (--ip_version=ipv6 for IPv6)";
            return Err(unsupported(script, 1, why));
        }
        Ok(Runner {
            script,
            options,
            sockets: Sockets::new(settings, at, START_US),
            fds: HashMap::new(),
            files: HashSet::new(),
            under_test: -1,
            conversations: HashMap::new(),
            sent: VecDeque::new(),
            pending: None,
            begun: 0,
            begun_until: None,
            tolerance_us,
            ts_tick_us,
            inject_mss,
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
            let due = self.sockets.next_deadline_us().unwrap_or(u64::MAX);
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

    fn command(&mut self, line: usize, command: &str) -> Result<(), Failure> {
        let goes_on = self.script.events.iter().any(|event| {
            event.line > line && matches!(event.what, What::Inject(_) | What::Expect(_))
        });
        // What a host had before the script is restored: nothing is left to see of it.
        let is_over = self.sockets.started() && !goes_on;
        if is_over && self.options.lenient {
            return Ok(());
        }
        let mut settings = self.sockets.settings.clone();
        settings.command(command).map_err(|why| unsupported(self.script, line, why))?;
        if is_over {
            return Ok(());
        }
        if self.sockets.started() && settings.tcp != self.sockets.settings.tcp {
            let why = "settings must come before the first listen, connect or packet";
            return Err(unsupported(self.script, line, why));
        }
        self.sockets.settings = settings;
        Ok(())
    }

    fn assert(&mut self, line: usize, code: &str) -> Result<(), Failure> {
        let handle = self.sockets.get(self.under_test).map_or(0, |socket| socket.flow.handle);
        let role = self.sockets.get(self.under_test).map(|socket| socket.role);
        let listens = role == Ok(Role::Listener);
        let info = if self.sockets.started() { self.sockets.stack().inspect(handle) } else { None };
        let checked = assertion::check(code, |name| {
            let value = match info.as_ref() {
                Some((info, loss)) => assertion::value_of(name, info, loss),
                None => assertion::value_without(name, listens),
            };
            value.ok_or_else(|| format!("`{name}` is nothing that this stack tells"))
        });
        checked.map_err(|why| match why.contains("does not hold") {
            true => self.fail(line, why),
            false => unsupported(self.script, line, why),
        })
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
