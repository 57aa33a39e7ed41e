//! The end of a decryption: removes the format and leaves only the file system.
//!
//! First the metadata are set to "decrypted", with keys that were never used, so that their remains after a crash are worthless.
//! Then the relocated sectors return to their place, the boot sector last: this turns the BitLocker volume into a file system.
//! Finally all reserved areas are overwritten with zeros, which is what the plaintext showed there.

use std::sync::Arc;

use claviger_crypto::Secret;

use super::Converting;
use crate::error::{Error, Result};
use crate::formats::bitlocker::VMK;
use crate::formats::bitlocker::boot::LEN;
use crate::formats::bitlocker::datum::{Datum, Key, ProtectorFields, key, kind, role};
use crate::formats::bitlocker::guid::{Guid, filetime};
use crate::formats::bitlocker::metadata::{Metadata, State};
use crate::formats::bitlocker::protectors::Kind;
use crate::formats::bitlocker::sealed::Sealer;
use crate::random;
use crate::store::Store;
use crate::volume::Volume;

/// How many bytes are overwritten at a time.
const WIPED: usize = 1 << 20;

impl Converting<'_> {
    pub(super) fn leave(&mut self) -> Result<()> {
        self.forget_keys()?;
        self.put_back()?;
        self.places.header = 0;
        self.follow()?;
        // No remains may be mistaken for a volume, whatever happens next.
        for at in self.metadata.copies {
            self.store.write_clobbering(at, &mut vec![0; self.places.sector as usize])?;
        }
        self.store.flush()?;
        let reserved: Vec<_> = self.places.reserved.iter().map(|(range, _)| range.clone()).collect();
        for range in reserved {
            for at in range.clone().step_by(WIPED) {
                let len = (range.end - at).min(WIPED as u64) as usize;
                self.store.write_clobbering(at, &mut vec![0; len])?;
            }
        }
        self.store.flush()?;
        self.places.reserved.clear();
        self.follow()
    }

    /// Marks everything as decrypted, and replaces the keys, which could decrypt older copies of the volume, with fresh ones.
    fn forget_keys(&mut self) -> Result<()> {
        let (vmk, fvek) = (random::secret(VMK)?, random::secret(self.method.stored_key)?);
        let mut metadata = self.metadata.clone();
        let mut sealer = Sealer::new(&mut metadata.next_nonce);
        let protector = clear_protector(&vmk, &mut sealer)?;
        let fvek = sealer.seal(role::FVEK, &vmk, &Key { kind: metadata.method, key: fvek });
        metadata.datums.retain(|datum| matches!(datum.role, role::LABEL | role::HEADER));
        metadata.datums.extend([protector, fvek]);
        let (state, next_state) = (State::DECRYPTED, State::DECRYPTED);
        self.say_all(Metadata { state, next_state, state_offset: 0, log_size: self.log_size, ..metadata })?;
        self.places.encrypted = 0;
        Ok(())
    }

    /// Returns the relocated first sectors to their place.
    fn put_back(&mut self) -> Result<()> {
        let header = 0..self.places.header;
        self.close(&header);
        self.doubt(&header);
        let layout = self.places.layout(&self.cipher, &self.metadata, &*self.store)?;
        let mut header = vec![0; self.places.header as usize];
        Volume::new(Arc::clone(&self.store), layout).read_at(0, &mut header)?;
        if header.len() < LEN {
            return Err(Error::misuse("the volume's header is shorter than a boot sector"));
        }
        let (boot, behind) = header.split_at_mut(LEN);
        self.store.write_clobbering(LEN as u64, behind)?;
        self.store.flush()?;
        self.store.write_clobbering(0, boot)?;
        Ok(self.store.flush()?)
    }
}

/// A protector that anybody can open.
fn clear_protector(vmk: &Secret, sealer: &mut Sealer<'_>) -> Result<Datum> {
    let open = random::secret(VMK)?;
    let sealed = sealer.seal(role::NONE, &open, &Key { kind: key::VMK, key: Secret::copy_from(vmk) });
    let mut value = Guid::random()?.0.to_vec();
    value.extend(filetime::now().to_le_bytes());
    value.extend(0u16.to_le_bytes());
    value.extend(Kind::CLEAR.0.to_le_bytes());
    debug_assert_eq!(value.len(), ProtectorFields::LEN);
    Key { kind: key::CLEAR, key: open }.in_clear().put(&mut value);
    sealed.put(&mut value);
    Ok(Datum::new(role::PROTECTOR, kind::PROTECTOR, value))
}
