//! `claviger create --filesystem`: other programs create it in the new volume, which they see as a file. If the format has
//! reserved areas in the plaintext, the file system must leave them free. It is then created in a file before the volume, and
//! copied into the volume.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use claviger_engine::formats::Creator;
use claviger_engine::spec::{Reserved, ReservedAt};
use claviger_engine::{Error, Result, Spec, Store, Volume};
use claviger_serve::fuse;
use claviger_serve::mount::{self, find_program};
use rustix::fs::{MemfdFlags, SeekFrom as Extent, memfd_create};

use crate::terminal::{output, size};

/// What can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// The usual one on Linux
    Ext4,
    /// At least 300 MiB
    Xfs,
    /// At least 110 MiB
    Btrfs,
    /// For Windows; in BitLocker, reserved areas become files
    Ntfs,
    /// For Windows, macOS and Linux; in BitLocker, smaller than the volume
    Exfat,
    /// For all systems; in BitLocker, reserved areas become bad clusters
    Fat,
}

/// The programs needed to create files over reserved areas in an NTFS.
const WITH_FILES: [(&str, &str); 2] = [("ntfs-3g", "ntfs-3g"), ("ntfscluster", "ntfs-3g")];

/// A file system in an image file, to be written to a new volume.
pub(crate) struct Made {
    image: tempfile::NamedTempFile,
    /// The offsets of the reserved areas; `None` if [`FileSystem::reserved_at`] gives them.
    places: Option<Vec<u64>>,
}

/// The name of a kind of file system, and the program that creates it.
struct Kind {
    name: &'static str,
    /// The program and its Debian package.
    program: (&'static str, &'static str),
    /// The program's options.
    options: &'static [&'static str],
    /// The option for the label, and the longest label, in bytes or UTF-16 units.
    label: (&'static str, usize),
    /// The option for the sector size; `None` if the program supports only 512 bytes, or detects the size.
    sector: Option<&'static str>,
    /// Whether labels are in UTF-16.
    utf16: bool,
}

const EXT4: Kind = Kind {
    name: "ext4",
    program: ("mkfs.ext4", "e2fsprogs"),
    options: &["-q", "-F"],
    label: ("-L", 16),
    sector: None,
    utf16: false,
};
const XFS: Kind = Kind {
    name: "XFS",
    program: ("mkfs.xfs", "xfsprogs"),
    options: &["-q", "-f", "-K"],
    label: ("-L", 12),
    sector: Some("-ssize="),
    utf16: false,
};
const BTRFS: Kind = Kind {
    name: "Btrfs",
    program: ("mkfs.btrfs", "btrfs-progs"),
    options: &["-q", "-f", "-K"],
    label: ("-L", 255),
    sector: None,
    utf16: false,
};
const NTFS: Kind = Kind {
    name: "NTFS",
    program: ("mkntfs", "ntfs-3g"),
    options: &["-F", "-Q", "-q", "-p", "0", "-H", "255", "-S", "63"],
    label: ("-L", 32),
    sector: Some("-s"),
    utf16: true,
};
const EXFAT: Kind = Kind {
    name: "exFAT",
    program: ("mkfs.exfat", "exfatprogs"),
    options: &[],
    label: ("-L", 11),
    sector: None,
    utf16: true,
};
const FAT: Kind = Kind {
    name: "FAT",
    program: ("mkfs.fat", "dosfstools"),
    options: &[],
    label: ("-n", 11),
    sector: Some("-S"),
    utf16: false,
};

/// The requested file system.
#[derive(Clone, Copy)]
pub(crate) struct NewFileSystem<'a> {
    pub kind: FileSystem,
    /// The volume's sector size, in bytes.
    pub sector: u32,
    pub label: Option<&'a str>,
}

