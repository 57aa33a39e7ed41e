//! Core Storage's metadata about its volumes: blocks of 8192 bytes, encrypted with a key that is stored beside them in the clear
//! (libfvde, "FileVault Drive Encryption (FVDE)", sections "Metadata" and "Encrypted metadata";
//! libfvde/libfvde_encrypted_metadata.c of its sources; cryptsetup 2.6.1, lib/fvault2/fvault2.c). All numbers are little-endian.
//!
//! The volume header lists four labels, copies of each other. A label gives the offsets of two copies of the encrypted blocks.
//! These form a journal: of all blocks of a type the last one is valid.
//!
//! ```text
//! every block           0x0011, the label       0x0019, the encryption context      0x001A, the logical volume
//!  0  4  checksum       220  4  descriptor      96   8  object where it goes on     72  8  object of type 0x0305
//!  4  4  its seed                               104  4  bytes stored                104 8  object of type 0x0505
//! 10  2  type           the descriptor          108  4  bytes when inflated         128 4  where its XML is
//! 24  8  object          8  8  blocks           112  4  where those here are        132 4  bytes of it
//!                       24  8  copies           116  4  bytes of them here
//!                       32  8  first copy                                           0x0505, where it begins
//!                       40  8  second copy      0x0024, more of it                  64  4  entries
//!                                               64   8  object where it goes on     72  8  blocks
//! 0x0305, its parts                             72   4  bytes here                  80  8  first block
//! 64  4  entries of 40 bytes, from byte 72:     80      the bytes
//!        8 first logical block, 16 blocks, 32 first physical block
//! ```

use std::collections::HashMap;

use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_crypto::{Acceleration, SectorCipher};

use super::context::{Context, Trouble};
use super::header::{VolumeHeader, checksum_matches, number};
use super::plist::Plist;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::luks::uuid;
use crate::hex;
use crate::store::Store;

/// The size of a metadata block, in bytes.
const BLOCK: usize = 8192;

/// The maximum number of blocks read: 64 MiB. Volumes have 4096.
const MOST_BLOCKS: u64 = 1 << 13;

/// The maximum number of encryption contexts tried, from the last one back.
const MOST_CONTEXTS: usize = 16;

/// The limit for the size of a property list, in bytes. It includes the users' pictures.
const LARGEST_LIST: usize = 16 << 20;

/// The first bytes of a discarded block.
const WIPED: &[u8] = b"LVFwiped";

/// The offsets of fields in a block, in bytes.
mod at {
    pub const TYPE: usize = 10;
    pub const OBJECT: usize = 24;
    pub const DESCRIPTOR: usize = 220;
    pub const CONTEXT_NEXT: usize = 96;
    pub const CONTEXT_STORED: usize = 104;
    pub const CONTEXT_INFLATED: usize = 108;
    pub const CONTEXT_AT: usize = 112;
    pub const CONTEXT_HERE: usize = 116;
    pub const MORE_NEXT: usize = 64;
    pub const MORE_HERE: usize = 72;
    pub const MORE: usize = 80;
    pub const VOLUME_PARTS: usize = 72;
    pub const VOLUME_BEGINNING: usize = 104;
    pub const VOLUME_XML: usize = 128;
    pub const VOLUME_XML_SIZE: usize = 132;
    pub const ENTRIES: usize = 64;
    pub const FIRST_ENTRY: usize = 72;
}

/// The metadata that were read.
pub(super) struct Metadata {
    /// The logical volume.
    pub volume: LogicalVolume,
    /// The encryption context, if the metadata contain one, or its damage.
    pub context: std::result::Result<Option<Context>, Trouble>,
    /// Damage that does not keep the volume from being opened, in whole sentences.
    pub warnings: Vec<String>,
}

impl Metadata {
    /// Returns the encryption context, if it exists and is sound.
    pub fn context(&self) -> Result<Option<&Context>> {
        self.context.as_ref().map(Option::as_ref).map_err(|trouble| trouble.clone().error())
    }
}

