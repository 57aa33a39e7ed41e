//! What `claviger create` makes beside the password for volumes that open in several ways: a recovery password, a startup key.

use std::fs::File;
use std::path::{Path, PathBuf};

use claviger_engine::formats::Creator;
use claviger_engine::formats::takes::{Parameter, Takes};
use claviger_engine::{Credential, Error, Secret};

use super::filesystem::FileSystem;
use crate::opening::new_file;

/// What only BitLocker volumes have.
#[derive(clap::Args)]
#[command(next_help_heading = "BitLocker")]
pub(crate) struct ProtectorArgs {
    /// Write the recovery password into this new file instead of printing it. Never overwrites a file
    #[arg(long, value_name = "FILE", conflicts_with = "no_recovery_password")]
    recovery_password_file: Option<PathBuf>,

    /// Make no recovery password: if the password is forgotten, what is in the volume is lost
    #[arg(long)]
    no_recovery_password: bool,

    /// Make a startup key, too: a new file GUID.BEK in this folder, which opens the volume without the password
    #[arg(long, value_name = "FOLDER")]
    startup_key: Option<PathBuf>,

    /// Put a discovery volume in front: any system shows a text there that says what the volume is
    #[arg(long)]
    pub to_go: bool,

    /// Make this file system in the volume, with what BitLocker keeps to itself left out. It takes mkntfs and ntfs-3g, mkfs.exfat or
    /// mkfs.fat
    #[arg(long, value_name = "KIND")]
    pub filesystem: Option<FileSystem>,
}

/// What was made beside the password. Its files are removed again unless the volume is made.
pub(crate) struct Protectors {
    /// What opens the volume.
    pub credentials: Vec<Credential>,
    /// The recovery password, where it is in no file.
    pub to_print: Option<Secret>,
    pub recovery_password_file: Option<String>,
    pub startup_key: Option<String>,
    files: Vec<(File, PathBuf)>,
}

impl ProtectorArgs {
    /// What is asked for.
    pub fn parameters(&self) -> Vec<Parameter> {
        let recovery = self.recovery_password_file.is_some() || self.no_recovery_password;
        let asked = [
            (recovery, Parameter::RecoveryPassword),
            (self.startup_key.is_some(), Parameter::StartupKey),
            (self.to_go, Parameter::DiscoveryVolume),
            (self.filesystem.is_some(), Parameter::FileSystem),
        ];
        asked.into_iter().filter_map(|(asked, parameter)| asked.then_some(parameter)).collect()
    }

    /// What would be in the way of [`ProtectorArgs::make`], to be said before a password is asked for.
    ///
    /// # Errors
    /// `Misuse`.
    pub fn check(&self, takes: &Takes, json: bool) -> claviger_engine::Result<()> {
        if let Some(path) = &self.recovery_password_file {
            new_file::must_be_new(path)?;
        }
        if let Some(folder) = self.startup_key.as_deref().filter(|folder| !folder.is_dir()) {
            return Err(Error::misuse("there is no such folder for the startup key").at(folder));
        }
        if json && self.recovers(takes) && self.recovery_password_file.is_none() {
            return Err(Error::misuse("a recovery password is not printed as JSON, which others keep")
                .hint("Use --recovery-password-file FILE or --no-recovery-password."));
        }
        Ok(())
    }

    fn recovers(&self, takes: &Takes) -> bool {
        takes.creating.contains(&Parameter::RecoveryPassword) && !self.no_recovery_password
    }

    /// Makes all of it: the files are there, and durable, before the volume is.
    ///
    /// # Errors
    /// `Misuse` where a file exists; `Io`.
    pub fn make(
        &self,
        takes: &Takes,
        creator: &dyn Creator,
        credentials: Vec<Credential>,
    ) -> claviger_engine::Result<Protectors> {
        let mut made = Protectors {
            credentials,
            to_print: None,
            recovery_password_file: None,
            startup_key: None,
            files: Vec::new(),
        };
        if self.recovers(takes) {
            let password = creator.fresh_recovery_password()?;
            match &self.recovery_password_file {
                Some(path) => {
                    let mut line = Secret::zeroed(password.len() + 1);
                    line[..password.len()].copy_from_slice(&password);
                    line[password.len()] = b'\n';
                    made.write(path, &line)?;
                    made.recovery_password_file = Some(path.display().to_string());
                }
                None => made.to_print = Some(Secret::copy_from(&password)),
            }
            made.credentials.push(Credential::Passphrase(password));
        }
        if let Some(folder) = &self.startup_key {
            let (name, contents) = creator.fresh_startup_key()?;
            let path = folder.join(name);
            made.write(&path, &contents)?;
            made.startup_key = Some(path.display().to_string());
            made.credentials.push(Credential::Keyfile(contents));
        }
        Ok(made)
    }
}

impl Protectors {
    fn write(&mut self, path: &Path, contents: &Secret) -> claviger_engine::Result<()> {
        let file = new_file::write(path, contents)?;
        self.files.push((file, path.to_owned()));
        Ok(())
    }

    /// The volume is there: they stay.
    pub fn keep(&mut self) {
        self.files.clear();
    }
}

impl Drop for Protectors {
    fn drop(&mut self) {
        self.files.iter().for_each(|(file, path)| new_file::remove(file, path));
    }
}
