//! Concurrent random operations in one folder. Each thread has its own folder with a model of its contents. Sometimes
//! all threads use one folder, where only properties independent of the order can be checked.
//!
//! Based on the idea of fsstress (Silicon Graphics, 1990s). The operations in the threads' own folders depend only on the seed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{CWD, RenameFlags, XattrFlags, getxattr, removexattr, renameat_with, setxattr, statvfs};
use rustix::io::Errno;

use crate::fsx::{Log, difference, some_range};
use crate::random::Random;

/// Maximum size of a file and of a write, in bytes.
const LARGEST: u64 = 256 << 10;
const LONGEST: usize = 64 << 10;

/// Maximum number of a thread's entries (files, folders and links), and of files that it holds open.
const ENTRIES: usize = 60;
const HELD: usize = 6;

/// Names of extended attributes.
const ATTRIBUTES: [&str; 3] = ["user.one", "user.two", "user.three"];

/// Errors that are allowed when several threads work in one folder.
#[rustfmt::skip]
const ALLOWED: [Errno; 10] = [
    Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::NOTDIR, Errno::ISDIR, Errno::INVAL, Errno::LOOP,
    Errno::PERM, Errno::NODATA, Errno::NXIO,
];

/// Does `operations` on each of `threads` in new folders below `folder`, compares the result with the models, and
/// removes the folders.
///
/// # Errors
/// All failures and differences from the models, with the seed and the last operations of that thread.
pub fn run(folder: &Path, seed: u64, operations: u64, threads: usize) -> Result<(), String> {
    let said = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
    let top = folder.join(format!("stress-{}-{seed}", std::process::id()));
    let shared = top.join("shared");
    fs::create_dir(&top).and_then(|()| fs::create_dir(&shared)).map_err(|e| said(&top, e))?;
    let worker = |number: usize| {
        let own = top.join(format!("own-{number}"));
        fs::create_dir(&own).map_err(|e| said(&own, e))?;
        let mut log = Log::new(seed);
        let done = work(&own, &shared, seed.wrapping_add(number as u64 * 0x9e37), operations, &mut log);
        done.map_err(|what| format!("thread {number}: {}", log.failure(what)))
    };
    let failures: Vec<String> = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
        let ended = all.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        ended.filter_map(Result::err).collect()
    });
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    // Nobody changes anything any more, so everything listed must exist.
    walk(&shared, &mut |_, _| Ok(()))?;
    fs::remove_dir_all(&top).map_err(|e| said(&top, e))
}

fn work(own: &Path, shared: &Path, seed: u64, operations: u64, log: &mut Log) -> Result<(), String> {
    let mut random = Random::new(seed);
    // A separate generator: other threads must not influence the operations in this folder.
    let mut elsewhere = Random::new(!seed);
    let mut model = Model::new(own);
    for _ in 0..operations {
        if random.below(5) == 0 {
            in_shared(shared, &mut elsewhere, log)?;
        } else {
            model.step(&mut random, log)?;
        }
    }
    log.note("compare everything".into());
    model.held.clear();
    model.compare()
}

/// The expected contents of a folder.
struct Model {
    root: PathBuf,
    /// Paths below the root, parents before their children.
    entries: BTreeMap<String, Entry>,
    /// Contents by number, including files without a name that are still open.
    files: BTreeMap<u64, Content>,
    held: Vec<(u64, File)>,
    attributes: bool,
    last: u64,
    /// Maximum length of a name, in bytes.
    longest: usize,
    range: (u64, usize),
}

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Folder(u32),
    File(u64),
    Link(String),
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
    attributes: BTreeMap<&'static str, Vec<u8>>,
}

