//! identify, info, cat and create, as a person runs them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use crate::common::*;
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// Volumes of TrueCrypt 7.1a: file, password, keyfiles, cipher, hash, whether hidden, size of the plaintext.
type Sample = (&'static str, &'static str, &'static [&'static str], &'static str, &'static str, bool, u64);

const SAMPLES: &[Sample] = &[
    ("aes-sha512.tc", "correct horse", &[], "AES", "SHA-512", false, 147_456),
    ("serpent-ripemd160.tc", "serpent pass", &[], "Serpent", "RIPEMD-160", false, 147_456),
    ("twofish-whirlpool.tc", "twofish pass", &[], "Twofish", "Whirlpool", false, 147_456),
    (
        "aes-twofish-serpent-sha512-keyfiles.tc",
        "pw+keyfiles",
        &["key1.bin", "key2.bin"],
        "AES-Twofish-Serpent",
        "SHA-512",
        false,
        147_456,
    ),
    ("hidden.tc", "outer pass", &[], "AES", "SHA-512", false, 147_456),
    ("hidden.tc", "hidden pass", &[], "Serpent-Twofish-AES", "Whirlpool", true, 98_304),
];

const HELLO: &str = "79a3dcf9ca26ebeb13ccf6eccfc9667eb28d6b16bd78e7889d087f4c1e37977e";
const RANDOM: &str = "60451da521f9e5216b6b655e698a221b34390d6cff9bda4c9a289c128c488a30";

fn opening(sample: &Sample) -> Option<Vec<String>> {
    let (file, _, keyfiles, ..) = sample;
    let mut args = vec!["--password-file".to_owned(), "-".to_owned()];
    for keyfile in *keyfiles {
        let path = tools::sample(&format!("truecrypt/{keyfile}"))?;
        args.extend(["--keyfile".to_owned(), path.display().to_string()]);
    }
    args.push(tools::sample(&format!("truecrypt/{file}"))?.display().to_string());
    Some(args)
}

#[test]
fn samples_are_possibly_truecrypt() {
    let Some(folder) = tools::sample("truecrypt") else { return };
    let mut args = vec!["identify".to_owned(), "--json".to_owned()];
    args.extend(SAMPLES.iter().map(|s| folder.join(s.0).display().to_string()));
    let found = run(&args).succeeds().json();
    assert_eq!(found.as_array().expect("a list").len(), SAMPLES.len());
    for file in found.as_array().expect("a list") {
        assert_eq!(
            (file["verdict"].as_str(), file["format"].as_str()),
            (Some("possible"), Some("TrueCrypt")),
            "{file}"
        );
        assert_eq!(file["size"], 409_600);
    }
    let text = run(["identify".into(), folder.join("aes-sha512.tc")]).succeeds().text();
    assert!(text.contains("aes-sha512.tc: possibly TrueCrypt or VeraCrypt\n"), "{text}");
}

#[test]
fn a_possible_volume_comes_with_the_command_that_tries_it() {
    let folder = Folder::new();
    fs::write(folder.path("a b"), Random::new(7).bytes(1 << 20)).expect("a file");
    let possible = folder.str("a b");
    let text = run(["identify", &possible]).succeeds().text();
    for command in
        [format!("`claviger explain '{possible}'`"), format!("`claviger explain --format NAME '{possible}'`")]
    {
        assert!(text.contains(&command), "{text}");
    }
    let luks = run(["identify", &folder.luks2("luks")]).succeeds().text();
    assert!(!luks.contains("claviger explain"), "{luks}");
}

#[test]
fn samples_open_and_say_what_they_are() {
    for sample in SAMPLES {
        let (_, password, _, cipher, hash, hidden, size) = sample;
        let Some(args) = opening(sample) else { return };
        let info = run_with(password.as_bytes(), ["info", "--json"].iter().map(ToString::to_string).chain(args));
        let info = info.succeeds().json();
        assert_eq!(info["format"], "TrueCrypt");
        assert_eq!(info["cipher"], *cipher);
        assert_eq!(info["hash"], *hash);
        assert_eq!(info["mode"], "XTS");
        assert_eq!(info["hidden"], *hidden);
        assert_eq!(info["size"], *size);
        assert_eq!(info["stored"], 409_600);
        assert_eq!(info["warnings"], serde_json::json!([]));
        assert!(info["trials"].as_u64() > Some(0) && info["seconds"].is_number() && info["path"].is_string(), "{info}");
    }
}

#[test]
fn samples_hold_their_files() {
    let Some(mtype) = tools::program("mtype") else { return };
    let folder = Folder::new();
    for sample in SAMPLES {
        let (_, password, _, _, _, hidden, size) = *sample;
        let Some(args) = opening(sample) else { return };
        let cat = run_with(format!("{password}\n").as_bytes(), std::iter::once("cat".to_owned()).chain(args));
        let cat = cat.succeeds();
        assert_eq!(cat.err, "");
        assert_eq!(cat.out.len() as u64, size);
        fs::write(folder.path("image"), &cat.out).expect("an image");
        for (name, sum) in [("hello.txt", HELLO), ("rnd.bin", RANDOM)] {
            if hidden && name == "rnd.bin" {
                continue;
            }
            let mut command = Command::new(&mtype);
            let file = tools::run(command.arg("-i").arg(folder.path("image")).arg(format!("::{name}"))).stdout;
            assert_eq!(sha256(&file), sum, "{sample:?}");
        }
    }
}

