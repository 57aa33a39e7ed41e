//! `claviger create --format eCryptfs`: creates an encrypted folder, or a home folder with one.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats::{FileFormat, ecryptfs};
use claviger_engine::internal::files;
use claviger_engine::internal::random;
use claviger_engine::{Credential, Error, Opening, Result, Secret, Unlock};
use serde::Serialize;

use super::args::Args;
use crate::opening::new_file;
use crate::opening::strength::StrengthMeter;
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};

#[derive(Serialize)]
struct Created {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// The signatures of the keys for contents, then for names.
    signatures: Vec<String>,
    /// The mount point, in a home.
    #[serde(flatten)]
    mount_point: Option<FileName>,
    /// The options needed to open the folder again, or new files would be encrypted differently.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    opened_with: Vec<String>,
}

/// Creates the folder; with `--home`, creates a home's `.Private`, and the files that ecryptfs-mount-private needs beside it.
pub fn run(args: &Args, format: &'static dyn FileFormat, path: &Path) -> anyhow::Result<()> {
    guard::no_dumps();
    if format.name() != ecryptfs::ECRYPTFS.name() {
        return Err(Error::unsupported(format!("creating {} folders", format.name())).into());
    }
    args.check_for_folder()?;
    empty_or_none(path)?;
    let (cipher, key_bytes) = (args.cipher.as_deref(), args.key_size.map(|bits| bits.div_ceil(8) as usize));
    let options = FolderOptions { cipher, key_bytes, ..FolderOptions::default() };
    let credentials = args.credentials.read_new(|_| true, &StrengthMeter::of_folder(format))?;
    let [Credential::Passphrase(password)] = &credentials[..] else {
        return Err(Error::misuse("an eCryptfs folder takes a password and nothing else").into());
    };
    let created = match args.home {
        true => home(path, password)?,
        false => {
            let new = !path.exists();
            make(path)?;
            let signatures = check(path, password, options).inspect_err(|_| {
                if new {
                    let _ = fs::remove_dir(path);
                }
            })?;
            let path = FileName::path(path);
            Created { path, format: format.name(), signatures, mount_point: None, opened_with: args.opened_with() }
        }
    };
    output::print(&created, args.json)
}

/// Opens the folder as the next user will, as a check.
fn check(path: &Path, password: &Secret, folder: FolderOptions<'_>) -> Result<Vec<String>> {
    let credentials = [Credential::Passphrase(Secret::copy_from(password))];
    let opening = Opening::path(path).format(ecryptfs::ECRYPTFS.name());
    let opened = opening.find()?.unlock(&Unlock { folder, ..Unlock::with(&credentials) })?.files()?;
    Ok(opened.tree.signatures())
}

/// Creates a home like ecryptfs-setup-private: `.Private`, `.ecryptfs`, and `Private` as the mount point.
fn home(path: &Path, password: &Secret) -> Result<Created> {
    let at = |e: io::Error| Error::from(e).at(path);
    let passphrase = new_passphrase()?;
    let wrapped = ecryptfs::wrap_passphrase(&passphrase, password)?;
    let [contents, names] = ecryptfs::signatures(&passphrase)?;
    make(path)?;
    let path = path.canonicalize().map_err(at)?;
    let (lower, beside, upper) = (path.join(".Private"), path.join(".ecryptfs"), path.join("Private"));
    for folder in [&lower, &beside, &upper] {
        make(folder)?;
    }
    let mount_point = format!("{}\n", upper.display());
    new_file::write(&beside.join(ecryptfs::WRAPPED), &wrapped)?;
    new_file::write(&beside.join(ecryptfs::SIGNATURES), format!("{contents}\n{names}\n").as_bytes())?;
    new_file::write(&beside.join(ecryptfs::MOUNT_POINT), mount_point.as_bytes())?;
    new_file::write(&beside.join(ecryptfs::AUTO_MOUNT), b"")?;
    let signatures = check(&lower, password, FolderOptions::default())?;
    let mount_point = Some(FileName::new("mount_point", &upper));
    let format = ecryptfs::ECRYPTFS.name();
    Ok(Created { path: FileName::path(&lower), format, signatures, mount_point, opened_with: Vec::new() })
}

/// A random passphrase: 32 hexadecimal digits, as ecryptfs-setup-private creates them.
fn new_passphrase() -> Result<Secret> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut random = Secret::zeroed(16);
    random::fill(&mut random)?;
    let mut text = Secret::zeroed(32);
    for (byte, digits) in random.iter().zip(text.chunks_exact_mut(2)) {
        digits.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    Ok(text)
}

/// Fails unless the folder is empty or does not exist.
fn empty_or_none(path: &Path) -> Result<()> {
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::misuse("this folder is not empty")
            .at(path)
            .hint("Choose a new name. To copy existing files to a new encrypted folder: claviger convert")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::from(e).at(path)),
    }
}

/// Creates a folder for its owner only, unless it exists. Makes its name durable.
fn make(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    let made = made.and_then(|()| {
        files::sync_folder(path).inspect_err(|_| {
            let _ = fs::remove_dir(path);
        })
    });
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(Error::from(e).at(path)),
        _ => Ok(()),
    }
}

impl Report for Created {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, signatures: _, mount_point, opened_with } = self;
        writeln!(out, "{path}: new empty {format} folder.")?;
        let to = mount_point.as_deref().unwrap_or("DIR");
        match mount_point {
            Some(_) => writeln!(
                out,
                "Its random passphrase is stored in .ecryptfs beside it, wrapped by the password. Keep a copy of \
                 that."
            )?,
            None => writeln!(
                out,
                "While it is empty, a wrong password cannot be detected: use the same one at the first mount."
            )?,
        }
        // An empty folder does not show its format.
        let mut words = vec!["claviger".to_owned(), "mount".to_owned(), format!("--format={format}")];
        words.extend(opened_with.iter().cloned());
        words.extend([path.to_string(), to.to_owned()]);
        writeln!(out, "To mount it: {}", output::command(words.iter().map(String::as_str)))
    }
}
