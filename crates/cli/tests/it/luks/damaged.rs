//! LUKS headers as people find them after an accident: wiped, overwritten in part, mistaken for a volume, or damaged in a keyslot.

use std::fs;
use std::process::Command;

use claviger_testkit::tools;
use serde_json::json;

use crate::common::*;

/// A volume with a file system in it, so that its data show whether a key is right.
fn volume(folder: &Folder, name: &str, format: &str, more: &[&str]) -> String {
    let path = folder.str(name);
    let create = ["create", "--format", format, "--quick", "--size", "20M", "--iterations", "1000"];
    let kdf: &[&str] = if format == "LUKS2" { &["--kdf", "pbkdf2"] } else { &[] };
    let rest = ["--filesystem", "fat", "--password-file", &folder.password, &path];
    run([&create, kdf, more, &rest].concat()).succeeds();
    path
}

/// Bytes of a file, changed.
fn edit(path: &str, change: impl FnOnce(&mut [u8])) {
    let mut image = fs::read(path).expect("a file");
    change(&mut image);
    fs::write(path, image).expect("written");
}

fn text(folder: &Folder, name: &str, contents: &str) -> String {
    let path = folder.str(name);
    fs::write(&path, contents).expect("a file");
    path
}

/// Whether cryptsetup opens it with the contents of this file.
fn cryptsetup_opens(volume: &str, password: &str) -> bool {
    let key = fs::read_to_string(password).expect("a password");
    let key_file = format!("{password}.key");
    fs::write(&key_file, key.trim_end_matches('\n')).expect("a key file");
    let mut command = Command::new("cryptsetup");
    command.args(["open", "--test-passphrase", "--key-file", &key_file, volume]);
    command.output().expect("cryptsetup starts").status.success()
}

/// The contents of the volume, or the error.
fn contents(volume: &str, password: &str) -> Done {
    run(["cat", "--password-file", password, volume])
}

#[test]
fn a_luks2_header_without_its_magic_is_known_opens_and_is_repaired() {
    let folder = Folder::new();
    for (number, wiped) in [&[0][..], &[0x4000], &[0, 0x4000]].into_iter().enumerate() {
        let path = volume(&folder, &format!("v{number}"), "LUKS2", &[]);
        let before = contents(&path, &folder.password).succeeds().out;
        edit(&path, |image| wiped.iter().for_each(|at| image[*at..at + 6].fill(0)));
        assert!(run(["identify", &path]).succeeds().text().contains("LUKS2"), "{wiped:x?}");
        assert!(contents(&path, &folder.password).succeeds().out == before, "{wiped:x?}: read as it is");
        let found = run(["explain", "--without-password", &path]).text();
        assert!(wiped == [0x4000] || found.contains("header repair"), "{wiped:x?}: {found}");
        let wrong = text(&folder, "wrong", "wrong");
        run(["header", "repair", "--yes", "--password-file", &wrong, &path]).fails(2, &[]);
        let repaired = run(["header", "repair", "--yes", "--json", &path]).succeeds().json();
        assert_eq!(repaired["written"].as_array().map(Vec::len), Some(wiped.len()));
        assert!(tools::program("cryptsetup").is_none() || cryptsetup_opens(&path, &folder.password), "{wiped:x?}");
        assert!(contents(&path, &folder.password).succeeds().out == before, "{wiped:x?}");
        let again = run(["header", "repair", "--yes", "--json", &path]).succeeds().json();
        assert_eq!(again["written"].as_array().map(Vec::len), Some(0), "nothing is left to do");
    }
}

#[test]
fn the_binary_header_of_one_copy_and_the_metadata_of_the_other_make_one() {
    let folder = Folder::new();
    for (binary_lost, json_lost) in [(0, 0x4000 + 4096), (0x4000, 4096)] {
        let path = volume(&folder, "v", "LUKS2", &[]);
        let before = contents(&path, &folder.password).succeeds().out;
        edit(&path, |image| {
            image[binary_lost..binary_lost + 4096].fill(0xa5);
            image[json_lost..json_lost + 512].fill(0xa5);
        });
        assert!(contents(&path, &folder.password).succeeds().out == before);
        run(["header", "repair", "--yes", &path]).succeeds();
        run(["verify", "--password-file", &folder.password, &path]).succeeds();
        assert!(tools::program("cryptsetup").is_none() || cryptsetup_opens(&path, &folder.password));
        fs::remove_file(&path).expect("removed");
    }
    // Both binary headers gone: no checksum is left that could prove anything.
    let path = volume(&folder, "v", "LUKS2", &[]);
    edit(&path, |image| [0, 0x4000].iter().for_each(|at| image[*at..at + 4096].fill(0)));
    let before = fs::read(&path).expect("a file");
    assert_ne!(run(["header", "repair", "--yes", "--format", "LUKS2", &path]).code, 0);
    assert!(fs::read(&path).expect("a file") == before);
}

