//! What opens a volume, and how to try it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use claviger_crypto::{Acceleration, Secret};

use crate::error::{Error, Result};
use crate::private_keys::PrivateKey;
use crate::random;

/// As much of a keyfile as any format reads, in bytes (cryptsetup 2.6.1, configure.ac, `keyfile-size-maxkb`).
pub const KEYFILE_MAX: usize = 8 << 20;

/// The longest keyfile that is made: as much of it as TrueCrypt reads, in bytes.
const NEW_KEYFILE_MAX: usize = 1 << 20;

/// Raw material. A format takes the kinds that it knows, and says which it does not.
#[derive(Debug)]
#[non_exhaustive]
pub enum Credential {
    /// What a person types, as bytes, without a newline.
    Passphrase(Secret),
    /// The contents of a keyfile, or the part of it that was asked for. Of a longer one than [`KEYFILE_MAX`] it has one byte
    /// more than that: formats that count a keyfile whole refuse it.
    Keyfile(Secret),
    /// The volume key itself.
    VolumeKey(Secret),
    /// A private key, which may be in a device that never hands it out.
    PrivateKey(Arc<dyn PrivateKey>),
}

impl Credential {
    /// What a person calls this kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::Keyfile(_) => "keyfile",
            Self::VolumeKey(_) => "volume key",
            Self::PrivateKey(_) => "private key",
        }
    }

    /// Whether there is not a byte in it: it keeps nobody out.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Passphrase(bytes) | Self::Keyfile(bytes) | Self::VolumeKey(bytes) => bytes.is_empty(),
            Self::PrivateKey(_) => false,
        }
    }

    /// Reads a keyfile, or every keyfile of a folder: its regular files, but neither hidden ones (whose names begin with a
    /// dot) nor those of folders in it (TrueCrypt, user's guide, "Keyfile Search Path").
    ///
    /// # Errors
    /// `Io`; `Misuse` if the folder has no keyfile in it.
    pub fn keyfiles(path: &Path) -> Result<Vec<Self>> {
        let keyfiles = || -> Result<Vec<Self>> {
            if !std::fs::metadata(path)?.is_dir() {
                return Ok(vec![Self::keyfile(path)?]);
            }
            let files = keyfiles_in(path)?;
            if files.is_empty() {
                return Err(
                    Error::misuse("this folder contains no keyfiles").hint("Hidden files and subfolders are ignored.")
                );
            }
            files.iter().map(|file| Self::keyfile(file)).collect()
        };
        keyfiles().map_err(|e| e.at(path))
    }

    /// A part of a file as a keyfile: `len` bytes from `offset` on, or all there are behind it.
    ///
    /// # Errors
    /// `Io`; `Misuse` where the file ends before, or `len` is larger than [`KEYFILE_MAX`].
    pub fn keyfile_part(path: &Path, offset: u64, len: Option<u64>) -> Result<Self> {
        let most = KEYFILE_MAX as u64;
        if len.is_some_and(|len| len == 0 || len > most) {
            return Err(Error::misuse(format!("a keyfile has 1 to {most} bytes")).at(path));
        }
        let read = || -> Result<Self> {
            let mut file = File::open(path)?;
            skip(&mut file, offset)?;
            let contents = read_up_to(len.map_or(KEYFILE_MAX + 1, |len| len as usize), |room| file.read(room))?;
            if len.is_some_and(|len| len != contents.len() as u64) || contents.is_empty() {
                return Err(Error::misuse("the file ends before the requested part of the keyfile"));
            }
            Ok(Self::Keyfile(contents))
        };
        read().map_err(|e| e.at(path))
    }

    /// The contents of a new keyfile: `len` bytes of the system's randomness.
    ///
    /// # Errors
    /// `Misuse` for a length that some format does not take whole: none, or more than 1 MiB. `Io` if the system has no random
    /// bytes.
    pub fn new_keyfile(len: usize) -> Result<Secret> {
        if !(1..=NEW_KEYFILE_MAX).contains(&len) {
            return Err(Error::misuse(format!("a keyfile has 1 to {NEW_KEYFILE_MAX} bytes, not {len}")));
        }
        random::secret(len)
    }

    /// Reads one keyfile.
    fn keyfile(path: &Path) -> Result<Self> {
        let read = || {
            let mut file = File::open(path)?;
            read_up_to(KEYFILE_MAX + 1, |room| file.read(room))
        };
        Ok(Self::Keyfile(read().map_err(|e| Error::from(e).at(path))?))
    }
}

