//! Where the time of a datagram goes on Linux: a server of one datagram a call that looks at the clock
//! around its calls and asks Linux when it had the datagram (Arrakis' table 1).
//!
//! Copies are told from the rest by differences: every second datagram is received into eight bytes of
//! room, every other two are answered with eight bytes.
use ix_programs::clock;
use ix_sys::stamps;
use serde_json::json;
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Bytes of what is cut short.
const SHORT: usize = 8;
/// Longest datagram.
const ROOM: usize = 2048;
/// Calls by which a crossing into the kernel is timed.
const CROSSINGS: u32 = 10_000;
/// Longest wait for the time at which an answer left.
const STAMP_WAIT: Duration = Duration::from_millis(1);

/// Times of datagrams whose question or answer was cut short or not, ns.
#[derive(Default)]
struct Times {
    whole: Vec<u64>,
    short: Vec<u64>,
}

impl Times {
    fn add(&mut self, short: bool, ns: u64) {
        if short { &mut self.short } else { &mut self.whole }.push(ns);
    }

    /// Of whole ones, and how much of that short ones do without. Medians: a virtual machine loses its
    /// processor now and then.
    fn told(&mut self) -> (u64, u64) {
        let whole = median(&mut self.whole);
        (whole, whole.saturating_sub(median(&mut self.short)))
    }
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// Answers datagrams for ever; after `samples` of them with whole question and answer it prints a line.
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
        // What the socket does not take is lost, as datagrams are.
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
            let parts = json!({
                "in_ns": in_ns,
                "copy_in_ns": copy_in_ns,
                "out_ns": out_ns,
                "copy_out_ns": copy_out_ns,
                "crossing_ns": crossing_ns,
            });
            println!("parts {parts}");
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

/// A system call that does next to nothing, there and back.
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
