//! Ports for servers of tests.
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// A port of the loopback address that nobody has, for TCP or UDP. Not one of those that Linux gives to
/// clients: one of them could take it before the server does.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let free = |port: &u16| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
            && UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
    };
    // Processes that run beside each other begin at different ones.
    let next = || {
        let n = std::process::id().wrapping_mul(97) + TAKEN.fetch_add(1, Ordering::Relaxed);
        (FIRST + n % COUNT) as u16
    };
    std::iter::repeat_with(next).take(COUNT as usize).find(free).expect("a free port")
}
