//! What volumes and folders can be created and opened with, as data: [`Parameter`]s, and those that a format [`Takes`].

use serde::Serialize;

use crate::credential::{Credential, FolderOptions, HeaderChoice, Headerless, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::spec::{Cost, ReservedAt, Spec};

/// The parameters of [`Spec`] and [`Unlock`] that only some formats support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Parameter {
    /// A personal iterations multiplier.
    Pim,
    /// A hash of the key derivation.
    Hash,
    /// A cipher or a cascade.
    Cipher,
    /// A size of the key.
    KeySize,
    /// An encryption sector size.
    SectorSize,
    /// The offset of the data.
    Offset,
    /// The number of the first sector.
    FirstSector,
    /// The size of the data, if the store's size does not give it.
    DataSize,
    /// Whether initialisation vectors count encryption sectors.
    LargeVectors,
    /// loop-AES's seed for a passphrase.
    Seed,
    /// loop-AES's iterations for a passphrase.
    KeyRounds,
    /// A keyfile.
    Keyfile,
    /// A new key file, created together with the volume.
    FreshKeyfile,
    /// A recovery password, created for the volume.
    RecoveryPassword,
    /// A recovery key in systemd's format, for a new keyslot.
    RecoveryKey,
    /// A token for a new keyslot, which says what releases its passphrase.
    Token,
    /// A TPM, which releases what opens a new keyslot.
    Tpm,
    /// A startup key, a file created for the volume.
    StartupKey,
    /// A discovery volume: files in front that any system can read, which explain the rest.
    DiscoveryVolume,
    /// A file system that leaves free the format's reserved areas.
    FileSystem,
    /// The volume key itself.
    VolumeKey,
    /// A private key.
    PrivateKey,
    /// A keyslot.
    Keyslot,
    /// A backup of the header inside the volume.
    BackupHeader,
    /// A hidden volume.
    HiddenVolume,
    /// A header in another file or device than the data.
    DetachedHeader,
    /// A UUID.
    Uuid,
    /// A label.
    Label,
    /// A subsystem, which is a second label.
    Subsystem,
    /// Integrity protection of the data.
    Integrity,
    /// A function that derives keys.
    Kdf,
    /// The time that one derivation should take.
    Time,
    /// The number of iterations.
    Iterations,
    /// The memory that a derivation fills.
    Memory,
    /// The number of lanes of that memory, which are filled in parallel.
    Lanes,
    /// The size of one copy of the header.
    MetadataSize,
    /// The size of the keyslots area.
    KeyslotsSize,
    /// A passphrase for file names.
    NamePassphrase,
    /// Unencrypted file names.
    ClearNames,
    /// A file that contains the wrapped passphrase.
    WrappedPassphrase,
    /// Unencrypted files that are shown unchanged.
    Passthrough,
    /// Files that are shown encrypted, as they are stored.
    EncryptedView,
    /// An encrypted view of a plain folder.
    ReverseView,
    /// Headers in extended attributes.
    MetadataInAttributes,
}

impl Parameter {
    /// Every parameter.
    pub const ALL: &[Self] = &[
        Self::Pim,
        Self::Hash,
        Self::Cipher,
        Self::KeySize,
        Self::SectorSize,
        Self::Offset,
        Self::FirstSector,
        Self::DataSize,
        Self::LargeVectors,
        Self::Seed,
        Self::KeyRounds,
        Self::Keyfile,
        Self::FreshKeyfile,
        Self::RecoveryPassword,
        Self::RecoveryKey,
        Self::Token,
        Self::Tpm,
        Self::StartupKey,
        Self::DiscoveryVolume,
        Self::FileSystem,
        Self::VolumeKey,
        Self::PrivateKey,
        Self::Keyslot,
        Self::BackupHeader,
        Self::HiddenVolume,
        Self::DetachedHeader,
        Self::Uuid,
        Self::Label,
        Self::Subsystem,
        Self::Integrity,
        Self::Kdf,
        Self::Time,
        Self::Iterations,
        Self::Memory,
        Self::Lanes,
        Self::MetadataSize,
        Self::KeyslotsSize,
        Self::NamePassphrase,
        Self::ClearNames,
        Self::WrappedPassphrase,
        Self::Passthrough,
        Self::EncryptedView,
        Self::ReverseView,
        Self::MetadataInAttributes,
    ];

