//! Files of NTFS that the program encrypts (EFS), shares, changes and decrypts through ntfs-3g, as ntfsdecrypt reads them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::mounts::*;
use crate::common::*;
use claviger_testkit::efs::{Identity, PASSWORD};
use claviger_testkit::{random::Random, tools};

/// An NTFS with files in clear, and people.
struct Disk {
    place: MountSpace,
    image: String,
    me: Identity,
    friend: Identity,
}

/// Files and their sizes. The ciphertext of the first one ends with a cluster.
const FILES: [(&str, usize); 4] = [
    ("/Users/me/letter.txt", 8192),
    ("/Users/me/Docs/big", 1_300_001),
    ("/Users/me/Docs/Größe", 513),
    ("/Users/me/Docs/none", 0),
];

impl Disk {
    /// A reported skip where programs are missing. The image is `user`'s.
    fn new(user: bool) -> Option<Self> {
        let place = if user { MountSpace::user()? } else { MountSpace::root()? };
        ["mkntfs", "ntfs-3g", "unshare"].iter().try_for_each(|name| tools::program(name).map(drop))?;
        let (me, friend) = (Identity::new("Me", false)?, Identity::new("Friend", false)?);
        let image = place.folder.str("disk.img");
        File::create(&image).and_then(|file| file.set_len(40 << 20)).expect("an empty image");
        tools::run(Command::new("mkntfs").args(["-F", "-Q", "-q"]).arg(&image));
        let disk = Self { place, image, me, friend };
        disk.inside("mkdir -p Users/me/Docs");
        for (path, size) in FILES {
            fs::write(disk.place.folder.path("plain"), plain(size)).expect("a file");
            disk.inside(&format!("cp {} .{path}", disk.place.folder.str("plain")));
        }
        fs::write(disk.place.folder.path("pfx-password"), PASSWORD).expect("a file");
        Some(disk)
    }

    /// Runs a script in the NTFS, mounted by ntfs-3g.
    fn inside(&self, script: &str) {
        let dir = self.place.folder.str("mounted");
        // In the foreground, so that all is written when it has ended.
        let script = format!(
            "mkdir -p {dir}; ntfs-3g -o no_detach,streams_interface=windows {} {dir} & until mountpoint -q {dir}; do sleep 0.02; done
             cd {dir}; {script}
             cd /; umount {dir}; wait",
            self.image
        );
        tools::run(self.place.root_command("sh").args(["-ec", &script]));
    }

    fn efs(&self, verb: &str, args: &[&str]) -> Done {
        self.place.run([&["efs", verb, &self.image], args].concat())
    }

    /// Reads a file with this program, with the key of `of`.
    fn read(&self, of: &Identity, path: &str) -> Done {
        self.place.run(["cat", &self.image, "--file", path, "--certificate", &pem(of)])
    }

    #[track_caller]
    fn unchanged(&self, verb: &str, args: &[&str], code: i32, words: &[&str]) {
        let before = fs::read(&self.image).expect("the image");
        self.efs(verb, args).fails(code, words);
        assert!(fs::read(&self.image).expect("the image") == before, "{verb} {args:?} has written");
        self.place.nothing_is_left();
    }
}

fn plain(size: usize) -> Vec<u8> {
    Random::new(size as u64).bytes(size)
}

/// Private key and certificate.
fn pem(of: &Identity) -> String {
    let folder = of.pfx().parent().expect("a folder").to_owned();
    let both = folder.join("both.pem");
    let parts = ["key.pem", "certificate.pem"].map(|name| fs::read(folder.join(name)).expect("a file"));
    fs::write(&both, parts.concat()).expect("a file");
    both.display().to_string()
}

fn certificate(of: &Identity) -> String {
    of.pfx().with_file_name("certificate.pem").display().to_string()
}

