//! Man pages, completions, and the pages that people read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use claviger_testkit::tools;

const VERBS: &[&str] = &[
    "identify",
    "info",
    "explain",
    "find",
    "create",
    "cat",
    "ls",
    "tree",
    "cp",
    "serve",
    "mount",
    "unmount",
    "list",
    "attach",
    "verify",
    "change",
    "convert",
    "detach",
    "header",
    "keyslot",
    "recovery",
    "token",
    "resize",
    "reencrypt",
    "keyfile",
    "benchmark",
    "lab",
];

#[test]
fn every_verb_has_a_man_page() {
    let folder = Folder::new();
    let out = folder.str("man");
    run(["man", "--out", &out]).succeeds();
    for name in VERBS.iter().map(|v| format!("claviger-{v}")).chain(["claviger".to_owned()]) {
        let page = fs::read_to_string(folder.path(&format!("man/{name}.1"))).expect("a page");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "FILES", "SECURITY"] {
            assert!(
                page.contains(&format!(".SH {section}")) || page.contains(&format!(".SH \"{section}\"")),
                "{name} {section}"
            );
        }
        let Some(man) = tools::program("man") else { continue };
        let mut command = Command::new(man);
        command.args(["--warnings=w", "-l"]).arg(folder.path(&format!("man/{name}.1")));
        let output = tools::run(command.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").env("MANROFFOPT", ""));
        let (text, warnings) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(warnings, "", "{name}");
        assert!(text.contains("another process has the volume open"), "{text}");
    }
    for (verb, usage) in [
        ("header-convert", r"\fB\-\-to\fR \fINAME\fR {\fB\-\-backup\fR \fIFILE\fR|\fB\-\-no\-backup\fR} \fIVOLUME\fR"),
        ("cp", r"[\fIOPTIONS\fR] \fIVOLUME\fR \fIPATH\fR..."),
    ] {
        let page = fs::read_to_string(folder.path(&format!("man/claviger-{verb}.1"))).expect("a page");
        assert!(page.lines().any(|line| line.starts_with(r"\fBclaviger\fR") && line.ends_with(usage)), "{page}");
    }
    let page = fs::read_to_string(folder.path("man/claviger-serve.1")).expect("a page");
    assert!(page.contains(".SH EXAMPLES") && page.contains("\\-\\-socket"), "{page}");
}

