//! One flow: its TCP state machine and what else the dataplane keeps for it.
use crate::flows::handle::FlowId;
use crate::flows::sendq::SendQueue;
use ix_mem::{Mbuf, MbufList, PacketMemory};
use ix_proto::crossing::AttachmentId;
use ix_tcp::{Asker, RxBuf, State, Tcb};
use ix_wire::MacAddr;

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

/// The holder of a flow on the application's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// An active open in progress; the application has its handle.
    Connecting,
    /// A passive open in progress: no holder yet.
    Embryonic,
    /// Announced by `KNOCK`; neither accepted nor rejected yet.
    Knocking,
    /// The application, under the flow's cookie.
    Application,
    /// No holder any more: closed by the application, ending in order.
    Orphan,
}

/// Which count of its listener's backlog a passive open is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// None, or none any more.
    Nowhere,
    /// Unfinished handshakes.
    HalfOpen,
    /// Connections that wait to be accepted.
    Knocking,
}

impl Waits {
    /// For whom the next hop of such a flow is asked for.
    #[inline]
    pub(crate) fn asker(self) -> Asker {
        if self == Waits::HalfOpen { Asker::Stranger } else { Asker::Own }
    }
}

/// Which count of its group a flow is in that its holder has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// None: it has a holder, or is not open yet.
    No,
    /// Flows that still have to send, or to hear that all has arrived.
    Orphan,
    /// Flows in TIME-WAIT. As on Linux those count too that only wait for the peer's FIN: peers
    /// that never send one must not use up the places of orphans.
    TimeWait,
}

/// Facts about a flow that are rarely true, in one byte because flows are many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts(u8);

impl Facts {
    /// It is in the list of flows that wait for room to send.
    pub const CROWDED: u8 = 1;
    /// The application has closed it, and keeps the memory of what was not acknowledged.
    pub const CLOSED: u8 = 2;

    /// Whether this is true.
    #[inline]
    pub fn has(self, fact: u8) -> bool {
        self.0 & fact != 0
    }

    /// This is true from now on, or no longer.
    #[inline]
    pub fn put(&mut self, fact: u8, is_true: bool) {
        self.0 = if is_true { self.0 | fact } else { self.0 & !fact };
    }
}

/// One flow. An idle connection costs this and one table entry; a test bounds the sum.
pub struct Flow {
    /// The state machine.
    pub tcb: Tcb<Payload>,
    /// The rest of the flow, separate so that the state machine can call it.
    pub socket: TcpSocket,
}

/// What the dataplane keeps for a flow beside the state machine, as in BSD: its holder, what waits
/// to be sent and to be read, and how its packets are addressed.
pub struct TcpSocket {
    /// The name of the flow, as the application has it ([`TcpSocket::id`]).
    pub handle: u64,
    /// What the application has given to send.
    pub sendq: SendQueue,
    /// Received mbufs, oldest first: announced ones, then those not announced yet.
    pub held: MbufList,
    /// How many of `held` were announced to the application.
    pub announced: u32,
    /// Bytes announced and not returned.
    pub announced_bytes: u32,
    /// Acknowledged bytes that were not announced to the application.
    pub acked_bytes: u32,
    /// Bytes of the oldest held mbuf that were returned.
    pub front_done: u32,
    /// The application's name.
    pub cookie: u64,
    /// Payload received in order, bytes.
    pub bytes_in: u64,
    /// Payload acknowledged by the peer, bytes.
    pub bytes_out: u64,
    /// When its first segment was sent or received, in units of 2^16 µs.
    pub born: u32,
    /// What the flow table uses of its hash ([`TcpSocket::hash`]).
    pub hash_tag: u32,
    /// The next hop's Ethernet address, from `mac_version`.
    pub mac: MacAddr,
    /// Version of the neighbour table that `mac` is from; 0: never looked up.
    pub mac_version: u32,
    /// The process of the program that it belongs to.
    pub owner: AttachmentId,
    /// Listener slot of a passive open.
    pub listener: u16,
    /// Over IPv4 the identification of its last packet, of 16 bits. They count within the flow:
    /// device and Linux then see that packets follow each other, and no peer sees how many others
    /// there are. Over IPv6 the label of its packets, or [`LABEL_AUTO`].
    pub ident: u32,
    /// Device.
    pub port: u8,
    /// Hop limit of its packets; of a flow that is not in a group yet 0, if it is as configured.
    pub ttl: u8,
    /// Type of service of its packets, without the ECN bits.
    pub tos: u8,
    /// Its holder on the application's side.
    pub holder: Holder,
    /// Which count of its listener's backlog it is in.
    pub waits: Waits,
    /// Which count of flows without a holder it is in.
    pub ending: Ending,
    /// What is rarely true of it.
    pub facts: Facts,
    /// It is in this cycle's list of flows that need `output`.
    pub touched: bool,
    /// Its events wait since the application was non-responsive.
    pub announce_later: bool,
    /// The peer's stream has ended, and the application was not told yet.
    pub eof_pending: bool,
    /// The send window has opened, and the application was not told yet.
    pub window_opened: bool,
}

