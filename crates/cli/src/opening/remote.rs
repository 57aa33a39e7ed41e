//! Resolves a name to a file or device of this machine, or to a remote store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use claviger_crypto::hash::SHA256;
use claviger_engine::store::{Access, Borrow, FileStore};
use claviger_engine::{Error, Opening, Result, Store};
use claviger_serve::nbd::remote::RemoteOptions;
use claviger_serve::remote::{Helper, RemoteAddress, Writers, helpers};
use claviger_serve::sessions;
use serde::Deserialize;

use crate::terminal::cancel;
use crate::terminal::output::warn;
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

/// The remote store with this name, unless the name is a path.
///
/// # Errors
/// `Misuse` and `Unsupported` for an invalid name or an invalid helper of the user. `Misuse` if a file has this name, too:
/// somebody may have named it so to make this program connect.
pub fn remote(name: &Path) -> Result<Option<RemoteAddress>> {
    // Most names are paths, which do not need the user's helpers.
    if !name.as_os_str().as_encoded_bytes().contains(&b':') {
        return Ok(None);
    }
    let place = RemoteAddress::parse(name.as_os_str(), &all_helpers()?);
    if !matches!(place, Ok(None)) && name.symlink_metadata().is_ok() {
        let scheme = name.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
        return Err(Error::misuse(format!("a file here has this name, but {scheme}: also names a remote store"))
            .at(name)
            .hint(format!(
                "To open the file, write ./{}. To open the remote store, run claviger in another folder.",
                name.display()
            )));
    }
    place.map_err(|e| e.at(name))
}

/// What distinguishes the remote store of this name from others with the same name; `None` for a path.
///
/// # Errors
/// Those of [`remote`] and of [`RemoteAddress::identity`].
pub fn identity(name: &Path) -> Result<Option<String>> {
    let Some(place) = remote(name)? else { return Ok(None) };
    let identity = place.identity().map_err(|e| e.at(name))?;
    let mut digest = [0; 32];
    SHA256.checksum(&[identity.as_bytes()], &mut digest);
    Ok(Some(digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Whether the name is that of a remote store, not a path.
pub fn is_remote(name: &Path) -> bool {
    matches!(remote(name), Ok(Some(_)) | Err(_))
}

/// The volume in a file or remote store, and its detached header, which may also be in either.
///
/// # Errors
/// Those of [`remote`].
pub fn opening(name: &Path, header: Option<&Path>) -> Result<Opening> {
    let opener = |name: &Path, place: RemoteAddress| {
        let name = name.to_owned();
        Arc::new(move |access| opened(&name, &place, access))
    };
    let opening = match remote(name)? {
        Some(place) => Opening::remote(name, opener(name, place)),
        None => Opening::path(name),
    };
    Ok(match (header, header.map(remote).transpose()?.flatten()) {
        (Some(header), Some(place)) => opening.remote_detached_header(header, opener(header, place)),
        (header, _) => opening.detached_header(header),
    })
}

/// Fails if the name is that of a remote store: `what` can be created only on this machine.
///
/// # Errors
/// `Unsupported`.
pub fn must_be_here(name: &Path, what: &str) -> Result<()> {
    match is_remote(name) {
        true => Err(Error::unsupported(format!("{what} in a remote store"))
            .at(name)
            .hint("Create it in a local file, and copy that there.")),
        false => Ok(()),
    }
}

/// The bytes of the file or remote store.
///
/// # Errors
/// Those of [`remote`], of [`RemoteAddress::open`] and of [`FileStore::open`].
pub fn open(name: &Path, access: Access) -> Result<Arc<dyn Store>> {
    match remote(name)? {
        Some(place) => opened(name, &place, access).map_err(|e| e.at(name)),
        None => Ok(Arc::new(FileStore::open(name, access)?)),
    }
}

/// How to borrow what a process of this user mounts or serves.
pub const BORROW: Borrow = Borrow { file: sessions::borrow, remote: borrow_remote };

fn borrow_remote(name: &Path, access: Access) -> Result<Option<Arc<dyn Store>>> {
    identity(name)?.map_or(Ok(None), |identity| sessions::borrow_remote(&identity, access))
}

/// Like [`open`], for writing, but borrows what a process of this user mounts or serves.
///
/// # Errors
/// Those of [`open`] and of [`BORROW`].
pub fn open_or_borrow(name: &Path) -> Result<Arc<dyn Store>> {
    let access = Access::ReadWrite;
    let Some(place) = remote(name)? else {
        return Ok(Arc::new(FileStore::open_or_borrow(name, access, BORROW)?));
    };
    let borrowed = borrow_remote(name, access).map_err(|e| e.at(name))?;
    borrowed.map_or_else(|| opened(name, &place, access).map_err(|e| e.at(name)), Ok)
}

/// Opens the remote store. Warns once if nothing keeps other machines from writing to it at the same time.
fn opened(name: &Path, place: &RemoteAddress, access: Access) -> Result<Arc<dyn Store>> {
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

/// The absolute path, or the name of the remote store: valid in any current folder.
///
/// # Errors
/// `Io` if the file does not exist.
pub fn absolute(name: &Path) -> Result<PathBuf> {
    match is_remote(name) {
        true => Ok(name.to_owned()),
        false => name.canonicalize().map_err(|e| Error::from(e).at(name)),
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
        for name in ["nbd://h/x", "rbd:pool/image", "nbd+vsock://1"] {
            assert!(is_remote(Path::new(name)), "{name}");
            assert_eq!(absolute(Path::new(name)).ok(), Some(name.into()));
        }
        assert!(!is_remote(Path::new("./rbd:x")) && !is_remote(Path::new("x.tc")));
    }
}
