//! Encrypted systems: a disk whose boot loader asks for the password, with one partition or everything after the boot loader
//! encrypted.
//!
//! Sources: 7.1a, Boot/Windows/BootDefs.h, Common/Volumes.c and Driver/DriveFilter.c, `MountDrive`; the same files of VeraCrypt
//! 1.26. cryptsetup's image `sys_vc_1_mbr_part` confirms them for VeraCrypt.
//!
//! A hidden system is a hidden volume in the partition after the decoy system's. Its header is in a hidden volume's place, has a
//! volume's key derivation, and carries the system flag. Its sectors are numbered from the beginning of its own partition, as in
//! any hidden volume (Boot/Windows/BootMain.cpp, `OpenVolume` and `MountVolume`; Driver/DriveFilter.c, `MountDrive`, where
//! `RemappedAreaDataUnitOffset` comes to the same). So it opens as that partition's volume and can be protected like any hidden
//! volume. It needs only [`Loader::of_hidden`] here.

use super::kdfs::Kdf;
use super::keyfiles::PASSWORD_MAX;
use super::positions::{self, SYSTEM_AT};
use super::trials::OpenedHeader;
use super::{DataArea, Family, HeaderCopy, UNIT, header};
use crate::advice::Warning;
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::filesystems::magic;
use crate::formats::Verdict;
use crate::partitions;
use crate::store::Store;
use crate::volume::{Layout, Payload, Segment};

// The disk.
//
// sector 0 ┌───────────────────────────────────────────────────────┐
//          │ boot sector, with the partition table                 │
//        1 ├───────────────────────────────────────────────────────┤
//          │ boot loader; of a GPT and UEFI, the GPT               │
//       62 ├───────────────────────────────────────────────────────┤
//          │ header                                                │
//       63 ├───────────────────────────────────────────────────────┤
//          │ clear, up to where the header says that data begin    │
//        x ├───────────────────────────────────────────────────────┤
//          │ encrypted, as many bytes as the header says           │
//        b ├───────────────────────────────────────────────────────┤
//          │ clear, of what is to be encrypted or was: the border  │
//          │ b moves up or down while the system is in use         │
//        y ├───────────────────────────────────────────────────────┤
//          │ clear                                                 │
//          └───────────────────────────────────────────────────────┘
//
// Sectors are numbered from the beginning of the disk, for XTS too. Encrypting begins at x, decrypting at y, each goes on to
// the other end, and between them every sector in front of b is encrypted and no other (7.1a, Driver/DriveFilter.c,
// `SetupThreadProc`; VeraCrypt, the same). The header is made with b = x (Common/BootEncryption.cpp, `CreateVolumeHeader`).

/// How far the border may move before the header is updated, in bytes (Driver/DriveFilter.h,
/// `TC_ENCRYPTION_SETUP_HEADER_UPDATE_THRESHOLD`).
const BORDER_LAG: u64 = 64 << 20;

/// The text by which each program's boot sector is recognised (Boot/Windows/BootSector.asm).
const LOADERS: [(&str, &[u8]); 2] = [("TrueCrypt", b"TrueCrypt Boot"), ("VeraCrypt", b"VeraCrypt Boot")];

/// The warning after writing a system's header.
pub(super) const ONE_HEADER: &str = "An encrypted system has only one header on the disk, and the copy on a rescue \
     disk is now outdated. Make a new rescue disk or a header backup.";

/// Where the image of a BIOS rescue disk holds the disk's beginning, header included: the offset in bytes
/// (Boot/Windows/BootCommon.h, `TC_CD_BOOTSECTOR_OFFSET`; Common/BootEncryption.cpp, `CreateRescueIsoImage`).
const ON_RESCUE_DISK: u64 = 0xd000;

/// The offset of the boot record in a bootable ISO 9660 image, in bytes, and its first bytes (El Torito 1.0, figure 7).
const BOOT_RECORD: (u64, &[u8; 30]) = (0x8800, b"\0CD001\x01EL TORITO SPECIFICATION");

/// Offsets in a boot sector: the PIM, little-endian, and flags that the user chose (VeraCrypt, Boot/Windows/BootDefs.h,
/// `TC__BOOT_SECTOR_PIM_VALUE_OFFSET` and `TC__BOOT_SECTOR_USER_CONFIG_OFFSET`).
const STORED_PIM: usize = 400;
const USER_FLAGS: usize = 438;

/// Flag: the boot loader uses the PIM in the boot sector and does not ask (`TC__BOOT_USER_CFG_FLAG_DISABLE_PIM`).
const FLAG_STORED_PIM: u8 = 8;

/// The largest PIM of a system (VeraCrypt, Common/Password.h, `MAX_BOOT_PIM_VALUE`).
const PIM_MAX: u32 = 65_535;

