//! The memory of the program while a volume is open has no password, and keys are in locked memory alone. While there is no request, no
//! register holds a key.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_crypto::afsplit;
use claviger_crypto::argon2::{Params, Variant};
use claviger_crypto::ciphers::CIPHERS;
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::hash::{self, SHA256, SHA512};
use claviger_crypto::modes::SectorCipher;
use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_crypto::pool::Pool;
use claviger_crypto::{Acceleration, Cipher};
use claviger_testkit::processes::{Memory, Needle, Registers, found};
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;

/// Ciphers whose volumes are examined: each has key schedules of its own.
const SINGLE: &[&str] = &["AES", "Serpent", "Twofish"];

/// The password, the header key and the master keys of a volume of one cipher, made with SHA-512 and [`PASSWORD`]: its
/// header is decrypted here, in a process of its own. Keys are looked for in pieces of 16 bytes.
pub fn secrets(volume: &str, cipher: &str) -> Vec<Needle> {
    secrets_with(volume, cipher, PASSWORD)
}

/// The same with another password.
pub fn secrets_with(volume: &str, cipher: &str, password: &str) -> Vec<Needle> {
    let header = &fs::read(volume).expect("a file")[..512];
    let keys = header_keys(header, cipher, password, false).expect("the header opens");
    [vec![("password".to_owned(), password.as_bytes().to_vec())], keys].concat()
}

/// The header key and the master keys of a header of TrueCrypt's, or of VeraCrypt's with a PIM of 1, if it opens.
pub fn header_keys(header: &[u8], cipher: &str, password: &str, veracrypt: bool) -> Option<Vec<Needle>> {
    // TrueCrypt 7.1a, Pkcs5.c: 1000 iterations of HMAC-SHA-512. VeraCrypt 1.26, Pkcs5.c: 15000 and 1000 more.
    let (iterations, magic) = if veracrypt { (16_000, b"VERA") } else { (1000, b"TRUE") };
    let mut header_key = [0; 64];
    assert!(SHA512.pbkdf2(password.as_bytes(), &header[..64], iterations, &mut header_key, &|| true));
    let cipher: &Cipher = CIPHERS.iter().find(|c| c.name == cipher).expect("a cipher");
    let keyed = |key: &[u8]| cipher.with_key(key, Acceleration::On);
    let xts = Xts::new(vec![Layer { data: keyed(&header_key[..32]), tweak: keyed(&header_key[32..]) }], 448);
    let mut body = header[64..512].to_vec();
    xts.decrypt(0, &mut body);
    // The key area begins at byte 256 of the header (TrueCrypt 7.1a, Volumes.h).
    let master = &body[256 - 64..][..64];
    (&body[..4] == magic).then(|| [pieces("header key", &header_key), pieces("master key", master)].concat())
}

pub fn password() -> Needle {
    ("password".to_owned(), PASSWORD.as_bytes().to_vec())
}

/// A key in pieces of 16 bytes: a cascade or a mode may keep a part of it only.
pub fn pieces(name: &str, key: &[u8]) -> Vec<Needle> {
    let piece = |(i, piece): (usize, &[u8])| (format!("{name}, bytes from {} on", i * 16), piece.to_vec());
    key.chunks_exact(16).enumerate().map(piece).collect()
}

/// A volume of Linux, how it is opened, and what of it is secret.
struct Volume {
    name: &'static str,
    path: String,
    options: Vec<String>,
    needles: Vec<Needle>,
}

