//! Encrypted files of NTFS (EFS): what a maker and ntfs-3g have written is read by us as ntfsdecrypt reads it, and the other way round.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use crate::support::fat::contents;
use crate::support::ntfs::{Mounted, ntfs_image};
use claviger_crypto::modes::efs::EfsCipher;
use claviger_crypto::rsa::RsaPublicKey;
use claviger_engine::file_formats::efs::{self, EFS, KeyOwner, RawFile, Recipient};
use claviger_engine::file_formats::{self, FileFormat, FileState, Stacked, StoredFile};
use claviger_engine::filesystems;
use claviger_engine::formats::Verdict;
use claviger_engine::private_keys::{About, PrivateKey, not_for_this_key};
use claviger_engine::store::{Access, MemoryStore};
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{Attributes, Entry, NewNode, Node, Renaming, Setting, Space, Subtree, Tree, Use, find};
use claviger_engine::{Credential, Error, ErrorKind as Blame, Result, Secret, Unlock};
use claviger_testkit::efs::{Cipher, Identity, info, info_with, put};
use claviger_testkit::random::Random;

/// Sizes around each border: of a block, a sector, a cluster, a record that could hold it, a piece that is read at a time.
const SIZES: [usize; 12] = [0, 1, 15, 16, 511, 512, 513, 4095, 4096, 65_535, 131_073, (1 << 20) + 1];

/// The private key of an identity, which OpenSSL uses.
#[derive(Debug)]
struct Key {
    about: About,
    of: Arc<Identity>,
}

impl PrivateKey for Key {
    fn about(&self) -> &About {
        &self.about
    }

    fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret> {
        self.of.decrypt(ciphertext).map(Secret::from_vec).ok_or_else(not_for_this_key)
    }
}

fn key(of: &Arc<Identity>) -> Arc<dyn PrivateKey> {
    let (thumbprint, modulus) = (Some(of.thumbprint), of.modulus.clone());
    Arc::new(Key { about: About { thumbprint, modulus, ..About::default() }, of: of.clone() })
}

fn identity(name: &str, agent: bool) -> Option<Arc<Identity>> {
    Identity::new(name, agent).map(Arc::new)
}

/// A file whose size is a part of its name, for ntfs-3g does not tell each.
fn place<'a>(tree: &'a (dyn Tree + 'static), name: &'a str) -> RawFile<'a> {
    let size = name.rsplit(' ').next().and_then(|size| size.parse().ok());
    RawFile { tree, folder: tree.root(), name: OsStr::new(name), size, watch: None }
}

fn recipient(of: &Identity) -> Recipient {
    let owner = KeyOwner { thumbprint: Some(of.thumbprint.into()), name: Some(of.name.clone()), ..KeyOwner::default() };
    Recipient { key: RsaPublicKey::new(&of.modulus, &of.exponent).expect("a key"), owner }
}

fn stacked(lower: Arc<dyn Tree>, keys: &[&Arc<Identity>]) -> Stacked {
    let keys: Vec<_> = keys.iter().map(|of| Credential::PrivateKey(key(of))).collect();
    file_formats::unlock(&EFS, lower, &Unlock::with(&keys)).expect("it opens with any keys")
}

fn ntfs(image: &Path) -> Arc<dyn Tree> {
    let store = Arc::new(MemoryStore::new(fs::read(image).expect("the image can be read")));
    filesystems::open(store).expect("an NTFS").1.into()
}

