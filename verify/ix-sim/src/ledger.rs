//! What was observed of each connection, from both ends, and the violations.
use crate::plan::ConnectionPlan;

/// Client or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opened the connection.
    Client,
    /// Accepted it.
    Server,
}

/// How far one end of a connection has come.
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

/// What was observed at one end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndRecord {
    /// How far it has come.
    pub progress: Progress,
    /// Bytes given to send.
    pub sent: u64,
    /// Bytes received; all of them were right.
    pub received: u64,
    /// Number of failed attempts to connect.
    pub failed_attempts: u32,
}

/// Observations of a run.
pub struct Ledger {
    /// The connections, as planned.
    pub plans: Vec<ConnectionPlan>,
    ends: Vec<[EndRecord; 2]>,
    violations: Vec<String>,
    replays: u64,
}

/// Violations beyond this are dropped: the first ones suffice.
const VIOLATIONS_MAX: usize = 20;

impl Ledger {
    /// A ledger without observations.
    pub fn new(plans: Vec<ConnectionPlan>) -> Ledger {
        let ends = vec![[EndRecord::default(); 2]; plans.len()];
        Ledger { plans, ends, violations: Vec::new(), replays: 0 }
    }

    /// What was observed at one end of a connection.
    pub fn end(&mut self, plan: usize, role: Role) -> &mut EndRecord {
        &mut self.ends[plan][role as usize]
    }

    /// Records that a server has read a greeting. Returns false if a connection had this greeting
    /// before.
    ///
    /// A SYN cookie can be replayed while it is valid: a late copy of the first segment turns a
    /// connection that has ended into a new one. Without cookies that must not happen.
    pub fn open_server(&mut self, plan: usize) -> bool {
        let end = self.end(plan, Role::Server);
        if end.progress != Progress::Waiting {
            self.replays += 1;
            return false;
        }
        end.progress = Progress::Open;
        true
    }

    /// How often [`Ledger::open_server`] has returned false.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Records a violation.
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// All violations.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Whether both ends of this connection have ended. If the connection was reset, its server
    /// may never have known of it.
    pub fn is_over(&self, plan: usize) -> bool {
        let [client, server] = &self.ends[plan];
        let never_heard = self.plans[plan].end.is_abort() && server.progress == Progress::Waiting;
        client.progress == Progress::Done && (server.progress == Progress::Done || never_heard)
    }

    /// Connections that have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.plans.len()).filter(|&plan| !self.is_over(plan))
    }

    /// A line about a connection.
    pub fn describe(&self, plan: usize) -> String {
        let [client, server] = &self.ends[plan];
        format!("connection {plan} {:?}: client {client:?}, server {server:?}", self.plans[plan])
    }

    /// Bytes that arrived, in both directions of all connections.
    pub fn bytes(&self) -> u64 {
        self.ends.iter().flatten().map(|end| end.received).sum()
    }
}
