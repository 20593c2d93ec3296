//! The control socket: clients that send anything, in any pieces, come and go at any time, and need
//! not read. Replies to them are well-formed and in order, and a good client among them is served.
use crate::bytes::Bytes;
use ix_broker::control::{Access, Backend, Name, Response, Server, Ticket, read_only};
use ix_proto::control::vnic::FiltersRevoked;
use ix_proto::control::{Answer, INTERVAL_MAX_MS, Look, Refusal, Request, Role, Status, Topic};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most events of one input.
const STEPS_MAX: usize = 200;
/// Turns of the server within which a good client is served, whatever other clients do.
const TURNS_MAX: usize = 400;
/// Well-formed requests, so that more than the parser of lines is tested.
const GOOD: &[&str] = &[
    "status",
    "stats",
    "{\"do\":\"migrate\",\"groups\":\"0-3,7\",\"to\":1}",
    "{\"do\":\"park\",\"thread\":1}",
    "{\"do\":\"subscribe\",\"to\":\"stats\",\"interval_ms\":10}",
    "unsubscribe",
    "vnic",
];

/// An answer that only operators get.
const OPERATORS: usize = 77;

/// A dataplane that replies late, and says which requests only operators may make.
#[derive(Default)]
struct Fake {
    later: VecDeque<Ticket>,
}

impl Backend for Fake {
    fn name(&self) -> Name {
        Name { program: "fake".to_owned(), pid: 7 }
    }

    fn look(&mut self, topic: Topic) -> Result<Look, Refusal> {
        let program = format!("{topic:?}");
        Ok(Look::Running(Box::new(Status { program, ..Status::default() })))
    }

    fn begin(&mut self, request: &Request, ticket: Ticket) -> Option<Response> {
        if request.allowed(Role::ReadOnly) {
            return Some(Ok(Answer::Done {}));
        }
        match request {
            Request::Park { thread } if thread % 2 == 1 => {
                self.later.push_back(ticket);
                None
            }
            Request::Park { thread } => Some(Err(Refusal::NoSuchThread(*thread, 3))),
            _ => Some(Ok(FiltersRevoked { revoked: OPERATORS }.into())),
        }
    }
}

/// A client, and the state of its conversation.
struct Client {
    stream: UnixStream,
    role: Role,
    /// The beginning of an incomplete line.
    heard: Vec<u8>,
    greeted: bool,
    /// Lines that it has begun to send; each gets at most one reply.
    said: usize,
    answered: usize,
}

impl Client {
    /// Reads what there is; panics at a line that a server must not send.
    fn hear(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => self.heard.extend(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        while let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            let value: Value = serde_json::from_slice(&line).expect("a line of JSON");
            self.judge(&value);
        }
    }

    fn judge(&mut self, value: &Value) {
        let object = value.as_object().expect("an object");
        assert_eq!(object.len(), 1, "{value}");
        match object.keys().next().map(String::as_str) {
            Some("hello") => assert!(!std::mem::replace(&mut self.greeted, true), "greeted twice"),
            Some("snapshot") => {}
            Some("ok" | "error") => {
                self.answered += 1;
                // One more: a client that must make room for another one is told so.
                assert!(self.answered <= self.said + 1, "an answer to nothing: {value}");
            }
            _ => panic!("what is {value}?"),
        }
        let forbidden = self.role == Role::ReadOnly && value["ok"]["revoked"] == OPERATORS;
        assert!(!forbidden, "somebody who may only look was obeyed");
    }

    fn say(&mut self, bytes: &[u8]) {
        // Replies without room, or without a client, are not sent.
        let n = (&self.stream).write(bytes).unwrap_or(0);
        self.said += bytes[..n].iter().filter(|&&byte| byte == b'\n').count();
        // The last line may lack its end.
        self.said += usize::from(n > 0 && bytes[n - 1] != b'\n');
    }
}

struct Rig {
    server: Server,
    fake: Fake,
    path: PathBuf,
    now: Instant,
    clients: Vec<Client>,
}

impl Rig {
    fn new() -> Rig {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ix-fuzz-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let server = Server::listen(Some(&path), 0, &Access::default()).expect("a socket");
        Rig { server, fake: Fake::default(), path, now: Instant::now(), clients: Vec::new() }
    }

    fn connect(&self, role: Role) -> Client {
        let path = if role == Role::Operator { self.path.clone() } else { read_only(&self.path) };
        let stream = UnixStream::connect(path).expect("a connection");
        stream.set_nonblocking(true).expect("a socket that does not block");
        Client { stream, role, heard: Vec::new(), greeted: false, said: 0, answered: 0 }
    }

    fn turn(&mut self) {
        self.server.serve(&mut self.fake, self.now);
    }

    /// One event.
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let (what, who) = (bytes.u8(), usize::from(bytes.u8()));
        if what.is_multiple_of(8) || self.clients.is_empty() {
            let role = if who.is_multiple_of(2) { Role::Operator } else { Role::ReadOnly };
            self.clients.push(self.connect(role));
            // The queue of connections that wait to be accepted is bounded.
            return self.turn();
        }
        let at = who % self.clients.len();
        let client = &mut self.clients[at];
        match what % 8 {
            1 | 2 => {
                let piece = usize::from(bytes.u8());
                client.say(bytes.take(piece));
            }
            3 => {
                let line = bytes.pick(GOOD);
                client.say(format!("{line}\n").as_bytes());
            }
            4 => client.say(&vec![bytes.u8(); 1 + usize::from(bytes.u16() % 8192)]),
            5 => client.hear(),
            6 => drop(self.clients.swap_remove(at)),
            _ => {
                let ms = u64::from(bytes.u16()).min(INTERVAL_MAX_MS);
                self.now += Duration::from_millis(ms);
                if let Some(ticket) = self.fake.later.pop_front() {
                    self.server.answer(ticket, Ok(Answer::Done {}));
                }
            }
        }
        self.turn();
    }
}

/// Clients of all kinds; finally a good one.
pub fn run(input: &[u8]) {
    requests_are_read_as_they_are_written(input);
    let mut bytes = Bytes::new(input);
    let mut rig = Rig::new();
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        rig.step(&mut bytes);
    }
    let mut good = rig.connect(Role::ReadOnly);
    good.say(b"status\n");
    for _ in 0..TURNS_MAX {
        rig.turn();
        good.hear();
        if good.answered == 1 {
            break;
        }
    }
    assert!(good.greeted && good.answered == 1, "a good client was not served");
    rig.clients.iter_mut().for_each(Client::hear);
}

/// A request that can be parsed is the same after writing and parsing it again.
fn requests_are_read_as_they_are_written(input: &[u8]) {
    for line in input.split_inclusive(|&byte| byte == b'\n') {
        if let Ok(request) = Request::read(line) {
            let again = Request::read(request.line().expect("JSON").as_bytes());
            let same = matches!(&again, Ok(again) if *again == request);
            assert!(same, "{request:?} became {again:?}");
        }
    }
}
