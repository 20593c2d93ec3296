//! `setsockopt` and `getsockopt`. The few options that servers set on each connection are only
//! noted here. All others are first set on the Linux socket under the descriptor, which knows which
//! options and values there are, and keeps them. Those that IX acts on are noted here as well.
use crate::lock::lock;
use crate::ops::{self, Instead, Outcome, socket_of};
use crate::options::{IPV6_AUTOFLOWLABEL, MtuDiscovery, Stamps, TCP_INQ, UDP_GRO, UDP_SEGMENT};
use crate::slab::Id;
use crate::socket::{Kind, Socket, Under};
use crate::state::Core;
use crate::stream::Phase;
use crate::{group_options, groups, log, real, unsupported};
use ix_abi::Congestion;
use ix_abi::flow_info_flag;
use libc::{
    IP_PKTINFO, IP_RECVERR, IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_RECVERR,
    IPV6_RECVPKTINFO, IPV6_TCLASS, IPV6_UNICAST_HOPS, IPV6_V6ONLY, SO_BINDTODEVICE, SO_DOMAIN,
    SO_ERROR, SO_KEEPALIVE, SO_LINGER, SO_PROTOCOL, SO_RCVBUF, SO_RCVLOWAT, SO_RCVTIMEO,
    SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF, SO_SNDTIMEO, SO_TYPE, SOL_SOCKET, TCP_CONGESTION,
    TCP_CORK, TCP_INFO, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_MAXSEG, TCP_NODELAY,
    TCP_QUICKACK, TCP_USER_TIMEOUT, c_void, socklen_t,
};
use std::ffi::CString;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Smallest buffers, as on Linux. Linux enforces the largest (`net.core.wmem_max`).
const SEND_BUFFER_MIN: usize = 4608;
const RECEIVE_BUFFER_MIN: usize = 2304;
/// Longest name of a congestion control, bytes with the final zero.
const CONGESTION_NAME_MAX: usize = 16;

/// `setsockopt` of options that need no Linux socket. For all others returns `Linux`; the caller
/// sets them on the Linux socket and calls [`changed`].
pub fn set(fd: RawFd, level: i32, name: i32, value: &[u8]) -> Outcome<()> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    let socket = core.sockets.get(id);
    // These take the lock when they have asked Linux.
    if socket.is_some_and(|socket| !socket.is_tcp() && !matches!(socket.kind, Kind::Linux)) {
        if groups::is_about(level, name) {
            drop(core);
            return group_options::set(fd, id, level, name, value);
        }
        if groups::is_about_sending(level, name) {
            drop(core);
            return group_options::set_interface(id, level, value);
        }
    }
    core.change_file_flags(id, |core| set_of(core, (fd, id), (level, name), value))
}

fn set_of(
    core: &mut Core,
    (fd, id): (RawFd, Id),
    (level, name): (i32, i32),
    value: &[u8],
) -> Outcome<()> {
    let int = |at: usize| {
        let bytes = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(i32::from_ne_bytes).ok_or(Instead::Linux)
    };
    let Some(socket) = core.sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    if unsupported::refuses(&socket.kind, level, name) {
        return Err(libc::ENOPROTOOPT.into());
    }
    let is_linux = matches!(socket.kind, Kind::Linux);
    if (level, name) == (IPPROTO_IPV6, libc::IPV6_FLOWLABEL_MGR) && !is_linux && reflects(value) {
        return Err(libc::ENOPROTOOPT.into());
    }
    if (level, name) == (SOL_SOCKET, SO_BINDTODEVICE) {
        return bind_to_device(core, id, value);
    }
    let tcp = socket.is_tcp();
    if (level, name) == (IPPROTO_TCP, TCP_CONGESTION) && tcp && !matches!(socket.kind, Kind::Linux)
    {
        set_congestion(socket, fd, value)?;
        core.mark_dirty(id);
        return Ok(());
    }
    if socket.under == Under::Used {
        return Err(Instead::Linux);
    }
    let options = &mut socket.options;
    match (level, name) {
        (SOL_SOCKET, SO_REUSEADDR) => options.reuse_address = int(0)? != 0,
        (SOL_SOCKET, SO_KEEPALIVE) => {
            options.keepalive = int(0)? != 0;
            if let Some(stream) = socket.stream() {
                stream.options_changed = true;
                core.mark_dirty(id);
            }
        }
        (SOL_SOCKET, SO_LINGER) => {
            let (on, seconds) = (int(0)? != 0, int(4)?);
            options.linger = on.then(|| Duration::from_secs(seconds.max(0) as u64));
        }
        // What Nagle's algorithm holds back leaves at once, as on Linux.
        (IPPROTO_TCP, TCP_NODELAY) if tcp => {
            let on = int(0)? != 0;
            options.no_delay = on;
            if let Some(stream) = socket.stream().filter(|stream| stream.is_held()) {
                stream.pushes |= on;
                core.mark_dirty(id);
            }
        }
        (IPPROTO_TCP, TCP_CORK) if tcp => {
            options.cork = int(0)? != 0;
            core.mark_dirty(id);
        }
        // The dataplane decides when it acknowledges: with data, or at the end of a cycle.
        (IPPROTO_TCP, TCP_QUICKACK) if tcp => drop(int(0)?),
        _ => return Err(Instead::Linux),
    }
    Ok(())
}