impl Model {
    fn new(root: &Path) -> Self {
        let attributes = setxattr(root, "user.probe", b"", XattrFlags::empty()) != Err(Errno::OPNOTSUPP);
        let _ = removexattr(root, "user.probe");
        let root = root.to_owned();
        let (entries, files) = (BTreeMap::new(), BTreeMap::new());
        let longest = statvfs(&root).map_or(255, |of| of.f_namemax as usize);
        Self { root, entries, files, held: Vec::new(), attributes, last: 0, longest, range: (0, 0) }
    }

    /// A random path whose entry satisfies `kind`.
    fn pick(&self, random: &mut Random, kind: impl Fn(&Entry) -> bool) -> Option<String> {
        let all: Vec<_> = self.entries.iter().filter(|(_, e)| kind(e)).map(|(path, _)| path).collect();
        (!all.is_empty()).then(|| random.choose(&all).to_string())
    }

    /// An unused path in an existing folder.
    fn new_path(&mut self, random: &mut Random) -> String {
        self.last += 1;
        let name = match random.below(3) {
            0 => format!("{}-{:.2$}", self.last, "long ".repeat(45), self.longest - 10),
            1 => format!("{} ключ", self.last),
            _ => self.last.to_string(),
        };
        let parent = if random.below(3) == 0 { None } else { self.pick(random, |e| matches!(e, Entry::Folder(_))) };
        parent.map_or(name.clone(), |folder| format!("{folder}/{name}"))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Does one operation, and updates the model.
    fn step(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let file = self.pick(random, |e| matches!(e, Entry::File(_)));
        let full = self.entries.len() >= ENTRIES;
        let (Some(file), choice) = (file, random.below(100)) else { return self.create(random, log) };
        match choice {
            0..=8 if !full => self.create(random, log),
            9..=12 if !full => self.make_folder(random, log),
            13..=15 if !full => self.make_symlink(random, log),
            16..=19 if !full => self.make_link(&file, random, log),
            20..=39 => self.write(&file, random, log),
            40..=54 => self.read(&file, random, log),
            55..=59 => self.cut(&file, random, log),
            60..=67 => self.rename(random, log),
            68..=70 => self.exchange(random, log),
            71..=75 => self.chmod(random, log),
            76..=81 if self.attributes => self.attribute(&file, random, log),
            82..=86 => self.list(random, log),
            87..=88 => {
                log.note(format!("fsync {file}"));
                File::open(self.at(&file)).and_then(|f| f.sync_all()).map_err(|e| e.to_string())
            }
            89..=92 => self.hold(&file, random, log),
            _ => self.remove(random, log),
        }
    }

    fn create(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let path = self.new_path(random);
        log.note(format!("create {path}"));
        let file = File::create_new(self.at(&path)).map_err(said)?;
        file.set_permissions(Permissions::from_mode(0o644)).map_err(said)?;
        self.files.insert(self.last, Content { mode: 0o644, ..Content::default() });
        self.entries.insert(path, Entry::File(self.last));
        Ok(())
    }

    fn make_folder(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let path = self.new_path(random);
        log.note(format!("mkdir {path}"));
        fs::create_dir(self.at(&path)).map_err(said)?;
        fs::set_permissions(self.at(&path), Permissions::from_mode(0o755)).map_err(said)?;
        self.entries.insert(path, Entry::Folder(0o755));
        Ok(())
    }

    fn make_symlink(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let (path, target) = (self.new_path(random), "to/".repeat(random.below(60)) + "x");
        log.note(format!("symlink {target} {path}"));
        symlink(&target, self.at(&path)).map_err(said)?;
        self.entries.insert(path, Entry::Link(target));
        Ok(())
    }

    fn make_link(&mut self, file: &str, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let path = self.new_path(random);
        log.note(format!("link {file} {path}"));
        fs::hard_link(self.at(file), self.at(&path)).map_err(said)?;
        self.entries.insert(path, self.entries[file].clone());
        Ok(())
    }

    /// Opens a file by its name, or sometimes uses one that is already held open. Returns its expected content.
    fn opened(&mut self, file: &str, random: &mut Random) -> Result<(File, &mut Content), String> {
        let held = if self.held.is_empty() { None } else { Some(random.below(3 * self.held.len())) };
        let (number, opened) = match held.and_then(|i| self.held.get(i)) {
            Some((number, opened)) => (*number, opened.try_clone().map_err(said)?),
            None => {
                let Entry::File(number) = self.entries[file] else { unreachable!("a file was picked") };
                (number, OpenOptions::new().read(true).write(true).open(self.at(file)).map_err(said)?)
            }
        };
        Ok((opened, self.files.get_mut(&number).expect("held and named ones have contents")))
    }

    fn write(&mut self, file: &str, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let mut range = self.range;
        let (opened, content) = self.opened(file, random)?;
        range = some_range(random, (content.bytes.len() as u64 + LONGEST as u64).min(LARGEST), LONGEST, &range);
        let (offset, data) = (range.0 as usize, random.bytes(range.1));
        log.note(format!("write {range:?} {file} or one that is open"));
        opened.write_all_at(&data, range.0).map_err(said)?;
        content.bytes.resize(content.bytes.len().max(offset + data.len()), 0);
        content.bytes[offset..][..data.len()].copy_from_slice(&data);
        self.range = range;
        Ok(())
    }

    fn read(&mut self, file: &str, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let (opened, content) = self.opened(file, random)?;
        let len = content.bytes.len();
        let offset = random.below(len + 1);
        let mut out = vec![0xee; random.below(LONGEST)];
        log.note(format!("read {} from {offset} {file} or one that is open", out.len()));
        let mut done = 0;
        while done < out.len() {
            match opened.read_at(&mut out[done..], (offset + done) as u64).map_err(said)? {
                0 => break,
                n => done += n,
            }
        }
        let expected = &content.bytes[offset..len.min(offset + out.len())];
        difference(expected, &out[..done], offset as u64).map_or(Ok(()), Err)
    }

    fn cut(&mut self, file: &str, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let (opened, content) = self.opened(file, random)?;
        let len = random.below((2 * content.bytes.len()).min(LARGEST as usize) + 1);
        log.note(format!("truncate {len} {file} or one that is open"));
        opened.set_len(len as u64).map_err(said)?;
        content.bytes.resize(len, 0);
        Ok(())
    }

    fn rename(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let Some(from) = self.pick(random, |_| true) else { return Ok(()) };
        let is_folder = matches!(self.entries[&from], Entry::Folder(_));
        // Sometimes replaces an existing entry, but never a folder that is not empty, and never moves a folder into itself.
        let over = self.pick(random, |e| matches!(e, Entry::Folder(_)) == is_folder).filter(|_| random.below(3) == 0);
        let to = over.unwrap_or_else(|| self.new_path(random));
        log.note(format!("rename {from} {to}"));
        let expected = self.refusal_of_rename(&from, &to);
        let seen = renameat_with(CWD, self.at(&from), CWD, self.at(&to), RenameFlags::empty());
        // Two errors are possible for a full folder (rename(2)).
        let other_word = expected == Some(Errno::NOTEMPTY) && seen == Err(Errno::EXIST);
        if seen.err() != expected && !other_word {
            return Err(format!("{seen:?} instead of {expected:?}"));
        }
        // Two names of one file stay as they are (rename(2)).
        let one_file =
            matches!(self.entries[&from], Entry::File(_)) && self.entries.get(&to) == self.entries.get(&from);
        if expected.is_none() && !one_file {
            self.moved(&from, &to);
        }
        Ok(())
    }

    fn refusal_of_rename(&self, from: &str, to: &str) -> Option<Errno> {
        let full = |path: &str| self.entries.keys().any(|p| p.starts_with(&format!("{path}/")));
        match () {
            () if from == to => None,
            () if to.starts_with(&format!("{from}/")) => Some(Errno::INVAL),
            () if matches!(self.entries.get(to), Some(Entry::Folder(_))) && full(to) => Some(Errno::NOTEMPTY),
            () => None,
        }
    }

    fn moved(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        let inside = format!("{from}/");
        let all: Vec<_> = self.entries.keys().filter(|p| *p == from || p.starts_with(&inside)).cloned().collect();
        for path in all {
            let entry = self.entries.remove(&path).expect("it was listed");
            self.entries.insert(format!("{to}{}", &path[from.len()..]), entry);
        }
        self.forget();
    }

    /// Removes contents that have no name and are not open.
    fn forget(&mut self) {
        let (entries, held) = (&self.entries, &self.held);
        self.files.retain(|number, _| {
            held.iter().any(|(n, _)| n == number) || entries.values().any(|e| *e == Entry::File(*number))
        });
    }

    fn exchange(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let kind = |e: &Entry| !matches!(e, Entry::Folder(_));
        let (Some(one), Some(other)) = (self.pick(random, kind), self.pick(random, kind)) else { return Ok(()) };
        log.note(format!("exchange {one} {other}"));
        match renameat_with(CWD, self.at(&one), CWD, self.at(&other), RenameFlags::EXCHANGE) {
            // Not every file system supports this.
            Err(Errno::INVAL | Errno::NOSYS) => return Ok(()),
            done => done.map_err(|e| said(e.into()))?,
        }
        let (first, second) = (self.entries[&one].clone(), self.entries[&other].clone());
        self.entries.insert(other, first);
        self.entries.insert(one, second);
        Ok(())
    }

    fn chmod(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let Some(path) = self.pick(random, |e| !matches!(e, Entry::Link(_))) else { return Ok(()) };
        // The owner always keeps access.
        let mode = 0o700 | random.below(0o100) as u32;
        log.note(format!("chmod {mode:o} {path}"));
        fs::set_permissions(self.at(&path), Permissions::from_mode(mode)).map_err(said)?;
        match self.entries.get_mut(&path).expect("it was picked") {
            Entry::Folder(old) => *old = mode,
            Entry::File(number) => self.files.get_mut(number).expect("it has a name").mode = mode,
            Entry::Link(_) => unreachable!("links were left out"),
        }
        Ok(())
    }

    fn attribute(&mut self, file: &str, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let (name, value) = (*random.choose(&ATTRIBUTES), random.below(100));
        let value = random.bytes(value);
        let Entry::File(number) = self.entries[file] else { unreachable!("a file was picked") };
        let path = self.at(file);
        let attributes = &mut self.files.get_mut(&number).expect("it has a name").attributes;
        if random.below(3) == 0 {
            log.note(format!("remove {name} of {file}"));
            let expected = attributes.remove(name).map(|_| ()).ok_or(Errno::NODATA);
            let seen = removexattr(path, name);
            return if seen == expected { Ok(()) } else { Err(format!("{seen:?} instead of {expected:?}")) };
        }
        log.note(format!("set {name} of {file}, {} bytes", value.len()));
        setxattr(path, name, &value, XattrFlags::empty()).map_err(|e| said(e.into()))?;
        attributes.insert(name, value);
        Ok(())
    }

    fn list(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let folder = self.pick(random, |e| matches!(e, Entry::Folder(_)));
        log.note(format!("list {folder:?}"));
        let mut found = fs::read_dir(folder.as_ref().map_or(self.root.clone(), |f| self.at(f)))
            .and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>())
            .map_err(said)?;
        found.sort();
        let inside = folder.map_or(String::new(), |f| format!("{f}/"));
        let below = self.entries.keys().filter_map(|p| p.strip_prefix(&inside));
        let mut expected: Vec<OsString> = below.filter(|p| !p.contains('/')).map(OsString::from).collect();
        expected.sort();
        if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
    }

