//! The wall (`--domain pku`): the application runs in the same process with fewer rights.
//!
//! * Two protection keys: for the dataplane's memory, which the application cannot touch, and for
//!   what it may only read (received packets, events). [`asm`] has every way between the two sides.
//! * Syscall User Dispatch stops each system call of the application; [`filter`] decides.
//! * The kernel enters only the dataplane's handler for signals ([`handler`]), which enters the
//!   application's own handlers ([`deliver`]). Threads start in the dataplane ([`threads`]).
//! * Code is checked before it can run ([`memory`]), mappings are sealed, and a seccomp filter
//!   refuses to the whole process what neither side needs.
pub mod arrivals;
pub mod asm;
pub mod deliver;
pub mod filter;
pub mod handler;
pub mod maps;
pub mod memory;
pub mod parts;
pub mod policy;
pub mod record;
pub mod seccomp;
pub mod threads;

pub use handler::count_on;

use crate::sys;
use crate::{boot, gate};
use asm::{IMAGE_FS, KEY_OWN, KEY_SHOWN};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use handler::{FP_BYTES, FP_RIGHTS};
use ix_abi::{error, gate_op};
use ix_dataplane::AppAccess;
use ix_dataplane::metrics::Refusal;
use ix_entry::ReservedFds;
use parts::{Part, stands};
use record::{FP_MAX, Incoming, LIVE, NOBODY, RECORDS, Record, Shown};
use std::fmt::Display;

/// Size of each thread's signal stack.
const STACK_BYTES: usize = 64 << 10;

/// True once the wall is raised.
static RAISED: AtomicBool = AtomicBool::new(false);
/// True if this process is a fork, which has no dataplane.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Raises the wall. `program` are the mappings from before the image's. `ranges` are the parts of
/// the dataplane's memory that the application may use. `shared` are those parts of the memory
/// shared with other processes that stay as long as the process. No other thread runs in the
/// process.
pub fn raise(
    program: &[(usize, usize)],
    ranges: &[(usize, usize, AppAccess)],
    shared: [(usize, usize); 2],
    reserved: ReservedFds,
) -> Result<(), String> {
    refuse_privilege()?;
    refuse_open_memory(reserved)?;
    allocate_keys()?;
    asm::raise_rights();
    asm::measure_vectors();
    filter::FD_BASE.store(reserved.base(), Ordering::Relaxed);
    let own_fs: u64;
    // SAFETY: FSGSBASE was checked at the start.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) own_fs) };
    IMAGE_FS.store(own_fs, Ordering::Relaxed);
    let refused = |what: &'static str| move |errno: i64| text(what, os(errno));
    let mut ranges = ranges.to_vec();
    record::prepare().map_err(refused("no memory below 4 GB"))?;
    prepare_records(&mut ranges).map_err(refused("no memory for threads"))?;
    // SAFETY: the first record, used by this thread alone.
    let first = unsafe { &mut *record::at(0) };
    learn_frame(first)?;
    crate::heap::commit_all();
    remember_ignored();
    tag(program, &ranges, shared)?;
    first.in_handler = 1;
    first.state.store(LIVE, Ordering::Release);
    threads::own_faults().map_err(refused("sigaction"))?;
    threads::arm(first).map_err(refused(
        "Syscall User Dispatch, or a thread's descriptor (it needs 32-bit emulation in the kernel)",
    ))?;
    check_code(first, program)?;
    confine()?;
    first.app_mask = sys::set_signal_mask(!0);
    first.kernel_mask = !0;
    RAISED.store(true, Ordering::Release);
    asm::STANDS.store(1, Ordering::Release);
    Ok(())
}

/// Starts the application behind the wall.
///
/// # Safety
/// [`raise`] was called on this thread; entry and stack are a program's that has not run yet.
pub unsafe fn start(entry: u64, stack: u64) -> ! {
    let first = record::at(0);
    // SAFETY: this thread's record.
    unsafe {
        (*first).registers.rip = entry;
        (*first).registers.rsp = stack;
        (*first).app_fs = 0;
        core::arch::asm!("wrgsbase {}", in(reg) 0u64);
        deliver::finish(&mut *first);
    }
    asm::resume(first)
}

