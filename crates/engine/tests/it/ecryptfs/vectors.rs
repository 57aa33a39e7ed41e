//! eCryptfs against files that Linux 6.1 has written, and files of every state.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use claviger_crypto::hash::SHA256;
use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats::ecryptfs::{
    read_wrapped, rewrap_passphrase, signatures, unwrap_passphrase, wrap_passphrase,
};
use claviger_engine::file_formats::{self, ECRYPTFS, FileFacts, FileFormat, FileState, Stacked, StoredFile};
use claviger_engine::store::Access;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, NewNode, Tree};
use claviger_engine::{Credential, ErrorKind as Kind, Secret, Unlock};

const PASSPHRASE: &[u8] = b"correct horse";
const PREFIX: &str = "ECRYPTFS_FNEK_ENCRYPTED.";
const NEW: NewNode = NewNode { mode: Some(0o644), owner: None };

/// A file of 20000 bytes, [`plaintext`], called `f20000`.
struct Vector {
    cipher: &'static str,
    key_bytes: usize,
    /// Behind the prefix.
    name: &'static str,
    /// Behind the size.
    header: &'static str,
    /// SHA-256 of all that is stored.
    sum: &'static str,
}

/// Made with `ecryptfs_cipher` and `ecryptfs_key_bytes` as here, and the passphrase also for names.
const VECTORS: &[Vector] = &[
    Vector {
        cipher: "aes",
        key_bytes: 16,
        name: "FWahUNOtaI92ukSkX4ZGoQRLVCoPcpcixlRanHN4x9VkrKtHbgwroupGiE--",
        header: "dd7ace63e1fb79960300000a0000100000028c1d040703010011223344556677606a7044bee955a4d148177be4bf293f92ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "16791534d5e096a7b38018b2eb06a9ea4f62c717300ef981fb7209e4c2bcb196",
    },
    Vector {
        cipher: "aes",
        key_bytes: 24,
        name: "FWahUNOtaI92ukXcSnbEQwEymhA4IPV-4JHXNldeKklT.6pxgW34eCBcEU--",
        header: "292d48cb15acff3e0300000a0000100000028c2d04080301001122334455667760ffba62f320a94717776b2e35b5933c331817990d8c23f59ba35696112ff03d24ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "b3c741afaf9aa444d87832833f274122769aace193bf8483365cb219265eb033",
    },
    Vector {
        cipher: "aes",
        key_bytes: 32,
        name: "FWahUNOtaI92ukYEBph7xZZlOkDtACtDSHVE3QzR6uoJMtx9Cq2uOAd2GU--",
        header: "0616690e3a97defb0300000a0000100000028c2d04090301001122334455667760561712db9cef39106560d4a373a5c24d338638b76c27475cf9e1b75f7bbfbe3fed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "0879dfb828e759e78fe5bd46ba5f6f8d2dfdc71679678e27dc20347952fb734f",
    },
    Vector {
        cipher: "blowfish",
        key_bytes: 8,
        name: "FW4hUNOtaI92ukGgahe2n8uZd7UZq9Y6BgLoHtEhpxb0hSA-",
        header: "3fbb18a0033aaf550300000a0000100000028c150404030100112233445566776043e5ad71decd01a0ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "d5abcbb30de412fcf3a28c4be3484cb5a4c26c9eb598e39ab4d623a27a037a0e",
    },
    Vector {
        cipher: "blowfish",
        key_bytes: 16,
        name: "FW4hUNOtaI92ukEkeqSXtDj0uM6n3pGxQ9NX2pk3YUWYFUM-",
        header: "0e5e6acc32dfdd390300000a0000100000028c1d0404030100112233445566776038bbb3b98938354be11f6e058e870f8fed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "b044fbcb57eba94b8894ce09999c36ff545cec108d5e3fce07519161a65dec12",
    },
    Vector {
        cipher: "blowfish",
        key_bytes: 56,
        name: "FW4hUNOtaI92ukFMFEluE3OE093MwkgVb1Enh0QsytjAr7w-",
        header: "f8b46f82c435d8770300000a0000100000028c4504040301001122334455667760ef3b35a90f79cef4211f5c97c32afb0a3757cec4aea33be5c7d6da6a88ac816927e893521aa156641cd285c921b93639400ea9d54c1ff107ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "5e7091b61412cd728578e00a626a36ef12d615ce7e053a58474f4a2635fe7216",
    },
    Vector {
        cipher: "des3_ede",
        key_bytes: 24,
        name: "FW4hUNOtaI92uk6z7no9uvlL-kpxPSz98wkj8-jZTD8UQ7I-",
        header: "f98e8c68c50f3b9d0300000a0000100000028c250402030100112233445566776039b4b336dfd7730dc030696e24166759444df75375706b18ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "df8912e093e015ceb8d9454a88528e0ff057d4f55838adf90a502fa77f484e34",
    },
    Vector {
        cipher: "twofish",
        key_bytes: 16,
        name: "FWahUNOtaI92ukfdccF.7pYcW-EfQvwAMTT4tRUkCig4Sn41oaZeQWMt3E--",
        header: "3b053a5607848da30300000a0000100000028c1d040a0301001122334455667760c055912d261c0b72b267e8a1c78337ebed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "dc8c8b12b92761a86b38769ac9ea3a1c9c45266c8ab78315e550357c55697814",
    },
    Vector {
        cipher: "twofish",
        key_bytes: 32,
        name: "FWahUNOtaI92ukfvl4erpwZXsK5QuMNE52fplReN4V.2Jz1o6tAKA-OkhU--",
        header: "97a8fba0ab294c550300000a0000100000028c2d040a0301001122334455667760561aaeb9272c475c326a2c9fabe8d70c26b1148dc98169e804a61519b4493f61ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "177f9f9e99f83fe4da918409fd7d2a75503d20dc3d5d18bf51cc6777e5d7404c",
    },
    Vector {
        cipher: "cast5",
        key_bytes: 8,
        name: "FW4hUNOtaI92ukA3dF0VV0Zv5m6Tu8IZ4gOyH99aqGMuuXo-",
        header: "e8c84731d449f0c40300000a0000100000028c1504030301001122334455667760e32e352684815b87ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "983e21b5d06911472d58a133f03fdf607f4339542f6d9d1a1499d8cd4578d6a9",
    },
    Vector {
        cipher: "cast5",
        key_bytes: 16,
        name: "FW4hUNOtaI92ukAtNFKiKLzinsSioNZuBaHCM-pIQZURsA2-",
        header: "96718d9faaf03a6a0300000a0000100000028c1d0403030100112233445566776018421e6ff754b42f09568dc24cf326a5ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "cc1396bafa916b5e716fc14471970b09b1e3a05420fe3843d770ba347c20187b",
    },
    Vector {
        cipher: "cast6",
        key_bytes: 16,
        name: "FWahUNOtaI92ukhtKhTiaOV9XnOoy.lyq-gGPrmMSQynGBH1.Dd4w4kq9k--",
        header: "b6a991788a28268d0300000a0000100000028c1d040b03010011223344556677609c98d7c89224f11fff1c696a30436c45ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "da054b89b454b33c4e58190b04341aa4f84aae4901813f0badfddf0da92ba2b5",
    },
    Vector {
        cipher: "cast6",
        key_bytes: 32,
        name: "FWahUNOtaI92ukgmr27Dz8SZvfVde-y7abiNqvGnCsBYqsxth511cB08VU--",
        header: "a6e202ce9a63b53b0300000a0000100000028c2d040b0301001122334455667760feb99e916e4b9f498b88705bd7ab7a9b15be18e3b8b83f879891f777009c5020ed1662085f434f4e534f4c4500000000ffd652511eaff04a",
        sum: "8e4752a0d40d0a440483c0f15d760ca650896283be2332493c889c9619a1ec7f",
    },
];

