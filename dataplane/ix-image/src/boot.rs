//! Makes a dataplane that the gate can enter, of the broker's messages.
use crate::arguments::Domain;
use crate::elastic;
use crate::faults;
use crate::gate;
use crate::later;
use crate::linux_thread;
use crate::program::{self, Failure};
use crate::signals::SignalWatch;
use crate::survivor::{self, Provisions};
use crate::sys;
use crate::updates::ChannelUpdates;
use crate::wall;
use ix_abi::{CALLS_MAX, ProcessHeader, error};
use ix_dataplane::metrics::ControlPage;
use ix_dataplane::{Clock, Dataplane, Device, Reach, memory_sizes};
use ix_entry::{Channel, ReservedFds};
use ix_mem::PacketMemory;
use ix_nic::NicInfo;
use ix_proto::{Codec, FromImage, Start, ToImage};
use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// What the image keeps as long as the process lives.
struct Running {
    dataplane: Dataplane,
    signals: Vec<SignalWatch>,
}

/// Set before the gate opens, and never changed.
static RUNNING: AtomicPtr<Running> = AtomicPtr::new(core::ptr::null_mut());

/// Processor and kernel let user code read and write fs base (`HWCAP2_FSGSBASE`).
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// Returns an error if the dataplane cannot run on this machine.
pub fn can_start() -> Result<(), String> {
    // SAFETY: only reads what the launcher has passed on from the kernel.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err("the processor or kernel lacks FSGSBASE, which the gate needs; use Linux 5.9 \
                    or later on a processor of 2012 or later, without `nofsgsbase`"
            .to_owned());
    }
    Ok(())
}

/// Starts the dataplane that the broker describes. `reserved` are the descriptors that the
/// process's limit allowed when it began; `later`: the program has run since then.
pub fn start(
    channel: &Channel,
    reserved: ReservedFds,
    domain: &Domain,
    later: bool,
) -> Result<*const ProcessHeader, String> {
    let (dataplane, signals, provisions, own) = reserved.unfenced(|| {
        let (dataplane, signals, provisions) = prepare(channel, reserved, domain, later)?;
        // A forked child continues to use the channel itself.
        let own = reserved.copy(channel.as_fd()).map_err(|e| text("cannot copy the channel", e))?;
        Ok::<_, String>((dataplane, signals, provisions, own))
    })?;
    reserved.fence().map_err(|e| text("setrlimit", e))?;
    if let Domain::Pku(program) = domain {
        let (ranges, shared) = (dataplane.app_ranges(), dataplane.lasting_ranges());
        wall::raise(program, &ranges, shared, reserved)?;
    }
    channel.send(&FromImage::Ready.encode(), &[]).map_err(broken)?;
    let header = dataplane.header();
    let channel = own.as_raw_fd();
    dataplane.set_update_source(Box::new(ChannelUpdates::new(
        Channel::from_fd(own),
        reserved,
        later,
    )));
    let running: &'static Running = Box::leak(Box::new(Running { dataplane, signals }));
    survivor::prepare(&running.dataplane, provisions, channel);
    // If there was one before, it was the parent's: its memory does not exist in this process.
    RUNNING.store((&raw const *running).cast_mut(), Ordering::Release);
    Ok(header)
}

/// Starts the dataplane of a program that has run for a while. Returns the header's address, or 0
/// if it could not start; the broker was then told why.
pub fn start_later() -> i64 {
    // SAFETY: the number is reserved for it as long as the process lives.
    let fd = unsafe { OwnedFd::from_raw_fd(later::channel()) };
    let channel = ManuallyDrop::new(Channel::from_fd(fd));
    let started = match later::domain() {
        Domain::Process => program::attach(&channel, later::reserved(), later::STARTER.start),
        domain => start(&channel, later::reserved(), domain, true).map_err(Failure::from),
    };
    match started {
        Ok(header) => header.expose_provenance() as i64,
        Err(failure) => {
            let _ = channel.send(&failure.told().encode(), &[]);
            0
        }
    }
}

/// Runs cycles of an elastic thread: `RUN_IO`.
///
/// # Safety
/// The caller has entered this elastic thread.
pub unsafe fn run_io(thread: usize, calls: u64, wait_us: u64) -> i64 {
    if calls > CALLS_MAX as u64 {
        return -error::INVALID;
    }
    // SAFETY: set before the gate opened, and never freed.
    let running = unsafe { &*RUNNING.load(Ordering::Relaxed) };
    // SAFETY: the caller's promise.
    unsafe { running.dataplane.run_io(thread, calls as usize, wait_us) as i64 }
}

