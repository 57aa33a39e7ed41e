//! ls, tree, cat --file and cp on what is inside a volume.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::*;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Credential, Secret, Store, Unlock, Volume, formats};
use claviger_testkit::random::Random;
use claviger_testkit::tools;

/// A volume with the plaintext `image`.
fn volume_of(folder: &Folder, name: &str, image: &Path) -> String {
    let size = fs::metadata(image).expect("an image").len();
    let path = folder.volume(name, &format!("{}K", size / 1024 + 512), &[]);
    let volume = opened(&path, Access::ReadWrite);
    assert!(volume.len() >= size);
    let mut bytes = fs::read(image).expect("an image");
    volume.write_clobbering(0, &mut bytes).expect("written");
    volume.flush().expect("written");
    path
}

fn opened(path: &str, access: Access) -> Volume {
    let store: Arc<dyn Store> = Arc::new(FileStore::open(path.as_ref(), access).expect("it opens"));
    let (_, header) = formats::open(&store, Some("TrueCrypt")).expect("a header");
    let credentials = [Credential::Passphrase(Secret::copy_from(PASSWORD.as_bytes()))];
    let unlocked = header.unlock(&Unlock { hash: Some("SHA-512"), ..Unlock::with(&credentials) });
    Volume::new(store, unlocked.expect("it opens").layout)
}

/// Runs a verb on a volume, with hints, because no test here needs a search for the format.
fn claviger_on(folder: &Folder, verb: &[&str], volume: &str, rest: &[&str]) -> Done {
    let hints = ["--format", "TrueCrypt", "--hash", "SHA-512", "--password-file", &folder.password, volume];
    run(verb.iter().chain(hints.iter()).chain(rest))
}

fn image(folder: &Folder, mkfs: &str, args: &[&str], size: u64) -> Option<std::path::PathBuf> {
    let path = folder.path("image");
    let _ = fs::remove_file(&path);
    fs::File::create(&path).and_then(|f| f.set_len(size << 20)).expect("an image");
    tools::run(Command::new(tools::program(mkfs)?).args(args).arg(&path));
    Some(path)
}

