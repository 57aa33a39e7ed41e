//! TrueCrypt and VeraCrypt volumes that become longer or shorter: what the headers say, what a crash leaves, what others open.

use std::path::Path;
use std::sync::Arc;

use crate::support::*;
use crate::torture::{self, Key, Scenario, Subject, Verb};
use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::{self, HeaderEditor, Resizing};
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::{Credential, Error, ErrorKind, Result, Spec, Store, Unlock, Volume};
use claviger_testkit::stores::{CrashStore, Depth};
use claviger_testkit::{tools, uml};

const GROUP: u64 = 131_072;
/// The data of the volumes that are resized.
const SIZE: u64 = 300 << 10;
/// Twenty bytes, so that VeraCrypt's PIM may be 1.
const TEXT: &str = "a password of twenty";

#[derive(Clone, Copy)]
struct Kind {
    format: &'static str,
    cipher: &'static str,
    pim: Option<u32>,
}

const TRUECRYPT: Kind = Kind { format: "TrueCrypt", cipher: "AES", pim: None };
const VERACRYPT: Kind = Kind { format: "VeraCrypt", cipher: "AES-Twofish-Serpent", pim: Some(1) };

impl Kind {
    fn editor(self) -> &'static dyn HeaderEditor {
        formats::by_name(self.format).expect("it is in the table").editor().expect("it has an editor")
    }

    fn with(self, credentials: &[Credential]) -> Unlock<'_> {
        Unlock { hash: Some("SHA-512"), cipher: Some(self.cipher), pim: self.pim, ..Unlock::with(credentials) }
    }

    /// A volume of SIZE bytes that is full of known bytes, and those.
    fn volume(self) -> (Vec<u8>, Vec<u8>) {
        let store = Arc::new(MemoryStore::new(vec![0; (SIZE + 2 * GROUP) as usize]));
        let spec =
            Spec { hash: Some("SHA-512"), cipher: Some(self.cipher), pim: self.pim, quick: true, ..Spec::default() };
        formats::by_name(self.format).expect("a format").create(&*store, &spec, &[passphrase(TEXT)]).expect("a volume");
        let mut plain = noise(SIZE as usize, 5);
        plain[..4096].fill(0x42);
        let volume = self.open_in(shared(Arc::clone(&store)), HeaderChoice::Any).expect("it opens");
        volume.write_clobbering(0, &mut plain.clone()).expect("it is written");
        (store.to_vec(), plain)
    }

    fn open(self, bytes: &[u8], header: HeaderChoice) -> Result<Volume> {
        self.open_in(shared(MemoryStore::new(bytes.to_vec())), header)
    }

    fn open_in(self, store: Arc<dyn Store>, header: HeaderChoice) -> Result<Volume> {
        let credentials = [passphrase(TEXT)];
        let (_, locked) = formats::open(&store, Some(self.format))?;
        let unlocked = locked.unlock(&Unlock { header, ..self.with(&credentials) })?;
        Ok(Volume::new(store, unlocked.layout))
    }

    fn prepare(self, store: &dyn Store, size: u64) -> Result<Resizing> {
        self.editor().resize(store, None, Some(&self.with(&[passphrase(TEXT)])), size)
    }

    /// The file after the change.
    fn resized(self, bytes: &[u8], size: u64, quick: bool) -> Vec<u8> {
        let file = to_file(bytes);
        let store = FileStore::open(file.path(), Access::ReadWrite).expect("a file");
        let resizing = self.prepare(&store, size).expect("it is prepared");
        assert!(std::fs::read(file.path()).expect("the file") == bytes, "preparing writes nothing");
        resizing.carry_out(&store, &Spec { quick, ..Spec::default() }).expect("it is carried out");
        std::fs::read(file.path()).expect("the file")
    }
}

/// Longer and shorter, in a file that is already as long as it has to be, and not yet cut.
pub fn scenarios() -> Vec<Scenario> {
    let sizes = [SIZE + 512, SIZE + 200_192, SIZE - 512, SIZE - 200_192];
    // VeraCrypt derives keys for long, and does nothing else.
    let few = [SIZE + 200_192, SIZE - 512];
    sizes.into_iter().map(|size| resized(TRUECRYPT, size)).chain(few.map(|size| resized(VERACRYPT, size))).collect()
}

