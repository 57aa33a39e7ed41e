//! The formats, and one table of them.

pub mod bitlocker;
mod change;
mod editor;
pub mod filevault2;
mod filling;
mod header_facts;
mod headerless;
mod in_place;
pub mod integritysetup;
pub mod loopaes;
mod luks;
pub mod luks1;
pub mod luks2;
pub mod partition;
pub mod plain;
mod plan;
mod resizing;
mod sealed;
mod several;
pub mod takes;
pub mod truecrypt;
mod unencrypted;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::Secret;
use claviger_crypto::secret::wipe_stack;
use serde::{Serialize, Serializer};

use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::{detect, magic};
use crate::spec::{Reserved, Spec};
use crate::store::Store;
use crate::volume::Layout;
use header_facts::as_text;
use several::Several;
use takes::{Parameter, Purpose, Takes};

pub use change::{
    AreaReport, CopyReport, CopyState, Derivation, HeaderAttributes, HeaderBackup, NewCredential, Prepared, Protection,
    RecoveryPassword, Removal, RestoreFrom, TokenChange, Verified,
};
pub use editor::HeaderEditor;
pub use header_facts::{FactUnit, FormatFacts, HeaderFacts, KeyslotFacts, Pbkdf2Facts};
pub use in_place::{
    InPlaceConversion, InPlaceConverter, InPlaceStores, Reencrypter, ReencryptionRequest, Towards, convertible,
};
pub use plan::{PlannedSlot, UnlockPlan};
pub use resizing::Resizing;
pub use sealed::{Releaser, Sealed};

/// Every format there is.
pub static FORMATS: &[&dyn Format] = &[
    &truecrypt::TRUECRYPT,
    &truecrypt::VERACRYPT,
    &luks1::LUKS1,
    &luks2::LUKS2,
    &bitlocker::BITLOCKER,
    &filevault2::FILEVAULT2,
    &integritysetup::DM_INTEGRITY,
    &plain::PLAIN,
    &plain::CRYPTOLOOP,
    &loopaes::LOOP_AES,
];

/// What a look at a store without any credential tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "why")]
pub enum Verdict {
    /// Not this format, and why.
    No(String),
    /// It could be: the format has no mark to know it by. And why.
    Possible(String),
    /// It is. And why.
    Yes(String),
}

/// A format of encrypted volumes.
pub trait Format: Sync {
    /// Its name: `TrueCrypt`.
    fn name(&self) -> &'static str;

    /// What a look at the store tells. Reads little and needs no credential.
    ///
    /// # Errors
    /// `Io`.
    fn identify(&self, store: &dyn Store) -> Result<Verdict>;

    /// Reads the header, still locked.
    ///
    /// # Errors
    /// `NotThisFormat`, `Malformed`, `Unsupported`, `Io`.
    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>>;

    /// Like [`Format::open`], for a header in another file or device than its `data`.
    ///
    /// # Errors
    /// Those of [`Format::open`]; `Misuse` where the format has no detached headers.
    fn open_detached(&self, _header: &Arc<dyn Store>, _data: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        takes::check(self.name(), &self.takes(), Purpose::Opening, &[Parameter::DetachedHeader])?;
        Err(Error::unsupported(format!("detached headers of {}", self.name())))
    }

    /// Like [`Format::open`], for the header of an encrypted system on the disk that it starts from. Nothing if the disk is
    /// none.
    ///
    /// # Errors
    /// `Io`.
    fn open_system(&self, _disk: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        Ok(None)
    }

    /// Like [`Format::open`], for backups of headers on a disk whose partition table was written over the volume: there [`Format::open`]
    /// looks for an encrypted system. Nothing where it finds the backups itself.
    ///
    /// # Errors
    /// Those of [`Format::open`].
    fn open_overwritten(&self, _store: &Arc<dyn Store>) -> Result<Option<Box<dyn Header>>> {
        Ok(None)
    }

    /// What its volumes can be created and opened with.
    fn takes(&self) -> Takes;

