//! `claviger keyslot`, `change`, `header` and `info` with BitLocker volumes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{run, run_with};
use claviger_testkit::bitlocker::maker::{self, Kind, Made, PASSWORD, Protector, Written};
use claviger_testkit::tools;

const RECOVERY: [u8; 16] = *b"sixteen bytes of";
const NEW_PASSWORD: &str = "chosen anew, Größe 1";

/// A volume with a startup key, a recovery password and a password, in this order; and files with what opens it.
struct Fixture {
    made: Made,
    written: Written,
}

impl Fixture {
    fn new() -> Self {
        let protectors =
            vec![Protector::StartupKey, Protector::Recovery(RECOVERY), Protector::Password(PASSWORD.into())];
        let made = maker::Volume { size: 1 << 20, protectors, ..maker::Volume::new(Kind::Windows8) }.make();
        let written = made.write();
        fs::write(written.folder().join("password"), PASSWORD).expect("a file");
        fs::write(written.folder().join("new"), NEW_PASSWORD).expect("a file");
        fs::write(written.folder().join("typed"), maker::recovery_text(&RECOVERY)).expect("a file");
        Self { made, written }
    }

    fn path(&self) -> &str {
        self.written.image.to_str().expect("text")
    }

    fn file(&self, name: &str) -> String {
        self.written.folder().join(name).to_str().expect("text").to_owned()
    }

    fn startup_key(&self) -> String {
        beks(self.written.folder()).remove(0).to_str().expect("text").to_owned()
    }

    /// Whether the volume opens with the credential in a file, and its plaintext.
    fn opens(&self, file: &str) -> bool {
        let read = run(["cat", "--password-file", file, self.path()]);
        assert!(read.code != 0 || read.out == self.made.plaintext, "other data");
        read.code == 0
    }
}

fn beks(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "BEK")).collect()
}

fn only_mine(path: &str) -> bool {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777 == 0o600
}

#[test]
fn protectors_are_listed_changed_and_removed() {
    let of = Fixture::new();
    let (path, password, new) = (of.path(), of.file("password"), of.file("new"));
    let listed = run(["keyslot", "list", path]).succeeds().text();
    let guid = maker::guid_text(&of.made.protectors[1]);
    assert!(listed.contains(&format!("1  recovery password {{{guid}}}, changed 20")), "{listed}");
    let listed = run(["keyslot", "list", "--json", path]).succeeds().json();
    assert_eq!(listed["keyslots"][2]["type"], "password");
    let shown = run(["header", "show", path]).succeeds().text();
    assert!(shown.contains("changed  20") && shown.contains(&guid), "{shown}");

    let forgotten = of.file("typed");
    run(["change", "--password-file", &forgotten, "--new-password-file", &new, path]).succeeds();
    assert!(of.opens(&new) && !of.opens(&password));
    let told = run(["change", "--password-file", &new, "--new-password-file", &password, path]).succeeds().text();
    assert!(told.contains("1048576 iterations") && told.contains("lder copies") && !told.contains("backup"), "{told}");
    let added = run(["keyslot", "add", "--json", "--password-file", &password, "--new-password-file", &new, path]);
    assert_eq!(added.succeeds().json()["keyslot"], 3);
    run(["keyslot", "kill", "--yes", "--password-file", &new, path, "2"]).succeeds();
    assert!(of.opens(&new) && !of.opens(&password) && of.opens(&forgotten));
    run(["keyslot", "kill", "--yes", "--unproven", path, "0"]).fails(1, &["sealed"]);
    let with_key = ["--no-password", "--keyfile", &of.startup_key()];
    run([&["keyslot", "remove", "--yes", path][..], &with_key].concat()).succeeds();
    run([&["keyslot", "test", path][..], &with_key].concat()).fails(2, &[]);
    let left = run(["keyslot", "list", "--json", path]).succeeds().json();
    assert_eq!(left["keyslots"].as_array().map(Vec::len), Some(2));
    fs::write(of.file("short"), "short 1").expect("a file");
    let short = ["keyslot", "add", "--password-file", &new, "--new-password-file", &of.file("short"), path];
    run(short).fails(1, &["at least 8 characters"]);
}

#[test]
fn protection_is_suspended_resumed_and_renewed() {
    let of = Fixture::new();
    let (path, password) = (of.path(), of.file("password"));
    run(["keyslot", "suspend", "--password-file", &password, path]).succeeds();
    assert_eq!(run(["cat", path]).succeeds().out, of.made.plaintext);
    let told = run(["info", path]).succeeds().text();
    assert!(told.contains("none: the volume stores its key in the clear"), "{told}");
    run(["keyslot", "remove", "--yes", path]).fails(1, &["suspended"]);
    run(["keyslot", "resume", path]).succeeds();
    run(["cat", path]).fails(1, &[]);
    run(["keyslot", "resume", "--password-file", &password, path]).succeeds().text().contains("nothing to do");
    run(["keyslot", "renew", "--password-file", &password, path]).succeeds();
    let vmk = of.file("vmk");
    fs::write(&vmk, of.made.vmk).expect("a file");
    let told = run(["info", "--json", "--volume-key-file", &vmk, path]);
    assert!(told.code != 0 || told.json()["opened_by"] != "volume master key", "the old one opens nothing");
    let told = run(["info", "--password-file", &password, path]).succeeds().text();
    assert!(told.contains("SHA-256, 1048576 iterations (BitLocker's stretch)"), "{told}");
    let told = run(["info", "--no-password", "--keyfile", &of.startup_key(), path]).succeeds().text();
    assert!(told.contains("none: the given key is used directly"), "{told}");
}

