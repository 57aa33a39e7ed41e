//! Hidden volumes at the command line: `create --hidden`, and `serve --protect-hidden`.

use std::fs;
use std::process::Command;

use crate::common::{Folder, Served, claviger, done, qemu_io, run};
use claviger_testkit::tools;

const INNER: &str = "the hidden volume's own password";

/// A folder with an outer volume of 4 MiB, a FAT file system with a file in it, and both passwords.
pub struct Hiding {
    pub folder: Folder,
    pub inner: String,
    pub volume: String,
    filesystem: Vec<u8>,
}

const PLAIN: u64 = (4 << 20) - (256 << 10);

impl Hiding {
    pub fn new(format: &str) -> Option<Self> {
        Self::made(format, &["--quick"])
    }

    /// The same, filled with noise.
    pub fn filled(format: &str) -> Option<Self> {
        Self::made(format, &[])
    }

    fn made(format: &str, more: &[&str]) -> Option<Self> {
        let (mkfs, mcopy, _) = (tools::program("mkfs.vfat")?, tools::program("mcopy")?, tools::program("nbdcopy")?);
        let folder = Folder::new();
        let inner = folder.str("inner");
        fs::write(&inner, format!("{INNER}\n")).expect("a password file");
        let image = folder.path("fat.img");
        fs::write(&image, vec![0; PLAIN as usize]).expect("an image");
        tools::run(Command::new(mkfs).arg(&image));
        fs::write(folder.path("file"), vec![b'x'; 600_000]).expect("a file");
        tools::run(Command::new(mcopy).arg("-i").arg(&image).arg(folder.path("file")).arg("::file"));
        let volume = folder.str("outer");
        let mut how = vec!["--format", format, "--hash", "SHA-512"];
        // VeraCrypt's iterations as few as can be.
        how.extend(if format == "VeraCrypt" { &["--pim", "1"][..] } else { &[] });
        let create = [&["create", "--size", "4M"], more, &*how, &["--password-file"]].concat();
        run(create.iter().copied().chain([&*folder.password, &volume])).succeeds();
        let copy = format!("nbdcopy '{}' \"$uri\"", image.display());
        let socket = folder.str("socket");
        let serve = [&["serve", "--socket", &socket, "--run", &copy], &*how, &["--password-file"]].concat();
        run(serve.iter().copied().chain([&*folder.password, &volume])).succeeds();
        Some(Self { filesystem: fs::read(&image).expect("the image"), folder, inner, volume })
    }

    pub fn create<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let all = ["create", "--hidden", "--hash", "SHA-512", "--hidden-hash", "SHA-512", "--quick", &self.volume];
        let passwords = ["--password-file", &*self.folder.password, "--hidden-password-file", &self.inner];
        all.into_iter().chain(passwords).chain(more.iter().copied()).collect()
    }

    fn plain(&self, format: &str, password: &str) -> Vec<u8> {
        run(["cat", "--format", format, "--hash", "SHA-512", "--password-file", password, &self.volume]).succeeds().out
    }
}

