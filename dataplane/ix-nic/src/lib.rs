//! Devices behind one small trait: bursts in and out.
//!
//! A [`Nic`] is one queue pair of one device, used by one elastic thread. The lowest common
//! denominator works: one queue, no offloads, no redirection table. What a device can do more it
//! says in [`NicInfo`].
//!
//! Coming to a `Nic` takes two steps, in two processes. The broker, which has privileges, opens the
//! device (crate `ix-netdev`) and hands the queues' descriptors and one line about the device
//! ([`NicInfo::to_line`]) to the dataplane's process, which calls [`attach`] for each queue and
//! needs no privilege. Then the broker lets packets come in.
//!
//! A device may change while the dataplane runs: a memif peer comes and goes, an interface is made
//! anew. The broker hears of it and sends an update; the dataplane's process reads it with
//! [`read_update`] and hands each queue's part to the elastic thread that owns the queue, which
//! calls [`Nic::update`].
mod afxdp;
mod device;
mod error;
mod frames;
mod info;
pub mod memif;
mod steering;
mod tap;
mod update;

pub use afxdp::{TableAnswer, TableRequest, XdpBind, XdpMode};
pub use device::{RingSizes, attach, attach_table};
pub use error::AttachError;
pub use info::LineError;
pub use memif::MemifRole;
pub use steering::{frame_flow_group, initial_queue};
pub use update::{QueueUpdate, read_update};

use ix_mem::{HEADROOM_BYTES, Mbuf, PacketMemory, Pool, ROOM_BYTES};

/// What a device is and does; the same for all its queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicInfo {
    /// `tap`, `afxdp`, `memif` or `sim`.
    pub kind: &'static str,
    /// Its name on the host (`tap0`, `eth1`), for messages.
    pub name: String,
    /// The mode really in use, for people: "native, copy, need-wakeup".
    pub mode: String,
    /// Queue pairs in use, numbered from 0.
    pub queues: usize,
    /// Our Ethernet address on it.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes.
    pub mtu: usize,
    /// How the device spreads packets over queues.
    pub steering: Steering,
    /// The peer may hand over frames whose transport checksum is only the pseudo-header sum
    /// (a Linux stack on the same machine, over veth or virtio).
    pub partial_checksums: bool,
    /// The peer can change a received frame after we have it (`memif`, client): headers must be
    /// copied before they are parsed.
    pub shared_frames: bool,
    /// Behind the queues' descriptors there is one of the redirection table, for [`attach_table`].
    pub table_fd: bool,
    /// For `afxdp`: how its sockets bind.
    pub xdp: Option<XdpBind>,
}

/// Who decides which queue a packet goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Nobody we know: packets of a flow group may come in on any queue, and the elastic thread
    /// that polled one hands it to the owner of its flow group.
    Software,
    /// The device looks up our table with the dataplane's own flow hash (`ix_wire::FlowHash`); the
    /// table is changed with [`SetReta`].
    Table,
    /// The device hashes as RSS does, with this Toeplitz key.
    Rss([u8; 40]),
}

/// A received packet: an mbuf over the whole Ethernet frame.
#[derive(Debug)]
pub struct RxPacket {
    /// The frame. A frame longer than one mbuf (a TSO frame of a Linux peer) comes as several
    /// packets in a row with `more` set on all but the last; the headers are in the first.
    pub mbuf: Mbuf,
    /// The next packet of the burst continues this one.
    pub more: bool,
}

/// How many mbufs a received frame of `len` bytes takes.
pub fn mbufs_for(len: usize) -> usize {
    len.div_ceil(ROOM_BYTES)
}

/// Copies a received frame into as many mbufs as it takes, of which the pool has enough.
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

/// The doorbell of a device that is gone: `poll` passes over it.
pub const NEVER_RINGS: std::os::fd::RawFd = -1;

/// One queue pair. Single-threaded; nothing here blocks but [`Nic::doorbell`]'s descriptor.
pub trait Nic: Send {
    /// What the device is.
    fn info(&self) -> &NicInfo;

    /// Appends at most `max` received packets to `out`, in order of arrival, and gives the device
    /// fresh frames from `rx_pool` for them. Answers how many. Never ends in the middle of a frame
    /// of several packets (`more`): to complete the last frame it may go beyond `max`.
    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize;

