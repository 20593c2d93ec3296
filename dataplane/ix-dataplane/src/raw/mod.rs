//! Packet queues: whole frames for programs with their own protocol, beside TCP and UDP.
//!
//! They receive what the parser refuses (other EtherTypes and protocols, so TCP's path does not
//! know about them) or datagrams to a port that a queue has bound. A frame to send is copied into a
//! frame of the dataplane before it is checked: what was checked is what is sent, whatever the
//! application writes meanwhile.
#[cfg(test)]
pub(crate) mod tests;

use crate::attachment::Attachment;
use crate::calls::Answer;
use crate::context::Context;
use crate::egress::qdisc::Qdisc;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::ports::Port;
use crate::receive::admission::Admission;
use crate::receive::batch::{Batch, Work};
use crate::shared::Shared;
use crate::verdict::Dropped;
use ix_abi::{
    CallError, Cookie, Event, PacketInfo, RxData, SG_MAX, SgArray, packet_flag, packet_kind,
};
use ix_mem::{HEADROOM_BYTES, Mbuf, ROOM_BYTES};
use ix_nic::NicKind;
use ix_proto::crossing::AttachmentId;
use ix_tcp::udp::UdpTable;
use ix_vnic::{Header, UNTAGGED};
use ix_wire::{DropReason, IpAddr, MacAddr, ethernet, is_group_mac};

/// Most packet queues of one elastic thread.
pub(crate) const QUEUES_MAX: usize = 64;

/// Most signals that wait for a process that does not return.
const SIGNALS_LATE_MAX: usize = 1 << 16;

/// Smaller values of the field are lengths (IEEE 802.3).
const ETHERTYPE_MIN: u16 = 0x0600;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherTypes that the dataplane processes itself: IPv4, ARP, VLAN tags, IPv6.
const OWN_ETHERTYPES: [u16; 5] = [ETHERTYPE_IPV4, ETHERTYPE_ARP, 0x8100, 0x88a8, 0x86dd];
/// ICMP, TCP, UDP, ICMP of IPv6.
const OWN_PROTOCOLS: [u8; 4] = [1, 6, 17, 58];
/// Bytes of a frame that show what it is: Ethernet, a tag, IPv4 with all options or IPv6 with as
/// many extension headers as the parser follows, ports.
const FRONT_BYTES: usize = 288;

/// What a queue receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    EtherType(u16),
    Protocol(u8),
    UdpPort(u16),
}

