//! Numbers that look random and are the same in every run.

/// xorshift64* (Marsaglia 2003, Vigna 2016).
pub struct Random(u64);

impl Random {
    /// Each seed gives a sequence of its own.
    pub fn new(seed: u64) -> Self {
        // The state must not be zero.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`, which is small.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() >> 32) as usize % bound
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next_u64() >> 56) as u8).collect()
    }
}
