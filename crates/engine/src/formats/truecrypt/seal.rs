//! Encrypts headers, each with a salt of its own.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use claviger_crypto::pool::{Pool, for_each_piece};
use claviger_crypto::secret::wipe_stack;
use claviger_crypto::{Acceleration, Secret};

use super::header;
use super::kdfs::Derivation;
use super::suites::{Mode, SharedKeys, Suite};
use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// The cipher, key derivation and password that headers are encrypted with.
pub(super) struct Seal<'a> {
    pub suite: &'static Suite,
    pub mode: Mode,
    pub derivation: Derivation,
    /// The passphrase with the keyfiles mixed in.
    pub password: &'a [u8],
    /// The memory limit of the key derivation, in bytes. `None` means as much as is available.
    pub memory: Option<u64>,
    /// Returns whether the caller has cancelled.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Seal<'_> {
    /// Returns the header `plain`, encrypted with a new salt: [`header::SIZE`] bytes.
    ///
    /// # Errors
    /// `Cancelled`, `TooLittleMemory`, `Io`.
    pub fn close(&self, plain: &[u8]) -> Result<Vec<u8>> {
        let mut salt = [0; header::SALT];
        random::fill(&mut salt)?;
        let key = self.key(&salt)?;
        let keys = SharedKeys::new(&key, Acceleration::On);
        let mut sealed = Secret::copy_from(plain);
        sealed[..header::SALT].copy_from_slice(&salt);
        self.suite.encrypt_header(self.mode, &keys, &mut sealed[header::SALT..]);
        // The volume depends on these bytes: errors of memory or the processor must show before anything is written.
        let mut back = Secret::copy_from(&sealed);
        self.suite.decrypt_header(self.mode, &keys, &mut back[header::SALT..]);
        wipe_stack();
        if !Secret::copy_from(&back[header::SALT..]).same_as(&plain[header::SALT..]) {
            return Err(Error::from(std::io::Error::other("the new header does not decrypt to what was encrypted")));
        }
        Ok(sealed.to_vec())
    }

    fn key(&self, salt: &[u8]) -> Result<Secret> {
        let mut key = Secret::zeroed(self.derivation.output(self.suite.key_len(self.mode)));
        let go_on = || !(self.cancelled)();
        let piece = self.derivation.piece(key.len());
        let failed = Mutex::new(None);
        let pool = Pool::for_this_machine(Duration::from_micros(50));
        for_each_piece(&pool, &mut key, piece, |at, out| {
            if let Err(error) = self.derivation.derive(self.password, salt, at / piece, out, self.memory, &go_on) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            wipe_stack();
        });
        if (self.cancelled)() {
            return Err(ErrorKind::Cancelled.into());
        }
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(key),
        }
    }
}
