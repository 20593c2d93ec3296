//! A device in memory: queue pairs with a redirection table and rings of bounded length, in virtual
//! time.
//!
//! [`SimDevice`] is the wire's end: [`SimDevice::deliver`] puts frames in, and
//! [`SimDevice::take_sent`] or [`SimDevice::next_sent`] takes out what the queues have sent.
//! [`SimNic`] is a queue pair as the dataplane sees it. Frames are copied at the border, as a
//! device does by DMA; no memory is shared.
use crate::VirtualClock;
use ix_mem::{Mbuf, PacketMemory, Pool};
use ix_nic::{
    DeviceDrops, Fence, Nic, NicInfo, NicKind, RxPacket, SetReta, Steering, copy_frame,
    initial_queue, mbufs_for,
};
use ix_random::Rng;
use ix_wire::{
    ChecksumMode, FLOW_GROUPS, FlowHash, FlowTuple, Parsed, RxChecks, Toeplitz, flow_group,
};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a device spreads packets over its queues.
#[derive(Clone, Debug)]
pub enum Spread {
    /// All to the first queue: the least that a device can do.
    First,
    /// At random: the worst that a device can do.
    Random(Rng),
    /// By the dataplane's own hash and the table.
    Table(FlowHash),
    /// As RSS does, with this key and the table.
    Rss([u8; 40]),
}

impl Spread {
    fn steering(&self) -> Steering {
        match self {
            Spread::First | Spread::Random(_) => Steering::Software,
            Spread::Table(_) => Steering::Table,
            Spread::Rss(key) => Steering::Rss(*key),
        }
    }
}

/// What a device reports about a change of its redirection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The time from which the change holds ([`SetReta::settled`]).
    Settled,
    /// Which packet is the first on the new queue; the last one on the old queue is before it
    /// ([`SetReta::in_order`]).
    InOrder,
    /// Nothing.
    Silent,
}

/// Properties of a simulated device.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Our Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes.
    pub mtu: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Slots of each ring, frames. A full receive ring loses what comes.
    pub ring: usize,
    /// Frames that a queue sends until they are taken off the wire.
    pub wire: usize,
    /// How packets are spread.
    pub spread: Spread,
    /// What it reports about a change of its table.
    pub promise: Promise,
    /// When a change of the table holds: at once, or at the first [`SimDevice::tick`] that is this
    /// much later, µs.
    pub lag_us: Option<u64>,
    /// Whether it reports frames that it has sent and the wire has not taken yet ([`Nic::fence`]).
    pub fences: bool,
}

impl Default for SimOptions {
    /// One queue, with rings that no test fills by accident.
    fn default() -> SimOptions {
        SimOptions {
            mac: [0x02, 0, 0, 0, 0, 1],
            mtu: 1500,
            queues: 1,
            ring: 4096,
            wire: usize::MAX,
            spread: Spread::First,
            promise: Promise::Settled,
            lag_us: None,
            fences: false,
        }
    }
}

#[derive(Default)]
struct Queue {
    /// With the time since which each waits.
    rx: VecDeque<(u64, Vec<u8>)>,
    /// Handed over, waiting for the doorbell.
    tx: VecDeque<Vec<u8>>,
    /// Frames that were handed over so far.
    handed: u64,
    /// Frames that were taken off the wire so far, or lost on a link that was down.
    taken: u64,
    drops: DeviceDrops,
}

impl Queue {
    fn on_wire(&self) -> usize {
        (self.handed - self.taken) as usize
    }
}

struct State {
    queues: Vec<Queue>,
    /// In the order of the doorbells, each with its queue.
    sent: VecDeque<(usize, Vec<u8>)>,
    reta: [usize; FLOW_GROUPS],
    /// Changes of it that do not hold yet: when, group, queue.
    changes: VecDeque<(u64, usize, usize)>,
    link_up: bool,
    waited: Waited,
    spread: Spread,
    toeplitz: Option<Toeplitz>,
}

/// How long frames waited in receive rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    /// All of them together, µs.
    pub total_us: u64,
    /// The one that waited longest, µs.
    pub most_us: u64,
}

/// The wire's end of a device. Clones are the same device.
#[derive(Clone)]
pub struct SimDevice {
    state: Arc<Mutex<State>>,
    options: SimOptions,
    clock: VirtualClock,
}