/// Whether a `struct in6_flowlabel_req` asks that a connection sends the label that it receives
/// (`IPV6_FL_F_REFLECT`), which IX does not.
fn reflects(request: &[u8]) -> bool {
    const FLAGS_AT: usize = 22;
    const REFLECT: u16 = 4;
    let flags = request.get(FLAGS_AT..).and_then(|flags| flags.first_chunk());
    flags.is_some_and(|flags| u16::from_ne_bytes(*flags) & REFLECT != 0)
}

/// `SO_BINDTODEVICE`. A device of the dataplane, which Linux need not have, makes the socket IX's.
/// Linux decides about any other.
fn bind_to_device(core: &mut Core, id: Id, value: &[u8]) -> Outcome<()> {
    let name = &value[..value.len().min(libc::IF_NAMESIZE - 1)];
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = CString::new(name).unwrap_or_default();
    let Core { sockets, interfaces, .. } = core;
    let Some(socket) = sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let undecided = matches!(socket.kind, Kind::Idle { ix: false, .. });
    match socket.kind {
        Kind::Linux => Err(Instead::Linux),
        _ if interfaces.has(&name) => {
            socket.options.device = Some(name);
            Ok(())
        }
        _ if name.is_empty() || undecided => {
            socket.options.device = None;
            Err(Instead::Linux)
        }
        _ => Err(libc::ENODEV.into()),
    }
}

/// `TCP_CONGESTION`. Linux may have other algorithms than IX, so it is not asked. If there is a
/// Linux socket, it is set there too, because the connection may still become Linux's.
fn set_congestion(socket: &mut Socket, fd: RawFd, value: &[u8]) -> Outcome<()> {
    if value.is_empty() {
        // An impossible pointer or length: Linux returns the errno.
        return Err(Instead::Linux);
    }
    let name = &value[..value.len().min(CONGESTION_NAME_MAX - 1)];
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let congestion = Congestion::named(name).ok_or(libc::ENOENT)?;
    socket.options.congestion = Some(congestion);
    if socket.under == Under::Used {
        ops::set_congestion(fd, congestion);
    }
    if let Some(stream) = socket.stream() {
        stream.options_changed = true;
    }
    Ok(())
}

/// `setsockopt` has succeeded on the Linux socket: does the same on IX.
pub fn changed(fd: RawFd, level: i32, name: i32) {
    let mut core = lock();
    let Ok(id) = socket_of(&mut core, fd) else { return };
    core.change_file_flags(id, |core| changed_of(core, (fd, id), (level, name)));
}

