//! The listener against a naive model of what whoever asks and listens may expect.
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SECOND: u64 = 1_000_000;

fn group(n: u8) -> IpAddr {
    IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, n])
}

fn query(group: Option<IpAddr>, within_us: u64) -> Query {
    Query { group, within_us, older: 0 }
}

/// Runs to `until_us`; what was sent, and when.
fn run(listener: &mut Listener, until_us: u64) -> Vec<(u64, Report)> {
    let mut all = Vec::new();
    while listener.deadline() <= until_us {
        let (now_us, mut out) = (listener.deadline(), Vec::new());
        listener.tick(now_us, &mut out);
        assert!(!out.is_empty() && listener.deadline() > now_us, "nothing was due");
        all.extend(out.into_iter().map(|out| (now_us, out)));
    }
    all
}

fn kinds(sent: &[(u64, Report)]) -> Vec<RecordKind> {
    sent.iter().map(|(_, out)| out.kind).collect()
}

/// Sections 6.1 and 9.1: a change is told twice, within a second, and then nothing more.
#[test]
fn changes_are_told_twice() {
    let mut listener = Listener::new(7);
    listener.join(group(1), 5);
    let sent = run(&mut listener, 100 * SECOND);
    assert_eq!(kinds(&sent), [RecordKind::Joined; 2]);
    assert_eq!(sent[0].0, 5);
    assert!(sent[1].0 > 5 && sent[1].0 <= 5 + SECOND);
    // A second address in the group is no change, and neither is the first that goes.
    listener.join(group(1), 100 * SECOND);
    listener.leave(group(1), 100 * SECOND);
    assert_eq!(listener.deadline(), u64::MAX);
    listener.leave(group(1), 101 * SECOND);
    assert_eq!(kinds(&run(&mut listener, 200 * SECOND)), [RecordKind::Left; 2]);
    assert!(listener.groups.is_empty());
    listener.leave(group(1), 201 * SECOND);
    listener.on_query(&query(None, 0), 201 * SECOND);
    assert_eq!(listener.deadline(), u64::MAX);
}

/// Section 8.2.1: as long as somebody may know only the first version, it is spoken.
#[test]
fn the_first_version_is_spoken_where_it_is_asked_in() {
    let mut listener = Listener::new(7);
    listener.join(group(1), 0);
    run(&mut listener, SECOND);
    listener.on_query(&Query { older: 1, ..query(None, 0) }, 2 * SECOND);
    let sent = run(&mut listener, 3 * SECOND);
    assert!(sent.len() == 1 && sent[0].1.older == 1, "{sent:?}");
    let end_us = 2 * SECOND + OLDER_US;
    for (at_us, older) in [(end_us - 1, 1), (end_us, 0)] {
        listener.on_query(&query(Some(group(1)), 0), at_us);
        let sent = run(&mut listener, at_us);
        assert!(sent.len() == 1 && sent[0].1.older == older, "{sent:?}");
    }
    listener.on_query(&Query { older: 1, ..query(None, 0) }, end_us);
    run(&mut listener, end_us);
    listener.link_changed(end_us + 1);
    let sent = run(&mut listener, end_us + 1);
    assert!(sent[0].1.older == 0 && sent[0].1.kind == RecordKind::Joined, "{sent:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Join(u8),
    Leave(u8),
    Query(Option<u8>, u64),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..4).prop_map(Step::Join),
        (0u8..4).prop_map(Step::Leave),
        (prop::option::of(0u8..4), 0u64..3 * SECOND).prop_map(|(g, w)| Step::Query(g, w)),
        (0u64..2 * SECOND).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// Whoever listens to the reports knows the host's groups, whatever else was said; each
    /// question about a group of the host is answered in its time, and nothing is said of others.
    #[test]
    fn who_listens_knows_the_groups(seed: u64, steps in steps()) {
        let mut listener = Listener::new(seed);
        let mut members = BTreeMap::<u8, usize>::new();
        let mut known = BTreeSet::new();
        // Until when a group has to be mentioned.
        let mut asked = BTreeMap::<u8, u64>::new();
        let mut now_us = 0;
        let steps = steps.into_iter().chain([Step::Wait(10 * SECOND)]);
        for step in steps {
            match step {
                Step::Join(n) => {
                    listener.join(group(n), now_us);
                    *members.entry(n).or_default() += 1;
                }
                Step::Leave(n) => {
                    listener.leave(group(n), now_us);
                    let left = members.entry(n).or_default();
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        asked.remove(&n);
                    }
                }
                Step::Query(of, within_us) => {
                    listener.on_query(&query(of.map(group), within_us), now_us);
                    let own = members.iter().filter(|(_, count)| **count > 0);
                    for (n, _) in own.filter(|(n, _)| of.is_none_or(|of| of == **n)) {
                        let until_us = asked.entry(*n).or_insert(u64::MAX);
                        *until_us = (now_us + within_us).min(*until_us);
                    }
                }
                Step::Wait(us) => {
                    for (at_us, out) in run(&mut listener, now_us + us) {
                        prop_assert!(at_us >= now_us);
                        let n = out.group.0[15];
                        let listens = members.get(&n).is_some_and(|count| *count > 0);
                        match out.kind {
                            RecordKind::Left => {
                                prop_assert!(!listens);
                                known.remove(&n);
                            }
                            RecordKind::Joined | RecordKind::Listens => {
                                prop_assert!(listens);
                                known.insert(n);
                            }
                            kind => prop_assert!(false, "{kind:?} without sources"),
                        }
                        if out.kind == RecordKind::Listens {
                            let until_us = asked.remove(&n);
                            prop_assert!(until_us.is_some_and(|until_us| at_us <= until_us));
                        }
                    }
                    now_us += us;
                    prop_assert!(asked.values().all(|until_us| *until_us > now_us));
                }
            }
        }
        let own: BTreeSet<u8> =
            members.iter().filter(|(_, count)| **count > 0).map(|(n, _)| *n).collect();
        prop_assert_eq!(known, own);
        prop_assert_eq!(listener.deadline(), u64::MAX);
    }
}

