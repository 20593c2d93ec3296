//! Calls that read and write.
use super::waits::duration;
use super::{answer, fail, passing};
use crate::fds::{self, Entry};
use crate::mem::{self, Gather, Scatter, is_possible};
use crate::ops::{Instead, Outcome};
use crate::receive::{self, Received};
use crate::send::Destination;
use crate::{cancel, cmsg, family, log, real, send, signals};
use core::ptr::null_mut;
use libc::{
    MSG_NOSIGNAL, MSG_WAITFORONE, c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec,
};
use std::time::Instant;

fn piece(at: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: len.min(isize::MAX as usize) }]
}

/// The return value of a call that writes. A broken pipe also raises a signal.
fn sent(
    fd: c_int,
    outcome: Outcome<usize>,
    flags: c_int,
    on_linux: impl FnOnce() -> isize,
) -> isize {
    if outcome == Err(Instead::Errno(libc::EPIPE)) && flags & MSG_NOSIGNAL == 0 {
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    answer(fd, outcome, on_linux)
}

/// `recvfrom` by the system call itself: the C library's is a cancellation point.
///
/// # Safety
/// As `recvfrom`.
unsafe fn receive_plainly(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    (from, from_len): (*mut sockaddr, *mut socklen_t),
) -> isize {
    real::own_call();
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, from, from_len) as isize }
}

