//! Shares of a full interface.
//!
//! vNICs that send little leave the rest to the others, by weight (weighted max-min fairness). The
//! programs only drop packets beyond a share, so a dataplane that can delay packets is told its
//! share: it paces itself, and no packet is lost. While the interface is not full no share is
//! enforced.

/// The interface counts as full from this use on, percent, until the use stays below the second
/// figure for [`CALM_LOOKS`] measurements in a row.
const FULL_PERCENT: u64 = 92;
const CALM_PERCENT: u64 = 80;
const CALM_LOOKS: u32 = 10;
/// A vNIC that uses this much of its share wants more, percent.
const WANTS_PERCENT: u64 = 90;
/// Room for a vNIC that wants no more to send more at once, percent of what it sends.
const ROOM_PERCENT: u64 = 125;
/// Shares that differ by less are not sent again, percent: each one replaces the rules of a
/// dataplane's vNIC.
const CHANGE_PERCENT: u64 = 3;

/// A vNIC since the last measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Its weight.
    pub weight: u32,
    /// What it has sent, bits per second.
    pub bits_per_s: u64,
    /// It has sent something, or tried to.
    pub is_active: bool,
    /// Packets were dropped because they were beyond its share.
    pub was_dropped: bool,
    /// The share that it was told.
    pub told: Option<u64>,
}

/// Whether the interface is full, from measurement to measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fullness {
    is_full: bool,
    calm_looks: u32,
}

impl Fullness {
    /// Evaluates a measurement; returns whether the interface is full.
    pub fn look(&mut self, link_bits_per_s: u64, usages: &[Usage]) -> bool {
        let used: u64 = usages.iter().map(|usage| usage.bits_per_s).sum();
        let percent = |part: u64| link_bits_per_s / 100 * part;
        // A single vNIC shares with no other.
        if usages.len() < 2 {
            *self = Fullness::default();
        } else if used >= percent(FULL_PERCENT) || usages.iter().any(|usage| usage.was_dropped) {
            *self = Fullness { is_full: true, calm_looks: 0 };
        } else if used >= percent(CALM_PERCENT) {
            self.calm_looks = 0;
        } else {
            self.calm_looks += 1;
            self.is_full &= self.calm_looks < CALM_LOOKS;
        }
        self.is_full
    }
}

/// What each may send of a full interface, bits per second: what the others leave, but at least its
/// own share, so that a vNIC that begins has it from the first packet on.
pub(super) fn parts(link_bits_per_s: u64, usages: &[Usage]) -> Vec<u64> {
    let wants: Vec<(u32, u64)> = usages.iter().map(|usage| (usage.weight, wants(usage))).collect();
    let weights: Vec<_> = usages.iter().map(|usage| (usage.weight, usage.is_active)).collect();
    let own = super::limits::shares(link_bits_per_s, &weights);
    let parts = max_min(link_bits_per_s, &wants).into_iter().zip(own).zip(usages);
    let steady = |((part, own), usage): ((u64, u64), &Usage)| {
        let part = part.max(own);
        let told = usage.told.filter(|told| told.abs_diff(part) * 100 <= part * CHANGE_PERCENT);
        told.unwrap_or(part)
    };
    parts.map(steady).collect()
}

/// As much as possible, or what it sends and some more.
fn wants(usage: &Usage) -> u64 {
    let is_held = usage.told.is_none_or(|told| usage.bits_per_s >= told / 100 * WANTS_PERCENT);
    match usage.is_active {
        false => 0,
        true if usage.was_dropped || is_held => u64::MAX,
        true => usage.bits_per_s / 100 * ROOM_PERCENT,
    }
}