/// LUKS1, LUKS2 with both derivations, plain dm-crypt, and loop-AES with the 65 keys of its version 3.
fn linux_volumes(folder: &Folder) -> Vec<Volume> {
    let mut all: Vec<Volume> = LUKS.iter().map(|(name, how)| luks_volume(folder, name, how)).collect();
    let headerless = |name: &'static str, options: &[&str], needles: Vec<Needle>| {
        let path = folder.str(name);
        fs::write(&path, vec![0x5a; 1 << 20]).expect("a file");
        Volume { name, path, options: options.iter().map(|o| (*o).to_owned()).collect(), needles }
    };
    let mut key = [0; 64];
    let (first, second) = key.split_at_mut(32);
    SHA256.digest(&[PASSWORD.as_bytes()], first);
    SHA256.digest(&[b"A", PASSWORD.as_bytes()], second);
    let options = ["--format", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512", "--hash", "sha256"];
    let options = [&options[..], &["--password-file", &folder.password]].concat();
    all.push(headerless("plain", &options, [vec![password()], pieces("volume key", &key)].concat()));
    let lines: Vec<String> =
        (0..65).map(|i| format!("{i:02} is the number of this line of a key file, whose lines differ")).collect();
    let keyfile = folder.str("keys");
    fs::write(&keyfile, lines.join("\n") + "\n").expect("a key file");
    let mut needles = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let mut key = [0; 64];
        SHA512.digest(&[line.as_bytes()], &mut key);
        key[0] ^= 0xf4; // losetup's `multiKeyBits`
        needles.push((format!("line {i}"), line.as_bytes()[..16].to_vec()));
        // The last one is the seed of vectors, of which a state of MD5 is kept.
        needles.extend(pieces(if i < 64 { "volume key" } else { "seed" }, &key[..if i < 64 { 32 } else { 16 }]));
    }
    let options =
        ["--format", "loop-AES", "--cipher", "aes", "--key-size", "256", "--no-password", "--keyfile", &keyfile];
    all.push(headerless("loop-AES", &options, needles));
    all
}

/// How LUKS volumes are made, quickly.
const LUKS: &[(&str, &[&str])] = &[
    ("LUKS1", &["--format", "LUKS1", "--iterations", "1000"]),
    ("LUKS2-PBKDF2", &["--format", "LUKS2", "--kdf", "pbkdf2", "--iterations", "1000"]),
    (
        "LUKS2-Argon2",
        &["--format", "LUKS2", "--kdf", "argon2id", "--iterations", "4", "--kdf-memory", "1M", "--kdf-parallel", "2"],
    ),
];

fn luks_volume(folder: &Folder, name: &'static str, how: &[&str]) -> Volume {
    let path = folder.str(name);
    let create = ["create", "--quick", "--size", "18M", "--password-file", &folder.password];
    run([&create[..], how, &[&path]].concat()).succeeds();
    let options = vec!["--password-file".to_owned(), folder.password.clone()];
    let keys = luks_secrets(&fs::read(&path).expect("a file"), PASSWORD);
    Volume { name, needles: [vec![password()], keys].concat(), path, options }
}

/// The key of the first keyslot, the split key in it and the volume key, all derived here: noise where the password is another, nothing
/// without a keyslot.
pub fn luks_secrets(store: &[u8], password: &str) -> Vec<Needle> {
    let keyslot = if store[7] == 1 { Some(luks1_keyslot(store, password)) } else { luks2_keyslot(store, password) };
    let Some(keyslot) = keyslot else { return Vec::new() };
    let mut material = store[keyslot.at..][..(4000 * keyslot.key_len).next_multiple_of(512)].to_vec();
    let cipher = Specification::parse(&keyslot.cipher).expect("a cipher");
    cipher.with_key(&keyslot.derived, Sectors::default(), Acceleration::On).expect("a key").decrypt(0, &mut material);
    material.truncate(4000 * keyslot.key_len);
    let hash = hash::by_name(&keyslot.hash).expect("a hash");
    let volume_key = afsplit::merge(&material, 4000, hash);
    let ends = [&material[..32], &material[material.len() - 32..]].concat();
    [pieces("derived key", &keyslot.derived), pieces("split key", &ends), pieces("volume key", &volume_key)].concat()
}

/// Where a key is, and what opens it.
struct Keyslot {
    at: usize,
    key_len: usize,
    cipher: String,
    hash: String,
    derived: Vec<u8>,
}

/// LUKS1 On-Disk Format Specification 1.2.3, section 2.3.
fn luks1_keyslot(store: &[u8], password: &str) -> Keyslot {
    let number = |at: usize| u32::from_be_bytes(*store[at..].first_chunk().expect("a number"));
    let text = |at: usize| String::from_utf8_lossy(&store[at..at + 32]).trim_end_matches('\0').to_owned();
    let key_len = number(108) as usize;
    let mut derived = vec![0; key_len];
    let hash = text(72);
    let prf = hash::by_name(&hash).expect("a hash");
    assert!(prf.pbkdf2(password.as_bytes(), &store[216..248], number(212), &mut derived, &|| true));
    let cipher = format!("{}-{}", text(8), text(40));
    Keyslot { at: number(248) as usize * 512, key_len, cipher, hash, derived }
}

