//! Protectors that a TPM opens by itself. What Windows has sealed under the shared storage key is the volume master key's datum; the
//! object takes an empty password before the PCRs. The order, the blob's parts and what comes out are those of a boot that somebody
//! recorded (kkamagui/bitleaker: `bitleaker-3.py` and `my_notes.txt`). What a PIN or a startup key adds is not known well enough.

use claviger_crypto::Secret;

use super::datum::{Key, key};
use super::metadata::Metadata;
use super::protectors::{Kind, Protector};
use crate::credential::Credential;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Releaser, Sealed};
use crate::tpm2::{Bank, Parent, Pcrs, Pin, Policy, SealedObject, Tpm};

/// The shared storage key (TCG, TPM v2.0 Provisioning Guidance, table 2).
const STORAGE_KEY: u32 = 0x8100_0001;

/// The volume master key as a TPM has sealed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedMasterKey {
    blob: SealedObject,
    pcrs: Pcrs,
}

/// Those of a volume's protectors that need nothing but a TPM.
pub(super) fn sealed(metadata: &Metadata) -> Vec<Sealed> {
    let of = |protector: &Protector| {
        let key = SealedMasterKey::parse(protector.tpm_blob().filter(|_| protector.kind == Kind::TPM)?).ok()?;
        Some(Sealed {
            token: protector.number,
            keyslots: vec![protector.number],
            needs: format!("the TPM of the computer that created it ({})", protector.name()),
            by: Releaser::MasterKey(Box::new(key)),
        })
    };
    Protector::all(metadata).0.iter().filter_map(of).collect()
}

impl SealedMasterKey {
    /// Both halves of the sealed object, a digest of PCRs, and which they are.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong =
            || Error::new(ErrorKind::Malformed { field: "TPM blob", offset: 0, what: "it is malformed".into() });
        let (blob, rest) = SealedObject::at_front(bytes)?;
        let digest = rest.first_chunk().map(|len| usize::from(u16::from_be_bytes(*len))).ok_or_else(wrong)?;
        let [3, mask @ ..] = rest.get(2 + digest..).ok_or_else(wrong)? else { return Err(wrong()) };
        let [a, b, c] = *mask.first_chunk().ok_or_else(wrong)?;
        Ok(Self { blob, pcrs: Pcrs { bank: Bank::Sha256, mask: u32::from_le_bytes([a, b, c, 0]) } })
    }

    /// The volume master key.
    ///
    /// # Errors
    /// Those of [`Tpm::unseal`]; `Malformed` where something else was sealed.
    pub fn open(&self, tpm: &mut Tpm) -> Result<Credential> {
        let policy = Policy { pcrs: self.pcrs, pin: true, pin_first: true, signed: None };
        let parent = Parent::Persistent { handle: STORAGE_KEY, name: None };
        let unsealed: Secret = tpm.unseal(&parent, &self.blob, &policy, None, &Pin::none())?;
        let unsealed = Key::unsealed(&unsealed)?;
        match (unsealed.kind, unsealed.key.len()) {
            (key::VMK, super::VMK) => Ok(Credential::VolumeKey(unsealed.key)),
            _ => Err(Error::unsupported("a TPM-sealed key of another kind")),
        }
    }
}
