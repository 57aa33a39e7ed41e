//! Where passwords and keyfiles come from: none of a new volume is empty, and no program that is started reads them again.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::mounts::*;
use crate::common::*;
use claviger_testkit::tools;

/// Options for new volumes of every kind that is made quickly.
const NEW: &[&[&str]] = &[
    &["--format", "LUKS1", "--size", "4M", "--iterations", "1000"],
    &["--format", "LUKS2", "--size", "20M", "--kdf", "pbkdf2", "--iterations", "1000"],
    &["--format", "plain", "--size", "1M"],
    &["--format", "loop-AES", "--size", "1M"],
    &["--format", "TrueCrypt", "--hash", "SHA-512", "--size", "1M"],
];

fn create<'a>(how: &[&'a str], more: &[&'a str], path: &'a str) -> Vec<&'a str> {
    [&["create", "--quick"], how, more, &[path]].concat()
}

#[test]
fn no_new_volume_has_an_empty_secret() {
    let folder = Folder::new();
    for name in ["empty", "newline"] {
        fs::write(folder.path(name), if name == "empty" { "" } else { "\n" }).expect("a file");
    }
    let (empty, newline, path) = (folder.str("empty"), folder.str("newline"), folder.str("v"));
    for how in NEW {
        run_with(b"", create(how, &["--password-file", "-"], &path))
            .fails(1, &["passphrase is empty", "--no-password"]);
        run_with(b"\n", create(how, &["--password-fd", "0"], &path)).fails(1, &["passphrase is empty"]);
        for file in [&empty, &newline] {
            run(create(how, &["--password-file", file], &path)).fails(1, &["passphrase is empty"]);
        }
        run(create(how, &["--no-password", "--keyfile", &empty], &path)).fails(1, &["keyfile is empty"]);
        assert!(!folder.path("v").exists(), "{how:?}");
    }
    let with_keyfile = ["--password-file", &empty, "--keyfile", &newline];
    run(create(NEW[4], &with_keyfile, &path)).fails(1, &["passphrase is empty", "--no-password"]);
    run(create(NEW[4], &["--no-password", "--keyfile", &newline], &path)).succeeds();
    let fresh = ["--password-file", &empty, "--fresh-keyfile", &folder.str("key.gpg")];
    run(create(NEW[3], &fresh, &folder.str("loop"))).fails(1, &["passphrase is empty"]);
    assert!(!folder.path("key.gpg").exists());
}

#[test]
fn nothing_empty_takes_the_place_of_a_secret() {
    let folder = Folder::new();
    fs::write(folder.path("empty"), "").expect("a file");
    fs::write(folder.path("image"), vec![7; 64 << 10]).expect("a file");
    let (empty, password, image) = (folder.str("empty"), folder.password.clone(), folder.str("image"));
    for (name, how) in ["v1", "v2", "v3", "v4", "v5"].iter().zip(NEW) {
        let path = folder.str(name);
        run(create(how, &["--password-file", &password], &path)).succeeds();
        if how[1].starts_with("LUKS") {
            let before = fs::read(&path).expect("a volume");
            for verb in [&["keyslot", "change"][..], &["keyslot", "add"], &["change"]] {
                let keyfile = ["--no-new-password", "--new-keyfile", &empty];
                for (new, hint) in
                    [(&["--new-password-file", "-"][..], "--no-new-password"), (&keyfile, "claviger keyfile")]
                {
                    let args = [verb, &["--password-file", &password], new, &[&path]].concat();
                    run_with(b"", args).fails(1, &["is empty", hint]);
                }
            }
            assert!(fs::read(&path).expect("a volume") == before, "nothing was written");
        }
    }
    let volume = folder.str("v5");
    let change = ["change", "--password-file", &password, "--new-password-file", &empty, &volume];
    run(change).fails(1, &["passphrase is empty"]);
    let to = ["--new-format", "LUKS1", "--new-password-file", &empty, &image, &folder.str("converted")];
    run([&["convert", "--raw-source"], &to[..]].concat()).fails(1, &["passphrase is empty", "--no-new-password"]);
    let header = folder.str("header");
    let encrypt = ["reencrypt", "--encrypt", "--header", &header, "--yes", "--password-file", &empty, &image];
    run(encrypt).fails(1, &["passphrase is empty"]);
    assert!(fs::read(&image).expect("a file") == vec![7; 64 << 10]);
    let hidden = ["create", "--hidden", "--force", "--yes", "--format", "TrueCrypt", "--hash", "SHA-512"];
    let outer = Folder::new();
    if let Some(volume) = with_fat(&outer) {
        let passwords = ["--password-file", &outer.password, "--hidden-password-file", &empty, &volume];
        run([&hidden[..], &passwords].concat()).fails(1, &["passphrase is empty", "--no-hidden-password"]);
    }
}