fn node(tree: &dyn Tree, path: &str) -> Node {
    find(tree, OsStr::new(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn read_fails(tree: &dyn Tree, path: &str) -> Error {
    Error::from(tree.read_at(node(tree, path), 0, &mut [0; 10]).expect_err("it is not read"))
}

#[test]
fn every_cipher_and_size_reads_as_ntfsdecrypt_reads_it() {
    let (Some(me), Some(agent)) = (identity("Me", false), identity("Agent", true)) else { return };
    let Some(stranger) = identity("Stranger", false) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 40, &[]) else { return };
    let Some(mounted) = Mounted::ntfs(&image, "efs_raw,streams_interface=windows") else { return };
    let mut random = Random::new(31);
    let mut files = Vec::new();
    for cipher in Cipher::ALL {
        for size in SIZES {
            let (key, plain) = (random.bytes(cipher.key_size()), random.bytes(size));
            let name = format!("{cipher:?} {size}");
            put(&mounted.path().join(&name), &cipher.raw(&key, &plain), &info(cipher, &key, &[&me], &[&agent]));
            files.push((name, plain));
        }
    }
    // Streams of one file have one key, and each counts from its own beginning.
    let (key, plain, stream) = (random.bytes(32), random.bytes(3000), random.bytes(70_001));
    let path = mounted.path().join("streams");
    fs::write(mounted.path().join("streams:secret"), Cipher::Aes256.raw(&key, &stream)).expect("a stream");
    put(&path, &Cipher::Aes256.raw(&key, &plain), &info(Cipher::Aes256, &key, &[&me], &[]));
    files.push(("streams".into(), plain));
    fs::write(mounted.path().join("clear"), b"in clear").expect("a file");
    mounted.end(&image);

    let lower = ntfs(&image);
    assert!(matches!(EFS.identify(&*lower).expect("read"), Verdict::Possible(_)));
    // Unless EFS is requested, ciphertext is not read as contents.
    let error = read_fails(&*lower, "/Aes256 513");
    assert!(
        matches!(error.kind, Blame::Unsupported { .. }) && error.to_string().contains("encrypted by EFS"),
        "{error}"
    );
    assert_eq!(lower.attributes(node(&*lower, "/Aes256 513")).expect("attributes").size, 513);
    assert!(lower.attributes(node(&*lower, "/Aes256 513")).expect("attributes").encrypted);
    assert!(!lower.attributes(node(&*lower, "/clear")).expect("attributes").encrypted);

    let (of_me, of_agent) = (stacked(lower.clone(), &[&stranger, &me]), stacked(lower.clone(), &[&agent]));
    for (name, plain) in &files {
        let path = format!("/{name}");
        assert!(contents(&of_me, node(&of_me, &path)) == *plain, "{name}");
        assert!(me.ntfsdecrypt(&image, &path).as_ref() == Some(plain), "{name}: ntfsdecrypt reads something else");
        if name != "streams" {
            assert!(contents(&of_agent, node(&of_agent, &path)) == *plain, "{name}, by the recovery agent");
        }
    }
    assert!(agent.ntfsdecrypt(&image, "/Desx 4095").as_deref() == Some(&files[2 * SIZES.len() + 7].1[..]));
    let file = node(&of_me, "/streams");
    assert_eq!(of_me.streams(file).expect("names"), ["secret"]);
    assert!(contents(&of_me, of_me.stream(file, OsStr::new("secret")).expect("it is there")) == stream);
    assert_eq!(contents(&of_me, node(&of_me, "/clear")), b"in clear");
    // The same through a folder of the tree.
    let below = Subtree::find(&ntfs(&image), OsStr::new("/")).expect("the root");
    let below = stacked(Arc::new(below), &[&me]);
    assert!(contents(&below, node(&below, "/streams")).len() == 3000);
    // From the middle, in pieces that fit no sector.
    let (name, plain) = &files[SIZES.len() - 1];
    let file = node(&of_me, &format!("/{name}"));
    for _ in 0..100 {
        let at = random.below(plain.len());
        let mut piece = vec![0; random.below(70_000)];
        let len = piece.len().min(plain.len() - at);
        assert_eq!(of_me.read_at(file, at as u64, &mut piece).expect("read"), len);
        assert!(piece[..len] == plain[at..][..len], "{len} bytes at {at}");
    }
    assert!(of_me.extended(file, OsStr::new("system.ntfs_efsinfo")).expect("hidden").is_none());

    // The message for a user without a key of the file.
    let of_stranger = stacked(lower.clone(), &[&stranger]);
    assert_eq!(of_stranger.attributes(node(&of_stranger, "/Aes256 513")).expect("attributes").size, 513);
    let hex = |of: &Identity| of.thumbprint.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (keys, said) in [(&[&stranger][..], "the private key does not open it"), (&[], "no private key was given")] {
        let error = read_fails(&stacked(lower.clone(), keys), "/Aes256 513");
        assert!(matches!(error.kind, Blame::WrongCredential(_)), "{error}");
        let text = error.to_string();
        assert!([said, "Me (", "Agent (", &hex(&me), &hex(&agent)].iter().all(|part| text.contains(part)), "{text}");
    }
    let file = node(&*lower, "/Desx 4096");
    let facts = EFS.facts(StoredFile { tree: &*lower, file, contents: file }).expect("read");
    assert_eq!(
        (facts.state, facts.size, facts.version, facts.keys.len()),
        (FileState::Encrypted, Some(4096), Some(2), 2)
    );
    assert!(facts.keys[0].contains(&hex(&me)) && facts.keys[1].starts_with("recovery agent Agent"));
    let file = node(&*lower, "/clear");
    let facts = EFS.facts(StoredFile { tree: &*lower, file, contents: file }).expect("read");
    assert_eq!((facts.state, facts.size), (FileState::Clear, Some(8)));
}

#[test]
fn whatever_is_wrong_with_a_key_has_one_answer() {
    let Some(me) = identity("Me", false) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 8, &[]) else { return };
    let Some(mounted) = Mounted::ntfs(&image, "efs_raw") else { return };
    let fek = |len: u32, cipher: u32, key: usize| {
        let numbers = [len, 256, cipher, 0].map(u32::to_le_bytes).concat();
        [numbers, vec![7; key]].concat()
    };
    let of = |message: &[u8]| me.encrypt(message);
    let mut random = Random::new(32);
    let wrong = [
        of(&fek(33, 0x6610, 32)),
        of(&fek(31, 0x6610, 32)),
        of(&fek(u32::MAX, 0x6610, 32)),
        of(&fek(24, 0x6610, 24)),
        of(&fek(32, 0x6610, 32)[..15]),
        of(&[]),
        random.bytes(256),
        random.bytes(255),
        vec![0xff; 256],
        vec![0; 256],
        vec![0; 1000],
        Vec::new(),
    ];
    for (i, encrypted) in wrong.iter().enumerate() {
        let info = info_with(&[&me], &[], |_| encrypted.clone());
        put(&mounted.path().join(i.to_string()), &[0; 514], &info);
    }
    let des = info_with(&[&me], &[], |_| of(&fek(8, 0x6601, 8)));
    put(&mounted.path().join("DES"), &[0; 514], &des);
    let mut newer = info_with(&[&me], &[], |_| vec![0; 256]);
    newer[8] = 5;
    put(&mounted.path().join("newer"), &[0; 514], &newer);
    newer[8] = 2;
    newer[0x54..0x58].fill(0xff);
    put(&mounted.path().join("damaged"), &[0; 514], &newer);
    mounted.end(&image);
    let lower = ntfs(&image);
    let tree = stacked(lower.clone(), &[&me]);
    let first = read_fails(&tree, "/0").to_string();
    assert!(first.contains("does not open it"), "{first}");
    for i in 0..wrong.len() {
        assert_eq!(read_fails(&tree, &format!("/{i}")).to_string(), first, "{i}");
    }
    let error = read_fails(&tree, "/DES").to_string();
    assert!(error.contains("DES") && error.contains("0x6601"), "{error}");
    assert!(read_fails(&tree, "/newer").to_string().contains("version 5"));
    assert!(matches!(read_fails(&tree, "/damaged").kind, Blame::Malformed { .. }));
    for (name, state) in [("newer", FileState::Unsupported), ("damaged", FileState::Damaged)] {
        let file = node(&*lower, name);
        let facts = EFS.facts(StoredFile { tree: &*lower, file, contents: file }).expect("read");
        assert!(facts.state == state && facts.problem.is_some(), "{facts:?}");
    }
}

#[test]
fn files_are_encrypted_shared_changed_and_decrypted_as_ntfsdecrypt_has_it() {
    let (Some(me), Some(agent)) = (identity("Me", false), identity("Agent", true)) else { return };
    let Some(friend) = identity("Friend", false) else { return };
    let ciphers = [EfsCipher::Aes256, EfsCipher::TripleDes, EfsCipher::Desx];
    let mut random = Random::new(33);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 40, &[]) else { return };
    let keys_of = |of: &Arc<Identity>| vec![key(of)];
    let mut files = Vec::new();
    // After each step the image is unmounted, so that other programs read what was written.
    let step = |what: &mut dyn FnMut(&HostFolder)| {
        let mounted = Mounted::ntfs(&image, "efs_raw")?;
        let folder = HostFolder::open(mounted.path(), Access::ReadWrite).expect("a folder");
        what(&folder);
        let left: Vec<_> = folder.list(folder.root()).expect("names").into_iter().map(|entry| entry.name).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains("claviger")), "nothing is left: {left:?}");
        drop(folder);
        mounted.end(&image);
        Some(())
    };
    let encrypted = step(&mut |folder| {
        for (cipher, size) in ciphers.iter().flat_map(|cipher| SIZES.map(|size| (*cipher, size))) {
            let (name, plain) = (format!("{cipher:?} {size}"), random.bytes(size));
            let file = folder.create(folder.root(), OsStr::new(&name), &NewNode::default()).expect("room");
            folder.write_at(file, 0, &plain).expect("room");
            folder.forget(file, 1);
            efs::encrypt(place(folder, &name), &[recipient(&me)], &[recipient(&agent)], cipher).expect("encrypted");
            files.push((name, plain));
        }
        let again = efs::encrypt(place(folder, &files[0].0), &[recipient(&me)], &[], ciphers[0]);
        assert!(again.expect_err("it is encrypted").to_string().contains("already"));
    });
    if encrypted.is_none() {
        return;
    }
    for (name, plain) in &files {
        let path = format!("/{name}");
        assert!(me.ntfsdecrypt(&image, &path).as_ref() == Some(plain), "{name}: ntfsdecrypt reads something else");
        assert!(friend.ntfsdecrypt(&image, &path).is_none(), "{name}");
    }
    assert!(agent.ntfsdecrypt(&image, &format!("/{}", files[7].0)).as_ref() == Some(&files[7].1));
    let tree = stacked(ntfs(&image), &[&me]);
    assert!(files.iter().all(|(name, plain)| contents(&tree, node(&tree, name)) == *plain));

    let (shared, taken, changed, plain) = (&files[6].0, &files[19].0, &files[31].0, &files[9].0);
    let new = random.bytes(100_000);
    step(&mut |folder| {
        efs::share(place(folder, shared), &keys_of(&me), &[recipient(&friend)], &[]).expect("shared");
        let twice = efs::share(place(folder, shared), &keys_of(&me), &[recipient(&friend)], &[]);
        assert!(matches!(twice.expect_err("it is").kind, Blame::Misuse(_)));
        let stranger = efs::share(place(folder, taken), &keys_of(&friend), &[recipient(&friend)], &[]);
        assert!(matches!(stranger.expect_err("not with this key").kind, Blame::WrongCredential(_)));
        efs::unshare(place(folder, taken), &[agent.thumbprint.to_vec()]).expect("taken away");
        assert!(efs::unshare(place(folder, taken), &[me.thumbprint.to_vec()]).is_err(), "nobody else could read it");
        efs::change(place(folder, changed), &keys_of(&agent), &MemoryStore::new(new.clone())).expect("changed");
        assert!(efs::decrypt(place(folder, plain), &keys_of(&friend)).is_err());
        efs::decrypt(place(folder, plain), &keys_of(&me)).expect("decrypted");
    });
    let known = |name: &str| files.iter().find(|(known, _)| known == name).map(|(_, plain)| plain);
    for of in [&me, &friend] {
        assert!(of.ntfsdecrypt(&image, &format!("/{shared}")).as_ref() == known(shared));
    }
    assert!(me.ntfsdecrypt(&image, &format!("/{taken}")).as_ref() == known(taken));
    assert!(agent.ntfsdecrypt(&image, &format!("/{taken}")).is_none());
    assert!(me.ntfsdecrypt(&image, &format!("/{changed}")).as_ref() == Some(&new));
    let lower = ntfs(&image);
    assert!(Some(&contents(&*lower, node(&*lower, plain))) == known(plain), "it is in clear");
    step(&mut |folder| efs::unshare(place(folder, shared), &[me.thumbprint.to_vec()]).expect("given away"));
    let tree = stacked(ntfs(&image), &[&me]);
    assert!(matches!(read_fails(&tree, shared).kind, Blame::WrongCredential(_)));
    assert!(friend.ntfsdecrypt(&image, &format!("/{shared}")).as_ref() == known(shared));
}

