//! A store as a mounted file: what ordinary programs see of it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::thread;

use crate::mounted::{MountedFolder, NOBODY, as_nobody, as_user, transports};
use claviger_testkit::random::Random;
use claviger_testkit::tools::{self, program, run};

const EPERM: i32 = 1;
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;

fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("it must fail").raw_os_error().expect("from the kernel")
}

/// Memory at a page.
fn page_aligned(len: usize) -> (Vec<u8>, usize) {
    let memory = vec![0; len + 4096];
    let skip = (memory.as_ptr() as usize).wrapping_neg() % 4096;
    (memory, skip)
}

#[test]
fn reads_and_writes_at_any_place_are_those_of_a_file() {
    let Some(transports) = transports() else { return };
    for (transport, xts) in transports.into_iter().flat_map(|t| [(t, false), (t, true)]) {
        let mut random = Random::new(7);
        // The plaintext of sectors is whole sectors.
        let len = if xts { (5 << 20) + 512 } else { (5 << 20) + 777 };
        let mut model = random.bytes(len);
        let place = MountedFolder::new(&vec![0; len]);
        let words = if xts { vec![transport, "xts"] } else { vec![transport] };
        let mut server = place.serve(&words);
        assert_eq!(server.transport, transport);
        let (file, other, direct) = (server.open(), server.open(), server.open_direct());
        file.write_all_at(&model, 0).expect("it fits");

        let (mut memory, skip) = page_aligned(2 << 20);
        for round in 0..600 {
            let largest = *random.choose(&[1, 17, 512, 5000, 70_000, 2 << 20]);
            let at = random.below(len);
            let size = (1 + random.below(largest)).min(len - at);
            match random.below(5) {
                0 => {
                    let data = random.bytes(size);
                    file.write_all_at(&data, at as u64).expect("it fits");
                    model[at..at + size].copy_from_slice(&data);
                }
                1 => {
                    // Writes as programs with O_DIRECT do for speed: whole blocks from aligned memory.
                    let (at, size) = (at / 512 * 512, (size / 512 * 512).clamp(512, 2 << 20));
                    let size = size.min((len - at) / 512 * 512);
                    let data = &mut memory[skip..skip + size];
                    data.copy_from_slice(&random.bytes(size));
                    direct.write_all_at(data, at as u64).expect("it fits");
                    model[at..at + size].copy_from_slice(data);
                }
                2 => {
                    let data = &mut memory[skip..skip + size];
                    direct.read_exact_at(data, at as u64).expect("it is there");
                    assert!(data == &model[at..at + size], "{transport}, round {round}: direct read of {size} at {at}");
                }
                _ => {
                    let file = if round % 2 == 0 { &file } else { &other };
                    // Memory at an odd address as well.
                    let data = &mut memory[skip + round % 3..][..size];
                    file.read_exact_at(data, at as u64).expect("it is there");
                    assert!(data == &model[at..at + size], "{transport}, round {round}: read of {size} at {at}");
                }
            }
        }
        assert_eq!(file.read_at(&mut memory[..100], len as u64).expect("the end"), 0);
        assert_eq!(file.read_at(&mut memory[..100], len as u64 - 40).expect("up to the end"), 40);
        file.sync_all().expect("durable");
        let mut whole = vec![0; len];
        other.read_exact_at(&mut whole, 0).expect("it is there");
        assert!(whole == model, "{transport}");
        drop((file, other, direct));
        assert!(server.stop().success());
        assert_eq!(place.mount_line(), None);
        assert!(if xts { place.bytes() != model } else { place.bytes() == model }, "{transport}");
    }
}

#[test]
fn the_faster_transport_is_taken_where_it_is_allowed() {
    let Some(_) = transports() else { return };
    let place = MountedFolder::new(&[1; 1000]);
    let mut server = place.serve(&[]);
    assert_eq!(server.transport, "uring");
    assert_eq!(fs::read(server.file()).expect("it can be read"), [1; 1000]);
    assert!(server.stop().success());
}

