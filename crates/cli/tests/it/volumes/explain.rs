//! `claviger explain`: every cause that it knows is brought about here.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Done, Folder, PASSWORD, run, run_with};
use claviger_testkit::mounts::sparse_file;
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use serde_json::Value;

/// Options that keep the number of trials low.
const HINTS: [&str; 4] = ["--format", "TrueCrypt", "--hash", "SHA-512"];

/// Explains `volume` with a password.
fn explain(volume: &str, password: &str, more: &[&str]) -> Done {
    let mut args = vec!["explain", volume, "--password-file", "-"];
    args.extend(more);
    run_with(password.as_bytes(), args)
}

/// The same with hints, as JSON.
fn explained(volume: &str, password: &str, more: &[&str]) -> (i32, Value) {
    let done = explain(volume, password, &[&HINTS[..], &["--json"], more].concat());
    (done.code, done.json())
}

/// A TrueCrypt volume that `password` opens.
fn volume(folder: &Folder, name: &str, password: &str) -> String {
    let path = folder.str(name);
    let args = ["create", "--quick", "--size", "1M", "--password-file", "-", &path];
    run_with(password.as_bytes(), args.iter().chain(&HINTS)).succeeds();
    path
}

fn overwrite(path: &str, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).and_then(|f| f.write_all_at(bytes, at)).expect("written");
}

