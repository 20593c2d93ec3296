//! The keeper's own process.
use super::{MESSAGE_MAX, is_one_of_us, path_of};
use crate::exchange::Hung;
use crate::link::VethEnd;
use crate::namespace::Namespace;
use crate::watch::LinkWatch;
use crate::xdp::{
    ALL_PORTS, FRAGMENT_KEY, FRAGMENT_KEY_V6, Maps, OWNERS, TO_LINK, TO_SOCKETS, near,
    shared_program,
};
use ix_proto::Codec;
use ix_proto::keeper::{FromKeeper, MAPS, Owned, ToKeeper};
use ix_sys::Interface;
use ix_sys::bpf::{self, Map, Memory, PROGRAM_XDP_FRAGS, Program, ProgramKind};
use ix_sys::poll::{PollFd, poll};
use ix_sys::socket::{self, receive_with_fds, send_with_fds};
use ix_wire::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// So long after the run that had the queues has ended, they are nobody's: its dataplane may take a
/// moment longer to end, and a queue has one packet memory.
const QUEUES_REST: Duration = Duration::from_secs(2);
/// Longest wait for the first run, and for a run after the last one.
const IDLE: Duration = Duration::from_millis(500);
/// Longest time between two looks at the interface's MTU and Ethernet address, which its links have
/// too: a message of Linux may be lost.
const LOOK: Duration = Duration::from_secs(1);
/// Rest after an error that passes.
const PAUSE: Duration = Duration::from_millis(10);
/// XDP behind the driver (linux/if_link.h).
const ATTACH_GENERIC: u32 = 1 << 1;

/// Keeps the interface of this name until no run shares it any more. Ends at once if another
/// process keeps it.
pub fn keep(interface: &str) -> io::Result<()> {
    let listen = |interface: &str| socket::listen_unix(libc::SOCK_SEQPACKET, &path_of(interface));
    let mut listener = match listen(interface) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => return Ok(()),
        listener => listener?,
    };
    let mut listens_as = interface.to_owned();
    remove_left(interface);
    let mut keeper = Keeper::new(interface);
    // Without it changes are seen later.
    let mut watch = LinkWatch::new(&[]).ok();
    let mut idle_since = Instant::now();
    loop {
        let mut fds = vec![PollFd::readable(&listener)];
        fds.extend(keeper.runs.values().map(|run| PollFd::readable(&run.socket)));
        let slots: Vec<u32> = keeper.runs.keys().copied().collect();
        fds.extend(watch.iter().map(|watch| PollFd::readable(&watch.fd())));
        let is_idle = slots.is_empty();
        let wait = match is_idle {
            true => Some(IDLE),
            // A keeper that ends, or one that was started too early, has the new name.
            false if listens_as != keeper.interface => Some(PAUSE),
            false => keeper.has_links().then_some(LOOK),
        };
        // After an error, which is an interruption, nothing is ready.
        let _ = poll(&mut fds, wait);
        // Whatever has changed, the interface is looked at.
        let _ = watch.as_mut().map(LinkWatch::changes);
        keeper.follow_interface();
        if listens_as != keeper.interface
            && let Ok(new) = listen(&keeper.interface)
        {
            (listener, listens_as) = (new, keeper.interface.clone());
            continue;
        }
        if fds[0].is_ready() {
            match socket::accept(listener.as_fd()) {
                Ok(new) if is_one_of_us(new.as_fd()) => keeper.arrives(new),
                Ok(_) => {}
                // No descriptors are left, or no memory.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        for (slot, fd) in slots.into_iter().zip(&fds[1..]) {
            if fd.is_ready() {
                keeper.hear(slot);
            }
        }
        if !keeper.runs.is_empty() {
            idle_since = Instant::now();
        } else if keeper.program.is_some() || idle_since.elapsed() >= IDLE {
            // Dropped: the program goes.
            return Ok(());
        }
    }
}

/// Removes links that a keeper has left which was killed. Errors: the run at the other end has.
fn remove_left(interface: &str) {
    let Ok(here) = Namespace::current() else { return };
    let Ok(Some(link)) = here.link(interface) else { return };
    let near = near_of(link.index);
    let left = here.links().unwrap_or_default().into_iter();
    for left in left.filter(|left| left.name.starts_with(&near) && left.kind == "veth") {
        let _ = here.delete_link(&left.name);
    }
}

/// How the names of the near ends of an interface's links begin.
fn near_of(ifindex: u32) -> String {
    format!("ixn{ifindex}-")
}