/// The contents of a keyfile, for formats that count it whole.
///
/// # Errors
/// `Misuse` if it is longer than [`KEYFILE_MAX`].
pub fn whole_keyfile(contents: &Secret) -> Result<&Secret> {
    if contents.len() > KEYFILE_MAX {
        return Err(Error::misuse(format!("the keyfile is longer than {KEYFILE_MAX} bytes"))
            .hint("If the key is only a part of the file, give its offset and length."));
    }
    Ok(contents)
}

/// Goes `offset` bytes into a file, a device or a pipe: what cannot seek is read.
fn skip(file: &mut File, offset: u64) -> io::Result<()> {
    // Terminals and other character devices say that they seek, and do not.
    if !file.metadata()?.file_type().is_char_device() && file.seek(SeekFrom::Start(offset)).is_ok() {
        return Ok(());
    }
    let mut left = offset;
    while left > 0 {
        let most = usize::try_from(left).map_or(KEYFILE_MAX, |left| left.min(KEYFILE_MAX));
        let part = read_up_to(most, |room| file.read(room))?;
        if part.is_empty() {
            break;
        }
        left -= part.len() as u64;
    }
    Ok(())
}

/// Reads by `read` to the end or to `max` bytes: where they are to stay, not through buffers that nobody wipes.
///
/// # Errors
/// That of `read`, unless it was only interrupted.
pub fn read_up_to(max: usize, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Secret> {
    let mut room = Secret::zeroed(max.min(64 << 10));
    let mut len = 0;
    loop {
        if len == room.len() {
            if len == max {
                return Ok(room);
            }
            let mut larger = Secret::zeroed((len * 4).min(max));
            larger[..len].copy_from_slice(&room);
            room = larger;
        }
        match read(&mut room[len..]) {
            Ok(0) => return Ok(Secret::copy_from(&room[..len])),
            Ok(more) => len += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// The keyfiles of a folder, in order of their names.
fn keyfiles_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && std::fs::metadata(entry.path())?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Credentials, and all that narrows or steers the trials.
pub struct Unlock<'a> {
    /// All of them together open the volume.
    pub credentials: &'a [Credential],
    /// Whether ciphers may use AES instructions.
    pub acceleration: Acceleration,
    /// Only this hash, by the name in its table.
    pub hash: Option<&'a str>,
    /// Only this cipher or cascade, by its name.
    pub cipher: Option<&'a str>,
    /// The PIM, which changes the iterations of formats that have one. 0 is the same as none.
    pub pim: Option<u32>,
    /// Bytes of memory that a key derivation may take; as much as is available, if none.
    pub memory: Option<u64>,
    /// Where to keep how many bytes of memory a key derivation has in hand, for whoever shows progress.
    pub memory_in_use: Option<&'a AtomicU64>,
    /// Only the header copies of this kind.
    pub header: HeaderChoice,
    /// Opens the outer volume of the two, and protects the hidden one in it: a write that would touch it is refused, and from
    /// then on every write is.
    pub protect: Option<Protect<'a>>,
    /// Only this keyslot, by its number.
    pub keyslot: Option<u32>,
    /// What the headers of other formats say, for formats without one.
    pub headerless: Headerless,
    /// What loop-AES appends to a passphrase before it is hashed: its `pseed`.
    pub seed: Option<&'a [u8]>,
    /// How an encrypted folder is used.
    pub folder: FolderOptions<'a>,
    /// Whether to hand out what the kernel needs to do the same, keys included: [`crate::volume::Mapping`].
    pub for_kernel: bool,
    /// Opens a volume that is longer than its store: what is missing cannot be read, and nothing can be written.
    pub truncated: bool,
    /// Lets data be written that nothing encrypts: where the cipher is dm-crypt's `cipher_null`. Otherwise they can only be read.
    pub write_unencrypted: bool,
    /// Requires the credentials themselves to open the volume: a clear key in it does not count.
    pub prove: bool,
    /// Whether to stop. Looked at every few hundred microseconds.
    pub cancel: Option<&'a AtomicBool>,
    /// Asked before work begins that a header asks for, and told how long it takes on one thread at most: an error ends it
    /// there. A header that others have written may ask for years; without this they are begun.
    pub may_take: Option<&'a (dyn Fn(Duration) -> Result<()> + Sync)>,
    /// Told how much is done and how much there is: about as many microseconds on one thread. The last call says that
    /// all are done, except where the caller has cancelled. Called on several threads, one at a time and in order.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
    /// Becomes true once the credentials are known to be right: what is wrong after that is the volume's fault.
    pub opened: Option<&'a AtomicBool>,
}

/// Where the data are and how they are cut into sectors, for formats without a header. What is `None` is the format's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headerless {
    /// Size of the key, in bits.
    pub key_bits: Option<u32>,
    /// Where the data begin in the store, in bytes.
    pub offset: Option<u64>,
    /// The number of the first sector, in units of 512 bytes: cryptsetup's `--skip`.
    pub skip: Option<u64>,
    /// Size of the data, in bytes.
    pub size: Option<u64>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// Whether initialisation vectors count encryption sectors, not units of 512 bytes.
    pub large_iv: bool,
    /// How many thousand times loop-AES encrypts the key that it makes of a passphrase: its `itercountk`.
    pub iterations_k: Option<u32>,
}

/// How an encrypted folder is used, as far as its files do not say. What is not given is found out,
/// or is the format's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions<'a> {
    /// The passphrase for names, if it differs from the one for contents.
    pub name_passphrase: Option<&'a Secret>,
    /// Names are taken as they are stored, and new ones are in clear. Otherwise they are as the folder's names are; encrypted, where
    /// there are none.
    pub clear_names: bool,
    /// The contents of a file in which the folder's passphrase is wrapped (`wrapped-passphrase`): the passphrase that is given
    /// unwraps it, and the one that comes out opens the folder.
    pub wrapped_passphrase: Option<&'a [u8]>,
    /// Files that are not encrypted are shown as they are. Otherwise to read them is an error.
    pub passthrough: bool,
    /// Each file reads as it is stored, with its header in front, and so do names; nothing can be written, and no credential is needed.
    pub encrypted_view: bool,
    /// Headers of new files are kept in an extended attribute. Otherwise where the folder's other files have them.
    pub metadata_in_attributes: bool,
    /// The cipher of new files, by its name in the format: `aes`. Otherwise that of the folder's other files.
    pub cipher: Option<&'a str>,
    /// Bytes of the keys of new files. Otherwise as many as the folder's other files have.
    pub key_bytes: Option<usize>,
}

/// What opens the hidden volume that is to be protected.
#[derive(Clone, Copy)]
pub struct Protect<'a> {
    /// All of them together open the hidden volume.
    pub credentials: &'a [Credential],
    /// Only this hash, by the name in its table.
    pub hash: Option<&'a str>,
    /// The personal iterations multiplier of its header, where the format has one.
    pub pim: Option<u32>,
}

