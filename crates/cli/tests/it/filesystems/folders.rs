//! Encrypted folders: on this machine, in a volume, and in an image that is not encrypted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::ecryptfs::maker;
use claviger_testkit::random::Random;
use claviger_testkit::tools::Case;
use claviger_testkit::{tools, uml};

/// An ext4 of 16 MiB with the files of `from`, which nothing encrypts.
fn ext4(folder: &Folder, name: &str, from: &str) -> Option<String> {
    let image = folder.str(name);
    fs::File::create(&image).and_then(|f| f.set_len(16 << 20)).expect("an image");
    tools::run(Command::new(tools::program("mkfs.ext4")?).args(["-q", "-d", from]).arg(&image));
    Some(image)
}

/// A tree of a few files, one of which ends within an extent.
fn files(folder: &Folder, name: &str) -> Vec<u8> {
    let root = folder.path(name);
    fs::create_dir_all(root.join("Documents/old letters")).expect("folders");
    let big = Random::new(7).bytes(70_001);
    fs::write(root.join("Documents/old letters/big.bin"), &big).expect("a file");
    fs::write(root.join("Documents/letter.txt"), "dear reader").expect("a file");
    fs::write(root.join("empty"), "").expect("a file");
    symlink("Documents/letter.txt", root.join("link")).expect("a link");
    fs::hard_link(root.join("Documents/letter.txt"), root.join("same")).expect("a name");
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o640)).expect("permissions");
    big
}

/// The same, encrypted by this program with the usual password.
fn encrypted(folder: &Folder, name: &str, more: &[&str]) -> Vec<u8> {
    let big = files(folder, "plain");
    let (plain, lower) = (folder.str("plain"), folder.str(name));
    let convert = ["convert", "--raw-source", "--new-password-file", &folder.password];
    run(convert.iter().chain(more).chain(&[&*plain, &*lower])).succeeds();
    big
}

/// The stored files below a folder, the largest first.
fn stored(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match fs::symlink_metadata(&path).expect("it is there") {
            of if of.is_dir() => all.extend(stored(&path)),
            of if of.is_file() => all.push(path),
            _ => {}
        }
    }
    all.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).expect("a file").len()));
    all
}

