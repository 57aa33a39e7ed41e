//! A maker of FileVault 2 volumes, written only from documents (libfvde, "FileVault Drive Encryption (FVDE)";
//! cryptsetup 2.6.1, lib/fvault2/fvault2.c). It shares no code with the reader. Other programs check it, too.
//!
//! ```text
//! block 0        volume header                block 128  encrypted metadata, second copy
//! block 1, 5 …   four labels                  block 192  the data
//! block 64       encrypted metadata           at the end volume header, once more
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::random::Random;
use crate::reference::aes::Aes;
use crate::reference::{Keyed, xts};

/// Size of a block, the unit of positions, in bytes.
pub const BLOCK: usize = 4096;

/// Size of a metadata block, in bytes.
pub const METADATA_BLOCK: usize = 8192;

/// Positions of the labels, both copies of the encrypted metadata, and the data, in blocks.
const LABELS: [u64; 4] = [1, 5, 9, 13];
const METADATA: [u64; 2] = [64, 128];
/// See [`METADATA`].
pub const DATA: u64 = 192;

/// The bytes that replace the checksum of a discarded block.
pub const WIPED: &[u8] = b"LVFwiped";

/// Number of metadata blocks that fit.
const ROOM: usize = 32;

/// A user who can open a volume.
#[derive(Clone, Copy)]
pub struct User<'a> {
    /// The passphrase or the recovery key, with its hyphens.
    pub passphrase: &'a str,
    /// The name.
    pub name: &'a str,
    /// Iterations of PBKDF2.
    pub iterations: u32,
}

/// Description of a volume.
#[derive(Clone)]
pub struct Recipe<'a> {
    /// The users who can open it.
    pub users: &'a [User<'a>],
    /// Its plaintext, in whole blocks.
    pub plaintext: &'a [u8],
    /// Its parts: the length of each, and its position relative to `beginning`, in blocks.
    pub parts: Vec<(u64, u64)>,
    /// The block that positions of parts are relative to, stored in a metadata block of its own unless it is 0.
    pub beginning: u64,
    /// Whether the encryption context is compressed and continues in blocks of its own.
    pub compressed: bool,
    /// Progress of the encryption, in Core Storage's terms.
    pub conversion: &'a str,
    /// The seed of all random data.
    pub seed: u64,
}

