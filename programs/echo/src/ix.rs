//! The echo server on IX: replies are sent from the receive buffers.
use crate::server::Limits;
use libix::event::{Conn, EventLoop, Handler, Io, Team};
use libix::raw::{Thread, TxArena, TxBuf};
use libix::{Dead, Error};
use std::net::SocketAddr;

/// Longer messages are gathered in transmit memory: in receive buffers they would close the window
/// that the rest of them needs.
const HELD_BYTES: usize = 8 << 10;

/// The server of one elastic thread.
pub struct EchoZeroCopy {
    size: usize,
    limits: Limits,
    live: usize,
}

/// State of a connection.
#[derive(Default)]
pub struct Partial {
    /// A long message that is not complete.
    blocks: Vec<TxBuf>,
    have: usize,
    /// Number of echoed messages.
    done: u64,
}

/// A loop that serves messages of `size` bytes.
pub fn server(
    thread: Thread,
    size: usize,
    limits: Limits,
    at: &[SocketAddr],
    team: &Team<Partial>,
) -> Result<EventLoop<EchoZeroCopy>, Error> {
    let mut server = EventLoop::in_team(thread, EchoZeroCopy { size, limits, live: 0 }, team);
    for &at in at {
        server.listen(at, 0)?;
    }
    Ok(server)
}

impl EchoZeroCopy {
    /// Gathers and echoes long messages; without transmit memory it continues in `on_writable`.
    fn gather(&mut self, conn: &mut Conn<'_, Partial>) {
        while conn.received_bytes() > 0 {
            let missing = self.size - conn.state().have;
            let full = conn.state().blocks.last().is_none_or(|last| last.len() == last.capacity());
            if full {
                let Some(block) = conn.alloc(missing.min(TxArena::LARGEST_BYTES as usize)) else {
                    return;
                };
                conn.state_mut().blocks.push(block);
            }
            let (partial, mut data) = conn.state_and_received();
            let (Some(last), Some(slice)) = (partial.blocks.last_mut(), data.next()) else {
                return;
            };
            let n = last.extend(&slice[..slice.len().min(missing)]);
            drop(data);
            partial.have += n;
            conn.consume(n);
            if n == missing {
                let whole = core::mem::take(&mut conn.state_mut().blocks);
                conn.state_mut().have = 0;
                for block in whole {
                    // Only a connection that ends refuses, and then the reply is not needed.
                    drop(conn.send_zc(block));
                }
                if self.answered(conn, 1) {
                    return;
                }
            }
        }
    }

    /// Counts this many more echoed messages; closes after the last one, and returns whether it
    /// did.
    fn answered(&mut self, conn: &mut Conn<'_, Partial>, messages: usize) -> bool {
        conn.state_mut().done += messages as u64;
        self.limits.work(messages as u64);
        let last = conn.state().done >= self.limits.messages;
        if last {
            self.live -= 1;
            conn.close();
        }
        last
    }
}

impl Handler for EchoZeroCopy {
    type State = Partial;

    fn on_accept(&mut self, _: &mut Io<Partial>, _: u64, _: SocketAddr) -> Option<Partial> {
        let room = self.live < self.limits.connections;
        self.live += usize::from(room);
        room.then(Partial::default)
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, Partial>) {
        if self.size > HELD_BYTES {
            return self.gather(conn);
        }
        let whole = conn.received_bytes() / self.size * self.size;
        if whole > 0 {
            conn.send_received(whole);
            self.answered(conn, whole / self.size);
        }
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Partial>) {
        self.on_readable(conn);
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Partial>) {
        self.live -= 1;
        conn.close();
    }

    fn on_dead(&mut self, _: &mut Conn<'_, Partial>, _: Dead) {
        self.live -= 1;
    }

    fn on_migrate_out(&mut self, _: &mut Conn<'_, Partial>, _: u32) {
        self.live -= 1;
    }

    fn on_migrate_in(&mut self, _: &mut Conn<'_, Partial>, _: u32) {
        self.live += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Close, Direction};
    use crate::bulk::{BulkClient, BulkServer};
    use crate::client::{EchoClient, Load};
    use crate::window::Window;
    use ix_programs::ix::{client, finish, server as serve};
    use libix::loopback::{Config, Loopback};
    use libix::raw::Wait;

    fn at() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 7))
    }

    #[test]
    fn echoes_short_and_long_messages_on_the_model_whichever_thread_has_the_connection() {
        for size in [1, 64, HELD_BYTES, HELD_BYTES + 1, 300_000] {
            let config = Config { tx_steps: 8, ..Config::default() };
            let model = Loopback::new(3, config);
            let (limits, team) = (
                Limits { connections: 8, messages: u64::MAX, work: std::time::Duration::ZERO },
                Team::new(2),
            );
            let echo = |index| {
                let thread = model.enter(index).unwrap();
                server(thread, size, limits, &[at()], &team).unwrap()
            };
            let mut echo = [echo(0), echo(1)];
            let load = Load {
                size: size as u64,
                connections: 1,
                depth: 2,
                messages_per_connection: Some(3),
                close: Close::Reset,
                window: Window::new(0, 0, u64::MAX / 2),
            };
            let clients = EchoClient::new(load);
            let mut clients = client(model.enter(2).unwrap(), clients, at(), 4);
            let mut turns = 0;
            let mut turn = |clients: &mut EventLoop<_>| {
                echo.iter_mut().for_each(|one| one.turn(Wait::Poll).unwrap());
                clients.turn(Wait::Poll).unwrap();
                echo.each_mut().map(|one| one.handler().live).iter().sum::<usize>()
            };
            while clients.handler().service().sample().messages() < 40 {
                turn(&mut clients);
                turns += 1;
                let group = turns % 16;
                // The client's groups stay: those with number 2 modulo 3.
                if group % 3 != 2 {
                    model.migrate(group, turns / 16 % 2);
                }
                assert!(turns < 100_000, "size {size} stalled");
            }
            finish(&mut clients).unwrap();
            let live = (0..6).map(|_| turn(&mut clients)).last();
            let sample = clients.handler().service().sample();
            assert_eq!(sample.errors, 0, "{:?}", sample.first_error);
            assert_eq!((model.flows(), model.held_buffers(), live), (0, 0, Some(0)));
        }
    }

    #[test]
    fn bulk_both_ways_on_the_model() {
        let model = Loopback::new(2, Config::default());
        let mut there = serve(model.enter(0).unwrap(), BulkServer::default(), at()).unwrap();
        let transfer = BulkClient::new(Direction::Both, 3_000_000);
        let mut here = client(model.enter(1).unwrap(), transfer, at(), 1);
        while here.handler().service().outcome.is_none() {
            there.turn(Wait::Poll).unwrap();
            here.turn(Wait::Poll).unwrap();
        }
        let outcome = here.handler().service().outcome.take();
        assert!(matches!(outcome, Some(Ok((_, 3_000_000, 3_000_000)))), "{outcome:?}");
    }
}
