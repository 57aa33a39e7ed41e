//! `claviger attach`: opens volumes by name.

mod favourites;
mod kernel;
mod random_key;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use claviger_engine::internal::read_secret;
use claviger_engine::{Error, Result, Secret};
use claviger_serve::crypttab::{self, CrypttabEntry, CrypttabKey, Invocation};
use claviger_serve::fuse;
use claviger_serve::sessions::Runtime;

use crate::opening::credentials::CredentialArgs;
use crate::opening::{OpenArgs, UnlockArgs};
use crate::process::{background, guard};
use crate::terminal::exit::{self, Silent};
use crate::terminal::{cancel, output};
use favourites::Favourite;
use random_key::RandomKeyArgs;

/// Open volumes by their names in /etc/crypttab or among your favourites
///
/// A favourite from ~/.config/claviger/favourites.toml is mounted. A line of /etc/crypttab is opened: its plaintext
/// becomes the file NAME/volume in your runtime folder or, without FUSE, an NBD socket there. `claviger list` shows
/// where; `claviger unmount` ends it.
///
/// With --kernel, as root, the kernel's dm-crypt does the work: the plaintext is the block device /dev/mapper/NAME
/// until `claviger detach NAME`. Give the name of a line of the table, or a VOLUME and a NAME with options that open
/// volumes. The kernel gets the key through its keyring, so --isolate-keys does not apply.
///
/// With --random-key, the device gets a new random key each time, which is never stored, as for swap. All data on the
/// device are lost. The device is refused if it holds another volume, a file system, a partition table, a hibernated
/// system or data that do not look random. A swap area, zeros and random-looking data are overwritten without asking,
/// and the latter may be a TrueCrypt, VeraCrypt or plain dm-crypt volume: check the device's name. A line of the
/// table for swap: `swap /dev/disk/by-partuuid/… /dev/urandom swap,cipher=aes-xts-plain64,size=512`
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger attach diary
  claviger attach --all
  claviger attach --crypttab ./table backup
  claviger attach --kernel old.tc backup
  claviger attach --kernel --random-key --swap /dev/sdx2 swap

A favourite in ~/.config/claviger/favourites.toml:
  [diary]
  volume = \"~/diary.tc\"
  dir = \"~/diary\"
  options = [\"--hash=SHA-512\", \"--idle=10m\"]")]
pub struct Args {
    /// Names of favourites or lines of the table; with --kernel, also a volume and a name for it
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,

    /// Open every line of the table without noauto, and every favourite
    #[arg(long, conflicts_with = "names")]
    all: bool,

    /// Use this table instead of /etc/crypttab
    #[arg(long, value_name = "FILE")]
    crypttab: Option<PathBuf>,

    /// Use this list instead of ~/.config/claviger/favourites.toml
    #[arg(long, value_name = "FILE")]
    favourites: Option<PathBuf>,

    /// Attach as a block device through the kernel's dm-crypt (root)
    #[arg(long, conflicts_with = "favourites")]
    kernel: bool,

    /// With --kernel: attach read-only
    #[arg(long, requires = "kernel")]
    read_only: bool,

    #[command(flatten)]
    random_key: RandomKeyArgs,

    /// Keep the keys in a separate key process, which opens no files and runs no programs
    #[arg(long)]
    isolate_keys: bool,

    /// With --isolate-keys: keep AES round keys only in vector registers
    #[arg(long, requires = "isolate_keys")]
    keys_in_registers: bool,

    /// Print JSON, one object per volume
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    credentials: Option<CredentialArgs>,

    #[command(flatten)]
    how: UnlockArgs,
}

