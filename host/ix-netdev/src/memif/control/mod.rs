//! The control channel of a memif, as the broker serves it. It connects or accepts, shakes hands,
//! notices when the peer closes, and offers the link again. It never blocks.
mod client;
#[cfg(any(test, feature = "fuzzing"))]
pub mod conversation;
#[cfg(test)]
mod hostile_tests;
mod refusal;
mod server;

use super::message::Message;
use super::socket::{self, Received};
use super::spec::MemifSpec;
use crate::device::{DeviceEvent, DeviceUpdate, SharedMemory};
use client::ClientSession;
use ix_nic::memif::{Direction, Plan, QUEUES_MAX, Receiver};
use ix_nic::{DeviceChange, MemifRole, SetReta, initial_queue};
use ix_sys::{Mapping, Scarcity};
use ix_wire::FLOW_GROUPS;
use refusal::Refusal;
use server::ServerSession;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two attempts of a client to connect.
const RETRY: Duration = Duration::from_millis(100);
/// Longest time from the connection to the end of the handshake. A silent client keeps others out.
/// A server may still be starting, and DPDK's server fails when a client leaves in the middle.
const CLIENT_SPEAKS_WITHIN: Duration = Duration::from_secs(5);
const SERVER_SPEAKS_WITHIN: Duration = Duration::from_secs(30);
/// At most this many messages are read at once: more than any handshake has.
const MESSAGES_AT_ONCE: usize = 4096;

/// Prefix of the name by which IX recognises IX; the number of queues follows.
const IX_NAME: &str = "ix 1 queues=";

/// The name that we send.
fn our_name(queues: usize) -> String {
    format!("{IX_NAME}{queues}")
}

/// The number of queues of a peer that is IX.
fn queues_of_ix(name: &str) -> Result<Option<usize>, Refusal> {
    if !name.starts_with("ix ") {
        return Ok(None);
    }
    let queues = name.strip_prefix(IX_NAME).and_then(|n| n.parse().ok());
    let queues = queues.filter(|n| (1..=QUEUES_MAX).contains(n));
    queues.map(Some).ok_or_else(|| Refusal::Name(name.to_owned()))
}

/// The result of a message.
enum Step {
    /// Send this reply.
    Reply(Message, Option<OwnedFd>),
    /// There is a link.
    Established(Box<Established>),
}

/// Both sides agree.
struct Established {
    plan: Plan,
    fds: Vec<OwnedFd>,
    /// The steering page.
    page: Option<Mapping>,
    /// The last message.
    reply: Option<Message>,
}

enum Session {
    Server(ServerSession),
    Client(ClientSession),
}

