//! Trees of files to write, read and compare: which files there are follows from a shape, a size and a seed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};

use crate::measure::lab::Lab;
use crate::model::parameters::SECTOR;
use crate::model::random::Random;

/// Bytes of each call that reads or writes a file, as cp and tar make them or larger.
pub(super) const BLOCK: usize = 128 << 10;

/// The pass number that marks the contents of files.
const PASS: u64 = 1;

/// How large the files of a tree are.
pub(super) struct Shape {
    /// The percentage of files with a size between these, in bytes; each order of magnitude is equally frequent.
    pub sizes: &'static [(usize, u64, u64)],
    /// Files in a folder.
    pub per_folder: usize,
    /// Folders in a folder.
    pub folders: usize,
}

/// A file of a tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TreeFile {
    /// Below the folder of the tree.
    pub path: PathBuf,
    /// Bytes.
    pub len: u64,
    /// Where its contents begin in the lab's endless data. A whole number of sectors.
    pub from: u64,
}

impl Shape {
    /// Files of `total` bytes together, in the order in which they are written. No file has more than an eighth of it,
    /// so that a small tree is a tree, too.
    pub(super) fn tree(&self, total: u64, seed: u64) -> Vec<TreeFile> {
        let mut random = Random::new(seed);
        let (mut entries, mut left, mut from) = (Vec::new(), total, 0);
        while left > 0 {
            let len = self.size(&mut random).min(total.div_ceil(8)).min(left);
            entries.push(TreeFile { path: self.path(entries.len()), len, from });
            left -= len;
            from += len.next_multiple_of(SECTOR as u64);
        }
        entries
    }

    fn size(&self, random: &mut Random) -> u64 {
        let mut place = random.below(100);
        let class = self.sizes.iter().find(|(share, ..)| match place.checked_sub(*share) {
            Some(rest) => {
                place = rest;
                false
            }
            None => true,
        });
        let &(_, least, most) = class.expect("the shares are 100 in all");
        let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
        (least as f64 * (most as f64 / least as f64).powf(part)) as u64
    }

    fn path(&self, number: usize) -> PathBuf {
        let folder = number / self.per_folder;
        let (upper, lower) = (folder / self.folders, folder % self.folders);
        format!("part-{upper:03}/folder-{lower:03}/file-{number:06}.dat").into()
    }
}

/// The bytes of all files.
pub(super) fn bytes(tree: &[TreeFile]) -> u64 {
    tree.iter().map(|entry| entry.len).sum()
}

/// Writes the tree into `folder`, which does not have it yet.
pub(super) fn write(folder: &Path, tree: &[TreeFile], lab: &Lab) -> Result<()> {
    let mut there = BTreeSet::new();
    for entry in tree {
        lab.go_on()?;
        let path = folder.join(&entry.path);
        let parent = path.parent().unwrap_or(folder);
        if there.insert(parent.to_path_buf()) {
            fs::create_dir_all(parent).map_err(|e| Error::from(e).at(parent))?;
        }
        write_file(&path, entry, BLOCK, lab)?;
    }
    Ok(())
}

/// Writes one file, in calls of `block` bytes.
pub(super) fn write_file(path: &Path, entry: &TreeFile, block: usize, lab: &Lab) -> Result<()> {
    let failed = |e: io::Error| Error::from(e).at(path);
    let mut file = File::create(path).map_err(failed)?;
    in_blocks(entry, block, lab, |data| file.write_all(data).map_err(failed))
}

/// Reads every file of the tree, in calls of `block` bytes.
pub(super) fn read(folder: &Path, tree: &[TreeFile], block: usize, lab: &Lab) -> Result<()> {
    let mut buffer = vec![0; block];
    for entry in tree {
        let path = folder.join(&entry.path);
        let failed = |e: io::Error| Error::from(e).at(&path);
        let mut file = File::open(&path).map_err(failed)?;
        let mut len = 0;
        loop {
            lab.go_on()?;
            match file.read(&mut buffer).map_err(failed)? {
                0 => break,
                more => len += more as u64,
            }
        }
        if len != entry.len {
            return Err(differs(&path));
        }
    }
    Ok(())
}

/// Compares every file of the tree with what was written.
pub(super) fn compare(folder: &Path, tree: &[TreeFile], lab: &Lab) -> Result<()> {
    let mut buffer = vec![0; BLOCK];
    for entry in tree {
        let path = folder.join(&entry.path);
        let mut file = File::open(&path).map_err(|e| Error::from(e).at(&path))?;
        in_blocks(entry, BLOCK, lab, |data| {
            let got = &mut buffer[..data.len()];
            match file.read_exact(got) {
                Ok(()) if got == data => Ok(()),
                Err(e) if e.kind() != ErrorKind::UnexpectedEof => Err(Error::from(e).at(&path)),
                _ => Err(differs(&path)),
            }
        })?;
        if file.metadata().map_err(|e| Error::from(e).at(&path))?.len() != entry.len {
            return Err(differs(&path));
        }
    }
    Ok(())
}

