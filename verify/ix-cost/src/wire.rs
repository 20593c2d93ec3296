//! A wire between two dataplanes in one process: bounded, ordered, without loss or allocation.
use ix_mem::spsc::{Consumer, Producer, ring};
use ix_mem::{FRAME_BYTES, Mbuf, PacketMemory, Pool};
use ix_nic::{Nic, NicInfo, NicKind, RxPacket, Steering, copy_frame};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Frames in one direction of the wire.
const SLOTS: usize = 4096;

/// A frame on the wire. Boxes circulate: full ones one way, empty ones back.
struct Frame {
    len: usize,
    bytes: [u8; FRAME_BYTES],
}

/// One end of the wire.
pub struct WireEnd {
    info: NicInfo,
    incoming: Consumer<Box<Frame>>,
    emptied: Producer<Box<Frame>>,
    empty: Consumer<Box<Frame>>,
    outgoing: Producer<Box<Frame>>,
}

/// Both ends of a wire; their Ethernet addresses are `macs`.
pub fn wire(macs: [[u8; 6]; 2]) -> [WireEnd; 2] {
    let [(a_to_b, from_a), (b_to_a, from_b)] = [ring(SLOTS), ring(SLOTS)];
    let [(to_a, for_a), (to_b, for_b)] = [empty_frames(), empty_frames()];
    let end = |mac, incoming, emptied, empty, outgoing| {
        let info = NicInfo {
            kind: NicKind::Sim,
            name: "wire".to_owned(),
            mode: String::new(),
            queues: 1,
            mac,
            mtu: 1500,
            steering: Steering::Software,
            partial_checksums: false,
            shared_frames: false,
            vlan: None,
            table_fd: false,
        };
        WireEnd { info, incoming, emptied, empty, outgoing }
    };
    [end(macs[0], from_b, to_b, for_a, a_to_b), end(macs[1], from_a, to_a, for_b, b_to_a)]
}

fn empty_frames() -> (Producer<Box<Frame>>, Consumer<Box<Frame>>) {
    let (mut give, take) = ring(SLOTS);
    for _ in 0..SLOTS {
        let frame = Box::new(Frame { len: 0, bytes: [0; FRAME_BYTES] });
        assert!(give.push(frame).is_ok(), "a ring of SLOTS has SLOTS slots");
    }
    (give, take)
}

impl Nic for WireEnd {
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
        let mut received = 0;
        while received < max && rx_pool.free() > 0 {
            let Some(frame) = self.incoming.pop() else { break };
            copy_frame(&frame.bytes[..frame.len], memory, rx_pool, out);
            received += 1;
            // There are as many boxes as slots, so there is room.
            let _ = self.emptied.push(frame);
        }
        received
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        while !packets.is_empty() {
            let Some(mut frame) = self.empty.pop() else { break };
            let Some(mbuf) = packets.pop_front() else { break };
            frame.len = mbuf.len();
            frame.bytes[..mbuf.len()].copy_from_slice(mbuf.bytes(memory));
            tx_pool.put(mbuf);
            let _ = self.outgoing.push(frame);
        }
    }

    fn kick(&mut self, _memory: &PacketMemory, _tx_pool: &mut Pool) {}

    fn frames_held(&self) -> (usize, usize) {
        (0, 0)
    }

    fn doorbell(&self) -> Option<RawFd> {
        None
    }

    fn close(&mut self, _rx_pool: &mut Pool, _tx_pool: &mut Pool) {}
}