impl<'a> Recipe<'a> {
    /// A simple volume, in one part.
    pub fn new(users: &'a [User<'a>], plaintext: &'a [u8]) -> Self {
        let parts = vec![((plaintext.len() / BLOCK) as u64, DATA)];
        Self { users, plaintext, parts, beginning: 0, compressed: false, conversion: "Complete", seed: 1 }
    }

    /// Makes the volume.
    pub fn make(&self) -> Image {
        let mut random = Random::new(self.seed);
        let mut uuid = || -> [u8; 16] { random.bytes(16).try_into().expect("16 bytes") };
        let [physical, group, family, logical, key, kek, metadata_key] = std::array::from_fn(|_| uuid());
        let volume_key = volume_key(&key, &family);
        let names = Names { group: text(&group), family: text(&family), logical: text(&logical) };
        let context = self.context(&names, &key, &kek, &mut Random::new(self.seed + 1));
        let mut blocks = vec![group_block(&names)];
        let logical_volumes = block(0x0105, 7, |b| put(b, 64, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]));
        blocks.push(logical_volumes);
        blocks.push(self.parts_block());
        blocks.extend((self.beginning > 0).then(|| {
            let blocks = self.plaintext.len().div_ceil(BLOCK) as u64;
            block(0x0505, 4, |b| {
                number(b, 64, 4, 1);
                number(b, 72, 8, blocks);
                number(b, 80, 8, self.beginning);
            })
        }));
        blocks.extend(self.context_blocks(context.as_bytes()));
        blocks.push(self.volume_block(&names));
        let data_end = self.parts.iter().map(|(len, at)| self.beginning + at + len).max().expect("a part");
        let len = data_end as usize * BLOCK + BLOCK;
        let mut header = [0; 512];
        number(&mut header, 4, 4, 0xffff_ffff);
        number(&mut header, 8, 2, 1);
        number(&mut header, 10, 2, 0x10);
        number(&mut header, 16, 8, 1);
        number(&mut header, 48, 4, 512);
        number(&mut header, 64, 8, len as u64);
        put(&mut header, 88, b"CS");
        number(&mut header, 90, 4, 1);
        number(&mut header, 94, 2, 4);
        number(&mut header, 96, 4, BLOCK as u64);
        number(&mut header, 100, 4, 2 * METADATA_BLOCK as u64);
        for (i, place) in LABELS.iter().enumerate() {
            number(&mut header, 104 + 8 * i, 8, *place);
        }
        number(&mut header, 168, 4, 16);
        number(&mut header, 172, 4, 2);
        put(&mut header, 176, &metadata_key);
        put(&mut header, 304, &physical);
        put(&mut header, 320, &group);
        let mut bytes = vec![0; len];
        let mut at = 0;
        for (blocks, place) in &self.parts {
            let end = (at + *blocks as usize * BLOCK).min(self.plaintext.len());
            let mut run = self.plaintext[at..end].to_vec();
            encrypt(&volume_key, 512, at as u64 / 512, &mut run);
            put(&mut bytes, (self.beginning + place) as usize * BLOCK, &run);
            at = end;
        }
        assert_eq!(at, self.plaintext.len(), "the parts hold all of it");
        let labels = vec![label(&names, len); LABELS.len()];
        Image { header, labels, blocks, bytes, volume_key, family, logical, physical }
    }

    fn context(&self, names: &Names, key: &[u8; 16], kek: &[u8; 16], random: &mut Random) -> String {
        let mut users = String::new();
        for (i, user) in self.users.iter().enumerate() {
            let salt: [u8; 16] = random.bytes(16).try_into().expect("16 bytes");
            let derived = pbkdf2(user.passphrase.as_bytes(), &salt, user.iterations);
            let mut wrapped = [0; 284];
            number(&mut wrapped, 0, 4, 3);
            number(&mut wrapped, 4, 4, 16);
            put(&mut wrapped, 8, &salt);
            number(&mut wrapped, 24, 4, 16);
            number(&mut wrapped, 28, 4, 24);
            put(&mut wrapped, 32, &wrap(&derived, kek));
            number(&mut wrapped, 144, 4, 1);
            number(&mut wrapped, 148, 4, 3);
            number(&mut wrapped, 152, 4, 10);
            number(&mut wrapped, 168, 4, user.iterations.into());
            let (id, ident) = (10 * i + 10, text(&random.bytes(16).try_into().expect("16 bytes")));
            users += &format!(
                "<dict ID=\"{id}\"><key>PassphraseWrappedKEKStruct</key><data ID=\"{}\">{}</data><key>WrapVersion</key>\
                 <integer size=\"32\" ID=\"{}\">0x1</integer><key>UserType</key><integer size=\"32\" ID=\"{}\">0x10000001</integer>\
                 <key>UserIdent</key><string ID=\"{}\">{ident}</string><key>PassphraseHint</key><string ID=\"{}\"></string>\
                 <key>UserFullName</key><string ID=\"{}\">{}</string></dict>",
                id + 1,
                STANDARD.encode(wrapped),
                id + 2,
                id + 3,
                id + 4,
                id + 5,
                id + 6,
                user.name,
            );
        }
        let mut wrapped = [0; 256];
        number(&mut wrapped, 0, 4, 2);
        number(&mut wrapped, 4, 4, 24);
        put(&mut wrapped, 8, &wrap(kek, key));
        number(&mut wrapped, 32, 4, 8);
        number(&mut wrapped, 252, 4, 1);
        let Self { conversion, .. } = self;
        let Names { group, family, .. } = names;
        format!(
            "<dict ID=\"0\"><key>com.apple.corestorage.lvf.encryption.context</key><dict ID=\"1\"><key>CryptoUsers</key>\
             <array ID=\"2\">{users}</array><key>LastUpdateTime</key><integer size=\"64\" ID=\"3\">0x500ba362</integer>\
             <key>WrappedVolumeKeys</key><array ID=\"4\"><dict ID=\"5\"><key>VolumeKeyIndex</key>\
             <integer size=\"32\" ID=\"6\">0x0</integer><key>KeyEncryptingKeyIdent</key><string ID=\"7\">none</string>\
             <key>BlockAlgorithm</key><string ID=\"8\">None</string><key>KEKWrappedVolumeKeyStruct</key><data ID=\"9\"></data></dict>\
             <dict ID=\"900\"><key>VolumeKeyIndex</key><integer size=\"32\" ID=\"901\">0x1</integer><key>BlockAlgorithm</key>\
             <string ID=\"902\">AES-XTS</string><key>KEKWrappedVolumeKeyStruct</key><data ID=\"903\">{}</data></dict></array>\
             <key>ConversionInfo</key><dict ID=\"904\"><key>TargetContext</key><reference IDREF=\"901\"/><key>ConversionStatus</key>\
             <string ID=\"905\">{conversion}</string></dict></dict><key>com.apple.corestorage.lvf.groupUUID</key>\
             <string ID=\"906\">{group}</string><key>com.apple.corestorage.lvf.uuid</key><string ID=\"907\">{family}</string></dict>\0",
            STANDARD.encode(wrapped),
        )
    }

    fn context_blocks(&self, context: &[u8]) -> Vec<Vec<u8>> {
        /// Offset of a context in its block, and length of the piece in each continuation block.
        const AT: usize = 0x3b0;
        const PIECE: usize = 300;
        let stored =
            if self.compressed { miniz_oxide::deflate::compress_to_vec_zlib(context, 6) } else { context.to_vec() };
        let (here, more) = stored.split_at(if self.compressed { PIECE } else { stored.len() });
        assert!(AT + here.len() <= METADATA_BLOCK, "the context fits into its block");
        let pieces: Vec<_> = more.chunks(PIECE).collect();
        let object = |i: usize| if i < pieces.len() { 100 + i as u64 } else { 0 };
        let first = block(0x0019, 10, |b| {
            number(b, 96, 8, object(0));
            number(b, 104, 4, stored.len() as u64);
            number(b, 108, 4, context.len() as u64);
            number(b, 112, 4, AT as u64);
            number(b, 116, 4, here.len() as u64);
            put(b, AT, here);
        });
        let rest = pieces.iter().enumerate().map(|(i, piece)| {
            block(0x0024, object(i), |b| {
                number(b, 64, 8, object(i + 1));
                number(b, 72, 8, piece.len() as u64);
                put(b, 80, piece);
            })
        });
        [first].into_iter().chain(rest).collect()
    }

    fn parts_block(&self) -> Vec<u8> {
        block(0x0305, 3, |b| {
            number(b, 64, 4, self.parts.len() as u64);
            let mut logical = 0;
            for (i, (blocks, physical)) in self.parts.iter().enumerate() {
                let at = 72 + 40 * i;
                number(b, at + 8, 8, logical);
                number(b, at + 16, 4, *blocks);
                number(b, at + 20, 4, 0x0040_0000);
                number(b, at + 32, 8, *physical);
                logical += blocks;
            }
        })
    }

    fn volume_block(&self, names: &Names) -> Vec<u8> {
        let Names { group, family, logical } = names;
        // The zero byte at the end is part of the text.
        let xml = format!(
            "<dict><key>com.apple.corestorage.lv.familyUUID</key><string>{family}</string><key>com.apple.corestorage.lv.groupUUID</key>\
             <string>{group}</string><key>com.apple.corestorage.lv.sequence</key><integer size=\"32\">0x3</integer>\
             <key>com.apple.corestorage.lv.contenthint</key><string>Apple_HFS</string><key>com.apple.corestorage.lv.name</key>\
             <string>Test &amp; Volume</string><key>com.apple.corestorage.lv.size</key><integer size=\"64\">{:#x}</integer>\
             <key>com.apple.corestorage.lv.uuid</key><string>{logical}</string></dict>\0",
            self.plaintext.len()
        );
        block(0x001a, 9, |b| {
            number(b, 64, 8, 9);
            number(b, 72, 8, 3);
            number(b, 104, 8, if self.beginning > 0 { 4 } else { 0 });
            for at in [120, 124, 132] {
                number(b, at, 4, xml.len() as u64);
            }
            number(b, 128, 4, 0xb8);
            put(b, 0xb8, xml.as_bytes());
        })
    }
}

