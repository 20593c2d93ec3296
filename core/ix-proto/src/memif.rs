//! A memif link that both sides have agreed on, as the broker tells the dataplane of it.
use crate::codec::{codec_enum, codec_struct};
use core::fmt;

/// Most queue pairs of a memif: between two IX there is a ring for each pair of queues.
pub const QUEUES_MAX: usize = 16;
/// Most regions of a peer.
pub const REGIONS_MAX: usize = 64;
/// Largest region of a peer: what the offsets of the protocol reach is 4 GB.
pub const REGION_BYTES_MAX: u64 = 1 << 36;
/// Bytes in front of a ring's descriptors.
pub const RING_HEADER_BYTES: usize = 128;
/// Bytes of a descriptor.
pub const DESC_BYTES: usize = 16;
/// Binary logarithm of the largest ring: the indices must tell a full ring from an empty one.
pub const LOG2_SIZE_MAX: u8 = 14;
/// Bytes of the steering page.
pub const PAGE_BYTES: usize = 8192;

/// Bytes of a ring of `1 << log2_size` descriptors.
pub const fn ring_bytes(log2_size: u8) -> usize {
    RING_HEADER_BYTES + (DESC_BYTES << log2_size)
}

/// The two ends of a memif, by the names that other programs use today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens, and maps the client's memory (the protocol's master).
    Server,
    /// Connects, and brings the memory (the protocol's slave).
    Client,
}

codec_enum!(MemifRole { 0 = Server, 1 = Client });

impl MemifRole {
    /// As in `role=`.
    pub fn name(self) -> &'static str {
        match self {
            MemifRole::Server => "server",
            MemifRole::Client => "client",
        }
    }

    /// The role that [`MemifRole::name`] names so.
    pub fn from_name(name: &str) -> Option<MemifRole> {
        [MemifRole::Server, MemifRole::Client].into_iter().find(|role| role.name() == name)
    }
}

/// A link that stands. Its descriptors, in order: the regions', the eventfd of each of our queues
/// (absent for a client, which has its own), the eventfd of each of the peer's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ours.
    pub role: MemifRole,
    /// The peer's name, for people.
    pub peer: String,
    /// Our queues.
    pub queues: usize,
    /// The peer's queues. Each pair of ours and theirs has a ring each way if the peer is IX, else
    /// queue `i` of ours and of theirs have one.
    pub peer_queues: usize,
    /// The steering page is this region of `regions`; the peer is IX.
    pub steering: Option<u16>,
    /// Bytes of each region to map. The client maps only what it has made for the link: its packet
    /// memory is mapped already.
    pub regions: Vec<u64>,
    /// The rings that we receive from: for each of our queues, one of each of the peer's.
    pub rx: Vec<RingPlace>,
    /// The rings that we send to: for each of the peer's queues, one of each of ours.
    pub tx: Vec<RingPlace>,
}

codec_struct!(Plan { role, peer, queues, peer_queues, steering, regions, rx, tx } if check);

/// Where a ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Number in [`Plan::regions`].
    pub region: u16,
    /// Where its header begins there.
    pub offset: u32,
    /// Binary logarithm of its number of descriptors.
    pub log2_size: u8,
}

codec_struct!(RingPlace { region, offset, log2_size });

/// The part of a [`Plan`] that cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// None, too many, or one of a size that cannot be.
    Regions,
    /// Ours: none or too many.
    Queues,
    /// The peer's: none, too many, or not as many as ours where they must be.
    PeerQueues,
    /// A ring that we receive from is missing or lies outside of its region.
    Rx,
    /// A ring that we send to is missing or lies outside of its region.
    Tx,
    /// The steering page is no region, or does not fit into it.
    Steering,
}

impl PlanError {
    /// The part, in a word.
    pub fn name(self) -> &'static str {
        match self {
            PlanError::Regions => "regions",
            PlanError::Queues => "queues",
            PlanError::PeerQueues => "peer_queues",
            PlanError::Rx => "rx",
            PlanError::Tx => "tx",
            PlanError::Steering => "steering",
        }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of the link cannot be", self.name())
    }
}

impl std::error::Error for PlanError {}

impl RingPlace {
    /// Whether a ring can lie there.
    pub fn fits(&self, regions: &[u64]) -> bool {
        let Some(bytes) = regions.get(usize::from(self.region)) else { return false };
        (self.offset as usize).is_multiple_of(DESC_BYTES)
            && (1..=LOG2_SIZE_MAX).contains(&self.log2_size)
            && u64::from(self.offset) + ring_bytes(self.log2_size) as u64 <= *bytes
    }
}

