//! Events of connections.
use super::{Attached, OnIx, Peer};
use crate::engine::{End, Verdict};
use crate::protocol::Protocol;
use ix_abi::group_of;
use libix::Dead;
use libix::engine::{Ending, Engine, Observer};
use libix::raw::Event;
use std::net::{IpAddr, SocketAddr};

/// The generator at a point in time.
pub(super) struct LoadObserver<'a, P> {
    pub(super) on: &'a mut OnIx<P>,
    pub(super) now_ns: u64,
}

impl<P: Protocol> LoadObserver<'_, P> {
    /// The number of a connection of the load, unless it was given up.
    #[inline]
    fn live(&self, cookie: u64) -> Option<u32> {
        let Peer::Load { index, .. } = self.on.net.get(cookie)?.state else { return None };
        (self.on.flows[index as usize].name == cookie).then_some(index)
    }
}

impl<P: Protocol> Observer for LoadObserver<'_, P> {
    type User = Attached;

    #[inline]
    fn engine(&mut self) -> &mut Engine<Attached> {
        &mut self.on.net
    }

    #[inline]
    fn received(&mut self, cookie: u64) {
        let OnIx { engine, net, flows, back_ends, .. } = &mut *self.on;
        let Some(connection) = net.get_mut(cookie) else { return };
        let bytes = connection.received_bytes();
        let mut verdict = Verdict::Open;
        let index = match (&connection.state, back_ends) {
            (Peer::Load { index, .. }, _) => {
                let index = *index;
                if flows[index as usize].name != cookie {
                    return;
                }
                for piece in connection.received() {
                    verdict = engine.input(index, piece, self.now_ns);
                    if matches!(verdict, Verdict::Reset) {
                        break;
                    }
                }
                index
            }
            (Peer::Served(_), Some(back_ends)) => {
                back_ends.read(connection);
                0
            }
            (Peer::Served(_), None) => 0,
        };
        connection.consume(bytes);
        match verdict {
            Verdict::Open => net.visit(cookie),
            Verdict::Reset => self.on.abort(index),
        }
    }

    #[inline]
    fn sent(&mut self, cookie: u64, _: u32) {
        // Requests for which memory was missing may follow those that were taken.
        let net = &mut self.on.net;
        if let Some(connection) = net.get(cookie)
            && let Peer::Load { spilled, .. } = &connection.state
            && !spilled.is_empty()
        {
            net.visit(cookie);
        }
    }

    fn connected(&mut self, cookie: u64) {
        if let Some(index) = self.live(cookie) {
            self.on.up(index, self.now_ns);
        }
    }

    fn ended(&mut self, cookie: u64) {
        if let Some(index) = self.live(cookie) {
            self.on.abort(index);
            return self.on.engine.closed(index, End::Closed, self.now_ns);
        }
        if let Some(connection) = self.on.net.get_mut(cookie)
            && let Peer::Served(served) = &mut connection.state
        {
            served.eof = true;
            self.on.net.visit(cookie);
        }
    }

    fn dead(&mut self, cookie: u64, why: Dead) {
        let Some(index) = self.live(cookie) else { return };
        let up = self.on.flows[index as usize].up;
        self.on.forget(index);
        let end = match why {
            Dead::Closed => End::Closed,
            Dead::NotConnected(error) => End::NotConnected(error.to_string()),
            why if up => End::Reset(why.to_string()),
            why => End::NotConnected(why.to_string()),
        };
        self.on.engine.closed(index, end, self.now_ns);
    }

    fn knocked(&mut self, _: u64, handle: u64, peer: SocketAddr) {
        if self.on.back_ends.is_some() {
            self.on.net.accept(handle, peer, Peer::Served(Box::default()));
        } else {
            self.on.net.reject(handle);
        }
    }

    fn datagram(&mut self, socket: u64, _: SocketAddr, _: IpAddr, data: &[u8]) {
        let Some(&index) = self.on.net.udp_state(socket) else { return };
        self.on.engine.input_datagram(index, data, self.now_ns);
        self.on.mark(index);
    }

    fn other(&mut self, event: Event) {
        if let Event::GroupLeaves { group, .. } = event {
            self.lose_group(group);
        }
    }
}

impl<P: Protocol> LoadObserver<'_, P> {
    /// Measured connections stay with their thread. If a flow group is taken away its connections
    /// end, and that is an error of the run.
    #[cold]
    fn lose_group(&mut self, group: u32) {
        let net = &self.on.net;
        let of_group = |cookie: &u64| {
            net.get(*cookie).is_some_and(|connection| {
                connection.is_established()
                    && connection.ending() == Ending::No
                    && group_of(connection.handle()) == group
            })
        };
        for cookie in net.cookies().filter(of_group).collect::<Vec<_>>() {
            if let Some(index) = self.live(cookie) {
                self.on.abort(index);
                let why = "its flow group was migrated, which a load generator does not support";
                self.on.engine.closed(index, End::Reset(why.to_string()), self.now_ns);
            }
        }
    }
}