/// The same for `recvmsg`.
///
/// # Safety
/// As `recvmsg`.
unsafe fn receive_message_plainly(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    real::own_call();
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) as isize }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the C library's `read` gets the program's own arguments.
    let on_linux = || unsafe { real::read(fd, to, len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        if len == 0 && matches!(fds::get(fd), Entry::Socket(_)) {
            return 0;
        }
        let piece = piece(to, len);
        // SAFETY: the program lets this call write to its pieces.
        let received = receive::receive(fd, unsafe { Scatter::new(&piece) }, 0, |flags| {
            // SAFETY: the program's own arguments.
            unsafe { receive_plainly(fd, to, len, flags, (null_mut(), null_mut())) }
        });
        answer(fd, received.map(|received| received.bytes), on_linux)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    if len > room {
        log::fatal("a program reads beyond its buffer");
    }
    // SAFETY: `read` demands no more than this function does.
    unsafe { read(fd, to, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the C library's `readv` gets the program's own arguments.
    let on_linux = || unsafe { real::readv(fd, to, count) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        // SAFETY: the program passes an array of this many pieces.
        let pieces = match unsafe { mem::pieces(to, count as usize, libc::EINVAL) } {
            Ok(pieces) => pieces,
            Err(errno) => return fail(errno),
        };
        // SAFETY: the program lets this call write to its pieces.
        let scatter = unsafe { Scatter::new(pieces) };
        if scatter.left() == 0 {
            return 0;
        }
        let received = receive::receive(fd, scatter, 0, |flags| {
            // SAFETY: all-zero bytes are a message without anything.
            let mut message: msghdr = unsafe { core::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (to.cast_mut(), count as usize);
            // SAFETY: the program's own pieces.
            unsafe { receive_message_plainly(fd, &raw mut message, flags) }
        });
        answer(fd, received.map(|received| received.bytes), on_linux)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the C library's `recv` gets the program's own arguments.
    let on_linux = || unsafe { real::recv(fd, to, len, flags) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        let piece = piece(to, len);
        // SAFETY: the program lets this call write to its pieces.
        let received = receive::receive(fd, unsafe { Scatter::new(&piece) }, flags, |more| {
            // SAFETY: the program's own arguments.
            unsafe { receive_plainly(fd, to, len, flags | more, (null_mut(), null_mut())) }
        });
        answer(fd, received.map(|received| received.bytes), on_linux)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        log::fatal("a program receives beyond its buffer");
    }
    // SAFETY: `recv` demands no more than this function does.
    unsafe { recv(fd, to, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the C library's `recvfrom` gets the program's own arguments.
    let on_linux = || unsafe { real::recvfrom(fd, to, len, flags, from, from_len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        let piece = piece(to, len);
        // SAFETY: the program lets this call write to its pieces.
        let received = receive::receive(fd, unsafe { Scatter::new(&piece) }, flags, |more| {
            // SAFETY: the program's own arguments.
            unsafe { receive_plainly(fd, to, len, flags | more, (from, from_len)) }
        });
        if let Ok(Received { from: sender, ipv6, .. }) = received {
            // A connection has no sender, so Linux does not look where it would be.
            // SAFETY: the program's own length, which waits for this call.
            let room = unsafe {
                match sender {
                    Some(_) => mem::check_room(from, from_len),
                    None => mem::check_length(from_len),
                }
            };
            if let Err(errno) = room
                && !from.is_null()
            {
                return fail(errno);
            }
            // SAFETY: the program has room for an address there, or passes null.
            unsafe { write_sender(sender, ipv6, from, from_len) };
        }
        answer(fd, received.map(|received| received.bytes), on_linux)
    })
}

/// # Safety
/// As `mem::write_address`.
unsafe fn write_sender(
    sender: Option<std::net::SocketAddr>,
    ipv6: bool,
    to: *mut sockaddr,
    len: *mut socklen_t,
) {
    match sender {
        // SAFETY: the program has room for an address there, or passes null.
        Some(sender) => unsafe { mem::write_address(sender, ipv6, to, len) },
        // As on Linux, a connection has no sender to report.
        // SAFETY: the program's own length, which waits for this call.
        None if !len.is_null() => unsafe { *len = 0 },
        None => {}
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if len > room {
        log::fatal("a program receives beyond its buffer");
    }
    // SAFETY: `recvfrom` demands no more than this function does.
    unsafe { recvfrom(fd, to, len, flags, from, from_len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if !fds::is_ours(fd) {
        // SAFETY: the C library's `recvmsg` gets the program's own arguments.
        let received = unsafe { real::recvmsg(fd, message, flags) };
        if received >= 0 {
            // SAFETY: Linux has just written to it.
            unsafe { passing::descriptors_came(&*message) };
        }
        return received;
    }
    // SAFETY: `receive_message` demands no more than this function does.
    cancel::point(|| unsafe { receive_message(fd, message, flags) })
}

/// # Safety
/// As `recvmsg`.
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the C library's `recvmsg` gets the program's own arguments.
    let on_linux = move || unsafe { real::recvmsg(fd, message, flags) };
    if !is_possible(message, size_of::<msghdr>()) {
        return fail(libc::EFAULT);
    }
    // SAFETY: a structure of the program's, which waits for this call.
    let header = unsafe { &mut *message };
    if header.msg_namelen > i32::MAX as socklen_t {
        return fail(libc::EINVAL);
    }
    // SAFETY: the program passes an array of this many pieces.
    let pieces = match unsafe { mem::pieces(header.msg_iov, header.msg_iovlen, libc::EMSGSIZE) } {
        Ok(pieces) => pieces,
        Err(errno) => return fail(errno),
    };
    // SAFETY: the program lets this call write to its pieces.
    let received = receive::receive(fd, unsafe { Scatter::new(pieces) }, flags, |more| {
        // SAFETY: the program's own message.
        unsafe { receive_message_plainly(fd, message, flags | more) }
    });
    if let Ok(received) = received {
        let len = &raw mut header.msg_namelen;
        // SAFETY: the program has room for an address there, or passes null.
        unsafe { write_sender(received.from, received.ipv6, header.msg_name.cast(), len) };
        header.msg_flags = received.flags | flags & libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the program has room there as the header says.
        unsafe { cmsg::write(header, &received.receive_control, received.ipv6) };
    }
    answer(fd, received.map(|received| received.bytes), on_linux)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !fds::is_ours(fd) {
        // SAFETY: the C library's `recvmmsg` gets the program's own arguments.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    cancel::point(|| {
        // SAFETY: null, or a time of the program's.
        let until = match unsafe { duration(timeout) } {
            Ok(time) => time.and_then(|time| Instant::now().checked_add(time)),
            Err(errno) => return fail(errno) as c_int,
        };
        if count > 0 && !is_possible(messages, count as usize * size_of::<mmsghdr>()) {
            return fail(libc::EFAULT) as c_int;
        }
        let mut flags = flags;
        let wait_for_one = flags & MSG_WAITFORONE != 0;
        flags &= !MSG_WAITFORONE;
        let mut index = 0;
        while index < count {
            // SAFETY: below `count`, which says how many messages there are.
            let message = unsafe { &mut *messages.add(index as usize) };
            // SAFETY: `receive_message` demands no more than this function does.
            let received = unsafe { receive_message(fd, &mut message.msg_hdr, flags) };
            if received < 0 {
                break;
            }
            message.msg_len = received as c_uint;
            index += 1;
            // A further wait would forget that the thread was interrupted or cancelled.
            if signals::interrupted() != 0 {
                break;
            }
            if wait_for_one {
                flags |= libc::MSG_DONTWAIT;
            }
            // As on Linux, the clock is read between datagrams: it ends no wait for one.
            let Some(until) = until else { continue };
            let left = until.saturating_duration_since(Instant::now());
            // SAFETY: not null, because there is a limit.
            let timeout = unsafe { &mut *timeout };
            timeout.tv_sec = left.as_secs() as i64;
            timeout.tv_nsec = left.subsec_nanos().into();
            if left.is_zero() {
                break;
            }
        }
        if index == 0 && count > 0 { -1 } else { index as c_int }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the C library's `write` gets the program's own arguments.
    let on_linux = || unsafe { real::write(fd, from, len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        let piece = piece(from, len);
        // SAFETY: the program does not change its pieces during this call.
        sent(fd, send::send(fd, unsafe { Gather::new(&piece) }, 0, Ok(None)), 0, on_linux)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the C library's `writev` gets the program's own arguments.
    let on_linux = || unsafe { real::writev(fd, from, count) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        // SAFETY: the program passes an array of this many pieces.
        let pieces = match unsafe { mem::pieces(from, count as usize, libc::EINVAL) } {
            Ok(pieces) => pieces,
            Err(errno) => return fail(errno),
        };
        // SAFETY: the program does not change its pieces during this call.
        sent(fd, send::send(fd, unsafe { Gather::new(pieces) }, 0, Ok(None)), 0, on_linux)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the C library's `send` gets the program's own arguments.
    let on_linux = || unsafe { real::send(fd, from, len, flags) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        let piece = piece(from, len);
        // SAFETY: the program does not change its pieces during this call.
        sent(fd, send::send(fd, unsafe { Gather::new(&piece) }, flags, Ok(None)), flags, on_linux)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the C library's `sendto` gets the program's own arguments.
    let on_linux = || unsafe { real::sendto(fd, from, len, flags, to, to_len) };
    if !fds::is_ours(fd) {
        return on_linux();
    }
    cancel::point(|| {
        // SAFETY: the program passes an address and its length, or null.
        let to = match unsafe { destination(to, to_len) } {
            Ok(to) => to,
            Err(errno) => return fail(errno),
        };
        let piece = piece(from, len);
        // SAFETY: the program does not change its pieces during this call.
        sent(fd, send::send(fd, unsafe { Gather::new(&piece) }, flags, to), flags, on_linux)
    })
}

/// The errno of an address that Linux does not even read is that of the call.
///
/// # Safety
/// As `mem::read_address`.
unsafe fn destination(to: *const sockaddr, len: socklen_t) -> Result<Destination, i32> {
    if to.is_null() || len == 0 {
        return Ok(Ok(None));
    }
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(libc::EINVAL);
    }
    if !is_possible(to, len as usize) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes an address and its length.
    Ok(match unsafe { mem::family(to, len) } {
        None | Some(libc::AF_UNSPEC) => Ok(None),
        // SAFETY: the program passes an address and its length.
        Some(_) => unsafe {
            let flow_info = mem::flow_info(to, len);
            mem::read_address(to, len).map(|at| Some(family::with_flow_info(at, flow_info)))
        },
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if !fds::is_ours(fd) {
        // SAFETY: the program's own message; the C library's `sendmsg` gets its own arguments.
        return unsafe {
            passing::descriptors_go(message);
            real::sendmsg(fd, message, flags)
        };
    }
    // SAFETY: `send_message` demands no more than this function does.
    cancel::point(|| unsafe { send_message(fd, message, flags) })
}

/// # Safety
/// As `sendmsg`.
unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the C library's `sendmsg` gets the program's own arguments.
    let on_linux = || unsafe { real::sendmsg(fd, message, flags) };
    if !is_possible(message, size_of::<msghdr>()) {
        return fail(libc::EFAULT);
    }
    // SAFETY: a structure of the program's, which waits for this call.
    let header = unsafe { &*message };
    // SAFETY: the program passes an array of this many pieces.
    let pieces = match unsafe { mem::pieces(header.msg_iov, header.msg_iovlen, libc::EMSGSIZE) } {
        Ok(pieces) => pieces,
        Err(errno) => return fail(errno),
    };
    // Linux reads only the beginning of a longer one, and refuses a negative length.
    let len = match header.msg_namelen {
        len if (len as i32) < 0 => len,
        len => len.min(size_of::<libc::sockaddr_storage>() as socklen_t),
    };
    // SAFETY: the program passes an address and its length, or null.
    let to = match unsafe { destination(header.msg_name.cast(), len) } {
        Ok(to) => to,
        Err(errno) => return fail(errno),
    };
    // SAFETY: a message of the program's, which waits for this call.
    let send_control = |family| unsafe { cmsg::read(header, family) };
    // SAFETY: the program does not change its pieces during this call.
    let gather = unsafe { Gather::new(pieces) };
    sent(fd, send::send_as(fd, gather, flags, to, send_control), flags, on_linux)
}

/// How many bytes a message has.
///
/// # Safety
/// `send_message` has sent it.
unsafe fn len_of(header: &msghdr) -> usize {
    // SAFETY: the caller's promise.
    let pieces = unsafe { mem::pieces(header.msg_iov, header.msg_iovlen, libc::EMSGSIZE) };
    pieces.map_or(0, |pieces| pieces.iter().map(|piece| piece.iov_len).sum())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !fds::is_ours(fd) {
        // SAFETY: the C library's `sendmmsg` gets the program's own arguments.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    cancel::point(|| {
        let count = count.min(libc::UIO_MAXIOV as c_uint);
        if count > 0 && !is_possible(messages, count as usize * size_of::<mmsghdr>()) {
            return fail(libc::EFAULT) as c_int;
        }
        for index in 0..count {
            // SAFETY: below `count`, which says how many messages there are.
            let message = unsafe { &mut *messages.add(index as usize) };
            // SAFETY: `send_message` demands no more than this function does.
            let sent = unsafe { send_message(fd, &message.msg_hdr, flags) };
            if sent < 0 {
                return if index > 0 { index as c_int } else { -1 };
            }
            message.msg_len = sent as c_uint;
            // The rest of this message comes before the next one; and a further wait would forget
            // that the thread was interrupted or cancelled.
            // SAFETY: the array that was just sent from.
            let whole = unsafe { len_of(&message.msg_hdr) };
            if (sent as usize) < whole || signals::interrupted() != 0 {
                return (index + 1) as c_int;
            }
        }
        count as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the C library's `sendfile` gets the program's own arguments.
    let on_linux = || unsafe { real::sendfile(out, input, offset, count) };
    if !fds::is_ours(out) || receive::queued(out) == Err(Instead::Linux) {
        return on_linux();
    }
    // As on Linux, where the input must be a file.
    if fds::is_ours(input) {
        return fail(libc::EINVAL);
    }
    // SAFETY: `copy_file` demands no more than this function does.
    cancel::no_point(|| unsafe { copy_file(out, input, offset, count) })
}

/// # Safety
/// As `sendfile`.
unsafe fn copy_file(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut total = 0;
    let mut buffer = vec![0u8; count.min(128 << 10)];
    while total < count {
        let len = buffer.len().min(count - total);
        // SAFETY: null, or an offset of the program's, which waits for this call.
        let at = unsafe { offset.as_ref() }.copied();
        // The C library's functions are cancellation points, and `sendfile` is none.
        // SAFETY: our own buffer with its length.
        let n = unsafe {
            match at {
                Some(at) => libc::syscall(libc::SYS_pread64, input, buffer.as_mut_ptr(), len, at),
                None => libc::syscall(libc::SYS_read, input, buffer.as_mut_ptr(), len),
            }
        } as ssize_t;
        if n <= 0 {
            return if total > 0 || n == 0 { total as ssize_t } else { -1 };
        }
        let piece = piece(buffer.as_ptr().cast(), n as usize);
        // SAFETY: the program does not change its pieces during this call.
        let gather = unsafe { Gather::new(&piece) };
        let result = sent(out, send::send(out, gather, 0, Ok(None)), 0, || -1);
        let taken = result.max(0);
        // SAFETY: null, or an offset of the program's, which waits for this call.
        match unsafe { offset.as_mut() } {
            Some(offset) => *offset += taken as off_t,
            // Bytes that were not sent are read again.
            None if taken < n => {
                // SAFETY: no pointer, or our own buffer with its length.
                unsafe { libc::lseek(input, (taken - n) as off_t, libc::SEEK_CUR) };
            }
            None => {}
        }
        total += taken as usize;
        if result < n {
            return if total > 0 { total as ssize_t } else { -1 };
        }
        // The next wait would forget it.
        if signals::interrupted() != 0 {
            break;
        }
    }
    total as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: `sendfile` demands no more than this function does.
    unsafe { sendfile(out, input, offset, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    input: c_int,
    in_offset: *mut off_t,
    out: c_int,
    out_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let ours = |fd| fds::is_ours(fd) && receive::queued(fd) != Err(Instead::Linux);
    if ours(input) || ours(out) {
        let text = "splice does not work with sockets of IX and returns EINVAL, so that the program \
                    copies instead; if it does not, switch splicing off in its configuration";
        log::once(log::Once::Splice, text);
        return fail(libc::EINVAL);
    }
    // SAFETY: the C library's `splice` gets the program's own arguments.
    unsafe { real::splice(input, in_offset, out, out_offset, len, flags) }
}
