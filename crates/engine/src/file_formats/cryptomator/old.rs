//! Entries of format 6. Each is a file, whose name says what it is (cryptofs 1.9, CryptoPathMapper.java, CiphertextFileType.java and
//! LongFileNameProvider.java):
//!
//! ```text
//! NAME              a file: the encrypted name in Base32
//! 0NAME             a folder: its ID
//! 1SNAME            a symbolic link: its target, encrypted like a file
//! HASH.lng          any of these, whose name is too long: m/HA/SH/HASH.lng below the root of the vault holds it
//! ```
//!
//! The tree shows NAME for each, and HASH.lng if the name is missing.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use claviger_crypto::hash::SHA1;

use super::keys::NOT_DECRYPTED;
use super::tree::{LONGEST_ID, LONGEST_WHOLE, NO_ENTRY, Part, Stored, VaultTree, Way, is_missing, left_out, subfolder};
use super::vault::{base32, ends};
use crate::file_formats::{NameIv, StoredFolder};
use crate::trees::{Entry, HeldNode, Listing, Node, NodeKind, damaged};

/// How shortened names end.
const LONG: &str = ".lng";

/// The folder with the whole names.
const NAMES: &str = "m";

/// Whole names of this length and more may be shortened (`NAME_SHORTENING_THRESHOLD`; some programs shorten only longer ones).
const THRESHOLD: usize = 129;

/// An entry as it is shown.
pub(super) struct Shown {
    pub name: OsString,
    /// `None` if the name that says it is missing.
    part: Option<Part>,
}

