//! One block of PBKDF2 with SHA-512, which has no parallel work: an iteration is two compressions, and each waits for the previous
//! one.
//!
//! A round is two chains, of `a` and of `e`. The new `e` is a sum of six terms. The large sigma of the last `e` is known last,
//! after three instructions. Adding it last makes a round four cycles instead of six. The words of the message are computed two by
//! two in vectors, whose units are idle otherwise. That leaves some 30 instructions a round, and a chain of 160 rounds of 4 cycles.
#![allow(unsafe_code, reason = "vector intrinsics")]

use std::arch::x86_64::*;

use hmac::Hmac;
use zeroize::Zeroize;

use super::lanes::{SHA512_BEGIN, SHA512_ROUNDS, for_each};
use crate::kdf::{CHECK_EVERY, Prf};

type State = [u64; 8];

/// The rounds of one block.
type Compress = unsafe fn(&State, &[u64; 16]) -> State;

/// The fastest one for this processor.
pub(super) fn compress() -> Option<Compress> {
    let scalar = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
    if scalar && is_x86_feature_detected!("avx512vl") {
        return Some(with_avx512);
    }
    (scalar && is_x86_feature_detected!("avx2")).then_some(with_avx2)
}

/// One block of PBKDF2, as [`crate::kdf::pbkdf2_block`].
pub(super) fn pbkdf2_block(
    compress: Compress,
    password: &[u8],
    salt: &[u8],
    iterations: u32,
    index: u32,
    out: &mut [u8],
    go_on: &dyn Fn() -> bool,
) -> bool {
    // SAFETY: `compress` comes from the function of that name, which asked the processor.
    let compressed = |state: &State, block: &[u64; 16]| unsafe { compress(state, block) };
    let (inner, outer) = keyed(&compressed, password);
    // The message is always a digest after the block of the key.
    let mut message = [0; 16];
    (message[8], message[15]) = (1 << 63, 8 * (128 + 64));
    words_of(&mut message, &Hmac::<sha2::Sha512>::new(password).of(&[salt, &index.to_be_bytes()]));
    let mut sum = message;
    let mut done = 1;
    while done < iterations && go_on() {
        let next = iterations.min(done + CHECK_EVERY);
        for _ in done..next {
            for state in [&inner, &outer] {
                let digest = compressed(state, &message);
                message[..8].copy_from_slice(&digest);
            }
            sum.iter_mut().zip(&message[..8]).for_each(|(sum, word)| *sum ^= word);
        }
        done = next;
    }
    let finished = done >= iterations;
    if finished {
        out.chunks_mut(8).zip(sum).for_each(|(out, word)| out.copy_from_slice(&word.to_be_bytes()[..out.len()]));
    }
    finished
}

/// The states of HMAC (RFC 2104) after its two key blocks.
fn keyed(compressed: &dyn Fn(&State, &[u64; 16]) -> State, password: &[u8]) -> (State, State) {
    let mut key = [0; 16];
    if password.len() > 128 {
        let mut digest = <sha2::Sha512 as digest::Digest>::digest(password);
        words_of(&mut key, &digest);
        digest.as_mut_slice().zeroize();
    } else {
        words_of(&mut key, password);
    }
    let after = |pad: u8| compressed(&SHA512_BEGIN, &key.map(|word| word ^ u64::from_ne_bytes([pad; 8])));
    let states = (after(0x36), after(0x5c));
    key.zeroize();
    states
}

fn words_of(words: &mut [u64; 16], bytes: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_be_bytes(whole);
    }
}

#[target_feature(enable = "bmi1,bmi2,avx2,avx512f,avx512vl")]
fn with_avx512(state: &State, block: &[u64; 16]) -> State {
    // SAFETY: SSE4.1 is there.
    unsafe { rounds(state, block) }
}

#[target_feature(enable = "bmi1,bmi2,avx2")]
fn with_avx2(state: &State, block: &[u64; 16]) -> State {
    // SAFETY: as above.
    unsafe { rounds(state, block) }
}

/// Both words rotated right.
macro_rules! rotate {
    ($x:expr, $by:literal) => {{
        let x = $x;
        _mm_or_si128(_mm_srli_epi64::<$by>(x), _mm_slli_epi64::<{ 64 - $by }>(x))
    }};
}

