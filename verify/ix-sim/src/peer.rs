//! The application on every host: client and server of the planned connections, on libix.
//!
//! A client greets with the number of its connection. Then both ends follow the plan, and check
//! every byte they receive.
use crate::content;
use crate::ledger::{Ledger, Progress, Role};
use crate::plan::{ConnectionPlan, End, Exchange};
use ix_random::Rng;
use libix::Dead;
use libix::event::{Conn, Handler, Io};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// The port of every server.
pub const PORT: u16 = 7000;
/// Bytes of a greeting: the connection's number, and a check of it.
const GREETING: usize = 16;
/// Bytes given to send at a time.
const CHUNK: usize = 16 << 10;

/// How long a lazy end leaves data unread at most, µs: longer than any delayed or repeated
/// acknowledgement, so that windows close and must be probed.
const LAZY_US: u64 = 2_000_000;

/// Time between two attempts at a simultaneous open, µs. Both ends try at the same times.
const MEET_EVERY_US: u64 = 1_000_000;

/// One end of a connection.
pub struct Talk {
    role: Role,
    /// A server learns it from the greeting.
    plan: Option<usize>,
    /// At a client: what it still has to send. At a server: what has arrived.
    greeting: Vec<u8>,
    sent: u64,
    received: u64,
    eof: bool,
    shut: bool,
    /// A timer will read what has arrived.
    reading_later: bool,
}

impl Talk {
    /// One end with a greeting, which a server needs to learn its plan.
    fn new(role: Role, plan: Option<usize>) -> Talk {
        let greeting = plan.map(greeting_of).unwrap_or_default();
        Talk { greeting, ..Talk::known(role, plan) }
    }

    /// One end of a plan that both ends know.
    fn known(role: Role, plan: Option<usize>) -> Talk {
        let greeting = Vec::new();
        let (sent, received, eof, shut, reading_later) = (0, 0, false, false, false);
        Talk { role, plan, greeting, sent, received, eof, shut, reading_later }
    }
}

enum Alarm {
    Connect(usize),
    Meet(usize, Role),
    Read(u64),
}

/// The application on one elastic thread.
pub struct Peer {
    ledger: Rc<RefCell<Ledger>>,
    /// Addresses of IPv4 and IPv6.
    servers: Rc<[[IpAddr; 2]]>,
    rng: Rng,
    start_us: u64,
    alarms: HashMap<u64, Alarm>,
    next_alarm: u64,
    scratch: Vec<u8>,
}

fn greeting_of(plan: usize) -> Vec<u8> {
    let mut greeting = (plan as u64).to_le_bytes().to_vec();
    greeting.resize(GREETING, 0);
    content::fill(plan as u64, 0, &mut greeting[8..]);
    greeting
}

/// Key of a stream. An echo has the key of the client's stream.
fn key(plan: usize, from: Role, exchange: Exchange) -> u64 {
    let direction = match (from, exchange) {
        (Role::Server, Exchange::Bulk { .. }) => 1,
        _ => 2,
    };
    (plan as u64) << 8 | direction
}

impl Peer {
    /// An application that knows where the servers are.
    pub fn new(
        ledger: Rc<RefCell<Ledger>>,
        servers: Rc<[[IpAddr; 2]]>,
        rng: Rng,
        start_us: u64,
    ) -> Peer {
        let (alarms, scratch) = (HashMap::new(), vec![0; CHUNK]);
        Peer { ledger, servers, rng, start_us, alarms, next_alarm: 0, scratch }
    }

    /// Will connect as this plan says.
    pub fn schedule(&mut self, io: &mut Io<Talk>, plan: usize) {
        let after_us = self.ledger.borrow().plans[plan].after_us;
        self.alarm(io, after_us, Alarm::Connect(plan));
    }

    fn alarm(&mut self, io: &mut Io<Talk>, delay_us: u64, alarm: Alarm) {
        self.next_alarm += 1;
        self.alarms.insert(self.next_alarm, alarm);
        io.set_timer(delay_us, self.next_alarm);
    }

    fn connect(&mut self, io: &mut Io<Talk>, plan: usize) {
        let ConnectionPlan { server, v6, .. } = self.plan(plan);
        let to = SocketAddr::new(self.servers[server][usize::from(v6)], PORT);
        io.connect(to, Talk::new(Role::Client, Some(plan)));
    }

    /// Will take part in a simultaneous open.
    pub fn schedule_meeting(&mut self, io: &mut Io<Talk>, plan: usize, role: Role) {
        let after_us = self.ledger.borrow().plans[plan].after_us;
        self.alarm(io, after_us, Alarm::Meet(plan, role));
    }

