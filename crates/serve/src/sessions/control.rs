//! The socket on which a server reports its status. It takes no commands: to end a server, signal it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use claviger_engine::deadline::{Deadline, Exchange};

use super::{SessionSocket, Status, short_name};

/// The socket's name in the session's folder.
pub(super) const SOCKET: &str = "control";

/// A server that takes longer to answer is stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers status requests for the lifetime of the value returned.
pub(super) fn answer(folder: &Path, status: impl Fn() -> Status + Send + Sync + 'static) -> io::Result<SessionSocket> {
    SessionSocket::new(folder, SOCKET, move |mut client, _| {
        let text = serde_json::to_vec(&status()).expect("numbers are JSON");
        // An answer fits into the socket's buffer, so no client can delay the end.
        let _ = client.write_all(&text);
    })
}

/// Asks the server that owns this folder for its status.
pub(super) fn ask(folder: &Path) -> io::Result<Status> {
    let (_held, path) = short_name(folder, SOCKET)?;
    let deadline = Deadline::within(PATIENCE, None);
    let socket = deadline.connect_unix(path.as_ref())?;
    let mut text = Vec::new();
    Exchange::new(socket.as_fd(), deadline).take(4096).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
