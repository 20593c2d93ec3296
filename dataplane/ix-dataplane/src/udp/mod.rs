//! UDP: the sockets of one elastic thread, received and sent datagrams.
pub mod cut;
#[cfg(test)]
mod group_tests;
pub(crate) mod groups;
#[cfg(test)]
mod tests;
use crate::calls::Answer;
use crate::context::Context;
use crate::icmp::call_error;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::batch::{Batch, Work};
use crate::shared::claims::PortAt;
use crate::udp::cut::Parts;
use crate::verdict::Verdict;
use ix_abi::{
    CallError, Cookie, DatagramNotes, Endpoint, Event, FlowOption, IcmpMessage, MulticastOption,
    RxData, SG_MAX, SgArray,
};
use ix_mem::{HEADROOM_BYTES, Mbuf};
use ix_proto::crossing::AttachmentId;
use ix_tcp::Asker;
use ix_tcp::arp::Resolution;
use ix_tcp::icmp::{ErrorMessage, IcmpError};
use ix_tcp::ports::Looks;
use ix_tcp::udp::{BindError, ToGroups, UdpSocket, UdpSocketId, UdpTable};
use ix_wire::membership::group_mac;
use ix_wire::{Checksum, FlowTuple, IpAddr, UdpPacket, ethernet, frame, ipv4, ipv6, udp};

/// Gives a datagram that no packet queue has taken to the socket of its port.
pub(crate) fn receive(
    sockets: &UdpTable,
    io: &mut Io,
    batch: &mut Batch,
    work: &Work,
    mbuf: Mbuf,
    packet: &UdpPacket,
) -> Verdict {
    let tuple = packet.tuple();
    if may_be_group(packet) && io.cx.is_group(tuple.local) {
        return groups::receive(sockets, io, batch, work, mbuf, packet);
    }
    let Some(socket) = sockets.lookup(tuple.local, tuple.local_port) else {
        let shared = io.cx.shared.clone();
        let bytes = mbuf.bytes(&shared.memory);
        let frame = &bytes[..bytes.len().min(ErrorMessage::FRAME_BYTES_MAX)];
        // Nor if a datagram to all hosts comes in a frame to us alone.
        if !io.cx.is_group(tuple.local)
            && let Some(message) = ErrorMessage::port_unreachable(packet)
        {
            io.send_icmp_error(work.port, &message, frame);
        }
        batch.give_back(&mut io.cx.rx_pool, work, mbuf);
        return Err(LocalDrop::UdpNoSocket.into());
    };
    if !io.cx.may_lend_all(socket.owner, 1 + work.tails) {
        batch.give_back(&mut io.cx.rx_pool, work, mbuf);
        return Err(LocalDrop::UdpQueueFull.into());
    }
    let addr = io.cx.shared.memory.addr_of(&mbuf) + packet.payload.start as u64;
    let label = label_of(io, &mbuf, packet);
    let event = Event::UdpRecv {
        cookie: socket.cookie,
        peer: Endpoint { addr: tuple.remote.0, port: tuple.remote_port },
        local: tuple.local.0,
        data: RxData { addr, len: packet.payload.len.into() },
        notes: DatagramNotes::new(packet.ip.ttl, packet.ip.tos, work.tails as u16)
            .with_label(label),
    };
    io.cx.attached.push(socket.owner, event);
    io.cx.lend(mbuf, socket.owner);
    if work.tails > 0 {
        push_rest(io, batch, work.tails, (socket.owner, event), packet.payload.more.into());
    }
    Ok(())
}

/// The flow label of a datagram; 0 over IPv4.
#[inline(always)]
fn label_of(io: &Io, mbuf: &Mbuf, packet: &UdpPacket) -> u32 {
    if packet.ip.src.is_v6() { ipv6::label_of(mbuf.bytes(&io.cx.shared.memory)) } else { 0 }
}

/// Whether a datagram may be for several hosts, by what most others do not have: the address of a
/// group in the frame, or the first octet of one in the packet.
#[inline(always)]
fn may_be_group(packet: &UdpPacket) -> bool {
    let to = &packet.ip.dst.0;
    packet.ip.eth_dst[0] & 1 != 0 || to[12] >= 224 || to[0] == 0xff
}

/// Announces the other buffers of a datagram, each by an event like that of the first one.
#[cold]
fn push_rest(
    io: &mut Io,
    batch: &mut Batch,
    tails: usize,
    (owner, first): (AttachmentId, Event),
    mut left: usize,
) {
    for number in 0..tails {
        let Some(mbuf) = batch.take_tail(&mut left) else { return };
        let (addr, len) = (io.cx.shared.memory.addr_of(&mbuf), mbuf.len() as u32);
        let mut event = first;
        if let Event::UdpRecv { data, notes, .. } = &mut event {
            *data = RxData { addr, len };
            *notes = notes.with_follows((tails - number - 1) as u16);
        }
        io.cx.attached.push(owner, event);
        io.cx.lend(mbuf, owner);
    }
}

