//! `claviger serve`: clients, signals, `--run`, and what can go wrong below.

use std::fs;
use std::io::BufRead;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::process::{Command, Stdio};

use crate::common::mounts::wait_until;
use crate::common::*;
use claviger_testkit::tools;

#[test]
fn what_is_written_is_there_afterwards() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "2M", &[]);
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    assert_eq!((served.size, served.read_only), ((2 << 20) - (256 << 10), false));
    assert_eq!(served.uri, format!("nbd+unix:///?socket={}", folder.str("s")));
    let metadata = fs::metadata(&served.socket).expect("a socket");
    assert!(metadata.file_type().is_socket() && metadata.permissions().mode() & 0o777 == 0o600);
    let Some((wrote, said)) = qemu_io(&served.uri, "write -P 0xa5 4000 100000") else { return };
    assert!(wrote, "{said}");
    let (read, said) = qemu_io(&served.uri, "read -P 0xa5 4000 100000").expect("as before");
    assert!(read, "{said}");
    served.stop().succeeds();
    assert!(!folder.path("s").exists(), "the socket is removed");
    let args = ["cat", "--offset", "4000", "--length", "100000", "--password-file", &folder.password, &volume];
    assert!(run(args).succeeds().out == [0xa5; 100_000]);
}

#[test]
fn read_only_is_read_only() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let before = fs::read(&volume).expect("a file");
    let args =
        ["--read-only", "--export", "the name", "--socket", &folder.str("s"), "--password-file", &folder.password];
    let served = Served::start(args.iter().copied().chain([&*volume]));
    assert!(served.read_only && served.uri.contains("/the%20name?socket="), "{}", served.uri);
    let Some((wrote, _)) = qemu_io(&served.uri, "write 0 512") else { return };
    assert!(!wrote);
    let (read, said) = qemu_io(&served.uri, "read 0 512").expect("as before");
    assert!(read, "{said}");
    served.stop().succeeds();
    assert!(fs::read(&volume).expect("a file") == before);
}

#[test]
fn the_default_socket_is_private() {
    let folder = Folder::new();
    let volume = folder.volume("a volume.tc", "1M", &[]);
    let runtime = folder.str("run");
    fs::create_dir(&runtime).expect("a folder");
    let serve = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        command.args(["serve", "--read-only", "--password-file", &folder.password, &volume, "--run"]);
        command.arg("echo $socket; stat -c %a $(dirname \"$socket\")");
        command.env("CLAVIGER_RUNTIME_DIR", format!("{runtime}/claviger"));
        command.stdin(Stdio::null());
        done(command.output().expect("it ends"))
    };
    assert_eq!(serve().succeeds().text(), format!("{runtime}/claviger/a volume.tc.sock\n700\n"));
    fs::set_permissions(folder.path("run/claviger"), fs::Permissions::from_mode(0o755)).expect("changed");
    serve().fails(1, &["not a private folder"]);
}

#[test]
fn two_volumes_of_one_name_have_two_sockets() {
    let folder = Folder::new();
    fs::create_dir(folder.path("b")).expect("a folder");
    let volumes = [folder.volume("v.tc", "1M", &[]), folder.volume("b/v.tc", "1M", &[])];
    let served = volumes.map(|volume| Served::start(["--password-file", &folder.password, &volume]));
    assert_ne!(served[0].uri, served[1].uri);
    for served in served {
        served.stop().succeeds();
    }
}

#[test]
fn tcp_and_raw() {
    let folder = Folder::new();
    fs::write(folder.path("disk"), vec![0x5a; 1 << 20]).expect("a disk");
    let served = Served::start(["--raw", "--tcp", "127.0.0.1:0", &folder.str("disk")]);
    assert!(served.uri.starts_with("nbd://127.0.0.1:") && served.socket.as_os_str().is_empty(), "{}", served.uri);
    let Some((read, said)) = qemu_io(&served.uri, "read -P 0x5a 0 1M") else { return };
    assert!(read, "{said}");
    served.stop().succeeds();
}