impl FileSystem {
    fn kind(self) -> &'static Kind {
        match self {
            Self::Ext4 => &EXT4,
            Self::Xfs => &XFS,
            Self::Btrfs => &BTRFS,
            Self::Ntfs => &NTFS,
            Self::Exfat => &EXFAT,
            Self::Fat => &FAT,
        }
    }

    pub fn name(self) -> &'static str {
        self.kind().name
    }

    /// The programs that create it, and their Debian packages.
    fn needs(self, keeps: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
        let with_files: &[_] = if keeps && self == Self::Ntfs { &WITH_FILES } else { &[] };
        [self.kind().program].into_iter().chain(with_files.iter().copied())
    }

    /// Where this file system can have the format's reserved areas.
    pub fn reserved_at(self) -> ReservedAt<'static> {
        match self {
            Self::Ntfs | Self::Fat => ReservedAt::Spread,
            _ => ReservedAt::AtEnd,
        }
    }

    /// The sector size for a new volume with this file system, unless the user gives one; `None` if any will do.
    pub fn sector(self) -> Option<u32> {
        (self == Self::Exfat).then_some(512)
    }
}

impl NewFileSystem<'_> {
    /// Checks that the needed programs are installed. `keeps` says whether the format has reserved areas.
    ///
    /// # Errors
    /// `Misuse` for an impossible sector size or label; `Io` with the package to install.
    pub fn check(&self, keeps: bool) -> Result<()> {
        use FileSystem::Fat;
        let Kind { name, label: (_, longest), utf16, .. } = self.kind.kind();
        self.fits(keeps)?;
        let len = |label: &str| match self.kind {
            Fat => label.chars().count(),
            _ if *utf16 => label.encode_utf16().count(),
            _ => label.len(),
        };
        if let Some(label) = self.label.filter(|label| len(label) > *longest) {
            let unit = if *utf16 || self.kind == Fat { "characters" } else { "bytes" };
            return Err(Error::misuse(format!(
                "the label {label:?} is too long: {name} allows at most {longest} {unit}"
            )));
        }
        if let Some(label) = self.label.filter(|label| label.chars().any(char::is_control)) {
            return Err(Error::misuse(format!("the label {label:?} is not a single line of text, as {name} needs")));
        }
        if let (Fat, Some(label)) = (self.kind, self.label) {
            fat_label(label)?;
        }
        let missing = self.kind.needs(keeps).find(|(name, _)| find_program(name).is_none());
        if let Some(missing) = missing {
            return Err(Error::not_installed(&format!("creating {name}"), missing, &self.otherwise(keeps)));
        }
        if keeps { Ok(()) } else { fuse::available().map_err(needs_fuse) }
    }

    /// Checks that `len` bytes are enough: the program tries it, without the label, in a file in memory, which leaves no trace on a disk.
    ///
    /// # Errors
    /// `Io` with what the program says.
    pub fn check_room(&self, len: u64) -> Result<()> {
        /// More than any of the programs needs.
        const ENOUGH: u64 = 512 << 20;
        if len >= ENOUGH {
            return Ok(());
        }
        let image = File::from(memfd_create("claviger", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
        image.set_len(len / u64::from(self.sector) * u64::from(self.sector))?;
        // This process is closed to others, also to its children: they get the file as theirs.
        let path = Path::new("/proc/self/fd/0");
        let tried = Self { label: None, ..*self };
        let done = run_with(tried.command().arg(path), image.try_clone()?.into());
        done.map(drop).map_err(|e| self.not_created(e, path, image.metadata().ok()))
    }

    /// Whether a volume with these sectors can hold the file system.
    fn fits(&self, keeps: bool) -> Result<()> {
        use FileSystem::{Btrfs, Exfat, Ext4, Fat, Xfs};
        let name = self.kind.name();
        if keeps && matches!(self.kind, Ext4 | Xfs | Btrfs) {
            return Err(Error::misuse(format!("{name} cannot leave room for the format's reserved areas"))
                .hint("Use NTFS, exFAT or FAT: --filesystem ntfs."));
        }
        if self.sector != 512 && (self.kind == Exfat || (keeps && self.kind == Fat)) {
            return Err(Error::misuse(format!("{name} supports only 512-byte sectors"))
                .hint("Use another file system, or omit --sector-size."));
        }
        Ok(())
    }

    /// What works where a program for this file system is missing: file systems whose programs are there, or none.
    fn otherwise(&self, keeps: bool) -> String {
        let works = |other: &FileSystem| {
            NewFileSystem { kind: *other, label: None, ..*self }.fits(keeps).is_ok()
                && other.needs(keeps).all(|(name, _)| find_program(name).is_some())
        };
        let others = FileSystem::value_variants().iter().filter(|other| works(other));
        let others: Vec<_> = others.map(|other| other.name().to_lowercase()).collect();
        match &others[..] {
            [] => "Or omit --filesystem.".to_owned(),
            others => format!("Or choose another: --filesystem {}.", others.join("|")),
        }
    }

    /// The command that creates the file system, without its last argument.
    fn command(&self) -> Command {
        let Kind { program: (name, _), options, label: (before, _), sector, .. } = self.kind.kind();
        let mut command = program(name);
        command.args(*options);
        if let Some(option) = sector {
            command.arg(format!("{option}{}", self.sector));
        }
        if self.kind == FileSystem::Ext4 {
            // The kernel initialises the rest later, whatever it contains. The user gets write access as owner of the root folder.
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            let lazy = "nodiscard,lazy_itable_init=1,lazy_journal_init=1";
            command.arg("-E").arg(format!("{lazy},root_owner={}:{}", user.as_raw(), group.as_raw()));
            // ext4 has no sectors; its blocks may be as small as 1 KiB.
            if self.sector > 1024 {
                command.arg(format!("-b{}", self.sector));
            }
        }
        if let Some(label) = self.label {
            command.args([*before, if self.relabelled() { PLACEHOLDER } else { label }]);
        }
        command
    }

    /// Whether the label is written afterwards.
    fn relabelled(&self) -> bool {
        self.kind == FileSystem::Fat && self.label.is_some_and(|label| !label.is_ascii())
    }

    /// Runs the command with its last argument.
    fn run(&self, mut command: Command, image: &Path) -> Result<()> {
        run(command.arg(image)).map_err(|e| self.not_created(e, image, fs::metadata(image).ok()))?;
        match self.label {
            Some(label) if self.relabelled() => relabel(image, &fat_label(label)?),
            _ => Ok(()),
        }
    }

    /// The error of a program that did not create the file system.
    fn not_created(&self, error: Error, image: &Path, about: Option<fs::Metadata>) -> Error {
        let size = about.map(|about| format!(" in {}", size::short(about.len()))).unwrap_or_default();
        let what = format!("no {} file system was created{size}: {}", self.kind.name(), error.kind);
        let hint = error
            .hint
            .unwrap_or_else(|| "If that is too small, use a larger --size or another --filesystem.".to_owned());
        Error::from(io::Error::other(what.replace(&*image.to_string_lossy(), "the volume"))).hint(hint)
    }

    /// Creates the file system in a volume, which the program sees as a file. Only what the program writes is written.
    ///
    /// # Errors
    /// `Io` if FUSE is missing or the program fails.
    pub fn make_in(&self, volume: Volume) -> Result<()> {
        let volume: Arc<dyn Store> = Arc::new(volume);
        let dir = tempfile::tempdir()?;
        let mounted = fuse::mount(fuse::Image::new(Arc::clone(&volume)), dir.path(), fuse::FuseOptions::default());
        let mounted = mounted.map_err(needs_fuse)?;
        let handle = mounted.handle();
        let serving = thread::spawn(move || mounted.run());
        let made = self.run(self.command(), &dir.path().join("volume"));
        handle.stop();
        let ended =
            serving.join().unwrap_or_else(|_| Err(io::Error::other("the server of the new volume failed").into()));
        made?;
        ended?;
        Ok(volume.flush()?)
    }

    /// Creates the file system for a volume of `len` bytes, in an image file in `folder`.
    ///
    /// # Errors
    /// `Io` if a program fails.
    pub fn make(self, creator: &dyn Creator, len: u64, spec: &Spec<'_>, folder: &Path) -> Result<Made> {
        let reserved = creator.reserved(len, spec)?;
        let sector = u64::from(self.sector);
        let image = tempfile::Builder::new().prefix(".claviger-").tempfile_in(folder)?;
        let size = match (self.kind, reserved.iter().map(|part| part.offset).min()) {
            (FileSystem::Exfat, Some(end)) => end,
            _ => len / sector * sector,
        };
        image.as_file().set_len(size)?;
        let mut command = self.command();
        let mut bad = tempfile::NamedTempFile::new()?;
        if self.kind == FileSystem::Fat {
            for block in bad_blocks(&reserved) {
                writeln!(bad, "{block}")?;
            }
            command.arg("-l").arg(bad.path());
        }
        self.run(command, image.path())?;
        let places = (self.kind == FileSystem::Ntfs).then(|| files_for(&image, &reserved)).transpose()?;
        Ok(Made { image, places })
    }
}

/// Adds to an error of FUSE what works without it.
fn needs_fuse(mut error: Error) -> Error {
    let hint = error.hint.take().map(|hint| hint + " ").unwrap_or_default();
    error.hint(format!("{hint}Creating a file system needs FUSE; creating a volume without --filesystem does not."))
}

impl Made {
    /// Where the format must put its reserved areas.
    pub fn reserved_at(&self, of: FileSystem) -> ReservedAt<'_> {
        self.places.as_deref().map_or(of.reserved_at(), ReservedAt::At)
    }

    /// Writes the image to `volume`. Holes in the image are not written.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_to(&self, volume: Volume) -> Result<()> {
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
                volume.write_clobbering(at, part)?;
                at += part.len() as u64;
            }
        }
        Ok(volume.flush()?)
    }
}

