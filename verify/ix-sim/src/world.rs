//! A run: hosts and network together, from the first connection until nothing is left of them.
use crate::agenda::Agenda;
use crate::host::{Host, Next, addresses};
use crate::ledger::Ledger;
use crate::network::{InFlight, Network};
use crate::observer::{Lives, Observer};
use crate::plan::{Move, Plan, TableChange};
use crate::wire::WireStats;
use ix_dataplane::MigrationEnd;
use ix_nic::SetReta;
use ix_random::Rng;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

/// How long flows may stay after the last connection has ended, µs: TIME-WAIT (60 s), and a peer
/// that does not know of the end (keepalive: 20 s and nine probes).
const SETTLE_US: u64 = 400_000_000;
/// Time between two checks of what is left, µs.
const LOOK_US: u64 = 1_000_000;

enum Happening {
    /// A frame arrives.
    Arrival(InFlight),
    /// A thread of a host runs.
    Run { host: usize, thread: usize },
    /// A wire changes: number of the change.
    Change(usize),
    /// Flow groups move: number of the move.
    Move(usize),
    /// The control plane gives a command: number of the order.
    Order(usize),
    /// The guard checks a thread.
    Guard { host: usize, thread: usize },
    /// A device's table changes by itself: number of the change.
    Table(usize),
}

/// Hosts on a network.
pub struct World {
    plan: Plan,
    agenda: Agenda<Happening>,
    network: Network,
    hosts: Vec<Host>,
    /// When each thread of each host will run; `u64::MAX`: when it is woken.
    wake_us: Vec<Vec<u64>>,
    ledger: Rc<RefCell<Ledger>>,
    observer: Observer,
    trace: Option<Trace>,
    tamper: Option<Tamper>,
}

/// May change a frame that is about to arrive.
pub type Tamper = Box<dyn FnMut(&mut Vec<u8>)>;

/// Receives time, host and bytes of each frame that arrives.
pub type Trace = Box<dyn FnMut(u64, usize, &[u8])>;

impl Outcome {
    /// A total by name; 0 when there is no such counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What must not have happened; empty: the run is right.
    pub violations: Vec<String>,
    /// Connections.
    pub connections: usize,
    /// Bytes that applications received.
    pub bytes: u64,
    /// Virtual time until the last connection had ended, µs.
    pub took_us: u64,
    /// What became of all frames.
    pub frames: WireStats,
    /// Totals of some counters over all hosts, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// What the observer saw of connections on the wire.
    pub lives: Lives,
}

impl World {
    /// A run at its beginning.
    pub fn new(seed: u64, plan: Plan) -> World {
        // A random stream of its own, so that plans can change without changing the faults.
        let mut rng = Rng::new(!seed);
        let mut network = Network::new(rng.next_u64());
        let ledger = Rc::new(RefCell::new(Ledger::new(plan.connections.clone())));
        let servers: Rc<[[IpAddr; 2]]> = (0..plan.hosts.len()).map(addresses).collect();
        let mut agenda = Agenda::new(plan.start_us);
        for (number, change) in plan.changes.iter().enumerate() {
            agenda.at(change.at_us, Happening::Change(number));
        }
        for (number, moved) in plan.moves.iter().enumerate() {
            agenda.at(moved.at_us, Happening::Move(number));
        }
        for (number, order) in plan.orders.iter().enumerate() {
            agenda.at(order.at_us, Happening::Order(number));
        }
        for (number, change) in plan.tables.iter().enumerate() {
            agenda.at(change.at_us, Happening::Table(number));
        }
        let mut hosts = Vec::new();
        for (index, host_plan) in plan.hosts.iter().enumerate() {
            let host = Host::new(
                index,
                (host_plan, plan.families),
                &ledger,
                &servers,
                plan.start_us,
                &mut rng,
            );
            network.attach(host.device().clone(), host_plan.faults.clone());
            hosts.push(host);
        }
        let wake_us = hosts.iter().map(|host| vec![u64::MAX; host.threads()]).collect();
        let mut world = World {
            plan,
            agenda,
            network,
            hosts,
            wake_us,
            ledger,
            observer: Observer::new(),
            trace: None,
            tamper: None,
        };
        for host in 0..world.hosts.len() {
            for thread in 0..world.hosts[host].threads() {
                world.wake(host, Next { thread, at_us: world.plan.start_us });
            }
        }
        world
    }

    /// Shows every frame that arrives.
    pub fn set_trace(&mut self, trace: Trace) {
        self.trace = Some(trace);
    }

    /// Changes frames on their way, to test that the simulator finds faults.
    pub fn set_tamper(&mut self, tamper: Tamper) {
        self.tamper = Some(tamper);
    }

