//! Load over very many connections: few messages in flight, each on a random connection, so that
//! the state of all connections is used and queues stay short.
use crate::sample::Sample;
use ix_programs::Pattern;
use ix_random::Rng;

/// Most connections that are being opened at once.
pub const OPENING: usize = 128;
/// Connections are drawn this many messages before their turn.
const DRAWS_AHEAD: usize = 8;
/// After this many failures no further connection is opened.
const FAILURES: usize = 64;
/// Longest message.
pub const SIZE_MAX: u64 = 16 << 10;

/// Description of the load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes of a message.
    pub size: usize,
    /// Number of connections.
    pub connections: usize,
    /// Most messages in flight.
    pub in_flight: usize,
    /// Time before the measurement, ns.
    pub warmup_ns: u64,
    /// Measured time, ns.
    pub seconds_ns: u64,
    /// Seed of the choice of connections.
    pub seed: u64,
}

/// The next action, and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing now.
    Nothing,
    /// Send [`Rounds::message`] on this connection.
    Send(usize),
    /// All connections are open: send on those that [`Rounds::start`] returns.
    Start,
    /// The measurement is over.
    Done,
}

#[derive(Clone, Copy, Default)]
struct Conn {
    alive: bool,
    busy: bool,
    received: u32,
    sequence: u32,
    started_ns: u64,
}

/// The client's side of one thread, without input and output.
pub struct Rounds {
    plan: Plan,
    pattern: Pattern,
    conns: Vec<Conn>,
    opening: usize,
    failed: usize,
    idle_alive: usize,
    random: Rng,
    /// Where the next searches for an idle connection begin, drawn ahead so that the connections
    /// can be prefetched.
    draws: [u32; DRAWS_AHEAD],
    next_draw: usize,
    measured_ns: Option<(u64, u64)>,
    sample: Sample,
}

impl Rounds {
    /// No connection is open yet.
    pub fn new(plan: Plan) -> Rounds {
        Rounds {
            plan,
            pattern: Pattern::default(),
            conns: Vec::with_capacity(plan.connections),
            opening: 0,
            failed: 0,
            idle_alive: 0,
            random: Rng::new(plan.seed),
            draws: [0; DRAWS_AHEAD],
            next_draw: 0,
            measured_ns: None,
            sample: Sample::default(),
        }
    }

    /// The number of a connection to open now, if there is one.
    pub fn open(&mut self) -> Option<usize> {
        let wanted = self.conns.len() < self.plan.connections && self.failed < FAILURES;
        if !wanted || self.opening >= OPENING || self.measured_ns.is_some() {
            return None;
        }
        self.opening += 1;
        self.conns.push(Conn::default());
        Some(self.conns.len() - 1)
    }

    /// The connection is open.
    pub fn opened(&mut self, index: usize) -> Next {
        self.opening -= 1;
        self.conns[index].alive = true;
        self.idle_alive += 1;
        self.ready()
    }

    /// It could not be opened, or has ended.
    pub fn lost(&mut self, index: usize, now_ns: u64, why: &str) -> Next {
        let conn = &mut self.conns[index];
        self.sample.error(why);
        if !conn.alive {
            self.opening -= 1;
            self.failed += 1;
            return self.ready();
        }
        conn.alive = false;
        if conn.busy {
            return self.next(now_ns);
        }
        self.idle_alive -= 1;
        Next::Nothing
    }

    fn ready(&self) -> Next {
        let all = self.conns.len() == self.plan.connections || self.failed >= FAILURES;
        if all && self.opening == 0 { Next::Start } else { Next::Nothing }
    }

    /// Number of open connections.
    pub fn alive(&self) -> usize {
        self.conns.iter().filter(|conn| conn.alive).count()
    }

    /// Starts the clock; returns the connections to send on first.
    pub fn start(&mut self, now_ns: u64) -> Vec<usize> {
        let from_ns = now_ns + self.plan.warmup_ns;
        self.measured_ns = Some((from_ns, from_ns + self.plan.seconds_ns));
        (0..DRAWS_AHEAD).for_each(|_| _ = self.draw());
        (0..self.plan.in_flight).filter_map(|_| self.choose(now_ns)).collect()
    }

    /// A random idle connection, which is then busy.
    fn choose(&mut self, now_ns: u64) -> Option<usize> {
        if self.idle_alive == 0 {
            return None;
        }
        let count = self.conns.len();
        let mut index = self.draw();
        while !self.conns[index].alive || self.conns[index].busy {
            index = (index + 1) % count;
        }
        let conn = &mut self.conns[index];
        conn.busy = true;
        conn.received = 0;
        conn.sequence = conn.sequence.wrapping_add(1);
        conn.started_ns = now_ns;
        self.idle_alive -= 1;
        Some(index)
    }

