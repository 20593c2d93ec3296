//! The dataplane has ended, and the program has not: `ix run` starts another one, and the program
//! goes on.
//!
//! Connections are reset, as after a reset by the peer. What the new dataplane must have is noted
//! as it is before the first one begins: listeners, UDP ports, attempts to connect, datagrams to be
//! sent. Transmit memory is the program's and stays. Received memory is the old dataplane's until
//! the new one takes its place, which it does when no thread reads there: unread bytes of
//! connections are copied before. Received datagrams that the program has not read are lost.
use crate::confined::THREADS;
use crate::elastic_thread::{Alarm, ElasticThread, Pending, Role, cookie};
use crate::lock::Guard;
use crate::slab::Id;
use crate::socket::Kind;
use crate::state::Core;
use crate::stream::Phase;
use crate::{holders, kick, kin, log, outside, signals};
use libix::Error;
use libix::engine::{Batch, Ending, Memory};
use libix::raw::EnterError;

/// A driver of this elastic thread has heard that the dataplane has ended. Returns when there is
/// another one; the thread should look what it waits for then.
pub fn recover(mut core: Guard, elastic: usize) -> Guard {
    core.came_out(elastic);
    core.elastic_threads[elastic].role = Role::Free;
    core.is_lost = true;
    drop(core);
    // Other drivers hear it as well. The first thread that finds all outside does it.
    let mut core = outside::everyone_outside();
    if core.is_lost {
        core.lose_flows();
        if !core.finishing {
            renew(&mut core);
            core.is_lost = false;
        }
        core.wake_would_be_drivers();
        for elastic in 0..core.elastic_count {
            let helper = core.elastic_threads[elastic].helper_sleeps.take();
            helper.into_iter().for_each(Alarm::ring);
        }
    }
    core
}

/// The dataplane has ended before the program had all of its elastic threads. The lock is held, and
/// no thread is inside.
#[cold]
pub fn start_over(core: &mut Core) {
    core.lose_flows();
    renew(core);
}

/// Gets another dataplane in place of the one that has ended, and has it open what is noted. The
/// lock is held, and no thread is inside.
fn renew(core: &mut Core) {
    let renewed =
        kick::process().is_some_and(|process| signals::inside(0, |_| process.renew()).is_ok());
    if !renewed {
        // `ix run` reports the reason.
        // SAFETY: ends the process, without its handlers.
        unsafe { libc::syscall(libc::SYS_exit_group, 1) };
        return;
    }
    kick::process().into_iter().for_each(|process| {
        kin::attached(process.attachment());
        holders::attached(process.attachment() + 1);
    });
    for (elastic, thread) in THREADS.iter().enumerate().take(core.elastic_count) {
        // SAFETY: no thread is inside, and none enters while the lock is held.
        let Some(thread) = (unsafe { thread.get() }) else { continue };
        let shared = signals::inside(elastic, |_| {
            thread.share_again(|thread| core.emit_first(elastic, thread))
        });
        match shared {
            Ok(events) => {
                core.elastic_threads[elastic].cycle += 1;
                core.settle(elastic, thread);
                core.dispatch(elastic, thread, events);
            }
            // This one has ended, too; the next cycle returns the same.
            Err(EnterError::Refused(Error::Lost)) => {}
            Err(error) => log::fatal(&format!("the program cannot use the dataplane: {error}")),
        }
    }
}

impl Core {
    /// Forgets what the dataplane knew, and notes what the next one must know.
    fn lose_flows(&mut self) {
        for thread in &mut self.elastic_threads[..self.elastic_count] {
            let ElasticThread { batch, memory, starved, corked, deferred, .. } = thread;
            (*batch, *memory, *starved) = (Batch::<Pending>::new(), Memory::new(), false);
            corked.clear();
            deferred.clear();
            thread.old_ports.clear();
            thread.old_udp_ports.clear();
        }
        // Before sockets change, which may close their ports.
        self.open_ports_on(self.elastic_count);
        for port in self.ports.ids() {
            self.close_port(port);
        }
        for port in self.udp_ports.ids() {
            self.close_udp_port(port);
        }
        // They have left or never will: their memory is free.
        for datagram in self.lent.ids() {
            self.datagram_left(datagram | cookie::MEMORY, 0);
        }
        for id in self.sockets.ids() {
            self.lose_flow(id);
        }
        (0..self.elastic_count).for_each(|elastic| self.feed_all(elastic));
    }

    fn lose_flow(&mut self, id: Id) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        match &mut socket.kind {
            Kind::Stream(stream) if stream.local_peer.is_some() => {}
            Kind::Stream(stream) => match stream.phase {
                Phase::Dead | Phase::ToConnect => {}
                Phase::Connecting if stream.flow.ending == Ending::No => {
                    // As if the first SYN had been lost.
                    (stream.phase, stream.flow.handle) = (Phase::ToConnect, 0);
                    (stream.refused_by, stream.told) = (0, Default::default());
                    stream.options_changed = true;
                    self.mark_dirty(id);
                }
                Phase::Connecting | Phase::ToAccept | Phase::Open | Phase::Away => {
                    self.died(id, libc::ECONNRESET);
                }
            },
            Kind::Datagrams(udp) => {
                // Their bytes are in the old dataplane's memory.
                udp.inbox.clear();
                udp.inbox_bytes = 0;
                self.mark_dirty(id);
            }
            Kind::Linux | Kind::Idle { .. } | Kind::Listener(_) | Kind::Lost => {}
        }
    }
}
