//! `$EFS`: the recipients that a file is encrypted for (MS-EFSR, 2.2.2.1, which calls this version 1 of the metadata).
//!
//! All numbers are little-endian. There is one list of users (DDF) and one of recovery agents (DRF): a count, then entries. An
//! entry holds the file's key, encrypted for one recipient, and names the recipient's certificate.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::little_endian::u32_at;

/// Bytes of the fixed part.
const HEADER: usize = 0x54;

/// Versions with these metadata. Later versions have a different structure, and appear only where keys are not RSA or files are not
/// on NTFS alone (MS-EFSR, 2.2.2.2).
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;

/// The longest `$EFS`, in bytes.
pub const LONGEST: usize = 256 << 10;

/// The longest name that is shown, in UTF-16 units.
const LONGEST_NAME: usize = 1024;

/// The most owners that a message names. `$EFS` has room for thousands.
const MOST_NAMED: usize = 10;

/// The sizes of the fixed parts of an entry, of an owner and of a certificate, in bytes.
const ENTRY: usize = 20;
const OWNER: usize = 28;
const CERTIFICATE: usize = 20;

/// How an entry identifies its key: by a thumbprint, or by the key's container alone (Windows 2000).
const BY_CERTIFICATE: u32 = 3;
const BY_CONTAINER: u32 = 1;

/// The contents of `$EFS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EfsInfo {
    /// The version of EFS that wrote it.
    pub version: u32,
    /// A unique identifier.
    pub id: [u8; 16],
    /// The users who can read the file.
    pub users: Vec<KeyEntry>,
    /// The agents who can recover the file.
    pub agents: Vec<KeyEntry>,
}

/// A file's key, encrypted for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The entry as stored. All offsets in it count from its beginning.
    bytes: Vec<u8>,
    key: Range<usize>,
    /// How the key is encrypted: 0 with RSA, 1 with AES under a key from a smart card.
    pub flags: u32,
    /// The recipient.
    pub owner: KeyOwner,
}

/// The recipient of a key, as the entry describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyOwner {
    /// Usually the SHA-1 hash of the certificate.
    pub thumbprint: Option<Vec<u8>>,
    /// The Windows account: `S-1-5-21-…`.
    pub sid: Option<String>,
    /// The name of the key's container in its key store.
    pub container: Option<String>,
    /// The provider of that key store.
    pub provider: Option<String>,
    /// The display name of the owner: `Me(me@PC)`.
    pub name: Option<String>,
}

impl EfsInfo {
    /// Parses the contents of `$EFS`.
    ///
    /// # Errors
    /// `Malformed`, and `Unsupported` for other versions.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let whole = Part { bytes, at: 0 };
        if bytes.len() > LONGEST {
            return Err(whole.damaged("length", format!("{} bytes are too many", bytes.len())));
        }
        whole.fixed("length", HEADER)?;
        let len = whole.u32(0) as usize;
        if len > bytes.len() || len < HEADER {
            return Err(whole.damaged("length", format!("it claims {len} bytes but has {}", bytes.len())));
        }
        let version = whole.u32(8);
        if !VERSIONS.contains(&version) {
            return Err(Error::unsupported(format!("EFS metadata of version {version}")));
        }
        let whole = Part { bytes: &bytes[..len], at: 0 };
        let (users, of_users) = whole.list(64, "DDF offset")?;
        let (agents, of_agents) = whole.list(68, "DRF offset")?;
        if of_users.start < of_agents.end && of_agents.start < of_users.end {
            return Err(whole.damaged("DRF offset", "the lists of users and of recovery agents overlap"));
        }
        let id = bytes[16..32].try_into().expect("16 bytes");
        Ok(Self { version, id, users, agents })
    }

    /// Serialises it, the inverse of [`EfsInfo::parse`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.id);
        for (list, field) in [(&self.users, 64), (&self.agents, 68)] {
            if !list.is_empty() {
                let at = bytes.len() as u32;
                bytes[field..field + 4].copy_from_slice(&at.to_le_bytes());
                bytes.extend((list.len() as u32).to_le_bytes());
                list.iter().for_each(|entry| bytes.extend(&entry.bytes));
            }
        }
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// All entries: users first.
    pub fn entries(&self) -> impl Iterator<Item = &KeyEntry> {
        self.users.iter().chain(&self.agents)
    }

    /// The recipients of the file, one line each.
    pub fn keys(&self) -> Vec<String> {
        let users = self.users.iter().map(|entry| entry.owner.to_string());
        users.chain(self.agents.iter().map(|entry| format!("recovery agent {}", entry.owner))).collect()
    }

    /// The recipients in short, for lists: the first digits of thumbprints, where known.
    pub fn short(&self) -> String {
        let short = |entry: &KeyEntry| {
            entry.owner.hex().map_or_else(|| entry.owner.to_string(), |hex| hex[..8.min(hex.len())].to_owned())
        };
        let users = self.users.iter().map(short);
        users.chain(self.agents.iter().map(|entry| format!("agent {}", short(entry)))).collect::<Vec<_>>().join(", ")
    }

    /// The recipients, as the end of "it is encrypted for …".
    pub fn for_whom(&self) -> String {
        let named = |list: &[KeyEntry]| {
            let shown: Vec<_> = list.iter().take(MOST_NAMED).map(|e| e.owner.to_string()).collect();
            match list.len() - shown.len() {
                0 => shown.join(", "),
                more => format!("{} and {more} more", shown.join(", ")),
            }
        };
        match (&self.users[..], &self.agents[..]) {
            ([], []) => "nobody".to_owned(),
            (users, []) => named(users),
            ([], agents) => format!("the recovery agents {}", named(agents)),
            (users, agents) => format!("{}; recovery agents: {}", named(users), named(agents)),
        }
    }
}

