//! `claviger resize`: where the new room comes from, what it looks like, and what is left when it does not get to its end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use claviger_testkit::{mounts, tools, uml};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Where the data of these volumes begin.
const DATA: u64 = 16 * MIB;

/// A filled volume in a file of 20 MiB.
fn volume(folder: &Folder, path: &str, format: &str) {
    let args = ["create", "--format", format, "--size", "20M", "--iterations", "1000", "--kdf", "pbkdf2"];
    let luks1 = ["--offset", "16M"];
    let args = [&args[..], if format == "LUKS1" { &luks1 } else { &[] }, &["--password-file", &folder.password, path]];
    run(args.concat()).succeeds();
}

fn size(folder: &Folder, path: &str) -> u64 {
    let info = run(["info", "--json", "--password-file", &folder.password, path]).succeeds().json();
    info["size"].as_u64().expect("a size")
}

fn plaintext(folder: &Folder, path: &str) -> Vec<u8> {
    run(["cat", "--password-file", &folder.password, path]).succeeds().out
}

/// Whether each sector looks like ciphertext: none has a byte more than 20 times, which one in 10^13 has by chance.
fn noise(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|sector| {
        let mut counts = [0; 256];
        sector.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        counts.iter().all(|count| *count <= 20)
    })
}

/// Makes a LUKS2 volume one of a fixed size, in both copies of its header.
fn fixed(path: &str, size: u64) {
    const COPY: usize = 16 << 10;
    let mut bytes = fs::read(path).expect("it is there");
    for copy in bytes[..2 * COPY].chunks_mut(COPY) {
        let end = copy[4096..].iter().position(|b| *b == 0).expect("it is filled up with zeros");
        let mut json: Value = serde_json::from_slice(&copy[4096..][..end]).expect("JSON");
        json["segments"]["0"]["size"] = size.to_string().into();
        let json = json.to_string();
        copy[4096..].fill(0);
        copy[4096..][..json.len()].copy_from_slice(json.as_bytes());
        // The checksum's own place counts as zeros (LUKS2 on-disk format, 2.1).
        copy[448..512].fill(0);
        let sum = sha256(copy);
        for (byte, hex) in copy[448..].iter_mut().zip(sum.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(hex).expect("ASCII"), 16).expect("two digits");
        }
    }
    fs::write(path, bytes).expect("written");
}

#[test]
fn new_room_is_taken_and_filled() {
    for format in ["LUKS1", "LUKS2"] {
        let folder = Folder::new();
        let path = folder.str("v");
        volume(&folder, &path, format);
        let (stored, before) = (fs::read(&path).expect("it is there"), plaintext(&folder, &path));
        let text = run(["resize", "--size", "13M", &path]).succeeds().text();
        let mount = format!("claviger mount --filesystem none {path} DIR\n");
        assert!([&*mount, "resize2fs DIR/volume", " MiB for files"].iter().all(|next| text.contains(next)), "{text}");
        let grown = fs::read(&path).expect("it is there");
        assert_eq!((grown.len() as u64, size(&folder, &path)), (DATA + 13 * MIB, 13 * MIB), "{format}");
        assert!(grown[..stored.len()] == stored[..], "{format}: what was there stays");
        assert!(noise(&grown[stored.len()..]), "{format}: nobody sees what is unused");
        let metadata = fs::metadata(&path).expect("it is there");
        assert!(metadata.blocks() * 512 >= metadata.len(), "{format}: the room is taken");
        let now = plaintext(&folder, &path);
        assert!(now[..before.len()] == before[..] && noise(&now[before.len()..]), "{format}");

        run(["resize", "--size", "20M", "--quick", &path]).succeeds();
        let quick = fs::read(&path).expect("it is there");
        assert!(quick[..grown.len()] == grown[..] && quick[grown.len()..].iter().all(|b| *b == 0), "{format}");
        let metadata = fs::metadata(&path).expect("it is there");
        assert_eq!(metadata.len(), DATA + 20 * MIB);
        assert!(metadata.blocks() * 512 >= metadata.len(), "{format}: the room is taken");
        let text = run(["resize", "--size", "4M", "--yes", &path]).succeeds().text();
        assert!(!text.contains("Now grow"), "{text}");
        assert!(fs::read(&path).expect("it is there") == stored, "{format}: cut off where it ended before");
    }
}

