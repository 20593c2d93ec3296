//! Bulk flows: receivers that count bytes, what clients ask `ix echo bulk` for, and a server on
//! Linux sockets that does the same with a chosen congestion control.
use ix_report::problem::{Problem, Result};
use ix_sys::socket::{reset_on_close, set_congestion_control};
use ix_testbed::Namespace;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a receiver waits for bytes before it checks whether to end.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Longest time for connecting, and for the first bytes.
const START: Duration = Duration::from_secs(20);
/// Requests that `ix echo bulk` reads first: its kind, and a number of bytes.
const DOWN: [u8; 8] = *b"IXBULK1\x02";
const UP: [u8; 8] = *b"IXBULK1\x01";
/// More bytes than any measurement carries.
const ENDLESS: u64 = 1 << 40;

fn order_of(kind: [u8; 8], bytes: u64) -> [u8; 16] {
    let mut order = [0; 16];
    order[..8].copy_from_slice(&kind);
    order[8..].copy_from_slice(&bytes.to_le_bytes());
    order
}

/// Asks for so many bytes, after which 16 more come.
pub(super) fn request(bytes: u64) -> [u8; 16] {
    order_of(DOWN, bytes)
}

/// Connects from `namespace`. The connection ends by a reset, so that none of its data stays on the
/// path.
pub(super) fn connect(namespace: &Namespace, server: SocketAddr) -> io::Result<TcpStream> {
    let stream = namespace.run(|| TcpStream::connect_timeout(&server, START))?;
    reset_on_close(&stream)?;
    Ok(stream)
}

/// Announces data without end.
pub(super) fn upload(mut stream: TcpStream) -> io::Result<TcpStream> {
    stream.write_all(&order_of(UP, ENDLESS))?;
    Ok(stream)
}

/// A server on Linux sockets that sends what it is asked for, and takes what is sent to it.
pub(super) struct LinuxSource {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LinuxSource {
    pub fn start(
        namespace: &Namespace,
        address: SocketAddr,
        congestion: &str,
    ) -> Result<LinuxSource> {
        let cannot = |e| Problem::new(format!("cannot serve with {congestion} on Linux"), e);
        let listener = namespace.run(|| TcpListener::bind(address)).map_err(cannot)?;
        set_congestion_control(&listener, congestion)
            .and_then(|()| listener.set_nonblocking(true))
            .map_err(cannot)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || serve(&listener, &told));
        Ok(LinuxSource { stop, thread: Some(thread) })
    }
}

impl Drop for LinuxSource {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, stop: &Arc<AtomicBool>) {
    let mut senders = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let stop = Arc::clone(stop);
                senders.push(std::thread::spawn(move || drop(obey(stream, &stop))));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    for sender in senders {
        let _ = sender.join();
    }
}

/// Carries out one request after the other until the client ends or `stop`.
fn obey(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut data = vec![0x5a; 64 << 10];
    let mut request = [0; 16];
    loop {
        go_on(stop, 16, |done| stream.read(&mut request[done..]))?;
        let (kind, bytes) = request.split_at(8);
        let bytes = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if kind == UP {
            go_on(stop, bytes, |done| stream.read(&mut data[..(bytes - done).min(64 << 10)]))?;
        } else {
            // With the 16 bytes at the end.
            let bytes = bytes + 16;
            go_on(stop, bytes, |done| stream.write(&data[..(bytes - done).min(64 << 10)]))?;
        }
    }
}

/// Repeats a step, which is told how many bytes were carried, until it has carried all of them.
fn go_on(
    stop: &AtomicBool,
    bytes: usize,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match step(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    Ok(())
}

/// Receivers of bulk data, each with one connection and one thread.
pub(crate) struct Receivers {
    stop: Arc<AtomicBool>,
    bytes: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Receivers {
    /// Connects once to each of `servers`, from `namespace`, and waits until each has received
    /// bytes.
    pub fn start(namespace: &Namespace, servers: &[SocketAddr]) -> Result<Receivers> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut all = Receivers { stop, bytes: Vec::new(), threads: Vec::new() };
        for &server in servers {
            let stream = connect(namespace, server).and_then(order);
            let stream = stream.map_err(|e| {
                Problem::new(format!("cannot read bulk data from the server {server}"), e)
            })?;
            let (stop, bytes) = (Arc::clone(&all.stop), Arc::new(AtomicU64::new(0)));
            all.bytes.push(Arc::clone(&bytes));
            all.threads.push(std::thread::spawn(move || receive(stream, &bytes, &stop)));
        }
        let end = Instant::now() + START;
        while all.counts().contains(&0) {
            if Instant::now() > end {
                return Err(Problem::new("a flow is stuck", "no byte arrived within 20 s"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(all)
    }

    /// Bytes that each has received.
    pub fn counts(&self) -> Vec<u64> {
        self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }

    /// Mbit/s of each over `seconds`, after `warmup` seconds.
    pub fn measure(self, warmup: f64, seconds: f64) -> Vec<f64> {
        std::thread::sleep(Duration::from_secs_f64(warmup));
        let (start, before) = (Instant::now(), self.counts());
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (after, took_s) = (self.counts(), start.elapsed().as_secs_f64());
        let rate = |(after, before): (&u64, u64)| (after - before) as f64 * 8e-6 / took_s;
        after.iter().zip(before).map(rate).collect()
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Requests data without end.
fn order(mut stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&request(ENDLESS))?;
    Ok(stream)
}

fn receive(mut stream: TcpStream, bytes: &AtomicU64, stop: &AtomicBool) {
    let mut buffer = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => drop(bytes.fetch_add(n as u64, Ordering::Relaxed)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}
