//! `afxdp`: any Linux network interface, shared with Linux.
//!
//! Our XDP program redirects packets for our addresses to AF_XDP sockets, one per queue, and passes
//! all others to the kernel. Each elastic thread has a queue pair; where the interface has more
//! queues, they are dealt out ([`NicInfo::sockets_of`]). [`open`] loads and attaches the program
//! and makes the sockets. The program is attached by a BPF link, so it goes when its owner dies.
mod rss;

pub(crate) use rss::RssTable;

use crate::asm::Insn;
use crate::device::{OpenOptions, OpenedDevice};
use crate::error::{OpenError, bpf_error};
use crate::groups::{Groups, hear, of_linux};
use crate::hardware::HardwareFilters;
use crate::held_ports::HeldPorts;
use crate::keeper::{KeptProgram, is_kept, keeper_error};
use crate::xdp::{near, program, shared_program};
use ix_mem::ROOM_BYTES;
use ix_nic::{MTU_MAX, NicInfo, NicKind, Steering, XdpBind, XdpFeatures, XdpMode};
use ix_proto::keeper::Owned;
use ix_sys::bpf::{self, Map, MapKind, PROGRAM_XDP_FRAGS, Program, ProgramKind};
use ix_sys::interface::Rss;
use ix_sys::{Holder, Interface, socket};
use ix_vnic::Filter;
use ix_wire::vlan::TAG_BYTES;
use ix_wire::{IpAddr, VlanId};
use rss::Deal;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The program on its interface, and the sockets that are not in its map yet.
pub(crate) struct Attachment {
    link: OwnedFd,
    /// It outlives this process.
    is_kept: bool,
    /// The program accepts frames of several buffers.
    frags: bool,
    sockets: Map,
    /// The ports that are IX's, where the addresses are Linux's.
    shared: Option<Arc<HeldPorts>>,
    /// The VLAN whose frames are ours.
    vlan: Option<VlanId>,
    waiting: Vec<Option<OwnedFd>>,
    /// Number of queue pairs.
    pairs: usize,
    /// Most queues that may have sockets.
    room: usize,
    /// Holds the link a moment longer than this process. The kernel detaches a program when the
    /// last descriptor of its link is closed, and then waits for grace periods, 5 to 20 ms while
    /// AF_XDP sockets are in use. In a killed process that would happen before its end is reported,
    /// so a process that waits for the end, such as one that gives its traffic to another, would
    /// wait as well.
    _keeper: Option<Holder>,
    /// The interface's number.
    ifindex: u32,
    /// The groups and broadcasts whose UDP is ours.
    groups: Vec<IpAddr>,
    /// While they are open, the card takes these groups, and those that neighbours ask for our IPv6
    /// addresses.
    _groups: Option<Groups>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // The program that the keeper has stays.
        if self.is_kept {
            return;
        }
        // At once, even if others hold the link. It fails if the interface is removed.
        let _ = bpf::detach(self.link.as_fd());
    }
}

impl Attachment {
    /// Sets which packets for `addresses` are ours from the next packet on; `None`: all. On a
    /// removed interface no packets are ours in any case.
    pub fn set_filters(
        &mut self,
        addresses: &[IpAddr],
        filters: Option<&[Filter]>,
        name: &str,
    ) -> Result<(), OpenError> {
        if let Some((ports, kept)) = self.shared.as_ref().and_then(|it| Some((it, it.kept()?))) {
            let alone: Vec<IpAddr> = ports.alone().into_iter().map(IpAddr::from).collect();
            let set = kept.set_addresses(&[addresses, &self.groups[..]].concat(), &alone);
            return set.map_err(|e| keeper_error(name, e));
        }
        let to = (addresses, &self.groups[..]);
        let shared = (self.shared.as_deref(), self.frags);
        let insns = instructions(&self.sockets, to, filters, shared, self.vlan);
        let flags = if self.frags { PROGRAM_XDP_FRAGS } else { 0 };
        let program = Program::load(ProgramKind::Xdp, c"ix_xdp", &insns, flags);
        match program.and_then(|program| program.replace_in(self.link.as_fd())) {
            Err(e) if e.raw_os_error() == Some(libc::ENOLINK) => Ok(()),
            replaced => replaced.map_err(|e| bpf_error("change the receive filters of", name, e)),
        }
    }

