//! What workloads run on: the same layers with and without encryption, all in memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use claviger_engine::formats::Unlocked;
use claviger_engine::store::{Access, FileStore, SliceStore};
use claviger_engine::volume::Mapping;
use claviger_engine::{Acceleration, Credential, Error, Layout, Result, Secret, Spec, Store, Unlock, Volume, formats};
use rustix::fs::{FallocateFlags, fallocate, statfs};
use serde::Serialize;

use crate::compare::kernel::mapped;
use crate::compare::{BASELINE, KERNEL_BASELINE};
use crate::machine;
use crate::memory::Buffer;
use crate::report::size;
use crate::served::Served;
use crate::transfer::{self, Data, Device, Direction, Moved, Transfer, Written};

/// Where containers live: a file system in memory.
const RAM: &str = "/dev/shm";

/// `f_type` of tmpfs (statfs(2), `TMPFS_MAGIC`).
const TMPFS: u64 = 0x0102_1994;

/// Memory that is left to the rest of the machine, in bytes.
const RESERVE: u64 = 256 << 20;

/// More than the headers of any format take, in bytes.
const HEADERS: u64 = 1 << 20;

/// Bytes per request while volumes are filled and verified.
const LARGE: usize = 1 << 20;

/// Bytes of each volume that are looked at in its container and read again by a second way.
const SAMPLE: u64 = 1 << 20;

/// The layers between the workload and the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// An NBD server of ours and one client over a Unix socket.
    #[default]
    Nbd,
    /// Calls of the engine's volume, without a transport.
    Engine,
    /// The kernel's device-mapper and a loop device in the place of the engine, direct I/O.
    Kernel,
}

/// A plain or encrypted volume in memory, with a connection to it.
pub struct Target {
    /// `plain`, or the cipher or cascade; those in the kernel say so.
    pub name: String,
    /// Layers between the workload and the container.
    pub path: Path,
    /// How it is reached while it is measured.
    device: Box<dyn Device>,
    /// What has been written.
    written: Written,
    /// The number of the last pass that wrote.
    pass: u64,
    volume: Arc<Volume>,
    container: Arc<FileStore>,
    encryption: Option<Encryption>,
}

/// A file in memory that has no name.
struct Container {
    file: File,
    store: Arc<FileStore>,
}

struct Encryption {
    passphrase: Credential,
    /// Where the encrypted data begins in the container, in bytes.
    data_offset: u64,
}

/// What a check of a target showed.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// `plain`, or the cipher or cascade.
    pub target: String,
    /// Bytes read back through the measured path and compared with what was written.
    pub bytes: u64,
    /// Whether the container was seen to hold something else than what was written to the volume.
    pub encrypted_at_rest: bool,
}

impl Target {
    /// A volume without encryption, of `len` bytes.
    ///
    /// # Errors
    /// `Io`; those of the kernel's device-mapper where the path is through it.
    pub fn plain(len: u64, path: Path, queue_depth: usize) -> Result<Self> {
        let container = Container::new(len)?;
        let layout = Layout::clear(len)?.for_kernel(Some("PLAIN"));
        let mapping = Mapping::of(&layout);
        let volume = Volume::new(container.store.clone(), layout);
        let name = match path {
            Path::Kernel => KERNEL_BASELINE,
            Path::Nbd | Path::Engine => BASELINE,
        };
        Self::connect(name.into(), volume, container, mapping, None, path, queue_depth)
    }

    /// A TrueCrypt volume of at least `len` bytes, opened by a random passphrase that nobody knows.
    ///
    /// # Errors
    /// Those of the format; those of the kernel's device-mapper where the path is through it, `Unsupported` for ciphers that
    /// the kernel lacks.
    pub fn encrypted(
        cipher: &str,
        len: u64,
        acceleration: Acceleration,
        path: Path,
        queue_depth: usize,
    ) -> Result<Self> {
        let container = Container::new(len + HEADERS)?;
        let mut passphrase = Secret::zeroed(32);
        getrandom::fill(&mut passphrase).map_err(|e| io::Error::other(e.to_string()))?;
        // Readable characters, since a format may refuse others.
        passphrase.iter_mut().for_each(|b| *b = b'a' + *b % 26);
        let passphrase = [Credential::Passphrase(passphrase)];
        let spec = Spec { cipher: Some(cipher), quick: true, ..Spec::default() };
        formats::by_name("TrueCrypt")?.create(&*container.store, &spec, &passphrase)?;
        let unlocked = unlock(&container.store, &passphrase, acceleration)?;
        let [passphrase] = passphrase;
        let encryption = Encryption { passphrase, data_offset: unlocked.facts.data_offset };
        let mapping = Mapping::of(&unlocked.layout);
        let volume = Volume::new(container.store.clone(), unlocked.layout);
        let name = match path {
            Path::Kernel => format!("kernel dm-crypt {cipher}"),
            Path::Nbd | Path::Engine => cipher.into(),
        };
        Self::connect(name, volume, container, mapping, Some(encryption), path, queue_depth)
    }

    fn connect(
        name: String,
        volume: Volume,
        container: Container,
        mapping: Option<Mapping>,
        encryption: Option<Encryption>,
        path: Path,
        queue_depth: usize,
    ) -> Result<Self> {
        let volume = Arc::new(volume);
        let Container { file, store: container } = container;
        let device: Box<dyn Device> = match path {
            Path::Engine => Box::new(Direct(volume.clone())),
            Path::Nbd => Box::new(Served::new(volume.clone(), queue_depth)?),
            Path::Kernel => {
                let mapping = mapping.ok_or_else(|| Error::unsupported(format!("{name}: it has no such thing")))?;
                Box::new(mapped(&by_number(&file), &mapping)?)
            }
        };
        Ok(Self { name, path, device, written: Written::default(), pass: 0, volume, container, encryption })
    }

