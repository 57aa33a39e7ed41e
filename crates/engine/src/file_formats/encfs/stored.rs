//! The facts about a stored file that need no key.

use std::io;

use super::{HEADER, read_config};
use crate::file_formats::{FileFacts, FileState, StoredFile};
use crate::volume::plain_size;

pub(super) fn facts(of: StoredFile<'_>) -> io::Result<FileFacts> {
    let stored = of.tree.attributes(of.contents)?.size;
    let clear = FileFacts::clear(stored);
    let Ok(config) = read_config(of.tree) else {
        return Ok(FileFacts { state: FileState::Encrypted, size: None, ..clear });
    };
    let header = config.header() as u64;
    let facts = FileFacts {
        state: FileState::Encrypted,
        cipher: Some(config.suite.name.to_owned()),
        key_bits: Some(config.suite.key as u32 * 8),
        metadata: config.file_ivs.then(|| format!("its first {HEADER} bytes")),
        ..clear
    };
    if (1..header).contains(&stored) {
        let problem = format!("It has {stored} bytes, less than its header: it was cut short, or never finished.");
        return Ok(FileFacts { state: FileState::Unfinished, size: Some(0), problem: Some(problem), ..facts });
    }
    let of_blocks = stored.saturating_sub(header);
    let overhead = config.overhead();
    let cut_short = (1..=overhead as u64).contains(&(of_blocks % config.block as u64));
    Ok(FileFacts {
        state: if cut_short { FileState::CutShort } else { FileState::Encrypted },
        size: Some(plain_size(of_blocks, config.block - overhead, overhead)),
        problem: cut_short.then(|| "It was cut short: it ends inside the checksum of a block.".to_owned()),
        ..facts
    })
}
