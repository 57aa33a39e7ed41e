//! The header: 512 bytes, of which 64 are salt and 448 are encrypted.

use claviger_crypto::Secret;

use super::positions::{BOOT_LOADER, Position};
use super::suites::UNIT;
use crate::error::{Error, ErrorKind, Result};

/// The size of a header, in bytes.
pub(super) const SIZE: usize = 512;
/// The size of the salt at its beginning, in bytes.
pub(super) const SALT: usize = 64;

// The decrypted header. Numbers are big-endian; source: TrueCrypt 7.1a, Volumes.c, the tables of versions 2 to 5;
// VeraCrypt changed the magic and the program versions alone.
//
//   0 ┌──────────────────────────────────────────────────────────────┐
//     │ salt, in the clear                                           │
//  64 ├──────────────┬───────┬───────┬───────────────┬───────────────┤
//     │ magic      4 │ ver 2 │ req 2 │ key CRC-32  4 │ 76 created  8 │
//  84 ├──────────────┴───────┴───────┼───────────────┴───────────────┤
//     │ header written             8 │ 92 size if hidden           8 │
// 100 ├──────────────────────────────┼───────────────────────────────┤
//     │ size of the volume         8 │ 108 where its data begin    8 │
// 116 ├──────────────────────────────┼───────────────┬───────────────┤
//     │ size of the encrypted part 8 │ 124 flags   4 │ 128 sector  4 │
// 132 ├──────────────────────────────┴───────────────┴───────────────┤
//     │ zeros                                                        │
// 252 ├───────────────┬──────────────────────────────────────────────┤
//     │ CRC-32      4 │ 256 key area: keys, then zeros           256 │
// 512 └───────────────┴──────────────────────────────────────────────┘
/// `TRUE`, or `VERA`.
const MAGIC: usize = 64;
/// Version of the header: 1 and 2 before TrueCrypt 5.0, 3 in 5.x, 4 in 6.x, 5 in 7.x.
const VERSION: usize = 68;
/// The oldest program version that may open the volume.
const REQUIRED_PROGRAM: usize = 70;
/// CRC-32 of the bytes from 256 to the end.
const KEY_CRC: usize = 72;
/// Versions 1 to 3: when the volume was created, as a Windows file time. Zero since version 4.
const CREATED: usize = 76;
/// Versions 1 to 3: when the header was written, as a Windows file time. Zero since version 4.
const HEADER_WRITTEN: usize = 84;
/// The size of the hidden volume, in bytes. 0 in any other header.
pub(super) const HIDDEN_SIZE: usize = 92;
/// Since version 3: size of the volume in bytes.
pub(super) const VOLUME_SIZE: usize = 100;
/// Since version 3, used since 4: the offset of the data, in bytes from the beginning of the file.
const DATA_START: usize = 108;
/// Since version 3, used since 4: how many bytes are encrypted. Less than the volume's size during an in-place conversion.
const ENCRYPTED_SIZE: usize = 116;
/// Since version 4: bit 0 marks a system, bit 1 an in-place conversion.
const FLAGS: usize = 124;
/// Since version 5: the sector size of the device as which the volume appears, in bytes.
const SECTOR_SIZE: usize = 128;
/// Since version 4: CRC-32 of the bytes from 64 to here.
const HEADER_CRC: usize = 252;
/// The volume's keys.
const KEYS: usize = 256;

/// The newest version of the header (7.1a and VeraCrypt 1.26, `VOLUME_HEADER_VERSION`).
const NEWEST_VERSION: u16 = 5;
/// Flag: the header belongs to a drive or partition that holds a system.
const FLAG_SYSTEM: u32 = 1;

/// How the headers of one program differ from those of another.
pub(super) struct Rules {
    /// The first bytes of the encrypted part.
    pub magic: &'static [u8; 4],
    /// The name of the program whose headers these are.
    pub program: &'static str,
    /// The newest version of that program.
    pub newest_program: u16,
    /// The value that it writes as the oldest program (`TC_VOLUME_MIN_REQUIRED_PROGRAM_VERSION`).
    pub written_program: u16,
    /// The first program version whose volumes have sizes in the header, and backup headers.
    pub backups_since: u16,
    /// Whether volumes without backup headers are supported too.
    pub before_backups: bool,
}