    /// Whether [`Nic::receive`] or [`Nic::kick`] may have something to do. Asked in a loop while a
    /// thread waits, so it only looks at memory; a device that cannot tell says yes.
    fn pending(&self) -> bool {
        self.waiting() != Some(0)
    }

    /// How many packets wait, from a device whose peer works on what it is sent while we go on, and
    /// whose doorbell costs next to nothing; `None` from all others. See `Receive::poll` for why
    /// a thread may then take fewer of them than it could.
    fn waiting(&self) -> Option<usize> {
        None
    }

    /// How many packets wait, for metrics; `None` from a device that cannot tell.
    fn backlog(&self) -> Option<usize> {
        self.waiting()
    }

    /// Queues packets for transmission from the front of `packets` and leaves in it those that the
    /// device has no room for. Finished frames return to `tx_pool`, here or in [`Nic::kick`].
    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut std::collections::VecDeque<Mbuf>,
    );

    /// The one doorbell of a cycle: starts what was queued (if the device needs telling) and takes
    /// back finished frames.
    fn kick(&mut self, memory: &PacketMemory, tx_pool: &mut Pool);

    /// Frames the device holds now, receive and transmit, for the leak counters.
    fn frames_held(&self) -> (usize, usize);

    /// A descriptor that polls readable when packets wait; `None` if the device has none
    /// (then the thread never sleeps longer than a timer tick), [`NEVER_RINGS`] if no packet will
    /// ever come again.
    fn doorbell(&self) -> Option<std::os::fd::RawFd>;

    /// Says that the thread is about to sleep on the doorbell; false when packets came meanwhile.
    fn arm(&mut self) -> bool {
        true
    }

    /// Packets that the device itself lost on this queue since it was opened.
    fn drops(&mut self) -> DeviceDrops {
        DeviceDrops::default()
    }

    /// What this queue has sent and the peer may not have taken yet, where packets that another
    /// queue sends later could overtake it. To be asked after [`Nic::kick`].
    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        None
    }

    /// The device's redirection table, where this process can write it.
    fn reta(&self) -> Option<std::sync::Arc<dyn SetReta>> {
        None
    }

    /// Takes over a changed link between two cycles; frames that the old one held go back to the
    /// pools. [`Nic::info`] may say something else afterwards.
    fn update(
        &mut self,
        update: QueueUpdate,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        tx_pool: &mut Pool,
    ) {
        let _ = (update, memory, rx_pool, tx_pool);
    }

    /// Gives all frames back, for an orderly end.
    fn close(&mut self, rx_pool: &mut Pool, tx_pool: &mut Pool);
}

/// What a device lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceDrops {
    /// Packets lost because we did not poll in time or gave it no frames.
    pub rx_overrun: u64,
    /// Packets that did not fit into a frame or were otherwise not acceptable to the device.
    pub rx_invalid: u64,
    /// Packets that could not be sent.
    pub tx_failed: u64,
}

/// What one queue had sent when it was asked ([`Nic::fence`]).
pub trait Fence: Send {
    /// Whether the peer has taken all of it: what other queues send from now on does not overtake
    /// it.
    fn passed(&self) -> bool;
}

/// Changes the device's redirection table, where [`Steering::Table`] or [`Steering::Rss`] says it
/// has one.
pub trait SetReta: Send + Sync {
    /// Entry `flow_group` now points to `queue`.
    fn set(&self, flow_group: usize, queue: usize) -> std::io::Result<()>;

    /// Whether every sender uses the table as it is now and has put into the queues all that it
    /// sent by an older one: packets of a flow group that was moved come in no longer on its old
    /// queue, once that is empty. False where the device cannot tell.
    fn settled(&self) -> bool {
        false
    }

    /// Whether, once a packet of a moved flow group has come in on its new queue, none comes in on
    /// the old one any more that is not there already: true of a device with one pipe into both.
    fn in_order(&self) -> bool {
        false
    }

    /// Whether a sender is just putting packets into the queues by a table that is not [`settled`]:
    /// time alone then proves nothing.
    ///
    /// [`settled`]: SetReta::settled
    fn is_sending(&self) -> bool {
        false
    }
}
