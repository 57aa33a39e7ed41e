//! `claviger efs`: encrypts NTFS files, and changes who can read them.
//!
//! Our own NTFS reader checks what is possible. Only ntfs-3g writes, on a mount point that only this process can reach.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use claviger_crypto::modes::efs::EfsCipher;
use claviger_engine::file_formats::efs::{self, EFS, EfsInfo, RawFile, Recipient};
use claviger_engine::file_formats::{FileFormat, StoredFile};
use claviger_engine::filesystems::Kind;
use claviger_engine::private_keys::{self, PrivateKey};
use claviger_engine::store::{Access, CountedStore, FileStore, MemoryStore};
use claviger_engine::trees::host::HostFolder;
use claviger_engine::trees::{HeldNode, NodeKind, Tree};
use claviger_engine::{Credential, Error, ErrorKind, Result, Store};
use claviger_serve::mount::{self, Choice, MountRequest, MountedVolume, Until};
use claviger_serve::sessions::Runtime;
use serde::Serialize;

use crate::opening::credentials::{Source, tries};
use crate::opening::files::{self, Inside, InsideArgs, tree_error};
use crate::opening::full_disk;
use crate::opening::{OpenArgs, ProtectArgs};
use crate::process::{guard, served};
use crate::terminal::exit::{self, Silent};
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::progress::Progress;
use crate::terminal::prompt::Asker;
use crate::terminal::{cancel, prompt, size};
use crate::verbs::tree::DEEPEST;

/// The most bytes of standard input that are held in memory.
const LARGEST_INPUT: u64 = 1 << 30;

/// Encrypt NTFS files as Windows does (EFS), and share them
///
/// The NTFS may be on an unencrypted disk, image or partition, or in an encrypted volume such as BitLocker. Nothing
/// else may use it at the same time. Needs ntfs-3g and FUSE, and root unless /etc/fuse.conf has user_allow_other.
///
/// All files are checked before the first one is changed. Each file is rewritten beside the old one, compared, and
/// then replaces it; an interruption leaves the old file. To read such files, give --certificate to `cp`, `cat
/// --file` or `mount`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Encrypt(Box<EncryptArgs>),
    Share(Box<ShareArgs>),
    Unshare(Box<UnshareArgs>),
    Change(Box<ChangeArgs>),
    Decrypt(Box<DecryptArgs>),
}

/// The disk.
#[derive(clap::Args)]
struct DiskArgs {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    which: InsideArgs,

    #[command(flatten)]
    protect: ProtectArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct PathArgs {
    /// Files on the NTFS: `:/Users/me/letter.txt`
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,

    /// Also process all files in folders
    #[arg(short, long)]
    recursive: bool,
}

/// Encrypt files for one or several certificates
///
/// A certificate holds a public key: .cer, .crt, PEM or PFX. Create one with `claviger keyfile --efs`. Keep the
/// private key of at least one certificate: nothing else opens the files. As on Windows, old contents may remain in
/// the disk's free space.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger efs encrypt disk.img :/Users/me/letter.txt --for me.cer
  claviger efs encrypt -r disk.img :/Users/me/Documents --for me.cer --for you.cer --agent agent.cer")]
struct EncryptArgs {
    #[command(flatten)]
    disk: DiskArgs,

    #[command(flatten)]
    paths: PathArgs,

    /// Certificate of a user who can read the files. May be repeated
    #[arg(long = "for", value_name = "CERT", required = true)]
    users: Vec<PathBuf>,

    /// Certificate of a recovery agent. May be repeated
    #[arg(long = "agent", value_name = "CERT")]
    agents: Vec<PathBuf>,

    /// Cipher of the files: AES-256, or 3DES or DESX for Windows 2000
    #[arg(long, value_name = "NAME", default_value = "AES-256", value_parser = cipher)]
    file_cipher: EfsCipher,
}

/// Give other users or recovery agents access to encrypted files
///
/// Needs a private key that opens the files: --certificate, --windows-profile or --pkcs11-module.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger efs share --certificate me.pfx disk.img :/Users/me/letter.txt --for you.cer")]
struct ShareArgs {
    #[command(flatten)]
    disk: DiskArgs,

    #[command(flatten)]
    paths: PathArgs,

    /// Certificate of another user who can read the files. May be repeated
    #[arg(long = "for", value_name = "CERT", required_unless_present = "agents")]
    users: Vec<PathBuf>,