fn resized(kind: Kind, size: u64) -> Scenario {
    let (mut image, plain) = kind.volume();
    image.extend(noise(((size + 2 * GROUP) as usize).saturating_sub(image.len()), 9));
    let keys = vec![Key::Passphrase(TEXT.to_owned())];
    let (hash, cipher, pim) = (Some("SHA-512"), Some(kind.cipher), kind.pim);
    let kept = size.min(SIZE) as usize;
    let subject = Subject { format: kind.format, image, plaintext: plain[..kept].to_vec(), keys, hash, cipher, pim };
    let prepare = move |subject: &Subject, store: &dyn Store, with: &Unlock<'_>| {
        Ok(subject.editor().resize(store, None, Some(with), size)?.prepared)
    };
    let done = move |_: &Subject, store: &Arc<dyn Store>| {
        kind.open_in(Arc::clone(store), PRIMARY).is_ok_and(|volume| volume.len() == size)
    };
    let read = move |store: &Arc<dyn Store>| {
        let mut data = all_of(&kind.open_in(Arc::clone(store), HeaderChoice::Any)?);
        data.truncate(kept);
        Ok(data)
    };
    let finish = {
        let subject = subject.clone();
        move |store: &Arc<dyn Store>| {
            // Where `verify` looks for the backup is right only once the file is cut.
            subject.with_some_key(|with| prepare(&subject, &**store, with))?.edit.carry_out(&**store)?;
            done(&subject, store).then_some(()).ok_or_else(|| Error::misuse("it has another size"))
        }
    };
    let change = torture::change(&subject, Verb::Resize, &format!("to {size} bytes"), prepare, done);
    Scenario { read: Box::new(read), finish: Box::new(finish), ..change }
}

const PRIMARY: HeaderChoice = HeaderChoice::One { hidden: false, backup: false };
const BACKUP: HeaderChoice = HeaderChoice::One { hidden: false, backup: true };

/// The smallest data, as many as new volumes have at least.
const LEAST: u64 = 9 * 4096;

#[test]
fn both_headers_have_the_new_size_and_the_data_stay() {
    for kind in [TRUECRYPT, VERACRYPT] {
        let (before, plain) = kind.volume();
        let old_backup = &before[before.len() - GROUP as usize..][..512];
        for size in [SIZE + 512, SIZE + 65_536, SIZE + GROUP, SIZE + 300_032, SIZE - 512, SIZE - 70_144, LEAST, SIZE] {
            let what = format!("{}, {size} bytes", kind.format);
            let after = kind.resized(&before, size, false);
            assert_eq!(after.len() as u64, size + 2 * GROUP, "{what}");
            let kept = size.min(SIZE) as usize;
            for header in [PRIMARY, BACKUP] {
                let volume = kind.open(&after, header).unwrap_or_else(|e| panic!("{what}, {header:?}: {e}"));
                let data = all_of(&volume);
                assert!(data.len() as u64 == size && data[..kept] == plain[..kept], "{what}");
            }
            let credentials = [passphrase(TEXT)];
            let report =
                kind.editor().verify(&MemoryStore::new(after.clone()), &kind.with(&credentials)).expect("it opens");
            assert!(!report.damaged && report.warnings.is_empty(), "{what}: {report:?}");
            assert!(report.areas.iter().all(|area| area.not_random == 0), "{what}: {report:?}");
            if size == SIZE {
                assert!(after == before, "{what}: nothing to do");
                continue;
            }
            assert!(
                after[..64] != before[..64] && after[..64] != after[after.len() - GROUP as usize..][..64],
                "{what}"
            );
            assert!(after.chunks(512).all(|sector| sector != old_backup), "{what}: the old backup is gone");
            assert!(after[512..GROUP as usize] == before[512..GROUP as usize], "{what}: the hidden volume's header");
        }
    }
}