fn os(errno: i64) -> std::io::Error {
    std::io::Error::from_raw_os_error(-errno as i32)
}

fn text(what: &str, error: impl Display) -> String {
    format!("cannot raise the wall: {what}: {error}")
}

fn last(what: &str) -> String {
    text(what, std::io::Error::last_os_error())
}

/// Files of the dataplane's process are closed to the application only if the application does not
/// own them.
fn refuse_privilege() -> Result<(), String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|e| text("/proc", e))?;
    let none = |line: &str| {
        line.trim_start_matches(char::is_alphabetic).trim_matches([':', '\t', ' ', '0']).is_empty()
    };
    let capable = status
        .lines()
        .filter(|line| ["CapEff", "CapPrm", "CapInh", "CapAmb"].iter().any(|c| line.starts_with(c)))
        .any(|line| !none(line));
    // SAFETY: no arguments.
    if capable || unsafe { libc::geteuid() } == 0 {
        return Err("the program would run with privileges; use --user NAME".to_owned());
    }
    Ok(())
}

/// Memory with a descriptor could be mapped a second time, without a key: by the descriptor's name
/// in `/proc`, even if no system call may use its number.
fn refuse_open_memory(reserved: ReservedFds) -> Result<(), String> {
    for fd in reserved.base()..reserved.end() {
        // SAFETY: all zero is a valid `stat`, which is only filled.
        let is_file = unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG
        };
        if is_file {
            return Err("cannot raise the wall: a descriptor of memory is still open".to_owned());
        }
    }
    Ok(())
}

fn allocate_keys() -> Result<(), String> {
    for wanted in [KEY_OWN, KEY_SHOWN] {
        // SAFETY: no pointers.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
        if key < 0 {
            return Err(last("no protection keys"));
        }
        if key as u64 != wanted {
            return Err("cannot raise the wall: another protection key is in use".to_owned());
        }
    }
    Ok(())
}

fn prepare_records(ranges: &mut Vec<(usize, usize, AppAccess)>) -> Result<(), i64> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let shown = sys::map(RECORDS * size_of::<Shown>(), prot)?;
    let incoming = sys::map(RECORDS * size_of::<Incoming>(), prot)?;
    let stacks = sys::map(RECORDS * STACK_BYTES, prot)?;
    ranges.push((shown as usize, RECORDS * size_of::<Shown>(), AppAccess::Read));
    ranges.push((incoming as usize, RECORDS * size_of::<Incoming>(), AppAccess::Write));
    for index in 0..RECORDS {
        // SAFETY: nobody uses the records yet; the offsets are within the mappings.
        unsafe {
            let record = &mut *record::at(index);
            record.shown = shown.cast::<Shown>().add(index);
            record.incoming = incoming.cast::<Incoming>().add(index);
            let stack = stacks.add(index * STACK_BYTES) as u64;
            record.stack = (stack, STACK_BYTES as u64);
        }
    }
    Ok(())
}

/// Address at which the kernel has put the frame of the test signal.
static FRAME: AtomicU64 = AtomicU64::new(0);

extern "C" fn test_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's frame begins a word before the context.
    let frame = unsafe { &*context.cast::<u8>().sub(8).cast::<handler::Frame>() };
    // SAFETY: the first record is ours; the vector state's software bytes say how long it is
    // (`struct _fpx_sw_bytes`, at the end of its legacy part).
    unsafe {
        let bytes = frame.fp.add(464 + 4).cast::<u32>().read() as usize;
        FP_BYTES.store(bytes, Ordering::Relaxed);
        let fp = &mut (*record::at(0)).fp.0;
        core::ptr::copy_nonoverlapping(frame.fp, fp.as_mut_ptr(), bytes.min(FP_MAX));
    }
    FRAME.store(context as u64 - 8, Ordering::Release);
}

