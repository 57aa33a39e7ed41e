//! Rates of the modes with a tag for each sector, on one thread: `cargo run --release --example sealed`. Medians, in GB/s.

use std::hint::black_box;
use std::time::Instant;

use claviger_crypto::Acceleration;
use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::modes::aead::AeadSpecification;

/// Bytes of a run: less than any second-level cache.
const RUN: usize = 64 << 10;

fn main() {
    println!("{:<34} {:>6} {:>8} {:>8}", "", "sector", "encrypt", "decrypt");
    for (encryption, integrity) in [
        ("aes-xts-random", "hmac(sha256)"),
        ("aes-cbc-essiv:sha256", "hmac(sha256)"),
        ("aes-xts-random", "hmac(sha512)"),
        ("aes-gcm-random", "aead"),
        ("aes-ccm-random", "aead"),
        ("chacha20-random", "poly1305"),
        ("aegis128-random", "aead"),
    ] {
        for size in [512, 4096] {
            let specification = AeadSpecification::parse(encryption, integrity).expect("it is known");
            let key = vec![0x5a; *specification.key_sizes().last().expect("a size")];
            let sectors = Sectors { size, ..Sectors::default() };
            let cipher = specification.with_key(&key, sectors, Acceleration::On).expect("the key fits");
            let (mut run, mut tags) = (vec![0xa5; RUN], vec![0x3c; RUN / size * cipher.tag_size()]);
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..301 {
                let start = Instant::now();
                cipher.encrypt(0, black_box(&mut run), &mut tags);
                rates[0].push(RUN as f64 / start.elapsed().as_nanos() as f64);
                let start = Instant::now();
                cipher.decrypt(0, black_box(&mut run), &tags).expect("the tags are right");
                rates[1].push(RUN as f64 / start.elapsed().as_nanos() as f64);
            }
            rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
            let [encrypt, decrypt] = rates.map(|rates| rates[rates.len() / 2]);
            println!("{:<34} {size:>6} {encrypt:>8.2} {decrypt:>8.2}", format!("{encryption} {integrity}"));
        }
    }
}
