//! Credentials, and options for trying them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use claviger_crypto::md5crypt::md5_crypt;
use claviger_crypto::{Acceleration, Secret};

use crate::error::{Error, Result};
use crate::internal::read_secret::read_up_to;
use crate::private_keys::PrivateKey;
use crate::random;

/// The most bytes that any format reads of a keyfile (cryptsetup 2.6.1, configure.ac, `keyfile-size-maxkb`).
pub const KEYFILE_MAX: usize = 8 << 20;

/// The longest new keyfile, in bytes: what TrueCrypt reads of one.
const NEW_KEYFILE_MAX: usize = 1 << 20;

/// A credential. A format accepts the kinds that it supports, and refuses the others by name.
#[derive(Debug)]
#[non_exhaustive]
pub enum Credential {
    /// What a person types, in bytes, without a newline.
    Passphrase(Secret),
    /// The contents of a keyfile, or the requested part of it. If it is longer than [`KEYFILE_MAX`], only one byte more is kept:
    /// formats that use a keyfile as a whole refuse it.
    Keyfile(Secret),
    /// The volume key itself.
    VolumeKey(Secret),
    /// A private key, which may be in a device that never reveals it.
    PrivateKey(Arc<dyn PrivateKey>),
}

impl Credential {
    /// The name of this kind for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::Keyfile(_) => "keyfile",
            Self::VolumeKey(_) => "volume key",
            Self::PrivateKey(_) => "private key",
        }
    }

    /// Whether it is empty, and so protects nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Passphrase(bytes) | Self::Keyfile(bytes) | Self::VolumeKey(bytes) => bytes.is_empty(),
            Self::PrivateKey(_) => false,
        }
    }

    /// The keyfiles that a path stands for: itself, or the keyfiles of a folder, sorted by name. These are its regular files, except
    /// hidden ones (names with a leading dot) and those in subfolders (TrueCrypt, user's guide, "Keyfile Search Path").
    ///
    /// # Errors
    /// `Io`; `Misuse` if the folder contains no keyfile.
    pub fn keyfile_paths(path: &Path) -> Result<Vec<PathBuf>> {
        let paths = || -> Result<Vec<PathBuf>> {
            if !std::fs::metadata(path)?.is_dir() {
                return Ok(vec![path.to_owned()]);
            }
            let files = keyfiles_in(path)?;
            if files.is_empty() {
                return Err(
                    Error::misuse("this folder contains no keyfiles").hint("Hidden files and subfolders are ignored.")
                );
            }
            Ok(files)
        };
        paths().map_err(|e| e.at(path))
    }

    /// Reads the keyfiles of [`Credential::keyfile_paths`].
    ///
    /// # Errors
    /// `Io`; `Misuse` if the folder contains no keyfile.
    pub fn keyfiles(path: &Path) -> Result<Vec<Self>> {
        Self::keyfile_paths(path)?.iter().map(|file| Self::keyfile(file)).collect()
    }

    /// Reads part of a file as a keyfile: `len` bytes from `offset`, or everything from there on.
    ///
    /// # Errors
    /// `Io`; `Misuse` if the file is too short, or `len` is larger than [`KEYFILE_MAX`].
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

    /// The contents of a new keyfile: `len` random bytes from the system.
    ///
    /// # Errors
    /// `Misuse` if the length is 0 or more than 1 MiB, because some format would not use the whole file. `Io` if the system has no
    /// random bytes.
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

/// The passphrase that a QNAP NAS gives to LUKS: md5-crypt of the user's password, with a salt that is the same on all of them (Baseline
/// Security Consulting, BSC-Qnap_Crypto_Backdoor, CVE-2009-3200; users of later models confirm it).
pub fn qnap_passphrase(password: &[u8]) -> Secret {
    md5_crypt(password, b"YCCaQNAP")
}

/// The contents of a keyfile, for formats that use it as a whole.
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

