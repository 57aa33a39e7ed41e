//! The hashes that a Linux kernel lists, beside ours of the same name: none is missing, and all give the same digests and HMACs.

use std::collections::BTreeMap;

use claviger_crypto::hash;
use claviger_testkit::random::Random;
use claviger_testkit::vectors::hex;
use claviger_testkit::{tools, uml};

/// What the kernel lists among hashes, but no key is made of: checksums, those that take a key themselves, and nothing at all.
const NO_HASHES: &[&str] = &[
    "crc32",
    "crc32c",
    "crc64-rocksoft",
    "crct10dif",
    "xxhash64",
    "digest_null",
    "ghash",
    "michael_mic",
    "nhpoly1305",
    "poly1305",
];

/// Messages around the sizes of blocks, in bytes.
const LENGTHS: &[usize] = &[0, 1, 63, 64, 65, 127, 128, 129, 144, 300];

/// Loads all modules, and prints for each hash its name, and the digest of each message and its HMAC, a dash where it has none. The
/// messages follow in the arguments, then the key.
const SCRIPT: &str = r#"
import re, socket, sys
*messages, key = [bytes.fromhex(text) for text in sys.argv[1:]]

def run(name, key, message):
    try:
        with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as one:
            one.bind(("hash", name))
            if key:
                one.setsockopt(socket.SOL_ALG, socket.ALG_SET_KEY, key)
            with one.accept()[0] as operation:
                operation.sendall(message)
                return operation.recv(64).hex() or "-"
    except OSError:
        return "-"

for entry in open("/proc/crypto").read().split("\n\n"):
    fields = dict(re.split(r" *: ", line, maxsplit=1) for line in entry.splitlines() if " : " in line or ": " in line)
    if fields.get("type") in ("shash", "ahash"):
        name = fields["name"]
        print(name, *(run(name, None, m) for m in messages), *(run(f"hmac({name})", key, m) for m in messages))
"#;

#[test]
fn the_kernels_hashes_are_ours() {
    if tools::program("python3").is_none() {
        return;
    }
    let mut random = Random::new(7);
    let messages: Vec<Vec<u8>> = LENGTHS.iter().map(|len| random.bytes(*len)).collect();
    let key = random.bytes(70);
    // As PBKDF2 ends its salts, of which one iteration is an HMAC.
    let salted = |message: &[u8]| [message, &1u32.to_be_bytes()].concat();
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("hashes.py"), SCRIPT).expect("a script");
    let arguments: Vec<String> = messages.iter().map(|m| salted(m)).chain([key.clone()]).map(|m| hex(&m)).collect();
    // tcrypt measures, and does nothing else.
    let script = format!(
        "cd /lib/modules/*/kernel/crypto && for m in *.ko; do [ $m = tcrypt.ko ] || modprobe -q ${{m%.ko}}; done\n\
         exec python3 {}/hashes.py {}\n",
        dir.path().display(),
        arguments.join(" ")
    );
    let Some(done) = uml::run(&script, &[], 240) else { return };
    assert_eq!(done.status, 0, "{}", done.output);

    let theirs: BTreeMap<&str, Vec<&str>> = done
        .output
        .lines()
        .map(|line| line.split(' '))
        .map(|mut words| (words.next().expect("a name"), words.collect()))
        .collect();
    assert!(
        ["md5", "sha256", "wp256", "wp384", "blake2b-160"].iter().all(|name| theirs.contains_key(name)),
        "{theirs:?}"
    );
    for (name, values) in theirs.into_iter().filter(|(name, _)| !NO_HASHES.contains(name)) {
        let Some(hash) = hash::by_name(name) else { panic!("no hash is called {name}") };
        let (digests, macs) = values.split_at(messages.len());
        for (i, message) in messages.iter().enumerate() {
            let mut ours = vec![0; hash.size];
            hash.digest(&[&salted(message)], &mut ours);
            assert_eq!(hex(&ours), digests[i], "{name} of {} bytes", message.len() + 4);
            assert!(hash.pbkdf2_blocks(&key, message, 1, 1, &mut ours, &|| true));
            assert_eq!(hex(&ours), macs[i], "HMAC with {name} of {} bytes", message.len() + 4);
        }
    }
}
