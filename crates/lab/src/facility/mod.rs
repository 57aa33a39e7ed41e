//! Facilities: what encrypts, and the same layers without encryption.
//!
//! A facility is data: the commands that make, open and close it. Ours are made from the engine's table of formats; those of
//! others are files in `data/peers`, and a user's own folder can hold more. Whatever it is, it is reached as a person would
//! reach it: by its own program, in a process of its own.

mod target;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use target::{Surface, Target, Way};

/// What encrypts, by which commands. In their words, `{name}` stands for what [`Target`] knows: `{store}` the file, folder or
/// device that holds the encrypted data, `{open}` the place where it is opened (a folder, or a socket), `{size}` bytes of the
/// volume, `{password-file}` a file with the passphrase and nothing else, `{claviger}` this program, `{id}` a name that
/// nothing else on this machine has, `{dir}` a folder for other files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Facility {
    /// What it is called on the command line.
    pub name: String,
    /// What it is, for people.
    pub title: String,
    /// Name of the facility of the same layer without encryption; nothing for one of those.
    pub baseline: Option<String>,
    /// What is measured with it and what is not, in whole sentences.
    pub about: String,
    /// What it needs for its encrypted data.
    pub store: Stores,
    /// What it is when it is open.
    pub gives: Gives,
    /// Where the plaintext is once it is open: `{open}`, or what lies in it. `/dev/mapper/{id}`, `{open}/volume`.
    pub opened: String,
    /// What has to be there.
    #[serde(default)]
    pub needs: Requirements,
    /// A command that says the version.
    #[serde(default)]
    pub version: Vec<String>,
    /// Makes it anew in an empty store, quickly: with a cheap key derivation, and without filling.
    #[serde(default)]
    pub create: Vec<Step>,
    /// Makes it anew as its own program does if nobody says otherwise: with the full cost of the key derivation, filled where
    /// that is the default. Empty where `create` does that.
    #[serde(default)]
    pub create_default: Vec<Step>,
    /// Opens it.
    #[serde(default)]
    pub open: Vec<Step>,
    /// Closes it.
    #[serde(default)]
    pub close: Vec<Step>,
}

/// What holds the encrypted data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stores {
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
pub struct Requirements {
    /// Programs.
    pub commands: Vec<String>,
    /// Files and devices.
    pub paths: Vec<PathBuf>,
    /// File systems that the kernel has to know: names of /proc/filesystems.
    pub filesystems: Vec<String>,
    /// Whether it takes root.
    pub root: bool,
}

/// A command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Step {
    /// Its words; no shell looks at them.
    pub run: Vec<String>,
    /// What it reads from standard input. `{password}` is the passphrase.
    pub stdin: Option<String>,
    /// It goes on as long as the facility is open; it is there when this path is. Closing ends it by SIGTERM.
    pub until_there: Option<PathBuf>,
    /// Variables of its environment.
    pub env: std::collections::BTreeMap<String, String>,
}
