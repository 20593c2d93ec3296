//! One queue of a tap interface.
use super::merge::{BUFFERS_MAX, Frame, HEADERS_BYTES_MAX, Run};
use super::receive::{Outcome, Receiver};
use super::vnet;
use crate::{DeviceDrops, NEVER_RINGS, Nic, NicInfo, RxPacket};
use ix_mem::{Mbuf, PacketMemory, Pool};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// One queue of a tap interface.
pub(crate) struct TapNic {
    info: NicInfo,
    queue: File,
    receiver: Receiver,
    /// Frames have a `virtio_net_hdr`.
    vnet: bool,
    /// Segments may be sent as one long frame.
    merges: bool,
    drops: DeviceDrops,
    /// The last poll found no packet.
    idle: bool,
    /// The interface was deleted; its descriptors are useless.
    gone: bool,
}

/// The result of sending a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// The frame was sent, or was lost and counted.
    Done,
    /// There is no room for it now.
    Full,
    /// The interface does not accept long frames.
    Refused,
}

impl TapNic {
    /// The queue behind a descriptor from the broker.
    pub fn new(info: NicInfo, fd: OwnedFd) -> TapNic {
        let vnet = ix_sys::tun::uses_header(fd.as_fd());
        let receiver = Receiver::new(vnet, info.mtu);
        TapNic {
            info,
            queue: File::from(fd),
            receiver,
            vnet,
            merges: vnet,
            drops: DeviceDrops::default(),
            idle: true,
            gone: false,
        }
    }

    /// Writes the frame or the run of segments at the front of `packets`. Returns the number of
    /// packets that are done, or `None` if there is no room for them now.
    fn send_front(&mut self, memory: &PacketMemory, packets: &mut VecDeque<Mbuf>) -> Option<usize> {
        if self.merges
            && packets.len() > 1
            && let Some(run) = Run::of(packets.iter().map(|mbuf| Frame::of(mbuf, memory)))
        {
            match self.send_run(memory, packets, run) {
                Sent::Done => return Some(run.segments),
                Sent::Full => return None,
                Sent::Refused => self.merges = false,
            }
        }
        let sent = match packets.front_mut() {
            Some(mbuf) => self.send_frame(memory, mbuf),
            None => Sent::Done,
        };
        (sent != Sent::Full).then_some(1)
    }

    /// Writes one frame, with its `virtio_net_hdr` in the mbuf's headroom: one plain write is
    /// cheaper than a write of two parts.
    fn send_frame(&mut self, memory: &PacketMemory, mbuf: &mut Mbuf) -> Sent {
        if !self.vnet {
            return self.send_buffers(memory, mbuf);
        }
        let (offset, len) = (mbuf.offset(), mbuf.len());
        let Some(front) = offset.checked_sub(vnet::HEADER_BYTES) else {
            debug_assert!(!mbuf.continues(), "the first buffer of a chain has headroom");
            let parts = [IoSlice::new(&vnet::FINISHED), IoSlice::new(mbuf.bytes(memory))];
            return self.write(&parts, 1);
        };
        mbuf.set_range(front, vnet::HEADER_BYTES + len);
        mbuf.bytes_mut(memory)[..vnet::HEADER_BYTES].copy_from_slice(&vnet::FINISHED);
        let sent = self.send_buffers(memory, mbuf);
        mbuf.set_range(offset, len);
        sent
    }

    /// Writes all buffers of a frame.
    fn send_buffers(&mut self, memory: &PacketMemory, mbuf: &Mbuf) -> Sent {
        if !mbuf.continues() {
            return self.write(&[IoSlice::new(mbuf.bytes(memory))], 1);
        }
        let mut parts = [IoSlice::new(&[]); BUFFERS_MAX];
        let mut count = 0;
        for (part, piece) in parts.iter_mut().zip(mbuf.pieces(memory)) {
            *part = IoSlice::new(piece);
            count += 1;
        }
        self.write(&parts[..count], 1)
    }

    /// Writes a run as one frame.
    fn send_run(&mut self, memory: &PacketMemory, packets: &VecDeque<Mbuf>, run: Run) -> Sent {
        let frame = |i: usize| packets.get(i).map_or(&[][..], |mbuf| mbuf.bytes(memory));
        let mut headers = [0; HEADERS_BYTES_MAX];
        let headers_len = run.headers(frame(0), frame(run.segments - 1), &mut headers);
        let mut parts = [IoSlice::new(&[]); BUFFERS_MAX + 1];
        parts[0] = IoSlice::new(&headers[..headers_len]);
        let mut count = 1;
        for mbuf in packets.iter().take(run.segments) {
            let mut skipped = run.front_len;
            for (part, piece) in parts[count..].iter_mut().zip(mbuf.pieces(memory)) {
                *part = IoSlice::new(piece.get(skipped..).unwrap_or(&[]));
                skipped = 0;
                count += 1;
            }
        }
        self.write(&parts[..count], run.segments)
    }

    /// Writes one frame of this many packets by one system call.
    fn write(&mut self, parts: &[IoSlice<'_>], packets: usize) -> Sent {
        loop {
            let written = match parts {
                [whole] => self.queue.write(whole),
                _ => self.queue.write_vectored(parts),
            };
            match written {
                Ok(_) => return Sent::Done,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Sent::Full,
                Err(e) if packets > 1 && e.raw_os_error() == Some(libc::EINVAL) => {
                    return Sent::Refused;
                }
                // EIO while the link is down, ENOBUFS and ENOMEM: the packet is lost, as on a wire.
                Err(_) => {
                    self.drops.tx_failed += packets as u64;
                    return Sent::Done;
                }
            }
        }
    }
}

impl Nic for TapNic {
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
        let before = out.len();
        // Testing whether more packets wait costs half as much as reading one. The first packet
        // after an idle time is mostly alone, and its sender waits: it is processed at once, and
        // the next poll finds the others.
        let max = if self.idle { max.min(1) } else { max };
        // At most this many reads, so that lost frames are limited too.
        for _ in 0..max {
            if out.len() - before >= max {
                break;
            }
            match self.receiver.read(&self.queue, memory, rx_pool, out, &mut self.drops) {
                Ok(Outcome::Frame | Outcome::Lost) => {}
                Ok(Outcome::NoMbuf) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.gone |= e.raw_os_error() == Some(libc::EBADFD);
                    break; // EAGAIN: no more
                }
            }
        }
        self.idle = out.len() == before;
        out.len() - before
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        while !packets.is_empty() {
            let Some(done) = self.send_front(memory, packets) else { return };
            packets.drain(..done).for_each(|mbuf| tx_pool.put_frame(memory, mbuf));
        }
    }

    fn kick(&mut self, _memory: &PacketMemory, _tx_pool: &mut Pool) {}

    fn frames_held(&self) -> (usize, usize) {
        (self.receiver.held(), 0)
    }

    fn doorbell(&self) -> Option<RawFd> {
        // The descriptor of a deleted interface polls as an error forever.
        Some(if self.gone { NEVER_RINGS } else { self.queue.as_raw_fd() })
    }

    fn drops(&mut self) -> DeviceDrops {
        self.drops
    }

    fn close(&mut self, rx_pool: &mut Pool, _tx_pool: &mut Pool) {
        self.receiver.close(rx_pool);
    }
}
