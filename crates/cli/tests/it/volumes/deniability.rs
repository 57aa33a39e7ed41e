//! `claviger verify --deniability`: each claim beside what an observer measures by other means, with what it claims and without; and
//! what the program leaves behind.

use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::{Folder, Served, run};
use crate::volumes::hidden::Hiding;
use claviger_testkit::tools;
use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate, seek};
use serde_json::Value;

const OPEN: [&str; 4] = ["--format", "TrueCrypt", "--hash", "SHA-512"];

/// Audits `volume` without a password.
#[track_caller]
fn audit(volume: &str, more: &[&str]) -> Value {
    run(["verify", "--deniability", "--json"].iter().chain(more).chain([&volume])).succeeds().json()
}

/// Audits it for an observer who has the password in this file.
#[track_caller]
fn audit_with(password: &str, volume: &str, more: &[&str]) -> Value {
    audit(volume, &[&OPEN[..], &["--password-file", password], more].concat())
}

fn found<'a>(audit: &'a Value, name: &str) -> Option<&'a Value> {
    audit["findings"].as_array().expect("a list").iter().find(|finding| finding["name"] == name)
}

/// What the finding reveals, and what the observer sees.
#[track_caller]
fn finding<'a>(audit: &'a Value, name: &str) -> (Option<&'a str>, &'a str) {
    let finding = found(audit, name).unwrap_or_else(|| panic!("{name}: {audit}"));
    (finding["gives_away"].as_str(), finding["sees"].as_str().expect("text"))
}

#[track_caller]
fn gives<'a>(audit: &'a Value, name: &str) -> Option<&'a str> {
    finding(audit, name).0
}

/// The observer's own measure: of the 256 values noise has some 221 in 512 bytes, within seven deviations; patterns and text have few.
fn noise(sector: &[u8]) -> bool {
    let mut there = [false; 256];
    sector.iter().for_each(|byte| there[usize::from(*byte)] = true);
    (190..=252).contains(&there.iter().filter(|there| **there).count())
}

fn zeros(sector: &[u8]) -> bool {
    sector.iter().all(|byte| *byte == 0)
}

/// Offsets of the sectors in which two states differ.
fn differing(old: &[u8], new: &[u8]) -> Vec<usize> {
    assert_eq!(old.len(), new.len());
    (0..old.len()).step_by(512).filter(|at| old[*at..][..512] != new[*at..][..512]).collect()
}

/// Bytes in holes.
fn in_holes(path: &str) -> u64 {
    let file = File::open(path).expect("a file");
    let len = file.metadata().expect("a file").len();
    // Pages in the cache because they were read count as data, not as holes.
    fadvise(&file, 0, None, Advice::DontNeed).expect("allowed");
    let (mut at, mut bytes) = (0, 0);
    while at < len {
        let hole = seek(&file, SeekFrom::Hole(at)).expect("a file system that tells");
        at = seek(&file, SeekFrom::Data(hole)).unwrap_or(len);
        bytes += at - hole;
    }
    bytes
}

fn bytes(path: &str) -> Vec<u8> {
    fs::read(path).expect("a file")
}

/// A new volume of 4 MiB.
fn created(folder: &Folder, name: &str, more: &[&str]) -> String {
    let path = folder.str(name);
    let how = ["create", "--size", "4M", "--password-file", &*folder.password, &*path];
    run(how.iter().chain(&OPEN).chain(more)).succeeds();
    path
}

