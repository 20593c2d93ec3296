//! Sets of numbers as ranges: the values that a filter allows in one header field.

/// Most ranges of one set.
pub const RANGES_MAX: usize = 16;

/// A set of numbers: ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// The numbers of these ranges, both ends included. A range whose ends are in the wrong order
    /// is empty.
    pub fn new(ranges: impl IntoIterator<Item = (u128, u128)>) -> Ranges {
        let mut all: Vec<_> = ranges.into_iter().filter(|(low, high)| low <= high).collect();
        all.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (low, high) in all {
            match joined.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => joined.push((low, high)),
            }
        }
        Ranges(joined)
    }

    /// The set of one number.
    pub fn one(value: u128) -> Ranges {
        Ranges(vec![(value, value)])
    }

    /// The ranges, in ascending order.
    pub fn as_slice(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the number is in the set.
    #[inline]
    pub fn contains(&self, value: u128) -> bool {
        self.0.iter().any(|(low, high)| (*low..=*high).contains(&value))
    }

    /// True if every number of `other` is in the set. Ranges do not touch, so each must be within
    /// one.
    pub fn contains_all(&self, other: &Ranges) -> bool {
        let within =
            |(low, high): &(u128, u128)| self.0.iter().any(|r| r.0 <= *low && *high <= r.1);
        other.0.iter().all(within)
    }

    /// True if both sets have a number in common.
    pub fn overlaps(&self, other: &Ranges) -> bool {
        let meets =
            |(low, high): &(u128, u128)| other.0.iter().any(|r| r.0 <= *high && *low <= r.1);
        self.0.iter().any(meets)
    }
}