#[test]
fn files_of_an_image_that_nothing_encrypts_are_reached() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("from/inner")).expect("folders");
    fs::write(folder.path("from/inner/one"), "first").expect("a file");
    let Some(image) = ext4(&folder, "image", &folder.str("from")) else { return };
    let before = fs::read(&image).expect("an image");
    let listing = run(["ls", "--json", &image, "/inner"]).succeeds().json();
    let kind = listing["filesystem"]["kind"].as_str();
    assert_eq!((listing["entries"][0]["name"].as_str(), kind), (Some("one"), Some("ext4")), "{listing}");
    assert!(run(["tree", &image]).succeeds().text().contains("one"));
    assert_eq!(run(["cat", &image, "/inner/one"]).succeeds().out, b"first");
    run(["cp", "-r", &image, ":/inner", &folder.str("out")]).succeeds();
    assert_eq!(fs::read(folder.path("out/one")).expect("a copy"), b"first");
    let info = run(["info", "--json", &image, ":/inner/one"]).succeeds().json();
    assert_eq!((info["state"].as_str(), info["size"].as_u64()), (Some("clear"), Some(5)), "{info}");
    // A user who gives a password, or asks for bytes, believes that it is encrypted.
    run(["ls", "--password-file", &folder.password, &image]).fails(3, &["unencrypted", "no password"]);
    run(["ls", "--hash", "SHA-512", &image]).fails(3, &["unencrypted", "hash"]);
    run(["ls", "--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &folder.password, &image])
        .fails(2, &[]);
    run(["cat", &image]).fails(3, &[]);
    run(["info", &image]).fails(3, &[]);
    run(["cp", &image, &folder.password, ":/"]).fails(1, &["not encrypted"]);
    fs::create_dir(folder.path("dir")).expect("a folder");
    run(["mount", &image, &folder.str("dir")]).fails(3, &["unencrypted", "--raw"]);
    assert!(fs::read(&image).expect("an image") == before, "nothing was written");
}

#[test]
fn a_folder_is_converted_into_ecryptfs_and_out_of_it() {
    let folder = Folder::new();
    let big = encrypted(&folder, "lower", &[]);
    let (lower, password) = (folder.str("lower"), &*folder.password);
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--password-file", password, &*lower]).chain(rest));
    let names: Vec<_> = fs::read_dir(&lower).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert!(names.len() == 4 && names.iter().all(|n| n.to_string_lossy().starts_with("ECRYPTFS_FNEK_ENCRYPTED.")));
    let listing = on(&["ls", "--json"], &["/Documents"]).succeeds().json();
    assert_eq!(listing["entries"][0]["size"], 11, "{listing}");
    assert!(on(&["tree"], &[]).succeeds().text().contains("old letters"));
    assert!(on(&["cat"], &["/Documents/old letters/big.bin"]).succeeds().out == big);
    // It is identified without the password.
    let known = run(["identify", "--json", &lower]).succeeds().json();
    assert_eq!((known[0]["format"].as_str(), known[0]["verdict"].as_str()), (Some("eCryptfs"), Some("yes")), "{known}");
    let text = run(["identify", &lower]).succeeds().text();
    assert!(text.contains("an encrypted folder: eCryptfs") && !text.contains("EFS:"), "{text}");
    run(["identify", &folder.str("plain")]).fails(3, &[]);
    let info = on(&["info", "--json"], &[]).succeeds().json();
    assert_eq!((info["files"].as_u64(), info["ciphers"]["AES-128"].as_u64()), (Some(4), Some(4)), "{info}");
    let file = on(&["info", "--json"], &[":/Documents/letter.txt"]).succeeds().json();
    assert_eq!((file["format"].as_str(), file["size"].as_u64()), (Some("eCryptfs"), Some(11)), "{file}");
    assert_eq!(file["keys"][0], info["signatures"][0]);
    let sound = on(&["verify", "--json"], &[]).succeeds().json();
    assert_eq!((sound["damaged"].as_bool(), sound["files"].as_u64()), (Some(false), Some(4)), "{sound}");
    assert!(on(&["explain"], &[]).succeeds().text().contains("opens with the given credential"));
    // Files can be written, too, but the folder cannot be read as one volume.
    fs::write(folder.path("new"), "new").expect("a file");
    on(&["cp"], &[&folder.str("new"), ":/Documents"]).succeeds();
    assert_eq!(on(&["cat"], &["/Documents/new"]).succeeds().out, b"new");
    on(&["cat"], &[]).fails(5, &["as one volume"]);
    // And out again, with all that there was.
    let out = folder.str("out");
    on(&["convert", "--raw"], &[&out]).succeeds();
    assert!(fs::read(folder.path("out/Documents/old letters/big.bin")).expect("a file") == big);
    assert_eq!(fs::read_link(folder.path("out/link")).expect("a link"), Path::new("Documents/letter.txt"));
    let number = |path: &str| fs::metadata(folder.path(path)).expect("a file").ino();
    assert_eq!(number("out/same"), number("out/Documents/letter.txt"), "one file with two names");
    assert_eq!(fs::metadata(folder.path("out/empty")).expect("a file").mode() & 0o777, 0o640);
    on(&["convert", "--raw"], &[&out]).fails(1, &["already exists"]);
    on(&["convert", "--raw"], &[&format!("{lower}/inside")]).fails(1, &["inside the source folder"]);
    on(&["convert", "--raw", "--resume"], &[&folder.str("other")]).fails(1, &["no interrupted conversion"]);
}

#[test]
fn a_copy_without_all_names_is_no_success() {
    let folder = Folder::new();
    encrypted(&folder, "lower", &[]);
    let (lower, copy) = (folder.str("lower"), folder.str("copy"));
    let info = || run(["info", "--password-file", &folder.password, &lower]);
    assert!(!info().succeeds().text().contains("cannot be read"));
    fs::write(folder.path("lower/a name in clear"), "of somebody else").expect("a file");
    let text = info().fails(4, &[]).text();
    assert!(text.contains("1 cannot be read"), "{text}");
    run(["convert", "--raw", "--password-file", &folder.password, &lower, &copy]).fails(4, &["keep the source"]);
    assert_eq!(fs::read(folder.path("copy/Documents/letter.txt")).expect("the rest is there"), b"dear reader");
}

#[test]
fn a_conversion_that_was_broken_off_goes_on() {
    let folder = Folder::new();
    let big = encrypted(&folder, "lower", &[]);
    let (plain, lower) = (folder.path("plain"), folder.path("lower"));
    // As after a kill: the last file is incomplete, another is missing, and a third was being created.
    fs::rename(&lower, folder.path("lower.part")).expect("renamed");
    let all = stored(&folder.path("lower.part"));
    fs::File::options().write(true).open(&all[0]).and_then(|f| f.set_len(20_000)).expect("cut short");
    fs::remove_file(&all[1]).expect("removed");
    let convert = |more: &[&str]| {
        let args = ["convert", "--raw-source", "--new-password-file", &folder.password];
        let places = [plain.display().to_string(), lower.display().to_string()];
        run(args.iter().map(|s| s.to_string()).chain(more.iter().map(|s| s.to_string())).chain(places))
    };
    convert(&[]).fails(1, &["interrupted", "--resume"]);
    fs::write(folder.path("wrong"), "another password\n").expect("a file");
    run([
        "convert",
        "--raw-source",
        "--resume",
        "--new-password-file",
        &folder.str("wrong"),
        &folder.str("plain"),
        &folder.str("lower"),
    ])
    .fails(2, &[]);
    assert!(folder.path("lower.part").is_dir(), "nothing is lost");
    convert(&["--resume"]).succeeds();
    let cat = run(["cat", "--password-file", &folder.password, &folder.str("lower"), "/Documents/old letters/big.bin"]);
    assert!(cat.succeeds().out == big);
    assert!(!folder.path("lower.part").exists());
}

/// It may be the last copy.
#[test]
fn what_was_copied_before_its_source_became_unreadable_stays() {
    let folder = Folder::new();
    let big = encrypted(&folder, "lower", &[]);
    let lower = folder.str("lower");
    let convert = |more: &[&str], to: &str| {
        run([&["convert", "--raw", "--password-file", &folder.password], more, &[&*lower, to]].concat())
    };
    let letter = |copy: &str| folder.path(copy).join("Documents/old letters/big.bin");
    // All of it was copied, or a part of it.
    let copies = [("whole", big.len()), ("part", 100)];
    for (name, len) in copies {
        convert(&[], &folder.str(name)).succeeds();
        let interrupted = format!("{name}.part");
        fs::rename(folder.path(name), folder.path(&interrupted)).expect("renamed");
        let copy = fs::File::options().write(true).open(letter(&interrupted));
        copy.and_then(|file| file.set_len(len as u64)).expect("cut short");
    }
    let source = &stored(&folder.path("lower"))[0];
    fs::File::options().write(true).open(source).and_then(|file| file.set_len(8192 + 3 * 4096)).expect("cut short");
    for (name, len) in copies {
        let text = convert(&["--resume"], &folder.str(name)).fails(4, &["keep the source"]).text();
        assert!(text.contains("big.bin (") && text.contains("the copy of the earlier run stays"), "{text}");
        assert!(fs::read(letter(name)).expect("it stays") == big[..len], "{name}");
        assert_eq!(fs::read(folder.path(name).join("Documents/letter.txt")).expect("a copy"), b"dear reader");
    }
}

#[test]
fn a_folder_inside_an_image_or_a_volume_opens_with_a_secret_of_its_own() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("from/home/me")).expect("folders");
    let big = encrypted(&folder, "from/home/me/.Private", &[]);
    let Some(image) = ext4(&folder, "image", &folder.str("from")) else { return };
    let password = &*folder.password;
    // The image itself is not encrypted, so the password is the folder's.
    let inside = ":/home/me/.Private/Documents";
    let listing = run(["ls", "--password-file", password, &image, inside]).succeeds();
    assert_eq!(listing.text(), "letter.txt\nold letters/\n");
    run(["cp", "-r", "--password-file", password, &image, ":/home/me/.Private", &folder.str("out")]).succeeds();
    assert!(fs::read(folder.path("out/Documents/old letters/big.bin")).expect("a copy") == big);
    let as_stored = run(["ls", &image, "/home/me/.Private"]).succeeds();
    assert!(as_stored.text().contains("ECRYPTFS_FNEK") && as_stored.err.contains("--format eCryptfs"), "{as_stored:?}");
    let sound = ["verify", "--json", "--password-file", password, &image, ":/home/me/.Private"];
    assert_eq!(run(sound).succeeds().json()["files"], 4);
    let explained = run(["explain", "--without-password", &image, ":/home/me/.Private"]).succeeds().text();
    assert!(explained.contains("one key"), "{explained}");
    let stored = run(["ls", &image, "/home/me/.Private"]).succeeds().text();
    let name = stored.lines().find(|line| !line.ends_with('/')).expect("a file").to_owned();
    let file = run(["info", "--json", &image, &format!(":/home/me/.Private/{name}")]).succeeds().json();
    assert_eq!(file["format"], "eCryptfs", "without any password: {file}");
    // In a volume there are two secrets.
    fs::write(folder.path("outer"), "of the volume\n").expect("a file");
    let (outer, volume) = (folder.str("outer"), folder.str("volume"));
    let convert = ["convert", "--raw-source", "--new-format", "LUKS1", "--new-iterations", "1000"];
    run(convert.iter().chain(&["--new-password-file", &*outer, &*image, &*volume])).succeeds();
    let both = ["--password-file", &*outer, "--folder-password-file", password, &*volume];
    let letter = ":/home/me/.Private/Documents/letter.txt";
    assert_eq!(run(["cat"].iter().chain(&both).chain(&[letter])).succeeds().out, b"dear reader");
    run(["ls", "--password-file", &outer, "--folder-password-file", &outer, &volume, inside]).fails(2, &["passphrase"]);
    run(["ls", "--password-file", &outer, "--format", "eCryptfs", &volume, inside])
        .fails(1, &["no terminal", "--folder-password-file"]);
    // Without a word of the folder it is as it was.
    assert!(
        run(["ls", "--password-file", &outer, &volume, "/home/me/.Private"]).succeeds().text().contains("ECRYPTFS")
    );
    run(["info", "--password-file", &outer, "--passthrough", &volume]).fails(1, &["do not apply here"]);
}