impl Session {
    fn on_message(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<Step, Refusal> {
        match self {
            Session::Server(session) => session.on_message(message, fds),
            Session::Client(session) => session.on_message(message, fds),
        }
    }

    /// Whether the peer's end is worth a line: not if it only connected and closed.
    fn is_serious(&self) -> bool {
        match self {
            Session::Server(session) => session.introduced(),
            Session::Client(_) => true,
        }
    }
}

enum State {
    /// There is no peer; a client tries again at this time.
    Waiting { retry_at: Instant },
    /// A peer in the handshake, which must end by this time.
    Handshake { socket: OwnedFd, session: Box<Session>, deadline: Instant },
    /// There is a link.
    Up { socket: OwnedFd },
}

/// The control channel.
pub struct Control {
    spec: MemifSpec,
    role: MemifRole,
    /// The server's.
    listener: Option<Listener>,
    /// The client's: what it shares.
    memory: Option<SharedMemory>,
    /// The client's: copies of its queues' eventfds.
    bells: Vec<OwnedFd>,
    reta: Arc<Reta>,
    flow_hash_key: [u64; 2],
    state: State,
    /// The last line. It is not repeated directly.
    said: String,
    scarcity: Scarcity,
}

/// A listening socket. Its file is removed with it.
pub struct Listener {
    pub socket: OwnedFd,
    pub path: String,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.path.starts_with('@') {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Control {
    /// The server's end.
    pub fn server(spec: &MemifSpec, listener: Listener, key: [u64; 2]) -> Control {
        Control::new(spec, MemifRole::Server, Some(listener), key)
    }

    /// The client's end. `connected` is a socket that is connected already.
    pub fn client(
        spec: &MemifSpec,
        memory: SharedMemory,
        bells: Vec<OwnedFd>,
        connected: Option<OwnedFd>,
        key: [u64; 2],
    ) -> Control {
        let mut control = Control::new(spec, MemifRole::Client, None, key);
        (control.memory, control.bells) = (Some(memory), bells);
        if let Some(socket) = connected {
            control.greet(socket, Instant::now());
        }
        control
    }

    fn new(
        spec: &MemifSpec,
        role: MemifRole,
        listener: Option<Listener>,
        flow_hash_key: [u64; 2],
    ) -> Control {
        Control {
            spec: spec.clone(),
            role,
            listener,
            memory: None,
            bells: Vec::new(),
            reta: Arc::new(Reta::new(spec.queues)),
            flow_hash_key,
            state: State::Waiting { retry_at: Instant::now() },
            said: String::new(),
            scarcity: Scarcity::default(),
        }
    }

    /// The redirection table of our queues, which the peer reads.
    pub fn reta(&self) -> Box<dyn SetReta> {
        Box::new(SharedReta(self.reta.clone()))
    }

    /// Whether our packet memory is that of the link.
    pub fn shares_memory(&self) -> bool {
        self.role == MemifRole::Client
    }

    /// See [`crate::OpenedDevice::watch_fds`].
    pub fn watch_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listens = self.scarcity.until().is_none();
        let listener = self.listener.as_ref().filter(|_| listens).map(|l| l.socket.as_fd());
        let peer = match &self.state {
            State::Waiting { .. } => None,
            State::Handshake { socket, .. } | State::Up { socket } => Some(socket.as_fd()),
        };
        listener.into_iter().chain(peer)
    }

    /// See [`crate::OpenedDevice::service_in_ms`].
    pub fn service_in_ms(&self) -> Option<u64> {
        let at = match (&self.state, self.role) {
            (State::Waiting { retry_at }, MemifRole::Client) => Some(*retry_at),
            (State::Handshake { deadline, .. }, _) => Some(*deadline),
            _ => None,
        };
        let at = at.into_iter().chain(self.scarcity.until()).min()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(left.as_micros().div_ceil(1000) as u64)
    }

    /// See [`crate::OpenedDevice::service`].
    pub fn service(&mut self) -> Vec<DeviceEvent> {
        let mut events = Vec::new();
        let now = Instant::now();
        self.serve_peer(now, &mut events);
        match self.role {
            MemifRole::Server => self.accept(now, &mut events),
            MemifRole::Client => self.connect(now, &mut events),
        }
        self.serve_peer(now, &mut events);
        events
    }

    /// A line for the user, unless it repeats the last one.
    fn say(&mut self, what: &str, events: &mut Vec<DeviceEvent>) {
        if self.said != what {
            what.clone_into(&mut self.said);
            events.push(DeviceEvent::Say(format!("memif:{}: {what}", self.spec.path)));
        }
    }

    /// Accepts a peer. A second peer is told that there is one already, and a process of another
    /// user that it may not be the peer.
    fn accept(&mut self, now: Instant, events: &mut Vec<DeviceEvent>) {
        self.scarcity.has_passed(now);
        while self.scarcity.until().is_none()
            && let Some(listener) = &self.listener
        {
            let socket = match socket::accept(listener.socket.as_fd()) {
                Ok(socket) => socket,
                Err(e) => {
                    let line = self.scarcity.failed(&e, now);
                    line.into_iter().for_each(|line| self.say(&line, events));
                    return;
                }
            };
            if let Err(why) = self.spec.check_peer(socket.as_fd()) {
                let refused = Message::Disconnect("your user may not be the peer".to_owned());
                let _ = socket::send(socket.as_fd(), &refused.encode(), None);
                self.say(&why, events);
            } else if matches!(self.state, State::Waiting { .. }) {
                self.greet(socket, now);
            } else {
                let busy = Message::Disconnect("there is a peer already".to_owned());
                let _ = socket::send(socket.as_fd(), &busy.encode(), None);
            }
        }
    }

    fn connect(&mut self, now: Instant, events: &mut Vec<DeviceEvent>) {
        if !matches!(self.state, State::Waiting { retry_at } if retry_at <= now) {
            return;
        }
        match socket::connect(&self.spec.path) {
            Ok(socket) => match self.spec.check_peer(socket.as_fd()) {
                Ok(()) => self.greet(socket, now),
                Err(why) => {
                    self.state = State::Waiting { retry_at: now + RETRY };
                    self.say(&format!("no server yet ({why}); trying on"), events);
                }
            },
            Err(e) => {
                self.state = State::Waiting { retry_at: now + RETRY };
                let why = match e.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        "nobody listens there".to_owned()
                    }
                    _ => e.to_string(),
                };
                self.say(&format!("no server yet ({why}); trying on"), events);
            }
        }
    }

