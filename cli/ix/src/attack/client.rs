//! The client that is served while the dataplane is attacked: it uses Linux sockets at the other
//! end of a tap.
use ix_sys::socket::set_option;
use ix_testbed::Namespace;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The dataplane's address.
pub const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Prefix length of its network.
pub const PREFIX: u8 = 24;
/// Name of the tap.
pub const LINK: &str = "ixattack";

const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Ports of the attacker: where it echoes, and where it wants floods.
const ECHO_PORT: u16 = 7;
const FLOODED_PORT: u16 = 7010;
const STREAMED_PORT: u16 = 7011;
/// Connections that send without end.
const STREAMS: usize = 48;
/// Longest wait for a dataplane to start.
const PATIENCE: Duration = Duration::from_secs(20);
const LATE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Default)]
struct State {
    stop: AtomicBool,
    floods: AtomicBool,
    streams: AtomicBool,
    answered: AtomicU64,
    lost: AtomicU64,
    longest_ms: AtomicU64,
    /// The first reply that was missing.
    why: OnceLock<String>,
}

impl State {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Sends requests without a pause until [`Client::finish`].
pub struct Client {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl Client {
    /// Starts it in the namespace where the dataplane's tap appears.
    pub fn start(namespace: Namespace) -> Result<Client, ix_testbed::Error> {
        namespace.wait_for_link(LINK, PATIENCE)?;
        namespace.add_address(LINK, HERE, PREFIX)?;
        namespace.set_up(LINK, true)?;
        let state = Arc::new(State::default());
        let (namespace, mut threads) = (Arc::new(namespace), Vec::new());
        for life in [ask as fn(&State), flood, stream] {
            let (namespace, state) = (namespace.clone(), state.clone());
            threads.push(std::thread::spawn(move || namespace.run(|| life(&state))));
        }
        Ok(Client { state, threads })
    }

    /// Begins or ends a flood of datagrams.
    pub fn flood(&self, on: bool) {
        self.state.floods.store(on, Ordering::Relaxed);
    }

    /// Begins or ends many connections that send as much as the dataplane takes.
    pub fn stream(&self, on: bool) {
        self.state.streams.store(on, Ordering::Relaxed);
    }

    /// Stops the client.
    pub fn finish(self) -> Served {
        self.state.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let State { answered, lost, longest_ms, why, .. } = &*self.state;
        Served {
            answered: count(answered),
            lost: count(lost),
            longest_ms: count(longest_ms),
            why: why.get().cloned().unwrap_or_default(),
        }
    }
}

/// What the client counted.
pub struct Served {
    /// Requests with a reply, and without one.
    pub answered: u64,
    pub lost: u64,
    /// Time of the slowest reply.
    pub longest_ms: u64,
    /// The first reply that was missing.
    pub why: String,
}

/// Sends one request at a time, over one connection as long as it lives.
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
            let why = match exchange(&mut stream, number) {
                Ok(answer) if answer == number => None,
                Ok(answer) => Some(format!("request {number} got the reply {answer:#x}")),
                // The program has ended. Had it ended too early, its attacks would show that no
                // request was served.
                Err(e) if !is_late(&e) => return,
                Err(_) => Some(format!("request {number} got no reply within {LATE:?}")),
            };
            // The next bytes on this connection may be the late reply, so it is closed.
            if let Some(why) = why {
                state.lost.fetch_add(1, Ordering::Relaxed);
                let _ = state.why.set(why);
                break;
            }
            state.answered.fetch_add(1, Ordering::Relaxed);
            state.longest_ms.fetch_max(asked.elapsed().as_millis() as u64, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
        begin = Instant::now();
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends a request and returns the reply, which must be the same.
fn exchange(stream: &mut TcpStream, number: u64) -> io::Result<u64> {
    let mut back = [0; 8];
    stream.write_all(&number.to_ne_bytes())?;
    stream.read_exact(&mut back)?;
    Ok(u64::from_ne_bytes(back))
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

fn stream(state: &State) {
    let address = SocketAddr::from((OWN, STREAMED_PORT));
    let bytes = vec![0x55; 64 << 10];
    let mut streams: Vec<TcpStream> = Vec::new();
    while state.goes_on() {
        if !state.streams.load(Ordering::Relaxed) {
            streams.clear();
        } else if streams.len() < STREAMS {
            let opened = TcpStream::connect_timeout(&address, PATIENCE / 20);
            let opened = opened.and_then(|s| hold_little(&s).map(|()| s));
            streams.extend(opened.ok());
        }
        // Opens those anew that were reset.
        streams.retain_mut(|stream| match stream.write(&bytes) {
            Ok(_) => true,
            Err(e) => e.kind() == io::ErrorKind::WouldBlock,
        });
        if streams.is_empty() || streams.len() == STREAMS {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Sends without waiting, and so little at once that the tap's queue never overflows: a packet lost
/// there could be anyone's.
fn hold_little(stream: &TcpStream) -> io::Result<()> {
    set_option(stream.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 32 << 10)?;
    stream.set_nonblocking(true)
}
