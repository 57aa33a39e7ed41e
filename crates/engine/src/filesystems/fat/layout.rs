//! The differences between FAT and exFAT: entries and names.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::time::SystemTime;

use super::name::Alias;

/// The facts that a folder records about a file or folder, except the name.
pub trait Record: Send + Sync {
    fn copy(&self) -> Box<dyn Record>;

    /// The entries as stored. The first [`Record::fixed`] bytes hold everything that can change.
    fn bytes(&self) -> Vec<u8>;

    /// The length of the changeable part at the beginning, in bytes.
    fn fixed(&self) -> usize;

    /// Why the file can be neither read nor changed, if it cannot.
    fn fault(&self) -> Option<&'static str> {
        None
    }

    fn is_folder(&self) -> bool;
    fn read_only(&self) -> bool;

    /// The first cluster; 0 if there is none.
    fn first(&self) -> u32;
    fn set_first(&mut self, cluster: u32);

    /// Whether the clusters are contiguous, regardless of the table.
    fn contiguous(&self) -> bool {
        false
    }

    /// From now on the table links the clusters.
    fn set_linked(&mut self) {}

    /// The size in bytes. FAT records 0 for a folder.
    fn size(&self) -> u64;

    /// The number of bytes that were written; the rest reads as zeros.
    fn valid(&self) -> u64 {
        self.size()
    }

    fn set_size(&mut self, size: u64, valid: u64);

    /// Marks the file as changed since the last backup.
    fn set_archive(&mut self);

    fn created(&self) -> Option<SystemTime>;
    fn modified(&self) -> Option<SystemTime>;
    fn set_modified(&mut self, time: SystemTime);
    fn accessed(&self) -> Option<SystemTime>;
    fn set_accessed(&mut self, time: SystemTime);

    /// This record's name with the contents, times and attributes of another.
    fn with_contents_of(&self, other: &dyn Record) -> Box<dyn Record>;

    /// Whether both records are equal except for their names.
    fn same_contents(&self, other: &dyn Record) -> bool;

    /// Whether this is the old name during a rename. It is removed once the new name exists.
    fn leaving(&self) -> bool;
    fn set_leaving(&mut self, leaving: bool);
}

/// A file or folder found in a folder, and its location there.
pub struct FoundEntry {
    pub name: String,
    /// Its 8.3 name.
    pub alias: Option<Alias>,
    pub entry: Box<dyn Record>,
    /// The indexes of its entries in the folder.
    pub slots: Range<u32>,
    /// The index of the first entry of its record.
    pub at: u32,
}

/// The contents of a folder, parsed.
pub struct Parsed {
    /// All files and folders, without `.`, `..`, the volume's label and the like.
    pub found: Vec<FoundEntry>,
    /// The number of entries before the first unused one.
    pub end: u32,
    /// Damaged entries that may be files or folders.
    pub damaged: Vec<Damaged>,
    /// Parts of names without a file.
    pub stray_names: Vec<u32>,
}

/// Damaged entries that may be a file or folder.
pub struct Damaged {
    pub slots: Range<u32>,
    pub why: &'static str,
    /// The first cluster, if the entries were an old name ([`Record::leaving`]) when they were damaged.
    pub leaving: Option<u32>,
}

/// The format of a file system's entries and names.
pub trait EntryLayout: Send + Sync {
    /// The file system's name.
    fn name(&self) -> &'static str;

    /// The program that checks the file system.
    fn checker(&self) -> &'static str;

    /// The size of the largest file.
    fn largest(&self) -> u64;

    /// The most entries that a folder may have.
    fn most_entries(&self) -> u32;

    /// If set, a name must not span a multiple of this number of entries, unless it begins at one.
    fn unbroken(&self) -> Option<u32> {
        None
    }

    /// The case-folded form of a name, for comparisons.
    fn folded(&self, name: &str) -> String;

    /// Parses a folder. `is_root` is whether it is the root.
    fn parse(&self, folder: &[u8], is_root: bool) -> Parsed;

    /// The first byte that marks an entry as removed. An entry that has it already is free.
    fn removed(&self, first: u8) -> u8;

    /// A record for a file or folder created now, without a name and contents.
    fn new_record(&self, is_folder: bool, now: SystemTime) -> Box<dyn Record>;

    /// A record with a name, as if it began a folder, and its entries.
    ///
    /// # Errors
    /// `StorageFull` if every possible alias is in `aliases`; `InvalidFilename`.
    fn named(&self, name: &str, record: &dyn Record, aliases: &HashSet<Alias>) -> io::Result<(FoundEntry, Vec<u8>)>;

    /// The first bytes of a new folder in `cluster`, whose parent begins at `above`.
    fn dots(&self, cluster: u32, above: u32, now: SystemTime) -> Vec<u8>;
}

/// Whether this can be the name of a file. `.` and `..` cannot: they are the folder itself and its parent.
pub fn usable(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
