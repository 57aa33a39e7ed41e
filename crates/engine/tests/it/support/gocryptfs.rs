//! Folders of gocryptfs, ours and those of Debian's program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use claviger_engine::file_formats::gocryptfs::{self, ContentCipher, NameEncryption, NewFolder};
use claviger_engine::file_formats::{self, Stacked};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, Node, NodeKind, Tree};
use claviger_engine::{Credential, Result, Secret, Unlock};
use claviger_testkit::mounts::{Mount, PATIENCE, Server, bounded, wait_until};
use claviger_testkit::tools;
use tempfile::TempDir;

pub const PASSPHRASE: &str = "a passphrase";

/// A variant of the format: its name, the options that create it with `gocryptfs -init`, and our own options. Version 2.3 no longer
/// creates folders without derived keys or with padded names, but opens them.
pub struct Variant {
    pub name: &'static str,
    pub options: Option<&'static [&'static str]>,
    pub new: NewFolder,
}

/// All of them.
pub fn variants() -> Vec<Variant> {
    let new = NewFolder { log_n: 10, ..NewFolder::default() };
    let of = |name, options: &'static [&'static str], new| Variant { name, options: Some(options), new };
    vec![
        of("default", &[], new),
        of("aessiv", &["-aessiv"], NewFolder { cipher: ContentCipher::AesSiv, ..new }),
        of("xchacha", &["-xchacha"], NewFolder { cipher: ContentCipher::XChaCha20Poly1305, ..new }),
        of("plaintextnames", &["-plaintextnames"], NewFolder { names: NameEncryption::None, ..new }),
        of("deterministic", &["-deterministic-names"], NewFolder { names: NameEncryption::Deterministic, ..new }),
        of("longnamemax", &["-longnamemax", "100"], NewFolder { longest_name: Some(100), ..new }),
        Variant { name: "padded", options: None, new: NewFolder { raw64: false, ..new } },
        Variant { name: "underived", options: None, new: NewFolder { hkdf: false, raw64: false, ..new } },
        Variant {
            name: "underived aessiv",
            options: None,
            new: NewFolder { hkdf: false, cipher: ContentCipher::AesSiv, ..new },
        },
    ]
}

pub fn host(folder: &Path) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"))
}

pub fn secret(text: &str) -> Secret {
    Secret::copy_from(text.as_bytes())
}

/// Makes a folder of this kind.
pub fn create(folder: &Path, new: &NewFolder) {
    gocryptfs::create(&*host(folder), &secret(PASSPHRASE), new, &Unlock::with(&[])).expect("created");
}

pub fn open_with(lower: Arc<dyn Tree>, credential: Credential) -> Result<Stacked> {
    file_formats::open(lower, None, &Unlock::with(&[credential]))
}