/// The characters of the bytes from 0x80 in code page 850, in which mkfs.fat writes labels.
const CODE_PAGE_850: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜø£Ø×ƒáíóúñÑªº¿®¬½¼¡«»░▒▓│┤ÁÂÀ©╣║╗╝¢¥┐└┴┬├─┼ãÃ╚╔╩╦╠═╬¤ðÐÊËÈıÍÎÏ┘┌█▄¦Ì▀ÓßÔÒõÕµþÞÚÛÙýÝ¯´\u{ad}±‗¾¶§÷¸°¨·¹³²■\u{a0}";

/// The label for mkfs.fat if the real one is not ASCII: version 4.2 refuses such labels, because it takes their bytes for negative.
const PLACEHOLDER: &str = "CLAVIGER-01";

/// A label as FAT stores it.
///
/// # Errors
/// `Misuse` for characters that a FAT label cannot have (mkfs.fat 4.2 refuses the same).
fn fat_label(label: &str) -> Result<[u8; 11]> {
    let byte = |c: char| match c {
        ' '..='~' if !"*?.,;:/\\|+=<>[]\"".contains(c) => Some(c as u8),
        _ => CODE_PAGE_850.chars().position(|known| known == c).map(|place| 0x80 + place as u8),
    };
    let mut stored = [b' '; 11];
    for (c, room) in label.chars().zip(&mut stored) {
        *room = byte(c).ok_or_else(|| {
            Error::misuse(format!("the label {label:?} contains {c:?}, which FAT does not allow"))
                .hint("Use letters, digits, spaces and hyphens, or exFAT: --filesystem exfat.")
        })?;
    }
    match label.starts_with(' ') {
        true => Err(Error::misuse(format!("the label {label:?} begins with a space, which FAT does not allow"))),
        false => Ok(stored),
    }
}