/// pvcreate wipes what marks there are, and makes a label of its own in front of a LUKS2 volume whose second header is left.
#[test]
fn a_label_of_lvm_in_front_is_overwritten_only_where_the_data_show_that_the_volume_is_there() {
    let folder = Folder::new();
    let path = volume(&folder, "v", "LUKS2", &[]);
    let whole = contents(&path, &folder.password).succeeds().out;
    edit(&path, |image| [0, 0x4000].iter().for_each(|at| image[*at..at + 6].fill(0)));
    // pvcreate zeroes four sectors, and puts its label into the second (LVM2, lib/label/label.c).
    edit(&path, |image| {
        image[..2048].fill(0);
        image[512..520].copy_from_slice(b"LABELONE");
        image[520..528].copy_from_slice(&1u64.to_le_bytes());
        image[536..544].copy_from_slice(b"LVM2 001");
    });
    let before = fs::read(&path).expect("a file");
    let wrong = text(&folder, "wrong", "wrong");
    let repair = ["header", "repair", "--yes", "--format", "LUKS2"];
    run([&repair[..], &["--password-file", &wrong, &path]].concat()).fails(2, &[]);
    assert_eq!(run([&repair[..], &[&path]].concat()).code, 1);
    assert!(fs::read(&path).expect("a file") == before, "nothing was written");
    run([&repair[..], &["--password-file", &folder.password, &path]].concat()).succeeds();
    assert!(contents(&path, &folder.password).succeeds().out == whole);
    // Data that were overwritten too show nothing.
    edit(&path, |image| {
        image[..4096].copy_from_slice(&before[..4096]);
        let mut noise = 1u64;
        for byte in image[16 << 20..].iter_mut() {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (noise >> 56) as u8;
        }
    });
    run([&repair[..], &["--password-file", &folder.password, &path]].concat()).fails(1, &["decrypt to noise"]);
}

#[test]
fn a_destroyed_keyslot_is_named_although_another_one_opens() {
    let folder = Folder::new();
    let second = text(&folder, "second", "second");
    for (format, area) in [("LUKS1", 4096), ("LUKS2", 0x8000)] {
        let path = volume(&folder, format, format, &[]);
        let kill = ["keyslot", "kill", "--yes", "--password-file", &folder.password, &path, "0"];
        run(kill).fails(1, &["the last one", "keyslot remove --last"]);
        let kdf: &[&str] = if format == "LUKS2" { &["--kdf", "pbkdf2"] } else { &[] };
        let add = ["keyslot", "add", "--iterations", "1000", "--password-file", &folder.password];
        run([&add, kdf, &["--new-password-file", &second, &path]].concat()).succeeds();
        run(kill).fails(1, &["opens keyslot 0, the one to remove"]);
        let sound = run(["verify", "--password-file", &folder.password, &path]).succeeds().text();
        assert!(sound.contains("Keyslot 1 was not opened") && sound.contains("All headers are sound."), "{sound}");
        edit(&path, |image| image[area..area + 4096].fill(0));
        let verified = run(["verify", "--json", "--password-file", &second, &path]).fails(4, &[]).json();
        let (named, zeros) = (verified["warnings"].to_string(), &verified["areas"][0]["zeros"]);
        let damage = format!("from byte {area} on, 4096 bytes are zeros");
        assert!(named.contains(&format!("Keyslot 0 is damaged and no longer opens: {damage}")), "{verified}");
        assert!(!named.contains("not opened") && *zeros == 8, "{verified}");
        assert_eq!(verified["areas"][0]["damage"], json!([{ "at": area, "len": 4096, "what": "zeros" }]));
        contents(&path, &folder.password)
            .fails(2, &["Keyslot 0 is damaged", "may be right", "passphrase of another keyslot", "header restore"]);
        contents(&path, &second).succeeds();
        let opened = run(["explain", "--password-file", &second, &path]).succeeds().text();
        assert!(opened.contains("opens as a") && opened.contains(&damage), "{opened}");
        run(["keyslot", "kill", "--yes", "--password-file", &second, &path, "0"]).succeeds();
        run(["verify", "--password-file", &second, &path]).succeeds();
    }
}

