//! Sockets: opening, options, and messages with descriptors.
use crate::process::Process;
use crate::{check, fd, retry};
use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

#[cfg(feature = "host")]
mod frames;
#[cfg(feature = "host")]
mod groups;
#[cfg(feature = "host")]
mod netlink;
#[cfg(feature = "host")]
mod options;
#[cfg(feature = "host")]
mod unix;
#[cfg(feature = "host")]
pub use {frames::*, groups::*, netlink::*, options::*, unix::*};

/// A value that any bytes make, without padding: what the kernel fills in for an option.
///
/// # Safety
/// Every bit pattern is a value, and no byte of one is padding.
pub unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers of 64 bits only.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: integers of 64 bits only.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: one integer.
unsafe impl Plain for libc::xdp_options {}

/// Opens a socket, close-on-exec (socket(2)).
pub fn open(family: i32, kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory involved.
    let new = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor that no other value owns.
    Ok(unsafe { fd::own(new) })
}

/// Sets a socket option to a number (setsockopt(2)). An option whose value is longer is an error:
/// no address fits into a number, so the kernel uses no memory of ours.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel copies the value and keeps nothing.
    unsafe { set(fd, level, option, &value) }
}

/// Sets a socket option to any value.
///
/// # Safety
/// The option takes this type, without an address in it.
unsafe fn set<T>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` is `len` readable bytes for the length of the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len) }).map(drop)
}

/// Reads a socket option into a plain value; a shorter one of the kernel's leaves the rest zero.
/// The kernel finds zeroes there, so it follows no address (getsockopt(2)).
pub fn get_option<T: Plain>(fd: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<T> {
    // SAFETY: any bytes make a `T`.
    let mut value: T = unsafe { zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is `len` writable bytes, and any bytes make a `T`.
    let ret = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len)
    };
    check(ret).map(|_| value)
}

/// The user of the process at the other end of a Unix connection, when it connected or began to
/// listen (unix(7), SO_PEERCRED). A user that this namespace lacks is another one here.
pub fn peer_user(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_option::<Credentials>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED).map(|who| who.0.uid)
}

/// The process at the other end of a Unix connection, when it connected (unix(7), SO_PEERPIDFD).
/// Before Linux 6.5 it is the process that has its number now.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<Process> {
    const SO_PEERPIDFD: i32 = 77;
    let pid = get_option::<Credentials>(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)?.0.pid;
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    match get_option::<i32>(socket, libc::SOL_SOCKET, SO_PEERPIDFD) {
        // SAFETY: a new descriptor (close-on-exec) that no other value owns.
        Ok(new) => Ok(Process::of(pid, unsafe { fd::own(new) })),
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Process::open(pid),
        Err(e) => Err(e),
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Credentials(libc::ucred);

// SAFETY: integers of 32 bits only.
unsafe impl Plain for Credentials {}

/// Closing resets the connection, which leaves no TIME-WAIT behind (socket(7), SO_LINGER).
pub fn reset_on_close(fd: &impl AsFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the type of this option; two numbers.
    unsafe { set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger) }
}

/// Bytes that were written to a connection and that its peer has not acknowledged (tcp(7),
/// SIOCOUTQ).
pub fn unacknowledged_bytes(fd: &impl AsFd) -> io::Result<usize> {
    let mut bytes = 0i32;
    // SAFETY: SIOCOUTQ, the same number as TIOCOUTQ, writes one integer.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes.max(0) as usize)
}

/// Binds to a local address of the Internet (bind(2)).
pub fn bind_inet(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (address, len) = inet_address(address);
    // SAFETY: `address` is `len` readable bytes for the length of the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Connects to an address of the Internet; on a socket that does not block it only begins to
/// (connect(2)).
pub fn connect_inet(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (address, len) = inet_address(address);
    // SAFETY: `address` is `len` readable bytes for the length of the call.
    let ret = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) };
    match check(ret) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(()),
    }
}

/// Listens with room for `backlog` connections that wait to be accepted (listen(2)).
pub fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// An address of the Internet as the kernel takes it.
fn inet_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero bytes are a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let target = &raw mut storage;
    let len = match address {
        SocketAddr::V4(v4) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large and aligned enough for every address.
            unsafe { target.cast::<libc::sockaddr_in>().write(sin) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { target.cast::<libc::sockaddr_in6>().write(sin6) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

/// The two ends of a connection between processes, close-on-exec (socketpair(2)); `kind` as
/// `SOCK_SEQPACKET`.
pub fn pair(kind: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: fills the array.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: two new descriptors that no other value owns.
    let [one, other] = fds.map(|new| unsafe { fd::own(new) });
    Ok((one, other))
}

/// The next connection of a listener, close-on-exec and never blocking.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let none = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no address is asked for.
    let new = check(unsafe { libc::accept4(listener.as_raw_fd(), none.0, none.1, flags) })?;
    // SAFETY: a new descriptor that no other value owns.
    Ok(unsafe { fd::own(new) })
}

/// Descriptors in one message at most (the kernel's SCM_MAX_FD).
pub const MESSAGE_FDS_MAX: usize = 253;

/// The option that has each message bring a descriptor of the process that sent it, and the kind of
/// control data that this descriptor comes in (Linux 6.5).
const SO_PASSPIDFD: libc::c_int = 76;
/// `SO_PASSRIGHTS` of Linux, which `libc` lacks.
const SO_PASSRIGHTS: libc::c_int = 83;
const SCM_PIDFD: libc::c_int = 4;

/// Room for the descriptors of a message and for who sent it, aligned for their headers.
#[repr(C, align(8))]
struct Control([u8; 1088]);

const _: () = {
    const fn space(bytes: usize) -> u32 {
        // SAFETY: computes sizes only.
        unsafe { libc::CMSG_SPACE(bytes as u32) }
    }
    let one = size_of::<RawFd>();
    let all = space(MESSAGE_FDS_MAX * one) + space(size_of::<libc::ucred>()) + space(one);
    assert!(size_of::<Control>() >= all as usize);
};

/// Sends a message with copies of descriptors, without a SIGPIPE; `flags` as `MSG_DONTWAIT`.
/// A signal does not end it (sendmsg(2)).
pub fn send_with_fds(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: i32,
) -> io::Result<usize> {
    if fds.len() > MESSAGE_FDS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid message header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if !fds.is_empty() {
        let fds_bytes = size_of_val(fds) as u32;
        const { assert!(size_of::<BorrowedFd<'_>>() == size_of::<RawFd>()) };
        header.msg_control = (&raw mut control).cast();
        // SAFETY: computes sizes only.
        let (space, len) = unsafe { (libc::CMSG_SPACE(fds_bytes), libc::CMSG_LEN(fds_bytes)) };
        header.msg_controllen = space as usize;
        // SAFETY: the control buffer is aligned, zeroed, and has room for one header and the
        // numbers.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = len as usize;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let flags = flags | libc::MSG_NOSIGNAL;
    retry(|| {
        // SAFETY: the header points to buffers that live across the call.
        check(unsafe { libc::sendmsg(to.as_raw_fd(), &raw const header, flags) })
    })
    .map(|n| n as usize)
}

/// A message that came in.
#[derive(Debug)]
pub struct Message {
    /// Bytes of it in the buffer.
    pub bytes: usize,
    /// The descriptors that came with it, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The process that sent it, as the kernel says, if [`tell_senders`] asked for it. `None` as
    /// well when it is gone: it has ended and was waited for.
    pub sender: Option<Process>,
    /// The sender's real user when it sent the message, likewise.
    pub sender_user: Option<u32>,
    /// It was longer than the buffer, or had more descriptors than [`MESSAGE_FDS_MAX`].
    pub is_cut: bool,
}

/// From now on each message that comes in says which process sent it (unix(7), SO_PASSCRED), by a
/// descriptor (SO_PASSPIDFD). [`next_brings_fds`] is of no use for such a socket. Returns whether
/// the kernel has such descriptors; if not, a sender is opened by its number when the message is
/// taken, and may be another process by then that got the same number.
pub fn tell_senders(fd: BorrowedFd<'_>) -> io::Result<bool> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
    match set_option(fd, libc::SOL_SOCKET, SO_PASSPIDFD, 1) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        result => result.map(|()| true),
    }
}

/// From now on no process can send descriptors to this socket (SO_PASSRIGHTS). A process that takes
/// a message closes its descriptors, and to close one can last: a socket that lingers, a file of a
/// server in user space. Returns whether the kernel can refuse them (Linux 6.16).
pub fn refuse_descriptors(fd: BorrowedFd<'_>) -> io::Result<bool> {
    match set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Takes the next message with its descriptors; `flags` as `MSG_DONTWAIT`. A signal does not end it
/// (recvmsg(2)).
pub fn receive_with_fds(
    from: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: i32,
) -> io::Result<Message> {
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid message header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    let bytes = retry(|| {
        // SAFETY: the header points to buffers that live across the call.
        check(unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, flags) })
    })? as usize;
    // SAFETY: the kernel filled the header and the control buffer just now.
    let Contents { fds, sender, user: sender_user, process } = unsafe { contents(&header) };
    let sender = match (sender, process) {
        (Some(pid), Some(Ok(fd))) => Some(Process::of(pid, fd)),
        // A kernel without such descriptors.
        (Some(pid), None) => Process::open(pid).ok(),
        _ => None,
    };
    let is_cut = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(Message { bytes, fds, sender, sender_user, is_cut })
}

/// Whether the next message brings descriptors; it stays where it is. False also when none waits
/// (recvmsg(2), MSG_PEEK).
pub fn next_brings_fds(from: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all-zero bytes are a valid message header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    // Without room for control data the kernel makes no descriptors, and reports that there were
    // some.
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let peeked = retry(|| {
        // SAFETY: the header points to a byte that lives across the call.
        check(unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, flags) })
    });
    peeked.is_ok() && header.msg_flags & libc::MSG_CTRUNC != 0
}

/// What was in a received control buffer.
#[derive(Default)]
struct Contents {
    fds: Vec<OwnedFd>,
    /// The sender's number. A process that is not seen from here has none.
    sender: Option<u32>,
    /// The sender's user.
    user: Option<u32>,
    /// The sender's descriptor; an error if it is gone already.
    process: Option<io::Result<OwnedFd>>,
}

/// Takes what is in a received control buffer.
///
/// # Safety
/// `header` was filled by `recvmsg`, and no value owns its descriptors yet.
unsafe fn contents(header: &libc::msghdr) -> Contents {
    let mut contents = Contents::default();
    // SAFETY: the caller's promise; the macros walk within `msg_controllen`.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(header);
        while let Some(cmsg) = entry.as_ref() {
            let bytes = cmsg.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(entry);
            match (cmsg.cmsg_level, cmsg.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    let of = data.cast::<libc::ucred>().read_unaligned();
                    contents.sender = u32::try_from(of.pid).ok().filter(|pid| *pid != 0);
                    contents.user = Some(of.uid);
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= size_of::<RawFd>() => {
                    let number = data.cast::<RawFd>().read_unaligned();
                    contents.process = Some(match number {
                        0.. => Ok(fd::own(number)),
                        error => Err(io::Error::from_raw_os_error(-error)),
                    });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for i in 0..bytes / size_of::<RawFd>() {
                        contents.fds.push(fd::own(data.cast::<RawFd>().add(i).read_unaligned()));
                    }
                }
                _ => {}
            }
            entry = libc::CMSG_NXTHDR(header, entry);
        }
    }
    contents
}

/// Sends bytes without descriptors and without a SIGPIPE (send(2)).
pub fn send(to: BorrowedFd<'_>, bytes: &[u8], flags: i32) -> io::Result<usize> {
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` is readable for the length of the call.
    let n =
        check(unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })?;
    Ok(n as usize)
}

