//! Protectors that a TPM alone opens. Windows seals the volume master key's datum under the shared storage key; the object requires
//! an empty password before the PCRs. The order, the blob's parts and the result are those of a recorded boot (kkamagui/bitleaker:
//! `bitleaker-3.py` and `my_notes.txt`). The role of a PIN or a startup key is not known well enough.

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

/// The volume master key, sealed by a TPM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedMasterKey {
    blob: SealedObject,
    pcrs: Pcrs,
}

/// Returns those of a volume's protectors that need only a TPM.
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
    /// Parses both halves of the sealed object, a digest of PCRs, and the selection of PCRs.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong =
            || Error::new(ErrorKind::Malformed { field: "TPM blob", offset: 0, what: "it is malformed".into() });
        let (blob, rest) = SealedObject::at_front(bytes)?;
        let digest = rest.first_chunk().map(|len| usize::from(u16::from_be_bytes(*len))).ok_or_else(wrong)?;
        let [3, mask @ ..] = rest.get(2 + digest..).ok_or_else(wrong)? else { return Err(wrong()) };
        let [a, b, c] = *mask.first_chunk().ok_or_else(wrong)?;
        Ok(Self { blob, pcrs: Pcrs { bank: Bank::Sha256, mask: u32::from_le_bytes([a, b, c, 0]) } })
    }

    fn policy(&self) -> Policy {
        Policy { pcrs: self.pcrs, pin: true, pin_first: true, signed: None }
    }

    /// Checks that the PCRs are as when Windows sealed the key.
    pub(crate) fn check(&self, tpm: &mut Tpm) -> Result<()> {
        tpm.check(&self.blob, &self.policy(), None)
    }

    /// Unseals the volume master key.
    ///
    /// # Errors
    /// Those of [`Tpm::unseal`]; `Malformed` if something else was sealed.
    pub fn open(&self, tpm: &mut Tpm) -> Result<Credential> {
        let policy = self.policy();
        let parent = Parent::Persistent { handle: STORAGE_KEY, name: None };
        let unsealed: Secret = tpm.unseal(&parent, &self.blob, &policy, None, &Pin::none())?;
        let unsealed = Key::unsealed(&unsealed)?;
        match (unsealed.kind, unsealed.key.len()) {
            (key::VMK, super::VMK) => Ok(Credential::VolumeKey(unsealed.key)),
            _ => Err(Error::unsupported("a TPM-sealed key of another kind")),
        }
    }
}