#[test]
fn hints_narrow_the_trials() {
    let sample = &SAMPLES[0];
    let Some(args) = opening(sample) else { return };
    let trials = |more: &[&str]| {
        let args = ["info", "--json"].iter().chain(more).map(ToString::to_string).chain(args.clone());
        run_with(sample.1.as_bytes(), args).succeeds().json()["trials"].as_u64().expect("a number")
    };
    // One, and what other threads tried in the meantime in the 4 other places of a header.
    let hinted = trials(&["--hash", "sha-512", "--cipher", "aes", "--format", "truecrypt", "--no-aes"]);
    assert!((1..=7).contains(&hinted), "{hinted} trials of one hash and one cipher");
    assert!(trials(&["--no-aes"]) >= 1);
    let args: Vec<_> = ["info", "--hash", "MD5"].iter().map(ToString::to_string).chain(args.clone()).collect();
    run_with(sample.1.as_bytes(), &args).fails(1, &["no hash is called MD5", "Whirlpool"]);
}

#[test]
fn what_is_created_opens() {
    let folder = Folder::new();
    let list = run(["create", "--list", "--json"]).succeeds().json();
    assert_eq!(list[1]["format"], "VeraCrypt");
    assert!(list[0]["format"] == "TrueCrypt" && list[0]["ciphers"].as_array().is_some_and(|c| c.len() > 5), "{list}");
    for listed in list.as_array().expect("a list") {
        let count = |name: &str| listed[name].as_array().map(Vec::len).expect("a list");
        let rates = listed["guesses_per_second"].as_array().expect("a list");
        assert!(rates.iter().all(|rate| rate.as_f64() > Some(0.0)), "{listed}");
        assert!(rates.is_empty() || rates.len() == count("hashes").max(1), "{listed}");
    }
    let rate = |at: usize| list[at]["guesses_per_second"][0].as_f64();
    assert!(rate(1) < rate(0) && rate(1).is_some(), "VeraCrypt derives longer than TrueCrypt: {list}");
    let list = run(["create", "--list"]).succeeds().text();
    for name in ["AES-Twofish-Serpent", "RIPEMD-160", "Whirlpool", "Kuznyechik-Serpent-Camellia", "Argon2id"] {
        assert!(list.contains(name), "{list}");
    }
    assert!(!list.contains("cryptoloop"), "nobody creates it: {list}");
    for format in ["LUKS1", "LUKS2", "plain", "loop-AES"] {
        assert!(list.contains(&format!("{format}, from")), "{list}");
    }
    assert!(list.contains("eCryptfs, an encrypted folder\n  ciphers: aes, "), "{list}");
    let unknown = run(["create", "--format", "floppy", &folder.str("f")]).fails(1, &["called floppy", "eCryptfs"]);
    assert!(!unknown.err.contains("FileVault2"), "nobody creates it: {unknown:?}");
    let old = folder.str("old");
    let create = ["create", "--format", "cryptoloop", "--size", "1M", "--password-file", &folder.password, &old];
    run(create).fails(5, &["cryptoloop", "creating cryptoloop volumes"]);
    assert!(!folder.path("old").exists());
    let path = folder.str("new.tc");
    let create = [
        "create",
        "--format",
        "TrueCrypt",
        "--json",
        "--size",
        "1M",
        "--cipher",
        "serpent",
        "--hash",
        "whirlpool",
        "--password-file",
    ];
    let created = run(create.iter().copied().chain([&*folder.password, &path])).succeeds();
    assert_eq!(created.err, "", "no progress without a terminal");
    let created = created.json();
    assert_eq!((created["cipher"].as_str(), created["hash"].as_str()), (Some("Serpent"), Some("Whirlpool")));
    assert_eq!((created["stored"].as_u64(), created["size"].as_u64()), (Some(1 << 20), Some((1 << 20) - (256 << 10))));
    let metadata = fs::metadata(&path).expect("a file");
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (1 << 20, 0o600));
    let bytes = fs::read(&path).expect("a file");
    assert!(bytes.chunks(512).all(|sector| sector.iter().any(|b| *b != 0)), "not a sector is left unfilled");

    let info = run(["info", "--json", "--password-file", &folder.password, &path]).succeeds().json();
    assert_eq!((info["cipher"].as_str(), info["hash"].as_str()), (Some("Serpent"), Some("Whirlpool")));
    let cat = run(["cat", "--password-file", &folder.password, &path]).succeeds();
    assert_eq!(cat.out.len(), (1 << 20) - (256 << 10));
}

