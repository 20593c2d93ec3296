//! Reading frames of unknown length into frames of 2 KiB.
//!
//! Nobody says how long the next frame is before it is read, and what has no room is lost. So each
//! read offers as many mbufs as the frames before it needed, and behind them a spill area for
//! the longest frame there is: a stream of short frames costs one mbuf and two vectors a read, one
//! of long frames is read straight to where it stays, and only the first long frames after short
//! ones are copied.
use super::vnet;
use crate::{DeviceDrops, RxPacket};
use ix_mem::{FRAME_BYTES, HEADROOM_BYTES, Mbuf, PacketMemory, Pool};
use std::fs::File;
use std::io::{self, IoSliceMut, Read};

/// Bytes of a frame that one mbuf takes.
pub(super) const FRAME_ROOM: usize = FRAME_BYTES - HEADROOM_BYTES;
/// Longest IP packet, with Ethernet header and two VLAN tags.
const FRAME_BYTES_MAX: usize = 65_535 + 14 + 8;
/// Mbufs for the longest frame.
const MBUFS_MAX: usize = FRAME_BYTES_MAX.div_ceil(FRAME_ROOM);

/// What a queue's frames are read into.
pub(super) struct Receiver {
    /// Bytes in front of each frame.
    vnet_bytes: usize,
    /// Longest frame that is taken. There is room for more: a frame that fills it may have been cut.
    len_max: usize,
    /// Mbufs for frames to come; the last is the first to be filled.
    stock: Vec<Mbuf>,
    /// How many of them to offer: as many as long frames need that came lately.
    offer: usize,
    /// Takes what is longer than the offered mbufs; empty where frames fit into one.
    spill: Vec<u8>,
}

/// What came of a read.
pub(super) enum Outcome {
    /// Packets of one frame were appended.
    Frame,
    /// A frame was lost and counted.
    Lost,
    /// There is no mbuf to read into.
    NoMbuf,
}

impl Receiver {
    /// For a queue with or without `virtio_net_hdr`.
    pub fn new(vnet: bool) -> Receiver {
        let (vnet_bytes, len_max, spill) = match vnet {
            true => (vnet::HEADER_BYTES, FRAME_BYTES_MAX, vec![0; FRAME_BYTES_MAX]),
            false => (0, FRAME_ROOM - 1, Vec::new()),
        };
        Receiver { vnet_bytes, len_max, stock: Vec::with_capacity(MBUFS_MAX), offer: 1, spill }
    }

    /// Mbufs that wait here for frames.
    pub fn held(&self) -> usize {
        self.stock.len()
    }

    /// Gives them back.
    pub fn close(&mut self, pool: &mut Pool) {
        self.stock.drain(..).for_each(|mbuf| pool.put(mbuf));
    }

    /// Reads one frame.
    pub fn read(
        &mut self,
        queue: &File,
        memory: &PacketMemory,
        pool: &mut Pool,
        out: &mut Vec<RxPacket>,
        drops: &mut DeviceDrops,
    ) -> io::Result<Outcome> {
        while self.stock.len() < self.offer {
            let Some(mbuf) = pool.take() else { break };
            self.stock.push(mbuf);
        }
        let offered = self.offer.min(self.stock.len());
        let len = match offered {
            0 => return Ok(Outcome::NoMbuf),
            1 => self.read_parts::<2>(queue, memory, offered)?,
            _ => self.read_parts::<{ MBUFS_MAX + 1 }>(queue, memory, offered)?,
        };
        let Some(frame_len) = len.checked_sub(self.vnet_bytes).filter(|len| *len <= self.len_max)
        else {
            drops.rx_invalid += 1;
            return Ok(Outcome::Lost);
        };
        let needed = frame_len.div_ceil(FRAME_ROOM).max(1);
        self.offer = needed.max(self.offer * 7 / 8);
        while self.stock.len() < needed {
            let Some(mbuf) = pool.take() else {
                drops.rx_overrun += 1;
                return Ok(Outcome::Lost);
            };
            // Below those that were offered and filled.
            self.stock.insert(0, mbuf);
        }
        self.hand_over(memory, offered, frame_len, needed, out);
        Ok(Outcome::Frame)
    }

    /// One system call, into the offered mbufs and the spill area; answers how many bytes came.
    fn read_parts<const PARTS: usize>(
        &mut self,
        mut queue: &File,
        memory: &PacketMemory,
        offered: usize,
    ) -> io::Result<usize> {
        let Receiver { vnet_bytes, stock, spill, .. } = self;
        let mut front = *vnet_bytes;
        let mbufs = stock.iter_mut().rev().take(offered).map(|mbuf| {
            mbuf.set_range(HEADROOM_BYTES - front, FRAME_ROOM + front);
            front = 0;
            mbuf.bytes_mut(memory)
        });
        let mut areas = mbufs.chain([&mut spill[..]]);
        let mut parts: [IoSliceMut<'_>; PARTS] =
            std::array::from_fn(|_| IoSliceMut::new(areas.next().unwrap_or(&mut [])));
        queue.read_vectored(&mut parts[..=offered])
    }

    /// Makes packets of a frame that was read. The stock has enough mbufs for it.
    fn hand_over(
        &mut self,
        memory: &PacketMemory,
        offered: usize,
        frame_len: usize,
        needed: usize,
        out: &mut Vec<RxPacket>,
    ) {
        let (mut left, mut spilled) = (frame_len, 0);
        for i in 0..needed {
            let Some(mut mbuf) = self.stock.pop() else { return };
            let len = left.min(FRAME_ROOM);
            mbuf.set_range(HEADROOM_BYTES, len);
            if i >= offered {
                mbuf.bytes_mut(memory).copy_from_slice(&self.spill[spilled..spilled + len]);
                spilled += len;
            }
            left -= len;
            out.push(RxPacket { mbuf, more: left > 0 });
        }
    }
}
