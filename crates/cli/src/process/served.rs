//! What `mount` and `serve` share: options, opening, and the status for other processes.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use claviger_engine::formats::{self, Facts};
use claviger_engine::opening::OpenVolume;
use claviger_engine::store::{Access, Bypass, CountedStore};
use claviger_engine::volume::{Volume, VolumeEncryption};
use claviger_engine::{Error, Result, Store};
use claviger_serve::mount;
use claviger_serve::sessions::{Live, Process, SessionRecord, SessionSocket, Status};

use crate::opening::direct::{DirectArgs, is_block_device};
use crate::opening::logical_volume::LogicalVolumeArgs;
use crate::opening::plaintext::{smaller_sectors, with_threads};
use crate::opening::{OpenArgs, ProtectArgs, remote};
use crate::process::background::BackgroundArgs;
use crate::process::key_process::{KeyProcessArgs, Locking, RegisterArgs};
use crate::process::traced::TraceArgs;
use crate::terminal::advice;
use crate::terminal::output::{self, ReaderGone, Report};

/// The file system in the session record of an encrypted folder.
pub const FILES: &str = "files";

/// The options of verbs that serve a volume.
#[derive(clap::Args)]
pub struct ServedArgs {
    /// Take the file as it is, without decryption: to measure what encryption costs
    #[arg(long, conflicts_with_all = ["password", "keyfiles", "format", "hash", "cipher", "backup_header", "no_aes", "truncated", "hidden", "isolate_keys"])]
    raw: bool,

    #[command(flatten)]
    pub logical_volume: LogicalVolumeArgs,

    #[command(flatten)]
    direct: DirectArgs,

    #[command(flatten)]
    pub trace: TraceArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub key_process: KeyProcessArgs,

    #[command(flatten)]
    registers: RegisterArgs,

    #[command(flatten)]
    pub background: BackgroundArgs,
}

/// The plaintext of a volume, or the file itself with `--raw`.
pub struct ServedVolume {
    /// The volume's format and cipher; `None` with `--raw`.
    pub facts: Option<Facts>,
    pub store: Arc<dyn Store>,
    /// Locks the volume, if a key process holds its keys.
    pub locking: Option<Locking>,
}

/// A store that counts reads and writes.
pub type Counted = CountedStore<Arc<dyn Store>>;

/// Answers other processes until it is dropped.
pub type Answering = Vec<SessionSocket>;

impl ServedArgs {
    /// Does all of the work of a key process, if this is one.
    pub fn worked_as_key_process(
        &self,
        open: &OpenArgs,
        access: Access,
        protect: &ProtectArgs,
    ) -> anyhow::Result<bool> {
        self.registers.check(&self.key_process)?;
        if self.key_process.which().is_none() {
            return Ok(false);
        }
        self.key_process.run_key_process(open, Some(access), Some(protect), &self.registers)?;
        Ok(true)
    }

    /// Opens the file itself (`--raw`), or the volume through a key process; otherwise `None`. `words` is the command line.
    pub fn open_otherwise(
        &self,
        open: &OpenArgs,
        access: Access,
        words: &[OsString],
    ) -> anyhow::Result<Option<ServedVolume>> {
        if self.raw {
            let store = self.logical_volume.within(open.raw(access)?, access == Access::ReadWrite);
            let store = store.map_err(|e| e.at(&open.path))?;
            return Ok(Some(ServedVolume { facts: None, store, locking: None }));
        }
        if !self.key_process.asked() {
            return Ok(None);
        }
        let (opened, keys) = self.key_process.open(open, access, words)?;
        Ok(Some(self.volume(open, opened, access, Some(keys))?))
    }

    /// The plaintext of an open volume. Prints its warnings.
    pub fn volume(
        &self,
        open: &OpenArgs,
        opened: OpenVolume,
        access: Access,
        locking: Option<Locking>,
    ) -> Result<ServedVolume> {
        let facts = Some(opened.facts.clone());
        let store = plaintext(opened, &self.logical_volume, access == Access::ReadWrite);
        Ok(ServedVolume { facts, store: store.map_err(|e: Error| e.at(&open.path))?, locking })
    }

