//! The program has ended, in whatever way: its connections are closed in its stead.
//!
//! As Linux does it for a process's sockets: what was given to be sent is sent and FIN behind it,
//! and who still has received data that nobody took gets RST (RFC 2525 section 2.17), as handshakes
//! do. What has not ended in both directions in time is reset too, because soon nobody will answer
//! here.
use crate::clock::monotonic_ns;
use crate::cycle::ElasticThread;
use crate::flows::flow::Holder;
use crate::observe::metrics::Place;
use crate::run::boot::Dataplane;
use crate::run::runner::Runner;
use crate::tcp::connections::End;
use crate::tcp::listeners::Listeners;
use ix_tcp::State;

/// Between two turns in which nothing happened, µs.
const PAUSE_US: u64 = 200;
/// For the last packets to leave the device, µs.
const FLUSH_US: u64 = 20_000;

/// What became of the program's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WoundUp {
    /// Connections that it left open.
    pub open: usize,
    /// Of these, those that were reset.
    pub reset: usize,
}

impl Dataplane {
    /// Closes all connections and stops listening; returns when all have ended, after `patience_us`
    /// at most and a moment.
    ///
    /// # Safety
    /// The program has ended: nobody uses any elastic thread, now or later.
    pub unsafe fn wind_up(&self, patience_us: u64) -> WoundUp {
        let mut done = WoundUp::default();
        // Of the same origin as the threads' clocks.
        let end_us = now_us() + patience_us;
        for index in 0..self.threads() {
            let place = self.page.thread(index).whereabouts.get();
            // SAFETY: the caller's promise.
            let thread = unsafe { &mut (*self.runners[index].get()).thread };
            // In the midst of a cycle its state may be half changed: the less is done with it the
            // better.
            let may_close = !matches!(place, Place::Dataplane);
            thread.begin_winding_up(may_close, now_us(), &mut done);
        }
        // SAFETY: as above.
        let mut runners = || self.runners.iter().map(|runner| unsafe { &mut *runner.get() });
        turn_until(end_us, &mut runners, |thread| thread.unfinished() == 0);
        runners().for_each(|runner| done.reset += runner.thread.reset_all());
        let flush_us = now_us() + FLUSH_US;
        turn_until(flush_us, &mut runners, |thread| !thread.has_unsent());
        done
    }
}

fn now_us() -> u64 {
    monotonic_ns() / 1000
}

fn turn_until<'a, I: Iterator<Item = &'a mut Runner>>(
    end_us: u64,
    runners: &mut impl FnMut() -> I,
    is_done: impl Fn(&ElasticThread) -> bool,
) {
    loop {
        let now_us = now_us();
        let (mut done, mut busy) = (true, false);
        for runner in runners() {
            runner.turn_alone(now_us);
            busy |= runner.busy;
            done &= is_done(&runner.thread);
        }
        if done || now_us >= end_us {
            return;
        }
        if !busy {
            std::thread::sleep(std::time::Duration::from_micros(PAUSE_US));
        }
    }
}

impl ElasticThread {
    fn begin_winding_up(&mut self, may_close: bool, now_us: u64, done: &mut WoundUp) {
        self.begin_cycle(now_us);
        self.io.cx.events.reset();
        self.io.cx.events.set_muted(false);
        for id in self.flows.ids_where(|flow| flow.side.holder != Holder::Orphan) {
            let Some(flow) = self.flows.get(id) else { continue };
            let is_ours = matches!(flow.side.holder, Holder::Application | Holder::Knocking);
            let is_read = flow.side.holder == Holder::Application && flow.side.held.is_empty();
            let how = if may_close && is_read { End::Close } else { End::Abort };
            done.open += usize::from(is_ours);
            done.reset += usize::from(is_ours && how == End::Abort);
            self.tcp.stop_waiting(&mut self.flows, id);
            self.tcp.end(&mut self.io, &mut self.flows, id, how);
        }
        self.tcp.listeners = Listeners::default();
    }

    /// Connections that a peer would be left alone with.
    fn unfinished(&self) -> usize {
        self.flows.ids_where(|flow| flow.tcb.state() != State::TimeWait).len()
    }

    fn reset_all(&mut self) -> usize {
        let all = self.flows.ids_where(|flow| flow.tcb.state() != State::TimeWait);
        all.iter().for_each(|id| self.tcp.end(&mut self.io, &mut self.flows, *id, End::Abort));
        all.len()
    }

    fn has_unsent(&self) -> bool {
        let queued = self.io.ports.iter().any(|port| !port.queue.is_empty());
        queued || self.is_transmitting() || !self.flows.touched.is_empty()
    }
}