#[test]
fn at_any_crash_the_volume_opens_with_the_old_or_the_new_size_and_all_its_data() {
    let kind = TRUECRYPT;
    let (before, plain) = kind.volume();
    for size in [SIZE + 512, SIZE + 200_192, SIZE - 512, SIZE - 200_192] {
        let len = (size + 2 * GROUP) as usize;
        // The store after the new room was filled, before the header changes.
        let mut filled = before.clone();
        filled.extend(noise(len.saturating_sub(before.len()), 9));
        let store = CrashStore::new(filled.clone());
        let resizing = kind.prepare(&MemoryStore::new(before.clone()), size).expect("it is prepared");
        resizing.prepared.edit.carry_out(&store).expect("it is written");
        let mut images = Vec::new();
        store.each_crash(Depth { exhaustive: 3, sampled: 4, seed: 2 }, |image| images.push(image.to_vec()));
        images.extend(store.crash_images());
        let mut cut = store.crash_images().pop().expect("the last is the present");
        cut.truncate(len);
        images.push(cut);
        images.dedup();
        let kept = size.min(SIZE) as usize;
        let mut sizes = Vec::new();
        for (n, image) in images.iter().enumerate() {
            let what = format!("{size} bytes, image {n}");
            let opened = all_of(&kind.open(image, PRIMARY).unwrap_or_else(|e| panic!("{what}: {e}")));
            assert!([SIZE, size].contains(&(opened.len() as u64)), "{what}");
            assert!(opened[..kept] == plain[..kept], "{what}: the data");
            // The end that will be cut off is intact as long as the volume has its old size.
            assert!(opened.len() as u64 == size || opened == plain, "{what}: what is to be cut off");
            sizes.push(opened.len() as u64);
            // The header in front is never rewritten while it is the only one.
            if image[..512] != before[..512] && image.len() == filled.len() && n + 1 < images.len() && size > SIZE {
                assert!(kind.open(image, BACKUP).is_ok_and(|backup| backup.len() == size), "{what}");
            }
        }
        assert!(sizes.contains(&SIZE) && sizes.last() == Some(&size));
    }
}

#[test]
fn a_volume_in_a_longer_file_ends_with_its_data() {
    let kind = TRUECRYPT;
    let (before, plain) = kind.volume();
    // The backup at the end of the file, where VeraCrypt looks for it, and an older one after the data.
    let mut longer = before.clone();
    longer.extend(noise(500_000 / 512 * 512, 2));
    longer.extend_from_slice(&before[before.len() - GROUP as usize..]);
    for size in [SIZE, SIZE - 512, SIZE + 100_352, SIZE + (1 << 20)] {
        let after = kind.resized(&longer, size, true);
        assert_eq!(after.len() as u64, size + 2 * GROUP);
        for header in [PRIMARY, BACKUP] {
            let data = all_of(&kind.open(&after, header).expect("it opens"));
            let kept = size.min(SIZE) as usize;
            assert!(data.len() as u64 == size && data[..kept] == plain[..kept], "{size}");
        }
        let old_backup = &before[before.len() - GROUP as usize..][..512];
        assert!(after.chunks(512).all(|sector| sector != old_backup), "{size}: the old backups are gone");
    }
}

