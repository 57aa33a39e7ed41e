//! Checks before the first write that a store is what it is supposed to be: that a new header's file is empty, and that the data do
//! not belong to another header.

use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::{Acceleration, Secret};

use super::state::{ReencryptionState, What};
use super::{HeaderAndData, moving};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::luks2::metadata::MetadataSegment;
use crate::formats::luks2::read::{ReadHeader, read};
use crate::formats::{luks, luks2::validate};
use crate::store::{MemoryStore, Store};

/// How many bytes are checked at a time.
const PIECE: u64 = 1 << 20;

/// How far from the beginning other formats have their signatures, in bytes.
const MARKS: u64 = 0x11000;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// Whether the first `len` bytes are all zeros.
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

/// Checks that the place for a new header is empty.
///
/// # Errors
/// `Misuse` if something is there; `Io`.
pub(super) fn must_be_empty(header: &dyn Store, len: u64) -> Result<()> {
    if is_empty(header, len)? { Ok(()) } else { Err(not_empty()) }
}

/// The error for a header file that is not empty.
pub(super) fn not_empty() -> Error {
    Error::misuse("the file for the new header is not empty").hint(
        "Nothing was changed. Give a file that does not exist. If an interrupted run left this one, first try to \
         open the volume with it; without it, data already encrypted are lost. Delete it only if the volume is \
         unchanged.",
    )
}

