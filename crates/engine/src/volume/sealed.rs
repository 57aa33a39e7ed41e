//! Files of blocks that are sealed one by one, each with a nonce and a tag. The stored size of the file gives the size of its
//! plaintext: its last block may be shorter than the others.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use claviger_crypto::modes::MessageCipher;
use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::secret::wipe_after_sectors;

use super::align::Cut;
use super::{CHUNK, SPLIT};
use crate::error::{Error, ErrorKind};
use crate::key_process::KeyHandle;
use crate::random;
use crate::store::{Store, check_range};

/// How a message is sealed, and how it is stored: a random nonce, then ciphertext and tag.
#[derive(Clone)]
pub struct Sealing {
    /// The cipher, which holds the key.
    pub cipher: Arc<dyn MessageCipher>,
    /// Whether the tag precedes the ciphertext.
    pub tag_first: bool,
}

impl Sealing {
    /// Bytes of a nonce and a tag.
    pub fn overhead(&self) -> usize {
        self.cipher.nonce_size() + self.cipher.tag_size()
    }

    /// The stored form of a message. `beside` is authenticated, too.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes.
    pub fn seal(&self, beside: &[u8], plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut stored = vec![0; plain.len() + self.overhead()];
        self.seal_in(beside, plain, &mut stored)?;
        Ok(stored)
    }

    /// Like [`Sealing::seal`], in a buffer of that length. It holds the message for a moment: that of a key is a `Secret`.
    pub(crate) fn seal_in(&self, beside: &[u8], plain: &[u8], stored: &mut [u8]) -> io::Result<()> {
        let mut nonce = vec![0; self.cipher.nonce_size()];
        random::fill(&mut nonce)?;
        self.seal_into(&nonce, beside, plain, stored);
        wipe_after_sectors();
        Ok(())
    }

    /// The message in its stored form; `None` if the tag is wrong: another key, or something was changed.
    pub fn open(&self, beside: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
        let mut plain = vec![0; stored.len().checked_sub(self.overhead())?];
        self.open_in(beside, stored, &mut plain).then_some(plain)
    }

    /// Like [`Sealing::open`], into a buffer of the message's length. If this returns false, it is zero.
    pub(crate) fn open_in(&self, beside: &[u8], stored: &[u8], plain: &mut [u8]) -> bool {
        let right = self.open_into(beside, stored, plain);
        wipe_after_sectors();
        right
    }

    /// [`Sealing::seal_in`] with this nonce, and without wiping.
    pub(crate) fn seal_into(&self, nonce: &[u8], beside: &[u8], plain: &[u8], stored: &mut [u8]) {
        let (nonce_place, rest) = stored.split_at_mut(nonce.len());
        nonce_place.copy_from_slice(nonce);
        let (sealed, tag) = match self.tag_first {
            true => {
                let (tag, sealed) = rest.split_at_mut(self.cipher.tag_size());
                (sealed, tag)
            }
            false => rest.split_at_mut(plain.len()),
        };
        sealed.copy_from_slice(plain);
        self.cipher.seal(nonce, beside, sealed, tag);
    }

    /// [`Sealing::open_in`] without wiping: a caller with many blocks does that once.
    fn open_into(&self, beside: &[u8], stored: &[u8], plain: &mut [u8]) -> bool {
        let (nonce, rest) = stored.split_at(self.cipher.nonce_size());
        let (sealed, tag) = match self.tag_first {
            true => {
                let (tag, sealed) = rest.split_at(self.cipher.tag_size());
                (sealed, tag)
            }
            false => rest.split_at(plain.len()),
        };
        plain.copy_from_slice(sealed);
        let right = self.cipher.open(nonce, beside, plain, tag);
        if !right {
            // Neither ciphertext nor data that failed verification may leak out.
            plain.fill(0);
        }
        right
    }
}

/// Who seals the blocks of a file.
#[derive(Clone)]
pub enum BlockSealing {
    /// This process.
    Here {
        /// What seals the blocks.
        sealing: Sealing,
        /// Bytes that are authenticated with each block, after its number (eight bytes, big-endian, counted from 0).
        beside: Vec<u8>,
    },
    /// Another process, which has the key. It also makes the nonces, and knows what is authenticated with each block.
    KeyProcess {
        /// The file there.
        handle: KeyHandle,
        /// Bytes of a nonce and a tag.
        overhead: usize,
    },
}

