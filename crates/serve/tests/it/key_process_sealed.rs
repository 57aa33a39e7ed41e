//! Folders of sealed blocks, gocryptfs and Cryptomator, whose keys are in another process: the same trees as with keys in this one, the
//! same errors, and nothing that another process could not have.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use claviger_engine::file_formats::cryptomator::{self, CipherCombo};
use claviger_engine::file_formats::gocryptfs::{self, ContentCipher, NameEncryption, NewFolder};
use claviger_engine::key_process::folder::FolderKeyProcess;
use claviger_engine::key_process::{KeyProcess, PartAccess, StoredAccess};
use claviger_engine::opening::{Locked, Opened};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, NewNode, Setting, Tree, Use};
use claviger_engine::{Credential, Result, Secret, Unlock};
use claviger_serve::key_process::KeyClient;
use claviger_testkit::operations::{Model, Operation, apply, contents};
use claviger_testkit::random::Random;

use crate::isolated::{Open, opening, same};

const PASSPHRASE: &str = "a passphrase";

/// A kind of folder.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Gocryptfs(NewFolder),
    Cryptomator(CipherCombo),
}

impl Kind {
    /// Every cipher, and every form of names.
    fn all() -> Vec<Self> {
        let new = NewFolder { log_n: 10, ..NewFolder::default() };
        let gocryptfs = [
            new,
            NewFolder { cipher: ContentCipher::AesSiv, longest_name: Some(100), ..new },
            NewFolder { cipher: ContentCipher::XChaCha20Poly1305, names: NameEncryption::Deterministic, ..new },
            NewFolder { names: NameEncryption::None, ..new },
            NewFolder { hkdf: false, raw64: false, ..new },
            NewFolder { hkdf: false, cipher: ContentCipher::AesSiv, ..new },
        ];
        let cryptomator = [CipherCombo::SivGcm, CipherCombo::SivCtrMac];
        gocryptfs.map(Self::Gocryptfs).into_iter().chain(cryptomator.map(Self::Cryptomator)).collect()
    }

    fn create(&self, folder: &Path) {
        let (lower, passphrase, with) = (host(folder), secret(), Unlock::with(&[]));
        match self {
            Self::Gocryptfs(new) => gocryptfs::create(&*lower, &passphrase, new, &with),
            Self::Cryptomator(combo) => cryptomator::create(&*lower, &passphrase, *combo, &with),
        }
        .expect("created");
    }

    fn format(&self) -> &'static str {
        match self {
            Self::Gocryptfs(_) => "gocryptfs",
            Self::Cryptomator(_) => "Cryptomator",
        }
    }

    /// Bytes of plaintext in a block.
    fn block(&self) -> usize {
        match self {
            Self::Gocryptfs(_) => 4096,
            Self::Cryptomator(_) => 32 << 10,
        }
    }

    fn here(&self, lower: &Path) -> Open {
        let locked = opening(lower, self.format()).find().expect("found");
        Open::here(unlock(&locked).and_then(|open| open.files()).expect("unlocked").tree)
    }

    fn elsewhere(&self, lower: &Path, write: bool) -> Open {
        Open::elsewhere(lower, self.format(), unlock, write)
    }

    /// Cryptomator has no files with several names.
    fn takes(&self, step: &Operation) -> bool {
        matches!(self, Self::Gocryptfs(_)) || !matches!(step, Operation::AddName(..))
    }

    /// Something of everything.
    fn steps(&self, seed: u64) -> Vec<Operation> {
        let (mut random, mut model) = (Random::new(seed), Model::default());
        let mut all = vec![
            Operation::Folder("sub".into()),
            Operation::File("sub/big".into()),
            Operation::Write("sub/big".into(), 0, random.bytes(1_700_001)),
            Operation::Link("link".into(), "t".repeat(2900).into()),
            Operation::Folder("f".repeat(200).into()),
            Operation::File(format!("{}/{}", "f".repeat(200), "n".repeat(230)).into()),
        ];
        all.iter().for_each(|step| model.apply(step));
        while all.len() < 126 {
            let step = model.step(&mut random, self.block());
            if self.takes(&step) {
                model.apply(&step);
                all.push(step);
            }
        }
        all
    }
}

