//! `claviger convert`, as a person runs it.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use serde_json::{Value, json};

/// Data, then zeros, then data, and an end within a sector.
fn image(folder: &Folder, name: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut random = Random::new(len as u64);
    bytes[..70_000].copy_from_slice(&random.bytes(70_000));
    bytes[len - 5000..].copy_from_slice(&random.bytes(5000));
    fs::write(folder.path(name), &bytes).expect("an image");
    bytes
}

/// `claviger convert` into a TrueCrypt volume, which opens fast.
fn to_truecrypt<'a>(folder: &'a Folder, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["convert", "--json", "--new-format", "TrueCrypt", "--new-hash", "SHA-512"];
    args.extend(["--new-password-file", &folder.password]);
    args.extend(more);
    args
}

fn plaintext(folder: &Folder, volume: &str) -> Vec<u8> {
    run(["cat", "--truecrypt", "--hash", "SHA-512", "--password-file", &folder.password, volume]).succeeds().out
}

#[test]
fn an_image_becomes_a_volume_and_an_image_again() {
    let folder = Folder::new();
    let bytes = image(&folder, "image", 3_000_100);
    let (from, volume, back) = (folder.str("image"), folder.str("v.tc"), folder.str("back"));
    let done = run(to_truecrypt(&folder, &["--raw-source", &from, &volume])).succeeds().json();
    let whole = 3_000_100_u64.next_multiple_of(512);
    assert_eq!((&done["from"], &done["to"]), (&Value::Null, &json!("TrueCrypt")));
    assert_eq!((&done["size"], &done["new_size"]), (&json!(bytes.len()), &json!(whole)));
    assert_eq!(fs::metadata(&volume).expect("a volume").len(), whole + (256 << 10));
    let mut padded = bytes.clone();
    padded.resize(whole as usize, 0);
    assert!(plaintext(&folder, &volume) == padded, "what the volume holds");

    let done = run(["convert", "--json", "--raw", "--truecrypt", "--password-file", &folder.password, &volume, &back]);
    let done = done.succeeds().json();
    assert_eq!((&done["from"], &done["to"]), (&json!("TrueCrypt"), &Value::Null));
    assert!(fs::read(&back).expect("an image") == padded, "the image");
    assert!(done["holes"].as_u64() > Some(2_800_000), "{done}");
    let blocks = fs::metadata(&back).expect("an image").blocks() * 512;
    assert!(blocks < 200_000, "{blocks} bytes are taken for 75,000");
    for left in [".part", ".part.json"] {
        assert!(!Path::new(&format!("{back}{left}")).exists() && !Path::new(&format!("{volume}{left}")).exists());
    }
}

#[test]
fn another_format_another_password_and_more_room() {
    let folder = Folder::new();
    image(&folder, "image", 600_064);
    fs::write(folder.path("other"), "another password of 31 letters\n").expect("written");
    let (from, volume, new) = (folder.str("image"), folder.str("v.tc"), folder.str("new.hc"));
    run(to_truecrypt(&folder, &["--raw-source", &from, &volume])).succeeds();
    let other = folder.str("other");
    let args = ["convert", "--truecrypt", "--password-file", &folder.password, "--new-password-file", &other];
    let more = ["--new-pim", "1", "--new-cipher", "serpent-aes", "--new-hash", "SHA-512", "--new-size", "1M"];
    let text = run(args.iter().chain(&more).chain(&[&*volume, &*new])).succeeds().text();
    assert!(text.contains("They are followed by") && text.contains("both are identical"), "{text}");
    let args = ["cat", "--veracrypt", "--pim", "1", "--hash", "SHA-512", "--password-file", &other, &new];
    let contents = run(args).succeeds().out;
    let mut padded = plaintext(&folder, &volume);
    padded.resize(1 << 20, 0);
    assert!(contents == padded);
    let small = ["--new-size", "100K", "--raw-source", &from, "x"];
    run(to_truecrypt(&folder, &small)).fails(1, &["--new-size", "too small"]);
}

