//! Hashes and key derivations beside programs that others wrote, and what happens at their limits.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use claviger_crypto::argon2::{Argon2Error, Params, Variant};
use claviger_crypto::ccm;
use claviger_crypto::hash::{BLAKE2S_256, HASHES, STREEBOG_512};
use claviger_crypto::pool::Pool;
use claviger_crypto::stretch::{ITERATIONS, Task, stretch, stretch_all};
use claviger_testkit::random::Random;
use claviger_testkit::tools;
use claviger_testkit::vectors::hex;

/// Those that OpenSSL has without its legacy provider, and what Python calls them.
const PYTHON: &[(&str, &str)] =
    &[("SHA-1", "sha1"), ("SHA-256", "sha256"), ("SHA-512", "sha512"), ("BLAKE2s-256", "blake2s256")];

/// Passwords around the block sizes of 64 and 128 bytes; and every length of the last block of output.
#[test]
fn hashes_and_pbkdf2_are_those_of_openssl() {
    let Some(python) = tools::program("python3") else { return };
    let mut script = String::from("import hashlib\n");
    let mut expected = Vec::new();
    let mut random = Random::new(1);
    for (name, theirs) in PYTHON {
        let hash = HASHES.iter().find(|h| h.name == *name).expect("it is in the table");
        for len in [0, 1, 31, 32, 63, 64, 65, 127, 128, 129, 200] {
            let (password, salt) = (random.bytes(len), random.bytes(random_salt(len)));
            let (iterations, out) = (1 + len as u32 % 7, 1 + len % 192);
            let mut digest = vec![0; hash.size];
            hash.digest(&[&password], &mut digest);
            let mut key = vec![0; out];
            assert!(hash.pbkdf2(&password, &salt, iterations, &mut key, &|| true));
            expected.push((format!("{name}, a password of {len} bytes"), format!("{} {}", hex(&digest), hex(&key))));
            let (password, salt) = (hex(&password), hex(&salt));
            script += &format!(
                "p=bytes.fromhex('{password}')\nprint(hashlib.new('{theirs}',p).hexdigest(),\
                 hashlib.pbkdf2_hmac('{theirs}',p,bytes.fromhex('{salt}'),{iterations},{out}).hex())\n"
            );
        }
    }
    let output = tools::run(Command::new(python).args(["-c", &script]));
    let printed = String::from_utf8(output.stdout).expect("hexadecimal digits");
    assert_eq!(printed.lines().count(), expected.len());
    for (theirs, (what, ours)) in printed.lines().zip(expected) {
        assert_eq!(theirs, ours, "{what}");
    }
}

#[test]
fn checksums_of_many_blocks_are_those_of_each() {
    let mut random = Random::new(3);
    for hash in HASHES {
        for (block, count) in [(512, 1), (512, 37), (520, 18), (4096, 5), (8, 0)] {
            let data = random.bytes(block * count);
            let (mut found, mut expected) = (vec![0; count * hash.size], vec![0; count * hash.size]);
            hash.checksums(block, &data, &mut found);
            let each = data.chunks(block).zip(expected.chunks_mut(hash.size));
            each.for_each(|(bytes, sum)| hash.digest(&[bytes], sum));
            assert_eq!(found, expected, "{}: {count} blocks of {block} bytes", hash.name);
        }
    }
}

/// RFC 2104, for hashes with blocks of 64 bytes, some of which no other program at hand derives keys with. One iteration of PBKDF2 is an
/// HMAC.
#[test]
fn pbkdf2_is_made_of_hmac() {
    let mut random = Random::new(2);
    for hash in HASHES.iter().filter(|h| ["RIPEMD", "Tiger", "Whirlpool", "MD4"].iter().any(|n| h.name.starts_with(n)))
    {
        for len in [0, 20, 64, 65, 200] {
            let (password, salt) = (random.bytes(len), random.bytes(len / 2 + 8));
            let digest = |parts: &[&[u8]]| {
                let mut digest = vec![0; hash.size];
                hash.digest(parts, &mut digest);
                digest
            };
            let mut key = [0; 64];
            match len <= 64 {
                true => key[..len].copy_from_slice(&password),
                false => key[..hash.size].copy_from_slice(&digest(&[&password])),
            }
            let inner = digest(&[&key.map(|byte| byte ^ 0x36), &salt, &1u32.to_be_bytes()]);
            let expected = digest(&[&key.map(|byte| byte ^ 0x5c), &inner]);
            let mut found = vec![0; hash.size];
            assert!(hash.pbkdf2(&password, &salt, 1, &mut found, &|| true));
            assert_eq!(found, expected, "{}, a password of {len} bytes", hash.name);
        }
    }
}

fn random_salt(len: usize) -> usize {
    1 + (len * 7) % 130
}