impl BlockSealing {
    /// Bytes of a nonce and a tag.
    pub fn overhead(&self) -> usize {
        match self {
            Self::Here { sealing, .. } => sealing.overhead(),
            Self::KeyProcess { overhead, .. } => *overhead,
        }
    }
}

/// Where the sealed blocks of a file are, and what seals them. Plain data: a format builds it, and [`SealedBlocks`] executes it.
#[derive(Clone)]
pub struct SealedLayout {
    /// Who seals the blocks.
    pub sealing: BlockSealing,
    /// Bytes of plaintext in each block but the last.
    pub block: usize,
    /// Offset of the first block in the file, in bytes.
    pub stored_at: u64,
    /// Whether a whole stored block of zeros is a hole, which reads as zeros. Otherwise it fails verification like any other block.
    pub holes: bool,
}

impl std::fmt::Debug for SealedLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "blocks of {} bytes, sealed, from byte {}", self.block, self.stored_at)
    }
}

impl SealedLayout {
    /// Whether this process has the key.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.sealing, BlockSealing::Here { .. })
    }

    /// Bytes of a whole block as it is stored.
    fn stored_block(&self) -> u64 {
        (self.block + self.sealing.overhead()) as u64
    }

    /// The stored size of `size` bytes of plaintext.
    pub fn stored_size(&self, size: u64) -> u64 {
        let blocks = size.div_ceil(self.block as u64);
        let overhead = blocks.saturating_mul(self.sealing.overhead() as u64);
        self.stored_at.saturating_add(size).saturating_add(overhead)
    }

    /// The plaintext size of a file with `stored` bytes. If the file ends inside a nonce or a tag, there is one byte more than can be
    /// read: a file that was cut short never looks like a shorter whole one.
    pub fn size(&self, stored: u64) -> u64 {
        plain_size(stored.saturating_sub(self.stored_at), self.block, self.sealing.overhead())
    }

    /// The largest plaintext size whose stored size a file can have.
    fn largest(&self) -> u64 {
        (i64::MAX as u64 - self.stored_at) / self.stored_block() * self.block as u64
    }

    /// Offset of the block that holds this byte of the plaintext.
    fn place(&self, at: u64) -> u64 {
        self.stored_at + at / self.block as u64 * self.stored_block()
    }

    /// The stored size of blocks with `len` bytes of plaintext.
    pub(crate) fn sealed_len(&self, len: usize) -> usize {
        len + len.div_ceil(self.block) * self.sealing.overhead()
    }

    /// Opens the blocks from number `first` on into `plain`; only the last one may be shorter than the others. The first block that
    /// fails verification, if any; `plain` then holds data of the blocks before it, at most. Leaves traces: see [`wipe_after_sectors`].
    ///
    /// # Errors
    /// `Io` if a key process has ended, or refuses.
    ///
    /// # Panics
    /// Unless `stored` is as long as [`SealedLayout::sealed_len`] says.
    pub(crate) fn open_blocks(&self, first: u64, stored: &[u8], plain: &mut [u8]) -> io::Result<Option<u64>> {
        assert_eq!(stored.len(), self.sealed_len(plain.len()));
        match &self.sealing {
            BlockSealing::Here { sealing, beside } => {
                let blocks = plain.chunks_mut(self.block).zip(stored.chunks(self.stored_block() as usize));
                for (number, (plain, stored)) in (first..).zip(blocks) {
                    if self.holes && plain.len() == self.block && stored.iter().all(|byte| *byte == 0) {
                        plain.fill(0);
                    } else if !sealing.open_into(&authenticated(number, beside), stored, plain) {
                        return Ok(Some(number));
                    }
                }
                Ok(None)
            }
            BlockSealing::KeyProcess { handle, .. } => {
                let read = &mut |place: &mut [u8]| -> io::Result<()> {
                    place.copy_from_slice(stored);
                    Ok(())
                };
                let wrong = handle.decrypt_tagged(self.start(first)?, plain, stored.len() - plain.len(), read)?;
                Ok(wrong.map(|wrong| first + u64::from(wrong)))
            }
        }
    }

    /// Seals `plain` into blocks from number `first` on, with new nonces; only the last one may be shorter than the others. Leaves
    /// traces, as above.
    ///
    /// # Errors
    /// `Io` if the system has no random bytes, or a key process has ended, or refuses.
    ///
    /// # Panics
    /// As above.
    pub(crate) fn seal_blocks(&self, first: u64, plain: &[u8], stored: &mut [u8]) -> io::Result<()> {
        assert_eq!(stored.len(), self.sealed_len(plain.len()));
        match &self.sealing {
            BlockSealing::Here { sealing, beside } => {
                let size = sealing.cipher.nonce_size();
                let mut nonces = vec![0; plain.len().div_ceil(self.block) * size];
                random::fill(&mut nonces)?;
                let blocks = plain.chunks(self.block).zip(stored.chunks_mut(self.stored_block() as usize));
                for (number, ((plain, stored), nonce)) in (first..).zip(blocks.zip(nonces.chunks(size))) {
                    sealing.seal_into(nonce, &authenticated(number, beside), plain, stored);
                }
                Ok(())
            }
            BlockSealing::KeyProcess { handle, .. } => {
                let overhead = stored.len() - plain.len();
                handle.encrypt_tagged(self.start(first)?, plain, overhead, &mut |sealed: &mut [u8]| {
                    stored.copy_from_slice(sealed);
                    Ok(())
                })
            }
        }
    }

    /// Offset of block `number` in the plaintext, in bytes.
    fn start(&self, number: u64) -> io::Result<u64> {
        number.checked_mul(self.block as u64).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }

    /// The stored form of a message of at most one block.
    ///
    /// # Errors
    /// Those of [`SealedLayout::seal_blocks`]; `InvalidFilename` for a longer one.
    pub(crate) fn seal_message(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        if plain.len() > self.block {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let mut stored = vec![0; self.sealed_len(plain.len())];
        self.seal_blocks(0, plain, &mut stored)?;
        wipe_after_sectors();
        Ok(stored)
    }

    /// The message in its stored form; `None` if it fails verification, or is empty.
    ///
    /// # Errors
    /// Those of [`SealedLayout::open_blocks`].
    pub(crate) fn open_message(&self, stored: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let len = stored.len().checked_sub(self.sealing.overhead()).filter(|len| (1..=self.block).contains(len));
        let Some(mut plain) = len.map(|len| vec![0; len]) else { return Ok(None) };
        let wrong = self.open_blocks(0, stored, &mut plain);
        wipe_after_sectors();
        Ok(wrong?.is_none().then_some(plain))
    }
}

