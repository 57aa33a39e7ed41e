//! A folder in a mounted file system: files and folders are created, written, truncated, renamed and removed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Failure, Log, Plan, difference, some_range};
use crate::mounts::{PATIENCE, wait_until};
use crate::random::Random;

/// The largest file, in bytes.
const LARGEST: u64 = 1 << 20;

/// The prefix of files removed while open: libfuse renames them until they are closed, and the kernel reports the close
/// to the server only some time later (fuse.h of libfuse, `hard_remove`). fuse2fs 1.47 never removes such files if they
/// were replaced by a rename.
const REMOVED_WHILE_OPEN: &str = ".fuse_hidden";

/// The most folders and files at a time.
const FOLDERS: usize = 12;
const FILES: usize = 60;

/// A folder, and its expected contents.
pub struct Folder {
    root: PathBuf,
    /// The maximum total size of all files, in bytes.
    room: u64,
    /// Paths below the root, parents before their children.
    entries: BTreeMap<String, Entry>,
    names: u64,
}

enum Entry {
    Folder,
    File(Vec<u8>),
}

impl Folder {
    /// An empty folder whose files may take `room` bytes.
    pub fn empty(root: &Path, room: u64) -> Self {
        Self { root: root.to_owned(), room, entries: BTreeMap::new(), names: 0 }
    }

    /// A folder with the contents of a copy made by [`Folder::save`]; empty if there is no copy.
    ///
    /// # Errors
    /// Those of reading the copy.
    pub fn load(root: &Path, copy: &Path, room: u64) -> io::Result<Self> {
        // The folder may be read-only, and leftovers do not matter.
        let _ = sweep(root);
        let mut folder = Self::empty(root, room);
        if !copy.exists() {
            return Ok(folder);
        }
        let mut found = Vec::new();
        list(copy, "", &mut found)?;
        for (path, is_folder) in found {
            let entry = if is_folder { Entry::Folder } else { Entry::File(fs::read(copy.join(&path))?) };
            // Names contain numbers, which must not repeat.
            folder.names = folder.names.max(largest_number(&path));
            folder.entries.insert(path, entry);
        }
        Ok(folder)
    }

    /// Writes the expected contents to another folder, replacing what is there.
    ///
    /// # Errors
    /// Those of writing.
    pub fn save(&self, copy: &Path) -> io::Result<()> {
        if copy.exists() {
            fs::remove_dir_all(copy)?;
        }
        fs::create_dir(copy)?;
        for (path, entry) in &self.entries {
            match entry {
                Entry::Folder => fs::create_dir(copy.join(path))?,
                Entry::File(bytes) => fs::write(copy.join(path), bytes)?,
            }
        }
        Ok(())
    }

    /// Compares everything: names, kinds, sizes and contents. Nothing else may be there.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self) -> Result<(), String> {
        let mut found = Vec::new();
        list(&self.root, "", &mut found).map_err(|e| format!("listing: {e}"))?;
        found.sort();
        let expected: Vec<_> = self.entries.iter().map(|(p, e)| (p.clone(), matches!(e, Entry::Folder))).collect();
        if found != expected {
            let missing: Vec<_> = expected.iter().filter(|e| !found.contains(e)).collect();
            let more: Vec<_> = found.iter().filter(|e| !expected.contains(e)).collect();
            return Err(format!("missing: {missing:?}; there, but should not be: {more:?}"));
        }
        for (path, entry) in &self.entries {
            let Entry::File(expected) = entry else { continue };
            let contents = fs::read(self.root.join(path)).map_err(|e| format!("{path}: {e}"))?;
            if let Some(what) = difference(expected, &contents, 0) {
                return Err(format!("{path}: {what}"));
            }
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        self.entries.values().map(|e| if let Entry::File(bytes) = e { bytes.len() as u64 } else { 0 }).sum()
    }

    fn pick(&self, random: &mut Random, folders: bool) -> Option<String> {
        let kind = |e: &Entry| matches!(e, Entry::Folder) == folders;
        let all: Vec<_> = self.entries.iter().filter(|(_, e)| kind(e)).map(|(p, _)| p).collect();
        (!all.is_empty()).then(|| random.choose(&all).to_string())
    }

    /// An unused path in an existing folder.
    fn new_path(&mut self, random: &mut Random) -> String {
        self.names += 1;
        let n = self.names;
        let name = match random.below(4) {
            0 => format!("F{n}.TXT"),
            1 => format!("a long name with spaces, number {n}, that no 8.3 entry can hold.data"),
            2 => format!("schlüssel-{n}-ключ-鍵"),
            _ => format!("file{n}.bin"),
        };
        let parent = if random.below(3) == 0 { None } else { self.pick(random, true) };
        parent.map_or(name.clone(), |folder| format!("{folder}/{name}"))
    }
}

