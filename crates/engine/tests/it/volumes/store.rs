//! Files as stores: whose they are, and what is not opened.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use claviger_engine::store::{Access, CountedStore, FileStore, Growth, Handover, InUseConversion, Lender, Loan};
use claviger_engine::{ErrorKind, Store};
use claviger_testkit::mounts::LoopDevice;
use claviger_testkit::tools;

#[track_caller]
fn in_use<T>(opened: claviger_engine::Result<T>) -> String {
    match opened {
        Err(e) if matches!(e.kind, ErrorKind::InUse { .. }) => e.to_string(),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it is in use"),
    }
}

#[test]
fn writers_exclude_everybody_and_readers_only_writers() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let writer = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    let said = in_use(FileStore::open(file.path(), Access::ReadOnly));
    assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
    drop(writer);
    let _reader = FileStore::open(file.path(), Access::ReadOnly).expect("nobody has it");
    let _another = FileStore::open(file.path(), Access::ReadOnly).expect("readers share");
    in_use(FileStore::open(file.path(), Access::ReadWrite));
}

#[test]
fn a_file_knows_whether_it_still_has_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new");
    let store = FileStore::create(&path, 4096).expect("there is room");
    assert!(store.is_at(&path));
    assert_eq!(store.len(), 4096);
    fs::rename(&path, folder.path().join("elsewhere")).expect("it moves");
    assert!(!store.is_at(&path));
    fs::write(&path, "of somebody else").expect("another file");
    assert!(!store.is_at(&path));
}

/// It does not check first, so a file that appears just before the renaming is treated like one that was there all along.
#[test]
fn a_file_takes_no_name_that_another_has_got_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let read = |path: &Path| fs::read(path).expect("a file");
    let store = FileStore::create(&from, 3).expect("there is room");
    fs::write(&to, "of somebody else").expect("a file");
    in_use(store.rename(&from, &to, None));
    assert_eq!((read(&from), read(&to)), (vec![0; 3], b"of somebody else".to_vec()));

    // Instead of an old one: it is that, or nothing happens.
    let old = FileStore::open(&to, Access::ReadWrite).expect("nobody has it");
    let newer = folder.path().join("newer");
    fs::write(&newer, "precious").and_then(|()| fs::rename(&newer, &to)).expect("it takes the place");
    in_use(store.rename(&from, &to, Some(&old)));
    assert_eq!((read(&from), read(&to)), (vec![0; 3], b"precious".to_vec()));
    let old = FileStore::open(&to, Access::ReadWrite).expect("nobody has it");
    store.rename(&from, &to, Some(&old)).expect("it is the old one");
    assert!(!from.exists() && store.is_at(&to));

    // Nor is a file renamed that the store has not opened itself.
    fs::write(&from, "of somebody else").expect("a file");
    in_use(store.rename(&from, &folder.path().join("new"), None));
    assert_eq!(read(&from), b"of somebody else");
}

#[test]
fn a_file_that_is_there_is_not_created_again() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), "precious").expect("its contents");
    assert!(FileStore::create(file.path(), 4096).is_err());
    assert_eq!(fs::read(file.path()).expect("it is there"), b"precious");
}

#[test]
fn what_is_no_file_is_refused_without_opening_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    tools::run(Command::new("mkfifo").arg(&fifo));
    for path in [fifo.as_path(), folder.path(), Path::new("/dev/null")] {
        let error = FileStore::open(path, Access::ReadOnly).err().expect("it is no file");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    }
}

#[test]
fn a_file_that_the_kernel_writes_to_is_opened_for_reading_only() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
    let written = FileStore::open(file.path(), Access::ReadWrite);
    let read = FileStore::open(file.path(), Access::ReadOnly).map(|_| ());
    let said = in_use(written);
    assert!(said.contains(&*device.path().to_string_lossy()), "{said}");
    read.expect("reading does no harm");
}

