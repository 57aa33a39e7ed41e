//! The parts of the metadata that need no credential: what `cryptsetup fvault2Dump` and `fvdeinfo` show.

use serde::Serialize;

use super::context::{Context, FileVault2Conversion, User};
use super::{CIPHER, FileVault2Header, MODE};
use crate::formats::Pbkdf2Facts;
use crate::hex;

/// The facts in the metadata of a FileVault 2 volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileVault2Facts {
    /// The version of the volume header: 1.
    pub version: u32,
    /// The physical volume.
    pub physical_volume: PhysicalVolumeFacts,
    /// The logical volume, which is encrypted.
    pub logical_volume: LogicalVolumeFacts,
    /// The cipher in dm-crypt's notation.
    pub cipher: String,
    /// The size of the volume key including the tweak key, in bits.
    pub key_bits: u32,
    /// The encryption context. `None` if the volume has none.
    pub encryption_context: Option<EncryptionContextFacts>,
}

/// The facts in the volume header of Core Storage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PhysicalVolumeFacts {
    /// Its UUID.
    pub uuid: String,
    /// The UUID of its group.
    pub group: String,
    /// Its size, in bytes.
    pub size: u64,
    /// The size of its blocks, in bytes.
    pub block_size: u64,
}

/// The facts about a logical volume in the metadata of Core Storage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogicalVolumeFacts {
    /// Its UUID.
    pub uuid: Option<String>,
    /// The UUID of its family.
    pub family: String,
    /// Its name.
    pub name: Option<String>,
    /// The size of the plaintext, in bytes.
    pub size: u64,
    /// The block from which its parts are counted.
    pub first_block: u64,
    /// Its parts, in order.
    pub parts: Vec<LogicalVolumePart>,
}

/// Consecutive blocks of a logical volume.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogicalVolumePart {
    /// The first block, in the logical volume.
    pub logical_block: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The first block, on the disk.
    pub physical_block: u64,
    /// The number of the disk.
    pub disk: u16,
}

/// The encryption context of a FileVault 2 volume: what it is unlocked with.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum EncryptionContextFacts {
    /// It is sound.
    Sound {
        /// How far the volume is encrypted.
        conversion: Option<FileVault2Conversion>,
        /// The users that can open it.
        users: Vec<FileVault2User>,
        /// The number of volume keys.
        volume_keys: usize,
    },
    /// It is damaged.
    Damaged {
        /// Its damage.
        damaged: String,
    },
}

/// A user that can open a FileVault 2 volume: a person, or a recovery key.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileVault2User {
    /// The UUID.
    pub uuid: Option<String>,
    /// The person's name.
    pub name: Option<String>,
    /// The passphrase hint.
    pub hint: Option<String>,
    /// An undocumented number, in hexadecimal digits.
    pub user_type: Option<String>,
    /// The derivation of the key from the passphrase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdf: Option<Pbkdf2Facts>,
    /// The salt of that derivation, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
    /// The damage of the key that the passphrase opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

pub(super) fn facts(header: &FileVault2Header) -> FileVault2Facts {
    let FileVault2Header { header, metadata, .. } = header;
    let volume = &metadata.volume;
    let parts = volume.parts.iter().map(|part| LogicalVolumePart {
        logical_block: part.logical,
        blocks: part.blocks,
        physical_block: part.physical,
        disk: part.disk,
    });
    FileVault2Facts {
        version: 1,
        physical_volume: PhysicalVolumeFacts {
            uuid: hex::uuid(&header.uuid),
            group: hex::uuid(&header.group),
            size: header.volume_size,
            block_size: header.block_size,
        },
        logical_volume: LogicalVolumeFacts {
            uuid: volume.uuid.clone(),
            family: hex::uuid(&volume.family),
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
    }
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
