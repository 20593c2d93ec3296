//! Control messages (cmsg(3)) of datagrams: those that the program sends, and those of a received
//! datagram or of one that did not arrive.
use crate::error_queue::ErrorEntry;
use crate::mem::{self, is_possible};
use crate::options::{TCP_INQ, UDP_GRO, UDP_SEGMENT};
use crate::receive::{Arrival, ReceiveControl};
use crate::send_datagram::SendControl;
use libc::{
    CMSG_DATA, CMSG_LEN, CMSG_SPACE, IP_PKTINFO, IP_RECVERR, IP_TOS, IP_TTL, IPPROTO_IP,
    IPPROTO_IPV6, IPV6_HOPLIMIT, IPV6_PKTINFO, IPV6_RECVERR, IPV6_TCLASS, MSG_CTRUNC, SCM_RIGHTS,
    SOL_SOCKET, c_int, cmsghdr, msghdr, size_t, sockaddr,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = size_of::<cmsghdr>();

/// The family of a packet, and of the socket that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, from a socket of `AF_INET`.
    V4,
    /// IPv4, from a socket of `AF_INET6`.
    Mapped,
    /// IPv6.
    V6,
}

/// Reads the control messages of a datagram to send, for a packet of this family: Linux ignores
/// most of those of the other one. Errors are Linux's errnos.
///
/// # Safety
/// The program's message, which waits for this call.
pub unsafe fn read(message: &msghdr, family: Family) -> Result<SendControl, i32> {
    let mut send_control = SendControl::default();
    if message.msg_controllen == 0 {
        return Ok(send_control);
    }
    // SAFETY: the caller's promise.
    for one in unsafe { walk(message) }.ok_or(libc::EFAULT)? {
        let One { of, value } = one?;
        take(&mut send_control, of, value, family)?;
    }
    Ok(send_control)
}

/// The descriptors in the control messages of a message over a Unix socket. The message need not be
/// well-formed.
///
/// # Safety
/// The message's control messages, of the length that it says, can be read.
pub unsafe fn rights(message: &msghdr) -> Vec<c_int> {
    // SAFETY: the caller's promise.
    let all = unsafe { walk(message) }.into_iter().flatten().map_while(Result::ok);
    let rights = all.filter(|one| one.of == (SOL_SOCKET, SCM_RIGHTS));
    let numbers = rights.flat_map(|one| one.value.as_chunks::<{ size_of::<c_int>() }>().0);
    numbers.map(|number| c_int::from_ne_bytes(*number)).collect()
}

/// One control message.
struct One<'a> {
    /// Its level and its type.
    of: (c_int, c_int),
    value: &'a [u8],
}

/// The control messages of a message, up to the first one that is cut off, which is EINVAL. `None`:
/// they are at an impossible address.
///
/// # Safety
/// The control messages, of the length that the message says, can be read while they are walked.
unsafe fn walk(message: &msghdr) -> Option<impl Iterator<Item = Result<One<'_>, i32>>> {
    let len = message.msg_controllen;
    if !is_possible(message.msg_control, len) {
        return None;
    }
    let all: &[u8] = match len {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { core::slice::from_raw_parts(message.msg_control.cast(), len) },
    };
    let mut at = 0;
    Some(core::iter::from_fn(move || {
        let head = all.get(at..at + HEADER)?;
        // SAFETY: enough bytes, and any are a valid header.
        let head = unsafe { head.as_ptr().cast::<cmsghdr>().read_unaligned() };
        let value = all.get(at + HEADER..at.saturating_add(head.cmsg_len));
        at = at.saturating_add(head.cmsg_len.next_multiple_of(size_of::<size_t>()));
        let of = (head.cmsg_level, head.cmsg_type);
        Some(value.map(|value| One { of, value }).ok_or(libc::EINVAL))
    }))
}

/// A hop limit; -1 is the socket's. No packet of IX has 0, and 1 goes as far.
fn hop_limit(value: i32) -> Result<Option<u8>, i32> {
    match value {
        -1 => Ok(None),
        _ => u8::try_from(value).map(|hops| Some(hops.max(1))).map_err(|_| libc::EINVAL),
    }
}