fn findings(json: &Value) -> String {
    json["findings"].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_opens_is_told_and_no_password_is_shown() {
    let folder = Folder::new();
    for (n, (opens, given, with, words)) in [
        ("Zebra/7 yak", "Yebra-7 zak", "keyboard-layout", "as typed on a German keyboard with the US layout active"),
        (
            "Zebra\u{df}7 yak",
            "Yebra-7 zak",
            "keyboard-layout",
            "as typed on a US keyboard with the German layout active",
        ),
        ("qwerty 123!", "azerty &é\"1", "keyboard-layout", "as typed on a French keyboard"),
        ("\u{43f}\u{430}\u{440}\u{43e}\u{43b}\u{44c}", "gfhjkm", "keyboard-layout", "a US keyboard with the Russian"),
        ("Open Sesame", "oPEN sESAME", "case", "typed with Caps Lock on"),
        ("open sesame", "open sesame \t", "ends", "without the white space at its end"),
        ("open sesame\r", "open sesame", "ends", "with a carriage return at its end"),
        ("Schlu\u{308}ssel", "Schl\u{fc}ssel", "unicode-form", "in the Unicode form NFD"),
        ("Schl\u{fc}ssel", "Schlu\u{308}ssel", "unicode-form", "in the Unicode form NFC"),
        ("open sesame", "open sesame", "as-given", "with the given credential"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = volume(&folder, &format!("{n}.tc"), opens);
        let (code, json) = explained(&path, given, &[]);
        assert_eq!((code, json["opens"]["with"].as_str()), (0, Some(with)), "{json:#}");
        assert_eq!(json["opens"]["caps_lock"], words.contains("Caps Lock on"), "{json:#}");
        let text = format!("{json} {}", explain(&path, given, &HINTS).text());
        assert!(text.contains(words), "{text}");
        assert!(!text.contains(opens.trim()) && !text.contains(given.trim()), "{text}");
    }
}

#[test]
fn other_encodings_of_the_password_are_tried() {
    let folder = Folder::new();
    let path = folder.str("latin.tc");
    let args = ["create", "--quick", "--size", "1M", "--password-file", "-", &path];
    run_with(b"Stra\xdfe", args.iter().chain(&HINTS)).succeeds();
    let (code, json) = explained(&path, "Stra\u{df}e", &[]);
    assert_eq!((code, json["opens"]["with"].as_str()), (0, Some("encoding")), "{json:#}");
}

#[test]
fn a_keyfile_too_many_is_told() {
    let folder = Folder::new();
    for (name, contents) in [("one", "first keyfile"), ("two", "second keyfile")] {
        fs::write(folder.path(name), contents).expect("a keyfile");
    }
    let (one, two) = (folder.str("one"), folder.str("two"));
    let plain = volume(&folder, "plain.tc", PASSWORD);
    let (code, json) = explained(&plain, PASSWORD, &["--keyfile", &one]);
    assert_eq!((code, json["opens"]["with"].as_str()), (0, Some("no-keyfiles")), "{json:#}");

    let path = folder.str("keyfile.tc");
    let args = ["create", "--quick", "--size", "1M", "--password-file", "-", "--keyfile", &two, &path];
    run_with(PASSWORD.as_bytes(), args.iter().chain(&HINTS)).succeeds();
    let (code, json) = explained(&path, PASSWORD, &["--keyfile", &one, "--keyfile", &two]);
    assert_eq!((code, json["opens"]["with"].as_str()), (0, Some("without-keyfile")), "{json:#}");
    assert!(json["opens"]["with_what"].as_str().expect("text").contains("number 1"));
    // A wrong hint, too.
    let done = explain(&plain, PASSWORD, &["--json", "--format", "TrueCrypt", "--hash", "Whirlpool"]);
    assert_eq!((done.code, done.json()["opens"]["with"].as_str()), (0, Some("without-hints")), "{done:?}");
}

/// The last line of a success is the command that mounts the volume, which needs no further option.
#[test]
fn what_opens_ends_with_the_command_that_mounts_it() {
    let folder = Folder::new();
    fs::write(folder.path("key"), "a keyfile").expect("a file");
    let (key, path) = (folder.str("key"), folder.str("a volume.tc"));
    let create = ["create", "--quick", "--size", "1M", "--password-file", &folder.password, "--keyfile", &key, &path];
    run(create.iter().chain(&HINTS)).succeeds();
    let explain = ["explain", "--password-file", &folder.password, "--keyfile", &key, "--hash", "SHA-512", &path];
    let text = run(explain).succeeds().text();
    let last = text.lines().last().expect("a command").trim().to_owned();
    assert!(last.starts_with("claviger mount ") && last.ends_with(&format!("'{path}'")), "{text}");
    // So does the one that shows its properties.
    let info = text.lines().map(str::trim).find(|line| line.starts_with("claviger info ")).expect("a command");
    let password = format!("--password-file={}", folder.password);
    for option in [&*format!("--keyfile={key}"), &password, "--hash=SHA-512", "--format=TrueCrypt"] {
        assert!(last.contains(option) && info.contains(option), "{option}: {text}");
    }
    // The same words open it.
    let opens = |mount: &str| {
        let script = format!("\"$0\" {}", mount.replacen("claviger mount", "info", 1));
        tools::run(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_claviger")]));
    };
    opens(&last);
    // Of a folder with keyfiles, those are named that opened it.
    let keys = folder.str("keys");
    fs::create_dir(&keys).expect("a folder");
    fs::copy(&key, folder.path("keys/right")).expect("copied");
    fs::write(folder.path("keys/wrong"), "another keyfile").expect("a file");
    let with = |key| [&["explain", "--password-file", &folder.password, "--keyfile", key][..], &HINTS].concat();
    let text = run([with(&keys), vec![&*path]].concat()).succeeds().text();
    let last = text.lines().last().expect("a command").trim();
    assert!(
        last.starts_with("claviger mount ") && last.contains("keys/right") && !last.contains("keys/wrong"),
        "{text}"
    );
    assert!(text.contains("Omit the keyfile") && text.contains("keys/wrong"), "{text}");
    opens(last);
    // What did not open it is left out.
    let wrong =
        ["--password-file", &folder.password, "--keyfile", &key, "--format", "TrueCrypt", "--hash", "Whirlpool"];
    let text = run(["explain"].iter().chain(&wrong).chain(&[&*path])).succeeds().text();
    let last = text.lines().last().expect("a command").trim();
    assert!(last.contains("--keyfile") && !last.contains("Whirlpool"), "{text}");
    // With a damaged header there are more commands, and each opens it.
    overwrite(&path, 0, &Random::new(3).bytes(512));
    let text = run([with(&key), vec![&*path]].concat()).succeeds().text();
    let commands: Vec<_> = text.lines().map(str::trim).filter(|line| line.starts_with("claviger ")).collect();
    for option in [format!("--keyfile={key}"), password, "--format=TrueCrypt".to_owned(), "--hash=SHA-512".to_owned()] {
        assert!(commands.len() > 2 && commands.iter().all(|line| line.contains(&option)), "{option}: {text}");
    }
}

#[test]
fn a_damaged_header_with_a_good_backup_is_told_with_the_way_back() {
    let folder = Folder::new();
    let noise = Random::new(7).bytes(512);
    let boot_sector = [b"\xeb\x3c\x90mkfs.fat".to_vec(), vec![0; 501]].concat();
    for (name, bytes) in [("noise.tc", noise), ("zeros.tc", vec![0; 65_536]), ("boot sector.tc", boot_sector)] {
        let path = volume(&folder, name, PASSWORD);
        overwrite(&path, 0, &bytes);
        let before = fs::read(&path).expect("readable");
        let done = explain(&path, PASSWORD, &["--json"]);
        let json = done.json();
        assert_eq!((done.code, json["opens"]["facts"]["header"].as_str()), (0, Some("backup")), "{json:#}");
        let advice = json["advice"].to_string();
        assert!(advice.contains("claviger header restore --embedded"), "{advice}");
        if name.contains(' ') {
            assert!(advice.contains(&format!("'{path}'")), "{advice}");
        }
        assert!(fs::read(&path).expect("readable") == before, "{name} was changed");
    }
}

/// What a format does not support, another verb does: the error names it, with the volume.
#[test]
fn what_a_format_lacks_is_told_with_the_verb_that_does_it() {
    let folder = Folder::new();
    let path = volume(&folder, "a volume.tc", PASSWORD);
    let with = [&HINTS[..], &["--password-file", &folder.password]].concat();
    let fails = |verb: &[&str], with: &[&str], advised: &str| {
        let wanted = format!("`claviger {advised} '{path}'");
        run([verb, with, &[&*path]].concat()).fails(5, &["not supported", &wanted]);
    };
    fails(&["header", "repair", "--format", "TrueCrypt"], &[], "header restore --embedded");
    fails(&["keyslot", "add", "--new-password-file", &folder.password], &with, "change");
    fails(&["header", "convert", "--to", "LUKS2", "--no-backup", "--format", "TrueCrypt"], &[], "convert");
    fails(&["header", "show", "--format", "TrueCrypt"], &[], "info");
}

/// The suggested `explain` takes the same volume with the same options.
#[test]
fn an_error_that_suggests_explain_repeats_the_options() {
    let folder = Folder::new();
    let path = volume(&folder, "v.tc", PASSWORD);
    let wrong = folder.str("wrong");
    fs::write(&wrong, "another password").expect("a file");
    let given = ["--format=TrueCrypt", "--hash=SHA-512", &format!("--password-file={wrong}")].join(" ");
    let error = run(["cat"].into_iter().chain(given.split(' ')).chain([&*path])).fails(2, &[]).err;
    assert!(error.contains(&format!("claviger explain {given} {path}")), "{error}");
    let header = format!("--header={wrong}");
    let error = run(["info", &header, &path]).fails(3, &[]).err;
    assert!(error.contains(&format!("claviger explain {header} {path}")), "{error}");
}

#[test]
fn a_hidden_volume_and_one_cut_short_are_told() {
    if let Some(hidden) = tools::sample("truecrypt/hidden.tc") {
        let path = hidden.display().to_string();
        let done = explain(&path, "hidden pass", &["--format", "TrueCrypt", "--hash", "Whirlpool"]).succeeds();
        assert!(done.text().contains("hidden volume"), "{}", done.text());
    }
    let folder = Folder::new();
    let path = volume(&folder, "short.tc", PASSWORD);
    OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(500_001)).expect("cut");
    let (code, json) = explained(&path, PASSWORD, &[]);
    assert_eq!(code, 4, "{json:#}");
    assert!(findings(&json).contains("whole 512-byte sectors") && findings(&json).contains("cut short"), "{json:#}");
    assert!(json["advice"].to_string().contains("--truncated"), "{json:#}");
}

#[test]
fn a_wrong_password_and_noise_cannot_be_told_apart_and_it_says_so() {
    let folder = Folder::new();
    let real = volume(&folder, "real.tc", PASSWORD);
    let noise = folder.str("noise");
    fs::write(&noise, Random::new(3).bytes(1 << 20)).expect("noise");
    for path in [real, noise] {
        let (code, json) = explained(&path, "another password", &[]);
        assert_eq!(code, 2, "{json:#}");
        assert!(findings(&json).contains("look the same"), "{json:#}");
        assert!(json["trials"].as_u64().expect("a number") > 10 && json["opens"].is_null(), "{json:#}");
    }
}

#[test]
fn volumes_without_a_header_are_mentioned_and_never_said_to_open_to_noise() {
    let folder = Folder::new();
    let noise = folder.str("noise");
    fs::write(&noise, Random::new(5).bytes(1 << 20)).expect("noise");
    let (code, text) = seen(Path::new(&noise));
    assert!(code == 2 && text.contains("plain, cryptoloop, loop-AES") && text.contains("--format=plain"), "{text}");
    assert!(run(["identify", &noise]).succeeds().text().contains("plain, cryptoloop, loop-AES: no header"));
    let options =
        ["--format", "plain", "--cipher", "aes-xts-plain64", "--hash", "sha256", "--key-size", "512", "--json"];
    let done = explain(&noise, "a password", &options);
    let json = done.json();
    assert!(done.code == 2 && json["opens"].is_null(), "{json:#}");
    assert!(findings(&json).contains("no header") && !json.to_string().contains("header restore"), "{json:#}");
    // A mark says more.
    fs::write(folder.path("zip"), [b"PK\x03\x04".to_vec(), Random::new(6).bytes(1 << 20)].concat()).expect("a file");
    assert!(!seen(&folder.path("zip")).1.contains("cryptoloop"));
}

/// Explains without a password: exit code and all that is printed.
fn seen(path: &Path) -> (i32, String) {
    let done = run([Path::new("explain"), Path::new("--without-password"), path]);
    (done.code, format!("{}{}", done.text(), done.err))
}

#[test]
fn what_is_no_volume_is_told_without_a_password() {
    let folder = Folder::new();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.path(name), bytes).expect("a file");
        folder.path(name)
    };
    let noise = Random::new(4).bytes(1 << 20);
    for (path, code, words) in [
        (file("empty", b""), 3, "(0 bytes)"),
        (file("tiny", b"abc"), 3, "too few"),
        (file("zeros", &[0; 1 << 20]), 3, "only zeros"),
        (file("text", &b"some text ".repeat(10_000)), 3, "Nothing in it looks encrypted"),
        (file("noise", &noise), 2, "looks random from beginning to end"),
        (file("half", &[&noise[..], &[0; 1 << 20]].concat()), 2, "random up to byte 1048576"),
        (file("gzip", &[b"\x1f\x8b\x08\0", &noise[..]].concat()), 3, "It is gzip data"),
        (file("salted", &[b"Salted__", &noise[..]].concat()), 5, "openssl enc"),
    ] {
        let (found, text) = seen(&path);
        assert!(found == code && text.contains(words), "{code} {words}: {found} {text}");
    }
    assert_eq!(seen(&folder.path("nothing there")).0, 6);
}

