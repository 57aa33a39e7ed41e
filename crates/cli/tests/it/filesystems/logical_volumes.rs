//! LUKS volumes that hold LVM2, as the usual laptop's does: what is in their logical volumes is reached by name.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Credential, Secret, Store, Unlock, Volume, formats};
use claviger_testkit::lvm2::{DATA, EXTENT, Recipe, linear, volume};
use claviger_testkit::tools;

use crate::common::mounts::MountSpace;
use crate::common::*;

/// Extents of the file systems: the FAT lies in two parts, behind each other in the wrong order.
const EXT: usize = 512;
const FAT: usize = 256;

/// A LUKS2 volume, and the same physical volume of LVM2 in the clear.
struct Laptop {
    luks: String,
    clear: String,
    ext: Vec<u8>,
}

fn image(folder: &Folder, mkfs: &str, args: &[&str], extents: usize) -> Option<PathBuf> {
    let path = folder.path(mkfs);
    fs::File::create(&path).and_then(|f| f.set_len((extents * EXTENT) as u64)).expect("an image");
    tools::run(Command::new(tools::program(mkfs)?).args(args).arg(&path));
    Some(path)
}

fn laptop(folder: &Folder, sector: &str) -> Option<Laptop> {
    let readme = folder.path("files/readme");
    fs::create_dir_all(folder.path("files/letters")).expect("a folder");
    fs::write(&readme, "hello").expect("a file");
    let ext = image(folder, "mkfs.ext4", &["-q", "-F", "-b", "4096", "-d", &folder.str("files")], EXT)?;
    let fat = image(folder, "mkfs.vfat", &["-F", "12"], FAT)?;
    let (ext, fat) = (fs::read(ext).expect("an image"), fs::read(fat).expect("an image"));
    let half = FAT / 2;
    let volumes = [
        volume("root", &[(EXT, &linear(half))]),
        volume("fat", &[(half, &linear(half + EXT)), (half, &linear(0))]),
        volume("thin", &[(9, "type = \"thin\"\nthin_pool = \"pool\"")]),
    ];
    let mut bytes = Recipe::new(EXT + FAT, &volumes.concat()).make();
    let (second, first) = (&fat[half * EXTENT..], &fat[..half * EXTENT]);
    for (at, part) in [(0, second), (half, &ext), (half + EXT, first)] {
        bytes[DATA + at * EXTENT..][..part.len()].copy_from_slice(part);
    }
    let (luks, clear) = (folder.str("laptop.luks"), folder.str("laptop.img"));
    fs::write(&clear, &bytes).expect("written");
    let create = ["create", "--format", "LUKS2", "--quick", "--size", "24M", "--kdf", "pbkdf2", "--iterations", "1000"];
    run(create.into_iter().chain(["--sector-size", sector, "--password-file", &folder.password, &luks])).succeeds();
    let store: Arc<dyn Store> = Arc::new(FileStore::open(luks.as_ref(), Access::ReadWrite).expect("it opens"));
    let (_, header) = formats::open(&store, None).expect("a header");
    let credentials = [Credential::Passphrase(Secret::copy_from(PASSWORD.as_bytes()))];
    let plaintext = Volume::new(store, header.unlock(&Unlock::with(&credentials)).expect("it opens").layout);
    plaintext.write_clobbering(0, &mut bytes).and_then(|()| plaintext.flush()).expect("written");
    Some(Laptop { luks, clear, ext })
}

#[test]
fn a_volume_is_reencrypted_while_a_logical_volume_in_it_is_served() {
    let folder = Folder::new();
    let Some(Laptop { luks, ext, .. }) = laptop(&folder, "512") else { return };
    let socket = folder.str("s");
    let serve = ["--logical-volume", "root", "--password-file", &folder.password, "--socket", &socket, &luks];
    let served = Served::start(serve);
    run(["reencrypt", "--yes", "--password-file", &folder.password, &luks]).succeeds();
    served.stop().succeeds();
    let cat = run(["cat", "--logical-volume", "root", "--password-file", &folder.password, &luks]).succeeds();
    assert!(cat.out == ext);
}

#[test]
fn files_in_logical_volumes_are_reached_by_name() {
    let folder = Folder::new();
    let Some(Laptop { luks, ext, .. }) = laptop(&folder, "512") else { return };
    let on = |verb: &[&str], rest: &[&str]| run([verb, &["--password-file", &folder.password, &luks], rest].concat());
    on(&["ls"], &[]).fails(3, &["a physical volume of LVM2", "Choose one with --logical-volume: vg/fat, vg/root."]);
    for name in ["root", "vg/root"] {
        let list = on(&["ls", "--json", "--logical-volume", name], &[]).succeeds().json();
        assert_eq!(list["filesystem"]["kind"], "ext4", "{list}");
        assert!(list["entries"].as_array().expect("a list").iter().any(|entry| entry["name"] == "letters"));
    }
    assert!(on(&["tree", "--logical-volume", "root"], &[]).succeeds().text().contains("readme"));
    assert_eq!(on(&["cat", "--logical-volume", "root", "--file", "/readme"], &[]).succeeds().out, b"hello");
    assert!(on(&["cat", "--logical-volume", "root"], &[]).succeeds().out == ext);

    fs::write(folder.path("note"), vec![7; 800_000]).expect("a file");
    on(&["cp", "--logical-volume", "vg/fat"], &[&folder.str("note"), ":/note"]).succeeds();
    on(&["cp", "--logical-volume", "vg/fat"], &[":/note", &folder.str("copy")]).succeeds();
    assert!(fs::read(folder.path("copy")).expect("a copy") == [7; 800_000]);
    assert!(on(&["cat", "--logical-volume", "root"], &[]).succeeds().out == ext, "its neighbour is as it was");
    if let Some(fsck) = tools::program("fsck.vfat") {
        let fat = folder.path("fat");
        fs::write(&fat, on(&["cat", "--logical-volume", "fat"], &[]).succeeds().out).expect("written");
        tools::run(Command::new(fsck).arg("-n").arg(fat));
    }

    on(&["ls", "--logical-volume", "vg/thin"], &[]).fails(5, &["vg/thin: it is of type thin"]);
    on(&["ls", "--logical-volume", "home"], &[]).fails(1, &["there is no logical volume home", "vg/root"]);
    let files = folder.str("files");
    run(["ls", "--format", "clear", "--logical-volume", "root", &files])
        .fails(1, &["no partitions or logical volumes"]);
}