/// Which copies of a header to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderChoice {
    /// All, the primary ones first.
    #[default]
    Any,
    /// The backup copies only.
    Backup,
    /// One copy only.
    One {
        /// That of the hidden volume, not of the normal one.
        hidden: bool,
        /// The backup at the end, not the copy in front.
        backup: bool,
    },
}

impl HeaderChoice {
    /// Whether a copy is among them: the one of a hidden volume or not, a backup or not.
    pub fn includes(self, hidden: bool, backup: bool) -> bool {
        match self {
            Self::Any => true,
            Self::Backup => backup,
            Self::One { hidden: h, backup: b } => (h, b) == (hidden, backup),
        }
    }
}

impl<'a> Unlock<'a> {
    /// The credentials, tried in every way.
    pub fn with(credentials: &'a [Credential]) -> Self {
        Self {
            credentials,
            acceleration: Acceleration::On,
            hash: None,
            cipher: None,
            pim: None,
            memory: None,
            memory_in_use: None,
            header: HeaderChoice::Any,
            protect: None,
            keyslot: None,
            headerless: Headerless::default(),
            seed: None,
            folder: FolderOptions::default(),
            for_kernel: false,
            truncated: false,
            write_unencrypted: false,
            prove: false,
            cancel: None,
            may_take: None,
            progress: None,
            opened: None,
        }
    }

