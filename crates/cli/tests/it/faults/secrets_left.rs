//! No secret stays in memory: every verb that handles one is run on every format, with every kind of end. Each of its processes, helpers
//! and servers in the background too, is stopped just before it ends, and searched for passwords and keys.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::*;
use crate::faults::secrets::{header_keys, luks_secrets, pieces};
use claviger_engine::file_formats::FILE_FORMATS;
use claviger_engine::formats::FORMATS;
use claviger_testkit::bitlocker::maker::{Kind, Protector, Volume, recovery_text};
use claviger_testkit::dmg;
use claviger_testkit::faults::{self, Ended, Fault};
use claviger_testkit::filevault2::{BLOCK, Recipe, User};
use claviger_testkit::processes::{Memory, Needle, found};
use claviger_testkit::{ecryptfs, random::Random, tools};
use rustix::io::Errno;

use End::{Cancelled, Damaged, Done, Full, Wrong};

/// How a verb ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// With another password, which is a secret as well: it may be that of another volume.
    Wrong,
    /// With keyslots, headers or metadata damaged.
    Damaged,
    /// Half of its writes are done when the disk is full.
    Full,
    /// By SIGINT, once it has worked for a while.
    Cancelled,
}

/// A verb at work on a format.
struct Case {
    format: &'static str,
    /// The files to begin with, in a folder of their own: see [`WORDS`].
    before: &'static str,
    /// Looked at. A script, if there is a semicolon.
    verb: &'static str,
    ends: &'static [End],
}

const fn case(format: &'static str, before: &'static str, verb: &'static str, ends: &'static [End]) -> Case {
    Case { format, before, verb, ends }
}

/// Words of the scripts. Passwords are in `pw`, `new` and `wrong`, a keyfile in `kf`, and a volume key in `vk`.
const WORDS: &str = r#"
luks2() { claviger create --quick --format LUKS2 --kdf pbkdf2 --iterations 1000 --metadata-size 16K --keyslots-size 768K --offset 1M --size 2M --password-file pw "$@" v; }
luks1() { claviger create --quick --format LUKS1 --iterations 1000 --offset 4M --size 5M --password-file pw v; }
truecrypt() { claviger create --quick --format TrueCrypt --hash SHA-512 --cipher AES --size 300K --password-file pw "$@" v; }
veracrypt() { claviger create --quick --format VeraCrypt --pim 1 --hash SHA-512 --cipher AES --size 300K --password-file pw v; }
bitlocker() { cp made v; }
cascade() { claviger create --quick --format TrueCrypt --hash SHA-512 --cipher Serpent-Twofish-AES --size 300K --password-file pw v; }
fat() { head -c 2M /dev/zero >fat; mkfs.vfat fat; claviger convert --raw-source --new-format TrueCrypt --new-hash SHA-512 --new-cipher AES --new-password-file pw fat v; }
lower() { claviger convert --raw-source --new-format eCryptfs --new-password-file pw plain lower; }
vault() { claviger convert --raw-source --new-format gocryptfs --new-password-file pw plain lower; }
encfs_folder() { mkdir -p lower d; encfs --standard --extpass "cat $PWD/pw" "$PWD/lower" "$PWD/d"; cp -r plain/. d; fusermount -u d; }
people() { for name in me friend; do claviger keyfile --efs --name $name --password-file pw $name.pfx; done; openssl pkcs12 -in me.pfx -nodes -passin file:pw -out me.pem; }
cryptomator() { claviger convert --raw-source --new-format Cryptomator --new-password-file pw plain lower; }
ntfs() { people; head -c 8M /dev/zero >v; mkntfs -F -Q -q v; ntfscp v plain/inner/large letter; }
noise() { head -c 2M /dev/urandom >v; }
slow_luks1() { luks1; printf '\377\377\377\377' | dd of=v bs=1 seek=212 conv=notrunc status=none; }
"#;

