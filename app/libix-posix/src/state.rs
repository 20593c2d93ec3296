//! The state that all threads of the program share: sockets, epoll sets, and calls to be made.
use crate::confined::ELASTIC_THREADS_MAX;
use crate::elastic_thread::{self, ElasticThread, Role};
use crate::ephemeral::EphemeralPorts;
use crate::epoll_set::{self, Set};
use crate::family;
use crate::interface::{Interfaces, linux_networks};
use crate::linux_route::{self, Way};
use crate::linux_side::LinuxSide;
use crate::numbers::Numbers;
use crate::paths::Paths;
use crate::port::{Port, UdpPort};
use crate::route::{Routes, Whose};
use crate::slab::{Id, Slab};
use crate::socket::{Kind, Socket};
use crate::stream::Phase;
use crate::thrift::Thrift;
use crate::uring::Ring;
use crate::waiter::{Waiter, Wakeups};
use ix_abi::Congestion;
use libix::engine::Ending;
use libix::raw::TxBuf;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::Instant;

/// The state that all threads of the program share.
pub struct Core {
    /// Sockets.
    pub sockets: Slab<Socket>,
    /// Epoll sets.
    pub sets: Slab<Set>,
    /// Kept numbers of closed sockets.
    pub numbers: Numbers,
    /// Listening ports.
    pub ports: Slab<Port>,
    /// Bound UDP ports.
    pub udp_ports: Slab<UdpPort>,
    /// Memory that calls under way name, each with the socket that it is for.
    pub lent: Slab<(TxBuf, Id)>,
    /// What this library keeps for each elastic thread.
    pub elastic_threads: [ElasticThread; ELASTIC_THREADS_MAX],
    /// How many elastic threads there are; one before the dataplane runs.
    pub elastic_count: usize,
    /// Ports for programs that name none.
    pub ephemeral: EphemeralPorts,
    /// Ports that IX has for sockets without one, where the address is Linux's as well.
    pub outgoing: Option<(u16, u16)>,
    /// Which addresses are IX's.
    pub routes: Routes,
    /// The Linux interfaces of the dataplane's devices.
    pub interfaces: Interfaces,
    /// Congestion control of connections without `TCP_CONGESTION`.
    pub congestion: Congestion,
    /// Known MTUs of paths.
    pub paths: Paths,
    /// Largest TCP payload of one packet, bytes.
    pub mss: u64,
    /// Transmit memory of all elastic threads together, bytes.
    pub tx_bytes: u64,
    /// How many threads wait until no thread is inside the dataplane.
    pub stay_out: u32,
    /// Threads to be woken when the lock is released.
    pub wakeups: Wakeups,
    /// Linux's ids of threads that were cancelled and have not yet found out here.
    pub cancelled: Vec<i32>,
    /// An epoll set of ours, with the program's real sets that are quiet.
    pub quiet_sets: Option<RawFd>,
    /// The dataplane has ended, and there is no other one yet.
    pub is_lost: bool,
    /// No thread of this process has waited for its listeners.
    pub in_reserve: bool,
    /// This process is about to execute another program, which has what several processes have.
    pub executing: bool,
    /// The program is about to end.
    pub finishing: bool,
    /// A thread of ours waits until the serving process ends.
    pub waits_to_serve: bool,
    /// When to ask for the dataplane again: it has no room for another process.
    pub asks_again: Option<Instant>,
    /// Memory that may be given back.
    pub thrift: Thrift,
    /// Longest sleep of a driver, µs, while something here depends on other processes.
    pub looks_us: Option<u64>,
    /// What was seen last of what other processes say of connections.
    pub holders_seen: u32,
    /// When they are looked at without a word of theirs, µs.
    pub holders_again_us: u64,
    /// When they last said something, µs.
    pub holders_news_us: u64,
    /// Some of `handed` depend on what other processes do.
    pub handed_looks: bool,
    /// Connections that several processes have.
    pub handed: Vec<Id>,
    /// Sockets that the program has closed and another process is to get.
    pub afloat: Vec<Id>,
    /// When they are looked at again, µs.
    pub afloat_again_us: u64,
    /// The process that was last given a connection.
    pub kin_turn: usize,
    /// The next change of a shared epoll set to follow; `None`: no other process has a set.
    pub sets_seen: Option<u64>,
    /// The change that another process is writing, and since when that is known, µs.
    pub set_change_awaited: Option<(u64, u64)>,
    /// How many sets were given a number.
    pub set_numbers: u32,
    /// The program's rings of io_uring.
    pub rings: Vec<Ring>,
    /// Linux's side of UDP sockets.
    pub linux_side: LinuxSide,
}