fn host(folder: &Path) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"))
}

fn secret() -> Secret {
    Secret::copy_from(PASSPHRASE.as_bytes())
}

fn unlock(locked: &Locked) -> Result<Opened> {
    locked.unlock(&Unlock::with(&[Credential::Passphrase(secret())]))
}

/// All files below a folder, the largest first.
fn stored(folder: &Path) -> Vec<PathBuf> {
    fn walk(folder: &Path, all: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("listed").map(|entry| entry.expect("an entry")) {
            match entry.file_type().expect("known").is_dir() {
                true => walk(&entry.path(), all),
                false => all.push(entry.path()),
            }
        }
    }
    let mut all = Vec::new();
    walk(folder, &mut all);
    all.sort_by_key(|path| std::cmp::Reverse(fs::symlink_metadata(path).expect("there").len()));
    all
}

fn carry_out(open: &Open, steps: &[Operation], what: &str) {
    for step in steps {
        apply(&open.tree, step).unwrap_or_else(|e| match step {
            Operation::Write(path, ..) | Operation::Append(path, _) => panic!("{what}, {}: {e}", path.display()),
            _ => panic!("{what}, {step:?}: {e}"),
        });
    }
}

#[test]
fn a_folder_of_sealed_blocks_whose_keys_are_elsewhere_is_the_same_folder() {
    for (seed, kind) in Kind::all().into_iter().enumerate() {
        let dir = tempfile::tempdir().expect("a folder");
        kind.create(dir.path());
        let (what, steps) = (format!("{kind:?}"), kind.steps(seed as u64));
        let (first, second) = steps.split_at(66);
        let (after_first, after_all) =
            (Model::default().after(first).listing(), Model::default().after(&steps).listing());
        let open = kind.elsewhere(dir.path(), true);
        carry_out(&open, first, &what);
        same(&after_first, &open.tree, &what);
        open.end();
        // With the keys in this process, and elsewhere again: what one has made the other continues with.
        let open = kind.here(dir.path());
        same(&after_first, &open.tree, &what);
        carry_out(&open, second, &what);
        open.end();
        let open = kind.elsewhere(dir.path(), true);
        same(&after_all, &open.tree, &what);
        assert!(open.tree.proven() && open.tree.warnings().is_empty(), "{what}: {:?}", open.tree.warnings());
        open.end();
    }
}

#[test]
fn attributes_that_one_process_sealed_the_other_opens() {
    let kind = Kind::all()[0];
    let dir = tempfile::tempdir().expect("a folder");
    kind.create(dir.path());
    let (name, value) = (OsStr::new("user.comment"), Random::new(1).bytes(1500));
    let open = kind.elsewhere(dir.path(), true);
    apply(&open.tree, &Operation::File("file".into())).expect("made");
    let file = HeldNode::find(&open.tree, "file".as_ref()).expect("there");
    open.tree.set_extended(file.node(), name, &value, Setting::Any).expect("set");
    drop(file);
    open.end();
    for isolated in [false, true] {
        let open = if isolated { kind.elsewhere(dir.path(), true) } else { kind.here(dir.path()) };
        let file = HeldNode::find(&open.tree, "file".as_ref()).expect("there");
        assert_eq!(open.tree.list_extended(file.node()).expect("listed"), [name]);
        assert_eq!(open.tree.extended(file.node(), name).expect("read"), Some(value.clone()));
        drop(file);
        open.end();
    }
}

