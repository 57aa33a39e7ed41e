//! Datums, the entries of a metadata block (libbde, "BitLocker Drive Encryption (BDE) format", section "FVE metadata entry"). Each
//! has a size, a role, a type, a version, and a value, which may contain further datums after a few fields of its own.
//!
//! Unknown datums are preserved byte for byte.

use claviger_crypto::Secret;

use super::guid::Guid;
use crate::error::{ErrorKind, Result};
use crate::little_endian::{u16_at, u64_at};

/// The size of the part before a value, in bytes: size, role, type, version.
pub(super) const HEADER: usize = 8;

/// The size of the salt of a stretched key, in bytes.
pub(super) const SALT: usize = 16;
/// The size of the fields in a stretch datum before its nested datums, in bytes: kind 2, 0 2, salt.
pub(super) const STRETCH_FIELDS: usize = 4 + SALT;
/// The same for a use datum: kind 2, 0 2.
pub(super) const USE_FIELDS: usize = 4;
/// The same for an external key: GUID 16, time 8.
pub(super) const EXTERNAL_FIELDS: usize = 24;

/// The purpose of a datum.
pub(super) mod role {
    pub const NONE: u16 = 0;
    pub const PROTECTOR: u16 = 2;
    pub const FVEK: u16 = 3;
    pub const STARTUP_KEY: u16 = 6;
    pub const LABEL: u16 = 7;
    pub const HEADER: u16 = 0xf;
    /// The recovery password itself, under the volume master key.
    pub const RECOVERY_PASSWORD: u16 = 0x12;
    /// The key that the recovery password stretches to, under the volume master key.
    pub const STRETCHED_RECOVERY: u16 = 0x13;
}

/// The type of a value.
pub(super) mod kind {
    pub const KEY: u16 = 1;
    pub const TEXT: u16 = 2;
    pub const STRETCH: u16 = 3;
    pub const USE: u16 = 4;
    pub const SEALED: u16 = 5;
    pub const TPM: u16 = 6;
    pub const PROTECTOR: u16 = 8;
    pub const EXTERNAL: u16 = 9;
    pub const HEADER_PLACE: u16 = 0xf;
}

/// The purpose of a key.
pub(super) mod key {
    /// Any unstretched key of an external protector.
    pub const EXTERNAL: u16 = 0x2002;
    pub const RECOVERY: u16 = 0x1000;
    pub const CLEAR: u16 = 0x2000;
    pub const VMK: u16 = 0x2003;
    pub const SEALED_HASH: u16 = 0x2005;
    pub const STRETCHED_PASSWORD: u16 = 0x2007;
    pub const STRETCHED_RECOVERY: u16 = 0x2008;
}

/// A datum, with its value as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datum {
    pub role: u16,
    pub kind: u16,
    /// 1; in a sealed box 0 or 1.
    pub version: u16,
    pub value: Vec<u8>,
}

impl Datum {
    pub fn new(role: u16, kind: u16, value: Vec<u8>) -> Self {
        Self { role, kind, version: 1, value }
    }

    /// Reads the datums in `bytes`, up to the end or a size of 0. Errors count offsets from `offset`.
    ///
    /// # Errors
    /// `Malformed` for a datum that is shorter than its header or extends past the end.
    pub fn all(bytes: &[u8], offset: u64) -> Result<Vec<Self>> {
        let (mut all, mut at) = (Vec::new(), 0);
        while let Some(header) = bytes[at..].first_chunk::<HEADER>() {
            let size = usize::from(u16_at(header, 0));
            if size == 0 {
                break;
            }
            let value = bytes.get(at + HEADER..at + size).ok_or_else(|| ErrorKind::Malformed {
                field: "size of a metadata entry",
                offset: offset + at as u64,
                what: format!("{size} bytes, but only {} are left", bytes.len() - at),
            })?;
            let (role, kind, version) = (u16_at(header, 2), u16_at(header, 4), u16_at(header, 6));
            all.push(Self { role, kind, version, value: value.to_vec() });
            at += size;
        }
        Ok(all)
    }

    /// Returns the first datum in `bytes`, whatever follows it.
    pub fn first(bytes: &[u8]) -> Option<Self> {
        let size = u16_at(bytes.first_chunk::<2>()?, 0);
        Self::all(bytes.get(..usize::from(size))?, 0).ok()?.pop()
    }

    /// Appends the stored form.
    pub fn put(&self, out: &mut Vec<u8>) {
        let size = self.stored_len() as u16;
        for field in [size, self.role, self.kind, self.version] {
            out.extend(field.to_le_bytes());
        }
        out.extend(&self.value);
    }

