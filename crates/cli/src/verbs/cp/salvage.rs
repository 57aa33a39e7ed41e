//! `claviger cp --salvage`: copies the readable part of damaged files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;

use claviger_engine::file_formats::{FileState, StoredFile};
use claviger_engine::trees::Node;
use claviger_engine::{Error, Result};
use serde::Serialize;

use crate::opening::files::{self, Folder, Inside};
use crate::terminal::cancel;
use crate::terminal::left_out::reason;

/// The bytes that are skipped where reading fails.
const PIECE: usize = 4096;

/// A file that was not copied whole.
#[derive(Serialize)]
pub struct Salvaged {
    /// The path inside the volume.
    pub path: String,
    /// The bytes that were copied, from the start of the file.
    pub copied: u64,
    /// The bytes among them that could not be read, and are zeros in the copy.
    pub lost: u64,
    /// The bytes that the file should have.
    pub size: u64,
    /// The reason.
    pub why: String,
    /// Whether the copy has the stored name or the stored, encrypted contents.
    pub as_stored: bool,
}

impl Salvaged {
    /// An entry whose name does not decrypt; the copy has its stored name.
    pub fn under_stored_name(path: String, why: &Error) -> Self {
        Self { path, copied: 0, lost: 0, size: 0, why: reason(why), as_stored: true }
    }

    /// The bytes of the copy; `None` if there is no copy.
    pub fn size_if_made(&self) -> Option<u64> {
        self.made().then_some(self.copied)
    }

    /// Whether there is a copy.
    pub fn made(&self) -> bool {
        self.copied > 0 || self.as_stored
    }
}

/// Sets the size of the copy of a file under its stored name; removes the entry if there is no copy.
pub fn note_size(saved: &mut Vec<Salvaged>, path: &OsStr, size: Option<u64>) {
    let path = files::shown(path);
    match size {
        None => saved.retain(|file| file.path != path),
        Some(size) => saved.iter_mut().filter(|file| file.path == path).for_each(|file| {
            (file.copied, file.size) = (size, size);
        }),
    }
}

/// Copies the readable part of a file from `done` on, where reading failed with `why`. With `stored_name`, the file's name is
/// still encrypted.
pub fn rest(
    opened: &Inside,
    node: Node,
    (path, stored_name): (&OsStr, bool),
    (mut done, size): (u64, u64),
    why: &Error,
    mut out: &File,
) -> Result<Salvaged> {
    let path = files::shown(path);
    let why = why.kind.to_string();
    let mut tree = &opened.tree;
    let mut as_stored = false;
    let there = match &opened.folder {
        Some(folder) => match folder.tree.salvage(node) {
            Ok(salvage) => salvage,
            Err(_) if in_clear(folder, node, stored_name) => {
                (tree, as_stored) = (&folder.lower, true);
                None
            }
            // Without its key, the contents cannot be judged.
            Err(_) => return Ok(Salvaged { path, copied: done, lost: 0, size, why, as_stored }),
        },
        None => None,
    };
    let end = there.as_ref().map_or(size, |salvage| salvage.there());
    let mut lost = 0;
    let mut buffer = vec![0; PIECE];
    while done < end {
        cancel::check()?;
        let piece = &mut buffer[..(end - done).min(PIECE as u64) as usize];
        let read = match &there {
            Some(salvage) => salvage.read_at(done, piece),
            None => tree.read_at(node, done, piece).and_then(|read| match read == piece.len() {
                true => Ok(()),
                false => Err(std::io::ErrorKind::UnexpectedEof.into()),
            }),
        };
        if read.is_err() {
            piece.fill(0);
            lost += piece.len() as u64;
        }
        out.write_all(piece)?;
        done += piece.len() as u64;
    }
    let copied = if lost == end { 0 } else { done };
    Ok(Salvaged { path, copied, lost: lost.min(copied), size, why, as_stored })
}

/// Whether a file that does not decrypt was never encrypted: it has no header, and its name is not encrypted either.
fn in_clear(folder: &Folder, node: Node, stored_name: bool) -> bool {
    let of = StoredFile { tree: &*folder.lower, file: node, contents: node };
    let clear = folder.format.facts(of).is_ok_and(|facts| facts.state == FileState::Clear);
    clear && (stored_name || !folder.tree.encrypts_names())
}
