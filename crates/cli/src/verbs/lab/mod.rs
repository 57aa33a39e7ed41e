//! `claviger lab`

mod check;
mod device;
mod list;
mod published;
mod recommend;
mod report;
mod run;

use clap::Subcommand;

/// Measure what storage encryption costs on this machine
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    List(list::Args),
    Check(check::Args),
    Published(published::Args),
    Report(report::Args),
    Recommend(recommend::Args),
}

/// Runs the verb.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args),
        Command::Check(args) => check::run(args),
        Command::Published(args) => published::run(args),
        Command::Report(args) => report::run(args),
        Command::Recommend(args) => recommend::run(args),
    }
}
