//! The options of `claviger create`.

use std::path::PathBuf;

use claviger_engine::{Result, Spec};

use super::filesystem::FileSystem;
use super::program::Program;
use super::protectors::ProtectorArgs;
use crate::opening::cost::CostArgs;
use crate::opening::credentials::CredentialArgs;
use crate::opening::overwrite::Overwrite;
use crate::opening::{HiddenArgs, takes_no};
use crate::terminal::end_heading::EndHeading;
use crate::terminal::size;

/// Create an encrypted volume
///
/// Usually a file, with a file system for Windows, macOS and Linux in it; VeraCrypt opens it, too:
///
/// claviger create --size 100M --filesystem exfat secrets.hc
///
/// Creates a new file, allocating its space at once, or uses a whole block device. The volume is filled with
/// random-looking bytes to hide how much of it is in use. Existing data are overwritten only with --force and a
/// confirmation.
///
/// With --hidden, the volume is created inside an existing one, in the free space after the files of its FAT, exFAT,
/// NTFS or ext file system. Without its password, nobody can tell that it exists. Options without `hidden` in their
/// names, except --size and --quick, then apply to opening the outer volume.
///
/// With --format eCryptfs, gocryptfs or Cryptomator, a new empty encrypted folder is created.
///
/// Sizes are bytes, or a number with K, M, G, T or KiB, MiB … (powers of 1024) or KB, MB … (powers of 1000).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger create --size 100M --filesystem exfat secrets.hc
  claviger create --size 1G --format LUKS2 --filesystem ext4 --label photos photos.luks
  claviger create --size 10G --format BitLocker --filesystem ntfs stick.img
  claviger create --size 10G --format BitLocker --to-go --recovery-password-file stick.txt stick.img
  claviger create --size 1G --format TrueCrypt --filesystem fat secrets.tc
  claviger create --size 1G --cipher AES-Twofish-Serpent --hash Whirlpool --pim 500 secrets.hc
  claviger create --hidden --size 20M secrets.hc
  claviger create --format eCryptfs secrets
  claviger create --force --for rbd rbd:volumes/photos
  claviger create --list")]
pub struct Args {
    /// The file to create, or a block device
    #[arg(value_name = "VOLUME", required_unless_present = "list")]
    pub path: Option<PathBuf>,

    /// Size of the whole file, header included: 100M, 1.5GiB, 2GB. Rounded down to whole sectors of 512 bytes
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,

    /// Format of the volume, or eCryptfs, gocryptfs or Cryptomator for a folder; see --list [default: VeraCrypt]
    #[arg(long, value_name = "NAME")]
    pub format: Option<String>,

    /// Create a volume that PROGRAM can open, too: LUKS2, or LUKS1 with --format
    #[arg(long = "for", value_name = "PROGRAM", conflicts_with_all = ["hidden", "header", "integrity", "home", "to_go"])]
    pub made_for: Option<Program>,

    /// Do not fill the volume. Faster, but reveals which parts are in use, and old contents stay readable
    #[arg(long)]
    pub quick: bool,

    #[command(flatten)]
    pub overwrite: Overwrite,

    /// List the formats with their ciphers and hashes, the defaults first
    #[arg(long, conflicts_with_all = ["path", "size", "cipher", "hash", "pim", "quick", "force", "hidden"])]
    pub list: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Create this file system in the volume. Needs mkfs.ext4, mkfs.xfs and so on. BitLocker takes ntfs, exfat or fat
    #[arg(long, value_name = "KIND", help_heading = "File system")]
    pub filesystem: Option<FileSystem>,

    /// Label of the file system, and of a LUKS2 or BitLocker volume
    #[arg(long, value_name = "TEXT", help_heading = "File system")]
    pub label: Option<String>,

    #[command(flatten)]
    pub credentials: CredentialArgs,

    /// Cipher or cascade; see --list
    #[arg(long, value_name = "NAME", help_heading = "Encryption")]
    pub cipher: Option<String>,

    /// Size of the volume key, in bits, if the format has several
    #[arg(long, value_name = "BITS", help_heading = "Encryption")]
    pub key_size: Option<u32>,

    /// Size of an encryption sector, in bytes, where the format has several
    #[arg(long, value_name = "BYTES", help_heading = "Encryption")]
    pub sector_size: Option<u32>,

    /// Integrity protection: hmac-sha256, hmac-sha512, aes-gcm-random, aes-ccm-random, chacha20-poly1305, aegis128-random; or, as in
    /// cryptsetup, aead or poly1305 with a --cipher. LUKS2 only
    #[arg(long, value_name = "NAME", help_heading = "Encryption")]
    pub integrity: Option<String>,

    /// Hash of the key derivation; see --list
    #[arg(long, value_name = "NAME", help_heading = "Key derivation")]
    pub hash: Option<String>,

