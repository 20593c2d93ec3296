//! The keeper of an interface whose addresses IX shares with Linux: a process that outlives each
//! run and holds the XDP program.
//!
//! An interface has one XDP program, and a queue one packet memory. So the first run has the
//! queues, and each later one a link, a veth pair like those of `ix share`. The program knows for
//! each port its owner, and for each owner where its packets go: to Linux, to the sockets, or into
//! a link. If a run ends, for whatever reason, the keeper writes one word, and all of its ports are
//! Linux's.
//!
//! The keeper is found by a socket in the abstract namespace, which belongs to the network
//! namespace as the interface does, has the interface's present name, and goes with the process. It
//! is started by the first run, and ends after the last.
mod serve;

use crate::error::OpenError;
use crate::namespace::Namespace;
use ix_proto::Codec;
use ix_proto::keeper::{FromKeeper, MAPS, Owned, ToKeeper};
use ix_sys::Interface;
use ix_sys::bpf::Map;
use ix_sys::socket::{self, receive_with_fds, send_with_fds};
use ix_wire::IpAddr;
pub use serve::keep;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest message: more than a thousand addresses.
const MESSAGE_MAX: usize = 64 << 10;
/// Longest wait for an answer. To make a link takes tens of milliseconds, to attach a program to a
/// network card some seconds, for which others wait.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest wait for a keeper that has just been started.
const STARTING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The name of the keeper's socket.
fn path_of(interface: &str) -> String {
    format!("@ix-keeper-{interface}")
}

/// A run's part of an interface.
#[derive(Debug)]
pub struct Kept {
    /// While nothing is asked, it is readable only when the keeper has ended.
    socket: OwnedFd,
    asking: Mutex<()>,
    owner: u32,
    part: Part,
    /// The program, once it is attached.
    program: Mutex<Option<KeptProgram>>,
}

/// What a run has of the interface.
#[derive(Debug)]
enum Part {
    /// Its queues.
    Queues,
    /// A link, by the name and the number of its end, with the map of ports.
    Link(String, u32),
}

/// Why a run has no part of an interface.
#[derive(Debug)]
pub enum JoinError {
    /// There is no keeper, and none can be started, or whoever has its name is none of this user's.
    NoKeeper(io::Error),
    /// The keeper does not give one.
    Refused(io::Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (JoinError::NoKeeper(why) | JoinError::Refused(why)) = self;
        why.fmt(f)
    }
}

/// The program on the interface, as the keeper has it.
#[derive(Debug)]
pub(crate) struct KeptProgram {
    pub link: OwnedFd,
    pub sockets: Map,
    pub owned: Owned,
}

/// The maps that a run gets when it joins; in the order of [`MAPS`], if all of them.
pub(crate) type Joined = (Kept, Vec<OwnedFd>);