#[test]
fn a_folder_that_ntfs_3g_shows_raw_is_read_through_the_same_keys() {
    let Some(me) = identity("Me", false) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 16, &[]) else { return };
    let Some(mounted) = Mounted::ntfs(&image, "efs_raw") else { return };
    let mut random = Random::new(34);
    let mut files = Vec::new();
    for size in SIZES {
        let (key, plain) = (random.bytes(32), random.bytes(size));
        let (raw, info) = (Cipher::Aes256.raw(&key, &plain), info(Cipher::Aes256, &key, &[&me], &[]));
        put(&mounted.path().join(size.to_string()), &raw, &info);
        files.push((size.to_string(), plain));
    }
    fs::write(mounted.path().join("clear"), b"in clear").expect("a file");
    let lower: Arc<dyn Tree> = Arc::new(HostFolder::open(mounted.path(), Access::ReadWrite).expect("a folder"));
    let tree = stacked(lower.clone(), &[&me]);
    for (name, plain) in &files {
        let file = node(&tree, name);
        // ntfs-3g's raw files do not end where a cluster does.
        if !plain.is_empty() && plain.len().next_multiple_of(512).is_multiple_of(4096) {
            let error = read_fails(&tree, name);
            assert!(error.to_string().contains("length"), "{name}: {error}");
            continue;
        }
        assert!(contents(&tree, file) == *plain, "{name}");
        let refused = tree.write_at(file, 0, b"x").expect_err("nothing is written in place");
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::Unsupported, ErrorKind::FileTooLarge];
        assert!(kinds.contains(&refused.kind()), "{refused}");
        tree.forget(file, 1);
    }
    let clear = node(&tree, "clear");
    assert_eq!(contents(&tree, clear), b"in clear");
    tree.forget(clear, 1);
    let new = tree.create(tree.root(), OsStr::new("new"), &NewNode::default());
    assert_eq!(new.expect_err("it would be in clear").kind(), ErrorKind::Unsupported);
    assert_eq!(tree.lookup(tree.root(), OsStr::new("new")).expect_err("gone").kind(), ErrorKind::NotFound);
    drop((tree, lower));
    mounted.end(&image);
}

