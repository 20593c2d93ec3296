//! Packets of no protocol that Linux knows, out of a raw socket.
use super::{PATIENCE, SERVICE, Service, TestNet};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Protocol number for experiments (RFC 3692).
pub const IP_PROTOCOL: u8 = 253;

/// A raw socket of Linux, by which it speaks this protocol over IPv4.
pub struct Raw(OwnedFd);

impl Raw {
    /// Opens one where the clients are, towards the service.
    pub fn open(net: &TestNet) -> Raw {
        Raw::open_for(net, IP_PROTOCOL)
    }

    /// The same for another protocol.
    pub fn open_for(net: &TestNet, protocol: u8) -> Raw {
        net.client.run(|| {
            // SAFETY: a plain system call; the descriptor that it answers is nobody else's.
            let fd = unsafe {
                let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW, protocol.into());
                assert!(fd >= 0, "a raw socket: {}", std::io::Error::last_os_error());
                OwnedFd::from_raw_fd(fd)
            };
            let mut to: libc::sockaddr_in =
                // SAFETY: all zeroes is a valid address.
                unsafe { std::mem::zeroed() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_addr.s_addr = u32::from(*SERVICE.ip()).to_be();
            let len = size_of_val(&to) as u32;
            // SAFETY: the address lives across the call and its size is given.
            let ret = unsafe { libc::connect(fd.as_raw_fd(), (&raw const to).cast(), len) };
            assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
            Raw(fd)
        })
    }

    /// Sends the body of a packet.
    pub fn send(&self, body: &[u8]) {
        assert!(self.try_send(body), "{}", std::io::Error::last_os_error());
    }

    /// The same where the service may have gone, and its link with it; whether it was sent.
    pub fn try_send(&self, body: &[u8]) -> bool {
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::send(self.0.as_raw_fd(), body.as_ptr().cast(), body.len(), 0) };
        n == body.len() as isize
    }

    /// The body of the next packet from the service; `None`: none came in that time.
    pub fn receive(&self, patience: Duration) -> Option<Vec<u8>> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives across the call.
        if unsafe { libc::poll(&mut poll, 1, patience.as_millis() as i32) } != 1 {
            return None;
        }
        let mut packet = [0u8; 2048];
        let (at, len) = (packet.as_mut_ptr().cast(), packet.len());
        // SAFETY: the buffer is valid for its length.
        let n = unsafe { libc::recv(self.0.as_raw_fd(), at, len, 0) };
        assert!(n >= 20, "{}", std::io::Error::last_os_error());
        Some(packet[20..n as usize].to_vec())
    }

    /// Asks until the answer comes: a packet may be lost, or come late and be of an earlier
    /// question.
    #[track_caller]
    pub fn ask(&self, body: &[u8], is_answer: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.send(body);
            let again = Instant::now() + Duration::from_secs(1);
            while let Some(answer) = self.receive(again.saturating_duration_since(Instant::now())) {
                if is_answer(&answer) {
                    return answer;
                }
            }
            assert!(Instant::now() < end, "no answer");
        }
    }
}

/// Gives a program that listens to doorbells what it asks for: a packet for either queue (`both`),
/// and then SIGUSR2, or one for the usual queue alone (`one`). It must end well.
#[track_caller]
pub fn ring_doorbells(net: &TestNet, service: Service) {
    service.process.wait_for("ready", PATIENCE);
    let [usual, high] = [IP_PROTOCOL, IP_PROTOCOL + 1].map(|number| Raw::open_for(net, number));
    let program = service.program();
    let (mut done, end) = (0, Instant::now() + PATIENCE);
    loop {
        let said = service.process.said();
        let asked: Vec<&str> = said.iter().map(String::as_str).collect();
        let asked: Vec<&&str> =
            asked.iter().filter(|line| ["both", "one", "ok"].contains(line)).collect();
        match asked.get(done) {
            Some(&&"both") => {
                usual.send(b"usual");
                high.send(b"high");
                // SAFETY: plain system call, about a program that runs.
                unsafe { libc::kill(program, libc::SIGUSR2) };
                done += 1;
            }
            Some(&&"one") => {
                usual.send(b"usual");
                done += 1;
            }
            Some(_) => break,
            None => {
                assert!(Instant::now() < end, "{}", service.process);
                if !super::process::is_alive(program) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
}