/// Skips `offset` bytes of a file, a device or a pipe. Reads them if it cannot seek.
fn skip(file: &mut File, offset: u64) -> io::Result<()> {
    // Terminals and other character devices report success for a seek, but do not move.
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

/// The keyfiles of a folder, sorted by name.
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

/// Credentials, and options that narrow or control the trials.
pub struct Unlock<'a> {
    /// All of them together open the volume.
    pub credentials: &'a [Credential],
    /// Whether ciphers may use AES instructions.
    pub acceleration: Acceleration,
    /// Only this hash, by its name.
    pub hash: Option<&'a str>,
    /// Only this cipher or cascade, by its name.
    pub cipher: Option<&'a str>,
    /// The PIM, which changes the iterations of formats that have one. 0 is the same as none.
    pub pim: Option<u32>,
    /// The most memory for a key derivation, in bytes; by default all that is available.
    pub memory: Option<u64>,
    /// Receives the memory that a key derivation currently uses, in bytes, for showing progress.
    pub memory_in_use: Option<&'a AtomicU64>,
    /// Only the header copies of this kind.
    pub header: HeaderChoice,
    /// Opens the outer volume and protects the hidden one in it: a write that would touch the hidden volume is refused, and so are
    /// all later writes.
    pub protect: Option<Protect<'a>>,
    /// Only this keyslot, by its number.
    pub keyslot: Option<u32>,
    /// Values that headers contain in other formats, for formats without one.
    pub headerless: Headerless,
    /// The text that loop-AES appends to a passphrase before hashing: its `pseed`.
    pub seed: Option<&'a [u8]>,
    /// Options for an encrypted folder.
    pub folder: FolderOptions<'a>,
    /// Whether to return the kernel's parameters for the volume, keys included: [`crate::volume::Mapping`].
    pub for_kernel: bool,
    /// Opens a volume that is longer than its store: the missing part cannot be read, and nothing can be written.
    pub truncated: bool,
    /// Allows writing unencrypted data, where the cipher is dm-crypt's `cipher_null`. Otherwise the volume is read-only.
    pub write_unencrypted: bool,
    /// Requires that the credentials themselves open the volume: a clear key in it does not count.
    pub prove: bool,
    /// Set to stop. Checked every few hundred microseconds.
    pub cancel: Option<&'a AtomicBool>,
    /// Called before work that a header demands, with the longest time that it takes on one thread. An error ends the work. A
    /// header from others may demand years; without this function such work is started anyway.
    pub may_take: Option<&'a (dyn Fn(Duration) -> Result<()> + Sync)>,
    /// Called with the work done and the total, both in microseconds on one thread, roughly. The last call reports all work as
    /// done, unless the caller cancelled. Called from several threads, one at a time and in order.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
    /// Called with the name of a format when its trials begin, for a volume that could have one of several formats.
    pub trying: Option<&'a (dyn Fn(&'static str) + Sync)>,
    /// Set to true once the credentials are known to be right. Later errors are the volume's fault.
    pub opened: Option<&'a AtomicBool>,
}

/// Where the data are and how they are divided into sectors, for formats without a header. `None` means the format's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headerless {
    /// Size of the key, in bits.
    pub key_bits: Option<u32>,
    /// Offset of the data in the store, in bytes.
    pub offset: Option<u64>,
    /// The number of the first sector, in units of 512 bytes: cryptsetup's `--skip`.
    pub skip: Option<u64>,
    /// Size of the data, in bytes.
    pub size: Option<u64>,
    /// Size of an encryption sector, in bytes.
    pub sector_size: Option<u32>,
    /// Whether initialisation vectors count encryption sectors, not units of 512 bytes.
    pub large_iv: bool,
    /// How many thousand times loop-AES encrypts the key derived from a passphrase: its `itercountk`.
    pub iterations_k: Option<u32>,
}

/// How an encrypted folder is used, unless its files determine that. Missing values are found in the folder, or are the format's
/// default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions<'a> {
    /// The passphrase for names, if it differs from the one for contents.
    pub name_passphrase: Option<&'a Secret>,
    /// Names are shown as stored, and new ones are in clear. Otherwise new names are like the folder's other names; encrypted, if
    /// there are none.
    pub clear_names: bool,
    /// The contents of the file with the folder's wrapped passphrase (`wrapped-passphrase`). The given passphrase unwraps it, and
    /// the unwrapped passphrase opens the folder.
    pub wrapped_passphrase: Option<&'a [u8]>,
    /// Unencrypted files are shown unchanged. Otherwise reading them is an error.
    pub passthrough: bool,
    /// Files and names read as stored, with the header in front of each file. Nothing can be written, and no credential is needed.
    pub encrypted_view: bool,
    /// The folder is a plain one, and is shown encrypted: gocryptfs's reverse mode. Nothing can be written. A new folder gets the file
    /// with its sealed key for that, and keeps its files.
    pub reverse: bool,
    /// The headers of new files go to an extended attribute. Otherwise they go where the folder's other files have them.
    pub metadata_in_attributes: bool,
    /// The cipher of new files, by the format's name for it: `aes`. By default that of the folder's other files.
    pub cipher: Option<&'a str>,
    /// The key size of new files, in bytes. By default that of the folder's other files.
    pub key_bytes: Option<usize>,
}

/// What opens the hidden volume to protect.
#[derive(Clone, Copy)]
pub struct Protect<'a> {
    /// All of them together open the hidden volume.
    pub credentials: &'a [Credential],
    /// Only this hash, by its name.
    pub hash: Option<&'a str>,
    /// The PIM (personal iterations multiplier) of its header, if the format has one.
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
        /// The copy of the hidden volume, not of the normal one.
        hidden: bool,
        /// The backup at the end, not the copy in front.
        backup: bool,
    },
}

impl HeaderChoice {
    /// Whether a copy is included: the one of a hidden volume or not, a backup or not.
    pub fn includes(self, hidden: bool, backup: bool) -> bool {
        match self {
            Self::Any => true,
            Self::Backup => backup,
            Self::One { hidden: h, backup: b } => (h, b) == (hidden, backup),
        }
    }
}

impl<'a> Unlock<'a> {
    /// The credentials, without further options.
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
            trying: None,
            opened: None,
        }
    }

    /// Records that the credentials were right, whatever happens to the volume afterwards.
    pub(crate) fn has_opened(&self) {
        if let Some(opened) = self.opened {
            opened.store(true, Ordering::Relaxed);
        }
    }

    /// Asks for permission for work that takes about `microseconds` on one thread.
    ///
    /// # Errors
    /// Those of [`Unlock::may_take`].
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
