//! Attacks on memory: direct, and through Linux.
use crate::{Attack, Part, Targets, call};

/// Name, what stops it, and attack.
pub const ATTACKS: &[(&str, Part, Attack)] = &[
    ("read code of the dataplane", Part::Keys, |t| touch(t.code, false)),
    ("read data of the dataplane", Part::Keys, |t| touch(t.data, false)),
    ("write data of the dataplane", Part::Keys, |t| touch(t.data, true)),
    ("write the header", Part::Keys, |t| touch(t.shown, true)),
    ("write through /proc/self/mem", Part::Files, proc_mem),
    ("write through /proc/self/task/TID/mem", Part::Files, task_mem),
    ("process_vm_writev", Part::Calls, vm_write),
    ("pkey_mprotect to the default key", Part::Calls, pkey_mprotect),
    ("mprotect", Part::Calls, |t| change(libc::SYS_mprotect, [page(t.data), PAGE, 3, 0, 0, 0])),
    ("munmap", Part::Calls, |t| change(libc::SYS_munmap, [page(t.data), PAGE, 0, 0, 0, 0])),
    ("munmap of the header", Part::Calls, |t| {
        change(libc::SYS_munmap, [page(t.shown), PAGE, 0, 0, 0, 0])
    }),
    ("mmap with MAP_FIXED over it", Part::Calls, |t| {
        change(libc::SYS_mmap, [page(t.data), PAGE, 3, 0x32, u64::MAX, 0])
    }),
    ("mremap of it", Part::Calls, |t| {
        change(libc::SYS_mremap, [page(t.data), PAGE, PAGE, 1, 0, 0])
    }),
    ("mremap over it", Part::Calls, mremap_over),
    ("madvise DONTNEED", Part::Calls, |t| {
        change(libc::SYS_madvise, [page(t.data), PAGE, 4, 0, 0, 0])
    }),
    ("madvise DONTFORK", Part::Calls, |t| {
        change(libc::SYS_madvise, [page(t.data), PAGE, 10, 0, 0, 0])
    }),
    ("read(2) into it", Part::Keys, read_into),
    ("write(2) out of it", Part::Keys, write_out),
    ("getsockopt into it", Part::Keys, getsockopt_into),
    ("vmsplice out of it", Part::Keys, vmsplice_out),
    ("a thread that reads it", Part::Keys, |t| {
        let data = t.data;
        std::thread::spawn(move || touch(data, false)).join().unwrap_or(Err("it died".to_owned()))
    }),
    ("Linux clears a word there when a thread ends", Part::Other, thread_end),
    ("signal handler's stack in it", Part::Keys, signal_stack),
    ("rights forged in a signal frame", Part::Other, forged_rights),
];

const PAGE: u64 = 4096;

/// Linux makes this write, with `read`. A copy of the process cannot make it, because a copy does
/// not inherit packet memory. The program goes on when the write is refused.
pub fn write_received(t: &Targets) -> Result<String, String> {
    let ends = pipe_with_byte()?;
    let byte = [0u8];
    call(libc::SYS_write, [ends[1] as u64, byte.as_ptr() as u64, 1, 0, 0, 0])?;
    // In front of the first packet, where no data lies.
    let read = call(libc::SYS_read, [ends[0] as u64, t.received as u64, 1, 0, 0, 0]);
    for end in ends {
        call(libc::SYS_close, [end as u64, 0, 0, 0, 0, 0])?;
    }
    read.map(|_| "written".to_owned())
}

fn page(addr: usize) -> u64 {
    addr as u64 & !(PAGE - 1)
}

fn touch(addr: usize, write: bool) -> Result<String, String> {
    let at = addr as *mut u8;
    // SAFETY: an attack; if it is allowed, the byte stays what it was.
    unsafe {
        let byte = at.read_volatile();
        if write {
            at.write_volatile(byte);
        }
    }
    Ok("no fault".to_owned())
}

fn change(number: i64, args: [u64; 6]) -> Result<String, String> {
    call(number, args).map(|_| "done".to_owned())
}

fn open_and_write(path: &str, addr: usize) -> Result<String, String> {
    let path = std::ffi::CString::new(path).map_err(|e| e.to_string())?;
    let fd = call(libc::SYS_open, [path.as_ptr() as u64, libc::O_RDWR as u64, 0, 0, 0, 0])?;
    let byte = [0u8];
    let at = byte.as_ptr() as u64;
    call(libc::SYS_pread64, [fd, at, 1, addr as u64, 0, 0])?;
    call(libc::SYS_pwrite64, [fd, at, 1, addr as u64, 0, 0]).map(|_| "written".to_owned())
}

fn proc_mem(t: &Targets) -> Result<String, String> {
    open_and_write("/proc/self/mem", t.data)
}

fn task_mem(t: &Targets) -> Result<String, String> {
    let tid = call(libc::SYS_gettid, [0; 6])?;
    open_and_write(&format!("/proc/self/task/{tid}/mem"), t.data)
}