/// A folder that somebody can change only so often: the program is killed then.
struct Killed {
    folder: HostFolder,
    left: AtomicUsize,
}

impl Killed {
    fn step<T>(&self, what: impl FnOnce(&HostFolder) -> io::Result<T>) -> io::Result<T> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| io::Error::other("killed")).and_then(|_| what(&self.folder))
    }
}

impl Tree for Killed {
    fn root(&self) -> Node {
        self.folder.root()
    }
    fn writable(&self) -> bool {
        true
    }
    fn lookup(&self, folder: Node, name: &OsStr) -> io::Result<Node> {
        self.folder.lookup(folder, name)
    }
    fn forget(&self, node: Node, times: u64) {
        self.folder.forget(node, times);
    }
    fn attributes(&self, node: Node) -> io::Result<Attributes> {
        self.folder.attributes(node)
    }
    fn list(&self, folder: Node) -> io::Result<Vec<Entry>> {
        self.folder.list(folder)
    }
    fn read_at(&self, file: Node, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.folder.read_at(file, offset, out)
    }
    fn extended(&self, node: Node, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        self.folder.extended(node, name)
    }
    fn list_extended(&self, node: Node) -> io::Result<Vec<OsString>> {
        self.folder.list_extended(node)
    }
    fn release(&self, file: Node) -> io::Result<()> {
        self.folder.release(file)
    }
    fn space(&self) -> io::Result<Space> {
        self.folder.space()
    }
    fn create_open(&self, folder: Node, name: &OsStr, new: &NewNode, usage: Use) -> io::Result<Node> {
        self.step(|tree| tree.create_open(folder, name, new, usage))
    }
    fn write_at(&self, file: Node, offset: u64, data: &[u8]) -> io::Result<()> {
        // Half of it comes.
        self.step(|tree| tree.write_at(file, offset, &data[..data.len() / 2]))?;
        self.step(|tree| tree.write_at(file, offset, data))
    }
    fn set_extended(&self, node: Node, name: &OsStr, value: &[u8], how: Setting) -> io::Result<()> {
        self.step(|tree| tree.set_extended(node, name, value, how))
    }
    fn set_times(&self, node: Node, modified: Option<SystemTime>, accessed: Option<SystemTime>) -> io::Result<()> {
        self.step(|tree| tree.set_times(node, modified, accessed))
    }
    fn sync(&self, node: Node, contents_only: bool) -> io::Result<()> {
        self.step(|tree| tree.sync(node, contents_only))
    }
    fn rename(&self, folder: Node, name: &OsStr, to_folder: Node, to: &OsStr, how: Renaming) -> io::Result<()> {
        self.step(|tree| tree.rename(folder, name, to_folder, to, how))
    }
    fn remove(&self, folder: Node, name: &OsStr) -> io::Result<()> {
        self.step(|tree| tree.remove(folder, name))
    }
}