/// A TrueCrypt volume with an empty FAT in it.
fn with_fat(folder: &Folder) -> Option<String> {
    let mkfs = tools::program("mkfs.vfat")?;
    let (image, volume) = (folder.str("fat"), folder.str("fat.tc"));
    File::create_new(&image).and_then(|f| f.set_len(2 << 20)).expect("an image");
    tools::run(Command::new(mkfs).arg(&image));
    let to = ["--new-format", "TrueCrypt", "--new-hash", "SHA-512", "--new-password-file", &folder.password];
    run([&["convert", "--raw-source"], &to[..], &[&image, &volume]].concat()).succeeds();
    Some(volume)
}

/// openssl hashes the password as the NAS does, and cryptsetup makes a volume with that.
#[test]
fn the_password_of_a_qnap_nas_opens_its_volume() {
    let (Some(openssl), Some(cryptsetup)) = (tools::program("openssl"), tools::program("cryptsetup")) else { return };
    let folder = Folder::new();
    let (image, password) = (folder.str("image"), &*folder.password);
    let text = fs::read_to_string(password).expect("a password");
    fs::write(folder.path("image"), vec![0; 20 << 20]).expect("a file");
    let hash = tools::run(Command::new(openssl).args(["passwd", "-1", "-salt", "YCCaQNAP", text.trim_end()])).stdout;
    fs::write(folder.path("hash"), hash.trim_ascii_end()).expect("a file");
    let cheap = ["--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "-q"];
    let mut format = Command::new(&cryptsetup);
    tools::run(format.arg("luksFormat").args(cheap).arg(&image).arg(folder.path("hash")));
    let opens = |more: &[&str]| run(["info", "--password-file", password].iter().chain(more).chain(&[&*image]));
    opens(&["--qnap"]).succeeds();
    opens(&[]).fails(2, &[]);
    let explained = run(["explain", "--password-file", password, &image]);
    let said = explained.text();
    assert!(said.contains("hashed as a QNAP NAS does") && said.contains("claviger mount --qnap"), "{said}");

    // What is made for one opens there.
    let own = folder.str("own");
    let create = ["create", "--format", "LUKS1", "--quick", "--size", "4M", "--iterations", "1000", "--qnap"];
    run(create.iter().chain(&["--password-file", password, &own])).succeeds();
    let mut test = Command::new(&cryptsetup);
    tools::run(test.args(["open", "--test-passphrase", "--key-file"]).arg(folder.path("hash")).arg(&own));
}

/// cryptsetup takes an empty line as a passphrase.
#[test]
fn an_empty_passphrase_opens_what_has_one() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let folder = Folder::new();
    for name in ["empty", "newline"] {
        fs::write(folder.path(name), if name == "empty" { "" } else { "\n" }).expect("a file");
    }
    let volume = folder.str("v.luks");
    File::create_new(&volume).and_then(|f| f.set_len(4 << 20)).expect("a file");
    let mut format = Command::new(cryptsetup);
    format.args(["luksFormat", "-q", "--type", "luks1", "--pbkdf-force-iterations", "1000", &volume]);
    tools::run(format.stdin(File::open(folder.path("newline")).expect("a file")));
    run_with(b"\n", ["info", "--password-file", "-", &volume]).succeeds();
    run_with(b"", ["info", "--password-file", "-", &volume]).succeeds();
    run(["info", "--password-file", &folder.str("empty"), &volume]).succeeds();
    run(["info", "--no-password", "--keyfile", &folder.str("empty"), &volume]).succeeds();
    // And it can be changed.
    let change = ["change", "--password-file", &folder.str("empty"), "--new-password-file", &folder.password, &volume];
    run(change).succeeds();
    run(["info", "--password-file", &folder.password, &volume]).succeeds();
}

/// Any password opens a plain volume, to noise, and a write would then destroy it. cryptsetup makes the same difference.
#[test]
fn a_plain_volume_does_not_open_where_no_password_came() {
    let folder = Folder::new();
    fs::write(folder.path("v"), vec![0x5a; 1 << 20]).expect("a file");
    let (volume, none) = (folder.str("v"), folder.str("newline"));
    fs::write(&none, "\n").expect("a file");
    let info = |source: &[&str]| [&["info", "--format", "plain"], source, &[&*volume]].concat().join(" ");
    let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for source in [&["--password-file", "-"][..], &["--password-fd", "0"], &["--password-file", "/dev/stdin"]] {
        run_with(b"", words(info(source))).fails(1, &["the input ended", "give an empty line"]);
        run_with(b"\n", words(info(source))).succeeds();
    }
    run(words(info(&["--password-file", &none]))).succeeds();
    if let Some(cryptsetup) = tools::program("cryptsetup") {
        let mut open = Command::new(cryptsetup);
        open.args(["open", "--type", "plain", "--test-passphrase", &volume, "none"]);
        let (read, write) = std::io::pipe().expect("a pipe");
        drop(write);
        let said = done(open.stdin(read).output().expect("cryptsetup starts"));
        assert!(said.code != 0, "{said:?}");
    }
}

