//! Disks in files that are not the disk itself: images of virtual disks, known by their content, and the parts of split disks.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::random::noise;
use claviger_testkit::tools::{self, program};

/// qemu's name of each format, options for qemu-img, and the scheme by which claviger also writes.
const CONTAINERS: [(&str, &[&str]); 10] = [
    ("qcow2", &[]),
    ("qed", &[]),
    ("parallels", &[]),
    ("vhdx", &[]),
    ("vdi", &[]),
    ("vdi", &["-o", "static=on"]),
    ("vmdk", &["-o", "subformat=monolithicSparse"]),
    ("vmdk", &["-o", "subformat=streamOptimized"]),
    ("vpc", &["-o", "subformat=dynamic,force_size=on"]),
    ("vpc", &["-o", "subformat=fixed,force_size=on"]),
];

/// Options with which the VeraCrypt volume opens quickly.
const VERACRYPT: [&str; 8] = ["--format", "VeraCrypt", "--hash", "SHA-512", "--cipher", "AES", "--pim", "1"];

/// The image `to` of the raw disk `from`.
fn convert(from: &str, (format, options): (&str, &[&str]), to: &str) {
    let mut qemu_img = Command::new("qemu-img");
    tools::run(qemu_img.args(["convert", "-f", "raw", "-O", format]).args(options).args([from, to]));
}

/// Whether qemu's programs are there.
fn qemu() -> Option<()> {
    program("qemu-img")?;
    program("qemu-nbd").map(drop)
}

fn luks2(folder: &Folder) -> String {
    let path = folder.str("luks2.raw");
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "2M", "--kdf", "pbkdf2", "--iterations", "1000"];
    let room = ["--metadata-size", "16K", "--keyslots-size", "768K", "--offset", "1M", "--password-file"];
    run(create.into_iter().chain(room).chain([&*folder.password, &path])).succeeds();
    path
}

fn bitlocker(folder: &Folder) -> String {
    let path = folder.str("bitlocker.raw");
    let create = ["create", "--format", "BitLocker", "--no-recovery-password", "--quick", "--size", "8M"];
    run(create.into_iter().chain(["--filesystem", "fat", "--password-file", &folder.password, &path])).succeeds();
    path
}

fn veracrypt(folder: &Folder) -> String {
    let path = folder.str("veracrypt.raw");
    let create = ["create", "--quick", "--size", "2M", "--password-file", &folder.password];
    run(create.into_iter().chain(VERACRYPT).chain([&*path])).succeeds();
    path
}

