//! Our kernels beside OpenSSL's, on one thread, in one process, turn by turn.
//!
//! Each figure is the median over the rounds, in GB/s (10^9 bytes) of a run of 64 KiB that stays in the cache; each round
//! measures every contender once, so that a drift of the clock hits all alike.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use claviger_crypto::SectorCipher;
use claviger_crypto::argon2::{Params, Variant};
use claviger_crypto::ciphers::{Acceleration, CIPHERS, Cipher, Kernel, aes::AES};
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::hash::{self, HASHES};
use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_crypto::modes::{aead, cbc};
use claviger_crypto::pool::Pool;
use claviger_crypto::stretch::{ITERATIONS, Task, stretch_all};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Secret, Spec, Store, Unlock, formats};
use openssl::cipher::Cipher as OpenSslCipher;
use openssl::cipher_ctx::CipherCtx;

const RUN: usize = 64 << 10;
const ROUNDS: usize = 21;
const TURN: Duration = Duration::from_millis(5);

/// A contender: its name, and what handles one run.
type Contender<'a> = (String, Box<dyn FnMut(&mut [u8]) + 'a>);

fn main() {
    println!("{}, {} rounds", openssl::version::version(), ROUNDS);
    match std::env::args().nth(1).as_deref() {
        Some("opening") => return opening(),
        Some("xts") => return [512, 4096, RUN].into_iter().for_each(ciphers),
        Some("cbc") => return [512, 4096].into_iter().for_each(chains),
        Some("sealed") => return [512, 4096].into_iter().for_each(sealed),
        Some("loop-aes") => return loop_aes(),
        Some("elephant") => return elephant(),
        Some("derivations") => {
            // As TrueCrypt derives header keys, and LUKS those of keyslots.
            [192, 64].into_iter().for_each(derivations);
            stretch();
            return argon2();
        }
        Some("stretch") => return stretch(),
        _ => {}
    }
    for sector in [512, 4096, RUN] {
        ciphers(sector);
    }
    for sector in [512, 4096] {
        chains(sector);
        sealed(sector);
    }
    cascades();
    loop_aes();
    elephant();
    [192, 64].into_iter().for_each(derivations);
    stretch();
    argon2();
}

/// loop-AES with 65 keys beside CBC with one, as dm-crypt calls them.
fn loop_aes() {
    println!("\nDecryption of sectors of 512 bytes, AES-256; GB/s");
    let sectors = Sectors { size: 512, large_iv: false, iv_offset: 0 };
    let key: Vec<u8> = (0..65 * 32).map(|i| (i * 7 + i / 256) as u8).collect();
    let contender = |name: &str, key: &[u8]| specified(name, key, sectors, false);
    let results = measure(&mut [contender("aes-cbc-plain64", &key[..32]), contender("aes:64-cbc-lmk", &key)]);
    print(&results);
    let ratios: Vec<f64> = results[1].1.iter().zip(&results[0].1).map(|(lmk, plain)| lmk / plain).collect();
    let (low, middle, high) = spread(&ratios);
    println!("{:44} {middle:7.3}  ({low:.3} … {high:.3})", "ratio");
}

/// BitLocker's modes: CBC with and without the diffuser, and XTS.
fn elephant() {
    let key: Vec<u8> = (0..64).collect();
    for size in [512, 4096] {
        println!("\nBitLocker's modes, AES-256, sectors of {size} bytes; GB/s");
        let sectors = Sectors { size, large_iv: false, iv_offset: 0 };
        let modes = [("aes-cbc-eboiv", 32), ("aes-cbc-elephant", 64), ("aes-xts-plain64", 64)];
        let both = modes.iter().flat_map(|(name, len)| [(name, *len, true), (name, *len, false)]);
        let mut contenders: Vec<Contender> =
            both.map(|(name, len, encrypt)| specified(name, &key[..len], sectors, encrypt)).collect();
        print(&measure(&mut contenders));
    }
}

