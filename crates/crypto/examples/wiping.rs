//! What wiping stack and vector registers after sectors costs: `cargo run --release -p claviger-crypto --example wiping`.
//!
//! Each kernel decrypts XTS in sectors of 512 bytes in place, in runs that stay in the cache, once with both wiped behind each run and
//! once without, turn by turn. Each figure is the median of the differences of many turns, and what that adds to the time of the run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use claviger_crypto::CIPHERS;
use claviger_crypto::modes::{SectorCipher, Xts, xts};
use claviger_crypto::secret::wipe_after_sectors;

/// Runs in bytes: the smallest request, the usual one, and what a volume decrypts at a time.
const RUNS: [usize; 3] = [512, 4096, 128 << 10];

/// Turns, and bytes that a turn works on.
const TURNS: usize = 501;
const TURN: usize = 256 << 10;

fn main() {
    print!("{:<22}", "ns, and % of the run");
    RUNS.iter().for_each(|run| print!(" {run:>18}"));
    println!();
    for cipher in CIPHERS.iter().filter(|cipher| cipher.block_size == 16) {
        for kernel in cipher.kernels.iter().filter(|kernel| (kernel.usable)() && kernel.constant_time) {
            let key = || kernel.with_key(&[0x5a; 32]);
            let cipher_in_mode = Xts::new(vec![xts::Layer { data: key(), tweak: key() }], 512);
            print!("{:<22}", format!("{} {}", cipher.name, kernel.name));
            for run in RUNS {
                let (bare, added) = measure(&cipher_in_mode, run);
                print!(" {added:>9.1} {:>7.2}%", 100.0 * added / bare);
            }
            println!();
        }
    }
}

/// Nanoseconds of a run without wiping, and what wiping adds.
fn measure(cipher: &Xts, run: usize) -> (f64, f64) {
    let mut buffer = vec![0xa5; run];
    let count = TURN / run;
    let mut turn = |wipe: bool| {
        let start = Instant::now();
        for _ in 0..count {
            cipher.decrypt(9, black_box(&mut buffer));
            if wipe {
                wipe_after_sectors();
            }
        }
        each(start.elapsed(), count)
    };
    turn(true);
    let pairs: Vec<(f64, f64)> = (0..TURNS)
        .map(|i| match i % 2 {
            0 => (turn(false), turn(true)),
            _ => {
                let wiped = turn(true);
                (turn(false), wiped)
            }
        })
        .collect();
    let bare = median(pairs.iter().map(|(bare, _)| *bare));
    (bare, median(pairs.iter().map(|(bare, wiped)| wiped - bare)))
}

fn each(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
