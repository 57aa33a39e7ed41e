//! From options to an open volume, or to the files in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::pool::for_each_piece;
use claviger_engine::credential::{HeaderChoice, Headerless};
use claviger_engine::formats::Facts;
use claviger_engine::opening::{Locked, OpenVolume};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::{
    Credential, Error, Opened, Opening, Pool, Protect, Result, Secret, Store, Unlock, logical_volumes,
};

use crate::files::Files;
use crate::{First, Here, Job, patience};

/// Bytes of a large read that one thread reads and decrypts at a time.
const PIECE: usize = 1 << 20;

/// How a volume is opened, but for its password. What is `None` is found out, or is the format's default.
#[derive(Clone, Default)]
pub struct Options {
    /// The name of the format.
    pub format: Option<String>,
    /// The file with the header, where it is detached.
    pub header: Option<PathBuf>,
    /// The partition of the disk, counted from 1.
    pub partition: Option<u32>,
    /// Only this hash.
    pub hash: Option<String>,
    /// Only this cipher.
    pub cipher: Option<String>,
    /// The PIM.
    pub pim: Option<u32>,
    /// Only this keyslot.
    pub keyslot: Option<u32>,
    /// Keyfiles, or folders of them.
    pub keyfiles: Vec<PathBuf>,
    /// Keyfiles of the hidden volume that is to be protected.
    pub hidden_keyfiles: Vec<PathBuf>,
    /// PIM of the hidden volume that is to be protected.
    pub hidden_pim: Option<u32>,
    /// The logical volume inside: `VOLUME` or `GROUP/VOLUME`.
    pub logical_volume: Option<String>,
    /// Only backups of headers are tried.
    pub backup_header: bool,
    /// It is opened for writing, too.
    pub writable: bool,
    /// What was cut short is opened, too, for reading.
    pub truncated: bool,
    /// Work that a header asks for is begun however long it takes.
    pub allow_slow: bool,
    /// Bytes of memory that deriving a key may take.
    pub memory: Option<u64>,
    /// What headers say of other formats.
    pub headerless: Headerless,
}

/// What opens a volume, but for its keyfiles.
#[derive(Default)]
pub struct Secrets {
    /// The password.
    pub password: Option<Secret>,
    /// The volume key itself.
    pub volume_key: Option<Secret>,
    /// The password of the hidden volume, which is to be protected.
    pub hidden_password: Option<Secret>,
}

impl Secrets {
    pub(crate) fn credentials(&self, keyfiles: &[PathBuf]) -> Result<Vec<Credential>> {
        let password = self.password.iter().map(|it| Credential::Passphrase(Secret::copy_from(it)));
        let volume_key = self.volume_key.iter().map(|it| Credential::VolumeKey(Secret::copy_from(it)));
        Ok(password.chain(volume_key).chain(read_keyfiles(keyfiles)?).collect())
    }
}

fn read_keyfiles(paths: &[PathBuf]) -> Result<Vec<Credential>> {
    let read: Vec<_> = paths.iter().map(|path| Credential::keyfiles(path)).collect::<Result<_>>()?;
    Ok(read.into_iter().flatten().collect())
}

impl Options {
    pub(crate) fn opening(&self, path: &Path) -> Opening {
        let access = if self.writable { Access::ReadWrite } else { Access::ReadOnly };
        Opening::path(path)
            .access(access)
            .partition(self.partition)
            .format(self.format.as_deref())
            .detached_header(self.header.as_deref())
            .by_backup(self.backup_header)
    }

    pub(crate) fn unlock<'a>(&'a self, credentials: &'a [Credential]) -> Unlock<'a> {
        Unlock {
            hash: self.hash.as_deref(),
            cipher: self.cipher.as_deref(),
            pim: self.pim,
            memory: self.memory,
            header: if self.backup_header { HeaderChoice::Backup } else { HeaderChoice::Any },
            keyslot: self.keyslot,
            headerless: self.headerless,
            truncated: self.truncated,
            may_take: if self.allow_slow { None } else { Some(&patience) },
            ..Unlock::with(credentials)
        }
    }

