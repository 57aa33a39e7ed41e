//! Writing a header: both copies, in an order in which a crash leaves one that is sound.
//!
//! A copy takes many sectors, which a disk may write in any order or in part; its checksum tells. So the copies are two steps, and
//! what is on the disk between them is a sound copy of the old state, of the new one, or one of each, of which the newer one
//! counts. The secondary copy goes first, unless it is the only sound or the newest one: what is damaged or stale is written first,
//! and an edit of any kind repairs it. (cryptsetup's luks2_disk_metadata.c, `LUKS2_disk_hdr_write`, always begins with the primary
//! copy, and repairs the other one before: what it reads back is the same.)

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

/// The steps that write `binary` and `metadata` in place of `header`, both copies, with the next sequence number and new salts.
///
/// # Errors
/// `Misuse` for metadata that do not fit the JSON area or make no sense, and where something else lies where the primary copy
/// belongs; `Io` if the system has no random bytes.
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

/// The steps that write a first header to a store that has none, the primary copy at the very end.
///
/// # Errors
/// Those of [`steps`].
pub(super) fn first_steps(binary: &Binary, metadata: &Metadata) -> Result<Vec<Step>> {
    let json = json(metadata, binary.hdr_size)?;
    [Which::Secondary, Which::Primary].into_iter().map(|which| step(binary, which, &json)).collect()
}

/// The steps that write the copies anew that are not as they should be: none if both are.
///
/// # Errors
/// Those of [`steps`].
pub(super) fn repair(store: &dyn Store, header: &ReadHeader) -> Result<Vec<Step>> {
    nothing_else_in_front(store, header)?;
    copy_anew(header)
}

/// Like [`repair`], whatever lies where the copy belongs.
///
/// # Errors
/// `Io` if the system has no random bytes.
pub(super) fn copy_anew(header: &ReadHeader) -> Result<Vec<Step>> {
    let states = [(Which::Secondary, &header.secondary), (Which::Primary, &header.primary)];
    let mut damaged: Vec<_> =
        states.into_iter().filter(|(_, state)| !state.is_current()).map(|(which, _)| which).collect();
    // The one that counts, where it was put together, stays until the other one is sound.
    damaged.sort_by_key(|which| *which == header.which);
    damaged.into_iter().map(|which| step(&header.binary, which, &header.json)).collect()
}

/// What the JSON area is to hold. It is read as any program will read it before it is written.
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

/// First the copy that may be lost.
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

/// Where the primary copy is gone, what is there may be something else that was made in its place: that is not written over.
fn nothing_else_in_front(store: &dyn Store, header: &ReadHeader) -> Result<()> {
    let Luks2CopyState::Damaged(error) = &header.primary else { return Ok(()) };
    if header.which == Which::Primary {
        // Its checksum is right once it is put together: nothing else is there.
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