/// One direction of a specification of dm-crypt.
fn specified<'a>(name: &str, key: &[u8], sectors: Sectors, encrypt: bool) -> Contender<'a> {
    let cipher = Specification::parse(name).expect("a specification").with_key(key, sectors, Acceleration::On);
    let cipher = cipher.expect("a key");
    let run = move |run: &mut [u8]| if encrypt { cipher.encrypt(0, run) } else { cipher.decrypt(0, run) };
    (format!("{name} {}", if encrypt { "encrypt" } else { "decrypt" }), Box::new(run))
}

/// TrueCrypt's cascades, in the order in which their ciphers encrypt.
const CASCADES: &[&[&str]] = &[
    &["Twofish", "AES"],
    &["Serpent", "Twofish", "AES"],
    &["AES", "Serpent"],
    &["AES", "Twofish", "Serpent"],
    &["Serpent", "Twofish"],
];

/// Each cascade beside what its parts would give one after the other over the same run: 1 / (1/a + 1/b + …).
fn cascades() {
    println!("\nCascades in XTS, sectors of 512 bytes; GB/s, the harmonic sum of the parts, and the ratio");
    let cipher = |name: &str| *CIPHERS.iter().find(|c| c.name == name).expect("a cipher of the table");
    let layer = |name: &&str| {
        let with_key = |key: u8| cipher(name).with_key(&[key; 32], Acceleration::On);
        Layer { data: with_key(7), tweak: with_key(9) }
    };
    let singles: &[&[&str]] = &[&["AES"], &["Serpent"], &["Twofish"]];
    let all = || singles.iter().chain(CASCADES).flat_map(|names| [(names, true), (names, false)]);
    let mut contenders: Vec<Contender> = all()
        .map(|(names, encrypt)| {
            let xts = Xts::new(names.iter().map(layer).collect(), 512);
            let run = move |run: &mut [u8]| if encrypt { xts.encrypt(0, run) } else { xts.decrypt(0, run) };
            (names.join("-"), Box::new(run) as Box<dyn FnMut(&mut [u8])>)
        })
        .collect();
    let results = measure(&mut contenders);
    let medians: Vec<_> = all().zip(&results).map(|(what, (_, rates))| (what, spread(rates).1)).collect();
    let single = |name: &str, encrypt: bool| {
        medians.iter().find(|((names, e), _)| **names == [name] && *e == encrypt).expect("measured").1
    };
    for ((names, encrypt), rate) in medians.iter().filter(|((names, _), _)| names.len() > 1) {
        let sum = 1.0 / names.iter().map(|name| 1.0 / single(name, *encrypt)).sum::<f64>();
        let direction = if *encrypt { "encrypt" } else { "decrypt" };
        let name = format!("{} {direction}", names.join("-"));
        println!("{name:44} {:7.3} {:7.3} {:6.3}", rate / 1e9, sum / 1e9, rate / sum);
    }
}

fn ciphers(sector: usize) {
    println!("\nXTS, 256-bit keys, sectors of {sector} bytes; GB/s");
    let mut contenders: Vec<Contender> = Vec::new();
    for (direction, encrypt) in [("encrypt", true), ("decrypt", false)] {
        for (what, rekey) in [("IV", false), ("key and IV", true)] {
            let mut openssl = open_ssl(encrypt, rekey);
            let xts = move |run: &mut [u8]| {
                for (i, sector) in run.chunks_exact_mut(sector).enumerate() {
                    openssl(i as u64, sector);
                }
            };
            contenders.push((format!("AES OpenSSL, {what} per sector, {direction}"), Box::new(xts)));
        }
        for kernel in usable(&AES) {
            let cipher = kernel.with_key(&[7; 32]);
            let name = format!("AES {} ECB {direction}", kernel.name);
            let ecb =
                move |run: &mut [u8]| if encrypt { cipher.encrypt_blocks(run) } else { cipher.decrypt_blocks(run) };
            contenders.push((name, Box::new(ecb)));
        }
        for cipher in CIPHERS.iter().filter(|c| c.block_size == 16) {
            for kernel in usable(cipher) {
                let layer = Layer { data: kernel.with_key(&[7; 32]), tweak: kernel.with_key(&[9; 32]) };
                let xts = Xts::new(vec![layer], sector);
                let name = format!("{} {} XTS {direction}", cipher.name, kernel.name);
                let run = move |run: &mut [u8]| if encrypt { xts.encrypt(0, run) } else { xts.decrypt(0, run) };
                contenders.push((name, Box::new(run)));
            }
        }
    }
    print(&measure(&mut contenders));
}

