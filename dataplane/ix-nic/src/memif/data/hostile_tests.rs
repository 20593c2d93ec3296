//! Both sides against a peer that writes anything into the shared memory.
use super::*;
use crate::device::RingSizes;
use crate::update::{Change, QueueUpdate};
use crate::{Nic, NicInfo, NicKind, Steering};
use ix_mem::{HEADROOM_BYTES, MemoryFds, Sizes};
use ix_proto::memif::{DESC_BYTES, RING_HEADER_BYTES};
use proptest::prelude::*;
use std::collections::VecDeque;

const LOG2_SIZE: u8 = 5;
const RING_BYTES: usize = ring_bytes(LOG2_SIZE);
const BUFFERS_BYTES: usize = 64 << 10;
const SIZES: Sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 0 };

/// A queue pair with its pools, and the peer's view of the rings (and of its buffers).
struct Victim {
    nic: Box<dyn Nic>,
    memory: PacketMemory,
    rx: Pool,
    tx: Pool,
    rings: Mapping,
    queued: VecDeque<Mbuf>,
}

fn victim(role: MemifRole) -> Victim {
    let client = role == MemifRole::Client;
    let memory_fds = MemoryFds::new(SIZES).unwrap();
    let memory = PacketMemory::map(memory_fds.as_fds(), SIZES).unwrap();
    // SAFETY: the only pools of this memory.
    let (mut rx, mut tx) =
        unsafe { (Pool::new(memory.rx_frames()), Pool::new(memory.tx_frames())) };
    let region = |bytes| ix_sys::fd::sealed_memfd(c"test", bytes, 0).unwrap();
    let (rings_fd, buffers) = (region(8192), region(BUFFERS_BYTES));
    let rings = Mapping::of_fd(rings_fd.as_fd(), 8192, 0).unwrap();
    let place = |offset| RingPlace { region: 0, offset, log2_size: LOG2_SIZE };
    let mut plan = Plan {
        role,
        peer: "test".into(),
        queues: 1,
        peer_queues: 1,
        steering: None,
        regions: vec![8192, BUFFERS_BYTES as u64],
        rx: vec![place(0)],
        tx: vec![place(4096)],
    };
    let bell = || ix_sys::event::open().unwrap();
    let mut fds = vec![rings_fd, buffers, bell(), bell()];
    if client {
        plan.regions.truncate(1);
        fds.drain(1..3);
    }
    let info = NicInfo {
        kind: NicKind::Memif,
        name: "test".into(),
        mode: String::new(),
        queues: 1,
        mac: [2; 6],
        mtu: 1500,
        steering: Steering::Software,
        partial_checksums: false,
        shared_frames: client,
        vlan: None,
        table_fd: false,
    };
    for at in [0, 4096] {
        let base = rings.at::<[u64; 2]>(at, RING_BYTES / 16).cast();
        // SAFETY: within the mapping, which lives until after the use.
        unsafe { Ring::new(base, LOG2_SIZE) }.initialize();
    }
    let mut nic: Box<dyn Nic> = Box::new(MemifNic::new(info, 0, bell(), RingSizes::default()));
    let link = link(plan, fds).unwrap().pop().map(Box::new);
    nic.update(QueueUpdate(Change::Memif(link)), &memory, &mut rx, &mut tx).expect("taken");
    Victim { nic, memory, rx, tx, rings, queued: VecDeque::new() }
}

impl Victim {
    fn poke(&self, ring: usize, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let to = self.rings.at::<u8>((ring * 4096 + (at + i) % RING_BYTES) as u64, 1);
            // SAFETY: in bounds and mapped; the other side is this thread too.
            unsafe { to.write_volatile(*byte) };
        }
    }

    fn work(&mut self, send: usize) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        self.nic.receive(&self.memory, &mut self.rx, 64, &mut out);
        prop_assert!(out.iter().filter(|packet| !packet.more).count() <= 64);
        prop_assert!(out.last().is_none_or(|packet| !packet.more), "all of a frame");
        for frame in out.split_inclusive(|packet| !packet.more) {
            let bytes: usize = frame.iter().map(|packet| packet.mbuf.len()).sum();
            prop_assert!(bytes <= partial::FRAME_BYTES_MAX);
        }
        for packet in out {
            prop_assert!(packet.mbuf.offset() + packet.mbuf.len() <= ix_mem::FRAME_BYTES);
            prop_assert!(packet.mbuf.len() > 0);
            self.rx.put(packet.mbuf);
        }
        for i in 0..send {
            let Some(mut mbuf) = self.tx.take() else { break };
            mbuf.set_range(HEADROOM_BYTES, 60 + i * 100 % 1400);
            self.queued.push_back(mbuf);
        }
        self.nic.transmit(&self.memory, &mut self.tx, &mut self.queued);
        self.nic.kick(&self.memory, &mut self.tx);
        self.nic.arm();
        let (rx, tx) = self.nic.frames_held();
        prop_assert_eq!(self.rx.in_use(), rx as isize);
        prop_assert_eq!(self.tx.in_use(), (tx + self.queued.len()) as isize);
        Ok(())
    }
}

