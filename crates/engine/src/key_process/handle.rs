//! Sectors whose key another process holds: what is asked of that process, and a handle on one of its keys.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Who encrypts and decrypts for a layout that holds no keys, such as another process.
///
/// Segments are counted as in the layout that the keys were taken from, and offsets are in bytes of such a segment. Requests are whole
/// sectors of it.
pub trait KeyProcess: Send + Sync {
    /// Fills `out`, which is stored at `into` of the segment. `read` gets memory for what is stored there, for one part after another:
    /// how many bytes past `into` it begins, a multiple of 64 KiB.
    ///
    /// # Errors
    /// Those of `read`; another if the key process refuses, or has gone.
    fn decrypt(&self, segment: u32, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()>;

    /// Gives `write` the encrypted form of `data`, which belongs at `into` of the segment, one part after another, as above. What is in
    /// `data` afterwards is undefined.
    ///
    /// # Errors
    /// Those of `write`; another if the key process refuses, or has gone.
    fn encrypt(&self, segment: u32, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()>;

    /// [`KeyProcess::decrypt`] for sectors with tags: `read` gets memory for what is stored and, after it, for `tags` bytes of tags. Which
    /// sector of these is the first whose tag is wrong; then `out` holds nothing that can be used.
    ///
    /// # Errors
    /// As there.
    fn decrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>>;

    /// [`KeyProcess::encrypt`] for sectors with tags: `write` gets `tags` bytes of them after the data. The key process
    /// makes their random parts.
    ///
    /// # Errors
    /// As there.
    fn encrypt_tagged(
        &self,
        segment: u32,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()>;
}

/// Reads the stored bytes into the given memory, or writes them from it.
pub type StoredAccess<'a> = dyn FnMut(&mut [u8]) -> io::Result<()> + 'a;

/// The same for a part. The number is the part's offset, in bytes.
pub type PartAccess<'a> = dyn FnMut(usize, &mut [u8]) -> io::Result<()> + 'a;

/// Encrypted sectors whose key another process holds.
#[derive(Clone)]
pub struct KeyHandle {
    key_process: Arc<dyn KeyProcess>,
    /// Its number there.
    segment: u32,
    /// Where the segment of this layout begins in that one, in bytes.
    from: u64,
    sector: usize,
    /// On drop, it reports that the segment is no longer needed.
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl KeyHandle {
    /// Sectors of `sector` bytes. They are this segment of the other process as long as `held` lives.
    pub(crate) fn new(
        key_process: Arc<dyn KeyProcess>,
        segment: u32,
        sector: usize,
        held: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self { key_process, segment, from: 0, sector, _held: held }
    }

    /// Size of a sector, in bytes.
    pub fn sector_size(&self) -> usize {
        self.sector
    }

    /// The same from `skipped` bytes on.
    pub(crate) fn cut(self, skipped: u64) -> Self {
        Self { from: self.from + skipped, ..self }
    }

    pub(crate) fn decrypt(&self, into: u64, out: &mut [u8], read: &mut PartAccess<'_>) -> io::Result<()> {
        self.key_process.decrypt(self.segment, self.from + into, out, read)
    }

    pub(crate) fn encrypt(&self, into: u64, data: &mut [u8], write: &mut PartAccess<'_>) -> io::Result<()> {
        self.key_process.encrypt(self.segment, self.from + into, data, write)
    }

    pub(crate) fn decrypt_tagged(
        &self,
        into: u64,
        out: &mut [u8],
        tags: usize,
        read: &mut StoredAccess<'_>,
    ) -> io::Result<Option<u32>> {
        self.key_process.decrypt_tagged(self.segment, self.from + into, out, tags, read)
    }

    pub(crate) fn encrypt_tagged(
        &self,
        into: u64,
        data: &[u8],
        tags: usize,
        write: &mut StoredAccess<'_>,
    ) -> io::Result<()> {
        self.key_process.encrypt_tagged(self.segment, self.from + into, data, tags, write)
    }
}

impl fmt::Debug for KeyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key_process: _, segment, from, sector, _held } = self;
        write!(f, "KeyHandle {{ sector_size: {sector}, segment: {segment}, from: {from} }}")
    }
}
