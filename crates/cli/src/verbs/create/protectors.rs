//! Further protectors of a new volume beside the password: a recovery password, a startup key.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::formats::Creator;
use claviger_engine::formats::takes::{Parameter, Takes};
use claviger_engine::{Credential, Error, Secret};
use claviger_serve::key_process::FileNumber;
use serde::Serialize;

use crate::opening::new_file;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::file_name::FileName;
use crate::terminal::output::Report;

/// What only BitLocker volumes have.
#[derive(clap::Args)]
#[command(next_help_heading = "BitLocker protectors", end_heading())]
pub(crate) struct ProtectorArgs {
    /// Write the recovery password into this new file instead of printing it. Never overwrites a file
    #[arg(long, value_name = "FILE", conflicts_with = "no_recovery_password")]
    recovery_password_file: Option<PathBuf>,

    /// Create no recovery password: a forgotten password then loses the data
    #[arg(long)]
    no_recovery_password: bool,

    /// Also create a startup key: a new file GUID.BEK in this folder, which opens the volume without the password
    #[arg(long, value_name = "FOLDER")]
    startup_key: Option<PathBuf>,
}

/// The protectors beside the password. Their files are removed unless the volume is created.
pub(crate) struct Protectors {
    /// The credentials that open the volume.
    pub credentials: Vec<Credential>,
    report: ProtectorReport,
    files: Vec<(File, PathBuf)>,
    handed_over: Option<HandedOver>,
}

/// Files that another process removes, and the call that asks it to.
type HandedOver = (Vec<(PathBuf, FileNumber)>, Box<dyn Fn(&Path, FileNumber) -> io::Result<()>>);

/// The report of the protectors.
#[derive(Default, Serialize)]
pub(crate) struct ProtectorReport {
    /// The recovery password if no file holds it. Printed once, and never as JSON.
    #[serde(skip)]
    recovery_password: Option<Secret>,
    /// The file with the recovery password.
    #[serde(flatten)]
    recovery_password_file: Option<FileName>,
    /// The file with the startup key.
    #[serde(flatten)]
    startup_key: Option<FileName>,
}

impl ProtectorArgs {
    /// The requested protectors.
    pub fn parameters(&self) -> Vec<Parameter> {
        let recovery = self.recovery_password_file.is_some() || self.no_recovery_password;
        let asked = [(recovery, Parameter::RecoveryPassword), (self.startup_key.is_some(), Parameter::StartupKey)];
        asked.into_iter().filter_map(|(asked, parameter)| asked.then_some(parameter)).collect()
    }

    /// The files that already exist where new ones would be created.
    pub fn there(&self) -> Vec<PathBuf> {
        let keys =
            self.startup_key.as_deref().and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
        let file = self.recovery_password_file.clone().filter(|file| file.symlink_metadata().is_ok());
        keys.map(|entry| entry.path()).chain(file).collect()
    }

    /// Removes a file that another process has created for these options, if it has this `number`. Never removes the files that
    /// were `there` before.
    ///
    /// # Errors
    /// `PermissionDenied` for any other file; errors of removing the file.
    pub fn remove(&self, path: &Path, number: FileNumber, there: &[PathBuf]) -> io::Result<()> {
        let key = path.parent() == self.startup_key.as_deref() && path.extension().is_some_and(|end| end == "BEK");
        let named = self.recovery_password_file.as_deref() == Some(path);
        if (key || named) && !there.iter().any(|known| known == path) {
            new_file::remove_numbered(path, number)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Checks whether [`ProtectorArgs::make`] can succeed, before asking for a password.
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
            return Err(Error::misuse("recovery passwords are not printed as JSON, which is often stored")
                .hint("Use --recovery-password-file FILE or --no-recovery-password."));
        }
        Ok(())
    }

    fn recovers(&self, takes: &Takes) -> bool {
        takes.creating.contains(&Parameter::RecoveryPassword) && !self.no_recovery_password
    }

