//! The volume against a model: a plain array of bytes.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::support::noise;
use claviger_crypto::ciphers::aes::AES;
use claviger_crypto::modes::{TrueCryptCbc, Xts, xts};
use claviger_crypto::pool::Pool;
use claviger_engine::store::{Growth, MemoryStore, SliceStore};
use claviger_engine::{Acceleration, Layout, Payload, SectorCipher, Segment, Store, Volume};
use claviger_testkit::stores::{Fault, FaultStore, Operation};

const LEN: usize = 96 << 10;
/// Where the data begin in the store.
const AT: u64 = 8192;
const FIRST: u64 = 5;

fn xts(sector_size: usize, seed: u64) -> Arc<dyn SectorCipher> {
    let key = |seed| AES.with_key(&noise(32, seed), Acceleration::On);
    Arc::new(Xts::new(vec![xts::Layer { data: key(seed), tweak: key(seed + 1) }], sector_size))
}

fn crypt(at: u64, len: u64, stored_at: u64, cipher: &Arc<dyn SectorCipher>, first: u64, writable: bool) -> Segment {
    Segment { at, len, stored_at, payload: Payload::crypt(Arc::clone(cipher), first), writable }
}

/// A volume of one segment, its plaintext, and the store below it.
fn encrypted(sector_size: usize, len: usize) -> (Volume, Vec<u8>, Arc<MemoryStore>) {
    let cipher = xts(sector_size, 1);
    let plain = noise(len, 3);
    let mut stored = plain.clone();
    cipher.encrypt(FIRST, &mut stored);
    let whole = [&noise(AT as usize, 4)[..], &stored, &noise(999, 5)].concat();
    let store = Arc::new(MemoryStore::new(whole));
    let layout = Layout::new(vec![crypt(0, len as u64, AT, &cipher, FIRST, true)]).expect("a good layout");
    (Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout), plain, store)
}

/// Numbers that look random and are the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// An offset and a length within `len` bytes: short and long ones, aligned and not.
    pub fn range(&mut self, len: usize) -> (usize, usize) {
        let offset = self.below(len as u64) as usize;
        let longest = [3, 700, 5000, len][self.below(4) as usize];
        let (offset, count) = (offset, self.below(longest as u64 + 1) as usize);
        let (offset, count) =
            if self.below(3) == 0 { (offset / 512 * 512, count / 512 * 512) } else { (offset, count) };
        (offset, count.min(len - offset))
    }
}

fn same_as_model(volume: &Volume, model: &mut [u8], rounds: usize, dice: &mut Dice) {
    for round in 0..rounds {
        let (offset, len) = dice.range(model.len());
        if dice.below(2) == 0 {
            let data = noise(len, round as u64);
            model[offset..][..len].copy_from_slice(&data);
            volume.write_clobbering(offset as u64, &mut data.clone()).expect("a good write");
        } else {
            let mut out = vec![0xee; len];
            volume.read_at(offset as u64, &mut out).expect("a good read");
            assert!(out == model[offset..][..len], "{len} bytes at {offset}");
        }
    }
    let mut all = vec![0; model.len()];
    volume.read_at(0, &mut all).expect("a good read");
    assert!(all == model);
}

#[test]
fn reads_and_writes_of_any_offset_and_length() {
    for sector_size in [512, 4096] {
        let (volume, mut model, store) = encrypted(sector_size, LEN);
        same_as_model(&volume, &mut model, 2000, &mut Dice(sector_size as u64));
        // Below it is ciphertext of the model, and around it nothing was touched.
        let cipher = xts(sector_size, 1);
        let mut stored = store.to_vec();
        let (before, rest) = stored.split_at_mut(AT as usize);
        let (data, after) = rest.split_at_mut(LEN);
        cipher.decrypt(FIRST, data);
        assert!(data == model && before == noise(AT as usize, 4) && after == noise(999, 5));
    }
}

