//! Headers that were changed or restored here, as cryptsetup and tcplay see them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::*;
use claviger_engine::formats::{self, HeaderEditor, NewCredential, RestoreFrom};
use claviger_engine::store::MemoryStore;
use claviger_engine::{Credential, Spec, Store, Unlock, Volume};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::{tools, uml};

const LEN: usize = 1 << 20;
const GROUP: usize = 131_072;
const OLD: &str = "the old password, 26 bytes";
const NEW: &str = "the new password, 26 bytes";

fn editor(format: &str) -> &'static dyn HeaderEditor {
    formats::by_name(format).expect("it is in the table").editor().expect("it has an editor")
}

/// A volume in a file, and what cryptsetup is to make of it.
struct Case {
    path: PathBuf,
    /// The plaintext, in a file.
    plain: PathBuf,
    /// Whether the backup at the end is sound too.
    backup: bool,
    /// Options that name the format and narrow cryptsetup's search.
    options: String,
    old: &'static str,
    new: String,
    new_options: String,
}

impl Case {
    fn new(dir: &Path, name: &str, bytes: &[u8], plain: &[u8], options: &str) -> Self {
        let path = dir.join(name);
        std::fs::write(&path, bytes).expect("a volume");
        let file = dir.join(format!("{name}.plain"));
        std::fs::write(&file, plain).expect("its plaintext");
        Self {
            path,
            plain: file,
            backup: true,
            options: options.to_owned(),
            old: OLD,
            new: NEW.to_owned(),
            new_options: String::new(),
        }
    }

    /// Opens with the new password, by the header in front and by the backup, and not with the old one.
    fn script(&self, device: &str) -> String {
        let Self { plain, options, old, new, new_options, .. } = self;
        let plain = plain.display();
        let mut script = String::new();
        for backup in ["", "--tcrypt-backup"].into_iter().take(if self.backup { 2 } else { 1 }) {
            let open = format!("cryptsetup tcryptOpen {options} {backup} /dev/{device} x");
            script += &format!(
                "if printf %s '{old}' | {open}; then echo 'the old password opens {device} {backup}'; exit 9; fi\n\
                 printf %s '{new}' | {open} {new_options}\ncmp /dev/mapper/x {plain}\ncryptsetup close x\n"
            );
        }
        script
    }
}

/// A volume of the format that is full of known bytes, and those.
fn volume(format: &str, pim: Option<u32>) -> (Vec<u8>, Vec<u8>) {
    let store = Arc::new(MemoryStore::new(vec![0; LEN]));
    let spec = Spec { hash: Some("SHA-512"), pim, quick: true, ..Spec::default() };
    let credentials = [passphrase(OLD)];
    formats::by_name(format).expect("a format").create(&*store, &spec, &credentials).expect("a new volume");
    let (_, header) = formats::open(&shared(Arc::clone(&store)), Some(format)).expect("a header");
    let with = Unlock { hash: Some("SHA-512"), pim, ..Unlock::with(&credentials) };
    let unlocked = header.unlock(&with).expect("it opens");
    let volume = Volume::new(Arc::clone(&store) as Arc<dyn Store>, unlocked.layout);
    // The beginning is no noise, as that of a file system.
    let mut plain = noise(volume.len() as usize, 7);
    plain[..4096].fill(0x42);
    volume.write_clobbering(0, &mut plain.clone()).expect("it is written");
    (store.to_vec(), plain)
}

fn changed(
    format: &str,
    bytes: &[u8],
    with: &Unlock<'_>,
    new: &[Credential],
    hash: Option<&str>,
    pim: Option<u32>,
) -> Vec<u8> {
    let store = MemoryStore::new(bytes.to_vec());
    let new = NewCredential { credentials: new, hash, pim, ..NewCredential::default() };
    let prepared = editor(format).change(&store, with, &new).expect("a change");
    prepared.edit.carry_out(&store).expect("it is written");
    store.to_vec()
}

/// Options that make a search unnecessary.
fn hints<'a>(credentials: &'a [Credential], hash: &'a str, cipher: &'a str) -> Unlock<'a> {
    Unlock { hash: Some(hash), cipher: Some(cipher), ..Unlock::with(credentials) }
}

