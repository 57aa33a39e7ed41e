//! The places where headers can be.

use super::suites::{Mode, Suite, SuiteInMode};
use super::{HEADER_AREA, HEADER_GROUP, OLD_HEADER, OLD_HIDDEN_HEADER};
use crate::formats::WhichHeader;

/// The offset of a system's header, in bytes (`TC_BOOT_VOLUME_HEADER_SECTOR`).
pub(super) const SYSTEM_AT: u64 = 62 * 512;

/// The size of the boot loader's area in front of a system, in bytes (`TC_BOOT_LOADER_AREA_SIZE`).
pub(super) const BOOT_LOADER: u64 = 63 * 512;

/// A place where a header can be.
pub(super) struct Position {
    /// Its name for people.
    pub name: WhichHeader,
    place: HeaderAt,
    /// The store must be longer than this, in bytes, to have such a header (7.1a, Ntvol.c, `TCOpenVolume`).
    beyond: u64,
    pub hidden: bool,
    pub backup: bool,
    /// Whether volumes of TrueCrypt 1.0 to 5.1a have their header there too.
    pub old: bool,
    /// Whether it is a system's header, whose key derivations have other iterations.
    pub system: bool,
}

/// The offset of a header, in bytes from either end of the store.
enum HeaderAt {
    Start(u64),
    End(u64),
}

const PRIMARY: Position = Position {
    name: WhichHeader::Primary,
    place: HeaderAt::Start(0),
    beyond: 0,
    hidden: false,
    backup: false,
    old: false,
    system: false,
};

const HIDDEN: Position = Position {
    name: WhichHeader::Hidden,
    place: HeaderAt::Start(HEADER_AREA),
    beyond: HEADER_GROUP,
    hidden: true,
    ..PRIMARY
};

const BACKUP: Position = Position {
    name: WhichHeader::Backup,
    place: HeaderAt::End(HEADER_GROUP),
    beyond: 2 * HEADER_GROUP,
    backup: true,
    ..PRIMARY
};

const HIDDEN_BACKUP: Position =
    Position { name: WhichHeader::HiddenBackup, place: HeaderAt::End(HEADER_AREA), hidden: true, ..BACKUP };

/// Every position of TrueCrypt. If headers in several positions open, the first one counts.
pub(super) static TRUECRYPT: &[Position] = &[
    Position { old: true, ..PRIMARY },
    HIDDEN,
    Position { place: HeaderAt::End(OLD_HIDDEN_HEADER), beyond: OLD_HEADER + OLD_HIDDEN_HEADER, old: true, ..HIDDEN },
    BACKUP,
    HIDDEN_BACKUP,
];

/// Every position of VeraCrypt, in the same order.
pub(super) static VERACRYPT: &[Position] = &[PRIMARY, HIDDEN, BACKUP, HIDDEN_BACKUP];

/// The position of a system's header, on the disk from which the system starts. It has no backup there, and the disk is not
/// searched for other headers.
pub(super) static SYSTEM: Position = Position {
    name: WhichHeader::System,
    place: HeaderAt::Start(SYSTEM_AT),
    beyond: BOOT_LOADER,
    system: true,
    ..PRIMARY
};

impl Position {
    /// The offset of the header in a store of `len` bytes, unless the store is too short.
    pub fn in_store(&self, len: u64) -> Option<u64> {
        (len > self.beyond).then_some(())?;
        match self.place {
            HeaderAt::Start(at) => Some(at),
            HeaderAt::End(before) => len.checked_sub(before),
        }
    }

    /// The suites, with their modes, that a header at this position can have, newest modes first.
    pub fn ways(&self, suites: &'static [Suite]) -> impl Iterator<Item = SuiteInMode> {
        let modes = if self.old { &Mode::ALL[..] } else { &[Mode::Xts] };
        modes.iter().flat_map(|mode| suites.iter().filter(|s| s.modes.contains(mode)).map(|suite| (suite, *mode)))
    }
}
