//! `claviger identify`

/// Say what a file or device is, without a password
#[derive(clap::Args)]
pub struct Args {}

/// Carries the verb out.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("being built")
}