impl KeyEntry {
    /// An entry for `owner` with the file's key, already encrypted and in stored byte order.
    pub fn new(owner: KeyOwner, encrypted: &[u8]) -> Self {
        let thumbprint = owner.thumbprint.as_deref().unwrap_or_default();
        let texts = [&owner.container, &owner.provider, &owner.name];
        let mut certificate = vec![0; CERTIFICATE];
        put(&mut certificate, 0, CERTIFICATE);
        put(&mut certificate, 4, thumbprint.len());
        certificate.extend(thumbprint);
        for (field, text) in (8..).step_by(4).zip(texts) {
            if let Some(text) = text {
                let at = certificate.len();
                put(&mut certificate, field, at);
                certificate.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
            }
        }
        certificate.resize(certificate.len().next_multiple_of(4), 0);
        let sid = owner.sid.as_deref().and_then(sid_bytes).unwrap_or_default();
        let mut of_owner = vec![0; OWNER];
        let certificate_at = OWNER + sid.len();
        let fields =
            [certificate_at + certificate.len(), if sid.is_empty() { 0 } else { OWNER }, BY_CERTIFICATE as usize];
        let fields = fields.into_iter().chain([certificate.len(), certificate_at]);
        (0..).step_by(4).zip(fields).for_each(|(field, value)| put(&mut of_owner, field, value));
        of_owner.extend(sid);
        of_owner.extend(certificate);
        let mut bytes = vec![0; ENTRY];
        let key = ENTRY + of_owner.len()..ENTRY + of_owner.len() + encrypted.len();
        let fields = [key.end, ENTRY, encrypted.len(), key.start];
        (0..).step_by(4).zip(fields).for_each(|(field, value)| put(&mut bytes, field, value));
        bytes.extend(of_owner);
        bytes.extend(encrypted);
        Self { bytes, key, flags: 0, owner }
    }

    /// The file's key, encrypted, least significant byte first.
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.key.clone()]
    }
}

fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

impl std::fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = self.name.as_ref().or(self.sid.as_ref()).or(self.container.as_ref());
        match (named, self.hex()) {
            (Some(name), Some(hex)) => write!(f, "{name} (thumbprint {hex})"),
            (None, Some(hex)) => write!(f, "the certificate with the thumbprint {hex}"),
            (Some(name), None) => write!(f, "{name} (no thumbprint)"),
            (None, None) => f.write_str("an unnamed user"),
        }
    }
}

impl KeyOwner {
    /// The thumbprint in hex.
    pub fn hex(&self) -> Option<String> {
        self.thumbprint.as_deref().map(hex::digits)
    }
}

