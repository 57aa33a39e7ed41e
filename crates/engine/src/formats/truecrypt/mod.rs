//! TrueCrypt 1.0 to 7.1a: volumes without any mark, found by trying the password on all that a header could be.
//!
//! All facts are those of the source of TrueCrypt 7.1a (files and names are given where they are used), compared with
//! volumes that it and other programs made.

mod create;
mod header;
mod keyfiles;
mod suites;
mod trials;

use std::time::Instant;

use claviger_crypto::SectorCipher;
use claviger_crypto::secret::wipe_stack;

use super::{Choices, Facts, Format, Header, Unlocked, Verdict, magic};
use crate::credential::{Credential, HeaderChoice, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::spec::Spec;
use crate::store::Store;
use crate::volume::{Layout, Payload, Segment};
use header::Fields;
use suites::{KDFS, Kdf, Mode, SUITES, Suite, UNIT};
use trials::{Found, Outcome};

const NAME: &str = "TrueCrypt";

/// The area that each header has for itself, in bytes (Volumes.h, `TC_VOLUME_HEADER_SIZE`).
const HEADER_AREA: u64 = 64 << 10;

/// A header area and that of the hidden volume behind it: at the beginning of the file, and as backups at its end
/// (`TC_VOLUME_HEADER_GROUP_SIZE`).
const HEADER_GROUP: u64 = 2 * HEADER_AREA;

/// The header in front of a volume of TrueCrypt 1.0 to 5.1a, in bytes (`TC_VOLUME_HEADER_SIZE_LEGACY`).
const OLD_HEADER: u64 = 512;

/// Where the header of a hidden volume of TrueCrypt 3.0 to 5.1a is, in bytes from the end
/// (`TC_HIDDEN_VOLUME_HEADER_OFFSET_LEGACY`). The hidden volume ends where it begins.
const OLD_HIDDEN_HEADER: u64 = 1536;

/// The smallest volume that TrueCrypt opens, in bytes (`TC_MIN_VOLUME_SIZE_LEGACY`).
const SMALLEST: u64 = 37 * 512;

/// A place where a header can be.
struct Position {
    /// What a person calls it.
    name: &'static str,
    place: Place,
    /// Whether the store has to be longer than this, in bytes, for there to be such a header (7.1a, Ntvol.c, `TCOpenVolume`).
    beyond: u64,
    hidden: bool,
    backup: bool,
    /// Whether volumes of TrueCrypt 1.0 to 5.1a have their header there too.
    old: bool,
}

/// Bytes from an end of the store.
enum Place {
    Start(u64),
    End(u64),
}

/// Every position; where headers in several open, the first counts.
static POSITIONS: &[Position] = &[
    Position { name: "primary", place: Place::Start(0), beyond: 0, hidden: false, backup: false, old: true },
    Position {
        name: "hidden",
        place: Place::Start(HEADER_AREA),
        beyond: HEADER_GROUP,
        hidden: true,
        backup: false,
        old: false,
    },
    Position {
        name: "hidden",
        place: Place::End(OLD_HIDDEN_HEADER),
        beyond: OLD_HEADER + OLD_HIDDEN_HEADER,
        hidden: true,
        backup: false,
        old: true,
    },
    Position {
        name: "backup",
        place: Place::End(HEADER_GROUP),
        beyond: 2 * HEADER_GROUP,
        hidden: false,
        backup: true,
        old: false,
    },
    Position {
        name: "hidden backup",
        place: Place::End(HEADER_AREA),
        beyond: 2 * HEADER_GROUP,
        hidden: true,
        backup: true,
        old: false,
    },
];

impl Position {
    /// Where the header is in a store of `len` bytes, unless that is too short.
    fn in_store(&self, len: u64) -> Option<u64> {
        (len > self.beyond).then_some(())?;
        match self.place {
            Place::Start(at) => Some(at),
            Place::End(before) => len.checked_sub(before),
        }
    }

    /// Every key derivation that a header here can have.
    fn kdfs(&self) -> &'static [Kdf] {
        if self.old { KDFS } else { suites::modern_kdfs() }
    }

    /// Every suite and mode that a header here can have.
    fn ways(&self) -> impl Iterator<Item = trials::Way> {
        let old = self.old;
        SUITES
            .iter()
            .flat_map(|suite| suite.modes.iter().map(move |mode| (suite, *mode)))
            .filter(move |(_, mode)| old || *mode == Mode::Xts)
    }
}

