//! MTUs of paths to peers, as routers report them (RFC 1191, RFC 8201). Anyone may send such a
//! message, so it is only a hint: the MTU has a lower bound, and number and lifetime of entries are
//! limited.
use crate::icmp;
use libix::raw::Said;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Smallest MTU that is believed, and lifetime of an entry: Linux's `min_pmtu` and `mtu_expires`.
const MTU_MIN: u16 = 552;
/// The same for IPv6 (RFC 8200 section 5).
const MTU_MIN_V6: u16 = 1280;
const HOLDS: Duration = Duration::from_secs(600);
/// Most entries. A new entry replaces the oldest.
const PATHS_MAX: usize = 256;

struct Path {
    to: IpAddr,
    mtu: u16,
    since: Instant,
}

/// The known MTUs.
#[derive(Default)]
pub struct Paths(Vec<Path>);

impl Paths {
    /// No MTU is known.
    pub const fn new() -> Paths {
        Paths(Vec::new())
    }

    /// Takes in an ICMP message about a packet to a peer. It never raises a valid MTU.
    pub fn said(&mut self, to: IpAddr, said: Said, now: Instant) {
        if !icmp::is_too_long(&said) {
            return;
        }
        let before = self.mtu(to, now).unwrap_or(u16::MAX);
        let mtu = said.detail.max(if to.is_ipv6() { MTU_MIN_V6 } else { MTU_MIN });
        if mtu > before {
            return;
        }
        self.0.retain(|path| path.to != to);
        if self.0.len() == PATHS_MAX {
            self.0.remove(0);
        }
        self.0.push(Path { to, mtu, since: now });
    }

    /// The MTU of the path to a peer, if a router has reported one.
    pub fn mtu(&self, to: IpAddr, now: Instant) -> Option<u16> {
        let path = self.0.iter().find(|path| path.to == to)?;
        (now.saturating_duration_since(path.since) < HOLDS).then_some(path.mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn paths_shrink_and_are_forgotten() {
        let start = Instant::now();
        let to = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        let said = |detail| Said { kind: 3, code: 4, detail, by: to(9) };
        let mut paths = Paths::new();
        paths.said(to(1), said(1400), start);
        paths.said(to(1), said(1450), start);
        paths.said(to(2), said(0), start);
        paths.said(to(3), Said { code: 3, ..said(1400) }, start);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        paths.said(v6, Said { kind: 2, code: 0, detail: 1000, by: v6 }, start);
        assert_eq!(paths.mtu(v6, start), Some(MTU_MIN_V6));
        let known = |n| paths.mtu(to(n), start);
        assert_eq!((known(1), known(2), known(3)), (Some(1400), Some(MTU_MIN), None));
        assert_eq!(paths.mtu(to(1), start + HOLDS), None);
        paths.said(to(1), said(1450), start + HOLDS);
        assert_eq!(paths.mtu(to(1), start + HOLDS), Some(1450), "a new one after that");
        for n in 10..10 + PATHS_MAX as u32 {
            paths.said(to(n), said(1300), start);
        }
        assert_eq!((paths.0.len(), paths.mtu(to(2), start)), (PATHS_MAX, None));
    }
}
