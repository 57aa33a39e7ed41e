//! The targets.

use std::sync::Arc;

use claviger_crypto::Acceleration;
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_engine::formats::{self, bitlocker, dmg, filevault2, luks1, luks2};
use claviger_engine::store::EwfStore;
use claviger_engine::trees::{NodeKind, Tree};
use claviger_engine::volume::integrity;
use claviger_engine::{FORMATS, Store, diagnosis, filesystems, fuzzing, logical_volumes, partitions};

use claviger_testkit::{exfat as testkit_exfat, lvm2 as testkit_lvm2, raid as testkit_raid};

use crate::volumes::{self, Sparse};
use crate::{Target, corpus, ecryptfs, messages};

/// Every target.
pub static TARGETS: &[Target] = &[
    Target { name: "truecrypt", run: fuzzing::truecrypt_header, corpus: corpus::truecrypt },
    Target { name: "luks1", run: luks1, corpus: corpus::luks1 },
    Target { name: "luks2", run: luks2, corpus: corpus::luks2_headers },
    Target { name: "luks2_json", run: |json| _ = volumes::luks2_json(json), corpus: corpus::luks2_json },
    Target { name: "reencryption", run: fuzzing::luks2_reencryption, corpus: corpus::reencryption },
    Target { name: "filevault2", run: filevault2, corpus: corpus::filevault2 },
    Target { name: "dmg", run: |bytes| _ = volumes::open(&dmg::DMG, &store(bytes, 0)), corpus: corpus::dmg },
    Target { name: "cryptomator_vault", run: fuzzing::cryptomator_vault, corpus: corpus::cryptomator_vault },
    Target { name: "gocryptfs_config", run: fuzzing::gocryptfs_config, corpus: corpus::gocryptfs_config },
    Target { name: "encfs_config", run: fuzzing::encfs_config, corpus: corpus::encfs_config },
    Target { name: "ecryptfs_header", run: ecryptfs::header, corpus: corpus::ecryptfs_header },
    Target { name: "ecryptfs_name", run: ecryptfs::name, corpus: corpus::ecryptfs_name },
    Target { name: "ecryptfs_wrapped", run: fuzzing::ecryptfs_wrapped, corpus: corpus::ecryptfs_wrapped },
    Target { name: "specification", run: specification, corpus: corpus::specifications },
    Target { name: "loopaes", run: fuzzing::loopaes_keyfile, corpus: corpus::loopaes },
    Target { name: "cryptmount", run: fuzzing::cryptmount_keyfile, corpus: corpus::cryptmount },
    Target { name: "bitlocker", run: bitlocker, corpus: corpus::bitlocker },
    Target { name: "bitlocker_metadata", run: fuzzing::bitlocker_metadata, corpus: corpus::bitlocker_metadata },
    Target {
        name: "bitlocker_block",
        run: |block| _ = volumes::bitlocker_block(block),
        corpus: corpus::bitlocker_blocks,
    },
    Target { name: "bitlocker_on_write", run: bitlocker_on_write, corpus: corpus::bitlocker_on_write },
    Target {
        name: "bitlocker_startup_key",
        run: fuzzing::bitlocker_startup_key,
        corpus: corpus::bitlocker_startup_key,
    },
    Target { name: "integrity", run: integrity, corpus: corpus::integrity },
    Target { name: "partitions", run: partitions, corpus: corpus::partitions },
    Target { name: "lvm2", run: lvm2, corpus: corpus::lvm2 },
    Target { name: "raid", run: raid, corpus: corpus::raid },
    Target { name: "ewf", run: ewf, corpus: corpus::ewf },
    Target { name: "lvm2_metadata", run: fuzzing::lvm2_metadata, corpus: corpus::lvm2_metadata },
    Target { name: "filesystems", run: filesystems, corpus: corpus::filesystems },
    Target { name: "efs", run: fuzzing::efs_info, corpus: corpus::efs },
    Target { name: "lznt1", run: fuzzing::lznt1, corpus: corpus::lznt1 },
    Target { name: "identify", run: identify, corpus: corpus::everything },
    Target { name: "find", run: find, corpus: corpus::everything },
    Target { name: "private_keys", run: fuzzing::private_keys, corpus: corpus::private_keys },
    Target { name: "dpapi", run: fuzzing::dpapi, corpus: corpus::dpapi },
    Target { name: "tokens", run: fuzzing::tokens, corpus: corpus::tokens },
    Target { name: "tpm2_event_log", run: fuzzing::tpm2_event_log, corpus: corpus::tpm2_event_log },
    Target { name: "tpm2_answers", run: fuzzing::tpm2_answers, corpus: corpus::tpm2_answers },
    Target { name: "fido2_answers", run: fuzzing::fido2_answers, corpus: corpus::fido2_answers },
    Target { name: "crypttab", run: crypttab, corpus: corpus::crypttab },
    Target { name: "outline", run: volumes::outline, corpus: corpus::outline },
    Target { name: "key_requests", run: |bytes| _ = messages::key_requests(bytes), corpus: corpus::key_requests },
    Target { name: "nbd", run: |bytes| _ = messages::nbd(bytes), corpus: corpus::nbd },
    Target { name: "loans", run: |bytes| _ = messages::loans(bytes), corpus: corpus::loans },
    Target { name: "fuse_image", run: messages::fuse_image, corpus: corpus::fuse },
    Target { name: "fuse_tree", run: |bytes| _ = messages::fuse_tree(bytes), corpus: corpus::fuse },
];

