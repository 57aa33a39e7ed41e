//! The keys of a folder in another process: the same tree as with keys in this one, for who looks through it and for the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use claviger_engine::credential::FolderOptions;
use claviger_engine::opening::Locked;
use claviger_engine::trees::{HeldNode, NewNode, Tree, Use};
use claviger_engine::{Credential, Result, Secret, Unlock};
use claviger_testkit::ecryptfs::kernel::{self, Case, Lower, Mount};
use claviger_testkit::ecryptfs::maker::CIPHERS;
use claviger_testkit::operations::{Model, Operation, apply, differences};
use claviger_testkit::random::Random;

use crate::isolated::{Open, opening, same};

const PASSPHRASE: &str = "mount passphrase";
const FORMAT: &str = "eCryptfs";

fn here(lower: &Path, mount: &Mount<'_>) -> Result<Open> {
    let locked = opening(lower, FORMAT).find()?;
    Ok(Open::here(with(mount, |with| locked.unlock(with))?.files()?.tree))
}

/// With its keys in another thread.
fn elsewhere(lower: &Path, mount: &Mount<'_>, write: bool) -> Open {
    let (path, [passphrase, of_names, cipher]) =
        (lower.to_owned(), [mount.passphrase, mount.of_names.unwrap_or_default(), mount.cipher.0].map(String::from));
    let (key_bytes, options, named) = (mount.cipher.1, mount.options.to_owned(), mount.of_names.is_some());
    let unlock = move |locked: &Locked| {
        let mount = Mount {
            lower: Lower::Folder(&path),
            passphrase: &passphrase,
            of_names: named.then_some(&*of_names),
            cipher: (&cipher, key_bytes),
            options: &options,
        };
        with(&mount, |with| locked.unlock(with))
    };
    Open::elsewhere(lower, FORMAT, unlock, write)
}

fn with<T>(mount: &Mount<'_>, unlock: impl FnOnce(&Unlock<'_>) -> T) -> T {
    let given = [Credential::Passphrase(Secret::copy_from(mount.passphrase.as_bytes()))];
    let of_names = mount.of_names.filter(|names| *names != mount.passphrase).map(|n| Secret::copy_from(n.as_bytes()));
    let folder = FolderOptions {
        name_passphrase: of_names.as_ref(),
        clear_names: mount.of_names.is_none(),
        passthrough: mount.options.contains("passthrough"),
        metadata_in_attributes: mount.options.contains("xattr"),
        cipher: Some(mount.cipher.0),
        key_bytes: Some(mount.cipher.1),
        ..FolderOptions::default()
    };
    unlock(&Unlock { folder, ..Unlock::with(&given) })
}

/// Every cipher, with names of the same passphrase, of another one, and in clear, and headers at both places.
fn mounts(lowers: &[PathBuf]) -> Vec<Mount<'_>> {
    let of_names = [Some(PASSPHRASE), Some("another passphrase, for names"), None].into_iter().cycle();
    let options = ["", "", "ecryptfs_xattr_metadata", ""].into_iter().cycle();
    let each = lowers.iter().zip(CIPHERS).zip(of_names.zip(options));
    each.map(|((lower, cipher), (of_names, options))| Mount {
        lower: Lower::Folder(lower),
        passphrase: PASSPHRASE,
        of_names,
        cipher: *cipher,
        options,
    })
    .collect()
}

fn lowers(dir: &Path) -> Vec<PathBuf> {
    let all: Vec<_> = (0..CIPHERS.len()).map(|number| dir.join(number.to_string())).collect();
    all.iter().for_each(|folder| fs::create_dir(folder).expect("it is new"));
    all
}

/// Something of everything.
fn steps(seed: u64) -> Vec<Operation> {
    let (mut random, mut model) = (Random::new(seed), Model::default());
    let first = [
        Operation::Folder("sub".into()),
        Operation::File("sub/big".into()),
        Operation::Write("sub/big".into(), 0, random.bytes(700_001)),
        Operation::Link("link".into(), "t".repeat(2900).into()),
        Operation::File("n".repeat(143).into()),
    ];
    first.iter().for_each(|step| model.apply(step));
    let mut all = first.to_vec();
    for _ in 0..120 {
        let step = model.step(&mut random, 4096);
        model.apply(&step);
        all.push(step);
    }
    all
}

#[test]
fn a_folder_whose_keys_are_elsewhere_is_the_same_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let lowers = lowers(dir.path());
    for (seed, (mount, lower)) in mounts(&lowers).iter().zip(&lowers).enumerate() {
        let (what, steps) = (format!("{mount:?}"), steps(seed as u64));
        let (first, second) = steps.split_at(60);
        let (after_first, after_all) =
            (Model::default().after(first).listing(), Model::default().after(&steps).listing());
        let open = elsewhere(lower, mount, true);
        first.iter().for_each(|step| apply(&open.tree, step).unwrap_or_else(|e| panic!("{what}, {step:?}: {e}")));
        same(&after_first, &open.tree, &what);
        open.end();
        // With the keys in this process, and elsewhere again: what one has made the other continues with.
        let open = here(lower, mount).expect("it opens");
        same(&after_first, &open.tree, &what);
        second.iter().for_each(|step| apply(&open.tree, step).unwrap_or_else(|e| panic!("{what}, {step:?}: {e}")));
        let signatures = open.tree.signatures();
        open.end();
        let open = elsewhere(lower, mount, true);
        same(&after_all, &open.tree, &what);
        assert_eq!(open.tree.signatures(), signatures);
        assert!(open.tree.proven());
        open.end();
    }
}

