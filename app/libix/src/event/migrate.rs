//! Connections that move with their flow group, from the loop of one elastic thread to another's.
use super::observer::LoopObserver;
use super::{EventLoop, Handler};
use crate::engine::{FETCH_AHEAD, tell_failures};

impl<H: Handler> EventLoop<H> {
    pub(super) fn group_leaves(&mut self, group: u32, to: u32) {
        // A connection with a refused call stays here, with the reset that follows.
        tell_failures(&mut LoopObserver(self));
        let Some(team) = self.io.team.clone().filter(|team| team.has(to)) else {
            // No loop on the other thread would know these connections.
            self.io.engine.reset_group(group);
            return tell_failures(&mut LoopObserver(self));
        };
        let cookies = self.io.engine.take_group(group);
        for (at, &cookie) in cookies.iter().enumerate() {
            if let Some(&ahead) = cookies.get(at + FETCH_AHEAD) {
                self.io.prefetch(ahead);
            }
            self.tell(cookie, |handler, conn| handler.on_migrate_out(conn, to));
        }
        if let Some(parcel) = self.io.engine.pack(group, &cookies) {
            team.post(to, parcel);
        }
    }

    pub(super) fn group_arrived(&mut self, group: u32, from: u32) {
        let here = self.io.thread_index();
        // If the group stays here after all, they are still on their way to `from`.
        let parcels = self.io.team.as_ref().map(|team| {
            let mut parcels = team.receive(here, group);
            parcels.extend(team.receive(from, group));
            parcels
        });
        let limit = self.io.send_limit;
        for parcel in parcels.into_iter().flatten() {
            for cookie in self.io.engine.unpack(parcel, limit) {
                self.tell(cookie, |handler, conn| handler.on_migrate_in(conn, from));
            }
        }
    }
}
