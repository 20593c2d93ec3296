//! Sockets that go to another process: by exec, or over a Unix socket. The Linux file under the
//! descriptor goes there, and names the socket ([`crate::holders`]).
use super::{drop_entry, use_linux};
use crate::fds::{self, Entry};
use crate::lock::{Guard, lock};
use crate::record::{self, What};
use crate::slab::Id;
use crate::socket::{Datagrams, Kind, Socket, Under};
use crate::state::Core;
use crate::stream::Phase;
use crate::{holders, in_flight, kin, wait};
use std::os::fd::RawFd;

/// Whoever gets this descriptor finds its socket. `passed`: it goes to a process that is not known.
/// Returns where the socket is noted.
pub fn name(core: &mut Core, fd: RawFd, passed: bool) -> Option<u32> {
    let Entry::Socket(index) = fds::get(fd) else { return None };
    let id = core.sockets.id_at(index)?;
    record::of(core.sockets.get(id)?)?;
    kin::before_fork();
    if !holders::begin() {
        return None;
    }
    use_linux(core, fd).ok()?;
    let socket = core.sockets.get_mut(id)?;
    let at = match socket.noted_at() {
        Some(at) => at,
        None => holders::hold(None)?,
    };
    (socket.alone, socket.passed) = (false, socket.passed || passed);
    let record = record::of(socket)?;
    holders::set_record(at, &record);
    if !holders::name(at, fds::socket_inode(fd)?) {
        return None;
    }
    if passed {
        holders::passes(at);
        in_flight::watch(fd, at);
    }
    match socket.stream() {
        Some(stream) => {
            stream.shared = Some(at);
            core.is_handed(id);
        }
        None => {
            socket.named = Some(at);
            if matches!(socket.kind, Kind::Idle { .. }) {
                core.is_handed(id);
            }
        }
    }
    core.sockets.get(id).into_iter().for_each(Socket::begins_file_flags);
    Some(at)
}

/// Before another program is executed with IX, which inherits what it would on Linux. Returns where
/// its sockets are noted. `passed`: in a process that is not known yet.
pub fn name_inherited(passed: bool) -> Vec<u32> {
    let mut core = lock();
    // From here on, for a helper looks at what has been named as soon as the lock is released.
    core.executing |= !passed;
    let mut all = Vec::new();
    for (fd, entry) in fds::within(0, u32::MAX) {
        let Entry::Socket(index) = entry else { continue };
        let Some(socket) = core.sockets.id_at(index).and_then(|id| core.sockets.get(id)) else {
            continue;
        };
        let closes = match socket.under {
            Under::Used => fds::closes_on_exec(fd),
            _ => socket.close_on_exec,
        };
        if !closes {
            all.extend(name(&mut core, fd, passed));
        }
    }
    all
}

/// A descriptor has come from another process: if it is of a socket of IX, it is that from now on.
pub fn adopt(core: &mut Core, fd: RawFd) {
    let is_kept = matches!(fds::get(fd), Entry::Private | Entry::Kept);
    if is_kept || fd as usize >= fds::FDS_MAX {
        return;
    }
    // If the number is still in our table, the program has closed it by a call that is not seen.
    let before = fds::replace(fd, Entry::Linux);
    drop_entry(core, before);
    let Some(at) = fds::socket_inode(fd).and_then(holders::named) else { return };
    // It may be kept here without a descriptor, because its sender was killed.
    let is_same = |id: &Id| {
        let is_kept = |socket: &Socket| match &socket.kind {
            Kind::Stream(stream) => stream.kept_until_us != 0 && stream.phase != Phase::Dead,
            _ => false,
        };
        let socket = core.sockets.get(*id);
        socket.is_some_and(|socket| {
            (socket.fds > 0 || is_kept(socket)) && socket.noted_at() == Some(at)
        })
    };
    if let Some(id) = core.sockets.ids().into_iter().find(is_same) {
        if let Some(socket) = core.sockets.get_mut(id) {
            if socket.fds == 0 {
                comes_back(socket, fd, at);
            }
            socket.fds += 1;
        }
        fds::replace(fd, Entry::Socket(fds::index_of(id)));
        return;
    }
    kin::before_fork();
    if !holders::begin() || holders::hold(Some(at)).is_none() {
        return;
    }
    let Some((socket, what)) = record::read(&holders::record(at), at) else { return };
    let (named, closes) = (socket.noted_at().is_none().then_some(at), fds::closes_on_exec(fd));
    let id =
        core.sockets.insert(Socket { fds: 1, number: fd, close_on_exec: closes, named, ..socket });
    fds::replace(fd, Entry::Socket(fds::index_of(id)));
    match what {
        What::Stream(_) => core.is_handed(id),
        What::Listener { backlog, both } => super::listens(core, id, backlog, both),
        What::Datagrams { peer, both } => receives(core, id, peer, both),
        What::Idle { .. } => core.is_handed(id),
    }
}