/// The format.
pub struct TrueCrypt;

impl Format for TrueCrypt {
    fn name(&self) -> &'static str {
        NAME
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        let len = store.len();
        if len < SMALLEST {
            return Ok(Verdict::No(format!("{len} bytes are too few, {SMALLEST} is the smallest volume")));
        }
        if !len.is_multiple_of(512) {
            return Ok(Verdict::No(format!(
                "{len} bytes are not whole sectors; a container that was cut short is opened by naming the format"
            )));
        }
        let mut start = [0; 512];
        store.read_at(0, &mut start)?;
        if let Some(other) = magic::compressed_or_encrypted(&start) {
            return Ok(Verdict::No(format!("it begins as {other} does")));
        }
        // The first sector alone: what follows may be sparse in a container that was formatted quickly.
        if !magic::looks_random(&start) {
            return Ok(Verdict::No(
                "it does not begin with random-looking bytes, as salt and encrypted header do".into(),
            ));
        }
        Ok(Verdict::Possible("it begins with random-looking bytes; TrueCrypt volumes have no other mark".into()))
    }

    fn open(&self, store: &dyn Store) -> Result<Box<dyn Header>> {
        let mut copies: Vec<HeaderCopy> = Vec::new();
        for position in POSITIONS {
            let Some(at) = position.in_store(store.len()) else { continue };
            let mut bytes = [0; header::SIZE];
            match store.read_at(at, &mut bytes) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => continue,
                Err(e) => return Err(e.into()),
            }
            // A sector of one byte repeated, such as a hole in a sparse file, is no salt: this saves deriving keys for it.
            if bytes.iter().any(|b| *b != bytes[0]) && copies.iter().all(|c| c.at != at) {
                copies.push(HeaderCopy { position, at, bytes });
            }
        }
        if copies.is_empty() {
            return Err(ErrorKind::NotThisFormat("no sector that could be a header has anything in it".into()).into());
        }
        Ok(Box::new(Locked { copies }))
    }

    fn create(&self, store: &dyn Store, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
        create::create(store, spec, first).map_err(|e| e.in_format(NAME))
    }

    fn choices(&self) -> Choices {
        Choices {
            ciphers: SUITES.iter().filter(|s| s.creatable()).map(|s| s.name).collect(),
            hashes: suites::modern_kdfs().iter().map(|k| k.hash.name).collect(),
            min_len: create::MIN_LEN,
        }
    }
}

/// The sector at a position: salt, and what may be a header.
struct HeaderCopy {
    position: &'static Position,
    at: u64,
    bytes: [u8; header::SIZE],
}

/// All that could be headers of the volume.
struct Locked {
    copies: Vec<HeaderCopy>,
}

impl Header for Locked {
    fn unlock(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Unlocked> {
        let unlocked = self.unlocked(store, with).map_err(|e| e.in_format(NAME));
        wipe_stack();
        unlocked
    }
}

impl Locked {
    fn unlocked(&self, store: &dyn Store, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let password = keyfiles::password(with.credentials)?;
        let hash = with.hash.map(|name| by_name("hash", KDFS, |k| k.hash.name, name)).transpose()?;
        let suite = with.cipher.map(|name| by_name("cipher", SUITES, |s| s.name, name)).transpose()?;
        let wanted = |position: &Position| with.header == HeaderChoice::Any || position.backup;
        let outcome = trials::run(
            &self.copies,
            &password,
            |position| {
                let right = |k: &&Kdf| hash.is_none_or(|h| std::ptr::eq(h, *k)) && wanted(position);
                position.kdfs().iter().filter(right).collect()
            },
            |position| position.ways().filter(|(s, _)| suite.is_none_or(|wanted| std::ptr::eq(wanted, *s))).collect(),
            with,
        )?;
        let Outcome { found, spoilt, trials } = outcome;
        let Some(found) = found else {
            return Err(spoilt.map_or_else(|| wrong_credential(with), |(_, error)| error));
        };
        let mut warnings = self.header_warnings(&found, spoilt, with);
        let copy = &self.copies[found.copy];
        let data = DataArea::of(&found.fields, copy, store.len())?;
        let layout = data.layout(&found, copy, store, with, &mut warnings)?;
        let facts = self.facts(&found, &data);
        Ok(Unlocked { layout, facts, warnings, trials, took: begun.elapsed() })
    }

