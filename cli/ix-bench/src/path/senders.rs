//! Bulk senders on Linux sockets, each with one connection and one thread. What the other end has
//! acknowledged counts.
use super::flows::{PATIENCE, connect, upload};
use ix_report::problem::{Problem, Result};
use ix_sys::socket::{set_congestion_control, unacknowledged_bytes};
use ix_testbed::Namespace;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct Senders {
    stop: Arc<AtomicBool>,
    /// Each connection, and how many bytes were written to it.
    all: Vec<(TcpStream, Arc<AtomicU64>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Senders {
    /// Connects so many times to a server, from `namespace`, and begins to send with this
    /// congestion control.
    pub fn start(
        namespace: &Namespace,
        server: SocketAddr,
        (flows, congestion): (usize, &str),
    ) -> Result<Senders> {
        let cannot = |e| Problem::new(format!("cannot send bulk data to the server {server}"), e);
        let stop = Arc::new(AtomicBool::new(false));
        let mut senders = Senders { stop, all: Vec::new(), threads: Vec::new() };
        for _ in 0..flows {
            let stream = connect(namespace, server).map_err(cannot)?;
            set_congestion_control(&stream, congestion).map_err(cannot)?;
            let stream = upload(stream).map_err(cannot)?;
            stream.set_write_timeout(Some(PATIENCE)).map_err(cannot)?;
            let written = Arc::new(AtomicU64::new(0));
            senders.all.push((stream.try_clone().map_err(cannot)?, written.clone()));
            let stop = senders.stop.clone();
            senders.threads.push(std::thread::spawn(move || send(stream, &written, &stop)));
        }
        Ok(senders)
    }

    /// Bytes that were acknowledged.
    fn acknowledged(&self) -> u64 {
        let of = |(stream, written): &(TcpStream, Arc<AtomicU64>)| {
            // Read first: bytes that are written meanwhile are not acknowledged yet.
            let written = written.load(Ordering::Relaxed);
            written.saturating_sub(unacknowledged_bytes(stream).unwrap_or(0) as u64)
        };
        self.all.iter().map(of).sum()
    }

    /// Mbit/s of all together over `seconds`, after `warmup` seconds.
    pub fn measure(self, warmup: f64, seconds: f64) -> f64 {
        std::thread::sleep(Duration::from_secs_f64(warmup));
        let (start, before) = (Instant::now(), self.acknowledged());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (after, took_s) = (self.acknowledged(), start.elapsed().as_secs_f64());
        after.saturating_sub(before) as f64 * 8e-6 / took_s
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn send(mut stream: TcpStream, written: &AtomicU64, stop: &AtomicBool) {
    let data = vec![0x5a; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&data) {
            Ok(0) => return,
            Ok(n) => _ = written.fetch_add(n as u64, Ordering::Relaxed),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}
