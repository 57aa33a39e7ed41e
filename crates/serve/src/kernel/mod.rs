//! Volumes in the kernel: device-mapper and dm-crypt encrypt instead of this program (linux/dm-ioctl.h;
//! Documentation/admin-guide/device-mapper/dm-crypt.rst).
//!
//! Devices get the names and UUIDs that cryptsetup would give them, so cryptsetup and udev recognise them. A cascade is a
//! stack of devices, the lower ones named `NAME_1`, `NAME_2` and so on, as in cryptsetup.

mod dm_sys;
mod request;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::volume::{KernelCipher, MappedPart, Mapping};
use claviger_engine::{Error, ErrorKind, Result, Secret};
use rustix::io::Errno;

use crate::mount::loop_device::LoopDevice;
use dm_sys::{Command, KeyringKey, NAME_MAX, READ_ONLY, SECURE_DATA, UUID_MAX, call, field};
use request::{KeyLocation, MappingTarget, UNIT};

/// The folder of the device nodes.
const FOLDER: &str = "/dev/mapper";

/// The prefix of every UUID that cryptsetup assigns (cryptsetup 2.6, lib/utils_dm.h, `DM_UUID_PREFIX`).
const UUID_PREFIX: &str = "CRYPT-";

/// Tells udev that a device is ready and this event counts (libdevmapper.h, `DM_UDEV_PRIMARY_SOURCE_FLAG`, in the upper
/// half of the event number).
const PRIMARY_SOURCE: u32 = 0x40 << 16;

/// How long udev may take to create a node.
const PATIENCE: Duration = Duration::from_secs(3);

/// A volume for the kernel to open.
pub struct MapRequest<'a> {
    /// Name of the mapping.
    pub name: &'a str,
    /// The file or block device that holds the volume. Nobody may hold it exclusively.
    pub store: &'a Path,
    /// How it is encrypted.
    pub mapping: &'a Mapping,
    /// Its UUID, if its header has one.
    pub uuid: Option<&'a str>,
    /// Whether to make it read-only.
    pub read_only: bool,
}

/// A volume opened by the kernel.
#[derive(Debug)]
pub struct Attached {
    /// The block device with the plaintext.
    pub device: PathBuf,
    /// Whether the keys went through the kernel's keyring; otherwise they are in the table, which root can read.
    pub keyring: bool,
    /// Whether it is read-only.
    pub read_only: bool,
}

/// Checks that there is a device-mapper and that this user may use it.
///
/// # Errors
/// `Unsupported` if there is none, `Io` if it may not be used.
pub fn available() -> Result<()> {
    Mapper::open().map(drop)
}

/// Creates the mapping. If that fails, nothing is left behind.
///
/// # Errors
/// `Misuse` for an invalid name, `InUse` if it is taken or the store is in use, `Unsupported` if there is no
/// device-mapper or it lacks a cipher, `Io`.
pub fn attach(request: &MapRequest<'_>) -> Result<Attached> {
    check_name(request.name)?;
    let mapper = Mapper::open()?;
    let Backing { path, number, .. } = &Backing::of(request.store, request.read_only)?;
    let mut stack = Stack { mapper: &mapper, made: Vec::new(), keyring: true };
    let built = stack.build(request, number).and_then(|()| node(&mapper, request.name));
    match built {
        Ok(device) => {
            let keyring = stack.keyring;
            stack.made.clear();
            Ok(Attached { device, keyring, read_only: request.read_only })
        }
        Err(e) => Err(e.at(path)),
    }
}

