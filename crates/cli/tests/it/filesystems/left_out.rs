//! Requested files that cannot be copied are named, the rest is copied, and the exit code says so.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use claviger_testkit::ecryptfs::maker;
use claviger_testkit::random::Random;
use claviger_testkit::tools::{self, Case};
use serde_json::Value;

const AES: maker::Cipher = ("aes", 16);

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        match fs::symlink_metadata(&path).expect("it is there") {
            of if of.is_dir() => all.extend(files(&path)),
            of if of.is_file() => all.push(path),
            _ => {}
        }
    }
    all
}

/// Whether a list in JSON has an entry with each of these words.
#[track_caller]
fn names(list: &Value, words: &[&str]) {
    let list = list.as_array().expect("a list");
    for word in words {
        assert!(list.iter().any(|text| text.to_string().contains(word)), "{word:?} is not in {list:?}");
    }
}

#[test]
fn names_that_a_sync_program_changed_are_named_and_saved() {
    let Some(case) = Case::unpack("ecryptfs/names-left-out.tar.xz") else { return };
    let at = |name: &str| case.path().join(name).display().to_string();
    let out = |name: &str| case.folder().join(name).display().to_string();
    let (lower, password) = (at("folder"), at("password"));
    let on = |args: &[&str]| run([&args[..1], &["--password-file", &password], &args[1..]].concat());
    let changed = ["(conflicted copy)", "ecryptfs_fnek_encrypted", "O2t2E0WGL7u85kZ"];
    let text = on(&["ls", &lower]).fails(4, &changed).text();
    assert!(!text.contains("conflicted"), "what is read by others has only names: {text}");
    names(&on(&["ls", "--json", &lower]).fails(4, &[]).json()["left_out"], &changed);
    on(&["tree", &lower]).fails(4, &changed);
    names(&on(&["tree", "--json", &lower]).fails(4, &[]).json()["left_out"], &changed);
    let copied = on(&["cp", "-r", &lower, ":/", &out("copied")]).fails(4, &[]).text();
    assert!(changed.iter().all(|name| copied.contains(name)), "{copied}");
    assert_eq!(files(Path::new(&out("copied"))).len(), 2);
    let saved = on(&["cp", "-r", "--salvage", "--json", &lower, ":/", &out("saved")]).fails(4, &[]).json();
    names(&saved["salvaged"], &changed);
    assert_eq!((saved["files"].as_u64(), saved["left_out"].as_array().map(Vec::len)), (Some(5), Some(0)), "{saved}");
    let all = files(Path::new(&out("saved")));
    assert_eq!(all.len(), 5);
    assert!(all.iter().filter(|file| fs::metadata(file).expect("a file").len() > 0).count() > 3);
    let converted = on(&["convert", "--raw", &lower, &out("converted")]).fails(4, &["keep the source"]).text();
    assert!(changed.iter().all(|name| converted.contains(name)), "{converted}");
    assert_eq!(files(Path::new(&out("converted"))).len(), 2);
    on(&["verify", &lower]).fails(4, &[]);
    names(&on(&["verify", "--json", &lower]).fails(4, &[]).json()["problems"], &changed);
}

/// A folder of eCryptfs with a file `good` in it.
fn ecryptfs(folder: &Folder) -> PathBuf {
    let lower = folder.path("lower");
    fs::create_dir(&lower).expect("a folder");
    fs::write(lower.join(maker::name(PASSWORD, AES, b"good")), maker::File::new(PASSWORD, AES, b"good").stored())
        .expect("a file");
    lower
}

