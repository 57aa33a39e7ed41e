//! RSA with the padding of PKCS#1 v1.5 (RFC 8017), as Windows' EFS uses it.
//!
//! The crate `rsa` keeps numbers in memory that is not locked and not reliably wiped, and has an advisory for its timing
//! (RUSTSEC-2023-0071). Here keys stay as bytes in a [`Secret`], and become numbers on the stack only during an operation.
//! `crypto-bigint` computes in a time that depends on sizes alone. Afterwards the stack is wiped.

use std::convert::Infallible;
use std::fmt;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::rand_core::{TryCryptoRng, TryRng};
use crypto_bigint::{Odd, Uint};
use crypto_primes::{Flavor, random_prime};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq, ConstantTimeLess};

use crate::hash::SHA256;
use crate::secret::{Secret, wipe_deep};

/// Sizes of a modulus, in bits: the largest is that of Windows.
pub const BITS: std::ops::RangeInclusive<usize> = 512..=16384;

/// The fewest bytes before the message: two bytes, eight of padding, a zero (RFC 8017, 7.2.1).
const PADDING_MIN: usize = 11;

/// Calls a function with the limbs of half a modulus, which has `$half_bytes` bytes, and of a whole one.
macro_rules! for_size {
    ($half_bytes:expr, $function:ident($($argument:expr),*)) => {
        match $half_bytes {
            0..=64 => $function::<8, 16>($($argument),*),
            65..=128 => $function::<16, 32>($($argument),*),
            129..=192 => $function::<24, 48>($($argument),*),
            193..=256 => $function::<32, 64>($($argument),*),
            257..=512 => $function::<64, 128>($($argument),*),
            _ => $function::<128, 256>($($argument),*),
        }
    };
}

/// The public half of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsaPublicKey {
    modulus: Vec<u8>,
    exponent: u64,
}

impl RsaPublicKey {
    /// Makes a key from big-endian numbers, which may have leading zeros. None if their size is not in [`BITS`], or if they are
    /// even.
    pub fn new(modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let (modulus, exponent) = (trimmed(modulus), trimmed(exponent));
        let bits = modulus.len() * 8 - modulus.first()?.leading_zeros() as usize;
        let fits = BITS.contains(&bits) && exponent.len() <= 8;
        let odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
        if !fits || !odd(modulus) || !odd(exponent) || exponent == [1] {
            return None;
        }
        let exponent = exponent.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Some(Self { modulus: modulus.to_vec(), exponent })
    }

    /// The modulus, big-endian, without leading zeros.
    pub fn modulus(&self) -> &[u8] {
        &self.modulus
    }

    /// The exponent.
    pub fn exponent(&self) -> u64 {
        self.exponent
    }

