//! A device in memory: queue pairs with a redirection table, rings of bounded length.
//!
//! [`Port`] is the network's end, [`SimNic`] a queue pair as the dataplane sees it. Frames are copied
//! at the border, as a device would by DMA; nothing is shared.
use crate::rng::Rng;
use ix_mem::{Mbuf, PacketMemory, Pool};
use ix_nic::{DeviceDrops, Nic, NicInfo, RxPacket, SetReta, Steering, copy_frame, mbufs_for};
use ix_wire::{ChecksumMode, FLOW_GROUPS, FlowHash, Parsed, RxChecks, Toeplitz, flow_group};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// How the device spreads packets over its queues.
#[derive(Clone, Debug)]
pub enum Spread {
    /// All to the first queue: the least that a device can do.
    First,
    /// Anyhow: the worst that a device can do.
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

/// What the device says of a redirection table that was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// When the change holds.
    Settled,
    /// That a packet on a new queue was the first there, and the last on the old one is before it.
    InOrder,
    /// Nothing.
    Silent,
}

/// What a simulated device is.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Our Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet.
    pub mtu: usize,
    /// Queue pairs.
    pub queues: usize,
    /// Slots of each ring.
    pub ring: usize,
    /// How packets are spread.
    pub spread: Spread,
    /// What it says of its table.
    pub promise: Promise,
    /// A change of the table holds so much later, µs.
    pub lag_us: u64,
}

struct Queue {
    /// With the time since which each waits.
    rx: VecDeque<(u64, Vec<u8>)>,
    /// Handed over, waiting for the doorbell.
    tx: VecDeque<Vec<u8>>,
    overruns: u64,
}

struct State {
    queues: Vec<Queue>,
    sent: VecDeque<Vec<u8>>,
    reta: [u8; FLOW_GROUPS],
    /// Changes of it that do not hold yet: when, group, queue.
    changes: VecDeque<(u64, usize, u8)>,
    now_us: u64,
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

/// The network's end of a device. Clones are the same device.
#[derive(Clone)]
pub struct Port {
    state: Arc<Mutex<State>>,
    config: PortConfig,
}

impl Port {
    /// A device whose flow groups are dealt out to its queues round robin.
    pub fn new(config: PortConfig) -> Port {
        let queue = |_| Queue { rx: VecDeque::new(), tx: VecDeque::new(), overruns: 0 };
        let state = State {
            queues: (0..config.queues).map(queue).collect(),
            sent: VecDeque::new(),
            reta: std::array::from_fn(|group| (group % config.queues) as u8),
            changes: VecDeque::new(),
            now_us: 0,
            waited: Waited::default(),
            toeplitz: match &config.spread {
                Spread::Rss(key) => Some(Toeplitz::new(key)),
                _ => None,
            },
            spread: config.spread.clone(),
        };
        Port { state: Arc::new(Mutex::new(state)), config }
    }

    /// What the device is.
    pub fn config(&self) -> &PortConfig {
        &self.config
    }

    /// A queue pair, for one elastic thread.
    pub fn queue(&self, queue: usize) -> SimNic {
        let info = NicInfo {
            kind: "sim",
            name: format!("sim{:02x}", self.config.mac[5]),
            mode: "virtual time".into(),
            queues: self.config.queues,
            mac: self.config.mac,
            mtu: self.config.mtu,
            steering: self.config.spread.steering(),
            partial_checksums: false,
            shared_frames: false,
            table_fd: false,
            xdp: None,
        };
        SimNic { port: self.clone(), queue, info }
    }

    /// A frame arrives; answers the queue it went to. A full ring loses it.
    pub fn deliver(&self, frame: Vec<u8>) -> usize {
        let mut state = self.state();
        let queue = state.queue_of(&frame);
        let now_us = state.now_us;
        let ring = &mut state.queues[queue];
        if ring.rx.len() < self.config.ring {
            ring.rx.push_back((now_us, frame));
        } else {
            ring.overruns += 1;
        }
        queue
    }

