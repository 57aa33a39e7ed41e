//! The parts of a header that need no passphrase: what `cryptsetup luksDump` shows.

use serde::Serialize;

use super::header::{Phdr, Slot};
use super::unlock::looked_at;
use crate::formats::{Pbkdf2Facts, luks};
use crate::hex;
use crate::store::Store;

/// The facts in a LUKS1 header apart from its keyslots.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks1Facts {
    /// 1.
    pub version: u32,
    /// The UUID, unless it is not text.
    pub uuid: Option<String>,
    /// The cipher in dm-crypt's notation: `aes-xts-plain64`.
    pub cipher: String,
    /// The hash of all derivations, as the header spells it.
    pub hash: String,
    /// The size of the volume key, in bits.
    pub key_bits: usize,
    /// The offset of the data, in bytes.
    pub payload_offset: u64,
    /// The digest that identifies the volume key.
    pub digest: Luks1Digest,
}

/// The digest that identifies a LUKS1 volume key.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks1Digest {
    /// Its derivation from the volume key.
    #[serde(flatten)]
    pub kdf: Pbkdf2Facts,
    /// The salt, in hexadecimal digits.
    pub salt: String,
    /// The digest, in hexadecimal digits.
    pub digest: String,
}

/// A keyslot of LUKS1.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks1Keyslot {
    /// Its number, from 0 to 7.
    pub keyslot: u32,
    /// Whether it is in use.
    pub active: bool,
    /// The derivation of its key, if it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kdf: Option<Pbkdf2Facts>,
    /// The salt of that derivation, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
    /// The area with its key.
    pub area: Luks1Area,
    /// Its damage: that of its record, or what in its area does not look random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// The area with the key of a LUKS1 keyslot.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Luks1Area {
    /// Its offset, in bytes of the store.
    pub offset: u64,
    /// Its size, in bytes.
    pub size: u64,
    /// How many stripes the key is split into.
    pub stripes: u32,
}

pub(super) fn facts(header: &Phdr) -> Luks1Facts {
    Luks1Facts {
        version: 1,
        uuid: header.uuid.clone(),
        cipher: header.specification(),
        hash: header.hash_name.clone(),
        key_bits: header.key_len * 8,
        payload_offset: header.data_start(),
        digest: Luks1Digest {
            kdf: Pbkdf2Facts::new(&*header.hash_name, header.digest_iterations),
            salt: hex::digits(header.digest_salt()),
            digest: hex::digits(header.digest()),
        },
    }
}

pub(super) fn keyslots(header: &Phdr, store: &dyn Store) -> impl Iterator<Item = Luks1Keyslot> {
    (0..).zip(&header.slots).map(move |(number, slot)| keyslot(header, store, number, slot))
}

fn keyslot(header: &Phdr, store: &dyn Store, number: u32, slot: &Slot) -> Luks1Keyslot {
    let area = slot.area(header.key_len);
    Luks1Keyslot {
        keyslot: number,
        active: slot.active,
        kdf: slot.active.then(|| Pbkdf2Facts::new(&*header.hash_name, slot.iterations)),
        salt: slot.active.then(|| hex::digits(&slot.salt)),
        area: Luks1Area { offset: area.start, size: area.end - area.start, stripes: slot.stripes },
        damaged: damage(header, store, number, slot),
    }
}

/// The damage of its record or, if that is intact, of its area.
fn damage(header: &Phdr, store: &dyn Store, number: u32, slot: &Slot) -> Option<String> {
    match &slot.trouble {
        Some(trouble) => Some(trouble.what.clone()),
        None if slot.active => luks::damage_shown(looked_at(header, store, number as usize, slot)),
        None => None,
    }
}