/// Refuses data that visibly belong to another volume than the header: a known signature where ciphertext should be, or another
/// header in front of them.
///
/// # Errors
/// `Misuse` if they do; `Io`.
pub(super) fn may_belong_together(
    stores: &HeaderAndData<'_>,
    header: &ReadHeader,
    encrypted: impl IntoIterator<Item = u64>,
) -> Result<()> {
    if !stores.detached {
        return Ok(());
    }
    let no = |what: String| {
        Err(Error::misuse(format!("{what}: the header belongs to another volume"))
            .hint("Nothing was changed. Check that the file or device and the detached header are the right ones."))
    };
    for at in encrypted {
        let mut start = vec![0; stores.data.len().saturating_sub(at).min(MARKS) as usize];
        stores.data.read_at(at, &mut start)?;
        // Most signatures are so short that ciphertext can match them by chance.
        let random = start.first_chunk::<4096>().is_none_or(|start| magic::looks_random(start));
        if let Some(what) = magic::known(&start).filter(|_| !random) {
            return no(format!("byte {at}, where encrypted data belong, holds {what}"));
        }
        if at > 0 && in_front(stores.data)?.is_some_and(|uuid| uuid != header.binary.uuid) {
            return no("the LUKS2 header in front of the data has another UUID".to_owned());
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

/// Common ciphers, sector sizes and data offsets: the fields of a segment that decide how its data are read. Nothing protects these
/// fields in the header: the digest covers only the volume key.
const CIPHERS: [&str; 8] = [
    "aes-xts-plain64",
    "aes-xts-essiv:sha256",
    "aes-cbc-essiv:sha256",
    "aes-cbc-plain64",
    "serpent-xts-plain64",
    "twofish-xts-plain64",
    "camellia-xts-plain64",
    "xchacha12,aes-adiantum-plain64",
];
const SECTOR_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
const OFFSETS: [u64; 5] = [1 << 20, 2 << 20, 4 << 20, 16 << 20, 32 << 20];

/// Checks that the data are visibly encrypted as the segment says: rewriting with a manipulated header would destroy them for good.
/// Data that are noise in every way may never have been written, and are accepted.
///
/// # Errors
/// `Malformed` if they make sense in another way; `Io`.
pub(super) fn encrypted_as_said(segment: &MetadataSegment, key: &Secret, data: &dyn Store, at: u64) -> Result<()> {
    let recorded = segment.encryption.as_deref().unwrap_or_default();
    if !segment.is_encrypted() || recorded.is_empty() {
        return Ok(());
    }
    let sensible = |cipher: &str, sector_size: u32, offset: u64| {
        let sectors = Sectors { size: sector_size as usize, ..segment.sectors() };
        match Specification::parse(cipher).map(|cipher| cipher.with_key(key, sectors, Acceleration::On)) {
            Ok(Ok(cipher)) if offset < data.len() => luks::sensible(data, offset, &*cipher),
            _ => Ok(0),
        }
    };
    let (size, offset) = (segment.sector_size.unwrap_or(512), segment.offset.0);
    // With another sector size, the beginning of the data reads the same.
    let enough = 2 * sensible(recorded, size, offset)? + 2;
    let ciphers = CIPHERS.iter().filter(|cipher| **cipher != recorded).map(|cipher| (*cipher, size, offset));
    let sizes = SECTOR_SIZES.iter().filter(|other| **other != size).map(|other| (recorded, *other, offset));
    let offsets = OFFSETS.iter().filter(|other| **other != offset).map(|other| (recorded, size, *other));
    for (cipher, size, offset) in ciphers.chain(sizes).chain(offsets) {
        if sensible(cipher, size, offset)? > enough {
            let what = format!(
                "the header is wrong about the data: they decrypt with {cipher} in {size}-byte sectors from byte \
                 {offset} on"
            );
            return Err(Error::from(ErrorKind::Malformed { field: "segments", offset: at, what }).hint(
                "Nothing was changed. The header was tampered with or damaged. Restore a header backup: `claviger \
                 header restore --from BACKUP VOLUME`.",
            ));
        }
    }
    Ok(())
}

/// Returns where there must be ciphertext by now, in bytes of the data's store.
pub(super) fn encrypted_by_now(state: &ReencryptionState) -> Vec<u64> {
    let encrypted = |what: What| state.side(what).segment.is_encrypted();
    let pieces = state.pieces().into_iter().filter(|piece| piece.what != What::Hot && encrypted(piece.what));
    pieces.map(|piece| state.side(piece.what).offset().saturating_add(piece.at.start)).collect()
}

/// A header that moves from the front of the data to a store of its own.
pub(super) enum Moving {
    /// Nothing is moved yet: this is the whole header in front.
    Fresh(Vec<u8>),
    /// The move has begun, and this is the content of the header's store. Data after the old header may have been copied over it.
    Begun(Vec<u8>),
}

/// Returns how far the header in front of the data has moved to `header_to`. `None` if `header_to` holds anything that an
/// interrupted beginning does not leave, such as a header backup.
///
/// Once `header_to` contains the record of the move for these data, the header there is the valid one. Before that the whole header
/// in front is valid, and `header_to` can only hold a part of its copy.
///
/// # Errors
/// `Misuse` if there is a header in front of the data that cannot be copied in its present state; `Io`.
pub(super) fn header_to_move(header_to: &dyn Store, data: &dyn Store) -> Result<Option<Moving>> {
    if let Ok(header) = read(header_to)
        && let Some(record) = moving::record(&header.metadata)
        && !super::goes_on(&header.metadata)
    {
        return match moving::tells_of(record, data)? {
            true => Ok(Some(Moving::Begun(image_of(header_to, &header)?))),
            false => Ok(None),
        };
    }
    let front = match read(data) {
        Ok(header) if !super::goes_on(&header.metadata) => header,
        Err(e) if matches!(e.kind, ErrorKind::Io(_)) => return Err(e),
        _ => return Ok(None),
    };
    let image = image_of(data, &front)?;
    if !holds_only_parts_of(header_to, &image, front.binary.hdr_size as usize)? {
        return Ok(None);
    }
    if !front.warnings().is_empty() {
        return Err(Error::misuse("one of the two copies of the header is damaged; nothing was changed")
            .hint("If an earlier decryption was interrupted, give the file its header was moving to.")
            .advise(Advice::RepairHeader));
    }
    Ok(Some(Moving::Fresh(image)))
}

/// Whether each sector of the store equals the image or is all zeros. If the first copy of the header and the keyslots are
/// complete, the second copy may be half-written, with the record of the move.
fn holds_only_parts_of(store: &dyn Store, image: &[u8], hdr_size: usize) -> Result<bool> {
    if store.len() != image.len() as u64 {
        return is_empty(store, store.len());
    }
    let mut now = vec![0; image.len()];
    store.read_at(0, &mut now)?;
    let is_part = |(now, image): (&[u8], &[u8])| now == image || now.iter().all(|byte| *byte == 0);
    let all_but_the_second = now[..hdr_size] == image[..hdr_size] && now[2 * hdr_size..] == image[2 * hdr_size..];
    Ok(all_but_the_second || now.chunks(SECTOR).zip(image.chunks(SECTOR)).all(is_part))
}

/// Refuses to reencrypt with a detached header if there is a header in front of the data. The detached one may be an old backup
/// with another volume key, and the header in front would open only noise afterwards.
///
/// # Errors
/// `Misuse`; `Io`.
pub(super) fn must_have_no_header_in_front(stores: &HeaderAndData<'_>, data_offset: u64) -> Result<()> {
    if !stores.detached || data_offset == 0 || in_front(stores.data)?.is_none() {
        return Ok(());
    }
    Err(Error::misuse("a detached header was given, but the data have a LUKS2 header in front")
        .hint("Nothing was changed. Omit the detached header, or restore it to the front first.")
        .advise(Advice::RestoreHeader))
}

/// Returns both copies of the header and the keyslots.
fn image_of(store: &dyn Store, header: &ReadHeader) -> Result<Vec<u8>> {
    let mut image = vec![0; validate::header_end(&header.metadata, header.binary.hdr_size) as usize];
    store.read_at(0, &mut image)?;
    // The bytes to copy are read as a header again: they may have changed in between.
    read(&MemoryStore::new(image.clone()))?;
    Ok(image)
}
