//! The first page as a value: the mounted and the available volumes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::form::absolute;
use crate::texts::Texts;
use crate::usage::{Usage, Used};

#[derive(Default)]
pub struct Home {
    pub mounted: Vec<Mounted>,
    pub at_hand: Vec<AtHand>,
    pub usage: Usage,
}

/// What a volume is, as its icon shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Container,
    Disk,
    Stick,
    Folder,
    Network,
}

impl Kind {
    /// Judged by the name alone: a file system might not answer.
    fn of(volume: &str) -> Self {
        match volume {
            _ if volume.contains("://") => Self::Network,
            _ if volume.starts_with("/dev/") => Self::Disk,
            _ => Self::Container,
        }
    }
}

/// A volume that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub volume: String,
    /// Where its files are, if it is mounted and not served.
    pub dir: Option<String>,
    pub kind: Kind,
    pub format: String,
    /// The file system in it, if it is one that people know by its name.
    pub filesystem: Option<String>,
    pub size: u64,
    /// Further facts: how it was opened, and where it is served.
    pub remarks: Vec<String>,
    /// Whether its keys can be forgotten while it stays mounted.
    pub lockable: bool,
    pub state: State,
    /// What its owner must know.
    pub trouble: Option<String>,
}

impl Mounted {
    /// The last part of its path.
    pub fn name(&self) -> &str {
        self.volume.rsplit('/').find(|part| !part.is_empty()).unwrap_or(&self.volume)
    }

    /// One line: format, file system, how much is used, and where.
    pub fn facts(&self, used: Option<Used>, texts: &Texts) -> String {
        let room = match used {
            Some((used, all)) => texts.used_of.replace("{used}", &size(used)).replace("{all}", &size(all)),
            None => size(self.size),
        };
        let facts = [Some(self.format.clone()), self.filesystem.clone(), Some(room), self.dir.clone()];
        let facts = facts.into_iter().flatten().chain(self.remarks.iter().cloned());
        facts.filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(" · ")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    /// Its keys are forgotten.
    Locked,
    /// Its server does not answer: the drive may be gone.
    Silent,
    /// Its server has ended.
    Dead,
}

/// A volume that may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtHand {
    pub path: PathBuf,
    /// What it is called.
    pub name: String,
    pub why: Why,
    pub kind: Kind,
    /// Further facts about it.
    pub facts: String,
    /// Its mount point and options.
    pub dir: Option<PathBuf>,
    pub options: Vec<String>,
}

