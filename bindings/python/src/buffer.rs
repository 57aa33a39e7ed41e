//! The memory of Python's buffers, lent to threads that hold no lock of the interpreter.
#![allow(unsafe_code, reason = "a buffer of Python is a pointer")]

use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// The bytes of an object, which can be neither freed nor resized as long as this is held.
pub struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// Those of `object`, in one piece; to be written as well, if `write` says so.
    pub fn of(object: &Bound<'_, PyAny>, write: bool) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if write && buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer can only be read"));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not in one piece"));
        }
        Ok(Self(buffer))
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    pub fn bytes(&self) -> &[u8] {
        match self.len() {
            0 => &[],
            // SAFETY: the buffer is held, and so there, and in one piece. Whoever changes it from another thread meanwhile has what is
            // read be the old or the new, as with every file object of Python.
            len => unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), len) },
        }
    }

    pub fn room(&mut self) -> &mut [u8] {
        debug_assert!(!self.0.readonly(), "it was asked for in order to be written");
        match self.len() {
            0 => &mut [],
            // SAFETY: as in `bytes`, and it may be written. What is in it is never read.
            len => unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), len) },
        }
    }
}
