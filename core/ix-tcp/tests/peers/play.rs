//! Plays a conversation between two ends over a link with faults, in virtual time, and judges it.
use super::stack::{Opening, Stack};
use crate::support::pattern;
use ix_random::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What an application does.
#[derive(Clone, Copy, Debug)]
pub struct App {
    pub opens: Opening,
    /// Bytes that it sends.
    pub sends: usize,
    /// It closes only after the other end has.
    pub waits_for_end: bool,
    /// It resets the connection when it has got so many bytes.
    pub aborts_at: Option<usize>,
    /// It does not read before this time, counted from the begin.
    pub reads_from_us: u64,
}

impl App {
    pub const fn new(opens: Opening, sends: usize) -> App {
        App { opens, sends, waits_for_end: false, aborts_at: None, reads_from_us: 0 }
    }
}

/// The link; chances in parts of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub loss: u32,
    pub reorder: u32,
    pub duplicate: u32,
}

const DELAY_US: u64 = 5_000;
const BEGIN_US: u64 = 1_000_000;

/// A packet on the link: arrival time, number, receiver.
type UnderWay = Reverse<(u64, u64, usize, Vec<u8>)>;

pub struct Played<'a> {
    stacks: [&'a mut dyn Stack; 2],
    apps: [App; 2],
    weather: Weather,
    random: Rng,
    now_us: u64,
    under_way: BinaryHeap<UnderWay>,
    order: u64,
    data: [Vec<u8>; 2],
    sent: [usize; 2],
    got: [Vec<u8>; 2],
    closed: [bool; 2],
    aborted: [bool; 2],
}

impl<'a> Played<'a> {
    pub fn new(
        ours: &'a mut dyn Stack,
        theirs: &'a mut dyn Stack,
        apps: [App; 2],
        weather: Weather,
        seed: u64,
    ) -> Self {
        Played {
            stacks: [ours, theirs],
            apps,
            weather,
            random: Rng::new(seed),
            now_us: BEGIN_US,
            under_way: BinaryHeap::new(),
            order: 0,
            data: apps.map(|app| pattern(app.sends)),
            sent: [0; 2],
            got: [Vec::new(), Vec::new()],
            closed: [false; 2],
            aborted: [false; 2],
        }
    }

    /// Plays to the end, at most `limit_us`. Returns the reason if it fails.
    pub fn run(mut self, limit_us: u64) -> Result<(), String> {
        for end in [1, 0] {
            self.stacks[end].open(self.now_us, self.apps[end].opens);
        }
        let mut steps = 0;
        while !self.is_over() {
            // Twice: the application may wait for what its end does with the received packets.
            for end in [0, 1, 0, 1] {
                self.live(end);
                self.collect(end);
            }
            if self.is_over() {
                break;
            }
            let Some(next_us) = self.next_us() else { return Err(self.say("nothing will happen")) };
            // An end that asks for no time at all gets some, or time would stand still.
            self.now_us = next_us.max(self.now_us + u64::from(steps % 64 == 63));
            steps += 1;
            if self.now_us > BEGIN_US + limit_us {
                return Err(self.say("took too long"));
            }
            while self.under_way.peek().is_some_and(|Reverse(p)| p.0 <= self.now_us) {
                let Some(Reverse((_, _, to, packet))) = self.under_way.pop() else { break };
                self.stacks[to].input(self.now_us, &packet);
            }
        }
        self.judge()
    }

    fn next_us(&mut self) -> Option<u64> {
        let now_us = self.now_us;
        let packet_us = self.under_way.peek().map_or(u64::MAX, |Reverse(packet)| packet.0);
        let mut next_us = packet_us;
        for end in [0, 1] {
            next_us = next_us.min(self.stacks[end].deadline(now_us));
            let reads_us = BEGIN_US + self.apps[end].reads_from_us;
            if reads_us > now_us {
                next_us = next_us.min(reads_us);
            }
        }
        (next_us != u64::MAX).then_some(next_us)
    }

    /// Runs the application.
    fn live(&mut self, who: usize) {
        let (stack, app) = (&mut self.stacks[who], &self.apps[who]);
        if self.aborted[who] {
            return;
        }
        if self.now_us >= BEGIN_US + app.reads_from_us {
            self.got[who].extend(stack.read());
        }
        if !stack.is_open() {
            return;
        }
        if app.aborts_at.is_some_and(|bytes| self.got[who].len() >= bytes) {
            stack.abort(self.now_us);
            self.aborted[who] = true;
            return;
        }
        if !self.closed[who] {
            let rest = &self.data[who][self.sent[who]..];
            if !rest.is_empty() {
                self.sent[who] += stack.send(rest);
            }
            let may = !app.waits_for_end || stack.at_end();
            if self.sent[who] == app.sends && may && app.aborts_at.is_none() {
                stack.shutdown(self.now_us);
                self.closed[who] = true;
            }
        }
    }

    /// Puts on the link what an end sends.
    fn collect(&mut self, who: usize) {
        for packet in self.stacks[who].output(self.now_us) {
            let weather = self.weather;
            if self.random.per_mille(weather.loss) {
                continue;
            }
            let copies = 1 + usize::from(self.random.per_mille(weather.duplicate));
            for _ in 0..copies {
                let late_us = if self.random.per_mille(weather.reorder) {
                    self.random.below(8_000)
                } else {
                    0
                };
                self.order += 1;
                let at_us = self.now_us + DELAY_US + late_us;
                self.under_way.push(Reverse((at_us, self.order, 1 - who, packet.clone())));
            }
        }
    }

    fn aborts(&self) -> bool {
        self.apps.iter().any(|app| app.aborts_at.is_some())
    }

    fn is_over(&self) -> bool {
        let whole = |who: usize| self.got[who].len() == self.data[1 - who].len();
        self.stacks.iter().all(|stack| stack.is_over())
            && (self.aborts() || (whole(0) && whole(1)) && self.closed == [true; 2])
    }

    fn judge(&self) -> Result<(), String> {
        for who in [0, 1] {
            let wanted = &self.data[1 - who];
            let prefix = wanted.starts_with(&self.got[who]);
            if !prefix || !self.aborts() && self.got[who] != *wanted {
                return Err(self.say("a stream differs"));
            }
            if self.aborted[who] && !self.stacks[1 - who].was_reset() {
                return Err(self.say("a reset was not heard"));
            }
            if !self.aborts() && self.stacks[who].was_reset() {
                return Err(self.say("reset out of order"));
            }
        }
        Ok(())
    }

    fn say(&self, what: &str) -> String {
        let got = self.got.each_ref().map(Vec::len);
        format!(
            "{what} after {} ms: sent {:?}, got {got:?}, closed {:?}; {}; {}",
            (self.now_us - BEGIN_US) / 1000,
            self.sent,
            self.closed,
            self.stacks[0].describe(),
            self.stacks[1].describe()
        )
    }
}
