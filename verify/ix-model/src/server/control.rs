//! The server as a platform: what a controller sees of it and does to it.
use super::{CPUS, Server, Thread};
use crate::migration::{self, Migration};
use crate::papers as p;
use crate::queue::{Queue, normal};
use crate::space;
use ix_controller::{
    Clock, DataplaneId, GroupObservation, Machine, Observation, Platform, Step, StepError,
    ThreadObservation, ThreadState,
};

/// The only dataplane of the model.
pub const DATAPLANE: DataplaneId = DataplaneId(1);
/// Over which time a group's load is counted, s.
const GROUP_LOAD_S: f64 = 0.1;

impl Platform for Server {
    fn machine(&mut self) -> Machine {
        space::machine()
    }

    fn observe(&mut self, _now_us: u64) -> Vec<Observation> {
        let threads = (0..CPUS).map(|cpu| self.thread_observation(cpu)).collect();
        let groups = (0..self.groups.len()).map(|group| self.group_observation(group)).collect();
        let program = "memcached".to_owned();
        vec![Observation {
            dataplane: DATAPLANE,
            program,
            batch_bound: p::BATCH_BOUND,
            threads,
            groups,
        }]
    }

    fn apply(&mut self, now_us: u64, dataplane: DataplaneId, step: &Step) -> Result<(), StepError> {
        if dataplane != DATAPLANE {
            return error(format!("no dataplane {}: the model has one", dataplane.0));
        }
        match step {
            Step::Clock { cpus, clock } => self.set_clock(cpus, *clock)?,
            Step::Background { cpus } => self.set_background(cpus)?,
            Step::Resume { thread } => self.resume(now_us, *thread)?,
            Step::Park { thread } => self.park(*thread)?,
            Step::Migrate { from, to, groups } => self.begin(now_us, *from, *to, groups)?,
        }
        self.settle();
        Ok(())
    }
}

impl Server {
    fn thread_observation(&self, cpu: usize) -> ThreadObservation {
        let thread = &self.threads[cpu];
        let meter = &thread.queue.meter;
        ThreadObservation {
            cpu: cpu as u32,
            state: thread.state,
            queueing_delay_us: meter.delay_us,
            queue_depth: meter.queue_depth,
            batch: meter.batch,
            iteration_us: meter.iteration_us,
            idle: meter.idle,
            rate_per_s: meter.rate_per_s,
            clock: Some(self.clocks[space::core_of(cpu as u32)]),
        }
    }

    /// A group's load with the error of a count over a short time.
    fn group_observation(&mut self, group: usize) -> GroupObservation {
        let group = self.groups[group];
        let Thread { queue, groups, .. } = &self.threads[group.thread];
        let expected = queue.meter.rate_per_s / f64::from((*groups).max(1)) * GROUP_LOAD_S;
        let counted = (expected + expected.sqrt() * normal(&mut self.rng)).max(0.0);
        GroupObservation { thread: group.thread as u16, load: counted / GROUP_LOAD_S }
    }

    fn set_clock(&mut self, cpus: &[u32], clock: Clock) -> Result<(), StepError> {
        if !space::clocks().any(|known| known == clock) {
            return error(format!("no clock {clock}: 1.20 to 2.40 GHz by 0.10, and turbo"));
        }
        for &cpu in cpus {
            self.clocks[space::core_of(known(cpu)?)] = clock;
        }
        Ok(())
    }

    fn set_background(&mut self, cpus: &[u32]) -> Result<(), StepError> {
        cpus.iter().try_for_each(|&cpu| known(cpu).map(drop))?;
        self.background = std::array::from_fn(|cpu| cpus.contains(&(cpu as u32)));
        Ok(())
    }

    fn resume(&mut self, now_us: u64, thread: u16) -> Result<(), StepError> {
        let cpu = known(u32::from(thread))? as usize;
        let thread = &mut self.threads[cpu];
        thread.parks = false;
        if thread.state != ThreadState::Elastic {
            thread.state = ThreadState::Elastic;
            thread.queue = Queue::default();
            thread.queue.stall(now_us + p::WAKE_US);
        }
        Ok(())
    }

    fn park(&mut self, thread: u16) -> Result<(), StepError> {
        let cpu = known(u32::from(thread))? as usize;
        let leaves = |g: &u16| self.migrations.iter().any(|m| m.groups.contains(g));
        let mut own = (0..p::FLOW_GROUPS).filter(|&g| self.groups[usize::from(g)].thread == cpu);
        if let Some(group) = own.find(|g| !leaves(g)) {
            return error(format!(
                "thread {thread} still has flow group {group}: migrate it first"
            ));
        }
        if self.migrations.iter().any(|m| m.to == cpu) {
            return error(format!("thread {thread} is about to get flow groups"));
        }
        if self.threads.iter().filter(|t| t.state == ThreadState::Elastic && !t.parks).count() < 2 {
            return error(format!("thread {thread} is the last one that runs"));
        }
        self.threads[cpu].parks = true;
        Ok(())
    }

    /// Migrations go one after the other (SoCC 4.5).
    fn begin(&mut self, now_us: u64, from: u16, to: u16, groups: &[u16]) -> Result<(), StepError> {
        let (source, target) = (known(u32::from(from))? as usize, known(u32::from(to))? as usize);
        if self.threads[target].state != ThreadState::Elastic || self.threads[target].parks {
            return error(format!("thread {to} does not run: resume it first"));
        }
        for &group in groups {
            let moving = self.migrations.iter().any(|m| m.groups.contains(&group));
            let owner = self.groups.get(usize::from(group)).map(|g| g.thread);
            if owner != Some(source) || moving {
                return error(format!("flow group {group} is not on thread {from}"));
            }
        }
        let adds_core = self.threads[target].groups < self.threads[source].groups;
        let start_us = self.migrations.back().map_or(now_us, |last| last.end_us.max(now_us));
        let end_us = start_us + migration::duration_us(adds_core, &mut self.rng);
        let groups = groups.to_vec();
        let (begun, held) = (false, (0.0, 0.0));
        let migration =
            Migration { from: source, to: target, groups, start_us, end_us, begun, held };
        self.migrations.push_back(migration);
        Ok(())
    }
}

fn known(cpu: u32) -> Result<u32, StepError> {
    if (cpu as usize) < CPUS {
        Ok(cpu)
    } else {
        error(format!("no hardware thread {cpu}: 0 to 15"))
    }
}

fn error<T>(line: String) -> Result<T, StepError> {
    Err(StepError { line })
}
