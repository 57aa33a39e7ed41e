//! The options for opening a volume or folder, which all verbs that open one share.

use std::path::{Path, PathBuf};

use claviger_crypto::dmcrypt::Specification;
use claviger_engine::credential::{FolderOptions, HeaderChoice, Headerless};
use claviger_engine::{Acceleration, Credential, Error, Opening, Result, Unlock, file_formats};

use crate::opening::folder::{FolderArgs, FolderGiven};
use crate::opening::headerless::HeaderlessArgs;
use crate::opening::patience::PatienceArgs;
use crate::opening::remote;
use crate::opening::tokens::TokenArgs;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::size;

/// Which format it has.
#[derive(clap::Args, Clone, Default)]
pub(super) struct FormatArgs {
    /// Treat it as a volume of this format
    #[arg(long, value_name = "NAME")]
    format: Option<String>,

    /// Treat it as a TrueCrypt volume: same as --format TrueCrypt
    #[arg(long, conflicts_with_all = ["format", "veracrypt"])]
    truecrypt: bool,

    /// Treat it as a VeraCrypt volume: same as --format VeraCrypt
    #[arg(long, conflicts_with = "format")]
    veracrypt: bool,
}

impl FormatArgs {
    /// The format that the options name.
    pub fn name(&self) -> Option<&str> {
        match (self.truecrypt, self.veracrypt) {
            (true, _) => Some("TrueCrypt"),
            (_, true) => Some("VeraCrypt"),
            _ => self.format.as_deref(),
        }
    }
}

impl From<Option<String>> for FormatArgs {
    fn from(format: Option<String>) -> Self {
        Self { format, ..Self::default() }
    }
}

/// How to open it.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "How to open it", end_heading())]
pub struct UnlockArgs {
    #[command(flatten)]
    pub(super) format: FormatArgs,

    /// Try only this hash, or Argon2id: opens faster
    #[arg(long, value_name = "NAME")]
    pub(super) hash: Option<String>,

    /// The PIM of the VeraCrypt volume
    #[arg(long, value_name = "N")]
    pub(super) pim: Option<u32>,

    /// Memory that a key derivation may use: 512M, 2GiB [default: all that is free]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) memory: Option<u64>,

    #[command(flatten)]
    pub(super) patience: PatienceArgs,

    /// Try only this cipher or cascade
    #[arg(long, value_name = "NAME")]
    pub(super) cipher: Option<String>,

    /// Use the backup header at the end of the volume
    #[arg(long)]
    pub(super) backup_header: bool,

    /// Use only this copy of the header (primary, hidden, backup or hidden-backup), or only this keyslot number
    #[arg(long, value_name = "SLOT", conflicts_with = "backup_header", value_parser = Slot::parse)]
    pub(super) slot: Option<Slot>,

    /// Use the detached header in FILE or a remote store; the data are in VOLUME
    #[arg(long = "header", value_name = "FILE")]
    pub(super) header_file: Option<PathBuf>,

    /// Open the volume in this partition, or this partition of an encrypted system
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub partition: Option<u32>,

    /// Do not use the processor's AES instructions
    #[arg(long)]
    pub(super) no_aes: bool,

    /// Open a truncated volume read-only
    #[arg(long)]
    pub(super) truncated: bool,

    /// Allow writing to an unencrypted volume (cipher_null), which is otherwise read-only
    #[arg(long)]
    pub(super) write_unencrypted: bool,

    /// Restore the file's access and modification times on closing. Backups that rely on them miss the changes
    #[arg(long)]
    pub(crate) keep_times: bool,

    /// Whether to return the parameters for dm-crypt, too.
    #[arg(skip)]
    pub(crate) for_kernel: bool,

    #[command(flatten)]
    pub(super) headerless: HeaderlessArgs,

    #[command(flatten)]
    pub(crate) tokens: TokenArgs,

    #[command(flatten)]
    pub(crate) folder: FolderArgs,
}

impl UnlockArgs {
    /// The options of another verb that has only some of these.
    pub fn new(format: Option<String>, cipher: Option<String>, hash: Option<String>, pim: Option<u32>) -> Self {
        Self { format: format.into(), cipher, hash, pim, ..Self::default() }
    }