    /// Runs until nothing is left, or until it is clear that something will stay.
    pub fn run(mut self) -> Outcome {
        let deadline_us = self.plan.deadline_us;
        while !self.failed() && !self.all_over() && self.agenda.now_us() < deadline_us {
            if !self.step(deadline_us) {
                break;
            }
        }
        let took_us = self.agenda.now_us() - self.plan.start_us;
        if !self.failed() && self.all_over() {
            self.settle();
        }
        self.outcome(took_us)
    }

    fn failed(&self) -> bool {
        !self.ledger.borrow().violations().is_empty()
    }

    fn all_over(&self) -> bool {
        self.ledger.borrow().unfinished().next().is_none()
    }

    /// Runs the next event, if it comes before `until_us`; returns false when there is none.
    fn step(&mut self, until_us: u64) -> bool {
        let Some(happening) = self.agenda.next(until_us) else { return false };
        let now_us = self.agenda.now_us();
        match happening {
            Happening::Arrival(InFlight { port, mut frame }) => {
                if let Some(tamper) = &mut self.tamper {
                    tamper(&mut frame);
                }
                if let Some(trace) = &mut self.trace {
                    trace(now_us - self.plan.start_us, port, &frame);
                }
                self.observer.arrives(&frame);
                let host = &self.hosts[port];
                host.set_now(now_us);
                let thread = host.device().deliver(frame);
                let at_us = host.earliest(thread, now_us);
                self.wake(port, Next { thread, at_us });
            }
            Happening::Run { host, thread } => {
                if self.wake_us[host][thread] == now_us {
                    self.run_thread(host, thread, now_us);
                }
            }
            Happening::Change(number) => {
                let change = &self.plan.changes[number];
                self.network.set_faults(change.host, change.faults.clone());
            }
            Happening::Table(number) => {
                let TableChange { host, group, queue, .. } = self.plan.tables[number];
                self.hosts[host].set_now(now_us);
                // The plan knows the number of queues.
                let _ = self.hosts[host].device().set(group, queue);
            }
            Happening::Move(number) => {
                let Move { host, groups, to, .. } = self.plan.moves[number];
                for thread in self.hosts[host].migrate(&groups, to) {
                    let at_us = self.hosts[host].earliest(thread, now_us);
                    self.wake(host, Next { thread, at_us });
                }
            }
            Happening::Guard { host, thread } => {
                let mut wakes = Vec::new();
                self.hosts[host].serve_non_responsive(thread, now_us, |next| wakes.push(next));
                wakes.into_iter().for_each(|next| self.wake(host, next));
                self.collect(host, now_us);
            }
            Happening::Order(number) => {
                let order = self.plan.orders[number];
                let thread = self.hosts[order.host].command(&order);
                let at_us = self.hosts[order.host].earliest(thread, now_us);
                self.wake(order.host, Next { thread, at_us });
            }
        }
        true
    }

    fn run_thread(&mut self, host: usize, thread: usize, now_us: u64) {
        self.wake_us[host][thread] = u64::MAX;
        let mut wakes = Vec::new();
        self.hosts[host].run(thread, now_us, |next| wakes.push(next));
        for next in wakes {
            self.wake(host, next);
        }
        for what in self.hosts[host].take_violations() {
            self.ledger.borrow_mut().violation(format!("host {host} thread {thread}: {what}"));
        }
        for Next { thread, at_us } in self.hosts[host].take_guard_turns() {
            self.agenda.at(at_us, Happening::Guard { host, thread });
        }
        self.collect(host, now_us);
    }

    /// Puts what a host has sent on the network.
    fn collect(&mut self, host: usize, now_us: u64) {
        let (agenda, observer) = (&mut self.agenda, &mut self.observer);
        self.network.collect(
            host,
            now_us,
            |frame, faults| observer.sent(frame, faults as u32),
            |at_us, frame| agenda.at(at_us, Happening::Arrival(frame)),
        );
        for what in self.observer.take_violations() {
            self.ledger.borrow_mut().violation(format!("host {host}: {what}"));
        }
    }

    /// A thread will run at this time, unless it runs earlier.
    fn wake(&mut self, host: usize, Next { thread, at_us }: Next) {
        let at_us = at_us.max(self.agenda.now_us());
        let wake_us = &mut self.wake_us[host][thread];
        if at_us < *wake_us {
            *wake_us = at_us;
            self.agenda.at(at_us, Happening::Run { host, thread });
        }
    }

    /// The connections are over: checks that everything they held is free again.
    fn settle(&mut self) {
        let mut look_us = self.agenda.now_us();
        let end_us = look_us + SETTLE_US;
        while look_us < end_us && !self.failed() && !self.leftovers().is_empty() {
            look_us += LOOK_US;
            while self.step(look_us) {}
            // One cycle on each thread, so that the gauges are up to date.
            for host in 0..self.hosts.len() {
                for thread in 0..self.hosts[host].threads() {
                    self.run_thread(host, thread, look_us);
                }
            }
        }
        for what in self.leftovers() {
            self.ledger.borrow_mut().violation(what);
        }
    }