/// TrueCrypt 7.1a. The layout with backup headers came with 6.0 (7.1a, `ReadVolumeHeader`).
pub(super) static TRUECRYPT: Rules = Rules {
    magic: b"TRUE",
    program: "TrueCrypt 7.1a, the last one",
    newest_program: 0x071a,
    written_program: 0x0700,
    backups_since: 0x0600,
    before_backups: true,
};

/// VeraCrypt 1.26, which opens nothing older than VeraCrypt 1.0b (Volume.cpp, `Volume::Open`).
pub(super) static VERACRYPT: Rules = Rules {
    magic: b"VERA",
    program: "VeraCrypt 1.26",
    newest_program: 0x0126,
    written_program: 0x010b,
    backups_since: 0x010b,
    before_backups: false,
};

/// The fields of a header whose checksums match and whose numbers have all been checked.
#[derive(Debug)]
pub(super) struct Fields {
    pub version: u16,
    /// Whether the volume has the layout of TrueCrypt 6.0: sizes in the header, and headers in areas of 64 KiB, with backups.
    pub has_backups: bool,
    /// In seconds since 1970.
    pub created: Option<i64>,
    /// In seconds since 1970.
    pub header_written: Option<i64>,
    /// In bytes; 0 unless the volume is hidden.
    pub hidden_size: u64,
    /// In bytes. Not reliable before version 4.
    pub volume_size: u64,
    /// In bytes from the beginning of the file. Not reliable before version 4.
    pub data_start: u64,
    /// In bytes.
    pub sector_size: u32,
    /// Whether the volume is a system, hidden or not, which a boot loader opens.
    pub boots: bool,
}

/// Whether the magic matches. It also does for one wrong key in 2^32, which then fails the checksums.
pub(super) fn has_magic(body: &[u8], rules: &Rules) -> bool {
    body.starts_with(rules.magic)
}

/// The key area of a decrypted header.
pub(super) fn keys(plain: &[u8]) -> &[u8] {
    &plain[KEYS..]
}

/// Returns how many bytes are encrypted, according to a decrypted header.
pub(super) fn encrypted_size(plain: &[u8]) -> u64 {
    be64(plain, ENCRYPTED_SIZE)
}

