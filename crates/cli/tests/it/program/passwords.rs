//! Passwords that people type: another try after a wrong one, and how strong a new one is.

use std::fs;

use crate::common::*;
use serde_json::{Value, json};

const WRONG: &str = "Open, barley!";
const WRONG_TOO: &str = "sesame seeds?";

/// Types the answers at a terminal, and checks that they are not shown. Returns the output and the exit code.
fn played(steps: &[Vec<Value>], args: &[&str]) -> Option<(String, i64)> {
    let (output, code, echo) = on_terminal(json!(steps.concat()), args)?;
    assert!(echo, "the terminal shows again what is typed: {output}");
    for secret in [PASSWORD, WRONG, WRONG_TOO, WEAK, STRONG] {
        assert!(!output.contains(secret), "{output}");
    }
    Some((output, code))
}

/// A folder of eCryptfs with a file, and its path.
fn ecryptfs(folder: &Folder) -> String {
    let (lower, note) = (folder.str("lower"), folder.str("note"));
    fs::write(&note, "hello").expect("a file");
    run(["create", "--format", "eCryptfs", "--password-file", &folder.password, &lower]).succeeds();
    run(["cp", "--format", "eCryptfs", "--password-file", &folder.password, &lower, &note, ":/note"]).succeeds();
    lower
}

/// Where nothing says which hash and cipher it is, a wrong password takes all derivations of VeraCrypt: a minute beside other tests.
#[test]
fn after_a_long_try_the_options_are_named_that_shorten_it() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let (wrong, right, cancel) = (typed("Password: ", WRONG), typed("Password: ", PASSWORD), "\u{3}");
    let cancelled = vec![json!({"expect": "Password: "}), json!({"echo": false}), json!({"send": cancel})];
    for (options, then, expected) in [
        (&[][..], &cancelled, (8, 1)),
        (&["--truecrypt"][..], &right, (0, 0)),
        (&["--hash", "SHA-512"][..], &right, (0, 0)),
    ] {
        let args = [&["info", &volume][..], options].concat();
        let Some((output, code)) = played(&[wrong.clone(), then.clone()], &args) else { return };
        let named = output.matches("--truecrypt or --veracrypt, --hash").count();
        assert_eq!((code, named), expected, "{options:?}: {output}");
    }
}

#[test]
fn a_wrong_password_is_asked_for_again() {
    let folder = Folder::new();
    let (volume, luks) = (folder.volume("v.tc", "1M", &[]), folder.luks2("v.luks"));
    let lower = ecryptfs(&folder);
    for args in [
        &["info", "--truecrypt", "--hash", "SHA-512", &volume][..],
        &["keyslot", "test", &luks],
        &["verify", &luks],
        &["serve", "--run", "true", &luks],
        // The key process asks again from within its sandbox.
        &["serve", "--isolate-keys", "--run", "true", &luks],
        &["info", "--format", "eCryptfs", &lower],
        &["ls", "--format", "eCryptfs", &lower],
    ] {
        let Some((output, code)) = played(&[all("Password: ", &[WRONG, WRONG_TOO, PASSWORD])], args) else { return };
        assert_eq!(code, 0, "{args:?}: {output}");
        for said in ["does not open it. 2 tries left.", "does not open it. 1 try left."] {
            assert_eq!(output.matches(said).count(), 1, "{args:?}: {output}");
        }
        // Three in all, and then the same error as for a script.
        let (output, code) = played(&[all("Password: ", &[WRONG, WRONG, WRONG_TOO])], args).expect("as before");
        assert_eq!((code, output.matches("Password: ").count()), (2, 3), "{args:?}: {output}");
        let file = folder.str("wrong");
        fs::write(&file, WRONG).expect("a file");
        let script = run([args, &["--password-file", &file]].concat()).fails(2, &[]);
        assert!(!script.err.contains("left"), "{}", script.err);
        // Except for how long it took, where the lines end, and the option.
        let is_word = |word: &&str| word.parse::<f64>().is_err() && !word.starts_with("--password-file=");
        let words = |text: &str| text.split_whitespace().filter(is_word).collect::<Vec<_>>().join(" ");
        assert!(words(&output).ends_with(words(&script.err).trim()), "{args:?}: {output}\n{}", script.err);
        // Ctrl-C at any of the questions.
        let cancelled = [
            typed("Password: ", WRONG),
            vec![json!({"expect": "Password: "}), json!({"echo": false}), json!({"send": "half\u{3}"})],
        ];
        let (output, code) = played(&cancelled, args).expect("as before");
        assert!(code == 8 && output.contains("cancelled") && !output.contains("half"), "{args:?}: {code} {output}");
    }
}