/// Whether a folder is empty except for files that were removed while open.
fn holds_removed(dir: &Path) -> bool {
    let mut found = Vec::new();
    list(dir, "", &mut found).is_ok() && found.is_empty()
}

/// Deletes removed files that nobody has open any more.
fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "lost+found" {
                sweep(&entry.path())?;
            }
        } else if entry.file_name().to_string_lossy().starts_with(REMOVED_WHILE_OPEN) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The largest number in a text.
fn largest_number(text: &str) -> u64 {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).max().unwrap_or(0)
}

/// All paths below `dir`, and whether each is a folder. Leaves out what file systems create at their root.
fn list(root: &Path, below: &str, found: &mut Vec<(String, bool)>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| io::Error::other(format!("{name:?}")))?;
        if below.is_empty() && name == "lost+found" || name.starts_with(REMOVED_WHILE_OPEN) {
            continue;
        }
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let folder = entry.file_type()?.is_dir();
        if folder {
            list(root, &path, found)?;
        }
        found.push((path, folder));
    }
    Ok(())
}

#[derive(Debug)]
enum Operation {
    Create(String),
    MakeFolder(String),
    Write(String, u64, usize),
    Read(String, u64, usize),
    SetLen(String, u64),
    Sync(String),
    Rename(String, String),
    Remove(String),
    RemoveFolder(String),
    Compare,
}

/// Does random operations in `folder` and updates its model; at the end everything is compared. Returns the number of operations.
///
/// # Errors
/// The first operation that fails, or the first difference from the model.
pub fn exercise_folder(folder: &mut Folder, plan: &Plan<'_>) -> Result<u64, Failure> {
    let mut log = Log::new(plan.seed);
    let mut random = Random::new(plan.seed);
    let mut last = (0, 0);
    while plan.goes_on(log.done) {
        let operation = some(folder, &mut random, plan.longest, &mut last);
        log.note(format!("{operation:?}"));
        carry_out(folder, &operation, &mut random).map_err(|what| log.failure(what))?;
    }
    log.note(format!("{:?}", Operation::Compare));
    folder.compare().map_err(|what| log.failure(what))?;
    Ok(log.done)
}

fn some(folder: &mut Folder, random: &mut Random, longest: usize, last: &mut (u64, usize)) -> Operation {
    let count =
        |folder: &Folder, folders| folder.entries.values().filter(|e| matches!(e, Entry::Folder) == folders).count();
    let (files, folders) = (count(folder, false), count(folder, true));
    let Some(file) = folder.pick(random, false) else { return Operation::Create(folder.new_path(random)) };
    let Some(Entry::File(contents)) = folder.entries.get(&file) else { unreachable!("a file was picked") };
    let len = contents.len() as u64;
    let full = folder.used() + LARGEST > folder.room || files >= FILES;
    match random.below(100) {
        _ if full && random.below(4) == 0 => Operation::Remove(file),
        0..=9 if files < FILES => Operation::Create(folder.new_path(random)),
        10..=12 if folders < FOLDERS => Operation::MakeFolder(folder.new_path(random)),
        13..=47 if !full => {
            *last = some_range(random, (len + longest as u64).min(LARGEST), longest, last);
            Operation::Write(file, last.0, last.1)
        }
        48..=79 if len > 0 => {
            *last = some_range(random, len, longest, last);
            Operation::Read(file, last.0, last.1)
        }
        80..=84 => Operation::SetLen(file, random.number() % (if full { len } else { (2 * len).min(LARGEST) } + 1)),
        85..=87 => Operation::Sync(file),
        88..=92 => {
            // Sometimes replaces another file.
            let other = if random.below(3) == 0 { folder.pick(random, false) } else { None };
            let to = other.unwrap_or_else(|| folder.new_path(random));
            Operation::Rename(file, to)
        }
        93..=96 => Operation::Remove(file),
        97..=98 => match folder.pick(random, true) {
            Some(path) if !folder.entries.keys().any(|p| p.starts_with(&format!("{path}/"))) => {
                Operation::RemoveFolder(path)
            }
            Some(path) => Operation::Rename(path, folder.new_path_at_top()),
            None => Operation::Sync(file),
        },
        99 if random.below(5) == 0 => Operation::Compare,
        _ => Operation::Sync(file),
    }
}

impl Folder {
    fn new_path_at_top(&mut self) -> String {
        self.names += 1;
        format!("moved folder {}", self.names)
    }