    /// The next frame that was sent.
    pub fn take_sent(&self) -> Option<Vec<u8>> {
        self.state().sent.pop_front()
    }

    /// How long frames have waited in its rings.
    pub fn waited(&self) -> Waited {
        self.state().waited
    }

    /// It is that late.
    pub fn set_now(&self, now_us: u64) {
        let state = &mut *self.state();
        state.now_us = now_us;
        while let Some((at_us, group, queue)) = state.changes.front().copied()
            && at_us <= now_us
        {
            state.reta[group] = queue;
            state.changes.pop_front();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a simulation is single-threaded")
    }
}

impl SetReta for Port {
    fn set(&self, group: usize, queue: usize) -> std::io::Result<()> {
        if group >= FLOW_GROUPS || queue >= self.config.queues {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let state = &mut *self.state();
        state.changes.push_back((state.now_us + self.config.lag_us, group, queue as u8));
        Ok(())
    }

    fn settled(&self) -> bool {
        self.config.promise == Promise::Settled && self.state().changes.is_empty()
    }

    fn in_order(&self) -> bool {
        self.config.promise == Promise::InOrder
    }
}

impl State {
    fn queue_of(&mut self, frame: &[u8]) -> usize {
        match &mut self.spread {
            Spread::First => return 0,
            Spread::Random(rng) => return rng.below(self.queues.len() as u64) as usize,
            Spread::Table(_) | Spread::Rss(_) => {}
        }
        let checks = RxChecks { transport: ChecksumMode::Skip };
        let tuple = match ix_wire::parse(frame, checks) {
            Ok(Parsed::Tcp(packet)) => packet.tuple(),
            Ok(Parsed::Udp(packet)) => packet.tuple(),
            _ => return self.reta[0] as usize,
        };
        let hash = match (&self.spread, &self.toeplitz) {
            (Spread::Table(hash), _) => hash.hash(&tuple),
            (_, Some(toeplitz)) => {
                let (src, dst) = (tuple.remote.as_v4(), tuple.local.as_v4());
                let (src, dst) = (src.unwrap_or_default(), dst.unwrap_or_default());
                toeplitz.hash_v4(src, dst, tuple.remote_port, tuple.local_port) as u64
            }
            _ => 0,
        };
        self.reta[flow_group(hash)] as usize
    }
}

/// One queue pair.
pub struct SimNic {
    port: Port,
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
        let State { queues, waited, now_us, .. } = &mut *self.port.state();
        let ring = &mut queues[self.queue].rx;
        let mut received = 0;
        // A frame longer than an mbuf takes several, which must all be there.
        while let Some((since_us, frame)) = ring.front() {
            let pieces = mbufs_for(frame.len()).max(1);
            if received + pieces > max || pieces > rx_pool.free() {
                break;
            }
            received += pieces;
            let wait_us = now_us.saturating_sub(*since_us);
            waited.total_us += wait_us;
            waited.most_us = waited.most_us.max(wait_us);
            let (_, frame) = ring.pop_front().unwrap_or_default();
            copy_frame(&frame, memory, rx_pool, out);
        }
        received
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        let mut state = self.port.state();
        let ring = &mut state.queues[self.queue].tx;
        while ring.len() < self.port.config.ring {
            let Some(mbuf) = packets.pop_front() else { break };
            ring.push_back(mbuf.bytes(memory).to_vec());
            tx_pool.put(mbuf);
        }
    }

    fn kick(&mut self, _: &PacketMemory, _: &mut Pool) {
        let state = &mut *self.port.state();
        state.sent.append(&mut state.queues[self.queue].tx);
    }

    fn frames_held(&self) -> (usize, usize) {
        (0, 0)
    }

    fn doorbell(&self) -> Option<std::os::fd::RawFd> {
        None
    }

    fn backlog(&self) -> Option<usize> {
        Some(self.port.state().queues[self.queue].rx.len())
    }

