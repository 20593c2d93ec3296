//! Datagrams to several hosts: groups that sockets listen to, and broadcasts.
use crate::calls::Answer;
use crate::context::Context;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::batch::{Batch, Work};
use crate::udp::{label_of, own};
use crate::verdict::Verdict;
use ix_abi::{
    Addr, CallError, DatagramNotes, Endpoint, Event, GROUP_SOURCES_MAX, RxData, SgArray, SourceList,
};
use ix_mem::{HEADROOM_BYTES, Mbuf, ROOM_BYTES};
use ix_proto::crossing::AttachmentId;
use ix_tcp::groups::Filter;
use ix_tcp::udp::{UdpSocket, UdpSocketId, UdpTable};
use ix_wire::{FlowTuple, IpAddr, UdpPacket};

/// Longest payload of a datagram.
const PAYLOAD_BYTES_MAX: usize = 65_527;

/// Sets which sources of a group a socket listens to.
#[cold]
pub(crate) fn listen(
    sockets: &mut UdpTable,
    io: &mut Io,
    socket: u32,
    (group, excludes): (Addr, bool),
    sources: SourceList,
) -> Answer {
    let id = own(sockets, &io.cx, socket)?;
    let group = IpAddr(group);
    let at = sockets.get(id).map_or(IpAddr::UNSPECIFIED, |socket| socket.addr);
    let suits = group.is_v6() == at.is_v6() || at == IpAddr::UNSPECIFIED_V6;
    if !suits || !group.is_multicast() || group == IpAddr::EVERY_V6 {
        return Err(CallError::Invalid);
    }
    let sources = read_sources(&io.cx, sources)?;
    if sources.iter().any(|source| source.is_v6() != group.is_v6() || source.is_multicast()) {
        return Err(CallError::Invalid);
    }
    let filter = Filter::new(excludes, sources);
    let cx = &io.cx;
    let changed = cx.shared.neighbors.listen((cx.index, id.0), group, filter.clone());
    if changed.map_err(|_| CallError::NoResource)? {
        ring_others(cx);
    }
    sockets.listen(id, group, filter);
    Ok(0)
}

/// A socket that named sources of groups has ended.
#[cold]
pub(super) fn forget(cx: &Context, id: UdpSocketId) {
    if cx.shared.neighbors.forget_socket((cx.index, id.0)) {
        ring_others(cx);
    }
}

/// The other threads hear the groups that there are now. The broker is told of all changes of a
/// batch at once ([`crate::neighbors`]).
fn ring_others(cx: &Context) {
    (0..cx.shared.threads()).filter(|i| *i != cx.index).for_each(|i| cx.ring_thread(i));
}

/// Reads addresses from transmit memory, each once.
fn read_sources(cx: &Context, list: SourceList) -> Result<Vec<IpAddr>, CallError> {
    if list.count == 0 {
        return Ok(Vec::new());
    }
    if list.count > GROUP_SOURCES_MAX as u64 {
        return Err(CallError::Invalid);
    }
    let mut bytes = [0; GROUP_SOURCES_MAX * size_of::<Addr>()];
    let bytes = &mut bytes[..list.count as usize * size_of::<Addr>()];
    let memory = &cx.shared.memory;
    if !memory.in_arena(list.addr, bytes.len() as u64)
        || !memory.copy_from_app(list.addr.wrapping_add(cx.shift), bytes)
    {
        return Err(CallError::Fault);
    }
    Ok(bytes.as_chunks().0.iter().map(|address| IpAddr(*address)).collect())
}

/// A payload in received buffers, and what is told of it.
struct Received {
    peer: Endpoint,
    local: IpAddr,
    /// Hop limit, type of service and flow label.
    notes: DatagramNotes,
    /// Their ranges are those of the payload.
    parts: Vec<Mbuf>,
}

/// Gives a datagram to several hosts to each socket that wants it.
#[cold]
pub(super) fn receive(
    sockets: &UdpTable,
    io: &mut Io,
    batch: &mut Batch,
    work: &Work,
    mut mbuf: Mbuf,
    packet: &UdpPacket,
) -> Verdict {
    let tuple = packet.tuple();
    let to: Vec<UdpSocket> =
        sockets.of_group(tuple.local, tuple.local_port, tuple.remote).copied().collect();
    if to.is_empty() {
        // Nobody is told: no error is about a group (RFC 1122).
        batch.give_back(&mut io.cx.rx_pool, work, mbuf);
        return Err(LocalDrop::UdpNoSocket.into());
    }
    let label = label_of(io, &mbuf, packet);
    mbuf.trim_front(packet.payload.start.into());
    mbuf.truncate(packet.payload.len.into());
    let mut left = usize::from(packet.payload.more);
    let mut parts = vec![mbuf];
    parts.extend((0..work.tails).filter_map(|_| batch.take_tail(&mut left)));
    let peer = Endpoint { addr: tuple.remote.0, port: tuple.remote_port };
    let notes = DatagramNotes::new(packet.ip.ttl, packet.ip.tos, 0).with_label(label);
    give(io, &to, Received { peer, local: tuple.local, notes, parts })
}

