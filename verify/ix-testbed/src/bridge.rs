//! A path with a bottleneck, loss and delay between two interfaces of a namespace, in user space.
use crate::path::{Path, PathCounts, PathSpec};
use crate::{Error, Namespace, PacketSocket};
use ix_sys::poll::{PollFd, poll};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most frames taken from one side before the other gets its turn.
const BURST: usize = 64;
/// Longest sleep, so that the thread notices a stop.
const NAP_NS: u64 = 20_000_000;
/// Room for frames that arrive while the thread waits for its processor.
const RECEIVE_BYTES: i32 = 8 << 20;

/// A running bridge; ends when dropped.
pub struct Bridge {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<[PathCounts; 2]>>,
}

impl Bridge {
    /// Carries frames from interface `left` to `right` along `there`, and back along `back`. Both
    /// are in `namespace`, and up; segmentation offloads of their senders must be off, because on a
    /// wire no frame is longer than the MTU.
    pub fn start(
        namespace: &Namespace,
        [left, right]: [&str; 2],
        [there, back]: [PathSpec; 2],
        seed: u64,
    ) -> Result<Bridge, Error> {
        let sockets = [PacketSocket::open(namespace, left)?, PacketSocket::open(namespace, right)?];
        for socket in &sockets {
            socket.set_receive_buffer(RECEIVE_BYTES);
        }
        let paths = [Path::new(there, seed), Path::new(back, seed.wrapping_add(1))];
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("bridge".to_owned())
            .spawn(move || carry(&sockets, paths, &told))
            .map_err(|e| Error::new("cannot start a thread", e))?;
        Ok(Bridge { stop, thread: Some(thread) })
    }

    /// Ends it; returns statistics of the packets there and back.
    pub fn finish(mut self) -> [PathCounts; 2] {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

fn carry(sockets: &[PacketSocket; 2], mut paths: [Path; 2], stop: &AtomicBool) -> [PathCounts; 2] {
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    let mut buffer = vec![0; 65_600];
    while !stop.load(Ordering::Relaxed) {
        let mut busy = false;
        for side in [0, 1] {
            for _ in 0..BURST {
                let Ok(Some(len)) = sockets[side].try_receive(&mut buffer) else { break };
                paths[side].enter(now_ns(), buffer[..len].to_vec());
                busy = true;
            }
            while let Some(frame) = paths[side].leave(now_ns()) {
                // A full interface loses packets, as real ones do.
                let _ = sockets[1 - side].send(&frame);
            }
        }
        if !busy {
            let next_ns = paths.iter().filter_map(Path::next_ns).min();
            let nap_ns = next_ns.map_or(NAP_NS, |at_ns| at_ns.saturating_sub(now_ns()).min(NAP_NS));
            sleep(sockets, nap_ns);
        }
    }
    [paths[0].counts(), paths[1].counts()]
}

/// Waits for a frame, at most this long.
fn sleep(sockets: &[PacketSocket; 2], nap_ns: u64) {
    let mut entries = [PollFd::readable(&sockets[0]), PollFd::readable(&sockets[1])];
    let polled = poll(&mut entries, Some(Duration::from_nanos(nap_ns)));
    debug_assert!(!polled.is_err_and(|e| e.kind() != io::ErrorKind::Interrupted));
}
