//! Startup keys: files `GUID.BEK` with the key of one external protector (libbde, "BitLocker Drive Encryption (BDE) format", section
//! "BitLocker External Key (BEK) file").
//!
//! ```text
//! 0 size 4 │ 4 1 4 │ 8 48 4 │ 12 size 4 │ 16 GUID of the protector 16 │ 32 1 4 │ 36 0 4 │ 40 time 8 │ 48 an entry of an external key
//! ```

use claviger_crypto::Secret;

use super::datum::{Datum, EXTERNAL_FIELDS, HEADER as ENTRY, Key, first, key, kind, role};
use super::guid::Guid;
use crate::error::{ErrorKind, Result};
use crate::little_endian::u32_at;
use crate::random;

/// The size of the part before the entry, in bytes.
const HEADER: usize = 48;
/// The longest file that is read, in bytes.
const LONGEST: usize = 4096;

/// The contents of a startup key file.
pub(super) struct StartupKey {
    /// The GUID of its protector.
    pub protector: Guid,
    pub key: Secret,
}

impl StartupKey {
    /// Creates a startup key for a new protector.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self { protector: Guid::random()?, key: random::secret(32)? })
    }

    /// Reads the contents of a file.
    ///
    /// # Errors
    /// `NotThisFormat`, `Malformed`.
    pub fn read(file: &Secret) -> Result<Self> {
        let none = || ErrorKind::NotThisFormat("this is not a BitLocker startup key (.BEK file)".to_owned());
        if !(HEADER..=LONGEST).contains(&file.len()) || u32_at(file, 4) != 1 || u32_at(file, 8) as usize != HEADER {
            return Err(none().into());
        }
        let size = u32_at(file, 0) as usize;
        let malformed = |what: &str| ErrorKind::Malformed { field: "startup key", offset: 0, what: what.to_owned() };
        let entries = file.get(HEADER..size).ok_or_else(|| malformed(&format!("it claims to have {size} bytes")))?;
        // A datum with a key would be a plain buffer, so the key is kept as a secret from here on.
        let mut entries = Datum::all(entries, HEADER as u64)?;
        let external = entries.iter().find(|datum| datum.kind == kind::EXTERNAL);
        let external = external.ok_or_else(|| malformed("it contains no external key"))?;
        let mut properties = external.nested(EXTERNAL_FIELDS);
        let key = properties.as_ref().ok().and_then(|all| first(all, kind::KEY)).map(Key::of);
        for datum in properties.iter_mut().flatten().chain(&mut entries) {
            zeroize::Zeroize::zeroize(&mut datum.value);
        }
        properties?;
        let key = key.transpose()?;
        let key = key.filter(|key| key.key.len() == 32).ok_or_else(|| malformed("it contains no 32-byte key"))?;
        Ok(Self { protector: Guid::at(file, 16), key: key.key })
    }

    /// The name of its file.
    pub fn name(&self) -> String {
        Self::name_for(self.protector)
    }

    /// The name of the file for a protector.
    pub fn name_for(protector: Guid) -> String {
        format!("{}.BEK", protector.to_string().to_uppercase())
    }

    /// The contents of its file, as Windows 7 to 10 write it: Windows 11 adds an entry that other programs cannot read.
    pub fn contents(&self, time: u64) -> Secret {
        let text = Datum::of_text(role::NONE, "ExternalKey").bytes();
        let secret = Key { kind: key::EXTERNAL, key: Secret::copy_from(&self.key) }.datum(1);
        let entry_size = ENTRY + EXTERNAL_FIELDS + text.len() + secret.len();
        let mut file = Secret::zeroed(HEADER + entry_size);
        let size = (file.len() as u32).to_le_bytes();
        let entry_header = [entry_size as u16, role::STARTUP_KEY, kind::EXTERNAL, 1].map(u16::to_le_bytes);
        let fields: [&[u8]; 13] = [
            &size,
            &1u32.to_le_bytes(),
            &(HEADER as u32).to_le_bytes(),
            &size,
            &self.protector.0,
            &1u32.to_le_bytes(),
            &0u32.to_le_bytes(),
            &time.to_le_bytes(),
            entry_header.as_flattened(),
            &self.protector.0,
            &time.to_le_bytes(),
            &text,
            &secret,
        ];
        let mut at = 0;
        for field in fields {
            file[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        file
    }
}
