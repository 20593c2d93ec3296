//! Sending a datagram of IX. Errors are errnos.
use crate::error_queue::{ERRORS_MAX, ErrorEntry};
use crate::interface::Interfaces;
use crate::lock::Guard;
use crate::mem::Gather;
use crate::ops::{self, Outcome};
use crate::options::{IpFields, MtuDiscovery, SendOptions};
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Outgoing, Socket};
use crate::state::Core;
use crate::{family, log, wait};
use ix_abi::MulticastOption;
use libix::raw::TxBuf;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Longest IP packet, bytes. A datagram that is longer even without headers cannot be sent.
const DATAGRAM_MAX: usize = 65_535;
/// Length of the IPv4 and UDP headers.
const HEADERS_BYTES: usize = 28;
/// The same of IPv6.
const HEADERS_BYTES_V6: usize = 48;
/// Longest payload of a datagram over IPv6.
const PAYLOAD_V6_MAX: usize = 65_535 - 8;

/// The control messages of a call that sends a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendControl {
    /// `IP_TTL` or `IPV6_HOPLIMIT`.
    pub ttl: Option<u8>,
    /// `IP_TOS` or `IPV6_TCLASS`.
    pub tos: Option<u8>,
    /// `IPV6_FLOWINFO`, in host byte order.
    pub flow_info: Option<u32>,
    /// `IPV6_DONTFRAG`.
    pub never_fragment: Option<bool>,
    /// `UDP_SEGMENT`: as the option.
    pub datagram_bytes: Option<u16>,
    /// `IP_PKTINFO` or `IPV6_PKTINFO`: the source address.
    pub from: Option<IpAddr>,
    /// The same: Linux's number of the interface; 0: any.
    pub interface: u32,
}

/// A datagram that a program wants to send.
#[derive(Clone, Copy)]
pub struct Datagram {
    /// Its destination; `None` for the peer of a connected socket.
    pub to: Option<SocketAddr>,
    /// The flow information of that destination, in host byte order.
    pub flow_info: u32,
    /// Its control messages.
    pub send_control: SendControl,
    /// Its length, bytes.
    pub len: usize,
    /// As [`SendOptions::fragment_bytes`], which `send_datagram` sets.
    pub fragment_bytes: u16,
    /// It is sent in several of this length, which `send_datagram` sets; 0: in one.
    pub datagram_bytes: usize,
}

/// Whether a datagram can leave by the interface that the program names.
fn by_interface(core: &mut Core, id: Id, datagram: &Datagram) -> Result<(), i32> {
    let wanted = datagram.send_control.interface;
    if wanted == 0 {
        return Ok(());
    }
    let own = own_address(core, id, datagram.to);
    if own.is_some_and(|own| core.interfaces.index_of(own) == wanted) {
        return Ok(());
    }
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room of ours, as long as names can be.
    let is_there = unsafe { !libc::if_indextoname(wanted, name.as_mut_ptr()).is_null() };
    Err(if is_there { libc::ENETUNREACH } else { libc::ENODEV })
}

/// Sends a datagram, or waits until there is room for it. Returns its length.
pub fn send_datagram(
    mut core: Guard,
    id: Id,
    from: &mut Gather<'_>,
    datagram: Datagram,
    nonblocking: bool,
    timeout: Option<Duration>,
) -> Outcome<usize> {
    if datagram.len > DATAGRAM_MAX {
        return Err(libc::EMSGSIZE.into());
    }
    let whose = datagram.to.map(|to| core.whose(id, to.ip())).transpose()?;
    if whose == Some(Whose::Linux) {
        let text =
            "a UDP socket of IX cannot send to an address of Linux's: use a socket for each side";
        log::once(log::Once::Datagram, text);
        return Err(libc::ENETUNREACH.into());
    }
    let is_broadcast = datagram.to.is_some_and(|to| core.routes.is_broadcast(to.ip()));
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    if is_broadcast && !socket.options.broadcast {
        return Err(libc::EACCES.into());
    }
    let bound = socket.bound.map(|at| at.ip());
    if let Some(to) = datagram.to {
        family::reaches(bound, to.ip())?;
    }
    if let Some(from) = datagram.send_control.from
        && own_address(&mut core, id, datagram.to) != Some(from)
    {
        return Err(libc::ENETUNREACH.into());
    }
    by_interface(&mut core, id, &datagram)?;
    wait::enter(&mut core)?;
    let datagram_bytes = datagram_bytes_of(&mut core, id, &datagram)?;
    let each = if datagram_bytes > 0 { datagram_bytes } else { datagram.len };
    let fragment_bytes = fragment_bytes_of(&mut core, id, &Datagram { len: each, ..datagram })?;
    let datagram = Datagram { fragment_bytes, datagram_bytes, ..datagram };
    let mut attempt = |core: &mut Core| give_datagram(core, id, from, datagram);
    if let Some(done) = attempt(&mut core) {
        return Ok(done?);
    }
    if nonblocking {
        core = ops::poll_if_repeated(core, id);
        return Ok(attempt(&mut core).unwrap_or(Err(libc::EAGAIN))?);
    }
    Ok(ops::block(core, id, timeout, attempt)?)
}