#[test]
fn large_requests_are_split_over_a_pool() {
    for sector_size in [512, 4096] {
        let len = (3 << 20) + 4096;
        let (volume, mut model, _) = encrypted(sector_size, len);
        let volume = volume.with_pool(Arc::new(Pool::new(3, Duration::from_micros(20))));
        let mut dice = Dice(7);
        for round in 0..12 {
            let offset = dice.below(5000) as usize;
            let count = (1 << 20) - 600 + dice.below((len - offset - (1 << 20)) as u64) as usize;
            let data = noise(count, round);
            model[offset..][..count].copy_from_slice(&data);
            volume.write_clobbering(offset as u64, &mut data.clone()).expect("a good write");
        }
        same_as_model(&volume, &mut model, 40, &mut dice);
    }
}

#[test]
fn a_failure_in_a_piece_of_a_split_request_is_reported() {
    let (_, _, store) = encrypted(512, 2 << 20);
    let cipher = xts(512, 1);
    let layout = || Layout::new(vec![crypt(0, 2 << 20, AT, &cipher, FIRST, true)]).expect("a good layout");
    for (operation, nth) in [(Operation::Read, 0), (Operation::Read, 9), (Operation::Write, 15)] {
        let fault = Fault { operation, nth, for_good: false, transferred: 100 };
        let faulty = Arc::new(FaultStore::new(Arc::clone(&store) as Arc<dyn Store>, Some(fault)));
        let volume = Volume::new(faulty, layout()).with_pool(Arc::new(Pool::new(2, Duration::ZERO)));
        let mut buffer = vec![1; 2 << 20];
        let done = match operation {
            Operation::Read => volume.read_at(0, &mut buffer),
            _ => volume.write_clobbering(0, &mut buffer),
        };
        assert_eq!(done.expect_err("planted").kind(), ErrorKind::Other);
    }
}

#[test]
fn threads_that_share_sectors_do_not_undo_each_other() {
    const THREADS: usize = 4;
    for sector_size in [512, 4096] {
        let (volume, mut model, _) = encrypted(sector_size, LEN);
        // Ranges of odd lengths: every border lies in a sector of two threads.
        let border = |i: usize| (i * (LEN / THREADS) + i * 37).min(LEN);
        for round in 0..60 {
            std::thread::scope(|scope| {
                let volume = &volume;
                let mut rest = &mut model[..];
                for i in 0..THREADS {
                    let start = border(i);
                    let end = if i + 1 == THREADS { LEN } else { border(i + 1) };
                    let (mine, others) = rest.split_at_mut(end - start);
                    rest = others;
                    scope.spawn(move || {
                        let mut dice = Dice((round * THREADS + i) as u64);
                        for _ in 0..6 {
                            let (offset, len) = dice.range(mine.len());
                            let data = noise(len, dice.below(1 << 30));
                            mine[offset..][..len].copy_from_slice(&data);
                            volume.write_clobbering((start + offset) as u64, &mut data.clone()).expect("a good write");
                        }
                        // The ends of the range, where the neighbours write too.
                        for offset in [0, mine.len() - 9] {
                            let data = noise(9, dice.below(1 << 30));
                            mine[offset..][..9].copy_from_slice(&data);
                            volume.write_clobbering((start + offset) as u64, &mut data.clone()).expect("a good write");
                        }
                    });
                }
            });
            let mut all = vec![0; LEN];
            volume.read_at(0, &mut all).expect("a good read");
            assert!(all == model, "round {round}, sectors of {sector_size} bytes");
        }
    }
}

