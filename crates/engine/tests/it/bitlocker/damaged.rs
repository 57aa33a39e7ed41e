//! BitLocker volumes that are damaged, or made to do harm: what still opens, what is said, what is mended, and what is never written.

use std::sync::Arc;

use crate::support::*;
use claviger_engine::formats::{self, HeaderEditor, Prepared, Verdict};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Error, ErrorKind, Payload, Result, Secret, Store, Unlock, Unlocked, Volume};
use claviger_testkit::bitlocker::eow::EncryptOnWrite;
use claviger_testkit::bitlocker::maker::{self, Kind, Made, Protector, State};
use claviger_testkit::bitlocker::metadata::{Datum, HEADERS, Nonces, Seal, set_datums, validation};

/// A volume of a MiB that opens without a password: none has to be stretched.
fn volume(kind: Kind) -> maker::Volume {
    maker::Volume { size: 1 << 20, protectors: vec![Protector::ClearKey], ..maker::Volume::new(kind) }
}

/// One that no one opens without the key.
fn locked(kind: Kind) -> Made {
    maker::Volume { protectors: vec![Protector::StartupKey], ..volume(kind) }.make()
}

fn editor() -> &'static dyn HeaderEditor {
    formats::by_name("BitLocker").expect("it is in the table").editor().expect("it has an editor")
}

fn store(bytes: &[u8]) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(bytes.to_vec()))
}

fn opened(store: &Arc<dyn Store>, with: &[Credential]) -> Result<Unlocked> {
    formats::open(store, Some("BitLocker"))?.1.unlock(&Unlock::with(with))
}

fn vmk(made: &Made) -> [Credential; 1] {
    [Credential::VolumeKey(Secret::copy_from(&made.vmk))]
}

/// Whether it reads right and may be written, and what is said.
#[track_caller]
fn reads(image: &[u8], made: &Made) -> (bool, Vec<String>) {
    let store = store(image);
    let unlocked = opened(&store, &vmk(made)).unwrap_or_else(|e| panic!("{e}"));
    let warnings = unlocked.warnings.iter().map(|warning| warning.what.clone()).collect();
    let volume = Volume::new(store, unlocked.layout);
    assert!(all_of(&volume) == made.plaintext, "it reads right");
    (volume.writable(), warnings)
}

/// The prepared repair, and the volume after it.
fn repaired(image: &[u8], with: &[Credential]) -> Result<(Prepared, Vec<u8>)> {
    let memory = MemoryStore::new(image.to_vec());
    let prepared = editor().repair(&memory, Some(&Unlock::with(with)), &[])?;
    assert!(memory.to_vec() == image, "nothing is written before it is carried out");
    prepared.edit.carry_out(&memory)?;
    Ok((prepared, memory.to_vec()))
}

/// The block and the whole place of a copy.
fn block(made: &Made, copy: usize) -> Vec<u8> {
    let area = &made.image[made.layout.metadata[copy] as usize..];
    let unit = if area[10] == 1 { 1 } else { 16 };
    area[..usize::from(u16::from_le_bytes([area[8], area[9]])) * unit].to_vec()
}

/// Puts a block into a copy's place, with a checksum that is right. `seal` makes what is after it, too.
fn put(image: &mut [u8], made: &Made, copy: usize, block: &[u8], seal: Option<Seal>) {
    let area = made.layout.metadata_len as usize;
    let place = &mut image[made.layout.metadata[copy] as usize..][..area];
    let end = block.len().min(area - 8);
    place[..end].copy_from_slice(&block[..end]);
    match seal {
        Some(seal) => {
            let behind = validation(block, block, area, seal, &mut Nonces::default());
            let len = behind.len().min(area - end);
            place[end..end + len].copy_from_slice(&behind[..len]);
        }
        None => place[end + 4..end + 8].copy_from_slice(&crc32fast(block)),
    }
}

fn crc32fast(bytes: &[u8]) -> [u8; 4] {
    // The CRC in front of which size and version stand.
    validation(bytes, bytes, 0, Seal::None, &mut Nonces::default())[4..8].try_into().expect("four bytes")
}

