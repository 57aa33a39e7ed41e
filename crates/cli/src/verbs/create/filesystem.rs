//! `claviger create --filesystem`: a file system that leaves alone what the format keeps to itself. Programs of others make it in a file,
//! from which it is written through the new volume.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use claviger_engine::formats::Creator;
use claviger_engine::spec::{Keeping, Kept};
use claviger_engine::{Error, Result, Spec, Store};
use claviger_serve::mount::find_program;
use rustix::fs::SeekFrom as Extent;

/// What can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// With files where the format keeps something, as Windows has them
    Ntfs,
    /// Smaller than the volume
    Exfat,
    /// With clusters that are marked as bad where the format keeps something
    Fat,
}

/// A file system in a file, to be written to a new volume.
pub(crate) struct Made {
    image: tempfile::NamedTempFile,
    /// Where it wants to have what the format keeps; nothing where that is as [`FileSystem::keeping`] says.
    places: Option<Vec<u64>>,
}

impl FileSystem {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ntfs => "NTFS",
            Self::Exfat => "exFAT",
            Self::Fat => "FAT",
        }
    }

    /// Where it can have what the format keeps.
    pub fn keeping(self) -> Keeping<'static> {
        match self {
            Self::Exfat => Keeping::AtEnd,
            Self::Ntfs | Self::Fat => Keeping::Spread,
        }
    }

    /// Checks that what it takes is there.
    ///
    /// # Errors
    /// `Misuse` for sectors that it cannot have; `Unsupported` with what to install.
    pub fn check(self, sector: u32) -> Result<()> {
        if sector != 512 && self != Self::Ntfs {
            return Err(Error::misuse(format!("{} is made with sectors of 512 bytes alone", self.name()))
                .hint("Use NTFS, or leave out --sector-size."));
        }
        self.programs().iter().try_for_each(|(name, package)| program(name, package).map(drop))
    }

    fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Ntfs => &[("mkntfs", "ntfs-3g"), ("ntfs-3g", "ntfs-3g"), ("ntfscluster", "ntfs-3g")],
            Self::Exfat => &[("mkfs.exfat", "exfatprogs")],
            Self::Fat => &[("mkfs.fat", "dosfstools")],
        }
    }

    /// Makes it for a volume of `len` bytes, in a file in `folder`.
    ///
    /// # Errors
    /// `Unsupported` where a program is missing; `Io` where one fails.
    pub fn make(self, creator: &dyn Creator, len: u64, spec: &Spec<'_>, folder: &Path) -> Result<Made> {
        let kept = creator.kept(len, spec)?;
        let sector = u64::from(spec.sector_size.unwrap_or(512));
        let image = tempfile::Builder::new().prefix(".claviger-").tempfile_in(folder)?;
        let size = match (self, kept.iter().map(|part| part.offset).min()) {
            (Self::Exfat, Some(end)) => end,
            _ => len / sector * sector,
        };
        image.as_file().set_len(size)?;
        let (name, package) = self.programs()[0];
        let mut command = Command::new(program(name, package)?);
        let mut bad = tempfile::NamedTempFile::new()?;
        match self {
            Self::Ntfs => {
                command.args(["-F", "-Q", "-q", "-p", "0", "-H", "255", "-S", "63", "-s", &sector.to_string()]);
            }
            Self::Exfat => {}
            Self::Fat => {
                for block in bad_blocks(&kept) {
                    writeln!(bad, "{block}")?;
                }
                command.arg("-l").arg(bad.path());
            }
        }
        run(command.arg(image.path()))?;
        let places = match self {
            Self::Ntfs => Some(files_for(&image, &kept)?),
            Self::Exfat | Self::Fat => None,
        };
        Ok(Made { image, places })
    }
}

impl Made {
    /// Where the format is to have what it keeps.
    pub fn keeping(&self, of: FileSystem) -> Keeping<'_> {
        self.places.as_deref().map_or(of.keeping(), Keeping::At)
    }

    /// Writes to `volume` what is in the file. What the program left as a hole stays as it is there.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_to(&self, volume: &dyn Store) -> Result<()> {
        let mut file = File::open(self.image.path())?;
        let len = file.metadata()?.len();
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while let Some((start, end)) = extent(&file, at, len)? {
            at = start;
            file.seek(SeekFrom::Start(at))?;
            while at < end {
                let part = &mut buffer[..usize::try_from(end - at).map_or(1 << 20, |left| left.min(1 << 20))];
                file.read_exact(part)?;
                volume.write_at(at, part)?;
                at += part.len() as u64;
            }
        }
        Ok(volume.flush()?)
    }
}

/// The next bytes of a file that are no hole.
fn extent(file: &File, at: u64, len: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= len {
        return Ok(None);
    }
    match rustix::fs::seek(file, Extent::Data(at)) {
        Ok(start) => Ok(Some((start, rustix::fs::seek(file, Extent::Hole(start))?.min(len)))),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(rustix::io::Errno::INVAL) => Ok(Some((at, len))),
        Err(e) => Err(e.into()),
    }
}

