//! Protectors that a TPM 2.0 opens: alone, with a PIN, with a startup key, or with both.
//!
//! | protector | the TPM seals | it opens the volume master key (VMK) |
//! | --- | --- | --- |
//! | TPM | the VMK's datum | as it is |
//! | TPM and startup key | an intermediate key's datum | the box under the intermediate key XOR the startup key |
//! | TPM and PIN | a box under the stretched PIN, with the intermediate key | the box under the intermediate key |
//! | TPM, PIN and startup key | the same | the box under the intermediate key XOR the startup key |
//!
//! The sealed object requires its password before the PCRs, also where that is empty. With a PIN, it is a hash of the stretched PIN.
//!
//! Sources: the metadata, traces of TPMs and keys of Windows 10 and 11 in en4rab/SPITkey (`testdata/`, and `SPITkey.py` for the XOR),
//! of an older Windows in kkamagui/bitleaker (`bitleaker.py`, `my_notes.txt`), and itm4n, "A Deep Dive into TPM-based BitLocker Drive
//! Encryption", for PCR 11. The test vectors are those of SPITkey. Windows has not been tried with protectors made here.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use claviger_crypto::Secret;
use claviger_crypto::hash::SHA256;

use super::datum::{Datum, Key, SALT, STRETCH_FIELDS, USE_FIELDS, key, kind, role};
use super::guid::Guid;
use super::metadata::Metadata;
use super::protect::{of_protector, of_stretch, of_use, salt, stretch_for};
use super::protectors::{Kind, Protector, hashed, startup_keys, utf16};
use super::sealed::{self, Sealer};
use super::startup::StartupKey;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Releaser, Sealed};
use crate::random;
use crate::tpm2::{Bank, Parent, Pcrs, Pin, Policy, SealedObject, Tpm};

/// The shared storage key (TCG, TPM v2.0 Provisioning Guidance, table 2).
const STORAGE_KEY: Parent = Parent::Persistent { handle: 0x8100_0001, name: None };

/// The size of the password that the TPM gets for a PIN, in bytes.
const PASSWORD: usize = 20;

/// What Windows mixes into that password, with zeros up to the size.
const PASSWORD_TEXT: &[u8; PASSWORD] = b"BitLockerAuthData\0\0\0";

/// The kind of a stretched PIN, and the flags beside it: "enhanced cryptography".
const STRETCHED_PIN: u16 = 0x2004;
const PIN_FLAGS: u16 = 0x10;

/// The types of further datums in a protector with a PIN: three numbers, all 0, and the text for the password.
const NUMBERS: [u16; 3] = [0x10, 0x11, 0x13];
const TEXT_FOR_PASSWORD: u16 = 0x12;

/// A protector's part that a TPM sealed. Nothing in it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedMasterKey {
    guid: Guid,
    kind: Kind,
    blob: SealedObject,
    pcrs: Pcrs,
    /// The salt, and the text for the TPM's password, with a PIN.
    pin: Option<([u8; SALT], Vec<u8>)>,
    /// The box with the VMK, unless the TPM sealed that itself.
    vmk: Option<Datum>,
}

/// Returns those of a volume's protectors that a TPM opens.
pub(super) fn sealed(metadata: &Metadata) -> Vec<Sealed> {
    let of = |protector: &Protector| {
        let key = SealedMasterKey::of(protector)?;
        Some(Sealed {
            token: protector.number,
            keyslots: vec![protector.number],
            needs: format!("{} ({})", protector.kind.needs()?, protector.name()),
            by: Releaser::MasterKey(Box::new(key)),
        })
    };
    Protector::all(metadata).0.iter().filter_map(of).collect()
}

impl SealedMasterKey {
    /// Reads it from a protector; `None` if no TPM opens that, if it is malformed, and for PINs of Windows Vista and 7, which have no
    /// [`TEXT_FOR_PASSWORD`].
    fn of(protector: &Protector) -> Option<Self> {
        let kind = protector.kind;
        // The bits of the PCRs come first, and once more at the end.
        let blob = protector.property(kind::TPM).filter(|_| kind.is_by_tpm())?;
        let (blob, pcrs) = blob.behind(4).and_then(parse).ok()?;
        let pin = || Some((protector.salt()?, protector.property(TEXT_FOR_PASSWORD)?.value.clone()));
        let pin = if kind.has_pin() { Some(pin()?) } else { None };
        let vmk = if kind == Kind::TPM { None } else { Some(protector.property(kind::SEALED)?.clone()) };
        Some(Self { guid: protector.guid, kind, blob, pcrs, pin, vmk })
    }

