//! The broker's end of the control socket. It serves many clients and never waits for one.
use super::exposition;
use super::pages::Pages;
use super::peer::{Input, Peer, REQUEST_MAX, Subscription};
use super::place::{Access, Sockets};
use super::poller::Poller;
use super::refusals::Refusals;
use super::scrapes::Scrapes;
use ix_problem::{Problem, Result};
use ix_proto::control::{
    Answer, Hello, Line, Look, PROTOCOL, Refusal, Refused, Request, Role, Topic,
};
use ix_sys::say;
use ix_sys::{Scarcity, socket, user_namespace};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest that a request may take. Commands have shorter limits of their own, but may have to wait
/// for others. The client waits a little longer.
const PENDING_MAX: Duration = Duration::from_secs(5);
/// Most clients of one socket. A further one replaces the client that was silent for longest.
const PEERS_MAX: usize = 32;
/// Tokens of the poller; those of clients are higher.
const OPERATOR: u64 = 0;
const READ_ONLY: u64 = 1;
const METRICS: u64 = 2;
const FIRST_PEER: u64 = 3;

/// The result of a request.
pub type Response = std::result::Result<Answer, Refusal>;

/// Whose control socket this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The program.
    pub program: String,
    /// Its process.
    pub pid: u32,
}

/// A request that is answered later, with [`Server::answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    peer: u64,
    /// Which of the client's requests.
    request: u64,
}

/// What serves the requests.
pub trait Backend {
    /// Program and process, for the greeting.
    fn name(&self) -> Name;

    /// What [`Request::Status`] or [`Request::Stats`] returns. It reads memory and never waits.
    fn look(&mut self, topic: Topic) -> std::result::Result<Look, Refusal>;

    /// Carries out any other request. `None`: it is answered later.
    fn begin(&mut self, request: &Request, ticket: Ticket) -> Option<Response>;
}

/// The control sockets of one dataplane, with their clients.
pub struct Server {
    sockets: Sockets,
    poller: Poller,
    peers: BTreeMap<u64, Peer>,
    metrics: Option<(Scrapes, Pages)>,
    next_peer: u64,
    refusals: Refusals,
    scarcity: Scarcity,
}

impl Server {
    /// Listens at `path`, or at the default path of process `pid`.
    pub fn listen(path: Option<&Path>, pid: i32, access: &Access) -> Result<Server> {
        let sockets = Sockets::listen(path, pid, access)?;
        let poller = || -> io::Result<Poller> {
            let poller = Poller::new()?;
            poller.add(sockets.operator.as_fd(), OPERATOR)?;
            poller.add(sockets.read_only.as_fd(), READ_ONLY)?;
            Ok(poller)
        };
        let poller = poller().map_err(|e| Problem::new("cannot serve the control socket", e))?;
        Ok(Server {
            sockets,
            poller,
            peers: BTreeMap::new(),
            metrics: None,
            next_peer: FIRST_PEER,
            refusals: Refusals::default(),
            scarcity: Scarcity::default(),
        })
    }

    /// Also serves the metrics over HTTP.
    pub fn expose(&mut self, listener: TcpListener) -> io::Result<()> {
        let scrapes = Scrapes::new(listener)?;
        self.poller.add(scrapes.fd(), METRICS)?;
        self.metrics = Some((scrapes, Pages::default()));
        Ok(())
    }

    /// Path of the operators' socket.
    pub fn path(&self) -> &Path {
        self.sockets.path()
    }

    /// A descriptor that polls readable when [`Server::serve`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// When to call [`Server::serve`] even if nothing is readable.
    pub fn due(&self) -> Option<Instant> {
        let due = |peer: &Peer| {
            let snapshot = peer.subscription.as_ref().map(|subscription| subscription.next);
            peer.pending.into_iter().chain(snapshot).min()
        };
        let scrapes = self.metrics.as_ref().and_then(|(scrapes, _)| scrapes.due());
        self.peers.values().filter_map(due).chain(scrapes).chain(self.scarcity.until()).min()
    }

    /// Does one step for each client that is ready.
    pub fn serve(&mut self, backend: &mut impl Backend, now: Instant) {
        if self.scarcity.has_passed(now) {
            self.watch_listeners(true);
        }
        for (token, gone) in self.poller.ready() {
            match token {
                OPERATOR => self.accept(Role::Operator, backend, now),
                READ_ONLY => self.accept(Role::ReadOnly, backend, now),
                // Below, after all control clients.
                METRICS => {}
                token if gone => drop(self.peers.remove(&token)),
                token => self.with(token, |peer, refusals| {
                    peer.receive(now)?;
                    peer.flush()?;
                    step(peer, token, backend, refusals, now)
                }),
            }
        }
        self.keep_time(backend, now);
        if let Some(metrics) = &mut self.metrics {
            serve_metrics(metrics, backend, now);
        }
    }