#[test]
fn damage_is_found_and_what_is_left_is_saved() {
    let folder = Folder::new();
    let big = encrypted(&folder, "lower", &["--new-cipher", "twofish", "--new-key-size", "256"]);
    let (lower, password) = (folder.str("lower"), &*folder.password);
    let all = stored(&folder.path("lower"));
    // Half an extent is gone of the large one, and the header of a small one.
    fs::File::options().write(true).open(&all[0]).and_then(|f| f.set_len(8192 + 6 * 4096 + 100)).expect("cut short");
    let mut bytes = fs::read(&all[1]).expect("a file");
    bytes[27] = 0xff;
    fs::write(&all[1], bytes).expect("written");
    let verified = run(["verify", "--json", "--password-file", password, &lower]).fails(4, &[]).json();
    let states: Vec<_> = verified["problems"].as_array().expect("a list").iter().map(|p| p["state"].as_str()).collect();
    assert!(states.contains(&Some("cut-short")) && states.contains(&Some("damaged")), "{verified}");
    assert!(run(["verify", "--password-file", password, &lower]).fails(4, &[]).text().contains("--salvage"));
    assert!(run(["explain", "--password-file", password, &lower]).fails(4, &[]).text().contains("cut short"));
    run(["cp", "-r", "--password-file", password, &lower, ":/", &folder.str("none")]).fails(4, &[]);
    let out = folder.str("out");
    let saved =
        run(["cp", "-r", "--json", "--salvage", "--password-file", password, &lower, ":/", &out]).fails(4, &[]).json();
    let of = |name: &str| {
        let all = saved["salvaged"].as_array().expect("a list");
        all.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with(name))).cloned()
    };
    let there = 6 * 4096 + 96;
    let cut = of("big.bin").expect("it is named");
    assert_eq!((cut["copied"].as_u64(), cut["lost"].as_u64()), (Some(there), Some(0)), "{cut}");
    assert!(fs::read(folder.path("out/Documents/old letters/big.bin")).expect("a copy") == big[..there as usize]);
    assert_eq!(saved["salvaged"].as_array().map(Vec::len), Some(if folder.path("out/same").exists() { 2 } else { 3 }));
    assert!(folder.path("out/empty").exists());
}