    /// Encrypts a message with padding from `random` (RFC 8017, 7.2.1). None if the message is longer than the modulus less 11
    /// bytes.
    ///
    /// # Errors
    /// The error of `random`.
    pub fn encrypt<E>(
        &self,
        message: &[u8],
        mut random: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Vec<u8>>, E> {
        let len = self.modulus.len();
        if message.len() + PADDING_MIN > len {
            return Ok(None);
        }
        let mut block = Secret::zeroed(len);
        let zero = len - message.len() - 1;
        block[1] = 2;
        for byte in &mut block[2..zero] {
            while *byte == 0 {
                random(std::slice::from_mut(byte))?;
            }
        }
        block[zero + 1..].copy_from_slice(message);
        Ok(Some(self.raise(&block)))
    }

    /// Encrypts a message with OAEP padding and SHA-256 (RFC 8017, 7.1.1), as TPMs require. `seed` is random. None if the modulus
    /// is too short.
    pub fn encrypt_oaep_sha256(&self, label: &[u8], message: &[u8], seed: &[u8; 32]) -> Option<Vec<u8>> {
        const HASH: usize = 32;
        let len = self.modulus.len();
        let zeros = len.checked_sub(message.len() + 2 * HASH + 2)?;
        let mut block = Secret::zeroed(len);
        let (masked_seed, data) = block[1..].split_at_mut(HASH);
        masked_seed.copy_from_slice(seed);
        SHA256.digest(&[label], &mut data[..HASH]);
        data[HASH + zeros] = 1;
        data[HASH + zeros + 1..].copy_from_slice(message);
        mask(seed, data);
        mask(data, masked_seed);
        Some(self.raise(&block))
    }

    /// Whether `signature` is that of the DER `digest_info` (RFC 8017, 8.2.2).
    pub fn verifies(&self, digest_info: &[u8], signature: &[u8]) -> bool {
        let block = signature_block(digest_info, self.modulus.len());
        signature.len() == self.modulus.len() && block.is_some_and(|block| self.raise(signature) == block)
    }

    /// The number raised to the exponent, as long as the modulus.
    fn raise(&self, number: &[u8]) -> Vec<u8> {
        let raised = for_size!(self.modulus.len().div_ceil(2), raise(self, number));
        wipe_deep();
        raised
    }
}

/// Xors `what` with a stream derived from `seed`: MGF1 with SHA-256 (RFC 8017, B.2.1).
fn mask(seed: &[u8], what: &mut [u8]) {
    let mut stream = Secret::zeroed(32);
    for (number, part) in (0u32..).zip(what.chunks_mut(stream.len())) {
        SHA256.digest(&[seed, &number.to_be_bytes()], &mut stream);
        part.iter_mut().zip(&*stream).for_each(|(byte, stream)| *byte ^= stream);
    }
}

/// A private key, with its public half.
pub struct RsaPrivateKey {
    public: RsaPublicKey,
    /// [`Part`]s, each as long as the longer prime.
    parts: Secret,
}

/// Where the numbers are in [`RsaPrivateKey::parts`]: RFC 8017, 3.2, in the order of PKCS#1.
#[derive(Clone, Copy)]
enum Part {
    P,
    Q,
    Dp,
    Dq,
    QInverse,
}

impl fmt::Debug for RsaPrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({} bits)", self.public.modulus.len() * 8)
    }
}

impl RsaPrivateKey {
    /// Makes a key from the big-endian numbers of PKCS#1: two primes, the two exponents and the coefficient (RFC 8017, A.1.2). They
    /// may have leading zeros. None if they do not belong together.
    pub fn new(public: RsaPublicKey, [p, q, dp, dq, q_inverse]: [&[u8]; 5]) -> Option<Self> {
        let numbers = [p, q, dp, dq, q_inverse].map(trimmed);
        let half = public.modulus.len().div_ceil(2);
        let len = numbers[0].len().max(numbers[1].len());
        let odd = numbers[..2].iter().all(|prime| prime.last().is_some_and(|last| last % 2 == 1));
        // Primes shorter or much longer than half the modulus cannot have it as their product.
        let fits = (half..=half + 8).contains(&len) && len * 2 <= *BITS.end() / 8;
        if !odd || !fits || numbers.iter().any(|number| number.len() > len) {
            return None;
        }
        let mut parts = Secret::zeroed(5 * len);
        for (room, number) in parts.chunks_exact_mut(len).zip(numbers) {
            room[len - number.len()..].copy_from_slice(number);
        }
        let key = Self { public, parts };
        // Encrypting and decrypting one number detects primes of another modulus and exponents of another key.
        let mut probe = vec![0; key.public.modulus.len()];
        *probe.last_mut()? = 2;
        key.raise(&probe).is_some().then_some(key)
    }

    /// Makes a key from the primes alone. None if they are not those of the modulus.
    pub fn of_primes(public: RsaPublicKey, p: &[u8], q: &[u8]) -> Option<Self> {
        let (p, q) = (trimmed(p), trimmed(q));
        let len = p.len().max(q.len());
        let numbers = match len * 2 > *BITS.end() / 8 {
            true => None,
            false => for_size!(len, completed(public.exponent, p, q)),
        };
        wipe_deep();
        let numbers = numbers?;
        Self::new(public, std::array::from_fn(|part| &numbers[part * len..][..len]))
    }

