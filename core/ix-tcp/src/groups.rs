//! The groups that a host listens to, told to routers and switches: the listener's part of IGMP
//! (RFC 3376, answers in its earlier versions too) and of Multicast Listener Discovery (RFC 3810
//! section 6, RFC 9777; RFC 2710), which are the same but for their messages. One [`Listener`] has
//! the groups of one family.
//!
//! A question about some sources is answered like one about the group: the whole filter.
use ix_wire::IpAddr;
use ix_wire::membership::{Query, Record, RecordKind};

/// Robustness Variable: so often a change is reported (section 9.1 of RFC 3810).
const ROBUSTNESS: u8 = 2;
/// Unsolicited Report Interval: the repetition comes at any time within it (section 9.11).
const REPEAT_US: u64 = 1_000_000;
/// Most groups. One that was left a moment ago makes room for one that begins: its end is not
/// reported again then.
const GROUPS_MAX: usize = 2048;
/// Older Version Querier Present Timeout, of the default intervals: 2 × 125 s + 10 s (RFC 3810
/// section 9.12, RFC 3376 section 8.12).
pub const OLDER_US: u64 = 260_000_000;
/// How many earlier versions the protocols have.
const OLDER_VERSIONS: usize = 2;

/// Which sources of a group are listened to (RFC 3376 section 2).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// All but `sources`; else these alone.
    excludes: bool,
    /// In order, without repetitions.
    sources: Vec<IpAddr>,
}

impl Filter {
    /// Nobody listens.
    pub const NONE: Filter = Filter { excludes: false, sources: Vec::new() };
    /// To every source.
    pub const ANY: Filter = Filter { excludes: true, sources: Vec::new() };

    /// To all sources but these, or to these alone.
    pub fn new(excludes: bool, mut sources: Vec<IpAddr>) -> Filter {
        sources.sort_unstable();
        sources.dedup();
        Filter { excludes, sources }
    }

    /// Whether nobody listens.
    pub fn is_none(&self) -> bool {
        *self == Filter::NONE
    }

    /// Whether what this source sends is listened to.
    pub fn allows(&self, source: IpAddr) -> bool {
        self.excludes != self.names(source)
    }

    fn names(&self, source: IpAddr) -> bool {
        self.sources.binary_search(&source).is_ok()
    }

    /// What a host listens to whose parts want these (RFC 3376 section 3.2). There may be many of
    /// them, with many sources each: all are sorted once.
    pub fn of_all<'a>(parts: impl Iterator<Item = &'a Filter> + Clone) -> Filter {
        let including = parts.clone().filter(|part| !part.excludes);
        let wanted =
            Filter::new(false, including.flat_map(|part| &part.sources).copied().collect());
        let mut excluding = parts.filter(|part| part.excludes);
        let Some(first) = excluding.next() else { return wanted };
        // Excluded is what no part wants.
        let mut sources = first.sources.clone();
        excluding.for_each(|part| sources.retain(|source| part.names(*source)));
        sources.retain(|source| !wanted.names(*source));
        Filter { excludes: true, sources }
    }
}

/// Something to report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// What is said.
    pub kind: RecordKind,
    /// Of which group.
    pub group: IpAddr,
    /// Of which sources.
    pub sources: Vec<IpAddr>,
    /// It is said as this earlier version has it; 0: the latest.
    pub older: u8,
}

impl Report {
    /// As it goes into a message.
    pub fn record(&self) -> Record<'_> {
        Record { kind: self.kind, group: self.group, sources: &self.sources }
    }

    /// As it goes into messages of which each has room for so many sources: in parts, or, where all
    /// but the sources are listened to, without those that have no room (RFC 3376 section 4.2.16,
    /// RFC 3810 section 5.2.15).
    pub fn records(&self, most: usize) -> impl Iterator<Item = Record<'_>> {
        let excludes = matches!(self.kind, RecordKind::Listens | RecordKind::Joined);
        let parts = if excludes { 1 } else { self.sources.len().div_ceil(most).max(1) };
        let part = move |nth: usize| {
            let rest = self.sources.get(nth * most..).unwrap_or_default();
            Record { sources: &rest[..rest.len().min(most)], ..self.record() }
        };
        (0..parts).map(part)
    }
}

/// Where reports go.
pub trait ReportOutput {
    /// Sends a report, alone or with those that follow. It may be lost.
    fn send_report(&mut self, report: Report);
}

/// Collects reports, for callers that send later and for tests.
impl ReportOutput for Vec<Report> {
    fn send_report(&mut self, report: Report) {
        self.push(report);
    }
}

/// A group that the host listens to, or has left a moment ago.
#[derive(Clone, Debug)]
struct Group {
    address: IpAddr,
    /// Number of own addresses in the group: they listen to all sources.
    members: usize,
    /// What the host's sockets listen to.
    sockets: Filter,
    /// What was listened to before the latest change.
    before: Filter,
    /// The change is told by the whole filter, not by the difference.
    whole: bool,
    /// Reports of the latest change that are to be sent, and when.
    changes: u8,
    change_us: u64,
    /// When a question is answered.
    answer_us: u64,
}

/// The groups of one host in one family.
#[derive(Clone, Debug)]
pub struct Listener {
    groups: Vec<Group>,
    /// Until then somebody may know only the first version, and only the second one.
    older_until_us: [u64; OLDER_VERSIONS],
    random: u64,
}

impl Listener {
    /// A host without groups. `seed` spreads its reports.
    pub fn new(seed: u64) -> Self {
        Self { groups: Vec::new(), older_until_us: [0; OLDER_VERSIONS], random: seed | 1 }
    }