/// What reading the big file, and its second block, gives: contents or an error.
fn outcomes(open: Open, block: usize) -> [std::result::Result<Vec<u8>, (ErrorKind, String)>; 2] {
    let kind_and_text = |e: io::Error| (e.kind(), e.to_string());
    let file = HeldNode::find(&open.tree, "big".as_ref()).expect("it is there");
    let mut second = vec![0; block];
    let read = open.tree.read_at(file.node(), block as u64, &mut second);
    let outcomes =
        [contents(&open.tree, file.node()).map_err(kind_and_text), read.map(|_| second).map_err(kind_and_text)];
    drop(file);
    open.end();
    outcomes
}

#[test]
fn damage_is_the_same_damage_with_keys_elsewhere() {
    for kind in Kind::all() {
        let dir = tempfile::tempdir().expect("a folder");
        kind.create(dir.path());
        let open = kind.elsewhere(dir.path(), true);
        carry_out(&open, &[Operation::File("big".into()), Operation::Write("big".into(), 0, vec![7; 400_000])], "big");
        open.end();
        let path = &stored(dir.path())[0];
        let good = fs::read(path).expect("read");
        let middle = good.len() / 2;
        let cut = |len: usize| good[..len].to_vec();
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        let mut damaged = 0;
        for (what, bytes) in [
            ("nothing", good.clone()),
            ("the header", changed(5)),
            ("a block", changed(middle)),
            ("the last tag", changed(good.len() - 1)),
            ("the end of the header", cut(10)),
            ("the end", cut(good.len() - 1)),
            ("the end of a block", cut(middle)),
        ] {
            fs::write(path, bytes).expect("written");
            let one = outcomes(kind.here(dir.path()), kind.block());
            let isolated = outcomes(kind.elsewhere(dir.path(), true), kind.block());
            assert_eq!(one, isolated, "{kind:?}, {what}");
            damaged += usize::from(one[0].is_err());
        }
        assert_eq!(damaged, 6, "{kind:?}");
    }
}

#[test]
fn a_key_process_that_may_not_write_seals_no_contents() {
    for kind in [Kind::all()[0], Kind::Cryptomator(CipherCombo::SivGcm)] {
        let dir = tempfile::tempdir().expect("a folder");
        kind.create(dir.path());
        let open = kind.elsewhere(dir.path(), true);
        carry_out(&open, &[Operation::File("file".into()), Operation::Write("file".into(), 0, vec![7; 9000])], "file");
        open.end();
        let read = || stored(dir.path()).into_iter().map(|path| fs::read(path).expect("read")).collect::<Vec<_>>();
        let before = read();
        let open = kind.elsewhere(dir.path(), false);
        apply(&open.tree, &Operation::Write("file".into(), 4096, vec![1; 4096])).expect_err("it is refused");
        assert!(read() == before, "{kind:?}: nothing has changed");
        let file = HeldNode::find(&open.tree, "file".as_ref()).expect("it is there");
        assert!(contents(&open.tree, file.node()).expect("read") == [7; 9000]);
        drop(file);
        open.end();
    }
}

#[test]
fn more_sealed_files_are_open_than_keys_are_loaded() {
    for kind in [Kind::all()[0], Kind::Cryptomator(CipherCombo::SivGcm)] {
        let dir = tempfile::tempdir().expect("a folder");
        kind.create(dir.path());
        let open = kind.elsewhere(dir.path(), true);
        let tree: &(dyn Tree + 'static) = &open.tree;
        let (new, usage) = (NewNode::default(), Use { read: true, write: true });
        let contents = |number: usize| [&number.to_le_bytes()[..], &[9; 5000]].concat();
        // More than the key process has numbers for. It learns which files are closed, and uses their numbers again.
        let nodes: Vec<_> = (0..2300)
            .map(|number| {
                let node = tree.create_open(tree.root(), format!("file {number}").as_ref(), &new, usage).expect("made");
                tree.write_at(node, 0, &contents(number)).expect("written");
                node
            })
            .collect();
        for (number, node) in nodes.into_iter().enumerate() {
            let mut bytes = vec![0; 5009];
            assert_eq!(tree.read_at(node, 0, &mut bytes).expect("read"), 5008);
            assert!(bytes[..5008] == contents(number), "{number}: the key of another file");
            tree.release(node).expect("closed");
            tree.forget(node, 1);
        }
        open.end();
    }
}

/// A key process that ends after it has sealed a number of times.
struct Ending {
    client: KeyClient,
    left: AtomicUsize,
}

impl Ending {
    fn lives(&self, seals: bool) -> io::Result<()> {
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(io::Error::other("the key process has exited"));
        }
        self.left.store(left - usize::from(seals), Ordering::SeqCst);
        Ok(())
    }
}

