//! Messages to the servers, over private volumes and file systems.

use std::sync::{Arc, LazyLock};

use claviger_engine::file_formats;
use claviger_engine::file_formats::cryptomator::{self, CipherCombo};
use claviger_engine::file_formats::gocryptfs::{self, NewFolder};
use claviger_engine::filesystems;
use claviger_engine::key_process::folder::FolderKeys;
use claviger_engine::key_process::volume::Keys;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Credential, Secret, Store, Unlock};
use claviger_serve::fuse::Image;
use claviger_serve::fuse::tree::Showing;
use claviger_serve::fuzzing;
use claviger_serve::nbd::Export;

use crate::corpus;
use crate::volumes::{self, Sparse};

/// A little more than is read at a time, which leaves a partial read.
const EXPORTED: u64 = (1 << 20) + 512;

/// Serves a client that sends these bytes, from the handshake on. Returns how many bytes it received.
pub fn nbd(bytes: &[u8]) -> u64 {
    let export = |name: &str, len| Export::new(name, Arc::new(Sparse { len, ..Sparse::default() }));
    let read_only = Export { read_only: true, description: "for reading".into(), ..export("b", 700) };
    fuzzing::nbd(vec![export("a", EXPORTED), read_only], bytes).expect("there are sockets")
}

/// Messages of a command that borrows the file of a volume, which may grow to twice its size. Returns how many bytes it received.
pub fn loans(bytes: &[u8]) -> u64 {
    const LEN: u64 = 1 << 20;
    static FILE: LazyLock<FileStore> = LazyLock::new(|| {
        let path = std::env::temp_dir().join(format!("claviger-fuzzing-{}", std::process::id()));
        let file = FileStore::create_sparse(&path, LEN).expect("a file");
        std::fs::remove_file(path).expect("it is there");
        file
    });
    let volume = volumes::encrypted(LEN, 2 * LEN);
    let received = fuzzing::loans(&volume, &FILE, bytes).expect("there are sockets");
    assert!((LEN..=2 * LEN).contains(&volume.len()));
    received
}

/// Requests to a key process that holds the keys of a folder of sealed blocks: of each format. Returns how many were carried out.
pub fn key_requests(requests: &[u8]) -> usize {
    static FOLDERS: LazyLock<[Arc<dyn FolderKeys>; 2]> = LazyLock::new(|| {
        let passphrase = || Secret::copy_from(corpus::PASSPHRASE.as_bytes());
        let keys = |name: &str, create: &dyn Fn(&HostFolder) -> claviger_engine::Result<()>| {
            let folder = std::env::temp_dir().join(format!("claviger-fuzzing-{name}-{}", std::process::id()));
            std::fs::create_dir(&folder).expect("a folder");
            let lower = HostFolder::open(&folder, Access::ReadWrite).expect("it opens");
            create(&lower).expect("created");
            let credential = [Credential::Passphrase(passphrase())];
            let tree = file_formats::open(Arc::new(lower), None, &Unlock::with(&credential)).expect("it opens");
            let (_, keys) = tree.split_keys().expect("it can be isolated");
            std::fs::remove_dir_all(folder).expect("it is there");
            keys
        };
        let new = NewFolder { log_n: 10, ..NewFolder::default() };
        let (with, combo) = (Unlock::with(&[]), CipherCombo::SivCtrMac);
        [
            keys("gocryptfs", &|lower| gocryptfs::create(lower, &passphrase(), &new, &with)),
            keys("cryptomator", &|lower| cryptomator::create(lower, &passphrase(), combo, &with)),
        ]
    });
    let each = FOLDERS.iter().map(|keys| fuzzing::key_requests(Keys::of_folder(Arc::clone(keys), true), requests));
    each.map(|done| done.expect("there is memory")).sum()
}

/// Kernel messages to a mounted image.
pub fn fuse_image(messages: &[u8]) {
    let image = |read_only| Image { read_only, uid: 0, gid: 0, store: Arc::new(MemoryStore::new(vec![5; 10_000])) };
    [false, true].map(image).into_iter().for_each(|image| fuzzing::fuse_image(image, messages));
}

/// Kernel messages to a mounted FAT with a file. Returns how many messages were carried out.
pub fn fuse_tree(messages: &[u8]) -> usize {
    let fat = Arc::new(MemoryStore::new(corpus::filesystems().swap_remove(0)));
    let (_, tree) = filesystems::open(fat).expect("it opens");
    fuzzing::fuse_tree(tree.into(), Showing::volume(false), messages)
}
