//! What Linux clients do, every byte compared.
use super::{PATIENCE, connect, connect_to};
use ix_random::Rng;
use ix_testbed::Namespace;
use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An HTTP exchange with a server that closes the connection behind its answer; head and body.
#[track_caller]
pub fn http(namespace: &Namespace, address: &str, request: &str) -> (String, String) {
    namespace.run(|| {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.write_all(request.as_bytes()).expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    })
}

/// A message that differs from all others.
pub fn message(id: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Rng::new(id + 1).fill(&mut bytes);
    bytes
}

/// One message there and back.
#[track_caller]
pub fn echo(stream: &mut TcpStream, id: u64, size: usize) {
    let sent = message(id, size);
    stream.write_all(&sent).expect("write");
    expect(stream, &sent);
}

/// Reads exactly this.
#[track_caller]
pub fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).expect("the answer");
    assert!(got == wanted, "the answer differs");
}

/// Closes our half and waits for the peer's FIN.
#[track_caller]
pub fn close(mut stream: TcpStream) {
    stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
    expect_eof(&mut stream);
}

/// The peer's FIN is next.
#[track_caller]
pub fn expect_eof(stream: &mut TcpStream) {
    let n = stream.read(&mut [0; 16]).expect("the peer's FIN");
    assert_eq!(n, 0, "data after the last answer");
}

/// Ends a connection by RST.
pub fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(&stream, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// The end of a machine: the connection goes without a word (`TCP_REPAIR` sends nothing).
pub fn vanish(stream: TcpStream) {
    set_option(&stream, libc::IPPROTO_TCP, libc::TCP_REPAIR, &1i32);
}

fn set_option<T>(stream: &TcpStream, level: i32, name: i32, value: &T) {
    let len = size_of::<T>() as u32;
    // SAFETY: the value lives across the call and its size is given.
    let ret = unsafe {
        libc::setsockopt(stream.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len)
    };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}

/// Allows as many descriptors as the system lets us have.
pub fn raise_descriptor_limit(wanted: u64) {
    // SAFETY: both calls read or write a local.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max.min(wanted.max(limit.rlim_cur));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        limit.rlim_cur
    };
    assert!(limit >= wanted, "the test needs {wanted} descriptors (ulimit -n), not {limit}");
}

/// A connection that keeps echoing while something else happens.
pub struct Steady {
    /// The client's end of it.
    pub local: SocketAddrV4,
    stop: AtomicBool,
    rounds: AtomicU64,
}

impl Steady {
    /// Echoes on one connection of the calling thread's namespace while `work` runs on another
    /// thread; returns what `work` does. A wrong byte or a broken connection is a panic.
    pub fn during<T: Send>(size: usize, work: impl FnOnce(&Steady) -> T + Send) -> T {
        let mut stream = connect();
        let SocketAddr::V4(local) = stream.local_addr().expect("bound") else { unreachable!() };
        let steady = Steady { local, stop: AtomicBool::new(false), rounds: AtomicU64::new(0) };
        echo(&mut stream, u64::MAX / 2, size);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let _stop = StopAtEnd(&steady.stop);
                work(&steady)
            });
            while !steady.stop.load(Ordering::SeqCst) {
                echo(&mut stream, steady.rounds.load(Ordering::SeqCst), size);
                steady.rounds.fetch_add(1, Ordering::SeqCst);
            }
            let result = match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            close(stream);
            result
        })
    }

    /// Waits until it has echoed some more.
    #[track_caller]
    pub fn goes_on(&self) {
        let wanted = self.rounds.load(Ordering::SeqCst) + 10;
        let end = std::time::Instant::now() + PATIENCE;
        while self.rounds.load(Ordering::SeqCst) < wanted {
            assert!(std::time::Instant::now() < end, "the steady connection stands still");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Makes the kernel take little more than this before it shuts the window.
pub fn shrink_receive_buffer(stream: &TcpStream, bytes: i32) {
    set_option(stream, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes);
}

/// Linux clients that echo on many connections each, every byte compared.
#[derive(Clone, Copy)]
pub struct Crowd {
    /// The service.
    pub service: SocketAddrV4,
    /// Bytes of a message.
    pub size: usize,
    /// After each round a connection goes and another comes: handshakes and TIME-WAIT as well.
    pub turnover: bool,
}

/// Clients of a [`Crowd`], a thread each.
const CLIENTS: usize = 4;
/// Connections of each.
const CONNECTIONS: usize = 8;

impl Crowd {
    /// As many messages as go, from there, while `work` runs; returns how many. A wrong byte or a
    /// broken connection is a panic.
    pub fn during(self, namespace: &Namespace, work: impl FnOnce() + Send) -> u64 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let client = |number| move || namespace.run(|| self.client(number, stop));
            let clients: Vec<_> =
                (0..CLIENTS as u64).map(|number| scope.spawn(client(number))).collect();
            let worked = scope.spawn(work).join();
            stop.store(true, Ordering::Relaxed);
            let echoed =
                clients.into_iter().map(|client| client.join().expect("no client fails")).sum();
            worked.expect("the work is done");
            echoed
        })
    }

    fn client(self, number: u64, stop: &AtomicBool) -> u64 {
        let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| connect_to(self.service)).collect();
        let mut echoed = 0;
        while !stop.load(Ordering::Relaxed) {
            for stream in &mut streams {
                echo(stream, number << 32 | echoed, self.size);
                echoed += 1;
            }
            if self.turnover {
                close(streams.swap_remove(0));
                streams.push(connect_to(self.service));
            }
        }
        streams.into_iter().for_each(close);
        echoed
    }
}