#[test]
fn create_says_how_fast_it_was() {
    let folder = Folder::new();
    let path = folder.str("new.tc");
    let text = run(["create", "--format", "TrueCrypt", "--size", "300KB", "--password-file", &folder.password, &path])
        .fails(0, &[])
        .text();
    assert!(text.contains("Filled 36.5 KiB") && text.contains("MB/s"), "{text}");
    let text = run([
        "create",
        "--format",
        "TrueCrypt",
        "--quick",
        "--size",
        "1M",
        "--password-file",
        &folder.password,
        &folder.str("b"),
    ]);
    let text = text.succeeds().text();
    assert!(text.contains("not filled") && text.contains("(768 KiB) of 1 MiB for files"), "{text}");
}

#[test]
fn cat_takes_a_part() {
    let folder = Folder::new();
    let path = folder.volume("v.tc", "10M", &[]);
    let all = run(["cat", "--password-file", &folder.password, &path]).succeeds().out;
    assert_eq!(all.len(), (10 << 20) - (256 << 10));
    let part = |offset: &str, length: &str| {
        run(["cat", "--offset", offset, "--length", length, "--password-file", &folder.password, &path])
    };
    assert!(part("1M", "5000001").succeeds().out == all[1 << 20..][..5_000_001]);
    assert!(part("513", "1").succeeds().out == all[513..514]);
    assert!(part(&all.len().to_string(), "0").succeeds().out.is_empty());
    let rest = run(["cat", "--offset", "9M", "--password-file", &folder.password, &path]).succeeds().out;
    assert!(rest == all[9 << 20..]);
    part("9M", "1M").fails(1, &["past the end"]);
    part("11M", "0").fails(1, &["past the end"]);
    part("18446744073709551615", "1").fails(1, &["past the end"]);
    part("1.5", "1").fails(1, &["1.5"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = Folder::new();
    let path = folder.volume("v.tc", "20M", &[]);
    let mut child = claviger()
        .args(["cat", "--password-file", &folder.password, &path])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let done = done(child.wait_with_output().expect("it ends"));
    assert_eq!((done.code, &*done.err), (0, ""));
}

#[test]
fn a_full_standard_output_is_an_error() {
    let folder = Folder::new();
    let path = folder.volume("v.tc", "1M", &[]);
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    for verb in ["cat", "info"] {
        let mut command = claviger();
        command.args([verb, "--password-file", &folder.password, &path]).stdout(full());
        done(command.output().expect("it ends")).fails(6, &["standard output", "No space left"]);
    }
}

#[test]
fn misuse_is_1() {
    let folder = Folder::new();
    for args in [
        &["frobnicate"][..],
        &[],
        &["info"],
        &["cat", "--offset", "1X", "x"],
        &["create", "x", "--size", "1M", "--cipher", "ROT13", "--no-password", "--keyfile", "k"],
        &["info", "--password", "secret", "x"],
        &["info", "--no-password", "x"],
        &["info", "--password-file", "a", "--password-fd", "0", "x"],
        &["serve", "--raw", "--cipher", "AES", "x"],
        &["serve", "--tcp", "192.0.2.1:10809", "--raw", "/etc/hostname", "--read-only"],
    ] {
        let done = run(args).fails(1, &[]);
        assert!(!done.err.is_empty() && done.out.is_empty(), "{args:?}");
    }
    let volume = folder.volume("v.tc", "1M", &[]);
    run(["info", &volume]).fails(1, &["no terminal", "--password-file"]);
    run(["info", "--format", "floppy", &volume])
        .fails(1, &["there is no format called floppy", "TrueCrypt", "eCryptfs"]);
    run(["cat", "--password-file", &folder.password, &folder.str("")]).fails(3, &["this is not an encrypted folder"]);
    run(["create", "--format", "TrueCrypt", "--password-file", &folder.password, &folder.str("n")])
        .fails(1, &["--size"]);
    run(["create", "--format", "TrueCrypt", "--size", "10K", "--password-file", &folder.password, &folder.str("n")])
        .fails(1, &["too small", "at least --size 292K"]);
    let cipher = [
        "create",
        "--format",
        "TrueCrypt",
        "--size",
        "1M",
        "--cipher",
        "ROT13",
        "--password-file",
        &folder.password,
        &folder.str("n"),
    ];
    run(cipher).fails(1, &["no cipher is called ROT13", "Twofish"]);
    assert!(!folder.path("n").exists());
}

#[test]
fn help_and_version_are_0() {
    for verb in ["identify", "info", "create", "cat", "serve", "benchmark", "lab"] {
        for flag in ["-h", "--help"] {
            let help = run([verb, flag]).succeeds();
            assert!(help.err.is_empty() && help.text().contains("Usage:"));
        }
        if !["benchmark", "lab"].contains(&verb) {
            assert!(run([verb, "-h"]).text().contains("Examples:"), "{verb}");
        }
    }
    let help = run(["--help"]).succeeds().text();
    assert!(help.contains("Exit status:") && help.contains("9  another process has the volume open"), "{help}");
    assert!(run(["--version"]).succeeds().text().starts_with("claviger "));
}

#[test]
fn a_wrong_credential_is_2() {
    let folder = Folder::new();
    fs::write(folder.path("key"), "a keyfile").expect("a keyfile");
    fs::write(folder.path("other"), "another keyfile").expect("a keyfile");
    let key = folder.str("key");
    let volume = folder.volume("v.tc", "1M", &["--keyfile", &key]);
    let honest = &["wrong passphrase", "damaged header"];
    run_with(b"wrong", ["info", "--truecrypt", "--password-file", "-", "--keyfile", &key, &volume]).fails(2, honest);
    run(["info", "--truecrypt", "--password-file", &folder.password, &volume]).fails(2, honest);
    run(["info", "--truecrypt", "--password-file", &folder.password, "--keyfile", &folder.str("other"), &volume])
        .fails(2, honest);
    run(["info", "--truecrypt", "--no-password", "--keyfile", &key, &volume]).fails(2, honest);
    run(["cat", "--truecrypt", "--password-file", "/dev/null", "--keyfile", &key, &volume]).fails(2, honest);
    run(["info", "--truecrypt", "--password-file", &folder.password, "--keyfile", &key, &volume]).succeeds();
}

#[test]
fn veracrypt_volumes_say_what_they_are() {
    let folder = Folder::new();
    let volume = folder.str("v.hc");
    fs::write(folder.path("long"), "a passphrase long enough for any PIM\n").expect("a password file");
    let long = folder.str("long");
    let create = |pim: &str, hash: &str, password: &str| {
        let how = ["create", "--force", "--yes", "--quick", "--size", "1M", "--pim", pim, "--hash", hash];
        run(how.iter().chain(&["--password-file", password, &volume]))
    };
    fs::write(&volume, "").expect("an empty file");
    fs::write(folder.path("short"), "short\n").expect("a password file");
    create("1", "argon2id", &folder.str("short")).fails(1, &["is too low for", "20 bytes"]);
    create("1", "argon2id", &long).succeeds();
    let info = |more: &[&str]| run(["info", "--password-file", &long, &volume].iter().chain(more));
    let known = ["--veracrypt", "--hash", "Argon2id", "--pim", "1"];
    let text = info(&known).succeeds().text();
    assert!(text.contains("VeraCrypt") && text.contains("Argon2id, 3 passes over 64 MiB (PIM 1)"), "{text}");
    let json = info(&[&known[..], &["--json"]].concat()).succeeds().json();
    assert_eq!((json["format"].as_str(), json["pim"].as_u64()), (Some("VeraCrypt"), Some(1)));
    assert_eq!((json["memory"].as_u64(), json["iterations"].as_u64()), (Some(64 << 20), Some(3)));
    info(&[&known[..], &["--memory", "32M"]].concat()).fails(7, &["not enough memory", "67108864"]);
    info(&["--veracrypt", "--truecrypt"]).fails(1, &["cannot be used with"]);
    info(&["--truecrypt", "--pim", "1"]).fails(1, &["TrueCrypt takes no PIM"]);
    // Before anybody is asked for a password.
    run(["info", "--truecrypt", "--pim", "1", &volume]).fails(1, &["TrueCrypt takes no PIM"]);
    run(["info", "--format", "clear", "--pim", "1", &folder.str("")]).fails(1, &["clear takes no PIM"]);
    info(&["--pim", "1", "--hash", "sha512"]).fails(2, &["omit the PIM"]);
}

#[test]
fn json_errors_are_one_line_with_one_object() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let done = run_with(b"wrong", ["info", "--json", "--truecrypt", "--password-file", "-", &volume]).fails(2, &[]);
    assert!(done.out.is_empty());
    let json: serde_json::Value = serde_json::from_str(&done.err).expect("JSON");
    assert_eq!(
        (json["error"]["kind"].as_str(), json["error"]["exit_code"].as_u64()),
        (Some("wrong-credential"), Some(2))
    );
    assert!(json["error"]["message"].as_str().is_some_and(|m| m.contains("v.tc")));
    assert_eq!(done.err.lines().count(), 1);
}

#[test]
fn not_a_volume_is_3() {
    let folder = Folder::new();
    fs::write(folder.path("text"), "plain text\n".repeat(10_000)).expect("a file");
    fs::write(folder.path("short"), "x").expect("a file");
    for name in ["text", "short"] {
        run(["identify", &folder.str(name)]).fails(3, &[]);
        run(["info", "--password-file", &folder.password, &folder.str(name)]).fails(3, &["TrueCrypt"]);
    }
    // The others are still examined.
    let volume = folder.volume("v.tc", "1M", &[]);
    let [none, text] = ["none", "text"].map(|name| folder.str(name));
    let all = run(["identify", "--json", &text, &none, &volume]).fails(6, &["none"]).json();
    assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
    assert_eq!(all[1]["path"], *none);
    assert_eq!((&all[1]["error"]["kind"], &all[1]["error"]["exit_code"]), (&"io".into(), &6.into()), "{all}");
    assert!(all[0]["verdict"] == "no" && all[2]["verdict"] == "possible", "{all}");
}

#[test]
fn a_volume_cut_short_is_4() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let whole = run(["cat", "--password-file", &folder.password, &volume]).succeeds().out;
    fs::OpenOptions::new().write(true).open(&volume).and_then(|f| f.set_len(512 << 10)).expect("cut");
    run(["info", "--password-file", &folder.password, &volume]).fails(4, &["cut short", "--truncated"]);
    let info = run(["info", "--json", "--truncated", "--password-file", &folder.password, &volume]);
    let info = info.fails(0, &["warning", "cut short"]).json();
    assert_eq!(info["writable"], false);
    assert_eq!(info["warnings"].as_array().map(Vec::len), Some(1));
    let left = (512 << 10) - (128 << 10);
    let args = ["cat", "--truncated", "--length", &left.to_string(), "--password-file", &folder.password, &volume];
    assert!(run(args).succeeds().out == whole[..left]);
    // All readable data come out before the error, with any size of chunks.
    let all = run(["cat", "--truncated", "--password-file", &folder.password, &volume]).fails(6, &[]);
    assert!(all.out == whole[..left]);
}