/// A run that shares the interface.
struct Run {
    socket: OwnedFd,
    /// It waits for an answer to its first message.
    joining: Option<(u32, u32)>,
    /// It has been answered: its addresses count.
    has_joined: bool,
    /// What it knows of Linux's addresses, and its groups.
    addresses: Vec<IpAddr>,
    /// Addresses that must stay Linux's alone.
    alone: Vec<IpAddr>,
    part: Part,
}

/// What has become of the ports of a run that ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    /// It has given them back itself.
    Released,
    /// Its number stands in the map.
    Left,
}

/// What a run has.
enum Part {
    Nothing,
    Queues,
    Link(Link),
}

/// A link, which goes with this.
struct Link {
    near: String,
    far: String,
    hung: Hung,
}

/// The program and its maps.
struct Kept {
    link: OwnedFd,
    owned: Owned,
    ports: Map,
    fragments: Memory<FRAGMENT_KEY>,
    fragments_v6: Memory<FRAGMENT_KEY_V6>,
    owners: Map,
    links: Map,
    sockets: Map,
}

struct Keeper {
    interface: String,
    program: Option<Kept>,
    /// By their numbers.
    runs: BTreeMap<u32, Run>,
    /// Who is to attach the program.
    first: Option<u32>,
    /// The addresses and groups by which the programs judge, if nothing else of them has changed.
    judged_by: Option<(Vec<IpAddr>, Vec<IpAddr>)>,
    /// Numbers, the one that was used last at the end.
    free: VecDeque<u32>,
    /// When the queues are free again.
    queues_at: Instant,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(program) = &self.program {
            let _ = bpf::detach(program.link.as_fd());
        }
    }
}

impl Keeper {
    fn new(interface: &str) -> Keeper {
        Keeper {
            interface: interface.to_owned(),
            program: None,
            runs: BTreeMap::new(),
            first: None,
            judged_by: None,
            free: (1..OWNERS).collect(),
            queues_at: Instant::now(),
        }
    }

    fn arrives(&mut self, socket: OwnedFd) {
        let Some(slot) = self.free.pop_front() else {
            let why = format!("{} runs share the interface already", OWNERS - 1);
            say(socket.as_fd(), &FromKeeper::Refused(why), &[]);
            return;
        };
        let (joining, has_joined, addresses, alone) = Default::default();
        let run = Run { socket, joining, has_joined, addresses, alone, part: Part::Nothing };
        self.runs.insert(slot, run);
    }

