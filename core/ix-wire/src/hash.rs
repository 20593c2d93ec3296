//! Flow hashes: the one that network cards compute, and the dataplane's own.
use crate::{FlowTuple, IpAddr};

/// Number of flow groups. A flow group is all flows with the same index into the redirection table.
pub const FLOW_GROUPS: usize = 128;

/// The flow group of a flow with this hash.
#[inline]
pub const fn flow_group(hash: u64) -> usize {
    hash as usize & (FLOW_GROUPS - 1)
}

/// The dataplane's own flow hash, for devices whose redirection table is an eBPF program of ours.
///
/// The eBPF steering programs compute the same formula: change both or none. The key is random, so
/// that a peer cannot choose ports that all fall into one flow group. The hash is not
/// cryptographic: never use it where a secret function is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash {
    /// The key, from a random source at the start of the dataplane.
    pub key: [u64; 2],
}

impl FlowHash {
    /// A hash with this key.
    #[inline]
    pub const fn new(key: [u64; 2]) -> Self {
        Self { key }
    }

    /// The hash of a flow, the same at both ends: that of the flow's incoming direction.
    #[inline]
    pub fn hash(&self, tuple: &FlowTuple) -> u64 {
        self.incoming(tuple.remote, tuple.local, tuple.remote_port, tuple.local_port)
    }

    /// The hash of an incoming packet. Ports are zero for what is neither TCP nor UDP.
    #[inline]
    pub fn incoming(&self, src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> u64 {
        let addresses = u64::from(fold(src)) << 32 | u64::from(fold(dst));
        let ports = u64::from(src_port) << 16 | u64::from(dst_port);
        self.mix(addresses, ports)
    }

    /// The multiplier of each round. The last round has no input of its own. Without it a port,
    /// which is in the upper half of its word, reaches the flow group through a few slow bits only:
    /// a hundred consecutive ports then go to one of two elastic threads.
    pub const MULTIPLIERS: [u64; 3] =
        [0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93, 0xD6E8_FEB8_6659_FD93];

    #[inline]
    const fn mix(&self, addresses: u64, ports: u64) -> u64 {
        let [first, second, third] = Self::MULTIPLIERS;
        let mut x = (addresses ^ self.key[0]).wrapping_mul(first);
        x ^= x >> 32;
        x = (x ^ ports ^ self.key[1]).wrapping_mul(second);
        x ^= x >> 32;
        x = x.wrapping_mul(third);
        x ^ x >> 32
    }
}

/// Folds an address to 32 bits. IPv4 stays as it is. The words of an IPv6 address are rotated
/// differently, so that equal words do not cancel out.
#[inline]
fn fold(address: IpAddr) -> u32 {
    let word = |i: usize| crate::be32(&address.0, 4 * i);
    if address.as_v4().is_some() {
        return word(3);
    }
    word(0).rotate_left(21) ^ word(1).rotate_left(13) ^ word(2).rotate_left(7) ^ word(3)
}

const KEY_BYTES: usize = 40;
/// Two IPv6 addresses and two ports, four bits at a time.
const NIBBLES: usize = 2 * (KEY_BYTES - 4);

/// The Toeplitz hash of receive-side scaling, as network cards compute it.
///
/// A table holds, for each four bits of the input, what each of their sixteen values contributes:
/// 4.5 KB for IPv6, of which IPv4 uses a third.
#[derive(Clone)]
pub struct Toeplitz {
    table: [[u32; 16]; NIBBLES],
}

impl Toeplitz {
    /// Prepares the tables for a key, as the device reports it.
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let mut table = [[0; 16]; NIBBLES];
        for (position, row) in table.iter_mut().enumerate() {
            for (value, contribution) in row.iter_mut().enumerate() {
                *contribution = (0..4)
                    .filter(|bit| value & (0b1000 >> bit) != 0)
                    .fold(0, |hash, bit| hash ^ key_window(key, 4 * position + bit));
            }
        }
        Self { table }
    }

    /// The hash of an incoming IPv4 TCP or UDP packet.
    #[inline]
    pub fn hash_v4(&self, src: [u8; 4], dst: [u8; 4], src_port: u16, dst_port: u16) -> u32 {
        self.digest(0, &src)
            ^ self.digest(4, &dst)
            ^ self.digest(8, &src_port.to_be_bytes())
            ^ self.digest(10, &dst_port.to_be_bytes())
    }

    /// The hash of any other incoming IPv4 packet.
    #[inline]
    pub fn hash_v4_addresses(&self, src: [u8; 4], dst: [u8; 4]) -> u32 {
        self.digest(0, &src) ^ self.digest(4, &dst)
    }

    /// The hash of an incoming IPv6 TCP or UDP packet.
    #[inline]
    pub fn hash_v6(&self, src: [u8; 16], dst: [u8; 16], src_port: u16, dst_port: u16) -> u32 {
        self.hash_v6_addresses(src, dst)
            ^ self.digest(32, &src_port.to_be_bytes())
            ^ self.digest(34, &dst_port.to_be_bytes())
    }

    /// The hash of any other incoming IPv6 packet.
    #[inline]
    pub fn hash_v6_addresses(&self, src: [u8; 16], dst: [u8; 16]) -> u32 {
        self.digest(0, &src) ^ self.digest(16, &dst)
    }

    /// The hash of a flow, that of its incoming direction.
    #[inline]
    pub fn hash(&self, tuple: &FlowTuple) -> u32 {
        let (src_port, dst_port) = (tuple.remote_port, tuple.local_port);
        match (tuple.remote.as_v4(), tuple.local.as_v4()) {
            (Some(src), Some(dst)) => self.hash_v4(src, dst, src_port, dst_port),
            _ => self.hash_v6(tuple.remote.0, tuple.local.0, src_port, dst_port),
        }
    }

