//! What a memif alone can do: bare frames to and fro between two pinned processes, no stack.
//!
//! `cargo run --release -p ix-nic --example echo_memif [BYTES]`, with two CPUs. The process starts
//! itself again as the other end; the client (zero-copy) sends, the server (copying) echoes, then
//! the roles change.
use ix_mem::{HEADROOM_BYTES, Mbuf, MemoryFds, PacketMemory, Pool, Sizes};
use ix_netdev::{DeviceEvent, OpenOptions, OpenedDevice, SharedMemory, open};
use ix_nic::{DeviceChange, Nic, RingSizes, attach, read_update};
use ix_testbed::cpu;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZES: Sizes = Sizes { rx_frames: 4096, tx_frames: 2048, arena_bytes: 0 };
const BURST: usize = 64;
const WINDOWS: [usize; 4] = [1, 8, 32, 256];
const SECONDS: f64 = 0.3;

struct End {
    memory: PacketMemory,
    rx: Pool,
    tx: Pool,
    nic: Box<dyn Nic>,
    device: OpenedDevice,
    queued: VecDeque<Mbuf>,
    burst: Vec<ix_nic::RxPacket>,
    up: bool,
}

impl End {
    fn new(spec: &str) -> Result<End, Box<dyn Error>> {
        let fds = Arc::new(MemoryFds::new(SIZES)?);
        let memory = Some(SharedMemory { fds: fds.clone(), sizes: SIZES });
        let options = OpenOptions { memory, ..OpenOptions::default() };
        let mut device = open(&spec.parse()?, &options)?;
        let memory = PacketMemory::map(fds.as_fds(), SIZES)?;
        // SAFETY: the only pools of this memory.
        let (mut rx, tx) =
            unsafe { (Pool::new(memory.rx_frames()), Pool::new(memory.tx_frames())) };
        let fds = std::mem::take(&mut device.queue_fds);
        let nic = attach(&device.info, 0, fds, &memory, &mut rx, RingSizes::default())?;
        let (queued, burst) = (VecDeque::with_capacity(256), Vec::with_capacity(BURST));
        Ok(End { memory, rx, tx, nic, device, queued, burst, up: false })
    }

    fn service(&mut self) -> Result<(), Box<dyn Error>> {
        for event in self.device.service() {
            if let DeviceEvent::Update(update) = event {
                self.up = matches!(update.change, DeviceChange::PeerUp(_));
                let parts =
                    read_update(&self.device.info, update.change, update.fds, &self.memory)?;
                for part in parts {
                    let taken = self.nic.update(part, &self.memory, &mut self.rx, &mut self.tx);
                    taken.expect("a link");
                }
            }
        }
        Ok(())
    }

    fn wait_for_peer(&mut self) -> Result<(), Box<dyn Error>> {
        while !self.up {
            self.service()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Takes what came in; answers how many frames and the sum of a byte of each.
    fn receive(&mut self) -> (usize, u64) {
        // As an idle dataplane does.
        if !self.nic.pending() {
            return (0, 0);
        }
        let n = self.nic.receive(&self.memory, &mut self.rx, BURST, &mut self.burst);
        let mut sum = 0;
        for packet in self.burst.drain(..) {
            sum += u64::from(packet.mbuf.bytes(&self.memory)[0]);
            self.rx.put(packet.mbuf);
        }
        (n, sum)
    }

    fn send(&mut self, count: usize, message: &[u8]) {
        for _ in 0..count {
            let Some(mut mbuf) = self.tx.take() else { break };
            mbuf.set_range(HEADROOM_BYTES, message.len());
            mbuf.bytes_mut(&self.memory).copy_from_slice(message);
            self.queued.push_back(mbuf);
        }
        if !self.queued.is_empty() {
            self.nic.transmit(&self.memory, &mut self.tx, &mut self.queued);
        }
        self.nic.kick(&self.memory, &mut self.tx);
    }
}

/// Echoes until the peer is gone.
fn echo(spec: &str, bytes: usize) -> Result<(), Box<dyn Error>> {
    let _ = cpu::pin(1);
    let mut end = End::new(spec)?;
    end.wait_for_peer()?;
    let message = vec![1; bytes];
    let mut looked = Instant::now();
    while end.up {
        for _ in 0..1000 {
            let (n, _) = end.receive();
            if n > 0 {
                end.send(n, &message);
            }
        }
        if looked.elapsed() > Duration::from_millis(50) {
            looked = Instant::now();
            end.service()?;
        }
    }
    Ok(())
}

fn measure(spec: &str, bytes: usize) -> Result<(), Box<dyn Error>> {
    let _ = cpu::pin(0);
    let mut end = End::new(spec)?;
    end.wait_for_peer()?;
    println!("{}, {bytes} bytes", end.nic.info().mode);
    let message = vec![1; bytes];
    let mut in_flight = 0;
    for window in WINDOWS {
        let (start, mut echoed) = (Instant::now(), 0);
        // Of short parts, most of which nothing disturbs on a machine that does other things too.
        let mut parts = Vec::new();
        while start.elapsed().as_secs_f64() < SECONDS {
            let (part, before) = (Instant::now(), echoed);
            for _ in 0..1000 {
                if in_flight < window {
                    end.send(window - in_flight, &message);
                    in_flight = window;
                }
                let (n, sum) = end.receive();
                assert_eq!(sum, n as u64, "other bytes came back");
                echoed += n;
                in_flight -= n;
            }
            parts.push(part.elapsed().as_secs_f64() / (echoed - before).max(1) as f64);
        }
        parts.sort_by(f64::total_cmp);
        let undisturbed = parts[parts.len() / 10] * 1e9 * window as f64;
        let seconds = start.elapsed().as_secs_f64();
        let (rate, round_trip) =
            (echoed as f64 / seconds / 1e6, seconds * 1e6 * window as f64 / echoed as f64);
        println!(
            "{window:4} in flight: {rate:6.2} million echoes/s, {round_trip:.2} us each, undisturbed {undisturbed:.0} ns"
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, command, spec, bytes] = &args[..]
        && command == "echo"
    {
        return echo(spec, bytes.parse()?);
    }
    let bytes: usize = args.get(1).map_or(Ok(64), |n| n.parse())?;
    for (ours, theirs) in [("client", "server"), ("server", "client")] {
        let path = std::env::temp_dir().join(format!("ix-echo-memif-{}", std::process::id()));
        let spec = |role| format!("memif:{},role={role}", path.display());
        let bytes_text = bytes.to_string();
        let mut child = std::process::Command::new(std::env::current_exe()?)
            .args(["echo", &spec(theirs), &bytes_text])
            .spawn()?;
        let result = measure(&spec(ours), bytes);
        child.wait()?;
        result?;
    }
    Ok(())
}