    /// A run has said something, or has ended.
    fn hear(&mut self, slot: u32) {
        let Some(run) = self.runs.get(&slot) else { return };
        let mut buffer = vec![0; MESSAGE_MAX];
        let (message, fds) = match receive_with_fds(run.socket.as_fd(), &mut buffer, 0) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Ok(said) if said.bytes != 0 && !said.is_cut => {
                (ToKeeper::decode(&buffer[..said.bytes]).ok(), said.fds)
            }
            _ => (None, Vec::new()),
        };
        let answer = match message {
            Some(ToKeeper::Join { ifindex, threads, addresses }) => {
                if let Some(run) = self.runs.get_mut(&slot) {
                    (run.addresses, run.joining) = (addresses, Some((ifindex, threads)));
                }
                return self.join_waiting();
            }
            Some(ToKeeper::Own(owned)) if self.first == Some(slot) || self.has_queues(slot) => {
                self.own(slot, owned, fds)
            }
            Some(ToKeeper::Addresses { addresses, alone }) => {
                self.set_addresses(slot, addresses, alone)
            }
            Some(ToKeeper::Take { port }) => self.take(slot, port),
            Some(ToKeeper::Leave) => {
                let socket = self.ends(slot, Ports::Released);
                // All of it is gone before the run ends.
                if self.runs.is_empty()
                    && let Some(program) = self.program.take()
                {
                    let _ = bpf::detach(program.link.as_fd());
                }
                if let Some(socket) = socket {
                    say(socket.as_fd(), &FromKeeper::Done, &[]);
                }
                return self.join_waiting();
            }
            // It has ended, or says what no run says.
            _ => {
                drop(self.ends(slot, Ports::Left));
                // It may have been about to attach the program, for which others wait.
                return self.join_waiting();
            }
        };
        let answer = answer.map_or_else(FromKeeper::Refused, |()| FromKeeper::Done);
        if let Some(run) = self.runs.get(&slot) {
            say(run.socket.as_fd(), &answer, &[]);
        }
        self.join_waiting();
    }

    /// A run has a port, unless another one has. The keeper is one process, so that of two runs
    /// that want it one is the first.
    fn take(&self, slot: u32, port: u32) -> Result<(), String> {
        let told = |e: io::Error| e.to_string();
        // A run that has yet to attach the program is the only one.
        let Some(program) = &self.program else { return Ok(()) };
        match program.ports.get(port).map_err(told)? {
            owner if owner == 0 || owner == slot => program.ports.set(port, slot).map_err(told),
            _ => Err("another run has the port".to_owned()),
        }
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.runs.values().filter_map(|run| match &run.part {
            Part::Link(link) => Some(link),
            Part::Nothing | Part::Queues => None,
        })
    }

    fn has_links(&self) -> bool {
        self.links().next().is_some()
    }

    /// Gives all links the MTU and the Ethernet address of the interface, if those are others.
    fn follow_interface(&mut self) {
        self.follow_name();
        let Some(program) = &mut self.program else { return };
        let Ok(interface) = Interface::new(&self.interface) else { return };
        let owned = &mut program.owned;
        if interface.index().ok() != Some(owned.ifindex) {
            return;
        }
        let (mtu, mac) = (owned.mtu, owned.mac);
        owned.mtu = interface.mtu().map_or(mtu, |mtu| mtu as u32);
        owned.mac = interface.mac().unwrap_or(mac);
        let (new_mtu, new_mac) = (owned.mtu, owned.mac);
        if (new_mtu, new_mac) == (mtu, mac) {
            return;
        }
        if new_mac != mac {
            // The near ends let frames with it out before a run sends any. If it fails, links are
            // mute, which the next change of addresses mends.
            self.judged_by = None;
            let _ = self.exchange_program();
        }
        let Ok(here) = Namespace::current() else { return };
        for link in self.links() {
            if new_mtu != mtu {
                for end in [&link.near, &link.far] {
                    // A link that refuses it loses what is longer.
                    let _ = here.set_mtu(end, new_mtu);
                }
            }
            if new_mac != mac {
                // By it the run hears of the change.
                let _ = here.set_mac(&link.far, new_mac);
            }
        }
    }

    /// The interface may have another name now, and another one its name.
    fn follow_name(&mut self) {
        let Some(program) = &self.program else { return };
        let (known, ifindex) = (&self.interface, program.owned.ifindex);
        if Interface::new(known).and_then(|it| it.index()).is_ok_and(|index| index == ifindex) {
            return;
        }
        let links = Namespace::current().and_then(|here| here.links()).unwrap_or_default();
        if let Some(link) = links.into_iter().find(|link| link.index == ifindex) {
            self.interface = link.name;
        }
    }

    fn has_queues(&self, slot: u32) -> bool {
        self.runs.get(&slot).is_some_and(|run| matches!(run.part, Part::Queues))
    }

    /// Answers the runs that wait to join, unless one is about to attach the program.
    fn join_waiting(&mut self) {
        let waiting = self.runs.iter().filter(|(_, run)| run.joining.is_some());
        for slot in waiting.map(|(slot, _)| *slot).collect::<Vec<_>>() {
            if self.first.is_some() {
                return;
            }
            self.join(slot);
        }
    }

    fn join(&mut self, slot: u32) {
        let Some(run) = self.runs.get_mut(&slot) else { return };
        let Some((ifindex, threads)) = run.joining.take() else { return };
        run.has_joined = true;
        let Some(program) = &self.program else {
            (self.first, run.part) = (Some(slot), Part::Queues);
            return say(run.socket.as_fd(), &FromKeeper::First { owner: slot }, &[]);
        };
        if ifindex != program.owned.ifindex {
            let why = "the interface that the other runs share had this name, and has it no more; \
                       start it again in a moment, or end those";
            return self.refuse(slot, why.to_owned());
        }
        // Before anything of it is IX's.
        if let Err(why) = self.exchange_program() {
            return self.refuse(slot, why);
        }
        let queues = self.runs.values().any(|run| matches!(run.part, Part::Queues));
        if !queues && Instant::now() >= self.queues_at {
            self.give_queues(slot);
        } else if let Err(e) = self.give_link(slot, threads) {
            self.refuse(slot, format!("cannot make a link for another run: {e}"));
        }
    }

    fn refuse(&mut self, slot: u32, why: String) {
        if let Some(socket) = self.ends(slot, Ports::Left) {
            say(socket.as_fd(), &FromKeeper::Refused(why), &[]);
        }
    }

    fn give_queues(&mut self, slot: u32) {
        let (Some(program), Some(run)) = (&self.program, self.runs.get_mut(&slot)) else { return };
        let set = program.owners.set(slot, TO_SOCKETS);
        let fds = set.and_then(|()| program.copies());
        let Ok(fds) = fds else { return self.refuse(slot, "no descriptors are left".to_owned()) };
        run.part = Part::Queues;
        let answer = FromKeeper::Queues { owner: slot, owned: program.owned.clone() };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        say(run.socket.as_fd(), &answer, &fds);
    }

    fn give_link(&mut self, slot: u32, threads: u32) -> Result<(), String> {
        let Some(program) = &self.program else { return Ok(()) };
        let told = |e: &dyn std::fmt::Display| e.to_string();
        let here = Namespace::current().map_err(|e| told(&e))?;
        let near = format!("{}{slot}", near_of(program.owned.ifindex));
        let far = format!("ixk{}-{slot}", program.owned.ifindex);
        let Owned { mac, mtu, ifindex, .. } = program.owned;
        let queues = threads.clamp(1, 64);
        let ends = (
            VethEnd::new(&near).queues(queues).mtu(mtu),
            VethEnd::new(&far).queues(queues).mtu(mtu).mac(mac),
        );
        here.add_veth(&ends.0, &here, &ends.1).map_err(|e| told(&e))?;
        let made = || -> Result<Hung, String> {
            for end in [&near, &far] {
                // Linux must not send packets of its own there. Fails where Linux has no IPv6.
                let _ = here.set_sysctl(&format!("net/ipv6/conf/{end}/disable_ipv6"), "1");
                // As long as the run's program is not there Linux would take what comes, for
                // its address: a connection would begin there and go on with the run, which has
                // none. Strict, Linux takes nothing from a link that no route goes by.
                let _ = here.set_sysctl(&format!("net/ipv4/conf/{end}/rp_filter"), "1");
                here.set_up(end, true).map_err(|e| told(&e))?;
            }
            let link = here.link(&near).map_err(|e| told(&e))?.ok_or("it is gone")?;
            let (addresses, _) = self.addresses();
            let insns = near::near(&near::Near {
                owned: &program.ports,
                owner: slot,
                uplink: (ifindex, mac),
                addresses: &addresses,
                fragments: &program.fragments,
                fragments_v6: &program.fragments_v6,
            });
            let hung = Hung::up(link.index, &[ATTACH_GENERIC], &insns).map_err(|e| told(&e))?;
            program.links.set(slot, link.index).map_err(|e| told(&e))?;
            program.owners.set(slot, TO_LINK).map_err(|e| told(&e))?;
            Ok(hung)
        };
        let hung = made().inspect_err(|_| drop(here.delete_link(&near)))?;
        let ports = program.ports.copy().map_err(|e| told(&e))?;
        if let Some(run) = self.runs.get_mut(&slot) {
            let answer = FromKeeper::Link { owner: slot, name: far.clone() };
            run.part = Part::Link(Link { near, far, hung });
            say(run.socket.as_fd(), &answer, &[ports.as_fd()]);
        }
        Ok(())
    }

    /// Takes over the program that a run has attached.
    fn own(&mut self, slot: u32, owned: Owned, fds: Vec<OwnedFd>) -> Result<(), String> {
        let refused = |e: io::Error| e.to_string();
        let fds: [OwnedFd; 1 + MAPS.len()] =
            fds.try_into().map_err(|_| "the program lacks descriptors".to_owned())?;
        let [link, ports, fragments, fragments_v6, owners, links, sockets] = fds;
        let kept = Kept {
            link,
            owned,
            ports: Map::of(ports),
            fragments: Memory::of(fragments),
            fragments_v6: Memory::of(fragments_v6),
            owners: Map::of(owners),
            links: Map::of(links),
            sockets: Map::of(sockets),
        };
        kept.owners.set(slot, TO_SOCKETS).map_err(refused)?;
        // Where the interface was made again, the old one's has gone with it. Links of others lead
        // to that: they get new ones when they start again.
        (self.program, self.first, self.judged_by) = (Some(kept), None, None);
        Ok(())
    }

    fn set_addresses(
        &mut self,
        slot: u32,
        addresses: Vec<IpAddr>,
        alone: Vec<IpAddr>,
    ) -> Result<(), String> {
        if let Some(run) = self.runs.get_mut(&slot) {
            (run.addresses, run.alone) = (addresses, alone);
        }
        self.exchange_program()
    }

    /// The addresses that are shared, and the groups that any run has. An address is shared once a
    /// run has heard of it: another one may be stopped, or hear of it later. One of which Linux has
    /// a port that a run has elsewhere is Linux's alone.
    fn addresses(&self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let runs = || self.runs.values().filter(|run| run.has_joined);
        let all: BTreeSet<IpAddr> = runs().flat_map(|run| &run.addresses).copied().collect();
        let alone: BTreeSet<IpAddr> = runs().flat_map(|run| &run.alone).copied().collect();
        let (groups, own): (Vec<_>, Vec<_>) = all.into_iter().partition(|ip| ip.is_multicast());
        (own.into_iter().filter(|own| !alone.contains(own)).collect(), groups)
    }

    /// Lets the programs judge by the addresses that there are now. It takes the kernel some
    /// milliseconds for each, so what they do already is left as it is: of several runs that tell
    /// the same only the first one waits.
    fn exchange_program(&mut self) -> Result<(), String> {
        let now = self.addresses();
        if self.judged_by.as_ref() != Some(&now) {
            self.judged_by = None;
            self.load_programs(&now)?;
            self.judged_by = Some(now);
        }
        Ok(())
    }

    fn load_programs(
        &self,
        (addresses, groups): &(Vec<IpAddr>, Vec<IpAddr>),
    ) -> Result<(), String> {
        let Some(program) = &self.program else { return Ok(()) };
        let insns = shared_program(&program.maps(), addresses, groups);
        let flags = if program.owned.frags { PROGRAM_XDP_FRAGS } else { 0 };
        let loaded = Program::load(ProgramKind::Xdp, c"ix_xdp", &insns, flags);
        match loaded.and_then(|loaded| loaded.replace_in(program.link.as_fd())) {
            // The interface is gone.
            Err(e) if e.raw_os_error() == Some(libc::ENOLINK) => {}
            replaced => replaced.map_err(|e| format!("cannot change the program: {e}"))?,
        }
        for (slot, run) in &self.runs {
            if let Part::Link(link) = &run.part {
                let insns = near::near(&near::Near {
                    owned: &program.ports,
                    owner: *slot,
                    uplink: (program.owned.ifindex, program.owned.mac),
                    addresses,
                    fragments: &program.fragments,
                    fragments_v6: &program.fragments_v6,
                });
                link.hung.replace(&insns).map_err(|e| format!("cannot change a link: {e}"))?;
            }
        }
        Ok(())
    }

    /// Nothing is a run's any more; Linux has its ports at once. Returns its connection.
    fn ends(&mut self, slot: u32, ports: Ports) -> Option<OwnedFd> {
        let run = self.runs.remove(&slot)?;
        if self.first == Some(slot) {
            self.first = None;
        }
        let mut has_ports = false;
        if let Some(program) = self.program.as_ref().filter(|_| run.has_joined) {
            let _ = program.owners.set(slot, 0);
            if let Part::Link(link) = &run.part {
                let _ = program.links.remove(slot);
                if let Ok(here) = Namespace::current() {
                    let _ = here.delete_link(&link.near);
                }
            }
            // The next owner of this number has none of them; after the last run the map goes.
            if ports == Ports::Left && !self.runs.is_empty() {
                has_ports = program.ports.clear_all(ALL_PORTS, slot).is_err();
            }
        }
        if matches!(run.part, Part::Queues) {
            self.queues_at = Instant::now() + QUEUES_REST;
        }
        if !has_ports {
            self.free.push_back(slot);
        }
        // An address that it did not share may be the others'.
        let _ = self.exchange_program();
        Some(run.socket)
    }
}

impl Kept {
    fn maps(&self) -> Maps<'_> {
        Maps {
            sockets: &self.sockets,
            owned: &self.ports,
            owners: &self.owners,
            links: &self.links,
            fragments: &self.fragments,
            fragments_v6: &self.fragments_v6,
        }
    }

    /// Descriptors of it all, in the order in which they are sent.
    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![
            self.link.try_clone()?,
            self.ports.copy()?,
            self.fragments.copy()?,
            self.fragments_v6.copy()?,
            self.owners.copy()?,
            self.links.copy()?,
            self.sockets.copy()?,
        ])
    }
}

/// A run that does not listen has ended, which its connection says.
fn say(socket: BorrowedFd<'_>, message: &FromKeeper, fds: &[BorrowedFd<'_>]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let _ = send_with_fds(socket, &message.encode(), fds, flags);
}
