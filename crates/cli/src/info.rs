//! `claviger info`

/// Open a volume and say what it is made of
#[derive(clap::Args)]
pub struct Args {}

/// Carries the verb out.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("being built")
}