#[test]
fn a_loop_device_and_the_file_behind_it_are_one_volume() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let open = |path: &Path, access| FileStore::open(path, access);
    // Attached after it was opened.
    let writer = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    let attach = || LoopDevice::new(file.path(), &[]);
    let (Some(first), Some(second)) = (attach(), attach()) else { return };
    let all = || {
        let through = open(first.path(), Access::ReadWrite);
        let read = open(first.path(), Access::ReadOnly);
        drop(writer);
        let alone = open(first.path(), Access::ReadWrite);
        let beside = open(second.path(), Access::ReadWrite).map(|_| ());
        let shared = FileStore::open(file.path(), Access::ReadOnly).map(|_| ());
        (through.map(|_| ()), read.map(|_| ()), alone.map(|_| ()), beside, shared)
    };
    let (through, read, alone, beside, shared) = all();
    let after = open(second.path(), Access::ReadWrite).map(|_| ());
    for refused in [through, read, beside, shared] {
        let error = refused.expect_err("it is open under another name");
        assert!(matches!(error.kind, ErrorKind::InUse { .. }), "{error}");
    }
    alone.expect("nobody has it any more");
    after.expect("the lock goes with the store");
}

/// The kernel would extend it, and data written there would not be in the volume.
#[test]
fn a_file_that_is_cut_short_is_not_stretched_and_says_so() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(8192).expect("a size");
    let store = CountedStore::new(FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it"));
    store.write_clobbering(4096, &mut [1; 4096]).and_then(|()| store.flush()).expect("it is all there");
    let past_the_end = store.write_clobbering(8000, &mut [1; 200]).expect_err("it ends before");
    assert_eq!(past_the_end.kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(store.traffic().failed_writes, 0, "the caller's mistake");

    file.as_file().set_len(5000).expect("cut");
    store.write_clobbering(0, &mut [1; 4096]).expect("that is still there");
    for lost in [store.write_clobbering(4096, &mut [1; 4096]), store.flush(), store.still_whole()] {
        let error = lost.expect_err("it is gone");
        assert!(error.to_string().contains("cut short") && error.to_string().contains("5000"), "{error}");
        assert_ne!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(store.traffic().failed_writes, 2, "told in the end");
    assert_eq!(file.as_file().metadata().expect("it is there").len(), 5000);
}

#[test]
fn a_file_behind_a_loop_device_is_not_stretched_either() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
    let writes = || {
        let store = FileStore::open(device.path(), Access::ReadWrite).expect("nobody has it");
        let before = store.write_clobbering(1 << 19, &mut [1; 4096]).and_then(|()| store.flush());
        file.as_file().set_len(1 << 18).expect("cut");
        (before, store.write_clobbering(1 << 19, &mut [1; 4096]), store.flush())
    };
    let (before, after, flushed) = writes();
    before.expect("it is all there");
    assert!(after.expect_err("it is gone").to_string().contains("cut short"));
    assert!(flushed.expect_err("it is gone").to_string().contains("cut short"));
    assert_eq!(file.as_file().metadata().expect("it is there").len(), 1 << 18);
}

struct Nobody;

impl Lender for Nobody {
    fn grow(&self, _growth: &Growth) -> std::io::Result<()> {
        Ok(())
    }
    fn may_convert(&self, _request: &InUseConversion, _with: &Handover<'_>) -> claviger_engine::Result<()> {
        Ok(())
    }
    fn convert(
        &self,
        _request: &InUseConversion,
        _with: &Handover<'_>,
        _progress: &dyn Fn(u64, u64),
        _cancel: &AtomicBool,
    ) -> claviger_engine::Result<()> {
        Ok(())
    }
}

fn borrowed(path: &Path, access: Access, file: fs::File) -> claviger_engine::Result<FileStore> {
    FileStore::borrow(path, access, Loan { file, behind: None, lender: Box::new(Nobody) })
}

/// Closing it must not release the lock of the process that handed it over.
#[test]
fn a_file_that_was_handed_over_and_closed_stays_locked() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let store = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    let descriptor = || std::os::fd::AsFd::as_fd(&store).try_clone_to_owned().expect("a descriptor");
    drop(FileStore::handed_over(descriptor().into()).expect("it is open for writing"));
    in_use(FileStore::open(file.path(), Access::ReadOnly));
    let read_only = fs::File::open(file.path()).expect("it opens");
    assert!(FileStore::handed_over(read_only).is_err());
}

