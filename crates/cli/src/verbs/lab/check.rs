//! `claviger lab check`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use claviger_engine::ErrorKind;
use claviger_lab::measure::facility::{Catalogue, Facility, FacilityTrial, Scratch, tidy, try_out};
use claviger_lab::measure::lab::Lab;
use claviger_lab::measure::run::plan::MEMORY;
use claviger_lab::measure::transfer::Data;
use claviger_lab::model::plan::{Backing, Caches, Level, Plan};
use serde::Serialize;

use super::device::may_be_lost;
use crate::opening::overwrite::Overwrite;
use crate::terminal::exit::Silent;
use crate::terminal::output::{self, Report, warn};
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, size};

/// Check that facilities work here, without measuring them
///
/// Each facility is created in a new store, opened, written, closed, reopened and read. The check then looks for the
/// plaintext in the store, and tries a wrong passphrase. Everything is removed afterwards. Use this to try a facility of
/// your own: a TOML file in $XDG_CONFIG_HOME/claviger/peers or in the folder of --peers.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  claviger lab check\n  claviger lab check LUKS2 gocryptfs\n  claviger lab check --peers mine my-facility"
)]
pub struct Args {
    /// Facilities [default: all that are available]
    #[arg(value_name = "FACILITY")]
    facilities: Vec<String>,

    /// Folder for the stores
    #[arg(long, value_name = "FOLDER", default_value = MEMORY)]
    dir: PathBuf,

    /// Create the stores on this block device instead; its contents are lost
    #[arg(long, value_name = "DEVICE", conflicts_with = "dir", requires = "force")]
    device: Option<PathBuf>,

    /// Use the device although its contents will be lost, after a confirmation
    #[arg(long, requires = "device")]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Size of each volume
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64M")]
    size: u64,

    /// Folder of TOML files with facilities of your own
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Checked {
    works: Vec<FacilityTrial>,
    /// Facilities that are not available here.
    left_out: Vec<Refused>,
    fails: Vec<Refused>,
}

#[derive(Serialize)]
struct Refused {
    facility: String,
    why: String,
}

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    cancel::install()?;
    let all = Catalogue::load(args.peers.as_deref())?;
    let chosen = match args.facilities.is_empty() {
        true => all.all().iter().collect(),
        false => args.facilities.iter().map(|name| all.find(name)).collect::<Result<Vec<_>, _>>()?,
    };
    args.check_device()?;
    let system = std::env::temp_dir();
    for left in [&system, &args.dir].into_iter().flat_map(|place| tidy(place)) {
        warn(&left);
    }
    let (scratch, stores) = (Scratch::below(&system)?, Scratch::below(&args.dir)?);
    let lab = args.lab(scratch.path(), stores.path())?;
    let progress = Progress::steps("checking");
    let mut checked = Checked { works: Vec::new(), left_out: Vec::new(), fails: Vec::new() };
    for (i, facility) in chosen.iter().enumerate() {
        progress.at(i as u64, chosen.len() as u64);
        checked.add(facility, &lab)?;
    }
    progress.clear();
    output::print(&checked, args.json)?;
    if checked.fails.is_empty() { Ok(()) } else { Err(Silent::failed().into()) }
}

impl Args {
    fn check_device(&self) -> anyhow::Result<()> {
        let overwrite = Overwrite { force: self.force, yes: self.yes };
        Ok(self.device.as_ref().map_or(Ok(()), |device| may_be_lost(device, overwrite))?)
    }

    fn lab(&self, scratch: &Path, stores: &Path) -> anyhow::Result<Lab> {
        let backing = match &self.device {
            None => Backing::Folder(self.dir.clone()),
            Some(device) => Backing::Device(device.clone()),
        };
        let plan = Plan {
            level: Level::Quick,
            scale: 0.0,
            backing,
            more: Vec::new(),
            size: self.size,
            facilities: Vec::new(),
            workloads: Vec::new(),
            min_repeats: 0,
            max_repeats: 0,
            steady: 0.0,
            seed: 0,
            caches: Caches::Warm,
            repeated: None,
        };
        Ok(Lab {
            data: Data::new(plan.seed),
            plan,
            program: std::env::current_exe()?,
            stores: stores.to_owned(),
            scratch: scratch.to_owned(),
            cancelled: cancel::cancelled,
        })
    }
}

impl Checked {
    fn add(&mut self, facility: &Facility, lab: &Lab) -> anyhow::Result<()> {
        cancel::check()?;
        let refused = |why: String| Refused { facility: facility.name.clone(), why };
        if let Some(why) = facility.missing() {
            self.left_out.push(refused(why));
            return Ok(());
        }
        match try_out(facility, lab) {
            Ok(trial) => self.works.push(trial),
            Err(e) if matches!(e.kind, ErrorKind::Cancelled) => return Err(e.into()),
            Err(e) => self.fails.push(refused(e.to_string())),
        }
        Ok(())
    }
}

impl Report for Checked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { works, left_out, fails } = self;
        for FacilityTrial {
            facility,
            create_s,
            open_s,
            size,
            direct,
            processes,
            files,
            refused_s,
            encrypted_at_rest,
        } in works
        {
            let at_rest = if *encrypted_at_rest { "encrypted" } else { "plaintext" };
            let cache = if *direct { "direct I/O" } else { "through the page cache" };
            let processes = if *processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
            let files = if *files { "files" } else { "no files" };
            let refused = match refused_s {
                Some(seconds) => format!("refuses a wrong passphrase in {seconds:.2} s"),
                None => "accepts any passphrase".to_owned(),
            };
            writeln!(
                out,
                "{facility}: works; {at_rest} at rest, created in {create_s:.2} s, opened in {open_s:.2} s, {refused}; {} in \
                {cache}, {files}, {processes}",
                size::exact(*size)
            )?;
        }
        for Refused { facility, why } in left_out {
            writeln!(out, "{facility}: not available here. {why}")?;
        }
        for Refused { facility, why } in fails {
            writeln!(out, "{facility}: FAILS. {why}")?;
        }
        Ok(())
    }
}
