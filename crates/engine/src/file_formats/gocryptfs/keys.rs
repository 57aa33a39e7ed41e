//! The keys of an unlocked folder: contents (gocryptfs 2.3, internal/contentenc), names (internal/nametransform), targets of links
//! and extended attributes (internal/fusefrontend, root_node.go and node_xattr.go).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use claviger_crypto::ciphers::aes;
use claviger_crypto::hash::{SHA256, SHA512};
use claviger_crypto::modes::{Eme, MessageCipher, aead};
use claviger_crypto::secret::wipe_after_sectors;
use claviger_crypto::{Acceleration, Secret};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::config::{CONFIG, Config, ContentCipher, KEY, NEW_CONFIG, NONCE, NameEncryption};
use crate::error::{Error, Result};
use crate::file_formats::{
    FileKeys, FileKind, FolderFile, NameIv, NameRole, StoredFile, StoredFolder, cut_header, no_name,
};
use crate::key_process::folder::{
    ContentKey, FolderKeyHandle, FolderKeyProcess, FolderKeys, KeylessContents, KeylessFolder,
};
use crate::random;
use crate::trees::damaged;
use crate::volume::{BlockSealing, SealedLayout, Sealing, plain_size};

/// What HKDF derives keys for (internal/cryptocore/hkdf.go).
pub(super) const GCM_INFO: &str = "AES-GCM file content encryption";
const SIV_INFO: &str = "AES-SIV file content encryption";
const XCHACHA_INFO: &str = "XChaCha20-Poly1305 file content encryption";
const NAMES_INFO: &str = "EME filename encryption";

/// Bytes of plaintext in a block (contentenc/content.go, `DefaultBS`).
pub(super) const BLOCK: usize = 4096;

/// Bytes of a file's header: its version and its ID (contentenc/file_header.go).
pub(super) const HEADER: usize = 2 + ID;

/// Bytes of a file's ID.
pub(super) const ID: usize = 16;

/// The version in a file's header, big-endian.
pub(super) const VERSION: [u8; 2] = [0, 2];

/// The file with a folder's IV (nametransform/diriv.go).
pub(super) const FOLDER_FILE: FolderFile =
    FolderFile { name: "gocryptfs.diriv", len: IV, unfinished: "gocryptfs.unfinished." };

/// Bytes of a folder's IV.
const IV: usize = 16;

/// How shortened names begin, and how the names of files with whole ones end (nametransform/longnames.go).
const SHORTENED: &str = "gocryptfs.longname.";
pub(super) const WHOLE: &str = ".name";

/// Whether a file of this name holds the whole name of another node.
pub(super) fn holds_whole_name(name: &OsStr) -> bool {
    name.as_bytes().starts_with(SHORTENED.as_bytes()) && name.as_bytes().ends_with(WHOLE.as_bytes())
}

/// The longest name in clear, in bytes.
const LONGEST: usize = 255;

/// The longest message that is in no file, in bytes: the value of an extended attribute (Linux, include/uapi/linux/limits.h,
/// `XATTR_SIZE_MAX`).
const LONGEST_MESSAGE: usize = 64 << 10;

/// The longest stored target of a symbolic link (path_resolution(7)), in bytes.
const TARGET_MOST: usize = 4095;

/// Encrypted attributes have names that begin so. Their IV is always the same.
const ATTRIBUTE: &str = "user.gocryptfs.";
const ATTRIBUTE_IV: &[u8; IV] = b"xattr_name_iv_xx";

/// Attributes that are stored as they are: the kernel enforces them.
const CLEAR_ATTRIBUTES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// What is authenticated with messages that are in no file: the number 0.
pub(super) const NO_FILE: [u8; 8] = [0; 8];

/// How the keys of a folder are known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Proof {
    /// The configuration or something in the folder proves them.
    Given,
    /// The configuration is lost. The keys open the folder as one of those that it may be.
    Tried,
    /// Nothing proves them.
    None,
}

/// The warning for a folder in which nothing proves the master key.
const UNPROVEN: &str = "The master key could not be checked: the folder has no file or name to try it on.";

/// The warning for a folder without its configuration.
const TRIED: &str = "gocryptfs.conf is missing. The folder's properties were found by trying them, and it can only be read. claviger change \
                     makes a new gocryptfs.conf.";

