//! Volumes of integritysetup: dm-integrity without encryption, which detects damage. The superblock does not record the tags'
//! algorithm. It is found by the size of the tags and by whether they match, or is named as the hash. The key is a keyfile, or the
//! bytes of a passphrase, for keys that were typed.

pub(super) mod describe;
mod tags;

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::Secret;
use claviger_crypto::modes::AuthenticatedCipher;

use super::header_facts::{FormatFacts, HeaderFacts};
use super::takes::{Parameter, Takes, check_opening};
use super::{Facts, Format, Header, HeaderTrace, Unlocked, Verdict, wiped};
use crate::advice::Warning;
use crate::credential::{Credential, Unlock, whole_keyfile};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::volume::Layout;
use crate::volume::integrity::{self, TaggedSectors};
pub use describe::DmIntegrityFacts;
use tags::{Function, Tags};

/// The type of [`DM_INTEGRITY`].
pub struct DmIntegrity(());

/// dm-integrity without dm-crypt above it.
pub static DM_INTEGRITY: DmIntegrity = DmIntegrity(());

/// The name.
const NAME: &str = "dm-integrity";

/// How many sectors are checked for matching tags, at each end and in between.
const LOOKED_AT: u64 = 16;

impl Format for DmIntegrity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traces(&self) -> &'static [HeaderTrace] {
        const { &[HeaderTrace::first(0, integrity::MAGIC)] }
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        let mut start = [0; 8];
        if store.len() >= 8 {
            store.read_at(0, &mut start)?;
        }
        Ok(match &start == integrity::MAGIC {
            true => Verdict::Yes(vec!["it begins with a dm-integrity superblock".into()]),
            false => Verdict::No(vec!["it has no dm-integrity superblock".into()]),
        })
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        let area = || integrity::open_standalone(&**store, 0, store.len());
        // Read again when it is unlocked: other programs may write in between.
        let facts = wiped(NAME, area().map(|area| DmIntegrityFacts::of(&area)))?;
        Ok(Box::new(DmIntegrityHeader { store: Arc::clone(store), facts }))
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::Hash, Parameter::Keyfile, Parameter::VolumeKey] }
    }
}

/// A superblock that has been read.
struct DmIntegrityHeader {
    store: Arc<dyn Store>,
    facts: DmIntegrityFacts,
}