/// Identifies a disk whose first sector cannot belong to a volume.
pub(super) fn identify(family: &Family, store: &dyn Store, start: &[u8; 512]) -> Result<Verdict> {
    if header(family, store)?.is_none() {
        return Ok(Verdict::No(vec!["it does not begin with random-looking bytes".into()]));
    }
    let sector = "its sector 62 looks random, like the header of an encrypted system";
    Ok(match loader(start) {
        Some(name) if name == family.name => {
            Verdict::Possible(vec![format!("it has the boot loader of {name}, and {sector}")])
        }
        Some(name) => Verdict::No(vec![format!("it has the boot loader of {name}")]),
        None => Verdict::Possible(vec![format!("it is a disk with partitions, and {sector}")]),
    })
}

/// Returns the sector that could be an encrypted system's header, if `store` could be such a disk: one with a partition table, and
/// without another program's boot loader.
pub(super) fn header(family: &Family, store: &dyn Store) -> Result<Option<HeaderCopy>> {
    let position = &positions::SYSTEM;
    let Some(at) = position.in_store(store.len()) else { return Ok(None) };
    if !could_start(family, store)? {
        return Ok(None);
    }
    let mut bytes = [0; header::SIZE];
    store.read_at(at, &mut bytes)?;
    Ok(magic::looks_random(&bytes).then_some(HeaderCopy { position, at, bytes }))
}

/// Whether the family's systems could start from this store, whatever its sector 62 holds.
fn could_start(family: &Family, store: &dyn Store) -> Result<bool> {
    let start = boot_sector(store)?;
    // A damaged table counts as one: the header says where the encrypted data are.
    let disk =
        start[510..] == [0x55, 0xaa] && !magic::looks_random(&start) && !matches!(partitions::read(store), Ok(None));
    Ok(disk && loader(&start).is_none_or(|name| name == family.name))
}

fn boot_sector(store: &dyn Store) -> Result<[u8; 512]> {
    let mut start = [0; 512];
    store.read_at(0, &mut start)?;
    Ok(start)
}

/// Refuses to write a system's header to a disk from which no system of the family starts: it would not be found there.
pub(super) fn check_disk(family: &Family, store: &dyn Store) -> Result<()> {
    if could_start(family, store)? {
        return Ok(());
    }
    let what = format!(
        "this is a backup of an encrypted {name} system, but the target is not a partitioned disk or has another \
         program's boot loader",
        name = family.name
    );
    Err(Error::new(ErrorKind::NotThisFormat(what))
        .hint("Give the whole disk. If its partition table is lost, restore that first."))
}

/// Returns the offset of a system's header in a file, in bytes, if the file can only be its backup or a rescue disk image.
pub(super) fn in_backup(family: &Family, file: &dyn Store) -> Result<Option<u64>> {
    if file.len() == header::SIZE as u64 {
        return Ok(Some(0));
    }
    let at = ON_RESCUE_DISK + SYSTEM_AT;
    if file.len() < at + header::SIZE as u64 {
        return Ok(None);
    }
    let (record_at, expected) = BOOT_RECORD;
    let mut record = [0; 30];
    file.read_at(record_at, &mut record)?;
    let mut start = [0; 512];
    file.read_at(ON_RESCUE_DISK, &mut start)?;
    Ok((record == *expected && loader(&start) == Some(family.name)).then_some(at))
}

/// What a system's boot loader accepts.
pub(super) struct Loader {
    /// Whether it is a BIOS boot loader, which has space only for short passphrases.
    bios: bool,
    /// The PIM that it uses without asking.
    pim: Option<u32>,
}

impl Loader {
    /// The boot loader of the disk `store`.
    pub fn on(store: &dyn Store) -> Result<Self> {
        let start = boot_sector(store)?;
        let loader = loader(&start);
        let takes_stored = loader == Some("VeraCrypt") && start[USER_FLAGS] & FLAG_STORED_PIM != 0;
        let stored = u16::from_le_bytes([start[STORED_PIM], start[STORED_PIM + 1]]);
        Ok(Self { bios: loader.is_some(), pim: takes_stored.then_some(stored.into()) })
    }

    /// The boot loader of a hidden system, which is always a BIOS one. It is on the disk around the partition, so its stored PIM is
    /// not known.
    pub fn of_hidden() -> Self {
        Self { bios: true, pim: None }
    }

