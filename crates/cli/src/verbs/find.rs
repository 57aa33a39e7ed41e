//! `claviger find`: finds volumes on a disk whose partition table is lost.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::FORMATS;
use claviger_engine::diagnosis::{self, DiskFind, DiskScan, FoundOnDisk};
use claviger_engine::store::Access;
use serde::Serialize;

use crate::opening::{assembled, remote};
use crate::terminal::cancel;
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::size;

/// Find volumes and file systems anywhere on a disk or image
///
/// Reads the whole disk and looks for headers, copies of headers, and superblocks at every sector, and for areas of random-looking
/// bytes. No partition table is needed. A volume of TrueCrypt or VeraCrypt has no signature and looks like random bytes. Each place has a
/// name that all verbs take. Nothing is written.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger find disk.img
  claviger info at:1048576@disk.img

The exit status is 0 if anything was found and the whole disk was read.")]
pub struct Args {
    /// Disk, or image of a disk
    #[arg(value_name = "DISK")]
    disk: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found on a disk.
#[derive(Serialize)]
struct Search {
    #[serde(flatten)]
    path: FileName,
    /// The disk's size in bytes.
    size: u64,
    found: Vec<NamedPlace>,
    /// Bytes inside of file systems that look random.
    random_inside: u64,
    /// Bytes that could not be read.
    unreadable: u64,
    /// Whether there was too much to examine.
    incomplete: bool,
}

/// A place on the disk, with its name.
#[derive(Serialize)]
struct NamedPlace {
    /// The name of the store that begins there.
    #[serde(flatten)]
    path: FileName,
    #[serde(flatten)]
    found: FoundOnDisk,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let disk = remote::open_disk(&args.disk, Access::ReadOnly)?;
    cancel::install()?;
    let (bar, size) = (Progress::bytes("Searching"), disk.len());
    let scan = diagnosis::scan(&disk, &mut |done| {
        bar.at(done, size);
        cancel::check()
    });
    let DiskScan { found, random_inside, unreadable, incomplete, .. } = scan.map_err(|e| e.at(&args.disk))?;
    bar.clear();
    let found: Vec<_> = found
        .into_iter()
        .map(|found| NamedPlace { path: FileName::path(name(&args.disk, size, &found)), found })
        .collect();
    let code = match () {
        () if unreadable > 0 || incomplete => Some(Silent::damaged()),
        () if found.is_empty() => Some(Silent::not_this_format()),
        () => None,
    };
    let path = FileName::path(&args.disk);
    output::print(&Search { path, size, found, random_inside, unreadable, incomplete }, args.json)?;
    code.map_or(Ok(()), |code| Err(code.into()))
}

/// The name of the store that begins at a place of a disk with `size` bytes.
fn name(disk: &Path, size: u64, found: &FoundOnDisk) -> OsString {
    // The name of a file system that is cut off must not reach past the end of the disk.
    let len = found.len.filter(|len| *len <= size - found.at);
    assembled::part_name(found.at, len, disk)
}

impl Report for Search {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let path = output::printable(&self.path);
        match self.found.len() {
            0 => writeln!(out, "{path}: no volume and no file system in {}", size::short(self.size))?,
            _ => writeln!(out, "{path}: {}", size::short(self.size))?,
        }
        for place in &self.found {
            writeln!(out, "  {}\n      {}", place.line(self.size), output::printable(&place.path))?;
        }
        if self.random_inside > 0 {
            let what = "look random: compressed or encrypted files, or a volume from before";
            writeln!(out, "  {} inside of file systems {what}", size::short(self.random_inside))?;
        }
        if self.unreadable > 0 {
            writeln!(out, "  {} could not be read and were not searched", size::exact(self.unreadable))?;
        }
        if self.incomplete {
            writeln!(out, "  too many signatures: not all were examined")?;
        }
        if let Some(place) = self.found.iter().find(|place| place.found.kind.is_encrypted()) {
            writeln!(out, "To try a password: {}", output::command(["claviger", "explain", &place.path]))?;
        }
        Ok(())
    }
}

impl NamedPlace {
    /// `at 1 MiB: LUKS2 volume, found by its second header`.
    fn line(&self, disk: u64) -> String {
        let FoundOnDisk { at, len, kind, by, inside, ambiguous } = &self.found;
        let what = match kind {
            DiskFind::Volume { format } => format!("{format} volume"),
            DiskFind::FileSystem { filesystem } => {
                let label = filesystem.label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
                format!("{}{label}", filesystem.kind.name())
            }
            DiskFind::RandomArea { of_volume_before } => {
                let names: Vec<_> =
                    FORMATS.iter().filter(|format| format.traces().is_empty()).map(|format| format.name()).collect();
                let before = if *of_volume_before { "data of the volume before, or " } else { "" };
                format!("random-looking bytes, perhaps {before}a volume of {}", names.join(", "))
            }
        };
        let missing = len.map(|len| len.saturating_sub(disk - at)).filter(|missing| *missing > 0);
        let missing = missing.map_or(String::new(), |missing| format!(", {} of it are cut off", size::short(missing)));
        let len = len.map_or(String::new(), |len| format!(", {}", size::short(len)));
        let by = by.map_or(String::new(), |by| format!(", found by {by}"));
        let places = if *ambiguous { ", one of several possible places" } else { "" };
        let inside = if *inside { ", inside the file system before it" } else { "" };
        format!("at {}: {what}{len}{missing}{by}{places}{inside}", size::short(*at))
    }
}
