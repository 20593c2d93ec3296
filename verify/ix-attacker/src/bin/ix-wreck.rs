//! Makes another process end as if it had a fault of its own, for tests. Signals that are sent to a
//! dataplane from outside wait for ever, because it has blocked them.
//!
//! `ix-wreck PID fault|call`, as root. Its first thread executes at address 0, or makes a system
//! call that it has given up (`socket`).
use std::error::Error;
use std::ptr::null_mut;

fn trace(request: libc::c_uint, pid: i32, data: *mut libc::c_void) -> std::io::Result<()> {
    // SAFETY: the requests below take no pointer, or one to registers.
    let ret = unsafe { libc::ptrace(request, pid, null_mut::<libc::c_void>(), data) };
    if ret < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [pid, how] = words.as_slice() else { return Err("usage: ix-wreck PID fault|call".into()) };
    let pid: i32 = pid.parse()?;
    trace(libc::PTRACE_SEIZE, pid, null_mut())?;
    trace(libc::PTRACE_INTERRUPT, pid, null_mut())?;
    let mut status = 0;
    // SAFETY: fills a local.
    if unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } != pid {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: numbers alone; all zero is a valid value.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let to = (&raw mut registers).cast();
    trace(libc::PTRACE_GETREGS, pid, to)?;
    match how.as_str() {
        "fault" => registers.rip = 0,
        "call" => {
            // It waits in a system call, whose instruction has two bytes.
            registers.rip -= 2;
            registers.rax = libc::SYS_socket as u64;
        }
        other => return Err(format!("no such way to end: {other}").into()),
    }
    // The call that it waited in is not begun again.
    registers.orig_rax = u64::MAX;
    trace(libc::PTRACE_SETREGS, pid, (&raw mut registers).cast())?;
    trace(libc::PTRACE_DETACH, pid, null_mut())?;
    Ok(())
}