/// A volume in parts, for tests to change. [`Image::sealed`] adds checksums and encryption again.
#[derive(Clone)]
pub struct Image {
    /// The volume header, without its checksum.
    pub header: [u8; 512],
    /// The labels, each with its descriptor, without checksum.
    pub labels: Vec<Vec<u8>>,
    /// The metadata blocks in plaintext, without checksums.
    pub blocks: Vec<Vec<u8>>,
    /// The volume with only its data.
    bytes: Vec<u8>,
    /// The data key, then the tweak key.
    pub volume_key: [u8; 32],
    /// UUID of the logical volume's family.
    pub family: [u8; 16],
    /// UUID of the logical volume.
    pub logical: [u8; 16],
    /// UUID of the physical volume.
    pub physical: [u8; 16],
}

impl Image {
    /// The first metadata block of this type.
    ///
    /// # Panics
    /// If there is none.
    pub fn block(&mut self, kind: u16) -> &mut Vec<u8> {
        self.blocks.iter_mut().find(|b| b[10..12] == kind.to_le_bytes()).expect("a block of that type")
    }

    /// The volume with checksums and encryption. Tests damage the result.
    pub fn sealed(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut header = self.header;
        seal(&mut header);
        put(&mut bytes, 0, &header);
        let last = bytes.len() - header.len();
        put(&mut bytes, last, &header);
        for (label, place) in self.labels.iter().zip(LABELS) {
            let mut label = label.clone();
            seal(&mut label[..METADATA_BLOCK]);
            put(&mut bytes, place as usize * BLOCK, &label);
        }
        assert!(self.blocks.len() < ROOM, "the blocks of metadata fit");
        let mut key = [0; 32];
        key[..16].copy_from_slice(&self.header[176..192]);
        key[16..].copy_from_slice(&self.header[304..320]);
        for (i, block) in self.blocks.iter().enumerate() {
            let mut block = block.clone();
            if !block.starts_with(WIPED) {
                seal(&mut block);
            }
            encrypt(&key, METADATA_BLOCK, i as u64, &mut block);
            METADATA.iter().for_each(|copy| put(&mut bytes, *copy as usize * BLOCK + i * METADATA_BLOCK, &block));
        }
        bytes
    }

