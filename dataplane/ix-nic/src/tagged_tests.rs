//! A device in a VLAN, over one that keeps its frames in memory.
use super::*;
use crate::{NicKind, Steering, copy_frame};
use ix_mem::{HEADROOM_BYTES, MemoryFds, ROOM_BYTES, Sizes};
use std::sync::Mutex;

const VLAN: u16 = 5;

/// What the link has, and how many frames it takes before it is full.
#[derive(Default)]
struct Link {
    arriving: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    room: usize,
}

struct LinkNic {
    info: NicInfo,
    link: Arc<Mutex<Link>>,
}

impl Nic for LinkNic {
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
        let (before, mut link) = (out.len(), self.link.lock().expect("no panic"));
        while out.len() - before < max {
            let Some(frame) = link.arriving.pop_front() else { break };
            copy_frame(&frame, memory, rx_pool, out);
        }
        out.len() - before
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        let mut link = self.link.lock().expect("no panic");
        while link.sent.len() < link.room {
            let Some(mbuf) = packets.pop_front() else { break };
            link.sent.push(mbuf.pieces(memory).collect::<Vec<_>>().concat());
            tx_pool.put_frame(memory, mbuf);
        }
    }

    fn kick(&mut self, _: &PacketMemory, _: &mut Pool) {}

    fn frames_held(&self) -> (usize, usize) {
        (0, 0)
    }

    fn doorbell(&self) -> Option<RawFd> {
        None
    }

    fn drops(&mut self) -> DeviceDrops {
        DeviceDrops { rx_overrun: 3, ..DeviceDrops::default() }
    }

    fn close(&mut self, _: &mut Pool, _: &mut Pool) {}
}

struct Rig {
    nic: TaggedNic,
    link: Arc<Mutex<Link>>,
    memory: PacketMemory,
    rx: Pool,
    tx: Pool,
}

fn rig() -> Rig {
    let sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 0 };
    let fds = MemoryFds::new(sizes).expect("memory");
    let memory = PacketMemory::map(fds.as_fds(), sizes).expect("mapped");
    // SAFETY: the only pools of this memory.
    let (rx, tx) = unsafe { (Pool::new(memory.rx_frames()), Pool::new(memory.tx_frames())) };
    let vlan = VlanId::new(VLAN).expect("a number");
    let info = NicInfo {
        kind: NicKind::Sim,
        name: "test".into(),
        mode: String::new(),
        queues: 1,
        mac: [2; 6],
        mtu: 1500,
        vlan: Some(vlan),
        steering: Steering::Software,
        partial_checksums: false,
        shared_frames: false,
        table_fd: false,
    };
    let link = Arc::new(Mutex::new(Link { room: usize::MAX, ..Link::default() }));
    let inner = Box::new(LinkNic { info, link: link.clone() });
    Rig { nic: TaggedNic::new(inner, vlan), link, memory, rx, tx }
}

/// A frame of this length without a tag.
fn plain(len: usize, seed: u8) -> Vec<u8> {
    let payload = (0..len - 14).map(|i| seed.wrapping_add(i as u8));
    [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0].into_iter().chain(payload).collect()
}

fn tagged(frame: &[u8], kind: [u8; 2], number: u16) -> Vec<u8> {
    [&frame[..12], &kind, &number.to_be_bytes(), &frame[12..]].concat()
}

impl Rig {
    fn receive(&mut self, frames: Vec<Vec<u8>>, max: usize) -> (usize, Vec<Vec<u8>>) {
        self.link.lock().expect("no panic").arriving.extend(frames);
        let mut out = Vec::new();
        let taken = self.nic.receive(&self.memory, &mut self.rx, max, &mut out);
        let (mut got, mut frame) = (Vec::new(), Vec::new());
        for RxPacket { mbuf, more } in out {
            frame.extend_from_slice(mbuf.bytes(&self.memory));
            self.rx.put(mbuf);
            if !more {
                got.push(std::mem::take(&mut frame));
            }
        }
        assert!(frame.is_empty(), "all of a frame");
        assert_eq!(self.rx.in_use(), 0, "no frame leaks");
        (taken, got)
    }

