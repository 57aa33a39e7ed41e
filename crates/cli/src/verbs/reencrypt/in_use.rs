//! Converting a volume that is in use with its keys in a key process: see [`claviger_serve::key_process::locking`].
//!
//! This command starts a key process for the process that uses the volume, and shows the progress. That key process makes the new volume
//! key, begins the conversion, and then is the volume's own.

use std::cell::Cell;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::Instant;

use claviger_engine::formats::ReencryptionRequest;
use claviger_engine::key_process::volume::{KeylessLayout, proof};
use claviger_engine::store::{ConvertedInUse, Lender};
use claviger_engine::volume::ConversionKind;
use claviger_engine::{Advice, Credential, Error, Result};
use claviger_serve::inherited;
use serde_json::Value;

use super::conversion::bar;
use super::{Args, Reencrypted, ReencryptionTarget, enter_sandbox};
use crate::process::key_process::{self, InKeyProcess, Which};
use crate::terminal::cancel;
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, warn};
use crate::verbs::create::protectors::ProtectorReport;

impl Args {
    /// Has the process that uses the volume convert it.
    pub(super) fn convert_in_use(&self, target: &ReencryptionTarget, words: &[OsString]) -> anyhow::Result<()> {
        let at = |e: Error| e.at(&self.path);
        let Some(lender) = target.data.lender() else { return Err(at(Error::misuse("it is not in use")).into()) };
        let stores = target.stores();
        if let Some(reencrypter) = target.of.converter.reencrypter() {
            self.check_state(reencrypter, stores).map_err(at)?;
            reencrypter.must_be_possible_in_use(stores, self.towards(), &self.request()?).map_err(at)?;
        }
        if self.init_only {
            let only = Error::misuse("--init-only: the process that uses the volume does all of the work");
            return Err(at(only.hint("Omit --init-only. Ctrl-C pauses the work.")).into());
        }
        if !self.resume {
            if !self.decrypt && has_several_keyslots(target) {
                warn(
                    "The keyslots of other passwords will be removed with the old key. Add their passwords again afterwards.",
                );
            }
            self.consent()?;
        }
        let begun = Instant::now();
        let ConvertedInUse { kind, size, ended_keyslots } = self.watched(target, lender, words)?;
        let report = Reencrypted {
            path: FileName::path(&self.path),
            finished: true,
            kind,
            has_backups: target.of.converter.reencrypter().is_some(),
            size,
            seconds: begun.elapsed().as_secs_f64(),
            ended_keyslots,
            protectors: ProtectorReport::default(),
        };
        output::print(&report, self.json)
    }

    /// Starts the key process, and shows the progress until the work is done.
    fn watched(
        &self,
        target: &ReencryptionTarget,
        lender: &dyn Lender,
        words: &[OsString],
    ) -> anyhow::Result<ConvertedInUse> {
        let (child, works) = (Cell::new(None::<Child>), Cell::new(false));
        let bar = bar(match self.decrypt {
            true => ConversionKind::Decrypt,
            false => ConversionKind::Reencrypt,
        });
        let header = target.header.as_ref().and_then(|header| header.file());
        let mut start = |[socket, memory]: [_; 2]| {
            let ends = [AsFd::as_fd(&socket), AsFd::as_fd(&memory)];
            let started = key_process::start(ends, words, Which::Opened, Stdio::inherit());
            child.set(Some(started.map_err(|e| Error::from(std::io::Error::other(e.to_string())))?));
            // The key process alone reads the password.
            inherited::hide_all()?;
            Ok(())
        };
        let progress = |done, all| {
            works.set(true);
            bar.at(done, all);
        };
        let done = lender.convert_with_key_process(header, &mut start, &progress, cancel::flag());
        bar.clear();
        let mut error = match done {
            Ok(done) => return Ok(done),
            Err(e) => e,
        };
        if error.advice.is_none() && has_begun(target) {
            error = error.advise(Advice::ResumeReencryption);
        }
        // Before the work, the key process ends after an error, and has reported its own. Later it stays with the volume.
        if let Some(mut child) = child.take().filter(|_| !works.get()) {
            let signalled = key_process::end(&mut child)?;
            let ended = key_process::ended(child)?;
            if ended.is::<Silent>() && !signalled {
                return Err(ended);
            }
        }
        Err(error.at(&self.path).into())
    }

    /// Does the key process's part: begins or resumes the conversion, then keeps the keys for the process that uses the volume.
    pub(super) fn hold_keys_in_use(
        &self,
        target: &ReencryptionTarget,
        in_key_process: InKeyProcess,
    ) -> anyhow::Result<()> {
        let at = |e: Error| e.at(&self.path);
        let (of, stores) = (target.of, target.stores());
        // The other process has asked.
        let asked = Cell::new(true);
        let consent = |ending: &[u32]| self.agree_to(ending, &asked);
        let request = ReencryptionRequest { consent: Some(&consent), ..self.request()? };
        let mut credentials = self.credentials(stores, of)?;
        enter_sandbox(Some(&in_key_process), credentials.terminal())?;
        let conversion = credentials.open(|credentials| {
            self.must_be_in_use(target, credentials, &in_key_process)?;
            self.conversion(stores, of, credentials, &request)
        });
        let (keyless, keys) = conversion.and_then(|conversion| conversion.into_keys()).map_err(at)?;
        in_key_process.serve_keys(keys, |_| keyless)
    }

    /// Fails unless these credentials open the volume that the other process uses, before anything is changed.
    fn must_be_in_use(
        &self,
        target: &ReencryptionTarget,
        credentials: &[Credential],
        in_key_process: &InKeyProcess,
    ) -> Result<()> {
        let layout = target.of.header(target.stores())?.unlock(&self.unlock(credentials))?.layout;
        let outline = KeylessLayout::of(&layout, &*target.data)?;
        match in_key_process.key_side.is_in_use(outline, proof(&layout)?)? {
            true => Ok(()),
            false => Err(Error::misuse("the volume in use was not opened with this header")),
        }
    }
}

/// Whether the header has more keyslots than the one that opens it.
fn has_several_keyslots(target: &ReencryptionTarget) -> bool {
    let facts = target.of.header(target.stores()).ok().and_then(|header| header.describe());
    facts.and_then(|facts| facts.used_keyslots().map(Iterator::count)).is_some_and(|count| count > 1)
}

/// Whether the header says that a reencryption has begun.
fn has_begun(target: &ReencryptionTarget) -> bool {
    let reencrypter = target.of.converter.reencrypter();
    reencrypter.is_some_and(|reencrypter| matches!(reencrypter.status(&**target.stores().header()), Ok(Some(true))))
}

/// Whether this is the task of a key process that converts a volume in use.
pub(super) fn is_task(task: &Value) -> bool {
    *task == claviger_serve::key_process::CONVERT_IN_USE
}