/// On two threads.
fn derive(
    params: &Params<'_>,
    password: &[u8],
    salt: &[u8],
    available: u64,
    key: &mut [u8],
) -> Result<(), Argon2Error> {
    params.derive(password, salt, available, &Pool::new(2, Duration::ZERO), &|| true, key)
}

/// The reference implementation's program: salts and passwords are words, memory is any number of KiB.
#[test]
fn argon2_is_that_of_the_reference_implementation() {
    let Some(argon2) = tools::program("argon2") else { return };
    for (variant, name) in [(Variant::I, "-i"), (Variant::Id, "-id")] {
        for (memory_kib, passes, lanes, len) in
            [(8, 1, 1, 4), (64, 3, 1, 64), (100, 2, 3, 192), (5000, 1, 4, 65), (8192, 2, 1, 32), (1031, 4, 7, 96)]
        {
            let arg = |n: u32| n.to_string();
            let mut child = Command::new(&argon2)
                .args(["saltsaltsalt", name, "-r", "-v", "13", "-t", &arg(passes), "-k", &arg(memory_kib)])
                .args(["-p", &arg(lanes), "-l", &arg(len)])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("argon2 starts");
            std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"a password").expect("a pipe");
            let output = child.wait_with_output().expect("argon2 ends");
            assert!(output.status.success());
            let params = Params { variant, memory_kib, passes, lanes, ..Params::default() };
            let mut key = vec![0; len as usize];
            derive(&params, b"a password", b"saltsaltsalt", u64::MAX, &mut key).expect("enough memory");
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), hex(&key), "{params:?}");
        }
    }
}

#[test]
fn argon2_refuses_more_memory_than_there_is() {
    let params = Params { memory_kib: 64, passes: 1, lanes: 1, ..Params::default() };
    let mut key = [7; 32];
    let refused = derive(&params, b"", b"saltsalt", 65_535, &mut key);
    assert_eq!(refused, Err(Argon2Error::TooLittleMemory { needed: 65_536, available: 65_535 }));
    assert_eq!(key, [7; 32]);
    derive(&params, b"", b"saltsalt", 65_536, &mut key).expect("exactly enough");
    assert_ne!(key, [7; 32]);
}

/// What a header that is hostile could ask for.
#[test]
fn argon2_refuses_parameters_that_make_no_sense() {
    let right = Params { memory_kib: 64, passes: 1, lanes: 1, ..Params::default() };
    let wrong = [
        Params { memory_kib: 7, ..right },
        Params { memory_kib: 0, ..right },
        Params { passes: 0, ..right },
        Params { lanes: 0, ..right },
        Params { lanes: 9, ..right },
        Params { lanes: u32::MAX, ..right },
        Params { lanes: 1 << 24, memory_kib: u32::MAX, ..right },
    ];
    for params in wrong {
        let refused = derive(&params, b"password", b"saltsalt", u64::MAX, &mut [0; 32]);
        assert!(matches!(refused, Err(Argon2Error::Parameters(_))), "{params:?}: {refused:?}");
    }
    for (salt, len) in [(7, 32), (8, 3)] {
        let refused = derive(&right, b"password", &vec![0; salt], u64::MAX, &mut vec![0; len]);
        assert!(matches!(refused, Err(Argon2Error::Parameters(_))), "{salt} {len}: {refused:?}");
    }
}

#[test]
fn argon2_can_be_stopped_on_every_thread() {
    let params = Params { memory_kib: 4096, passes: u32::MAX, lanes: 3, ..Params::default() };
    for threads in [1, 2, 3] {
        let asked = AtomicU32::new(0);
        let go_on = || asked.fetch_add(1, Ordering::Relaxed) < 100;
        let mut key = [7; 32];
        let pool = Pool::new(threads, Duration::ZERO);
        let stopped = params.derive(b"password", b"saltsalt", u64::MAX, &pool, &go_on, &mut key);
        assert_eq!((stopped, key), (Err(Argon2Error::Stopped), [7; 32]));
    }
}

/// In one long pass over one lane, and in lanes with next to nothing in them, at any moment: nothing is begun after the word.
#[test]
fn argon2_hears_at_once_that_it_is_to_stop() {
    let threads = 2;
    let pool = Pool::new(threads, Duration::ZERO);
    let long = Params { memory_kib: 8 << 10, passes: 1, lanes: 1, ..Params::default() };
    let wide = Params { memory_kib: 8 * 500, passes: 1, lanes: 500, ..Params::default() };
    for (params, every) in [(long, 7), (wide, 500)] {
        let (asked, mut key) = (AtomicU32::new(0), [7; 32]);
        let count = || asked.fetch_add(1, Ordering::Relaxed) < u32::MAX;
        params.derive(b"password", b"saltsalt", u64::MAX, &pool, &count, &mut key).expect("derived");
        let all = asked.into_inner();
        assert!(all >= 100, "it asks {all} times");
        for last in (0..all).step_by(every) {
            let (asked, mut key) = (AtomicU32::new(0), [7; 32]);
            let go_on = || asked.fetch_add(1, Ordering::Relaxed) < last;
            let stopped = params.derive(b"password", b"saltsalt", u64::MAX, &pool, &go_on, &mut key);
            assert_eq!((stopped, key), (Err(Argon2Error::Stopped), [7; 32]), "{last} of {all}");
            assert!(asked.into_inner() <= last + threads as u32, "{last} of {all}");
        }
    }
}

