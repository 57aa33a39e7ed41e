//! BitLocker volumes in every state: what is read, what may be written, and what is said about it.

use std::ops::Range;
use std::sync::Arc;

use crate::support::*;
use claviger_engine::formats::{self, Format, ReencryptionRequest, Towards, bitlocker::BITLOCKER};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, ErrorKind, Result, Secret, Store, Unlock, Unlocked, Volume};
use claviger_testkit::bitlocker::crypto::Method;
use claviger_testkit::bitlocker::damage::ALL;
use claviger_testkit::bitlocker::eow::{EncryptOnWrite, IDENTIFIER};
use claviger_testkit::bitlocker::maker::{self, Kind, Made, Protector, State};
use claviger_testkit::fsx::{Plan, StoreDisk, exercise, seed};

const LOST: &str = "Read-only: the encryption bitmaps are lost";

/// A volume that opens without a password: none has to be stretched.
fn clear(volume: maker::Volume) -> Made {
    let protectors = if volume.state == State::Decrypted { Vec::new() } else { vec![Protector::ClearKey] };
    maker::Volume { protectors, ..volume }.make()
}

fn two_mib(kind: Kind) -> maker::Volume {
    maker::Volume { size: 2 << 20, ..maker::Volume::new(kind) }
}

fn windows8() -> maker::Volume {
    two_mib(Kind::Windows8)
}

fn store(bytes: &[u8]) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(bytes.to_vec()))
}

fn opened(store: &Arc<dyn Store>, with: &Unlock<'_>) -> Result<Unlocked> {
    formats::open(store, Some("BitLocker"))?.1.unlock(with)
}

/// The volume and its warnings, as they are opened without any credential.
#[track_caller]
fn open(store: &Arc<dyn Store>) -> (Volume, Vec<String>) {
    let unlocked = opened(store, &Unlock::with(&[])).unwrap_or_else(|e| panic!("{e}"));
    let warnings = unlocked.warnings.iter().map(|warning| warning.what.clone()).collect();
    (Volume::new(Arc::clone(store), unlocked.layout), warnings)
}

#[track_caller]
fn reads(made: &Made) -> (Volume, Vec<String>) {
    let (volume, warnings) = open(&store(&made.image));
    let read = all_of(&volume);
    let wrong = (0..read.len()).find(|at| read[*at] != made.plaintext[*at]);
    assert_eq!((read.len(), wrong), (made.plaintext.len(), None), "{:?}, {warnings:?}", made.volume);
    (volume, warnings)
}

