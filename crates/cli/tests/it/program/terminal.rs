//! What happens on a terminal: passwords, questions, bars, Ctrl-C.

use std::fs;
use std::process::Command;

use crate::common::*;
use claviger_testkit::{terminal, tools};
use serde_json::json;

#[test]
fn a_password_is_asked_and_not_shown() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let steps = json!([{"expect": "Password: "}, {"echo": false}, {"send": format!("{PASSWORD}\n")}]);
    let Some((output, code, echo)) = on_terminal(steps, &["info", &volume]) else { return };
    assert_eq!((code, echo), (0, true), "{output}");
    assert!(output.contains("TrueCrypt") && !output.contains(PASSWORD), "{output}");
}

#[test]
fn ctrl_c_while_asking_restores_the_terminal() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let steps = json!([{"expect": "Password: "}, {"echo": false}, {"send": "half a pass\u{3}"}]);
    let Some((output, code, echo)) = on_terminal(steps, &["info", &volume]) else { return };
    assert_eq!((code, echo), (8, true), "{output}");
    assert!(output.contains("cancelled") && !output.contains("half"), "{output}");
    // The end of input is no password.
    let steps = json!([{"expect": "Password: "}, {"echo": false}, {"send": "\u{4}"}]);
    let (output, code, echo) = on_terminal(steps, &["info", &volume]).expect("as before");
    assert_eq!((code, echo), (1, true), "{output}");
}

/// The question is asked when the header has been read.
#[test]
fn what_is_resized_is_the_file_whose_header_was_read() {
    let folder = Folder::new();
    let (volume, link, other) = (folder.str("v.luks"), folder.str("link"), folder.str("other"));
    let create = ["create", "--quick", "--format", "LUKS1", "--size", "8M", "--iterations", "1000", "--password-file"];
    run(create.iter().chain([&&*folder.password, &&*volume])).succeeds();
    let len = fs::metadata(&volume).expect("a volume").len();
    fs::write(&other, vec![7; 9 << 20]).expect("another file");
    std::os::unix::fs::symlink(&volume, &link).expect("a link");
    let steps = json!([{"expect": "[y/N] "}, {"run": ["ln", "-sfn", other, link]}, {"send": "yes\n"}]);
    let Some((output, code, _)) = on_terminal(steps, &["resize", "--size", "3M", &link]) else { return };
    assert_eq!(code, 0, "{output}");
    assert!(fs::read(&other).expect("it is there") == vec![7; 9 << 20], "the other file is as it was");
    assert!(fs::metadata(&volume).expect("a volume").len() < len);
    let info = run(["info", "--json", "--password-file", &folder.password, &volume]).succeeds().json();
    assert_eq!(info["size"].as_u64(), Some(3 << 20));
    // And longer again, by a link that stays.
    let link = folder.str("another link");
    std::os::unix::fs::symlink(&volume, &link).expect("a link");
    run(["resize", "--size", "4M", &link]).succeeds();
    let info = run(["info", "--json", "--password-file", &folder.password, &volume]).succeeds().json();
    assert_eq!(info["size"].as_u64(), Some(4 << 20));
}

#[test]
fn a_new_password_is_asked_twice() {
    let folder = Folder::new();
    let path = folder.str("v.tc");
    let create = ["create", "--format", "TrueCrypt", "--quick", "--size", "1M", &path];
    let pair = |second: &str| {
        [
            [json!({"expect": "Password of the new volume: "}), json!({"echo": false})],
            [json!({"send": format!("{PASSWORD}\n")}), json!({"expect": "Repeat: "})],
            [json!({"echo": false}), json!({"send": format!("{second}\n")})],
        ]
        .concat()
    };
    let differ = json!([pair("Open sesame"), pair("open"), pair("")].concat());
    let Some((output, code, _)) = on_terminal(differ, &create) else { return };
    assert_eq!(code, 1, "{output}");
    for said in ["differ. 2 tries left.", "differ. 1 try left.", "claviger: the two passwords differ"] {
        assert_eq!(output.matches(said).count(), 1, "{said}: {output}");
    }
    assert!(!folder.path("v.tc").exists(), "{output}");
    let at_last = json!([pair("Open sesame"), pair(PASSWORD)].concat());
    let (output, code, echo) = on_terminal(at_last, &create).expect("as before");
    assert_eq!((code, echo), (0, true), "{output}");
    assert!(!output.contains(PASSWORD) && !output.contains("Open sesame"), "{output}");
    run(["info", "--password-file", &folder.password, &path]).succeeds();
}

