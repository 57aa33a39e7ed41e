//! Volumes that are not in a file here: each verb over an NBD server's export or through a helper, as on a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::mounts::{MountSpace, wait_until};
use crate::common::tpm::free_port;
use crate::common::*;
use claviger_testkit::certificates::Authority;
use claviger_testkit::tools::{self, program};

/// nbdkit over a file in a folder.
pub struct Server {
    child: Child,
    pub uri: String,
}

impl Server {
    pub fn start(folder: &Folder, more: &[&str]) -> Option<Self> {
        let nbdkit = program("nbdkit")?;
        let (image, socket) = (folder.path("image"), folder.path("nbd"));
        if !image.exists() {
            fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("a file");
        }
        let mut command = Command::new(nbdkit);
        let (options, parameters): (Vec<&str>, Vec<_>) = more.iter().partition(|word| word.starts_with('-'));
        command.args(["-f", "-U"]).arg(&socket).args(options).arg("file");
        command.arg(format!("file={}", image.display())).args(parameters);
        let child = command.stdin(Stdio::null()).spawn().expect("it starts");
        wait_until("nbdkit listens", || socket.exists());
        Some(Self { child, uri: format!("nbd+unix:///?socket={}", socket.display()) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const QUICK: [&str; 9] =
    ["create", "--quick", "--format", "LUKS2", "--kdf", "pbkdf2", "--iterations", "1000", "--password-file"];
const ROOM: [&str; 6] = ["--metadata-size", "16K", "--keyslots-size", "768K", "--offset", "1M"];

#[test]
fn every_verb_takes_what_is_elsewhere() {
    let folder = Folder::new();
    let Some(server) = Server::start(&folder, &[]) else { return };
    let (uri, pw) = (server.uri.as_str(), folder.password.as_str());
    let new = folder.str("new");
    fs::write(&new, "another").expect("a file");
    run(["identify", uri]).fails(3, &[]);
    let refused = QUICK.iter().copied().chain([pw, "--size", "4M", uri]);
    run(refused).fails(1, &["the size of this store is fixed"]);
    // An image of zeros has nothing to lose. Existing data are replaced only with --force.
    run(QUICK.iter().copied().chain([pw]).chain(ROOM).chain([uri])).fails(1, &["--force"]);
    run(QUICK.iter().copied().chain([pw]).chain(ROOM).chain(["--force", "--yes", uri])).succeeds();
    run(["identify", uri]).succeeds();
    assert_eq!(run(["info", "--json", "--password-file", pw, uri]).succeeds().json()["format"], "LUKS2");
    run(["explain", "--password-file", &new, uri]).fails(2, &[]);
    let derivation = ["--kdf", "pbkdf2", "--iterations", "1000"];
    let add = ["keyslot", "add", "--password-file", pw, "--new-password-file", &new];
    run(add.iter().copied().chain(derivation).chain([uri])).succeeds();
    run(["keyslot", "list", uri]).succeeds();
    run(["header", "backup", uri, &folder.str("backup")]).succeeds();
    run(["keyslot", "remove", "--password-file", pw, "--yes", uri]).succeeds();
    run(["verify", "--password-file", pw, uri]).fails(2, &[]);
    run(["header", "restore", "--yes", "--from", &folder.str("backup"), uri]).succeeds();
    run(["verify", "--password-file", pw, uri]).succeeds();
    run(["resize", "--size", "2M", uri]).fails(5, &["not in a local file"]);

    let plain = run(["cat", "--password-file", pw, uri]).succeeds().out;
    assert_eq!(plain.len(), 7 << 20);
    run(["reencrypt", "--yes", "--new-kdf", "pbkdf2", "--new-iterations", "1000", "--password-file", pw, uri])
        .succeeds();
    assert!(run(["cat", "--password-file", pw, uri]).succeeds().out == plain);
    let copy = folder.str("copy");
    run(["convert", "--password-file", pw, "--raw", uri, &copy]).succeeds();
    assert!(fs::read(&copy).expect("a file") == plain);
    // What was written through the server is a volume of the file below it.
    drop(server);
    assert!(run(["cat", "--password-file", pw, &folder.str("image")]).succeeds().out == plain);
}

#[test]
fn a_detached_header_can_be_elsewhere_and_is_changed_there() {
    let folder = Folder::new();
    let (image, data, pw, new) = (folder.str("image"), folder.str("data"), folder.password.clone(), folder.str("new"));
    fs::write(&new, "another").expect("a file");
    run(QUICK.iter().copied().chain([&*pw, "--size", "4M", "--header", &image, &data])).succeeds();
    let plain = run(["cat", "--password-file", &pw, "--header", &image, &data]).succeeds().out;
    let Some(server) = Server::start(&folder, &[]) else { return };
    let uri = &*server.uri;
    assert!(run(["cat", "--password-file", &pw, "--header", uri, &data]).succeeds().out == plain);
    let derivation = ["--kdf", "pbkdf2", "--iterations", "1000"];
    let add = ["keyslot", "add", "--password-file", &pw, "--new-password-file", &new, "--header", uri];
    let added = run(add.into_iter().chain(derivation).chain([&*data])).succeeds();
    assert!(added.err.contains("another machine"), "nobody locks what NBD serves: {}", added.err);
    let reencrypt = ["reencrypt", "--yes", "--new-kdf", "pbkdf2", "--new-iterations", "1000"];
    let with = ["--password-file", &new, "--header", uri, &data];
    run(reencrypt.into_iter().chain(with)).succeeds();
    run([
        "create",
        "--format",
        "LUKS2",
        "--quick",
        "--password-file",
        &pw,
        "--size",
        "4M",
        "--header",
        uri,
        &folder.str("other"),
    ])
    .fails(5, &["a new header in a remote store"]);
    drop(server);
    // It is in the file below the server.
    assert!(run(["cat", "--password-file", &new, "--header", &image, &data]).succeeds().out == plain);
    run(["cat", "--password-file", &pw, "--header", &image, &data]).fails(2, &[]);

    let blank = Folder::new();
    let Some(server) = Server::start(&blank, &[]) else { return };
    let begun = ["reencrypt", "--encrypt", "--yes", "--password-file", &pw, "--header", &server.uri, &data];
    run(begun).fails(5, &["a new header in a remote store"]);
}

#[test]
fn it_mounts_is_listed_and_ends_by_its_name() {
    let Some(mounts) = MountSpace::root() else { return };
    let folder = Folder::new();
    let volume = folder.volume("image", "8M", &[]);
    let Some(server) = Server::start(&folder, &[]) else { return };
    let dir = mounts.dir("m");
    let uri = &server.uri;
    mounts.run(["mount", "--filesystem", "none", "--password-file", &folder.password, uri, &dir]).succeeds();
    assert_eq!(mounts.list()[0]["volume"], uri.as_str());
    let inside = PathBuf::from(&dir).join("volume");
    let file = fs::OpenOptions::new().write(true).open(&inside).expect("it is writable");
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 300_000], 1_000_000).expect("a write");
    file.sync_all().expect("a flush");
    drop(file);
    mounts.unmount(uri).succeeds();
    mounts.nothing_is_left();
    drop(server);
    let read = ["cat", "--offset", "1000000", "--length", "300000", "--password-file", &folder.password, &volume];
    assert!(run(read).succeeds().out == [7; 300_000]);
}

#[test]
fn helpers_and_keys_in_another_process() {
    let (Some(qemu_img), Some(_), Some(_)) = (program("qemu-img"), program("qemu-nbd"), program("nbdcopy")) else {
        return;
    };
    let folder = Folder::new();
    let image = folder.str("image.qcow2");
    tools::run(Command::new(qemu_img).args(["create", "-q", "-f", "qcow2", &image, "8M"]));
    let place = format!("qcow2:{image}");
    let pw = folder.password.as_str();
    run(QUICK.iter().copied().chain([pw]).chain(ROOM).chain(["--force", "--yes", &place])).succeeds();
    let plain = run(["cat", "--password-file", pw, &place]).succeeds().out;
    let copy = folder.str("copy");
    let isolated = ["serve", "--read-only", "--isolate-keys", "--password-file", pw, "--run"];
    run(isolated.iter().copied().chain([&*format!("nbdcopy \"$uri\" {copy}"), &place])).succeeds();
    assert!(fs::read(&copy).expect("a file") == plain);
    run(["cat", "--password-file", pw, "qcow2:/no/such/image"]).fails(6, &["No such file"]);
    run(["cat", "--password-file", pw, "s3:bucket"]).fails(1, &["s3:{bucket}/{key}"]);
    // The helper's lock keeps the other writer out.
    let served = Served::start(["--password-file", pw, "--socket", &folder.str("s"), &place]);
    run(["serve", "--run", "true", "--password-file", pw, &place]).fails(6, &["lock"]);
    // But changes of the header go through the first.
    run(["header", "set", "--label", "in use", &place]).succeeds();
    run(["resize", &place]).fails(6, &["keeps its size while it is in use"]);
    served.stop().succeeds();
}

/// Writes to the served volume through the first helper and the second. The third must refuse.
const HELPERS: &str = r#"
cd "$1"
put() { qemu-io -n -f raw -c "$1" "$uri" >said 2>&1 && ! grep -Eq 'failed|error' said; }
put 'write -P 1 0 4k' || exit 11
who 1 2
kill -9 $(cat pid)
put 'write -P 2 4k 4k' || exit 12
who 1 2 3 4
kill -9 $(cat pid)
put 'write -P 3 8k 4k' && exit 13
exit 0
"#;

/// Whenever a helper has to be restarted, it is asked again who else writes to the image. Scripts stand in for Ceph's programs.
#[test]
fn nothing_is_written_where_somebody_came_while_the_helper_was_away() {
    let (Some(_), Some(_)) = (program("nbdkit"), program("qemu-io")) else { return };
    let folder = Folder::new();
    let here = folder.str("");
    fs::write(folder.path("image"), vec![0; 1 << 20]).expect("a file");
    let who = r#"for n; do list="$list${list:+,}{\"address\":\"10.0.0.$n:0/1\"}"; done; echo "{\"watchers\":[$list]}""#;
    for (name, script) in [
        ("qemu-nbd", format!("exec nbdkit -f --pidfile={here}/pid file file={here}/image")),
        ("rbd", format!("cat {here}/watchers")),
        ("who", format!("{{ {who}; }} >{here}/watchers")),
        ("script", HELPERS.to_owned()),
    ] {
        fs::write(folder.path(name), format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(folder.path(name), fs::Permissions::from_mode(0o755)).expect("executable");
    }
    let path = format!("{here}:{}", std::env::var("PATH").unwrap_or_default());
    tools::run(Command::new(folder.path("who")).arg("1"));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_claviger"));
    serve.args(["serve", "--raw", "--run", &format!("script {here}"), "rbd:pool/image"]).env("PATH", path);
    let done = done(serve.stdin(Stdio::null()).output().expect("it starts"));
    assert!(done.code != 0 && done.err.contains("another client may write there now"), "{done:?}");
    let image = fs::read(folder.path("image")).expect("a file");
    assert!(image[..4096] == [1; 4096] && image[4096..8192] == [2; 4096] && image[8192..12288] == [0; 4096]);
}

/// A helper shows the size that the image had when it began. Scripts stand in for Ceph's programs.
#[test]
fn an_image_that_grows_is_noticed_by_another_helper() {
    let (Some(qemu_nbd), Some(_)) = (program("qemu-nbd"), program("qemu-io")) else { return };
    let (folder, pw) = (Folder::new(), Folder::new());
    let (image, new) = (folder.luks2("image"), folder.str("new"));
    fs::write(&new, "another one, long enough").expect("a password file");
    // Like the driver for rbd: no lock, and the size of its beginning.
    let options = format!("driver=raw,file.driver=file,file.locking=off,file.filename={image}");
    let serve = format!("--persistent --shared=8 --image-opts {options}");
    let begin = format!("[ \"$1\" = --read-only ] && only=--read-only\nexec {} $only {serve}", qemu_nbd.display());
    for (name, script) in
        [("qemu-nbd", begin), ("rbd", r#"echo '{"watchers":[{"address":"10.0.0.1:0/1"}]}'"#.to_owned())]
    {
        fs::write(pw.path(name), format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(pw.path(name), fs::Permissions::from_mode(0o755)).expect("executable");
    }
    let path = format!("{}:{}", pw.str(""), std::env::var("PATH").unwrap_or_default());
    let command = |words: &[&str]| {
        let mut command = claviger();
        command.args(words).env("PATH", &path).stdin(Stdio::null());
        command
    };
    let name = "rbd:pool/image";
    let socket = folder.str("s");
    let served =
        Served::of(command(&["serve", "--json", "--password-file", &folder.password, "--socket", &socket, name]));
    let does = |what: &str| {
        let (good, out) = qemu_io(&served.uri, what).expect("as before");
        assert!(good, "{what}: {out}");
    };
    does(&format!("write -P 0x5a 0 {}", served.size));
    let none = done(command(&["resize", name]).output().expect("it starts"));
    assert!(none.succeeds().text().contains("for files"), "it has its size already");
    let file = fs::OpenOptions::new().write(true).open(&image).expect("a file");
    file.set_len(fs::metadata(&image).expect("a file").len() + (3 << 20)).expect("grown");
    done(command(&["resize", name]).output().expect("it starts")).succeeds();
    does(&format!("write -P 7 {} 3M", served.size));
    does(&format!("read -P 0x5a 0 {}", served.size));
    // The header is changed through the process that serves the volume: only that may write to the image.
    let change =
        ["keyslot", "change", "--password-file", &folder.password, "--new-password-file", &new, "--kdf", "pbkdf2"];
    let change = change.into_iter().chain(["--iterations", "1000", name]).collect::<Vec<_>>();
    done(command(&change).output().expect("it starts")).succeeds();
    does(&format!("read -P 7 {} 3M", served.size));
    let before = served.size;
    served.stop().succeeds();
    run(["keyslot", "test", "--password-file", &folder.password, &image]).fails(2, &[]);
    let again = Served::start(["--password-file", &new, "--socket", &socket, &image]);
    assert_eq!(again.size, before + (3 << 20));
    let (good, out) = qemu_io(&again.uri, &format!("read -P 7 {before} 3M")).expect("as before");
    assert!(good, "{out}");
    again.stop().succeeds();
}

#[test]
fn one_of_our_servers_is_another_ones_volume_over_tls() {
    let folder = Folder::new();
    let Some(authority) = Authority::with_both(&folder.path("pki")) else { return };
    let pki = authority.folder().display().to_string();
    let volume = folder.volume("v.tc", "2M", &[]);
    let pw = folder.password.as_str();
    let served = Served::start(["--raw", "--tls", &pki, "--tcp", "127.0.0.1:0", &volume]);
    assert!(served.uri.starts_with("nbds://"), "{}", served.uri);
    let plain = run(["cat", "--password-file", pw, &served.uri]).succeeds().out;
    let clear = served.uri.replace("nbds://", "nbd://");
    let clear = clear.split('?').next().expect("a part");
    run(["cat", "--password-file", pw, clear]).fails(6, &["nbds"]);
    served.stop().succeeds();
    assert!(run(["cat", "--password-file", pw, &volume]).succeeds().out == plain);
}

/// What librbd takes, as cryptsetup sees it: data that begin at a multiple of 4 MiB, in AES-XTS.
#[test]
fn a_volume_for_rbd_begins_where_librbd_wants_it() {
    let Some(cryptsetup) = program("cryptsetup") else { return };
    let folder = Folder::new();
    let create = |name: &str, more: &[&str]| {
        let path = folder.str(name);
        let args = ["create", "--for", "rbd", "--quick", "--size", "20M", "--iterations", "1000", "--password-file"];
        run(args.iter().chain([&&*folder.password, &&*path]).chain(more))
    };
    for (format, more, offset) in [
        ("LUKS2", &["--kdf", "pbkdf2"][..], 16 << 20),
        ("LUKS2", &["--format", "luks2", "--offset", "8M", "--keyslots-size", "4M", "--kdf", "pbkdf2"], 8 << 20),
        ("LUKS1", &["--format", "LUKS1", "--cipher", "aes-xts-plain64", "--key-size", "256"], 4 << 20),
    ] {
        let volume = folder.str(format) + &offset.to_string();
        create(&volume, more).succeeds();
        let dump = tools::run(Command::new(&cryptsetup).args(["luksDump", &volume]));
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        assert!(dump.contains("xts-plain64"), "{dump}");
        // LUKS1's in sectors, LUKS2's in bytes.
        let told = dump.lines().find_map(|line| {
            let line = line.trim();
            let sectors = line.strip_prefix("Payload offset:").map(|told| (told, 512));
            let (told, unit) = sectors.or_else(|| line.strip_prefix("offset:").map(|told| (told, 1)))?;
            told.split_whitespace().next()?.parse::<u64>().ok().map(|told| told * unit)
        });
        assert_eq!(told, Some(offset), "{dump}");
    }
    for (more, words) in [
        (&["--format", "VeraCrypt"][..], "LUKS1 or LUKS2"),
        (&["--cipher", "serpent-xts-plain64"], "aes-xts-plain64"),
        (&["--offset", "17M"], "multiple of 4M"),
        (&["--integrity", "hmac-sha256"], "--integrity"),
    ] {
        create("refused", more).fails(1, &[words]);
        assert!(!folder.path("refused").exists());
    }
}

/// A volume in a file of another machine, which OpenSSH's own server serves.
#[test]
fn a_file_of_another_machine_is_mounted_over_ssh() {
    let (Some(_), Some(place)) = (program("nbdkit"), MountSpace::root()) else { return };
    let (Some(sshd), Some(keygen)) = (program("sshd"), program("ssh-keygen")) else { return };
    let (folder, port) = (&place.folder, free_port());
    for key in ["host", "id"] {
        tools::run(Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.path(key)));
    }
    fs::copy(folder.path("id.pub"), folder.path("authorized")).expect("copied");
    let host = fs::read_to_string(folder.path("host.pub")).expect("a key");
    fs::write(folder.path("known"), format!("[127.0.0.1]:{port} {host}")).expect("written");
    // Debian's unit also creates this before it starts sshd.
    fs::create_dir_all("/run/sshd").expect("a folder");
    let options = [
        format!("Port={port}"),
        "ListenAddress=127.0.0.1".to_owned(),
        format!("HostKey={}", folder.str("host")),
        format!("AuthorizedKeysFile={}", folder.str("authorized")),
        "StrictModes=no".to_owned(),
        "UsePAM=no".to_owned(),
        "PermitRootLogin=yes".to_owned(),
        "PidFile=none".to_owned(),
        "Subsystem=sftp internal-sftp".to_owned(),
    ];
    let mut command = Command::new(sshd);
    command.args(["-D", "-e", "-f", "/dev/null"]).args(options.iter().flat_map(|option| ["-o", option]));
    let server = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let _server = Server { child: server, uri: String::new() };
    wait_until("sshd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());

    let file = folder.str("there");
    fs::File::create(&file).and_then(|file| file.set_len(20 << 20)).expect("a file");
    let more = format!("port={port}&identity={}&known-hosts={}", folder.str("id"), folder.str("known"));
    let there = format!("ssh:127.0.0.1{file}?{more}");
    let luks2 =
        ["--format", "LUKS2", "--kdf", "pbkdf2", "--iterations", "1000", "--offset", "1M", "--metadata-size", "16K"];
    let create = ["create", "--force", "--yes", "--quick", "--keyslots-size", "512K", "--filesystem", "ext4"];
    let with = ["--password-file", &*folder.password];
    let made = place.run(create.iter().chain(&luks2).chain(&with).chain([&&*there]));
    assert!(made.succeeds().err.contains("has no lock: if another machine writes"));
    let dir = place.dir("d");
    place.run(["mount"].iter().chain(&with).chain([&&*there, &&*dir])).succeeds();
    fs::write(format!("{dir}/file"), "over the line").expect("written");
    place.unmount(&dir).succeeds();
    // A client that is connected reads the remote store itself.
    assert_eq!(place.run(["cat"].iter().chain(&with).chain([&&*file, &"/file"])).succeeds().text(), "over the line");
    // A server that is somebody else is not spoken to.
    fs::write(
        folder.path("known"),
        format!("[127.0.0.1]:{port} {}", fs::read_to_string(folder.path("id.pub")).expect("a key")),
    )
    .expect("written");
    place.run(["info"].iter().chain(&with).chain([&&*there])).fails(6, &["there"]);
}