    /// Whether any of these options was given. Names every field, so that a new option must be decided here to compile.
    pub fn given(&self) -> bool {
        let Self {
            format,
            hash,
            pim,
            memory,
            patience: PatienceArgs { allow_slow },
            cipher,
            backup_header,
            slot,
            header_file,
            partition,
            no_aes,
            truncated,
            write_unencrypted,
            keep_times,
            for_kernel: _,
            headerless,
            tokens,
            folder,
        } = self;
        let texts = [hash, cipher].into_iter().any(Option::is_some) || header_file.is_some() || format.name().is_some();
        let numbers = pim.is_some() || memory.is_some() || slot.is_some() || partition.is_some();
        let flags = [allow_slow, backup_header, no_aes, truncated, write_unencrypted, keep_times];
        let flags = flags.into_iter().any(|flag| *flag);
        texts || numbers || flags || headerless.given() || tokens.given() || folder.given()
    }

    /// The credentials, tried as the options say.
    pub fn unlock<'a>(&'a self, credentials: &'a [Credential]) -> Unlock<'a> {
        let mut with = Unlock {
            acceleration: if self.no_aes { Acceleration::Off } else { Acceleration::On },
            hash: self.hash.as_deref(),
            cipher: self.cipher.as_deref(),
            pim: self.pim,
            memory: self.memory,
            header: self.header(),
            keyslot: self.keyslot(),
            truncated: self.truncated,
            write_unencrypted: self.write_unencrypted,
            may_take: self.patience.may_take(),
            for_kernel: self.for_kernel,
            ..Unlock::with(credentials)
        };
        self.headerless.apply(&mut with);
        with
    }

    /// Like [`UnlockArgs::unlock`], for a folder on this machine: cipher and key size are those of new files.
    pub(super) fn unlock_folder<'a>(&'a self, credentials: &'a [Credential], given: &'a FolderGiven) -> Unlock<'a> {
        let with = self.unlock(credentials);
        let Headerless { key_bits, .. } = with.headerless;
        let key_bytes = key_bits.map(|bits| bits.div_ceil(8) as usize);
        let folder = FolderOptions { cipher: with.cipher, key_bytes, ..self.folder.options(given) };
        Unlock { folder, cipher: None, headerless: Headerless { key_bits: None, ..with.headerless }, ..with }
    }

    /// Like [`UnlockArgs::unlock`], for a folder inside a volume to which most of the options apply.
    pub(super) fn unlock_inner_folder<'a>(
        &'a self,
        credentials: &'a [Credential],
        given: &'a FolderGiven,
    ) -> Unlock<'a> {
        let Unlock { acceleration, memory, may_take, .. } = self.unlock(credentials);
        Unlock { acceleration, memory, may_take, folder: self.folder.options(given), ..Unlock::with(credentials) }
    }

    pub(super) fn header(&self) -> HeaderChoice {
        match self.slot {
            _ if self.backup_header => HeaderChoice::Backup,
            Some(Slot::Copy { hidden, backup }) => HeaderChoice::One { hidden, backup },
            Some(Slot::Keyslot(_)) | None => HeaderChoice::Any,
        }
    }

    pub(super) fn keyslot(&self) -> Option<u32> {
        match self.slot {
            Some(Slot::Keyslot(number)) => Some(number),
            _ => None,
        }
    }

    /// The file with the detached header, if an option names one.
    pub fn header_file(&self) -> Option<&Path> {
        self.header_file.as_deref()
    }

    /// Whether to try only backup headers. The start of the volume does not matter then.
    fn by_backup(&self) -> bool {
        matches!(self.header(), HeaderChoice::Backup | HeaderChoice::One { backup: true, .. })
    }

    /// The volume at `path`, as the options say.
    ///
    /// # Errors
    /// `Misuse` for options that the format does not have.
    pub fn opening(&self, path: &Path) -> Result<Opening> {
        // Folders refuse these options together with all others that they do not take.
        if !path.is_dir() {
            self.headerless.check(self.format())?;
        }
        // Nothing in an EFS folder shows that its files are encrypted, and a plain folder has none.
        let format = self.format().or_else(|| self.folder.implied_format().filter(|_| path.is_dir()));
        // The kernel maps the bytes of the file.
        let find = if self.for_kernel { remote::opening_of_bytes } else { remote::opening };
        let opening = find(path, self.header_file())?.partition(self.partition).format(format);
        Ok(opening.keep_times(self.keep_times).by_backup(self.by_backup()))
    }

    /// Like [`UnlockArgs::opening`], for verbs that read files. Also takes an unencrypted file system, and an encrypted folder
    /// inside.
    pub(super) fn opening_for_files(&self, path: &Path) -> Result<Opening> {
        match self.folder_format() {
            Some(_) if !path.is_dir() => {
                self.headerless.check(None)?;
                let opening = remote::opening(path, self.header_file())?.partition(self.partition);
                Ok(opening.or_clear(true).keep_times(self.keep_times).by_backup(self.by_backup()))
            }
            _ => Ok(self.opening(path)?.or_clear(true)),
        }
    }

    /// The format, if the options name one for encrypted folders.
    pub(super) fn folder_format(&self) -> Option<&str> {
        self.format().filter(|name| file_formats::named(name).is_ok())
    }

    /// These options with a random key, and the key's size in bits. The format is plain dm-crypt; the cipher is AES-XTS unless
    /// the options name another.
    ///
    /// # Errors
    /// `Misuse` for another format, and for options that a random key does not take.
    pub fn with_random_key(mut self) -> Result<(Self, u32)> {
        if let Some(other) = self.format().filter(|name| !name.eq_ignore_ascii_case("plain")) {
            return Err(Error::misuse(format!("--random-key: {other} volumes have their own key")));
        }
        if self.header_file.is_some() || self.hash.is_some() {
            return Err(Error::misuse("--random-key takes no header and no hash"));
        }
        self.format = Some("plain".to_owned()).into();
        let cipher = self.cipher.get_or_insert_with(|| "aes-xts-plain64".to_owned());
        let is_xts = Specification::parse(cipher).is_ok_and(|cipher| cipher.is_xts());
        let bits = self.headerless.key_bits_or(if is_xts { 512 } else { 256 });
        Ok((self, bits))
    }

    /// The partition that the options name.
    pub fn partition(&self) -> Option<u32> {
        self.partition
    }

    /// The format that the options name.
    pub fn format(&self) -> Option<&str> {
        self.format.name()
    }
}