#[test]
fn a_home_opens_with_the_login_password_and_gets_another() {
    let folder = Folder::new();
    let (home, password) = (folder.str("home"), &*folder.password);
    run(["create", "--format", "eCryptfs", "--home", "--password-file", password, &home]).succeeds();
    let (lower, beside) = (format!("{home}/.Private"), folder.path("home/.ecryptfs"));
    let signatures = fs::read_to_string(beside.join("Private.sig")).expect("signatures");
    assert_eq!(signatures.lines().count(), 2);
    assert_eq!(fs::metadata(beside.join("wrapped-passphrase")).expect("a file").mode() & 0o777, 0o600);
    // ecryptfs-utils unwrap it as well.
    if let Some(unwrap) = tools::program("ecryptfs-unwrap-passphrase") {
        let mut command = Command::new(unwrap);
        command.arg(beside.join("wrapped-passphrase")).arg(PASSWORD);
        let passphrase = String::from_utf8_lossy(&tools::run(&mut command).stdout).trim().to_owned();
        assert_eq!(passphrase.len(), 32, "{passphrase}");
        fs::write(folder.path("mount-passphrase"), passphrase).expect("a file");
    }
    fs::write(folder.path("note"), "hello").expect("a file");
    let cp = |password: &str| {
        run(["cp", "--format", "eCryptfs", "--password-file", password, &lower, &folder.str("note"), ":/note"])
    };
    // The folder is empty, and still a wrong password is noticed.
    fs::write(folder.path("new"), "another login\n").expect("a file");
    let new = folder.str("new");
    cp(&new).fails(2, &["signature"]);
    cp(password).succeeds();
    let cat = |password: &str| run(["cat", "--password-file", password, &lower, "/note"]);
    assert_eq!(cat(password).succeeds().out, b"hello");
    run(["change", "--password-file", password, "--new-password-file", &new, &lower]).succeeds();
    assert_eq!(cat(&new).succeeds().out, b"hello");
    cat(password).fails(2, &[]);
    if folder.path("mount-passphrase").exists() {
        let mount = folder.str("mount-passphrase");
        assert_eq!(cat(&mount).succeeds().out, b"hello", "the passphrase itself works, too");
        // Without the login password, the passphrase itself can be wrapped anew.
        run(["change", "--password-file", &mount, "--new-password-file", password, &lower]).succeeds();
        assert_eq!(cat(password).succeeds().out, b"hello");
    }
    run(["change", "--password-file", &new, "--new-password-file", &new, &lower]).fails(2, &[]);
    // The missing file is reported.
    fs::rename(beside.join("wrapped-passphrase"), folder.path("copy")).expect("renamed");
    let explained = run(["explain", "--password-file", &new, &lower]).fails(2, &[]).text();
    assert!(
        explained.contains("There is no wrapped passphrase") && explained.contains("wrapped-passphrase"),
        "{explained}"
    );
    let copy = folder.str("copy");
    let wrapped = ["cat", "--wrapped-passphrase", &copy, "--password-file", password, &lower, "/note"];
    assert_eq!(run(wrapped).succeeds().out, b"hello");
    run(["create", "--format", "eCryptfs", "--home", "--password-file", password, &home]).fails(1, &["not empty"]);
    // Another folder in the home has a passphrase of its own.
    fs::rename(folder.path("copy"), beside.join("wrapped-passphrase")).expect("renamed");
    let (plain, other, moved) = (folder.str("plain"), format!("{home}/Secret"), folder.str("moved"));
    files(&folder, "plain");
    run(["convert", "--raw-source", "--new-password-file", password, &plain, &other]).succeeds();
    run(["change", "--password-file", password, "--new-password-file", &new, &other]).fails(5, &["no wrapped"]);
    fs::rename(&other, &moved).expect("renamed");
    let read = run(["cat", "--password-file", password, &moved, "/Documents/letter.txt"]);
    assert_eq!(read.succeeds().out, b"dear reader");
}

