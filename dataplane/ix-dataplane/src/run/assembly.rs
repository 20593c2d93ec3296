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
use std::ops::Range;
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
    let (rx_all, tx_all, devices) =
        (memory.rx_frames(), memory.tx_frames(), memory.device_frames());
    // Of `frames` for each thread, as many as there are in `near`, and the rest in `beyond`.
    let pool = |near: Range<u32>, beyond: Range<u32>, frames: usize, index: usize| {
        let near_each = frames.min(near.len() / threads);
        let part = |area: Range<u32>, each: usize| {
            let first = area.start + (index * each) as u32;
            first..first + each.min(area.len() / threads) as u32
        };
        let (near, beyond) = (part(near, near_each), part(beyond, frames - near_each));
        // SAFETY: the parts are disjoint, and the caller makes no other pool.
        unsafe { Pool::with_beyond(near, beyond) }
    };
    let pair = |index| {
        let rx_near = devices.start..rx_all.end;
        let tx_near = tx_all.start..devices.end;
        let rx = pool(rx_near, rx_all.start..devices.start, rx, index);
        (rx, pool(tx_near, devices.end..tx_all.end, tx, index))
    };
    (0..threads).map(pair).collect()
}

/// Number of receive and transmit frames of each thread, if the memory is divided equally.
pub fn equal_parts(memory: &PacketMemory, threads: usize) -> [usize; 2] {
    [memory.rx_frames(), memory.tx_frames()].map(|frames| frames.len() / threads)
}
