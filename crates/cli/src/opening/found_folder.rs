//! Finds an encrypted folder, on this machine or inside a volume, and then opens it. Between the two steps, verbs can inspect
//! the folder before anybody has to type its password.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use claviger_engine::opening::{Locked, OpenFolder};
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::{Credential, Error, Opened, Opening, Unlock};

use crate::opening::OpenArgs;
use crate::opening::credentials::{ReadCredentials, one_on_stdin};
use crate::opening::files::{self, InsideArgs};
use crate::opening::folder::FolderGiven;
use crate::process::guard;
use crate::terminal::file_name::FileName;
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, output};

/// A folder that was found, still locked.
pub struct FoundFolder<'a> {
    pub locked: Locked,
    /// The folder's path, for people.
    pub path: FileName,
    /// The same as words of a command line: the volume, and the path inside.
    pub words: [String; 2],
    args: &'a OpenArgs,
    place: FolderLocation,
    given: FolderGiven,
}

/// Where a folder is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FolderLocation {
    /// On this machine.
    Here,
    /// In an unencrypted file system.
    InClear,
    /// In a volume, which has a password of its own.
    InVolume,
}

impl OpenArgs {
    /// Whether the options are for an encrypted folder inside a volume.
    pub fn wants_folder(&self) -> bool {
        self.how.folder_format().is_some() || self.how.folder.given()
    }

    /// Finds the folder itself, or the folder to which `inside` leads in the volume.
    ///
    /// # Errors
    /// `Misuse` for a plain folder that is shown encrypted; those of [`Opening::find`].
    pub fn find_folder(&self, access: Access, inside: Option<&OsStr>) -> anyhow::Result<FoundFolder<'_>> {
        self.how.folder.refuse_reverse()?;
        self.find_any_folder(access, inside)
    }

    /// Like [`OpenArgs::find_folder`], also for a plain folder that is shown encrypted.
    ///
    /// # Errors
    /// Those of [`Opening::find`].
    pub fn find_any_folder(&self, access: Access, inside: Option<&OsStr>) -> anyhow::Result<FoundFolder<'_>> {
        guard::no_dumps();
        if let (Some(path), false) = (inside, self.path.is_dir()) {
            let outer = InsideArgs::default().outer(self, self.open_for_files(access)?)?;
            let locked = self.inner(&outer.tree, path).map_err(|e| e.at(&self.path))?;
            let place = if outer.in_clear { FolderLocation::InClear } else { FolderLocation::InVolume };
            return self.found(locked, place);
        }
        let locked = self.how.opening(&self.path)?.access(access).find()?;
        self.found(locked, FolderLocation::Here)
    }

    fn inner(&self, tree: &Arc<dyn Tree>, path: &OsStr) -> claviger_engine::Result<Locked> {
        let format = self.how.folder_format().or(self.how.folder.implied_format());
        Opening::tree(Arc::clone(tree)).at(path).format(format).find()
    }

    fn found(&self, locked: Locked, place: FolderLocation) -> anyhow::Result<FoundFolder<'_>> {
        let path = self.path.display().to_string();
        let inside = format!(":{}", files::shown(locked.path_inside()));
        let shown = match place {
            FolderLocation::Here => FileName::path(&self.path),
            _ => FileName::path([self.path.as_os_str(), OsStr::new(&inside)].join(OsStr::new(" "))),
        };
        let words = [path, if place == FolderLocation::Here { ":/".to_owned() } else { inside }];
        Ok(FoundFolder { locked, path: shown, words, args: self, place, given: self.how.folder.read()? })
    }

    /// Opens the encrypted folder in `tree` that contains `path`, if it is `wanted` or the options ask for it: by its format, by
    /// an option for such folders, or by a password. With `in_clear`, the password is the folder's.
    pub fn open_inner_folder(
        &self,
        tree: &Arc<dyn Tree>,
        path: &OsStr,
        in_clear: bool,
        wanted: bool,
    ) -> anyhow::Result<Option<OpenFolder>> {
        let (asked, password) = (wanted || self.wants_folder(), in_clear && self.credentials.given());
        if !asked && !in_clear {
            return Ok(None);
        }
        let locked = match self.inner(tree, path) {
            Ok(locked) => locked,
            Err(_) if !asked && !password => return Ok(None),
            Err(e) if !asked && matches!(e.kind, claviger_engine::ErrorKind::NotThisFormat(_)) => {
                let what = "it holds an unencrypted file system, which takes no password";
                return Err(Error::new(claviger_engine::ErrorKind::NotThisFormat(what.into())).at(&self.path).into());
            }
            Err(e) => return Err(e.at(&self.path).into()),
        };
        if let (false, Some(format)) = (asked || password, locked.file_format()) {
            let name = format.name();
            output::note(&format!("this is in a {name} folder and shown as stored; --format {name} decrypts it"));
            return Ok(None);
        }
        let found = self.found(locked, if in_clear { FolderLocation::InClear } else { FolderLocation::InVolume })?;
        found.unlock(&mut found.credentials()?).map(Some)
    }
}

