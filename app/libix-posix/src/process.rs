//! The start and the end of this library in a process, and in forked children.
use crate::elastic_thread::{self, ElasticThread, Role};
use crate::ephemeral::EphemeralPorts;
use crate::interface::{Interfaces, linux_networks};
use crate::lock::{Guard, lock, try_lock};
use crate::route::{self, Routes};
use crate::slab::Slab;
use crate::socket::{Datagrams, Kind, Socket};
use crate::state::Core;
use crate::waiter::Wakeups;
use crate::{
    announce, commons, cycle, fds, filtered, holders, in_flight, in_reserve, kick, kin, limited,
    log, low_ports, ops, outside, own_calls, pid, real, serving, signals, successor, wait,
};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use ix_abi::Congestion;
use ix_sys::log::FORMAT_ENV;
use libix::raw::{Starter, Wait};
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest time that the end of the program waits for acknowledgements of what it has sent.
const LEAVE: Duration = Duration::from_secs(2);

/// Environment variable: if set, the program's end reports calls that went on to Linux.
const COUNT_CALLS: &str = "IX_POSIX_CALLS";
/// Environment variable: [`Intercepts`].
pub const SYSCALLS: &str = "IX_SYSCALLS";

/// Which system calls that the program makes itself are intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intercepts {
    /// Those of programs in Go and of static ones.
    Recognised,
    /// Those of every program.
    All,
    /// Those of every program, and no instruction is rewritten.
    Trapped,
}

impl Intercepts {
    /// By the word of `ix run`, or by the variable, which a program in between may have set.
    fn told(word: Option<&str>) -> Intercepts {
        match word.map(Into::into).or_else(|| std::env::var_os(SYSCALLS)) {
            None => Intercepts::Recognised,
            Some(word) if word == "auto" => Intercepts::Recognised,
            Some(word) if word == "trap" => Intercepts::Trapped,
            Some(_) => Intercepts::All,
        }
    }
}
static COUNTS: AtomicBool = AtomicBool::new(false);
/// See [`reserved_end`].
static RESERVED_END: AtomicI32 = AtomicI32::new(0);

#[used]
#[cfg(not(test))]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Before the program's first instruction: reads what `ix run` has set, and what Linux has.
///
/// Returns which system calls are intercepted that the program makes itself; `None`: none can be,
/// because the program has no dataplane behind a process wall.
pub fn begin() -> Option<Intercepts> {
    pid::note();
    COUNTS.store(std::env::var_os(COUNT_CALLS).is_some(), Ordering::Relaxed);
    let text = std::env::var(route::ENV).ok()?;
    if std::env::var(FORMAT_ENV).is_ok_and(|format| format == "json") {
        ix_sys::log::use_json();
    }
    let number = |nth| text.split(';').nth(nth).and_then(|fd| fd.parse().ok());
    let reserved = || {
        let (base, end) = text.split(';').nth(3)?.split_once('-')?;
        Some(base.parse().ok()?..end.parse().ok()?)
    };
    let (Some(routes), Ok(starter), Some(library), Some(reserved)) =
        (Routes::parse(&text), Starter::find(), number(2), reserved())
    else {
        log::line("no dataplane for this program's sockets: they are Linux's");
        return None;
    };
    let image = std::env::var(successor::ENV).unwrap_or_default();
    let wanted = Intercepts::told(text.split(';').nth(8).filter(|word| !word.is_empty()));
    hide(library);
    commons::begin(successor::commons_of(&image));
    log::begin_run();
    kin::begin_run();
    announce::begin_run();
    holders::begin_run();
    reserve(reserved.clone(), &starter);
    let mut core = lock();
    let part = |nth| text.splitn(11, ';').nth(nth).unwrap_or_default();
    core.outgoing = part(7)
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    core.routes = routes.with_linux(linux_networks(None)).sharing(core.outgoing.is_some());
    core.interfaces = Interfaces::parse(part(0), part(10));
    core.congestion = Congestion::named(part(4).as_bytes()).unwrap_or(core.congestion);
    core.ephemeral = EphemeralPorts::of_linux();
    let locks_memory = part(6) == "1";
    drop(core);
    if let Some(broker) = number(5) {
        low_ports::offer(broker);
    }
    if let Some(counts) = number(9) {
        own_calls::begin(counts);
    }
    // The library's file is the one to be locked for the right to serve.
    let Some(file) = fds::copy_out_of_the_way(library) else {
        log::line("no descriptor for the dataplane: raise `ulimit -n`");
        return None;
    };
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, library) };
    serving::offer(starter, file, locks_memory);
    let says_json = ix_sys::log::is_json();
    successor::begin(&image, text, file, reserved, says_json);
    if commons::is_executed() {
        kin::executed();
        holders::executed();
        ops::adopt_inherited();
    }
    // SAFETY: functions without arguments.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked)) };
    // Behind another wall the dataplane has thread-local storage of its own in this process.
    (!locks_memory).then_some(wanted)
}

