//! The key process's side: threads that carry out requests from shared memory, whose contents are not trusted.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use claviger_engine::Secret;
use claviger_engine::key_process::Refused;
use claviger_engine::key_process::volume::{KeyRange, Keys, wipe_traces};
use rustix::thread::futex::{self, Flags};

use super::files;
use super::shared_sys::{DATA, KeyRequest, ROOM, SLOTS, Shared, TURNS};
use super::{ANSWERED, ASKED, DECRYPT, DONE, ENCRYPT, FOLDER_MOST, REFUSED, WIPED, WRONG};
use crate::spin::{Awake, Running, Sleeping, Spinner};

/// How long a thread polls for the next request before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Bytes that are copied, processed and copied back at a time, if they cannot be processed in place. They nearly fit
/// into the L1 cache, and hold eight extents of eCryptfs, which are encrypted in parallel.
const PIECE: usize = 32 << 10;

/// State shared by the threads.
pub(super) struct KeyServer {
    pub shared: Arc<Shared>,
    /// None once the keys have been wiped.
    pub keys: RwLock<Option<Keys>>,
    pub awake: Awake,
}

/// A panicking thread ends the whole key process: otherwise clients would wait for its answer forever.
struct Together;

impl Drop for Together {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

impl KeyServer {
    /// Starts a thread for each slot, with the memory that sectors need. Sealed blocks need more: a slot gets it with the first one.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        for slot in 0..SLOTS {
            let (server, room) = (Arc::clone(self), Secret::zeroed(PIECE));
            thread::Builder::new()
                .name(format!("slot-{slot}"))
                .stack_size(128 << 10)
                .spawn(move || server.serve(slot, room))?;
        }
        Ok(())
    }

    /// Wipes the keys, once no thread uses them.
    pub fn wipe(&self) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn serve(&self, slot: usize, mut room: Secret) {
        let _all = Together;
        let _counted = Running::new(&self.awake);
        let mut spinner = Spinner::default();
        for turn in (0..TURNS).cycle() {
            let request = self.shared.request(slot, turn);
            self.wait_for(request, &mut spinner);
            let answer = self.answer(request, &mut room);
            request.answer.store(answer, Ordering::Relaxed);
            // Either a client about to sleep sees this store, or this thread sees that the client sleeps.
            request.state.store(ANSWERED, Ordering::SeqCst);
            // An awake client continues in the meantime.
            wipe_traces();
            if request.asker_sleeps.load(Ordering::SeqCst) != 0 {
                let _ = futex::wake(&request.state, Flags::empty(), 1);
            }
        }
    }

    fn wait_for(&self, request: &KeyRequest, spinner: &mut Spinner) {
        let asked = || request.state.load(Ordering::SeqCst) == ASKED;
        let spun = spinner.spin(&self.awake, SPIN, || Ok(asked().then_some(())));
        if asked() || spun.is_ok_and(|found| found.is_some()) {
            return;
        }
        let _asleep = Sleeping::new(&self.awake);
        request.key_process_sleeps.store(1, Ordering::SeqCst);
        while !asked() {
            // An invalid state, which the other process may write, is only waited on until it changes.
            let seen = request.state.load(Ordering::SeqCst);
            if seen != ASKED {
                let _ = futex::wait(&request.state, Flags::empty(), seen, None);
            }
        }
        request.key_process_sleeps.store(0, Ordering::SeqCst);
    }

    /// Carries out a request. Each field is read only once, so later changes have no effect.
    fn answer(&self, request: &KeyRequest, room: &mut Secret) -> u32 {
        let order = request.order.load(Ordering::Acquire);
        let of_folder = files::is_order(order);
        if !of_folder && order != DECRYPT && order != ENCRYPT {
            return REFUSED;
        }
        let (segment, len) = (request.segment.load(Ordering::Relaxed), request.len.load(Ordering::Relaxed) as usize);
        let (at, into) = (request.at.load(Ordering::Relaxed) as usize, request.into.load(Ordering::Relaxed));
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let Some(keys) = &*keys else { return WIPED };
        let most = ROOM.min(DATA.saturating_sub(at));
        if len > most {
            return REFUSED;
        }
        if of_folder {
            return self.of_folder(keys, [order, segment], at..at + len, room).map_or(REFUSED, |()| DONE);
        }
        let encrypt = order == ENCRYPT;
        match keys.range(encrypt, segment, into, len) {
            Ok(range) if fits(&range, len, most, room.len()) => {
                let data = at..at + len;
                let done = match range.is_sealed() {
                    true => self.carry_out_sealed(&range, encrypt, data, room),
                    false => self.carry_out(&range, encrypt, data, room),
                };
                done.map_or_else(|sector| WRONG + sector, |()| DONE)
            }
            Ok(_) | Err(Refused) => REFUSED,
        }
    }

    /// Carries out a request about a folder. The argument and the answer are in the same place.
    fn of_folder(
        &self,
        keys: &Keys,
        [order, file]: [u32; 2],
        data: Range<usize>,
        room: &mut [u8],
    ) -> Result<(), Refused> {
        let said = room.get_mut(..data.len()).filter(|said| said.len() <= FOLDER_MOST).ok_or(Refused)?;
        if DATA.saturating_sub(data.start) < 4 + FOLDER_MOST {
            return Err(Refused);
        }
        self.shared.copy_out(data.start, said);
        let answer = files::carry_out(keys, order, file, said)?;
        self.shared.copy_in(data.start, &(answer.len() as u32).to_le_bytes());
        self.shared.copy_in(data.start + 4, &answer);
        Ok(())
    }

    /// Works in place, or piece by piece in memory of this process; the tags of all sectors follow the last sector.
    /// Stops at the first sector with a wrong tag, and releases nothing of its piece.
    fn carry_out(&self, range: &KeyRange<'_>, encrypt: bool, data: Range<usize>, room: &mut [u8]) -> Result<(), u32> {
        if self.shared.carry_out(range, data.start, data.len()) {
            return Ok(());
        }
        let (sector, tag) = (range.sector_size(), range.tag_size());
        let piece = room.len() / (sector + tag) * sector;
        for past in (0..data.len()).step_by(piece) {
            let (run, rest) = room.split_at_mut(piece.min(data.len() - past));
            let first = past / sector;
            let (at, tags_at) = (data.start + past, data.end + first * tag);
            let tags = &mut rest[..run.len() / sector * tag];
            self.shared.copy_out(at, run);
            if !encrypt {
                self.shared.copy_out(tags_at, tags);
            }
            range.carry_out(past as u64, run, tags).map_err(|wrong| first as u32 + wrong)?;
            self.shared.copy_in(at, run);
            if encrypt {
                self.shared.copy_in(tags_at, tags);
            }
        }
        Ok(())
    }

    /// The same for sealed blocks. Their stored form is in the place of the plaintext, and longer: blocks are opened from the first
    /// one on, and sealed from the last one on, so nothing is overwritten that is still needed.
    fn carry_out_sealed(
        &self,
        range: &KeyRange<'_>,
        seal: bool,
        data: Range<usize>,
        room: &mut Secret,
    ) -> Result<(), u32> {
        let (block, stored_block) = (range.sector_size(), range.sector_size() + range.tag_size());
        let together = (PIECE / block).max(1);
        // Only a key says how large its blocks are, and no request.
        if room.len() < together * (block + stored_block) {
            *room = Secret::zeroed(together * (block + stored_block));
        }
        let pieces = data.len().div_ceil(together * block);
        for turn in 0..pieces {
            let first = together * if seal { pieces - 1 - turn } else { turn };
            let len = (together * block).min(data.len() - first * block);
            let (plain, rest) = room.split_at_mut(len);
            let stored = &mut rest[..stored_len(range, len)];
            let (plain_at, stored_at) = (data.start + first * block, data.start + first * stored_block);
            match seal {
                true => self.shared.copy_out(plain_at, plain),
                false => self.shared.copy_out(stored_at, stored),
            }
            range.carry_out_sealed((first * block) as u64, plain, stored).map_err(|wrong| first as u32 + wrong)?;
            match seal {
                true => self.shared.copy_in(stored_at, stored),
                false => self.shared.copy_in(plain_at, plain),
            }
        }
        Ok(())
    }
}