/// The label with another letter.
fn relabelled(made: &Made, letter: u8) -> Vec<u8> {
    let mut block = block(made, 0);
    let label: Vec<u8> = "HOST".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let at = block.windows(label.len()).position(|bytes| bytes == label).expect("the label");
    block[at] = letter;
    block
}

const PAIRS: [&[usize]; 6] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2]];

#[test]
fn copies_with_a_wrong_checksum_are_told_and_mended() {
    for kind in [Kind::Windows7, Kind::Windows8, Kind::ToGo, Kind::Vista] {
        let made = locked(kind);
        for copies in PAIRS {
            // Vista's first sector knows the first copy alone.
            if kind == Kind::Vista && copies.contains(&0) {
                continue;
            }
            for byte in [0, 9, 70, 130, 200] {
                let mut image = made.image.clone();
                copies.iter().for_each(|copy| image[made.layout.metadata[*copy] as usize + byte] ^= 0x11);
                let (_, warnings) = reads(&image, &made);
                for copy in copies {
                    let said = format!("Copy {} of the metadata is damaged", copy + 1);
                    assert!(warnings.iter().any(|warning| warning.starts_with(&said)), "{warnings:?}");
                }
                let (prepared, after) = repaired(&image, &[]).unwrap_or_else(|e| panic!("{kind:?}, {copies:?}: {e}"));
                assert!(after == made.image, "{kind:?}, {copies:?}, byte {byte}");
                assert_eq!(prepared.edit.steps.len(), copies.len());
            }
        }
        let (prepared, _) = repaired(&made.image, &[]).expect("there is nothing to do");
        assert!(prepared.edit.steps.is_empty() && prepared.warnings.is_empty());
    }
}

#[test]
fn without_a_whole_copy_nothing_is_mended() {
    let made = locked(Kind::Windows8);
    let mut image = made.image.clone();
    made.layout.metadata.iter().for_each(|at| image[*at as usize + 200] ^= 1);
    let error = opened(&store(&image), &vmk(&made)).err().expect("it is damaged");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
    let error = repaired(&image, &vmk(&made)).expect_err("it cannot be repaired");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
}

