//! The Internet checksum (RFC 1071), whole, in pieces and incremental (RFC 1624).
use crate::IpAddr;

/// A one's complement sum of 16-bit words, gathered over several pieces.
///
/// The sum is kept in the machine's byte order (RFC 1071 section 2 (B): swapping all bytes swaps
/// the result) and folded only at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Cannot overflow: at most 2^16 pieces of at most 2^48 each.
    sum: u64,
    /// The number of bytes so far is odd: the next piece begins in the middle of a word.
    odd: bool,
}

impl Checksum {
    /// The sum of nothing.
    #[inline]
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// The sum of one piece.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self { sum: sum_native(bytes), odd: bytes.len() % 2 == 1 }
    }

    /// The pseudo-header of TCP and UDP: addresses, protocol and length of the transport packet.
    ///
    /// One formula serves IPv4 and IPv6: the prefix of a mapped IPv4 address sums to 0xffff, which
    /// is zero in one's complement arithmetic.
    #[inline]
    pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, length: usize) -> Self {
        debug_assert!(length <= u16::MAX as usize);
        let mut pseudo = Self { sum: wide(&src.0) + wide(&dst.0), odd: false };
        pseudo.add_u32(u32::from(protocol) + length as u32);
        pseudo
    }

    /// This sum and that of two addresses: of a pseudo-header without its other words.
    #[inline]
    pub(crate) fn with_addresses(self, src: IpAddr, dst: IpAddr) -> Self {
        Self { sum: self.sum + wide(&src.0) + wide(&dst.0), odd: self.odd }
    }

    /// [`Self::pseudo_header`] of plain IPv4 addresses.
    #[inline]
    pub(crate) fn pseudo_header_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> Self {
        let mut pseudo = Self::new();
        pseudo.add_u32(u32::from_be_bytes(src));
        pseudo.add_u32(u32::from_be_bytes(dst));
        pseudo.add_u32(u32::from(protocol) + len as u32);
        pseudo
    }

    /// Adds the next piece, which may have an odd length.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.append(Self::of(bytes));
    }

    /// Adds the sum of the piece that follows. That sum was computed separately.
    #[inline]
    pub fn append(&mut self, next: Checksum) {
        // After an odd number of bytes, each byte of the piece is in the other half of its word.
        self.sum += if self.odd { fold_16(next.sum).swap_bytes().into() } else { next.sum };
        self.odd ^= next.odd;
    }

    /// Adds two 16-bit words, given as one number in host byte order, after an even number of
    /// bytes.
    ///
    /// Headers are summed from their values before they are stored: a wide load from memory that
    /// was just stored in narrow pieces stalls the processor.
    #[inline]
    pub fn add_u32(&mut self, words: u32) {
        debug_assert!(!self.odd);
        self.sum += u64::from(words.to_be());
    }

    /// The folded sum, not complemented. Linux leaves this sum of the pseudo-header in the checksum
    /// field if it expects a device to finish the checksum.
    #[inline]
    pub fn fold(self) -> u16 {
        u16::from_be(fold_16(self.sum))
    }

    /// The checksum to write into a header whose checksum field was zero.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// True if the sum covers a packet with its checksum field, and the checksum is right.
    #[inline]
    pub fn is_valid(self) -> bool {
        fold_16(self.sum) == u16::MAX
    }
}

/// The checksum of `bytes`: [`Checksum::finish`] over one piece.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Checksum::of(bytes).finish()
}

/// The new checksum when one 16-bit word that `check` covers changes (RFC 1624, equation 3).
#[inline]
pub const fn update_u16(check: u16, old: u16, new: u16) -> u16 {
    // HC' = ~(~HC + ~m + m')
    let mut sum = !check as u32 + !old as u32 + new as u32;
    sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// As [`update_u16`], for two adjacent words.
#[inline]
pub const fn update_u32(check: u16, old: u32, new: u32) -> u16 {
    let check = update_u16(check, (old >> 16) as u16, (new >> 16) as u16);
    update_u16(check, old as u16, new as u16)
}

/// The sum of `bytes` in native words, below 2^48; an odd last byte is padded with zero.
///
/// It adds 64-bit words to two sums, so that the carries of one do not wait for those of the other.
#[inline]
fn sum_native(bytes: &[u8]) -> u64 {
    let (mut even, mut odd) = (Wide::default(), Wide::default());
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        if let [first, second] = block.as_chunks::<32>().0 {
            even.add(quads(first));
            odd.add(quads(second));
        }
    }
    let sum = even.total() + odd.total();
    if rest.is_empty() { sum } else { sum + sum_of_rest(rest) }
}

