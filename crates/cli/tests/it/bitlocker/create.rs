//! New BitLocker volumes, as a person makes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use claviger_testkit::tools;
use serde_json::Value;

/// `claviger create` with a password and these options.
fn create(options: &[&str], volume: &Path) -> Done {
    let volume = volume.display().to_string();
    let args = [&["create", "--format", "BitLocker", "--password-file", "-"], options, &[&volume]].concat();
    run_with(PASSWORD.as_bytes(), args)
}

/// The plaintext of a volume, by a password, read from standard input.
fn plaintext(password: &str, volume: &Path) -> Vec<u8> {
    let volume = volume.display().to_string();
    run_with(password.as_bytes(), ["cat", "--password-file", "-", &volume]).succeeds().out
}

/// The parts that were kept: offset and size.
fn kept(created: &Value) -> Vec<(u64, u64)> {
    let number = |part: &Value, name: &str| part[name].as_u64().expect("a number");
    created["kept"].as_array().expect("a list").iter().map(|p| (number(p, "offset"), number(p, "size"))).collect()
}

#[test]
fn a_recovery_password_is_printed_once_or_written_for_its_owner_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let (volume, file) = (dir.path().join("v"), dir.path().join("recovery"));
    let text = create(&["--size", "1M"], &volume).succeeds().text();
    let printed = text.lines().find_map(|line| line.strip_prefix("Recovery password: ")).expect("it is printed");
    assert_eq!(printed.len(), 55);
    assert!(text.contains("may use only the first 778240 bytes"), "{text}");
    assert!(plaintext(printed, &volume) == plaintext(PASSWORD, &volume));

    create(&["--size", "1M", "--json"], &dir.path().join("none")).fails(1, &["--recovery-password-file"]);
    assert!(!dir.path().join("none").exists());
    let other = dir.path().join("other");
    let named = file.display().to_string();
    let done = create(&["--size", "1M", "--json", "--recovery-password-file", &named], &other).succeeds();
    let password = fs::read_to_string(&file).expect("it was written");
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert!(!done.text().contains(password.trim()) && !done.err.contains(password.trim()));
    assert_eq!(done.json()["recovery_password_file"], Value::from(named.clone()));
    assert_eq!(plaintext(password.trim(), &other).len(), 1 << 20);

    // A file is never overwritten, and none is left where the volume is not created.
    create(&["--size", "1M", "--recovery-password-file", &named], &dir.path().join("third")).fails(1, &["overwritten"]);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), password);
    let new = dir.path().join("new").display().to_string();
    let args =
        ["create", "--format=BitLocker", "--size=1M", "--password-file=-", "--recovery-password-file", &new, &new];
    run_with(b"seven c", args).fails(1, &[]);
    assert!(!Path::new(&new).exists());
    let short = dir.path().join("short").display().to_string();
    let args =
        ["create", "--format=BitLocker", "--size=1M", "--password-file=-", "--recovery-password-file", &new, &short];
    run_with(b"seven c", args).fails(1, &["at least 8"]);
    assert!(!Path::new(&new).exists() && !Path::new(&short).exists());
}

#[test]
fn a_startup_key_opens_the_volume_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let (volume, keys) = (dir.path().join("v"), dir.path().join("keys"));
    fs::create_dir(&keys).expect("a folder");
    let folder = keys.display().to_string();
    let options = ["--size=1M", "--no-recovery-password", "--json", "--label=photos", "--startup-key", &folder];
    let created = create(&options, &volume).succeeds().json();
    let key = created["startup_key"].as_str().expect("its file").to_owned();
    assert!(key.ends_with(".BEK") && fs::read_dir(&keys).expect("a folder").count() == 1);
    assert_eq!(fs::metadata(&key).expect("it is there").permissions().mode() & 0o777, 0o600);
    let path = volume.display().to_string();
    let info = run(["info", "--json", "--no-password", "--keyfile", &key, &path]).succeeds().json();
    assert_eq!((info["format"].as_str(), info["label"].as_str()), (Some("BitLocker"), Some("photos")));
    let shown = run(["header", "show", "--json", &path]).succeeds().text();
    assert!(!shown.contains("recovery") && shown.contains("startup key"), "{shown}");
    create(&["--size=1M", "--no-recovery-password", "--startup-key", "/nowhere"], &dir.path().join("w"))
        .fails(1, &["no such folder"]);
}