#[test]
fn a_volume_whose_beginning_is_gone_opens_by_its_name_and_backup() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let file = fs::OpenOptions::new().write(true).open(&volume).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 0).expect("overwritten");
    run(["info", "--password-file", &folder.password, &volume]).fails(3, &["backup header", "--format"]);
    let names = run(["identify", "--json", &volume]).fails(3, &[]).json()[0]["by_header_copy"].clone();
    assert_eq!(names, serde_json::json!(["TrueCrypt", "VeraCrypt"]));
    assert!(run(["identify", &volume]).text().contains("claviger explain"));
    for how in [&["--format", "truecrypt"][..], &["--backup-header"]] {
        let info = run(["info", "--json", "--password-file", &folder.password, &volume].iter().chain(how));
        assert_eq!(info.fails(0, &[]).json()["header"], "backup");
    }
}

#[test]
fn a_damaged_header_is_helped_by_its_backup() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let info = |more: &[&str]| run(["info", "--json", "--password-file", &folder.password, &volume].iter().chain(more));
    assert_eq!(info(&["--backup-header"]).succeeds().json()["header"], "backup");
    let mut bytes = fs::read(&volume).expect("a file");
    // In the encrypted part, and then in the salt.
    for (at, said) in [(300, "unusable"), (10, "backup")] {
        bytes[at] ^= 1;
        fs::write(&volume, &bytes).expect("damaged");
        let opened = info(&[]).fails(0, &["claviger: warning:", "primary header", said]).json();
        assert_eq!(opened["header"], "backup");
        assert_eq!(opened["warnings"].as_array().map(Vec::len), Some(1));
    }
    let backup = bytes.len() - (128 << 10);
    bytes[backup + 300] ^= 1;
    fs::write(&volume, &bytes).expect("damaged");
    info(&[]).fails(4, &["damaged", "checksum"]);
    bytes[backup + 10] ^= 1;
    fs::write(&volume, &bytes).expect("damaged");
    // Without its salt, a header looks like one of another password, and the message says so.
    info(&["--truecrypt"]).fails(2, &["damaged header", "wrong passphrase", "look the same"]);
}

