//! Files that are complete before they get their names.

use std::ffi::{OsStr, OsString};
use std::io;

use super::StoredFolder;
use crate::error::Result;
use crate::trees::{HeldNode, NewNode, Node, Renaming, Tree, Use};
use crate::{hex, random};

/// What follows a key file's name until a new one is complete. A random number follows.
const NEW: &str = ".new.";

/// Random bytes in a numbered name.
const RANDOM: usize = 8;

/// A name that nothing has yet: this beginning and a random number.
pub(super) fn numbered(beginning: &str) -> io::Result<OsString> {
    let mut bytes = [0; RANDOM];
    random::fill(&mut bytes)?;
    Ok(format!("{beginning}{}", hex::digits(&bytes)).into())
}

/// Whether a name is one that [`numbered`] makes of this beginning.
pub(super) fn is_numbered(name: &OsStr, beginning: &str) -> bool {
    let digits = name.as_encoded_bytes().strip_prefix(beginning.as_bytes());
    digits.is_some_and(|digits| digits.len() == 2 * RANDOM && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Writes a new file, durably.
pub(super) fn write(
    tree: &(dyn Tree + 'static),
    folder: Node,
    name: &OsStr,
    contents: &[u8],
    new: &NewNode,
) -> Result<()> {
    let usage = Use { read: true, write: true };
    let file = HeldNode::new(tree, tree.create_open(folder, name, new, usage)?);
    let written = tree.write_at(file.node(), 0, contents).and_then(|()| tree.sync(file.node(), false));
    Ok(written.and(tree.release(file.node()))?)
}

/// Writes a key file in the root, complete under another name first. It may be the only copy of the key, so it is read back.
pub(super) fn write_key_file(
    tree: &(dyn Tree + 'static),
    name: &str,
    contents: &[u8],
    of: &NewNode,
    how: Renaming,
) -> Result<()> {
    let temporary = numbered(&format!("{name}{NEW}"))?;
    let root = StoredFolder { tree, folder: tree.root() };
    let written = write(tree, root.folder, &temporary, contents, of).and_then(|()| {
        if root.read(&temporary, contents.len())?.as_deref() != Some(contents) {
            return Err(io::Error::other(format!("the new {name} could not be read back: no file was replaced")).into());
        }
        Ok(tree.rename(root.folder, &temporary, root.folder, name.as_ref(), how)?)
    });
    written.inspect_err(|_| drop(tree.remove(root.folder, &temporary)))?;
    Ok(tree.sync(root.folder, false)?)
}