    /// Where the search for an idle connection begins: the oldest draw.
    fn draw(&mut self) -> usize {
        let drawn = self.random.index(self.conns.len());
        if let Some(conn) = self.conns.get(drawn) {
            libix::raw::prefetch(conn);
        }
        let place = self.next_draw;
        self.next_draw = (place + 1) % DRAWS_AHEAD;
        core::mem::replace(&mut self.draws[place], drawn as u32) as usize
    }

    /// The connection that was drawn last: its turn comes soon.
    pub fn drawn_last(&self) -> usize {
        self.draws[(self.next_draw + DRAWS_AHEAD - 1) % DRAWS_AHEAD] as usize
    }

    /// The connection whose turn probably comes next but one.
    pub fn drawn_next(&self) -> usize {
        self.draws[(self.next_draw + 1) % DRAWS_AHEAD] as usize
    }

    /// The message that the connection sends now.
    pub fn message(&self, index: usize) -> &[u8] {
        self.pattern.at(self.position(index), self.plan.size as u64)
    }

    fn position(&self, index: usize) -> u64 {
        index as u64 * 7919 + u64::from(self.conns[index].sequence) * 31
    }

    /// Bytes arrived on a connection.
    pub fn input(&mut self, index: usize, data: &[u8], now_ns: u64) -> Next {
        let conn = &self.conns[index];
        let room = self.plan.size - conn.received as usize;
        let at = self.position(index) + u64::from(conn.received);
        if !conn.busy || data.len() > room || !self.pattern.matches(at, data) {
            return self.lost(index, now_ns, "the reply differs from the message");
        }
        let conn = &mut self.conns[index];
        conn.received += data.len() as u32;
        if (conn.received as usize) < self.plan.size {
            return Next::Nothing;
        }
        conn.busy = false;
        self.idle_alive += 1;
        let latency_ns = now_ns - conn.started_ns;
        if let Some((from_ns, to_ns)) = self.measured_ns
            && (from_ns..to_ns).contains(&now_ns)
        {
            self.sample.record(latency_ns);
        }
        self.next(now_ns)
    }

    fn next(&mut self, now_ns: u64) -> Next {
        if self.is_over(now_ns) {
            return Next::Done;
        }
        self.choose(now_ns).map_or(Next::Nothing, Next::Send)
    }

    /// Whether the measured time is over.
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.measured_ns.is_some_and(|(_, to_ns)| now_ns >= to_ns)
    }

    /// What was measured.
    pub fn take_sample(&mut self) -> Sample {
        core::mem::take(&mut self.sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        size: 10,
        connections: 300,
        in_flight: 4,
        warmup_ns: 50,
        seconds_ns: 1_000_000,
        seed: 3,
    };

    fn open_all(rounds: &mut Rounds) -> Next {
        let mut next = Next::Nothing;
        while next == Next::Nothing {
            let opened: Vec<_> = core::iter::from_fn(|| rounds.open()).collect();
            assert!(opened.len() <= OPENING);
            for index in opened {
                next = rounds.opened(index);
            }
        }
        next
    }

    #[test]
    fn every_connection_gets_its_turn_and_few_are_under_way() {
        let mut rounds = Rounds::new(PLAN);
        assert_eq!(open_all(&mut rounds), Next::Start);
        let mut busy = rounds.start(0);
        assert_eq!(busy.len(), 4);
        let mut seen = [0u32; 300];
        for now_ns in 100..20_000 {
            let index = busy.remove(0);
            seen[index] += 1;
            let answer = rounds.message(index).to_vec();
            assert_eq!(rounds.input(index, &answer[..4], now_ns), Next::Nothing);
            let Next::Send(next) = rounds.input(index, &answer[4..], now_ns) else {
                panic!("no next one")
            };
            assert!(!busy.contains(&next));
            busy.push(next);
        }
        assert!(seen.iter().all(|&n| n > 20), "{seen:?}");
        let index = busy[0];
        let answer = rounds.message(index).to_vec();
        assert_eq!(rounds.input(index, &answer, 1_000_050), Next::Done);
        let sample = rounds.take_sample();
        assert_eq!((sample.messages(), sample.errors), (19_900, 0));
    }

    #[test]
    fn wrong_answers_and_dead_connections_do_not_stop_it() {
        let mut rounds = Rounds::new(Plan { connections: 3, in_flight: 2, ..PLAN });
        assert_eq!(open_all(&mut rounds), Next::Start);
        let busy = rounds.start(0);
        let Next::Send(next) = rounds.input(busy[0], b"wrong", 60) else { panic!("goes on") };
        assert_eq!(rounds.lost(next, 70, "reset"), Next::Nothing, "the last one is busy");
        assert_eq!(rounds.take_sample().errors, 2);
        assert_eq!(rounds.alive(), 1);
    }

    #[test]
    fn what_cannot_be_opened_is_given_up() {
        let mut rounds = Rounds::new(PLAN);
        let mut next = Next::Nothing;
        while let Some(index) = rounds.open() {
            next = rounds.lost(index, 0, "refused");
        }
        assert_eq!((next, rounds.alive()), (Next::Start, 0));
        assert!(rounds.start(0).is_empty());
    }
}
