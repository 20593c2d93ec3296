//! The writing end of an elastic thread's block, and the stopwatch of its cycle.
use super::window::Window;
use super::{BATCH_BUCKETS, ControlPage, LocalDrop, Place, ThreadBlock};
use crate::clock::ticks;
use core::ops::Deref;
use core::ptr::NonNull;
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use ix_tcp::TcpCounter;
use ix_wire::DropReason;
use std::sync::Arc;

/// The parts of a cycle that time is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Step 1: the receive ring.
    Poll,
    /// Step 2: the protocol stack.
    Process,
    /// Step 3: the application.
    App,
    /// Step 4: batched system calls.
    Calls,
    /// Step 5: timers.
    Timers,
    /// Step 6: the transmit ring.
    Transmit,
    /// Waiting for work: asleep, or in cycles that found nothing to do.
    Idle,
}

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = 7;

    /// All stages, in the order of their counters.
    pub const ALL: [Stage; Stage::COUNT] = [
        Stage::Poll,
        Stage::Process,
        Stage::App,
        Stage::Calls,
        Stage::Timers,
        Stage::Transmit,
        Stage::Idle,
    ];

    /// Whether the thread is not in the dataplane's code.
    const fn is_outside(self) -> bool {
        matches!(self, Stage::App | Stage::Idle)
    }

    /// Name of the counter.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Poll => "poll",
            Stage::Process => "process",
            Stage::App => "app",
            Stage::Calls => "calls",
            Stage::Timers => "timers",
            Stage::Transmit => "transmit",
            Stage::Idle => "idle",
        }
    }
}

/// One cycle of this many is timed stage by stage, because reading the counter costs a tenth of a
/// message. It is a prime, so that no rhythm of the cycles hides a part of them.
const SAMPLE_EVERY: u32 = 13;

/// Most packets that are assumed to wait in a device that cannot tell: as many as the queue of a
/// Linux interface holds.
const FULL_RUN_MAX: u64 = 1_000;

/// The writing end of one [`ThreadBlock`], and the stopwatch of the cycle's stages.
pub struct ThreadMetrics {
    block: NonNull<ThreadBlock>,
    /// Keeps the block's memory mapped.
    page: Arc<ControlPage>,
    stage: Stage,
    stage_since: u64,
    cycle_since: u64,
    /// Until when all time is charged.
    charged_until: u64,
    /// Ticks by stage that are not charged yet. Those inside of the dataplane count only where the
    /// cycle is timed stage by stage.
    cycle_ticks: [u64; Stage::COUNT],
    /// Whether this cycle is timed stage by stage.
    detailed: bool,
    /// The stage is inside of the dataplane, and the next one there is not timed.
    passes: bool,
    /// Number of cycles until the next one that is timed stage by stage.
    until_detailed: u32,
    sample_every: u32,
    /// Ticks of cycles that did something and were not timed stage by stage.
    undivided: u64,
    /// Number of batched system calls at the end of the last cycle.
    calls_seen: u64,
    window: Window,
    /// Packets since a device that cannot tell how many wait was last seen empty.
    full_run: u64,
}

// SAFETY: the pointer is to shared memory of atomics, kept alive by `page`.
unsafe impl Send for ThreadMetrics {}

impl Deref for ThreadMetrics {
    type Target = ThreadBlock;

    #[inline]
    fn deref(&self) -> &ThreadBlock {
        // SAFETY: points into `page`'s mapping, which is as long as self; the block holds nothing
        // but atomics, so that shared references are all that is ever needed.
        unsafe { self.block.as_ref() }
    }
}

impl ThreadMetrics {
    /// The writing end for elastic thread `index`. With two for one thread, counts would be lost.
    ///
    /// # Panics
    /// If the page has no such thread, or was mapped for reading only.
    pub fn new(page: &Arc<ControlPage>, index: usize) -> ThreadMetrics {
        assert!(page.writable(), "the page is mapped for reading only");
        let now = ticks();
        ThreadMetrics {
            block: NonNull::from(page.thread(index)),
            page: page.clone(),
            stage: Stage::App,
            stage_since: now,
            cycle_since: now,
            charged_until: now,
            cycle_ticks: [0; Stage::COUNT],
            detailed: true,
            passes: false,
            until_detailed: 0,
            sample_every: SAMPLE_EVERY,
            undivided: 0,
            calls_seen: 0,
            window: Window::new(now, page.ticks_per_us()),
            full_run: 0,
        }
    }

    /// Charges the time from now on to `stage`.
    #[inline(always)]
    pub fn enter(&mut self, stage: Stage) {
        if self.passes && !stage.is_outside() {
            return;
        }
        self.enter_at(stage, ticks());
    }