#[test]
fn recovery_passwords_are_told_again() {
    let of = Fixture::new();
    let (path, password, output) = (of.path(), of.file("password"), of.file("recovery.txt"));
    let typed = maker::recovery_text(&RECOVERY);
    let guid = maker::guid_text(&of.made.protectors[1]).to_uppercase();
    let with = ["keyslot", "recovery", "--password-file", &password, path];
    let told = run(with).succeeds().text();
    assert!(told.contains(&typed) && told.contains(&guid), "{told}");
    let told = run([&with[..], &["--json", "--output", &output]].concat()).succeeds();
    assert!(!told.text().contains(&typed));
    assert_eq!(told.json()["recovery_passwords"][0]["keyslot"], 1);
    let saved = fs::read_to_string(&output).expect("text");
    assert!(saved.contains(&format!("    {guid}\n")) && saved.contains(&format!("    {typed}\n")), "{saved}");
    assert!(only_mine(&output));
    run([&with[..], &["--output", &output]].concat()).fails(1, &["already exists"]);
}

#[test]
fn the_label_is_set_by_whoever_opens_the_volume() {
    let of = Fixture::new();
    let set = ["header", "set", "--label", "KELLER D: 22.11.2026", of.path()];
    run(set).fails(1, &["password"]);
    run([&set[..], &["--password-file", &of.file("password")]].concat()).succeeds();
    let shown = run(["header", "show", "--json", of.path()]).succeeds().json();
    assert_eq!(shown["header"]["label"], "KELLER D: 22.11.2026");
    run(["header", "backup", of.path(), &of.file("backup")]).fails(5, &["three copies", "header repair"]);
    let sound = run(["verify", "--json", "--password-file", &of.file("password"), of.path()]).succeeds().json();
    assert_eq!(sound["copies"][2]["state"], "opens");
    let mut image = fs::read(of.path()).expect("an image");
    image[of.made.layout.metadata[1] as usize + 200] ^= 4;
    fs::write(of.path(), image).expect("written");
    run(["verify", "--password-file", &of.file("password"), of.path()]).fails(4, &[]);
    let mended = run([&set[..], &["--password-file", &of.file("password")]].concat()).succeeds();
    assert!(mended.err.contains("Copy 2 of the metadata was damaged"), "{}", mended.err);
    run(["verify", "--password-file", &of.file("password"), of.path()]).succeeds();
}

/// Recovery passwords and startup keys that the program makes.
#[test]
fn what_is_made_for_the_volume_opens_it() {
    let of = Fixture::new();
    let (path, password) = (of.path(), of.file("password"));
    let add = ["keyslot", "add", "--password-file", &password, path];
    let stick = of.file("stick");
    run([&add[..], &["--startup-key", &stick]].concat()).fails(1, &["no such folder"]);
    run([&add[..], &["--recovery-password", "--new-password-file", &password]].concat()).fails(1, &[]);
    run([&add[..], &["--recovery-password", "--json"]].concat()).fails(1, &["--recovery-password-file"]);
    let told = run([&add[..], &["--recovery-password"]].concat()).succeeds().text();
    let shown = told.lines().last().expect("a line");
    assert_eq!(shown.split('-').map(str::len).collect::<Vec<_>>(), [6; 8], "{told}");
    let read = run_with(shown.as_bytes(), ["cat", "--password-file", "-", path]).succeeds();
    assert_eq!(read.out, of.made.plaintext);

    let kept = of.file("kept");
    let told = run([&add[..], &["--json", "--recovery-password-file", &kept]].concat()).succeeds();
    assert_eq!((told.json()["file"].as_str(), told.json()["keyslot"].as_u64()), (Some(&*kept), Some(4)));
    assert!(of.opens(&kept) && only_mine(&kept));
    assert!(!told.text().contains(fs::read_to_string(&kept).expect("text").trim()));
    let before = fs::read(path).expect("an image");
    run([&add[..], &["--recovery-password-file", &kept]].concat()).fails(1, &["already exists"]);
    assert!(fs::read(path).expect("an image") == before, "nothing was written");

    fs::create_dir(&stick).expect("a folder");
    run([&add[..], &["--startup-key", &stick]].concat()).succeeds();
    let bek = beks(Path::new(&stick)).remove(0);
    assert!(only_mine(bek.to_str().expect("text")));
    let read = run(["cat", "--no-password", "--keyfile", &stick, path]).succeeds();
    assert_eq!(read.out, of.made.plaintext);
    assert_eq!(fs::metadata(&bek).expect("a file").len(), 156);
}

/// Stopped after the file of the new key is there, until another program has changed the volume.
#[test]
fn a_refused_addition_leaves_no_key_file() {
    let Some(strace) = tools::program("strace") else { return };
    let of = Fixture::new();
    let kept = of.file("kept");
    let mut command = Command::new(strace);
    // The file is synced before it has its name, and its folder afterwards. With -D the child is the program itself.
    command.args(["-D", "-f", "-qq", "-e", "trace=fsync", "-e", "inject=fsync:signal=STOP:when=2", "--"]);
    command.arg(env!("CARGO_BIN_EXE_claviger")).args(["keyslot", "add", "--password-file", &of.file("password")]);
    command.args(["--recovery-password-file", &kept, of.path()]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    while !Path::new(&kept).exists() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before");
        std::thread::yield_now();
    }
    let mut image = fs::read(of.path()).expect("an image");
    image[of.made.layout.metadata[1] as usize + 200] ^= 4;
    fs::write(of.path(), &image).expect("written");
    let pid = child.id().to_string();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        let _ = Command::new("kill").args(["-CONT", &pid]).stderr(Stdio::null()).status();
    };
    assert!(!status.success() && status.code().is_some(), "{status}");
    assert!(fs::read(of.path()).expect("an image") == image, "nothing was written");
    assert!(!Path::new(&kept).exists(), "the key file stayed");
}
