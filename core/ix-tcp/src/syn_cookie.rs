//! SYN cookies (RFC 4987 section 3.6): under a flood the state of a half-open connection is in the
//! SYN-ACK, and returns with the handshake's last ACK.
//!
//! The initial sequence number holds two bits of the period in which it was made, three of the MSS,
//! and 27 of a keyed hash over all that must not be forged. Window scale and SACK do not fit. They
//! are in the low bits of the timestamp, which the peer echoes; a peer without timestamps gets
//! neither.
use crate::isn::{Key, Purpose};
use crate::listen::PeerOptions;
use ix_wire::{FlowTuple, Seq};

/// Length of a period.
const PERIOD_US: u64 = 64_000_000;
/// A cookie is valid in its own period and in this many after it: for 128 to 192 s.
const PERIODS_OLD_MAX: u32 = 2;
/// After this time no cookie is valid any more.
pub const LIFETIME_US: u64 = (PERIODS_OLD_MAX as u64 + 1) * PERIOD_US;
const PERIOD_BITS: u32 = 2;
const MSS_BITS: u32 = 3;
const HASH_BITS: u32 = 32 - PERIOD_BITS - MSS_BITS;

/// Segment sizes that a cookie can hold: the smallest that is accepted, RFC 9293's default, IPv6's
/// minimum, then what Ethernet leaves with tunnels, IPv6, plain IPv4, and jumbo frames.
const MSS_TABLE: [u16; 1 << MSS_BITS] = [64, 536, 1220, 1360, 1410, 1440, 1460, 8960];

/// Low bits of the timestamp that carry options: four of window scale, one of SACK-permitted, one
/// of ECN.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const SACK_PERMITTED: u32 = 1 << 4;
const ECN: u32 = 1 << 5;
const NO_WINDOW_SCALE: u32 = 15;

/// The peer's options that a cookie can hold: the MSS rounded down (returned with its index in the
/// table), and window scale and SACK only with timestamps.
fn granted(offered: PeerOptions) -> (u32, PeerOptions) {
    let above = MSS_TABLE.partition_point(|&mss| mss <= offered.mss);
    let index = above.saturating_sub(1);
    let timestamps = offered.timestamps;
    let granted = PeerOptions {
        mss: MSS_TABLE[index],
        window_scale: offered.window_scale.filter(|_| timestamps).map(|shift| shift.min(14)),
        sack_permitted: offered.sack_permitted && timestamps,
        timestamps,
        ecn: offered.ecn && timestamps,
        // There is no bit left for it: such a peer gets the ECN of RFC 3168.
        accurate_ecn: false,
    };
    (index as u32, granted)
}

/// The low bits of the timestamp that stand for `granted`.
fn option_bits(granted: PeerOptions) -> u32 {
    let shift = granted.window_scale.map_or(NO_WINDOW_SCALE, u32::from);
    let sack = if granted.sack_permitted { SACK_PERMITTED } else { 0 };
    shift | sack | if granted.ecn { ECN } else { 0 }
}

/// The reply to a SYN for which no state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynCookie {
    /// Sequence number of the SYN-ACK.
    pub iss: Seq,
    /// TSval of the SYN-ACK, if timestamps are among the granted options: up to 63 ticks behind the
    /// clock, never ahead of it.
    pub ts_val: u32,
    /// What the SYN-ACK may accept: window scale, SACK-permitted and timestamps only if set here,
    /// because the cookie does not keep anything else.
    pub granted: PeerOptions,
}

/// Makes the cookie for a SYN with sequence number `irs`. `offered` are the peer's options that we
/// accept; `ts_now` is our timestamp clock for this tuple.
pub fn make(
    key: &Key,
    tuple: &FlowTuple,
    irs: Seq,
    offered: PeerOptions,
    ts_now: u32,
    now_us: u64,
) -> SynCookie {
    let (mss_index, granted) = granted(offered);
    let mut ts_val = ts_now & !OPTION_MASK | option_bits(granted);
    if ts_val > ts_now {
        ts_val = ts_val.wrapping_sub(1 << OPTION_BITS);
    }
    let echoed = granted.timestamps.then_some(ts_val);
    let period = period(now_us);
    let iss = Seq(seal(key, tuple, irs, echoed, period, mss_index));
    SynCookie { iss, ts_val, granted }
}

