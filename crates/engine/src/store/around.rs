//! Caches a slow, distant store for callers that read little at a time: reads the whole block around each request and keeps it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Store, check_range};

/// Bytes read at once. On a 1 Gbit/s line they take about as long as one round trip in a local network.
const BLOCK: u64 = 128 << 10;

/// The most blocks in the cache.
const MOST: usize = 256;

/// Caches blocks of another store. Nothing else may write to that store in the meantime.
pub struct AroundStore {
    inner: Arc<dyn Store>,
    kept: Mutex<CachedBlocks>,
    /// Writes that have begun, and writes that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

#[derive(Default)]
struct CachedBlocks {
    /// Each block, and when it was last used.
    blocks: HashMap<u64, (u64, Arc<[u8]>)>,
    now: u64,
}

impl AroundStore {
    /// Caches blocks of `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, kept: Mutex::default(), begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    fn block(&self, number: u64) -> io::Result<Arc<[u8]>> {
        if let Some(bytes) = self.kept().get(number) {
            return Ok(bytes);
        }
        let writes = self.ended.load(Ordering::SeqCst);
        let at = number * BLOCK;
        let mut bytes = vec![0; BLOCK.min(self.len() - at) as usize];
        self.inner.read_at(at, &mut bytes)?;
        let bytes: Arc<[u8]> = bytes.into();
        let mut kept = self.kept();
        // A block that was read during a write is not cached: it may be outdated.
        if self.begun.load(Ordering::SeqCst) == writes {
            kept.put(number, &bytes);
        }
        Ok(bytes)
    }

    fn kept(&self) -> MutexGuard<'_, CachedBlocks> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes, and removes the changed blocks from the cache.
    fn change(&self, offset: u64, len: u64, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let changed = change();
        let mut kept = self.kept();
        kept.blocks.retain(|number, _| number * BLOCK >= offset.saturating_add(len) || (number + 1) * BLOCK <= offset);
        self.ended.fetch_add(1, Ordering::SeqCst);
        changed
    }
}

impl CachedBlocks {
    fn get(&mut self, number: u64) -> Option<Arc<[u8]>> {
        self.now += 1;
        let (used, bytes) = self.blocks.get_mut(&number)?;
        *used = self.now;
        Some(Arc::clone(bytes))
    }

    fn put(&mut self, number: u64, bytes: &Arc<[u8]>) {
        if self.blocks.len() >= MOST
            && let Some(oldest) = self.blocks.iter().min_by_key(|(_, (used, _))| used).map(|(number, _)| *number)
        {
            self.blocks.remove(&oldest);
        }
        self.blocks.insert(number, (self.now, Arc::clone(bytes)));
    }
}

impl Store for AroundStore {
    fn below(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(offset, out.len(), self.len())?;
        if out.len() as u64 >= BLOCK {
            return self.inner.read_at(offset, out);
        }
        let (mut at, mut rest) = (offset, &mut *out);
        while !rest.is_empty() {
            let into = (at % BLOCK) as usize;
            // The unreadable part may be the rest of the block, which was not requested.
            let Ok(block) = self.block(at / BLOCK) else { return self.inner.read_at(at, rest) };
            let len = rest.len().min(block.len() - into);
            let (here, after) = rest.split_at_mut(len);
            here.copy_from_slice(&block[into..into + len]);
            (at, rest) = (at + len as u64, after);
        }
        Ok(())
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.change(offset, data.len() as u64, || self.inner.write_clobbering(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(offset, len, || self.inner.discard(offset, len))
    }
}
