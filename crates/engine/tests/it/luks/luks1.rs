//! LUKS1 beside the volumes and the programs of others: samples, cryptsetup, qemu-img, the kernel; both ways.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::support::{Images, all_of, noise, passphrase, read_only, read_write, run_in_kernel, shared, to_file};
use claviger_engine::formats::luks1::LUKS1;
use claviger_engine::spec::Cost;
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, ErrorKind, Format, Result, Secret, Spec, Store, Unlock, Volume, formats};
use claviger_testkit::tools;

const PASSPHRASE: &str = "a passphrase";

/// Cheap, as tests want them.
const COST: Cost<'_> = Cost { kdf: None, time_ms: None, iterations: Some(1000), memory_kib: None, lanes: None };

fn open(store: Arc<dyn Store>, with: &Unlock<'_>) -> Result<Volume> {
    let (format, header) = formats::open(&store, None)?;
    assert_eq!(format.name(), "LUKS1");
    let unlocked = header.unlock(with)?;
    Ok(Volume::new(store, unlocked.layout))
}

fn create(store: &dyn Store, spec: Spec<'_>) -> Result<()> {
    let spec = Spec { cost: COST, quick: true, ..spec };
    formats::by_name("LUKS1").expect("it is in the table").create(store, &spec, &[passphrase(PASSPHRASE)])
}

fn unhex(digits: &str) -> Vec<u8> {
    let digit = |d: u8| (d as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.as_bytes().as_chunks().0.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)).collect()
}

/// Made by Python's hashlib and the program openssl: a keyslot of 32 stripes in one sector, and the data after it.
#[test]
fn a_volume_made_by_hand_opens() {
    let mut bytes = vec![0; 2048];
    let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
    put(0, b"LUKS\xba\xbe\0\x01aes");
    put(40, b"cbc-plain64");
    put(72, b"sha256");
    put(104, &3u32.to_be_bytes());
    put(108, &16u32.to_be_bytes());
    put(112, &unhex("86398d08119c07edf156428189135d0b91d0b06b"));
    put(132, &(32..64).collect::<Vec<u8>>());
    put(164, &1001u32.to_be_bytes());
    put(168, b"1b4e28ba-2fa1-41d2-883f-0016d3cca427");
    for slot in 0..8 {
        put(208 + 48 * slot, &0xdeadu32.to_be_bytes());
        // Places of their own, which are in no file: these are not in use.
        put(208 + 48 * slot + 40, &(100 + slot as u32).to_be_bytes());
        put(208 + 48 * slot + 44, &32u32.to_be_bytes());
    }
    put(208, &0x00ac_71f3u32.to_be_bytes());
    put(212, &1234u32.to_be_bytes());
    put(216, &(0..32).collect::<Vec<u8>>());
    put(248, &2u32.to_be_bytes());
    put(1024, &unhex(AREA));
    let mut data = b"what is in sector ONE is this. ".repeat(17);
    data.truncate(512);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(bytes));
    let credentials = [passphrase(PASSPHRASE)];
    let volume = open(Arc::clone(&store), &Unlock::with(&credentials)).expect("it opens");
    assert_eq!(volume.len(), 512);
    let key: Vec<u8> = (0xa0..0xb0).collect();
    let by_key = open(store, &Unlock::with(&[Credential::VolumeKey(Secret::copy_from(&key))])).expect("by its key");
    volume.write_clobbering(0, &mut data.clone()).expect("it is written");
    assert_eq!(all_of(&by_key), data);
}

const AREA: &str = "b424074df793c667724894f222b1a79cf0dd8043278d073bba930817f6407e4489ad10410bb91713223a07cbaea4f2cb\
01ccd1f757736aaf39f5c93c666636724e0d4264dd7e31150f88d1ebebba428e0a03e557201af9d8a8c3a1043d0c2676c94dab5c9d910cb99d5192b7e50f0ea7\
30d77eba009aa625a7147988dd69b2b59bf021519f81af1f5b1216c672b551be137e159836366e61cca9cd8b58855e0f99e61c6481af1a7c4b3d0da5e3e48010\
05509a0b76c2f9111e06d9edfe07d92cb07e1f93fa0fdf817e60f3b5200fc5b5ab2ecaf882077b0db0aecc872cb8a3aa57087f067a8329158293c7978828c2fa\
5db919e3bdd3ea03565fd758659c00d33001b6915b5be288f17461c2c510ceb0029bfd885dcc7d97169935c7d91bfa3680da978fd253871b6855032a1aaead5b\
c9f060420d42284f30e017c71fcdc7eb92da94c01a705dbe2fa75c986a1585d3a6321d1eaf8755c6a42bd8c0ad50ef7b2386275623c73705efd089923d940d62\
dbc94b41c00ec5d4f221c6d687f25a423f6a3819fec72bf031f5243a595335ae9778ed575c032db1f2135b8321f6b7fffa32f8bac0eb8bd2a80bfae94c434ead\
b904ad95aa65ca1a52b2800dec23d2c66ef8fefce94b6f620402af41bc986e5d155493987a9bfea17aca01a058d9c381730366fc577c018d8bac0e09914cd045\
6342bab71ade89502630fcd554015f3a";