impl SimDevice {
    /// A device with its link up, whose flow groups are dealt out to its queues round robin.
    pub fn new(options: SimOptions, clock: &VirtualClock) -> SimDevice {
        let state = State {
            queues: (0..options.queues).map(|_| Queue::default()).collect(),
            sent: VecDeque::new(),
            reta: std::array::from_fn(|group| initial_queue(group, options.queues)),
            changes: VecDeque::new(),
            link_up: true,
            waited: Waited::default(),
            toeplitz: match &options.spread {
                Spread::Rss(key) => Some(Toeplitz::new(key)),
                _ => None,
            },
            spread: options.spread.clone(),
        };
        SimDevice { state: Arc::new(Mutex::new(state)), options, clock: clock.clone() }
    }

    /// The device's properties.
    pub fn options(&self) -> &SimOptions {
        &self.options
    }

    /// A queue pair, for one elastic thread.
    ///
    /// # Panics
    /// When the device has no such queue.
    pub fn queue(&self, queue: usize) -> SimNic {
        assert!(queue < self.options.queues);
        let info = NicInfo {
            kind: NicKind::Sim,
            name: format!("sim{:02x}", self.options.mac[5]),
            mode: "virtual time".into(),
            queues: self.options.queues,
            mac: self.options.mac,
            mtu: self.options.mtu,
            steering: self.options.spread.steering(),
            partial_checksums: false,
            shared_frames: false,
            vlan: None,
            table_fd: false,
        };
        SimNic { device: self.clone(), queue, info }
    }

    /// All its queue pairs, in order.
    pub fn nics(&self) -> Vec<Box<dyn Nic>> {
        (0..self.options.queues).map(|queue| Box::new(self.queue(queue)) as _).collect()
    }

    /// A frame arrives; returns the queue it went to.
    pub fn deliver(&self, frame: Vec<u8>) -> usize {
        let mut state = self.state();
        let queue = state.queue_of(&frame);
        self.receive(&mut state, queue, frame);
        queue
    }

    /// A frame arrives on this queue, however packets are spread.
    ///
    /// # Panics
    /// When the device has no such queue.
    pub fn deliver_on(&self, queue: usize, frame: Vec<u8>) {
        self.receive(&mut self.state(), queue, frame);
    }

    fn receive(&self, state: &mut State, queue: usize, frame: Vec<u8>) {
        let (queue, is_up) = (&mut state.queues[queue], state.link_up);
        if is_up && queue.rx.len() < self.options.ring {
            queue.rx.push_back((self.clock.now_us(), frame));
        } else if is_up {
            queue.drops.rx_overrun += 1;
        }
    }

    /// Puts a frame on the wire, as if the dataplane had sent it on this queue.
    ///
    /// # Panics
    /// When the device has no such queue.
    pub fn send(&self, queue: usize, frame: Vec<u8>) {
        let state = &mut *self.state();
        state.queues[queue].handed += 1;
        state.sent.push_back((queue, frame));
    }

    /// The next frame that was sent, in the order of the doorbells.
    pub fn next_sent(&self) -> Option<Vec<u8>> {
        self.state().next_sent().map(|(_, frame)| frame)
    }

    /// All frames that were sent: queue by queue, in order within each.
    pub fn take_sent(&self) -> Vec<(usize, Vec<u8>)> {
        let mut state = self.state();
        let mut frames: Vec<_> = std::iter::from_fn(|| state.next_sent()).collect();
        frames.sort_by_key(|(queue, _)| *queue);
        frames
    }

    /// Takes the link down, which loses all frames both ways, or up.
    pub fn set_link(&self, up: bool) {
        self.state().link_up = up;
    }

    /// How long frames have waited in its rings.
    pub fn waited(&self) -> Waited {
        self.state().waited
    }