/// Removes the mapping and the devices below that only it uses.
///
/// # Errors
/// `Misuse` if no mapping has that name or it is not an encrypted volume; `InUse` if it is in use; `Io`.
pub fn detach(name: &str) -> Result<()> {
    check_name(name)?;
    let mapper = Mapper::open().map_err(|e| match &e.kind {
        ErrorKind::Unsupported { .. } => e.hint(NOT_BY_KERNEL),
        ErrorKind::Io(io) if io.kind() == io::ErrorKind::PermissionDenied => {
            e.hint(format!("Only root can detach it: sudo claviger detach {name}"))
        }
        _ => e,
    })?;
    let mut status = request::plain(name, "", 0);
    mapper.call(Command::Status, &mut status).map_err(|e| match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NXIO) => Error::misuse(format!("the kernel has no mapping called {name}")).hint(NOT_BY_KERNEL),
        _ => e.into(),
    })?;
    if !request::text(&status, field::UUID).starts_with(UUID_PREFIX) {
        return Err(Error::misuse(format!("the mapping {name} is not an encrypted volume; nothing was changed")));
    }
    let below = mapper.below(name)?;
    mapper.remove(name)?;
    below.iter().try_for_each(|name| mapper.remove(name))
}

/// The hint for a volume that the kernel does not have.
const NOT_BY_KERNEL: &str = "A volume that was attached without --kernel is closed by `claviger unmount VOLUME`; \
     `claviger list` shows its name.";

/// The kernel's device-mapper.
struct Mapper {
    control: File,
}

impl Mapper {
    fn open() -> Result<Self> {
        let path = Path::new(FOLDER).join("control");
        let opened = OpenOptions::new().read(true).write(true).open(&path).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => make_control(&path),
            _ => Err(e),
        });
        // The node may exist without a driver behind it.
        let absent = |e: &io::Error| {
            let behind = e.raw_os_error().map(Errno::from_raw_os_error);
            e.kind() == io::ErrorKind::NotFound || matches!(behind, Some(Errno::NODEV | Errno::NXIO))
        };
        let control = opened.map_err(|e| match e.kind() {
            _ if absent(&e) => Error::unsupported("the device-mapper in this kernel")
                .hint("Load it with `modprobe dm-mod`, or omit --kernel to let this program do the work."),
            io::ErrorKind::PermissionDenied => Error::from(e).at(&path).hint(
                "Only root can use the kernel's mappings. Omit --kernel to let this program do the work without root.",
            ),
            _ => Error::from(e).at(&path),
        })?;
        let mapper = Self { control };
        mapper.call(Command::Version, &mut request::plain("", "", 0)).map_err(|e| Error::from(e).at(&path))?;
        Ok(mapper)
    }

    fn call(&self, command: Command, request: &mut Secret) -> io::Result<()> {
        call(&self.control, command, request)
    }

    /// The names of the encrypted devices below `name` that belong to it, each after those stacked on it.
    fn below(&self, name: &str) -> Result<Vec<String>> {
        let mut names = self.right_below(name, name)?;
        let mut looked_at = 0;
        while looked_at < names.len() {
            for next in self.right_below(&names[looked_at].clone(), name)? {
                if !names.contains(&next) {
                    names.push(next);
                }
            }
            looked_at += 1;
        }
        Ok(names)
    }

    fn right_below(&self, name: &str, top: &str) -> Result<Vec<String>> {
        let mut deps = request::asking(name);
        self.call(Command::Deps, &mut deps)?;
        let start = request::number(&deps, field::DATA_START).unwrap_or_default() as usize;
        let count = request::number(&deps, start).unwrap_or_default() as usize;
        // Limited to what the answer has room for, whatever count it claims.
        let devices = (0..count).map_while(|i| request::long(&deps, start + 8 + 8 * i));
        let name_of = |device: u64| {
            let mut status = request::plain("", "", 0);
            request::put(&mut status, field::DEVICE, &device.to_ne_bytes());
            // Most devices do not belong to the device-mapper.
            self.call(Command::Status, &mut status).ok()?;
            let below = request::text(&status, field::NAME);
            let ours = below.strip_prefix(top).is_some_and(|rest| rest.starts_with('_'));
            (ours && request::text(&status, field::UUID).starts_with(UUID_PREFIX)).then_some(below)
        };
        Ok(devices.filter_map(name_of).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut remove = request::plain(name, "", 0);
        request::put(&mut remove, field::EVENT, &PRIMARY_SOURCE.to_ne_bytes());
        // Other programs that opened the device, such as udev, may not have closed it yet.
        let begin = Instant::now();
        loop {
            match self.call(Command::Remove, &mut remove) {
                Err(e) if busy(&e) && begin.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(50)),
                Err(e) if busy(&e) => {
                    return Err(Error::new(ErrorKind::InUse { holder: None })
                        .hint(format!(
                            "Unmount it first, for swap with `swapoff {FOLDER}/{name}`, otherwise with `umount \
                             {FOLDER}/{name}`. Then repeat: claviger detach {name}"
                        ))
                        .at(&Path::new(FOLDER).join(name)));
                }
                Err(e) => return Err(Error::from(e).at(&Path::new(FOLDER).join(name))),
                Ok(()) => break,
            }
        }
        let node = Path::new(FOLDER).join(name);
        if !udev() && fs::symlink_metadata(&node).is_ok_and(|m| m.file_type().is_block_device()) {
            let _ = fs::remove_file(node);
        }
        Ok(())
    }
}

