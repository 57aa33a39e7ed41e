//! Resolves a name to a file or device of this machine, to a remote store, or to one that is assembled of others.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use claviger_crypto::hash::SHA256;
use claviger_engine::opening::Opener;
use claviger_engine::store::{Access, Borrow, FileStore};
use claviger_engine::{Error, Opening, Result, Store};
use claviger_serve::nbd::remote::RemoteOptions;
use claviger_serve::remote::{Helper, RemoteAddress, Writers, helpers};
use claviger_serve::sessions;
use serde::Deserialize;

use super::assembled::{Assembled, SCHEMES};
use super::disk_in_file::DiskInFile;
use crate::terminal::cancel;
use crate::terminal::output::{self, warn};
use crate::terminal::session::session;

/// A user's helper for remote stores: one row of helpers.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Row {
    form: String,
    program: String,
    arguments: Vec<String>,
    #[serde(default)]
    read_only: Vec<String>,
    #[serde(default)]
    options: Vec<String>,
    #[serde(default)]
    environment: Vec<String>,
}

/// The address of a store that is not a file or device.
pub enum StoreAddress {
    /// A store on another machine, or one that a helper serves.
    Remote(Box<RemoteAddress>),
    /// A store that is put together of others.
    Assembled(Assembled),
}

impl StoreAddress {
    /// What kind of store this is, with an article.
    fn kind(&self) -> &'static str {
        match self {
            Self::Remote(_) => "a remote store",
            Self::Assembled(_) => "an assembled store",
        }
    }

    fn open(&self, name: &Path, access: Access) -> Result<Arc<dyn Store>> {
        match self {
            Self::Remote(place) => opened(name, place, access),
            Self::Assembled(parts) => parts.open(access),
        }
    }

    fn identity(&self) -> Result<String> {
        match self {
            Self::Remote(place) => place.identity(),
            Self::Assembled(parts) => parts.identity(),
        }
    }
}

/// The address that this name is, unless it is a path.
///
/// # Errors
/// `Misuse` and `Unsupported` for an invalid name or an invalid helper of the user. `Misuse` if a file has this name, too:
/// somebody may have named it so to make this program connect.
pub fn address(name: &Path) -> Result<Option<StoreAddress>> {
    // Most names are paths, which do not need the user's helpers.
    if !name.as_os_str().as_encoded_bytes().contains(&b':') {
        return Ok(None);
    }
    let place = parsed(name);
    if !matches!(place, Ok(None)) && name.symlink_metadata().is_ok() {
        let scheme = name.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
        let kind = place.ok().flatten().map_or("another store", |place| place.kind());
        return Err(Error::misuse(format!("a file here has this name, but {scheme}: also names {kind}"))
            .at(name)
            .hint(format!(
                "To open the file, write ./{}. To open the other, run claviger in another folder.",
                name.display()
            )));
    }
    place.map_err(|e| e.at(name))
}

fn parsed(name: &Path) -> Result<Option<StoreAddress>> {
    if let Some(parts) = Assembled::parse(name.as_os_str())? {
        return Ok(Some(StoreAddress::Assembled(parts)));
    }
    Ok(RemoteAddress::parse(name.as_os_str(), &all_helpers()?)?.map(|place| StoreAddress::Remote(Box::new(place))))
}

/// A short name of an assembled store, for files that belong to it; `None` for other names.
pub fn label(name: &Path) -> Option<OsString> {
    match address(name) {
        Ok(Some(StoreAddress::Assembled(parts))) => Some(parts.label().into()),
        _ => None,
    }
}

