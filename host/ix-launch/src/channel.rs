//! The channel between broker and image: a SEQPACKET socket that carries short texts and
//! descriptors. Used when a dataplane starts and when a device changes, never for packets.
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most descriptors in one message (Linux allows 253).
pub const MESSAGE_FDS_MAX: usize = 128;

const CMSG_WORDS: usize = (MESSAGE_FDS_MAX * 4 + 64) / 8;

/// What the image says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromImage {
    /// I am here, in this process: tell me what to be. Answered by [`ToImage::Config`].
    Hello {
        /// The process, as it knows itself.
        pid: u32,
    },
    /// A queue is attached: do now what needs privilege. Answered by [`ToImage::Ok`] or
    /// [`ToImage::Refused`].
    Attached {
        /// Number of the device in the configuration.
        device: usize,
        /// Its queue.
        queue: usize,
    },
    /// The dataplane stands; the program starts.
    Ready,
    /// The dataplane cannot start, and why; the image ends itself.
    Failed(String),
    /// The update of this number was read: the next one may come.
    Taken {
        /// Number of the device in the configuration.
        device: usize,
        /// The update's number.
        serial: u64,
    },
    /// A queue has taken an update over: do now what needs privilege. Not answered.
    Updated {
        /// Number of the device in the configuration.
        device: usize,
        /// Its queue.
        queue: usize,
        /// The update's number.
        serial: u64,
    },
    /// An update cannot be used, and why; the device stays as it was.
    UpdateFailed {
        /// Number of the device in the configuration.
        device: usize,
        /// The reason.
        why: String,
    },
    /// What became of the command of this number.
    Outcome {
        /// The command's number.
        serial: u64,
        /// For `ix_dataplane::Outcome`.
        line: String,
    },
    /// The survey of this number is complete.
    Surveyed {
        /// The survey's number.
        serial: u64,
    },
    /// Said by the process that will close the program's connections.
    Survivor {
        /// This process.
        pid: u32,
    },
}

/// What the broker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToImage {
    /// The configuration (`key=value` lines); its descriptors travel with it.
    Config(String),
    /// Done.
    Ok,
    /// It could not be done, and why.
    Refused(String),
    /// A device changed while the dataplane runs; descriptors with it. Answered by
    /// [`FromImage::Taken`] once it is read, which takes until an elastic thread is inside the
    /// dataplane; then by [`FromImage::Updated`] of each queue, or [`FromImage::UpdateFailed`].
    Update {
        /// Number of the device in the configuration.
        device: usize,
        /// Grows with each update of the device.
        serial: u64,
        /// What changed, for `ix_nic::read_update`.
        line: String,
    },
    /// The control plane wants something of the running dataplane. Answered by
    /// [`FromImage::Outcome`], which takes until an elastic thread is inside the dataplane.
    Command {
        /// Grows with each command.
        serial: u64,
        /// A command that was not begun by then is refused, µs of the monotonic clock: whoever
        /// wanted it is told that it timed out.
        until_us: u64,
        /// What, for `ix_dataplane::Command`.
        line: String,
    },
    /// All connections are to be told; the memory for it comes along. Answered by
    /// [`FromImage::Surveyed`] unless time is over before.
    Survey {
        /// Grows with each survey.
        serial: u64,
        /// Then nobody waits for it any more, µs of the monotonic clock.
        until_us: u64,
    },
    /// The process of this number, which was to close the program's connections, has ended before it.
    SurvivorEnded {
        /// As it has called itself.
        pid: u32,
    },
}

impl FromImage {
    /// As text.
    pub fn encode(&self) -> String {
        match self {
            FromImage::Hello { pid } => format!("hello {pid}"),
            FromImage::Attached { device, queue } => format!("attached {device} {queue}"),
            FromImage::Ready => "ready".to_owned(),
            FromImage::Failed(why) => format!("failed {why}"),
            FromImage::Taken { device, serial } => format!("taken {device} {serial}"),
            FromImage::Updated { device, queue, serial } => {
                format!("updated {device} {queue} {serial}")
            }
            FromImage::UpdateFailed { device, why } => format!("update-failed {device} {why}"),
            FromImage::Outcome { serial, line } => format!("outcome {serial} {line}"),
            FromImage::Surveyed { serial } => format!("surveyed {serial}"),
            FromImage::Survivor { pid } => format!("survivor {pid}"),
        }
    }

