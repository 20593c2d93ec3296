//! The papers' server: hardware threads with their queues, flow groups, clock, background job.
use crate::latency::Latencies;
use crate::meter::{Meter, WINDOW_US};
use crate::migration::Migration;
use crate::papers as p;
use crate::power::{self, CoreLoad};
use crate::queue::{Clients, Queue, TICK_US, poisson};
use crate::service::{Cost, Place, System, Workload};
use crate::space;
use ix_controller::{Clock, Configuration, ThreadState};
use ix_random::Rng;
use std::collections::VecDeque;

mod control;

const CPUS: usize = (p::CORES * p::THREADS_PER_CORE) as usize;

/// A hardware thread of the dataplane; its number is also Linux's.
#[derive(Clone, Debug)]
struct Thread {
    state: ThreadState,
    queue: Queue,
    /// Parks as soon as its last group has gone.
    parks: bool,
    // What follows from the configuration.
    cost: Cost,
    groups: u32,
}

/// A flow group. All have as many connections: the load generator can choose source ports so.
#[derive(Clone, Copy, Debug)]
struct Group {
    thread: usize,
    held: bool,
}

/// What was measured since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests that were to come, a second.
    pub offered_per_s: f64,
    /// Requests that were served, a second.
    pub achieved_per_s: f64,
    /// 99th percentile as a client sees it, µs.
    pub p99_us: f64,
    /// Mean power of the package, W.
    pub power_w: f64,
    /// The background job's rate over that of its own on all cores at 2.4 GHz.
    pub background: f64,
}

/// Sums since the last reading.
#[derive(Clone, Debug, Default)]
struct Sums {
    ticks: f64,
    offered: f64,
    achieved: f64,
    joules: f64,
    background: f64,
    latencies: Latencies,
}

/// The server in virtual time.
#[derive(Clone, Debug)]
pub struct Server {
    system: System,
    workload: Workload,
    rng: Rng,
    now_us: u64,
    threads: Vec<Thread>,
    groups: Vec<Group>,
    migrations: VecDeque<Migration>,
    clocks: [Clock; p::CORES as usize],
    background: [bool; CPUS],
    heat: f64,
    /// The network and the client's part of an answer without load, µs.
    outside_us: f64,
    sums: Sums,
    // What follows from the configuration.
    khz: u32,
    background_cores: u32,
}

impl Server {
    /// A server with one elastic thread at the nominal clock, as after `ixcp --cpus 1`.
    pub fn new(system: System, workload: Workload, seed: u64) -> Server {
        let place = Place { khz: 2_400_000, cores: 8, threads_on_core: 2, shared: false };
        let cost = Cost::of(system, workload, place);
        let unloaded_us = match system {
            System::Ix => p::UNLOADED_US,
            System::Linux => p::UNLOADED_LINUX_US,
        };
        let thread = Thread {
            state: ThreadState::Parked,
            queue: Queue::default(),
            parks: false,
            cost,
            groups: 0,
        };
        let mut server = Server {
            system,
            workload,
            rng: Rng::new(seed),
            now_us: 0,
            threads: vec![thread; CPUS],
            groups: vec![Group { thread: 0, held: false }; usize::from(p::FLOW_GROUPS)],
            migrations: VecDeque::new(),
            clocks: [Clock::Khz(2_400_000); p::CORES as usize],
            background: [false; CPUS],
            heat: 0.0,
            outside_us: unloaded_us - 2.0 * cost.cycle_us(1.0),
            sums: Sums::default(),
            khz: 0,
            background_cores: 0,
        };
        server.threads[0].state = ThreadState::Elastic;
        server.settle();
        server
    }

    /// A static configuration: groups spread evenly, the chip as hot as it gets, the background
    /// job on all other cores where that is asked for.
    pub fn configure(&mut self, configuration: &Configuration, with_background: bool) {
        let cpus: Vec<usize> = space::cpus(configuration).map(|cpu| cpu as usize).collect();
        for (cpu, thread) in self.threads.iter_mut().enumerate() {
            let elastic = cpus.contains(&cpu);
            thread.state = if elastic { ThreadState::Elastic } else { ThreadState::Parked };
        }
        for (number, group) in self.groups.iter_mut().enumerate() {
            group.thread = cpus[number % cpus.len()];
        }
        let clock = configuration.clock.unwrap_or(Clock::Khz(space::khz_of(configuration)));
        self.clocks = [clock; p::CORES as usize];
        let free = |cpu: usize| space::core_of(cpu as u32) >= configuration.cores as usize;
        self.background = std::array::from_fn(|cpu| with_background && free(cpu));
        self.heat = 1.0;
        self.settle();
    }