/// The volume's file or device, as a block device.
struct Backing {
    path: PathBuf,
    /// `MAJOR:MINOR`.
    number: String,
    /// Keeps the loop device attached until the mapping holds it.
    _loop_device: Option<LoopDevice>,
}

impl Backing {
    fn of(store: &Path, read_only: bool) -> Result<Self> {
        let metadata = fs::metadata(store).map_err(|e| Error::from(e).at(store))?;
        let device = if metadata.file_type().is_block_device() {
            None
        } else {
            // Not canonicalised: a file without a name is opened through /proc.
            let path = std::path::absolute(store).map_err(|e| Error::from(e).at(store))?;
            Some(LoopDevice::attach(&path, read_only, None)?)
        };
        let node = device.as_ref().map_or(store, LoopDevice::path);
        let number = fs::metadata(node).map_err(|e| Error::from(e).at(node))?.rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        Ok(Self { path: store.to_owned(), number, _loop_device: device })
    }
}

/// Devices created for one volume. They are removed again on drop unless taken.
struct Stack<'a> {
    mapper: &'a Mapper,
    made: Vec<String>,
    /// Whether every key so far went through the keyring.
    keyring: bool,
}

impl Stack<'_> {
    fn build(&mut self, request: &MapRequest<'_>, store: &str) -> Result<()> {
        let parts = &request.mapping.parts;
        // Creates the lower devices of cascades first.
        let mut tops = Vec::new();
        let mut count = 0;
        for part in parts {
            let [_, below @ ..] = &part.layers[..] else {
                tops.push((store.to_owned(), part.stored_at));
                continue;
            };
            let (mut device, mut at) = (store.to_owned(), part.stored_at);
            // The layer that encrypts last is at the bottom, with the highest number.
            for (i, layer) in below.iter().enumerate().rev() {
                let name = format!("{}_{}", request.name, count + i + 1);
                let key = self.key(&name, layer);
                let target = self.crypt(0, part, layer, &key, &device, at)?;
                device = self.device(&name, request, &[target])?;
                at = 0;
            }
            count += below.len();
            tops.push((device, at));
        }
        let mut keys = Vec::new();
        let mut targets = Vec::new();
        let mut start = 0;
        for (i, (part, (device, at))) in parts.iter().zip(&tops).enumerate() {
            targets.push(match part.layers.first() {
                None => MappingTarget {
                    start,
                    len: part.len / UNIT,
                    kind: "linear",
                    parameters: request::linear(device, at / UNIT),
                },
                Some(layer) => {
                    let key = self.key(&format!("{}-{i}", request.name), layer);
                    let target = self.crypt(start, part, layer, &key, device, *at)?;
                    keys.push(key);
                    target
                }
            });
            start += part.len / UNIT;
        }
        self.device(request.name, request, &targets).map(drop)
    }

    /// Puts the key into the keyring, if possible, until the returned handle is dropped.
    fn key(&mut self, name: &str, layer: &KernelCipher) -> Option<(String, KeyringKey)> {
        if layer.key.is_empty() {
            return None;
        }
        let description = format!("claviger:{}-{name}", std::process::id());
        let added = KeyringKey::add(&description, &layer.key).ok();
        self.keyring &= added.is_some();
        added.map(|key| (description, key))
    }

    fn crypt(
        &self,
        start: u64,
        part: &MappedPart,
        layer: &KernelCipher,
        key: &Option<(String, KeyringKey)>,
        device: &str,
        at: u64,
    ) -> Result<MappingTarget> {
        let key = key.as_ref().map_or(KeyLocation::Table, |(description, _)| KeyLocation::Keyring(description));
        let parameters = request::crypt(layer, &key, device, at / UNIT).map_err(|e| match e.kind() {
            io::ErrorKind::Unsupported => Error::unsupported(format!("{e} in the kernel")),
            _ => e.into(),
        })?;
        Ok(MappingTarget { start, len: part.len / UNIT, kind: "crypt", parameters })
    }

    /// Creates a device with that table. Returns its number as `MAJOR:MINOR`.
    fn device(&mut self, name: &str, request: &MapRequest<'_>, targets: &[MappingTarget]) -> Result<String> {
        let uuid = uuid(request.mapping.kind, request.uuid, name);
        let taken = || {
            let holder = Some(format!("the kernel already has a mapping called {name}, or one of this volume"));
            Error::new(ErrorKind::InUse { holder })
                .hint(format!("Choose another name, or detach that mapping: claviger detach {name}"))
        };
        let flags = SECURE_DATA | if request.read_only { READ_ONLY } else { 0 };
        let mut create = request::plain(name, &uuid, flags);
        self.mapper.call(Command::Create, &mut create).map_err(|e| if busy(&e) { taken() } else { e.into() })?;
        self.made.push(name.to_owned());
        let device = request::long(&create, field::DEVICE).unwrap_or_default();
        self.mapper.call(Command::Load, &mut request::table(name, flags, targets)).map_err(|e| refused(e, request))?;
        let mut resume = request::plain(name, "", flags);
        request::put(&mut resume, field::EVENT, &PRIMARY_SOURCE.to_ne_bytes());
        self.mapper.call(Command::Resume, &mut resume)?;
        Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
    }
}

