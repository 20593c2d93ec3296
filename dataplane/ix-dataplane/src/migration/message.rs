//! What the threads of a migration tell each other. All of it goes through the forwarding rings, so
//! that it stays in order with the packets that are handed over.
use super::unsent::Unsent;
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use crate::observe::migration::MigrationRecord;
use ix_mem::Pool;
use ix_nic::{Fence, RxPacket};
use ix_proto::GroupSet;
use ix_wire::IpAddr;
use std::collections::VecDeque;

/// What one elastic thread hands to another.
pub enum Forwarded {
    /// A packet, or a part of one, that came in on this device.
    Packet {
        /// The device.
        port: u8,
        /// The packet; its frame goes along.
        packet: RxPacket,
    },
    /// A step of a migration. It overtakes no packet and no packet overtakes it.
    Message(Message),
}

/// One message. A migration is named by the number that the old thread gave it.
pub enum Message {
    /// Old to new: will you take these groups?
    Offer(u64, GroupSet),
    /// New to old: yes, and what I handed to you of them came before this.
    Ready(u64),
    /// New to old: no.
    Refuse(u64),
    /// Old to new: too late, they stay.
    Withdraw(u64),
    /// Old to new: here they are.
    Ship(Box<Ship>),
    /// Old to new: all that I had built of theirs was given to the devices; peers may not have
    /// taken it yet.
    Sent(u64, Vec<Box<dyn Fence>>),
    /// New to old: a packet of theirs came in from a device.
    First(u64),
    /// Old to new: what you get of them from elsewhere came after all that I handed to you.
    Settled(u64, bool),
    /// A third thread along the way that its packets of a group take: whose is the group?
    Where {
        /// The group.
        group: u8,
        /// Who asks.
        asks: u16,
    },
    /// The answer: mine. All that came before the question has arrived.
    Here {
        /// The group.
        group: u8,
    },
    /// No step of a migration: the application of one thread tells that of another.
    Signal(u64),
}

impl Message {
    /// Frames that come along belong to this thread's pool from now on.
    pub(crate) fn adopt(&self, pool: &mut Pool) {
        let Message::Ship(ship) = self else { return };
        for item in &ship.packets {
            if let Forwarded::Packet { packet, .. } = item {
                pool.adopt(&packet.mbuf);
            }
        }
    }
}

/// Flow groups on their way, and all that belongs to them.
pub struct Ship {
    pub serial: u64,
    #[allow(clippy::vec_box, reason = "threads own groups as boxes, which move")]
    pub groups: Vec<Box<FlowGroup>>,
    /// Receive frames that the flows of each hold.
    pub frames: Vec<u32>,
    /// Flows that are to speak.
    pub touched: Vec<FlowId>,
    /// Accepted flows whose early data is not announced yet.
    pub to_announce: Vec<FlowId>,
    /// Flows that wait at a listener of this address and port.
    pub waiting: Vec<(FlowId, IpAddr, u16)>,
    /// Listeners whose SYN cookies may still be answered, and until when.
    pub cookies: Vec<(IpAddr, u16, u64)>,
    /// Packets that were held back, oldest first.
    pub packets: VecDeque<Forwarded>,
    /// What the old thread has sent of theirs, and peers may not have taken yet.
    pub fences: Vec<Box<dyn Fence>>,
    /// More of it waits there for room in a device: [`Message::Sent`] is still to come.
    pub queued: bool,
    /// What was not sent, and goes along.
    pub unsent: Vec<Unsent>,
    pub record: MigrationRecord,
    /// The old thread's time: for these flows it must not go backwards.
    pub now_us: u64,
}
