//! One queue of an interface: an AF_XDP socket with its rings.
//!
//! The kernel has the devices' frames only ([`PacketMemory::limit_devices`]): addresses in rings
//! count from the first of them. A packet in another frame is sent from a copy, and received
//! packets are moved to other frames while few of the devices' are free.
use super::describe::describe;
use super::socket::Socket;
use crate::device::RingSizes;
use crate::error::AttachError;
use crate::frames::FrameSet;
use crate::{DeviceDrops, Fence, NEVER_RINGS, RxPacket, XdpBind, XdpFeatures};
use ix_mem::{FRAME_BYTES, Mbuf, PacketMemory, Pool};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Frames for copies of packets that are in frames which the kernel does not have.
const COPIES: usize = 32;

/// A queue and its socket.
pub(super) struct Queue {
    mode: String,
    /// `None` after [`Queue::close`].
    socket: Option<Socket>,
    sizes: RingSizes,
    /// Most receive frames that it holds.
    most: usize,
    /// A received frame may be in several packets.
    frags: bool,
    features: XdpFeatures,
    /// The frames that the kernel has.
    devices: Range<u32>,
    /// Of them, for copies of packets to be sent: no pool has them, so that a packet never waits
    /// for frames of packets behind it.
    copies: Vec<Mbuf>,
    /// How many there are, with those that are being sent; 0: the kernel has all frames.
    copies_made: usize,
    /// How many copies are being sent.
    copies_sent: usize,
    rx_held: FrameSet,
    tx_held: FrameSet,
    /// The transmit ring has packets that the kernel may not have seen.
    kick_due: bool,
    /// The kernel has reported that the link is down or the interface is gone.
    down: bool,
    counted: DeviceDrops,
}

impl Queue {
    /// Binds the socket to queue `number` of the interface, for packets of `mtu` bytes, a tag
    /// included. Its packet memory is that of `other`, if there is one, else `memory`, which is
    /// registered. `sizes` are powers of two. The queue has no receive frames yet.
    pub fn bind(
        name: &str,
        (bind, mtu): (XdpBind, usize),
        number: usize,
        fd: OwnedFd,
        memory: &PacketMemory,
        other: Option<&Queue>,
        sizes: RingSizes,
    ) -> Result<Queue, AttachError> {
        let other = other.and_then(|other| Some((other.socket.as_ref()?, other.frags)));
        let (socket, mode, frags) = match other {
            None => {
                let socket = Socket::new(fd, Some((memory, bind.features)), sizes, name)?;
                let bound = socket.bind((bind, mtu), number, name)?;
                let refused = match bound.refused.is_empty() {
                    true => String::new(),
                    false => format!(" ({})", bound.refused),
                };
                let wakeup = if bind.features.need_wakeup { ", need-wakeup" } else { "" };
                let mode = format!("{}{wakeup}{refused}", bound.attempt.text());
                (socket, mode, bound.attempt.frags)
            }
            Some((other, frags)) => {
                let socket = Socket::new(fd, None, sizes, name)?;
                socket.bind_beside(other.fd.as_fd(), bind.ifindex, number, name)?;
                (socket, String::new(), frags)
            }
        };
        let frames = memory.bytes() / FRAME_BYTES;
        Ok(Queue {
            mode,
            socket: Some(socket),
            sizes,
            most: sizes.fill as usize,
            frags,
            features: bind.features,
            devices: memory.device_frames(),
            copies: Vec::new(),
            copies_made: if memory.device_frames().end < memory.tx_frames().end {
                COPIES
            } else {
                0
            },
            copies_sent: 0,
            rx_held: FrameSet::new(frames),
            tx_held: FrameSet::new(frames),
            kick_due: false,
            down: false,
            counted: DeviceDrops::default(),
        })
    }

    /// Gives it its first receive frames; it never holds more than `most`.
    pub fn begin(&mut self, rx_pool: &mut Pool, most: usize) {
        self.most = most.clamp(1, self.sizes.fill as usize);
        self.refill(rx_pool);
    }

    /// The mode in which it is bound, for people.
    pub fn mode(&self) -> &str {
        &self.mode
    }

