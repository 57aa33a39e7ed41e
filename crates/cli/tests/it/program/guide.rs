//! Every command in the README and the guide is run as it stands there, by somebody at a terminal, or is listed here with the reason
//! why it is not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::mounts::MountSpace;
use claviger_testkit::{terminal, tools};
use serde_json::{Value, json};

/// The answer to a question that ends like this; `None` repeats the previous answer.
const ANSWERS: &[(&str, Option<&str>)] = &[
    ("[y/N] ", Some("y\n")),
    ("Repeat: ", None),
    ("hidden volume: ", Some("the inner password\n")),
    ("assword: ", Some("open sesame, Claviger!\n")),
    ("new volume: ", Some("open sesame, Claviger!\n")),
    ("folder: ", Some("open sesame, Claviger!\n")),
    ("and ends it.\r\n", Some("\u{3}")),
];

/// Words by which commands are not run, and why, or where they are.
const LEFT_OUT: &[(&str, &str)] = &[
    ("example", "another machine: serving/remote.rs"),
    ("rbd", "a Ceph cluster: serving/ceph.rs"),
    ("s3:", "a web server: serving/remote.rs"),
    ("disk.vhdx", "an image: serving/images.rs"),
    ("disk.001", "a split disk: serving/images.rs"),
    ("/dev/", "hardware"),
    ("tpm2", "a TPM: luks/tokens_tpm.rs"),
    ("fido2", "a FIDO2 key: luks/tokens_fido2.rs"),
    ("keyslot reseal", "a TPM: luks/tokens_tpm.rs"),
    ("pkcs11", "a smart card: luks/tokens.rs"),
    ("--token-only", "a TPM: luks/tokens_tpm.rs"),
    ("--ask systemd", "systemd's password agents: program/terminal.rs"),
    (".jwe", "a TPM or a tang server: luks/tokens_clevis.rs"),
    ("--kernel", "the kernel's device-mapper: serving/kernel.rs"),
    ("claviger detach", "the kernel's device-mapper: serving/kernel.rs"),
    ("umount /mnt", "the kernel's device-mapper: serving/kernel.rs"),
    ("attach backup", "root's table: serving/crypttab.rs"),
    (".pfx", "certificates of Windows: efs/private_keys.rs"),
    (".cer", "certificates of Windows: efs/verbs.rs"),
    ("--windows-profile", "a profile of Windows: efs/private_keys.rs"),
    ("/Users/me", "a disk of Windows: efs/verbs.rs"),
    ("--logical-volume", "LVM2: filesystems/logical_volumes.rs"),
    ("laptop.luks", "LVM2: filesystems/logical_volumes.rs"),
    ("mac.img", "a Mac: volumes/filevault2.rs"),
    ("backup.dmg", "a Mac: serving/images.rs"),
    ("plain.dmg", "a Mac: serving/images.rs"),
    ("checked.img", "integritysetup: luks/sectors.rs"),
    ("2004.img", "cryptoloop, which nobody creates: volumes/reading.rs"),
    ("loop.img", "gpg: volumes/pairs.rs"),
    ("--format plain", "plain dm-crypt: volumes/pairs.rs"),
    ("find disk.img", "a disk without a partition table: volumes/finding.rs"),
    ("@disk.img", "a disk without a partition table: volumes/finding.rs"),
    ("disk.img :", "folders inside disks: filesystems/folders.rs"),
    ("crouton", "crouton: filesystems/folders.rs"),
    ("passphrase wk", "crouton: filesystems/folders.rs"),
    ("@photos@", "a Synology: filesystems/folders.rs"),
    ("mount encrypted plain", "a folder of the kernel's: filesystems/folders.rs"),
    ("/media/old", "another computer's folder: filesystems/folders.rs"),
    ("--home ~", "the home of whoever runs it: filesystems/folders.rs"),
    ("--resume", "something interrupted: volumes/convert.rs, luks/reencrypting.rs, lab/runs.rs"),
    ("rotate.sh", "a list of volumes: luks/rotation.rs"),
    ("cat volumes", "a list of volumes: luks/rotation.rs"),
    ("pki", "certificates: serving/serve_verb.rs"),
    ("openssl", "certificates: serving/serve_verb.rs"),
    ("new -", "certificates: serving/serve_verb.rs"),
    ("issue ", "certificates: serving/serve_verb.rs"),
    ("claviger lab", "minutes to days: lab/"),
    ("claviger benchmark", "minutes: lab/benchmark.rs"),
    ("make ", "builds of the program: .ci/run"),
    ("sha256sum", "a release: tools/deb-test.sh"),
    ("apt install", "a release: tools/deb-test.sh"),
    ("tar -x", "a release: tools/release.sh"),
    ("sudo install", "a release: tools/release.sh"),
    ("rustup", "the network"),
    ("claviger-window", "a screen: window/tests"),
    ("exec 3<", "the window's descriptors: window/tests"),
    ("--progress-fd 4", "the window's descriptors: window/tests"),
    ("| less", "a pager"),
    ("qemu-img", "another program's disk"),
    ("--encrypt", "a file system to shrink: luks/reencrypting.rs, bitlocker/reencrypting.rs"),
    ("--decrypt", "a detached header: luks/reencrypting.rs, bitlocker/reencrypting.rs"),
    ("--new-cipher", "other sectors: luks/reencrypting.rs"),
    ("--to LUKS2", "a volume of LUKS1: luks/headers.rs"),
    ("--earlier", "an older copy: volumes/deniability.rs"),
    ("--pim 485", "seconds of derivation: volumes/credentials.rs"),
    ("--veracrypt", "seconds of derivation: volumes/credentials.rs"),
    ("key stick.img", "a startup key: bitlocker/protectors.rs"),
    ("json x*", "a name that is not text: program/json.rs"),
    ("disk.E01", "a forensic image: serving/images.rs"),
    ("md:disk1.img", "members of an array: filesystems/arrays.rs"),
    ("identify disk1.img", "members of an array: filesystems/arrays.rs"),
    ("lvm:vg/home", "a physical volume of LVM2: filesystems/arrays.rs"),
    ("recovery check", "a recovery key: program/recovery.rs"),
    ("recovery join", "shares of several people: program/recovery.rs"),
    ("recovery-key.txt disk.luks > ", "a recovery key: luks/tokens.rs"),
];

