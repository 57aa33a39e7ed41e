//! Initial inputs, made by this project's own code or, where it cannot make them, by hand.

use claviger_engine::file_formats::efs::{EfsInfo, KeyEntry, KeyOwner};
use claviger_engine::formats::luks2::reencrypt::{self, HeaderAndData, ReencryptionRequest};
use claviger_engine::formats::{loopaes, luks1, luks2};
use claviger_engine::private_keys::{NewCertificate, SoftKey, write_pfx};
use claviger_engine::spec::Cost;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Format, Secret, Spec, Store, Unlock};
use claviger_testkit::bitlocker::eow::EncryptOnWrite;
use claviger_testkit::bitlocker::maker::{self, Kind, Made, Protector, State};
use claviger_testkit::dmg;
use claviger_testkit::dpapi;
use claviger_testkit::ecryptfs::maker as ecryptfs;
use claviger_testkit::exfat as testkit_exfat;
use claviger_testkit::filevault2::{BLOCK, DATA, Recipe, User};
use claviger_testkit::lvm2::{self, linear, striped, volume};
use claviger_testkit::raid::MemberRecipe;
use claviger_testkit::random::noise;
use sha2::{Digest, Sha256};
use std::time::UNIX_EPOCH;

/// The volume key of the volumes made here, of which the first bytes are used.
pub const KEY: [u8; 64] = [7; 64];

fn bytes(store: &MemoryStore) -> Vec<u8> {
    let mut all = vec![0; store.len() as usize];
    store.read_at(0, &mut all).expect("memory can be read");
    all
}

/// A small volume of a format, with cheap key derivations.
fn created(format: &dyn Format, len: usize, spec: Spec<'_>) -> Vec<u8> {
    let store = MemoryStore::new(vec![0; len]);
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let key = Secret::copy_from(&KEY[..if spec.integrity.is_some() { 64 } else { 32 }]);
    let cipher = spec.cipher.or(Some("aes-xts-plain64"));
    let spec = Spec { quick: true, cost, cipher, key_bits: Some(256), volume_key: Some(&key), ..spec };
    let passphrase = [Credential::Passphrase(Secret::copy_from(b"passphrase"))];
    format.create(&store, &spec, &passphrase).expect("a volume");
    bytes(&store)
}

