//! One flow as the dataplane keeps it: the TCP state machine and what belongs to it here.
use crate::flows::handle::FlowId;
use crate::flows::sendq::SendQueue;
use ix_mem::{Mbuf, MbufList, PacketMemory};
use ix_tcp::{RxBuf, Tcb};
use ix_wire::{MacAddr, ipv4};

/// An mbuf trimmed to the payload of one segment.
#[derive(Debug)]
pub struct Payload(pub Mbuf);

impl RxBuf for Payload {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn trim_front(&mut self, n: usize) {
        self.0.trim_front(n);
    }
    fn truncate(&mut self, n: usize) {
        self.0.truncate(n);
    }
}

/// Who answers for the flow on the application's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// An active open that is not finished; the application has its handle.
    Connecting,
    /// A passive open whose handshake is not finished: nobody yet.
    Embryonic,
    /// Announced by `knock`, neither accepted nor rejected yet.
    Knocking,
    /// The application, under its cookie.
    Application,
    /// Nobody any more: closed by the application, ending in order.
    Orphan,
}

/// Where a passive open counts in its listener's backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Not (any more).
    Nowhere,
    /// For the end of its handshake.
    HalfOpen,
    /// To be accepted.
    Knocking,
}

/// One flow. At rest a connection costs this and one table entry; a test keeps it below 512 bytes.
pub struct Flow {
    /// The state machine.
    pub tcb: Tcb<Payload>,
    /// What else belongs to the flow; apart, so that the state machine can speak to it.
    pub side: Side,
}

/// The dataplane's side of a flow.
pub struct Side {
    /// The name of the flow.
    pub id: FlowId,
    /// What the application gave us to send.
    pub sendq: SendQueue,
    /// Received mbufs, oldest first: announced ones, then those not announced yet.
    pub held: MbufList,
    /// How many of `held` the application has been told of.
    pub announced: u32,
    /// Bytes announced and not given back yet.
    pub announced_bytes: u32,
    /// Bytes acknowledged that the application was not told of.
    pub acked_bytes: u32,
    /// Bytes of the oldest held mbuf that are done with.
    pub front_done: u32,
    /// The application's name.
    pub cookie: u64,
    /// Payload that came in order, and payload that the peer has acknowledged, bytes.
    pub bytes_in: u64,
    /// As `bytes_in`.
    pub bytes_out: u64,
    /// When its first segment came or went, in units of 2^16 µs.
    pub born: u32,
    /// Hash under which the flow table knows it.
    pub hash: u64,
    /// Next hop's Ethernet address, as of `mac_version`.
    pub mac: MacAddr,
    /// Version of the neighbour table that `mac` is from; 0: never looked up.
    pub mac_version: u32,
    /// Listener slot of a passive open.
    pub listener: u16,
    /// Device.
    pub port: u8,
    /// Hop limit of its packets.
    pub ttl: u8,
    /// Type of service of its packets, without the ECN bits.
    pub tos: u8,
    /// Who answers for it.
    pub holder: Holder,
    /// Where it counts in the listener's backlog.
    pub waits: Waits,
    /// Counted among those in TIME-WAIT.
    pub in_time_wait: bool,
    /// In this cycle's list of flows that need `output`.
    pub touched: bool,
    /// Waits to be announced since the application was away.
    pub announce_later: bool,
    /// The peer's stream has ended, and the application was not told.
    pub eof_pending: bool,
    /// The send window opened, and the application was not told.
    pub window_opened: bool,
}

impl Flow {
    /// A flow that nobody has touched yet.
    pub fn new(tcb: Tcb<Payload>, hash: u64, port: u8, holder: Holder, now_us: u64) -> Flow {
        let side = Side {
            id: FlowId { group: 0, slot: 0, generation: 0 },
            sendq: SendQueue::default(),
            held: MbufList::new(),
            announced: 0,
            announced_bytes: 0,
            front_done: 0,
            acked_bytes: 0,
            cookie: 0,
            bytes_in: 0,
            bytes_out: 0,
            born: (now_us >> BORN_SHIFT) as u32,
            hash,
            mac: [0; 6],
            mac_version: 0,
            listener: 0,
            port,
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            holder,
            waits: Waits::Nowhere,
            in_time_wait: false,
            touched: false,
            announce_later: false,
            eof_pending: false,
            window_opened: false,
        };
        Flow { tcb, side }
    }
}

/// A unit of `Side::born` is 2^16 µs: enough for eight years.
const BORN_SHIFT: u32 = 16;

impl Side {
    /// Time since its first segment.
    pub fn age_us(&self, now_us: u64) -> u64 {
        let units = ((now_us >> BORN_SHIFT) as u32).wrapping_sub(self.born);
        u64::from(units) << BORN_SHIFT
    }

    /// Whether something came in that the application was not told of.
    pub fn unannounced(&self) -> bool {
        self.held.count() > self.announced as usize || self.eof_pending
    }

    /// The same, or something was sent that the application was not told of.
    pub fn has_news(&self) -> bool {
        self.unannounced() || self.acked_bytes > 0 || self.window_opened
    }

    /// Gives back the oldest `bytes` announced bytes; answers how many mbufs became free (they go
    /// to `free`), or `None`, with nothing changed, when fewer were announced.
    pub fn release(
        &mut self,
        memory: &PacketMemory,
        bytes: u64,
        mut free: impl FnMut(Mbuf),
    ) -> Option<u32> {
        if bytes > self.announced_bytes as u64 {
            return None;
        }
        self.announced_bytes -= bytes as u32;
        let mut left = bytes + self.front_done as u64;
        let mut freed = 0;
        while let Some(len) = self.held.front_len(memory) {
            if left < len as u64 || self.announced == 0 {
                break;
            }
            left -= len as u64;
            if let Some(mbuf) = self.held.pop(memory) {
                free(mbuf);
            }
            self.announced -= 1;
            freed += 1;
        }
        self.front_done = left as u32;
        Some(freed)
    }
}