fn source(n: u8) -> IpAddr {
    IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n])
}

fn filter(excludes: bool, sources: &[u8]) -> Filter {
    Filter::new(excludes, sources.iter().map(|n| source(*n)).collect())
}

/// What was said at once after a change, and the number of reports in all.
fn said(listener: &mut Listener, now_us: u64) -> (Vec<(RecordKind, Vec<IpAddr>)>, usize) {
    let mut first = Vec::new();
    listener.tick(now_us, &mut first);
    let later = run(listener, now_us + 10 * SECOND).len();
    let count = first.len() + later;
    (first.into_iter().map(|out| (out.kind, out.sources)).collect(), count)
}

/// RFC 3376 section 5.1: the table of changes.
#[test]
fn changes_of_sources_are_told_by_the_difference() {
    use RecordKind::{Allows, Blocks, Joined, Left};
    let mut listener = Listener::new(7);
    let mut now_us = 0;
    for (filter, expected) in [
        (filter(false, &[1, 2]), vec![(Allows, vec![source(1), source(2)])]),
        (filter(false, &[2, 3]), vec![(Allows, vec![source(3)]), (Blocks, vec![source(1)])]),
        (filter(true, &[4]), vec![(Joined, vec![source(4)])]),
        (filter(true, &[5]), vec![(Allows, vec![source(4)]), (Blocks, vec![source(5)])]),
        (filter(true, &[]), vec![(Allows, vec![source(5)])]),
        (filter(false, &[6]), vec![(Left, vec![source(6)])]),
        (filter(false, &[]), vec![(Blocks, vec![source(6)])]),
    ] {
        listener.set(group(1), filter, now_us);
        let (first, count) = said(&mut listener, now_us);
        assert_eq!(count, 2 * first.len(), "each is said twice");
        assert_eq!(first, expected);
        now_us += 20 * SECOND;
    }
    assert!(listener.groups.is_empty());
    // A change before the last one was told twice: what holds now, as a whole.
    listener.set(group(1), filter(false, &[1]), now_us);
    listener.tick(now_us, &mut Vec::new());
    listener.set(group(1), filter(false, &[2]), now_us + 1);
    assert_eq!(said(&mut listener, now_us + 1).0, [(Left, vec![source(2)])]);
    listener.on_query(&query(None, 0), now_us + 30 * SECOND);
    let (first, _) = said(&mut listener, now_us + 30 * SECOND);
    assert_eq!(first, [(RecordKind::Includes, vec![source(2)])]);
}