/// What a peer writes and where: anywhere, an index, or a plausible descriptor.
fn any_poke() -> impl Strategy<Value = (usize, usize, Vec<u8>)> {
    let near = (0..64u16).prop_map(|n| n.to_ne_bytes().to_vec());
    let index = prop_oneof![near, any::<u16>().prop_map(|n| n.to_ne_bytes().to_vec())];
    let length = prop_oneof![0..2000u32, Just(BUFFERS_BYTES as u32), any::<u32>()];
    let offset = prop_oneof![0..BUFFERS_BYTES as u32 + 100, any::<u32>()];
    let desc = (0..2u16, 0..4u16, length, offset).prop_map(|(flags, region, length, offset)| {
        let mut bytes = flags.to_ne_bytes().to_vec();
        bytes.extend(region.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(offset.to_ne_bytes());
        bytes
    });
    let desc_at = (0..1usize << LOG2_SIZE).prop_map(|slot| RING_HEADER_BYTES + DESC_BYTES * slot);
    let poke = prop_oneof![
        3 => (prop_oneof![Just(6usize), Just(64)], index),
        6 => (desc_at, desc),
        1 => (0..RING_BYTES, prop::collection::vec(any::<u8>(), 1..40)),
    ];
    (0..2usize, poke).prop_map(|(ring, (at, bytes))| (ring, at, bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_frame_is_lost_or_doubled_whatever_the_peer_writes(
        server in any::<bool>(),
        steps in prop::collection::vec(
            (prop::collection::vec(any_poke(), 0..40), 0..20usize), 1..20),
    ) {
        let mut victim = victim(if server { MemifRole::Server } else { MemifRole::Client });
        for (pokes, send) in steps {
            for (ring, at, bytes) in pokes {
                victim.poke(ring, at, &bytes);
            }
            victim.work(send)?;
        }
        victim.nic.close(&mut victim.rx, &mut victim.tx);
        for mbuf in std::mem::take(&mut victim.queued) {
            victim.tx.put(mbuf);
        }
        prop_assert_eq!((victim.rx.in_use(), victim.tx.in_use()), (0, 0));
    }
}

#[test]
fn chains_of_buffers_are_frames() {
    let mut victim = victim(MemifRole::Server);
    let desc = |flags: u16, length: u32, offset: u32| {
        let mut bytes = flags.to_ne_bytes().to_vec();
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        bytes.extend(offset.to_ne_bytes());
        bytes
    };
    // A frame of three buffers, one that points outside, one too long in sum, a plain one.
    let descs = [
        (1, 100, 0),
        (1, 200, 4096),
        (0, 300, 8192),
        (1, 60, 0),
        (0, 60, BUFFERS_BYTES as u32 - 59),
        (1, 40_000, 0),
        (0, 25_550, 0),
        (0, 64, 0),
    ];
    for (i, (flags, length, offset)) in descs.into_iter().enumerate() {
        victim.poke(0, RING_HEADER_BYTES + DESC_BYTES * i, &desc(flags, length, offset));
    }
    victim.poke(0, 6, &8u16.to_ne_bytes());
    let mut out = Vec::new();
    victim.nic.receive(&victim.memory, &mut victim.rx, 64, &mut out);
    let lengths: Vec<_> = out.iter().map(|packet| packet.mbuf.len()).collect();
    assert_eq!((lengths, victim.nic.drops().rx_invalid), (vec![600, 64], 2));

    // Our frame of 500 bytes into buffers of 200: three of them.
    for i in 0..3 {
        victim.poke(1, RING_HEADER_BYTES + DESC_BYTES * i, &desc(0, 200, 1000 * i as u32));
    }
    victim.poke(1, 6, &3u16.to_ne_bytes());
    let mut mbuf = victim.tx.take().unwrap();
    mbuf.set_range(HEADROOM_BYTES, 500);
    victim.queued.push_back(mbuf);
    victim.nic.transmit(&victim.memory, &mut victim.tx, &mut victim.queued);
    victim.nic.kick(&victim.memory, &mut victim.tx);
    let base = victim.rings.at::<[u64; 2]>(4096, RING_BYTES / 16).cast();
    // SAFETY: within the mapping, which lives until after the use.
    let ring = unsafe { Ring::new(base, LOG2_SIZE) };
    let filled: Vec<_> = (0..3).map(|i| ring.desc_length(i)).collect();
    assert_eq!((ring.tail(), filled), (3, vec![(1, 200), (1, 200), (0, 100)]));
    assert_eq!(victim.tx.in_use(), 0);
}