fn changed_of(core: &mut Core, (fd, id): (RawFd, Id), (level, name): (i32, i32)) {
    let read = |name| number(fd, level, name);
    let Some(socket) = core.sockets.get_mut(id) else { return };
    let (is_linux, is_tcp) = (socket.is_linux(), socket.is_tcp());
    let options = &mut socket.options;
    let mut tell = false;
    match (level, name) {
        (SOL_SOCKET, SO_REUSEADDR) => options.reuse_address = read(name) != 0,
        (SOL_SOCKET, SO_REUSEPORT) => options.reuse_port = read(name) != 0,
        (SOL_SOCKET, SO_KEEPALIVE) => {
            options.keepalive = read(name) != 0;
            tell = true;
        }
        (libc::SOL_UDP, UDP_SEGMENT) => options.datagram_bytes = read(name) as u16,
        (libc::SOL_UDP, UDP_GRO) => options.gathers = read(name) != 0,
        (SOL_SOCKET, libc::SO_BROADCAST) => options.broadcast = read(name) != 0,
        (IPPROTO_IP, libc::IP_MULTICAST_TTL) => options.v4.multicast_hops = read(name) as u8,
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => {
            options.v6.multicast_hops = read(name) as u8;
        }
        (IPPROTO_IP, libc::IP_MULTICAST_LOOP) => options.v4.multicast_loops = read(name) != 0,
        (IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP) => options.v6.multicast_loops = read(name) != 0,
        (IPPROTO_IP, IP_MULTICAST_ALL) => options.v4.multicast_all = read(name) != 0,
        (IPPROTO_IPV6, IPV6_MULTICAST_ALL) => options.v6.multicast_all = read(name) != 0,
        (SOL_SOCKET, SO_RCVTIMEO) => options.receive_timeout = time(fd, name),
        (SOL_SOCKET, SO_SNDTIMEO) => options.send_timeout = time(fd, name),
        (SOL_SOCKET, SO_LINGER) => options.linger = linger(fd),
        // Linux doubles the program's value, for its own overhead. The doubled value counts here.
        (SOL_SOCKET, SO_SNDBUF) => {
            options.send_buffer = (read(name) as usize).max(SEND_BUFFER_MIN);
            options.send_buffer_set = true;
        }
        (SOL_SOCKET, SO_RCVBUF) => {
            options.receive_buffer = (read(name) as usize).max(RECEIVE_BUFFER_MIN);
            options.receive_buffer_set = true;
            tell = true;
        }
        (SOL_SOCKET, SO_RCVLOWAT) => options.receive_low = read(name).max(1) as usize,
        (IPPROTO_IPV6, IPV6_V6ONLY) => options.v6_only = read(name) != 0,
        (IPPROTO_IP, IP_TTL) => {
            options.v4.fields.ttl = read(name).clamp(1, 255) as u8;
            tell = true;
        }
        (IPPROTO_IPV6, IPV6_UNICAST_HOPS) => {
            options.v6.fields.ttl = read(name).clamp(1, 255) as u8;
            tell = true;
        }
        (IPPROTO_IP, IP_TOS) => {
            options.v4.fields.tos = read(name) as u8;
            tell = true;
        }
        (IPPROTO_IPV6, IPV6_TCLASS) => {
            options.v6.fields.tos = read(name) as u8;
            tell = true;
        }
        (IPPROTO_IP, IP_PKTINFO) => options.v4.packet_info = read(name) != 0,
        (IPPROTO_IPV6, IPV6_RECVPKTINFO) => options.v6.packet_info = read(name) != 0,
        (IPPROTO_IP, libc::IP_RECVTTL) if !is_tcp => options.v4.tells_hops = read(name) != 0,
        (IPPROTO_IP, libc::IP_RECVTOS) if !is_tcp => options.v4.tells_tos = read(name) != 0,
        (IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT) if !is_tcp => {
            options.v6.tells_hops = read(name) != 0;
        }
        (IPPROTO_IPV6, libc::IPV6_RECVTCLASS) if !is_tcp => {
            options.v6.tells_tos = read(name) != 0;
        }
        (IPPROTO_IPV6, libc::IPV6_FLOWINFO) if !is_tcp => {
            options.v6.tells_flow_info = read(name) != 0;
        }
        (IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND) => {
            options.v6.heeds_flow_info = read(name) != 0;
        }
        (IPPROTO_IPV6, IPV6_AUTOFLOWLABEL) => {
            options.v6.labels_flows = read(name) != 0;
            tell = true;
        }
        (IPPROTO_IP, IP_RECVERR) | (IPPROTO_IPV6, IPV6_RECVERR) => {
            let wants = number(fd, level, name) != 0;
            let of = if level == IPPROTO_IPV6 { &mut options.v6 } else { &mut options.v4 };
            of.receive_errors = wants;
            if !wants && let Some(udp) = socket.datagrams() {
                udp.errors.clear();
            }
        }
        (SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING)
            if !is_tcp =>
        {
            let wants = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
            options.stamps = Stamps {
                micros: read(libc::SO_TIMESTAMP) != 0,
                nanos: read(libc::SO_TIMESTAMPNS) != 0,
                software: read(libc::SO_TIMESTAMPING) & wants == wants,
            };
        }
        (IPPROTO_TCP, TCP_INQ) => options.tells_unread = read(name) != 0,
        _ if wants_control_messages(level, name) && !is_linux => {
            let text = "sockets of IX have no control messages but those of IP_PKTINFO, IP_RECVERR \
                        and TCP_INQ, and for UDP SO_TIMESTAMP, IP_RECVTTL and IP_RECVTOS; \
                        configure the program without others";
            log::once(log::Once::Control, text);
        }
        (IPPROTO_IP, libc::IP_MTU_DISCOVER) => {
            options.v4.mtu_discovery = MtuDiscovery::numbered(read(name));
        }
        (IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
            options.v6.mtu_discovery = MtuDiscovery::numbered(read(name));
        }
        (IPPROTO_IPV6, libc::IPV6_DONTFRAG) => options.v6.never_fragment = read(name) != 0,
        // A device of Linux's, or none.
        (SOL_SOCKET, SO_BINDTODEVICE) if has_device(fd) => {
            if matches!(socket.kind, Kind::Idle { ix: false, .. }) {
                let _ = ops::leave_to_linux(core, fd, id);
            }
            return;
        }
        (IPPROTO_TCP, TCP_NODELAY) => {
            let on = read(name) != 0;
            options.no_delay = on;
            if let Some(stream) = socket.stream().filter(|stream| stream.is_held()) {
                stream.pushes |= on;
            }
            core.mark_dirty(id);
            return;
        }
        (IPPROTO_TCP, TCP_CORK) => {
            options.cork = read(name) != 0;
            core.mark_dirty(id);
            return;
        }
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
            options.defer_accept_s = read(name).max(0) as u32;
        }
        // All bits set means none, for Linux and for the program.
        (SOL_SOCKET, libc::SO_MAX_PACING_RATE) if is_tcp => {
            options.pace = Some(read(name) as u32).filter(|rate| *rate != u32::MAX).unwrap_or(0);
            tell = true;
        }
        (IPPROTO_TCP, libc::TCP_SYNCNT) => {
            options.syn_count = read(name).clamp(0, 127) as u8;
            tell = true;
        }
        // Takes effect for later connections, as on Linux.
        (IPPROTO_TCP, libc::TCP_MAXSEG) if !matches!(socket.kind, Kind::Stream(_)) => {
            options.segment_bytes = read(name).clamp(0, 0xffff) as u16;
            tell = true;
        }
        (IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => {
            options.window_clamp = read(name).max(0) as u32;
            tell = true;
        }
        (IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
            options.unsent_low = read(name) as u32;
            let limit = options.unsent_limit();
            if let Some(stream) = socket.stream() {
                stream.unsent_low = limit;
            }
        }
        (IPPROTO_TCP, TCP_KEEPIDLE | TCP_KEEPINTVL | TCP_KEEPCNT | TCP_USER_TIMEOUT) => {
            *match name {
                TCP_KEEPIDLE => &mut options.keep_idle_s,
                TCP_KEEPINTVL => &mut options.keep_interval_s,
                TCP_KEEPCNT => &mut options.keep_count,
                _ => &mut options.user_timeout_ms,
            } = read(name) as u32;
            tell = true;
        }
        _ => {}
    }
    if !tell {
        return;
    }
    if let Some(stream) = socket.stream() {
        stream.options_changed = true;
        core.mark_dirty(id);
    } else if let Some(port) = socket.listener().map(|listener| listener.port) {
        core.ip_fields_changed(port);
    }
}

