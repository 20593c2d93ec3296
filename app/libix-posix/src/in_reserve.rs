//! A program is reached from `listen` on, and by datagrams from `bind` on, as on Linux, whatever it
//! does then.
//!
//! A process attaches when it first waits. One that listens and then prepares itself for seconds,
//! and a master that leaves waiting to its children, attach a moment after `listen` without that:
//! *in reserve*. The dataplane gives such a process new connections only where no other one
//! listens, before the first child waits and after the last one was killed. It keeps them in its
//! queue until a thread of its own, or another process, waits for them. Datagrams that it gets are
//! its own: another process gets those that come once it waits.
use crate::lock::lock;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::{pid, serving, signals};
use core::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// How long the process, or its children, have to wait by themselves. Most do within this time.
const WAITS_WITHIN: Duration = Duration::from_millis(50);

/// The process in which a thread of ours sees to this.
static WATCHED: AtomicI32 = AtomicI32::new(0);

/// This process listens or has bound a UDP socket, and does not wait yet: it attaches soon.
pub fn watch() {
    let own = pid::own();
    if serving::is_shared() && WATCHED.swap(own, Ordering::Relaxed) != own {
        signals::spawn("ix-reserve", attach);
    }
}

fn attach() {
    std::thread::sleep(WAITS_WITHIN);
    WATCHED.store(0, Ordering::Relaxed);
    let mut core = lock();
    let has_any = core.has_listeners() || !core.udp_ports.is_empty();
    if core.has_begun() || core.finishing || !has_any {
        return;
    }
    core.in_reserve = true;
    if !serving::start(&mut core) {
        core.in_reserve = false;
    }
    core.wake_would_be_drivers();
}

impl Core {
    /// Whether there are listeners of IX.
    pub fn has_listeners(&self) -> bool {
        let listens = |socket: &Socket| socket.fds > 0 && matches!(socket.kind, Kind::Listener(_));
        self.sockets.ids().into_iter().any(|id| self.sockets.get(id).is_some_and(listens))
    }

    /// The dataplane has opened a port: it is told that this process is in reserve.
    pub fn opened_in_reserve(&mut self, elastic: usize, port: Id) {
        if self.in_reserve {
            self.says_turn(elastic, port, ix_abi::IN_RESERVE);
        }
    }

    /// A thread of this process waits for a listener: new connections are this process's in turn.
    pub fn serves_in_turn(&mut self) {
        self.in_reserve = false;
        for port in self.ports.ids() {
            for elastic in 0..self.elastic_count {
                self.says_turn(elastic, port, ix_abi::IN_TURN);
            }
        }
    }

    fn says_turn(&mut self, elastic: usize, id: Id, turn: u32) {
        if let Some(port) = self.ports.get_mut(id).filter(|port| port.handles.is_asked(elastic)) {
            port.news(elastic).turn = Some(turn);
            self.elastic_threads[elastic].backlogs.push(id);
        }
    }
}
