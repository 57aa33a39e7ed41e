//! The options of `claviger convert`.

use std::path::PathBuf;

use claviger_engine::Result;

use crate::opening::cost::NewCostArgs;
use crate::opening::credentials::DestinationCredentialArgs;
use crate::opening::overwrite::Overwrite;
use crate::opening::{OpenArgs, takes_no};
use crate::process::key_process::KeyProcessArgs;
use crate::terminal::size;

/// Copy a volume to a new one with another format, password or cipher
///
/// All plaintext of VOLUME is copied to a new volume; then both are read and compared. VOLUME is only read. With
/// --raw, the new file is the plaintext itself, with holes for zeros; with --raw-source, VOLUME is such a file or a
/// disk.
///
/// A new volume is always written completely, since unwritten parts would not read as zeros. It has the size needed
/// for the plaintext, or --new-size with zeros after the copy.
///
/// An encrypted folder is copied file by file to a new folder of eCryptfs, gocryptfs or Cryptomator, or with --raw to an
/// unencrypted one. With --raw-source, VOLUME is an unencrypted folder.
///
/// Until it is complete, a new file is called DESTINATION.part. To continue an interrupted conversion, use --resume,
/// which first compares the copied part with the source. For a block device, this needs --state.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger convert old.tc new.hc
  claviger convert --new-format TrueCrypt --new-cipher Serpent --new-hash SHA-512 old.tc new.tc
  claviger convert --new-format LUKS2 --new-label photos old.tc new.luks
  claviger convert --raw old.tc image.img
  claviger convert --raw-source --new-password-file pw.txt image.img new.hc
  claviger convert --raw-source documents documents.ecryptfs
  claviger convert --resume old.tc new.hc")]
pub struct Args {
    #[command(flatten)]
    pub open: OpenArgs,

    /// The file to create, or a block device
    #[arg(value_name = "DESTINATION")]
    pub destination: PathBuf,

    /// Treat VOLUME as plaintext: a disk image or disk
    #[arg(long)]
    pub raw_source: bool,

    /// Write plaintext to DESTINATION
    #[arg(long, conflicts_with_all = ["raw_source", "new_format", "new_cipher", "new_hash", "new_pim", "new_password", "new_keyfiles"])]
    pub raw: bool,

    /// Format of the new volume [default: VeraCrypt]
    #[arg(long, value_name = "NAME", help_heading = "The new volume")]
    pub new_format: Option<String>,

    /// Size of the plaintext in the new volume, if larger than the old one
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "The new volume")]
    pub new_size: Option<u64>,

    /// Cipher or cascade of the new volume; see `claviger create --list`
    #[arg(long, value_name = "NAME", help_heading = "The new volume")]
    pub new_cipher: Option<String>,

    /// Hash of the new key derivation; see `claviger create --list`
    #[arg(long, value_name = "NAME", help_heading = "The new volume")]
    pub new_hash: Option<String>,

    /// PIM of a new VeraCrypt volume
    #[arg(long, value_name = "N", help_heading = "The new volume")]
    pub new_pim: Option<u32>,

    /// Label of a new LUKS2 volume
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", help_heading = "The new volume")]
    pub new_label: Option<String>,

    /// Size of a new LUKS2 volume's encryption sectors, in bytes
    #[arg(long, value_name = "BYTES", conflicts_with = "raw", help_heading = "The new volume")]
    pub new_sector_size: Option<u32>,

    /// Size of the new volume key, in bits, if the format has several
    #[arg(long, value_name = "BITS", conflicts_with = "raw", help_heading = "The new volume")]
    pub new_key_size: Option<u32>,

    #[command(flatten)]
    pub cost: NewCostArgs,

    #[command(flatten)]
    pub new: DestinationCredentialArgs,

    /// Continue an interrupted conversion
    #[arg(long)]
    pub resume: bool,

    /// File for the progress state, instead of DESTINATION.part.json
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,

    #[command(flatten)]
    pub overwrite: Overwrite,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub key_process: KeyProcessArgs,
}

impl Args {
    /// Refuses options that do not apply to a new folder.
    pub fn check_for_folder(&self) -> Result<()> {
        let given = [
            (self.new_size.is_some(), "--new-size"),
            (self.new_hash.is_some(), "--new-hash"),
            (self.new_pim.is_some(), "--new-pim"),
            (self.new_label.is_some(), "--new-label"),
            (self.new_sector_size.is_some(), "--new-sector-size"),
            (self.state.is_some(), "--state"),
            (self.overwrite.force, "--force"),
        ];
        takes_no("a new folder", given)
    }
}
