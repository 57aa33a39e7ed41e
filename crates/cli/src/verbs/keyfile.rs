//! `claviger keyfile`: a new keyfile.

use std::io::{self, Write};
use std::path::PathBuf;

use claviger_engine::Credential;
use serde::Serialize;

use crate::opening::new_file;
use crate::process::guard;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

/// Create a keyfile of random bytes
///
/// From the system's random generator, readable by you alone (mode 0600). A file that exists is never overwritten. Keep a
/// copy somewhere else: without its keyfiles, no password opens a volume.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyfile key.bin
  claviger keyfile --size 1K /media/stick/key.bin
  claviger create --size 100M --keyfile key.bin secrets.tc")]
pub struct Args {
    /// The file to create
    #[arg(value_name = "FILE")]
    path: PathBuf,

    /// Size, at most 1M, which is as much as any format reads
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size::parse)]
    size: u64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Made {
    path: String,
    /// In bytes.
    size: u64,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    let contents = Credential::new_keyfile(usize::try_from(args.size).unwrap_or(usize::MAX))?;
    new_file::write(&args.path, &contents)?;
    output::print(&Made { path: args.path.display().to_string(), size: args.size }, args.json)
}

impl Report for Made {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, size } = self;
        writeln!(out, "{path}: keyfile of {}. Keep a copy of it somewhere else.", size::exact(*size))
    }
}
