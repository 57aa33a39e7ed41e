//! `claviger cat`

/// Write the decrypted contents to standard output
#[derive(clap::Args)]
pub struct Args {}

/// Carries the verb out.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("being built")
}