#[test]
fn a_program_killed_at_any_step_leaves_the_old_file_or_the_new_one() {
    let (Some(me), Some(friend)) = (identity("Me", false), identity("Friend", false)) else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let Some(image) = ntfs_image(dir.path(), 16, &[]) else { return };
    let Some(mounted) = Mounted::ntfs(&image, "efs_raw") else { return };
    let (old, new) = (Random::new(35).bytes(5000), Random::new(36).bytes(3001));
    let keys = [key(&me)];
    let (to_me, to_friend) = (recipient(&me), recipient(&friend));
    type Change<'a> = &'a dyn Fn(RawFile<'_>) -> Result<()>;
    let clear = |place: RawFile<'_>| {
        let _ = place.tree.remove(place.folder, place.name);
        fs::write(mounted.path().join(place.name), &old).map_err(Error::from)
    };
    let encrypted = |place: RawFile<'_>| {
        clear(place)?;
        efs::encrypt(place, std::slice::from_ref(&to_me), &[], EfsCipher::Aes256)
    };
    let encrypt = |place: RawFile<'_>| efs::encrypt(place, std::slice::from_ref(&to_me), &[], EfsCipher::Aes256);
    let share = |place: RawFile<'_>| efs::share(place, &keys, std::slice::from_ref(&to_friend), &[]);
    let decrypt = |place: RawFile<'_>| efs::decrypt(place, &keys);
    let change = |place: RawFile<'_>| efs::change(place, &keys, &MemoryStore::new(new.clone()));
    let changes: [(&str, Change<'_>, Change<'_>); 4] = [
        ("encrypt", &clear, &encrypt),
        ("share", &encrypted, &share),
        ("decrypt", &encrypted, &decrypt),
        ("change", &encrypted, &change),
    ];
    for (what, before, change) in changes {
        let mut killed = 0;
        loop {
            let folder = || HostFolder::open(mounted.path(), Access::ReadWrite).expect("a folder");
            let fresh = folder();
            before(place(&fresh, "file")).expect("made");
            drop(fresh);
            let tree = Killed { folder: folder(), left: AtomicUsize::new(killed) };
            let done = change(place(&tree, "file"));
            let all = tree.left.load(Ordering::Relaxed) > 0;
            drop(tree);
            let plain = stacked(Arc::new(folder()), &[&me]);
            let file = node(&plain, "file");
            let read = contents(&plain, file);
            plain.forget(file, 1);
            assert!(read == old || what == "change" && read == new, "{what}, killed after {killed} steps");
            for entry in fs::read_dir(mounted.path()).expect("names") {
                fs::remove_file(entry.expect("an entry").path()).expect("removed");
            }
            if all {
                done.expect("nobody stopped it");
                assert!(what != "change" || read == new);
                break;
            }
            killed += 1;
        }
        assert!(killed > 6, "{what} has steps: {killed}");
    }
    mounted.end(&image);
}
