//! A fuzzer for use without libFuzzer: it mutates inputs of the corpus at random, from a seed. It
//! does not measure coverage, so it finds errors near the corpus; it runs in `cargo test`, and is
//! repeatable.
use ix_random::Rng;

/// Longest input.
const LEN_MAX: usize = 4096;
/// Significant octets.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'\r', b'\n'];

/// A mutated input of the corpus, or a random one.
pub fn input(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if corpus.is_empty() || rng.index(8) == 0 {
        let len = 1usize << rng.index(12);
        return (0..len).map(|_| rng.next_u64() as u8).collect();
    }
    let mut input = corpus[rng.index(corpus.len())].clone();
    for _ in 0..1 + rng.index(8) {
        change(&mut input, corpus, rng);
    }
    input.truncate(LEN_MAX);
    input
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.index(input.len() + 1);
    let until = at + rng.index(input.len() - at + 1);
    match rng.index(8) {
        0 | 1 if at < input.len() => input[at] ^= 1 << rng.index(8),
        2 if at < input.len() => input[at] = rng.next_u64() as u8,
        3 if at < input.len() => input[at] = EDGES[rng.index(EDGES.len())],
        4 => drop(input.drain(at..until)),
        5 => {
            let copy = input[at..until].to_vec();
            input.splice(at..at, copy);
        }
        6 => {
            let new: Vec<u8> = (0..rng.index(32)).map(|_| rng.next_u64() as u8).collect();
            input.splice(at..at, new);
        }
        _ => {
            let other = &corpus[rng.index(corpus.len())];
            let from = rng.index(other.len() + 1);
            input.splice(at.., other[from..].iter().copied());
        }
    }
}
