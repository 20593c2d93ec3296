//! Clients on Linux sockets that send without a pause and compare every octet.
use super::weather::{SLICES, Weather};
use crate::lab::Lab;
use hdrhistogram::Histogram;
use ix_random::Rng;
use ix_sys::socket::reset_on_close;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Octets of a message.
pub const SIZE: usize = 512;
/// Connections that last and carry one message at a time; those that come and go; those with bulk
/// data.
const LASTING: usize = 4;
const FLEETING: usize = 2;
const BULK: usize = 1;
/// Number of all connections.
pub const CONNECTIONS: usize = LASTING + FLEETING + BULK;
/// Messages in flight on a bulk connection.
const BULK_MESSAGES: usize = 128;
/// Most messages of a connection that comes and goes.
const FLEETING_MESSAGES: u64 = 20;
/// Longest wait for a reply; a link that was down needs some retransmissions.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two messages of a lasting connection: without it four connections would use the
/// whole machine.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(50);
/// Longest latency that the histogram distinguishes, µs.
const LONGEST_US: u64 = 60_000_000;
/// Most errors that are kept in words.
const KEPT: usize = 20;

/// Counts of the clients.
pub struct Tally {
    /// Messages that came back unchanged.
    pub messages: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Octets of bulk data that came back.
    pub bulk_bytes: u64,
    /// Connections that broke because the program was dead, or were refused because the link was
    /// down.
    pub excused: u64,
    /// Connections that broke, or got no reply, for another reason, in words.
    pub broken: Vec<String>,
    /// Number of those.
    pub broken_count: u64,
    /// Octets that differ from those that were sent.
    pub wrong: u64,
    /// Messages in each part of the soak.
    pub slice_messages: [u64; SLICES],
    /// Latency of messages without recent incidents, µs, in each part of the soak.
    pub latency_us: [Histogram<u64>; SLICES],
}

impl Tally {
    /// All counts zero.
    pub fn new() -> Tally {
        Tally {
            messages: 0,
            connections: 0,
            bulk_bytes: 0,
            excused: 0,
            broken: Vec::new(),
            broken_count: 0,
            wrong: 0,
            slice_messages: [0; SLICES],
            latency_us: [(); SLICES].map(|()| histogram()),
        }
    }

    fn add(&mut self, other: &Tally) {
        self.messages += other.messages;
        self.connections += other.connections;
        self.bulk_bytes += other.bulk_bytes;
        self.excused += other.excused;
        self.wrong += other.wrong;
        self.broken_count += other.broken_count;
        let room = KEPT.saturating_sub(self.broken.len());
        self.broken.extend(other.broken.iter().take(room).cloned());
        for (mine, theirs) in self.slice_messages.iter_mut().zip(other.slice_messages) {
            *mine += theirs;
        }
        for (mine, theirs) in self.latency_us.iter_mut().zip(&other.latency_us) {
            join(mine, theirs);
        }
    }

    /// Latency over several parts, µs.
    pub fn latency_over(&self, slices: std::ops::Range<usize>) -> Histogram<u64> {
        let mut all = histogram();
        self.latency_us[slices].iter().for_each(|part| join(&mut all, part));
        all
    }

    /// Figures for the summary row.
    pub fn figures(&self, seconds: f64) -> Vec<(&'static str, f64)> {
        let all = self.latency_over(0..SLICES);
        vec![
            ("messages", self.messages as f64),
            ("msgs_per_s", self.messages as f64 / seconds),
            ("connections_opened", self.connections as f64),
            ("connections_per_s", self.connections as f64 / seconds),
            ("mbit_per_s", self.bulk_bytes as f64 * 8.0 / 1e6 / seconds),
            ("p50_us", all.value_at_quantile(0.5) as f64),
            ("p99_us", all.value_at_quantile(0.99) as f64),
            ("excused_connections", self.excused as f64),
            ("broken_connections", self.broken_count as f64),
            ("wrong_octets", self.wrong as f64),
        ]
    }

    /// Figures for the row of a part.
    pub fn slice_figures(&self, slice: usize, seconds: f64) -> Vec<(&'static str, f64)> {
        let latency = &self.latency_us[slice];
        let mut figures = vec![("msgs_per_s", self.slice_messages[slice] as f64 / seconds)];
        if !latency.is_empty() {
            figures.push(("p50_us", latency.value_at_quantile(0.5) as f64));
            figures.push(("p99_us", latency.value_at_quantile(0.99) as f64));
        }
        figures
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_US, 3).expect("valid bounds")
}

fn join(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    // This cannot fail: all have the same bounds.
    let _ = to.add(from);
}

