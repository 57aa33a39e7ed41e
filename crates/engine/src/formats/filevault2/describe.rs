//! What the metadata say without any credential: what `cryptsetup fvault2Dump` and `fvdeinfo` show.

use serde::Serialize;

use super::context::{Context, User};
use super::{CIPHER, FileVault2Header, MODE, uuid_text};
use crate::formats::header_facts::{FormatFacts, HeaderFacts, Pbkdf2Facts};
use crate::hex;

/// What the metadata of a FileVault 2 volume say.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileVault2Facts {
    /// Version of the volume header: 1.
    pub version: u32,
    /// The physical volume.
    pub physical_volume: PhysicalVolumeFacts,
    /// The logical volume, which is encrypted.
    pub logical_volume: LogicalVolumeFacts,
    /// The cipher as dm-crypt writes it.
    pub cipher: String,
    /// Bits of the volume key with that of the tweaks.
    pub key_bits: u32,
    /// What the volume is unlocked with. Nothing where nobody opens it.
    pub encryption_context: Option<EncryptionContextFacts>,
}

/// What the volume header of Core Storage says.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PhysicalVolumeFacts {
    /// Its UUID.
    pub uuid: String,
    /// The UUID of its group.
    pub group: String,
    /// Its size, in bytes.
    pub size: u64,
    /// Size of its blocks, in bytes.
    pub block_size: u64,
}

/// What the metadata of Core Storage say of a logical volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogicalVolumeFacts {
    /// Its UUID.
    pub uuid: Option<String>,
    /// The UUID of its family.
    pub family: String,
    /// Its name.
    pub name: Option<String>,
    /// Bytes of plaintext.
    pub size: u64,
    /// The block from which its parts count.
    pub first_block: u64,
    /// Its parts, in order.
    pub parts: Vec<LogicalVolumePart>,
}

/// Blocks of a logical volume that follow each other.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogicalVolumePart {
    /// The first of them, in the logical volume.
    pub logical_block: u64,
    /// How many there are.
    pub blocks: u64,
    /// The first of them, on the disk.
    pub physical_block: u64,
    /// The number of the disk.
    pub disk: u16,
}

/// What a FileVault 2 volume is unlocked with.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum EncryptionContextFacts {
    /// It is sound.
    Sound {
        /// How far the volume is encrypted.
        conversion: Option<FileVault2Conversion>,
        /// Who opens it.
        users: Vec<FileVault2User>,
        /// How many volume keys there are.
        volume_keys: usize,
    },
    /// It is not.
    Damaged {
        /// What is wrong with it.
        damaged: String,
    },
}

/// How far a FileVault 2 volume is encrypted, in the words of Core Storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum FileVault2Conversion {
    /// It has always been.
    NoConversion,
    /// It is, since a conversion ended.
    Complete,
    /// Something else: only a part of it is.
    #[serde(untagged)]
    Other(String),
}

impl From<&str> for FileVault2Conversion {
    fn from(word: &str) -> Self {
        match word {
            "NoConversion" => Self::NoConversion,
            "Complete" => Self::Complete,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Who opens a FileVault 2 volume: a person, or a recovery key.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileVault2User {
    /// The UUID.
    pub uuid: Option<String>,
    /// The name of the person.
    pub name: Option<String>,
    /// A hint at the passphrase.
    pub hint: Option<String>,
    /// A number that nothing documents, in hexadecimal digits.
    pub user_type: Option<String>,
    /// How the key is derived from the passphrase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdf: Option<Pbkdf2Facts>,
    /// The salt of that, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
    /// What is wrong with what the passphrase opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

pub(super) fn describe(header: &FileVault2Header) -> HeaderFacts {
    let FileVault2Header { header, metadata, .. } = header;
    let volume = &metadata.volume;
    let parts = volume.parts.iter().map(|part| LogicalVolumePart {
        logical_block: part.logical,
        blocks: part.blocks,
        physical_block: part.physical,
        disk: part.disk,
    });
    let facts = FileVault2Facts {
        version: 1,
        physical_volume: PhysicalVolumeFacts {
            uuid: uuid_text(&header.uuid),
            group: uuid_text(&header.group),
            size: header.volume_size,
            block_size: header.block_size,
        },
        logical_volume: LogicalVolumeFacts {
            uuid: volume.uuid.clone(),
            family: uuid_text(&volume.family),
            name: volume.name.clone(),
            size: volume.size,
            first_block: volume.beginning,
            parts: parts.collect(),
        },
        cipher: format!("{CIPHER}-{MODE}"),
        key_bits: 256,
        encryption_context: match &metadata.context {
            Ok(context) => context.as_ref().map(sound),
            Err(trouble) => Some(EncryptionContextFacts::Damaged { damaged: trouble.what.clone() }),
        },
    };
    HeaderFacts::new(None, FormatFacts::FileVault2(facts))
}

fn sound(context: &Context) -> EncryptionContextFacts {
    EncryptionContextFacts::Sound {
        conversion: context.conversion.clone(),
        users: context.users.iter().map(described).collect(),
        volume_keys: context.keys.len(),
    }
}

fn described(user: &User) -> FileVault2User {
    let wrapped = user.wrapped.as_ref();
    FileVault2User {
        uuid: user.uuid.clone(),
        name: user.name.clone(),
        hint: user.hint.clone(),
        user_type: user.kind.map(|kind| format!("{kind:#x}")),
        kdf: wrapped.ok().map(|wrapped| Pbkdf2Facts::new("SHA-256", wrapped.iterations)),
        salt: wrapped.ok().map(|wrapped| hex::digits(&wrapped.salt)),
        damaged: wrapped.err().map(|trouble| trouble.what.clone()),
    }
}
