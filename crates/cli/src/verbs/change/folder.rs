//! `claviger change` for an encrypted folder: seals its unchanged key with another password.

use std::io::{self, Write};
use std::path::Path;

use claviger_engine::file_formats::{FileFormat, ecryptfs};
use claviger_engine::internal::files;
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Credential, Error, ErrorKind, Result, Secret, Verdict};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::credentials::NewCredentialArgs;
use crate::opening::found_folder::FoundFolder;
use crate::opening::strength::StrengthMeter;
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::verbs::create::folder::only_password;

#[derive(Serialize)]
struct Changed {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// The files that were written.
    written: Vec<String>,
    /// Copies of the file in the folder, which open it with the passwords of their time.
    copies: Vec<String>,
    /// Whether the file was missing before.
    #[serde(skip)]
    lost: bool,
    /// Whether a FIDO2 key opened the folder before.
    #[serde(skip)]
    had_fido2: bool,
}

/// Changes the password of the folder, or of the file with its wrapped passphrase.
pub fn run(open: &OpenArgs, new: &NewCredentialArgs, json: bool) -> anyhow::Result<()> {
    guard::no_dumps();
    let found = open.find_any_folder(Access::ReadOnly, None)?;
    let key_file = |format: &'static dyn FileFormat| match open.how.folder.reverse() {
        true => format.reverse_key_file(),
        false => format.key_file(),
    };
    match found.locked.file_format().and_then(|format| Some((format, key_file(format)?))) {
        Some((format, key_file)) => {
            drop(found);
            in_folder(format, key_file, open, new, json)
        }
        None => beside(found, open, new, json),
    }
}

/// Seals the key in the folder's own file with another password.
fn in_folder(
    format: &'static dyn FileFormat,
    key_file: &str,
    open: &OpenArgs,
    new: &NewCredentialArgs,
    json: bool,
) -> anyhow::Result<()> {
    let at = |e: Error| e.in_format(format.name()).at(&open.path);
    let found = open.find_any_folder(Access::ReadWrite, None)?;
    let (lower, _) = found.locked.stored_files().ok_or_else(|| at(Error::misuse("not a folder")))?;
    let lost = !open.path.join(key_file).exists();
    if lost && !open.how.folder.reverse() {
        must_be_the_whole_folder(format, &open.path)?;
    }
    let mut credentials = found.credentials()?;
    // Before anybody thinks of a new password.
    credentials.open(|credentials| format.unlock(lower, &found.with(credentials)).map(drop)).map_err(at)?;
    let had_fido2 = !open.credentials.gives_volume_key() && found.locked.fido2(&found.with(&[])).map_err(at)?.is_some();
    if had_fido2 {
        output::note("The new password will open the folder, and the FIDO2 key no longer will.");
    }
    let fresh = new.read(&credentials, &StrengthMeter::of_folder(format))?;
    let password = only_password(format, &fresh)?;
    format.change_passphrase(&**lower, password, &found.with(&credentials)).map_err(at)?;
    // The password was changed: an error would say the opposite.
    let copies = format.key_file_copies(&**lower).unwrap_or_default();
    let copies = copies.iter().map(|name| output::printable(&name.to_string_lossy())).collect();
    let path = FileName::path(&open.path);
    let written = vec![key_file.to_owned()];
    output::print(&Changed { path, format: format.name(), written, copies, lost, had_fido2 }, json)
}

/// Refuses a folder inside another one of its format: a key file in it would be that of no folder.
fn must_be_the_whole_folder(format: &dyn FileFormat, path: &Path) -> Result<()> {
    let whole = path.canonicalize().map_err(|e| Error::from(e).at(path))?;
    for above in whole.ancestors().skip(1) {
        let Ok(folder) = HostFolder::open(above, Access::ReadOnly) else { continue };
        if matches!(format.glance(&folder), Ok(Verdict::Yes(_) | Verdict::Possible(_))) {
            let what = format!("it is only a part of the {} folder {}", format.name(), above.display());
            return Err(Error::misuse(what).hint("Give that folder.").at(path));
        }
    }
    Ok(())
}