#[test]
fn a_volume_without_a_header_is_written_with_the_key_that_was_asked_for() {
    let folder = Folder::new();
    let bytes = image(&folder, "image", 512 << 10);
    let (from, volume) = (folder.str("image"), folder.str("v"));
    let suite = ["--new-cipher", "aes-xts-plain64", "--new-hash", "sha256", "--new-key-size", "512"];
    let convert = ["convert", "--raw-source", "--new-format", "plain", "--new-password-file", &folder.password];
    run([&convert[..], &suite, &[&from, &volume]].concat()).succeeds();
    let suite = ["--cipher", "aes-xts-plain64", "--hash", "sha256", "--key-size", "512"];
    let cat = ["cat", "--format", "plain", "--password-file", &folder.password, &volume];
    assert!(run([&cat[..], &suite].concat()).succeeds().out == bytes);
}

#[test]
fn what_the_new_format_does_not_take_is_refused_before_anything_is_there() {
    let folder = Folder::new();
    image(&folder, "image", 512 << 10);
    let (from, volume) = (folder.str("image"), folder.str("v"));
    for (wish, what) in
        [("--new-label", "label"), ("--new-key-size", "key size"), ("--new-iterations", "iteration count")]
    {
        let args = to_truecrypt(&folder, &["--raw-source", wish, "256", &from, &volume]);
        run(args).fails(1, &[&format!("TrueCrypt takes no {what}")]);
    }
    assert!(!Path::new(&volume).exists());
}

#[test]
fn nothing_is_overwritten_unasked() {
    let folder = Folder::new();
    let bytes = image(&folder, "image", 600_064);
    fs::write(folder.path("there"), "precious").expect("written");
    let (from, there) = (folder.str("image"), folder.str("there"));
    let before = || fs::read(folder.path("there")).expect("the file");
    run(to_truecrypt(&folder, &["--raw-source", &from, &there])).fails(1, &["already exists", "--force"]);
    assert_eq!(before(), b"precious");
    run(to_truecrypt(&folder, &["--raw-source", &from, &from, "--force", "--yes"])).fails(9, &["in use"]);
    assert!(fs::read(&from).expect("the image") == bytes, "a file into itself");
    fs::write(folder.path("there.part"), "somebody's").expect("written");
    let forced = ["--raw-source", &from, &there, "--force", "--yes"];
    run(to_truecrypt(&folder, &forced)).fails(1, &["--resume", "there.part"]);
    assert_eq!(
        (before(), fs::read(folder.path("there.part")).expect("it")),
        (b"precious".to_vec(), b"somebody's".to_vec())
    );
    fs::remove_file(folder.path("there.part")).expect("removed");
    run(to_truecrypt(&folder, &forced)).succeeds();
    assert!(plaintext(&folder, &there) == bytes);
}

/// Waits until the file with the state says that copying has begun, and sends the signal.
fn interrupted(args: &[&str], state: &Path, signal: &str) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    let command = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let begin = Instant::now();
    while !fs::read_to_string(state).is_ok_and(|text| text.contains("\"done\":0")) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    child.wait_with_output().expect("it ends")
}

#[test]
fn an_interrupted_conversion_goes_on() {
    for signal in ["-KILL", "-TERM"] {
        let folder = Folder::new();
        let bytes = image(&folder, "image", 160 << 20);
        let (from, volume) = (folder.str("image"), folder.str("v.tc"));
        let args = to_truecrypt(&folder, &["--raw-source", &from, &volume]);
        let (part, state) = (folder.path("v.tc.part"), folder.path("v.tc.part.json"));

        let ended = interrupted(&args, &state, signal);
        match signal {
            "-KILL" => assert_eq!(ended.status.signal(), Some(9), "{ended:?}"),
            _ => drop(done(ended).fails(8, &["cancelled", "--resume"])),
        }
        assert!(part.exists() && state.exists() && !Path::new(&volume).exists());
        let noted: Value = serde_json::from_slice(&fs::read(&state).expect("a state")).expect("JSON");
        run(&args).fails(1, &["has not been finished", "--resume"]);

        let resume: Vec<_> = args.iter().copied().chain(["--resume"]).collect();
        let whole = run(&resume).succeeds().json();
        assert_eq!(whole["resumed_at"], noted["done"]);
        assert!(plaintext(&folder, &volume) == bytes && !part.exists() && !state.exists());
        run(&resume).fails(1, &["already exists"]);
    }
}