    /// A new key of `bits` bits with the exponent 65537. `random` must be cryptographically secure.
    ///
    /// # Panics
    /// If `bits` is not in [`BITS`], or is not a multiple of 16.
    pub fn generate(bits: usize, random: &mut dyn FnMut(&mut [u8])) -> Self {
        assert!(BITS.contains(&bits) && bits.is_multiple_of(16), "no RSA key has {bits} bits");
        let key = loop {
            let found = for_size!(bits / 16, generate(bits, random));
            wipe_deep();
            if let Some(key) = found {
                break key;
            }
        };
        debug_assert_eq!(key.public.modulus.len(), bits / 8);
        key
    }

    /// The public half.
    pub fn public(&self) -> &RsaPublicKey {
        &self.public
    }

    /// The numbers that [`RsaPrivateKey::new`] takes, in its order.
    pub fn numbers(&self) -> [&[u8]; 5] {
        [Part::P, Part::Q, Part::Dp, Part::Dq, Part::QInverse].map(|part| self.part(part))
    }

    /// The private exponent, big-endian, as long as the modulus.
    pub fn exponent(&self) -> Secret {
        let exponent = for_size!(self.half(), private_exponent(self));
        wipe_deep();
        exponent
    }

    /// Decrypts, and removes the padding (RFC 8017, 7.2.2). A shorter ciphertext gets leading zeros. Every failure returns None,
    /// and takes the same time as success.
    pub fn decrypt(&self, ciphertext: &[u8]) -> Option<Secret> {
        let block = self.raise(trimmed(ciphertext))?;
        unpadded(&block)
    }

    /// The signature of a DER `digest_info` (RFC 8017, 8.2.1). None if it is too long for the key.
    pub fn sign(&self, digest_info: &[u8]) -> Option<Vec<u8>> {
        let block = signature_block(digest_info, self.public.modulus.len())?;
        self.raise(&block).map(|signature| signature.to_vec())
    }

    /// The number raised to the private exponent, as long as the modulus. None if the number is not smaller than the modulus, or if
    /// the result does not lead back to it: a processor's error would reveal the primes.
    fn raise(&self, number: &[u8]) -> Option<Secret> {
        let len = self.public.modulus.len();
        if number.len() > len {
            return None;
        }
        let raised = for_size!(self.half(), raise_privately(self, number));
        wipe_deep();
        let mut padded = vec![0; len];
        padded[len - number.len()..].copy_from_slice(number);
        bool::from(self.public.raise(&raised).ct_eq(&padded)).then_some(raised)
    }

    /// Bytes of each part.
    fn half(&self) -> usize {
        self.parts.len() / 5
    }

    fn part(&self, part: Part) -> &[u8] {
        let len = self.half();
        &self.parts[part as usize * len..][..len]
    }
}

