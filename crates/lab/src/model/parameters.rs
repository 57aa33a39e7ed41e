//! What a study sets in a workload.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Every block and every size is a multiple of this, in bytes.
pub const SECTOR: usize = 512;

/// A workload of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlannedWork {
    /// Name of the workload.
    pub name: String,
    /// How the study did it.
    #[serde(default)]
    pub parameters: Parameters,
    /// Names of the only facilities that it is done with. Without any, it is done with those of the study.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facilities: Vec<String>,
}

/// What a study sets in a workload. Each workload says which of these it takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Parameters {
    /// Bytes that are moved, at full scale.
    pub size: Option<u64>,
    /// Bytes of a request, at most the bytes that are moved.
    pub blocks: Vec<usize>,
    /// Seconds after which it ends in any case.
    pub seconds: Option<f64>,
    /// How often it is done in a pass.
    pub repetitions: Option<usize>,
    /// What is written, each of these in turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<WrittenContent>,
    /// Bytes of the files that it is done with, at full scale.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<u64>,
    /// How many files, or trees of files, there are. Without files, Bonnie++ leaves out what it does with them; others have one at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Whether characters are written and read one by one, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub characters: Option<bool>,
    /// Clients at a time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<u32>,
    /// Threads, each of these in turn; 0 is one for each processor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// File systems that it is done on, each of these in turn. Without any, the usual one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<FilesystemKind>,
    /// Whether each write is flushed before the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synchronous: Option<bool>,
    /// Whether what is unpacked is compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<bool>,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WrittenContent {
    /// Data that cannot be compressed.
    Random,
    /// Zeros.
    Zeros,
}

impl Parameters {
    /// The names of those that are set.
    pub fn given(&self) -> impl Iterator<Item = String> {
        let is_set = |value: &Value| !value.is_null() && value.as_array().is_none_or(|all| !all.is_empty());
        let all = match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all,
            _ => Map::new(),
        };
        all.into_iter().filter(move |(_, value)| is_set(value)).map(|(name, _)| name)
    }
}

/// The file systems that can be made. All but ext4 take root and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesystemKind {
    /// The usual one.
    Ext4,
    /// XFS.
    Xfs,
    /// FAT32 with long names.
    Vfat,
}

impl FilesystemKind {
    /// As the kernel calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Vfat => "vfat",
        }
    }
}
