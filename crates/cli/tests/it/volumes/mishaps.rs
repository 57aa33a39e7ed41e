//! What happens to volumes and to what opens them, and what `claviger explain` and the verbs that it names make of it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Done, Folder, done, run, run_with};
use claviger_testkit::bitlocker::crypto::Method;
use claviger_testkit::bitlocker::maker::{self, Kind, PASSWORD, Protector};
use claviger_testkit::random::Random;
use claviger_testkit::tools::{self, Case};
use serde_json::Value;

/// A VeraCrypt volume with something in it, and the file with its password.
struct VeraCrypt {
    folder: Folder,
    password: String,
    /// The volume as it was, and its plaintext.
    whole: Vec<u8>,
    plain: Vec<u8>,
}

impl VeraCrypt {
    const HINTS: [&str; 6] = ["--format", "VeraCrypt", "--hash", "SHA-512", "--pim", "1"];

    /// That of a case which lost 4096 bytes in front, which are noise: what is restored from its backup header is whole.
    fn new() -> Option<Self> {
        let (short, password) = (Case::unpack("veracrypt/short.hc.xz")?, Case::unpack("veracrypt/p64")?);
        let folder = Folder::new();
        fs::copy(password.path(), folder.path("p64")).expect("copied");
        let short = fs::read(short.path()).expect("readable");
        fs::write(folder.path("whole"), [Random::new(1).bytes(4096), short].concat()).expect("written");
        let mut this = Self { password: folder.str("p64"), folder, whole: Vec::new(), plain: Vec::new() };
        let whole = this.folder.str("whole");
        this.with(&["header", "restore", "--embedded", "--yes", &whole]).succeeds();
        this.whole = fs::read(&whole).expect("readable");
        this.plain = this.with(&["cat", &whole]).succeeds().out;
        Some(this)
    }

    /// Runs it with what opens the volume.
    fn with(&self, args: &[&str]) -> Done {
        run([args, &Self::HINTS, &["--password-file", &self.password]].concat())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.folder.path(name), bytes).expect("written");
        self.folder.str(name)
    }

    fn explained(&self, path: &str) -> (i32, Value) {
        let done = self.with(&["explain", "--json", path]);
        (done.code, done.json())
    }
}

fn findings(json: &Value) -> String {
    json["findings"].to_string()
}

/// The command that is advised and has this in it.
fn advised<'a>(json: &'a Value, with: &str) -> &'a str {
    let commands = json["advice"].as_array().expect("a list").iter().filter_map(|advice| advice["command"].as_str());
    commands.into_iter().find(|command| command.contains(with)).unwrap_or_else(|| panic!("no {with}: {json:#}"))
}

/// Runs a command that copies a volume, to another place.
fn copies(command: &str, to: &str) {
    let (copies, _) = command.rsplit_once("> ").expect("it writes a file");
    shell(&format!("{copies} > '{to}'")).succeeds();
}

/// Runs a command as a shell does, with this program.
fn shell(command: &str) -> Done {
    let script = format!("claviger() {{ setsid -w '{}' \"$@\"; }}\n{command}", env!("CARGO_BIN_EXE_claviger"));
    done(Command::new("sh").args(["-c", &script]).output().expect("a shell"))
}

fn overwrite(path: &str, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).and_then(|f| f.write_all_at(bytes, at)).expect("written");
}

#[test]
fn a_disk_that_was_initialised_opens_by_its_backup_header() {
    let (Some(disk), Some(password)) =
        (Case::unpack("veracrypt/vc-disk-initialised.hc.xz"), Case::unpack("veracrypt/p64"))
    else {
        return;
    };
    let (path, password) = (disk.path().to_str().expect("text"), password.path().to_str().expect("text"));
    let args = ["explain", "--json", "--veracrypt", "--hash", "SHA-512", "--cipher", "AES", "--pim", "1"];
    let done = run(args.into_iter().chain(["--password-file", password, path]));
    let json = done.json();
    assert_eq!((done.code, json["opens"]["facts"]["header"].as_str()), (0, Some("backup")), "{json:#}");
    assert!(findings(&json).contains("overwritten by a GPT partition table"), "{json:#}");
    let mount = advised(&json, "mount --read-only --backup-header");
    let password_file = format!("--password-file={password}");
    for option in ["--veracrypt", "--hash=SHA-512", "--cipher=AES", "--pim=1", &password_file] {
        assert!(mount.contains(option), "{option}: {mount}");
    }
    let before = run(["cat", "--backup-header", "--pim", "1", "--hash", "SHA-512", "--password-file", password, path]);
    let restore = advised(&json, "header restore --embedded");
    shell(&format!("{restore} --yes")).succeeds();
    let after = run(["cat", "--pim", "1", "--hash", "SHA-512", "--password-file", password, path]).succeeds();
    assert!(!after.out.is_empty() && after.out == before.succeeds().out, "it opens as it did");
}