impl Drop for Stack<'_> {
    fn drop(&mut self) {
        for name in self.made.iter().rev() {
            let _ = self.mapper.remove(name);
        }
    }
}

/// Why the kernel refuses a table.
fn refused(error: io::Error, request: &MapRequest<'_>) -> Error {
    let ciphers = request.mapping.parts.iter().flat_map(|part| &part.layers).map(|layer| &*layer.specification);
    let ciphers: Vec<_> = ciphers.collect();
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::BUSY) => Error::new(ErrorKind::InUse { holder: Some("mounted, or part of another device".into()) })
            .hint("Unmount it first. Nothing was changed."),
        Some(Errno::INVAL | Errno::NOENT | Errno::NXIO | Errno::NOSYS) => {
            Error::unsupported(format!("{} in this kernel's dm-crypt ({error})", ciphers.join(" with "))).hint(
                "See `dmesg`; a module for dm-crypt or a cipher may be missing. Or omit --kernel to let this \
                 program do the work.",
            )
        }
        _ => error.into(),
    }
}

fn busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

/// The UUID that cryptsetup would assign (cryptsetup 2.6, lib/libdevmapper.c, `dm_prepare_uuid`): the volume's own,
/// without hyphens, is part of it.
fn uuid(kind: &str, uuid: Option<&str>, name: &str) -> String {
    let own = uuid.map(|uuid| uuid.replace('-', "") + "-").unwrap_or_default();
    let mut all = format!("{UUID_PREFIX}{kind}-{own}{name}");
    // Names are ASCII, and so are UUIDs read from headers.
    all.truncate(all.floor_char_boundary(UUID_MAX));
    all
}