/// AES-256-CBC, which encrypts a sector block after block, so that only other sectors can be beside it.
fn chains(sector: usize) {
    println!("\nCBC, AES-256, sectors of {sector} bytes; GB/s");
    let mut contenders: Vec<Contender> = Vec::new();
    for (direction, encrypt) in [("encrypt", true), ("decrypt", false)] {
        let mut context = CipherCtx::new().expect("a context");
        let cbc = OpenSslCipher::aes_256_cbc();
        match encrypt {
            true => context.encrypt_init(Some(cbc), Some(&[7; 32]), None).expect("a key"),
            false => context.decrypt_init(Some(cbc), Some(&[7; 32]), None).expect("a key"),
        }
        context.set_padding(false);
        // The crate wants room for a block more.
        let mut out = vec![0; sector + 16];
        let openssl = move |run: &mut [u8]| {
            for (i, sector) in run.chunks_exact_mut(sector).enumerate() {
                let iv = (i as u128).to_le_bytes();
                match encrypt {
                    true => context.encrypt_init(None, None, Some(&iv)).expect("an IV"),
                    false => context.decrypt_init(None, None, Some(&iv)).expect("an IV"),
                }
                context.cipher_update(sector, Some(&mut out)).expect("a sector");
            }
        };
        contenders.push((format!("OpenSSL, {direction}"), Box::new(openssl)));
        for kernel in usable(&AES) {
            let ecb = kernel.with_key(&[7; 32]);
            let name = format!("{} ECB {direction}", kernel.name);
            let run = move |run: &mut [u8]| if encrypt { ecb.encrypt_blocks(run) } else { ecb.decrypt_blocks(run) };
            contenders.push((name, Box::new(run)));
            let cipher = kernel.with_key(&[7; 32]);
            let ivs: Vec<[u8; 16]> = (0..(RUN / sector) as u128).map(u128::to_le_bytes).collect();
            let run = move |run: &mut [u8]| match encrypt {
                true => cbc::encrypt_sectors(&*cipher, &ivs, sector, run),
                false => cbc::decrypt_sectors(&*cipher, &ivs, sector, run),
            };
            contenders.push((format!("{} CBC {direction}", kernel.name), Box::new(run)));
        }
        for name in ["aes-cbc-plain64", "aes-cbc-essiv:sha256", "aes-lrw-benbi"] {
            let size = if name.contains("lrw") { 48 } else { 32 };
            let sectors = Sectors { size: sector, large_iv: false, iv_offset: 0 };
            let (_, run) = specified(name, &vec![7; size], sectors, encrypt);
            contenders.push((format!("{name} {direction}"), run));
        }
    }
    print(&measure(&mut contenders));
}