/// A copy of the header, or a keyslot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Copy { hidden: bool, backup: bool },
    Keyslot(u32),
}

impl Slot {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let copy = |hidden, backup| Ok(Self::Copy { hidden, backup });
        match text {
            "primary" => copy(false, false),
            "hidden" => copy(true, false),
            "backup" => copy(false, true),
            "hidden-backup" => copy(true, true),
            _ => text
                .parse()
                .map(Self::Keyslot)
                .map_err(|_| "use primary, hidden, backup, hidden-backup, or the number of a keyslot".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_copies_or_numbers() {
        assert_eq!(Slot::parse("hidden-backup"), Ok(Slot::Copy { hidden: true, backup: true }));
        assert_eq!(Slot::parse("7"), Ok(Slot::Keyslot(7)));
        for wrong in ["", "-1", "first", "4294967296"] {
            assert!(Slot::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Tests every option that clap knows, alone or with the options that it requires.
    #[test]
    fn each_option_counts_as_given() {
        use clap::{Args as _, FromArgMatches as _};
        let command = UnlockArgs::augment_args(clap::Command::new("unlock").no_binary_name(true));
        let parse = |words: &[&str]| {
            let matches = command.clone().try_get_matches_from(words)?;
            UnlockArgs::from_arg_matches(&matches)
        };
        assert!(!parse(&[]).expect("nothing is required").given());
        let required = ["--windows-profile=x", "--pkcs11-module=x", "--tpm2-device=/dev/tpmrm0"];
        for option in command.get_arguments() {
            let name = format!("--{}", option.get_long().expect("each has a name"));
            let of_values = ["1", "512", "primary", "xts-plain64", "Cargo.toml", "/dev/tpmrm0", "http://host"]
                .map(|value| format!("{name}={value}"));
            let mut forms = of_values.iter().chain([&name]);
            let given =
                forms.find_map(|form| parse(&[form]).or_else(|_| parse(&[&[&**form], &required[..]].concat())).ok());
            assert!(given.unwrap_or_else(|| panic!("{name} takes none of these values")).given(), "{name}");
        }
    }
}
