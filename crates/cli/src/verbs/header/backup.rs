//! `claviger header backup`: saves a volume's headers to a file.

use std::io::{self, Write};
use std::path::PathBuf;

use claviger_engine::formats::HeaderBackup;
use claviger_engine::store::Access;
use claviger_engine::{Advice, Unlock};
use serde::Serialize;

use crate::opening::credentials::{HiddenCredentialArgs, one_on_stdin};
use crate::opening::{OpenArgs, new_file};
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel};

/// Back up the headers to a file
///
/// Without its header, a volume is lost, even if its data are intact. The backup has the format of TrueCrypt and
/// VeraCrypt, looks random, and always opens with the current password: keep it as safe as the volume. Never
/// overwrites a file.
///
/// For an encrypted system, the header in sector 62 of the disk is saved (512 bytes), as on VeraCrypt's rescue disks.
///
/// With --with-hidden, the header of a hidden volume is saved too; otherwise random bytes take its place.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger header backup old.tc old.tc.header
  claviger header backup --with-hidden old.tc old.tc.header
  claviger header restore --from old.tc.header old.tc")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The file to create
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Also save the hidden volume's header, asking for its password
    #[arg(long = "with-hidden", id = "hidden")]
    hidden: bool,

    /// The PIM of the hidden volume
    #[arg(long, value_name = "N", requires = "hidden")]
    hidden_pim: Option<u32>,

    #[command(flatten)]
    hidden_credentials: HiddenCredentialArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}
pub fn run(args: &Args) -> anyhow::Result<()> {
    one_on_stdin(args.open.password_on_stdin(), args.hidden_credentials.source().on_stdin())?;
    new_file::must_be_new(&args.file)?;
    let (path, HeaderBackup { bytes, format, headers, warnings, .. }) = match without_passphrase(args)? {
        Some(backup) => (args.open.path.clone(), backup),
        None => with_passphrase(args)?,
    };
    let passing = warnings.iter().any(|warning| warning.advice == Some(Advice::ResumeReencryption));
    let warnings = advice::warn(&warnings);
    cancel::check()?;
    new_file::write(&args.file, &bytes)?;
    let (path, file) = (FileName::path(path), FileName::new("file", &args.file));
    output::print(&Saved { path, file, format, headers, warnings, passing }, args.json)
}

/// Backs up a header without a passphrase; `None` if the format needs one.
fn without_passphrase(args: &Args) -> anyhow::Result<Option<HeaderBackup>> {
    guard::no_dumps();
    cancel::install()?;
    let header = args.open.header_args();
    let Ok(named) = header.find(Access::ReadOnly) else { return Ok(None) };
    if !named.editor.public() || args.hidden {
        return Ok(None);
    }
    Ok(Some(named.editor.back_up(&*named.store, &Unlock::with(&[]), None).map_err(|e| e.at(&header.path))?))
}

/// Opens the volume and backs up its headers. Also returns the volume's path.
fn with_passphrase(args: &Args) -> anyhow::Result<(PathBuf, HeaderBackup)> {
    let editing = args.open.edit(Access::ReadOnly)?;
    let hidden = args.hidden.then(|| args.hidden_credentials.source().read()).transpose()?;
    let hidden = hidden.as_deref().map(|credentials| Unlock {
        credentials,
        hash: None,
        cipher: None,
        pim: args.hidden_pim,
        ..editing.wide()
    });
    let bar = Progress::steps("Saving");
    bar.at(0, 1);
    let backup = editing.editor.back_up(&*editing.store, &editing.narrow(), hidden.as_ref());
    bar.clear();
    Ok((editing.path().to_owned(), backup.map_err(|e| e.at(editing.path()))?))
}

#[derive(Serialize)]
struct Saved {
    #[serde(flatten)]
    path: FileName,
    #[serde(flatten)]
    file: FileName,
    format: &'static str,
    /// The headers in the backup.
    headers: Vec<&'static str>,
    warnings: Vec<String>,
    /// Whether it opens the volume only until its reencryption continues.
    #[serde(skip)]
    passing: bool,
}
impl Report for Saved {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, file, format: _, headers, warnings: _, passing } = self;
        let (file, path) = (output::printable(file), output::printable(path));
        writeln!(out, "{file}: backup of {path}, with the {} header", headers.join(" and the "))?;
        if *passing {
            return Ok(());
        }
        writeln!(out, "It will always open with the volume's current passwords. Keep it somewhere else.")
    }
}
