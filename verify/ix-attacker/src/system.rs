//! Attacks through system calls that change what a process is, or that name what is the
//! dataplane's.
use crate::{Attack, Part, Targets, call, in_a_copy, is_walled};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Name, what stops it, and attack.
pub const ATTACKS: &[(&str, Part, Attack)] = &[
    ("ptrace", Part::Calls, ptrace),
    ("pkey_alloc", Part::Calls, |_| done(libc::SYS_pkey_alloc, [0; 6])),
    ("pkey_free of the dataplane's key", Part::Calls, pkey_free),
    ("Syscall User Dispatch off", Part::Calls, |_| done(libc::SYS_prctl, [59, 0, 0, 0, 0, 0])),
    ("dumpable again", Part::Calls, |_| {
        done(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as u64, 1, 0, 0, 0, 0])
    }),
    ("personality: readable is executable", Part::Calls, |_| {
        done(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0])
    }),
    ("set_robust_list", Part::Calls, |t| {
        done(libc::SYS_set_robust_list, [t.data as u64, 24, 0, 0, 0, 0])
    }),
    ("rseq, for jumps out of the dataplane", Part::Calls, rseq),
    ("io_uring", Part::Calls, io_uring),
    ("userfaultfd", Part::Calls, |_| done(libc::SYS_userfaultfd, [1, 0, 0, 0, 0, 0])),
    ("perf_event_open", Part::Other, perf),
    ("bpf", Part::Other, bpf),
    ("a seccomp filter of its own", Part::Calls, seccomp),
    ("modify_ldt", Part::Calls, modify_ldt),
    ("set_thread_area: to be another thread", Part::Other, |_| set_thread_area()),
    ("a system call of a new thread", Part::Calls, |_| {
        let thread = std::thread::spawn(|| done(libc::SYS_pkey_alloc, [0; 6]));
        thread.join().unwrap_or(Err("it died".to_owned()))
    }),
    ("a process in the same memory, unfiltered", Part::Other, |_| share_memory()),
    ("a zero where the thread ends", Part::Calls, |t| {
        done(libc::SYS_set_tid_address, [t.data as u64, 0, 0, 0, 0, 0])
    }),
    ("a zero where a new one ends", Part::Calls, |t| {
        child_of(libc::CLONE_CHILD_CLEARTID, t.data as u64)
    }),
    ("a process with this table of descriptors", Part::Calls, |_| child_of(libc::CLONE_FILES, 0)),
    ("a table of descriptors of its own", Part::Calls, |_| {
        const UNSHARE: u64 = libc::CLOSE_RANGE_UNSHARE as u64;
        done(libc::SYS_close_range, [900, 901, UNSHARE, 0, 0, 0])
    }),
    ("a call that waits and no signal ends", Part::Calls, |_| wait_for_child()),
    ("a key typed for the user at the terminal", Part::Other, |_| type_a_key()),
    // Where it reaches sealed memory, that too stops it.
    ("huge pages over the dataplane", Part::Other, huge_pages),
    ("a namespace of users", Part::Calls, |_| {
        done(libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0])
    }),
    ("remap_file_pages", Part::Calls, remap),
    ("close the dataplane's descriptors", Part::Calls, |t| {
        done(libc::SYS_close_range, [t.descriptor as u64, u64::MAX, 0, 0, 0, 0])
    }),
    ("close one of them", Part::Calls, |t| {
        done(libc::SYS_close, [t.descriptor as u64, 0, 0, 0, 0, 0])
    }),
    ("dup of one of them", Part::Calls, |t| {
        done(libc::SYS_dup, [t.descriptor as u64, 0, 0, 0, 0, 0])
    }),
    ("fcntl of one of them", Part::Calls, |t| {
        done(libc::SYS_fcntl, [t.descriptor as u64, libc::F_DUPFD as u64, 0, 0, 0, 0])
    }),
    ("a number with its upper half set", Part::Calls, |t| {
        done(libc::SYS_dup, [t.descriptor as u64 | 1 << 40, 0, 0, 0, 0, 0])
    }),
    ("more descriptors than below them", Part::Calls, more_descriptors),
    ("send one of them over a socket", Part::Calls, send),
    ("open one of them by its name in /proc", Part::Other, open_by_name),
    ("32-bit system call", Part::Other, |_| int80()),
    ("stop the process that closes connections", Part::Calls, |t| signal(t, libc::SYS_kill)),
    ("stop it as a thread", Part::Calls, |t| signal(t, libc::SYS_tkill)),
    ("stop it as an owner of a socket", Part::Calls, own_socket),
    ("end it by a limit", Part::Calls, |t| {
        let limit = [3600u64, 3600];
        let at = &raw const limit as u64;
        done(libc::SYS_prlimit64, [t.survivor as u64, libc::RLIMIT_CPU as u64, at, 0, 0, 0])
    }),
    ("a packet socket", Part::Other, |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300)),
    ("a raw socket, for any source address", Part::Other, |_| {
        socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW)
    }),
    ("an AF_XDP socket", Part::Other, |_| socket(libc::AF_XDP, libc::SOCK_RAW, 0)),
    ("a tap of its own", Part::Other, |_| tap()),
];