#[test]
fn what_is_written_with_keys_elsewhere_the_kernel_reads_and_the_other_way_round() {
    let dir = tempfile::tempdir().expect("a folder");
    let lowers = lowers(dir.path());
    // In user-mode Linux a folder of the host has no extended attributes, and no files of several names.
    let mounts: Vec<_> = mounts(&lowers).into_iter().map(|mount| Mount { options: "", ..mount }).collect();
    let one_name = |step: &Operation| !matches!(step, Operation::AddName(..));
    let steps: Vec<Vec<_>> = (0..lowers.len() as u64)
        .map(|seed| {
            let (mut random, mut model, mut all) = (Random::new(100 + seed), Model::default(), Vec::new());
            while all.len() < 60 {
                let step = model.step(&mut random, 4096);
                if one_name(&step) {
                    model.apply(&step);
                    all.push(step);
                }
            }
            all
        })
        .collect();
    for ((mount, lower), steps) in mounts.iter().zip(&lowers).zip(&steps) {
        let open = elsewhere(lower, mount, true);
        steps[..30]
            .iter()
            .for_each(|step| apply(&open.tree, step).unwrap_or_else(|e| panic!("{mount:?}, {step:?}: {e}")));
        open.end();
    }
    let cases: Vec<_> =
        mounts.iter().zip(&steps).map(|(mount, steps)| Case { mount: *mount, operations: &steps[30..] }).collect();
    let Some(outcomes) = kernel::run(&cases, &[]) else { return };
    for (((mount, lower), steps), outcome) in mounts.iter().zip(&lowers).zip(&steps).zip(&outcomes) {
        let what = format!("{:?}, names {:?}", mount.cipher, mount.of_names);
        let expected = Model::default().after(steps).listing();
        assert_eq!(outcome.failed, [""; 0], "{what}");
        let seen = differences(&expected, &outcome.listing);
        assert!(seen.is_empty(), "the kernel, {what}:\n{}", seen.join("\n"));
        let open = elsewhere(lower, mount, true);
        same(&expected, &open.tree, &what);
        open.end();
    }
}

#[test]
fn more_files_are_open_than_keys_are_loaded() {
    let dir = tempfile::tempdir().expect("a folder");
    let lower = dir.path().to_owned();
    let lowers = [lower.clone()];
    let mount = mounts(&lowers)[0];
    let open = elsewhere(&lower, &mount, true);
    let tree: &(dyn Tree + 'static) = &open.tree;
    let (new, usage) = (NewNode::default(), Use { read: true, write: true });
    let contents = |number: u64, round: u8| [&number.to_le_bytes()[..], &[round; 5000]].concat();
    // Twice as many as the key process has numbers for. It learns which files are closed, and uses their numbers again.
    let nodes: Vec<_> = (0..4200_u64)
        .map(|number| {
            let node = tree.create_open(tree.root(), format!("file {number}").as_ref(), &new, usage).expect("made");
            tree.write_at(node, 0, &contents(number, 0)).expect("written");
            node
        })
        .collect();
    thread::scope(|scope| {
        for part in 0..4_u64 {
            let (nodes, contents) = (&nodes, &contents);
            scope.spawn(move || {
                let mut random = Random::new(part);
                for _ in 0..1500 {
                    let number = random.below(nodes.len() / 4) as u64 * 4 + part;
                    let mut bytes = vec![0; 5008];
                    assert_eq!(tree.read_at(nodes[number as usize], 0, &mut bytes).expect("read"), 5008);
                    let round = bytes[8];
                    assert!(bytes == contents(number, round), "{number}: the key of another file");
                    tree.write_at(nodes[number as usize], 0, &contents(number, round ^ 1)).expect("written");
                }
            });
        }
    });
    for node in nodes {
        tree.release(node).expect("closed");
        tree.forget(node, 1);
    }
    open.end();
    let open = here(&lower, &mount).expect("it opens");
    for number in 0..4200_u64 {
        let file = HeldNode::find(&open.tree, format!("file {number}").as_ref()).expect("it is there");
        let mut bytes = vec![0; 6000];
        let read = open.tree.read_at(file.node(), 0, &mut bytes).expect("read");
        assert!(bytes[..read] == contents(number, bytes[8]), "{number}");
    }
    open.end();
}

#[test]
fn a_key_process_that_may_not_write_encrypts_no_contents() {
    let dir = tempfile::tempdir().expect("a folder");
    let lowers = [dir.path().to_owned()];
    let mount = mounts(&lowers)[0];
    let open = elsewhere(&lowers[0], &mount, true);
    apply(&open.tree, &Operation::File("file".into())).expect("made");
    apply(&open.tree, &Operation::Write("file".into(), 0, vec![7; 9000])).expect("written");
    open.end();
    let open = elsewhere(&lowers[0], &mount, false);
    let stored = || {
        let all = fs::read_dir(dir.path()).expect("listed").map(|entry| fs::read(entry.expect("an entry").path()));
        all.collect::<std::io::Result<Vec<_>>>().expect("read")
    };
    let before = stored();
    for step in [Operation::Write("file".into(), 4096, vec![1; 4096]), Operation::File("new".into())] {
        apply(&open.tree, &step).expect_err("the process with the keys refuses it");
    }
    assert!(stored() == before, "nothing has changed, and nothing is new");
    let file = HeldNode::find(&open.tree, "file".as_ref()).expect("it is there");
    let mut bytes = vec![0; 9000];
    assert_eq!(open.tree.read_at(file.node(), 0, &mut bytes).expect("read"), 9000);
    assert!(bytes == [7; 9000]);
    drop(file);
    open.end();
}