/// What a file descriptor refers to.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Pipe,
    File,
    Socket,
}

/// A descriptor that gives the password, twice over if it is a file that is read twice.
fn giving(folder: &Folder, kind: Kind) -> OwnedFd {
    let text = format!("{PASSWORD}\n");
    match kind {
        Kind::File => File::open(&folder.password).expect("the password").into(),
        Kind::Pipe => {
            let (read, mut write) = std::io::pipe().expect("a pipe");
            write.write_all(text.as_bytes()).expect("a pipe holds it");
            read.into()
        }
        Kind::Socket => {
            let (read, mut write) = UnixStream::pair().expect("sockets");
            write.write_all(text.as_bytes()).expect("a socket holds it");
            read.into()
        }
    }
}

/// A shell that starts the program with standard input as descriptor 47.
const GIVE: &str = "exec \"$0\" \"$@\" 47<&0 0</dev/null";

/// Says so if the shell has the descriptor that gave the password, or one that has nothing to do with it.
const HAS: &str = "for n in 47 49; do if test -e /proc/$$/fd/$n; then echo has $n; fi; done";

/// The program in a shell that gives it the descriptor under the number `number`, 47 or 0, and another file as 49.
fn given(descriptor: OwnedFd, number: &str, args: &[String]) -> Done {
    let mut shell = Command::new("bash");
    let redirect = if number == "0" { "" } else { "47<&0 0</dev/null" };
    shell.args(["-c", &format!("exec setsid --wait \"$0\" \"$@\" {redirect} 49</etc/passwd")]);
    shell.arg(env!("CARGO_BIN_EXE_claviger")).args(args).stdin(descriptor);
    done(shell.output().expect("bash starts"))
}

/// The arguments of a server whose command says which of the descriptors it has, and what can be read from them.
fn serve<'a>(more: &[&'a str], volume: &'a str) -> Vec<String> {
    let command = format!("{HAS}; cat <&0; cat /dev/fd/47; cat /dev/stdin; true");
    let args = [&["serve", "--run", &command], more, &[volume]].concat();
    args.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_command_of_serve_cannot_read_the_password() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let (fd, file) = (["--password-fd", "47"], ["--password-file", "/dev/fd/47"]);
    for (kind, how, number) in [
        (Kind::Pipe, &fd[..], "47"),
        (Kind::File, &fd, "47"),
        (Kind::Socket, &fd, "47"),
        (Kind::Pipe, &file, "47"),
        (Kind::File, &file, "47"),
        (Kind::Pipe, &["--password-file", "-"], "0"),
        (Kind::File, &["--password-file", "-"], "0"),
        (Kind::Socket, &["--password-file", "-"], "0"),
        (Kind::File, &["--password-file", "/dev/stdin"], "0"),
        (Kind::File, &["--password-fd", "0"], "0"),
        (Kind::Socket, &["--password-fd", "0"], "0"),
    ] {
        let args = serve(&[&["--truecrypt"], how].concat(), &volume);
        let ran = given(giving(&folder, kind), number, &args).succeeds();
        // Descriptors other than the password's are inherited.
        assert_eq!(ran.text(), "has 49\n", "{kind:?} {how:?}: {ran:?}");
    }
}

#[test]
fn the_command_of_serve_cannot_read_keys() {
    let folder = Folder::new();
    let keyfile = ["--no-password", "--keyfile", &folder.password];
    let volume = folder.str("k.tc");
    run(create(NEW[4], &keyfile, &volume)).succeeds();
    let only_49 = |descriptor, how: &[&str], volume: &str| {
        let ran = given(descriptor, "47", &serve(how, volume)).succeeds();
        assert_eq!(ran.text(), "has 49\n", "{how:?}: {ran:?}");
    };
    let keyfile = ["--truecrypt", "--no-password", "--keyfile", "/dev/fd/47"];
    only_49(giving(&folder, Kind::File), &keyfile, &volume);

    // One of a folder of keyfiles.
    let (keys, key) = (folder.path("keys"), folder.path("keys/one"));
    fs::create_dir(&keys).and_then(|()| fs::copy(&folder.password, &key)).expect("a keyfile");
    let of_folder = ["--truecrypt", "--no-password", "--keyfile", &folder.str("keys")];
    only_49(File::open(&key).expect("a keyfile").into(), &of_folder, &volume);
    // A standard stream is not accepted as a source of the password.
    run(["info", "--password-fd", "2", &volume]).fails(6, &["--password-fd 2"]);

    // A part of a pipe: the rest of it is in there still.
    let volume = folder.str("part.tc");
    let part = ["--no-password", "--keyfile", &folder.password, "--keyfile-size", "8"];
    run(create(NEW[4], &part, &volume)).succeeds();
    only_49(giving(&folder, Kind::Pipe), &[&keyfile[..], &["--keyfile-size", "8"]].concat(), &volume);

    let (volume, key) = (folder.str("v.luks"), folder.str("key"));
    fs::write(&key, &PASSWORD.repeat(4).as_bytes()[..64]).expect("a key");
    run(create(NEW[0], &["--password-file", &folder.password, "--volume-key-file", &key], &volume)).succeeds();
    only_49(File::open(&key).expect("a key").into(), &["--volume-key-file", "/dev/fd/47"], &volume);
}