/// Whether `len` bytes as they are stored are at most `most` bytes, and one sector fits into `room` bytes of this process. There is
/// always room for sealed blocks.
fn fits(range: &KeyRange<'_>, len: usize, most: usize, room: usize) -> bool {
    stored_len(range, len) <= most && (range.is_sealed() || range.sector_size() + range.tag_size() <= room)
}

/// Bytes of `len` bytes as they are stored, with a tag for each sector or a part of one.
fn stored_len(range: &KeyRange<'_>, len: usize) -> usize {
    len + len.div_ceil(range.sector_size()) * range.tag_size()
}

/// Carries out consecutive requests, each of 20 bytes and up to 255 bytes of data. Returns how many were not refused: for
/// [`crate::fuzzing`].
pub(crate) fn fuzz(keys: Keys, mut bytes: &[u8]) -> io::Result<usize> {
    let shared = Arc::new(Shared::create()?);
    let server = KeyServer { shared, keys: RwLock::new(Some(keys)), awake: Awake::new() };
    let (mut room, mut done) = (Secret::zeroed(PIECE), 0);
    while let Some((head, rest)) = bytes.split_first_chunk::<20>() {
        let (data, rest) = rest.split_at(rest.len().min(head[19].into()));
        bytes = rest;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let at = word(6);
        if at as usize <= DATA - data.len() {
            server.shared.copy_in(at as usize, data);
        }
        let request = server.shared.request(0, 0);
        request.order.store(head[0].into(), Ordering::Relaxed);
        request.segment.store(head[1].into(), Ordering::Relaxed);
        request.len.store(word(2), Ordering::Relaxed);
        request.at.store(at, Ordering::Relaxed);
        request.into.store(u64::from(word(10)) | u64::from(word(14)) << 32, Ordering::Relaxed);
        let answer = server.answer(request, &mut room);
        assert!(answer != WIPED, "nobody wiped the keys");
        done += usize::from(answer != REFUSED);
    }
    Ok(done)
}