/// Takes in one control message.
fn take(
    send_control: &mut SendControl,
    (level, kind): (c_int, c_int),
    value: &[u8],
    family: Family,
) -> Result<(), i32> {
    let int = |bytes: &[u8]| bytes.try_into().map(i32::from_ne_bytes).map_err(|_| libc::EINVAL);
    match (level, kind) {
        (SOL_SOCKET, SCM_RIGHTS | libc::SCM_CREDENTIALS) => {}
        (libc::SOL_UDP, UDP_SEGMENT) => {
            let &[low, high] = value else { return Err(libc::EINVAL) };
            send_control.datagram_bytes = Some(u16::from_ne_bytes([low, high]));
        }
        (SOL_SOCKET | libc::SOL_UDP, _) => return Err(libc::EINVAL),
        (IPPROTO_IP, _) if family == Family::V6 => {}
        (IPPROTO_IP, IP_TTL) => match int(value)? {
            ttl @ 1..=255 => send_control.ttl = Some(ttl as u8),
            _ => return Err(libc::EINVAL),
        },
        (IPPROTO_IP, IP_TOS) => match value {
            [tos] => send_control.tos = Some(*tos),
            _ => send_control.tos = Some(u8::try_from(int(value)?).map_err(|_| libc::EINVAL)?),
        },
        (IPPROTO_IP, IP_PKTINFO) => {
            let &[i, j, k, l, a, b, c, d, _, _, _, _] = value else { return Err(libc::EINVAL) };
            send_control.interface = u32::from_ne_bytes([i, j, k, l]);
            let from = Ipv4Addr::new(a, b, c, d);
            send_control.from = (!from.is_unspecified()).then_some(from.into());
        }
        (IPPROTO_IPV6, IPV6_PKTINFO) if family != Family::V4 => {
            let address = value.first_chunk::<16>().filter(|_| value.len() == 20);
            let address = Ipv6Addr::from(*address.ok_or(libc::EINVAL)?).to_canonical();
            let index = value.last_chunk().copied().unwrap_or_default();
            if family == Family::Mapped && address.is_ipv6() {
                return Err(libc::EINVAL);
            }
            send_control.interface = u32::from_ne_bytes(index);
            send_control.from = (!address.is_unspecified()).then_some(address);
        }
        (IPPROTO_IPV6, IPV6_HOPLIMIT) if family == Family::V6 => {
            send_control.ttl = hop_limit(int(value)?)?;
        }
        // As on Linux, -1 is not the socket's.
        (IPPROTO_IPV6, IPV6_TCLASS) if family == Family::V6 => match int(value)? {
            tos @ -1..=255 => send_control.tos = Some(tos as u8),
            _ => return Err(libc::EINVAL),
        },
        (IPPROTO_IPV6, libc::IPV6_FLOWINFO) if family == Family::V6 => {
            let flow_info = value.first_chunk().ok_or(libc::EINVAL)?;
            send_control.flow_info = Some(u32::from_be_bytes(*flow_info));
        }
        (IPPROTO_IPV6, libc::IPV6_DONTFRAG) if family == Family::V6 => match int(value)? {
            on @ 0..=1 => send_control.never_fragment = Some(on == 1),
            _ => return Err(libc::EINVAL),
        },
        (IPPROTO_IPV6, _) if family != Family::V6 => {}
        // Which others there are depends on the kernel.
        (IPPROTO_IP | IPPROTO_IPV6, _) => return Err(libc::EINVAL),
        _ => {}
    }
    Ok(())
}

