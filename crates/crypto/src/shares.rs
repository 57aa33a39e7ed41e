//! Shamir's sharing of secrets modulo a prime of 256 bits, as clevis does it: the secret is a polynomial's value at zero, and a
//! share is a place and the value there.

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U256};

use crate::secret::{Secret, wipe_deep};

/// Bytes of the prime, and of each number.
pub const SIZE: usize = 32;

/// The secret that these shares give, which have to be as many as it takes: for each the place and the value. None if the numbers
/// cannot be shares modulo this prime.
pub fn combine(prime: &[u8; SIZE], shares: &[Secret]) -> Option<Secret> {
    let combined = interpolate(prime, shares);
    wipe_deep();
    combined
}

#[inline(never)]
fn interpolate(prime: &[u8; SIZE], shares: &[Secret]) -> Option<Secret> {
    let modulus = U256::from_be_slice(prime);
    let params = FixedMontyParams::new(Odd::new(modulus).into_option()?);
    // The inverse modulo a prime (Fermat).
    let exponent = modulus.wrapping_sub(&U256::from_u64(2));
    let number = |bytes: &[u8]| {
        let number = U256::from_be_slice(bytes);
        (number < modulus).then(|| FixedMontyForm::new(&number, &params))
    };
    let mut points = Vec::with_capacity(shares.len());
    for share in shares {
        let (place, value) = share.split_at_checked(SIZE).filter(|(_, value)| value.len() == SIZE)?;
        points.push((number(place)?, number(value)?));
    }
    let mut sum = FixedMontyForm::new(&U256::ZERO, &params);
    for (i, (place, value)) in points.iter().enumerate() {
        let mut term = *value;
        for (_, (other, _)) in points.iter().enumerate().filter(|(j, _)| *j != i) {
            let difference = other.sub(place);
            if difference.retrieve() == U256::ZERO {
                return None;
            }
            term = term.mul(other).mul(&difference.pow(&exponent));
        }
        sum = sum.add(&term);
    }
    let mut secret = Secret::zeroed(SIZE);
    secret.copy_from_slice(&sum.retrieve().to_be_bytes());
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2^255 - 19.
    const PRIME: [u8; SIZE] = {
        let mut prime = [255; SIZE];
        prime[0] = 127;
        prime[SIZE - 1] = 237;
        prime
    };

    /// The value of 7 + 5x + 3x².
    fn share(x: u8) -> Secret {
        let mut share = Secret::zeroed(2 * SIZE);
        share[SIZE - 1] = x;
        let value = 7 + 5 * u16::from(x) + 3 * u16::from(x) * u16::from(x);
        share[2 * SIZE - 2..].copy_from_slice(&value.to_be_bytes());
        share
    }

    #[test]
    fn any_three_shares_of_a_parabola_give_it() {
        for places in [[1, 2, 3], [9, 4, 1], [20, 30, 40]] {
            let secret = combine(&PRIME, &places.map(share)).expect("a secret");
            assert_eq!((secret[SIZE - 1], secret[..SIZE - 1].iter().max()), (7, Some(&0)));
        }
        assert!(combine(&PRIME, &[1, 2].map(share)).is_some_and(|secret| secret[SIZE - 1] != 7));
        assert!(combine(&PRIME, &[1, 2, 1].map(share)).is_none(), "a place twice");
        assert!(combine(&[2; SIZE], &[1, 2].map(share)).is_none(), "an even number");
        assert!(combine(&PRIME, &[Secret::zeroed(63)]).is_none());
    }
}