/// What distinguishes the store of this name from others with the same name; `None` for a path.
///
/// # Errors
/// Those of [`address`]; `Io` if a file or socket of the address is missing.
pub fn identity(name: &Path) -> Result<Option<String>> {
    let Some(place) = address(name)? else { return Ok(None) };
    let identity = place.identity().map_err(|e| e.at(name))?;
    let mut digest = [0; 32];
    SHA256.checksum(&[identity.as_bytes()], &mut digest);
    Ok(Some(digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Whether the name is that of a remote or assembled store, not a path.
pub fn is_remote(name: &Path) -> bool {
    matches!(address(name), Ok(Some(_)) | Err(_))
}

/// The volume in a file, in the disk that a file holds, or in another store, and its detached header, which may also be in either.
///
/// # Errors
/// Those of [`address`] and [`DiskInFile::of`].
pub fn opening(name: &Path, header: Option<&Path>) -> Result<Opening> {
    let opening = match disk_in_file(name)? {
        Some(disk) => disk.opening(name),
        None => of_bytes(name)?,
    };
    with_header(opening, header)
}

/// Like [`opening`], but the volume is the bytes of the file, whatever they are.
///
/// # Errors
/// Those of [`address`].
pub fn opening_of_bytes(name: &Path, header: Option<&Path>) -> Result<Opening> {
    with_header(of_bytes(name)?, header)
}

/// The disk in a file that is not the disk itself; `None` for all other names.
///
/// # Errors
/// Those of [`address`] and [`DiskInFile::of`].
pub fn disk_in_file(name: &Path) -> Result<Option<DiskInFile>> {
    if raw(name).is_some() || address(name)?.is_some() { Ok(None) } else { DiskInFile::of(name) }
}

/// The file whose bytes are those of the volume: FILE in `raw:FILE`, unless there is a file of that name.
fn raw(name: &Path) -> Option<&Path> {
    let file = name.as_os_str().as_bytes().strip_prefix(b"raw:").filter(|file| !file.is_empty());
    file.filter(|_| name.symlink_metadata().is_err()).map(|file| Path::new(OsStr::from_bytes(file)))
}

/// The file that a path or `raw:FILE` leads to.
pub fn file(name: &Path) -> &Path {
    raw(name).unwrap_or(name)
}

/// Fails for `raw:FILE`, where a file may be created.
///
/// # Errors
/// `Misuse`.
pub fn must_not_be_raw(name: &Path) -> Result<()> {
    raw(name).map_or(Ok(()), |file| {
        let hint = format!("Name the file itself: {}.", output::command([file]));
        Err(Error::misuse("raw: is only for existing files that are opened").at(name).hint(hint))
    })
}

fn of_bytes(name: &Path) -> Result<Opening> {
    Ok(match address(name)? {
        Some(place) => Opening::remote(name, opener(name, place)),
        None => Opening::path(file(name)),
    })
}

fn with_header(opening: Opening, header: Option<&Path>) -> Result<Opening> {
    Ok(match (header, header.map(address).transpose()?.flatten()) {
        (Some(header), Some(place)) => opening.remote_detached_header(header, opener(header, place)),
        (header, _) => opening.detached_header(header.map(file)),
    })
}

fn opener(name: &Path, place: StoreAddress) -> Opener {
    let name = name.to_owned();
    Arc::new(move |access| place.open(&name, access))
}

/// Fails if the name is not a path: `what` can be created only in a file or device of this machine.
///
/// # Errors
/// `Unsupported`.
pub fn must_be_here(name: &Path, what: &str) -> Result<()> {
    must_not_be_raw(name)?;
    match address(name).transpose() {
        Some(place) => {
            let kind = place.map_or("a remote store", |place| place.kind());
            Err(Error::unsupported(format!("{what} in {kind}"))
                .at(name)
                .hint("Create it in a local file, and copy that there."))
        }
        None => Ok(()),
    }
}

/// The bytes of the file or other store. An image is not opened: these are its own bytes.
///
/// # Errors
/// Those of [`address`], of [`RemoteAddress::open`], of [`Assembled::open`] and of [`FileStore::open`].
pub fn open(name: &Path, access: Access) -> Result<Arc<dyn Store>> {
    match address(name)? {
        Some(place) => place.open(name, access).map_err(|e| e.at(name)),
        None => Ok(Arc::new(FileStore::open(file(name), access)?)),
    }
}

/// Like [`open`], but the disk in an image or in a split file.
///
/// # Errors
/// Those of [`open`], [`DiskInFile::of`] and [`DiskInFile::open`].
pub fn open_disk(name: &Path, access: Access) -> Result<Arc<dyn Store>> {
    match disk_in_file(name)? {
        Some(disk) => disk.open(name, access).map_err(|e| e.at(name)),
        None => open(name, access),
    }
}

/// How to borrow what a process of this user mounts or serves.
pub const BORROW: Borrow = Borrow { file: sessions::borrow, remote: borrow_remote };

/// Parts of stores are not lent: what is lent is the whole store.
fn borrow_remote(name: &Path, access: Access) -> Result<Option<Arc<dyn Store>>> {
    match address(name)? {
        Some(StoreAddress::Remote(_)) => {
            identity(name)?.map_or(Ok(None), |identity| sessions::borrow_remote(&identity, access))
        }
        Some(StoreAddress::Assembled(_)) | None => Ok(None),
    }
}

/// Like [`open`], for writing, but borrows what a process of this user mounts or serves.
///
/// # Errors
/// Those of [`open`] and of [`BORROW`].
pub fn open_or_borrow(name: &Path) -> Result<Arc<dyn Store>> {
    let access = Access::ReadWrite;
    let Some(place) = address(name)? else {
        return Ok(Arc::new(FileStore::open_or_borrow(file(name), access, BORROW)?));
    };
    let borrowed = borrow_remote(name, access).map_err(|e| e.at(name))?;
    borrowed.map_or_else(|| place.open(name, access).map_err(|e| e.at(name)), Ok)
}

/// Borrows what a process of this user mounts or serves, for writing; `None` if there is no such process. Starts no program.
///
/// # Errors
/// Those of [`FileStore::open_or_borrow`] and of [`BORROW`].
pub fn borrow(name: &Path) -> Result<Option<Arc<dyn Store>>> {
    if address(name)?.is_some() {
        return borrow_remote(name, Access::ReadWrite).map_err(|e| e.at(name));
    }
    let store = FileStore::open_or_borrow(file(name), Access::ReadWrite, BORROW)?;
    Ok(store.lender().is_some().then(|| Arc::new(store) as Arc<dyn Store>))
}

/// Opens the remote store. Warns once if nothing keeps other machines from writing to it at the same time.
pub(super) fn opened(name: &Path, place: &RemoteAddress, access: Access) -> Result<Arc<dyn Store>> {
    static TOLD: Once = Once::new();
    // Signals end the wait for a server.
    cancel::install()?;
    let store = place.open(access, options())?;
    if access == Access::ReadWrite && place.writers() == Writers::Unknown {
        TOLD.call_once(|| {
            warn(&format!(
                "{} has no lock: if another machine writes to it at the same time, its contents are destroyed.",
                name.display()
            ));
        });
    }
    Ok(store)
}

/// The absolute path, or the name of the other store: valid in any current folder.
///
/// # Errors
/// `Io` if a file does not exist.
pub fn absolute(name: &Path) -> Result<PathBuf> {
    match address(name) {
        Ok(Some(StoreAddress::Assembled(parts))) => parts.absolute(),
        Ok(Some(StoreAddress::Remote(_))) | Err(_) => Ok(name.to_owned()),
        Ok(None) => {
            let absolute = file(name).canonicalize().map_err(|e| Error::from(e).at(name))?;
            if raw(name).is_none() {
                return Ok(absolute);
            }
            let mut raw = OsString::from("raw:");
            raw.push(absolute);
            Ok(raw.into())
        }
    }
}

fn options() -> RemoteOptions {
    RemoteOptions { cancel: cancel::waits(), ..session().remote }
}

/// The user's helpers, which may replace ours, and ours.
fn all_helpers() -> Result<Vec<Helper>> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
    let Some(path) = config.map(|config| config.join("claviger/helpers.toml")) else { return Ok(helpers()) };
    let text = match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(helpers()),
        read => read.map_err(|e| Error::from(e).at(&path))?,
    };
    Ok([own_helpers(&text).map_err(|e| e.at(&path))?, helpers()].concat())
}

fn own_helpers(text: &str) -> Result<Vec<Helper>> {
    let rows: std::collections::BTreeMap<String, Row> =
        toml::from_str(text).map_err(|e| Error::misuse(e.to_string().trim()))?;
    let helper = |(scheme, row): (String, Row)| {
        if SCHEMES.contains(&&*scheme) {
            return Err(Error::misuse(format!("{scheme:?} is a scheme of claviger itself: choose another")));
        }
        let plain =
            scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !plain || scheme.starts_with("nbd") {
            return Err(Error::misuse(format!(
                "{scheme:?}: a scheme has two or more of a-z, 0-9 and -, and must not be one of NBD's"
            )));
        }
        let Row { form, program, arguments, read_only, options, environment } = row;
        // qemu would detect the image format itself, and open any file that the image names.
        let raw = |pair: &[String]| matches!(pair[0].as_str(), "-f" | "--format") && pair[1] == "raw";
        let is_raw =
            arguments.windows(2).any(raw) || arguments.iter().any(|word| matches!(&**word, "--format=raw" | "-fraw"));
        if Path::new(&program).ends_with("qemu-nbd") && !is_raw {
            return Err(Error::misuse(format!(
                "{scheme:?}: qemu-nbd without --format=raw reads and writes other files named in an image"
            ))
            .hint("To open images safely, use the schemes qcow2:, vmdk:, vhdx:, vpc:, vdi:, qed: and parallels:."));
        }
        let package = format!("that has {program}");
        Ok(Helper {
            scheme,
            form,
            program,
            arguments,
            read_only,
            options,
            environment,
            package,
            writers: Writers::Unknown,
            service: String::new(),
            image: None,
        })
    };
    rows.into_iter().map(helper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_ones_own_are_read_and_checked() {
        let text =
            "[tape]\nform = \"{reel}\"\nprogram = \"tape-nbd\"\narguments = [\"--reel={reel}\"]\nread-only = [\"-r\"]";
        let rows = own_helpers(text).expect("a row");
        assert_eq!((rows[0].scheme.as_str(), rows[0].read_only.len(), rows[0].options.len()), ("tape", 1, 0));
        for (wrong, word) in [
            ("[c]\nform='x'\nprogram='y'\narguments=[]", "two or more"),
            ("[nbd]\nform='x'\nprogram='y'\narguments=[]", "NBD"),
            ("[md]\nform='x'\nprogram='y'\narguments=[]", "claviger itself"),
            ("[ab]\nprogram='y'\narguments=[]", "form"),
            ("[ab]\nform='x'\nprogram='y'\narguments=[]\nkey='z'", "key"),
            ("[ab]\nform='{x}'\nprogram='/usr/bin/qemu-nbd'\narguments=['-f', 'qed', '{x}']", "--format=raw"),
        ] {
            let error = own_helpers(wrong).expect_err(wrong).to_string();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn names_with_a_scheme_are_no_paths() {
        assert!(is_remote(Path::new("md:a,b")) && is_remote(Path::new("lvm:vg/x@a")));
        for name in ["nbd://h/x", "rbd:pool/image", "nbd+vsock://1"] {
            assert!(is_remote(Path::new(name)), "{name}");
            assert_eq!(absolute(Path::new(name)).ok(), Some(name.into()));
        }
        assert!(!is_remote(Path::new("./rbd:x")) && !is_remote(Path::new("x.tc")) && !is_remote(Path::new("raw:x")));
    }

    #[test]
    fn raw_names_a_file_unless_one_has_this_name() {
        assert_eq!(raw(Path::new("raw:/x:y")), Some(Path::new("/x:y")));
        for other in ["raw:", "/x", "rawer:x", "./raw:x"] {
            assert_eq!(raw(Path::new(other)), None, "{other}");
        }
    }
}
