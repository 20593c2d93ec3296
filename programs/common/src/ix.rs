//! A service on IX: an event loop on one elastic thread.
use crate::{End, Service, Verdict, clock};
use libix::event::{Conn, EventLoop, Handler, Io, Team};
use libix::raw::Thread;
use libix::{Dead, Error};
use std::net::SocketAddr;

/// Time between two checks for the end of a run.
const TICK_US: u64 = 10_000;

/// A service as an event loop's handler.
pub struct Driver<S: Service> {
    service: S,
    target: Option<SocketAddr>,
    ticking: bool,
}

/// A loop that listens.
pub fn server<S: Service>(
    thread: Thread,
    service: S,
    at: SocketAddr,
) -> Result<EventLoop<Driver<S>>, Error> {
    listening(EventLoop::new(thread, Driver::serving(service)), at)
}

/// As [`server`], on one of several threads: connections move between the threads with their flow
/// groups.
pub fn server_in_team<S: Service>(
    thread: Thread,
    service: S,
    at: SocketAddr,
    team: &Team<Option<S::Conn>>,
) -> Result<EventLoop<Driver<S>>, Error> {
    listening(EventLoop::in_team(thread, Driver::serving(service), team), at)
}

fn listening<S: Service>(
    mut server: EventLoop<Driver<S>>,
    at: SocketAddr,
) -> Result<EventLoop<Driver<S>>, Error> {
    server.listen(at, 0)?;
    Ok(server)
}

/// A loop that keeps this many connections open until the service has finished or no connection is
/// left. The service's counts stay with its thread, and so do its connections: a flow group that is
/// taken away ends those in it.
pub fn client<S: Service>(
    thread: Thread,
    service: S,
    to: SocketAddr,
    connections: usize,
) -> EventLoop<Driver<S>> {
    let driver = Driver { service, target: Some(to), ticking: true };
    let mut client = EventLoop::new(thread, driver);
    let (io, driver) = client.parts();
    for _ in 0..connections {
        driver.dial(io);
    }
    io.set_timer(TICK_US, 0);
    client
}

/// Resets the remaining connections after a client's loop has run, so that the peer need not wait
/// for them.
pub fn finish<S: Service>(client: &mut EventLoop<Driver<S>>) -> Result<(), Error> {
    let (io, driver) = client.parts();
    for id in io.ids() {
        if let Some(conn) = io.conn(id)
            && let Some(state) = conn.state()
        {
            driver.service.left_open(state, clock::now_ns());
        }
    }
    client.abort_all()
}

impl<S: Service> Driver<S> {
    fn serving(service: S) -> Driver<S> {
        Driver { service, target: None, ticking: false }
    }

    /// The service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    fn dial(&mut self, io: &mut Io<Option<S::Conn>>) {
        if let Some(target) = self.target
            && let Some(conn) = self.service.open()
        {
            io.connect(target, Some(conn));
        }
    }

    fn ended(&mut self, io: &mut Io<Option<S::Conn>>, conn: S::Conn, end: End) {
        if self.service.closed(conn, end) {
            self.dial(io);
        }
    }

    /// Calls the service with its state, then sends its output and asks for the verdict.
    fn act(
        &mut self,
        conn: &mut Conn<'_, Option<S::Conn>>,
        act: impl FnOnce(&mut S, &mut S::Conn, &Conn<'_, Option<S::Conn>>),
    ) {
        let Some(mut state) = conn.state_mut().take() else { return };
        act(&mut self.service, &mut state, conn);
        loop {
            let data = self.service.output(&state);
            if data.is_empty() {
                break;
            }
            match conn.send(data) {
                0 => break,
                n => self.service.advance(&mut state, n),
            }
        }
        match self.service.verdict(&state) {
            Verdict::Open => {
                *conn.state_mut() = Some(state);
                return;
            }
            Verdict::Close => conn.close(),
            Verdict::Reset => conn.abort(),
        }
        self.ended(conn.io(), state, End::Ours);
    }
}

impl<S: Service> Handler for Driver<S> {
    type State = Option<S::Conn>;

    fn on_accept(&mut self, _: &mut Io<Self::State>, _: u64, _: SocketAddr) -> Option<Self::State> {
        self.service.open().map(Some)
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, Self::State>) {
        self.act(conn, |service, state, _| service.connected(state, clock::now_ns()));
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, Self::State>) {
        let now_ns = clock::now_ns();
        self.act(conn, |service, state, conn| {
            conn.received().for_each(|data| service.input(state, data, now_ns));
        });
        conn.consume(usize::MAX);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, Self::State>) {
        self.act(conn, |_, _, _| ());
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, Self::State>) {
        conn.close();
        if let Some(state) = conn.state_mut().take() {
            self.ended(conn.io(), state, End::Eof);
        }
    }

    fn on_dead(&mut self, conn: &mut Conn<'_, Self::State>, why: Dead) {
        if let Some(state) = conn.state_mut().take() {
            self.ended(conn.io(), state, End::Failed(why.to_string()));
        }
    }

    fn on_timer(&mut self, io: &mut Io<Self::State>, _: u64) {
        if self.service.finished(clock::now_ns()) || (self.ticking && io.connections() == 0) {
            return io.stop();
        }
        io.set_timer(TICK_US, 0);
    }
}
