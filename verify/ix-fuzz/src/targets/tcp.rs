//! Two connected TCP endpoints, while the input loses, repeats, delays and changes packets in
//! flight. Applications check every octet, an audit checks every sent segment, and at the end every
//! buffer must be back.
use crate::bytes::Bytes;
use ix_tcp::{Config, CongestionControl, PathError, State};
use ix_tcp_rig::{Endpoint, Node, Segment, bytes_at, reversed, tuple};
use ix_wire::{Seq, TcpFlags};
use std::collections::VecDeque;

const SEEDS: [u32; 2] = [1, 2];
/// Only a storm puts more packets than this in flight.
const IN_FLIGHT_MAX: usize = 10_000;

struct Pair {
    ends: [Endpoint; 2],
    /// Packets in flight to each end.
    wires: [VecDeque<Segment>; 2],
    now_us: u64,
}

/// Runs the input, then lets both ends finish.
pub fn run(input: &[u8]) {
    play(input, |_| {});
}

/// Runs the input; `see` is called with the states of the ends.
fn play(input: &[u8], mut see: impl FnMut(State)) {
    let mut bytes = Bytes::new(input);
    let mut pair = Pair::new(&mut bytes);
    while !bytes.is_empty() {
        pair.step(&mut bytes);
        pair.collect();
        pair.ends.iter().for_each(|end| see(end.state()));
    }
    pair.ends.iter_mut().for_each(Endpoint::finish);
}

fn config(bytes: &mut Bytes<'_>) -> Config {
    let marks = bytes.u8();
    let mut cfg = Config::default();
    let kinds = [CongestionControl::Cubic, CongestionControl::NewReno];
    cfg.congestion = kinds[usize::from(marks & 1)];
    if marks & 2 != 0 {
        cfg.rcv_buffers_max = 8;
    }
    cfg
}

impl Pair {
    fn new(bytes: &mut Bytes<'_>) -> Pair {
        let start_us = 1 + bytes.scaled(50);
        let numbers = [Seq(bytes.u32()), Seq(bytes.u32())];
        let (cfgs, both) = ([config(bytes), config(bytes)], bytes.u8() & 7 == 7);
        let [a, b] = cfgs;
        let other = reversed(&tuple());
        let first = Endpoint::connect(a, tuple(), numbers[0], SEEDS[0], SEEDS[1], start_us);
        let second = match both {
            true => Endpoint::connect(b, other, numbers[1], SEEDS[1], SEEDS[0], start_us),
            false => Endpoint::listen(b, other, numbers[1], SEEDS[1], SEEDS[0]),
        };
        let mut pair = Pair { ends: [first, second], wires: Default::default(), now_us: start_us };
        for end in &mut pair.ends {
            end.out.audit.hostile_peer = true;
            end.output(start_us);
        }
        pair.collect();
        pair
    }

    fn collect(&mut self) {
        for from in 0..2 {
            let sent = self.ends[from].take_sent();
            self.wires[1 - from].extend(sent);
            assert!(self.wires[1 - from].len() < IN_FLIGHT_MAX, "a storm of segments");
        }
    }