/// The command that `create` prints works, and every other verb finds the folder too.
#[test]
fn an_empty_home_is_known_by_the_files_beside_it() {
    let folder = Folder::new();
    let (home, password) = (folder.str("home"), &*folder.password);
    let create = ["create", "--format", "eCryptfs", "--home", "--password-file", password, &home];
    let created = run(create).succeeds().text();
    let lower = format!("{home}/.Private");
    for verb in ["info", "ls", "tree", "verify", "explain"] {
        let told = run([verb, "--password-file", password, &lower]).succeeds().text();
        assert!(!told.contains("claviger explain"), "{verb}: {told}");
    }
    run(["cp", "-r", "--password-file", password, &lower, ":/", &folder.str("out")]).succeeds();
    let explained = run(["explain", "--password-file", password, &lower]).succeeds().text();
    assert!(explained.contains("An empty eCryptfs folder"), "{explained}");
    let mounts = explained.lines().last().expect("a command").trim();
    assert_eq!(mounts, format!("claviger mount --password-file={password} {lower}"));
    let seen = run(["explain", "--without-password", &lower]).succeeds().text();
    assert!(seen.contains("claviger ls") && !seen.contains("claviger explain"), "{seen}");
    assert!(run(["identify", &lower]).succeeds().text().contains("an encrypted folder: eCryptfs"));
    // Where it is mounted, and in the home, the way leads to it.
    for folder in [&home, &format!("{home}/Private")] {
        let told = run(["explain", folder]).fails(3, &[]).text();
        assert!(told.contains(&format!("claviger ls {lower}")) && !told.contains("claviger explain"), "{told}");
    }
    // Another folder of that name has no keys beside it.
    fs::create_dir(folder.path(".Private")).expect("a folder");
    run(["info", "--password-file", password, &folder.str(".Private")]).fails(3, &["not an encrypted folder"]);
    // The same in an image.
    if let Some(image) = ext4(&folder, "image", &home) {
        let info = ["info", "--password-file", password, &image, ":/.Private"];
        assert!(run(info).succeeds().text().contains("eCryptfs"));
    }
    let Some(place) = MountSpace::root() else { return };
    let mount = created.lines().find_map(|line| line.strip_prefix("To mount it: claviger ")).expect("a command");
    let words: Vec<_> = mount.split(' ').chain(["--password-file", password]).collect();
    place.run(words).succeeds();
    assert!(place.mounted(&format!("{home}/Private")));
    place.unmount(&lower).succeeds();
}