/// What is authenticated with block `number`.
fn authenticated(number: u64, beside: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], beside].concat()
}

/// See [`SealedLayout::size`]. `stored` are the bytes of all blocks.
pub(crate) fn plain_size(stored: u64, block: usize, overhead: usize) -> u64 {
    let whole = (block + overhead) as u64;
    let rest = match stored % whole {
        0 => 0,
        rest => rest.saturating_sub(overhead as u64).max(1),
    };
    stored / whole * block as u64 + rest
}

/// The plaintext of a file of sealed blocks.
///
/// A block is changed by writing it anew, with a new nonce. If that is interrupted, the block is lost: it fails verification. The
/// other blocks of the file are not touched.
pub struct SealedBlocks {
    store: Arc<dyn Store>,
    layout: SealedLayout,
    /// Bytes of plaintext.
    size: u64,
    pool: Option<Arc<Pool>>,
}

impl SealedBlocks {
    /// The file that `layout` describes on `store`, which has `stored` bytes.
    pub fn new(store: Arc<dyn Store>, layout: SealedLayout, stored: u64) -> Self {
        let size = layout.size(stored);
        Self { store, layout, size, pool: None }
    }

    /// Splits large requests over the threads of `pool`.
    pub fn with_pool(mut self, pool: Option<Arc<Pool>>) -> Self {
        self.pool = pool;
        self
    }