/// Words in commands, and what stands for them here.
const INSTEAD: &[(&str, &str)] = &[
    ("/mnt", "~/mnt"),
    ("/media/key", "key"),
    ("--size 100M", "--size 24M"),
    ("--size 1G", "--size 40M"),
    ("--size 10G", "--size 24M"),
    ("--size 2G", "--size 26M"),
    ("fs.img 84M", "fs.img 4M"),
    ("--iter-time 500", "--iter-time 5"),
];

/// A folder of EncFS.
const ENCFS_FOLDER: &str = "mkdir letters open; encfs --standard --extpass \"echo 'open sesame, Claviger!'\" $PWD/letters $PWD/open; \
                            echo dear >open/letter.txt; fusermount -u open; rmdir open";

/// What has to happen before a command that begins like this.
const BEFORE: &[(&str, &str)] = &[
    ("claviger unmount ~/Private", "claviger mount ~/.Private ~/Private"),
    ("claviger unmount ", "mkdir -p $3; claviger mount old.tc $3"),
    ("claviger lock ", "claviger mount --isolate-keys old.tc $3"),
    ("claviger unlock ", "claviger mount --isolate-keys old.tc $3; claviger lock $3"),
    ("claviger header restore --from ", "claviger header backup $6 $5"),
    ("claviger mount --header ", "claviger create --format LUKS2 --quick --size 20M --filesystem ext4 --header $4 $5"),
    ("claviger keyslot recovery ", "claviger keyslot add --recovery-password $4"),
    ("claviger recovery show stick.img", "claviger keyslot add --recovery-password $4"),
    ("claviger recovery replace ", "claviger recovery make --output made.txt $6"),
    ("claviger keyslot resume ", "claviger keyslot suspend $4"),
    ("claviger keyslot kill stick.img ", "claviger keyslot add stick.img"),
];

/// A command of a page.
struct Line {
    page: String,
    text: String,
}

/// The commands of all pages: the lines after a prompt, and in the README also those without one.
fn commands() -> Vec<Line> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = fs::read_dir(root.join("docs/guide")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut pages: Vec<PathBuf> = folder.filter(|path| path.extension() == Some("md".as_ref())).collect();
    pages.extend(["README.md", "docs/facilities.md"].map(|page| root.join(page)));
    let mut lines = Vec::new();
    for page in pages {
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&page).expect("a page").replace("\\\n", "");
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            let bare = name == "README.md" && ["make ", "curl ", "claviger "].iter().any(|word| line.starts_with(word));
            let prompted = ["$ ", "# "].iter().find_map(|prompt| line.strip_prefix(prompt));
            let Some(text) = prompted.or(bare.then_some(line)) else { continue };
            // What follows is a comment.
            let text = text.split("  #").next().unwrap_or_default().split(" # ").next().unwrap_or_default();
            lines.push(Line { page: name.clone(), text: text.trim_end().to_owned() });
        }
    }
    lines
}