#[test]
fn overwriting_is_asked_for() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let before = fs::read(&volume).expect("a file");
    let create = [
        "create",
        "--format",
        "TrueCrypt",
        "--force",
        "--quick",
        "--size",
        "1M",
        "--password-file",
        &folder.password,
        &volume,
    ];
    let named = "a file of 1048576 bytes (1 MiB) that holds random-looking data, possibly an encrypted volume";
    for (answer, code) in [("no\n", 1), ("\n", 1), ("yess\n", 1), ("\u{3}", 8), ("y\n", 0)] {
        assert!(fs::read(&volume).expect("a file") == before, "it is as it was");
        let steps = json!([{"expect": named}, {"expect": "[y/N] "}, {"send": answer}]);
        let Some((output, ended, _)) = on_terminal(steps, &create) else { return };
        assert_eq!(ended, code, "{output}");
    }
    assert!(fs::read(&volume).expect("a file") != before, "it is another");
    let yes = create.iter().copied().chain(["--yes"]).collect::<Vec<_>>();
    let (output, code, _) = on_terminal(json!([]), &yes).expect("as before");
    assert_eq!(code, 0, "{output}");
    assert!(!output.contains("[y/N]"));
}

#[test]
fn the_bar_is_for_terminals() {
    let folder = Folder::new();
    let create =
        ["create", "--format", "TrueCrypt", "--size", "200M", "--password-file", &folder.password, &folder.str("v.tc")];
    let Some((output, code, _)) = on_terminal(json!([]), &create) else { return };
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("Filling") && output.contains("/s") && output.contains("Filled 200 MiB"), "{output:?}");
    // The same with standard error elsewhere.
    let shell = |script: &str| {
        let steps = json!([]);
        let mut command = terminal::played(steps).expect("as before");
        command.args(["sh", "-c", script, env!("CARGO_BIN_EXE_claviger")]);
        command.args([
            "create",
            "--format",
            "TrueCrypt",
            "--force",
            "--yes",
            "--size",
            "200M",
            "--password-file",
            &folder.password,
        ]);
        tools::run(command.arg(folder.path("v.tc")));
    };
    let log = folder.str("log");
    shell(&format!("\"$0\" \"$@\" 2>{log}"));
    assert_eq!(fs::read_to_string(log).expect("a file"), "");
}

/// A calling program can forbid all questions, even if there is a terminal.
#[test]
fn nobody_is_asked_where_that_is_said() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let Some((output, code, _)) = on_terminal(json!([]), &["info", "--ask", "nobody", &volume]) else { return };
    assert_eq!(code, 1, "{output}");
    assert!(!output.contains("Password: ") && output.contains("--password-fd"), "{output}");
}

/// Another program gets the progress: whole lines, up to the end.
#[test]
fn progress_is_told_to_another_program() {
    let folder = Folder::new();
    let told = |words: &str| {
        let script = format!("exec \"$0\" {words} --ask nobody --progress-fd 7 7>told");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_claviger")]).current_dir(folder.path(""));
        done(command.output().expect("a shell")).succeeds();
        let text = fs::read_to_string(folder.path("told")).expect("a file");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<serde_json::Value>>()
    };
    let lines = told("create --format TrueCrypt --hash SHA-512 --size 30M --password-file password v.tc");
    assert!(lines.windows(2).all(|pair| pair[0]["done"].as_u64() <= pair[1]["done"].as_u64()), "{lines:?}");
    let last = lines.last().expect("lines");
    assert!(last["what"] == "Filling" && last["done"] == last["all"], "{last}");
    let lines = told("info --truecrypt --password-file password v.tc");
    assert!(lines.last().is_some_and(|last| last["what"] == "Opening" && last["done"] == last["all"]), "{lines:?}");
    // Also by the process that holds the keys, from within its cage.
    let lines = told("serve --truecrypt --isolate-keys --password-file password --run true v.tc");
    assert!(lines.iter().any(|line| line["what"] == "Opening"), "{lines:?}");
    run(["info", "--progress-fd", "77", &folder.str("v.tc")]).fails(6, &["--progress-fd 77"]);
    // Without a descriptor of its own, and of reading too.
    let told =
        run(["cat", "--truecrypt", "--progress", "json", "--password-file", &folder.password, &folder.str("v.tc")])
            .succeeds();
    let last = told.err.lines().last().expect("lines").to_owned();
    let last: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    assert!(last["what"] == "Reading" && last["unit"] == "bytes" && last["done"] == last["all"], "{last}");
}

