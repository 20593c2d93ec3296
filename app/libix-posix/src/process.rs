//! The library's beginning and end in a process, and forked children.
use crate::drive;
use crate::fds;
use crate::interface::Interfaces;
use crate::lane::Role;
use crate::log::{self, Once};
use crate::real;
use crate::route::{self, Network, Routes};
use crate::seat;
use crate::signals;
use crate::socket::Kind;
use crate::sync::{Guard, lock, out_of_the_way};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use ix_abi::Congestion;
use libix::raw::{Starter, Wait};
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long the end of the program waits until the peers have what it has sent.
const LEAVE: Duration = Duration::from_secs(2);
/// How many numbers the dataplane's own descriptors have.
const RESERVED_FDS: i32 = 64;

/// The process that this library was loaded into.
static PID: AtomicI32 = AtomicI32::new(0);
/// The user's wish to hear of calls that go on to Linux.
const COUNT_CALLS: &str = "IX_POSIX_CALLS";
static COUNTS: AtomicBool = AtomicBool::new(false);
/// See [`reserved_end`].
static RESERVED_END: AtomicI32 = AtomicI32::new(0);

#[used]
#[cfg(not(test))]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[cfg(not(test))]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Before the program's first instruction: what `ix run` says, and what Linux has.
extern "C" fn begin() {
    PID.store(pid(), Ordering::Relaxed);
    COUNTS.store(std::env::var_os(COUNT_CALLS).is_some(), Ordering::Relaxed);
    let Ok(text) = std::env::var(route::ENV) else { return };
    let number = |nth| text.split(';').nth(nth).and_then(|fd| fd.parse().ok());
    let (Some(routes), Ok(starter), Some(library), Some(base)) =
        (Routes::parse(&text), Starter::find(), number(2), number(3))
    else {
        return log::line("no dataplane for this program's sockets: they are Linux's");
    };
    hide(library);
    reserve(base);
    let mut core = lock();
    core.routes = routes.with_linux(linux_networks());
    let part = |nth| text.splitn(6, ';').nth(nth).unwrap_or_default();
    core.interfaces = Interfaces::parse(part(0), part(5));
    core.congestion = Congestion::named(part(4).as_bytes()).unwrap_or(core.congestion);
    core.ephemeral = crate::ops::ephemeral_ports();
    drop(core);
    // The library's file goes on as the one that is locked.
    let Some(file) = out_of_the_way(library) else {
        return log::line("no descriptor for the dataplane: raise `ulimit -n`");
    };
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, library) };
    seat::offer(starter, file);
    // SAFETY: functions without arguments.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked)) };
}

/// The program's children are not ours: they get neither the library nor its variables.
fn hide(library: RawFd) {
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let own = format!("/proc/self/fd/{library}");
    let rest: Vec<_> = preload.split([':', ' ']).filter(|part| *part != own).collect();
    // SAFETY: the program has one thread yet.
    unsafe {
        if rest.iter().all(|part| part.is_empty()) {
            std::env::remove_var("LD_PRELOAD");
        } else {
            std::env::set_var("LD_PRELOAD", rest.join(":"));
        }
        std::env::remove_var(route::ENV);
    }
}

/// The dataplane's descriptors lie from this number on; what closes "all" must leave them.
fn reserve(base: RawFd) {
    let end = base.saturating_add(RESERVED_FDS);
    RESERVED_END.store(end, Ordering::Relaxed);
    (base..end).for_each(|fd| {
        fds::replace(fd, fds::Entry::Private);
    });
}

/// Below which number the dataplane's descriptors are; 0: there are none.
pub fn reserved_end() -> u64 {
    RESERVED_END.load(Ordering::Relaxed) as u64
}

