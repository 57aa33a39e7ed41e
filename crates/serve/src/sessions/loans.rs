//! Lending a file in use: a server holds the lock on its volume, and a command that changes the header needs it.
//!
//! The server hands over a descriptor that shares its lock, and the command works as on an unused volume: it finds the header, proves
//! the credential and writes step by step. So the server needs no code for any format's header, and no passphrase leaves the process
//! that asks for it. A writer's lock is held all the time. If the server ends first, the command still holds it and finishes. If the
//! command is killed, the header is in a state that opens, as after any kill.
//!
//! This is possible because a header's changes leave the layout alone, and because the server writes only where the data are. A
//! growing volume only gets a longer last segment. The server learns the new size after everything has reached the disk.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};
use std::time::Duration;

use claviger_engine::deadline::{Deadline, Exchange};
use claviger_engine::store::{FileStore, Growth, Lender, Loan};
use claviger_engine::{Error, ErrorKind, Result, Store};
use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Runtime, Session, SessionSocket, short_name};
use crate::messages::{give, receive_at_most, send, take};
use crate::wait::wait;

/// The socket's name in the session's folder.
pub(super) const SOCKET: &str = "loans";

/// The version of the messages.
const VERSION: u32 = 1;

/// The longest message, in bytes.
const LONGEST: usize = 4096;

/// Time limit for each message.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit for the server to use a new size.
const GROWTH: Duration = Duration::from_secs(60);

/// Interval at which a lender checks whether to end.
const TICK: Duration = Duration::from_millis(100);

/// Asks for a file. The loan lasts until the borrower closes the connection.
#[derive(Serialize, Deserialize)]
struct Request {
    version: u32,
    /// Device and inode.
    file: (u64, u64),
}

/// The answer to a [`Growth`].
#[derive(Serialize, Deserialize)]
enum Grown {
    Done,
    Refused(String),
}

/// The answer of a server. After `Lent` comes the descriptor.
#[derive(Serialize, Deserialize)]
enum Answer {
    Lent,
    /// This server has another file, or one that cannot be lent.
    NotHere,
    /// Another process has borrowed it.
    Busy,
    /// The server knows another version of the messages.
    Version(u32),
    Failed(String),
}

/// What a server does once its volume has grown to this many bytes, in its session's folder.
pub type AfterGrowth = fn(&Path, u64) -> io::Result<()>;

/// What a server lends.
struct Lending {
    /// Each is lent to one borrower at a time.
    stores: Vec<(Weak<dyn Store>, Mutex<()>)>,
    folder: PathBuf,
    after_growth: AfterGrowth,
}

/// Lends the files of these stores for the lifetime of the value returned.
pub(super) fn lend(
    folder: &Path,
    stores: Vec<Weak<dyn Store>>,
    after_growth: AfterGrowth,
) -> io::Result<SessionSocket> {
    let stores = stores.into_iter().map(|store| (store, Mutex::new(()))).collect();
    let lending = Lending { stores, folder: folder.to_owned(), after_growth };
    SessionSocket::new(folder, SOCKET, move |client, stop| {
        if let Ok(request) = heard(&client, PATIENCE) {
            let _ = lending.answer(&client, &request, stop);
        }
    })
}

impl Lending {
    fn answer(&self, client: &UnixStream, request: &Request, stop: &AtomicBool) -> io::Result<()> {
        for (store, lending) in &self.stores {
            let Some(store) = store.upgrade() else { continue };
            let Some(file) = store.file().filter(|file| is(file, request.file)) else { continue };
            if request.version != VERSION {
                return send(client, &Answer::Version(VERSION));
            }
            let Ok(_lending) = lending.try_lock() else { return send(client, &Answer::Busy) };
            return self.lend(client, &*store, file, stop);
        }
        send(client, &Answer::NotHere)
    }

    /// Lends the file until the borrower hangs up.
    fn lend(&self, client: &UnixStream, store: &dyn Store, file: &FileStore, stop: &AtomicBool) -> io::Result<()> {
        let (descriptor, lent) = match file.lend() {
            Ok(lent) => lent,
            Err(e) if e.kind() == io::ErrorKind::Unsupported => return send(client, &Answer::NotHere),
            Err(e) => return send(client, &Answer::Failed(e.to_string())),
        };
        send(client, &Answer::Lent)?;
        give(client, [descriptor.as_fd()])?;
        drop(descriptor);
        loop {
            while !wait(&mut [PollFd::new(client, PollFlags::IN)], Some(TICK))? {
                if stop.load(Ordering::SeqCst) {
                    lent.leave();
                    return Ok(());
                }
            }
            // Fails at the end of the loan.
            let growth = heard(client, PATIENCE)?;
            let grown = self.grow(store, &growth);
            send(client, &grown.map_or_else(|e| Grown::Refused(e.to_string()), |()| Grown::Done))?;
        }
    }

