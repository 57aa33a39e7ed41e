//! Shamir's secret sharing modulo a prime of 256 bits, as clevis does it: the secret is a polynomial's value at zero, and a share
//! is a place and the value there.

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U256};

use crate::secret::{Secret, wipe_deep};

/// Bytes of the prime, and of each number.
pub const SIZE: usize = 32;

/// The largest prime of 256 bits, modulo which secrets are shared here: 2^256 - 189. Any other would do.
pub const PRIME: [u8; SIZE] = {
    let mut prime = [255; SIZE];
    prime[SIZE - 1] = 67;
    prime
};

/// Makes a random secret, and `count` shares of it modulo [`PRIME`]. Any `threshold` of them give the secret.
///
/// # Errors
/// The errors of `random`.
///
/// # Panics
/// If the threshold is zero, or larger than the count.
pub fn share<E>(
    threshold: usize,
    count: usize,
    mut random: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<(Secret, Vec<Secret>), E> {
    let secret = number(&mut random)?;
    let shares = split(&secret, threshold, count, random)?;
    Ok((secret, shares))
}

/// Splits a secret below [`PRIME`] into `count` shares. Any `threshold` of them give the secret.
///
/// # Errors
/// The errors of `random`.
///
/// # Panics
/// If the secret is not a number below the prime, or the threshold is zero or larger than the count.
pub fn split<E>(
    secret: &Secret,
    threshold: usize,
    count: usize,
    mut random: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<Vec<Secret>, E> {
    assert!((1..=count).contains(&threshold), "a threshold among the shares");
    assert!(secret.len() == SIZE && secret[..] < PRIME[..], "a number below the prime");
    let mut coefficients = vec![Secret::copy_from(secret)];
    while coefficients.len() < threshold {
        coefficients.push(number(&mut random)?);
    }
    let shares = (1..=count).map(|place| value(&coefficients, place)).collect();
    wipe_deep();
    Ok(shares)
}

/// A random number below the prime.
fn number<E>(random: &mut impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Secret, E> {
    let mut number = Secret::zeroed(SIZE);
    loop {
        random(&mut number)?;
        if number[..] < PRIME[..] {
            return Ok(number);
        }
    }
}

/// The share at a place: the place, and the polynomial's value there.
#[inline(never)]
fn value(coefficients: &[Secret], place: usize) -> Secret {
    let params = FixedMontyParams::new(Odd::new(U256::from_be_slice(&PRIME)).expect("it is odd"));
    let form = |number: &U256| FixedMontyForm::new(number, &params);
    let place = form(&U256::from_u64(place as u64));
    let value = coefficients
        .iter()
        .rev()
        .fold(form(&U256::ZERO), |value, coefficient| value.mul(&place).add(&form(&U256::from_be_slice(coefficient))));
    let mut share = Secret::zeroed(2 * SIZE);
    share[..SIZE].copy_from_slice(&place.retrieve().to_be_bytes());
    share[SIZE..].copy_from_slice(&value.retrieve().to_be_bytes());
    share
}

/// Combines shares into their secret. There must be as many as the threshold, each a place and a value. None if the numbers cannot
/// be shares modulo this prime.
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
    const OTHER: [u8; SIZE] = {
        let mut prime = [255; SIZE];
        prime[0] = 127;
        prime[SIZE - 1] = 237;
        prime
    };

    /// The value of 7 + 5x + 3x².
    fn at(x: u8) -> Secret {
        let mut share = Secret::zeroed(2 * SIZE);
        share[SIZE - 1] = x;
        let value = 7 + 5 * u16::from(x) + 3 * u16::from(x) * u16::from(x);
        share[2 * SIZE - 2..].copy_from_slice(&value.to_be_bytes());
        share
    }

    #[test]
    fn any_three_shares_of_a_parabola_give_it() {
        for places in [[1, 2, 3], [9, 4, 1], [20, 30, 40]] {
            let secret = combine(&OTHER, &places.map(at)).expect("a secret");
            assert_eq!((secret[SIZE - 1], secret[..SIZE - 1].iter().max()), (7, Some(&0)));
        }
        assert!(combine(&OTHER, &[1, 2].map(at)).is_some_and(|secret| secret[SIZE - 1] != 7));
        assert!(combine(&OTHER, &[1, 2, 1].map(at)).is_none(), "a place twice");
        assert!(combine(&[2; SIZE], &[1, 2].map(at)).is_none(), "an even number");
        assert!(combine(&OTHER, &[Secret::zeroed(63)]).is_none());
    }
    #[test]
    fn what_is_shared_comes_back_from_as_many_as_it_takes() {
        let mut next = 7u8;
        let mut random = |bytes: &mut [u8]| {
            bytes.iter_mut().for_each(|byte| {
                next = next.wrapping_mul(5).wrapping_add(1);
                *byte = next;
            });
            Ok::<_, std::convert::Infallible>(())
        };
        for (threshold, count) in [(1, 1), (1, 3), (2, 2), (3, 5)] {
            let (secret, shares) = share(threshold, count, &mut random).expect("it is infallible");
            assert_eq!(shares.len(), count);
            for some in shares.windows(threshold) {
                assert!(combine(&PRIME, some).is_some_and(|combined| combined.same_as(&secret)));
            }
            let fewer = combine(&PRIME, &shares[..threshold - 1]).expect("a number");
            assert!(!fewer.same_as(&secret));
        }
    }

    /// Numbers that are not below the prime are drawn again.
    #[test]
    fn a_number_that_is_too_large_is_drawn_again() {
        let mut draws = [255, 1].into_iter();
        let random = |bytes: &mut [u8]| {
            bytes.fill(draws.next().expect("two draws"));
            Ok::<_, std::convert::Infallible>(())
        };
        assert_eq!(share(1, 1, random).expect("it is infallible").0[..], [1; SIZE]);
    }
}
