//! Reads frames of unknown length into frames of 2 KiB.
//!
//! The length of the next frame is not known before it is read, and what does not fit is lost.
//! Where frames can be long, a short one is therefore read into an area for the longest and copied
//! from there, which costs less than offering several buffers. After a long frame, each read offers
//! as many mbufs as the last frames needed, with the area behind them, so that a stream of long
//! frames is read directly to where it stays.
use super::vnet;
use crate::{DeviceDrops, RxPacket};
use ix_mem::{HEADROOM_BYTES, Mbuf, PacketMemory, Pool, ROOM_BYTES};
use std::fs::File;
use std::io::{self, IoSliceMut, Read};

/// Bytes of an Ethernet header and two VLAN tags.
const LINK_BYTES: usize = 14 + 8;
/// Longest IP packet, with these.
const FRAME_BYTES_MAX: usize = 65_535 + LINK_BYTES;
/// Mbufs for the longest frame.
const MBUFS_MAX: usize = FRAME_BYTES_MAX.div_ceil(ROOM_BYTES);

/// The buffers that a queue's frames are read into.
pub(super) struct Receiver {
    /// Bytes before each frame.
    vnet_bytes: usize,
    /// Longest accepted frame. There is room for more: a frame that fills all of it may have been
    /// cut.
    len_max: usize,
    /// Mbufs for the next frames; the last one is filled first.
    stock: Vec<Mbuf>,
    /// How many of them to offer: as many as recent long frames needed; 0 after short ones.
    offer: usize,
    /// Holds what does not fit into the offered mbufs; empty if all frames fit into one.
    spill: Vec<u8>,
}

/// The result of a read.
pub(super) enum Outcome {
    /// Packets of one frame were appended.
    Frame,
    /// A frame was lost and counted.
    Lost,
    /// No mbuf was free.
    NoMbuf,
}

impl Receiver {
    /// A receiver for a queue with or without `virtio_net_hdr`, of an interface with this MTU.
    pub fn new(vnet: bool, mtu: usize) -> Receiver {
        let stock = Vec::with_capacity(MBUFS_MAX);
        match vnet || mtu + LINK_BYTES >= ROOM_BYTES {
            true => {
                let vnet_bytes = if vnet { vnet::HEADER_BYTES } else { 0 };
                let len_max = FRAME_BYTES_MAX;
                let spill = vec![0; vnet_bytes + len_max + 1];
                Receiver { vnet_bytes, len_max, stock, offer: 0, spill }
            }
            false => {
                let (len_max, spill) = (ROOM_BYTES - 1, Vec::new());
                Receiver { vnet_bytes: 0, len_max, stock, offer: 1, spill }
            }
        }
    }

    /// Number of mbufs held for frames.
    pub fn held(&self) -> usize {
        self.stock.len()
    }

    /// Returns the held mbufs.
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
        // At least one, so that no frame is read that must be dropped.
        while self.stock.len() < self.offer.max(1) {
            let Some(mbuf) = pool.take() else { break };
            self.stock.push(mbuf);
        }
        if self.stock.is_empty() {
            return Ok(Outcome::NoMbuf);
        }
        let offered = self.offer.min(self.stock.len());
        let len = self.read_into(queue, memory, offered)?;
        let Some(frame_len) = len.checked_sub(self.vnet_bytes).filter(|len| *len <= self.len_max)
        else {
            drops.rx_invalid += 1;
            return Ok(Outcome::Lost);
        };
        let needed = frame_len.div_ceil(ROOM_BYTES).max(1);
        if !self.spill.is_empty() {
            let usual = self.offer * 7 / 8;
            self.offer = if needed == 1 { usual } else { usual.max(needed) };
        }
        if self.stock.len() + pool.free() < needed {
            drops.rx_overrun += 1;
            return Ok(Outcome::Lost);
        }
        self.hand_over(memory, pool, offered, frame_len, out);
        Ok(Outcome::Frame)
    }

    /// Reads by one system call into the offered mbufs and the spill area; returns the number of
    /// bytes.
    fn read_into(
        &mut self,
        mut queue: &File,
        memory: &PacketMemory,
        offered: usize,
    ) -> io::Result<usize> {
        let Receiver { vnet_bytes, stock, spill, .. } = self;
        if offered == 0 {
            return queue.read(spill);
        }
        let mut front = *vnet_bytes;
        let mut areas = stock.iter_mut().rev().take(offered).map(|mbuf| {
            mbuf.set_range(HEADROOM_BYTES - front, ROOM_BYTES + front);
            front = 0;
            mbuf.bytes_mut(memory)
        });
        if spill.is_empty() {
            return areas.next().map_or(Ok(0), |area| queue.read(area));
        }
        let mut areas = areas.chain([&mut spill[..]]);
        let mut parts: [IoSliceMut<'_>; MBUFS_MAX + 1] =
            std::array::from_fn(|_| IoSliceMut::new(areas.next().unwrap_or(&mut [])));
        queue.read_vectored(&mut parts[..=offered])
    }

    /// Makes packets of a frame that was read. Stock and pool must have enough mbufs for it.
    fn hand_over(
        &mut self,
        memory: &PacketMemory,
        pool: &mut Pool,
        offered: usize,
        frame_len: usize,
        out: &mut Vec<RxPacket>,
    ) {
        let mut left = frame_len;
        // The `virtio_net_hdr` is before the frame, wherever that begins.
        let mut spilled = if offered == 0 { self.vnet_bytes } else { 0 };
        for i in 0.. {
            let Some(mut mbuf) = self.stock.pop().or_else(|| pool.take()) else { return };
            let len = left.min(ROOM_BYTES);
            mbuf.set_range(HEADROOM_BYTES, len);
            if i >= offered {
                mbuf.bytes_mut(memory).copy_from_slice(&self.spill[spilled..spilled + len]);
                spilled += len;
            }
            left -= len;
            out.push(RxPacket { mbuf, more: left > 0 });
            if left == 0 {
                return;
            }
        }
    }
}