/// LUKS2 On-Disk Format Specification 1.1.1, section 3.2.
fn luks2_keyslot(store: &[u8], password: &str) -> Option<Keyslot> {
    let json = &store[4096..16384];
    let json = &json[..json.iter().position(|b| *b == 0)?];
    let json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let slots = json["keyslots"].as_object()?.values();
    let slot = slots.into_iter().find(|slot| slot["type"] == "luks2")?;
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u32;
    let (kdf, area) = (&slot["kdf"], &slot["area"]);
    let salt = from_base64(&text(&kdf["salt"]));
    let mut derived = vec![0; number(&area["key_size"]) as usize];
    if kdf["type"] == "pbkdf2" {
        let prf = hash::by_name(&text(&kdf["hash"])).expect("a hash");
        assert!(prf.pbkdf2(password.as_bytes(), &salt, number(&kdf["iterations"]), &mut derived, &|| true));
    } else {
        let (memory_kib, passes, lanes) = (number(&kdf["memory"]), number(&kdf["time"]), number(&kdf["cpus"]));
        let params = Params { variant: Variant::Id, memory_kib, passes, lanes, ..Params::default() };
        let pool = Pool::new(1, std::time::Duration::ZERO);
        params.derive(password.as_bytes(), &salt, u64::MAX, &pool, &|| true, &mut derived).expect("a key");
    }
    Some(Keyslot {
        at: text(&area["offset"]).parse().expect("a number"),
        key_len: number(&slot["key_size"]) as usize,
        cipher: text(&area["encryption"]),
        hash: text(&slot["af"]["hash"]),
        derived,
    })
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> = text.bytes().map_while(|c| DIGITS.iter().position(|d| *d == c)).map(|d| d as u32).collect();
    let bytes = |four: &[u32]| {
        let bits = four.iter().fold(0, |sum, digit| sum << 6 | digit) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(bytes).collect()
}

#[test]
fn an_open_volume_keeps_no_password() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    for cipher in SINGLE {
        let volume = folder.volume(&format!("{cipher}.tc"), "1M", &["--cipher", cipher]);
        let needles = secrets(&volume, cipher);
        let socket = folder.str(cipher);
        let served = Served::start(["--password-file", &folder.password, "--socket", &socket, &volume]);
        let Some((wrote, said)) = qemu_io(&served.uri, "write -P 1 1000 300000") else { return };
        assert!(wrote, "{said}");
        only_locked(cipher, served.pid, &needles, "master key", *cipher == "AES");
        served.stop().succeeds();
    }
}

/// Checks that ordinary memory has no secret, not even round keys, and that locked memory has only those named in `allowed`.
/// This finds the `key` wherever it is kept, too, because AES has it as the first part of its schedule.
#[track_caller]
fn only_locked(what: &str, pid: u32, needles: &[Needle], allowed: &str, key: bool) {
    let memory = Memory::of(pid);
    for needles in [needles, &memory.locked_as_vectors()] {
        assert!(found(&memory.ordinary, needles).is_empty(), "{what}: {:?}", found(&memory.ordinary, needles));
    }
    let locked = found(&memory.locked, needles);
    let (keys, wrong): (Vec<&str>, Vec<&str>) = locked.into_iter().partition(|name| name.starts_with(allowed));
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    assert!(!key || !keys.is_empty(), "{what}: the scan sees nothing");
}

#[test]
fn an_open_volume_of_linux_keeps_no_password_and_its_key_in_locked_memory_alone() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    for (i, volume) in linux_volumes(&folder).iter().enumerate() {
        let socket = folder.str(&format!("s{i}"));
        let options = volume.options.iter().map(String::as_str);
        let served = Served::start(["--socket", &socket].into_iter().chain(options).chain([&*volume.path]));
        let Some((wrote, said)) = qemu_io(&served.uri, "write -P 1 1000 300000") else { return };
        assert!(wrote, "{said}");
        only_locked(volume.name, served.pid, &volume.needles, "volume key", true);
        served.stop().succeeds();
    }
}

