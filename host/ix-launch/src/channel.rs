//! The channel between broker and image: a SEQPACKET socket that carries short messages
//! (`ix_proto::channel`) and descriptors. Used when a dataplane starts and when a device changes, never for packets.
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most descriptors in one message (Linux allows 253).
pub const MESSAGE_FDS_MAX: usize = 128;

const CMSG_WORDS: usize = (MESSAGE_FDS_MAX * 4 + 64) / 8;

/// One end of the socket. Both ends belong to the same release, so there is no version to agree on.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

impl Channel {
    /// Both ends, closed at exec.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: fills the array we own.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: two descriptors that were just made and belong to nobody else.
        let [a, b] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok((Channel { fd: a }, Channel { fd: b }))
    }

    /// An end that came by inheritance.
    pub fn from_fd(fd: OwnedFd) -> Channel {
        Channel { fd }
    }

    /// Sends one message. Descriptors are copied to the other process.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(0, bytes, fds)
    }

    /// The same; an error (`WouldBlock`) where [`Channel::send`] would wait for the other end.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(libc::MSG_DONTWAIT, bytes, fds)
    }

    fn send_with(&self, flags: i32, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > MESSAGE_BYTES_MAX || fds.len() > MESSAGE_FDS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mut iov =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; CMSG_WORDS];
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            fds.iter().copied().for_each(hide);
            let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
            let size = size_of_val(&numbers[..]);
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: only computes a size; the control buffer holds MESSAGE_FDS_MAX numbers.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(size as u32) } as usize;
            // SAFETY: the control buffer is aligned, zeroed and long enough for one header and
            // `size` bytes of numbers, so CMSG_FIRSTHDR and CMSG_DATA point into it.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size as u32) as usize;
                let data = libc::CMSG_DATA(header);
                core::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), data, size);
            }
        }
        retry(|| {
            // SAFETY: the message points to buffers that live across the call.
            unsafe { libc::sendmsg(self.fd.as_raw_fd(), &message, libc::MSG_NOSIGNAL | flags) }
        })
        .map(drop)
    }

    /// Whether nobody has the other end any more.
    pub fn is_closed(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one struct.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 }
    }

    /// Waits for one message and its descriptors; `None` when the other end is closed.
    pub fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        self.receive_with(0)
    }

    /// The same; an error (`WouldBlock`) where [`Channel::receive`] would wait.
    pub fn try_receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        self.receive_with(libc::MSG_DONTWAIT)
    }

    /// Whether the next message brings descriptors; it stays where it is. False also when none waits.
    pub fn brings_descriptors(&self) -> bool {
        let mut byte = 0u8;
        let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        // Without room for control data Linux makes no descriptors of it, and says that there was some.
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message points to a byte that lives across the call.
        let peeked = retry(|| unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, flags) });
        peeked.is_ok() && message.msg_flags & libc::MSG_CTRUNC != 0
    }

    fn receive_with(&self, flags: i32) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = [0u64; CMSG_WORDS];
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let n = retry(|| {
            // SAFETY: the message points to buffers that live across the call.
            unsafe {
                libc::recvmsg(self.fd.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC | flags)
            }
        });
        let n = match n {
            Err(e) if e.raw_os_error() == Some(libc::ECONNRESET) => return Ok(None),
            other => other?,
        };
        let fds = received_fds(&message);
        if n == 0 && fds.is_empty() {
            return Ok(None);
        }
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        bytes.truncate(n);
        Ok(Some((bytes, fds)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory that has a descriptor has a name in `/proc`, by which the program could open it anew: not if its
/// mode gives nobody a right, unless it is the program's user who owns it.
fn hide(fd: BorrowedFd<'_>) {
    // SAFETY: all zero is a valid `stat`, which is only filled; the descriptor is borrowed.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let is_memory = libc::fstat(fd.as_raw_fd(), &mut stat) == 0
            && stat.st_mode & libc::S_IFMT == libc::S_IFREG
            && stat.st_nlink == 0;
        if is_memory {
            // A peer's may be somebody else's to change.
            libc::fchmod(fd.as_raw_fd(), 0);
        }
    }
}

/// Takes ownership of the descriptors that `recvmsg` has put into the control buffer.
fn received_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: `message` was filled by recvmsg, so its control buffer holds well-formed headers up
    // to msg_controllen; each SCM_RIGHTS number is a new descriptor that belongs to us alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<i32>();
                for i in 0..bytes / size_of::<i32>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    #[test]
    fn messages_keep_their_bounds_and_bring_descriptors() {
        let (broker, image) = Channel::pair().unwrap();
        let (mut reader, mut writer) = io::pipe().unwrap();
        let long = vec![7; 40_000];
        broker.send(&long, &[writer.as_fd()]).unwrap();
        broker.send(b"ok", &[]).unwrap();
        let (bytes, fds) = image.receive().unwrap().unwrap();
        assert_eq!(bytes, long);
        assert_eq!(fds.len(), 1);
        writer.write_all(b"a").unwrap();
        drop(writer);
        for fd in fds {
            File::from(fd).write_all(b"b").unwrap();
        }
        let mut both = String::new();
        reader.read_to_string(&mut both).unwrap();
        assert_eq!(both, "ab");
        let (bytes, fds) = image.receive().unwrap().unwrap();
        assert_eq!((&bytes[..], fds.len()), (&b"ok"[..], 0));
        let nothing = image.try_receive().unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(broker);
        assert!(image.receive().unwrap().is_none());
    }

    #[test]
    fn a_full_channel_keeps_nobody_waiting() {
        let (broker, _image) = Channel::pair().unwrap();
        let refused = (0..1_000_000).find_map(|_| broker.try_send(b"ok", &[]).err());
        assert_eq!(refused.expect("it fills up").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn too_much_is_refused_by_the_sender() {
        let (broker, _image) = Channel::pair().unwrap();
        assert!(broker.send(&[0; MESSAGE_BYTES_MAX + 1], &[]).is_err());
        let fd = broker.as_fd();
        assert!(broker.send(b"ok", &[fd; MESSAGE_FDS_MAX + 1]).is_err());
        broker.send(b"ok", &[fd; MESSAGE_FDS_MAX]).unwrap();
    }
}