/// Whether an option asks for control messages that IX does not have.
fn wants_control_messages(level: i32, name: i32) -> bool {
    match level {
        SOL_SOCKET => {
            [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMPING].contains(&name)
        }
        IPPROTO_IP => [libc::IP_RECVTTL, libc::IP_RECVTOS, libc::IP_RECVOPTS].contains(&name),
        IPPROTO_IPV6 => [libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS].contains(&name),
        _ => false,
    }
}

/// Linux's numbers, which the `libc` crate lacks.
const TCP_NOTSENT_LOWAT: i32 = 25;
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;
/// Bits of `SO_TIMESTAMPING`: stamp received packets, and tell such stamps.
const SOF_TIMESTAMPING_RX_SOFTWARE: i32 = 1 << 3;
const SOF_TIMESTAMPING_SOFTWARE: i32 = 1 << 4;

/// `getsockopt` of options that IX knows better. `None`: the Linux socket has the value.
pub fn get(fd: RawFd, level: i32, name: i32) -> Outcome<Option<Vec<u8>>> {
    let mut core = lock();
    let id = socket_of(&mut core, fd)?;
    core.sees_file_flags(id);
    let configured = core.congestion;
    let mtu = core.has_begun().then(|| core.device_mtu());
    let Core { sockets, paths, .. } = &mut *core;
    let Some(socket) = sockets.get_mut(id) else { return Err(libc::EBADF.into()) };
    let int = |value: i32| Ok(Some(value.to_ne_bytes().to_vec()));
    if socket.under != Under::Used
        && let Some(value) = noted(socket, level, name)
    {
        return int(value);
    }
    if (level, name) == (SOL_SOCKET, SO_BINDTODEVICE) {
        return Ok(socket.options.device.as_ref().map(|name| name.as_bytes_with_nul().to_vec()));
    }
    if let ((IPPROTO_IP, libc::IP_MULTICAST_IF), Some(IpAddr::V4(from))) =
        ((level, name), socket.options.v4.sends_from)
    {
        return Ok(Some(from.octets().to_vec()));
    }
    let undecided = !matches!(socket.kind, Kind::Linux) && socket.is_tcp();
    if (level, name) == (IPPROTO_TCP, TCP_CONGESTION) && undecided {
        let mut value = socket.options.congestion.unwrap_or(configured).name().as_bytes().to_vec();
        value.resize(CONGESTION_NAME_MAX, 0);
        return Ok(Some(value));
    }
    if socket.is_linux() {
        return Ok(None);
    }
    match (level, name) {
        (SOL_SOCKET, SO_ERROR) => match (socket.take_error(), &mut socket.kind) {
            (0, Kind::Stream(stream)) => int(core::mem::take(&mut stream.soft_error)),
            (0, Kind::Datagrams(udp)) if udp.both => Ok(None),
            (errno, _) => int(errno),
        },
        // The socket under it may have another value (`beside_ix::hears_its_own`).
        (IPPROTO_IP, IP_MULTICAST_ALL) => int(socket.options.v4.multicast_all.into()),
        (IPPROTO_IPV6, IPV6_MULTICAST_ALL) => int(socket.options.v6.multicast_all.into()),
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => int(matches!(socket.kind, Kind::Listener(_)).into()),
        (SOL_SOCKET, SO_SNDBUF) => int(socket.send_buffer() as i32),
        // Without a peer the Linux socket returns the error.
        (IPPROTO_IP, libc::IP_MTU) | (IPPROTO_IPV6, libc::IPV6_MTU) => match (mtu, socket.peer()) {
            (Some(mtu), Some(peer)) => {
                let known = paths.mtu(peer.ip(), Instant::now());
                int(known.map_or(mtu, |path| mtu.min(path.into())) as i32)
            }
            _ => Ok(None),
        },
        (IPPROTO_TCP, TCP_INFO) => {
            let Some(stream) = socket.stream() else { return Ok(None) };
            let dead = stream.phase == Phase::Dead;
            let info = if dead { None } else { ops::info(core, id) };
            Ok(Some(tcp_info(info)))
        }
        (IPPROTO_TCP, TCP_MAXSEG) if matches!(socket.kind, Kind::Stream(_)) => {
            let mss = ops::info(core, id).map_or(536, |info| info.mss_bytes);
            int(mss as i32)
        }
        _ => Ok(None),
    }
}

