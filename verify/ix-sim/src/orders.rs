//! The control plane of a simulated host: the commands it gives, their times, and their outcomes.
use crate::plan::HostPlan;
use ix_dataplane::{
    Command, FromBroker, GroupSet, OrderMessage, Outcome, UpdateOutcome, UpdateSource,
};
use ix_random::Rng;
use ix_wire::FLOW_GROUPS;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A command to a host.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// When it is given, µs.
    pub at_us: u64,
    /// The host.
    pub host: usize,
    /// The command.
    pub command: Command,
    /// How long it may wait for an elastic thread that begins it, µs.
    pub patience_us: u64,
}

/// When all threads are told to work at the end, after all faults, and the time between two such
/// commands, both in µs. The last time, each command may last as long as a thread can stand still.
const AGAIN_US: [(u64, u64); 4] =
    [(500_000, 40_000), (3_000_000, 40_000), (10_000_000, 1_000_000), (60_000_000, 3_500_000)];

/// Commands that park, resume, drain and migrate; many come while another runs. At the end all
/// threads are told to work, some more than once, because a thread may be standing still.
pub fn orders(rng: &mut Rng, hosts: &[HostPlan], start_us: u64, heal_us: u64) -> Vec<Order> {
    let mut orders = Vec::new();
    for (host, plan) in hosts.iter().enumerate().filter(|(_, plan)| plan.threads > 1) {
        let span_us = (heal_us - start_us).min(rng.spread(5_000, 30_000_000)) * 11 / 10;
        let mut at_us = start_us;
        for _ in 0..rng.spread(20, 400) {
            at_us = match rng.chance(0.5) {
                // The time of a cycle, of a migration, or of a command.
                true => at_us + rng.spread(1, 2_000),
                false => start_us + rng.below(span_us),
            };
            let patience_us = rng.pick(&[0, 1_000, 50_000, 1_000_000, 1_000_000]);
            let command = command(rng, plan.threads);
            orders.push(Order { at_us, host, command, patience_us });
        }
        for (again_us, apart_us) in AGAIN_US {
            let home = |to| (0..FLOW_GROUPS).filter(|g| g % plan.threads == to).collect();
            let resume = (0..plan.threads).map(|thread| Command::Resume { thread });
            let back = (0..plan.threads).map(|to| Command::Migrate { groups: home(to), to });
            for (number, command) in resume.chain(back).enumerate() {
                let at_us = heal_us + again_us + apart_us * number as u64;
                orders.push(Order { at_us, host, command, patience_us: 1_000_000 });
            }
        }
    }
    orders.sort_by_key(|order| order.at_us);
    orders
}

fn command(rng: &mut Rng, threads: usize) -> Command {
    let thread = rng.below(threads as u64) as usize;
    match rng.below(8) {
        0..3 => Command::Park { thread },
        3..6 => Command::Resume { thread },
        6 => Command::Drain { thread },
        _ => Command::Migrate { groups: groups(rng), to: thread },
    }
}

fn groups(rng: &mut Rng) -> GroupSet {
    if rng.chance(0.3) {
        return GroupSet::all();
    }
    (0..rng.between(1, 40)).map(|_| rng.below(FLOW_GROUPS as u64) as usize).collect()
}

/// The broker's end of a host: the commands it sent and the outcomes it received.
#[derive(Clone, Default)]
pub struct Broker(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    waiting: VecDeque<OrderMessage>,
    sent: Vec<Command>,
    heard: Vec<(u64, Outcome)>,
}

impl Broker {
    fn with<T>(&self, f: impl FnOnce(&mut Said) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a command.
    pub fn say(&self, order: &Order) {
        self.with(|said| {
            said.sent.push(order.command);
            let serial = said.sent.len() as u64;
            let until_us = order.at_us + order.patience_us;
            let order = ix_dataplane::Order::Command(order.command);
            said.waiting.push_back(OrderMessage { serial, until_us, order, memory: None });
        });
    }

    /// Whether a command waits for an elastic thread to read it.
    pub fn waits(&self) -> bool {
        self.with(|said| !said.waiting.is_empty())
    }

    /// Number of commands so far.
    pub fn said(&self) -> usize {
        self.with(|said| said.sent.len())
    }

    /// Outcomes from number `first` on, each with its command; `None`: there was no such command.
    pub fn heard_since(&self, first: usize) -> Vec<(Option<Command>, Outcome)> {
        self.with(|said| {
            let command = |serial: u64| said.sent.get(serial as usize - 1).copied();
            let new = said.heard.iter().skip(first);
            new.map(|(serial, outcome)| (command(*serial), outcome.clone())).collect()
        })
    }

    /// Number of commands with more than one outcome.
    pub fn answered_twice(&self) -> usize {
        self.with(|said| {
            let mut serials: Vec<u64> = said.heard.iter().map(|(serial, _)| *serial).collect();
            serials.sort_unstable();
            let all = serials.len();
            serials.dedup();
            all - serials.len()
        })
    }
}

impl UpdateSource for Broker {
    fn fd(&self) -> RawFd {
        ix_nic::NEVER_RINGS
    }

    fn next(&mut self) -> Option<FromBroker> {
        self.with(|said| said.waiting.pop_front()).map(FromBroker::Order)
    }

    fn tell(&mut self, _: usize, _: UpdateOutcome) {}

    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome) {
        self.with(|said| said.heard.push((serial, outcome.clone())));
    }

    fn tell_surveyed(&mut self, _: u64) {}
}
