//! [`Rounds`] on a dataplane.
use crate::rounds::{Next, Rounds};
use ix_programs::clock;
use libix::event::{Conn, EventLoop, Handler, Io};
use libix::raw::Thread;
use libix::{Dead, Error};
use std::net::SocketAddr;

/// Time between two checks for the end when no message comes back.
const TICK_US: u64 = 10_000;

struct Player<'a, F> {
    rounds: &'a mut Rounds,
    targets: &'a [SocketAddr],
    /// The loop's ids of the connections.
    ids: Vec<u64>,
    /// Connections that send after this cycle's events; meanwhile they are prefetched.
    to_send: Vec<usize>,
    started: Option<F>,
}

/// As [`crate::rounds_linux::play`].
pub fn play(
    thread: Thread,
    rounds: &mut Rounds,
    targets: &[SocketAddr],
    started: impl FnOnce(usize),
) -> Result<(), Error> {
    let player =
        Player { rounds, targets, ids: Vec::new(), to_send: Vec::new(), started: Some(started) };
    let mut player = EventLoop::new(thread, player);
    let (io, handler) = player.parts();
    handler.open_more(io);
    io.set_timer(TICK_US, 0);
    player.run()?;
    player.abort_all()
}

impl<F: FnOnce(usize)> Player<'_, F> {
    fn open_more(&mut self, io: &mut Io<usize>) {
        while let Some(index) = self.rounds.open() {
            let id = io.connect(self.targets[index % self.targets.len()], index);
            debug_assert_eq!(self.ids.len(), index);
            self.ids.push(id);
        }
    }

    fn go_on(&mut self, io: &mut Io<usize>, next: Next) {
        match next {
            Next::Nothing => self.open_more(io),
            Next::Send(index) => {
                // The ids of connections are prefetched when they are drawn, the connections when
                // it is nearly their turn.
                if let Some(name) = self.ids.get(self.rounds.drawn_last()) {
                    libix::raw::prefetch(name);
                }
                if let Some(&id) = self.ids.get(self.rounds.drawn_next()) {
                    io.prefetch(id);
                }
                self.to_send.push(index);
            }
            Next::Done => io.stop(),
            Next::Start => {
                let Some(started) = self.started.take() else { return };
                let alive = self.rounds.alive();
                started(alive);
                if alive == 0 {
                    return io.stop();
                }
                for index in self.rounds.start(clock::now_ns()) {
                    self.send(io, index);
                }
            }
        }
    }

    fn send(&mut self, io: &mut Io<usize>, index: usize) {
        let mut index = index;
        loop {
            let sent =
                io.conn(self.ids[index]).map_or(0, |mut c| c.send(self.rounds.message(index)));
            if sent > 0 {
                return;
            }
            match self.rounds.lost(index, clock::now_ns(), "the connection takes no message") {
                Next::Send(other) => index = other,
                _ => return,
            }
        }
    }
}

impl<F: FnOnce(usize)> Handler for Player<'_, F> {
    type State = usize;

    fn on_connected(&mut self, conn: &mut Conn<'_, usize>) {
        let next = self.rounds.opened(*conn.state());
        self.go_on(conn.io(), next);
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, usize>) {
        let index = *conn.state();
        let now_ns = clock::now_ns();
        let mut next = Next::Nothing;
        for data in conn.received() {
            next = self.rounds.input(index, data, now_ns);
        }
        conn.consume(usize::MAX);
        if next != Next::Nothing {
            self.go_on(conn.io(), next);
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, usize>) {
        let index = *conn.state();
        conn.abort();
        let next = self.rounds.lost(index, clock::now_ns(), "the server closed the connection");
        self.go_on(conn.io(), next);
    }

    fn on_dead(&mut self, conn: &mut Conn<'_, usize>, why: Dead) {
        let next = self.rounds.lost(*conn.state(), clock::now_ns(), &why.to_string());
        self.go_on(conn.io(), next);
    }

    fn on_cycle(&mut self, io: &mut Io<usize>) {
        let mut to_send = std::mem::take(&mut self.to_send);
        for index in to_send.drain(..) {
            self.send(io, index);
        }
        self.to_send = to_send;
    }

    fn on_timer(&mut self, io: &mut Io<usize>, _: u64) {
        if self.rounds.is_over(clock::now_ns()) {
            return io.stop();
        }
        io.set_timer(TICK_US, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ix::server;
    use crate::rounds::Plan;
    use crate::server::Limits;
    use libix::event::Team;
    use libix::loopback::{Config, Loopback};
    use libix::raw::Wait;

    #[test]
    fn all_connections_carry_messages_on_the_model() {
        let model = Loopback::new(2, Config::default());
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let work = std::time::Duration::ZERO;
        let limits = Limits { connections: 1000, messages: u64::MAX, work };
        let team = Team::new(1);
        let mut echo = server(model.enter(0).unwrap(), 64, limits, &[at], &team).unwrap();
        let plan = Plan {
            size: 64,
            connections: 500,
            in_flight: 8,
            warmup_ns: 0,
            seconds_ns: 60_000_000_000,
            seed: 1,
        };
        let mut rounds = Rounds::new(plan);
        let targets = [at];
        let started = |alive| assert_eq!(alive, 500);
        let player = Player {
            rounds: &mut rounds,
            targets: &targets,
            ids: Vec::new(),
            to_send: Vec::new(),
            started: Some(started),
        };
        let mut client = EventLoop::new(model.enter(1).unwrap(), player);
        let (io, handler) = client.parts();
        handler.open_more(io);
        let mut messages = 0;
        for _ in 0..100_000 {
            echo.turn(Wait::Poll).unwrap();
            client.turn(Wait::Poll).unwrap();
            let sample = client.handler().rounds.take_sample();
            assert_eq!(sample.errors, 0, "{:?}", sample.first_error);
            messages += sample.messages();
            if messages > 500 {
                return;
            }
        }
        panic!("stalled after {messages} messages");
    }
}