#[test]
fn copies_that_were_changed_without_the_key_are_told_by_it() {
    let made = locked(Kind::Windows8);
    for copies in PAIRS {
        let mut image = made.image.clone();
        for copy in copies {
            // All different, so that no two copies agree.
            put(&mut image, &made, *copy, &relabelled(&made, b'A' + *copy as u8), None);
        }
        let (writable, warnings) = reads(&image, &made);
        assert!(warnings.iter().any(|warning| warning.contains("copies of the metadata differ")), "{warnings:?}");
        assert_eq!(writable, !copies.contains(&0), "{copies:?}");
        let error = repaired(&image, &[]).expect_err("only the key tells which one is right");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
        let wrong = [Credential::VolumeKey(Secret::copy_from(&[9; 32]))];
        repaired(&image, &wrong).expect_err("another key");
        let (_, after) = repaired(&image, &vmk(&made)).unwrap_or_else(|e| panic!("{copies:?}: {e}"));
        assert!(after == made.image, "{copies:?}");
    }
    // No copy is as it was sealed.
    let mut image = made.image.clone();
    (0..3).for_each(|copy| put(&mut image, &made, copy, &relabelled(&made, b'A' + copy as u8), None));
    let (writable, warnings) = reads(&image, &made);
    assert!(
        !writable && warnings.iter().any(|warning| warning.contains("do not match their sealed hash")),
        "{warnings:?}"
    );
    let error = repaired(&image, &vmk(&made)).expect_err("no copy is proven");
    assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{error}");
    // All are the same: a repair has nothing to do, and nobody advises one.
    (0..3).for_each(|copy| put(&mut image, &made, copy, &relabelled(&made, b'A'), None));
    let (prepared, _) = repaired(&image, &vmk(&made)).expect("there is nothing to do");
    assert!(prepared.edit.steps.is_empty());
    let unlocked = opened(&store(&image), &vmk(&made)).expect("it opens");
    let verified = editor().verify(&*store(&image), &Unlock::with(&vmk(&made))).expect("it opens");
    assert!(verified.damaged);
    for warnings in [unlocked.warnings, verified.warnings] {
        assert!(warnings.iter().any(|warning| warning.what.contains("cannot be repaired")), "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.advice.is_none()), "{warnings:?}");
    }
}

#[test]
fn a_first_sector_that_is_gone_is_made_anew() {
    let on_write = EncryptOnWrite { chunk: 0x1_0000, regions: 2, plain: vec![3, 9], under_way: None };
    let mut all: Vec<maker::Volume> = [Kind::Windows7, Kind::Windows8, Kind::ToGo].map(volume).to_vec();
    all.push(maker::Volume { sector_size: 4096, ..volume(Kind::Windows8) });
    all.push(maker::Volume { encrypt_on_write: Some(on_write), size: 2 << 20, ..volume(Kind::Windows8) });
    for description in all {
        let made = description.make();
        let (_, before) = reads(&made.image, &made);
        for rubbish in [0, 0xf6] {
            let mut image = made.image.clone();
            image[..512].fill(rubbish);
            let verdict = formats::by_name("BitLocker").expect("it is in the table").identify(&*store(&image));
            assert!(matches!(verdict, Ok(Verdict::No(_))), "nothing says what it is");
            let (writable, warnings) = reads(&image, &made);
            assert!(!writable && warnings[0].contains("first sector was overwritten"), "{warnings:?}");
            let (prepared, after) = repaired(&image, &[]).unwrap_or_else(|e| panic!("{description:?}: {e}"));
            assert_eq!(prepared.edit.steps.len(), 1, "{:?}", prepared.edit);
            assert!(after[512..] == made.image[512..]);
            formats::open(&store(&after), None).expect("it is known again");
            assert_eq!(reads(&after, &made).1, before);
        }
    }
}

#[test]
fn others_read_what_was_mended() {
    let protectors = vec![Protector::Password(maker::PASSWORD.into())];
    let made = maker::Volume { protectors, ..volume(Kind::Windows8) }.make();
    let mut image = made.image.clone();
    image[..512].fill(0);
    image[made.layout.metadata[0] as usize + 130] ^= 1;
    let password = [Credential::Passphrase(Secret::copy_from(maker::PASSWORD.as_bytes()))];
    assert!(
        repaired(&image, &[]).is_err_and(|e| matches!(e.kind, ErrorKind::Misuse(_))),
        "nothing tells that they count"
    );
    let (_, image) = repaired(&image, &password).expect("it can be repaired");
    Made { image, ..made }.expect_readers();
}

#[test]
fn a_first_sector_with_wrong_places_is_mended() {
    for kind in [Kind::Windows8, Kind::ToGo, Kind::Vista] {
        let made = volume(kind).make();
        let (at, wrong) = match kind {
            Kind::ToGo => (440, 3),
            Kind::Vista => (56, 1),
            _ => (176, 3),
        };
        for places in [1, wrong] {
            let mut image = made.image.clone();
            image[at..at + 8 * places].fill(0x5a);
            let (_, after) = repaired(&image, &[]).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
            assert!(after == made.image, "{kind:?}");
            reads(&image, &made);
        }
    }
    let made = volume(Kind::Vista).make();
    let mut image = made.image.clone();
    image[..512].fill(0);
    let (prepared, after) = repaired(&image, &[]).expect("the copies are found");
    assert!(prepared.edit.steps.is_empty() && after == image);
    assert!(prepared.warnings[0].what.contains("cannot be rebuilt"), "{:?}", prepared.warnings);
}

#[test]
fn a_repair_that_is_cut_short_leaves_what_opens() {
    let made = locked(Kind::Windows8);
    let mut image = made.image.clone();
    image[..512].fill(0);
    for copy in [0, 2] {
        image[made.layout.metadata[copy] as usize + 130] ^= 1;
    }
    let memory = MemoryStore::new(image);
    let prepared = editor().repair(&memory, Some(&Unlock::with(&vmk(&made))), &[]).expect("one copy is whole");
    assert_eq!(prepared.edit.steps.len(), 3);
    for step in &prepared.edit.steps {
        for cut in [step.bytes.len() / 2, step.bytes.len()] {
            memory.write_clobbering(step.at, &mut step.bytes[..cut].to_vec()).expect("a write");
            reads(&memory.to_vec(), &made);
        }
    }
    assert!(reads(&memory.to_vec(), &made).0);
}

/// An attacker without a key has given an offset within the data as that of a copy of the metadata.
#[test]
fn a_repair_overwrites_no_data_that_unproven_metadata_lead_to() {
    const DATA: u64 = 0x2_0000;
    for kind in [Kind::Windows8, Kind::ToGo, Kind::Vista] {
        let made = locked(kind);
        for copy in 0..3 {
            let mut changed = block(&made, 0);
            changed[32 + 8 * copy..][..8].copy_from_slice(&DATA.to_le_bytes());
            let mut image = made.image.clone();
            (0..3).for_each(|copy| put(&mut image, &made, copy, &changed, None));
            if let Some(first) = [(Kind::Windows8, 176), (Kind::ToGo, 440)].iter().find(|(of, _)| *of == kind) {
                image[first.1 + 8 * copy..][..8].copy_from_slice(&DATA.to_le_bytes());
            }
            for with in [&[][..], &vmk(&made)] {
                if let Ok((prepared, after)) = repaired(&image, with) {
                    let data = DATA as usize..DATA as usize + 0x1_0000;
                    assert!(after[data.clone()] == image[data], "{kind:?}, {copy}: {:?}", prepared.edit);
                }
            }
        }
        // Noise over a whole copy: a key proves that it belongs there, where there is one.
        let mut image = made.image.clone();
        let at = made.layout.metadata[1] as usize;
        let noise = claviger_testkit::random::Random::new(7).bytes(made.layout.metadata_len as usize);
        image[at..at + noise.len()].copy_from_slice(&noise);
        let error = repaired(&image, &[]).expect_err("nothing proves it");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
        match kind {
            Kind::Vista => drop(repaired(&image, &vmk(&made)).expect_err("nothing is sealed")),
            _ => assert!(repaired(&image, &vmk(&made)).expect("it is proven").1[..at] == made.image[..at]),
        }
    }
}

#[test]
fn volumes_that_are_cut_short_are_not_repaired() {
    let made = locked(Kind::Windows8);
    for len in [made.layout.metadata[2] + 100, made.image.len() as u64 - 512] {
        let image = &made.image[..len as usize];
        let error = repaired(image, &[]).expect_err("it is cut short");
        assert!(matches!(error.kind, ErrorKind::Malformed { field: "state offset", .. }), "{error}");
    }
}

/// Everything that can be done with it without writing. Panics where something that was opened could overwrite metadata, or one place as
/// another.
fn exercised(image: &[u8], with: &[Credential]) -> Result<Unlocked> {
    let store = store(image);
    let (_, header) = formats::open(&store, Some("BitLocker"))?;
    let about = described(&*header);
    let _ = header.effort(&Unlock::with(with));
    let unlocked = header.unlock(&Unlock { truncated: true, ..Unlock::with(with) })?;
    let places = unlocked.layout.segments().iter().filter(|s| !matches!(s.payload, Payload::Zero | Payload::Fixed(_)));
    let mut places: Vec<_> = places.map(|s| s.stored_at..s.stored_at + s.len).collect();
    let copies = about["metadata"].as_array().expect("copies").iter();
    places.extend(copies.map(|copy| copy["offset"].as_u64().expect("its place")).map(|at| at..at + 4096));
    places.sort_by_key(|place| place.start);
    let overlap = places.windows(2).find(|pair| pair[0].end > pair[1].start);
    assert!(overlap.is_none(), "{overlap:x?} are the same bytes");
    Ok(unlocked)
}

#[track_caller]
fn is_about_the_file(error: &Error, what: &str) {
    let kinds = matches!(
        error.kind,
        ErrorKind::Malformed { .. }
            | ErrorKind::Unsupported { .. }
            | ErrorKind::NotThisFormat(_)
            | ErrorKind::WrongCredential(_)
            | ErrorKind::Misuse(_)
    );
    assert!(kinds, "{what}: {error:?}");
}

/// Bytes that parsers trip over.
const VALUES: [u8; 6] = [0, 1, 7, 0x7f, 0x80, 0xff];

#[test]
fn no_byte_of_the_metadata_makes_a_volume_writable_that_was_not_sealed_so() {
    for kind in [Kind::Windows8, Kind::Vista] {
        let made = volume(kind).make();
        let block = block(&made, 0);
        for at in 0..block.len() {
            for value in VALUES.into_iter().filter(|value| *value != block[at]) {
                let mut changed = block.clone();
                changed[at] = value;
                let mut image = made.image.clone();
                (0..3).for_each(|copy| put(&mut image, &made, copy, &changed, None));
                match exercised(&image, &[]) {
                    // Windows Vista seals nothing.
                    Ok(unlocked) if kind != Kind::Vista => {
                        let volume = Volume::new(store(&image), unlocked.layout);
                        assert!(!volume.writable(), "byte {at} is {value:#x}");
                    }
                    Ok(_) => {}
                    Err(error) => is_about_the_file(&error, &format!("byte {at} is {value:#x}")),
                }
            }
        }
    }
}

#[test]
fn what_somebody_with_the_key_sealed_does_no_harm_either() {
    let half_way = State::HalfWay { current: 3, next: 4, watermark: 0x6_0000 };
    let dirty = State::HalfWay { current: 2, next: 4, watermark: 0x6_0000 };
    for state in [State::Encrypted, half_way, dirty] {
        let made = maker::Volume { state, ..volume(Kind::Windows8) }.make();
        let block = block(&made, 0);
        for at in 0..block.len() {
            for value in VALUES.into_iter().filter(|value| *value != block[at]) {
                let mut changed = block.clone();
                changed[at] = value;
                let mut image = made.image.clone();
                (0..3).for_each(|copy| put(&mut image, &made, copy, &changed, Some(Seal::Under(made.vmk))));
                for with in [&[][..], &vmk(&made)] {
                    if let Err(error) = exercised(&image, with) {
                        is_about_the_file(&error, &format!("byte {at} is {value:#x}"));
                    }
                }
                let _ = repaired(&image, &vmk(&made));
            }
        }
    }
}

/// The volume with other datums in all copies, sealed by somebody with the key.
fn with_datums(made: &Made, change: impl Fn(&mut Vec<Datum>)) -> Vec<u8> {
    let mut block = block(made, 0);
    let mut datums = Datum::parse_all(&block[HEADERS..]);
    change(&mut datums);
    set_datums(&mut block, &datums);
    let mut image = made.image.clone();
    (0..3).for_each(|copy| put(&mut image, made, copy, &block, Some(Seal::Under(made.vmk))));
    image
}

#[test]
fn keys_of_wrong_sizes_and_kinds_are_told() {
    let made = volume(Kind::Windows8).make();
    let mut nonces = Nonces::default();
    for (kind, len) in [(0x8004, 0), (0x8004, 1), (0x8004, 31), (0x8004, 33), (0x8004, 64), (0x8005, 64), (0x8000, 500)]
    {
        let key = Datum::sealed(3, &made.vmk, &mut nonces, kind, &vec![7; len]);
        let image =
            with_datums(&made, |datums| *datums.iter_mut().find(|d| d.role == 3).expect("the FVEK") = key.clone());
        let error = exercised(&image, &[]).err().unwrap_or_else(|| panic!("a key of {len} bytes opens"));
        assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{len}: {error}");
    }
    for len in [0, 1, 7, 11, 12, 27, 28, 29, 39, 40] {
        let image =
            with_datums(&made, |datums| datums.iter_mut().find(|d| d.role == 3).expect("the FVEK").data.truncate(len));
        let error = exercised(&image, &[]).err().expect("a box that is cut off");
        assert!(matches!(error.kind, ErrorKind::Malformed { .. }), "{len}: {error}");
        // The same of the protector.
        let image =
            with_datums(&made, |datums| datums.iter_mut().find(|d| d.role == 2).expect("it").data.truncate(len));
        is_about_the_file(&exercised(&image, &[]).err().expect("a protector that is cut off"), "a protector");
    }
    let twice = with_datums(&made, |datums| datums.extend(datums.clone()));
    exercised(&twice, &[]).expect("the first of each counts");
    let none = with_datums(&made, |datums| datums.clear());
    is_about_the_file(&exercised(&none, &[]).err().expect("nothing opens it"), "no datums");
}

#[test]
fn datums_within_datums_without_end_are_passed_over() {
    let made = volume(Kind::Windows8).make();
    let deep = (0..7000).fold(Vec::new(), |inner, _| Datum::new(0, 3, inner).bytes());
    let image = with_datums(&made, |datums| datums.push(Datum { role: 0x55, kind: 8, version: 1, data: deep.clone() }));
    let store = store(&image);
    let volume = Volume::new(Arc::clone(&store), opened(&store, &[]).expect("it opens").layout);
    assert!(all_of(&volume) == made.plaintext);
    // In a property of a protector.
    let image = with_datums(&made, |datums| datums.iter_mut().find(|d| d.role == 2).expect("it").data.extend(&deep));
    exercised(&image, &[]).expect("it opens");
}

#[test]
fn hostile_bitmaps_and_logs_are_read_without_harm() {
    let on_write = EncryptOnWrite { chunk: 0x1_0000, regions: 2, plain: vec![3, 9], under_way: Some((5, 7)) };
    let made = maker::Volume { encrypt_on_write: Some(on_write), size: 2 << 20, ..volume(Kind::Windows8) }.make();
    let eow = made.layout.encrypt_on_write.clone().expect("it has bitmaps");
    let crc = |bytes: &mut [u8], at: usize| {
        bytes[at..at + 4].fill(0);
        let sum = crc32fast(bytes);
        bytes[at..at + 4].copy_from_slice(&sum);
    };
    for value in VALUES {
        for at in 0..72 {
            let mut image = made.image.clone();
            for place in eow.information {
                let information = &mut image[place as usize..][..72];
                information[at] = value;
                crc(information, 36);
            }
            exercise_eow(&image, &format!("information, byte {at} is {value:#x}"));
        }
        for at in 0..60 {
            let mut image = made.image.clone();
            let header = &mut image[eow.bitmaps[0] as usize..][..512];
            header[at] = value;
            crc(header, 56);
            exercise_eow(&image, &format!("bitmap, byte {at} is {value:#x}"));
            let mut image = made.image.clone();
            for record in 1..=2 {
                let record = &mut image[eow.bitmaps[0] as usize + record * 512..][..512];
                record[at] = value;
                crc(record, 32);
            }
            exercise_eow(&image, &format!("record, byte {at} is {value:#x}"));
        }
        for at in 0..32 {
            let mut image = made.image.clone();
            let slot = 512 + 512 + 128 * 16 + 512;
            let record = &mut image[eow.logs[0] as usize + slot..][..32];
            record[at] = value;
            let sum = crc32fast(&record[..28]);
            record[28..].copy_from_slice(&sum);
            exercise_eow(&image, &format!("log, byte {at} is {value:#x}"));
        }
    }
}

fn exercise_eow(image: &[u8], what: &str) {
    match exercised(image, &[]) {
        Ok(unlocked) => {
            let volume = Volume::new(store(image), unlocked.layout);
            assert!(!volume.writable(), "{what}");
            let mut read = [0; 4096];
            for at in (0..volume.len() - 4096).step_by(0x1_0000) {
                volume.read_at(at, &mut read).expect("what opens is read");
            }
        }
        Err(error) => is_about_the_file(&error, what),
    }
}

#[test]
fn first_sectors_and_startup_keys_that_make_no_sense_are_told() {
    let made = locked(Kind::Windows8);
    let maker::Unlock::StartupKey(_, key) = &made.unlocks[0] else { panic!("it has a startup key") };
    let keyfile = |bytes: &[u8]| [Credential::Keyfile(Secret::copy_from(bytes))];
    exercised(&made.image, &keyfile(key)).expect("it opens");
    for at in 0..key.len() {
        for value in VALUES {
            let mut changed = key.clone();
            changed[at] = value;
            for bytes in [&changed[..], &changed[..at]] {
                if let Err(error) = exercised(&made.image, &keyfile(bytes)) {
                    is_about_the_file(&error, &format!("byte {at} of the key is {value:#x}"));
                }
            }
        }
    }
    for kind in [Kind::Windows8, Kind::Vista, Kind::ToGo] {
        let made = volume(kind).make();
        for at in 0..512 {
            for value in [0, 1, 0x80, 0xff] {
                let mut image = made.image.clone();
                image[at] = value;
                if let Err(error) = exercised(&image, &[]) {
                    is_about_the_file(&error, &format!("byte {at} is {value:#x}"));
                }
            }
        }
    }
}