    /// Position of a metadata block in a copy, in bytes of the volume.
    pub fn place(block: usize, copy: usize) -> usize {
        METADATA[copy] as usize * BLOCK + block * METADATA_BLOCK
    }

    /// Position of a label, in bytes of the volume.
    pub fn label_place(label: usize) -> usize {
        LABELS[label] as usize * BLOCK
    }
}

struct Names {
    group: String,
    family: String,
    logical: String,
}

/// A metadata block without checksum.
fn block(kind: u16, object: u64, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut block = vec![0; METADATA_BLOCK];
    number(&mut block, 4, 4, 0xffff_ffff);
    number(&mut block, 8, 2, 1);
    number(&mut block, 10, 2, kind.into());
    number(&mut block, 16, 8, 2);
    number(&mut block, 24, 8, object);
    number(&mut block, 40, 8, object);
    number(&mut block, 48, 4, METADATA_BLOCK as u64);
    fill(&mut block);
    block
}

/// A label, followed by the descriptor of the encrypted metadata.
fn label(names: &Names, len: usize) -> Vec<u8> {
    let mut label = block(0x0011, 0, |b| {
        let size = group_xml(names).len() as u64;
        number(b, 64, 4, 2 * METADATA_BLOCK as u64);
        number(b, 68, 4, 3);
        number(b, 220, 4, METADATA_BLOCK as u64);
        number(b, 224, 4, METADATA_BLOCK as u64 + 48);
        number(b, 228, 4, size);
        number(b, 232, 4, size);
        number(b, 240, 8, (len / BLOCK) as u64 - 1);
    });
    let mut descriptor = vec![0; METADATA_BLOCK];
    number(&mut descriptor, 8, 8, ROOM as u64);
    number(&mut descriptor, 24, 8, 2);
    number(&mut descriptor, 32, 8, METADATA[0]);
    number(&mut descriptor, 40, 8, METADATA[1]);
    put(&mut descriptor, 48, group_xml(names).as_bytes());
    label.extend(descriptor);
    label
}