#[test]
fn files_go_into_a_fat_and_come_out_as_they_were() {
    let folder = Folder::new();
    let (Some(fsck), Some(mcopy)) = (tools::program("fsck.vfat"), tools::program("mcopy")) else { return };
    let Some(fat) = image(&folder, "mkfs.vfat", &["-F", "16", "-n", "INSIDE"], 16) else { return };
    let volume = volume_of(&folder, "v", &fat);
    let mut random = Random::new(4);
    let source = folder.path("source");
    fs::create_dir_all(source.join("inner folder/deeper")).expect("folders");
    for (name, len) in [("small", 11), ("inner folder/Größe.bin", 700_000), ("inner folder/deeper/empty", 0)] {
        fs::write(source.join(name), random.bytes(len)).expect("written");
    }
    symlink("/etc/passwd", source.join("link")).expect("a link");
    let source = source.display().to_string();
    let copied = claviger_on(&folder, &["cp", "-r", "--json"], &volume, &[&source, ":/"]).fails(5, &[]).json();
    assert_eq!((&copied["files"], &copied["folders"], &copied["bytes"]), (&3.into(), &3.into(), &700_011.into()));
    assert!(copied["left_out"][0].as_str().expect("text").contains("link"));
    // The file system inside is sound, and mtools reads it.
    let plain = folder.path("plain");
    let volume_now = opened(&volume, Access::ReadOnly);
    let mut bytes = vec![0; fs::metadata(&fat).expect("there").len() as usize];
    volume_now.read_at(0, &mut bytes).expect("read");
    drop(volume_now);
    fs::write(&plain, bytes).expect("written");
    tools::run(Command::new(fsck).arg("-n").arg(&plain));
    let by_mtools = folder.path("by mtools");
    let mut mcopy = Command::new(mcopy);
    mcopy.args(["-i"]).arg(&plain).arg("::source/inner folder/Größe.bin").arg(&by_mtools).env("LC_ALL", "C.UTF-8");
    tools::run(&mut mcopy);
    let same = |a: &Path, b: &Path| fs::read(a).expect("there") == fs::read(b).expect("there");
    assert!(same(&by_mtools, &folder.path("source/inner folder/Größe.bin")));
    // And out again. From here on not a byte of the volume changes, nor its times.
    let before = (sha256(&fs::read(&volume).expect("there")), fs::metadata(&volume).expect("there").mtime_nsec());
    let out = folder.str("out");
    claviger_on(&folder, &["cp", "-r"], &volume, &[":/source", &out]).succeeds();
    for name in ["small", "inner folder/Größe.bin", "inner folder/deeper/empty"] {
        assert!(same(&folder.path("source").join(name), &folder.path("out").join(name)), "{name}");
    }
    let times = |name: &str| fs::metadata(folder.path(name)).expect("there").mtime() / 2;
    assert_eq!(times("source/small"), times("out/small"));
    if let Some(tiny) = Tmpfs::new("size=64k") {
        let to = tiny.path().display().to_string();
        let full = claviger_on(&folder, &["cp"], &volume, &[":/source/inner folder/Größe.bin", &to]);
        full.fails(6, &["Größe.bin", "No space left", "needs 684 KiB, 64 KiB free", &format!("df -h {to}")]);
        assert_eq!(fs::read_dir(&to).expect("a folder").count(), 0, "nothing is left");
    }
    // Nothing is overwritten unless that is asked for.
    fs::write(folder.path("out/small"), b"mine").expect("written");
    claviger_on(&folder, &["cp"], &volume, &[":/source/small", &out]).fails(1, &["--force"]);
    assert_eq!(fs::read(folder.path("out/small")).expect("there"), b"mine");
    claviger_on(&folder, &["cp", "--force"], &volume, &[":/SOURCE/SMALL", &folder.str("out/small")]).succeeds();
    assert!(same(&folder.path("source/small"), &folder.path("out/small")));
    assert_eq!(fs::read_dir(folder.path("out")).expect("there").count(), 2, "no partial file is left");
    // Listings.
    let list = claviger_on(&folder, &["ls", "--json"], &volume, &["/source"]).succeeds().json();
    assert_eq!(list["filesystem"]["kind"], "FAT16");
    assert_eq!(list["filesystem"]["label"], "INSIDE");
    let names: Vec<_> = list["entries"].as_array().expect("a list").iter().map(|e| e["name"].clone()).collect();
    assert_eq!(names, ["inner folder", "small"]);
    let text = claviger_on(&folder, &["ls", "-l"], &volume, &["/source/inner folder"]).succeeds().text();
    assert!(text.contains("file    700000") && text.contains("Größe.bin") && text.contains("deeper/"), "{text}");
    let tree = claviger_on(&folder, &["tree"], &volume, &[]).succeeds().text();
    assert!(tree.contains("│") && tree.contains("└── empty") && tree.contains("3 folders, 3 files"), "{tree}");
    let whole = claviger_on(&folder, &["cp", "-r"], &volume, &[":/", &folder.str("whole")]).succeeds().text();
    assert!(whole.starts_with("3 files and 3 folders copied"), "{whole}");
    // One file, and a part of one.
    let cat = claviger_on(&folder, &["cat", "--file", "/source/inner folder/Größe.bin"], &volume, &[]).succeeds();
    assert!(cat.out == fs::read(folder.path("source/inner folder/Größe.bin")).expect("there"));
    let part =
        claviger_on(&folder, &["cat", "--file", "/source/small", "--offset", "3", "--length", "4"], &volume, &[]);
    assert_eq!(part.succeeds().out, fs::read(folder.path("source/small")).expect("there")[3..7]);
    // Arguments that make no sense.
    claviger_on(&folder, &["cat", "--file", "/source"], &volume, &[]).fails(1, &["is a folder, not a file"]);
    claviger_on(&folder, &["ls"], &volume, &["/none"]).fails(1, &["there is no /none in the volume"]);
    claviger_on(&folder, &["cp"], &volume, &[":/source", &out]).fails(1, &["To copy folders, add -r"]);
    claviger_on(&folder, &["cp"], &volume, &[&out, &out]).fails(1, &["begin with a colon"]);
    claviger_on(&folder, &["cp"], &volume, &[":/a", ":/b"]).fails(1, &["begin with a colon"]);
    let after = (sha256(&fs::read(&volume).expect("there")), fs::metadata(&volume).expect("there").mtime_nsec());
    assert_eq!(before, after, "reading changed the volume");
    // Into the volume: nothing overwritten, what does not fit is not begun, names that FAT cannot hold are refused.
    let small = folder.str("source/small");
    claviger_on(&folder, &["cp"], &volume, &[&small, ":/source/"]).fails(1, &["already", "--force"]);
    claviger_on(&folder, &["cp", "--force"], &volume, &[&small, ":/source/"]).succeeds();
    claviger_on(&folder, &["cp"], &volume, &[&small, ":/sub/"]).fails(1, &["/sub/ is not a folder in the volume"]);
    claviger_on(&folder, &["ls"], &volume, &["/sub"]).fails(1, &["there is no /sub in the volume"]);
    fs::write(folder.path("large"), vec![1; 17 << 20]).expect("written");
    claviger_on(&folder, &["cp"], &volume, &[&folder.str("large"), ":/"])
        .fails(6, &["No space left", "needs ", " free"]);
    fs::write(folder.path("a:b"), b"x").expect("written");
    claviger_on(&folder, &["cp"], &volume, &[&folder.str("a:b"), ":/"]).fails(6, &["FAT cannot hold"]);
}