/// What was left waits to be reported again, unless others need its place.
#[test]
fn groups_that_begin_and_end_without_a_pause_are_bounded() {
    let nth = |n: u32| {
        let [a, b, c, d] = n.to_be_bytes();
        IpAddr::v4([239, a.max(b), c, d])
    };
    let mut listener = Listener::new(7);
    let kept = 10;
    (0..kept).for_each(|n| listener.set(nth(n), Filter::ANY, 0));
    for n in kept..4 * GROUPS_MAX as u32 {
        listener.set(nth(n), Filter::ANY, n.into());
        listener.tick(n.into(), &mut Vec::new());
        listener.set(nth(n), Filter::NONE, n.into());
        listener.tick(n.into(), &mut Vec::new());
        assert!(listener.groups.len() <= GROUPS_MAX);
    }
    let is_there = |n| listener.groups.iter().any(|group| group.address == nth(n));
    assert!((0..kept).all(is_there));
}

/// RFC 3376 section 4.2.16.
#[test]
fn a_report_is_cut_where_it_has_more_sources_than_a_message() {
    let report = |kind, count| Report {
        kind,
        group: group(1),
        sources: (0..count).map(source).collect(),
        older: 0,
    };
    let counts = |kind, count| -> Vec<usize> {
        report(kind, count).records(3).map(|record| record.sources.len()).collect()
    };
    for kind in [RecordKind::Includes, RecordKind::Left, RecordKind::Allows, RecordKind::Blocks] {
        assert_eq!(counts(kind, 7), [3, 3, 1]);
        assert_eq!(counts(kind, 3), [3]);
        assert_eq!(counts(kind, 0), [0]);
    }
    for kind in [RecordKind::Listens, RecordKind::Joined] {
        assert_eq!((counts(kind, 7), counts(kind, 0)), (vec![3], vec![0]));
    }
    let all = report(RecordKind::Allows, 7);
    let parts: Vec<IpAddr> = all.records(3).flat_map(|record| record.sources.to_vec()).collect();
    assert_eq!(parts, all.sources);
}

/// RFC 3376 section 7.2.1: as long as an old querier may be there, its version is spoken, the
/// oldest if there are two.
#[test]
fn the_oldest_version_that_is_asked_in_is_spoken() {
    let mut listener = Listener::new(7);
    let mut older = |asked: u8, at_us: u64| {
        listener.set(group(1), filter(false, &[1]), at_us);
        listener.on_query(&Query { older: asked, ..query(None, 0) }, at_us);
        let sent = run(&mut listener, at_us + 2 * SECOND);
        sent.iter().map(|(_, out)| (out.kind, out.older)).collect::<Vec<_>>()
    };
    let joined = (RecordKind::Joined, 2);
    assert_eq!(older(2, 0), [joined, (RecordKind::Includes, 2), joined]);
    assert_eq!(older(1, 10 * SECOND), [(RecordKind::Includes, 1)]);
    assert_eq!(older(0, 20 * SECOND), [(RecordKind::Includes, 1)]);
    assert_eq!(older(2, 10 * SECOND + OLDER_US), [(RecordKind::Includes, 2)]);
    assert_eq!(older(0, 10 * SECOND + 3 * OLDER_US), [(RecordKind::Includes, 0)]);
}

proptest! {
    /// RFC 3376 section 3.2: what is allowed is what one of the parts allows.
    #[test]
    fn merged_filters_allow_what_a_part_allows(
        parts in prop::collection::vec((any::<bool>(), prop::collection::vec(0u8..6, 0..4)), 0..5)
    ) {
        let parts: Vec<Filter> =
            parts.into_iter().map(|(excludes, sources)| filter(excludes, &sources)).collect();
        let merged = Filter::of_all(parts.iter());
        for n in 0..8 {
            let allowed = parts.iter().any(|part| part.allows(source(n)));
            prop_assert_eq!(merged.allows(source(n)), allowed, "{}", n);
        }
    }
}
