//! Traces of a volume in the surrounding file system and on the machine.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};
use claviger_serve::mount::mountinfo::{self, Mount};
use claviger_serve::sessions::escape;

use super::finding::{Finding, Sure, View, What};
use crate::terminal::date::date;
use crate::terminal::output::printable;

/// Files in a home folder that name opened volumes: of shells, editors, desktops, VeraCrypt, and this program's favourites.
const HOME_FILES: &[&str] = &[
    ".bash_history",
    ".zsh_history",
    ".zhistory",
    ".local/share/fish/fish_history",
    ".local/share/recently-used.xbel",
    ".viminfo",
    ".lesshst",
    ".config/VeraCrypt/History.xml",
    ".config/VeraCrypt/Favorite Volumes.xml",
    ".config/claviger/favourites.toml",
];

/// Files of the machine that name the volume, from boot on or while it is open.
const MACHINE_FILES: &[&str] = &["etc/fstab", "etc/crypttab", "proc/self/mountinfo"];

/// The bytes of a file that are searched, at most.
const SEARCHED: u64 = 64 << 20;

/// File systems that keep overwritten data or copy them elsewhere, and why.
const KEEPS: &[(&str, &str)] = &[
    ("btrfs", "never overwrites in place and may have snapshots"),
    ("bcachefs", "never overwrites in place and may have snapshots"),
    ("zfs", "never overwrites in place and may have snapshots"),
    ("nilfs2", "never overwrites in place and keeps checkpoints"),
    ("f2fs", "rarely overwrites in place"),
    ("overlay", "keeps the original file in the layer below"),
    ("xfs", "may share blocks with earlier copies of the file"),
    ("nfs", "belongs to another machine, which may have snapshots and backups"),
    ("cifs", "belongs to another machine, which may have snapshots and backups"),
    ("ceph", "belongs to another machine, which may have snapshots and backups"),
    ("9p", "belongs to another machine, which may have snapshots and backups"),
    ("virtiofs", "belongs to another machine, which may have snapshots and backups"),
    ("fuse", "is served by a program, which may keep copies or send them elsewhere"),
];

/// The machine's root folder and a home folder.
pub struct Host {
    root: PathBuf,
    home: PathBuf,
}

impl Host {
    pub fn here() -> Self {
        Self { root: "/".into(), home: std::env::home_dir().unwrap_or_else(|| "/".into()) }
    }

    /// The findings from the file system around the volume at `path`, and from the machine.
    pub fn findings(&self, path: &Path) -> Result<Vec<Finding>> {
        let read = || -> io::Result<_> { Ok((fs::metadata(path)?, fs::canonicalize(path)?, mountinfo::mounts()?)) };
        let (metadata, path, mounts) = read().map_err(|e| Error::from(e).at(path))?;
        let mut findings = Vec::new();
        let device = if metadata.file_type().is_block_device() {
            metadata.rdev()
        } else {
            findings.extend(times(&metadata));
            let mount = mounts.iter().filter(|m| path.starts_with(&m.dir)).max_by_key(|m| m.dir.as_os_str().len());
            findings.extend(mount.map(around));
            let source = mount.and_then(|mount| fs::metadata(&mount.source).ok());
            source.map(|source| source.rdev()).filter(|device| *device != 0).unwrap_or(metadata.dev())
        };
        findings.push(self.below(device));
        findings.extend([self.swap(), self.sleep(), self.names(path.file_name().unwrap_or_default())]);
        Ok(findings)
    }

    /// The layers below the disk: device-mapper names them in its UUIDs (Linux, Documentation/admin-guide/device-mapper).
    fn below(&self, device: u64) -> Finding {
        let uuids = self.uuids(device);
        let has = |kind: &str| uuids.iter().any(|uuid| uuid.starts_with(kind));
        if has("LVM-") {
            let sees = "It is on a logical volume. A snapshot of that contains an earlier state.";
            return Finding::nothing("disk", View::FileSystem, sees)
                .gives(What::Use, Sure::Possible)
                .advised("To list snapshots: `lvs`. Remove the old ones.");
        }
        let below = match has("CRYPT-") {
            true => "it is on an encrypted disk, which hides all of this while it is locked",
            false => "it is not on a logical volume, whose snapshots would be older copies",
        };
        Finding::nothing("disk", View::FileSystem, format!("According to this machine, {below}."))
    }

