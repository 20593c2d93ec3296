//! The broker's end of the control socket: serves many clients without ever waiting for one.
use super::exposition;
use super::peer::{Input, Peer, REQUEST_MAX, Subscription};
use super::place::{Access, Sockets};
use super::poller::Poller;
use super::refusals::Refusals;
use super::scrape::{Next, Scrape};
use ix_problem::{Problem, Result};
use ix_proto::control::{
    Answer, Hello, Line, Look, PROTOCOL, Refusal, Refused, Request, Role, Topic,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest that a request may take: commands have their own, shorter limits, but may have to wait
/// for others. The client waits a moment longer.
const PENDING_MAX: Duration = Duration::from_secs(5);
/// Most clients of one socket. One more takes the place of whoever was silent for longest.
const PEERS_MAX: usize = 32;
/// Tokens of the poller; clients have higher ones.
const OPERATOR: u64 = 0;
const READ_ONLY: u64 = 1;
const METRICS: u64 = 2;
const FIRST_PEER: u64 = 3;
/// Most scrapes at a time.
const SCRAPES_MAX: usize = 16;

/// What a request comes to.
pub type Response = std::result::Result<Answer, Refusal>;

/// Who stands behind the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The program.
    pub program: String,
    /// Its process.
    pub pid: u32,
}

/// Names a request that will be answered later, through [`Server::answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    peer: u64,
    /// Which of the client's requests.
    request: u64,
}

/// What stands behind the socket.
pub trait Backend {
    /// Who this is, for the greeting.
    fn name(&self) -> Name;

    /// What [`Request::Status`] or [`Request::Stats`] returns: reads memory, waits for nothing.
    fn look(&mut self, topic: Topic) -> std::result::Result<Look, Refusal>;

    /// Begins any other request. `None`: the answer comes later.
    fn begin(&mut self, request: &Request, ticket: Ticket) -> Option<Response>;
}

/// The control sockets of one dataplane with all their clients.
pub struct Server {
    sockets: Sockets,
    poller: Poller,
    peers: BTreeMap<u64, Peer>,
    metrics: Option<TcpListener>,
    scrapes: BTreeMap<u64, Scrape>,
    next_peer: u64,
    refusals: Refusals,
}

impl Server {
    /// Listens at `path`, or at the usual place of process `pid`.
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
            scrapes: BTreeMap::new(),
            next_peer: FIRST_PEER,
            refusals: Refusals::default(),
        })
    }

    /// Answers scrapes of the metrics as well.
    pub fn expose(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.poller.add(listener.as_fd(), METRICS)?;
        self.metrics = Some(listener);
        Ok(())
    }

    /// Where operators ask.
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
        let scrapes = self.scrapes.values().map(|scrape| scrape.until);
        self.peers.values().filter_map(due).chain(scrapes).min()
    }

    /// Does what can be done now: one step for each client that is ready.
    pub fn serve(&mut self, backend: &mut impl Backend, now: Instant) {
        for (token, gone) in self.poller.ready() {
            match token {
                OPERATOR => self.accept(Role::Operator, backend, now),
                READ_ONLY => self.accept(Role::ReadOnly, backend, now),
                METRICS => self.accept_scrape(now),
                token if gone => {
                    self.peers.remove(&token);
                    self.scrapes.remove(&token);
                }
                token if self.scrapes.contains_key(&token) => self.scrape(token, backend),
                token => self.with(token, |peer, refusals| {
                    peer.receive(now)?;
                    peer.flush()?;
                    step(peer, token, backend, refusals, now)
                }),
            }
        }
        self.keep_time(backend, now);
    }

    /// The answer to a request that was begun; of no effect when nobody waits for it any more.
    pub fn answer(&mut self, ticket: Ticket, answer: Response) {
        self.with(ticket.peer, |peer, refusals| {
            // It may be late, and the client waits for the answer to its next request.
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
        let Ok((stream, _)) = listener.accept() else { return };
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

    fn accept_scrape(&mut self, now: Instant) {
        let Some(Ok((stream, _))) = self.metrics.as_ref().map(TcpListener::accept) else { return };
        if self.scrapes.len() >= SCRAPES_MAX {
            self.scrapes.pop_first();
        }
        let Ok(scrape) = Scrape::new(stream, now) else { return };
        let token = self.next_peer;
        self.next_peer += 1;
        if self.poller.add(scrape.stream.as_fd(), token).is_ok() {
            self.scrapes.insert(token, scrape);
        }
    }

    fn scrape(&mut self, token: u64, backend: &mut impl Backend) {
        let Some(scrape) = self.scrapes.get_mut(&token) else { return };
        let ended = match scrape.is_answered() {
            true => scrape.flush(),
            false => scrape.receive().and_then(|next| match next {
                Next::Wait => Ok(false),
                Next::Refuse(status) => scrape.answer(status, "text/plain", &format!("{status}\n")),
                Next::Page => {
                    let look = backend.look(Topic::Stats).map_err(|refusal| refusal.to_string());
                    match look.and_then(Look::running).map(|status| exposition::text(&status)) {
                        Ok(page) => scrape.answer("200 OK", exposition::CONTENT_TYPE, &page),
                        Err(why) => scrape.answer("503 Service Unavailable", "text/plain", &why),
                    }
                }
            }),
        };
        let writes = matches!(ended, Ok(false)) && scrape.is_answered();
        let watched = match ended {
            Ok(false) => self.poller.change(scrape.stream.as_fd(), token, !writes, writes),
            Ok(true) => Err(ErrorKind::NotConnected.into()),
            Err(e) => Err(e),
        };
        if watched.is_err() {
            self.scrapes.remove(&token);
        }
    }

    /// One more client must fit: the one that was silent for longest goes.
    fn make_room(&mut self, role: Role) {
        let of_role = || self.peers.iter().filter(|(_, peer)| peer.role == role);
        if of_role().count() < PEERS_MAX {
            return;
        }
        let oldest = of_role().min_by_key(|(_, peer)| peer.heard).map(|(token, _)| *token);
        if let Some(token) = oldest {
            self.with(token, |peer, refusals| say(peer, Err(Refusal::Busy), refusals));
            self.peers.remove(&token);
        }
    }

    /// Snapshots that are due, and requests that the dataplane did not answer.
    fn keep_time(&mut self, backend: &mut impl Backend, now: Instant) {
        self.scrapes.retain(|_, scrape| scrape.until > now);
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

    /// Does something with a client; whoever cannot be served goes.
    fn with(&mut self, token: u64, f: impl FnOnce(&mut Peer, &mut Refusals) -> io::Result<()>) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let done = f(peer, &mut self.refusals).is_err() || peer.is_done();
        // A request that is read already makes no noise: being able to write stands for it.
        let write = peer.has_output() || peer.has_request();
        let (read, fd) = (peer.listens(), peer.stream.as_fd());
        if done || self.poller.change(fd, token, read, write).is_err() {
            self.peers.remove(&token);
        }
    }
}

/// Takes a client's next request, if there is one.
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

/// Sends a snapshot if one is due. Who has not read the last one yet does without it.
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
    // From now on, not from when it was due: no hurry after a delay.
    subscription.next = now + subscription.interval;
    if busy {
        return Ok(());
    }
    match backend.look(subscription.topic) {
        Ok(look) => peer.say(&Line::Snapshot(look).write()?),
        Err(refusal) => say(peer, Err(refusal), refusals),
    }
}

/// Sends an answer; a refusal is counted.
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