/// After a power cut, a volume exists only if its header does, and both have their final names.
#[test]
fn a_detached_header_is_durable_before_its_volume_is() {
    let Some(strace) = tools::program("strace") else { return };
    let folder = Folder::new();
    for name in ["headers", "volumes"] {
        fs::create_dir(folder.path(name)).expect("a folder");
    }
    let (header, volume, log) = (folder.str("headers/h"), folder.str("volumes/v"), folder.str("log"));
    let mut command = Command::new(strace);
    command.args([
        "-f",
        "-qq",
        "-y",
        "-e",
        "trace=fsync,fdatasync,pwrite64",
        "-o",
        &log,
        env!("CARGO_BIN_EXE_claviger"),
    ]);
    command.args([
        "create",
        "--quick",
        "--format",
        "LUKS1",
        "--iterations",
        "1000",
        "--size",
        "1M",
        "--header",
        &header,
    ]);
    command.args(["--password-file", &folder.password, &volume]);
    done(command.output().expect("strace starts")).succeeds();
    let log = fs::read_to_string(log).expect("a log");
    let lines: Vec<_> = log.lines().collect();
    let last =
        |what: &dyn Fn(&str) -> bool| lines.iter().rposition(|line| what(line)).unwrap_or_else(|| panic!("{log}"));
    let synced = |path: &str| last(&|line| line.contains("sync(") && line.contains(&format!("<{path}>")));
    let in_order = [
        last(&|line| line.contains("pwrite64(") && line.contains(&format!("<{header}>"))),
        synced(&header),
        synced(&folder.str("headers")),
        synced(&folder.str("volumes")),
    ];
    assert!(in_order.is_sorted(), "{in_order:?}: {log}");
}

