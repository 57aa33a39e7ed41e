//! The target of a conversion. A file has a temporary name until it is complete, so that nobody takes a part for the whole. A
//! file beside it holds the progress.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::internal::files;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, Result, Store};

use super::state::{State, What};
use crate::opening::full_disk;
use crate::opening::overwrite::Overwrite;
use crate::opening::remote;
use crate::terminal::output;

/// The target, checked before asking for a password.
pub struct Destination {
    /// The final name, as an absolute path.
    pub to: PathBuf,
    /// The file that is written under its temporary name, or the device.
    pub at: PathBuf,
    /// The state file; `None` for a device without `--state`.
    state: Option<PathBuf>,
    kind: Kind,
}

enum Kind {
    File {
        /// The file to be replaced: locked and unchanged until the new file is complete.
        old: Option<FileStore>,
    },
    /// A target with a fixed size: a block device or a remote store.
    Device(Arc<dyn Store>, Option<Arc<FileStore>>),
}

impl Destination {
    /// Checks `path` without changing anything.
    ///
    /// # Errors
    /// `Misuse` if existing data must not be overwritten; `InUse`, `Io`.
    pub fn find(path: &Path, state: Option<&Path>, overwrite: Overwrite, resume: bool) -> Result<Self> {
        let state = state.map(std::path::absolute).transpose().map_err(|e| Error::from(e).at(path))?;
        let absolute = |p: io::Result<PathBuf>| p.map_err(|e| Error::from(e).at(path));
        remote::must_not_be_raw(path)?;
        if remote::is_remote(path) {
            let device = remote::open(path, Access::ReadWrite)?;
            // The user agreed before the interruption.
            if !resume {
                overwrite.check(path, &*device, "device")?;
            }
            return Ok(Self { at: path.to_owned(), to: path.to_owned(), state, kind: Kind::Device(device, None) });
        }
        match fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let to = absolute(std::path::absolute(path))?;
                if fs::symlink_metadata(&to).is_ok() {
                    return Err(Error::misuse("a dangling symbolic link").at(path));
                }
                Ok(Self::file(to, state, None))
            }
            Err(e) => Err(Error::from(e).at(path)),
            Ok(metadata) if metadata.file_type().is_block_device() => {
                let device = Arc::new(FileStore::open(path, Access::ReadWrite)?);
                // The user agreed before the interruption.
                if !resume {
                    overwrite.check(path, &*device, "device")?;
                }
                let to = absolute(path.canonicalize())?;
                Ok(Self { at: to.clone(), to, state, kind: Kind::Device(Arc::clone(&device) as _, Some(device)) })
            }
            Ok(_) => {
                let old = FileStore::open(path, Access::ReadWrite)?;
                overwrite.check(path, &old, "file")?;
                Ok(Self::file(absolute(path.canonicalize())?, state, Some(old)))
            }
        }
    }

    fn file(to: PathBuf, state: Option<PathBuf>, old: Option<FileStore>) -> Self {
        let with = |end: &str| {
            let mut name = to.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        };
        Self {
            at: with(".part"),
            state: Some(state.unwrap_or_else(|| with(".part.json"))),
            to,
            kind: Kind::File { old },
        }
    }

    /// The size of the device, in bytes; `None` for a file.
    pub fn device_len(&self) -> Option<u64> {
        match &self.kind {
            Kind::Device(device, _) => Some(device.len()),
            Kind::File { .. } => None,
        }
    }

    /// The state of an interrupted conversion to resume. Without `resume`, checks that there is none. `words` is the command line.
    ///
    /// # Errors
    /// `Misuse` if there is one and `resume` is not set, or the other way round.
    pub fn earlier(&self, resume: bool, words: &[OsString]) -> Result<Option<State>> {
        let earlier = self.state.as_deref().map(State::read).transpose()?.flatten();
        let is_file = matches!(self.kind, Kind::File { .. });
        if resume {
            let none = || {
                let what = match &self.state {
                    Some(state) => format!("{} does not exist", state.display()),
                    None => "resuming a conversion to a device needs --state".to_owned(),
                };
                Error::misuse(format!("there is no conversion to resume: {what}")).at(&self.to)
            };
            return earlier.map(Some).ok_or_else(none);
        }
        let part = Some(&self.at).filter(|at| is_file && fs::symlink_metadata(at).is_ok());
        // An attempt that created nothing, because of too little space for instance, leaves nothing to resume.
        let begun = earlier.as_ref().is_some_and(|state| state.done.is_some());
        if part.is_none() && !begun {
            return Ok(None);
        }
        let left = part.into_iter().chain(self.state.as_ref().filter(|_| earlier.is_some()));
        let remove = output::command(["rm", "--"].map(Path::new).into_iter().chain(left.map(PathBuf::as_path)));
        let anew = format!("To start over, remove its leftovers and repeat the command:\n  {remove}");
        let hint = match earlier {
            Some(_) => {
                let (verb, rest) = words.split_at(2);
                let resume = output::command(verb.iter().chain([&"--resume".into()]).chain(rest));
                format!("To continue it:\n  {resume}\n{anew}")
            }
            None => format!("Its progress is not recorded, so --resume cannot continue it.\n{anew}"),
        };
        Err(Error::misuse("an earlier conversion has not been finished").at(&self.to).hint(hint))
    }

    /// Saves the progress.
    ///
    /// # Errors
    /// `Io`.
    pub fn note(&self, state: &State) -> Result<()> {
        self.state.as_deref().map_or(Ok(()), |path| state.write(path))
    }

    /// Creates the file with `len` bytes: with holes if it is `sparse`, otherwise fully allocated. Save the state first.
    ///
    /// # Errors
    /// `Io`, `InUse`, `Misuse`.
    pub fn make(self, len: u64, sparse: bool) -> Result<Target> {
        if let Kind::Device(..) = self.kind {
            return Ok(self.target(None));
        }
        // The remains of an earlier attempt, without any data.
        match fs::symlink_metadata(&self.at) {
            Ok(metadata) if metadata.is_file() => fs::remove_file(&self.at).map_err(|e| Error::from(e).at(&self.at))?,
            Ok(_) => return Err(Error::misuse("not a file of an earlier conversion").at(&self.at)),
            Err(_) => {}
        }
        let made = if sparse { FileStore::create_sparse(&self.at, len) } else { FileStore::create(&self.at, len) };
        // Nothing to resume: removes the state.
        let store = made.map_err(|e| {
            let _ = self.state.as_deref().map(fs::remove_file);
            full_disk::explained(e, &self.at, len)
        })?;
        Ok(self.target(Some(store)))
    }

    /// Opens the target of an interrupted conversion. In a `sparse` file, everything after `done` bytes becomes a hole again.
    ///
    /// # Errors
    /// `Misuse` if the size differs; `Io`, `InUse`.
    pub fn reopen(self, what: &What, done: u64, sparse: bool) -> Result<Target> {
        if let Kind::Device(..) = self.kind {
            return Ok(self.target(None));
        }
        let store = FileStore::open(&self.at, Access::ReadWrite)?;
        if store.len() != what.stored {
            return Err(Error::misuse(format!("it has {} bytes, not {}", store.len(), what.stored)).at(&self.at));
        }
        if sparse {
            let again = store.change_len(done).and_then(|()| store.change_len(what.stored));
            again.map_err(|e| e.at(&self.at))?;
        }
        Ok(self.target(Some(store)))
    }

    fn target(self, new: Option<FileStore>) -> Target {
        let Self { to, at, state, kind } = self;
        let (store, file, old) = match (kind, new) {
            (Kind::Device(device, file), _) => (device, file, None),
            (Kind::File { old }, Some(new)) => {
                let new = Arc::new(new);
                (Arc::clone(&new) as _, Some(new), old)
            }
            (Kind::File { .. }, None) => unreachable!("a file was made or opened"),
        };
        Target { to, at, state, old, store, file }
    }
}

