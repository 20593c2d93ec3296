//! Reassembly of IP datagrams (RFC 791 section 3.2, RFC 815; RFC 8200 section 4.5), within limits.
//!
//! The sender of fragments decides what is kept for them, so everything is limited: datagrams,
//! those of one source, fragments of one datagram, octets, time. A datagram whose fragments overlap
//! is refused with all that still arrives of it (RFC 5722, which IPv4 follows here too), because
//! hosts do not agree which of the octets count. The transport header must be in the first fragment
//! (RFC 1858).
use ix_wire::{Fragment, IpAddr, IpMeta};

/// How long the rest of a datagram over IPv4 may take. RFC 791 section 3.2 suggests 15 s. After a
/// longer time identifications are used again, and fragments of different datagrams are mixed (RFC
/// 4963).
pub const TIMEOUT_US: u64 = 15_000_000;
/// The same over IPv6, whose identifications are longer (RFC 8200 section 4.5).
pub const TIMEOUT_V6_US: u64 = 60_000_000;
/// Most incomplete datagrams, of all sources and of one.
const DATAGRAMS_MAX: usize = 32;
const OF_ONE_SOURCE_MAX: usize = 8;
/// Most fragments of one datagram: as many as the longest one has on a link of 1280 octets.
const PIECES_MAX: usize = 64;

/// Why a fragment is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It was received before; the datagram is not affected.
    Duplicate,
    /// The first fragment does not hold the whole transport header, or another fragment overwrites
    /// it.
    Tiny,
    /// It overlaps others, or is beyond the datagram's end. The datagram is refused.
    Overlap,
    /// The datagram is longer than there is room for, and is refused.
    TooLong,
    /// The datagram has too many fragments, and is refused.
    TooMany,
    /// Its datagram was refused before.
    GivenUp,
    /// No buffer was free.
    NoBuffer,
    /// It is marked by the network, though its sender does not use ECN (RFC 3168 section 5.3).
    Mark,
}

/// Identifies an incomplete datagram (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    ident: u32,
}

/// An incomplete datagram.
#[derive(Debug)]
struct Held<B> {
    key: Key,
    born_us: u64,
    /// First octet and end of each fragment.
    pieces: Vec<(u16, u16)>,
    octets: usize,
    /// End of the datagram, once the last fragment has arrived.
    end: Option<u16>,
    /// The ECN fields seen, as a set of bits.
    ecn: u8,
    /// Ethernet and IP part of the first fragment.
    first: Option<IpMeta>,
    /// `None`: the datagram is refused; the entry remains for its other fragments.
    buf: Option<B>,
}

/// A complete datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole<B> {
    /// The buffer with its octets.
    pub buf: B,
    /// Ethernet and IP part of its first fragment.
    pub ip: IpMeta,
    /// The ECN bits of the whole datagram.
    pub ecn: u8,
    /// Octets of payload.
    pub len: usize,
}

/// A datagram that was not complete in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired<B> {
    /// The buffer with its octets, unless the datagram was refused.
    pub buf: Option<B>,
    /// Ethernet and IP part of its first fragment, if that has arrived: then the sender gets an
    /// ICMP error (RFC 1122 section 3.3.2).
    pub first: Option<IpMeta>,
    /// It came over IPv6.
    pub is_v6: bool,
}

/// Incomplete datagrams. `B` is a buffer that holds the payload of one.
#[derive(Debug)]
pub struct Fragments<B> {
    /// Oldest first.
    held: Vec<Held<B>>,
    room_bytes: usize,
}

impl<B> Fragments<B> {
    /// For buffers with room for `room_bytes` of payload.
    pub fn new(room_bytes: usize) -> Self {
        Fragments { held: Vec::new(), room_bytes }
    }

    /// True if there is no incomplete datagram.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Finds the place of a fragment. Copy its payload to its offset in the returned buffer, then
    /// call [`Self::take_whole`], which may return the datagram. `take` allocates a buffer, `free`
    /// frees those of refused datagrams.
    pub fn place(
        &mut self,
        fragment: &Fragment,
        now_us: u64,
        take: impl FnOnce() -> Option<B>,
        mut free: impl FnMut(B),
    ) -> Result<&mut B, Refused> {
        if is_tiny(fragment) {
            return Err(Refused::Tiny);
        }
        let at = self.find_or_begin(fragment, now_us, take, &mut free)?;
        let room_bytes = self.room_bytes;
        let held = &mut self.held[at];
        if let Err(refused) = held.admit(fragment, room_bytes) {
            if refused != Refused::Duplicate {
                held.buf.take().into_iter().for_each(free);
            }
            return Err(refused);
        }
        held.buf.as_mut().ok_or(Refused::GivenUp)
    }

    fn find_or_begin(
        &mut self,
        fragment: &Fragment,
        now_us: u64,
        take: impl FnOnce() -> Option<B>,
        free: &mut impl FnMut(B),
    ) -> Result<usize, Refused> {
        let key = key_of(fragment);
        if let Some(at) = self.held.iter().position(|held| held.key == key) {
            return Ok(at);
        }
        // The oldest makes room: it hardly will be complete any more. One of the same source goes
        // first, so that one sender cannot push out all others.
        let of_source = |held: &Held<B>| held.key.src == key.src;
        let crowd = self.held.iter().filter(|held| of_source(held)).count() >= OF_ONE_SOURCE_MAX;
        if crowd && let Some(at) = self.held.iter().position(of_source) {
            self.held.remove(at).buf.into_iter().for_each(&mut *free);
        } else if self.held.len() >= DATAGRAMS_MAX {
            self.held.remove(0).buf.into_iter().for_each(free);
        }
        let buf = Some(take().ok_or(Refused::NoBuffer)?);
        let (pieces, end, first) = (Vec::new(), None, None);
        let (octets, ecn) = (0, 0);
        self.held.push(Held { key, born_us: now_us, pieces, octets, end, ecn, first, buf });
        Ok(self.held.len() - 1)
    }

