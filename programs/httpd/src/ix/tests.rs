//! On the model of a dataplane.
use super::*;
use libix::loopback::{Config, Loopback};

const PATIENCE: Patience = Patience { request_us: 10_000_000, idle_us: 60_000_000 };

/// The loop's id of its first connection.
const FIRST_ID: u64 = 1 << 32;

fn site() -> Arc<Site> {
    let mut site = Site::new(1 << 20);
    for size in [10, 1000, 300_000] {
        site.add_synthetic(size).unwrap();
    }
    Arc::new(site)
}

fn at() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 80))
}

/// A client that sends what it has and keeps what it gets.
#[derive(Default)]
struct Client {
    to_send: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    reads: bool,
    shuts: bool,
    eof: bool,
    dead: Option<Dead>,
}

impl Client {
    fn push(&mut self, conn: &mut Conn<'_, ()>) {
        while self.sent < self.to_send.len() {
            match conn.send(&self.to_send[self.sent..]) {
                0 => return,
                n => self.sent += n,
            }
        }
        if self.shuts {
            conn.shutdown();
        }
    }
}

impl Handler for Client {
    type State = ();

    fn on_connected(&mut self, conn: &mut Conn<'_, ()>) {
        self.push(conn);
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, ()>) {
        self.push(conn);
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, ()>) {
        if self.reads {
            conn.received().for_each(|data| self.got.extend(data));
            conn.consume(usize::MAX);
        }
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, ()>) {
        self.eof = true;
        conn.close();
    }

    fn on_dead(&mut self, _: &mut Conn<'_, ()>, why: Dead) {
        self.dead = Some(why);
    }
}

/// Flow groups of the model.
const GROUPS: usize = 16;

/// The client's thread comes after the server's.
struct Rig {
    model: Loopback,
    servers: Vec<EventLoop<Httpd>>,
    client: EventLoop<Client>,
    turns: usize,
}

impl Rig {
    fn new(config: Config, patience: Patience, client: Client) -> Rig {
        Rig::with_threads(1, config, patience, client)
    }

    /// With several threads the server's connections are never long on the same one.
    fn with_threads(threads: u32, config: Config, patience: Patience, client: Client) -> Rig {
        let model = Loopback::new(threads as usize + 1, Config { groups: GROUPS, ..config });
        let team = Team::new(threads);
        let server = |index| {
            let thread = model.enter(index).unwrap();
            super::server(thread, &site(), patience, 4, at(), &team).unwrap()
        };
        let servers = (0..threads).map(server).collect();
        let mut client = EventLoop::new(model.enter(threads).unwrap(), client);
        client.io().connect(at(), ());
        Rig { model, servers, client, turns: 0 }
    }

    fn turn(&mut self) {
        self.turns += 1;
        let (group, threads) = (self.turns % GROUPS, self.servers.len());
        if threads > 1 && group % (threads + 1) != threads {
            self.model.migrate(group, self.turns / GROUPS % threads);
        }
        self.servers.iter_mut().for_each(|server| server.turn(Wait::Poll).unwrap());
        self.client.turn(Wait::Poll).unwrap();
    }

    fn live(&mut self) -> usize {
        self.servers.iter_mut().map(|server| server.handler().live).sum()
    }

    #[track_caller]
    fn run_until(&mut self, holds: impl Fn(&mut Rig) -> bool) {
        for _ in 0..200_000 {
            if holds(self) {
                return;
            }
            self.turn();
        }
        panic!("not in time; got {} bytes", self.client.handler().got.len());
    }

    /// Everything is gone on both sides.
    #[track_caller]
    fn comes_to_rest(&mut self) {
        self.run_until(|rig| {
            let connections: usize = rig.servers.iter_mut().map(|s| s.io().connections()).sum();
            rig.model.flows() == 0 && connections == 0
        });
        (0..3).for_each(|_| self.turn());
        assert_eq!((self.model.held_buffers(), self.live()), (0, 0));
    }
}

fn client(requests: &str) -> Client {
    Client { to_send: requests.into(), reads: true, ..Client::default() }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// Status line and length of body of each answer.
fn answers(mut bytes: &[u8]) -> Vec<(String, usize)> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head") + 4;
        let head = core::str::from_utf8(&bytes[..end]).expect("text");
        let (_, length) = head.split_once("Content-Length: ").expect("a length");
        let length = length.lines().next().and_then(|l| l.parse().ok()).expect("a length");
        answers.push((head[9..12].to_owned(), length));
        bytes = &bytes[end + length..];
    }
    answers
}