    /// Tries to meet the other end, which tries at the same time, and will try again then.
    fn meet(&mut self, io: &mut Io<Talk>, number: usize, role: Role) {
        if self.ledger.borrow_mut().end(number, role).progress != Progress::Waiting {
            return;
        }
        let plan = self.plan(number);
        let Some(ports) = plan.meets else { return };
        let (host, total) = match role {
            Role::Client => (plan.server, plan.up()),
            Role::Server => (plan.client.0, plan.down()),
        };
        let there = self.servers[host][usize::from(plan.v6)];
        let there = SocketAddr::new(there, ports[1 - role as usize]);
        let talk = Talk::known(role, Some(number));
        let id = io.connect_from(ports[role as usize], there, talk);
        if let Some(mut conn) = io.conn(id).filter(|_| total == 0 && plan.end == End::HalfClose) {
            conn.state_mut().shut = true;
            conn.shutdown();
        }
        let since_us = io.now_us().saturating_sub(self.start_us + plan.after_us);
        self.alarm(io, MEET_EVERY_US - since_us % MEET_EVERY_US, Alarm::Meet(number, role));
    }

    fn plan(&self, plan: usize) -> ConnectionPlan {
        self.ledger.borrow().plans[plan]
    }

    fn violation(&self, plan: Option<usize>, what: std::fmt::Arguments) {
        let mut ledger = self.ledger.borrow_mut();
        let whose = plan.map_or("an unknown connection".into(), |plan| ledger.describe(plan));
        ledger.violation(format!("{what}: {whose}"));
    }

    /// Looks at what came in; checks, counts and consumes it.
    fn read(&mut self, conn: &mut Conn<'_, Talk>) {
        self.read_greeting(conn);
        let Some(plan) = conn.state().plan else { return };
        let planned = self.plan(plan);
        let role = conn.state().role;
        let (from, expected) = match role {
            Role::Client => (Role::Server, planned.down()),
            Role::Server => (Role::Client, planned.up()),
        };
        let key = key(plan, from, planned.exchange);
        let (talk, slices) = conn.state_and_received();
        let mut wrong = None;
        let start = talk.received;
        for slice in slices {
            wrong = wrong.or(content::mismatch(key, talk.received, slice));
            talk.received += slice.len() as u64;
        }
        let (received, bytes) = (talk.received, (talk.received - start) as usize);
        self.ledger.borrow_mut().end(plan, role).received = received;
        if let Some(at) = wrong {
            self.violation(Some(plan), format_args!("{role:?} got a wrong byte at {at}"));
        }
        if received > expected {
            self.violation(Some(plan), format_args!("{role:?} got more than {expected} bytes"));
        }
        match (role, planned.exchange) {
            (Role::Server, Exchange::Echo { .. }) => {
                let echoed = conn.send_received(bytes);
                conn.state_mut().sent += echoed as u64;
                // After our own end nothing can be sent, and nothing is to be.
                conn.consume(bytes - echoed);
            }
            _ => conn.consume(bytes),
        }
        self.pump(conn);
    }

    /// A server reads which connection this is.
    fn read_greeting(&mut self, conn: &mut Conn<'_, Talk>) {
        if conn.state().plan.is_some() {
            return;
        }
        let mut bytes = [0; GREETING];
        let missing = GREETING - conn.state().greeting.len();
        let got = conn.read(&mut bytes[..missing]);
        let talk = conn.state_mut();
        talk.greeting.extend_from_slice(&bytes[..got]);
        let Some(number) = talk.greeting.first_chunk::<8>() else { return };
        let plan = u64::from_le_bytes(*number) as usize;
        if talk.greeting.len() < GREETING {
            return;
        }
        let known = plan < self.ledger.borrow().plans.len();
        if !known || talk.greeting != greeting_of(plan) {
            self.violation(None, format_args!("a greeting that nobody sent"));
            conn.abort();
            return;
        }
        if !self.ledger.borrow_mut().open_server(plan) {
            conn.abort();
            return;
        }
        conn.state_mut().plan = Some(plan);
    }

    /// Sends the rest of the greeting; false while there is no room for it.
    fn greet(&self, conn: &mut Conn<'_, Talk>) -> bool {
        let left = std::mem::take(&mut conn.state_mut().greeting);
        let sent = conn.send(&left);
        conn.state_mut().greeting = left[sent..].to_vec();
        sent == left.len()
    }

    /// Sends what may be sent, and ends the connection when it is time.
    fn pump(&mut self, conn: &mut Conn<'_, Talk>) {
        let Some(plan) = conn.state().plan else { return };
        let planned = self.plan(plan);
        let role = conn.state().role;
        if role == Role::Client && !self.greet(conn) {
            return;
        }
        let total = match role {
            Role::Client => planned.up(),
            Role::Server => planned.down(),
        };
        let allowed = match (role, planned.exchange) {
            (_, Exchange::Bulk { .. }) => total,
            // Each message waits for the echo of the one before.
            (Role::Client, Exchange::Echo { size, .. }) => {
                ((conn.state().received / size + 1) * size).min(total)
            }
            (Role::Server, Exchange::Echo { .. }) => 0,
        };
        let key = key(plan, role, planned.exchange);
        while conn.state().sent < allowed {
            let sent = conn.state().sent;
            let chunk = ((allowed - sent) as usize).min(1 + self.rng.below(CHUNK as u64) as usize);
            content::fill(key, sent, &mut self.scratch[..chunk]);
            let taken = conn.send(&self.scratch[..chunk]);
            conn.state_mut().sent += taken as u64;
            if taken < chunk {
                break;
            }
        }
        let talk = conn.state();
        self.ledger.borrow_mut().end(plan, role).sent = talk.sent;
        self.end(conn, plan, total);
    }

