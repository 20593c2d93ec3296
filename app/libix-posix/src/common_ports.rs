//! UDP ports that several processes of the program have, since one of them has forked or passed the
//! socket on.
//!
//! Each of them sends. The dataplane gives what arrives to one, the process that has last asked for
//! it: so a process asks whenever one of its threads begins to wait for the socket, or reads in
//! vain, unless it was the last one to do so. What has arrived before is with the process that it
//! came to.
use crate::holders;
use crate::slab::Id;
use crate::socket::Socket;
use crate::state::Core;
use crate::wait::Interest;

impl Core {
    /// A thread of the program waits for this: what arrives there is this process's from now on.
    pub fn takes_datagrams(&mut self, interest: Interest<'_>) {
        if self.udp_ports.is_empty() {
            return;
        }
        for id in self.udp_ports.ids() {
            let Core { udp_ports, sockets, .. } = self;
            let Some(port) = udp_ports.get_mut(id) else { continue };
            let is_waited_for = |member: &&Id| {
                let socket = sockets.get(**member);
                socket.is_some_and(|socket| {
                    socket.named.is_some() && interest.is_for(**member, socket)
                })
            };
            let Some(member) = port.members.iter().find(is_waited_for).copied() else { continue };
            let at = sockets.get(member).and_then(|socket| socket.named);
            let is_last = port.takes && at.is_some_and(holders::is_owner);
            if is_last || !at.is_some_and(holders::have_others) {
                continue;
            }
            port.takes = true;
            for thread in &mut self.elastic_threads[..self.elastic_count] {
                if !thread.new_udp_ports.contains(&id) {
                    thread.new_udp_ports.push(id);
                }
            }
            // A driver comes out and tells the dataplane.
            self.mark_dirty(member);
        }
    }

    /// Whether other processes may have bound a UDP port as well, and whether what arrives is to be
    /// this one's.
    pub fn is_common(&self, port: Id) -> Option<bool> {
        let port = self.udp_ports.get(port)?;
        let named = |member: &Id| self.sockets.get(*member).is_some_and(|s| s.named.is_some());
        (port.inherited || port.members.iter().any(named)).then_some(port.takes)
    }

    /// Other processes hear that what arrives at a UDP port is this one's.
    pub fn says_it_takes(&self, port: Id) {
        let members = self.udp_ports.get(port).map_or(&[][..], |port| &port.members[..]);
        let named = |member: &Id| self.sockets.get(*member).and_then(|socket| socket.named);
        members.iter().filter_map(named).for_each(holders::owns);
    }
}

impl Interest<'_> {
    /// Whether a socket is among what is waited for.
    pub fn is_for(self, id: Id, socket: &Socket) -> bool {
        let is_in = |set: &Id| socket.watches.iter().any(|watch| watch.set == *set);
        match self {
            Interest::Socket(only) => only == id,
            Interest::Several(several, sets) => several.contains(&id) || sets.iter().any(is_in),
            Interest::Set(set) => is_in(&set),
        }
    }
}