/// Modes with a tag for each sector, and with its number and IV authenticated besides.
fn sealed(sector: usize) {
    println!("\nModes with tags, sectors of {sector} bytes; GB/s");
    let mut contenders: Vec<Contender> = Vec::new();
    for (name, cipher) in
        [("AES-256-GCM", OpenSslCipher::aes_256_gcm()), ("ChaCha20-Poly1305", OpenSslCipher::chacha20_poly1305())]
    {
        let mut context = CipherCtx::new().expect("a context");
        context.encrypt_init(Some(cipher), Some(&[7; 32]), None).expect("a key");
        let openssl = move |run: &mut [u8]| {
            for (i, sector) in run.chunks_exact_mut(sector).enumerate() {
                let mut beside = [0; 20];
                beside[..8].copy_from_slice(&(i as u64).to_le_bytes());
                context.encrypt_init(None, None, Some(&beside[8..])).expect("an IV");
                context.cipher_update(&beside, None).expect("what is beside");
                let len = sector.len();
                context.cipher_update_inplace(sector, len).expect("a sector");
                context.cipher_final(&mut []).expect("an end");
                context.tag(&mut [0; 16]).expect("a tag");
            }
        };
        contenders.push((format!("OpenSSL {name}"), Box::new(openssl)));
    }
    for (encryption, integrity) in [
        ("aes-gcm-random", "aead"),
        ("chacha20-random", "poly1305"),
        ("aegis128-random", "aead"),
        ("aes-xts-random", "hmac(sha256)"),
        ("aes-xts-random", "hmac(sha512)"),
    ] {
        let specification = aead::AeadSpecification::parse(encryption, integrity).expect("it is known");
        let key = vec![7; *specification.key_sizes().last().expect("a size")];
        let sectors = Sectors { size: sector, ..Sectors::default() };
        let cipher = specification.with_key(&key, sectors, Acceleration::On).expect("the key fits");
        let mut tags = vec![1; RUN / sector * cipher.tag_size()];
        contenders.push((format!("{encryption} {integrity}"), Box::new(move |run| cipher.encrypt(0, run, &mut tags))));
    }
    print(&measure(&mut contenders));
}

/// OpenSSL's AES-256-XTS as a program uses it that has a cipher context: for each sector a new IV, and the key again if
/// `rekey` (as many programs do that have one context for several volumes).
fn open_ssl(encrypt: bool, rekey: bool) -> impl FnMut(u64, &mut [u8]) {
    let mut context = CipherCtx::new().expect("a context");
    let key: Vec<u8> = (0..64).collect();
    let xts = OpenSslCipher::aes_256_xts();
    match encrypt {
        true => context.encrypt_init(Some(xts), Some(&key), None).expect("a key"),
        false => context.decrypt_init(Some(xts), Some(&key), None).expect("a key"),
    }
    move |number, sector| {
        let mut iv = [0; 16];
        iv[..8].copy_from_slice(&number.to_le_bytes());
        let key = rekey.then_some(&key[..]);
        match encrypt {
            true => context.encrypt_init(None, key, Some(&iv)).expect("an IV"),
            false => context.decrypt_init(None, key, Some(&iv)).expect("an IV"),
        }
        let len = sector.len();
        context.cipher_update_inplace(sector, len).expect("a sector");
    }
}

