//! A memif peer, which connects when the attacker asks for it; the dataplane then maps its memory.
use ix_mem::{MemoryFds, Sizes};
use ix_netdev::{OpenOptions, SharedMemory};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const FRAMES: usize = 256;
const PAUSE: Duration = Duration::from_millis(10);

/// The peer: it stays until it is dropped, and never sends.
pub struct Peer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Connects to the memif that listens at `path`.
    pub fn start(path: &Path) -> Result<Peer, Box<dyn Error>> {
        let sizes = Sizes { rx_frames: FRAMES, tx_frames: FRAMES, arena_bytes: 2 << 20 };
        let memory = SharedMemory { fds: Arc::new(MemoryFds::new(sizes)?), sizes };
        let options = OpenOptions {
            addresses: Vec::new(),
            flow_hash_key: [0; 2],
            filters: None,
            memory: Some(memory),
            shared: None,
            has_keeper: false,
            ..OpenOptions::default()
        };
        let spec = format!("memif:{},role=client", path.display()).parse()?;
        let mut device = ix_netdev::open(&spec, &options)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                device.service();
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Peer { stop, thread: Some(thread) })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