/// Fails unless both files have the same contents.
pub(super) fn same(expected: &Path, made: &Path, lab: &Lab) -> Result<()> {
    let open = |path: &Path| File::open(path).map_err(|e| Error::from(e).at(path));
    let (left, right) = (open(expected)?, open(made)?);
    let (mut a, mut b) = (Vec::with_capacity(BLOCK), Vec::with_capacity(BLOCK));
    loop {
        lab.go_on()?;
        a.clear();
        b.clear();
        (&left).take(BLOCK as u64).read_to_end(&mut a).map_err(|e| Error::from(e).at(expected))?;
        (&right).take(BLOCK as u64).read_to_end(&mut b).map_err(|e| Error::from(e).at(made))?;
        if a != b {
            return Err(differs(made));
        }
        if a.is_empty() {
            return Ok(());
        }
    }
}

/// The error for a file with the wrong contents.
pub(super) fn differs(path: &Path) -> Error {
    Error::from(io::Error::other("the data read differ from what was written")).at(path)
}

/// Gives the contents of a file, piece by piece.
fn in_blocks(entry: &TreeFile, block: usize, lab: &Lab, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = vec![0; block.min((entry.len as usize).next_multiple_of(SECTOR))];
    let mut done = 0;
    while done < entry.len {
        lab.go_on()?;
        let len = (entry.len - done).min(block as u64) as usize;
        lab.data.fill(PASS, entry.from + done, &mut buffer[..len.next_multiple_of(SECTOR)]);
        each(&buffer[..len])?;
        done += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;

    const SHAPE: Shape =
        Shape { sizes: &[(60, 1 << 10, 16 << 10), (40, 16 << 10, 1 << 20)], per_folder: 4, folders: 3 };

    #[test]
    fn a_tree_follows_from_its_size_and_seed() {
        let tree = SHAPE.tree(10_000_000, 1);
        assert_eq!(bytes(&tree), 10_000_000);
        assert_eq!(tree, SHAPE.tree(10_000_000, 1));
        assert_ne!(tree, SHAPE.tree(10_000_000, 2));
        let small = tree.iter().filter(|e| e.len < 16 << 10).count() as f64 / tree.len() as f64;
        assert!((0.4..0.8).contains(&small), "{small} of {}", tree.len());
        assert!(tree.iter().all(|e| (1..=1 << 20).contains(&e.len) && e.from.is_multiple_of(512)));
        let paths: BTreeSet<_> = tree.iter().map(|e| &e.path).collect();
        assert_eq!(paths.len(), tree.len());
        assert_eq!(tree[13].path.to_str().unwrap(), "part-001/folder-000/file-000013.dat");
        assert!(SHAPE.tree(800, 1).len() >= 8);
        assert!(SHAPE.tree(0, 1).is_empty());
    }

    #[test]
    fn what_is_written_is_read_back_and_damage_is_found() {
        let (lab, folder) = (lab(), tempfile::tempdir().unwrap());
        let tree = SHAPE.tree(1_500_000, 3);
        write(folder.path(), &tree, &lab).unwrap();
        read(folder.path(), &tree, BLOCK, &lab).unwrap();
        compare(folder.path(), &tree, &lab).unwrap();
        let victim = tree.iter().max_by_key(|e| e.len).unwrap();
        let path = folder.path().join(&victim.path);
        let good = fs::read(&path).unwrap();
        assert_eq!(good.len() as u64, victim.len);

        let mut changed = good.clone();
        changed[good.len() / 2] ^= 1;
        for (bad, is_read) in [(changed, true), (good[1..].to_vec(), false), ([&good[..], b"x"].concat(), false)] {
            fs::write(&path, bad).unwrap();
            let error = compare(folder.path(), &tree, &lab).unwrap_err().to_string();
            assert!(
                error.contains("differ from what was written") && error.contains(path.to_str().unwrap()),
                "{error}"
            );
            assert_eq!(read(folder.path(), &tree, BLOCK, &lab).is_ok(), is_read);
        }
        fs::remove_file(&path).unwrap();
        assert!(read(folder.path(), &tree, BLOCK, &lab).is_err());
    }

    #[test]
    fn files_are_the_same_or_not() {
        let (lab, folder) = (lab(), tempfile::tempdir().unwrap());
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let mut data = vec![7; 2 * BLOCK];
        fs::write(&a, &data).unwrap();
        fs::write(&b, &data).unwrap();
        same(&a, &b, &lab).unwrap();
        fs::write(&b, &data[1..]).unwrap();
        assert!(same(&a, &b, &lab).is_err() && same(&b, &a, &lab).is_err());
        data[BLOCK] = 8;
        fs::write(&b, &data).unwrap();
        assert!(same(&a, &b, &lab).is_err());
    }

    #[test]
    fn it_ends_when_somebody_wants_that() {
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab { cancelled: || true, ..lab() };
        assert!(write(folder.path(), &SHAPE.tree(100_000, 1), &lab).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