    /// Certificate of a recovery agent. May be repeated
    #[arg(long = "agent", id = "agents", value_name = "CERT")]
    agents: Vec<PathBuf>,
}

/// Revoke a user's access to encrypted files
///
/// A user who has read a file may have kept its key. Put new secrets into a new file.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger efs unshare disk.img :/Users/me/letter.txt --for you.cer
  claviger efs unshare disk.img :/Users/me/letter.txt --for 0123456789abcdef0123456789abcdef01234567")]
struct UnshareArgs {
    #[command(flatten)]
    disk: DiskArgs,

    #[command(flatten)]
    paths: PathArgs,

    /// Certificate of the user or recovery agent to remove, or its thumbprint (see `info`). May be repeated
    #[arg(long = "for", value_name = "CERT", required = true)]
    whom: Vec<PathBuf>,
}

/// Replace the contents of an encrypted file, for the same users
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger efs change --certificate me.pfx disk.img :/Users/me/letter.txt new.txt
  claviger efs change --certificate me.pfx disk.img :/Users/me/letter.txt - < new.txt")]
struct ChangeArgs {
    #[command(flatten)]
    disk: DiskArgs,

    /// The file on the NTFS: `:/Users/me/letter.txt`
    #[arg(value_name = "PATH")]
    file: OsString,

    /// The file with the new contents; `-` is standard input
    #[arg(value_name = "FROM")]
    from: PathBuf,
}

/// Decrypt files permanently, after a confirmation
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger efs decrypt --certificate me.pfx disk.img :/Users/me/letter.txt
  claviger efs decrypt -r --yes --certificate me.pfx disk.img :/Users/me/Documents")]
struct DecryptArgs {
    #[command(flatten)]
    disk: DiskArgs,