/// A logical volume.
pub(super) struct LogicalVolume {
    /// The UUID of its family: half of the input for the tweak key.
    pub family: [u8; 16],
    /// Its own UUID.
    pub uuid: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// The size of the plaintext, in bytes.
    pub size: u64,
    /// Its parts in order, with the block numbers of the metadata.
    pub parts: Vec<Part>,
    /// The block from which the parts are counted, if there is one.
    pub beginning: u64,
}

/// A part of a logical volume: consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its first block in the logical volume.
    pub logical: u64,
    /// The number of its blocks.
    pub blocks: u64,
    /// Its first block in the physical volume.
    pub physical: u64,
    /// The number of that physical volume in its group.
    pub disk: u16,
}

/// A decrypted block, and its offset.
struct Block {
    at: u64,
    bytes: Vec<u8>,
}

impl Block {
    fn number(&self, at: usize, len: usize) -> u64 {
        number(&self.bytes, at, len)
    }

    fn object(&self) -> u64 {
        self.number(at::OBJECT, 8)
    }

    fn malformed(&self, field: &'static str, at: usize, what: impl Into<String>) -> Error {
        ErrorKind::Malformed { field, offset: self.at + at as u64, what: what.into() }.into()
    }

    /// Returns the bytes whose offset and size are in two of its fields.
    fn range(&self, (from, len): (usize, usize)) -> Option<&[u8]> {
        let (from, len) = (self.number(from, 4) as usize, self.number(len, 4) as usize);
        self.bytes.get(from..from.checked_add(len)?)
    }

    /// The property list of a logical volume.
    fn volume(&self) -> Option<Plist> {
        Plist::parse(self.range((at::VOLUME_XML, at::VOLUME_XML_SIZE))?)
    }
}

/// The state of a block on the disk.
enum BlockState {
    /// The journal ends here.
    Empty,
    Wiped,
    Damaged,
    Good(Block),
}

/// The places of the encrypted blocks, in bytes of the store.
struct Places {
    copies: Vec<u64>,
    blocks: u64,
}

/// Reads the metadata that the header points to.
///
/// # Errors
/// `Malformed`, `Unsupported`, `Io`.
pub(super) fn read(store: &dyn Store, header: &VolumeHeader) -> Result<Metadata> {
    let mut warnings = Vec::new();
    let places = places(store, header, &mut warnings)?;
    let blocks = Blocks::read(store, header, &places, &mut warnings)?;
    blocks.metadata(warnings)
}

/// Reads metadata from consecutive plain blocks without checksums: for fuzzing.
pub(super) fn in_clear(bytes: &[u8]) -> Result<Metadata> {
    Blocks::in_clear(bytes).metadata(Vec::new())
}

/// Reads the first sound label.
fn places(store: &dyn Store, header: &VolumeHeader, warnings: &mut Vec<String>) -> Result<Places> {
    let mut damaged = None;
    for (number, block) in (1..).zip(header.labels).filter(|(number, block)| *number == 1 || *block != 0) {
        match label(store, header, block) {
            Ok(places) => {
                warnings.extend(
                    damaged
                        .is_some()
                        .then(|| format!("The first labels of the metadata are damaged: label {number} was used.")),
                );
                return Ok(places);
            }
            Err(error @ Error { kind: ErrorKind::Io(_), .. }) => return Err(error),
            Err(error) => damaged = damaged.or(Some(error)),
        }
    }
    Err(damaged.unwrap_or_else(|| Error::unsupported("a volume without metadata")))
}

fn label(store: &dyn Store, header: &VolumeHeader, block: u64) -> Result<Places> {
    let malformed = |offset, what: String| Error::from(ErrorKind::Malformed { field: "label", offset, what });
    let beyond = |block: u64| format!("block {block} is not in the file");
    let at = header.byte_of(block).ok_or_else(|| malformed(header.at, beyond(block)))?;
    let Some(bytes) = read_some(store, at, BLOCK)? else { return Err(malformed(at, beyond(block))) };
    if !checksum_matches(&bytes) {
        return Err(malformed(at, "the checksum of the metadata's label is wrong".into()));
    }
    let descriptor = at.saturating_add(number(&bytes, at::DESCRIPTOR, 4));
    let Some(bytes) = read_some(store, descriptor, 48)? else {
        return Err(malformed(at + at::DESCRIPTOR as u64, format!("byte {descriptor} is not in the file")));
    };
    let copies = [32, 40].map(|at| number(&bytes, at, 8));
    // The second copy is used only if the label says that there are two.
    let named = if number(&bytes, 24, 8) >= 2 && copies[1] != 0 { &copies[..] } else { &copies[..1] };
    let copies = named.iter().filter_map(|block| header.byte_of(*block)).collect();
    Ok(Places { copies, blocks: number(&bytes, 8, 8).min(MOST_BLOCKS) })
}