    /// Whether the trials are narrowed.
    pub(crate) fn hinted(&self) -> bool {
        let Self { hash, cipher, pim, keyslot, backup_header, .. } = self;
        hash.is_some() || cipher.is_some() || pim.is_some() || keyslot.is_some() || *backup_header
    }

    /// Finds the volume at `path`, and derives nothing. With `for_files` an encrypted folder will do, and
    /// so will what is not encrypted.
    ///
    /// # Errors
    /// Those of [`Opening::find`] and [`Locked::check`]; `Misuse` where work that takes long is not allowed.
    pub fn find(self, path: &Path, for_files: bool) -> Result<LockedVolume> {
        if self.writable && self.truncated {
            return Err(Error::misuse("what was cut short can only be read").at(path));
        }
        let locked = self.opening(path).or_clear(for_files).find()?;
        let with = self.unlock(&[]);
        locked.check(&with)?;
        if let (Some(plan), Some(may_take)) = (locked.plan(&with), with.may_take) {
            may_take(Duration::from_micros(plan.microseconds())).map_err(|e| e.at(path))?;
        }
        Ok(LockedVolume { path: path.to_owned(), locked, options: self })
    }
}

/// What was found, still locked.
pub struct LockedVolume {
    path: PathBuf,
    locked: Locked,
    options: Options,
}

impl LockedVolume {
    /// Whether a person is to be asked for a password.
    ///
    /// # Errors
    /// Those of reading keyfiles.
    pub fn asks_password(&self) -> Result<bool> {
        Ok(self.locked.asks_passphrase(&read_keyfiles(&self.options.keyfiles)?))
    }

    fn unlock(self, secrets: &Secrets, job: &Job) -> Result<Opened> {
        let Self { path, locked, options } = self;
        let credentials = secrets.credentials(&options.keyfiles)?;
        let hidden = Secrets {
            password: secrets.hidden_password.as_ref().map(|it| Secret::copy_from(it)),
            ..Secrets::default()
        };
        let hidden = hidden.credentials(&options.hidden_keyfiles)?;
        let protect = Protect { credentials: &hidden, hash: None, pim: options.hidden_pim };
        if !hidden.is_empty() && !options.writable {
            return Err(Error::misuse("a volume that is only read needs no protection").at(&path));
        }
        let tell = |done, all| job.tell(done, all);
        let with = Unlock {
            protect: (!hidden.is_empty()).then_some(protect),
            cancel: Some(&job.cancel),
            progress: Some(&tell),
            ..options.unlock(&credentials)
        };
        locked.unlock(&with).map_err(|e| e.at(&path))
    }

    /// Tries what is given, for the bytes of a volume.
    ///
    /// # Errors
    /// Those of [`Locked::unlock`]; `Unsupported` for a folder.
    pub fn volume(self, secrets: &Secrets, job: &Job) -> Result<Volume> {
        let (path, inside, writable) = (self.path.clone(), self.options.logical_volume.clone(), self.options.writable);
        let opened = self.unlock(secrets, job)?.bytes().map_err(|e| e.at(&path))?;
        Volume::new(opened, inside.as_deref(), writable).map_err(|e| e.at(&path))
    }

    /// Tries what is given, for the files: those of a file system in a volume, or of a folder.
    ///
    /// # Errors
    /// Those of [`LockedVolume::volume`] and [`claviger_engine::filesystems::open`].
    pub fn files(self, secrets: &Secrets, job: &Job) -> Result<Files> {
        let (path, inside, writable) = (self.path.clone(), self.options.logical_volume.clone(), self.options.writable);
        let at = |e: Error| e.at(&path);
        match self.unlock(secrets, job)? {
            Opened::Bytes(opened) => {
                Volume::new(*opened, inside.as_deref(), writable).and_then(|it| it.files()).map_err(at)
            }
            Opened::Clear(store) => {
                Files::of(within(store, inside.as_deref(), writable).map_err(at)?, None).map_err(at)
            }
            Opened::Files(folder) => {
                let (kind, warnings) = (folder.format.name(), folder.tree.warnings());
                Ok(Files::new(Arc::new(folder.tree), kind, warnings, None))
            }
        }
    }
}