fn vm_write(t: &Targets) -> Result<String, String> {
    let own = call(libc::SYS_getpid, [0; 6])?;
    let byte = [0u8];
    let local = libc::iovec { iov_base: byte.as_ptr() as *mut _, iov_len: 1 };
    let remote = libc::iovec { iov_base: t.data as *mut _, iov_len: 1 };
    let (l, r) = (&raw const local as u64, &raw const remote as u64);
    call(libc::SYS_process_vm_readv, [own, l, 1, r, 1, 0])?;
    call(libc::SYS_process_vm_writev, [own, l, 1, r, 1, 0]).map(|_| "written".to_owned())
}

fn pkey_mprotect(t: &Targets) -> Result<String, String> {
    change(libc::SYS_pkey_mprotect, [page(t.data), PAGE, 3, 0, 0, 0])
}

fn mremap_over(t: &Targets) -> Result<String, String> {
    let own = call(libc::SYS_mmap, [0, PAGE, 3, 0x22, u64::MAX, 0])?;
    change(libc::SYS_mremap, [own, PAGE, PAGE, 3, page(t.data), 0])
}

fn pipe_with_byte() -> Result<[i32; 2], String> {
    let mut ends = [0i32; 2];
    call(libc::SYS_pipe, [ends.as_mut_ptr() as u64, 0, 0, 0, 0, 0])?;
    Ok(ends)
}

fn read_into(t: &Targets) -> Result<String, String> {
    let ends = pipe_with_byte()?;
    let byte = [0u8];
    call(libc::SYS_write, [ends[1] as u64, byte.as_ptr() as u64, 1, 0, 0, 0])?;
    // The last byte of a page of data: seldom used.
    let at = page(t.data) + PAGE - 1;
    call(libc::SYS_read, [ends[0] as u64, at, 1, 0, 0, 0]).map(|_| "written".to_owned())
}

fn write_out(t: &Targets) -> Result<String, String> {
    let ends = pipe_with_byte()?;
    call(libc::SYS_write, [ends[1] as u64, t.data as u64, 8, 0, 0, 0]).map(|_| "read".to_owned())
}

fn getsockopt_into(t: &Targets) -> Result<String, String> {
    let socket = call(libc::SYS_socket, [2, 1, 0, 0, 0, 0])?;
    let length = 4u32;
    let (at, length) = (page(t.data) + PAGE - 4, &raw const length as u64);
    let args = [socket, libc::SOL_SOCKET as u64, libc::SO_TYPE as u64, at, length, 0];
    call(libc::SYS_getsockopt, args).map(|_| "written".to_owned())
}

/// With `vmsplice` Linux takes the pages themselves, without a copy.
fn vmsplice_out(t: &Targets) -> Result<String, String> {
    let ends = pipe_with_byte()?;
    let part = libc::iovec { iov_base: t.data as *mut _, iov_len: 8 };
    let at = &raw const part as u64;
    call(libc::SYS_vmsplice, [ends[1] as u64, at, 1, 0, 0, 0]).map(|_| "read".to_owned())
}

/// The target is memory that the application may read, so that a change shows: the header's first
/// word, which is not zero.
fn thread_end(t: &Targets) -> Result<String, String> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
    let word = t.shown as *const u32;
    // SAFETY: the application may read the header.
    let read = || unsafe { word.read_volatile() };
    let before = read();
    let at = word as u64;
    std::thread::spawn(move || call(libc::SYS_set_tid_address, [at, 0, 0, 0, 0, 0]));
    let begin = std::time::Instant::now();
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, |folder| folder.count());
    while threads() > 1 && begin.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    match read() {
        now if now == before => Err("the word is what it was".to_owned()),
        now => Ok(format!("the word is {now}")),
    }
}

extern "C" fn nothing(_: i32) {}

fn signal_stack(t: &Targets) -> Result<String, String> {
    let stack =
        libc::stack_t { ss_sp: page(t.data) as *mut _, ss_flags: 0, ss_size: PAGE as usize };
    // SAFETY: all zero is a valid action; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        if libc::sigaltstack(&stack, std::ptr::null_mut()) < 0 {
            return Err(std::io::Error::last_os_error().to_string());
        }
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::raise(libc::SIGUSR1);
    }
    Ok("a frame was written there".to_owned())
}

extern "C" fn forge(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let rights_at = std::arch::x86_64::__cpuid_count(0xd, 9).ebx as usize;
    // SAFETY: this is the frame's vector state; the rights lie at this offset of it.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let state = context.uc_mcontext.fpregs.cast::<u8>();
        if rights_at > 0 {
            state.add(rights_at).cast::<u32>().write_unaligned(0);
            let bits = state.add(512).cast::<u64>();
            bits.write_unaligned(bits.read_unaligned() | 1 << 9);
        }
    }
}

fn forged_rights(t: &Targets) -> Result<String, String> {
    // SAFETY: all zero is a valid action; the handler writes its own frame.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = forge as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::raise(libc::SIGUSR1);
    }
    touch(t.data, true)
}