/// The kernel puts a signal's frame at an address that depends on the processor: a test signal
/// finds it.
fn learn_frame(first: &mut Record) -> Result<(), String> {
    const EXTENDED: usize = 512;
    let stack = libc::stack_t {
        ss_sp: first.stack.0 as *mut _,
        ss_flags: 0,
        ss_size: first.stack.1 as usize,
    };
    // SAFETY: all-zero bytes are a valid action; the handler only stores; the old action comes
    // back.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) =
            (core::mem::zeroed(), core::mem::zeroed());
        new.sa_sigaction = test_signal as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let failed = libc::sigaltstack(&stack, core::ptr::null_mut()) < 0
            || libc::sigaction(libc::SIGURG, &new, &mut old) < 0;
        if failed {
            return Err(last("sigaltstack"));
        }
        let mask = sys::set_signal_mask(0);
        let process = sys::syscall(libc::SYS_getpid, [0; 6]) as u64;
        let thread = sys::syscall(libc::SYS_gettid, [0; 6]) as u64;
        sys::syscall(libc::SYS_tgkill, [process, thread, libc::SIGURG as u64, 0, 0, 0]);
        sys::set_signal_mask(mask);
        libc::sigaction(libc::SIGURG, &old, core::ptr::null_mut());
    }
    let frame = FRAME.load(Ordering::Acquire);
    let bytes = FP_BYTES.load(Ordering::Relaxed);
    let rights = core::arch::x86_64::__cpuid_count(0xd, 9).ebx as usize;
    FP_RIGHTS.store(rights, Ordering::Relaxed);
    if frame == 0 || bytes <= EXTENDED || bytes > FP_MAX || rights == 0 || rights + 4 > bytes {
        return Err("cannot raise the wall: signal frames look unlike any known".to_owned());
    }
    // SAFETY: the frame on the first record's stack. No frame stays there unused.
    unsafe { (*(frame as *mut handler::Frame)).info.number = 0 };
    let below = first.stack.0 + first.stack.1 - frame;
    for index in 0..RECORDS {
        // SAFETY: as in `prepare_records`.
        let record = unsafe { &mut *record::at(index) };
        record.frame_top = record.stack.0 + record.stack.1 - below;
        // Code that runs there must leave no bytes where a frame is expected.
        record.stack_top = (record.frame_top - 64) & !63;
    }
    // The application starts with the vector registers that the kernel gives to a new program.
    first.fp.0[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
    first.fp.0[EXTENDED..EXTENDED + 64].fill(0);
    first.elastic = NOBODY;
    Ok(())
}

fn remember_ignored() {
    for signal in 1..=64 {
        // SAFETY: all zero is a valid action, which is only filled.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            if libc::sigaction(signal, core::ptr::null(), &mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
            {
                deliver::set_ignored(signal);
            }
        }
    }
}