    fn policy(&self) -> Policy {
        policy(self.pcrs)
    }

    /// The PCRs that must be as when it was sealed.
    pub fn pcrs(&self) -> Pcrs {
        self.pcrs
    }

    /// Whether it also takes a PIN.
    pub fn takes_pin(&self) -> bool {
        self.kind.has_pin()
    }

    /// Whether it also takes a startup key.
    pub fn takes_startup_key(&self) -> bool {
        self.kind.has_startup_key()
    }

    /// Checks that the PCRs are as when it was sealed.
    ///
    /// # Errors
    /// `WrongCredential`, which names the PCR that changed if known; `Io`.
    pub fn check(&self, tpm: &mut Tpm) -> Result<()> {
        tpm.check(&self.blob, &self.policy(), None)
    }

    /// The startup key among these keyfiles, for protectors that take one.
    ///
    /// # Errors
    /// `Misuse` without keyfiles, `WrongCredential` if none of them is its startup key.
    fn startup_key(&self, keyfiles: &[Credential]) -> Result<Option<StartupKey>> {
        if !self.takes_startup_key() {
            return Ok(None);
        }
        let its_own = startup_keys(keyfiles)?.into_iter().find(|key| key.protector == self.guid);
        let name = StartupKey::name_for(self.guid);
        match its_own {
            Some(key) => Ok(Some(key)),
            None if keyfiles.is_empty() => {
                let hint = format!("Give its file with --keyfile: {name}.");
                Err(Error::misuse("beside the TPM, this protector takes its startup key").hint(hint))
            }
            None => {
                let what = "this startup key is for another volume or another protector";
                Err(Error::new(ErrorKind::WrongCredential(what.to_owned())).hint(format!("Its file is {name}.")))
            }
        }
    }

    /// Unseals the VMK. `pin` is asked only once the PCRs and the startup key are right.
    ///
    /// # Errors
    /// Those of [`Tpm::unseal`], and of `pin`; `Misuse` without the startup key, `WrongCredential` for another one; `Malformed` if
    /// something else was sealed.
    pub fn open(
        &self,
        tpm: &mut Tpm,
        keyfiles: &[Credential],
        pin: impl FnOnce() -> Result<Secret>,
    ) -> Result<Credential> {
        let startup_key = self.startup_key(keyfiles)?;
        let pin = match self.takes_pin() {
            true => {
                self.check(tpm)?;
                Some(hashed(&utf16(&pin()?).ok_or_else(|| Error::misuse("a PIN must be UTF-8 text"))?))
            }
            false => None,
        };
        self.open_with(tpm, pin.as_ref(), startup_key.as_ref()).map(Credential::VolumeKey)
    }

    /// Unseals the VMK with the hash of the PIN, and the startup key.
    fn open_with(&self, tpm: &mut Tpm, pin: Option<&Secret>, startup_key: Option<&StartupKey>) -> Result<Secret> {
        let stretched = match (&self.pin, pin) {
            (Some((salt, text)), Some(pin)) => Some(StretchedPin::new(pin, salt, text, &Unlock::with(&[]))?),
            _ => None,
        };
        let password = stretched.as_ref().map_or_else(Pin::none, |pin| Pin::raw(&pin.password));
        let unsealed = tpm.unseal(&STORAGE_KEY, &self.blob, &self.policy(), None, &password)?;
        let other = || Error::unsupported("a TPM-sealed key of another kind");
        let Some(boxed) = &self.vmk else {
            let vmk = Key::unsealed(&unsealed)?;
            return if (vmk.kind, vmk.key.len()) == (key::VMK, super::VMK) { Ok(vmk.key) } else { Err(other()) };
        };
        let mut key = match &stretched {
            None => Key::unsealed(&unsealed)?,
            // A datum is no place for a key that is not sealed.
            Some(pin) if unsealed.get(4..6) == Some(&kind::SEALED.to_le_bytes()) => {
                let inner = Datum::first(&unsealed).ok_or_else(other)?;
                sealed::open_key(&inner, &pin.key)?.ok_or_else(other)?
            }
            Some(_) => return Err(other()),
        }
        .key;
        if key.len() != super::VMK {
            return Err(other());
        }
        mix(&mut key, startup_key);
        let vmk = sealed::open_key(boxed, &key)?.map(|vmk| vmk.key).filter(|vmk| vmk.len() == super::VMK);
        vmk.ok_or_else(|| match startup_key {
            Some(_) => ErrorKind::WrongCredential("this startup key does not fit what the TPM released".into()).into(),
            None => other(),
        })
    }
}