impl Header for DmIntegrityHeader {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        wiped(NAME, self.unlocked(with))
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(NAME, DM_INTEGRITY.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn describe(&self) -> Option<HeaderFacts> {
        Some(HeaderFacts::new(None, FormatFacts::DmIntegrity(self.facts.clone())))
    }

    fn asks_passphrase(&self, _keyfiles: &[Credential]) -> bool {
        false
    }
}

impl DmIntegrityHeader {
    fn unlocked(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        check_opening(NAME, &DM_INTEGRITY.takes(), with)?;
        let key = key(with.credentials)?;
        let area = integrity::open_standalone(&*self.store, 0, self.store.len())?;
        let found = find(&*self.store, &area, key, with.hash)?;
        let mut warnings: Vec<Warning> =
            vec!["This volume is not encrypted: anybody can read it. Its tags only detect damage.".into()];
        if !found.cipher.function.has_key() {
            warnings[0].what.push_str(" They have no key, so deliberate changes stay undetected.");
        }
        if !found.right {
            let what = "No sampled sector has the right tag: the volume was never written to, or uses another hash.";
            warnings.push(what.into());
        }
        if self.facts.sectors_in_journal > 0 {
            let count = area.in_journal();
            let what = "sectors were still in the journal when the volume was last used; they are read from there.";
            warnings.push(format!("{count} {what}").into());
        }
        let (name, key_bits) = (found.cipher.function.name(), found.cipher.key.len() as u32 * 8);
        let segment = integrity::segment(Arc::new(area), 0, Arc::new(found.cipher), true)?;
        let layout = Layout::new(vec![segment])?;
        let facts = Facts { integrity: Some(name), key_bits, ..Facts::new(NAME, "none", "", &layout) };
        let recognised = found.right;
        Ok(Unlocked { warnings, took: begun.elapsed(), recognised, ..Unlocked::new(layout, facts) })
    }
}

/// Returns the given key.
fn key(credentials: &[Credential]) -> Result<Option<&Secret>> {
    match credentials {
        [] => Ok(None),
        [Credential::Keyfile(contents)] => whole_keyfile(contents).map(Some),
        [Credential::VolumeKey(key) | Credential::Passphrase(key)] => Ok(Some(key)),
        [other] => Err(ErrorKind::CredentialKind { format: NAME, kind: other.kind() }.into()),
        _ => Err(Error::misuse("the key is one keyfile; no other credential is accepted")),
    }
}

/// The algorithm of the tags.
struct FoundTags {
    cipher: Tags,
    /// Whether any sector has a matching tag.
    right: bool,
}

fn find(store: &dyn Store, area: &TaggedSectors, key: Option<&Secret>, name: Option<&str>) -> Result<FoundTags> {
    let named = name.map(|name| {
        Function::by_name(name).ok_or_else(|| {
            Error::unsupported(format!("dm-integrity tags by {name}"))
                .hint("Supported: crc32, crc32c, the hashes of the other formats, and hmac-HASH.")
        })
    });
    // With a key, a hash means HMAC.
    let named = named.transpose()?.map(|function| match (function, key) {
        (Function::Hash(hash), Some(_)) => Function::Hmac(hash),
        _ => function,
    });
    let guessed = named.is_none();
    let functions = named.map_or_else(|| Function::likely(area.tag_size(), key.is_some()), |named| vec![named]);
    let Some(first) = functions.first() else {
        return Err(Error::misuse(format!("no known hash makes {}-byte tags", area.tag_size()))
            .hint("Give the hash, as with `integritysetup open --integrity`."));
    };
    if first.has_key() != key.is_some() {
        let (what, hint) = match key {
            None => ("the tags are keyed, but no key was given", "Give the keyfile that the volume was created with."),
            Some(_) => ("the tags are not keyed, but a key was given", "Omit the keyfile, or give an hmac-HASH."),
        };
        return Err(Error::misuse(what).hint(hint));
    }
    let with = |function| Tags {
        function,
        key: key.map_or_else(|| Secret::copy_from(&[]), |key| Secret::copy_from(key)),
        salt: area.salt(),
        sector: area.sector_size(),
        tag: area.tag_size(),
    };
    for &function in &functions {
        let cipher = with(function);
        if shows(store, area, &cipher)? {
            return Ok(FoundTags { cipher, right: true });
        }
    }
    if !guessed && key.is_none() {
        return Ok(FoundTags { cipher: with(*first), right: false });
    }
    let tried: Vec<_> = functions.iter().map(|function| function.name()).collect();
    let what = format!("none of the sampled tags matches {}", tried.join(" or "));
    Err(Error::new(ErrorKind::WrongCredential(what)).hint(match key {
        Some(_) => {
            "The key or the hash is wrong, or the volume was never written to. Give the hash, as with \
             `integritysetup open --integrity`."
        }
        None => {
            "Give the hash of the tags, as with `integritysetup open --integrity`; keyed tags also need the \
             keyfile."
        }
    }))
}

/// Whether any of some sectors at the beginning, at the end and in between has a matching tag. If there are others, the first one
/// does not count: zeros without a tag match some checksums.
fn shows(store: &dyn Store, area: &TaggedSectors, cipher: &dyn AuthenticatedCipher) -> Result<bool> {
    let sectors = area.len() / area.sector_size() as u64;
    let last = sectors - 1;
    let between = (0..LOOKED_AT).map(|nth| (u128::from(last) * u128::from(nth) / u128::from(LOOKED_AT)) as u64);
    let all = (0..LOOKED_AT).chain(between).chain(sectors.saturating_sub(LOOKED_AT)..sectors);
    for number in all.filter(|number| *number <= last && (*number > 0 || last == 0)) {
        if area.verifies(store, 0, cipher, number)? {
            return Ok(true);
        }
    }
    Ok(false)
}
