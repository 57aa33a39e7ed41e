//! The lab's facilities, tried as `claviger lab check` tries them: made, opened, written, closed, examined, opened again.

use std::fs;
use std::path::Path;

use crate::common::{Done, Folder, run};
use claviger_testkit::{mounts, tools};

/// Checks these with small volumes in `folder`.
fn check(folder: &Folder, size: &str, facilities: &[&str]) -> Done {
    let (stores, peers) = (folder.str(""), folder.str("peers"));
    let _ = fs::create_dir(&peers);
    run([&["lab", "check", "--json", "--size", size, "--dir", &stores, "--peers", &peers], facilities].concat())
}

/// Checks that a run has left nothing in the folder: nothing is mounted, and there is no store.
#[track_caller]
fn nothing_is_left(folder: &Folder) {
    let left: Vec<_> = fs::read_dir(folder.path("")).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("claviger-lab")), "{left:?}");
    assert!(mounts::mounted_below(&folder.path("")).is_empty());
}

/// All of them work, and those that encrypt do.
#[track_caller]
fn work(folder: &Folder, size: &str, facilities: &[&str], encrypted: bool) {
    let done = check(folder, size, facilities).succeeds().json();
    let works = done["works"].as_array().expect("a list");
    assert_eq!(works.len(), facilities.len(), "{done:#}");
    for trial in works {
        assert_eq!(trial["encrypted_at_rest"], encrypted, "{trial}");
    }
    nothing_is_left(folder);
}

fn fuse() -> Option<()> {
    tools::root()?;
    if Path::new("/dev/fuse").exists() { Some(()) } else { tools::skip("there is no /dev/fuse") }
}

#[test]
fn baselines_hold_what_was_written() {
    if fuse().is_none() {
        return;
    }
    work(&Folder::new(), "16M", &["plain", "plain-nbd", "plain-files", "folder", "loop", "ext4"], false);
}

#[test]
fn each_format_of_ours_is_encrypted() {
    if fuse().is_none() {
        return;
    }
    let ours = ["TrueCrypt", "VeraCrypt", "luks1", "LUKS2", "plain-format", "loop-AES", "LUKS2:hmac-sha256"];
    work(&Folder::new(), "16M", &ours, true);
    work(&Folder::new(), "16M", &["nbd/LUKS2", "nbd/VeraCrypt:AES-Twofish-Serpent"], true);
    let folders = ["files/eCryptfs", "files/eCryptfs:clear-names", "files/gocryptfs", "files/gocryptfs:AES-SIV"];
    work(&Folder::new(), "16M", &folders, true);
    work(&Folder::new(), "16M", &["files/Cryptomator", "files/Cryptomator:SIV_CTRMAC"], true);
}

#[test]
fn peers_that_are_installed_work() {
    for (program, facilities, encrypted) in [
        ("gocryptfs", &["gocryptfs", "gocryptfs:xchacha"][..], true),
        ("encfs", &["EncFS"], true),
        ("securefs", &["securefs"], true),
        ("ntfs-3g", &["ntfs-3g"], false),
        ("qemu-nbd", &["qemu-nbd", "qemu-nbd:LUKS"], true),
        ("nbdkit", &["nbdkit", "nbdkit:LUKS"], true),
        ("nbdkit", &["far/plain", "near/VeraCrypt", "far/LUKS2"], true),
    ] {
        if fuse().is_none() || tools::program(program).is_none() {
            continue;
        }
        let folder = Folder::new();
        let done = check(&folder, "16M", facilities).succeeds().json();
        let works = done["works"].as_array().expect("a list");
        assert_eq!(works.len(), facilities.len(), "{done:#}");
        let last = works.last().expect("several");
        assert_eq!(last["encrypted_at_rest"], encrypted, "{done:#}");
        nothing_is_left(&folder);
    }
}

/// A facility like a good one, except that one of its steps fails.
fn broken(step: &str) -> String {
    let fails = r#"run = ["sh", "-c", "echo this is why; exit 7", "{store}"]"#;
    let good = [
        ("create", r#"run = ["cp", "/dev/null", "{dir}/made"]"#),
        ("open", r#"run = ["mount", "-t", "tmpfs", "none", "{open}"]"#),
        ("close", r#"run = ["umount", "{open}"]"#),
    ];
    let mut text = format!(
        "name = \"broken-{step}\"\ntitle = \"x\"\nabout = \"x.\"\nstore = \"folder\"\ngives = \"folder\"\nopened = \"{{open}}\"\n"
    );
    for (name, run) in good {
        // Before it fails, the good one has done its work.
        text += &format!("[[{name}]]\n{run}\n");
        if name == step {
            text += &format!("[[{name}]]\n{fails}\n");
        }
    }
    text
}

#[test]
fn a_peer_that_fails_half_way_is_reported_and_leaves_nothing() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    fs::create_dir(folder.path("peers")).expect("a folder");
    let steps = ["create", "open", "close"];
    for step in steps {
        fs::write(folder.path(&format!("peers/{step}.toml")), broken(step)).expect("written");
    }
    let names = steps.map(|step| format!("broken-{step}"));
    let all = [&names.each_ref().map(String::as_str)[..], &["folder"]].concat();
    let done = check(&folder, "1M", &all).fails(6, &[]).json();
    let fails = done["fails"].as_array().expect("a list");
    assert_eq!(fails.len(), 3, "{done:#}");
    for (failed, name) in fails.iter().zip(&names) {
        let why = failed["why"].as_str().expect("text");
        assert_eq!(failed["facility"], **name);
        assert!(why.contains("sh -c echo this is why") && why.contains("exit status: 7"), "{why}");
        assert!(why.ends_with("this is why"), "{why}");
    }
    assert_eq!(done["works"][0]["facility"], "folder", "the others go on");
    nothing_is_left(&folder);
}

#[test]
fn what_is_missing_is_said() {
    let folder = Folder::new();
    fs::create_dir(folder.path("peers")).expect("a folder");
    let text = "name = \"absent\"\ntitle = \"x\"\nabout = \"x.\"\nstore = \"folder\"\ngives = \"folder\"\nopened = \"{open}\"\n\
                [needs]\n";
    for (need, why) in [
        ("commands = [\"no-such-program\"]", "The program no-such-program is not installed."),
        ("paths = [\"/no/such\"]", "It needs /no/such, which does not exist."),
        ("filesystems = [\"no-such-fs\"]", "The kernel does not support the file system no-such-fs."),
        ("probe = [\"sh\", \"-c\", \"echo out of order; exit 1\"]", "out of order"),
    ] {
        fs::write(folder.path("peers/absent.toml"), format!("{text}{need}\n")).expect("written");
        let done = check(&folder, "1M", &["absent"]).succeeds().json();
        let said = done["left_out"][0]["why"].as_str().expect("text");
        assert!(said.contains(why), "{said}");
    }
    check(&folder, "1M", &["folderr"]).fails(1, &["there is no facility called folderr", "Did you mean folder?"]);
}
