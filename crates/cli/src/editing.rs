//! The way from a path to a volume whose headers are changed, saved or checked.

use std::path::Path;
use std::sync::Arc;

use claviger_engine::credential::HeaderChoice;
use claviger_engine::formats::{self, Facts, KeyslotEditor};
use claviger_engine::store::Access;
use claviger_engine::{Credential, Error, ErrorKind, Format, Store, Unlock};

use crate::opening::{OpenArgs, detached_header, open_file, with_option};
use crate::progress::Progress;
use crate::{cancel, guard};

/// A volume that opens, and what changes its headers.
pub struct Editing<'a> {
    /// What the headers are in.
    pub store: Arc<dyn Store>,
    /// Its format.
    pub format: &'static dyn Format,
    /// What builds edits.
    pub editor: &'static dyn KeyslotEditor,
    /// What is known about the volume.
    pub facts: Facts,
    /// What opens it.
    pub credentials: Vec<Credential>,
    /// What the data are in, where the header is detached.
    data: Option<Arc<dyn Store>>,
    args: &'a OpenArgs,
}

impl OpenArgs {
    /// Opens the volume to see that it opens, and how.
    pub fn edit(&self, access: Access) -> anyhow::Result<Editing<'_>> {
        guard::no_dumps();
        let cancel = cancel::install()?;
        let path = self.how.header_file().unwrap_or(&self.path);
        let at = |e: Error| with_option(e.at(path));
        let (store, data) = match self.how.header_file() {
            Some(header) => (detached_header(header, access)?, Some(open_file(&self.path, Access::ReadOnly)?)),
            None => (self.how.in_partition(Arc::new(open_file(path, access)?)).map_err(at)?, None),
        };
        let data = data.map(|data| self.how.in_partition(Arc::new(data))).transpose()?;
        let opened = formats::open(&*store, self.how.format());
        let (_, header) = match opened {
            // Headers are looked after where they are damaged, too.
            Err(e) if matches!(e.kind, ErrorKind::NotThisFormat(_)) => {
                formats::open_by_backup(&*store).map_err(|_| at(e))?
            }
            opened => opened.map_err(at)?,
        };
        let credentials = self.credentials.read_for(|keyfiles| header.asks_passphrase(keyfiles))?;
        let bar = Progress::trials("Opening");
        let show = |done, all| bar.at(done, all);
        let data_store = data.as_deref();
        let with =
            Unlock { cancel: Some(cancel), progress: Some(&show), data: data_store, ..self.how.unlock(&credentials) };
        let unlocked = header.unlock(&*store, &with);
        drop(bar);
        let unlocked = unlocked.map_err(at)?;
        let format = formats::by_name(unlocked.facts.format)?;
        let editor = editor_of(format).map_err(at)?;
        Ok(Editing { store, format, editor, facts: unlocked.facts, credentials, data, args: self })
    }
}

/// What changes the format's headers.
pub fn editor_of(format: &'static dyn Format) -> claviger_engine::Result<&'static dyn KeyslotEditor> {
    format
        .editor()
        .ok_or_else(|| Error::unsupported(format!("changing, saving or checking headers of {}", format.name())))
}

impl Editing<'_> {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.args.how.header_file().unwrap_or(&self.args.path)
    }

    /// What opens it, tried as the options say.
    pub fn wide(&self) -> Unlock<'_> {
        Unlock { cancel: Some(cancel::flag()), data: self.data.as_deref(), ..self.args.how.unlock(&self.credentials) }
    }

    /// What opens it, tried only in the way that did.
    pub fn narrow(&self) -> Unlock<'_> {
        let Facts { hash, cipher, .. } = &self.facts;
        Unlock { hash: Some(hash), cipher: Some(cipher), ..self.wide() }
    }

    /// Whether `credentials` open the volume through the copy of the header that is tried first.
    pub fn opens_with(
        &self,
        credentials: &[Credential],
        hash: Option<&str>,
        pim: Option<u32>,
    ) -> claviger_engine::Result<Facts> {
        let hidden = self.facts.hidden;
        let header = HeaderChoice::One { hidden, backup: false };
        let with = Unlock { credentials, hash, pim, header, ..self.narrow() };
        Ok(self.format.open(&*self.store)?.unlock(&*self.store, &with)?.facts)
    }
}
