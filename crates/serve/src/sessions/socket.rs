use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::net::{Shutdown, shutdown, sockopt::socket_peercred};
use rustix::process::geteuid;

use super::short_name;

/// Answers the clients of a socket in a session's folder for its lifetime, each on a thread of its own. Only this user's processes
/// are answered.
pub struct SessionSocket {
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl SessionSocket {
    /// Listens at this name. `answer` also gets a flag, and returns soon after it is set.
    pub(crate) fn new(
        folder: &Path,
        name: &'static str,
        answer: impl Fn(UnixStream, &AtomicBool) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (_held, path) = short_name(folder, name)?;
        let listener = Arc::new(UnixListener::bind(path)?);
        let ending = Arc::new(AtomicBool::new(false));
        let (accepting, stop) = (Arc::clone(&listener), Arc::clone(&ending));
        let accept = move || {
            // Ends when the listener is shut down.
            thread::scope(|scope| {
                while let Ok((client, _)) = accepting.accept() {
                    if !socket_peercred(&client).is_ok_and(|peer| peer.uid == geteuid()) {
                        continue;
                    }
                    let (answer, stop) = (&answer, &stop);
                    let thread = thread::Builder::new().name(name.into());
                    let _ = thread.spawn_scoped(scope, move || answer(client, stop));
                }
            });
        };
        let thread = thread::Builder::new().name(name.into()).stack_size(64 << 10).spawn(accept)?;
        Ok(Self { listener, ending, thread: Some(thread) })
    }
}

impl Drop for SessionSocket {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
