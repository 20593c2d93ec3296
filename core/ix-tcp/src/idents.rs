//! Identifications of datagrams in fragments: over IPv4 of those that may be cut on their way,
//! because all others have DF set, and need none (RFC 6864 section 4.1).
use crate::isn::{Key, Purpose};
use ix_wire::{FlowTuple, IpAddr};

const COUNTERS: usize = 256;

/// Identifications that differ for each datagram between two hosts, as long as their bits allow,
/// and tell a host nothing about datagrams to others: a secret start for each pair of addresses,
/// and one of many counters (RFC 7739 section 5.3, as RFC 6056 section 3.3.4 does for ports).
///
/// Elastic threads that send to the same host never use the same one: each has those with its own
/// remainder when divided by the number of threads.
pub struct Idents {
    key: Key,
    thread: u32,
    /// The number of threads, up to a power of two: the remainders are the same after the last one.
    step: u32,
    counters: [u32; COUNTERS],
}

impl Idents {
    /// The identifications of elastic thread number `thread`, of `threads`.
    pub fn new(key: Key, thread: usize, threads: usize) -> Idents {
        let step = threads.next_power_of_two() as u32;
        Idents { key, thread: thread as u32, step, counters: [0; COUNTERS] }
    }

    /// The identification of the next datagram of `protocol` from `local` to `remote`. IPv4 has
    /// room for its lower 16 bits.
    pub fn next(&mut self, local: IpAddr, remote: IpAddr, protocol: u8) -> u32 {
        let ends = FlowTuple { local, remote, local_port: 0, remote_port: protocol.into() };
        let drawn = self.key.hash(Purpose::Identification, &ends, &[]);
        let counter = &mut self.counters[(drawn >> 32) as usize % COUNTERS];
        *counter = counter.wrapping_add(self.step);
        counter.wrapping_add(drawn as u32).wrapping_add(self.thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isn::tests::KEY;
    use std::collections::HashSet;

    fn host(n: u16) -> IpAddr {
        let [a, b] = n.to_be_bytes();
        IpAddr::v4([10, 9, a, b])
    }

    #[test]
    fn each_datagram_has_its_own_and_they_tell_nothing_of_others() {
        let mut idents = Idents::new(KEY, 0, 1);
        let own = host(0);
        let to_one: HashSet<u16> =
            (0..1000).map(|_| idents.next(own, host(1), 17) as u16).collect();
        assert_eq!(to_one.len(), 1000);
        // Each host's begin elsewhere.
        let begins: HashSet<u16> = (1..500).map(|n| idents.next(own, host(n), 17) as u16).collect();
        assert!(begins.len() > 480, "{}", begins.len());
        // Most hosts do not notice what is sent to another one.
        let quiet = (2..100).filter(|n| {
            let before = idents.next(own, host(*n), 17);
            (0..9).for_each(|_| {
                idents.next(own, host(1), 17);
            });
            idents.next(own, host(*n), 17) == before.wrapping_add(1)
        });
        assert!(quiet.count() >= 90);
    }

    #[test]
    fn threads_never_use_the_same() {
        let mut threads: Vec<Idents> = (0..3).map(|thread| Idents::new(KEY, thread, 3)).collect();
        for to in [host(1), host(2)] {
            let mut seen = HashSet::new();
            for (nth, idents) in threads.iter_mut().enumerate() {
                // As many as there are for each of them.
                let all: HashSet<u16> =
                    (0..16_384).map(|_| idents.next(host(0), to, 17) as u16).collect();
                assert_eq!(all.len(), 16_384, "{nth}");
                assert!(seen.is_disjoint(&all), "{nth}");
                seen.extend(all);
            }
        }
    }
}
