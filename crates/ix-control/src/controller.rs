//! The controller: decides when a dataplane gets more or less, and which.
use crate::{Decision, Machine, Observation, Policy};

/// Decides for all dataplanes of a host. Pure: time is an argument, nothing is read or written.
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    machine: Machine,
}

impl Controller {
    /// A controller that has seen nothing yet: it takes over whatever state it finds.
    pub fn new(policy: Policy, machine: Machine) -> Controller {
        Controller { policy, machine }
    }

    /// Another policy from now on; the present configuration stays until load says otherwise.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The machine has changed.
    pub fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// One turn of the 10 Hz loop.
    pub fn tick(&mut self, _now_us: u64, _observations: &[Observation]) -> Vec<Decision> {
        let _ = (&self.policy, &self.machine);
        Vec::new()
    }
}