/// The source has a link first, and later a folder of the same name with files in it.
#[test]
fn nothing_is_written_through_a_link_that_was_copied() {
    let folder = Folder::new();
    let (first, second, outside) = (folder.path("first"), folder.path("second"), folder.path("outside"));
    fs::create_dir_all(second.join("evil")).expect("folders");
    [&first, &outside].into_iter().try_for_each(fs::create_dir).expect("folders");
    fs::write(second.join("evil/file"), "from the image").expect("written");
    fs::write(first.join("file"), "from the image").expect("written");
    symlink(&outside, first.join("evil")).expect("a link");
    symlink(outside.join("file"), first.join("through")).expect("a link");
    fs::write(second.join("through"), "from the image").expect("written");
    let out = folder.str("out");
    for (source, force) in [(&first, false), (&second, false), (&second, true)] {
        let args = ["-q", "-t", "ext4", "-d", &source.display().to_string()];
        let Some(image) = image(&folder, "mke2fs", &args, 16) else { return };
        let image = image.display().to_string();
        let done = run([&["cp", "-r", &image, ":/", &out][..], if force { &["--force"] } else { &[] }].concat());
        match *source == first {
            true => assert!(done.succeeds().text().contains("2 symbolic links")),
            false => drop(done.fails(1, &["evil", "already exists"])),
        }
        assert_eq!(fs::read_dir(&outside).expect("a folder").count(), 0, "nothing comes there");
    }
    assert_eq!(fs::read_link(folder.path("out/evil")).expect("a link"), outside);
}

