//! Initial sequence numbers and timestamp offsets that cannot be guessed (RFC 6528, folded into
//! RFC 9293 section 3.4.1; RFC 7323 section 5.4).
use core::hash::Hasher;
use ix_wire::{FlowTuple, Seq};
use siphasher::sip::SipHasher24;

/// A secret of the dataplane, drawn once at its start.
#[derive(Clone, Copy)]
pub struct Key(pub [u64; 2]);

/// Purpose of a hash: the outputs for one purpose reveal nothing about those for another.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Purpose {
    Isn = 1,
    TimestampOffset,
    SynCookie,
    PortOffset,
    PortIndex,
    ChallengeLimit,
    Identification,
    FlowLabel,
}

impl Key {
    /// SipHash-2-4 of `purpose` and `words`.
    pub(crate) fn hash(&self, purpose: Purpose, tuple: &FlowTuple, words: &[u32]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        let mut block = [0u8; 37];
        block[..16].copy_from_slice(&tuple.local.0);
        block[16..32].copy_from_slice(&tuple.remote.0);
        block[32..34].copy_from_slice(&tuple.local_port.to_be_bytes());
        block[34..36].copy_from_slice(&tuple.remote_port.to_be_bytes());
        block[36] = purpose as u8;
        hasher.write(&block);
        for word in words {
            hasher.write(&word.to_be_bytes());
        }
        hasher.finish()
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// The initial sequence number `M + F(tuple, key)`. M advances every 4 µs, so that a new
/// incarnation of a connection begins above the numbers of the old one.
pub fn isn(key: &Key, tuple: &FlowTuple, now_us: u64) -> Seq {
    Seq(key.hash(Purpose::Isn, tuple, &[]) as u32) + (now_us / 4) as u32
}

/// What flow labels are mixed with ([`flow_label`]).
pub fn label_key(key: &Key) -> u64 {
    key.hash(Purpose::FlowLabel, &FlowTuple::default(), &[])
}

/// The label of a flow with this hash in the flow table: the same for all of its packets, and never
/// 0, which is none (RFC 6437 section 3). It tells nobody where the flow is in the table.
#[inline]
pub fn flow_label(label_key: u64, hash: u64) -> u32 {
    const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
    let mixed = hash >> 32 ^ label_key;
    ((mixed ^ mixed >> 32).wrapping_mul(MULTIPLIER) >> 44).max(1) as u32
}

/// What to add to the timestamp clock on this connection. It is the same for each incarnation, so
/// that the timestamps of a tuple only grow, which RFC 6191 needs to leave TIME-WAIT early.
pub fn timestamp_offset(key: &Key, tuple: &FlowTuple) -> u32 {
    key.hash(Purpose::TimestampOffset, tuple, &[]) as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ix_wire::IpAddr;

    pub(crate) const KEY: Key = Key([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    pub(crate) fn tuple(local_port: u16, remote_port: u16) -> FlowTuple {
        FlowTuple {
            local: IpAddr::v4([10, 0, 0, 1]),
            remote: IpAddr::v4([10, 0, 0, 2]),
            local_port,
            remote_port,
        }
    }

    #[test]
    fn timestamps_begin_elsewhere_on_each_connection() {
        let offset = |local, remote| timestamp_offset(&KEY, &tuple(local, remote));
        let offsets: std::collections::HashSet<u32> =
            (5000..6000).map(|port| offset(80, port)).collect();
        assert_eq!(offsets.len(), 1000);
        // No guessable step from one to the next.
        let steps: std::collections::HashSet<u32> =
            (5000..6000).map(|port| offset(80, port + 1).wrapping_sub(offset(80, port))).collect();
        assert!(steps.len() > 990);
        // A later incarnation continues with the clock (RFC 6191).
        assert_eq!(offset(80, 5000), offset(80, 5000));
        let other = Key([KEY.0[0], KEY.0[1] ^ 1]);
        assert_ne!(timestamp_offset(&other, &tuple(80, 5000)), offset(80, 5000));
    }

    #[test]
    fn ticks_every_four_microseconds_and_wraps() {
        let first = isn(&KEY, &tuple(80, 5000), 0);
        assert_eq!(isn(&KEY, &tuple(80, 5000), 3), first);
        assert_eq!(isn(&KEY, &tuple(80, 5000), 4), first + 1);
        // The clock wraps after 4.77 hours.
        assert_eq!(isn(&KEY, &tuple(80, 5000), 4 << 32), first);
        assert_eq!(isn(&KEY, &tuple(80, 5000), 4 * ((1 << 32) - 1)) - first, -1);
    }

    #[test]
    fn every_part_of_the_tuple_and_the_key_counts() {
        let base = tuple(80, 5000);
        let others = [
            FlowTuple { local: IpAddr::v4([10, 0, 0, 3]), ..base },
            FlowTuple { remote: IpAddr::v4([10, 0, 0, 3]), ..base },
            FlowTuple { local_port: 81, ..base },
            FlowTuple { remote_port: 5001, ..base },
            // Swapped, not only the same set.
            FlowTuple { local: base.remote, remote: base.local, ..base },
            FlowTuple { local_port: base.remote_port, remote_port: base.local_port, ..base },
        ];
        let first = (isn(&KEY, &base, 0), timestamp_offset(&KEY, &base));
        assert_ne!(first.0.0, first.1);
        for other in others {
            assert_ne!(isn(&KEY, &other, 0), first.0);
            assert_ne!(timestamp_offset(&KEY, &other), first.1);
        }
        for half in 0..2 {
            let mut key = KEY;
            key.0[half] ^= 1;
            assert_ne!(isn(&key, &base, 0), first.0);
        }
    }

    #[test]
    fn siphash_is_2_4() {
        // The reference implementation's vector: key 00..0f, message 00..0e.
        let mut hasher = SipHasher24::new_with_keys(KEY.0[0], KEY.0[1]);
        let message: [u8; 15] = core::array::from_fn(|index| index as u8);
        hasher.write(&message);
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn key_is_not_printed() {
        assert_eq!(format!("{KEY:?}"), "Key(secret)");
    }
}