#[test]
fn what_was_never_filled_shows_and_what_was_filled_does_not() {
    let folder = Folder::new();
    let (quick, filled) = (created(&folder, "quick", &["--quick"]), created(&folder, "filled", &[]));
    let check = |path: &str| {
        let bytes = bytes(path);
        let (zero, other): (Vec<_>, Vec<_>) = bytes.chunks(512).filter(|s| !noise(s)).partition(|s| zeros(s));
        let audit = audit(path, &[]);
        let (gives, sees) = finding(&audit, "noise");
        assert_eq!(gives.is_some(), !zero.is_empty() || !other.is_empty(), "{sees}");
        if gives.is_some() {
            let count =
                format!("Of 8192 sectors {} are zeros, and {} more do not look like noise", zero.len(), other.len());
            assert!(sees.contains(&count), "{count}: {sees}");
        }
        let (gives, sees) = finding(&audit, "holes");
        assert_eq!(gives.is_some(), in_holes(path) > 0, "{sees}");
        if gives.is_some() {
            assert!(sees.starts_with(&format!("{} bytes", in_holes(path))), "{sees}");
        }
        for name in ["frequencies", "headers"] {
            assert_eq!(finding(&audit, name).0, None, "{path} {name}");
        }
        (zero.len(), other.len())
    };
    assert!(check(&quick).0 > 7000);
    assert_eq!(check(&filled), (0, 0));
    assert_eq!(gives(&audit(&filled, &[]), "shape"), Some("encryption"));
    // Text in two sectors, and a hole of 64 KiB.
    let file = File::options().write(true).open(&filled).expect("a file");
    for at in [1 << 20, 3 << 20] {
        file.write_all_at(&b"This was never encrypted. ".repeat(20)[..512], at).expect("written");
    }
    assert_eq!(check(&filled), (0, 2));
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(&file, how, 2 << 20, 64 << 10).is_err() {
        return tools::skip("this file system makes no holes").unwrap_or_default();
    }
    assert_eq!(check(&filled), (128, 2));
    assert!(in_holes(&filled) == 64 << 10 && file.metadata().expect("a file").blocks() * 512 < 4 << 20);
    // Where a hidden volume's header would be there is nothing now.
    file.write_all_at(&[0; 512], 64 << 10).expect("written");
    let audit = audit(&filled, &[]);
    let (gives, sees) = finding(&audit, "headers");
    assert!(gives == Some("use") && sees.contains("65536"), "{sees}");
}

#[test]
fn what_says_what_it_is_denies_nothing() {
    let folder = Folder::new();
    let audit_of = |path: &str| audit(path, &[])["findings"].as_array().expect("a list").clone();
    let [only] = &audit_of(&folder.luks2("x"))[..] else { panic!("one finding") };
    assert_eq!(
        (&only["name"], &only["gives_away"], &only["sure"]),
        (&"mark".into(), &"encryption".into(), &"certain".into())
    );
    let text = folder.str("text");
    fs::write(&text, "No volume. ".repeat(100_000)).expect("a file");
    let [only] = &audit_of(&text)[..] else { panic!("one finding") };
    assert_eq!((&only["name"], &only["gives_away"]), (&"mark".into(), &Value::Null));
    run(["verify", "--deniability", &folder.str("")]).fails(1, &["neither"]);
    run(["verify", "--earlier", "x", &text]).fails(1, &["--deniability"]);
}

