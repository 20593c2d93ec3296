//! The data path of devices, behind one small trait: bursts in and out.
//!
//! A [`Nic`] is one queue pair of one device, used by one elastic thread. Where an interface has
//! more queues than there are elastic threads, it is several of them as one. A device needs only
//! the least: one queue, no offloads, no redirection table. [`NicInfo`] says what else it can do.
//!
//! A `Nic` is made in two steps, in two processes. The broker, which has privileges, opens the
//! device (crate `ix-netdev`) and sends the queues' descriptors and a description of the device
//! ([`NicInfo`]) to the dataplane's process. That process calls [`attach`] for each queue and needs
//! no privilege. Then the broker lets packets in.
//!
//! A device may change while the dataplane runs: a memif peer comes and goes, an interface is
//! deleted and made again. The broker detects this and sends an update. The dataplane's process
//! reads it with [`read_update`] and gives each queue's part to the elastic thread that owns the
//! queue, which calls [`Nic::update`].
mod afxdp;
mod device;
mod error;
mod frames;
pub mod memif;
mod steering;
mod tagged;
mod tap;
mod update;

pub use afxdp::{TableAnswer, TableRequest};
pub use device::{RingSizes, attach_table, deal};
pub use error::{AttachError, UpdateError};
pub use ix_proto::device::{
    DeviceChange, DeviceKind, NicInfo, NicKind, Steering, XdpBind, XdpFeatures, XdpMode,
};
pub use ix_proto::memif::MemifRole;
pub use steering::{frame_flow_group, initial_queue};
pub use tagged::attach;
pub use update::{QueueUpdate, read_update};

use ix_mem::{HEADROOM_BYTES, Mbuf, PacketMemory, Pool, ROOM_BYTES};

/// A received packet: an mbuf over the whole Ethernet frame.
#[derive(Debug)]
pub struct RxPacket {
    /// The frame. A frame longer than one mbuf (a TSO frame of a Linux peer) is in several packets
    /// in a row, with `more` set on all but the last; the headers are in the first.
    pub mbuf: Mbuf,
    /// The next packet of the burst continues this one.
    pub more: bool,
}

/// Longest IP packet that a device may be set to, bytes: a frame of it has five buffers.
pub const MTU_MAX: usize = 9_216;

/// Number of mbufs for a received frame of `len` bytes.
pub fn mbufs_for(len: usize) -> usize {
    len.div_ceil(ROOM_BYTES)
}

/// Copies a received frame into as many mbufs as it needs; the pool must have that many.
pub fn copy_frame(
    frame: &[u8],
    memory: &PacketMemory,
    rx_pool: &mut Pool,
    out: &mut Vec<RxPacket>,
) {
    let mut pieces = frame.chunks(ROOM_BYTES).peekable();
    while let Some(piece) = pieces.next() {
        let Some(mut mbuf) = rx_pool.take() else { break };
        mbuf.set_range(HEADROOM_BYTES, piece.len());
        mbuf.bytes_mut(memory).copy_from_slice(piece);
        out.push(RxPacket { mbuf, more: pieces.peek().is_some() });
    }
}

/// The doorbell of a device that is gone; `poll` ignores it.
pub const NEVER_RINGS: std::os::fd::RawFd = -1;

/// One queue pair, used by one thread. No method blocks; only its doorbells' descriptors can be
/// waited for.
pub trait Nic: Send {
    /// What the device is.
    fn info(&self) -> &NicInfo;

    /// Takes at most `max` received packets, in order of arrival, and gives the device new frames
    /// from `rx_pool` for them. Appends those of the device's VLAN to `out`, which are all where it
    /// has none. Returns the number of those that it took. Never ends within a frame of several
    /// packets (`more`): to complete the last frame it may exceed `max`.
    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize;

    /// Whether [`Nic::receive`] or [`Nic::kick`] may have something to do. Called in a loop while a
    /// thread waits, so it only looks at memory; a device that cannot tell returns true.
    fn pending(&self) -> bool {
        self.waiting() != Some(0)
    }

    /// Number of waiting packets, of a device whose peer processes what it is sent while this
    /// thread continues, and whose doorbell costs almost nothing; `None` of all others.
    /// `Receive::poll` says why a thread may then take fewer packets than it could.
    fn waiting(&self) -> Option<usize> {
        None
    }

