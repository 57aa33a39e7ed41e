//! Volumes in partitions, and the partitions of an encrypted system.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::support::*;
use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::{self, partition};
use claviger_engine::partitions;
use claviger_engine::store::{MemoryStore, SliceStore};
use claviger_engine::{ErrorKind, Spec, Store, Unlock, Volume};
use claviger_testkit::tools;

const SYSTEM: &str = "sys_vc_1_mbr_part-sha256-xts-aes";

/// Its makers kept what checks look at, and made it smaller: its header still has the size of the original somewhere.
#[test]
fn the_system_that_veracrypt_encrypted_opens_whole_and_by_partition() {
    let (Some(images), Some(blkid)) = (Images::unpacked(), tools::program("blkid")) else { return };
    let path = images.path("tcrypt").join(SYSTEM);
    let before = digest(&path);
    let credentials = credentials_of(&images, SYSTEM);
    let with = Unlock { hash: Some("SHA-256"), cipher: Some("AES"), ..Unlock::with(&credentials) };

    let store = read_only(&path);
    let (_, header) = formats::open(&store, Some("VeraCrypt")).expect("it looks like a system");
    let unlocked = header.unlock(&with).unwrap_or_else(|e| panic!("{e}"));
    let facts = &unlocked.facts;
    assert_eq!((facts.format, facts.header.name(), facts.iterations), ("VeraCrypt", "system", 200_000));
    assert_eq!((facts.size, facts.data_offset, facts.hidden), (store.len(), 2048 * 512, false));
    assert_eq!((unlocked.trials, unlocked.derivations), (1, 1));
    let warnings = &unlocked.warnings;
    assert!(warnings.len() == 1 && warnings[0].what.contains("64422412288 encrypted bytes"), "{warnings:?}");
    let whole = plaintext(Arc::clone(&store), unlocked);
    let one = partitions::find(&MemoryStore::new(whole.clone()), 1).expect("the table is in the clear");
    let of_whole = &whole[one.start as usize..][..one.len as usize];
    assert_eq!(uuid(&blkid, of_whole), "DEAD-BABE");

    let header = partition::open(&store, 1, Some("VeraCrypt"), false).expect("there is one");
    let unlocked = header.unlock(&with).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((unlocked.facts.size, unlocked.layout.len(), unlocked.derivations), (one.len, one.len, 1));
    assert!(plaintext(store, unlocked) == of_whole);
    assert_eq!(digest(&path), before);
}

#[test]
fn nothing_outside_the_encrypted_part_of_a_system_is_written() {
    let Some(images) = Images::unpacked() else { return };
    let store = in_memory(&images.path("tcrypt").join(SYSTEM));
    let before = store.to_vec();
    let credentials = credentials_of(&images, SYSTEM);
    let with = Unlock { hash: Some("SHA-256"), cipher: Some("AES"), ..Unlock::with(&credentials) };
    let disk: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let (_, header) = formats::open(&disk, Some("VeraCrypt")).expect("it looks like a system");
    let unlocked = header.unlock(&with).unwrap_or_else(|e| panic!("{e}"));
    let volume = Volume::new(disk, unlocked.layout);
    let (start, end) = (2048 * 512, (2048 + 32_768) * 512);
    for at in [0, 446, 62 * 512, start - 512, start - 1, end - 511, end, volume.len() - 512] {
        volume.write_clobbering(at, &mut [0x77; 512]).expect_err("the boot loader, or what follows the partition");
    }
    assert!(store.to_vec() == before);
    for at in [start, start + 777, end - 512] {
        volume.write_clobbering(at, &mut [0x77; 512]).expect("the encrypted partition");
    }
    let after = store.to_vec();
    let (start, end) = (start as usize, end as usize);
    assert!(
        after[..start] == before[..start] && after[end..] == before[end..] && after[start..end] != before[start..end]
    );
}