impl Claim {
    fn new(kind: u64, number: u64) -> Option<Claim> {
        let number = u16::try_from(number).ok()?;
        match kind {
            packet_kind::ETHER_TYPE => (number >= ETHERTYPE_MIN
                && !OWN_ETHERTYPES.contains(&number))
            .then_some(Claim::EtherType(number)),
            packet_kind::IP_PROTOCOL => {
                let protocol = u8::try_from(number).ok()?;
                (!OWN_PROTOCOLS.contains(&protocol)).then_some(Claim::Protocol(protocol))
            }
            packet_kind::UDP_PORT => (number != 0).then_some(Claim::UdpPort(number)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    id: u32,
    device: u8,
    claim: Claim,
    owner: AttachmentId,
    cookie: u64,
}

/// The packet queues of one elastic thread.
#[derive(Debug, Default)]
pub(crate) struct PacketQueues {
    queues: Vec<Queue>,
    last_id: u32,
}

impl PacketQueues {
    /// True if there is a packet queue.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.queues.is_empty()
    }

    fn find(&self, device: u8, claim: Claim) -> Option<Queue> {
        let found = |queue: &&Queue| (queue.device, queue.claim) == (device, claim);
        self.queues.iter().find(found).copied()
    }

    /// True if a queue of any device receives the datagrams to this port.
    pub fn has_udp(&self, port: u16) -> bool {
        self.queues.iter().any(|queue| queue.claim == Claim::UdpPort(port))
    }

    /// A queue of the caller.
    fn get(&self, cx: &Context, id: u32) -> Result<Queue, CallError> {
        let found = self.queues.iter().find(|queue| (queue.id, queue.owner) == (id, cx.caller));
        found.copied().ok_or(CallError::BadHandle)
    }

    /// The process that receives the datagrams to this port of a device.
    pub fn owner_of_udp(&self, device: u8, port: u16) -> Option<AttachmentId> {
        self.find(device, Claim::UdpPort(port)).map(|queue| queue.owner)
    }

    /// Ends all queues of a process.
    pub fn end_all_of(&mut self, owner: AttachmentId) {
        self.queues.retain(|queue| queue.owner != owner);
    }
}

/// Calls. Not inlined, so that those of TCP stay together.
impl PacketQueues {
    #[cold]
    pub(crate) fn bind(
        &mut self,
        io: &Io,
        (admission, udp): (&Admission, &UdpTable),
        device: u32,
        (kind, number): (u64, u64),
        cookie: Cookie,
    ) -> Answer {
        let claim = Claim::new(kind, number).ok_or(CallError::Invalid)?;
        let at = device as usize;
        let port = io.ports.get(at).ok_or(CallError::Invalid)?;
        match claim {
            Claim::EtherType(number) if is_shared(port) && !admission.names_ethertype(number) => {
                return Err(CallError::NotLocal);
            }
            Claim::UdpPort(number) if udp.has_port(number) => return Err(CallError::InUse),
            _ => {}
        }
        let device = at as u8;
        if self.find(device, claim).is_some() {
            return Err(CallError::InUse);
        }
        if self.queues.len() >= QUEUES_MAX {
            return Err(CallError::NoResource);
        }
        self.last_id = self.last_id.wrapping_add(1);
        let id = self.last_id;
        let owner = io.cx.caller;
        self.queues.push(Queue { id, device, claim, owner, cookie });
        Ok(id.into())
    }

    #[cold]
    pub(crate) fn unbind(&mut self, cx: &Context, id: u32) -> Answer {
        let gone = self.get(cx, id)?.id;
        self.queues.retain(|queue| queue.id != gone);
        Ok(0)
    }

    #[cold]
    pub(crate) fn sendv(
        &self,
        io: &mut Io,
        qdisc: &Qdisc,
        id: u32,
        sg: SgArray,
        cookie: Cookie,
    ) -> Answer {
        let device = usize::from(self.get(&io.cx, id)?.device);
        if sg.entries > SG_MAX as u64 {
            return Err(CallError::Invalid);
        }
        // The bytes were copied, so their memory is free at once; its event needs room too.
        if !io.cx.attached[io.cx.caller].events.has_room() {
            return Err(CallError::NoResource);
        }
        let room = frame_bytes_max(&io.ports[device]);
        let mut mbuf = io.take_tx_frame(device as u8).ok_or(CallError::NoResource)?;
        mbuf.set_range(HEADROOM_BYTES, room);
        let gathered = io.cx.shared.gather(io.cx.shift, sg, mbuf.bytes_mut(&io.cx.shared.memory));
        let judged = gathered.and_then(|len| {
            mbuf.truncate(len);
            if len < ethernet::HEADER_BYTES {
                return Err(CallError::Invalid);
            }
            judge_foreign(io, qdisc, device, &mbuf).map_err(|reason| {
                io.cx.metrics.drop_local(reason);
                CallError::Filtered
            })?;
            match is_to_sender(mbuf.bytes(&io.cx.shared.memory), io.ports[device].info.mac) {
                true => Err(CallError::Invalid),
                false => Ok(len),
            }
        });
        match judged {
            Ok(len) => {
                io.ports[device].queue.push_back(mbuf);
                io.cx.attached.push(io.cx.caller, Event::PacketSent { cookie });
                Ok(len as u64)
            }
            Err(code) => {
                io.cx.tx_pool.put(mbuf);
                Err(code)
            }
        }
    }

    #[cold]
    pub(crate) fn info(
        &self,
        io: &Io,
        admission: &Admission,
        qdisc: &Qdisc,
        id: u32,
        to: u64,
    ) -> Answer {
        let device = self.get(&io.cx, id)?.device;
        let port = &io.ports[usize::from(device)];
        let has = |yes, flag| if yes { flag } else { 0 };
        let tx = qdisc.filters().is_some();
        let rx = admission.is_filtered();
        let flags = has(port.info.partial_checksums, packet_flag::PARTIAL_CHECKSUMS)
            | has(port.info.shared_frames, packet_flag::SHARED_FRAMES)
            | has(tx, packet_flag::TX_FILTERED)
            | has(rx, packet_flag::RX_FILTERED)
            | has(!is_shared(port), packet_flag::ANY_ETHER_TYPE);
        let info = PacketInfo {
            mac: port.info.mac,
            device: device.into(),
            frame_bytes_max: frame_bytes_max(port) as u32,
            flags,
            queues_max: QUEUES_MAX as u32,
            held_max: io.cx.lent_max() as u32,
        };
        if io.cx.shared.write_info(io.cx.shift, to, info) { Ok(0) } else { Err(CallError::Fault) }
    }
}

/// The result for a frame that the parser has refused.
pub(crate) enum Claimed {
    /// A queue has received it.
    Taken,
    /// A receive filter steers it to another thread.
    Elsewhere(usize, Mbuf),
    /// It must be dropped.
    Dropped(Dropped, Mbuf),
}

/// Received frames.
impl PacketQueues {
    /// Gives a parsed datagram to the queue that has bound its port; returns it if there is none.
    #[inline]
    pub fn take_datagram(
        &self,
        cx: &mut Context,
        batch: &mut Batch,
        work: &Work,
        port: u16,
        mbuf: Mbuf,
    ) -> Result<Option<Mbuf>, Dropped> {
        if !self.is_any() {
            return Ok(Some(mbuf));
        }
        let Some(queue) = self.find(work.port, Claim::UdpPort(port)) else {
            return Ok(Some(mbuf));
        };
        match enqueue(cx, queue, work.tails, mbuf) {
            None => Ok(None),
            Some(mbuf) => {
                batch.give_back(&mut cx.rx_pool, work, mbuf);
                Err(LocalDrop::PacketQueueFull.into())
            }
        }
    }

    /// Finds out what happens to a frame that the parser has refused for this reason: a queue wants
    /// it, a receive filter steers it to another thread, or it is dropped. It may be in several
    /// pieces.
    #[cold]
    pub fn claim(
        &self,
        io: &mut Io,
        admission: &mut Admission,
        device: u8,
        reason: Dropped,
        tails: usize,
        mbuf: Mbuf,
    ) -> Claimed {
        let header = match header_of_refused(&io.cx, reason, &mbuf) {
            Ok(header) => header,
            Err(reason) => return Claimed::Dropped(reason, mbuf),
        };
        // A queue does not take a frame in several pieces. Filters and rates are checked by the
        // thread that receives it.
        if tails == 0
            && let Some(to) = admission.queue_of(&header)
            && to != io.cx.index
        {
            // A thread whose program does not return must not get all frames of this one.
            let shared = &io.cx.shared;
            if io.cx.rx_pool.owned() < shared.memory.rx_frames().len() / shared.threads() / 2 {
                return Claimed::Dropped(LocalDrop::ForwardFull.into(), mbuf);
            }
            return Claimed::Elsewhere(to, mbuf);
        }
        let whole = mbuf.len() + if tails > 0 { ROOM_BYTES } else { 0 };
        match self.queue_of_refused(io, admission, device, &header, reason, whole) {
            Ok(queue) => match enqueue(&mut io.cx, queue, tails, mbuf) {
                None => Claimed::Taken,
                Some(mbuf) => Claimed::Dropped(LocalDrop::PacketQueueFull.into(), mbuf),
            },
            Err(reason) => Claimed::Dropped(reason, mbuf),
        }
    }

    /// The queue of this thread that wants a refused frame of this length, or why it is dropped.
    fn queue_of_refused(
        &self,
        io: &Io,
        admission: &mut Admission,
        device: u8,
        header: &Header,
        reason: Dropped,
        whole: usize,
    ) -> Result<Queue, Dropped> {
        let claim = match header.ip {
            Some(ip) => Claim::Protocol(ip.protocol),
            None => Claim::EtherType(header.ethertype),
        };
        let queue = self.find(device, claim).ok_or(reason)?;
        if let Some(checks) = admission.checks() {
            checks.hears_header(header, whole, io.cx.now_us)?;
        }
        let own_mac = io.ports[usize::from(device)].info.mac;
        if header.eth_dst != own_mac && !is_group_mac(&header.eth_dst) {
            return Err(DropReason::EthNotForUs.into());
        }
        if let Some(ip) = header.ip {
            let (src, dst) = (address(header, ip.src), address(header, ip.dst));
            if !io.cx.shared.config.is_local(dst) {
                return Err(DropReason::IpNotForUs.into());
            }
            if io.cx.shared.config.is_local(src) {
                return Err(DropReason::IpMartianSource.into());
            }
        }
        Ok(queue)
    }
}

/// The headers of a refused frame that may be a queue's, or why it is dropped.
fn header_of_refused(cx: &Context, reason: Dropped, mbuf: &Mbuf) -> Result<Header, Dropped> {
    let Dropped::Packet(cause) = reason else { return Err(reason) };
    if !matches!(cause, DropReason::EthUnknownType | DropReason::IpUnknownProtocol) {
        return Err(reason);
    }
    // Its peer may still change the frame, so a copy is checked.
    let bytes = mbuf.bytes(&cx.shared.memory);
    let mut front = [0; FRONT_BYTES];
    let len = bytes.len().min(FRONT_BYTES);
    front[..len].copy_from_slice(&bytes[..len]);
    Header::read(&front[..len]).ok_or(reason)
}

/// Lends a frame to the application and announces it. Returns the frame if the application holds
/// too many, or if the frame is in several pieces.
fn enqueue(cx: &mut Context, queue: Queue, tails: usize, mbuf: Mbuf) -> Option<Mbuf> {
    if tails > 0 || !cx.may_lend(queue.owner) {
        return Some(mbuf);
    }
    let data = RxData { addr: cx.shared.memory.addr_of(&mbuf), len: mbuf.len() as u32 };
    cx.attached.push(queue.owner, Event::PacketRecv { cookie: queue.cookie, data });
    cx.lend(mbuf, queue.owner);
    None
}

/// Whether a frame is for the device that would send it, or for its own source. No device returns
/// such a frame, and to the dataplane it would look like a packet of its own to itself
/// ([`crate::looped`]).
fn is_to_sender(frame: &[u8], own: MacAddr) -> bool {
    let dst = frame.get(..6);
    dst == Some(&own[..]) || dst == frame.get(6..12)
}

/// Whether a frame that the application has built may be sent.
fn judge_foreign(io: &Io, qdisc: &Qdisc, device: usize, mbuf: &Mbuf) -> Result<(), LocalDrop> {
    let (frame, port) = (mbuf.bytes(&io.cx.shared.memory), &io.ports[device]);
    match qdisc.filters() {
        Some(checks) => checks.judge(frame, port.info.mac),
        None => in_own_name(frame, port, &io.cx.shared),
    }
}

impl Context {
    /// Announces a number that another thread has sent.
    /// Its process on this thread hears it.
    pub(crate) fn hear_signal(&mut self, from: usize, (of, life): (AttachmentId, u32), value: u64) {
        // An application that does not read does not fill our memory.
        let hears = |one: &Attachment| {
            one.calls.is_some() && one.life == life && one.events.late() < SIGNALS_LATE_MAX
        };
        if self.attached.get(of).is_some_and(hears) {
            self.attached.push(of, Event::Signal { from: from as u32, value });
        }
    }

    /// Makes another process of the program that shares this thread return from its wait. One that
    /// computes hears it when it returns; once is enough.
    #[cold]
    pub(crate) fn nudge(&mut self, to: u32) -> Result<(), CallError> {
        let number = AttachmentId::try_from(to).map_err(|_| CallError::Invalid)?;
        let one = self.attached.get(number).filter(|one| !one.has_ended());
        let one = one.ok_or(CallError::Invalid)?;
        if !one.has_entered {
            return Err(CallError::State);
        }
        if one.events.late() == 0 && one.events.has_room() {
            self.attached.push(number, Event::Signal { from: self.index as u32, value: 0 });
        }
        Ok(())
    }
}

/// The check without transmit filters: the frame must come from the device's Ethernet address, and
/// IP and ARP must name an own address as the sender. Other EtherTypes are allowed only if
/// nothing else uses the interface.
fn in_own_name(frame: &[u8], port: &Port, shared: &Shared) -> Result<(), LocalDrop> {
    let header = Header::read(frame).ok_or(LocalDrop::TxForeignOther)?;
    let mac: MacAddr = port.info.mac;
    if header.eth_src != mac {
        return Err(LocalDrop::TxForeignMac);
    }
    if header.vlan != UNTAGGED {
        return Err(LocalDrop::TxForeignVlan);
    }
    let is_ours = |number| shared.config.is_local(address(&header, number));
    let ok = |yes, reason| if yes { Ok(()) } else { Err(reason) };
    match (header.ip, header.arp) {
        (Some(ip), _) => ok(is_ours(ip.src), LocalDrop::TxForeignAddress),
        (_, Some(arp)) if arp.sender_mac != mac => Err(LocalDrop::TxForeignMac),
        (_, Some(arp)) => ok(is_ours(arp.sender.into()), LocalDrop::TxForeignAddress),
        _ => {
            let own = OWN_ETHERTYPES.contains(&header.ethertype);
            let usual = header.ethertype >= ETHERTYPE_MIN && !own;
            ok(usual && !is_shared(port), LocalDrop::TxForeignOther)
        }
    }
}

/// An address of a packet, as its header has it.
fn address(header: &Header, number: u128) -> IpAddr {
    match header.ethertype {
        ethernet::TYPE_IPV6 => IpAddr(number.to_be_bytes()),
        _ => IpAddr::v4((number as u32).to_be_bytes()),
    }
}

/// Whether Linux uses the interface too, with the same Ethernet address.
fn is_shared(port: &Port) -> bool {
    matches!(port.info.kind, NicKind::Afxdp(_))
}

/// Length of the longest frame that a queue sends by a device: what one buffer holds.
fn frame_bytes_max(port: &Port) -> usize {
    (port.info.mtu + ethernet::HEADER_BYTES).min(ROOM_BYTES)
}