fn usable(cipher: &'static Cipher) -> impl Iterator<Item = &'static Kernel> {
    cipher.kernels.iter().filter(|k| (k.usable)())
}

/// Bytes per second of each contender in each round.
fn measure(contenders: &mut [Contender]) -> Vec<(String, Vec<f64>)> {
    let mut backing = vec![1u8; RUN + 64];
    let start = backing.as_ptr().align_offset(64);
    let run = &mut backing[start..][..RUN];
    let mut results: Vec<_> = contenders.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
    for _ in 0..ROUNDS {
        for ((_, contender), (_, rates)) in contenders.iter_mut().zip(&mut results) {
            contender(run);
            let (begin, mut runs) = (cpu_time(), 0);
            while cpu_time() - begin < TURN {
                (0..4).for_each(|_| contender(run));
                runs += 4;
            }
            rates.push((runs * RUN) as f64 / (cpu_time() - begin).as_secs_f64());
        }
    }
    results
}

/// A wrong password tried on all that a TrueCrypt volume of today could be, beside the key derivations that this takes,
/// spread over as many threads. Wall-clock time: run it on idle processors.
fn opening() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
    let format = formats::by_name("TrueCrypt").expect("a format");
    let passphrase = |text: &[u8]| [Credential::Passphrase(Secret::copy_from(text))];
    format.create(&*store, &Spec::default(), &passphrase(b"right")).expect("a volume");
    let wrong = passphrase(b"wrong");
    // Hash, iterations, and the places where a header with it can be; each has a salt of its own.
    let derivations =
        [(&hash::SHA512, 1000, 5), (&hash::WHIRLPOOL, 1000, 5), (&hash::RIPEMD160, 2000, 5), (&hash::SHA1, 2000, 2)];
    let pieces: Vec<_> = derivations
        .iter()
        .flat_map(|(hash, iterations, places)| {
            (0..192usize.div_ceil(hash.blocks_at_once() * hash.size) * places).map(move |_| (*hash, *iterations))
        })
        .collect();
    let derive = || {
        let pool = Pool::for_this_machine(Duration::ZERO);
        pool.run(pieces.len(), &|i| {
            let (hash, iterations) = pieces[i];
            let piece = &mut [0; 192][..(hash.blocks_at_once() * hash.size).min(192)];
            hash.pbkdf2_blocks(b"wrong", &[1; 64], iterations, 1, piece, &|| true);
        });
    };
    let try_all = || {
        let header = format.open(&store).expect("something that could be a header");
        assert!(header.unlock(&Unlock::with(&wrong)).is_err(), "nothing opens");
    };
    let (mut alone, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (times, work) in [(&mut alone, &derive as &dyn Fn()), (&mut whole, &try_all)] {
            let begin = Instant::now();
            work();
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    let ratios: Vec<f64> = whole.iter().zip(&alone).map(|(w, a)| w / a).collect();
    for (name, values) in [("derivations alone, ms", alone), ("all trials, ms", whole), ("ratio", ratios)] {
        let (low, middle, high) = spread(&values);
        println!("{name:24} {middle:7.2}  ({low:.2} … {high:.2})");
    }
}

/// Processor time of this thread: what other programs take of the machine does not count.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn print(results: &[(String, Vec<f64>)]) {
    for (name, rates) in results {
        let (low, middle, high) = spread(rates);
        println!("{name:44} {:7.3}  ({:.3} … {:.3})", middle / 1e9, low / 1e9, high / 1e9);
    }
}

/// Key derivations of `len` bytes, ours and OpenSSL's; milliseconds.
fn derivations(len: usize) {
    println!("\nPBKDF2, {len} bytes, 20,000 iterations; milliseconds: ours, OpenSSL's, their ratio");
    for hash in HASHES {
        let name = hash.name.replace("SHA-", "SHA");
        let Some(digest) = openssl::hash::MessageDigest::from_name(&name) else { continue };
        let mut key = vec![0u8; len];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            let begin = cpu_time();
            hash.pbkdf2(b"correct horse", &[3; 64], 20_000, &mut key, &|| true);
            ours.push((cpu_time() - begin).as_secs_f64() * 1e3);
            let expected = key.clone();
            let begin = cpu_time();
            if openssl::pkcs5::pbkdf2_hmac(b"correct horse", &[3; 64], 20_000, digest, &mut key).is_err() {
                break;
            }
            theirs.push((cpu_time() - begin).as_secs_f64() * 1e3);
            assert!(key == expected, "both derive the same key");
        }
        if theirs.is_empty() {
            println!("{:12} {:8.2}  (OpenSSL does not offer it)", hash.name, spread(&ours).1);
            continue;
        }
        let (ours, theirs) = (spread(&ours).1, spread(&theirs).1);
        println!("{:12} {ours:8.2} {theirs:8.2} {:6.2}", hash.name, ours / theirs);
    }
}