/// What there is for system calls that the program makes itself.
pub struct OwnCalls {
    /// To be called in a forked child.
    pub forked: fn(),
    /// How many there were, as text.
    pub report: fn() -> Option<String>,
    /// That many of them cost a signal, if that is so.
    pub warning: fn() -> Option<String>,
}

static OWN_CALLS: OnceLock<OwnCalls> = OnceLock::new();

/// System calls that the program makes itself may come.
pub fn has_own_calls(calls: OwnCalls) {
    let _ = OWN_CALLS.set(calls);
}

/// Other programs that this one executes get neither the library nor its variables.
fn hide(library: RawFd) {
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let own = format!("/proc/self/fd/{library}");
    let rest: Vec<_> = preload.split([':', ' ']).filter(|part| *part != own).collect();
    let left = !rest.iter().all(|part| part.is_empty());
    let preload = CString::new(format!("LD_PRELOAD={}", rest.join(":")));
    let preload = preload.ok().filter(|_| left);
    let is = |text: &CStr, name: &str| {
        let rest = text.to_bytes().strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"="))
    };
    let hidden = [route::ENV, successor::ENV, FORMAT_ENV, SYSCALLS];
    // In the array itself: shells have a `setenv` of their own, which knows nothing of it yet.
    // SAFETY: the program still has one thread, and the array is as Linux and the loader have left
    // it: pointers to strings, up to a null pointer.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while !from.is_null() && !(*from).is_null() {
            let text = CStr::from_ptr(*from);
            if is(text, "LD_PRELOAD") {
                if let Some(preload) = &preload {
                    // It lives as long as the process.
                    *to = preload.clone().into_raw();
                    to = to.add(1);
                }
            } else if !hidden.iter().any(|name| is(text, name)) {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        // All that is left: programs look for the auxiliary vector behind the first null pointer,
        // and take another one for its end.
        while to < from {
            *to = core::ptr::null_mut();
            to = to.add(1);
        }
    }
}

unsafe extern "C" {
    /// The program's environment.
    pub static mut environ: *mut *mut c_char;
}

/// The dataplane's descriptors have numbers of this range: all are its own where it is in this
/// process; else the program may reach the others when it lifts its limit.
fn reserve(numbers: Range<RawFd>, starter: &Starter) {
    RESERVED_END.store(numbers.end, Ordering::Relaxed);
    fds::reserve_from(numbers.start);
    match starter.descriptors().next() {
        Some(_) => fds::reserve(starter.descriptors()),
        None => fds::reserve(numbers),
    }
}

/// All descriptors of the dataplane have numbers below this one; 0: it has none.
pub fn reserved_end() -> u64 {
    RESERVED_END.load(Ordering::Relaxed) as u64
}

/// The lock, held across a fork.
struct Held(UnsafeCell<Option<Guard>>);

// SAFETY: used between `before_fork` and what follows it on the same thread; the C library lets one
// thread fork at a time.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let mut guard = outside::everyone_outside();
    serving::before_fork();
    guard.say_waits();
    guard.share_connections();
    ops::before_fork(&mut guard);
    // SAFETY: `Held`.
    unsafe { *HELD.0.get() = Some(guard) };
}

