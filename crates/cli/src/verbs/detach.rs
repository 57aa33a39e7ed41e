//! `claviger detach`: removes mappings that `claviger attach --kernel` has set up.

use std::io::{self, Write};

use claviger_serve::kernel;
use serde::Serialize;

use crate::terminal::exit::{self, Silent};
use crate::terminal::output::{self, Report};

/// Remove volumes from the kernel
///
/// Removes mappings set up by `claviger attach --kernel` or cryptsetup. The kernel writes everything first; mappings
/// in use stay. Volumes mounted or served without --kernel are closed by `claviger unmount VOLUME`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger detach backup")]
pub struct Args {
    /// Names of mappings, as in /dev/mapper/NAME
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Detached<'a> {
    detached: Vec<&'a str>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut detached = Vec::new();
    let mut failed = None;
    for name in &args.names {
        let name = name.strip_prefix("/dev/mapper/").unwrap_or(name);
        match kernel::detach(name) {
            Ok(()) => detached.push(name),
            Err(e) => {
                let e = e.into();
                exit::report(&e, args.json);
                failed = failed.or(Some(Silent::after(&e)));
            }
        }
    }
    output::print(&Detached { detached }, args.json)?;
    failed.map_or(Ok(()), |silent| Err(silent.into()))
}

impl Report for Detached<'_> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.detached.iter().try_for_each(|name| writeln!(out, "{name} detached."))
    }
}
