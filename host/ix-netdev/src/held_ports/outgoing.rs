//! Ports that IX has for connections which it opens: a block from the start, and ranges that are
//! added on demand.
use super::{Held, HeldPorts, has_room, hear_nothing, key};
use crate::transport::{Family, Transport};
use ix_sys::socket::{self, bind_inet, set_option};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::PoisonError;

/// Linux's range of ports for connections of its own.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The same where it says nothing.
const RANGE_DEFAULT: (u16, u16) = (32_768, 60_999);
/// Ports of it that Linux gives to no socket that does not name them.
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// Ports that are added to those for outgoing connections at once.
const ADDED_AT_ONCE: u16 = 64;

impl HeldPorts {
    /// Takes `count` ports of both protocols that follow each other, out of Linux's range for
    /// connections, where only such connections look for ports. `seed` chooses the place to look
    /// first.
    pub fn hold_block(&self, count: u16, seed: u64) -> io::Result<(u16, u16)> {
        self.find_block(count, seed, &Transport::ALL)
    }

    /// Takes ranges of about `count` more TCP ports for outgoing connections, and fewer if Linux
    /// uses many: half of its range stays its own, whatever all runs together want.
    pub fn add_outgoing(&self, count: u16, seed: u64) -> Vec<(u16, u16)> {
        let local = LocalPorts::read();
        let most = local.count() / 2;
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        let more = usize::from(count).min(most.saturating_sub(self.count_taken(&local)));
        let mut new = Vec::new();
        let mut seed = seed;
        for _ in 0..more / usize::from(ADDED_AT_ONCE) {
            let Ok(block) = self.find_block(ADDED_AT_ONCE, seed, &[Transport::Tcp]) else { break };
            // The next one is likely free.
            seed = u64::from(block.1 - local.first) + 1;
            new.push(block);
        }
        // Another run may have taken some at the same moment: each has written its own before it
        // counts, so that one of both sees all.
        let mut taken = self.count_taken(&local);
        while taken > most
            && let Some((first, last)) = new.pop()
        {
            (first..=last).for_each(|port| self.release_alone(Transport::Tcp, port));
            taken = taken.saturating_sub(usize::from(ADDED_AT_ONCE));
        }
        added.extend(&new);
        new
    }

    /// How many TCP ports of Linux's range are those of runs.
    fn count_taken(&self, local: &LocalPorts) -> usize {
        let first = key((Transport::Tcp, Family::V4, local.first));
        let owners = self.owned.values(first, u32::from(local.last - local.first) + 1);
        // Where it is not known, no more are taken.
        owners.map_or(usize::MAX, |owners| owners.iter().filter(|owner| **owner != 0).count())
    }

    /// Ranges that were added, for a dataplane that begins.
    pub fn added(&self) -> Vec<(u16, u16)> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives back a range that was added.
    pub fn return_outgoing(&self, range: (u16, u16)) {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        let before = added.len();
        added.retain(|has| *has != range);
        if added.len() != before {
            (range.0..=range.1).for_each(|port| self.release_alone(Transport::Tcp, port));
        }
    }