    #[command(flatten)]
    paths: PathArgs,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// The change to make to the files.
enum Job {
    Encrypt { users: Vec<Recipient>, agents: Vec<Recipient>, cipher: EfsCipher },
    Share { users: Vec<Recipient>, agents: Vec<Recipient> },
    Unshare { thumbprints: Vec<Vec<u8>> },
    Change { contents: Box<dyn Store> },
    Decrypt,
}

/// A file to change.
struct Item {
    path: OsString,
    /// The size of the plaintext, in bytes.
    size: u64,
    info: Option<EfsInfo>,
    /// Whether the user named the file itself, not only its folder.
    named: bool,
}

#[derive(Serialize)]
struct Changed {
    #[serde(flatten)]
    path: FileName,
    done: &'static str,
    files: Vec<ChangedFile>,
    /// What was left out, and why.
    left_out: Vec<String>,
    /// Whether a file that should have been changed was left out.
    #[serde(skip)]
    incomplete: bool,
}

#[derive(Serialize)]
struct ChangedFile {
    path: String,
    /// The size of the plaintext, in bytes.
    size: u64,
    /// The users and agents that it is now encrypted for.
    keys: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    match &args.what {
        What::Encrypt(args) => {
            if args.disk.open.how.folder.certificates.given() {
                let hint = "Give the users' certificates with --for.";
                return Err(Error::misuse("encrypting takes no private key").hint(hint).into());
            }
            let (users, agents) = (recipients(&args.users)?, recipients(&args.agents)?);
            let job = Job::Encrypt { users, agents, cipher: args.file_cipher };
            args.disk.change(&args.paths, &job, true)
        }
        What::Share(args) => {
            let job = Job::Share { users: recipients(&args.users)?, agents: recipients(&args.agents)? };
            args.disk.change(&args.paths, &job, true)
        }
        What::Unshare(args) => {
            let thumbprints = args.whom.iter().map(|whom| thumbprints(whom)).collect::<Result<Vec<_>>>()?.concat();
            args.disk.change(&args.paths, &Job::Unshare { thumbprints }, true)
        }
        What::Change(args) => {
            let open = &args.disk.open;
            let piped = args.from.as_os_str() == "-";
            if piped && (open.password_on_stdin() || open.how.folder.certificates.on_stdin()) {
                return Err(Error::misuse("standard input can supply a password or the contents, not both").into());
            }
            let contents = if piped { input()? } else { Box::new(FileStore::open(&args.from, Access::ReadOnly)?) };
            let paths = PathArgs { paths: vec![args.file.clone()], recursive: false };
            args.disk.change(&paths, &Job::Change { contents }, true)
        }
        What::Decrypt(args) => args.disk.change(&args.paths, &Job::Decrypt, args.yes),
    }
}

fn cipher(name: &str) -> std::result::Result<EfsCipher, String> {
    match name.to_ascii_uppercase().as_str() {
        "AES-256" | "AES256" | "AES" => Ok(EfsCipher::Aes256),
        "3DES" => Ok(EfsCipher::TripleDes),
        "DESX" => Ok(EfsCipher::Desx),
        _ => Err("use AES-256, 3DES or DESX".to_owned()),
    }
}

/// The recipients of the certificates in these files.
fn recipients(paths: &[PathBuf]) -> Result<Vec<Recipient>> {
    let mut all: Vec<Recipient> = Vec::new();
    for path in paths {
        let mut ask = || Source::password("", &format!("Password of {}: ", path.display()), None, None).secret();
        let terminal = prompt::asker().and_then(Asker::into_terminal);
        let certificates = tries(terminal.as_ref(), |_| private_keys::read_file(path, &mut ask))?.certificates;
        if certificates.is_empty() {
            return Err(Error::misuse("it contains no certificate").at(path));
        }
        for certificate in &certificates {
            let one = Recipient::of(certificate).map_err(|e| e.at(path))?;
            if !all.iter().any(|known| known.owner.thumbprint == one.owner.thumbprint) {
                all.push(one);
            }
        }
    }
    Ok(all)
}

/// The given thumbprint, or those of the certificates in a file.
fn thumbprints(whom: &Path) -> Result<Vec<Vec<u8>>> {
    let text = whom.to_string_lossy().replace([' ', ':'], "");
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    match digits {
        Some(digits) if digits.len() == 40 => Ok(vec![digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()]),
        _ => {
            let all = recipients(&[whom.to_owned()])?;
            Ok(all.into_iter().filter_map(|one| one.owner.thumbprint).collect())
        }
    }
}

/// Reads standard input to its end.
fn input() -> Result<Box<dyn Store>> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(LARGEST_INPUT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_INPUT {
        let what = format!("standard input is held in memory and exceeds {}", size::exact(LARGEST_INPUT));
        return Err(Error::misuse(what).hint("Give a file instead."));
    }
    Ok(Box::new(MemoryStore::new(bytes)))
}

impl Job {
    /// Why a file needs no change; `None` if it needs one.
    ///
    /// # Errors
    /// The reason why the file cannot be changed.
    fn done(&self, info: Option<&EfsInfo>, keys: &[Arc<dyn PrivateKey>]) -> Result<Option<&'static str>> {
        let Some(info) = info else {
            return Ok((!matches!(self, Self::Encrypt { .. })).then_some("not encrypted"));
        };
        match self {
            Self::Encrypt { .. } => return Ok(Some("already encrypted")),
            Self::Share { users, agents } => {
                if missing(users, info).is_empty() && missing(agents, info).is_empty() {
                    return Ok(Some("already encrypted for these certificates"));
                }
            }
            Self::Unshare { thumbprints } => match &*there(thumbprints, info) {
                [] => return Ok(Some("not encrypted for this certificate")),
                there => drop(info.without(there)?),
            },
            Self::Change { .. } | Self::Decrypt => {}
        }
        if self.takes_key() || !keys.is_empty() {
            info.opens(keys)?;
        }
        Ok(None)
    }

    fn takes_key(&self) -> bool {
        matches!(self, Self::Share { .. } | Self::Change { .. } | Self::Decrypt)
    }

    fn carry_out(&self, place: RawFile<'_>, item: &Item, keys: &[Arc<dyn PrivateKey>]) -> Result<()> {
        match (self, &item.info) {
            (Self::Encrypt { users, agents, cipher }, _) => efs::encrypt(place, users, agents, *cipher),
            (Self::Share { users, agents }, Some(info)) => {
                efs::share(place, keys, &missing(users, info), &missing(agents, info))
            }
            (Self::Unshare { thumbprints }, Some(info)) => efs::unshare(place, &there(thumbprints, info)),
            (Self::Change { contents }, _) => efs::change(place, keys, &**contents),
            (Self::Decrypt, _) => efs::decrypt(place, keys),
            (Self::Share { .. } | Self::Unshare { .. }, None) => Err(Error::misuse("the file is not encrypted")),
        }
    }