/// From now on, `run_io` of an elastic thread also returns when this descriptor (minus 1; 0: none)
/// becomes readable.
///
/// # Safety
/// As [`run_io`].
pub unsafe fn watch(thread: usize, fd_plus_1: u64) -> i64 {
    let fd = match RawFd::try_from(fd_plus_1) {
        Ok(fd) => fd.checked_sub(1).filter(|fd| *fd >= 0),
        Err(_) => return -error::INVALID,
    };
    // SAFETY: as in `run_io`.
    unsafe { (*RUNNING.load(Ordering::Relaxed)).dataplane.watch(thread, fd) };
    0
}

/// Makes a waiting `run_io` return. Runs on the application's side of the gate, on any thread, so
/// it uses no thread-local storage and only the thread's waker.
pub fn kick(thread: usize) -> i64 {
    // SAFETY: as in `run_io`.
    if let Some(fd) = unsafe { (*RUNNING.load(Ordering::Relaxed)).dataplane.kick(thread) } {
        let one = 1u64;
        // SAFETY: writes eight bytes from a local. A full counter is a ring that was heard already.
        unsafe { sys::syscall(libc::SYS_write, [fd as u64, &raw const one as u64, 8, 0, 0, 0]) };
    }
    0
}

/// To be called when the owner leaves an elastic thread.
///
/// # Safety
/// As [`run_io`].
pub unsafe fn left(thread: usize) -> i64 {
    // SAFETY: as in `run_io`.
    unsafe { (*RUNNING.load(Ordering::Relaxed)).dataplane.leave(thread) };
    0
}

/// The program's own threads take turns running an elastic thread. Runs on the application's side
/// of the gate, so it uses no thread-local storage.
pub fn share(thread: usize) {
    survivor::start();
    faults::watch();
    // SAFETY: as in `run_io`.
    unsafe { (*RUNNING.load(Ordering::Relaxed)).dataplane.share(thread) };
}

/// To be called when a Linux thread with this signal mask has entered.
///
/// # Safety
/// As [`run_io`].
pub unsafe fn entered(thread: usize, signal_mask: u64) -> i64 {
    // SAFETY: as in `run_io`.
    let running = unsafe { &*RUNNING.load(Ordering::Relaxed) };
    start_guard(&running.dataplane);
    survivor::start();
    faults::watch();
    match running.signals[thread].set_application_mask(signal_mask) {
        Ok(()) => 0,
        Err(_) => -error::NO_RESOURCE,
    }
}

/// Starts the guard when the first thread enters. (Programs that know nothing of elastic threads
/// have a helper of their own.) All its signals are blocked. Behind the wall it has the rights of
/// the thread that starts it, which is inside the dataplane.
fn start_guard(dataplane: &'static Dataplane) {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let mask = sys::set_signal_mask(!0);
    let started = elastic::spawn(guard, GUARD_STACK, (&raw const *dataplane).cast_mut().cast());
    sys::set_signal_mask(mask);
    if let Err(e) = started {
        eprintln!(
            "ix: cannot start the guard thread: {e}; the network is not served while the program computes"
        );
    }
}

extern "C" fn guard(dataplane: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
    // SAFETY: no pointers but to a constant; a thread's name is for people only.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"ix-guard".as_ptr()) };
    linux_thread::drop_capabilities();
    // SAFETY: what `start_guard` passed on, which lives as long as the process.
    unsafe { (*dataplane.cast::<Dataplane>()).guard() };
    core::ptr::null_mut()
}

const GUARD_STACK: usize = 256 << 10;

type Prepared = (Dataplane, Vec<SignalWatch>, Provisions);

