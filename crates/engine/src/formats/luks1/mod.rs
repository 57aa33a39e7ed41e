//! LUKS1 (Clemens Fruhwirth, "LUKS On-Disk Format Specification", version 1.2.3; cryptsetup 2.6.1, lib/luks1/keymanage.c): a header
//! of 592 bytes, eight keyslots that each hold the volume key, split and encrypted, and the data after them.

mod backup;
mod create;
pub(super) mod describe;
mod editor;
pub(in crate::formats) mod header;
mod repair;
mod unlock;

use std::sync::Arc;
use std::time::Instant;

use claviger_crypto::dmcrypt::Sectors;

use super::header_facts::{FormatFacts, HeaderFacts, KeyslotFacts};
use super::luks::{Stored, cipher_error, data_elsewhere, header_alone, opened_by};
use super::takes::{Parameter, Takes, check_opening};
use super::{
    Choices, Creator, Facts, Format, Header, HeaderEditor, HeaderTrace, KeyMark, UnlockPlan, Unlocked, Verdict,
    WhichHeader, wiped,
};
use crate::advice::{Advice, Warning};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, Result};
use crate::password_strength::GuessWork;
use crate::spec::Spec;
use crate::store::Store;
use crate::volume::{KernelCipher, Layout, Payload, Segment};
pub use describe::{Luks1Area, Luks1Digest, Luks1Facts, Luks1Keyslot};
use header::{MAGIC, Phdr, SECTOR, at};
use unlock::OpenedKey;

/// The type of [`LUKS1`].
pub struct Luks1(());

/// LUKS1, as a format and as the editor of its headers.
pub static LUKS1: Luks1 = Luks1(());

/// The name.
const NAME: &str = "LUKS1";

impl Format for Luks1 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traces(&self) -> &'static [HeaderTrace] {
        const { &[HeaderTrace::first(0, MAGIC)] }
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        let mut start = [0; 8];
        if store.len() < start.len() as u64 {
            return Ok(Verdict::No(vec![format!("{} bytes are too few", store.len())]));
        }
        store.read_at(0, &mut start)?;
        Ok(match start.strip_prefix(MAGIC) {
            Some([0, 1]) => Verdict::Yes(vec!["it begins with the LUKS signature, version 1".into()]),
            Some([0, 2]) => Verdict::No(vec!["it is LUKS2".into()]),
            Some(_) => Verdict::Yes(vec!["it begins with the LUKS signature, but the version is unknown".into()]),
            None if Phdr::unmarked(store)?.is_some() => Verdict::Yes(vec![
                "its LUKS signature is missing, but the rest of a LUKS1 header is there".into(),
                "if a passphrase opens it, `header repair` restores the signature".into(),
            ]),
            None => Verdict::No(vec!["no LUKS signature at the start".into()]),
        })
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Luks1Header::read(Stored::whole(store))
    }

    fn open_detached(&self, header: &Arc<dyn Store>, data: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        Luks1Header::read(Stored::apart(header, data))
    }

    fn takes(&self) -> Takes {
        use Parameter::*;
        Takes {
            creating: &[Hash, Cipher, KeySize, Offset, VolumeKey, DetachedHeader, Uuid, Kdf, Time, Iterations],
            // A hash and a cipher would narrow the trials. The header names them, but tables of mounts have lines with both.
            opening: &[Hash, Cipher, Keyfile, VolumeKey, Keyslot, DetachedHeader],
        }
    }

    fn creator(&self) -> Option<&dyn Creator> {
        Some(self)
    }

    fn choose_cost(&self, spec: &Spec<'_>) -> Result<()> {
        create::choose_cost(spec).map_err(|e| e.in_format(NAME))
    }

    fn guess_work(&self, spec: &Spec<'_>) -> Option<GuessWork> {
        create::guess_work(spec)
    }

    fn editor(&self) -> Option<&dyn HeaderEditor> {
        Some(self)
    }
}

impl Creator for Luks1 {
    fn choices(&self) -> Choices {
        let (ciphers, hashes) = (create::CIPHERS.to_vec(), create::HASHES.to_vec());
        Choices { ciphers, hashes, complete: false, min_len: create::MIN_LEN }
    }

    fn create_volume(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        wiped(NAME, create::create(store, spec, first))
    }

    fn stored_len(&self, plain: u64, spec: &Spec<'_>) -> Result<u64> {
        create::stored_len(plain, spec).map_err(|e| e.in_format(NAME))
    }

    fn check_spec(&self, len: u64, spec: &Spec<'_>) -> Result<()> {
        create::check_spec(len, spec).map_err(|e| e.in_format(NAME))
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        keyfiles.is_empty()
    }
}

/// A header that has been read.
struct Luks1Header {
    header: Phdr,
    stored: Stored,
}

impl Luks1Header {
    fn read(stored: Stored) -> Result<Box<dyn Header>> {
        Ok(Box::new(Self { header: wiped(NAME, Phdr::find(&*stored.header))?, stored }))
    }
}