/// Clear, encrypted with two sector sizes, zeros and read-only parts, in another order in the store.
pub fn mixed() -> (Volume, Vec<u8>, Arc<MemoryStore>) {
    let (small, large) = (xts(512, 10), xts(4096, 20));
    let plain = |payload, at, len, stored_at, writable| Segment { at, len, stored_at, payload, writable };
    let segments = vec![
        plain(Payload::Clear, 0, 1000, 40_000, true),
        crypt(1000, 5120, 0, &small, 77, true),
        plain(Payload::Zero, 6120, 3000, 0, false),
        crypt(9120, 8192, 10_000, &large, 1 << 40, true),
        crypt(17_312, 1024, 30_000, &small, 0, false),
        plain(Payload::Clear, 18_336, 100, 35_000, false),
    ];
    let mut bytes = noise(50_000, 42);
    let mut model = noise(18_436, 43);
    model[6120..9120].fill(0);
    for s in &segments {
        let part = &model[s.at as usize..][..s.len as usize];
        match &s.payload {
            Payload::Zero => {}
            Payload::Clear => bytes[s.stored_at as usize..][..part.len()].copy_from_slice(part),
            Payload::Crypt { cipher, first, .. } => {
                let stored = &mut bytes[s.stored_at as usize..][..part.len()];
                stored.copy_from_slice(part);
                cipher.encrypt(*first, stored);
            }
            Payload::Authenticated { .. }
            | Payload::Fixed(_)
            | Payload::KeyProcess(_)
            | Payload::KeyProcessTagged { .. } => {
                unreachable!("none of them is such")
            }
        }
    }
    let store = Arc::new(MemoryStore::new(bytes));
    let layout = Layout::new(segments).expect("a good layout");
    (Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout), model, store)
}

#[test]
fn requests_cross_segments_and_refused_writes_change_nothing() {
    let (volume, mut model, store) = mixed();
    assert_eq!(volume.len(), 18_436);
    let writable = |from: usize, to: usize| {
        // A request of no bytes touches nothing.
        from == to || (to <= 6120 || from >= 9120) && to <= 17_312
    };
    let mut dice = Dice(99);
    let (mut done, mut refused) = (0, 0);
    for round in 0..4000 {
        let (offset, len) = dice.range(model.len());
        if dice.below(2) == 0 {
            let mut out = vec![1; len];
            volume.read_at(offset as u64, &mut out).expect("a good read");
            assert!(out == model[offset..][..len], "{len} bytes at {offset}");
            continue;
        }
        let data = noise(len, round);
        let before = store.to_vec();
        match volume.write_clobbering(offset as u64, &mut data.clone()) {
            Ok(()) => {
                assert!(writable(offset, offset + len), "{len} bytes at {offset}");
                model[offset..][..len].copy_from_slice(&data);
                done += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::PermissionDenied);
                assert!(!writable(offset, offset + len), "{len} bytes at {offset}");
                assert!(store.to_vec() == before, "a refused write changed the store");
                refused += 1;
            }
        }
    }
    assert!(done > 100 && refused > 100);
}

/// Where nothing is stored, only the bytes that are read there can be written. A request with any others changes nothing.
#[test]
fn what_is_not_stored_takes_only_what_it_reads_as() {
    let (fixed, zero, len) = (noise(700, 8), 1300, 3 * 512);
    let cipher = xts(512, 1);
    let none = |payload, at, len| Segment { at, len, stored_at: 0, payload, writable: true };
    let layout = Layout::new(vec![
        crypt(0, len as u64, 0, &cipher, 0, true),
        none(Payload::Fixed(fixed.clone().into()), len as u64, fixed.len() as u64),
        none(Payload::Zero, (len + fixed.len()) as u64, zero as u64),
        crypt((len + fixed.len() + zero) as u64, len as u64, len as u64, &cipher, 3, true),
    ])
    .expect("a good layout");
    let short = none(Payload::Fixed(fixed.clone().into()), 0, 699);
    assert!(Layout::new(vec![short]).is_err(), "fewer bytes than are fixed");
    let part = layout.part(1600, 900).expect("no sector is cut");
    let store = Arc::new(MemoryStore::new(noise(2 * len, 9)));
    let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout);
    let mut model = vec![0; volume.len() as usize];
    volume.read_at(0, &mut model).expect("all of it");
    assert!(model[len..][..fixed.len()] == fixed && model[len + fixed.len()..][..zero].iter().all(|b| *b == 0));
    let nothing = len..len + fixed.len() + zero;
    let mut dice = Dice(5);
    let (mut done, mut refused) = (0, 0);
    for round in 0..2000 {
        let (offset, count) = dice.range(model.len());
        let mut data = noise(count, round);
        // In the part that is not stored, all bytes, all but one, or none are as they are read.
        let keeps = dice.below(3);
        let inside = nothing.start.clamp(offset, offset + count)..nothing.end.clamp(offset, offset + count);
        if keeps > 0 {
            data[inside.start - offset..inside.end - offset].copy_from_slice(&model[inside.clone()]);
        }
        if keeps == 1 && !inside.is_empty() {
            data[inside.start - offset + dice.below(inside.len() as u64) as usize] ^= 1;
        }
        let same = data[inside.start - offset..inside.end - offset] == model[inside];
        let before = store.to_vec();
        let written = volume.write_clobbering(offset as u64, &mut data.clone());
        assert_eq!(written.is_ok(), same, "{count} bytes at {offset}");
        match written {
            Ok(()) => model[offset..][..count].copy_from_slice(&data),
            Err(_) => assert!(store.to_vec() == before, "a refused write changed the store"),
        }
        (done, refused) = if same { (done + 1, refused) } else { (done, refused + 1) };
        let mut read = vec![1; model.len()];
        volume.read_at(0, &mut read).expect("all of it");
        assert!(read == model);
    }
    assert!(done > 100 && refused > 100);
    let mut read = vec![1; 900];
    Volume::new(store, part).read_at(0, &mut read).expect("all of the part");
    assert!(read == model[1600..2500]);
}

