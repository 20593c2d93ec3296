//! Which next hop leaves a cache that is full, so that another one has room.
use crate::questions::Asker;

/// What counts of a next hop that was learned.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its Ethernet address is known.
    pub is_known: bool,
    /// Who has wanted it.
    pub asker: Asker,
    /// When it was last looked up; `None`: never.
    pub used_us: Option<u64>,
}

impl Standing {
    /// Whether it was looked up within this time.
    pub fn is_in_use(&self, now_us: u64, in_use_us: u64) -> bool {
        self.used_us.is_some_and(|used_us| now_us.saturating_sub(used_us) < in_use_us)
    }

    /// The lowest one leaves first: strangers whose address is not known, then others whose address
    /// is not known, then the least recently used.
    fn rank(&self) -> (bool, bool, Option<u64>) {
        (self.is_known, self.is_known || self.asker == Asker::Own, self.used_us)
    }
}

/// Returns the one that leaves. Any next hop makes way for the host's own traffic; a stranger makes
/// way for another stranger; and a next hop that is not in use makes way for everybody, also for a
/// host that has only told its address (`asker` is `None`).
pub fn first_to_leave<K>(
    learned: impl Iterator<Item = (K, Standing)>,
    asker: Option<Asker>,
    now_us: u64,
    in_use_us: u64,
) -> Option<(K, Standing)> {
    let makes_way = |standing: &Standing| match asker {
        Some(Asker::Own) => true,
        Some(Asker::Stranger) if standing.asker == Asker::Stranger => true,
        _ => !standing.is_in_use(now_us, in_use_us),
    };
    let candidates = learned.filter(|(_, standing)| makes_way(standing));
    candidates.min_by_key(|(_, standing)| standing.rank())
}
