//! FUSE servers run by this process, each on its own thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use claviger_engine::filesystems;
use claviger_engine::trees::Tree;
use claviger_engine::{Result, Store};
use rustix::event::{PollFd, PollFlags};

use crate::fuse::tree::Showing;
use crate::fuse::{self, FuseHandle, FuseOptions, Image};
use crate::wait::wait;

pub use crate::fuse::NAME;

/// A mount served by this process. Dropping it unmounts it, even if it is in use.
pub struct ServedMount {
    handle: FuseHandle,
    read_only: bool,
    thread: Option<JoinHandle<Result<()>>>,
    /// Reaches end of file when the thread ends.
    end: UnixStream,
}

impl ServedMount {
    /// Shows the store as a file in `dir`.
    pub fn image(store: Arc<dyn Store>, read_only: bool, dir: &Path, options: FuseOptions) -> Result<Self> {
        let image = Image { read_only, ..Image::new(store) };
        let mounted = fuse::mount(image, dir, options)?;
        Self::start(mounted.handle(), read_only, move || mounted.run())
    }

    /// Mounts the file system in the store; also returns warnings for the user.
    pub fn tree(
        store: Arc<dyn Store>,
        showing: Showing,
        dir: &Path,
        options: FuseOptions,
    ) -> Result<(Self, Vec<String>)> {
        let (_, tree) = filesystems::open(store)?;
        let warnings = tree.warnings();
        Ok((Self::folder(Arc::from(tree), showing, dir, options)?, warnings))
    }

    /// Mounts a tree, such as a folder's plaintext.
    pub fn folder(tree: Arc<dyn Tree>, showing: Showing, dir: &Path, options: FuseOptions) -> Result<Self> {
        let read_only = showing.read_only || !tree.writable();
        let mounted = fuse::tree::mount(tree, Showing { read_only, ..showing }, dir, options)?;
        Self::start(mounted.handle(), read_only, move || mounted.run())
    }

    fn start(handle: FuseHandle, read_only: bool, run: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Self> {
        let (end, ours) = UnixStream::pair()?;
        let serve = move || {
            let _ours = ours; // closed when this ends, even by a panic
            run()
        };
        let thread = thread::Builder::new().name("fuse".into()).spawn(serve)?;
        Ok(Self { handle, read_only, thread: Some(thread), end })
    }

    /// Whether it is read-only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the mount has ended, because it was unmounted.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished) || self.waited(Duration::ZERO)
    }

    fn waited(&self, limit: Duration) -> bool {
        wait(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(limit)).unwrap_or(true)
    }

    /// Becomes readable when the mount ends.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Ends the mount even if it is in use.
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Waits for the mount to end.
    ///
    /// # Errors
    /// `Io` if writes could not be stored.
    pub fn join(&mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(served)) => served,
            Some(Err(_)) => Err(io::Error::other("a server thread panicked").into()),
        }
    }
}

impl Drop for ServedMount {
    fn drop(&mut self) {
        self.stop();
        let _ = self.join();
    }
}