/// The block that names the volume group.
fn group_block(names: &Names) -> Vec<u8> {
    block(0x0012, 1, |b| put(b, 64 + 48, group_xml(names).as_bytes()))
}

fn group_xml(names: &Names) -> String {
    format!(
        "<dict><key>com.apple.corestorage.label.sequence</key><integer size=\"32\">0x1</integer><key>com.apple.corestorage.lvg.uuid</key>\
         <string>{}</string><key>com.apple.corestorage.lvg.name</key><string>Test LVG</string></dict>",
        names.group
    )
}

/// The data key, and the tweak key derived from it and the family's UUID.
fn volume_key(key: &[u8; 16], family: &[u8; 16]) -> [u8; 32] {
    let tweak = Sha256::digest([&key[..], family].concat());
    let mut whole = [0; 32];
    whole[..16].copy_from_slice(key);
    whole[16..].copy_from_slice(&tweak[..16]);
    whole
}

/// RFC 8018, section 5.2, for one half of a block.
fn pbkdf2(passphrase: &[u8], salt: &[u8], iterations: u32) -> [u8; 16] {
    let keyed = Hmac::<Sha256>::new_from_slice(passphrase).expect("any length");
    let prf = |message: &[u8]| -> [u8; 32] { keyed.clone().chain_update(message).finalize().into_bytes().into() };
    let mut last = prf(&[salt, &[0, 0, 0, 1]].concat());
    let mut sum = last;
    for _ in 1..iterations {
        last = prf(&last);
        sum.iter_mut().zip(last).for_each(|(sum, byte)| *sum ^= byte);
    }
    *sum.first_chunk().expect("half of it")
}

/// RFC 3394, section 2.2.1, for a key of two halves.
fn wrap(kek: &[u8; 16], key: &[u8; 16]) -> [u8; 24] {
    let aes = Aes::new(kek);
    let mut wrapped = [0xa6; 24];
    wrapped[8..].copy_from_slice(key);
    for step in 1..=12u64 {
        let at = if step % 2 == 1 { 8 } else { 16 };
        let mut block = [0; 16];
        block[..8].copy_from_slice(&wrapped[..8]);
        block[8..].copy_from_slice(&wrapped[at..at + 8]);
        aes.encrypt(&mut block);
        let sum = u64::from_be_bytes(*block.first_chunk().expect("eight bytes")) ^ step;
        wrapped[..8].copy_from_slice(&sum.to_be_bytes());
        wrapped[at..at + 8].copy_from_slice(&block[8..]);
    }
    wrapped
}

fn encrypt(key: &[u8; 32], unit: usize, first: u64, run: &mut [u8]) {
    let (data, tweak) = (Aes::new(&key[..16]), Aes::new(&key[16..]));
    xts::crypt(|block| data.encrypt(block), |t| tweak.encrypt(t), unit, first, run);
}

/// Writes the checksum into a block or a header: CRC-32C of the bytes from 8 on, without the final inversion.
fn seal(block: &mut [u8]) {
    let mut sum = u32::from_le_bytes(*block[4..].first_chunk().expect("a seed"));
    for byte in &block[8..] {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    number(block, 0, 4, sum.into());
}

/// Writes a little-endian number.
pub fn number(bytes: &mut [u8], at: usize, len: usize, number: u64) {
    put(bytes, at, &number.to_le_bytes()[..len]);
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// A UUID as text, in capitals as in Core Storage.
pub fn text(uuid: &[u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02X}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]).join("-")
}

/// Bytes as in a property list.
pub fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The inverse of [`encoded`].
///
/// # Panics
/// If this is not Base64.
pub fn decoded(digits: &str) -> Vec<u8> {
    STANDARD.decode(digits).expect("Base64")
}
