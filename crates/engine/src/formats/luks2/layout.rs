//! The segments of a volume (LUKS2 On-Disk Format Specification 1.1.1, section 3.3) as a layout.

use std::sync::Arc;

use claviger_crypto::Secret;
use claviger_crypto::dmcrypt::Specification;
use claviger_crypto::modes::aead;

use super::metadata::{self, Size};
use super::read::ReadHeader;
use super::reencrypt;
use super::unlock::json_at;
use super::validate::{digests_of, header_end, is_backup, printable, unknown};
use crate::advice::{Advice, Warning};
use crate::credential::Unlock;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks::{cipher_error, data_elsewhere, header_alone};
use crate::formats::unencrypted;
use crate::store::Store;
use crate::volume::{KernelCipher, Layout, Payload, Segment, integrity};

/// The layout of a volume, with warnings.
pub struct LaidOut {
    /// The layout.
    pub layout: Layout,
    /// Warnings, in whole sentences.
    pub warnings: Vec<Warning>,
}

/// The segments that make up the volume, with their numbers, in order.
pub fn parts(header: &ReadHeader) -> Vec<(u32, &metadata::MetadataSegment)> {
    header.metadata.segments.iter().map(|(n, s)| (*n, s)).filter(|(_, s)| !is_backup(s)).collect()
}

/// Returns the digests of the keys that encrypt the volume's segments, each once.
pub fn digests(header: &ReadHeader) -> Vec<u32> {
    let encrypted = parts(header).into_iter().filter(|(_, segment)| segment.kind == "crypt");
    let mut digests: Vec<_> = encrypted.flat_map(|(n, _)| digests_of(n, &header.metadata, |d| &d.segments)).collect();
    digests.sort_unstable();
    digests.dedup();
    digests
}

/// Refuses a header without data that is given as the volume, before any key is derived.
///
/// # Errors
/// `Misuse` for only a header, `Malformed` for a part of one.
pub fn no_header_alone(header: &ReadHeader, data: &dyn Store, detached: bool) -> Result<()> {
    let end = header_end(&header.metadata, header.binary.hdr_size);
    let error = match parts(header).first() {
        Some((_, first)) if !detached && data.len() <= first.offset.0 => header_alone(data.len(), end, first.offset.0),
        _ => None,
    };
    error.map_or(Ok(()), Err)
}

/// Lays out the volume in `data`: `key` returns the volume key of the digest with this number. `detached` means that the header is
/// in another store.
///
/// # Errors
/// `Malformed` for truncated data and the like, `Unsupported` for unknown types of segments, `Misuse` if the data of a detached
/// header are missing.
pub fn lay_out<'k>(
    header: &ReadHeader,
    data: &dyn Store,
    detached: bool,
    key: impl Fn(u32) -> Option<&'k Secret>,
    with: &Unlock<'_>,
) -> Result<LaidOut> {
    all_encrypted_alike(header)?;
    let mut making = Making { header, data, with, segments: Vec::new(), warnings: Vec::new() };
    for (number, segment) in parts(header) {
        if !detached && segment.offset.0 < header_end(&header.metadata, header.binary.hdr_size) {
            return Err(data_elsewhere());
        }
        let digest = digests_of(number, &header.metadata, |d| &d.segments).first().copied();
        making.add(number, segment, digest.and_then(&key))?;
    }
    let Making { mut segments, mut warnings, .. } = making;
    if reencrypt::moving::record(&header.metadata).is_some() {
        segments.iter_mut().for_each(|segment| segment.writable = false);
        let moving = "Read-only: a decryption is moving its header to a separate file.";
        warnings.push(Warning::from(moving).advise(Advice::ResumeDecryption));
    }
    let layout = Layout::new(segments)?.for_kernel(with.for_kernel.then_some("LUKS2"));
    Ok(LaidOut { layout, warnings })
}

