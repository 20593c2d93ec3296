//! Serves the network while all processes of the program compute.
//!
//! Where they compute on hardware threads of their own, the elastic thread works ahead meanwhile:
//! it sends what they have asked for (`send_behind`) and receives the next batch
//! (`receive_ahead`). Together these are the steps of one cycle. What the batch causes to be sent
//! waits for their calls, and for the guard where they do not return.
//!
//! The guard (`run/guard.rs`) runs these turns for the thread. They are the cycle with fewer parts:
//! everything that needs a process of the program is put off (`absent.rs`). ARP and echo requests
//! get replies, and the receive ring is refilled. Commands of the broker are read, because new
//! rules of the vNIC take effect in the next cycle; threads carry out other commands when a process
//! has returned. One that waits too long for that ends here.
use super::ElasticThread;
use crate::observe::metrics::Stage;
use crate::observe::survey::SLICE;

/// Most batches in one turn.
const BATCHES_MAX: usize = 16;

impl ElasticThread {
    /// Steps 5 and 6 after the calls of processes that compute again.
    pub fn send_behind(&mut self, now_us: u64) {
        self.begin_cycle(now_us);
        self.send::<false>(now_us);
        self.changes += 1;
        self.io.cx.metrics.enter(Stage::App);
    }

    /// Steps 1 and 2 while all processes compute; returns the number of packets.
    pub fn receive_ahead(&mut self, now_us: u64) -> usize {
        self.begin_cycle(now_us);
        self.io.cx.metrics.enter(Stage::Poll);
        let received = self.receive_batch::<false>();
        self.flush_handover();
        if received > 0 {
            self.changes += 1;
            self.io.cx.metrics.cycle_done(received, 0, true);
        }
        self.io.cx.metrics.enter(Stage::App);
        received
    }

    /// Whether something waits that only a cycle with processes present brings them: packets,
    /// timers, or steps of a migration.
    pub fn owes_a_cycle(&self) -> bool {
        self.returned.has_packets()
            || self.migrations.is_active()
            || self.app_timers.due(self.io.cx.now_us).is_some()
    }

    /// Serves the network while the program has this thread. Only the caller uses the thread
    /// meanwhile.
    #[cold]
    pub fn turn_non_responsive(&mut self, now_us: u64) {
        self.io.cx.metrics.enter(Stage::Poll);
        // What may not be sent any more may not be sent by the guard either.
        self.io.read_updates(now_us);
        self.io.end_late_command(now_us);
        self.begin_cycle(now_us);
        let were_present = self.io.cx.attached.send_away();
        for batch in 0..=BATCHES_MAX {
            self.send::<false>(now_us);
            self.io.cx.metrics.enter(Stage::Poll);
            if batch == BATCHES_MAX || self.receive_batch::<false>() == 0 {
                break;
            }
            self.flush_handover();
        }
        if self.shared.updates.is_surveyed(self.io.cx.index) {
            self.attend_survey(BATCHES_MAX * SLICE, now_us);
        }
        self.io.cx.attached.bring_back(were_present);
        self.changes += 1;
        self.mourn();
        self.io.cx.metrics.counters.away_turns.add(1);
        self.io.cx.metrics.enter(Stage::App);
    }
}
