//! What is left of files that cannot be read whole: `claviger cp --salvage`.

use std::fs::File;
use std::io::Write;

use claviger_engine::trees::Node;
use claviger_engine::{Error, Result};
use serde::Serialize;

use crate::opening::files::Inside;
use crate::terminal::cancel;

/// Bytes that are given up where they cannot be read.
const PIECE: usize = 4096;

/// A file that was not copied whole.
#[derive(Serialize)]
pub struct Salvaged {
    /// Where it is inside.
    pub path: String,
    /// Bytes that were copied, from its beginning on.
    pub copied: u64,
    /// Bytes among them that could not be read, and are zeros in the copy.
    pub lost: u64,
    /// Bytes that it should have.
    pub size: u64,
    /// Why.
    pub why: String,
}

/// Copies what is left of the file from `done` on, behind which it could not be read: `why`. All of it counts where nothing says that
/// it was cut short.
pub fn rest(
    opened: &Inside,
    node: Node,
    path: String,
    (mut done, size): (u64, u64),
    why: &Error,
    mut out: &File,
) -> Result<Salvaged> {
    let there = match &opened.folder {
        Some(folder) => match folder.tree.salvage(node) {
            Ok(salvage) => salvage,
            // Without its key nothing can be told of its contents.
            Err(_) => return Ok(Salvaged { path, copied: done, lost: 0, size, why: why.to_string() }),
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
            None => opened.tree.read_at(node, done, piece).and_then(|read| match read == piece.len() {
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
    Ok(Salvaged { path, copied, lost: lost.min(copied), size, why: why.to_string() })
}
