//! Sending a datagram of IX. Errors are errnos.
use crate::error_queue::{ERRORS_MAX, ErrorEntry};
use crate::lock::Guard;
use crate::mem::Gather;
use crate::ops::{self, Outcome};
use crate::options::{IpFields, MtuDiscovery, SendOptions};
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::Outgoing;
use crate::state::Core;
use crate::{family, log, wait};
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
    /// `IPV6_DONTFRAG`.
    pub never_fragment: Option<bool>,
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
    /// Its control messages.
    pub send_control: SendControl,
    /// Its length, bytes.
    pub len: usize,
    /// As [`SendOptions::fragment_bytes`], which `send_datagram` sets.
    pub fragment_bytes: u16,
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
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
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
    let fragment_bytes = fragment_bytes_of(&mut core, id, &datagram)?;
    let datagram = Datagram { fragment_bytes, ..datagram };
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
    let bound = socket.bound.map(|at| at.ip()).filter(|ip| !family::is_wildcard(*ip));
    let to = to.or(socket.datagrams()?.peer)?;
    bound.or_else(|| core.routes.own_towards(to.ip()))
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

fn give_datagram(
    core: &mut Core,
    id: Id,
    from: &mut Gather<'_>,
    datagram: Datagram,
) -> Option<Result<usize, i32>> {
    let share = core.tx_share();
    let Core { sockets, elastic_threads, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Some(Err(libc::EBADF)) };
    let limit = socket.options.send_buffer;
    let to = datagram.to.or(socket.peer());
    let usual = to.map_or(IpFields::default(), |to| socket.options.towards(to.ip()).fields);
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
    let Some(mut memory) = elastic.tx.as_ref().and_then(|tx| tx.0.alloc(len)) else {
        elastic.starved = true;
        if !core::mem::replace(&mut socket.starving, true) {
            elastic.starves(share, id);
        }
        return None;
    };
    while from.left() > 0 {
        let n = memory.extend(from.front());
        from.advance(n);
    }
    udp.in_flight_bytes += len.max(1);
    let SendControl { ttl, tos, .. } = datagram.send_control;
    let ip_fields = usual.with(ttl, tos);
    let send_options = SendOptions { ip_fields, fragment_bytes: datagram.fragment_bytes };
    udp.outbox.push_back(Outgoing { memory, to, send_options });
    core.mark_dirty(id);
    Some(Ok(len))
}
