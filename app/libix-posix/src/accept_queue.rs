//! Which listener gets a new connection, and when it can be accepted.
use crate::epoll_set::Set;
use crate::slab::{Id, Slab};
use crate::socket::{Listener, Socket};
use crate::state::Core;
use libc::{EPOLLIN, EPOLLRDNORM};

impl Core {
    /// A connection enters the accept queue of its listener.
    pub fn enters_queue(&mut self, id: Id) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        let Some(listener_id) = stream.queued_at else { return };
        let was_deferred = stream.deferred_until_us.take().is_some();
        let listener = self.sockets.get_mut(listener_id).and_then(Socket::listener);
        let Some(listener) = listener else { return };
        listener.deferred -= usize::from(was_deferred).min(listener.deferred);
        listener.queue.push_back(id);
        self.notify(listener_id, EPOLLIN | EPOLLRDNORM);
    }

    /// A connection has received something: it enters the queue if it was deferred.
    pub fn ends_deferral(&mut self, id: Id) {
        let stream = self.sockets.get_mut(id).and_then(Socket::stream);
        if stream.is_some_and(|stream| stream.deferred_until_us.is_some()) {
            self.enters_queue(id);
        }
    }

    /// Returns the listener whose turn it is: among those of threads at home on this elastic
    /// thread, else among those that a thread waits for, else among all. Listeners with a full
    /// queue are passed over. A listener that no thread ever waited for may belong to another
    /// process, which does not serve.
    pub fn choose_listener(&mut self, elastic: usize, port: Id) -> Option<Id> {
        let Core { ports, sockets, sets, elastic_count, .. } = self;
        let port = ports.get_mut(port)?;
        if let [only] = port.members[..] {
            return Some(only);
        }
        let count = port.members.len();
        let several = *elastic_count > 1;
        let turn = (0..count).map(|n| (port.next + n) % count);
        let mut choose = |suits: &dyn Fn(&mut Socket) -> bool| {
            turn.clone().find(|member| {
                let Some(socket) = sockets.get_mut(port.members[*member]) else { return false };
                let has_room = |listener: &mut Listener| {
                    listener.queue.len() + listener.deferred <= listener.backlog
                };
                socket.listener().is_some_and(has_room) && suits(socket)
            })
        };
        let here = several.then(|| choose(&|socket| waits_at(socket, sets) == Some(elastic)));
        let chosen = here.flatten().or_else(|| choose(&has_waiter)).or_else(|| choose(&|_| true));
        port.next = (chosen.unwrap_or(port.next) + 1) % count.max(1);
        chosen.map(|chosen| port.members[chosen]).or_else(|| port.members.first().copied())
    }
}

/// Whether a listener is in an epoll set, or a thread has waited for it alone.
fn has_waiter(socket: &mut Socket) -> bool {
    let alone = socket.listener().is_some_and(|listener| listener.elastic.is_some());
    alone || !socket.watches.is_empty()
}

/// The elastic thread of the thread that waits for a listener, alone or in an epoll set.
fn waits_at(socket: &mut Socket, sets: &Slab<Set>) -> Option<usize> {
    let alone = socket.listener().and_then(|listener| listener.elastic);
    let in_set = || sets.get(socket.watches.first()?.set)?.elastic;
    alone.or_else(in_set)
}