extern "C" fn after_fork() {
    holders::after_fork();
    // SAFETY: `Held`.
    let guard = unsafe { (*HELD.0.get()).take() };
    let is_master = guard.as_ref().is_some_and(|core| !core.has_begun() && core.has_listeners());
    drop(guard);
    if is_master {
        in_reserve::watch();
    }
}

/// A child does not inherit rings and pools. It keeps what is noted of its sockets, and may serve
/// when no other process does.
extern "C" fn in_forked() {
    signals::forked();
    pid::note();
    if let Some(calls) = OWN_CALLS.get() {
        (calls.forked)();
    }
    // SAFETY: `Held`.
    let guard = unsafe { (*HELD.0.get()).take() };
    limited::forked();
    holders::forked();
    in_flight::forked();
    if let Some(mut core) = guard {
        core.forked();
        serving::forked();
        core.says_it_comes();
    }
}

/// At the program's end: delivers what it has sent, and closes its connections.
extern "C" fn end() {
    finish();
}

/// Reports how many calls went on to Linux, if the user wants to know.
fn tell_calls() {
    if let Some(warning) = OWN_CALLS.get().and_then(|calls| (calls.warning)()) {
        log::line(&warning);
    }
    if COUNTS.load(Ordering::Relaxed) {
        log::line(&format!("calls forwarded to Linux: {}", real::calls_made()));
        if let Some(report) = OWN_CALLS.get().and_then(|calls| (calls.report)()) {
            log::line(&report);
        }
    }
}

/// A signal may end this process from now on, as Python does at its end: the dataplane gets what
/// the program has written.
pub fn hands_over() {
    let mut core = lock();
    let (home, begun) = (core.home(), core.has_begun() && !core.finishing);
    if begun && core.elastic_threads[home].has_calls() {
        core = wait::poll(core, home);
    }
    drop(core);
}

/// Most cycles before the process kills itself.
const LAST_CYCLES: usize = 4;

/// The process is about to kill itself: the dataplane gets what the program has written, where that
/// needs no wait. Does nothing in a handler, which may have interrupted `malloc`, and in the first
/// process of a PID namespace, where Linux ignores the signal.
pub fn hands_over_at_once() {
    if pid::own() == 1 || signals::may_be_in_handler() || !pid::is_noted() {
        return;
    }
    for _ in 0..LAST_CYCLES {
        let Some(core) = try_lock() else { return };
        if !core.has_begun() || core.finishing {
            return;
        }
        let threads = core.all_elastic_threads();
        let Some(elastic) = threads.iter().position(ElasticThread::has_calls) else { return };
        if threads[elastic].role == Role::Free {
            drop(wait::poll(core, elastic));
        } else {
            // Its driver is told to come out as the lock is released.
            drop(core);
            std::thread::sleep(elastic_thread::TICK);
        }
    }
}

