//! A fuzzer for where there is no libFuzzer: inputs of the corpus, changed at random by a seed. It
//! sees no coverage, so it finds what lies near the corpus; it runs in `cargo test`, and repeats.

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

/// Longest input.
const LEN_MAX: usize = 4096;
/// Octets that tend to matter.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'\r', b'\n'];

/// An input like those of the corpus, or one of no likeness at all.
pub fn input(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if corpus.is_empty() || rng.below(8) == 0 {
        let len = 1usize << rng.below(12);
        return (0..len).map(|_| rng.draw() as u8).collect();
    }
    let mut input = corpus[rng.below(corpus.len())].clone();
    for _ in 0..1 + rng.below(8) {
        change(&mut input, corpus, rng);
    }
    input.truncate(LEN_MAX);
    input
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(input.len() + 1);
    let until = at + rng.below(input.len() - at + 1);
    match rng.below(8) {
        0 | 1 if at < input.len() => input[at] ^= 1 << rng.below(8),
        2 if at < input.len() => input[at] = rng.draw() as u8,
        3 if at < input.len() => input[at] = EDGES[rng.below(EDGES.len())],
        4 => drop(input.drain(at..until)),
        5 => {
            let copy = input[at..until].to_vec();
            input.splice(at..at, copy);
        }
        6 => {
            let new: Vec<u8> = (0..rng.below(32)).map(|_| rng.draw() as u8).collect();
            input.splice(at..at, new);
        }
        _ => {
            let other = &corpus[rng.below(corpus.len())];
            let from = rng.below(other.len() + 1);
            input.splice(at.., other[from..].iter().copied());
        }
    }
}
