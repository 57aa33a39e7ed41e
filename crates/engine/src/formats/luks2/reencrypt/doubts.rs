//! What shows that a store is not what it is taken for, before anything is written to it: a header's file with something in it,
//! data that belong to another header.

use super::Stores;
use super::state::{State, What};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks2::metadata::Segment;
use crate::formats::luks2::read::{ReadHeader, read};
use crate::formats::{luks2::validate, magic};
use crate::store::{MemoryStore, Store};

/// Bytes that are looked at at a time.
const PIECE: u64 = 1 << 20;

/// As far as marks of other formats are from the beginning, in bytes.
const MARKS: u64 = 0x11000;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// Whether there are only zeros in the first `len` bytes.
pub(super) fn is_empty(store: &dyn Store, len: u64) -> Result<bool> {
    let len = len.min(store.len());
    for at in (0..len).step_by(PIECE as usize) {
        let mut bytes = vec![0; (len - at).min(PIECE) as usize];
        store.read_at(at, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A new header goes only where nothing is.
///
/// # Errors
/// `Misuse` if something is there; `Io`.
pub(super) fn must_be_empty(header: &dyn Store, len: u64) -> Result<()> {
    if is_empty(header, len)? {
        return Ok(());
    }
    Err(Error::misuse("something is in the file that the new header is for").hint(
        "Name one that does not exist. If it is what an interruption has left and the volume is as it was, delete it. \
             Nothing was changed.",
    ))
}

/// Whether the data are another volume's than the header, as far as that shows: there is something known where ciphertext has to
/// be, or another header in front of them.
///
/// # Errors
/// `Misuse` if it shows; `Io`.
pub(super) fn may_belong_together(
    stores: &Stores<'_>,
    header: &ReadHeader,
    encrypted: impl IntoIterator<Item = u64>,
) -> Result<()> {
    if !stores.detached {
        return Ok(());
    }
    let no = |what: String| {
        Err(Error::misuse(format!("{what}: the header is another volume's"))
            .hint("Is it the right file or device, and the right --header? Nothing was changed."))
    };
    for at in encrypted {
        let mut start = vec![0; stores.data.len().saturating_sub(at).min(MARKS) as usize];
        stores.data.read_at(at, &mut start)?;
        // Few marks are so long that no ciphertext ever has them.
        let random = start.first_chunk::<4096>().is_none_or(|start| magic::looks_random(start));
        if let Some(what) = magic::known(&start).filter(|_| !random) {
            return no(format!("where encrypted data have to be, at byte {at}, there is {what}"));
        }
        if at > 0 && in_front(stores.data)?.is_some_and(|uuid| uuid != header.binary.uuid) {
            return no("in front of the data there is a LUKS2 header with another UUID".to_owned());
        }
    }
    Ok(())
}

/// The UUID of the header in front of the data, if there is one.
fn in_front(data: &dyn Store) -> Result<Option<Vec<u8>>> {
    match read(data) {
        Ok(header) => Ok(Some(header.binary.uuid)),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => Err(e),
        Err(_) => Ok(None),
    }
}

/// Where ciphertext has to be by now, in bytes of the data's store.
pub(super) fn encrypted_by_now(state: &State) -> Vec<u64> {
    let encrypted = |what: What| is_encrypted(&state.side(what).segment);
    let pieces = state.pieces().into_iter().filter(|piece| piece.what != What::Hot && encrypted(piece.what));
    pieces.map(|piece| state.side(piece.what).offset().saturating_add(piece.at.start)).collect()
}

/// Whether what is stored is other than the plaintext.
pub(super) fn is_encrypted(segment: &Segment) -> bool {
    segment.kind == "crypt" && !segment.encryption.as_deref().is_some_and(|name| name.starts_with("cipher_null"))
}

/// The header that is to move to `header_to`: that in front of the data, or, where an interruption has left something else in front,
/// its copy in `header_to`.
///
/// # Errors
/// `Misuse` where something else is in `header_to`; those of [`read`].
pub(super) fn header_to_move(header_to: &dyn Store, data: &dyn Store) -> Result<Vec<u8>> {
    if is_empty(header_to, header_to.len())? {
        return image_of(data, &read(data)?);
    }
    match moved_header(header_to, data)? {
        Some(image) => Ok(image),
        None => must_be_empty(header_to, header_to.len()).map(|()| Vec::new()),
    }
}

/// The header in `header_to`, if it is that which is in front of the data, or was until it was written over by the data behind it.
pub(super) fn moved_header(header_to: &dyn Store, data: &dyn Store) -> Result<Option<Vec<u8>>> {
    let Ok(header) = read(header_to) else { return Ok(None) };
    let (image, shift) = match header.metadata.segments.values().next() {
        Some(segment) if !super::goes_on(&header.metadata) => (image_of(header_to, &header)?, segment.offset.0),
        _ => return Ok(None),
    };
    let len = image.len() as u64;
    if len != header_to.len() || shift < len || data.len() <= shift {
        return Ok(None);
    }
    let first = len.min(data.len() - shift) as usize;
    let (mut now, mut moved) = (vec![0; image.len()], vec![0; first]);
    data.read_at(0, &mut now)?;
    data.read_at(shift, &mut moved)?;
    let sectors = now.chunks(SECTOR).zip(image.chunks(SECTOR)).enumerate();
    let fits = |(nth, (now, image)): (usize, (&[u8], &[u8]))| {
        now == image || moved.get(nth * SECTOR..nth * SECTOR + now.len()) == Some(now)
    };
    Ok(sectors.into_iter().all(fits).then_some(image))
}

/// Both copies of the header and the keyslots.
fn image_of(store: &dyn Store, header: &ReadHeader) -> Result<Vec<u8>> {
    let mut image = vec![0; validate::header_end(&header.metadata, header.binary.hdr_size) as usize];
    store.read_at(0, &mut image)?;
    // One that is damaged has to be repaired first: what is copied is what counts.
    read(&MemoryStore::new(image.clone()))?;
    Ok(image)
}
