//! The process that serves a FAT or exFAT mount is killed at random moments. No fsck repairs anything in between: the next mount shows
//! what a kill has left. No two names share clusters, nothing that was synced is lost, and a change of one file changes no other.
//! A few kills here; `make torture` continues for as long as `ENDURE` says, in seconds. `CLAVIGER_SEED` repeats a run, as far as moments
//! can be repeated.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, chown};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use claviger_testkit::mounts::{mounted_on, sparse_file};
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::common::mounts::{MountSpace, USER, wait_until};

struct Kind {
    name: &'static str,
    mkfs: &'static [&'static str],
}

/// From many clusters in a file to few, in 64 MiB.
const FAT12: Kind = Kind { name: "FAT12", mkfs: &["mkfs.vfat", "-F", "12", "-s", "64"] };
const FAT16: Kind = Kind { name: "FAT16", mkfs: &["mkfs.vfat", "-F", "16", "-s", "4"] };
const FAT32: Kind = Kind { name: "FAT32", mkfs: &["mkfs.vfat", "-F", "32", "-s", "1"] };
const EXFAT: Kind = Kind { name: "exFAT", mkfs: &["mkfs.exfat", "-c", "4K"] };
const IMAGE: u64 = 64 << 20;

/// Kills of a short run.
const FEW: u64 = 6;

/// Files are written, and changed in length, by whole blocks. Each block names its file and its place in it.
const BLOCK: usize = 512;
const MAGIC: u32 = 0x00fa_7fa7;

/// Where files are, and what they are called: short names, long ones, and those whose entries fill more than a sector.
const FOLDERS: [&str; 4] = ["", "a", "b", "a/deep folder with a name"];
const STEMS: [&str; 4] = ["f", "file with a long name and more ", "doc", "LONG"];
const NUMBERS: usize = 12;
/// `LONG` in a name.
const LONG: usize = 200;

/// More files than `MOST` are thinned out by `THINNED`.
const MOST: usize = 60;
const THINNED: usize = 40;

/// Blocks of a file that takes the clusters that others have given up.
const FILLER: usize = 4000;

#[test]
fn a_fat12_keeps_what_was_synced_when_its_server_is_killed() {
    killed_a_few_times(&FAT12);
}

#[test]
fn a_fat16_keeps_what_was_synced_when_its_server_is_killed() {
    killed_a_few_times(&FAT16);
}

#[test]
fn a_fat32_keeps_what_was_synced_when_its_server_is_killed() {
    killed_a_few_times(&FAT32);
}

#[test]
fn an_exfat_keeps_what_was_synced_when_its_server_is_killed() {
    killed_a_few_times(&EXFAT);
}

fn killed_a_few_times(kind: &Kind) {
    if let Some(place) = MountSpace::user() {
        killed_again_and_again(kind, place, seed(1), |kills| kills < FEW);
    }
}

#[test]
#[ignore = "takes as long as ENDURE says: make torture"]
fn torture_fat_kills() {
    let seconds: u64 = env::var("ENDURE").map_or(600, |seconds| seconds.parse().expect("a number of seconds"));
    let seed = seed(SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()));
    let kinds = [FAT12, FAT16, FAT32, EXFAT];
    for kind in &kinds {
        let Some(place) = MountSpace::user().map(MountSpace::without_a_deadline) else { return };
        let end = Instant::now() + Duration::from_secs(seconds) / kinds.len() as u32;
        killed_again_and_again(kind, place, seed, |kills| kills < FEW || Instant::now() < end);
    }
}

fn seed(usual: u64) -> u64 {
    env::var("CLAVIGER_SEED").map_or(usual, |text| text.parse().expect("CLAVIGER_SEED is a number"))
}

fn killed_again_and_again(kind: &Kind, place: MountSpace, seed: u64, goes_on: impl Fn(u64) -> bool) {
    let Some(mut torture) = Torture::new(kind, place, seed) else { return };
    while goes_on(torture.figures.kills) {
        torture.mount();
        torture.judge();
        if torture.work.full {
            torture.begin_anew();
        }
        torture.change_one();
        torture.kill_at_work();
    }
    torture.mount();
    torture.judge();
    torture.place.unmount(&torture.dir).succeeds();
    println!("torture_fat_kills: {}, CLAVIGER_SEED={seed}: {:?}", kind.name, torture.figures);
}