    /// What makes new volumes, where this program does.
    fn creator(&self) -> Option<&dyn Creator> {
        None
    }

    /// Makes a volume that fills `store`, opened by `first`, once it is known that the format takes all that `spec` asks for.
    /// Writes the header last, so that what is there before the end opens with nothing.
    ///
    /// # Errors
    /// `Misuse`, `CredentialKind`, `Cancelled`, `Io`; `Unsupported` where there is no [`Format::creator`].
    fn create(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        takes::check(self.name(), &self.takes(), Purpose::Creating, &spec.parameters())?;
        creator.create_volume(store, spec, first)
    }

    /// How large a hidden volume the volume that `outer` opens has room for, as far as the file system in it tells.
    ///
    /// # Errors
    /// Those of [`Header::unlock`] and [`crate::filesystems::free_tail::free_tail`]; `Misuse` where there can be none.
    fn hidden_room(&self, store: &Arc<dyn Store>, outer: &Unlock<'_>) -> Result<HiddenRoom> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        takes::check(self.name(), &self.takes(), Purpose::Creating, &[Parameter::HiddenVolume])?;
        creator.room_for_hidden(store, outer)
    }

    /// Makes a hidden volume, opened by `first`, in the free space at the end of the one that `outer` opens. Writes nothing
    /// outside that space and the places of the hidden headers, and the header last.
    ///
    /// # Errors
    /// Those of [`Format::create`] and [`Format::hidden_room`], and `Misuse` if the size does not fit there.
    fn create_hidden(
        &self,
        store: &Arc<dyn Store>,
        outer: &Unlock<'_>,
        spec: &Spec<'_>,
        first: &[Credential],
    ) -> Result<()> {
        let creator = self.creator().ok_or_else(|| not_created(self.name()))?;
        let asked = [&[Parameter::HiddenVolume], &spec.parameters()[..]].concat();
        takes::check(self.name(), &self.takes(), Purpose::Creating, &asked)?;
        creator.create_hidden_volume(store, outer, spec, first)
    }

    /// What is left of a volume whose beginning is none any more: looks further than [`Format::identify`]. [`Format::open`] finds it, too.
    ///
    /// # Errors
    /// `Io`.
    fn remains(&self, _store: &dyn Store) -> Result<Option<String>> {
        Ok(None)
    }

    /// Where backups of headers are, in bytes before the end of the store; nothing if there are none.
    fn backups_before_end(&self) -> &'static [u64] {
        &[]
    }

    /// Whether its volumes have no header at all. Nothing tells them from random bytes, so that one opens only where somebody
    /// names the format; it then takes [`crate::credential::Headerless`].
    fn headerless(&self) -> bool {
        false
    }

    /// Whether a header may be in another file or device than its data: [`Format::open_detached`].
    fn detachable(&self) -> bool {
        self.takes().opens_with(Parameter::DetachedHeader)
    }

    /// What changes headers, where the format has them and this program can.
    fn editor(&self) -> Option<&dyn HeaderEditor> {
        None
    }

    /// What converts volumes where they lie, where this program can.
    fn in_place_converter(&self) -> Option<&dyn InPlaceConverter> {
        None
    }
}

/// What makes new volumes of a format. Those who want one call [`Format::create`], which checks first that the format takes
/// what is asked for.
pub trait Creator: Sync {
    /// Ciphers, hashes and sizes to choose from.
    fn choices(&self) -> Choices;

    /// What [`Format::create`] does.
    ///
    /// # Errors
    /// Those of [`Format::create`].
    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()>;

    /// Bytes of store that a new volume takes, as `spec` asks for it, whose plaintext has `plain` bytes, or as few more as can
    /// be.
    ///
    /// # Errors
    /// `Misuse` if there is none of that size; `Unsupported` where the format cannot tell.
    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64>;

