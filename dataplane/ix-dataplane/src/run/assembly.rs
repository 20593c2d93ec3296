//! Makes elastic threads of their parts: the only place that does, for a dataplane that starts
//! (`boot.rs`) and for tests.
use crate::attachment::Attachments;
use crate::calls::CallArray;
use crate::cycle::ElasticThread;
use crate::events::EventWriter;
use crate::forwarding::forwarding;
use crate::io::Io;
use crate::observe::metrics::{ControlPage, ThreadMetrics};
use crate::shared::Shared;
use ix_mem::{PacketMemory, Pool};
use ix_nic::{Nic, SetReta};
use std::sync::Arc;

/// The parts of one elastic thread that it does not share.
pub struct ThreadParts {
    /// Its queue pair of each device.
    pub nics: Vec<Box<dyn Nic>>,
    /// Its pools: frames to receive into, and frames to build packets in.
    pub pools: (Pool, Pool),
    /// Where its application writes calls.
    pub calls: CallArray,
    /// Where its application reads events.
    pub events: EventWriter,
}

/// Makes the elastic threads of one dataplane, in order, at `now_us`. `tables` are the redirection
/// tables of devices whose queue pairs have none of their own.
pub fn elastic_threads(
    shared: &Arc<Shared>,
    page: &Arc<ControlPage>,
    parts: Vec<ThreadParts>,
    tables: &[Option<Arc<dyn SetReta>>],
    now_us: u64,
) -> Vec<ElasticThread> {
    let rings = forwarding(parts.len());
    let threads = parts.into_iter().zip(rings).enumerate();
    let build = |(index, (parts, rings)): (usize, (ThreadParts, _))| {
        let ThreadParts { nics, pools, calls, events } = parts;
        let metrics = ThreadMetrics::new(page, index);
        let attached = Attachments::new(calls, events);
        let mut io = Io::new(shared.clone(), index, nics, pools, attached, metrics);
        crate::ports::set_tables(&mut io.ports, tables);
        ElasticThread::new(io, rings, now_us)
    };
    threads.map(build).collect()
}

/// Makes the receive pool and the transmit pool of each thread, of `rx` and `tx` frames.
///
/// # Safety
/// These are the only pools of this memory, and it has so many frames for each thread.
pub unsafe fn pools(
    memory: &PacketMemory,
    threads: usize,
    [rx, tx]: [usize; 2],
) -> Vec<(Pool, Pool)> {
    let pool = |first: u32, index: usize, frames: usize| {
        let first = first + (index * frames) as u32;
        // SAFETY: the parts are disjoint, and the caller makes no other pool.
        unsafe { Pool::new(first..first + frames as u32) }
    };
    let [first_rx, first_tx] = [memory.rx_frames().start, memory.tx_frames().start];
    (0..threads).map(|index| (pool(first_rx, index, rx), pool(first_tx, index, tx))).collect()
}

/// Number of receive and transmit frames of each thread, if the memory is divided equally.
pub fn equal_parts(memory: &PacketMemory, threads: usize) -> [usize; 2] {
    [memory.rx_frames(), memory.tx_frames()].map(|frames| frames.len() / threads)
}