#[test]
fn run_ends_with_the_commands_status() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let serve = |command: &str| {
        let socket = folder.str("s");
        run(["serve", "--password-file", &folder.password, "--socket", &socket, &volume, "--run", command])
    };
    assert_eq!(serve("exit 7").fails(7, &[]).err, "");
    serve("kill -KILL $$").fails(128 + 9, &[]);
    assert_eq!(
        serve("test -S \"$socket\" && echo \"$uri\"").succeeds().text(),
        format!("nbd+unix:///?socket={}\n", folder.str("s"))
    );
    assert!(!folder.path("s").exists(), "the socket is removed");
    let Some(nbdcopy) = tools::program("nbdcopy") else { return };
    let image = folder.str("image");
    serve(&format!("{} \"$uri\" {image}", nbdcopy.display())).succeeds();
    let cat = run(["cat", "--password-file", &folder.password, &volume]).succeeds();
    assert!(fs::read(image).expect("an image") == cat.out);
}

#[test]
fn a_signal_ends_the_command_too() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
    command.args(["serve", "--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    // What a shell has started does not end with it.
    command.args(["--run", "sleep 1000 & sleep 1001 & echo $!; wait"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // The command says when it runs.
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let started = line.trim().to_owned();
    assert!(runs(&started));
    tools::run(Command::new("kill").arg(child.id().to_string()));
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + 15));
    assert!(!folder.path("s").exists());
    wait_until("what the shell started has ended", || !runs(&started));
}

/// Whether there is a process that has not ended.
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Otherwise `unmount`, which is advised for what is left of it, would end the new one.
#[test]
fn a_killed_server_is_forgotten_when_its_volume_is_served_again() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let states = || {
        let list = run(["list", "--json"]).succeeds().json();
        let ours = list["volumes"].as_array().expect("a list").iter().filter(|one| one["volume"] == *volume);
        ours.map(|one| one["state"].as_str().unwrap_or("?").to_owned()).collect::<Vec<_>>()
    };
    let start = || Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let mut killed = start();
    killed.child.kill().expect("it runs");
    killed.child.wait().expect("it ends");
    assert_eq!(states(), ["dead"]);
    let again = start();
    assert_eq!(states(), ["alive"]);
    again.stop().succeeds();
    assert!(states().is_empty());
}

#[test]
fn two_writers_are_not_let_in() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let holder = format!("process {}, claviger", served.pid);
    let second = ["serve", "--password-file", &folder.password, "--socket", &folder.str("t"), &volume];
    run(second).fails(9, &["v.tc: in use by another process", &holder]);
    run(["info", "--password-file", &folder.password, &volume]).fails(9, &[&holder]);
    let create = [
        "create",
        "--format",
        "TrueCrypt",
        "--force",
        "--yes",
        "--size",
        "1M",
        "--password-file",
        &folder.password,
        &volume,
    ];
    run(create).fails(9, &[&holder]);
    served.stop().succeeds();
    // Readers share.
    let read = ["--read-only", "--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
    let served = Served::start(read);
    run(["info", "--password-file", &folder.password, &volume]).succeeds();
    run(second).fails(9, &[&format!("process {}", served.pid)]);
    // One socket is not for two servers either.
    let again = ["serve", "--read-only", "--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
    run(again).fails(9, &["another server answers"]);
    served.stop().succeeds();
}

/// cryptsetup takes the lock of a LUKS2 header for as long as it reads it.
#[test]
fn cryptsetup_reads_beside_readers_and_waits_for_writers() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let folder = Folder::new();
    let volume = folder.str("v.luks");
    let create = ["create", "--quick", "--format", "LUKS2", "--size", "20M", "--kdf", "pbkdf2", "--iterations", "1000"];
    run(create.iter().chain(&["--password-file", &folder.password, &volume])).succeeds();
    let cryptsetup = |args: &[&str]| {
        let mut command = Command::new(&cryptsetup);
        command.args(args).arg(&volume).stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let serve = |more: &[&str]| {
        Served::start([&["--socket", &folder.str("s"), "--password-file", &folder.password], more, &[&volume]].concat())
    };
    let served = serve(&["--read-only"]);
    tools::run(&mut cryptsetup(&["luksDump"]));
    tools::run(&mut cryptsetup(&["open", "--test-passphrase", "--key-file", &key_of(&folder)]));
    served.stop().succeeds();

    let served = serve(&[]);
    tools::run(&mut cryptsetup(&["--disable-locks", "luksDump"]));
    let mut waiting = cryptsetup(&["luksDump"]).spawn().expect("cryptsetup starts");
    let pid = waiting.id().to_string();
    wait_until("cryptsetup waits", || {
        let locks = fs::read_to_string("/proc/locks").expect("locks");
        locks.lines().any(|line| line.contains("-> FLOCK") && line.split_whitespace().any(|word| word == pid))
    });
    served.stop().succeeds();
    assert!(waiting.wait().expect("it ends").success());
}

/// The password without the newline, which cryptsetup takes as a part of a key file.
fn key_of(folder: &Folder) -> String {
    fs::write(folder.path("key"), PASSWORD).expect("a file");
    folder.str("key")
}

#[test]
fn a_file_system_that_is_read_only() {
    let Some(memory) = Tmpfs::new("size=4m") else { return };
    let folder = Folder::new();
    let volume = memory.path().join("v.tc").display().to_string();
    run(["create", "--format", "TrueCrypt", "--quick", "--size", "1M", "--password-file", &folder.password, &volume])
        .succeeds();
    memory.remount("ro");
    let serve = ["serve", "--password-file", &folder.password, "--socket", &folder.str("s"), &volume];
    run(serve).fails(6, &["Read-only file system", "--read-only"]);
    run(serve.iter().copied().chain(["--read-only", "--run", "true"])).succeeds();
    run(["info", "--password-file", &folder.password, &volume]).succeeds();
}

#[test]
fn a_file_that_nobody_may_write() {
    let Some(()) = tools::root() else { return };
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    tools::run(Command::new("chmod").args(["-R", "a=rX"]).arg(folder.path(".")));
    let user = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_claviger")]);
        command.args(args).args(["--password-file", &folder.password, &volume]).env_remove("XDG_RUNTIME_DIR");
        done(command.stdin(Stdio::null()).output().expect("it ends"))
    };
    user(&["serve"]).fails(6, &["Permission denied", "--read-only"]);
    assert!(user(&["serve", "--read-only", "--run", "echo $socket"]).succeeds().text().contains("claviger"));
    user(&["info"]).succeeds();
}

