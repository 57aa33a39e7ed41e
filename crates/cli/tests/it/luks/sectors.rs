//! Volumes with sectors of 4096 bytes: what is shown of that, and whether what is made in them mounts everywhere.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::{tools, uml};

/// A volume of LUKS2 whose sectors have `sector` bytes.
fn volume(folder: &Folder, name: &str, size: &str, sector: &str) -> String {
    let path = folder.str(name);
    let args = ["create", "--format", "LUKS2", "--quick", "--size", size, "--iterations", "1000", "--kdf", "pbkdf2"];
    let more = ["--sector-size", sector, "--password-file", &folder.password, &path];
    run([&args[..], &more].concat()).succeeds();
    path
}

/// The smallest and the preferred block size, as nbdinfo reports them.
fn blocks(uri: &str) -> Option<(u64, u64)> {
    let output = tools::run(Command::new(tools::program("nbdinfo")?).args(["--json", uri]));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let size = |name: &str| json["exports"][0][name].as_u64().expect("a size");
    Some((size("block_size_minimum"), size("block_size_preferred")))
}

#[test]
fn nbd_clients_see_the_sectors_of_the_volume_or_those_of_what_is_in_it() {
    let Some(mke2fs) = tools::program("mke2fs") else { return };
    let folder = Folder::new();
    let socket = folder.str("s");
    for (sector, expected) in [("512", (1, 4096)), ("4096", (4096, 4096))] {
        let path = volume(&folder, sector, "24M", sector);
        let serve = || Served::start(["--password-file", &folder.password, "--socket", &socket, &path]);
        let served = serve();
        let Some(seen) = blocks(&served.uri) else { return };
        assert_eq!(seen, expected, "{sector}");
        // A file system with smaller blocks, from a program that does not ask.
        let (image, nbdcopy) = (folder.path("image"), tools::program("nbdcopy"));
        fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("an image");
        tools::run(Command::new(&mke2fs).args(["-q", "-F", "-b", "1024"]).arg(&image));
        let Some(nbdcopy) = nbdcopy else { return };
        tools::run(Command::new(nbdcopy).arg(&image).arg(&served.uri));
        served.stop().succeeds();
        let served = serve();
        let small = sector == "512";
        assert_eq!(blocks(&served.uri), Some(if small { (1, 4096) } else { (1024, 4096) }), "{sector}");
        let said = served.stop().succeeds().err;
        assert_eq!(said.contains("expects 1024-byte sectors") && said.contains("cryptsetup"), !small, "{said}");
    }
}

#[test]
fn mounted_it_shows_them_too() {
    let Some(place) = MountSpace::root() else { return };
    let folder = &place.folder;
    let text = |program: &str, args: &[&str]| {
        let output = tools::run(place.command(program).args(args));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    // With the printed command, and as a program does that does not know the sector size.
    for (name, blocks, sectors) in [("right", "4096", "4096"), ("small", "1024", "1024")] {
        let path = volume(folder, name, "40M", "4096");
        let dir = place.dir(&format!("{name}-dir"));
        let mount = |more: &[&str]| {
            place.run([&["mount", "--password-file", &folder.password, &path, &dir], more].concat()).succeeds()
        };
        let told = mount(&["--filesystem", "none"]).text();
        assert!(told.contains("mkfs.ext4 -b 4096"), "{told}");
        let file = format!("{dir}/volume");
        assert_eq!(text("stat", &["-c", "%o", &file]), "4096");
        assert_eq!(text("stat", &["-f", "-c", "%S", &file]), "4096");
        tools::run(place.command("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", blocks, &file]));
        place.unmount(&dir).succeeds();

        // A file system for smaller sectors is still mounted.
        let said = mount(&[]).err;
        assert_eq!(
            said.contains("expects 1024-byte sectors") && said.contains("cryptsetup"),
            blocks == "1024",
            "{said}"
        );
        let device = place.list()[0]["loop_device"].as_str().expect("a loop device").to_owned();
        assert_eq!(text("blockdev", &["--getss", &device]), sectors);
        fs::write(format!("{dir}/file"), name).expect("written");
        place.unmount(&dir).succeeds();
        mount(&["--read-only"]);
        assert_eq!(fs::read_to_string(format!("{dir}/file")).expect("it is there"), name);
        place.unmount(&dir).succeeds();
    }
    let small = volume(folder, "512", "20M", "512");
    let dir = place.dir("512-dir");
    let json =
        place.run(["mount", "--json", "--filesystem", "none", "--password-file", &folder.password, &small, &dir]);
    assert_eq!(json.succeeds().json()["sector_size"], 512);
    assert_eq!(text("stat", &["-f", "-c", "%S", &format!("{dir}/volume")]), "512");
    place.unmount(&dir).succeeds();
}

