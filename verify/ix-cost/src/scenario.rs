//! The scenarios by name, each with a client and a server that exchange messages.
use crate::pair::{Pair, server_addr};
use libix::event::{Conn, Handler, Io};
use libix::raw::TxShared;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

const MESSAGE: [u8; 64] = [b'x'; 64];
const BULK_BYTES: usize = 16 << 10;
/// Messages on the way where the connections are more than the caches hold.
const IN_FLIGHT: usize = 64;

/// Connections to each of the server's ports.
const CONNECTIONS_TO_PORT: usize = 20_000;

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its stable name.
    pub name: &'static str,
    /// Description of a message.
    pub what: &'static str,
    /// Messages until the state is steady: connections are open, memory is warm.
    pub warm: u64,
    /// Messages that are counted.
    pub counted: u64,
    connections: usize,
    kind: Kind,
    /// Over IPv6.
    is_v6: bool,
    /// Takes long: counted only where it is named, and by the map.
    pub is_long: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Idle,
    Echo,
    /// Echo with at most [`IN_FLIGHT`] messages on the way, by the connections in turn.
    Many,
    Bulk,
    Churn,
}

/// All scenarios.
pub const SCENARIOS: [Scenario; 9] = [
    Scenario {
        name: "idle",
        what: "a cycle of each end that finds nothing to do",
        warm: 500,
        counted: 4_000,
        connections: 1,
        kind: Kind::Idle,
        is_v6: false,
        is_long: false,
    },
    Scenario {
        name: "echo-1",
        what: "64 bytes there and back, 1 connection",
        warm: 500,
        counted: 4_000,
        connections: 1,
        kind: Kind::Echo,
        is_v6: false,
        is_long: false,
    },
    Scenario {
        name: "echo-64",
        what: "64 bytes there and back, 64 connections",
        warm: 2_048,
        counted: 8_192,
        connections: 64,
        kind: Kind::Echo,
        is_v6: false,
        is_long: false,
    },
    Scenario {
        name: "echo-64-v6",
        what: "64 bytes there and back over IPv6, 64 connections",
        warm: 2_048,
        counted: 8_192,
        connections: 64,
        kind: Kind::Echo,
        is_v6: true,
        is_long: false,
    },
    Scenario {
        name: "echo-1024",
        what: "64 bytes there and back, 1024 connections",
        warm: 8_192,
        counted: 16_384,
        connections: 1024,
        kind: Kind::Echo,
        is_v6: false,
        is_long: false,
    },
    Scenario {
        name: "echo-20000",
        what: "64 bytes there and back, 20000 connections in turn, 64 on the way",
        warm: 140_000,
        counted: 20_000,
        connections: 20_000,
        kind: Kind::Many,
        is_v6: false,
        is_long: true,
    },
    Scenario {
        name: "echo-250000",
        what: "64 bytes there and back, 250000 connections in turn, 64 on the way",
        warm: 1_000_000,
        counted: 250_000,
        connections: 250_000,
        kind: Kind::Many,
        is_v6: false,
        is_long: true,
    },
    Scenario {
        name: "bulk",
        what: "16 KiB one way, 1 connection, zero-copy",
        warm: 1_000,
        counted: 2_000,
        connections: 1,
        kind: Kind::Bulk,
        is_v6: false,
        is_long: false,
    },
    Scenario {
        name: "churn",
        what: "connect, 64 bytes there and back, close; 64 at a time",
        warm: 2_048,
        counted: 4_096,
        connections: 64,
        kind: Kind::Churn,
        is_v6: false,
        is_long: false,
    },
];