/// Rewraps the passphrase in the file beside the folder, or in the file that the options name. The current password unwraps it;
/// the passphrase itself may be given instead.
fn beside(found: FoundFolder<'_>, open: &OpenArgs, new: &NewCredentialArgs, json: bool) -> anyhow::Result<()> {
    let beside = found.locked.stored_files().map(|(_, beside)| beside.clone()).unwrap_or_default();
    let named = open.how.folder.wrapped_file()?;
    let own = named.is_none();
    let file = named.or(beside.folder.as_ref().map(|folder| folder.join(ecryptfs::WRAPPED)));
    let Some(file) = file else {
        let what = "it has no wrapped passphrase, so its passphrase cannot be changed";
        return Err(Error::unsupported(what)
            .hint("To copy its files to a new folder with another passphrase: claviger convert")
            .at(&open.path)
            .into());
    };
    let mut current = open.read_credentials()?;
    // Before anybody thinks of a new password.
    current.open(|current| {
        let old = passphrase(current)?;
        match ecryptfs::read_wrapped(&file).and_then(|wrapped| ecryptfs::unwrap_passphrase(&wrapped, old)) {
            Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) && !(own && is_of(&beside.signatures, old)?) => {
                Err(e.at(&file))
            }
            // The rewrapping reports any other error.
            _ => Ok(()),
        }
    })?;
    let fresh = new.read(&current, &StrengthMeter::of_folder(&ecryptfs::ECRYPTFS))?;
    let (old, new) = (passphrase(&current)?, passphrase(&fresh)?);
    match ecryptfs::rewrap_passphrase(&file, old, new) {
        // The passphrase itself is accepted, if the folder's signatures confirm it. Only in the folder's own file: another file
        // may hold another folder's passphrase, of which there is no copy.
        Err(e) if own && matches!(e.kind, ErrorKind::WrongCredential(_)) && is_of(&beside.signatures, old)? => {
            let wrapped = ecryptfs::wrap_passphrase(old, new)?;
            files::replace_as_owned(&file, &wrapped).map_err(|e| Error::from(e).at(&file))?;
        }
        done => done?,
    }
    // Verifies the new file as the next reader will use it.
    ecryptfs::unwrap_passphrase(&ecryptfs::read_wrapped(&file)?, new).map_err(|e| e.at(&file))?;
    let path = FileName::path(&open.path);
    let (written, copies) = (vec![file.display().to_string()], Vec::new());
    output::print(&Changed { path, format: "eCryptfs", written, copies, lost: false, had_fido2: false }, json)
}

fn passphrase(credentials: &[Credential]) -> Result<&Secret> {
    match credentials {
        [Credential::Passphrase(text)] => Ok(text),
        _ => Err(Error::misuse("a wrapped passphrase takes a password and nothing else")),
    }
}

fn is_of(signatures: &[String], passphrase: &Secret) -> Result<bool> {
    let [contents, _] = ecryptfs::signatures(passphrase)?;
    Ok(signatures.first() == Some(&contents))
}

impl Report for Changed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.lost {
            writeln!(out, "{}: the new password opens the folder.", self.path)?;
            return writeln!(out, "Written: {}, which was missing. The files are unchanged.", self.written.join(", "));
        }
        writeln!(out, "{}: now only the new password opens the folder.", self.path)?;
        writeln!(out, "Written: {}. The files and their keys are unchanged.", self.written.join(", "))?;
        let old = if self.had_fido2 { "FIDO2 key" } else { "old password" };
        writeln!(out, "Older copies of that file still open the folder with the {old}.")?;
        match self.copies.as_slice() {
            [] => Ok(()),
            copies => {
                let copies = copies.join(", ");
                writeln!(out, "Copies in the folder: {copies}. Remove them if somebody knows an old password.")
            }
        }
    }
}