/// The file stays locked, whether the lender or the borrower ends first.
#[test]
fn a_lent_file_stays_locked_until_both_have_closed_it() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), [5; 8192]).expect("its contents");
    let open = |access| FileStore::open(file.path(), access);
    for leaves in [false, true] {
        let lender = open(Access::ReadWrite).expect("nobody has it");
        let (descriptor, _, lent) = lender.lend().expect("a descriptor");
        let borrower = borrowed(file.path(), Access::ReadWrite, descriptor).expect("it is lent");
        borrower.write_clobbering(0, &mut [6; 4096]).expect("both may write");
        lender.write_clobbering(4096, &mut [7; 4096]).expect("both may write");
        in_use(open(Access::ReadOnly));
        if leaves {
            lent.leave();
            drop(lender);
            in_use(open(Access::ReadOnly));
            borrower.write_clobbering(0, &mut [8; 4096]).expect("it has the lock");
            drop(borrower);
        } else {
            drop(borrower);
            drop(lent);
            in_use(open(Access::ReadOnly));
            drop(lender);
        }
        open(Access::ReadWrite).expect("nobody has it any more");
    }
    assert_eq!(fs::read(file.path()).expect("a file"), [[8; 4096], [7; 4096]].concat());
}

/// A lock for reading becomes exclusive while a borrower writes, and is shared again afterwards.
#[test]
fn a_file_lent_by_a_reader_is_locked_for_writing_meanwhile() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), [5; 4096]).expect("its contents");
    let open = |access| FileStore::open(file.path(), access);
    let lender = open(Access::ReadOnly).expect("nobody has it");
    let another = open(Access::ReadOnly).expect("readers share");
    let (descriptor, _, lent) = lender.lend().expect("a descriptor");
    in_use(borrowed(file.path(), Access::ReadWrite, descriptor));
    drop(lent);
    in_use(open(Access::ReadWrite));
    drop(another);
    in_use(open(Access::ReadWrite));

    let (descriptor, _, lent) = lender.lend().expect("a descriptor");
    let borrower = borrowed(file.path(), Access::ReadWrite, descriptor).expect("nobody else reads");
    in_use(open(Access::ReadOnly));
    borrower.write_clobbering(0, &mut [6; 4096]).expect("opened for writing");
    assert!(lender.write_clobbering(0, &mut [7; 4096]).is_err(), "opened for reading");
    drop(borrower);
    drop(lent);
    let _reader = open(Access::ReadOnly).expect("readers share again");
    in_use(open(Access::ReadWrite));
    assert_eq!(fs::read(file.path()).expect("a file"), [6; 4096]);
}

#[test]
fn a_lent_file_that_backs_a_loop_device_is_not_written() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), [5; 8192]).expect("its contents");
    let Some(device) = LoopDevice::new(file.path(), &[]) else { return };
    let open = |path: &Path| FileStore::open(path, Access::ReadOnly).expect("readers share");
    let lender = open(file.path());
    let (descriptor, _, _lent) = lender.lend().expect("a descriptor");
    let refused = in_use(borrowed(file.path(), Access::ReadWrite, descriptor));
    assert!(refused.contains("attached to /dev/loop"), "{refused}");
    let device = open(device.path());
    let (_, behind, _lent) = device.lend().expect("a descriptor");
    assert!(behind.is_some(), "the file behind it is locked, too");
}

#[test]
fn a_lent_file_that_is_not_the_one_at_the_path_is_refused() {
    let [file, another] = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a file"));
    let lender = FileStore::open(file.path(), Access::ReadWrite).expect("nobody has it");
    let (descriptor, _, _lent) = lender.lend().expect("a descriptor");
    in_use(borrowed(another.path(), Access::ReadWrite, descriptor));
}
