//! However a server of a mounted file ends, nobody waits for it afterwards.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::mounted::{MountedFolder, PATIENCE, as_nobody, transports};
use claviger_testkit::random::Random;
use claviger_testkit::tools::{program, run};

const EIO: i32 = 5;
/// What Linux 6.18 answers to a request that it was handing to a thread that ends.
const EAGAIN: i32 = 11;
const ENODEV: i32 = 19;
const ECONNABORTED: i32 = 103;
const ECANCELED: i32 = 125;
const ENOTCONN: i32 = 107;

/// Waits for what happens soon.
fn soon(what: &str, happens: impl Fn() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_server_leaves_errors_and_no_hanging_programs() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let place = MountedFolder::new(&vec![1; 4 << 20]);
        let mut server = place.serve(&[transport, "xts"]);
        let wrote = AtomicBool::new(false);
        let idle = server.open();
        thread::scope(|scope| {
            for n in 0..4 {
                let (file, wrote) = (server.open(), &wrote);
                // Writes until that fails.
                scope.spawn(move || {
                    let mut random = Random::new(n);
                    loop {
                        let size = 1 + random.below(200_000);
                        let data = random.bytes(size);
                        match file.write_all_at(&data, random.below(3 << 20) as u64) {
                            Ok(()) => wrote.store(true, Ordering::Relaxed),
                            Err(e) => {
                                let number = e.raw_os_error().expect("from the kernel");
                                assert!(
                                    [EIO, EAGAIN, ENODEV, ECONNABORTED, ECANCELED, ENOTCONN].contains(&number),
                                    "{transport}: {e}"
                                );
                                return;
                            }
                        }
                    }
                });
            }
            soon("the writers are at work", || wrote.load(Ordering::Relaxed));
            server.kill();
        });
        assert!(idle.read_at(&mut [0; 10], 0).is_err());
        drop(idle);
        assert_eq!(fs::metadata(place.folder()).expect_err("nobody answers").raw_os_error(), Some(ENOTCONN));
        run(Command::new("timeout").arg("60").arg("umount").arg(place.folder()));
        assert_eq!((place.mount_line(), place.bytes().len()), (None, 4 << 20));
        // And all over again.
        let mut server = place.serve(&[transport, "xts"]);
        server.open().read_exact_at(&mut [0; 10_000], 5).expect("all is well");
        assert!(server.stop().success());
    }
}

#[test]
fn unmounting_ends_the_server() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let place = MountedFolder::new(&[1; 100_000]);
        let mut server = place.serve(&[transport]);
        let file = server.open();
        let busy = Command::new("umount").arg(place.folder()).output().expect("it runs");
        assert!(!busy.status.success(), "somebody uses it");
        // Lazily: who uses it still may.
        run(Command::new("umount").arg("-l").arg(place.folder()));
        file.write_all_at(&[2; 100], 50_000).expect("still served");
        file.sync_all().expect("still served");
        assert_eq!(place.bytes()[50_000], 2);
        drop(file);
        assert!(server.ended().success());
    }
}

#[test]
fn a_server_that_is_to_stop_waits_for_users_and_then_cuts_them_off() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let place = MountedFolder::new(&[1; 100_000]);
        // In time.
        let mut server = place.serve(&[transport, "grace=60000"]);
        let file = server.open();
        let stopped = thread::scope(|scope| {
            let stopping = scope.spawn(|| server.stop());
            for _ in 0..20 {
                file.write_all_at(&[3; 5000], 10).expect("still served");
                thread::sleep(Duration::from_millis(5));
            }
            drop(file);
            stopping.join().expect("no panic")
        });
        assert!(stopped.success());
        assert_eq!((place.mount_line(), place.bytes()[10]), (None, 3));
        // Too late.
        let mut server = place.serve(&[transport, "grace=200"]);
        let file = server.open();
        assert!(server.stop().success());
        assert_eq!(place.mount_line(), None);
        assert!(file.read_at(&mut [0; 10], 0).is_err());
    }
}

#[test]
fn a_server_that_panics_takes_its_mount_along() {
    let Some(transports) = transports() else { return };
    for transport in transports {
        let place = MountedFolder::new(&[1; 100_000]);
        let mut server = place.serve(&[transport, "panic=50000"]);
        let file = server.open();
        file.read_exact_at(&mut [0; 100], 49_000).expect("all is well here");
        assert!(file.read_exact_at(&mut [0; 100], 49_950).is_err(), "{transport}: the thread is dead");
        assert!(!server.ended().success());
        assert!(file.read_exact_at(&mut [0; 100], 0).is_err());
        assert_eq!(place.mount_line(), None, "{transport}");
    }
}

#[test]
fn servers_of_users_without_privileges_end_as_well() {
    let Some(transports) = transports() else { return };
    let Some(_) = program("fusermount3") else { return };
    for transport in transports {
        // A user of the folder, who does not let go of it.
        let hold = |place: &MountedFolder| {
            let script = format!("exec 3<'{}/volume'; echo; exec sleep 100", place.folder().display());
            let mut held = as_nobody();
            held.args(["sh", "-c", &script]).stdout(std::process::Stdio::piped());
            let mut held = held.spawn().expect("it runs");
            let mut line = [0];
            let stdout = held.stdout.as_mut().expect("a pipe");
            std::io::Read::read_exact(stdout, &mut line).expect("it has the file");
            held
        };
        let place = MountedFolder::new(&[1; 100_000]);
        let mut server = place.serve_as_nobody(&[transport, "grace=200"]);
        let mut held = hold(&place);
        assert!(server.stop().success(), "{transport}");
        assert_eq!(place.mount_line(), None, "{transport}");
        held.kill().and_then(|()| held.wait()).expect("it is ours");

        let mut server = place.serve_as_nobody(&[transport]);
        let mut held = hold(&place);
        server.kill();
        run(as_nobody().args(["fusermount3", "-uz"]).arg(place.folder()));
        assert_eq!(place.mount_line(), None, "{transport}");
        held.kill().and_then(|()| held.wait()).expect("it is ours");
    }
}
