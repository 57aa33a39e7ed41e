//! Writes metadata: the steps that give all three copies new contents.

use claviger_crypto::Secret;

use super::datum::{Key, key, role};
use super::metadata::{self, Copy, Metadata, State, VISTA, Validation};
use super::protectors::hashed;
use super::sealed::Sealer;
use crate::advice::Advice;
use crate::edit::{Edit, Seen, Step};
use crate::error::{Error, Result};

/// The names of the steps, in the order in which the copies are written: the first intact copy is the newest.
pub(super) const STEPS: [&str; 3] =
    ["the first copy of the metadata", "the second copy of the metadata", "the third copy of the metadata"];

/// Prepares the steps that set every copy to `metadata`, sealed with the volume master key. They are based on `read`, the copies
/// that were intact.
///
/// # Errors
/// `Misuse` if there is too little space, or a conversion was interrupted: its log may be after a block.
pub(super) fn rewritten(metadata: Metadata, vmk: &Secret, read: &[Copy]) -> Result<Edit> {
    if metadata.state == State::DIRTY {
        let what = "its conversion was interrupted and must be resumed before other changes";
        return Err(Error::misuse(what).advise(Advice::ResumeReencryption));
    }
    let area = written(metadata.clone(), vmk)?;
    Ok(copies(&metadata, &area, read))
}

/// Writes `area` to the place of each metadata copy, in their order.
pub(super) fn copies(metadata: &Metadata, area: &[u8], read: &[Copy]) -> Edit {
    let steps = STEPS.iter().zip(metadata.copies);
    let steps = steps.map(|(what, at)| Step { what: (*what).to_owned(), at, bytes: area.to_vec() }).collect();
    let seen = read.iter().map(|copy| Seen { at: copy.at, bytes: copy.block.clone() }).collect();
    Edit::new(steps).made_for(seen)
}

/// Returns the whole area of a copy: the block, its validation, and zeros.
///
/// # Errors
/// `Misuse` if there is too little space.
pub(super) fn written(mut metadata: Metadata, vmk: &Secret) -> Result<Vec<u8>> {
    // The box of the hash uses up a counter, which is itself part of the hashed block.
    let mut counter = metadata.next_nonce;
    let next = counter.checked_add(1);
    metadata.next_nonce = next.ok_or_else(|| Error::unsupported("more changes: the nonce counter is exhausted"))?;
    let mut area = metadata.block()?;
    let hash = Key { kind: key::SEALED_HASH, key: hashed(&area) };
    let hash = match metadata.state == State::DECRYPTED && metadata.next_state == State::DECRYPTED {
        _ if metadata.version == VISTA => None,
        true => Some(hash.in_clear()),
        false => Some(Sealer::new(&mut counter).seal(role::NONE, vmk, &hash)),
    };
    let validation = Validation { version: metadata.version, hash }.bytes(&area);
    area.extend(validation);
    area.resize(metadata::area(metadata.version) as usize, 0);
    Ok(area)
}