fn thumbprint(of: &Identity) -> String {
    of.thumbprint.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn files_are_encrypted_shared_changed_and_decrypted() {
    let Some(disk) = Disk::new(false) else { return };
    let (mine, friends) = (certificate(&disk.me), certificate(&disk.friend));
    let (letter, docs) = (":/Users/me/letter.txt", ":/Users/me/Docs");
    disk.inside("cd Users/me/Docs; printf x > downloaded; printf 3 > downloaded:Zone.Identifier");

    let done = disk.efs("encrypt", &[letter, "--for", &mine, "--agent", &friends, "--json"]).succeeds().json();
    assert_eq!(done["done"].as_str(), Some("encrypted"));
    assert_eq!(done["files"][0]["size"].as_u64(), Some(8192));
    let keys = done["files"][0]["keys"].as_array().expect("two").clone();
    assert!(keys[0].as_str().expect("text").contains(&thumbprint(&disk.me)));
    assert!(keys[1].as_str().expect("text").starts_with("recovery agent"));
    // Files that cannot be encrypted are left out, and the exit code says so.
    let done = disk.efs("encrypt", &["-r", docs, "--for", &mine, "--file-cipher", "3DES"]);
    let done = done.fails(5, &[]);
    assert!(done.text().contains("left out: /Users/me/Docs/downloaded") && done.text().contains("Zone.Identifier"));
    assert!(done.text().contains("/Users/me/Docs/Größe") && done.text().contains("free space"));
    disk.place.nothing_is_left();
    for (path, size) in FILES {
        assert!(disk.me.ntfsdecrypt(Path::new(&disk.image), path) == Some(plain(size)), "{path}");
        assert!(disk.read(&disk.me, path).succeeds().out == plain(size), "{path}");
    }
    assert!(disk.read(&disk.friend, FILES[0].0).succeeds().out == plain(8192), "the agent recovers it");
    disk.read(&disk.friend, FILES[1].0).fails(2, &["does not open it"]);

    // For whom, at a glance.
    let list = disk.place.run(["ls", "-l", &disk.image, "/Users/me"]).succeeds().text();
    let short = &thumbprint(&disk.me)[..8];
    assert!(list.lines().any(|line| line.contains("letter.txt") && line.contains(short)), "{list}");
    let list = disk.place.run(["ls", "--json", &disk.image, "/Users/me/Docs"]).succeeds().json();
    for entry in list["entries"].as_array().expect("a list") {
        let encrypted = entry["name"] != "downloaded";
        assert_eq!(entry["encrypted"].as_bool(), Some(encrypted), "{entry}");
        assert_eq!(entry["keys"].is_array(), encrypted, "{entry}");
    }

    let key = pem(&disk.me);
    disk.efs("share", &["-r", "--certificate", &key, ":/Users", "--for", &friends]).succeeds();
    assert!(disk.friend.ntfsdecrypt(Path::new(&disk.image), FILES[1].0) == Some(plain(1_300_001)));
    let new = plain(70_000);
    fs::write(disk.place.folder.path("new"), &new).expect("a file");
    disk.efs("change", &["--certificate", &key, letter, &disk.place.folder.str("new")]).succeeds();
    assert!(disk.read(&disk.friend, FILES[0].0).succeeds().out == new);
    let mut piped = disk.place.command(env!("CARGO_BIN_EXE_claviger"));
    piped.args(["efs", "change", &disk.image, letter, "-", "--certificate", &key]);
    done_of(piped.stdin(File::open(disk.place.folder.path("plain")).expect("empty"))).succeeds();
    assert!(disk.read(&disk.me, FILES[0].0).succeeds().out.is_empty());
    disk.efs("unshare", &[":/Users/me/Docs/big", "--for", &thumbprint(&disk.me)]).succeeds();
    disk.read(&disk.me, FILES[1].0).fails(2, &[]);
    disk.efs("decrypt", &["-r", "--yes", "--certificate", &pem(&disk.friend), ":/Users/me/Docs"]).succeeds();
    for (path, size) in &FILES[1..] {
        assert!(disk.place.run(["cat", &disk.image, "--file", path]).succeeds().out == plain(*size), "{path}");
    }
    tools::run(Command::new("ntfsfix").arg("--no-action").arg(&disk.image));
    disk.place.nothing_is_left();
}

fn done_of(command: &mut Command) -> Done {
    done(command.output().expect("it starts"))
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let Some(disk) = Disk::new(false) else { return };
    let (mine, letter) = (certificate(&disk.me), ":/Users/me/letter.txt");
    disk.efs("encrypt", &[letter, "--for", &mine]).succeeds();
    let (key, other) = (pem(&disk.me), pem(&disk.friend));
    let clear = ":/Users/me/Docs/big";
    disk.unchanged("encrypt", &[clear, letter, "--for", &mine], 1, &["already encrypted"]);
    disk.unchanged("encrypt", &[":/Users", "--for", &mine], 1, &["is a folder", "-r"]);
    disk.unchanged("encrypt", &[":/nothing", "--for", &mine], 1, &["there is no"]);
    disk.unchanged("encrypt", &[clear, "--certificate", &key, "--for", &mine], 1, &["takes no private key", "--for"]);
    disk.unchanged("encrypt", &[clear, "--for", "/dev/null"], 3, &["not a key or certificate file"]);
    disk.unchanged("share", &[letter, "--for", &mine], 1, &["private key", "--certificate"]);
    disk.unchanged("share", &[letter, "--for", &mine, "--certificate", &other], 1, &["already"]);
    disk.unchanged("share", &[letter, "--for", &other, "--certificate", &other], 2, &["does not open it"]);
    disk.unchanged("change", &[clear, &key, "--certificate", &key], 1, &["not encrypted"]);
    disk.unchanged("unshare", &[letter, "--for", &mine], 1, &["nobody could read"]);
    disk.unchanged("unshare", &[letter, "--for", &other], 1, &["not encrypted for this"]);
    disk.unchanged("decrypt", &[letter, "--certificate", &key], 1, &["nothing was decrypted", "--yes"]);
    disk.unchanged("decrypt", &[letter, "--yes", "--certificate", &other], 2, &["does not open it"]);
    let held = File::open(&disk.image).expect("the image");
    held.lock().expect("nobody has it");
    disk.unchanged("encrypt", &[clear, "--for", &mine], 9, &[]);
    drop(held);
    // No room, several names, a host folder, something else.
    File::create(disk.place.folder.path("large")).and_then(|file| file.set_len(60 << 20)).expect("a file");
    let large = disk.place.folder.str("large");
    disk.efs("change", &[letter, &large, "--certificate", &key]).fails(6, &["No space left", " free"]);
    disk.inside("ln Users/me/Docs/big Users/me/again");
    disk.efs("encrypt", &[":/Users/me/Docs/none", clear, "--for", &mine]).fails(1, &["2 names"]);
    assert!(
        disk.place
            .run(["ls", "--json", &disk.image, "/Users/me/Docs"])
            .succeeds()
            .text()
            .contains("\"encrypted\": false")
    );
    let folder = disk.place.dir("folder");
    disk.place.run(["efs", "encrypt", &folder, ":/x", "--for", &mine]).fails(1, &["Give the disk"]);
    let fat = disk.place.folder.str("large");
    tools::run(Command::new("mkfs.vfat").arg(&fat));
    disk.place.run(["efs", "encrypt", &fat, ":/x", "--for", &mine]).fails(3, &["FAT", "NTFS"]);
    // Hibernated: ntfs-3g says so itself.
    disk.inside("(printf hibr; head -c 8188 /dev/zero) > hiberfil.sys");
    disk.unchanged("encrypt", &[clear, "--for", &mine], 6, &["ntfs-3g", "hibernated"]);
    assert!(disk.read(&disk.me, FILES[0].0).succeeds().out == plain(8192));
}

#[test]
fn a_user_encrypts_in_a_volume_where_the_administrator_lets_users_share() {
    let Some(disk) = Disk::new(true) else { return };
    let place = &disk.place;
    let volume = place.folder.str("v.tc");
    let password = ["--password-file", &place.folder.password];
    let create = ["create", "--format", "TrueCrypt", "--quick", "--hash", "SHA-512", "--size", "41M", &volume];
    place.run(create.iter().chain(&password)).succeeds();
    // The user who runs it owns everything.
    let mut copy = place.command("sh");
    copy.args(["-ec", &format!("{} mount --filesystem none {volume} {} --password-file {}; dd if={} of={}/volume conv=notrunc status=none; {0} unmount {volume}",
        env!("CARGO_BIN_EXE_claviger"), place.dir("plaintext"), place.folder.password, disk.image, place.folder.str("plaintext"))]);
    done_of(&mut copy).succeeds();
    let public = place.folder.str("me.pem");
    fs::copy(certificate(&disk.me), &public).expect("copied");
    let efs = format!(
        "{} efs encrypt {volume} :/Users/me/letter.txt --for {public} --password-file {}",
        env!("CARGO_BIN_EXE_claviger"),
        place.folder.password
    );
    place.shell(&efs).fails(5, &["user_allow_other"]);
    let conf = place.folder.str("fuse.conf");
    fs::write(&conf, "user_allow_other\n").expect("written");
    let user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups -- sh -ec \"$0\"");
    let outer = format!("mount --bind {conf} /etc/fuse.conf; {user}");
    done_of(place.root_command("unshare").args(["--mount", "sh", "-ec", &outer, &efs])).succeeds();
    let read = ["cat", &volume, "--file", "/Users/me/letter.txt", "--certificate", &pem(&disk.me)];
    let mut read =
        Command::new(env!("CARGO_BIN_EXE_claviger")).args(read).args(password).output().map(done).expect("it starts");
    assert!(std::mem::take(&mut read.out) == plain(8192), "{}", read.err);
    place.nothing_is_left();
}

