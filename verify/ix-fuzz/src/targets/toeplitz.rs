//! The Toeplitz hash against its definition, bit by bit.
use crate::bytes::Bytes;
use ix_wire::Toeplitz;

fn naive(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit_of =
        |bytes: &[u8], bit: usize| bytes.get(bit / 8).map_or(0, |b| b >> (7 - bit % 8) & 1);
    let ones = (0..input.len() * 8).filter(|&bit| bit_of(input, bit) == 1);
    let window = |at: usize| (at..at + 32).fold(0, |w, bit| w << 1 | u32::from(bit_of(key, bit)));
    ones.fold(0, |hash, bit| hash ^ window(bit))
}

/// Any key, any addresses and ports.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let key: [u8; 40] = bytes.array();
    let (src, dst): ([u8; 16], [u8; 16]) = (bytes.array(), bytes.array());
    let ports = (bytes.u16(), bytes.u16());
    let toeplitz = Toeplitz::new(&key);
    let tail = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    let six = [&src[..], &dst, &tail].concat();
    assert_eq!(toeplitz.hash_v6(src, dst, ports.0, ports.1), naive(&key, &six));
    let (src, dst) = ([src[0], src[1], src[2], src[3]], [dst[0], dst[1], dst[2], dst[3]]);
    let four = [&src[..], &dst, &tail].concat();
    assert_eq!(toeplitz.hash_v4(src, dst, ports.0, ports.1), naive(&key, &four));
}
