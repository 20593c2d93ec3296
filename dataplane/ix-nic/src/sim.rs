//! `sim`: a device in memory, for tests and the simulator.
//!
//! [`SimDevice`] is the wire's end: frames go in by [`SimDevice::inject`], which looks up the
//! redirection table as hardware would, and what the queues sent comes out by
//! [`SimDevice::take_sent`]. [`SimNic`] is the dataplane's end, one a queue.
use crate::steering::{frame_flow_group, initial_queue};
use crate::{DeviceDrops, Fence, Nic, NicInfo, RxPacket, SetReta, Steering, copy_frame, mbufs_for};
use ix_mem::{Mbuf, PacketMemory, Pool};
use ix_wire::{FLOW_GROUPS, FlowHash};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a simulated device is like.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Its name, for messages.
    pub name: String,
    /// Our Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes.
    pub mtu: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Whether it has a redirection table; without one all frames come in on queue 0.
    pub table: bool,
    /// Key of the table's [`FlowHash`].
    pub flow_hash_key: [u64; 2],
    /// Frames that a queue keeps for us until it drops new ones.
    pub queue_frames: usize,
    /// Frames that a queue takes from us until they are taken off it ([`SimDevice::take_sent`]).
    pub sent_frames: usize,
    /// Whether the peer may leave partial checksums.
    pub partial_checksums: bool,
    /// What the device says of a table that was changed.
    pub change: SimChange,
}

/// What a simulated device says of a redirection table that was changed. In truth the change holds
/// for the next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimChange {
    /// That it holds at once ([`SetReta::settled`]).
    Settled,
    /// That queues do not overtake each other ([`SetReta::in_order`]).
    InOrder,
    /// Nothing.
    Silent,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            name: "sim0".to_owned(),
            mac: [0x02, 0, 0, 0, 0, 1],
            mtu: 1500,
            queues: 1,
            table: true,
            flow_hash_key: [0; 2],
            queue_frames: 4096,
            sent_frames: 4096,
            partial_checksums: false,
            change: SimChange::Settled,
        }
    }
}

/// The wire's end of a simulated device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct SimDevice {
    shared: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    options: SimOptions,
    hash: FlowHash,
    table: [usize; FLOW_GROUPS],
    link_up: bool,
    queues: Vec<Queue>,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    waiting: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    /// Frames that were taken off the wire.
    taken: u64,
    drops: DeviceDrops,
}

impl SimDevice {
    /// A device with its link up.
    pub fn new(options: SimOptions) -> SimDevice {
        let state = State {
            hash: FlowHash::new(options.flow_hash_key),
            table: std::array::from_fn(|group| initial_queue(group, options.queues)),
            link_up: true,
            queues: vec![Queue::default(); options.queues],
            options,
        };
        SimDevice { shared: Arc::new(Mutex::new(state)) }
    }

    /// The dataplane's end of a queue.
    ///
    /// # Panics
    /// When the device has no such queue.
    pub fn queue(&self, queue: usize) -> SimNic {
        let state = self.lock();
        let options = &state.options;
        assert!(queue < options.queues);
        let info = NicInfo {
            kind: "sim",
            name: options.name.clone(),
            mode: format!("{} queues in memory", options.queues),
            queues: options.queues,
            mac: options.mac,
            mtu: options.mtu,
            steering: if options.table { Steering::Table } else { Steering::Software },
            partial_checksums: options.partial_checksums,
            shared_frames: false,
            table_fd: false,
            xdp: None,
        };
        SimNic { device: self.clone(), queue, info }
    }

    /// A frame comes in from the wire, on the queue that the table says. Answers that queue.
    pub fn inject(&self, frame: Vec<u8>) -> usize {
        let mut state = self.lock();
        let group = frame_flow_group(&state.hash, &frame);
        let queue = if state.options.table { state.table[group] } else { 0 };
        state.receive(queue, frame);
        queue
    }

    /// A frame comes in on this queue, whatever the table says.
    ///
    /// # Panics
    /// When the device has no such queue.
    pub fn inject_on(&self, queue: usize, frame: Vec<u8>) {
        self.lock().receive(queue, frame);
    }