    /// Opens a file, which may lose its names while open, or closes one.
    fn hold(&mut self, file: &str, random: &mut Random, log: &mut Log) -> Result<(), String> {
        if self.held.len() >= HELD {
            let (number, _) = self.held.swap_remove(random.below(HELD));
            log.note(format!("close number {number}"));
            self.forget();
            return Ok(());
        }
        log.note(format!("open {file}"));
        let Entry::File(number) = self.entries[file] else { unreachable!("a file was picked") };
        let opened = OpenOptions::new().read(true).write(true).open(self.at(file)).map_err(said)?;
        self.held.push((number, opened));
        Ok(())
    }

    fn remove(&mut self, random: &mut Random, log: &mut Log) -> Result<(), String> {
        let Some(path) = self.pick(random, |_| true) else { return Ok(()) };
        log.note(format!("remove {path}"));
        let full = self.entries.keys().any(|p| p.starts_with(&format!("{path}/")));
        if matches!(self.entries[&path], Entry::Folder(_)) {
            match (fs::remove_dir(self.at(&path)), full) {
                (Err(e), true) if e.kind() == io::ErrorKind::DirectoryNotEmpty => return Ok(()),
                (Ok(()), true) => return Err("a folder that is not empty was removed".into()),
                (done, _) => done.map_err(said)?,
            }
        } else {
            fs::remove_file(self.at(&path)).map_err(said)?;
        }
        self.entries.remove(&path);
        self.forget();
        Ok(())
    }