/// The source address of a datagram: the bound address, else the local address of the route to the
/// peer.
fn own_address(core: &mut Core, id: Id, to: Option<SocketAddr>) -> Option<IpAddr> {
    let socket = core.sockets.get_mut(id)?;
    let to = to.or(socket.datagrams()?.peer)?;
    let from = socket.options.towards(to.ip()).sends_from;
    let bound = socket.bound.map(|at| at.ip());
    let bound = bound.filter(|ip| !family::is_wildcard(*ip) && !core.routes.is_group(*ip));
    let bound = bound.or(from.filter(|_| to.ip().is_multicast()));
    bound.or_else(|| core.routes.own_towards(to.ip()))
}

/// Most datagrams that one call sends, as on Linux (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 128;

/// The [`Datagram::datagram_bytes`] of a datagram, with Linux's errnos (`udp_send_skb`): those of
/// several must each fit into a packet of the device.
fn datagram_bytes_of(core: &mut Core, id: Id, datagram: &Datagram) -> Result<usize, i32> {
    let mtu = core.device_mtu() as usize;
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF) };
    let set = socket.options.datagram_bytes;
    let each = usize::from(datagram.send_control.datagram_bytes.unwrap_or(set));
    if each == 0 || datagram.len <= each {
        return Ok(0);
    }
    let to = datagram.to.or(socket.peer());
    let is_v6 = to.is_some_and(|to| to.is_ipv6());
    let headers = if is_v6 { HEADERS_BYTES_V6 } else { HEADERS_BYTES };
    match () {
        () if each + headers > mtu => Err(libc::EMSGSIZE),
        () if datagram.len > each * SEGMENTS_MAX => Err(libc::EINVAL),
        () => Ok(each),
    }
}

/// The [`SendOptions::fragment_bytes`] of a datagram, or an errno if it is too long and the program
/// wants no fragments. The error also goes into the error queue.
fn fragment_bytes_of(core: &mut Core, id: Id, datagram: &Datagram) -> Result<u16, i32> {
    let device = u16::try_from(core.device_mtu()).unwrap_or(u16::MAX);
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF) };
    let peer = socket.peer();
    let Some(to) = datagram.to.or(peer) else { return Ok(0) };
    let options = socket.options.towards(to.ip());
    let discovery = options.mtu_discovery;
    let never_fragment = datagram.send_control.never_fragment.unwrap_or(options.never_fragment);
    let discovery = if never_fragment { MtuDiscovery::Do } else { discovery };
    let Some(udp) = socket.datagrams() else { return Err(libc::EBADF) };
    let known = core.paths.mtu(to.ip(), Instant::now()).filter(|_| discovery.heeds_icmp());
    let path = known.map_or(device, |path| path.min(device));
    let whole = match to.is_ipv6() {
        // The length of an IPv6 packet does not count its header (RFC 8200 section 3).
        true if datagram.len <= PAYLOAD_V6_MAX => {
            (datagram.len + HEADERS_BYTES_V6).min(usize::from(u16::MAX))
        }
        true => datagram.len + HEADERS_BYTES_V6,
        false => datagram.len + HEADERS_BYTES,
    };
    let info = match discovery.fragment_bytes(whole, path, device) {
        Ok(fragment_bytes) => return Ok(fragment_bytes),
        Err(mtu) => mtu,
    };
    let to = SocketAddr::new(to.ip(), peer.map_or(0, |peer| peer.port()));
    let error_entry = ErrorEntry { to, errno: libc::EMSGSIZE, said: None, info };
    if options.receive_errors && udp.errors.len() < ERRORS_MAX {
        udp.errors.push_back((error_entry, Vec::new()));
        core.notify(id, libc::EPOLLERR);
    }
    Err(libc::EMSGSIZE)
}