/// Replaces the label of mkfs.fat: in the boot sectors, and in the first entry of the root folder (Microsoft, "FAT32 File
/// System Specification", version 1.03).
fn relabel(image: &Path, label: &[u8; 11]) -> Result<()> {
    let file = File::options().read(true).write(true).open(image)?;
    let mut boot = [0; 512];
    file.read_exact_at(&mut boot, 0)?;
    let le16 = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
    let le32 = |at: usize| le16(at) | le16(at + 2) << 16;
    let (sector, is_fat32) = (le16(11), le16(22) == 0);
    let fats = u64::from(boot[16]) * if is_fat32 { le32(36) } else { le16(22) };
    let first = (le16(14) + fats) * sector;
    let places = match is_fat32 {
        true => vec![71, le16(50) * sector + 71, first + le32(44).saturating_sub(2) * u64::from(boot[13]) * sector],
        false => vec![43, first],
    };
    for at in &places {
        let mut there = [0; 11];
        file.read_exact_at(&mut there, *at)?;
        if there != PLACEHOLDER.as_bytes() {
            return Err(io::Error::other(format!("mkfs.fat has put no label at byte {at} of the file system")).into());
        }
    }
    places.iter().try_for_each(|at| file.write_all_at(label, *at))?;
    Ok(file.sync_all()?)
}