#[test]
fn a_killed_program_leaves_the_file_and_no_mount() {
    // Somewhere in its reading, its writing and its renaming, or when it is done.
    for pause in [0, 10, 30, 100, 300] {
        if killed_after(Duration::from_millis(pause)).is_none() {
            return;
        }
    }
}

fn killed_after(pause: Duration) -> Option<()> {
    let disk = Disk::new(false)?;
    let mine = certificate(&disk.me);
    let mut command = disk.place.command(env!("CARGO_BIN_EXE_claviger"));
    let mut child = command
        .args(["efs", "encrypt", &disk.image, ":/Users/me/Docs/big", "--for", &mine])
        .spawn()
        .expect("it starts");
    let mounted = |what: &str| {
        fs::read_to_string("/proc/self/mounts").expect("mounts").lines().any(|line| {
            line.split(' ')
                .nth(1)
                .is_some_and(|dir| Path::new(dir).starts_with(disk.place.runtime()) && dir.ends_with(what))
        })
    };
    wait_until("it has mounted", || mounted("/files"));
    thread::sleep(pause);
    for owner in fs::read_dir(disk.place.runtime()).expect("a folder").flatten() {
        if let Some((pid, _)) = owner.file_name().to_string_lossy().split_once('-') {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
    }
    // None of its threads waits for the file system whose image it served.
    let _ = child.wait();
    // The next one tidies up; until then the image may still be held.
    wait_until("it can be used again", || {
        let done = disk.efs("encrypt", &[":/Users/me/letter.txt", "--for", &mine]);
        done.code == 0 || done.err.contains("already encrypted")
    });
    assert!(!mounted("/files") && !mounted("/image"));
    assert!(disk.read(&disk.me, FILES[1].0).succeeds().out == plain(1_300_001), "old or new");
    assert!(disk.read(&disk.me, FILES[0].0).succeeds().out == plain(8192));
    disk.place.nothing_is_left();
    Some(())
}

/// A certificate may be renewed for the same key, and files still name the old one.
#[test]
fn the_right_key_opens_with_whatever_certificate() {
    let Some(case) = tools::Case::unpack("efs/renewed-certificate.tar.xz") else { return };
    let at = |name: &str| case.path().join(name).display().to_string();
    let (image, password) = (at("efs.img"), at("password"));
    let cat = |certificate: &str| {
        let with = ["--certificate-password-file", &password, "--certificate", &at(certificate)];
        run([&["cat", &image, "--file", "/aes256_513.bin"], &with[..]].concat())
    };
    let read = cat("user.pfx").succeeds().out;
    assert_eq!(read.len(), 513);
    for other in ["renewed.pfx", "key.pem"] {
        assert!(cat(other).succeeds().out == read, "{other}");
    }
}
