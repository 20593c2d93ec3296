//! Users and rights of this process.
use crate::check;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Uid, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
    set_thread_res_uid,
};
use std::io;
use std::ops::RangeInclusive;

/// The effective user (geteuid(2)); 0 is root.
pub fn user_id() -> u32 {
    geteuid().as_raw()
}

/// The effective group (getegid(2)).
pub fn group_id() -> u32 {
    getegid().as_raw()
}

/// True if the process runs as root.
pub fn is_root() -> bool {
    user_id() == 0
}

/// Users that systemd gives out for a time (DynamicUser), of which IX takes some for its dataplanes
/// and programs; no file belongs to one.
pub const USERS_FOR_A_TIME: RangeInclusive<u32> = 61184..=65519;

/// The one behind [`USERS_FOR_A_TIME`], which systemd gives to no user. IX gives it to no program
/// and no dataplane: it owns what no process should.
pub const USER_OF_NO_PROCESS: u32 = *USERS_FOR_A_TIME.end() + 1;

/// Both: no program is given one of these by its number, and none that is root has them.
pub const USERS_OF_IX: RangeInclusive<u32> = *USERS_FOR_A_TIME.start()..=USER_OF_NO_PROCESS;

/// From now on no other process of the same user can trace this one, read its memory or take its
/// descriptors, and it dumps no core (prctl(2), PR_SET_DUMPABLE).
pub fn forbid_tracing() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// From now on a process that has root's number, but not root's rights, can neither signal this
/// process of root nor change its limits: Linux compares numbers with the real and the saved user
/// (kill(2), prlimit(2)), and no process has the one that they are now. Root's rights come with the
/// effective user, which stays. A child that executes a program calls [`reveal_user`] first.
/// Nothing changes for others than root, and in a user namespace that lacks the number.
pub fn hide_user() -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    // SAFETY: takes numbers.
    let hidden = check(unsafe { libc::setresuid(USER_OF_NO_PROCESS, 0, USER_OF_NO_PROCESS) });
    match hidden {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        hidden => hidden.map(drop),
    }
}

/// Takes [`hide_user`] back. Makes only system calls, for the calling thread, so it may be used
/// between fork and exec.
pub fn reveal_user() -> io::Result<()> {
    let user = geteuid();
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Makes files and sockets as this user, in the calling thread alone (setfsuid(2)). A process
/// that has no right to do that makes them as itself.
pub fn with_file_user<T>(user: u32, make: impl FnOnce() -> T) -> T {
    // SAFETY: takes a number. It answers with the user before, whether it has changed or not.
    let before = unsafe { libc::setfsuid(user) };
    let made = make();
    // SAFETY: as above.
    unsafe { libc::setfsuid(before as u32) };
    made
}

/// For a process of root with one thread: it keeps root's rights, and is a user whom no other
/// process has. So a process that has root's number, but not root's rights, can change neither its
/// priority nor its hardware threads (sched_setaffinity(2) compares effective users). Nothing
/// changes for others than root, and in a user namespace that lacks the number.
pub fn leave_roots_number() -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    set_keep_capabilities(true)?;
    let user = Uid::from_raw(USER_OF_NO_PROCESS);
    match set_thread_res_uid(user, user, user) {
        Err(Errno::INVAL) => return Ok(()),
        left => left?,
    };
    set_rights(Rights::AllPermitted)
}

/// What [`set_rights`] makes of a thread's rights (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// None, and none can come back.
    None,
    /// All that it may have.
    AllPermitted,
}

/// Changes the rights of the calling thread (capset(2)). Makes only system calls.
pub(crate) fn set_rights(to: Rights) -> io::Result<()> {
    let now = capabilities(None)?;
    let none = CapabilitySet::empty();
    let sets = match to {
        Rights::None => CapabilitySets { effective: none, permitted: none, inheritable: none },
        Rights::AllPermitted => CapabilitySets { effective: now.permitted, ..now },
    };
    Ok(set_capabilities(None, sets)?)
}

/// Whether the calling thread has any right of root, or could take one.
pub(crate) fn has_rights() -> io::Result<bool> {
    let now = capabilities(None)?;
    Ok(!(now.effective | now.permitted).is_empty())
}

/// The calling thread's number (gettid(2)).
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