    /// Now, µs.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// How much of the server the dataplane has.
    pub fn configuration(&self) -> Configuration {
        let cores = (0..p::CORES).filter(|&core| self.elastic_on(core) > 0).count();
        let threads = (0..p::CORES).map(|core| self.elastic_on(core)).max().unwrap_or(0);
        let turbo = self.khz == p::TURBO_KHZ;
        let clock = Some(if turbo { Clock::Turbo } else { Clock::Khz(self.khz) });
        Configuration { cores: cores as u32, threads_per_core: threads, clock }
    }

    /// Runs until a time, under a load in requests a second at each time in seconds.
    pub fn advance(&mut self, until_us: u64, load: impl Fn(f64) -> f64) {
        while self.now_us < until_us {
            let rate = load(self.now_us as f64 / 1e6);
            self.tick(rate);
        }
    }

    /// What was measured since this was last called.
    pub fn sample(&mut self) -> Sample {
        let sums = &mut self.sums;
        let seconds = (sums.ticks * TICK_US as f64 / 1e6).max(1e-9);
        let sample = Sample {
            offered_per_s: sums.offered / seconds,
            achieved_per_s: sums.achieved / seconds,
            p99_us: sums.latencies.quantile(0.99),
            power_w: sums.joules / seconds,
            background: sums.background / sums.ticks.max(1.0),
        };
        let mut latencies = std::mem::take(&mut sums.latencies);
        latencies.clear();
        *sums = Sums { latencies, ..Sums::default() };
        sample
    }

    fn tick(&mut self, rate: f64) {
        self.migrate(rate);
        let of_group = rate / f64::from(p::FLOW_GROUPS);
        let (mut served, mut busy_us) = (0.0, [0.0; p::CORES as usize]);
        for (cpu, thread) in self.threads.iter_mut().enumerate() {
            if thread.state != ThreadState::Elastic {
                continue;
            }
            let clients = clients(of_group, thread.groups);
            let done = thread.queue.tick(self.now_us, clients, &thread.cost, &mut self.rng);
            served += done.requests;
            busy_us[space::core_of(cpu as u32)] += done.busy_us;
            if thread.groups > 0 {
                let latency_us = self.outside_us + done.delay_us;
                self.sums.latencies.add(latency_us, f64::from(thread.groups));
            }
        }
        let tick_s = TICK_US as f64 / 1e6;
        self.sums.ticks += 1.0;
        self.sums.offered += rate * tick_s;
        self.sums.achieved += served;
        self.sums.joules += self.power_w(served / tick_s, &busy_us) * tick_s;
        let clock = f64::from(self.khz) / 2_400_000.0;
        self.sums.background += f64::from(self.background_cores) * clock / f64::from(p::CORES);
        self.now_us += TICK_US;
        if self.now_us.is_multiple_of(WINDOW_US) {
            self.threads.iter_mut().for_each(|thread| thread.queue.meter.roll());
            let turbo = self.khz == p::TURBO_KHZ;
            self.heat = power::heat(self.heat, turbo, WINDOW_US as f64 / 1e6);
        }
    }

    fn power_w(&self, served_per_s: f64, busy_us: &[f64; p::CORES as usize]) -> f64 {
        let load = |core: u32| {
            let elastic = self.elastic_on(core);
            let with_work = busy_us[core as usize] / (TICK_US as f64 * f64::from(elastic.max(1)));
            // The background job keeps one thread of its core busy, whatever else there is.
            let background = u32::from(self.background_on(core));
            let busy = if background > 0 { 1.0 } else { power::busy(self.system, with_work) };
            CoreLoad { threads: elastic.max(background), busy }
        };
        let cores: [CoreLoad; p::CORES as usize] = std::array::from_fn(|core| load(core as u32));
        power::package_w(self.khz, &cores, served_per_s, self.heat)
    }