#[test]
fn info_tells_of_the_logical_volumes() {
    let folder = Folder::new();
    let Some(Laptop { luks, .. }) = laptop(&folder, "512") else { return };
    let text = run(["info", "--password-file", &folder.password, &luks]).succeeds().text();
    assert!(text.contains("logical volume  vg/root, 4 MiB\n"), "{text}");
    assert!(text.contains("vg/thin, 72 KiB; cannot be opened: it is of type thin\n"), "{text}");
    let json = run(["info", "--json", "--password-file", &folder.password, &luks]).succeeds().json();
    let volumes = &json["logical_volumes"]["volumes"];
    assert_eq!((&volumes[0]["name"], &volumes[0]["len"]), (&"fat".into(), &((FAT * EXTENT) as u64).into()));
    assert!(volumes[2]["refused"].is_string() && volumes[1].get("refused").is_none(), "{json}");
    let none = folder.luks2("none");
    let json = run(["info", "--json", "--password-file", &folder.password, &none]).succeeds().json();
    assert!(json.get("logical_volumes").is_none(), "{json}");
}

#[test]
fn a_logical_volume_is_served_as_a_disk() {
    let folder = Folder::new();
    let Some(Laptop { luks, clear, ext }) = laptop(&folder, "512") else { return };
    let Some(_) = tools::program("nbdcopy") else { return };
    let copy = folder.str("copy");
    let command = format!("nbdcopy \"$uri\" {copy}");
    let serve = ["serve", "--logical-volume", "root", "--read-only", "--run", &command];
    for more in [&["--password-file", &folder.password, &luks][..], &["--raw", &clear]] {
        let _ = fs::remove_file(&copy);
        run([&serve[..], more].concat()).succeeds();
        assert!(fs::read(&copy).expect("a copy") == ext);
    }
    run(["serve", "--logical-volume", "home", "--raw", "--run", "true", &clear])
        .fails(1, &["there is no logical volume"]);
}

/// Over sectors of 4096 bytes, too, for which LVM2 itself needs nothing.
#[test]
fn logical_volumes_are_mounted_by_the_kernel() {
    for (sector, isolate) in [("512", &[][..]), ("4096", &["--isolate-keys"])] {
        let Some(place) = MountSpace::root() else { return };
        let Some(Laptop { luks, clear, .. }) = laptop(&place.folder, sector) else { return };
        let dir = place.dir("d");
        let password = ["--password-file", &place.folder.password];
        let mount = |more: &[&str]| place.run([&["mount", "--json"][..], more, &[&dir]].concat());
        let plain = mount(&[&password[..], &[&luks]].concat());
        plain.fails(3, &["--logical-volume: vg/fat, vg/root", "--filesystem none"]);
        let done = mount(&[&password[..], isolate, &["--logical-volume", "root", &luks]].concat()).succeeds();
        assert!(!done.err.contains("The file system expects"), "{}", done.err);
        let report = done.json();
        assert_eq!(
            (&report["filesystem"], &report["sector_size"]),
            (&"ext4".into(), &sector.parse::<u64>().expect("n").into())
        );
        assert_eq!(fs::read_to_string(format!("{dir}/readme")).expect("a file"), "hello");
        fs::write(format!("{dir}/letters/new"), vec![9; 100_000]).expect("written");
        place.unmount(&dir).succeeds();
        let cat = ["cat", "--logical-volume", "root", "--file", "/letters/new"];
        assert!(place.run([&cat[..], &password, &[&luks]].concat()).succeeds().out == [9; 100_000]);
        let out = place.run([&["cat", "--logical-volume", "root"][..], &password, &[&luks]].concat()).succeeds().out;
        let root = place.folder.path("root");
        fs::write(&root, out).expect("written");
        tools::run(Command::new(tools::program("e2fsck").expect("beside mkfs.ext4")).args(["-fn"]).arg(root));

        // What was made for smaller sectors mounts, with a warning.
        let fat = mount(&[&password[..], &["--logical-volume", "fat", "--read-only", &luks]].concat()).succeeds();
        assert_eq!(fat.err.contains("The file system expects 512-byte sectors"), sector == "4096", "{}", fat.err);
        place.unmount(&dir).succeeds();
        // In the clear; and as one file.
        mount(&["--raw", "--read-only", "--logical-volume", "vg/root", &clear]).succeeds();
        assert_eq!(fs::read_to_string(format!("{dir}/readme")).expect("a file"), "hello");
        place.unmount(&dir).succeeds();
        mount(&["--raw", "--filesystem", "none", "--logical-volume", "vg/root", &clear]).succeeds();
        assert_eq!(fs::metadata(format!("{dir}/volume")).expect("a file").len(), (EXT * EXTENT) as u64);
        place.unmount(&dir).succeeds();
        place.nothing_is_left();
    }
}