impl FoundFolder<'_> {
    /// The credentials that open the folder. Prompts for those that are missing.
    pub fn credentials(&self) -> anyhow::Result<ReadCredentials> {
        self.locked.check(&self.with(&[])).map_err(|e| e.at(Path::new(&*self.path)))?;
        let args = self.args;
        let in_volume = self.place == FolderLocation::InVolume;
        one_on_stdin(in_volume && args.credentials.on_stdin(), args.how.folder.source().on_stdin())?;
        let own = args.how.folder.gives_password() || in_volume;
        let given = args.how.folder.gives_password() || !in_volume && args.credentials.given();
        // The master key opens it, too, and even without its configuration.
        let master_key = !in_volume && args.credentials.gives_volume_key();
        if !master_key && let Some(computed) = args.by_fido2(&self.locked, &self.with(&[]), given)? {
            return Ok(computed);
        }
        let without = args.how.folder.as_stored() || self.given.opens_itself();
        let asks = |keyfiles: &[Credential]| !without && self.locked.asks_passphrase(keyfiles);
        let credentials = match own {
            true if !asks(&[]) && !args.how.folder.gives_password() => ReadCredentials::default(),
            true => args.how.folder.source().read()?,
            false => args.credentials.read_for(asks)?,
        };
        Ok(match self.locked.stored_files() {
            Some((tree, _)) => credentials.and(args.how.folder.certificates.read(&**tree)?),
            None => credentials,
        })
    }

    /// Whether any of these unwraps the folder's passphrase, even if that does not open the folder.
    pub fn unwraps(&self, credentials: &[Credential]) -> bool {
        let beside = self.locked.stored_files().and_then(|(_, beside)| beside.wrapped_passphrase.as_deref());
        let file = self.given.wrapped().or(beside);
        file.zip(self.locked.file_format()).is_some_and(|(file, format)| format.unwraps(file, credentials))
    }

    /// How to open the folder with these credentials.
    pub fn with<'b>(&'b self, credentials: &'b [Credential]) -> Unlock<'b> {
        match self.place {
            FolderLocation::Here => self.args.how.unlock_folder(credentials, &self.given),
            FolderLocation::InClear | FolderLocation::InVolume => {
                self.args.how.unlock_inner_folder(credentials, &self.given)
            }
        }
    }

    /// Opens the folder.
    pub fn unlock(&self, credentials: &mut ReadCredentials) -> anyhow::Result<OpenFolder> {
        let cancel = cancel::install()?;
        let opened = credentials.open(|credentials| {
            let bar = Progress::trials("Opening");
            let show = |done, all| bar.at(done, all);
            self.locked.unlock(&Unlock { cancel: Some(cancel), progress: Some(&show), ..self.with(credentials) })
        });
        let here = self.place == FolderLocation::Here;
        let inside = (!here).then_some(&*self.words[1]);
        let opened = opened.and_then(Opened::files).map_err(|e| self.args.with_explain(e, inside.as_slice()));
        Ok(opened.map_err(|e| if here { e } else { e.at(Path::new(&*self.path)) })?)
    }
}