    /// Begins the handshake.
    fn greet(&mut self, socket: OwnedFd, now: Instant) {
        let deadline = now
            + match self.role {
                MemifRole::Server => CLIENT_SPEAKS_WITHIN,
                MemifRole::Client => SERVER_SPEAKS_WITHIN,
            };
        let session = match (&self.memory, self.role) {
            (Some(memory), MemifRole::Client) => {
                let bells = self.bells.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>();
                let Ok(bells) = bells else {
                    self.state = State::Waiting { retry_at: now + RETRY };
                    return;
                };
                Session::Client(ClientSession::new(&self.spec, memory.clone(), bells))
            }
            _ => {
                let hello = ServerSession::hello(&self.spec).encode();
                // If the peer has closed already, the next read says so.
                let _ = socket::send(socket.as_fd(), &hello, None);
                Session::Server(ServerSession::new(&self.spec))
            }
        };
        self.state = State::Handshake { socket, session: Box::new(session), deadline };
    }

    /// Reads the peer's messages.
    fn serve_peer(&mut self, now: Instant, events: &mut Vec<DeviceEvent>) {
        for _ in 0..MESSAGES_AT_ONCE {
            let (State::Handshake { socket, .. } | State::Up { socket }) = &self.state else {
                return;
            };
            match socket::receive(socket.as_fd()) {
                Ok(Received::Packet(bytes, fds)) => {
                    let step = match Message::decode(&bytes) {
                        Ok(message) => self.on_message(message, fds),
                        Err(e) => Err(Refusal::Message(e)),
                    };
                    if let Err(refusal) = step.and_then(|step| self.take_step(step, events)) {
                        self.refuse(refusal, now, events);
                    }
                }
                Ok(Received::Nothing) => break,
                Ok(Received::Closed) => self.lose("", now, events),
                Err(e) => self.refuse(Refusal::System(e), now, events),
            }
        }
        if matches!(&self.state, State::Handshake { deadline, .. } if *deadline <= now) {
            self.refuse(Refusal::Slow, now, events);
        }
    }