    /// Sets which groups are ours, from the next packet on. Returns those of them that stay Linux's
    /// alone.
    pub fn set_groups(
        &mut self,
        groups: &[IpAddr],
        addresses: &[IpAddr],
        filters: Option<&[Filter]>,
        name: &str,
    ) -> Result<Vec<IpAddr>, OpenError> {
        let is_shared = self.shared.is_some();
        let (left, groups) = left_to_linux(self.ifindex, groups, (&self.groups, is_shared));
        if groups == self.groups {
            return Ok(left);
        }
        // The new sockets are in the groups before the old ones leave them.
        let heard = hear(self.ifindex, alone(addresses, is_shared), &groups);
        self._groups = heard.map_err(|e| OpenError::system("join groups on", name, e))?;
        self.groups = groups;
        self.set_filters(addresses, filters, name)?;
        Ok(left)
    }

    /// Makes sockets for new queues, up to this number of queues. Not before all others are in the
    /// map: the dataplane learns of one change after the other.
    pub fn grow(&mut self, queues: usize, name: &str) -> Result<Vec<OwnedFd>, OpenError> {
        let (have, most) = (self.waiting.len(), self.room);
        if self.waiting.iter().any(Option::is_some) {
            return Ok(Vec::new());
        }
        let new = (have..queues.min(most)).map(|_| make_socket(name));
        let new = new.collect::<Result<Vec<_>, _>>()?;
        let copies = copies(&new, name)?;
        self.waiting.extend(copies);
        Ok(new)
    }

    /// Puts the sockets of an attached queue pair into the map.
    pub fn finish(&mut self, pair: usize, name: &str) -> Result<(), OpenError> {
        let of_pair = self.waiting.iter_mut().enumerate().skip(pair).step_by(self.pairs);
        for (queue, socket) in of_pair {
            let Some(socket) = socket.take() else { continue };
            self.sockets
                .set(queue as u32, socket.as_raw_fd() as u32)
                .map_err(|e| OpenError::system("let packets into a queue of", name, e))?;
        }
        Ok(())
    }
}

/// Most sockets of a device: what a message carries, with room for other descriptors.
const SOCKETS_MAX: usize = 240;

/// XDP flags for `BPF_LINK_CREATE` (linux/if_link.h).
const ATTACH_GENERIC: u32 = 1 << 1;
const ATTACH_NATIVE: u32 = 1 << 2;

/// Bytes of packets in flight that a socket may be charged for: enough for a full transmit ring.
const SEND_BUFFER_BYTES: i32 = 8 << 20;

const ETHERNET_BYTES: usize = 14;
/// Largest packet that one buffer holds, bytes, if its frame has no tag.
const MTU_WITHOUT_FRAGS: usize = ROOM_BYTES - ETHERNET_BYTES;

/// The largest MTU of an interface that IX can use. `frags`: its XDP program takes frames in
/// several buffers. `has_tag`: IX's frames have a tag of a VLAN.
pub fn largest_mtu(frags: bool, has_tag: bool) -> usize {
    let of_buffer = MTU_WITHOUT_FRAGS - if has_tag { TAG_BYTES } else { 0 };
    if frags { MTU_MAX } else { of_buffer }
}

