//! `claviger recovery join`: gives a recovery key back from its shares.

use std::path::PathBuf;

use claviger_engine::recovery;

use crate::opening::{credentials, new_file};
use crate::process::guard;
use crate::terminal::output;

/// The longest text with shares, in bytes.
const LONGEST: usize = 64 << 10;

/// Give a recovery key back from its shares
///
/// Writes the key to standard output; pipe it into --password-file - of another verb. A file may hold several shares,
/// and other text around them. A share with a typing error is named.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger recovery join ann.txt bob.txt eve.txt
  claviger recovery join ann.txt bob.txt eve.txt | claviger mount --password-file - disk.luks ~/data")]
pub struct Args {
    /// Files with shares; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    let read =
        |file: &PathBuf| Ok((output::printable(&file.to_string_lossy()), credentials::read_file(file, LONGEST)?));
    let texts = args.files.iter().map(read).collect::<claviger_engine::Result<Vec<_>>>()?;
    let key = recovery::join(&texts)?;
    output::write(&mut output::raw()?, &new_file::line(&key))
}
