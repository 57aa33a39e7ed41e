//! What `claviger` for Python is made of: positioned reads and writes, without the interpreter's lock. The package beside it makes file
//! objects of it.

mod buffer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use claviger_bindings::{Job, NewVolume, Options, Secrets, check_secret};
use claviger_engine::credential::Headerless;
use claviger_engine::trees::{Attributes, NodeKind, Use};
use claviger_engine::{Error, ErrorKind, Secret};
use pyo3::buffer::PyBuffer;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::buffer::Bytes;

/// How often somebody who waits looks whether Ctrl-C was pressed.
const LOOK: Duration = Duration::from_millis(20);

/// The exception for an error: `_errors.failure` makes it.
fn raised(py: Python<'_>, error: Error) -> PyErr {
    let hint = error.to_try(ToString::to_string);
    let (code, path) = (error.kind.code(), error.path.clone());
    let errno = match &error.kind {
        ErrorKind::Io(e) => Some(e.raw_os_error().unwrap_or_else(|| errno(e.kind()))),
        _ => None,
    };
    let message = Error { hint: None, advice: None, path: None, ..error }.to_string();
    let made = py.import("claviger._errors").and_then(|module| {
        module.getattr("failure")?.call1((code, message, hint, path.map(PathBuf::into_os_string), errno))
    });
    made.map_or_else(|e| e, PyErr::from_value)
}

/// The number that the system has for it.
fn errno(kind: std::io::ErrorKind) -> i32 {
    use std::io::ErrorKind as Kind;
    match kind {
        Kind::NotFound => libc::ENOENT,
        Kind::PermissionDenied => libc::EACCES,
        Kind::AlreadyExists => libc::EEXIST,
        Kind::NotADirectory => libc::ENOTDIR,
        Kind::IsADirectory => libc::EISDIR,
        Kind::DirectoryNotEmpty => libc::ENOTEMPTY,
        Kind::StorageFull => libc::ENOSPC,
        Kind::FileTooLarge => libc::EFBIG,
        Kind::InvalidFilename | Kind::InvalidInput => libc::EINVAL,
        Kind::ReadOnlyFilesystem => libc::EROFS,
        Kind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

/// Does something short without the interpreter's lock.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    py.detach(work).map_err(|e| raised(py, e))
}

/// Does something long on a thread of its own: Ctrl-C cancels it, and `progress` is called with what is done and what there is.
fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Job) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let job = Job::default();
    let (done, result) = channel();
    let result = Mutex::new(result);
    thread::scope(|scope| {
        let job = &job;
        scope.spawn(move || done.send(work(job)));
        let mut stopped = None;
        loop {
            let wait = || result.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK);
            match (py.detach(wait), stopped) {
                (Ok(_) | Err(RecvTimeoutError::Disconnected), Some(why)) => return Err(why),
                (Ok(result), None) => return result.map_err(|e| raised(py, e)),
                // It panicked, and so does the scope.
                (Err(RecvTimeoutError::Disconnected), None) => return Err(PyValueError::new_err("it panicked")),
                (Err(RecvTimeoutError::Timeout), Some(why)) => stopped = Some(why),
                (Err(RecvTimeoutError::Timeout), None) => {
                    let told = progress.map_or(Ok(()), |progress| progress.call1(job.progress()).map(drop));
                    stopped = py.check_signals().and(told).err();
                    if stopped.is_some() {
                        job.cancel();
                    }
                }
            }
        }
    })
}

/// A secret, copied at once to memory that is locked and wiped.
struct Secretly(Secret);

impl<'a, 'py> FromPyObject<'a, 'py> for Secretly {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_str()?;
            check_secret(text.len()).map_err(|e| raised(object.py(), e))?;
            return Ok(Self(Secret::copy_from(text.as_bytes())));
        }
        let buffer = PyBuffer::<u8>::get(&object)?;
        check_secret(buffer.len_bytes()).map_err(|e| raised(object.py(), e))?;
        let mut secret = Secret::zeroed(buffer.len_bytes());
        buffer.copy_to_slice(object.py(), &mut secret)?;
        Ok(Self(secret))
    }
}

/// Options of `_volumes.How` and `_volumes.New`, by their names.
struct OptionsDict<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> OptionsDict<'_, 'py> {
    fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<Option<T>> {
        let Some(value) = self.0.get_item(name)?.filter(|value| !value.is_none()) else { return Ok(None) };
        let taken: Result<T, PyErr> = value.extract::<T>().map_err(Into::into);
        taken.map(Some).map_err(|e| PyTypeError::new_err(format!("{name}: {e}")))
    }

    fn flag(&self, name: &str) -> PyResult<bool> {
        Ok(self.get(name)?.unwrap_or_default())
    }

    fn secrets(&self) -> PyResult<Secrets> {
        let secret = |name| Ok::<_, PyErr>(self.get::<Secretly>(name)?.map(|Secretly(secret)| secret));
        let (password, volume_key) = (secret("password")?, secret("volume_key")?);
        Ok(Secrets { password, volume_key, hidden_password: secret("hidden_password")? })
    }

