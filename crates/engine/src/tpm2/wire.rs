//! TPM commands and responses: numbers are big-endian, and variable fields begin with their length (TCG, TPM 2.0 Library, Part 2).

use std::io;

use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// The longest command and response: no TPM has a larger limit (`TPM2_PT_MAX_COMMAND_SIZE` is at most 4096).
pub const LONGEST: usize = 4096;

/// A command under construction. Up to the size of a command the buffer does not move, so no copies of secrets stay behind. Wiped
/// on drop.
pub struct Bytes(Zeroizing<Vec<u8>>);

impl Bytes {
    pub fn new() -> Self {
        Self(Zeroizing::new(Vec::with_capacity(LONGEST)))
    }

    pub fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends bytes with their length in front.
    pub fn sized(self, bytes: &[u8]) -> Self {
        self.u16(bytes.len() as u16).raw(bytes)
    }

    /// Appends what `inner` writes, with its length in front.
    pub fn within(self, inner: impl FnOnce(Self) -> Self) -> Self {
        let at = self.0.len();
        let mut all = inner(self.u16(0));
        let len = (all.0.len() - at - 2) as u16;
        all.0[at..at + 2].copy_from_slice(&len.to_be_bytes());
        all
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Reads fields from the front.
#[derive(Clone, Copy)]
pub struct WireReader<'a>(pub &'a [u8]);

impl<'a> WireReader<'a> {
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into().expect("two bytes")))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    /// Reads a field with its length in front.
    pub fn sized(&mut self) -> Result<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }

    /// Fails if data are left.
    pub fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(odd("it has extra data")) }
    }
}

fn cut_off() -> Error {
    odd("it is cut off")
}

/// The error for invalid data from a TPM.
pub fn odd(why: &str) -> Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the TPM's data cannot be read: {why}")).into()
}