/// Checks the acknowledgement number of a segment that fits no connection. `seg_seq` and `seg_ack`
/// are its numbers, `ts_ecr` the echoed timestamp if it has one.
///
/// Returns what the handshake agreed on; `None` if this is not our cookie, or an expired one.
pub fn check(
    key: &Key,
    tuple: &FlowTuple,
    seg_seq: Seq,
    seg_ack: Seq,
    ts_ecr: Option<u32>,
    now_us: u64,
) -> Option<PeerOptions> {
    let iss = seg_ack.0.wrapping_sub(1);
    let irs = Seq(seg_seq.0.wrapping_sub(1));
    let age = period(now_us).wrapping_sub(iss >> (MSS_BITS + HASH_BITS)) % (1 << PERIOD_BITS);
    if age > PERIODS_OLD_MAX {
        return None;
    }
    let made = period(now_us).wrapping_sub(age);
    let mss_index = iss >> HASH_BITS & ((1 << MSS_BITS) - 1);
    if seal(key, tuple, irs, ts_ecr, made, mss_index) != iss {
        return None;
    }
    // The hash protects the presence of the timestamp and all its bits.
    let bits = ts_ecr.map_or(NO_WINDOW_SCALE, |ts_ecr| ts_ecr & OPTION_MASK);
    let shift = bits & NO_WINDOW_SCALE;
    Some(PeerOptions {
        mss: MSS_TABLE[mss_index as usize],
        window_scale: (shift != NO_WINDOW_SCALE).then_some(shift as u8),
        sack_permitted: bits & SACK_PERMITTED != 0,
        timestamps: ts_ecr.is_some(),
        ecn: bits & ECN != 0,
        accurate_ecn: false,
    })
}

fn period(now_us: u64) -> u32 {
    (now_us / PERIOD_US) as u32
}

