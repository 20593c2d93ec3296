//! What a device alone can do: bare frames to and fro over veth, AF_XDP at both ends, no stack.
//!
//! `cargo run --release -p ix-nic --example echo_raw [generic]` as root, with two CPUs.
use ix_mem::{HEADROOM_BYTES, PacketMemory, Pool, Sizes};
use ix_netdev::{OpenOptions, OpenedDevice, open};
use ix_nic::{Nic, RingSizes, attach};
use ix_testbed::{Namespace, VethEnd, cpu};
use ix_wire::IpAddr;
use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ADDRESSES: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

struct End {
    memory: PacketMemory,
    rx: Pool,
    tx: Pool,
    nic: Box<dyn Nic>,
    _device: OpenedDevice,
}

impl End {
    fn new(ns: &Namespace, which: usize, mode: &str) -> Result<End, Box<dyn Error>> {
        let spec = format!("afxdp:end{which}{mode}").parse()?;
        let options =
            OpenOptions { addresses: vec![IpAddr::v4(ADDRESSES[which])], ..OpenOptions::default() };
        let mut device = ns.run(|| open(&spec, &options))?;
        let memory = PacketMemory::new(Sizes { rx_frames: 8192, tx_frames: 2048, arena_bytes: 0 })?;
        // SAFETY: the only pools of this memory.
        let (mut rx, tx) =
            unsafe { (Pool::new(memory.rx_frames()), Pool::new(memory.tx_frames())) };
        let fds = std::mem::take(&mut device.queue_fds);
        let nic = attach(&device.info, 0, fds, &memory, &mut rx, RingSizes::default())?;
        device.finish(0)?;
        Ok(End { memory, rx, tx, nic, _device: device })
    }

    /// One cycle: sends back what came in, and `fresh` frames more. Answers how many came in.
    fn cycle(&mut self, fresh: usize, to: [u8; 4], queued: &mut VecDeque<ix_mem::Mbuf>) -> usize {
        let mut burst = Vec::with_capacity(64);
        let n = self.nic.receive(&self.memory, &mut self.rx, 64, &mut burst);
        for packet in burst {
            self.rx.put(packet.mbuf);
        }
        for _ in 0..n + fresh {
            let Some(mut mbuf) = self.tx.take() else { break };
            mbuf.set_range(HEADROOM_BYTES, 106);
            let frame = mbuf.bytes_mut(&self.memory);
            frame.fill(0);
            frame[..6].fill(0xff);
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[30..34].copy_from_slice(&to);
            queued.push_back(mbuf);
        }
        self.nic.transmit(&self.memory, &mut self.tx, queued);
        self.nic.kick(&self.memory, &mut self.tx);
        n
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mode = std::env::args().nth(1).map(|mode| format!(",mode={mode}")).unwrap_or_default();
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    left.add_veth(&VethEnd::new("end0"), &right, &VethEnd::new("end1"))?;
    left.set_up("end0", true)?;
    right.set_up("end1", true)?;
    left.wait_running("end0", Duration::from_secs(5))?;
    let mut client = End::new(&left, 0, &mode)?;
    let mut server = End::new(&right, 1, &mode)?;
    println!("{}", server.nic.info().mode);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin(1);
            let mut queued = VecDeque::new();
            while !done.load(Ordering::Relaxed) {
                server.cycle(0, ADDRESSES[0], &mut queued);
            }
        });
        let _ = cpu::pin(0);
        let (mut queued, mut in_flight) = (VecDeque::new(), 0);
        for window in [1, 16, 64, 256] {
            let (start, mut echoed) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_secs(1) {
                let fresh = window - in_flight;
                in_flight = window;
                echoed += client.cycle(fresh, ADDRESSES[1], &mut queued);
            }
            let (seconds, drops) = (start.elapsed().as_secs_f64(), client.nic.drops());
            println!("{window:4} in flight: {:7.0} echoes/s  {drops:?}", echoed as f64 / seconds);
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(())
}