/// Gives an ICMP error about a sent datagram to its socket (RFC 1122 section 4.1.3.3), with the
/// quoted bytes unless the application holds too many buffers. So also the MTU of a link (RFC 1191
/// section 6.5), because datagrams are sent with DF.
pub(crate) fn path_error(
    sockets: &UdpTable,
    io: &mut Io,
    batch: &mut Batch,
    work: &Work,
    mbuf: Mbuf,
    said: &IcmpError,
) {
    let tuple = &said.tuple;
    let Some(socket) = sockets.lookup(tuple.local, tuple.local_port) else {
        return batch.give_back(&mut io.cx.rx_pool, work, mbuf);
    };
    let event = |quoted| Event::UdpError {
        cookie: socket.cookie,
        peer: Endpoint { addr: tuple.remote.0, port: tuple.remote_port },
        why: call_error(said),
        icmp: IcmpMessage::new(said.said, said.by.0),
        quoted,
    };
    let has_room = work.tails == 0 && io.cx.may_lend(socket.owner);
    if said.quoted.len == 0 || !has_room {
        io.cx.attached.push(socket.owner, event(RxData::default()));
        return batch.give_back(&mut io.cx.rx_pool, work, mbuf);
    }
    let addr = io.cx.shared.memory.addr_of(&mbuf) + u64::from(said.quoted.start);
    io.cx.attached.push(socket.owner, event(RxData { addr, len: said.quoted.len.into() }));
    io.cx.lend(mbuf, socket.owner);
}

/// RFC 1122 section 4.1.4: the application may choose type of service and hop limit.
pub(crate) fn set_opt(
    sockets: &mut UdpTable,
    cx: &Context,
    socket: u32,
    option: FlowOption,
) -> Answer {
    let socket = sockets.get_mut(own(sockets, cx, socket)?).ok_or(CallError::BadHandle)?;
    match option {
        FlowOption::Dscp(point) => socket.tos = point << 2,
        FlowOption::HopLimit(hops) => socket.ttl = hops,
        FlowOption::FragmentBytes(bytes) => socket.fragment_bytes = bytes,
        FlowOption::FlowLabel(label) => socket.label = label,
        FlowOption::Multicast(MulticastOption { loops, stays, device }) => {
            socket.to_groups = ToGroups { loops, stays, device };
        }
        _ => return Err(CallError::Invalid),
    }
    Ok(0)
}

/// Binds a socket. `random` chooses a port if none is given, as far as `looks` allow; `is_taken`: a
/// packet queue has bound the port.
pub(crate) fn bind(
    sockets: &mut UdpTable,
    cx: &Context,
    (random, looks): (u32, &mut Looks),
    is_taken: impl Fn(u16) -> bool,
    (at, cookie): (Endpoint, Cookie),
) -> Answer {
    let (addr, port) = (IpAddr(at.addr), at.port);
    may_bind(cx, addr)?;
    let claims = &cx.shared.claims;
    let bound = if port == 0 {
        let from = (claims.datagram_ports(), random);
        let found = sockets.bind_ephemeral(addr, cookie, from, looks, |port| !is_taken(port));
        found.map(|(id, _)| id)
    } else if is_taken(port) {
        return Err(CallError::InUse);
    } else {
        let source = &cx.shared.updates.source;
        let claimed = PortAt { udp: true, addr, number: port };
        claims.enter(source, claimed, cx.now_us)?;
        sockets.bind(addr, port, cookie).inspect_err(|_| claims.leave(source, claimed))
    };
    if let Some(socket) = bound.ok().and_then(|id| sockets.get_mut(id)) {
        socket.owner = cx.caller;
    }
    bound.map(|id| u64::from(id.0)).map_err(error_of)
}

/// A socket of a group, or of a broadcast, gets what is sent to it, and nothing else.
fn may_bind(cx: &Context, addr: IpAddr) -> Result<(), CallError> {
    if addr.is_wildcard() || cx.is_group(addr) { Ok(()) } else { cx.may_use(addr) }
}

fn error_of(e: BindError) -> CallError {
    match e {
        BindError::InUse => CallError::InUse,
        BindError::NoPort | BindError::TooMany => CallError::NoResource,
    }
}

