//! Time of a datagram in each part of Linux: a server with one datagram per call reads the clock
//! around its calls and asks Linux when it received the datagram (Arrakis' table 1).
//!
//! Copies are separated from the rest by differences: every second datagram is received into only
//! eight bytes of room, and of each four two are replied to with eight bytes.
use ix_programs::clock;
use ix_sys::stamps;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// What the line begins with that tells the [`Parts`] in JSON.
pub const PARTS: &str = "parts ";

/// Medians of the times of a datagram, ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// From the device to the program.
    pub in_ns: f64,
    /// Of that, what shorter ones save.
    pub copy_in_ns: f64,
    /// From the program's call to the device.
    pub out_ns: f64,
    /// Of that, what shorter ones save.
    pub copy_out_ns: f64,
    /// A system call and back.
    pub crossing_ns: f64,
}

/// Bytes of a shortened datagram.
const SHORT: usize = 8;
/// Longest datagram.
const ROOM: usize = 2048;
/// Number of calls to measure a crossing into the kernel.
const CROSSINGS: u32 = 10_000;
/// Longest wait for the time stamp of a sent reply.
const STAMP_WAIT: Duration = Duration::from_millis(1);

/// Times of datagrams whose request or reply was shortened or not, ns.
#[derive(Default)]
struct Times {
    whole: Vec<u64>,
    short: Vec<u64>,
}

impl Times {
    fn add(&mut self, short: bool, ns: u64) {
        if short { &mut self.short } else { &mut self.whole }.push(ns);
    }

    /// Time of whole datagrams, and how much of it short ones save. Medians, because a virtual
    /// machine loses its processor now and then.
    fn told(&mut self) -> (u64, u64) {
        let whole = median(&mut self.whole);
        (whole, whole.saturating_sub(median(&mut self.short)))
    }
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// Replies to datagrams without end; after `samples` of them with whole request and reply it prints
/// a line.
pub fn serve(socket: &UdpSocket, spin: bool, samples: u32) -> io::Result<()> {
    stamps::enable(socket)?;
    socket.set_nonblocking(spin)?;
    let crossing_ns = crossing_ns();
    let (mut ins, mut outs) = (Times::default(), Times::default());
    let mut room = [0; ROOM];
    for number in 0u64.. {
        let (cut, brief) = (number % 2 == 1, number % 4 >= 2);
        let len = if cut { SHORT } else { ROOM };
        let came = loop {
            if let Some(came) = stamps::receive(socket, &mut room[..len])? {
                break came;
            }
        };
        let have_ns = clock::wall_ns();
        let answer = if cut || brief { SHORT } else { came.bytes };
        let send_ns = clock::wall_ns();
        // A datagram that the socket does not take is lost, as any other may be.
        if socket.send_to(&room[..answer], came.from).is_err() {
            continue;
        }
        let Some(left_ns) = left_ns(socket)? else { continue };
        if !brief {
            ins.add(cut, have_ns.saturating_sub(came.at_ns));
        }
        if !cut {
            outs.add(brief, left_ns.saturating_sub(send_ns));
        }
        if ins.whole.len() == samples as usize {
            let ((in_ns, copy_in_ns), (out_ns, copy_out_ns)) = (ins.told(), outs.told());
            let all = [in_ns, copy_in_ns, out_ns, copy_out_ns, crossing_ns].map(|ns| ns as f64);
            let [in_ns, copy_in_ns, out_ns, copy_out_ns, crossing_ns] = all;
            let parts = Parts { in_ns, copy_in_ns, out_ns, copy_out_ns, crossing_ns };
            ix_sys::outln!("{PARTS}{}", serde_json::to_string(&parts)?);
        }
    }
    Ok(())
}

fn left_ns(socket: &UdpSocket) -> io::Result<Option<u64>> {
    let since = Instant::now();
    while since.elapsed() < STAMP_WAIT {
        let left = stamps::sent_ns(socket)?;
        if left.is_some() {
            return Ok(left);
        }
    }
    Ok(None)
}

/// A system call that does almost nothing, and its return.
fn crossing_ns() -> u64 {
    let start = Instant::now();
    for _ in 0..CROSSINGS {
        std::hint::black_box(std::os::unix::process::parent_id());
    }
    start.elapsed().as_nanos() as u64 / u64::from(CROSSINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_what_short_ones_do_without() {
        let mut times = Times::default();
        for ns in [10, 900, 20] {
            times.add(false, ns);
            times.add(true, ns / 2);
        }
        assert_eq!(times.told(), (20, 10));
        assert_eq!(Times::default().told(), (0, 0));
        assert!(crossing_ns() > 0);
    }
}