#[test]
fn a_folder_a_clear_file_and_a_name_of_another_key_are_saved_as_they_are_stored() {
    let folder = Folder::new();
    let lower = ecryptfs(&folder);
    let stored = |plain: &[u8]| maker::File::new(PASSWORD, AES, plain).stored();
    let name = |plain: &[u8]| maker::name(PASSWORD, AES, plain);
    // A folder whose name was changed holds a file that is as it should be.
    let inner = lower.join(format!("{}~1", name(b"folder")));
    fs::create_dir(&inner).expect("a folder");
    fs::write(inner.join(name(b"inner")), stored(b"inside")).expect("a file");
    fs::write(lower.join("notes in clear.txt"), "in clear").expect("a file");
    fs::write(lower.join("good"), "the name that another one decrypts to").expect("a file");
    fs::write(lower.join(maker::name("another", AES, b"theirs")), maker::File::new("another", AES, b"x").stored())
        .expect("a file");
    fs::write(lower.join(name(b"destroyed")), [&[0; 8192][..], &stored(&[7; 9000])[8192..]].concat()).expect("a file");
    let (password, lower) = (&*folder.password, lower.display().to_string());
    let out = folder.str("out");
    let copied = run(["cp", "-r", "--json", "--password-file", password, &lower, ":/", &out]).fails(4, &[]).json();
    names(&copied["left_out"], &["~1", "notes in clear.txt", "another key", "/good (", "/destroyed ("]);
    assert_eq!(files(Path::new(&out)), [folder.path("out/good")]);
    let saved = folder.str("saved");
    let json = ["cp", "-r", "--json", "--salvage", "--password-file", password, &lower, ":/", &saved];
    let json = run(json).fails(4, &[]).json();
    names(&json["left_out"], &["/good (", "another key"]);
    names(&json["salvaged"], &["~1", "notes in clear.txt", "/destroyed"]);
    assert_eq!(fs::read(folder.path("saved/good")).expect("a file"), b"good");
    assert_eq!(fs::read(folder.path("saved/notes in clear.txt")).expect("a file"), b"in clear");
    assert!(!folder.path("saved/destroyed").exists(), "nothing is left of it, and nothing takes its name");
    // A conversion continues, too, and writes all files that it could read.
    let to = folder.str("converted");
    let convert = ["convert", "--raw", "--json", "--password-file", password, &lower, &to];
    let json = run(convert).fails(4, &["keep the source"]).json();
    names(&json["left_out"], &["~1", "notes in clear.txt", "another key", "/good (", "/destroyed ("]);
    assert_eq!(files(&folder.path("converted")), [folder.path("converted/good")]);
    let inside = files(&folder.path("saved")).into_iter().find(|path| path.ends_with("inner")).expect("it is saved");
    assert_eq!(fs::read(inside).expect("a file"), b"inside");
}

#[test]
fn verify_looks_before_it_calls_a_file_sound() {
    let folder = Folder::new();
    let lower = ecryptfs(&folder);
    let password = &*folder.password;
    let text = lower.display().to_string();
    let verify = || run(["verify", "--json", "--password-file", password, &text]);
    assert_eq!(verify().succeeds().json()["problems"].as_array().map(Vec::len), Some(0));
    let sound = maker::File::new(PASSWORD, AES, &[7; 9000]).stored();
    let encrypted = |plain: &str| lower.join(maker::name(PASSWORD, AES, plain.as_bytes()));
    let mut hole = sound.clone();
    hole[12_288..16_384].fill(0);
    let wrong: [(&str, PathBuf, Vec<u8>, &str); 10] = [
        ("a hole", encrypted("hole"), hole, "4096 stored bytes of its contents are zeros"),
        ("zeros in front", encrypted("zeros"), [&[0; 8192][..], &sound[8192..]].concat(), "destroyed"),
        ("noise in front", encrypted("noise"), [&Random::new(5).bytes(8192)[..], &sound[8192..]].concat(), "destroyed"),
        ("nothing salvaged", encrypted("nothing"), Vec::new(), "has no header"),
        ("only zeros", encrypted("blank"), vec![0; 8192], "missing or zeros"),
        ("cut short", encrypted("cut"), sound[..12_288].to_vec(), "cut short"),
        ("garbage behind", encrypted("garbage"), [&sound[..], &[9; 4096]].concat(), "data was appended"),
        ("a few bytes behind", encrypted("bytes"), [&sound[..], &[9; 3]].concat(), "data was appended"),
        ("another key", encrypted("other"), maker::File::new("another", AES, b"x").stored(), "another key"),
        ("in clear", lower.join("clear.txt"), b"in clear".to_vec(), "not encrypted"),
    ];
    for (what, path, bytes, word) in &wrong {
        fs::write(path, bytes).expect("a file");
        let found = verify().fails(4, &[]).json();
        assert!(found["problems"].to_string().contains(word), "{what}: {found}");
        fs::remove_file(path).expect("removed");
    }
    verify().succeeds();
    // A link that leads nowhere any more.
    symlink("in clear", encrypted("link")).expect("a link");
    assert!(verify().fails(4, &[]).json()["problems"].to_string().contains("link's target cannot be read"));
    fs::remove_file(encrypted("link")).expect("removed");
    // Older kernels gave an empty file one extent more.
    let empty = [&maker::File::new(PASSWORD, AES, b"").stored()[..], &[3; 4096]].concat();
    fs::write(encrypted("empty"), empty).expect("a file");
    verify().succeeds();
}