/// The figures of a run.
#[derive(Debug, Default)]
struct Figures {
    kills: u64,
    operations: u64,
    /// Files that were read after a kill, and those of them that had to be there.
    read: usize,
    kept: usize,
    /// How often the file system was full, and was made anew.
    full: u64,
}

struct Torture<'a> {
    kind: &'a Kind,
    mkfs: PathBuf,
    seed: u64,
    /// A user's: the kernel's own drivers mount root's.
    place: MountSpace,
    image: String,
    dir: String,
    server: Option<Pid>,
    random: Random,
    work: Work,
    figures: Figures,
}

impl<'a> Torture<'a> {
    fn new(kind: &'a Kind, place: MountSpace, seed: u64) -> Option<Self> {
        let mkfs = tools::program(kind.mkfs[0])?;
        let (image, dir) = (place.folder.str("image"), place.dir("d"));
        let work = Work {
            dir: dir.clone().into(),
            random: Random::new(seed),
            last: 0,
            files: Files::new(),
            synced: BTreeMap::new(),
            full: false,
        };
        let (random, figures) = (Random::new(!seed), Figures::default());
        let torture = Self { kind, mkfs, seed, place, image, dir, server: None, random, work, figures };
        torture.make();
        Some(torture)
    }

    fn make(&self) {
        let image = Path::new(&self.image);
        sparse_file(image, IMAGE);
        tools::run(Command::new(&self.mkfs).args(&self.kind.mkfs[1..]).arg(image));
        chown(image, Some(USER), Some(USER)).expect("root may");
    }

    /// Kills leave clusters that no file has. Without fsck they add up.
    fn begin_anew(&mut self) {
        self.place.unmount(&self.dir).succeeds();
        fs::remove_file(&self.image).expect("root may");
        self.make();
        self.work.files.clear();
        self.work.synced.clear();
        self.work.full = false;
        self.figures.full += 1;
        self.mount();
    }