    /// The same for the time from `now` on: the counter has just been read.
    #[inline]
    pub fn enter_at(&mut self, stage: Stage, now: u64) {
        self.cycle_ticks[self.stage as usize] += now.wrapping_sub(self.stage_since);
        if self.stage.is_outside() {
            self.cycle_since = now;
        }
        self.stage = stage;
        self.stage_since = now;
        self.passes = !self.detailed && !stage.is_outside();
    }

    /// To be called at the end of a cycle that received and sent this many packets; `worked`: it
    /// fired timers or left events. The application is next, unless [`ThreadMetrics::waits`] is
    /// called.
    #[inline]
    pub fn cycle_done(&mut self, received: usize, sent: usize, worked: bool) {
        self.enter(Stage::App);
        self.counters.cycles.add(1);
        self.batches[batch_bucket(received)].add(1);
        if received + sent > 0 {
            self.counters.busy_cycles.add(1);
            let length = self.stage_since.wrapping_sub(self.cycle_since);
            self.busy_cycle_ticks.record(length);
        }
        let calls = self.counters.calls.get();
        let worked = worked || received + sent > 0 || calls != self.calls_seen;
        self.calls_seen = calls;
        self.charge(worked);
    }

    /// A cycle took `taken` packets and left `left` behind in devices that can tell. `blind`: a
    /// device that cannot tell gave all that it was asked for, and may have more.
    #[inline]
    pub fn waited(&mut self, taken: usize, left: usize, blind: bool) {
        let sums = &mut self.window.sums;
        sums.receiving += 1;
        sums.packets += taken as u64;
        sums.depth += (taken + left) as u64;
        if blind || self.full_run > 0 {
            self.waited_blindly(taken, blind);
        }
    }

    /// Counts the packets that arrived since the device was last seen empty.
    #[cold]
    fn waited_blindly(&mut self, taken: usize, blind: bool) {
        self.window.sums.depth += self.full_run;
        self.full_run = if blind { (self.full_run + taken as u64).min(FULL_RUN_MAX) } else { 0 };
    }