/// Loads and attaches the program and makes the sockets of all queues of the interface, for
/// `pairs` queue pairs, and packets of at most `wanted_mtu` bytes, if that is less than the
/// interface takes.
pub(crate) fn open(
    name: &str,
    (pairs, wanted_mtu, vlan): (usize, Option<usize>, Option<VlanId>),
    mode: XdpMode,
    options: &OpenOptions,
) -> Result<OpenedDevice, OpenError> {
    // Another run has the interface's queues, and this one has a link.
    let link = options.shared.as_ref().and_then(|ports| Some(ports.kept()?.link()?.to_owned()));
    if link.is_some() && matches!(mode, XdpMode::ZeroCopy | XdpMode::Generic) {
        return Err(other_mode(name, mode, "another run has its queues, and this one a link"));
    }
    let name = link.as_deref().unwrap_or(name);
    // A link has one mode in which packets reach it, which copies.
    let mode = if link.is_some() { XdpMode::Auto } else { mode };
    let interface =
        Interface::new(name).map_err(|e| OpenError::system("open a socket", name, e))?;
    let (ifindex, queues) = check_interface(&interface, name, pairs)?;
    if options.addresses.is_empty() && options.shared.is_none() {
        return Err(OpenError::NoAddress { name: name.to_owned() });
    }
    check_tags(&interface, name, vlan, options.shared.is_some())?;
    let ask = |e| OpenError::system("ask for the state of", name, e);
    let (mtu, mac) = (interface.mtu().map_err(ask)?, interface.mac().map_err(ask)?);

    // With places for the queues that the interface may get.
    let room = interface.channels().map_or(0, |has| (has.max_rx + has.max_combined) as usize);
    let room = room.min(SOCKETS_MAX).max(queues);
    let kept = options.shared.as_ref().and_then(|ports| ports.kept()).filter(|_| link.is_none());
    let known = kept.and_then(|kept| kept.program(ifindex)).transpose();
    let known = known.map_err(|e| keeper_error(name, e))?;
    let is_kept = kept.is_some();
    let (sockets, attached, room) = match known {
        Some(known) => {
            let KeptProgram { link, sockets, owned } = known;
            let Owned { frags, generic, text, room, .. } = owned;
            let is_other = match mode {
                XdpMode::Auto => false,
                XdpMode::ZeroCopy | XdpMode::Copy => generic,
                XdpMode::Generic => !generic,
            };
            if is_other {
                let why = "the runs that share it have a program of another mode there";
                return Err(other_mode(name, mode, why));
            }
            let bind_mode = if generic { XdpMode::Generic } else { mode };
            (sockets, Attached { link, frags, bind_mode, text }, room as usize)
        }
        None => {
            let sockets = Map::new(MapKind::Xsk, c"ix_xsks", room as u32)
                .map_err(|e| bpf_error("make a BPF map", name, e))?;
            let attached = attach_program(&sockets, name, (ifindex, vlan), mode, options)?;
            if let (Some(kept), Some(ports)) = (kept, &options.shared) {
                let owned = Owned {
                    ifindex,
                    mac,
                    mtu: mtu as u32,
                    room: room as u32,
                    frags: attached.frags,
                    generic: attached.bind_mode == XdpMode::Generic,
                    text: attached.text.clone(),
                };
                let keep = || {
                    let (link, sockets) = (attached.link.try_clone()?, Map::of(sockets.copy()?));
                    ports.give(kept, KeptProgram { link, sockets, owned })
                };
                keep().map_err(|e| keeper_error(name, e))?;
            }
            (sockets, attached, room)
        }
    };
    let largest = largest_mtu(attached.frags, vlan.is_some());
    // What Linux and others send may be as long as the interface takes. A user who asks for less
    // knows that nobody sends such packets.
    let is_cut = !attached.frags && wanted_mtu.is_some_and(|asked| asked <= largest);
    if mtu > largest && !is_cut {
        return Err(OpenError::MtuTooLarge { name: name.to_owned(), mtu, largest });
    }
    let longer = match mtu > largest {
        true => format!(", packets of others of more than {largest} bytes are lost"),
        false => String::new(),
    };
    if let Some(asked) = wanted_mtu.filter(|asked| *asked > mtu) {
        return Err(OpenError::MtuTooSmall { name: name.to_owned(), mtu, asked });
    }
    let mtu = wanted_mtu.unwrap_or(mtu);
    let queue_fds = (0..queues).map(|_| make_socket(name)).collect::<Result<Vec<_>, _>>()?;
    let waiting = copies(&queue_fds, name)?;

    let (steering, table, refused) = steering(interface, name, Deal { pairs, queues });
    let (rss, table_fd) = table.unzip();
    let (mode, frags) = (attached.bind_mode, attached.frags);
    let info = NicInfo {
        kind: NicKind::Afxdp(XdpBind {
            ifindex,
            mode,
            frags,
            sockets: queues as u32,
            features: XdpFeatures::DEFAULT,
        }),
        name: name.to_owned(),
        mode: attached.text + &dealt(pairs, queues) + &longer + &refused,
        queues: pairs,
        mac,
        mtu,
        vlan,
        steering,
        partial_checksums: partial_checksums(name),
        shared_frames: false,
        table_fd: table_fd.is_some(),
    };
    let Attached { link, frags, .. } = attached;
    // Without a keeper, a kill takes longer to complete, which does no other harm.
    let _keeper = (options.has_keeper && !is_kept)
        .then(|| Holder::new(link.as_fd(), c"ix-keeper").ok())
        .flatten();
    let groups = [&options.groups[..], &options.broadcasts].concat();
    let shared = options.shared.clone();
    let (_, groups) = left_to_linux(ifindex, &groups, (&[], shared.is_some()));
    let own = alone(&options.addresses, shared.is_some());
    let _groups = hear(ifindex, own, &groups).map_err(ask)?;
    let attachment = Attachment {
        link,
        is_kept,
        frags,
        sockets,
        shared,
        vlan,
        waiting,
        pairs,
        room,
        _keeper,
        ifindex,
        groups,
        _groups,
    };
    let opened = OpenedDevice::new(info, queue_fds, None).with_table_fd(table_fd);
    // With several queues the redirection table distributes packets. The card's filters are for
    // frames without a tag.
    let hardware = (queues == 1 && vlan.is_none()).then(|| HardwareFilters::of(name)).flatten();
    Ok(opened.with_xdp(attachment).with_rss(rss).with_hardware(hardware))
}