fn seal(
    key: &Key,
    tuple: &FlowTuple,
    irs: Seq,
    ts_val: Option<u32>,
    period: u32,
    mss_index: u32,
) -> u32 {
    let words = [irs.0, period, mss_index, u32::from(ts_val.is_some()), ts_val.unwrap_or(0)];
    let hash = key.hash(Purpose::SynCookie, tuple, &words) as u32 >> (32 - HASH_BITS);
    period << (MSS_BITS + HASH_BITS) | mss_index << HASH_BITS | hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isn::tests::{KEY, tuple};
    use proptest::prelude::*;

    const OFFER: PeerOptions = PeerOptions {
        mss: 1460,
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: true,
        ecn: true,
        accurate_ecn: false,
    };

    fn returned(
        cookie: &SynCookie,
        irs: Seq,
        ts_ecr: Option<u32>,
        now_us: u64,
    ) -> Option<PeerOptions> {
        check(&KEY, &tuple(80, 5000), irs + 1, cookie.iss + 1, ts_ecr, now_us)
    }

    #[test]
    fn expires_after_two_to_three_periods() {
        for start_us in [0, 1, PERIOD_US - 1, 7 * PERIOD_US, 1 << 50] {
            let cookie = make(&KEY, &tuple(80, 5000), Seq(9), OFFER, 1000, start_us);
            let ecr = Some(cookie.ts_val);
            for age_us in [0, 1_000_000, 2 * PERIOD_US] {
                assert_eq!(returned(&cookie, Seq(9), ecr, start_us + age_us), Some(OFFER));
            }
            for periods in 3..40 {
                assert_eq!(returned(&cookie, Seq(9), ecr, start_us + periods * PERIOD_US), None);
            }
        }
    }

    #[test]
    fn is_bound_to_tuple_key_sequence_number_and_timestamp() {
        let cookie = make(&KEY, &tuple(80, 5000), Seq(9), OFFER, 1000, 0);
        let ecr = Some(cookie.ts_val);
        let (seq, ack) = (Seq(10), cookie.iss + 1);
        assert_eq!(check(&KEY, &tuple(80, 5000), seq, ack, ecr, 0), Some(OFFER));
        assert_eq!(check(&KEY, &tuple(80, 5001), seq, ack, ecr, 0), None);
        assert_eq!(check(&KEY, &tuple(81, 5000), seq, ack, ecr, 0), None);
        assert_eq!(check(&Key([1, 2]), &tuple(80, 5000), seq, ack, ecr, 0), None);
        assert_eq!(check(&KEY, &tuple(80, 5000), seq + 1, ack, ecr, 0), None);
        assert_eq!(check(&KEY, &tuple(80, 5000), seq, ack + 1, ecr, 0), None);
        // No one gets SACK or another window scale by changing the echoed timestamp.
        for bit in 0..32 {
            let forged = Some(cookie.ts_val ^ 1 << bit);
            assert_eq!(check(&KEY, &tuple(80, 5000), seq, ack, forged, 0), None);
        }
        assert_eq!(check(&KEY, &tuple(80, 5000), seq, ack, None, 0), None);
    }

    #[test]
    fn without_timestamps_only_the_mss_survives() {
        let offer = PeerOptions { timestamps: false, ..OFFER };
        let cookie = make(&KEY, &tuple(80, 5000), Seq(9), offer, 1000, 0);
        let granted = PeerOptions {
            mss: 1460,
            window_scale: None,
            sack_permitted: false,
            timestamps: false,
            ecn: false,
            accurate_ecn: false,
        };
        assert_eq!(cookie.granted, granted);
        assert_eq!(returned(&cookie, Seq(9), None, 0), Some(granted));
        assert_eq!(returned(&cookie, Seq(9), Some(cookie.ts_val), 0), None);
    }

    #[test]
    fn mss_is_rounded_down() {
        for (offered, granted) in
            [(0, 64), (63, 64), (64, 64), (535, 64), (536, 536), (1459, 1440), (9000, 8960)]
        {
            let offer = PeerOptions { mss: offered, ..OFFER };
            assert_eq!(make(&KEY, &tuple(80, 1), Seq(0), offer, 0, 0).granted.mss, granted);
        }
    }

    #[test]
    fn a_guess_hits_rarely() {
        // All cookies that differ from the true one only in the hash's bits must fail; some are
        // tried.
        let cookie = make(&KEY, &tuple(80, 5000), Seq(9), OFFER, 1000, 0);
        let ecr = Some(cookie.ts_val);
        let hits = (1..100_000u32)
            .filter(|guess| {
                let ack = Seq(cookie.iss.0.wrapping_add(1).wrapping_add(guess * 42_949));
                check(&KEY, &tuple(80, 5000), Seq(10), ack, ecr, 0).is_some()
            })
            .count();
        assert!(hits <= 2, "{hits}");
    }

    proptest! {
        /// What was granted returns, and is never more than what was offered.
        #[test]
        fn round_trip(
            mss in 64u16..,
            window_scale in proptest::option::of(0u8..=14),
            sack_permitted in any::<bool>(),
            timestamps in any::<bool>(),
            ecn in any::<bool>(),
            irs in any::<u32>(),
            ts_now in any::<u32>(),
            now_us in 0..1u64 << 60,
            age_us in 0..2 * PERIOD_US,
        ) {
            let accurate_ecn = ecn;
            let offered =
                PeerOptions { mss, window_scale, sack_permitted, timestamps, ecn, accurate_ecn };
            let cookie = make(&KEY, &tuple(80, 5000), Seq(irs), offered, ts_now, now_us);
            let ecr = timestamps.then_some(cookie.ts_val);
            let got = returned(&cookie, Seq(irs), ecr, now_us + age_us);
            prop_assert_eq!(got, Some(cookie.granted));
            prop_assert!(cookie.granted.mss <= mss);
            prop_assert_eq!(cookie.granted.timestamps, timestamps);
            if timestamps {
                prop_assert_eq!(cookie.granted.window_scale, window_scale);
                prop_assert_eq!(cookie.granted.sack_permitted, sack_permitted);
                prop_assert_eq!(cookie.granted.ecn, ecn);
            }
            // Never ahead of the clock, or PAWS would drop what follows.
            prop_assert!(ts_now.wrapping_sub(cookie.ts_val) < 1 << OPTION_BITS);
        }
    }
}