/// # Safety
/// The processor has SSE4.1.
#[inline(always)]
unsafe fn rounds(state: &State, block: &[u64; 16]) -> State {
    // SAFETY: pairs of words are read and written within arrays of whole pairs; the caller vouches for the instructions.
    unsafe {
        let pair = |words: &[u64; 16], i: usize| _mm_loadu_si128(words.as_ptr().add(2 * i).cast());
        let xor3 = |a, b, c| _mm_xor_si128(_mm_xor_si128(a, b), c);
        let (first, later) = SHA512_ROUNDS.as_chunks::<16>().0.split_first().expect("five times 16 rounds");
        let mut words: [__m128i; 8] = std::array::from_fn(|i| pair(block, i));
        let mut next: [__m128i; 8] = std::array::from_fn(|i| _mm_add_epi64(words[i], pair(first, i)));
        let mut now = [0; 16];
        let mut s = *state;
        for constants in later {
            for_each!(PAIR in [0 1 2 3 4 5 6 7] {
                let (early, late) = (_mm_alignr_epi8::<8>(words[(PAIR + 1) % 8], words[PAIR]), words[(PAIR + 7) % 8]);
                let middle = _mm_alignr_epi8::<8>(words[(PAIR + 5) % 8], words[(PAIR + 4) % 8]);
                let early = xor3(rotate!(early, 1), rotate!(early, 8), _mm_srli_epi64::<7>(early));
                let late = xor3(rotate!(late, 19), rotate!(late, 61), _mm_srli_epi64::<6>(late));
                words[PAIR] = _mm_add_epi64(_mm_add_epi64(words[PAIR], middle), _mm_add_epi64(early, late));
                _mm_storeu_si128(now.as_mut_ptr().add(2 * PAIR).cast(), next[PAIR]);
                next[PAIR] = _mm_add_epi64(words[PAIR], pair(constants, PAIR));
                s = round(round(s, now[2 * PAIR]), now[2 * PAIR + 1]);
            });
        }
        for_each!(PAIR in [0 1 2 3 4 5 6 7] {
            _mm_storeu_si128(now.as_mut_ptr().add(2 * PAIR).cast(), next[PAIR]);
            s = round(round(s, now[2 * PAIR]), now[2 * PAIR + 1]);
        });
        std::array::from_fn(|i| s[i].wrapping_add(state[i]))
    }
}

/// A round (FIPS 180-4, section 6.4.2), with the sum of its constant and its word.
#[inline(always)]
fn round([a, b, c, d, e, f, g, h]: State, word: u64) -> State {
    let sigma = |x: u64, [r, s, t]: [u32; 3]| x.rotate_right(r) ^ x.rotate_right(s) ^ x.rotate_right(t);
    // Choice and majority as sums of terms that have no bits in common.
    let chosen = h.wrapping_add(word).wrapping_add(d).wrapping_add(e & f).wrapping_add(!e & g);
    let new_e = chosen.wrapping_add(sigma(e, [14, 18, 41]));
    let majority = (b & c).wrapping_sub(d).wrapping_add(a & (b ^ c));
    let new_a = majority.wrapping_add(sigma(a, [28, 34, 39])).wrapping_add(new_e);
    [new_a, a, b, c, new_e, e, f, g]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passwords and blocks of each kind, compiled both ways.
    #[test]
    fn it_is_sha_512() {
        let mut ways: Vec<Compress> = Vec::new();
        ways.extend(compress());
        if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("avx2") {
            ways.push(with_avx2);
        }
        let text: Vec<u8> = (0..300).map(|i| (i * 11 + i / 7) as u8).collect();
        for (password, salt, iterations, len) in
            [(0, 0, 1, 64), (9, 64, 2, 63), (64, 5, 3, 1), (127, 16, 70, 64), (128, 64, 5, 20), (129, 1, 200, 64)]
        {
            let (password, salt, mut expected) = (&text[..password], &text[..salt], vec![0; len]);
            let (expected, go_on) = (&mut expected, &|| true);
            assert!(crate::kdf::pbkdf2_block::<Hmac<sha2::Sha512>>(password, salt, iterations, 7, expected, go_on));
            for way in &ways {
                let mut out = vec![0; len];
                assert!(pbkdf2_block(*way, password, salt, iterations, 7, &mut out, go_on));
                assert_eq!(&out, expected, "{iterations} iterations");
            }
        }
        for way in ways {
            assert!(!pbkdf2_block(way, b"", b"", 1000, 1, &mut [0; 9], &|| false), "somebody said no");
        }
    }
}
