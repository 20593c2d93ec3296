//! Descriptors that messages over Unix sockets carry (`SCM_RIGHTS`).
use crate::lock::lock;
use crate::mem::is_possible;
use crate::{cmsg, fds, ops};
use libc::msghdr;

/// Descriptors have come over a Unix socket: some may be of sockets of IX.
///
/// # Safety
/// A message that Linux has filled.
pub unsafe fn descriptors_came(message: &msghdr) {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { cmsg::rights(message) };
    if !fds.is_empty() {
        let mut core = lock();
        fds.into_iter().for_each(|fd| ops::adopt(&mut core, fd));
    }
}

/// Descriptors go over a Unix socket: notes those of sockets of IX, so that the process that
/// receives one finds its socket.
///
/// # Safety
/// The program's own message.
pub unsafe fn descriptors_go(message: *const msghdr) {
    if !is_possible(message, size_of::<msghdr>()) {
        return;
    }
    // SAFETY: a structure of the program's, which waits for this call.
    let message = unsafe { &*message };
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { cmsg::rights(message) };
    if fds.iter().any(|fd| fds::is_ours(*fd)) {
        let mut core = lock();
        let named: Vec<u32> =
            fds.into_iter().filter_map(|fd| ops::name(&mut core, fd, true)).collect();
        drop(ops::leaves_word(core, &named));
    }
}