#[test]
fn a_header_is_not_changed_before_the_password_is_right() {
    let folder = Folder::new();
    let path = folder.luks2("v.luks");
    let add = ["keyslot", "add", "--kdf", "pbkdf2", "--iterations", "1000", &path];
    let pair = |first: &str, second: &str| [typed("New password: ", first), typed("Repeat: ", second)].concat();
    let steps = [all("Password: ", &[WRONG, WRONG_TOO, PASSWORD]), pair(WEAK, WRONG), pair(STRONG, STRONG)];
    let Some((output, code)) = played(&steps, &add) else { return };
    assert!(code == 0 && output.contains("differ. 2 tries left."), "{output}");
    assert!(output.contains("(LUKS2, PBKDF2 with SHA-256, 1000 iterations)"), "{output}");
    let kill = ["keyslot", "kill", "--yes", &path, "0"];
    let (output, code) = played(&[all("Password: ", &[WRONG, WRONG, WRONG])], &kill).expect("as before");
    assert_eq!(code, 2, "{output}");
    let reencrypt = ["reencrypt", "--isolate-keys", "--yes", &path];
    let (output, code) = played(&[all("Password: ", &[WRONG, WRONG_TOO, STRONG])], &reencrypt).expect("as before");
    assert_eq!(code, 0, "{output}");
    let login = folder.str("home");
    run(["create", "--format", "eCryptfs", "--home", "--password-file", &folder.password, &login]).succeeds();
    let (private, note) = (format!("{login}/.Private"), folder.str("note"));
    fs::write(&note, "hello").expect("a file");
    run(["cp", "--format", "eCryptfs", "--password-file", &folder.password, &private, &note, ":/note"]).succeeds();
    let change = ["change", &private];
    let steps = [all("Password: ", &[WRONG, PASSWORD]), pair(WEAK, WEAK)];
    let (output, code) = played(&steps, &change).expect("as before");
    assert!(code == 0 && output.contains("(eCryptfs, SHA-512, 65536 times)"), "{output}");
}

#[test]
fn a_header_is_put_back_by_the_third_password() {
    let folder = Folder::new();
    let (truecrypt, luks) = (folder.volume("v.tc", "1M", &[]), folder.str("v.luks"));
    let create = ["create", "--format", "LUKS1", "--quick", "--size", "20M", "--iterations", "1000"];
    run(create.iter().chain(&["--password-file", &folder.password, &luks])).succeeds();
    run(["header", "repair", "--truecrypt", &truecrypt]).fails(5, &["TrueCrypt", "header restore --embedded"]);
    for (path, lost, verb) in [
        (&*truecrypt, 512, &["header", "restore", "--embedded", "--truecrypt", "--hash", "SHA-512", "--yes"][..]),
        // Nothing but a passphrase proves what else is in this header.
        (&luks, 6, &["header", "repair", "--yes"]),
    ] {
        let mut bytes = fs::read(path).expect("a volume");
        bytes[..lost].fill(0);
        fs::write(path, &bytes).expect("written");
        let args = [verb, &[path]].concat();
        let Some((output, code)) = played(&[all("Password: ", &[WRONG, WRONG_TOO, WRONG])], &args) else { return };
        assert_eq!((code, output.matches("Password: ").count()), (2, 3), "{output}");
        assert!(fs::read(path).expect("a volume") == bytes, "nothing is written");
        let steps = [all("Password: ", &[WRONG, WRONG_TOO, PASSWORD])];
        let (output, code) = played(&steps, &args).expect("as before");
        assert!(code == 0 && output.contains("does not open it. 1 try left."), "{output}");
        run(["info", "--password-file", &folder.password, path]).succeeds();
    }
}

/// Nobody could tell which of two passwords was wrong.
#[test]
fn with_two_passwords_there_is_one_try() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let steps = [typed("Password: ", WRONG), typed("hidden volume: ", WRONG_TOO)];
    let serve = ["serve", "--truecrypt", "--hash", "SHA-512", "--protect-hidden", "--run", "true", &volume];
    let Some((output, code)) = played(&steps, &serve) else { return };
    assert!(code == 2 && !output.contains("left."), "{code} {output}");
    // Any password opens a volume without a header.
    let plain = folder.str("plain");
    fs::write(&plain, vec![7; 1 << 20]).expect("a file");
    let info = ["info", "--format", "plain", &plain];
    let (output, code) = played(&[typed("Password: ", WRONG)], &info).expect("as before");
    assert_eq!(code, 0, "{output}");
}