    /// Compares everything: names, kinds, contents, modes, links, link counts, attributes.
    fn compare(&self) -> Result<(), String> {
        let mut found = Vec::new();
        walk(&self.root, &mut |path, _| {
            let below = path.strip_prefix(&self.root).map_err(|e| e.to_string())?;
            found.push(below.to_str().ok_or("a name that is no text")?.to_owned());
            Ok(())
        })?;
        found.sort();
        let expected: Vec<_> = self.entries.keys().cloned().collect();
        if found != expected {
            return Err(format!("there is {found:?} instead of {expected:?}"));
        }
        self.entries.iter().try_for_each(|(path, entry)| {
            let inside = self.compare_one(&self.at(path), entry);
            inside.map_err(|what| format!("{path}: {what}"))
        })
    }

    fn compare_one(&self, path: &Path, entry: &Entry) -> Result<(), String> {
        let metadata = path.symlink_metadata().map_err(said)?;
        let mode = metadata.permissions().mode() & 0o7777;
        match entry {
            Entry::Folder(expected) => same("folder and mode", &(metadata.is_dir(), mode), &(true, *expected)),
            Entry::Link(target) => same("target", &fs::read_link(path).map_err(said)?, &PathBuf::from(target)),
            Entry::File(number) => {
                let content = &self.files[number];
                let links = self.entries.values().filter(|e| *e == entry).count() as u64;
                let (seen, expected) = ((metadata.nlink(), mode, metadata.len()), content.bytes.len() as u64);
                same("number of links, mode and size", &seen, &(links, content.mode, expected))?;
                let bytes = fs::read(path).map_err(said)?;
                difference(&content.bytes, &bytes, 0).map_or(Ok(()), Err)?;
                let attributes = if self.attributes { ATTRIBUTES.as_slice() } else { &[] };
                attributes.iter().try_for_each(|name| {
                    let mut value = [0; 128];
                    let seen = getxattr(path, *name, &mut value[..]).map(|len| value[..len].to_vec());
                    same(name, &seen, &content.attributes.get(name).cloned().ok_or(Errno::NODATA))
                })
            }
        }
    }
}