/// Parses both halves of the sealed object, a digest of PCRs, and the selection of PCRs. Their bank is that of the digest.
fn parse(bytes: &[u8]) -> Result<(SealedObject, Pcrs)> {
    let wrong = || Error::new(ErrorKind::Malformed { field: "TPM blob", offset: 0, what: "it is malformed".into() });
    let (blob, rest) = SealedObject::at_front(bytes)?;
    let digest = rest.first_chunk().map(|len| usize::from(u16::from_be_bytes(*len))).ok_or_else(wrong)?;
    let [3, mask @ ..] = rest.get(2 + digest..).ok_or_else(wrong)? else { return Err(wrong()) };
    let [a, b, c] = *mask.first_chunk().ok_or_else(wrong)?;
    let bank = Bank::of_size(digest).ok_or_else(wrong)?;
    Ok((blob, Pcrs { bank, mask: u32::from_le_bytes([a, b, c, 0]) }))
}

/// An intermediate key XOR the startup key, if there is one.
fn mix(key: &mut Secret, startup_key: Option<&StartupKey>) {
    let bytes = startup_key.iter().flat_map(|startup_key| &*startup_key.key);
    key.iter_mut().zip(bytes).for_each(|(byte, other)| *byte ^= other);
}

fn policy(pcrs: Pcrs) -> Policy {
    Policy { pcrs, pin: true, pin_first: true, signed: None }
}

/// What a PIN becomes.
struct StretchedPin {
    /// The key of the box that the TPM sealed.
    key: Secret,
    /// The password for the TPM.
    password: Secret,
}

impl StretchedPin {
    /// Stretches the SHA-256 of a PIN.
    ///
    /// # Errors
    /// `Cancelled`.
    fn new(pin: &Secret, salt: &[u8; SALT], text: &[u8], with: &Unlock<'_>) -> Result<Self> {
        let key = stretch_for(&hashed(pin), salt, with)?;
        let mut once = Secret::zeroed(SHA256.size);
        SHA256.digest(&[&key, text], &mut once);
        let password = Secret::copy_from(&hashed(&once)[..PASSWORD]);
        Ok(Self { key, password })
    }
}

/// A TPM that new protectors are sealed to.
pub struct TpmSealing {
    tpm: Mutex<Tpm>,
    pcrs: Pcrs,
    pin: Option<Secret>,
}

impl fmt::Debug for TpmSealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TpmSealing").field("pcrs", &self.pcrs).finish_non_exhaustive()
    }
}

impl TpmSealing {
    /// PCRs must keep their current values; a new protector also takes the PIN, of 4 to 20 characters as in Windows (Microsoft,
    /// `ProtectKeyWithTPMAndPIN`).
    ///
    /// # Errors
    /// `Misuse` for another PIN.
    pub fn new(tpm: Tpm, pcrs: Pcrs, pin: Option<Secret>) -> Result<Self> {
        let len = |pin: &Secret| std::str::from_utf8(pin).map(|text| text.chars().count());
        let text = pin.as_ref().map(len).transpose().map_err(|_| Error::misuse("a PIN must be UTF-8 text"))?;
        match text {
            Some(len) if !(4..=20).contains(&len) => {
                Err(Error::misuse(format!("a BitLocker PIN has 4 to 20 characters, this one has {len}")))
            }
            _ => Ok(Self { tpm: Mutex::new(tpm), pcrs, pin }),
        }
    }
}

/// A new protector for a TPM.
pub(super) struct TpmOpener<'a> {
    sealing: &'a TpmSealing,
    /// The SHA-256 of the PIN.
    pin: Option<Secret>,
    pub startup_key: Option<StartupKey>,
}

impl<'a> TpmOpener<'a> {
    /// The startup key is the only credential, if there is one.
    ///
    /// # Errors
    /// `Misuse`, and those of [`StartupKey::read`].
    pub fn new(sealing: &'a TpmSealing, credentials: &[Credential]) -> Result<Self> {
        let startup_key = match credentials {
            [] => None,
            [Credential::Keyfile(contents)] => Some(StartupKey::read(contents)?),
            _ => return Err(Error::misuse("beside the TPM, a protector takes a PIN and one startup key")),
        };
        let pin = sealing.pin.as_ref().and_then(|pin| utf16(pin)).map(|pin| hashed(&pin));
        Ok(Self { sealing, pin, startup_key })
    }