fn prepare(
    channel: &Channel,
    reserved: ReservedFds,
    domain: &Domain,
    later: bool,
) -> Result<Prepared, String> {
    let (start, fds) = ask(channel)?;
    let Start { config, devices: infos, without, place: _, given_bytes: _ } = start;
    wall::parts::leave_out(&without);
    let mut fds = fds
        .into_iter()
        .map(|fd| reserved.take(fd))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| text("cannot move a descriptor out of the program's way", e))?
        .into_iter();
    let page_fd = fds.next().ok_or("the broker sent no control page")?;
    let threads = config.cpus.len();
    let sizes = memory_sizes(&config);
    // If a device's peer works in our memory, the broker has made that memory and offers it to the
    // peer.
    let memory = if infos.iter().any(|info| info.shared_frames) {
        let mut next = || fds.next().ok_or("the broker sent no packet memory");
        let areas = [next()?, next()?, next()?];
        PacketMemory::map(areas.each_ref().map(|fd| fd.as_fd()), sizes)
    } else {
        PacketMemory::new(sizes)
    };
    let memory = memory.map_err(|e| e.to_string())?;
    let devices = devices(infos, &mut fds);
    let ticks_per_us = Clock::new().ticks_per_us();
    let page =
        ControlPage::create(page_fd.as_fd(), threads, ticks_per_us).map_err(|e| e.to_string())?;
    let attached = |device, queue| finish_attachment(channel, device, queue);
    let page = Arc::new(page);
    let gate = gate::address(*domain != Domain::None);
    let reach = Reach { gate, fd_base: reserved.base(), ..Reach::default() };
    let dataplane = Dataplane::boot_in(memory, config, devices, &page, reach, attached)
        .map_err(|e| e.to_string())?;
    let signals = open_gate(&dataplane, reserved)?;
    let provisions = survivor::provide(reserved, later).map_err(|e| text("no survivor", e))?;
    match domain {
        Domain::None | Domain::Process => faults::note_on(&page),
        Domain::Pku(_) => wall::count_on(&page),
    }
    Ok((dataplane, signals, provisions))
}

/// Sends the hello message, and waits for the description of the dataplane.
pub fn ask(channel: &Channel) -> Result<(Start, Vec<OwnedFd>), String> {
    // SAFETY: no arguments. The bare call: the C library may answer for the parent.
    let pid = unsafe { sys::syscall(libc::SYS_getpid, [0; 6]) } as u32;
    channel.send(&FromImage::Hello { pid, asker: 0 }.encode(), &[]).map_err(broken)?;
    loop {
        let (message, fds) = channel.receive().map_err(broken)?.ok_or("the broker is gone")?;
        match ToImage::decode(&message) {
            Ok(ToImage::Start(start)) => return Ok((*start, fds)),
            // It was meant for the dataplane of a process that has ended.
            Ok(_) => {}
            Err(e) => {
                return Err(format!("the broker sent an invalid message: {e}; build ix again"));
            }
        }
    }
}

/// The devices with their descriptors.
pub fn devices(infos: Vec<NicInfo>, fds: &mut impl Iterator<Item = OwnedFd>) -> Vec<Device> {
    let device = |info: NicInfo| {
        let count = info.descriptors();
        Device { info, queues: fds.by_ref().take(count).collect() }
    };
    infos.into_iter().map(device).collect()
}

/// Makes the broker do the part of an attachment that needs privilege.
pub fn finish_attachment(channel: &Channel, device: usize, queue: usize) -> Result<(), String> {
    channel.send(&FromImage::Attached { device, queue }.encode(), &[]).map_err(broken)?;
    let (message, _) = channel.receive().map_err(broken)?.ok_or("the broker is gone")?;
    match ToImage::decode(&message) {
        Ok(ToImage::Ok) => Ok(()),
        Ok(ToImage::Refused(why)) => Err(why),
        _ => Err("the broker has another version; build ix again".to_owned()),
    }
}

/// Opens the gate: gives each elastic thread what it needs to be entered.
fn open_gate(dataplane: &Dataplane, reserved: ReservedFds) -> Result<Vec<SignalWatch>, String> {
    let threads = dataplane.threads();
    if threads > gate::THREADS_MAX {
        return Err(format!(
            "{threads} elastic threads are too many; at most {}",
            gate::THREADS_MAX
        ));
    }
    let mut contexts = Vec::new();
    let mut signals = Vec::new();
    for thread in 0..threads {
        let watch = SignalWatch::new().and_then(|watch| watch.placed(|fd| reserved.take(fd)));
        let watch = watch.map_err(|e| text("signalfd", e))?;
        // SAFETY: nobody can have entered: the gate is not open yet.
        unsafe { dataplane.set_signal_fd(thread, Some(watch.fd())) };
        signals.push(watch);
        let context = elastic::make().map_err(|e| text("cannot make an elastic thread", e))?;
        contexts.push((context, dataplane.cpu(thread)));
    }
    if gate::open(&contexts) { Ok(signals) } else { Err("no memory for the gate".to_owned()) }
}

pub fn text(what: &str, error: impl Display) -> String {
    format!("{what}: {error}")
}

pub fn broken(error: std::io::Error) -> String {
    text("the channel to the broker broke", error)
}