impl KeyProcess for Ending {
    fn decrypt(&self, _: u32, _: u64, _: &mut [u8], _: &mut PartAccess<'_>) -> io::Result<()> {
        panic!("there are no sectors")
    }

    fn encrypt(&self, _: u32, _: u64, _: &mut [u8], _: &mut PartAccess<'_>) -> io::Result<()> {
        panic!("there are no sectors")
    }

    fn decrypt_tagged(
        &self,
        file: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        self.lives(false)?;
        self.client.decrypt_tagged(file, into, out, tags, read)
    }

    fn encrypt_tagged(
        &self,
        file: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        self.lives(true)?;
        self.client.encrypt_tagged(file, into, data, tags, write)
    }
}

impl FolderKeyProcess for Ending {
    fn open(&self, sealed: &[u8]) -> io::Result<Option<u32>> {
        self.client.open(sealed)
    }

    fn create(&self) -> io::Result<(u32, Vec<u8>)> {
        self.client.create()
    }

    fn close(&self, file: u32) {
        self.client.close(file);
    }

    fn plain_name(&self, iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
        self.client.plain_name(iv, stored)
    }

    fn stored_name(&self, iv: &[u8], plain: &OsStr) -> io::Result<OsString> {
        self.client.stored_name(iv, plain)
    }

    fn place(&self, id: &[u8]) -> io::Result<Vec<u8>> {
        self.client.place(id)
    }
}

#[test]
fn a_key_process_that_ends_in_the_middle_of_a_write_costs_nothing_that_was_there() {
    for kind in [Kind::all()[0], Kind::Cryptomator(CipherCombo::SivGcm)] {
        let before = Random::new(5).bytes(kind.block() + 100);
        let grow = [
            Operation::Write("file".into(), before.len() as u64, vec![9; 500_000]),
            Operation::Write("file".into(), 700_000, vec![9; 5000]),
            Operation::Resize("file".into(), 900_000),
            Operation::Append("file".into(), vec![9; 10]),
        ];
        for step in grow {
            let mut failed = 0;
            for left in 0.. {
                let dir = tempfile::tempdir().expect("a folder");
                kind.create(dir.path());
                let open = kind.here(dir.path());
                let first = [Operation::File("file".into()), Operation::Write("file".into(), 0, before.clone())];
                carry_out(&open, &first, "file");
                open.end();
                let through =
                    |client| -> Arc<dyn FolderKeyProcess> { Arc::new(Ending { client, left: AtomicUsize::new(left) }) };
                let open = Open::elsewhere_through(dir.path(), kind.format(), unlock, true, through);
                let done = apply(&open.tree, &step).is_ok();
                open.end();
                let open = kind.here(dir.path());
                let file = HeldNode::find(&open.tree, "file".as_ref()).expect("it is there");
                let now = contents(&open.tree, file.node()).unwrap_or_else(|e| panic!("{kind:?}, {left}: {e}"));
                assert!(now.starts_with(&before), "{kind:?}, {left}");
                drop(file);
                open.end();
                if done {
                    break;
                }
                failed += 1;
            }
            assert!(failed > 0, "{kind:?}: it never ended too early");
        }
    }
}
