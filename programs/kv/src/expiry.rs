//! Time of items: whole seconds since shortly before the server began.

/// Longer times are dates.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;
/// The server begins at this second, so that there are seconds before it.
pub const START_S: u32 = 2;

/// The time of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Seconds of the server's clock, from [`START_S`] on.
    pub s: u32,
    /// Date of second 0.
    pub epoch_unix_s: i64,
}

impl Now {
    /// Second of the server's clock for a date.
    pub fn new(elapsed_s: u64, start_unix_s: i64) -> Now {
        let s = u32::try_from(elapsed_s).unwrap_or(u32::MAX - START_S) + START_S;
        Now { s, epoch_unix_s: start_unix_s - i64::from(START_S) }
    }

    /// When something with this expiration time ends; 0: never. As in memcached: up to thirty days
    /// from now, longer ones are dates, negative ones have expired.
    pub fn expires(self, time: i64) -> u32 {
        const OVER: u32 = 1;
        let at = match time {
            0 => return 0,
            i64::MIN..0 => return OVER,
            1..=RELATIVE_MAX_S => time + i64::from(self.s),
            _ => time - self.epoch_unix_s,
        };
        u32::try_from(at.max(OVER.into())).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_absolute_negative() {
        let start = 1_800_000_000;
        let now = Now::new(100, start);
        assert_eq!(now.s, 102);
        assert_eq!((now.expires(0), now.expires(-1), now.expires(1)), (0, 1, 103));
        assert_eq!(now.expires(RELATIVE_MAX_S), 2_592_102);
        // Dates: one second ago, in ten seconds, before the server began, in a century.
        assert_eq!(now.expires(start + 99), 101);
        assert_eq!(now.expires(start + 110), 112);
        assert_eq!(now.expires(RELATIVE_MAX_S + 1), 1);
        assert_eq!(now.expires(i64::MAX / 2), u32::MAX);
    }
}
