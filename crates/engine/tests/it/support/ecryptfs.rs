//! Folders of eCryptfs, opened as the kernel mounts them.

use std::path::Path;
use std::sync::Arc;

use claviger_engine::credential::FolderOptions;
use claviger_engine::file_formats::{self, Stacked};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Result, Secret, Unlock};
use claviger_testkit::ecryptfs::kernel::{Lower, Mount};
use claviger_testkit::ecryptfs::maker::Cipher;

use super::passphrase;

pub const PASSPHRASE: &str = "mount passphrase";

/// A mount of a folder with the passphrase above, for names, too.
pub fn mount(lower: &Path, cipher: Cipher) -> Mount<'_> {
    Mount { lower: Lower::Folder(lower), passphrase: PASSPHRASE, of_names: Some(PASSPHRASE), cipher, options: "" }
}

pub fn host(folder: &Path) -> Arc<dyn Tree> {
    Arc::new(HostFolder::open(folder, Access::ReadWrite).expect("it opens"))
}

/// Opens `lower` as `mount` says, which may mean the same folder by another way.
pub fn open(lower: Arc<dyn Tree>, mount: &Mount<'_>) -> Result<Stacked> {
    let given = [passphrase(mount.passphrase)];
    let of_names = mount.of_names.filter(|names| *names != mount.passphrase).map(|n| Secret::copy_from(n.as_bytes()));
    let has = |option: &str| mount.options.split(',').any(|o| o == option);
    let folder = FolderOptions {
        name_passphrase: of_names.as_ref(),
        clear_names: mount.of_names.is_none(),
        passthrough: has("ecryptfs_passthrough"),
        encrypted_view: has("ecryptfs_encrypted_view"),
        metadata_in_attributes: has("ecryptfs_xattr_metadata"),
        cipher: Some(mount.cipher.0),
        key_bytes: Some(mount.cipher.1),
        ..FolderOptions::default()
    };
    file_formats::open(lower, Some("eCryptfs"), &Unlock { folder, ..Unlock::with(&given) })
}

/// Opens a folder of this machine.
pub fn open_at(lower: &Path, mount: &Mount<'_>) -> Stacked {
    open(host(lower), mount).unwrap_or_else(|e| panic!("{mount:?}: {e}"))
}
