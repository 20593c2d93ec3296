//! Which way Linux's routes lead, where its addresses are IX's as well: asked when a connection or
//! a UDP client begins, never for a message.
use core::ptr::null_mut;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// `struct nlmsghdr` and `struct rtmsg`.
const HEADER: usize = 16;
const ROUTE: usize = 12;
/// The head of an attribute.
const ATTRIBUTE: usize = 4;
/// Longest request and answer that are of interest.
const REQUEST_MAX: usize = HEADER + ROUTE + 2 * (ATTRIBUTE + 16);
const ANSWER_MAX: usize = 1024;

/// What Linux says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the interface of this number, from this address.
    By { interface: u32, source: Option<IpAddr> },
    /// No route leads there. A connect of Linux's returns the errno.
    Nowhere,
}

/// Asks for the way to an address, from one of the same family if it is given. `None`: Linux could
/// not be asked.
pub fn ask(to: IpAddr, from: Option<IpAddr>) -> Option<Way> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // By system calls, because the C library's names are this library's.
    // SAFETY: makes a descriptor.
    let fd =
        unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    let mut answer = [0; ANSWER_MAX];
    let n = exchange(fd, &request(to, from), &mut answer);
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    read(answer.get(..n?)?)
}

/// Linux carries a request out before the call returns.
fn exchange(fd: RawFd, request: &[u8], answer: &mut [u8]) -> Option<usize> {
    let (at, bytes, nobody) = (request.as_ptr(), request.len(), null_mut::<u8>());
    // SAFETY: reads the request.
    let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, at, bytes, 0, nobody, 0) };
    if usize::try_from(sent) != Ok(bytes) {
        return None;
    }
    let (at, room, flags) = (answer.as_mut_ptr(), answer.len(), libc::MSG_DONTWAIT);
    // SAFETY: fills the answer.
    let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, at, room, flags, nobody, nobody) };
    usize::try_from(got).ok()
}

fn request(to: IpAddr, from: Option<IpAddr>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST_MAX);
    let (family, octets) = if to.is_ipv4() { (libc::AF_INET, 4) } else { (libc::AF_INET6, 16) };
    let from = from.filter(|from| from.is_ipv4() == to.is_ipv4());
    let len = HEADER + ROUTE + (ATTRIBUTE + octets) * if from.is_some() { 2 } else { 1 };
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(libc::RTM_GETROUTE.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Number and sender.
    bytes.extend([0; 8]);
    let bits = 8 * octets as u8;
    let from_bits = if from.is_some() { bits } else { 0 };
    bytes.extend([family as u8, bits, from_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let named = [(libc::RTA_DST, Some(to)), (libc::RTA_SRC, from)];
    for (kind, address) in named.into_iter().filter_map(|(kind, at)| Some((kind, at?))) {
        bytes.extend(((ATTRIBUTE + octets) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes
}

/// Reads an answer.
fn read(answer: &[u8]) -> Option<Way> {
    let len = u32::from_ne_bytes(answer.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if i32::from(kind) == libc::NLMSG_ERROR {
        return Some(Way::Nowhere);
    }
    let route = answer.get(HEADER..len)?;
    if kind != libc::RTM_NEWROUTE {
        return None;
    }
    if *route.get(7)? != libc::RTN_UNICAST {
        // Of the host itself, of a group: Linux's.
        return Some(Way::Nowhere);
    }
    let (mut interface, mut source) = (None, None);
    let mut rest = route.get(ROUTE..)?;
    while let Some(head) = rest.get(..4) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(value) = rest.get(4..len) else { break };
        match u16::from_ne_bytes([head[2], head[3]]) {
            libc::RTA_OIF => interface = Some(u32::from_ne_bytes(value.try_into().ok()?)),
            libc::RTA_PREFSRC if value.len() == 4 => {
                source = Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?));
            }
            libc::RTA_PREFSRC => source = Some(IpAddr::from(<[u8; 16]>::try_from(value).ok()?)),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Way::By { interface: interface?, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_says_its_way() {
        // SAFETY: a string.
        let lo = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        assert_ne!(lo, 0);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        // Linux's own address is reached over no interface.
        assert_eq!(ask(ip("127.0.0.1"), None), Some(Way::Nowhere));
        assert_eq!(ask(ip("::1"), None), Some(Way::Nowhere));
        // Not an address of this host.
        assert_eq!(ask(ip("127.0.0.1"), Some(ip("192.0.2.1"))), Some(Way::Nowhere));
        assert_eq!(ask(ip("::1"), Some(ip("2001:db8::1"))), Some(Way::Nowhere));
    }

    #[test]
    fn torn_answers_say_nothing() {
        let mut answer = request("10.0.0.1".parse().unwrap(), None);
        answer[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        answer[HEADER + 7] = libc::RTN_UNICAST;
        assert_eq!(read(&answer), None, "no interface");
        let len = answer.len() as u32 + 8;
        answer[..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(read(&answer), None, "shorter than it says");
        answer.extend(8u16.to_ne_bytes());
        answer.extend(libc::RTA_OIF.to_ne_bytes());
        answer.extend(7u32.to_ne_bytes());
        assert_eq!(read(&answer), Some(Way::By { interface: 7, source: None }));
        (0..answer.len()).for_each(|n| assert_eq!(read(&answer[..n]), None, "{n}"));
    }
}