    /// Refuses credentials with which the boot loader could not open its system. `changed` is the new key derivation, if it
    /// changes.
    ///
    /// # Errors
    /// `Misuse` for keyfiles, for a passphrase that cannot be typed there, and for a PIM that it cannot store or does not ask for;
    /// `Unsupported` for another key derivation.
    pub fn check(&self, credentials: &[Credential], changed: Option<&Kdf>, pim: Option<u32>) -> Result<()> {
        if let Some(kdf) = changed {
            // The same as in VeraCrypt 1.26 (Common/BootEncryption.cpp, `ChangePassword`).
            return Err(Error::unsupported(format!("{} instead of the hash of the system's header", kdf.name))
                .hint("A boot loader supports only one hash. To change it, decrypt the system and encrypt it anew."));
        }
        for credential in credentials {
            match credential {
                Credential::Keyfile(_) => return Err(Error::misuse("boot loaders do not support keyfiles")),
                Credential::Passphrase(text) => self.check_typed(text)?,
                _ => {}
            }
        }
        let pim = pim.unwrap_or(0);
        if pim > PIM_MAX {
            return Err(Error::misuse(format!("the PIM {pim} is too large: at most {PIM_MAX} for a system")));
        }
        match self.pim.filter(|stored| *stored != pim) {
            None => Ok(()),
            Some(stored) => Err(Error::misuse(format!(
                "the boot loader does not ask for the PIM but uses {stored} from the boot sector: with {pim} the \
                 system would not start"
            ))
            .hint("Change the PIM in VeraCrypt, or first configure its boot loader to ask for it.")),
        }
    }

    /// Refuses a passphrase that the boot loader would not accept: only printable ASCII characters can be typed there (VeraCrypt,
    /// Common/Password.c, `CheckPasswordCharEncoding`; Boot/Windows/BootMain.cpp, `AskPassword`).
    fn check_typed(&self, passphrase: &[u8]) -> Result<()> {
        if !passphrase.iter().all(|byte| (0x20..0x7f).contains(byte)) {
            return Err(Error::misuse("a system passphrase can contain only printable ASCII characters")
                .hint("At boot it is typed with the US keyboard layout."));
        }
        if self.bios && passphrase.len() > PASSWORD_MAX {
            return Err(Error::misuse(format!(
                "the passphrase has {} characters, but the boot loader takes at most {PASSWORD_MAX}",
                passphrase.len()
            )));
        }
        Ok(())
    }
}

/// Returns the program whose boot loader a boot sector belongs to.
fn loader(start: &[u8; 512]) -> Option<&'static str> {
    let has = |mark: &[u8]| start.windows(mark.len()).any(|bytes| bytes == mark);
    LOADERS.iter().find(|(_, mark)| has(mark)).map(|(name, _)| *name)
}

/// The layout of the whole disk. The part that the system encrypts is writable, encrypted so far or not; everything else is
/// read-only.
pub(super) fn layout(
    found: &OpenedHeader,
    store: &dyn Store,
    with: &Unlock<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<(Layout, DataArea)> {
    let (start, len) = (found.fields.data_start, found.fields.volume_size);
    let (end, disk) = (start + len, store.len());
    if end > disk {
        let what = format!("the encrypted part ends at byte {end}, but the disk has {disk}");
        let offset = SYSTEM_AT + header::VOLUME_SIZE as u64;
        return Err(Error::new(ErrorKind::Malformed { field: "size of the volume", offset, what })
            .hint("If this is only a part of the disk, open the whole disk."));
    }
    let encrypted = header::encrypted_size(&found.plain);
    warnings.extend(unusual_border(encrypted, len).map(Warning::from));
    let border = start + encrypted.min(len);
    let cipher = found.suite.data_cipher(found.mode, header::keys(&found.plain), with.acceleration);
    let payload = Payload::crypt(cipher, start / UNIT).with_kernel(super::kernel_layers(found, with));
    let segment = |at, to, payload, writable| Segment { at, len: to - at, stored_at: at, payload, writable };
    let mut segments = vec![
        segment(0, start, Payload::Clear, false),
        segment(start, border, payload, true),
        segment(border, end, Payload::Clear, true),
        segment(end, disk, Payload::Clear, false),
    ];
    segments.retain(|segment| segment.len > 0);
    let layout = Layout::new(segments)?.for_kernel(with.for_kernel.then_some(super::KIND));
    Ok((layout, DataArea { start, len }))
}

/// The warning for a partly encrypted system, with `encrypted` of `len` bytes encrypted.
fn unusual_border(encrypted: u64, len: u64) -> Option<String> {
    if encrypted > len {
        return Some(format!(
            "The header records {encrypted} encrypted bytes, but only {len} to encrypt; the rest is treated as \
             unencrypted."
        ));
    }
    (encrypted < len).then(|| {
        format!(
            "Only {encrypted} of the system's {len} bytes are encrypted; the rest is read and written in the clear. \
             If the encryption was interrupted by a power cut, up to {} MiB at the boundary may read as noise.",
            BORDER_LAG >> 20
        )
    })
}

#[cfg(test)]
mod tests;