/// A copy makes this attack: a traced process stops at the next signal, and here each system call
/// is a signal.
fn ptrace(_: &Targets) -> Result<String, String> {
    // SAFETY: the copy makes two system calls, and the parent waits for it.
    unsafe {
        let copy = libc::fork();
        if copy == 0 {
            let refused = libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) < 0;
            libc::_exit(i32::from(refused));
        }
        let mut status = 0;
        libc::waitpid(copy, &mut status, 0);
        if libc::WIFSTOPPED(status) {
            libc::kill(copy, libc::SIGKILL);
            libc::waitpid(copy, &mut status, 0);
            return Ok("traced".to_owned());
        }
        match libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            true => Ok("traced".to_owned()),
            false => Err("refused".to_owned()),
        }
    }
}

/// Stops the survivor: then nothing would close what the program leaves open.
fn signal(t: &Targets, how: i64) -> Result<String, String> {
    if t.survivor <= 0 {
        return Ok("it is not there".to_owned());
    }
    let stopped = done(how, [t.survivor as u64, libc::SIGSTOP as u64, 0, 0, 0, 0]);
    let _ = call(libc::SYS_kill, [t.survivor as u64, libc::SIGCONT as u64, 0, 0, 0, 0]);
    stopped
}

/// Linux sends a signal that the program chose to the owner of a socket that becomes readable.
fn own_socket(t: &Targets) -> Result<String, String> {
    let mut ends = [0i32; 2];
    call(libc::SYS_socketpair, [1, 1, 0, ends.as_mut_ptr() as u64, 0, 0])?;
    done(libc::SYS_fcntl, [ends[0] as u64, libc::F_SETOWN as u64, t.survivor as u64, 0, 0, 0])
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<String, String> {
    done(libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0])
}

/// A TAP interface sends frames with any source address.
fn tap() -> Result<String, String> {
    const TUNSETIFF: u64 = 0x4004_54ca;
    const TAP_WITHOUT_HEADER: u16 = 0x1002;
    let path = c"/dev/net/tun".as_ptr() as u64;
    let fd = call(libc::SYS_open, [path, libc::O_RDWR as u64, 0, 0, 0, 0])?;
    let mut request = [0u8; 40];
    request[..8].copy_from_slice(b"ix-spoof");
    request[16..18].copy_from_slice(&TAP_WITHOUT_HEADER.to_ne_bytes());
    done(libc::SYS_ioctl, [fd, TUNSETIFF, request.as_ptr() as u64, 0, 0, 0])
}

fn done(number: i64, args: [u64; 6]) -> Result<String, String> {
    call(number, args).map(|answer| format!("answered {answer}"))
}

fn pkey_free(_: &Targets) -> Result<String, String> {
    // Without the wall the program has no key yet.
    let _ = call(libc::SYS_pkey_alloc, [0; 6]);
    done(libc::SYS_pkey_free, [1, 0, 0, 0, 0, 0])
}

fn more_descriptors(t: &Targets) -> Result<String, String> {
    let limit = [t.descriptor as u64 + 64, t.descriptor as u64 + 64];
    let at = &raw const limit as u64;
    done(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as u64, at, 0, 0, 0])
}

fn io_uring(_: &Targets) -> Result<String, String> {
    let parameters = [0u64; 16];
    done(libc::SYS_io_uring_setup, [1, parameters.as_ptr() as u64, 0, 0, 0, 0])
}

fn perf(_: &Targets) -> Result<String, String> {
    // A software clock of this process (type 1, size 64, config 0).
    let mut attributes = [0u32; 32];
    (attributes[0], attributes[1]) = (1, 64);
    done(libc::SYS_perf_event_open, [attributes.as_ptr() as u64, 0, u64::MAX, u64::MAX, 0, 0])
}

/// Makes a map in the kernel, as a BPF program needs it.
fn bpf(_: &Targets) -> Result<String, String> {
    const MAP_CREATE: u64 = 0;
    const ARRAY: u32 = 2;
    let mut attributes = [0u32; 18];
    attributes[..4].copy_from_slice(&[ARRAY, 4, 4, 1]);
    let (at, bytes) = (attributes.as_ptr() as u64, size_of_val(&attributes) as u64);
    done(libc::SYS_bpf, [MAP_CREATE, at, bytes, 0, 0, 0])
}

