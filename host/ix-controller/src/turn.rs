//! The loop around the controller: observations go in, decisions are carried out and reported.
use crate::{Controller, Decision, Platform, Policy, Step, StepError};
use std::fmt;

/// Ten times per second, as in the papers.
pub const TICK_US: u64 = 100_000;

/// A line for the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// This was decided and carried out.
    Done(Decision),
    /// This was decided, and a step failed: the remaining steps were skipped.
    Failed {
        /// The decision.
        decision: Decision,
        /// The step that failed.
        step: Step,
        /// The reason.
        error: StepError,
    },
    /// The machine's hardware threads or clocks have changed.
    Machine(String),
}

impl Event {
    /// The decision, if it is one.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Event::Done(decision) | Event::Failed { decision, .. } => Some(decision),
            Event::Machine(_) => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Done(decision) => decision.fmt(f),
            Event::Failed { decision, step, error } => {
                write!(f, "{decision}: cannot {step}: {error}")
            }
            Event::Machine(line) => f.write_str(line),
        }
    }
}

/// A controller and its platform.
#[derive(Debug)]
pub struct ControlLoop<P> {
    controller: Controller,
    platform: P,
}

impl<P: Platform> ControlLoop<P> {
    /// Takes over the state of the platform.
    pub fn new(policy: Policy, mut platform: P) -> ControlLoop<P> {
        let machine = platform.machine();
        ControlLoop { controller: Controller::new(policy, machine), platform }
    }

    /// The controller.
    pub fn controller(&mut self) -> &mut Controller {
        &mut self.controller
    }

    /// The platform.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// The controller and the platform.
    pub fn parts(&mut self) -> (&mut Controller, &mut P) {
        (&mut self.controller, &mut self.platform)
    }

    /// One turn, to be run every [`TICK_US`].
    pub fn turn(&mut self, now_us: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let seen = self.platform.observe(now_us);
        let machine = self.platform.machine();
        if machine != *self.controller.machine() {
            let cpus = crate::ranges(&machine.cpus());
            events.push(Event::Machine(format!("the machine now has hardware threads {cpus}")));
            self.controller.set_machine(machine);
        }
        for decision in self.controller.tick(now_us, &seen) {
            events.push(self.carry_out(now_us, decision));
        }
        events
    }

    fn carry_out(&mut self, now_us: u64, decision: Decision) -> Event {
        let id = decision.dataplane;
        for step in &decision.steps {
            if let Err(error) = self.platform.apply(now_us, id, step) {
                self.controller.failed(now_us, id);
                let step = step.clone();
                return Event::Failed { decision, step, error };
            }
        }
        self.controller.succeeded(id);
        Event::Done(decision)
    }
}
