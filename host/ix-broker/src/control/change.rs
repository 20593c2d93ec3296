//! What happened between two looks at a dataplane: tables and `ix top` are drawn from it.
use ix_dataplane::metrics::Stage;
use ix_proto::control::{Status, Thread};
use std::collections::BTreeMap;

/// What happened between two looks at the same dataplane.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    before: &'a Status,
    after: &'a Status,
}

/// Parts of a thread's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// In the dataplane.
    pub dataplane: f64,
    /// In the application.
    pub app: f64,
    /// Without work.
    pub idle: f64,
}

impl<'a> Change<'a> {
    /// `None` when they are of two dataplanes, or no time lies between them.
    pub fn between(before: &'a Status, after: &'a Status) -> Option<Change<'a>> {
        let same = before.pid == after.pid && before.threads.len() == after.threads.len();
        (same && before.now_us < after.now_us).then_some(Change { before, after })
    }

    /// Between the two looks, s.
    pub fn seconds(&self) -> f64 {
        (self.after.now_us - self.before.now_us) as f64 / 1e6
    }

    /// How fast a thread's counter grew, a second.
    pub fn rate(&self, thread: usize, name: &str) -> f64 {
        let count = |view: &Status| view.threads.get(thread).map_or(0, |t| t.counter(name));
        count(self.after).saturating_sub(count(self.before)) as f64 / self.seconds()
    }

    /// How fast a counter of all threads together grew, a second.
    pub fn total_rate(&self, name: &str) -> f64 {
        (0..self.after.threads.len()).map(|thread| self.rate(thread, name)).sum()
    }

    /// Where a thread's time went.
    pub fn shares(&self, thread: usize) -> Shares {
        let (Some(before), Some(after)) =
            (self.before.threads.get(thread), self.after.threads.get(thread))
        else {
            return Shares::default();
        };
        let ticks = |stage: Stage| {
            let count = |t: &Thread| t.stage_ticks.get(stage.name()).copied().unwrap_or(0);
            count(after).saturating_sub(count(before)) as f64
        };
        let all: f64 = Stage::ALL.into_iter().map(ticks).sum();
        let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
        let (app, idle) = (ticks(Stage::App), ticks(Stage::Idle));
        Shares { dataplane: share(all - app - idle), app: share(app), idle: share(idle) }
    }

    /// Packets of each flow group, a second.
    pub fn group_rates(&self) -> Vec<f64> {
        let before = self.before.groups.iter().map(|group| group.packets);
        let before = before.chain(std::iter::repeat(0));
        let pairs = self.after.groups.iter().zip(before);
        pairs.map(|(g, b)| g.packets.saturating_sub(b) as f64 / self.seconds()).collect()
    }

    /// Dropped packets a second, by reason, those that there were.
    pub fn drop_rates(&self) -> BTreeMap<&'a str, f64> {
        let before = self.before.drops();
        let grown = self.after.drops().into_iter().map(|(reason, count)| {
            let old = before.get(reason).copied().unwrap_or(0);
            (reason, count.saturating_sub(old) as f64 / self.seconds())
        });
        grown.filter(|(_, rate)| *rate > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use ix_proto::ThreadState;

    #[test]
    fn a_look_is_summed_up_and_two_are_compared() {
        let looks = [1_000_000, 3_000_000].map(sample);
        let [before, after] = &looks;
        assert_eq!((after.name(), after.in_state(ThreadState::Active)), ("ix-echo", 1));
        assert_eq!(after.total("flows"), 6);
        let groups: Vec<usize> = after.threads.iter().map(|t| t.flow_groups.len()).collect();
        assert_eq!(groups, [128, 0]);
        assert_eq!(after.threads[0].tail_us(64), 20.0, "two batches of 10 µs");
        assert_eq!(after.tail_us(), 20.0);
        assert_eq!(after.drops(), [("no_flow", 30)].into());
        let change = Change::between(before, after).expect("comparable");
        assert_eq!((change.seconds(), change.rate(0, "rx_packets")), (2.0, 1000.0));
        assert_eq!(change.total_rate("tx_packets"), 1000.0);
        let shares = change.shares(0);
        assert_eq!((shares.dataplane, shares.app, shares.idle), (0.25, 0.25, 0.5));
        assert_eq!(change.group_rates()[127], 127_000.0);
        assert_eq!(change.drop_rates(), [("no_flow", 10.0)].into());
        assert!(Change::between(after, before).is_none());
    }
}
