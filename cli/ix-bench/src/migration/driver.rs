//! Commands to migrate, and the dataplane's records of them.
use super::judge::patiently;
use ix_broker::control::Client;
use ix_dataplane::GroupSet;
use ix_proto::MigrationRecord;
use ix_proto::control::{Group, Request, Status};
use ix_random::Rng;
use ix_report::problem::Result;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Most flow groups of one command.
const GROUPS_MAX: u64 = 8;
/// Commands between two readings of the records: fewer than the dataplane keeps.
const COMMANDS: usize = 20;
/// This many refusals in a row are a failure.
const REFUSED_MAX: u64 = 50;

/// Moves flow groups of a server with two threads back and forth.
pub struct Driver {
    client: Client,
    path: PathBuf,
    /// The thread that owns each group.
    owners: Vec<u64>,
    random: Rng,
    moved: u64,
    refused: u64,
    refused_in_a_row: u64,
    /// Commands since the last reading.
    unseen: usize,
    records: Vec<MigrationRecord>,
    /// Start time and source of the records of the last reading.
    seen: BTreeSet<(u64, u16)>,
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

    /// Number of flow groups that were moved.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Number of commands that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    /// Moves some groups of a randomly chosen thread to the other one.
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
    pub fn take_records(&mut self) -> Result<Vec<MigrationRecord>> {
        self.look()?;
        Ok(std::mem::take(&mut self.records))
    }

    /// Reads the dataplane's status; updates owners and records.
    pub fn look(&mut self) -> Result<Status> {
        let (client, path) = (&mut self.client, &self.path);
        let status = patiently(|| {
            client.stats().inspect_err(|_| {
                // A reply that comes too late must not be taken for the next one.
                if let Ok(anew) = Client::connect(path) {
                    *client = anew;
                }
            })
        })?;
        self.unseen = 0;
        let owner = |(group, now): (usize, &Group)| {
            let owner = now.thread.map(|thread| thread as u64);
            owner.or_else(|| self.owners.get(group).copied()).unwrap_or(0)
        };
        self.owners = status.groups.iter().enumerate().map(owner).collect();
        let name = |record: &MigrationRecord| (record.start_us, record.from);
        let new = status.migrations.iter().filter(|record| !self.seen.contains(&name(record)));
        self.records.extend(new.cloned());
        self.seen = status.migrations.iter().map(name).collect();
        Ok(status)
    }
}