fn said(error: io::Error) -> String {
    error.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?} instead of {expected:?}")) }
}

/// Calls `each` with everything below a folder.
fn walk(dir: &Path, each: &mut dyn FnMut(&Path, &fs::Metadata) -> Result<(), String>) -> Result<(), String> {
    let failed = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
    for entry in fs::read_dir(dir).map_err(|e| failed(dir, e))? {
        let path = entry.map_err(|e| failed(dir, e))?.path();
        let metadata = path.symlink_metadata().map_err(|e| failed(&path, e))?;
        each(&path, &metadata)?;
        if metadata.is_dir() {
            walk(&path, each)?;
        }
    }
    Ok(())
}

/// An operation on names that all threads use.
fn in_shared(shared: &Path, random: &mut Random, log: &mut Log) -> Result<(), String> {
    let mut some = || {
        let name = *random.choose(&["a", "b", "c", "d", "e", "f"]);
        if random.below(2) == 0 { shared.join(name) } else { shared.join(random.choose(&["x", "y", "z"])).join(name) }
    };
    let (one, other) = (some(), some());
    let folder = shared.join(random.choose(&["x", "y", "z"]));
    let choice = random.below(14);
    log.note(format!("shared operation {choice}: {} {}", one.display(), other.display()));
    let opened = |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let done = match choice {
        0 | 1 => opened(&one).and_then(|f| f.write_all_at(&[7; 4096], 4096 * random.below(4) as u64)),
        2 => opened(&one).and_then(|f| f.set_len(random.below(8192) as u64)),
        3 => fs::read(&one).map(drop),
        4 | 5 => fs::create_dir(&folder),
        6 => fs::remove_dir(&folder),
        7 => fs::remove_file(&one),
        8 => fs::rename(&one, &other),
        9 => fs::hard_link(&one, &other),
        10 => symlink(other.file_name().unwrap_or_default(), &one),
        11 => fs::read_dir(&folder).and_then(|mut all| all.try_for_each(|entry| entry.map(drop))),
        12 => fs::set_permissions(&one, Permissions::from_mode(0o755)),
        _ => one.symlink_metadata().map(drop),
    };
    match done {
        Err(e) if !Errno::from_io_error(&e).is_some_and(|errno| ALLOWED.contains(&errno)) => Err(said(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_folder_passes_and_what_is_changed_behind_the_back_is_found() {
        let dir = tempfile::tempdir().expect("a folder");
        run(dir.path(), 1, 3000, 3).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0, "it removes what it made");

        let (mut model, mut random, mut log) = (Model::new(dir.path()), Random::new(2), Log::new(2));
        (0..1500).try_for_each(|_| model.step(&mut random, &mut log)).unwrap_or_else(|e| panic!("{}", log.failure(e)));
        assert_eq!(model.compare(), Ok(()));
        let file = model.pick(&mut random, |e| matches!(e, Entry::File(_))).expect("a file");
        let path = model.at(&file);
        let said = |what: &str| assert!(model.compare().expect_err(what).contains(what), "{:?}", model.compare());

        fs::hard_link(&path, dir.path().join("stranger")).expect("a link");
        said("stranger");
        fs::remove_file(dir.path().join("stranger")).expect("it is there");
        let old = fs::read(&path).expect("it is readable");
        let mut changed = old.clone();
        changed.push(1);
        fs::write(&path, changed).expect("it is writable");
        said("size");
        fs::write(&path, old).expect("it is writable");
        assert_eq!(model.compare(), Ok(()));
        fs::set_permissions(&path, Permissions::from_mode(0o4700)).expect("it is ours");
        said("mode");
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let listed = |seed| {
            let dir = tempfile::tempdir().expect("a folder");
            let (mut model, mut random, mut log) = (Model::new(dir.path()), Random::new(seed), Log::new(seed));
            (0..500).try_for_each(|_| model.step(&mut random, &mut log)).unwrap_or_else(|e| panic!("{e}"));
            let sizes = model.files.values().map(|f| f.bytes.len()).sum::<usize>();
            (model.entries.keys().cloned().collect::<Vec<_>>(), sizes)
        };
        assert_eq!(listed(5), listed(5));
        assert_ne!(listed(5), listed(6));
    }
}