/// `correct horse`, wrapped with `login pw`, in versions 2 and 1.
const WRAPPED: [&str; 2] = [
    "3a02505a20310759a47b353533623331623936646163356464365ce56c1242c57cd0a8b4bfab68ce8b69",
    "6465333366316330333465633632343007e5a5ce83b85be2ab2eb0d7b784b4b5",
];

/// The numbers from 1 on, a line each.
fn plaintext() -> Vec<u8> {
    let mut text: String = (1..5000).map(|n| format!("{n}\n")).collect();
    text.truncate(20_000);
    text.into_bytes()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits")).collect()
}

fn sum(bytes: &[u8]) -> String {
    let mut sum = [0; 32];
    SHA256.digest(&[bytes], &mut sum);
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn passphrase(text: &[u8]) -> [Credential; 1] {
    [Credential::Passphrase(Secret::copy_from(text))]
}

fn host(folder: &Path) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"))
}

fn open_with(folder: &Path, text: &[u8], options: FolderOptions<'_>) -> claviger_engine::Result<Stacked> {
    let credentials = passphrase(text);
    file_formats::open(host(folder), Some("ecryptfs"), &Unlock { folder: options, ..Unlock::with(&credentials) })
}

fn open(folder: &Path) -> Stacked {
    open_with(folder, PASSPHRASE, FolderOptions::default()).expect("it opens")
}

