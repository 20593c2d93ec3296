//! The messages between the threads of a migration. All of them go through the forwarding rings, so
//! that they stay in order with the packets that are handed over.
use super::unsent::Unsent;
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use crate::shared::mourning::UnderWay;
use ix_mem::Pool;
use ix_nic::{Fence, RxPacket};
use ix_proto::GroupSet;
use ix_proto::MigrationRecord;
use ix_proto::crossing::AttachmentId;
use ix_wire::IpAddr;
use std::collections::VecDeque;

/// What one elastic thread hands to another.
pub enum Forwarded {
    /// A packet, or a part of one, that was received on this device.
    Packet {
        /// The device.
        port: u8,
        /// A thread of this dataplane has sent it to an own address.
        looped: bool,
        /// The packet, with its frame.
        packet: RxPacket,
    },
    /// A step of a migration. It overtakes no packet, and no packet overtakes it.
    Message(Message),
}

/// A message. A migration is identified by the number that the old thread has given it.
pub enum Message {
    /// Old to new: offers these groups.
    Offer(u64, GroupSet),
    /// New to old: accepts. All packets of the groups that the new thread handed to the old one
    /// come before this.
    Ready(u64),
    /// New to old: refuses.
    Refuse(u64),
    /// Old to new: withdraws the offer, because there was no reply in time.
    Withdraw(u64),
    /// Old to new: the groups.
    Ship(Box<Ship>),
    /// Old to new: the devices were given all packets that were built for the groups. Peers may not
    /// have taken them yet.
    Sent(u64, Vec<Box<dyn Fence>>),
    /// New to old: a packet of the groups has arrived from a device.
    First(u64),
    /// Old to new: no more packets are handed over. What the new thread gets from elsewhere came
    /// later.
    Settled(u64, bool),
    /// From a third thread, on the way that its packets of a group take: which thread owns the
    /// group?
    Where {
        /// The group.
        group: u8,
        /// The thread that asks.
        asks: u16,
    },
    /// The reply: this thread owns it. All packets that came before the question have arrived.
    Here {
        /// The group.
        group: u8,
    },
    /// Not a step of a migration: a signal from one thread's application to another's, in the same
    /// process.
    Signal {
        /// The process.
        of: AttachmentId,
        /// Which one of those that have had this number.
        life: u32,
        /// What it says.
        value: u64,
    },
}

impl Message {
    /// The frames of this item belong to this thread's pool from now on.
    pub(crate) fn adopt(&self, pool: &mut Pool) {
        let Message::Ship(ship) = self else { return };
        for item in &ship.packets {
            if let Forwarded::Packet { packet, .. } = item {
                pool.adopt(&packet.mbuf);
            }
        }
    }
}

/// Flow groups that are moving, with all that belongs to them.
pub struct Ship {
    pub serial: u64,
    #[allow(clippy::vec_box, reason = "threads own groups as boxes, which move")]
    pub groups: Vec<Box<FlowGroup>>,
    /// Number of receive frames that the flows of each group hold, and of bytes that they have
    /// promised to their peers.
    pub frames: Vec<(u32, u64)>,
    /// Flows that have something to send.
    pub touched: Vec<FlowId>,
    /// Accepted flows whose early data is not announced yet.
    pub to_announce: Vec<FlowId>,
    /// Flows that wait at a listener of this address and port.
    pub waiting: Vec<(FlowId, IpAddr, u16)>,
    /// Listeners whose SYN cookies may still be acknowledged, and until when.
    pub cookies: Vec<(IpAddr, u16, u64)>,
    /// Packets that were held back, oldest first.
    pub packets: VecDeque<Forwarded>,
    /// Fences behind packets of these groups that the old thread has sent and peers may not have
    /// taken.
    pub fences: Vec<Box<dyn Fence>>,
    /// The old thread still has packets that wait for room in a device: [`Message::Sent`] will
    /// follow.
    pub queued: bool,
    /// Packets that were not sent and come along.
    pub unsent: Vec<Unsent>,
    pub record: MigrationRecord,
    /// The old thread's time. The time of these flows must not go back.
    pub now_us: u64,
    /// Counts this.
    pub under_way: Option<UnderWay>,
}