    /// Returns the stored form.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.stored_len());
        self.put(&mut bytes);
        bytes
    }

    /// The size of the stored form, in bytes.
    pub fn stored_len(&self) -> usize {
        HEADER + self.value.len()
    }

    /// Returns the datums in its value, after `fields` bytes.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn nested(&self, fields: usize) -> Result<Vec<Self>> {
        Self::all(self.behind(fields)?, fields as u64)
    }

    /// Returns a copy in which `each` has replaced every sealed box, however deep. Everything else stays the same, byte for byte.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn with_boxes(&self, each: &mut dyn FnMut(&Self) -> Result<Self>) -> Result<Self> {
        self.with_boxes_below(each, DEEPEST)
    }

    fn with_boxes_below(&self, each: &mut dyn FnMut(&Self) -> Result<Self>, levels: usize) -> Result<Self> {
        if self.kind == kind::SEALED {
            return each(self);
        }
        let fields = fields_before_nested(self.kind).filter(|_| levels > 0);
        let Some((fields, nested)) = fields.and_then(|fields| Some((fields, self.nested(fields).ok()?))) else {
            return Ok(self.clone());
        };
        let mut value = self.value[..fields].to_vec();
        for datum in &nested {
            datum.with_boxes_below(each, levels - 1)?.put(&mut value);
        }
        let read = fields + nested.iter().map(Self::stored_len).sum::<usize>();
        value.extend(&self.value[read..]);
        Ok(Self { value, ..self.clone() })
    }

    /// Returns its text, without the NUL at the end.
    pub fn text(&self) -> String {
        let units: Vec<u16> = self.value.chunks_exact(2).map(|c| u16_at(c, 0)).take_while(|c| *c != 0).collect();
        String::from_utf16_lossy(&units)
    }

    /// Creates a text, with a NUL at the end.
    pub fn of_text(role: u16, text: &str) -> Self {
        let units = text.encode_utf16().chain([0]);
        Self::new(role, kind::TEXT, units.flat_map(u16::to_le_bytes).collect())
    }

    /// Returns the value after `fields` bytes.
    pub fn behind(&self, fields: usize) -> Result<&[u8]> {
        self.value.get(fields..).ok_or_else(|| {
            let what = format!("an entry of type {:#x} has {} bytes but needs {fields}", self.kind, self.value.len());
            ErrorKind::Malformed { field: "size of a metadata entry", offset: 0, what }.into()
        })
    }
}

/// How deep boxes are searched for: a protector, its stretch, the box.
const DEEPEST: usize = 4;

/// The size of the fields before nested datums, in bytes; `None` for a type without any.
fn fields_before_nested(of_kind: u16) -> Option<usize> {
    match of_kind {
        kind::STRETCH => Some(STRETCH_FIELDS),
        kind::USE => Some(USE_FIELDS),
        kind::PROTECTOR => Some(ProtectorFields::LEN),
        kind::EXTERNAL => Some(EXTERNAL_FIELDS),
        _ => None,
    }
}

/// Returns the first of `datums` with that type.
pub(super) fn first(datums: &[Datum], kind: u16) -> Option<&Datum> {
    datums.iter().find(|datum| datum.kind == kind)
}

/// A clear key, as in metadata, in a sealed box or in a file.
pub(super) struct Key {
    pub kind: u16,
    pub key: Secret,
}

impl Key {
    /// The size of the fields before the key, in bytes: its kind and flags.
    const FIELDS: usize = 4;
    /// The offset of its flags in the datum.
    pub const FLAGS: usize = HEADER + 2;

    /// Reads the key in a datum of [`kind::KEY`].
    ///
    /// # Errors
    /// `Malformed`.
    pub fn of(datum: &Datum) -> Result<Self> {
        let key = Secret::copy_from(datum.behind(Self::FIELDS)?);
        Ok(Self { kind: u16_at(&datum.value, 0), key })
    }

    /// Reads the key in the contents of a sealed box, which is one datum.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn unsealed(bytes: &Secret) -> Result<Self> {
        let malformed = |what: &str| ErrorKind::Malformed { field: "sealed key", offset: 0, what: what.to_owned() };
        let header = bytes.first_chunk::<{ HEADER + Self::FIELDS }>().ok_or_else(|| malformed("it is too short"))?;
        let (size, of_kind) = (usize::from(u16_at(header, 0)), u16_at(header, 4));
        if of_kind != kind::KEY {
            return Err(malformed(&format!("an entry of type {of_kind:#x}, which is not a key")).into());
        }
        let key = bytes.get(header.len()..size).ok_or_else(|| malformed(&format!("a size of {size} bytes")))?;
        Ok(Self { kind: u16_at(header, HEADER), key: Secret::copy_from(key) })
    }

    /// Returns the stored datum: version 0 in a sealed box, otherwise 1.
    pub fn datum(&self, version: u16) -> Secret {
        let mut bytes = Secret::zeroed(HEADER + Self::FIELDS + self.key.len());
        let size = bytes.len() as u16;
        for (at, field) in [(0, size), (4, kind::KEY), (6, version), (HEADER, self.kind)] {
            bytes[at..at + 2].copy_from_slice(&field.to_le_bytes());
        }
        bytes[HEADER + Self::FIELDS..].copy_from_slice(&self.key);
        bytes
    }

    /// Returns the datum for a clear key in the metadata: writing it gives the key away.
    pub fn in_clear(&self) -> Datum {
        Datum::new(role::NONE, kind::KEY, self.datum(1)[HEADER..].to_vec())
    }
}

/// The fields of a protector, [`kind::PROTECTOR`], before its properties.
pub(super) struct ProtectorFields {
    pub guid: Guid,
    /// When it was changed, as a Windows file time.
    pub changed: u64,
    /// Its kind: the code of a [`super::protectors::Kind`].
    pub kind: u16,
}

impl ProtectorFields {
    /// GUID 16, time 8, 2 bytes usually 0, kind 2.
    pub const LEN: usize = 28;

    /// # Errors
    /// `Malformed`.
    pub fn of(datum: &Datum) -> Result<Self> {
        datum.behind(Self::LEN)?;
        let value = &datum.value;
        Ok(Self { guid: Guid::at(value, 0), changed: u64_at(value, 16), kind: u16_at(value, 26) })
    }
}