    /// What should be zero when no connection is left, and is not.
    fn leftovers(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let metrics = host.metrics();
            for name in GAUGES {
                let value = metrics.total(name).unwrap_or(u64::MAX);
                if value != 0 {
                    left.push(format!("host {index}: {value} {name} at the end"));
                }
            }
            left.extend(host.unfinished_moves().map(|what| format!("host {index}: {what}")));
            left.extend(host.unfinished_orders().map(|what| format!("host {index}: {what}")));
            let held =
                [(host.live_flows(), "flows of applications"), (host.connections(), "connections")];
            for (count, what) in held {
                if count != 0 {
                    left.push(format!("host {index}: {count} {what} at the end"));
                }
            }
        }
        left
    }

    fn outcome(self, took_us: u64) -> Outcome {
        let ledger = self.ledger.borrow();
        let mut violations = ledger.violations().to_vec();
        let late = |plan| format!("not ended by the deadline: {}", ledger.describe(plan));
        let metrics: Vec<_> = self.hosts.iter().map(|host| host.metrics()).collect();
        let total = |name: &str| -> u64 { metrics.iter().filter_map(|m| m.total(name)).sum() };
        if ledger.replays() > 0 && total("syn_cookies") == 0 {
            violations.push(format!("{} connections were accepted twice", ledger.replays()));
        }
        if violations.is_empty() {
            violations.extend(ledger.unfinished().map(late));
        }
        let mut frames = WireStats::default();
        for port in 0..self.network.ports() {
            frames.add(self.network.stats(port));
        }
        let moved = |end| self.hosts.iter().map(|host| host.moved(end)).sum();
        let ends = MOVES.iter().map(|&(name, end)| (name, moved(end)));
        let orders = self.hosts.iter().flat_map(|host| host.orders_ended()).collect::<Vec<_>>();
        let ended =
            ORDERS.iter().map(|&name| (name, orders.iter().filter(|o| **o == name).count()));
        let ended = ended.map(|(name, count)| (name, count as u64));
        let each = self.hosts.iter().map(|host| host.moves_took_us());
        let sums = each.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        let waits: Vec<_> = self.hosts.iter().map(|host| host.device().waited()).collect();
        let took = [
            ("moves.total_us", sums[0]),
            ("moves.pause_us", sums[1]),
            ("rx_waited_us", waits.iter().map(|waited| waited.total_us).sum()),
            ("rx_waited_most_us", waits.iter().map(|waited| waited.most_us).max().unwrap_or(0)),
        ];
        let counters = COUNTERS.iter().map(|&name| (name, total(name)));
        let counters = counters.chain(ends).chain(took).chain(ended).collect();
        let (connections, bytes) = (ledger.plans.len(), ledger.bytes());
        let lives = self.observer.into_lives();
        Outcome { violations, connections, bytes, took_us, frames, counters, lives }
    }
}

/// How migrations end.
const MOVES: [(&str, MigrationEnd); 4] = [
    ("moves.early", MigrationEnd::Early),
    ("moves.bound", MigrationEnd::Bound),
    ("moves.overdue", MigrationEnd::Overdue),
    ("moves.refused", MigrationEnd::Refused),
];

/// How commands end.
const ORDERS: [&str; 6] = [
    "orders.parked",
    "orders.resumed",
    "orders.drained",
    "orders.migrated",
    "orders.refused",
    "orders.undone",
];

/// Gauges that return to zero, and counters that must stay zero.
const GAUGES: &[&str] = &[
    "flows",
    "half_open",
    "time_wait",
    "orphans",
    "rx_frames_in_use",
    "tx_frames_in_use",
    "app_timers",
    "wheel_entries",
    "misrouted",
];

/// Counters that show what a run has exercised.
const COUNTERS: &[&str] = &[
    "cycles",
    "away_turns",
    "rx_packets",
    "forwarded",
    "drops.forward_full",
    "event_back_pressure",
    "knocks",
    "syn_cookies",
    "drops.rx_pressure",
    "drops.early",
    "tcp.retransmits",
    "tcp.rto",
    "tcp.tlp",
    "tcp.recoveries",
    "tcp.undos",
    "tcp.out_of_order",
    "tcp.window_probes",
    "tcp.challenge_acks",
    "tcp.resets_received",
    "tcp.dsack_received",
    "tcp.rcv_buffer_limit",
    "tcp.keepalive_probes",
    "tcp.timed_out",
    "tcp.pmtu_black_hole",
    "tcp.pmtu_raised",
    "tcp.ce_received",
    "tcp.ecn_reductions",
];