    /// Refuses the datagram of a placed fragment, for which there was no room after all.
    pub fn give_up(&mut self, fragment: &Fragment, free: impl FnMut(B)) {
        let key = key_of(fragment);
        let its = self.held.iter_mut().filter(|held| held.key == key);
        its.filter_map(|held| held.buf.take()).for_each(free);
    }

    /// The datagram of a placed fragment, if it is complete now.
    pub fn take_whole(
        &mut self,
        fragment: &Fragment,
        free: impl FnMut(B),
    ) -> Result<Option<Whole<B>>, Refused> {
        let key = key_of(fragment);
        let Some(at) = self.held.iter().position(|held| held.key == key && held.is_whole()) else {
            return Ok(None);
        };
        let Held { first, ecn, buf, octets, .. } = self.held.remove(at);
        let (Some(ip), Some(buf)) = (first, buf) else { return Ok(None) };
        match ecn_of(ecn) {
            Some(ecn) => Ok(Some(Whole { buf, ip, ecn, len: octets })),
            None => {
                Some(buf).into_iter().for_each(free);
                Err(Refused::Mark)
            }
        }
    }

    /// The next datagram whose time is over.
    pub fn expire(&mut self, now_us: u64) -> Option<Expired<B>> {
        let at = self.held.iter().position(|held| now_us >= held.deadline_us())?;
        let Held { buf, first, key, .. } = self.held.remove(at);
        Some(Expired { buf, first, is_v6: key.dst.is_v6() })
    }

    /// When [`Self::expire`] next has a datagram.
    pub fn deadline_us(&self) -> Option<u64> {
        self.held.iter().map(Held::deadline_us).min()
    }
}

impl<B> Held<B> {
    fn deadline_us(&self) -> u64 {
        let timeout_us = if self.key.dst.is_v6() { TIMEOUT_V6_US } else { TIMEOUT_US };
        self.born_us.saturating_add(timeout_us)
    }

    fn admit(&mut self, fragment: &Fragment, room_bytes: usize) -> Result<(), Refused> {
        if self.buf.is_none() {
            return Err(Refused::GivenUp);
        }
        let (from, len) = (fragment.offset, fragment.payload.len);
        let to = from.checked_add(len).ok_or(Refused::TooLong)?;
        let last_agrees = fragment.more || self.end.is_none_or(|end| end == to);
        if self.pieces.contains(&(from, to)) && last_agrees {
            return Err(Refused::Duplicate);
        }
        if usize::from(to) > room_bytes {
            return Err(Refused::TooLong);
        }
        let overlaps = |&(other_from, other_to): &(u16, u16)| from < other_to && other_from < to;
        let beyond = self.end.is_some_and(|end| to > end);
        let before = !fragment.more && self.pieces.iter().any(|piece| piece.1 > to);
        if self.pieces.iter().any(overlaps) || beyond || before || !last_agrees {
            return Err(Refused::Overlap);
        }
        if self.pieces.len() == PIECES_MAX {
            return Err(Refused::TooMany);
        }
        self.pieces.push((from, to));
        self.octets += usize::from(len);
        self.ecn |= 1 << (fragment.ip.ecn());
        if !fragment.more {
            self.end = Some(to);
        }
        if from == 0 {
            self.first = Some(fragment.ip);
        }
        Ok(())
    }

    /// No two fragments overlap and none is beyond the end, so counting octets is enough.
    fn is_whole(&self) -> bool {
        self.buf.is_some() && self.end.is_some_and(|end| usize::from(end) == self.octets)
    }
}

fn key_of(fragment: &Fragment) -> Key {
    let Fragment { ip, protocol, ident, .. } = fragment;
    Key { src: ip.src, dst: ip.dst, protocol: *protocol, ident: *ident }
}

/// RFC 1858 sections 2 and 3: a first fragment without the whole transport header, or another one
/// that begins within that header, is meant to get past filters. Over IPv6 the second one overlaps.
fn is_tiny(fragment: &Fragment) -> bool {
    let needed = fragment.headers_bytes;
    let first_is_short = fragment.offset == 0 && fragment.payload.len < needed;
    first_is_short || fragment.offset > 0 && fragment.offset < needed
}

/// RFC 3168 section 5.3: one mark marks the datagram. A mark beside a fragment whose sender does
/// not use ECN means that the datagram is dropped.
fn ecn_of(seen: u8) -> Option<u8> {
    const NOT_CAPABLE: u8 = 1;
    const MARKED: u8 = 1 << 3;
    match seen {
        _ if seen & MARKED != 0 && seen & NOT_CAPABLE != 0 => None,
        _ if seen & MARKED != 0 => Some(3),
        _ if seen & NOT_CAPABLE != 0 => Some(0),
        // ECT(1) or ECT(0), or both: either may be used.
        _ => Some(if seen & 1 << 2 != 0 { 2 } else { 1 }),
    }
}

#[cfg(test)]
mod tests;