    /// The device-mapper UUIDs of a device and of all devices below it.
    fn uuids(&self, device: u64) -> Vec<String> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let mut uuids = Vec::new();
        collect_uuids(&self.root.join(format!("sys/dev/block/{major}:{minor}")), 8, &mut uuids);
        uuids
    }

    /// Where unused memory is swapped to.
    fn swap(&self) -> Finding {
        let text = fs::read_to_string(self.root.join("proc/swaps")).unwrap_or_default();
        let areas = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        let open: Vec<_> = areas.filter(|area| !self.is_safe(Path::new(area))).map(printable).collect();
        if open.is_empty() {
            return Finding::nothing("swap", View::Host, "No swap area is on an unencrypted disk.");
        }
        let sees = format!(
            "Memory is swapped to {}, which may be unencrypted. Passwords and keys are never swapped. Data and names that programs \
             read from the volume may be.",
            open.join(", ")
        );
        Finding::nothing("swap", View::Host, sees)
            .gives(What::Use, Sure::Possible)
            .advised("Encrypt the swap area (`claviger attach --random-key`) or use zram.")
    }

    /// Whether a swap area is in memory or on an encrypted disk.
    fn is_safe(&self, area: &Path) -> bool {
        let name = area.file_name().unwrap_or_default();
        let device = fs::metadata(area).map_or(0, |metadata| metadata.rdev());
        name.as_bytes().starts_with(b"zram") || self.uuids(device).iter().any(|uuid| uuid.starts_with("CRYPT-"))
    }

    /// Whether hibernation may write all memory to a disk.
    fn sleep(&self) -> Finding {
        let read = |path: &str| fs::read_to_string(self.root.join(path)).unwrap_or_default();
        let (can, resume) = (read("sys/power/state"), read("sys/power/resume"));
        if !can.split_whitespace().any(|state| state == "disk") || matches!(resume.trim(), "" | "0:0") {
            return Finding::nothing(
                "hibernation",
                View::Host,
                "This machine does not hibernate: it never writes its memory to a disk.",
            );
        }
        let sees = "This machine can hibernate, which writes all memory to a disk, including keys of open volumes.";
        Finding::nothing("hibernation", View::Host, sees).gives(What::Use, Sure::Possible).advised(
            "Before hibernation, unmount the volume, or lock it (`claviger lock`) if it has a key process. Or encrypt the swap area.",
        )
    }

    /// The files, processes and loop devices that name the volume.
    fn names(&self, name: &OsStr) -> Finding {
        let machine = MACHINE_FILES.iter().map(|file| self.root.join(file));
        let files = machine.chain(HOME_FILES.iter().map(|file| self.home.join(file)));
        let of = |folder: &str, file: &'static str| {
            let entries = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
            entries.map(move |entry| entry.path().join(file))
        };
        let ours = self.ancestors();
        let processes = of("proc", "cmdline").filter(|path| !ours.iter().any(|process| path.starts_with(process)));
        let all = files.chain(processes).chain(of("sys/block", "loop/backing_file"));
        // /proc/self/mountinfo and fstab escape spaces in names.
        let escaped = escape(Path::new(name)).replace(' ', r"\040");
        let words = [name.as_bytes(), escaped.as_bytes()];
        let found: Vec<_> = all.filter(|path| stands_in(path, words)).map(|path| path.display().to_string()).collect();
        if found.is_empty() {
            let sees = "Its name is in no history, list of favourites, mount table or command line of this user and this machine.";
            return Finding::nothing("names", View::Host, sees);
        }
        Finding::nothing("names", View::Host, format!("Its name is in {}.", found.join(", ")))
            .gives(What::Encryption, Sure::Certain)
            .advised("Remove it there. In future use `claviger attach NAME`, or begin the command with a space if your shell then does not record it.")
    }

    /// This process and its ancestors: their command lines name the volume because of this audit.
    fn ancestors(&self) -> BTreeSet<PathBuf> {
        let mut all = BTreeSet::new();
        let mut next = Some(std::process::id().to_string());
        while let Some(process) =
            next.map(|pid| self.root.join("proc").join(pid)).filter(|path| all.insert(path.clone()))
        {
            let status = fs::read_to_string(process.join("status")).unwrap_or_default();
            next = status.lines().find_map(|line| Some(line.strip_prefix("PPid:")?.trim().to_owned()));
        }
        // /proc also lists this process under these names.
        all.extend(["self", "thread-self"].map(|name| self.root.join("proc").join(name)));
        all
    }
}

