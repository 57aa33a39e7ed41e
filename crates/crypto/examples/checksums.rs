//! Rates of checksums over sectors, side by side and one after the other: `cargo run --release --example checksums`. Medians of turns.
use std::hint::black_box;
use std::time::Instant;

use claviger_crypto::hash::SHA256;

fn main() {
    let data = vec![0xa5u8; 1 << 20];
    for block in [512, 4096] {
        let mut out = vec![0; data.len() / block * SHA256.size];
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..101 {
            let start = Instant::now();
            SHA256.checksums(block, black_box(&data), &mut out);
            rates[0].push(data.len() as f64 / start.elapsed().as_nanos() as f64);
            let start = Instant::now();
            for (bytes, sum) in black_box(&data).chunks(block).zip(out.chunks_mut(SHA256.size)) {
                SHA256.checksum(&[bytes], sum);
            }
            rates[1].push(data.len() as f64 / start.elapsed().as_nanos() as f64);
        }
        let [together, alone] = rates.map(|mut r| {
            r.sort_by(f64::total_cmp);
            r[50]
        });
        println!("{block}: side by side {together:.2} GB/s, one after the other {alone:.2}, {:.2} x", together / alone);
    }
}