    /// Begins, carries on and ends migrations, in their order.
    fn migrate(&mut self, rate: f64) {
        let (begin, end) = (self.now_us, self.now_us + TICK_US);
        let mut changed = false;
        for index in 0..self.migrations.len() {
            let mut migration = self.migrations[index].clone();
            if migration.start_us >= end {
                break;
            }
            if !migration.begun {
                self.hold(&mut migration);
                changed = true;
            }
            let part = migration.groups.len() as f64 / f64::from(p::FLOW_GROUPS);
            let held_us = migration.end_us.min(end) - migration.start_us.max(begin);
            migration.held.0 += poisson(rate * part * held_us as f64 / 1e6, &mut self.rng);
            let to = &self.threads[migration.to];
            let left_us = (migration.end_us - migration.start_us.max(begin)) as f64;
            let delay_us = left_us + to.queue.backlog * to.cost.request_us;
            let weight = migration.groups.len() as f64 * held_us as f64 / TICK_US as f64;
            self.sums.latencies.add(self.outside_us + delay_us, weight);
            self.migrations[index] = migration;
        }
        while self.migrations.front().is_some_and(|m| m.begun && m.end_us <= end) {
            if let Some(migration) = self.migrations.pop_front() {
                self.release(&migration);
                changed = true;
            }
        }
        if changed {
            self.settle();
        }
    }

    /// The old thread prepares: the groups' requests wait from now on.
    fn hold(&mut self, migration: &mut Migration) {
        let old = &mut self.threads[migration.from];
        let part = migration.groups.len() as f64 / f64::from(old.groups.max(1));
        migration.held = old.queue.take(part.min(1.0));
        migration.begun = true;
        let duration_us = (migration.end_us - migration.start_us) as f64;
        old.queue.stall(self.now_us + (duration_us * p::MIGRATION_PREPARE) as u64);
        for &group in &migration.groups {
            self.groups[usize::from(group)].held = true;
        }
    }

    /// The new thread serves the groups.
    fn release(&mut self, migration: &Migration) {
        for &group in &migration.groups {
            let group = &mut self.groups[usize::from(group)];
            (group.thread, group.held) = (migration.to, false);
        }
        self.threads[migration.to].queue.put(migration.held);
    }

    /// What follows from the configuration.
    fn settle(&mut self) {
        for cpu in 0..CPUS {
            let mine = |g: &&Group| g.thread == cpu && !g.held;
            let thread = &mut self.threads[cpu];
            thread.groups = self.groups.iter().filter(mine).count() as u32;
            let empty = self.groups.iter().all(|g| g.thread != cpu);
            if thread.parks && empty {
                thread.parks = false;
                thread.state = ThreadState::Parked;
                thread.queue.meter = Meter::default();
            }
        }
        let active = |core: &u32| self.elastic_on(*core) > 0 || self.background_on(*core);
        let asked = (0..p::CORES).filter(active).map(|core| self.clocks[core as usize]);
        // One clock for the whole package: the highest that a core which is awake asks for.
        let khz = asked.map(space::khz).max().unwrap_or(self.khz.max(p::CLOCKS_KHZ[0]));
        if khz != self.khz && self.khz != 0 {
            let until_us = self.now_us + p::CLOCK_CHANGE_US;
            self.threads.iter_mut().for_each(|thread| thread.queue.stall(until_us));
        }
        self.khz = khz;
        let cores = (0..p::CORES).filter(|&core| self.elastic_on(core) > 0).count() as u32;
        for cpu in 0..CPUS {
            let core = space::core_of(cpu as u32) as u32;
            let threads_on_core = self.elastic_on(core).max(1);
            let place = Place { khz, cores, threads_on_core, shared: self.background_on(core) };
            self.threads[cpu].cost = Cost::of(self.system, self.workload, place);
        }
        let background = |core: &u32| self.background_on(*core) && self.elastic_on(*core) == 0;
        self.background_cores = (0..p::CORES).filter(background).count() as u32;
    }

    /// Elastic threads of a core.
    fn elastic_on(&self, core: u32) -> u32 {
        let is =
            |t: u32| self.threads[(core + t * p::CORES) as usize].state == ThreadState::Elastic;
        (0..p::THREADS_PER_CORE).filter(|&t| is(t)).count() as u32
    }

    fn background_on(&self, core: u32) -> bool {
        (0..p::THREADS_PER_CORE).any(|t| self.background[(core + t * p::CORES) as usize])
    }
}

fn clients(of_group_per_s: f64, groups: u32) -> Clients {
    let groups = f64::from(groups);
    let connections = f64::from(p::CONNECTIONS) / f64::from(p::FLOW_GROUPS) * groups;
    Clients { rate_per_s: of_group_per_s * groups, window: connections * f64::from(p::PIPELINE) }
}