    /// The file's size after the change.
    fn size(&self, item: &Item) -> u64 {
        match self {
            Self::Change { contents } => contents.len(),
            _ => item.size,
        }
    }

    fn participle(&self) -> &'static str {
        match self {
            Self::Encrypt { .. } => "encrypted",
            Self::Share { .. } => "shared",
            Self::Unshare { .. } => "unshared",
            Self::Change { .. } => "changed",
            Self::Decrypt => "decrypted",
        }
    }
}

/// The recipients that have no key of the file yet.
fn missing(of: &[Recipient], info: &EfsInfo) -> Vec<Recipient> {
    of.iter().filter(|one| !info.is_for(one)).cloned().collect()
}

/// The thumbprints for which the file is encrypted.
fn there(thumbprints: &[Vec<u8>], info: &EfsInfo) -> Vec<Vec<u8>> {
    let has = |one: &Vec<u8>| info.entries().any(|entry| entry.owner.thumbprint.as_ref() == Some(one));
    thumbprints.iter().filter(|one| has(one)).cloned().collect()
}

impl DiskArgs {
    fn change(&self, paths: &PathArgs, job: &Job, sure: bool) -> anyhow::Result<()> {
        let path = &self.open.path;
        if path.is_dir() {
            let what = Error::misuse("a folder can only be encrypted through its disk").at(path);
            return Err(what.hint("Give the disk or image, then the path on it: disk.img :/Users/me").into());
        }
        let certificates = &self.open.how.folder.certificates;
        if job.takes_key() && !certificates.given() {
            let what = Error::misuse("a private key that opens the files is needed");
            return Err(what.hint("Give one with --certificate, --windows-profile or --pkcs11-module.").into());
        }
        let runtime = Runtime::of_this_user()?;
        mount::clean_all(&runtime)?;
        mount::has_program(Kind::Ntfs)?;
        let opened = self.open.open_for_files_protecting(Access::ReadWrite, &self.protect)?;
        let (store, in_clear) = self.which.bytes(&self.open, opened)?;
        if !store.writable() {
            return Err(Error::misuse("it is read-only").at(path).into());
        }
        let inside = self.inside(&store, in_clear)?;
        inside.tree.warnings().iter().for_each(|w| output::warn(w));
        let keys = certificates.read(&*inside.tree)?.into_iter().filter_map(|credential| match credential {
            Credential::PrivateKey(key) => Some(key),
            _ => None,
        });
        let changed = Changed {
            path: FileName::path(path),
            done: job.participle(),
            files: Vec::new(),
            left_out: Vec::new(),
            incomplete: false,
        };
        let (items, recursive) = (Vec::new(), paths.recursive);
        let mut plan = Plan { job, keys: keys.collect(), inside: &inside, recursive, items, changed };
        for path in &paths.paths {
            let path = files::inside(path);
            let found = inside.find(path)?;
            plan.add(found.node(), path, 0)?;
        }
        let Plan { keys, items, mut changed, .. } = plan;
        drop(inside);
        if !sure && !items.is_empty() {
            consent(path, items.len())?;
        }
        cancel::check()?;
        if !items.is_empty() {
            let items = carry_out(&store, path, &runtime, job, &keys, items, &mut changed)?;
            let inside = self.inside(&store, in_clear)?;
            changed.files = items.iter().map(|item| look(&inside, &item.path)).collect::<Result<_>>()?;
        }
        let incomplete = changed.incomplete;
        output::print(&changed, self.json)?;
        match incomplete {
            true => Err(Silent(exit::number_of(&ErrorKind::Unsupported { what: String::new() })).into()),
            false => Ok(()),
        }
    }

    /// The NTFS through our own reader.
    fn inside(&self, store: &Arc<dyn Store>, in_clear: bool) -> anyhow::Result<Inside> {
        let inside = self.which.over(&self.open, Arc::clone(store), in_clear)?;
        match &inside.filesystem {
            Some(found) if found.kind == Kind::Ntfs => Ok(inside),
            found => {
                let what = found.as_ref().map_or("something else", |found| found.kind.described());
                let what = ErrorKind::NotThisFormat(format!("it holds {what}; only NTFS has EFS files"));
                Err(Error::new(what).at(&self.open.path).into())
            }
        }
    }
}

