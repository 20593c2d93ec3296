//! Packets from one of our addresses to another, or to itself. No device returns what it sends, so
//! they leave the devices' queues before step 6 and are received in the same turn, in frames that
//! the application may read.
//!
//! The next hop to an own address is the device's own Ethernet address
//! ([`crate::neighbors::Neighbors::resolve`]), which no other packet is sent to.
use crate::context::Context;
use crate::observe::metrics::LocalDrop;
use crate::ports::Port;
use crate::receive::pressure::in_devices;
use ix_mem::Mbuf;
use ix_nic::RxPacket;
use ix_wire::{IpAddr, ethernet};
use std::sync::atomic::Ordering;

/// Most buffers of such packets that wait; later packets are lost, as in a network card.
const WAITING_MAX: usize = 1024;

/// Where an Ethernet frame has the addresses of IPv4, and of IPv6.
const ADDRESSES_V4: (usize, usize) = (26, 30);
const ADDRESSES_V6: (usize, usize) = (22, 38);

impl Context {
    /// Whether such packets were ever sent.
    #[inline]
    pub(crate) fn loops(&self) -> bool {
        self.shared.loops.load(Ordering::Relaxed)
    }

    /// A packet to an own address is about to be sent.
    pub(crate) fn begin_to_loop(&self) {
        if !self.loops() {
            self.shared.loops.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the packets to own addresses out of the devices' queues, to be received.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_looped(&mut self, ports: &mut [Port]) {
        for index in 0..ports.len() {
            let passed = ports[index].passed;
            for _ in passed..ports[index].queue.len() {
                let Some(mbuf) = ports[index].queue.remove(passed) else { break };
                match self.enters(&mbuf, ports.len()) {
                    None => ports[index].queue.push_back(mbuf),
                    Some(to) => {
                        match self.may_receive(ports, &mbuf) {
                            true => self.receive_copy(to, ports[usize::from(to)].info.mac, &mbuf),
                            false => self.metrics.drop_local(LocalDrop::NoRxFrame),
                        }
                        self.tx_pool.put_frame(&self.shared.memory, mbuf);
                    }
                }
            }
        }
    }

    /// The device on which a packet comes in that never leaves; `None`: it leaves.
    fn enters(&self, mbuf: &Mbuf, devices: usize) -> Option<u8> {
        let frame = mbuf.bytes(&self.shared.memory);
        if frame.get(..6)? != frame.get(6..12)? {
            return None;
        }
        let ((src, dst), len) = match u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]) {
            ethernet::TYPE_IPV4 => (ADDRESSES_V4, 4),
            ethernet::TYPE_IPV6 => (ADDRESSES_V6, 16),
            _ => return None,
        };
        let address = |at: usize| {
            let octets = frame.get(at..at + len)?;
            match len {
                4 => octets.first_chunk().map(|octets| IpAddr::v4(*octets)),
                _ => octets.first_chunk().map(|octets| IpAddr(*octets)),
            }
        };
        let (src, dst) = (address(src)?, address(dst)?);
        let is_ours = self.is_local(src) && self.is_local(dst);
        is_ours.then(|| self.shared.config.device_of(dst, devices))
    }

    /// Whether frames can be spared for a copy: a quarter stays for what devices receive. Frames
    /// that devices hold count, as in [`crate::receive::pressure`].
    fn may_receive(&self, ports: &[Port], sent: &Mbuf) -> bool {
        let buffers = sent.buffers(&self.shared.memory);
        let (free, owned) = (self.rx_pool.free(), self.rx_pool.owned());
        let is_much =
            || free >= owned / 4 || free >= owned / 16 && free + in_devices(ports) >= owned / 4;
        self.looped.len() + buffers <= WAITING_MAX && free >= buffers && is_much()
    }

    /// Puts a copy where the thread receives it. A frame in several buffers is one there as well.
    fn receive_copy(&mut self, port: u8, mac: [u8; 6], sent: &Mbuf) {
        let Context { rx_pool, shared, looped, .. } = self;
        let memory = &shared.memory;
        let mut left = sent.frame_len(memory);
        for (index, piece) in sent.pieces(memory).enumerate() {
            let Some(mut mbuf) = rx_pool.take() else { break };
            mbuf.set_range(if index == 0 { sent.offset() } else { 0 }, piece.len());
            let copy = mbuf.bytes_mut(memory);
            copy.copy_from_slice(piece);
            if index == 0 {
                // As if the device had it from itself, so that what answers it comes back as well.
                copy[..6].copy_from_slice(&mac);
                copy[6..12].copy_from_slice(&mac);
            }
            left -= piece.len();
            looped.push_back((port, RxPacket { mbuf, more: left > 0 }));
        }
    }
}