    /// Counts reads and writes. Bypasses the page cache if the options say so, or by default for a block device with `bypass`.
    pub fn counted(&self, open: &OpenArgs, store: Arc<dyn Store>, bypass: bool) -> Result<Counted> {
        self.direct.apply(Bypass::All, bypass && is_block_device(&open.path), &open.path, &*store);
        Ok(CountedStore::new(self.trace.over(store)?))
    }

    /// Reports that the volume is served, to the user and to the waiting foreground process.
    pub fn ready(&self, report: &impl Report) -> anyhow::Result<()> {
        match output::print(report, self.json) {
            // The reader of the report is gone, but the volume is still served.
            Err(e) if e.is::<ReaderGone>() => {}
            printed => printed?,
        }
        self.background.ready()
    }
}

/// The plaintext to serve, or that of a logical volume in it; prints the warnings. Sectors have the volume's size, unless a file
/// system inside was made for smaller ones: a disk with larger sectors could not hold it.
fn plaintext(opened: OpenVolume, within: &LogicalVolumeArgs, to_write: bool) -> Result<Arc<dyn Store>> {
    advice::warn(&opened.warnings);
    let volume = with_threads(opened.volume);
    if within.given() {
        return within.within(Arc::new(volume), to_write);
    }
    Ok(match smaller_sectors(&volume) {
        Some(inside) => Arc::new(volume.with_sector_size(inside)),
        None => Arc::new(volume),
    })
}

/// Answers other processes that ask for the status of the volume, lock it, or change its header. In a headerless volume, or a file
/// without decryption, bytes that look like a header are data, and the file is not lent.
pub fn answer(
    live: &Live,
    store: &Arc<Counted>,
    facts: Option<&Facts>,
    locking: Option<Locking>,
) -> anyhow::Result<Answering> {
    // Weak: a status request must not keep the volume open after it was served.
    let counted = Arc::downgrade(store);
    let locked = locking.as_ref().map(Locking::locked);
    let status = move |store: Arc<Counted>| Status {
        traffic: store.traffic(),
        damage_prevented: store.damage_prevented(),
        locked: locked.as_ref().is_some_and(|locked| locked()),
        size: Some(store.len()),
        encryption: store.volume().and_then(Volume::converted),
        reencryption: store.volume().and_then(Volume::conversion),
    };
    let mut answering = vec![live.answer(move || counted.upgrade().map(&status).unwrap_or_default())?];
    if facts.is_some_and(|facts| formats::by_name(facts.format).is_ok_and(|format| format.editor().is_some())) {
        let data: Arc<dyn Store> = Arc::<Counted>::clone(store);
        let header = locking.as_ref().and_then(Locking::header);
        answering.push(live.lend(
            [Some(&data), header].into_iter().flatten().map(Arc::downgrade).collect(),
            locking.as_ref().map(Locking::key_process),
            mount::follow_size,
        )?);
    }
    answering.extend(locking.map(|locking| locking.listen(live.session())).transpose()?);
    Ok(answering)
}

/// The session record of a volume, or of a file without decryption, which this process serves from now on.
pub fn record(path: &Path, facts: Option<&Facts>, size: u64) -> anyhow::Result<SessionRecord> {
    let VolumeEncryption { format, cipher, mode } = facts.map_or_else(VolumeEncryption::none, Facts::encryption);
    Ok(SessionRecord {
        volume: remote::absolute(path)?,
        remote: remote::identity(path)?,
        dir: None,
        uri: None,
        filesystem: None,
        format,
        cipher,
        mode,
        size,
        read_only: false,
        since: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs()),
        server: Process::this()?,
        driver: None,
        loop_device: None,
        failure: None,
    })
}
