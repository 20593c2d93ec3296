//! TCP sequence numbers. All wrapping arithmetic is here.
use core::ops::{Add, AddAssign, Sub};

/// A sequence number: a point on a circle of 2^32 (RFC 9293 section 3.4).
///
/// Not `Ord`: a comparison has a meaning only between numbers less than 2^31 apart, and is not
/// transitive beyond that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// `self` is before `other`.
    #[inline]
    pub const fn lt(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// `self` is before or at `other`.
    #[inline]
    pub const fn le(self, other: Seq) -> bool {
        self.0.wrapping_sub(other.0) as i32 <= 0
    }

    /// `self` is after `other`.
    #[inline]
    pub const fn gt(self, other: Seq) -> bool {
        other.lt(self)
    }

    /// `self` is at or after `other`.
    #[inline]
    pub const fn ge(self, other: Seq) -> bool {
        other.le(self)
    }

    /// `low <= self < high` on the circle; never true for an empty interval. Right for intervals of
    /// any size up to 2^32 - 1.
    #[inline]
    pub const fn between(self, low: Seq, high: Seq) -> bool {
        self.0.wrapping_sub(low.0) < high.0.wrapping_sub(low.0)
    }

    /// The later of two.
    #[inline]
    pub const fn max(self, other: Seq) -> Seq {
        if self.lt(other) { other } else { self }
    }

    /// The earlier of two.
    #[inline]
    pub const fn min(self, other: Seq) -> Seq {
        if other.lt(self) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

/// The signed distance: positive when `self` is after `other`.
impl Sub<Seq> for Seq {
    type Output = i32;
    #[inline]
    fn sub(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_zero() {
        let before = Seq(u32::MAX);
        let after = before + 2;
        assert_eq!(after, Seq(1));
        assert!(before.lt(after) && after.gt(before) && !after.le(before));
        assert_eq!(after - before, 2);
        assert_eq!(before - after, -2);
        assert_eq!(after - 2u32, before);
        assert!(Seq(0).between(before, after) && !after.between(before, after));
        assert!(!before.between(before, before));
        assert_eq!(before.max(after), after);
        assert_eq!(before.min(after), before);
    }

    proptest! {
        #[test]
        fn agrees_with_wide_integers(base: u32, a in 0u32..1 << 31, b in 0u32..1 << 31) {
            let (x, y) = (Seq(base) + a, Seq(base) + b);
            prop_assert_eq!(x.lt(y), a < b);
            prop_assert_eq!(x.le(y), a <= b);
            prop_assert_eq!(x.gt(y), a > b);
            prop_assert_eq!(x.ge(y), a >= b);
            prop_assert_eq!(i64::from(x - y), i64::from(a) - i64::from(b));
            prop_assert_eq!(x.max(y), Seq(base) + a.max(b));
            prop_assert_eq!(x.min(y), Seq(base) + a.min(b));
        }

        #[test]
        fn between_is_half_open(low: u32, len: u32, at: u32) {
            let inside = Seq(low.wrapping_add(at)).between(Seq(low), Seq(low) + len);
            prop_assert_eq!(inside, at < len);
        }
    }
}