impl Kept {
    /// Joins the runs that share this interface, by its name and number. `start` starts a keeper,
    /// if there is none.
    pub(crate) fn join(
        (interface, ifindex): (&str, u32),
        threads: u32,
        addresses: &[IpAddr],
        start: impl Fn() -> io::Result<()>,
    ) -> Result<Joined, JoinError> {
        let said = ToKeeper::Join { ifindex, threads, addresses: addresses.to_vec() };
        let end = Instant::now() + STARTING;
        let mut has_started = false;
        loop {
            // One that ends refuses, or closes the connection.
            let asked = connect(interface).and_then(|socket| {
                let (answer, fds) = ask(socket.as_fd(), &said, &[])?;
                Ok((socket, answer, fds))
            });
            match asked {
                Ok((socket, answer, fds)) => {
                    return joined(socket, answer, fds).map_err(JoinError::Refused);
                }
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    return Err(JoinError::NoKeeper(e));
                }
                Err(e) if !is_absent(&e) => return Err(JoinError::Refused(e)),
                Err(e) if Instant::now() >= end => return Err(JoinError::NoKeeper(e)),
                Err(e) => {
                    if e.kind() == ErrorKind::ConnectionRefused && !has_started {
                        start().map_err(JoinError::NoKeeper)?;
                        has_started = true;
                    } else if e.kind() != ErrorKind::ConnectionRefused {
                        has_started = false;
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Number of this run among the owners of ports.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// The end of its link, if another run has the queues.
    pub(crate) fn link(&self) -> Option<&str> {
        match &self.part {
            Part::Queues => None,
            Part::Link(name, _) => Some(name),
        }
    }

    /// The program, if it is on the interface of this number.
    pub(crate) fn program(&self, ifindex: u32) -> Option<io::Result<KeptProgram>> {
        let program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        let known = program.as_ref().filter(|program| program.owned.ifindex == ifindex)?;
        Some(known.copy())
    }

    /// Gives the keeper the program, which has just been attached. `maps` without that of sockets.
    pub(crate) fn own(&self, program: KeptProgram, maps: [BorrowedFd<'_>; 5]) -> io::Result<()> {
        let sockets = program.sockets.copy()?;
        let mut fds = vec![program.link.as_fd()];
        fds.extend(maps);
        fds.push(sockets.as_fd());
        self.say(&ToKeeper::Own(program.owned.clone()), &fds)?;
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
        Ok(())
    }

    /// These are the run's addresses and groups from the next packet on; those `alone` stay
    /// Linux's.
    pub(crate) fn set_addresses(&self, addresses: &[IpAddr], alone: &[IpAddr]) -> io::Result<()> {
        let (addresses, alone) = (addresses.to_vec(), alone.to_vec());
        self.say(&ToKeeper::Addresses { addresses, alone }, &[])
    }

    /// Takes a port, by its place in the map of ports. Of runs that want it at one moment one has
    /// it; the others get `EADDRINUSE`.
    pub(crate) fn take(&self, port: u32) -> io::Result<()> {
        match self.ask(&ToKeeper::Take { port }, &[])? {
            FromKeeper::Done => Ok(()),
            FromKeeper::Refused(_) => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Ends the run's part; Linux has its ports.
    pub(crate) fn leave(&self) {
        // If it fails, the keeper was killed, and has left the link. The next one may give the name
        // to another.
        if self.say(&ToKeeper::Leave, &[]).is_err()
            && let Part::Link(name, index) = &self.part
            && let Ok(here) = Namespace::current()
            && here.link(name).is_ok_and(|link| link.is_some_and(|link| link.index == *index))
        {
            let _ = here.delete_link(name);
        }
    }

    /// Polls readable when the keeper has ended.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the keeper has ended, and with it the program on the interface.
    pub(crate) fn has_ended(&self) -> bool {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        hear_late(self.socket.as_fd()).is_err()
    }

    /// Says this, and waits for its answer.
    fn ask(&self, message: &ToKeeper, fds: &[BorrowedFd<'_>]) -> io::Result<FromKeeper> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        hear_late(self.socket.as_fd())?;
        ask(self.socket.as_fd(), message, fds).map(|(answer, _)| answer)
    }

    /// Says what the keeper has only to do.
    fn say(&self, message: &ToKeeper, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.ask(message, fds)? {
            FromKeeper::Done => Ok(()),
            FromKeeper::Refused(why) => Err(io::Error::other(why)),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

impl KeptProgram {
    fn copy(&self) -> io::Result<KeptProgram> {
        let sockets = Map::of(self.sockets.copy()?);
        Ok(KeptProgram { link: self.link.try_clone()?, sockets, owned: self.owned.clone() })
    }
}

fn joined(socket: OwnedFd, answer: FromKeeper, mut fds: Vec<OwnedFd>) -> io::Result<Joined> {
    let mut program = None;
    let (owner, part) = match answer {
        FromKeeper::First { owner } => (owner, Part::Queues),
        FromKeeper::Queues { owner, owned } if fds.len() == 1 + MAPS.len() => {
            let sockets = Map::of(fds.pop().expect("as many as that"));
            program = Some(KeptProgram { link: fds.remove(0), sockets, owned });
            (owner, Part::Queues)
        }
        FromKeeper::Link { owner, name } if fds.len() == 1 => {
            let index = Interface::new(&name).and_then(|link| link.index())?;
            (owner, Part::Link(name, index))
        }
        FromKeeper::Refused(why) => return Err(io::Error::other(why)),
        _ => return Err(ErrorKind::InvalidData.into()),
    };
    let (asking, program) = (Mutex::new(()), Mutex::new(program));
    Ok((Kept { socket, asking, owner, part, program }, fds))
}

/// Whether runs of this user share the interface already, so that another one may join them.
pub fn is_kept(interface: &str) -> bool {
    connect(interface).is_ok()
}

fn connect(interface: &str) -> io::Result<OwnedFd> {
    let socket = socket::connect_unix(libc::SOCK_SEQPACKET, &path_of(interface))?;
    if !is_one_of_us(socket.as_fd()) {
        let why = "the process that has its keeper's name is not known to be of this user";
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    socket::set_receive_timeout(socket.as_fd(), ANSWER)?;
    Ok(socket)
}

/// Whether nobody is there, or one who ends.
fn is_absent(e: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    [ConnectionRefused, ConnectionReset, BrokenPipe, UnexpectedEof].contains(&e.kind())
}

/// Whether the process at the other end is of the same user, and of the same namespace of users: a
/// program that is root of its own is not.
fn is_one_of_us(socket: BorrowedFd<'_>) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let same_user = socket::peer_user(socket).is_ok_and(|user| user == ix_sys::process::user_id());
    let theirs = socket::peer_process(socket).ok().and_then(|process| {
        let theirs = namespace(&process.pid().to_string());
        // Its number was its own until here.
        theirs.filter(|_| !process.has_ended())
    });
    same_user && theirs.is_some() && theirs == namespace("self")
}

fn ask(
    socket: BorrowedFd<'_>,
    message: &ToKeeper,
    fds: &[BorrowedFd<'_>],
) -> io::Result<(FromKeeper, Vec<OwnedFd>)> {
    send_with_fds(socket, &message.encode(), fds, libc::MSG_NOSIGNAL)?;
    let mut buffer = vec![0; MESSAGE_MAX];
    let answer = receive_with_fds(socket, &mut buffer, 0).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => {
            let why = "it does not answer: it is stopped, or gets no processor time";
            io::Error::new(ErrorKind::TimedOut, why)
        }
        _ => e,
    })?;
    if answer.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let message = FromKeeper::decode(&buffer[..answer.bytes]);
    message.map(|message| (message, answer.fds)).map_err(|_| ErrorKind::InvalidData.into())
}

/// Takes answers that no caller waits for any more, because they came too late. An error if the
/// keeper has ended.
fn hear_late(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = vec![0; MESSAGE_MAX];
    loop {
        match receive_with_fds(socket, &mut buffer, libc::MSG_DONTWAIT) {
            Ok(said) if said.bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

/// What went wrong with the keeper of an interface.
pub(crate) fn keeper_error(name: &str, e: io::Error) -> OpenError {
    OpenError::system("share the program on", name, e)
}