impl Scenario {
    /// The scenario of a name.
    pub fn named(name: &str) -> Option<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// Exchanges `messages` messages or some more (cycles are not cut short); returns their number.
    /// Calls `warm` once when the state is steady, with the number until then.
    pub fn play(&self, messages: u64, mut warm: impl FnMut(u64)) -> u64 {
        let mut is_warm = false;
        let done = Rc::new(Cell::new(0));
        let client =
            Client { kind: self.kind, connections: self.connections, ..Client::echo(&done) };
        let server = Server { kind: self.kind, bytes: 0, done: done.clone() };
        // Never dropped: the buffers of its connections are in its packet memory.
        let mut pair = std::mem::ManuallyDrop::new(Pair::new(client, server, self.is_v6));
        let mut opened = 0;
        while done.get() < messages {
            if !is_warm && done.get() >= self.warm {
                is_warm = true;
                warm(done.get());
            }
            // A few at a time, as a wire would deliver them.
            while opened < self.connections {
                let mut at = server_addr(self.is_v6);
                at.set_port(at.port() + (opened / CONNECTIONS_TO_PORT) as u16);
                pair.client.io().connect(at, 0);
                opened += 1;
                if opened % 16 == 0 {
                    break;
                }
            }
            pair.turn();
            if matches!(self.kind, Kind::Idle) {
                done.set(done.get() + 1);
            }
        }
        done.get()
    }
}

/// The side that opens connections. State of a connection: received bytes of the reply.
pub struct Client {
    kind: Kind,
    done: Rc<Cell<u64>>,
    bulk: Option<TxShared>,
    /// Connections that are open, and the next of them that sends.
    open: Vec<u64>,
    next: usize,
    connections: usize,
}

impl Client {
    /// Sends 64 bytes again and again; `done` counts how often they came back.
    pub fn echo(done: &Rc<Cell<u64>>) -> Client {
        Client {
            kind: Kind::Echo,
            done: done.clone(),
            bulk: None,
            open: Vec::new(),
            next: 0,
            connections: 0,
        }
    }

    /// Sends on the connection whose turn it is.
    fn send_next(&mut self, io: &mut Io<usize>) {
        let id = self.open[self.next];
        self.next = (self.next + 1) % self.open.len();
        if let Some(mut conn) = io.conn(id) {
            conn.send(&MESSAGE);
        }
    }

    fn fill(&self, conn: &mut Conn<'_, usize>) {
        let Some(block) = &self.bulk else { return };
        while conn.send_room() >= BULK_BYTES as u64 {
            conn.send_shared(block, 0..BULK_BYTES);
        }
    }
}

impl Handler for Client {
    type State = usize;

    fn on_connected(&mut self, conn: &mut Conn<'_, usize>) {
        if matches!(self.kind, Kind::Idle) {
            // An idle scenario.
        } else if matches!(self.kind, Kind::Bulk) {
            let mut block = conn.alloc(BULK_BYTES).expect("fresh transmit memory");
            block.extend(&[b'x'; BULK_BYTES]);
            self.bulk = Some(block.share());
            self.fill(conn);
        } else if matches!(self.kind, Kind::Many) {
            self.open.push(conn.id());
            if self.open.len() == self.connections {
                (0..IN_FLIGHT).for_each(|_| self.send_next(conn.io()));
            }
        } else {
            conn.send(&MESSAGE);
        }
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, usize>) {
        let bytes = conn.received_bytes();
        conn.consume(bytes);
        *conn.state_mut() += bytes;
        if *conn.state() < MESSAGE.len() {
            return;
        }
        *conn.state_mut() = 0;
        self.done.set(self.done.get() + 1);
        if matches!(self.kind, Kind::Churn) {
            conn.close();
            conn.io().connect(server_addr(false), 0);
        } else if matches!(self.kind, Kind::Many) {
            self.send_next(conn.io());
        } else {
            conn.send(&MESSAGE);
        }
    }

    fn on_sent(&mut self, conn: &mut Conn<'_, usize>, _bytes: u32) {
        self.fill(conn);
    }
}

/// The side that listens.
pub struct Server {
    kind: Kind,
    bytes: usize,
    done: Rc<Cell<u64>>,
}

impl Server {
    /// Sends back what comes.
    pub fn echo() -> Server {
        Server { kind: Kind::Echo, bytes: 0, done: Rc::default() }
    }
}

impl Handler for Server {
    type State = ();

    fn on_accept(&mut self, _: &mut Io<()>, _: u64, _: SocketAddr) -> Option<()> {
        Some(())
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        let bytes = conn.received_bytes();
        if matches!(self.kind, Kind::Bulk) {
            conn.consume(bytes);
            self.bytes += bytes;
            self.done.set((self.bytes / BULK_BYTES) as u64);
        } else {
            conn.send_received(bytes);
        }
    }
}
