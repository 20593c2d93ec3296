//! Clients on Linux sockets that ask for replies of 10 KB, one after the other, each with one
//! connection and one thread.
use super::flows::{PATIENCE, connect, request};
use crate::ping::quantile_us;
use ix_report::problem::{Problem, Result};
use ix_testbed::Namespace;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a reply, with the 16 at its end.
pub(super) const REPLY_BYTES: usize = 10 << 10;

/// Replies per second, and how long they took.
pub(super) struct Rounds {
    pub per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Asks on so many connections for `seconds`, after `warmup` seconds.
pub(super) fn measure(
    namespace: &Namespace,
    server: SocketAddr,
    flows: usize,
    (warmup, seconds): (f64, f64),
) -> Result<Rounds> {
    let cannot = |e| Problem::new(format!("cannot ask the server {server} for replies"), e);
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    let mut refused = None;
    for _ in 0..flows {
        match connect(namespace, server) {
            Ok(stream) => {
                let stop = stop.clone();
                threads.push(std::thread::spawn(move || ask(stream, &stop)));
            }
            Err(e) => refused = Some(e),
        }
    }
    std::thread::sleep(Duration::from_secs_f64(warmup));
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let end = Instant::now();
    stop.store(true, Ordering::Relaxed);
    let mut times_ns = Vec::new();
    for thread in threads {
        let replies = match thread.join() {
            Ok(Ok(replies)) => replies,
            Ok(Err(e)) => return Err(cannot(e)),
            Err(_) => return Err(cannot(ErrorKind::Other.into())),
        };
        let within = replies.into_iter().filter(|(at, _)| *at >= begin && *at < end);
        times_ns.extend(within.map(|(_, took)| took.as_nanos() as f64));
    }
    if let Some(e) = refused {
        return Err(cannot(e));
    }
    let per_s = times_ns.len() as f64 / (end - begin).as_secs_f64();
    let p50_us = quantile_us(&mut times_ns, 0.5);
    Ok(Rounds { per_s, p50_us, p99_us: quantile_us(&mut times_ns, 0.99) })
}

/// Asks until `stop`; returns when each reply was there, and how long it took.
fn ask(mut stream: TcpStream, stop: &AtomicBool) -> std::io::Result<Vec<(Instant, Duration)>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let request = request(REPLY_BYTES as u64 - 16);
    let (mut reply, mut replies) = (vec![0; REPLY_BYTES], Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let since = Instant::now();
        stream.write_all(&request)?;
        let mut have = 0;
        while have < REPLY_BYTES {
            match stream.read(&mut reply[have..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => have += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(replies);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        replies.push((Instant::now(), since.elapsed()));
    }
    Ok(replies)
}