/// The next range of a file that is not a hole.
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

/// The 1 KiB blocks, as mkfs.fat counts them, that overlap the reserved areas.
fn bad_blocks(reserved: &[Reserved]) -> impl Iterator<Item = u64> {
    reserved.iter().flat_map(|part| part.offset / 1024..(part.offset + part.size).div_ceil(1024))
}

/// The number of attempts to create unfragmented files.
const ATTEMPTS: usize = 8;

/// Creates a file for each reserved area and returns the files' offsets. A fragmented file is created again, while the old one
/// still occupies the gaps that caused it.
fn files_for(image: &tempfile::NamedTempFile, reserved: &[Reserved]) -> Result<Vec<u64>> {
    let mut boot = [0; 16];
    File::open(image.path())?.read_exact(&mut boot)?;
    let cluster = u64::from(u16::from_le_bytes([boot[11], boot[12]])) * u64::from(boot[13]);
    let mut in_pieces: Vec<&Reserved> = Vec::new();
    let mut fillers: Vec<String> = Vec::new();
    for _ in 0..ATTEMPTS {
        let mounted = Mounted::new(image.path())?;
        for part in in_pieces.drain(..) {
            let filler = format!("{}.{}", part.file, fillers.len());
            fs::rename(mounted.dir.path().join(part.file), mounted.dir.path().join(&filler))?;
            fillers.push(filler);
        }
        reserved.iter().try_for_each(|part| make_file(mounted.dir.path(), part))?;
        mounted.end()?;
        let mut places = Vec::new();
        for part in reserved {
            match place(image.path(), part, cluster)? {
                Some(place) => places.push(place),
                None => in_pieces.push(part),
            }
        }
        if in_pieces.is_empty() {
            remove_files(image, &fillers)?;
            return Ok(places);
        }
    }
    let what = format!("the new file system has no room for {} in one piece", in_pieces[0].file);
    Err(Error::from(io::Error::other(what)).hint("Make the volume larger, or use --filesystem exfat."))
}