    fn end(&mut self, conn: &mut Conn<'_, Talk>, plan: usize, total: u64) {
        let planned = self.plan(plan);
        let talk = conn.state();
        let (role, eof) = (talk.role, talk.eof);
        let expected = if role == Role::Client { planned.down() } else { planned.up() };
        let sent_all = talk.sent == total;
        let both = sent_all && talk.received == expected;
        let closes = match planned.end {
            End::ClientAborts(after) | End::ServerAborts(after) => {
                let mine = matches!(planned.end, End::ClientAborts(_)) == (role == Role::Client);
                if mine && (talk.sent + talk.received >= after || both) {
                    conn.abort();
                    self.done(plan, role);
                    return;
                }
                // The reset may be lost: the end that is seen counts.
                eof
            }
            End::HalfClose => {
                if sent_all && !talk.shut {
                    conn.state_mut().shut = true;
                    conn.shutdown();
                }
                both && eof
            }
            End::ClientCloses => both && (role == Role::Client || eof),
            End::ServerCloses => both && (role == Role::Server || eof),
        };
        if closes {
            conn.close();
            self.done(plan, role);
        }
    }

    fn done(&self, plan: usize, role: Role) {
        self.ledger.borrow_mut().end(plan, role).progress = Progress::Done;
    }
}

impl Handler for Peer {
    type State = Talk;

    fn on_accept(&mut self, _: &mut Io<Talk>, _: u64, _: SocketAddr) -> Option<Talk> {
        Some(Talk::new(Role::Server, None))
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, Talk>) {
        let talk = conn.state();
        let (role, Some(plan)) = (talk.role, talk.plan) else { return };
        self.ledger.borrow_mut().end(plan, role).progress = Progress::Open;
        self.pump(conn);
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, Talk>) {
        let talk = conn.state();
        let lazy = talk.plan.is_some_and(|plan| self.plan(plan).lazy[talk.role as usize]);
        if !lazy {
            self.read(conn);
        } else if !talk.reading_later {
            conn.state_mut().reading_later = true;
            let (id, delay_us) = (conn.id(), self.rng.spread(10, LAZY_US));
            self.alarm(conn.io(), delay_us, Alarm::Read(id));
        }
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Talk>) {
        self.pump(conn);
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Talk>) {
        // Unread data must be read before the end is judged.
        self.read(conn);
        let talk = conn.state_mut();
        talk.eof = true;
        let (role, received) = (talk.role, talk.received);
        let Some(plan) = talk.plan else {
            // Reset or ended by a client that never greeted: only a planned abort does that.
            conn.close();
            return;
        };
        let planned = self.plan(plan);
        let expected = if role == Role::Client { planned.down() } else { planned.up() };
        if received < expected && !planned.end.is_abort() {
            self.violation(
                Some(plan),
                format_args!("{role:?} saw the end after {received} of {expected} bytes"),
            );
        }
        self.pump(conn);
    }

    fn on_dead(&mut self, conn: &mut Conn<'_, Talk>, why: Dead) {
        let talk = conn.state();
        let (role, Some(plan)) = (talk.role, talk.plan) else { return };
        if let Dead::NotConnected(_) = why {
            // The network may be cut: the application tries again.
            self.ledger.borrow_mut().end(plan, role).failed_attempts += 1;
            if self.plan(plan).meets.is_some() {
                return;
            }
            let delay_us = self.rng.between(100_000, 1_000_000);
            self.alarm(conn.io(), delay_us, Alarm::Connect(plan));
            return;
        }
        if !self.plan(plan).end.is_abort() {
            self.violation(Some(plan), format_args!("{role:?} lost its connection ({why})"));
        }
        self.done(plan, role);
    }

    /// Timers do not migrate: a timer that was to read is set again here.
    fn on_migrate_in(&mut self, conn: &mut Conn<'_, Talk>, _: u32) {
        if conn.state().reading_later {
            let (id, delay_us) = (conn.id(), self.rng.spread(10, LAZY_US));
            self.alarm(conn.io(), delay_us, Alarm::Read(id));
        }
    }

    fn on_timer(&mut self, io: &mut Io<Talk>, token: u64) {
        match self.alarms.remove(&token) {
            Some(Alarm::Connect(plan)) => self.connect(io, plan),
            Some(Alarm::Meet(plan, role)) => self.meet(io, plan, role),
            Some(Alarm::Read(id)) => {
                if let Some(mut conn) = io.conn(id) {
                    conn.state_mut().reading_later = false;
                    self.read(&mut conn);
                }
            }
            None => self.violation(None, format_args!("a timer fired twice, or was never set")),
        }
    }
}