fn why_left_out(line: &Line) -> Option<&'static (&'static str, &'static str)> {
    LEFT_OUT.iter().find(|(words, _)| line.text.contains(words))
}

#[test]
fn every_reason_for_leaving_commands_out_is_needed() {
    let commands = commands();
    let used: BTreeSet<_> = commands.iter().filter_map(why_left_out).collect();
    let unused: Vec<_> = LEFT_OUT.iter().filter(|row| !used.contains(row)).collect();
    assert!(unused.is_empty(), "no command has these words: {unused:?}");
    let run = commands.iter().filter(|line| why_left_out(line).is_none()).count();
    assert!(run > 90 && commands.len() > 250, "{run} of {} commands are run", commands.len());
}

/// The volumes that commands are about, under the names that the guide gives them.
struct Shelf {
    place: MountSpace,
}

impl Shelf {
    fn new() -> Option<Self> {
        for program in ["bash", "mkfs.vfat", "mkfs.ext4", "fuse2fs", "mkfs.exfat", "nbdcopy", "python3"] {
            tools::program(program)?;
        }
        let shelf = Self { place: MountSpace::root()? };
        fs::create_dir(shelf.place.folder.path("shelf")).expect("a folder");
        Some(shelf)
    }

    /// Plays the person who types the command in the folder, which is home.
    fn play(&self, folder: &Path, line: &str) -> (i64, String) {
        let answers = json!([{"answers": ANSWERS.iter().map(|(end, text)| json!([end, text])).collect::<Vec<_>>()}]);
        let mut command = terminal::played(answers).expect("Python is there");
        let program = Path::new(env!("CARGO_BIN_EXE_claviger")).parent().expect("a folder").display().to_string();
        command.args(["bash", "-c", line]).current_dir(folder).env("HOME", folder);
        command.env("PATH", format!("{program}:/usr/sbin:/usr/bin:/sbin:/bin"));
        command.env("CLAVIGER_RUNTIME_DIR", self.place.runtime()).env_remove("XDG_CONFIG_HOME");
        let told: Value = serde_json::from_slice(&tools::run(&mut command).stdout).expect("JSON");
        (told["code"].as_i64().unwrap_or(-1), told["output"].as_str().unwrap_or_default().to_owned())
    }

    /// Makes the volume that a command names, once, and copies it into the folder.
    fn lay_out(&self, folder: &Path, name: &str, line: &str) {
        let hidden = ["--protect-hidden", "--open"].iter().any(|option| line.contains(option));
        let (kind, script) = match name {
            "old.tc" => ("tc", "$C --format TrueCrypt --hash SHA-512 --quick --size 2M --filesystem fat v && $FILL"),
            "secrets.hc" | "outer.hc" if hidden => (
                "hidden",
                "$C --format TrueCrypt --hash SHA-512 --size 24M --filesystem fat v && \
                 printf 'the inner password' > inner && \
                 $C --hidden --format TrueCrypt --hash SHA-512 --hidden-password-file inner --force --yes --quick --size 8M v",
            ),
            "secrets.hc" | "old.hc" | "photos.hc" => {
                ("hc", "$C --format TrueCrypt --hash SHA-512 --size 24M --filesystem fat v && $FILL")
            }
            "disk.luks" => (
                "luks",
                "$C --format LUKS2 --kdf pbkdf2 --iterations 1000 --quick --size 24M --filesystem ext4 v && \
                 printf another > new && claviger keyslot add --kdf pbkdf2 --iterations 1000 --password-file $PW \
                 --new-password-file new v",
            ),
            "stick.img" => {
                ("stick", "$C --format BitLocker --no-recovery-password --quick --size 8M --filesystem fat v && $FILL")
            }
            "key.bin" | "report.pdf" | "fs.img" => ("bytes", "head -c 65536 /dev/urandom > v"),
            _ => return,
        };
        let made = self.place.folder.path("shelf").join(kind);
        if !made.exists() {
            fs::create_dir(&made).expect("a folder");
            let password = &self.place.folder.password;
            let create = format!("claviger create --password-file {password}");
            let fill = format!(
                "mkdir Documents && echo hello > hello.txt && echo dear > Documents/letter.txt && \
                 claviger cp -r --password-file {password} v hello.txt Documents :/"
            );
            let script = script.replace("$C", &create).replace("$FILL", &fill).replace("$PW", password);
            let (code, told) = self.play(&made, &script);
            assert_eq!(code, 0, "{script}\n{told}");
        }
        fs::copy(made.join("v"), folder.join(name)).expect("a copy");
    }