#[test]
fn the_state_is_written_through_no_link() {
    let folder = Folder::new();
    let bytes = image(&folder, "image", 600_064);
    let (from, volume, victim) = (folder.str("image"), folder.str("v.tc"), folder.path("victim"));
    fs::write(&victim, "precious").expect("a file");
    for name in ["v.tc.part.json.new", ".v.tc.part.json.claviger-new"] {
        symlink(&victim, folder.path(name)).expect("a link");
    }
    run(to_truecrypt(&folder, &["--raw-source", &from, &volume])).succeeds();
    assert_eq!(fs::read(&victim).expect("it is there"), b"precious");
    assert!(plaintext(&folder, &volume) == bytes);
}

/// Some file systems know no flags of renameat2(2), and some of those no second names of a file.
#[test]
fn a_new_name_is_given_where_the_file_system_can_do_little() {
    let Some(strace) = tools::program("strace") else { return };
    let folder = Folder::new();
    let bytes = image(&folder, "image", 600_064);
    let from = folder.str("image");
    let calls = ["-e", "trace=rename,renameat,renameat2,link,linkat,open,openat", "-o"];
    for (name, injected, said) in [
        ("flags", &[][..], "RENAME_NOREPLACE) = 0"),
        ("links", &["-e", "inject=renameat2:error=EINVAL"], "linkat("),
        ("none", &["-e", "inject=renameat2:error=ENOSYS", "-e", "inject=link,linkat:error=EPERM"], "O_CREAT|O_EXCL"),
    ] {
        let (volume, log) = (folder.str(name), folder.str("log"));
        let mut command = Command::new(&strace);
        command.args(["-f", "-qq"]).args(injected).args(calls).arg(&log).arg(env!("CARGO_BIN_EXE_claviger"));
        let args = to_truecrypt(&folder, &["--raw-source", &from, &volume]);
        done(command.args(&args).stdin(Stdio::null()).output().expect("strace starts")).succeeds();
        let end = format!("{volume}\"");
        let log = fs::read_to_string(&log).expect("a log");
        assert!(log.lines().any(|line| line.contains(&end) && line.contains(said)), "{name}: {log}");
        assert!(plaintext(&folder, &volume) == bytes && !Path::new(&format!("{volume}.part")).exists());
        // And in the place of an old one.
        let mut command = Command::new(&strace);
        command.args(["-f", "-qq"]).args(injected).args(["-o", "/dev/null"]).arg(env!("CARGO_BIN_EXE_claviger"));
        command.args(args).args(["--force", "--yes"]).stdin(Stdio::null());
        done(command.output().expect("strace starts")).succeeds();
        assert!(plaintext(&folder, &volume) == bytes && !Path::new(&format!("{volume}.part")).exists());
    }
}

