//! How much memory many open files take. This test is alone in its process, whose whole memory is measured.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use claviger_engine::file_formats::{self, Stacked};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{NewNode, Node, Tree, Use};
use claviger_engine::{Credential, Secret, Unlock};
use claviger_testkit::tools;

/// More than three times as many as stay loaded, so that the others are most of it. Each takes two descriptors.
const FILES: usize = 3500;

/// The most memory per open file that was read, in bytes. It takes about half of that. When all stayed loaded, it took three times
/// as much.
const MOST: usize = 1100;

/// Bytes of this process that are in memory (proc_pid_status(5)), locked ones included.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

fn open(folder: &Path) -> Stacked {
    let credentials = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
    let lower = Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("a folder"));
    file_formats::open(lower, Some("eCryptfs"), &Unlock::with(&credentials)).expect("it opens")
}

fn name(number: usize) -> String {
    format!("file {number}")
}

/// Looks all files up, opens them and reads a little of each.
fn use_all(tree: &Stacked) -> Vec<Node> {
    let one = |number: usize| {
        let file = tree.lookup(tree.root(), OsStr::new(&name(number))).expect("found");
        tree.open(file, Use { read: true, write: false }).expect("it opens");
        let mut out = [0; 64];
        let len = tree.read_at(file, 0, &mut out).expect("read");
        assert!(out[..len] == *name(number).as_bytes(), "{number}");
        file
    };
    (0..FILES).map(one).collect()
}

fn give_all_back(tree: &Stacked, files: Vec<Node>) {
    for file in files {
        tree.release(file).expect("released");
        tree.forget(file, 1);
    }
}

#[test]
fn many_open_files_take_little_and_leave_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let tree = open(dir.path());
    let limit = fs::read_to_string("/proc/self/limits").expect("it is there");
    let limit = limit.lines().find(|line| line.starts_with("Max open files")).expect("it is listed");
    let limit = limit.split_whitespace().nth(3).expect("a number").parse().unwrap_or(usize::MAX);
    if limit < 2 * FILES + 100 {
        let _: Option<()> = tools::skip("too few files may be open here");
        return;
    }
    for number in 0..FILES {
        let file = tree.create(tree.root(), OsStr::new(&name(number)), &NewNode::default()).expect("created");
        tree.write_at(file, 0, name(number).as_bytes()).expect("written");
        tree.forget(file, 1);
    }
    drop(tree);
    let tree = open(dir.path());
    let before = resident();
    let files = use_all(&tree);
    let each = resident().saturating_sub(before) / FILES;
    eprintln!("{each} bytes for each open file");
    assert!(each <= MOST, "{each} bytes for each open file");
    give_all_back(&tree, files);
    let after = resident();
    // Memory of returned files is reused.
    for _ in 0..3 {
        give_all_back(&tree, use_all(&tree));
    }
    let more = resident().saturating_sub(after) / FILES;
    assert!(more <= MOST / 4, "{more} bytes for each file that was given back, in three rounds");
}