    fn on_message(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<Option<Step>, Refusal> {
        match (&mut self.state, message) {
            (State::Handshake { session, .. }, message) => {
                session.on_message(message, fds).map(Some)
            }
            (_, Message::Disconnect(reason)) => Err(Refusal::Peer(reason)),
            (_, message) => Err(Refusal::Unexpected(message.name())),
        }
    }

    fn take_step(
        &mut self,
        step: Option<Step>,
        events: &mut Vec<DeviceEvent>,
    ) -> Result<(), Refusal> {
        let State::Handshake { socket, session, .. } = &mut self.state else { return Ok(()) };
        // The table must be in the page before the peer may read it.
        if let Session::Client(session) = &mut **session
            && let Some((page, senders)) = session.take_page()
        {
            self.reta.publish(page, self.role, senders, self.flow_hash_key);
        }
        match step {
            None => {}
            Some(Step::Reply(message, fd)) => {
                let fd = fd.as_ref().map(|fd| fd.as_fd());
                socket::send(socket.as_fd(), &message.encode(), fd)?;
            }
            Some(Step::Established(link)) => {
                let Established { plan, fds, page, reply } = *link;
                if self.role == MemifRole::Server {
                    self.reta.publish(page, self.role, plan.peer_queues, self.flow_hash_key);
                }
                if let Some(message) = reply {
                    socket::send(socket.as_fd(), &message.encode(), None)?;
                }
                self.bring_up(plan, fds, events);
            }
        }
        Ok(())
    }

    fn bring_up(&mut self, plan: Plan, fds: Vec<OwnedFd>, events: &mut Vec<DeviceEvent>) {
        let waiting = State::Waiting { retry_at: Instant::now() };
        if let State::Handshake { socket, .. } = std::mem::replace(&mut self.state, waiting) {
            self.state = State::Up { socket };
        }
        let plural = if plan.peer_queues == 1 { "" } else { "s" };
        let line = format!("peer connected ({}, {} queue{plural})", plan.peer, plan.peer_queues);
        self.said.clear();
        self.say(&line, events);
        events.push(DeviceEvent::Update(DeviceUpdate { change: DeviceChange::PeerUp(plan), fds }));
    }

    /// Tells the peer the reason, and closes.
    fn refuse(&mut self, refusal: Refusal, now: Instant, events: &mut Vec<DeviceEvent>) {
        if let State::Handshake { socket, .. } | State::Up { socket } = &self.state
            && !matches!(refusal, Refusal::Peer(_))
        {
            let bye = Message::Disconnect(refusal.to_string());
            let _ = socket::send(socket.as_fd(), &bye.encode(), None);
        }
        self.lose(&refusal.to_string(), now, events);
    }

    /// The peer has closed, for this reason if it is known.
    fn lose(&mut self, reason: &str, now: Instant, events: &mut Vec<DeviceEvent>) {
        let state = std::mem::replace(&mut self.state, State::Waiting { retry_at: now + RETRY });
        let what = match (&state, reason) {
            (State::Up { .. }, "") => "peer gone; waiting for it or another".to_owned(),
            (State::Up { .. }, why) => format!("peer gone ({why}); waiting for it or another"),
            (State::Handshake { session, .. }, "") if !session.is_serious() => String::new(),
            (State::Handshake { .. }, "") => "peer left before there was a link".to_owned(),
            (_, why) => format!("peer refused: {why}"),
        };
        if !what.is_empty() {
            self.say(&what, events);
        }
        if matches!(state, State::Up { .. }) {
            self.reta.withdraw();
            let change = DeviceChange::PeerDown;
            events.push(DeviceEvent::Update(DeviceUpdate { change, fds: Vec::new() }));
        }
    }
}

/// Sets our redirection table: kept here, and shown to a peer that is IX.
struct Reta {
    queues: usize,
    shown: Mutex<Shown>,
}

struct Shown {
    table: [u8; FLOW_GROUPS],
    page: Option<Receiver>,
}

struct SharedReta(Arc<Reta>);

impl Reta {
    fn new(queues: usize) -> Reta {
        let mut table = [0; FLOW_GROUPS];
        let entries = table.iter_mut().enumerate();
        entries.for_each(|(group, queue)| *queue = initial_queue(group, queues) as u8);
        Reta { queues, shown: Mutex::new(Shown { table, page: None }) }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, page: Option<Mapping>, role: MemifRole, senders: usize, key: [u64; 2]) {
        let direction = match role {
            MemifRole::Server => Direction::ToServer,
            MemifRole::Client => Direction::ToClient,
        };
        let mut shown = self.shown();
        shown.page =
            page.map(|mapping| Receiver::new(mapping, direction, senders, key, &shown.table));
    }

    fn withdraw(&self) {
        self.shown().page = None;
    }
}

impl SetReta for SharedReta {
    fn set(&self, flow_group: usize, queue: usize) -> io::Result<()> {
        if flow_group >= FLOW_GROUPS || queue >= self.0.queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut shown = self.0.shown();
        shown.table[flow_group] = queue as u8;
        if let Some(page) = &shown.page {
            page.set(flow_group, queue as u8);
        }
        Ok(())
    }

    fn settled(&self) -> bool {
        self.0.shown().page.as_ref().is_some_and(Receiver::settled)
    }

    fn is_sending(&self) -> bool {
        self.0.shown().page.as_ref().is_some_and(Receiver::is_sending)
    }
}
