//! Makes elastic threads that can be entered, of a configuration and descriptors, once, when a
//! dataplane starts. Needs no privilege; everything is allocated here.
use crate::broker::UpdateSource;
use crate::calls::CallArray;
use crate::clock::Clock;
use crate::config::{Config, memory_sizes};
use crate::events::EventWriter;
use crate::observe::metrics::ControlPage;
use crate::run::assembly::{ThreadParts, elastic_threads, equal_parts, pools};
use crate::run::crossing::CrossingPages;
use crate::run::door::Door;
use crate::run::guard::home;
use crate::run::roster::{Roster, Shares};
use crate::run::runner::{Alone, Runner};
use crate::run::unentered::Claims;
use crate::shared::{Shared, Waker};
use crate::tcp::connections::mss_of;
use core::cell::UnsafeCell;
use ix_abi::{
    ABI_MAGIC, ABI_VERSION, CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot, ProcessHeader, ThreadArea,
    ThreadStatus,
};
use ix_mem::{MemoryError, PacketMemory, Pool};
use ix_nic::{AttachError, Nic, NicInfo, RingSizes, SetReta};
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A device that the broker has opened.
pub struct Device {
    /// What it is.
    pub info: NicInfo,
    /// The descriptors of its queue pairs, of which each elastic thread has one
    /// ([`NicInfo::sockets`]). One more if [`NicInfo::table_fd`] is set.
    pub queues: Vec<OwnedFd>,
}