#[test]
fn other_formats_and_file_systems_are_named_with_what_opens_them() {
    let folder = Folder::new();
    for (program, args, words) in [
        ("mkfs.vfat", &["-n", "LABEL"][..], "FAT"),
        ("mkfs.ext4", &["-q", "-L", "LABEL"], "an ext4 file system, called LABEL, which is not encrypted"),
    ] {
        let Some(mkfs) = tools::program(program) else { continue };
        let path = folder.path(program);
        sparse_file(&path, 8 << 20);
        tools::run(Command::new(mkfs).args(args).arg(&path));
        let (code, text) = seen(&path);
        assert!(code == 3 && text.contains(words) && text.contains("not encrypted"), "{code} {text}");
    }
}

#[test]
fn a_luks_header_tells_what_is_wrong() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let folder = Folder::new();
    let path = folder.path("disk.luks");
    sparse_file(&path, 2 << 20);
    let mut format = Command::new(&cryptsetup);
    format.args(["luksFormat", "--batch-mode", "--type", "luks2", "--key-file", &folder.password]);
    format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--luks2-keyslots-size", "512k"]);
    tools::run(format.arg(&path));
    let (code, text) = seen(&path);
    assert!(code == 2 && text.contains("it has a LUKS2 header with 1 keyslot"), "{code} {text}");
    let shown = run([Path::new("header"), Path::new("show"), path.as_path()]);
    assert!(shown.code == 0 && shown.text().contains("aes-xts-plain64"), "{} {}", shown.code, shown.text());
    let mut bytes = fs::read(&path).expect("readable");
    bytes[500..600].fill(b'x');
    fs::write(&path, &bytes).expect("written");
    let (code, text) = seen(&path);
    assert!(code == 2 && text.contains("one of its two copies is damaged"), "{code} {text}");
    bytes[0x4000 + 500..0x4000 + 600].fill(b'x');
    fs::write(&path, &bytes).expect("written");
    let (code, text) = seen(&path);
    assert!(code == 4 && text.contains("checksum") && text.contains("header restore"), "{code} {text}");
}

