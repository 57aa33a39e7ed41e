//! `claviger header`: shows and changes a volume's headers.

mod backup;
mod convert;
mod repair;
mod restore;
mod set;
mod show;

pub use restore::prepare as prepare_restore;

/// Show, save or restore a volume's headers
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Backup(backup::Args),
    Restore(restore::Args),
    Show(show::Args),
    Set(set::Args),
    Repair(repair::Args),
    Convert(convert::Args),
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Backup(args) => backup::run(args),
        What::Restore(args) => restore::run(args),
        What::Show(args) => show::run(args),
        What::Set(args) => set::run(args),
        What::Repair(args) => repair::run(args),
        What::Convert(args) => convert::run(args),
    }
}
