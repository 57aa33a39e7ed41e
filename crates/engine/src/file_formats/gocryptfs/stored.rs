//! The facts about a stored file that need no key.

use std::io;

use super::keys::{BLOCK, HEADER, id};
use super::read_config;
use crate::error::Error;
use crate::file_formats::{FileFacts, FileState, StoredFile};
use crate::volume::plain_size;

pub(super) fn facts(of: StoredFile<'_>) -> io::Result<FileFacts> {
    let stored = of.tree.attributes(of.contents)?.size;
    let header = HEADER as u64;
    let clear = FileFacts::clear(stored);
    // gocryptfs takes a header alone for an empty file.
    if stored == 0 || stored == header {
        return Ok(FileFacts { state: FileState::Encrypted, size: Some(0), ..clear });
    }
    if stored < header {
        let problem = "It was cut short: it ends in its header.".to_owned();
        return Ok(FileFacts { state: FileState::CutShort, size: None, problem: Some(problem), ..clear });
    }
    let mut bytes = [0; HEADER];
    let len = of.tree.read_at(of.contents, 0, &mut bytes)?;
    if let Err(e) = id(&bytes[..len]) {
        let problem = Some(format!("Its header cannot be read: {}.", Error::from(e).kind));
        return Ok(FileFacts { state: FileState::Damaged, size: None, problem, ..clear });
    }
    let cipher = read_config(of.tree).ok().map(|config| config.cipher);
    let of_blocks = stored - header;
    let cut = |overhead: usize| (1..=overhead as u64).contains(&(of_blocks % (BLOCK + overhead) as u64));
    let cut_short = cipher.is_some_and(|cipher| cut(cipher.overhead()));
    Ok(FileFacts {
        state: if cut_short { FileState::CutShort } else { FileState::Encrypted },
        cipher: cipher.map(|cipher| cipher.name().0.to_owned()),
        key_bits: cipher.map(|cipher| cipher.name().1),
        metadata: Some(format!("its first {HEADER} bytes")),
        version: Some(2),
        size: cipher.map(|cipher| plain_size(of_blocks, BLOCK, cipher.overhead())),
        problem: cut_short.then(|| "It was cut short: it ends inside a nonce or a tag.".to_owned()),
        ..clear
    })
}
