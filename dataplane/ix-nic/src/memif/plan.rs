//! What both sides have agreed on, as one line of text, to travel from the broker to the dataplane.
use super::ring::{DESC_BYTES, LOG2_SIZE_MAX, ring_bytes};
use super::{MemifRole, QUEUES_MAX};
use std::fmt::Write;

/// Most regions of a peer.
pub const REGIONS_MAX: usize = 64;
/// Largest region of a peer: what the offsets of the protocol reach is 4 GB.
pub const REGION_BYTES_MAX: u64 = 1 << 36;

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
    /// One line without a line break; `peer`, which is the peer's prose, comes last.
    pub fn to_line(&self) -> String {
        let steering = self.steering.map_or("none".to_owned(), |region| region.to_string());
        let mut line = format!(
            "memif up role={} queues={} peer_queues={} steering={steering} regions=",
            self.role.name(),
            self.queues,
            self.peer_queues
        );
        let numbers: Vec<_> = self.regions.iter().map(u64::to_string).collect();
        line += &numbers.join(",");
        for (key, rings) in [("rx", &self.rx), ("tx", &self.tx)] {
            let _ = write!(line, " {key}=");
            for (i, ring) in rings.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                let _ = write!(line, "{comma}{}:{}:{}", ring.region, ring.offset, ring.log2_size);
            }
        }
        let _ = write!(line, " peer={}", self.peer.replace(['\n', '\r'], " "));
        line
    }

    /// Reads what [`Plan::to_line`] wrote and checks all of it. The error names what is wrong.
    pub fn from_line(line: &str) -> Result<Plan, &'static str> {
        let words = line.strip_prefix("memif up ").ok_or("update")?;
        let (words, peer) = words.split_once(" peer=").ok_or("peer")?;
        let get = |key: &'static str| {
            let mut pairs = words.split(' ').filter_map(|word| word.split_once('='));
            pairs.find(|(k, _)| *k == key).map(|(_, value)| value).ok_or(key)
        };
        let queues = |key| {
            let number = get(key)?.parse().ok().filter(|n| (1..=QUEUES_MAX).contains(n));
            number.ok_or(key)
        };
        let regions: Option<Vec<u64>> =
            get("regions")?.split(',').map(|n| n.parse().ok()).collect();
        let rings = |key| {
            let places: Option<Vec<_>> = get(key)?.split(',').map(place).collect();
            places.ok_or(key)
        };
        let plan = Plan {
            role: MemifRole::from_name(get("role")?).ok_or("role")?,
            peer: peer.to_owned(),
            queues: queues("queues")?,
            peer_queues: queues("peer_queues")?,
            steering: match get("steering")? {
                "none" => None,
                number => Some(number.parse().map_err(|_| "steering")?),
            },
            regions: regions.ok_or("regions")?,
            rx: rings("rx")?,
            tx: rings("tx")?,
        };
        plan.check()?;
        Ok(plan)
    }

    /// Whether it can be carried out; the error names what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        if !(1..=REGIONS_MAX).contains(&self.regions.len())
            || self.regions.iter().any(|n| *n == 0 || *n > REGION_BYTES_MAX)
        {
            return Err("regions");
        }
        let (queues, peer_queues) = (1..=QUEUES_MAX, 1..=QUEUES_MAX);
        if !queues.contains(&self.queues) || !peer_queues.contains(&self.peer_queues) {
            return Err("queues");
        }
        let each_way = self.rings_each_way().ok_or("peer_queues")?;
        for (key, rings) in [("rx", &self.rx), ("tx", &self.tx)] {
            if rings.len() != each_way || !rings.iter().all(|ring| ring.fits(&self.regions)) {
                return Err(key);
            }
        }
        match self.steering.map(|region| self.regions.get(usize::from(region))) {
            None => Ok(()),
            Some(Some(bytes)) if *bytes >= super::page::PAGE_BYTES as u64 => Ok(()),
            Some(_) => Err("steering"),
        }
    }

    /// A ring for each pair of queues, or for each queue.
    fn rings_each_way(&self) -> Option<usize> {
        match self.steering {
            Some(_) => Some(self.queues * self.peer_queues),
            None => (self.queues == self.peer_queues).then_some(self.queues),
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

fn place(text: &str) -> Option<RingPlace> {
    let mut numbers = text.split(':');
    let place = RingPlace {
        region: numbers.next()?.parse().ok()?,
        offset: numbers.next()?.parse().ok()?,
        log2_size: numbers.next()?.parse().ok()?,
    };
    numbers.next().is_none().then_some(place)
}

#[cfg(test)]
mod tests {
    use super::super::page::PAGE_BYTES;
    use super::*;
    use proptest::prelude::*;

    fn any_plan() -> impl Strategy<Value = Plan> {
        (any::<bool>(), 1..4usize, 1..4usize, any::<bool>(), 1..12u8, "[ -~]{0,31}").prop_map(
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

    proptest! {
        #[test]
        fn survives_the_journey(plan in any_plan()) {
            let line = plan.to_line();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(Plan::from_line(&line), Ok(plan));
        }

        #[test]
        fn any_text_is_an_answer(text in "\\PC*") {
            let _ = Plan::from_line(&text);
            let _ = Plan::from_line(&format!("memif up {text}"));
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
