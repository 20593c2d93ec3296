//! rtnetlink: building requests, sending them, reading replies.
use ix_sys::{Error, netfilter, socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const HEADER: usize = 16;
/// Attribute of an error message that carries the kernel's explanation (NLMSGERR_ATTR_MSG).
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLM_F_CAPPED: u16 = 0x100;
/// Of a part of a list that was not the same from its beginning to its end.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// So often a list is read that changes meanwhile.
const READS: u32 = 16;
/// Between two of them.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A request under construction: header, family header, attributes.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A request of this type; `flags` are added to NLM_F_REQUEST and NLM_F_ACK.
    pub(crate) fn new(kind: u16, flags: i32) -> Message {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Message(bytes)
    }

    /// Appends a family header (`ifinfomsg` and similar).
    pub(crate) fn put(mut self, bytes: &[u8]) -> Message {
        self.0.extend_from_slice(bytes);
        self.pad()
    }

    /// Appends one attribute.
    pub(crate) fn attr(mut self, kind: u16, payload: &[u8]) -> Message {
        self.0.extend_from_slice(&(4 + payload.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(payload);
        self.pad()
    }

    /// Appends a string attribute, with the zero that the kernel expects.
    pub(crate) fn text(self, kind: u16, text: &str) -> Message {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Appends an attribute that contains what `fill` appends.
    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        let mut message = fill(self);
        let len = (message.0.len() - start) as u16;
        message.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        message
    }

    fn pad(mut self) -> Message {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

/// `struct ifinfomsg`: the link, and the flags to change on it.
pub(crate) fn ifinfomsg(index: u32, flags: i32, change: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

/// A reply: its type and everything after the netlink header.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

/// The attributes in `bytes`, as (kind, payload). Stops at the first one that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let payload = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        // The top two bits mean "nested" and "network byte order".
        Some((kind & 0x3fff, payload))
    })
}

/// The payload of the first attribute of a kind.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, payload)| payload)
}

/// A number in this host's order, as rtnetlink has it.
pub(crate) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

/// A number in the network's order, as nftables has it.
pub(crate) fn number_of_network(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

/// A text without the zeros at its end.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// The messages in one datagram, as (type, flags, sequence, body).
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u16, u32, &[u8])> {
    let word = |b: &[u8], at: usize| Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?));
    std::iter::from_fn(move || {
        let len = word(bytes, 0)? as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let flags = u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?);
        let sequence = word(bytes, 8)?;
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, flags, sequence, body))
    })
}

/// Opens a routing socket in the calling thread's network namespace, to which it stays bound.
/// `groups` are the multicast groups to listen to.
pub(crate) fn open(groups: u32) -> Result<OwnedFd, Error> {
    socket::open_routing(groups).map_err(|e| Error::new("cannot open a netlink socket", e))
}

/// A routing socket for requests.
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> Result<Netlink, Error> {
        Ok(Netlink { fd: open(0)?, sequence: 0 })
    }

    /// Opens one for generic netlink in the calling thread's network namespace.
    pub(crate) fn open_generic() -> Result<Netlink, Error> {
        let fd = socket::open_generic_netlink();
        let fd = fd.map_err(|e| Error::new("cannot open a generic netlink socket", e))?;
        Ok(Netlink { fd, sequence: 0 })
    }

    /// Opens one that tells of sockets in the calling thread's network namespace.
    pub(crate) fn open_diagnosis() -> Result<Netlink, Error> {
        let fd = socket::open_sock_diag();
        let fd = fd.map_err(|e| Error::new("cannot open a netlink socket for sockets", e))?;
        Ok(Netlink { fd, sequence: 0 })
    }

    /// Opens one for nftables in the calling thread's network namespace.
    pub(crate) fn open_netfilter() -> Result<Netlink, Error> {
        let fd = netfilter::open();
        let fd = fd.map_err(|e| Error::new("cannot open a netlink socket for nftables", e))?;
        Ok(Netlink { fd, sequence: 0 })
    }

    /// Sends a request and waits until the kernel has carried it out; returns the replies before
    /// the acknowledgement. A list that changes while it is read is read again; one that has done
    /// so each time is EAGAIN. `what` is for the error: "cannot add address …".
    pub(crate) fn request(
        &mut self,
        message: Message,
        what: impl Fn() -> String,
    ) -> Result<Vec<Answer>, Error> {
        let mut bytes = message.finish(0);
        for _ in 0..READS {
            self.sequence += 1;
            bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
            socket::send(self.fd.as_fd(), &bytes, 0).map_err(|e| Error::new(what(), e))?;
            if let Some(answers) = self.answers(&what)? {
                return Ok(answers);
            }
            std::thread::sleep(PAUSE);
        }
        let why = Some("it changes all the time".to_owned());
        let again = io::Error::from_raw_os_error(libc::EAGAIN);
        Err(Error::new(what(), again).explained(why))
    }

    /// The replies to the last request; `None`: they are of a list that has changed meanwhile.
    fn answers(&mut self, what: impl Fn() -> String) -> Result<Option<Vec<Answer>>, Error> {
        let (mut answers, mut is_whole) = (Vec::new(), true);
        let mut buffer = vec![0u8; 32 << 10];
        loop {
            let n = socket::receive(self.fd.as_fd(), &mut buffer, 0)
                .map_err(|e| Error::new(what(), e))?;
            for (kind, flags, sequence, body) in messages(&buffer[..n]) {
                if sequence != self.sequence {
                    continue;
                }
                is_whole &= flags & NLM_F_DUMP_INTR == 0;
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(is_whole.then_some(answers)),
                    libc::NLMSG_ERROR => {
                        return acknowledge(body, flags, what).map(|()| Some(answers));
                    }
                    _ => answers.push(Answer { kind, body: body.to_vec() }),
                }
            }
        }
    }
}

