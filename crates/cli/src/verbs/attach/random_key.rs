//! `claviger attach --kernel --random-key`: a device with a key that is never stored, for swap for instance.

use std::ops::Range;
use std::path::Path;

use claviger_engine::diagnosis::worth_keeping;
use claviger_engine::filesystems::swap;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Error, Result, Store};
use claviger_serve::kernel;

use super::kernel as attaching;
use crate::opening::OpenArgs;
use crate::opening::credentials::CredentialArgs;
use crate::terminal::{output, prompt, size};

/// The bytes at both ends of a device where formats have their signatures.
const MARKS: u64 = 1 << 20;

/// The options for such a device.
#[derive(clap::Args)]
pub struct RandomKeyArgs {
    /// With --kernel: use a new random key that is never stored, for a plain volume. All data on the device are lost
    #[arg(long, requires = "kernel", conflicts_with_all = ["read_only", "crypttab"])]
    pub random_key: bool,

    /// With --random-key: create a swap area in it, for swapon
    #[arg(long, requires = "random_key")]
    swap: bool,

    /// With --random-key: overwrite recognised data on the device, after a confirmation
    #[arg(long, requires = "random_key")]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl RandomKeyArgs {
    /// Attaches the device through the kernel, and creates what the options ask for.
    pub fn attach(&self, open: OpenArgs, name: &str, json: bool) -> anyhow::Result<()> {
        kernel::available()?;
        let mut open = with_random_key(open)?;
        open.how.for_kernel = true;
        let lost = self.may_be_lost(&open)?;
        // Without the usual note that the contents make no sense.
        let opened = open.open(Access::ReadWrite)?;
        if opened.facts.cipher.starts_with("cipher_null") {
            return Err(Error::misuse("--random-key: cipher_null has no key").into());
        }
        let mut attached = attaching::set_up(&open, opened, name, false)?;
        attached.swap = self.swap;
        let made = make(Path::new(&attached.device), lost, self.swap);
        if let Err(e) = made {
            // Removes the unfinished device, so that nobody uses it.
            let _ = kernel::detach(name);
            return Err(e.at(&open.path).into());
        }
        output::print(&attached, json)
    }

    /// Refuses, or asks, if the device holds recognised data. Returns whether these will be lost.
    fn may_be_lost(&self, open: &OpenArgs) -> Result<bool> {
        let at = |e: Error| e.at(&open.path);
        let store = open.raw(Access::ReadWrite)?;
        let area = area(open, store.len()).map_err(at)?;
        let Some(what) = worth_keeping(&store, area).map_err(at)? else { return Ok(false) };
        let named = format!("it has {} and holds {what}", size::exact(store.len()));
        if !self.force {
            return Err(at(Error::misuse(format!("{named}, which would be lost; nothing was changed"))
                .hint("Check the device. To use it anyway, add --force.")));
        }
        if !self.yes {
            let path = output::printable(&open.path.to_string_lossy());
            let question = format!("{path}: {named}.\nAll of it will be lost. Use it?");
            let refused = |why: &str| at(Error::misuse(format!("nothing was changed{why}; {named}")));
            prompt::consent(&question, "--force --yes", refused)?;
        }
        Ok(true)
    }
}

/// The same volume with a new random key.
fn with_random_key(open: OpenArgs) -> Result<OpenArgs> {
    if open.credentials.given() {
        return Err(Error::misuse("--random-key takes no password, keyfile or volume key"));
    }
    let (how, bits) = open.how.with_random_key()?;
    Ok(OpenArgs { credentials: CredentialArgs::random_key(bits), how, ..open })
}

/// The part of a device with `len` bytes that the options name.
fn area(open: &OpenArgs, len: u64) -> Result<Range<u64>> {
    let asked = open.unlock_with(&[]).headerless;
    let start = asked.offset.unwrap_or(0);
    let end = asked.size.map_or(Some(len), |size| start.checked_add(size));
    match end.filter(|end| *end <= len && start < *end) {
        Some(end) => Ok(start..end),
        None => Err(Error::misuse(format!("the data would extend past the end, byte {len}"))),
    }
}

/// Overwrites the signatures of `lost` data, so that they are not recognised next time, and writes the swap area.
fn make(device: &Path, lost: bool, swap: bool) -> Result<()> {
    if !lost && !swap {
        return Ok(());
    }
    let plain = FileStore::open(device, Access::ReadWrite)?;
    if lost {
        let len = plain.len();
        for part in [0..len.min(MARKS), len.saturating_sub(MARKS)..len] {
            plain.write_clobbering(part.start, &mut vec![0; (part.end - part.start) as usize])?;
        }
        plain.flush()?;
    }
    if swap { swap::make(&plain, rustix::param::page_size()) } else { Ok(()) }
}