fn kind_of(result: Result<Resizing>) -> (&'static str, String) {
    let error: Error = result.map(|_| ()).expect_err("refused");
    let text = error.to_string();
    match error.kind {
        ErrorKind::Misuse(_) => ("misuse", text),
        ErrorKind::Unsupported { .. } => ("unsupported", text),
        ErrorKind::WrongCredential(_) => ("wrong", text),
        _ => ("other", text),
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let kind = TRUECRYPT;
    let (before, _) = kind.volume();
    let store = MemoryStore::new(before.clone());
    for size in [0, 511, SIZE + 100, LEAST - 512, 1 << 60, u64::MAX - 511] {
        assert_eq!(kind_of(kind.prepare(&store, size)).0, "misuse", "{size}");
    }
    let other = [passphrase("another")];
    assert_eq!(kind_of(kind.editor().resize(&store, None, Some(&kind.with(&other)), SIZE)).0, "wrong");
    let cut = MemoryStore::new(before[..before.len() - 3 * GROUP as usize].to_vec());
    assert!(kind_of(kind.prepare(&cut, SIZE)).1.contains("cut short"));
    let mut front = before.clone();
    front[..512].copy_from_slice(&noise(512, 8));
    assert!(kind_of(kind.prepare(&MemoryStore::new(front), SIZE + 512)).1.contains("only the backup header opens"));
    assert!(kind.editor().resize(&store, None, None, SIZE).is_err(), "without a password");
    // Another process has changed the header since.
    let resizing = kind.prepare(&store, SIZE - 512).expect("prepared");
    store.write_clobbering(0, &mut [7; 512]).expect("written");
    let error = resizing.prepared.edit.carry_out(&store).expect_err("refused");
    assert!(matches!(error.kind, ErrorKind::InUse { .. }), "{error}");
}

#[test]
fn cryptsetup_opens_what_was_resized() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let mut cases: Vec<(String, u64, String, String)> = Vec::new();
    for (kind, options) in [
        (TRUECRYPT, "--hash sha512 --cipher aes"),
        (VERACRYPT, "--veracrypt --veracrypt-pim 1 --hash sha512 --cipher serpent-twofish-aes"),
    ] {
        let (before, plain) = kind.volume();
        for size in [SIZE + 400_384, SIZE - 100_352] {
            let name = format!("{}-{size}", kind.format);
            let after = kind.resized(&before, size, false);
            std::fs::write(dir.path().join(&name), &after).expect("a volume");
            let data = all_of(&kind.open(&after, PRIMARY).expect("it opens"));
            let kept = size.min(SIZE) as usize;
            assert!(data[..kept] == plain[..kept]);
            std::fs::write(dir.path().join(format!("{name}.plain")), data).expect("its plaintext");
            cases.push((name, size, options.to_owned(), TEXT.to_owned()));
        }
    }
    // One that the original TrueCrypt has made.
    if let Some(sample) = tools::sample("truecrypt/aes-sha512.tc") {
        let (before, size) = (std::fs::read(&sample).expect("the sample"), 1 << 20);
        let file = to_file(&before);
        let store = FileStore::open(file.path(), Access::ReadWrite).expect("a file");
        let credentials = [passphrase("correct horse")];
        let resizing =
            TRUECRYPT.editor().resize(&store, None, Some(&TRUECRYPT.with(&credentials)), size).expect("prepared");
        resizing.carry_out(&store, &Spec::default()).expect("carried out");
        drop(store);
        std::fs::copy(file.path(), dir.path().join("theirs")).expect("copied");
        let now = plaintext(
            read_only(file.path()),
            unlock(read_only(file.path()), &Unlock::with(&credentials)).expect("it opens"),
        );
        std::fs::write(dir.path().join("theirs.plain"), now).expect("its plaintext");
        cases.push(("theirs".into(), size, "--hash sha512 --cipher aes".into(), "correct horse".into()));
    }
    let mut script =
        String::from("set -e\nmodprobe -qa dm-crypt xts aes serpent_generic twofish_generic sha512 || true\n");
    script += &format!("cd {}\n", dir.path().display());
    for (i, (name, size, options, text)) in cases.iter().enumerate() {
        let device = format!("/dev/ubd{}", char::from(b'a' + i as u8));
        for backup in ["", "--tcrypt-backup"] {
            script += &format!(
                "printf %s '{text}' | cryptsetup tcryptOpen {options} {backup} {device} x\n\
                 test $(blockdev --getsize64 /dev/mapper/x) = {size}\ncmp /dev/mapper/x {name}.plain\ncryptsetup close x\n"
            );
        }
    }
    let paths: Vec<_> = cases.iter().map(|(name, ..)| dir.path().join(name)).collect();
    let images: Vec<&Path> = paths.iter().map(|path| &**path).collect();
    let Some(done) = uml::run(&script, &images, 200) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
}
