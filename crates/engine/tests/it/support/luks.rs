//! LUKS volumes that cryptsetup makes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use claviger_testkit::tools;

/// Key derivations that cost nothing worth waiting for.
pub const PBKDF2: &[&str] = &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
/// The same for Argon2id.
pub const ARGON2: &[&str] =
    &["--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"];
/// Small headers.
pub const SMALL: &[&str] = &["--luks2-metadata-size", "16k", "--luks2-keyslots-size", "512k"];

/// cryptsetup on a file in a folder. It works without device-mapper as long as it maps nothing.
pub struct Cryptsetup {
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl Cryptsetup {
    /// The program, or a reported skip.
    pub fn found() -> Option<Self> {
        Some(Self { program: tools::program("cryptsetup")?, dir: tempfile::tempdir().expect("a temporary folder") })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file with a passphrase in it.
    pub fn key(&self, passphrase: &str) -> String {
        let path = self.path(&format!("key-{passphrase}"));
        std::fs::write(&path, passphrase).expect("a key file");
        path.display().to_string()
    }

    /// A new LUKS2 volume in a file of `size` KiB, opened by the passphrase "first".
    pub fn format(&self, name: &str, size: u64, args: &[&[&str]]) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).and_then(|f| f.set_len(size << 10)).expect("an empty file");
        let key = self.key("first");
        let mut all = vec!["luksFormat", "-q", "--type", "luks2", "--key-file", &key];
        all.extend(args.iter().copied().flatten());
        self.run(&all, &path);
        path
    }

    /// Adds a keyslot with a passphrase.
    pub fn add_key(&self, path: &Path, passphrase: &str, args: &[&[&str]]) {
        let (first, new) = (self.key("first"), self.key(passphrase));
        let mut all = vec!["luksAddKey", "-q", "--key-file", &first];
        all.extend(args.iter().copied().flatten());
        let mut command = self.command(&all, path);
        tools::run(command.arg(new));
    }

    /// Runs cryptsetup on a file.
    pub fn run(&self, args: &[&str], path: &Path) -> String {
        String::from_utf8_lossy(&tools::run(&mut self.command(args, path)).stdout).into_owned()
    }

    /// Runs cryptsetup on a file. It may fail.
    pub fn try_run(&self, args: &[&str], path: &Path) -> Output {
        self.command(args, path).output().expect("cryptsetup starts")
    }

    fn command(&self, args: &[&str], path: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).arg(path).env("LC_ALL", "C").stdin(std::process::Stdio::null());
        command
    }

    /// The volume key, as cryptsetup prints it.
    pub fn volume_key(&self, path: &Path, passphrase: &str) -> Vec<u8> {
        let key = self.key(passphrase);
        let to = self.path("volume-key");
        let _ = std::fs::remove_file(&to);
        let file = to.display().to_string();
        self.run(&["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &file, "--key-file", &key], path);
        std::fs::read(to).expect("the volume key")
    }
}
