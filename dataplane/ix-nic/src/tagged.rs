//! A device in a VLAN: removes the tag of received frames, and inserts it into those to be sent.
//!
//! So no other part knows of tags, and devices without one pay nothing.
use crate::device::{self, RingSizes};
use crate::{AttachError, DeviceDrops, Fence, Nic, NicInfo, QueueUpdate, RxPacket, SetReta};
use ix_mem::{Mbuf, PacketMemory, Pool};
use ix_wire::VlanId;
use ix_wire::vlan::{self, TAG_BYTES};
use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// Makes the queue pair behind descriptors that the broker has opened ([`crate::deal`]), in the
/// process that has `memory`, and gives the device its first receive frames. Needs no privilege.
///
/// For AF_XDP it registers the devices' frames once for each queue pair. They count against
/// RLIMIT_MEMLOCK of this process unless it has CAP_IPC_LOCK.
///
/// [`Nic::info`] of the result has the mode in use. It says more than `info` where only binding a
/// queue shows the mode (zero-copy or copy).
pub fn attach(
    info: &NicInfo,
    queue: usize,
    fds: Vec<OwnedFd>,
    memory: &PacketMemory,
    rx_pool: &mut Pool,
    rings: RingSizes,
) -> Result<Box<dyn Nic>, AttachError> {
    let nic = device::attach(info, queue, fds, memory, rx_pool, rings)?;
    Ok(match info.vlan {
        None => nic,
        Some(vlan) => Box::new(TaggedNic::new(nic, vlan)),
    })
}

/// Packets that get their tag at once: as many as a tap merges into one frame. A device that has
/// no room returns them, and their tags are removed again.
const TAGGED_AT_ONCE: usize = 64;

/// A queue pair of a device in a VLAN.
struct TaggedNic {
    inner: Box<dyn Nic>,
    vlan: VlanId,
    /// Packets with a tag, on their way into the device. Empty between calls.
    leaving: VecDeque<Mbuf>,
    /// Received frames of other VLANs, or of none.
    other_vlan: u64,
}

impl TaggedNic {
    fn new(inner: Box<dyn Nic>, vlan: VlanId) -> TaggedNic {
        let leaving = VecDeque::with_capacity(TAGGED_AT_ONCE);
        TaggedNic { inner, vlan, leaving, other_vlan: 0 }
    }

    /// Removes the tags of the packets behind the first `from`, and those that are not of the VLAN.
    fn take_tags(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        out: &mut Vec<RxPacket>,
        from: usize,
    ) {
        let (mut kept, mut begins, mut is_ours) = (from, true, false);
        for at in from..out.len() {
            let packet = &mut out[at];
            if begins {
                is_ours = take_tag(&mut packet.mbuf, memory, self.vlan);
                self.other_vlan += u64::from(!is_ours);
            }
            begins = !packet.more;
            if is_ours {
                out.swap(kept, at);
                kept += 1;
            }
        }
        out.drain(kept..).for_each(|packet| rx_pool.put(packet.mbuf));
    }
}

/// Removes the tag of a frame, whose first buffer this is. False if it is not of this VLAN.
fn take_tag(mbuf: &mut Mbuf, memory: &PacketMemory, vlan: VlanId) -> bool {
    let frame = mbuf.bytes_mut(memory);
    if vlan::number_of(frame) != Some(vlan.number()) {
        return false;
    }
    vlan::remove(frame);
    mbuf.trim_front(TAG_BYTES);
    true
}

/// Inserts the tag, into the headroom that every frame to be sent has.
fn give_tag(mbuf: &mut Mbuf, memory: &PacketMemory, vlan: VlanId) {
    let (offset, len) = (mbuf.offset(), mbuf.len());
    mbuf.set_range(offset - TAG_BYTES, len + TAG_BYTES);
    vlan::insert(mbuf.bytes_mut(memory), vlan.tag());
}

impl Nic for TaggedNic {
    fn info(&self) -> &NicInfo {
        self.inner.info()
    }

    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        let from = out.len();
        let taken = self.inner.receive(memory, rx_pool, max, out);
        self.take_tags(memory, rx_pool, out, from);
        taken
    }

    fn pending(&self) -> bool {
        self.inner.pending()
    }

    fn waiting(&self) -> Option<usize> {
        self.inner.waiting()
    }

    fn backlog(&self) -> Option<usize> {
        self.inner.backlog()
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        let TaggedNic { inner, vlan, leaving, .. } = self;
        while !packets.is_empty() {
            let count = packets.len().min(TAGGED_AT_ONCE);
            leaving.extend(packets.drain(..count).map(|mut mbuf| {
                give_tag(&mut mbuf, memory, *vlan);
                mbuf
            }));
            inner.transmit(memory, tx_pool, leaving);
            if leaving.is_empty() {
                continue;
            }
            while let Some(mut mbuf) = leaving.pop_back() {
                take_tag(&mut mbuf, memory, *vlan);
                packets.push_front(mbuf);
            }
            return;
        }
    }

    fn kick(&mut self, memory: &PacketMemory, tx_pool: &mut Pool) {
        self.inner.kick(memory, tx_pool);
    }

    fn frames_held(&self) -> (usize, usize) {
        self.inner.frames_held()
    }

    fn doorbell(&self) -> Option<RawFd> {
        self.inner.doorbell()
    }

    fn more_doorbells(&self, each: &mut dyn FnMut(RawFd)) {
        self.inner.more_doorbells(each);
    }

    fn arm(&mut self) -> bool {
        self.inner.arm()
    }

    fn drops(&mut self) -> DeviceDrops {
        DeviceDrops { rx_other_vlan: self.other_vlan, ..self.inner.drops() }
    }

    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        self.inner.fence()
    }

    fn reta(&self) -> Option<Arc<dyn SetReta>> {
        self.inner.reta()
    }

    fn update(
        &mut self,
        update: QueueUpdate,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        tx_pool: &mut Pool,
    ) -> Result<(), AttachError> {
        self.inner.update(update, memory, rx_pool, tx_pool)
    }

    fn close(&mut self, rx_pool: &mut Pool, tx_pool: &mut Pool) {
        self.inner.close(rx_pool, tx_pool);
    }
}

#[cfg(test)]
#[path = "tagged_tests.rs"]
mod tests;