/// Two copies at a time: a hidden volume is made, the outer one is written, the hidden one is written.
#[test]
fn two_copies_show_what_was_written_between_them() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    let Hiding { folder, volume, inner, .. } = &hiding;
    let earlier = folder.str("earlier");
    let keep = || fs::copy(volume, &earlier).expect("copied");
    // Compares what the observer sees with the sectors that really differ.
    let compared = |free: u64| {
        let audit = audit_with(&folder.password, volume, &["--earlier", &earlier]);
        let changed = differing(&bytes(&earlier), &bytes(volume));
        let (gives, sees) = finding(&audit, "changes");
        assert_eq!(gives, (!changed.is_empty()).then_some("use"));
        let count = if changed.is_empty() { "None".to_owned() } else { changed.len().to_string() };
        assert!(sees.starts_with(&format!("{count} of 8192 sectors")), "{sees}");
        // With the password, what lies where the outer file system has nothing.
        let cat = ["cat", "--password-file", &folder.password, volume];
        let plain = run(cat.iter().copied().chain(OPEN)).succeeds().out;
        let places = changed.iter().filter_map(|at| at.checked_sub(128 << 10));
        let places = places.filter(|at| *at as u64 >= free && *at < plain.len());
        let (noisy, other): (Vec<usize>, Vec<usize>) = places.partition(|at| noise(&plain[*at..][..512]));
        let (gives, sees) = finding(&audit, "changed-free");
        assert_eq!(gives, (!noisy.is_empty()).then_some("hidden"), "{sees}");
        let counts = format!("{} decrypt to noise and {} to", noisy.len(), other.len());
        assert!(sees.contains(&counts), "{counts}: {sees}");
        (finding(&audit, "hidden-header").0.map(str::to_owned), changed.len(), noisy.len(), other.len())
    };
    let write = |password: &str, command: &str| {
        let (socket, command) = (folder.str("s"), format!("qemu-io -f raw -c '{command}' \"$uri\""));
        let serve = ["serve", "--socket", &socket, "--run", &command, "--password-file", password, volume];
        run(serve.iter().copied().chain(OPEN)).succeeds();
    };
    let Some(_) = tools::program("qemu-io") else { return };
    let room = 2 << 20;
    keep();
    assert_eq!(compared(room), (None, 0, 0, 0));

    // The outer one is written where its file system has free space.
    write(&folder.password, "write -P 65 3M 4096");
    assert_eq!(compared(room), (None, 8, 0, 8));

    keep();
    let made = run(hiding.create(&["--force", "--yes", "--size", "1M", "--json"])).succeeds().json();
    let free = made["room"]["free_at"].as_u64().expect("bytes");
    let (header, ..) = compared(free);
    assert_eq!(header.as_deref(), Some("hidden"));

    keep();
    write(inner, "write -P 7 64k 4096");
    assert_eq!(compared(free), (None, 8, 8, 0));

    // A file in the outer volume, which takes space that was free before.
    keep();
    let letter = folder.str("letter");
    fs::write(&letter, "Dear observer, ".repeat(2000)).expect("a file");
    let protect = ["cp", "--protect-hidden", "--hidden-password-file", inner, "--hidden-hash", "SHA-512"];
    let what = ["--password-file", &*folder.password, &**volume, &*letter, ":/letter"];
    run([&protect[..], &OPEN, &what].concat()).succeeds();
    let (header, changed, noisy, _) = compared(free + (32 << 10));
    assert!(header.is_none() && changed >= 60 && noisy == 0, "{changed} {noisy}");
}

/// Without its password the audit of a volume with a hidden one in it is that of one without.
#[test]
fn a_hidden_volume_is_told_of_only_by_its_own_password() {
    let Some(hiding) = Hiding::filled("TrueCrypt") else { return };
    let Hiding { folder, volume, inner, .. } = &hiding;
    let claims = |audit: &Value| {
        let of_bytes = |f: &&Value| f["seen_from"] == "one-copy" || f["seen_from"] == "password";
        let claims = audit["findings"].as_array().expect("a list").iter().filter(of_bytes);
        claims.map(|f| (f["name"].to_string(), f["gives_away"].to_string(), f["sure"].to_string())).collect::<Vec<_>>()
    };
    let both = || (claims(&audit(volume, &[])), claims(&audit_with(&folder.password, volume, &[])));
    let before = both();
    assert!(before.1.len() > before.0.len());
    run(hiding.create(&["--force", "--yes"])).succeeds();
    assert_eq!(both(), before);
    let seen = audit_with(inner, volume, &[]);
    assert_eq!(gives(&seen, "hidden"), Some("hidden"));
    assert!(found(&seen, "free-space").is_none());
    assert!(found(&audit_with(&folder.password, volume, &[]), "hidden").is_none());
}