/// Binds a socket where other processes of the program may have the same address and port. One of
/// them gets what arrives there: the one that `takes`.
pub(crate) fn share(
    sockets: &mut UdpTable,
    cx: &Context,
    is_taken: bool,
    (at, cookie): (Endpoint, Cookie),
    takes: bool,
) -> Answer {
    let (addr, port) = (IpAddr(at.addr), at.port);
    // Processes share a port that they name: each would be given another one.
    if port == 0 {
        return Err(CallError::Invalid);
    }
    may_bind(cx, addr)?;
    if is_taken {
        return Err(CallError::InUse);
    }
    let source = &cx.shared.updates.source;
    let claimed = PortAt { udp: true, addr, number: port };
    // The port is claimed once for all of them.
    let is_first = !sockets.has(addr, port);
    if is_first {
        cx.shared.claims.enter(source, claimed, cx.now_us)?;
    }
    let shared = sockets.share((addr, port), cookie, cx.caller, takes);
    if is_first && shared.is_err() {
        cx.shared.claims.leave(source, claimed);
    }
    shared.map(|id| u64::from(id.0)).map_err(error_of)
}

/// Ends a socket.
pub(crate) fn unbind(sockets: &mut UdpTable, cx: &Context, socket: u32) -> Answer {
    let id = own(sockets, cx, socket)?;
    end(sockets, cx, id).map(|()| 0).ok_or(CallError::BadHandle)
}

/// Ends a socket, whoever has it; its port may be Linux's again.
pub(crate) fn end(sockets: &mut UdpTable, cx: &Context, id: UdpSocketId) -> Option<()> {
    let ended = sockets.unbind(id)?;
    if ended.listens {
        groups::forget(cx, id);
    }
    if !sockets.has(ended.addr, ended.port) {
        let claimed = PortAt { udp: true, addr: ended.addr, number: ended.port };
        cx.shared.claims.leave(&cx.shared.updates.source, claimed);
    }
    Some(())
}

/// Ends all sockets of a process; their ports may be Linux's again.
pub(crate) fn end_all_of(sockets: &mut UdpTable, cx: &Context, owner: AttachmentId) {
    let of_it = sockets.iter().filter(|socket| socket.owner == owner).map(|socket| socket.id);
    for id in of_it.collect::<Vec<_>>() {
        end(sockets, cx, id);
    }
}

/// The caller's socket of this number.
fn own(sockets: &UdpTable, cx: &Context, socket: u32) -> Result<UdpSocketId, CallError> {
    let id = UdpSocketId(socket);
    let is_its = sockets.get(id).is_some_and(|socket| socket.owner == cx.caller);
    if is_its { Ok(id) } else { Err(CallError::BadHandle) }
}

/// Sends a datagram.
pub(crate) fn sendv(
    sockets: &UdpTable,
    io: &mut Io,
    socket: u32,
    to: Endpoint,
    sg: SgArray,
    cookie: Cookie,
) -> Answer {
    let socket = *sockets.get(own(sockets, &io.cx, socket)?).ok_or(CallError::BadHandle)?;
    let (remote, remote_port) = (IpAddr(to.addr), to.port);
    if sg.entries > SG_MAX as u64 || remote_port == 0 {
        return Err(CallError::Invalid);
    }
    let is_group = io.cx.is_group(remote);
    let local = match is_group {
        true => io.cx.group_source(remote, socket.to_groups.device, io.ports.len()),
        false => io.cx.route(remote).map(|(local, _)| local),
    };
    let local = local.ok_or(CallError::Unreachable)?;
    if io.ports.is_empty() {
        return Err(CallError::Unreachable);
    }
    // The bytes were copied, so their memory is free at once; its event needs room too.
    if !io.cx.attached[io.cx.caller].events.has_room() {
        return Err(CallError::NoResource);
    }
    let reaches = remote.is_v6() == socket.addr.is_v6() || socket.addr == IpAddr::UNSPECIFIED_V6;
    if !reaches {
        return Err(CallError::Invalid);
    }
    // Nobody is a group (RFC 1122 section 3.2.1.3).
    let is_own = !socket.addr.is_wildcard() && !io.cx.is_group(socket.addr);
    let local = if is_own { socket.addr } else { local };
    let tuple = FlowTuple { local, remote, local_port: socket.port, remote_port };
    let sent = match is_group {
        true => send_to_group(sockets, io, &socket, &tuple, sg)?,
        false => send_datagram(io, &socket, &tuple, sg)?,
    };
    io.cx.attached.push(io.cx.caller, Event::UdpSent { cookie });
    Ok(sent as u64)
}

