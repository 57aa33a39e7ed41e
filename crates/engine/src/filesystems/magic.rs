//! Identifies the contents of a store from its first bytes: well-known magic numbers, and whether bytes look random.

use super::detect::{self, Kind};

/// How to reach the disk in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAccess {
    /// qemu opens this image of a virtual disk. Holds qemu's name of the format.
    Image(&'static str),
    /// The image may go on in further segment files; [`EwfStore`](crate::store::EwfStore) reads them. It is evidence, so it is only
    /// read.
    Evidence,
    /// A program mounts the image on a folder. The image is evidence, so it is only read.
    Mounted {
        /// The program; its arguments are the image and the folder.
        program: &'static str,
        /// The file in the folder that holds the disk; `IMAGE` stands for the image's name.
        inside: &'static str,
    },
    /// A command with the image's name as its argument writes the contents to standard output.
    Unpacked(&'static str),
}

/// A magic number of a format, at a fixed offset.
struct Mark {
    at: usize,
    bytes: &'static [u8],
    what: &'static str,
    /// The program that opens it, unless that is obvious.
    opened_by: Option<&'static str>,
    way: Option<DiskAccess>,
}

const fn mark(at: usize, bytes: &'static [u8], what: &'static str) -> Mark {
    Mark { at, bytes, what, opened_by: None, way: None }
}

const fn opened(by: &'static str, mark: Mark) -> Mark {
    Mark { opened_by: Some(by), ..mark }
}

/// A disk image in the format that qemu calls `format`.
const fn image(format: &'static str, mark: Mark) -> Mark {
    Mark { way: Some(DiskAccess::Image(format)), ..opened("qemu-img or qemu-nbd", mark) }
}

/// A disk image that this library reads.
const fn evidence(mark: Mark) -> Mark {
    Mark { way: Some(DiskAccess::Evidence), ..opened("ewfmount", mark) }
}

/// An image that `program` mounts on a folder, where the file `inside` holds the disk.
const fn mounted(program: &'static str, inside: &'static str, mark: Mark) -> Mark {
    Mark { way: Some(DiskAccess::Mounted { program, inside }), ..opened(program, mark) }
}

/// A compressed file that a command unpacks.
const fn packed(command: &'static str, mark: Mark) -> Mark {
    Mark { way: Some(DiskAccess::Unpacked(command)), ..opened(command, mark) }
}

/// Formats that look random after their magic number. Numbers of less than four bytes would also occur in random bytes.
static RANDOM_LOOKING: &[Mark] = &[
    mark(0, b"LUKS\xba\xbe\0\x01", "a LUKS1 volume"),
    mark(0, b"LUKS\xba\xbe\0\x02", "a LUKS2 volume"),
    mark(0, b"LUKS\xba\xbe", "a LUKS volume"),
    mark(0, b"SKUL\xba\xbe", "the second header of a LUKS2 volume"),
    // Ceph, src/librbd/crypto/luks/Magic.cc: unwritten parts of a clone are read from its parent, so it is not a LUKS volume.
    opened("librbd", mark(0, b"RBDL\xba\xbe", "an encrypted Ceph clone")),
    mark(3, b"-FVE-FS-", "a BitLocker volume"),
    mark(3, b"MSWIN4.1\0\x02", "a BitLocker To Go volume"),
    // libfvde, "FileVault Drive Encryption (FVDE)", section "Volume header": the signature and the kind of checksum.
    mark(88, b"CS\x01\0\0\0", "a Core Storage (FileVault) volume"),
    // The formats' own documentation or source names these magic numbers.
    opened("openssl enc -d", mark(0, b"Salted__", "a file encrypted by `openssl enc`")),
    opened("age -d", mark(0, b"age-encryption.org/v1", "a file encrypted by age")),
    opened("gpg --decrypt", mark(0, b"-----BEGIN PGP MESSAGE-----", "an OpenPGP message")),
    mark(0, b"encrcdsa", "an encrypted disk image of macOS"),
    image("vhdx", mark(0, b"vhdxfile", "a virtual disk of Hyper-V (VHDX)")),
    // qemu, docs/interop/qcow2.rst and qed_spec.rst: the magic number, for qcow followed by the version.
    opened("qemu-img", mark(0, b"QFI\xfb\0\0\0\x01", "a virtual disk of QEMU (qcow)")),
    image("qcow2", mark(0, b"QFI\xfb", "a virtual disk of QEMU (qcow2)")),
    image("qed", mark(0, b"QED\0", "a virtual disk of QEMU (QED)")),
    image("vmdk", mark(0, b"KDMV", "a virtual disk of VMware (VMDK)")),
    image("vmdk", mark(0, b"# Disk DescriptorFile", "a VMware virtual disk descriptor (VMDK)")),
    // qemu, docs/interop/parallels.rst: both versions.
    image("parallels", mark(0, b"WithoutFreeSpace", "a virtual disk of Parallels")),
    image("parallels", mark(0, b"WithouFreSpacExt", "a virtual disk of Parallels")),
    // libewf, "Expert Witness Compression Format (EWF)", sections "File header"; the same for version 2.
    evidence(mark(0, b"EVF\x09\x0d\x0a\xff\0", "a forensic image of EnCase (EWF, E01)")),
    mounted("ewfmount", "ewf1", mark(0, b"EVF2\x0d\x0a\x81\0", "a forensic image of EnCase (EWF 2, Ex01)")),
    opened("EnCase", mark(0, b"LVF\x09\x0d\x0a\xff\0", "files collected by EnCase (L01), not a disk")),
    opened("EnCase", mark(0, b"LEF2\x0d\x0a\x81\0", "files collected by EnCase (Lx01), not a disk")),
    // AFFLIB, lib/afflib.h, `AF_HEADER`. AFF4 Standard 1.0: a zip archive that begins with this file.
    mounted("affuse", "IMAGE.raw", mark(0, b"AFF10\x0d\x0a\0", "a forensic image (AFF)")),
    opened("aff4imager", mark(30, b"container.description", "a forensic image (AFF4)")),
    image("vdi", mark(0x40, b"\x7f\x10\xda\xbe", "a virtual disk of VirtualBox (VDI)")),
    packed("unzip -p", mark(0, b"PK\x03\x04", "a zip archive")),
    packed("gzip -dc", mark(0, b"\x1f\x8b\x08\0", "gzip data")),
    packed("gzip -dc", mark(0, b"\x1f\x8b\x08\x08", "gzip data")),
    packed("bzip2 -dc", mark(0, b"BZh91AY&SY", "bzip2 data")),
    packed("xz -dc", mark(0, b"\xfd7zXZ\0", "xz data")),
    packed("zstd -dc", mark(0, b"\x28\xb5\x2f\xfd", "zstd data")),
    packed("7z x -so", mark(0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive")),
    packed("unrar p -inul", mark(0, b"Rar!\x1a\x07", "a RAR archive")),
    mark(0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    mark(0, b"\xff\xd8\xff\xe0", "a JPEG image"),
    mark(0, b"\xff\xd8\xff\xe1", "a JPEG image"),
    mark(0, b"\x7fELF", "an ELF program"),
];

/// Magic numbers in the last sector, of 512 bytes. FreeBSD's GELI has its metadata there (sys/geom/eli/g_eli.h, `G_ELI_MAGIC`). A
/// virtual disk of Virtual PC ends with a footer (Virtual Hard Disk Image Format Specification, "Hard Disk Footer Format").
static AT_THE_END: &[Mark] = &[
    opened("geli attach on FreeBSD", mark(0, b"GEOM::ELI\0", "a GELI volume")),
    image("vpc", mark(0, b"conectix", "a virtual disk of Virtual PC (VHD)")),
    // qemu, block/dmg.c, `dmg_find_koly_offset`.
    image("dmg", mark(0, b"koly\0\0\0\x04", "a disk image of macOS (DMG)")),
];

/// Partition tables. They count only if no file system is recognised.
static TABLES: &[Mark] = &[
    mark(512, b"EFI PART", "a GPT partition table"),
    mark(4096, b"EFI PART", "a GPT partition table"),
    mark(510, b"\x55\xaa", "a boot sector or partition table"),
];

/// A bound of the probability that random bytes begin like one of these formats.
#[cfg(test)]
pub(crate) const BY_CHANCE: f64 = 3e-9;

/// The format of a store that begins with `start`, if it looks random but has a magic number.
pub(crate) fn compressed_or_encrypted(start: &[u8]) -> Option<&'static str> {
    find(RANDOM_LOOKING, start).or_else(|| is_ecryptfs(start).then_some(ECRYPTFS.0))
}

/// The description of the format, and the program that opens it.
const ECRYPTFS: (&str, &str) = ("a file encrypted by eCryptfs", "mount -t ecryptfs on its folder");

/// After the size, an eCryptfs file has a random number, and the same number exclusive-or a constant (Linux,
/// fs/ecryptfs/ecryptfs_kernel.h, `MAGIC_ECRYPTFS_MARKER`).
fn is_ecryptfs(start: &[u8]) -> bool {
    const MARKER: u32 = 0x3c81_b7f5;
    let number = |at: usize| start.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    number(8).zip(number(12)).is_some_and(|(one, other)| one ^ other == MARKER)
}

/// The program that opens a store beginning with `start`, and how to reach the disk in it, if it looks random but has a magic
/// number.
pub(crate) fn opened_by(start: &[u8]) -> (Option<&'static str>, Option<DiskAccess>) {
    let marked = RANDOM_LOOKING.iter().find(|m| m.is_in(start)).map(|m| (m.opened_by, m.way));
    marked.unwrap_or_else(|| (is_ecryptfs(start).then_some(ECRYPTFS.1), None))
}

/// The format of a store whose `last` sector has a magic number: its description, the program that opens it, and how to reach the
/// disk in it.
pub(crate) fn at_the_end(last: &[u8]) -> Option<(&'static str, &'static str, Option<DiskAccess>)> {
    AT_THE_END.iter().find(|m| m.is_in(last)).and_then(|m| Some((m.what, m.opened_by?, m.way)))
}

/// The format of a store that begins with `start`, if its magic number is known.
pub(crate) fn known(start: &[u8]) -> Option<&'static str> {
    // In bytes that look random, a magic number of two bytes means nothing.
    let marked = |m: &&Mark| {
        m.bytes.len() > 2 || start[m.at / 512 * 512..].first_chunk::<512>().is_none_or(|sector| !looks_random(sector))
    };
    let table = || TABLES.iter().filter(|m| m.is_in(start)).find(marked).map(|m| m.what);
    compressed_or_encrypted(start).or_else(|| detect::kind(start).map(Kind::described)).or_else(table)
}

/// Whether bytes could be random: salt, ciphertext or well-compressed data. Needs at least 512 bytes.
///
/// Pearson's chi-square over byte values has mean 255 and standard deviation 22.6 for random bytes. The limits are ten deviations
/// above (the distribution is skewed) and six below. They reject random bytes less than once in 10^9. Text, code, tables and a
/// counter are far outside.
pub(crate) fn looks_random(bytes: &[u8]) -> bool {
    (120.0..=480.0).contains(&chi_square(bytes))
}

/// Pearson's chi-square over byte values.
pub(crate) fn chi_square(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let expected = bytes.len() as f64 / 256.0;
    counts.iter().map(|c| (f64::from(*c) - expected).powi(2) / expected).sum()
}

impl Mark {
    fn is_in(&self, start: &[u8]) -> bool {
        start.get(self.at..).is_some_and(|from| from.starts_with(self.bytes))
    }
}

fn find(marks: &[Mark], start: &[u8]) -> Option<&'static str> {
    marks.iter().find(|m| m.is_in(start)).map(|m| m.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a store, in which all magic numbers are.
    const LOOKED_AT: usize = 0x10040 + 8;

    fn random(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        getrandom::fill(&mut bytes).expect("random bytes");
        bytes
    }

    #[test]
    fn random_bytes_look_random() {
        for _ in 0..20_000 {
            assert!(looks_random(&random(512)));
        }
        assert!((0..100).all(|_| looks_random(&random(1 << 16))));
    }

    #[test]
    fn other_bytes_do_not() {
        let counter: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let text = include_bytes!("magic.rs");
        for bytes in [&[0; 512][..], &counter, &text[..512], &text[1000..1512], text] {
            assert!(!looks_random(bytes));
        }
        let mut half = random(512);
        half[256..].fill(0);
        assert!(!looks_random(&half));
    }

    #[test]
    fn random_bytes_rarely_begin_with_a_mark() {
        let by_chance = |len: usize| 256f64.powi(-(len as i32));
        let marks: f64 = RANDOM_LOOKING.iter().map(|mark| by_chance(mark.bytes.len())).sum();
        assert!(marks + by_chance(4) < BY_CHANCE, "{marks:e}: keyslots (luks/areas.rs) allow for no more");
    }

    #[test]
    fn every_mark_is_seen() {
        for mark in RANDOM_LOOKING.iter().chain(TABLES) {
            assert!(mark.at + mark.bytes.len() <= LOOKED_AT);
            let mut start = vec![0; LOOKED_AT];
            start[mark.at..][..mark.bytes.len()].copy_from_slice(mark.bytes);
            assert_eq!(known(&start), Some(mark.what));
            // A shorter magic number may be the beginning of a longer one.
            assert_ne!(known(&start[..mark.at + mark.bytes.len() - 1]), Some(mark.what));
        }
        assert_eq!(known(&[0; LOOKED_AT]), None);
        let ecryptfs = [&[0; 8][..], b"\x12\x34\x56\x78\x2e\xb5\xe1\x8d"].concat();
        assert_eq!((known(&ecryptfs), opened_by(&ecryptfs)), (Some(ECRYPTFS.0), (Some(ECRYPTFS.1), None)));
        assert_eq!(known(&ecryptfs[..15]), None);
    }

    #[test]
    fn every_mark_at_the_end_is_seen() {
        for mark in AT_THE_END {
            let mut last = [0; 512];
            last[mark.at..][..mark.bytes.len()].copy_from_slice(mark.bytes);
            assert_eq!(at_the_end(&last), Some((mark.what, mark.opened_by.expect("it says so"), mark.way)));
        }
        assert_eq!(at_the_end(&[0; 512]), None);
    }
}