impl Plan {
    /// Refuses what cannot be carried out.
    pub fn check(&self) -> Result<(), PlanError> {
        if !(1..=REGIONS_MAX).contains(&self.regions.len())
            || self.regions.iter().any(|n| *n == 0 || *n > REGION_BYTES_MAX)
        {
            return Err(PlanError::Regions);
        }
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(PlanError::Queues);
        }
        let each_way = self.rings_each_way().ok_or(PlanError::PeerQueues)?;
        for (rings, error) in [(&self.rx, PlanError::Rx), (&self.tx, PlanError::Tx)] {
            if rings.len() != each_way || !rings.iter().all(|ring| ring.fits(&self.regions)) {
                return Err(error);
            }
        }
        match self.steering.map(|region| self.regions.get(usize::from(region))) {
            None => Ok(()),
            Some(Some(bytes)) if *bytes >= PAGE_BYTES as u64 => Ok(()),
            Some(_) => Err(PlanError::Steering),
        }
    }

    /// A ring for each pair of queues, or for each queue; `None`: the peer's queues cannot be.
    fn rings_each_way(&self) -> Option<usize> {
        let peers = Some(self.peer_queues).filter(|n| (1..=QUEUES_MAX).contains(n))?;
        match self.steering {
            Some(_) => Some(self.queues * peers),
            None => (self.queues == peers).then_some(self.queues),
        }
    }

    /// Senders of each receiving queue, and receivers of each sending one.
    pub fn mesh(&self) -> (usize, usize) {
        match self.steering {
            Some(_) => (self.peer_queues, self.peer_queues),
            None => (1, 1),
        }
    }

    /// The rings that our queue receives from.
    pub fn rx_of(&self, queue: usize) -> &[RingPlace] {
        let senders = self.mesh().0;
        &self.rx[queue * senders..(queue + 1) * senders]
    }

    /// The rings that our queue sends to, one for each queue of the peer that it reaches, and the
    /// number of that queue.
    pub fn tx_of(&self, queue: usize) -> Vec<(RingPlace, usize)> {
        match self.steering {
            Some(_) => (0..self.peer_queues)
                .map(|theirs| (self.tx[theirs * self.queues + queue], theirs))
                .collect(),
            None => vec![(self.tx[queue], queue)],
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::codec::tests::{harmless, survives};
    use crate::codec::{Codec, DecodeError};
    use proptest::prelude::*;

    pub(crate) fn any_plan() -> impl Strategy<Value = Plan> {
        (any::<bool>(), 1..4usize, 1..4usize, any::<bool>(), 1..12u8, ".{0,31}").prop_map(
            |(server, queues, peer_queues, mesh, log2_size, peer)| {
                let peer_queues = if mesh { peer_queues } else { queues };
                let count = if mesh { queues * peer_queues } else { queues };
                let bytes = ring_bytes(log2_size) as u32;
                let rings = |first: usize| {
                    let offset = |i: usize| (first + i) as u32 * bytes;
                    let place = |i| RingPlace { region: 0, offset: offset(i), log2_size };
                    (0..count).map(place).collect::<Vec<_>>()
                };
                Plan {
                    role: if server { MemifRole::Server } else { MemifRole::Client },
                    peer,
                    queues,
                    peer_queues,
                    steering: mesh.then_some(1),
                    regions: vec![2 * count as u64 * u64::from(bytes), PAGE_BYTES as u64],
                    rx: rings(0),
                    tx: rings(count),
                }
            },
        )
    }

    /// A plan with some part of it changed, mostly into one that cannot be.
    fn changed_plan() -> impl Strategy<Value = Plan> {
        (any_plan(), 0..9, any::<u32>()).prop_map(|(mut plan, part, to)| {
            match part {
                0 => plan.queues = to as usize % 20,
                1 => plan.peer_queues = to as usize % 20,
                2 => plan.steering = Some(to as u16 % 4),
                3 => plan.steering = None,
                4 => plan.regions.truncate(to as usize % 2),
                5 => plan.regions[0] = u64::from(to),
                6 => plan.rx.truncate(to as usize % 9),
                7 => plan.tx[0].offset = to,
                _ => plan.tx[0].log2_size = to as u8,
            }
            plan
        })
    }

    proptest! {
        #[test]
        fn plans_survive(plan in any_plan()) {
            prop_assert_eq!(plan.check(), Ok(()));
            survives(&plan);
        }

        /// What is decoded can be carried out, and each of its queues has its rings.
        #[test]
        fn no_plan_that_cannot_be_is_read(plan in changed_plan()) {
            let read = Plan::decode(&plan.encode());
            match plan.check() {
                Ok(()) => {
                    (0..plan.queues).for_each(|queue| {
                        plan.rx_of(queue);
                        plan.tx_of(queue);
                    });
                    prop_assert_eq!(read, Ok(plan));
                }
                Err(_) => prop_assert_eq!(read, Err(DecodeError::Value)),
            }
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(0u8..20, 0..80)) {
            harmless::<Plan>(&bytes);
        }

        #[test]
        fn each_ring_has_one_sender_and_one_receiver(plan in any_plan()) {
            let mut received: Vec<_> =
                (0..plan.queues).flat_map(|q| plan.rx_of(q).to_vec()).collect();
            let mut sent: Vec<_> =
                (0..plan.queues).flat_map(|q| plan.tx_of(q)).map(|(ring, _)| ring).collect();
            received.sort_by_key(|ring| ring.offset);
            sent.sort_by_key(|ring| ring.offset);
            prop_assert_eq!((received, sent), (plan.rx.clone(), plan.tx.clone()));
        }
    }

    #[test]
    fn a_ring_outside_of_its_region_is_none() {
        let place = |region, offset, log2_size| RingPlace { region, offset, log2_size };
        let regions = [ring_bytes(10) as u64 + 64];
        for (ring, fits) in [
            (place(0, 64, 10), true),
            (place(0, 80, 10), false),
            (place(0, 8, 10), false),
            (place(1, 0, 10), false),
            (place(0, u32::MAX - 15, 10), false),
            (place(0, 0, 15), false),
            (place(0, 0, 0), false),
            (place(0, 0, 255), false),
        ] {
            assert_eq!(ring.fits(&regions), fits, "{ring:?}");
        }
    }
}