#[test]
fn a_volume_in_a_partition_is_found() {
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    let folder = Folder::new();
    let volume = fs::read(volume(&folder, "v.tc", "Open Sesame")).expect("readable");
    let path = folder.str("disk");
    sparse_file(Path::new(&path), 8 << 20);
    let table = "label: gpt\nstart=2048, size=2048, name=\"plain\"\nstart=6144, size=2048, name=\"secret\"\n";
    fs::write(folder.path("table"), table).expect("written");
    let script = format!("{} -q {path} < {}", sfdisk.display(), folder.str("table"));
    tools::run(Command::new("sh").args(["-c", &script]));
    overwrite(&path, 6144 * 512, &volume);

    let (code, text) = seen(Path::new(&path));
    assert!(code == 2 && text.contains("Partition 2 (1 MiB") && text.contains("called secret) could be"), "{text}");
    let done = explain(&path, "oPEN sESAME", &["--hash", "SHA-512", "--json"]);
    let json = done.json();
    assert_eq!((done.code, json["opens"]["partition"].as_u64()), (0, Some(2)), "{json:#}");
    assert!(json["advice"].to_string().contains("--partition=2"), "{json:#}");
    let (code, json) = explained(&path, "Open Sesame", &["--partition", "2"]);
    assert_eq!((code, json["opens"]["with"].as_str()), (0, Some("as-given")), "{json:#}");
}

#[test]
fn no_password_is_asked_where_none_is_needed() {
    let folder = Folder::new();
    fs::write(folder.path("text"), "some text ".repeat(10_000)).expect("a file");
    // There is no terminal to ask on.
    run([Path::new("explain"), &folder.path("text")]).fails(3, &[]);
    fs::write(folder.path("noise"), Random::new(5).bytes(1 << 20)).expect("a file");
    run([Path::new("explain"), &folder.path("noise")]).fails(1, &["no terminal"]);
    run(["explain", "--without-password", "--password-file", "x", "y"]).fails(1, &["cannot be used with"]);
}
