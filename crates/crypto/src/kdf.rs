//! Key derivation.

use digest::{FixedOutput, KeyInit, Update};
use hmac::{EagerHash, Hmac};
use zeroize::Zeroize;

/// Iterations between two looks at whether to go on: well under a millisecond for every hash.
const CHECK_EVERY: u32 = 64;

/// One block of PBKDF2 (RFC 8018, 5.2): `index` counts from 1, `out` takes at most one digest. The crate `pbkdf2` derives all
/// blocks in a row; here they can be spread over threads and cancelled. Returns false when `go_on` said no.
pub(crate) fn pbkdf2_block<D: EagerHash>(
    password: &[u8],
    salt: &[u8],
    iterations: u32,
    index: u32,
    out: &mut [u8],
    go_on: &dyn Fn() -> bool,
) -> bool {
    let keyed = Hmac::<D>::new_from_slice(password).expect("HMAC takes keys of any length");
    let round = |input: &[&[u8]]| {
        let mut hmac = keyed.clone();
        input.iter().for_each(|part| hmac.update(part));
        hmac.finalize_fixed()
    };
    let mut u = round(&[salt, &index.to_be_bytes()]);
    let mut sum = u.clone();
    let mut done = 1;
    while done < iterations && go_on() {
        let next = iterations.min(done + CHECK_EVERY);
        for _ in done..next {
            u = round(&[&u]);
            sum.iter_mut().zip(&u).for_each(|(s, u)| *s ^= u);
        }
        done = next;
    }
    let finished = done >= iterations;
    if finished {
        out.copy_from_slice(&sum[..out.len()]);
    }
    sum.as_mut_slice().zeroize();
    u.as_mut_slice().zeroize();
    finished
}
