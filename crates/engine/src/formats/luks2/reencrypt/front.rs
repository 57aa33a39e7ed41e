//! Encrypting a store in place, with the header in front: the plaintext's first part makes room for it.
//!
//! The plaintext ends `reduce` bytes before the store's end, which the file system in it must have been told before. Half of that
//! becomes the header in front, the other half keeps the plaintext's first part until its turn comes (cryptsetup's
//! `--reduce-device-size`, luks2_reencrypt.c, `reencrypt_set_encrypt_segments`).
//!
//! Writing the header over the first part takes many sectors, and a crash in between would leave neither. So a copy of the header
//! goes to the free part at the end first: what is in front is then known to be made of the header and of the part that was moved.

use super::begin;
use super::state::ReencryptionState;
use crate::credential::Credential;
use crate::edit::{Edit, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::in_place::ReencryptionRequest;
use crate::formats::luks2::read::read;
use crate::spec::Spec;
use crate::store::{Store, check_range};

/// Sizes of the front are multiples of this, in bytes.
const ALIGNMENT: u64 = 64 << 10;

/// What a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// Begins to encrypt what is in `data`: writes the header and moves the first part. One that a crash has interrupted at that is
/// begun once more, or brought to its end.
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
    // The copy of the header goes where the first zone will go.
    let copy: Vec<_> = begin::image_steps(&image)?
        .into_iter()
        .map(|step| Step { what: format!("a copy of {}", step.what), at: front.spare + step.at, ..step })
        .collect();
    Edit::new(copy).carry_out(data)?;
    Edit::new(begin::image_steps(&image)?).carry_out(data)
}

/// Where everything goes.
struct Front {
    /// Size of the header in front, and of both halves of what is free at the end, in bytes.
    len: u64,
    /// Size of the plaintext, in bytes.
    size: u64,
    /// Size of its first part, which makes room, in bytes.
    part: u64,
    /// Where the copy of the header goes.
    spare: u64,
    /// Where the first part goes.
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
            // What is free at the end would be a part of the front.
            return Err(Error::misuse(format!("{size} bytes are too few to make room for a header of {len}"))
                .hint("Reduce it by less, or put the header in a separate file."));
        }
        Ok(Self { len, size, part: size.min(len), spare: size, moved: size + len })
    }
}

/// Brings the writing of the header to its end, if that was interrupted. Whether it was.
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
        // Nothing was written over yet: what is there counts, it may have been changed since.
        return Ok(false);
    }
    let sectors = now[..part].chunks(SECTOR).zip(image.chunks(SECTOR).zip(moved.chunks(SECTOR)));
    if !sectors.into_iter().all(|(now, (image, moved))| now == image || now == moved) {
        return Ok(false);
    }
    // Also where all of it is there already, as far as one can read: that may be from a cache (`zone::recover`).
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

/// A part of a store, to read a header from.
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
