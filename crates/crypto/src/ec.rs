//! Points of the curves P-256 and P-521 (NIST SP 800-186), as TPMs and tang servers exchange secrets with them. The arithmetic is
//! that of RustCrypto, in constant time; numbers are big-endian bytes, as long as the curve's field.

use p256::elliptic_curve::point::AffineCoordinates;
use p256::elliptic_curve::sec1::{FromSec1Point, ModulusSize, Sec1Point, ToSec1Point};
use p256::elliptic_curve::{
    AffinePoint, CurveArithmetic, Field, FieldBytes, FieldBytesSize, Group, PrimeField, ProjectivePoint, Scalar,
};

use zeroize::Zeroize;

use crate::secret::{Secret, wipe_deep};

/// A curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// NIST P-521.
    P521,
}

impl Curve {
    /// Bytes of a coordinate, and of a scalar.
    pub fn size(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P521 => 66,
        }
    }
}

/// A point that is on its curve, and not the one at infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    curve: Curve,
    x: Vec<u8>,
    y: Vec<u8>,
}

impl Drop for Point {
    /// Wipes the point: a point that two parties share is a secret.
    fn drop(&mut self) {
        self.x.zeroize();
        self.y.zeroize();
    }
}

/// Calls a generic function with the curve's type.
macro_rules! on_curve {
    ($curve:expr, $function:ident($($argument:expr),*)) => {
        match $curve {
            Curve::P256 => $function::<p256::NistP256>($($argument),*),
            Curve::P521 => $function::<p521::NistP521>($($argument),*),
        }
    };
}

impl Point {
    /// The point with these coordinates, which may be shorter than the field or have leading zeros. None if it is not on the curve.
    pub fn new(curve: Curve, x: &[u8], y: &[u8]) -> Option<Self> {
        let point = Self { curve, x: padded(x, curve.size())?, y: padded(y, curve.size())? };
        on_curve!(curve, is_on(&point)).then_some(point)
    }

    /// The point's curve.
    pub fn curve(&self) -> Curve {
        self.curve
    }

    /// The first coordinate.
    pub fn x(&self) -> &[u8] {
        &self.x
    }

    /// The second coordinate.
    pub fn y(&self) -> &[u8] {
        &self.y
    }

    /// The generator times `scalar`. None if the scalar is zero or too large for the curve.
    pub fn generated(curve: Curve, scalar: &[u8]) -> Option<Self> {
        let product = on_curve!(curve, generated(curve, scalar));
        wipe_deep();
        product
    }

    /// This point times `scalar`.
    pub fn times(&self, scalar: &[u8]) -> Option<Self> {
        let product = on_curve!(self.curve, times(self, scalar));
        wipe_deep();
        product
    }

    /// The sum of two points. None if they are on different curves, or if the sum is at infinity.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        if self.curve == other.curve { on_curve!(self.curve, sum(self, other, false)) } else { None }
    }

    /// The difference of two points. None in the same cases as for the sum.
    pub fn minus(&self, other: &Self) -> Option<Self> {
        if self.curve == other.curve { on_curve!(self.curve, sum(self, other, true)) } else { None }
    }

    /// Whether `r` and `s` are an ECDSA signature of this key over a message with this hash (FIPS 186-5, 6.4.2).
    pub fn verifies(&self, hash: &[u8], r: &[u8], s: &[u8]) -> bool {
        on_curve!(self.curve, verifies(self, hash, r, s)).unwrap_or(false)
    }
}

