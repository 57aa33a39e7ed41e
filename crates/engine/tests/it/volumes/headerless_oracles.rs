//! Plain dm-crypt and loop-AES both ways with cryptsetup and the kernel's dm-crypt: what they write opens here, what is
//! written here opens there.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::{noise, passphrase, shared};
use claviger_engine::credential::Headerless;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, Error, Result, Secret, Store, Unlock, Unlocked, Volume, formats};
use claviger_testkit::{tools, uml};

/// Size of the images.
const LEN: usize = 96 << 10;

/// A volume that cryptsetup and this program open in the same way.
struct Case {
    format: &'static str,
    /// cryptsetup's options after the type: cipher, hash, key size, offsets.
    options: String,
    cipher: &'static str,
    hash: Option<&'static str>,
    headerless: Headerless,
    /// A passphrase, or the bytes of a key file and what of it is the key.
    key: Key,
}

#[derive(Clone)]
enum Key {
    Passphrase(&'static str),
    File { contents: Vec<u8>, offset: u64, size: Option<u64> },
}

fn text_key() -> Key {
    Key::Passphrase("correct horse")
}

fn file_key(len: usize, offset: u64, size: Option<u64>) -> Key {
    Key::File { contents: noise(len, 3), offset, size }
}

impl Case {
    fn plain(cipher: &'static str, bits: u32, hash: Option<&'static str>, key: Key) -> Self {
        let mut options = format!("-c {cipher} -s {bits}");
        if let Some(hash) = hash {
            write!(options, " -h {hash}").expect("text");
        }
        let headerless = Headerless { key_bits: Some(bits), ..Headerless::default() };
        Self { format: "plain", options, cipher, hash, headerless, key }
    }

    fn loop_aes(cipher: &'static str, bits: u32, lines: usize) -> Self {
        // cryptsetup wants all lines to be as long as the first.
        let line = |i| format!("{:0>60}\n", i * 7919);
        let contents = (0..lines).map(line).collect::<String>().into_bytes();
        let headerless = Headerless { key_bits: Some(bits), ..Headerless::default() };
        let options = format!("-c {cipher} -s {bits}");
        let key = Key::File { contents, offset: 0, size: None };
        Self { format: "loop-AES", options, cipher, hash: None, headerless, key }
    }

    /// In sectors of 512 bytes.
    fn at(mut self, offset: u64, skip: Option<u64>, size: Option<u64>) -> Self {
        write!(self.options, " -o {offset}").expect("text");
        self.headerless.offset = Some(offset * 512);
        if let Some(skip) = skip {
            write!(self.options, " -p {skip}").expect("text");
            self.headerless.skip = Some(skip);
        }
        if let Some(size) = size {
            write!(self.options, " -b {size}").expect("text");
            self.headerless.size = Some(size * 512);
        }
        self
    }

    fn sectors(mut self, size: u32, large: bool) -> Self {
        write!(self.options, " --sector-size {size}").expect("text");
        self.headerless.sector_size = Some(size);
        if large {
            self.options += " --iv-large-sectors";
            self.headerless.large_iv = true;
        }
        self
    }

    fn credentials(&self, key_file: &Path) -> Vec<Credential> {
        match &self.key {
            Key::Passphrase(text) => vec![passphrase(text)],
            Key::File { offset, size, .. } => {
                vec![Credential::keyfile_part(key_file, *offset, *size).expect("a key file")]
            }
        }
    }

    fn unlock(&self, store: &Arc<dyn Store>, key_file: &Path) -> Unlocked {
        let credentials = self.credentials(key_file);
        let with = Unlock {
            cipher: Some(self.cipher),
            hash: self.hash,
            headerless: self.headerless,
            ..Unlock::with(&credentials)
        };
        unlock(self.format, store, &with).unwrap_or_else(|e| panic!("{} {}: {e}", self.format, self.options))
    }

    fn volume(&self, path: &Path, key_file: &Path) -> Volume {
        let store: Arc<dyn Store> = Arc::new(FileStore::open(path, Access::ReadWrite).expect("an image"));
        let unlocked = self.unlock(&store, key_file);
        Volume::new(store, unlocked.layout)
    }