/// The value of an option that is only noted here.
fn noted(socket: &Socket, level: i32, name: i32) -> Option<i32> {
    let (tcp, options) = (socket.is_tcp(), &socket.options);
    let value = match (level, name) {
        (SOL_SOCKET, SO_TYPE) => {
            if tcp {
                libc::SOCK_STREAM
            } else {
                libc::SOCK_DGRAM
            }
        }
        (SOL_SOCKET, SO_PROTOCOL) => {
            if tcp {
                IPPROTO_TCP
            } else {
                libc::IPPROTO_UDP
            }
        }
        (SOL_SOCKET, SO_DOMAIN) => {
            if socket.ipv6 {
                libc::AF_INET6
            } else {
                libc::AF_INET
            }
        }
        (SOL_SOCKET, SO_REUSEADDR) => options.reuse_address.into(),
        (SOL_SOCKET, SO_KEEPALIVE) => options.keepalive.into(),
        (IPPROTO_TCP, TCP_NODELAY) if tcp => options.no_delay.into(),
        (IPPROTO_TCP, TCP_CORK) if tcp => options.cork.into(),
        _ => return None,
    };
    Some(value)
}

/// Largest window that a scaled window field can express (RFC 7323 section 2.3): the dataplane's
/// word for no slow-start threshold.
const NO_THRESHOLD_BYTES: u32 = 1 << 30;