    /// Its name for people, as the end of "LUKS1 takes no …".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pim => "PIM",
            Self::Hash => "hash",
            Self::Cipher => "cipher",
            Self::KeySize => "key size",
            Self::SectorSize => "sector size",
            Self::Offset => "data offset",
            Self::FirstSector => "first sector number",
            Self::DataSize => "data size",
            Self::LargeVectors => "large-sector IVs",
            Self::Seed => "seed",
            Self::KeyRounds => "passphrase iterations",
            Self::Keyfile => "keyfile",
            Self::FreshKeyfile => "new key file",
            Self::RecoveryPassword => "recovery password",
            Self::RecoveryKey => "recovery key",
            Self::Token => "token",
            Self::Tpm => "TPM",
            Self::StartupKey => "startup key",
            Self::DiscoveryVolume => "discovery volume",
            Self::FileSystem => "new file system",
            Self::VolumeKey => "volume key",
            Self::PrivateKey => "private key",
            Self::Keyslot => "keyslot",
            Self::BackupHeader => "backup header",
            Self::HiddenVolume => "hidden volume",
            Self::DetachedHeader => "detached header",
            Self::Uuid => "UUID",
            Self::Label => "label",
            Self::Subsystem => "subsystem",
            Self::Integrity => "integrity protection",
            Self::Kdf => "key derivation function",
            Self::Time => "key derivation time",
            Self::Iterations => "iteration count",
            Self::Memory => "key derivation memory",
            Self::Lanes => "key derivation lanes",
            Self::MetadataSize => "metadata size",
            Self::KeyslotsSize => "keyslots area size",
            Self::NamePassphrase => "name passphrase",
            Self::ClearNames => "unencrypted names",
            Self::WrappedPassphrase => "wrapped passphrase",
            Self::Passthrough => "showing of unencrypted files",
            Self::EncryptedView => "view of files as stored",
            Self::ReverseView => "encrypted view of a plain folder",
            Self::MetadataInAttributes => "headers in extended attributes",
        }
    }

    /// The error of the format called `name`, which does not support it.
    pub(crate) fn refused_by(self, name: &str) -> Error {
        Error::misuse(format!("{name} takes no {}", self.name()))
    }
}

/// The purpose for which parameters are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A new volume is created.
    Creating,
    /// An existing volume is opened.
    Opening,
}

/// The parameters that a format supports, apart from a passphrase, which all support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Takes {
    /// The parameters that a [`Spec`] may contain.
    pub creating: &'static [Parameter],
    /// The parameters that an [`Unlock`] may contain.
    pub opening: &'static [Parameter],
}

impl Takes {
    /// Returns the parameters for a purpose.
    pub fn to(&self, purpose: Purpose) -> &'static [Parameter] {
        match purpose {
            Purpose::Creating => self.creating,
            Purpose::Opening => self.opening,
        }
    }

    /// Whether this parameter is used to open volumes.
    pub fn opens_with(&self, parameter: Parameter) -> bool {
        self.opening.contains(&parameter)
    }

    /// Returns the first of these parameters that is not supported.
    pub(crate) fn missing(&self, purpose: Purpose, asked: &[Parameter]) -> Option<Parameter> {
        asked.iter().find(|parameter| !self.to(purpose).contains(parameter)).copied()
    }

    /// Refuses credentials of a kind that the format called `name` does not support.
    pub(crate) fn check_kinds(&self, name: &'static str, credentials: &[Credential]) -> Result<()> {
        let missing = credentials.iter().find(|credential| match credential {
            Credential::Passphrase(_) => false,
            Credential::Keyfile(_) => !self.opens_with(Parameter::Keyfile),
            Credential::VolumeKey(_) => !self.opens_with(Parameter::VolumeKey),
            Credential::PrivateKey(_) => !self.opens_with(Parameter::PrivateKey),
        });
        missing.map_or(Ok(()), |credential| {
            Err(ErrorKind::CredentialKind { format: name, kind: credential.kind() }.into())
        })
    }

    /// Returns what opens a volume created with `spec`: parameters that its header does not contain, and those that shorten the
    /// trials.
    pub fn reopening<'a>(&self, spec: &Spec<'a>, credentials: &'a [Credential]) -> Unlock<'a> {
        let takes = |parameter| self.opens_with(parameter);
        let headerless = Headerless {
            key_bits: spec.key_bits.filter(|_| takes(Parameter::KeySize)),
            offset: spec.data_offset.filter(|_| takes(Parameter::Offset)),
            sector_size: spec.sector_size.filter(|_| takes(Parameter::SectorSize)),
            ..Headerless::default()
        };
        let (cipher, hash, pim) = (spec.cipher, spec.hash, spec.pim);
        Unlock { cipher, hash, pim, headerless, ..Unlock::with(credentials) }
    }
}