/// A favourite or a line of the table.
enum Known<'a> {
    Favourite(&'a Favourite),
    Entry(&'a CrypttabEntry),
}

/// Runs the verb. `global` are the global options, for the processes that it starts.
pub fn run(args: &Args, global: &[OsString]) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    args.check_key_process()?;
    let favourites = favourites(args.favourites.as_deref())?;
    let mut entries = entries(args.crypttab.as_deref())?;
    entries.iter_mut().for_each(|entry| entry.find_key(&crypttab::KEY_FOLDERS));
    if let Some((volume, name)) = args.volume(&entries)? {
        let (credentials, how) = (args.credentials.clone().unwrap_or_default(), args.how.clone());
        let open = OpenArgs { path: volume.into(), credentials, how, explains: false };
        return match args.random_key.random_key {
            true => args.random_key.attach(open, name, args.json),
            false => kernel::attach(open, name, args.read_only, args.json),
        };
    }
    let mut chosen = Vec::new();
    for name in &args.names {
        chosen.push((&**name, known(name, &favourites, &entries)?));
    }
    if args.all {
        chosen.extend(entries.iter().filter(|e| !e.has("noauto")).map(|e| (&*e.name, Known::Entry(e))));
        if !args.kernel {
            chosen.extend(favourites.iter().map(|(name, favourite)| (&**name, Known::Favourite(favourite))));
        }
    }
    let mut failed = None;
    for (name, what) in chosen {
        cancel::check()?;
        let attached = match &what {
            Known::Favourite(_) if args.kernel => {
                Err(Error::misuse("favourites cannot be attached with --kernel").into())
            }
            Known::Favourite(favourite) => mount(favourite, args, global),
            Known::Entry(entry) => attach(entry, args, global),
        };
        let Err(e) = attached else { continue };
        let code = match e.downcast::<Silent>() {
            // The process that failed has reported the error.
            Ok(silent) => silent,
            Err(e) => {
                let e = e.context(name.to_owned());
                exit::report(&e, args.json);
                Silent::after(&e)
            }
        };
        let excused = matches!(what, Known::Entry(entry) if args.all && entry.has("nofail"));
        if !excused {
            failed = failed.or(Some(code));
        }
    }
    failed.map_or(Ok(()), |code| Err(code.into()))
}

/// The option of `mount` and `serve` for a key process, which this verb passes on.
const ISOLATE: &str = "--isolate-keys";
/// The option that protects a hidden volume from being overwritten.
const PROTECT: &str = "--protect-hidden";
/// The option that keeps round keys out of memory.
const REGISTERS: &str = "--keys-in-registers";

impl Args {
    /// Refuses impossible combinations before anything is read.
    fn check_key_process(&self) -> Result<()> {
        match self.kernel && self.isolate_keys {
            true => Err(Error::misuse("--isolate-keys does not go with --kernel: the kernel needs the key")
                .hint("Omit one of the two.")),
            false => Ok(()),
        }
    }

    /// The volume for the kernel and its name, unless the names are those of lines of the table.
    fn volume(&self, entries: &[CrypttabEntry]) -> Result<Option<(&str, &str)>> {
        let options = self.credentials.is_some() || self.how.given() || self.random_key.random_key;
        if options && !self.kernel {
            return Err(Error::misuse("options that open a volume need --kernel, a VOLUME and a NAME")
                .hint("For a line of the table or a favourite, put the options there."));
        }
        if self.how.keep_times {
            return Err(Error::misuse("--keep-times does not go with --kernel: the kernel writes to the volume"));
        }
        match &self.names[..] {
            [volume, name] if self.kernel && (options || entries.iter().all(|e| e.name != *volume)) => {
                Ok(Some((volume, name)))
            }
            _ if options => Err(Error::misuse("options that open a volume need a VOLUME and a NAME")),
            _ => Ok(None),
        }
    }
}

fn known<'a>(
    name: &str,
    favourites: &'a BTreeMap<String, Favourite>,
    entries: &'a [CrypttabEntry],
) -> Result<Known<'a>> {
    let favourite = favourites.get(name).map(Known::Favourite);
    let entry = || entries.iter().find(|e| e.name == name).map(Known::Entry);
    favourite.or_else(entry).ok_or_else(|| {
        let names: Vec<_> = favourites.keys().map(String::as_str).chain(entries.iter().map(|e| &*e.name)).collect();
        let hint =
            if names.is_empty() { "None are known.".to_owned() } else { format!("Known: {}.", names.join(", ")) };
        Error::misuse(format!("there is no favourite or line of the table called {}", output::printable(name)))
            .hint(hint)
    })
}

