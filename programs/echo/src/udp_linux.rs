//! Echo over UDP on Linux sockets, a burst in each system call.
use crate::udp::UdpLoad;
use ix_programs::clock;
use ix_sys::Datagrams;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Most datagrams in one system call of a client.
const BURST: usize = 64;
/// Longest datagram.
const ROOM: usize = 2048;
/// Longest sleep of a client, so that it notices losses and the end.
const SLEEP: Duration = Duration::from_millis(5);

/// Echoes datagrams without end, at most `burst` in a system call.
pub fn serve(socket: &UdpSocket, spin: bool, burst: usize) -> io::Result<()> {
    let mut burst = Datagrams::new(burst, ROOM);
    loop {
        if burst.receive(socket, !spin)? > 0 {
            burst.send(socket)?;
        }
    }
}

/// Puts load on a server until its time is over.
pub fn load(to: SocketAddr, load: &mut UdpLoad, spin: bool) -> io::Result<()> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(SLEEP))?;
    let (mut received, mut sending) = (Datagrams::new(BURST, ROOM), Datagrams::new(BURST, ROOM));
    loop {
        let now_ns = clock::now_ns();
        if load.is_over(now_ns) {
            return Ok(());
        }
        for slot in load.overdue(now_ns) {
            if !sending.push(|to| load.fill(slot, now_ns, to)) {
                sending.send(&socket)?;
                sending.push(|to| load.fill(slot, now_ns, to));
            }
        }
        sending.send(&socket)?;
        let count = received.receive(&socket, !spin)?;
        let now_ns = clock::now_ns();
        for index in 0..count {
            if let Some(slot) = load.answer(received.get(index), now_ns) {
                sending.push(|to| load.fill(slot, now_ns, to));
            }
        }
        sending.send(&socket)?;
    }
}
