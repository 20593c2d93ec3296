//! The server on IX: responses are sent from transmit memory, without a copy.
use crate::answers::{Answers, Memory};
use crate::deadlines::Deadlines;
use crate::peer::{Overdue, Patience, Peer};
use crate::session::Answer;
use crate::site::Site;
use anyhow::{Result, bail};
use libix::Dead;
use libix::event::{Conn, EventLoop, Handler, Io, Team};
use libix::raw::{Thread, TxArena, TxShared, Wait};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of unsent responses from which a connection's requests wait. A longer page is sent whole:
/// it takes no additional memory.
const SEND_LIMIT_BYTES: u64 = 256 << 10;
/// Longest wait for transmit memory while pages are loaded.
const LOAD_TIME: Duration = Duration::from_millis(500);

impl Memory for TxArena {
    type Block = TxShared;
    const LARGEST_BYTES: usize = TxArena::LARGEST_BYTES as usize;

    fn block(&self, content: &[u8]) -> Option<TxShared> {
        let mut block = self.alloc(content.len())?;
        block.extend(content);
        Some(block.share())
    }
}

/// The server of one elastic thread.
pub(crate) struct Httpd {
    answers: Answers<TxArena>,
    patience: Patience,
    deadlines: Deadlines,
    /// Whether a timer is set: only while there are connections.
    ticking: bool,
    most_connections: usize,
    live: usize,
}

/// A loop that serves a site.
pub(crate) fn server(
    thread: Thread,
    site: &Arc<Site>,
    patience: Patience,
    most_connections: usize,
    at: SocketAddr,
    team: &Team<Peer>,
) -> Result<EventLoop<Httpd>> {
    let now_us = thread.now_us();
    let httpd = Httpd {
        answers: Answers::new(*thread.tx(), Arc::clone(site)),
        patience,
        deadlines: Deadlines::new(patience.shortest_us(), now_us),
        ticking: false,
        most_connections,
        live: 0,
    };
    let mut server = EventLoop::in_team(thread, httpd, team);
    server.io().set_send_limit(SEND_LIMIT_BYTES);
    let end = Instant::now() + LOAD_TIME;
    while !server.handler().answers.load() {
        if Instant::now() > end {
            bail!(
                "the pages do not fit into the dataplane's transmit memory (each thread has a \
                 copy); serve fewer"
            );
        }
        // The loop asks for another step of memory in each cycle.
        server.turn(Wait::Poll)?;
    }
    server.listen(at, 0)?;
    Ok(server)
}

impl Httpd {
    /// Replies to received requests, as far as there is room to send.
    fn work(&mut self, conn: &mut Conn<'_, Peer>) {
        let now_us = conn.io().now_us();
        self.answers.set_time(now_us, SystemTime::now);
        if let Some(answer) = conn.state_mut().pending.take()
            && !self.send(conn, answer)
        {
            return;
        }
        while conn.send_room() > 0 || conn.state().session.is_over() {
            let (peer, mut received) = conn.state_and_received();
            let Some(data) = received.next() else { break };
            let was_in_request = peer.session.in_request();
            let (used, answer) = peer.session.read(data, self.answers.site());
            drop(received);
            if answer.is_some() || (!was_in_request && peer.session.in_request()) {
                peer.since_us = now_us;
            }
            conn.consume(used);
            if let Some(answer) = answer
                && !self.send(conn, answer)
            {
                return;
            }
        }
        self.end(conn);
    }