    /// From text; `None` when it is not one of these.
    pub fn decode(text: &str) -> Option<FromImage> {
        if text == "ready" {
            return Some(FromImage::Ready);
        }
        let (verb, rest) = text.split_once(' ')?;
        match verb {
            "attached" => {
                let (device, queue) = number(rest)?;
                Some(FromImage::Attached { device, queue: queue.parse().ok()? })
            }
            "hello" => Some(FromImage::Hello { pid: rest.parse().ok()? }),
            "failed" => Some(FromImage::Failed(rest.to_owned())),
            "taken" => {
                let (device, serial) = number(rest)?;
                Some(FromImage::Taken { device, serial: serial.parse().ok()? })
            }
            "updated" => {
                let (device, rest) = number(rest)?;
                let (queue, serial) = number(rest)?;
                Some(FromImage::Updated { device, queue, serial: serial.parse().ok()? })
            }
            "update-failed" => {
                let (device, why) = number(rest)?;
                Some(FromImage::UpdateFailed { device, why: why.to_owned() })
            }
            "surveyed" => Some(FromImage::Surveyed { serial: rest.parse().ok()? }),
            "survivor" => Some(FromImage::Survivor { pid: rest.parse().ok()? }),
            "outcome" => {
                let (serial, line) = number(rest)?;
                Some(FromImage::Outcome { serial, line: line.to_owned() })
            }
            _ => None,
        }
    }
}

impl ToImage {
    /// As text.
    pub fn encode(&self) -> String {
        match self {
            ToImage::Config(text) => format!("config {text}"),
            ToImage::Ok => "ok".to_owned(),
            ToImage::Refused(why) => format!("refused {why}"),
            ToImage::Update { device, serial, line } => format!("update {device} {serial} {line}"),
            ToImage::Command { serial, until_us, line } => {
                format!("command {serial} {until_us} {line}")
            }
            ToImage::Survey { serial, until_us } => format!("survey {serial} {until_us}"),
            ToImage::SurvivorEnded { pid } => format!("survivor-ended {pid}"),
        }
    }

    /// From text; `None` when it is not one of these.
    pub fn decode(text: &str) -> Option<ToImage> {
        if text == "ok" {
            return Some(ToImage::Ok);
        }
        let (verb, rest) = text.split_once(' ')?;
        match verb {
            "config" => Some(ToImage::Config(rest.to_owned())),
            "refused" => Some(ToImage::Refused(rest.to_owned())),
            "update" => {
                let (device, rest) = number(rest)?;
                let (serial, line) = number(rest)?;
                Some(ToImage::Update { device, serial, line: line.to_owned() })
            }
            "survivor-ended" => Some(ToImage::SurvivorEnded { pid: rest.parse().ok()? }),
            "survey" => {
                let (serial, until_us) = number(rest)?;
                Some(ToImage::Survey { serial, until_us: until_us.parse().ok()? })
            }
            "command" => {
                let (serial, rest) = number(rest)?;
                let (until_us, line) = number(rest)?;
                Some(ToImage::Command { serial, until_us, line: line.to_owned() })
            }
            _ => None,
        }
    }
}