impl Core {
    /// No sockets and no dataplane.
    pub const fn new() -> Core {
        Core {
            sockets: Slab::new(),
            sets: Slab::new(),
            numbers: Numbers::new(),
            ports: Slab::new(),
            udp_ports: Slab::new(),
            lent: Slab::new(),
            elastic_threads: [const { ElasticThread::new() }; ELASTIC_THREADS_MAX],
            elastic_count: 1,
            ephemeral: EphemeralPorts::new(),
            outgoing: None,
            routes: Routes::none(),
            interfaces: Interfaces::none(),
            congestion: Congestion::Cubic,
            paths: Paths::new(),
            mss: 1,
            tx_bytes: 0,
            stay_out: 0,
            wakeups: Wakeups::none(),
            cancelled: Vec::new(),
            quiet_sets: None,
            is_lost: false,
            in_reserve: false,
            executing: false,
            finishing: false,
            waits_to_serve: false,
            asks_again: None,
            thrift: Thrift::NONE,
            looks_us: None,
            holders_seen: 0,
            holders_again_us: 0,
            holders_news_us: 0,
            handed_looks: false,
            handed: Vec::new(),
            afloat: Vec::new(),
            afloat_again_us: 0,
            kin_turn: 0,
            sets_seen: None,
            set_change_awaited: None,
            set_numbers: 0,
            rings: Vec::new(),
            linux_side: LinuxSide::new(),
        }
    }

    /// Whether the dataplane runs in this process.
    pub fn has_begun(&self) -> bool {
        self.elastic_threads[0].tx.is_some()
    }

    /// Whose a socket becomes that sends to this address. With `SO_BINDTODEVICE` it is IX's if the
    /// route begins at that device.
    pub fn whose(&mut self, id: Id, to: IpAddr) -> Result<Whose, i32> {
        let device = self.sockets.get(id).and_then(|socket| socket.options.device.as_deref());
        let Some(device) = device else { return Ok(self.whose_by_routes(id, to)) };
        let own = self.routes.own_towards(to);
        let there = own.is_some() && own == self.interfaces.address_of(device, to.is_ipv6());
        let leaves = !to.is_loopback() && !to.is_unspecified();
        if there && leaves { Ok(Whose::Ix) } else { Err(libc::ENETUNREACH) }
    }

    fn whose_by_routes(&mut self, id: Id, to: IpAddr) -> Whose {
        let known = self.routes.connect(to);
        if known == Whose::Ix
            && self.routes.is_group(to)
            && let Some(socket) = self.sockets.get(id)
            // Linux returns the errno for a connection to a group.
            && (socket.options.towards(to).sends_by_linux || socket.is_tcp())
        {
            return Whose::Linux;
        }
        if !self.routes.are_linuxs(to) {
            return known;
        }
        let Some(socket) = self.sockets.get(id) else { return known };
        if matches!(socket.kind, Kind::Datagrams(_)) {
            // It is IX's already; the dataplane knows the routes.
            return Whose::Ix;
        }
        let from = socket.bound.map(|at| at.ip());
        self.ask_linux(to, from).unwrap_or(known)
    }

    /// Whose interface Linux's routes lead to from an address; `None`: it cannot be asked.
    pub fn ask_linux(&mut self, to: IpAddr, from: Option<IpAddr>) -> Option<Whose> {
        let from = from.filter(|from| !family::is_wildcard(*from));
        Some(match linux_route::ask(to, from)? {
            Way::By { interface, .. } if self.interfaces.has_number(interface) => Whose::Ix,
            Way::By { .. } | Way::Nowhere => Whose::Linux,
        })
    }

    /// Whose a socket becomes that is bound to this address. One that Linux shares with IX may have
    /// come since the start.
    pub fn whose_bound(&mut self, at: IpAddr) -> Whose {
        let known = self.routes.bind(at);
        if known != Whose::Linux || !self.routes.is_shared() || at.is_loopback() {
            return known;
        }
        let Some(name) = self.interfaces.name() else { return known };
        let ours = linux_networks(Some(name));
        self.interfaces.follow(&ours);
        self.routes.follow(ours);
        self.routes.bind(at)
    }