/// Closes all sockets and runs the dataplane until all is sent and acknowledged, for a bounded
/// time.
pub fn finish() {
    if !pid::is_noted() {
        return;
    }
    let mut core = lock();
    if !core.has_begun() {
        holders::gone();
        kin::has_come();
    }
    if !core.has_begun() || core.finishing {
        return;
    }
    core.finishing = true;
    // On Linux an end takes no time: a signal that comes meanwhile must not cut it short.
    // SAFETY: a set of ours; the call cannot fail with these arguments.
    let before = unsafe {
        let (mut all, mut before) = core::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        before
    };
    tell_calls();
    for id in core.sockets.ids() {
        let open = |socket: &&mut Socket| {
            socket.fds > 0 && !matches!(socket.kind, Kind::Linux | Kind::Idle { .. })
        };
        if let Some(socket) = core.sockets.get_mut(id).filter(open) {
            // As if the program had closed them all: another process may have it.
            socket.fds = 0;
            core.close(id);
        }
    }
    let end = Instant::now() + LEAVE;
    // When nothing is unsent, one more cycle for calls that follow from the last results, and for a
    // connection that another process has just given.
    let mut over_at = u64::MAX;
    while Instant::now() < end {
        let last = !core.has_unsent(serving::is_shared());
        let cycles: u64 = core.all_elastic_threads().iter().map(|thread| thread.cycle).sum();
        if last && cycles >= over_at {
            break;
        }
        over_at = if last { over_at.min(cycles + core.elastic_count as u64) } else { u64::MAX };
        let wait = if last { Wait::Poll } else { Wait::Us(1_000) };
        for elastic in 0..core.elastic_count {
            if core.elastic_threads[elastic].role == Role::Free && !filtered::is_filtered() {
                // The other elastic threads need their cycles too.
                let wait = if core.elastic_count > 1 { Wait::Poll } else { wait };
                (core, _) = cycle::run(core, elastic, wait, None, Role::Program);
            } else {
                drop(core);
                kick::kick(elastic);
                std::thread::sleep(Duration::from_micros(100));
                core = lock();
            }
        }
    }
    holders::gone();
    drop(core);
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut()) };
}

impl Core {
    /// In a forked child. Listeners and UDP sockets are records that a dataplane of the child can
    /// start with; connections stay with the parent. Everything in the parent's packet memory is
    /// forgotten, because that memory is not mapped here.
    pub fn forked(&mut self) {
        use core::mem::forget;
        self.elastic_threads.iter_mut().for_each(ElasticThread::forked);
        elastic_thread::forked();
        (self.wakeups, self.stay_out, self.waits_to_serve) = (Wakeups::none(), 0, false);
        (self.in_reserve, self.executing) = (false, false);
        // Their second mapping is the parent's.
        self.rings.clear();
        self.asks_again = None;
        self.cancelled.clear();
        if let Some(fd) = self.quiet_sets.take() {
            fds::close_private(fd);
        }
        forget(core::mem::replace(&mut self.lent, Slab::new()));
        self.afloat.clear();
        for id in self.sockets.ids() {
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            socket.waiters.clear();
            (socket.dirty, socket.starving, socket.elastic) = (false, false, 0);
            if socket.fds == 0 {
                forget(self.sockets.remove(id));
                continue;
            }
            match &mut socket.kind {
                Kind::Listener(listener) => {
                    listener.queue.clear();
                    listener.deferred = 0;
                    listener.elastic = None;
                    listener.waiting = 0;
                }
                Kind::Stream(stream) => {
                    let away = Core::away(stream);
                    let kind = away.map_or(Kind::Lost, |away| Kind::Stream(Box::new(away)));
                    forget(core::mem::replace(&mut socket.kind, kind));
                }
                Kind::Datagrams(udp) => {
                    let (peer, read_shut, port) = (udp.peer, udp.read_shut, udp.port);
                    let (both, peer_of_linux) = (udp.both, udp.peer_of_linux);
                    let fresh = Datagrams {
                        peer,
                        peer_of_linux,
                        both,
                        read_shut,
                        port,
                        ..Datagrams::default()
                    };
                    forget(core::mem::replace(udp.as_mut(), fresh));
                    self.mark_dirty(id);
                }
                Kind::Linux | Kind::Idle { .. } | Kind::Lost => {}
            }
        }
        for id in self.sets.ids() {
            if let Some(set) = self.sets.get_mut(id) {
                set.waiters.clear();
                set.unwatched();
            }
        }
        for id in self.udp_ports.ids() {
            if let Some(port) = self.udp_ports.get_mut(id) {
                (port.inherited, port.takes) = (true, false);
            }
        }
        self.handed.retain(|id| {
            let socket = self.sockets.get(*id);
            socket.is_some_and(|socket| match &socket.kind {
                Kind::Stream(stream) => stream.shared.is_some(),
                Kind::Idle { .. } => socket.named.is_some(),
                _ => false,
            })
        });
        // Until the child's own dataplane runs.
        self.open_ports_on(1);
    }
}