impl VaultTree {
    /// The entry that is shown by this name. If a folder, a link and a file have it, that is the first of these.
    pub(super) fn stored_old(&self, folder: Node, name: &OsStr) -> io::Result<Stored<'_>> {
        if ends(name, LONG) {
            let file = HeldNode::lookup(&*self.lower, folder, name)?;
            let part = self.part_without_name(file.node())?;
            return Ok(Stored { name: name.to_owned(), bundle: None, part, file });
        }
        for part in Part::ALL {
            let mut whole = OsString::from(prefix(part));
            whole.push(name);
            let short = (whole.len() >= THRESHOLD).then(|| shortened(&whole));
            for name in [Some(whole), short].into_iter().flatten() {
                match HeldNode::lookup(&*self.lower, folder, &name) {
                    Ok(file) if self.lower.attributes(file.node())?.kind == NodeKind::File => {
                        return Ok(Stored { name, bundle: None, part, file });
                    }
                    Ok(_) => return Err(damaged("entry", 0, NO_ENTRY)),
                    // A whole name may be too long for this file system.
                    Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// What an entry is whose name is missing: the file of a folder is shorter than a header.
    fn part_without_name(&self, file: Node) -> io::Result<Part> {
        let of = self.lower.attributes(file)?;
        match of.kind {
            NodeKind::File if (1..=LONGEST_ID as u64).contains(&of.size) => Ok(Part::Folder),
            NodeKind::File => Ok(Part::File),
            NodeKind::Folder | NodeKind::Link | NodeKind::Special => Err(damaged("entry", 0, NO_ENTRY)),
        }
    }

    /// Whether this folder belongs beside the folders of the vault.
    pub(super) fn is_own_folder(&self, name: &OsStr) -> bool {
        self.vault().config.is_old() && name == NAMES
    }

    pub(super) fn list_old(&self, id: NameIv, stored: Vec<Entry>, to: &mut Listing) -> io::Result<()> {
        let mut all = Vec::with_capacity(stored.len());
        for entry in stored {
            match self.shown_old(&entry) {
                Ok(shown) => all.push((entry, shown)),
                Err(e) if is_missing(&e) => to.left_out.push(left_out(&entry, self.why(&entry.name, &id, e), false)),
                Err(e) => return Err(e),
            }
        }
        all.sort_by_key(|(_, shown)| Part::ALL.iter().position(|part| Some(*part) == shown.part));
        let mut names = HashSet::new();
        for (entry, shown) in all {
            let name = shown.name.clone();
            let listed = match names.insert(name.clone()) {
                true => self.listed_old(id, &entry, shown),
                false => Err(damaged("entry", 0, "a folder or a link has the same name, and is shown")),
            };
            match listed {
                Ok(entry) => to.entries.push(entry),
                Err(e) if is_missing(&e) => to.left_out.push(left_out(&entry, self.why(&name, &id, e), false)),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn listed_old(&self, parent: NameIv, stored: &Entry, shown: Shown) -> io::Result<Entry> {
        let Shown { name, part } = shown;
        let (kind, node) = match part {
            Some(Part::File) => (NodeKind::File, stored.node),
            Some(Part::Link) => (NodeKind::Link, stored.node),
            Some(Part::Folder) | None => {
                let above = self.place_or_lost(&parent)?;
                let entry = self.stored_old(above.node(), &name)?;
                if entry.part == Part::File {
                    return Ok(Entry { name, ..stored.clone() });
                }
                let folder = self.folder(self.leads_to(&entry)?, Way { parent, name: name.clone() })?;
                (NodeKind::Folder, self.lower.attributes(folder.node())?.number)
            }
        };
        Ok(Entry { name, node, kind })
    }

    /// How a stored entry is shown.
    pub(super) fn shown_old(&self, entry: &Entry) -> io::Result<Shown> {
        if entry.kind != NodeKind::File {
            return Err(damaged("entry", 0, NO_ENTRY));
        }
        if !ends(&entry.name, LONG) {
            return shown(&entry.name).ok_or_else(|| damaged("entry", 0, FOREIGN));
        }
        match self.whole_name_old(&entry.name)?.and_then(|whole| shown(&whole)) {
            Some(shown) => Ok(shown),
            None if !is_hash(&entry.name) => Err(damaged("entry", 0, FOREIGN)),
            // Its name is missing. It can be rescued.
            None => Ok(Shown { name: entry.name.clone(), part: None }),
        }
    }

    /// The whole name of a shortened one. `None` if it is missing or damaged.
    fn whole_name_old(&self, short: &OsStr) -> io::Result<Option<OsString>> {
        let Some((first, rest)) = short.to_str().and_then(|short| Some((short.get(..2)?, short.get(2..4)?))) else {
            return Ok(None);
        };
        let read = || {
            let names = subfolder(&*self.lower, self.lower.root(), NAMES)?;
            let above = subfolder(&*self.lower, names.node(), first)?;
            let folder = subfolder(&*self.lower, above.node(), rest)?;
            StoredFolder { tree: &*self.lower, folder: folder.node() }.read(short, LONGEST_WHOLE)
        };
        match read() {
            Ok(whole) => Ok(whole.map(OsString::from_vec).filter(|whole| shortened(whole) == short)),
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Why an entry is not shown that no name of the format has.
const FOREIGN: &str = "it is not part of the vault: a sync program may have kept this copy of another version";

/// Why a name that is shown does not decrypt.
pub(super) fn why_no_name(shown: &OsStr) -> &'static str {
    match ends(shown, LONG) {
        true => "the file with the whole name, in m, is missing or damaged",
        false => NOT_DECRYPTED,
    }
}

fn prefix(part: Part) -> &'static str {
    match part {
        Part::Folder => "0",
        Part::Link => "1S",
        Part::File => "",
    }
}

/// A whole name, as it is shown. Neither 0 nor 1 is a digit of Base32.
fn shown(whole: &OsStr) -> Option<Shown> {
    let part = Part::ALL.into_iter().find(|part| whole.as_bytes().starts_with(prefix(*part).as_bytes()))?;
    let name = &whole.as_bytes()[prefix(part).len()..];
    let digits = name.iter().take_while(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7')).count();
    let is_name = digits > 0 && name.len().is_multiple_of(8) && name[digits..].iter().all(|byte| *byte == b'=');
    is_name.then(|| Shown { name: OsStr::from_bytes(name).to_owned(), part: Some(part) })
}

fn shortened(whole: &OsStr) -> OsString {
    let mut hash = [0; 20];
    SHA1.checksum(&[whole.as_bytes()], &mut hash);
    (base32(&hash) + LONG).into()
}

/// Whether a name has the form of a shortened one.
fn is_hash(name: &OsStr) -> bool {
    let hash = name.as_bytes().strip_suffix(LONG.as_bytes());
    hash.is_some_and(|hash| hash.len() == 32 && hash.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7')))
}