fn why(opened: claviger_engine::Result<Stacked>) -> claviger_engine::Error {
    opened.map(drop).expect_err("it does not open")
}

fn names(tree: &dyn Tree) -> Vec<OsString> {
    let mut names: Vec<_> = tree.list(tree.root()).expect("listed").into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

fn read(tree: &(dyn Tree + 'static), name: &str) -> std::io::Result<Vec<u8>> {
    let file = HeldNode::find(tree, OsStr::new(name))?;
    let mut bytes = vec![0xee; tree.attributes(file.node())?.size.min(1 << 20) as usize + 10];
    let len = tree.read_at(file.node(), 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn write(tree: &(dyn Tree + 'static), name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let file = HeldNode::find(tree, OsStr::new(name))?;
    tree.write_at(file.node(), 0, bytes)
}

fn create(tree: &(dyn Tree + 'static), name: &str, bytes: &[u8]) {
    drop(HeldNode::new(tree, tree.create(tree.root(), OsStr::new(name), &NEW).expect("made")));
    write(tree, name, bytes).expect("written");
}

fn facts(folder: &Path, name: &str) -> FileFacts {
    let tree = host(folder);
    let file = HeldNode::find(&*tree, OsStr::new(name)).expect("found");
    ECRYPTFS.facts(StoredFile { tree: &*tree, file: file.node(), contents: file.node() }).expect("told")
}

impl Vector {
    fn stored_name(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The header of a file of `size` bytes.
    fn header(&self, size: u64) -> Vec<u8> {
        let mut header = size.to_be_bytes().to_vec();
        header.extend(unhex(self.header));
        header.resize(8192, 0);
        header
    }
}

/// With the kernel's header, of which all but the size stays, the same plaintext gives the same file.
#[test]
fn what_is_written_is_what_the_kernel_wrote() {
    for vector in VECTORS {
        let (folder, name) = (tempfile::tempdir().expect("a folder"), vector.stored_name());
        let lower = folder.path().join(&name);
        fs::write(&lower, vector.header(0)).expect("a file");
        let tree = open(folder.path());
        assert_eq!(names(&tree), ["f20000"], "{}", vector.cipher);
        write(&tree, "f20000", &plaintext()).expect("written");
        assert_eq!(sum(&fs::read(&lower).expect("it")), vector.sum, "{} {}", vector.cipher, vector.key_bytes);
        assert!(read(&open(folder.path()), "f20000").expect("it reads") == plaintext());

        // New files are made in the same way, also of another key size if that is asked for.
        create(&tree, "new", b"something");
        let stored: Vec<_> = names(&*host(folder.path()));
        let new = stored.iter().find(|other| **other != *name).and_then(|new| new.to_str()).expect("another one");
        let (old, new) = (facts(folder.path(), &name), facts(folder.path(), new));
        assert_eq!((&new.cipher, new.key_bits, &new.keys), (&old.cipher, old.key_bits, &old.keys));
        assert_eq!((new.key_bits, new.state), (Some(vector.key_bytes as u32 * 8), FileState::Encrypted));
        assert_eq!((new.size, new.stored, new.version), (Some(9), 8192 + 4096, Some(3)));
        assert_eq!(new.keys, signatures(&Secret::copy_from(PASSPHRASE)).expect("derived")[..1]);
        assert_eq!(read(&open(folder.path()), "new").expect("it reads"), b"something");
        assert!(tree.warnings().is_empty(), "{:?}", tree.warnings());
    }
}

#[test]
fn what_the_kernel_does_not_take_is_refused_with_what_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked =
        |cipher, key_bytes| FolderOptions { cipher: Some(cipher), key_bytes: Some(key_bytes), ..Default::default() };
    for (cipher, key_bytes) in
        [("blowfish", 12), ("blowfish", 4), ("cast5", 5), ("cast6", 24), ("twofish", 24), ("aes", 20), ("serpent", 32)]
    {
        let error = why(open_with(folder.path(), PASSPHRASE, asked(cipher, key_bytes)));
        assert!(matches!(error.kind, Kind::Misuse(_)) && error.hint.is_some(), "{cipher} {key_bytes}: {error}");
    }
    for vector in VECTORS {
        let folder = tempfile::tempdir().expect("a folder");
        let options = asked(vector.cipher, vector.key_bytes);
        create(&open_with(folder.path(), PASSPHRASE, options).expect("it opens"), "f20000", b"a");
        assert_eq!(names(&*host(folder.path())), [OsString::from(vector.stored_name())], "{}", vector.cipher);
    }
}

#[test]
fn names_and_targets_have_the_kernels_limits() {
    for (vector, target) in [(&VECTORS[0], 3007), (&VECTORS[3], 3015)] {
        let folder = tempfile::tempdir().expect("a folder");
        let options = FolderOptions {
            cipher: Some(vector.cipher),
            key_bytes: Some(vector.key_bytes),
            ..FolderOptions::default()
        };
        let tree = open_with(folder.path(), PASSPHRASE, options).expect("it opens");
        assert_eq!(tree.space().expect("told").longest_name, 143, "{}", vector.cipher);
        for len in (1..=20).chain(126..=143) {
            let name = "n".repeat(len);
            create(&tree, &name, b"");
            assert_eq!(names(&tree), [OsString::from(&name)]);
            tree.remove(tree.root(), OsStr::new(&name)).expect("removed");
        }
        let long = "n".repeat(144);
        let refused = tree.create(tree.root(), OsStr::new(&long), &NEW).expect_err("too long");
        assert_eq!(refused.kind(), ErrorKind::InvalidFilename);
        let link = |len: usize| {
            let target = OsString::from("t".repeat(len));
            let node = tree.make_link(tree.root(), OsStr::new("link"), &target, &NEW)?;
            assert_eq!(tree.link_target(node)?, target);
            tree.forget(node, 1);
            tree.remove(tree.root(), OsStr::new("link"))
        };
        for len in (1..20).chain(150..190).chain([target - 1, target]) {
            link(len).unwrap_or_else(|e| panic!("{} bytes: {e}", len));
        }
        assert_eq!(link(target + 1).expect_err("too long").kind(), ErrorKind::InvalidFilename);
    }
}

/// The longest targets that the kernel takes, of the numbers from 1 on; their stored forms have these SHA-256.
#[test]
fn targets_are_what_the_kernel_wrote() {
    let digits: String = (1..2000).map(|n| n.to_string()).collect();
    for (vector, len, expected) in [
        (&VECTORS[0], 3007, "34c9b61ed6eab0e87f36d432857c4ea0fb2ccd3036d8d267b20cef79f2a03efb"),
        (&VECTORS[3], 3015, "427386c6329c3be170a2cc0b8be4a6a05b9247dd373631c91f47084b00451398"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(vector.stored_name()), vector.header(0)).expect("a file");
        let tree = open(folder.path());
        let target = OsStr::new(&digits[..len]);
        tree.forget(tree.make_link(tree.root(), OsStr::new("longlink"), target, &NEW).expect("made"), 1);
        let all = names(&*host(folder.path()));
        let link = all.iter().find_map(|name| fs::read_link(folder.path().join(name)).ok()).expect("a link");
        assert_eq!(sum(link.as_os_str().as_encoded_bytes()), expected, "{}", vector.cipher);
    }
}

#[test]
fn a_wrong_passphrase_is_told_from_an_empty_folder_and_from_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let tree = open(path);
    assert!(tree.warnings()[0].contains("passphrase could not be checked"), "{:?}", tree.warnings());
    let long = why(open_with(path, &[b'x'; 65], FolderOptions::default()));
    assert!(matches!(long.kind, Kind::WrongCredential(_)), "{long}");

    let vector = &VECTORS[0];
    let lower = path.join(vector.stored_name());
    fs::write(&lower, vector.header(0)).expect("a file");
    assert!(open(path).warnings().is_empty());
    let wrong = why(open_with(path, b"battery staple", FolderOptions::default()));
    assert!(matches!(&wrong.kind, Kind::WrongCredential(why) if why.contains("ffd652511eaff04a")), "{wrong}");
    // Names alone tell it, too.
    fs::create_dir(path.join("sub")).expect("a folder");
    fs::rename(&lower, path.join("clear")).expect("renamed");
    fs::remove_file(path.join("clear")).expect("removed");
    fs::create_dir(&lower).expect("a folder");
    let wrong = why(open_with(path, b"battery staple", FolderOptions::default()));
    assert!(matches!(&wrong.kind, Kind::WrongCredential(why) if why.contains("ad8196b99942c4eb")), "{wrong}");
    assert!(open(path).warnings().is_empty());

    // A header that cannot be read.
    fs::remove_dir(&lower).expect("removed");
    let mut header = vector.header(0);
    header[28] = 5;
    fs::write(path.join("file"), header).expect("a file");
    let damaged = why(open_with(path, PASSPHRASE, FolderOptions::default()));
    assert!(matches!(damaged.kind, Kind::Malformed { field: "key", .. }), "{damaged}");
}

/// Names in clear, names of another passphrase, and files with several keys.
#[test]
fn keys_of_names_and_of_contents_are_found_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("clear"), VECTORS[0].header(0)).expect("a file");
    let tree = open(path);
    create(&tree, "more", b"more");
    assert_eq!((names(&tree), names(&*host(path))), (vec!["clear".into(), "more".into()], names(&tree)));

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let other = Secret::copy_from(b"names only");
    let both = FolderOptions { name_passphrase: Some(&other), ..FolderOptions::default() };
    create(&open_with(path, PASSPHRASE, both).expect("it opens"), "named", b"contents");
    let wrong = why(open_with(path, PASSPHRASE, FolderOptions::default()));
    assert!(matches!(&wrong.kind, Kind::WrongCredential(why) if why.contains("name")), "{wrong}");
    assert_eq!(read(&open_with(path, PASSPHRASE, both).expect("it opens"), "named").expect("read"), b"contents");
    let raw = FolderOptions { clear_names: true, ..FolderOptions::default() };
    let tree = open_with(path, PASSPHRASE, raw).expect("it opens");
    let stored = names(&*host(path));
    assert_eq!(names(&tree), stored);
    assert_eq!(read(&tree, stored[0].to_str().expect("text")).expect("read"), b"contents");

    // Two passphrases were given when the file was made: either of them opens it.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let two = [b"one".as_slice(), b"two"].map(|text| Credential::Passphrase(Secret::copy_from(text)));
    let tree = file_formats::open(host(path), Some("eCryptfs"), &Unlock::with(&two)).expect("it opens");
    create(&tree, "shared", b"for both");
    let stored = names(&*host(path));
    assert_eq!(facts(path, stored[0].to_str().expect("text")).keys.len(), 2);
    let first = open_with(path, b"one", FolderOptions::default()).expect("it opens");
    assert_eq!(read(&first, "shared").expect("read"), b"for both");
    let name_passphrase = Secret::copy_from(b"one");
    let second = FolderOptions { name_passphrase: Some(&name_passphrase), ..FolderOptions::default() };
    let second = open_with(path, b"two", second).expect("it opens");
    assert_eq!(read(&second, "shared").expect("read"), b"for both");
}

/// As ecryptfs-utils have it where `~/.ecryptfsrc` says so. Made with Python's hashlib and with OpenSSL: the key 000102 … 0f under that of
/// the passphrase with the salt 0102030405060708, and an extent that begins with `salted`.
#[test]
fn a_salt_of_ones_own_is_read_from_the_headers() {
    let header = "dd7ace63e1fb7996030000020000100000028c1d04070301010203040506070860394793e2e16515b496e42be02b74ca5ded1662085f434f4e534f4c450000000065b1f63164c9c912";
    let extent = "b44735ec0e3628d06db758be8e072457bd231f9c2fe27f4678f41f152ca61eee";
    let folder = tempfile::tempdir().expect("a folder");
    let vector = Vector { cipher: "aes", key_bytes: 16, name: "", header, sum: extent };
    let lower = folder.path().join("file");
    fs::write(&lower, vector.header(0)).expect("a file");
    let tree = open(folder.path());
    write(&tree, "file", b"salted").expect("written");
    assert_eq!(sum(&fs::read(&lower).expect("it")[8192..]), extent);
    // New files have the same salt.
    create(&tree, "new", b"new");
    assert_eq!(facts(folder.path(), "new").keys, facts(folder.path(), "file").keys);
    let wrong = why(open_with(folder.path(), b"another", FolderOptions::default()));
    assert!(matches!(wrong.kind, Kind::WrongCredential(_)), "{wrong}");
}

#[test]
fn files_of_every_state_are_what_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let vector = &VECTORS[0];
    let options = FolderOptions { clear_names: true, ..FolderOptions::default() };
    let header = vector.header(0);
    let tree = open_with(path, PASSPHRASE, options).expect("it opens");
    for cut in (0..120).chain([4095, 4096, 4097, 8191]) {
        // Cut short in its making: it is empty, and the first write begins it anew.
        fs::write(path.join("cut"), &header[..cut]).expect("a file");
        assert_eq!(read(&tree, "cut").expect("read"), b"", "{cut}");
        write(&tree, "cut", b"anew").expect("written");
        assert_eq!(read(&tree, "cut").expect("read"), b"anew", "{cut}");
        assert_eq!(facts(path, "cut").stored, 8192 + 4096);
    }
    for zeros in [1, 4096, 8192] {
        fs::write(path.join("zeros"), vec![0; zeros]).expect("a file");
        assert_eq!(facts(path, "zeros").state, FileState::Unfinished);
        write(&tree, "zeros", b"anew").expect("written");
        assert_eq!(read(&tree, "zeros").expect("read"), b"anew", "{zeros}");
    }
    fs::remove_file(path.join("zeros")).expect("removed");

    // One that counts bytes is never begun anew.
    let header = vector.header(20_000);
    for cut in 16..72 {
        fs::write(path.join("cut"), &header[..cut]).expect("a file");
        assert!(write(&tree, "cut", b"x").is_err() && read(&tree, "cut").is_err(), "{cut}");
        assert_eq!(fs::read(path.join("cut")).expect("it"), header[..cut]);
        assert_eq!(facts(path, "cut").state, FileState::Damaged);
    }

    // Contents that were cut short, at the border of an extent and within one.
    let other = tempfile::tempdir().expect("a folder");
    let name = vector.stored_name();
    fs::write(other.path().join(&name), vector.header(0)).expect("a file");
    write(&open(other.path()), "f20000", &plaintext()).expect("written");
    let whole = fs::read(other.path().join(&name)).expect("it");
    for extents in 0..5 {
        for more in [0, 1, 4095] {
            let cut = 8192 + extents * 4096 + more;
            fs::write(path.join("cut"), &whole[..cut]).expect("a file");
            let file = HeldNode::find(&tree as &dyn Tree, OsStr::new("cut")).expect("found");
            let mut bytes = vec![0; extents * 4096];
            assert_eq!(tree.read_at(file.node(), 0, &mut bytes).expect("what is there"), bytes.len());
            assert!(bytes == plaintext()[..bytes.len()]);
            assert!(tree.read_at(file.node(), bytes.len() as u64, &mut [0]).is_err());
            assert_eq!(facts(path, "cut").state, FileState::CutShort);
        }
    }
    fs::remove_file(path.join("cut")).expect("removed");

    // A file that is not eCryptfs's.
    fs::write(path.join("foreign"), b"a letter to nobody").expect("a file");
    let tree = open_with(path, PASSPHRASE, options).expect("it opens");
    assert!(read(&tree, "foreign").expect_err("foreign").to_string().contains("not an eCryptfs file"));
    assert!(write(&tree, "foreign", b"x").is_err());
    let tree = open_with(path, PASSPHRASE, FolderOptions { passthrough: true, ..options }).expect("it opens");
    assert_eq!(read(&tree, "foreign").expect("read"), b"a letter to nobody");
    write(&tree, "foreign", b"A").expect("written");
    assert_eq!(fs::read(path.join("foreign")).expect("it"), b"A letter to nobody");
    assert_eq!(facts(path, "foreign").state, FileState::Clear);
}

/// Version 0 has no field for the header's size, and the others are as the last one (fs/ecryptfs/crypto.c, `ecryptfs_read_headers_virt`).
#[test]
fn older_versions_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("file"), VECTORS[0].header(0)).expect("a file");
    let tree = open(path);
    write(&tree, "file", &plaintext()).expect("written");
    let whole = fs::read(path.join("file")).expect("it");
    for version in 0..=4 {
        let mut old = whole.clone();
        old[16] = version;
        if version == 0 {
            old.copy_within(26..200, 20);
        }
        fs::write(path.join("old"), old).expect("a file");
        assert_eq!(facts(path, "old").state, if version < 4 { FileState::Encrypted } else { FileState::Unsupported });
        match version {
            0..=3 => assert!(read(&tree, "old").expect("read") == plaintext(), "{version}"),
            _ => assert_eq!(read(&tree, "old").expect_err("too new").kind(), ErrorKind::Unsupported),
        }
    }
}