    /// Whether a new volume that is to open with these keyfiles needs a passphrase to be asked for, too.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// The cipher and the hash, as [`Unlock`] takes them, that open a volume which was created as `spec` says and of which `facts`
    /// are known: for formats without a header.
    fn opened_with(&self, facts: &Facts, spec: &Spec<'_>) -> (String, Option<String>) {
        let hash = facts.hash.as_deref().map(|hash| spec.hash.unwrap_or(hash).to_owned());
        // dm-crypt has a mode for a cipher's name alone.
        let mode = Some(&facts.mode).filter(|mode| !mode.is_empty()).map(|mode| format!("-{mode}"));
        (format!("{}{}", facts.cipher, mode.unwrap_or_default()), hash)
    }

    /// The contents of a new file of keys, for formats that take [`Parameter::FreshKeyfile`].
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_keyfile(&self) -> Result<Secret> {
        Err(Error::unsupported("creating key files: this format has none"))
    }

    /// Such contents, encrypted so that `passphrase` opens them.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn locked_keyfile(&self, _contents: &Secret, _passphrase: &Secret) -> Result<Vec<u8>> {
        Err(Error::unsupported("creating key files: this format has none"))
    }

    /// A new recovery password, as text, for formats that take [`Parameter::RecoveryPassword`]. It opens a volume or a keyslot that is made
    /// with it as a [`Credential::Passphrase`].
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_recovery_password(&self) -> Result<Secret> {
        Err(Error::unsupported("recovery passwords: this format has none"))
    }

    /// A new recovery key, as text, for formats that take [`Parameter::RecoveryKey`]. A keyslot that is added with it as a
    /// [`Credential::Passphrase`] is marked as that of a recovery key.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_recovery_key(&self) -> Result<Secret> {
        Err(Error::unsupported("recovery keys: this format has none"))
    }

    /// The name and the contents of a new startup key's file, for formats that take [`Parameter::StartupKey`]. It opens a volume or a
    /// keyslot that is made with it as a [`Credential::Keyfile`].
    ///
    /// # Errors
    /// `Io`; `Unsupported` for other formats.
    fn fresh_startup_key(&self) -> Result<(String, Secret)> {
        Err(Error::unsupported("startup keys: this format has none"))
    }

    /// The parts of the plaintext of a new volume, in a store of `len` bytes, that the format keeps to itself. In the order in which
    /// [`crate::spec::ReservedAt::At`] takes their places.
    ///
    /// # Errors
    /// Those of [`Format::create`] for a volume of that size.
    fn reserved(&self, _len: u64, _spec: &Spec<'_>) -> Result<Vec<Reserved>> {
        Ok(Vec::new())
    }

    /// What [`Format::hidden_room`] does, for formats that take [`Parameter::HiddenVolume`].
    ///
    /// # Errors
    /// Those of [`Format::hidden_room`].
    fn room_for_hidden(&self, _store: &Arc<dyn Store>, _outer: &Unlock<'_>) -> Result<HiddenRoom> {
        Err(Error::unsupported("hidden volumes: this format has none"))
    }

    /// What [`Format::create_hidden`] does.
    ///
    /// # Errors
    /// Those of [`Format::create_hidden`].
    fn create_hidden_volume(
        &self,
        _store: &Arc<dyn Store>,
        _outer: &Unlock<'_>,
        _spec: &Spec<'_>,
        _first: &[Credential],
    ) -> Result<()> {
        Err(Error::unsupported("hidden volumes: this format has none"))
    }
}

/// What makes new volumes of the format.
///
/// # Errors
/// `Unsupported` where nothing does.
pub fn creator_of(format: &dyn Format) -> Result<&dyn Creator> {
    format.creator().ok_or_else(|| not_created(format.name()))
}

/// What is to be said of a format that is only opened.
fn not_created(name: &str) -> Error {
    Error::unsupported(format!("creating {name} volumes")).hint("Create a LUKS or VeraCrypt volume instead.")
}

