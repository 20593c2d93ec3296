//! One end of a connection, as an observer knows it who sees all that it sends and all that reaches
//! it.
//!
//! Positions are 64 bits wide and count from the end's initial sequence number, so that nothing
//! here wraps.
use super::lives::{Lives, State};
use super::segment::{ACK, FIN, RST, SYN, Segment};
use std::collections::BTreeMap;

/// Octets of each stream that are kept, to compare retransmissions.
const KEPT_BYTES: usize = 128 << 10;

/// What a SYN-ACK says about its sender.
#[derive(Clone, Copy, Debug)]
struct Offer {
    iss: u32,
    mss: Option<u16>,
    shift: Option<u8>,
}

/// What is known about an end.
#[derive(Debug, Default)]
pub struct EndState {
    /// Initial sequence number, once it is certain.
    pub iss: Option<u32>,
    /// The SYN-ACKs that it has sent: with cookies there may be several.
    offered: Vec<Offer>,
    active: bool,
    /// Position after the last octet that it ever sent.
    pub snd_max: i64,
    /// Position of its FIN.
    pub fin: Option<i64>,
    /// Octets that it has sent, from position 1 on.
    stream: Vec<u8>,
    /// Highest acknowledgement, and furthest right edge of a window, that reached it.
    heard_ack: i64,
    heard_edge: i64,
    /// Ranges of the other end's octets that reached it: starts and ends.
    heard: BTreeMap<i64, i64>,
    heard_end: bool,
    /// Whether the other end's FIN reached it before it had sent its own.
    heard_end_first: bool,
    /// The highest acknowledgement that it sent, and the furthest window edge.
    acked: i64,
    edge: i64,
    /// The options of its SYN.
    pub mss: Option<u16>,
    pub shift: Option<u8>,
    last_stamp: Option<u32>,
    /// The latest of the other end's timestamps that reached it.
    heard_stamp: Option<u32>,
    /// Whether it has sent a reset, or one reached it.
    reset: bool,
    heard_reset: bool,
    /// Nobody can tell which connection of this name a segment belongs to: its segments are not
    /// judged.
    pub doubtful: bool,
    /// Whether it has sent anything but SYNs.
    spoke: bool,
    pub state: State,
}

