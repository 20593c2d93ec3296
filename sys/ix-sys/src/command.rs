//! What a child process does between fork and exec, beyond what [`Command`] offers.
//!
//! Only system calls are allowed there, so the steps are data, not code.
use crate::scheduling::{Policy, set_policy};
use crate::user_namespace::{self, UserNamespace};
use crate::{cpu, fd, network_namespace};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// One step of a child process before exec.
#[derive(Clone, Debug)]
pub enum Step {
    /// Moves into this network namespace.
    EnterNetwork(Arc<OwnedFd>),
    /// Becomes root of this user namespace.
    BecomeRootOf(Arc<UserNamespace>),
    /// Runs on this CPU only.
    Pin(usize),
    /// Is killed when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
    DieWithParent,
    /// Runs only when no other program wants the CPU (sched(7), SCHED_IDLE).
    OnlyWhenIdle,
    /// Gets standard input, output and error only, whatever this process was given.
    OnlyStandardDescriptors,
}

/// Makes the child do these steps, in order. If one fails, [`Command::spawn`] returns its error.
pub fn before_exec(command: &mut Command, steps: Vec<Step>) {
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the closure makes system calls only, which is all that is allowed between fork and
    // exec; it owns its steps.
    unsafe {
        command.pre_exec(move || steps.iter().try_for_each(|step| step.take(parent)));
    }
}

impl Step {
    fn take(&self, parent: libc::pid_t) -> io::Result<()> {
        match self {
            Step::EnterNetwork(namespace) => network_namespace::enter(namespace.as_fd()),
            Step::BecomeRootOf(namespace) => user_namespace::join(namespace.as_fd()),
            Step::Pin(cpu) => cpu::pin(*cpu),
            Step::DieWithParent => die_with(parent),
            Step::OnlyWhenIdle => set_policy(0, Policy::Idle),
            Step::OnlyStandardDescriptors => fd::close_others_at_exec(),
        }
    }
}

/// In a child: it is killed when the thread that forked it ends. `parent` is the number of the
/// process that forked; ESRCH if that has ended already, so that no signal would come. The exec of
/// a program that gives no other rights keeps this (prctl(2), PR_SET_PDEATHSIG).
pub fn die_with(parent: libc::pid_t) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended before sends no signal any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}
