//! Opens a volume whose headers are changed, saved or checked.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::{self, Derivation, Facts, HeaderEditor, Prepared};
use claviger_engine::opening::HeaderFound;
use claviger_engine::spec::Cost;
use claviger_engine::store::{Access, FileStore};
use claviger_engine::{Advice, Credential, Error, ErrorKind, Format, Header, Opening, Spec, Store, Unlock};
use serde::Serialize;

use crate::opening::unlock_args::FormatArgs;
use crate::opening::{OpenArgs, remote};
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::{advice, cancel, prompt};

/// A volume that the credentials open, with the editor for its headers.
pub struct Editing<'a> {
    /// Where the headers are stored.
    pub store: Arc<dyn Store>,
    pub format: &'static dyn Format,
    /// Builds the edits.
    pub editor: &'static dyn HeaderEditor,
    /// The facts about the volume.
    pub facts: Facts,
    /// The credentials that open the volume.
    pub credentials: Vec<Credential>,
    found: HeaderFound,
    args: &'a OpenArgs,
}

impl OpenArgs {
    /// Opens the volume to verify the credentials and learn how it opens. Also finds damaged headers.
    pub fn edit(&self, access: Access) -> anyhow::Result<Editing<'_>> {
        Ok(self.edit_with(access, false, |_| Ok(()))?.0)
    }

    /// Like [`OpenArgs::edit`], but first takes from the header what the verb needs, before anybody types a password.
    pub fn edit_for<T>(
        &self,
        access: Access,
        needed: impl FnOnce(&dyn Header) -> claviger_engine::Result<T>,
    ) -> anyhow::Result<(Editing<'_>, T)> {
        self.edit_with(access, false, needed)
    }

    /// Opens the volume read-only with the credentials themselves: an unprotected key does not count.
    pub fn prove(&self) -> anyhow::Result<Editing<'_>> {
        Ok(self.edit_with(Access::ReadOnly, true, |_| Ok(()))?.0)
    }

    fn edit_with<T>(
        &self,
        access: Access,
        prove: bool,
        needed: impl FnOnce(&dyn Header) -> claviger_engine::Result<T>,
    ) -> anyhow::Result<(Editing<'_>, T)> {
        guard::no_dumps();
        prompt::about(&self.path);
        let cancel = cancel::install()?;
        let at = |e: Error| e.at(self.how.header_file().unwrap_or(&self.path));
        let opening = self.how.opening(&self.path)?.access(access).by_backup(true).borrowing(remote::BORROW);
        let mut found = opening.find_header()?;
        found.check(&self.how.unlock(&[])).map_err(at)?;
        let needed = needed(&*found.header).map_err(at)?;
        self.announce(&*found.header).map_err(at)?;
        let (credentials, keyslot) = match self.released(&*found.header)? {
            Some(released) => (released.credentials.into(), released.keyslot),
            None => (
                self.credentials
                    .read_for(|keyfiles| prove && keyfiles.is_empty() || found.header.asks_passphrase(keyfiles))?,
                None,
            ),
        };
        let slow = self.slow_to_try(&*found.header, &credentials);
        let mut credentials = credentials.with_slow_tries(slow);
        let unlocked = credentials.open(|credentials| {
            let bar = Progress::trials("Opening");
            let show = |done, all| bar.at(done, all);
            let trying = |format| bar.trying(format);
            let with = self.how.unlock(credentials);
            let keyslot = keyslot.or(with.keyslot);
            let (progress, trying) = (Some(&show as _), Some(&trying as _));
            found.header.unlock(&Unlock { cancel: Some(cancel), progress, trying, keyslot, prove, ..with })
        });
        let (mut facts, credentials) = (unlocked.map_err(at)?.facts, credentials.into_vec());
        if facts.keyslot.is_none() && keyslot.is_some() {
            // A TPM released the volume master key, which does not tell the protector.
            (facts.keyslot, facts.opened_by) = (keyslot, None);
        }
        // Several formats may look the same on disk: this one opened.
        found.format = formats::by_name(facts.format)?;
        let editor = editor_of(found.format).map_err(at)?;
        let (store, format) = (Arc::clone(&found.store), found.format);
        Ok((Editing { store, format, editor, facts, credentials, found, args: self }, needed))
    }
}

