//! Reading and writing memory that the program passes by pointers. All unsafe code for it is here.
//!
//! The program's pointers must be valid, as for Linux. An address that no program can have, such as
//! null, returns EFAULT as on Linux. Any other wrong pointer is a fault here.
use crate::{family, real};
use core::mem::MaybeUninit;
use libc::{AF_INET, AF_INET6, iovec, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Pieces of memory that a call may write, in order.
pub struct Scatter<'a> {
    pieces: &'a [iovec],
    offset: usize,
    left: usize,
    wrong: bool,
}

/// Pieces of memory that a call may read, in order.
pub struct Gather<'a> {
    pieces: &'a [iovec],
    offset: usize,
    left: usize,
    wrong: bool,
}

/// The lowest address that Linux gives to a program.
const LOWEST: usize = 0x1000;
/// The end of the highest addresses (47 bits).
const BEHIND: usize = 0x7fff_ffff_f000;

/// Whether a program can have memory at this address, of this length.
pub fn is_possible<T>(at: *const T, len: usize) -> bool {
    let first = at.addr();
    len == 0 || (first >= LOWEST && first.checked_add(len).is_some_and(|end| end <= BEHIND))
}

/// Whether Linux can read memory of this length, at most a page and at least eight bytes, there. It
/// takes a system call or two, so this is not for what is called often.
pub fn is_readable(at: *const u8, len: usize) -> bool {
    const NO_WAY: i32 = -1;
    const BYTES: usize = 8;
    let old = core::ptr::null_mut::<libc::sigset_t>();
    let is_there = |at: *const u8| {
        // Linux reads a set of signals before it looks at what to do with it, and refuses that.
        // SAFETY: Linux checks the address, and changes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_WAY, at, old, BYTES) };
        real::errno() != libc::EFAULT
    };
    is_possible(at, len) && is_there(at) && (len <= BYTES || is_there(at.wrapping_add(len - BYTES)))
}

/// Whether Linux can read an address of a socket there, which a direct call has passed. (The C
/// library's functions are given addresses that can be read.)
pub fn is_readable_name(at: *const u8, len: usize) -> bool {
    /// Of `sockaddr_storage`.
    const LONGEST: usize = 128;
    len < 8 || is_readable(at, len.min(LONGEST))
}

fn is_wrong(pieces: &[iovec]) -> bool {
    pieces.iter().any(|piece| !is_possible(piece.iov_base, piece.iov_len))
}

/// The pieces at `iov`. `Err` is the errno that Linux returns; `too_many` is the one for too many
/// pieces.
///
/// # Safety
/// `iov` points to `count` structures that do not change during `'a`.
pub unsafe fn pieces<'a>(
    iov: *const iovec,
    count: usize,
    too_many: i32,
) -> Result<&'a [iovec], i32> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !is_possible(iov, count * size_of::<iovec>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    let pieces = unsafe { core::slice::from_raw_parts(iov, count) };
    let sum = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len));
    match sum {
        Some(sum) if sum <= isize::MAX as usize => Ok(pieces),
        _ => Err(libc::EINVAL),
    }
}

