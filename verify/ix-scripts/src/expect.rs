//! Conversations: a script's relative numbers and the wire's, and whether a packet is the expected.
use crate::script::{Segment, TcpOption};
use crate::sockets::octets;
use crate::wire::Way;
use std::collections::HashMap;

/// What is known of one conversation between the script and the stack.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// From the script to the stack; ports 0: not known yet.
    pub way: Option<Way>,
    /// IPv6: the label that its segments from the stack have.
    pub label: Option<u32>,
    /// Live minus script, sequence numbers of the script's side.
    pub remote_base: u32,
    /// Live minus script, sequence numbers of the stack's side.
    pub local_base: Option<u32>,
    /// The script's initial sequence numbers, of both sides.
    remote_isn: Option<u32>,
    local_isn: Option<u32>,
    /// A SYN or `connect` may have begun a connection with new numbers.
    pub fresh: bool,
    /// First timestamp of the stack: script's, live.
    first_ts: Option<(u32, u32)>,
    ts: HashMap<u32, u32>,
    first_ts_us: u64,
}

/// How to compare.
#[derive(Clone, Copy, Debug)]
pub struct Strictness {
    /// PSH must be as the script says.
    pub push: bool,
    /// Window scale and windows that depend on it, too.
    pub windows: bool,
    /// Length of a tick of the stack's timestamps, µs; 0: their values do not matter.
    pub ts_tick_us: u64,
    /// How far timestamps may be off, µs.
    pub tolerance_us: u64,
}

const SYN: u16 = 2;
const PSH: u16 = 8;
const ACK: u16 = 16;

impl Conversation {
    /// Nothing known. `remote_base`: where the numbers of the script's side begin on the wire.
    pub fn new(remote_base: u32) -> Conversation {
        Conversation {
            way: None,
            label: None,
            remote_base,
            local_base: None,
            remote_isn: None,
            local_isn: None,
            fresh: true,
            first_ts: None,
            ts: HashMap::new(),
            first_ts_us: 0,
        }
    }

    /// A segment of the script as it goes on the wire.
    pub fn live(&mut self, script: &Segment) -> (Segment, Vec<u8>) {
        let syn = script.flags & SYN != 0;
        if syn && (self.remote_isn.is_none() || self.fresh && script.flags & ACK != 0) {
            self.remote_isn = Some(script.seq);
        }
        if syn && script.flags & ACK == 0 {
            self.fresh = true;
        }
        let local = self.local_base.unwrap_or(0);
        let mut live = script.clone();
        live.seq = script.seq.wrapping_add(self.remote_base);
        // An ACK without a number is one of our SYN.
        let none = (script.flags & ACK != 0 && self.local_base.is_some()).then_some(0);
        live.ack = script.ack.or(none).map(|ack| ack.wrapping_add(local));
        for option in live.options.iter_mut().flatten() {
            match option {
                TcpOption::Sack(blocks) => {
                    for (left, right) in blocks {
                        *left = left.wrapping_add(local);
                        *right = right.wrapping_add(local);
                    }
                }
                TcpOption::Timestamp(_, echo) if *echo != 0 => *echo = self.live_ts(*echo),
                _ => {}
            }
        }
        let first = script.seq.wrapping_add(u32::from(syn));
        let begin = self.remote_isn.map_or(1, |isn| isn.wrapping_add(1));
        let payload = octets(first.wrapping_sub(begin).into(), script.len as usize);
        (live, payload)
    }

    fn live_ts(&self, script: u32) -> u32 {
        match (self.ts.get(&script), self.first_ts) {
            (Some(live), _) => *live,
            (None, Some((first, live))) => script.wrapping_sub(first).wrapping_add(live),
            (None, None) => script,
        }
    }

    /// A segment of the stack in the script's numbers; `wanted` is the expected one, from which
    /// initial numbers are learned.
    pub fn script(&mut self, live: &Segment, wanted: &Segment, now_us: u64) -> Segment {
        let syn = live.flags & SYN != 0 && wanted.flags & SYN != 0;
        let base = live.seq.wrapping_sub(wanted.seq);
        if syn && self.local_base != Some(base) && (self.local_base.is_none() || self.fresh) {
            self.local_base = Some(base);
            self.local_isn = Some(wanted.seq);
            self.first_ts = None;
            self.ts.clear();
            if let Some(ack) = live.ack {
                self.remote_isn = Some(ack.wrapping_sub(1).wrapping_sub(self.remote_base));
            }
            self.fresh = live.flags & ACK == 0;
        }
        let mut segment = self.in_script(live);
        let wanted_ts = wanted.options.iter().flatten().find_map(timestamp);
        for option in segment.options.iter_mut().flatten() {
            if let TcpOption::Timestamp(value, _) = option
                && let Some((wanted_value, _)) = wanted_ts
            {
                if self.first_ts.is_none() {
                    self.first_ts = Some((wanted_value, *value));
                    self.first_ts_us = now_us;
                }
                self.ts.insert(wanted_value, *value);
                let (first, live) = self.first_ts.unwrap_or_default();
                *value = value.wrapping_sub(live).wrapping_add(first);
            }
        }
        segment
    }

    /// The same without learning, for messages.
    pub fn in_script(&self, live: &Segment) -> Segment {
        let mut segment = live.clone();
        segment.seq = live.seq.wrapping_sub(self.local_base.unwrap_or(0));
        segment.ack = live.ack.map(|ack| ack.wrapping_sub(self.remote_base));
        for option in segment.options.iter_mut().flatten() {
            if let TcpOption::Sack(blocks) = option {
                for (left, right) in blocks {
                    *left = left.wrapping_sub(self.remote_base);
                    *right = right.wrapping_sub(self.remote_base);
                }
            }
        }
        segment
    }