#[test]
fn files_that_cannot_be_read_are_6() {
    let folder = Folder::new();
    run(["identify", &folder.str("none")]).fails(6, &["No such file"]);
    run(["info", "--password-file", &folder.password, &folder.str("none")]).fails(6, &["none: No such file"]);
    let volume = folder.volume("v.tc", "1M", &[]);
    run(["info", "--password-file", &folder.str("none"), &volume]).fails(6, &["none: No such file"]);
    run(["info", "--no-password", "--keyfile", &folder.str("none"), &volume]).fails(6, &["none: No such file"]);
    run(["info", "--password-fd", "77", &volume]).fails(6, &["--password-fd 77"]);
}

#[test]
fn passwords_come_from_descriptors_and_substituted_files() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let program = env!("CARGO_BIN_EXE_claviger");
    for script in ["\"$1\" info --password-fd 5 \"$2\" 5<\"$3\"", "\"$1\" info --password-file <(cat \"$3\") \"$2\""] {
        for user in ["0", "65534"] {
            if user != "0" && tools::root().is_none() {
                continue;
            }
            let mut command = if user == "0" {
                Command::new("bash")
            } else {
                // Not root: a process that makes no core dumps does not own its own /proc entries then.
                tools::run(Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path(".")));
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user, "--clear-groups", "bash"]);
                command
            };
            let output = command.args(["-c", script, "bash", program, &volume, &folder.password]).output();
            done(output.expect("bash starts")).succeeds();
        }
    }
}

#[test]
fn a_folder_of_keyfiles_stands_for_its_files() {
    let folder = Folder::new();
    fs::create_dir(folder.path("keys")).expect("a folder");
    run(["info", "--no-password", "--keyfile", &folder.str("keys"), "x"]).fails(6, &[]);
    let create = |name: &str| {
        let keys = folder.str("keys");
        run([
            "create",
            "--format",
            "TrueCrypt",
            "--quick",
            "--size",
            "1M",
            "--no-password",
            "--keyfile",
            &keys,
            &folder.str(name),
        ])
    };
    create("v.tc").fails(1, &["no keyfile"]);
    fs::write(folder.path("keys/a"), "one").expect("a keyfile");
    fs::write(folder.path("keys/b"), "two").expect("a keyfile");
    create("v.tc").succeeds();
    let (a, b, volume) = (folder.str("keys/a"), folder.str("keys/b"), folder.str("v.tc"));
    run(["info", "--no-password", "--keyfile", &b, "--keyfile", &a, &volume]).succeeds();
    run(["info", "--truecrypt", "--no-password", "--keyfile", &a, &volume]).fails(2, &[]);
}

#[test]
fn nothing_is_overwritten_unasked() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let before = fs::read(&volume).expect("a file");
    let args =
        ["create", "--format", "TrueCrypt", "--quick", "--size", "2M", "--password-file", &folder.password, &volume];
    let create = |more: &[&str]| run(args.iter().chain(more));
    create(&[]).fails(1, &["already exists", "1048576 bytes", "possibly an encrypted volume", "--force"]);
    create(&["--force"]).fails(1, &["no terminal to ask on", "--yes"]);
    create(&["--yes"]).fails(1, &["--force"]);
    assert!(fs::read(&volume).expect("a file") == before, "it is as it was");
    create(&["--force", "--yes"]).succeeds();
    assert_eq!(fs::metadata(&volume).expect("a file").len(), 2 << 20);
    let names: Vec<_> =
        fs::read_dir(folder.path(".")).expect("a folder").map(|e| e.expect("a file").file_name()).collect();
    assert_eq!(names.len(), 2, "no other file is left: {names:?}");

    let image = folder.str("fat");
    let Some(mkfs) = tools::program("mkfs.vfat") else { return };
    tools::run(Command::new(mkfs).args(["-C", &image, "1024"]));
    run(["create", "--format", "TrueCrypt", "--size", "1M", "--password-file", &folder.password, &image])
        .fails(1, &["a FAT12 file system"]);
}