/// Each byte of a header wrong in turn, and each length.
#[test]
fn hostile_headers_are_refused_or_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("sound"), VECTORS[0].header(0)).expect("a file");
    let tree = open(path);
    for vector in &VECTORS[..3] {
        let header = vector.header(20_000);
        for at in 0..110 {
            for value in [0, 1, 0x7f, 0x80, 0xbf, 0xc0, 0xdf, 0xe0, 0xff, header[at] ^ 1] {
                let mut hostile = header.clone();
                hostile[at] = value;
                fs::write(path.join("hostile"), &hostile).expect("a file");
                let _ = read(&tree, "hostile");
                let _ = facts(path, "hostile");
                assert_eq!(fs::read(path.join("hostile")).expect("it"), hostile, "reading wrote");
            }
        }
    }
    // As many packets as there is room for.
    let mut packets = VECTORS[0].header(0)[..26].to_vec();
    while packets.len() + 12 <= 4096 {
        packets.extend([1, 10, 3, 1, 2, 3, 4, 5, 6, 7, 8, 1]);
    }
    fs::write(path.join("public"), &packets).expect("a file");
    let error = read(&tree, "public").expect_err("no key is ours");
    assert!(error.to_string().contains("public key"), "{error}");
    let of_it = facts(path, "public");
    assert_eq!((of_it.state, of_it.keys[0].as_str()), (FileState::Unsupported, "0102030405060708"));
}