/// A folder of programs that note which descriptors they have, and then are those that they are called like.
fn watched(folder: &Folder, names: &[&str]) -> (String, PathBuf) {
    let seen = folder.path("seen");
    fs::write(&seen, "").expect("a file");
    fs::set_permissions(&seen, Permissions::from_mode(0o666)).expect("all may write");
    let scripts = names.iter().filter_map(|name| {
        let (real, log) = (tools::program(name)?, seen.display());
        Some((*name, format!("{{ echo {name}; {HAS}; }} >> {log}\nexec {} \"$@\"", real.display())))
    });
    (folder.programs(scripts), seen)
}

/// Which programs have run, and that none of them had the descriptor.
#[track_caller]
fn had_nothing(seen: &Path) -> String {
    let seen = fs::read_to_string(seen).expect("what was noted");
    assert!(!seen.contains("has"), "{seen}");
    seen
}

/// gpg is started by the engine.
#[test]
fn gpg_cannot_read_the_password_again() {
    let Some(_) = tools::program("gpg") else { return };
    let folder = Folder::new();
    let (key, volume) = (folder.str("key.gpg"), folder.str("v.loop"));
    let fresh = ["--password-file", &folder.password, "--fresh-keyfile", &key];
    run(create(NEW[3], &fresh, &volume)).succeeds();
    let (path, seen) = watched(&folder, &["gpg"]);
    let info = ["info", "--format", "loop-AES", "--password-fd", "47", "--keyfile", &key, &volume];
    let mut command = Command::new("env");
    command.args([&path, "bash", "-c", GIVE, env!("CARGO_BIN_EXE_claviger")]).args(info);
    done(command.stdin(giving(&folder, Kind::File)).output().expect("bash starts")).succeeds();
    assert_eq!(had_nothing(&seen), "gpg\n");
}

/// The process in front reads nothing; the one in the background does.
#[test]
fn a_volume_is_mounted_in_the_background_with_a_password_from_a_descriptor() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.ext4("v.tc");
    let (path, seen) = watched(&place.folder, &["mount", "umount", "modprobe", "fusermount3", "setpriv"]);
    for kind in [Kind::Pipe, Kind::File, Kind::Socket] {
        let dir = place.dir(&format!("{kind:?}"));
        let mut command = place.command("env");
        command.args([&path, "bash", "-c", GIVE, env!("CARGO_BIN_EXE_claviger")]);
        command.args(["mount", "--json", "--truecrypt", "--hash", "SHA-512", "--password-fd", "47", &volume, &dir]);
        let mounted = done(command.stdin(giving(&place.folder, kind)).output().expect("it starts"));
        assert!(mounted.succeeds().json()["pid"].is_u64() && place.mounted(&dir), "{kind:?}");
        place.unmount(&dir).succeeds();
    }
    assert!(had_nothing(&seen).contains("mount\n"));
}

#[test]
fn no_program_that_serves_a_file_system_has_the_password() {
    let Some(place) = MountSpace::user() else { return };
    let Some(_) = tools::program("fuse2fs") else { return };
    let volume = place.ext4("v.tc");
    let (path, seen) = watched(&place.folder, &["fuse2fs", "setpriv", "fusermount3", "modprobe"]);
    let dir = place.dir("d");
    let mut command = place.command("env");
    command.args([&path, "bash", "-c", GIVE, env!("CARGO_BIN_EXE_claviger")]);
    command.args(["mount", "--json", "--truecrypt", "--hash", "SHA-512", "--password-fd", "47", &volume, &dir]);
    done(command.stdin(giving(&place.folder, Kind::File)).output().expect("it starts")).succeeds();
    place.unmount(&dir).succeeds();
    assert!(had_nothing(&seen).contains("fuse2fs\n"));
}