/// Whether headers of the format can be read without credentials.
pub fn is_public(format: &dyn Format) -> bool {
    format.editor().is_some_and(HeaderEditor::public)
}

/// The editor for the format's headers.
pub fn editor_of(format: &'static dyn Format) -> claviger_engine::Result<&'static dyn HeaderEditor> {
    format
        .editor()
        .ok_or_else(|| Error::unsupported(format!("changing, backing up or checking headers of {}", format.name())))
}

impl Editing<'_> {
    /// The path of the headers.
    pub fn path(&self) -> &Path {
        self.args.how.header_file().unwrap_or(&self.args.path)
    }

    /// The locked file or device, unless the volume is in a remote store.
    pub fn file(&self) -> Option<&FileStore> {
        self.found.file.as_deref()
    }

    /// Carries the change out and reports it.
    pub fn carry_out(&self, prepared: Prepared, json: bool) -> anyhow::Result<()> {
        cancel::check()?;
        prepared.edit.carry_out(&*self.store).map_err(|e| e.at(self.path()))?;
        output::print(&Written::of(self.path(), prepared), json)
    }

    /// The parameters that set the cost of guessing a new password: those given here, otherwise the current ones.
    pub fn judged<'a>(&'a self, hash: Option<&'a str>, pim: Option<u32>, cost: Cost<'a>) -> Spec<'a> {
        let Facts { hash: current, cipher, pim: current_pim, key_bits, .. } = &self.facts;
        Spec {
            hash: hash.or(current.as_deref()),
            pim: pim.or(*current_pim),
            cipher: Some(cipher),
            key_bits: Some(*key_bits),
            cost,
            ..Spec::default()
        }
    }

    /// The credentials, tried as the options say.
    pub fn wide(&self) -> Unlock<'_> {
        Unlock { cancel: Some(cancel::flag()), ..self.args.how.unlock(&self.credentials) }
    }

    /// The credentials, tried only in the way that opened the volume.
    pub fn narrow(&self) -> Unlock<'_> {
        let Facts { hash, cipher, keyslot, .. } = &self.facts;
        Unlock { hash: hash.as_deref(), cipher: Some(cipher), keyslot: *keyslot, ..self.wide() }
    }

    /// Whether `credentials` open the volume through the first copy of the header, by the current keyslot if there is one.
    pub fn opens_with(
        &self,
        credentials: &[Credential],
        hash: Option<&str>,
        pim: Option<u32>,
        keyslot: Option<u32>,
    ) -> claviger_engine::Result<Facts> {
        let hidden = self.facts.hidden;
        let header = HeaderChoice::One { hidden, backup: false };
        let with = Unlock { credentials, hash, pim, header, keyslot, ..self.narrow() };
        Ok(self.found.again()?.unlock(&with)?.facts)
    }
}

/// A volume whose header can be read and changed without any passphrase.
#[derive(clap::Args)]
pub struct HeaderArgs {
    /// The file or block device that holds the volume, or its detached header
    #[arg(value_name = "VOLUME")]
    pub path: PathBuf,

    #[command(flatten)]
    format: FormatArgs,

    /// The volume in this partition of the disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    partition: Option<u32>,
}

/// A header that was found, with its editor.
pub struct Named {
    /// The locked file or device, unless the volume is in a remote store.
    pub file: Option<Arc<FileStore>>,
    /// Where the header is stored.
    pub store: Arc<dyn Store>,
    pub format: &'static dyn Format,
    /// Builds the edits.
    pub editor: &'static dyn HeaderEditor,
    /// The locked header.
    pub header: Box<dyn Header>,
    path: PathBuf,
}

