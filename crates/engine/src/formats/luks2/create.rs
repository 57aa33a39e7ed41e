//! Creates a volume as cryptsetup does (lib/luks2/luks2_json_format.c, `LUKS2_generate_hdr`), with its defaults.

use std::sync::Arc;

use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::modes::{AuthenticatedCipher, aead};
use claviger_crypto::{Acceleration, Secret};

use super::binary::{Binary, SIZES};
use super::keyslots::{self, KeyslotParameters};
use super::metadata::{Config, Decimal, Id, Integrity, Metadata, MetadataSegment, Size};
use super::{change, slots, validate, write};
use crate::credential::{Credential, Unlock};
use crate::edit::Edit;
use crate::error::{Error, Result};
use crate::formats::filling::{self, not_cancelled};
use crate::formats::luks::kdf::{self, Kdf};
use crate::formats::luks::{passphrase, uuid};
use crate::formats::{Choices, stored_behind};
use crate::spec::Spec;
use crate::store::Store;
use crate::volume::integrity;

/// The offset of the data, in bytes: headers and keyslots take 16 MiB (`LUKS2_DEFAULT_HDR_SIZE`).
pub(super) const DATA_OFFSET: u64 = 16 << 20;

/// Size of one copy of the header, in bytes (`LUKS2_HDR_16K_LEN`).
const METADATA_SIZE: u64 = SIZES[0];

/// The default cipher of the data (cryptsetup's configure.ac, `luks1-cipher`, `luks1-mode`; with a key of 512 bits, as is usual).
pub(super) const CIPHER: &str = "aes-xts-plain64";

/// The smallest volume, in bytes: one sector of data after everything.
pub(super) const MIN_LEN: u64 = DATA_OFFSET + 4096;

/// The choices for new volumes, defaults first. Any cipher in dm-crypt's notation is accepted.
pub(super) fn choices() -> Choices {
    let ciphers = vec![CIPHER, "serpent-xts-plain64", "twofish-xts-plain64", "camellia-xts-plain64"];
    let hashes = vec!["sha256", "sha512", "sha1", "ripemd160", "whirlpool"];
    Choices { ciphers, hashes, complete: false, min_len: MIN_LEN }
}

/// Creates a volume that fills `store`, or has its header in `store` and its data in `spec.data`.
///
/// Old contents are erased first: no old header may open a half-created volume. The new header comes last, with the primary copy at
/// the very end.
pub(super) fn create(store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
    let passphrase = passphrase(first)?;
    let plan = NewLuks2::of(store.len(), spec)?;
    let key = volume_key(spec, plan.key_len)?;
    let with = Unlock { cancel: spec.cancel, ..Unlock::with(&[]) };
    let hash = keyslots::hash_of(spec.hash)?;
    let how = KeyslotParameters::new(&plan.cipher, plan.key_len, spec.hash)?;
    let kdf = Kdf::choose(&spec.cost, kdf::LUKS2, hash, how.cipher_key, spec.cancel)?;
    let (keyslot, area) = keyslots::sealed(2 * plan.hdr_size, &key, passphrase, &how, &kdf, &with, 0)?;
    let mut digest = keyslots::digest_of(&key, hash, &spec.cost, &with)?;
    digest.keyslots.push(Id(0));
    digest.segments.push(Id(0));
    let metadata = Metadata {
        keyslots: [(0, keyslot)].into(),
        tokens: Default::default(),
        segments: [(0, plan.segment())].into(),
        digests: [(0, digest)].into(),
        config: Config {
            json_size: Decimal(plan.hdr_size - super::binary::LEN as u64),
            keyslots_size: Decimal(plan.keyslots_size),
            flags: Vec::new(),
            requirements: None,
            other: Default::default(),
        },
        other: Default::default(),
    };
    let mut steps = vec![area];
    steps.extend(write::first_steps(&plan.binary(spec)?, &metadata)?);

    filling::random(store, 0..plan.header_end(), spec)?;
    store.flush()?;
    let data = spec.data.unwrap_or(store);
    match plan.authenticated(&key)? {
        // Without tags nothing could be read, so this area is always filled.
        Some(cipher) => {
            let (at, len) = (plan.data_offset, data.len() - plan.data_offset);
            let mut tell = |done, total| filling::progressed(spec, done, total);
            integrity::format(data, at, len, &*cipher, &mut tell)?;
        }
        None if spec.quick => {}
        None => {
            filling::fill(data, plan.data_offset..data.len(), spec)?;
            data.flush()?;
        }
    }
    not_cancelled(spec)?;
    let written = Edit::new(steps).carry_out(store);
    written.inspect_err(|_| {
        // An error here is ignored: the store may be gone.
        let _ = filling::random(store, 0..plan.header_end(), &Spec::default()).and_then(|()| Ok(store.flush()?));
    })
}