/// Checks that no register of any thread holds anything of locked memory, where the round keys of a volume of AES are.
#[track_caller]
fn no_register_has_keys(what: &str, pid: u32, thread: &str, needles: &[Needle]) {
    let names = fs::read_dir(format!("/proc/{pid}/task")).expect("procfs").flatten();
    let mut names = names.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    assert!(names.any(|name| name.starts_with(thread)), "{what}: the thread that has worked is there");
    let Some(registers) = Registers::of(pid) else { return };
    let mut all = Memory::of(pid).locked_as_vectors();
    let keys: Vec<&Needle> = needles.iter().filter(|(name, _)| name.starts_with("master key")).collect();
    for key in keys.chunks(2).map(|halves| [&halves[0].1[..], &halves[1].1].concat()) {
        let round_keys = Aes::new(&key).round_keys().to_vec();
        for round_key in [round_keys[0], round_keys[round_keys.len() - 1]] {
            assert!(all.iter().any(|(_, bytes)| *bytes == round_key), "{what}: the scan knows the round keys");
        }
    }
    all.extend_from_slice(needles);
    let found = found(&registers.bytes, &all);
    assert!(found.is_empty(), "{what}, {} threads: {found:?}", registers.threads);
}

#[test]
fn no_thread_of_a_server_keeps_keys_in_its_registers() {
    let (Some(_), Some(_), Some(())) = (tools::program("qemu-io"), tools::program("stdbuf"), tools::root()) else {
        return;
    };
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "4M", &["--cipher", "AES"]);
    let needles = secrets(&volume, "AES");
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    // It stays connected, so that the connection's thread waits for the next request.
    let commands = ["write -P 1 0 2M", "read -P 1 0 2M", "write -P 2 4096 4096", "read -P 2 4096 4096", "sleep 600000"];
    let mut client = Command::new("stdbuf");
    client
        .args(["-oL", "qemu-io", "-f", "raw"])
        .args(commands.iter().flat_map(|command| ["-c", command]))
        .arg(&served.uri);
    let mut client = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("qemu-io starts");
    let said = BufReader::new(client.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    assert_eq!(said.filter(|line| line.starts_with("read 4096/4096 bytes")).take(1).count(), 1, "it was read");
    no_register_has_keys("NBD", served.pid, "nbd-", &needles);
    client.kill().expect("killed");
    client.wait().expect("it has ended");
    served.stop().succeeds();
}

#[test]
fn no_thread_of_a_mount_keeps_keys_in_its_registers() {
    let Some(place) = MountSpace::root() else { return };
    let volume = place.volume("v.tc", "4M", &[]);
    let needles = secrets(&volume, "AES");
    let dir = place.dir("d");
    let pid = place.mount(&volume, &dir, &["--filesystem", "none"]).succeeds().json()["pid"].as_u64().expect("a pid");
    let file = fs::OpenOptions::new().read(true).write(true).open(format!("{dir}/volume")).expect("a file");
    let mut bytes = vec![0x5a; 2 << 20];
    for len in [bytes.len(), 4096, 700] {
        file.write_all_at(&bytes[..len], 100).expect("written");
        file.read_exact_at(&mut bytes[..len], 100).expect("read");
    }
    drop(file);
    no_register_has_keys("FUSE", pid as u32, "fuse", &needles);
    place.unmount(&dir).succeeds();
}

#[test]
fn no_core_is_dumped_and_nobody_looks_in() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &volume]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", served.pid)).expect("procfs");
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    served.stop().succeeds();
    // A process that is not dumpable has its /proc entries owned by root (proc_pid(5)).
    let Some(()) = tools::root() else { return };
    tools::run(Command::new("chmod").args(["-R", "a+rwX"]).arg(folder.path(".")));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_claviger"), "serve", "--password-file"]);
    command.args([&*folder.password, "--socket", &folder.str("s"), &volume, "--run", "stat -c %u /proc/$PPID/mem"]);
    let owner = done(command.stdin(Stdio::null()).output().expect("it ends")).succeeds();
    assert_eq!(owner.text(), "0\n");
}