/// Decrypted headers of the current version, without and with magic. Field offsets count from the end of the salt.
pub fn truecrypt() -> Vec<Vec<u8>> {
    let header = |magic: &[u8; 4], version: u16, program: u16| {
        let mut header = vec![0; 448];
        header[..4].copy_from_slice(magic);
        header[4..6].copy_from_slice(&version.to_be_bytes());
        header[6..8].copy_from_slice(&program.to_be_bytes());
        for (at, number) in [(36, 1u64 << 20), (44, 131_072), (52, 1 << 20)] {
            header[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        header[64..68].copy_from_slice(&512u32.to_be_bytes());
        header[192..256].fill(9);
        header
    };
    vec![header(b"TRUE", 5, 0x0700), header(b"TRUE", 2, 0x0100), header(b"TRUE", 3, 0x0500), header(b"VERA", 5, 0x010b)]
}

/// The header and everything else before the data.
pub fn luks1() -> Vec<Vec<u8>> {
    let mut volume = created(&luks1::LUKS1, (2 << 20) + 8192, Spec::default());
    volume.truncate(4 << 10);
    vec![volume]
}

/// Volumes with little room for keyslots: a normal one, and one with tags.
pub fn luks2() -> Vec<Vec<u8>> {
    let spec =
        Spec { data_offset: Some(512 << 10), metadata_size: Some(16 << 10), label: Some("label"), ..Spec::default() };
    let tagged = Spec { integrity: Some("hmac-sha256"), label: None, ..spec };
    vec![created(&luks2::LUKS2, (512 << 10) + 8192, spec), created(&luks2::LUKS2, 2 << 20, tagged)]
}

/// Both header copies of these volumes.
pub fn luks2_headers() -> Vec<Vec<u8>> {
    luks2()
        .into_iter()
        .map(|mut volume| {
            volume.truncate(32 << 10);
            volume
        })
        .collect()
}

/// The JSON of these and other headers.
pub fn luks2_json() -> Vec<Vec<u8>> {
    let json = |volume| luks2::read(&MemoryStore::new(volume)).expect("a header").json;
    luks2().into_iter().map(json).chain(reencryption()).collect()
}

/// The metadata of volumes whose reencryption has begun: with a new key, from plaintext, and to plaintext with moved data.
pub fn reencryption() -> Vec<Vec<u8>> {
    const FRONT: u64 = 512 << 10;
    let passphrase = [Credential::Passphrase(Secret::copy_from(b"passphrase"))];
    let with = Unlock::with(&passphrase);
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    let request = ReencryptionRequest { cost, ..ReencryptionRequest::default() };
    let volume = || {
        let spec = Spec { data_offset: Some(FRONT), sector_size: Some(512), ..Spec::default() };
        MemoryStore::new(created(&luks2::LUKS2, 3 * FRONT as usize, spec))
    };
    let rekeyed = volume();
    let beginning = reencrypt::begin(&HeaderAndData::new(&rekeyed, None), &with, &request, false).expect("it begins");
    beginning.edit.carry_out(&rekeyed).expect("it is written");
    let plaintext = MemoryStore::new(vec![7; 4 * FRONT as usize]);
    let spec = Spec { cost, key_bits: Some(256), ..Spec::default() };
    reencrypt::begin_encryption(&plaintext, 2 * FRONT, &spec, &passphrase, &request).expect("it begins");
    let header = MemoryStore::new(vec![0; FRONT as usize]);
    reencrypt::begin_decryption(&header, &volume(), &with, &request).expect("it begins");
    [rekeyed, plaintext, header].iter().map(|store| luks2::read(store).expect("a header").json).collect()
}

/// BitLocker volumes that open without a password, and one that opens with a startup key.
pub fn bitlocker_volumes() -> Vec<Made> {
    let volume = |kind, protectors| maker::Volume { size: 1 << 20, protectors, ..maker::Volume::new(kind) };
    let clear = |kind| volume(kind, vec![Protector::ClearKey]);
    let state = State::HalfWay { current: 2, next: 4, watermark: 0x6_0000 };
    let on_write = EncryptOnWrite { chunk: 0x1_0000, regions: 1, plain: vec![3, 9], under_way: Some((5, 7)) };
    let all = [
        clear(Kind::Vista),
        clear(Kind::Windows7),
        clear(Kind::ToGo),
        maker::Volume { state, ..clear(Kind::Windows8) },
        maker::Volume { encrypt_on_write: Some(on_write), size: 2 << 20, ..clear(Kind::Windows8) },
        volume(
            Kind::Windows8,
            vec![Protector::StartupKey, Protector::Tpm { pin: None, startup_key: false }, Protector::SmartCard],
        ),
    ];
    all.iter().map(maker::Volume::make).collect()
}

/// Volumes whose first sectors are mutated most.
pub fn bitlocker() -> Vec<Vec<u8>> {
    bitlocker_volumes().into_iter().map(|made| made.image).collect()
}

/// Metadata blocks with the bytes after them.
pub fn bitlocker_metadata() -> Vec<Vec<u8>> {
    let block = |made: Made| made.image[made.layout.metadata[0] as usize..][..4096].to_vec();
    bitlocker_volumes().into_iter().map(block).collect()
}

/// The metadata blocks of all volumes, each with its number in front.
pub fn bitlocker_blocks() -> Vec<Vec<u8>> {
    let block = |(number, made): (u8, Made)| [&[number][..], &made.block(0)].concat();
    (0..).zip(bitlocker_volumes()).map(block).collect()
}

/// Offsets of a bitmap and a log in the output of [`bitlocker_on_write`].
const BITMAP: usize = 1024;
const LOG: usize = 4096;

/// The information block, a bitmap with its records, and a log, close together.
pub fn bitlocker_on_write() -> Vec<Vec<u8>> {
    let written = bitlocker_volumes().into_iter().filter_map(|made| {
        let eow = made.layout.encrypt_on_write.as_ref()?;
        let from = |at: u64, len: usize| &made.image[at as usize..][..len];
        let mut all = vec![0; LOG + eow.log_len as usize];
        all[..512].copy_from_slice(from(eow.information[0], 512));
        all[40..56].fill(0);
        all[56..64].copy_from_slice(&(BITMAP as u64).to_le_bytes());
        all[BITMAP..][..1536].copy_from_slice(from(eow.bitmaps[0], 1536));
        all[BITMAP + 36..][..8].copy_from_slice(&(LOG as u64).to_le_bytes());
        all[LOG..].copy_from_slice(from(eow.logs[0], eow.log_len as usize));
        Some(all)
    });
    written.collect()
}

/// Corrects the checksums of encrypt-on-write records at the corpus's offsets.
pub fn seal_on_write(all: &mut [u8]) {
    let len = all.get(10..12).map_or(0, |len| usize::from(u16::from_le_bytes([len[0], len[1]])));
    for (start, len, crc) in [(0, len, 36), (BITMAP, 512, 56), (BITMAP + 512, 512, 32), (BITMAP + 1024, 512, 32)] {
        let Some(part) = all.get_mut(start..start + len).filter(|part| part.len() >= crc + 4) else { continue };
        part[crc..crc + 4].fill(0);
        let sum = crc32fast::hash(part);
        part[crc..crc + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The file of a startup key.
pub fn bitlocker_startup_key() -> Vec<Vec<u8>> {
    let unlocks = bitlocker_volumes().into_iter().flat_map(|made| made.unlocks);
    let keys = unlocks.filter_map(|unlock| match unlock {
        maker::Unlock::StartupKey(_, bytes) => Some(bytes),
        _ => None,
    });
    keys.collect()
}

/// Corrects the checksums of both copies of a LUKS2 header (LUKS2 On-Disk Format Specification 1.1.1, section 2.1), if
/// they look like headers.
pub fn seal_luks2(volume: &mut [u8]) {
    /// Offsets of a copy's size and checksum.
    const SIZE: usize = 8;
    const CHECKSUM: usize = 448;
    let Some(size) = volume.get(SIZE..SIZE + 8) else { return };
    let size = u64::from_be_bytes(size.try_into().expect("eight bytes")).min(4 << 20) as usize;
    for at in [0, size] {
        let Some(copy) = volume.get_mut(at..at + size).filter(|copy| copy.len() >= 512) else { continue };
        copy[CHECKSUM..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[CHECKSUM..CHECKSUM + 32].copy_from_slice(&sum);
    }
}

/// A whole volume, and the metadata of others: one in several parts, one with a compressed encryption context.
pub fn filevault2() -> Vec<Vec<u8>> {
    let users = [User { passphrase: "passphrase", name: "Ann", iterations: 10 }];
    let plaintext = vec![7; 4 * BLOCK];
    let ordinary = Recipe::new(&users, &plaintext);
    let parts = Recipe { parts: vec![(1, 9), (3, 4)], beginning: DATA, ..ordinary.clone() };
    let compressed = Recipe { compressed: true, ..ordinary.clone() };
    vec![ordinary.make().sealed(), parts.make().blocks.concat(), compressed.make().blocks.concat()]
}

/// Encrypted disk images of macOS with both ciphers that wrap keys, without what is between the header and the data.
pub fn dmg() -> Vec<Vec<u8>> {
    let ordinary = dmg::Recipe::new(&[("passphrase", 10)], &[7; 1024]);
    let older = dmg::Recipe { key: 32, wrapping: 0, ..ordinary.clone() };
    let close_together = |recipe: dmg::Recipe<'_>| {
        const DATA: usize = 1024;
        let mut bytes = recipe.make().bytes;
        bytes.drain(DATA..dmg::DATA);
        bytes[64..72].copy_from_slice(&(DATA as u64).to_be_bytes());
        bytes
    };
    vec![close_together(ordinary), close_together(older)]
}

/// Texts of volume groups: with both kinds of segments, and with volumes that are parts of others.
pub fn lvm2_metadata() -> Vec<Vec<u8>> {
    let mapped =
        volume("root", &[(3, &linear(4)), (4, &striped(4096, &[20, 9]))]) + &volume("home", &[(2, &linear(0))]);
    let snapshot = volume("s0", &[(2, "type = \"snapshot\"\norigin = \"home\"\ncow_store = \"c\"")]);
    let mirror = volume("m", &[(2, "type = \"mirror\"\nmirrors = [\"pv0\", 0, \"pv0\", 4]")]);
    let others = snapshot + &mirror + &volume("c", &[(1, &linear(9))]);
    [mapped, others]
        .map(|volumes| lvm2::group(32, &volumes).replace("pe_start = 128", "pe_start = 2048").into_bytes())
        .into()
}

/// Physical volumes with one and two copies of the metadata, one of which wraps around in its area.
pub fn lvm2() -> Vec<Vec<u8>> {
    let mapped =
        volume("root", &[(3, &linear(4)), (4, &striped(4096, &[10, 8]))]) + &volume("home", &[(2, &linear(0))]);
    let one = lvm2::Recipe::new(12, &mapped);
    let two = lvm2::Recipe { text_at: lvm2::AREA_SIZE - 700, second: Some(one.text.clone()), ..one.clone() };
    [one, two].iter().map(lvm2::Recipe::make).collect()
}

/// Members of RAID arrays that can be read without the others: of each version of the metadata, and of several levels.
pub fn ewf() -> Vec<Vec<u8>> {
    [(64, 4), (9, 16), (1, 1)]
        .map(|(sectors, chunk)| claviger_testkit::ewf::image(&noise(sectors * 512, 3), chunk))
        .into()
}

pub fn raid() -> Vec<Vec<u8>> {
    let one = MemberRecipe::default();
    let of = |level, layout| MemberRecipe { level, layout, chunk: 4096, ..one };
    let versions = ["0.90", "1.0", "1.1", "1.2"].map(|version| MemberRecipe { version, ..one });
    let levels = [
        MemberRecipe { devices: 1, ..of(0, 0) },
        MemberRecipe { devices: 1, ..of(-1, 0) },
        of(4, 0),
        of(5, 2),
        of(10, 0x102),
        of(10, 0x10201),
    ];
    versions.into_iter().chain(levels).map(|member| member.make(&noise(32 << 10, 3))).collect()
}

/// The passphrase of [`ecryptfs_header`] and [`ecryptfs_name`].
pub const PASSPHRASE: &str = "passphrase";

/// Files with their header in front, and headers as stored in an attribute.
pub fn ecryptfs_header() -> Vec<Vec<u8>> {
    let ciphers = [("aes", 16), ("aes", 24), ("blowfish", 56), ("des3_ede", 24), ("cast6", 32)];
    let files = ciphers.map(|cipher| ecryptfs::File::new(PASSPHRASE, cipher, &[7; 5000]));
    let several = ecryptfs::File { passphrases: vec!["another".into(), PASSPHRASE.into()], ..files[0].clone() };
    let public = [&files[0].metadata()[..26], &ecryptfs::public_key_packet([3; 8], &[8; 256])].concat();
    let stored = files.iter().map(ecryptfs::File::stored);
    stored.chain([several.metadata(), files[0].metadata(), public]).collect()
}

/// Names, and targets of links, which may be longer.
pub fn ecryptfs_name() -> Vec<Vec<u8>> {
    let aes = |name: &str| ecryptfs::name(PASSPHRASE, ("aes", 16), name.as_bytes());
    let of_other_cipher = ecryptfs::name(PASSPHRASE, ("blowfish", 16), b"name");
    let names =
        [aes("name"), aes(&"n".repeat(143)), aes(&"target/".repeat(100)), aes(".."), aes("a/b"), of_other_cipher];
    names.into_iter().chain(["in clear".to_owned()]).map(String::into_bytes).collect()
}

/// Configurations and key files of Cryptomator vaults, and keys.
pub fn cryptomator_vault() -> Vec<Vec<u8>> {
    // {"kid":"masterkeyfile:masterkey.cryptomator","alg":"HS256","typ":"JWT"} and {"format":8,"cipherCombo":"SIV_GCM",
    // "shorteningThreshold":220}.
    let token = "eyJraWQiOiJtYXN0ZXJrZXlmaWxlOm1hc3RlcmtleS5jcnlwdG9tYXRvciIsImFsZyI6IkhTMjU2IiwidHlwIjoiSldUIn0.\
        eyJmb3JtYXQiOjgsImNpcGhlckNvbWJvIjoiU0lWX0dDTSIsInNob3J0ZW5pbmdUaHJlc2hvbGQiOjIyMH0.";
    let key_file = |version: u32, cost: u32| {
        let key = "A".repeat(54);
        format!(
            r#"{{"version":{version},"scryptSalt":"AAAAAAAAAAA=","scryptCostParam":{cost},"scryptBlockSize":8,
               "primaryMasterKey":"{key}==","hmacMasterKey":"{key}==","versionMac":"{}="}}"#,
            "A".repeat(43)
        )
    };
    let keys = ["A".repeat(43), "B".repeat(43)].map(|key| key + "=").join(" ");
    [format!("{token}{}", "A".repeat(43)), key_file(999, 32768), key_file(7, 1 << 30), keys, "0f".repeat(64)]
        .map(String::into_bytes)
        .to_vec()
}

/// Configurations of gocryptfs, and a master key.
pub fn gocryptfs_config() -> Vec<Vec<u8>> {
    let config = |flags: &str, n: u32| {
        let key = "A".repeat(85);
        format!(
            r#"{{"Creator":"gocryptfs 2.3","EncryptedKey":"{key}=","ScryptObject":{{"Salt":"{}=","N":{n},"R":8,"P":1,"KeyLen":32}},
               "Version":2,"FeatureFlags":[{flags}]}}"#,
            "A".repeat(43)
        )
    };
    let usual = r#""HKDF","GCMIV128","DirIV","EMENames","LongNames","Raw64""#;
    let digits = "0123abcd-".repeat(8);
    [config(usual, 65536), config(r#""AESSIV","PlaintextNames""#, 1024), config(usual, 1 << 30), digits]
        .map(String::into_bytes)
        .to_vec()
}

/// Configurations of EncFS with names: of 1.9, of 1.4 with Boost, and one with an entity.
pub fn encfs_config() -> Vec<Vec<u8>> {
    let config = |begin: &str,
                  (cipher, cipher_version): (&str, u8),
                  (naming, naming_version): (&str, u8),
                  end: &str| {
        format!(
            "<?xml version=\"1.0\"?>\n<!DOCTYPE boost_serialization>\n<boost_serialization version=\"7\">{begin}<creator>EncFS</creator>\
             <cipherAlg><name>{cipher}</name><major>{cipher_version}</major><minor>0</minor></cipherAlg>\
             <nameAlg><name>{naming}</name><major>{naming_version}</major><minor>0</minor></nameAlg>\
             <keySize>128</keySize><blockSize>1024</blockSize><uniqueIV>1</uniqueIV><chainedNameIV>1</chainedNameIV>{end}"
        )
    };
    let salted = |key: usize| {
        format!(
            "<encodedKeyData>{}</encodedKeyData><saltData>{}</saltData><kdfIterations>1000</kdfIterations></cfg>\n\
             </boost_serialization>\nname\n,-name\n+,-/../NAME",
            "A".repeat(key),
            "B".repeat(28)
        )
    };
    let old = format!("<encodedKeyData>{}</encodedKeyData></config></boost_serialization>", "A".repeat(48));
    [
        config("<cfg version=\"20\"><version>20100713</version>", ("ssl/aes", 3), ("nameio/block", 4), &salted(48)),
        config("<cfg><version>20100713</version>", ("ssl/blowfish", 2), ("nameio/block32", 4), &salted(38)),
        config("<cfg><version>20100713</version>", ("ssl/camellia", 1), ("nameio/null", 1), &salted(48)),
        config("<config version=\"26797\">", ("ssl/aes", 2), ("nameio/stream", 2), &old),
        config(
            "<!DOCTYPE a [<!ENTITY b \"c\">]><config version=\"20\">&b;",
            ("ssl/aes", 1),
            ("nameio/stream", 0),
            &old,
        ),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Wrapped passphrases of both versions.
pub fn ecryptfs_wrapped() -> Vec<Vec<u8>> {
    [None, Some([9; 8])].map(|salt| ecryptfs::wrapped(PASSPHRASE, "login", salt)).to_vec()
}

/// Every form of a cipher specification.
pub fn specifications() -> Vec<Vec<u8>> {
    let texts = [
        "aes-xts-plain64",
        "aes",
        "aes-plain",
        "aes-cbc-essiv:sha256",
        "serpent-lrw-benbi",
        "aes:64-cbc-lmk",
        "twofish-cbc-tcw",
        "capi:xts(aes)-plain64",
        "capi:cbc(serpent)-essiv:sha256",
        "aes-ecb",
        "des3_ede-cbc-plain",
        "xchacha20,aes-adiantum-plain64",
        "capi:adiantum(xchacha12,aes)-plain64",
        "aes-cbc-eboiv",
        "aes-cbc-elephant",
        "blowfish-cbc-plain64be",
        "aes-cbc-null",
        "aes-ctr-plain64",
        "cast5-cbc-plain",
        "cipher_null-ecb",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Key files of version 3 and 1.
pub fn loopaes() -> Vec<Vec<u8>> {
    let whole = loopaes::new_keyfile().expect("random bytes").to_vec();
    let line = whole[..61].to_vec();
    vec![whole, line]
}

/// A file of each version, with random keys.
pub fn cryptmount() -> Vec<Vec<u8>> {
    let mut old = b"cm-blti\x00\x20\x00".to_vec();
    old.extend([7; 10 + 40]);
    let mut new = b"cm-blti\x01\x20\x00\x00\x40\x00\x00".to_vec();
    new.extend([7; 10 + 40]);
    vec![old, new]
}

/// A superblock.
pub fn integrity() -> Vec<Vec<u8>> {
    let mut superblock = vec![0; 64 << 10];
    superblock[..8].copy_from_slice(b"integrt\0");
    // Version, log2 of the interleaved sectors, size of a tag, journal sections, sectors, flags, log2 of a block
    // (Linux, drivers/md/dm-integrity.c, `struct superblock`).
    superblock[8..12].copy_from_slice(&[4, 15, 32, 0]);
    superblock[12..16].copy_from_slice(&1u32.to_le_bytes());
    superblock[16..24].copy_from_slice(&64u64.to_le_bytes());
    vec![superblock]
}

/// A master boot record with four partitions, one of them extended, and a GPT.
pub fn partitions() -> Vec<Vec<u8>> {
    let mut mbr = vec![0; 128 << 10];
    for (i, (kind, start, len)) in
        [(0x83u8, 8u32, 16u32), (7, 24, 16), (5, 40, 100), (0xef, 140, 10)].iter().enumerate()
    {
        let entry = &mut mbr[446 + 16 * i..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&len.to_le_bytes());
    }
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    let logical = 40 * 512;
    mbr[logical + 446 + 4] = 0x83;
    mbr[logical + 446 + 8..][..4].copy_from_slice(&1u32.to_le_bytes());
    mbr[logical + 446 + 12..][..4].copy_from_slice(&8u32.to_le_bytes());
    mbr[logical + 510..][..2].copy_from_slice(&[0x55, 0xaa]);

    let mut gpt = vec![0; 128 << 10];
    gpt[446 + 4] = 0xee;
    gpt[446 + 8..][..4].copy_from_slice(&1u32.to_le_bytes());
    gpt[446 + 12..][..4].copy_from_slice(&255u32.to_le_bytes());
    gpt[510..512].copy_from_slice(&[0x55, 0xaa]);
    let header = &mut gpt[512..1024];
    header[..8].copy_from_slice(b"EFI PART");
    for (at, number) in [(8, 0x0001_0000u32), (12, 92), (80, 128), (84, 128)] {
        header[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    for (at, number) in [(24, 1u64), (32, 255), (40, 34), (48, 222), (72, 2)] {
        header[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    let entry = &mut gpt[1024..1024 + 128];
    entry[..32].fill(3);
    entry[32..40].copy_from_slice(&40u64.to_le_bytes());
    entry[40..48].copy_from_slice(&80u64.to_le_bytes());
    vec![mbr, gpt]
}

/// Corrects the checksums of a GPT with sectors of 512 bytes (UEFI Specification, section 5.3.2), if there is one.
pub fn seal_gpt(disk: &mut [u8]) {
    let Some(header) = disk.get(512..1024).filter(|header| header.starts_with(b"EFI PART")) else { return };
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes")) as usize;
    let (len, at, entries) = (number(12), number(72).saturating_mul(512), number(80).saturating_mul(number(84)));
    let mut all = disk.get(at..).unwrap_or_default().to_vec();
    // Missing entries are zeros.
    all.resize(entries.min(64 << 10), 0);
    let header = &mut disk[512..1024];
    header[88..92].copy_from_slice(&crc32fast::hash(&all).to_le_bytes());
    header[16..20].fill(0);
    let sum = crc32fast::hash(&header[..len.min(512)]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// An exFAT with a file and valid checksums. After the boot regions, each in one sector, come the table, the allocation
/// bitmap, the up-case table, the root folder and the file: clusters 2 to 5 of 100 (Microsoft, "exFAT file system
/// specification", 1.00).
fn exfat() -> Vec<u8> {
    let mut disk = vec![0; 64 << 10];
    for region in [0, 12 * 512] {
        let boot = &mut disk[region..region + 512];
        boot[..11].copy_from_slice(b"\xeb\x76\x90EXFAT   ");
        // Sectors; the table's first sector and length; the first sector and number of clusters; the root's cluster;
        // version; sizes; tables.
        boot[72] = 128;
        for (at, number) in [(80, 24u32), (84, 1), (88, 25), (92, 100), (96, 4)] {
            boot[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        boot[105] = 1;
        boot[108..111].copy_from_slice(&[9, 0, 1]);
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
    }
    let table = &mut disk[24 * 512..25 * 512];
    table[..24].fill(0xff);
    table[0] = 0xf8;
    disk[25 * 512] = 0b1111;
    let letters = [0xffffu16, 0x61, 0x41, 0x42].map(u16::to_le_bytes).concat();
    disk[26 * 512..][..8].copy_from_slice(&letters);
    let sum = letters.iter().fold(0u32, |sum, byte| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
    let root = &mut disk[27 * 512..28 * 512];
    for (at, kind, first, len) in [(0, 0x81, 2, 13), (32, 0x82, 3, 8), (96, 0xc0, 5, 5)] {
        root[at] = kind;
        root[at + 20] = first;
        root[at + 24] = len;
    }
    root[36..40].copy_from_slice(&sum.to_le_bytes());
    // A file of five bytes in contiguous clusters, and its name.
    root[64..66].copy_from_slice(&[0x85, 2]);
    root[97] = 3;
    root[99] = 1;
    root[104] = 5;
    root[128] = 0xc1;
    root[130] = b'a';
    testkit_exfat::seal(&mut disk);
    disk
}

/// A FAT12 and an exFAT, each with a file, and the beginnings of other file systems.
pub fn filesystems() -> Vec<Vec<u8>> {
    let mut fat = vec![0; 64 << 10];
    fat[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
    fat[3..11].copy_from_slice(b"MSDOS5.0");
    // Sector size in bytes, cluster size in sectors, reserved sectors, tables, root entries, sectors, kind, sectors per
    // table (Microsoft, FAT specification, section 3).
    fat[11..24].copy_from_slice(&[0, 2, 1, 1, 0, 1, 16, 0, 128, 0, 0xf8, 1, 0]);
    fat[38] = 0x29;
    fat[54..62].copy_from_slice(b"FAT12   ");
    fat[510..512].copy_from_slice(&[0x55, 0xaa]);
    fat[512..518].copy_from_slice(&[0xf8, 0xff, 0xff, 0xff, 0x0f, 0]);
    fat[1024..1035].copy_from_slice(b"HELLO   TXT");
    fat[1024 + 11] = 0x20;
    fat[1024 + 26..][..2].copy_from_slice(&2u16.to_le_bytes());
    fat[1024 + 28..][..4].copy_from_slice(&5u32.to_le_bytes());

    let mut ext = vec![0; 64 << 10];
    ext[1024..1028].copy_from_slice(&16u32.to_le_bytes());
    ext[1028..1032].copy_from_slice(&64u32.to_le_bytes());
    ext[1024 + 32..1024 + 36].copy_from_slice(&8192u32.to_le_bytes());
    ext[1024 + 40..1024 + 44].copy_from_slice(&16u32.to_le_bytes());
    ext[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);

    let mut ntfs = vec![0; 64 << 10];
    ntfs[..11].copy_from_slice(b"\xeb\x52\x90NTFS    ");
    ntfs[11..14].copy_from_slice(&[0, 2, 8]);
    ntfs[40] = 127;
    ntfs[48] = 1;
    ntfs[64] = 0xf6;
    ntfs[510..512].copy_from_slice(&[0x55, 0xaa]);
    vec![fat, ext, ntfs, exfat()]
}

/// `$EFS` for two users and a recovery agent. One of them has no thumbprint.
pub fn efs() -> Vec<Vec<u8>> {
    let entry = |n: u8, thumbprint| {
        let owner = KeyOwner {
            thumbprint,
            sid: Some("S-1-5-21-1-2-3-1001".into()),
            container: Some("a container".into()),
            provider: Some("a provider".into()),
            name: Some("somebody".into()),
        };
        KeyEntry::new(owner, &[n; 256])
    };
    let users = vec![entry(1, Some(vec![1; 20])), entry(2, None)];
    let whole = EfsInfo { version: 2, id: [7; 16], users, agents: vec![entry(3, Some(vec![3; 20]))] };
    vec![whole.to_bytes(), EfsInfo { users: Vec::new(), ..whole }.to_bytes()]
}

/// Chunks that are compressed, stored or truncated.
pub fn lznt1() -> Vec<Vec<u8>> {
    let text = [0x05, 0xb0, 0x08, b'a', b'b', b'c', 0xfd, 0x1f].to_vec();
    let stored = [0x03, 0x30, 1, 2, 3, 4].to_vec();
    vec![[text.clone(), stored.clone(), vec![0, 0]].concat(), [stored, text].concat()]
}

/// The beginnings of all inputs above.
pub fn everything() -> Vec<Vec<u8>> {
    let all = [luks1(), luks2_headers(), filevault2(), dmg(), partitions(), filesystems(), integrity()];
    all.into_iter()
        .flatten()
        .map(|mut bytes| {
            bytes.truncate(64 << 10);
            bytes
        })
        .collect()
}

/// crypttab lines of every kind.
pub fn crypttab() -> Vec<Vec<u8>> {
    let lines = [
        "one /dev/sda1 none luks,discard,key-slot=1,header=/h",
        "two UUID=\"1234-ABCD\" /key tcrypt,tcrypt-hidden,tcrypt-keyfile=/a,veracrypt-pim=7,tcrypt-veracrypt",
        "swap PARTLABEL=a/b /dev/urandom swap,cipher=aes-xts-plain64,size=512,offset=2048,skip=8,hash=plain",
        "# a comment\nfour /dev/loop0 - plain,keyfile-offset=16,keyfile-size=32,sector-size=4096",
        "five /dev/sdb2 /k loop-AES,cipher=aes,size=128 more fields",
    ];
    lines.iter().map(|line| line.as_bytes().to_vec()).chain([lines.join("\n").into_bytes()]).collect()
}

/// A 512-bit RSA key in PKCS#1: `openssl genrsa -traditional 512`.
const RSA_512: &[u8] = b"\
    \x30\x82\x01\x3b\x02\x01\x00\x02\x41\x00\xb2\x29\x07\x00\x86\x55\xc6\xcc\x0b\x97\xe4\xe2\xdd\x62\x2b\x26\x3c\x1b\x9b\x63\xdb\xd4\
    \xbb\xcc\x4c\xd3\x20\x01\xb3\x64\x98\xb4\x60\xd0\x90\x5b\x9e\xd9\xfd\xc6\x65\x10\x26\xa4\x51\xf9\x16\x96\x19\xdd\x96\xf6\x87\x7c\
    \x4d\xef\x6c\xd6\xa4\xcc\xea\x08\x77\x93\x02\x03\x01\x00\x01\x02\x40\x41\xbf\xb6\x5f\xd1\x33\xb2\xab\xf6\xd3\x55\x9b\x0b\xcc\x80\
    \xd4\x19\x76\xae\xc0\x09\x8e\xd6\xc7\xac\xca\x75\x93\x6b\x1b\x02\xe7\x60\x8e\xee\x1c\x76\x5f\x38\x11\x64\x3e\x72\x4b\x3b\x34\x34\
    \xe4\x8f\xc4\xa5\xe0\xbb\xe1\x21\x04\xd6\x2e\x11\x6a\xad\x68\xa1\xf1\x02\x21\x00\xe5\xb2\x7d\xae\x8a\x78\xe4\x57\x27\x8c\x25\xdf\
    \xc4\x63\xa9\x3e\xd6\xb3\x51\x82\x1f\x7e\x15\x39\xd4\x4d\x79\x84\x10\x94\x69\xc5\x02\x21\x00\xc6\x8f\xbe\xae\xcf\x74\x9c\xde\x3a\
    \x3c\x71\xf6\x9a\x3f\xb6\x32\x86\xd4\x9a\x5f\x07\x1f\xb9\x14\x86\xff\x82\x73\xa5\x1b\xe9\x77\x02\x21\x00\xde\x33\x4a\xcd\x9b\xfa\
    \xd2\xb9\x54\xf2\x88\x78\xed\x1c\x93\xce\xcc\x17\x6f\xd3\xf6\xef\x1b\x4d\x74\x08\xf6\x72\x41\x2f\xb1\x19\x02\x20\x5b\xef\x62\x52\
    \x7e\x2b\x78\x16\x4c\xd0\x7f\xd3\xb6\x47\x99\x8c\x7b\x71\x24\xa8\xab\x1b\xbd\x0e\x0c\x13\x71\xcb\x29\xbf\x6a\xb1\x02\x21\x00\xa5\
    \x66\x48\xd0\x39\x66\x30\x97\xb7\x3b\x04\x34\x7b\xd1\xb3\x79\x81\x2b\x27\x2c\x1c\x02\xef\x1c\xcc\xd6\x54\xb0\xde\x4a\xb1\xda";

/// A PFX of OpenSSL with one iteration (`openssl pkcs12 -export -iter 1`), one of this project that is too slow for a
/// fuzzer, a certificate, and PEM.
pub fn private_keys() -> Vec<Vec<u8>> {
    let key = SoftKey::generate(2048).expect("a key");
    let new = NewCertificate { name: "x", recovery: false, from: UNIX_EPOCH };
    let certificate = new.sign(&key).expect("a certificate");
    let pfx = write_pfx(&key, &certificate, "x", &Secret::copy_from(b"password")).expect("a PFX");
    let pem =
        |label: &str, text: &str| format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n").into_bytes();
    let encrypted =
        "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899aabbccddeeff\n\nAAAAAAAAAAAAAAAAAAAAAA==";
    vec![
        include_bytes!("small.pfx").to_vec(),
        pfx.to_vec(),
        certificate.der,
        RSA_512.to_vec(),
        pem("CERTIFICATE", "MAMCAQA="),
        pem("RSA PRIVATE KEY", encrypted),
        // BER: a sequence and a string of indefinite length.
        vec![0x30, 0x80, 2, 1, 3, 0x24, 0x80, 4, 1, b'a', 0, 0, 0, 0],
    ]
}

/// The files of a Windows profile, and a blob.
pub fn dpapi() -> Vec<Vec<u8>> {
    let mut profile = dpapi::Profile::new("password", dpapi::Era::Seven, dpapi::Account::Local);
    profile.iterations = 1;
    let key =
        |kind| dpapi::Key { kind, container: "x".into(), pkcs1: RSA_512.to_vec(), certificate: Some(RSA_512.to_vec()) };
    let files = profile.files(&[key(dpapi::Kind::Capi), key(dpapi::Kind::Cng)]);
    files.into_iter().map(|(_, contents)| contents).collect()
}

/// A token made by systemd, a clevis token with all fields, and signatures of PCRs.
pub fn tokens() -> Vec<Vec<u8>> {
    let header = r#"{"alg":"dir","enc":"A256GCM","clevis":{"pin":"sss","sss":{"t":1,"p":"//////////////////////////////////////////8","jwe":["e30..AAAA.AAAA.AAAA"]}}}"#;
    let tokens = [
        r#"{"type":"systemd-tpm2","keyslots":["1"],"tpm2-blob":"AAQBAgMEABcACAALAAAAEgAIAQIDBAUGBwgAEAAA","tpm2-pcrs":[0,7],"tpm2-pcr-bank":"sha256",
            "tpm2-primary-alg":"ecc","tpm2-policy-hash":"8b5682d8","tpm2-pin":true,"tpm2_salt":"AAAA","tpm2_srk":"gQAAAQAEAAEAAAAA",
            "tpm2_pubkey":"LS0tLS1CRUdJTg==","tpm2_pubkey_pcrs":[11]}"#
            .to_owned(),
        format!(
            r#"{{"type":"clevis","keyslots":["2"],"jwe":{{"protected":"{}","iv":"AAAAAAAAAAAAAAAA","ciphertext":"AAAA","tag":"AAAAAAAAAAAAAAAAAAAAAA","encrypted_key":""}}}}"#,
            base64url(header.as_bytes())
        ),
        r#"{"sha256":[{"pcrs":[11],"pkfp":"00","pol":"00","sig":"AAAA"}]}"#.to_owned(),
        format!(r#"{{"payload":"{}","protected":"e30","signature":"AAAA"}}"#, base64url(br#"{"keys":[{"alg":"ES512","kty":"EC","crv":"P-521","x":"AA","y":"AA"}]}"#)),
    ];
    tokens.into_iter().map(String::into_bytes).collect()
}

/// The alphabet for URLs (RFC 4648, section 5), without padding.
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = |i: usize| bytes.get(i / 8).map_or(0, |byte| byte >> (7 - i % 8) & 1);
    let digit = |first: usize| (first..first + 6).fold(0, |sum, i| sum << 1 | bits(i));
    (0..bytes.len() * 8).step_by(6).map(|first| char::from(ALPHABET[usize::from(digit(first))])).collect()
}

/// The generator of P-256.
const GENERATOR: &[u8; 64] = b"\x6b\x17\xd1\xf2\xe1\x2c\x42\x47\xf8\xbc\xe6\xe5\x63\xa4\x40\xf2\x77\x03\x7d\x81\x2d\xeb\x33\xa0\xf4\xa1\x39\x45\xd8\x98\xc2\x96\
    \x4f\xe3\x42\xe2\xfe\x1a\x7f\x9b\x8e\xe7\xeb\x4a\x7c\x0f\x9e\x16\x2b\xce\x33\x57\x6b\x31\x5e\xce\xcb\xb6\x40\x68\x37\xbf\x51\xf5";

/// Answers of a FIDO2 key that enrolls and computes secrets: without a PIN, and with one.
pub fn fido2_answers() -> Vec<Vec<u8>> {
    let answer = |parts: &[&[u8]]| {
        let all = [&[0][..], &parts.concat()].concat();
        [&(all.len() as u16).to_be_bytes()[..], &all].concat()
    };
    let (x, y) = GENERATOR.split_at(32);
    let info = |pin: &[u8]| {
        answer(&[b"\xa4\x01\x81\x68FIDO_2_0\x02\x81\x6bhmac-secret\x04\xa1\x69clientPin", pin, b"\x06\x81\x02"])
    };
    let data = |flags: u8, len: u8| [&[0x02, 0x58, len][..], &[7; 32], &[flags, 0, 0, 0, 1]].concat();
    let made = answer(&[b"\xa3\x01\x64none", &data(0x41, 72), &[0; 16], &[0, 16], &[9; 16], b"\xa0\x03\xa0"]);
    let agreed = answer(&[b"\xa1\x01\xa5\x01\x02\x03\x38\x18\x20\x01\x21\x58\x20", x, b"\x22\x58\x20", y]);
    let token = answer(&[b"\xa1\x02\x58\x30", &[5; 48]]);
    let computed = answer(&[b"\xa1", &data(0x81, 100), b"\xa1\x6bhmac-secret\x58\x30", &[3; 48]]);
    let without =
        [&info(b"\xf4"), &made, &agreed, &computed, &computed, &agreed, &computed].map(Vec::as_slice).concat();
    let proven = [&agreed, &token].map(Vec::as_slice).concat();
    let with = [&info(b"\xf5"), &proven, &made, &proven, &agreed, &computed, &computed, &proven, &agreed, &computed];
    vec![without, with.map(Vec::as_slice).concat(), b"\x00\x01\x2e".to_vec()]
}

/// Event logs of a start with and without Secure Boot (TCG PC Client Platform Firmware Profile, section "Event Logging").
pub fn tpm2_event_log() -> Vec<Vec<u8>> {
    const CONFIG: u32 = 0x8000_0001;
    let le = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
    let sizes = [2, 0, 0, 0, 4, 0, 20, 0, 11, 0, 32, 0, 0];
    let data = [b"Spec ID Event03\0\0\0\0\0\0\x02\0\x02", &sizes[..]].concat();
    let front = [&le(&[0, 3]), &[0; 20][..], &le(&[data.len() as u32]), &data].concat();
    let event = |pcr, kind, data: &[u8]| {
        let digests = [&[4, 0][..], &[1; 20], &[11, 0], &[2; 32]].concat();
        [&le(&[pcr, kind, 2]), &digests, &le(&[data.len() as u32]), data].concat()
    };
    let name: Vec<u8> = "SecureBoot".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let secure_boot = |on| [&[7; 16][..], &10u64.to_le_bytes(), &1u64.to_le_bytes(), &name, &[on]].concat();
    let log = |on| {
        let events = [
            event(0, 3, b"StartupLocality\0\x03"),
            event(0, 8, b"firmware"),
            event(7, CONFIG, &secure_boot(on)),
            event(7, CONFIG, b"db"),
            event(4, 5, b"loader"),
        ];
        [front.clone(), events.concat()].concat()
    };
    vec![log(1), log(0), front.clone()]
}

/// Answers of a TPM that creates a primary key and accepts all later commands.
pub fn tpm2_answers() -> Vec<Vec<u8>> {
    let answer = |tag: u16, code: u32, behind: &[u8]| {
        let len = behind.len() as u16 + 10;
        let parts =
            [&len.to_be_bytes()[..], &tag.to_be_bytes(), &u32::from(len).to_be_bytes(), &code.to_be_bytes(), behind];
        parts.concat()
    };
    // As a storage key.
    let (x, y) = GENERATOR.split_at(32);
    let area = [
        b"\x00\x23\x00\x0b\x00\x03\x00\x72\x00\x00\x00\x06\x00\x80\x00\x43\x00\x10\x00\x03\x00\x10\x00\x20",
        x,
        b"\x00\x20",
        y,
    ]
    .concat();
    let primary = [b"\x80\x00\x00\x00\x00\x00\x00\x00", &(area.len() as u16).to_be_bytes()[..], &area].concat();
    let session = [b"\x03\x00\x00\x00\x00\x20", &[7; 32][..]].concat();
    let (primary, session) = (answer(0x8002, 0, &primary), answer(0x8001, 0, &session));
    let (nothing, digest) = (answer(0x8001, 0, &[]), answer(0x8001, 0, &[&[0, 32][..], &[9; 32]].concat()));
    let loaded = answer(0x8002, 0, b"\x80\x00\x00\x01\x00\x00\x00\x00");
    let sealing =
        [&primary, &session, &nothing, &nothing, &digest, &nothing, &session, &nothing].map(Vec::as_slice).concat();
    let unsealing = [&primary, &loaded, &session, &nothing, &nothing, &digest, &nothing].map(Vec::as_slice).concat();
    vec![sealing, unsealing, answer(0x8001, 0x921, &[]), answer(0x8001, 0x98e, &[])]
}

/// Layouts with every kind of segment, as described by a key process.
pub fn outline() -> Vec<Vec<u8>> {
    let segment = |at: u64, len: u64, holds: &str| {
        format!(r#"{{"at":{at},"len":{len},"stored_at":{at},"writable":true,"holds":{holds}}}"#)
    };
    let outline = |segments: &[String], protected: &str| {
        format!(r#"{{"store":1048576,"segments":[{}],"protected":[{protected}]}}"#, segments.join(",")).into_bytes()
    };
    let plain = [
        segment(0, 4096, r#"{"Fixed":[1,2,3]}"#),
        segment(4096, 512, r#""Zero""#),
        segment(4608, 512, r#""Clear""#),
        segment(5120, 8192, r#"{"Encrypted":512}"#),
    ];
    let tagged = segment(0, 512 * 8, r#"{"Tagged":{"sector":512,"tag":32,"first":0,"room":1048576}}"#);
    vec![outline(&plain, r#"{"start":6000,"end":7000}"#), outline(&[tagged], "")]
}

/// Requests to a key process: a file is opened or made, and its first blocks are sealed and opened; names, and a folder's place.
pub fn key_requests() -> Vec<Vec<u8>> {
    let request = |[order, file]: [u8; 2], len: u32, into: u64, data: &[u8]| {
        let fields = [&[order, file][..], &len.to_le_bytes(), &[0; 4], &into.to_le_bytes(), &[0, data.len() as u8]];
        [&fields.concat(), data].concat()
    };
    let said = |order: u8, data: &[u8]| request([order, 0], data.len() as u32, 0, data);
    let contents = |file: u8| {
        [
            request([2, file], 100_000, 0, &[7; 200]),
            request([1, file], 100_000, 0, &[]),
            request([2, file], 70, 1 << 20, &[7; 70]),
            request([1, file], u32::MAX, u64::MAX, &[]),
            request([18, file], 0, 0, &[]),
        ]
        .concat()
    };
    let names = [said(20, &[&[16][..], &[5; 16], b"name"].concat()), said(19, b"\x10five"), said(21, b"folder")];
    vec![
        [&said(16, &[])[..], &said(16, &[5; 16]), &contents(0), &contents(1)].concat(),
        [&said(17, &[])[..], &said(16, &[5; 68]), &contents(0)].concat(),
        names.concat(),
    ]
}

/// Messages of clients: both ways to choose an export, and each kind of request.
pub fn nbd() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        [&b"IHAVEOPT"[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let request = |flags: u16, command: u16, offset: u64, len: u32, data: &[u8]| {
        let fields =
            [&0x2560_9513u32.to_be_bytes()[..], &flags.to_be_bytes(), &command.to_be_bytes(), &[9; 8]].concat();
        [&fields[..], &offset.to_be_bytes(), &len.to_be_bytes(), data].concat()
    };
    let named = |name: &[u8]| [&[0, 0, 0, 1][..], name, &[0, 3, 0, 1, 0, 2, 0, 3]].concat();
    let all = [
        request(0, 0, 512, 1024, &[]),
        request(1, 1, 100, 5, b"bytes"),
        request(0, 0, 0, (1 << 20) + 512, &[]),
        request(4, 0, 7, 1 << 20, &[]),
        request(0, 3, 0, 0, &[]),
        request(0, 4, 4096, 4096, &[]),
        request(2, 6, 1 << 20, 512, &[]),
        request(0, 0, 1 << 20, 1 << 20, &[]),
        request(0, 9, 0, 0, &[]),
        request(0, 2, 0, 0, &[]),
    ]
    .concat();
    let old = [&[0, 0, 0, 1][..], &option(1, b"a"), &[0; 0], &all].concat();
    let new =
        [&[0, 0, 0, 3][..], &option(3, &[]), &option(8, &[]), &option(6, &named(b"b")), &option(7, &named(b"a")), &all];
    let refused = [&[0, 0, 0, 3][..], &option(5, &[]), &option(7, &named(b"c")), &option(7, &named(b"b")), &all];
    vec![old, new.concat(), refused.concat(), [&[0, 0, 0, 3][..], &option(2, &[])].concat()]
}

/// Kernel messages of every kind (Linux, include/uapi/linux/fuse.h), for a folder with one file, which is node 2.
pub fn loans() -> Vec<Vec<u8>> {
    let message = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let grow =
        |start: u64, len: u64, rehearse| message(&format!(r#"{{"start":{start},"len":{len},"rehearse":{rehearse}}}"#));
    let request = message(r#"{"version":1,"file":[7,9]}"#);
    let steps = [grow(0, 1 << 21, true), grow(0, 1 << 21, false)].concat();
    vec![request.clone(), [&*request, &steps].concat(), [request, grow(0, u64::MAX, true), steps].concat()]
}

pub fn fuse() -> Vec<Vec<u8>> {
    let message = |opcode: u32, node: u64, rest: &[&[u8]]| {
        let rest = rest.concat();
        let header = [40 + rest.len() as u32, opcode].map(u32::to_ne_bytes).concat();
        [&header[..], &7u64.to_ne_bytes(), &node.to_ne_bytes(), &[0; 16], &rest].concat()
    };
    let word = |number: u64| number.to_ne_bytes();
    let range = |offset: u64, len: u64| [word(1), word(offset), word(len), word(0), word(0)].concat();
    let mut all = Vec::new();
    for name in [&b"volume\0"[..], b"hello.txt\0", b"HELLO.TXT\0"] {
        all.push(message(1, 1, &[name]));
    }
    for node in [1, 2, 3] {
        all.push(message(3, node, &[&word(0), &word(0)]));
        all.push(message(14, node, &[&word(2)]));
        all.push(message(16, node, &[&range(3, 5), b"bytes"]));
        all.push(message(15, node, &[&range(0, 4096)]));
        // Size and times.
        all.push(message(4, node, &[&word(8 | 32), &word(0), &word(4000), &[0; 64]]));
        all.push(message(46, node, &[&word(0), &word(0), &word(3)]));
        all.push(message(20, node, &[&word(0), &word(0)]));
        all.push(message(18, node, &[&[0; 24]]));
    }
    all.push(message(27, 1, &[&word(0)]));
    all.push(message(28, 1, &[&range(0, 4096)]));
    all.push(message(44, 1, &[&range(0, 4096)]));
    all.push(message(17, 1, &[]));
    let mut changes = vec![
        message(9, 1, &[&word(0o755), b"folder\0"]),
        message(35, 1, &[&[word(2), word(0o644)].concat(), b"a long name.text\0"]),
        message(16, 4, &[&range(9000, 5), b"bytes"]),
        message(12, 1, &[&word(3), b"a long name.text\0b\0"]),
        message(45, 1, &[&word(1), &word(1), b"HELLO.TXT\0c\0"]),
        message(8, 1, &[&[word(0o100_644), word(0)].concat(), b"node\0"]),
        message(6, 1, &[b"link\0target\0"]),
        message(13, 1, &[&word(2), b"another\0"]),
        message(22, 2, &[&word(0), b"user.x\0"]),
        message(21, 2, &[&word(1), b"user.x\0y"]),
        message(23, 2, &[&word(100)]),
        message(10, 1, &[b"c\0"]),
        message(11, 1, &[b"folder\0"]),
        message(2, 2, &[&word(1)]),
        message(42, 0, &[&word(1), &word(2), &word(1)]),
        message(29, 1, &[&word(1), &word(0), &word(0)]),
    ];
    changes.push(message(38, 1, &[]));
    vec![all.concat(), [all, changes].concat().concat()]
}