#[test]
fn other_formats_take_none_of_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (volume, folder) = (dir.path().join("v").display().to_string(), dir.path().display().to_string());
    for (options, what) in [
        (&["--to-go"][..], "discovery volume"),
        (&["--no-recovery-password"], "recovery password"),
        (&["--startup-key", &folder], "startup key"),
    ] {
        let args = [&["create", "--size=20M", "--format=LUKS2"], options, &[&volume]].concat();
        run(args).fails(1, &[&format!("LUKS2 takes no {what}"), "BitLocker"]);
    }
    let args = ["create", "--size=1M", "--format=BitLocker", "--hash=SHA-512", &volume];
    run(args).fails(1, &["BitLocker takes no hash"]);
}

/// Creates a volume with a file system. Returns its plaintext as a file, and the kept parts.
fn with_filesystem(kind: &str, more: &[&str], dir: &Path) -> (tempfile::NamedTempFile, Vec<(u64, u64)>) {
    let volume = dir.join(kind);
    let options = [&["--no-recovery-password", "--json", "--filesystem", kind], more].concat();
    let created = create(&options, &volume).succeeds().json();
    let image = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(image.path(), plaintext(PASSWORD, &volume)).expect("it is written");
    let others = fs::read_dir(dir)
        .expect("a folder")
        .filter(|e| e.as_ref().expect("an entry").file_name().to_string_lossy().starts_with('.'));
    assert_eq!(others.count(), 0, "what it was made in is gone");
    (image, kept(&created))
}

fn output(program: &str, args: &[&str], image: &Path) -> Option<String> {
    let output = Command::new(tools::program(program)?).args(args).arg(image).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {text}");
    Some(text)
}

/// Writes a filled file system back through the volume, which refuses writes to its own metadata, and reads it again.
fn comes_back(filled: &Path, volume: &Path) {
    if tools::program("nbdcopy").is_none() {
        return;
    }
    let path = volume.display().to_string();
    let copy = format!("nbdcopy {} \"$uri\"", filled.display());
    let args = ["serve", "--password-file", "-", &path, "--run", &copy];
    run_with(PASSWORD.as_bytes(), args).succeeds();
    assert!(plaintext(PASSWORD, volume) == fs::read(filled).expect("it is there"));
    let info = run_with(PASSWORD.as_bytes(), ["info", "--json", "--password-file", "-", &path]).succeeds().json();
    assert_eq!(info["warnings"], serde_json::json!([]), "each copy of the metadata is whole");
}

/// A file of `size` bytes that repeat nowhere.
fn pattern(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("pattern");
    let bytes: Vec<u8> = (0..size as u32 / 4).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(&path, bytes).expect("it is written");
    path
}

#[test]
fn what_is_kept_is_in_files_of_an_ntfs_and_nowhere_else() {
    let programs = ["mkntfs", "ntfs-3g", "ntfscp", "ntfscat", "ntfscluster", "ntfsfix", "ntfsls"];
    if programs.iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for (more, count) in [(&["--size=3M"][..], 5), (&["--size=3M", "--cipher=AES-CBC-128", "--sector-size=4096"], 4)] {
        let (image, kept) = with_filesystem("ntfs", more, dir.path());
        assert_eq!(kept.len(), count);
        // Filled until nothing fits any more.
        let file = pattern(dir.path(), 64 << 10);
        let mut files = 0;
        loop {
            let mut ntfscp = Command::new(tools::program("ntfscp").expect("found before"));
            let to = format!("file{files}");
            let output = ntfscp.args(["-f", "-q"]).arg(image.path()).arg(&file).arg(&to).output().expect("it starts");
            if !output.status.success() || files > 100 {
                break;
            }
            files += 1;
        }
        assert!((10..100).contains(&files), "{files}");
        for number in 0..files {
            let mut ntfscat = Command::new(tools::program("ntfscat").expect("found before"));
            let read = tools::run(ntfscat.arg("-f").arg(image.path()).arg(format!("file{number}")));
            assert!(read.stdout == fs::read(&file).expect("it is there"), "file{number}");
        }
        output("ntfsfix", &["-n"], image.path());
        let listed = output("ntfsls", &["-F", "-a", "-p", "/System Volume Information"], image.path());
        assert_eq!(listed.unwrap_or_default().matches("FVE2.{").count(), count);
        for (offset, size) in kept {
            let clusters = format!("{}-{}", offset / 4096, (offset + size) / 4096 - 1);
            let used = output("ntfscluster", &["-f", "-c", &clusters], image.path()).unwrap_or_default();
            let inodes: Vec<_> = used.lines().filter(|line| line.contains("Inode")).collect();
            assert!(inodes.len() == 1 && inodes[0].contains("FVE2.{"), "{clusters}: {used}");
        }
        comes_back(image.path(), &dir.path().join("ntfs"));
        fs::remove_file(dir.path().join("ntfs")).expect("it is there");
    }
}

