//! `claviger lab`

mod compare;
mod published;
mod recommend;

use clap::Subcommand;

/// Measure what storage encryption costs on this machine
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::Args),
    Published(published::Args),
    Recommend(recommend::Args),
}

impl Args {
    /// Whether errors are told as JSON.
    pub fn json(&self) -> bool {
        match &self.command {
            Command::Compare(args) => args.json,
            Command::Published(args) => args.json,
            Command::Recommend(args) => args.json,
        }
    }
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Compare(args) => compare::run(args),
        Command::Published(args) => published::run(args),
        Command::Recommend(args) => recommend::run(args),
    }
}
