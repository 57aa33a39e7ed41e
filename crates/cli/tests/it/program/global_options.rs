//! The options that every verb takes, in front of verbs that start the program again: a mount in the background, a process with the keys.

use std::fs;

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::*;
use crate::serving::key_process::ISOLATED;

/// Each with a value, as one word and as two.
const GLOBAL: &[&[&str]] = &[
    &["--ask", "nobody"],
    &["--ask=nobody"],
    &["--progress", "none"],
    &["--timeout", "30s"],
    &["--reconnect", "0s"],
    &["--connections=2"],
    &["--ask", "nobody", "--progress=none", "--timeout=30s", "--reconnect=0s", "--connections", "2"],
];

#[test]
fn a_mount_takes_each_in_front() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, dir) = (place.ext4("v.tc"), place.dir("d"));
    for (i, global) in GLOBAL.iter().enumerate() {
        let isolated: &[&str] = if i == 0 { &[ISOLATED] } else { &[] };
        let password = ["--hash=SHA-512", "--password-file", &place.folder.password];
        place.run([*global, &["mount"], isolated, &password, &[&volume, &dir]].concat()).succeeds();
        assert!(place.mounted(&dir), "{global:?}");
        place.unmount(&dir).succeeds();
    }
    // The option is still obeyed: nobody is asked, and the other process says so.
    let refused = place.run(["--ask", "nobody", "mount", &volume, &dir]);
    assert!(refused.code == 1 && !refused.err.contains("unexpected"), "{refused:?}");
    assert!(!place.mounted(&dir));
}

#[test]
fn what_is_attached_takes_each_in_front() {
    let Some(place) = MountSpace::root() else { return };
    let (volume, dir) = (place.ext4("v.tc"), place.dir("d"));
    let (table, list) = (place.folder.str("crypttab"), place.folder.str("favourites.toml"));
    fs::write(&table, format!("line {volume} {} tcrypt\nasks {volume} none tcrypt\n", place.folder.password))
        .expect("a table");
    let favourite = |name: &str, options: &str| {
        format!("[{name}]\nvolume = \"{volume}\"\ndir = \"{dir}\"\noptions = [\"--hash=SHA-512\"{options}]\n")
    };
    let password = format!(", \"--password-file={}\"", place.folder.password);
    let own = format!("{password}, \"--ask=terminal\", \"--timeout=9s\"");
    fs::write(&list, favourite("fav", &password) + &favourite("own", &own) + &favourite("asks", "")).expect("a list");
    let all = GLOBAL[GLOBAL.len() - 1];
    let attach = |name: &str| place.run([all, &["attach", "--crypttab", &table, "--favourites", &list, name]].concat());
    for name in ["line", "fav", "own"] {
        attach(name).succeeds();
        place.unmount(&volume).succeeds();
    }
    let refused = attach("asks");
    assert!(refused.code == 1 && !refused.err.contains("unexpected"), "{refused:?}");
}

#[test]
fn processes_with_keys_take_each_in_front() {
    let folder = Folder::new();
    let (volume, password) = (folder.luks2("v.luks"), &folder.password);
    for global in GLOBAL {
        let serve = ["serve", ISOLATED, "--run", "true", "--password-file", password, &volume];
        run([*global, &serve[..]].concat()).succeeds();
    }
    let all = GLOBAL[GLOBAL.len() - 1];
    let copy = folder.str("copy");
    let convert = ["convert", ISOLATED, "--raw", "--password-file", password, &volume, &copy];
    run([all, &convert].concat()).succeeds();
    let reencrypt = ["reencrypt", ISOLATED, "--yes", "--password-file", password, &volume];
    run([all, &reencrypt].concat()).succeeds();

    let served = Served::start([ISOLATED, "--password-file", password, "--socket", &folder.str("s"), &volume]);
    run([all, &["lock", &volume]].concat()).succeeds();
    run([all, &["unlock", "--password-file", password, &volume]].concat()).succeeds();
    wait_until("it is open", || {
        let list = run(["list", "--json"]).succeeds().json();
        list["volumes"].as_array().is_some_and(|all| all.iter().any(|v| v["volume"] == volume && v["locked"] == false))
    });
    served.stop().succeeds();
}

#[test]
fn an_empty_list_is_said_to_be_empty() {
    let folder = Folder::new();
    let list = |more: &[&str]| {
        let runtime = folder.path("runtime");
        done(claviger().arg("list").args(more).env("CLAVIGER_RUNTIME_DIR", runtime).output().expect("it starts"))
    };
    let Done { out, err, .. } = list(&[]).succeeds();
    assert!(out.is_empty() && err.contains("no volumes mounted or served"), "{err}");
    let json = list(&["--json"]).succeeds();
    assert!(json.err.is_empty() && json.json()["volumes"].as_array().is_some_and(Vec::is_empty), "{}", json.err);
}

/// A command to paste has the option for it where it is one, after whatever stood in front.
#[test]
fn what_was_interrupted_goes_on_with_the_same_words() {
    let folder = Folder::new();
    let (volume, copy) = (folder.luks2("v.luks"), folder.str("a copy"));
    fs::write(folder.path("a copy.part"), "begun").expect("a file");
    let args = ["--ask", "nobody", "convert", "--raw", "--password-file", &folder.password, "--", &volume, &copy];
    run(args).fails(1, &["an earlier conversion", "rm -- '"]);
}