#[test]
fn a_hidden_volume_is_made_and_opens_with_its_own_password() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    let bytes = || fs::read(&hiding.volume).expect("the volume");
    let before = bytes();
    run(hiding.create(&[])).fails(1, &["FAT", "no terminal", "--force --yes"]);
    // One of the two does not stand for both.
    run(hiding.create(&["--yes"])).fails(1, &["FAT", "no terminal", "--force --yes"]);
    let yes = ["--force", "--yes"];
    run(hiding.create(&[&yes[..], &["--size", "4M"]].concat())).fails(1, &["cannot have 4194304", "FAT"]);
    run(hiding.create(&[&yes[..], &["--hidden-cipher", "Rot13"]].concat())).fails(1, &["Rot13"]);
    let wrong = hiding.create(&yes).into_iter().map(|w| if w == hiding.folder.password { &*hiding.inner } else { w });
    run(wrong).fails(2, &["nothing opens"]);
    let both =
        hiding.create(&yes).into_iter().map(|w| if w == hiding.folder.password || w == hiding.inner { "-" } else { w });
    run(both).fails(1, &["standard input"]);
    assert!(bytes() == before, "nothing was written so far");

    let made = run(hiding.create(&[&yes[..], &["--size", "1M", "--hidden-cipher", "serpent", "--json"]].concat()));
    let made = made.succeeds().json();
    assert_eq!((&made["cipher"], &made["size"], &made["hidden"]), (&"Serpent".into(), &(1 << 20).into(), &true.into()));
    assert!(made["room"]["largest"].as_u64().expect("bytes") > 2 << 20, "{made}");
    let info = ["info", "--json", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file"];
    let of = |password: &str| run(info.iter().copied().chain([password, &hiding.volume])).succeeds().json();
    let facts = of(&hiding.inner);
    assert_eq!((&facts["hidden"], &facts["size"]), (&true.into(), &(1 << 20).into()), "{facts}");
    assert_eq!(of(&hiding.folder.password)["hidden"], false);
    // Once more, with the same password: that would destroy the data of the first one.
    run(hiding.create(&yes)).fails(1, &["already opens an existing hidden volume"]);
    // The outer files are as they were.
    let outer = hiding.plain("TrueCrypt", &hiding.folder.password);
    let free = made["room"]["free_at"].as_u64().expect("bytes") as usize;
    assert!(outer[..free] == hiding.filesystem[..free]);
}

#[test]
fn the_format_of_the_outer_volume_is_found_and_what_to_do_is_said() {
    let Some(hiding) = Hiding::new("VeraCrypt") else { return };
    let said = run(hiding.create(&["--pim", "1", "--hidden-pim", "1", "--force", "--yes"])).succeeds().text();
    for words in ["hidden VeraCrypt volume", "SHA-512", "FAT", "--protect-hidden"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let info = ["info", "--json", "--pim", "1", "--hash", "SHA-512", "--password-file", &hiding.inner, &hiding.volume];
    assert_eq!(run(info).succeeds().json()["hidden"], true);
}

#[test]
fn options_of_the_hidden_volume_need_one() {
    for option in ["--hidden-hash=SHA-512", "--hidden-password-file=x", "--hidden-pim=1", "--hidden-keyfile=x"] {
        run(["create", "--size", "1M", option, "x"]).fails(1, &["--hidden"]);
        run(["serve", option, "x"]).fails(1, &["--protect-hidden"]);
    }
    run(["serve", "--protect-hidden", "--read-only", "x"]).fails(1, &["needs no protection"]);
    run(["serve", "--protect-hidden", "--raw", "x"]).fails(1, &["--raw"]);
}

#[test]
fn files_are_copied_into_a_protected_outer_volume() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    let made = run(hiding.create(&["--force", "--yes", "--size", "1M", "--json"])).succeeds().json();
    assert_eq!(made["size"], 1 << 20);
    let hidden = hiding.plain("TrueCrypt", &hiding.inner);
    let open = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &*hiding.folder.password];
    let protect = ["--protect-hidden", "--hidden-hash", "SHA-512", "--hidden-password-file", &*hiding.inner];
    let copy = |from: &str, to: &str| {
        run(["cp"].iter().chain(&open).chain(&protect).copied().chain([&*hiding.volume, from, to]))
    };
    let (small, large) = (hiding.folder.str("small"), hiding.folder.str("large"));
    fs::write(&small, "a letter").expect("a file");
    // More than there is in front of the hidden volume, less than the outer file system has free.
    fs::write(&large, vec![7; 2_900_000]).expect("a file");
    copy(&small, ":/small").succeeds();
    copy(&large, ":/large").fails(6, &["hidden volume"]);
    assert!(hiding.plain("TrueCrypt", &hiding.inner) == hidden, "the hidden volume is as it was");
    run(["cat", "--file", "/small"].iter().chain(&open).copied().chain([&*hiding.volume])).succeeds();
    copy(":/small", &hiding.folder.str("back")).fails(1, &["needs no protection"]);
}