/// [`sum_native`] of less than 64 bytes.
#[inline]
fn sum_of_rest(rest: &[u8]) -> u64 {
    let (block, rest) = rest.as_chunks::<32>();
    let mut wide = Wide::default();
    if let [block] = block {
        wide.add(quads(block));
    }
    let mut sum = wide.total();
    let (words, tail) = rest.as_chunks::<8>();
    for word in words {
        sum += halves(u64::from_ne_bytes(*word));
    }
    // In powers of two: a copy of variable length costs more than the whole sum of a short packet.
    let (words, tail) = tail.as_chunks::<4>();
    if let [word] = words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let (words, tail) = tail.as_chunks::<2>();
    if let [word] = words {
        sum += u64::from(u16::from_ne_bytes(*word));
    }
    if let [last] = tail {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
}

/// A sum of 64-bit words.
#[derive(Default)]
struct Wide {
    low: u64,
    /// Its carries.
    high: u64,
}

impl Wide {
    /// An add, three adds with carry, and one of the last carry.
    #[inline]
    fn add(&mut self, [a, b, c, d]: [u64; 4]) {
        let (sum, carry) = self.low.carrying_add(a, false);
        let (sum, carry) = sum.carrying_add(b, carry);
        let (sum, carry) = sum.carrying_add(c, carry);
        let (sum, carry) = sum.carrying_add(d, carry);
        self.low = sum;
        self.high += u64::from(carry);
    }

    /// Its one's complement, in 34 bits for a packet.
    #[inline]
    fn total(self) -> u64 {
        halves(self.low) + self.high
    }
}

#[inline]
fn quads(block: &[u8; 32]) -> [u64; 4] {
    let (words, _) = block.as_chunks::<8>();
    [0, 1, 2, 3].map(|i| u64::from_ne_bytes(words[i]))
}

/// The sum of the four 32-bit words of an address.
#[inline]
fn wide(address: &[u8; 16]) -> u64 {
    let (words, _) = address.as_chunks::<8>();
    halves(u64::from_ne_bytes(words[0])) + halves(u64::from_ne_bytes(words[1]))
}

/// The sum of a word's halves: equal to the word in one's complement.
#[inline]
const fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// The sum of the number's 16-bit words, folded, in the byte order of the number.
#[inline]
pub(crate) const fn fold_16(sum: u64) -> u16 {
    // Added to itself with its halves exchanged, a number has in its upper half the sum of both and
    // the carry of the lower one, which is that of this sum: the end-around carry.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Checksum::of(&bytes).fold(), 0xddf2);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let ones = vec![0xff; 65_535];
        assert_eq!(checksum(&ones), naive(&ones));
        assert_eq!(checksum(&[0; 65_535]), 0xffff);
        assert_eq!(checksum(&[]), 0xffff);
        assert_eq!(fold_16(u64::MAX), 0xffff);
        assert_eq!((fold_16(0), fold_16(1 << 63), fold_16(0xffff_0001)), (0, 1 << 15, 1));
    }

    #[test]
    fn rfc_1624_example() {
        // Section 4: the naive equation 4 gives 0xffff here, equation 3 the right 0x0000.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn pseudo_header_is_the_same_in_both_shapes() {
        let (src, dst) = (IpAddr::v4([10, 0, 0, 1]), IpAddr::v4([192, 168, 255, 254]));
        let v4 = [10, 0, 0, 1, 192, 168, 255, 254, 0, 6, 0x12, 0x34];
        assert_eq!(Checksum::pseudo_header(src, dst, 6, 0x1234).fold(), Checksum::of(&v4).fold());
        let v6: IpAddr = "fe80::1:2".parse().unwrap();
        let mut bytes = [v6.0, v6.0].concat();
        bytes.extend([0, 0, 0x12, 0x34, 0, 0, 0, 17]);
        assert_eq!(Checksum::pseudo_header(v6, v6, 17, 0x1234).fold(), Checksum::of(&bytes).fold());
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_sum(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(checksum(&bytes), naive(&bytes));
        }

        #[test]
        fn pieces_of_any_length_add_up(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(0usize..200, 0..5),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut sum = Checksum::new();
            for piece in cuts.windows(2) {
                sum.add_bytes(&bytes[piece[0]..piece[1]]);
            }
            prop_assert_eq!(sum.finish(), naive(&bytes));
        }

        #[test]
        fn a_packet_with_its_checksum_is_valid(
            mut bytes in prop::collection::vec(any::<u8>(), 2..100),
            flip in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            bytes[..2].fill(0);
            let check = checksum(&bytes);
            bytes[..2].copy_from_slice(&check.to_be_bytes());
            prop_assert!(Checksum::of(&bytes).is_valid());
            let at = flip.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(!Checksum::of(&bytes).is_valid());
        }

        #[test]
        fn incremental_update_agrees_with_a_fresh_sum(
            mut bytes in prop::collection::vec(any::<u8>(), 20..21),
            new: u32,
        ) {
            bytes[..2].copy_from_slice(&[0x45, 0]); // a header is never all zero
            let check = checksum(&bytes);
            let old = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
            bytes[8..12].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u32(check, old, new), naive(&bytes));
        }
    }
}