#[test]
fn what_lies_behind_a_volume_of_fixed_size_is_asked_about() {
    let folder = Folder::new();
    let path = folder.str("v");
    volume(&folder, &path, "LUKS2");
    fixed(&path, 2 * MIB);
    let before = fs::read(&path).expect("it is there");
    run(["resize", "--size", "6M", &path]).fails(1, &["no terminal"]);
    assert!(fs::read(&path).expect("it is there") == before);
    run(["resize", "--size", "6M", "--yes", &path]).succeeds();
    let after = fs::read(&path).expect("it is there");
    let (old, end) = ((DATA + 2 * MIB) as usize, (DATA + 6 * MIB) as usize);
    assert!(after.len() == end && noise(&after[old..]) && after[old..before.len()] != before[old..]);
    assert_eq!(size(&folder, &path), 6 * MIB);
}

#[test]
fn a_full_file_system_is_told_before_anything_changes() {
    let folder = Folder::new();
    let full = |place: &Path, room: &str| {
        let path = place.join("v").display().to_string();
        volume(&folder, &path, "LUKS2");
        for fixed_size in [false, true] {
            if fixed_size {
                fixed(&path, 4 * MIB);
            }
            let before = fs::read(&path).expect("it is there");
            run(["resize", "--size", "500M", &path]).fails(6, &["No space left", "its old size", &path]);
            run(["resize", "--size", "500M", "--quick", &path]).fails(6, &["No space left", "needs 4", " free"]);
            assert!(fs::read(&path).expect("it is there") == before, "{}", place.display());
            // And the added space was given back.
            fs::write(place.join("other"), vec![1; 4 << 20])
                .and_then(|()| fs::remove_file(place.join("other")))
                .expect(room);
        }
        run(["resize", "--size", "6M", &path]).succeeds();
        assert_eq!(size(&folder, &path), 6 * MIB);
    };
    let Some(memory) = Tmpfs::new("size=32M") else { return };
    full(memory.path(), "room in memory");
    // ext2 cannot allocate blocks without writing them.
    for kind in ["ext4", "ext2"] {
        let Some(mkfs) = tools::program("mke2fs") else { return };
        let (image, dir) = (folder.path(&format!("{kind}.img")), folder.path(kind));
        mounts::sparse_file(&image, 40 << 20);
        tools::run(Command::new(mkfs).args(["-q", "-F", "-m", "0", "-t", kind]).arg(&image));
        let Some(device) = mounts::LoopDevice::new(&image, &[]) else { return };
        fs::create_dir(&dir).expect("a folder");
        let mount = mounts::Mount::on(&dir);
        tools::run(Command::new("mount").args(["-t", kind]).arg(device.path()).arg(&dir));
        full(&dir, kind);
        drop(mount);
    }
}

/// Runs `claviger resize` under strace, which injects `what`; whether it came to its end.
fn resize_with(strace: &Path, what: &str, path: &str) -> Done {
    resize_to(strace, what, &["--size", "13M", path])
}

/// The same with these options.
fn resize_to(strace: &Path, what: &str, args: &[&str]) -> Done {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "300"]).arg(strace).args(["-f", "-o", "/dev/null", "-e", &format!("inject={what}")]);
    command.arg(env!("CARGO_BIN_EXE_claviger")).args(["resize", "--yes"]).args(args);
    let output = command.stdin(std::process::Stdio::null()).output().expect("strace starts");
    // strace ends as the program that it runs, by the same signal.
    let code = output.status.code().unwrap_or(-1);
    Done { code, out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
}