#[test]
fn what_is_written_over_a_volume_is_named_and_the_backup_header_opens() {
    let Some(volume) = VeraCrypt::new() else { return };
    let with_table = |label: &str| format!("printf 'label: {label}\\nstart=2048, size=1024\\n' | sfdisk -q DISK");
    // What was written, by which program, and whether it certainly overwrote no data of the volume.
    for (what, program, script, harmless) in [
        ("partition table", "sfdisk", with_table("dos"), true),
        ("GPT", "sfdisk", with_table("gpt"), true),
        ("NTFS", "mkntfs", "mkntfs -q -Q -F -s 512 DISK".to_owned(), false),
        ("FAT", "mkfs.vfat", "mkfs.vfat DISK".to_owned(), false),
        ("ext", "mkfs.ext4", "mkfs.ext4 -q -F -E nodiscard DISK".to_owned(), false),
        ("zeros", "dd", "dd if=/dev/zero of=DISK bs=1M count=1 conv=notrunc".to_owned(), false),
    ] {
        let Some(_) = tools::program(program) else { continue };
        let path = volume.file("disk", &volume.whole);
        tools::run(
            Command::new("sh").args(["-c", &format!("exec >/dev/null 2>&1; {}", script.replace("DISK", &path))]),
        );
        let overwritten = fs::read(&path).expect("readable");
        let (code, json) = volume.explained(&path);
        assert_eq!((code, json["opens"]["facts"]["header"].as_str()), (0, Some("backup")), "{what}: {json:#}");
        assert!(findings(&json).contains("overwritten by") && findings(&json).contains(what), "{what}: {json:#}");
        assert!(fs::read(&path).expect("readable") == overwritten, "{what}: nothing is written");
        let restore = advised(&json, "header restore --embedded");
        shell(&format!("{restore} --yes")).succeeds();
        let plain = volume.with(&["cat", &path]).succeeds().out;
        assert!(plain.len() == volume.plain.len() && (!harmless || plain == volume.plain), "{what}");
    }
}

#[test]
fn a_volume_in_a_partition_that_was_formatted_opens_by_its_backup_header() {
    let Some(volume) = VeraCrypt::new() else { return };
    let Some(_) = tools::program("sfdisk") else { return };
    let path = volume.file("disk", &vec![0; 8 << 20]);
    let sectors = volume.whole.len() / 512;
    let script = format!("printf 'label: gpt\\nstart=2048, size={sectors}\\n' | sfdisk -q {path}");
    tools::run(Command::new("sh").args(["-c", &script]));
    overwrite(&path, 1 << 20, &volume.whole);
    overwrite(&path, 1 << 20, &[0; 65_536]);
    let (code, json) = volume.explained(&path);
    assert_eq!((code, json["opens"]["partition"].as_u64()), (0, Some(1)), "{json:#}");
    assert!(findings(&json).contains("overwritten by zeros"), "{json:#}");
    let restore = advised(&json, "header restore --embedded");
    shell(&format!("{restore} --yes")).succeeds();
    let plain = volume.with(&["cat", "--partition", "1", &path]).succeeds().out;
    assert!(plain == volume.plain);
}

#[test]
fn a_file_that_lost_or_got_bytes_says_how_many_and_is_made_whole_by_the_command() {
    let Some(volume) = VeraCrypt::new() else { return };
    let whole = &volume.whole;
    for (name, bytes, words) in [
        ("short", whole[4096..].to_vec(), "4096 bytes are missing at the front"),
        ("a sector short", whole[512..].to_vec(), "512 bytes are missing at the front"),
        ("odd", whole[1001..].to_vec(), "1001 bytes are missing at the front"),
        ("long", [&Random::new(2).bytes(8192), &whole[..]].concat(), "8192 extra bytes in front"),
        ("long by one", [b"\n", &whole[..]].concat(), "1 extra bytes in front"),
        ("more", [&whole[..], &[7; 70_000]].concat(), "70000 extra bytes after the volume"),
    ] {
        let path = volume.file(name, &bytes);
        let (code, json) = volume.explained(&path);
        assert!(code == 0 && findings(&json).contains(words), "{name}: {json:#}");
        assert!(!json["advice"].to_string().contains("header restore"), "{name}: {json:#}");
        // As it is, it can be read.
        let read = volume.with(&["cat", &path]).succeeds();
        assert!(read.out == volume.plain && read.err.contains(words), "{name}: {}", read.err);
        let verified = volume.with(&["verify", &path]).fails(4, &[]).text();
        assert!(!verified.contains("header restore"), "{name}: {verified}");
        assert_eq!(verified.contains("To make a complete copy"), name != "more", "{name}: {verified}");
        copies(advised(&json, ".complete"), &volume.folder.str("copy"));
        assert_eq!(fs::metadata(volume.folder.path("copy")).expect("it is there").len(), whole.len() as u64, "{name}");
        let copy = volume.folder.str("copy");
        volume.with(&["header", "restore", "--embedded", "--yes", &copy]).succeeds();
        let read = volume.with(&["cat", &copy]).succeeds();
        assert!(read.out == volume.plain && read.err.is_empty(), "{name}: {}", read.err);
        assert!(fs::read(&path).expect("readable") == bytes, "{name}: nothing is written");
        if name != "more" {
            volume.with(&["header", "restore", "--embedded", "--yes", &path]).fails(1, &["; nothing was changed"]);
            assert!(fs::read(&path).expect("readable") == bytes, "{name}: nothing is written");
        }
    }
}