#[test]
fn a_folder_is_shown_as_it_is_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let header = VECTORS[0].header(0);
    let name = VECTORS[0].stored_name();
    fs::write(path.join(&name), &header).expect("a file");
    let view = FolderOptions { encrypted_view: true, ..FolderOptions::default() };
    let tree = file_formats::open(host(path), Some("eCryptfs"), &Unlock { folder: view, ..Unlock::with(&[]) });
    let tree = tree.expect("no passphrase is needed");
    assert_eq!(names(&tree), [OsString::from(&name)]);
    assert_eq!(read(&tree, &name).expect("read"), header);
    assert!(!tree.writable());
    let refused = write(&tree, &name, b"x").expect_err("nothing is written");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(tree.create(tree.root(), OsStr::new("new"), &NEW).is_err());
    assert!(tree.remove(tree.root(), OsStr::new(&name)).is_err());
}

/// Skipped where the file system has no such attributes.
#[test]
fn metadata_in_attributes_are_read_written_and_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let attributes = FolderOptions { metadata_in_attributes: true, clear_names: true, ..FolderOptions::default() };
    let tree = open_with(path, PASSPHRASE, attributes).expect("it opens");
    let lower = host(path);
    match lower.set_extended(lower.root(), OsStr::new("user.x"), b"x", claviger_engine::trees::Setting::Any) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            claviger_testkit::tools::skip::<()>("the file system has no extended attributes");
            return;
        }
        set => set.expect("set"),
    }
    create(&tree, "file", &plaintext());
    let of_it = facts(path, "file");
    assert_eq!((of_it.state, of_it.size, of_it.stored), (FileState::Encrypted, Some(20_000), 20_480));
    let file = HeldNode::find(&*lower, OsStr::new("file")).expect("found");
    let header = lower.extended(file.node(), OsStr::new("user.ecryptfs")).expect("read").expect("there");
    assert_eq!((header.len(), &header[..8]), (81, &20_000u64.to_be_bytes()[..]));
    let shown = HeldNode::find(&tree as &dyn Tree, OsStr::new("file")).expect("found");
    assert_eq!(tree.list_extended(shown.node()).expect("listed"), Vec::<OsString>::new());
    drop(shown);

    // Without being asked for, the folder's next file has them there, too.
    let tree = open(path);
    assert!(read(&tree, "file").expect("read") == plaintext());
    create(&tree, "next", b"next");
    assert_eq!(facts(path, "next").stored, 4096);

    // As it is stored, it is a file with a header in front.
    let view = FolderOptions { encrypted_view: true, ..FolderOptions::default() };
    let shown = read(&open_with(path, b"", view).expect("it opens"), "file").expect("read");
    let other = tempfile::tempdir().expect("a folder");
    fs::write(other.path().join("file"), shown).expect("a file");
    assert!(read(&open(other.path()), "file").expect("read") == plaintext());
}