    /// PIM of a VeraCrypt volume, for more or fewer iterations; needed each time the volume is opened
    #[arg(long, value_name = "N", help_heading = "Key derivation")]
    pub pim: Option<u32>,

    #[command(flatten)]
    pub cost: CostArgs,

    #[command(flatten)]
    pub layout: LayoutArgs,

    #[command(flatten)]
    pub hidden: HiddenVolumeArgs,

    #[command(flatten)]
    pub protectors: ProtectorArgs,

    /// Create a new key file for a loop-AES volume, encrypted by gpg with the password. Never overwrites a file
    #[arg(long, value_name = "FILE", conflicts_with = "keyfiles", help_heading = "Key file of gpg")]
    pub fresh_keyfile: Option<PathBuf>,

    /// Do not encrypt the new key file: it alone opens the volume
    #[arg(long, requires = "fresh_keyfile", conflicts_with = "password", help_heading = "Key file of gpg")]
    pub unencrypted_keyfile: bool,

    /// Set up an encrypted home folder in VOLUME, as ecryptfs-setup-private does: .Private, .ecryptfs with a random
    /// passphrase that the password unwraps, and Private as mount point. eCryptfs only
    #[arg(long, conflicts_with_all = ["cipher", "key_size"], help_heading = "Encrypted folder")]
    pub home: bool,

    /// Prepare the plain folder VOLUME for `mount --reverse`, which shows it encrypted, for backups. Its files stay as they
    /// are. gocryptfs only
    #[arg(long, conflicts_with = "home", help_heading = "Encrypted folder")]
    pub reverse: bool,
}

/// Where the header and the data are, and what the header says besides keys.
#[derive(clap::Args)]
#[command(next_help_heading = "Header and layout", end_heading())]
pub struct LayoutArgs {
    /// Subsystem, a second label. LUKS2 only
    #[arg(long, value_name = "TEXT")]
    pub subsystem: Option<String>,

    /// UUID [default: random]
    #[arg(long, value_name = "UUID")]
    pub uuid: Option<String>,

    /// Put the header into this new file, leaving only data in the volume
    #[arg(long, value_name = "FILE")]
    pub header: Option<PathBuf>,

    /// Offset of the data: 16M, 4M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub offset: Option<u64>,

    /// Size of one copy of the header: 16K to 4M. LUKS2 only
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub metadata_size: Option<u64>,

    /// Size of the keyslots area: up to 128M. LUKS2 only
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub keyslots_size: Option<u64>,

    /// Put a discovery volume in front, whose text tells any system what the volume is. BitLocker only
    #[arg(long)]
    pub to_go: bool,
}

/// Options for the hidden volume.
#[derive(clap::Args)]
#[command(next_help_heading = "Hidden volume", end_heading())]
pub struct HiddenVolumeArgs {
    /// Create a hidden volume inside VOLUME, as large as is safe or --size. Overwrites the file system's free space
    /// there, including any existing hidden volume
    #[arg(long)]
    pub hidden: bool,

    /// Cipher or cascade of the hidden volume; see --list
    #[arg(long, value_name = "NAME", requires = "hidden")]
    pub hidden_cipher: Option<String>,

    #[command(flatten)]
    pub inner: HiddenArgs,
}

impl Args {
    /// Refuses options that do not apply to a new folder.
    pub fn check_for_folder(&self) -> Result<()> {
        let cost = self.cost.cost()?;
        let spec = Spec {
            hash: self.hash.as_deref(),
            pim: self.pim,
            cost,
            integrity: self.integrity.as_deref(),
            uuid: self.layout.uuid.as_deref(),
            label: self.label.as_deref(),
            subsystem: self.layout.subsystem.as_deref(),
            data_offset: self.layout.offset,
            metadata_size: self.layout.metadata_size,
            keyslots_size: self.layout.keyslots_size,
            sector_size: self.sector_size,
            discovery: self.layout.to_go,
            ..Spec::default()
        };
        let refused = spec.parameters().first().map(|parameter| (true, parameter.name()));
        let flags = [
            (self.size.is_some(), "size"),
            (self.quick, "--quick"),
            (self.overwrite.force, "--force"),
            (self.filesystem.is_some(), "file system"),
            (self.layout.header.is_some(), "detached header"),
            (self.fresh_keyfile.is_some(), "key file"),
            (!self.protectors.parameters().is_empty(), "recovery password or startup key"),
            (self.credentials.gives_volume_key(), "volume key"),
        ];
        takes_no("a new folder", refused.into_iter().chain(flags))
    }

    /// The options needed to open the folder again, or new files would be encrypted differently.
    pub fn opened_with(&self) -> Vec<String> {
        let cipher = self.cipher.as_ref().map(|cipher| format!("--cipher={cipher}"));
        let key_size = self.key_size.map(|bits| format!("--key-size={bits}"));
        cipher.into_iter().chain(key_size).collect()
    }
}
