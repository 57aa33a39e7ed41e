//! `claviger create` for an encrypted folder: eCryptfs, also a home folder with one, gocryptfs and Cryptomator.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, DirEntry};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats::{FileFormat, ecryptfs};
use claviger_engine::internal::files;
use claviger_engine::internal::random;
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Credential, Error, Opening, Result, Secret, Unlock};
use serde::Serialize;

use super::args::Args;
use crate::opening::new_file;
use crate::opening::strength::StrengthMeter;
use crate::process::guard;
use crate::terminal::cancel;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};

#[derive(Serialize)]
struct Created {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// The signatures of the keys for contents, then for names.
    signatures: Vec<String>,
    /// The file in the folder that holds its sealed key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<&'static str>,
    /// Whether it is a plain folder that can be shown encrypted.
    #[serde(skip)]
    reverse: bool,
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
    if format.ciphers().is_empty() {
        return Err(Error::unsupported(format!("creating {} folders", format.name())).into());
    }
    args.check_for_folder()?;
    if args.home && format.key_file().is_some() {
        return Err(Error::misuse(format!("--home: {} has no home folders", format.name())).into());
    }
    let reverse_key_file = if args.reverse { Some(reverse_key_file(format, path)?) } else { None };
    if !args.reverse {
        empty_or_none(format, path)?;
    }
    let (cipher, key_bytes) = (args.cipher.as_deref(), args.key_size.map(|bits| bits.div_ceil(8) as usize));
    let options = FolderOptions { cipher, key_bytes, reverse: args.reverse, ..FolderOptions::default() };
    let credentials = args.credentials.read_new(|_| true, &StrengthMeter::of_folder(format))?;
    let password = only_password(format, &credentials)?;
    let created = match args.home {
        true => home(path, password)?,
        false => {
            let new = !path.exists();
            make(path)?;
            let signatures = empty(format, path, password, options).inspect_err(|_| {
                if new {
                    // Fails if something was written: the next attempt continues with that.
                    let _ = fs::remove_dir(path);
                }
            })?;
            let (path, key_file) = (FileName::path(path), reverse_key_file.or(format.key_file()));
            // What the key file says need not be given again.
            let opened_with = if key_file.is_some() { Vec::new() } else { args.opened_with() };
            let (format, reverse, mount_point) = (format.name(), args.reverse, None);
            Created { path, format, signatures, key_file, reverse, mount_point, opened_with }
        }
    };
    output::print(&created, args.json)
}

/// The password, if there is nothing else.
pub fn only_password<'a>(format: &dyn FileFormat, credentials: &'a [Credential]) -> Result<&'a Secret> {
    match credentials {
        [Credential::Passphrase(password)] => Ok(password),
        _ => Err(Error::misuse(format!("a {} folder takes a password and nothing else", format.name()))),
    }
}

/// Makes the empty folder one of the format. Returns the signatures of its keys.
pub fn empty(
    format: &'static dyn FileFormat,
    path: &Path,
    password: &Secret,
    options: FolderOptions<'_>,
) -> Result<Vec<String>> {
    let lower = HostFolder::open(path, Access::ReadWrite)?;
    lower.lock().map_err(|e| e.at(path))?;
    let with = Unlock { folder: options, cancel: Some(cancel::flag()), ..Unlock::with(&[]) };
    format.create(&lower, password, &with).map_err(|e| e.at(path))?;
    drop(lower);
    let of_key_file = FolderOptions { reverse: options.reverse, ..FolderOptions::default() };
    let options = if format.key_file().is_some() { of_key_file } else { options };
    check(format, path, password, options)
}

/// Opens the folder as the next user will, as a check.
fn check(
    format: &'static dyn FileFormat,
    path: &Path,
    password: &Secret,
    folder: FolderOptions<'_>,
) -> Result<Vec<String>> {
    let credentials = [Credential::Passphrase(Secret::copy_from(password))];
    let opening = Opening::path(path).format(format.name());
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
    let signatures = check(&ecryptfs::ECRYPTFS, &lower, password, FolderOptions::default())?;
    let mount_point = Some(FileName::new("mount_point", &upper));
    let format = ecryptfs::ECRYPTFS.name();
    let (path, key_file, opened_with) = (FileName::path(&lower), None, Vec::new());
    Ok(Created { path, format, signatures, key_file, reverse: false, mount_point, opened_with })
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

/// The file that a plain folder gets in order to be shown encrypted.
fn reverse_key_file(format: &dyn FileFormat, path: &Path) -> Result<&'static str> {
    let Some(file) = format.reverse_key_file() else {
        return Err(Error::unsupported(format!("an encrypted view of a plain folder in the format {}", format.name())));
    };
    match path.is_dir() {
        true => Ok(file),
        false => Err(Error::misuse("this is not a folder")
            .at(path)
            .hint("--reverse shows an existing folder encrypted. For a new encrypted folder, omit it.")),
    }
}

/// Fails unless the folder is empty, apart from what an interrupted attempt left in it, or does not exist.
fn empty_or_none(format: &dyn FileFormat, path: &Path) -> Result<()> {
    let left_over = |name: &OsStr| format.owns(name, true) && format.key_file().is_none_or(|file| name != file);
    let counts = |entry: io::Result<DirEntry>| entry.map_or(true, |entry| !left_over(&entry.file_name()));
    match fs::read_dir(path).map(|mut entries| !entries.any(counts)) {
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
        let Self { path, format, signatures: _, key_file, reverse, mount_point, opened_with } = self;
        if *reverse {
            writeln!(out, "{path}: {format} can show this plain folder encrypted now. Its files are unchanged.")?;
            let key_file = key_file.unwrap_or_default();
            writeln!(out, "The key is in {key_file} in it, sealed with the password. The encrypted view has a copy.")?;
            let command = output::command(["claviger", "mount", "--reverse", path, "DIR"]);
            return writeln!(out, "To show it encrypted: {command}");
        }
        writeln!(out, "{path}: new empty {format} folder.")?;
        let to = mount_point.as_deref().unwrap_or("DIR");
        match (mount_point, key_file) {
            (Some(_), _) => writeln!(
                out,
                "Its random passphrase is stored in .ecryptfs beside it, wrapped by the password. Keep a copy of \
                 that."
            )?,
            (None, Some(file)) => writeln!(
                out,
                "Its key is in {file} in it, sealed with the password. Keep a copy: without that file, nothing in the folder opens."
            )?,
            (None, None) => writeln!(
                out,
                "While it is empty, a wrong password cannot be detected: use the same one at the first mount."
            )?,
        }
        let mut words = vec!["claviger".to_owned(), "mount".to_owned()];
        // An empty folder without a file does not show its format.
        words.extend(key_file.is_none().then(|| format!("--format={format}")));
        words.extend(opened_with.iter().cloned());
        words.extend([path.to_string(), to.to_owned()]);
        writeln!(out, "To mount it: {}", output::command(words.iter().map(String::as_str)))
    }
}