/// Returns `len` bytes, if the store has them.
fn read_some(store: &dyn Store, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
    if at.checked_add(len as u64).is_none_or(|end| end > store.len()) {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    store.read_at(at, &mut bytes)?;
    Ok(Some(bytes))
}

/// The relevant blocks.
#[derive(Default)]
struct Blocks {
    contexts: Vec<Block>,
    volumes: Vec<Block>,
    /// The last block of each object, by object, and the last block of all.
    parts: HashMap<u64, Block>,
    last_parts: u64,
    beginnings: HashMap<u64, Block>,
    last_beginning: u64,
    more: HashMap<u64, Block>,
}

impl Blocks {
    fn read(store: &dyn Store, header: &VolumeHeader, places: &Places, warnings: &mut Vec<String>) -> Result<Self> {
        let aes = |key: &[u8]| AES.with_key(key, Acceleration::On);
        let cipher = Xts::new(vec![Layer { data: aes(&header.metadata_key), tweak: aes(&header.uuid) }], BLOCK);
        let mut blocks = Self::default();
        let (mut seen, mut damaged, mut from_copy) = (0, 0u64, 0u64);
        for number in 0..places.blocks {
            match read_block(store, &cipher, places, number)? {
                (_, BlockState::Empty) => break,
                (_, BlockState::Wiped) => {}
                (_, BlockState::Damaged) => damaged += 1,
                (copy, BlockState::Good(block)) => {
                    seen += 1;
                    from_copy += u64::from(copy > 0);
                    blocks.take(block);
                }
            }
        }
        if seen == 0 {
            let offset = places.copies.first().copied().unwrap_or(header.at);
            let what = "the encrypted metadata are missing: no block has a valid checksum".to_owned();
            return Err(ErrorKind::Malformed { field: "encrypted metadata", offset, what }.into());
        }
        warnings.extend(
            (from_copy > 0).then(|| format!("{from_copy} metadata blocks are damaged; their second copies were used.")),
        );
        warnings.extend(
            (damaged > 0).then(|| {
                format!("{damaged} metadata blocks are damaged in all copies. The state used may be outdated.")
            }),
        );
        Ok(blocks)
    }

    /// Reads plain blocks without checksums from `bytes`: for fuzzing.
    fn in_clear(bytes: &[u8]) -> Self {
        let mut blocks = Self::default();
        for (number, piece) in bytes.chunks(BLOCK).enumerate() {
            let mut bytes = piece.to_vec();
            bytes.resize(BLOCK, 0);
            blocks.take(Block { at: (number * BLOCK) as u64, bytes });
        }
        blocks
    }

    fn take(&mut self, block: Block) {
        let object = block.object();
        match block.number(at::TYPE, 2) {
            0x0019 => self.contexts.push(block),
            0x001a => self.volumes.push(block),
            0x0024 => drop(self.more.insert(object, block)),
            0x0305 => {
                self.last_parts = object;
                self.parts.insert(object, block);
            }
            0x0505 => {
                self.last_beginning = object;
                self.beginnings.insert(object, block);
            }
            _ => {}
        }
    }

    fn metadata(&self, mut warnings: Vec<String>) -> Result<Metadata> {
        Ok(Metadata { volume: self.logical_volume(&mut warnings)?, context: self.context(), warnings })
    }

    /// Returns the most recently written logical volume.
    fn logical_volume(&self, warnings: &mut Vec<String>) -> Result<LogicalVolume> {
        let last = self.volumes.last().ok_or_else(|| no_block("0x001A", "it has no logical volume"))?;
        let malformed = |what: String| last.malformed("XML of the logical volume", at::VOLUME_XML, what);
        let list =
            last.volume().ok_or_else(|| malformed("it reaches beyond its block, or is nested too deep".into()))?;
        let missing = |what: &str| malformed(format!("it has no {what}"));
        let family = list.text("com.apple.corestorage.lv.familyUUID").and_then(binary_uuid);
        let family = family.ok_or_else(|| missing("UUID of its family"))?;
        let size = list.number("com.apple.corestorage.lv.size").ok_or_else(|| missing("size"))?;
        if size == 0 || !size.is_multiple_of(512) {
            return Err(malformed(format!("{size} bytes is not a valid size of a logical volume")));
        }
        let uuid = list.text("com.apple.corestorage.lv.uuid").and_then(|text| uuid::parse(text).ok());
        warnings.extend(
            self.other_volumes(uuid.as_deref()).then(|| {
                "The metadata list several logical volumes; the most recently written one is opened.".to_owned()
            }),
        );
        let parts = self.parts.get(&last.number(at::VOLUME_PARTS, 8)).or_else(|| self.parts.get(&self.last_parts));
        let parts = parts.ok_or_else(|| no_block("0x0305", "it does not locate the logical volume"))?;
        let beginning = self.beginnings.get(&last.number(at::VOLUME_BEGINNING, 8));
        let beginning = beginning.or_else(|| self.beginnings.get(&self.last_beginning));
        let name = list.text("com.apple.corestorage.lv.name").map(str::to_owned);
        let parts = entries(parts)?;
        let beginning = match beginning.map_or(Ok(0), first_block) {
            // The parts have physical places of their own.
            Err(_) if parts[0].physical > 0 => 0,
            other => other?,
        };
        Ok(LogicalVolume { family, uuid, name, size, parts, beginning })
    }

    /// Whether there is a logical volume with another UUID.
    fn other_volumes(&self, uuid: Option<&str>) -> bool {
        let lists = self.volumes.iter().filter_map(Block::volume);
        let mut uuids = lists.filter_map(|list| uuid::parse(list.text("com.apple.corestorage.lv.uuid")?).ok());
        uuids.any(|other| uuid.is_some_and(|uuid| uuid != other))
    }

    /// Returns the most recently written encryption context that has users.
    fn context(&self) -> std::result::Result<Option<Context>, Trouble> {
        let mut damaged = None;
        for block in self.contexts.iter().rev().take(MOST_CONTEXTS) {
            match self.context_of(block) {
                Ok(Some(context)) => return Ok(Some(context)),
                Ok(None) => {}
                Err(error) => damaged = damaged.or(Some(error)),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    fn context_of(&self, block: &Block) -> std::result::Result<Option<Context>, Trouble> {
        let trouble = |at: usize, what: &str| {
            let (field, at, what) = ("encryption context", block.at + at as u64, what.to_owned());
            Trouble { field, at, what, unknown: false }
        };
        let here = block.range((at::CONTEXT_AT, at::CONTEXT_HERE));
        let here = here.ok_or_else(|| trouble(at::CONTEXT_AT, "it reaches beyond its block"))?;
        let next = block.number(at::CONTEXT_NEXT, 8);
        let [stored, inflated] = [at::CONTEXT_STORED, at::CONTEXT_INFLATED].map(|at| block.number(at, 4) as usize);
        let whole = match next {
            0 => here.to_vec(),
            next => self
                .chain(here, next, stored)
                .ok_or_else(|| trouble(at::CONTEXT_NEXT, "its continuation blocks are missing"))?,
        };
        // cryptsetup uses the list without decompressing it.
        let list = match stored == inflated || whole.starts_with(b"<") {
            true => whole,
            false => miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&whole, LARGEST_LIST.min(inflated))
                .map_err(|_| trouble(at::CONTEXT_AT, "it is compressed and cannot be decompressed"))?,
        };
        let list = Plist::parse(&list).ok_or_else(|| trouble(at::CONTEXT_AT, "it is nested too deep"))?;
        Ok(Context::of(&list, block.at))
    }

    /// Returns the contents of a chain of blocks, `stored` bytes. libfvde's document counts the 16 bytes in front of each block's
    /// part, its program does not.
    fn chain(&self, here: &[u8], next: u64, stored: usize) -> Option<Vec<u8>> {
        if stored > LARGEST_LIST {
            return None;
        }
        [0, 16].into_iter().find_map(|more| {
            let (mut whole, mut next) = (here.to_vec(), next);
            while next != 0 && whole.len() < stored {
                let block = self.more.get(&next)?;
                let len = (block.number(at::MORE_HERE, 4) as usize).checked_sub(more).filter(|len| *len > 0)?;
                whole.extend(block.bytes.get(at::MORE..at::MORE.checked_add(len)?)?);
                next = block.number(at::MORE_NEXT, 8);
            }
            (next == 0 && whole.len() == stored).then_some(whole)
        })
    }
}

fn no_block(kind: &str, what: &str) -> Error {
    Error::unsupported(format!("these metadata: {what} (no block of type {kind})"))
        .hint("Only encrypted logical volumes are supported.")
}

/// The error for a volume with a part on another disk.
pub(super) fn other_disk() -> Error {
    Error::unsupported("a logical volume on several disks (a Fusion Drive)")
}

/// Returns the first sound copy of a block, and which copy it is.
fn read_block(store: &dyn Store, cipher: &Xts, places: &Places, number: u64) -> Result<(usize, BlockState)> {
    let mut damaged = false;
    for (copy, start) in places.copies.iter().enumerate() {
        let at = start.saturating_add(number * BLOCK as u64);
        let found = match read_some(store, at, BLOCK)? {
            Some(bytes) => decrypted(cipher, at, number, bytes),
            None => BlockState::Damaged,
        };
        match found {
            // A journal whose first block is empty was overwritten.
            BlockState::Empty if number > 0 && !damaged => return Ok((copy, BlockState::Empty)),
            BlockState::Empty | BlockState::Damaged => damaged = true,
            found => return Ok((copy, found)),
        }
    }
    Ok((0, BlockState::Damaged))
}

fn decrypted(cipher: &Xts, at: u64, number: u64, mut bytes: Vec<u8>) -> BlockState {
    if bytes.iter().all(|byte| *byte == 0) {
        return BlockState::Empty;
    }
    cipher.decrypt(number, &mut bytes);
    if bytes.starts_with(WIPED) {
        return BlockState::Wiped;
    }
    if checksum_matches(&bytes) { BlockState::Good(Block { at, bytes }) } else { BlockState::Damaged }
}

/// Returns the parts of a logical volume. cryptsetup reads only the first entry, however many there are.
fn entries(block: &Block) -> Result<Vec<Part>> {
    const SIZE: usize = 40;
    let count = (block.number(at::ENTRIES, 4) as usize).max(1);
    if count > (BLOCK - at::FIRST_ENTRY) / SIZE {
        return Err(block.malformed(
            "parts of the logical volume",
            at::ENTRIES,
            format!("{count} parts do not fit into a block"),
        ));
    }
    let entry = |i: usize| {
        let at = at::FIRST_ENTRY + SIZE * i;
        let physical = block.number(at + 32, 8);
        Part {
            logical: block.number(at + 8, 8),
            blocks: block.number(at + 16, 4),
            // The upper 16 bits are the disk's number.
            physical: physical & (u64::MAX >> 16),
            disk: (physical >> 48) as u16,
        }
    };
    let mut parts: Vec<_> = (0..count).map(entry).collect();
    parts.sort_by_key(|part| part.logical);
    Ok(parts)
}

/// Returns the block in the physical volume from which a logical volume's parts are counted.
fn first_block(block: &Block) -> Result<u64> {
    match block.number(at::ENTRIES, 4) {
        0 => Ok(0),
        1 if block.number(at::FIRST_ENTRY + 8, 8) >> 48 > 0 => Err(other_disk()),
        1 => Ok(block.number(at::FIRST_ENTRY + 8, 8)),
        several => Err(Error::unsupported(format!("a logical volume in {several} places (block of type 0x0505)"))),
    }
}

/// Returns a UUID in the form that is hashed.
pub(super) fn binary_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = uuid::parse(text.trim()).ok()?.replace('-', "");
    hex::decode_vec(digits).ok()?.try_into().ok()
}