/// Bytes of the timestamp option, with its padding.
const TIMESTAMP_BYTES: u32 = 12;

/// `struct tcp_info` in Linux's layout, with what IX counts; the rest is zero.
fn tcp_info(info: Option<ix_abi::FlowInfo>) -> Vec<u8> {
    /// Linux's `TCP_CLOSE`.
    const CLOSE: u8 = 7;
    /// Linux's number of each state of RFC 9293, 3.3.2: from LISTEN to CLOSED.
    const STATES: [u8; 11] = [10, 2, 3, 1, 4, 5, 8, 11, 9, 6, CLOSE];
    let mut bytes = vec![0u8; 236];
    let Some(info) = info else {
        bytes[0] = CLOSE;
        return bytes;
    };
    bytes[0] = STATES.get(usize::from(info.state).wrapping_sub(1)).copied().unwrap_or(CLOSE);
    let mss = info.mss_bytes.max(1);
    // tcpi_options has Linux's bits for these five; then the two shifts, of four bits each.
    bytes[5] = info.flags as u8 & 31;
    let shift = |at: u32| (info.flags >> at) as u8 & 15;
    bytes[6] = shift(flow_info_flag::SND_SHIFT_AT) | shift(flow_info_flag::RCV_SHIFT_AT) << 4;
    bytes[1] = info.recovery as u8;
    (bytes[3], bytes[4]) = (info.probes, info.backoff);
    let sums = [(120, info.bytes_acked), (128, info.bytes_received), (176, info.rwnd_limited_us)];
    for (at, value) in sums {
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    // The dataplane counts in units of 1,024 µs.
    let ms = |units: u32| (u64::from(units) * 1024 / 1000) as u32;
    put(8, info.rto_us);
    put(16, mss);
    put(20, info.rcv_mss_bytes);
    put(24, info.unacked_segments);
    put(28, info.sacked_segments);
    put(32, info.lost_segments);
    put(44, ms(info.last_sent_ms));
    put(56, ms(info.last_heard_ms));
    put(68, info.srtt_us);
    put(72, info.rttvar_us);
    // No threshold exists before the first congestion, and none with BBR: Linux then tells its
    // TCP_INFINITE_SSTHRESH.
    let no_threshold = info.ssthresh_bytes >= NO_THRESHOLD_BYTES;
    put(76, if no_threshold { 0x7fff_ffff } else { info.ssthresh_bytes / mss });
    put(80, (info.cwnd_bytes / mss).max(1));
    // Linux has taken off the timestamps there.
    let has_timestamps = info.flags & flow_info_flag::TIMESTAMPS != 0;
    put(84, info.advmss_bytes.saturating_sub(if has_timestamps { TIMESTAMP_BYTES } else { 0 }));
    put(88, info.reordering_segments.into());
    put(100, info.retransmits);
    put(144, info.snd_unsent_bytes);
    put(148, info.min_rtt_us);
    put(228, info.snd_wnd_bytes);
    put(232, info.rcv_wnd_bytes);
    bytes
}

/// Whether the Linux socket under a descriptor is bound to an interface.
fn has_device(fd: RawFd) -> bool {
    let mut name = [0u8; libc::IF_NAMESIZE];
    let mut len = name.len() as socklen_t;
    let at = name.as_mut_ptr().cast::<c_void>();
    // SAFETY: room of ours with its length.
    let got = unsafe { real::getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, at, &mut len) };
    got == 0 && len > 0 && name[0] != 0
}

