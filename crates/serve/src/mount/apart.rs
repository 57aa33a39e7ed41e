//! Work on files of a file system that this very process serves. `unsafe`, because a thread leaves the shared table of descriptors.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::{fs, io, panic, thread};

const FUSE: &str = "/dev/fuse";

/// Runs `work`, which uses files of a file system whose image this process serves. It must not hand out descriptors that it opens.
///
/// When a process is killed, it waits for its threads' file system requests. The file system waits for its image, which
/// nobody serves any more. It gets an error only when the last descriptor of the FUSE connection is closed: never, if
/// the waiting thread has one, too. So the work runs on a thread with its own table of descriptors, without the
/// connections.
///
/// # Errors
/// If the kernel refuses that. Then `work` has not run.
pub fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let alone = || -> io::Result<T> {
        leave()?;
        Ok(work())
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("files".into()).spawn_scoped(scope, alone)?;
        thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    })
}

fn leave() -> io::Result<()> {
    // SAFETY: the call takes no memory. All descriptors stay open, here and in the other threads.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for number in connections()? {
        // SAFETY: only this thread uses the table. The descriptor's owner is on another thread, where it stays open.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// The descriptors of this thread that are connections to FUSE.
fn connections() -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/thread-self/fd")? {
        let entry = entry?;
        // The folder's own descriptor is closed or reused by now.
        if fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == FUSE) {
            found.extend(entry.file_name().to_str().and_then(|number| number.parse::<RawFd>().ok()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn only_the_thread_apart_has_no_connections() {
        let Ok(connection) = File::open(FUSE) else {
            let _: Option<()> = claviger_testkit::tools::skip("there is no /dev/fuse");
            return;
        };
        let before = connections().expect("a list").len();
        assert!(before > 0);
        let apart = apart(|| (connections().expect("a list").len(), File::open("/proc/self/stat").is_ok()));
        assert_eq!(apart.expect("it ran"), (0, true));
        assert_eq!(connections().expect("a list").len(), before);
        assert!(connection.metadata().is_ok(), "it is open where it was opened");
    }

    #[test]
    fn a_panic_is_passed_on() {
        let panicked = panic::catch_unwind(|| apart(|| panic::resume_unwind(Box::new("planted"))).map(|(): ()| ()));
        assert_eq!(panicked.expect_err("it panics").downcast_ref::<&str>(), Some(&"planted"));
    }
}
