//! The options of `claviger convert`.

use std::path::PathBuf;

use claviger_engine::Result;

use crate::opening::cost::NewCostArgs;
use crate::opening::credentials::DestinationCredentialArgs;
use crate::opening::overwrite::Overwrite;
use crate::opening::{OpenArgs, takes_no};
use crate::process::key_process::KeyProcessArgs;
use crate::terminal::size;

/// Convert a volume into a new one of another format, password or cipher
///
/// All of the plaintext of VOLUME is written into a new volume, and then both are read and compared. VOLUME itself is only
/// read. With --raw the new file is the plaintext itself, with holes where it is zeros; with --raw-source VOLUME is such a
/// file, or a disk.
///
/// A new volume is always written whole: what was not written would not read as zeros. It is as large as it must be for the
/// same plaintext, or for --new-size, and what is behind the copy reads as zeros.
///
/// An encrypted folder is copied file by file into a new folder, of eCryptfs or with --raw in clear; with
/// --raw-source VOLUME is a folder in clear.
///
/// Until it is whole a new file is called DESTINATION.part. An interrupted conversion goes on with --resume, after what is
/// there has been compared with the source. Where the destination is a block device, that takes --state.
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

    /// VOLUME is no volume but plaintext: a disk image, a disk
    #[arg(long)]
    pub raw_source: bool,

    /// DESTINATION is to be the plaintext itself
    #[arg(long, conflicts_with_all = ["raw_source", "new_format", "new_cipher", "new_hash", "new_pim", "new_password", "new_keyfiles"])]
    pub raw: bool,

    /// Format of the new volume [default: VeraCrypt]
    #[arg(long, value_name = "NAME", help_heading = "The new volume")]
    pub new_format: Option<String>,

    /// Size of the plaintext in the new volume, if it is to be larger than that of the old one
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = "The new volume")]
    pub new_size: Option<u64>,

    /// Cipher or cascade of the new volume; see `claviger create --list`
    #[arg(long, value_name = "NAME", help_heading = "The new volume")]
    pub new_cipher: Option<String>,

    /// Hash of its key derivation; see `claviger create --list`
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

    /// Size of the new volume key, in bits, where the format has several
    #[arg(long, value_name = "BITS", conflicts_with = "raw", help_heading = "The new volume")]
    pub new_key_size: Option<u32>,

    #[command(flatten)]
    pub cost: NewCostArgs,

    #[command(flatten)]
    pub new: DestinationCredentialArgs,

    /// Go on with a conversion that was interrupted
    #[arg(long)]
    pub resume: bool,

    /// Where to keep how far it has come, instead of DESTINATION.part.json
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
    /// Refuses what a new folder does not take.
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