fn consent(path: &Path, files: usize) -> Result<()> {
    let question = format!(
        "{} of {} will be decrypted permanently: anybody with the disk can read them. Decrypt?",
        size::count(files as u64, "file"),
        output::printable(&path.to_string_lossy())
    );
    prompt::consent(&question, "--yes", |why| Error::misuse(format!("nothing was decrypted{why}")))
}

/// What is known before anything is written.
struct Plan<'a> {
    job: &'a Job,
    keys: Vec<Arc<dyn PrivateKey>>,
    inside: &'a Inside,
    recursive: bool,
    items: Vec<Item>,
    changed: Changed,
}

impl Plan<'_> {
    /// Adds a file, or with `recursive` all files in a folder. `depth` counts the folders below the one that the user named.
    fn add(&mut self, node: u64, path: &OsStr, depth: usize) -> Result<()> {
        cancel::check()?;
        let named = depth == 0;
        let attributes = self.inside.attributes(node, path)?;
        match attributes.kind {
            NodeKind::Folder if !self.recursive => {
                return Err(Error::misuse(format!("{} is a folder", files::shown(path))).hint(
                    "To include all files \
                     in it, add -r.",
                ));
            }
            NodeKind::Folder if depth < DEEPEST => {
                let list = self.inside.list(node, path)?;
                for name in list.left_out {
                    self.changed.incomplete = true;
                    self.changed.leave(&files::below(path, &name.name), &name.why.to_string());
                }
                for entry in list.entries {
                    let path = files::below(path, &entry.name);
                    let found = self.inside.take(node, &entry, &path)?;
                    self.add(found.node(), &path, depth + 1)?;
                }
                return Ok(());
            }
            NodeKind::File => {}
            kind if named => {
                let what = format!("{} is not a file: {}", files::shown(path), files::kind_name(kind));
                return Err(Error::misuse(what));
            }
            kind => {
                self.changed.leave(path, files::kind_name(kind));
                return Ok(());
            }
        }
        let at = |e: Error| e.at(Path::new(&files::shown(path)));
        let tree = &*self.inside.tree;
        let info = efs::info(tree, node).map_err(at)?;
        match self.job.done(info.as_ref(), &self.keys).map_err(at)? {
            Some(why) if named => return Err(Error::misuse(format!("{} is {why}", files::shown(path)))),
            Some(why) => self.changed.leave(path, why),
            None => {
                let item = Item { path: path.to_owned(), size: attributes.size, info, named };
                match tree.streams(node).map_err(|e| tree_error(e, path))?.first() {
                    Some(stream) => {
                        let what = format!("changing a file with alternate data streams: {}", files::shown(stream));
                        self.changed.refuse(&item, Error::unsupported(what))?;
                    }
                    None => self.items.push(item),
                }
            }
        }
        Ok(())
    }
}

impl Changed {
    fn leave(&mut self, path: &OsStr, why: &str) {
        self.left_out.push(format!("{} ({why})", files::shown(path)));
    }

    /// Leaves out a file that cannot be changed; fails if the user named it.
    fn refuse(&mut self, item: &Item, why: Error) -> Result<()> {
        let left = matches!(why.kind, ErrorKind::Unsupported { .. } | ErrorKind::Misuse(_));
        if item.named || !left {
            return Err(why.at(Path::new(&files::shown(&item.path))));
        }
        self.incomplete = true;
        self.leave(&item.path, &why.to_string());
        Ok(())
    }
}

/// The current state of a file.
fn look(inside: &Inside, path: &OsStr) -> Result<ChangedFile> {
    let found = inside.find(path)?;
    let node = found.node();
    let facts = EFS.facts(StoredFile { tree: &*inside.tree, file: node, contents: node })?;
    if let Some(problem) = facts.problem {
        return Err(Error::new(ErrorKind::Io(io::Error::other(problem))).at(Path::new(&files::shown(path))));
    }
    let size = facts.size.unwrap_or(facts.stored);
    Ok(ChangedFile { path: files::shown(path), size, keys: facts.keys })
}