/// The interface is shared by runs, and this one cannot have the mode that it asks for.
fn other_mode(name: &str, mode: XdpMode, why: &str) -> OpenError {
    let source = io::Error::other(why);
    OpenError::ModeRefused { name: name.to_owned(), mode: mode.name(), source }
}

/// Those of these groups that stay Linux's, because programs of Linux listen to them on the
/// interface: an XDP program gives a packet to one of both, and a program may name any group. Then
/// the others. Where ports are shared with Linux the port decides, so all are ours.
fn left_to_linux(
    ifindex: u32,
    groups: &[IpAddr],
    (own, is_shared): (&[IpAddr], bool),
) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let linux = if is_shared { Vec::new() } else { of_linux(ifindex, own) };
    groups.iter().copied().partition(|group| linux.binary_search(group).is_ok())
}

/// Copies of sockets, which go into the map.
fn copies(sockets: &[OwnedFd], name: &str) -> Result<Vec<Option<OwnedFd>>, OpenError> {
    let copies = sockets.iter().map(|fd| fd.try_clone().map(Some)).collect::<io::Result<_>>();
    copies.map_err(|e| OpenError::system("keep a socket of", name, e))
}

/// What several queues for each elastic thread are called, for people.
fn dealt(pairs: usize, queues: usize) -> String {
    match pairs {
        _ if pairs == queues => String::new(),
        1 => format!(", {queues} queues"),
        _ => format!(", {queues} queues for {pairs} elastic threads"),
    }
}

/// The interface's number and its receive queues, if it is up and has a queue for each pair.
fn check_interface(
    interface: &Interface,
    name: &str,
    pairs: usize,
) -> Result<(u32, usize), OpenError> {
    let ask = |e| OpenError::system("ask for the state of", name, e);
    let ifindex = interface.index().map_err(ask)?;
    if !interface.is_up().map_err(ask)? {
        return Err(OpenError::Down { name: name.to_owned() });
    }
    let channels = interface.queues();
    // Each pair sends by the queue of its own number. A socket receives from its own queue only,
    // and the program runs on all queues, so each receive queue has a socket.
    let has = channels.rx.min(channels.tx);
    if pairs > has {
        return Err(OpenError::TooManyQueues { name: name.to_owned(), asked: pairs, has });
    }
    Ok((ifindex, channels.rx))
}

/// Refuses a VLAN whose tags would not be in the frames, and one on an interface whose address is
/// to be shared: that is for frames without a tag.
fn check_tags(
    interface: &Interface,
    name: &str,
    vlan: Option<VlanId>,
    is_shared: bool,
) -> Result<(), OpenError> {
    let Some(vlan) = vlan else { return Ok(()) };
    let refused = |why: String| OpenError::Refused {
        action: "use a VLAN by its tag on",
        name: name.to_owned(),
        why,
    };
    let link = format!("`ip link add link {name} name {name}.{vlan} type vlan id {vlan}`");
    if is_shared {
        let why = "the addresses of Linux on it are for frames without a tag; give an address with";
        return Err(refused(format!("{why} --addr, or share those of a VLAN interface: {link}")));
    }
    // A veth says that it does; but there the other end decides, which may be anywhere.
    let takes_off = interface.driver().is_ok_and(|driver| driver != "veth")
        && interface.takes_tags_off().unwrap_or(false);
    if takes_off {
        let why = "it takes tags off frames before IX sees them";
        return Err(refused(format!(
            "{why}; `ethtool -K {name} rxvlan off`, or use a VLAN interface: {link}"
        )));
    }
    Ok(())
}

/// The addresses whose groups of neighbours are ours alone: where they are Linux's as well, it is
/// in these groups, and answers.
fn alone(addresses: &[IpAddr], is_shared: bool) -> &[IpAddr] {
    if is_shared { &[] } else { addresses }
}

/// The program's code. `frags`: it will take frames in several buffers.
fn instructions(
    sockets: &Map,
    (addresses, groups): (&[IpAddr], &[IpAddr]),
    filters: Option<&[Filter]>,
    (shared, frags): (Option<&HeldPorts>, bool),
    vlan: Option<VlanId>,
) -> Vec<Insn> {
    match shared {
        Some(ports) if ports.kept().is_some_and(|kept| kept.link().is_some()) => near::far(sockets),
        Some(ports) => shared_program(&ports.maps(sockets, frags), addresses, groups),
        None => program::xdp_program(sockets, (addresses, groups), filters, vlan),
    }
}

