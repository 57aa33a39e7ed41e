//! `--force`, and the confirmation before existing data are overwritten.

use std::path::Path;

use claviger_engine::{Error, Result, Store, formats};

use crate::terminal::{prompt, size};

/// The options of verbs that replace files and devices.
#[derive(clap::Args, Clone, Copy)]
pub struct Overwrite {
    /// Replace existing data, after a confirmation
    #[arg(long)]
    pub force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

impl Overwrite {
    /// Asks before `old` is overwritten, a `thing` (such as "file") at `path`.
    ///
    /// # Errors
    /// `Misuse` without `--force`, or if the user declines.
    pub fn check(self, path: &Path, old: &dyn Store, thing: &str) -> Result<()> {
        let there = formats::occupied(old).map_err(|e| e.at(path))?;
        let holds = there.unwrap_or_else(|| "only zeros in the sampled places".to_owned());
        let named = format!("a {thing} of {} that holds {holds}", size::exact(old.len()));
        if !self.force {
            return Err(Error::misuse(format!("already exists, {named}")).at(path).hint("To replace it, add --force."));
        }
        if self.yes {
            return Ok(());
        }
        let question = format!("{} is {named}.\nAll of it will be lost. Replace it?", path.display());
        let refused = |why: &str| Error::misuse(format!("not replaced{why}; it is {named}")).at(path);
        prompt::consent(&question, "--force --yes", refused)
    }
}