/// The certificates are those that the guide makes.
#[test]
fn other_machines_are_served_with_tls() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/disk.md");
    let guide = fs::read_to_string(guide).expect("a page");
    let commands: Vec<_> =
        guide.lines().filter_map(|l| l.strip_prefix("    $ ")).skip_while(|l| !l.starts_with("mkdir")).collect();
    let commands = &commands[..commands.iter().position(|l| l.starts_with("claviger")).expect("the server")];
    let (Some(_), Some(nbdcopy)) = (tools::program("openssl"), tools::program("nbdcopy")) else { return };
    let folder = Folder::new();
    // Shells differ in how they split variables and expand words. The last one's certificates are used.
    for (shell, options) in [("zsh", "-fec"), ("bash", "-ec"), ("dash", "-ec"), ("sh", "-ec")] {
        let Some(program) = tools::program(shell) else { continue };
        let _ = fs::remove_dir_all(folder.path("pki"));
        tools::run(Command::new(program).args([options, &commands.join("\n")]).current_dir(folder.path("")));
        let made = fs::read_dir(folder.path("pki")).expect("a folder").count();
        assert_eq!(made, 6, "{shell}: a key and a certificate for each of three");
    }

    let (volume, pki, image) = (folder.volume("v.tc", "1M", &[]), folder.str("pki"), folder.str("image"));
    let serve =
        |more: &[&str]| run([&["serve", "--password-file", &folder.password, "--read-only", &volume], more].concat());
    let copy = format!("'{}' \"$uri\" {image} && echo \"$uri\"", nbdcopy.display());
    let said = serve(&["--tcp", "0.0.0.0:0", "--tls", &pki, "--run", &copy]).succeeds().text();
    assert!(
        said.starts_with("nbds://localhost:") && said.trim().ends_with(&format!("?tls-certificates={pki}")),
        "{said}"
    );
    let plain = run(["cat", "--password-file", &folder.password, &volume]).succeeds().out;
    assert!(fs::read(&image).expect("a copy") == plain);
    serve(&["--socket", &folder.str("s"), "--tls", &pki, "--run", &copy]).succeeds();
    // Without a certificate, only where none is asked for.
    for file in ["client-cert.pem", "client-key.pem"] {
        fs::remove_file(folder.path("pki").join(file)).expect("removed");
    }
    let tcp = ["--tcp", "127.0.0.1:0", "--tls", &pki, "--run", &copy];
    assert!(serve(&tcp).code != 0, "it was let in");
    let said = serve(&[&tcp[..], &["--tls-no-verify-peer"]].concat()).succeeds().text();
    assert!(said.starts_with("nbds://127.0.0.1:"), "{said}");

    fs::remove_file(folder.path("pki").join("server-key.pem")).expect("removed");
    serve(&tcp).fails(1, &["server-key.pem", "does not exist"]);
    serve(&["--tls-no-verify-peer"]).fails(1, &["--tls"]);
    serve(&["--tcp", "0.0.0.0:0"]).fails(1, &["without TLS"]);
}

