//! Children of a program that share its dataplane.
use libix::raw::{Process, Thread, Wait};
use std::error::Error;

/// What a program's part ends with.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Forks a child that does this, says why it failed, and ends; it ends with its parent. Returns its
/// number. The program has one thread.
pub fn child(life: impl FnOnce() -> Outcome) -> Result<i32, Box<dyn Error>> {
    // SAFETY: the program has one thread, so the child may go on like any program.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let status = match life() {
                Ok(()) => 0,
                Err(why) => {
                    eprintln!("process {}: {why}", std::process::id());
                    1
                }
            };
            // SAFETY: no pointers; nothing of the parent's is run.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid),
    }
}

/// Attaches a child to its program's dataplane and enters elastic thread 0; from now on it may be
/// given connections.
pub fn attach(program: &Process) -> Result<(Process, Thread), Box<dyn Error>> {
    // SAFETY: a forked child that has entered no elastic thread, with one thread and no handlers.
    let process = unsafe { program.attach() }?;
    let mut thread = Thread::enter(&process, 0)?;
    thread.run_io(Wait::Poll)?;
    Ok((process, thread))
}
