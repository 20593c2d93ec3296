//! What the broker does with a program's sockets of Linux.
//!
//! It binds them to low ports for a program that is root of a user namespace: the machine's network
//! namespace does not count its rights. It does not know more than root of the machine
//! would let the program do: who asks must have the right to bind such ports in the program's own
//! namespace, and the socket must be of this network namespace.
//!
//! Where the address is shared with Linux (`--addr` is left out), a request with a port and the
//! families of its addresses alone has the broker say whether another run has it there, let the
//! socket share it if this run has, and keep connections that come in by IX's interface from the
//! socket: a program, of whichever user, has no right to that. A connection that Linux accepted
//! before the dataplane begins would break when IX has the port.
//!
//! A request is the address, with the socket and an end of a pair on which the errno comes back; 0
//! is none. A thread of its own carries them out, one at a time: a program that sends what takes
//! long to close keeps only itself waiting.
use ix_launch::NamespaceRoot;
use ix_netdev::{Family, HeldPorts, Transport};
use ix_sys::poll::is_mute;
use ix_sys::process::Process;
use ix_sys::socket::{self, bind_inet, get_option, pair, receive_with_fds, tell_senders};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// `CAP_NET_BIND_SERVICE`, as a bit of `CapEff`.
const MAY_BIND: u64 = 1 << 10;
/// `SO_NETNS_COOKIE`, which `libc` lacks.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// The longest address: `sockaddr_in6`.
const ADDRESS_BYTES_MAX: usize = 28;
/// The user of namespace and machine whose rights these are.
const ROOT: u32 = 0;
/// Time after an error that passes.
const PAUSE: Duration = Duration::from_millis(10);
/// Ports below this one are root's, if the system says nothing else.
const UNPRIVILEGED: u16 = 1024;

/// The broker's end.
pub struct LowPorts {
    requests: OwnedFd,
    root: Option<Arc<NamespaceRoot>>,
    shared: Option<SharedInterface>,
}

/// An interface whose address IX shares with Linux.
pub struct SharedInterface {
    /// Its number.
    pub index: u32,
    /// The ports that IX has there.
    pub ports: Arc<HeldPorts>,
}

impl LowPorts {
    /// Both ends; the other one is for the program's processes. `root`: that of their namespace, if
    /// they have one.
    pub fn pair(
        root: Option<Arc<NamespaceRoot>>,
        shared: Option<SharedInterface>,
    ) -> io::Result<(LowPorts, OwnedFd)> {
        let (requests, theirs) = pair(libc::SOCK_SEQPACKET)?;
        tell_senders(requests.as_fd())?;
        shared.iter().for_each(|shared| shared.ports.expect_sockets());
        Ok((LowPorts { requests, root, shared }, theirs))
    }

    /// Carries out requests, on a thread of its own, until nobody has the other end.
    pub fn serve(self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("ix-ports".to_owned());
        thread.spawn(move || while self.next().is_some() {}).map(drop)
    }

    /// Carries out the next request; `None` at the end.
    fn next(&self) -> Option<()> {
        let mut address = [0; ADDRESS_BYTES_MAX];
        let Ok(message) = receive_with_fds(self.requests.as_fd(), &mut address, 0) else {
            // No memory, for a moment.
            std::thread::sleep(PAUSE);
            return Some(());
        };
        // Anybody can send nothing, or shut the other end down: then nothing can be asked any more.
        if message.bytes == 0 && message.fds.is_empty() {
            return (!is_mute(&self.requests)).then_some(());
        }
        let [socket, answer] = &message.fds[..] else { return Some(()) };
        let address = address.get(..message.bytes).filter(|_| !message.is_cut);
        // Who sent it as another user may have executed a set-uid program since.
        let sender = message.sender.as_ref().filter(|_| message.sender_user == Some(ROOT));
        let done = match (address, &self.shared) {
            (Some([high, low, families]), Some(shared)) => {
                let port = u16::from_be_bytes([*high, *low]);
                keep_from(socket.as_fd(), shared)
                    .and_then(|()| lets(socket.as_fd(), (port, *families), shared))
            }
            _ => self.bind(socket.as_fd(), address, sender),
        };
        let errno = match done {
            Ok(()) => 0,
            Err(e) => e.raw_os_error().unwrap_or(libc::EACCES),
        };
        // A process that does not read it has asked in vain.
        let _ = socket::send(answer.as_fd(), &errno.to_ne_bytes(), libc::MSG_DONTWAIT);
        Some(())
    }

    fn bind(
        &self,
        socket: BorrowedFd<'_>,
        address: Option<&[u8]>,
        sender: Option<&Process>,
    ) -> io::Result<()> {
        let refused = || io::Error::from_raw_os_error(libc::EACCES);
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let at = address.and_then(read_address).ok_or_else(invalid)?;
        let option = |option| get_option::<i32>(socket, libc::SOL_SOCKET, option);
        let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM];
        if option(libc::SO_DOMAIN)? != family || !kinds.contains(&option(libc::SO_TYPE)?) {
            return Err(invalid());
        }
        let is_low = (1..first_unprivileged()).contains(&at.port());
        let may = sender.is_some_and(|sender| self.may_bind(sender));
        if !is_low || !may || cookie(socket)? != own_cookie()? {
            return Err(refused());
        }
        bind_inet(socket, at)
    }

    /// Whether this process may bind low ports in its own namespace, which is the program's.
    ///
    /// A process without the right may execute a program that is root's (set-user-ID) as soon as it
    /// has asked. Its real user stays what it was.
    fn may_bind(&self, process: &Process) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid()));
        let has = status.is_ok_and(|status| has_right_of_its_own(&status));
        let is_its = |root: &Arc<NamespaceRoot>| root.namespace().has(process.pid());
        // At last: until here its number was its own.
        has && self.root.as_ref().is_some_and(is_its) && !process.has_ended()
    }
}