/// This filter allows everything; another one could stop the dataplane's calls.
fn seccomp(_: &Targets) -> Result<String, String> {
    const ALLOW: libc::sock_filter = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let program = [ALLOW];
    let filter = libc::sock_fprog { len: 1, filter: program.as_ptr().cast_mut() };
    let (mode, at) = (libc::SECCOMP_SET_MODE_FILTER as u64, &raw const filter as u64);
    done(libc::SYS_seccomp, [mode, 0, at, 0, 0, 0])
}

/// Replaces the C library's registration, if there is one. The kernel would then jump to an address
/// of the program's choice whenever it interrupts a range of code of the program's choice.
fn rseq(_: &Targets) -> Result<String, String> {
    const WORDS: usize = 4;
    const BYTES: u64 = 8 * WORDS as u64;
    const UNREGISTER: u64 = 1;
    const MARK: u64 = 0x5305_3053;
    #[repr(align(32))]
    struct Area([AtomicU64; WORDS]);
    static AREA: Area = Area([const { AtomicU64::new(0) }; WORDS]);
    // SAFETY: symbols of the C library, or null; the C library never changes what they point to.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        if let Some(offset) = offset.as_ref() {
            let thread: usize;
            std::arch::asm!("mov {}, fs:0", out(reg) thread);
            let theirs = thread.wrapping_add_signed(*offset) as u64;
            let _ = call(libc::SYS_rseq, [theirs, BYTES, UNREGISTER, MARK, 0, 0]);
        }
    }
    done(libc::SYS_rseq, [AREA.0.as_ptr() as u64, BYTES, 0, MARK, 0, 0])
}

