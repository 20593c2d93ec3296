//! Two ends on a bad link, in virtual time, from a seed.
use super::{End, Recorder, tuple};
use ix_random::Rng;
use ix_tcp::{Config, State, Tcb, TcpEvent};
use ix_wire::{Seq, TcpHeader};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What the link does to packets; chances are in parts of a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub delay_us: u64,
    /// Longest further delay, by chance. The order stays, as on a path with one queue.
    pub jitter_us: u64,
    pub loss: u32,
    pub reorder: u32,
    pub reorder_us: u64,
    pub duplicate: u32,
    /// Bytes per second; 0: no limit.
    pub bytes_per_ms: u64,
    /// Longest queueing delay; beyond it the link drops packets.
    pub queue_us: u64,
    /// Queueing delay from which on it marks ECN-capable packets; 0: never.
    pub mark_us: u64,
    /// Once in this time the link holds everything back for up to `stall_us`, as a busy machine on
    /// the path does, and then forwards it at once; 0: never.
    pub stall_every_us: u64,
    pub stall_us: u64,
}

impl Link {
    pub const GOOD: Link = Link {
        delay_us: 50,
        jitter_us: 0,
        loss: 0,
        reorder: 0,
        reorder_us: 0,
        duplicate: 0,
        bytes_per_ms: 0,
        queue_us: 0,
        mark_us: 0,
        stall_every_us: 0,
        stall_us: 0,
    };

    /// The arrival time, on a link that stalls, of a packet that would arrive at `at_us`.
    fn after_stall(&self, at_us: u64) -> u64 {
        let Some(which) = at_us.checked_div(self.stall_every_us) else { return at_us };
        let began_us = which * self.stall_every_us;
        // The same in both directions, because one machine forwards both.
        let long_us = Rng::new(which).below(self.stall_us + 1);
        at_us.max(began_us + long_us)
    }
}

type Packet = (TcpHeader, Vec<u8>, u8);

/// Two ends, A and B, and packets on the way.
pub struct Net {
    pub ends: [End; 2],
    pub links: [Link; 2],
    pub random: Rng,
    pub now_us: u64,
    busy_until_us: [u64; 2],
    last_arrival_us: [u64; 2],
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    packets: Vec<Option<Packet>>,
    order: u64,
    /// Bytes that each end still wants to send, and what it has received.
    pub to_send: [Vec<u8>; 2],
    sent_at: [usize; 2],
    pub received: [Vec<u8>; 2],
    /// Shut down after the last byte.
    pub shutdown: [bool; 2],
    /// How much of what waits the application reads each time; 0: nothing.
    pub reads: [bool; 2],
    pub transmitted: [u64; 2],
    /// Packets that each direction's queue marked and dropped, and its longest delay.
    pub marks: [u64; 2],
    pub overflows: [u64; 2],
    /// Packets that were lost by chance.
    pub losses: [u64; 2],
    pub longest_us: [u64; 2],
    /// How late timers run at most, as on a busy machine.
    pub late_us: u64,
    /// Each end says that a message ends after this many bytes of its stream; 0: never. No segment
    /// may hold bytes of two.
    pub message_bytes: usize,
    first: [Seq; 2],
}

impl Net {
    /// A connects to B, with first sequence numbers `iss`.
    pub fn connect(cfgs: [Config; 2], link: Link, seed: u64, iss: [Seq; 2], now_us: u64) -> Net {
        let a = Tcb::connect(&cfgs[0], tuple(1, 2), iss[0], 11, now_us);
        let [cfg_a, cfg_b] = cfgs;
        // B is made when the SYN arrives; until then there is a stand-in.
        let b = Tcb::connect(&cfg_b, tuple(2, 1), iss[1], 22, now_us);
        let mut net = Net::between(
            [End::new(cfg_a, a, now_us), End::new(cfg_b, b, now_us)],
            [link; 2],
            seed,
            now_us,
        );
        net.first = iss.map(|iss| iss + 1);
        net.ends[0].output();
        let syn = net.ends[0].out.sent[0].seg.header(&tuple(1, 2));
        let cfg = net.ends[1].cfg.clone();
        net.ends[1].tcb = Tcb::accept(&cfg, tuple(2, 1), &syn, iss[1], 22, now_us);
        net.ends[1].out = Recorder::default();
        net.ends[0].out.sent.clear();
        net.cycle(1);
        net
    }

