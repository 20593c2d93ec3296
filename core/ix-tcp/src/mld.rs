//! The groups that a host listens to, told to routers and switches: the listener's part of
//! Multicast Listener Discovery (RFC 3810 section 6, RFC 9777), and of its first version (RFC
//! 2710).
//!
//! A host without sockets for groups listens only to those in which neighbours ask for its
//! addresses, and to all of their sources. So a question about some sources is answered like one
//! about the group.
use ix_wire::IpAddr;
use ix_wire::mld::{Query, Record, RecordKind};

/// Robustness Variable: so often a change is reported (section 9.1).
const ROBUSTNESS: u8 = 2;
/// Unsolicited Report Interval: the repetition comes at any time within it (section 9.11).
const REPEAT_US: u64 = 1_000_000;
/// Older Version Querier Present Timeout, of the default intervals: 2 × 125 s + 10 s (section
/// 9.12).
pub const VERSION1_US: u64 = 260_000_000;

/// Something to report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MldOut {
    /// What is said of which group.
    pub record: Record,
    /// It is said as the first version has it.
    pub is_version1: bool,
}

/// Where reports go.
pub trait MldOutput {
    /// Sends a report, alone or with those that follow. It may be lost.
    fn send_mld(&mut self, report: MldOut);
}

/// Collects reports, for callers that send later and for tests.
impl MldOutput for Vec<MldOut> {
    fn send_mld(&mut self, report: MldOut) {
        self.push(report);
    }
}

/// A group that the host listens to, or has left a moment ago.
#[derive(Clone, Debug)]
struct Group {
    address: IpAddr,
    /// Number of own addresses in the group.
    members: usize,
    /// Reports of the latest change that are to be sent, and when.
    changes: u8,
    change_us: u64,
    /// When a question is answered.
    answer_us: u64,
}

/// The groups of one host.
#[derive(Clone, Debug)]
pub struct Listener {
    groups: Vec<Group>,
    /// Until then somebody may know only the first version.
    version1_until_us: u64,
    random: u64,
}

impl Listener {
    /// A host without groups. `seed` spreads its reports.
    pub fn new(seed: u64) -> Self {
        Self { groups: Vec::new(), version1_until_us: 0, random: seed | 1 }
    }

    /// One more address of the host is in this group from `at_us` on.
    pub fn join(&mut self, address: IpAddr, at_us: u64) {
        let found = self.groups.iter_mut().find(|group| group.address == address);
        match found {
            Some(group) => {
                group.members += 1;
                if group.members == 1 {
                    group.changed(at_us);
                }
            }
            None => self.groups.push(Group {
                address,
                members: 1,
                changes: ROBUSTNESS,
                change_us: at_us,
                answer_us: u64::MAX,
            }),
        }
    }

    /// One address less is in this group.
    pub fn leave(&mut self, address: IpAddr, now_us: u64) {
        let member = |group: &&mut Group| group.address == address && group.members > 0;
        let Some(group) = self.groups.iter_mut().find(member) else { return };
        group.members -= 1;
        if group.members == 0 {
            group.changed(now_us);
            group.answer_us = u64::MAX;
        }
    }

    /// The link is another one: whoever is there has not heard of the groups.
    pub fn link_changed(&mut self, now_us: u64) {
        self.version1_until_us = 0;
        self.groups.retain(|group| group.members > 0);
        self.groups.iter_mut().for_each(|group| group.changed(now_us));
    }

    /// Somebody asks. One answer serves all who ask before it is sent.
    pub fn on_query(&mut self, query: &Query, now_us: u64) {
        if query.is_version1 {
            self.version1_until_us = now_us.saturating_add(VERSION1_US);
        }
        let answer_us = now_us.saturating_add(self.within(query.within_us));
        let asked = |group: &&mut Group| {
            group.members > 0 && query.group.is_none_or(|address| address == group.address)
        };
        for group in self.groups.iter_mut().filter(asked) {
            group.answer_us = group.answer_us.min(answer_us);
        }
    }

    /// Reports what is due.
    pub fn tick(&mut self, now_us: u64, out: &mut impl MldOutput) {
        if now_us < self.deadline() {
            return;
        }
        let again_us = now_us.saturating_add(1 + self.within(REPEAT_US - 1));
        let is_version1 = now_us < self.version1_until_us;
        for group in &mut self.groups {
            let address = group.address;
            let mut say = |kind: RecordKind| {
                let record = Record { kind, group: address };
                out.send_mld(MldOut { record, is_version1 });
            };
            if group.change_us <= now_us {
                say(if group.members > 0 { RecordKind::Joined } else { RecordKind::Left });
                group.changes -= 1;
                group.change_us = if group.changes > 0 { again_us } else { u64::MAX };
            }
            if group.answer_us <= now_us {
                say(RecordKind::Listens);
                group.answer_us = u64::MAX;
            }
        }
        self.groups.retain(|group| group.members > 0 || group.changes > 0);
    }

    /// When [`Self::tick`] has something to do; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        let due = |group: &Group| group.change_us.min(group.answer_us);
        self.groups.iter().map(due).min().unwrap_or(u64::MAX)
    }

    /// A random time from 0 to `most_us`.
    fn within(&mut self, most_us: u64) -> u64 {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) % (most_us + 1)
    }
}

impl Group {
    fn changed(&mut self, at_us: u64) {
        (self.changes, self.change_us) = (ROBUSTNESS, at_us);
    }
}

#[cfg(test)]
mod tests;