    /// Takes off the wire what was sent: queue by queue, in order within each.
    pub fn take_sent(&self) -> Vec<(usize, Vec<u8>)> {
        let mut state = self.lock();
        let queues = state.queues.iter_mut().enumerate();
        let frames = queues.flat_map(|(i, queue)| {
            queue.taken += queue.sent.len() as u64;
            queue.sent.drain(..).map(move |frame| (i, frame))
        });
        frames.collect()
    }

    /// Whether a frame waits on a queue, so that a sleeping thread would wake up.
    pub fn has_waiting(&self, queue: usize) -> bool {
        !self.lock().queues[queue].waiting.is_empty()
    }

    /// Takes the link down, which loses all frames both ways, or up.
    pub fn set_link(&self, up: bool) {
        self.lock().link_up = up;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn receive(&mut self, queue: usize, frame: Vec<u8>) {
        let (up, room) = (self.link_up, self.options.queue_frames);
        let queue = &mut self.queues[queue];
        if up && queue.waiting.len() < room {
            queue.waiting.push_back(frame);
        } else if up {
            queue.drops.rx_overrun += 1;
        }
    }
}

impl SetReta for SimDevice {
    fn set(&self, flow_group: usize, queue: usize) -> io::Result<()> {
        let mut state = self.lock();
        if flow_group >= FLOW_GROUPS || queue >= state.options.queues || !state.options.table {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        state.table[flow_group] = queue;
        Ok(())
    }

    fn settled(&self) -> bool {
        self.lock().options.change == SimChange::Settled
    }

    fn in_order(&self) -> bool {
        self.lock().options.change == SimChange::InOrder
    }
}

/// What a queue had sent.
struct SimFence {
    device: SimDevice,
    queue: usize,
    taken: u64,
}

impl Fence for SimFence {
    fn passed(&self) -> bool {
        self.device.lock().queues[self.queue].taken >= self.taken
    }
}

/// The dataplane's end of one queue of a [`SimDevice`].
#[derive(Debug)]
pub struct SimNic {
    device: SimDevice,
    queue: usize,
    info: NicInfo,
}

impl Nic for SimNic {
    fn info(&self) -> &NicInfo {
        &self.info
    }

    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        let mut state = self.device.lock();
        let queue = &mut state.queues[self.queue];
        let before = out.len();
        while out.len() - before < max {
            let Some(frame) = queue.waiting.front() else { break };
            if rx_pool.free() < mbufs_for(frame.len()) {
                break; // as a device without frames: it waits, and overruns in the end
            }
            copy_frame(frame, memory, rx_pool, out);
            queue.waiting.pop_front();
        }
        out.len() - before
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        let mut state = self.device.lock();
        let (up, room) = (state.link_up, state.options.sent_frames);
        let queue = &mut state.queues[self.queue];
        while queue.sent.len() < room
            && let Some(mbuf) = packets.pop_front()
        {
            if up {
                queue.sent.push_back(mbuf.bytes(memory).to_vec());
            } else {
                queue.drops.tx_failed += 1;
            }
            tx_pool.put(mbuf);
        }
    }

    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        let state = self.device.lock();
        let queue = &state.queues[self.queue];
        let taken = queue.taken + queue.sent.len() as u64;
        Some(Box::new(SimFence { device: self.device.clone(), queue: self.queue, taken }))
    }

    fn reta(&self) -> Option<Arc<dyn SetReta>> {
        let table = self.device.lock().options.table;
        table.then(|| Arc::new(self.device.clone()) as Arc<dyn SetReta>)
    }

    fn kick(&mut self, _memory: &PacketMemory, _tx_pool: &mut Pool) {}

    fn frames_held(&self) -> (usize, usize) {
        (0, 0)
    }

    fn doorbell(&self) -> Option<RawFd> {
        None
    }

    fn arm(&mut self) -> bool {
        !self.device.has_waiting(self.queue)
    }

    fn drops(&mut self) -> DeviceDrops {
        self.device.lock().queues[self.queue].drops
    }

    fn close(&mut self, _rx_pool: &mut Pool, _tx_pool: &mut Pool) {}
}