#[test]
fn every_sample_opens() {
    let (Some(images), Some(blkid)) = (Images::unpacked(), tools::program("blkid")) else { return };
    let credentials = Credential::keyfiles(&images.path("luks1/keyfile1")).expect("a keyfile");
    let mut seen = 0;
    for name in images.list("luks1").iter().filter(|name| name.ends_with(".img")) {
        let path = images.path("luks1").join(name);
        let before = crate::support::digest(&path);
        let volume = open(read_only(&path), &Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(crate::support::uuid(&blkid, &all_of(&volume)).to_uppercase(), "DEAD-BABE", "{name}");
        assert_eq!(crate::support::digest(&path), before);
        seen += 1;
    }
    assert_eq!(seen, 4);
}

/// A file with the passphrase.
fn key_file() -> tempfile::NamedTempFile {
    to_file(PASSPHRASE.as_bytes())
}

/// `qemu-img` with the passphrase as its secret `s`.
fn qemu_img(program: &Path, key: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(args[0]).arg("--object").arg(format!("secret,id=s,file={}", key.display())).args(&args[1..]);
    command
}

#[test]
fn what_qemu_makes_opens() {
    let Some(qemu) = tools::program("qemu-img") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let key = key_file();
    let plain = noise(1 << 20, 7);
    let raw = to_file(&plain);
    for options in [
        "cipher-alg=aes-128,cipher-mode=xts,ivgen-alg=plain64,hash-alg=sha1",
        "cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain,hash-alg=sha512",
        "cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=plain64,hash-alg=sha224",
        "cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256,hash-alg=sha256",
        "cipher-alg=serpent-256,cipher-mode=xts,ivgen-alg=plain64,hash-alg=ripemd160",
        "cipher-alg=serpent-128,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256,hash-alg=sha384",
        "cipher-alg=twofish-256,cipher-mode=xts,ivgen-alg=plain64,hash-alg=sha256",
        "cipher-alg=twofish-128,cipher-mode=ecb,ivgen-alg=plain64,hash-alg=sha256",
        "cipher-alg=cast5-128,cipher-mode=cbc,ivgen-alg=plain64,hash-alg=sha256",
    ] {
        let image = folder.path().join("image");
        let raw_path = raw.path().to_str().expect("UTF-8");
        let target = image.to_str().expect("UTF-8");
        let options = format!("key-secret=s,iter-time=10,{options}");
        let made =
            qemu_img(&qemu, key.path(), &["convert", "-f", "raw", "-O", "luks", "-o", &options, raw_path, target])
                .output()
                .expect("qemu-img starts");
        assert!(made.status.success(), "{options}: {}", String::from_utf8_lossy(&made.stderr));
        let credentials = [passphrase(PASSPHRASE)];
        let volume = open(read_only(&image), &Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert!(all_of(&volume)[..plain.len()] == plain, "{options}");
        std::fs::remove_file(&image).expect("it is there");
    }
}

#[test]
fn qemu_and_cryptsetup_open_what_is_made_here() {
    let (Some(qemu), Some(cryptsetup)) = (tools::program("qemu-img"), tools::program("cryptsetup")) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let key = key_file();
    for (cipher, bits, hash) in [
        ("aes-xts-plain64", None, "sha256"),
        ("aes-xts-plain64", Some(256), "sha1"),
        ("aes-cbc-essiv:sha256", None, "sha512"),
        ("serpent-xts-plain64", None, "ripemd160"),
        ("twofish-cbc-plain64", Some(128), "sha256"),
    ] {
        let path = crate::support::new_file(folder.path(), "image", (2 << 20) + (64 << 10));
        let store = read_write(&path);
        let spec = Spec { cipher: Some(cipher), key_bits: bits, hash: Some(hash), ..Spec::default() };
        create(&*store, spec).expect("a volume");
        let credentials = [passphrase(PASSPHRASE)];
        let volume = open(store, &Unlock::with(&credentials)).expect("it opens");
        let plain = noise(volume.len() as usize, 3);
        volume.write_clobbering(0, &mut plain.clone()).expect("it is written");
        drop(volume);
        // Without device-mapper it knows AES only.
        if cipher.starts_with("aes") {
            let open = ["open", "--test-passphrase", "--key-file"];
            tools::run(Command::new(&cryptsetup).args(open).args([key.path(), &path]));
        }
        let dump = tools::run(Command::new(&cryptsetup).arg("luksDump").arg(&path));
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        assert!(dump.contains("Payload offset:\t") && dump.contains(&format!("Hash spec:     \t{hash}\n")), "{dump}");
        let out = folder.path().join("out");
        let source = format!("driver=luks,file.filename={},key-secret=s", path.display());
        let target = out.to_str().expect("UTF-8");
        tools::run(&mut qemu_img(&qemu, key.path(), &["convert", "--image-opts", &source, "-O", "raw", target]));
        assert!(std::fs::read(&out).expect("it is there") == plain, "{cipher}");
        std::fs::remove_file(&path).expect("it is there");
    }
}

/// Headers are laid out as by cryptsetup: all but the random parts is the same.
#[test]
fn headers_are_those_of_cryptsetup() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let key = key_file();
    let uuid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";
    for (cipher, bits) in [("aes-xts-plain64", 512), ("aes-xts-plain64", 256), ("aes-cbc-essiv:sha256", 128)] {
        let theirs = to_file(&vec![0; 3 << 20]);
        tools::run(
            Command::new(&cryptsetup)
                .args(["luksFormat", "-q", "--type", "luks1", "--pbkdf-force-iterations", "1000", "--uuid", uuid])
                .args(["--cipher", cipher, "--key-size", &bits.to_string(), "--key-file"])
                .args([key.path(), theirs.path()]),
        );
        let ours = MemoryStore::new(vec![0; 3 << 20]);
        create(&ours, Spec { cipher: Some(cipher), key_bits: Some(bits), uuid: Some(uuid), ..Spec::default() })
            .expect("a volume");
        let known = |bytes: &[u8]| {
            let mut bytes = bytes[..4096].to_vec();
            // The digest, its salt and iterations; the first keyslot's salt.
            bytes[112..168].fill(0);
            bytes[216..248].fill(0);
            bytes
        };
        let theirs = std::fs::read(theirs.path()).expect("it is there");
        assert!(known(&ours.to_vec()) == known(&theirs), "{cipher} {bits}");
        assert!(ours.to_vec()[2 << 20..].iter().all(|b| *b == 0), "a quick format leaves the data alone");
    }
}

/// The kernel writes into what is made here, and reads what is written here; ciphers that the host's cryptsetup cannot open.
#[test]
fn the_kernel_reads_and_writes_the_same_volumes() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let key = key_file();
    let ciphers = ["aes-xts-plain64", "serpent-cbc-essiv:sha256", "twofish-lrw-benbi", "cast5-cbc-plain64"];
    let plain = noise(32 << 10, 11);
    let raw = to_file(&plain);
    let mut images = Vec::new();
    for (i, cipher) in ciphers.iter().enumerate() {
        let path = crate::support::new_file(folder.path(), &format!("ours{i}"), (2 << 20) + (64 << 10));
        let store = read_write(&path);
        create(&*store, Spec { cipher: Some(cipher), ..Spec::default() }).unwrap_or_else(|e| panic!("{cipher}: {e}"));
        let credentials = [passphrase(PASSPHRASE)];
        let volume = open(store, &Unlock::with(&credentials)).expect("it opens");
        volume.write_clobbering(0, &mut plain.clone()).expect("it is written");
        images.push(path);
    }
    for i in 0..2 {
        images.push(crate::support::new_file(folder.path(), &format!("theirs{i}"), (2 << 20) + (64 << 10)));
    }
    let paths: Vec<_> = images.iter().map(|p| p.as_path()).collect();
    let ran = run_in_kernel(&paths, |i, device| {
        let key = key.path().display();
        let raw = raw.path().display();
        let format = |cipher| {
            format!(
                "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --cipher {cipher} --hash sha512 \
                 --key-file {key} /dev/{device}\n"
            )
        };
        let format = match i {
            0..4 => String::new(),
            4 => format("camellia-xts-plain64 --key-size 512"),
            _ => format("aes-cbc-plain64 --key-size 192"),
        };
        let compare = if i < 4 { format!("cmp -n {} /dev/mapper/v {raw}\n", plain.len()) } else { String::new() };
        format!(
            "modprobe -qa {device} cast5_generic serpent_generic twofish_generic camellia_generic lrw || true\n{format}\
             cryptsetup open --type luks1 --key-file {key} /dev/{device} v\n{compare}\
             dd if={raw} of=/dev/mapper/v bs=4096 seek=8 count=8 conv=fsync 2>/dev/null\ncryptsetup close v\n"
        )
    });
    let (Some(()), _) = (ran, cryptsetup) else { return };
    for path in &images {
        let credentials = [passphrase(PASSPHRASE)];
        let volume = open(read_only(path), &Unlock::with(&credentials)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        // With short keys the data begin sooner, and the volume is longer.
        assert!(all_of(&volume)[32 << 10..64 << 10] == plain, "{path:?}");
    }
}

#[test]
fn a_detached_header_opens_the_data_that_are_elsewhere() {
    let header = Arc::new(MemoryStore::new(vec![0; 2 << 20]));
    let data: Arc<MemoryStore> = Arc::new(MemoryStore::new(vec![0x5a; 64 << 10]));
    create(&*header, Spec { data: Some(&*data), ..Spec::default() }).expect("a volume");
    assert!(data.to_vec() == vec![0x5a; 64 << 10], "a quick format leaves the data alone");
    let credentials = [passphrase(PASSPHRASE)];
    let (header_store, data_store) = (shared(Arc::clone(&header)), shared(Arc::clone(&data)));
    let locked = LUKS1.open_detached(&header_store, &data_store).expect("a header");
    let unlocked = locked.unlock(&Unlock::with(&credentials)).expect("it opens");
    assert_eq!((unlocked.facts.data_offset, unlocked.facts.size), (0, 64 << 10));
    let volume = Volume::new(Arc::clone(&data) as Arc<dyn Store>, unlocked.layout);
    volume.write_clobbering(512, &mut noise(512, 1)).expect("it is written");
    assert!(data.to_vec()[..512] == [0x5a; 512] && data.to_vec()[512..1024] != [0x5a; 512]);
    let alone = LUKS1
        .open(&header_store)
        .expect("a header")
        .unlock(&Unlock::with(&credentials))
        .err()
        .expect("there are no data");
    assert!(matches!(&alone.kind, ErrorKind::Misuse(what) if what.contains("detached")), "{alone}");
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let (header, data, key) = (to_file(&header.to_vec()), to_file(&data.to_vec()), key_file());
    tools::run(
        Command::new(cryptsetup)
            .args(["open", "--test-passphrase", "--key-file"])
            .arg(key.path())
            .arg("--header")
            .args([header.path(), data.path()]),
    );
}

#[test]
fn what_luks1_does_not_have_is_refused_and_nothing_written() {
    let key = Secret::zeroed(63);
    let none = Spec::default;
    for (spec, says) in [
        (Spec { sector_size: Some(4096), ..none() }, "sector size"),
        (Spec { integrity: Some("hmac-sha256"), ..none() }, "protection"),
        (Spec { label: Some("x"), ..none() }, "label"),
        (Spec { pim: Some(1), ..none() }, "PIM"),
        (Spec { hash: Some("md5"), ..none() }, "md5"),
        (Spec { cipher: Some("aes"), ..none() }, "specification"),
        (Spec { key_bits: Some(128), ..none() }, "128-bit key"),
        (Spec { key_bits: Some(257), ..none() }, "whole number of bytes"),
        (Spec { volume_key: Some(&key), ..none() }, "504-bit key"),
        (Spec { data_offset: Some(1 << 20), ..none() }, "keyslots end"),
        (Spec { data_offset: Some((2 << 20) + 1), ..none() }, "sectors of 512"),
        (Spec { data_offset: Some(4 << 20), ..none() }, "too few"),
        (Spec { uuid: Some("x"), ..none() }, "UUID"),
    ] {
        let store = MemoryStore::new(vec![7; 3 << 20]);
        let error = create(&store, spec).expect_err(says);
        assert!(matches!(error.kind, ErrorKind::Misuse(_)) && error.to_string().contains(says), "{says}: {error}");
        assert!(store.to_vec() == vec![7; 3 << 20], "{says}");
    }
    let store = MemoryStore::new(vec![7; 3 << 20]);
    let spec = Spec { cost: Cost { kdf: Some("argon2id"), ..COST }, ..none() };
    let refused = formats::by_name("LUKS1").expect("a format").create(&store, &spec, &[passphrase(PASSPHRASE)]);
    assert!(refused.is_err_and(|e| e.to_string().contains("PBKDF2")) && store.to_vec() == vec![7; 3 << 20]);
}
