//! `claviger info`: shows the properties of an open volume.

mod folder;

use std::ffi::OsString;
use std::io::{self, Write};

use claviger_engine::Warning;
use claviger_engine::formats::{Facts, WhichHeader};
use claviger_engine::logical_volumes::{self, Group};
use claviger_engine::store::Access;
use serde::Serialize;

use crate::opening::{OpenArgs, files};
use crate::terminal::date::date;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::{advice, size};

/// Open a volume and show its properties
///
/// Prints format, cipher, key derivation, sizes, the copy of the header that opened, and the time it took. For an
/// encrypted folder or a file in it, prints the keys it is encrypted for. Nothing is written.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger info old.tc
  claviger info ~/.Private :/letter.txt
  claviger info --keyfile key1.bin --keyfile key2.bin old.tc
  claviger info --json --password-file - old.tc < password.txt")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    open: OpenArgs,

    /// A file inside, or an encrypted folder
    #[arg(value_name = "PATH")]
    inside: Option<OsString>,
}

#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    path: FileName,
    /// Size of the file or device, in bytes.
    stored: u64,
    #[serde(flatten)]
    facts: Facts,
    /// What the file is, if it is not the disk itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Whether all of the plaintext is writable.
    writable: bool,
    /// The number of header decryptions that were tried.
    trials: u64,
    /// The time that the trials took, in seconds.
    seconds: f64,
    warnings: Vec<String>,
    /// The volume group, if the volume holds LVM2.
    #[serde(skip_serializing_if = "Option::is_none")]
    logical_volumes: Option<Group>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.inside.is_some() || args.open.path.is_dir() {
        return folder::run(&args.open, args.inside.as_deref().map(files::inside), args.json);
    }
    let mut opened = args.open.open(Access::ReadOnly)?;
    let logical_volumes = logical_volumes::read(&opened.volume).unwrap_or_else(|e| {
        // An unreadable LVM2 must not suppress the rest of the report.
        opened.warnings.push(format!("Its logical volumes cannot be listed: {}.", e.kind).into());
        None
    });
    opened.warnings.extend(logical_volumes.iter().flat_map(|group| group.warnings.clone()).map(Warning::from));
    let warnings = advice::warn(&opened.warnings);
    let info = Info {
        path: FileName::path(&args.open.path),
        stored: opened.stored,
        image: args.open.disk_in_file()?.map(|disk| disk.what()),
        writable: opened.volume.layout().segments().iter().all(|s| s.writable),
        trials: opened.trials,
        seconds: opened.took.as_secs_f64(),
        facts: opened.facts,
        warnings,
        logical_volumes,
    };
    output::print(&info, args.json)
}

impl Report for Info {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let facts = &self.facts;
        writeln!(out, "{}", output::printable(&self.path))?;
        let mut line = |name: &str, value: String| writeln!(out, "  {name:<15} {value}");
        if let Some(image) = &self.image {
            line("image", image.clone())?;
        }
        line("format", facts.format.to_owned())?;
        line("cipher", format!("{} in {} mode, key of {} bits", facts.cipher, facts.mode, facts.key_bits))?;
        line("key derivation", derivation(facts))?;
        match facts.header {
            WhichHeader::None => line("header", "none".to_owned())?,
            header => line("header", format!("{header}, version {}", facts.header_version))?,
        }
        // Formats with a UUID have no hidden volumes.
        if facts.header != WhichHeader::None && facts.uuid.is_none() {
            let kind = if facts.hidden {
                "hidden volume"
            } else {
                "normal volume (a hidden volume inside would not be visible)"
            };
            line("kind", kind.to_owned())?;
        }
        line("size", size::exact(facts.size))?;
        line("stored", format!("{}, the data begin at byte {}", size::exact(self.stored), facts.data_offset))?;
        line("sector size", format!("{} bytes", facts.sector_size))?;
        let optional = [("keyslot", facts.keyslot.map(|n| n.to_string())), ("UUID", facts.uuid.clone())];
        let optional =
            optional.into_iter().chain([("label", facts.label.clone()), ("integrity", facts.integrity.clone())]);
        for (name, value) in optional.filter_map(|(name, value)| Some((name, value?))) {
            line(name, output::printable(&value))?;
        }
        if let Some(created) = facts.created {
            line("created", date(created))?;
        }
        if let Some(written) = facts.header_written {
            line("header written", date(written))?;
        }
        for volume in self.logical_volumes.iter().flat_map(|group| &group.volumes) {
            let state = volume.refused.as_ref().map(|why| format!("; cannot be opened: {why}"));
            let state = state.or_else(|| Some(format!("; read-only: {}", volume.read_only.as_ref()?)));
            let (name, len) = (volume.full_name(), size::short(volume.len));
            line("logical volume", format!("{name}, {len}{}", state.unwrap_or_default()))?;
        }
        line("opened", format!("on trial {} after {:.2} s", self.trials, self.seconds))
    }
}

/// The key derivation with its parameters.
fn derivation(facts: &Facts) -> String {
    match (facts.derivation, facts.iterations) {
        (Some(own), 0) => return own.to_owned(),
        (Some(own), iterations) => return format!("{}, {iterations} iterations ({own})", facts.hash_name()),
        _ => {}
    }
    let Some(hash) = &facts.hash else { return "none: the given key is used directly".to_owned() };
    match (facts.header, facts.iterations) {
        (WhichHeader::None, 0 | 1) => return format!("{hash}, once"),
        (WhichHeader::None, iterations) => return format!("{hash}, {iterations} iterations"),
        _ => {}
    }
    let with = match facts.memory {
        Some(memory) => format!("{hash}, {} passes over {}", facts.iterations, size::short(memory)),
        None => format!("PBKDF2 with HMAC-{hash}, {} iterations", facts.iterations),
    };
    facts.pim.map_or_else(|| with.clone(), |pim| format!("{with} (PIM {pim})"))
}