    /// Whether `payload` is what stands at its place of the stack's stream.
    pub fn payload_is_right(&self, segment: &Segment, payload: &[u8]) -> bool {
        let first = segment.seq.wrapping_add(u32::from(segment.flags & SYN != 0));
        let begin = self.local_isn.map_or(1, |isn| isn.wrapping_add(1));
        octets(first.wrapping_sub(begin).into(), payload.len()) == payload
    }
}

fn timestamp(option: &TcpOption) -> Option<(u32, u32)> {
    match option {
        TcpOption::Timestamp(value, echo) => Some((*value, *echo)),
        _ => None,
    }
}

/// Compares a segment with the expected one, both in script numbers; says what differs.
pub fn differs(wanted: &Segment, actual: &Segment, how: Strictness) -> Option<String> {
    let mask = if how.push { u16::MAX } else { !PSH };
    if wanted.flags & mask != actual.flags & mask {
        return Some(format!("control bits {} not {}", flags(actual.flags), flags(wanted.flags)));
    }
    if wanted.seq != actual.seq {
        return Some(format!("sequence number {} not {}", actual.seq, wanted.seq));
    }
    if wanted.len != actual.len {
        return Some(format!("{} octets of payload not {}", actual.len, wanted.len));
    }
    if wanted.ack.is_some() && wanted.ack != actual.ack {
        let ack = actual.ack.map_or("none".into(), |ack| ack.to_string());
        return Some(format!("acknowledgement {ack} not {}", wanted.ack.unwrap_or(0)));
    }
    if how.windows && wanted.window.is_some() && wanted.window != actual.window {
        let (actual, wanted) = (actual.window.unwrap_or(0), wanted.window.unwrap_or(0));
        return Some(format!("window {actual} not {wanted}"));
    }
    if wanted.urgent.unwrap_or(0) != actual.urgent.unwrap_or(0) {
        return Some(format!("urgent pointer {:?} not {:?}", actual.urgent, wanted.urgent));
    }
    options_differ(wanted, actual, how)
}

/// Options count as a set: their order and padding are nobody's business (RFC 9293 MUST-64 wants
/// any order understood).
fn options_differ(wanted: &Segment, actual: &Segment, how: Strictness) -> Option<String> {
    let meant = |option: &&TcpOption| !matches!(option, TcpOption::Nop | TcpOption::End);
    let wanted = wanted.options.as_ref()?;
    let actual: Vec<&TcpOption> = actual.options.iter().flatten().filter(meant).collect();
    for option in wanted.iter().filter(meant) {
        let there = actual.iter().any(|other| option_agrees(option, other, how));
        if !there {
            return Some(format!("options without `{}`", one_option(option)));
        }
    }
    if actual.len() > wanted.iter().filter(meant).count() {
        let more = actual
            .iter()
            .find(|option| !wanted.iter().any(|other| option_agrees(other, option, how)));
        return Some(format!(
            "options with `{}`",
            more.map_or("one twice".into(), |o| one_option(o))
        ));
    }
    None
}

fn option_agrees(wanted: &TcpOption, actual: &TcpOption, how: Strictness) -> bool {
    match (wanted, actual) {
        (TcpOption::WindowScale(_), TcpOption::WindowScale(_)) if !how.windows => true,
        (TcpOption::Timestamp(value, echo), TcpOption::Timestamp(other, other_echo)) => {
            let off = u64::from((value.wrapping_sub(*other) as i32).unsigned_abs());
            echo == other_echo
                && (how.ts_tick_us == 0 || off * how.ts_tick_us <= how.tolerance_us.max(1000))
        }
        _ => wanted == actual,
    }
}

/// Control bits as scripts write them.
pub fn flags(flags: u16) -> String {
    let bits =
        [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (32, 'U'), (64, 'E'), (128, 'W'), (256, 'A')];
    let mut text: String =
        bits.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, c)| *c).collect();
    if flags & ACK != 0 {
        text.push('.');
    }
    if text.is_empty() { "-".into() } else { text }
}

fn one_option(option: &TcpOption) -> String {
    match option {
        TcpOption::End => "eol".into(),
        TcpOption::Nop => "nop".into(),
        TcpOption::Mss(mss) => format!("mss {mss}"),
        TcpOption::WindowScale(shift) => format!("wscale {shift}"),
        TcpOption::SackPermitted => "sackOK".into(),
        TcpOption::Sack(blocks) => {
            let blocks: Vec<String> = blocks.iter().map(|(l, r)| format!("{l}:{r}")).collect();
            format!("sack {}", blocks.join(" "))
        }
        TcpOption::Timestamp(value, echo) => format!("TS val {value} ecr {echo}"),
        TcpOption::Other(kind, data) => {
            let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("kind {kind} {hex}")
        }
    }
}

/// A segment as scripts write it.
pub fn text(segment: &Segment) -> String {
    let end = segment.seq.wrapping_add(segment.len);
    let mut text = format!("{} {}:{end}({})", flags(segment.flags), segment.seq, segment.len);
    let mut add = |name: &str, value: Option<u32>| {
        if let Some(value) = value {
            text.push_str(&format!(" {name} {value}"));
        }
    };
    add("ack", segment.ack);
    add("win", segment.window.map(u32::from));
    add("urg", segment.urgent.map(u32::from));
    match &segment.options {
        None => text.push_str(" <...>"),
        Some(options) if options.is_empty() => {}
        Some(options) => {
            let options: Vec<String> = options.iter().map(one_option).collect();
            text.push_str(&format!(" <{}>", options.join(",")));
        }
    }
    text
}
