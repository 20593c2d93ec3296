//! The devices as one elastic thread sees them: its own queue pair of each.
use crate::shared::Shared;
use ix_mem::Mbuf;
use ix_nic::{Fence, Nic, NicInfo, SetReta, Steering};
use ix_wire::{FlowTuple, Toeplitz, flow_group};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most packets that a cycle gives a device before flows with data in flight wait for the next one.
/// A cycle that sent many times more packets than it takes in would leave acknowledgements, and
/// whatever else comes in, waiting.
const CROWD_OF_CYCLE: usize = 256;
/// Most packets that wait for a device or are with the kernel before such flows wait. What else is
/// to be sent never stands behind more.
const CROWD: usize = 1024;

/// One device as one elastic thread sees it: its own queue pair.
pub struct Port {
    /// The queue pair.
    pub nic: Box<dyn Nic>,
    /// What the device is.
    pub info: NicInfo,
    /// Built packets that wait for step 6.
    pub queue: VecDeque<Mbuf>,
    /// How many of these, from the front, the queueing discipline has passed.
    pub(crate) passed: usize,
    /// Packets that the kernel had after step 6.
    held: usize,
    /// Number of packets that the device was given so far.
    pub(crate) handed: u64,
    /// Its redirection table, if this process can write it.
    pub reta: Option<Arc<dyn SetReta>>,
    /// The device's hash, if it spreads packets by one.
    toeplitz: Option<Box<Toeplitz>>,
}

impl Port {
    /// A queue pair without packets to send.
    pub fn new(nic: Box<dyn Nic>) -> Port {
        let (info, reta) = (nic.info().clone(), nic.reta());
        let toeplitz = match &info.steering {
            Steering::Rss(key) => Some(Box::new(Toeplitz::new(key))),
            Steering::Software | Steering::Table => None,
        };
        let queue = VecDeque::with_capacity(1024);
        Port { nic, info, queue, passed: 0, held: 0, handed: 0, reta, toeplitz }
    }

    /// To be called after each step 6; `sent`: it has given packets to the device. What a peer
    /// takes out of shared memory does not count: no doorbell says when it has.
    #[inline]
    pub fn look_at_held(&mut self, sent: bool) {
        if (sent || self.held > 0) && !self.info.shared_frames {
            self.held = self.nic.frames_held().1;
        }
    }

    /// Whether a flow with data in flight may add more, if this thread has so many transmit frames.
    #[inline]
    pub fn has_room(&self, frames: usize) -> bool {
        let queued = self.queue.len();
        queued < CROWD_OF_CYCLE && queued + self.held < CROWD.min(frames / 2)
    }

    /// The flow group of a tuple whose packets arrive here; `hash` is the flow table's.
    #[inline]
    pub fn group_of(&self, hash: u64, tuple: &FlowTuple) -> usize {
        match (&self.toeplitz, tuple.remote.as_v4(), tuple.local.as_v4()) {
            (Some(toeplitz), Some(src), Some(dst)) => {
                let hash = toeplitz.hash_v4(src, dst, tuple.remote_port, tuple.local_port);
                flow_group(hash as u64)
            }
            (Some(toeplitz), None, None) => flow_group(toeplitz.hash(tuple).into()),
            _ => flow_group(hash),
        }
    }
}

/// Sets the redirection tables of devices that have no own one.
pub(crate) fn set_tables(ports: &mut [Port], tables: &[Option<Arc<dyn SetReta>>]) {
    for (port, table) in ports.iter_mut().zip(tables) {
        if table.is_some() {
            port.reta = table.clone();
        }
    }
}

/// To be called when a device has another link, whose table is in its initial state: steers the
/// groups of thread `index` to it.
pub(crate) fn refresh_table(ports: &mut [Port], device: usize, shared: &Shared, index: usize) {
    let Some(port) = ports.get_mut(device) else { return };
    let Some(reta) = port.nic.reta() else { return };
    for group in shared.groups_of(index).iter() {
        // If it cannot be written, packets are handed over.
        let _ = reta.set(group, index);
    }
    port.reta = Some(reta);
}

/// Fences behind what the devices were given and peers may not have taken yet.
pub(crate) fn fences(ports: &mut [Port]) -> Vec<Box<dyn Fence>> {
    ports.iter_mut().filter_map(|port| port.nic.fence()).collect()
}

/// For each device, the number of the last packet that waits for room in it now.
pub(crate) fn unsent(ports: &[Port]) -> Option<Vec<u64>> {
    let queued = ports.iter().any(|port| !port.queue.is_empty());
    queued.then(|| ports.iter().map(|p| p.handed + p.queue.len() as u64).collect())
}
