//! How long an acknowledgement waits for data that can carry it (RFC 9293 section 3.8.6.3).
//!
//! Too short a wait costs a packet for each request of a busy service. Too long a wait delays a
//! peer that sends the rest of its message only after the first part is acknowledged (Nagle's
//! algorithm). What happens first after a wait has ended without data shows which of the two it
//! was. Data of our own could have carried the acknowledgement, so the next wait is twice as long.
//! More data from the peer may have waited for it, so the next wait is the shortest again.
//!
//! Where even the longest wait would have been in vain, acknowledgements are sent at once: each
//! costs a packet in any case, and without a wait no timer has to look at the connection again,
//! which is out of the caches by then where there are very many. One message shows it: our data
//! came later than the longest wait. When data follows an acknowledgement that was sent at once so
//! soon that a wait would have saved it, acknowledgements wait again.
use crate::Config;

/// The state of a connection's acknowledgement delay, in one octet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckPace(u8);

impl AckPace {
    /// Acknowledgements that still do not wait.
    const QUICK: u8 = 0x0f;
    /// Unit of the number of doublings.
    const DOUBLING: u8 = 0x10;
    /// How often the wait was doubled.
    const DOUBLINGS: u8 = 0x70;
    /// The number of doublings with which there is no wait.
    const AT_ONCE: u8 = 4 * Self::DOUBLING;
    /// An acknowledgement was sent without data, and no data was sent or received since.
    const IN_VAIN: u8 = 0x80;

    /// The state at the start of a connection.
    pub(crate) fn new(cfg: &Config) -> AckPace {
        AckPace(cfg.quick_acks.min(Self::QUICK))
    }

    /// Whether the next acknowledgement is sent without a wait. If so, counts it.
    #[inline]
    pub(crate) fn take_quick(&mut self) -> bool {
        if self.0 & Self::QUICK != 0 {
            self.0 -= 1;
            return true;
        }
        let at_once = self.0 & Self::DOUBLINGS == Self::AT_ONCE;
        self.0 |= if at_once { Self::IN_VAIN } else { 0 };
        at_once
    }

    /// How long an acknowledgement waits, µs.
    pub(crate) fn wait_us(self, cfg: &Config) -> u32 {
        let doublings = (self.0 & Self::DOUBLINGS) / Self::DOUBLING;
        (cfg.delack_us << doublings).min(cfg.delack_max_us).max(cfg.delack_us)
    }

    /// An acknowledgement has waited, and no data has carried it.
    #[inline]
    pub(crate) fn waited_in_vain(&mut self) {
        self.0 |= Self::IN_VAIN;
    }

    /// New data was sent, `silence_us` after the peer's last segment. A connection with data in
    /// both directions is not in the peer's slow start: its acknowledgements wait from now on.
    #[inline]
    pub(crate) fn data_sent(&mut self, cfg: &Config, silence_us: u64) {
        self.0 &= !Self::QUICK;
        if self.0 & Self::IN_VAIN != 0 {
            self.0 = (self.0 & !Self::IN_VAIN).wrapping_add(self.change(cfg, silence_us));
        }
    }

    /// What the number of doublings grows by when data follows a wait in vain.
    #[cold]
    fn change(self, cfg: &Config, silence_us: u64) -> u8 {
        let doublings = self.0 & Self::DOUBLINGS;
        let is_in_reach = silence_us < u64::from(cfg.delack_max_us.max(cfg.delack_us));
        match (is_in_reach, doublings == Self::AT_ONCE) {
            (true, false) => Self::DOUBLING,
            (true, true) => Self::DOUBLING.wrapping_neg(),
            (false, _) => Self::AT_ONCE - doublings,
        }
    }

    /// New data was received.
    #[inline]
    pub(crate) fn data_received(&mut self) {
        if self.0 & Self::IN_VAIN != 0 {
            self.0 &= Self::QUICK;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cfg() -> Config {
        Config { quick_acks: 2, delack_us: 1_000, delack_max_us: 5_000, ..Config::default() }
    }

    /// In reach of the longest wait, and beyond it.
    const SOON_US: u64 = 4_999;
    const LATE_US: u64 = 5_000;

    #[test]
    fn the_first_are_quick_until_data_goes_out() {
        let mut pace = AckPace::new(&cfg());
        assert!(pace.take_quick() && pace.take_quick() && !pace.take_quick());
        let mut pace = AckPace::new(&cfg());
        pace.data_sent(&cfg(), 0);
        assert!(!pace.take_quick());
    }

    /// A connection whose own data came too late for any wait.
    fn in_vain(cfg: &Config) -> AckPace {
        let mut pace = AckPace::new(cfg);
        pace.data_sent(cfg, 0);
        assert!(!pace.take_quick());
        pace.waited_in_vain();
        pace.data_sent(cfg, LATE_US);
        // Once for each wait that ended without data.
        pace.data_sent(cfg, LATE_US);
        pace
    }

    #[test]
    fn a_wait_grows_when_data_of_our_own_comes_late_and_shrinks_when_the_peer_goes_on() {
        let cfg = cfg();
        let mut pace = AckPace::new(&cfg);
        pace.data_sent(&cfg, 0);
        let mut seen = Vec::new();
        for _ in 0..4 {
            assert!(!pace.take_quick());
            seen.push(pace.wait_us(&cfg));
            pace.waited_in_vain();
            pace.data_sent(&cfg, SOON_US);
        }
        assert_eq!(seen, [1_000, 2_000, 4_000, 5_000]);
        assert!(pace.take_quick(), "the longest wait was in vain");
        pace.data_received();
        assert!(!pace.take_quick());
        assert_eq!(pace.wait_us(&cfg), 1_000);
        assert_eq!(pace.wait_us(&Config { delack_us: 9_000, ..cfg }), 9_000);
    }

    #[test]
    fn nothing_waits_where_the_longest_wait_would_have_been_in_vain() {
        let cfg = cfg();
        let mut pace = in_vain(&cfg);
        for _ in 0..3 {
            pace.data_received();
            assert!(pace.take_quick());
            pace.data_sent(&cfg, LATE_US);
        }
    }

    #[test]
    fn acknowledgements_wait_again_when_data_follows_soon() {
        let cfg = cfg();
        let mut pace = in_vain(&cfg);
        assert!(pace.take_quick());
        pace.data_sent(&cfg, SOON_US);
        assert!(!pace.take_quick());
        assert_eq!(pace.wait_us(&cfg), 5_000);
    }

    #[test]
    fn acknowledgements_wait_again_when_the_peer_goes_on() {
        let cfg = cfg();
        let mut pace = in_vain(&cfg);
        assert!(pace.take_quick());
        pace.data_received();
        assert!(!pace.take_quick());
        assert_eq!(pace.wait_us(&cfg), 1_000);
    }
}