/// A file system of 1 MiB, and then one with room.
#[test]
fn what_ran_out_of_space_can_be_begun_anew() {
    let Some(small) = Tmpfs::new("size=1M") else { return };
    let folder = Folder::new();
    let bytes = image(&folder, "image", 3_000_320);
    let from = folder.str("image");
    let volume = small.path().join("v.tc").display().to_string();
    let args = to_truecrypt(&folder, &["--raw-source", &from, &volume]);
    run(&args).fails(6, &["No space left", "needs ", "1 MiB free"]);
    assert_eq!(fs::read_dir(small.path()).expect("a folder").count(), 0, "nothing is left");

    // Killed before there was anything to continue: the state only names the new volume.
    let real = fs::canonicalize(&from).expect("a path");
    let noted = json!({"claviger_conversion": 1, "source": real, "source_size": bytes.len(), "destination": volume,
        "format": "TrueCrypt", "stored": 1, "done": null});
    fs::write(format!("{volume}.part.json"), noted.to_string()).expect("written");
    run(&args).fails(6, &["No space left"]);
    small.remount("size=20M");
    fs::write(format!("{volume}.part.json"), noted.to_string()).expect("written");
    run(&args).succeeds();
    assert!(plaintext(&folder, &volume) == bytes);
}

/// Both printed commands can be copied and run.
#[test]
fn an_unfinished_conversion_says_how_to_go_on_and_how_to_begin_anew() {
    let folder = Folder::new();
    let bytes = image(&folder, "an image", 160 << 20);
    let (from, volume) = (folder.str("an image"), folder.str("v.tc"));
    let args = to_truecrypt(&folder, &["--raw-source", &from, &volume]);
    let offered = || {
        interrupted(&args, &folder.path("v.tc.part.json"), "-KILL");
        let said = run(args.iter().filter(|arg| **arg != "--json")).fails(1, &["has not been finished"]).err;
        let commands: Vec<String> =
            said.lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect();
        let [resume, anew] = &commands[..] else { panic!("{said}") };
        (resume.clone(), anew.clone())
    };
    let shell = |command: &str| {
        let command = format!("claviger() {{ {} \"$@\"; }}; {command}", env!("CARGO_BIN_EXE_claviger"));
        done(Command::new("setsid").args(["--wait", "sh", "-ec", &command]).output().expect("a shell")).succeeds()
    };
    let (resume, _) = offered();
    assert!(resume.starts_with("claviger convert ") && resume.contains(" --resume "), "{resume}");
    shell(&resume);
    assert!(plaintext(&folder, &volume) == bytes);
    fs::remove_file(&volume).expect("removed");
    let (_, anew) = offered();
    shell(&anew);
    run(&args).succeeds();
    assert!(plaintext(&folder, &volume) == bytes);
}

#[test]
fn what_is_there_is_checked_before_it_goes_on() {
    let folder = Folder::new();
    image(&folder, "image", 600_064);
    let (from, volume) = (folder.str("image"), folder.str("v.tc"));
    let args = to_truecrypt(&folder, &["--raw-source", &from, &volume]);
    run(&args).succeeds();
    let stored = fs::read(&volume).expect("a volume");
    let (part, state) = (folder.path("v.tc.part"), folder.path("v.tc.part.json"));
    let half = |damage: usize, source: &str| {
        let mut bytes = stored.clone();
        // What was not durable yet may be anything.
        bytes[(128 << 10) + 300_032..(128 << 10) + 600_064].fill(7);
        bytes[damage] ^= 1;
        fs::write(&part, bytes).expect("written");
        let noted = json!({"claviger_conversion": 1, "source": source, "source_size": 600_064, "destination": volume,
            "format": "TrueCrypt", "stored": stored.len(), "done": 300_032});
        fs::write(&state, noted.to_string()).expect("written");
        let _ = fs::remove_file(&volume);
    };
    let resume: Vec<_> = args.iter().copied().chain(["--resume"]).collect();
    let real = fs::canonicalize(&from).expect("a path").display().to_string();

    half((128 << 10) + 1000, &real);
    run(&resume).fails(4, &["source changed", "at byte"]);
    assert!(!Path::new(&volume).exists());
    half((128 << 10) + 400_000, "/another");
    run(&resume).fails(1, &["another one", "/another"]);
    half((128 << 10) + 400_000, &real);
    run(&resume).succeeds();
    assert!(plaintext(&folder, &volume) == fs::read(&from).expect("the image"));
}