/// A disk of 8 MiB; its partitions 2 and 5 have a MiB each.
fn disk() -> Option<Arc<MemoryStore>> {
    let sfdisk = tools::program("sfdisk")?;
    let file = tempfile::Builder::new().suffix(".img").tempfile().expect("a temporary file");
    file.as_file().set_len(8 << 20).expect("a size");
    let mut child = Command::new(sfdisk)
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(file.path())
        .stdin(Stdio::piped())
        .spawn()
        .expect("sfdisk starts");
    let script = b"label: dos\nstart=2048, size=2048, type=7\nstart=4096, size=2048, type=83\nstart=6144, type=5\n\
                   start=8192, size=2048, type=83\n";
    child.stdin.take().expect("a pipe").write_all(script).expect("a script");
    assert!(child.wait().expect("sfdisk ends").success());
    Some(in_memory(file.path()))
}

#[test]
fn a_volume_in_a_partition_opens_and_writes_stay_in_it() {
    let Some(store) = disk() else { return };
    let disk: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let credentials = [passphrase("in a partition")];
    // Of one header alone: another thread may begin with that of a hidden volume before this one opens.
    let header = HeaderChoice::One { hidden: false, backup: false };
    let with = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), header, ..Unlock::with(&credentials) };
    for number in [2, 5] {
        let partition = partitions::find(&*disk, number).expect("it is there");
        let slice = SliceStore::new(Arc::clone(&disk), partition.start, partition.len).expect("it fits");
        let spec = Spec { hash: Some("SHA-512"), quick: true, ..Spec::default() };
        create(&slice, &spec, &credentials).expect("a volume");
        let before = store.to_vec();
        let header = partition::open(&disk, number, Some("TrueCrypt"), false).expect("it looks like a volume");
        let unlocked = header.unlock(&with).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(unlocked.facts.data_offset, partition.start + 131_072);
        assert_eq!((unlocked.derivations, unlocked.warnings), (1, Vec::new()));
        let volume = Volume::new(Arc::clone(&disk), unlocked.layout);
        assert_eq!(volume.len(), partition.len - 262_144);
        volume.write_clobbering(0, &mut noise(4096, 1)).expect("a write");
        volume.write_clobbering(volume.len() - 777, &mut noise(777, 2)).expect("a write");
        let mut read = vec![0; 777];
        volume.read_at(volume.len() - 777, &mut read).expect("what was written");
        assert!(read == noise(777, 2));
        volume.write_clobbering(volume.len() - 776, &mut noise(777, 2)).expect_err("past the end");
        let after = store.to_vec();
        let (start, end) = ((partition.start + 131_072) as usize, (partition.end() - 131_072) as usize);
        assert!(after[..start] == before[..start] && after[end..] == before[end..], "partition {number}");
        assert!(after[start..start + 4096] != before[start..start + 4096]);
    }

    let found = partition::candidates(&disk).expect("a good table").expect("a table");
    let found: Vec<_> = found.iter().map(|c| (c.partition.number, c.formats.len())).collect();
    assert_eq!(found, [(1, 0), (2, 2), (5, 2)]);
    let error = partition::open(&disk, 1, None, false).err().expect("there is nothing in it");
    assert!(matches!(error.kind, ErrorKind::NotThisFormat(_)), "{error}");
    let error = partition::open(&disk, 3, None, false).err().expect("it only contains others");
    assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    let wrong = [passphrase("wrong")];
    let header = partition::open(&disk, 5, Some("TrueCrypt"), false).expect("it looks like a volume");
    let error = header.unlock(&Unlock { hash: Some("SHA-512"), ..Unlock::with(&wrong) }).err().expect("wrong");
    assert!(matches!(error.kind, ErrorKind::WrongCredential(_)), "{error}");
}

#[test]
fn the_backup_header_of_a_volume_in_a_partition_opens_it() {
    let Some(store) = disk() else { return };
    let disk: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let credentials = [passphrase("pw")];
    let five = partitions::find(&*disk, 5).expect("it is there");
    let slice = SliceStore::new(Arc::clone(&disk), five.start, five.len).expect("it fits");
    create(&slice, &Spec { hash: Some("SHA-512"), quick: true, ..Spec::default() }, &credentials).expect("a volume");
    slice.write_clobbering(0, &mut [0; 512]).expect("somebody formats it");
    let header = partition::open(&disk, 5, Some("TrueCrypt"), true).expect("the format is named");
    let with = Unlock { hash: Some("SHA-512"), header: HeaderChoice::Backup, ..Unlock::with(&credentials) };
    let unlocked = header.unlock(&with).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((unlocked.facts.header.name(), unlocked.facts.data_offset), ("backup", five.start + 131_072));
}