/// Checks everything but the credentials.
pub(super) fn check_spec(len: u64, spec: &Spec<'_>) -> Result<()> {
    let plan = NewLuks2::of(len, spec)?;
    plan.binary(spec)?;
    volume_key(spec, plan.key_len)?;
    keyslots::hash_of(spec.hash).map(drop)
}

/// The store size for `plain` bytes of plaintext after both copies of the header and the keyslots, in bytes.
pub(super) fn stored_len(plain: u64, spec: &Spec<'_>) -> Result<u64> {
    if spec.integrity.is_some() {
        // The size of tags and journal depends on the store's size in turn.
        return Err(Error::unsupported("sizing a volume with integrity protection by its contents")
            .hint("Create the volume first, about 10 % larger than its contents."));
    }
    let (_, key_len) = cipher(spec)?;
    let room = spec.metadata_size.unwrap_or(METADATA_SIZE).saturating_mul(2);
    stored_behind(spec.data_offset.unwrap_or(data_offset(room, key_len)), plain, spec)
}

/// The default offset of the data after `room` bytes of headers.
fn data_offset(room: u64, key_len: usize) -> u64 {
    DATA_OFFSET.max(room.saturating_add(keyslots_at_least(key_len)))
}

/// What creates the tags, and its name in LUKS2.
type Tagged = (aead::AeadSpecification, &'static str);

/// The positions of everything in a new volume.
struct NewLuks2 {
    cipher: String,
    /// What creates the tags, and its name in the header.
    integrity: Option<Tagged>,
    key_len: usize,
    sector_size: u32,
    hdr_size: u64,
    keyslots_size: u64,
    /// The offset in the data's store; 0 if that is not the header's store.
    data_offset: u64,
}

impl NewLuks2 {
    fn of(store_len: u64, spec: &Spec<'_>) -> Result<Self> {
        let (cipher, integrity, key_len) = match spec.integrity {
            None => cipher(spec).map(|(cipher, len)| (cipher, None, len))?,
            Some(name) => authenticated(spec, name).map(|(cipher, tagged, len)| (cipher, Some(tagged), len))?,
        };
        let hdr_size = spec.metadata_size.unwrap_or(METADATA_SIZE);
        if !SIZES.contains(&hdr_size) {
            let all: Vec<_> = SIZES.iter().map(|size| format!("{}K", size >> 10)).collect();
            return Err(Error::misuse(format!("{hdr_size} bytes is not a valid metadata size"))
                .hint(format!("Use one of {}.", all.join(", "))));
        }
        let detached = spec.data.is_some();
        let room = 2 * hdr_size;
        let default = if detached { 0 } else { data_offset(room, key_len) };
        let data_offset = spec.data_offset.unwrap_or(default);
        if !data_offset.is_multiple_of(4096) {
            return Err(Error::misuse(format!(
                "data cannot begin at byte {data_offset}, which is not a multiple of 4096"
            )));
        }
        let limit = if detached { store_len } else { data_offset };
        let end = spec.keyslots_size.map_or(Ok(limit.min(room.max(DATA_OFFSET))), |size| exact(room, size))?;
        let keyslots_size = end.saturating_sub(room).min(validate::KEYSLOTS_SIZE) / slots::BLOCK * slots::BLOCK;
        if keyslots_size < slots::area_len(key_len) || room + keyslots_size > limit {
            let least = room + spec.keyslots_size.unwrap_or(0).max(slots::area_len(key_len));
            return Err(Error::misuse(format!(
                "the header and keyslots need {least} bytes, but only {limit} are available"
            )));
        }
        let device = spec.data.map_or(store_len, |data| data.len());
        let data_len = device.saturating_sub(data_offset);
        let sector_size = sector_size(spec, data_len)?;
        if data_len < u64::from(sector_size) {
            return Err(Error::misuse(format!("there is no room for data after byte {data_offset}")));
        }
        if let Some((aead, _)) = &integrity {
            integrity::capacity(data_len, device, aead.tag_size(), sector_size as usize)?;
        }
        Ok(Self { cipher, integrity, key_len, sector_size, hdr_size, keyslots_size, data_offset })
    }

    /// The cipher of sectors with tags.
    fn authenticated(&self, key: &Secret) -> Result<Option<Arc<dyn AuthenticatedCipher>>> {
        let Some((specification, _)) = &self.integrity else { return Ok(None) };
        let sectors = Sectors { size: self.sector_size as usize, ..Sectors::default() };
        let cipher = specification.with_key(key, sectors, Acceleration::On);
        Ok(Some(cipher.map_err(|e| Error::misuse(e.to_string()))?))
    }

    fn header_end(&self) -> u64 {
        2 * self.hdr_size + self.keyslots_size
    }

    fn segment(&self) -> MetadataSegment {
        MetadataSegment {
            kind: "crypt".into(),
            offset: Decimal(self.data_offset),
            size: Size::Dynamic,
            iv_tweak: Some(Decimal(0)),
            encryption: Some(self.cipher.clone()),
            sector_size: Some(self.sector_size),
            integrity: self.integrity.as_ref().map(|(_, kind)| Integrity {
                kind: (*kind).to_owned(),
                journal_encryption: "none".into(),
                journal_integrity: "none".into(),
                other: Default::default(),
            }),
            flags: Vec::new(),
            other: Default::default(),
        }
    }

    fn binary(&self, spec: &Spec<'_>) -> Result<Binary> {
        Ok(Binary {
            hdr_size: self.hdr_size,
            seqid: 1,
            label: change::text("label", spec.label.unwrap_or_default())?,
            csum_alg: "sha256".into(),
            salt: write::salt()?,
            uuid: spec.uuid.map_or_else(uuid::random, uuid::parse)?.into_bytes(),
            subsystem: change::text("subsystem", spec.subsystem.unwrap_or_default())?,
        })
    }
}

/// The space for a few keyslots.
fn keyslots_at_least(key_len: usize) -> u64 {
    8 * slots::area_len(key_len)
}

fn exact(room: u64, keyslots_size: u64) -> Result<u64> {
    if keyslots_size > validate::KEYSLOTS_SIZE || !keyslots_size.is_multiple_of(slots::BLOCK) {
        return Err(Error::misuse(format!("the keyslots area cannot have {keyslots_size} bytes"))
            .hint("Use a multiple of 4096 bytes, up to 128 MiB."));
    }
    Ok(room + keyslots_size)
}

/// Returns the cipher in dm-crypt's notation, and the size of its key in bytes.
fn cipher(spec: &Spec<'_>) -> Result<(String, usize)> {
    let name = spec.cipher.unwrap_or(CIPHER);
    // A cipher without a mode gets the usual one.
    let text = if name.contains('-') { name.to_owned() } else { format!("{}-xts-plain64", name.to_ascii_lowercase()) };
    let known = Specification::parse(&text).map_err(|e| Error::misuse(e.to_string()))?;
    let sizes = known.key_sizes();
    Ok((text.clone(), key_len(spec, &text, &sizes, 0)?))
}

/// Returns the cipher, the authentication, and the size of the key in bytes. As in cryptsetup, the key of a MAC is added to the
/// requested size.
fn authenticated(spec: &Spec<'_>, name: &str) -> Result<(String, Tagged, usize)> {
    // People name these by the cipher alone; the header uses two names.
    let with_cipher = match name {
        "aes-gcm-random" | "aes-ccm-random" | "aegis128-random" => Some((name, "aead")),
        "chacha20-poly1305" => Some(("chacha20-random", "poly1305")),
        _ => None,
    };
    if with_cipher.is_some() && spec.cipher.is_some() {
        return Err(Error::misuse(format!("{name} includes its cipher")).hint("Omit the cipher."));
    }
    let (cipher, name) = with_cipher.map_or((spec.cipher, name), |(cipher, name)| (Some(cipher), name));
    let known = aead::AeadSpecification::choose(cipher, name);
    let (specification, cipher, kind) = known.map_err(|e| {
        Error::misuse(e.to_string()).hint(
            "Use hmac-sha256 or hmac-sha512 with a cipher such as aes-xts-random; aead with aes-gcm-random, \
             aes-ccm-random or aegis128-random; or poly1305 with chacha20-random.",
        )
    })?;
    if specification.repeats_vectors() {
        return Err(Error::misuse(format!("{cipher} reuses each sector's IV on every write"))
            .hint("That makes this mode insecure. Use the same cipher with \"random\" instead of \"plain64\"."));
    }
    let len = key_len(spec, &cipher, &specification.key_sizes(), specification.mac_key_size())?;
    Ok((cipher, (specification, kind), len))
}

/// Returns the size of a key among `sizes`, in bytes. Its last `mac` bytes are the MAC's key.
fn key_len(spec: &Spec<'_>, text: &str, sizes: &[usize], mac: usize) -> Result<usize> {
    let fits = |len: &usize| sizes.contains(len);
    let len = match (spec.key_bits, spec.volume_key) {
        (Some(bits), _) if !bits.is_multiple_of(8) => {
            return Err(Error::misuse(format!("a key of {bits} bits is not a whole number of bytes")));
        }
        (Some(bits), _) => bits as usize / 8 + mac,
        (None, Some(key)) => key.len(),
        (None, None) => [64 + mac, 32 + mac].into_iter().find(fits).or(sizes.iter().max().copied()).unwrap_or(0),
    };
    if !fits(&len) {
        let all: Vec<_> = sizes.iter().map(|size| ((size - mac) * 8).to_string()).collect();
        return Err(Error::misuse(format!("{text} takes no {}-bit key", len.saturating_sub(mac) * 8))
            .hint(format!("It takes a key of {} bits.", all.join(", "))));
    }
    Ok(len)
}

fn volume_key(spec: &Spec<'_>, len: usize) -> Result<Secret> {
    let Some(given) = spec.volume_key else {
        let mut key = Secret::zeroed(len);
        write::random(&mut key)?;
        return Ok(key);
    };
    if given.len() != len {
        return Err(Error::misuse(format!("the volume key has {} bits, not {}", given.len() * 8, len * 8)));
    }
    Ok(Secret::copy_from(given))
}

/// 4096 bytes, which is faster, if the data consist of whole sectors of that size; otherwise 512.
fn sector_size(spec: &Spec<'_>, data_len: u64) -> Result<u32> {
    match spec.sector_size {
        None if data_len.is_multiple_of(4096) => Ok(4096),
        None => Ok(512),
        Some(size @ (512 | 1024 | 2048 | 4096)) if data_len.is_multiple_of(u64::from(size)) => Ok(size),
        Some(size @ (512 | 1024 | 2048 | 4096)) => {
            Err(Error::misuse(format!("{data_len} bytes of data are not a whole number of {size}-byte sectors")))
        }
        Some(size) => {
            Err(Error::misuse(format!("{size} bytes is not a valid sector size")).hint("Use 512, 1024, 2048 or 4096."))
        }
    }
}