    /// Mounts what the last kill has left. It can be written.
    fn mount(&mut self) {
        let report = self.place.run(["mount", "--json", "--raw", &self.image, &self.dir]);
        assert_eq!(report.code, 0, "{}: it does not mount: {}", self.when(), report.err);
        let report = report.json();
        let mounted = mounted_on(Path::new(&self.dir));
        let mounted = mounted.unwrap_or_else(|| panic!("{}: nothing is mounted: {report}", self.when()));
        assert_eq!(mounted.kind, "fuse.claviger", "{}: another driver serves it", self.when());
        let writable = mounted.options.split(',').any(|option| option == "rw");
        let writable = writable && report["read_only"] == false;
        assert!(writable, "{}: read-only ({}): {}", self.when(), mounted.options, report["warnings"]);
        let pid = report["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
        self.server = Some(pid.unwrap_or_else(|| panic!("{}: no process serves it: {report}", self.when())));
    }

    fn judge(&mut self) {
        let work = &mut self.work;
        let (read, kept) = as_user(|| work.judge()).unwrap_or_else(|what| panic!("{}: {what}", self.when()));
        self.figures.read += read;
        self.figures.kept += kept;
    }

    fn change_one(&mut self) {
        let work = &mut self.work;
        let changed = as_user(|| work.change_one().and_then(|()| work.thin_out()));
        changed.unwrap_or_else(|what| panic!("{}: {what}", self.when()));
    }

    /// Kills the server amid the work of another thread.
    fn kill_at_work(&mut self) {
        let operations = *self.random.choose(&[2, 10, 60]);
        let operations = self.random.below(operations) as u64;
        let longest = *self.random.choose(&[20_000, 100_000, 1_000_000]);
        let then = Duration::from_micros(self.random.below(longest) as u64);
        let (done, killed) = (AtomicU64::new(0), AtomicBool::new(false));
        let (work, server) = (&mut self.work, self.server.take().expect("it is mounted"));
        let (e, early) = thread::scope(|scope| {
            let at_work = scope.spawn(|| as_user(|| work.until_it_fails(&done, &killed)));
            let begun = Instant::now();
            while done.load(Ordering::Relaxed) < operations
                && begun.elapsed() < Duration::from_secs(20)
                && !at_work.is_finished()
            {
                thread::sleep(Duration::from_millis(2));
            }
            thread::sleep(then);
            killed.store(true, Ordering::SeqCst);
            // One that has died by itself makes the work fail early, which is judged below.
            let _ = kill_process(server, Signal::KILL);
            at_work.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        let failed = if early { self.work.unless_full(Err(e)) } else { Ok(()) };
        failed.unwrap_or_else(|e| panic!("{}: the work failed before the kill: {e}", self.when()));
        self.figures.kills += 1;
        self.figures.operations += done.into_inner();
        wait_until("it is dead", || self.place.list().first().is_none_or(|one| one["state"] == "dead"));
        self.place.unmount(&self.dir).succeeds();
    }

    fn when(&self) -> String {
        format!("{}, CLAVIGER_SEED={}, after {} kills", self.kind.name, self.seed, self.figures.kills)
    }
}

/// Runs it in a thread of the user who mounts: others, even root, do not get in.
fn as_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let thread = || {
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        set_thread_groups(&[]).expect("root may");
        set_thread_res_gid(group, group, group).expect("root may");
        set_thread_res_uid(user, user, user).expect("root may");
        work()
    };
    thread::scope(|scope| scope.spawn(thread).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Files by their paths.
type Files<T = Vec<u8>> = BTreeMap<PathBuf, T>;

/// What the user does, and the files that must therefore exist.
struct Work {
    dir: PathBuf,
    random: Random,
    /// The last number of a file that was given. A file that is written anew gets another.
    last: u32,
    /// The contents of the files when they were checked.
    files: Files,
    /// How many blocks of each file must be there, under any name.
    synced: BTreeMap<u32, usize>,
    full: bool,
}

impl Work {
    /// Reads everything: no blocks of a file are in another, and what must be there is. How many files were read, and had to be there.
    fn judge(&mut self) -> Result<(usize, usize), String> {
        self.files = read_below(&self.dir)?;
        let found = owners(&self.files)?;
        let kept = self.synced.len();
        for (file, blocks) in &self.synced {
            let path = found.get(file).ok_or_else(|| format!("file {file} was synced, and no name has it"))?;
            let bytes = &self.files[*path];
            if !bytes.starts_with(&content(*file, *blocks)) {
                let whole = whole_blocks(*file, bytes);
                return Err(format!(
                    "{}: {blocks} blocks of file {file} were synced, {whole} are left",
                    path.display()
                ));
            }
        }
        // What a new mount shows is on the disk.
        self.synced = found.into_iter().map(|(file, path)| (file, whole_blocks(file, &self.files[path]))).collect();
        Ok((self.files.len(), kept))
    }

    /// Changes one file, and lets another take the clusters that it gave up. All other files must stay unchanged.
    fn change_one(&mut self) -> Result<(), String> {
        let paths: Vec<_> = self.files.keys().cloned().collect();
        let filler = self.dir.join("filler");
        let victim = if paths.is_empty() { filler.clone() } else { self.random.choose(&paths).clone() };
        for path in [&victim, &filler] {
            self.give_up(path);
        }
        let how = self.random.below(3);
        let changed = match how {
            _ if paths.is_empty() => Ok(()),
            0 => fs::remove_file(&victim),
            1 => File::options().write(true).truncate(true).open(&victim).map(drop),
            _ => {
                let blocks = 1 + self.random.below(149);
                fs::write(&victim, content(self.number(), blocks))
            }
        };
        let how = ["removed", "emptied", "replaced"][how];
        self.unless_full(changed).map_err(|e| format!("{} cannot be {how}: {e}", victim.display()))?;
        let filled = write_synced(&filler, &content(self.number(), FILLER));
        self.unless_full(filled).map_err(|e| format!("the filler cannot be written: {e}"))?;
        let now = read_below(&self.dir)?;
        for (path, bytes) in self.files.iter().filter(|(path, _)| **path != victim && **path != filler) {
            if now.get(path) != Some(bytes) {
                return Err(format!("{} changed when {} was {how}", path.display(), victim.display()));
            }
        }
        if !now.contains_key(&filler) && self.full {
            return Ok(());
        }
        fs::remove_file(&filler).map_err(|e| format!("the filler cannot be removed: {e}"))
    }

    /// That the file system is full is no fault, but is remembered.
    fn unless_full(&mut self, done: io::Result<()>) -> io::Result<()> {
        match done {
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                self.full = true;
                Ok(())
            }
            done => done,
        }
    }

    /// Removes some of many files, and those without contents, which could not be told apart.
    fn thin_out(&mut self) -> Result<(), String> {
        self.files = read_below(&self.dir)?;
        let surplus = if self.files.len() > MOST { THINNED } else { 0 };
        let paths: Vec<_> = self.files.keys().cloned().collect();
        for (number, path) in paths.iter().enumerate() {
            if number < surplus || file_in(&self.files[path])?.is_none() {
                self.give_up(path);
                self.files.remove(path);
                fs::remove_file(path).map_err(|e| format!("{} cannot be removed: {e}", path.display()))?;
            }
        }
        Ok(())
    }

    /// From now on, the file at this path may be missing.
    fn give_up(&mut self, path: &Path) {
        if let Some(Ok(Some(file))) = self.files.get(path).map(|bytes| file_in(bytes)) {
            self.synced.remove(&file);
        }
    }

    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Changes files until that fails. Returns the error, and whether that was before any kill.
    fn until_it_fails(&mut self, done: &AtomicU64, killed: &AtomicBool) -> (io::Error, bool) {
        let files = self.files.iter().filter_map(|(path, bytes)| Some((path.clone(), file_in(bytes).ok()??)));
        let mut names: Files<u32> = files.collect();
        loop {
            if let Err(e) = self.operation(&mut names) {
                return (e, !killed.load(Ordering::SeqCst));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn operation(&mut self, names: &mut Files<u32>) -> io::Result<()> {
        let to = self.some_path();
        fs::create_dir_all(to.parent().expect("it is in a folder"))?;
        let which = self.random.below(100);
        if which < 35 || names.len() < 3 {
            return self.save(names, &to);
        }
        let paths: Vec<_> = names.keys().cloned().collect();
        let path = self.random.choose(&paths);
        match which {
            35..60 => self.rename(names, path, &to),
            60..70 => self.remove(names, path),
            70..80 => self.cut(path, names[path]),
            80..90 => self.append(path, names[path]),
            _ => self.overwrite(names, path),
        }
    }

    fn some_path(&mut self) -> PathBuf {
        let folder = self.dir.join(self.random.choose(&FOLDERS));
        let stem = self.random.choose(&STEMS).replace("LONG", &"x".repeat(LONG));
        folder.join(format!("{stem}{}", self.random.below(NUMBERS)))
    }

    /// Saves as programs do, under a temporary name first, and half the time synced.
    fn save(&mut self, names: &mut Files<u32>, to: &Path) -> io::Result<()> {
        let (file, blocks) = (self.number(), 1 + self.random.below(199));
        let temporary = to.with_file_name(format!("tmp{file}"));
        if self.random.below(2) == 0 {
            write_synced(&temporary, &content(file, blocks))?;
            self.synced.insert(file, blocks);
        } else {
            fs::write(&temporary, content(file, blocks))?;
        }
        names.insert(temporary.clone(), file);
        self.rename(names, &temporary, to)
    }

    fn rename(&mut self, names: &mut Files<u32>, from: &Path, to: &Path) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        if let Some(replaced) = names.get(to) {
            self.synced.remove(replaced);
        }
        fs::rename(from, to)?;
        let file = names.remove(from).expect("it has a number");
        names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, names: &mut Files<u32>, path: &Path) -> io::Result<()> {
        let file = names.remove(path).expect("it has a number");
        self.synced.remove(&file);
        fs::remove_file(path)
    }

    /// Makes it shorter, or longer by zeros.
    fn cut(&mut self, path: &Path, file: u32) -> io::Result<()> {
        self.synced.remove(&file);
        let blocks = self.random.below(60);
        File::options().write(true).open(path)?.set_len((blocks * BLOCK) as u64)
    }

    fn append(&mut self, path: &Path, file: u32) -> io::Result<()> {
        let opened = File::options().write(true).open(path)?;
        let first = opened.metadata()?.len() as usize / BLOCK;
        let blocks = first..first + 1 + self.random.below(79);
        let bytes = blocks.map(|index| block(file, index)).collect::<Vec<_>>().concat();
        opened.write_all_at(&bytes, (first * BLOCK) as u64)
    }

    /// Saves as careless programs do, in place.
    fn overwrite(&mut self, names: &mut Files<u32>, path: &Path) -> io::Result<()> {
        let (file, blocks) = (self.number(), 1 + self.random.below(99));
        let old = names.insert(path.to_owned(), file).expect("it has a number");
        self.synced.remove(&old);
        fs::write(path, content(file, blocks))
    }
}

fn block(file: u32, index: usize) -> [u8; BLOCK] {
    let unit = u128::from(MAGIC) | u128::from(file) << 32 | (index as u128) << 64;
    let mut block = [0; BLOCK];
    block.chunks_exact_mut(16).for_each(|part| part.copy_from_slice(&unit.to_le_bytes()));
    block
}

fn content(file: u32, blocks: usize) -> Vec<u8> {
    (0..blocks).map(|index| block(file, index)).collect::<Vec<_>>().concat()
}

/// How many blocks of the file these bytes begin with.
fn whole_blocks(file: u32, bytes: &[u8]) -> usize {
    bytes.chunks(BLOCK).enumerate().take_while(|(index, part)| *part == block(file, *index)).count()
}

/// Which file these bytes are of: all blocks are of the same one and in their places, or zeros.
fn file_in(bytes: &[u8]) -> Result<Option<u32>, String> {
    let mut found = None;
    for (index, part) in bytes.chunks(BLOCK).enumerate().filter(|(_, part)| part.iter().any(|byte| *byte != 0)) {
        let file = part.get(4..8).map_or(0, |number| u32::from_le_bytes(number.try_into().expect("four bytes")));
        if part != block(file, index) {
            return Err(format!("block {index} was never written there: {:02x?}", &part[..part.len().min(16)]));
        }
        match found.replace(file) {
            Some(other) if other != file => return Err(format!("block {index} is of file {file}, others of {other}")),
            _ => {}
        }
    }
    Ok(found)
}

/// Which path has which file.
fn owners(files: &Files) -> Result<BTreeMap<u32, &PathBuf>, String> {
    let mut owners = BTreeMap::new();
    for (path, bytes) in files {
        let file = file_in(bytes).map_err(|what| format!("{}: {what}", path.display()))?;
        if let Some(file) = file
            && let Some(other) = owners.insert(file, path)
        {
            return Err(format!("{} and {} both have file {file}", other.display(), path.display()));
        }
    }
    Ok(owners)
}

fn read_below(folder: &Path) -> Result<Files, String> {
    let failed = |path: &Path, e: io::Error| format!("{} cannot be read: {e}", path.display());
    let mut files = Files::new();
    for entry in fs::read_dir(folder).map_err(|e| failed(folder, e))? {
        let entry = entry.map_err(|e| failed(folder, e))?;
        let path = entry.path();
        if entry.file_type().map_err(|e| failed(&path, e))?.is_dir() {
            files.append(&mut read_below(&path)?);
        } else {
            let bytes = fs::read(&path).map_err(|e| failed(&path, e))?;
            files.insert(path, bytes);
        }
    }
    Ok(files)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::create(path)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}
