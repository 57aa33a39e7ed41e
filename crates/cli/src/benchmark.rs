//! `claviger benchmark`

/// Measure the ciphers and key derivations on this machine
#[derive(clap::Args)]
pub struct Args {}

/// Carries the verb out.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("being built")
}
