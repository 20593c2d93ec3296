//! The listener against a naive model of what whoever asks and listens may expect.
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SECOND: u64 = 1_000_000;

fn group(n: u8) -> IpAddr {
    IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, n])
}

fn query(group: Option<IpAddr>, within_us: u64) -> Query {
    Query { group, within_us, is_version1: false }
}

/// Runs to `until_us`; what was sent, and when.
fn run(listener: &mut Listener, until_us: u64) -> Vec<(u64, MldOut)> {
    let mut all = Vec::new();
    while listener.deadline() <= until_us {
        let (now_us, mut out) = (listener.deadline(), Vec::new());
        listener.tick(now_us, &mut out);
        assert!(!out.is_empty() && listener.deadline() > now_us, "nothing was due");
        all.extend(out.into_iter().map(|out| (now_us, out)));
    }
    all
}

fn kinds(sent: &[(u64, MldOut)]) -> Vec<RecordKind> {
    sent.iter().map(|(_, out)| out.record.kind).collect()
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
    listener.on_query(&Query { is_version1: true, ..query(None, 0) }, 2 * SECOND);
    let sent = run(&mut listener, 3 * SECOND);
    assert!(sent.len() == 1 && sent[0].1.is_version1, "{sent:?}");
    let end_us = 2 * SECOND + VERSION1_US;
    for (at_us, is_version1) in [(end_us - 1, true), (end_us, false)] {
        listener.on_query(&query(Some(group(1)), 0), at_us);
        let sent = run(&mut listener, at_us);
        assert!(sent.len() == 1 && sent[0].1.is_version1 == is_version1, "{sent:?}");
    }
    listener.on_query(&Query { is_version1: true, ..query(None, 0) }, end_us);
    run(&mut listener, end_us);
    listener.link_changed(end_us + 1);
    let sent = run(&mut listener, end_us + 1);
    assert!(!sent[0].1.is_version1 && sent[0].1.record.kind == RecordKind::Joined, "{sent:?}");
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
                        let n = out.record.group.0[15];
                        let listens = members.get(&n).is_some_and(|count| *count > 0);
                        match out.record.kind {
                            RecordKind::Left => {
                                prop_assert!(!listens);
                                known.remove(&n);
                            }
                            RecordKind::Joined | RecordKind::Listens => {
                                prop_assert!(listens);
                                known.insert(n);
                            }
                        }
                        if out.record.kind == RecordKind::Listens {
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