fn number(fd: RawFd, level: i32, name: i32) -> i32 {
    let mut value = 0i32;
    let mut len = 4 as socklen_t;
    // SAFETY: a local with its length.
    unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast::<c_void>(), &mut len) };
    value
}

fn time(fd: RawFd, name: i32) -> Option<Duration> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of_val(&value) as socklen_t;
    // SAFETY: a local with its length.
    unsafe { real::getsockopt(fd, SOL_SOCKET, name, (&raw mut value).cast::<c_void>(), &mut len) };
    let micros = value.tv_sec as u64 * 1_000_000 + value.tv_usec as u64;
    (micros > 0).then(|| Duration::from_micros(micros))
}

fn linger(fd: RawFd) -> Option<Duration> {
    let mut value = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut len = size_of_val(&value) as socklen_t;
    // SAFETY: a local with its length.
    unsafe {
        real::getsockopt(fd, SOL_SOCKET, SO_LINGER, (&raw mut value).cast::<c_void>(), &mut len)
    };
    (value.l_onoff != 0).then(|| Duration::from_secs(value.l_linger.max(0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_info_has_linuxs_layout() {
        let base = core::mem::MaybeUninit::<libc::tcp_info>::zeroed();
        let base = base.as_ptr();
        // SAFETY: only addresses of fields are taken.
        unsafe {
            let at = |field: *const u32| field.addr() - base.addr();
            assert_eq!(at(&raw const (*base).tcpi_rto), 8);
            assert_eq!(at(&raw const (*base).tcpi_snd_mss), 16);
            assert_eq!(at(&raw const (*base).tcpi_unacked), 24);
            assert_eq!(at(&raw const (*base).tcpi_rtt), 68);
            assert_eq!(at(&raw const (*base).tcpi_rttvar), 72);
            assert_eq!(at(&raw const (*base).tcpi_snd_ssthresh), 76);
            assert_eq!(at(&raw const (*base).tcpi_snd_cwnd), 80);
            assert_eq!(at(&raw const (*base).tcpi_advmss), 84);
            assert_eq!(at(&raw const (*base).tcpi_total_retrans), 100);
            assert_eq!(at(&raw const (*base).tcpi_sacked), 28);
            assert_eq!(at(&raw const (*base).tcpi_last_data_sent), 44);
            assert_eq!(at(&raw const (*base).tcpi_last_ack_recv), 56);
            assert_eq!(at(&raw const (*base).tcpi_reordering), 88);
        }
        assert_eq!(tcp_info(None)[0], 7);
        let flags = 31 | 7 << flow_info_flag::SND_SHIFT_AT | 3 << flow_info_flag::RCV_SHIFT_AT;
        let open = ix_abi::FlowInfo { state: 4, mss_bytes: 1448, flags, ..Default::default() };
        let open = tcp_info(Some(open));
        // The bits of Linux's `TCPI_OPT_TIMESTAMPS`, `_SACK`, `_WSCALE`, `_ECN` and `_ECN_SEEN`.
        assert_eq!((open[0], open[5], open[6]), (1, 1 | 2 | 4 | 8 | 16, 0x37));
        for (bytes, segments) in [(14_480, 10), (1 << 30, 0x7fff_ffff)] {
            let info = ix_abi::FlowInfo { ssthresh_bytes: bytes, ..Default::default() };
            let told = tcp_info(Some(ix_abi::FlowInfo { mss_bytes: 1448, ..info }));
            assert_eq!(u32::from_ne_bytes(told[76..80].try_into().unwrap()), segments);
        }
    }
}