#[test]
fn killed_anywhere_it_opens_and_goes_on() {
    let Some(strace) = tools::program("strace") else { return };
    let folder = Folder::new();
    let (original, path) = (folder.str("original"), folder.str("v"));
    for (format, fixed_size) in [("LUKS1", false), ("LUKS2", false), ("LUKS2", true)] {
        volume(&folder, &original, format);
        if fixed_size {
            fixed(&original, 4 * MIB);
        }
        let before = fs::read(&original).expect("it is there");
        let data = plaintext(&folder, &original);
        let mut kills = 0;
        for call in ["fallocate", "pwrite64", "ftruncate", "fsync", "fdatasync"] {
            for nth in 1.. {
                fs::copy(&original, &path).expect("copied");
                if resize_with(&strace, &format!("{call}:signal=KILL:when={nth}"), &path).code == 0 {
                    break;
                }
                kills += 1;
                let what = format!("{format}, fixed: {fixed_size}, {call} {nth}");
                let (left, now) = (fs::read(&path).expect("it is there"), size(&folder, &path));
                assert!((4 * MIB..=13 * MIB).contains(&now), "{what}: {now}");
                assert!(noise(&left[before.len()..]), "{what}: half-filled");
                assert!(plaintext(&folder, &path)[..data.len()] == data[..], "{what}: the data");
                run(["resize", "--size", "13M", "--yes", &path]).succeeds();
                let after = fs::read(&path).expect("it is there");
                assert_eq!((after.len() as u64, size(&folder, &path)), (DATA + 13 * MIB, 13 * MIB), "{what}");
                assert!(noise(&after[before.len()..]), "{what}: not filled");
                assert!(plaintext(&folder, &path)[..data.len()] == data[..], "{what}: the data");
            }
        }
        // Three pieces are filled; and a header of two copies is written for a fixed size.
        assert!(kills >= if fixed_size { 9 } else { 6 }, "{format}: {kills}");
        fs::remove_file(&original).expect("removed");
    }
}

#[test]
fn interrupted_it_has_its_old_size() {
    let Some(strace) = tools::program("strace") else { return };
    let folder = Folder::new();
    let path = folder.str("v");
    volume(&folder, &path, "LUKS2");
    let before = fs::read(&path).expect("it is there");
    resize_with(&strace, "pwrite64:signal=INT:when=2", &path).fails(8, &["its old size"]);
    assert!(fs::read(&path).expect("it is there") == before);
    // A disk that fails does the same.
    resize_with(&strace, "pwrite64:error=EIO:when=2", &path).fails(6, &["its old size"]);
    assert!(fs::read(&path).expect("it is there") == before);
}