    fn options(&self) -> PyResult<Options> {
        Ok(Options {
            format: self.get("format")?,
            header: self.get("header")?,
            partition: self.get("partition")?,
            hash: self.get("hash")?,
            cipher: self.get("cipher")?,
            pim: self.get("pim")?,
            keyslot: self.get("keyslot")?,
            keyfiles: self.get("keyfiles")?.unwrap_or_default(),
            hidden_keyfiles: self.get("hidden_keyfiles")?.unwrap_or_default(),
            hidden_pim: self.get("hidden_pim")?,
            logical_volume: self.get("logical_volume")?,
            backup_header: self.flag("backup_header")?,
            writable: self.flag("writable")?,
            truncated: self.flag("truncated")?,
            allow_slow: self.flag("allow_slow")?,
            memory: self.get("memory")?,
            headerless: Headerless {
                key_bits: self.get("key_bits")?,
                offset: self.get("data_offset")?,
                skip: self.get("skip")?,
                size: self.get("data_size")?,
                sector_size: self.get("sector_size")?,
                ..Headerless::default()
            },
        })
    }

    fn new_volume(&self, size: u64) -> PyResult<NewVolume> {
        Ok(NewVolume {
            size,
            quick: self.flag("quick")?,
            label: self.get("label")?,
            sector_size: self.get("sector_size")?,
            key_bits: self.get("key_bits")?,
            integrity: self.get("integrity")?,
            kdf: self.get("kdf")?,
            kdf_time_ms: self.get("kdf_time_ms")?,
            kdf_iterations: self.get("kdf_iterations")?,
            kdf_memory_kib: self.get("kdf_memory_kib")?,
        })
    }
}

/// What is handed to Python, which closes it.
struct Closable<T>(Mutex<Option<Arc<T>>>);

impl<T: Send + Sync> Closable<T> {
    fn new(open: T) -> Self {
        Self(Mutex::new(Some(Arc::new(open))))
    }

    fn get(&self) -> PyResult<Arc<T>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    fn close(&self, py: Python<'_>) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its threads end, and it may be written to.
        py.detach(|| drop(open));
    }
}

/// What was found, still locked.
#[pyclass(frozen)]
struct LockedVolume(Mutex<Option<claviger_bindings::LockedVolume>>);

impl LockedVolume {
    fn take(&self) -> PyResult<claviger_bindings::LockedVolume> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        found.ok_or_else(|| PyValueError::new_err("it was opened already"))
    }
}

#[pymethods]
impl LockedVolume {
    fn asks_password(&self, py: Python<'_>) -> PyResult<bool> {
        let asks = || {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(Ok(false), |it| it.asks_password())
        };
        detached(py, asks)
    }

    fn volume(
        &self,
        py: Python<'_>,
        given: &Bound<'_, PyDict>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Volume> {
        let (found, secrets) = (self.take()?, OptionsDict(given).secrets()?);
        watched(py, progress, |job| found.volume(&secrets, job)).map(|open| Volume(Closable::new(open)))
    }

    fn files(&self, py: Python<'_>, given: &Bound<'_, PyDict>, progress: Option<&Bound<'_, PyAny>>) -> PyResult<Files> {
        let (found, secrets) = (self.take()?, OptionsDict(given).secrets()?);
        watched(py, progress, |job| found.files(&secrets, job)).map(|open| Files(Closable::new(open)))
    }
}

/// An open volume.
#[pyclass(frozen)]
struct Volume(Closable<claviger_bindings::Volume>);

#[pymethods]
impl Volume {
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get()?.size().map_err(|e| raised(py, e))
    }

    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.get()?.writable().map_err(|e| raised(py, e))
    }

    fn facts(&self) -> PyResult<String> {
        serde_json::to_string(&self.0.get()?.facts).map_err(|e| PyValueError::new_err(e.to_string()))
    }

    fn warnings(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.warnings.clone())
    }

    fn readinto(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (volume, mut buffer) = (self.0.get()?, Bytes::of(buffer, true)?);
        detached(py, || {
            let len = volume.size()?.saturating_sub(offset).min(buffer.len() as u64) as usize;
            // Behind the end there is nothing, not even nothing to read.
            if len > 0 {
                volume.read_at(offset, &mut buffer.room()[..len])?;
            }
            Ok(len)
        })
    }

    fn write(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (volume, buffer) = (self.0.get()?, Bytes::of(buffer, false)?);
        detached(py, || {
            let len = volume.size()?.saturating_sub(offset).min(buffer.len() as u64) as usize;
            if len > 0 {
                volume.write_at(offset, &buffer.bytes()[..len])?;
            }
            Ok(len)
        })
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let volume = self.0.get()?;
        detached(py, || volume.flush())
    }

    fn files(&self, py: Python<'_>) -> PyResult<Files> {
        let volume = self.0.get()?;
        detached(py, || volume.files()).map(|open| Files(Closable::new(open)))
    }

    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }
}