/// Without a terminal, nobody can be asked for the password: all of these come before.
#[test]
fn what_no_volume_can_be_is_refused_before_the_password() {
    let folder = Folder::new();
    let path = folder.str("v");
    for (how, code, words) in [
        ("LUKS2 --size 20M --sector-size 1000", 1, "1000 bytes is not a valid sector size"),
        ("LUKS2 --size 20481K --sector-size 4096", 1, "not a whole number of 4096-byte sectors"),
        ("LUKS2 --size 17M --offset 16M --keyslots-size 32M", 1, "need 33587200 bytes, but only 16777216"),
        ("LUKS2 --size 20M --kdf scrypt", 1, "no key derivation called scrypt"),
        ("LUKS2 --size 20M --uuid 7", 1, "UUID"),
        ("LUKS1 --size 20M --offset 1000", 1, "data cannot begin at byte 1000"),
        ("LUKS1 --size 20M --iterations 10", 1, "at least 1000"),
        ("VeraCrypt --size 20M --pim 9999999", 1, "9999999 is too large"),
        ("plain --size 1025K --sector-size 4096", 1, "not a whole number of sectors of 4096 bytes"),
        ("BitLocker --size 20M --sector-size 1000", 1, "1000"),
        ("LUKS2 --size 900T", 6, "needs 900 TiB, "),
        ("VeraCrypt --size 900T", 6, "needs 900 TiB, "),
    ] {
        let args = how.split(' ').chain([&*path]);
        let refused = run(["create", "--format"].into_iter().chain(args)).fails(code, &[words]);
        assert!(!refused.err.contains("terminal") && !folder.path("v").exists(), "{how}: {}", refused.err);
    }
}

#[test]
fn a_full_file_system_is_6_and_leaves_nothing() {
    let Some(small) = Tmpfs::new("size=1m") else { return };
    let folder = Folder::new();
    let path = small.path().join("v.tc").display().to_string();
    let create = |size: &str, more: &[&str]| {
        run(["create", "--format", "TrueCrypt", "--size", size, "--password-file", &folder.password, &path]
            .iter()
            .chain(more))
    };
    create("4M", &[]).fails(6, &["v.tc", "No space left", "needs 4 MiB, 1 MiB free"]);
    assert_eq!(fs::read_dir(small.path()).expect("a folder").count(), 0);
    // The successor of a file does not fit beside it: the file stays.
    create("600K", &["--quick"]).succeeds();
    let before = fs::read(&path).expect("a file");
    create("700K", &["--force", "--yes"]).fails(6, &["No space left", "needs 700 KiB, ", " free"]);
    assert_eq!(fs::read_dir(small.path()).expect("a folder").count(), 1);
    assert!(fs::read(&path).expect("a file") == before);
    // A header backup is as large as all headers, and what cannot be kept is no backup.
    fs::write(small.path().join("other"), vec![0; 360 << 10]).expect("there is room");
    let backup = small.path().join("backup").display().to_string();
    let hints = ["--format", "TrueCrypt", "--password-file", &folder.password];
    let full = run(["header", "backup"].iter().chain(&hints).chain(&[&*path, &*backup]));
    full.fails(6, &["backup", "No space left", "needs ", " KiB free"]);
    assert!(!small.path().join("backup").exists());
}

#[test]
fn ctrl_c_leaves_no_half_volume() {
    let folder = Folder::new();
    let path = folder.str("v.tc");
    // Large enough that no machine fills it before the signal comes.
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(["create", "--format", "TrueCrypt", "--size", "2G", "--password-file", &folder.password, &path]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // Wait until it fills: the first bytes of the data area are written.
    let begun = || {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 16];
        let read = fs::File::open(&path).and_then(|f| f.read_exact_at(&mut bytes, 128 << 10));
        read.is_ok() && bytes != [0; 16]
    };
    while !begun() {
        if child.try_wait().expect("its status").is_some() {
            panic!("it does not fill: {}", done(child.wait_with_output().expect("it has ended")).err);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    tools::run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    done(child.wait_with_output().expect("it ends")).fails(8, &["cancelled", "No file was left"]);
    assert!(!folder.path("v.tc").exists());
}

#[test]
fn a_block_device_is_taken_whole() {
    let folder = Folder::new();
    fs::write(folder.path("disk"), vec![0; 2 << 20]).expect("a disk");
    let Some(attached) = LoopDevice::new(&folder.path("disk"), &[]) else { return };
    let device = attached.path().to_str().expect("UTF-8").to_owned();
    let create = |more: &[&str]| {
        run(["create", "--format", "TrueCrypt", "--password-file", &folder.password, &device].iter().chain(more))
    };
    // Not while something is mounted on it.
    let mounted = tools::program("mkfs.ext4").map(|mkfs| {
        tools::run(Command::new(mkfs).args(["-q", &device]));
        let at = folder.path("mounted");
        fs::create_dir(&at).expect("a folder");
        tools::run(Command::new("mount").arg(&device).arg(&at));
        let refused = create(&["--force", "--yes"]);
        tools::run(Command::new("umount").arg(&at));
        let there = create(&[]);
        tools::run(Command::new("dd").args(["if=/dev/zero", "bs=2M", "count=1", &format!("of={device}")]));
        (refused, there)
    });
    let sized = create(&["--size", "1M"]);
    let unasked = create(&[]);
    let created = create(&["--force", "--yes", "--json"]);
    let info = run(["info", "--json", "--password-file", &folder.password, &device]);
    if let Some((refused, there)) = mounted {
        refused.fails(9, &["in use", "mounted"]);
        there.fails(1, &["a device of 2097152 bytes", "ext4"]);
    }
    sized.fails(1, &["omit --size"]);
    unasked.fails(1, &["a device of 2097152 bytes", "only zeros", "--force"]);
    assert_eq!(created.succeeds().json()["stored"], 2 << 20);
    assert_eq!(info.succeeds().json()["stored"], 2 << 20);
}

#[test]
fn reading_changes_nothing() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let before = (fs::read(&volume).expect("a file"), fs::metadata(&volume).expect("a file").mtime_nsec());
    run(["identify", &volume]).succeeds();
    run(["info", "--password-file", &folder.password, &volume]).succeeds();
    run(["cat", "--password-file", &folder.password, &volume]).succeeds();
    let after = (fs::read(&volume).expect("a file"), fs::metadata(&volume).expect("a file").mtime_nsec());
    assert!(before == after);
}

#[test]
fn misuse_is_json_too_if_json_was_asked_for() {
    for words in [&["info", "--json", "--bogus"][..], &["info", "--json"]] {
        let done = run(words).fails(1, &["exit_code"]);
        let error: serde_json::Value = serde_json::from_str(&done.err).expect("one object");
        assert_eq!((&error["error"]["kind"], &error["error"]["exit_code"]), (&"misuse".into(), &1.into()));
    }
}

#[test]
fn names_are_known_without_their_hyphens() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &["--cipher", "serpentaes"]);
    let info =
        run(["info", "--json", "--hash", "sha512", "--password-file", &folder.password, &volume]).succeeds().json();
    assert_eq!((&info["hash"], &info["cipher"]), (&"SHA-512".into(), &"Serpent-AES".into()));
}