/// Errors about frequent mistakes say what to do next.
#[test]
fn mistakes_are_told_with_what_to_do() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let place = folder.str("d");
    fs::create_dir(&place).expect("a folder");
    fs::write(folder.path("empty"), b"").expect("a file");
    fs::write(folder.path("a.zip"), [&b"PK\x03\x04"[..], &[7; 4096]].concat()).expect("a file");
    run(["info", &folder.str("empty")]).fails(3, &["it is empty"]);
    run(["info", &folder.str("a.zip")]).fails(3, &["not an encrypted volume (it holds a zip archive"]);
    let notes = folder.str("notes.txt");
    fs::write(&notes, "Buy milk, and write to the bank.\n".repeat(40_000)).expect("a file");
    let identified = run(["identify", &notes]).fails(3, &[]).text();
    let (_, reasons) = identified.split_once('\n').expect("lines");
    assert!(reasons.lines().count() > 2 && reasons.contains("LUKS"), "{identified}");
    run(["info", &notes]).fails(3, &["not an encrypted volume\n", reasons]);
    run(["info", &place]).fails(3, &["give its file"]);
    run(["mount", &place, &volume]).fails(1, &["not a folder", "Give the volume first"]);
    run(["cp", &volume, ":/hello.txt"])
        .fails(1, &["the source or the destination is missing", &format!("claviger cp {volume} :/FILE FOLDER")]);
    run(["luksOpen", &volume, "name"]).fails(1, &["`claviger mount VOLUME`"]);
    run(["info", "--password=secret", &volume]).fails(1, &["not accepted on the command line"]);
    let gone = run(["info", &folder.str("gone.tc")]).fails(6, &["gone.tc: No such file or directory"]);
    assert!(!gone.err.contains("os error"), "{}", gone.err);
    let Some((output, code, _)) = on_terminal(json!([]), &["cat", "--password-file", &folder.password, &volume]) else {
        return;
    };
    assert!(code == 1 && output.contains("> image.img"), "{code} {output}");
}

/// No file name moves the cursor, sets the title, reverses text or begins a line that looks like the program's.
#[test]
fn a_name_does_nothing_to_a_terminal() {
    const NAME: &str = "v\u{1b}]0;title\u{7}\u{1b}[2J\u{202e}\u{2067}\u{61c}\u{9b}31m\r\nclaviger: all is well";
    let folder = Folder::new();
    let (password, wrong) = (folder.password.clone(), folder.str("wrong"));
    fs::write(&wrong, "wrong").expect("a file");
    let volume = folder.str(NAME);
    let quiet = |done: Done| {
        let said = done.text() + &done.err;
        let obeyed = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2067}\u{61c}".contains(c);
        assert!(!said.chars().any(obeyed), "{said:?}");
        assert!(!said.lines().any(|line| line.starts_with("claviger: all is well")), "{said}");
    };
    quiet(done_making(&folder, &volume));
    let (backup, copy, cheap) =
        (folder.str("b\nclaviger: all is well"), volume.clone() + " 2", "--new-iterations=1000");
    let p = "--password-file";
    for words in [
        &["identify", &volume][..],
        &["identify", &password, &volume],
        &["explain", &volume],
        &["explain", p, &wrong, &volume],
        &["info", p, &password, &volume],
        &["info", p, &wrong, &volume],
        &["info", p, &volume, &volume],
        &["verify", p, &password, &volume],
        &["ls", p, &password, &volume],
        &["keyslot", "list", &volume],
        &["keyslot", "test", p, &password, &volume],
        &["token", "list", &volume],
        &["header", "show", &volume],
        &["header", "backup", p, &password, "--to", &backup, &volume],
        &["resize", "--size", "18M", &volume],
        &["serve", "--run", "true", p, &password, &volume],
        &["convert", "--raw", p, &password, &volume, &copy],
        &["mount", p, &password, &volume, &copy],
        &["reencrypt", "--yes", p, &password, &volume],
        &["change", p, &password, "--new-password-file", &password, cheap, &volume],
        &["attach", &volume],
        &["detach", &volume],
        &["unmount", &volume],
        &[NAME],
        &["info", &format!("--{NAME}")],
    ] {
        quiet(run(words));
    }
}

fn done_making(folder: &Folder, path: &str) -> Done {
    let cheap = ["create", "--format", "LUKS2", "--quick", "--size", "20M", "--kdf", "pbkdf2", "--iterations", "1000"];
    run(cheap.into_iter().chain(["--password-file", &folder.password, path])).succeeds()
}