/// Writes the control messages of a received datagram, and their length; `MSG_CTRUNC` if there is
/// not enough room.
///
/// # Safety
/// The program's message has room where it says.
pub unsafe fn write(message: &mut msghdr, receive_control: &ReceiveControl, ipv6: bool) {
    let mut room = Room { message, used: 0 };
    if let Some((came, stamps)) = receive_control.came {
        let time =
            |fraction: u32| [came.as_secs().to_ne_bytes(), u64::from(fraction).to_ne_bytes()];
        let (micros, nanos) = (time(came.subsec_micros()), time(came.subsec_nanos()));
        if stamps.micros || stamps.nanos {
            let (kind, value) = if stamps.nanos {
                (libc::SO_TIMESTAMPNS, nanos)
            } else {
                (libc::SO_TIMESTAMP, micros)
            };
            // SAFETY: the caller's promise.
            unsafe { room.put(SOL_SOCKET, kind, value.as_flattened()) };
        }
        if stamps.software {
            // `struct scm_timestamping`: the software's time, and two of devices.
            let value = [nanos.as_flattened(), &[0; 32]].concat();
            // SAFETY: the caller's promise.
            unsafe { room.put(SOL_SOCKET, libc::SO_TIMESTAMPING, &value) };
        }
    }
    if let Some(bytes) = receive_control.datagram_bytes {
        // SAFETY: the caller's promise.
        unsafe { room.put(libc::SOL_UDP, UDP_GRO, &i32::from(bytes).to_ne_bytes()) };
    }
    if let Some(unread) = receive_control.unread {
        // SAFETY: the caller's promise.
        unsafe { room.put(libc::IPPROTO_TCP, TCP_INQ, &unread.to_ne_bytes()) };
    }
    if let Some(Arrival { address: IpAddr::V4(to), own: IpAddr::V4(own), interface }) =
        receive_control.local
    {
        let info = [interface.to_ne_bytes(), own.octets(), to.octets()].concat();
        // SAFETY: the caller's promise.
        unsafe { room.put(IPPROTO_IP, IP_PKTINFO, &info) };
    }
    if let Some(Arrival { address, interface, .. }) = receive_control.local_v6 {
        let mapped = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let info = [&mapped.octets()[..], &interface.to_ne_bytes()].concat();
        // SAFETY: the caller's promise.
        unsafe { room.put(IPPROTO_IPV6, IPV6_PKTINFO, &info) };
    }
    let ReceiveControl { hops, tos, is_v6, .. } = *receive_control;
    if let Some(hops) = hops {
        let kind = if is_v6 { (IPPROTO_IPV6, IPV6_HOPLIMIT) } else { (IPPROTO_IP, IP_TTL) };
        // SAFETY: the caller's promise.
        unsafe { room.put(kind.0, kind.1, &i32::from(hops).to_ne_bytes()) };
    }
    match tos {
        // SAFETY: the caller's promise.
        Some(tos) if is_v6 => unsafe {
            room.put(IPPROTO_IPV6, IPV6_TCLASS, &i32::from(tos).to_ne_bytes());
        },
        // SAFETY: the caller's promise.
        Some(tos) => unsafe { room.put(IPPROTO_IP, IP_TOS, &[tos]) },
        None => {}
    }
    if let Some(flow_info) = receive_control.flow_info {
        // SAFETY: the caller's promise.
        unsafe { room.put(IPPROTO_IPV6, libc::IPV6_FLOWINFO, &flow_info.to_be_bytes()) };
    }
    if let Some(error_entry) = &receive_control.error_entry {
        let (level, kind) =
            if ipv6 { (IPPROTO_IPV6, IPV6_RECVERR) } else { (IPPROTO_IP, IP_RECVERR) };
        // SAFETY: the caller's promise.
        unsafe { room.put(level, kind, &extended_error(error_entry, ipv6)) };
    }
    let used = room.used;
    message.msg_controllen = used;
}

/// `struct sock_extended_err`, followed by the sender of the ICMP message.
fn extended_error(error_entry: &ErrorEntry, ipv6: bool) -> Vec<u8> {
    let mut bytes = error_entry.errno.to_ne_bytes().to_vec();
    bytes.extend(match error_entry.said {
        Some(said) if said.by.is_ipv6() => [libc::SO_EE_ORIGIN_ICMP6, said.kind, said.code, 0],
        Some(said) => [libc::SO_EE_ORIGIN_ICMP, said.kind, said.code, 0],
        None => [libc::SO_EE_ORIGIN_LOCAL, 0, 0, 0],
    });
    bytes.extend(u32::from(error_entry.info).to_ne_bytes());
    bytes.extend([0; 4]);
    let mut offender = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut len = if ipv6 { offender.len() } else { size_of::<libc::sockaddr_in>() } as u32;
    let at = &mut offender[..len as usize];
    if let Some(said) = error_entry.said {
        let from = std::net::SocketAddr::new(said.by, 0);
        // SAFETY: room of ours with its length.
        unsafe { mem::write_address(from, ipv6, at.as_mut_ptr().cast::<sockaddr>(), &mut len) };
    }
    bytes.extend(&*at);
    bytes
}

/// The program's room for control messages.
struct Room<'a> {
    message: &'a mut msghdr,
    used: usize,
}

