//! A server that reports when it received each datagram, to measure how soon a service wakes.
//!
//! A reply is the first eight octets of the request, and two times of the machine's wall clock in
//! nanoseconds, little-endian: when the program had the request, and when the dataplane found it at
//! its first look at the rings after it woke. On Linux the second is that of the first.
use anyhow::Result;
use ix_programs::clock;
use ix_programs::threads::Listening;
use ix_sys::clock::monotonic;
use libix::event::{Claim, Conn, EventLoop, Handler, Io, Priority};
use libix::raw::{Thread, Wait};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// Octets of a request that come back.
const NUMBER_BYTES: usize = 8;
/// Octets of a reply.
const ANSWER_BYTES: usize = NUMBER_BYTES + 16;
const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;

/// When a request was received.
#[derive(Clone, Copy)]
struct Times {
    heard_ns: u64,
    looked_ns: u64,
}

impl Times {
    /// Now, by a program on Linux.
    fn now() -> Times {
        let heard_ns = clock::wall_ns();
        Times { heard_ns, looked_ns: heard_ns }
    }

    /// Now, in a cycle of that time.
    fn of_cycle(cycle_us: u64) -> Times {
        let heard_ns = clock::wall_ns();
        let since_ns = (monotonic().as_nanos() as u64).saturating_sub(cycle_us * 1000);
        Times { heard_ns, looked_ns: heard_ns.saturating_sub(since_ns) }
    }
}

/// `None`: the request is too short.
fn answer(question: &[u8], times: Times) -> Option<[u8; ANSWER_BYTES]> {
    let number: &[u8; NUMBER_BYTES] = question.first_chunk()?;
    let mut answer = [0; ANSWER_BYTES];
    answer[..NUMBER_BYTES].copy_from_slice(number);
    let stamps = answer[NUMBER_BYTES..].as_chunks_mut().0.iter_mut();
    for (stamp, ns) in stamps.zip([times.heard_ns, times.looked_ns]) {
        *stamp = ns.to_le_bytes();
    }
    Some(answer)
}

struct Stamper;

impl Handler for Stamper {
    type State = ();

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_datagram(&mut self, io: &mut Io<()>, socket: u64, from: SocketAddr, data: &[u8]) {
        if let Some(answer) = answer(data, Times::of_cycle(io.now_us())) {
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
        let times = Times::of_cycle(server.io().now_us());
        while let Some(packet) = server.io().packet_receive(queue) {
            if let Some((from, data)) = datagram(&packet)
                && let Some(answer) = answer(data, times)
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
        if let Some(answer) = answer(&question[..n], Times::now()) {
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
        let times = Times { heard_ns: 0x0102, looked_ns: 0x0304 };
        let told = answer(b"12345678 and more", times).expect("long enough");
        assert_eq!(&told[..10], b"12345678\x02\x01");
        assert_eq!(&told[16..18], b"\x04\x03");
        assert_eq!(answer(b"1234567", times), None);
    }

    #[test]
    fn a_cycle_was_before_its_program_heard() {
        let cycle_us = monotonic().as_micros() as u64 - 50;
        let times = Times::of_cycle(cycle_us);
        assert!(times.heard_ns - times.looked_ns >= 50_000);
        // A clock that is ahead by a rounding error is no time before the cycle.
        let times = Times::of_cycle(cycle_us + 10_000_000);
        assert_eq!(times.heard_ns, times.looked_ns);
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