impl OpenArgs {
    /// The same volume, for work on its header alone.
    pub fn header_args(&self) -> HeaderArgs {
        HeaderArgs { path: self.path.clone(), format: self.how.format.clone(), partition: self.how.partition() }
    }
}

impl HeaderArgs {
    /// Whether the volume is in a partition.
    pub fn in_partition(&self) -> bool {
        self.partition.is_some()
    }

    /// How to open the volume, as the options say. A volume that this user has mounted or serves stays in use.
    pub fn opening(&self) -> claviger_engine::Result<Opening> {
        let opening = remote::opening(&self.path, None)?.partition(self.partition).format(self.format.name());
        Ok(opening.borrowing(remote::BORROW))
    }

    /// Finds the header.
    pub fn find(&self, access: Access) -> claviger_engine::Result<Named> {
        let HeaderFound { file, store, format, header, .. } = self.opening()?.access(access).find_header()?;
        let editor = editor_of(format).map_err(|e| e.at(&self.path))?;
        Ok(Named { file, store, format, editor, header, path: self.path.clone() })
    }
}

impl Named {
    /// Fails if the volume is mounted or served.
    pub fn unused(self) -> claviger_engine::Result<Self> {
        if self.store.lender().is_none() {
            return Ok(self);
        }
        let holder = Some("mounted or served by claviger".to_owned());
        let error = Error::new(ErrorKind::InUse { holder }).at(&self.path);
        Err(error.hint("Unmount it first. Nothing was changed."))
    }

    /// The volume's path, for reports.
    pub fn path(&self) -> FileName {
        FileName::path(&self.path)
    }

    /// The planned writes, for the confirmation.
    pub fn announcement(&self, prepared: &Prepared) -> String {
        let steps: Vec<_> = prepared.edit.steps.iter().map(|step| step.what.as_str()).collect();
        format!("{} is a {} volume. This will be written: {}.", self.path(), self.format.name(), steps.join(", "))
    }

    /// Carries the change out and reports it.
    pub fn carry_out(&self, prepared: Prepared, json: bool) -> anyhow::Result<()> {
        prepared.edit.carry_out(&*self.store).map_err(|e| e.at(&self.path))?;
        output::print(&Written::of(&self.path, prepared), json)
    }
}

/// A change that was carried out.
#[derive(Serialize)]
pub struct Written {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    keyslot: Option<u32>,
    /// How the volume's key is derived after the change.
    #[serde(flatten)]
    derivation: Option<Derivation>,
    /// What was written, in order; empty if nothing needed a change.
    written: Vec<String>,
    /// Whether something remains damaged that only a header backup restores.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    damaged: bool,
    warnings: Vec<String>,
}

/// Whether something is damaged that the change does not repair, and only a header backup restores.
pub fn needs_backup(prepared: &Prepared) -> bool {
    prepared.warnings.iter().any(|warning| warning.advice == Some(Advice::RestoreHeader))
}

impl Written {
    /// The report of a prepared change that is written now. Prints the warnings.
    pub fn of(path: &Path, prepared: Prepared) -> Self {
        Self {
            path: FileName::path(path),
            format: prepared.format,
            keyslot: prepared.keyslot,
            derivation: prepared.derivation,
            written: prepared.edit.steps.iter().map(|s| s.what.clone()).collect(),
            damaged: needs_backup(&prepared),
            warnings: advice::warn(&prepared.warnings),
        }
    }
}

impl Report for Written {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, keyslot, derivation: _, written, damaged, warnings: _ } = self;
        let keyslot = keyslot.map(|n| format!(", keyslot {n}")).unwrap_or_default();
        match &written[..] {
            [] if *damaged => writeln!(out, "{path}: {format}{keyslot}: damaged beyond repair; nothing was written"),
            [] => writeln!(out, "{path}: {format}{keyslot}: nothing to do"),
            written => writeln!(out, "{path}: {format}{keyslot}. Written: {}.", written.join(", ")),
        }
    }
}
