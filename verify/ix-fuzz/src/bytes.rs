//! Turns a fuzzer's input into decisions; after its end everything is zero.

/// The rest of the input.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// The whole input.
    pub fn new(input: &'a [u8]) -> Bytes<'a> {
        Bytes(input)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next octet.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next two.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next `N`.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// At most `n` of the next octets, as many as there are.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A distance of any scale up to `bits` bits: small ones are as likely as large ones.
    pub fn scaled(&mut self, bits: u8) -> u64 {
        let scale = u32::from(self.u8() % (bits + 1));
        self.u64() & (1u64 << scale).wrapping_sub(1)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.u8()) % from.len()]
    }
}
