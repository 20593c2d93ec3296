//! Choice of the next record, and whether it is read or stored.
use super::Ask;
use crate::records::Records;
use ix_random::Rng;
use ix_workload::law::Zipf;
use std::ops::Range;
use std::sync::Arc;

/// How requests are spread over the records.
#[derive(Clone, Debug)]
pub enum Popularity {
    /// Evenly.
    Uniform,
    /// By Zipf's law: record 0 most often.
    Zipf(Zipf),
}

/// The choice of requests of one thread.
pub struct Workload {
    records: Arc<Records>,
    choice: Choice,
}

enum Choice {
    /// This many of 2^32 requests store.
    Mixed { rng: Rng, popularity: Popularity, update: u32 },
    /// Each of these once, at version 0.
    Load(Range<u32>),
}

impl Workload {
    /// Endless requests; the share `update` of them stores.
    pub fn mixed(records: Arc<Records>, popularity: Popularity, update: f64, seed: u64) -> Self {
        let update = (update * f64::from(u32::MAX)).round() as u32;
        Workload { records, choice: Choice::Mixed { rng: Rng::new(seed), popularity, update } }
    }

    /// Stores these records once.
    pub fn load(records: Arc<Records>, range: Range<u32>) -> Workload {
        Workload { records, choice: Choice::Load(range) }
    }

    /// The records.
    #[inline]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Whether requests to store carry version 0.
    #[inline]
    fn loads(&self) -> bool {
        matches!(self.choice, Choice::Load(_))
    }

    /// Whether a request stores.
    #[inline]
    pub fn stores(&self, ask: &Ask) -> bool {
        ask.version != 0 || self.loads()
    }

    /// The next request.
    #[inline]
    pub fn draw(&mut self) -> Option<Ask> {
        match &mut self.choice {
            Choice::Mixed { rng, popularity, update } => {
                let record = match popularity {
                    Popularity::Uniform => rng.below(self.records.count().into()),
                    Popularity::Zipf(zipf) => zipf.draw(rng),
                };
                let word = rng.next_u64();
                let version = if (word as u32) < *update { (word >> 32) as u32 | 1 } else { 0 };
                Some(Ask { record: record as u32, version, id: 0 })
            }
            Choice::Load(range) => range.next().map(|record| Ask { record, ..Ask::default() }),
        }
    }
}