/// Allows the characters that libdevmapper does not escape (lib: libdm-common.c, `_is_whitelisted_char`), so that both
/// programs use the same name.
fn check_name(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
    let longest = NAME_MAX - 4;
    if name.is_empty() || name.len() > longest || !name.chars().all(fine) || [".", "..", "control"].contains(&name) {
        return Err(Error::misuse(format!(
            "{name:?} cannot be a mapping's name: 1 to {longest} letters, digits and characters of #+-.:=@_"
        )));
    }
    Ok(())
}

/// Whether udev runs and creates nodes (`DM_DISABLE_UDEV` is libdevmapper's own switch).
fn udev() -> bool {
    std::env::var_os("DM_DISABLE_UDEV").is_none() && Path::new("/run/udev/control").exists()
}

/// The device's node: udev's, or our own if there is no udev.
fn node(mapper: &Mapper, name: &str) -> Result<PathBuf> {
    let path = Path::new(FOLDER).join(name);
    let mut status = request::plain(name, "", 0);
    mapper.call(Command::Status, &mut status)?;
    let number = request::long(&status, field::DEVICE).unwrap_or_default();
    let is_it = || fs::metadata(&path).is_ok_and(|m| m.file_type().is_block_device() && m.rdev() == number);
    let begin = Instant::now();
    while udev() && !is_it() && begin.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    if !is_it() {
        // Left over from another device of that name; its number may belong to any device now.
        if fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_block_device()) {
            fs::remove_file(&path).map_err(|e| Error::from(e).at(&path))?;
        }
        make_node(&path, rustix::fs::FileType::BlockDevice, number).map_err(|e| Error::from(e).at(&path))?;
    }
    Ok(path)
}

fn make_node(path: &Path, kind: rustix::fs::FileType, number: u64) -> io::Result<()> {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    Ok(rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, number)?)
}

/// Creates the control node if the kernel has a device-mapper and there is no node yet, as libdevmapper does.
fn make_control(path: &Path) -> io::Result<File> {
    let minor = |line: &str| line.trim().strip_suffix(" device-mapper")?.parse().ok();
    let minor = fs::read_to_string("/proc/misc")?.lines().find_map(minor).ok_or(io::ErrorKind::NotFound)?;
    /// The major number of miscellaneous devices (Documentation/admin-guide/devices.txt).
    const MISC: u32 = 10;
    fs::create_dir_all(FOLDER)?;
    make_node(path, rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(MISC, minor))?;
    OpenOptions::new().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_those_of_cryptsetup() {
        assert_eq!(uuid("TCRYPT", None, "x"), "CRYPT-TCRYPT-x");
        assert_eq!(uuid("LUKS1", Some("ab-cd"), "x"), "CRYPT-LUKS1-abcd-x");
        assert_eq!(uuid("LUKS2", None, &"n".repeat(200)).len(), UUID_MAX);
    }

    #[test]
    fn names_are_checked() {
        for name in ["", ".", "..", "control", "a/b", "a b", "\u{e4}", &"n".repeat(124)] {
            assert!(matches!(check_name(name).expect_err(name).kind, ErrorKind::Misuse(_)));
        }
        check_name("a-b_c.1").expect("a good name");
    }

    /// Most test machines have no device-mapper; user-mode Linux has one.
    #[test]
    fn where_there_is_no_device_mapper_that_is_said() {
        if let Err(e) = available() {
            assert!(matches!(e.kind, ErrorKind::Unsupported { .. } | ErrorKind::Io(_)) && e.hint.is_some(), "{e}");
        }
    }
}
