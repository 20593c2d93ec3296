//! The honest client: one message at a time on one connection.
use super::SIZE;
use crate::lab::Lab;
use hdrhistogram::Histogram;
use ix_report::problem::{Problem, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

/// What it has seen in one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Messages that came back, a second.
    pub msgs_per_s: f64,
    /// Median of their times, µs.
    pub p50_us: f64,
    /// The same, of the slowest in a hundred.
    pub p99_us: f64,
}

/// The client.
pub struct Honest<'a> {
    lab: &'a Lab,
    stream: TcpStream,
}

impl Honest<'_> {
    /// Connects from the client's end.
    pub fn connect(lab: &Lab, to: SocketAddr) -> Result<Honest<'_>> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = lab.client_namespace().run(connect);
        let stream = stream.map_err(|e: std::io::Error| {
            Problem::new("the honest client cannot connect to the server", e)
        })?;
        Ok(Honest { lab, stream })
    }

    /// Sends and receives for this many seconds, on the client's hardware thread.
    pub fn measure(&mut self, seconds: f64) -> Result<Seen> {
        let (cpu, stream) = (self.lab.cpus.1, &mut self.stream);
        let work = || -> std::io::Result<Seen> {
            ix_sys::cpu::pin(cpu)?;
            let mut times =
                Histogram::<u64>::new_with_max(60_000_000_000, 3).map_err(std::io::Error::other)?;
            let (begin, time) = (Instant::now(), Duration::from_secs_f64(seconds));
            let (mut message, mut back, mut count) = ([0u8; SIZE], [0u8; SIZE], 0u64);
            while begin.elapsed() < time {
                let asked = Instant::now();
                count += 1;
                message[..8].copy_from_slice(&count.to_le_bytes());
                stream.write_all(&message)?;
                stream.read_exact(&mut back)?;
                if back != message {
                    return Err(std::io::Error::other("another message came back"));
                }
                times.saturating_record(asked.elapsed().as_nanos() as u64);
            }
            let quantile = |part| times.value_at_quantile(part) as f64 / 1000.0;
            Ok(Seen {
                msgs_per_s: count as f64 / begin.elapsed().as_secs_f64(),
                p50_us: quantile(0.5),
                p99_us: quantile(0.99),
            })
        };
        // A thread of its own, because it is pinned.
        let seen = std::thread::scope(|scope| scope.spawn(work).join());
        seen.unwrap_or_else(|_| Err(std::io::Error::other("the client panicked")))
            .map_err(|e| Problem::new("the honest client was not served", e))
    }
}