    /// Makes a packet of a receive descriptor; `None` if the descriptor names no frame of this
    /// device.
    fn take_received(&mut self, desc: libc::xdp_desc, rx_pool: &mut Pool) -> Option<RxPacket> {
        let (frame, offset) = split(desc.addr, self.devices.start);
        if !self.rx_held.remove(frame) {
            self.counted.rx_invalid += 1;
            return None;
        }
        // SAFETY: the frame was in `rx_held`: we gave it to the device, it gives it back now, and
        // having left the set it cannot come back a second time.
        let mut mbuf = unsafe { Mbuf::from_frame(frame as u32) };
        if offset + desc.len as usize > FRAME_BYTES {
            self.counted.rx_invalid += 1;
            rx_pool.put(mbuf);
            return None;
        }
        mbuf.set_range(offset, desc.len as usize);
        Some(RxPacket { mbuf, more: desc.options & libc::XDP_PKT_CONTD != 0 })
    }

    /// Offers receive frames to the device.
    fn refill(&mut self, rx_pool: &mut Pool) {
        let Some(socket) = &mut self.socket else { return };
        let mut given = false;
        while self.rx_held.count() < self.most && socket.fill.room(1) > 0 {
            let Some(mbuf) = rx_pool.take_within(&self.devices) else { break };
            let frame = mbuf.into_frame();
            self.rx_held.insert(frame);
            socket.fill.push(u64::from(frame - self.devices.start) * FRAME_BYTES as u64);
            given = true;
        }
        if given {
            socket.fill.submit();
        }
        if socket.fill.needs_wakeup() {
            socket.wake_rx();
        }
    }

    /// Takes back the frames of sent packets.
    fn reap(&mut self, tx_pool: &mut Pool) {
        let Some(socket) = &mut self.socket else { return };
        let n = socket.completion.waiting();
        for i in 0..n {
            let (frame, _) = split(socket.completion.peek(i), self.devices.start);
            if self.tx_held.remove(frame) {
                // SAFETY: the frame was in `tx_held`: as in `take_received`.
                let mbuf = unsafe { Mbuf::from_frame(frame as u32) };
                match self.copies_sent {
                    0 => tx_pool.put(mbuf),
                    // Another frame than the one of the copy is as good.
                    _ => {
                        self.copies_sent -= 1;
                        self.copies.push(mbuf);
                    }
                }
            }
        }
        if n > 0 {
            socket.completion.release(n);
        }
    }

    /// Rings the doorbell until the kernel has seen the whole transmit ring or cannot continue.
    fn ring_doorbell(&mut self) {
        let Some(socket) = &self.socket else { return };
        // A kernel that was not asked to say when it must be called never says it.
        if self.features.need_wakeup && !socket.tx.needs_wakeup() {
            self.kick_due = false;
            return;
        }
        let mut stalls = 0;
        // Of two turns in a row at least one sends a packet, so this limit is never reached.
        for _ in 0..2 * self.sizes.tx {
            let before = (socket.tx.consumed(), socket.completion.waiting());
            let Err(e) = socket.wake_tx() else {
                (self.kick_due, self.down) = (false, false);
                return;
            };
            match e.raw_os_error() {
                // EAGAIN: its bound of packets a call, or the send buffer or the driver's
                // queue is full. EBUSY: it lost a packet and stopped there, or as EAGAIN.
                Some(error @ (libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)) => {
                    // Kernels before 6.17 update the consumer index late, so both are compared.
                    if before != (socket.tx.consumed(), socket.completion.waiting()) {
                        self.counted.tx_failed += u64::from(error == libc::EBUSY);
                        stalls = 0;
                    } else if stalls == 1 {
                        return; // the packets stay in the ring for the next kick
                    } else {
                        stalls += 1;
                    }
                }
                Some(libc::EINTR) => {}
                Some(libc::ENETDOWN | libc::ENXIO) => {
                    self.down = true;
                    return;
                }
                _ => return,
            }
        }
    }