/// The text of the file. Only a file that no option names may be missing.
fn text(named: Option<&Path>, usual: &Path) -> Result<Option<String>> {
    let path = named.unwrap_or(usual);
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if named.is_none() && e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::from(e).at(path)),
    }
}

fn entries(table: Option<&Path>) -> Result<Vec<CrypttabEntry>> {
    let usual = Path::new("/etc/crypttab");
    let path = table.unwrap_or(usual);
    let text = text(table, usual)?;
    text.map_or_else(|| Ok(Vec::new()), |text| crypttab::parse(&text).map_err(|e| e.at(path)))
}

fn favourites(list: Option<&Path>) -> Result<BTreeMap<String, Favourite>> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let usual = config.unwrap_or_else(|| home().join(".config")).join("claviger/favourites.toml");
    let path = list.unwrap_or(&usual);
    let text = text(list, &usual)?;
    text.map_or_else(|| Ok(BTreeMap::new()), |text| favourites::parse(&text).map_err(|e| e.at(path)))
}

/// The names of all lines of /etc/crypttab and of all favourites.
pub fn names() -> Vec<String> {
    let entries = entries(None).unwrap_or_default().into_iter().map(|entry| entry.name);
    entries.chain(favourites(None).unwrap_or_default().into_keys()).collect()
}

fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| "/".into())
}

fn mount(favourite: &Favourite, args: &Args, global: &[OsString]) -> anyhow::Result<()> {
    let mut words: Vec<OsString> = vec!["claviger".into(), "mount".into()];
    // The favourite's own options take precedence.
    let name = |word: &OsStr| word.to_string_lossy().split('=').next().unwrap_or_default().to_owned();
    let own = |word: &&OsString| favourite.options.iter().any(|option| name(OsStr::new(option)) == name(word));
    words.extend(global.iter().filter(|word| !own(word)).cloned());
    words.extend(args.json.then(|| "--json".into()));
    // The favourite may have the option itself.
    let isolate = args.isolate_keys && favourite.options.iter().all(|option| option != ISOLATE);
    words.extend(isolate.then(|| ISOLATE.into()));
    let registers = args.keys_in_registers && favourite.options.iter().all(|option| option != REGISTERS);
    words.extend(registers.then(|| REGISTERS.into()));
    words.extend(favourite.options.iter().map(OsString::from));
    words.push("--".into());
    let home = home();
    words.extend([favourite.volume(&home).into(), favourite.dir(&home).into()]);
    background::start(&words, Stdio::inherit())
}