#[test]
fn ext4_and_ntfs_are_read_and_not_written() {
    let folder = Folder::new();
    let source = folder.path("source");
    fs::create_dir(&source).expect("a folder");
    let bytes = Random::new(9).bytes(300_000);
    fs::write(source.join("file"), &bytes).expect("written");
    symlink("../../../etc/passwd", source.join("link")).expect("a link");
    fs::write(source.join("a\nname\x1b[2J"), b"x").expect("written");
    let source = source.display().to_string();
    let file = folder.str("source/file");
    let Some(ext) = image(&folder, "mke2fs", &["-q", "-t", "ext4", "-d", &source], 16) else { return };
    let volume = volume_of(&folder, "ext", &ext);
    let before = sha256(&fs::read(&volume).expect("there"));
    let text = claviger_on(&folder, &["ls", "-l"], &volume, &[]).succeeds().text();
    assert!(text.contains("a\\nname\\u{1b}[2J") && text.contains("link -> ../../../etc/passwd"), "{text}");
    assert!(claviger_on(&folder, &["cat", "--file", "/file"], &volume, &[]).succeeds().out == bytes);
    let out = folder.str("out");
    let text = claviger_on(&folder, &["cp", "-r"], &volume, &[":/", &out]).succeeds().text();
    assert!(text.contains("1 symbolic link") && !text.contains("left out"), "{text}");
    assert!(fs::read(folder.path("out/file")).expect("there") == bytes);
    assert_eq!(fs::read_link(folder.path("out/link")).expect("a link"), Path::new("../../../etc/passwd"));
    // Again, nothing is lost without --force, and a link is replaced, not what it points to.
    let (link, kept) = (folder.path("one"), folder.path("kept"));
    fs::write(&kept, "kept").expect("written");
    symlink(&kept, &link).expect("a link");
    let to = folder.str("one");
    claviger_on(&folder, &["cp"], &volume, &[":/link", &to]).fails(1, &["already exists"]);
    claviger_on(&folder, &["cp", "--force"], &volume, &[":/file", &to]).succeeds();
    assert!(fs::read(&link).expect("a file") == bytes && !link.is_symlink());
    claviger_on(&folder, &["cp", "--force"], &volume, &[":/link", &to]).succeeds();
    assert!(link.is_symlink() && fs::read(&kept).expect("there") == b"kept");
    claviger_on(&folder, &["cp"], &volume, &[&file, ":/"]).fails(5, &["ext4 is read-only"]);
    assert_eq!(sha256(&fs::read(&volume).expect("there")), before);

    let (Some(ntfs), Some(ntfscp)) = (image(&folder, "mkntfs", &["-F", "-Q", "-q"], 8), tools::program("ntfscp"))
    else {
        return;
    };
    tools::run(Command::new(ntfscp).arg("-q").arg(&ntfs).args([&file, "copied"]));
    let volume = volume_of(&folder, "ntfs", &ntfs);
    assert!(claviger_on(&folder, &["cat", "--file", "/COPIED"], &volume, &[]).succeeds().out == bytes);
    claviger_on(&folder, &["cp"], &volume, &[&file, ":/"]).fails(5, &["NTFS is read-only"]);
}

#[test]
fn a_volume_without_a_file_system_says_what_it_holds() {
    let folder = Folder::new();
    let volume = folder.volume("empty", "1M", &[]);
    claviger_on(&folder, &["ls"], &volume, &[]).fails(3, &["no file system was found"]);
    let Some(swap) = image(&folder, "mkswap", &["-q"], 1) else { return };
    let volume = volume_of(&folder, "swap", &swap);
    claviger_on(&folder, &["tree"], &volume, &[]).fails(5, &["a swap area"]);
}