/// A number, and what follows behind a space.
fn number<T: std::str::FromStr>(text: &str) -> Option<(T, &str)> {
    let (number, rest) = text.split_once(' ')?;
    Some((number.parse().ok()?, rest))
}

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
    pub fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(0, text, fds)
    }

    /// The same; an error (`WouldBlock`) where [`Channel::send`] would wait for the other end.
    pub fn try_send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(libc::MSG_DONTWAIT, text, fds)
    }

    fn send_with(&self, flags: i32, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if text.len() > MESSAGE_BYTES_MAX || fds.len() > MESSAGE_FDS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mut iov =
            libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
        let mut control = [0u64; CMSG_WORDS];
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            fds.iter().copied().for_each(hide);
            let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
            let bytes = size_of_val(&numbers[..]);
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: only computes a size; the control buffer holds MESSAGE_FDS_MAX numbers.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes as u32) } as usize;
            // SAFETY: the control buffer is aligned, zeroed and long enough for one header and
            // `bytes` of numbers, so CMSG_FIRSTHDR and CMSG_DATA point into it.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(bytes as u32) as usize;
                let data = libc::CMSG_DATA(header);
                core::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), data, bytes);
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
    pub fn receive(&self) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
        self.receive_with(0)
    }

    /// The same; an error (`WouldBlock`) where [`Channel::receive`] would wait.
    pub fn try_receive(&self) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
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

    fn receive_with(&self, flags: i32) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
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
        let text =
            String::from_utf8(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EBADMSG))?;
        Ok(Some((text, fds)))
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
        let long = format!("cpu={}", "1,".repeat(20_000));
        broker.send(&ToImage::Config(long.clone()).encode(), &[writer.as_fd()]).unwrap();
        broker.send("ok", &[]).unwrap();
        let (text, fds) = image.receive().unwrap().unwrap();
        assert_eq!(ToImage::decode(&text), Some(ToImage::Config(long)));
        assert_eq!(fds.len(), 1);
        writer.write_all(b"a").unwrap();
        drop(writer);
        for fd in fds {
            File::from(fd).write_all(b"b").unwrap();
        }
        let mut both = String::new();
        reader.read_to_string(&mut both).unwrap();
        assert_eq!(both, "ab");
        let (text, fds) = image.receive().unwrap().unwrap();
        assert_eq!((text.as_str(), fds.len()), ("ok", 0));
        let nothing = image.try_receive().unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(broker);
        assert!(image.receive().unwrap().is_none());
    }

    #[test]
    fn a_full_channel_keeps_nobody_waiting() {
        let (broker, _image) = Channel::pair().unwrap();
        let refused = (0..1_000_000).find_map(|_| broker.try_send("ok", &[]).err());
        assert_eq!(refused.expect("it fills up").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn too_much_is_refused_by_the_sender() {
        let (broker, _image) = Channel::pair().unwrap();
        assert!(broker.send(&"x".repeat(MESSAGE_BYTES_MAX + 1), &[]).is_err());
        let fd = broker.as_fd();
        assert!(broker.send("ok", &[fd; MESSAGE_FDS_MAX + 1]).is_err());
        broker.send("ok", &[fd; MESSAGE_FDS_MAX]).unwrap();
    }

    #[test]
    fn every_message_survives_the_wire() {
        let attached = FromImage::Attached { device: 1, queue: 12 };
        let failed = FromImage::Failed("no memory for packets; ulimit -l".to_owned());
        let taken = FromImage::Taken { device: 2, serial: u64::MAX };
        let updated = FromImage::Updated { device: 0, queue: 3, serial: 7 };
        let why = "`eth1` is down; `ip link set eth1 up`".to_owned();
        let unusable = FromImage::UpdateFailed { device: 1, why };
        let outcome = FromImage::Outcome { serial: 4, line: "refused no such thread".to_owned() };
        let begin = [FromImage::Hello { pid: 77 }, attached, FromImage::Ready, failed];
        let survivor = FromImage::Survivor { pid: 78 };
        for message in begin.into_iter().chain([taken, updated, unusable, outcome, survivor]) {
            assert_eq!(FromImage::decode(&message.encode()), Some(message));
        }
        let config = ToImage::Config("a=1\nb=2 3\n".to_owned());
        let line = "link up regions=2".to_owned();
        let update = ToImage::Update { device: 1, serial: 9, line };
        let command = ToImage::Command { serial: 2, until_us: 77, line: "park 1".to_owned() };
        let (refused, ended) =
            (ToImage::Refused("busy".to_owned()), ToImage::SurvivorEnded { pid: 78 });
        for message in [config, ToImage::Ok, refused, update, command, ended] {
            assert_eq!(ToImage::decode(&message.encode()), Some(message));
        }
        for junk in [
            "",
            "hello ",
            "attached 1",
            "attached 1 x",
            "attached -1 2",
            "okay",
            "taken 1",
            "update 1 x",
            "outcome 1",
            "command 1 park 1",
        ] {
            assert_eq!(FromImage::decode(junk), None, "{junk}");
            assert_eq!(ToImage::decode(junk), None, "{junk}");
        }
    }
}