#[test]
fn cryptsetup_opens_what_was_resized() {
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let folder = Folder::new();
    let key = folder.str("key");
    fs::write(&key, PASSWORD).expect("a key file");
    let ours = ["LUKS1", "LUKS2"].map(|format| {
        let path = folder.str(format);
        volume(&folder, &path, format);
        path
    });
    // One that cryptsetup has made, and one of ours that has a size of its own.
    let (theirs, sized) = (folder.str("theirs"), folder.str("sized"));
    mounts::sparse_file(theirs.as_ref(), 20 << 20);
    let format = ["luksFormat", "-q", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    tools::run(Command::new(&cryptsetup).args(format).args(["--key-file", &key, &theirs]));
    volume(&folder, &sized, "LUKS2");
    fixed(&sized, 4 * MIB);
    let all = [&ours[0], &ours[1], &theirs, &sized];
    let mut script = format!("set -e\nmodprobe -qa dm-crypt xts aes\ncd {}\n", folder.path("").display());
    for (i, path) in all.iter().enumerate() {
        run(["resize", "--size", "13M", path]).succeeds();
        tools::run(Command::new(&cryptsetup).args(["luksDump", path]));
        fs::write(folder.path(&format!("{i}.plain")), plaintext(&folder, path)).expect("written");
        let device = format!("/dev/ubd{}", char::from(b'a' + i as u8));
        script += &format!(
            "cryptsetup open --key-file key {device} x
             test $(blockdev --getsize64 /dev/mapper/x) = {}
             cmp /dev/mapper/x {i}.plain
             dd if=/bin/sh of=/dev/mapper/x bs=4096 count=1 seek=3000 conv=notrunc,fsync status=none
             cryptsetup close x\n",
            13 * MIB
        );
    }
    let images: Vec<&Path> = all.iter().map(|path| Path::new(path.as_str())).collect();
    let Some(done) = uml::run(&script, &images, 120) else { return };
    assert_eq!(done.status, 0, "{}", done.output);
    let shell = fs::read("/bin/sh").expect("a shell");
    for path in all {
        assert!(plaintext(&folder, path)[3000 * 4096..][..4096] == shell[..4096], "{path}");
    }
}

/// What opens the TrueCrypt volumes of these tests without trying everything.
const TRUECRYPT: [&str; 3] = ["--truecrypt", "--hash=SHA-512", "--cipher=AES"];

/// A volume of TrueCrypt with data of 2 MiB; how it is opened.
fn truecrypt(folder: &Folder, path: &str) -> [String; 5] {
    let stored = (2 * MIB + (256 << 10)).to_string();
    let args = ["create", "--format=TrueCrypt", "--hash=SHA-512", "--cipher=AES", "--size", &stored];
    run([&args[..], &["--password-file", &folder.password, path]].concat()).succeeds();
    let [format, hash, cipher] = TRUECRYPT.map(str::to_owned);
    [format, hash, cipher, "--password-file".into(), folder.password.clone()]
}

#[test]
fn a_truecrypt_volume_is_resized_by_whoever_opens_it() {
    let folder = Folder::new();
    let path = folder.str("v.tc");
    let how = truecrypt(&folder, &path);
    let how: Vec<&str> = how.iter().map(String::as_str).collect();
    let cat = || run([&["cat"], &how[..], &[&path]].concat()).succeeds().out;
    let resize = |more: &[&str]| run([&["resize"], &how[..], more, &[&path]].concat());
    let before = cat();
    let done = resize(&["--json", "--size", "3M"]).succeeds().json();
    assert_eq!(
        (&done["format"], &done["before"], &done["size"]),
        (&"TrueCrypt".into(), &(2 * MIB).into(), &(3 * MIB).into())
    );
    let now = cat();
    assert!(now.len() as u64 == 3 * MIB && now[..before.len()] == before[..] && noise(&now[before.len()..]));
    resize(&["--size", "1M"]).fails(1, &["no terminal"]);
    resize(&["--size", "1M", "--yes"]).succeeds();
    assert!(cat() == before[..MIB as usize]);
    assert!(run([&["cat", "--backup-header"], &how[..], &[&path]].concat()).succeeds().out == before[..MIB as usize]);
    // A hidden volume that is not there is no reason to refuse, but its password is wrong.
    let hidden =
        ["--size", "2M", "--protect-hidden", "--hidden-password-file", &folder.password, "--hidden-hash=SHA-512"];
    resize(&hidden).fails(2, &[]);
    resize(&["--size", "100", "--yes"]).fails(1, &["512-byte sectors"]);
    let wrong = folder.str("wrong");
    fs::write(&wrong, "wrong").expect("a file");
    run([&["resize"], &TRUECRYPT[..], &["--size=2M", "--password-file", &wrong, &path]].concat()).fails(2, &[]);
    assert!(cat() == before[..MIB as usize]);
    let luks = folder.str("luks");
    volume(&folder, &luks, "LUKS2");
    run(["resize", "--size=5M", "--protect-hidden", &luks]).fails(1, &["no hidden volumes"]);
    run(["resize", "--size=5M", "--header", &luks, &luks]).fails(1, &["detached header"]);
}

#[test]
fn a_truecrypt_volume_survives_being_killed_anywhere() {
    let Some(strace) = tools::program("strace") else { return };
    let folder = Folder::new();
    let (original, path) = (folder.str("original"), folder.str("v"));
    let how = truecrypt(&folder, &original);
    let how: Vec<&str> = how.iter().map(String::as_str).collect();
    let cat = |path: &str| run([&["cat"], &how[..], &[path]].concat()).succeeds().out;
    let data = cat(&original);
    for size in [3 * MIB, MIB] {
        let size_text = size.to_string();
        let args = [&["--size", &*size_text], &how[..], &[&*path]].concat();
        let kept = data.len().min(size as usize);
        let mut kills = 0;
        for call in ["fallocate", "pwrite64", "ftruncate", "fsync", "fdatasync"] {
            for nth in 1.. {
                fs::copy(&original, &path).expect("copied");
                if resize_to(&strace, &format!("{call}:signal=KILL:when={nth}"), &args).code == 0 {
                    break;
                }
                kills += 1;
                let what = format!("{size} bytes, {call} {nth}");
                let now = cat(&path);
                assert!([2 * MIB, size].contains(&(now.len() as u64)), "{what}: {}", now.len());
                assert!(now[..kept] == data[..kept], "{what}: the data");
                run([&["resize", "--yes"], &args[..]].concat()).succeeds();
                let backup = run([&["cat", "--backup-header"], &how[..], &[&*path]].concat()).succeeds().out;
                for now in [cat(&path), backup] {
                    assert!(now.len() as u64 == size && now[..kept] == data[..kept] && noise(&now[kept..]), "{what}");
                }
                assert_eq!(fs::metadata(&path).expect("it is there").len(), size + (256 << 10), "{what}");
            }
        }
        assert!(kills >= 7, "{size} bytes: {kills}");
    }
}