#[test]
fn partitions_inside_are_named_and_read() {
    let folder = Folder::new();
    let Some(fat) = image(&folder, "mkfs.vfat", &["-F", "12"], 4) else { return };
    let Some(sfdisk) = tools::program("sfdisk") else { return };
    let disk = folder.path("disk");
    fs::write(&disk, vec![0; 8 << 20]).expect("written");
    let mut child = Command::new(sfdisk);
    child.args(["-q", "--no-tell-kernel"]).arg(&disk).stdin(std::process::Stdio::piped());
    let mut child = child.spawn().expect("it starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"start=2048, size=8192, type=6\n")
        .expect("written");
    assert!(child.wait().expect("it ends").success());
    let mut bytes = fs::read(&disk).expect("there");
    let inner = fs::read(&fat).expect("there");
    bytes[1 << 20..][..inner.len()].copy_from_slice(&inner);
    fs::write(&disk, bytes).expect("written");
    let volume = volume_of(&folder, "v", &disk);
    claviger_on(&folder, &["ls"], &volume, &[]).fails(3, &["--inner-partition", "1"]);
    fs::write(folder.path("note"), b"hello").expect("written");
    claviger_on(&folder, &["cp", "--inner-partition", "1"], &volume, &[&folder.str("note"), ":/note"]).succeeds();
    let cat = claviger_on(&folder, &["cat", "--inner-partition", "1", "--file", "note"], &volume, &[]);
    assert_eq!(cat.succeeds().out, b"hello");
}

#[test]
fn a_folder_of_files_is_reached_without_a_mount() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("lower/inner")).expect("folders");
    fs::write(folder.path("lower/inner/one"), "first").expect("a file");
    let lower = folder.str("lower");
    let on = |verb: &[&str], rest: &[&str]| run(verb.iter().chain(&["--format", "clear", &*lower]).chain(rest));
    let listing = on(&["ls", "--json"], &["/inner"]).succeeds().json();
    assert_eq!((listing["entries"][0]["name"].as_str(), listing["filesystem"].as_str()), (Some("one"), None));
    assert!(on(&["tree"], &[]).succeeds().text().contains("one"));
    assert_eq!(on(&["cat", "--file", "/inner/one"], &[]).succeeds().out, b"first");
    fs::write(folder.path("two"), vec![7; 100_000]).expect("a file");
    on(&["cp"], &[&folder.str("two"), ":/inner"]).succeeds();
    on(&["cp", "-r"], &[":/inner", &folder.str("out")]).succeeds();
    for copy in ["lower/inner/two", "out/two"] {
        assert!(fs::read(folder.path(copy)).expect("a copy") == [7; 100_000], "{copy}");
    }
    // A slash at the end names a folder.
    for more in [&["cp"][..], &["cp", "-r"]] {
        on(more, &[&folder.str("two"), ":/sub/"]).fails(1, &["/sub/ is not a folder in the volume", "omit the slash"]);
        on(more, &[&folder.str("two"), ":/inner/one/"]).fails(1, &["/inner/one/ is not a folder in the volume"]);
        on(more, &[":/inner/one", &folder.str("new/")]).fails(1, &["there is no such folder", "mkdir"]);
        on(more, &[":/inner/one/", &folder.str("new")]).fails(1, &["is not a folder"]);
    }
    on(&["ls"], &["/inner/one/"]).fails(1, &["is not a folder"]);
    on(&["cat", "--file", "/inner/one/"], &[]).fails(1, &["is not a folder"]);
    assert!(!folder.path("lower/sub").exists() && !folder.path("new").exists());
    assert_eq!(fs::read(folder.path("lower/inner/one")).expect("a file"), b"first");
    on(&["cp", "-r"], &[&folder.str("out"), ":/sub/"]).succeeds();
    on(&["cp", "-r"], &[":/sub/", &folder.str("new/")]).succeeds();
    assert!(folder.path("lower/sub/two").exists() && folder.path("new/two").exists());
    // It has files and no bytes, shows no format, and has nothing that a password opens.
    on(&["cat"], &[]).fails(5, &["as one volume", "claviger mount"]);
    assert!(on(&["info"], &[]).succeeds().text().contains("clear"));
    run(["ls", &lower]).fails(3, &["this is not an encrypted folder", "--format"]);
    on(&["ls", "--partition", "1"], &[]).fails(1, &["no partitions"]);
    on(&["ls", "--password-file", &folder.password], &[]).fails(1, &["clear"]);
}