#[test]
fn the_kernel_opens_what_was_changed_or_restored() {
    let Some(_) = tools::program("cryptsetup") else { return };
    let Some(sample) = tools::sample("truecrypt/hidden.tc") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (old, new) = ([passphrase(OLD)], [passphrase(NEW)]);
    let mut cases = Vec::new();

    let with = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), ..Unlock::with(&old) };
    let (bytes, plain) = volume("TrueCrypt", None);
    let password = changed("TrueCrypt", &bytes, &with, &new, None, None);
    cases.push(Case::new(dir.path(), "password", &password, &plain, "--cipher aes --hash sha512"));

    // Another hash, and a keyfile beside the password.
    let keyfile = dir.path().join("keyfile");
    std::fs::write(&keyfile, noise(999, 4)).expect("a keyfile");
    let with_keyfile: Vec<Credential> =
        [passphrase(NEW)].into_iter().chain(Credential::keyfiles(&keyfile).expect("it is there")).collect();
    let hash = changed("TrueCrypt", &bytes, &with, &with_keyfile, Some("Whirlpool"), None);
    let mut case = Case::new(dir.path(), "hash", &hash, &plain, "--cipher aes --hash whirlpool");
    case.new_options = format!("--key-file {}", keyfile.display());
    cases.push(case);

    // VeraCrypt, with another PIM.
    let (vera, vera_plain) = volume("VeraCrypt", Some(1));
    let with_pim =
        Unlock { pim: Some(1), ..Unlock { hash: Some("SHA-512"), cipher: Some("AES"), ..Unlock::with(&old) } };
    let pim = changed("VeraCrypt", &vera, &with_pim, &new, None, Some(2));
    let options = "--veracrypt --veracrypt-pim 2 --cipher aes --hash sha512";
    cases.push(Case::new(dir.path(), "pim", &pim, &vera_plain, options));

    // A header backup, both headers destroyed, and the headers back from the file. The old password is that of later.
    let with_new = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), ..Unlock::with(&new) };
    let file = editor("TrueCrypt").back_up(&MemoryStore::new(password.clone()), &with_new, None).expect("a backup");
    let mut wiped = password;
    wiped[..GROUP].fill(0);
    wiped[LEN - GROUP..].fill(0);
    // The file is what a volume begins with.
    let mut case = wiped.clone();
    case[..GROUP].copy_from_slice(&file.bytes);
    let mut case = Case::new(dir.path(), "backup", &case, &plain, "--cipher aes --hash sha512");
    case.backup = false;
    cases.push(case);
    let store = MemoryStore::new(wiped);
    let file = MemoryStore::new(file.bytes);
    let prepared = editor("TrueCrypt").restore(&store, RestoreFrom::Backup(&file), &with_new, false);
    prepared.expect("its data make sense").edit.carry_out(&store).expect("it is written");
    cases.push(Case::new(dir.path(), "restored", &store.to_vec(), &plain, "--cipher aes --hash sha512"));

    // The embedded backup.
    let mut wiped = pim;
    wiped[..GROUP].fill(0);
    let store = MemoryStore::new(wiped);
    let with_pim = Unlock { credentials: &new, pim: Some(2), ..with_pim };
    let prepared = editor("VeraCrypt").restore(&store, RestoreFrom::Embedded, &with_pim, false);
    prepared.expect("it opens").edit.carry_out(&store).expect("it is written");
    cases.push(Case::new(dir.path(), "embedded", &store.to_vec(), &vera_plain, options));

    // The hidden volume of a volume of TrueCrypt 7.1a. The outer one still opens.
    let original = std::fs::read(sample).expect("a sample");
    let hidden = [passphrase("hidden pass")];
    let bytes = changed("TrueCrypt", &original, &hints(&hidden, "Whirlpool", "Serpent-Twofish-AES"), &new, None, None);
    let plain_of = |with: &Unlock<'_>| {
        let store = Arc::new(MemoryStore::new(bytes.clone()));
        let unlocked = unlock(Arc::clone(&store), with).expect("it opens");
        plaintext(store, unlocked)
    };
    let options = "--tcrypt-hidden --cipher aes-twofish-serpent --hash whirlpool";
    let mut case =
        Case::new(dir.path(), "hidden", &bytes, &plain_of(&hints(&new, "Whirlpool", "Serpent-Twofish-AES")), options);
    case.old = "hidden pass";
    cases.push(case);
    let outer = [passphrase("outer pass")];
    let outer = Case::new(dir.path(), "outer", &bytes, &plain_of(&hints(&outer, "SHA-512", "AES")), "");
    let outer = format!(
        "printf %s 'outer pass' | cryptsetup tcryptOpen --cipher aes --hash sha512 /dev/ubd{} x\ncmp /dev/mapper/x {}\n\
         cryptsetup close x\n",
        (b'a' + cases.len() as u8 - 1) as char,
        outer.plain.display()
    );

    let scripts: String = (b'a'..).zip(&cases).map(|(c, case)| case.script(&format!("ubd{}", c as char))).collect();
    let images: Vec<&Path> = cases.iter().map(|c| &*c.path).collect();
    let Some(done) = uml::run(&format!("set -ex\n{scripts}{outer}"), &images, 300) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
}

#[test]
fn tcplay_opens_what_was_changed() {
    let Some(_) = tools::root() else { return };
    let (Some(tcplay), Some(_)) = (tools::program("tcplay"), tools::program("python3")) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (old, new) = ([passphrase(OLD)], [passphrase(NEW)]);
    let (bytes, _) = volume("TrueCrypt", None);
    let with = Unlock { hash: Some("SHA-512"), cipher: Some("AES"), ..Unlock::with(&old) };
    let path = dir.path().join("v.tc");
    std::fs::write(&path, changed("TrueCrypt", &bytes, &with, &new, Some("RIPEMD-160"), None)).expect("a volume");
    let Some(device) = LoopDevice::new(&path, &[]) else { return };
    let node = device.path().to_str().expect("UTF-8");
    let tcplay = tcplay.to_str().expect("UTF-8");
    for more in [&[][..], &["--use-backup"]] {
        let command = [&[tcplay, "-d", node, "-i"], more].concat();
        let said = on_terminal(&[("Passphrase:", NEW)], &command);
        assert!(said.contains("AES-256-XTS") && said.contains("RIPEMD160"), "{said}");
    }
    // The reverse: cryptsetup changes a header that was changed here, and all copies are sound.
    let answers = [("Passphrase:", NEW), ("New passphrase:", OLD), ("Repeat", OLD)];
    on_terminal(&answers, &[tcplay, "-d", node, "--modify", "--new-pbkdf-prf=SHA512", "-w"]);
    drop(device);
    let store = in_memory(&path);
    let verified = editor("TrueCrypt").verify(&*store, &with).expect("it opens with what tcplay wrote");
    assert!(!verified.damaged, "{verified:?}");
    assert!(unlock(Arc::clone(&store), &Unlock::with(&new)).is_err());
}