/// A connection that was kept here has come with this descriptor.
fn comes_back(socket: &mut Socket, fd: RawFd, at: u32) {
    let Some((told, _)) = record::read(&holders::record(at), at) else { return };
    (socket.number, socket.close_on_exec) = (fd, fds::closes_on_exec(fd));
    (socket.alone, socket.bound, socket.options) = (false, told.bound, told.options);
    (socket.ipv6, socket.nonblocking) = (told.ipv6, told.nonblocking);
    let (Some(stream), Kind::Stream(told)) = (socket.stream(), told.kind) else { return };
    (stream.local, stream.read_shut, stream.kept_until_us) = (told.local, told.read_shut, 0);
    stream.announced = true;
}

/// Before descriptors of these sockets go to a process that is not known: the dataplane knows what
/// becomes of them if this process is killed.
pub fn leaves_word(mut core: Guard, places: &[u32]) -> Guard {
    let owes = |core: &mut Core| {
        let owes = |socket: &Socket| {
            let Kind::Stream(stream) = &socket.kind else { return false };
            let is_owned = matches!(stream.phase, Phase::ToAccept | Phase::Open);
            let is_named = stream.shared.is_some_and(|at| places.contains(&at));
            is_owned && is_named && stream.legacy != stream.legacy_told
        };
        let mut all = core.sockets.ids().into_iter().filter_map(|id| core.sockets.get(id));
        all.find(|socket| owes(socket)).map(|socket| socket.elastic)
    };
    // One that was just accepted takes two cycles.
    for _ in 0..4 {
        if places.is_empty() || !core.has_begun() {
            break;
        }
        // The elastic thread that has the connection, which may be another one's home.
        let Some(elastic) = owes(&mut core) else { break };
        core = wait::instead_of_helper(core, elastic);
        core = wait::poll(core, elastic);
    }
    core
}

/// A UDP socket that another process has bound.
fn receives(core: &mut Core, id: Id, peer: Option<std::net::SocketAddr>, both: bool) {
    let home = core.home();
    let Some(socket) = core.sockets.get_mut(id) else { return };
    let Some(at) = socket.bound else { return };
    // With one of IX's nothing is heard of Linux.
    let peer_of_linux = both && peer.is_some();
    socket.kind =
        Kind::Datagrams(Box::new(Datagrams { peer, peer_of_linux, both, ..Datagrams::default() }));
    socket.elastic = home;
    core.join_udp_port(id, at);
    let port = core.sockets.get_mut(id).and_then(Socket::datagrams).map(|udp| udp.port);
    if let Some(port) = port.and_then(|port| core.udp_ports.get_mut(port)) {
        port.inherited = true;
    }
    core.mark_dirty(id);
}

/// In an executed program: adopts all that it has inherited.
pub fn adopt_inherited() {
    let Ok(numbers) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.collect();
    let mut core = lock();
    numbers.into_iter().for_each(|fd| adopt(&mut core, fd));
}