    fn queue(&mut self, frames: &[Vec<u8>]) -> VecDeque<Mbuf> {
        let made = frames.iter().map(|frame| {
            let mut mbuf = self.tx.take().expect("a frame");
            mbuf.set_range(HEADROOM_BYTES, frame.len());
            mbuf.bytes_mut(&self.memory).copy_from_slice(frame);
            mbuf
        });
        made.collect()
    }
}

#[test]
fn only_frames_of_the_vlan_come_in_and_without_a_tag() {
    let mut rig = rig();
    let (a, b) = (plain(60, 1), plain(3 * ROOM_BYTES, 7));
    let ours = |frame: &[u8]| tagged(frame, [0x81, 0], VLAN);
    let foreign = [
        tagged(&a, [0x81, 0], VLAN + 1),
        tagged(&a, [0x81, 0], 0),
        tagged(&a, [0x81, 0], 4095),
        tagged(&a, [0x88, 0xa8], VLAN),
        tagged(&b, [0x81, 0], 6),
        a.clone(),
        b.clone(),
        ours(&a)[..17].to_vec(),
        vec![0],
    ];
    let mut all = vec![ours(&a)];
    for frame in &foreign {
        all.extend([frame.clone(), ours(&b)]);
    }
    all.push(tagged(&a, [0x81, 0], 0xe000 | VLAN));
    let (_, got) = rig.receive(all, 500);
    let expected = [vec![a.clone()], vec![b; foreign.len()], vec![a]].concat();
    assert_eq!(got, expected);
    let drops = DeviceDrops { rx_overrun: 3, rx_other_vlan: 9, ..DeviceDrops::default() };
    assert_eq!(rig.nic.drops(), drops);
}

/// Who polls must know that more may wait, even if all that was taken is dropped.
#[test]
fn what_is_dropped_was_taken() {
    let mut rig = rig();
    let (taken, got) = rig.receive(vec![plain(60, 1); 10], 4);
    assert_eq!((taken, got.len()), (4, 0));
    let (taken, got) = rig.receive(vec![tagged(&plain(60, 1), [0x81, 0], VLAN)], 500);
    assert_eq!((taken, got.len()), (7, 1));
}

#[test]
fn what_has_no_room_stays_without_a_tag_and_in_order() {
    let mut rig = rig();
    let frames: Vec<Vec<u8>> = (0..200).map(|i| plain(60 + i, i as u8)).collect();
    let mut queue = rig.queue(&frames);
    for (room, left) in [(100, 100), (100, 100), (101, 99), (200, 0)] {
        rig.link.lock().expect("no panic").room = room;
        rig.nic.transmit(&rig.memory, &mut rig.tx, &mut queue);
        let waiting: Vec<&[u8]> = queue.iter().map(|mbuf| mbuf.bytes(&rig.memory)).collect();
        assert_eq!(waiting, frames[200 - left..]);
    }
    let sent = std::mem::take(&mut rig.link.lock().expect("no panic").sent);
    let expected: Vec<Vec<u8>> =
        frames.iter().map(|frame| tagged(frame, [0x81, 0], VLAN)).collect();
    assert_eq!(sent, expected);
    assert_eq!(rig.tx.in_use(), 0);
}

#[test]
fn a_chain_gets_its_tag_in_the_first_buffer() {
    let mut rig = rig();
    let frame = plain(5000, 3);
    let mut mbuf = rig.tx.take().expect("a frame");
    mbuf.set_range(HEADROOM_BYTES, ROOM_BYTES);
    assert!(rig.tx.extend(&rig.memory, &mut mbuf, frame.len() - ROOM_BYTES));
    mbuf.write_at(&rig.memory, 0, &frame);
    rig.nic.transmit(&rig.memory, &mut rig.tx, &mut VecDeque::from([mbuf]));
    let sent = std::mem::take(&mut rig.link.lock().expect("no panic").sent);
    assert_eq!(sent, [tagged(&frame, [0x81, 0], VLAN)]);
    assert_eq!(rig.tx.in_use(), 0);
}