/// Parses an NLMSG_ERROR: error number, the request's header, explanation.
fn acknowledge(body: &[u8], flags: u16, what: impl Fn() -> String) -> Result<(), Error> {
    let word = |at: usize| body.get(at..at + 4).and_then(|b| b.try_into().ok());
    let errno = -word(0).map_or(-libc::EBADMSG, i32::from_ne_bytes);
    if errno == 0 {
        return Ok(());
    }
    // The request follows the error number, unless the kernel cut it to its header.
    let request = word(4).map_or(HEADER, |b| u32::from_ne_bytes(b) as usize);
    let skip = if flags & NLM_F_CAPPED != 0 { HEADER } else { request.next_multiple_of(4) };
    let said = body.get(4 + skip..).unwrap_or(&[]);
    let explanation = attribute(said, NLMSGERR_ATTR_MSG).map(text);
    Err(Error::new(what(), io::Error::from_raw_os_error(errno)).explained(explanation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_put() {
        let message = Message::new(16, 0)
            .text(3, "veth0")
            .nest(18, |m| m.text(1, "veth").nest(2, |m| m.attr(1, &7u32.to_ne_bytes())));
        let bytes = message.finish(9);
        let (kind, _, sequence, body) = messages(&bytes).next().expect("one message");
        assert_eq!((kind, sequence), (16, 9));
        let found: Vec<_> = attributes(body).collect();
        assert_eq!(found[0], (3, &b"veth0\0"[..]));
        assert_eq!(found[1].0, 18);
        let inner: Vec<_> = attributes(found[1].1).collect();
        assert_eq!(inner[0], (1, &b"veth\0"[..]));
        let innermost: Vec<_> = attributes(inner[1].1).collect();
        assert_eq!(innermost, [(1, &7u32.to_ne_bytes()[..])]);
    }

    /// A kernel at the other end of a socket, whose lists change while they are read so often.
    fn read_from(interruptions: u32) -> Result<Vec<Answer>, Error> {
        use std::os::unix::net::UnixDatagram;
        let (own, kernel) = UnixDatagram::pair().expect("a pair");
        let end = std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            for nth in 0.. {
                // Its other end is closed once it has enough.
                kernel.set_read_timeout(Some(std::time::Duration::from_secs(1))).expect("set");
                let Ok(n) = kernel.recv(&mut buffer) else { return nth };
                let (_, _, sequence, _) = messages(&buffer[..n]).next().expect("a request");
                let flags = if nth < interruptions { NLM_F_DUMP_INTR } else { 0 };
                let part = |kind: u16, flags: u16, sequence: u32| {
                    let mut bytes = Message::new(kind, 0).put(&nth.to_ne_bytes()).finish(sequence);
                    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
                    bytes
                };
                // A reply to an earlier question is no part of it.
                let datagrams = [
                    part(16, NLM_F_DUMP_INTR, sequence.wrapping_sub(1)),
                    [part(16, 0, sequence), part(16, flags, sequence)].concat(),
                    part(libc::NLMSG_DONE as u16, 0, sequence),
                ];
                for datagram in datagrams {
                    kernel.send(&datagram).expect("sent");
                }
            }
            0
        });
        let mut netlink = Netlink { fd: OwnedFd::from(own), sequence: 6 };
        let read = netlink.request(Message::new(18, libc::NLM_F_DUMP), || "cannot list".to_owned());
        drop(netlink);
        assert_eq!(end.join().expect("it ends"), (interruptions + 1).min(READS));
        read
    }

    #[test]
    fn a_list_that_changes_is_read_again() {
        for interruptions in [0, 1, READS - 1] {
            let read = read_from(interruptions).expect("a whole list");
            let bodies: Vec<_> = read.iter().map(|answer| number(&answer.body)).collect();
            assert_eq!(bodies, [Some(interruptions); 2], "nothing of what was read before");
        }
        let e = read_from(READS).expect_err("it never is whole");
        assert_eq!(e.errno(), libc::EAGAIN);
        assert!(e.to_string().contains("it changes all the time"), "{e}");
    }

    #[test]
    fn torn_answers_end_the_walk() {
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[9, 0, 1, 0, 5]).count(), 0);
        assert_eq!(attributes(&[5]).count(), 0);
        assert_eq!(messages(&[3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