impl Header for Luks1Header {
    /// A keyfile replaces the passphrase.
    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        keyfiles.is_empty()
    }

    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        wiped(NAME, unlocked(&self.header, &self.stored, with))
    }

    fn key_marks(&self) -> Vec<KeyMark> {
        marks_of(&self.header)
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        vec![(LUKS1.name(), LUKS1.takes())]
    }

    fn data(&self) -> &Arc<dyn Store> {
        self.stored.data()
    }

    fn describe(&self) -> Option<HeaderFacts> {
        let keyslots = describe::keyslots(&self.header, &*self.stored.header).map(KeyslotFacts::Luks1).collect();
        Some(HeaderFacts::new(Some(keyslots), FormatFacts::Luks1(describe::facts(&self.header))))
    }

    fn damage(&self) -> Vec<Warning> {
        unlock::damage(&self.header, &*self.stored.header)
    }

    fn plan(&self, with: &Unlock<'_>) -> Option<UnlockPlan> {
        Some(unlock::plan(&self.header, with))
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        unlock::effort(&self.header, with)
    }
}

fn unlocked(header: &Phdr, stored: &Stored, with: &Unlock<'_>) -> Result<Unlocked> {
    let begun = Instant::now();
    check_opening(LUKS1.name(), &LUKS1.takes(), with)?;
    let data = Data::of(header, stored)?;
    let cipher = header.cipher()?;
    let OpenedKey { keyslot, key, trials, mut warnings } = unlock::open_key(header, &*stored.header, with)?;
    with.has_opened();
    warnings.extend(header_warnings(header));
    warnings.extend(data.warning.clone().map(Warning::from));
    let sector_cipher = cipher
        .with_key(&key, Sectors::default(), with.acceleration)
        .map_err(|e| cipher_error(e, at::CIPHER_NAME as u64))?;
    let layer = || {
        let (specification, sectors) = (cipher.to_string(), Sectors::default());
        vec![KernelCipher { specification, key, sectors, integrity: None }]
    };
    let payload = Payload::crypt(sector_cipher, 0).with_kernel(with.for_kernel.then(layer));
    let layout = Layout::new(vec![Segment { at: 0, len: data.len, stored_at: data.start, payload, writable: true }])?
        .for_kernel(with.for_kernel.then_some("LUKS1"));
    let facts = facts(header, &data, keyslot)?;
    // Each trial takes one more derivation for the digest, which is never counted.
    Ok(Unlocked { layout, facts, warnings, trials, derivations: trials, took: begun.elapsed(), recognised: true })
}

fn marks_of(header: &Phdr) -> Vec<KeyMark> {
    vec![(header.digest_salt().to_vec(), header.digest().to_vec())]
}

/// Warnings about damage that does not keep the header from being opened.
fn header_warnings(header: &Phdr) -> Vec<Warning> {
    let readable = header.slots.iter().filter_map(|slot| slot.trouble.as_ref().filter(|t| t.readable));
    let mut warnings: Vec<_> =
        readable.map(|t| format!("The header is damaged: {} ({}).", t.what, t.field).into()).collect();
    if !header.marked {
        let gone = "The LUKS signature is missing: other programs no longer recognise the volume.";
        warnings.push(Warning::from(gone).advise(Advice::RepairHeader));
    }
    if header.uuid.is_none() {
        warnings.push("The UUID in the header is damaged: it is not text.".into());
    }
    warnings
}

fn facts(header: &Phdr, data: &Data, keyslot: Option<usize>) -> Result<Facts> {
    Ok(Facts {
        format: NAME,
        cipher: header.cipher_name.clone(),
        mode: header.cipher_mode.clone(),
        key_bits: header.key_len as u32 * 8,
        hash: Some(header.hash()?.name.into()),
        iterations: keyslot.map_or(header.digest_iterations, |number| header.slots[number].iterations),
        derivation: None,
        memory: None,
        pim: None,
        header_version: 1,
        header: WhichHeader::Primary,
        opened_by: Some(opened_by(keyslot.map(|number| number as u32))),
        hidden: false,
        keyslot: keyslot.map(|number| number as u32),
        uuid: header.uuid.clone(),
        label: None,
        integrity: None,
        sector_size: SECTOR as u32,
        size: data.len,
        data_offset: data.start,
        created: None,
        header_written: None,
    })
}

/// The place of the data, in bytes of their store.
struct Data {
    start: u64,
    len: u64,
    warning: Option<String>,
}

impl Data {
    /// Up to the end of the store: the header does not contain their length.
    fn of(header: &Phdr, stored: &Stored) -> Result<Self> {
        let start = header.data_start();
        let detached = stored.detached.is_some();
        if start == 0 && !detached {
            return Err(data_elsewhere());
        }
        let store_len = stored.data().len();
        let len = store_len.saturating_sub(start) / SECTOR * SECTOR;
        if len == 0 {
            if let Some(error) = header_alone(store_len, header.areas_end(), start).filter(|_| !detached) {
                return Err(error);
            }
            let what = format!(
                "the data begin at byte {start}, but the file ends at byte {store_len}: at least {} bytes are missing",
                start + SECTOR - store_len
            );
            let hint = match detached {
                true => "Check that the right file or device was given as the volume for this header.",
                false => "Find a complete copy or a header backup: the file was cut short, or the header is damaged.",
            };
            return Err(header::malformed("payload offset", at::PAYLOAD, what).hint(hint));
        }
        let rest = store_len % SECTOR;
        let warning = (rest != 0).then(|| {
            format!(
                "The file ends in the middle of a sector and may have been cut short. Its last {rest} bytes are \
                 ignored."
            )
        });
        Ok(Self { start, len, warning })
    }
}

/// The error for features that LUKS1 does not have.
fn not_in_luks1(what: &str) -> Error {
    Error::misuse(format!("LUKS1 has no {what}")).hint("LUKS2 has them.").advise(Advice::ConvertToLuks2)
}