    /// Applies the changes of the table that are due. A test whose device has a lag calls it when
    /// it has set the clock.
    pub fn tick(&self) {
        let state = &mut *self.state();
        while let Some((at_us, group, queue)) = state.changes.front().copied()
            && at_us <= self.clock.now_us()
        {
            state.reta[group] = queue;
            state.changes.pop_front();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that fails within a cycle must report its own panic, not a poisoned lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SetReta for SimDevice {
    fn set(&self, group: usize, queue: usize) -> std::io::Result<()> {
        if group >= FLOW_GROUPS || queue >= self.options.queues {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let state = &mut *self.state();
        match self.options.lag_us {
            None => state.reta[group] = queue,
            Some(lag_us) => state.changes.push_back((self.clock.now_us() + lag_us, group, queue)),
        }
        Ok(())
    }

    fn settled(&self) -> bool {
        self.options.promise == Promise::Settled && self.state().changes.is_empty()
    }

    fn in_order(&self) -> bool {
        self.options.promise == Promise::InOrder
    }
}

impl State {
    fn next_sent(&mut self) -> Option<(usize, Vec<u8>)> {
        let (queue, frame) = self.sent.pop_front()?;
        self.queues[queue].taken += 1;
        Some((queue, frame))
    }

    fn queue_of(&mut self, frame: &[u8]) -> usize {
        let hash = match &mut self.spread {
            Spread::First => return 0,
            Spread::Random(rng) => return rng.index(self.queues.len()),
            Spread::Table(hash) => tuple_of(frame).map(|tuple| hash.hash(&tuple)),
            Spread::Rss(_) => tuple_of(frame).zip(self.toeplitz.as_ref()).map(rss),
        };
        // Frames without ports belong to flow group 0.
        self.reta[hash.map_or(0, flow_group)]
    }
}

fn tuple_of(frame: &[u8]) -> Option<FlowTuple> {
    match ix_wire::parse(frame, RxChecks { transport: ChecksumMode::Skip }) {
        Ok(Parsed::Tcp(packet)) => Some(packet.tuple()),
        Ok(Parsed::Udp(packet)) => Some(packet.tuple()),
        _ => None,
    }
}

fn rss((tuple, toeplitz): (FlowTuple, &Toeplitz)) -> u64 {
    toeplitz.hash(&tuple).into()
}

/// Frames that a queue had sent.
struct SimFence {
    device: SimDevice,
    queue: usize,
    handed: u64,
}

impl Fence for SimFence {
    fn passed(&self) -> bool {
        self.device.state().queues[self.queue].taken >= self.handed
    }
}

/// One queue pair of a [`SimDevice`].
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
        let State { queues, waited, .. } = &mut *self.device.state();
        let ring = &mut queues[self.queue].rx;
        let before = out.len();
        while out.len() - before < max {
            let Some((since_us, frame)) = ring.front() else { break };
            // Like a device without free frames: it waits, and overruns at last.
            if mbufs_for(frame.len()) > rx_pool.free() {
                break;
            }
            let wait_us = self.device.clock.now_us().saturating_sub(*since_us);
            waited.total_us += wait_us;
            waited.most_us = waited.most_us.max(wait_us);
            copy_frame(frame, memory, rx_pool, out);
            ring.pop_front();
        }
        out.len() - before
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        let options = &self.device.options;
        let queue = &mut self.device.state().queues[self.queue];
        while queue.tx.len() < options.ring && queue.on_wire() < options.wire {
            let Some(mbuf) = packets.pop_front() else { break };
            queue.tx.push_back(mbuf.pieces(memory).collect::<Vec<_>>().concat());
            queue.handed += 1;
            tx_pool.put_frame(memory, mbuf);
        }
    }

    fn kick(&mut self, _: &PacketMemory, _: &mut Pool) {
        let State { queues, sent, link_up, .. } = &mut *self.device.state();
        let queue = &mut queues[self.queue];
        if *link_up {
            sent.extend(queue.tx.drain(..).map(|frame| (self.queue, frame)));
        } else {
            let lost = queue.tx.drain(..).count() as u64;
            queue.drops.tx_failed += lost;
            queue.taken += lost;
        }
    }

    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        if !self.device.options.fences {
            return None;
        }
        let handed = self.device.state().queues[self.queue].handed;
        Some(Box::new(SimFence { device: self.device.clone(), queue: self.queue, handed }))
    }

    fn reta(&self) -> Option<Arc<dyn SetReta>> {
        let has_one = self.info.steering != Steering::Software;
        has_one.then(|| Arc::new(self.device.clone()) as Arc<dyn SetReta>)
    }

    fn backlog(&self) -> Option<usize> {
        Some(self.device.state().queues[self.queue].rx.len())
    }

    fn arm(&mut self) -> bool {
        self.device.state().queues[self.queue].rx.is_empty()
    }

    fn frames_held(&self) -> (usize, usize) {
        (0, 0)
    }

    fn doorbell(&self) -> Option<RawFd> {
        None
    }

    fn drops(&mut self) -> DeviceDrops {
        self.device.state().queues[self.queue].drops
    }

    fn close(&mut self, _: &mut Pool, _: &mut Pool) {}
}
