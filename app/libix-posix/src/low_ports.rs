//! Ports of Linux that only root of the machine may bind. A program that is root of a user
//! namespace asks its broker to bind them.
use crate::{family, fds, mem, real};
use core::mem::{offset_of, zeroed};
use core::ptr::{addr_of_mut, null_mut};
use core::sync::atomic::{AtomicI32, Ordering};
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// The descriptor on which the broker is asked; negative: the program has none.
static BROKER: AtomicI32 = AtomicI32::new(-1);
/// Longest wait for the broker, ms.
const PATIENCE_MS: c_int = 2000;

/// The broker can be asked on this descriptor, which ends here.
pub fn offer(fd: RawFd) {
    // Without a descriptor for it low ports stay root's.
    BROKER.store(fds::copy_out_of_the_way(fd).unwrap_or(-1), Ordering::Relaxed);
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// The descriptor; negative: there is none.
pub fn broker() -> RawFd {
    BROKER.load(Ordering::Relaxed)
}

/// Linux's `bind`, by the broker where the program has no right to the port.
///
/// # Safety
/// As `bind` demands.
pub unsafe fn bind(fd: RawFd, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let bound = unsafe { real::bind(fd, address, len) };
    let broker = BROKER.load(Ordering::Relaxed);
    if bound == 0 || broker < 0 || real::errno() != libc::EACCES {
        return bound;
    }
    // SAFETY: the caller's promise: an address and its length.
    let port = unsafe { mem::read_address(address, len) }.map_or(0, |at: SocketAddr| at.port());
    if port == 0 {
        return bound;
    }
    // SAFETY: as above.
    let errno = unsafe { ask(broker, fd, address, len) };
    if errno == 0 {
        return 0;
    }
    real::set_errno(errno);
    -1
}

/// Has the broker keep connections that come in by IX's interface from a socket of Linux beside
/// IX's, before it is bound to this address. It cannot where the program has no broker to ask: then
/// a peer that is too early hears Linux. `EADDRINUSE`: another run has the port there.
pub fn keep_from_network(fd: RawFd, at: SocketAddr) -> Result<(), c_int> {
    let broker = BROKER.load(Ordering::Relaxed);
    if broker < 0 {
        return Ok(());
    }
    let [high, low] = at.port().to_be_bytes();
    let [v4, v6] = family::of(at.ip());
    let port = [high, low, u8::from(v4) | u8::from(v6) << 1];
    // SAFETY: three bytes of ours.
    match unsafe { ask(broker, fd, port.as_ptr().cast(), port.len() as socklen_t) } {
        libc::EADDRINUSE => Err(libc::EADDRINUSE),
        _ => Ok(()),
    }
}

/// Has the broker bind a socket; returns an errno, or 0. By system calls, because the C library's
/// names are this library's.
///
/// # Safety
/// `address` is readable for `len` bytes.
unsafe fn ask(broker: RawFd, fd: RawFd, address: *const sockaddr, len: socklen_t) -> c_int {
    let mut ends: [RawFd; 2] = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: fills the array.
    if unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0
    {
        return libc::EACCES;
    }
    let [ours, theirs] = ends;
    // SAFETY: the caller's promise.
    let is_sent = unsafe { send(broker, [fd, theirs], address, len) };
    // SAFETY: ours alone. From here on the broker has the only copy, whose end ends the wait.
    unsafe { libc::syscall(libc::SYS_close, theirs) };
    let mut errno: c_int = libc::EACCES;
    if is_sent {
        let mut poll = libc::pollfd { fd: ours, events: libc::POLLIN, revents: 0 };
        let mut answer: c_int = 0;
        // SAFETY: fills a local.
        let wait = || unsafe {
            libc::syscall(libc::SYS_poll, addr_of_mut!(poll), 1, PATIENCE_MS) < 0
                && real::errno() == libc::EINTR
        };
        // A signal does not end the wait.
        core::iter::repeat_with(wait).take_while(|again| *again).for_each(drop);
        // SAFETY: fills a local.
        unsafe {
            let flags = libc::MSG_DONTWAIT;
            let (to, bytes, nobody) = (addr_of_mut!(answer), size_of::<c_int>(), null_mut::<u8>());
            let n = libc::syscall(libc::SYS_recvfrom, ours, to, bytes, flags, nobody, nobody);
            if n == bytes as i64 {
                errno = answer;
            }
        }
    }
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, ours) };
    errno
}

/// One message of the descriptors of two files.
#[repr(C)]
struct Rights {
    header: libc::cmsghdr,
    fds: [RawFd; 2],
}

/// # Safety
/// `address` is readable for `len` bytes.
unsafe fn send(to: RawFd, fds: [RawFd; 2], address: *const sockaddr, len: socklen_t) -> bool {
    const { assert!(offset_of!(Rights, fds) == size_of::<libc::cmsghdr>()) };
    // SAFETY: all-zero bytes are valid structures of numbers and null.
    let (mut rights, mut message): (Rights, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    rights.header.cmsg_level = libc::SOL_SOCKET;
    rights.header.cmsg_type = libc::SCM_RIGHTS;
    rights.header.cmsg_len = size_of::<Rights>();
    rights.fds = fds;
    // Longer ones are of the same families, with room behind.
    let len = (len as usize).min(size_of::<libc::sockaddr_in6>());
    let mut part = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: len };
    (message.msg_iov, message.msg_iovlen) = (addr_of_mut!(part), 1);
    (message.msg_control, message.msg_controllen) =
        (addr_of_mut!(rights).cast(), size_of::<Rights>());
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points to locals and to the caller's address, which are only read.
    unsafe { libc::syscall(libc::SYS_sendmsg, to, addr_of_mut!(message), flags) >= 0 }
}
