//! Writes both copies of a header, in an order in which a crash leaves a sound one.
//!
//! A copy takes many sectors, which a disk may write in any order or only in part; its checksum shows this. So the copies are two
//! steps. Between them the disk holds a sound copy of the old state, of the new state, or of both, and the newer one is valid. The
//! secondary copy is written first, unless it is the only sound or the newest one: a damaged or stale copy comes first, so every
//! edit repairs it. (cryptsetup's luks2_disk_metadata.c, `LUKS2_disk_hdr_write`, always begins with the primary copy, and repairs
//! the other one before. The result is the same.)

use super::binary::{Binary, SALT, Which};
use super::metadata::Metadata;
use super::read::{self, Luks2CopyState, ReadHeader};
use super::{binary, validate};
use crate::advice::Advice;
use crate::edit::Step;
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
pub(super) use crate::random::fill as random;
use crate::store::Store;

/// The steps that replace both copies of `header` with `binary` and `metadata`, with the next sequence number and new salts.
///
/// # Errors
/// `Misuse` for metadata that do not fit the JSON area or are invalid, and if something else has taken the primary copy's place;
/// `Io` if the system has no random bytes.
pub(super) fn steps(store: &dyn Store, header: &ReadHeader, binary: Binary, metadata: &Metadata) -> Result<Vec<Step>> {
    nothing_else_in_front(store, header)?;
    let seqid = header.binary.seqid.checked_add(1).ok_or_else(|| {
        let what = "the sequence number has reached its maximum".to_owned();
        Error::from(ErrorKind::Malformed { field: "seqid", offset: header.which.offset(header.binary.hdr_size), what })
    })?;
    let binary = Binary { seqid, ..binary };
    let json = json(metadata, binary.hdr_size)?;
    order(header).into_iter().map(|which| step(&binary, which, &json)).collect()
}

/// The steps that write a header to a store without one, the primary copy at the very end.
///
/// # Errors
/// Those of [`steps`].
pub(super) fn first_steps(binary: &Binary, metadata: &Metadata) -> Result<Vec<Step>> {
    let json = json(metadata, binary.hdr_size)?;
    [Which::Secondary, Which::Primary].into_iter().map(|which| step(binary, which, &json)).collect()
}

/// The steps that rewrite damaged or stale copies: none if both are sound and current.
///
/// # Errors
/// Those of [`steps`].
pub(super) fn repair(store: &dyn Store, header: &ReadHeader) -> Result<Vec<Step>> {
    nothing_else_in_front(store, header)?;
    copy_anew(header)
}

/// Like [`repair`], whatever has taken the copy's place.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub(super) fn copy_anew(header: &ReadHeader) -> Result<Vec<Step>> {
    let states = [(Which::Secondary, &header.secondary), (Which::Primary, &header.primary)];
    let mut damaged: Vec<_> =
        states.into_iter().filter(|(_, state)| !state.is_current()).map(|(which, _)| which).collect();
    // If the copy in use was reconstructed, it stays until the other one is sound.
    damaged.sort_by_key(|which| *which == header.which);
    damaged.into_iter().map(|which| step(&header.binary, which, &header.json)).collect()
}

/// Returns the contents of the JSON area, after reading them as any program will.
fn json(metadata: &Metadata, hdr_size: u64) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(metadata).map_err(|e| Error::misuse(format!("the metadata are invalid: {e}")))?;
    let at = binary::LEN as u64;
    let read = read::parse(&json, at).and_then(|read| validate::metadata(&read, hdr_size, at).map(|()| read));
    match read {
        Ok(read) if read == *metadata => Ok(json),
        Ok(_) => Err(Error::misuse("the new metadata would not read back as written; nothing was changed")),
        Err(e) => Err(Error::misuse(format!("the new metadata would be unreadable: {e}; nothing was changed"))),
    }
}

/// The order of writing: the copy that can be spared comes first.
fn order(header: &ReadHeader) -> [Which; 2] {
    if header.primary.is_current() { [Which::Secondary, Which::Primary] } else { [Which::Primary, Which::Secondary] }
}

fn step(binary: &Binary, which: Which, json: &[u8]) -> Result<Step> {
    let binary = Binary { salt: salt()?, ..binary.clone() };
    let what = format!("the {} header", which.name());
    Ok(Step { what, at: which.offset(binary.hdr_size), bytes: binary.serialise(which, json)? })
}

/// A new salt.
pub(super) fn salt() -> Result<[u8; SALT]> {
    let mut salt = [0; SALT];
    random(&mut salt)?;
    Ok(salt)
}

/// If the primary copy is missing, something else may have been created in its place, and must not be overwritten.
fn nothing_else_in_front(store: &dyn Store, header: &ReadHeader) -> Result<()> {
    let Luks2CopyState::Damaged(error) = &header.primary else { return Ok(()) };
    if header.which == Which::Primary {
        // Its checksum is right after reconstruction, so there is nothing else.
        return Ok(());
    }
    let mut start = vec![0; store.len().min(1 << 17) as usize];
    store.read_at(0, &mut start)?;
    let ours = start.starts_with(Which::Primary.magic()) && start.get(6..8) == Some(&[0, 2]);
    match magic::known(&start) {
        Some(what) if !ours => Err(Error::misuse(format!(
            "the primary header's position holds {what}, so the secondary header may be an older volume's; nothing \
             was changed"
        ))
        .hint("To keep the LUKS2 volume, give a passphrase that proves its data.")
        .advise(Advice::GiveCredential)),
        _ if matches!(error.kind, ErrorKind::Unsupported { .. }) => {
            Err(Error::unsupported(format!("changing a header whose primary copy is of an unknown kind ({error})")))
        }
        _ => Ok(()),
    }
}