/// Sends a datagram to several hosts, and to sockets of this one: a broadcast always, as on Linux.
#[cold]
fn send_to_group(
    sockets: &UdpTable,
    io: &mut Io,
    socket: &UdpSocket,
    tuple: &FlowTuple,
    sg: SgArray,
) -> Result<usize, CallError> {
    let ToGroups { loops, stays, .. } = socket.to_groups;
    let is_broadcast = !tuple.remote.is_multicast();
    // RFC 1112 section 6.1.
    let ttl = if is_broadcast || socket.ttl > 0 { socket.ttl } else { 1 };
    let socket = UdpSocket { ttl, ..*socket };
    let sent = match stays && !is_broadcast {
        true => None,
        false => Some(send_datagram(io, &socket, tuple, sg)?),
    };
    match loops || is_broadcast {
        true => groups::loop_back(sockets, io, &socket, tuple, sg),
        // Not sent and not heard: it has been counted by nobody.
        false => Ok(sent.unwrap_or(0)),
    }
}

fn send_datagram(
    io: &mut Io,
    socket: &UdpSocket,
    tuple: &FlowTuple,
    sg: SgArray,
) -> Result<usize, CallError> {
    let port = io.cx.shared.config.device_of(tuple.local, io.ports.len());
    let to = (tuple, Asker::Own);
    let resolution = match io.cx.is_group(tuple.remote) {
        true => Resolution::Known(group_mac(tuple.remote)),
        false => io.resolve(to, port),
    };
    let eth_dst = match resolution {
        Resolution::Known(mac) => mac,
        Resolution::Pending => [0; 6],
        Resolution::Failed => return Err(CallError::Unreachable),
    };
    let mut header = io.frame_header(port, eth_dst, tuple);
    header.ident = match socket.label {
        Some(label) if tuple.remote.is_v6() => label,
        _ => io.label_of(tuple),
    };
    header.tos = socket.tos;
    header.ttl = if socket.ttl == 0 { header.ttl } else { socket.ttl };
    let mtu = io.ports[port as usize].info.mtu;
    let of_route = io.cx.route_mtu(tuple.remote).map(usize::from);
    let told = if tuple.remote.is_v6() { io.cx.learnt.mtu } else { of_route };
    let mtu = told.map_or(mtu, |told| told.min(mtu));
    if socket.fragment_bytes > 0 {
        // RFC 8200 section 5: no link of IPv6 takes less.
        let mtu_min = if tuple.remote.is_v6() { ipv6::MTU_MIN } else { 0 };
        let mtu = mtu.min(socket.fragment_bytes.max(mtu_min).into());
        let ident = io.idents.next(tuple.local, tuple.remote, ipv4::PROTOCOL_UDP);
        if !tuple.remote.is_v6() {
            header.ident = ident & 0xffff;
        }
        let ports = (tuple.local_port, tuple.remote_port);
        let Parts { mbufs, len } = cut::cut(io, port, (&header, ident), ports, sg, (mtu, true))?;
        mbufs.into_iter().for_each(|mbuf| io.send_or_wait(to, port, &resolution, mbuf));
        return Ok(len);
    }
    let headers_bytes = frame::headers_bytes_to(tuple.remote) + udp::HEADER_BYTES;
    let payload_max = (mtu + ethernet::HEADER_BYTES).min(ix_mem::ROOM_BYTES) - headers_bytes;
    let mut mbuf = io.take_tx_frame(port).ok_or(CallError::NoResource)?;
    mbuf.set_range(HEADROOM_BYTES, headers_bytes + payload_max);
    let (headers, payload) = mbuf.bytes_mut(&io.cx.shared.memory).split_at_mut(headers_bytes);
    let len = match io.cx.shared.gather(io.cx.shift, sg, payload) {
        Ok(len) => len,
        // In several buffers.
        Err(CallError::TooLong) if mtu + ethernet::HEADER_BYTES > ix_mem::ROOM_BYTES => {
            io.cx.tx_pool.put(mbuf);
            let (ports, mtu) = ((tuple.local_port, tuple.remote_port), (mtu, false));
            let Parts { mbufs, len } = cut::cut(io, port, (&header, 0), ports, sg, mtu)?;
            mbufs.into_iter().for_each(|mbuf| io.send_or_wait(to, port, &resolution, mbuf));
            return Ok(len);
        }
        Err(code) => {
            io.cx.tx_pool.put(mbuf);
            return Err(code);
        }
    };
    let sum = Checksum::of(&payload[..len]);
    header.emit_udp(headers, tuple.local_port, tuple.remote_port, len, sum);
    mbuf.truncate(headers_bytes + len);
    io.send_or_wait(to, port, &resolution, mbuf);
    Ok(len)
}

/// The application returns a received datagram or frame.
pub(crate) fn recv_done(cx: &mut Context, data: u64) -> Answer {
    let frame = cx.shared.memory.rx_frame_of(data).ok_or(CallError::Fault)?;
    let mbuf = cx.lent.take_back(frame, cx.caller).ok_or(CallError::BadHandle)?;
    cx.attached[cx.caller].lent -= 1;
    cx.rx_pool.put(mbuf);
    Ok(0)
}
