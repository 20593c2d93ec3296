//! Closes the connections of a program that has ended, however. One of several processes:
//! `ended_process.rs`.
//!
//! It does as Linux does for a process's sockets. What was given to send is sent, and FIN after it.
//! A connection with received data that was not read, and a handshake in progress, get RST (RFC
//! 2525 section 2.17). What has not ended in both directions in time is reset too, because soon
//! nothing here will reply.
use crate::clock::monotonic_ns;
use crate::cycle::ElasticThread;
use crate::events::EventWriter;
use crate::flows::flow::Holder;
use crate::flows::handle::FlowId;
use crate::observe::metrics::Place;
use crate::run::boot::Dataplane;
use crate::run::runner::Runner;
use crate::tcp::connections::End;
use crate::tcp::listeners::Listeners;
use ix_proto::crossing::AttachmentId;
use ix_tcp::State;

/// Pause after a turn in which nothing happened, µs.
const PAUSE_US: u64 = 200;
/// Time for the last packets to leave the device, µs.
const FLUSH_US: u64 = 20_000;

/// The result for the program's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WoundUp {
    /// Number of connections that it left open.
    pub open: usize,
    /// Number of these that were reset.
    pub reset: usize,
}

impl Dataplane {
    /// Closes all connections and stops listening. Returns when all have ended, at the latest a
    /// moment after `patience_us`.
    ///
    /// # Safety
    /// The program has ended: nobody uses any elastic thread, now or later.
    pub unsafe fn wind_up(&self, patience_us: u64) -> WoundUp {
        let mut done = WoundUp::default();
        // The same origin as the threads' clocks.
        let end_us = now_us() + patience_us;
        for index in 0..self.threads() {
            let place = self.page.thread(index).whereabouts.get();
            // SAFETY: the caller's promise.
            let thread = unsafe { &mut (*self.runners[index].get()).thread };
            // Within a cycle its state may be half changed, so as little as possible is done with
            // it.
            let may_close = !matches!(place, Place::Dataplane);
            thread.begin_winding_up(may_close, now_us(), &mut done);
        }
        // SAFETY: as above.
        let mut runners = || self.runners.iter().map(|runner| unsafe { &mut *runner.get() });
        runners().for_each(|runner| _ = runner.thread.mourn());
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
        for number in self.io.cx.attached.numbers() {
            self.tell_nothing_more(number);
        }
        let open = self.flows.ids_where(|flow| flow.socket.holder != Holder::Orphan);
        self.close_all(open, may_close, done);
        self.tcp.listeners = Listeners::default();
        self.mourn_all();
        for number in self.ended.drain_numbers() {
            self.shared.mourning.close(number);
        }
        for number in self.io.cx.attached.numbers() {
            self.leave_estate(number);
            self.shared.mourning.close(number);
        }
    }

    pub(super) fn close_all(&mut self, flows: Vec<FlowId>, may_close: bool, done: &mut WoundUp) {
        for id in flows {
            let Some(flow) = self.flows.get(id) else { continue };
            let is_ours = matches!(flow.socket.holder, Holder::Application | Holder::Knocking);
            let is_read = flow.socket.holder == Holder::Application && flow.socket.held.is_empty();
            let how = if may_close && is_read { End::Close } else { End::Abort };
            done.open += usize::from(is_ours);
            done.reset += usize::from(is_ours && how == End::Abort);
            self.tcp.stop_waiting(&mut self.flows, id);
            self.tcp.end(&mut self.io, &mut self.flows, id, how);
        }
    }

    /// Events for this process are dropped from here on.
    pub(super) fn tell_nothing_more(&mut self, number: AttachmentId) {
        self.io.cx.attached.set_present(number, true);
        self.io.cx.attached[number].events = EventWriter::closed();
    }

    /// Keeps the frames that a process holds and may have sent on.
    pub(super) fn leave_estate(&mut self, number: AttachmentId) {
        let cx = &mut self.io.cx;
        cx.attached.bequeath(number, &cx.shared.memory);
        cx.lent.take_all_back(number, |mbuf| cx.attached.leave_frame(number, mbuf));
    }

    /// Number of connections whose peers would wait forever.
    pub(crate) fn unfinished(&self) -> usize {
        self.flows.ids_where(|flow| flow.tcb.state() != State::TimeWait).len()
    }

    fn reset_all(&mut self) -> usize {
        let all = self.flows.ids_where(|flow| flow.tcb.state() != State::TimeWait);
        all.iter().for_each(|id| self.tcp.end(&mut self.io, &mut self.flows, *id, End::Abort));
        all.len()
    }

    fn has_unsent(&self) -> bool {
        let queued = self.io.ports.iter().any(|port| !port.queue.is_empty());
        let looped = !self.io.cx.looped.is_empty();
        queued || looped || self.is_transmitting() || !self.flows.touched.is_empty()
    }
}