/// The room for a hidden volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HiddenRoom {
    /// Size of the largest plaintext that is safe, in bytes.
    pub largest: u64,
    /// Size of the smallest one, in bytes.
    pub smallest: u64,
    /// The file system of the outer volume.
    pub filesystem: &'static str,
    /// Where its free space begins, in bytes of the outer volume.
    pub free_at: u64,
    /// Size of the outer volume's plaintext, in bytes.
    pub outer_size: u64,
    /// Whether what is stored there now looks random. If not, as where the outer volume was never filled, a hidden volume stands
    /// out.
    pub looks_random: bool,
}

/// What a format can create.
#[derive(Clone, Debug, Serialize)]
pub struct Choices {
    /// Ciphers and cascades, the default first.
    pub ciphers: Vec<&'static str>,
    /// Hashes, the default first.
    pub hashes: Vec<&'static str>,
    /// Whether these are all. Elsewhere everything is taken that dm-crypt has a name for.
    #[serde(skip)]
    pub complete: bool,
    /// The smallest volume, in bytes, headers included.
    pub min_len: u64,
}

/// What a volume key is known by: salt and digest of it.
pub type KeyMark = (Vec<u8>, Vec<u8>);

/// A header that has been read and not been unlocked. It holds the stores that it was read from.
pub trait Header: Send {
    /// Tries the credentials.
    ///
    /// # Errors
    /// `WrongCredential`, `CredentialKind`, `Malformed`, `Unsupported`, `Cancelled`, `Io`.
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked>;

    /// What its volume keys are known by, where it says so. They stay as they are for as long as the key.
    fn key_marks(&self) -> Vec<KeyMark> {
        Vec::new()
    }

    /// The formats that it could be of, by their names, and what they take: what none of them does is refused before a secret is asked
    /// for. Nothing where that only [`Header::unlock`] tells.
    fn takes(&self) -> Vec<(&'static str, Takes)> {
        Vec::new()
    }

    /// The store with the data, which the layout that [`Header::unlock`] gives is one of.
    fn data(&self) -> &Arc<dyn Store>;

    /// What can be told without any credential: keyslots, ciphers, UUID, tokens. No secret is in it.
    fn describe(&self) -> Option<HeaderFacts> {
        None
    }

    /// The passphrases that lie sealed in it, by the number of their token.
    fn sealed(&self) -> Vec<Sealed> {
        Vec::new()
    }

    /// What is damaged in it, as far as that shows without any credential.
    fn damage(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// What trying the keyslots will cost, where the header tells it: to be said before it is tried.
    fn plan(&self, _with: &Unlock<'_>) -> Option<UnlockPlan> {
        None
    }

    /// Whether a passphrase is to be asked for where these keyfiles are given.
    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        true
    }

    /// Refuses what cannot be unlocked, or used, where the keys are in a process that starts no programs: see
    /// [`key_process`](crate::key_process).
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_key_process(&self, _credentials: &[Credential]) -> Result<()> {
        Ok(())
    }

    /// About how long trying wrong credentials takes on one thread, in microseconds: what the progress of `unlock` counts.
    fn effort(&self, _with: &Unlock<'_>) -> u64 {
        1
    }
}

/// An unlocked volume: the layout, which holds the keys, and what is to be told about it.
#[non_exhaustive]
pub struct Unlocked {
    /// Where the plaintext is.
    pub layout: Layout,
    /// What a person may want to know.
    pub facts: Facts,
    /// What a person must know: a damaged header, a backup that was used. Whole sentences.
    pub warnings: Vec<Warning>,
    /// Header decryptions that were tried, the right one included.
    pub trials: u64,
    /// Key derivations that were begun.
    pub derivations: u64,
    /// How long that took.
    pub took: Duration,
    /// Whether anything shows that the credential is the right one. A header does; where there is none, only contents that make
    /// sense.
    pub recognised: bool,
}

impl Unlocked {
    /// Without warnings, of a header that shows whether the credential is the right one.
    pub fn new(layout: Layout, facts: Facts) -> Self {
        let (warnings, trials, derivations, took) = (Vec::new(), 0, 0, Duration::ZERO);
        Self { layout, facts, warnings, trials, derivations, took, recognised: true }
    }
}

