//! Encrypting a store in place, with the header in front: the plaintext's first part is moved to make room for it.
//!
//! The plaintext ends `reduce` bytes before the store's end, so the file system in it must be shrunk first. Half of this space is
//! for the header in front; the other half holds the plaintext's first part until that is encrypted (cryptsetup's
//! `--reduce-device-size`, luks2_reencrypt.c, `reencrypt_set_encrypt_segments`).
//!
//! Writing the header over the first part takes many sectors, and a crash in between would leave neither. So a copy of the header
//! is first written to the free part at the end. After a crash, the front then consists of known parts: the header and the part
//! that was moved.

use super::begin;
use super::state::ReencryptionState;
use crate::credential::Credential;
use crate::edit::{Edit, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::in_place::ReencryptionRequest;
use crate::formats::luks2::read::read;
use crate::spec::Spec;
use crate::store::{Store, check_range};

/// The multiple for sizes in front, in bytes.
const ALIGNMENT: u64 = 64 << 10;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// Begins to encrypt the plaintext in `data`: writes the header and moves the first part. After a crash in between it is begun
/// again, or finished.
///
/// # Errors
/// `Misuse` where the sizes do not fit, or there is a LUKS header already; those of creating a volume; `Io`.
pub fn begin_encryption(
    data: &dyn Store,
    reduce: u64,
    spec: &Spec<'_>,
    first: &[Credential],
    request: &ReencryptionRequest<'_>,
) -> Result<()> {
    let front = Front::of(data, reduce)?;
    if finish_interrupted(data, &front)? {
        return Ok(());
    }
    if !matches!(read(data).map_err(|e| e.kind), Err(ErrorKind::NotThisFormat(_))) {
        return Err(Error::misuse("it already has a LUKS2 header").hint("Nothing was changed."));
    }
    let moved = front.moved..front.moved + front.part;
    let image = begin::encryption_header(front.len, data, spec, first, request, Some((moved, front.size)))?;
    copy(data, 0, front.moved, front.part)?;
    data.flush()?;
    // The copy of the header is put where the first zone will be written.
    let copy: Vec<_> = begin::image_steps(&image)?
        .into_iter()
        .map(|step| Step { what: format!("a copy of {}", step.what), at: front.spare + step.at, ..step })
        .collect();
    Edit::new(copy).carry_out(data)?;
    Edit::new(begin::image_steps(&image)?).carry_out(data)
}

/// The positions of all parts.
struct Front {
    /// The size of the header in front, and of each half of the free space at the end, in bytes.
    len: u64,
    /// The size of the plaintext, in bytes.
    size: u64,
    /// The size of its first part, which is moved, in bytes.
    part: u64,
    /// The offset of the header's copy.
    spare: u64,
    /// The new offset of the first part.
    moved: u64,
}

impl Front {
    fn of(data: &dyn Store, reduce: u64) -> Result<Self> {
        if reduce == 0 || !reduce.is_multiple_of(2 * ALIGNMENT) {
            return Err(Error::misuse(format!("{reduce} bytes cannot be freed for the header"))
                .hint("Use at least twice the header's size, in multiples of 128 KiB; 32 MiB is usual."));
        }
        let size = data.len().checked_sub(reduce).filter(|size| *size > 0);
        let size = size.ok_or_else(|| Error::misuse(format!("it has only {} bytes", data.len())))?;
        let len = reduce / 2;
        if size < len {
            // The free space at the end would overlap the front.
            return Err(Error::misuse(format!("{size} bytes are too few to make room for a header of {len}"))
                .hint("Reduce it by less, or put the header in a separate file."));
        }
        Ok(Self { len, size, part: size.min(len), spare: size, moved: size + len })
    }
}

/// Finishes writing the header if that was interrupted. Returns whether it was.
fn finish_interrupted(data: &dyn Store, front: &Front) -> Result<bool> {
    let spare = Part { store: data, at: front.spare, len: front.len };
    let Ok(header) = read(&spare) else { return Ok(false) };
    let state = match ReencryptionState::of(&header.metadata, data.len()) {
        Ok(Some(state)) if state.done.is_empty() && state.hot.is_none() => state,
        _ => return Ok(false),
    };
    let ours = state.moved.as_ref().is_some_and(|m| m.offset() == front.moved) && state.last.offset() == front.len;
    if !ours {
        return Ok(false);
    }
    let (mut image, mut moved) = (vec![0; front.len as usize], vec![0; front.part as usize]);
    data.read_at(front.spare, &mut image)?;
    data.read_at(front.moved, &mut moved)?;
    let mut now = vec![0; front.len as usize];
    data.read_at(0, &mut now)?;
    let part = moved.len();
    if now[..part] == moved[..] {
        // Nothing was overwritten yet: the existing plaintext is valid, and may have changed since.
        return Ok(false);
    }
    let sectors = now[..part].chunks(SECTOR).zip(image.chunks(SECTOR).zip(moved.chunks(SECTOR)));
    if !sectors.into_iter().all(|(now, (image, moved))| now == image || now == moved) {
        return Ok(false);
    }
    // Written even if it seems complete: it may have been read from a cache (`zone::recover`).
    Edit::new(begin::image_steps(&image)?).carry_out(data)?;
    Ok(true)
}

/// Copies between parts that do not overlap.
fn copy(data: &dyn Store, from: u64, to: u64, len: u64) -> Result<()> {
    for at in (0..len).step_by(ALIGNMENT as usize) {
        let mut bytes = vec![0; (len - at).min(ALIGNMENT) as usize];
        data.read_at(from + at, &mut bytes)?;
        data.write_clobbering(to + at, &mut bytes)?;
    }
    Ok(())
}

/// A part of a store from which a header is read.
struct Part<'a> {
    store: &'a dyn Store,
    at: u64,
    len: u64,
}

impl Store for Part<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        check_range(offset, out.len(), self.len)?;
        self.store.read_at(self.at + offset, out)
    }

    fn write_clobbering(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}