    /// What `bytes` at position `at` of the input contribute.
    #[inline]
    fn digest(&self, at: usize, bytes: &[u8]) -> u32 {
        let rows = &self.table[2 * at..2 * (at + bytes.len())];
        bytes.iter().zip(rows.as_chunks::<2>().0).fold(0, |hash, (byte, [high, low])| {
            hash ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 0xf)]
        })
    }
}

/// The 32 bits of the key that begin at `bit`.
fn key_window(key: &[u8; KEY_BYTES], bit: usize) -> u32 {
    let window = (0..5).fold(0u64, |window, i| {
        window << 8 | u64::from(key.get(bit / 8 + i).copied().unwrap_or(0))
    });
    (window >> (8 - bit % 8)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The key of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Source, its port, destination, its port, hash of the addresses, hash with ports.
    type Vector = (&'static str, u16, &'static str, u16, u32, u32);

    const VECTORS: [Vector; 8] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    #[test]
    fn toeplitz_gives_the_published_values() {
        let toeplitz = Toeplitz::new(&KEY);
        for (src, src_port, dst, dst_port, addresses, ports) in VECTORS {
            let (remote, local): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            let tuple = FlowTuple { local, remote, local_port: dst_port, remote_port: src_port };
            assert_eq!(toeplitz.hash(&tuple), ports, "{tuple}");
            let of_addresses = match (remote.as_v4(), local.as_v4()) {
                (Some(src), Some(dst)) => toeplitz.hash_v4_addresses(src, dst),
                _ => toeplitz.hash_v6_addresses(remote.0, local.0),
            };
            assert_eq!(of_addresses, addresses, "{tuple}");
        }
    }

    /// Bit by bit, as the specification describes it.
    fn naive(key: &[u8; 40], input: &[u8]) -> u32 {
        let mut window = key.to_vec();
        let mut hash = 0;
        for byte in input {
            for bit in (0..8).rev() {
                if byte >> bit & 1 == 1 {
                    hash ^= u32::from_be_bytes([window[0], window[1], window[2], window[3]]);
                }
                for i in 0..window.len() {
                    let next = window.get(i + 1).copied().unwrap_or(0);
                    window[i] = window[i] << 1 | next >> 7;
                }
            }
        }
        hash
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn toeplitz_agrees_with_the_naive_one(
            key in prop::collection::vec(any::<u8>(), 40),
            src: [u8; 16],
            dst: [u8; 16],
            ports: (u16, u16),
        ) {
            let key: [u8; 40] = key.try_into().unwrap();
            let mut input = [src, dst].concat();
            input.extend(ports.0.to_be_bytes());
            input.extend(ports.1.to_be_bytes());
            let toeplitz = Toeplitz::new(&key);
            prop_assert_eq!(toeplitz.hash_v6(src, dst, ports.0, ports.1), naive(&key, &input));
        }
    }

    /// The steering programs are tested against the same values.
    #[test]
    fn flow_hash_is_the_formula_of_the_steering_programs() {
        let tuple = FlowTuple {
            local: IpAddr::v4([10, 0, 0, 2]),
            remote: IpAddr::v4([10, 0, 0, 1]),
            local_port: 7,
            remote_port: 40_000,
        };
        let key = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        let a: u64 = 0x0a00_0001_0a00_0002;
        let p: u64 = 40_000 << 16 | 7;
        let mut x = u128::from(a ^ key[0]) * 0x9E37_79B9_7F4A_7C15 % (1 << 64);
        x ^= x >> 32;
        x = (x ^ u128::from(p ^ key[1])) * 0xD6E8_FEB8_6659_FD93 % (1 << 64);
        x ^= x >> 32;
        x = x * 0xD6E8_FEB8_6659_FD93 % (1 << 64);
        x ^= x >> 32;
        assert_eq!(u128::from(FlowHash::new(key).hash(&tuple)), x);
    }

    #[test]
    fn flow_hash_spreads_consecutive_ports_evenly() {
        let (server, client) = (IpAddr::v4([10, 0, 0, 2]), IpAddr::v4([10, 0, 0, 1]));
        for seed in 1..50u64 {
            let hash = FlowHash::new([seed << 40 | 1, seed.wrapping_mul(0x1234_5678_9abc_def1)]);
            // At the server, and at the client, for steps of one port and, as on Linux, of two.
            let at_server = |port| hash.incoming(client, server, port, 80);
            let at_client = |port| hash.incoming(server, client, 80, port);
            for hash_of in [&at_server as &dyn Fn(u16) -> u64, &at_client] {
                for step in [1, 2] {
                    let groups = |count: u16| {
                        (0..count).map(move |i| flow_group(hash_of(10_000 + i * step)))
                    };
                    let mut of_group = [0u32; FLOW_GROUPS];
                    groups(128 * 100).for_each(|group| of_group[group] += 1);
                    // 100 expected in each; 10 is the standard deviation of a random spread.
                    assert!(of_group.iter().all(|n| (45..=160).contains(n)), "{of_group:?}");
                    // With few connections as well: of 64, 32 are expected, with a standard
                    // deviation of 4.
                    for bit in 0..7 {
                        let ones = groups(64).filter(|group| group >> bit & 1 == 1).count();
                        assert!((8..=56).contains(&ones), "bit {bit}, step {step}: {ones} of 64");
                    }
                }
            }
        }
    }
}