#[test]
fn requests_past_the_end_are_refused() {
    let (volume, _, store) = encrypted(512, LEN);
    let before = store.to_vec();
    for (offset, len) in [(LEN as u64, 1), (LEN as u64 - 5, 6), (u64::MAX, 1), (u64::MAX - 3, 4), (1 << 63, 512)] {
        let mut buffer = vec![0; len];
        assert_eq!(volume.read_at(offset, &mut buffer).expect_err("past the end").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(
            volume.write_clobbering(offset, &mut buffer).expect_err("past the end").kind(),
            ErrorKind::UnexpectedEof
        );
    }
    volume.read_at(LEN as u64, &mut []).expect("nothing at the end");
    assert!(store.to_vec() == before);
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let cipher = xts(512, 1);
    let good = || crypt(0, 1024, 0, &cipher, 0, true);
    let bad = [
        vec![Segment { len: 1000, ..good() }],
        vec![Segment { at: 512, ..good() }],
        vec![Segment { len: 0, ..good() }],
        vec![good(), good()],
        vec![good(), Segment { at: 2048, ..good() }],
        vec![Segment { stored_at: u64::MAX - 100, ..good() }],
        vec![Segment { len: u64::MAX - 511, stored_at: 512, ..good() }],
    ];
    for segments in bad {
        assert!(Layout::new(segments).is_err());
    }
    let two = Layout::new(vec![good(), Segment { at: 1024, ..good() }]).expect("a good layout");
    assert!(!two.read_only().segments().iter().any(|s| s.writable));
}

#[test]
fn a_volume_whose_writes_fail_says_so() {
    let (_, _, store) = encrypted(512, LEN);
    let cipher = xts(512, 1);
    for nth in 0..3 {
        let fault = Fault { operation: Operation::Write, nth, for_good: true, transferred: 7 };
        let faulty = Arc::new(FaultStore::new(Arc::clone(&store) as Arc<dyn Store>, Some(fault)));
        let layout = Layout::new(vec![crypt(0, LEN as u64, AT, &cipher, FIRST, true)]).expect("a good layout");
        let volume = Volume::new(Arc::clone(&faulty) as Arc<dyn Store>, layout);
        // Head, middle and tail are one write each.
        let done = volume.write_clobbering(100, &mut vec![9; 2000]);
        assert!(done.is_err());
        assert_eq!(faulty.count(Operation::Write), nth + 1, "it stops at the first failure");
    }
}

/// A store in which a write becomes visible bit by bit, as it may in a file.
struct Gradual(Arc<MemoryStore>);

impl Store for Gradual {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        for (i, part) in data.chunks_mut(64).enumerate() {
            self.0.write_clobbering(offset + 64 * i as u64, part)?;
            std::thread::yield_now();
        }
        Ok(())
    }
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// In CBC one byte changes the ciphertext of all that follows in its sector.
#[test]
fn bytes_beside_those_that_are_written_read_as_they_are() {
    let key = AES.with_key(&noise(32, 1), Acceleration::On);
    let cipher: Arc<dyn SectorCipher> = Arc::new(TrueCryptCbc::outer(vec![key], &[5; 32], 512));
    let mut stored = vec![7; 512];
    cipher.encrypt(0, &mut stored);
    let store = Arc::new(Gradual(Arc::new(MemoryStore::new(stored))));
    let volume = Volume::new(store, Layout::new(vec![crypt(0, 512, 0, &cipher, 0, true)]).expect("a good layout"));
    std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| (0..2000u32).for_each(|i| volume.write_clobbering(0, &mut [i as u8]).expect("written")));
        while !writer.is_finished() {
            let mut beside = [0; 4];
            // The first block of a part depends on the last of the part before.
            volume.read_at(448, &mut beside).expect("read");
            assert_eq!(beside, [7; 4]);
        }
    });
}

