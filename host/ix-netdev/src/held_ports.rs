//! Ports of Linux's own address that IX owns.
//!
//! Behind each owned port stands a bound socket of Linux: so a port that Linux has already is
//! refused, and nobody else gets one that IX has. The kernel closes the sockets whatever happens to
//! this process, and removes the XDP program with its link: then Linux has the ports again.
mod outgoing;
mod own_sockets;

use self::own_sockets::OwnSockets;
use crate::keeper::{JoinError, Kept, KeptProgram};
use crate::listeners;
use crate::transport::{Family, Transport};
use crate::xdp::{
    ALL_PORTS, FAMILY_PORTS, FRAGMENT_KEY, FRAGMENT_KEY_V6, Maps, OWNERS, PORTS, TO_SOCKETS,
};
use ix_sys::bpf::{Map, MapKind, Memory};
use ix_sys::limits::{self, Resource};
use ix_sys::socket::{self, bind_inet, connect_inet, set_option};
use ix_sys::{Error, process};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, SocketAddrV6, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Packets whose later fragments are under way, at most.
const FRAGMENTED: u32 = 4096;
/// First port that everybody may bind.
const UNPRIVILEGED: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// What fails where BPF is not allowed.
const NO_MAP: &str = "cannot make a BPF map for ports";
/// The owner of ports where there is no keeper.
const ALONE: u32 = 1;
/// Most users that a program has been.
const USERS_MAX: usize = 16;
/// Descriptors that this process keeps for everything else, however many ports a program takes; of
/// a low limit, half.
const OTHER_DESCRIPTORS: u64 = 256;

/// A port of one protocol and family.
type PortKey = (Transport, Family, u16);

/// The ports of one interface that IX owns.
pub struct HeldPorts {
    addresses: Mutex<Vec<IpAddr>>,
    /// Addresses of Linux that stay its alone.
    alone: Mutex<Vec<IpAddr>>,
    /// The interface's number, by which Linux tells its link-local addresses from others'.
    interface: AtomicU32,
    /// The program's user.
    user: u32,
    /// Whose sockets may share a port with ours: the program's user, and those that it has become.
    users: Mutex<Vec<u32>>,
    /// The program's sockets on Linux, through which it hears the host itself. None: it has none
    /// that should share a port with IX.
    own_sockets: Mutex<Option<OwnSockets>>,
    /// The maps of the XDP program; where the run has a link only the first one is there.
    owned: Map,
    rest: Option<Rest>,
    /// The number of this run among the owners of ports.
    owner: u32,
    kept: Option<Kept>,
    held: Mutex<BTreeMap<PortKey, Held>>,
    /// Ranges of TCP ports for outgoing connections beside the first block.
    added: Mutex<Vec<(u16, u16)>>,
}

/// The maps beside that of ports.
struct Rest {
    fragments: Memory<FRAGMENT_KEY>,
    fragments_v6: Memory<FRAGMENT_KEY_V6>,
    owners: Map,
    /// For a program of frames in one buffer, and for one of frames in several: Linux lets only
    /// one of both kinds use a map of this kind, that which is loaded first.
    links: [Map; 2],
}

impl Rest {
    fn new(owner: u32) -> io::Result<Rest> {
        let owners = Map::new(MapKind::Array, c"ix_owners", OWNERS)?;
        owners.set(owner, TO_SOCKETS)?;
        Ok(Rest {
            fragments: Memory::new(c"ix_fragments", FRAGMENTED)?,
            fragments_v6: Memory::new(c"ix_fragments6", FRAGMENTED)?,
            owners,
            links: new_links()?,
        })
    }
}

/// Maps in which no run has a link.
fn new_links() -> io::Result<[Map; 2]> {
    let new = || Map::new(MapKind::Dev, c"ix_links", OWNERS);
    Ok([new()?, new()?])
}

/// What keeps Linux from a port.
struct Held {
    /// For each address one, or one for all that there are and will be, which is that of both
    /// families.
    sockets: Vec<(Option<IpAddr>, OwnedFd)>,
    /// It is held at the addresses that are shared, not at all that there are.
    follows: bool,
}