    /// As [`crate::Nic::receive`].
    pub fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        let n = whole_frames(socket, self.frags, max as u32);
        let before = out.len();
        for i in 0..n {
            let Some(socket) = &self.socket else { break };
            let desc = socket.rx.peek(i);
            out.extend(self.take_received(desc, rx_pool));
        }
        if let Some(socket) = &mut self.socket
            && n > 0
        {
            socket.rx.release(n);
        }
        if rx_pool.near() < self.most / 4 && n > 0 {
            spare_devices(&self.devices, memory, rx_pool, &mut out[before..]);
        }
        self.refill(rx_pool);
        out.len() - before
    }

    /// As [`crate::Nic::pending`].
    pub fn pending(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| {
            socket.rx.waiting() > 0
                || self.kick_due
                || socket.completion.waiting() > 0
                || socket.fill.needs_wakeup()
        })
    }

    /// Number of waiting packets.
    pub fn backlog(&self) -> usize {
        self.socket.as_ref().map_or(0, |socket| socket.rx.waiting() as usize)
    }

    /// As [`crate::Nic::transmit`].
    pub fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        if self.socket.as_mut().is_some_and(|s| s.tx.room(packets.len() as u32) == 0) {
            self.reap(tx_pool);
        }
        while self.copies.len() + self.copies_sent < self.copies_made {
            let Some(mbuf) = tx_pool.take_within(&self.devices) else { break };
            tx_pool.disown(&mbuf);
            self.copies.push(mbuf);
        }
        let Some(socket) = &mut self.socket else {
            self.counted.tx_failed += packets.len() as u64;
            return packets.drain(..).for_each(|mbuf| tx_pool.put_frame(memory, mbuf));
        };
        while let Some(mut mbuf) = packets.pop_front() {
            // The kernel skips an empty packet and never completes it; a link that is down loses
            // all.
            if mbuf.len() == 0 || self.down || mbuf.continues() && !self.frags {
                self.counted.tx_failed += 1;
                tx_pool.put_frame(memory, mbuf);
                continue;
            }
            let devices = &self.devices;
            let (buffers, copies) = match mbuf.continues() {
                false => (1, usize::from(!devices.contains(&mbuf.frame()))),
                true => needs_of(&mbuf, memory, devices),
            };
            if never_fits((buffers, copies), self.sizes.tx, self.copies_made) {
                self.counted.tx_failed += 1;
                tx_pool.put_frame(memory, mbuf);
                continue;
            }
            if socket.tx.room(buffers) < buffers || copies > self.copies.len() {
                packets.push_front(mbuf);
                break;
            }
            let mut describes = self.features.describes;
            loop {
                let rest = mbuf.detach(memory);
                if copies > 0
                    && !devices.contains(&mbuf.frame())
                    && let Some(mut copy) = self.copies.pop()
                {
                    copy.copy_of(&mbuf, memory);
                    self.copies_sent += 1;
                    tx_pool.put_beyond(core::mem::replace(&mut mbuf, copy));
                }
                let is_first = std::mem::take(&mut describes);
                let described = if is_first { describe(&mut mbuf, memory) } else { 0 };
                let (offset, len) = (mbuf.offset() as u64, mbuf.len() as u32);
                let frame = mbuf.into_frame();
                self.tx_held.insert(frame);
                let addr = u64::from(frame - devices.start) * FRAME_BYTES as u64 + offset;
                let more = if rest.is_some() { libc::XDP_PKT_CONTD } else { 0 };
                socket.tx.push(libc::xdp_desc { addr, len, options: more | described });
                let Some(rest) = rest else { break };
                mbuf = rest;
            }
            self.kick_due = true;
        }
        if self.kick_due {
            socket.tx.submit();
        }
    }

    /// Whether a frame may have several buffers.
    pub fn takes_chains(&self) -> bool {
        self.frags
    }

    /// As [`crate::Nic::kick`].
    pub fn kick(&mut self, tx_pool: &mut Pool) {
        if self.kick_due {
            self.ring_doorbell();
        }
        self.reap(tx_pool);
    }

    /// As [`crate::Nic::fence`]. It is passed when the kernel has taken what is in the ring.
    /// Usually it has before the doorbell returns, and then there is no fence. Before Linux 6.17 a
    /// kernel that was rung updates its index late, so it is checked only where it has stopped.
    pub fn fence(&self) -> Option<Box<dyn Fence>> {
        let socket = self.socket.as_ref().filter(|_| !self.down)?;
        let waits = self.kick_due || !socket.tx.needs_wakeup();
        Some(Box::new(socket.tx.fence().filter(|_| waits)?))
    }

    /// As [`crate::Nic::frames_held`].
    pub fn frames_held(&self) -> (usize, usize) {
        (self.rx_held.count(), self.tx_held.count())
    }

    /// A descriptor that polls readable when packets wait.
    pub fn doorbell(&self) -> RawFd {
        self.socket.as_ref().map_or(NEVER_RINGS, |socket| socket.fd.as_raw_fd())
    }

    /// Whether nothing is to be done before the doorbell rings.
    pub fn may_sleep(&self) -> bool {
        let unsent = self.kick_due && !self.down;
        !unsent && self.socket.as_ref().is_none_or(|socket| socket.rx.waiting() == 0)
    }

    /// Packets that were lost here.
    pub fn drops(&self) -> DeviceDrops {
        let Some(Ok(stats)) = self.socket.as_ref().map(Socket::statistics) else {
            return self.counted;
        };
        // A packet for which there was no frame is counted in `rx_dropped` too.
        let unfilled = stats.rx_fill_ring_empty_descs.min(stats.rx_dropped);
        DeviceDrops {
            rx_overrun: stats.rx_ring_full + unfilled,
            rx_invalid: self.counted.rx_invalid + (stats.rx_dropped - unfilled),
            tx_failed: self.counted.tx_failed + stats.tx_invalid_descs,
            ..DeviceDrops::default()
        }
    }

    /// Returns all frames. In copy mode they are ours again at once. A zero-copy driver may write
    /// to receive frames for some more milliseconds, until the kernel has stopped its queue.
    pub fn close(&mut self, rx_pool: &mut Pool, tx_pool: &mut Pool) {
        self.counted = self.drops();
        self.socket = None;
        tx_pool.adopt_many(self.copies.len() + self.copies_sent);
        self.copies.drain(..).for_each(|mbuf| tx_pool.put(mbuf));
        (self.copies_made, self.copies_sent) = (0, 0);
        for (held, pool) in [(&mut self.rx_held, rx_pool), (&mut self.tx_held, tx_pool)] {
            for frame in held.drain() {
                // SAFETY: the frame was in the set: the device had it, and is closed now.
                pool.put(unsafe { Mbuf::from_frame(frame) });
            }
        }
    }
}