/// Reads a decrypted header at `position`, which is the offset `at` of the store.
///
/// # Errors
/// `Malformed` if a checksum or a field is wrong, `Unsupported` if the header is newer than the program's or belongs to a system.
pub(super) fn parse(plain: &[u8], at: u64, position: &Position, rules: &Rules) -> Result<Fields> {
    let wrong = |field, offset: usize, what: String| {
        Error::new(ErrorKind::Malformed { field, offset: at + offset as u64, what })
    };
    let version = be16(plain, VERSION);
    if version == 0 {
        return Err(wrong("header version", VERSION, "version 0 does not exist".into()));
    }
    if version >= 4 && crc32fast::hash(&plain[MAGIC..HEADER_CRC]) != be32(plain, HEADER_CRC) {
        let what = "the checksum does not match: the header was changed after it was written".into();
        return Err(wrong("header checksum", HEADER_CRC, what));
    }
    if version > NEWEST_VERSION {
        return Err(Error::unsupported(format!("header version {version}; {} wrote {NEWEST_VERSION}", rules.program)));
    }
    if crc32fast::hash(&plain[KEYS..]) != be32(plain, KEY_CRC) {
        let what = "the checksum does not match: the keys were changed after they were written".into();
        return Err(wrong("key checksum", KEY_CRC, what));
    }
    let required_program = be16(plain, REQUIRED_PROGRAM);
    let has_backups = required_program >= rules.backups_since;
    if required_program > rules.newest_program || !has_backups && !rules.before_backups {
        let (major, minor) = (required_program >> 8, required_program & 0xff);
        return Err(Error::unsupported(format!(
            "volume version {major:x}.{minor:02x}; the newest known is {}",
            rules.program
        )));
    }
    let sector_size = if version >= 5 { be32(plain, SECTOR_SIZE) } else { 512 };
    if !(512..=4096).contains(&sector_size) || !sector_size.is_multiple_of(512) {
        let what = format!("{sector_size} bytes is not a valid sector size");
        return Err(wrong("sector size", SECTOR_SIZE, what));
    }
    // The position tells what kind of volume the header belongs to. The flag, which has a checksum since version 4, must agree. A
    // hidden system is a hidden volume with the flag (Boot/Windows/BootMain.cpp, `OpenVolume`).
    let system = position.system;
    let flag = version >= 4 && be32(plain, FLAGS) & FLAG_SYSTEM != 0;
    let fields = Fields {
        version,
        has_backups,
        created: seconds(be64(plain, CREATED)),
        header_written: seconds(be64(plain, HEADER_WRITTEN)),
        hidden_size: be64(plain, HIDDEN_SIZE),
        volume_size: be64(plain, VOLUME_SIZE),
        data_start: be64(plain, DATA_START),
        sector_size,
        boots: flag,
    };
    if !fields.hidden_size.is_multiple_of(UNIT) {
        let what = format!("{} bytes are not whole sectors", fields.hidden_size);
        return Err(wrong("size of the hidden volume", HIDDEN_SIZE, what));
    }
    if system && (version < 4 || !has_backups) {
        return Err(Error::unsupported("a system that TrueCrypt 5 encrypted"));
    }
    if !has_backups {
        return Ok(fields);
    }
    if flag != system && !(flag && position.hidden) {
        return Err(match system {
            true => wrong("flags", FLAGS, "the header is at a system header's position, but is not one".into()),
            false => Error::unsupported("opening the header of an encrypted system as a volume")
                .hint("Open the system's whole boot disk."),
        });
    }
    if fields.volume_size == 0 || !fields.volume_size.is_multiple_of(UNIT) || fields.volume_size > i64::MAX as u64 {
        let what = format!("{} bytes is not a valid volume size", fields.volume_size);
        return Err(wrong("size of the volume", VOLUME_SIZE, what));
    }
    if fields.hidden_size != 0 && fields.hidden_size != fields.volume_size {
        let what = format!("{} bytes, but the volume has {}", fields.hidden_size, fields.volume_size);
        return Err(wrong("size of the hidden volume", HIDDEN_SIZE, what));
    }
    // The first two header areas precede all data (7.1a, `TC_VOLUME_DATA_OFFSET`), and the boot loader precedes a system.
    let before = if system { BOOT_LOADER } else { super::HEADER_GROUP };
    let starts_well = fields.data_start >= before && fields.data_start.is_multiple_of(UNIT);
    if !starts_well || fields.data_start > i64::MAX as u64 - fields.volume_size {
        let what = format!("volume data cannot begin at byte {}", fields.data_start);
        return Err(wrong("beginning of the data", DATA_START, what));
    }
    // A system's header may name less than the volume's size; then the rest is in the clear. If it names more, as cryptsetup's
    // image `sys_vc_1_mbr_part` does, the whole volume is encrypted.
    let encrypted = encrypted_size(plain);
    if system && (!encrypted.is_multiple_of(UNIT) || encrypted > i64::MAX as u64 - fields.data_start) {
        let what = format!("{encrypted} bytes of a system cannot be encrypted");
        return Err(wrong("size of the encrypted part", ENCRYPTED_SIZE, what));
    }
    if encrypted != fields.volume_size && !system {
        return Err(Error::unsupported(format!(
            "a partly encrypted volume ({encrypted} of {} bytes)",
            fields.volume_size
        ))
        .hint("Finish the encryption with the program that began it."));
    }
    Ok(fields)
}

/// The data of a volume, as its header describes them.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// In bytes from the beginning of the file.
    pub start: u64,
    /// In bytes.
    pub size: u64,
    /// Whether the data are a hidden volume's.
    pub hidden: bool,
}

/// Returns a header for `data` under `keys`, as the program of `rules` writes it, before encryption.
pub(super) fn compose(rules: &Rules, salt: &[u8], data: Extent, keys: &[u8]) -> Secret {
    let Extent { start, size, hidden } = data;
    let mut plain = Secret::zeroed(SIZE);
    plain[..SALT].copy_from_slice(salt);
    plain[KEYS..][..keys.len()].copy_from_slice(keys);
    put(&mut plain, MAGIC, rules.magic);
    put(&mut plain, VERSION, &NEWEST_VERSION.to_be_bytes());
    put(&mut plain, REQUIRED_PROGRAM, &rules.written_program.to_be_bytes());
    // The times stay zero, as in TrueCrypt since 6.0.
    put(&mut plain, HIDDEN_SIZE, &if hidden { size } else { 0 }.to_be_bytes());
    put(&mut plain, VOLUME_SIZE, &size.to_be_bytes());
    put(&mut plain, DATA_START, &start.to_be_bytes());
    put(&mut plain, ENCRYPTED_SIZE, &size.to_be_bytes());
    put(&mut plain, SECTOR_SIZE, &512u32.to_be_bytes());
    seal_checksums(&mut plain);
    plain
}