/// A program on its interface.
struct Attached {
    link: OwnedFd,
    frags: bool,
    bind_mode: XdpMode,
    text: String,
}

/// Tries the attachment points from the fastest on; the text lists each refusal.
fn attach_program(
    sockets: &Map,
    name: &str,
    (ifindex, vlan): (u32, Option<VlanId>),
    mode: XdpMode,
    options: &OpenOptions,
) -> Result<Attached, OpenError> {
    let (filters, shared) = (options.filters.as_deref(), options.shared.as_deref());
    let groups = [&options.groups[..], &options.broadcasts].concat();
    let to = (&options.addresses[..], &groups[..]);
    let load = |frags| {
        let insns = instructions(sockets, to, filters, (shared, frags), vlan);
        let flags = if frags { PROGRAM_XDP_FRAGS } else { 0 };
        Program::load(ProgramKind::Xdp, c"ix_xdp", &insns, flags)
    };
    let plain = load(false).map_err(|e| bpf_error("load an XDP program", name, e))?;
    let with_frags = load(true);

    let places: &[(u32, &str)] = match mode {
        XdpMode::Auto => &[(ATTACH_NATIVE, "native"), (ATTACH_GENERIC, "generic")],
        XdpMode::ZeroCopy | XdpMode::Copy => &[(ATTACH_NATIVE, "native")],
        XdpMode::Generic => &[(ATTACH_GENERIC, "generic")],
    };
    let mut refusals = String::new();
    let mut last = None;
    for (place, text) in places {
        for (program, frags) in [(with_frags.as_ref(), true), (Ok(&plain), false)] {
            let result = match program {
                Ok(program) => program.attach_xdp(ifindex, *place),
                Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
            };
            match result {
                Ok(link) => {
                    let generic = *place == ATTACH_GENERIC;
                    let bind_mode = if generic { XdpMode::Generic } else { mode };
                    let text = format!("{text}{refusals}");
                    return Ok(Attached { link, frags, bind_mode, text });
                }
                Err(e) => {
                    let what = if frags { " multi-buffer" } else { "" };
                    refusals += &format!(" ({text}{what} refused: {e})");
                    last = Some(e);
                }
            }
        }
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
    Err(match error.raw_os_error() {
        // A run that shares has a keeper itself.
        Some(libc::EBUSY | libc::EEXIST) if shared.is_none() && is_kept(name) => {
            OpenError::SharedByRuns { name: name.to_owned() }
        }
        Some(libc::EBUSY | libc::EEXIST) => OpenError::program_present(name),
        Some(libc::EOPNOTSUPP) if mode != XdpMode::Auto => {
            OpenError::ModeRefused { name: name.to_owned(), mode: mode.name(), source: error }
        }
        _ => bpf_error("attach an XDP program to", name, error),
    })
}

fn make_socket(name: &str) -> Result<OwnedFd, OpenError> {
    let fd = socket::open(libc::AF_XDP, libc::SOCK_RAW).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => OpenError::Privilege {
            what: "open an AF_XDP socket",
            name: name.to_owned(),
            needs: "CAP_NET_RAW",
        },
        _ => OpenError::system("open an AF_XDP socket for", name, e),
    })?;
    // Without it a burst beyond the default needs another kick; that is no reason to fail.
    let (level, bytes) = (libc::SOL_SOCKET, SEND_BUFFER_BYTES);
    let _ = socket::set_option(fd.as_fd(), level, libc::SO_SNDBUFFORCE, bytes);
    Ok(fd)
}

/// Drivers whose peer may be the Linux stack of the same machine.
fn partial_checksums(name: &str) -> bool {
    let driver = Interface::new(name).and_then(|i| i.driver()).unwrap_or_default();
    matches!(driver.as_str(), "veth" | "virtio_net" | "tun")
}

/// Steering: the broker's and the dataplane's end of the interface's redirection table; or
/// software, if the interface has no table that fits, with the reason.
fn steering(
    interface: Interface,
    name: &str,
    deal: Deal,
) -> (Steering, Option<(RssTable, OwnedFd)>, String) {
    let software = |why| (Steering::Software, None, why);
    match interface.rss() {
        Some(rss) if RssTable::fits(&rss, deal) => {
            let Rss { table, key } = rss;
            match RssTable::open(name, Box::new(interface), table, deal) {
                Ok(opened) => (Steering::Rss(key), Some(opened), String::new()),
                Err(e) => software(format!(", redirection table refused: {e}")),
            }
        }
        _ => software(String::new()),
    }
}
