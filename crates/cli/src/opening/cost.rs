//! Options for the cost of deriving a key from a new passphrase, for formats that let users choose it.

use claviger_engine::spec::Cost;
use claviger_engine::{Error, Result};

use crate::terminal::end_heading::EndHeading;
use crate::terminal::size;

/// The cost of deriving a key from a new passphrase.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Key derivation", end_heading())]
pub struct CostArgs {
    /// Key derivation: argon2id, argon2i or pbkdf2 (LUKS1: only pbkdf2)
    #[arg(long, value_name = "NAME")]
    kdf: Option<String>,

    /// Target time of one key derivation on this machine, in milliseconds
    #[arg(long, value_name = "MS", conflicts_with = "iterations")]
    iter_time: Option<u32>,

    /// Exact number of PBKDF2 iterations or Argon2 passes, instead of --iter-time
    #[arg(long, value_name = "N")]
    iterations: Option<u32>,

    /// Argon2 memory: 512M, 1GiB. With --iter-time, an upper limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    kdf_memory: Option<u64>,

    /// Argon2 parallel lanes: 1 to 4
    #[arg(long, value_name = "N")]
    kdf_parallel: Option<u32>,
}

/// The same for verbs that open one volume, or keyslot, and make another.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Key derivation of the new passphrase", end_heading())]
pub struct NewCostArgs {
    /// Key derivation: argon2id, argon2i or pbkdf2 (LUKS1: only pbkdf2)
    #[arg(long, value_name = "NAME")]
    new_kdf: Option<String>,

    /// Target time of one key derivation on this machine, in milliseconds
    #[arg(long, value_name = "MS", conflicts_with = "new_iterations")]
    new_iter_time: Option<u32>,

    /// Exact number of PBKDF2 iterations or Argon2 passes, instead of --iter-time
    #[arg(long, value_name = "N")]
    new_iterations: Option<u32>,

    /// Argon2 memory: 512M, 1GiB. With --iter-time, an upper limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    new_kdf_memory: Option<u64>,

    /// Argon2 parallel lanes: 1 to 4
    #[arg(long, value_name = "N")]
    new_kdf_parallel: Option<u32>,
}

/// The cost for a passphrase that nobody can guess because it is a key.
pub const CHEAPEST: Cost<'_> =
    Cost { kdf: Some("pbkdf2"), iterations: Some(1000), time_ms: None, memory_kib: None, lanes: None };

impl CostArgs {
    /// The cost for the engine.
    ///
    /// # Errors
    /// `Misuse` for a memory size that does not fit into a header.
    pub fn cost(&self) -> Result<Cost<'_>> {
        Ok(Cost {
            kdf: self.kdf.as_deref(),
            time_ms: self.iter_time,
            iterations: self.iterations,
            memory_kib: self.kdf_memory.map(kib).transpose()?,
            lanes: self.kdf_parallel,
        })
    }
}

impl NewCostArgs {
    /// The cost for the engine.
    ///
    /// # Errors
    /// `Misuse` for a memory size that does not fit into a header.
    pub fn cost(&self) -> Result<Cost<'_>> {
        Ok(Cost {
            kdf: self.new_kdf.as_deref(),
            time_ms: self.new_iter_time,
            iterations: self.new_iterations,
            memory_kib: self.new_kdf_memory.map(kib).transpose()?,
            lanes: self.new_kdf_parallel,
        })
    }
}

fn kib(bytes: u64) -> Result<u32> {
    u32::try_from(bytes / 1024)
        .map_err(|_| Error::misuse(format!("{} is more than Argon2 supports", size::exact(bytes))))
}