/// An NTFS in which a script of Python is run, with `set(path, attribute, bytes)`.
fn ntfs(folder: &Folder, script: &str) -> Option<String> {
    tools::root()?;
    let (mkntfs, ntfs_3g, python) = (tools::program("mkntfs")?, tools::program("ntfs-3g")?, tools::program("python3")?);
    if !Path::new("/dev/fuse").exists() {
        return tools::skip("there is no /dev/fuse");
    }
    let (image, dir) = (folder.str("image"), folder.str("mounted"));
    fs::File::create(&image).and_then(|file| file.set_len(24 << 20)).expect("an image");
    tools::run(Command::new(mkntfs).args(["-F", "-Q", "-q"]).arg(&image));
    fs::create_dir(&dir).expect("a folder");
    let python_script = format!(
        "import os, struct\nset = lambda path, name, value: os.setxattr(path, 'system.ntfs_' + name, value)\n\
         point = lambda path, tag, data=b'': set(path, 'reparse_data', struct.pack('<IHH', tag, len(data), 0) + data)\n\
         def write(path, data):\n  with open(path, 'wb') as file: file.write(data)\n{script}"
    );
    let shell = format!(
        "{} -o no_detach,streams_interface=windows {image} {dir} & until mountpoint -q {dir}; do sleep 0.02; done\n\
         cd {dir}; {} -c \"$1\"; cd /; umount {dir}; wait",
        ntfs_3g.display(),
        python.display()
    );
    tools::run(Command::new("timeout").args(["60", "sh", "-ec", &shell, "sh", &python_script]));
    Some(image)
}

#[test]
fn files_of_a_cloud_service_come_out_where_their_data_are_on_the_disk() {
    let folder = Folder::new();
    let script = "
os.mkdir('OneDrive')
write('OneDrive/here.bin', b'on the disk' * 20000)
write('OneDrive/small.txt', b'small')
write('OneDrive/away.bin', b'')
os.truncate('OneDrive/away.bin', 300000)
write('OneDrive/half.bin', b'x' * 131072)
os.truncate('OneDrive/half.bin', 300000)
write('OneDrive/dedup.bin', b'y' * 10)
write('OneDrive/wof.bin', b'z' * 10)
write('plain.txt', b'plain')
for name in ['here.bin', 'small.txt', 'away.bin', 'half.bin']: point('OneDrive/' + name, 0x9000601a, b'1234')
point('OneDrive/dedup.bin', 0x80000013, b'1234')
point('OneDrive/wof.bin', 0x80000017, struct.pack('<IIII', 1, 2, 1, 0))";
    let Some(image) = ntfs(&folder, script) else { return };
    let out = folder.str("out");
    let copied = run(["cp", "-r", "--json", &image, ":/", &out]).fails(5, &[]).json();
    let left = &copied["left_out"];
    names(left, &["/OneDrive/away.bin", "/OneDrive/half.bin", "/OneDrive/dedup.bin", "/OneDrive/wof.bin"]);
    names(left, &["only in the cloud", "deduplicated", "WOF"]);
    assert_eq!(left.as_array().map(Vec::len), Some(4), "{left}");
    assert_eq!(fs::read(folder.path("out/OneDrive/here.bin")).expect("a copy"), b"on the disk".repeat(20_000));
    assert_eq!(fs::read(folder.path("out/OneDrive/small.txt")).expect("a copy"), b"small");
    assert_eq!(fs::read(folder.path("out/plain.txt")).expect("a copy"), b"plain");
    // The only thing that was asked for is an error as any other.
    for (file, word) in [("away.bin", "only in the cloud"), ("dedup.bin", "deduplicated"), ("wof.bin", "WOF")] {
        run(["cp", &image, &format!(":/OneDrive/{file}"), &out]).fails(5, &[word, file]);
        run(["cat", &image, "--file", &format!("/OneDrive/{file}")]).fails(5, &[word, file]);
    }
    // The existing part can be read.
    let saved = folder.str("saved");
    let json = run(["cp", "-r", "--json", "--salvage", &image, ":/OneDrive", &saved]).fails(4, &[]).json();
    names(&json["salvaged"], &["half.bin"]);
    names(&json["left_out"], &["away.bin", "dedup.bin", "wof.bin"]);
    let half = fs::read(folder.path("saved/half.bin")).expect("what is left");
    assert!(
        half.len() == 300_000
            && half[..131_072].iter().all(|byte| *byte == b'x')
            && half[131_072..].iter().all(|byte| *byte == 0)
    );
    assert!(!folder.path("saved/away.bin").exists(), "zeros are not its contents");
}