#[test]
fn a_volume_is_not_replaced_by_a_file_that_is_copied_out_of_it() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    let before = fs::read(&hiding.volume).expect("the volume");
    let open = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &*hiding.folder.password];
    let copy = ["cp", "--force"].iter().chain(&open).copied().chain([&*hiding.volume, ":/file", &*hiding.volume]);
    run(copy).fails(1, &["the volume being copied from"]);
    assert!(fs::read(&hiding.volume).expect("the volume") == before);
}

#[test]
fn a_served_outer_volume_is_protected() {
    let Some(hiding) = Hiding::new("TrueCrypt") else { return };
    let made = run(hiding.create(&["--force", "--yes", "--size", "1M", "--json"])).succeeds().json();
    let hidden = hiding.plain("TrueCrypt", &hiding.inner);
    // Behind the hidden volume are the reserved 4 KiB, or 128 KiB for large ones.
    let start = PLAIN - 4096 - made["size"].as_u64().expect("bytes");
    let outer =
        ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &hiding.folder.password, &hiding.volume];
    let protected = |inner: &str| {
        let inner = ["--protect-hidden", "--hidden-hash", "SHA-512", "--hidden-password-file", inner];
        outer.iter().copied().chain(inner).map(str::to_owned).collect::<Vec<_>>()
    };
    let failing = ["serve".to_owned()].into_iter().chain(protected(&hiding.folder.password));
    let failed = done(claviger().args(failing).output().expect("it starts"));
    failed.fails(2, &["hidden volume: nothing opens"]);

    let socket = ["--socket".to_owned(), hiding.folder.str("socket")];
    let served = Served::start(protected(&hiding.inner).into_iter().chain(socket));
    assert_eq!((served.size, served.read_only), (PLAIN, false));
    let Some((worked, said)) = qemu_io(&served.uri, &format!("write -P 1 {} 4096", start - 4096)) else { return };
    assert!(worked, "before it: {said}");
    let tell = |command: String| qemu_io(&served.uri, &command).expect("it was there").0;
    assert!(tell(format!("write -P 2 {} 4096", PLAIN - 4096)), "behind it");
    assert!(tell(format!("read -P 1 {} 4096", start - 4096)));
    // Half before its beginning: not a byte of it is written.
    assert!(!tell(format!("write -P 3 {} 1024", start - 512)), "a write into it");
    assert!(tell(format!("read -P 1 {} 4096", start - 4096)), "nothing of it was written");
    assert!(!tell("write -P 4 1048576 512".to_owned()), "read-only from now on");
    assert!(tell(format!("read -P 2 {} 4096", PLAIN - 4096)), "reading goes on");
    let done = served.stop();
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("damaged the hidden volume"), "{}", done.err);
    assert!(hiding.plain("TrueCrypt", &hiding.inner) == hidden, "the hidden volume is as it was");
}

#[test]
fn only_what_is_where_a_hidden_volumes_header_would_be_is_said_to_have_replaced_it() {
    let folder = Folder::new();
    let volume = folder.volume("outer.tc", "1M", &[]);
    for (at, lost) in [(0, false), (65_536, true)] {
        let bytes = fs::read(&volume).expect("a file");
        let mut damaged = bytes.clone();
        damaged[at..][..512].fill(0);
        fs::write(&volume, damaged).expect("written");
        let verify = ["verify", "--truecrypt", "--hash", "SHA-512", "--password-file", &folder.password, &volume];
        let text = run(verify).text();
        assert!(text.contains("do not look random"), "{text}");
        assert_eq!(text.contains("if there was a hidden volume's header, it is lost"), lost, "{text}");
        assert_eq!(text.contains("not the place of a hidden volume's header"), !lost, "{text}");
        fs::write(&volume, bytes).expect("restored");
    }
}
