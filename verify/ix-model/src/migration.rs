//! Migrations of flow groups in progress.
use crate::papers as p;
use crate::queue::normal;
use ix_random::Rng;

/// One migration: its groups are held from `start_us` to `end_us`.
#[derive(Clone, Debug)]
pub struct Migration {
    /// From this thread …
    pub from: usize,
    /// … to this one.
    pub to: usize,
    /// The groups' numbers.
    pub groups: Vec<u16>,
    /// Start of the preparation.
    pub start_us: u64,
    /// When the new thread serves them.
    pub end_us: u64,
    /// Whether the old thread has begun.
    pub begun: bool,
    /// Held requests, and those that wait in the clients.
    pub held: (f64, f64),
}

/// Duration of a migration: a log-normal distribution with table V's mean and 95th percentile.
pub fn duration_us(adds_core: bool, rng: &mut Rng) -> u64 {
    let (mean, p95) = if adds_core { p::MIGRATION_ADD_US } else { p::MIGRATION_REMOVE_US };
    // ln(p95 / mean) = 1.645·σ − σ²/2; ln(mean) = μ + σ²/2.
    let sigma = 1.645 - (1.645f64.powi(2) - 2.0 * (p95 / mean).ln()).sqrt();
    let mu = mean.ln() - sigma * sigma / 2.0;
    (mu + sigma * normal(rng)).exp().ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_table_v() {
        let mut rng = Rng::new(7);
        for (adds, (mean, p95)) in [(true, p::MIGRATION_ADD_US), (false, p::MIGRATION_REMOVE_US)] {
            let mut drawn: Vec<u64> = (0..20_000).map(|_| duration_us(adds, &mut rng)).collect();
            drawn.sort_unstable();
            let average = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
            let tail = drawn[drawn.len() * 95 / 100] as f64;
            assert!((average / mean - 1.0).abs() < 0.03, "{average} against {mean}");
            assert!((tail / p95 - 1.0).abs() < 0.05, "{tail} against {p95}");
        }
    }
}