#[test]
fn what_is_missing_of_the_data_is_said_and_the_rest_can_be_read() {
    let Some(volume) = VeraCrypt::new() else { return };
    // Beyond the headers in front there are data.
    let (lost, gone) = (150_000_u64, 150_000_u64.next_multiple_of(512) - 131_072 + 512);
    let path = volume.file("beheaded", &volume.whole[lost as usize..]);
    let (code, json) = volume.explained(&path);
    let first = (lost - 131_072).next_multiple_of(512);
    assert!(gone >= first && code == 4, "{json:#}");
    let words = format!("the first {first} bytes of the volume's data are missing");
    assert!(findings(&json).contains(&words) && json["advice"].to_string().contains("--truncated"), "{json:#}");
    volume.with(&["info", &path]).fails(4, &[&words]);
    volume.with(&["info", "--truncated", &path]).succeeds();
    // Cut off at the end, after the data and in them.
    let end = volume.whole.len() - 262_144;
    for (left, code, words) in [
        (end + 131_072 + 100_000, 0, "31072 bytes are missing, and it has no complete"),
        (end, 4, "131072 bytes are missing"),
    ] {
        let path = volume.file("cut", &volume.whole[..left]);
        let (found, json) = volume.explained(&path);
        assert!(found == code && findings(&json).contains(words), "{left}: {json:#}");
    }
}

#[test]
fn a_recovery_password_is_taken_as_people_have_it() {
    let Some(case) = Case::unpack("bitlocker/recovery-key-text.tar.xz") else { return };
    let file = |name: &str| case.path().join(name).to_str().expect("text").to_owned();
    let volume = file("v.img");
    for name in ["rp", "crlf", "utf16", "windows", "endash", "nbhyphen", "nbsp", "tab", "lines"] {
        let text = file(&format!("{name}.txt"));
        run(["info", "--password-file", &text, &volume]).succeeds();
        let tested = run(["keyslot", "test", "--password-file", &text, &volume]).succeeds();
        assert!(tested.text().contains("recovery password {"), "{name}: {}", tested.text());
    }
    let bytes = fs::read(file("windows.txt")).expect("readable");
    run_with(&bytes, ["info", "--password-fd", "0", &volume]).succeeds();
    let mistyped = file("mistyped.txt");
    let words = ["third group is mistyped", "11"];
    run(["info", "--password-file", &mistyped, &volume]).fails(2, &words);
    let explained = run(["explain", "--password-file", &mistyped, &volume]);
    assert!(explained.code == 2 && words.iter().all(|word| explained.text().contains(word)), "{}", explained.text());
    // Our own file with several, and a new protector out of one that was pasted.
    let (saved, copy) = (file("saved"), file("copy.img"));
    fs::copy(&volume, &copy).expect("copied");
    let endash = file("other.txt");
    fs::write(&endash, maker::recovery_text(b"sixteen bytes of").replace('-', "\u{2013}") + "\r\n").expect("written");
    run(["keyslot", "add", "--password-file", &file("pw"), "--new-password-file", &endash, &copy]).succeeds();
    run(["keyslot", "recovery", "--output", &saved, "--password-file", &file("pw"), &copy]).succeeds();
    for text in [&saved, &endash] {
        let tested = run(["keyslot", "test", "--password-file", text, &copy]).succeeds();
        assert!(tested.text().contains("recovery password {"), "{}", tested.text());
    }
    run(["keyslot", "add", "--password-file", &file("pw"), "--new-password-file", &mistyped, &copy])
        .fails(1, &["third group is mistyped"]);
}

