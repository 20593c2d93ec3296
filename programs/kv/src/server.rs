//! The server on one elastic thread: requests are read in receive buffers, small replies are
//! written into the connection's transmit buffer, and large values are sent from their items.
use crate::counters::Counters;
use crate::reply::{Lent, Reply};
use crate::service::{Service, TOO_MANY};
use crate::session::Session;
use crate::store::Store;
use crate::udp::{self, Steps};
use libix::event::{Conn, EventLoop, Handler, Io, Lease, Release, Team};
use libix::raw::Thread;
use libix::{Dead, Error};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// A connection with less room than this is not read.
const SEND_ROOM_MIN: u64 = 128 << 10;

impl Release for Store {
    fn release(&self, token: u64) {
        Store::release(self, token);
    }
}

/// A reply that found no transmit memory.
enum Rest {
    Bytes(Vec<u8>),
    Lent(Lent),
}

/// One connection.
#[derive(Default)]
pub struct Client {
    session: Session,
    rest: VecDeque<Rest>,
    /// Requests wait for room to send.
    stalled: bool,
    /// The client has closed its direction.
    eof: bool,
    /// It is beyond the most connections.
    refused: bool,
}

/// The server of one elastic thread.
pub struct Server {
    service: &'static Service,
    me: &'static Counters,
    reply: Reply,
    datagrams: Datagrams,
}

/// The environment of datagrams.
struct Datagrams {
    steps: Steps,
    /// Where a request is copied to, if it is copied.
    question: Vec<u8>,
    /// No value in it is lent.
    reply: Reply,
}

/// A loop that serves TCP, and UDP with `datagrams`. Connections move between the loops of the team
/// unchanged: all that they refer to belongs to the service. Each thread counts its own events,
/// because only the sums of counters are meaningful.
pub fn server(
    thread: Thread,
    service: &'static Service,
    at: Option<SocketAddr>,
    (datagrams, steps): (Option<SocketAddr>, Steps),
    team: &Team<Client>,
) -> Result<EventLoop<Server>, Error> {
    let me = service.store.counters(thread.index() as usize);
    let reply = Reply::new(service.lends);
    let own = Datagrams { steps, question: Vec::new(), reply: Reply::new(false) };
    let server = Server { service, me, reply, datagrams: own };
    let mut server = EventLoop::in_team(thread, server, team);
    if let Some(at) = at {
        server.listen(at, 0)?;
    }
    if let Some(at) = datagrams {
        server.udp_bind(at)?;
    }
    Ok(server)
}

impl Server {
    /// Carries out received requests while replies can be sent.
    fn serve(&mut self, conn: &mut Conn<'_, Client>) {
        loop {
            if !self.send_rest(conn) {
                return;
            }
            if conn.send_room() < SEND_ROOM_MIN {
                conn.state_mut().stalled = true;
                return;
            }
            let context = self.service.context(self.me, conn.io().now_us());
            let (client, received) = conn.state_and_received();
            client.stalled = false;
            let mut taken = client.session.feed(b"", &context, &mut self.reply);
            for slice in received {
                let n = client.session.feed(slice, &context, &mut self.reply);
                taken += n;
                if n < slice.len() || self.reply.is_full() {
                    break;
                }
            }
            let closed = client.session.is_closed();
            let more = self.reply.is_full();
            let eof = client.eof;
            self.me.bytes_read.add(taken as u64);
            conn.consume(taken);
            self.send(conn);
            if closed || (eof && !more && conn.state().rest.is_empty()) {
                return self.close(conn);
            }
            if !more {
                return;
            }
        }
    }

    fn close(&mut self, conn: &mut Conn<'_, Client>) {
        conn.close();
        self.me.curr_connections.sub(1);
    }

    /// Sends the reply; the part without memory stays with the connection.
    fn send(&mut self, conn: &mut Conn<'_, Client>) {
        if self.reply.is_empty() {
            return;
        }
        let Reply { bytes, lent, .. } = &mut self.reply;
        let mut at = 0;
        for lent in lent.drain(..) {
            let before = lent.before;
            give(conn, self.me, &bytes[at..before]);
            give_lent(conn, self.service.store, self.me, lent);
            at = before;
        }
        give(conn, self.me, &bytes[at..]);
        self.reply.clear();
    }