    /// Creates all protectors. Their files are durable before the volume is.
    ///
    /// # Errors
    /// `Misuse` if a file exists; `Io`.
    pub fn make(
        &self,
        takes: &Takes,
        creator: &dyn Creator,
        credentials: Vec<Credential>,
    ) -> claviger_engine::Result<Protectors> {
        let mut made =
            Protectors { credentials, report: ProtectorReport::default(), files: Vec::new(), handed_over: None };
        if self.recovers(takes) {
            let password = creator.fresh_recovery_password()?;
            match &self.recovery_password_file {
                Some(path) => {
                    made.write(path, &new_file::line(&password))?;
                    made.report.recovery_password_file = Some(FileName::new("recovery_password_file", path));
                }
                None => made.report.recovery_password = Some(Secret::copy_from(&password)),
            }
            made.credentials.push(Credential::Passphrase(password));
        }
        if let Some(folder) = &self.startup_key {
            let (name, contents) = creator.fresh_startup_key()?;
            let path = folder.join(name);
            made.write(&path, &contents)?;
            made.report.startup_key = Some(FileName::new("startup_key", &path));
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

    /// Closes the files, for a process that can open and remove none from then on: `remove` does so for it.
    ///
    /// # Errors
    /// `Io`.
    pub fn hand_over(&mut self, remove: impl Fn(&Path, FileNumber) -> io::Result<()> + 'static) -> io::Result<()> {
        let numbered = |(file, path): &(File, PathBuf)| Ok((path.clone(), new_file::number(file)?));
        let files = self.files.iter().map(numbered).collect::<io::Result<_>>()?;
        self.handed_over = Some((files, Box::new(remove)));
        self.files.clear();
        Ok(())
    }

    /// Keeps the files of a finished volume and returns the report.
    pub fn keep(&mut self) -> ProtectorReport {
        self.files.clear();
        self.handed_over = None;
        std::mem::take(&mut self.report)
    }
}

impl Drop for Protectors {
    fn drop(&mut self) {
        self.files.iter().for_each(|(file, path)| new_file::remove(file, path));
        if let Some((files, remove)) = &self.handed_over {
            files.iter().for_each(|(path, number)| drop(remove(path, *number)));
        }
    }
}

impl Report for ProtectorReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(password) = &self.recovery_password {
            out.write_all(b"Recovery password: ")?;
            out.write_all(password)?;
            writeln!(out, "\nKeep it somewhere else: it opens the volume if the password is forgotten.")?;
        }
        if let Some(file) = &self.recovery_password_file {
            writeln!(out, "{file}: its recovery password. Keep it somewhere else.")?;
        }
        if let Some(file) = &self.startup_key {
            writeln!(out, "{file}: its startup key, which opens the volume without the password.")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_what_was_made_for_the_options_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        let args = ProtectorArgs {
            recovery_password_file: Some(at("password")),
            no_recovery_password: false,
            startup_key: Some(dir.path().to_owned()),
        };
        fs::write(at("old.BEK"), "a key").expect("a file");
        let there = args.there();
        let make = |name: &str| {
            let file = File::create(at(name)).expect("a file");
            new_file::number(&file).expect("a number")
        };
        let remove = |name: &str, number| args.remove(&at(name), number, &there);
        let old = File::open(at("old.BEK")).and_then(|file| new_file::number(&file)).expect("a number");
        remove("old.BEK", old).expect_err("it was there");
        remove("other", make("other")).expect_err("another file");
        fs::create_dir(at("below")).expect("a folder");
        remove("below/new.BEK", make("below/new.BEK")).expect_err("in another folder");
        let password = make("password");
        // Another file has taken the name.
        fs::rename(at("other"), at("password")).expect("renamed");
        remove("password", password).expect("nothing to do");
        assert!(at("password").exists());
        remove("new.BEK", make("new.BEK")).expect("removed");
        assert!(!at("new.BEK").exists() && at("old.BEK").exists() && at("below/new.BEK").exists());
    }
}
