//! Data from parity. RAID 6 has a sum of a row's data, P, and a weighted sum, Q, over the field of 256 elements with the polynomial
//! 0x11d; the weights are powers of 2. Source: H. Peter Anvin, "The mathematics of RAID-6", sections 2 and 4.

use claviger_crypto::gf256;

/// x^8 + x^4 + x^3 + x^2 + 1.
const POLYNOMIAL: u16 = 0x11d;

/// What to compute lost data from. Numbers are powers of 2: the weights of members.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// The sum of the row without the lost data.
    Sum,
    /// The weighted sum, whose lost data have this power.
    Weighted(usize),
    /// Both sums, for lost data with the first power, beside others with the second.
    Both(usize, usize),
}

/// The way to data of the power `lost`. `also` is that of other lost data in the row; `p` and `q` say which sums are there.
pub(super) fn recovery(lost: usize, also: &[usize], p: bool, q: bool) -> Option<Recovery> {
    match also {
        [] if p => Some(Recovery::Sum),
        [] if q => Some(Recovery::Weighted(lost)),
        [other] if p && q => Some(Recovery::Both(lost, *other)),
        _ => None,
    }
}

impl Recovery {
    pub fn uses_sum(&self) -> bool {
        !matches!(self, Self::Weighted(_))
    }

    pub fn uses_weighted(&self) -> bool {
        !matches!(self, Self::Sum)
    }

    /// Puts the lost data into `sum`. `sum` and `weighted` are those of everything in the row that is not lost, data and parities.
    pub fn finish(&self, sum: &mut [u8], weighted: &mut [u8]) {
        match *self {
            Self::Sum => {}
            Self::Weighted(power) => {
                sum.fill(0);
                add_multiple(sum, weighted, inverse(power_of_2(power)));
            }
            Self::Both(power, other) => {
                // The lost data X and Y have X + Y = sum and aX + bY = weighted, so X is (b sum + weighted) / (a + b).
                let (a, b) = (power_of_2(power), power_of_2(other));
                add_multiple(weighted, sum, b);
                sum.fill(0);
                add_multiple(sum, weighted, inverse(a ^ b));
            }
        }
    }
}

/// Adds `data` to `sum`.
pub(super) fn add(sum: &mut [u8], data: &[u8]) {
    sum.iter_mut().zip(data).for_each(|(sum, byte)| *sum ^= byte);
}

/// Adds `data` with the weight 2 to this power.
pub(super) fn add_weighted(sum: &mut [u8], data: &[u8], power: usize) {
    add_multiple(sum, data, power_of_2(power));
}

fn add_multiple(sum: &mut [u8], data: &[u8], factor: u8) {
    let products: [u8; 256] = std::array::from_fn(|byte| gf256::multiply(factor, byte as u8, POLYNOMIAL));
    sum.iter_mut().zip(data).for_each(|(sum, byte)| *sum ^= products[usize::from(*byte)]);
}

fn power_of_2(power: usize) -> u8 {
    (0..power % 255).fold(1, |product, _| gf256::multiply(product, 2, POLYNOMIAL))
}

/// The field has 255 elements beside zero, so the 254th power is the inverse.
fn inverse(element: u8) -> u8 {
    (0..254).fold(1, |product, _| gf256::multiply(product, element, POLYNOMIAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_paper_and_inverses_are_inverse() {
        // Section 4: the powers of {02} do not repeat before 255; {02}^8 is {1d}.
        let powers: std::collections::BTreeSet<_> = (0..255).map(power_of_2).collect();
        assert_eq!((powers.len(), power_of_2(8), power_of_2(255)), (255, 0x1d, 1));
        assert!((1..=255).all(|element| gf256::multiply(element, inverse(element), POLYNOMIAL) == 1));
    }

    #[test]
    fn any_one_or_two_lost_blocks_come_back() {
        let data: Vec<Vec<u8>> =
            (0..7).map(|i| (0..100).map(|at| (at * 37 + i * 59 + at * at * i) as u8).collect()).collect();
        let sums = |lost: &[usize]| {
            let (mut sum, mut weighted) = (vec![0; 100], vec![0; 100]);
            for (power, block) in data.iter().enumerate().filter(|(power, _)| !lost.contains(power)) {
                add(&mut sum, block);
                add_weighted(&mut weighted, block, power);
            }
            (sum, weighted)
        };
        let (p, q) = sums(&[]);
        for (x, block) in data.iter().enumerate() {
            for y in 0..7 {
                let also: Vec<_> = Some(y).filter(|y| *y != x).into_iter().collect();
                for (has_p, has_q) in [(true, true), (true, false), (false, true)] {
                    let (mut sum, mut weighted) = sums(&[&[x][..], &also].concat());
                    add(&mut sum, &p);
                    add(&mut weighted, &q);
                    match recovery(x, &also, has_p, has_q) {
                        Some(recovery) => {
                            recovery.finish(&mut sum, &mut weighted);
                            assert_eq!(&sum, block, "{x} {y} {has_p} {has_q}");
                        }
                        None => assert!(!also.is_empty() && has_p != has_q),
                    }
                }
            }
        }
        assert_eq!(recovery(0, &[1, 2], true, true), None);
        assert_eq!(recovery(0, &[], false, false), None);
    }
}