#[test]
fn many_programs_at_once_do_not_disturb_each_other() {
    let Some(transports) = transports() else { return };
    const PART: usize = 1 << 20;
    for transport in transports {
        let place = MountedFolder::new(&vec![0; 4 * PART]);
        let server = place.serve(&[transport, "xts"]);
        thread::scope(|scope| {
            for part in 0..4 {
                let file = server.open();
                scope.spawn(move || {
                    let mut random = Random::new(part as u64);
                    let mut model = random.bytes(PART);
                    file.write_all_at(&model, (part * PART) as u64).expect("it fits");
                    for _ in 0..150 {
                        let at = random.below(PART);
                        let size = (1 + random.below(30_000)).min(PART - at);
                        let data = random.bytes(size);
                        file.write_all_at(&data, (part * PART + at) as u64).expect("it fits");
                        model[at..at + size].copy_from_slice(&data);
                        let at = random.below(PART);
                        let mut back = vec![0; (1 + random.below(30_000)).min(PART - at)];
                        file.read_exact_at(&mut back, (part * PART + at) as u64).expect("it is there");
                        assert!(back == model[at..at + back.len()], "{transport}, part {part}");
                    }
                });
            }
        });
    }
}

#[test]
fn fio_finds_again_what_it_has_written_asynchronously() {
    let Some(transports) = transports() else { return };
    let Some(fio) = program("fio") else { return };
    for transport in transports {
        let place = MountedFolder::new(&vec![0; 16 << 20]);
        let server = place.serve(&[transport, "xts"]);
        for (block, engine) in [("4k-64k", "libaio"), ("1m-2m", "io_uring")] {
            let mut command = Command::new("timeout");
            command.arg("60").arg(&fio).args([
                "--name=t",
                "--rw=randwrite",
                "--direct=1",
                "--iodepth=16",
                "--size=16m",
            ]);
            command.args([format!("--bsrange={block}"), format!("--ioengine={engine}")]);
            command.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--allow_file_create=0"]);
            // Where it may leave files of its own.
            run(command.arg(format!("--filename={}", server.file().display())).current_dir(place.dir.path()));
        }
    }
}

#[test]
fn the_file_stays_as_large_as_it_is_and_the_only_one() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let before: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        let place = MountedFolder::new(&before);
        let server = place.serve(&[transport]);
        let (path, file) = (server.file(), server.open());
        assert_eq!(number(file.write_all_at(b"x", 100_000)), ENOSPC);
        assert_eq!(number(file.write_all_at(b"x", 1 << 40)), ENOSPC);
        assert_eq!(file.write_at(b"abcdef", 99_998).expect("as far as it goes"), 2);
        let append = OpenOptions::new().append(true).open(&path).expect("it opens");
        assert_eq!(number(io::Write::write_all(&mut &append, b"x")), ENOSPC);
        file.set_len(100_000).expect("that is its size");
        assert_eq!((number(file.set_len(100_001)), number(file.set_len(99_999))), (EFBIG, EPERM));
        assert_eq!((number(File::create(&path)), number(fs::write(&path, b"x"))), (EPERM, EPERM));
        assert_eq!(number(rustix_fallocate(&file)), EOPNOTSUPP);
        let beside = path.with_file_name("other");
        assert_eq!((number(File::create(&beside)), number(fs::create_dir(&beside))), (EPERM, EPERM));
        assert_eq!((number(fs::rename(&path, &beside)), number(fs::remove_file(&path))), (EPERM, EPERM));
        assert_eq!(number(std::os::unix::fs::symlink("x", &beside)), EPERM);
        assert_eq!(number(fs::hard_link(&path, &beside)), EPERM);
        assert_eq!(number(fs::set_permissions(&path, Permissions::from_mode(0o666))), EPERM);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("that is its mode");
        assert_eq!(number(std::os::unix::fs::chown(&path, Some(NOBODY), None)), EPERM);
        file.set_modified(std::time::SystemTime::now()).expect("accepted");
        assert!(fs::metadata(&beside).is_err());
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 100_000);
        let listed: Vec<_> = fs::read_dir(path.parent().expect("the folder")).expect("it is there").collect();
        assert_eq!(listed.len(), 1);
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(5)).expect("data");
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)).expect("the end");
        assert_eq!((data, hole), (5, 100_000));
        drop(server);
        assert_eq!((place.bytes().len(), &place.bytes()[..99_998]), (100_000, &before[..99_998]));
    }
}

fn rustix_fallocate(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 4096)?)
}