/// A key for one purpose.
pub(super) fn derived(master: &Secret, info: &str, len: usize) -> Secret {
    let mut key = Secret::zeroed(len);
    SHA256.hkdf(master, &[], info.as_bytes(), &mut key);
    key
}

/// An unlocked folder: its keys, or a handle to them, and its properties.
pub(super) struct Keys {
    keys: Arc<dyn FolderKeys>,
    public: Public,
    /// What seals messages that are in no file: targets of links, and values of attributes.
    messages: SealedLayout,
}

/// The properties of a folder that need no key.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Public {
    names: NameEncryption,
    /// Whether Base64 has no padding.
    raw64: bool,
    longest_name: Option<usize>,
    proof: Proof,
}

impl Public {
    fn base64(&self) -> &'static GeneralPurpose {
        if self.raw64 { &URL_SAFE_NO_PAD } else { &URL_SAFE }
    }
}

/// The keys themselves.
struct Secrets {
    sealing: Sealing,
    names: Eme,
    base64: &'static GeneralPurpose,
}

impl Secrets {
    fn new(config: &Config, master: &Secret, base64: &'static GeneralPurpose, acceleration: Acceleration) -> Self {
        let eme = match config.hkdf {
            true => aes::AES.with_key(&derived(master, NAMES_INFO, KEY), acceleration),
            false => aes::AES.with_key(master, acceleration),
        };
        let names = Eme::new(eme);
        wipe_after_sectors();
        Self { sealing: sealing(config, master, acceleration), names, base64 }
    }

    /// The layout of the file with this ID; of messages, if it has none.
    fn layout(&self, id: &[u8]) -> SealedLayout {
        let sealing = BlockSealing::Here { sealing: self.sealing.clone(), beside: id.to_vec() };
        match id {
            [] => SealedLayout { sealing, block: LONGEST_MESSAGE, stored_at: 0, holes: false },
            _ => SealedLayout { sealing, block: BLOCK, stored_at: HEADER as u64, holes: true },
        }
    }
}

