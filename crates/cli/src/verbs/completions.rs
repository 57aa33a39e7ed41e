//! `claviger completions`: what shells complete, from the same definitions as `--help`.

use clap_complete::Shell;

use crate::terminal::output;

/// Print shell completions
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "claviger", &mut script);
    output::write(&mut output::raw()?, &script)
}
