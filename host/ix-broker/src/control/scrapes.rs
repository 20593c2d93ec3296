//! All scrapes of the metrics: it serves many clients and never waits for one.
use super::families::Format;
use super::poller::Poller;
use super::scrape::{Next, Scrape};
use ix_sys::Scarcity;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Most scrapes at the same time. A further one replaces the oldest.
const SCRAPES_MAX: usize = 16;
/// Token of the listener; those of clients are higher.
const LISTENER: u64 = 0;

/// A listener with its clients.
pub struct Scrapes {
    listener: TcpListener,
    poller: Poller,
    clients: BTreeMap<u64, Scrape>,
    last: u64,
    scarcity: Scarcity,
}

/// A client that has asked for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    client: u64,
    /// The format that it wants.
    pub format: Format,
}

impl Scrapes {
    /// Serves the clients of this listener.
    pub fn new(listener: TcpListener) -> io::Result<Scrapes> {
        listener.set_nonblocking(true)?;
        let poller = Poller::new()?;
        poller.add(listener.as_fd(), LISTENER)?;
        let (clients, scarcity) = (BTreeMap::new(), Scarcity::default());
        Ok(Scrapes { listener, poller, clients, last: LISTENER, scarcity })
    }

    /// A descriptor that polls readable when [`Scrapes::serve`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// When to call [`Scrapes::serve`] even if nothing is readable.
    pub fn due(&self) -> Option<Instant> {
        let clients = self.clients.values().map(|client| client.until);
        clients.chain(self.scarcity.until()).min()
    }

    /// Does one step for each client that is ready. Returns those that want the metrics, which
    /// [`Scrapes::answer`] gives them now or later. A line to log is added to `lines`.
    pub fn serve(&mut self, now: Instant, lines: &mut Vec<String>) -> Vec<Wish> {
        if self.scarcity.has_passed(now) {
            self.watch_listener(true);
        }
        let mut wishes = Vec::new();
        for (token, gone) in self.poller.ready() {
            match token {
                LISTENER => self.accept(now, lines),
                token if gone => drop(self.clients.remove(&token)),
                token => wishes.extend(self.step(token)),
            }
        }
        self.clients.retain(|_, client| client.until > now);
        wishes
    }

    /// Answers a client, if it still waits.
    pub fn answer(&mut self, wish: Wish, page: Result<&str, &str>) {
        let Some(client) = self.clients.get_mut(&wish.client) else { return };
        let ended = match page {
            Ok(page) => client.answer("200 OK", wish.format.content_type(), page),
            Err(why) => client.answer("503 Service Unavailable", "text/plain", why),
        };
        self.go_on(wish.client, ended);
    }

    fn accept(&mut self, now: Instant, lines: &mut Vec<String>) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                lines.extend(self.scarcity.failed(&e, now).map(|line| format!("metrics: {line}")));
                if self.scarcity.until().is_some() {
                    self.watch_listener(false);
                }
                return;
            }
        };
        if self.clients.len() >= SCRAPES_MAX {
            self.clients.pop_first();
        }
        let Ok(client) = Scrape::new(stream, now) else { return };
        self.last += 1;
        if self.poller.add(client.stream.as_fd(), self.last).is_ok() {
            self.clients.insert(self.last, client);
        }
    }

    /// An error leaves it as it is: it fails again, or is tried again after the pause.
    fn watch_listener(&self, yes: bool) {
        let _ = self.poller.change(self.listener.as_fd(), LISTENER, yes, false);
    }

    fn step(&mut self, token: u64) -> Option<Wish> {
        let client = self.clients.get_mut(&token)?;
        let (ended, wish) = match client.is_answered() {
            true => (client.flush(), None),
            false => match client.receive() {
                Ok(Next::Wait) => (Ok(false), None),
                Ok(Next::Refuse(status)) => (client.refuse(status), None),
                Ok(Next::Page(format)) => {
                    // What it sends from now on waits until it has its answer.
                    let still = self.poller.change(client.stream.as_fd(), token, false, false);
                    return still.is_ok().then_some(Wish { client: token, format });
                }
                Err(e) => (Err(e), None),
            },
        };
        self.go_on(token, ended);
        wish
    }

    /// Watches a client for its next step, or closes it.
    fn go_on(&mut self, token: u64, ended: io::Result<bool>) {
        let Some(client) = self.clients.get(&token) else { return };
        let writes = client.is_answered();
        let watched = match ended {
            Ok(false) => self.poller.change(client.stream.as_fd(), token, !writes, writes),
            Ok(true) => Err(ErrorKind::NotConnected.into()),
            Err(e) => Err(e),
        };
        if watched.is_err() {
            self.clients.remove(&token);
        }
    }
}