/// Running clients.
pub struct Clients<'scope> {
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
    tally: Arc<Mutex<Tally>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Lasting,
    Fleeting,
    Bulk,
}

impl<'scope> Clients<'scope> {
    /// Starts all clients.
    pub fn start<'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        lab: &'env Lab,
        address: SocketAddr,
        weather: &'env Weather,
    ) -> Clients<'scope> {
        let tally = Arc::new(Mutex::new(Tally::new()));
        let kinds = [(Kind::Lasting, LASTING), (Kind::Fleeting, FLEETING), (Kind::Bulk, BULK)];
        let each = kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |_| kind));
        let start = |(number, kind)| {
            let tally = Arc::clone(&tally);
            scope.spawn(move || {
                lab.client_namespace().run(|| {
                    let random = Rng::new(number as u64);
                    let new = Tally::new();
                    let mut client = Client { weather, address, kind, random, tally: new };
                    client.work();
                    tally.lock().unwrap_or_else(PoisonError::into_inner).add(&client.tally);
                });
            })
        };
        let threads = each.enumerate().map(start).collect();
        Clients { threads, tally }
    }

    /// Waits until all have ended.
    pub fn join(self) -> Tally {
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut tally, Tally::new())
    }
}

struct Client<'a> {
    weather: &'a Weather,
    address: SocketAddr,
    kind: Kind,
    random: Rng,
    tally: Tally,
}

impl Client<'_> {
    fn work(&mut self) {
        while !self.weather.is_over() {
            let deaths = self.weather.deaths();
            let result = self.connection();
            let Err(error) = result else { continue };
            if self.weather.excuses(deaths) || self.met_no_link(&error) {
                self.tally.excused += 1;
            } else {
                self.tally.broken_count += 1;
                if self.tally.broken.len() < KEPT {
                    let at_s = self.weather.elapsed().as_secs_f64();
                    self.tally.broken.push(format!("after {at_s:.1} s: {error}"));
                }
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Linux refuses to connect while the link is down.
    fn met_no_link(&self, error: &io::Error) -> bool {
        let unreachable = [ErrorKind::NetworkUnreachable, ErrorKind::HostUnreachable];
        self.weather.is_rough() && unreachable.contains(&error.kind())
    }

    /// Runs one connection to its end.
    fn connection(&mut self) -> io::Result<()> {
        let during = |what: &str, e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)
            .map_err(|e| during("connect", e))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        self.tally.connections += 1;
        self.weather.count_connection();
        let at_once = if matches!(self.kind, Kind::Bulk) { BULK_MESSAGES } else { 1 };
        let most = match self.kind {
            Kind::Fleeting => 1 + self.next() % FLEETING_MESSAGES,
            Kind::Lasting | Kind::Bulk => u64::MAX,
        };
        let mut sent = vec![0; at_once * SIZE];
        let mut got = vec![0; sent.len()];
        for _ in 0..most {
            if self.weather.is_over() {
                break;
            }
            sent.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.next().to_le_bytes()));
            let (begin, rough) = (Instant::now(), self.weather.is_rough());
            stream.write_all(&sent).map_err(|e| during("send", e))?;
            stream.read_exact(&mut got).map_err(|e| during("receive", e))?;
            self.judge(&sent, &got, begin.elapsed(), rough);
        }
        self.leave(stream).map_err(|e| during("end", e))
    }

    fn judge(&mut self, sent: &[u8], got: &[u8], took: Duration, rough: bool) {
        self.tally.wrong += sent.iter().zip(got).filter(|(a, b)| a != b).count() as u64;
        let (messages, slice) = ((sent.len() / SIZE) as u64, self.weather.slice());
        self.tally.messages += messages;
        self.tally.slice_messages[slice] += messages;
        self.weather.count_messages(messages);
        match self.kind {
            Kind::Bulk => self.tally.bulk_bytes += sent.len() as u64,
            Kind::Lasting => {
                if !rough && !self.weather.is_rough() {
                    let us = took.as_micros() as u64;
                    self.tally.latency_us[slice].saturating_record(us);
                }
                std::thread::sleep(PAUSE);
            }
            Kind::Fleeting => {}
        }
    }

    /// Ends connections in every way: a reset, a half close that waits for the other half, a close.
    fn leave(&mut self, mut stream: TcpStream) -> io::Result<()> {
        match self.next() % 3 {
            0 => {
                // After an error it ends with a FIN as well.
                let _ = reset_on_close(&stream);
            }
            1 => {
                stream.shutdown(Shutdown::Write)?;
                let rest = stream.read(&mut [0; 8])?;
                self.tally.wrong += rest as u64;
            }
            _ => {}
        }
        Ok(())
    }

    fn next(&mut self) -> u64 {
        self.random.next_u64()
    }
}