/// The number without leading zeros.
fn trimmed(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

/// The block that is signed. None if there is no room for eight bytes of padding.
fn signature_block(digest_info: &[u8], len: usize) -> Option<Vec<u8>> {
    let zero = len.checked_sub(digest_info.len() + 1).filter(|zero| *zero >= PADDING_MIN - 1)?;
    let mut block = vec![0xff; len];
    block[..2].copy_from_slice(&[0, 1]);
    block[zero] = 0;
    block[zero + 1..].copy_from_slice(digest_info);
    Some(block)
}

/// The message in a block. The time depends only on the lengths of the block and of the message, if there is one.
fn unpadded(block: &[u8]) -> Option<Secret> {
    let mut good = block[0].ct_eq(&0) & block[1].ct_eq(&2);
    let (mut found, mut zero) = (Choice::from(0), 0u32);
    for (at, byte) in (0u32..).zip(block).skip(2) {
        let first = byte.ct_eq(&0) & !found;
        zero.conditional_assign(&at, first);
        found |= first;
    }
    good &= found & !zero.ct_lt(&(PADDING_MIN as u32 - 1));
    bool::from(good).then(|| Secret::copy_from(&block[zero as usize + 1..]))
}

/// A big-endian number of at most `L` limbs.
fn uint<const L: usize>(bytes: &[u8]) -> Uint<L> {
    let mut limbs = [0u64; L];
    for (limb, chunk) in limbs.iter_mut().zip(bytes.rchunks(8)) {
        *limb = chunk.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    }
    Uint::from_words(limbs.map(|limb| limb as crypto_bigint::Word))
}

/// The low end of a number, big-endian.
fn write<const L: usize>(number: &Uint<L>, out: &mut [u8]) {
    let limbs = number.as_words();
    for (chunk, limb) in out.rchunks_mut(8).zip(limbs) {
        let bytes = limb.to_be_bytes();
        chunk.copy_from_slice(&bytes[8 - chunk.len()..]);
    }
}

/// An odd number as a modulus. The caller has checked that it is odd.
fn params<const L: usize>(modulus: &Uint<L>) -> FixedMontyParams<L> {
    FixedMontyParams::new(Odd::new(*modulus).into_option().expect("an odd number"))
}

#[inline(never)]
fn raise<const H: usize, const L: usize>(key: &RsaPublicKey, number: &[u8]) -> Vec<u8> {
    let params = params(&uint::<L>(&key.modulus));
    let raised = FixedMontyForm::new(&uint::<L>(number), &params).pow_vartime(&Uint::<1>::from_u64(key.exponent));
    let mut out = vec![0; key.modulus.len()];
    write(&raised.retrieve(), &mut out);
    out
}

/// Raises a number to the private exponent by the Chinese remainder theorem (RFC 8017, 5.1.2).
#[inline(never)]
fn raise_privately<const H: usize, const L: usize>(key: &RsaPrivateKey, number: &[u8]) -> Secret {
    let [p, q, dp, dq, q_inverse] = key.numbers().map(uint::<H>);
    let split = number.len().saturating_sub(H * 8);
    let (high, low) = (uint::<H>(&number[..split]), uint::<H>(&number[split..]));
    let bits = 8 * key.half() as u32;
    let power = |prime: &Uint<H>, exponent: &Uint<H>| {
        let params = params(prime);
        let reduced = Uint::rem_wide((low, high), params.modulus().as_nz_ref());
        (FixedMontyForm::new(&reduced, &params).pow_bounded_exp(exponent, bits), params)
    };
    let (of_p, params) = power(&p, &dp);
    let of_q = power(&q, &dq).0.retrieve();
    // `q` may be larger than `p`; the conversion to Montgomery form reduces the value modulo `p`.
    let difference = of_p.sub(&FixedMontyForm::new(&of_q, &params));
    let factor = difference.mul(&FixedMontyForm::new(&q_inverse, &params)).retrieve();
    let (low, high) = q.widening_mul(&factor);
    let (low, carry) = low.carrying_add(&of_q, crypto_bigint::Limb::ZERO);
    let (high, _) = high.carrying_add(&Uint::ZERO, carry);
    let (mut raised, mut wide) = (Secret::zeroed(key.public.modulus.len()), Secret::zeroed(L * 8));
    write(&high, &mut wide[..H * 8]);
    write(&low, &mut wide[H * 8..]);
    let len = raised.len();
    raised.copy_from_slice(&wide[L * 8 - len..]);
    raised
}

/// The inverse of the exponent modulo the product of both primes less one.
#[inline(never)]
fn private_exponent<const H: usize, const L: usize>(key: &RsaPrivateKey) -> Secret {
    let less_one = |part| uint::<L>(key.part(part)).wrapping_sub(&Uint::ONE);
    let order = less_one(Part::P).wrapping_mul(&less_one(Part::Q));
    let exponent = Uint::<L>::from_u64(key.public.exponent);
    let inverse = exponent.invert_mod(&order.to_nz().expect("primes are larger than 1"));
    let mut out = Secret::zeroed(key.public.modulus.len());
    write(&inverse.into_option().unwrap_or(Uint::ZERO), &mut out);
    out
}

#[inline(never)]
fn generate<const H: usize, const L: usize>(bits: usize, random: &mut dyn FnMut(&mut [u8])) -> Option<RsaPrivateKey> {
    const EXPONENT: u64 = 65537;
    let mut prime = || random_prime::<Uint<H>, _>(&mut Random(random), Flavor::Any, bits as u32 / 2);
    let (p, q) = (prime(), prime());
    let (wide_p, wide_q) = (p.resize::<L>(), q.resize::<L>());
    let modulus = wide_p.wrapping_mul(&wide_q);
    if modulus.bits_vartime() as usize != bits || p == q {
        return None;
    }
    let (mut bytes, mut public) = (Secret::zeroed(bits / 8), vec![0; bits / 8]);
    let (p_bytes, q_bytes) = bytes.split_at_mut(bits / 16);
    write(&p, p_bytes);
    write(&q, q_bytes);
    write(&modulus, &mut public);
    // If the exponent divides p - 1, it has no inverse, and another prime is needed.
    RsaPrivateKey::of_primes(RsaPublicKey::new(&public, &EXPONENT.to_be_bytes())?, p_bytes, q_bytes)
}

/// The numbers of a key, in the order of [`Part`], each as long as the longer prime.
#[inline(never)]
fn completed<const H: usize, const L: usize>(exponent: u64, p: &[u8], q: &[u8]) -> Option<Secret> {
    let len = p.len().max(q.len());
    let (p, q) = (uint::<H>(p), uint::<H>(q));
    let inverse = |prime: &Uint<H>| {
        let order = prime.wrapping_sub(&Uint::ONE).to_nz().into_option()?;
        Uint::<H>::from_u64(exponent).invert_mod(&order).into_option()
    };
    let (dp, dq) = (inverse(&p)?, inverse(&q)?);
    let q_inverse = q.rem(&p.to_nz().into_option()?).invert_odd_mod(&Odd::new(p).into_option()?).into_option()?;
    let mut numbers = Secret::zeroed(5 * len);
    for (room, number) in numbers.chunks_exact_mut(len).zip([p, q, dp, dq, q_inverse]) {
        write(&number, room);
    }
    Some(numbers)
}

/// The caller's random bytes for the crate that looks for primes.
struct Random<'a>(&'a mut dyn FnMut(&mut [u8]));

