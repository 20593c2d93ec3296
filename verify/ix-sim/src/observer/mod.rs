//! Watches the wire. Every segment that a host sends must be one that TCP allows, given all
//! segments that have reached the host.
//!
//! The observer shares no code with the stack: it parses frames itself. It sees what each host
//! sends before the network adds faults, and what arrives afterwards, so it knows what a host can
//! know. It checks RFC 9293 (sequence numbers, windows, FIN), RFC 7323 (scaling, timestamps), RFC
//! 2018 and RFC 2883 (SACK).
mod end_state;
mod lives;
pub mod segment;
#[cfg(test)]
mod tests;

pub use lives::{Lives, State, TRANSITIONS};

use end_state::EndState;
use segment::{ACK, End, FIN, RST, SYN, Segment};
use std::collections::HashMap;

/// A connection, from its first SYN until another one has the same addresses and ports.
#[derive(Debug, Default)]
struct Flow {
    ends: [EndState; 2],
    /// Initial sequence numbers of earlier connections of this name: hosts may still reply to their
    /// late SYNs.
    earlier: Vec<u32>,
    segments: u32,
    faults: u32,
}

/// The observer.
#[derive(Default)]
pub struct Observer {
    flows: HashMap<(End, End), Flow>,
    lives: Lives,
    violations: Vec<String>,
}

/// Addresses and ports of the connection, and the end that is the sender.
fn name(segment: &Segment) -> Option<((End, End), usize)> {
    let (from, to) = (segment.from?, segment.to?);
    Some(if from <= to { ((from, to), 0) } else { ((to, from), 1) })
}

impl Observer {
    /// An observer that has seen nothing yet.
    pub fn new() -> Observer {
        Observer::default()
    }

    /// A host sends a frame that meets this many faults.
    pub fn sent(&mut self, frame: &[u8], faults: u32) {
        let segment = match Segment::read(frame) {
            None => return,
            Some(Ok(segment)) => segment,
            Some(Err(what)) => return self.violations.push(format!("a host sends a wrong {what}")),
        };
        let Some((name, from)) = name(&segment) else { return };
        if segment.has(SYN) && !segment.has(ACK) {
            self.opens(name, from, segment.seq);
        }
        let Some(flow) = self.flows.get_mut(&name) else {
            if !segment.has(RST) {
                self.violations.push(format!("a segment without a connection: {segment:?}"));
            }
            return;
        };
        flow.segments += 1;
        flow.faults += faults;
        let answers = segment.ack.wrapping_sub(1);
        if segment.has(SYN | ACK) && flow.earlier.contains(&answers) {
            return;
        }
        let [first, second] = &mut flow.ends;
        let (end, peer) = if from == 0 { (first, second) } else { (second, first) };
        if let Err(what) = judge(end, peer, &segment) {
            let short = Segment { payload: &[], ..segment.clone() };
            let len = segment.payload.len();
            self.violations.push(format!("on the wire: {what}; {len} octets, {short:?}"));
        }
        self.look(name);
    }

    /// An end sends the first segment of a connection, or retransmits it.
    fn opens(&mut self, name: (End, End), from: usize, number: u32) {
        let flow = self.flows.entry(name).or_default();
        let [mine, other] = [&flow.ends[from], &flow.ends[1 - from]];
        // Simultaneous open: the other end has sent its SYN, and knows of no other segment.
        let meets = mine.iss.is_none() && other.state == State::SynSent;
        if flow.segments == 0 || meets || mine.iss == Some(number) {
            return;
        }
        let mut old = std::mem::take(flow);
        self.lives.ended(name.0.0.is_ipv6(), old.segments, old.faults);
        for end in &old.ends {
            end.leaves(&mut self.lives);
        }
        old.earlier.extend(old.ends.iter().filter_map(|end| end.iss));
        // The other end may still be in the earlier connection, and send for that one. Its late
        // segments are duplicates in this one. What applications receive is compared all the same.
        flow.ends.iter_mut().for_each(|end| end.doubtful = true);
        flow.earlier = old.earlier;
    }

    /// A frame arrives at a host.
    pub fn arrives(&mut self, frame: &[u8]) {
        // A host drops a damaged frame.
        let Some(Ok(segment)) = Segment::read(frame) else { return };
        let Some((name, from)) = name(&segment) else { return };
        let Some(flow) = self.flows.get_mut(&name) else { return };
        let [first, second] = &mut flow.ends;
        let (to, peer) = if from == 0 { (second, first) } else { (first, second) };
        to.receives(peer, &segment);
        self.look(name);
    }

    /// Counts the transitions of both ends.
    fn look(&mut self, name: (End, End)) {
        let Some(flow) = self.flows.get_mut(&name) else { return };
        for end in &mut flow.ends {
            let now = end.state_now();
            if now != end.state {
                self.lives.went(end.state, now);
                end.state = now;
            }
        }
    }

    /// Violations since the last call.
    pub fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    /// Statistics of all lives, once no host has a connection left.
    pub fn into_lives(mut self) -> Lives {
        for (name, flow) in &self.flows {
            self.lives.ended(name.0.0.is_ipv6(), flow.segments, flow.faults);
            flow.ends.iter().for_each(|end| end.leaves(&mut self.lives));
        }
        self.lives
    }
}

/// Checks a segment that an end sends against all that is known of both ends.
fn judge(end: &mut EndState, peer: &mut EndState, segment: &Segment) -> Result<(), String> {
    if segment.has(SYN) && segment.flags & (FIN | RST) != 0 {
        return Err("SYN together with FIN or RST".into());
    }
    if segment.has(RST) {
        end.resets();
        return Ok(());
    }
    if segment.has(SYN) && !segment.has(ACK) {
        end.opens(segment);
        return Ok(());
    }
    if segment.has(SYN) {
        end.offers(segment);
        return match peer.iss {
            Some(iss) if segment.ack == iss.wrapping_add(1) => Ok(()),
            _ => Err("a SYN-ACK that answers no SYN".into()),
        };
    }
    // The opener accepts one of several SYN-ACKs.
    peer.settles(segment.ack.wrapping_sub(1));
    end.sends(peer, segment)
}