/// Sizes at which a file falls into holes that are too small for it: it is made anew in one piece, and what filled them is gone.
#[test]
fn what_is_kept_is_in_one_piece_at_any_size() {
    if ["mkntfs", "ntfs-3g", "ntfscluster", "ntfsls", "ntfsfix"].iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for size in [37_910_240, 37_992_160, 38_022_880, 38_094_560] {
        let (image, kept) = with_filesystem("ntfs", &["--quick", &format!("--size={size}")], dir.path());
        assert_eq!(kept.len(), 5, "{size}");
        let listed = output("ntfsls", &["-F", "-a", "-p", "/System Volume Information"], image.path()).expect("listed");
        assert_eq!(listed.lines().filter(|line| line.contains("FVE2")).count(), 5, "{size}: {listed}");
        output("ntfsfix", &["-n"], image.path());
        fs::remove_file(dir.path().join("ntfs")).expect("it is there");
    }
}

#[test]
fn a_fat_goes_round_what_is_kept() {
    if ["mkfs.fat", "fsck.vfat", "mcopy", "mdir", "mtype"].iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let mtools = |name: &str, image: &Path| {
        let mut command = Command::new(tools::program(name).expect("found before"));
        command.env("MTOOLS_SKIP_CHECK", "1").arg("-i").arg(image);
        command
    };
    let dir = tempfile::tempdir().expect("a folder");
    for more in [&["--size=8M"][..], &["--size=36M", "--to-go"]] {
        let (image, kept) = with_filesystem("fat", more, dir.path());
        output("fsck.vfat", &["-n"], image.path());
        let before = fs::read(image.path()).expect("it is there");
        let listed = String::from_utf8(tools::run(mtools("mdir", image.path()).arg("::")).stdout).expect("text");
        let free = listed.lines().rev().find(|line| line.contains("bytes free")).expect("it says so");
        let free: String = free.chars().filter(char::is_ascii_digit).collect();
        let file = pattern(dir.path(), free.parse().expect("a number"));
        tools::run(mtools("mcopy", image.path()).arg(&file).arg("::file"));
        output("fsck.vfat", &["-n"], image.path());
        let read = tools::run(mtools("mtype", image.path()).arg("::file"));
        assert!(read.stdout == fs::read(&file).expect("it is there"));
        let after = fs::read(image.path()).expect("it is there");
        for part in kept.into_iter().map(|(offset, size)| offset as usize..(offset + size) as usize) {
            assert!(before[part.clone()] == after[part.clone()], "something is written at {part:?}");
        }
        comes_back(image.path(), &dir.path().join("fat"));
        fs::remove_file(dir.path().join("fat")).expect("it is there");
    }
    let refused = dir.path().join("refused");
    create(&["--size=8M", "--no-recovery-password", "--filesystem=fat", "--sector-size=4096"], &refused)
        .fails(1, &["512-byte sectors"]);
    assert!(!refused.exists());
}

#[test]
fn an_exfat_ends_where_what_is_kept_begins() {
    if ["mkfs.exfat", "fsck.exfat"].iter().any(|name| tools::program(name).is_none()) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (image, kept) = with_filesystem("exfat", &["--size=8M"], dir.path());
    output("fsck.exfat", &["-n"], image.path());
    // Its size in sectors of 512 bytes (Microsoft, "exFAT file system specification", section 3.1.6).
    let boot = fs::read(image.path()).expect("it is there");
    let sectors = u64::from_le_bytes(boot[72..80].try_into().expect("eight bytes"));
    assert_eq!(sectors * 512, kept[0].0);
}

/// In exFAT, the metadata lie at the end, far from the first sector.
#[test]
fn a_large_volume_with_exfat_that_lost_its_first_sector_is_found_and_repaired() {
    let Some(_) = tools::program("mkfs.exfat") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let volume = dir.path().join("v");
    create(&["--size", "200M", "--quick", "--no-recovery-password", "--filesystem", "exfat"], &volume).succeeds();
    let path = volume.display().to_string();
    let beginning = || {
        let cat = ["cat", "--format", "BitLocker", "--length", "1M", "--password-file", "-", &path];
        run_with(PASSWORD.as_bytes(), cat).succeeds().out
    };
    let whole = beginning();
    let file = fs::OpenOptions::new().write(true).open(&volume).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 0).expect("written");
    let explained = run(["explain", "--without-password", &path]);
    assert!(explained.text().contains("header repair --format=BitLocker"), "{}", explained.text());
    let repair = ["header", "repair", "--format", "BitLocker", "--yes", "--password-file", "-", &path];
    run_with(PASSWORD.as_bytes(), repair).succeeds();
    assert!(beginning() == whole);
}
