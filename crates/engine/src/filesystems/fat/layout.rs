//! What FAT and exFAT keep differently: entries and names.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::time::SystemTime;

use super::name::Alias;

/// What a folder says of a file or folder, but for its name.
pub trait Record: Send + Sync {
    fn copy(&self) -> Box<dyn Record>;

    /// Its entries as they are stored: the first of them hold all that can be changed.
    fn bytes(&self) -> Vec<u8>;

    /// The length of those, in bytes.
    fn fixed(&self) -> usize;

    /// What is wrong with it, so that it can be neither read nor changed.
    fn fault(&self) -> Option<&'static str> {
        None
    }

    fn is_folder(&self) -> bool;
    fn read_only(&self) -> bool;

    /// The first cluster; 0 if there is none.
    fn first(&self) -> u32;
    fn set_first(&mut self, cluster: u32);

    /// Whether its clusters follow each other, whatever the table says.
    fn contiguous(&self) -> bool {
        false
    }

    /// From now on the table says which cluster follows which.
    fn set_linked(&mut self) {}

    /// Its size. What FAT says of a folder is 0.
    fn size(&self) -> u64;

    /// Bytes of it that were written; what follows is zeros.
    fn valid(&self) -> u64 {
        self.size()
    }

    fn set_size(&mut self, size: u64, valid: u64);

    /// Says that it changed since a backup.
    fn set_archive(&mut self);

    fn created(&self) -> Option<SystemTime>;
    fn modified(&self) -> Option<SystemTime>;
    fn set_modified(&mut self, time: SystemTime);
    fn accessed(&self) -> Option<SystemTime>;
    fn set_accessed(&mut self, time: SystemTime);

    /// This record's name with the contents, times and attributes of another.
    fn with_contents_of(&self, other: &dyn Record) -> Box<dyn Record>;

    /// Whether all but the name is that of another.
    fn same_contents(&self, other: &dyn Record) -> bool;

    /// Whether this name goes as soon as another one of the same contents is there: it is being renamed.
    fn leaving(&self) -> bool;
    fn set_leaving(&mut self, leaving: bool);
}

/// Something found in a folder, and where.
pub struct FoundEntry {
    pub name: String,
    /// Another name of it.
    pub alias: Option<Alias>,
    pub entry: Box<dyn Record>,
    /// Indexes of its entries in the folder.
    pub slots: Range<u32>,
    /// Index of the entry with which its record begins.
    pub at: u32,
}

/// All that a folder's bytes say.
pub struct Parsed {
    /// Everything in it except `.`, `..`, the volume's label and the like.
    pub found: Vec<FoundEntry>,
    /// How many entries it has before the first that was never used.
    pub end: u32,
    /// What may be a file or folder, but cannot be read.
    pub damaged: Vec<Damaged>,
    /// Parts of names without a file.
    pub stray_names: Vec<u32>,
}

/// Entries that may be a file or folder, but cannot be read.
pub struct Damaged {
    pub slots: Range<u32>,
    pub why: &'static str,
    /// The first cluster of a name that was leaving ([`Record::leaving`]) when it was damaged.
    pub leaving: Option<u32>,
}

/// Entries and names of a file system.
pub trait EntryLayout: Send + Sync {
    /// The file system's name.
    fn name(&self) -> &'static str;

    /// The program that checks it.
    fn checker(&self) -> &'static str;

    /// The size of the largest file.
    fn largest(&self) -> u64;

    /// The most entries that a folder may have.
    fn most_entries(&self) -> u32;

    /// Entries at whose multiples a name must begin that does not fit in front of the next, if that matters.
    fn unbroken(&self) -> Option<u32> {
        None
    }

    /// A name in the form in which names are compared.
    fn folded(&self, name: &str) -> String;

    /// What is in a folder, which may be the outermost one.
    fn parse(&self, folder: &[u8], is_root: bool) -> Parsed;

    /// What becomes of the first byte of an entry that is removed. Entries that have it are free.
    fn removed(&self, first: u8) -> u8;

    /// A record without a name and contents, made now.
    fn new_record(&self, is_folder: bool, now: SystemTime) -> Box<dyn Record>;

    /// A record under a name, as it would stand at the beginning of a folder, and its entries.
    ///
    /// # Errors
    /// `StorageFull` if no alias is left beside `aliases`; `InvalidFilename`.
    fn named(&self, name: &str, record: &dyn Record, aliases: &HashSet<Alias>) -> io::Result<(FoundEntry, Vec<u8>)>;

    /// What a new folder in `cluster`, in a folder that begins at `above`, begins with.
    fn dots(&self, cluster: u32, above: u32, now: SystemTime) -> Vec<u8>;
}

/// Whether it can be the name of a file: `.` and `..` are the folder itself and its parent.
pub fn usable(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
