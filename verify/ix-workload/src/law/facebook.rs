//! The law of value sizes in ETC: a table of small sizes, else a generalised Pareto law.
use super::pareto;
use ix_random::Rng;

/// Probability of the sizes 0 to 14 bytes.
pub(super) const SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837,
    0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
];
/// Location, scale and shape of the rest.
pub(super) const REST: (f64, f64, f64) = (15.0, 214.476, 0.348238);

pub(super) fn value_size(rng: &mut Rng) -> f64 {
    let mut at = rng.open_unit();
    for (size, weight) in SMALL.into_iter().enumerate() {
        if at < weight {
            return size as f64;
        }
        at -= weight;
    }
    REST.0 + REST.1 * pareto(rng.open_unit(), REST.2)
}
