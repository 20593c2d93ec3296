//! What was observed of each connection, from both ends, and what is wrong with it.
use crate::plan::ConnectionPlan;

/// Client or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opened the connection.
    Client,
    /// Accepted it.
    Server,
}

/// How far one side of a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Not begun.
    #[default]
    Waiting,
    /// Open.
    Open,
    /// Ended as planned.
    Done,
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    /// How far it has come.
    pub progress: Progress,
    /// Bytes given to send.
    pub sent: u64,
    /// Bytes received, and right.
    pub received: u64,
    /// Attempts to connect that failed.
    pub failed_attempts: u32,
}

/// Observations of a run.
pub struct Ledger {
    /// The connections, as planned.
    pub plans: Vec<ConnectionPlan>,
    sides: Vec<[Side; 2]>,
    violations: Vec<String>,
    replays: u64,
}

/// Violations beyond this are not kept: the first ones tell.
const VIOLATIONS_MAX: usize = 20;

impl Ledger {
    /// Nothing was observed yet.
    pub fn new(plans: Vec<ConnectionPlan>) -> Ledger {
        let sides = vec![[Side::default(); 2]; plans.len()];
        Ledger { plans, sides, violations: Vec::new(), replays: 0 }
    }

    /// One side of a connection.
    pub fn side(&mut self, plan: usize, role: Role) -> &mut Side {
        &mut self.sides[plan][role as usize]
    }

    /// A server has read a greeting; false when there was a connection with this greeting before.
    ///
    /// A SYN cookie can be played again as long as it is valid: a late copy of the first segment
    /// makes a connection out of one that has ended. Without cookies that must not happen.
    pub fn open_server(&mut self, plan: usize) -> bool {
        let side = self.side(plan, Role::Server);
        if side.progress != Progress::Waiting {
            self.replays += 1;
            return false;
        }
        side.progress = Progress::Open;
        true
    }

    /// How often [`Ledger::open_server`] has answered false.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Something happened that must not.
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// What must not have happened.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Whether both sides of this connection have ended. The server of a connection that was reset
    /// may never have heard of it.
    pub fn is_over(&self, plan: usize) -> bool {
        let [client, server] = &self.sides[plan];
        let never_heard = self.plans[plan].end.is_abort() && server.progress == Progress::Waiting;
        client.progress == Progress::Done && (server.progress == Progress::Done || never_heard)
    }

    /// Connections that have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.plans.len()).filter(|&plan| !self.is_over(plan))
    }

    /// A line about a connection.
    pub fn describe(&self, plan: usize) -> String {
        let [client, server] = &self.sides[plan];
        format!("connection {plan} {:?}: client {client:?}, server {server:?}", self.plans[plan])
    }

    /// Bytes that arrived, in both directions of all connections.
    pub fn bytes(&self) -> u64 {
        self.sides.iter().flatten().map(|side| side.received).sum()
    }
}
