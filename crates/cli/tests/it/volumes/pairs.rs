//! Two programs on one volume, in all pairs of what writes: one waits or is refused, and the volume is whole.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use crate::common::{Folder, PASSWORD, claviger, done, run};
use claviger_testkit::bitlocker::maker::{self, Kind, Protector};

/// A volume of which a copy is made for each pair.
struct Bed {
    folder: Folder,
    /// Its data.
    plaintext: Vec<u8>,
    /// Files with passwords, one of which opens it in the end.
    passwords: Vec<String>,
    /// The verbs that change it.
    verbs: Vec<Vec<String>>,
    /// Options that make the search for its header quick.
    quickly: &'static [&'static str],
}

impl Bed {
    /// For the volume `v` in the folder; `@` marks the names of files in it.
    fn new(folder: Folder, passwords: &[&str], verbs: &[&str]) -> Self {
        let path = |name: &str| folder.str(name);
        for (name, text) in [("two", "two"), ("three", "three"), ("new", "something new")] {
            std::fs::write(path(name), text).expect("a password file");
        }
        let words = |line: &&str| {
            let word = |word: &str| word.strip_prefix('@').map_or_else(|| word.to_owned(), path);
            line.split(' ').map(word).collect()
        };
        let verbs = verbs.iter().map(words).collect();
        let passwords: Vec<_> = passwords.iter().map(|name| path(name)).collect();
        let plaintext = run(["cat", "--password-file", &passwords[0], &path("v")]).succeeds().out;
        Self { folder, plaintext, passwords, verbs, quickly: &[] }
    }

    fn start(&self, verb: &[String]) -> Child {
        use std::process::Stdio;
        claviger().args(verb).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    fn each_pair_leaves_it_whole(&self) {
        let (volume, kept) = (self.folder.path("v"), self.folder.path("kept"));
        std::fs::copy(&volume, &kept).expect("a copy");
        for (at, first) in self.verbs.iter().enumerate() {
            for (and, second) in self.verbs.iter().enumerate().skip(at) {
                std::fs::copy(&kept, &volume).expect("a copy");
                let what = format!("{} {} and {} {}", first[0], first[1], second[0], second[1]);
                let one = self.start(first);
                // Now and then the other is first.
                std::thread::sleep(Duration::from_millis((at * 7 + and * 13) as u64 % 40));
                let other = self.start(second);
                let ended = [one, other].map(|child| done(child.wait_with_output().expect("it ends")));
                assert!(ended.iter().any(|done| done.code == 0), "{what}: {ended:?}");
                assert!(ended.iter().all(|done| done.code < 100), "{what}: {ended:?}");
                self.is_whole(&volume, &format!("{what}: {ended:?}"));
            }
        }
    }

    fn is_whole(&self, volume: &Path, what: &str) {
        if std::fs::read(volume).expect("it is there").starts_with(&self.plaintext) {
            // Decrypted where it lies.
            return;
        }
        let volume = volume.to_str().expect("text");
        let read = |file: &String| run(["cat", "--password-file", file, volume].iter().chain(self.quickly));
        let opened = self.passwords.iter().find_map(|file| Some((file, read(file))).filter(|(_, read)| read.code == 0));
        let (password, now) = opened.unwrap_or_else(|| panic!("{what}: nothing opens it"));
        // It may be longer by now.
        assert!(now.out.starts_with(&self.plaintext), "{what}: other data");
        let verified = run(["verify", "--password-file", password, volume].iter().chain(self.quickly));
        assert!(verified.code == 0, "{what}: its header is not sound: {verified:?}");
    }
}

#[test]
fn two_programs_on_one_luks2_volume() {
    let folder = Folder::new();
    let volume = folder.luks2("v");
    for name in ["two", "three"] {
        std::fs::write(folder.path(name), name).expect("a password file");
        let add = ["keyslot", "add", &volume, "--kdf", "pbkdf2", "--iterations", "1000"];
        let secrets = ["--password-file", &folder.password, "--new-password-file", &folder.str(name)];
        run(add.into_iter().chain(secrets)).succeeds();
    }
    run(["header", "backup", &volume, &folder.str("backup")]).succeeds();
    let verbs = [
        "keyslot add @v --password-file @password --new-password-file @new --kdf pbkdf2 --iterations 1000",
        "keyslot change @v --password-file @two --new-password-file @new --kdf pbkdf2 --iterations 1000",
        "keyslot kill @v 2 --yes --password-file @password",
        "header set --label another @v",
        "header restore --from @backup @v --yes --password-file @password",
        "reencrypt --yes --password-file @password @v",
        "resize --size 5M @v",
        "serve --password-file @password @v --run true",
    ];
    Bed::new(folder, &["password"], &verbs).each_pair_leaves_it_whole();
}

#[test]
fn two_programs_on_one_truecrypt_volume() {
    let folder = Folder::new();
    let volume = folder.volume("v", "1M", &[]);
    let backup = ["header", "backup", &volume, &folder.str("backup"), "--password-file", &folder.password];
    run(backup).succeeds();
    // Every other hash and cipher would be tried first.
    let verbs = [
        "change --hash SHA-512 --cipher AES --password-file @password --new-password-file @new @v",
        "header restore --hash SHA-512 --cipher AES --from @backup @v --yes --password-file @password",
        "resize --hash SHA-512 --cipher AES --size 2M --password-file @password @v",
        "serve --hash SHA-512 --cipher AES --password-file @password @v --run true",
    ];
    let bed = Bed::new(folder, &["password", "new"], &verbs);
    Bed { quickly: &["--hash", "SHA-512", "--cipher", "AES"], ..bed }.each_pair_leaves_it_whole();
}

#[test]
fn two_programs_on_one_bitlocker_volume() {
    let folder = Folder::new();
    let protectors = vec![Protector::Password(PASSWORD.into())];
    let made = maker::Volume { size: 1 << 20, protectors, ..maker::Volume::new(Kind::Windows8) }.make();
    std::fs::write(folder.path("v"), &made.image).expect("a volume");
    let verbs = [
        "keyslot add @v --password-file @password --new-password-file @new",
        "header set --label another --password-file @password @v",
        "header repair --yes @v",
        "reencrypt --decrypt --yes --password-file @password @v",
    ];
    Bed::new(folder, &["password", "new"], &verbs).each_pair_leaves_it_whole();
}