    /// Longest packet that the device takes, bytes with the IP header.
    pub fn device_mtu(&self) -> u64 {
        /// IPv4's and TCP's headers.
        const HEADERS_BYTES: u64 = 40;
        self.mss + HEADERS_BYTES
    }

    /// The elastic threads that the dataplane has.
    pub fn all_elastic_threads(&self) -> &[ElasticThread] {
        &self.elastic_threads[..self.elastic_count]
    }

    /// The elastic thread that the calling thread drives when it waits.
    pub fn home(&self) -> usize {
        elastic_thread::home(self.elastic_count)
    }

    /// A bit for each elastic thread whose driver should come out: there are calls to make, or
    /// something is ready that the driver waits for.
    pub fn take_kicks(&mut self) -> u64 {
        let (called, mut drivers) = (self.wakeups.take_drivers(), 0);
        let active = &mut self.elastic_threads[..self.elastic_count];
        for (index, thread) in active.iter_mut().enumerate() {
            if thread.role == Role::Free || thread.kicked {
                continue;
            }
            let is_called = called >> index & 1 != 0;
            if is_called || thread.has_calls() || !thread.wants_role.is_empty() {
                thread.kicked = true;
                drivers |= 1 << index;
            }
        }
        drivers
    }

    /// A driver has come out of the dataplane. Returns whether it was told to.
    pub fn came_out(&mut self, elastic: usize) -> bool {
        core::mem::take(&mut self.elastic_threads[elastic].kicked)
    }

    /// Wakes the thread that sleeps on this descriptor, once the lock is released.
    pub fn wake(&mut self, wake_fd: RawFd) {
        self.wakeups.add_fd(wake_fd);
    }

    /// Notes that a socket has calls to make.
    pub fn mark_dirty(&mut self, id: Id) {
        if let Some(socket) = self.sockets.get_mut(id)
            && !socket.dirty
        {
            socket.dirty = true;
            self.elastic_threads[socket.elastic].dirty.push_back(id);
        }
    }

    /// A socket has changed: notifies the threads that wait for any of these `EPOLL*` bits.
    pub fn notify(&mut self, id: Id, bits: i32) {
        let Core { sockets, sets, wakeups, elastic_count, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return };
        if *elastic_count == 1 {
            // The only driver is not among the waiters, and sleeps if another thread has made the
            // change: a connection to the program's own address. In a cycle it comes out anyway.
            wakeups.add(Waiter::Driver(0));
        }
        let mut wake = |waiter| wakeups.add(waiter);
        socket.waiters.drain(..).for_each(&mut wake);
        for watch in &socket.watches {
            epoll_set::notify(sets, *watch, bits as u32, &mut wake);
        }
    }

    /// The dataplane runs now: wakes every thread that wants to drive it.
    pub fn wake_would_be_drivers(&mut self) {
        for thread in &mut self.elastic_threads {
            thread.wants_role.drain(..).for_each(|wake_fd| self.wakeups.add_fd(wake_fd));
        }
    }

    /// Removes a socket from all epoll sets.
    pub fn unwatch(&mut self, id: Id) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        for watch in core::mem::take(&mut socket.watches) {
            if let Some(set) = self.sets.get_mut(watch.set) {
                set.forget(watch.key);
            }
        }
    }

    /// Whether bytes or ends of connections are still to be sent. `goes_on`: the dataplane is a
    /// process of its own, which goes on with what it has taken when this one has ended.
    pub fn has_unsent(&self, goes_on: bool) -> bool {
        let unfinished = |socket: &Socket| match &socket.kind {
            Kind::Stream(stream) => {
                let flow = &stream.flow;
                let taken = goes_on && flow.has_sent_fin() && flow.send.unsent() == 0;
                let ends = flow.ending != Ending::No && !taken || stream.gift.is_some();
                let ends = ends || socket.fds == 0 && stream.shared.is_some();
                !matches!(stream.phase, Phase::Dead | Phase::Away) && ends
            }
            Kind::Datagrams(datagrams) => !datagrams.outbox.is_empty(),
            _ => false,
        };
        let mut sockets = self.sockets.ids().into_iter().filter_map(|id| self.sockets.get(id));
        self.all_elastic_threads().iter().any(ElasticThread::has_calls)
            || !self.afloat.is_empty()
            || sockets.any(unfinished)
    }
}
