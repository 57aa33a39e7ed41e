//! Where a volume is mounted: on a folder that the user named, or on one that is created for it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, ErrorKind, Result};
use claviger_serve::sessions::{Runtime, Session, SessionRecord, escape, is_busy};

use crate::opening::remote;
use crate::terminal::output;

/// An empty folder.
pub struct MountPoint {
    path: PathBuf,
    /// Whether to remove the folder after unmounting.
    made: bool,
}

impl MountPoint {
    /// The folder `dir`, or one that is created for `volume`.
    ///
    /// # Errors
    /// `Misuse` if `dir` is not an empty folder; `Io`.
    pub fn new(dir: Option<&Path>, volume: &Path, runtime: &Runtime) -> Result<Self> {
        if let Some(dir) = dir {
            return Ok(Self { path: empty_folder(dir)?, made: false });
        }
        let name = name_for(volume);
        let folder = media(runtime)?;
        for number in 1..1000 {
            let path = folder.join(if number == 1 { name.clone() } else { format!("{name}-{number}") });
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, made: true }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::from(e).at(&path)),
            }
        }
        Err(Error::misuse("there are too many folders with the name of this volume").at(&folder))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if self.made {
            // Removes only an empty folder, never a mounted file system.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The user's folder for removable drives, if the user may create folders there; otherwise a folder of this program.
fn media(runtime: &Runtime) -> Result<PathBuf> {
    let user = rustix::process::geteuid();
    let name = std::env::var("USER").ok().filter(|name| !name.is_empty() && !name.contains('/') && name != "..");
    let of_user = name.iter().flat_map(|name| ["/run/media", "/media"].map(|folder| Path::new(folder).join(name)));
    let of_root = user.is_root().then(|| PathBuf::from("/media"));
    let writable = |path: &PathBuf| path.is_dir() && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if let Some(path) = of_user.chain(of_root).find(writable) {
        return Ok(path);
    }
    let own = runtime.path().join("media");
    match DirBuilder::new().mode(0o700).create(&own) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(Error::from(e).at(&own)),
        _ => Ok(own),
    }
}

/// A folder's name for a volume: the file's name without its extension.
fn name_for(volume: &Path) -> String {
    let path = volume.canonicalize().unwrap_or_else(|_| volume.to_owned());
    let name = remote::label(volume).or_else(|| path.file_stem().map(OsStr::to_owned)).unwrap_or_default();
    let name = name.to_string_lossy();
    let name: String = name.chars().map(|c| if c.is_control() || c == '/' || c == ':' { '_' } else { c }).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "volume".to_owned() } else { name.to_owned() }
}

/// The folder as an absolute path without symbolic links, if it is empty.
pub fn empty_folder(dir: &Path) -> Result<PathBuf> {
    let look = || -> Result<PathBuf> {
        let path = dir.canonicalize()?;
        // Resolving a path does not query a FUSE server; a dead mount fails only here.
        if !fs::metadata(&path)?.is_dir() {
            return Err(Error::misuse("not a folder").hint("Give the volume first, then the folder."));
        }
        if let Some(there) = session(|record| record.dir.as_ref() == Some(&path)) {
            return Err(Error::misuse(format!("{} is already mounted here", escape(&there.record.volume)))
                .hint(format!("Its files are there. To unmount: {}", output::suggested("unmount", &path))));
        }
        if fs::read_dir(&path)?.next().is_some() {
            return Err(Error::misuse("this folder is not empty")
                .hint("Mounting would hide its contents. Choose an empty folder, or do not name one."));
        }
        Ok(path)
    };
    look().map_err(|e| {
        let e = e.at(dir);
        match &e.kind {
            ErrorKind::Io(io) if io.kind() == io::ErrorKind::NotConnected => {
                e.hint(format!("A killed server left this mount. To clean up: {}", output::suggested("unmount", dir)))
            }
            ErrorKind::Io(io) if io.kind() == io::ErrorKind::NotFound => {
                e.hint("Create the folder first with mkdir, or omit it.")
            }
            _ => e,
        }
    })
}

/// The first live session for which `wanted` returns true.
fn session(wanted: impl Fn(&SessionRecord) -> bool) -> Option<Session> {
    let sessions = Runtime::of_this_user().and_then(|runtime| runtime.sessions()).unwrap_or_default();
    sessions.into_iter().find(|session| wanted(&session.record) && session.alive())
}

/// Adds to an `InUse` error where the volume is mounted.
pub fn say_where(error: anyhow::Error) -> anyhow::Error {
    let error = match error.downcast::<Error>() {
        Ok(error) if matches!(error.kind, ErrorKind::InUse { .. }) && !is_busy(&error) => error,
        Ok(error) => return error.into(),
        Err(error) => return error,
    };
    let path = error.path.as_deref().and_then(|path| remote::absolute(path).ok());
    let there = path.and_then(|path| session(|record| record.volume == path));
    let Some(Session { record: SessionRecord { dir, uri, .. }, .. }) = there else { return error.into() };
    let uri = uri.unwrap_or_default();
    let place = dir.as_deref().map_or(OsStr::new(&uri), Path::as_os_str);
    let unmount = output::suggested("unmount", place);
    let hint = match dir.as_deref().map(escape) {
        Some(dir) => format!("It is mounted at {dir}. Use its files there, or unmount it: {unmount}"),
        None => format!("It is served at {}. To end that: {unmount}", output::printable(&uri)),
    };
    error.hint(hint).into()
}
