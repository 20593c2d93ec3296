//! Programs that serve on the loopback address, for tests from outside.
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A server process; killed when dropped.
pub struct Server {
    child: Child,
    /// Address that it listens at.
    pub at: SocketAddr,
}

impl Server {
    /// Starts a command that listens at `at`, and waits until it prints `ready`.
    ///
    /// # Panics
    /// If it does not start, or prints something else.
    pub fn start(mut command: Command, at: SocketAddr) -> Server {
        let child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut server = Server { child, at };
        let mut line = String::new();
        let output = server.child.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready"), "{line:?}");
        server
    }

    /// A process that serves at `at`, or will.
    pub fn of(child: Child, at: SocketAddr) -> Server {
        Server { child, at }
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of loopback on which no program listens.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// A free port of the loopback address, for TCP and UDP, outside the range that Linux gives to
/// clients: a client could take it before the server does.
///
/// # Panics
/// If all are in use.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let free = |port: &u16| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
            && UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
    };
    // Parallel processes begin at different ports.
    let next = || {
        let n = std::process::id().wrapping_mul(97) + TAKEN.fetch_add(1, Ordering::Relaxed);
        (FIRST + n % COUNT) as u16
    };
    std::iter::repeat_with(next).take(COUNT as usize).find(free).expect("a free port")
}