    /// The same as an existing protector: its PIN and its startup key lie in boxes under the VMK.
    ///
    /// # Errors
    /// `Misuse` if it is not one of this program's or Windows' TPM protectors; `Malformed`.
    pub fn like(old: &Protector, vmk: &Secret, sealing: &'a TpmSealing) -> Result<Self> {
        let number = old.number;
        if SealedMasterKey::of(old).is_none() {
            return Err(Error::misuse(format!("protector {number} is not one that this program seals to a TPM")));
        }
        let lacks = || Error::misuse(format!("protector {number} does not hold its PIN and startup key"));
        let nested = |of_kind, fields, of_key| -> Result<Secret> {
            let boxes = old.property(of_kind).map(|datum| datum.nested(fields)).transpose()?.unwrap_or_default();
            let keys = boxes.iter().filter_map(|sealed| sealed::open_key(sealed, vmk).ok().flatten());
            let fits = |found: &Key| found.kind == of_key && found.key.len() == super::VMK;
            keys.into_iter().find(fits).map(|found| found.key).ok_or_else(lacks)
        };
        let of = old.kind;
        let pin = || nested(kind::STRETCH, STRETCH_FIELDS, STRETCHED_PIN);
        let startup = || nested(kind::USE, USE_FIELDS, key::EXTERNAL);
        let startup_key = of.has_startup_key().then(startup).transpose()?;
        let startup_key = startup_key.map(|key| StartupKey { protector: old.guid, key });
        Ok(Self { sealing, pin: of.has_pin().then(pin).transpose()?, startup_key })
    }

    pub fn kind(&self) -> Kind {
        let bits = [(self.pin.is_some(), Kind::PIN), (self.startup_key.is_some(), Kind::STARTUP_KEY)];
        Kind(bits.iter().filter(|(has, _)| *has).fold(Kind::TPM.0, |all, (_, bit)| all | bit.0))
    }

    /// A new protector. The TPM has opened it once.
    ///
    /// # Errors
    /// Those of [`Tpm::seal`] and [`Tpm::unseal`]; `Misuse` if something else comes out; `Cancelled`.
    pub fn protector(&self, guid: Guid, vmk: &Secret, sealer: &mut Sealer<'_>, with: &Unlock<'_>) -> Result<Datum> {
        let guid = self.startup_key.as_ref().map_or(guid, |key| key.protector);
        let mut tpm = self.sealing.tpm.lock().unwrap_or_else(PoisonError::into_inner);
        let made = of_protector(guid, self.kind(), self.properties(&mut tpm, vmk, sealer, with)?.into_iter());
        let sealed = SealedMasterKey::of(&Protector::of(0, 0, &made)?).expect("it has what a TPM's protector has");
        match sealed.open_with(&mut tpm, self.pin.as_ref(), self.startup_key.as_ref())?.same_as(vmk) {
            true => Ok(made),
            false => {
                Err(Error::misuse("the TPM released something else than was just sealed").hint("Nothing was changed."))
            }
        }
    }

    /// Whether the TPM opens this protector with the same PIN and startup key.
    pub fn opens(&self, protector: &Protector, vmk: &Secret) -> bool {
        let mut tpm = self.sealing.tpm.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = SealedMasterKey::of(protector)
            .map(|sealed| sealed.open_with(&mut tpm, self.pin.as_ref(), self.startup_key.as_ref()));
        opened.is_some_and(|opened| opened.is_ok_and(|opened| opened.same_as(vmk)))
    }