/// Gives every mapping that is not the program's its key, records it and seals it; also the
/// `shared` ones, which are never unmapped.
fn tag(
    program: &[(usize, usize)],
    ranges: &[(usize, usize, AppAccess)],
    shared: [(usize, usize); 2],
) -> Result<(), String> {
    let all = maps::mappings().map_err(|e| text("/proc/self/maps", e))?;
    let own: Vec<_> = all.iter().flat_map(|mapping| maps::without(mapping, program)).collect();
    let key = |start: usize, end: usize, prot: i32, key: u64| -> Result<(), String> {
        let args = [start as u64, (end - start) as u64, prot as u64, key, 0, 0];
        // SAFETY: a mapping of the dataplane's, with the rights that it has already.
        match unsafe { sys::syscall(libc::SYS_pkey_mprotect, args) } {
            0 => Ok(()),
            errno => Err(text("pkey_mprotect", os(errno))),
        }
    };
    let keyed = stands;
    for mapping in own.iter().filter(|_| keyed(Part::Keys)) {
        key(mapping.start, mapping.end, mapping.prot(), KEY_OWN)?;
    }
    for &(start, bytes, access) in ranges {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let which = match access {
            AppAccess::Read if keyed(Part::Keys) => KEY_SHOWN,
            AppAccess::Read => 0,
            AppAccess::Write => 0,
        };
        key(start, start + bytes, prot, which)?;
    }
    for mapping in &own {
        if !memory::protect(mapping.start, mapping.end - mapping.start) {
            return Err("cannot raise the wall: too many mappings".to_owned());
        }
    }
    // What is shared with a device or a peer is unmapped with the link, so it cannot be sealed.
    // Other shared memory stays.
    let lasting =
        own.iter().filter(|m| !m.shared).map(|m| (m.start, m.end - m.start)).chain(shared);
    for (start, bytes) in lasting.filter(|_| stands(Part::Calls)) {
        let errno = memory::seal(start, bytes);
        if errno < 0 {
            return Err(text("mseal (Linux 6.10 and later has it)", os(errno)));
        }
    }
    Ok(())
}

/// Checks the code of the program and its loader, which the kernel has mapped.
fn check_code(first: &mut Record, program: &[(usize, usize)]) -> Result<(), String> {
    let all = maps::mappings().map_err(|e| text("/proc/self/maps", e))?;
    let is_programs =
        |m: &&maps::Mapping| program.iter().any(|&(start, end)| m.start >= start && m.end <= end);
    for mapping in all.iter().filter(is_programs).filter(|m| m.execute) {
        if mapping.write {
            let why = format!("{} is writable code; build it without", mapping.name);
            return Err(format!("cannot raise the wall: {why}"));
        }
        // The kernel's own page, outside of what programs can map.
        if mapping.name.starts_with("[v") {
            continue;
        }
        let bytes = (mapping.end - mapping.start) as u64;
        let name = mapping.name.as_bytes();
        memory::replace(first, mapping.start as u64, bytes, mapping.offset).map_err(|error| {
            let why = "it has instructions that change memory rights, or could not be read";
            error.found.inspect(|&offset| memory::say_refused(name, offset));
            text(&format!("code of {}: {why}", mapping.name), os(error.errno))
        })?;
    }
    Ok(())
}

fn confine() -> Result<(), String> {
    // SAFETY: no pointers.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err(last("no_new_privs"));
        }
        // The launcher may have done it before anything else, also where this part is left out.
        let dumpable = libc::c_ulong::from(!stands(Part::Files));
        if libc::prctl(libc::PR_SET_DUMPABLE, dumpable, 0, 0, 0) < 0 {
            return Err(last("PR_SET_DUMPABLE"));
        }
    }
    if !stands(Part::Calls) {
        return Ok(());
    }
    seccomp::install().map_err(|e| text("seccomp", e))
}

/// Gate operations other than a simple `RUN_IO`.
fn gate_call(record: &mut Record, args: [u64; 6]) -> i64 {
    let [op, index, b, c, ..] = args;
    if FORKED.load(Ordering::Relaxed) {
        return -error::INVALID;
    }
    let owner = &raw const *record as u64;
    let fs = IMAGE_FS.load(Ordering::Relaxed);
    match op {
        gate_op::ENTER => match gate::enter_walled(index, owner, record.tid, record.app_mask, fs) {
            Ok(context) => {
                record.elastic = index;
                record.elastic_stack = context.stack_top;
                record.elastic_fs = context.fs_base;
                record.app_mask = crate::signals::BLOCKED;
                0
            }
            Err(error) => -error,
        },
        gate_op::LEAVE if record.elastic == index => {
            leave(record);
            0
        }
        gate_op::LEAVE => -error::STATE,
        gate_op::SHARE => share(index),
        // The program must not learn anything of the dataplane's descriptors, not even when they
        // are readable.
        gate_op::WATCH if b > filter::FD_BASE.load(Ordering::Relaxed) as u64 => {
            handler::refuse(Refusal::Descriptor);
            -error::INVALID
        }
        gate_op::WATCH if record.elastic == index => gate::watch_walled(index, b, c, fs),
        gate_op::WATCH if is_shared(index) => gate::watch_shared_walled(index, owner, b, fs),
        gate_op::RUN_IO if is_shared(index) => -error::IN_USE,
        gate_op::KICK if (index as usize) < gate::threads() => boot::kick(index as usize),
        gate_op::RUN_IO | gate_op::WATCH if (index as usize) < gate::threads() => -error::STATE,
        gate_op::KICK | gate_op::RUN_IO | gate_op::WATCH => -error::INVALID,
        _ => -error::NO_SYS,
    }
}