/// A BitLocker volume, in a file, and a file with its password.
fn bitlocker(folder: &Folder, made: &maker::Made) -> (String, String) {
    let (path, password) = (folder.str("v.img"), folder.str("its password"));
    fs::write(&path, &made.image).expect("written");
    fs::write(&password, PASSWORD).expect("written");
    (path, password)
}

#[test]
fn a_bitlocker_volume_is_found_where_its_partition_table_is_lost() {
    let folder = Folder::new();
    let made = maker::Volume { size: 1 << 20, ..maker::Volume::new(Kind::Windows8) }.make();
    let (_, password) = bitlocker(&folder, &made);
    for at in [63 * 512, 1 << 20, 5 << 20] {
        let disk = folder.str("disk");
        fs::write(&disk, [vec![0; at], made.image.clone()].concat()).expect("written");
        let done = run(["explain", "--json", "--without-password", &disk]);
        let json = done.json();
        assert!(done.code == 3 && findings(&json).contains(&format!("At byte {at} ")), "{json:#}");
        let place = format!("at:{at}@{disk}");
        assert!(advised(&json, "claviger info").ends_with(&place), "{json:#}");
        assert!(advised(&json, "claviger find").ends_with(&disk), "{json:#}");
        let read = run(["cat", "--password-file", &password, &place]).succeeds();
        assert!(read.out == made.plaintext, "{at}");
    }
}

#[test]
fn a_bitlocker_volume_of_large_sectors_opens_although_its_first_sector_says_nothing() {
    let folder = Folder::new();
    for sector_size in [512, 4096] {
        let mut made = maker::Volume { size: 2 << 20, sector_size, ..maker::Volume::new(Kind::Windows8) }.make();
        made.image[11..13].fill(0);
        let (path, password) = bitlocker(&folder, &made);
        let read = run(["cat", "--password-file", &password, &path]).succeeds();
        assert!(read.out == made.plaintext, "{sector_size}");
    }
}

#[test]
fn volume_keys_are_taken_as_others_keep_them() {
    let folder = Folder::new();
    for method in [Method::Xts128, Method::Xts256, Method::CbcElephant128] {
        let made = maker::Volume { size: 1 << 20, method, ..maker::Volume::new(Kind::Windows8) }.make();
        let (path, _) = bitlocker(&folder, &made);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let of_dislocker = |number: u16| {
            let mut bytes = [&number.to_le_bytes(), &made.fvek[..]].concat();
            bytes.resize(66, 0);
            bytes
        };
        for (name, key) in [
            ("as it is", made.fvek.clone()),
            ("in hex", hex(&made.fvek).into_bytes()),
            ("in hex, with a newline", format!("{}\r\n", hex(&made.fvek).to_uppercase()).into_bytes()),
            ("the master key in hex", format!("0x{}\n", hex(&made.vmk)).into_bytes()),
            ("of dislocker", of_dislocker(method.number())),
        ] {
            fs::write(folder.path("key"), key).expect("written");
            let read = run(["cat", "--volume-key-file", &folder.str("key"), &path]).succeeds();
            assert!(read.out == made.plaintext, "{name}");
        }
        fs::write(folder.path("key"), of_dislocker(0x8003)).expect("written");
        run(["cat", "--volume-key-file", &folder.str("key"), &path]).fails(2, &["AES-CBC-256"]);
    }
}

#[test]
fn what_lies_open_shows_nothing_of_a_password() {
    let protectors = vec![Protector::Recovery(*b"sixteen bytes of"), Protector::Password(PASSWORD.into())];
    let made = maker::Volume { size: 1 << 20, protectors, ..maker::Volume::new(Kind::Windows8) }.make();
    let (written, folder) = (made.write(), Folder::new());
    let path = written.image.to_str().expect("text");
    let (right, wrong) = (folder.str("right"), folder.str("wrong"));
    fs::write(&right, PASSWORD).expect("written");
    fs::write(&wrong, "anything at all").expect("written");
    let tested = |file: &str| run(["keyslot", "test", "--password-file", file, path]);
    let asked = tested(&right).succeeds().text();
    assert!(asked.contains("password {"), "{asked}");
    tested(&wrong).fails(2, &[]);
    run(["keyslot", "suspend", "--password-file", &right, path]).succeeds();
    assert_eq!(tested(&right).succeeds().text(), asked, "the same protector as before");
    tested(&wrong).fails(2, &[]);
    run(["keyslot", "test", path]).fails(1, &["password"]);
    run(["info", path]).succeeds();
    let explained = |file: &str| run(["explain", "--json", "--password-file", file, path]);
    let json = explained(&right).succeeds().json();
    assert_eq!(json["opens"]["with"].as_str(), Some("as-given"), "{json:#}");
    let json = explained(&wrong).succeeds().json();
    assert_eq!(json["opens"]["with"].as_str(), Some("nothing"), "{json:#}");
    let text = run(["explain", "--password-file", &wrong, path]).text();
    assert!(text.contains("no password at all") && text.contains("the given one opens nothing"), "{text}");
}