/// What is known about an unlocked volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Facts {
    /// The format's name.
    pub format: &'static str,
    /// Cipher or cascade: `AES-Twofish-Serpent`.
    pub cipher: String,
    /// Mode of operation, where it says so with its initialisation vectors: `XTS`, `LRW`, `CBC`, `xts-plain64`.
    pub mode: String,
    /// Bits of key per cipher and purpose, added up: 256 for AES-256 in XTS.
    pub key_bits: u32,
    /// Hash of the key derivation, or the derivation's own name. Nothing where what was given is the key itself: `none` in JSON.
    #[serde(serialize_with = "hash_or_none")]
    pub hash: Option<Cow<'static, str>>,
    /// Iterations of the key derivation, or passes over its memory.
    pub iterations: u32,
    /// How the key came about, as a person says it, where that is a way of the format's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derivation: Option<&'static str>,
    /// Bytes of memory that the key derivation fills, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The PIM, where one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pim: Option<u32>,
    /// Version of the header.
    pub header_version: u16,
    /// Which copy of the header opened.
    #[serde(serialize_with = "as_text")]
    pub header: WhichHeader,
    /// What of it the credentials opened, as a person calls it: `keyslot 3`, `backup header`, `volume key`. Nothing where nothing is
    /// opened, since there is no header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    /// Whether it is a hidden volume.
    pub hidden: bool,
    /// The keyslot that opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyslot: Option<u32>,
    /// The UUID in the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The label in the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What protects the data from changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// Sector size of the cipher, in bytes.
    pub sector_size: u32,
    /// Size of the plaintext, in bytes.
    pub size: u64,
    /// Where the plaintext begins in the store, in bytes.
    pub data_offset: u64,
    /// When the volume was created, in seconds since 1970, where the header says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// When the header was written, in seconds since 1970, where the header says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_written: Option<i64>,
}

/// A copy of a header, as people call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhichHeader {
    /// The volume has no header.
    None,
    /// The one that programs look for first.
    Primary,
    /// LUKS2's other one.
    Secondary,
    /// The second of BitLocker's three.
    SecondCopy,
    /// The third of them.
    ThirdCopy,
    /// The copy at the end.
    Backup,
    /// A hidden volume's.
    Hidden,
    /// The copy of that.
    HiddenBackup,
    /// An encrypted system's.
    System,
}

impl WhichHeader {
    /// What people call it, as in JSON: `hidden backup`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => NONE,
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::SecondCopy => "second copy",
            Self::ThirdCopy => "third copy",
            Self::Backup => "backup",
            Self::Hidden => "hidden",
            Self::HiddenBackup => "hidden backup",
            Self::System => "system",
        }
    }

    /// Whether it is a copy in case another one is lost, of a format that opens it only then.
    pub fn is_backup(self) -> bool {
        matches!(self, Self::Backup | Self::HiddenBackup)
    }
}

impl fmt::Display for WhichHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What people read where there is no hash or header.
const NONE: &str = "none";

fn hash_or_none<S: Serializer>(
    hash: &Option<Cow<'static, str>>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(hash.as_deref().unwrap_or(NONE))
}

impl Facts {
    /// [`Facts::hash`] for people: `none` where there is none.
    pub fn hash_name(&self) -> Cow<'static, str> {
        self.hash.clone().unwrap_or(NONE.into())
    }

    /// What every volume has; of the rest nothing is known. The plaintext is what `layout` describes.
    pub fn new(format: &'static str, cipher: impl Into<String>, mode: impl Into<String>, layout: &Layout) -> Self {
        let segment = layout.segments().first();
        let (sector_size, data_offset) = segment.map_or((1, 0), |s| (s.payload.sector_size(), s.stored_at));
        Self {
            format,
            cipher: cipher.into(),
            mode: mode.into(),
            key_bits: 0,
            hash: None,
            iterations: 0,
            derivation: None,
            memory: None,
            pim: None,
            header_version: 0,
            header: WhichHeader::Primary,
            opened_by: None,
            hidden: false,
            keyslot: None,
            uuid: None,
            label: None,
            integrity: None,
            sector_size: sector_size as u32,
            size: layout.len(),
            data_offset,
            created: None,
            header_written: None,
        }
    }
}

