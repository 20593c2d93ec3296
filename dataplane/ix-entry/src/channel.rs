//! The channel between broker and image: a SEQPACKET socket that carries short messages
//! (`ix_proto::channel`) and descriptors. Used when a dataplane starts and when a device changes,
//! never for packets.
use ix_proto::limits::{MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use ix_sys::fd::hide_memory;
use ix_sys::poll::{has_hung_up, is_mute};
use ix_sys::process::Process;
use ix_sys::socket::{self, Message};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

const _: () = assert!(MESSAGE_FDS_MAX == socket::MESSAGE_FDS_MAX);

/// Where a message is received. A block for the longest would be taken from the system, and given
/// back, for each: three calls and a page of 2 MB, in each process that attaches.
static ROOM: Mutex<[u8; MESSAGE_BYTES_MAX]> = Mutex::new([0; MESSAGE_BYTES_MAX]);

/// One end of the socket. Both ends belong to the same release, so there is no version to agree on.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

impl Channel {
    /// Both ends, closed at exec.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = socket::pair(libc::SOCK_SEQPACKET)?;
        Ok((Channel { fd: one }, Channel { fd: other }))
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
        fds.iter().copied().for_each(hide_memory);
        socket::send_with_fds(self.as_fd(), bytes, fds, flags).map(drop)
    }

    /// Whether nobody has the other end any more.
    pub fn is_closed(&self) -> bool {
        has_hung_up(&self.fd)
    }

    /// Whether nothing can come from the other end any more, closed or not. What was sent before
    /// may still be there.
    pub fn is_mute(&self) -> bool {
        is_mute(&self.fd)
    }

    /// From now on [`Channel::receive_from`] says which process sent a message.
    /// [`Channel::brings_descriptors`] is of no use for this end then. Returns whether the kernel
    /// says it by descriptors ([`socket::tell_senders`]).
    pub fn tell_senders(&self) -> io::Result<bool> {
        socket::tell_senders(self.as_fd())
    }

    /// From now on the other end can send no descriptors, where the kernel can refuse them
    /// ([`socket::refuse_descriptors`]).
    pub fn refuse_descriptors(&self) -> io::Result<bool> {
        socket::refuse_descriptors(self.as_fd())
    }

    /// Waits for one message, and returns it with the process that sent it, as the kernel says;
    /// descriptors are closed. `None` when the other end is closed.
    pub fn receive_from(&self) -> io::Result<Option<(Vec<u8>, Option<Process>)>> {
        let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
        let message = self.receive_into(&mut bytes, 0)?;
        Ok(message.map(|message| {
            bytes.truncate(message.bytes);
            (bytes, message.sender)
        }))
    }

    /// Waits for one message and its descriptors; `None` when the other end is closed. The
    /// message comes
    /// without any of its descriptors where this process can have no more of them.
    pub fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        self.receive_with(0)
    }

    /// The same; an error (`WouldBlock`) where [`Channel::receive`] would wait.
    pub fn try_receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        self.receive_with(libc::MSG_DONTWAIT)
    }

    /// Whether the next message brings descriptors; it stays where it is. False also when none
    /// waits.
    pub fn brings_descriptors(&self) -> bool {
        socket::next_brings_fds(self.as_fd())
    }

    fn receive_with(&self, flags: i32) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        // Another thread may wait with it.
        let (mut room, mut own);
        let bytes = if let Ok(free) = ROOM.try_lock() {
            room = free;
            &mut room[..]
        } else {
            own = vec![0u8; MESSAGE_BYTES_MAX];
            &mut own[..]
        };
        let message = self.receive_into(bytes, flags)?;
        Ok(message.map(|message| (bytes[..message.bytes].to_vec(), message.fds)))
    }

    fn receive_into(&self, bytes: &mut [u8], flags: i32) -> io::Result<Option<Message>> {
        let message = match socket::receive_with_fds(self.as_fd(), bytes, flags) {
            Err(e) if e.raw_os_error() == Some(libc::ECONNRESET) => return Ok(None),
            other => other?,
        };
        if message.bytes == 0 && message.fds.is_empty() {
            return Ok(None);
        }
        // This process can have no more descriptors: the words come without any of theirs.
        let all_came = !message.is_cut && message.fds.len() <= MESSAGE_FDS_MAX;
        let fds = if all_came { message.fds } else { Vec::new() };
        Ok(Some(Message { fds, ..message }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
        assert!(image.brings_descriptors());
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
        assert!(!image.brings_descriptors());
        let (bytes, fds) = image.receive().unwrap().unwrap();
        assert_eq!((&bytes[..], fds.len()), (&b"ok"[..], 0));
        assert!(!image.brings_descriptors(), "nothing waits");
        let nothing = image.try_receive().unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(!image.is_closed());
        drop(broker);
        assert!(image.is_closed());
        assert!(image.receive().unwrap().is_none());
    }

    #[test]
    fn a_full_channel_keeps_nobody_waiting() {
        let (broker, _image) = Channel::pair().unwrap();
        let refused = (0..1_000_000).find_map(|_| broker.try_send(b"ok", &[]).err());
        assert_eq!(refused.expect("it fills up").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_end_that_refuses_descriptors_gets_none() {
        let (broker, image) = Channel::pair().unwrap();
        if !broker.refuse_descriptors().unwrap() {
            return; // A kernel before Linux 6.16.
        }
        assert!(image.send(b"ok", &[image.as_fd()]).is_err());
        image.send(b"ok", &[]).unwrap();
        broker.send(b"ok", &[broker.as_fd()]).unwrap();
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
