//! A folder that is open with its keys in this thread, or in another one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use claviger_engine::file_formats::Stacked;
use claviger_engine::key_process::folder::{FolderKeyProcess, KeylessFolder};
use claviger_engine::key_process::volume::Keys;
use claviger_engine::opening::{Locked, Opened};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::{Opening, Result};
use claviger_serve::key_process::{IoSide, KeyClient, KeySide, Terms};
use claviger_testkit::operations::{Listing, differences, listing};

/// A folder that is open.
pub struct Open {
    pub tree: Stacked,
    /// Where its keys are, if they are elsewhere.
    key_process: Option<thread::JoinHandle<()>>,
    lost: Arc<AtomicBool>,
}

impl Open {
    pub fn here(tree: Stacked) -> Self {
        Self { tree, key_process: None, lost: Arc::default() }
    }

    /// With its keys in another thread, which unlocks it and reads only the memory shared with it.
    pub fn elsewhere(
        lower: &Path,
        format: &'static str,
        unlock: impl FnOnce(&Locked) -> Result<Opened> + Send + 'static,
        write: bool,
    ) -> Self {
        Self::elsewhere_through(lower, format, unlock, write, |client| Arc::new(client))
    }

    /// The same; requests go through what `through` makes of the channel.
    pub fn elsewhere_through(
        lower: &Path,
        format: &'static str,
        unlock: impl FnOnce(&Locked) -> Result<Opened> + Send + 'static,
        write: bool,
        through: impl FnOnce(KeyClient) -> Arc<dyn FolderKeyProcess>,
    ) -> Self {
        let (io_side, socket) = IoSide::new().expect("a channel");
        let memory = io_side.memory().try_clone_to_owned().expect("a descriptor");
        let path = lower.to_owned();
        let key_process = thread::spawn(move || {
            let key_side = KeySide::accept(socket, memory).expect("a channel").expect("somebody at its end");
            let folder = key_side.folder().expect("a folder is lent");
            let locked = opening(&path, format).over_folder(folder).find().expect("found");
            let tree = unlock(&locked).and_then(|open| open.files()).expect("unlocked").tree;
            let (outline, keys) = tree.split_keys().expect("it can be isolated");
            key_side.serve_keys(Keys::of_folder(keys, write), outline, || Ok(())).expect("kept");
        });
        let locked = opening(lower, format).find().expect("found");
        let terms = Terms::reading(&|| false);
        let outline: KeylessFolder = io_side.serve_folder_until_open(&locked, &terms).expect("lent").expect("opened");
        let lost = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&lost);
        let asking = io_side.opened(move || set.store(true, Ordering::SeqCst)).expect("a thread");
        let tree = locked.with_key_process(outline, through(asking)).expect("the format can do it").tree;
        Self { tree, key_process: Some(key_process), lost }
    }

    pub fn end(self) {
        self.tree.finish().expect("durable");
        drop(self.tree);
        if let Some(key_process) = self.key_process {
            key_process.join().expect("it ends when it is let go");
        }
        assert!(!self.lost.load(Ordering::SeqCst));
    }
}

pub fn opening(lower: &Path, format: &str) -> Opening {
    Opening::path(lower).format(format).access(Access::ReadWrite)
}

pub fn same(expected: &Listing, tree: &Stacked, what: &str) {
    let differences = differences(expected, &listing(tree).expect("it is listed"));
    assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
}