    /// Runs the command in a folder of its own, which is the home folder, with the files that it needs. Returns what went wrong.
    fn run(&self, number: usize, line: &Line) -> Option<String> {
        let folder = self.place.dir(&format!("home{number}"));
        let folder = Path::new(&folder);
        let text = INSTEAD.iter().fold(line.text.clone(), |text, (words, others)| text.replace(words, others));
        let words: Vec<_> = text.split([' ', '\'']).collect();
        let before = BEFORE.iter().find(|(begins, _)| text.starts_with(begins)).map(|(_, script)| *script);
        let numbered = |script: &str| {
            let replace = |script: String, (i, word): (usize, &&str)| script.replace(&format!("${}", i + 1), word);
            words.iter().enumerate().fold(script.to_owned(), replace)
        };
        let mut steps = Vec::new();
        // A new home is empty.
        if text.contains("~/.Private") || text.contains("~/Private") {
            steps.push(
                "claviger create --format eCryptfs --home ~; claviger mount --format=eCryptfs ~/.Private ~/Private; \
                 mkdir ~/Private/Documents; echo dear > ~/Private/Documents/letter.txt; claviger unmount ~/Private",
            );
        }
        if text.contains(" vault") && !text.starts_with("claviger create ") {
            steps.push(match &*line.page {
                "cryptomator.md" => "claviger create --format Cryptomator vault",
                _ => "claviger create --format gocryptfs vault",
            });
        }
        if words.contains(&"letters") {
            steps.push(ENCFS_FOLDER);
        }
        steps.push("mkdir -p plain key documents ~/mnt ~/data ~/stick ~/outer; echo text > documents/text");
        steps.extend((text != "mkdir ~/old").then_some("mkdir ~/old"));
        if text.contains(" --reverse ") && !text.starts_with("claviger create ") {
            steps.push("claviger create --format gocryptfs --reverse documents");
        }
        let (code, told) = self.play(folder, &format!("set -e; {}", steps.join("; ")));
        assert_eq!(code, 0, "before {}\n{told}", line.text);
        let creates = |name: &str| {
            let new = text.starts_with("claviger create ") && !text.contains("--hidden");
            (new || text.starts_with("mkfs") || text.starts_with("claviger keyfile ")) && text.ends_with(name)
        };
        let old = before.filter(|script| script.contains("old.tc")).map(|_| "old.tc");
        let wanted = words.iter().copied().filter(|word| !creates(word)).chain(old);
        wanted.for_each(|name| self.lay_out(folder, name, &text));
        let (code, told) = before.map_or((0, String::new()), |script| self.play(folder, &numbered(script)));
        assert_eq!(code, 0, "before {}\n{told}", line.text);
        let (code, told) = self.play(folder, &text);
        self.place.run(["unmount", "--all", "--force"]).succeeds();
        (code != 0).then(|| format!("{}: {}\n{code}: {told}", line.page, line.text))
    }
}

/// Runs all commands of the pages.
fn pages(names: &[&str]) {
    let Some(shelf) = Shelf::new() else { return };
    let commands = commands();
    let lines: Vec<_> =
        commands.iter().filter(|line| names.contains(&&*line.page) && why_left_out(line).is_none()).collect();
    let failed: Vec<_> = lines.iter().enumerate().filter_map(|(number, line)| shelf.run(number, line)).collect();
    assert!(!lines.is_empty() && failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_readme_and_what_answers_questions() {
    pages(&["README.md", "questions.md", "json.md", "window.md", "disk.md", "boot.md", "deniability.md"]);
}

#[test]
fn volumes_are_opened() {
    pages(&["open.md", "tokens.md", "remote.md", "efs.md", "facilities.md", "lab.md"]);
}

#[test]
fn volumes_are_created_and_changed() {
    pages(&["create.md"]);
}

#[test]
fn luks_is_managed() {
    pages(&["luks.md"]);
}

#[test]
fn bitlocker_is_managed() {
    pages(&["bitlocker.md", "recovery.md"]);
}

#[test]
fn folders_are_opened_and_made() {
    pages(&["ecryptfs.md", "gocryptfs.md", "cryptomator.md", "encfs.md"]);
}

#[test]
fn people_come_from_another_program() {
    pages(&["coming-from.md"]);
}