#[test]
fn a_mapped_file_is_read_and_written() {
    let Some(transports) = transports() else { return };
    let Some(python) = program("python3") else { return };
    let script = r"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 0)
assert m[70000:70004] == b'\x70\x71\x72\x73', m[70000:70004]
m[5000:5005] = b'hello'
m.flush()
assert os.pread(fd, 5, 5000) == b'hello'
";
    for transport in transports {
        let place = MountedFolder::new(&(0..100_000).map(|i| i as u8).collect::<Vec<_>>());
        let server = place.serve(&[transport]);
        run(Command::new("timeout").arg("60").arg(&python).args(["-c", script]).arg(server.file()));
        assert_eq!(&place.bytes()[4999..5006], b"\x87hello\x8d");
    }
}

#[test]
fn it_belongs_to_its_owner_alone() {
    let Some(transports) = transports() else { return };
    let Some(_) = program("setpriv") else { return };
    let place = MountedFolder::new(&[0; 4096]);
    let server = place.serve(&[transports[0]]);
    let (file, folder) = (fs::metadata(server.file()), fs::metadata(place.folder()));
    let (file, folder) = (file.expect("it is there"), folder.expect("it is there"));
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o600, 0, 0));
    assert_eq!((folder.mode() & 0o7777, folder.uid(), folder.gid()), (0o500, 0, 0));
    assert!(!as_nobody().arg("cat").arg(server.file()).output().expect("it runs").status.success());
    assert!(!as_nobody().arg("ls").arg(place.folder()).output().expect("it runs").status.success());
    let line = place.mount_line().expect("it is mounted");
    assert!(line.contains("nosuid,nodev") && line.contains(" fuse.claviger claviger "), "{line}");
    drop(server);

    // Root mounts for somebody else.
    let server = place.serve(&[transports[1], &format!("uid={NOBODY}"), &format!("gid={NOBODY}"), "source=a,b c"]);
    assert_eq!(fs::metadata(server.file()).expect("root may").uid(), NOBODY);
    let line = place.mount_line().expect("it is mounted");
    assert!(line.contains(" fuse.claviger a,b\\040c "), "{line}");
    run(as_nobody()
        .args(["dd", "if=/dev/zero", "bs=4096", "count=1", "conv=notrunc,fsync"])
        .arg(format!("of={}", server.file().display())));
    run(as_nobody().arg("cat").arg(server.file()));
    assert!(!as_user(NOBODY - 1).arg("cat").arg(server.file()).output().expect("it runs").status.success());
}

#[test]
fn nothing_is_written_through_a_read_only_mount() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let place = MountedFolder::new(&[7; 50_000]);
        let before = fs::metadata(place.backing()).expect("it is there");
        let mut server = place.serve(&[transport, "read-only"]);
        let path = server.file();
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o7777, 0o400);
        assert_eq!(number(OpenOptions::new().write(true).open(&path)), EROFS);
        assert_eq!(number(File::create(path.with_file_name("x"))), EROFS);
        assert_eq!(number(fs::remove_file(&path)), EROFS);
        assert_eq!(number(fs::set_permissions(&path, Permissions::from_mode(0o600))), EROFS);
        assert!(place.mount_line().expect("it is mounted").contains(" ro,nosuid,nodev"));
        assert_eq!(fs::read(&path).expect("it can be read"), [7; 50_000]);
        assert!(server.stop().success());
        let after = fs::metadata(place.backing()).expect("it is there");
        let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
        assert_eq!(times(&before), times(&after));
        assert_eq!(place.bytes(), [7; 50_000]);
    }
}

#[test]
fn errors_of_the_store_reach_the_program_that_asked() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let place = MountedFolder::new(&vec![1; 1 << 20]);
        let words = [transport, "bad=70000", "refuse=5000", "short=100", "lossy"];
        let server = place.serve(&words);
        let file = server.open();
        let mut data = vec![0; 1 << 20];
        assert_eq!(number(file.read_exact_at(&mut data[..10_000], 65_000)), EIO);
        assert_eq!(number(file.write_all_at(&[2; 10_000], 65_000)), EIO);
        assert_eq!(number(file.write_all_at(&[2; 10], 4995)), EIO, "{transport}: refused, in a file that is writable");
        assert_eq!(number(file.read_exact_at(&mut data[..200], (1 << 20) - 200)), EIO);
        file.read_exact_at(&mut data[..65_000], 0).expect("all is well here");
        assert_eq!(data[..65_000], [1; 65_000]);
        file.write_all_at(&[3; 100], 100).expect("and here");
        // A lost write stays lost, so each later fsync reports it.
        assert_eq!((number(file.sync_all()), number(file.sync_all())), (EIO, EIO));
        drop((file, server));
        let bytes = place.bytes();
        assert!(bytes[..100] == [1; 100] && bytes[100..200] == [3; 100] && bytes[200..] == vec![1; (1 << 20) - 200]);
    }
}