#[test]
fn pipelined_requests_are_answered_in_order_whatever_the_windows() {
    let last = "GET /10 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nignored";
    let requests = get("/1000") + &get("/300000") + &get("/x") + &get("/") + last;
    for seed in 0..20 {
        let (window_bytes, step_bytes) = [(200, 7), (5000, 3000), (1 << 20, 1 << 20)][seed % 3];
        let refuse_one_in = [0, 5][seed % 2];
        let seed = seed as u64;
        let config = Config { seed, window_bytes, step_bytes, refuse_one_in, ..Config::default() };
        let threads = 1 + seed as u32 / 2 % 2;
        let mut rig = Rig::with_threads(threads, config, PATIENCE, client(&requests));
        rig.run_until(|rig| rig.client.handler().eof);
        let got = answers(&rig.client.handler().got);
        let wanted = [("200", 1000), ("200", 300_000), ("404", 13), ("200", 10), ("200", 10)];
        assert!(got.iter().map(|(code, n)| (code.as_str(), *n)).eq(wanted), "{got:?}");
        rig.comes_to_rest();
    }
}

#[test]
fn answers_still_come_after_the_client_has_shut_its_half() {
    let requests = get("/300000").repeat(4);
    let mut rig = Rig::new(
        Config { window_bytes: 3000, ..Config::default() },
        PATIENCE,
        Client { shuts: true, ..client(&requests) },
    );
    rig.run_until(|rig| rig.client.handler().eof);
    assert_eq!(answers(&rig.client.handler().got), vec![("200".to_owned(), 300_000); 4]);
    rig.comes_to_rest();
}

#[test]
fn pages_are_sent_from_where_they_lie() {
    // One step of transmit memory, 2 MB, holds the pages, and could not hold these answers.
    let requests = get("/300000").repeat(50);
    let config = Config { tx_steps: 2, ..Config::default() };
    let mut rig = Rig::new(config, PATIENCE, Client { shuts: true, ..client(&requests) });
    rig.run_until(|rig| rig.client.handler().eof);
    assert_eq!(answers(&rig.client.handler().got).len(), 50);
    rig.comes_to_rest();
}

#[test]
fn a_flood_that_does_not_read_is_not_read_and_is_cut_off() {
    let patience = Patience { idle_us: 20_000, request_us: 20_000 };
    let requests = get("/1000").repeat(20_000);
    let flood = Client { reads: false, ..client(&requests) };
    let mut rig = Rig::new(Config { step_bytes: 1 << 16, ..Config::default() }, patience, flood);
    let mut most = 0;
    while rig.client.handler().dead.is_none() {
        rig.turn();
        let conn = rig.servers[0].io().conn(FIRST_ID);
        most = most.max(conn.map_or(0, |conn| conn.unsent_bytes() + conn.unacked_bytes()));
    }
    assert!((SEND_LIMIT_BYTES..SEND_LIMIT_BYTES + 2048).contains(&most), "{most}");
    assert_eq!(rig.client.handler().dead, Some(Dead::Reset));
    rig.comes_to_rest();
}

#[test]
fn half_requests_and_idle_connections_end() {
    let patience = Patience { request_us: 20_000, idle_us: 40_000 };
    let cases = [
        ("GET / HT".to_owned(), &["408"][..]),
        (get("/") + "GET", &["200", "408"]),
        (get("/"), &["200"]),
        (String::new(), &[]),
    ];
    for (threads, (requests, wanted)) in (1..3).flat_map(|n| cases.iter().map(move |c| (n, c))) {
        let mut rig = Rig::with_threads(threads, Config::default(), patience, client(requests));
        rig.run_until(|rig| rig.client.handler().eof);
        let got = answers(&rig.client.handler().got);
        assert!(got.iter().map(|(code, _)| code).eq(*wanted), "{requests:?}: {got:?}");
        rig.comes_to_rest();
    }
}

#[test]
fn too_many_connections_are_refused() {
    let mut rig = Rig::new(Config::default(), PATIENCE, client(""));
    for _ in 0..5 {
        rig.client.io().connect(at(), ());
    }
    rig.run_until(|rig| rig.client.handler().dead.is_some());
    assert_eq!(rig.live(), 4);
    rig.client.io().abort_all();
    rig.comes_to_rest();
}

#[test]
fn pages_that_do_not_fit_are_said() {
    let model = Loopback::new(1, Config { tx_steps: 1, ..Config::default() });
    let mut site = Site::new(64 << 20);
    site.add_synthetic(4 << 20).unwrap();
    let thread = model.enter(0).unwrap();
    let error = super::server(thread, &Arc::new(site), PATIENCE, 1, at(), &Team::new(1))
        .err()
        .expect("an error");
    assert!(error.to_string().contains("transmit memory"), "{error}");
}