/// Finds the format of `store`, or takes the one that is named, and reads its header. A `Yes` of one format outranks every
/// `Possible`; of several `Possible` formats the first is returned, with a header that tries them all.
///
/// # Errors
/// `NotThisFormat` if no format says even `Possible`, `Misuse` if there is none of that name, or what the format's own
/// `open` says.
pub fn open(store: &Arc<dyn Store>, name: Option<&str>) -> Result<(&'static dyn Format, Box<dyn Header>)> {
    if let Some(name) = name {
        let format = named(&**store, name)?;
        return Ok((format, format.open(store).map_err(|e| e.in_format(format.name()))?));
    }
    let mut possible = Vec::new();
    let mut reasons = Vec::new();
    for format in FORMATS.iter().copied().filter(|f| !f.headerless()) {
        match format.identify(&**store)? {
            Verdict::Yes(_) => return Ok((format, format.open(store)?)),
            Verdict::Possible(_) => possible.push(format),
            Verdict::No(why) => reasons.push(format!("{}: {why}", format.name())),
        }
    }
    if possible.is_empty() {
        let mut start = vec![0; store.len().min(detect::LOOKED_AT as u64) as usize];
        store.read_at(0, &mut start)?;
        // What it is says more than what it is not.
        let why = match magic::known(&start) {
            _ if store.is_empty() => "it is empty".to_owned(),
            Some(what) => format!("it holds {what}"),
            None => reasons.join("; "),
        };
        let what = ErrorKind::NotThisFormat(format!("not an encrypted volume ({why})"));
        return Err(Error::new(what)
            .hint("If its beginning was overwritten, a backup header may still open it.")
            .advise(Advice::NameFormat));
    }
    all_of(store, &possible)
}

/// The result of work with secrets: an error of it names the format, and nothing is left on the stack.
fn wiped<T>(format: &'static str, result: Result<T>) -> Result<T> {
    wipe_stack();
    result.map_err(|e| e.in_format(format))
}

/// Bytes of store for `plain` bytes of plaintext, in whole sectors, behind `offset` bytes of header.
fn stored_behind(offset: u64, plain: u64, spec: &Spec<'_>) -> Result<u64> {
    let len = plain.checked_next_multiple_of(spec.sector_size.unwrap_or(512).max(512).into());
    let len = len.and_then(|len| len.checked_add(offset));
    len.ok_or_else(|| Error::misuse(format!("{plain} bytes from byte {offset} on exceed 2^64")))
}