    /// The shell command that opens `image` as /dev/mapper/x.
    fn open(&self, image: &Path, key_file: &Path) -> String {
        let verb = if self.format == "plain" { "open --type plain" } else { "loopaesOpen" };
        let (pipe, key) = match &self.key {
            Key::Passphrase(text) => (format!("printf %s '{text}' | "), String::new()),
            Key::File { offset, size, .. } => {
                let mut key = format!("--key-file {} --keyfile-offset {offset}", key_file.display());
                if let Some(size) = size {
                    write!(key, " --keyfile-size {size}").expect("text");
                }
                (String::new(), key)
            }
        };
        format!("{pipe}cryptsetup {verb} {} {key} {} x", self.options, image.display())
    }
}

fn unlock(format: &str, store: &Arc<dyn Store>, with: &Unlock<'_>) -> Result<Unlocked> {
    let (_, header) = formats::open(store, Some(format))?;
    header.unlock(with)
}

/// The files of a case.
struct Files {
    ours: PathBuf,
    theirs: PathBuf,
    plain: PathBuf,
    key: PathBuf,
}

fn both_ways(cases: &[Case]) {
    let Some(_) = tools::program("cryptsetup") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let mut script = String::from("set -ex\n");
    let mut all = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let path = |name: &str| dir.path().join(format!("{number}{name}"));
        let files = Files { ours: path("ours"), theirs: path("theirs"), plain: path("plain"), key: path("key") };
        if let Key::File { contents, .. } = &case.key {
            fs::write(&files.key, contents).expect("a key file");
        }
        fs::write(&files.theirs, vec![0; LEN]).expect("an image");
        fs::write(&files.ours, noise(LEN, 99)).expect("an image");
        let volume = case.volume(&files.ours, &files.key);
        let plain = noise(volume.len() as usize, number as u64);
        fs::write(&files.plain, &plain).expect("the plaintext");
        volume.write_clobbering(0, &mut plain.clone()).expect("it is written");
        let (ours, theirs, plain) = (&files.ours, &files.theirs, files.plain.display());
        write!(
            script,
            "{}\ncmp /dev/mapper/x {plain}\ncryptsetup close x\n{}\ncat {plain} >/dev/mapper/x\ncryptsetup close x\n",
            case.open(ours, &files.key),
            case.open(theirs, &files.key)
        )
        .expect("text");
        all.push(files);
    }
    let Some(done) = uml::run(&script, &[], 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    for (case, files) in cases.iter().zip(&all) {
        let volume = case.volume(&files.theirs, &files.key);
        let mut back = vec![0; volume.len() as usize];
        volume.read_at(0, &mut back).expect("it is read");
        assert!(back == fs::read(&files.plain).expect("the plaintext"), "{} {}", case.format, case.options);
        // Outside its data nothing was written.
        let (ours, before) = (fs::read(&files.ours).expect("an image"), noise(LEN, 99));
        let start = case.headerless.offset.unwrap_or(0) as usize;
        let end = start + back.len();
        assert!(ours[..start] == before[..start] && ours[end..] == before[end..], "{}", case.options);
    }
}

#[test]
fn plain_volumes_both_ways() {
    let p = Case::plain;
    both_ways(&[
        p("aes-cbc-essiv:sha256", 256, Some("ripemd160"), text_key()),
        p("aes-cbc-essiv:sha256", 256, None, text_key()),
        p("aes-xts-plain64", 512, Some("sha256"), text_key()),
        p("aes-xts-plain64", 256, Some("sha512"), text_key()),
        p("aes-xts-plain64", 512, Some("whirlpool"), text_key()),
        p("serpent-xts-plain64", 512, Some("sha1"), text_key()),
        p("twofish-cbc-plain", 256, Some("sha256:16"), text_key()),
        p("camellia-xts-plain64", 512, Some("plain"), text_key()),
        p("blowfish-cbc-plain", 256, Some("ripemd160:20"), text_key()),
        p("aes", 256, Some("plain:5"), text_key()),
        p("aes-xts-plain64", 512, None, file_key(64, 0, None)),
        p("aes-xts-plain64", 512, None, file_key(1000, 0, None)),
        p("aes-xts-plain64", 512, None, file_key(1000, 17, Some(64))),
        p("aes-xts-plain64", 256, None, file_key(2 << 20, (2 << 20) - 32, Some(32))),
        p("aes-xts-plain64", 512, Some("sha256"), text_key()).at(8, None, None),
        p("aes-xts-plain64", 512, Some("sha256"), text_key()).at(16, Some(16), Some(64)),
        p("aes-cbc-plain64", 256, Some("sha256"), text_key()).at(0, Some(0x1_2345_6780), Some(8)),
        p("aes-xts-plain64", 512, Some("sha256"), text_key()).sectors(4096, false),
        p("aes-xts-plain64", 512, Some("sha256"), text_key()).at(8, Some(8), Some(32)).sectors(4096, true),
        p("serpent-cbc-essiv:sha256", 256, Some("sha256"), text_key()).at(8, Some(8), Some(96)).sectors(2048, true),
    ]);
}

#[test]
fn loop_aes_volumes_both_ways() {
    let l = Case::loop_aes;
    let versions = [1, 64, 65].into_iter().flat_map(|lines| [128, 192, 256].map(|bits| l("aes", bits, lines)));
    let places = [
        l("aes", 128, 65).at(16, None, None),
        l("aes", 256, 64).at(16, Some(0), None),
        l("aes", 128, 1).at(7, None, None),
        l("serpent", 128, 65),
        l("twofish", 256, 65),
        l("blowfish", 128, 64),
    ];
    both_ways(&versions.chain(places).collect::<Vec<_>>());
}

/// A key file encrypted by gpg opens a volume like its plaintext.
#[test]
fn key_files_of_gpg_open_what_their_text_opens() {
    let Some(gpg) = tools::program("gpg") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let home = dir.path().join("home");
    fs::create_dir(&home).expect("a folder");
    let case = Case::loop_aes("aes", 128, 65);
    let Key::File { contents, .. } = &case.key else { panic!("a key file") };
    let (text, secret) = (dir.path().join("keys"), dir.path().join("passphrase"));
    fs::write(&text, contents).expect("a file");
    fs::write(&secret, "a long passphrase\n").expect("a file");
    let store = shared(MemoryStore::new(noise(LEN, 5)));
    let read = |unlocked: Unlocked| {
        let mut bytes = vec![0; LEN];
        Volume::new(Arc::new(MemoryStore::new(noise(LEN, 5))), unlocked.layout).read_at(0, &mut bytes).expect("read");
        bytes
    };
    let expected = read(case.unlock(&store, &text));
    for options in [&["--armor"][..], &[], &["--cipher-algo", "TWOFISH", "--compress-algo", "none"]] {
        let file = dir.path().join("keys.gpg");
        let mut command = Command::new(&gpg);
        command.arg("--homedir").arg(&home).args([
            "--batch",
            "--yes",
            "--pinentry-mode",
            "loopback",
            "--passphrase-file",
        ]);
        tools::run(command.arg(&secret).args(options).arg("--output").arg(&file).arg("--symmetric").arg(&text));
        let open = |text: Option<&str>| {
            let mut credentials = Credential::keyfiles(&file).expect("a key file");
            credentials.extend(text.map(passphrase));
            unlock("loop-AES", &store, &Unlock { headerless: case.headerless, ..Unlock::with(&credentials) })
        };
        assert!(read(open(Some("a long passphrase")).expect("it opens")) == expected, "{options:?}");
        let kind = |result: Result<Unlocked>| result.map_err(|e: Error| e.kind.to_string()).err().expect("an error");
        assert!(kind(open(Some("another passphrase"))).contains("gpg does not open"), "{options:?}");
        assert!(kind(open(None)).contains("this key file is encrypted by gpg"), "{options:?}");
    }
    let _ = Command::new("gpgconf").arg("--homedir").arg(&home).args(["--kill", "gpg-agent"]).status();
}

#[test]
fn a_wrong_passphrase_is_warned_of_and_the_right_one_is_not() {
    let key = |text| [passphrase(text)];
    let (right, wrong) = (key("right"), key("wrong"));
    let with =
        |credentials| Unlock { cipher: Some("aes-cbc-plain"), hash: Some("sha256"), ..Unlock::with(credentials) };
    let store = Arc::new(MemoryStore::new(noise(1 << 20, 8)));
    let open = |with: &Unlock<'_>| unlock("plain", &shared(Arc::clone(&store)), with).expect("anything opens");
    let mut plain = vec![0; 1 << 20];
    // The superblock of an ext2 file system, as far as its mark.
    plain[0x438..0x43a].copy_from_slice(&0xef53u16.to_le_bytes());
    plain[0x10000..].copy_from_slice(&noise((1 << 20) - 0x10000, 1));
    Volume::new(Arc::clone(&store) as Arc<dyn Store>, open(&with(&right)).layout)
        .write_clobbering(0, &mut plain)
        .expect("it is written");
    let warned = |with: &Unlock<'_>, what: &str| open(with).warnings.iter().any(|w| w.what.contains(what));
    assert!(!warned(&with(&right), "recognised") && !warned(&with(&right), "numbers"));
    assert!(warned(&with(&wrong), "Nothing in it is recognised"));
    assert!(warned(&Unlock { cipher: Some("aes-xts-plain64"), ..with(&right) }, "Nothing in it is recognised"));
    let skipped = Headerless { skip: Some(4), ..Headerless::default() };
    assert!(warned(&Unlock { headerless: skipped, ..with(&right) }, "sector numbers wrong"));
}

/// A loop device of 2004, whose options for losetup are forgotten.
#[test]
fn cryptoloop_volumes_open_when_only_the_passphrase_is_known() {
    let credentials = [passphrase("a passphrase of 2004 that is longer than 31 bytes")];
    for (cipher, hash, bits) in [
        ("aes-cbc-plain", "rmd160", 128),
        ("aes-cbc-plain", "unhashed2", 256),
        ("twofish-cbc-plain", "sha512", 256),
        ("serpent-cbc-plain", "sha256", 192),
        ("blowfish-cbc-plain", "rmd160", 128),
    ] {
        let known = Headerless { key_bits: Some(bits), ..Headerless::default() };
        let exact = Unlock { cipher: Some(cipher), hash: Some(hash), headerless: known, ..Unlock::with(&credentials) };
        let store = shared(MemoryStore::new(noise(1 << 20, 8)));
        let unlocked = unlock("cryptoloop", &store, &exact).expect("anything opens");
        assert!(
            unlocked.warnings.iter().any(|w| w.what.contains("weak")) && unlocked.warnings.len() == 2,
            "nothing shows"
        );
        let mut plain = vec![0; 1 << 20];
        plain[1024..2048].copy_from_slice(&[b"text of a superblock, more or less".repeat(40)].concat()[..1024]);
        Volume::new(Arc::clone(&store), unlocked.layout).write_clobbering(0, &mut plain).expect("written");
        let found = unlock("cryptoloop", &store, &Unlock::with(&credentials)).expect("it is found");
        let facts = &found.facts;
        assert_eq!((format!("{}-{}", facts.cipher, facts.mode), facts.key_bits), (cipher.to_owned(), bits), "{hash}");
        assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
        let wrong = [passphrase("wrong")];
        let error = unlock("cryptoloop", &store, &Unlock::with(&wrong)).err().expect("it does not open");
        assert!(error.to_string().contains("none of the"), "{error}");
    }
}

#[test]
fn nothing_is_written_where_a_volume_opens_or_does_not() {
    let store = shared(MemoryStore::new(noise(LEN, 4)));
    let keys = Secret::copy_from(b"short");
    let volume_key = [Credential::VolumeKey(Secret::copy_from(&[7; 32]))];
    let file = [Credential::Keyfile(keys)];
    let both = [passphrase("x"), Credential::Keyfile(Secret::copy_from(&[1; 64]))];
    let text = [passphrase("x")];
    let bits = |bits| Headerless { key_bits: Some(bits), ..Headerless::default() };
    let misuse = |format: &str, with: &Unlock<'_>| {
        let error = unlock(format, &store, with).err().unwrap_or_else(|| panic!("{format} opens"));
        assert!(matches!(error.kind, claviger_engine::ErrorKind::Misuse(_)), "{format}: {error}");
    };
    misuse("plain", &Unlock::with(&file));
    misuse("plain", &Unlock::with(&both));
    misuse("plain", &Unlock::with(&[]));
    misuse("plain", &Unlock { cipher: Some("no-such-cipher"), ..Unlock::with(&[]) });
    for wrong in [0, 7, 100, 1 << 31] {
        misuse("plain", &Unlock { headerless: bits(wrong), ..Unlock::with(&text) });
        misuse("loop-AES", &Unlock { headerless: bits(wrong), ..Unlock::with(&text) });
    }
    misuse("plain", &Unlock { hash: Some("sha256:99"), ..Unlock::with(&text) });
    misuse("plain", &Unlock { headerless: bits(128), ..Unlock::with(&volume_key) });
    misuse("cryptoloop", &Unlock { hash: Some("md4"), ..Unlock::with(&text) });
    misuse("loop-AES", &Unlock { cipher: Some("aes-xts-plain64"), ..Unlock::with(&text) });
    assert!(unlock("plain", &store, &Unlock::with(&volume_key)).is_ok());
    let mut after = vec![0; LEN];
    store.read_at(0, &mut after).expect("it is read");
    assert!(after == noise(LEN, 4));
}