/// Changes a decrypted header, of version 4 or newer, to that of a volume with `size` bytes of data.
pub(super) fn set_size(plain: &mut [u8], size: u64) {
    put(plain, VOLUME_SIZE, &size.to_be_bytes());
    put(plain, ENCRYPTED_SIZE, &size.to_be_bytes());
    seal_checksums(plain);
}

/// Recalculates both checksums of a decrypted header.
pub(super) fn seal_checksums(plain: &mut [u8]) {
    let key_crc = crc32fast::hash(&plain[KEYS..SIZE]);
    put(plain, KEY_CRC, &key_crc.to_be_bytes());
    let header_crc = crc32fast::hash(&plain[MAGIC..HEADER_CRC]);
    put(plain, HEADER_CRC, &header_crc.to_be_bytes());
}

fn put(plain: &mut [u8], at: usize, bytes: &[u8]) {
    plain[at..][..bytes.len()].copy_from_slice(bytes);
}

fn be16(plain: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(plain[at..][..2].try_into().expect("two bytes"))
}

fn be32(plain: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(plain[at..][..4].try_into().expect("four bytes"))
}

fn be64(plain: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(plain[at..][..8].try_into().expect("eight bytes"))
}

/// Converts a Windows file time, in units of 100 ns since 1601, to seconds since 1970.
fn seconds(file_time: u64) -> Option<i64> {
    (file_time != 0).then(|| (file_time / 10_000_000) as i64 - 11_644_473_600)
}

/// Changes a composed header to another version, with matching checksums.
#[cfg(test)]
pub(super) fn change(plain: &mut [u8], version: u16, required_program: u16, hidden_size: u64, sector_size: u32) {
    put(plain, VERSION, &version.to_be_bytes());
    put(plain, REQUIRED_PROGRAM, &required_program.to_be_bytes());
    put(plain, HIDDEN_SIZE, &hidden_size.to_be_bytes());
    put(plain, SECTOR_SIZE, &sector_size.to_be_bytes());
    if version < 4 {
        return plain[VOLUME_SIZE..KEYS].fill(0);
    }
    let crc = crc32fast::hash(&plain[MAGIC..HEADER_CRC]);
    put(plain, HEADER_CRC, &crc.to_be_bytes());
}

