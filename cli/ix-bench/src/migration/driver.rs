//! Commands to migrate, and the dataplane's records of what came of them.
use super::judge::patiently;
use ix_broker::control::{Client, Request};
use ix_dataplane::GroupSet;
use ix_random::Rng;
use ix_report::problem::{Problem, Result};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Flow groups of one command at most.
const GROUPS_MAX: u64 = 8;
/// Commands between two looks at the records: fewer than the dataplane keeps.
const COMMANDS: usize = 20;
/// So many refusals in a row are no accident.
const REFUSED_MAX: u64 = 50;

/// One migration, as the dataplane has written it down.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Record {
    pub flow_groups: String,
    pub from: u64,
    pub to: u64,
    pub start_us: u64,
    pub prepare_us: f64,
    pub wait_us: f64,
    pub rpc_us: f64,
    pub deferred_us: f64,
    pub total_us: f64,
    pub pause_us: f64,
    /// Of the pause: the thread whose turn it was did not run.
    pub descheduled_us: f64,
    pub packets: f64,
    pub end: String,
}

/// Moves flow groups of a server with two threads about.
pub struct Driver {
    client: Client,
    path: PathBuf,
    /// The thread that has each group.
    owners: Vec<u64>,
    random: Rng,
    moved: u64,
    refused: u64,
    refused_in_a_row: u64,
    /// Commands since the last look.
    unseen: usize,
    records: Vec<Record>,
    /// When those of the last look began, and from where.
    seen: BTreeSet<(u64, u64)>,
}

impl Driver {
    pub fn new(path: &Path) -> Result<Driver> {
        let mut driver = Driver {
            client: patiently(|| Client::connect(path))?,
            path: path.to_owned(),
            owners: Vec::new(),
            random: Rng::new(1),
            moved: 0,
            refused: 0,
            refused_in_a_row: 0,
            unseen: 0,
            records: Vec::new(),
            seen: BTreeSet::new(),
        };
        driver.look()?;
        driver.records.clear();
        Ok(driver)
    }

    /// Flow groups that were moved.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Commands that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    /// Moves some groups of one thread, of whichever, to the other.
    pub fn migrate(&mut self) -> Result<()> {
        let from = self.random(2);
        let of_thread = |&group: &usize| self.owners[group] == from;
        let mut candidates: Vec<usize> = (0..self.owners.len()).filter(of_thread).collect();
        let most = GROUPS_MAX.min(candidates.len() as u64);
        if most == 0 {
            return Ok(());
        }
        let some = 1 + self.random(most);
        let mut groups = GroupSet::EMPTY;
        for _ in 0..some {
            let chosen = self.random(candidates.len() as u64) as usize;
            groups.insert(candidates.swap_remove(chosen));
        }
        let to = 1 - from;
        match self.client.ask(&Request::Migrate { groups, to: to as usize }) {
            Ok(_) => {
                groups.iter().for_each(|group| self.owners[group] = to);
                self.moved += some;
                self.refused_in_a_row = 0;
            }
            Err(problem) => {
                if let Ok(anew) = Client::connect(&self.path) {
                    self.client = anew;
                }
                self.refused += 1;
                self.refused_in_a_row += 1;
                if self.refused_in_a_row > REFUSED_MAX {
                    return Err(problem);
                }
                self.look()?;
            }
        }
        self.unseen += 1;
        if self.unseen >= COMMANDS {
            self.look()?;
        }
        Ok(())
    }

    /// The records since the last call.
    pub fn take_records(&mut self) -> Result<Vec<Record>> {
        self.look()?;
        Ok(std::mem::take(&mut self.records))
    }

    /// All that the dataplane says of itself; takes in owners and new records.
    pub fn look(&mut self) -> Result<Value> {
        let (client, path) = (&mut self.client, &self.path);
        let status = patiently(|| {
            client.ask(&Request::Stats).inspect_err(|_| {
                // An answer that comes too late must not be taken for the next one.
                if let Ok(anew) = Client::connect(path) {
                    *client = anew;
                }
            })
        })?;
        self.unseen = 0;
        let unreadable = || Problem::new("cannot read the dataplane's flow groups", "no owners");
        let groups = status["groups"].as_array().ok_or_else(unreadable)?;
        let owner = |(group, now): (usize, &Value)| {
            now["thread"].as_u64().or_else(|| self.owners.get(group).copied()).unwrap_or(0)
        };
        self.owners = groups.iter().enumerate().map(owner).collect();
        let records = Vec::<Record>::deserialize(&status["migrations"])
            .map_err(|e| Problem::new("cannot read the dataplane's records of migrations", e))?;
        let name = |record: &Record| (record.start_us, record.from);
        let new = records.iter().filter(|record| !self.seen.contains(&name(record)));
        self.records.extend(new.cloned());
        self.seen = records.iter().map(name).collect();
        Ok(status)
    }
}