pub fn open(folder: &Path) -> Stacked {
    open_with(host(folder), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens")
}

/// Debian's gocryptfs, and a file with the passphrase. A reported skip where it is missing.
pub struct Program {
    program: PathBuf,
    secrets: TempDir,
}

impl Program {
    pub fn find() -> Option<Self> {
        let program = tools::program("gocryptfs")?;
        let secrets = tempfile::tempdir().expect("a folder");
        fs::write(secrets.path().join("passphrase"), PASSPHRASE).expect("a file");
        Some(Self { program, secrets })
    }

    /// A command for a folder that the usual passphrase opens.
    pub fn command(&self) -> Command {
        let mut command = bounded(120, &self.program);
        command.arg("-nosyslog").arg("-passfile").arg(self.secrets.path().join("passphrase"));
        command
    }

    /// Makes a folder.
    pub fn init(&self, folder: &Path, options: &[&str]) {
        let mut command = self.command();
        tools::run(command.args(["-init", "-scryptn", "10"]).args(options).arg(folder));
    }

    /// A folder's master key, as 64 hexadecimal digits. A reported skip where gocryptfs-xray is missing.
    pub fn master_key(&self, folder: &Path) -> Option<String> {
        let mut command = bounded(120, tools::program("gocryptfs-xray")?);
        let passphrase = fs::File::open(self.secrets.path().join("passphrase")).expect("a file");
        let output = tools::run(command.arg("-dumpmasterkey").arg(folder.join("gocryptfs.conf")).stdin(passphrase));
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Lets the program check a folder.
    #[track_caller]
    pub fn check(&self, folder: &Path) {
        tools::run(self.command().arg("-fsck").arg(folder));
    }

    /// Mounts a folder and calls `each` with the mount point; a reported skip where nothing can be mounted.
    pub fn mounted(&self, folder: &Path, each: impl FnOnce(&Path)) -> Option<()> {
        self.mounted_with(&[], folder, each)
    }

    /// Like [`Program::mounted`], with options.
    pub fn mounted_with(&self, options: &[&str], folder: &Path, each: impl FnOnce(&Path)) -> Option<()> {
        tools::root()?;
        let point = tempfile::tempdir().expect("a folder");
        let mount = Mount::on(point.path());
        let mut server = Server::start(self.command().arg("-fg").args(options).arg(folder).arg(point.path()));
        assert!(mount.wait(), "it is not mounted: {}{}", server.out(), server.err());
        each(point.path());
        // Another test's child may hold a file of the mount between fork and exec.
        let unmount = || bounded(30, "umount").arg(point.path()).stderr(Stdio::null()).status();
        assert!(wait_until(PATIENCE, || unmount().is_ok_and(|status| status.success())), "it stays mounted");
        assert!(server.ended_within(Duration::from_secs(30)).is_some(), "gocryptfs does not end");
        Some(())
    }
}

/// What a folder holds, by path: kind and contents or target.
pub type Seen = BTreeMap<OsString, (NodeKind, Vec<u8>)>;

fn below(path: &OsStr, name: &OsStr) -> OsString {
    OsStr::from_bytes(&[path.as_bytes(), b"/", name.as_bytes()].concat()).to_owned()
}

/// What a tree shows. Everything must be readable, and nothing left out.
pub fn seen(tree: &(dyn Tree + 'static)) -> Seen {
    fn walk(tree: &(dyn Tree + 'static), folder: Node, path: &OsStr, seen: &mut Seen) {
        let listing = tree.list_all(folder).expect("listed");
        assert!(listing.left_out.is_empty(), "{:?}", listing.left_out);
        for entry in listing.entries {
            let node = HeldNode::take(tree, folder, &entry).expect("it is there");
            let of = tree.attributes(node.node()).expect("known");
            let path = below(path, &entry.name);
            let bytes = match of.kind {
                NodeKind::File => read(tree, node.node()),
                NodeKind::Link => tree.link_target(node.node()).expect("a target").as_bytes().to_vec(),
                NodeKind::Folder | NodeKind::Special => Vec::new(),
            };
            assert!((of.kind, of.size) == (entry.kind, bytes.len() as u64), "{}", path.display());
            seen.insert(path.clone(), (of.kind, bytes));
            if of.kind == NodeKind::Folder {
                walk(tree, node.node(), &path, seen);
            }
        }
    }
    let mut seen = Seen::new();
    walk(tree, tree.root(), OsStr::new(""), &mut seen);
    seen
}

pub fn read(tree: &dyn Tree, node: Node) -> Vec<u8> {
    let mut bytes = vec![0xee; tree.attributes(node).expect("known").size as usize + 10];
    let len = tree.read_at(node, 0, &mut bytes).expect("read");
    bytes.truncate(len);
    bytes
}

/// What the system shows.
pub fn seen_by_host(folder: &Path) -> Seen {
    fn walk(folder: &Path, path: &OsStr, seen: &mut Seen) {
        for entry in fs::read_dir(folder).expect("listed") {
            let at = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&at).expect("known").file_type();
            let path = below(path, at.file_name().expect("a name"));
            if kind.is_dir() {
                seen.insert(path.clone(), (NodeKind::Folder, Vec::new()));
                walk(&at, &path, seen);
            } else if kind.is_symlink() {
                let target = fs::read_link(&at).expect("a target");
                seen.insert(path, (NodeKind::Link, target.as_os_str().as_bytes().to_vec()));
            } else if kind.is_file() {
                seen.insert(path, (NodeKind::File, fs::read(&at).expect("read")));
            } else {
                seen.insert(path, (NodeKind::Special, Vec::new()));
            }
        }
    }
    let mut seen = Seen::new();
    walk(folder, OsStr::new(""), &mut seen);
    seen
}