/// Whether a process with this `/proc/PID/status` may bind low ports, and not because it has
/// executed a set-user-ID program.
fn has_right_of_its_own(status: &str) -> bool {
    let line = |key| status.lines().find_map(|line| line.strip_prefix(key));
    let rights = line("CapEff:").and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    let mut users = line("Uid:").unwrap_or_default().split_ascii_whitespace();
    let (real, effective) = (users.next(), users.next());
    rights.is_some_and(|bits| bits & MAY_BIND != 0) && real.is_some() && real == effective
}

/// Keeps connections that come in by an interface from a socket of the Internet, and lets its user
/// share ports with IX: a program may have become another user before it listens, as memcached
/// does.
fn keep_from(socket: BorrowedFd<'_>, shared: &SharedInterface) -> io::Result<()> {
    let family = get_option::<i32>(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    if ![libc::AF_INET, libc::AF_INET6].contains(&family) || cookie(socket)? != own_cookie()? {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let file = File::from(socket.try_clone_to_owned()?).metadata()?;
    shared.ports.may_share(file.uid());
    shared.ports.is_programs(file.ino());
    // A datagram that Linux takes before IX has the port waits for the program, which looks at
    // both. Afterwards none comes to Linux by that interface.
    if is_tcp(socket)? { socket::refuse_from(socket, shared.index) } else { Ok(()) }
}

fn is_tcp(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = get_option::<i32>(socket, libc::SOL_SOCKET, libc::SO_TYPE)?;
    Ok(kind == libc::SOCK_STREAM)
}

/// Lets the socket have a port at addresses of these families, a bit for each, where it is this
/// run's: Linux knows only its holder. An error if it is another owner's with whom Linux would let
/// the socket share it.
fn lets(
    socket: BorrowedFd<'_>,
    (port, families): (u16, u8),
    shared: &SharedInterface,
) -> io::Result<()> {
    let transport = if is_tcp(socket)? { Transport::Tcp } else { Transport::Udp };
    if port == 0 {
        // Linux chooses one that is free.
        return Ok(());
    }
    let mut is_ours = false;
    for family in Family::ALL.into_iter().filter(|family| families & 1 << *family as u8 != 0) {
        if shared.ports.has(transport, family, port) {
            is_ours = true;
        } else {
            shared.ports.is_free(transport, family, port)?;
        }
    }
    if is_ours {
        socket::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    Ok(())
}

/// The first port that is everybody's, in this network namespace.
fn first_unprivileged() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(UNPRIVILEGED)
}

/// The network namespace of a socket.
fn cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    get_option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

fn own_cookie() -> io::Result<u64> {
    cookie(socket::open(libc::AF_INET, libc::SOCK_DGRAM)?.as_fd())
}

/// An address as a program gives it to `bind`.
fn read_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]);
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some((Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let flow = u32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?);
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = bytes
                .get(24..28)
                .map_or(Some(0), |four| Some(u32::from_ne_bytes(four.try_into().ok()?)))?;
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_of_an_executed_program_is_not_the_processs() {
        let status = |users: &str, rights: &str| {
            format!("Name:\tx\nUid:\t{users}\nGid:\t0\t0\t0\t0\nCapEff:\t{rights}\n")
        };
        for (users, rights, may) in [
            ("0\t0\t0\t0", "000001ffffffffff", true),
            ("1000\t1000\t1000\t1000", "0000000000000400", true),
            ("1000\t1000\t1000\t1000", "0000000000000200", false),
            // A set-user-ID program of root's.
            ("65534\t0\t0\t0", "000001ffffffffff", false),
        ] {
            assert_eq!(has_right_of_its_own(&status(users, rights)), may, "{users} {rights}");
        }
        assert!(!has_right_of_its_own("CapEff:\t000001ffffffffff\n"));
    }

    #[test]
    fn an_address_is_what_a_program_gives() {
        let mut v4 = vec![2, 0, 0, 80, 10, 0, 0, 1];
        assert_eq!(read_address(&v4), Some("10.0.0.1:80".parse().expect("an address")));
        v4.pop();
        assert_eq!(read_address(&v4), None);
        let mut v6 = vec![10, 0, 1, 187, 0, 0, 0, 0];
        v6.extend([0; 15]);
        assert_eq!(read_address(&v6), None);
        v6.push(1);
        assert_eq!(read_address(&v6), Some("[::1]:443".parse().expect("an address")));
        v6.extend([3, 0, 0, 0]);
        assert_eq!(read_address(&v6), Some("[::1%3]:443".parse().expect("an address")));
        assert_eq!(read_address(&[1, 0, 0, 80, 0, 0, 0, 0]), None);
        assert_eq!(read_address(&[]), None);
    }
}