    /// Tells that the credentials were right, whatever comes of the volume behind.
    pub(crate) fn has_opened(&self) {
        if let Some(opened) = self.opened {
            opened.store(true, Ordering::Relaxed);
        }
    }

    /// Whether work is to begin that takes about so many microseconds on one thread.
    ///
    /// # Errors
    /// That of [`Unlock::may_take`].
    pub(crate) fn ask(&self, microseconds: u64) -> Result<()> {
        self.may_take.map_or(Ok(()), |may_take| may_take(Duration::from_micros(microseconds)))
    }

    /// Whether the caller has cancelled.
    pub fn cancelled(&self) -> bool {
        self.cancel.is_some_and(|c| c.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(credentials: &[Credential]) -> Vec<usize> {
        let len = |c: &Credential| match c {
            Credential::Keyfile(contents) => contents.len(),
            _ => panic!("keyfiles only"),
        };
        credentials.iter().map(len).collect()
    }

    #[test]
    fn keyfiles_are_read_as_far_as_they_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("key");
        for (len, read) in [(0, 0), (1, 1), (KEYFILE_MAX, KEYFILE_MAX), (KEYFILE_MAX + 9, KEYFILE_MAX + 1)] {
            std::fs::write(&path, vec![1; len]).expect("a keyfile");
            assert_eq!(lens(&Credential::keyfiles(&path).expect("a keyfile")), [read]);
        }
    }

    #[test]
    fn new_keyfiles_are_random_and_as_long_as_they_count() {
        for len in [1, 64, NEW_KEYFILE_MAX] {
            assert_eq!(Credential::new_keyfile(len).expect("a keyfile").len(), len);
        }
        let (one, other) = (Credential::new_keyfile(64).expect("good"), Credential::new_keyfile(64).expect("good"));
        assert!(!one.same_as(&other) && !one.same_as(&[0; 64]));
        assert!(Credential::new_keyfile(0).is_err() && Credential::new_keyfile(NEW_KEYFILE_MAX + 1).is_err());
    }

    #[test]
    fn a_part_of_a_file_is_a_keyfile() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("disk");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).expect("a file");
        let part = |offset, len| Credential::keyfile_part(&path, offset, len);
        for (offset, len, expected) in [
            (0, None, &bytes[..]),
            (70_000, None, &bytes[70_000..]),
            (69_999, Some(30_001), &bytes[69_999..]),
            (3, Some(1), &bytes[3..4]),
        ] {
            let Credential::Keyfile(contents) = part(offset, len).expect("it is there") else { panic!("a keyfile") };
            assert!(contents.same_as(expected), "{offset} {len:?}");
        }
        for (offset, len) in [(0, Some(0)), (1, Some(100_000)), (100_000, None), (1 << 40, None), (0, Some(9 << 20))] {
            assert!(
                matches!(part(offset, len).map_err(|e| e.kind), Err(crate::error::ErrorKind::Misuse(_))),
                "{offset} {len:?}"
            );
        }
    }

    #[test]
    fn a_folder_stands_for_its_regular_visible_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path();
        std::fs::write(folder.join(".hidden"), "xxxxxx").expect("a file");
        std::fs::create_dir(folder.join("below")).expect("a folder");
        std::fs::write(folder.join("below/key"), "xxxxx").expect("a file");
        let error = Credential::keyfiles(folder).expect_err("none counts");
        assert!(error.to_string().contains("no keyfile"), "{error}");
        std::fs::write(folder.join("b"), "bb").expect("a file");
        std::fs::write(folder.join("a"), "a").expect("a file");
        assert_eq!(lens(&Credential::keyfiles(folder).expect("two keyfiles")), [1, 2]);
        assert!(Credential::keyfiles(&folder.join("none")).is_err());
    }
}