/// The open, locked target.
pub struct Target {
    /// The store to write to.
    pub store: Arc<dyn Store>,
    /// The local file or device; `None` for a remote store.
    file: Option<Arc<FileStore>>,
    to: PathBuf,
    at: PathBuf,
    state: Option<PathBuf>,
    old: Option<FileStore>,
}

impl Target {
    /// Saves the progress.
    ///
    /// # Errors
    /// `Io`.
    pub fn note(&self, state: &State) -> Result<()> {
        self.state.as_deref().map_or(Ok(()), |path| state.write(path))
    }

    /// If the disk is full, says how much space the `rest` of the file needs.
    pub fn full(&self, error: Error, rest: u64) -> Error {
        full_disk::explained(error, &self.at, rest)
    }

    /// Drops cached data, so that later reads come from the disk.
    pub fn forget_cached(&self) {
        if let Some(file) = &self.file {
            file.forget_cached();
        }
    }

    /// The user's options after an interruption, as a hint.
    pub fn left(&self) -> String {
        match &self.state {
            Some(_) => "Repeat the command with --resume to continue.".to_owned(),
            None => "The written part is not a complete volume; without --state the conversion cannot be continued."
                .to_owned(),
        }
    }

    /// Removes a new file that holds nothing worth resuming. A device has lost its old contents.
    pub fn discard(self) {
        let Self { file, to, at, state, .. } = self;
        if at != to && file.is_some_and(|file| file.is_at(&at)) {
            let _ = fs::remove_file(&at);
        }
        if let Some(state) = state {
            let _ = fs::remove_file(state);
        }
    }

    /// Gives the complete file its final name.
    ///
    /// # Errors
    /// `InUse` if another file has taken its place; `Io`.
    pub fn finish(self) -> Result<()> {
        let Self { file, to, at, state, old, .. } = self;
        if let Some(file) = file.as_ref().filter(|_| at != to) {
            let whole = |e: Error| e.hint(format!("The copy is complete and called {}.", at.display()));
            file.rename(&at, &to, old.as_ref()).map_err(whole)?;
        }
        let tidy = || {
            file.map_or(Ok(()), |_| files::sync_folder(&to))?;
            state.as_deref().map_or(Ok(()), fs::remove_file)
        };
        if let Err(e) = tidy() {
            output::warn(&format!("{}: it is complete, but its name may not survive a power cut: {e}", to.display()));
        }
        Ok(())
    }
}