fn later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl EndState {
    /// The position of a sequence number, which must be near `close`.
    fn position(&self, number: u32, close: i64) -> Option<i64> {
        let iss = self.iss?;
        let near = iss.wrapping_add(close as u32);
        Some(close + i64::from(number.wrapping_sub(near) as i32))
    }

    /// It opens a connection with the segment's sequence number.
    pub fn opens(&mut self, segment: &Segment) {
        self.active = true;
        self.iss = Some(segment.seq);
        (self.mss, self.shift) = (segment.mss, segment.shift);
        self.snd_max = self.snd_max.max(1);
    }

    /// It replies to a SYN.
    pub fn offers(&mut self, segment: &Segment) {
        let Segment { seq: iss, mss, shift, .. } = *segment;
        if self.offered.iter().all(|offer| offer.iss != iss) {
            self.offered.push(Offer { iss, mss, shift });
        }
        self.snd_max = self.snd_max.max(1);
        if self.iss.is_none() {
            self.takes(Offer { iss, mss, shift });
        }
    }

    fn takes(&mut self, offer: Offer) {
        (self.iss, self.mss, self.shift) = (Some(offer.iss), offer.mss, offer.shift);
    }

    /// Tells which of the offered initial sequence numbers it goes on from.
    pub fn settles(&mut self, number: u32) {
        if !self.active && self.offered.len() > 1 && self.snd_max <= 1 {
            let distance = |offer: &Offer| number.wrapping_sub(offer.iss);
            let nearest = self.offered.iter().copied().min_by_key(distance);
            nearest.into_iter().for_each(|offer| self.takes(offer));
        }
    }

    /// A late copy of the SYN, or of the first segment while its cookie is valid, makes a new
    /// connection of one that has ended. From outside nobody can tell which of the two a segment
    /// belongs to.
    fn may_begin_anew(&mut self, start: i64, number: u32) {
        let ended = self.reset || self.heard_reset;
        let over = ended || matches!(self.state, State::Closed | State::TimeWait);
        let is_first = |offer: &Offer| offer.iss.wrapping_add(1) == number;
        let begins = start == 1 || self.offered.iter().any(is_first);
        self.doubtful |= !self.active && over && begins;
    }

    /// The end of the contiguous part of what reached it, in the other end's positions.
    fn rcv_nxt(&self) -> i64 {
        match self.heard.first_key_value() {
            Some((&start, &end)) if start <= 0 => end,
            _ => 0,
        }
    }

    fn hears(&mut self, mut start: i64, mut end: i64) {
        if start >= end {
            return;
        }
        while let Some((&s, &e)) = self.heard.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.heard.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.heard.insert(start, end);
    }

    /// A segment of the other end reaches it.
    pub fn receives(&mut self, peer: &EndState, segment: &Segment) {
        if segment.has(RST) {
            // Whether it obeys the reset is not checked; what it sends afterwards is judged all the
            // same.
            self.heard_reset = true;
            return;
        }
        let scaled = self.shift.is_some() && peer.shift.is_some() && !segment.has(SYN);
        let shift = if scaled { peer.shift.unwrap_or(0) } else { 0 };
        if segment.has(ACK) {
            self.settles(segment.ack.wrapping_sub(1));
            if let Some(ack) = self.position(segment.ack, self.snd_max)
                && (0..=self.snd_max).contains(&ack)
            {
                self.heard_ack = self.heard_ack.max(ack);
                let edge = ack + (i64::from(segment.window) << shift);
                self.heard_edge = self.heard_edge.max(edge);
            }
        }
        if let Some((stamp, _)) = segment.timestamps
            && self.heard_stamp.is_none_or(|heard| later(stamp, heard))
        {
            self.heard_stamp = Some(stamp);
        }
        // With several offers, only its number tells which SYN-ACK this is.
        let start =
            if segment.has(SYN) { Some(0) } else { peer.position(segment.seq, peer.snd_max) };
        let Some(start) = start else { return };
        let len = segment.payload.len() as i64;
        let extra = i64::from(segment.has(SYN)) + i64::from(segment.has(FIN));
        if start >= 0 && start + len + extra <= peer.snd_max {
            self.hears(start, start + len + extra);
        }
        if peer.fin.is_some_and(|fin| self.rcv_nxt() > fin) && !self.heard_end {
            self.heard_end = true;
            self.heard_end_first = self.fin.is_none();
        }
    }

    /// It sends a segment that is neither SYN nor RST. Everything that the segment says must be
    /// true, and everything that it does must be allowed.
    pub fn sends(&mut self, peer: &EndState, segment: &Segment) -> Result<(), String> {
        self.settles(segment.seq.wrapping_sub(1));
        self.spoke = true;
        // A segment of an earlier connection of the same name, before this one has begun here.
        let Some(start) = self.position(segment.seq, self.snd_max) else { return Ok(()) };
        if !segment.has(ACK) {
            return Err("no ACK on a synchronized connection".into());
        }
        let end = start + segment.payload.len() as i64;
        self.may_begin_anew(start, segment.seq);
        if self.doubtful {
            self.snd_max = self.snd_max.max(end + i64::from(segment.has(FIN)));
            return Ok(());
        }
        // Data may be lost within its host (while ARP waits for a reply, only one packet is kept).
        // But the window must have allowed that data. A FIN may follow it.
        let furthest = self.snd_max.max(self.heard_edge + 1);
        if start < 0 || start > furthest {
            return Err(format!("sequence {start} outside of 0..={furthest}"));
        }
        self.checks_data(peer, segment, start, end)?;
        self.snd_max = self.snd_max.max(end + i64::from(segment.has(FIN)));
        self.checks_acknowledgement(peer, segment)?;
        self.checks_stamps(segment)
    }

    fn checks_data(
        &mut self,
        peer: &EndState,
        segment: &Segment,
        start: i64,
        end: i64,
    ) -> Result<(), String> {
        let len = end - start;
        // RFC 9293 section 3.7.1.
        let default_mss = if segment.is_v6() { 1220 } else { 536 };
        if len > i64::from(peer.mss.unwrap_or(default_mss)) {
            return Err(format!("{len} octets for a peer of MSS {:?}", peer.mss));
        }
        // One octet probes a closed window (RFC 9293 section 3.8.6.1).
        let probes = len == 1 && start == self.heard_edge;
        if len > 0 && end > self.heard_edge && !probes {
            return Err(format!("data to {end} beyond the window's edge {}", self.heard_edge));
        }
        if len > 0 && self.fin.is_some_and(|fin| end > fin) {
            return Err(format!("data to {end} behind the FIN at {:?}", self.fin));
        }
        if segment.has(FIN) && self.fin.replace(end).is_some_and(|fin| fin != end) {
            return Err(format!("a second FIN at {end}"));
        }
        for (at, byte) in (start - 1..).zip(segment.payload) {
            let at = at as usize;
            match self.stream.get(at) {
                Some(sent) if sent != byte => {
                    return Err(format!("octet {at} is another one when it is sent again"));
                }
                None if at == self.stream.len() && at < KEPT_BYTES => self.stream.push(*byte),
                _ => {}
            }
        }
        Ok(())
    }

    fn checks_acknowledgement(&mut self, peer: &EndState, segment: &Segment) -> Result<(), String> {
        let Some(ack) = peer.position(segment.ack, peer.snd_max) else { return Ok(()) };
        let nxt = self.rcv_nxt();
        if ack > nxt {
            return Err(format!("acknowledges {ack}, but only {nxt} arrived"));
        }
        if ack < self.acked {
            return Err(format!("acknowledges {ack} after {}", self.acked));
        }
        self.acked = ack;
        let scaled = self.shift.is_some() && peer.shift.is_some();
        let shift = if scaled { self.shift.unwrap_or(0) } else { 0 };
        let edge = ack + (i64::from(segment.window) << shift);
        // Rounding to the unit of the scale does not count as shrinking.
        if edge + (1 << shift) <= self.edge {
            return Err(format!("the window's edge goes back from {} to {edge}", self.edge));
        }
        self.edge = self.edge.max(edge);
        for (index, &(left, right)) in segment.sack.iter().enumerate() {
            let place = |number| peer.position(number, ack);
            let (Some(left), Some(right)) = (place(left), place(right)) else { continue };
            let held = self.heard.range(..=left).next_back();
            // The first block may report a duplicate (RFC 2883).
            let duplicate = index == 0 && right <= nxt;
            if left >= right || held.is_none_or(|(_, &end)| right > end) {
                return Err(format!("SACK {left}..{right}, which did not arrive"));
            }
            if right <= ack && !duplicate {
                return Err(format!("SACK {left}..{right} is acknowledged already"));
            }
        }
        Ok(())
    }

    fn checks_stamps(&mut self, segment: &Segment) -> Result<(), String> {
        let Some((stamp, echo)) = segment.timestamps else { return Ok(()) };
        if self.last_stamp.is_some_and(|last| later(last, stamp)) {
            return Err(format!("TSval {stamp} after {:?}", self.last_stamp));
        }
        self.last_stamp = Some(stamp);
        if self.heard_stamp.is_none_or(|heard| later(echo, heard)) {
            return Err(format!(
                "TSecr {echo}, but the latest that came is {:?}",
                self.heard_stamp
            ));
        }
        Ok(())
    }

    /// It resets the connection, or the other end does.
    pub fn resets(&mut self) {
        self.reset = true;
    }

    /// No segment will come: counts the states that only time ends.
    pub fn leaves(&self, lives: &mut Lives) {
        if matches!(self.state, State::SynSent | State::SynReceived | State::TimeWait) {
            lives.went(self.state, State::Closed);
        }
    }

    /// The state that it should be in.
    pub fn state_now(&self) -> State {
        if self.reset || (self.iss.is_none() && self.offered.is_empty()) {
            return State::Closed;
        }
        let meets = self.active && !self.offered.is_empty();
        if self.heard_ack < 1 {
            return if self.active && !meets { State::SynSent } else { State::SynReceived };
        }
        // Its next segment tells whether its application wanted to end the connection before.
        if meets && !self.spoke && !self.heard_end {
            return State::SynReceived;
        }
        let fin_acked = self.fin.is_some_and(|fin| self.heard_ack > fin);
        match (self.fin.is_some(), fin_acked, self.heard_end) {
            (false, _, false) => State::Established,
            (false, _, true) => State::CloseWait,
            (true, false, false) => State::FinWait1,
            (true, true, false) => State::FinWait2,
            (true, false, true) if self.heard_end_first => State::LastAck,
            (true, true, true) if self.heard_end_first => State::Closed,
            (true, false, true) => State::Closing,
            (true, true, true) => State::TimeWait,
        }
    }
}
