//! Writing metadata: what is to be written so that all three copies say something new.

use claviger_crypto::Secret;

use super::datum::{Key, key, role};
use super::metadata::{self, Copy, Metadata, State, VISTA, Validation};
use super::protectors::hashed;
use super::sealed::Sealer;
use crate::advice::Advice;
use crate::edit::{Edit, Seen, Step};
use crate::error::{Error, Result};

/// What the steps are called, in the order in which the copies are written: the first that is whole is the newest.
pub(super) const STEPS: [&str; 3] =
    ["the first copy of the metadata", "the second copy of the metadata", "the third copy of the metadata"];

/// What is to be written so that every copy is `metadata`, sealed under the volume master key. It is based on `read`, the copies that
/// were whole.
///
/// # Errors
/// `Misuse` if there is no room, or a conversion was interrupted: behind a block there may be its log.
pub(super) fn rewritten(metadata: Metadata, vmk: &Secret, read: &[Copy]) -> Result<Edit> {
    if metadata.state == State::DIRTY {
        let what = "its conversion was interrupted and must be resumed before other changes";
        return Err(Error::misuse(what).advise(Advice::ResumeReencryption));
    }
    let area = written(metadata.clone(), vmk)?;
    Ok(copies(&metadata, &area, read))
}

/// Writes `area` to where each copy of the metadata is, in their order.
pub(super) fn copies(metadata: &Metadata, area: &[u8], read: &[Copy]) -> Edit {
    let steps = STEPS.iter().zip(metadata.copies);
    let steps = steps.map(|(what, at)| Step { what: (*what).to_owned(), at, bytes: area.to_vec() }).collect();
    let seen = read.iter().map(|copy| Seen { at: copy.at, bytes: copy.block.clone() }).collect();
    Edit::new(steps).made_for(seen)
}

/// The whole place of a copy: block, what validates it, zeros.
///
/// # Errors
/// `Misuse` if there is no room.
pub(super) fn written(mut metadata: Metadata, vmk: &Secret) -> Result<Vec<u8>> {
    // The box of the hash takes a counter, which is part of what is hashed.
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