#[test]
fn a_file_system_that_ends_early_and_times_that_disagree_show_something_hidden() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    let Hiding { folder, volume, .. } = &hiding;
    let seen = || audit_with(&folder.password, volume, &[]);
    // It was written just now, as its newest file was.
    assert_eq!((gives(&seen(), "free-space"), gives(&seen(), "inner-times")), (None, None));
    let file = File::options().write(true).open(volume).expect("a file");
    let later = SystemTime::now() + Duration::from_secs(10 * 24 * 3600);
    file.set_times(FileTimes::new().set_modified(later)).expect("its owner may");
    assert_eq!(gives(&seen(), "inner-times"), Some("hidden"));

    let (Some(mkfs), Some(_)) = (tools::program("mkfs.vfat"), tools::program("nbdcopy")) else { return };
    let image = folder.path("small.img");
    fs::write(&image, vec![0; 2 << 20]).expect("an image");
    tools::run(Command::new(mkfs).arg(&image));
    let (socket, copy) = (folder.str("s"), format!("nbdcopy {} \"$uri\"", image.display()));
    let serve = ["serve", "--socket", &socket, "--run", &copy, "--password-file", &folder.password, volume];
    run(serve.iter().copied().chain(OPEN)).succeeds();
    let seen = seen();
    let (gives, sees) = finding(&seen, "free-space");
    let behind: usize = sees.split(' ').find_map(|word| word.parse().ok()).expect("a number");
    // Of the 3.75 MiB, and what the file system has rounded away.
    assert!(gives == Some("hidden") && (1_835_008..1_900_000).contains(&behind), "{sees}");
}

#[test]
fn times_and_the_file_system_are_what_other_programs_say_and_nothing_is_touched() {
    let folder = Folder::new();
    let volume = created(&folder, "v", &["--quick"]);
    let text = |program: &str, args: &[&str]| {
        String::from_utf8(tools::run(Command::new(program).args(args)).stdout).expect("text").trim().to_owned()
    };
    // Read before the times are examined: that reading is one.
    let (before, stat) = (bytes(&volume), || text("stat", &["-c", "%X %Y %Z %x %y %z", &volume]));
    let stated = stat();
    let seen = audit_with(&folder.password, &volume, &["--earlier", &volume]);
    assert_eq!(stat(), stated);
    assert!(bytes(&volume) == before, "something was written");
    let (gives_away, sees) = finding(&seen, "times");
    assert_eq!(gives_away, Some("use"));
    for time in stated.split(' ').take(3) {
        let date = text("date", &["-u", "-d", &format!("@{time}"), "+%Y-%m-%d %H:%M:%S UTC"]);
        assert!(sees.contains(&date), "{date}: {sees}");
    }
    if tools::program("findmnt").is_some() {
        let kind = text("findmnt", &["-n", "-o", "FSTYPE", "-T", &volume]);
        assert!(finding(&seen, "around").1.contains(&format!("of the kind {kind}")), "{kind}");
    }
    // Written just now, then set back.
    let file = File::options().write(true).open(&volume).expect("a file");
    file.write_all_at(&[1], 1 << 20).expect("written");
    assert_eq!(gives(&audit(&volume, &[]), "times-put-back"), None);
    file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).expect("its owner may");
    assert_eq!(gives(&audit(&volume, &[]), "times-put-back"), Some("use"));
}

/// The name of a volume is on the command line for as long as it is served, where every user reads it.
#[test]
fn the_command_line_of_a_server_names_the_volume() {
    let folder = Folder::new();
    let volume = created(&folder, "a name of its own.hc", &["--quick"]);
    let named = || {
        let seen = audit(&volume, &[]);
        let (gives, sees) = finding(&seen, "names");
        (gives.is_some(), sees.to_owned())
    };
    assert!(!named().0, "{}", named().1);
    let socket = folder.str("socket");
    let serve = ["--read-only", "--socket", &socket, "--password-file", &folder.password, &volume];
    let served = Served::start(serve.iter().chain(&OPEN));
    let line = format!("/proc/{}/cmdline", served.pid);
    assert!(bytes(&line).windows(8).any(|words| words == b"its own."), "the observer sees it");
    assert!(named().1.contains(&line), "{}", named().1);
    assert_eq!(served.stop().code, 0);
    assert!(!named().0);
}

/// All names below a folder.
fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            folders.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path()));
            names.insert(entry.path());
        }
    }
    names
}