#[test]
fn of_a_folder_that_is_cut_off_the_first_files_come_out() {
    let folder = Folder::new();
    if tools::program("mkfs.fat").is_none() {
        return;
    }
    let (volume, source, out) =
        (folder.volume("v.tc", "8M", &["--filesystem", "fat"]), folder.path("d"), folder.str("out"));
    let on = |verb: &[&str], more: &[&str]| {
        let how = ["--truecrypt", "--hash", "SHA-512", "--password-file", &folder.password, &volume];
        run([verb, &how, more].concat())
    };
    fs::create_dir(&source).expect("a folder");
    fs::write(source.join("a"), "early").and_then(|()| fs::write(source.join("b"), vec![1; 3 << 20])).expect("files");
    (0..200).for_each(|i| fs::write(source.join(format!("c{i}")), "late").expect("a file"));
    on(&["cp", "-r"], &[&source.display().to_string(), ":/"]).succeeds();
    fs::File::options().write(true).open(&volume).and_then(|file| file.set_len(2 << 20)).expect("cut");
    let lost = "the rest of the folder lies past the end of the volume";
    on(&["ls", "--truncated"], &[":/d"]).fails(6, &["left out: /d/", lost]);
    assert_eq!(on(&["cat", "--truncated", "--file", "/d/a"], &[]).succeeds().out, b"early");
    on(&["cat", "--truncated", "--file", "/d/c99"], &[]).fails(6, &[lost]);
    let copied = on(&["cp", "-r", "--json", "--truncated"], &[":/", &out]).fails(6, &[]).json();
    names(&copied["left_out"], &["/d/b", "its contents reach past the end of the volume", "/d/ (", lost]);
    assert_eq!(fs::read(folder.path("out/d/a")).expect("a copy"), b"early");
    let saved = folder.str("saved");
    let json = on(&["cp", "-r", "--json", "--salvage", "--truncated"], &[":/", &saved]).fails(4, &[]).json();
    names(&json["left_out"], &["/d/ (", lost]);
    names(&json["salvaged"], &["/d/b"]);
    let b = fs::read(folder.path("saved/d/b")).expect("what is left");
    assert!(b.len() == 3 << 20 && b[..1 << 20].iter().all(|byte| *byte == 1), "{}", b.len());
}