/// Mounts the NTFS for this process alone, changes the files and unmounts. Returns the changed files.
fn carry_out(
    store: &Arc<dyn Store>,
    disk: &Path,
    runtime: &Runtime,
    job: &Job,
    keys: &[Arc<dyn PrivateKey>],
    items: Vec<Item>,
    changed: &mut Changed,
) -> anyhow::Result<Vec<Item>> {
    let mut live = runtime.begin(served::record(disk, None, store.len())?)?;
    let dir = live.session().files_dir();
    fs::create_dir(&dir).map_err(|e| Error::from(e).at(&dir))?;
    let dir = dir.canonicalize()?;
    live.update(|record| record.dir = Some(dir.clone()))?;
    let request = MountRequest {
        dir: dir.clone(),
        filesystem: Choice::Program(Kind::Ntfs),
        read_only: false,
        options: vec!["efs_raw".to_owned()],
        writeback: false,
    };
    let mounted = mount::mount(Arc::new(CountedStore::new(Arc::clone(store))), &request, live);
    let mounted = mounted.map_err(|e| e.at(disk))?;
    let done = mount::apart(|| change_all(&dir, job, keys, items, changed)).map_err(Error::from).flatten();
    // Files that were changed before an error stay changed, and must be flushed.
    let ended = end(mounted).map_err(|e| e.at(disk));
    let done = done?;
    ended?;
    Ok(done)
}

fn change_all(
    dir: &Path,
    job: &Job,
    keys: &[Arc<dyn PrivateKey>],
    items: Vec<Item>,
    changed: &mut Changed,
) -> Result<Vec<Item>> {
    let folder = HostFolder::open(dir, Access::ReadWrite)?;
    let (bar, passed) = (Progress::bytes("Writing"), Cell::new(0u64));
    // Each file is written and read back.
    let all = items.iter().fold(0u64, |all, item| all.saturating_add(job.size(item).saturating_mul(2)));
    let watch = |bytes| {
        passed.set(passed.get().saturating_add(bytes));
        bar.at(passed.get(), all);
        cancel::check()
    };
    let mut left = Vec::new();
    for item in items {
        cancel::check()?;
        match in_place(&folder, &item, &watch, efs::check) {
            Ok(()) => left.push(item),
            Err(e) => changed.refuse(&item, e)?,
        }
    }
    let (largest, free) = (left.iter().map(|item| job.size(item)).max().unwrap_or(0), folder.space()?.free);
    if largest > free {
        return Err(full_disk::of_sizes(largest, free).into());
    }
    for (before, item) in left.iter().enumerate() {
        let done =
            cancel::check().and_then(|()| in_place(&folder, item, &watch, |place| job.carry_out(place, item, keys)));
        done.map_err(|e| {
            let e = if matches!(e.kind, ErrorKind::Cancelled) { e } else { e.at(Path::new(&files::shown(&item.path))) };
            match before {
                0 => e.hint("Nothing was changed."),
                _ => e.hint(format!("{before} of {} files were changed before that.", left.len())),
            }
        })?;
    }
    Ok(left)
}

/// Finds the file in the folder where ntfs-3g shows it.
fn in_place(
    folder: &HostFolder,
    item: &Item,
    watch: &dyn Fn(u64) -> Result<()>,
    what: impl FnOnce(RawFile<'_>) -> Result<()>,
) -> Result<()> {
    let path = Path::new(&item.path);
    let parent = path.parent().unwrap_or(Path::new("/"));
    let parent = HeldNode::find(folder, parent.as_os_str()).map_err(|e| tree_error(e, &item.path))?;
    let name = path.file_name().ok_or_else(|| Error::misuse("it has no name"))?;
    let size = item.info.is_some().then_some(item.size);
    what(RawFile { tree: folder, folder: parent.node(), name, size, watch: Some(watch) })
}

/// Unmounts, and waits until everything is written.
fn end(mounted: MountedVolume) -> Result<()> {
    // Makes `serve` stop and unmount, as a signal would.
    let (asked, ask) = UnixStream::pair()?;
    (&ask).write_all(b"1")?;
    mounted.serve(&Until { signals: asked.as_fd(), parent: None, idle: None, waits: &|| false })
}

impl Report for Changed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path: _, done, files, left_out, incomplete: _ } = self;
        for ChangedFile { path, size, keys } in files {
            let keys = if keys.is_empty() { String::new() } else { format!(", for {}", keys.join(", ")) };
            writeln!(out, "{done}: {path}, {}{}", size::exact(*size), output::printable(&keys))?;
        }
        if files.is_empty() {
            writeln!(out, "nothing to do")?;
        }
        left_out.iter().try_for_each(|what| writeln!(out, "left out: {what}"))?;
        if *done == "encrypted" && !files.is_empty() {
            writeln!(out, "Their old contents may still be in the disk's free space.")?;
        }
        Ok(())
    }
}
