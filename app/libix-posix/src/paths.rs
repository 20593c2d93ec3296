//! MTUs of paths to peers, as far as routers have said (RFC 1191). A hint, as from anybody who can
//! send a message about a datagram: bounded from below, in number and in time.
use crate::icmp;
use libix::raw::Said;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The smallest that is believed, and how long one holds: Linux's `min_pmtu` and `mtu_expires`.
const MTU_MIN: u16 = 552;
const HOLDS: Duration = Duration::from_secs(600);
/// So many are known: the oldest goes for a new one.
const PATHS_MAX: usize = 256;

struct Path {
    to: IpAddr,
    mtu: u16,
    since: Instant,
}

/// What is known of them.
#[derive(Default)]
pub struct Paths(Vec<Path>);

impl Paths {
    /// Nothing.
    pub const fn new() -> Paths {
        Paths(Vec::new())
    }

    /// Takes in what ICMP says of a packet to a peer: never a larger one than what holds.
    pub fn said(&mut self, to: IpAddr, said: Said, now: Instant) {
        if (said.kind, said.code) != (icmp::UNREACHABLE, icmp::TOO_LONG) {
            return;
        }
        let before = self.mtu(to, now).unwrap_or(u16::MAX);
        let mtu = said.detail.max(MTU_MIN);
        if mtu > before {
            return;
        }
        self.0.retain(|path| path.to != to);
        if self.0.len() == PATHS_MAX {
            self.0.remove(0);
        }
        self.0.push(Path { to, mtu, since: now });
    }

    /// The MTU of the path to a peer, if it is known to be smaller than the device's.
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