/// Beside what a port of the program is held.
#[derive(Clone, Copy, PartialEq, Eq)]
struct How {
    /// Sockets of the program's users (`SO_REUSEPORT`).
    shares: bool,
    /// Ended connections (`SO_REUSEADDR`).
    reuses: bool,
}

/// An address of which Linux has a port that IX has elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub transport: Transport,
    /// The port.
    pub port: u16,
    /// Why IX cannot have it: `EADDRINUSE` if Linux has it.
    pub errno: i32,
}

impl fmt::Debug for HeldPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPorts").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl HeldPorts {
    /// None yet, at these addresses of Linux on the interface of this number. The sockets of `user`
    /// on Linux may share a port: a program hears connections from the host itself through such a
    /// socket.
    pub fn new(addresses: Vec<IpAddr>, interface: u32, user: u32) -> Result<HeldPorts, Error> {
        let made = |e| Error::new(NO_MAP, e);
        let owned = Map::new(MapKind::Array, c"ix_ports", ALL_PORTS).map_err(made)?;
        let rest = Rest::new(ALONE).map_err(made)?;
        Ok(HeldPorts::with((addresses, interface), user, (owned, Some(rest)), (ALONE, None)))
    }

    /// The same beside other runs that share the interface of this name: its keeper is asked for a
    /// part, and started by `start` if there is none. `threads`: how many queues a link should
    /// have.
    pub fn join(
        (addresses, interface): (Vec<IpAddr>, u32),
        user: u32,
        (name, threads): (&str, u32),
        start: impl Fn() -> io::Result<()>,
    ) -> Result<HeldPorts, JoinError> {
        let own: Vec<_> = addresses.iter().map(|own| (*own).into()).collect();
        let (kept, maps) = Kept::join((name, interface), threads, &own, start)?;
        let owner = kept.owner();
        let mut maps = maps.into_iter();
        let mut next = || maps.next();
        let maps = match (next(), next(), next(), next(), next()) {
            (None, ..) => {
                let made = JoinError::Refused;
                let owned = Map::new(MapKind::Array, c"ix_ports", ALL_PORTS).map_err(made)?;
                (owned, Some(Rest::new(owner).map_err(made)?))
            }
            (Some(owned), Some(fragments), Some(fragments_v6), Some(owners), Some(_)) => {
                let (fragments, fragments_v6) = (Memory::of(fragments), Memory::of(fragments_v6));
                // The keeper's are in its program. If this run has to attach another one, because
                // the interface was made again, the links of the old one lead nowhere.
                let links = new_links().map_err(JoinError::Refused)?;
                let owners = Map::of(owners);
                (Map::of(owned), Some(Rest { fragments, fragments_v6, owners, links }))
            }
            (Some(owned), ..) => (Map::of(owned), None),
        };
        if maps.0.get(ALL_PORTS - 1).is_err() {
            return Err(JoinError::Refused(io::Error::other("it is of another version of IX")));
        }
        Ok(HeldPorts::with((addresses, interface), user, maps, (owner, Some(kept))))
    }

    fn with(
        (addresses, interface): (Vec<IpAddr>, u32),
        user: u32,
        (owned, rest): (Map, Option<Rest>),
        (owner, kept): (u32, Option<Kept>),
    ) -> HeldPorts {
        let (users, addresses) = (Mutex::new(vec![user]), Mutex::new(addresses));
        let (own_sockets, held, added, alone) = Default::default();
        let interface = AtomicU32::new(interface);
        HeldPorts {
            addresses,
            alone,
            interface,
            user,
            users,
            own_sockets,
            owned,
            rest,
            owner,
            kept,
            held,
            added,
        }
    }

    /// This run's part of the interface, if it has a keeper.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// The interface by which the run has its packets, if another one has the queues.
    pub fn link(&self) -> Option<&str> {
        self.kept.as_ref()?.link()
    }

    /// Polls readable when the keeper has ended, if there is one.
    pub fn keeper(&self) -> Option<BorrowedFd<'_>> {
        self.kept.as_ref().map(Kept::fd)
    }

    /// Whether the keeper has ended before this run: nothing comes in any more.
    pub fn has_lost_keeper(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::has_ended)
    }

    /// Ends this run's part of the interface.
    pub fn leave(&self) {
        let Some(kept) = &self.kept else { return };
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // The keeper would look for them among all ports.
        for port in held.keys() {
            let _ = self.owned.set(key(*port), 0);
        }
        kept.leave();
    }

    /// What the program on the interface looks at. `frags`: it takes frames in several buffers.
    pub(crate) fn maps<'a>(&'a self, sockets: &'a Map, frags: bool) -> Maps<'a> {
        let rest = self.rest.as_ref().expect("a run with the queues has all maps");
        let Rest { fragments, fragments_v6, owners, links } = rest;
        let links = &links[usize::from(frags)];
        Maps { sockets, owned: &self.owned, owners, links, fragments, fragments_v6 }
    }

    /// Gives the keeper the program that was attached.
    pub(crate) fn give(&self, kept: &Kept, program: KeptProgram) -> io::Result<()> {
        let rest = self.rest.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let copies = [
            self.owned.copy()?,
            rest.fragments.copy()?,
            rest.fragments_v6.copy()?,
            rest.owners.copy()?,
            rest.links[usize::from(program.owned.frags)].copy()?,
        ];
        kept.own(program, copies.each_ref().map(AsFd::as_fd))
    }

    /// The interface's number.
    pub fn interface(&self) -> u32 {
        self.interface.load(Ordering::Relaxed)
    }

    /// The interface was made again and has this number.
    pub fn moved(&self, interface: u32) {
        self.interface.store(interface, Ordering::Relaxed);
    }

    /// Sockets of this user too may share a port that is taken later: the program has become it,
    /// and Linux lets nobody else share.
    pub fn may_share(&self, user: u32) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() < USERS_MAX && !users.contains(&user) {
            users.push(user);
        }
    }

    /// From now on each socket of the program on Linux that may share a port is told
    /// ([`HeldPorts::is_programs`]): so others are known as well. Without this no socket of Linux
    /// shares a port with IX.
    pub fn expect_sockets(&self) {
        self.own_sockets().get_or_insert_default();
    }

    /// This is the number of the file of a socket of the program on Linux.
    pub fn is_programs(&self, socket: u64) {
        self.own_sockets().get_or_insert_default().insert(socket);
    }

    fn own_sockets(&self) -> MutexGuard<'_, Option<OwnSockets>> {
        self.own_sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a socket of Linux that is not the program's hears a port that both could share: a
    /// service of the same user, which would hear nothing from other hosts any more.
    fn is_anothers(&self, (transport, family, port): PortKey) -> bool {
        let own = self.own_sockets();
        // Else nothing shares a port with the holder.
        let Some(own) = own.as_ref() else { return false };
        let found = listeners::at(transport, port, &self.addresses_of(family));
        found.is_ok_and(|found| found.iter().any(|socket| !own.has(*socket)))
    }

    fn addresses_of(&self, family: Family) -> Vec<IpAddr> {
        let mut all = self.addresses();
        all.retain(|own| Family::of(*own) == family);
        all
    }

    /// Takes a port for IX, from the next packet on; nothing happens if IX has it already. At
    /// addresses of the other family it is whose it was.
    ///
    /// # Errors
    /// `EADDRINUSE`: Linux has it. `EACCES`: the program's user may not bind it. `EMFILE`: so many
    /// are held that this process would lack descriptors. Others of the system.
    pub fn hold(&self, transport: Transport, family: Family, port: u16) -> io::Result<()> {
        let port_key = (transport, family, port);
        if self.user != 0 && port < unprivileged_port() {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains_key(&port_key) {
            return Ok(());
        }
        self.is_free(transport, family, port)?;
        let addresses = self.addresses_of(family);
        has_room(&held, addresses.len())?;
        let mut how = self.how();
        let mut bound = self.bind_all((transport, port), &addresses, how);
        if transport == Transport::Tcp && is_in_use(&bound) {
            // Connections of a server that has just stopped may be in TIME-WAIT.
            how.reuses = true;
            bound = self.bind_all((transport, port), &addresses, how);
        }
        let sockets = bound?;
        self.take(port_key)?;
        if how.reuses
            && let Err(e) = sockets.iter().try_for_each(|(_, socket)| close_to_others(socket))
        {
            let _ = self.owned.set(key(port_key), 0);
            return Err(e);
        }
        held.insert(port_key, Held { sockets, follows: true });
        Ok(())
    }

    /// An error, `EADDRINUSE`, if another owner has a port that Linux would let a socket of the
    /// program share: another run, whose holder is of the same user, or a service of that user.
    pub fn is_free(&self, transport: Transport, family: Family, port: u16) -> io::Result<()> {
        let port = (transport, family, port);
        if self.is_another_runs(port) || self.is_anothers(port) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        Ok(())
    }

    /// Whether this run has a port.
    pub fn has(&self, transport: Transport, family: Family, port: u16) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.contains_key(&(transport, family, port))
    }

    /// Beside what a port is held at first.
    fn how(&self) -> How {
        How { shares: self.own_sockets().is_some(), reuses: false }
    }

    /// The port's packets are this run's from now on. Linux lets holders of several runs of one
    /// user share a port, so their keeper decides.
    fn take(&self, port: PortKey) -> io::Result<()> {
        if let Some(kept) = &self.kept {
            kept.take(key(port))?;
        }
        self.owned.set(key(port), self.owner)
    }

    /// Whether a port is that of another run on the interface.
    fn is_another_runs(&self, port: PortKey) -> bool {
        let owner = self.owned.get(key(port));
        owner.is_ok_and(|owner| owner != 0 && owner != self.owner)
    }

    /// The addresses whose ports are shared.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The addresses that stay Linux's alone.
    pub fn alone(&self) -> Vec<IpAddr> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Follows the addresses that Linux has now. One of which it has a port that IX has elsewhere
    /// stays Linux's alone, and is returned with it.
    pub fn follow(&self, now: &[IpAddr]) -> Vec<Conflict> {
        // No port is taken meanwhile.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.addresses();
        let (mut after, mut conflicts) = (Vec::new(), Vec::new());
        let how = self.how();
        // First, so that new ones have the room.
        for held in held.values_mut() {
            held.sockets.retain(|(at, _)| at.is_none_or(|address| now.contains(&address)));
        }
        for address in now {
            if before.contains(address) {
                after.push(*address);
                continue;
            }
            let concerns = |(_, family, _): &PortKey, held: &Held| {
                // A socket for all addresses holds it there as well.
                held.follows && *family == Family::of(*address)
            };
            let bind = |(key, held): (&PortKey, &Held)| {
                let (transport, _, port) = *key;
                let addresses: &[IpAddr] = if concerns(key, held) { &[*address] } else { &[] };
                let bound = self.bind_all((transport, port), addresses, how);
                bound.map_err(|e| {
                    let errno = e.raw_os_error().unwrap_or(libc::EADDRINUSE);
                    Conflict { address: *address, transport, port, errno }
                })
            };
            let room =
                has_room(&held, held.iter().filter(|(key, held)| concerns(key, held)).count());
            let no_room = || {
                let (&(transport, _, port), _) =
                    held.iter().find(|(key, held)| concerns(key, held))?;
                Some(Conflict { address: *address, transport, port, errno: libc::EMFILE })
            };
            if let Some(conflict) = room.err().and_then(|_| no_room()) {
                conflicts.push(conflict);
                continue;
            }
            match held.iter().map(bind).collect::<Result<Vec<_>, _>>() {
                Ok(sockets) => {
                    held.values_mut().zip(sockets).for_each(|(held, new)| held.sockets.extend(new));
                    after.push(*address);
                }
                Err(conflict) => conflicts.push(conflict),
            }
        }
        let alone = conflicts.iter().map(|conflict| conflict.address).collect();
        *self.alone.lock().unwrap_or_else(PoisonError::into_inner) = alone;
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = after;
        conflicts
    }

    /// A socket for each of these addresses, as the first of the users who can have all.
    fn bind_all(
        &self,
        (transport, port): (Transport, u16),
        addresses: &[IpAddr],
        how: How,
    ) -> io::Result<Vec<(Option<IpAddr>, OwnedFd)>> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut bound = Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        for user in &users {
            let bind = |address: &IpAddr| {
                let socket = self.bind(transport, *address, port, how, *user)?;
                Ok((Some(*address), socket))
            };
            bound = addresses.iter().map(bind).collect::<io::Result<Vec<_>>>();
            if !is_in_use(&bound) {
                break;
            }
        }
        bound
    }

    fn bind(
        &self,
        transport: Transport,
        address: IpAddr,
        port: u16,
        how: How,
        user: u32,
    ) -> io::Result<OwnedFd> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let open = || socket::open(family, transport.socket_kind());
        let socket = process::with_file_user(user, open)?;
        for (option, is_set) in [(libc::SO_REUSEPORT, how.shares), (libc::SO_REUSEADDR, how.reuses)]
        {
            if is_set {
                set_option(socket.as_fd(), libc::SOL_SOCKET, option, 1)?;
            }
        }
        hear_nothing(transport, &socket);
        let at = match address {
            IpAddr::V6(own) if own.is_unicast_link_local() => {
                SocketAddrV6::new(own, port, 0, self.interface()).into()
            }
            _ => SocketAddr::from((address, port)),
        };
        bind_inet(socket.as_fd(), at)?;
        leave_to_program(transport, &socket, at);
        Ok(socket)
    }

    /// Gives a port back to Linux.
    pub fn release(&self, transport: Transport, family: Family, port: u16) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = held.remove(&(transport, family, port)) {
            // It cannot fail: the entry exists.
            let _ = self.owned.set(key((transport, family, port)), 0);
            drop(before);
        }
    }
}