/// Kind, size, seconds since 1970 of the last change and of the making, and permissions.
type Stat = (&'static str, u64, Option<f64>, Option<f64>, Option<u16>);

fn stat(of: &Attributes) -> Stat {
    let kind = match of.kind {
        NodeKind::File => "file",
        NodeKind::Folder => "directory",
        NodeKind::Link => "link",
        NodeKind::Special => "other",
    };
    let seconds = |time: std::time::SystemTime| match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    };
    (kind, of.size, of.modified.map(seconds), of.created.map(seconds), of.mode)
}

/// The files in a volume or folder.
#[pyclass(frozen)]
struct Files(Closable<claviger_bindings::Files>);

#[pymethods]
impl Files {
    fn kind(&self) -> PyResult<&'static str> {
        Ok(self.0.get()?.kind)
    }

    fn warnings(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.warnings.clone())
    }

    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.get()?.writable().map_err(|e| raised(py, e))
    }

    fn stat(&self, py: Python<'_>, path: OsString) -> PyResult<Stat> {
        let files = self.0.get()?;
        detached(py, || files.attributes(&path).map(|of| stat(&of)))
    }

    fn list(&self, py: Python<'_>, path: OsString) -> PyResult<Vec<(OsString, Stat)>> {
        let files = self.0.get()?;
        let listed = detached(py, || files.list(&path))?;
        Ok(listed.into_iter().map(|(name, of)| (name, stat(&of))).collect())
    }

    fn link_target(&self, py: Python<'_>, path: OsString) -> PyResult<OsString> {
        let files = self.0.get()?;
        detached(py, || files.link_target(&path))
    }

    fn open(&self, py: Python<'_>, path: OsString, write: bool, new: bool) -> PyResult<File> {
        let files = self.0.get()?;
        let usage = Use { read: true, write };
        detached(py, || files.open(&path, usage, new)).map(|open| File(Closable::new(open)))
    }

    fn make_folder(&self, py: Python<'_>, path: OsString) -> PyResult<()> {
        let files = self.0.get()?;
        detached(py, || files.make_folder(&path))
    }

    fn remove(&self, py: Python<'_>, path: OsString) -> PyResult<()> {
        let files = self.0.get()?;
        detached(py, || files.remove(&path))
    }

    fn rename(&self, py: Python<'_>, from: OsString, to: OsString) -> PyResult<()> {
        let files = self.0.get()?;
        detached(py, || files.rename(&from, &to))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let files = self.0.get()?;
        detached(py, || files.finish())
    }

    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }
}

/// An open file.
#[pyclass(frozen)]
struct File(Closable<claviger_bindings::File>);

#[pymethods]
impl File {
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get()?.size().map_err(|e| raised(py, e))
    }

    fn readinto(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (file, mut buffer) = (self.0.get()?, Bytes::of(buffer, true)?);
        detached(py, || file.read_at(offset, buffer.room()))
    }

    fn write(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (file, buffer) = (self.0.get()?, Bytes::of(buffer, false)?);
        detached(py, || file.write_at(offset, buffer.bytes()).map(|()| buffer.len()))
    }

    fn set_len(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        let file = self.0.get()?;
        detached(py, || file.set_len(len))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.0.get()?;
        detached(py, || file.flush())
    }

    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }
}

/// The extension module `claviger._native`.
#[pymodule(name = "_native")]
mod native {
    use super::*;

    #[pymodule_export]
    use super::{File, Files, LockedVolume, Volume};

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pyfunction]
    fn find(py: Python<'_>, path: PathBuf, for_files: bool, how: &Bound<'_, PyDict>) -> PyResult<LockedVolume> {
        let options = OptionsDict(how).options()?;
        let found = detached(py, || options.find(&path, for_files))?;
        Ok(LockedVolume(Mutex::new(Some(found))))
    }

    #[pyfunction]
    fn identify(py: Python<'_>, path: PathBuf) -> PyResult<String> {
        detached(py, || claviger_bindings::identify(&path))
    }

    #[pyfunction]
    fn explain(
        py: Python<'_>,
        path: PathBuf,
        given: &Bound<'_, PyDict>,
        progress: Option<&Bound<'_, PyAny>>,
        how: &Bound<'_, PyDict>,
    ) -> PyResult<String> {
        let (options, secrets) = (OptionsDict(how).options()?, OptionsDict(given).secrets()?);
        watched(py, progress, |job| claviger_bindings::explain(&path, &options, &secrets, job))
    }

    #[pyfunction]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        size: u64,
        given: &Bound<'_, PyDict>,
        progress: Option<&Bound<'_, PyAny>>,
        new: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let (options, made, secrets) =
            (OptionsDict(new).options()?, OptionsDict(new).new_volume(size)?, OptionsDict(given).secrets()?);
        watched(py, progress, |job| claviger_bindings::create(&path, &made, &options, &secrets, job))
    }
}
