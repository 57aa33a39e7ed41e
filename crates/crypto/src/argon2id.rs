//! Argon2id (RFC 9106, version 0x13), over the crate `argon2`, in memory that is kept and wiped as all secrets are.

use std::fmt;

use argon2::{Algorithm, Argon2, AssociatedData, Block, ParamsBuilder, Version};

use crate::secret::{Secret, wipe_stack};

/// What a derivation costs, and what goes into it beside password and salt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    /// Memory in KiB: 8 for each lane at least.
    pub memory_kib: u32,
    /// Passes over the memory: 1 at least.
    pub passes: u32,
    /// Lanes, which could be filled in parallel: 1 to 16,777,215.
    pub lanes: u32,
    /// A key of the one who derives, RFC 9106's K. No disk format has one.
    pub secret: &'a [u8],
    /// Associated data, RFC 9106's X, of at most 32 bytes. No disk format has any.
    pub data: &'a [u8],
}

/// Why nothing was derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is not so much memory.
    TooLittleMemory {
        /// Bytes needed.
        needed: u64,
        /// Bytes that can be had.
        available: u64,
    },
    /// RFC 9106 has no such parameters, and why.
    Parameters(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLittleMemory { needed, available } => {
                write!(f, "Argon2id needs {needed} bytes of memory, {available} can be had")
            }
            Self::Parameters(why) => write!(f, "no parameters of Argon2id: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl Params<'_> {
    /// Bytes of memory that a derivation needs.
    pub fn memory(&self) -> u64 {
        u64::from(self.memory_kib) << 10
    }

    /// Fills `out`, of 4 bytes at least, from the password and a salt of at least 8 bytes. Once begun it cannot be
    /// cancelled. `available` is how many bytes of memory it may take: more is refused before any is touched, for a system
    /// that promises more than it has kills whoever takes it at its word.
    ///
    /// # Errors
    /// `TooLittleMemory`, also if the system refuses what is available; `Parameters`.
    pub fn derive(&self, password: &[u8], salt: &[u8], available: u64, out: &mut [u8]) -> Result<(), Error> {
        let argon2 = self.checked(out.len())?;
        let needed = self.memory();
        if needed > available {
            return Err(Error::TooLittleMemory { needed, available });
        }
        let memory = usize::try_from(needed).ok().and_then(Secret::try_zeroed);
        let mut memory = memory.ok_or(Error::TooLittleMemory { needed, available: 0 })?;
        // SAFETY: a block is 128 integers without padding, of which all bytes are values.
        let (before, blocks, _) = unsafe { memory.align_to_mut::<Block>() };
        assert!(before.is_empty(), "secrets begin on a page border");
        let derived = argon2.hash_password_into_with_memory(password, salt, out, blocks);
        wipe_stack();
        derived.map_err(|e| Error::Parameters(e.to_string()))
    }

    fn checked(&self, len: usize) -> Result<Argon2<'_>, Error> {
        let wrong = |e: argon2::Error| Error::Parameters(e.to_string());
        let mut params = ParamsBuilder::new();
        params.m_cost(self.memory_kib).t_cost(self.passes).p_cost(self.lanes).output_len(len);
        params.data(AssociatedData::new(self.data).map_err(wrong)?);
        let params = params.build().map_err(wrong)?;
        Argon2::new_with_secret(self.secret, Algorithm::Argon2id, Version::V0x13, params).map_err(wrong)
    }
}