/// Only a reencryption mixes plaintext and encrypted segments, and a digest made with the volume's keys proves its state. In any
/// other volume, anyone who can write to the header could add a plaintext segment. Its contents were never encrypted, and new data
/// would not be either (the class of CVE-2021-4122; cryptsetup activates no such volume).
fn all_encrypted_alike(header: &ReadHeader) -> Result<()> {
    let parts = parts(header);
    let all_null = parts.iter().all(|(_, segment)| segment.kind == "crypt" && segment.in_clear());
    let Some((number, segment)) = parts.into_iter().find(|(_, segment)| !all_null && segment.in_clear()) else {
        return Ok(());
    };
    let what = format!(
        "segment {number}, from byte {} on, is not encrypted, although no reencryption is in progress",
        segment.offset.0
    );
    Err(Error::from(ErrorKind::Malformed { field: "segments", offset: json_at(header), what }).hint(
        "Nothing was changed. Somebody may have tampered with the header to read or forge your data. Compare it \
         with a header backup, and restore that.",
    ))
}

struct Making<'a> {
    header: &'a ReadHeader,
    data: &'a dyn Store,
    with: &'a Unlock<'a>,
    segments: Vec<Segment>,
    warnings: Vec<Warning>,
}

impl Making<'_> {
    fn add(&mut self, number: u32, segment: &metadata::MetadataSegment, key: Option<&Secret>) -> Result<()> {
        let sector_size = segment.sector_size.unwrap_or(512);
        let (mut len, mut writable) = self.len(number, segment, u64::from(sector_size))?;
        let payload = match segment.kind.as_str() {
            "crypt" if segment.in_clear() => {
                writable &= self.with.write_unencrypted;
                if self.segments.is_empty() {
                    self.warnings.push(unencrypted::warning(self.with));
                }
                Payload::Clear
            }
            "crypt" => match &segment.integrity {
                None => self.crypt(number, segment, key)?,
                Some(integrity) => self.authenticated(number, segment, integrity, key)?,
            },
            "hw-opal" | "hw-opal-crypt" => {
                return Err(Error::unsupported("data encrypted by the drive itself (OPAL)")
                    .hint("Only that drive can decrypt them: use cryptsetup 2.7 or newer on its machine."));
            }
            other => return Err(unknown("segments of type", other)),
        };
        if let Payload::Authenticated { area, .. } = &payload {
            len = self.len_in_area(number, segment, area.len())?;
        }
        let at = self.segments.last().map_or(0, |last| last.at + last.len);
        if at.checked_add(len).is_none() {
            return Err(self.malformed(format!("with segment {number} the volume has more than 2^64 bytes")));
        }
        let stored_at = segment.offset.0;
        self.segments.push(Segment { at, len, stored_at, payload, writable });
        Ok(())
    }

    fn crypt(&self, number: u32, segment: &metadata::MetadataSegment, key: Option<&Secret>) -> Result<Payload> {
        let encryption = segment.encryption.as_deref().unwrap_or_default();
        let key = key.ok_or_else(|| self.malformed(format!("segment {number} has no key")))?;
        let sectors = segment.sectors();
        let at = json_at(self.header);
        let specification = Specification::parse(encryption).map_err(|e| cipher_error(e, at))?;
        let cipher = specification.with_key(key, sectors, self.with.acceleration).map_err(|e| cipher_error(e, at))?;
        let layer = || {
            let (specification, key) = (encryption.to_owned(), Secret::copy_from(key));
            vec![KernelCipher { specification, key, sectors, integrity: None }]
        };
        Ok(Payload::crypt(cipher, 0).with_kernel(self.with.for_kernel.then(layer)))
    }

    /// A segment whose sectors have tags (lib/luks2/luks2_json_metadata.c, `LUKS2_activate`).
    fn authenticated(
        &mut self,
        number: u32,
        segment: &metadata::MetadataSegment,
        by: &metadata::Integrity,
        key: Option<&Secret>,
    ) -> Result<Payload> {
        if by.journal_encryption != "none" || by.journal_integrity != "none" {
            return Err(Error::unsupported("a journal of dm-integrity that is encrypted or has a MAC"));
        }
        let encryption = segment.encryption.as_deref().unwrap_or_default();
        let key = key.ok_or_else(|| self.malformed(format!("segment {number} has no key")))?;
        let (sectors, at) = (segment.sectors(), json_at(self.header));
        let specification = aead::AeadSpecification::parse(encryption, &by.kind).map_err(|e| cipher_error(e, at))?;
        let cipher = specification.with_key(key, sectors, self.with.acceleration).map_err(|e| cipher_error(e, at))?;
        if specification.repeats_vectors() {
            self.warnings.push(
                format!(
                    "The cipher {} reuses each sector's IV, so anybody who sees the volume twice can change it \
                 unnoticed. Move the data to a new volume.",
                    printable(encryption)
                )
                .into(),
            );
        }
        let (offset, tag) = (segment.offset.0, cipher.tag_size());
        let len = self.data.len().saturating_sub(offset);
        let area = integrity::open(self.data, offset, len, tag, sectors.size)?;
        if area.in_journal() > 0 {
            self.warnings.push(
                format!(
                    "{} sectors were still in the journal when the volume was last used; they are read from there.",
                    area.in_journal()
                )
                .into(),
            );
        }
        let layer = || {
            let (specification, key) = (encryption.to_owned(), Secret::copy_from(key));
            vec![KernelCipher { specification, key, sectors, integrity: Some((by.kind.clone(), tag as u32)) }]
        };
        let payload = Payload::Authenticated { area: Arc::new(area), cipher, first: 0, kernel: None };
        Ok(payload.with_kernel(self.with.for_kernel.then(layer)))
    }

    /// The length of a segment with tags: that in its superblock, or the segment's own if shorter.
    fn len_in_area(&self, number: u32, segment: &metadata::MetadataSegment, area: u64) -> Result<u64> {
        match segment.size {
            Size::Dynamic => Ok(area),
            Size::Fixed(len) if len <= area => Ok(len),
            Size::Fixed(len) => {
                Err(self.malformed(format!("segment {number} has {len} bytes, but only {area} of them have tags")))
            }
        }
    }

    /// Returns the length of a segment in bytes, and whether the store holds it entirely, so that it is writable.
    fn len(&mut self, number: u32, segment: &metadata::MetadataSegment, sector: u64) -> Result<(u64, bool)> {
        let (start, there) = (segment.offset.0, self.data.len());
        match segment.size {
            Size::Dynamic => {
                let rest = there.saturating_sub(start);
                let len = rest - rest % sector;
                if len == 0 {
                    let what = format!(
                        "segment {number} begins at byte {start}, but the file has only {there} bytes: at least {} \
                         are missing",
                        start.saturating_add(sector).saturating_sub(there)
                    );
                    return Err(Error::from(ErrorKind::Malformed {
                        field: "segments",
                        offset: json_at(self.header),
                        what,
                    })
                    .hint("The file was cut short. Find a complete copy of the file."));
                }
                if rest > len {
                    let more = rest - len;
                    self.warnings.push(format!(
                        "The last {more} bytes are ignored: they are not a whole {sector}-byte sector. The file was \
                         cut short, or something was appended."
                    ).into());
                }
                Ok((len, true))
            }
            Size::Fixed(len) => {
                let end = start.saturating_add(len);
                if end <= there {
                    return Ok((len, true));
                }
                let what = format!(
                    "segment {number} ends at byte {end}, but the file is cut short at byte {there}: {} bytes are missing",
                    end - there
                );
                if !self.with.truncated {
                    return Err(Error::from(ErrorKind::Malformed {
                        field: "segments",
                        offset: json_at(self.header),
                        what,
                    })
                    .hint("Find a complete copy of the file.")
                    .advise(Advice::OpenTruncated));
                }
                self.warnings.push(format!("Read-only: {what}.").into());
                Ok((len, false))
            }
        }
    }

    fn malformed(&self, what: String) -> Error {
        ErrorKind::Malformed { field: "segments", offset: json_at(self.header), what }.into()
    }
}
