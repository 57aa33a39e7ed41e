//! What the bytes of a store look like, judged by samples.

use serde::Serialize;

use crate::error::Result;
use crate::filesystems::magic::looks_random;
use crate::store::Store;

/// The number of samples, and bytes per sample.
const PLACES: u64 = 512;
pub(super) const AT_A_PLACE: u64 = 4096;

/// The resolution of the border between two looks, in bytes.
const GRAIN: u64 = 512;

/// What bytes look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Look {
    /// All of them are zero.
    Zeros,
    /// Possibly salt, ciphertext or noise.
    Random,
    /// Anything else: text, tables, programs.
    Ordered,
}

/// What a store looks like, from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Content {
    /// The look of its beginning.
    pub begins: Look,
    /// The first byte that looks different, to within 512 bytes, judged by samples; `None` if everything looks alike.
    pub until: Option<u64>,
    /// The look from there on.
    pub then: Option<Look>,
    /// The number of samples.
    pub samples: u64,
}

impl Content {
    /// Takes some hundred samples from the beginning to the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn of(store: &dyn Store) -> Result<Self> {
        let len = store.len();
        let at_a_place = AT_A_PLACE.min(len);
        let begins = look_at(store, 0, at_a_place.min(GRAIN))?;
        // Compare whole samples first; then search the sample with the border.
        let mut alike = 0;
        let places = PLACES.min(len.div_ceil(AT_A_PLACE)).max(1);
        for place in 0..places {
            let last = len - at_a_place;
            let at =
                if places == 1 { 0 } else { (u128::from(last) * u128::from(place) / u128::from(places - 1)) as u64 };
            let at = at / GRAIN * GRAIN;
            if look_at(store, at, at_a_place)? == begins {
                alike = alike.max(at);
                continue;
            }
            let until = border(store, begins, alike, (at + at_a_place).min(len))?;
            let then = look_at(store, until, (len - until).min(GRAIN))?;
            return Ok(Self { begins, until: Some(until), then: Some(then), samples: place + 1 });
        }
        Ok(Self { begins, until: None, then: None, samples: places })
    }
}

/// The first grain that differs, between `alike`, where bytes look like `begins`, and `other`, where they do not.
fn border(store: &dyn Store, begins: Look, alike: u64, other: u64) -> Result<u64> {
    let (mut alike, mut other) = (alike / GRAIN, other.div_ceil(GRAIN) - 1);
    while alike + 1 < other {
        let middle = alike + (other - alike) / 2;
        let at = middle * GRAIN;
        if look_at(store, at, (store.len() - at).min(GRAIN))? == begins { alike = middle } else { other = middle }
    }
    Ok(other * GRAIN)
}

/// What `len` bytes, at most [`AT_A_PLACE`], look like.
pub(super) fn look_at(store: &dyn Store, at: u64, len: u64) -> Result<Look> {
    let mut bytes = [0; AT_A_PLACE as usize];
    let bytes = &mut bytes[..len as usize];
    store.read_at(at, bytes)?;
    Ok(if bytes.iter().all(|b| *b == 0) {
        Look::Zeros
    } else if bytes.len() >= GRAIN as usize && bytes.chunks_exact(GRAIN as usize).all(looks_random) {
        Look::Random
    } else {
        Look::Ordered
    })
}

/// Whether the sector at `at` could begin with a salt.
///
/// # Errors
/// `Io`.
pub(super) fn could_be_a_header(store: &dyn Store, at: u64) -> Result<bool> {
    Ok(at + GRAIN <= store.len() && look_at(store, at, GRAIN)? == Look::Random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn random(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        getrandom::fill(&mut bytes).expect("random bytes");
        bytes
    }

    fn content(bytes: Vec<u8>) -> (Look, Option<(u64, Look)>) {
        let Content { begins, until, then, samples } = Content::of(&MemoryStore::new(bytes)).expect("memory");
        assert!((1..=PLACES).contains(&samples));
        (begins, until.zip(then))
    }

    #[test]
    fn what_is_alike_is_alike_to_the_end() {
        for len in [512, 4096, 5000, 1 << 20, (8 << 20) + 77] {
            assert_eq!(content(vec![0; len]), (Look::Zeros, None), "{len}");
            assert_eq!(content(random(len / 512 * 512)), (Look::Random, None), "{len}");
            assert_eq!(content(b"abc ".repeat(len)), (Look::Ordered, None), "{len}");
        }
        assert_eq!(content(b"abc".to_vec()), (Look::Ordered, None));
    }

    #[test]
    fn the_border_is_found_to_a_sector() {
        for (random_bytes, zeros) in [(512, 1 << 20), (131_072, 3 << 20), (4 << 20, 4096), (1 << 20, 512), (9728, 6144)]
        {
            let bytes = [random(random_bytes), vec![0; zeros]].concat();
            assert_eq!(
                content(bytes),
                (Look::Random, Some((random_bytes as u64, Look::Zeros))),
                "{random_bytes} {zeros}"
            );
        }
        let overwritten = [vec![0; 1 << 20], random(1 << 20)].concat();
        assert_eq!(content(overwritten), (Look::Zeros, Some((1 << 20, Look::Random))));
    }
}
