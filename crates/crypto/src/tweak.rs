//! Values added to each block before and after the cipher, for modes, and for kernels that add them themselves: the tweaks of XTS
//! for consecutive blocks (IEEE 1619-2007, 5.2 and 5.3.2), and those of LRW.

use std::slice;

/// The masks of a run of sectors: for each block the value that XTS xors before and after the cipher.
pub(crate) struct Masks<'a> {
    tweaks: slice::Iter<'a, [u8; 16]>,
    /// Blocks in a sector.
    per_sector: usize,
    /// Blocks left in this sector.
    left: usize,
    next: u128,
}

impl<'a> Masks<'a> {
    /// `tweaks` are the sectors' encrypted tweaks; `sector` is in bytes.
    pub(crate) fn new(tweaks: &'a [[u8; 16]], sector: usize) -> Self {
        Self { tweaks: tweaks.iter(), per_sector: sector / 16, left: 0, next: 0 }
    }

    /// For code that takes masks but runs without.
    pub(crate) fn none() -> Self {
        Self::new(&[], 16)
    }

    /// The masks of the next `out.len() / 16` blocks.
    #[inline(always)]
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let (mut out, _) = out.as_chunks_mut::<16>();
        while !out.is_empty() {
            if self.left == 0 {
                self.left = self.per_sector;
                self.next = u128::from_le_bytes(*self.tweaks.next().expect("a tweak for each sector of the run"));
            }
            let (now, later) = out.split_at_mut(self.left.min(out.len()));
            self.left -= now.len();
            for mask in now {
                *mask = self.next.to_le_bytes();
                self.next = double(self.next);
            }
            out = later;
        }
    }
}

/// Masks that are sums, like LRW's: a value for the group of `Sums::GROUP` blocks, plus a value for the place in it. They are in
/// memory order; a cipher with blocks of 8 bytes uses the first 8 bytes of each.
#[derive(Clone, Copy)]
pub struct Sums<'a> {
    /// A value for each group that the run touches.
    pub(crate) groups: &'a [u128],
    /// A value for each place in a group.
    pub(crate) places: &'a [u128; GROUP],
    /// The place of the run's first block.
    pub(crate) first: usize,
}

/// Blocks in a group.
const GROUP: usize = 128;

impl Sums<'_> {
    /// Blocks in a group.
    pub(crate) const GROUP: usize = GROUP;

    /// The mask of a block of the run.
    #[inline(always)]
    fn of(&self, block: usize) -> u128 {
        let at = self.first + block;
        self.groups[at / Self::GROUP] ^ self.places[at % Self::GROUP]
    }
}

/// Runs `ecb` between two additions of masks, on top of any kernel with blocks of `block` bytes.
pub(crate) fn add_around(block: usize, sums: &Sums<'_>, run: &mut [u8], ecb: impl Fn(&mut [u8])) {
    let mut room = [0; 4096];
    let mut at = 0;
    for part in run.chunks_mut(room.len()) {
        let room = &mut room[..part.len()];
        match block {
            8 => fill_blocks::<8>(sums, at, room),
            _ => fill_blocks::<16>(sums, at, room),
        }
        at += part.len() / block;
        xor(part, room);
        ecb(part);
        xor(part, room);
    }
    // The masks are linear in the tweak key, hence secret.
    crate::modes::wipe(&mut room, 0);
}

/// The masks of the blocks from `first` on.
fn fill_blocks<const BLOCK: usize>(sums: &Sums<'_>, first: usize, out: &mut [u8]) {
    for (block, mask) in (first..).zip(out.as_chunks_mut::<BLOCK>().0) {
        mask.copy_from_slice(&sums.of(block).to_ne_bytes()[..BLOCK]);
    }
}

/// XTS on top of any ECB kernel: the masks for up to 4 KiB at a time go through a buffer on the stack, enough to keep
/// even a kernel with 64 blocks at once busy.
pub(crate) fn through_buffer(tweaks: &[[u8; 16]], sector: usize, run: &mut [u8], ecb: impl Fn(&mut [u8])) {
    let mut masks = Masks::new(tweaks, sector);
    let mut room = [0; 4096];
    for part in run.chunks_mut(room.len()) {
        let room = &mut room[..part.len()];
        masks.fill(room);
        xor(part, room);
        ecb(part);
        xor(part, room);
    }
}

/// Multiplies by x in GF(2^128) modulo x^128 + x^7 + x^2 + x + 1. Uses `t + t` because a 128-bit shift compiles to a
/// slow shrd.
pub(crate) fn double(t: u128) -> u128 {
    let carry = (t as i128 >> 127) as u128;
    t.wrapping_add(t) ^ (carry & 0x87)
}

fn xor(part: &mut [u8], masks: &[u8]) {
    part.iter_mut().zip(masks).for_each(|(byte, mask)| *byte ^= mask);
}