/// A volume of `LEN` bytes with a protected range, its plaintext, and the store below it.
fn protected(range: std::ops::Range<u64>) -> (Volume, Vec<u8>, Arc<MemoryStore>) {
    let (_, plain, store) = encrypted(512, LEN);
    let layout = Layout::new(vec![crypt(0, LEN as u64, AT, &xts(512, 1), FIRST, true)]).expect("a good layout");
    (Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout.with_protected(range)), plain, store)
}

#[test]
fn a_write_that_touches_a_protected_sector_is_refused_whole() {
    let range = 8192..16384u64;
    // Inside, over an end, all of it, a part of a sector of it, and far before with a tail in it.
    let hits = [(9000, 1), (8192, 512), (16383, 1), (0, LEN), (8191, 2), (16000, 5000), (100, 9000), (8191, 8194)];
    for (at, count) in hits {
        let (volume, plain, store) = protected(range.clone());
        let before = store.to_vec();
        assert!(volume.writable() && !volume.damage_prevented());
        let error = volume.write_clobbering(at, &mut vec![1; count]).expect_err("it touches");
        assert!(error.kind() != ErrorKind::PermissionDenied, "an I/O error: {error}");
        assert!(store.to_vec() == before, "{count} bytes at {at}: something was written");
        assert!(volume.damage_prevented() && !volume.writable());
        let error = volume.write_clobbering(20_000, &mut [1; 100]).expect_err("nothing is written any more");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(store.to_vec() == before);
        let mut all = vec![0; LEN];
        volume.read_at(0, &mut all).expect("reading goes on");
        assert!(all == plain);
    }
    for (at, count) in [(0, 8192), (16384, 512), (8191, 1), (16384, 1), (9000, 0), (0, 1), (LEN as u64 - 1, 1)] {
        let (volume, mut plain, _) = protected(range.clone());
        volume.write_clobbering(at, &mut vec![1; count]).expect("beside it");
        plain[at as usize..at as usize + count].fill(1);
        let mut all = vec![0; LEN];
        volume.read_at(0, &mut all).expect("it can be read");
        assert!(all == plain && !volume.damage_prevented());
    }
}

#[test]
fn a_sector_with_one_protected_byte_is_protected() {
    for range in [8200..8201u64, 8703..8705] {
        for (at, hit) in [(8191, false), (8192, true), (8703, true), (9216, false), (8704, range.end > 8704)] {
            let (volume, ..) = protected(range.clone());
            assert_eq!(volume.write_clobbering(at, &mut [1]).is_err(), hit, "{at} beside {range:?}");
        }
    }
    // A segment in the clear can be written from any byte to any byte.
    let store = Arc::new(MemoryStore::new(vec![0; 1000]));
    let layout = Layout::clear(1000).expect("a layout").with_protected(500..600).with_protected(700..700);
    let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout);
    for at in [499, 600, 700] {
        volume.write_clobbering(at, &mut [1]).expect("beside it");
    }
    volume.write_clobbering(599, &mut [1]).expect_err("in it");
}