fn sum(pieces: &[iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

impl<'a> Scatter<'a> {
    /// # Safety
    /// Each piece names memory that may be written during `'a`.
    pub unsafe fn new(pieces: &'a [iovec]) -> Scatter<'a> {
        Scatter { pieces, offset: 0, left: sum(pieces), wrong: is_wrong(pieces) }
    }

    /// Whether a piece is at an impossible address: EFAULT.
    #[inline]
    pub fn is_wrong(&self) -> bool {
        self.wrong
    }

    /// Bytes that still fit.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Copies as many of `bytes` as fit. Returns how many.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let mut from = bytes;
        while !from.is_empty() {
            let Some(piece) = self.pieces.first() else { break };
            let n = from.len().min(piece.iov_len - self.offset);
            // SAFETY: `n` bytes within a piece that may be written (`new`). The source is received
            // bytes or our own memory, which the program's pieces cannot overlap.
            unsafe {
                let to = piece.iov_base.cast::<u8>().add(self.offset);
                to.copy_from_nonoverlapping(from.as_ptr(), n);
            }
            from = &from[n..];
            self.advance(n);
        }
        bytes.len() - from.len()
    }

    /// Skips the room of up to `n` bytes without writing. Returns how many.
    pub fn skip(&mut self, n: usize) -> usize {
        let n = n.min(self.left);
        let mut rest = n;
        while rest > 0 {
            let step = rest.min(self.pieces[0].iov_len - self.offset);
            self.advance(step);
            rest -= step;
        }
        n
    }

    fn advance(&mut self, n: usize) {
        self.left -= n;
        self.offset += n;
        while let Some(piece) = self.pieces.first().filter(|piece| piece.iov_len == self.offset) {
            self.offset -= piece.iov_len;
            self.pieces = &self.pieces[1..];
        }
    }
}

impl<'a> Gather<'a> {
    /// # Safety
    /// Each piece names memory that may be read during `'a` and is not written meanwhile.
    pub unsafe fn new(pieces: &'a [iovec]) -> Gather<'a> {
        Gather { pieces, offset: 0, left: sum(pieces), wrong: is_wrong(pieces) }
    }

    /// Whether a piece is at an impossible address: EFAULT.
    #[inline]
    pub fn is_wrong(&self) -> bool {
        self.wrong
    }

    /// How many bytes are left.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// The next bytes, as far as they are contiguous.
    #[inline]
    pub fn front(&self) -> &'a [u8] {
        let Some(piece) = self.pieces.iter().find(|piece| piece.iov_len > 0) else { return &[] };
        let offset = if core::ptr::eq(piece, &raw const self.pieces[0]) { self.offset } else { 0 };
        // SAFETY: within a piece that may be read (`new`).
        unsafe {
            let from = piece.iov_base.cast::<u8>().add(offset);
            core::slice::from_raw_parts(from, piece.iov_len - offset)
        }
    }

    /// Skips the next `n` bytes (of [`Gather::front`]).
    #[inline]
    pub fn advance(&mut self, mut n: usize) {
        self.left -= n;
        while let Some(piece) = self.pieces.first() {
            let step = n.min(piece.iov_len - self.offset);
            self.offset += step;
            n -= step;
            if self.offset < piece.iov_len {
                break;
            }
            self.offset = 0;
            self.pieces = &self.pieces[1..];
        }
    }
}

/// Reads an Internet address, of the family that it says. `Err` is the errno that Linux returns.
///
/// # Safety
/// `address` points to `len` readable bytes.
pub unsafe fn read_address(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr, i32> {
    if !is_possible(address, len as usize) || address.is_null() {
        return Err(libc::EFAULT);
    }
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: that many bytes are readable.
    let family = i32::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() });
    match family {
        AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: as above; any bytes are a `sockaddr_in`.
            let a = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(a.sin_addr.s_addr).into();
            Ok(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
        }
        AF_INET6 if len as usize >= 24 => {
            let mut a = MaybeUninit::<sockaddr_in6>::zeroed();
            let n = (len as usize).min(size_of::<sockaddr_in6>());
            // SAFETY: as above, and no more than there is room for.
            unsafe { address.cast::<u8>().copy_to_nonoverlapping(a.as_mut_ptr().cast(), n) };
            // SAFETY: all bytes are set, and any are a `sockaddr_in6`.
            let a = unsafe { a.assume_init() };
            let (ip, port) = (Ipv6Addr::from(a.sin6_addr.s6_addr), u16::from_be(a.sin6_port));
            Ok(SocketAddrV6::new(ip, port, 0, a.sin6_scope_id).into())
        }
        AF_INET | AF_INET6 => Err(libc::EINVAL),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// The flow information of an IPv6 address that [`read_address`] has read, in host byte order: flow
/// label and traffic class. 0: none.
///
/// # Safety
/// As [`read_address`].
pub unsafe fn flow_info(address: *const sockaddr, len: socklen_t) -> u32 {
    const BITS: u32 = 0x0fff_ffff;
    // SAFETY: the caller's promise.
    if unsafe { family(address, len) } != Some(AF_INET6) || len < 8 {
        return 0;
    }
    // SAFETY: the caller's promise: this field is within the first eight bytes.
    let raw =
        unsafe { (&raw const (*address.cast::<sockaddr_in6>()).sin6_flowinfo).read_unaligned() };
    u32::from_be(raw) & BITS
}

/// The family of an address; `None` if there is no address.
///
/// # Safety
/// As [`read_address`].
pub unsafe fn family(address: *const sockaddr, len: socklen_t) -> Option<i32> {
    let too_short = (len as usize) < size_of::<libc::sa_family_t>();
    if too_short || !is_possible(address, len as usize) {
        return None;
    }
    // SAFETY: that many bytes are readable.
    Some(i32::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() }))
}

/// Whether Linux would write an address there: EFAULT for impossible addresses, EINVAL for a length
/// below zero.
///
/// # Safety
/// If `len` is a possible address, it can be read.
pub unsafe fn check_room(to: *const sockaddr, len: *const socklen_t) -> Result<(), i32> {
    if !is_possible(to, 1) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { check_length(len) }
}

/// The same of the length alone, where there is no address to write.
///
/// # Safety
/// If `len` is a possible address, it can be read.
pub unsafe fn check_length(len: *const socklen_t) -> Result<(), i32> {
    if !is_possible(len, size_of::<socklen_t>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    match unsafe { len.read_unaligned() } > i32::MAX as socklen_t {
        true => Err(libc::EINVAL),
        false => Ok(()),
    }
}

/// Writes an address as Linux does: as many bytes as there is room for, and its full length. With
/// `ipv6` IPv4 addresses are mapped.
///
/// # Safety
/// Both are null, or `len` can be read and written and says how many bytes can be written at `to`.
pub unsafe fn write_address(at: SocketAddr, ipv6: bool, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    let put = |bytes: &[u8]| {
        // SAFETY: the caller's promise; no more than there is room for.
        unsafe {
            let n = (*len as usize).min(bytes.len());
            to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), n);
            *len = bytes.len() as socklen_t;
        }
    };
    match family::shown(at) {
        SocketAddr::V4(v4) if !ipv6 => {
            let mut bytes = [0u8; size_of::<sockaddr_in>()];
            bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            put(&bytes);
        }
        at => {
            let v6 = match at {
                SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0),
                SocketAddr::V6(v6) => v6,
            };
            let mut bytes = [0u8; size_of::<sockaddr_in6>()];
            bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..].copy_from_slice(&v6.scope_id().to_ne_bytes());
            put(&bytes);
        }
    }
}