/// A volume of each kind: its format, its path, and options that open it.
fn volumes(folder: &Folder) -> [(&'static str, String, &'static [&'static str]); 3] {
    [("LUKS2", luks2(folder), &[]), ("BitLocker", bitlocker(folder), &[]), ("VeraCrypt", veracrypt(folder), &VERACRYPT)]
}

/// The image's name says nothing, or the wrong thing.
#[test]
fn each_kind_of_image_is_read_by_its_content() {
    let Some(()) = qemu() else { return };
    let folder = Folder::new();
    for (format, raw, how) in volumes(&folder) {
        let with = |verb: &[&str], path: &str| run([verb, how, &["--password-file", &folder.password, path]].concat());
        let plain = with(&["cat"], &raw).succeeds().out;
        for (number, container) in CONTAINERS.into_iter().enumerate() {
            let image = folder.str(&format!("image{number}.iso"));
            convert(&raw, container, &image);
            let before = fs::read(&image).expect("an image");
            let what = format!("{format} in {container:?}");
            let identified = run(["identify", "--json", &image]).succeeds().json();
            let disk = &identified[0]["disk"];
            let mut candidates = disk["candidates"].as_array().expect(&what).iter();
            assert!(candidates.any(|name| name == format), "{what}: {identified:#}");
            assert_eq!(disk["size"], fs::metadata(&raw).expect("a file").len(), "{what}");
            assert_eq!(with(&["info", "--json"], &image).succeeds().json()["format"], format, "{what}");
            assert!(with(&["cat"], &image).succeeds().out == plain, "{what}");
            if format == "BitLocker" {
                with(&["ls"], &image).succeeds();
            }
            assert!(fs::read(&image).expect("an image") == before, "{what}");
            fs::remove_file(image).expect("removed");
        }
    }
}

/// Debian's program makes the image, in several files; only the first one is named.
#[test]
fn a_forensic_image_is_read_like_the_disk() {
    let Some(acquire) = program("ewfacquirestream") else { return };
    let folder = Folder::new();
    for (format, raw, how) in volumes(&folder) {
        let with = |verb: &[&str], path: &str| run([verb, how, &["--password-file", &folder.password, path]].concat());
        let target = folder.str(format);
        let mut command = Command::new(&acquire);
        command.args(["-q", "-S", "1MiB", "-c", "none", "-t", &target]).stdin(fs::File::open(&raw).expect("a file"));
        tools::run(&mut command);
        let image = format!("{target}.E01");
        assert!(fs::exists(format!("{target}.E02")).expect("a folder"), "it is in several files");
        let before = fs::read(&image).expect("an image");
        let identified = run(["identify", "--json", &image]).succeeds().json();
        let mut candidates = identified[0]["disk"]["candidates"].as_array().expect(format).iter();
        assert!(candidates.any(|name| name == format), "{identified:#}");
        assert!(with(&["cat"], &image).succeeds().out == with(&["cat"], &raw).succeeds().out, "{format}");
        run(["keyslot", "add", &image]).fails(1, &["a forensic image is only read", "claviger mount --raw"]);
        assert!(fs::read(&image).expect("an image") == before);
        fs::remove_file(format!("{target}.E02")).expect("it is there");
        with(&["cat"], &image).fails(4, &["segment 2, which is missing"]);
    }
}

/// Without any credential: a question would fail otherwise.
#[test]
fn nothing_is_written_into_an_image_whose_format_is_not_named() {
    let Some(()) = qemu() else { return };
    let folder = Folder::new();
    let (image, file) = (folder.str("disk.vhdx"), folder.str("file"));
    convert(&luks2(&folder), ("vhdx", &[]), &image);
    fs::write(&file, "a file").expect("written");
    let before = fs::read(&image).expect("an image");
    let named = format!("vhdx:{image}");
    for (verb, more) in [
        (&["keyslot", "add"][..], &[][..]),
        (&["keyslot", "remove"], &[]),
        (&["keyslot", "change"], &[]),
        (&["change"], &[]),
        (&["header", "set", "--label", "x"], &[]),
        (&["header", "repair"], &[]),
        (&["header", "restore", "--yes", "--from", &file], &[]),
        (&["reencrypt", "--yes"], &[]),
        (&["reencrypt", "--yes", "--isolate-keys"], &[]),
        (&["resize", "--size", "1M"], &[]),
        (&["recovery", "make", "--output", &folder.str("key")], &[]),
        (&["token", "remove"], &["0"]),
        (&["cp"], &[&*file, ":/x"]),
    ] {
        let done = run(verb.iter().chain([&&*image]).chain(more));
        let words = ["a virtual disk of Hyper-V (VHDX)", "only read", &named];
        assert!(done.code == 1 && words.iter().all(|word| done.err.contains(word)), "{verb:?}: {done:?}");
        let command =
            format!("claviger {}", verb[..verb.len().min(2)].join(" ").split(" --").next().unwrap_or_default());
        assert!(done.err.contains(&command), "{verb:?}: {done:?}");
    }
    assert!(fs::read(&image).expect("an image") == before);
    // The kernel would map the bytes of the image.
    run(["attach", "--kernel", "--read-only", &image, "name"]).fails(5, &["in the kernel's dm-crypt"]);
    // As a file, it may be replaced.
    run(["create", "--quick", "--size", "2M", "--password-file", &folder.password, &image]).fails(1, &["--force"]);
    assert!(fs::read(&image).expect("an image") == before);
    // The command of the advice writes.
    let new = folder.str("new");
    fs::write(&new, "another").expect("a file");
    let add = ["keyslot", "add", "--kdf", "pbkdf2", "--iterations", "1000", "--password-file", &folder.password];
    run(add.into_iter().chain(["--new-password-file", &new, &named])).succeeds();
    run(["keyslot", "test", "--password-file", &new, &image]).succeeds();
    run(["header", "backup", &image, &folder.str("backup")]).succeeds();
    run(["convert", "--password-file", &new, "--raw", &image, &folder.str("copy")]).succeeds();
}

#[test]
fn an_image_is_served_and_mounted_read_only_under_its_own_name() {
    let Some(()) = qemu() else { return };
    let Some(mounts) = MountSpace::root() else { return };
    let folder = &mounts.folder;
    let (raw, image) = (bitlocker(folder), folder.str("disk.qcow2"));
    convert(&raw, ("qcow2", &[]), &image);
    let before = fs::read(&image).expect("an image");
    let served = Served::start(["--password-file", &folder.password, "--socket", &folder.str("s"), &image]);
    assert!(served.read_only);
    let said = served.stop().succeeds().err;
    let command = format!("claviger serve --password-file={}", folder.password);
    for word in ["so it is read-only", &*command, &format!("qcow2:{image}")] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // With the keys in another process, and nothing to say.
    let plain = run(["cat", "--password-file", &folder.password, &raw]).succeeds().out;
    if program("nbdcopy").is_some() {
        let copy = folder.str("copy");
        let served = ["serve", "--read-only", "--isolate-keys", "--password-file", &folder.password, "--run"];
        let done = run(served.into_iter().chain([&*format!("nbdcopy \"$uri\" {copy}"), &image])).succeeds();
        assert!(fs::read(&copy).expect("a file") == plain && !done.err.contains("so it is read-only"), "{done:?}");
    }
    for more in [&[][..], &["--isolate-keys"]] {
        let dir = mounts.dir(&format!("m{}", more.len()));
        let mount = ["mount", "--filesystem", "none", "--password-file", &folder.password, &image, &dir];
        let done = mounts.run(mount.iter().chain(more)).succeeds();
        assert_eq!(done.err.matches("so it is read-only").count(), 1, "{done:?}");
        assert!(!done.err.contains("ready-fd"), "{done:?}");
        let listed = &mounts.list()[0];
        assert_eq!((&listed["volume"], &listed["read_only"]), (&image.as_str().into(), &true.into()));
        let inside = Path::new(&dir).join("volume");
        assert!(fs::read(&inside).expect("it is readable") == plain);
        assert!(fs::OpenOptions::new().write(true).open(&inside).is_err());
        mounts.unmount(&image).succeeds();
        mounts.nothing_is_left();
    }
    assert!(fs::read(&image).expect("an image") == before);
}

/// A disk of 12 MiB whose second partition of two is the volume.
fn partitioned(folder: &Folder, volume: &str) -> Option<String> {
    let disk = folder.str("partitioned.raw");
    let mut bytes = vec![0; 12 << 20];
    let volume = fs::read(volume).expect("a volume");
    bytes[2 << 20..][..volume.len()].copy_from_slice(&volume);
    fs::write(&disk, bytes).expect("written");
    let mut sfdisk = Command::new(program("sfdisk")?);
    sfdisk.args(["--quiet", "--no-reread", "--no-tell-kernel", "--wipe", "never", "--wipe-partitions", "never"]);
    let mut child = sfdisk.arg(&disk).stdin(Stdio::piped()).spawn().expect("sfdisk starts");
    let script = b"label: gpt\nstart=2048, size=2048\nstart=4096, size=16384, name=\"sealed\"\n";
    child.stdin.take().expect("a pipe").write_all(script).expect("a script");
    assert!(child.wait().expect("sfdisk ends").success());
    Some(disk)
}

#[test]
fn identify_shows_what_is_in_an_image_as_a_tree() {
    let Some(()) = qemu() else { return };
    let folder = Folder::new();
    let Some(disk) = partitioned(&folder, &bitlocker(&folder)) else { return };
    let image = folder.str("disk.vhdx");
    convert(&disk, ("vhdx", &[]), &image);
    let text = run(["identify", &image]).succeeds().text();
    let tree = [
        format!("{image}: a virtual disk of Hyper-V (VHDX)\n"),
        "\n  the disk in it, 12 MiB: a disk with partitions that could be volumes\n".to_owned(),
        "\n    partition 1, 1 MiB, Linux: not a volume".to_owned(),
        "\n    partition 2 \"sealed\", 8 MiB, Linux: possibly BitLocker (--partition 2)\n".to_owned(),
        format!("`claviger explain --partition=2 {image}`"),
    ];
    assert!(tree.iter().all(|line| text.contains(line)), "{text}");
    let json = run(["identify", "--json", &image]).succeeds().json();
    assert_eq!((&json[0]["verdict"], &json[0]["image"]), (&"no".into(), &"a virtual disk of Hyper-V (VHDX)".into()));
    assert_eq!(json[0]["disk"]["partitions"][1]["formats"][0], "BitLocker");
    let with = ["--partition", "2", "--password-file", &folder.password, &image];
    run(["info"].iter().chain(&with)).succeeds();
    run(["ls"].iter().chain(&with)).succeeds();
    let explained = run(["explain"].iter().chain(&with)).succeeds().text();
    assert!(explained.contains("This is about the disk in it."), "{explained}");
}

#[test]
fn without_qemu_an_image_is_recognised_and_what_is_missing_is_said() {
    let Some(()) = qemu() else { return };
    let folder = Folder::new();
    let image = folder.str("disk.vhdx");
    convert(&luks2(&folder), ("vhdx", &[]), &image);
    fs::create_dir(folder.path("empty")).expect("a folder");
    let without = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        done(command.args(args).env("PATH", folder.path("empty")).stdin(Stdio::null()).output().expect("it starts"))
    };
    let words = ["qemu-img, which is not installed", "qemu-utils"];
    let identified = without(&["identify", &image]).fails(6, &words);
    assert_eq!(identified.text(), format!("{image}: a virtual disk of Hyper-V (VHDX)\n"));
    let json = without(&["identify", "--json", &image]).fails(6, &words).json();
    assert_eq!(json[0]["disk"]["error"]["exit_code"], 6);
    without(&["info", "--password-file", &folder.password, &image]).fails(6, &words);
    let explained = without(&["explain", "--without-password", &image]).fails(6, &[]).text();
    assert!(explained.contains("is not installed") && explained.contains("qemu-utils"), "{explained}");
}

/// A volume without a header may begin with any bytes.
#[test]
fn a_file_that_only_begins_like_an_image_is_the_volume_itself() {
    let folder = Folder::new();
    let (marked, other, key) = (folder.str("marked"), folder.str("other"), folder.str("key"));
    fs::write(&key, [7; 64]).expect("a key");
    let noise = noise(1 << 20, 1);
    for signature in [&b"QFI\xfb"[..], b"QED\0", b"KDMV", b"QFI\xfb\0\0\0\x03"] {
        fs::write(&marked, [signature, &noise[signature.len()..]].concat()).expect("written");
        fs::write(&other, &noise).expect("written");
        let cat = |path: &str| {
            let plain = ["cat", "--format", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512"];
            run(plain.into_iter().chain(["--keyfile", &key, path])).succeeds().out
        };
        let (opened, same) = (cat(&marked), cat(&other));
        assert_eq!(opened.len(), noise.len());
        assert!(opened[..16] != same[..16] && opened[512..] == same[512..], "{signature:?}");
        let identified = run(["identify", "--json", &marked]).json();
        assert!(identified[0]["image"].is_null() && identified[0]["begins_random"] == true, "{identified:#}");
    }
    // The last sector of an encrypted volume.
    let volume = luks2(&folder);
    let mut bytes = fs::read(&volume).expect("a volume");
    let last = bytes.len() - 512;
    bytes[last..][..8].copy_from_slice(b"conectix");
    fs::write(&volume, bytes).expect("written");
    let identified = run(["identify", "--json", &volume]).succeeds().json();
    assert!(identified[0]["image"].is_null() && identified[0]["format"] == "LUKS2", "{identified:#}");
}

#[test]
fn raw_names_the_bytes_of_the_file() {
    let Some(()) = qemu() else { return };
    let folder = Folder::new();
    let (raw, image) = (luks2(&folder), folder.str("fixed.vhd"));
    convert(&raw, ("vpc", &["-o", "subformat=fixed,force_size=on"]), &image);
    let identified = run(["identify", "--json", &image]).succeeds().json();
    assert_eq!(identified[0]["disk"]["format"], "LUKS2", "{identified:#}");
    let bytes = format!("raw:{image}");
    let identified = run(["identify", "--json", &bytes]).succeeds().json();
    assert_eq!((&identified[0]["format"], &identified[0]["image"]), (&"LUKS2".into(), &serde_json::Value::Null));
    run(["header", "set", "--label", "mine", &bytes]).succeeds();
    assert_eq!(run(["info", "--json", "--password-file", &folder.password, &image]).succeeds().json()["label"], "mine");
}

#[test]
fn a_split_disk_is_joined_from_its_parts() {
    let folder = Folder::new();
    let raw = luks2(&folder);
    let plain = run(["cat", "--password-file", &folder.password, &raw]).succeeds().out;
    let bytes = fs::read(&raw).expect("a volume");
    // The last part is shorter.
    let size = bytes.len() / 4 + 512;
    let parts: Vec<_> = (1..=4).map(|number| folder.str(&format!("disk.dd.{number:03}"))).collect();
    for (part, bytes) in parts.iter().zip(bytes.chunks(size)) {
        fs::write(part, bytes).expect("written");
    }
    let first = &*parts[0];
    let text = run(["identify", first]).succeeds().text();
    assert!(text.contains("a disk joined from 4 files") && text.contains("the disk in it, 2 MiB: LUKS2"), "{text}");
    let info = run(["info", "--password-file", &folder.password, first]).succeeds().text();
    assert!(info.contains("a disk joined from 4 files"), "{info}");
    assert!(run(["cat", "--password-file", &folder.password, first]).succeeds().out == plain);
    run(["explain", "--password-file", &folder.password, first]).succeeds();
    run(["keyslot", "add", first]).fails(1, &["a split disk is only read", "cat ", "disk.dd.004 >"]);
    // Only the bytes of the first part.
    run(["cat", "--password-file", &folder.password, &format!("raw:{first}")]).fails(4, &[]);
    fs::remove_file(&parts[2]).expect("removed");
    for verb in [&["identify"][..], &["cat", "--password-file", &folder.password]] {
        let missing = format!("the part {} of this split disk is missing", parts[2]);
        run(verb.iter().copied().chain([first])).fails(1, &[&missing, &format!("raw:{first}")]);
    }
    // A link to somebody's file is no part.
    std::os::unix::fs::symlink("/etc/hostname", &parts[2]).expect("a link");
    run(["identify", first]).fails(1, &["is not a regular file"]);
    fs::remove_file(&parts[2]).expect("removed");
    fs::write(&parts[2], &bytes[..size - 512]).expect("written");
    run(["identify", first]).fails(1, &["this part has", "the first part"]);
    // Two volumes are not one disk, and nothing is made under a name with `raw:`.
    let (one, other) = (folder.str("vol.001"), folder.str("vol.002"));
    fs::copy(&raw, &one).and(fs::copy(&raw, &other)).expect("copied");
    let identified = run(["identify", "--json", &one]).succeeds().json();
    assert_eq!((&identified[0]["format"], &identified[0]["image"]), (&"LUKS2".into(), &serde_json::Value::Null));
    let new = ["create", "--quick", "--size", "1M", "--password-file", &folder.password, &format!("raw:{other}")];
    run(new).fails(1, &["raw: is only for existing files"]);
    assert!(fs::read(&other).expect("read") == bytes && !Path::new(&format!("raw:{other}")).exists());
}

/// An image of macOS that is compressed in an encrypted one: dmg2img reads the same disk in it.
#[test]
fn a_compressed_image_of_macos_is_read() {
    let sample = std::env::var("HOME").expect("a home") + "/.cache/claviger-test-images/input_aes256.dmg";
    if !Path::new(&sample).exists() {
        return tools::skip("tools/install-deps.sh test downloads it").unwrap_or_default();
    }
    let Some(dmg2img) = program("dmg2img") else { return };
    let folder = Folder::new();
    let [password, plain, theirs, ours] = ["test123", "plain.dmg", "theirs", "ours"].map(|name| folder.str(name));
    fs::write(&password, "test123").expect("a password file");
    run(["ls", "--password-file", &password, &sample])
        .fails(3, &["it holds a disk image of macOS", "Copy the contents"]);
    let cat = run(["cat", "--password-file", &password, &sample]).succeeds();
    fs::write(&plain, cat.out).expect("an image");
    let named = run(["identify", &plain]);
    assert!(named.text().contains("a disk image of macOS (DMG)"), "{named:?}");
    tools::run(Command::new(dmg2img).args(["-s", "-i", &plain, "-o", &theirs]));
    let command = format!("nbdcopy \"$uri\" {ours}");
    run(["serve", "--raw", "--read-only", "--run", &command, &plain]).succeeds();
    let (ours, theirs) = (fs::read(&ours).expect("a disk"), fs::read(&theirs).expect("a disk"));
    assert!(ours.len() > 10 << 20 && ours.starts_with(&theirs), "{} and {} bytes", ours.len(), theirs.len());
    run(["serve", "--raw", &format!("dmg:{plain}")]).fails(6, &[]);
    let add = ["keyslot", "add", "--password-file", &password, "--new-password-file", &password, &plain];
    run(add).fails(1, &["such an image is only read", "make a copy"]);
}
