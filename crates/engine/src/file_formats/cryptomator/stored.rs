//! The facts about a stored file that need no key.

use std::io;

use super::config::CipherCombo;
use super::read_config;
use super::vault::{BLOCK, header_size, overhead, plain_size};
use crate::file_formats::{FileFacts, FileState, StoredFile};

pub(super) fn facts(of: StoredFile<'_>) -> io::Result<FileFacts> {
    let stored = of.tree.attributes(of.contents)?.size;
    let clear = FileFacts { size: None, state: FileState::Encrypted, ..FileFacts::clear(stored) };
    if stored == 0 {
        let problem = "It is empty, even without a header: its creation or its transfer was interrupted.".to_owned();
        return Ok(FileFacts { state: FileState::Unfinished, size: Some(0), problem: Some(problem), ..clear });
    }
    let Ok(config) = read_config(of.tree) else { return Ok(clear) };
    let header = header_size(config.combo) as u64;
    let problem = match () {
        () if stored < header => Some("It was cut short: it ends in its header.".to_owned()),
        () if ends_in_overhead(config.combo, stored - header) => {
            Some("It was cut short: it ends inside a nonce or a tag.".to_owned())
        }
        () => None,
    };
    Ok(FileFacts {
        state: if problem.is_some() { FileState::CutShort } else { FileState::Encrypted },
        cipher: Some(config.combo.of_contents().to_owned()),
        key_bits: Some(256),
        metadata: Some(format!("its first {header} bytes")),
        version: u32::try_from(config.version).ok(),
        size: Some(plain_size(config.combo, stored)),
        problem,
        ..clear
    })
}

fn ends_in_overhead(combo: CipherCombo, of_blocks: u64) -> bool {
    let overhead = overhead(combo);
    (1..=overhead as u64).contains(&(of_blocks % (BLOCK + overhead) as u64))
}