fn collect_uuids(device: &Path, depth: u32, uuids: &mut Vec<String>) {
    uuids.extend(fs::read_to_string(device.join("dm/uuid")));
    if let Some(depth) = depth.checked_sub(1) {
        let below = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
        below.for_each(|slave| collect_uuids(&slave.path(), depth, uuids));
    }
}

/// The times of the last read, write and change.
fn times(metadata: &fs::Metadata) -> [Finding; 2] {
    let (accessed, modified, changed) = (metadata.atime(), metadata.mtime(), metadata.ctime());
    let sees = format!(
        "It was last written {}, last read {}, and its entry last changed {}.",
        date(modified),
        date(accessed),
        date(changed)
    );
    let times = Finding::nothing("times", View::FileSystem, sees).gives(What::Use, Sure::Certain).advised(
        "--read-only leaves all three unchanged. --keep-times restores the first two when the volume is closed. The third then shows \
         that, and backup programs miss the changes.",
    );
    let back = "times-put-back";
    let put_back = if changed - modified > 1 {
        let sees = "Its entry was changed after its contents: it was renamed, moved or copied, its permissions were changed, or its \
                    times were set back.";
        Finding::nothing(back, View::FileSystem, sees).gives(What::Use, Sure::Possible)
    } else {
        Finding::nothing(
            back,
            View::FileSystem,
            "Its entry and its contents were last changed together: no time was set back.",
        )
    };
    [times, put_back]
}

/// What the surrounding file system keeps.
fn around(mount: &Mount) -> Finding {
    let kind = mount.kind.as_str();
    let keeps = KEEPS
        .iter()
        .find(|(name, _)| kind.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '4'])));
    let Some((_, keeps)) = keeps else {
        let sees = format!(
            "It is in a file system of the kind {kind}, which overwrites in place. A journal may keep times and sizes; with \
             data=journal, ext3 and ext4 keep contents, too."
        );
        return Finding::nothing("around", View::FileSystem, sees);
    };
    Finding::nothing(
        "around",
        View::FileSystem,
        format!("It is in a file system of the kind {kind}, which {keeps}. Older copies may exist."),
    )
    .gives(What::Use, Sure::Possible)
    .advised("Keep the volume on a disk or partition of its own, or on ext4, without snapshots.")
}