#[test]
fn once_a_write_was_refused_no_other_changes_anything() {
    for seed in 0..20 {
        let (volume, _, store) = protected(40_000..50_000);
        std::thread::scope(|threads| {
            for n in 0..3u64 {
                let volume = &volume;
                threads.spawn(move || {
                    let mut dice = Dice(seed * 10 + n);
                    while !volume.damage_prevented() {
                        let (at, count) = dice.range(39_000);
                        let _ = volume.write_clobbering(at as u64, &mut vec![n as u8; count]);
                    }
                });
            }
            std::thread::yield_now();
            let error = volume.write_clobbering(45_000, &mut [9; 10]).expect_err("it touches");
            // From the moment on that the refusal has returned.
            let then = store.to_vec();
            assert!(volume.damage_prevented(), "{error}");
            for _ in 0..20 {
                std::thread::yield_now();
                assert!(store.to_vec() == then, "something was written after the refusal");
            }
        });
    }
}

#[test]
fn that_damage_was_prevented_shows_through_other_stores() {
    let (volume, ..) = protected(0..512);
    let volume = Arc::new(volume);
    let slice = SliceStore::new(Arc::clone(&volume) as Arc<dyn Store>, 100, 1000).expect("a slice");
    let above = Volume::new(Arc::new(slice), Layout::clear(1000).expect("a layout"));
    assert!(!above.damage_prevented() && above.writable());
    above.write_clobbering(0, &mut [1]).expect_err("protected");
    assert!(above.damage_prevented() && Arc::clone(&volume).damage_prevented() && !above.writable());
}

/// Any part of a volume of three kinds of segments, in a store in which it begins later, holds what the volume holds there.
#[test]
fn a_part_of_a_volume_is_a_volume() {
    let cipher = xts(512, 1);
    let (clear, zero, len) = (1000, 5000, 20 * 512);
    let plain = noise(len, 2);
    let mut stored = plain.clone();
    cipher.encrypt(FIRST, &mut stored);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new([noise(clear, 3), stored].concat()));
    let layout = Layout::new(vec![
        Segment { at: 0, len: clear as u64, stored_at: 0, payload: Payload::Clear, writable: false },
        Segment { at: clear as u64, len: zero, stored_at: 0, payload: Payload::Zero, writable: false },
        crypt(clear as u64 + zero, len as u64, clear as u64, &cipher, FIRST, true),
    ])
    .expect("a good layout");
    let whole = [noise(clear, 3), vec![0; zero as usize], plain].concat();
    let encrypted = clear + zero as usize;
    let mut dice = Dice(9);
    let mut cut = 0;
    for _ in 0..500 {
        let (offset, count) = dice.range(whole.len());
        let (from, to) = (offset.max(encrypted), (offset + count).max(encrypted));
        let aligned = [from, to].iter().all(|at| (at - encrypted).is_multiple_of(512));
        let part = layout.part(offset as u64, count as u64);
        assert_eq!(part.is_ok(), aligned || from == to, "{count} bytes from {offset}");
        let Ok(part) = part else { continue };
        cut += 1;
        let writable = part.segments().iter().filter(|s| s.writable).map(|s| s.len).sum::<u64>();
        assert_eq!(writable, (to - from) as u64);
        let mut read = vec![0; count];
        Volume::new(Arc::clone(&store), part).read_at(0, &mut read).expect("all of the part");
        assert!(read == whole[offset..offset + count], "{count} bytes from {offset}");
    }
    assert!(cut > 20, "{cut} parts");
    assert!(layout.part(1, whole.len() as u64).is_err() && layout.part(u64::MAX, 2).is_err());

    let before = noise(12_345, 4);
    let mut all = vec![0; store.len() as usize];
    store.read_at(0, &mut all).expect("the store");
    let later: Arc<dyn Store> = Arc::new(MemoryStore::new([before, all].concat()));
    let moved = layout.part(0, whole.len() as u64).and_then(|l| l.moved(12_345)).expect("a good layout");
    let mut read = vec![0; whole.len()];
    Volume::new(later, moved).read_at(0, &mut read).expect("all of it");
    assert!(read == whole);
    assert!(layout.moved(u64::MAX - 100).is_err());
}