/// Divides a whole by weights and demands: each gets at most its demand, and none could get more
/// except from one that has less for its weight.
fn max_min(whole: u64, wants: &[(u32, u64)]) -> Vec<u64> {
    let mut parts = vec![0; wants.len()];
    let mut open: Vec<usize> = (0..wants.len()).filter(|i| wants[*i].1 > 0).collect();
    let mut left = whole;
    while !open.is_empty() {
        let weights: u64 = open.iter().map(|i| u64::from(wants[*i].0)).sum();
        let fair = |i: usize| {
            (u128::from(left) * u128::from(wants[i].0) / u128::from(weights.max(1))) as u64
        };
        let (content, hungry): (Vec<_>, Vec<_>) =
            open.iter().copied().partition(|i| wants[*i].1 <= fair(*i));
        if content.is_empty() {
            hungry.iter().for_each(|i| parts[*i] = fair(*i));
            break;
        }
        for i in &content {
            parts[*i] = wants[*i].1;
        }
        left -= content.iter().map(|i| wants[*i].1).sum::<u64>();
        open = hungry;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: u64 = 400_000_000;

    fn sends(weight: u32, bits_per_s: u64, told: Option<u64>) -> Usage {
        Usage { weight, bits_per_s, is_active: bits_per_s > 0, was_dropped: false, told }
    }

    proptest! {
        #[test]
        fn nobody_could_have_more(
            whole in 1_000u64..1_000_000_000,
            wants in prop::collection::vec((1u32..1000, 0u64..2_000_000_000), 1..20),
        ) {
            let parts = max_min(whole, &wants);
            prop_assert!(parts.iter().sum::<u64>() <= whole);
            prop_assert!(parts.iter().zip(&wants).all(|(part, (_, want))| part <= want));
            // For its weight, a vNIC with unmet demand has no less than any other.
            let for_weight = |i: usize| parts[i] as f64 / f64::from(wants[i].0);
            let hungry: Vec<_> = (0..parts.len()).filter(|i| parts[*i] < wants[*i].1).collect();
            for i in &hungry {
                let most = (0..parts.len()).map(for_weight).fold(0.0, f64::max);
                prop_assert!(for_weight(*i) >= most * (1.0 - 1e-9) - 1.0, "{parts:?} {wants:?}");
            }
            // And nothing is left over while there is one.
            let rounding = parts.len() as u64;
            prop_assert!(hungry.is_empty() || parts.iter().sum::<u64>() + rounding >= whole);
        }
    }

    #[test]
    fn who_sends_little_leaves_the_rest() {
        let both = [sends(1, LINK / 2, None), sends(3, LINK / 2, None)];
        assert_eq!(parts(LINK, &both), [LINK / 4, LINK / 4 * 3]);
        // One was told a quarter and sends a tenth of that: it keeps its share, and the other gets
        // the rest.
        let one = [sends(1, LINK / 40, Some(LINK / 4)), sends(3, LINK / 4 * 3, Some(LINK / 4 * 3))];
        assert_eq!(parts(LINK, &one), [LINK / 4, LINK - LINK / 32]);
        // A silent vNIC would have its share of all.
        let silent = [sends(1, 0, None), sends(1, LINK, Some(LINK))];
        assert_eq!(parts(LINK, &silent), [LINK / 2, LINK]);
        // A share that has hardly changed is not sent again.
        let told = LINK / 4 - LINK / 1000;
        let steady = [sends(1, told, Some(told)), sends(3, LINK / 4 * 3, None)];
        assert_eq!(parts(LINK, &steady), [told, LINK / 4 * 3]);
    }

    #[test]
    fn an_interface_is_full_until_it_was_calm_for_a_while() {
        let mut fullness = Fullness::default();
        let mut look = |bits: u64, was_dropped| {
            let one = Usage { was_dropped, ..sends(1, bits, None) };
            fullness.look(LINK, &[one, sends(1, LINK / 8, None)])
        };
        assert!(!look(LINK / 2, false));
        assert!(look(LINK / 2, true));
        assert!((0..30).all(|_| look(LINK / 4 * 3, false)), "not calm, not full either");
        assert!((1..CALM_LOOKS).all(|_| look(LINK / 2, false)));
        assert!(!look(LINK / 2, false));
        assert!(look(LINK, false));
        assert!(!fullness.look(LINK, &[sends(1, LINK, None)]), "alone");
    }
}