    /// Bytes of plaintext.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn block(&self) -> u64 {
        self.layout.block as u64
    }

    /// Reads and verifies. If this fails, `out` holds no data.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end; `InvalidData` with the offset of the first block that fails verification; those of the store.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.size)?;
        let read = self.read(offset, out);
        if read.is_err() {
            out.fill(0);
        }
        read
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let cut = Cut::new(offset, out.len(), self.layout.block);
        let (head, rest) = out.split_at_mut(cut.head);
        let (middle, tail) = rest.split_at_mut(cut.middle);
        self.read_part(offset, head)?;
        let mut at = offset + head.len() as u64;
        for batch in middle.chunks_mut(self.batch(cut.middle)) {
            self.read_blocks(at, batch)?;
            at += batch.len() as u64;
        }
        self.read_part(at, tail)
    }

    /// Reads part of one block.
    fn read_part(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let within = offset % self.block();
        let start = offset - within;
        let mut block = vec![0; (self.size - start).min(self.block()) as usize];
        self.read_blocks(start, &mut block)?;
        out.copy_from_slice(&block[within as usize..][..out.len()]);
        Ok(())
    }

    /// Bytes that are read or written together.
    fn batch(&self, len: usize) -> usize {
        let most = if self.pool.is_some() && len >= SPLIT { SPLIT } else { CHUNK };
        (most / self.layout.block).max(1) * self.layout.block
    }

    /// Reads whole blocks, or the last one, which may be shorter.
    fn read_blocks(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let place = self.layout.place(at);
        let mut stored = vec![0; self.layout.sealed_len(out.len())];
        self.store.read_at(place, &mut stored).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => damaged(place, at, "the file ends inside it"),
            _ => e,
        })?;
        let first = at / self.block();
        self.each_piece(out, self.layout.block, |before, piece| {
            let stored = &stored[before * self.layout.stored_block() as usize..][..self.layout.sealed_len(piece.len())];
            match self.layout.open_blocks(first + before as u64, stored, piece)? {
                None => Ok(()),
                Some(wrong) => {
                    let at = wrong * self.block();
                    let what = "it fails verification: it was changed, moved or written in part";
                    Err(damaged(self.layout.place(at), at, what))
                }
            }
        })
    }

    /// Calls `each` with parts of a buffer of blocks with `block` bytes each, and the number of blocks before each part: on this
    /// thread, or split over the pool. A key process gets no larger parts either.
    fn each_piece(
        &self,
        buffer: &mut [u8],
        block: usize,
        each: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let each = |at: usize, piece: &mut [u8]| {
            let done = each(at / block, piece);
            // Wipe before this thread sleeps.
            wipe_after_sectors();
            done
        };
        let most = (CHUNK / self.layout.block).max(1) * block;
        let Some(pool) = self.pool.as_ref().filter(|_| buffer.len() >= SPLIT) else {
            return buffer.chunks_mut(most).zip((0..).step_by(most)).try_for_each(|(piece, at)| each(at, piece));
        };
        let failed = Mutex::new(None);
        for_each_piece(pool, buffer, most, |at, piece| {
            if let Err(e) = each(at, piece) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Writes `data` at `offset`. The file grows if necessary, and a gap before `offset` reads as zeros.
    ///
    /// # Errors
    /// `FileTooLarge`; `InvalidData` if a block that is written in part fails verification; those of the store. If the file should
    /// have grown, it has its old size then, unless its last block cannot be written again either: its stored size then says what it
    /// has.
    pub fn write_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        match end {
            _ if data.is_empty() => Ok(()),
            end if end <= self.size => self.put(offset, data, self.size),
            end => self.grow(end, |file| {
                file.extend(offset - offset % file.block())?;
                file.put(offset, data, end)
            }),
        }
    }

    /// Changes the size; new bytes are zero.
    ///
    /// # Errors
    /// Those of [`SealedBlocks::write_at`].
    pub fn set_size(&mut self, size: u64) -> io::Result<()> {
        let start = size - size % self.block();
        if size > self.size {
            return self.grow(size, |file| {
                file.extend(start)?;
                file.put_part(start, &[], size)
            });
        }
        if size < self.size {
            // If this is interrupted, the last block is lost, but not the bytes before it.
            self.put_part(start, &[], size)?;
            self.store.set_len(self.layout.stored_size(size))?;
            self.size = size;
        }
        Ok(())
    }

    /// Lets the file grow to `size` bytes by `write`. If that fails, the file is as before, if its last block can be written.
    fn grow(&mut self, size: u64, write: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        if size > self.layout.largest() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let before = self.size;
        let mut last = vec![0; (before % self.block()) as usize];
        let start = before - last.len() as u64;
        self.read_at(start, &mut last)?;
        let grown = write(self);
        match &grown {
            Ok(()) => self.size = size,
            Err(_) => {
                // Best effort: the original error is reported. The block has its place already. Where it cannot be sealed again,
                // because the key process has ended, it stays as it is: cut short, it would be lost.
                if self.write_blocks(start, &mut last).is_ok() {
                    let _ = self.store.set_len(self.layout.stored_size(before));
                    self.size = before;
                }
            }
        }
        grown
    }

    /// Extends the file to `to` bytes, whole blocks, with zeros, unless it is longer or its last block ends there. Only a last block
    /// that was incomplete is written where the others are holes.
    fn extend(&mut self, to: u64) -> io::Result<()> {
        let end = self.size.next_multiple_of(self.block());
        if to >= end && self.size < end {
            self.put_part(end - self.block(), &[], end)?;
            self.size = end;
        }
        if to > end {
            match self.layout.holes {
                true => self.store.set_len(self.layout.stored_size(to))?,
                false => self.write_zeros(end, to)?,
            }
            self.size = to;
        }
        Ok(())
    }

    /// Writes blocks of zeros, from one block to another.
    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let most = self.batch((to - from).min(usize::MAX as u64) as usize) as u64;
        let mut at = from;
        while at < to {
            let len = (to - at).min(most);
            self.write_blocks(at, &mut vec![0; len as usize])?;
            at += len;
        }
        Ok(())
    }

    /// Writes `data`, which begins inside the file or at its end. The file has `size` bytes afterwards.
    fn put(&self, offset: u64, data: &mut [u8], size: u64) -> io::Result<()> {
        let cut = Cut::new(offset, data.len(), self.layout.block);
        let (head, rest) = data.split_at_mut(cut.head);
        let (middle, tail) = rest.split_at_mut(cut.middle);
        if !head.is_empty() {
            self.put_part(offset, head, size)?;
        }
        let mut at = offset + head.len() as u64;
        for batch in middle.chunks_mut(self.batch(cut.middle)) {
            self.write_blocks(at, batch)?;
            at += batch.len() as u64;
        }
        if tail.is_empty() { Ok(()) } else { self.put_part(at, tail, size) }
    }

    /// Writes one block anew, with `part` at `offset` in it. Its bytes that were not there before are zero, and it ends where a file
    /// of `size` bytes does.
    fn put_part(&self, offset: u64, part: &[u8], size: u64) -> io::Result<()> {
        let within = (offset % self.block()) as usize;
        let start = offset - within as u64;
        let mut block = vec![0; size.saturating_sub(start).min(self.block()) as usize];
        let there = (self.size.saturating_sub(start).min(block.len() as u64)) as usize;
        if within > 0 || part.len() < there {
            self.read_at(start, &mut block[..there])?;
        }
        block[within..][..part.len()].copy_from_slice(part);
        self.write_blocks(start, &mut block)
    }

    /// Writes whole blocks, or the last one, which may be shorter.
    fn write_blocks(&self, at: u64, data: &mut [u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if !self.store.writable() {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let mut stored = vec![0; self.layout.sealed_len(data.len())];
        let first = at / self.block();
        let plain: &[u8] = data;
        self.each_piece(&mut stored, self.layout.stored_block() as usize, |before, piece| {
            let blocks = piece.len().div_ceil(self.layout.stored_block() as usize);
            let len = piece.len() - blocks * self.layout.sealing.overhead();
            self.layout.seal_blocks(first + before as u64, &plain[before * self.layout.block..][..len], piece)
        })?;
        let place = self.layout.place(at);
        // A full disk would end the write in the middle of a block, which is then lost.
        self.store.reserve(place, stored.len() as u64)?;
        self.store.write_clobbering(place, &mut stored)
    }
}

/// The error for a block stored at `place`, whose plaintext begins at byte `at` of the file.
fn damaged(place: u64, at: u64, what: &str) -> io::Error {
    let what = format!("the block with byte {at} of the file: {what}");
    Error::from(ErrorKind::Malformed { field: "contents", offset: place, what }).into()
}