/// A volume of each format whose header something happened to, and its advice carried out: no verb says that the format does not have
/// such a thing.
#[test]
fn every_command_that_is_advised_is_one_that_the_format_has() {
    let folder = Folder::new();
    let (wrong, backup) = (folder.str("wrong"), folder.str("BACKUP"));
    fs::write(&wrong, "not the password").expect("written");
    fs::write(&backup, Random::new(9).bytes(4096)).expect("written");
    let mut volumes: Vec<(String, Vec<u8>)> = Vec::new();
    for (format, more) in [
        ("LUKS1", &["--iterations", "1000"][..]),
        ("LUKS2", &["--kdf", "pbkdf2", "--iterations", "1000"]),
        ("TrueCrypt", &["--hash", "SHA-512"]),
        ("VeraCrypt", &["--hash", "SHA-512", "--pim", "1"]),
    ] {
        let path = folder.str(format);
        let args = ["create", "--format", format, "--size", "20M", "--quick", "--password-file", &folder.password];
        run(args.iter().chain(more).copied().chain([&*path])).succeeds();
        volumes.push((format.to_owned(), fs::read(&path).expect("readable")));
    }
    let made = maker::Volume { size: 1 << 20, ..maker::Volume::new(Kind::Windows8) }.make();
    volumes.push(("BitLocker".to_owned(), made.image.clone()));
    let mut cases = Vec::new();
    for (format, bytes) in volumes {
        let mut torn = bytes.clone();
        match format.as_str() {
            "BitLocker" => made.layout.metadata.iter().for_each(|at| torn[*at as usize + 100..][..64].fill(1)),
            // Behind the iterations of LUKS1's first keyslot: 16 million of them would take each variant of the password seconds.
            _ => [0, 0x4000, 0x8000].iter().for_each(|at| torn[at + 216..][..40].fill(1)),
        }
        cases.extend([(format!("{format} torn"), torn), (format, bytes)]);
    }
    let mut commands = 0;
    for (name, bytes) in cases {
        let path = folder.str("volume");
        fs::write(&path, &bytes).expect("written");
        // VeraCrypt needs a minute for all variants of the password, and nothing shows which of the two formats it is.
        let hints = if name.starts_with("TrueCrypt") { &["--truecrypt", "--hash", "SHA-512"][..] } else { &[] };
        let given = [hints, &["--password-file", &wrong]].concat();
        let hows = [&["--without-password"][..], &given];
        for how in hows.into_iter().take(if name.starts_with("VeraCrypt") { 1 } else { 2 }) {
            let done = run([&["explain", "--json"][..], how, &[&path]].concat());
            let json = done.json();
            assert_ne!(done.code, 0, "{name}: {json:#}");
            for command in json["advice"].as_array().expect("a list").iter().filter_map(|a| a["command"].as_str()) {
                assert!(!command.contains("claviger explain"), "{name}: {command}");
                // These have a part that a person must fill in.
                if command.contains("CIPHER") {
                    continue;
                }
                let command = command.replace("BACKUP", &backup);
                let lacks = |option: &str| !command.contains(option.split(' ').next().unwrap_or(option));
                let password = format!("--password-file {wrong}");
                let hints: &[&str] = match &name {
                    name if name.starts_with("VeraCrypt") => &["--hash SHA-512", "--pim 1", &password],
                    name if name.starts_with("TrueCrypt") => &["--truecrypt", &password],
                    _ => &[&password],
                };
                let asks = ["header restore", "header repair", "info"].iter().any(|verb| command.contains(verb));
                let hints: Vec<_> = hints.iter().filter(|option| asks && lacks(option)).copied().collect();
                let carried = shell(&format!("{command} {} </dev/null", hints.join(" ")));
                assert!(!matches!(carried.code, 5 | 127), "{name}: {command}: {}{}", carried.text(), carried.err);
                assert!(!carried.err.contains("unexpected argument"), "{name}: {command}: {}", carried.err);
                commands += 1;
                fs::write(&path, &bytes).expect("written");
            }
        }
    }
    assert!(commands > 8, "{commands}");
    assert!(Path::new(&wrong).exists());
}