/// Copies the next bytes of a datagram.
fn fill(memory: &mut TxBuf, from: &mut Gather<'_>, mut bytes: usize) {
    while bytes > 0 && from.left() > 0 {
        let front = from.front();
        let n = memory.extend(&front[..front.len().min(bytes)]);
        from.advance(n);
        bytes -= n;
    }
}

fn give_datagram(
    core: &mut Core,
    id: Id,
    from: &mut Gather<'_>,
    datagram: Datagram,
) -> Option<Result<usize, i32>> {
    let share = core.tx_share();
    let Core { sockets, elastic_threads, routes, interfaces, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    let limit = socket.options.send_buffer;
    let to = datagram.to.or(socket.peer());
    let mut usual = to.map_or(IpFields::default(), |to| fields_of(socket, to, &datagram));
    let group = to.map(|to| to.ip()).filter(|to| routes.is_group(*to));
    let to_group = group.map(|to| sending(socket, interfaces, to));
    if let Some(to) = group.filter(|to| to.is_multicast()) {
        // One with 0 does not leave the host, which `to_group` says.
        usual.ttl = socket.options.towards(to).multicast_hops.max(1);
    }
    let elastic = &mut elastic_threads[socket.elastic];
    match socket.take_error() {
        0 => {}
        errno => return Some(Err(errno)),
    }
    let Some(udp) = socket.datagrams() else { return Some(Err(libc::EBADF)) };
    let Some(to) = to else { return Some(Err(libc::EDESTADDRREQ)) };
    if udp.write_shut {
        return Some(Err(libc::EPIPE));
    }
    if to.port() == 0 {
        return Some(Err(libc::EINVAL));
    }
    if from.is_wrong() {
        return Some(Err(libc::EFAULT));
    }
    if udp.in_flight_bytes >= limit {
        return None;
    }
    let len = datagram.len;
    let each = if datagram.datagram_bytes > 0 { datagram.datagram_bytes } else { len };
    let alloc = |len: usize| elastic.tx.as_ref().and_then(|tx| tx.0.alloc(len));
    // All of several, or none.
    let behind = (each..len).step_by(each.max(1)).map(|at| alloc(each.min(len - at)));
    let (Some(mut memory), Some(behind)) = (alloc(each), behind.collect::<Option<Vec<TxBuf>>>())
    else {
        elastic.starved = true;
        if !core::mem::replace(&mut socket.starving, true) {
            elastic.starves(share, id);
        }
        return None;
    };
    fill(&mut memory, from, each);
    udp.in_flight_bytes += len.max(1);
    let SendControl { ttl, tos, .. } = datagram.send_control;
    let ip_fields = usual.with(ttl, tos);
    let fragment_bytes = datagram.fragment_bytes;
    let send_options = SendOptions { ip_fields, fragment_bytes, to_group };
    udp.outbox.push_back(Outgoing { memory, to, send_options });
    for mut memory in behind {
        fill(&mut memory, from, each);
        udp.outbox.push_back(Outgoing { memory, to, send_options });
    }
    core.mark_dirty(id);
    Some(Ok(len))
}

/// The fields of a datagram's IP header, but for what its control messages say of hop limit and
/// type of service. As on Linux, the peer's label is not that of a destination that is named.
fn fields_of(socket: &Socket, to: SocketAddr, datagram: &Datagram) -> IpFields {
    let own = socket.options.towards(to.ip());
    let named = match datagram.to {
        Some(_) if own.heeds_flow_info => datagram.flow_info,
        Some(_) => 0,
        None => own.peer_flow_info,
    };
    own.fields_of(datagram.send_control.flow_info.unwrap_or(named))
}

/// How a socket sends to groups of a family.
fn sending(socket: &Socket, interfaces: &Interfaces, to: IpAddr) -> MulticastOption {
    let own = socket.options.towards(to);
    let device = own.sends_from.and_then(|from| interfaces.device_of(from));
    MulticastOption { loops: own.multicast_loops, stays: own.multicast_hops == 0, device }
}
