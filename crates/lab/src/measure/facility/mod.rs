//! Facilities: what encrypts, and the same layers without encryption.
//!
//! A facility is data: the commands that make, open and close it. Ours are derived from the engine's table of formats;
//! those of others are files in `data/peers`, and the user's own folder can hold more. Each is used as a person would
//! use it: by its own program, in a process of its own.

mod catalogue;
mod filesystem;
mod ours;
mod process;
mod scratch;
mod store;
mod surface;
mod target;
mod trial;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::measure::program;

pub use catalogue::Catalogue;
pub use ours::NBD;
pub(crate) use process::{Background, READY, Runner};
pub use scratch::{Scratch, tidy};
pub use surface::{Surface, SurfaceKind};
pub use target::FacilityTarget;
pub use trial::{FacilityTrial, try_out};

/// A facility and its commands. In their words, `{name}` stands for what [`FacilityTarget`] knows: `{store}` the file, folder
/// or device that holds the encrypted data, `{open}` the place where it is opened (a folder, or a socket), `{size}`
/// bytes of the volume, `{kib}` the same in KiB, `{password-file}` a file with the passphrase and nothing else, `{password}` the passphrase,
/// `{claviger}` this program, `{id}` a name that nothing else on this machine has, `{dir}` a folder for other files,
/// `{config}` the user's folder for settings of this program. The store is there before a step runs: a file of zeros
/// with room for headers, an empty folder, a device whose beginning and end are zeros. `{open}` is an empty folder, or
/// nothing where it becomes a socket.
///
/// The words `{cheap}` and `{trace}` stand for all words of those fields, or for none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Facility {
    /// Its name on the command line.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// Name of the facility of the same layer without encryption; `None` for a baseline.
    pub baseline: Option<String>,
    /// What is measured with it and what is not, in whole sentences.
    pub about: String,
    /// What it needs for its encrypted data.
    pub store: StoreKind,
    /// What the open facility is.
    pub gives: Gives,
    /// Where the plaintext is once it is open: `{open}`, or what lies in it. `/dev/mapper/{id}`, `{open}/volume`.
    pub opened: String,
    /// What must be available.
    #[serde(default)]
    pub needs: FacilityRequirements,
    /// A command that prints the version.
    #[serde(default)]
    pub version: Vec<String>,
    /// Creates it in an empty store, quickly: with a cheap key derivation and without filling.
    #[serde(default)]
    pub create: Vec<CommandStep>,
    /// Creates it as its own program does by default: with the full cost of key derivation, and filled if that is the
    /// default. Empty if `create` does that.
    #[serde(default)]
    pub create_default: Vec<CommandStep>,
    /// Encrypts in place a store that is full of plaintext except for the room that headers need at the end, with a cheap key
    /// derivation.
    /// Empty if it cannot.
    #[serde(default)]
    pub encrypt: Vec<CommandStep>,
    /// Prepares that plaintext: creates the file system that the encryption requires.
    #[serde(default)]
    pub plaintext: Vec<CommandStep>,
    /// Words for `{cheap}`: options with which a passphrase opens a facility made by `create` quickly. They are empty once
    /// [`FacilityTarget::create_default`] has made it.
    #[serde(default)]
    pub cheap: Vec<String>,
    /// Words for `{trace}`: they have the server write each request to `{trace-file}`. Empty if it cannot.
    #[serde(default)]
    pub trace: Vec<String>,
    /// The steps that open it.
    #[serde(default)]
    pub open: Vec<CommandStep>,
    /// The steps that close it.
    #[serde(default)]
    pub close: Vec<CommandStep>,
}

/// How long a command that checks whether a facility can be used may take.
const PROBE: Duration = Duration::from_secs(20);

/// What stores the encrypted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A file of the volume's size and some room for headers.
    File,
    /// An empty folder.
    Folder,
    /// A block device: the whole backing device, or a loop device on such a file.
    Device,
}

/// What an open facility is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gives {
    /// A file or device of bytes.
    Bytes,
    /// An NBD export at a Unix socket.
    Nbd,
    /// A folder of files.
    Folder,
}