    /// One more address of the host is in this group from `at_us` on.
    pub fn join(&mut self, address: IpAddr, at_us: u64) {
        self.change(address, at_us, |group| group.members += 1);
    }

    /// One address less is in this group.
    pub fn leave(&mut self, address: IpAddr, now_us: u64) {
        self.change(address, now_us, |group| group.members = group.members.saturating_sub(1));
    }

    /// The host's sockets listen to these sources of a group from now on.
    pub fn set(&mut self, address: IpAddr, filter: Filter, now_us: u64) {
        self.change(address, now_us, |group| group.sockets = filter);
    }

    fn change(&mut self, address: IpAddr, at_us: u64, how: impl FnOnce(&mut Group)) {
        let place = self.groups.iter().position(|group| group.address == address);
        let place = place.unwrap_or_else(|| {
            self.make_room();
            self.groups.push(Group::new(address));
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        let before = group.wanted();
        how(group);
        if group.wanted() != before {
            group.changed(before, at_us);
        } else if group.is_over() {
            self.groups.swap_remove(place);
        }
    }

    fn make_room(&mut self) {
        if self.groups.len() < GROUPS_MAX {
            return;
        }
        if let Some(place) = self.groups.iter().position(Group::was_left) {
            self.groups.swap_remove(place);
        }
    }

    /// The link is another one: whoever is there has not heard of the groups.
    pub fn link_changed(&mut self, now_us: u64) {
        self.older_until_us = [0; OLDER_VERSIONS];
        self.groups.retain(|group| !group.was_left());
        for group in &mut self.groups {
            (group.changes, group.answer_us) = (0, u64::MAX);
            group.changed(Filter::NONE, now_us);
        }
    }

    /// Somebody asks. One answer serves all who ask before it is sent.
    pub fn on_query(&mut self, query: &Query, now_us: u64) {
        if let Some(until_us) = usize::from(query.older)
            .checked_sub(1)
            .and_then(|version| self.older_until_us.get_mut(version))
        {
            *until_us = now_us.saturating_add(OLDER_US);
        }
        let answer_us = now_us.saturating_add(self.within(query.within_us));
        let asked = |group: &&mut Group| {
            !group.was_left() && query.group.is_none_or(|address| address == group.address)
        };
        for group in self.groups.iter_mut().filter(asked) {
            group.answer_us = group.answer_us.min(answer_us);
        }
    }

    /// Reports what is due.
    pub fn tick(&mut self, now_us: u64, out: &mut impl ReportOutput) {
        if now_us < self.deadline() {
            return;
        }
        let again_us = now_us.saturating_add(1 + self.within(REPEAT_US - 1));
        let spoken = self.older_until_us.iter().position(|until_us| now_us < *until_us);
        let older = spoken.map_or(0, |version| version as u8 + 1);
        for group in &mut self.groups {
            if group.change_us <= now_us {
                group.report_change(older, out);
                group.changes -= 1;
                group.change_us = if group.changes > 0 { again_us } else { u64::MAX };
            }
            if group.answer_us <= now_us {
                let Filter { excludes, sources } = group.wanted();
                let kind = if excludes { RecordKind::Listens } else { RecordKind::Includes };
                out.send_report(Report { kind, group: group.address, sources, older });
                group.answer_us = u64::MAX;
            }
        }
        self.groups.retain(|group| !group.is_over());
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
    fn new(address: IpAddr) -> Group {
        Group {
            address,
            members: 0,
            sockets: Filter::NONE,
            before: Filter::NONE,
            whole: false,
            changes: 0,
            change_us: u64::MAX,
            answer_us: u64::MAX,
        }
    }

    /// What the host listens to.
    fn wanted(&self) -> Filter {
        if self.members > 0 { Filter::ANY } else { self.sockets.clone() }
    }

    /// Nobody of the host listens.
    fn was_left(&self) -> bool {
        self.members == 0 && self.sockets.is_none()
    }

    fn is_over(&self) -> bool {
        self.changes == 0 && self.was_left()
    }

    fn changed(&mut self, before: Filter, at_us: u64) {
        let now = self.wanted();
        // A difference to what was never told says nothing (RFC 3376 section 5.1).
        self.whole = self.changes > 0 || now.excludes != before.excludes;
        self.before = before;
        (self.changes, self.change_us) = (ROBUSTNESS, at_us);
        if now.is_none() {
            self.answer_us = u64::MAX;
        }
    }

    /// Says what has changed.
    fn report_change(&self, older: u8, out: &mut impl ReportOutput) {
        let (now, before, group) = (self.wanted(), &self.before, self.address);
        let mut say = |kind, sources| out.send_report(Report { kind, group, sources, older });
        let whole = if now.excludes { RecordKind::Joined } else { RecordKind::Left };
        if older > 0 {
            // Earlier versions know no sources.
            return match now.is_none() {
                true => say(RecordKind::Left, Vec::new()),
                false => say(RecordKind::Joined, Vec::new()),
            };
        }
        if self.whole {
            return say(whole, now.sources);
        }
        let less = |some: &Filter, other: &Filter| -> Vec<IpAddr> {
            some.sources.iter().copied().filter(|source| !other.names(*source)).collect()
        };
        let (more, fewer) = (less(&now, before), less(before, &now));
        let (allowed, blocked) = if now.excludes { (fewer, more) } else { (more, fewer) };
        for (kind, sources) in [(RecordKind::Allows, allowed), (RecordKind::Blocks, blocked)] {
            if !sources.is_empty() {
                say(kind, sources);
            }
        }
    }
}

#[cfg(test)]
mod tests;
