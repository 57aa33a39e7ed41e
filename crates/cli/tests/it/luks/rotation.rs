//! The guide's script that changes the passphrase of many volumes.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::common::mounts::wait_until;
use crate::common::*;
use claviger_testkit::tools;
use rustix::process::{Pid, Signal, kill_process_group};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/rotate.sh");

/// The program, which stays for ever once it has changed the third volume.
const STUCK: &str = r#"#!/bin/sh
"$REAL" "$@"; code=$?
case "$*" in *v3) touch "$0.here"; sleep 600 ;; esac
exit $code
"#;

fn rotate(folder: &Folder, program: &str) -> Command {
    let mut command = Command::new("sh");
    command.args([SCRIPT, "-j", "1"]).args(["list", "journal", "password", "new"].map(|name| folder.str(name)));
    command.args(["--kdf", "pbkdf2", "--iterations", "1000"]).stdin(Stdio::null());
    command.env("CLAVIGER", program).env("REAL", env!("CARGO_BIN_EXE_claviger"));
    command
}

/// Killed when one volume is changed and not in the journal; a line of the journal is torn; one volume opens with neither passphrase.
#[test]
fn the_passphrase_of_many_volumes_is_changed_whatever_ends_the_script() {
    if ["flock", "xargs", "awk"].into_iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let folder = Folder::new();
    let volumes: Vec<String> = (1..=6).map(|n| folder.luks2(&format!("a volume, v{n}"))).collect();
    // One is in use all the time.
    let serve = ["--password-file", &folder.password, "--socket", &folder.str("socket"), &volumes[1]];
    let served = Served::start(serve);
    let (foreign, new, journal) = (folder.luks2("foreign"), folder.str("new"), folder.path("journal"));
    fs::write(&new, "another").expect("a password file");
    fs::write(folder.path("third"), "the third").expect("a password file");
    let opens = |file: &str, path: &str| run(["keyslot", "test", "--password-file", file, path]).code;
    let change = ["keyslot", "change", "--kdf", "pbkdf2", "--iterations", "1000", "--password-file", &folder.password];
    run(change.into_iter().chain(["--new-password-file", &folder.str("third"), &foreign])).succeeds();
    let list = format!("# of this test\n\n{foreign}\n{}\n{}\n", volumes.join("\n"), volumes[0]);
    fs::write(folder.path("list"), list).expect("a list");

    let stuck = folder.str("stuck");
    fs::write(&stuck, STUCK).expect("a script");
    tools::run(Command::new("chmod").args(["+x", &stuck]));
    let mut child = rotate(&folder, &stuck).process_group(0).stderr(Stdio::null()).spawn().expect("it starts");
    let here = folder.path("stuck.here");
    wait_until("the third is changed", || here.exists());
    kill_process_group(Pid::from_child(&child), Signal::KILL).expect("it runs");
    child.wait().expect("it has ended");
    let written = fs::read_to_string(&journal).expect("a journal");
    assert_eq!(written, format!("{}\tdone\n{}\tdone\n", volumes[0], volumes[1]));
    assert_eq!([&volumes[2], &volumes[3]].map(|path| opens(&new, path)), [0, 2]);

    fs::write(&journal, written + &volumes[4]).expect("a torn line");
    let real = env!("CARGO_BIN_EXE_claviger");
    let left = done(rotate(&folder, real).output().expect("it ends"));
    let left = left.fails(1, &["foreign: LUKS2", &format!("Not changed:\n{foreign}\n")]);
    assert!(volumes.iter().all(|path| !left.err.contains(path.as_str())), "{}", left.err);
    for path in &volumes {
        assert_eq!([opens(&new, path), opens(&folder.password, path)], [0, 2], "{path}");
        run(["verify", "--password-file", &new, path]).succeeds();
    }
    assert_eq!(opens(&folder.str("third"), &foreign), 0);

    fs::write(folder.path("list"), volumes.join("\n")).expect("a list");
    fs::rename(here, folder.path("gone")).expect("it was there");
    assert_eq!(done(rotate(&folder, &stuck).output().expect("it ends")).succeeds().err, "");
    assert!(!folder.path("stuck.here").exists(), "what was done is done again");
    served.stop().succeeds();
}