    fn find_block(
        &self,
        count: u16,
        seed: u64,
        transports: &[Transport],
    ) -> io::Result<(u16, u16)> {
        let local = LocalPorts::read();
        let places = u64::from(local.last - local.first) + 1;
        let seed = seed % places;
        let mut at = 0;
        while at + u64::from(count) <= places {
            // Wraps once.
            let start = (seed + at) % places;
            if start + u64::from(count) > places {
                at += places - start;
                continue;
            }
            let start = local.first + start as u16;
            let range = (start, start + (count - 1));
            let held = match local.reserved_within(range) {
                Some(reserved) => Err((reserved, io::Error::from_raw_os_error(libc::EADDRINUSE))),
                None => self.hold_range(range, transports),
            };
            match held {
                Ok(()) => return Ok(range),
                Err((taken, e)) if e.raw_os_error() == Some(libc::EADDRINUSE) => {
                    at += u64::from(taken - start) + 1;
                }
                Err((_, e)) => return Err(e),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    /// All of these, or none; the error says at which one.
    fn hold_range(
        &self,
        (first, last): (u16, u16),
        transports: &[Transport],
    ) -> Result<(), (u16, io::Error)> {
        let mut taken = Vec::new();
        for port in first..=last {
            for transport in transports {
                if let Err(e) = self.take_alone(*transport, port) {
                    for (transport, port) in taken {
                        self.release_alone(transport, port);
                    }
                    return Err((port, e));
                }
                taken.push((*transport, port));
            }
        }
        Ok(())
    }

    /// Takes a port of both families for connections that IX opens. No other socket may have it on
    /// any address.
    fn take_alone(&self, transport: Transport, port: u16) -> io::Result<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_families = Family::ALL.map(|family| (transport, family, port));
        if of_families.iter().any(|port| held.contains_key(port)) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        has_room(&held, 1)?;
        let mut sockets = vec![(None, bind_everywhere(transport, port)?)];
        for port in of_families {
            self.owned.set(key(port), self.owner)?;
            // The first one has the socket for both.
            held.insert(port, Held { sockets: std::mem::take(&mut sockets), follows: false });
        }
        Ok(())
    }

    /// Gives back what [`HeldPorts::take_alone`] has taken.
    fn release_alone(&self, transport: Transport, port: u16) {
        // The first one has the socket.
        Family::ALL.iter().rev().for_each(|family| self.release(transport, *family, port));
    }
}

/// A socket that keeps everybody from a port of both families, on all addresses.
fn bind_everywhere(transport: Transport, port: u16) -> io::Result<OwnedFd> {
    let bind = |family, at: IpAddr| {
        let socket = socket::open(family, transport.socket_kind())?;
        if at.is_ipv6() {
            set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
        }
        hear_nothing(transport, &socket);
        bind_inet(socket.as_fd(), (at, port).into())?;
        Ok(socket)
    };
    let v6: io::Result<OwnedFd> = bind(libc::AF_INET6, Ipv6Addr::UNSPECIFIED.into());
    match v6.as_ref().map_err(io::Error::raw_os_error) {
        // Linux has no IPv6.
        Err(Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            bind(libc::AF_INET, Ipv4Addr::UNSPECIFIED.into())
        }
        _ => v6,
    }
}

/// Ports that Linux gives to sockets which name none.
struct LocalPorts {
    first: u16,
    last: u16,
    /// Ranges that are left out.
    reserved: Vec<(u16, u16)>,
}

impl LocalPorts {
    fn read() -> LocalPorts {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        LocalPorts::parse(&read(RANGE), &read(RESERVED))
    }

    fn parse(range: &str, reserved: &str) -> LocalPorts {
        let mut ports = range.split_whitespace().map_while(|port| port.parse::<u16>().ok());
        let (first, last) = match (ports.next(), ports.next()) {
            (Some(first), Some(last)) if 0 < first && first <= last => (first, last),
            _ => RANGE_DEFAULT,
        };
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let reserved = reserved.trim().split(',').filter_map(range).collect();
        LocalPorts { first, last, reserved }
    }

    /// How many there are.
    fn count(&self) -> usize {
        let of = |(first, last): (u16, u16)| usize::from(last.saturating_sub(first)) + 1;
        let within = |(first, last): &(u16, u16)| {
            let (first, last) = (self.first.max(*first), self.last.min(*last));
            if first <= last { of((first, last)) } else { 0 }
        };
        let reserved: usize = self.reserved.iter().map(within).sum();
        of((self.first, self.last)).saturating_sub(reserved)
    }

    /// The last port of a range that is left out.
    fn reserved_within(&self, (first, last): (u16, u16)) -> Option<u16> {
        let overlaps = |(from, to): &&(u16, u16)| *from <= last && first <= *to;
        self.reserved.iter().filter(overlaps).map(|(_, to)| last.min(*to)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_ports_are_those_that_linux_gives() {
        let local = LocalPorts::parse("10000\t20000\n", "80,9990-10009,15000,19999-65535\n");
        assert_eq!((local.first, local.last), (10_000, 20_000));
        assert_eq!(local.count(), 10_001 - 10 - 1 - 2);
        assert_eq!(local.reserved_within((10_000, 10_063)), Some(10_009));
        assert_eq!(local.reserved_within((10_010, 14_999)), None);
        assert_eq!(local.reserved_within((14_990, 15_053)), Some(15_000));
        assert_eq!(local.reserved_within((19_990, 20_000)), Some(20_000));
        let local = LocalPorts::parse("", "\n");
        assert_eq!((local.first, local.last, local.count()), (32_768, 60_999, 28_232));
        assert_eq!(local.reserved_within((32_768, 60_999)), None);
    }
}
