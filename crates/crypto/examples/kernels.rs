//! Rates of every kernel that this processor can run, on one thread: `cargo run --release --example kernels [FILTER]`.
//!
//! ECB, XTS with sectors of 512 and of 4096 bytes, both directions, in place over a run of 64 KiB that stays in the
//! cache. Each figure is the median of many passes, in GB/s (10^9 bytes); the best one follows in brackets.
//! FILTER keeps the lines that contain it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use claviger_crypto::ciphers::twofish;
use claviger_crypto::{BlockCipher, CIPHERS};

/// Bytes of a run: less than any second-level cache.
const RUN: usize = 64 << 10;

/// Sectors that the mode hands to a kernel at a time.
const BATCH: usize = 64;

/// How long a measurement takes, and how many times it has at least. Each time is that of a few passes, which the clock can tell
/// apart; they are shorter than a time slice, so that other processes on the same core hit few of them and the median none.
const MEASURE: Duration = Duration::from_millis(150);
const FEWEST: usize = 25;
const PASSES: u32 = 8;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!(
        "{:<28} {:>6}  {:>15} {:>15} {:>15} {:>15} {:>15} {:>15}",
        "GB/s: median [best]",
        "key",
        "ECB enc",
        "ECB dec",
        "XTS-512 enc",
        "XTS-512 dec",
        "XTS-4096 enc",
        "XTS-4096 dec"
    );
    for cipher in CIPHERS {
        let key_size = *cipher.key_sizes.last().expect("every cipher has a key size");
        for kernel in cipher.kernels {
            let name = format!("{} {}", cipher.name, kernel.name);
            if !name.contains(&filter) {
                continue;
            }
            if !(kernel.usable)() {
                println!("{name:<28} (this processor cannot run it)");
                continue;
            }
            line(&name, key_size, &*kernel.with_key(&vec![0x5A; key_size]));
        }
    }
    // What working on several blocks side by side brings.
    for (blocks, with_key) in [
        (1, twofish::interleaved::<1> as fn(&[u8]) -> Box<dyn BlockCipher>),
        (2, twofish::interleaved::<2>),
        (3, twofish::interleaved::<3>),
        (4, twofish::interleaved::<4>),
    ] {
        let name = format!("Twofish tables, blocks: {blocks}");
        if name.contains(&filter) {
            line(&name, 32, &*with_key(&[0x5A; 32]));
        }
    }
}

fn line(name: &str, key_size: usize, cipher: &dyn BlockCipher) {
    let mut run = vec![0xA5u8; RUN + 64];
    // A run as the engine has it: aligned to 64 bytes.
    let start = run.as_ptr().align_offset(64);
    let run = &mut run[start..start + RUN];
    let tweaks: Vec<[u8; 16]> = (0..RUN / 512).map(|i| [i as u8 ^ 0x3C; 16]).collect();
    print!("{name:<28} {:>6}", 8 * key_size);
    show(|| cipher.encrypt_blocks(black_box(&mut *run)));
    show(|| cipher.decrypt_blocks(black_box(&mut *run)));
    if cipher.block_size() == 16 {
        for sector in [512, 4096] {
            // As the mode calls it: that many sectors at a time.
            let tweaks = black_box(&tweaks[..BATCH]);
            show(|| {
                for piece in black_box(&mut *run).chunks_mut(BATCH * sector) {
                    cipher.xts_encrypt(&tweaks[..piece.len() / sector], sector, piece);
                }
            });
            show(|| {
                for piece in black_box(&mut *run).chunks_mut(BATCH * sector) {
                    cipher.xts_decrypt(&tweaks[..piece.len() / sector], sector, piece);
                }
            });
        }
    }
    println!();
}

/// Prints the rate of `work`, which goes once over the run.
fn show(mut work: impl FnMut()) {
    let start = Instant::now();
    let mut passes = Vec::new();
    while passes.len() < FEWEST || start.elapsed() < MEASURE {
        let pass = Instant::now();
        (0..PASSES).for_each(|_| work());
        passes.push(pass.elapsed() / PASSES);
    }
    passes.sort();
    let rate = |pass: Duration| RUN as f64 / pass.as_secs_f64() / 1e9;
    print!("  {:>7.3} [{:.3}]", rate(passes[passes.len() / 2]), rate(passes[0]));
}
