//! A file that is not the disk itself, but holds one: an image of a virtual disk, or the first part of a split one. People give the
//! file; a prefix such as `vhdx:` is only needed to write.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::diagnosis::{self, DiskAccess};
use claviger_engine::store::Access;
use claviger_engine::{Error, Opening, Result, Store};
use claviger_serve::remote::{RemoteAddress, helpers};

use super::{parts, remote, segments};
use crate::terminal::{advice, output};

/// The helper that cannot write: qemu only reads images of macOS.
const ONLY_READ: &str = "dmg";

/// A disk in a file or in several. It is only read.
#[derive(Clone)]
pub enum DiskInFile {
    /// An image of a virtual disk, which a helper opens.
    Image {
        /// With an article: `a virtual disk of Hyper-V (VHDX)`.
        what: String,
        /// The scheme of the helper.
        scheme: &'static str,
    },
    /// The parts of a split disk, in order.
    Parts(Vec<PathBuf>),
    /// The segment files of a forensic image, in order.
    Evidence {
        /// With an article: `a forensic image of EnCase (EWF, E01)`.
        what: String,
        segments: Vec<PathBuf>,
    },
}

impl DiskInFile {
    /// The disk in the file or block device at `path`; `None` if its bytes are those of the disk, or if it cannot be read: opening it
    /// gives the error.
    ///
    /// # Errors
    /// Those of [`parts::find`] and [`segments::find`].
    pub fn of(path: &Path) -> Result<Option<Self>> {
        if let Some(parts) = parts::find(path)? {
            return Ok(Some(Self::Parts(parts)));
        }
        let Some(mark) = diagnosis::disk_image(path).ok().flatten() else { return Ok(None) };
        Ok(match mark.way {
            Some(DiskAccess::Image(scheme)) => Some(Self::Image { what: mark.what, scheme }),
            Some(DiskAccess::Evidence) => Some(Self::Evidence { what: mark.what, segments: segments::find(path)? }),
            _ => None,
        })
    }

    /// What the file is, with an article.
    pub fn what(&self) -> String {
        match self {
            Self::Image { what, .. } => what.clone(),
            Self::Evidence { what, segments } if segments.len() > 1 => format!("{what} in {} files", segments.len()),
            Self::Evidence { what, .. } => what.clone(),
            Self::Parts(parts) => format!("a disk joined from {} files", parts.len()),
        }
    }

    /// How to open the volume on the disk.
    pub fn opening(self, path: &Path) -> Opening {
        let at = path.to_owned();
        Opening::remote(path, Arc::new(move |access| self.open(&at, access)))
    }

    /// Opens the disk.
    ///
    /// # Errors
    /// `Misuse` for writing; those of [`RemoteAddress::open`], [`parts::open`] and [`segments::open`].
    pub fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Store>> {
        if access == Access::ReadWrite {
            return Err(self.only_read(path));
        }
        match self {
            Self::Image { scheme, .. } => remote::opened(path, &address(scheme, path)?, access),
            Self::Parts(parts) => parts::open(parts),
            Self::Evidence { segments, .. } => segments::open(segments),
        }
    }

    /// The name by which the disk is also written, if there is one: `vhdx:FILE`.
    pub fn to_be_written(&self, path: &Path) -> PathBuf {
        match self {
            Self::Image { scheme, .. } if *scheme != ONLY_READ => prefixed(scheme, path).into(),
            Self::Image { .. } | Self::Parts(_) | Self::Evidence { .. } => path.to_owned(),
        }
    }

    /// The error for a verb that would write to the disk.
    pub fn only_read(&self, path: &Path) -> Error {
        let why = match self {
            Self::Image { scheme, .. } if *scheme == ONLY_READ => "such an image is only read",
            Self::Image { .. } => "an image recognised by its content is only read",
            Self::Parts(_) => "a split disk is only read",
            Self::Evidence { .. } => "a forensic image is only read",
        };
        Error::misuse(format!("cannot write to {}: {why}", self.what())).at(path).hint(self.to_write(path))
    }

    /// How to write to the disk: a sentence with a command.
    fn to_write(&self, path: &Path) -> String {
        match self {
            Self::Image { scheme, .. } if *scheme != ONLY_READ => {
                let named = self.to_be_written(path);
                let command = advice::this_command(path, named.as_os_str());
                format!("To write to the disk in it: {}", command.unwrap_or_else(|| output::command([named])))
            }
            Self::Image { .. } | Self::Evidence { .. } => {
                let words = ["claviger", "mount", "--raw", "--filesystem", "none"].map(OsStr::new);
                let mount = output::command(words.into_iter().chain([path.as_os_str(), OsStr::new("FOLDER")]));
                format!("To write, make a copy of the disk. Its bytes are FOLDER/volume after: {mount}")
            }
            Self::Parts(parts) => {
                let copy = path.with_extension("joined");
                let command =
                    output::command([OsStr::new("cat")].into_iter().chain(parts.iter().map(|p| p.as_os_str())));
                let mut alone = OsString::from("raw:");
                alone.push(path);
                format!(
                    "To write to it, join its parts: {command} > {}. The first file alone is {}.",
                    output::command([copy]),
                    output::command([alone])
                )
            }
        }
    }

    /// Says that the disk is opened read-only although nobody asked for that.
    pub fn note_read_only(&self, path: &Path) {
        output::note(&format!("{}: {}, so it is read-only. {}", path.display(), self.what(), self.to_write(path)));
    }
}

/// The image as the name of a remote store, which may also be written.
fn prefixed(scheme: &str, path: &Path) -> OsString {
    let mut name = OsString::from(format!("{scheme}:"));
    // A helper would take such a name for an option.
    if path.as_os_str().as_bytes().starts_with(b"-") {
        name.push("./");
    }
    name.push(path);
    name
}

/// The address for one of our own helpers: a user's helper with the same name may have no sandbox.
fn address(scheme: &str, path: &Path) -> Result<RemoteAddress> {
    let address = RemoteAddress::parse(&prefixed(scheme, path), &helpers())?;
    address.ok_or_else(|| Error::unsupported(format!("{scheme} images")))
}