/// A part of `$EFS` that begins at offset `at`.
#[derive(Clone, Copy)]
struct Part<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Part<'a> {
    fn damaged(&self, field: &'static str, what: impl Into<String>) -> Error {
        ErrorKind::Malformed { field, offset: self.at as u64, what: what.into() }.into()
    }

    /// Checks that the fixed part is complete.
    fn fixed(&self, field: &'static str, len: usize) -> Result<()> {
        match self.bytes.len() {
            have if have < len => Err(self.damaged(field, format!("{have} bytes, fewer than {len}"))),
            _ => Ok(()),
        }
    }

    /// The number at `at`, within the fixed part.
    fn u32(&self, at: usize) -> u32 {
        u32_at(self.bytes, at)
    }

    /// The `len` bytes from `from` on, which must lie after the fixed part of `fixed` bytes.
    fn part(&self, field: &'static str, fixed: usize, from: u32, len: u32) -> Result<Self> {
        let (from, len) = (from as usize, len as usize);
        let bytes = self.bytes.get(from..).and_then(|rest| rest.get(..len)).filter(|_| from >= fixed);
        let wrong = || self.damaged(field, format!("{len} bytes at {from} are not within its {}", self.bytes.len()));
        Ok(Self { bytes: bytes.ok_or_else(wrong)?, at: self.at + from })
    }

    /// Everything from `from` on, which must lie after the fixed part.
    fn rest(&self, field: &'static str, fixed: usize, from: u32) -> Result<Self> {
        self.part(field, fixed, from, (self.bytes.len() as u32).saturating_sub(from))
    }

    /// The list whose offset is at `field_at`, and its range. Without an offset the list is empty.
    fn list(&self, field_at: usize, field: &'static str) -> Result<(Vec<KeyEntry>, Range<usize>)> {
        let from = self.u32(field_at);
        if from == 0 {
            return Ok((Vec::new(), 0..0));
        }
        let list = self.rest(field, HEADER, from)?;
        list.fixed("number of entries", 4)?;
        let count = list.u32(0) as usize;
        if count > (list.bytes.len() - 4) / ENTRY {
            return Err(list.damaged("number of entries", format!("there is no room for {count}")));
        }
        let (mut entries, mut end) = (Vec::new(), 4);
        for _ in 0..count {
            let entry = list.rest("entry", 4, end as u32)?;
            entry.fixed("entry", ENTRY)?;
            let entry = entry.part("length of an entry", 0, 0, entry.u32(0))?;
            end += entry.bytes.len();
            entries.push(entry.entry()?);
        }
        Ok((entries, list.at..list.at + end))
    }

    fn entry(&self) -> Result<KeyEntry> {
        self.fixed("length of an entry", ENTRY)?;
        let key = self.part("encrypted key", ENTRY, self.u32(12), self.u32(8))?;
        let owner = self.rest("owner of a key", ENTRY, self.u32(4))?;
        owner.fixed("owner of a key", OWNER)?;
        let owner = owner.part("length of an owner", 0, 0, owner.u32(0))?;
        if key.at < owner.at + owner.bytes.len() && owner.at < key.at + key.bytes.len() {
            return Err(self.damaged("encrypted key", "it overlaps the owner's name"));
        }
        let key = key.at - self.at..key.at - self.at + key.bytes.len();
        Ok(KeyEntry { bytes: self.bytes.to_vec(), key, flags: self.u32(16), owner: owner.owner()? })
    }

    fn owner(&self) -> Result<KeyOwner> {
        self.fixed("length of an owner", OWNER)?;
        let sid = match self.u32(4) {
            0 => None,
            at => Some(self.rest("SID", OWNER - 8, at)?.sid()?),
        };
        match self.u32(8) {
            BY_CERTIFICATE => {
                let certificate = self.part("certificate", OWNER - 8, self.u32(16), self.u32(12))?;
                certificate.fixed("certificate", CERTIFICATE)?;
                let thumbprint = certificate.part("thumbprint", CERTIFICATE, certificate.u32(0), certificate.u32(4))?;
                let [container, provider, name] = [(8, "container"), (12, "provider"), (16, "name")]
                    .map(|(field_at, field)| certificate.text(field, CERTIFICATE, certificate.u32(field_at)));
                let thumbprint = (!thumbprint.bytes.is_empty()).then(|| thumbprint.bytes.to_vec());
                Ok(KeyOwner { thumbprint, sid, container: container?, provider: provider?, name: name? })
            }
            BY_CONTAINER => {
                let container = self.text("container", OWNER, self.u32(12))?;
                let provider = self.text("provider", OWNER, self.u32(16))?;
                Ok(KeyOwner { sid, container, provider, ..KeyOwner::default() })
            }
            _ => Ok(KeyOwner { sid, ..KeyOwner::default() }),
        }
    }

    /// UTF-16 text from `from` up to a zero. An offset of 0 means no text.
    fn text(&self, field: &'static str, fixed: usize, from: u32) -> Result<Option<String>> {
        if from == 0 {
            return Ok(None);
        }
        let text = self.rest(field, fixed, from)?.bytes.as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit));
        let units: Vec<_> = text.take(LONGEST_NAME + 1).take_while(|unit| *unit != 0).collect();
        if units.len() > LONGEST_NAME {
            return Err(self.damaged(field, "it is too long"));
        }
        // People see this text: it must not move their cursor or reverse the text direction.
        let moves = |c: char| {
            c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        Ok(Some(String::from_utf16_lossy(&units).replace(moves, "\u{fffd}")))
    }

    /// A security identifier (MS-DTYP, 2.4.2.2).
    fn sid(&self) -> Result<String> {
        self.fixed("SID", 8)?;
        let count = usize::from(self.bytes[1]);
        self.fixed("SID", 8 + 4 * count)?;
        let authority = self.bytes[2..8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let rest = (0..count).map(|i| format!("-{}", self.u32(8 + 4 * i))).collect::<String>();
        Ok(format!("S-{}-{authority}{rest}", self.bytes[0]))
    }
}