/// Opens [`WORDS`]' volumes that have no mark.
macro_rules! tc {
    ($verb:literal) => {
        concat!($verb, " --truecrypt --hash SHA-512 --password-file pw v")
    };
}

const ALL: &[End] = &[Done, Wrong, Damaged, Full];
const READS: &[End] = &[Done, Wrong, Damaged];
const WRITES: &[End] = &[Done, Full];
const ONCE: &[End] = &[Done];

static CASES: &[Case] = &[
    case("TrueCrypt", "truecrypt", tc!("info"), READS),
    case(
        "TrueCrypt",
        "truecrypt --keyfile kf",
        "cat --truecrypt --hash SHA-512 --keyfile kf --password-file pw v",
        READS,
    ),
    case("TrueCrypt", "cascade", "info --truecrypt --password-file pw v", &[Done, Wrong]),
    case(
        "TrueCrypt",
        "",
        "create --format TrueCrypt --hash SHA-512 --cipher AES --size 300K --password-file pw v",
        WRITES,
    ),
    case(
        "TrueCrypt",
        "truecrypt",
        "change --truecrypt --hash SHA-512 --password-file pw --new-password-file new v",
        ALL,
    ),
    case("TrueCrypt", "truecrypt", tc!("verify"), READS),
    case("TrueCrypt", "truecrypt", tc!("explain"), &[Done]),
    case("TrueCrypt", "truecrypt", "header backup --truecrypt --hash SHA-512 --password-file pw v backup", WRITES),
    case(
        "TrueCrypt",
        "truecrypt; claviger header backup --truecrypt --hash SHA-512 --password-file pw v backup",
        "header restore --from backup --yes --force --truecrypt --hash SHA-512 --password-file pw v",
        &[Done, Wrong, Full],
    ),
    case("TrueCrypt", "truecrypt", tc!("resize --yes --size 400K"), ALL),
    case(
        "TrueCrypt",
        "fat",
        "create --hidden --force --yes --size 512K --hash SHA-512 --hidden-hash SHA-512 --password-file pw --hidden-password-file new v",
        ALL,
    ),
    case("TrueCrypt", "fat", tc!("ls"), READS),
    case("TrueCrypt", "fat", tc!("tree"), READS),
    case("TrueCrypt", "fat", "cp --truecrypt --hash SHA-512 --password-file pw v image :/file", ALL),
    case("TrueCrypt", "fat", tc!("serve --socket s --run true"), READS),
    case("TrueCrypt", "fat", tc!("serve --isolate-keys --socket s --run true"), READS),
    case(
        "TrueCrypt",
        "fat",
        "claviger mount --truecrypt --hash SHA-512 --password-file pw v d; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case(
        "TrueCrypt",
        "fat",
        "claviger mount --isolate-keys --truecrypt --hash SHA-512 --password-file pw v d; claviger lock d; \
         claviger unlock --truecrypt --hash SHA-512 --password-file pw v; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case("TrueCrypt", "fat", "claviger attach --crypttab tab tcrypt; claviger unmount v", ONCE),
    case(
        "TrueCrypt",
        "truecrypt",
        "convert --truecrypt --hash SHA-512 --password-file pw --new-format LUKS2 --new-kdf pbkdf2 --new-iterations 1000 --new-password-file new v w",
        ALL,
    ),
    case("VeraCrypt", "veracrypt", "info --veracrypt --pim 1 --hash SHA-512 --password-file pw v", READS),
    case("VeraCrypt", "", "create --pim 1 --hash SHA-512 --cipher AES --size 300K --password-file pw v", WRITES),
    case(
        "VeraCrypt",
        "veracrypt",
        "change --veracrypt --pim 1 --hash SHA-512 --password-file pw --new-password-file new v",
        ALL,
    ),
    case("VeraCrypt", "noise", "info --veracrypt --pim 100000 --password-file pw v", &[Cancelled]),
    case("LUKS1", "luks1", "info --password-file pw v", READS),
    case(
        "LUKS1",
        "",
        "create --quick --format LUKS1 --iterations 1000 --offset 4M --size 5M --password-file pw v",
        WRITES,
    ),
    case("LUKS1", "luks1", "keyslot add --iterations 1000 --password-file pw --new-password-file new v", ALL),
    case("LUKS1", "slow_luks1", "cat --allow-slow --password-file pw v", &[Cancelled]),
    case(
        "LUKS1",
        "luks1",
        "keyslot change --iterations 2000000000 --allow-slow --password-file pw --new-password-file new v",
        &[Cancelled],
    ),
    case("LUKS2", "luks2", "info --password-file pw v", READS),
    case("LUKS2", "luks2 --integrity hmac-sha256", "cat --password-file pw v", READS),
    case(
        "LUKS2",
        "",
        "create --quick --format LUKS2 --kdf argon2id --iterations 4 --kdf-memory 1M --offset 16M --size 17M --password-file pw v",
        WRITES,
    ),
    case(
        "LUKS2",
        "",
        "create --quick --format LUKS2 --kdf argon2id --iterations 100000 --kdf-memory 8M --size 17M --password-file pw v",
        &[Cancelled],
    ),
    case(
        "LUKS2",
        "",
        "create --format LUKS2 --kdf pbkdf2 --iterations 1000 --integrity aead --cipher aes-gcm-random --offset 16M --size 18M --password-file pw v",
        WRITES,
    ),
    case(
        "LUKS2",
        "luks2",
        "keyslot add --kdf argon2id --kdf-memory 1M --iterations 4 --password-file pw --new-password-file new v",
        ALL,
    ),
    case(
        "LUKS2",
        "luks2",
        "keyslot add --kdf argon2id --kdf-memory 8M --iterations 100000 --password-file pw --new-password-file new v",
        &[Cancelled],
    ),
    case(
        "LUKS2",
        "luks2",
        "keyslot change --kdf pbkdf2 --iterations 1000 --password-file pw --new-password-file new v",
        ALL,
    ),
    case("LUKS2", "luks2", "keyslot test --password-file pw v", READS),
    // Without a TPM, the end is that of a wrong password.
    case(
        "LUKS2",
        "luks2; printf '%s' '{\"type\":\"systemd-tpm2\",\"keyslots\":[\"0\"],\"tpm2-blob\":\"AAQBAgMEABcACAALAAAAEgAIAQIDBAUGBwgAEAAA\",\"tpm2-pcrs\":[7]}' >token; claviger token import v token",
        "keyslot reseal --password-file pw v",
        &[Wrong],
    ),
    case("LUKS2", "luks2", "recovery make --password-file pw --output key v", ALL),
    case(
        "LUKS2",
        "luks2; claviger recovery make --password-file pw --output key v",
        "recovery check --password-file key v",
        ONCE,
    ),
    case(
        "LUKS2",
        "luks2; claviger recovery make --password-file pw --output key v",
        "recovery replace --yes --password-file pw --output key2 v",
        &[Done, Wrong, Full],
    ),
    case(
        "LUKS2",
        "luks2; claviger keyslot add --kdf pbkdf2 --iterations 1000 --password-file pw --new-password-file new v",
        "keyslot remove --yes --password-file pw v",
        ALL,
    ),
    case(
        "LUKS2",
        "luks2; claviger keyslot add --kdf pbkdf2 --iterations 1000 --password-file pw --new-password-file new v",
        "keyslot kill --yes --password-file new v 0",
        WRITES,
    ),
    case("LUKS2", "luks2", "header set --label other v", ONCE),
    case("LUKS2", "luks2", "reencrypt --yes --hotzone-size 256K --password-file pw v", ALL),
    case("LUKS2", "luks2", "reencrypt --isolate-keys --yes --hotzone-size 256K --password-file pw v", ALL),
    case("LUKS2", "luks2", "reencrypt --decrypt --yes --password-file pw --header h v", ALL),
    case(
        "LUKS2",
        "",
        "reencrypt --encrypt --yes --new-kdf pbkdf2 --new-iterations 1000 --password-file pw --header h image",
        WRITES,
    ),
    case("LUKS2", "luks2 --volume-key-file vk", "cat --volume-key-file vk v", ONCE),
    case("LUKS2", "luks2", "claviger attach --crypttab tab luks; claviger unmount v", ONCE),
    case("BitLocker", "bitlocker", "info --password-file pw v", READS),
    case(
        "BitLocker",
        "",
        "create --quick --format BitLocker --size 1M --password-file pw --recovery-password-file recovery2 v",
        WRITES,
    ),
    case(
        "BitLocker",
        "",
        "create --quick --format BitLocker --size 1M --password-file pw --recovery-password-file recovery2 v",
        &[Cancelled],
    ),
    case(
        "BitLocker",
        "",
        "create --quick --format BitLocker --filesystem ntfs --size 8M --password-file pw --no-recovery-password v",
        ONCE,
    ),
    case("BitLocker", "bitlocker", "cat --password-file recovery v", ONCE),
    case("BitLocker", "bitlocker", "change --password-file pw --new-password-file new v", ALL),
    case("BitLocker", "bitlocker", "keyslot add --password-file pw --recovery-password-file recovery2 v", ALL),
    case("BitLocker", "bitlocker", "keyslot recovery --password-file pw --output recovery2 v", ONCE),
    case("BitLocker", "bitlocker", "recovery show --password-file pw --output recovery2 v", ONCE),
    case("BitLocker", "bitlocker", "keyslot renew --password-file pw v", ALL),
    case("BitLocker", "bitlocker", "keyslot suspend --password-file pw v", ALL),
    case(
        "BitLocker",
        "bitlocker; claviger keyslot suspend --password-file pw v",
        "keyslot resume --password-file pw v",
        WRITES,
    ),
    case("BitLocker", "bitlocker", "header repair --yes --password-file pw v", &[Done, Damaged]),
    case("BitLocker", "bitlocker", "reencrypt --decrypt --yes --hotzone-size 256K --password-file pw v", ALL),
    case("FileVault2", "", "cat --password-file pw mac", &[Done, Wrong]),
    case("DMG", "", "cat --password-file pw dmg", &[Done, Wrong]),
    case(
        "dm-integrity",
        "luks2 --integrity hmac-sha256; dd if=v of=tags bs=1M skip=1 status=none",
        "info --format dm-integrity --keyfile kf tags",
        &[Wrong],
    ),
    case(
        "plain",
        "noise",
        "cat --format plain --cipher aes-xts-plain64 --key-size 512 --hash sha256 --password-file pw v",
        ONCE,
    ),
    case(
        "cryptoloop",
        "noise",
        "cat --format cryptoloop --cipher aes --key-size 256 --hash rmd160 --password-file pw v",
        ONCE,
    ),
    case(
        "loop-AES",
        "",
        "create --format loop-AES --cipher aes --key-size 256 --size 300K --fresh-keyfile keys --unencrypted-keyfile v",
        WRITES,
    ),
    case(
        "loop-AES",
        "claviger create --format loop-AES --cipher aes --key-size 256 --size 300K --fresh-keyfile keys --unencrypted-keyfile v",
        "cat --format loop-AES --cipher aes --key-size 256 --no-password --keyfile keys v",
        ONCE,
    ),
    case("eCryptfs", "", "create --format eCryptfs --password-file pw lower", WRITES),
    case("eCryptfs", "", "create --format eCryptfs --home --password-file pw home", ONCE),
    case("eCryptfs", "lower", "info --password-file pw lower", &[Done, Wrong]),
    case("eCryptfs", "lower", "cat --password-file pw lower /inner/large", &[Done, Wrong]),
    case("eCryptfs", "lower", "cp --force --password-file pw lower image :/inner/large", &[Done, Wrong, Full]),
    case("eCryptfs", "lower", "claviger mount --password-file pw lower d; echo text >d/file; claviger unmount d", ONCE),
    case(
        "eCryptfs",
        "lower",
        "claviger mount --isolate-keys --password-file pw lower d; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case("eCryptfs", "", "convert --raw-source --new-format eCryptfs --new-password-file pw plain lower", WRITES),
    case("gocryptfs", "", "create --format gocryptfs --password-file pw lower", WRITES),
    case("gocryptfs", "vault", "cat --password-file pw lower /inner/large", &[Done, Wrong]),
    case("gocryptfs", "vault", "change --password-file pw --new-password-file new lower", &[Done, Wrong]),
    case(
        "gocryptfs",
        "vault",
        "claviger mount --password-file pw lower d; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case(
        "gocryptfs",
        "vault",
        "claviger mount --isolate-keys --password-file pw lower d; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case("Cryptomator", "", "create --format Cryptomator --password-file pw lower", WRITES),
    case("Cryptomator", "cryptomator", "cat --password-file pw lower /inner/large", &[Done, Wrong]),
    case("Cryptomator", "cryptomator", "change --password-file pw --new-password-file new lower", &[Done, Wrong]),
    case(
        "Cryptomator",
        "cryptomator",
        "claviger mount --password-file pw lower d; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case(
        "Cryptomator",
        "cryptomator",
        "claviger mount --isolate-keys --password-file pw lower d; echo text >d/file; claviger unmount d",
        ONCE,
    ),
    case("EncFS", "encfs_folder", "cat --password-file pw lower /inner/large", &[Done, Wrong]),
    case("EncFS", "encfs_folder", "claviger mount --password-file pw lower d; cat d/small; claviger unmount d", ONCE),
    case(
        "EFS",
        "ntfs",
        "claviger efs encrypt v :/letter --for me.cer; claviger cat v --file /letter --certificate me.pem >read; \
         claviger cat v --file /letter --certificate me.pfx --certificate-password-file pw; \
         claviger efs share v :/letter --certificate me.pem --for friend.cer; claviger efs change v :/letter plain/small --certificate me.pem; \
         claviger efs unshare v :/letter --for friend.cer; claviger efs decrypt --yes --certificate me.pem v :/letter",
        ONCE,
    ),
    case(
        "EFS",
        "ntfs; claviger efs encrypt v :/letter --for me.cer",
        "cat v --file /letter --certificate me.pfx --certificate-password-file pw",
        &[Done, Wrong],
    ),
    case("EFS", "", "keyfile --efs --name Me --password-file pw new.pfx", WRITES),
    case("none", "", "keyfile key", WRITES),
];

fn in_memory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("left").tempdir_in("/dev/shm").expect("a folder in memory")
}

/// A case, ready to be gone through.
struct Stage {
    case: &'static Case,
    folder: tempfile::TempDir,
    runtime: tempfile::TempDir,
}

impl Stage {
    fn new(case: &'static Case) -> Result<Self, String> {
        let stage = Self { case, folder: in_memory(), runtime: in_memory() };
        let at = stage.folder.path();
        let mut random = Random::new(17);
        fs::create_dir_all(at.join("plain/inner")).expect("folders");
        fs::create_dir(at.join("d")).expect("a folder");
        for (name, bytes) in [
            ("pw", PASSWORD.as_bytes()),
            ("new", NEW.as_bytes()),
            ("wrong", WRONG.as_bytes()),
            ("kf", &random.bytes(64)),
            ("vk", &random.bytes(64)),
            ("image", &random.bytes(600_064)),
            ("plain/small", b"small"),
            ("plain/inner/large", &random.bytes(50_000)),
        ] {
            fs::write(at.join(name), bytes).expect("a file");
        }
        if case.format == "FileVault2" {
            let users = [User { passphrase: PASSWORD, name: "Ann", iterations: 1000 }];
            fs::write(at.join("mac"), Recipe::new(&users, &vec![7; 64 * BLOCK]).make().sealed()).expect("a volume");
        }
        if case.format == "DMG" {
            let passphrases = [(PASSWORD, 1000)];
            fs::write(at.join("dmg"), dmg::Recipe::new(&passphrases, &[7; 70_000]).make().bytes).expect("an image");
        }
        if case.format == "BitLocker" {
            let protectors = vec![Protector::Password(PASSWORD.to_owned()), Protector::Recovery([0x3c; 16])];
            let made = Volume { protectors, ..Volume::new(Kind::Windows8) }.make();
            let recovery = recovery_text(&[0x3c; 16]);
            let files = [
                ("made", &made.image[..]),
                ("vmk", &made.vmk),
                ("fvek", &made.fvek),
                ("recovery", recovery.as_bytes()),
            ];
            files.into_iter().for_each(|(name, bytes)| fs::write(at.join(name), bytes).expect("a file"));
        }
        let script = format!("{WORDS}\n{{ {}\n}} >/dev/null", if case.before.is_empty() { ":" } else { case.before });
        let made = stage.shell(at, &script).output().expect("a shell starts");
        match made.status.success() {
            true => Ok(stage),
            false => Err(format!("`{}`: {}", case.before, String::from_utf8_lossy(&made.stderr))),
        }
    }

    fn shell(&self, at: &Path, script: &str) -> Command {
        let mut command = Command::new("sh");
        let program = Path::new(env!("CARGO_BIN_EXE_claviger")).parent().expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", program.display()));
        command.args(["-ec", script]).current_dir(at).stdin(Stdio::null());
        command.env("CLAVIGER_RUNTIME_DIR", self.runtime.path().join("r")).env("HOME", self.runtime.path());
        command
    }

    /// Runs the verb to its end. What is in the memory of each of its processes then, in turn.
    fn runs(&self, at: &Path, end: End, calls: u64) -> (Ended, Vec<(String, Vec<u8>)>) {
        let verb = match end {
            Wrong => self.case.verb.replacen("password-file pw", "password-file wrong", 1),
            _ => self.case.verb.to_owned(),
        };
        let verb = if verb.contains(';') { verb } else { format!("exec claviger {verb}") };
        let table = [("tcrypt", "tcrypt"), ("luks", "luks")]
            .map(|(name, kind)| format!("{name} {0}/v {0}/pw {kind}\n", at.display()));
        fs::write(at.join("tab"), table.concat()).expect("a table");
        if end == Damaged {
            damage(at);
        }
        let strike = (end == Full).then_some((Fault::Fails(Errno::NOSPC), calls / 2));
        let interrupt = (end == Cancelled).then_some(Duration::from_millis(60));
        let mut images = Vec::new();
        let mut look = |pid: u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let memory = Memory::of(pid);
            images.push((name.trim().to_owned(), [memory.ordinary, memory.locked].concat()));
        };
        (faults::to_the_last(&mut self.shell(at, &verb), at, strike, interrupt, &mut look), images)
    }

    /// Tests each kind of end. Returns how many processes were examined, and what is wrong.
    fn goes(&self) -> (usize, Vec<String>) {
        let (mut looked, mut calls, mut wrong) = (0, 0, Vec::new());
        for &end in self.case.ends {
            let copy = in_memory();
            let at = copy.path();
            tools::run(Command::new("cp").args(["-a", "--sparse=auto"]).arg(self.folder.path().join(".")).arg(at));
            let mut needles = self.secrets(at);
            let (ended, images) = self.runs(at, end, calls);
            needles.extend(self.secrets(at));
            let mut tell =
                |what: String| wrong.push(format!("{}, {end:?}: `{}`: {what}", self.case.format, self.case.verb));
            let code = ended.status.code();
            let expected = match end {
                Done => code == Some(0),
                Cancelled => code == Some(8) || self.case.format == "BitLocker" && code == Some(0),
                Wrong | Damaged | Full => code.is_some_and(|code| code > 0),
            };
            if !expected {
                tell(format!("it ended with {}: {}", ended.status, ended.err));
            }
            if end == Done {
                calls = ended.calls(Fault::Fails(Errno::NOSPC));
            }
            // Its own name is in every process's memory: the scan sees something.
            let own = ("its name".to_owned(), b"claviger".to_vec());
            if !images
                .iter()
                .any(|(name, image)| name == "claviger" && !found(image, std::slice::from_ref(&own)).is_empty())
            {
                tell("the scan sees nothing".to_owned());
            }
            looked += images.len();
            for (name, image) in images {
                let found = found(&image, &needles);
                if !found.is_empty() {
                    tell(format!("left in {name}: {found:?}"));
                }
            }
        }
        (looked, wrong)
    }

    /// All secrets in a folder that can be computed.
    fn secrets(&self, at: &Path) -> Vec<Needle> {
        let mut all = Vec::new();
        for (name, password) in [("password", PASSWORD), ("new password", NEW), ("wrong password", WRONG)] {
            let wide: Vec<u8> = password.encode_utf16().flat_map(u16::to_le_bytes).collect();
            all.extend([(name.to_owned(), password.as_bytes().to_vec()), (format!("{name} in UTF-16"), wide)]);
            if self.case.format == "eCryptfs" {
                let key = ecryptfs::maker::stretched(password.as_bytes(), ecryptfs::maker::SALT).0;
                all.extend(pieces(&format!("key of {name}"), &key));
            }
        }
        for volume in ["v", "w", "h"].map(|name| at.join(name)) {
            let store = fs::read(&volume).unwrap_or_default();
            let of_volume = |password| match (store.get(..4), self.case.format) {
                // Computing these would take too long.
                (None, _) => Vec::new(),
                _ if self.case.before.starts_with("slow") => Vec::new(),
                (Some(b"LUKS"), _) => luks_secrets(&store, password),
                (Some(_), format @ ("TrueCrypt" | "VeraCrypt")) => {
                    let headers = [0, 65_536].into_iter().filter_map(|at| store.get(at..at + 512));
                    headers.filter_map(|it| header_keys(it, "AES", password, format == "VeraCrypt")).flatten().collect()
                }
                _ => Vec::new(),
            };
            all.extend([PASSWORD, NEW].into_iter().flat_map(of_volume));
        }
        for file in ["kf", "vk", "key", "keys", "fvek", "vmk"] {
            all.extend(pieces(file, &fs::read(at.join(file)).unwrap_or_default()));
        }
        // Without the text between the numbers.
        for file in ["recovery", "recovery2"] {
            let text = fs::read(at.join(file)).unwrap_or_default();
            all.extend((text.len() > 40).then(|| (file.to_owned(), text[..40].to_vec())));
        }
        for pfx in ["me.pfx", "new.pfx"].map(|name| at.join(name)).into_iter().filter(|path| path.exists()) {
            all.extend(private_key(&pfx, &at.join("pw")));
        }
        all
    }
}

const NEW: &str = "close sesame, and do not come back!";
const WRONG: &str = "open barley, said his brother Cassim";

/// The last number of a private key of RSA, as it is stored and from its other end.
fn private_key(pfx: &Path, password: &Path) -> Vec<Needle> {
    let script = "openssl pkcs12 -in $0 -nodes -nocerts -passin file:$1 | openssl pkey -traditional -outform DER";
    let der = tools::run(Command::new("sh").args(["-c", script]).args([pfx, password])).stdout;
    let number = der[der.len() - 96..].to_vec();
    let reversed: Vec<u8> = number.iter().rev().copied().collect();
    [pieces("private key", &number), pieces("private key, reversed", &reversed)].concat()
}

/// Changes what says whether a password is right: the first keyslots of LUKS, the three metadata of BitLocker, or the whole header.
fn damage(at: &Path) {
    let path = at.join("v");
    let mut image = fs::read(&path).expect("a volume");
    let places: Vec<usize> = match (&image[..4], image[7]) {
        (b"LUKS", 1) => vec![4096],
        (b"LUKS", _) => vec![32 << 10],
        _ if &image[3..11] == b"-FVE-FS-" => {
            image[176..200].as_chunks::<8>().0.iter().map(|at| u64::from_le_bytes(*at) as usize + 300).collect()
        }
        _ => vec![300, image.len() - 131_072 + 300],
    };
    places.into_iter().for_each(|at| image[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x55));
    fs::write(&path, image).expect("written");
}

#[test]
fn no_verb_leaves_a_secret_however_it_ends() {
    if tools::root().is_none() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return tools::skip("there is no /dev/fuse").unwrap_or_default();
    }
    for program in ["mkfs.vfat", "mkntfs", "ntfscp", "ntfs-3g", "openssl"] {
        if tools::program(program).is_none() {
            return;
        }
    }
    let only = std::env::var("LEFT").unwrap_or_default();
    let cases: Vec<_> = CASES.iter().filter(|case| format!("{} {}", case.format, case.verb).contains(&only)).collect();
    let (next, looked, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (processes, what) = match Stage::new(case) {
                        Ok(stage) => stage.goes(),
                        Err(e) => (0, vec![e]),
                    };
                    looked.fetch_add(processes, Ordering::Relaxed);
                    wrong.lock().expect("a list").extend(what);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("a list");
    eprintln!("{} processes were looked at, {} verbs", looked.into_inner(), cases.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A shell that has read a password has it in its memory.
#[test]
fn what_is_left_is_seen() {
    if tools::root().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut seen = Vec::new();
    let mut look = |pid| seen.push(found(&Memory::of(pid).ordinary, &[crate::faults::secrets::password()]).len());
    let script = format!("read x <{}; (exit 0); exit 0", folder.password);
    let ended = faults::to_the_last(Command::new("sh").args(["-c", &script]), &folder.path("."), None, None, &mut look);
    assert!(ended.status.success() && seen == [1, 1], "{seen:?}");
}

/// The table has each verb that takes a password or a keyfile, and each format.
#[test]
fn every_verb_with_a_secret_and_every_format_is_in_the_table() {
    let folders = FILE_FORMATS.iter().filter(|format| format.opens()).map(|format| format.name());
    let formats = FORMATS.iter().map(|format| format.name()).chain(folders);
    for format in formats.filter(|name| *name != "clear") {
        assert!(CASES.iter().any(|case| case.format == format), "{format}");
    }
    let help = |words: &[&str]| run(words.iter().copied().chain(["--help"])).text();
    let listed = |help: &str| -> Vec<String> {
        let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        names
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .map(str::to_owned)
            .collect()
    };
    let mut seen = 0;
    for verb in listed(&help(&[])) {
        let inner = listed(&help(&[&verb]));
        let lines: Vec<String> = match inner.is_empty() {
            true => vec![verb],
            false => inner.iter().map(|inner| format!("{verb} {inner}")).collect(),
        };
        for line in lines {
            let help = help(&line.split(' ').collect::<Vec<_>>());
            if ["--password-file <", "--keyfile <"].iter().any(|option| help.contains(option)) {
                seen += 1;
                let said = |case: &Case| {
                    case.verb.starts_with(&format!("{line} ")) || case.verb.contains(&format!("claviger {line} "))
                };
                assert!(CASES.iter().any(said), "{line}");
            }
        }
    }
    assert!(seen > 20, "{seen}");
}