    fn properties(
        &self,
        tpm: &mut Tpm,
        vmk: &Secret,
        sealer: &mut Sealer<'_>,
        with: &Unlock<'_>,
    ) -> Result<Vec<Datum>> {
        let salt = salt()?;
        let pin = self.pin.as_ref().map(|pin| StretchedPin::new(pin, &salt, PASSWORD_TEXT, with)).transpose()?;
        let mut all = Vec::new();
        if let Some(pin) = &self.pin {
            let text = if self.startup_key.is_some() { "TPMAndPinAndStartupKey" } else { "TPMAndPin" };
            let mut kept = Key { kind: STRETCHED_PIN, key: Secret::copy_from(pin) }.datum(0);
            kept[Key::FLAGS..][..2].copy_from_slice(&PIN_FLAGS.to_le_bytes());
            let nested = [sealer.seal_bytes(role::NONE, vmk, &kept)];
            let mut stretch = of_stretch(STRETCHED_PIN, &salt, &nested);
            stretch.value[2..4].copy_from_slice(&PIN_FLAGS.to_le_bytes());
            all.extend([Datum::of_text(role::NONE, text), stretch]);
        }
        let boxed = self.kind() != Kind::TPM;
        let mut intermediate = random::secret(super::VMK)?;
        let key = |kind, key: &Secret| Key { kind, key: Secret::copy_from(key) };
        let plain = if boxed { key(key::CLEAR, &intermediate) } else { key(key::VMK, vmk) };
        let plain = match &pin {
            None => plain.datum(0),
            Some(pin) => {
                let sealed = Datum { version: 0, ..sealer.seal(role::NONE, &pin.key, &plain) };
                Secret::copy_from(&sealed.bytes())
            }
        };
        let blob = self.sealed(tpm, &plain, pin.as_ref())?;
        let [first, second, third] = NUMBERS.map(|kind| Datum::new(role::NONE, kind, vec![0; 4]));
        match self.pin {
            Some(_) => {
                let text = Datum::new(role::NONE, TEXT_FOR_PASSWORD, PASSWORD_TEXT.to_vec());
                all.extend([first, text, blob, second, third]);
            }
            None => all.push(blob),
        }
        if let Some(startup_key) = &self.startup_key {
            let nested = [sealer.seal(role::NONE, vmk, &key(key::EXTERNAL, &startup_key.key))];
            all.push(of_use(key::EXTERNAL, &nested));
        }
        mix(&mut intermediate, self.startup_key.as_ref());
        all.extend(boxed.then(|| sealer.seal(role::NONE, &intermediate, &key(key::VMK, vmk))));
        Ok(all)
    }

    /// What the TPM sealed, as a datum.
    fn sealed(&self, tpm: &mut Tpm, plain: &[u8], pin: Option<&StretchedPin>) -> Result<Datum> {
        let pcrs = self.sealing.pcrs;
        let password = pin.map_or_else(Pin::none, |pin| Pin::raw(&pin.password));
        tpm.find(&STORAGE_KEY).map_err(|error| match error.kind {
            ErrorKind::WrongCredential(_) => no_storage_key(),
            _ => error,
        })?;
        let (blob, _) = tpm.seal(&STORAGE_KEY, plain, &policy(pcrs), &password)?;
        let digest = tpm.pcr_digest(pcrs)?;
        let [a, b, c, _] = pcrs.mask.to_le_bytes();
        let mut value = pcrs.mask.to_le_bytes().to_vec();
        value.extend(blob.to_bytes());
        value.extend((digest.len() as u16).to_be_bytes());
        value.extend(digest);
        value.extend([3, a, b, c]);
        Ok(Datum::new(role::NONE, kind::TPM, value))
    }
}

fn no_storage_key() -> Error {
    Error::unsupported("TPMs without a shared storage key").hint(
        "Windows creates it, and so does `tpm2_createprimary -C o -G rsa -c srk.ctx && tpm2_evictcontrol -C o -c srk.ctx 0x81000001`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).expect("hexadecimal")).collect()
    }

    /// en4rab/SPITkey, `testdata/dslogic-TPMandPIN`: a recorded start of Windows with the PIN 87654321. The password is the one with
    /// which the HMAC of the recorded `TPM2_Unseal` agrees.
    #[test]
    fn a_pin_becomes_what_windows_makes_of_it() {
        let salt = bytes("899c5ea2e39b1a242f7c7995b5c10866").try_into().expect("its size");
        let pin = hashed(&utf16(b"87654321").expect("text"));
        let stretched = StretchedPin::new(&pin, &salt, PASSWORD_TEXT, &Unlock::with(&[])).expect("not cancelled");
        let key = "54dee202bf617c3ccda4662f242ff5016357dd2eb11b3f8e3aa438be1162f1ea";
        assert_eq!(stretched.key[..], bytes(key));
        assert_eq!(stretched.password[..], bytes("80ad404e384132668f59c2daeaec0e1396149cf3"));
    }
}