    fn facts(&self, found: &Found, data: &DataArea) -> Facts {
        let Found { copy, kdf, suite, mode, plain: _, fields } = found;
        let position = self.copies[*copy].position;
        Facts {
            format: NAME,
            cipher: suite.name.to_owned(),
            mode: mode.name(),
            key_bits: suite.data_key_len() as u32 * 8,
            hash: kdf.hash.name,
            iterations: kdf.iterations,
            header_version: fields.version,
            header: position.name,
            hidden: position.hidden,
            sector_size: fields.sector_size,
            size: data.len,
            data_offset: data.start,
            created: fields.created,
            header_written: fields.header_written,
        }
    }

    /// What to tell of headers that did not open although another did.
    fn header_warnings(&self, found: &Found, spoilt: Option<(usize, Error)>, with: &Unlock<'_>) -> Vec<String> {
        let position = self.copies[found.copy].position;
        let mut warnings = Vec::new();
        if let Some((rank, error)) = spoilt.filter(|(rank, _)| *rank != found.copy) {
            let name = self.copies[rank].position.name;
            warnings.push(format!("The {name} header opens with this password, but is unusable: {}.", error.kind));
        } else if position.backup && with.header == HeaderChoice::Any {
            let primary = if position.hidden { "hidden volume's own header" } else { "primary header" };
            warnings.push(format!(
                "Only the {} header opens with this password: the {primary} is damaged or has another password. \
                 Once the header is restored from the backup, both open with this password.",
                position.name
            ));
        }
        warnings
    }
}

/// Where a volume's data are, in bytes.
struct DataArea {
    start: u64,
    len: u64,
}

impl DataArea {
    fn of(fields: &Fields, copy: &HeaderCopy, store_len: u64) -> Result<Self> {
        if fields.has_backups() {
            return Ok(Self { start: fields.data_start, len: fields.volume_size });
        }
        // Before 6.0 the header's sizes are not used: a volume fills its file, and a hidden one ends at its header
        // (VolumeLayout.cpp, `VolumeLayoutV1Normal` and `VolumeLayoutV1Hidden`).
        if !copy.position.hidden {
            let len = store_len.saturating_sub(OLD_HEADER) / UNIT * UNIT;
            return match len {
                0 => Err(ErrorKind::Malformed {
                    field: "length of the file",
                    offset: store_len,
                    what: "nothing follows the header".into(),
                }
                .into()),
                _ => Ok(Self { start: OLD_HEADER, len }),
            };
        }
        let start = copy.at.checked_sub(fields.hidden_size).filter(|s| *s >= OLD_HEADER && fields.hidden_size > 0);
        match start {
            Some(start) => Ok(Self { start, len: fields.hidden_size }),
            None => Err(ErrorKind::Malformed {
                field: "size of the hidden volume",
                offset: copy.at + header::HIDDEN_SIZE as u64,
                what: format!("{} bytes do not fit in front of its header", fields.hidden_size),
            }
            .into()),
        }
    }

