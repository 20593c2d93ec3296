//! Packets that wait for the address of their next hop.
use ix_wire::IpAddr;
use std::collections::{BTreeMap, VecDeque};

const PER_HOP_MAX: usize = 64;
const TOTAL_MAX: usize = 512;
const WAIT_US_MAX: u64 = 4_000_000;

/// Packets of one elastic thread that wait for a next hop: in order for each next hop, bounded for
/// each and in total, so that one dead next hop does not block the others.
///
/// A packet that must make room is returned, so that its owner can free it.
#[derive(Debug)]
pub struct PendingQueue<B> {
    hops: BTreeMap<IpAddr, VecDeque<(u64, B)>>,
    total: usize,
    per_hop_max: usize,
    total_max: usize,
    wait_us_max: u64,
}

impl<B> Default for PendingQueue<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> PendingQueue<B> {
    /// A queue for at most 64 packets of a next hop and 512 in total, each for at most four
    /// seconds: the time that three requests take.
    pub const fn new() -> Self {
        Self::with_limits(PER_HOP_MAX, TOTAL_MAX, WAIT_US_MAX)
    }

    /// A queue with other limits, none of them zero.
    pub const fn with_limits(per_hop_max: usize, total_max: usize, wait_us_max: u64) -> Self {
        assert!(per_hop_max > 0 && total_max > 0);
        Self { hops: BTreeMap::new(), total: 0, per_hop_max, total_max, wait_us_max }
    }

    /// Number of waiting packets.
    pub fn len(&self) -> usize {
        self.total
    }

    /// True if no packet waits.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Queues a packet. If there is no room, the oldest packet of the same next hop, or of the next
    /// hop with the most packets, is removed and returned as the error.
    pub fn push(&mut self, hop: IpAddr, packet: B, now_us: u64) -> Result<(), B> {
        let same_hop = self.hops.get(&hop).map_or(0, VecDeque::len);
        let given_back = if same_hop >= self.per_hop_max {
            self.pop(hop)
        } else if self.total >= self.total_max {
            let longest = self.hops.iter().max_by_key(|(_, queue)| queue.len());
            let longest = longest.map(|(hop, _)| *hop);
            longest.and_then(|hop| self.pop(hop))
        } else {
            None
        };
        self.hops.entry(hop).or_default().push_back((now_us, packet));
        self.total += 1;
        given_back.map_or(Ok(()), Err)
    }

    /// Removes the oldest packet of a next hop whose address is known now, or will never be.
    pub fn pop(&mut self, hop: IpAddr) -> Option<B> {
        let queue = self.hops.get_mut(&hop)?;
        let packet = queue.pop_front().map(|(_, packet)| packet);
        if queue.is_empty() {
            self.hops.remove(&hop);
        }
        self.total -= usize::from(packet.is_some());
        packet
    }

    /// Removes all packets of a next hop, oldest first.
    pub fn take(&mut self, hop: IpAddr) -> impl Iterator<Item = B> + use<B> {
        let queue = self.hops.remove(&hop).unwrap_or_default();
        self.total -= queue.len();
        queue.into_iter().map(|(_, packet)| packet)
    }

    /// Removes the packets that `wanted` selects, in order for each next hop.
    pub fn extract(&mut self, wanted: impl Fn(&B) -> bool) -> Vec<(IpAddr, B)> {
        let mut out = Vec::new();
        for (hop, queue) in &mut self.hops {
            for (since_us, packet) in std::mem::take(queue) {
                match wanted(&packet) {
                    true => out.push((*hop, packet)),
                    false => queue.push_back((since_us, packet)),
                }
            }
        }
        self.hops.retain(|_, queue| !queue.is_empty());
        self.total -= out.len();
        out
    }

    /// Removes one packet that has waited too long. Call it until it returns `None`.
    #[inline]
    pub fn expire(&mut self, now_us: u64) -> Option<B> {
        let too_old = |since_us: u64| now_us.saturating_sub(since_us) >= self.wait_us_max;
        let hop = self
            .hops
            .iter()
            .find(|(_, queue)| queue.front().is_some_and(|(since_us, _)| too_old(*since_us)))
            .map(|(hop, _)| *hop)?;
        self.pop(hop)
    }