    /// Number of waiting packets, for metrics; `None` if the device cannot tell.
    fn backlog(&self) -> Option<usize> {
        self.waiting()
    }

    /// Queues packets for transmission from the front of `packets`. A packet may be a chain of
    /// buffers ([`Mbuf::continues`]). Those for which the device has no room stay in it. Finished
    /// frames return to `tx_pool`, here or in [`Nic::kick`].
    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut std::collections::VecDeque<Mbuf>,
    );

    /// The one doorbell of a cycle: starts what was queued, if the device needs that, and takes
    /// back finished frames.
    fn kick(&mut self, memory: &PacketMemory, tx_pool: &mut Pool);

    /// Number of receive and transmit frames that the device holds, for the leak counters.
    fn frames_held(&self) -> (usize, usize);

    /// A descriptor that polls readable when packets wait. `None` if the device has none: the
    /// thread then never sleeps longer than a timer tick. [`NEVER_RINGS`] if no packet will arrive
    /// any more.
    fn doorbell(&self) -> Option<std::os::fd::RawFd>;

    /// Calls `each` with further descriptors that ring as [`Nic::doorbell`]'s does.
    fn more_doorbells(&self, each: &mut dyn FnMut(std::os::fd::RawFd)) {
        let _ = each;
    }

    /// Announces that the thread is about to sleep on the doorbells; false if packets have arrived
    /// meanwhile.
    fn arm(&mut self) -> bool {
        true
    }

    /// Packets that the device itself has lost on this queue since it was opened.
    fn drops(&mut self) -> DeviceDrops {
        DeviceDrops::default()
    }

    /// A fence behind what this queue has sent and the peer may not have taken, if packets that
    /// another queue sends later could overtake it. To be called after [`Nic::kick`].
    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        None
    }

    /// The device's redirection table, if this process can write it.
    fn reta(&self) -> Option<std::sync::Arc<dyn SetReta>> {
        None
    }

    /// Changes to a new link between two cycles; frames that the old link held return to the pools.
    /// [`Nic::info`] may be different afterwards. If the new link cannot be used, the device loses
    /// all packets until the next update.
    fn update(
        &mut self,
        update: QueueUpdate,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        tx_pool: &mut Pool,
    ) -> Result<(), AttachError> {
        let _ = (update, memory, rx_pool, tx_pool);
        Ok(())
    }

    /// Returns all frames, for an orderly end.
    fn close(&mut self, rx_pool: &mut Pool, tx_pool: &mut Pool);
}

/// Packets that a device has lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceDrops {
    /// Lost because they were not polled in time or the device had no frames.
    pub rx_overrun: u64,
    /// Did not fit into a frame, or the device refused them for another reason.
    pub rx_invalid: u64,
    /// Of another VLAN than the device's, or of none.
    pub rx_other_vlan: u64,
    /// Could not be sent.
    pub tx_failed: u64,
}

/// A fence behind all that one queue had sent at [`Nic::fence`].
pub trait Fence: Send {
    /// True if the peer has taken all of it: what other queues send from now on does not overtake
    /// it.
    fn passed(&self) -> bool;
}

/// The redirection table of a device with [`Steering::Table`] or [`Steering::Rss`].
pub trait SetReta: Send + Sync {
    /// Steers a flow group to a queue pair.
    fn set(&self, flow_group: usize, queue: usize) -> std::io::Result<()>;

    /// Whether every sender uses the current table and has put into the queues all that it sent by
    /// an older one. Then no packet of a moved flow group arrives on its old queue any more, once
    /// that is empty. False if the device cannot tell.
    fn settled(&self) -> bool {
        false
    }

    /// Whether a packet of a moved flow group that arrives on its new queue proves that the old
    /// queue gets no more of them. True for a device with one pipe into both.
    fn in_order(&self) -> bool {
        false
    }

    /// Whether a sender is just putting packets into the queues by a table that is not [`settled`].
    /// Then the passing of time proves nothing.
    ///
    /// [`settled`]: SetReta::settled
    fn is_sending(&self) -> bool {
        false
    }
}