#[test]
fn the_new_derivations_can_be_cancelled() {
    for hash in [&BLAKE2S_256, &STREEBOG_512] {
        let asked = AtomicU32::new(0);
        let mut key = vec![7; hash.size];
        let finished =
            hash.pbkdf2(b"password", b"salt", u32::MAX, &mut key, &|| asked.fetch_add(1, Ordering::Relaxed) < 3);
        assert!(!finished && key == vec![7; hash.size], "{}", hash.name);
    }
}

/// Each key comes under its own index, whichever thread had it, and the last that is heard of progress is near the end.
#[test]
fn several_secrets_are_stretched_side_by_side() {
    let mut random = Random::new(3);
    let secrets: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(32)).collect();
    let salts: Vec<[u8; 16]> = (0..4).map(|_| random.bytes(16).try_into().expect("16 bytes")).collect();
    let tasks: Vec<Task<'_>> = secrets.iter().zip(&salts).map(|(secret, salt)| Task { secret, salt }).collect();
    let told = Mutex::new(Vec::new());
    let keys = Mutex::new(vec![None; tasks.len()]);
    let go_on = |done| {
        told.lock().expect("no panic").push(done);
        true
    };
    let finished = stretch_all(&tasks, &Pool::new(3, Duration::ZERO), &go_on, &|i, key| {
        let before = keys.lock().expect("no panic")[i].replace(key.to_vec());
        assert!(before.is_none(), "key {i} came twice");
    });
    assert!(finished);
    for (i, (key, task)) in keys.into_inner().expect("no panic").into_iter().zip(&tasks).enumerate() {
        let alone = stretch(*task, &|_| true).expect("nobody stops it");
        assert!(alone.same_as(&key.expect("it came")), "key {i}");
    }
    let all = tasks.len() as u64 * ITERATIONS;
    let last = told.into_inner().expect("no panic").into_iter().max();
    assert!(last.is_some_and(|last| last < all && last > all - all / 100), "{last:?} of {all}");
}

#[test]
fn a_stretch_can_be_stopped_on_every_thread() {
    let task = Task { secret: &[1; 32], salt: &[2; 16] };
    let told = Mutex::new(Vec::new());
    let stopped = stretch(task, &|done| {
        let mut told = told.lock().expect("no panic");
        told.push(done);
        told.len() < 5
    });
    assert!(stopped.is_none());
    let told = told.into_inner().expect("no panic");
    assert_eq!(told.len(), 5, "it goes on after the word");
    assert!(told[0] == 0 && told.is_sorted() && told[4] < ITERATIONS / 10, "{told:?}");
    for threads in [1, 2, 3] {
        let asked = AtomicU32::new(0);
        let go_on = |_| asked.fetch_add(1, Ordering::Relaxed) < 20;
        let finished = stretch_all(&[task; 4], &Pool::new(threads, Duration::ZERO), &go_on, &|i, _| {
            panic!("key {i} came before it could");
        });
        assert!(!finished);
        assert!(asked.into_inner() < 20 + 4, "it goes on after the word");
    }
}

#[test]
fn ccm_opens_nothing_that_was_changed() {
    let mut random = Random::new(4);
    let (key, nonce, plain) = (random.bytes(32), [7; ccm::NONCE], random.bytes(44));
    let (tag, sealed) = ccm::seal(&key, &nonce, &plain);
    assert!(ccm::open(&key, &nonce, &tag, &sealed).is_some_and(|opened| opened.same_as(&plain)));
    for bit in 0..8 * sealed.len() {
        let mut other = sealed.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(ccm::open(&key, &nonce, &tag, &other).is_none(), "bit {bit} of the message");
    }
    for bit in 0..8 * ccm::TAG {
        let mut other = tag;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(ccm::open(&key, &nonce, &other, &sealed).is_none(), "bit {bit} of the tag");
    }
    assert!(ccm::open(&key, &[8; ccm::NONCE], &tag, &sealed).is_none(), "another nonce");
    assert!(ccm::open(&random.bytes(32), &nonce, &tag, &sealed).is_none(), "another key");
    assert!(ccm::open(&key, &nonce, &tag, &sealed[..43]).is_none(), "a byte is missing");
    assert!(ccm::open(&key, &nonce, &tag, &vec![0; ccm::LONGEST + 1]).is_none(), "longer than any message");
}