/// The networks that Linux's interfaces are on.
fn linux_networks() -> Vec<Network> {
    let mut networks = Vec::new();
    let mut first = core::ptr::null_mut();
    // SAFETY: the list is read as the C library has made it, and freed once.
    unsafe {
        if crate::real::getifaddrs(&mut first) != 0 {
            return networks;
        }
        let mut next = first;
        while let Some(interface) = next.as_ref() {
            next = interface.ifa_next;
            let family = interface.ifa_addr.as_ref().map(|a| i32::from(a.sa_family));
            if family != Some(libc::AF_INET) || interface.ifa_netmask.is_null() {
                continue;
            }
            let ip = |at: *mut libc::sockaddr| {
                Ipv4Addr::from(u32::from_be((*at.cast::<libc::sockaddr_in>()).sin_addr.s_addr))
            };
            let prefix = ip(interface.ifa_netmask).to_bits().count_ones() as u8;
            networks.push(Network { address: ip(interface.ifa_addr), prefix });
        }
        crate::real::freeifaddrs(first);
    }
    networks
}

fn pid() -> i32 {
    // SAFETY: no arguments. The bare call, because a library may answer from memory.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

/// The lock, held across a fork.
struct Held(UnsafeCell<Option<Guard>>);

// SAFETY: used between `before_fork` and what follows it on the same thread; the C library lets one
// thread fork at a time.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let mut guard = drive::everyone_outside();
    crate::ops::before_fork(&mut guard);
    // SAFETY: `Held`.
    unsafe { *HELD.0.get() = Some(guard) };
}

extern "C" fn after_fork() {
    // SAFETY: `Held`.
    drop(unsafe { (*HELD.0.get()).take() });
}

/// Rings and pools are not inherited: the child has what it has noted of its sockets, and may take the
/// dataplane when it is free.
extern "C" fn in_forked() {
    signals::forked();
    PID.store(pid(), Ordering::Relaxed);
    // SAFETY: `Held`.
    let guard = unsafe { (*HELD.0.get()).take() };
    if let Some(mut core) = guard {
        core.forked();
        seat::forked();
    }
}

/// A forked child uses a connection of its parent: the errno for it.
pub fn in_child() -> i32 {
    let text = "a forked child uses a connection of its parent: those of IX do not go to children, \
                and answer EBADF there; let the child accept it itself, or use threads";
    log::once(Once::ChildUses, text);
    libc::EBADF
}

/// The number of this process.
pub fn own_pid() -> i32 {
    PID.load(Ordering::Relaxed)
}

/// At the program's end: what it has sent shall arrive, and its peers shall hear that it ends.
extern "C" fn end() {
    leave();
}

/// Says how many calls went on to Linux, where the user wants to know.
fn tell_calls() {
    if COUNTS.load(Ordering::Relaxed) {
        log::line(&format!("calls forwarded to Linux: {}", real::calls_made()));
    }
}

/// Closes all sockets and runs the dataplane until all is sent and acknowledged, for a bounded time.
pub fn leave() {
    if PID.load(Ordering::Relaxed) != pid() {
        return;
    }
    let mut core = lock();
    if !core.has_begun() || core.leaving {
        return;
    }
    core.leaving = true;
    tell_calls();
    for id in core.sockets.ids() {
        let open = |socket: &&mut crate::socket::Socket| {
            socket.fds > 0 && !matches!(socket.kind, Kind::Linux | Kind::Idle { .. })
        };
        if core.sockets.get_mut(id).filter(open).is_some() {
            core.close(id);
        }
    }
    let end = Instant::now() + LEAVE;
    let mut last = false;
    while !last && Instant::now() < end {
        // One more cycle for what the last answers brought about.
        last = !core.is_leaving();
        let wait = if last { Wait::Poll } else { Wait::Us(1_000) };
        for lane in 0..core.lane_count {
            if core.lanes[lane].role == Role::Free {
                // The others' turn is now, too.
                let wait = if core.lane_count > 1 { Wait::Poll } else { wait };
                (core, _) = drive::turn(core, lane, wait, None, Role::Program);
            } else {
                drop(core);
                drive::kick(lane);
                std::thread::sleep(Duration::from_micros(100));
                core = lock();
            }
        }
    }
}