    /// Answers a request that was not answered at once. Does nothing if its client does not wait
    /// for it any more.
    pub fn answer(&mut self, ticket: Ticket, answer: Response) {
        self.with(ticket.peer, |peer, refusals| {
            // The answer may be late, when the client already waits for its next one.
            if peer.pending.is_none() || peer.requests != ticket.request {
                return Ok(());
            }
            peer.pending = None;
            say(peer, answer, refusals)
        });
    }

    fn accept(&mut self, role: Role, backend: &impl Backend, now: Instant) {
        let listener: &UnixListener = match role {
            Role::Operator => &self.sockets.operator,
            Role::ReadOnly => &self.sockets.read_only,
        };
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) => return self.accepts_nobody(&e, now),
        };
        if role == Role::Operator
            && let Err(why) = must_be_operator(&stream)
        {
            return self.refuse(&stream, &why);
        }
        self.make_room(role);
        let Ok(peer) = Peer::new(stream, role, now) else { return };
        let token = self.next_peer;
        self.next_peer += 1;
        if self.poller.add(peer.stream.as_fd(), token).is_err() {
            return;
        }
        self.peers.insert(token, peer);
        let (Name { program, pid }, ix) = (backend.name(), env!("CARGO_PKG_VERSION").to_owned());
        let hello = Hello { protocol: PROTOCOL, ix, role, pid, program };
        self.with(token, |peer, _| peer.say(&Line::Hello(hello).write()?));
    }

    /// Begins a pause if `accept` has failed for want of something. Clients wait in the queues of
    /// their sockets meanwhile.
    fn accepts_nobody(&mut self, error: &io::Error, now: Instant) {
        if let Some(line) = self.scarcity.failed(error, now) {
            say!("{}: {line}", self.path().display());
        }
        if self.scarcity.until().is_some() {
            self.watch_listeners(false);
        }
    }

    /// Watches both listeners, or none of them.
    fn watch_listeners(&self, yes: bool) {
        let Sockets { operator, read_only, .. } = &self.sockets;
        let both = [(operator.as_fd(), OPERATOR), (read_only.as_fd(), READ_ONLY)];
        for (fd, token) in both {
            // An error leaves it as it is: it fails again, or is tried again after the pause.
            let _ = self.poller.change(fd, token, yes, false);
        }
    }

    /// Tells a client that never becomes one, so that it takes nobody's place.
    fn refuse(&mut self, stream: &UnixStream, why: &Refusal) {
        self.refusals.count(why);
        let Ok(line) = Line::Error(Refused::from(why)).write() else { return };
        // Who connects and does not read does not hold up the others.
        if stream.set_nonblocking(true).is_ok() {
            let mut stream = stream;
            let _ = stream.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Makes room for one more client by closing the one that was silent for longest.
    fn make_room(&mut self, role: Role) {
        let of_role = || self.peers.iter().filter(|(_, peer)| peer.role == role);
        if of_role().count() < PEERS_MAX {
            return;
        }
        let oldest = of_role().min_by_key(|(_, peer)| peer.last_input).map(|(token, _)| *token);
        if let Some(token) = oldest {
            self.with(token, |peer, refusals| say(peer, Err(Refusal::Busy), refusals));
            self.peers.remove(&token);
        }
    }

    /// Sends snapshots that are due, and ends requests that the dataplane did not answer in time.
    fn keep_time(&mut self, backend: &mut impl Backend, now: Instant) {
        let tokens: Vec<u64> = self.peers.keys().copied().collect();
        for token in tokens {
            self.with(token, |peer, refusals| {
                if peer.pending.is_some_and(|end| end <= now) {
                    peer.pending = None;
                    say(peer, Err(Refusal::NoAnswer), refusals)?;
                }
                snapshot(peer, backend, refusals, now)
            });
        }
    }

    /// Calls `f` with a client; closes a client that cannot be served.
    fn with(&mut self, token: u64, f: impl FnOnce(&mut Peer, &mut Refusals) -> io::Result<()>) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let done = f(peer, &mut self.refusals).is_err() || peer.is_done();
        // A request that was read already does not make the descriptor readable, so the poller
        // waits until it is writable, which it is at once.
        let write = peer.has_output() || peer.has_request();
        let (read, fd) = (peer.listens(), peer.stream.as_fd());
        if done || self.poller.change(fd, token, read, write).is_err() {
            self.peers.remove(&token);
        }
    }
}