/// Frame number, and offset within it, of a ring's address; the kernel's first frame is `first`.
#[inline]
fn split(addr: u64, first: u32) -> (u64, usize) {
    ((addr / FRAME_BYTES as u64).wrapping_add(first.into()), addr as usize % FRAME_BYTES)
}

/// How many buffers a chain has, and of how many the kernel does not have the frame.
#[inline(never)]
fn needs_of(mbuf: &Mbuf, memory: &PacketMemory, devices: &Range<u32>) -> (u32, usize) {
    let mut needs = (0, 0);
    for frame in mbuf.frames(memory) {
        needs.0 += 1;
        needs.1 += usize::from(!devices.contains(&frame));
    }
    needs
}

/// Whether a packet would wait for ever, by the number of its buffers and of those to be copied.
#[inline]
fn never_fits((buffers, copies): (u32, usize), ring: u32, copies_made: usize) -> bool {
    buffers > ring || copies > copies_made
}

/// Moves received packets out of the devices' frames, as far as there are other ones.
#[cold]
fn spare_devices(
    devices: &Range<u32>,
    memory: &PacketMemory,
    rx_pool: &mut Pool,
    packets: &mut [RxPacket],
) {
    for packet in packets.iter_mut().filter(|packet| devices.contains(&packet.mbuf.frame())) {
        let Some(mut other) = rx_pool.take_beyond() else { return };
        other.copy_of(&packet.mbuf, memory);
        rx_pool.put(core::mem::replace(&mut packet.mbuf, other));
    }
}

/// How many of the waiting packets to take: about `max`, up to the end of a frame.
fn whole_frames(socket: &Socket, frags: bool, max: u32) -> u32 {
    let waiting = socket.rx.waiting();
    if !frags {
        return waiting.min(max);
    }
    let mut whole = 0;
    for i in 0..waiting {
        if socket.rx.peek(i).options & libc::XDP_PKT_CONTD == 0 {
            whole = i + 1;
            if whole >= max {
                break;
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_never_fits_is_known() {
        let ring = 8;
        for (needs, never) in
            [((8, 0), false), ((9, 0), true), ((8, COPIES), false), ((8, COPIES + 1), true)]
        {
            assert_eq!(never_fits(needs, ring, COPIES), never, "{needs:?}");
        }
        assert!(!never_fits((ring, 0), ring, 0), "the kernel has all frames");
    }
}