/// A volume whose cipher is `cipher_null` can be read, with a warning, and written only on request.
#[test]
fn a_volume_that_nothing_encrypts_is_read_only() {
    let folder = Folder::new();
    let path = folder.str("plain");
    let text: Vec<u8> = b"in clear\n".iter().copied().cycle().take(64 << 10).collect();
    fs::write(&path, &text).expect("a file");
    let how = ["--format", "plain", "--cipher", "cipher_null-ecb", "--password-file", &folder.password, &path];
    assert!(run([&["cat"], &how[..]].concat()).succeeds().out == text);

    let served = Served::start(how);
    assert!(served.read_only);
    let said = served.stop().err;
    assert!(said.contains("cipher_null") && said.contains("--write-unencrypted"), "{said}");

    let served = Served::start(how.iter().chain(&["--write-unencrypted"]));
    assert!(!served.read_only);
    if let Some((wrote, said)) = qemu_io(&served.uri, "write -P 0x41 512 512") {
        assert!(wrote, "{said}");
    }
    assert!(served.stop().err.contains("stored unencrypted"));
    assert!(fs::read(&path).expect("it is there")[1024..] == text[1024..]);
    assert!(run([&["cat"], &how[..]].concat()).succeeds().out == fs::read(&path).expect("it is there"));
}

/// A volume without a header opens with the options that `create` prints, in whichever form the cipher's name was given.
#[test]
fn what_is_told_of_a_volume_without_a_header_opens_it() {
    let folder = Folder::new();
    let (path, keys, password) = (folder.str("volume"), folder.str("keys.gpg"), ["--password-file", &folder.password]);
    // The first three mean the same (cryptsetup(8), "Notes on encryption modes").
    for (cipher, same) in [
        ("aes", "aes-cbc-plain"),
        ("serpent", "serpent-cbc-plain"),
        ("aes-plain", "aes-cbc-plain"),
        ("aes-xts-plain64", "aes-xts-plain64"),
    ] {
        let create = ["create", "--format", "plain", "--cipher", cipher, "--size", "1M", "--json"];
        let made = run([&create[..], &password, &[&path]].concat()).succeeds().json();
        let options = made["opened_with"].as_array().expect("a list").iter().filter_map(|option| option.as_str());
        let options: Vec<&str> = options.collect();
        let plaintext = run([&["cat"][..], &options, &password, &[&path]].concat()).succeeds().out;
        let other: Vec<_> = options.iter().filter(|option| !option.starts_with("--cipher")).copied().collect();
        let by_other = run([&["cat", "--cipher", same][..], &other, &password, &[&path]].concat()).succeeds().out;
        assert!(plaintext == by_other, "{options:?}");
        fs::remove_file(&path).expect("removed");
    }
    let create = ["create", "--format", "loop-AES", "--cipher", "aes", "--size", "1M", "--json"];
    let made = run([&create[..], &["--fresh-keyfile", &keys], &password, &[&path]].concat()).succeeds().json();
    let options = made["opened_with"].as_array().expect("a list").iter().filter_map(|option| option.as_str());
    let open = [&["cat"][..], &options.collect::<Vec<_>>(), &["--keyfile", &keys], &password, &[&path]].concat();
    assert_eq!(run(open).succeeds().out.len() as u64, 1 << 20);
}