/// The inverse of [`Part::sid`]. `None` if the text is not a SID.
fn sid_bytes(text: &str) -> Option<Vec<u8>> {
    let mut numbers = text.strip_prefix("S-")?.split('-');
    let (revision, authority) = (numbers.next()?.parse::<u8>().ok()?, numbers.next()?.parse::<u64>().ok()?);
    let rest = numbers.map(|number| number.parse::<u32>().ok()).collect::<Option<Vec<_>>>()?;
    let head = [revision, u8::try_from(rest.len()).ok()?];
    let numbers = rest.into_iter().flat_map(u32::to_le_bytes);
    Some(head.into_iter().chain(authority.to_be_bytes()[2..].to_vec()).chain(numbers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(n: u8) -> KeyOwner {
        KeyOwner {
            thumbprint: Some(vec![n; 20]),
            sid: Some(format!("S-1-5-21-1-2-3-{n}")),
            container: Some("container".into()),
            provider: None,
            name: Some(format!("Größe {n}")),
        }
    }

    fn info() -> EfsInfo {
        let entry = |n| KeyEntry::new(owner(n), &[n; 256]);
        let other = KeyEntry::new(KeyOwner { thumbprint: Some(vec![9; 20]), ..KeyOwner::default() }, &[4; 128]);
        EfsInfo { version: 2, id: [7; 16], users: vec![entry(1), entry(2)], agents: vec![entry(3), other] }
    }

    #[test]
    fn what_is_written_is_read() {
        for info in [info(), EfsInfo { agents: Vec::new(), ..info() }, EfsInfo { users: Vec::new(), ..info() }] {
            let read = EfsInfo::parse(&info.to_bytes()).expect("whole");
            assert_eq!(read, info);
            assert_eq!(read.to_bytes(), info.to_bytes());
        }
        let read = EfsInfo::parse(&info().to_bytes()).expect("whole");
        assert_eq!((read.users[1].owner.clone(), read.users[1].key()), (owner(2), &[2; 256][..]));
        let thumbprint = "01".repeat(20);
        assert!(read.for_whom().starts_with(&format!("Größe 1 (thumbprint {thumbprint}), Größe 2 (")));
        assert!(read.for_whom().contains("; recovery agents: Größe 3 (") && read.agents[1].key() == [4; 128]);
        let many = EfsInfo { users: (0..200).map(|n| KeyEntry::new(owner(n), &[n; 256])).collect(), ..info() };
        let many = EfsInfo::parse(&many.to_bytes()).expect("whole").for_whom();
        assert!(
            many.contains("Größe 9 (") && !many.contains("Größe 10 (") && many.contains(" and 190 more; rec"),
            "{many}"
        );
    }

    #[test]
    fn each_number_may_be_wrong() {
        let bytes = info().to_bytes();
        let len = bytes.len() as u32;
        for at in (0..bytes.len() - 4).step_by(2) {
            let there = u32_at(&bytes, at);
            for wrong in [0, 1, 3, 20, 28, 0x54, there.wrapping_add(1), there.wrapping_sub(1), len, 1 << 31, u32::MAX] {
                let mut changed = bytes.clone();
                put(&mut changed, at, wrong as usize);
                // Parsing ends soon, and what it accepts lies within the bytes.
                match EfsInfo::parse(&changed) {
                    Ok(info) => assert!(info.entries().map(|e| e.bytes.len()).sum::<usize>() < bytes.len()),
                    Err(e) => assert!(
                        matches!(e.kind, ErrorKind::Malformed { .. } | ErrorKind::Unsupported { .. }),
                        "{wrong} at {at}: {e}"
                    ),
                }
            }
        }
        for cut in 0..bytes.len() {
            assert!(EfsInfo::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn lists_that_overlap_and_entries_without_end_are_errors() {
        let bytes = info().to_bytes();
        let error = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = bytes.clone();
            change(&mut changed);
            EfsInfo::parse(&changed).expect_err("it is damaged").to_string()
        };
        assert!(error(&|b| put(b, 68, HEADER)).contains("overlap"));
        assert!(error(&|b| put(b, HEADER, u32::MAX as usize)).contains("no room"));
        assert!(error(&|b| put(b, HEADER + 4, 0)).contains("length of an entry"), "it would never end");
        assert!(error(&|b| put(b, HEADER + 4 + 12, 30)).contains("overlaps"));
        assert!(error(&|b| put(b, 8, 4)).contains("version 4"));
    }
}