fn within(store: Arc<dyn Store>, inside: Option<&str>, writable: bool) -> Result<Arc<dyn Store>> {
    let Some(name) = inside else { return Ok(store) };
    let (found, inside) = logical_volumes::open(store, name)?;
    match found.read_only.filter(|_| writable) {
        Some(why) => Err(Error::misuse(format!("{} can only be read: {why}", found.name))),
        None => Ok(Arc::new(inside)),
    }
}

/// An open volume, in the process that opened it.
pub struct Volume {
    open: Here<Open>,
    /// What is known of it.
    pub facts: Facts,
    /// What a person must know: whole sentences.
    pub warnings: Vec<String>,
}

struct Open {
    store: Arc<dyn Store>,
    pool: Arc<Pool>,
    /// Nobody changes it for as long as this is held.
    header: Option<Arc<dyn Store>>,
}

impl Volume {
    fn new(opened: OpenVolume, inside: Option<&str>, writable: bool) -> Result<Self> {
        let OpenVolume { volume, facts, warnings, header, .. } = opened;
        // Between two requests there is a program: an idle helper may sleep.
        let pool = Arc::new(Pool::for_this_machine(Duration::ZERO));
        let store = within(Arc::new(volume.with_pool(Arc::clone(&pool))), inside, writable)?;
        let warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(Self { open: Here::new(Open { store, pool, header }), facts, warnings })
    }

    /// Size of the plaintext, in bytes.
    ///
    /// # Errors
    /// That of [`Here::get`].
    pub fn size(&self) -> Result<u64> {
        Ok(self.open.get()?.store.len())
    }

    /// Whether it can be written.
    ///
    /// # Errors
    /// That of [`Here::get`].
    pub fn writable(&self) -> Result<bool> {
        Ok(self.open.get()?.store.writable())
    }

    /// Whether `len` bytes at `offset` are all in it. To be asked before there is a slice of so many: what other languages have for its
    /// length may be anything.
    ///
    /// # Errors
    /// `Misuse` past the end; that of [`Here::get`].
    pub fn check(&self, offset: u64, len: usize) -> Result<()> {
        let end = self.size()?;
        match offset.checked_add(len as u64).is_some_and(|last| last <= end) {
            true => Ok(()),
            false => Err(Error::misuse(format!("{len} bytes at {offset} reach past the end at {end}"))),
        }
    }

    /// Fills `out` with what is at `offset`: on all processors where it is large.
    ///
    /// # Errors
    /// Those of [`Self::check`] and [`Store::read_at`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len())?;
        let Open { store, pool, .. } = self.open.get()?;
        if out.len() < 2 * PIECE {
            return Ok(store.read_at(offset, out)?);
        }
        let first = First::default();
        for_each_piece(pool, out, PIECE, |at, piece| first.keep(store.read_at(offset + at as u64, piece)));
        Ok(first.result()?)
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// Those of [`Self::check`] and [`Store::write_clobbering`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(offset, data.len())?;
        let store = &self.open.get()?.store;
        // It is encrypted where it lies.
        let mut buffer = Vec::with_capacity(data.len().min(4 * PIECE));
        for (i, part) in data.chunks(4 * PIECE).enumerate() {
            buffer.clear();
            buffer.extend_from_slice(part);
            store.write_clobbering(offset + (i * 4 * PIECE) as u64, &mut buffer)?;
        }
        Ok(())
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// Those of [`Store::flush`].
    pub fn flush(&self) -> Result<()> {
        let store = &self.open.get()?.store;
        if store.writable() { Ok(store.flush()?) } else { Ok(()) }
    }

    /// The file system in it, which keeps it open.
    ///
    /// # Errors
    /// Those of [`claviger_engine::filesystems::open`].
    pub fn files(&self) -> Result<Files> {
        let Open { store, header, .. } = self.open.get()?;
        Files::of(Arc::clone(store), header.clone())
    }
}
