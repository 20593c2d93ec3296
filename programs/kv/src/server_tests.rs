//! On the model of a dataplane, with connections that change threads all the time.
use super::*;
use crate::store::Limits;
use crate::words::Words;
use libix::loopback::{Config, Loopback};
use libix::raw::Wait;

const THREADS: u32 = 2;
const GROUPS: usize = 12;

/// Sends what it has, as far as it is taken, and keeps what it gets.
struct Talker {
    to_send: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    dead: Option<Dead>,
}

impl Handler for Talker {
    type State = ();

    fn on_connected(&mut self, conn: &mut Conn<'_, ()>) {
        self.on_writable(conn);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, ()>) {
        self.sent += conn.send(&self.to_send[self.sent..]);
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        conn.received().for_each(|data| self.got.extend(data));
        conn.consume(usize::MAX);
    }

    fn on_dead(&mut self, _: &mut Conn<'_, ()>, why: Dead) {
        self.dead = Some(why);
    }
}

fn service(thread: &mut Thread) -> &'static Service {
    let limits = Limits { memory_bytes: 8 << 20, threads: THREADS as usize, ..Limits::default() };
    let words = Words::over(thread.shared_memory(limits.region_bytes()).unwrap());
    let store = Store::new(words, limits, 10, 42);
    let (origin_us, start_unix_s) = (0, 1_800_000_000);
    Box::leak(Box::new(Service { store, lends: true, connections: 10, origin_us, start_unix_s }))
}

/// A value of so many bytes, none of which is easily mistaken.
fn value(number: usize) -> Vec<u8> {
    let len = [3, 900, 1500, 20_000, 70_000][number % 5] + number;
    (0..len).map(|i| (i * 31 + number * 7 + (i >> 8)) as u8).collect()
}

/// Values in and out, twice over, and what must come of them.
fn conversation() -> (Vec<u8>, Vec<u8>) {
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let (key, value) = (number % 20, value(number));
        requests.extend(format!("set k{key} {number} 0 {}\r\n", value.len()).bytes());
        requests.extend(&value);
        requests.extend(format!("\r\nget k{key} none k{key}\r\n").bytes());
        answers.extend(b"STORED\r\n");
        for _ in 0..2 {
            answers.extend(format!("VALUE k{key} {number} {}\r\n", value.len()).bytes());
            answers.extend(&value);
            answers.extend(b"\r\n");
        }
        answers.extend(b"END\r\n");
    }
    (requests, answers)
}

#[test]
fn half_read_values_and_lent_ones_go_along() {
    let at = SocketAddr::from(([10, 0, 0, 1], 11211));
    let (requests, answers) = conversation();
    for (seed, step_bytes) in [(1, 1 << 16), (2, 3000), (3, 700)] {
        let config = Config { seed, step_bytes, groups: GROUPS, ..Config::default() };
        let model = Loopback::new(THREADS as usize + 1, config);
        let mut first = model.enter(0).unwrap();
        let (service, team) = (service(&mut first), Team::new(THREADS));
        let mut servers = [first, model.enter(1).unwrap()]
            .map(|thread| server(thread, service, Some(at), (None, Steps::Both), &team).unwrap());
        let talker = Talker { to_send: requests.clone(), sent: 0, got: Vec::new(), dead: None };
        let mut talker = EventLoop::new(model.enter(THREADS).unwrap(), talker);
        let id = talker.io().connect(at, ());
        let mut migrations = 0;
        for turn in 0.. {
            // The client's groups are those of number 2 modulo 3.
            let group = turn % GROUPS;
            if group % 3 != 2 {
                migrations += usize::from(model.migrate(group, turn / GROUPS % 2));
            }
            servers.iter_mut().for_each(|server| server.turn(Wait::Poll).unwrap());
            talker.turn(Wait::Poll).unwrap();
            assert_eq!(talker.handler().dead, None);
            if talker.handler().got.len() >= answers.len() {
                break;
            }
            assert!(turn < 100_000, "got {} of {}", talker.handler().got.len(), answers.len());
        }
        assert!(talker.handler().got == answers, "seed {seed}");
        assert!(migrations > 20, "{migrations}");
        talker.io().conn(id).unwrap().close();
        for _ in 0..30 {
            servers.iter_mut().for_each(|server| server.turn(Wait::Poll).unwrap());
            talker.turn(Wait::Poll).unwrap();
        }
        assert_eq!((model.flows(), model.held_buffers()), (0, 0));
        let open = service.store.all_counters().iter();
        let open = open.fold(0u64, |sum, one| sum.wrapping_add(one.curr_connections.get()));
        assert_eq!(open, 0);
    }
}