    /// Ends the window if it is over. Called about every millisecond, not in each cycle.
    pub fn look_at_window(&mut self) {
        let now = ticks();
        if self.window.is_over(now) {
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: u64) {
        let idle = self.stage_ticks[Stage::Idle as usize].get();
        let busy_cycles = self.counters.busy_cycles.get();
        // SAFETY: as in `deref`; borrowed beside the window, which is no part of the block.
        let block = unsafe { self.block.as_ref() };
        let (packets, delay_ns) = self.window.end(now, (busy_cycles, idle), &block.window);
        if packets > 0 {
            block.queueing_delay_ns.record_many(delay_ns, packets);
        }
    }

    /// To be called when the thread is about to sleep.
    pub fn sleeps(&mut self, now_us: u64) {
        self.whereabouts.set(Place::Asleep { since_us: now_us });
    }

    /// To be called when it has slept since this value of the time stamp counter.
    pub fn slept(&mut self, since: u64) {
        self.whereabouts.set(Place::Dataplane);
        let now = ticks();
        if !self.window.is_long(since, now) {
            return;
        }
        // The time before is a window of its own, so that a long sleep does not dilute it.
        self.charge_idle(since);
        self.end_window(since);
        self.charge_idle(now);
        self.end_window(now);
    }

    /// Records that it was awake this long after it was rung, µs.
    pub fn woke_after_us(&self, us: u64) {
        self.wake_ticks.set(us.saturating_mul(self.page().ticks_per_us()));
    }

    /// Charges the time up to `now` as idle, at once.
    fn charge_idle(&mut self, now: u64) {
        let idle = now.wrapping_sub(self.stage_since);
        self.stage_ticks[Stage::Idle as usize].add(idle);
        self.charged_until = self.charged_until.wrapping_add(idle);
        (self.stage, self.stage_since) = (Stage::Idle, now);
    }

    /// Records a migration that has ended here.
    pub fn migrated(&self, record: &MigrationRecord) {
        self.migrations.push(record);
    }

    /// The whole page.
    pub fn page(&self) -> &ControlPage {
        &self.page
    }

    /// Publishes which flow groups the thread owns.
    pub fn set_owned(&self, groups: &GroupSet) {
        for (word, bits) in self.owned.iter().zip(groups.words()) {
            word.set(bits);
        }
    }

    /// The application is not next: the thread continues to look for work.
    #[inline]
    pub fn waits(&mut self) {
        self.stage = Stage::Idle;
    }

    /// Charges the cycle's time to its stages. Time spent looking for packets in vain is not
    /// charged to the packets that arrive in the end.
    #[inline]
    fn charge(&mut self, worked: bool) {
        let all = self.stage_since.wrapping_sub(self.charged_until);
        self.charged_until = self.stage_since;
        let outside = |stage: Stage| std::mem::take(&mut self.cycle_ticks[stage as usize]);
        let [app, idle] = [Stage::App, Stage::Idle].map(outside);
        let inside = all.saturating_sub(app + idle);
        self.stage_ticks[Stage::App as usize].add(app);
        self.stage_ticks[Stage::Idle as usize].add(if worked { idle } else { idle + inside });
        if self.detailed || self.until_detailed == 0 {
            self.begin_or_end_detailed(worked, inside);
        } else {
            self.undivided += if worked { inside } else { 0 };
            self.until_detailed -= 1;
        }
    }

    /// [`Self::charge`] where the last cycle was timed stage by stage, or the next one is.
    #[inline(never)]
    fn begin_or_end_detailed(&mut self, worked: bool, inside: u64) {
        let cycle = std::mem::take(&mut self.cycle_ticks);
        if worked && self.detailed {
            self.divide(&cycle, inside);
        } else if worked {
            self.undivided += inside;
        }
        self.detailed = self.until_detailed == 0;
        self.until_detailed =
            if self.detailed { self.sample_every - 1 } else { self.until_detailed - 1 };
    }

    /// Charges a cycle that was timed stage by stage, and in the same proportions the cycles before
    /// it that were not.
    fn divide(&mut self, cycle: &[u64; Stage::COUNT], inside: u64) {
        let undivided = std::mem::take(&mut self.undivided) as u128;
        for stage in Stage::ALL.into_iter().filter(|stage| !stage.is_outside()) {
            let ticks = cycle[stage as usize];
            let share = undivided * ticks as u128 / inside.max(1) as u128;
            self.stage_ticks[stage as usize].add(ticks + share as u64);
        }
    }

    /// Counts a packet that the parser has refused.
    #[inline]
    pub fn drop_packet(&self, reason: DropReason) {
        self.drops[reason.index()].add(1);
    }

    /// Counts an event of a connection.
    #[inline]
    pub fn count_tcp(&self, what: TcpCounter) {
        self.tcp[what.index()].add(1);
    }

    /// Counts a packet that the dataplane has dropped.
    #[inline]
    pub fn drop_local(&self, reason: LocalDrop) {
        self.local_drops[reason as usize].add(1);
    }
}

fn batch_bucket(received: usize) -> usize {
    ((usize::BITS - received.leading_zeros()) as usize).min(BATCH_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_to_the_stage_it_was_spent_in() {
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let mut metrics = ThreadMetrics::new(&page, 0);
        metrics.waits();
        let spin = |ms| {
            let end = std::time::Instant::now() + std::time::Duration::from_millis(ms);
            while std::time::Instant::now() < end {}
        };
        spin(8);
        metrics.enter(Stage::Timers);
        spin(1);
        metrics.cycle_done(1, 1, false);
        let ticks = |stage: Stage| metrics.stage_ticks[stage as usize].get();
        assert!(ticks(Stage::Idle) > ticks(Stage::Timers));
        assert!(ticks(Stage::Timers) > ticks(Stage::Transmit));
        // The time before the thread woke is not part of the cycle.
        assert!(metrics.busy_cycle_ticks.read().max() <= ticks(Stage::Timers) * 2);
        assert!(metrics.busy_cycle_ticks.read().max() < ticks(Stage::Idle));
    }

    #[test]
    fn a_cycle_in_vain_is_idle_and_the_application_is_not() {
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let mut metrics = ThreadMetrics::new(&page, 0);
        metrics.sample_every = 1;
        let turn = |metrics: &mut ThreadMetrics, worked| {
            metrics.enter(Stage::Poll);
            metrics.enter(Stage::Process);
            metrics.cycle_done(0, 0, worked);
        };
        let ticks = || Stage::ALL.map(|stage| page.thread(0).stage_ticks[stage as usize].get());
        turn(&mut metrics, false);
        let [poll, process, app, .., idle] = ticks();
        assert!((poll, process) == (0, 0) && app > 0 && idle > 0, "{:?}", ticks());
        metrics.waits();
        turn(&mut metrics, false);
        assert_eq!(ticks()[Stage::App as usize], app, "the thread did not return");
        assert!(ticks()[Stage::Idle as usize] > idle);
        let idle = ticks()[Stage::Idle as usize];
        turn(&mut metrics, true);
        let [poll, process, ..] = ticks();
        assert!(poll > 0 && process > 0, "{:?}", ticks());
        assert_eq!(ticks()[Stage::Idle as usize], idle);
        // Calls count as work as well.
        metrics.counters.calls.add(1);
        turn(&mut metrics, false);
        assert!(ticks()[0] > poll);
        let poll = ticks()[0];
        turn(&mut metrics, false);
        assert_eq!(ticks()[0], poll, "the same calls are none");
    }

    /// Ticks of each stage, and of all, if every cycle spends three times as long in one stage as
    /// in another.
    fn measure() -> ([u64; Stage::ALL.len()], u64) {
        let start = ticks();
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let mut metrics = ThreadMetrics::new(&page, 0);
        let spin = |us| {
            let end = std::time::Instant::now() + std::time::Duration::from_micros(us);
            while std::time::Instant::now() < end {}
        };
        for _ in 0..10 * SAMPLE_EVERY + 2 {
            metrics.enter(Stage::Calls);
            spin(20);
            metrics.enter(Stage::Poll);
            spin(60);
            metrics.cycle_done(1, 1, false);
        }
        let all = ticks() - start;
        (Stage::ALL.map(|stage| page.thread(0).stage_ticks[stage as usize].get()), all)
    }

    #[test]
    fn cycles_that_are_not_timed_by_stage_are_divided_like_those_that_are() {
        // A cycle that was interrupted may be one that stands for others, or the last one, which is
        // not charged yet: one undisturbed run of ten milliseconds is enough.
        let undisturbed = (0..30).any(|_| {
            let (spent, all) = measure();
            let [poll, _, _, calls, ..] = spent;
            let charged: u64 = spent.iter().sum();
            assert!(charged <= all, "{spent:?} of {all}");
            charged > all / 10 * 9 && poll > 2 * calls
        });
        assert!(undisturbed, "time is lost, or divided wrongly");
    }

    #[test]
    fn a_device_that_cannot_tell_is_thought_to_hold_what_it_gave_since_it_was_empty() {
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let mut metrics = ThreadMetrics::new(&page, 0);
        let mut depth = |taken, left, blind| {
            let before = metrics.window.sums.depth;
            metrics.waited(taken, left, blind);
            metrics.window.sums.depth - before
        };
        assert_eq!([depth(3, 0, false), depth(64, 100, false)], [3, 164]);
        assert_eq!([depth(64, 0, true), depth(64, 0, true), depth(64, 0, true)], [64, 128, 192]);
        assert_eq!([depth(5, 0, false), depth(5, 0, false)], [197, 5], "and then it was empty");
        for _ in 0..100 {
            depth(64, 0, true);
        }
        assert_eq!(depth(64, 0, true), 64 + FULL_RUN_MAX);
    }

    #[test]
    fn a_long_sleep_does_not_thin_the_window_before_it() {
        // A slow counter, so that windows are long compared with the time of the test.
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let mut metrics = ThreadMetrics::new(&page, 0);
        let start = metrics.stage_since;
        let length = crate::observe::metrics::WINDOW_US * 1_000;
        metrics.counters.busy_cycles.add(10);
        (0..10).for_each(|_| metrics.waited(2, 2, false));
        metrics.stage = Stage::Idle;
        // Asleep for four windows, as far as the stopwatch knows.
        let asleep = start.wrapping_sub(4 * length);
        metrics.stage_since = asleep;
        metrics.window = {
            let mut window = Window::new(asleep.wrapping_sub(length / 2), 1_000);
            window.sums = metrics.window.sums;
            window
        };
        metrics.sleeps(5);
        assert_eq!(metrics.whereabouts.get(), Place::Asleep { since_us: 5 });
        metrics.slept(asleep);
        assert_eq!(metrics.whereabouts.get(), Place::Dataplane);
        let read = page.thread(0).window.read().expect("nobody writes");
        let windows = (ticks() - asleep) / length;
        let kept = 0.5f64.powi(windows as i32);
        assert!((read.queue_depth[0] - 0.5 * 4.0 * kept).abs() < 1e-9, "{read:?} {windows}");
        assert!((read.idle[0] - (1.0 - kept)).abs() < 1e-9, "{read:?} {windows}");
        assert!(page.thread(0).stage_ticks[Stage::Idle as usize].get() >= 4 * length);
    }

    #[test]
    fn batches_are_counted_by_octave() {
        let size = |received| batch_bucket(received);
        assert_eq!([size(0), size(1), size(2), size(3), size(4), size(64)], [0, 1, 2, 2, 3, 7]);
        assert_eq!(size(usize::MAX), BATCH_BUCKETS - 1);
    }
}