    fn arm(&mut self) -> bool {
        self.port.state().queues[self.queue].rx.is_empty()
    }

    fn reta(&self) -> Option<Arc<dyn SetReta>> {
        let has_one = self.info.steering != Steering::Software;
        has_one.then(|| Arc::new(self.port.clone()) as Arc<dyn SetReta>)
    }

    fn drops(&mut self) -> DeviceDrops {
        let rx_overrun = self.port.state().queues[self.queue].overruns;
        DeviceDrops { rx_overrun, ..DeviceDrops::default() }
    }

    fn close(&mut self, _: &mut Pool, _: &mut Pool) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_mem::HEADROOM_BYTES;
    use ix_mem::Sizes;

    fn port(queues: usize, spread: Spread) -> Port {
        Port::new(PortConfig {
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            queues,
            ring: 8,
            spread,
            promise: Promise::Silent,
            lag_us: 0,
        })
    }

    fn memory() -> (PacketMemory, Pool, Pool) {
        let sizes = Sizes { rx_frames: 16, tx_frames: 16, arena_bytes: 0 };
        let memory = PacketMemory::new(sizes).unwrap();
        let (rx, tx) = (memory.rx_frames(), memory.tx_frames());
        // SAFETY: each range goes to one pool, once.
        unsafe { (memory, Pool::new(rx.start..rx.start + 16), Pool::new(tx.start..tx.start + 16)) }
    }

    #[test]
    fn bytes_go_through_both_ways_and_frames_come_back() {
        let port = port(1, Spread::Random(Rng::new(1)));
        let (memory, mut rx, mut tx) = memory();
        let mut nic = port.queue(0);
        for i in 0..10u8 {
            port.deliver(vec![i; 100]);
        }
        assert_eq!(nic.drops().rx_overrun, 2);
        assert!(!nic.arm());
        let (mut got, mut packets) = (Vec::new(), VecDeque::new());
        assert_eq!(nic.receive(&memory, &mut rx, 5, &mut got), 5);
        assert_eq!(nic.receive(&memory, &mut rx, 5, &mut got), 3);
        for (i, packet) in got.drain(..).enumerate() {
            assert_eq!(packet.mbuf.bytes(&memory), vec![i as u8; 100]);
            rx.put(packet.mbuf);
        }
        for i in 0..10u8 {
            let mut mbuf = tx.take().unwrap();
            mbuf.set_range(HEADROOM_BYTES, 60);
            mbuf.bytes_mut(&memory).fill(i);
            packets.push_back(mbuf);
        }
        nic.transmit(&memory, &mut tx, &mut packets);
        assert_eq!(packets.len(), 2, "the ring has 8 slots");
        assert_eq!(port.take_sent(), None, "nothing leaves before the doorbell");
        nic.kick(&memory, &mut tx);
        nic.transmit(&memory, &mut tx, &mut packets);
        nic.kick(&memory, &mut tx);
        assert!((0..10u8).all(|i| port.take_sent() == Some(vec![i; 60])));
        assert_eq!((rx.in_use(), tx.in_use()), (0, 0));
    }

    #[test]
    fn a_long_frame_comes_in_pieces_or_not_yet() {
        let port = port(1, Spread::Random(Rng::new(1)));
        let (memory, mut rx, _) = memory();
        let mut nic = port.queue(0);
        port.deliver((0..5000u32).map(|i| i as u8).collect());
        let mut got = Vec::new();
        assert_eq!(nic.receive(&memory, &mut rx, 2, &mut got), 0);
        assert_eq!(nic.receive(&memory, &mut rx, 3, &mut got), 3);
        assert_eq!(got.iter().map(|p| p.more).collect::<Vec<_>>(), [true, true, false]);
        let bytes: Vec<u8> = got.drain(..).flat_map(|p| p.mbuf.bytes(&memory).to_vec()).collect();
        assert!(bytes.iter().enumerate().all(|(i, &b)| b == i as u8) && bytes.len() == 5000);
    }
}