fn attach(entry: &CrypttabEntry, args: &Args, global: &[OsString]) -> anyhow::Result<()> {
    let invocation = entry.invocation()?;
    invocation.ignored.iter().for_each(|what| output::warn(what));
    let runtime = Runtime::of_this_user()?;
    let device = invocation.disk.as_ref().unwrap_or(&entry.device);
    let mut options = global.to_vec();
    options.extend(invocation.options.iter().map(OsString::from));
    if invocation.read_only || args.read_only {
        options.push("--read-only".into());
    }
    if args.json {
        options.push("--json".into());
    }
    if args.isolate_keys {
        options.push(ISOLATE.into());
    }
    if args.keys_in_registers {
        options.push(REGISTERS.into());
    }
    if invocation.key == CrypttabKey::Random && !args.kernel {
        return Err(Error::unsupported("a volume with a random key without --kernel")
            .at(device)
            .hint("Its contents would be lost when its server ends. Add --kernel.")
            .into());
    }
    let (more, stdin) = key(&invocation, entry.key.as_deref())?;
    options.extend(more);
    if args.kernel && options.iter().any(|option| option == PROTECT) {
        return Err(Error::misuse("the kernel cannot protect a hidden volume")
            .at(device)
            .hint("Omit --kernel.")
            .into());
    }
    if args.kernel {
        return kernel::start(options, device, &entry.name, stdin);
    }
    let mut words: Vec<OsString> = vec!["claviger".into()];
    if fuse::available().is_ok() {
        let dir = runtime.path().join("attached").join(&entry.name);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| Error::from(e).at(&dir))?;
        words.extend(["mount".into(), "--filesystem=none".into()]);
        words.extend(options);
        words.extend(["--".into(), device.into(), dir.as_os_str().to_owned()]);
        return background::start(&words, stdin).inspect_err(|_| {
            // Fails for a mount point, or a folder with files: both stay.
            let _ = fs::remove_dir(&dir);
        });
    } else {
        let mut socket = OsString::from("--socket=");
        socket.push(runtime.path().join(format!("{}.sock", entry.name)));
        words.extend(["serve".into(), socket]);
        words.extend(options);
        words.extend(["--".into(), device.into()]);
    }
    background::start(&words, stdin)
}

/// The options for the key of a line, and the standard input to read it from.
fn key(invocation: &Invocation, file: Option<&Path>) -> anyhow::Result<(Vec<OsString>, Stdio)> {
    let path = file.unwrap_or(Path::new(""));
    let piped = |bytes: &[u8]| match bytes.len() > LONGEST {
        true => Err(Error::misuse("too long to be a password").at(path).into()),
        false => Ok((vec!["--password-file=-".into()], pipe(bytes)?)),
    };
    match invocation.key {
        CrypttabKey::Asked => Ok((Vec::new(), Stdio::inherit())),
        CrypttabKey::Empty => Ok((vec!["--no-password".into()], Stdio::null())),
        CrypttabKey::Random => {
            let swap = invocation.swap.then(|| "--swap".into());
            Ok((["--random-key".into()].into_iter().chain(swap).collect(), Stdio::null()))
        }
        CrypttabKey::Keyfile => {
            let mut option = OsString::from("--keyfile=");
            option.push(path);
            Ok((vec![option], Stdio::inherit()))
        }
        CrypttabKey::FirstLine => {
            let bytes = read(path, 0, None)?;
            piped(bytes.split(|b| *b == b'\n').next().unwrap_or_default())
        }
        CrypttabKey::Password { offset, size } => {
            let bytes = read(path, offset, size)?;
            piped(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
        }
        CrypttabKey::Hashed { offset, size } => {
            let bytes = read(path, offset, Some(size))?;
            if bytes.len() as u64 != size {
                let what =
                    format!("the key should have {size} bytes at byte {offset}, but the file has only {}", bytes.len());
                return Err(Error::misuse(what)
                    .at(path)
                    .hint("Check the table's option size=, which is in bits.")
                    .into());
            }
            piped(&bytes)
        }
    }
}

/// The longest password read from a file, in bytes. It fits into a pipe (pipe(7)), so the write cannot block.
const LONGEST: usize = 60_000;

/// Reads up to `size` bytes of the file from an offset: at most one more than a password may have.
fn read(path: &Path, offset: u64, size: Option<u64>) -> Result<Secret> {
    let at = |e: io::Error| Error::from(e).at(path);
    let mut file = File::open(path).map_err(at)?;
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).map_err(at)?;
    }
    let most = size.map_or(LONGEST + 1, |size| usize::try_from(size).unwrap_or(usize::MAX).min(LONGEST + 1));
    read_secret::read_up_to(most, |room| file.read(room)).map_err(at)
}

/// A pipe with a password and a newline, which is not part of the password. A pipe's content is in no list of arguments and in
/// no file.
fn pipe(password: &[u8]) -> io::Result<Stdio> {
    let (read, mut write) = io::pipe()?;
    write.write_all(password)?;
    write.write_all(b"\n")?;
    Ok(read.into())
}