    fn grow(&self, store: &dyn Store, growth: &Growth) -> io::Result<()> {
        store.grow(growth)?;
        if growth.rehearse { Ok(()) } else { (self.after_growth)(&self.folder, store.len()) }
    }
}

/// Receives a message, within a time limit: neither side can hold up the other.
fn heard<T: DeserializeOwned>(socket: &UnixStream, limit: Duration) -> io::Result<T> {
    receive_at_most(Exchange::new(socket.as_fd(), Deadline::within(limit, None)), LONGEST)
}

fn is(file: &FileStore, number: (u64, u64)) -> bool {
    file.number().is_ok_and(|of_it| of_it == number)
}

/// Borrows the file at `path` from the process of this user that serves the volume in it. `None` if no such process lends it. Waits a
/// little for another borrower.
///
/// # Errors
/// `InUse` if another process has borrowed it; `Io`.
pub fn borrow(path: &Path) -> Result<Option<Loan>> {
    let deadline = Deadline::within(PATIENCE, None);
    loop {
        match borrow_now(path) {
            Err(e) if is_busy(&e) && deadline.sleep(TICK).is_ok() => {}
            borrowed => return borrowed,
        }
    }
}

fn borrow_now(path: &Path) -> Result<Option<Loan>> {
    let metadata = fs::metadata(path)?;
    let request = Request { version: VERSION, file: (metadata.dev(), metadata.ino()) };
    let Ok(sessions) = Runtime::of_this_user().and_then(|runtime| runtime.sessions()) else { return Ok(None) };
    for session in sessions.into_iter().filter(Session::alive) {
        // A server that lends nothing has no such socket, or does not answer.
        let Ok((socket, answer)) = ask(&session.folder, &request) else { continue };
        match answer {
            Answer::Lent => {
                let [file] = take(&socket)?;
                return Ok(Some(Loan { file: File::from(file), lender: Box::new(Borrowed(socket)) }));
            }
            Answer::NotHere => {}
            Answer::Busy => return Err(in_use(BUSY).hint("Wait until it is done.")),
            Answer::Version(_) => {
                let holder = "another version of claviger, which cannot lend it to this one";
                return Err(in_use(holder).hint("Use that version, or unmount the volume first."));
            }
            Answer::Failed(why) => return Err(io::Error::other(why).into()),
        }
    }
    Ok(None)
}

/// The holder of a file that another command has borrowed.
const BUSY: &str = "another claviger command that works on its header";

/// Whether the file is in use by another borrower, and only for a while.
pub fn is_busy(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::InUse { holder } if holder.as_deref() == Some(BUSY))
}

fn in_use(holder: &str) -> Error {
    ErrorKind::InUse { holder: Some(holder.to_owned()) }.into()
}

fn ask(folder: &Path, request: &Request) -> io::Result<(UnixStream, Answer)> {
    let (_held, path) = short_name(folder, SOCKET)?;
    let socket = UnixStream::from(Deadline::within(PATIENCE, None).connect_unix(path.as_ref())?);
    socket.set_read_timeout(Some(PATIENCE))?;
    send(&socket, request)?;
    let answer = heard(&socket, PATIENCE)?;
    Ok((socket, answer))
}

/// A loan. Returns the file on drop, and waits until the lender knows: the next loan may begin at once.
struct Borrowed(UnixStream);

impl Lender for Borrowed {
    fn grow(&self, growth: &Growth) -> io::Result<()> {
        send(&self.0, growth)?;
        match heard(&self.0, GROWTH)? {
            Grown::Done => Ok(()),
            Grown::Refused(why) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
        let _ = self.0.read(&mut [0]);
    }
}

/// Lends a file to a command that sends these bytes and then hangs up: [`crate::fuzzing`].
pub(crate) fn fuzz(store: &dyn Store, file: &FileStore, bytes: &[u8]) -> io::Result<u64> {
    let (client, mut borrower) = UnixStream::pair()?;
    borrower.write_all(&bytes[..bytes.len().min(64 << 10)])?;
    borrower.shutdown(Shutdown::Write)?;
    let lending = Lending { stores: Vec::new(), folder: PathBuf::new(), after_growth: |_, _| Ok(()) };
    let stop = AtomicBool::new(false);
    if let Ok(request) = receive_at_most(&client, LONGEST) {
        lending.answer(&client, &request, &stop)?;
    }
    let _ = lending.lend(&client, store, file, &stop);
    drop(client);
    let mut received = Vec::new();
    // If some bytes were never read, an error follows the answers.
    let _ = borrower.read_to_end(&mut received);
    Ok(received.len() as u64)
}