/// A store of at least `len` bytes that begins with `bytes` and continues with zeros, so short inputs get far.
fn store(bytes: &[u8], len: u64) -> Arc<dyn Store> {
    Sparse::beginning(bytes, len)
}

fn luks1(bytes: &[u8]) {
    volumes::open(&luks1::LUKS1, &store(bytes, 4 << 20));
}

/// Aims at the JSON behind the checksum, so the checksums are corrected, as an attacker would.
fn luks2(bytes: &[u8]) {
    volumes::open(&luks2::LUKS2, &store(bytes, 1 << 20));
    let mut sealed = bytes.to_vec();
    corpus::seal_luks2(&mut sealed);
    volumes::open(&luks2::LUKS2, &store(&sealed, 1 << 20));
}

/// Checksums and encryption stop most inputs early, so the metadata blocks behind them are also parsed directly.
fn filevault2(bytes: &[u8]) {
    volumes::open(&filevault2::FILEVAULT2, &store(bytes, 0));
    fuzzing::filevault2_metadata(bytes);
}

fn bitlocker(bytes: &[u8]) {
    volumes::open(&bitlocker::BITLOCKER, &store(bytes, 0));
}

/// Aims at the data behind the checksums.
fn bitlocker_on_write(bytes: &[u8]) {
    fuzzing::bitlocker_on_write(bytes);
    let mut sealed = bytes.to_vec();
    corpus::seal_on_write(&mut sealed);
    fuzzing::bitlocker_on_write(&sealed);
}

fn specification(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(known) = Specification::parse(text) else { return };
    let _ = known.to_string();
    for len in known.key_sizes() {
        for (size, large_iv) in [(512, false), (4096, true), (4096, false)] {
            let sectors = Sectors { size, large_iv, iv_offset: u64::MAX - 7 };
            let Ok(cipher) = known.with_key(&vec![7; len], sectors, Acceleration::On) else { continue };
            let mut run = vec![5; 2 * cipher.sector_size()];
            cipher.encrypt(u64::MAX - 1, &mut run);
            cipher.decrypt(u64::MAX - 1, &mut run);
            // This cannot be checked with a random IV or without an inverse.
            assert!(run.iter().all(|b| *b == 5), "{text} does not decrypt what it encrypts");
        }
    }
}

fn integrity(bytes: &[u8]) {
    let store = store(bytes, 64 << 10);
    for (tag, sector) in [(32, 512), (28, 4096), (64, 4096)] {
        let _ = integrity::open(&store, 0, store.len(), tag, sector);
    }
}

