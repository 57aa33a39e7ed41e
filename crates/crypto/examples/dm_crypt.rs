//! Rates of dm-crypt's modes on one thread: `cargo run --release --example dm_crypt [FILTER]`.
//!
//! Each works in place over a run of 64 KiB that stays in the cache, with sectors of 512 and, where there are such, of 4096
//! bytes that count units of 512 bytes. Each figure is the median of many passes, in MB/s (10^6 bytes).
//! FILTER keeps the lines that contain it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use claviger_crypto::Acceleration;
use claviger_crypto::dmcrypt::{Sectors, Specification};

const RUN: usize = 64 << 10;

/// How long a measurement takes, and how many passes it has at least.
const MEASURE: Duration = Duration::from_millis(200);
const FEWEST: usize = 25;

/// What is measured: all of AES's modes, and what is special.
const SPECIFICATIONS: &[(&str, usize)] = &[
    ("aes-xts-plain64", 64),
    ("aes-xts-essiv:sha256", 64),
    ("aes-cbc-plain64", 32),
    ("aes-cbc-plain64", 16),
    ("aes-cbc-essiv:sha256", 32),
    ("aes-cbc-eboiv", 32),
    ("aes-cbc-elephant", 64),
    ("aes-cbc-tcw", 64),
    ("aes:64-cbc-plain64", 64 * 32),
    ("aes-cbc-lmk", 32),
    ("aes:64-cbc-lmk", 65 * 32),
    ("aes:64-cbc-lmk", 65 * 16),
    ("aes-lrw-benbi", 48),
    ("aes-ctr-plain64", 32),
    ("aes-ecb", 32),
    ("xchacha12,aes-adiantum-plain64", 32),
    ("xchacha20,aes-adiantum-plain64", 32),
    ("serpent-cbc-essiv:sha256", 32),
    ("twofish-cbc-essiv:sha256", 32),
    ("camellia-xts-plain64", 64),
    ("cast6-xts-plain64", 64),
    ("cast5-cbc-plain64", 16),
    ("blowfish-cbc-plain64", 16),
    ("des3_ede-cbc-plain64", 24),
];

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!("{:<36} {:>5} {:>9} {:>9} {:>9} {:>9}", "MB/s", "key", "512 enc", "512 dec", "4096 enc", "4096 dec");
    for (text, size) in SPECIFICATIONS.iter().filter(|(text, _)| text.contains(&filter)) {
        let spec = Specification::parse(text).expect("a specification");
        print!("{text:<36} {:>5}", size * 8);
        for size_of_sector in [512, 4096] {
            let sectors = Sectors { size: size_of_sector, ..Sectors::default() };
            match spec.with_key(&vec![0x5a; *size], sectors, Acceleration::On) {
                Ok(cipher) => {
                    print!(" {:>9.1} {:>9.1}", rate(|run| cipher.encrypt(9, run)), rate(|run| cipher.decrypt(9, run)));
                }
                Err(_) => print!(" {:>9} {:>9}", "-", "-"),
            }
        }
        println!();
    }
}

fn rate(mut pass: impl FnMut(&mut [u8])) -> f64 {
    let mut run = vec![0xa5; RUN];
    pass(&mut run);
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < FEWEST || start.elapsed() < MEASURE {
        let one = Instant::now();
        pass(black_box(&mut run));
        times.push(one.elapsed());
    }
    times.sort();
    RUN as f64 / times[times.len() / 2].as_secs_f64() / 1e6
}