impl Room<'_> {
    /// Appends a control message, as much of it as there is room for.
    ///
    /// # Safety
    /// The program's message has room where it says.
    unsafe fn put(&mut self, level: c_int, kind: c_int, value: &[u8]) {
        let left = self.message.msg_controllen.saturating_sub(self.used);
        if self.message.msg_control.is_null() || left < HEADER {
            self.message.msg_flags |= MSG_CTRUNC;
            return;
        }
        // SAFETY: only computes sizes.
        let (whole, space) =
            unsafe { (CMSG_LEN(value.len() as u32), CMSG_SPACE(value.len() as u32)) };
        let len = left.min(whole as usize);
        if len < whole as usize {
            self.message.msg_flags |= MSG_CTRUNC;
        }
        // SAFETY: `len` of the `left` bytes of room from here on.
        unsafe {
            let at = self.message.msg_control.cast::<u8>().add(self.used).cast::<cmsghdr>();
            let head = cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind };
            at.write_unaligned(head);
            CMSG_DATA(at).copy_from_nonoverlapping(value.as_ptr(), len - HEADER);
        }
        self.used += left.min(space as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;
    use libix::raw::Said;
    use proptest::prelude::*;

    fn message(control: &mut [u8]) -> msghdr {
        msghdr {
            msg_name: null_mut(),
            msg_namelen: 0,
            msg_iov: null_mut(),
            msg_iovlen: 0,
            msg_control: control.as_mut_ptr().cast(),
            msg_controllen: control.len(),
            msg_flags: 0,
        }
    }

    fn header(len: usize, level: c_int, kind: c_int) -> Vec<u8> {
        let words = [level.to_ne_bytes(), kind.to_ne_bytes()].concat();
        [&len.to_ne_bytes()[..], &words].concat()
    }

    #[test]
    fn what_is_told_can_be_said() {
        let address = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
        let local = Some(Arrival { address, own: address, interface: 7 });
        let receive_control =
            ReceiveControl { local, local_v6: local, ..ReceiveControl::default() };
        let mut room = [0u8; 100];
        let mut message = message(&mut room);
        // SAFETY: room of ours.
        unsafe { write(&mut message, &receive_control, false) };
        assert_eq!((message.msg_controllen, message.msg_flags), (32 + 40, 0));
        // `ipi_spec_dst` is what the next datagram comes from.
        // SAFETY: as it was written.
        let send_control = unsafe { read(&message, Family::Mapped) }.unwrap();
        let from = Some(Ipv4Addr::new(10, 1, 2, 3).into());
        assert_eq!(send_control, SendControl { from, interface: 7, ..SendControl::default() });
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let said = |len, level, kind, value: &[u8]| {
            let mut bytes = [header(len, level, kind), value.to_vec()].concat();
            // SAFETY: bytes of ours.
            unsafe { read(&message(&mut bytes), Family::V4) }
        };
        let ttl = |value: i32| said(20, IPPROTO_IP, IP_TTL, &value.to_ne_bytes());
        assert_eq!(ttl(7), Ok(SendControl { ttl: Some(7), ..SendControl::default() }));
        assert_eq!((ttl(0), ttl(256)), (Err(libc::EINVAL), Err(libc::EINVAL)));
        let tos = Ok(SendControl { tos: Some(8), ..SendControl::default() });
        assert_eq!(said(17, IPPROTO_IP, IP_TOS, &[8]), tos);
        assert_eq!(said(20, IPPROTO_IP, IP_TOS, &8i32.to_ne_bytes()), tos);
        assert_eq!(said(20, IPPROTO_IP, 999, &[0; 4]), Err(libc::EINVAL));
        assert_eq!(
            said(21, IPPROTO_IP, IP_TTL, &[0; 4]),
            Err(libc::EINVAL),
            "longer than there is"
        );
        assert_eq!(
            said(15, IPPROTO_IP, IP_TTL, &[0; 4]),
            Err(libc::EINVAL),
            "shorter than a header"
        );
        assert_eq!(said(16, SOL_SOCKET, SCM_RIGHTS, &[]), Ok(SendControl::default()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for family in [Family::V4, Family::Mapped, Family::V6] {
                // SAFETY: bytes of ours.
                let _ = unsafe { read(&message(&mut bytes), family) };
            }
        }

        #[test]
        fn what_has_no_room_is_cut(room in 0usize..100, ipv6: bool) {
            let to: std::net::SocketAddr = "10.0.0.9:53".parse().unwrap();
            let said = Some(Said { kind: 3, code: 3, detail: 0, by: to.ip() });
            let error_entry = Some(ErrorEntry { to, errno: libc::ECONNREFUSED, said, info: 0 });
            let arrival = Arrival { address: to.ip(), own: to.ip(), interface: 1 };
            let receive_control = ReceiveControl {
                local: Some(arrival),
                error_entry,
                ..ReceiveControl::default()
            };
            let mut bytes = [0xa5u8; 120];
            let mut message = message(&mut bytes[..room]);
            // SAFETY: room of ours.
            unsafe { write(&mut message, &receive_control, ipv6) };
            let (used, flags) = (message.msg_controllen, message.msg_flags);
            prop_assert!(used <= room);
            prop_assert!(bytes[room..].iter().all(|byte| *byte == 0xa5));
            let whole = 32 + if ipv6 { 16 + 16 + 28 } else { 16 + 16 + 16 };
            prop_assert_eq!(flags & MSG_CTRUNC == 0, room >= whole);
        }
    }
}
