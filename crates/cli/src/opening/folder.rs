//! Options for encrypted folders.

use std::path::{Path, PathBuf};

use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats::{FileFormat, GOCRYPTFS, ecryptfs};
use claviger_engine::{Credential, Error, Result, Secret};

use crate::opening::certificates::{self, CertificateArgs};
use crate::opening::credentials::Source;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::output;

/// How such a folder is opened and used.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Encrypted folders", end_heading())]
pub struct FolderArgs {
    /// Read the password of an encrypted folder inside an encrypted volume from FILE; `-` is standard input
    #[arg(long, value_name = "FILE", group = "folder_password")]
    folder_password_file: Option<PathBuf>,

    /// Read the password of an encrypted folder inside an encrypted volume from this open file descriptor
    #[arg(long, value_name = "N", group = "folder_password")]
    folder_password_fd: Option<i32>,

    /// File with the folder's passphrase, wrapped by the login password: ~/.ecryptfs/wrapped-passphrase. A second one
    /// wraps the name passphrase; one file may hold both. A Synology NAS key file (.key) needs no password
    #[arg(long, value_name = "FILE")]
    wrapped_passphrase: Vec<PathBuf>,

    /// Read the separate password of file names from FILE
    #[arg(long, value_name = "FILE", group = "name_password")]
    name_password_file: Option<PathBuf>,

    /// Read the separate password of file names from this open file descriptor
    #[arg(long, value_name = "N", group = "name_password")]
    name_password_fd: Option<i32>,

    /// Do not encrypt new names
    #[arg(long, conflicts_with = "name_password")]
    no_name_encryption: bool,

    /// Also show unencrypted files
    #[arg(long)]
    passthrough: bool,

    /// Show each file as stored, with its header in front
    #[arg(long)]
    encrypted_view: bool,

    /// Show a plain folder encrypted, for backups: gocryptfs's reverse mode. Read-only
    #[arg(long)]
    reverse: bool,

    /// Store the headers of new files in extended attributes
    #[arg(long)]
    xattr_metadata: bool,

    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,
}

/// The options with the contents of the files that they name.
#[derive(Default)]
pub struct FolderGiven {
    name_passphrase: Option<Secret>,
    wrapped_passphrase: Option<Vec<u8>>,
    /// Whether the passphrase needs no password.
    opens_itself: bool,
}

impl FolderGiven {
    /// The wrapped passphrases from the files that the options name.
    pub fn wrapped(&self) -> Option<&[u8]> {
        self.wrapped_passphrase.as_deref()
    }

    /// Whether the files that were read open the folder without a password.
    pub fn opens_itself(&self) -> bool {
        self.opens_itself
    }
}

impl FolderArgs {
    /// True if any of these options was given.
    pub fn given(&self) -> bool {
        let Self {
            folder_password_file,
            folder_password_fd,
            wrapped_passphrase,
            name_password_file,
            name_password_fd,
            no_name_encryption,
            passthrough,
            encrypted_view,
            reverse,
            xattr_metadata,
            certificates,
        } = self;
        let files = folder_password_file.is_some() || name_password_file.is_some() || !wrapped_passphrase.is_empty();
        let descriptors = folder_password_fd.is_some() || name_password_fd.is_some();
        let flags = [no_name_encryption, passthrough, encrypted_view, reverse, xattr_metadata];
        let flags = flags.into_iter().any(|flag| *flag);
        files || descriptors || flags || certificates.given()
    }

    /// The file with the folder's wrapped passphrase, if an option names one.
    ///
    /// # Errors
    /// `Misuse` if the options name several.
    pub fn wrapped_file(&self) -> Result<Option<PathBuf>> {
        match &self.wrapped_passphrase[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            _ => Err(Error::misuse("only one file of wrapped passphrases can be changed at a time")
                .hint("Run the command once for each --wrapped-passphrase.")),
        }
    }

    /// Whether to show files as stored, which needs no password.
    pub fn as_stored(&self) -> bool {
        self.encrypted_view
    }

    /// Whether to show a plain folder encrypted.
    pub fn reverse(&self) -> bool {
        self.reverse
    }