#[test]
fn a_volume_shows_the_largest_of_its_sectors() {
    let (small, large) = (xts(512, 1), xts(4096, 2));
    let clear = |at, len| Segment { at, len, stored_at: at, payload: Payload::Clear, writable: true };
    for (segments, size) in [
        (vec![clear(0, 8192)], 512),
        (vec![crypt(0, 8192, 0, &small, 0, true)], 512),
        (vec![crypt(0, 8192, 0, &large, 0, true)], 4096),
        // As during a re-encryption from one to the other.
        (vec![crypt(0, 8192, 0, &large, 0, true), crypt(8192, 4096, 8192, &small, 0, true)], 4096),
        // A disk is made of whole sectors.
        (vec![crypt(0, 8192, 0, &large, 0, true), clear(8192, 1024)], 1024),
        (vec![clear(0, 1), crypt(1, 4096, 1, &large, 0, true)], 512),
    ] {
        let layout = Layout::new(segments).expect("a good layout");
        let len = layout.len();
        assert_eq!(layout.sector_size(), size, "{layout:?}");
        let volume: Arc<dyn Store> = Arc::new(Volume::new(Arc::new(MemoryStore::new(vec![0; len as usize])), layout));
        assert_eq!(volume.sector_size(), size);
        let slice = |start, len| SliceStore::new(Arc::clone(&volume), start, len).map(|slice| slice.sector_size());
        if size == 4096 {
            assert_eq!(
                (slice(0, 4096).ok(), slice(4096, 4096).ok(), slice(1024, 4096).ok()),
                (Some(4096), Some(4096), Some(1024))
            );
        }
    }
}

/// A volume in a store that is twice as long, and one that had this length from the beginning.
#[test]
fn a_grown_volume_is_one_of_that_length() {
    for sector in [512, 4096] {
        let cipher = xts(sector, 1);
        let noise = noise(AT as usize + 2 * LEN + 999, 4);
        let volume = |len: usize, protected: std::ops::Range<u64>| {
            let store = Arc::new(MemoryStore::new(noise.clone()));
            let layout = Layout::new(vec![crypt(0, len as u64, AT, &cipher, FIRST, true)]).expect("a good layout");
            let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout.with_protected(protected));
            (volume, store)
        };
        let ((grown, below), (whole, expected)) = (volume(LEN, 0..0), volume(2 * LEN, 0..0));
        let (len, sector) = (LEN as u64, sector as u64);
        let growth = |len, rehearse| Growth { start: AT, len, rehearse };
        let another = Growth { start: AT + 512, ..growth(2 * len, true) };
        assert!(grown.grow(&another).expect_err("another volume").to_string().contains("another volume"));
        for (to, why) in [
            (len - sector, "can only grow"),
            (len + 1, "whole sectors"),
            (2 * len + 4096, "file has not grown"),
            (u64::MAX / 4096 * 4096, "file has not grown"),
        ] {
            let error = grown.grow(&growth(to, false)).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        grown.grow(&growth(2 * len, true)).expect("it could");
        assert_eq!(grown.len(), len);
        grown.grow(&growth(2 * len, false)).expect("there is room");
        grown.grow(&growth(2 * len, false)).expect("it has that size");
        assert_eq!(grown.len(), 2 * len);
        let mut dice = Dice(sector);
        for _ in 0..300 {
            let (offset, count) = dice.range(2 * LEN);
            let mut written = vec![dice.below(256) as u8; count];
            whole.write_clobbering(offset as u64, &mut written.clone()).expect("inside");
            grown.write_clobbering(offset as u64, &mut written).expect("inside");
            let (mut a, mut b) = (vec![0; count], vec![1; count]);
            whole.read_at(offset as u64, &mut a).and_then(|()| grown.read_at(offset as u64, &mut b)).expect("inside");
            assert!(a == b);
        }
        assert!(below.to_vec() == expected.to_vec());
        assert!(grown.read_at(2 * len, &mut [0]).is_err());
        let (protecting, _) = volume(LEN, 4096..8192);
        assert!(protecting.grow(&growth(2 * len, true)).is_err(), "the hidden volume's header would be lost");
    }
}