    /// Sends what found no memory before; returns whether all of it was sent.
    fn send_rest(&mut self, conn: &mut Conn<'_, Client>) -> bool {
        while let Some(rest) = conn.state_mut().rest.pop_front() {
            match rest {
                Rest::Lent(lent) => {
                    let token = lent.lease.into_token();
                    conn.send_lent(lent.data.lent(), Lease::new(self.service.store, token));
                }
                Rest::Bytes(bytes) => {
                    let n = conn.send(&bytes);
                    if n < bytes.len() {
                        let left = Rest::Bytes(bytes[n..].to_vec());
                        conn.state_mut().rest.push_front(left);
                        return false;
                    }
                }
            }
        }
        true
    }
}

fn give(conn: &mut Conn<'_, Client>, me: &Counters, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    me.bytes_written.add(bytes.len() as u64);
    let n = if conn.state().rest.is_empty() { conn.send(bytes) } else { 0 };
    if n < bytes.len() {
        conn.state_mut().rest.push_back(Rest::Bytes(bytes[n..].to_vec()));
    }
}

fn give_lent(conn: &mut Conn<'_, Client>, store: &'static Store, me: &Counters, lent: Lent) {
    me.bytes_written.add(lent.data.len() as u64);
    if conn.state().rest.is_empty() {
        let token = lent.lease.into_token();
        conn.send_lent(lent.data.lent(), Lease::new(store, token));
    } else {
        conn.state_mut().rest.push_back(Rest::Lent(lent));
    }
}

impl Handler for Server {
    type State = Client;

    fn on_accept(&mut self, _: &mut Io<Client>, _: u64, _: SocketAddr) -> Option<Client> {
        let refused = !self.service.admit(self.me);
        Some(Client { refused, ..Client::default() })
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, Client>) {
        if conn.state().refused {
            conn.send(TOO_MANY);
            conn.close();
        }
    }

    #[inline]
    fn on_readable(&mut self, conn: &mut Conn<'_, Client>) {
        if !conn.state().stalled {
            self.serve(conn);
        }
    }

    fn on_sent(&mut self, conn: &mut Conn<'_, Client>, _: u32) {
        if conn.state().stalled {
            self.serve(conn);
        }
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Client>) {
        self.serve(conn);
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Client>) {
        conn.state_mut().eof = true;
        if !conn.state().stalled && conn.state().rest.is_empty() {
            self.close(conn);
        }
    }

    fn on_dead(&mut self, conn: &mut Conn<'_, Client>, _: Dead) {
        if !conn.state().refused {
            self.me.curr_connections.sub(1);
        }
    }

    fn on_datagram(&mut self, io: &mut Io<Client>, socket: u64, from: SocketAddr, data: &[u8]) {
        let Datagrams { steps, question, reply } = &mut self.datagrams;
        let context = self.service.context(self.me, io.now_us());
        let data = match steps.receives() {
            true => data,
            false => {
                question.clear();
                question.extend_from_slice(data);
                &question[..]
            }
        };
        let transmits = steps.transmits();
        udp::answer(data, &context, reply, |front, part| match transmits {
            true => send_in_place(io, socket, from, front, part),
            false => udp::joined(front, part, |whole| io.udp_send(socket, from, whole)),
        });
    }
}

/// Sends a datagram that is written into transmit memory at once.
fn send_in_place(
    io: &mut Io<Client>,
    socket: u64,
    to: SocketAddr,
    front: [u8; udp::FRAME_BYTES],
    part: &[u8],
) -> bool {
    let bytes = front.len() + part.len();
    let Some(mut buf) = io.tx().alloc(bytes) else { return false };
    buf.extend(&front);
    buf.extend(part);
    buf.len() == bytes && io.udp_send_zc(socket, to, buf).is_ok()
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
