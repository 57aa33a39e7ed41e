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
    fn seal_into(&self, nonce: &[u8], beside: &[u8], plain: &[u8], stored: &mut [u8]) {
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

/// Where the sealed blocks of a file are, and what seals them. Plain data: a format builds it, and [`SealedBlocks`] executes it.
#[derive(Clone)]
pub struct SealedLayout {
    /// What seals the blocks.
    pub sealing: Sealing,
    /// Bytes of plaintext in each block but the last.
    pub block: usize,
    /// Offset of the first block in the file, in bytes.
    pub stored_at: u64,
    /// Bytes that are authenticated with each block, after its number (eight bytes, big-endian, counted from 0).
    pub beside: Vec<u8>,
    /// Whether a whole stored block of zeros is a hole, which reads as zeros. Otherwise it fails verification like any other block.
    pub holes: bool,
}

impl std::fmt::Debug for SealedLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "blocks of {} bytes, sealed, from byte {}", self.block, self.stored_at)
    }
}

impl SealedLayout {
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

    /// What is authenticated besides block `number`.
    pub(crate) fn beside(&self, number: u64) -> Vec<u8> {
        [&number.to_be_bytes()[..], &self.beside].concat()
    }
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
        let blocks = out.len().div_ceil(self.layout.block);
        let mut stored = vec![0; out.len() + blocks * self.layout.sealing.overhead()];
        self.store.read_at(place, &mut stored).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => damaged(place, at, "the file ends inside it"),
            _ => e,
        })?;
        let first = at / self.block();
        self.each_piece(out, |past, piece| {
            let before = past / self.layout.block;
            let stored = &stored[before * self.layout.stored_block() as usize..];
            let blocks = piece.chunks_mut(self.layout.block).zip(stored.chunks(self.layout.stored_block() as usize));
            for (number, (plain, stored)) in (first + before as u64..).zip(blocks) {
                self.open_block(number, stored, plain)?;
            }
            Ok(())
        })
    }

    fn open_block(&self, number: u64, stored: &[u8], plain: &mut [u8]) -> io::Result<()> {
        let layout = &self.layout;
        let is_hole = layout.holes && plain.len() == layout.block && stored.iter().all(|byte| *byte == 0);
        if is_hole {
            plain.fill(0);
        } else if !layout.sealing.open_into(&layout.beside(number), stored, plain) {
            let at = number * self.block();
            return Err(damaged(
                layout.place(at),
                at,
                "it fails verification: it was changed, moved or written in part",
            ));
        }
        Ok(())
    }

    /// Calls `each` with parts of the buffer that are whole blocks, and their offsets: on this thread, or split over the pool.
    fn each_piece(
        &self,
        buffer: &mut [u8],
        each: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let each = |at: usize, piece: &mut [u8]| {
            let done = each(at, piece);
            // Wipe before this thread sleeps.
            wipe_after_sectors();
            done
        };
        let Some(pool) = self.pool.as_ref().filter(|_| buffer.len() >= SPLIT) else { return each(0, buffer) };
        let failed = Mutex::new(None);
        for_each_piece(pool, buffer, (CHUNK / self.layout.block).max(1) * self.layout.block, |at, piece| {
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
    /// have grown, it has its old size then.
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

    /// Lets the file grow to `size` bytes by `write`. If that fails, the file is as before.
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
                // Best effort: the original error is reported. The block has its place already.
                let _ = self.write_blocks(start, &mut last);
                let _ = self.store.set_len(self.layout.stored_size(before));
                self.size = before;
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
        let Sealing { cipher, .. } = &self.layout.sealing;
        let blocks = data.len().div_ceil(self.layout.block);
        let mut nonces = vec![0; blocks * cipher.nonce_size()];
        random::fill(&mut nonces)?;
        let mut stored = vec![0; data.len() + blocks * self.layout.sealing.overhead()];
        let first = at / self.block();
        let plain: &[u8] = data;
        self.each_stored_piece(&mut stored, |before, piece| {
            let plain = plain[before * self.layout.block..].chunks(self.layout.block);
            let nonces = nonces[before * cipher.nonce_size()..].chunks(cipher.nonce_size());
            let stored = piece.chunks_mut(self.layout.stored_block() as usize);
            for (number, ((stored, plain), nonce)) in (first + before as u64..).zip(stored.zip(plain).zip(nonces)) {
                self.layout.sealing.seal_into(nonce, &self.layout.beside(number), plain, stored);
            }
        });
        let place = self.layout.place(at);
        // A full disk would end the write in the middle of a block, which is then lost.
        self.store.reserve(place, stored.len() as u64)?;
        self.store.write_clobbering(place, &mut stored)
    }

    /// Calls `each` with parts of a buffer of stored blocks, and the number of blocks before each part.
    fn each_stored_piece(&self, stored: &mut [u8], each: impl Fn(usize, &mut [u8]) + Sync) {
        let block = self.layout.stored_block() as usize;
        let each = |at: usize, piece: &mut [u8]| {
            each(at / block, piece);
            wipe_after_sectors();
        };
        match self.pool.as_ref().filter(|_| stored.len() >= SPLIT) {
            Some(pool) => for_each_piece(pool, stored, (CHUNK / self.layout.block).max(1) * block, each),
            None => each(0, stored),
        }
    }
}

/// The error for a block stored at `place`, whose plaintext begins at byte `at` of the file.
fn damaged(place: u64, at: u64, what: &str) -> io::Error {
    let what = format!("the block with byte {at} of the file: {what}");
    Error::from(ErrorKind::Malformed { field: "contents", offset: place, what }).into()
}