impl TryRng for Random<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        (self.0)(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        (self.0)(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        (self.0)(out);
        Ok(())
    }
}

impl TryCryptoRng for Random<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic bytes, for tests only.
    fn random(seed: u64) -> impl FnMut(&mut [u8]) {
        let mut state = seed;
        move |out| {
            for byte in out {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
        }
    }

    fn encrypted(key: &RsaPrivateKey, message: &[u8]) -> Vec<u8> {
        let mut bytes = random(7);
        let fill = |out: &mut [u8]| -> Result<(), Infallible> {
            bytes(out);
            Ok(())
        };
        key.public().encrypt(message, fill).expect("no error").expect("short enough")
    }

    #[test]
    fn messages_of_every_length_come_back() {
        for bits in [512, 528, 1024, 1536, 2048] {
            let key = RsaPrivateKey::generate(bits, &mut random(bits as u64));
            let len = key.public().modulus().len();
            for message in [0, 1, 32, len - PADDING_MIN] {
                let message = vec![0x5a; message];
                let decrypted = key.decrypt(&encrypted(&key, &message)).expect("it is for this key");
                assert!(decrypted.same_as(&message), "{bits}");
            }
            let fill = |_: &mut [u8]| -> Result<(), Infallible> { Ok(()) };
            assert_eq!(key.public().encrypt(&vec![0; len - 10], fill).expect("no error"), None);
        }
    }

    #[test]
    fn whatever_is_wrong_has_one_answer() {
        let key = RsaPrivateKey::generate(1024, &mut random(1));
        let other = RsaPrivateKey::generate(1024, &mut random(2));
        let ciphertext = encrypted(&key, b"secret");
        assert!(other.decrypt(&ciphertext).is_none());
        assert!(key.decrypt(&[]).is_none() && key.decrypt(&[0xff; 128]).is_none() && key.decrypt(&[1; 129]).is_none());
        let mut longer = vec![0; 3];
        longer.extend(&ciphertext);
        assert!(key.decrypt(&longer).expect("zeros in front change no number").same_as(b"secret"));
        // Make each byte of the padding wrong in turn.
        let block = |change: &dyn Fn(&mut [u8])| {
            let mut block = vec![1; 128];
            block[..2].copy_from_slice(&[0, 2]);
            block[100] = 0;
            change(&mut block);
            key.decrypt(&key.public().raise(&block))
        };
        assert!(block(&|_| ()).expect("good").same_as(&[1; 27]));
        assert!(block(&|block| block[10] = 0).expect("eight bytes of padding").len() == 117);
        assert!(block(&|block| block[127] = 0).expect("the first zero ends it").len() == 27);
        for at in 2..10 {
            assert!(block(&|block| block[at] = 0).is_none(), "{at}");
        }
        assert!(block(&|block| block[1] = 1).is_none() && block(&|block| block[0] = 1).is_none());
        assert!(block(&|block| block[100] = 1).is_none());
    }

    #[test]
    fn numbers_that_do_not_belong_together_are_no_key() {
        let key = RsaPrivateKey::generate(512, &mut random(3));
        let public = || key.public().clone();
        let [p, q, ..] = key.numbers();
        assert!(
            RsaPrivateKey::new(public(), key.numbers()).is_some() && RsaPrivateKey::of_primes(public(), q, p).is_some()
        );
        assert!(
            RsaPrivateKey::of_primes(public(), p, p).is_none() && RsaPrivateKey::of_primes(public(), p, &[]).is_none()
        );
        // Numbers of another size: no primes of that size have this product.
        assert!(RsaPrivateKey::new(public(), [&[3], &[5], &[1], &[1], &[2]]).is_none());
        for part in 0..5 {
            let mut changed = key.numbers().map(<[u8]>::to_vec);
            changed[part][7] ^= 4;
            assert!(RsaPrivateKey::new(public(), std::array::from_fn(|i| &changed[i][..])).is_none(), "{part}");
            changed[part].clear();
            assert!(RsaPrivateKey::new(public(), std::array::from_fn(|i| &changed[i][..])).is_none(), "{part}");
        }
        for (modulus, exponent) in
            [(&[0xff; 63][..], &[3][..]), (&[0xfe; 64], &[3]), (&[0xff; 64], &[2]), (&[0xff; 64], &[1]), (&[], &[3])]
        {
            assert!(RsaPublicKey::new(modulus, exponent).is_none(), "{exponent:?}");
        }
        assert!(
            RsaPublicKey::new(&[0xff; 64], &[0; 9]).is_none() && RsaPublicKey::new(&[0xff; 64], &[255; 9]).is_none()
        );
    }

    #[test]
    fn signatures_verify_and_the_exponent_is_the_inverse() {
        let key = RsaPrivateKey::generate(1024, &mut random(4));
        let signature = key.sign(b"digest").expect("short enough");
        assert!(key.public().verifies(b"digest", &signature) && !key.public().verifies(b"digesu", &signature));
        assert!(key.sign(&[0; 128 - 10]).is_none());
        // 2^(e·d) is 2 again.
        let params = params(&uint::<32>(key.public().modulus()));
        let two = FixedMontyForm::new(&Uint::from_u64(2), &params);
        let round = two.pow(&uint::<32>(&key.exponent())).pow_vartime(&Uint::<1>::from_u64(65537));
        assert_eq!(round.retrieve(), Uint::from_u64(2));
    }
}