    /// One event.
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let end = usize::from(what >> 7);
        match what & 31 {
            // Mostly the network works.
            0..=11 => self.deliver(end, 0),
            12 => self.deliver(end, usize::from(bytes.u8())),
            13 => drop(self.wires[end].pop_front()),
            14 => {
                let copy = self.wires[end].front().cloned();
                self.wires[end].extend(copy);
            }
            15..=18 => {
                if let Some(mut segment) = self.wires[end].front().cloned() {
                    change(&mut segment, SEEDS[1 - end], bytes);
                    self.arrive(end, &segment);
                }
            }
            19 | 20 => self.wait(bytes.scaled(27)),
            21 | 22 => self.wait(bytes.scaled(16)),
            other => self.call(end, other, bytes),
        }
    }

    fn call(&mut self, end: usize, what: u8, bytes: &mut Bytes<'_>) {
        let now_us = self.now_us;
        let amount = bytes.scaled(16);
        let at = &mut self.ends[end];
        let Some(tcb) = &at.tcb else { return };
        if tcb.is_dead() {
            return;
        }
        let open = matches!(tcb.state(), State::Established | State::CloseWait) && !at.out.shut;
        match what {
            23 | 24 if open => drop(at.append(amount)),
            25 | 26 => drop(at.read(amount)),
            27 if open => at.shutdown(now_us),
            28 if !at.out.closed && amount & 3 == 0 => at.close(now_us),
            29 => {
                let seq = at.out.audit.snd_max() - (amount as u32);
                let error = match amount & 3 {
                    0 => PathError::Hard,
                    1 => PathError::Soft,
                    _ => PathError::FragNeeded { mtu: bytes.u16() },
                };
                at.with(|tcb, cfg, out| tcb.icmp_error(cfg, now_us, error, Some(seq), out));
            }
            30 => at.out.tx_fails = if amount & 1 == 0 { 0 } else { 500 },
            _ => {}
        }
        turn(at, now_us);
    }

    fn deliver(&mut self, end: usize, at: usize) {
        let at = at.min(self.wires[end].len().saturating_sub(1));
        if let Some(segment) = self.wires[end].remove(at) {
            self.arrive(end, &segment);
        }
    }

    fn arrive(&mut self, end: usize, segment: &Segment) {
        self.now_us += 10;
        self.ends[end].arrive(segment, self.now_us);
        turn(&mut self.ends[end], self.now_us);
    }

    /// Time passes, and every timer fires on time.
    fn wait(&mut self, us: u64) {
        let until_us = self.now_us.saturating_add(us);
        for _ in 0..1_000 {
            let next_us = self.ends.iter().map(deadline_us).min().unwrap_or(u64::MAX);
            if next_us > until_us {
                break;
            }
            self.now_us = self.now_us.max(next_us);
            self.ends.iter_mut().for_each(|end| turn(end, self.now_us));
            self.collect();
        }
        self.now_us = until_us;
        self.ends.iter_mut().for_each(|end| turn(end, until_us));
    }
}

fn deadline_us(end: &Endpoint) -> u64 {
    end.tcb.as_ref().map_or(u64::MAX, |tcb| tcb.deadline())
}

/// Timers that are due, and output. The application acts only as the input says.
fn turn(end: &mut Endpoint, now_us: u64) {
    // Timers must not re-arm themselves without end.
    for _ in 0..8 {
        if deadline_us(end) <= now_us {
            end.with(|tcb, cfg, out| tcb.timer(cfg, now_us, out));
        }
        end.output(now_us);
        if deadline_us(end) > now_us || end.out.tx_fails > 0 {
            return;
        }
    }
    panic!("a timer stays due at {now_us} µs");
}

/// Changes the header; the octets are those of the stream at the changed position, as if the sender
/// had meant it.
fn change(segment: &mut Segment, seed: u32, bytes: &mut Bytes<'_>) {
    let hdr = &mut segment.hdr;
    let near = bytes.scaled(32) as u32;
    match bytes.u8() % 12 {
        0 => hdr.seq += near,
        1 => hdr.seq = hdr.seq - near,
        2 => hdr.ack += near,
        3 => hdr.ack = hdr.ack - near,
        4 => hdr.window = near as u16,
        5 => hdr.flags = TcpFlags(near as u16 & 0x1ff),
        6 => hdr.flags = TcpFlags(hdr.flags.0 ^ (1 << (near % 9))),
        7 => hdr.options.timestamp = (near & 1 == 0).then(|| (bytes.u32(), bytes.u32())),
        8 => {
            if let Some((val, ecr)) = hdr.options.timestamp {
                hdr.options.timestamp = Some((val.wrapping_sub(near), ecr));
            }
        }
        9 => {
            let left = hdr.ack + near;
            hdr.options.sack.push(left, left + bytes.scaled(16) as u32);
        }
        10 => hdr.options.mss = Some(near as u16),
        _ => hdr.options.window_scale = Some(near as u8 & 15),
    }
    let len = match bytes.u8() {
        0..=199 => segment.payload.len(),
        _ => bytes.scaled(12) as usize,
    };
    let first = segment.hdr.seq + u32::from(segment.hdr.flags.contains(TcpFlags::SYN));
    segment.payload = bytes_at(seed, first, len.min(1460));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_tcp_rig::lab::STATES;

    /// A packet for a closed connection gets the reply of a closed port.
    #[test]
    fn the_corpus_reaches_every_state() {
        let mut seen = Vec::new();
        for input in crate::corpus("tcp") {
            play(&input, |state| seen.push(state));
        }
        let missing: Vec<_> = STATES.iter().filter(|state| !seen.contains(state)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