/// Also aims at the data behind the checksums of a GPT.
fn partitions(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    corpus::seal_gpt(&mut sealed);
    for bytes in [bytes, &sealed] {
        let store = store(bytes, 128 << 10);
        let Ok(Some(table)) = partitions::read(&store) else { continue };
        for partition in &table.partitions {
            let _ = partitions::find(&store, partition.number);
        }
        let _ = formats::partition::candidates(&store);
    }
}

/// Also aims at the data behind the checksums.
fn lvm2(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    testkit_lvm2::seal(&mut sealed);
    for store in [store(bytes, 0), store(&sealed, 0)] {
        let Ok(Some(group)) = logical_volumes::read(&*store) else { continue };
        for volume in &group.volumes {
            let Ok((_, volume)) = logical_volumes::open(store.clone(), &volume.name) else { continue };
            let mut piece = vec![0; volume.len().min(20_000) as usize];
            volume.read_at(volume.len() - piece.len() as u64, &mut piece).expect("it is all there");
        }
    }
}

/// Also aims at the data behind the checksums.
fn raid(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    testkit_raid::seal(&mut sealed);
    for bytes in [bytes, &sealed] {
        fuzzing::raid_member(store(bytes, 0));
    }
}

/// With exFAT's checksums unchanged and corrected.
fn filesystems(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    testkit_exfat::seal(&mut sealed);
    let sealed = Some(sealed).filter(|sealed| sealed != bytes);
    for bytes in [Some(bytes), sealed.as_deref()].into_iter().flatten() {
        let store = store(bytes, 64 << 10);
        let _ = filesystems::detect(&*store);
        if let Ok((_, tree)) = filesystems::open(store) {
            walk(&*tree);
        }
    }
}

/// Reads the root folder with its entries, and the beginnings of its files.
fn walk(tree: &dyn Tree) {
    /// The most names to examine.
    const NAMES: usize = 64;
    for entry in tree.list(tree.root()).unwrap_or_default().into_iter().take(NAMES) {
        let Ok(attributes) = tree.attributes(entry.node) else { continue };
        let _ = match attributes.kind {
            NodeKind::File => tree.read_at(entry.node, 0, &mut [0; 700]).is_ok(),
            NodeKind::Folder => tree.list(entry.node).is_ok(),
            _ => tree.link_target(entry.node).is_ok(),
        };
    }
}

fn ewf(bytes: &[u8]) {
    let Ok(image) = EwfStore::open(vec![store(bytes, 0)]) else { return };
    for at in [0, image.len() / 2] {
        let _ = image.read_at(at, &mut vec![0; (image.len() - at).min(64 << 10) as usize]);
    }
}

/// What lies at other places than the beginning.
fn find(bytes: &[u8]) {
    let shifted = [&[0; 1024][..], bytes].concat();
    let _ = diagnosis::scan(&store(&shifted, 256 << 10), &mut |_| Ok(()));
}

fn identify(bytes: &[u8]) {
    let store = store(bytes, 64 << 10);
    for format in FORMATS {
        let _ = format.identify(&*store);
    }
    let _ = formats::occupied(&*store);
    if let Ok(mut seen) = diagnosis::look(&store) {
        let _ = seen.find_lost_partitions(&store);
    }
    for start in [0, store.len() / 2] {
        let _ = diagnosis::worth_keeping(&store, start..store.len());
    }
}

fn crypttab(bytes: &[u8]) {
    let Ok(entries) = claviger_serve::crypttab::parse(&String::from_utf8_lossy(bytes)) else { return };
    for entry in entries {
        let _ = entry.invocation();
    }
}

/// The formats that recognise these bytes.
#[cfg(test)]
pub fn opens_as(bytes: &[u8]) -> Vec<&'static str> {
    FORMATS.iter().filter(|f| !f.headerless() && f.open(&store(bytes, 4 << 20)).is_ok()).map(|f| f.name()).collect()
}