    pub fn between(ends: [End; 2], links: [Link; 2], seed: u64, now_us: u64) -> Net {
        Net {
            ends,
            links,
            random: Rng::new(seed),
            now_us,
            busy_until_us: [0; 2],
            last_arrival_us: [0; 2],
            queue: BinaryHeap::new(),
            packets: Vec::new(),
            order: 0,
            to_send: [Vec::new(), Vec::new()],
            sent_at: [0; 2],
            received: [Vec::new(), Vec::new()],
            shutdown: [false; 2],
            reads: [true; 2],
            transmitted: [0; 2],
            marks: [0; 2],
            overflows: [0; 2],
            losses: [0; 2],
            longest_us: [0; 2],
            late_us: 0,
            message_bytes: 0,
            first: [Seq(0); 2],
        }
    }

    /// Puts what `from` has sent on the link.
    pub fn collect(&mut self, from: usize) {
        let link = self.links[from];
        while let Some(sent) = self.ends[from].out.sent.pop_front() {
            self.transmitted[from] += 1;
            if self.message_bytes > 0 && !sent.payload.is_empty() {
                let place = (sent.seg.seq - self.first[from]) as usize;
                let of = |place: usize| place / self.message_bytes;
                assert_eq!(of(place), of(place + sent.payload.len() - 1), "{:?}", sent.seg);
            }
            let tuple = *self.ends[from].tcb.tuple();
            let size = 60 + sent.payload.len() as u64;
            let mut at_us = self.now_us + link.delay_us;
            let mut ecn = sent.seg.ecn;
            if let Some(transmission_us) = (size * 1000).checked_div(link.bytes_per_ms) {
                let start = self.busy_until_us[from].max(self.now_us);
                if start - self.now_us > link.queue_us {
                    self.overflows[from] += 1;
                    continue;
                }
                if link.mark_us > 0 && start - self.now_us > link.mark_us && ecn != 0 {
                    ecn = 3;
                    self.marks[from] += 1;
                }
                self.longest_us[from] = self.longest_us[from].max(start - self.now_us);
                self.busy_until_us[from] = start + transmission_us;
                at_us = self.busy_until_us[from] + link.delay_us;
            }
            if self.random.per_mille(link.loss) {
                self.losses[from] += 1;
                continue;
            }
            if link.jitter_us > 0 {
                at_us = (at_us + self.random.below(link.jitter_us)).max(self.last_arrival_us[from]);
                self.last_arrival_us[from] = at_us;
            }
            if self.random.per_mille(link.reorder) {
                at_us += self.random.below(link.reorder_us);
            }
            let copies = 1 + usize::from(self.random.per_mille(link.duplicate));
            for copy in 0..copies {
                let packet = (sent.seg.header(&tuple), sent.payload.clone(), ecn);
                let late_us = if copy == 0 { 0 } else { self.random.below(link.reorder_us + 1) };
                let arrives_us = link.after_stall(at_us + late_us);
                self.queue.push(Reverse((arrives_us, self.order, self.packets.len())));
                self.order += 1;
                self.packets.push(Some(packet));
            }
        }
    }

