//! Options for the private keys of files that were encrypted for certificates.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::private_keys::dpapi::{Login, Profile};
use claviger_engine::private_keys::{self, Contents, PrivateKey, pkcs11};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Credential, Error, Result, Secret};

use crate::opening::credentials::{self, Source};
use crate::terminal::end_heading::EndHeading;
use crate::terminal::prompt::{self, Asker};

/// The format that these options are for, unless another is named.
pub const FORMAT: &str = "EFS";

/// Private keys, and what opens them.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Certificates and private keys", end_heading())]
pub struct CertificateArgs {
    /// A private key with its certificate (PFX, P12, PEM), or a folder of such files. May be repeated
    #[arg(long = "certificate", value_name = "FILE", id = "certificates")]
    files: Vec<PathBuf>,

    /// Use the key store in this Windows user profile: a copied folder, or :/Users/NAME on the disk itself
    #[arg(long, value_name = "FOLDER")]
    windows_profile: Option<PathBuf>,

    /// Read the Windows user's NT hash (32 hexadecimal digits) from FILE instead of the password
    #[arg(long, value_name = "FILE", requires = "windows_profile", conflicts_with = "certificate_password")]
    windows_hash_file: Option<PathBuf>,

    /// A smart card's PKCS#11 module: /usr/lib/x86_64-linux-gnu/opensc-pkcs11.so
    #[arg(long, value_name = "FILE")]
    pkcs11_module: Option<PathBuf>,

    /// Label of the smart card, if there are several
    #[arg(long, value_name = "LABEL", requires = "pkcs11_module")]
    pkcs11_token: Option<String>,

    /// Read the password of the certificate file or Windows user, or the smart card's PIN, from FILE instead of
    /// asking; `-` is standard input
    #[arg(long, value_name = "FILE", group = "certificate_password")]
    certificate_password_file: Option<PathBuf>,

    /// Read that password or PIN from this open file descriptor
    #[arg(long, value_name = "N", group = "certificate_password")]
    certificate_password_fd: Option<i32>,
}

impl CertificateArgs {
    /// Whether any option was given that has a meaning of its own.
    pub fn given(&self) -> bool {
        self.names_one() || self.certificate_password_file.is_some() || self.certificate_password_fd.is_some()
    }

    /// Whether the password or PIN of the private keys is read from standard input.
    pub fn on_stdin(&self) -> bool {
        self.certificate_password_file.as_deref() == Some(Path::new("-")) || self.certificate_password_fd == Some(0)
    }

    fn names_one(&self) -> bool {
        !self.files.is_empty() || self.windows_profile.is_some() || self.pkcs11_module.is_some()
    }

    /// Whether the options name only a smart card.
    pub fn only_smart_card(&self) -> bool {
        self.files.is_empty() && self.windows_profile.is_none()
    }

    /// The keys of the smart card that the options name; asks for its PIN. `label` is its label, unless an option gives one.
    ///
    /// # Errors
    /// `Misuse` if no module is named; those of [`pkcs11::open`].
    pub fn smart_card(&self, label: Option<&str>) -> Result<Vec<Arc<dyn PrivateKey>>> {
        let module = self.pkcs11_module.as_deref().ok_or_else(|| {
            Error::misuse("the smart card needs a PKCS#11 module, and none was given")
                .hint("Give one with --pkcs11-module FILE.")
        })?;
        let passwords = PasswordSource { args: self, read: OnceCell::new() };
        let mut ask = |label: &str| passwords.password(&format!("PIN of {label}: "));
        pkcs11::open(module, self.pkcs11_token.as_deref().or(label), &mut ask)
    }

    /// The private keys; asks for their passwords. A profile whose path begins with a colon is a folder in `disk`.
    pub fn read(&self, disk: &(dyn Tree + 'static)) -> Result<Vec<Credential>> {
        if self.given() && !self.names_one() {
            return Err(Error::misuse("a password for a private key was given, but no private key")
                .hint("Give one with --certificate, --windows-profile or --pkcs11-module."));
        }
        let passwords = PasswordSource { args: self, read: OnceCell::new() };
        let mut keys = Vec::new();
        if !self.files.is_empty() {
            keys.extend(self.read_files(&passwords)?);
        }
        if let Some(profile) = &self.windows_profile {
            keys.extend(self.read_profile(profile, disk, &passwords)?);
        }
        if let Some(module) = &self.pkcs11_module {
            let mut ask = |label: &str| passwords.password(&format!("PIN of {label}: "));
            keys.extend(pkcs11::open(module, self.pkcs11_token.as_deref(), &mut ask)?);
        }
        Ok(keys.into_iter().map(Credential::PrivateKey).collect())
    }

    fn read_files(&self, passwords: &PasswordSource<'_>) -> Result<Vec<Arc<dyn PrivateKey>>> {
        let mut all = Contents::default();
        for path in &self.files {
            for file in private_keys::files(path)? {
                let mut ask = || passwords.password(&format!("Password of {}: ", file.display()));
                let read =
                    credentials::tries(passwords.terminal().as_ref(), |_| private_keys::read_file(&file, &mut ask));
                all.extend(read?);
            }
            credentials::hide(path)?;
        }
        all.into_keys().map_err(|e| e.at(&self.files[0]))
    }

    fn read_profile(
        &self,
        path: &Path,
        disk: &(dyn Tree + 'static),
        passwords: &PasswordSource<'_>,
    ) -> Result<Vec<Arc<dyn PrivateKey>>> {
        let read = || match path.as_os_str().as_bytes().strip_prefix(b":") {
            Some(inside) => Profile::read(disk, OsStr::from_bytes(inside)),
            None => Profile::read(&HostFolder::open(path, Access::ReadOnly)?, OsStr::new("/")).map_err(|e| e.at(path)),
        };
        if let Some(file) = &self.windows_hash_file {
            let hash = Source::password("windows-hash", "", Some(file), None).secret()?;
            let login = Login::nt_hash(&hash).map_err(|e| e.at(file))?;
            return read()?.unlock(&login).map_err(|e| e.at(path));
        }
        let user = path.file_name().unwrap_or_default().to_string_lossy();
        let question = format!("Windows password of {user}: ");
        credentials::tries(passwords.terminal().as_ref(), |_| {
            read()?.unlock(&Login::Password(passwords.password(&question)?)).map_err(|e| e.at(path))
        })
    }
}

/// The password of the private keys: read once if an option names its source, otherwise asked for each time.
struct PasswordSource<'a> {
    args: &'a CertificateArgs,
    read: OnceCell<Secret>,
}

impl PasswordSource<'_> {
    /// The terminal on which the password is asked for, if no option names its source.
    fn terminal(&self) -> Option<File> {
        let CertificateArgs { certificate_password_file: file, certificate_password_fd: fd, .. } = self.args;
        if file.is_none() && fd.is_none() { prompt::asker().and_then(Asker::into_terminal) } else { None }
    }

    fn password(&self, question: &str) -> Result<Secret> {
        let CertificateArgs { certificate_password_file: file, certificate_password_fd: fd, .. } = self.args;
        let source = Source::password("certificate-", question, file.as_deref(), *fd);
        if file.is_none() && fd.is_none() {
            return source.secret();
        }
        if self.read.get().is_none() {
            let _ = self.read.set(source.secret()?);
        }
        let read = self.read.get().ok_or_else(|| Error::misuse("no password was read"))?;
        Ok(Secret::copy_from(read))
    }
}