#[test]
fn wrapped_passphrases_are_those_of_ecryptfs_utils() {
    let login = Secret::copy_from(b"login pw");
    for wrapped in WRAPPED.map(unhex) {
        assert!(unwrap_passphrase(&wrapped, &login).expect("it opens").same_as(PASSPHRASE));
        let wrong = unwrap_passphrase(&wrapped, &Secret::copy_from(b"login pW")).expect_err("wrong");
        assert!(matches!(wrong.kind, Kind::WrongCredential(_)), "{wrong}");
        for len in 0..wrapped.len() {
            assert!(unwrap_passphrase(&wrapped[..len], &login).is_err(), "{len} bytes");
        }
        // A folder opens with what unwraps its passphrase.
        let folder = tempfile::tempdir().expect("a folder");
        let lower = folder.path().join(VECTORS[0].stored_name());
        fs::write(lower, VECTORS[0].header(0)).expect("a file");
        let options = FolderOptions { wrapped_passphrase: Some(&wrapped), ..FolderOptions::default() };
        assert_eq!(names(&open_with(folder.path(), b"login pw", options).expect("it opens")), ["f20000"]);
    }
    for len in [1, 15, 16, 17, 63, 64] {
        let passphrase = Secret::copy_from(&vec![b'p'; len]);
        let wrapped = wrap_passphrase(&passphrase, &login).expect("wrapped");
        assert!(unwrap_passphrase(&wrapped, &login).expect("unwrapped").same_as(&passphrase), "{len}");
    }
    for (passphrase, wrapping) in [(&b""[..], &b"w"[..]), (b"p", b""), (&[b'p'; 65], b"w"), (b"p", &[b'w'; 65])] {
        assert!(wrap_passphrase(&Secret::copy_from(passphrase), &Secret::copy_from(wrapping)).is_err());
    }
}

#[test]
fn a_new_wrapping_replaces_the_file_whole() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wrapped-passphrase");
    fs::write(&path, unhex(WRAPPED[1])).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("set");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let (old, new) = (Secret::copy_from(b"login pw"), Secret::copy_from(b"next login"));
    assert!(rewrap_passphrase(&path, &new, &old).is_err());
    assert_eq!(fs::read(&path).expect("it"), unhex(WRAPPED[1]));
    rewrap_passphrase(&link, &old, &new).expect("rewrapped");
    let wrapped = read_wrapped(&path).expect("read");
    assert!(unwrap_passphrase(&wrapped, &new).expect("it opens").same_as(PASSPHRASE));
    assert_eq!(fs::metadata(&path).expect("it").permissions().mode() & 0o777, 0o400);
    assert!(fs::symlink_metadata(&link).expect("it").is_symlink());
    assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2, "nothing is left behind");
}