#[test]
fn every_state_reads_right_and_is_written_where_that_is_safe() {
    let all = [Kind::Windows7, Kind::Windows8, Kind::ToGo, Kind::Vista];
    for kind in all {
        let made = clear(two_mib(kind));
        let (volume, warnings) = reads(&made);
        assert!(volume.writable(), "{kind:?}");
        assert!(!verify_says_unfinished(&made), "{kind:?}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("suspended"), "{warnings:?}");
    }
    for (current, next, writable) in
        [(5, 4, true), (5, 1, true), (3, 4, true), (3, 1, true), (2, 4, false), (2, 1, false)]
    {
        // Before the header's place, in it, and after it.
        for watermark in [0x6_0000, 0x9_0000, 0x9_1000, 0x14_0000, 0] {
            let state = State::HalfWay { current, next, watermark };
            if current == 2 && matches!(watermark, 0 | 0x9_0000 | 0x9_1000) {
                continue;
            }
            for kind in [Kind::Windows8, Kind::Vista] {
                let made = clear(maker::Volume { state, ..two_mib(kind) });
                let (volume, warnings) = reads(&made);
                // Vista seals nothing, so that nothing tells who says that a part is in clear.
                assert_eq!(volume.writable(), writable && kind != Kind::Vista, "{state:?}, {warnings:?}");
                let said = if writable { "only partly encrypted" } else { "interrupted" };
                assert!(warnings.iter().any(|warning| warning.contains(said)), "{warnings:?}");
                assert!(verify_says_unfinished(&made), "{state:?} {kind:?}");
            }
        }
    }
    let unused = vec![0x2_0000..0x2_8000, 0x1f_0000..0x20_0000];
    reads(&clear(maker::Volume { unused, ..windows8() }));
}

fn verify_says_unfinished(made: &Made) -> bool {
    let editor = BITLOCKER.editor().expect("it has one");
    let verified = editor.verify(&*store(&made.image), &Unlock::with(&[])).expect("it opens");
    verified.warnings.iter().any(|warning| warning.what.contains("is not finished"))
}

#[test]
fn decrypted_volumes_need_no_key_and_are_written_only_when_asked_for() {
    let made = clear(maker::Volume { state: State::Decrypted, ..windows8() });
    let (volume, warnings) = reads(&made);
    assert!(!volume.writable() && warnings[0].contains("decrypted"), "{warnings:?}");
    let store = store(&made.image);
    let with = Unlock { write_unencrypted: true, ..Unlock::with(&[]) };
    let volume = Volume::new(Arc::clone(&store), opened(&store, &with).expect("it opens").layout);
    assert!(volume.writable());
    // The beginning is still somewhere else.
    volume.write_clobbering(0, &mut [7; 512]).expect("a write");
    let mut first = [0; 512];
    store.read_at(made.layout.header.start, &mut first).expect("the header's place");
    assert_eq!(first, [7; 512]);
    // A password that is given all the same does no harm.
    opened(&store, &Unlock::with(&[passphrase("whatever")])).expect("it opens");
}

#[test]
fn sectors_of_4096_bytes_and_all_methods() {
    for method in Method::ALL {
        for sector_size in [512, 4096] {
            let tail = method == Method::Xts128 || method == Method::Xts256;
            let state = State::HalfWay { current: 3, next: 4, watermark: 0xe_0000 };
            let made = clear(maker::Volume { method, sector_size, tail, state, size: 1 << 20, ..windows8() });
            let (volume, _) = reads(&made);
            assert_eq!(volume.sector_size(), sector_size);
        }
    }
}

fn on_write(plain: &[u64]) -> EncryptOnWrite {
    EncryptOnWrite { chunk: 0x1_0000, regions: 1, plain: plain.into(), under_way: None }
}

fn with_bitmaps(on_write: EncryptOnWrite) -> maker::Volume {
    maker::Volume { encrypt_on_write: Some(on_write), ..windows8() }
}

#[test]
fn bitmaps_say_what_is_encrypted() {
    let all = [
        on_write(&(8..16).collect::<Vec<_>>()),
        on_write(&[3, 4, 9, 30]),
        on_write(&(0..32).collect::<Vec<_>>()),
        EncryptOnWrite { regions: 3, ..on_write(&[3, 4, 11, 20, 21, 31]) },
        EncryptOnWrite { chunk: 0x8000, regions: 5, ..on_write(&[0, 63]) },
    ];
    for on_write in all {
        for sector_size in [512, 4096] {
            let (volume, warnings) = reads(&clear(maker::Volume { sector_size, ..with_bitmaps(on_write.clone()) }));
            assert!(!volume.writable());
            assert!(warnings.iter().any(|warning| warning.contains("Only Windows can write")), "{warnings:?}");
        }
    }
    for regions in [1, 4] {
        let made = clear(with_bitmaps(EncryptOnWrite { regions, ..on_write(&[]) }));
        let (volume, warnings) = reads(&made);
        assert!(volume.writable() && warnings.len() == 1, "{warnings:?}");
        // The regions that record the encryption cannot be written.
        for at in made.layout.encrypt_on_write.as_ref().expect("it has bitmaps").information {
            volume.write_clobbering(at, &mut [1; 16]).expect_err("a write into the information");
        }
    }
}

#[test]
fn the_log_says_which_sectors_of_a_chunk_are_converted() {
    for (sector_size, sectors) in [(512, 128), (4096, 16)] {
        for chunk in [9, 31] {
            for (plain, converted) in
                [(true, 0), (true, 1), (true, 7), (true, sectors), (false, 1), (false, sectors - 1)]
            {
                let plain: &[u64] = if plain { &[9, 12, 31] } else { &[12] };
                let regions = chunk / 10;
                let on_write =
                    EncryptOnWrite { under_way: Some((chunk, converted)), regions: 1 + regions, ..on_write(plain) };
                let (volume, _) = reads(&clear(maker::Volume { sector_size, ..with_bitmaps(on_write) }));
                assert!(!volume.writable(), "a chunk is under way");
            }
        }
    }
}

/// Zeros in place of some bytes.
fn wiped(made: &Made, ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<u8> {
    let mut image = made.image.clone();
    ranges.into_iter().for_each(|range| image[range.start as usize..range.end as usize].fill(0));
    image
}

#[test]
fn where_bitmaps_are_lost_the_header_is_read() {
    // The header's place is in chunk 9: encrypted, or in clear.
    for plain in [&[][..], &[9], &[9, 10, 11]] {
        let made = clear(with_bitmaps(on_write(plain)));
        let eow = made.layout.encrypt_on_write.clone().expect("it has bitmaps");
        let information = eow.information.map(|at| at..at + eow.information_len);
        let bitmaps = eow.bitmaps.iter().map(|at| *at..at + eow.bitmap_len);
        for image in [wiped(&made, information), wiped(&made, bitmaps)] {
            let (volume, warnings) = open(&store(&image));
            assert!(warnings.iter().any(|warning| warning.starts_with(LOST)), "{warnings:?}");
            assert!(!volume.writable());
            let mut header = vec![0; 0x2000];
            volume.read_at(0, &mut header).expect("the header");
            assert!(header == made.plaintext[..0x2000], "{plain:?}");
            all_of(&volume);
        }
    }
}

#[test]
fn one_copy_of_what_records_the_encryption_is_enough() {
    let made = clear(with_bitmaps(EncryptOnWrite { regions: 2, ..on_write(&[3, 9, 20]) }));
    let eow = made.layout.encrypt_on_write.clone().expect("it has bitmaps");
    for at in eow.information {
        for byte in [0, 9, 12, 20, 40, 57] {
            let mut image = made.image.clone();
            image[at as usize + byte] ^= 0x40;
            let (volume, _) = open(&store(&image));
            assert!(all_of(&volume) == made.plaintext, "byte {byte} of the information at {at}");
        }
    }
    // Both records of a bitmap are damaged.
    for (region, at) in eow.bitmaps.iter().enumerate() {
        let mut image = made.image.clone();
        for record in 1..=2 {
            image[*at as usize + record * 512 + 36] ^= 1;
        }
        let (volume, warnings) = open(&store(&image));
        let said: Vec<_> =
            warnings.iter().filter(|warning| warning.starts_with("Read-only: the bitmaps for bytes")).collect();
        assert_eq!(said.len(), 1, "region {region}: {warnings:?}");
        assert!(!volume.writable());
    }
    let log = eow.logs[1] as usize;
    let mut image = made.image.clone();
    image[log] ^= 1;
    let (volume, warnings) = open(&store(&image));
    assert!(warnings.iter().any(|warning| warning.contains("an encryption log cannot be read")), "{warnings:?}");
    assert!(!volume.writable());
}

#[test]
fn volumes_that_are_cut_short_are_opened_only_when_asked_for() {
    let made = clear(windows8());
    let cut = &made.image[..made.image.len() - 4096];
    let store = store(cut);
    let error = opened(&store, &Unlock::with(&[])).err().expect("it is cut short");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
    let with = Unlock { truncated: true, ..Unlock::with(&[]) };
    let volume = Volume::new(Arc::clone(&store), opened(&store, &with).expect("it opens").layout);
    assert!(!volume.writable());
    let mut read = vec![0; 0x1f_0000];
    volume.read_at(0, &mut read).expect("what is there");
    assert!(read == made.plaintext[..read.len()]);
    volume.read_at(made.image.len() as u64 - 512, &mut read[..512]).expect_err("what is not there");
}

#[test]
fn the_keys_themselves_open() {
    let made = windows8().make();
    let store = store(&made.image);
    for key in [&made.vmk[..], &made.fvek] {
        let key = [Credential::VolumeKey(Secret::copy_from(key))];
        let volume = Volume::new(Arc::clone(&store), opened(&store, &Unlock::with(&key)).expect("it opens").layout);
        assert!(all_of(&volume) == made.plaintext);
    }
    let key = [Credential::VolumeKey(Secret::copy_from(&[1; 7]))];
    let error = opened(&store, &Unlock::with(&key)).err().expect("a key of seven bytes");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
}

/// The ranges that cannot be written.
fn reserved(made: &Made) -> Vec<Range<u64>> {
    let mut reserved = made.layout.reserved();
    reserved.sort_by_key(|range| range.start);
    reserved
}

#[test]
fn reserved_places_take_zeros_and_nothing_else() {
    for kind in [Kind::Windows8, Kind::ToGo, Kind::Vista] {
        let made = clear(two_mib(kind));
        let memory = Arc::new(MemoryStore::new(made.image.clone()));
        let (volume, _) = open(&(Arc::clone(&memory) as Arc<dyn Store>));
        let ranges: Vec<_> = reserved(&made).into_iter().filter(|range| !range.is_empty()).collect();
        for range in ranges {
            let mut read = vec![1; (range.end - range.start) as usize];
            volume.read_at(range.start, &mut read).expect("a read");
            assert!(read.iter().all(|byte| *byte == 0), "{kind:?}: {range:x?} reads as zeros");
            volume.write_clobbering(range.start, &mut read).expect("zeros may be written");
            // One byte at either end of it, in a request that begins or ends outside.
            let outside = range.start - 700;
            for (at, len) in
                [(outside, 701), (range.end - 1, 700), (range.start, 1), (outside, range.end - outside + 9)]
            {
                let mut data = vec![0x55; len as usize];
                volume.write_clobbering(at, &mut data).expect_err("it is reserved");
            }
            assert!(memory.to_vec() == made.image, "{kind:?}: nothing was written for {range:x?}");
        }
    }
}

/// Random operations between what is reserved, and zeros over it.
#[test]
fn volumes_hold_what_was_written_around_what_is_reserved() {
    let half_way = State::HalfWay { current: 3, next: 4, watermark: 0x8_8200 };
    for (state, sector_size) in [(State::Encrypted, 512), (State::Encrypted, 4096), (half_way, 512)] {
        let made = clear(maker::Volume { state, sector_size, size: 1 << 20, ..windows8() });
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new(made.image.clone()));
        let mut from = 0;
        for range in reserved(&made).into_iter().chain(std::iter::once(made.volume.size..made.volume.size)) {
            let window = from..range.start;
            from = range.end;
            if window.is_empty() {
                continue;
            }
            let mut model = made.plaintext[window.start as usize..window.end as usize].to_vec();
            let open = || {
                let (volume, _) = open(&memory);
                let len = window.end - window.start;
                let slice =
                    claviger_engine::store::SliceStore::new(Arc::new(volume), window.start, len).expect("it fits");
                Ok(Arc::new(slice) as Arc<dyn Store>)
            };
            let mut disk = StoreDisk::new(open).expect("it opens");
            exercise(&mut disk, &mut model, &Plan::operations(seed(), 800)).unwrap_or_else(|f| panic!("{f}"));
        }
        let (volume, _) = open(&memory);
        for range in reserved(&made) {
            let mut read = vec![1; (range.end - range.start) as usize];
            volume.read_at(range.start, &mut read).expect("a read");
            assert!(read.iter().all(|byte| *byte == 0));
        }
        let mut metadata = vec![0; made.layout.metadata_len as usize];
        for at in made.layout.metadata {
            memory.read_at(at, &mut metadata).expect("a copy");
            assert!(metadata == made.image[at as usize..][..metadata.len()], "the copy at {at} is as it was");
        }
    }
}

#[test]
fn the_boot_sector_says_which_kind_it_is() {
    let made = clear(with_bitmaps(on_write(&[])));
    assert_eq!(made.image[160..176], IDENTIFIER);
    let store = store(&made.image);
    let (_, header) = formats::open(&store, None).expect("a volume");
    let about = described(&*header);
    assert_eq!(about["made_by"], "Windows 10 or later, encrypt-on-write");
}

/// All copies of the metadata, sealed by somebody with the key, say another state and how much is encrypted.
fn saying(mut made: Made, state: u8, next: u8, encrypted: u64) -> Made {
    made.edit_block(&ALL, |block| {
        block[12..16].copy_from_slice(&[state, 0, next, 0]);
        block[16..24].copy_from_slice(&encrypted.to_le_bytes());
    });
    made
}

#[test]
fn where_nothing_is_said_to_be_encrypted_the_data_are_looked_at() {
    let plain = State::HalfWay { current: 3, next: 4, watermark: 0 };
    let kinds = [(Kind::Windows7, 512), (Kind::Windows8, 512), (Kind::Windows8, 4096), (Kind::ToGo, 512)];
    for (kind, sector_size) in kinds {
        let volume = |state| clear(maker::Volume { state, sector_size, size: 1 << 20, ..two_mib(kind) });
        // Metadata that other programs take for encrypted, and contradictory ones.
        let contradictions = [
            saying(volume(State::Encrypted), 4, 4, 0),
            saying(volume(State::Encrypted), 5, 4, 0),
            saying(volume(State::Encrypted), 3, 1, 0),
            saying(volume(plain), 4, 4, 0),
        ];
        for made in contradictions {
            let (volume, warnings) = reads(&made);
            assert!(!volume.writable(), "{kind:?}");
            assert!(warnings.iter().any(|warning| warning.contains("verything is read as")), "{warnings:?}");
            for towards in [Some(Towards::Plain), Some(Towards::Encrypted), None] {
                let store = store(&made.image);
                let converter = BITLOCKER.in_place_converter().expect("it converts");
                let refused = converter
                    .conversion((&store).into(), &Unlock::with(&[]), towards, &ReencryptionRequest::default())
                    .map(drop);
                assert!(refused.is_err(), "{kind:?}, {towards:?}");
            }
        }
        let (volume, _) = reads(&volume(plain));
        assert!(volume.writable(), "{kind:?}: what begins so is no contradiction");
    }
}

#[test]
fn what_says_that_it_is_decrypted_and_is_not_is_never_written() {
    for kind in [Kind::Windows8, Kind::ToGo] {
        let made = saying(clear(two_mib(kind)), 1, 1, 0);
        reads(&made);
        let store = store(&made.image);
        let with = Unlock { write_unencrypted: true, ..Unlock::with(&[]) };
        let unlocked = opened(&store, &with).expect("it opens");
        assert!(unlocked.warnings.iter().any(|warning| warning.what.contains("read-only")), "{kind:?}");
        assert!(!Volume::new(Arc::clone(&store), unlocked.layout).writable(), "{kind:?}");
    }
}
