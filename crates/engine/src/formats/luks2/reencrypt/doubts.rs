//! What shows that a store is not what it is taken for, before anything is written to it: a header's file with something in it,
//! data that belong to another header.

use super::Stores;
use super::state::{State, What};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks2::metadata::Segment;
use crate::formats::luks2::read::{ReadHeader, read};
use crate::formats::{luks2::validate, magic, unencrypted};
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
    if is_empty(header, len)? { Ok(()) } else { Err(not_empty()) }
}

/// The error for a header's file with something in it.
pub(super) fn not_empty() -> Error {
    Error::misuse("something is in the file that the new header is for").hint(
        "Name one that does not exist. If it is what an interruption has left and the volume is as it was, delete it. \
             Nothing was changed.",
    )
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
    segment.kind == "crypt" && !segment.encryption.as_deref().is_some_and(unencrypted::is_null)
}

/// The header that is to move from the front of the data to `header_to`, a store of its own: nothing if `header_to` holds anything
/// that an interrupted beginning does not leave.
///
/// As long as the header in front is whole, it is the one, and all that can be in `header_to` is a part of its copy. The data
/// behind the header are copied over it only after that copy is whole, so from then on the copy is the one.
///
/// # Errors
/// `Misuse` if there is a header in front of the data that cannot be copied as it is; `Io`.
pub(super) fn header_to_move(header_to: &dyn Store, data: &dyn Store) -> Result<Option<Vec<u8>>> {
    let front = match read(data) {
        Ok(header) if !super::goes_on(&header.metadata) => Some((image_of(data, &header)?, header)),
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => return Err(e),
        _ => None,
    };
    if let Some((image, header)) = front
        && holds_only_parts_of(header_to, &image)?
    {
        if header.warnings().is_empty() {
            return Ok(Some(image));
        }
        return Err(Error::misuse("one of the two copies of the header is damaged; nothing was changed").hint(
            "If an earlier --decrypt was interrupted, name its --header FILE again. Otherwise run `claviger header repair` first.",
        ));
    }
    moved_header(header_to, data)
}

/// Whether each sector of the store is that of the image or holds nothing but zeros.
fn holds_only_parts_of(store: &dyn Store, image: &[u8]) -> Result<bool> {
    if store.len() != image.len() as u64 {
        return is_empty(store, store.len());
    }
    let mut now = vec![0; image.len()];
    store.read_at(0, &mut now)?;
    let is_part = |(now, image): (&[u8], &[u8])| now == image || now.iter().all(|byte| *byte == 0);
    Ok(now.chunks(SECTOR).zip(image.chunks(SECTOR)).all(is_part))
}

/// The header in `header_to`, if what is in front of the data is made of that header and of the data behind it, which are copied
/// over it.
fn moved_header(header_to: &dyn Store, data: &dyn Store) -> Result<Option<Vec<u8>>> {
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
    // Read once more, from the bytes that are to be copied: somebody may have changed them in between.
    read(&MemoryStore::new(image.clone()))?;
    Ok(image)
}