impl Spec<'_> {
    /// The parameters that it contains.
    pub fn parameters(&self) -> Vec<Parameter> {
        // Names every field, so that a new one is not forgotten here.
        let Self {
            cipher,
            hash,
            hidden_size,
            pim,
            cost,
            key_bits,
            sector_size,
            integrity,
            uuid,
            label,
            subsystem,
            volume_key,
            data_offset,
            metadata_size,
            keyslots_size,
            data,
            discovery,
            reserved_at,
            quick: _,
            cancel: _,
            progress: _,
        } = self;
        let mut all = asked(&[
            (pim.is_some_and(|pim| pim > 0), Parameter::Pim),
            (hash.is_some(), Parameter::Hash),
            (cipher.is_some(), Parameter::Cipher),
            (key_bits.is_some(), Parameter::KeySize),
            (sector_size.is_some(), Parameter::SectorSize),
            (data_offset.is_some(), Parameter::Offset),
            (volume_key.is_some(), Parameter::VolumeKey),
            (hidden_size.is_some(), Parameter::HiddenVolume),
            (data.is_some(), Parameter::DetachedHeader),
            (uuid.is_some(), Parameter::Uuid),
            (label.is_some(), Parameter::Label),
            (subsystem.is_some(), Parameter::Subsystem),
            (integrity.is_some(), Parameter::Integrity),
            (metadata_size.is_some(), Parameter::MetadataSize),
            (keyslots_size.is_some(), Parameter::KeyslotsSize),
            (*discovery, Parameter::DiscoveryVolume),
            (*reserved_at != ReservedAt::AtEnd, Parameter::FileSystem),
        ]);
        all.extend(cost.parameters());
        all
    }
}

impl Cost<'_> {
    /// The parameters that it contains.
    pub fn parameters(&self) -> Vec<Parameter> {
        let Self { kdf, time_ms, iterations, memory_kib, lanes } = self;
        asked(&[
            (kdf.is_some(), Parameter::Kdf),
            (time_ms.is_some(), Parameter::Time),
            (iterations.is_some(), Parameter::Iterations),
            (memory_kib.is_some(), Parameter::Memory),
            (lanes.is_some(), Parameter::Lanes),
        ])
    }
}

impl Unlock<'_> {
    /// The parameters that it contains, apart from the credentials.
    pub fn parameters(&self) -> Vec<Parameter> {
        let place = &self.headerless;
        let FolderOptions {
            name_passphrase,
            clear_names,
            wrapped_passphrase,
            passthrough,
            encrypted_view,
            reverse,
            metadata_in_attributes,
            cipher: new_cipher,
            key_bytes: new_key_bytes,
        } = &self.folder;
        let (hidden, backup) = match self.header {
            HeaderChoice::Any => (false, false),
            HeaderChoice::Backup => (false, true),
            HeaderChoice::One { hidden, backup } => (hidden, backup),
        };
        asked(&[
            (self.pim.is_some_and(|pim| pim > 0), Parameter::Pim),
            (self.hash.is_some(), Parameter::Hash),
            (self.cipher.is_some() || new_cipher.is_some(), Parameter::Cipher),
            (place.key_bits.is_some() || new_key_bytes.is_some(), Parameter::KeySize),
            (place.sector_size.is_some(), Parameter::SectorSize),
            (place.offset.is_some(), Parameter::Offset),
            (place.skip.is_some(), Parameter::FirstSector),
            (place.size.is_some(), Parameter::DataSize),
            (place.large_iv, Parameter::LargeVectors),
            (place.iterations_k.is_some(), Parameter::KeyRounds),
            (self.seed.is_some(), Parameter::Seed),
            (self.keyslot.is_some(), Parameter::Keyslot),
            (self.protect.is_some() || hidden, Parameter::HiddenVolume),
            (backup, Parameter::BackupHeader),
            (name_passphrase.is_some(), Parameter::NamePassphrase),
            (*clear_names, Parameter::ClearNames),
            (wrapped_passphrase.is_some(), Parameter::WrappedPassphrase),
            (*passthrough, Parameter::Passthrough),
            (*encrypted_view, Parameter::EncryptedView),
            (*reverse, Parameter::ReverseView),
            (*metadata_in_attributes, Parameter::MetadataInAttributes),
        ])
    }
}

/// Returns the parameters that are given.
pub(crate) fn asked(all: &[(bool, Parameter)]) -> Vec<Parameter> {
    all.iter().filter(|(asked, _)| *asked).map(|(_, parameter)| *parameter).collect()
}