    /// The next hops that packets wait for.
    pub fn hops(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.hops.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hop(last: u8) -> IpAddr {
        IpAddr::v4([10, 0, 0, last])
    }

    #[test]
    fn in_order_for_each_next_hop() {
        let mut queue = PendingQueue::new();
        for n in 0..6 {
            assert_eq!(queue.push(hop(n % 2), n, 0), Ok(()));
        }
        assert_eq!(queue.take(hop(0)).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(queue.pop(hop(1)), Some(1));
        assert_eq!((queue.len(), queue.pop(hop(0))), (2, None));
    }

    /// A packet at the head blocks the queue.
    #[test]
    fn a_dead_next_hop_blocks_nobody() {
        let mut queue = PendingQueue::with_limits(4, 6, 100);
        for n in 0..4 {
            assert_eq!(queue.push(hop(1), n, 0), Ok(()));
        }
        assert_eq!(queue.push(hop(1), 4, 0), Err(0), "the oldest of the same hop gives way");
        assert_eq!(queue.push(hop(2), 20, 0), Ok(()));
        assert_eq!(queue.push(hop(3), 30, 0), Ok(()));
        assert_eq!(queue.push(hop(4), 40, 0), Err(1), "then the oldest of the longest queue");
        assert_eq!(queue.take(hop(4)).collect::<Vec<_>>(), [40]);
    }

    #[test]
    fn packets_expire() {
        let mut queue = PendingQueue::with_limits(4, 8, 100);
        assert_eq!(queue.push(hop(1), 'a', 0), Ok(()));
        assert_eq!(queue.push(hop(2), 'b', 50), Ok(()));
        assert_eq!(queue.push(hop(1), 'c', 60), Ok(()));
        assert_eq!(queue.expire(99), None);
        assert_eq!((queue.expire(100), queue.expire(100)), (Some('a'), None));
        assert_eq!((queue.expire(150), queue.expire(150)), (Some('b'), None));
        assert_eq!(queue.hops().collect::<Vec<_>>(), [hop(1)]);
    }

    proptest! {
        /// Every packet is returned exactly once, in order for its next hop, odd and even ones
        /// separately, and the limits hold.
        #[test]
        fn nothing_is_lost_or_doubled(steps in prop::collection::vec((0u8..5, 0u8..5), 0..300)) {
            let mut queue = PendingQueue::with_limits(4, 9, 50);
            let mut seen = vec![Vec::new(); 10];
            let place = |to: u8, n: usize| 2 * usize::from(to) + n % 2;
            let mut pushed = 0;
            for (n, (to, action)) in steps.into_iter().enumerate() {
                let now_us = n as u64;
                let came_out: Vec<(u8, usize)> = match action {
                    0 => queue.take(hop(to)).collect(),
                    1 => queue.expire(now_us).into_iter().collect(),
                    2 => {
                        let odd = queue.extract(|(_, n)| n % 2 == 1);
                        prop_assert!(odd.iter().all(|(at, (to, n))| *at == hop(*to) && n % 2 == 1));
                        odd.into_iter().for_each(|(_, (to, n))| seen[place(to, n)].push(n));
                        Vec::new()
                    }
                    _ => {
                        pushed += 1;
                        queue.push(hop(to), (to, n), now_us).err().into_iter().collect()
                    }
                };
                came_out.into_iter().for_each(|(to, n)| seen[place(to, n)].push(n));
                prop_assert!(queue.len() <= 9);
            }
            for to in 0..5 {
                let rest: Vec<_> = queue.take(hop(to)).collect();
                prop_assert!(rest.len() <= 4);
                rest.into_iter().for_each(|(_, n)| seen[place(to, n)].push(n));
            }
            prop_assert!(queue.is_empty());
            prop_assert!(seen.iter().all(|order| order.is_sorted()));
            prop_assert_eq!(seen.iter().map(Vec::len).sum::<usize>(), pushed);
        }
    }
}
