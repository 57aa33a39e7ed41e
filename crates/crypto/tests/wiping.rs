//! A key schedule goes when its cipher goes. One test in a process of its own: it counts the process's pages.

#[path = "it/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use claviger_crypto::CIPHERS;
use claviger_testkit::random::Random;
use common::usable;

/// The pages of key schedules are the only ones left out of core dumps (`secret::LockedBox`, flag `dd` of smaps), and they
/// are wiped right before they are unmapped. Counted in KiB, not in mappings: the kernel merges neighbours. Small schedules share
/// pages, some of which are kept for the next ones: so many are made that others have to be mapped, and go.
#[test]
fn key_schedules_live_in_pages_that_go_with_the_cipher() {
    for cipher in CIPHERS {
        let key = Random::new(5).bytes(*cipher.key_sizes.last().expect("a cipher has key sizes"));
        for kernel in usable(cipher) {
            drop(kernel.with_key(&key));
            let before = secret_kib();
            let keyed: Vec<_> = (0..200).map(|_| kernel.with_key(&key)).collect();
            let during = secret_kib();
            drop(keyed);
            let after = secret_kib();
            let what = format!("{} {}: {before} → {during} → {after} KiB", cipher.name, kernel.name);
            assert_eq!(before, after, "{what}");
            assert!(during >= before + 12, "{what}");
        }
    }
}

/// Size of all mappings that are left out of core dumps.
fn secret_kib() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let mut size = 0;
    let mut secret = 0;
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Size:") {
            size = kib.trim().trim_end_matches(" kB").parse().expect("a size in KiB");
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            // A mapping's flags come last.
            secret += if flags.split_whitespace().any(|flag| flag == "dd") { size } else { 0 };
        }
    }
    secret
}