/// A header that tries those of `formats` that find anything that could be one.
fn all_of(store: &Arc<dyn Store>, formats: &[&'static dyn Format]) -> Result<(&'static dyn Format, Box<dyn Header>)> {
    let mut headers = Vec::new();
    let mut error = None;
    for &format in formats {
        match format.open(store) {
            Ok(header) => headers.push((format, header)),
            Err(e) => error = error.or(Some(e)),
        }
    }
    match headers.len() {
        0 => Err(error.unwrap_or_else(|| ErrorKind::NotThisFormat("there is no format to try".into()).into())),
        1 => Ok(headers.remove(0)),
        _ => {
            let first = headers[0].0;
            let headers = headers.into_iter().map(|(format, header)| (format.name(), header)).collect();
            Ok((first, Box::new(Several { headers })))
        }
    }
}

/// What is in `store` that writing a volume would destroy, as the end of "it holds …"; nothing if all that was looked at is
/// zeros, as in a new or sparse file. Looks at the beginning and the end, where formats have their marks and headers, and
/// here and there in between.
///
/// # Errors
/// `Io`.
pub fn occupied(store: &dyn Store) -> Result<Option<String>> {
    /// Bytes looked at at both ends.
    const ENDS: u64 = 1 << 20;
    /// Places in between, and bytes looked at there.
    const PLACES: u64 = 256;
    const AT_A_PLACE: usize = 4096;

    let len = store.len();
    let mut start = vec![0; len.min(ENDS) as usize];
    store.read_at(0, &mut start)?;
    if let Some(what) = magic::known(&start) {
        return Ok(Some(what.to_owned()));
    }
    let mut seen = Seen::default();
    start.chunks(AT_A_PLACE).for_each(|bytes| seen.look_at(bytes));
    let end = len.saturating_sub(ENDS).max(start.len() as u64);
    let mut rest = vec![0; (len - end) as usize];
    store.read_at(end, &mut rest)?;
    rest.chunks(AT_A_PLACE).for_each(|bytes| seen.look_at(bytes));
    let between = end - start.len() as u64;
    if between > 0 {
        let mut bytes = vec![0; between.min(AT_A_PLACE as u64) as usize];
        for place in 0..PLACES {
            let offset = u128::from(between - bytes.len() as u64) * u128::from(place) / u128::from(PLACES - 1);
            store.read_at(start.len() as u64 + offset as u64, &mut bytes)?;
            seen.look_at(&bytes);
        }
    }
    Ok(match seen {
        Seen { random: true, .. } => Some("random-looking data, possibly an encrypted volume".to_owned()),
        Seen { something: true, .. } => Some("data of an unknown kind".to_owned()),
        Seen { .. } => None,
    })
}

/// What was seen in bytes without a mark.
#[derive(Default)]
struct Seen {
    something: bool,
    random: bool,
}

impl Seen {
    fn look_at(&mut self, bytes: &[u8]) {
        if bytes.iter().any(|b| *b != 0) {
            self.something = true;
            self.random |= bytes.chunks_exact(512).any(magic::looks_random);
        }
    }
}

/// Like [`open`] for a volume whose beginning may be overwritten: takes every format that finds anything that could be a
/// header, wherever it keeps its copies.
///
/// # Errors
/// Those of [`open`].
pub fn open_by_backup(store: &Arc<dyn Store>) -> Result<(&'static dyn Format, Box<dyn Header>)> {
    let with_header: Vec<_> = FORMATS.iter().copied().filter(|f| !f.headerless()).collect();
    all_of(store, &with_header).or_else(|_| open(store, None))
}

/// What both versions of LUKS are called.
const LUKS: &str = "LUKS";

/// Whether two names mean the same: whatever their case, and with or without hyphens. `sha512` is `SHA-512`.
pub fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
    plain(one) == plain(other)
}

/// The format of that name for what is in `store`: `LUKS` is LUKS1 or LUKS2, whichever the header is of.
///
/// # Errors
/// `Misuse` if there is none; `Io`.
pub fn named(store: &dyn Store, name: &str) -> Result<&'static dyn Format> {
    if same_name(name, LUKS) {
        for format in FORMATS.iter().copied().filter(|f| f.name().starts_with(LUKS)) {
            if !matches!(format.identify(store)?, Verdict::No(_)) {
                return Ok(format);
            }
        }
    }
    by_name(name)
}

/// The format of that name, whatever its case. `LUKS` is its newer version, LUKS2; see [`named`].
///
/// # Errors
/// `Misuse` if there is none.
pub fn by_name(name: &str) -> Result<&'static dyn Format> {
    let name = if same_name(name, LUKS) { luks2::NAME } else { name };
    FORMATS.iter().copied().find(|f| same_name(f.name(), name)).ok_or_else(|| {
        let all: Vec<_> = FORMATS.iter().map(|f| f.name()).collect();
        Error::misuse(format!("there is no format called {name}; use one of: {}", all.join(", ")))
    })
}