/// What a facility needs to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct FacilityRequirements {
    /// Programs.
    pub commands: Vec<String>,
    /// Files and devices.
    pub paths: Vec<PathBuf>,
    /// File systems that the kernel has to know: names of /proc/filesystems.
    pub filesystems: Vec<String>,
    /// A command that succeeds if the facility can be used here. Otherwise the kernel may lack a feature that the
    /// program needs, or an old version of the program, such as `{claviger}`, may lack an option.
    pub probe: Vec<String>,
    /// The message if that fails, in a whole sentence; by default the command's own message.
    pub unless: Option<String>,
    /// Whether it takes root.
    pub root: bool,
}

/// A command, its input, and how long it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct CommandStep {
    /// Its words; no shell interprets them.
    pub run: Vec<String>,
    /// What it reads from standard input. `{password}` is the passphrase.
    pub stdin: Option<String>,
    /// It runs as long as the facility is open. It is ready when this path exists; if the path is `{open}` and a
    /// folder, when something is mounted there. Closing ends it by SIGTERM, unless a step of `close` has ended it.
    pub until_there: Option<PathBuf>,
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
}

impl Facility {
    /// Why it cannot be measured here, as a whole sentence: what is missing.
    pub fn missing(&self) -> Option<String> {
        let FacilityRequirements { commands, paths, filesystems, probe, unless, root } = &self.needs;
        if *root && !geteuid().is_root() {
            return Some("It requires root.".into());
        }
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        if let Some(missing) = program::missing(&commands) {
            return Some(missing);
        }
        let in_config = |path: &Path| match path.strip_prefix("{config}") {
            Ok(rest) => config_folder().join(rest),
            Err(_) => path.to_owned(),
        };
        if let Some(path) = paths.iter().map(|path| in_config(path)).find(|path| !path.exists()) {
            return Some(format!("It needs {}, which does not exist.", path.display()));
        }
        if let Some(name) = filesystems.iter().find(|name| !process::kernel_mounts(name)) {
            return Some(format!("The kernel does not support the file system {name}."));
        }
        match probe.split_first() {
            Some((program, rest)) => {
                let program = match program.as_str() {
                    "{claviger}" => std::env::current_exe().ok(),
                    name => program::find(name),
                }
                .unwrap_or_else(|| program.into());
                let begun = Instant::now();
                let failed = program::run(Command::new(program).args(rest), || begun.elapsed() > PROBE).err()?;
                Some(unless.clone().unwrap_or_else(|| format!("It cannot be used here: {failed}.")))
            }
            None => None,
        }
    }

    /// Whether this program opens it.
    pub fn is_ours(&self) -> bool {
        self.open.iter().any(|step| step.run.iter().any(|word| word == "{claviger}"))
    }

    /// What it says of its version: the first line that the command prints. `claviger` is this program.
    pub fn version_here(&self, claviger: &Path) -> Option<String> {
        let mut names = words::Words::default();
        names.set_path("claviger", claviger).ok()?;
        let words = names.words(&self.version).ok()?;
        program::version(Command::new(program::find(words.first()?).unwrap_or_default()).args(&words[1..]))
    }

    /// The commands that make, open and close it, with names in braces.
    pub fn commands(&self) -> Vec<String> {
        self.steps().map(|step| step.run.join(" ")).collect()
    }

    fn steps(&self) -> impl Iterator<Item = &CommandStep> {
        let Self { create, create_default, encrypt, plaintext, open, close, .. } = self;
        [create, create_default, plaintext, encrypt, open, close].into_iter().flatten()
    }
}

impl CommandStep {
    fn uses_passphrase(&self) -> bool {
        let words = self.run.iter().chain(&self.stdin).chain(self.env.values());
        words.into_iter().any(|word| word.contains("{password"))
    }
}

/// Where a user keeps settings of this program: $XDG_CONFIG_HOME/claviger, or ~/.config/claviger.
pub fn config_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    base.unwrap_or_else(|| "/etc".into()).join("claviger")
}
