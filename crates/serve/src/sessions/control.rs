//! The socket on which a server reports its status. It takes no commands: to end a server, signal it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use claviger_engine::deadline::{Deadline, Exchange};
use rustix::net::{Shutdown, shutdown};

use super::{Status, short_name};

/// A server that takes longer to answer is stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers status requests for its lifetime.
pub struct Control {
    listener: Arc<UnixListener>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Control {
    pub(super) fn new(folder: &Path, status: impl Fn() -> Status + Send + Sync + 'static) -> io::Result<Self> {
        let (_held, path) = short_name(folder, "control")?;
        let listener = Arc::new(UnixListener::bind(path)?);
        let accepting = Arc::clone(&listener);
        let answer = move || {
            // Ends when the listener is shut down.
            while let Ok((mut stream, _)) = accepting.accept() {
                let text = serde_json::to_vec(&status()).expect("numbers are JSON");
                // An answer fits into the socket's buffer, so no client can block this thread.
                let _ = stream.write_all(&text);
            }
        };
        let thread = thread::Builder::new().name("control".into()).stack_size(64 << 10).spawn(answer)?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks the server that owns this folder for its status.
pub(super) fn ask(folder: &Path) -> io::Result<Status> {
    let (_held, path) = short_name(folder, "control")?;
    let deadline = Deadline::within(PATIENCE, None);
    let socket = deadline.connect_unix(path.as_ref())?;
    let mut text = Vec::new();
    Exchange::new(socket.as_fd(), deadline).take(4096).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