    /// The end of a cycle of one end: the application reads and writes, then the stack sends.
    pub fn cycle(&mut self, who: usize) {
        let end = &mut self.ends[who];
        end.now_us = self.now_us;
        if self.reads[who] {
            let read = end.read_all();
            self.received[who].extend(read);
        }
        if end.state().sends() && end.state() != State::SynSent && end.state() != State::SynReceived
        {
            loop {
                let rest = &self.to_send[who][self.sent_at[who]..];
                let left = self.sent_at[who].checked_rem(self.message_bytes);
                let message = left.map_or(rest.len(), |begun| self.message_bytes - begun);
                let sent = end.send(&rest[..message.min(rest.len())]);
                self.sent_at[who] += sent;
                if left.is_none() || sent == 0 || sent < message {
                    break;
                }
                end.tcb.end_message();
            }
            if self.shutdown[who] && self.sent_at[who] == self.to_send[who].len() {
                end.shutdown();
            }
        }
        end.output();
        self.collect(who);
    }

    /// When the next timer of an end runs.
    fn expires_us(&self, who: usize) -> u64 {
        let at_us = self.ends[who].tcb.deadline();
        match self.late_us {
            0 => at_us,
            late_us => at_us.saturating_add(Rng::new(at_us).below(late_us + 1)),
        }
    }

    /// Advances time to the next packet or timer. False: nothing will ever happen again.
    pub fn step(&mut self) -> bool {
        let packet_at = self.queue.peek().map_or(u64::MAX, |Reverse((at_us, _, _))| *at_us);
        let timers = [0, 1].map(|who| self.expires_us(who));
        let next = packet_at.min(timers[0]).min(timers[1]);
        if next == u64::MAX {
            return false;
        }
        self.now_us = self.now_us.max(next);
        if packet_at == next {
            let Some(Reverse((_, _, index))) = self.queue.pop() else { return false };
            let Some((hdr, payload, ecn)) = self.packets[index].take() else { return true };
            let to = usize::from(hdr.dst_port == self.ends[1].tcb.tuple().local_port);
            self.ends[to].now_us = self.now_us;
            self.ends[to].segment_with(&hdr, &payload, ecn);
            self.cycle(to);
            return true;
        }
        for who in [0, 1] {
            if timers[who] == next {
                let end = &mut self.ends[who];
                end.now_us = self.now_us;
                end.tcb.timer(&end.cfg, end.now_us, &mut end.out);
                self.cycle(who);
            }
        }
        true
    }

    /// Runs until `done`, at most `limit_us` of virtual time.
    pub fn run(&mut self, limit_us: u64, mut done: impl FnMut(&Net) -> bool) {
        let end_us = self.now_us + limit_us;
        let mut steps = 0u64;
        while !done(self) {
            steps += 1;
            assert!(self.step(), "deadlock: {}", self.describe());
            assert!(self.now_us <= end_us, "too slow: {}", self.describe());
            assert!(steps < 5_000_000, "livelock: {}", self.describe());
        }
    }

    /// Sends both streams, shuts both down, and checks that all arrived.
    pub fn transfer(&mut self, streams: [Vec<u8>; 2], limit_us: u64) {
        self.to_send = streams;
        self.shutdown = [true; 2];
        for who in [0, 1] {
            self.cycle(who);
        }
        self.run(limit_us, |net| {
            [0, 1].iter().all(|&who| net.ends[who].said(TcpEvent::Eof))
                && net.ends.iter().all(|end| end.state() >= State::TimeWait)
        });
        for who in [0, 1] {
            assert!(self.received[1 - who] == self.to_send[who], "stream {who} differs");
            assert_eq!(self.ends[who].out.stream.len(), 0);
            self.ends[who].check_no_leak();
        }
    }

    pub fn describe(&self) -> String {
        let one = |who: usize| {
            let end = &self.ends[who];
            format!(
                "{:?} sent {}/{} got {} deadline {} {:?}",
                end.state(),
                self.sent_at[who],
                self.to_send[who].len(),
                self.received[who].len(),
                end.tcb.deadline().wrapping_sub(self.now_us) as i64,
                end.tcb.info(&end.cfg),
            )
        };
        format!("at {} µs\n  A {}\n  B {}", self.now_us, one(0), one(1))
    }
}
