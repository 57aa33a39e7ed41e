//! Shows what creating a volume would destroy.

use crate::error::Result;
use crate::filesystems::magic;
use crate::store::Store;

/// Returns what creating a volume in `store` would destroy, as the end of "it holds …". `None` if everything checked is zeros, as
/// in a new or sparse file. Checks the beginning and the end, where formats have signatures and headers, and samples in between.
///
/// # Errors
/// `Io`.
pub fn occupied(store: &dyn Store) -> Result<Option<String>> {
    /// How many bytes are checked at each end.
    const ENDS: u64 = 1 << 20;
    /// How many samples are checked in between, and their size in bytes.
    const PLACES: u64 = 256;
    const AT_A_PLACE: usize = 4096;

    let len = store.len();
    let mut start = vec![0; len.min(ENDS) as usize];
    store.read_at(0, &mut start)?;
    if let Some(what) = magic::known(&start) {
        return Ok(Some(what.to_owned()));
    }
    let mut seen = Seen::default();
    start.chunks(AT_A_PLACE).for_each(|bytes| seen.look_at(bytes));
    let end = len.saturating_sub(ENDS).max(start.len() as u64);
    let mut rest = vec![0; (len - end) as usize];
    store.read_at(end, &mut rest)?;
    rest.chunks(AT_A_PLACE).for_each(|bytes| seen.look_at(bytes));
    let between = end - start.len() as u64;
    if between > 0 {
        let mut bytes = vec![0; between.min(AT_A_PLACE as u64) as usize];
        for place in 0..PLACES {
            let offset = u128::from(between - bytes.len() as u64) * u128::from(place) / u128::from(PLACES - 1);
            store.read_at(start.len() as u64 + offset as u64, &mut bytes)?;
            seen.look_at(&bytes);
        }
    }
    Ok(match seen {
        Seen { random: true, .. } => Some("random-looking data, possibly an encrypted volume".to_owned()),
        Seen { something: true, .. } => Some("data of an unknown kind".to_owned()),
        Seen { .. } => None,
    })
}

/// Properties of bytes without a signature.
#[derive(Default)]
struct Seen {
    something: bool,
    random: bool,
}

impl Seen {
    fn look_at(&mut self, bytes: &[u8]) {
        if bytes.iter().any(|b| *b != 0) {
            self.something = true;
            self.random |= bytes.chunks_exact(512).any(magic::looks_random);
        }
    }
}