/// Whether the file contains one of the `words` as a whole word.
fn stands_in(path: &Path, words: [&[u8]; 2]) -> bool {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(SEARCHED).read_to_end(&mut bytes));
    let part = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || b"._-".contains(b));
    let stands = |word: &[u8]| {
        bytes.windows(word.len().max(1)).enumerate().any(|(at, window)| {
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            window == word && !part(before) && !part(bytes.get(at + word.len()))
        })
    };
    read.is_ok() && words.into_iter().any(stands)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test machine with a home folder.
    fn machine() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().expect("a folder");
        let host = Host { root: dir.path().to_owned(), home: dir.path().join("home") };
        (dir, host)
    }

    fn write(host: &Host, path: &str, text: &str) {
        let path = host.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn a_name_is_found_wherever_it_stands_and_only_as_a_word() {
        let (_dir, host) = machine();
        write(&host, "home/.bash_history", "ls\nclaviger mount old-secrets.hc /mnt\nclaviger cat secrets.hc.bak\n");
        let names = |name: &str| host.names(name.as_ref());
        assert!(names("secrets.hc").gives_away.is_none());
        assert!(names("old-secrets.hc").sees.contains(".bash_history"));
        for file in [
            "proc/4000000/cmdline",
            "sys/block/loop7/loop/backing_file",
            "etc/crypttab",
            "home/.config/claviger/favourites.toml",
        ] {
            let before = names("secrets.hc");
            assert!(!before.sees.contains(file), "{}", before.sees);
            write(&host, file, "x\0/home/u/secrets.hc\0y");
            let after = names("secrets.hc");
            assert!(after.gives_away.is_some() && after.sees.contains(file), "{}", after.sees);
        }
        write(&host, "proc/self/mountinfo", "36 35 98:0 / /mnt/my\\040secrets.hc rw - ext4 /dev/loop0 rw\n");
        assert!(names("my secrets.hc").sees.contains("mountinfo"));
        // This process and its parents name the volume because of the audit.
        let (_dir, host) = machine();
        write(&host, &format!("proc/{}/cmdline", std::process::id()), "verify\0secrets.hc");
        write(&host, &format!("proc/{}/status", std::process::id()), "Name:\tx\nPPid:\t4000000\n");
        write(&host, "proc/4000000/cmdline", "sh\0-c\0verify secrets.hc");
        assert!(host.names("secrets.hc".as_ref()).gives_away.is_none());
    }

    #[test]
    fn swap_counts_unless_it_is_in_memory() {
        let (_dir, host) = machine();
        let heading = "Filename\t\t\tType\t\tSize\n";
        for (text, gives) in [("", false), ("/dev/zram0 partition 1\n", false), ("/no/swapfile file 8 0 -2\n", true)] {
            write(&host, "proc/swaps", &format!("{heading}{text}"));
            assert_eq!(host.swap().gives_away.is_some(), gives, "{text}");
        }
    }

    #[test]
    fn memory_goes_to_a_disk_where_the_kernel_can_and_knows_where() {
        let (_dir, host) = machine();
        for (state, resume, gives) in
            [("freeze mem", "8:3", false), ("freeze mem disk", "0:0", false), ("freeze mem disk", "8:3", true)]
        {
            write(&host, "sys/power/state", state);
            write(&host, "sys/power/resume", resume);
            assert_eq!(host.sleep().gives_away.is_some(), gives, "{state} {resume}");
        }
    }

    #[test]
    fn a_snapshot_is_possible_where_a_logical_volume_is_anywhere_below() {
        let (_dir, host) = machine();
        let device = rustix::fs::makedev(253, 5);
        let gives = || host.below(device).gives_away.is_some();
        assert!(!gives());
        write(&host, "sys/dev/block/253:5/dm/uuid", "CRYPT-LUKS2-x\n");
        assert!(!gives() && host.below(device).sees.contains("encrypted"));
        write(&host, "sys/dev/block/253:5/slaves/dm-1/dm/uuid", "LVM-x\n");
        assert!(gives());
    }

    #[test]
    fn file_systems_that_keep_what_was_overwritten_are_named() {
        let gives = |kind: &str| {
            let (dir, source, device) = ("/".into(), "/dev/x".into(), "8:1".to_owned());
            around(&Mount { id: 1, parent: 0, device, dir, kind: kind.to_owned(), source, read_only: false })
                .gives_away
                .is_some()
        };
        for (kind, expected) in [
            ("ext4", false),
            ("tmpfs", false),
            ("btrfs", true),
            ("nfs4", true),
            ("fuse.sshfs", true),
            ("fuseblk", false),
        ] {
            assert_eq!(gives(kind), expected, "{kind}");
        }
    }
}