/// A random scalar: not zero.
///
/// # Errors
/// The error of `random`.
pub fn scalar<E>(curve: Curve, mut random: impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Secret, E> {
    loop {
        let mut scalar = Secret::zeroed(curve.size());
        random(&mut scalar)?;
        if curve == Curve::P521 {
            // The order has 521 bits.
            scalar[0] &= 1;
        }
        if Point::generated(curve, &scalar).is_some() {
            return Ok(scalar);
        }
    }
}

/// The number padded with leading zeros to `size` bytes. None if it is longer.
fn padded(number: &[u8], size: usize) -> Option<Vec<u8>> {
    let number = &number[number.iter().take_while(|byte| **byte == 0).count()..];
    let mut padded = vec![0; size.checked_sub(number.len())?];
    padded.extend_from_slice(number);
    Some(padded)
}

fn is_on<C>(point: &Point) -> bool
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: FromSec1Point<C>,
{
    projective::<C>(point).is_some()
}

fn projective<C>(point: &Point) -> Option<ProjectivePoint<C>>
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: FromSec1Point<C>,
{
    let bytes = [&[4], &point.x[..], &point.y].concat();
    let encoded = Sec1Point::<C>::from_bytes(&bytes).ok()?;
    let affine: Option<AffinePoint<C>> = AffinePoint::<C>::from_sec1_point(&encoded).into();
    affine.map(Into::into)
}

fn number<C: CurveArithmetic>(bytes: &[u8]) -> Option<Scalar<C>> {
    let mut repr = FieldBytes::<C>::default();
    if bytes.len() != repr.len() {
        return None;
    }
    repr.copy_from_slice(bytes);
    Scalar::<C>::from_repr(repr).into_option()
}

fn coordinates<C>(curve: Curve, point: ProjectivePoint<C>) -> Option<Point>
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: ToSec1Point<C>,
{
    let affine: AffinePoint<C> = point.into();
    let encoded = affine.to_sec1_point(false);
    let [_, coordinates @ ..] = encoded.as_bytes() else { return None };
    if coordinates.len() != 2 * curve.size() {
        return None;
    }
    let (x, y) = coordinates.split_at(curve.size());
    Some(Point { curve, x: x.to_vec(), y: y.to_vec() })
}

fn generated<C>(curve: Curve, scalar: &[u8]) -> Option<Point>
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: ToSec1Point<C>,
{
    coordinates::<C>(curve, ProjectivePoint::<C>::generator() * number::<C>(scalar)?)
}

fn times<C>(point: &Point, scalar: &[u8]) -> Option<Point>
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: FromSec1Point<C> + ToSec1Point<C>,
{
    coordinates::<C>(point.curve, projective::<C>(point)? * number::<C>(scalar)?)
}

fn sum<C>(point: &Point, other: &Point, negated: bool) -> Option<Point>
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: FromSec1Point<C> + ToSec1Point<C>,
{
    let other = projective::<C>(other)?;
    let other = if negated { -other } else { other };
    coordinates::<C>(point.curve, projective::<C>(point)? + other)
}

fn verifies<C>(key: &Point, hash: &[u8], r: &[u8], s: &[u8]) -> Option<bool>
where
    C: CurveArithmetic,
    FieldBytesSize<C>: ModulusSize,
    AffinePoint<C>: FromSec1Point<C> + AffineCoordinates<FieldRepr = FieldBytes<C>>,
{
    // A hash longer than the order would have to be cut; SHA-256 and SHA-512 are not, with their curves.
    let z = number::<C>(&padded(hash, key.curve.size())?)?;
    let (r, s) = (number::<C>(&padded(r, key.curve.size())?)?, number::<C>(&padded(s, key.curve.size())?)?);
    if bool::from(r.is_zero()) {
        return None;
    }
    let inverse: Scalar<C> = Field::invert(&s).into_option()?;
    let point = ProjectivePoint::<C>::generator() * (z * inverse) + projective::<C>(key)? * (r * inverse);
    if bool::from(point.is_identity()) {
        return None;
    }
    let affine: AffinePoint<C> = point.into();
    // The coordinate may be larger than the order: then the two differ, once in 2^128 signatures.
    Some(number::<C>(&affine.x())? == r)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(curve: Curve) -> Secret {
        let mut next = 0;
        let random = |bytes: &mut [u8]| {
            bytes.iter_mut().for_each(|byte| {
                next = (next * 5 + 1) & 255;
                *byte = next as u8;
            });
            Ok::<_, std::convert::Infallible>(())
        };
        scalar(curve, random).expect("it is infallible")
    }

    #[test]
    fn two_sides_agree_and_the_mask_of_a_request_comes_off() {
        for curve in [Curve::P256, Curve::P521] {
            let (a, mut b) = (counted(curve), counted(curve));
            b[5] ^= 1;
            let (public_a, public_b) = (Point::generated(curve, &a), Point::generated(curve, &b));
            let (public_a, public_b) = (public_a.expect("a point"), public_b.expect("a point"));
            assert_eq!(public_a.times(&b), public_b.times(&a));
            let sum = public_a.plus(&public_b).expect("a point");
            assert_eq!(sum.minus(&public_b).as_ref(), Some(&public_a));
            assert_eq!(public_a.minus(&public_a), None);
            assert_eq!(Point::new(curve, sum.x(), sum.y()).as_ref(), Some(&sum));
            assert_eq!(Point::new(curve, sum.y(), sum.x()), None);
            assert_eq!(Point::generated(curve, &vec![0; curve.size()]), None);
            assert_eq!(Point::generated(curve, &vec![255; curve.size()]), None);
        }
    }

    /// RFC 6979, A.2.5: the key and the message `sample` with SHA-256.
    #[test]
    fn a_signature_is_verified() {
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
        };
        let key = Point::new(
            Curve::P256,
            &bytes("60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"),
            &bytes("7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299"),
        )
        .expect("a point");
        let r = bytes("efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716");
        let mut s = bytes("f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8");
        let mut hash = [0; 32];
        crate::hash::SHA256.checksum(&[b"sample"], &mut hash);
        assert!(key.verifies(&hash, &r, &s));
        assert!(!key.verifies(&[7; 32], &r, &s));
        s[9] ^= 4;
        assert!(!key.verifies(&hash, &r, &s));
    }
}