impl AtHand {
    /// Something that was chosen now.
    pub fn chosen(path: &Path) -> Self {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let kind = if path.is_dir() { Kind::Folder } else { Kind::of(&path.to_string_lossy()) };
        Self {
            path: path.to_owned(),
            name,
            why: Why::Recent,
            kind,
            facts: String::new(),
            dir: None,
            options: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Favourite,
    /// It was opened by this window before.
    Recent,
    /// A removable drive with this in it.
    Drive,
}

/// What `claviger list` says.
pub fn mounted(list: &Value, texts: &Texts) -> Vec<Mounted> {
    #[derive(Deserialize)]
    struct One {
        volume: String,
        dir: Option<String>,
        uri: Option<String>,
        format: String,
        filesystem: Option<String>,
        size: u64,
        #[serde(default)]
        read_only: bool,
        state: String,
        failure: Option<String>,
        #[serde(default)]
        locked: bool,
        #[serde(default)]
        lockable: bool,
        #[serde(default)]
        damage_prevented: bool,
        #[serde(default)]
        failed_writes: u64,
    }
    let all: Vec<One> = serde_json::from_value(list["volumes"].clone()).unwrap_or_default();
    let each = |one: One| {
        let state = match (&*one.state, one.locked) {
            ("dead", _) => State::Dead,
            ("silent", _) => State::Silent,
            (_, true) => State::Locked,
            _ => State::Open,
        };
        let trouble = match state {
            State::Dead => Some(texts.server_gone.to_owned()),
            State::Silent => Some(texts.server_silent.to_owned()),
            _ if one.volume.starts_with("/dev/") && !Path::new(&one.volume).exists() => {
                Some(texts.drive_gone.to_owned())
            }
            _ if one.failed_writes > 0 => Some(texts.writes_failed.to_owned()),
            _ if one.damage_prevented => Some(texts.damage_prevented.to_owned()),
            _ => None,
        };
        let files = one.filesystem.as_deref() == Some("files");
        Mounted {
            kind: if files { Kind::Folder } else { Kind::of(&one.volume) },
            volume: one.volume,
            dir: one.dir,
            format: if one.format == "none" { String::new() } else { one.format },
            filesystem: one.filesystem.as_deref().and_then(file_system),
            size: one.size,
            remarks: one.read_only.then(|| texts.read_only.to_owned()).into_iter().chain(one.uri).collect(),
            lockable: one.lockable,
            state,
            trouble: one.failure.or(trouble),
        }
    };
    all.into_iter().map(each).collect()
}

/// The usual name of the file system; `None` if the volume has none of its own.
fn file_system(name: &str) -> Option<String> {
    let known = match name {
        "none" | "files" => return None,
        "vfat" | "fat" | "msdos" => "FAT",
        "exfat" => "exFAT",
        "ntfs" | "ntfs3" => "NTFS",
        "xfs" => "XFS",
        "btrfs" => "Btrfs",
        other => other,
    };
    Some(known.to_owned())
}

/// The favourites of `claviger attach`.
///
/// # Errors
/// What is wrong with the file.
pub fn favourites(text: &str, home: &Path) -> Result<Vec<AtHand>, String> {
    #[derive(Deserialize)]
    struct Favourite {
        volume: String,
        dir: String,
        #[serde(default)]
        options: Vec<String>,
    }
    let all: BTreeMap<String, Favourite> = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    let each = |(name, Favourite { volume, dir, options })| {
        let (path, dir) = (absolute(&volume, home), Some(absolute(&dir, home)));
        let kind = Kind::of(&volume);
        AtHand { path, name, why: Why::Favourite, kind, facts: String::new(), dir, options }
    };
    Ok(all.into_iter().map(each).collect())
}

/// Removable drives that may hold something encrypted: udev has looked at them, and says so to everybody. `system` is `/sys`, `udev`
/// is `/run/udev`.
pub fn drives(system: &Path, udev: &Path) -> Vec<AtHand> {
    let mut found = Vec::new();
    let entries = fs::read_dir(system.join("class/block")).into_iter().flatten().flatten();
    for entry in entries {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        let read = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        // A partition lies in the folder of its disk.
        let whole = fs::canonicalize(&path).unwrap_or(path.clone());
        let disk = if whole.join("partition").exists() { whole.parent().unwrap_or(&whole) } else { &whole };
        let removable = read(disk.join("removable")) == "1"
            || disk.components().any(|c| c.as_os_str().to_string_lossy().starts_with("usb"));
        let sectors: u64 = read(path.join("size")).parse().unwrap_or(0);
        if !removable || sectors == 0 {
            continue;
        }
        let known = read(udev.join("data").join(format!("b{}", read(path.join("dev")))));
        let says =
            |key: &str| known.lines().find_map(|line| line.strip_prefix("E:")?.strip_prefix(key)?.strip_prefix('='));
        let what = match (says("ID_FS_TYPE"), says("ID_PART_TABLE_TYPE")) {
            (Some("crypto_LUKS"), _) => "LUKS",
            (Some("BitLocker"), _) => "BitLocker",
            // No file system and no partitions: noise, as VeraCrypt's volumes are.
            (None, None) if !known.is_empty() => "",
            _ => continue,
        };
        let label = says("ID_FS_LABEL").or(says("ID_MODEL")).unwrap_or(&name).to_owned();
        let facts = [what.to_owned(), size(sectors * 512)].into_iter().filter(|fact| !fact.is_empty());
        let facts = facts.collect::<Vec<_>>().join(" · ");
        let path = Path::new("/dev").join(&name);
        found.push(AtHand {
            path,
            name: label,
            why: Why::Drive,
            kind: Kind::Stick,
            facts,
            dir: None,
            options: Vec::new(),
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// A size for people: 1.5 GiB.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / f64::from(1u32 << 10).powi(power as i32);
    let digits = usize::from(power > 0 && value < 100.0 && value.fract() >= 0.05);
    format!("{value:.digits$} {}", UNITS[power])
}

#[cfg(test)]
#[path = "../tests/values/home.rs"]
mod tests;