    /// Sends a response, or keeps it until there is memory.
    fn send(&mut self, conn: &mut Conn<'_, Peer>, answer: Answer) -> bool {
        let send = |conn: &mut Conn<'_, Peer>, answers: &mut Answers<TxArena>| {
            answers.give(answer, |block, range| {
                // Only a connection that ends refuses, and then the response is not needed.
                let _ = conn.send_shared(block, range);
            })
        };
        // The loop notices the lack of memory: it calls `on_writable` when to try again.
        let sent = send(conn, &mut self.answers)
            || (conn.alloc(TxArena::LARGEST_BYTES as usize).is_some()
                && send(conn, &mut self.answers));
        if !sent {
            conn.state_mut().pending = Some(answer);
        }
        sent
    }

    /// Shuts our direction after the last response, and closes when both sides have ended.
    fn end(&mut self, conn: &mut Conn<'_, Peer>) {
        let waiting = conn.received_bytes() > 0;
        let peer = conn.state_mut();
        if !peer.shut && (peer.session.is_over() || (peer.eof && !waiting)) {
            peer.shut = true;
            conn.shutdown();
        }
        // Not before all is acknowledged: until then the peer's patience is still checked.
        if conn.state().shut && conn.state().eof && !is_sending(conn) {
            self.live -= 1;
            conn.close();
        }
    }

    /// The connection is checked when it may be overdue.
    fn watch(&mut self, conn: &mut Conn<'_, Peer>, due_us: u64) {
        self.deadlines.insert(conn.id(), due_us);
        if !self.ticking {
            self.ticking = true;
            conn.io().set_timer(self.deadlines.step_us(), 0);
        }
    }

    fn expire(&mut self, io: &mut Io<Peer>) {
        let now_us = io.now_us();
        let mut deadlines = core::mem::take(&mut self.deadlines);
        deadlines.expire(now_us, |id| {
            let mut conn = io.conn(id)?;
            let (due_us, then) = conn.state().due(is_sending(&conn), &self.patience);
            if due_us > now_us {
                return Some(due_us);
            }
            match then {
                Overdue::Answer => {
                    self.answers.set_time(now_us, SystemTime::now);
                    let answer = conn.state_mut().session.time_out();
                    conn.state_mut().since_us = now_us;
                    self.send(&mut conn, answer);
                    self.end(&mut conn);
                    return Some(now_us + self.patience.shortest_us());
                }
                Overdue::Close => conn.close(),
                Overdue::Abort => conn.abort(),
            }
            self.live -= 1;
            None
        });
        self.deadlines = deadlines;
    }
}

/// Whether bytes wait for the peer.
fn is_sending(conn: &Conn<'_, Peer>) -> bool {
    conn.unsent_bytes() + conn.unacked_bytes() > 0
}

impl Handler for Httpd {
    type State = Peer;

    fn on_accept(&mut self, io: &mut Io<Peer>, _: u64, _: SocketAddr) -> Option<Peer> {
        if self.live >= self.most_connections {
            return None;
        }
        self.live += 1;
        Some(Peer::new(io.now_us()))
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, Peer>) {
        let due_us = conn.io().now_us() + self.patience.shortest_us();
        self.watch(conn, due_us);
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, Peer>) {
        self.work(conn);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Peer>) {
        self.work(conn);
    }

    fn on_sent(&mut self, conn: &mut Conn<'_, Peer>, _: u32) {
        let now_us = conn.io().now_us();
        let peer = conn.state_mut();
        peer.since_us = now_us;
        let ends = peer.shut || peer.eof;
        if ends || conn.received_bytes() > 0 {
            self.work(conn);
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Peer>) {
        conn.state_mut().eof = true;
        self.work(conn);
    }

    fn on_dead(&mut self, _: &mut Conn<'_, Peer>, _: Dead) {
        self.live -= 1;
    }

    fn on_migrate_out(&mut self, _: &mut Conn<'_, Peer>, _: u32) {
        // Its entry among the deadlines has an id that is no longer used.
        self.live -= 1;
    }

    fn on_migrate_in(&mut self, conn: &mut Conn<'_, Peer>, _: u32) {
        self.live += 1;
        // The time it waits for began on the other thread.
        let shortest_us = conn.io().now_us() + self.patience.shortest_us();
        let (due_us, _) = conn.state().due(is_sending(conn), &self.patience);
        self.watch(conn, due_us.min(shortest_us));
    }

    fn on_timer(&mut self, io: &mut Io<Peer>, _: u64) {
        // The wheel advances even without connections, so that later entries have their place.
        self.expire(io);
        self.ticking = io.connections() > 0;
        if self.ticking {
            io.set_timer(self.deadlines.step_us(), 0);
        }
    }
}

#[cfg(test)]
mod tests;