impl Flow {
    /// A flow that was not touched yet.
    #[inline]
    pub fn new(tcb: Tcb<Payload>, hash: u64, port: u8, holder: Holder, now_us: u64) -> Flow {
        // It tells nothing that the sequence number in the same packet does not tell. Not from the
        // hash: no peer may learn where a flow is in the table.
        let ident = match tcb.tuple().remote.is_v6() {
            true => LABEL_AUTO,
            false => u32::from(tcb.snd_una().0 as u16),
        };
        let socket = TcpSocket {
            handle: 0,
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
            hash_tag: (hash >> 32) as u32,
            mac: [0; 6],
            mac_version: 0,
            owner: 0,
            listener: 0,
            ident,
            port,
            ttl: 0,
            tos: 0,
            holder,
            waits: Waits::Nowhere,
            ending: Ending::No,
            facts: Facts::default(),
            touched: false,
            announce_later: false,
            eof_pending: false,
            window_opened: false,
        };
        Flow { tcb, socket }
    }

    /// Which count it should be in.
    #[inline]
    pub fn ending(&self) -> Ending {
        match (self.socket.holder, self.tcb.state()) {
            (_, State::TimeWait) | (Holder::Orphan, State::FinWait2) => Ending::TimeWait,
            (Holder::Orphan, _) => Ending::Orphan,
            _ if self.socket.facts.has(Facts::CLOSED) => Ending::Orphan,
            _ => Ending::No,
        }
    }
}

/// No flow label: that which is made of the flow's hash.
pub const LABEL_AUTO: u32 = ix_abi::flow_opt::FLOW_LABEL_AUTO as u32;

/// A unit of `TcpSocket::born` is 2^16 µs: enough for eight years.
const BORN_SHIFT: u32 = 16;

impl TcpSocket {
    /// The name of the flow.
    #[inline]
    pub fn id(&self) -> FlowId {
        FlowId::from_handle(self.handle)
    }

    /// The flow group that it is in.
    #[inline]
    pub fn group(&self) -> usize {
        usize::from(self.id().group)
    }

    /// Its hash, as far as the flow table uses it.
    #[inline]
    pub fn hash(&self) -> u64 {
        u64::from(self.hash_tag) << 32
    }

    /// Time since its first segment.
    pub fn age_us(&self, now_us: u64) -> u64 {
        let units = ((now_us >> BORN_SHIFT) as u32).wrapping_sub(self.born);
        u64::from(units) << BORN_SHIFT
    }

    /// Whether it holds no received data and nothing to send.
    pub fn is_bare(&self) -> bool {
        self.held.is_empty()
            && self.sendq.bytes() == 0
            && !self.sendq.owes()
            && self.waits == Waits::Nowhere
    }

    /// Whether something was received that was not announced to the application.
    pub fn unannounced(&self) -> bool {
        self.held.count() > self.announced as usize || self.eof_pending
    }

    /// The same, or something was acknowledged that was not announced to the application.
    pub fn has_news(&self) -> bool {
        self.unannounced() || self.acked_bytes > 0 || self.window_opened
    }

    /// Frees the oldest `bytes` announced bytes. Returns how many mbufs became free (they go to
    /// `free`), or `None`, with nothing changed, if fewer were announced.
    #[inline]
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