fn make_file(root: &Path, part: &Reserved) -> io::Result<()> {
    let path = root.join(part.file);
    if path.exists() {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(root);
    if !folder.exists() {
        fs::create_dir(folder)?;
        hide(folder);
    }
    let file = File::create_new(&path)?;
    io::copy(&mut io::repeat(0).take(part.size), &mut &file)?;
    file.sync_all()?;
    hide(&path);
    Ok(())
}

fn remove_files(image: &tempfile::NamedTempFile, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mounted = Mounted::new(image.path())?;
    names.iter().try_for_each(|name| fs::remove_file(mounted.dir.path().join(name)))?;
    mounted.end()
}

/// Marks a file or folder of an NTFS as hidden and system, as Windows does. Best effort.
fn hide(path: &Path) {
    const HIDDEN_SYSTEM: u32 = 6;
    let flags = rustix::fs::XattrFlags::empty();
    let _ = rustix::fs::setxattr(path, "system.ntfs_attrib", &HIDDEN_SYSTEM.to_le_bytes(), flags);
}

/// The offset of a file's clusters; `None` if the file is fragmented.
fn place(image: &Path, part: &Reserved, cluster: u64) -> Result<Option<u64>> {
    let mut command = program("ntfscluster");
    let listed = run(command.args(["-F", part.file]).arg(image))?;
    // Lines of three numbers: the cluster in the file, the cluster on the disk, and the length.
    let numbers = |line: &str| -> Option<[u64; 3]> {
        let numbers: Vec<u64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
        numbers.try_into().ok()
    };
    let runs: Vec<_> = listed.lines().filter_map(numbers).collect();
    Ok(one_piece(&runs, cluster, part.size))
}

/// The offset of a file whose cluster runs follow each other; `None` if they do not.
fn one_piece(runs: &[[u64; 3]], cluster: u64, size: u64) -> Option<u64> {
    let &[_, first, _] = runs.first()?;
    let mut next = 0;
    for [in_file, on_disk, count] in runs {
        if *in_file != next || Some(*on_disk) != first.checked_add(next) {
            return None;
        }
        next = next.checked_add(*count)?;
    }
    if next.checked_mul(cluster)? < size { None } else { first.checked_mul(cluster) }
}

/// An NTFS that ntfs-3g has mounted on a folder of its own. Unmounted when dropped.
struct Mounted {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

/// How long a program may take to mount or to exit.
const PATIENCE: Duration = Duration::from_secs(60);

impl Mounted {
    fn new(image: &Path) -> Result<Self> {
        // As the list of mounts names it.
        let dir = tempfile::tempdir_in(std::env::temp_dir().canonicalize()?)?;
        let before = fs::metadata(dir.path())?.dev();
        let mut command = program("ntfs-3g");
        command.arg(image).arg(dir.path()).args(["-o", "silent,no_detach"]).env("LC_ALL", "C.UTF-8").current_dir("/");
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
        let mut errors = String::new();
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.stderr.take().map(|mut stderr| stderr.read_to_string(&mut errors));
            let _ = server.wait();
        }
        Error::from(io::Error::other(format!("ntfs-3g did not mount the new file system: {}", errors.trim())))
            .hint("NTFS needs /dev/fuse. Use --filesystem exfat or --filesystem fat, which do not.")
    }

    /// Unmounts the NTFS; then all data are in the image.
    fn end(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let unmounted = mount::unmount(self.dir.path());
        if unmounted.is_err() {
            // Without a server, removing the folder removes nothing in the file system.
            let _ = server.kill();
        }
        let status = server.wait()?;
        unmounted?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("ntfs-3g ended with {status}")).into()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            output::warn(&e.to_string());
        }
    }
}

/// A program that [`NewFileSystem::check`] has found.
fn program(name: &str) -> Command {
    Command::new(find_program(name).unwrap_or_else(|| name.into()))
}

/// mkfs.btrfs asks every mount of the machine for its source.
const UNANSWERED_MOUNT: &str = "A mount that has nothing to do with the new volume does not answer, because its server has ended. \
    List all mounts with `findmnt`, detach that one with `umount -l DIR`, and try again.";

/// Runs a program and returns its output.
fn run(command: &mut Command) -> Result<String> {
    run_with(command, Stdio::null())
}

fn run_with(command: &mut Command, stdin: Stdio) -> Result<String> {
    let output = command.env("LC_ALL", "C.UTF-8").stdin(stdin).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let error: Error = io::Error::other(format!("{name} failed ({}): {}", output.status, reason(&errors))).into();
    Err(match errors.contains("cannot check mount status") {
        true => error.hint(UNANSWERED_MOUNT),
        false => error,
    })
}

/// The reason among what a program prints: without its usage, and what `mkntfs` says of every file.
fn reason(errors: &str) -> String {
    let lines = errors.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let noise = |line: &&str| {
        let unmounted = line.starts_with("Failed to determine whether ");
        line.is_empty() || unmounted || line.ends_with(" is not a block device.") || *line == "mkntfs forced anyway."
    };
    lines.filter(|line| !noise(line)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_one_piece_if_its_clusters_follow_each_other() {
        let piece = |runs: &[[u64; 3]]| one_piece(runs, 4096, 64 << 10);
        assert_eq!(piece(&[[0, 100, 16]]), Some(100 << 12));
        assert_eq!(piece(&[[0, 100, 10], [10, 110, 6]]), Some(100 << 12), "listed in two runs");
        for bad in
            [&[][..], &[[0, 100, 15]], &[[1, 100, 16]], &[[0, 100, 10], [10, 111, 6]], &[[0, 100, 10], [11, 110, 6]]]
        {
            assert_eq!(piece(bad), None, "{bad:?}");
        }
        // Runs with impossible numbers.
        assert_eq!(one_piece(&[[0, u64::MAX, 2], [2, 1, 2]], 4096, 8192), None);
    }
}
