//! Sends one datagram at a time from the client's end of the link to a server that reports when it
//! received it (`ix-echo --udp --stamp`).
use crate::lab::Lab;
use ix_report::problem::{Problem, Result};
use ix_sys::stamps;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// After this time a reply counts as lost.
const LOST: Duration = Duration::from_millis(500);
/// After this many lost replies in a row the server counts as dead.
const LOST_MAX: u32 = 20;
/// The client is awake for this long before it sends, so that its own waking does not count.
pub(crate) const AWAKE: Duration = Duration::from_micros(300);

/// Times of one request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// From the call that sends it until the interface has it, ns; 0: not measured.
    pub sent_ns: f64,
    /// From then until the server's program has it, ns.
    pub heard_ns: f64,
    /// From then until the server's dataplane finds it, ns; a server without one: `heard_ns`.
    pub looked_ns: f64,
    /// From when the program has it until the client has the reply, ns.
    pub answered_ns: f64,
}

/// A client on a Linux socket.
pub struct Pinger {
    socket: UdpSocket,
    to: SocketAddr,
    question: Vec<u8>,
    number: u64,
    /// The kernel records when requests leave.
    notes: bool,
}

impl Pinger {
    /// Opens it at the client's end, for requests of `bytes` bytes.
    pub fn new(lab: &Lab, to: SocketAddr, bytes: usize) -> Result<Pinger> {
        let cannot = |e| Problem::new("cannot open a socket", e);
        let open = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let socket = lab.client_namespace().run(open).map_err(cannot)?;
        socket.set_nonblocking(true).map_err(cannot)?;
        Ok(Pinger { socket, to, question: vec![0; bytes.max(8)], number: 0, notes: false })
    }

    /// From now on a request's time begins when the interface has it. An idle sender takes long to
    /// get there, which must not count for the receiver.
    pub fn note_leaving(&mut self) -> Result<()> {
        let cannot = |e| Problem::new("cannot ask for the times of packets", e);
        stamps::enable(&self.socket).map_err(cannot)?;
        self.notes = true;
        Ok(())
    }

    /// Sends `count` requests with a pause before each; lost ones are left out.
    pub fn rounds(&mut self, count: usize, pause: Duration) -> Result<Vec<Asked>> {
        let (mut rounds, mut lost) = (Vec::with_capacity(count), 0);
        while rounds.len() < count {
            if !pause.is_zero() {
                std::thread::sleep(pause);
                let since = Instant::now();
                while since.elapsed() < AWAKE {
                    std::hint::spin_loop();
                }
            }
            match self.ask()? {
                Some(asked) => {
                    rounds.push(asked);
                    lost = 0;
                }
                None if lost == LOST_MAX => {
                    return Err(Problem::new(
                        "the server does not reply",
                        "every datagram is lost",
                    ));
                }
                None => lost += 1,
            }
        }
        Ok(rounds)
    }

    /// Sends until the server replies and addresses are known.
    pub fn wait_for_answer(&mut self, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        while self.ask()?.is_none() {
            if Instant::now() > end {
                return Err(Problem::new("the server does not reply", "every datagram was lost"));
            }
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Option<Asked>> {
        let cannot = |e| Problem::new("cannot ask the server", e);
        self.number += 1;
        self.question[..8].copy_from_slice(&self.number.to_le_bytes());
        let mut answer = [0; 2048];
        // Time stamps of requests that were lost.
        while self.notes && stamps::sent_ns(&self.socket).map_err(cannot)?.is_some() {}
        let sent_ns = wall_ns();
        self.socket.send_to(&self.question, self.to).map_err(cannot)?;
        let since = Instant::now();
        while since.elapsed() < LOST {
            let n = match self.socket.recv(&mut answer) {
                Ok(n) => n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    std::hint::spin_loop();
                    continue;
                }
                // An ICMP error is a reply, too.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => continue,
                Err(e) => return Err(cannot(e)),
            };
            let answered_ns = wall_ns();
            let word = |at: usize| answer[at..].first_chunk().map(|w| u64::from_le_bytes(*w));
            if n < 8 || word(0) != Some(self.number) {
                continue;
            }
            let heard_ns = word(8).filter(|_| n >= 16).unwrap_or(answered_ns);
            let looked_ns = word(16).filter(|_| n >= 24).unwrap_or(heard_ns);
            let left_ns = match self.notes {
                true => stamps::sent_ns(&self.socket).map_err(cannot)?,
                false => Some(sent_ns),
            };
            // Right after time stamps were turned on the kernel has none yet.
            let Some(left_ns) = left_ns else { return Ok(None) };
            return Ok(Some(Asked {
                sent_ns: left_ns as f64 - sent_ns as f64,
                heard_ns: heard_ns as f64 - left_ns as f64,
                looked_ns: looked_ns as f64 - left_ns as f64,
                answered_ns: answered_ns as f64 - heard_ns as f64,
            }));
        }
        Ok(None)
    }
}

fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Quantile of some times, µs.
pub fn quantile_us(times_ns: &mut [f64], part: f64) -> f64 {
    times_ns.sort_unstable_by(f64::total_cmp);
    let last = times_ns.len().saturating_sub(1);
    times_ns.get((last as f64 * part).round() as usize).map_or(0.0, |ns| ns / 1000.0)
}
