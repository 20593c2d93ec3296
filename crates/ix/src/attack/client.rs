//! Who is served while the dataplane is attacked: a client on Linux's sockets at the other end of a tap.
use ix_testbed::Namespace;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The dataplane's address.
pub const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// The length of its network's prefix.
pub const PREFIX: u8 = 24;
/// The tap.
pub const LINK: &str = "ixattack";

const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Where attackers echo, and where they want to be flooded.
const ECHO_PORT: u16 = 7;
const FLOODED_PORT: u16 = 7010;
/// For a dataplane that is slow to begin, and for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
const LATE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct State {
    stop: AtomicBool,
    floods: AtomicBool,
    answered: AtomicU64,
    lost: AtomicU64,
    longest_ms: AtomicU64,
}

impl State {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// It asks without a pause until [`Client::finish`].
pub struct Client {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl Client {
    /// In the namespace that the dataplane's tap appears in.
    pub fn start(namespace: Namespace) -> Result<Client, ix_testbed::Error> {
        namespace.wait_for_link(LINK, PATIENCE)?;
        namespace.add_address(LINK, HERE, PREFIX)?;
        namespace.set_up(LINK, true)?;
        let state = Arc::new(State::default());
        let (namespace, mut threads) = (Arc::new(namespace), Vec::new());
        for life in [ask as fn(&State), flood] {
            let (namespace, state) = (namespace.clone(), state.clone());
            threads.push(std::thread::spawn(move || namespace.run(|| life(&state))));
        }
        Ok(Client { state, threads })
    }

    /// Begins or ends a flood of datagrams.
    pub fn flood(&self, on: bool) {
        self.state.floods.store(on, Ordering::Relaxed);
    }

    /// Answers how many of its requests were answered, how many were not, and how long the slowest took, ms.
    pub fn finish(self) -> (u64, u64, u64) {
        self.state.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let State { answered, lost, longest_ms, .. } = &*self.state;
        (count(answered), count(lost), count(longest_ms))
    }
}

/// A request at a time, over one connection as long as it lives.
fn ask(state: &State) {
    let mut begin = Instant::now();
    while state.goes_on() && begin.elapsed() < PATIENCE {
        let Ok(mut stream) = TcpStream::connect(SocketAddrV4::new(OWN, ECHO_PORT)) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let _ = stream.set_read_timeout(Some(LATE)).and(stream.set_nodelay(true));
        let mut number = 0u64;
        while state.goes_on() {
            number += 1;
            let asked = Instant::now();
            match exchange(&mut stream, number) {
                Ok(true) => state.answered.fetch_add(1, Ordering::Relaxed),
                // The program has ended; were it too early, its attacks would find nobody served.
                Err(e) if !is_late(&e) => return,
                // Late or wrong: what comes next here may be the answer to this one.
                _ => {
                    state.lost.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            };
            state.longest_ms.fetch_max(asked.elapsed().as_millis() as u64, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
        begin = Instant::now();
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Whether the answer is the request.
fn exchange(stream: &mut TcpStream, number: u64) -> io::Result<bool> {
    let mut back = [0; 8];
    stream.write_all(&number.to_ne_bytes())?;
    stream.read_exact(&mut back)?;
    Ok(back == number.to_ne_bytes())
}

fn flood(state: &State) {
    const BURST: usize = 32;
    let Ok(socket) = UdpSocket::bind((HERE, 0)) else { return };
    while state.goes_on() {
        if state.floods.load(Ordering::Relaxed) {
            for _ in 0..BURST {
                let _ = socket.send_to(&[0; 64], (OWN, FLOODED_PORT));
            }
        }
        std::thread::sleep(PAUSE);
    }
}