#[test]
fn folders_take_their_own_options_and_no_others() {
    let folder = Folder::new();
    let (password, lower) = (&*folder.password, folder.str("lower"));
    run(["create", "--format", "eCryptfs", "--size", "1M", "--password-file", password, &lower]).fails(1, &["size"]);
    run(["create", "--format", "eCryptfs", "--cipher", "rot13", "--password-file", password, &lower])
        .fails(1, &["rot13"]);
    assert!(!folder.path("lower").exists(), "nothing is left of what was refused");
    let created =
        ["create", "--json", "--format", "eCryptfs", "--cipher", "twofish", "--password-file", password, &lower];
    assert_eq!(run(created).succeeds().json()["opened_with"][0], "--cipher=twofish");
    fs::write(folder.path("note"), "hello").expect("a file");
    let on = |verb: &[&str], rest: &[&str]| {
        run(verb.iter().chain(&["--format", "ecryptfs", "--password-file", password, &*lower]).chain(rest))
    };
    let note = folder.str("note");
    on(&["cp", "--cipher", "twofish", "--xattr-metadata", "--no-name-encryption"], &[&note, ":/note"]).succeeds();
    assert_eq!(fs::metadata(folder.path("lower/note")).expect("a name in clear").len(), 4096);
    let file = on(&["info", "--json"], &[":/note"]).succeeds().json();
    assert!(
        file["cipher"] == "Twofish" && file["metadata"].as_str().is_some_and(|m| m.contains("user.ecryptfs")),
        "{file}"
    );
    // Names with a password of their own, which is needed from then on.
    fs::write(folder.path("names"), "of the names\n").expect("a file");
    let names = folder.str("names");
    let other = folder.str("other");
    run(["create", "--format", "eCryptfs", "--password-file", password, &other]).succeeds();
    let on_other = |verb: &[&str], rest: &[&str]| {
        run(verb.iter().chain(&["--format", "ecryptfs", "--password-file", password, &*other]).chain(rest))
    };
    on_other(&["cp", "--name-password-file", &names], &[&note, ":/note"]).succeeds();
    assert_eq!(on_other(&["ls", "--name-password-file", &names], &[]).succeeds().text(), "note\n");
    on_other(&["ls"], &[]).fails(2, &["name"]);
    // Files in clear beside them.
    fs::write(folder.path("lower/foreign"), "in clear").expect("a file");
    on(&["cat"], &["/foreign"]).fails(3, &[]);
    assert_eq!(on(&["cat", "--passthrough"], &["/foreign"]).succeeds().out, b"in clear");
    // As it is stored, without a password.
    let view = run(["cat", "--encrypted-view", &lower, "/note"]).succeeds().out;
    assert_eq!(view.len(), 8192 + 4096);
    on(&["ls", "--pim", "1"], &[]).fails(1, &["eCryptfs takes no PIM"]);
    run(["ls", "--passthrough", "--format", "TrueCrypt", "--password-file", password, &note]).fails(3, &[]);
}

#[test]
fn a_folder_is_mounted_and_nobody_else_has_it_then() {
    for place in [MountSpace::root(), MountSpace::user()].into_iter().flatten() {
        let (lower, dir, other) = (place.dir("lower"), place.dir("d"), place.dir("other"));
        let password = place.folder.password.clone();
        let mount = |dir: &str, more: &[&str]| {
            let args = ["mount", "--format", "eCryptfs", "--password-file", &password];
            place.run(args.iter().chain(more).chain(&[&*lower, dir]))
        };
        mount(&lower, &[]).fails(1, &["over or inside itself"]);
        mount(&dir, &[]).succeeds();
        mount(&other, &[]).fails(9, &["in use", "is mounted at"]);
        let inside = format!(
            "set -e; cd {dir}; mkdir -p a/b; echo one >a/one; cp a/one a/b/two; mv a/b/two three; ln -s a/one link; \
             truncate -s 5000 three; test $(cat link) = one; rm a/one; test $(stat -c %s three) = 5000; sync"
        );
        place.shell(&inside).succeeds();
        place.unmount(&dir).succeeds();
        place
            .shell(&format!(
                "set -e; for name in $(ls {lower}); do echo $name | grep -q ^ECRYPTFS_FNEK_ENCRYPTED; done"
            ))
            .succeeds();
        mount(&dir, &["--read-only"]).succeeds();
        place.shell(&format!("set -e; test $(stat -c %s {dir}/three) = 5000; ! touch {dir}/new")).succeeds();
        place.unmount(&dir).succeeds();
    }
}

#[test]
fn a_warning_about_what_holds_a_mounted_folder_is_said_once() {
    let (Some(place), Some(mkfs)) = (MountSpace::root(), tools::program("mkfs.vfat")) else { return };
    let (image, dir) = (place.folder.str("image"), place.dir("d"));
    tools::run(Command::new(mkfs).args(["-F", "16", "-C", &image, "16384"]));
    // The state byte of FAT16: it was not unmounted cleanly.
    let mut bytes = fs::read(&image).expect("an image");
    bytes[37] |= 1;
    fs::write(&image, bytes).expect("written");
    let mounted = place.run(["mount", "--format", "clear", "--read-only", &image, &dir]).succeeds();
    assert_eq!(mounted.err.matches("not unmounted cleanly").count(), 1, "{}", mounted.err);
    place.unmount(&dir).succeeds();
}