/// What bash offers when Tab is pressed after these words.
fn completed(words: &[&str], folder: &Folder) -> Vec<String> {
    let script = r#"source <("$0" completions bash)
        compopt() { COMPREPLY=("$*"); }
        PATH=${0%/*}:$PATH COMP_LINE="claviger $*"
        COMP_POINT=${#COMP_LINE}
        _claviger claviger "${@: -1}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script, env!("CARGO_BIN_EXE_claviger")]).args(words).current_dir(folder.path(""));
    let output = bash.env("XDG_CONFIG_HOME", folder.path("")).output().expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn shells_complete_verbs_options_and_favourites() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["completions", shell]).succeeds().text();
        assert!(script.contains("CLAVIGER_COMPLETE"), "{shell}: {script}");
    }
    run(["completions", "tcsh"]).fails(1, &["bash"]);

    let folder = Folder::new();
    folder.luks2("disk.luks");
    fs::create_dir(folder.path("claviger")).expect("a folder");
    let favourites = "[diary]\nvolume = \"~/diary.hc\"\ndir = \"~/diary\"\n";
    fs::write(folder.path("claviger/favourites.toml"), favourites).expect("a file");
    let offers = |words: &[&str], wanted: &[&str]| {
        let offered = completed(words, &folder);
        for word in wanted {
            assert!(offered.iter().any(|offer| offer == word), "{words:?}: {offered:?}");
        }
    };
    offers(&[""], VERBS);
    offers(&["create", "--format", "l"], &["LUKS1", "LUKS2"]);
    offers(&["create", "--format", ""], &["LUKS2", "VeraCrypt", "BitLocker", "eCryptfs"]);
    offers(&["create", "--format", "BitLocker", "--cipher", ""], &["XTS-AES-128"]);
    offers(&["create", "--filesystem", "e"], &["ext4", "exfat"]);
    // Paths are bash's own.
    offers(&["mount", "di"], &["-o bashdefault -o default"]);
    offers(&["attach", "d"], &["diary"]);
    offers(&["keyslot", "kill", "disk.luks", ""], &["0"]);
    offers(&["keyslot", "kill", "--password-file", "password", "disk.luks", ""], &["0"]);
    offers(&["keyslot", "priority", "disk.luks", ""], &["0"]);
    offers(&["keyslot", "priority", "disk.luks", "0", ""], &["prefer"]);
    offers(&["keyslot", "change", "disk.luks", "--slot", ""], &["0"]);
    offers(&["header", "repair", "disk.luks", "--disable-slot", ""], &["0"]);
    let free = completed(&["keyslot", "add", "disk.luks", "--at", ""], &folder);
    assert!(free.len() == 31 && free[0] == "1", "{free:?}");
    fs::write(folder.path("token"), r#"{"type": "own", "keyslots": []}"#).expect("a file");
    run(["token", "import", "--at", "3", &folder.str("disk.luks"), &folder.str("token")]).succeeds();
    offers(&["token", "show", "disk.luks", ""], &["3"]);
    offers(&["token", "assign", "disk.luks", "3", ""], &["0"]);
    let formats = completed(&["create", "--format", ""], &folder);
    assert!(
        ["FileVault2", "EFS", "cryptoloop"].iter().all(|name| !formats.contains(&(*name).to_owned())),
        "{formats:?}"
    );
    offers(&["mount", "--format", "F"], &["FileVault2"]);
    let ciphers = completed(&["create", "--format", "BitLocker", "--cipher", "s"], &folder);
    assert!(ciphers.is_empty(), "{ciphers:?}");
}

/// A release has a new version, a section in the change log, and nothing uncommitted.
#[test]
fn a_release_of_what_is_not_committed_is_refused() {
    const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));
    let (root, folder) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), Folder::new());
    fs::create_dir(folder.path("tools")).expect("a folder");
    for file in ["tools/release.sh", "Cargo.toml", "CHANGELOG.md"] {
        fs::copy(root.join(file), folder.path(file)).expect("a copy");
    }
    let in_folder = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).current_dir(folder.path("")).env("HOME", folder.path(""));
        done(command.output().expect("it starts"))
    };
    let refused = |why: &str| in_folder("tools/release.sh", &["."]).fails(1, &["No release: ", why]);
    in_folder("git", &["init", "-q"]).succeeds();
    for (name, value) in [("user.name", "somebody"), ("user.email", "somebody@localhost")] {
        in_folder("git", &["config", name, value]).succeeds();
    }
    refused("not committed");
    in_folder("git", &["add", "-A"]).succeeds();
    in_folder("git", &["commit", "-qam", "all of it"]).succeeds();
    in_folder("git", &["tag", VERSION]).succeeds();
    fs::write(folder.path("CHANGELOG.md"), "# Changes\n\n## 0.0.9\n\n* Older.\n").expect("a file");
    refused("not committed");
    in_folder("git", &["commit", "-qam", "all of it"]).succeeds();
    refused("another commit");
    in_folder("git", &["tag", "-f", VERSION]).succeeds();
    refused("CHANGELOG.md says nothing");
}

/// Where links and pictures of a page of Markdown lead.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).map(|rest| rest.split_once(')').unwrap_or_else(|| panic!("{rest:.40}")).0)
}

/// The anchor that GitHub and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading
        .trim_matches(['#', ' '])
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Files that a page shows: the file's path in a comment, then its text in a block, because GitHub knows no includes.
fn shown(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("<!-- shows ").skip(1).map(|rest| {
        let (path, rest) = rest.split_once(" -->\n```").expect("a path and a block");
        let (block, _) = rest.split_once("\n```\n").expect("the block's end");
        (path, block.split_once('\n').expect("the block's text").1)
    })
}

#[test]
fn links_of_the_readme_and_the_guide_resolve() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = |name: &str| fs::read_dir(root.join(name)).expect("a folder").map(|e| e.expect("an entry").path());
    let files: Vec<PathBuf> = folder("").chain(folder("docs")).chain(folder("docs/guide")).collect();
    let book = root.join("docs");
    let (mut found, mut linked, mut copies) = (0, Vec::new(), 0);
    for page in files.iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let (text, name) = (fs::read_to_string(page).expect("text"), page.display());
        assert!(
            !text.contains("{{#"),
            "{name}: GitHub shows an include as it is: paste the text, after `<!-- shows PATH -->`"
        );
        for link in links(&text).filter(|link| !link.starts_with("http")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name(path) };
            assert!(target.exists(), "{name}: {link} leads nowhere");
            let in_book =
                |path: &Path| path.canonicalize().expect("a path").starts_with(book.canonicalize().expect("a path"));
            assert!(in_book(&target) || !in_book(page), "{name}: {link} leads out of the book");
            let has_heading = || fs::read_to_string(&target).expect("text").lines().any(|line| anchor(line) == heading);
            assert!(heading.is_empty() || has_heading(), "{name}: {link} leads to no heading");
            found += 1;
            linked.push(target);
        }
        for (path, copy) in shown(&text) {
            let source = fs::read_to_string(root.join(path)).expect("a source");
            assert!(copy == source.trim_end(), "{name} shows an old {path}: paste it again");
            copies += 1;
        }
    }
    assert!(found > 30 && copies == 6, "{found} links and {copies} copies were found");
    let summary = fs::read_to_string(book.join("SUMMARY.md")).expect("text");
    for file in files.iter().filter(|file| file.is_file()) {
        let Ok(name) = file.strip_prefix(&book) else { continue };
        let name = name.to_str().expect("a name");
        // A script belongs to the page that shows it.
        let in_the_book = summary.contains(&format!("]({name})")) || (!name.ends_with(".md") && linked.contains(file));
        assert!(["SUMMARY.md", "book.toml"].contains(&name) || in_the_book, "{name} is not in the book");
    }
}

/// All files of source code below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The name of the public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let (kind, name) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
    is_type.then(|| name.split(|c: char| !c.is_alphanumeric()).next().expect("a part"))
}

/// docs/api has no lab in it and is only as new as the last `make api`: the sources count.
#[test]
fn no_two_public_types_share_a_name() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in ["crypto", "engine", "serve", "lab"].iter().flat_map(|name| sources(&crates.join(name).join("src"))) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for name in text.lines().filter_map(public_type) {
            places.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    assert!(places.len() > 400, "only {} types were found", places.len());
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "types that share a name: {places:#?}");
}

/// apt is a script here: at first somebody else has its lock, then it does as asked, or fails for another reason.
#[test]
fn installing_waits_for_another_apt_and_for_nothing_else() {
    let folder = Folder::new();
    let (bin, log) = (folder.path("bin"), folder.path("log"));
    fs::create_dir(&bin).expect("a folder");
    let scripts = [
        ("id", "echo 0"),
        ("sleep", "echo waited >> $LOG"),
        (
            "apt-get",
            "echo \"$*\" >> $LOG; [ $(grep -c waited $LOG) -ge 2 ] || { echo E: Could not get lock X. >&2; exit 100; }; eval \"$THEN\"",
        ),
    ];
    for (name, script) in scripts {
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).expect("a script");
        tools::run(Command::new("chmod").arg("+x").arg(bin.join(name)));
    }
    for name in ["env", "date", "grep", "cat", "rm", "mktemp", "sh"] {
        std::os::unix::fs::symlink(tools::program(name).expect("coreutils, grep"), bin.join(name)).expect("a link");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/install-deps.sh");
    let installed = |then: &str| {
        fs::write(&log, "").expect("a log");
        let mut command = Command::new(bin.join("sh"));
        let output = command.args([script, "try"]).env("PATH", &bin).env("LOG", &log).env("THEN", then).output();
        let log = fs::read_to_string(&log).expect("a log");
        (done(output.expect("it ends")), log.lines().map(ToOwned::to_owned).collect::<Vec<_>>())
    };
    let update = "-q -o DPkg::Lock::Timeout=600 update";
    let (done, log) = installed("true");
    done.succeeds();
    assert_eq!(log[..5], [update, "waited", update, "waited", update]);
    assert!(log[5].contains("install -y") && log[5].contains("mtools") && log.len() == 6, "{log:?}");
    let (done, log) = installed("echo E: no space >&2; exit 100");
    done.fails(100, &["no space"]);
    assert_eq!(log.len(), 5, "it was tried again: {log:?}");
}