#[test]
fn a_file_that_shrinks_while_it_is_served() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "2M", &[]);
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let Some((read, said)) = qemu_io(&served.uri, "read 1M 4k") else { return };
    assert!(read, "{said}");
    fs::OpenOptions::new().write(true).open(&volume).and_then(|f| f.set_len(1 << 20)).expect("cut");
    let io = |command: &str| qemu_io(&served.uri, command).expect("as before").0;
    assert!(!io("read 1M 4k") && !io("write 1M 4k") && !io("write 1048000 1024"));
    assert!(io("write -P 7 0 4k") && io("read -P 7 0 4k"), "the rest is served on");
    assert_eq!(fs::metadata(&volume).expect("a file").len(), 1 << 20, "the file is not stretched");
    // Said here, too: who uses the disk may keep it to himself.
    served.stop().fails(
        6,
        &[
            "v.tc",
            "cut short",
            "1048576 of 2097152 bytes are left",
            "warning: reading 4096 bytes at byte 1048576 failed",
        ],
    );
    assert_eq!(fs::metadata(&volume).expect("a file").len(), 1 << 20);
}

#[test]
fn a_volume_with_tags_whose_file_shrinks_takes_no_more_and_loses_nothing_else() {
    let folder = Folder::new();
    let volume = folder.str("v");
    let create = ["create", "--format", "LUKS2", "--integrity", "hmac-sha256", "--size", "24M", "--iterations", "1000"];
    run([&create[..], &["--kdf", "pbkdf2", "--password-file", &folder.password, &volume]].concat()).succeeds();
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let Some((wrote, said)) = qemu_io(&served.uri, "write -P 0xa5 0 64k") else { return };
    assert!(wrote, "{said}");
    let len = fs::metadata(&volume).expect("a file").len();
    let set_len =
        |len| fs::OpenOptions::new().write(true).open(&volume).and_then(|f| f.set_len(len)).expect("its length");
    set_len(len - (2 << 20));
    // Its place is still there, and the journal too.
    let (wrote, said) = qemu_io(&served.uri, "write -P 7 0 64k").expect("as before");
    assert!(!wrote && said.contains("Input/output error"), "{said}");
    assert!(qemu_io(&served.uri, "read -P 0xa5 0 64k").expect("as before").0, "what was written before");
    set_len(len);
    assert!(!qemu_io(&served.uri, "write -P 7 0 64k").expect("as before").0, "what was cut off is gone for good");
    set_len(len - (2 << 20));
    served.stop().fails(6, &[&volume, "cut short"]);

    let cat = ["cat", "--length", "65536", "--password-file", &folder.password, &volume];
    run(cat).fails(4, &["truncate --size", &len.to_string()]);
    set_len(len);
    assert!(run(cat).succeeds().out == [0xa5; 65536]);
}

#[test]
fn warnings_are_told_before_serving() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let mut bytes = fs::read(&volume).expect("a file");
    bytes[10] ^= 1;
    fs::write(&volume, &bytes).expect("damaged");
    let args = ["serve", "--password-file", &folder.password, "--socket", &folder.str("s"), &volume, "--run", "true"];
    run(args).fails(0, &["warning", "backup"]);
}

#[test]
fn a_served_volume_needs_little_memory() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "64M", &[]);
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    // Its private memory: pages of the program's file are shared. Its tables with addresses are not, and grow with the formats.
    let taken = || {
        let status = fs::read_to_string(format!("/proc/{}/status", served.pid)).expect("procfs");
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    const MOST: u64 = 4_300;
    let before = taken();
    let Some((read, said)) = qemu_io(&served.uri, "read 0 32M") else { return };
    assert!(read, "{said}");
    assert!(before <= MOST, "{before} kB at rest");
    // Buffers of connections that have ended are given back, as soon as their threads have ended.
    let begin = std::time::Instant::now();
    while taken() > MOST && begin.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(taken() <= MOST, "{} kB at rest after work", taken());
    served.stop().succeeds();
}