/// A key process with its threads, and the other process's view of the memory. Both share one mapping, as
/// ThreadSanitizer knows only addresses.
#[cfg(test)]
pub(super) fn started(keys: Keys) -> (Arc<KeyServer>, Arc<Shared>) {
    let shared = Arc::new(Shared::create().expect("memory"));
    let other = match cfg!(races) {
        true => Arc::clone(&shared),
        false => {
            Arc::new(Shared::open(shared.fd().try_clone_to_owned().expect("a descriptor")).expect("the same memory"))
        }
    };
    let server = Arc::new(KeyServer { shared, keys: RwLock::new(Some(keys)), awake: Awake::new() });
    server.start().expect("threads");
    (server, other)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::{OsStr, OsString};
    use std::ops::Deref;
    use std::os::fd::AsFd;

    use claviger_crypto::modes::aead;
    use claviger_engine::key_process::folder::{ContentKey, FolderKeys};
    use claviger_engine::store::MemoryStore;
    use claviger_engine::volume::{BlockSealing, SealedLayout, Sealing, integrity};
    use claviger_engine::{Acceleration, Layout, Payload, Sectors, Segment, Specification};

    use super::*;

    const LEN: usize = 64 << 10;

    /// A segment in plaintext and one of 512-byte sectors with `aes-xts-plain64`.
    fn layout() -> Layout {
        let specification = Specification::parse("aes-xts-plain64").expect("a specification");
        let key: Vec<u8> = (0..64).collect();
        let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("a key that fits");
        let segment = |at, payload| Segment { at, len: LEN as u64, stored_at: at, payload, writable: true };
        // The last segment could grow.
        let segments = vec![
            segment(0, Payload::Clear),
            segment(LEN as u64, Payload::crypt(cipher, 3)),
            segment(2 * LEN as u64, Payload::Clear),
        ];
        Layout::new(segments).expect("a good layout")
    }

    /// The other process's view of the memory, and the next turn of slot 1.
    struct Other(Arc<Shared>, Cell<usize>);

    impl Deref for Other {
        type Target = Shared;

        fn deref(&self) -> &Shared {
            &self.0
        }
    }

    fn key_process() -> (Arc<KeyServer>, Other) {
        key_process_of(&layout())
    }

    fn key_process_of(layout: &Layout) -> (Arc<KeyServer>, Other) {
        key_process_with(Keys::of(layout, true))
    }

    fn key_process_with(keys: Keys) -> (Arc<KeyServer>, Other) {
        let (server, other) = started(keys);
        (server, Other(other, Cell::new(0)))
    }

    /// Sends a request for the memory of slot 1.
    fn ask(other: &Other, what: [u32; 3], into: u64) -> u32 {
        ask_at(other, ROOM, what, into)
    }

    /// Sends a request for this part of the data.
    fn ask_at(other: &Other, at: usize, [order, segment, len]: [u32; 3], into: u64) -> u32 {
        let request = other.request(1, other.1.replace((other.1.get() + 1) % TURNS));
        request.order.store(order, Ordering::Relaxed);
        request.segment.store(segment, Ordering::Relaxed);
        request.at.store(at as u32, Ordering::Relaxed);
        request.len.store(len, Ordering::Relaxed);
        request.into.store(into, Ordering::Relaxed);
        request.answer.store(77, Ordering::Relaxed);
        request.state.store(ASKED, Ordering::SeqCst);
        let _ = futex::wake(&request.state, Flags::empty(), 1);
        while request.state.load(Ordering::SeqCst) != ANSWERED {
            thread::yield_now();
        }
        request.answer.load(Ordering::Relaxed)
    }

    #[test]
    fn hostile_requests_are_refused_and_harm_nothing() {
        let (server, shared) = key_process();
        let bytes: Vec<u8> = (0..ROOM).map(|i| (i / 3) as u8).collect();
        (0..3).for_each(|slot| shared.copy_in(slot * ROOM, &bytes));
        for (what, into) in [
            ([0, 1, 512], 0),
            ([3, 1, 512], 0),
            ([u32::MAX, 1, 512], 0),
            ([DECRYPT, 0, 512], 0),
            ([DECRYPT, 2, 512], 0),
            ([DECRYPT, u32::MAX, 512], 0),
            ([DECRYPT, 1, 0], 0),
            ([DECRYPT, 1, 511], 0),
            ([DECRYPT, 1, 512], 1),
            ([DECRYPT, 1, LEN as u32 + 512], 0),
            ([DECRYPT, 1, 512], LEN as u64),
            ([ENCRYPT, 1, 512], u64::MAX - 511),
            ([ENCRYPT, 1, 1024], u64::MAX - 511),
            ([ENCRYPT, 1, ROOM as u32 + 512], 0),
            ([ENCRYPT, 1, !511], 0),
        ] {
            assert_eq!(ask(&shared, what, into), REFUSED, "{what:?} {into}");
        }
        // Data that are outside the memory, wholly or in part.
        for at in [DATA - 511, DATA, DATA + 1, u32::MAX as usize, u32::MAX as usize - 511] {
            assert_eq!(ask_at(&shared, at, [DECRYPT, 1, 512], 0), REFUSED, "{at}");
        }
        let mut now = vec![0; ROOM];
        for slot in 0..3 {
            shared.copy_out(slot * ROOM, &mut now);
            assert!(now == bytes, "slot {slot}");
        }
        // An invalid state wakes nobody and does no harm.
        let request = shared.request(1, shared.1.get());
        request.state.store(0xdead_beef, Ordering::SeqCst);
        let _ = futex::wake(&request.state, Flags::empty(), 1);
        assert_eq!(ask(&shared, [ENCRYPT, 1, LEN as u32 - 512], 512), DONE);
        let mut expected = bytes.clone();
        let layout = layout();
        let Payload::Crypt { cipher, first, .. } = &layout.segments()[1].payload else { panic!("encrypted") };
        cipher.encrypt(first + 1, &mut expected[..LEN - 512]);
        shared.copy_out(ROOM, &mut now);
        assert!(now == expected, "what is asked for is done, and nothing behind it");
        server.wipe();
        assert_eq!(ask(&shared, [DECRYPT, 1, 512], 0), WIPED);
    }

    /// Toy keys of a folder: a file's header is its key, and stored names have an `x` in front.
    struct Toy;

    impl FolderKeys for Toy {
        fn open(&self, sealed: &[u8]) -> io::Result<Option<ContentKey>> {
            let specification = Specification::parse("aes-xts-plain64").expect("a specification");
            let cipher = specification.with_key(sealed, Sectors::default(), Acceleration::On);
            let payload = Payload::crypt(cipher.map_err(io::Error::other)?, 0);
            Ok((sealed[0] != 0xff).then_some(ContentKey::Sectors(payload)))
        }

        fn create(&self) -> io::Result<(Vec<u8>, ContentKey)> {
            Ok((vec![5; 64], self.open(&[5; 64])?.expect("it opens")))
        }

        fn plain_name(&self, _iv: &[u8], stored: &OsStr) -> io::Result<Option<OsString>> {
            Ok(stored.to_str().and_then(|name| name.strip_prefix('x')).map(OsString::from))
        }

        fn stored_name(&self, _iv: &[u8], plain: &OsStr) -> io::Result<OsString> {
            Ok([OsStr::new("x"), plain].into_iter().collect())
        }
    }

    /// Toy keys of a folder of sealed blocks of this size. A file's header is authenticated with each block.
    struct SealedToy(usize);

    impl SealedToy {
        fn sealing() -> Sealing {
            Sealing { cipher: aead::gcm(&[7; 32], 12, Acceleration::On).into(), tag_first: false }
        }
    }

    impl FolderKeys for SealedToy {
        fn open(&self, sealed: &[u8]) -> io::Result<Option<ContentKey>> {
            let sealing = BlockSealing::Here { sealing: Self::sealing(), beside: sealed.to_vec() };
            Ok(Some(ContentKey::Blocks(SealedLayout { sealing, block: self.0, stored_at: 18, holes: true })))
        }

        fn create(&self) -> io::Result<(Vec<u8>, ContentKey)> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn plain_name(&self, _iv: &[u8], _stored: &OsStr) -> io::Result<Option<OsString>> {
            Ok(None)
        }

        fn stored_name(&self, _iv: &[u8], _plain: &OsStr) -> io::Result<OsString> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn place(&self, id: &[u8]) -> io::Result<Vec<u8>> {
            Ok([id, id].concat())
        }
    }

    /// The answer to `said`, unless refused.
    fn said(shared: &Other, [order, file]: [u32; 2], said: &[u8]) -> Option<Vec<u8>> {
        shared.copy_in(ROOM, said);
        if ask(shared, [order, file, said.len() as u32], 0) != DONE {
            return None;
        }
        let mut len = [0; 4];
        shared.copy_out(ROOM, &mut len);
        let mut answer = vec![0; u32::from_le_bytes(len) as usize];
        shared.copy_out(ROOM + 4, &mut answer);
        Some(answer)
    }

    #[test]
    fn hostile_requests_to_a_folder_are_refused_and_harm_nothing() {
        let (server, shared) = key_process_with(Keys::of_folder(Arc::new(Toy), true));
        let (key, other): (Vec<u8>, Vec<u8>) = ((0..64).collect(), (64..128).collect());
        // No file is open yet.
        for into in [0, 512, u64::MAX - 511] {
            assert_eq!(ask(&shared, [DECRYPT, 0, 512], into), REFUSED);
        }
        for bad in [&key[..63], &[], &[0; 4096], &vec![0; FOLDER_MOST]] {
            assert_eq!(said(&shared, [files::OPEN, 0], bad), None, "{} bytes are no key", bad.len());
        }
        assert_eq!(said(&shared, [files::OPEN, 0], &key), Some(vec![0; 4]));
        assert_eq!(said(&shared, [files::OPEN, 0], &[0xff; 64]), Some(Vec::new()), "these keys do not open it");
        assert_eq!(said(&shared, [files::OPEN, 0], &other), Some(vec![1, 0, 0, 0]));
        // Arguments that are too long or do not fit, and invalid orders.
        for (what, into) in [
            ([files::OPEN, 0, FOLDER_MOST as u32 + 1], 0),
            ([files::STORED_NAME, 0, ROOM as u32], 0),
            ([files::STORED_NAME, 0, u32::MAX], 0),
            ([files::PLAIN_NAME, 0, ROOM as u32 + 1], u64::MAX),
            ([files::OPEN - 1, 0, 64], 0),
            ([files::PLACE, 0, 64], 0),
            ([files::PLACE + 1, 0, 64], 0),
            ([DECRYPT, 2, 512], 0),
            ([ENCRYPT, u32::MAX, 512], 0),
            ([DECRYPT, 0, 511], 0),
            ([DECRYPT, 0, 0], 0),
            ([DECRYPT, 0, 512], 7),
            ([DECRYPT, 0, ROOM as u32 + 512], 0),
            ([DECRYPT, 0, 512], 1 << 63),
            ([ENCRYPT, 0, 1024], i64::MAX as u64 & !0xfff),
            ([ENCRYPT, 0, 1024], u64::MAX - 511),
        ] {
            assert_eq!(ask(&shared, what, into), REFUSED, "{what:?} {into}");
        }
        // Answers that would lie outside the memory, also to a request without an argument.
        for at in [DATA - 10, DATA, DATA + 1, u32::MAX as usize] {
            assert_eq!(ask_at(&shared, at, [files::CREATE, 0, 0], 0), REFUSED, "{at}");
        }
        // The last sectors that a file can have, each of the requested file.
        for (file, key) in [(0, &key), (1, &other)] {
            let into = (i64::MAX as u64 & !0xfff) - 1024;
            shared.copy_in(ROOM, &[9; 1024]);
            assert_eq!(ask(&shared, [ENCRYPT, file, 1024], into), DONE);
            let mut expected = [9; 1024];
            let Ok(Some(ContentKey::Sectors(Payload::Crypt { cipher, .. }))) = Toy.open(key) else {
                panic!("encrypted")
            };
            cipher.encrypt(into / 512, &mut expected);
            let mut now = [0; 1024];
            shared.copy_out(ROOM, &mut now);
            assert!(now == expected, "file {file}");
        }
        // A file can be closed repeatedly, and its number is then reused.
        for file in [0, 0, 7, u32::MAX] {
            assert_eq!(said(&shared, [files::CLOSE, file], &[]), Some(Vec::new()));
        }
        assert_eq!(ask(&shared, [DECRYPT, 0, 512], 0), REFUSED);
        assert_eq!(said(&shared, [files::CREATE, 0], &[]), Some([vec![0; 4], vec![5; 64]].concat()));
        // The number of open files is limited.
        let mut last = 1;
        while let Some(number) = said(&shared, [files::OPEN, 0], &key) {
            last += 1;
            assert_eq!(number, u32::to_le_bytes(last));
        }
        assert!((1024..10_000).contains(&last), "{last} files");
        assert_eq!(said(&shared, [files::CREATE, 0], &[]), None);
        assert_eq!(said(&shared, [files::CLOSE, 700], &[]), Some(Vec::new()));
        assert_eq!(said(&shared, [files::OPEN, 0], &key), Some(700_u32.to_le_bytes().to_vec()));
        // Names, including invalid ones.
        assert_eq!(said(&shared, [files::STORED_NAME, 0], b"\0name"), Some(b"xname".to_vec()));
        assert_eq!(said(&shared, [files::STORED_NAME, 0], b"\x02ivname"), Some(b"xname".to_vec()));
        assert_eq!(said(&shared, [files::PLAIN_NAME, 0], b"\0xname"), Some(b"\x01name".to_vec()));
        assert_eq!(said(&shared, [files::PLAIN_NAME, 0], b"\0\xff\0/"), Some(Vec::new()));
        // No IV, or one that is longer than the request.
        for bad in [&b""[..], b"\x05name", b"\xff"] {
            assert_eq!(said(&shared, [files::STORED_NAME, 0], bad), None, "{bad:?}");
            assert_eq!(said(&shared, [files::PLAIN_NAME, 0], bad), None, "{bad:?}");
        }
        server.wipe();
        assert_eq!(ask(&shared, [files::STORED_NAME, 0, 4], 0), WIPED);
        // Keys of a volume have no files, and a read-only folder makes none.
        let (_server, shared) = key_process();
        assert_eq!(said(&shared, [files::OPEN, 1], &key), None);
        assert_eq!(said(&shared, [files::STORED_NAME, 1], b"\0name"), None);
        let (_server, shared) = key_process_with(Keys::of_folder(Arc::new(Toy), false));
        assert_eq!(said(&shared, [files::CREATE, 0], &[]), None);
        assert_eq!(said(&shared, [files::OPEN, 0], &key), Some(vec![0; 4]));
        assert_eq!(ask(&shared, [ENCRYPT, 0, 512], 0), REFUSED);
        assert_eq!(ask(&shared, [DECRYPT, 0, 512], 0), DONE);
    }

    #[test]
    fn sealed_blocks_are_opened_where_they_are_and_hostile_requests_for_them_are_refused() {
        const OVERHEAD: usize = 28;
        for block in [4096, 32 << 10] {
            let (_server, shared) = key_process_with(Keys::of_folder(Arc::new(SealedToy(block)), true));
            assert_eq!(said(&shared, [files::OPEN, 0], b"file"), Some(vec![0; 4]));
            let bytes: Vec<u8> = (0..ROOM).map(|i| (i / 5) as u8).collect();
            (0..3).for_each(|slot| shared.copy_in(slot * ROOM, &bytes));
            let most = ROOM / (block + OVERHEAD) * block;
            let largest = (i64::MAX as usize & !0xfff) as u64;
            for (what, into) in [
                ([DECRYPT, 0, 0], 0),
                ([DECRYPT, 0, block as u32], 1),
                ([DECRYPT, 0, block as u32], block as u64 - 1),
                ([DECRYPT, 1, block as u32], 0),
                ([DECRYPT, 0, 2], largest),
                ([ENCRYPT, 0, 2], u64::MAX / block as u64 * block as u64),
                ([ENCRYPT, 0, ROOM as u32], 0),
                ([ENCRYPT, 0, (most + block) as u32], 0),
                ([ENCRYPT, 0, u32::MAX], 0),
            ] {
                assert_eq!(ask(&shared, what, into), REFUSED, "{what:?} {into}");
            }
            // The plaintext is inside the memory, and what would be stored is not.
            for past in [block, block + OVERHEAD - 1] {
                assert_eq!(ask_at(&shared, DATA - past, [ENCRYPT, 0, block as u32], 0), REFUSED);
            }
            // Blocks from number 3 on; the last one is short.
            let (len, into) = (most - block + 100, 3 * block as u64);
            assert_eq!(ask(&shared, [ENCRYPT, 0, len as u32], into), DONE);
            let mut sealed = vec![0; len + len.div_ceil(block) * OVERHEAD];
            shared.copy_out(ROOM, &mut sealed);
            let number = |number: u64| [&number.to_be_bytes()[..], b"file"].concat();
            for (at, (stored, plain)) in (3..).zip(sealed.chunks(block + OVERHEAD).zip(bytes[..len].chunks(block))) {
                let opened = SealedToy::sealing().open(&number(at), stored);
                assert!(opened.as_deref() == Some(plain), "{block}: block {at}");
            }
            // The same bytes again have other nonces.
            shared.copy_in(ROOM, &bytes);
            assert_eq!(ask(&shared, [ENCRYPT, 0, len as u32], into), DONE);
            let mut again = vec![0; sealed.len()];
            shared.copy_out(ROOM, &mut again);
            assert!(again[..12] != sealed[..12]);
            let mut now = vec![0; len];
            assert_eq!(ask(&shared, [DECRYPT, 0, len as u32], into), DONE);
            shared.copy_out(ROOM, &mut now);
            assert!(now == bytes[..len]);
            // Nothing that fails verification gets out, and neither does anything after it.
            let bad = 16;
            sealed[bad * (block + OVERHEAD) + 20] ^= 1;
            shared.copy_in(ROOM, &sealed);
            assert_eq!(ask(&shared, [DECRYPT, 0, len as u32], into), WRONG + bad as u32);
            let mut after = vec![0; sealed.len()];
            shared.copy_out(ROOM, &mut after);
            assert!(after[bad * block..] == sealed[bad * block..], "{block}");
            assert!(after[..bad * block] == bytes[..bad * block], "{block}");
            // In another place, and in another file.
            assert_eq!(ask(&shared, [DECRYPT, 0, block as u32], 0), WRONG);
            assert_eq!(said(&shared, [files::OPEN, 0], b"elif"), Some(vec![1, 0, 0, 0]));
            shared.copy_in(ROOM, &sealed);
            assert_eq!(ask(&shared, [DECRYPT, 1, block as u32], into), WRONG);
            shared.copy_in(ROOM, &vec![0; block + OVERHEAD]);
            assert_eq!(ask(&shared, [DECRYPT, 0, block as u32], 0), DONE, "a hole");
            assert_eq!(said(&shared, [files::PLACE, 0], b"folder"), Some(b"folderfolder".to_vec()));
            assert!(said(&shared, [files::PLACE, 0], &vec![b'i'; FOLDER_MOST]).is_none(), "too long an answer");
            assert_eq!(said(&shared, [files::CREATE, 0], &[]), None);
            for slot in [0, 2] {
                let mut now = vec![0; ROOM];
                shared.copy_out(slot * ROOM, &mut now);
                assert!(now == bytes, "slot {slot}");
            }
            let (_server, shared) = key_process_with(Keys::of_folder(Arc::new(SealedToy(block)), false));
            assert_eq!(said(&shared, [files::OPEN, 0], b"file"), Some(vec![0; 4]));
            assert_eq!(ask(&shared, [ENCRYPT, 0, 512], 0), REFUSED);
        }
    }

    /// The file may grow under it, unlike under other segments.
    #[test]
    fn the_last_segment_has_no_end() {
        let [_, encrypted, _] = layout().segments().to_vec().try_into().expect("three segments");
        let alone = Layout::new(vec![Segment { at: 0, ..encrypted }]).expect("a good layout");
        let (_server, shared) = key_process_of(&alone);
        assert_eq!(ask(&shared, [ENCRYPT, 0, 512], 9 * LEN as u64), DONE);
        for (len, into) in [(512, 9 * LEN as u64 + 1), (512, u64::MAX - 511), (1024, u64::MAX - 1023)] {
            assert_eq!(ask(&shared, [ENCRYPT, 0, len], into), REFUSED, "{len} {into}");
        }
    }

    #[test]
    fn tags_without_room_are_refused_and_wrong_ones_are_named() {
        let specification = aead::AeadSpecification::parse("aes-xts-plain64", "hmac(sha256)").expect("it is known");
        let cipher = specification.with_key(&[7; 96], Sectors::default(), Acceleration::On).expect("it fits");
        let store = MemoryStore::new(vec![0; 8 << 20]);
        integrity::format(&store, 0, 8 << 20, &*cipher, &mut |_, _| Ok(())).expect("there is room");
        let area = integrity::open(&store, 0, 8 << 20, 32, 512).expect("it is good");
        let segment = integrity::segment(Arc::new(area), 0, cipher, true).expect("they fit");
        let (_server, shared) = key_process_of(&Layout::new(vec![segment]).expect("one segment"));
        let bytes: Vec<u8> = (0..ROOM).map(|i| (i / 5) as u8).collect();
        (0..3).for_each(|slot| shared.copy_in(slot * ROOM, &bytes));
        let most = ROOM / (512 + 32) * 512;
        for len in [ROOM, most + 512] {
            assert_eq!(ask(&shared, [ENCRYPT, 0, len as u32], 0), REFUSED, "{len}");
        }
        let order = |order| ask(&shared, [order, 0, most as u32], 512);
        assert_eq!((order(ENCRYPT), order(DECRYPT)), (DONE, DONE));
        let mut now = vec![0; ROOM];
        shared.copy_out(ROOM, &mut now);
        assert!(now[..most] == bytes[..most]);
        assert_eq!(order(ENCRYPT), DONE);
        let mut one = [0];
        shared.copy_out(ROOM + 40 * 512 + 7, &mut one);
        shared.copy_in(ROOM + 40 * 512 + 7, &[one[0] ^ 1]);
        shared.copy_out(ROOM, &mut now);
        assert_eq!(order(DECRYPT), WRONG + 40);
        let mut after = vec![0; ROOM];
        shared.copy_out(ROOM, &mut after);
        assert!(after[32 * 512..most] == now[32 * 512..most], "nothing of what was not verified gets out");
        for slot in [0, 2] {
            shared.copy_out(slot * ROOM, &mut now);
            assert!(now == bytes, "slot {slot}");
        }
    }

    #[test]
    fn memory_of_another_size_or_that_may_shrink_is_refused() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

        let shared = Shared::create().expect("memory");
        assert!(ftruncate(shared.fd(), 0).is_err() && ftruncate(shared.fd(), 1 << 40).is_err(), "it is sealed");
        for len in [0, 4096, 8192 + (SLOTS * ROOM) as u64] {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
            ftruncate(&fd, len).expect("a size");
            assert!(Shared::open(fd.as_fd().try_clone_to_owned().expect("a descriptor")).is_err(), "{len}");
        }
    }
}