/// Home, configuration, caches, state, temporary and runtime files, and the folder it is started in: what is new in all of them. What the
/// lab leaves its own tests look for.
#[test]
fn what_verbs_leave_on_a_host_is_what_the_guide_says() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let (dir, luks) = (place.dir("d"), place.folder.luks2("l"));
    let _ = fs::remove_dir(place.runtime());
    let all = place.folder.path("");
    let own = |name: &str| place.folder.path(name);
    for name in ["home", "tmp", "here"] {
        fs::create_dir(own(name)).expect("a folder");
    }
    let program = |args: &[&str]| {
        let mut command = place.command(env!("CARGO_BIN_EXE_claviger"));
        for variable in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            command.env(variable, own("home").join(variable));
        }
        command.env("HOME", own("home")).env("TMPDIR", own("tmp")).current_dir(own("here")).args(args);
        crate::common::done(command.output().expect("it starts")).succeeds()
    };
    let left = |args: &[&str]| {
        let before = names(&all);
        program(args);
        let new: Vec<_> = names(&all)
            .difference(&before)
            .map(|path| path.strip_prefix(&all).expect("below").display().to_string())
            .collect();
        new.join(" ")
    };
    let open = |verb: &[&str], more: &[&str]| {
        let all = [verb, &OPEN, &["--password-file", &place.folder.password, &volume], more].concat();
        left(&all)
    };
    for args in
        [&["identify", &volume][..], &["completions", "bash"], &["header", "show", &luks], &["create", "--list"]]
    {
        assert_eq!(left(args), "", "{args:?}");
    }
    for verb in [&["info"][..], &["cat"], &["verify"], &["verify", "--deniability"]] {
        assert_eq!(open(verb, &[]), "", "{verb:?}");
    }
    // The runtime folder stays, empty, until the machine starts anew.
    assert_eq!(open(&["serve", "--run", "true"], &[]), "runtime");
    let before = names(&all);
    program(
        &[&["mount", "--filesystem", "none"], &OPEN[..], &["--password-file", &place.folder.password, &volume, &dir]]
            .concat(),
    );
    let session = names(&all).difference(&before).filter(|path| path.ends_with("record.json")).count();
    assert_eq!(session, 1, "while it is mounted a record says so");
    program(&["unmount", &dir]);
    wait_until("all of it is gone", || names(&all) == before);
}

#[test]
fn times_are_kept_where_that_is_asked_for_and_nowhere_else() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "1M", &[]);
    let dir = place.dir("d");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    let times = FileTimes::new().set_modified(long_ago).set_accessed(long_ago);
    let file = File::options().write(true).open(&volume).expect("a file");
    let kept = || file.metadata().map(|now| (now.mtime(), now.atime())).expect("a file");
    let write = |more: &[&str]| -> io::Result<()> {
        let before = bytes(&volume);
        file.set_times(times)?;
        place.mount(&volume, &dir, &[&["--filesystem", "none"], more].concat()).succeeds();
        File::options().write(true).open(format!("{dir}/volume"))?.write_all_at(&[more.len() as u8 + 1; 4096], 4096)?;
        place.unmount(&dir).succeeds();
        place.nothing_is_left();
        if !more.is_empty() {
            wait_until("the times are put back", || kept() == (1_234_567_890, 1_234_567_890));
            // Which shows.
            assert_eq!(gives(&audit(&volume, &[]), "times-put-back"), Some("use"));
        }
        assert!(bytes(&volume) != before, "it was written");
        Ok(())
    };
    write(&["--keep-times"]).expect("mounted");
    write(&["--keep-times", "--isolate-keys"]).expect("mounted");
    write(&[]).expect("mounted");
    assert!(kept().0 > 1_234_567_890);
    assert_eq!(gives(&audit(&volume, &[]), "times-put-back"), None);
    let refused = ["attach", "--kernel", "--keep-times", &volume, "name"];
    place.run(refused).fails(1, &["--keep-times"]);
}