/// Changes a composed header to that of a system with `encrypted` bytes encrypted so far.
#[cfg(test)]
pub(super) fn make_system(plain: &mut [u8], flags: u32, encrypted: u64) {
    put(plain, FLAGS, &flags.to_be_bytes());
    put(plain, ENCRYPTED_SIZE, &encrypted.to_be_bytes());
    let crc = crc32fast::hash(&plain[MAGIC..HEADER_CRC]);
    put(plain, HEADER_CRC, &crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::positions;
    use super::*;

    /// Reads a header at `at`, as a system's if systems have theirs there.
    fn parse(plain: &[u8], at: u64, rules: &Rules) -> Result<Fields> {
        let system = at == positions::SYSTEM_AT;
        super::parse(plain, at, if system { &positions::SYSTEM } else { &positions::VERACRYPT[0] }, rules)
    }

    const START: u64 = 131_072;
    const DATA: Extent = Extent { start: START, size: 1 << 20, hidden: false };

    fn composed() -> Secret {
        compose(&TRUECRYPT, &[7; SALT], DATA, &[9; 64])
    }

    /// Changes a field and recalculates the header's checksum.
    fn with(at: usize, bytes: &[u8]) -> Secret {
        let mut plain = composed();
        put(&mut plain, at, bytes);
        let crc = crc32fast::hash(&plain[MAGIC..HEADER_CRC]);
        put(&mut plain, HEADER_CRC, &crc.to_be_bytes());
        plain
    }

    fn field_of(result: Result<Fields>) -> (&'static str, u64) {
        match result.expect_err("the header is wrong").kind {
            ErrorKind::Malformed { field, offset, .. } => (field, offset),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_composed_is_read() {
        let plain = composed();
        assert!(has_magic(&plain[SALT..], &TRUECRYPT));
        let fields = parse(&plain, 0, &TRUECRYPT).expect("a good header");
        let Fields { version, has_backups, created, header_written, hidden_size, .. } = fields;
        let Fields { volume_size, data_start, sector_size, boots, .. } = fields;
        assert!(!boots);
        assert_eq!((version, has_backups, sector_size), (5, true, 512));
        assert_eq!((created, header_written, hidden_size), (None, None, 0));
        assert_eq!((volume_size, data_start), (1 << 20, START));
        assert_eq!(keys(&plain)[..64], [9; 64]);
    }

    #[test]
    fn each_wrong_field_is_named_with_its_place() {
        let be64 = |n: u64| n.to_be_bytes();
        let cases: [(usize, &[u8], &str); 11] = [
            (VERSION, &0u16.to_be_bytes(), "header version"),
            (SECTOR_SIZE, &0u32.to_be_bytes(), "sector size"),
            (SECTOR_SIZE, &8192u32.to_be_bytes(), "sector size"),
            (SECTOR_SIZE, &1000u32.to_be_bytes(), "sector size"),
            (VOLUME_SIZE, &be64(0), "size of the volume"),
            (VOLUME_SIZE, &be64(513), "size of the volume"),
            (VOLUME_SIZE, &be64(1 << 63), "size of the volume"),
            (HIDDEN_SIZE, &be64(512), "size of the hidden volume"),
            (DATA_START, &be64(512), "beginning of the data"),
            (DATA_START, &be64(START + 1), "beginning of the data"),
            (DATA_START, &be64(u64::MAX - 511), "beginning of the data"),
        ];
        for (at, bytes, field) in cases {
            assert_eq!(field_of(parse(&with(at, bytes), 65_536, &TRUECRYPT)), (field, 65_536 + at as u64));
        }
    }

    #[test]
    fn a_system_may_be_encrypted_in_part_and_its_border_is_that_of_a_sector() {
        let at = positions::SYSTEM_AT;
        let parsed = |encrypted: u64| {
            let mut plain = composed();
            make_system(&mut plain, FLAG_SYSTEM, encrypted);
            parse(&plain, at, &TRUECRYPT)
        };
        for encrypted in [0, 512, 1 << 20, 60 << 30, (i64::MAX as u64 - START) / 512 * 512] {
            parsed(encrypted).unwrap_or_else(|e| panic!("{encrypted}: {e}"));
        }
        for encrypted in [1, 511, (1 << 20) + 1, i64::MAX as u64 + 1 - START, u64::MAX - 511, u64::MAX] {
            assert_eq!(field_of(parsed(encrypted)), ("size of the encrypted part", at + ENCRYPTED_SIZE as u64));
        }
    }

    #[test]
    fn any_other_change_fails_a_checksum() {
        for at in (VERSION..SIZE).filter(|at| *at != VERSION) {
            let mut plain = composed();
            plain[at] ^= 0x10;
            // Version 0x1005 still has a checksum, which does not match.
            let expected =
                if at >= KEYS { ("key checksum", KEY_CRC as u64) } else { ("header checksum", HEADER_CRC as u64) };
            assert_eq!(field_of(parse(&plain, 0, &TRUECRYPT)), expected, "byte {at}");
        }
    }

    #[test]
    fn what_is_newer_or_of_another_kind_is_not_supported() {
        let unsupported: [(usize, &[u8]); 4] = [
            (VERSION, &6u16.to_be_bytes()),
            (REQUIRED_PROGRAM, &0x0800u16.to_be_bytes()),
            (FLAGS, &1u32.to_be_bytes()),
            (ENCRYPTED_SIZE, &512u64.to_be_bytes()),
        ];
        for (at, bytes) in unsupported {
            let error = parse(&with(at, bytes), 0, &TRUECRYPT).expect_err("not supported");
            assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
        }
    }

    #[test]
    fn headers_of_one_program_are_not_taken_for_those_of_the_other() {
        let vera = compose(&VERACRYPT, &[7; SALT], DATA, &[9; 64]);
        assert!(has_magic(&vera[SALT..], &VERACRYPT) && !has_magic(&vera[SALT..], &TRUECRYPT));
        assert!(parse(&vera, 0, &VERACRYPT).expect("a good header").has_backups);
        for version in [0x010a_u16, 0x0127] {
            let mut changed = vera.to_vec();
            change(&mut changed, 5, version, 0, 512);
            let error = parse(&changed, 0, &VERACRYPT).expect_err("not supported");
            assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
        }
    }

    #[test]
    fn file_times_become_seconds() {
        assert_eq!(seconds(0), None);
        assert_eq!(seconds(116_444_736_000_000_000), Some(0));
    }
}