#[test]
fn a_home_that_the_kernel_has_written_is_recovered_from_an_image() {
    let folder = Folder::new();
    let (Some(_), Some(_)) = (tools::program("ecryptfs-wrap-passphrase"), tools::program("ecryptfs-add-passphrase"))
    else {
        return;
    };
    let user = folder.path("from/home/.ecryptfs/me");
    for name in [".Private", ".ecryptfs", "upper"] {
        fs::create_dir_all(user.join(name)).expect("a folder");
    }
    let root = user.display();
    let script = format!(
        "set -e; modprobe -a ecryptfs cbc ecb md5; cd {root}; umask 077; P=0123456789abcdef0123456789abcdef\n\
         printf %s $P | ecryptfs-add-passphrase --fnek - | sed -n 's/.*sig \\[\\(.*\\)\\].*/\\1/p' >.ecryptfs/Private.sig\n\
         S=$(sed -n 1p .ecryptfs/Private.sig); F=$(sed -n 2p .ecryptfs/Private.sig)\n\
         mount -i -t ecryptfs -o ecryptfs_sig=$S,ecryptfs_fnek_sig=$F,ecryptfs_cipher=aes,ecryptfs_key_bytes=16 .Private upper\n\
         mkdir upper/Documents; echo dear kernel >upper/Documents/letter.txt; seq 20000 >upper/numbers; umount upper; rmdir upper\n\
         echo /home/me >.ecryptfs/Private.mnt; : >.ecryptfs/auto-mount\n\
         printf '%s\\n%s' $P '{PASSWORD}' | ecryptfs-wrap-passphrase .ecryptfs/wrapped-passphrase -"
    );
    let Some(done) = uml::run(&script, &[], 200) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    let Some(image) = ext4(&folder, "image", &folder.str("from")) else { return };
    let numbers: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    let out = folder.str("out");
    // The file lies beside the folder, and is found there.
    let cp = ["cp", "-r", "--password-file", &folder.password, &image, ":/home/.ecryptfs/me/.Private", &out];
    run(cp).succeeds();
    assert_eq!(fs::read_to_string(folder.path("out/numbers")).expect("a copy"), numbers);
    assert_eq!(fs::read(folder.path("out/Documents/letter.txt")).expect("a copy"), b"dear kernel\n");
    let lower = format!("{root}/.Private");
    let info = run(["info", "--json", "--password-file", &folder.password, &lower]).succeeds().json();
    assert_eq!((info["beside"]["mount_point"].as_str(), info["files"].as_u64()), (Some("/home/me"), Some(2)), "{info}");
    // Where it is lost, a copy of it does.
    let wrapped = folder.str("wrapped");
    fs::rename(user.join(".ecryptfs/wrapped-passphrase"), &wrapped).expect("renamed");
    let by_copy = ["cat", "--wrapped-passphrase", &wrapped, "--password-file", &folder.password, &lower, "/numbers"];
    assert_eq!(run(by_copy).succeeds().text(), numbers);
    run(["cat", "--password-file", &folder.password, &lower, "/numbers"]).fails(2, &["signature"]);
}

/// Devices are doors into the machine: a mounted folder has them only where root asks for them.
#[test]
fn devices_in_a_mounted_folder_are_there_for_root_with_dev_only() {
    let Some(place) = MountSpace::root() else { return };
    let (lower, dir) = (place.dir("lower"), place.dir("dir"));
    let mount = ["mount", "--format", "clear", &lower, &dir];
    let make = format!("mknod {dir}/null c 1 3; mknod {dir}/loop b 7 1; mkfifo {dir}/pipe");
    let kinds = |folder: &str| {
        let script = format!("cd {folder}; for name in *; do stat -c '%n %F %t:%T' $name; done");
        place.shell(&script).succeeds().text()
    };
    place.run(mount).succeeds();
    for one in make.split("; ").take(2) {
        let refused = place.shell(one);
        assert!(refused.code != 0 && refused.err.contains("not permitted"), "{}", refused.err);
    }
    assert_eq!(fs::read_dir(&lower).expect("a folder").count(), 0, "nothing is left");
    place.run(["unmount", &dir]).succeeds();
    place.run(mount.iter().chain(&["-o", "suid"])).fails(1, &["-o dev"]);

    place.run(mount.iter().chain(&["-o", "dev"])).succeeds();
    place.shell(&make).succeeds();
    let both = "loop block special file 7:1\nnull character special file 1:3\npipe fifo 0:0\n";
    assert_eq!((kinds(&lower), kinds(&dir)), (both.into(), both.into()));
    place.shell(&format!("echo gone > {dir}/null")).succeeds();
    place.run(["unmount", &dir]).succeeds();
}

