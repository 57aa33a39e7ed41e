//! `claviger create`

/// Create an encrypted volume
#[derive(clap::Args)]
pub struct Args {}

/// Carries the verb out.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("being built")
}