impl FolderKeys for Secrets {
    fn open(&self, id: &[u8]) -> io::Result<Option<ContentKey>> {
        match id.len() {
            0 | ID => Ok(Some(ContentKey::Blocks(self.layout(id)))),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn create(&self) -> io::Result<(Vec<u8>, ContentKey)> {
        let mut id = [0; ID];
        random::fill(&mut id)?;
        Ok(([&VERSION[..], &id].concat(), ContentKey::Blocks(self.layout(&id))))
    }

    fn plain_name(&self, iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
        let Ok(mut bytes) = self.base64.decode(stored.as_bytes()) else { return Ok(None) };
        if bytes.is_empty() || !bytes.len().is_multiple_of(16) || bytes.len() > Eme::LONGEST {
            return Ok(None);
        }
        self.names.decrypt(array(iv)?, &mut bytes);
        wipe_after_sectors();
        let padding = usize::from(bytes[bytes.len() - 1]);
        let len = bytes.len().checked_sub(padding).filter(|len| (1..=16).contains(&padding) && *len > 0);
        let padded = |len: &usize| bytes[*len..].iter().all(|byte| usize::from(*byte) == padding);
        Ok(len.filter(padded).map(|len| OsStr::from_bytes(&bytes[..len]).to_owned()))
    }

    /// The name padded to whole blocks with bytes that say how many they are (nametransform/pad16.go), encrypted, in Base64.
    fn stored_name(&self, iv: &[u8], plain: &OsStr) -> io::Result<OsString> {
        if plain.len() > LONGEST {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut bytes = plain.as_bytes().to_vec();
        let padding = 16 - bytes.len() % 16;
        bytes.resize(bytes.len() + padding, padding as u8);
        self.names.encrypt(array(iv)?, &mut bytes);
        wipe_after_sectors();
        Ok(self.base64.encode(bytes).into())
    }
}

impl Keys {
    /// Keys held in this process.
    pub fn new(config: &Config, master: &Secret, proof: Proof, acceleration: Acceleration) -> Self {
        let Config { names, raw64, longest_name, .. } = *config;
        let public = Public { names, raw64, longest_name, proof };
        let secrets = Secrets::new(config, master, public.base64(), acceleration);
        Self { messages: secrets.layout(&[]), keys: Arc::new(secrets), public }
    }

    /// Keys held in the key process.
    pub fn with_key_process(outline: KeylessFolder, key_process: Arc<dyn FolderKeyProcess>) -> Result<Self> {
        let keys: Arc<dyn FolderKeys> = Arc::new(FolderKeyHandle::new(key_process, &outline)?);
        let public = Public::deserialize(outline.of_format).map_err(io::Error::from)?;
        let messages = opened(&*keys, &[])?;
        let messages = SealedLayout { block: LONGEST_MESSAGE, stored_at: 0, holes: false, ..messages };
        Ok(Self { keys, public, messages })
    }

    fn layout_of(&self, id: [u8; ID]) -> io::Result<SealedLayout> {
        opened(&*self.keys, &id)
    }

    /// The header of a file. `None` if nothing was written to it yet: it is empty, or a header alone.
    fn id(&self, of: StoredFile<'_>) -> io::Result<Option<[u8; ID]>> {
        let mut header = [0; HEADER + 1];
        match of.tree.read_at(of.contents, 0, &mut header)? {
            0 | HEADER => Ok(None),
            len if len < HEADER => Err(cut_header()),
            _ => id(&header).map(Some),
        }
    }

    /// The target of a link as it is stored, from its sealed form.
    ///
    /// # Errors
    /// `InvalidFilename` if it is too long.
    pub fn stored_sealed_target(&self, sealed: &[u8]) -> io::Result<OsString> {
        let stored = self.public.base64().encode(sealed);
        if stored.len() > TARGET_MOST { Err(Errno::NAMETOOLONG.into()) } else { Ok(stored.into()) }
    }

    /// Opens the first block of a file: proves the key. `None` if the file has none.
    pub fn opens(&self, of: StoredFile<'_>) -> io::Result<Option<bool>> {
        let overhead = self.messages.sealing.overhead();
        let mut start = vec![0; HEADER + BLOCK + overhead];
        let len = of.tree.read_at(of.contents, 0, &mut start)?;
        let (header, block) = start[..len].split_at(len.min(HEADER));
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let Ok(id) = id(header) else { return Ok(None) };
        Ok(Some(self.layout_of(id)?.open_message(block)?.is_some()))
    }
}

/// The layout of the file with this ID; of messages, if it has none. Keys open all of them.
fn opened(keys: &dyn FolderKeys, id: &[u8]) -> io::Result<SealedLayout> {
    keys.open(id)?.ok_or(io::ErrorKind::InvalidData)?.blocks()
}

/// The ID in a file's header.
pub(super) fn id(header: &[u8]) -> io::Result<[u8; ID]> {
    let Some((version, id)) = header.split_first_chunk::<2>() else {
        return Err(cut_header());
    };
    if *version != VERSION {
        let found = u16::from_be_bytes(*version);
        return Err(damaged("header", 0, format!("not a gocryptfs file: version {found}, not 2")));
    }
    match id.first_chunk::<ID>() {
        Some(id) if *id != [0; ID] => Ok(*id),
        Some(_) => Err(damaged("header", 2, "the file's ID is zero")),
        None => Err(damaged("header", 2, "the file ends in its header")),
    }
}

/// What seals contents.
pub(super) fn sealing(config: &Config, master: &Secret, acceleration: Acceleration) -> Sealing {
    let cipher: Box<dyn MessageCipher> = match (config.cipher, config.hkdf) {
        (ContentCipher::AesGcm, true) => aead::gcm(&derived(master, GCM_INFO, KEY), NONCE, acceleration),
        (ContentCipher::AesGcm, false) => aead::gcm(master, NONCE, acceleration),
        (ContentCipher::AesSiv, true) => aead::siv(&derived(master, SIV_INFO, 2 * KEY), acceleration),
        (ContentCipher::AesSiv, false) => {
            // Two keys from one (cryptocore/cryptocore.go).
            let mut keys = Secret::zeroed(2 * KEY);
            SHA512.digest(&[master], &mut keys);
            aead::siv(&keys, acceleration)
        }
        (ContentCipher::XChaCha20Poly1305, _) => {
            let key = derived(master, XCHACHA_INFO, KEY);
            aead::xchacha20_poly1305(key.first_chunk().expect("as long"))
        }
    };
    wipe_after_sectors();
    Sealing { cipher: cipher.into(), tag_first: config.cipher == ContentCipher::AesSiv }
}

/// An IV of names. Another process may send anything.
fn array(iv: &[u8]) -> io::Result<&[u8; IV]> {
    iv.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn clear_attribute(name: &OsStr) -> bool {
    CLEAR_ATTRIBUTES.iter().any(|clear| name == *clear)
}

impl FileKeys for Keys {
    fn layout(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        Ok(match self.id(of)? {
            Some(id) => FileKind::Sealed(self.layout_of(id)?),
            None => FileKind::Unfinished,
        })
    }

    /// Needs no header.
    fn size(&self, of: StoredFile<'_>) -> io::Result<Option<u64>> {
        match of.tree.attributes(of.contents)?.size {
            stored if (1..HEADER as u64).contains(&stored) => Err(cut_header()),
            stored => {
                let blocks = stored.saturating_sub(HEADER as u64);
                Ok(Some(plain_size(blocks, BLOCK, self.messages.sealing.overhead())))
            }
        }
    }

    fn begins_at_once(&self) -> bool {
        false
    }

    fn begin(&self, of: StoredFile<'_>) -> io::Result<FileKind> {
        let (header, key) = self.keys.create()?;
        of.tree.write_at(of.contents, 0, &header)?;
        Ok(FileKind::Sealed(key.blocks()?))
    }

    fn set_size(&self, _of: StoredFile<'_>, _size: u64) -> io::Result<()> {
        Err(Error::misuse("a gocryptfs file has no size in its header").into())
    }

    fn name_iv(&self, of: StoredFolder<'_>) -> io::Result<NameIv> {
        if self.public.names != NameEncryption::PerFolder {
            return Ok([0; IV].into());
        }
        let what =
            |what: &str| damaged(FOLDER_FILE.name, 0, format!("{what}: without it, names in this folder are lost"));
        let bytes = match of.read(FOLDER_FILE.name.as_ref(), FOLDER_FILE.len) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(what("the file is missing")),
            read => read?,
        };
        match bytes.and_then(|bytes| <[u8; IV]>::try_from(bytes).ok()) {
            Some(iv) if iv != [0; IV] => Ok(iv.into()),
            _ => Err(what("the file does not hold 16 random bytes")),
        }
    }

    fn role(&self, stored: &OsStr, in_root: bool) -> NameRole {
        let is_own = in_root && stored == CONFIG || self.folder_file().is_some_and(|own| stored == own.name);
        let long = self.public.longest_name.is_some() && stored.as_bytes().starts_with(SHORTENED.as_bytes());
        match stored.as_bytes().strip_suffix(WHOLE.as_bytes()) {
            _ if is_own => NameRole::Own,
            Some(short) if long => NameRole::WholeNameOf(OsStr::from_bytes(short).to_owned()),
            None if long => {
                let mut whole_in = stored.to_owned();
                whole_in.push(WHOLE);
                NameRole::Shortened { whole_in }
            }
            _ => NameRole::Name,
        }
    }

    fn shortened(&self, stored: &OsStr) -> Option<OsString> {
        if stored.len() <= self.public.longest_name? {
            return None;
        }
        let mut hash = [0; 32];
        SHA256.checksum(&[stored.as_bytes()], &mut hash);
        Some(format!("{SHORTENED}{}", self.public.base64().encode(hash)).into())
    }

    fn folder_file(&self) -> Option<FolderFile> {
        (self.public.names == NameEncryption::PerFolder).then_some(FOLDER_FILE)
    }

    fn plain_name(&self, stored: &OsStr, iv: &NameIv) -> io::Result<Option<OsString>> {
        if self.encrypts_names() { self.keys.plain_name(iv, stored) } else { Ok(Some(stored.to_owned())) }
    }

    fn why_no_name(&self, stored: &OsStr) -> Error {
        let begins = |start: &str| stored.as_bytes().starts_with(start.as_bytes());
        no_name(match stored {
            _ if begins(FOLDER_FILE.unfinished) => {
                "it is left over from making or removing a folder, and can be removed"
            }
            _ if begins(NEW_CONFIG) => "it is left over from a change of the password, and can be removed",
            _ if begins(FOLDER_FILE.name) => "it is left over from a folder that gocryptfs removed, and can be removed",
            _ if self.public.base64().decode(stored.as_bytes()).is_err() => "the name is not encrypted",
            _ => "the name does not decrypt: it was changed, moved from another folder, or has another key",
        })
    }

    fn encrypts_names(&self) -> bool {
        self.public.names != NameEncryption::None
    }

    fn stored_name(&self, plain: &OsStr, iv: &NameIv) -> io::Result<OsString> {
        if plain.len() > LONGEST {
            return Err(Errno::NAMETOOLONG.into());
        }
        if !self.encrypts_names() {
            return Ok(plain.to_owned());
        }
        match self.keys.stored_name(iv, plain)? {
            stored if self.public.longest_name.is_none() && stored.len() > LONGEST => Err(Errno::NAMETOOLONG.into()),
            stored => Ok(stored),
        }
    }

    fn longest_name(&self, stored: u32) -> u32 {
        match self.public.longest_name {
            _ if !self.encrypts_names() => stored,
            Some(_) => LONGEST as u32,
            // At least one byte is padding.
            None => (base64::decoded_len_estimate(stored as usize) / 16 * 16).saturating_sub(1) as u32,
        }
    }

    fn plain_target(&self, stored: OsString) -> io::Result<OsString> {
        if !self.encrypts_names() || stored.is_empty() {
            return Ok(stored);
        }
        let sealed = self.public.base64().decode(stored.as_bytes()).unwrap_or_default();
        let plain = self.messages.open_message(&sealed)?;
        plain.map(OsString::from_vec).ok_or_else(|| damaged("target", 0, "it does not decrypt with this key"))
    }

    fn stored_target(&self, plain: &OsStr) -> io::Result<OsString> {
        if !self.encrypts_names() || plain.is_empty() {
            return Ok(plain.to_owned());
        }
        self.stored_sealed_target(&self.messages.seal_message(plain.as_bytes())?)
    }

    fn stored_attribute(&self, plain: &OsStr) -> io::Result<OsString> {
        Ok(match clear_attribute(plain) {
            true => plain.to_owned(),
            false => {
                let mut stored = OsString::from(ATTRIBUTE);
                stored.push(self.keys.stored_name(ATTRIBUTE_IV, plain)?);
                stored
            }
        })
    }

    fn plain_attribute(&self, stored: OsString) -> io::Result<Option<OsString>> {
        if clear_attribute(&stored) {
            return Ok(Some(stored));
        }
        let name = stored.as_bytes().strip_prefix(ATTRIBUTE.as_bytes());
        name.map_or(Ok(None), |name| self.keys.plain_name(ATTRIBUTE_IV, OsStr::from_bytes(name)))
    }

    fn stored_value(&self, name: &OsStr, value: &[u8]) -> io::Result<Vec<u8>> {
        // An empty value is stored as it is.
        match clear_attribute(name) || value.is_empty() {
            true => Ok(value.to_vec()),
            false => self.messages.seal_message(value),
        }
    }

    fn plain_value(&self, name: &OsStr, stored: Vec<u8>) -> io::Result<Vec<u8>> {
        if clear_attribute(name) || stored.is_empty() {
            return Ok(stored);
        }
        let mut plain = self.messages.open_message(&stored)?;
        // Old versions stored Base64.
        if plain.is_none()
            && let Ok(stored) = self.public.base64().decode(&stored)
        {
            plain = self.messages.open_message(&stored)?;
        }
        plain.ok_or_else(|| damaged("attribute", 0, "its value does not decrypt with this key"))
    }

    fn proven(&self) -> bool {
        self.public.proof != Proof::None
    }

    fn warnings(&self) -> Vec<String> {
        match self.public.proof {
            Proof::Given => Vec::new(),
            Proof::Tried => vec![TRIED.to_owned()],
            Proof::None => vec![UNPROVEN.to_owned()],
        }
    }

    /// What is written with other properties than the folder had could not be read with those.
    fn read_only(&self) -> bool {
        self.public.proof == Proof::Tried
    }

    fn split_keys(&self) -> Result<(KeylessFolder, Arc<dyn FolderKeys>)> {
        let of_format = serde_json::to_value(self.public).map_err(io::Error::from)?;
        Ok((
            KeylessFolder { of_format, contents: KeylessContents::of(&self.layout_of([0; ID])?) },
            Arc::clone(&self.keys),
        ))
    }
}
