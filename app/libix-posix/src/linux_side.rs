//! What is known of the sockets of Linux under UDP sockets, and of who is reached through them.
use crate::clock;
use std::net::IpAddr;

/// Size of the table of peers. Of two peers in one place the newer one stays.
const PEERS: usize = 4096;
/// How long a way is known, µs.
const KNOWN_US: u64 = 1_000_000;

/// The way to a peer.
#[derive(Clone, Copy)]
struct Peer {
    ip: IpAddr,
    by_linux: bool,
    until_us: u64,
}

/// What is known of Linux's side of UDP sockets.
pub struct LinuxSide {
    /// Counts what has told that something of Linux's is ready.
    pub news: u64,
    /// Peers are answered by the way that they were last heard by. A program that sends first asks
    /// Linux, but not for each message.
    peers: Vec<Option<Peer>>,
}

impl LinuxSide {
    /// Nothing yet.
    pub const fn new() -> LinuxSide {
        LinuxSide { news: 0, peers: Vec::new() }
    }

    /// A peer is reached by Linux, or by IX.
    pub fn has_way(&mut self, ip: IpAddr, by_linux: bool) {
        if self.peers.is_empty() {
            self.peers.resize(PEERS, None);
        }
        let until_us = clock::tick_us() + KNOWN_US;
        self.peers[place(ip)] = Some(Peer { ip, by_linux, until_us });
    }

    /// Whether a peer is reached by Linux, if that is known.
    pub fn way(&self, ip: IpAddr) -> Option<bool> {
        let peer = (*self.peers.get(place(ip))?).filter(|peer| peer.ip == ip)?;
        (clock::tick_us() < peer.until_us).then_some(peer.by_linux)
    }
}

/// Where a peer is noted.
fn place(ip: IpAddr) -> usize {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64 ^ ip.to_bits() as u64,
    };
    // The golden ratio spreads neighbours.
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PEERS
}
