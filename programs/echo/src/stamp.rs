//! A server that reports when it received each datagram, to measure how soon a service wakes.
//!
//! A reply is the first eight octets of the request, and the time of the machine's wall clock in
//! nanoseconds, little-endian.
use anyhow::Result;
use ix_programs::clock;
use ix_programs::threads::Listening;
use libix::event::{Claim, Conn, EventLoop, Handler, Io, Priority};
use libix::raw::{Thread, Wait};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// Octets of a request that come back.
const NUMBER_BYTES: usize = 8;
/// Octets of a reply.
const ANSWER_BYTES: usize = NUMBER_BYTES + 8;
const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;

/// `None`: the request is too short.
fn answer(question: &[u8], heard_ns: u64) -> Option<[u8; ANSWER_BYTES]> {
    let number: &[u8; NUMBER_BYTES] = question.first_chunk()?;
    let mut answer = [0; ANSWER_BYTES];
    answer[..NUMBER_BYTES].copy_from_slice(number);
    answer[NUMBER_BYTES..].copy_from_slice(&heard_ns.to_le_bytes());
    Some(answer)
}

struct Stamper;

impl Handler for Stamper {
    type State = ();

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_datagram(&mut self, io: &mut Io<()>, socket: u64, from: SocketAddr, data: &[u8]) {
        if let Some(answer) = answer(data, clock::wall_ns()) {
            io.udp_send(socket, from, &answer);
        }
    }
}

/// Serves without end on a dataplane, sleeping while idle. With `queue` whole frames arrive at a
/// packet queue that it waits for, and replies are sent from the next higher port.
pub fn serve_ix(thread: Thread, at: SocketAddr, queue: bool, listening: &Listening) -> Result<()> {
    let mut server = EventLoop::new(thread, Stamper);
    if !queue {
        server.udp_bind(at)?;
        listening.say();
        return Ok(server.run()?);
    }
    let socket = server.udp_bind(SocketAddr::new(at.ip(), at.port() + 1))?;
    let queue = server.packet_bind(0, Claim::UdpPort(at.port()), Priority::Usual)?;
    listening.say();
    loop {
        if server.wait_queues(&[queue], Wait::Forever)?.is_none() {
            return Ok(());
        }
        let heard_ns = clock::wall_ns();
        while let Some(packet) = server.io().packet_receive(queue) {
            if let Some((from, data)) = datagram(&packet)
                && let Some(answer) = answer(data, heard_ns)
            {
                server.io().udp_send(socket, from, &answer);
            }
        }
    }
}

/// Sender and payload of a UDP datagram over IPv4, from a whole frame.
fn datagram(frame: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let ip = frame.get(ETHERNET_BYTES..)?;
    let udp = ip.get(usize::from(*ip.first()? & 0x0f) * 4..)?;
    let from: [u8; 4] = *ip.get(12..)?.first_chunk()?;
    let port = u16::from_be_bytes(*udp.first_chunk()?);
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::from(from)), port);
    Some((from, udp.get(UDP_BYTES..)?))
}

/// Serves without end on a Linux socket.
pub fn serve_linux(socket: &UdpSocket, spin: bool) -> io::Result<()> {
    socket.set_nonblocking(spin)?;
    let mut question = [0; 2048];
    loop {
        let (n, from) = match socket.recv_from(&mut question) {
            Ok(came) => came,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => return Err(e),
        };
        if let Some(answer) = answer(&question[..n], clock::wall_ns()) {
            // A datagram that the socket does not take is lost, as any other may be.
            let _ = socket.send_to(&answer, from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_carry_number_and_time() {
        let told = answer(b"12345678 and more", 0x0102).expect("long enough");
        assert_eq!(&told[..9], b"12345678\x02");
        assert_eq!(told[9], 1);
        assert_eq!(answer(b"1234567", 0), None);
    }

    #[test]
    fn a_frame_says_who_asks() {
        let mut frame = vec![0; ETHERNET_BYTES];
        frame.extend([0x45, 0, 0, 33, 0, 1, 0, 0, 64, 17, 1, 2, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x10, 0x20, 0, 7, 0, 13, 9, 8]);
        frame.extend(b"hello");
        let from = "10.0.0.1:4128".parse().expect("an address");
        assert_eq!(datagram(&frame), Some((from, &b"hello"[..])));
        assert!((0..ETHERNET_BYTES + 28).all(|n| datagram(&frame[..n]).is_none()));
    }
}