fn is_shared(index: u64) -> bool {
    let shared = asm::SHARED.get(index as usize);
    shared.is_some_and(|shared| shared.owner.load(Ordering::Acquire) != 0)
}

/// `SHARE`: makes the elastic thread known to the assembly.
fn share(index: u64) -> i64 {
    let Some(shared) = asm::SHARED.get(index as usize) else { return -error::INVALID };
    match gate::share_walled(index) {
        Ok((owner, context)) => {
            shared.stack.store(context.stack_top, Ordering::Relaxed);
            shared.fs.store(context.fs_base, Ordering::Relaxed);
            shared.owner.store(owner.as_ptr() as u64, Ordering::Release);
            0
        }
        Err(error) => -error,
    }
}

/// A signal arrived at the beginning or the end of a crossing, which is restarted or is over: this
/// thread does not have the shared elastic thread any more.
fn give_back_shared(record: &mut Record) {
    let owner = record.owner as *const AtomicU64;
    record.has_shared = 0;
    // SAFETY: null, or the word of a table that is never unmapped.
    if let Some(owner) = unsafe { owner.as_ref() } {
        let own = &raw const *record as u64;
        let _ = owner.compare_exchange(own, gate::SHARED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Ends a wait of the shared elastic thread that this thread has, because of a signal.
fn end_wait(record: &Record) {
    if record.inside != 0 && record.has_shared != 0 {
        let is_it = |shared: &asm::Shared| shared.owner.load(Ordering::Relaxed) == record.owner;
        if let Some(index) = asm::SHARED.iter().position(is_it) {
            boot::kick(index);
        }
    }
}

/// The thread leaves its elastic thread, if it has one.
fn leave(record: &mut Record) {
    if record.elastic != NOBODY && !FORKED.load(Ordering::Relaxed) {
        let fs = IMAGE_FS.load(Ordering::Relaxed);
        record.app_mask = gate::leave_walled(record.elastic, fs);
        record.elastic = NOBODY;
    }
}

/// To be called before the process ends.
fn farewell(record: &mut Record) {
    leave(record);
}

/// Ends a program whose system calls always prevent the reception of the broker's messages:
/// revocation, rates and migration would never arrive.
pub fn end_refusing() -> ! {
    deliver::say_if_possible(
        b"ix: the program is ended: its system calls kept the control plane's messages from the dataplane",
        &[],
    );
    threads::end_at_once()
}

/// Whether new mappings belong behind the wall.
pub fn is_raised() -> bool {
    RAISED.load(Ordering::Relaxed)
}

/// The calling process is a fork: it does not have the dataplane's descriptors.
fn forked() {
    if stands(Part::Calls) {
        let base = filter::FD_BASE.load(Ordering::Relaxed) as u64;
        // SAFETY: no pointers; from there on all are copies of the dataplane's.
        unsafe { sys::syscall(libc::SYS_close_range, [base, u64::from(u32::MAX), 0, 0, 0, 0]) };
    }
    memory::forget_missing();
    FORKED.store(true, Ordering::Relaxed);
}