/// Gives what a socket sends to a group to the sockets here that listen to it.
#[cold]
pub(super) fn loop_back(
    sockets: &UdpTable,
    io: &mut Io,
    from: &UdpSocket,
    tuple: &FlowTuple,
    sg: SgArray,
) -> Result<usize, CallError> {
    let mut payload = vec![0; PAYLOAD_BYTES_MAX];
    let len = io.cx.shared.gather(io.cx.shift, sg, &mut payload)?;
    let to: Vec<UdpSocket> =
        sockets.of_group(tuple.remote, tuple.remote_port, tuple.local).copied().collect();
    if to.is_empty() || !io.cx.hears(tuple.remote) {
        return Ok(len);
    }
    let mut parts = Vec::new();
    let shared = io.cx.shared.clone();
    // An empty datagram has a buffer too.
    for part in payload[..len].chunks(ROOM_BYTES).chain([&[][..]].into_iter().take(1 - len.min(1)))
    {
        let Some(mut mbuf) = io.cx.rx_pool.take() else {
            parts.into_iter().for_each(|mbuf| io.cx.rx_pool.put(mbuf));
            io.cx.metrics.drop_local(LocalDrop::UdpQueueFull);
            return Ok(len);
        };
        mbuf.set_range(HEADROOM_BYTES, part.len());
        mbuf.bytes_mut(&shared.memory).copy_from_slice(part);
        parts.push(mbuf);
    }
    let peer = Endpoint { addr: tuple.local.0, port: tuple.local_port };
    let label = from.label.unwrap_or_else(|| io.label_of(tuple));
    let label = if tuple.remote.is_v6() { label } else { 0 };
    let notes = DatagramNotes::new(from.ttl.max(1), from.tos, 0).with_label(label);
    let verdict = give(io, &to, Received { peer, local: tuple.remote, notes, parts });
    if let Err(reason) = verdict {
        reason.count(&io.cx.metrics);
    }
    Ok(len)
}

/// Announces a datagram to these sockets: to the last one in its own buffers, to the others in
/// copies.
fn give(io: &mut Io, to: &[UdpSocket], received: Received) -> Verdict {
    let mut verdict = Ok(());
    let mut given = Some(received);
    for (number, socket) in to.iter().enumerate() {
        let Some(received) = given.take() else { break };
        let is_last = number + 1 == to.len();
        let parts = match is_last {
            true => Some(Vec::new()),
            false => copies(io, &received.parts),
        };
        let own = match (is_last, parts) {
            (true, _) => received,
            (false, parts) => {
                let copy = parts.map(|parts| Received { parts, ..received.about() });
                given = Some(received);
                let Some(copy) = copy else {
                    verdict = Err(LocalDrop::UdpQueueFull.into());
                    continue;
                };
                copy
            }
        };
        verdict = verdict.and(announce(io, socket.owner, socket.cookie, own));
    }
    verdict
}

impl Received {
    /// The same without bytes.
    fn about(&self) -> Received {
        Received { parts: Vec::new(), ..*self }
    }
}

/// `None`: frames are short.
fn copies(io: &mut Io, parts: &[Mbuf]) -> Option<Vec<Mbuf>> {
    let shared = io.cx.shared.clone();
    let mut made = Vec::with_capacity(parts.len());
    for part in parts {
        let Some(mut mbuf) = io.cx.rx_pool.take() else {
            made.into_iter().for_each(|mbuf| io.cx.rx_pool.put(mbuf));
            return None;
        };
        mbuf.copy_of(part, &shared.memory);
        made.push(mbuf);
    }
    Some(made)
}

fn announce(io: &mut Io, owner: AttachmentId, cookie: u64, received: Received) -> Verdict {
    let Received { peer, local, notes, parts } = received;
    if !io.cx.may_lend_all(owner, parts.len()) {
        parts.into_iter().for_each(|mbuf| io.cx.rx_pool.put(mbuf));
        return Err(LocalDrop::UdpQueueFull.into());
    }
    let count = parts.len();
    for (number, mbuf) in parts.into_iter().enumerate() {
        let (addr, len) = (io.cx.shared.memory.addr_of(&mbuf), mbuf.len() as u32);
        let notes = notes.with_follows((count - number - 1) as u16);
        let data = RxData { addr, len };
        let event = Event::UdpRecv { cookie, peer, local: local.0, data, notes };
        io.cx.attached.push(owner, event);
        io.cx.lend(mbuf, owner);
    }
    Ok(())
}