/// BitLocker's key stretch beside the same with OpenSSL's functions that cost least for short messages, and four of ours on all
/// processors, in wall-clock time.
fn stretch() {
    println!("\nBitLocker's key stretch; milliseconds: ours, OpenSSL's, their ratio, four side by side");
    let (secret, salt) = ([7; 32], [9; 16]);
    let task = Task { secret: &secret, salt: &salt };
    let (mut ours, mut theirs, mut ratios, mut four) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begin = cpu_time();
        let key = claviger_crypto::stretch::stretch(task, &|_| true).expect("nobody stops it");
        ours.push((cpu_time() - begin).as_secs_f64() * 1e3);
        let begin = cpu_time();
        let expected = open_ssl_stretch(&secret, &salt);
        theirs.push((cpu_time() - begin).as_secs_f64() * 1e3);
        assert!(key.same_as(&expected), "both stretch to the same key");
        ratios.push(ours[ours.len() - 1] / theirs[theirs.len() - 1]);
        let begin = Instant::now();
        stretch_all(&[task; 4], &Pool::for_this_machine(Duration::ZERO), &|_| true, &|_, _| {});
        four.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let [ours, theirs, ratio, four] = [ours, theirs, ratios, four].map(|values| spread(&values).1);
    println!("{:12} {ours:8.2} {theirs:8.2} {ratio:6.2} {four:8.2}", "2^20 SHA-256");
}

fn open_ssl_stretch(secret: &[u8; 32], salt: &[u8; 16]) -> [u8; 32] {
    let mut message = [0; 88];
    message[32..64].copy_from_slice(secret);
    message[64..80].copy_from_slice(salt);
    for i in 0..ITERATIONS {
        message[80..].copy_from_slice(&i.to_le_bytes());
        let mut hash = openssl::sha::Sha256::new();
        hash.update(&message);
        message[..32].copy_from_slice(&hash.finish());
    }
    message[..32].try_into().expect("32 bytes")
}

/// Ours beside the reference implementation's program, which tells the processor time of all its threads; ours has one. The
/// program's time is without its start.
fn argon2() {
    println!("\nArgon2, 32 bytes; milliseconds of processor time: ours, libargon2's, their ratio");
    for (variant, flag) in [(Variant::I, "-i"), (Variant::Id, "-id")] {
        for (memory_kib, passes, lanes) in [(64 << 10, 4, 1), (64 << 10, 4, 4), (1 << 20, 4, 1), (1 << 20, 4, 4)] {
            let params = Params { variant, memory_kib, passes, lanes, ..Params::default() };
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..5 {
                let mut key = [0; 32];
                let begin = cpu_time();
                let pool = Pool::new(1, Duration::ZERO);
                params
                    .derive(b"password", b"saltsaltsalt", u64::MAX, &pool, &|| true, &mut key)
                    .expect("enough memory");
                ours.push((cpu_time() - begin).as_secs_f64() * 1e3);
                match libargon2(flag, &params) {
                    Some(milliseconds) => theirs.push(milliseconds),
                    None => return println!("(the program argon2 is not installed)"),
                }
            }
            let (ours, theirs) = (spread(&ours).1, spread(&theirs).1);
            let name = format!("{variant:?} {} MiB, {passes} passes, {lanes} lanes", memory_kib >> 10);
            println!("{name:32} {ours:8.2} {theirs:8.2} {:6.2}", ours / theirs);
        }
    }
}

/// What the program `argon2` says it took, in milliseconds.
fn libargon2(flag: &str, params: &Params) -> Option<f64> {
    let [memory, passes, lanes] = [params.memory_kib, params.passes, params.lanes].map(|n| n.to_string());
    let mut child = Command::new("argon2")
        .args(["saltsaltsalt", flag, "-v", "13", "-k", &memory, "-t", &passes, "-p", &lanes, "-l", "32"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(b"password").ok()?;
    let output = String::from_utf8(child.wait_with_output().ok()?.stdout).ok()?;
    let seconds: f64 = output.lines().find_map(|l| l.strip_suffix(" seconds"))?.parse().ok()?;
    Some(seconds * 1e3)
}

fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1])
}