/// crouton's layout: contents and names have a passphrase each, both wrapped by one password.
#[test]
fn two_wrapped_passphrases_open_a_folder_from_two_files_or_from_one() {
    let Some(case) = Case::unpack("ecryptfs/two-wrapped-keys.tar.xz") else { return };
    let at = |name: &str| case.path().join(name).display().to_string();
    let (lower, password) = (at("crouton"), at("pw.c"));
    let ls = |wrapped: &[&str]| run([&["ls", "--password-file", &password], wrapped, &[&lower]].concat());
    let named = |file: &str| format!("--wrapped-passphrase={file}");
    let (contents, names, both) = (named(&at("wk")), named(&at("wf")), named(&at("crouton.key")));
    let listed = ls(&[&contents, &names]).succeeds().text();
    assert!(listed.lines().count() > 2 && !listed.contains("ECRYPTFS"), "{listed}");
    assert_eq!(ls(&[&both]).succeeds().text(), listed);
    // Without a line in front, too; and of one that was cut, no other is made.
    let bytes = fs::read(at("crouton.key")).expect("a file");
    let (plain, cut) = (case.folder().join("plain"), case.folder().join("cut"));
    fs::write(&plain, &bytes[1..]).expect("a file");
    assert_eq!(ls(&[&named(&plain.display().to_string())]).succeeds().text(), listed);
    fs::write(&cut, &bytes[..bytes.len() - 3]).expect("a file");
    ls(&[&named(&cut.display().to_string())]).fails(4, &["cut"]);
    ls(&[&contents]).fails(2, &["no name of the folder"]);
    // The new password wraps both.
    let (fresh, new) = (case.folder().join("new"), at("crouton.key"));
    fs::write(&fresh, "another password\n").expect("a file");
    let fresh = fresh.display().to_string();
    let change = ["change", "--wrapped-passphrase", &new, "--password-file", &password, "--new-password-file", &fresh];
    run([&change[..], &[&lower]].concat()).succeeds();
    assert_eq!(run(["ls", "--password-file", &fresh, &both, &lower]).succeeds().text(), listed);
    ls(&[&both]).fails(2, &[]);
}

#[test]
fn a_wrapped_passphrase_of_another_folder_is_said_to_be_that() {
    let Some(case) = Case::unpack("ecryptfs/foreign-wrapped-passphrase.tar.xz") else { return };
    let at = |name: &str| case.path().join(name).display().to_string();
    let (lower, password) = (at("home/.ecryptfs/me/.Private"), at("password"));
    let said = "the wrapped passphrase beside the folder opens with it, but belongs to another folder";
    run(["ls", "--password-file", &password, &lower]).fails(2, &[said, "older wrapped-passphrase file"]);
    let text = run(["explain", "--password-file", &password, &lower]).fails(2, &[]).text();
    assert!(text.contains("opens the wrapped passphrase") && text.contains(said), "{text}");
    assert!(text.contains("older wrapped-passphrase file") && !text.contains("neither the login passphrase"), "{text}");
    let other = case.folder().join("other");
    fs::write(&other, "not the password").expect("a file");
    let text = run(["explain", "--password-file", &other.display().to_string(), &lower]).fails(2, &[]).text();
    assert!(text.contains("neither the login passphrase") && !text.contains("opens the wrapped"), "{text}");
}

/// A Synology NAS wraps every passphrase by the same one, which scripts of people who mount such folders elsewhere name.
#[test]
fn the_key_file_of_a_synology_nas_opens_its_folder_without_a_password() {
    let folder = Folder::new();
    encrypted(&folder, "@share@", &["--new-key-size", "256"]);
    let (key, lower) = (folder.str("share.key"), folder.str("@share@"));
    for salt in [None, Some([7; 8])] {
        fs::write(&key, maker::wrapped(PASSWORD, "$1$5YN01o9y", salt)).expect("a file");
        let cat = run(["cat", "--wrapped-passphrase", &key, &lower, "/Documents/letter.txt"]).succeeds();
        assert_eq!(cat.out, b"dear reader");
        assert!(cat.err.contains("Synology"), "{}", cat.err);
    }
    fs::write(&key, maker::wrapped("another", "$1$5YN01o9y", None)).expect("a file");
    run(["ls", "--wrapped-passphrase", &key, &lower])
        .fails(2, &["the unwrapped passphrase opens no file", "older wrapped-passphrase file"]);
}