/// File systems that are made without a word about sectors on the disk that is shown mount with cryptsetup; those that were made
/// for 512 bytes do not, and that is what the warning says.
#[test]
fn what_is_made_on_the_disk_that_is_shown_mounts_with_cryptsetup() {
    for program in ["cryptsetup", "nbd-client", "mkfs.ext4", "mkfs.vfat", "mkfs.xfs"] {
        let Some(_) = tools::program(program) else { return };
    }
    let folder = Folder::new();
    fs::write(folder.path("key"), PASSWORD).expect("a key file");
    let kinds = [("ext4", "40M"), ("vfat", "340M"), ("xfs", "340M")];
    let paths = kinds.map(|(kind, size)| volume(&folder, kind, size, "4096"));
    let old = volume(&folder, "old", "40M", "4096");
    let mut script = format!(
        r#"set -eux
cd {folder}
modprobe -qa nbd dm-crypt xts aes fuse vfat nls-cp437 nls-iso8859-1 nls-ascii xfs loop
serve() {{
    # Not what the last server said: the shell empties the file only when the next one begins.
    : >/run/said
    {claviger} serve --password-file {password} --socket /run/s $1 >/run/said 2>&1 &
    server=$!
    while ! grep Ctrl-C /run/said; do sleep 0.1; done
    client=$(sed -n 's/^As a disk (root): *//p' /run/said)
    ${{2:-$client}} >/run/client 2>&1
}}
stop() {{
    nbd-client -d /dev/nbd0
    while [ -e /sys/block/nbd0/pid ]; do :; done
    kill $server
    wait $server
}}
mkdir /mnt/x
"#,
        folder = folder.path("").display(),
        claviger = env!("CARGO_BIN_EXE_claviger"),
        password = folder.password,
    );
    for ((kind, _), path) in kinds.iter().zip(&paths) {
        script += &format!(
            "serve {path}
             test $(blockdev --getss /dev/nbd0) = 4096
             mkfs.{kind} /dev/nbd0 >/run/mkfs 2>&1 || {{ cat /run/mkfs; exit 1; }}
             stop
             cryptsetup open --key-file key {path} x
             test $(blockdev --getss /dev/mapper/x) = 4096
             mount -t {kind} /dev/mapper/x /mnt/x
             cp /bin/sh /mnt/x/sh
             umount /mnt/x
             cryptsetup close x
             serve {path}
             mount -t {kind} -o ro /dev/nbd0 /mnt/x
             cmp /bin/sh /mnt/x/sh
             umount /mnt/x
             stop
             ! grep 'The file system expects' /run/said\n"
        );
    }
    // One of before: a FAT of 512 bytes, which mounts here, and not with cryptsetup.
    script += &format!(
        "serve {old} 'nbd-client -unix /run/s /dev/nbd0'
         mkfs.vfat -S 512 /dev/nbd0 >/run/mkfs 2>&1 || {{ cat /run/mkfs; exit 1; }}
         stop
         cryptsetup open --key-file key {old} x
         ! mount -t vfat /dev/mapper/x /mnt/x
         cryptsetup close x
         serve {old}
         test $(blockdev --getss /dev/nbd0) = 512
         mount -t vfat /dev/nbd0 /mnt/x
         cp /bin/sh /mnt/x/sh
         umount /mnt/x
         stop
         grep 'expects 512-byte sectors' /run/said
         echo all is well\n"
    );
    let Some(done) = uml::run(&script, &[] as &[&Path], 240) else { return };
    assert!(done.status == 0 && done.output.ends_with("all is well\n"), "{}: {}", done.status, done.output);
}

/// A master boot record does not say how large a sector is: one that was made in sectors of 4096 bytes is not taken for one of 512,
/// whose partitions would be elsewhere, and one that was made for 512 still is.
#[test]
fn a_master_boot_record_keeps_its_sectors() {
    let folder = Folder::new();
    let (path, socket) = (volume(&folder, "v", "24M", "4096"), folder.str("s"));
    let (Some(mke2fs), Some(nbdcopy)) = (tools::program("mke2fs"), tools::program("nbdcopy")) else { return };
    for (sector, expected) in [(4096, (4096, 4096)), (512, (1, 4096))] {
        // One partition that begins at 1 MiB and has 4 MiB (UEFI specification 2.10, section 5.2.1).
        let (begins, len) = (1u32 << 20, 4u32 << 20);
        let image = folder.path("image");
        let inside = folder.path("inside");
        fs::File::create(&inside).and_then(|file| file.set_len(len.into())).expect("an image");
        tools::run(Command::new(&mke2fs).args(["-q", "-F", "-b", "4096"]).arg(&inside));
        let mut disk = vec![0; 8 << 20];
        disk[446 + 4] = 0x83;
        disk[446 + 8..446 + 12].copy_from_slice(&(begins / sector).to_le_bytes());
        disk[446 + 12..446 + 16].copy_from_slice(&(len / sector).to_le_bytes());
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[begins as usize..][..len as usize].copy_from_slice(&fs::read(&inside).expect("an image"));
        fs::write(&image, disk).expect("a disk");
        let serve = || Served::start(["--password-file", &folder.password, "--socket", &socket, &path]);
        let served = serve();
        tools::run(Command::new(&nbdcopy).arg(&image).arg(&served.uri));
        served.stop().succeeds();
        let served = serve();
        let Some(seen) = blocks(&served.uri) else { return };
        assert_eq!(seen, expected, "{sector}");
        served.stop().succeeds();
    }
}