    fn layout(
        &self,
        found: &Found,
        copy: &HeaderCopy,
        store: &dyn Store,
        with: &Unlock<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Layout> {
        let Self { start, len } = *self;
        let store_len = store.len();
        let end = start + len;
        if end > store_len {
            let what = format!(
                "the volume ends at byte {end}, but the file is cut short at byte {store_len}: {} bytes are missing",
                end - store_len
            );
            if !with.truncated {
                let offset = copy.at + header::VOLUME_SIZE as u64;
                return Err(Error::new(ErrorKind::Malformed { field: "size of the volume", offset, what }).hint(
                    "Find a complete copy of the file. What is left can be read if a truncated volume is allowed.",
                ));
            }
            warnings.push(format!("Read-only: {what}."));
        } else if found.fields.has_backups() && end + HEADER_GROUP > store_len {
            warnings.push("The file is cut short behind the data: it has no complete backup headers.".to_owned());
        }
        let cipher = found.suite.data_cipher(found.mode, header::keys(&found.plain), with.acceleration);
        let mut writable = end <= store_len;
        let first = match found.mode {
            Mode::Xts => start / UNIT,
            // From the beginning of the data area (Crypto.c, `DataUnit2LRWIndex`).
            Mode::Lrw => 0,
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc if copy.position.hidden => {
                let counted = hidden_cbc_numbering(store, &*cipher, start, len)?;
                if counted.is_none() {
                    warnings.push(
                        "Read-only: hidden CBC volumes count their sectors in one of two ways, and the data do not show which. \
                         What is read may be wrong."
                            .to_owned(),
                    );
                    writable = false;
                }
                counted.unwrap_or(OLD_HEADER / UNIT)
            }
            Mode::Cbc | Mode::OuterCbc | Mode::InnerCbc => start / UNIT,
        };
        let payload = Payload::Crypt { cipher, first };
        Layout::new(vec![Segment { at: 0, len, stored_at: start, payload, writable }])
    }
}

/// The number of the first sector of a hidden volume in CBC, if its beginning shows it.
///
/// cryptsetup's image `tc_2-ripemd160-cbc-aes-hidden`, made by an old TrueCrypt, counts as if the hidden volume were a file
/// of its own, with the first sector behind a header as number 1; so does cryptsetup. The sources that survive, of 4.0
/// (Driver/Ntvol.c, `TCReadWrite`) to 7.1a, count from the beginning of the file. A wrong number turns every byte of a
/// sector into noise, so the right one is that under which something at the beginning does not look random: a boot sector,
/// a superblock, zeros.
fn hidden_cbc_numbering(store: &dyn Store, cipher: &dyn SectorCipher, start: u64, len: u64) -> Result<Option<u64>> {
    let mut stored = vec![0; (16 * UNIT).min(len) as usize];
    store.read_at(start, &mut stored)?;
    let makes_sense = |first: &u64| {
        let mut plain = stored.clone();
        cipher.decrypt(*first, &mut plain);
        plain.chunks(UNIT as usize).any(|sector| !magic::looks_random(sector))
    };
    Ok([OLD_HEADER / UNIT, start / UNIT].into_iter().find(makes_sense))
}

fn wrong_credential(with: &Unlock<'_>) -> Error {
    let mut tries = vec!["check the passphrase, its keyboard layout and the keyfiles (all of them, and no other)"];
    if with.hash.is_some() || with.cipher.is_some() {
        tries.push("leave out the cipher and the hash");
    }
    if with.header == HeaderChoice::Backup {
        tries.push("try the primary header too");
    }
    Error::new(ErrorKind::WrongCredential(
        "nothing opens. TrueCrypt volumes have no mark: a wrong passphrase, wrong keyfiles, damaged headers and a file that \
         is no TrueCrypt volume look the same"
            .into(),
    ))
    .hint(format!("To try: {}; a copy of the headers that was saved elsewhere.", tries.join("; ")))
}

/// The row of a table with that name, whatever its case.
fn by_name<T>(kind: &str, table: &'static [T], name_of: impl Fn(&T) -> &'static str, name: &str) -> Result<&'static T> {
    table.iter().find(|row| name_of(row).eq_ignore_ascii_case(name)).ok_or_else(|| {
        let all: Vec<_> = table.iter().map(name_of).collect();
        Error::misuse(format!("no {kind} is called {name}; there are: {}", all.join(", ")))
    })
}

/// The suite and key derivation that `spec` asks for, among those that can be created.
fn chosen(spec: &Spec<'_>) -> Result<(&'static Suite, &'static Kdf)> {
    let choices = TrueCrypt.choices();
    let suite = by_name("cipher", SUITES, |s| s.name, spec.cipher.unwrap_or(choices.ciphers[0]))?;
    let kdf = by_name("hash", KDFS, |k| k.hash.name, spec.hash.unwrap_or(choices.hashes[0]))?;
    if !choices.ciphers.contains(&suite.name) {
        return Err(Error::misuse(format!(
            "new volumes cannot have {}; they can: {}",
            suite.name,
            choices.ciphers.join(", ")
        )));
    }
    if !choices.hashes.contains(&kdf.hash.name) {
        return Err(Error::misuse(format!(
            "new volumes cannot have {}; they can: {}",
            kdf.hash.name,
            choices.hashes.join(", ")
        )));
    }
    Ok((suite, kdf))
}