/// The blocks of 1 KiB, as mkfs.fat counts them, that hold any of it.
fn bad_blocks(kept: &[Kept]) -> impl Iterator<Item = u64> {
    kept.iter().flat_map(|part| part.offset / 1024..(part.offset + part.size).div_ceil(1024))
}

/// Makes a file for each part that the format keeps, and tells where they are.
fn files_for(image: &tempfile::NamedTempFile, kept: &[Kept]) -> Result<Vec<u64>> {
    let mounted = Mounted::new(image.path())?;
    for part in kept {
        let path = mounted.dir.path().join(part.file);
        let folder = path.parent().unwrap_or(mounted.dir.path());
        if !folder.exists() {
            fs::create_dir(folder)?;
            hide(folder);
        }
        let file = File::create_new(&path)?;
        io::copy(&mut io::repeat(0).take(part.size), &mut &file)?;
        file.sync_all()?;
        hide(&path);
    }
    mounted.end()?;
    let mut boot = [0; 16];
    File::open(image.path())?.read_exact(&mut boot)?;
    let cluster = u64::from(u16::from_le_bytes([boot[11], boot[12]])) * u64::from(boot[13]);
    kept.iter().map(|part| place(image.path(), part, cluster)).collect()
}

/// Marks a file or folder of an NTFS as hidden and part of the system, as Windows does. Nothing depends on it.
fn hide(path: &Path) {
    const HIDDEN_SYSTEM: u32 = 6;
    let flags = rustix::fs::XattrFlags::empty();
    let _ = rustix::fs::setxattr(path, "system.ntfs_attrib", &HIDDEN_SYSTEM.to_le_bytes(), flags);
}

/// Where the clusters of a file are, which have to be one after the other.
fn place(image: &Path, part: &Kept, cluster: u64) -> Result<u64> {
    let mut command = Command::new(program("ntfscluster", "ntfs-3g")?);
    let listed = run(command.args(["-F", part.file]).arg(image))?;
    // Lines of three numbers: the cluster in the file, the one on the disk, how many.
    let runs: Vec<_> = listed
        .lines()
        .filter_map(|line| {
            let numbers: Vec<u64> =
                line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
            <[u64; 3]>::try_from(numbers).ok()
        })
        .collect();
    match runs[..] {
        [[0, first, count]] if count * cluster >= part.size => Ok(first * cluster),
        _ => {
            let what = format!("the file {} of the new file system is in {} pieces", part.file, runs.len());
            Err(io::Error::other(what).into())
        }
    }
}

/// An NTFS that ntfs-3g serves in a folder of its own. Unmounted when dropped.
struct Mounted {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

/// How long a program may take to mount or to end.
const PATIENCE: Duration = Duration::from_secs(60);

impl Mounted {
    fn new(image: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let before = fs::metadata(dir.path())?.dev();
        let mut command = Command::new(program("ntfs-3g", "ntfs-3g")?);
        command.arg(image).arg(dir.path()).args(["-o", "silent,no_detach"]).env("LC_ALL", "C").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut mounted = Self { dir, server: Some(command.spawn()?) };
        let begun = Instant::now();
        while fs::metadata(mounted.dir.path())?.dev() == before {
            if mounted.ended()? || begun.elapsed() > PATIENCE {
                return Err(mounted.failure());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(mounted)
    }

    fn ended(&mut self) -> io::Result<bool> {
        self.server.as_mut().map_or(Ok(true), |server| Ok(server.try_wait()?.is_some()))
    }

    fn failure(&mut self) -> Error {
        let mut said = String::new();
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
        }
        Error::from(io::Error::other(format!("ntfs-3g did not mount the new file system: {}", said.trim())))
            .hint("It takes /dev/fuse. --filesystem exfat and --filesystem fat need no mount.")
    }

    /// Unmounts it; then everything is in the image.
    fn end(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let root = rustix::process::getuid().is_root();
        let mut command = match root {
            true => Command::new(program("umount", "mount")?),
            false => {
                let mut command = Command::new(program("fusermount3", "fuse3")?);
                command.arg("-u");
                command
            }
        };
        run(command.arg(self.dir.path()))?;
        let status = server.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("ntfs-3g ended with {status}")).into()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

/// Where a program is.
fn program(name: &str, package: &str) -> Result<PathBuf> {
    find_program(name).ok_or_else(|| {
        Error::unsupported(format!("{name} is not installed"))
            .hint(format!("`apt install {package}` (the Debian package {package})."))
    })
}

/// What a program prints.
fn run(command: &mut Command) -> Result<String> {
    let output = command.env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    Err(io::Error::other(format!("{name} failed ({}): {}", output.status, said.trim())).into())
}