    fn contents(&mut self, path: &str) -> &mut Vec<u8> {
        match self.entries.get_mut(path) {
            Some(Entry::File(bytes)) => bytes,
            _ => unreachable!("operations name files that are there"),
        }
    }
}

fn carry_out(folder: &mut Folder, operation: &Operation, random: &mut Random) -> Result<(), String> {
    let at = |path: &str| folder.root.join(path);
    let opened = |path: &str| -> io::Result<File> { OpenOptions::new().read(true).write(true).open(at(path)) };
    let failed = |e: io::Error| e.to_string();
    match operation {
        Operation::Create(path) => {
            File::create_new(at(path)).map_err(failed)?;
            folder.entries.insert(path.clone(), Entry::File(Vec::new()));
        }
        Operation::MakeFolder(path) => {
            fs::create_dir(at(path)).map_err(failed)?;
            folder.entries.insert(path.clone(), Entry::Folder);
        }
        Operation::Write(path, offset, len) => {
            let data = random.bytes(*len);
            opened(path).and_then(|f| f.write_all_at(&data, *offset)).map_err(failed)?;
            let (offset, contents) = (*offset as usize, folder.contents(path));
            contents.resize(contents.len().max(offset + data.len()), 0);
            contents[offset..][..data.len()].copy_from_slice(&data);
        }
        Operation::Read(path, offset, len) => {
            let mut out = vec![0xee; *len];
            opened(path).and_then(|f| f.read_exact_at(&mut out, *offset)).map_err(failed)?;
            let expected = &folder.contents(path)[*offset as usize..][..*len];
            return difference(expected, &out, *offset).map_or(Ok(()), Err);
        }
        Operation::SetLen(path, len) => {
            opened(path).and_then(|f| f.set_len(*len)).map_err(failed)?;
            folder.contents(path).resize(*len as usize, 0);
        }
        Operation::Sync(path) => opened(path).and_then(|f| f.sync_all()).map_err(failed)?,
        Operation::Rename(from, to) => {
            fs::rename(at(from), at(to)).map_err(failed)?;
            folder.moved(from, to);
        }
        Operation::Remove(path) => {
            fs::remove_file(at(path)).map_err(failed)?;
            folder.entries.remove(path);
        }
        Operation::RemoveFolder(path) => {
            let mut removed = Ok(());
            // The folder may still contain a file that was just removed, or that only this process can remove.
            let _ = wait_until(PATIENCE, || {
                removed = fs::remove_dir(at(path));
                let not_empty = matches!(&removed, Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty);
                let again = not_empty && holds_removed(&at(path));
                if again {
                    // The file may disappear by itself in the meantime.
                    let _ = sweep(&at(path));
                }
                !again
            });
            removed.map_err(failed)?;
            folder.entries.remove(path);
        }
        Operation::Compare => return folder.compare(),
    }
    Ok(())
}

impl Folder {
    /// The model of a rename: a folder's contents move with it.
    fn moved(&mut self, from: &str, to: &str) {
        let inside = format!("{from}/");
        let all: Vec<String> = self.entries.keys().filter(|p| *p == from || p.starts_with(&inside)).cloned().collect();
        for path in all {
            let entry = self.entries.remove(&path).expect("it was listed");
            self.entries.insert(format!("{to}{}", &path[from.len()..]), entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_folder_passes_and_a_change_behind_the_back_is_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::empty(dir.path(), 16 << 20);
        exercise_folder(&mut folder, &Plan::operations(3, 4000)).unwrap_or_else(|f| panic!("{f}"));
        assert!(folder.entries.len() > 10, "{} files and folders", folder.entries.len());

        let copy = tempfile::tempdir().expect("a folder");
        folder.save(&copy.path().join("copy")).expect("it can be written");
        let mut folder = Folder::load(dir.path(), &copy.path().join("copy"), 16 << 20).expect("it can be read");
        assert_eq!(folder.compare(), Ok(()));
        exercise_folder(&mut folder, &Plan::operations(4, 500)).unwrap_or_else(|f| panic!("{f}"));

        fs::write(dir.path().join("stranger"), "").expect("a file");
        assert!(folder.compare().expect_err("one more").contains("stranger"));
        fs::remove_file(dir.path().join("stranger")).expect("it is there");
        assert_eq!(folder.compare(), Ok(()));
        let path = folder.entries.iter().find_map(|(p, e)| matches!(e, Entry::File(b) if !b.is_empty()).then_some(p));
        let path = path.expect("a file that is not empty").clone();
        folder.contents(&path)[0] ^= 1;
        assert!(folder.compare().expect_err("one bit").contains("1 wrong bytes"));
    }
}