/// Received bytes from `skip` on.
///
/// # Safety
/// As [`libix::raw::Received::bytes`].
#[inline]
pub unsafe fn received<'a>(data: libix::raw::Received, skip: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    let bytes: &'a [u8] = unsafe { data.bytes() };
    &bytes[skip..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iov(part: &mut [u8]) -> iovec {
        iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }
    }

    #[test]
    fn scatter_and_gather_pass_over_empty_pieces() {
        let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 4]);
        let list = [iov(&mut b), iov(&mut a), iov(&mut b), iov(&mut c)];
        // SAFETY: arrays of ours.
        let mut scatter = unsafe { Scatter::new(pieces(list.as_ptr(), 4, libc::EINVAL).unwrap()) };
        assert_eq!((scatter.left(), scatter.put(b"1234"), scatter.left()), (7, 4, 3));
        assert_eq!((scatter.put(b"56789"), scatter.put(b"x")), (3, 0));
        // SAFETY: as above.
        let mut gather = unsafe { Gather::new(pieces(list.as_ptr(), 4, libc::EINVAL).unwrap()) };
        let mut all = Vec::new();
        while gather.left() > 0 {
            let n = gather.front().len().min(2);
            all.extend_from_slice(&gather.front()[..n]);
            gather.advance(n);
        }
        assert_eq!(all, b"1234567");
        assert_eq!(gather.front(), b"");
    }

    #[test]
    fn addresses_come_back_in_either_family() {
        for (text, ipv6, expected) in [
            ("10.1.2.3:80", false, "10.1.2.3:80"),
            ("10.1.2.3:80", true, "[::ffff:10.1.2.3]:80"),
            ("0.0.0.0:80", true, "[::ffff:0.0.0.0]:80"),
            ("[fe80::1%7]:9", true, "[fe80::1%7]:9"),
            ("[::]:9", true, "[::]:9"),
            ("[ff00::]:9", true, "[::]:9"),
        ] {
            let (at, expected): (SocketAddr, SocketAddr) =
                (text.parse().unwrap(), expected.parse().unwrap());
            let mut room = [0u8; 40];
            let mut len = room.len() as socklen_t;
            // SAFETY: locals.
            let back = unsafe {
                write_address(at, ipv6, room.as_mut_ptr().cast(), &mut len);
                read_address(room.as_ptr().cast(), len)
            };
            assert_eq!((back, len), (Ok(expected), if ipv6 { 28 } else { 16 }));
        }
        // SAFETY: locals.
        unsafe {
            assert_eq!(read_address([2u8, 0].as_ptr().cast(), 2), Err(libc::EINVAL));
            assert_eq!(read_address([1u8, 0].as_ptr().cast(), 2), Err(libc::EAFNOSUPPORT));
            assert_eq!(read_address(core::ptr::null(), 16), Err(libc::EFAULT));
        }
    }
}