    /// Refuses to show a plain folder encrypted.
    ///
    /// # Errors
    /// `Misuse`.
    pub fn refuse_reverse(&self) -> Result<()> {
        match self.reverse {
            true => Err(Error::misuse("--reverse does not apply here")
                .hint("Use it with `mount`, `ls`, `tree`, `cp` or `cat`.")),
            false => Ok(()),
        }
    }

    /// The only format that these options are for.
    pub fn implied_format(&self) -> Option<&'static str> {
        let reverse = self.reverse.then(|| GOCRYPTFS.name());
        reverse.or(self.certificates.given().then_some(certificates::FORMAT))
    }

    /// Whether an option names the source of the folder's password.
    pub fn gives_password(&self) -> bool {
        self.folder_password_file.is_some() || self.folder_password_fd.is_some()
    }

    fn gives_name_password(&self) -> bool {
        self.name_password_file.is_some() || self.name_password_fd.is_some()
    }

    /// Whether only options for a smart card were given.
    pub fn only_smart_card(&self) -> bool {
        let rest = Self { certificates: CertificateArgs::default(), ..self.clone() };
        self.certificates.only_smart_card() && !rest.given()
    }

    /// Refuses these options for anything but a folder.
    ///
    /// # Errors
    /// `Misuse`.
    pub fn refuse(&self) -> Result<()> {
        match self.given() {
            true => Err(Error::misuse("options for encrypted folders do not apply here")
                .hint("Use them with `ls`, `tree`, `cp`, `cat --file`, `info` or `mount`.")),
            false => Ok(()),
        }
    }

    /// Reads the files that the options name.
    pub fn read(&self) -> Result<FolderGiven> {
        let name_passphrase = match self.gives_name_password() {
            true => passphrase(self.name_source().read()?.into_vec()),
            false => None,
        };
        let (wrapped_passphrase, opens_itself) = self.wrapped()?;
        Ok(FolderGiven { name_passphrase, wrapped_passphrase, opens_itself })
    }

    /// Concatenates the files of wrapped passphrases, as eCryptfs has them in one file. Also returns whether they need no password.
    fn wrapped(&self) -> Result<(Option<Vec<u8>>, bool)> {
        let mut all = Vec::new();
        for file in &self.wrapped_passphrase {
            all.extend(ecryptfs::read_wrapped(file)?);
        }
        let Some(first) = self.wrapped_passphrase.first() else { return Ok((None, false)) };
        let of_synology = ecryptfs::is_synology_key(&all).map_err(|e| e.at(first))?;
        if of_synology {
            output::note(&format!(
                "{} is the key file of an encrypted shared folder of a Synology NAS: it opens the folder without a password",
                first.display()
            ));
        }
        Ok((Some(all), of_synology))
    }

    /// The options for the engine, with the contents of their files.
    pub fn options<'a>(&self, given: &'a FolderGiven) -> FolderOptions<'a> {
        FolderOptions {
            name_passphrase: given.name_passphrase.as_ref(),
            clear_names: self.no_name_encryption,
            wrapped_passphrase: given.wrapped_passphrase.as_deref(),
            passthrough: self.passthrough,
            encrypted_view: self.encrypted_view,
            reverse: self.reverse,
            metadata_in_attributes: self.xattr_metadata,
            ..FolderOptions::default()
        }
    }

    /// The source of the password of a folder inside a volume that has its own password.
    pub fn source(&self) -> Source<'_> {
        Source::password(
            "folder-",
            "Password of the folder: ",
            self.folder_password_file.as_deref(),
            self.folder_password_fd,
        )
    }

    fn name_source(&self) -> Source<'_> {
        Source::password(
            "name-",
            "Password of the file names: ",
            self.name_password_file.as_deref(),
            self.name_password_fd,
        )
    }
}

/// Whether the folder is a plain one that this format can show encrypted.
pub fn is_reversible(path: &Path, format: &dyn FileFormat) -> bool {
    let there = |file: Option<&str>| file.is_some_and(|file| path.join(file).symlink_metadata().is_ok());
    there(format.reverse_key_file()) && !there(format.key_file())
}

fn passphrase(credentials: Vec<Credential>) -> Option<Secret> {
    credentials.into_iter().find_map(|credential| match credential {
        Credential::Passphrase(text) => Some(text),
        _ => None,
    })
}