/// This call sets a segment descriptor, in its 32-bit form. A segment's base can say which thread
/// runs.
fn set_thread_area() -> Result<String, String> {
    const SET_THREAD_AREA: u32 = 243;
    const BELOW_2_GB: u64 = 0x40;
    const ANY_ENTRY: u32 = u32::MAX;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64 | BELOW_2_GB;
    let at = call(libc::SYS_mmap, [0, 4096, 3, flags, u64::MAX, 0])?;
    let mut answer = u64::from(SET_THREAD_AREA);
    // SAFETY: the call reads and writes a page of our own. `rbx`, which cannot be named as an
    // operand, is restored.
    unsafe {
        (at as *mut [u32; 4]).write([ANY_ENTRY, 0, 1, 0x51]);
        std::arch::asm!("xchg rbx, {at}", "int 0x80", "xchg rbx, {at}",
            at = inout(reg) at => _, inout("rax") answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    let answer = answer as i32;
    if answer == 0 { Ok("set".to_owned()) } else { Err(format!("error {}", -answer)) }
}

/// Makes a child process with this flag and address. The child ends at once.
fn child_of(flag: i32, address: u64) -> Result<String, String> {
    let flags = (flag | libc::SIGCHLD) as u64;
    let child = call(libc::SYS_clone, [flags, 0, 0, address, 0, 0])?;
    // SAFETY: the child ends, and the parent waits for it.
    unsafe {
        if child == 0 {
            libc::_exit(0);
        }
        libc::waitpid(child as i32, std::ptr::null_mut(), 0);
    }
    Ok(format!("process {child}"))
}

/// With `vfork` the parent waits for its child, and no signal reaches it meanwhile.
fn wait_for_child() -> Result<String, String> {
    const CHILD_MS: u32 = 1500;
    let begin = std::time::Instant::now();
    let flags = (libc::CLONE_VFORK | libc::SIGCHLD) as u64;
    let child = call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
    // SAFETY: the child sleeps and ends; the parent waits for it.
    unsafe {
        if child == 0 {
            libc::usleep(CHILD_MS * 1000);
            libc::_exit(0);
        }
        let waited_ms = begin.elapsed().as_millis();
        libc::kill(child as i32, libc::SIGKILL);
        libc::waitpid(child as i32, std::ptr::null_mut(), 0);
        match waited_ms >= u128::from(CHILD_MS) {
            true => Ok(format!("waited {waited_ms} ms")),
            false => Err(format!("went on after {waited_ms} ms")),
        }
    }
}

/// Types into a terminal of its own: the system call is the same.
fn type_a_key() -> Result<String, String> {
    let path = c"/dev/ptmx".as_ptr() as u64;
    let fd = call(libc::SYS_open, [path, (libc::O_RDWR | libc::O_NOCTTY) as u64, 0, 0, 0, 0])?;
    let key = b'#';
    done(libc::SYS_ioctl, [fd, libc::TIOCSTI, &raw const key as u64, 0, 0, 0])
}

/// Linux maps whole huge pages even where the caller asks for less, and so covers the memory
/// behind.
fn huge_pages(t: &Targets) -> Result<String, String> {
    const HUGE: u64 = 2 << 20;
    const NO_MEMORY_YET: u64 = (libc::MAP_PRIVATE | libc::MAP_NORESERVE) as u64;
    let flags = libc::MFD_HUGETLB as u64;
    let fd = call(libc::SYS_memfd_create, [c"huge".as_ptr() as u64, flags, 0, 0, 0, 0])?;
    let at = t.data as u64 & !(HUGE - 1);
    let fixed = NO_MEMORY_YET | libc::MAP_FIXED as u64;
    let copy = in_a_copy(|| done(libc::SYS_mmap, [at, 4096, 3, fixed, fd, 0]));
    match copy {
        // The copy may have lost its own code too.
        Err(why) if why.contains("killed") => Ok(why),
        other => other,
    }
}

/// A child does not inherit what stops system calls: a child that shares memory would be free of
/// it.
pub fn share_memory() -> Result<String, String> {
    const STACK: usize = 64 << 10;
    static SHARED: AtomicBool = AtomicBool::new(false);
    extern "C" fn child(_: *mut libc::c_void) -> i32 {
        SHARED.store(true, Ordering::Relaxed);
        0
    }
    let mut stack = vec![0u8; STACK];
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the stack outlives the child. The parent waits for the child, which only stores a
    // byte.
    unsafe {
        let top = stack.as_mut_ptr().add(STACK - 64);
        let top = top.sub(top.addr() % 16).cast();
        let pid = libc::clone(child, top, flags, std::ptr::null_mut());
        if pid < 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    match SHARED.load(Ordering::Relaxed) {
        true => Ok("it has our memory".to_owned()),
        false => Err("it has a copy".to_owned()),
    }
}

/// A pipe, or a file without a name, can be opened again by its path in `/proc/self/fd`. (So can a
/// device, but that gives a new one.)
fn open_by_name(t: &Targets) -> Result<String, String> {
    const NUMBERS: u64 = 64;
    let own = match is_walled() {
        true => None,
        false => Some(pipe()?),
    };
    let first = own.map_or(t.descriptor as u64, |ends| ends[0]);
    let mut last = "there is none".to_owned();
    for number in first..first + NUMBERS {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{number}"));
        let path = path.map_err(|e| e.to_string())?;
        let flags = (libc::O_RDWR | libc::O_NONBLOCK) as u64;
        match call(libc::SYS_open, [path.as_ptr() as u64, flags, 0, 0, 0, 0]) {
            Ok(fd) if !is_device(fd) => return Ok(format!("{number} is open as {fd}")),
            Ok(_) => {}
            Err(why) if why.contains("No such file") => {}
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn is_device(fd: u64) -> bool {
    // SAFETY: all zero is a valid `stat`, which is only filled.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd as i32, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
    }
}

fn pipe() -> Result<[u64; 2], String> {
    let mut ends = [0i32; 2];
    call(libc::SYS_pipe, [ends.as_mut_ptr() as u64, 0, 0, 0, 0, 0])?;
    Ok(ends.map(|end| end as u64))
}

fn modify_ldt(_: &Targets) -> Result<String, String> {
    let description = [0u32, 0, 0xfff, 0x51];
    done(libc::SYS_modify_ldt, [1, description.as_ptr() as u64, 16, 0, 0, 0])
}

fn remap(_: &Targets) -> Result<String, String> {
    const SHARED_ANONYMOUS: u64 = 0x21;
    let own = call(libc::SYS_mmap, [0, 8192, 3, SHARED_ANONYMOUS, u64::MAX, 0])?;
    done(libc::SYS_remap_file_pages, [own, 4096, 0, 1, 0, 0])
}

fn send(t: &Targets) -> Result<String, String> {
    let mut ends = [0i32; 2];
    call(libc::SYS_socketpair, [1, 1, 0, ends.as_mut_ptr() as u64, 0, 0])?;
    let control = [20u64, 1 | 1 << 32, t.descriptor as u64];
    let byte = [0u8];
    let part = libc::iovec { iov_base: byte.as_ptr() as *mut _, iov_len: 1 };
    let message = [
        0u64,
        0,
        &raw const part as u64,
        1,
        control.as_ptr() as u64,
        size_of_val(&control) as u64,
        0,
    ];
    done(libc::SYS_sendmsg, [ends[0] as u64, message.as_ptr() as u64, 0, 0, 0, 0])
}

fn int80() -> Result<String, String> {
    const GETPID: u32 = 20;
    let mut answer = u64::from(GETPID);
    // SAFETY: a system call without pointers.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    let answer = answer as i32;
    if answer > 0 { Ok(format!("answered {answer}")) } else { Err(format!("error {}", -answer)) }
}