fn is_in_use<T>(bound: &io::Result<T>) -> bool {
    bound.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EADDRINUSE))
}

/// Datagrams from the host itself are for nobody here.
fn hear_nothing(transport: Transport, socket: &OwnedFd) {
    if transport == Transport::Udp {
        let _ = set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0);
    }
}

/// A socket of Linux's that has a peer hears nothing of others: then datagrams that do not come by
/// IX's interface are for the program's own socket on Linux, which may be bound to all addresses.
/// So the holder gets a peer that there is not: a port of its own address that is root's.
fn leave_to_program(transport: Transport, holder: &OwnedFd, at: SocketAddr) {
    /// `tcpmux`, which UDP does not have.
    const NOBODY: u16 = 1;
    if transport == Transport::Udp {
        let mut peer = at;
        peer.set_port(NOBODY);
        let _ = connect_inet(holder.as_fd(), peer);
    }
}

/// Linux lets sockets with `SO_REUSEADDR` bind the same port until one has listened there. So a
/// holder listens for a moment: packets from other hosts are IX's already.
fn close_to_others(holder: &OwnedFd) -> io::Result<()> {
    socket::listen(holder.as_fd(), 1)?;
    TcpStream::from(holder.try_clone()?).shutdown(Shutdown::Both)?;
    set_option(holder.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 0)
}

/// Whether this process may have so many more sockets behind ports: a program takes as many as it
/// likes, and everything else that is done for it takes descriptors too.
fn has_room(held: &BTreeMap<PortKey, Held>, more: usize) -> io::Result<()> {
    let soft = limits::get(Resource::Descriptors)?.soft;
    let most = soft.saturating_sub(OTHER_DESCRIPTORS).max(soft / 2);
    let sockets: usize = held.values().map(|held| held.sockets.len()).sum();
    let has = (sockets + more) as u64 <= most;
    if has { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EMFILE)) }
}

fn key((transport, family, port): PortKey) -> u32 {
    family as u32 * FAMILY_PORTS + transport as u32 * PORTS + u32::from(port)
}

fn unprivileged_port() -> u16 {
    let text = std::fs::read_to_string(UNPRIVILEGED).unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}