#[test]
fn a_user_without_privileges_mounts_through_the_helper() {
    let Some(transports) = transports() else { return };
    let Some(_) = program("fusermount3") else { return };
    let Some(_) = program("setpriv") else { return };
    for transport in transports {
        let place = MountedFolder::new(&vec![5; 100_000]);
        let mut server = place.serve_as_nobody(&[transport, "source=a,b\\c"]);
        assert_eq!(server.transport, transport);
        let line = place.mount_line().expect("it is mounted");
        assert!(line.contains("nosuid,nodev") && line.contains(" fuse.claviger a,b\\134c "), "{line}");
        // Not even root may read another user's mount: the kernel's rule for such mounts.
        assert_eq!(number(File::open(server.file())), EACCES);
        let copy = place.dir.path().join("copy");
        run(as_nobody().arg("cp").arg(server.file()).arg(&copy));
        assert_eq!(fs::read(&copy).expect("it is there"), vec![5; 100_000]);
        let write = format!("printf hello | dd of='{}' bs=5 seek=3 conv=notrunc,fsync", server.file().display());
        run(as_nobody().args(["sh", "-c", &write]));
        assert_eq!(&place.bytes()[14..21], b"\x05hello\x05");
        assert!(server.stop().success());
        assert_eq!(place.mount_line(), None);
        drop(server);
        let mut server = place.serve_as_nobody(&[transport, "read-only"]);
        assert!(place.mount_line().expect("it is mounted").contains(" ro,nosuid,nodev"));
        // And is told so by the helper's own means.
        run(as_nobody().args(["fusermount3", "-u"]).arg(place.folder()));
        assert!(server.ended().success());
    }
}

#[test]
fn a_file_system_on_a_loop_device_lives_on_it() {
    let Some(transports) = transports() else { return };
    for tool in ["losetup", "mkfs.ext4", "e2fsck"] {
        let Some(_) = program(tool) else { return };
    }
    for transport in transports {
        let place = MountedFolder::new(&vec![0; 24 << 20]);
        let mut server = place.serve(&[transport]);
        let script = r#"set -eu
device=$(losetup --find --show --direct-io=on "$1")
trap 'umount "$2" 2>/dev/null || true; losetup -d $device 2>/dev/null || true' EXIT
mkfs.ext4 -q $device
mkdir "$2"
mount $device "$2"
head -c 9000000 /dev/urandom >"$2/large"
cp -r /etc/default "$2"
sync -f "$2"
echo 3 >/proc/sys/vm/drop_caches
sum=$(sha256sum <"$2/large")
umount "$2"
fsck.ext4 -fn $device
mount -o ro $device "$2"
[ "$sum" = "$(sha256sum <"$2/large")" ]
diff -r /etc/default "$2/default"
umount "$2"
losetup -d $device
trap - EXIT
"#;
        let mut command = Command::new("timeout");
        command.args(["90", "bash", "-c", script, "bash"]).arg(server.file());
        run(command.arg(place.dir.path().join("inside")));
        assert!(server.stop().success());
        run(Command::new("e2fsck").arg("-fn").arg(place.backing()));
    }
}

#[test]
fn what_cannot_be_mounted_is_said() {
    if tools::root().is_none() {
        return;
    }
    let place = MountedFolder::new(&[0; 512]);
    fs::remove_dir(place.folder()).expect("it is empty");
    let exe = std::env::current_exe().expect("this program");
    let mut command = Command::new(exe);
    command.args(["--ignored", "--exact", "mounted::serve_for_the_other_tests", "--nocapture"]);
    let words = format!("{}\n{}", place.folder().display(), place.backing().display());
    let output = command.env("SERVE", words).output().expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("NotFound") && said.contains("a folder"), "{said}");
}