/// Why a dataplane could not start.
#[derive(Debug)]
pub enum BootError {
    /// Packet memory could not be made.
    Memory(MemoryError),
    /// A queue cannot be used.
    Attach(AttachError),
    /// The numbers of queues and elastic threads differ.
    Queues {
        /// The device.
        name: String,
        /// Its queues.
        queues: usize,
        /// Elastic threads.
        threads: usize,
    },
    /// A system call failed.
    System(&'static str, std::io::Error),
    /// The broker could not complete the attachment of a queue.
    Broker(String),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::Memory(e) => e.fmt(f),
            BootError::Attach(e) => e.fmt(f),
            BootError::Queues { name, queues, threads } => write!(
                f,
                "{name} has {queues} queues for {threads} elastic threads; \
                 ask for `queues={threads}` or for {queues} in --cpus"
            ),
            BootError::System(what, e) => write!(f, "{what}: {e}"),
            BootError::Broker(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BootError {}

/// What application and dataplane share for one elastic thread, each on pages of its own.
#[derive(Clone, Copy)]
struct Area {
    /// [`CALLS_MAX`] slots, which the application writes.
    calls: *mut CallSlot,
    /// [`EVENTS_MAX`] slots, which it only reads.
    events: *mut EventSlot,
    /// What it only reads, too. The program's side of a process wall has a copy of its own.
    status: *mut ThreadStatus,
}

const CALLS_BYTES: usize = CALLS_MAX * size_of::<CallSlot>();
const EVENTS_BYTES: usize = EVENTS_MAX * size_of::<EventSlot>();
const PAGE: usize = 4096;
const _: () = assert!(CALLS_BYTES.is_multiple_of(PAGE));

impl Area {
    /// In memory of this process.
    fn new() -> Result<Area, BootError> {
        let pages = map_pages(CALLS_BYTES + EVENTS_BYTES + size_of::<ThreadStatus>())?;
        // SAFETY: within the pages just mapped.
        unsafe {
            Ok(Area {
                calls: pages.cast(),
                events: pages.add(CALLS_BYTES).cast(),
                status: pages.add(CALLS_BYTES + EVENTS_BYTES).cast(),
            })
        }
    }

    /// In memory that a program in another process maps, too.
    fn in_pages(pages: &CrossingPages, thread: usize) -> Result<Area, BootError> {
        let status = map_pages(size_of::<ThreadStatus>())?.cast();
        Ok(Area { calls: pages.calls(thread), events: pages.events(thread), status })
    }
}

/// What the application may do with a range of the dataplane's memory. It may not use any other
/// memory of the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppAccess {
    /// It may write: call arrays, transmit memory.
    Write,
    /// It may only read: events, received packets, the header.
    Read,
}

/// How the application reaches the dataplane.
#[derive(Default)]
pub struct Reach {
    /// The address that it calls.
    pub gate: u64,
    /// The dataplane's own descriptors get numbers from this one on.
    pub fd_base: RawFd,
    /// What a program in another process shares; `None`: it is in this one.
    pub shares: Option<Shares>,
    /// Transmit memory before this offset belongs to such a program already, bytes.
    pub given_bytes: u64,
}

/// A dataplane, ready to be entered.
pub struct Dataplane {
    /// On pages of its own, followed by what `thread_areas` points to. Never unmapped.
    header: *const ProcessHeader,
    areas: Vec<Area>,
    /// The processes of a program that is in others.
    pub(crate) roster: Roster,
    pub(crate) runners: Box<[UnsafeCell<Runner>]>,
    pub(crate) claims: Claims,
    /// One door for each thread, between its owner and the guard.
    pub(crate) doors: Box<[Door]>,
    /// The guard is to stay outside.
    pub(crate) guard_ends: AtomicBool,
    pub(crate) page: Arc<ControlPage>,
    /// Where the process may run.
    pub(crate) home: libc::cpu_set_t,
    pub(crate) shared: Arc<Shared>,
}

// SAFETY: each runner and status is used only by the Linux thread that has entered its elastic
// thread (`run_io`'s contract), by who looks after one that nobody has entered (`Claims`), or by
// the guard while the owner is outside (`Door`); everything else is read-only.
unsafe impl Sync for Dataplane {}
// SAFETY: nothing in it is bound to a Linux thread.
unsafe impl Send for Dataplane {}

impl Dataplane {
    /// Starts a dataplane: maps memory, attaches every queue (`attached(device, queue)` is called
    /// after each), and makes the elastic threads. `gate` is the address that applications will
    /// call.
    pub fn boot(
        config: Config,
        devices: Vec<Device>,
        page: &Arc<ControlPage>,
        gate: u64,
        attached: impl FnMut(usize, usize) -> Result<(), String>,
    ) -> Result<Dataplane, BootError> {
        let memory = PacketMemory::new(memory_sizes(&config)).map_err(BootError::Memory)?;
        let reach = Reach { gate, ..Reach::default() };
        Dataplane::boot_in(memory, config, devices, page, reach, attached)
    }

    /// As [`Dataplane::boot`], in packet memory of [`memory_sizes`] that exists already, because a
    /// device shares it with its peer or a program in another process uses it.
    pub fn boot_in(
        mut memory: PacketMemory,
        config: Config,
        mut devices: Vec<Device>,
        page: &Arc<ControlPage>,
        reach: Reach,
        mut attached: impl FnMut(usize, usize) -> Result<(), String>,
    ) -> Result<Dataplane, BootError> {
        let fd_base = reach.fd_base;
        let threads = config.cpus.len();
        let tables = attach_tables(&mut devices)?;
        for device in &devices {
            if device.info.queues != threads {
                let (name, queues) = (device.info.name.clone(), device.info.queues);
                return Err(BootError::Queues { name, queues, threads });
            }
        }
        let parts = threads * devices.len().max(1);
        memory.limit_devices(DEVICE_RX_FRAMES * parts, DEVICE_TX_FRAMES * parts);
        memory.populate();
        // SAFETY: the memory is fresh.
        let mut pools = unsafe { pools(&memory, threads, equal_parts(&memory, threads)) };
        let nics = attach_all(devices, &memory, &mut pools, &mut attached)?;
        let macs: Vec<_> = nics[0].iter().map(|nic| nic.info().mac).collect();
        let config = fit_to_devices(config, &nics[0]);
        let mut clock = Clock::new();
        let wakers: Result<Vec<Waker>, BootError> =
            (0..threads).map(|_| Ok(Waker::new(eventfd(fd_base)?))).collect();
        let now_us = clock.now_us();
        let shared = Arc::new(Shared::new(config, memory, wakers?, &macs, now_us));
        page.set_batch_bound(shared.config.batch);
        let mut areas = Vec::new();
        let mut parts = Vec::new();
        for (index, (nics, pools)) in nics.into_iter().zip(pools).enumerate() {
            let area = match &reach.shares {
                Some(shares) => Area::in_pages(&shares.pages, index)?,
                None => Area::new()?,
            };
            // SAFETY: the area was mapped just now, is never unmapped, and only this writer and
            // this call array are made for it.
            let (events, calls) =
                unsafe { (EventWriter::new(area.events), CallArray::new(area.calls)) };
            parts.push(ThreadParts { nics, pools, calls, events });
            areas.push((area, shared.config.cpus[index]));
        }
        let threads = elastic_threads(&shared, page, parts, &tables, now_us);
        for (thread, cpu) in threads.iter().zip(&shared.config.cpus) {
            thread.io.cx.metrics.cpu.set((*cpu).into());
        }
        let runner = |thread| UnsafeCell::new(Runner::new(thread, Clock::new()));
        let runners = threads.into_iter().map(runner).collect();
        shared.guard.set_fd(timer(fd_base)?);
        page.set_nonresponsive_us(shared.config.nonresponsive_us);
        Dataplane::new(shared, page.clone(), reach, runners, areas)
    }

    fn new(
        shared: Arc<Shared>,
        page: Arc<ControlPage>,
        reach: Reach,
        runners: Vec<UnsafeCell<Runner>>,
        own_areas: Vec<(Area, u32)>,
    ) -> Result<Dataplane, BootError> {
        let describe = |(area, cpu): &(Area, u32)| ThreadArea {
            calls: area.calls as u64,
            events: area.events as u64,
            status: area.status as u64,
            cpu: *cpu,
            attachment: 0,
            will: 0,
        };
        let areas: Vec<ThreadArea> = own_areas.iter().map(describe).collect();
        let pages = match &reach.shares {
            Some(shares) => shares.pages.header(),
            None => map_pages(HEADER_BYTES + size_of_val(&*areas))?,
        };
        // SAFETY: within the pages just mapped, aligned, and nobody else's.
        let (header, thread_areas) = unsafe {
            let behind = pages.add(HEADER_BYTES).cast::<ThreadArea>();
            behind.copy_from_nonoverlapping(areas.as_ptr(), areas.len());
            (pages.cast::<ProcessHeader>(), behind)
        };
        let (rx_base, rx_len) = shared.memory.rx_area();
        let (tx_base, tx_len) = shared.memory.arena();
        let content = ProcessHeader {
            magic: ABI_MAGIC,
            version: ABI_VERSION,
            threads: areas.len() as u32,
            gate: reach.gate,
            thread_areas: thread_areas as u64,
            rx_base: rx_base as u64,
            rx_len: rx_len as u64,
            tx_base: tx_base as u64,
            tx_len: tx_len as u64,
            local_addr: shared.config.host_addrs[0].0.0,
            mss_bytes: u32::from(shared.config.tcp.mss),
            batch_bound: shared.config.batch as u32,
        };
        // SAFETY: as above.
        unsafe { header.write(content) };
        let claims = Claims::new(runners.len());
        let doors = runners.iter().map(|_| Door::default()).collect();
        let runners = runners.into();
        let home = home();
        let areas = own_areas.into_iter().map(|(area, _)| area).collect();
        let roster = Roster::default();
        let guard_ends = AtomicBool::new(false);
        let dataplane = Dataplane {
            header,
            areas,
            roster,
            runners,
            claims,
            doors,
            guard_ends,
            page,
            home,
            shared,
        };
        let given_bytes = reach.given_bytes;
        reach.shares.into_iter().for_each(|shares| dataplane.attach_first(shares, given_bytes));
        Ok(dataplane)
    }

    /// The header, which the application finds through `IX_ABI`.
    pub fn header(&self) -> *const ProcessHeader {
        self.header
    }

    /// The ranges that the application may use: address, length (whole pages) and access. It may
    /// not use any other memory of the dataplane.
    pub fn app_ranges(&self) -> Vec<(usize, usize, AppAccess)> {
        let read_bytes = (EVENTS_BYTES + size_of::<ThreadStatus>()).next_multiple_of(PAGE);
        let header_bytes = HEADER_BYTES + self.runners.len() * size_of::<ThreadArea>();
        let header_bytes = header_bytes.next_multiple_of(PAGE);
        let (rx, arena) = (self.shared.memory.rx_area(), self.shared.memory.arena());
        let mut ranges = vec![
            (self.header as usize, header_bytes, AppAccess::Read),
            (rx.0, rx.1, AppAccess::Read),
            (arena.0, arena.1, AppAccess::Write),
        ];
        for area in &self.areas {
            ranges.push((area.calls as usize, CALLS_BYTES, AppAccess::Write));
            ranges.push((area.events as usize, read_bytes, AppAccess::Read));
        }
        ranges
    }

    /// Memory that may be shared with other processes and is never unmapped: packets and control
    /// page.
    pub fn lasting_ranges(&self) -> [(usize, usize); 2] {
        let memory = &self.shared.memory;
        [(memory.base() as usize, memory.bytes()), self.page.range()]
    }

    /// Number of elastic threads.
    pub fn threads(&self) -> usize {
        self.runners.len()
    }

    /// The hardware thread of an elastic thread.
    pub fn cpu(&self, thread: usize) -> u32 {
        self.shared.config.cpus[thread]
    }

    /// The modes in which the devices are really used.
    ///
    /// # Safety
    /// As [`Dataplane::run_io`].
    pub unsafe fn modes(&self) -> Vec<(String, String)> {
        // SAFETY: the caller's promise for thread 0.
        let runner = unsafe { &*self.runners[0].get() };
        let ports = runner.thread.io.ports.iter();
        ports.map(|port| (port.info.name.clone(), port.info.mode.clone())).collect()
    }

    /// From now on elastic threads read updates of devices from there, about every millisecond.
    pub fn set_update_source(&self, source: Box<dyn UpdateSource>) {
        self.shared.updates.set_source(source);
    }

    /// From now on `run_io` of this thread checks `fd` for signals.
    ///
    /// # Safety
    /// As [`Dataplane::run_io`].
    pub unsafe fn set_signal_fd(&self, thread: usize, fd: Option<RawFd>) {
        // SAFETY: the caller's promise.
        unsafe { (*self.runners[thread].get()).set_signal_fd(fd) }
    }

    /// From now on, `run_io` of this thread also returns when `fd` becomes readable.
    ///
    /// # Safety
    /// As [`Dataplane::run_io`].
    pub unsafe fn watch(&self, thread: usize, fd: Option<RawFd>) {
        // This may be called before the first `run_io`, when another thread may be looking after
        // this one.
        let entered = self.claims.is_entered(thread);
        if !entered {
            self.claims.enter(thread);
        }
        self.doors[thread].enter();
        // SAFETY: the caller's promise, and nobody looks after a thread that was claimed.
        unsafe { (*self.runners[thread].get()).watch(fd) }
        self.doors[thread].leave();
        if !entered {
            self.claims.leave(thread);
        }
    }

    /// Makes `run_io` of this thread (below `threads()`) return. Returns the eventfd that the
    /// caller must ring, if any. Uses no thread-local storage.
    pub fn kick(&self, thread: usize) -> Option<RawFd> {
        self.shared.wakers[thread].kick()
    }

    /// The program's own threads take turns running this elastic thread, without knowing of it.
    /// Uses no thread-local storage.
    pub fn share(&self, thread: usize) {
        self.shared.lives.share(thread);
    }

    /// The program leaves this elastic thread: its flow groups move to the others.
    ///
    /// # Safety
    /// As [`Dataplane::run_io`].
    pub unsafe fn leave(&self, thread: usize) {
        if self.claims.is_entered(thread) {
            self.doors[thread].enter();
            // SAFETY: the caller's promise, and the guard is outside.
            unsafe { (*self.runners[thread].get()).leave(0, LEAVE_US) };
            self.claims.leave(thread);
            self.doors[thread].leave();
        }
    }

    /// The unbatched call: `thread` (below `threads()`) carries out `calls` slots of its call
    /// array, then runs cycles until there are events or `wait_us` have passed. Returns the number
    /// of events.
    ///
    /// # Safety
    /// No other thread uses this elastic thread during the call.
    pub unsafe fn run_io(&self, thread: usize, calls: usize, wait_us: u64) -> usize {
        // SAFETY: the caller's promise.
        let outcome = unsafe {
            self.inside(thread, |runner| {
                runner.begin_for(0, calls);
                let look_after = |now_us| self.claims.look_after(&self.runners, now_us);
                runner.wait(wait_us, &look_after, &Alone)
            })
        };
        let status = self.areas[thread].status;
        // SAFETY: mapped for the life of the process; the application only reads it.
        unsafe {
            (&raw mut (*status).now_us).write_volatile(outcome.now_us);
            (&raw mut (*status).signal_pending).write_volatile(u32::from(outcome.signal));
        }
        outcome.events
    }

    /// Does something with an elastic thread while nobody else uses it. It is entered from then on.
    ///
    /// # Safety
    /// No other thread uses this elastic thread during the call, except for those that this type
    /// makes.
    pub(crate) unsafe fn inside<T>(&self, thread: usize, act: impl FnOnce(&mut Runner) -> T) -> T {
        if !self.claims.is_entered(thread) {
            self.claims.enter(thread);
        }
        let door = &self.doors[thread];
        door.enter();
        // SAFETY: the caller's promise, nobody looks after a thread that was claimed, and the guard
        // is outside.
        let done = act(unsafe { &mut *self.runners[thread].get() });
        door.leave();
        done
    }
}

/// The redirection tables of devices that have a table descriptor after those of their queues.
fn attach_tables(devices: &mut [Device]) -> Result<Vec<Option<Arc<dyn SetReta>>>, BootError> {
    let attach = |device: &mut Device| {
        let has_one = device.info.table_fd && device.queues.len() > device.info.sockets();
        let Some(fd) = device.queues.pop_if(|_| has_one) else { return Ok(None) };
        ix_nic::attach_table(&device.info, fd).map(Some).map_err(BootError::Attach)
    };
    devices.iter_mut().map(attach).collect()
}

/// Gives queue pair `i` of each device to thread `i`.
fn attach_all(
    devices: Vec<Device>,
    memory: &PacketMemory,
    pools: &mut [(Pool, Pool)],
    attached: &mut impl FnMut(usize, usize) -> Result<(), String>,
) -> Result<Vec<Vec<Box<dyn Nic>>>, BootError> {
    let mut nics: Vec<Vec<Box<dyn Nic>>> = pools.iter().map(|_| Vec::new()).collect();
    for (number, device) in devices.into_iter().enumerate() {
        let dealt = ix_nic::deal(&device.info, 0, device.queues);
        for (queue, fds) in dealt.into_iter().enumerate() {
            let rings = RingSizes::default();
            let rx_pool = &mut pools[queue].0;
            let nic = ix_nic::attach(&device.info, queue, fds, memory, rx_pool, rings)
                .map_err(BootError::Attach)?;
            nics[queue].push(nic);
            attached(number, queue).map_err(BootError::Broker)?;
        }
    }
    Ok(nics)
}

/// Derives the MSS from the smallest MTU.
fn fit_to_devices(mut config: Config, nics: &[Box<dyn Nic>]) -> Config {
    if let Some(mtu) = nics.iter().map(|nic| nic.info().mtu).min() {
        config.tcp.mss = mss_of(mtu);
    }
    config
}

/// Receive frames of each elastic thread that one device may use itself: what it holds for packets
/// to come, and half as much.
const DEVICE_RX_FRAMES: usize = RingSizes::DEFAULT.fill as usize * 3 / 2;

/// The same of frames for built packets.
const DEVICE_TX_FRAMES: usize = 2 * RingSizes::DEFAULT.tx as usize;

/// How long flow groups that a program has not sent away may delay its leaving, µs.
const LEAVE_US: u64 = 50_000;

/// Offset of the thread areas behind the header.
const HEADER_BYTES: usize = size_of::<ProcessHeader>().next_multiple_of(64);

/// Maps pages for what the application sees.
fn map_pages(bytes: usize) -> Result<*mut u8, BootError> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let p = unsafe { libc::mmap(core::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(BootError::System("cannot map the arrays for the application", last_error()));
    }
    Ok(p.cast())
}

/// Makes an eventfd with a number from `base` on.
fn eventfd(base: RawFd) -> Result<RawFd, BootError> {
    // SAFETY: a plain system call.
    placed("eventfd", base, unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Makes a timer descriptor with a number from `base` on; it is not started.
fn timer(base: RawFd) -> Result<RawFd, BootError> {
    let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
    // SAFETY: a plain system call.
    placed("timerfd", base, unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })
}

/// Moves the descriptor `fd`, which a call named `what` has returned, to a number from `base` on.
fn placed(what: &'static str, base: RawFd, fd: RawFd) -> Result<RawFd, BootError> {
    let refused = || BootError::System(what, last_error());
    if fd < 0 {
        return Err(refused());
    }
    // SAFETY: a new descriptor that belongs to nobody else; it is closed here.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a plain system call. The copy lives as long as the process.
    let placed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, base) };
    if placed < 0 { Err(refused()) } else { Ok(placed) }
}

fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}