/// The first bytes of an ext4 file system, as far as `detect` reads them.
fn ext4() -> Vec<u8> {
    let mut start = vec![0; 4096];
    for (at, bytes) in [(0x28, [0, 8, 0, 0]), (0x38, [0x53, 0xef, 0, 0]), (0x60, [0x40, 0, 0, 0])] {
        start[0x400 + at..][..4].copy_from_slice(&bytes);
    }
    start
}

#[test]
fn every_verb_names_a_damaged_keyslot_of_cryptsetup_and_what_is_in_it() {
    if tools::program("cryptsetup").is_none() {
        return;
    }
    let folder = Folder::new();
    let key = text(&folder, "key", PASSWORD);
    let prose = "The quick brown fox jumps over the lazy dog.\n".repeat(100);
    let contents = [
        (vec![0; 4096], 4096, "zeros"),
        (vec![0; 512], 512, "zeros"),
        (prose.as_bytes()[..4096].to_vec(), 4096, "text"),
        (ext4(), 4096, "the start of an ext4 file system"),
    ];
    for (kind, area) in [("luks1", 4096), ("luks2", 0x8000)] {
        let (intact, path, backup) = (folder.str(kind), folder.str("damaged"), folder.str(&format!("{kind}.backup")));
        fs::write(&intact, vec![0; 20 << 20]).expect("a file");
        let format = ["luksFormat", "-q", "--type", kind, "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        let made = Command::new("cryptsetup").args(format).args(["--key-file", &key, &intact]).output();
        assert!(made.expect("cryptsetup starts").status.success());
        run(["header", "backup", &intact, &backup]).succeeds();
        let with_key = |verb: &str, path: &str| run([verb, "--keyfile", &key, "--no-password", path]);
        assert!(!run(["header", "show", &intact]).succeeds().text().contains("damaged"));
        assert!(!run(["explain", "--without-password", &intact]).text().contains("damaged"));
        assert!(with_key("verify", &intact).succeeds().text().contains("500 of 500 sectors look random"));
        assert!(run(["header", "repair", "--yes", &intact]).succeeds().text().contains("nothing to do"));
        for (bytes, len, what) in &contents {
            let at = area + 8192;
            fs::copy(&intact, &path).expect("a copy");
            edit(&path, |image| image[at..at + bytes.len()].copy_from_slice(bytes));
            let before = fs::read(&path).expect("a file");
            let damage = format!("from byte {at} on, {len} bytes are {what}");
            let names = |text: String| assert!(text.contains(&damage), "{kind}, {what}: {text}");
            names(run(["header", "show", &path]).succeeds().text());
            names(run(["keyslot", "list", &path]).succeeds().text());
            let shown = run(["header", "show", "--json", &path]).succeeds().json();
            assert_eq!(shown["header"]["keyslots"][0]["damaged"], damage.as_str());
            for explained in [run(["explain", "--without-password", &path]), with_key("explain", &path)] {
                let text = explained.text();
                assert_eq!((explained.code, text.matches(&damage).count()), (2, 1), "{text}");
                assert_eq!(text.matches("header restore").count(), 1, "{text}");
            }
            let text = with_key("explain", &path).text();
            assert!(text.contains("may be right") && !text.contains("another keyslot"), "{text}");
            with_key("verify", &path).fails(2, &[&damage, "may be right"]);
            let repaired = run(["header", "repair", "--yes", &path]).fails(4, &[&damage, "header restore"]);
            assert!(repaired.text().contains("damaged beyond repair"), "{repaired:?}");
            assert_eq!(run(["header", "repair", "--yes", "--json", &path]).fails(4, &[]).json()["damaged"], true);
            assert!(fs::read(&path).expect("a file") == before, "nothing was written");
        }
        run(["header", "restore", "--yes", "--from", &backup, &path]).succeeds();
        with_key("verify", &path).succeeds();
    }
}

/// The keyslot of a reencryption has checksums in its area, or nothing yet.
#[test]
fn the_area_of_a_reencryption_is_not_judged_and_an_unbound_keyslot_is() {
    let folder = Folder::new();
    let path = folder.luks2("v");
    let second = text(&folder, "second", "second");
    let add = ["keyslot", "add", "--unbound", "256", "--kdf", "pbkdf2", "--iterations", "1000"];
    run([&add[..], &["--new-password-file", &second, &path]].concat()).succeeds();
    run(["reencrypt", "--yes", "--init-only", "--password-file", &folder.password, &path]).succeeds();
    let keyslots = || {
        let shown = run(["header", "show", "--json", &path]).succeeds().json();
        shown["header"]["keyslots"].as_array().expect("a list").clone()
    };
    let all = keyslots();
    assert!(all.iter().any(|slot| slot["type"] == "reencrypt"), "{all:?}");
    assert!(all.iter().all(|slot| slot["damaged"].is_null()), "{all:?}");
    let unbound = all.iter().position(|slot| slot["opens"] == "nothing (unbound)").expect("it was added");
    let at = all[unbound]["area_offset"].as_u64().expect("an offset") as usize;
    edit(&path, |image| image[at..at + 512].fill(0));
    assert_eq!(keyslots()[unbound]["damaged"], format!("from byte {at} on, 512 bytes are zeros"));
}

#[test]
fn a_luks1_header_without_its_magic_is_put_back_by_a_passphrase_alone() {
    let folder = Folder::new();
    let path = volume(&folder, "v", "LUKS1", &[]);
    let before = contents(&path, &folder.password).succeeds().out;
    edit(&path, |image| image[..6].fill(0));
    let wiped = fs::read(&path).expect("a file");
    assert!(run(["identify", &path]).succeeds().text().contains("LUKS1"));
    assert!(contents(&path, &folder.password).succeeds().out == before);
    run(["header", "repair", "--yes", &path]).fails(1, &[]);
    let wrong = text(&folder, "wrong", "wrong");
    run(["header", "repair", "--yes", "--password-file", &wrong, &path]).fails(2, &[]);
    run(["keyslot", "add", "--password-file", &folder.password, "--new-password-file", &wrong, &path])
        .fails(4, &["header repair"]);
    assert!(fs::read(&path).expect("a file") == wiped, "nothing was written");
    run(["header", "repair", "--yes", "--password-file", &folder.password, &path]).succeeds();
    assert!(tools::program("cryptsetup").is_none() || cryptsetup_opens(&path, &folder.password));
    // Bytes that are no header at all are not taken for one.
    edit(&path, |image| image[..208].fill(0));
    let found = run(["identify", &path]).text();
    assert!(!found.contains("signature is missing"), "{found}");
}

#[test]
fn explain_says_what_was_tried_and_which_keyslot_is_damaged() {
    let folder = Folder::new();
    let wrong = text(&folder, "wrong", "anything at all");
    let explain = |path: &str| run(["explain", "--password-file", &wrong, path]);
    let path = volume(&folder, "v", "LUKS1", &[]);
    run([
        "keyslot",
        "add",
        "--iterations",
        "1000",
        "--password-file",
        &folder.password,
        "--new-password-file",
        &wrong,
        &path,
    ])
    .succeeds();
    // Keyslot 1: stripes, offset, state.
    for (at, bytes) in [(44, [0; 4]), (40, [0xff; 4]), (0, [1, 2, 3, 4])] {
        let damaged = folder.str("damaged");
        fs::copy(&path, &damaged).expect("a copy");
        edit(&damaged, |image| image[208 + 48 + at..][..4].copy_from_slice(&bytes));
        let other = text(&folder, "other", "still another one");
        let explained = run(["explain", "--password-file", &other, &damaged]);
        let said = explained.text();
        assert!(explained.code == 2 && !said.contains("opens with"), "{at}: {said}");
        assert!(said.contains("wrong passphrase") && said.contains("keyslot 1: "), "{at}: {said}");
    }
    // The cipher is unknown, so nothing is opened by any password.
    edit(&path, |image| image[8..11].copy_from_slice(b"xyz"));
    let explained = explain(&path);
    assert!(explained.code == 5 && !explained.text().contains("opens with"), "{}", explained.text());
}

#[test]
fn explain_does_not_take_a_damaged_keyslot_for_one_that_opens() {
    let Some(case) = tools::Case::unpack("luks/explain-says-opens.luks.xz") else { return };
    let Some(wrong) = tools::Case::unpack("luks/wrong") else { return };
    let path = case.path().display().to_string();
    let explained = run(["explain", "--password-file", &wrong.path().display().to_string(), &path]);
    let said = explained.text();
    assert!(explained.code == 2 && !said.contains("opens with"), "{}: {said}", explained.code);
    assert!(said.contains("keyslot 0") && said.contains("keyslot 5"), "{said}");
}

#[test]
fn what_wipefs_takes_is_put_back() {
    let Some(case) = tools::Case::unpack("luks/wipefs-luks2.luks.xz") else { return };
    let Some(password) = tools::Case::unpack("luks/pw") else { return };
    let folder = Folder::new();
    let (path, password) = (folder.str("v"), password.path().display().to_string());
    fs::copy(case.path(), &path).expect("a copy");
    assert!(run(["identify", &path]).succeeds().text().contains("LUKS2"));
    assert!(run(["explain", "--without-password", &path]).text().contains("header repair"));
    run(["header", "repair", "--yes", &path]).succeeds();
    let key = text(&folder, "pw", &fs::read_to_string(&password).expect("a password"));
    assert!(tools::program("cryptsetup").is_none() || cryptsetup_opens(&path, &key));
    run(["info", "--password-file", &key, &path]).succeeds();
}

#[test]
fn a_header_backup_that_is_taken_for_the_volume_is_called_one() {
    let folder = Folder::new();
    let said = |path: &str, password: &str| {
        for verb in ["ls", "info"] {
            run([verb, "--password-file", password, path]).fails(1, &["header backup", "--header"]);
        }
        let explained = run(["explain", "--password-file", password, path]).text();
        assert!(explained.contains("header backup") && explained.contains("--header"), "{explained}");
        assert!(!explained.contains("opens with"), "{explained}");
    };
    if let (Some(case), Some(password)) =
        (tools::Case::unpack("luks/luks2-header-backup.bin.xz"), tools::Case::unpack("luks/pw"))
    {
        said(&case.path().display().to_string(), &password.path().display().to_string());
    }
    for format in ["LUKS1", "LUKS2"] {
        let (path, backup) = (volume(&folder, format, format, &[]), folder.str(&format!("{format}.backup")));
        run(["header", "backup", &path, &backup]).succeeds();
        said(&backup, &folder.password);
        run(["info", "--password-file", &folder.password, "--header", &backup, &path]).succeeds();
    }
    // A device that is too short, in the keyslots.
    for (format, end) in [("LUKS1", 1_052_672), ("LUKS2", 16 << 20)] {
        let path = folder.str(format);
        let short = folder.str("short");
        fs::write(&short, &fs::read(&path).expect("a volume")[..end - 1_000_000]).expect("written");
        let done = run(["info", "--password-file", &folder.password, &short]);
        assert!(done.code == 4 && done.err.contains("missing"), "{format}: {done:?}");
    }
}

#[test]
fn a_keyslot_whose_record_is_lost_is_named_and_disabled_only_where_it_is_asked_for() {
    let folder = Folder::new();
    let original = volume(&folder, "original", "LUKS1", &[]);
    let another = text(&folder, "another", "another");
    let add = ["keyslot", "add", "--iterations", "1000", "--password-file", &folder.password];
    run([&add[..], &["--new-password-file", &another, &original]].concat()).succeeds();
    let path = folder.str("v");
    // A keyslot with plausible values stays in use: only its state was damaged.
    fs::copy(&original, &path).expect("a copy");
    edit(&path, |image| image[256..260].copy_from_slice(&[1, 2, 3, 4]));
    run(["header", "repair", "--yes", &path]).succeeds();
    run(["info", "--password-file", &another, &path]).succeeds();
    // All of the record, as a partition table or text leaves it.
    for junk in [*b"of thirty two", [0xff; 13], [0; 13]] {
        fs::copy(&original, &path).expect("a copy");
        edit(&path, |image| {
            image[256..269].copy_from_slice(&junk);
            image[296..304].fill(junk[0]);
        });
        let before = fs::read(&path).expect("a file");
        run(["header", "repair", "--yes", &path]).fails(4, &["keyslot 1", "--disable-slot 1"]);
        run(["header", "repair", "--yes", "--disable-slot", "0", &path]).fails(4, &["keyslot 1"]);
        assert!(fs::read(&path).expect("a file") == before, "nothing was written");
        run(["header", "repair", "--yes", "--disable-slot", "1", &path]).succeeds();
        run(["info", "--password-file", &folder.password, &path]).succeeds();
        run(["info", "--password-file", &another, &path]).fails(2, &[]);
        assert!(tools::program("cryptsetup").is_none() || cryptsetup_opens(&path, &folder.password));
    }
}

#[test]
fn a_backup_is_restored_where_its_key_shows_that_it_belongs_there() {
    let folder = Folder::new();
    let wrong = text(&folder, "wrong", "wrong");
    for format in ["LUKS1", "LUKS2"] {
        let (path, backup) = (volume(&folder, format, format, &[]), folder.str(&format!("{format}.backup")));
        run(["header", "backup", &path, &backup]).succeeds();
        let whole = fs::read(&path).expect("a volume");
        let restore = ["header", "restore", "--yes", "--from", &backup];
        // With a header in front, a password is tried where it is given.
        run([&restore[..], &["--password-file", &wrong, &path]].concat()).fails(2, &[]);
        run([&restore[..], &["--password-file", &folder.password, &path]].concat()).succeeds();
        run([&restore[..], &[&path]].concat()).succeeds();
        assert!(fs::read(&path).expect("a volume") == whole, "{format}: nothing to do");
        // Without one, only what decrypts shows it.
        edit(&path, |image| image[..65536].fill(0));
        let wiped = fs::read(&path).expect("a volume");
        run([&restore[..], &["--password-file", &wrong, &path]].concat()).fails(2, &[]);
        run([&restore[..], &[&path]].concat()).fails(1, &["nothing shows"]);
        assert!(fs::read(&path).expect("a volume") == wiped, "{format}: nothing was written");
        run([&restore[..], &["--password-file", &folder.password, &path]].concat()).succeeds();
        run(["info", "--password-file", &folder.password, &path]).succeeds();
        // Another volume of the same size is refused; with --force, the message still says why.
        let other = folder.str("other");
        fs::write(&other, vec![0; whole.len()]).expect("zeros");
        let forced = |more: &[&str]| run([&restore[..], more, &["--password-file", &folder.password, &other]].concat());
        forced(&[]).fails(1, &["nothing shows that the backup belongs here"]);
        let said = forced(&["--force"]).succeeds().err;
        assert!(said.contains("Forced, even though") && !said.to_lowercase().contains("nothing was changed"), "{said}");
        fs::remove_file(&other).expect("removed");
    }
}

#[test]
fn what_luks1_becomes_cryptsetup_opens() {
    if tools::program("cryptsetup").is_none() {
        return;
    }
    let folder = Folder::new();
    if let Some(case) = tools::Case::unpack("luks/tomb-xts-plain64-sha256.luks.xz") {
        let path = folder.str("tomb");
        fs::copy(case.path(), &path).expect("a copy");
        let key = text(&folder, "pw", "pw");
        run(["header", "convert", "--yes", "--no-backup", "--to", "LUKS2", &path]).succeeds();
        assert!(cryptsetup_opens(&path, &key), "Tomb");
    }
    for cipher in [
        "aes-cbc-essiv:sha256",
        "aes-xts-plain",
        "aes-cbc-plain64",
        "aes-cbc-plain64be",
        "aes-xts-plain:sha256",
        "aes-cbc-benbi",
        "aes-cbc-null",
        "aes-xts-essiv:sha256",
        "aes-xts-plain64be:sha512",
        "aes-cbc-random",
        "aes-cbc-tcw",
        "aes-cbc-lmk",
        "aes-cbc-eboiv",
        "cipher_null-ecb",
    ] {
        let path = folder.str("v");
        let create =
            ["create", "--format", "LUKS1", "--quick", "--size", "4M", "--iterations", "1000", "--cipher", cipher];
        if run([&create[..], &["--password-file", &folder.password, &path]].concat()).code != 0 {
            continue;
        }
        let before = fs::read(&path).expect("a volume");
        let converted = run(["header", "convert", "--yes", "--no-backup", "--to", "LUKS2", &path]);
        match converted.code {
            0 => {
                assert!(cryptsetup_opens(&path, &folder.password), "{cipher}");
                run(["info", "--password-file", &folder.password, &path]).succeeds();
            }
            _ => {
                converted.fails(5, &["Nothing was changed"]);
                assert!(fs::read(&path).expect("a volume") == before, "{cipher}");
            }
        }
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_requirement_that_nobody_knows_is_unsupported() {
    let folder = Folder::new();
    let path = folder.luks2("v");
    run(["reencrypt", "--yes", "--init-only", "--password-file", &folder.password, &path]).succeeds();
    crate::program::patience::edit_metadata(&path, |header| {
        header["config"]["requirements"]["mandatory"] = serde_json::json!(["online-reencrypt-v999"]);
    });
    let before = fs::read(&path).expect("a volume");
    let password = ["--password-file", &folder.password];
    for verb in [
        &["info"][..],
        &["cat"],
        &["keyslot", "add", "--new-password-file", &folder.password],
        &["reencrypt", "--resume"],
    ] {
        run([verb, &password, &[&path]].concat()).fails(5, &["online-reencrypt-v999"]);
    }
    for verb in [&["header", "set", "--label", "x"][..], &["header", "repair", "--yes"]] {
        let done = run([verb, &[&path]].concat());
        assert!(done.code == 5 || done.code == 0 && verb[1] == "repair", "{done:?}");
    }
    assert!(fs::read(&path).expect("a volume") == before);
}

/// The digest proves the key alone: what a header says of cipher, sectors and place somebody without the key may have changed, and what is
/// rewritten by it would be lost.
#[test]
fn data_that_are_not_as_the_header_says_are_not_rewritten() {
    let folder = Folder::new();
    let password = ["--password-file", &folder.password];
    let changes: [fn(&mut serde_json::Value); 3] = [
        |segment| segment["encryption"] = "serpent-xts-plain64".into(),
        |segment| segment["sector_size"] = 4096.into(),
        |segment| segment["offset"] = (17u64 << 20).to_string().into(),
    ];
    for change in changes {
        let path = folder.str("v");
        let _ = fs::remove_file(&path);
        let path = volume(&folder, "v", "LUKS2", &["--sector-size", "512", "--label", "x"]);
        crate::program::patience::edit_metadata(&path, |header| change(&mut header["segments"]["0"]));
        let before = fs::read(&path).expect("a file");
        let header = folder.str("header");
        run([&["reencrypt", "--yes"], &password[..], &[&path]].concat()).fails(
            4,
            &["the header is wrong about the \
             data"],
        );
        run([&["reencrypt", "--yes", "--decrypt", "--header", &header], &password[..], &[&path]].concat())
            .fails(4, &["the header is wrong about the data"]);
        assert!(fs::read(&path).expect("a file") == before, "nothing was written");
        let _ = fs::remove_file(&header);
    }
    // The suggested command works.
    let path = volume(&folder, "w", "LUKS2", &[]);
    let whole = contents(&path, &folder.password).succeeds().out;
    run([&["reencrypt", "--yes"], &password[..], &[&path]].concat()).succeeds();
    assert!(contents(&path, &folder.password).succeeds().out == whole);
}

#[test]
fn verify_of_a_named_format_searches_for_no_other() {
    let folder = Folder::new();
    let path = folder.str("noise");
    run(["keyfile", "--size", "1M", &path]).succeeds();
    let done = run(["verify", "--format", "LUKS1", "--password-file", &folder.password, &path]);
    assert!(done.code == 3 && !done.err.contains("VeraCrypt"), "{done:?}");
}

#[test]
fn a_hashed_key_file_is_a_password_file() {
    let folder = Folder::new();
    let (path, key) = (folder.str("plain"), text(&folder, "key", &"k".repeat(32)));
    fs::write(&path, vec![7; 1 << 20]).expect("a file");
    let plain = ["--format", "plain", "--hash", "sha256", "--cipher", "aes-xts-plain64", "--key-size", "256"];
    let done = run([&["info", "--keyfile", &key], &plain[..], &[&path]].concat());
    assert!(done.err.contains("--password-file"), "{done:?}");
    let short = text(&folder, "short", "too short");
    run([&["info", "--keyfile", &short], &plain[..], &[&path]].concat()).fails(1, &["--password-file"]);
}

#[test]
fn labels_are_as_the_file_system_has_them() {
    let folder = Folder::new();
    let create = |kind: &str, label: &str| {
        let path = folder.str("labelled");
        let _ = fs::remove_file(&path);
        let words = ["create", "--format", "VeraCrypt", "--quick", "--size", "12M", "--pim", "1", "--filesystem", kind];
        let done = run([&words[..], &["--label", label, "--password-file", &folder.password, &path]].concat());
        assert!(
            done.code == 0 || !std::path::Path::new(&path).exists(),
            "{kind} {label}: refused before anything is written"
        );
        done
    };
    for (kind, label) in
        [("fat", "Fotos Süd"), ("exfat", "Fotos Süd"), ("fat", "ÄÖÜÄÖÜÄÖÜÄÖ"), ("exfat", "写真"), ("ntfs", "Süd:/")]
    {
        create(kind, label).succeeds();
        if let Some(blkid) = tools::program("blkid") {
            let (path, image) = (folder.str("labelled"), folder.str("image"));
            let cat = ["cat", "--veracrypt", "--pim", "1", "--password-file", &folder.password, &path];
            fs::write(&image, run(cat).succeeds().out).expect("written");
            let found = Command::new(blkid).args(["-p", "-o", "udev", &image]).output().expect("blkid starts");
            let found = String::from_utf8_lossy(&found.stdout).into_owned();
            assert!(found.contains("ID_FS_LABEL"), "{kind} {label}: {found}");
            let _ = fs::remove_file(&image);
        }
    }
    for (kind, label) in [
        ("fat", "a:b"),
        ("fat", "Ä€"),
        ("fat", " a"),
        ("fat", "twelve chars"),
        ("exfat", "twelve chars"),
        ("ext4", "a\nb"),
        ("ext4", "seventeen letters"),
    ] {
        create(kind, label).fails(1, &["label"]);
    }
}

#[cfg(unix)]
#[test]
fn a_key_far_into_a_device_is_not_read_up_to() {
    let (Some(()), Some(losetup)) = (tools::root(), tools::program("losetup")) else { return };
    let folder = Folder::new();
    let (usb, key) = (folder.str("usb"), folder.str("key"));
    fs::write(&key, [7; 64]).expect("a key");
    let file = fs::File::create(&usb).expect("a file");
    file.set_len(1 << 40).expect("sparse");
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 64], (1 << 40) - 4096).expect("written");
    let set_up = Command::new(&losetup).args(["--show", "-r", "-f", &usb]).output().expect("losetup starts");
    if !set_up.status.success() {
        let _ = tools::skip::<()>("no loop device");
        return;
    }
    let device = String::from_utf8_lossy(&set_up.stdout).trim().to_owned();
    let path = folder.str("v");
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "20M", "--kdf", "pbkdf2", "--iterations", "1000"];
    run([&create[..], &["--no-password", "--keyfile", &key, &path]].concat()).succeeds();
    // A terabyte takes hours to read.
    let offset = ((1u64 << 40) - 4096).to_string();
    let done =
        run(["keyslot", "test", "--keyfile", &device, "--keyfile-offset", &offset, "--keyfile-size", "64", &path]);
    let _ = Command::new(&losetup).args(["-d", &device]).status();
    done.succeeds();
}

#[test]
fn what_is_advised_names_the_volume() {
    let folder = Folder::new();
    let path = folder.luks2("a volume.luks");
    let on = |verb: &str| run([verb, "--password-file", &folder.password, &path]);
    edit(&path, |image| image[0x4000..0x5000].fill(0));
    let repair = format!("`claviger header repair '{path}'`");
    on("info").fails(0, &[&repair]);
    assert!(on("verify").fails(4, &[]).text().contains("no header:"));
    edit(&path, |image| image[..1 << 20].fill(0));
    on("info").fails(3, &["bytes are zeros", "restore a header backup"]);
}