#[test]
fn a_new_password_that_the_format_does_not_take_is_asked_for_again() {
    let folder = Folder::new();
    let (long, file, path) = ("long ".repeat(13), folder.str("bad"), folder.str("v"));
    let bitlocker = ["create", "--format", "BitLocker", "--quick", "--size", "64M", "--no-recovery-password", &path];
    let truecrypt = ["create", "--format", "TrueCrypt", "--quick", "--size", "1M", &path];
    let ecryptfs = ["create", "--format", "eCryptfs", &path];
    for (create, bad, rule, code) in [
        (&bitlocker[..], WRONG.get(..7).expect("ASCII"), "at least 8 characters, this one has 7", 1),
        (&truecrypt, &long, "has 65 bytes, but TrueCrypt takes at most 64", 1),
        (&truecrypt, "", "passphrase is empty", 1),
        (&ecryptfs, &long, "at most 64 bytes, this one has 65", 2),
    ] {
        let question = "Password of the new volume: ";
        let pair = [typed(question, PASSWORD), typed("Repeat: ", PASSWORD)].concat();
        let Some((output, done)) = played(&[all(question, &[bad, bad]), pair], create) else { return };
        assert!(done == 0 && output.contains(&format!("{rule}. 1 try left.")), "{done} {output}");
        run([&["info", "--password-file", &folder.password], &create[1..3], &[&path]].concat()).succeeds();
        drop(fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)));
        let (output, done) = played(&[all(question, &[bad, bad, bad])], create).expect("as before");
        assert!(done == i64::from(code) && !output.contains("Repeat") && !folder.path("v").exists(), "{done} {output}");
        fs::write(&file, bad).expect("a file");
        let script = run([create, &["--password-file", &file]].concat()).fails(code, &[rule]);
        assert!(!script.err.contains("left"), "{}", script.err);
    }
    // As for a new keyslot.
    let path = folder.str("disk");
    run([&bitlocker[..7], &["--password-file", &folder.password, &path]].concat()).succeeds();
    let pair = [typed("New password: ", WRONG), typed("Repeat: ", WRONG)].concat();
    for verb in [&["keyslot", "add"][..], &["change"]] {
        let steps = [typed("Password: ", PASSWORD), typed("New password: ", "seven77"), pair.clone()];
        let (output, code) = played(&steps, &[verb, &[&path]].concat()).expect("as before");
        assert!(code == 0 && output.contains("this one has 7. 2 tries left."), "{code} {output}");
    }
}

const WEAK: &str = "summer2019";
const STRONG: &str = "v8Kq2xTz0bLm4Rw7s";

#[test]
fn it_is_said_how_strong_a_new_password_is() {
    let folder = Folder::new();
    let cost = ["--kdf", "argon2id", "--iterations", "4", "--kdf-memory", "64M"];
    for (i, (format, more, derivation)) in [
        ("LUKS2", &cost[..], "(LUKS2, Argon2id, 64 MiB)"),
        ("VeraCrypt", &["--hash", "SHA-256"], "(VeraCrypt, PBKDF2 with SHA-256, 500000 iterations)"),
        ("TrueCrypt", &[], "(TrueCrypt, PBKDF2 with RIPEMD-160, 2000 iterations)"),
        ("plain", &[], "(plain, RIPEMD-160 once)"),
    ]
    .into_iter()
    .enumerate()
    {
        for (password, verdict) in [(WEAK, "Weak: "), (STRONG, "Strong: ")] {
            let path = folder.str(&format!("{i} {verdict}"));
            let create = [&["create", "--format", format, "--quick", "--size", "20M"], more, &[&path]].concat();
            let steps = [typed("Password of the new volume: ", password), typed("Repeat: ", password)];
            let Some((output, code)) = played(&steps, &create) else { return };
            assert_eq!(code, 0, "{output}");
            let line = output.lines().find(|line| line.starts_with(verdict)).unwrap_or_else(|| panic!("{output}"));
            assert!(line.contains("with one graphics card") && line.contains(derivation), "{line}");
            assert_eq!(line.contains("random words"), verdict == "Weak: ", "{line}");
            fs::remove_file(&path).expect("removed");
        }
    }
    // A measured cost is that of the keyslot.
    let path = folder.luks2("measured");
    let add = ["keyslot", "add", "--iter-time", "700", &path];
    let pair = [typed("New password: ", WEAK), typed("Repeat: ", WEAK)].concat();
    let Some((output, code)) = played(&[typed("Password: ", PASSWORD), pair], &add) else { return };
    let listed = run(["keyslot", "list", &path]).succeeds().text();
    let row = listed.lines().find(|row| row.contains("argon2id")).unwrap_or_else(|| panic!("{listed}"));
    let memory = row.rsplit(", ").next().expect("its memory");
    assert!(code == 0 && output.contains(&format!("(LUKS2, Argon2id, {memory})")), "{listed} {output}");
    // A script hears nothing of it, and neither does somebody who opens a volume.
    let file = folder.str("weak");
    fs::write(&file, WEAK).expect("a file");
    let path = folder.str("v.luks");
    let create =
        [&["create", "--format", "LUKS2", "--quick", "--size", "20M", "--password-file", &file], &cost[..], &[&path]];
    let made = run(create.concat()).succeeds();
    assert!(!made.err.contains("Weak") && !made.text().contains("Weak"), "{made:?}");
    let (output, code) = played(&[typed("Password: ", WEAK)], &["info", &path]).expect("as before");
    assert!(code == 0 && !output.contains("Weak"), "{output}");
    // With a password file there is a warning at a terminal, too.
    fs::remove_file(&path).expect("removed");
    let (output, code) = played(&[], &create.concat()).expect("as before");
    assert!(code == 0 && output.contains("Weak: "), "{output}");
}