/// Takes the next bytes, and returns how many (recv(2)).
pub fn receive(from: BorrowedFd<'_>, to: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: `to` is writable for the length of the call.
    let n =
        check(unsafe { libc::recv(from.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), flags) })?;
    Ok(n as usize)
}

/// From now on the socket hears nothing that comes in by the interface of this number
/// (SO_ATTACH_FILTER in socket(7)).
pub fn refuse_from(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    /// The interface that a packet has come in by: `SKF_AD_OFF + SKF_AD_IFINDEX` (linux/filter.h).
    const INTERFACE: u32 = 0xffff_f008;
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD, 0, 0, INTERFACE),
        step(JUMP_EQUAL, 0, 1, ifindex),
        step(RETURN, 0, 0, 0),
        step(RETURN, 0, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the option takes this type; the steps, whose address it has, outlive the call, and
    // the kernel copies them.
    unsafe { set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{PollFd, poll};
    use std::time::Duration;

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let (kind, path) = (libc::SOCK_SEQPACKET, format!("@ix-sys-test-{}", std::process::id()));
        assert!(connect_unix(kind, &path).is_err());
        let listener = listen_unix(kind, &path).unwrap();
        assert_eq!(listen_unix(kind, &path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let client = connect_unix(kind, &path).unwrap();
        let server = accept(listener.as_fd()).unwrap();
        let mut buffer = [0; 8];
        let none = receive_with_fds(server.as_fd(), &mut buffer, libc::MSG_DONTWAIT);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let many = [listener.as_fd(); MESSAGE_FDS_MAX];
        send_with_fds(client.as_fd(), b"many", &many, 0).unwrap();
        send_with_fds(client.as_fd(), b"much too long", &[], 0).unwrap();
        assert!(next_brings_fds(server.as_fd()));
        let message = receive_with_fds(server.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!((&buffer[..message.bytes], message.fds.len()), (&b"many"[..], MESSAGE_FDS_MAX));
        assert!(!message.is_cut);
        assert!(!next_brings_fds(server.as_fd()), "a message without");
        assert!(receive_with_fds(server.as_fd(), &mut buffer, 0).unwrap().is_cut);
        assert!(!next_brings_fds(server.as_fd()), "no message");
        drop(client);
        // A child that another test starts has a copy until it executes its program.
        let mut ends = [PollFd::new(&server, libc::POLLIN)];
        assert_eq!(poll(&mut ends, Some(Duration::from_secs(10))).unwrap(), 1);
        assert_eq!(receive(server.as_fd(), &mut buffer, 0).unwrap(), 0);
    }

    #[test]
    fn the_kernel_tells_who_sent_a_message() {
        let (ours, theirs) = pair(libc::SOCK_SEQPACKET).unwrap();
        let mut buffer = [0; 8];
        send_with_fds(theirs.as_fd(), b"before", &[], 0).unwrap();
        assert!(receive_with_fds(ours.as_fd(), &mut buffer, 0).unwrap().sender.is_none());
        tell_senders(ours.as_fd()).unwrap();
        let many = [theirs.as_fd(); MESSAGE_FDS_MAX];
        send_with_fds(theirs.as_fd(), b"after", &many, 0).unwrap();
        let message = receive_with_fds(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!(message.sender_user, Some(crate::process::user_id()));
        let sender = message.sender.unwrap();
        assert_eq!(sender.pid(), std::process::id());
        sender.signal(0).unwrap();
        assert_eq!((message.fds.len(), message.is_cut), (MESSAGE_FDS_MAX, false));
    }

    /// The number of a process that was waited for may be another's: nobody is taken for it.
    #[test]
    fn a_sender_that_is_gone_is_nobody() {
        let (ours, theirs) = pair(libc::SOCK_SEQPACKET).unwrap();
        if !tell_senders(ours.as_fd()).unwrap() {
            return; // Linux before 6.5.
        }
        let mut child = std::process::Command::new("sh")
            .args(["-c", "printf hello"])
            .stdout(theirs)
            .spawn()
            .unwrap();
        child.wait().unwrap();
        let mut buffer = [0; 8];
        let message = receive_with_fds(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..message.bytes], b"hello");
        assert!(message.sender.is_none_or(|process| process.signal(0).is_err()));
    }

    #[test]
    fn options_are_set_and_read() {
        let fd = open(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        let option = |name| get_option::<i32>(fd.as_fd(), libc::SOL_SOCKET, name).unwrap();
        assert_eq!(option(libc::SO_REUSEADDR), 0);
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        assert_eq!(option(libc::SO_REUSEADDR), 1);
        // Its value has an address in it.
        let filter = set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 1);
        assert_eq!(filter.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