/// Does one step for each client of the metrics.
fn serve_metrics(
    (scrapes, pages): &mut (Scrapes, Pages),
    backend: &mut impl Backend,
    now: Instant,
) {
    let mut lines = Vec::new();
    for wish in scrapes.serve(now, &mut lines) {
        let page = pages.get(wish.format, now, || {
            let look = backend.look(Topic::Stats).map_err(|refusal| refusal.to_string());
            let status = look.and_then(Look::running)?;
            Ok(exposition::one(&status, wish.format))
        });
        scrapes.answer(wish, page.as_deref().map_err(String::as_str));
    }
    lines.iter().for_each(|line| say!("{line}"));
}

/// An error if the process that has connected to the operators' socket may not use it: root of a
/// user namespace below has root's number and so may open it, but is no operator. One that has
/// ended is none either.
fn must_be_operator(stream: &UnixStream) -> std::result::Result<(), Refusal> {
    const HERE: [i32; 3] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    let process = socket::peer_process(stream.as_fd());
    match process.and_then(|process| user_namespace::is_own(&process)) {
        Ok(true) => Ok(()),
        // The client is not to blame.
        Err(e) if e.raw_os_error().is_some_and(|error| HERE.contains(&error)) => Err(
            Refusal::Dataplane(format!("`ix run` cannot tell whether this is an operator: {e}")),
        ),
        _ => Err(Refusal::Foreign),
    }
}

/// Serves a client's next request, if there is one.
fn step(
    peer: &mut Peer,
    token: u64,
    backend: &mut impl Backend,
    refusals: &mut Refusals,
    now: Instant,
) -> io::Result<()> {
    let request = match peer.next() {
        Input::Nothing => return Ok(()),
        Input::TooLong => {
            say(peer, Err(Refusal::TooLong(REQUEST_MAX)), refusals)?;
            peer.hang_up();
            return Ok(());
        }
        Input::Line(text) => Request::read(&text),
    };
    peer.requests += 1;
    let ticket = Ticket { peer: token, request: peer.requests };
    let request = request.and_then(|request| {
        let allowed = request.allowed(peer.role);
        if allowed { Ok(request) } else { Err(Refusal::NotAllowed) }
    });
    let answer = match request {
        Err(refusal) => Some(Err(refusal)),
        Ok(Request::Status) => Some(backend.look(Topic::Status).map(Answer::Look)),
        Ok(Request::Stats) => Some(backend.look(Topic::Stats).map(Answer::Look)),
        Ok(Request::Subscribe { to, interval_ms }) => {
            let interval = Duration::from_millis(interval_ms);
            peer.subscription = Some(Subscription { topic: to, interval, next: now });
            Some(Ok(Answer::Done {}))
        }
        Ok(Request::Unsubscribe) => {
            peer.subscription = None;
            Some(Ok(Answer::Done {}))
        }
        Ok(Request::Vnic) => {
            let mut view = backend.begin(&Request::Vnic, ticket);
            if let Some(Ok(Answer::Vnic(view))) = &mut view {
                view.set_refused(refusals.counts());
            }
            view
        }
        Ok(request) => backend.begin(&request, ticket),
    };
    match answer {
        Some(answer) => say(peer, answer, refusals),
        None => {
            peer.pending = Some(now + PENDING_MAX);
            Ok(())
        }
    }
}

/// Sends a snapshot if one is due, except to a client that has not read the last one yet.
fn snapshot(
    peer: &mut Peer,
    backend: &mut impl Backend,
    refusals: &mut Refusals,
    now: Instant,
) -> io::Result<()> {
    let busy = peer.has_output();
    let Some(subscription) = peer.subscription.as_mut().filter(|s| s.next <= now) else {
        return Ok(());
    };
    // Counted from now, not from when it was due: missed snapshots are not sent later.
    subscription.next = now + subscription.interval;
    if busy {
        return Ok(());
    }
    match backend.look(subscription.topic) {
        Ok(look) => peer.say(&Line::Snapshot(look).write()?),
        Err(refusal) => say(peer, Err(refusal), refusals),
    }
}

/// Sends an answer, and counts refusals.
fn say(peer: &mut Peer, answer: Response, refusals: &mut Refusals) -> io::Result<()> {
    let line = match answer {
        Ok(answer) => Line::Ok(answer),
        Err(refusal) => {
            refusals.count(&refusal);
            Line::Error(Refused::from(&refusal))
        }
    };
    peer.say(&line.write()?)
}