    /// The target that it is compared with.
    pub fn baseline(&self) -> &'static str {
        match self.path {
            Path::Kernel => KERNEL_BASELINE,
            Path::Nbd | Path::Engine => BASELINE,
        }
    }

    /// Writes `len` bytes once, not through the connection, so that no measured write meets fresh memory.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn fill(&mut self, data: &Data, len: u64) -> Result<()> {
        self.pass += 1;
        let mut buffer = Buffer::new(LARGE);
        let mut at = 0;
        while at < len {
            let part = &mut buffer[..usize::try_from(len - at).map_or(LARGE, |left| left.min(LARGE))];
            data.fill(self.pass, at, part);
            self.volume.write_at(at, part)?;
            at += part.len() as u64;
        }
        self.volume.flush()?;
        self.written.add(len, self.pass);
        Ok(())
    }

    /// Carries a transfer out.
    ///
    /// # Errors
    /// Those of the volume or the connection.
    pub fn run(&mut self, data: &Data, transfer: &Transfer) -> io::Result<Moved> {
        self.pass += 1;
        let moved = transfer::run(&mut *self.device, data, transfer, self.pass)?;
        if transfer.direction == Direction::Write {
            self.written.add(moved.bytes, self.pass);
        }
        Ok(moved)
    }

    /// Makes sure that real data moved: everything that was written is read back through the connection and compared;
    /// the container is seen to hold ciphertext or, without encryption, the data; and the beginning of an encrypted volume
    /// is opened once more, by its passphrase, and decrypted without AES instructions.
    ///
    /// # Errors
    /// `Io` where something is not as it was written.
    pub fn verify(&mut self, data: &Data) -> Result<Verified> {
        let whole = self.written.compare(&mut *self.device, data, LARGE, u64::MAX)?;
        self.demand(whole.same == whole.bytes, "what was written was not read back")?;
        let encrypted = self.encryption.is_some();
        let data_offset = self.encryption.as_ref().map_or(0, |e| e.data_offset);
        let stored = SliceStore::new(self.container.clone(), data_offset, self.container.len() - data_offset)?;
        let at_rest = self.written.compare(&mut Direct(Arc::new(stored)), data, LARGE, SAMPLE)?;
        self.demand(encrypted || at_rest.same == at_rest.bytes, "the container does not hold what was written")?;
        self.demand(!encrypted || at_rest.same == 0, "the container holds what was written in plaintext")?;
        if let Some(Encryption { passphrase, .. }) = &self.encryption {
            let unlocked = unlock(&self.container, std::slice::from_ref(passphrase), Acceleration::Off)?;
            let volume = Volume::new(self.container.clone(), unlocked.layout);
            let again = self.written.compare(&mut Direct(Arc::new(volume)), data, LARGE, SAMPLE)?;
            self.demand(again.same == again.bytes, "opened again, it holds something else")?;
        }
        Ok(Verified { target: self.name.clone(), bytes: whole.bytes, encrypted_at_rest: encrypted })
    }

    fn demand(&self, holds: bool, otherwise: &str) -> Result<()> {
        match holds {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: {otherwise}", self.name)).into()),
        }
    }
}

/// Fails unless `count` volumes of `len` bytes fit into memory.
///
/// # Errors
/// `Misuse` with the numbers, `Unsupported` where there is no file system in memory.
pub fn check_room(count: usize, len: u64) -> Result<()> {
    let ram = statfs(RAM).map_err(|e| Error::from(io::Error::from(e)).at(RAM.as_ref()))?;
    if ram.f_type as u64 != TMPFS {
        return Err(Error::unsupported(format!(
            "{RAM} is no tmpfs, and a disk would be measured instead of encryption"
        )));
    }
    let room = (ram.f_bavail as u64 * ram.f_bsize as u64).min(machine::memory_available().saturating_sub(RESERVE));
    match (len.saturating_add(HEADERS)).checked_mul(count as u64) {
        Some(needed) if needed <= room => Ok(()),
        _ => Err(Error::misuse(format!(
            "{count} volumes of {} do not fit into memory: {RAM} has room for {} in all",
            size(len),
            size(room >> 20 << 20)
        ))
        .hint("Ask for a smaller --size, or for fewer of them with --suite.")),
    }
}

impl Container {
    /// A file in memory without a name, so that nothing is left over whatever ends the program.
    fn new(len: u64) -> Result<Self> {
        let file = tempfile::tempfile_in(RAM).map_err(|e| Error::from(e).at(RAM.as_ref()))?;
        // At once, so that a lack of memory shows here and not as a signal in the middle of a measurement.
        fallocate(&file, FallocateFlags::empty(), 0, len).map_err(io::Error::from)?;
        let store = Arc::new(FileStore::open(&by_number(&file), Access::ReadWrite)?);
        Ok(Self { file, store })
    }
}

/// A path that opens the same file again as long as this one is open.
fn by_number(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The volume in a container.
fn unlock(container: &Arc<FileStore>, passphrase: &[Credential], acceleration: Acceleration) -> Result<Unlocked> {
    let (_, header) = formats::open(&(Arc::clone(container) as Arc<dyn Store>), Some("TrueCrypt"))?;
    header.unlock(&Unlock { acceleration, for_kernel: true, ..Unlock::with(passphrase) })
}

/// A store without a transport.
struct Direct(Arc<dyn Store>);

impl Device for Direct {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }

    fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