#[test]
fn links_and_streams_of_windows() {
    let folder = Folder::new();
    let script = "
utf16 = lambda text: text.encode('utf-16-le')
def names(substitute, shown, flags):
  a, b = utf16(substitute), utf16(shown)
  return struct.pack('<HHHH', 0, len(a), len(a), len(b)) + flags + a + b
os.mkdir('folder')
write('folder/file.txt', b'contents')
write('folder/file.txt:Zone.Identifier', b'[ZoneTransfer]')
write('relative', b'')
point('relative', 0xa000000c, names('folder\\\\\\\\file.txt', 'folder\\\\\\\\file.txt', struct.pack('<I', 1)))
os.mkdir('junction')
point('junction', 0xa0000003, names('\\\\\\\\??\\\\\\\\C:\\\\\\\\ProgramData', 'C:\\\\\\\\ProgramData', b''))
write('alias.exe', b'')
point('alias.exe', 0x8000001b, b'1234')"
        .replace("\\\\\\\\", "\\\\");
    let Some(image) = ntfs(&folder, &script) else { return };
    let out = folder.str("out");
    let copied = run(["cp", "-r", "--json", &image, ":/", &out]).fails(5, &[]).json();
    names(&copied["left_out"], &["/alias.exe"]);
    names(&copied["streams"], &["/folder/file.txt:Zone.Identifier"]);
    assert_eq!((copied["links"].as_u64(), copied["left_out"].as_array().map(Vec::len)), (Some(2), Some(1)), "{copied}");
    assert_eq!(fs::read_link(folder.path("out/relative")).expect("a link"), Path::new("folder/file.txt"));
    assert_eq!(fs::read(folder.path("out/relative")).expect("it leads there"), b"contents");
    assert_eq!(fs::read_link(folder.path("out/junction")).expect("a link"), Path::new("C:\\ProgramData"));
    // Streams are named and no failure: contents are what a copy is of.
    let text = run(["cp", "-r", &image, ":/folder", &folder.str("one")]).succeeds().text();
    assert!(text.contains("not copied: 1 alternate data stream") && text.contains("Zone.Identifier"), "{text}");
}

#[test]
fn encrypted_files_of_windows_do_not_stop_the_others() {
    let Some(case) = Case::unpack("efs/cp-stops.tar.xz") else { return };
    let at = |name: &str| case.path().join(name).display().to_string();
    let out = |name: &str| case.folder().join(name).display().to_string();
    let (image, pfx, pp) = (at("efs.img"), at("other.pfx"), at("pp"));
    let listed = run(["ls", "--json", &image]).succeeds().json();
    let entries = listed["entries"].as_array().expect("a list");
    // An empty file has nothing that is encrypted.
    let (out_of_reach, readable): (Vec<_>, Vec<_>) =
        entries.iter().partition(|entry| entry["encrypted"] == true && entry["size"] != 0);
    assert!(!readable.is_empty() && out_of_reach.len() > 1, "{listed}");
    let other = ["--certificate", &pfx, "--certificate-password-file", &pp];
    for (to, more, code) in [("none", &[][..], 5), ("other", &other[..], 2), ("saved", &["--salvage"][..], 5)] {
        let done = run([&["cp", "-r", "--json"], more, &[&image, ":/", &out(to)]].concat()).fails(code, &[]);
        let json = done.json();
        assert_eq!(files(Path::new(&out(to))).len(), readable.len(), "{to}: {json}");
        assert_eq!(json["left_out"].as_array().map(Vec::len), Some(out_of_reach.len()), "{to}: {json}");
    }
    for (to, more) in [("told", &[][..]), ("told again", &["--salvage"][..])] {
        let text = run([&["cp", "-r"], more, &[&image, ":/", &out(to)]].concat()).fails(5, &[]).text();
        assert!(text.contains("--certificate") && text.contains("--windows-profile"), "{text}");
        assert_eq!(text.matches("--windows-profile").count(), 1, "what to try is said once: {text}");
    }
    let path = format!(":/{}", out_of_reach[0]["name"].as_str().expect("a name"));
    run(["cp", &image, &path, &out("one")]).fails(5, &["--certificate", "--windows-profile"]);
    assert!(!Path::new(&out("one")).exists());
}

#[test]
fn what_has_no_place_in_a_folder_is_left_out_of_it() {
    let folder = Folder::new();
    let source = folder.path("source");
    fs::create_dir(&source).expect("a folder");
    fs::write(source.join("good"), "good").expect("a file");
    let _socket = UnixListener::bind(source.join("socket")).expect("a socket");
    // Into a folder of eCryptfs: a name that is too long once it is encrypted.
    let long = "n".repeat(200);
    fs::create_dir(source.join(&long)).expect("a folder");
    fs::write(source.join(&long).join("inside"), "inside").expect("a file");
    let lower = ecryptfs(&folder).display().to_string();
    let text = source.display().to_string();
    let into = ["cp", "-r", "--json", "--password-file", &folder.password, &lower, &text, ":/"];
    let json = run(into).fails(6, &[]).json();
    names(&json["left_out"], &["socket", &long, "File name too long)"]);
    let cat = run(["cat", "--password-file", &folder.password, &lower, "/source/good"]);
    assert_eq!(cat.succeeds().out, b"good");
}
