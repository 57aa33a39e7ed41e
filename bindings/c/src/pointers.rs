//! What is behind pointers of C that are no references: texts and buffers. A caller in C promises, by `claviger.h`, that a pointer is NULL
//! or points to what the header says, and that nobody changes that meanwhile. NULL is refused here.
#![allow(unsafe_code, reason = "what comes from C is pointers")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::slice;

use claviger_engine::Error;

use crate::missing;

/// A text that ends with a NUL.
pub fn string<'a>(pointer: *const c_char, what: &str) -> Result<&'a CStr, Error> {
    if pointer.is_null() {
        return Err(missing(what));
    }
    // SAFETY: it is not NULL; the caller in C promises that a text is there.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// `len` bytes to read.
pub fn bytes<'a>(pointer: *const c_void, len: usize) -> Result<&'a [u8], Error> {
    if !there(pointer, len)? {
        return Ok(&[]);
    }
    // SAFETY: it is not NULL, and `len` is that of an object; the caller in C promises that so many bytes are there.
    Ok(unsafe { slice::from_raw_parts(pointer.cast(), len) })
}

/// `len` bytes to write.
pub fn room<'a>(pointer: *mut c_void, len: usize) -> Result<&'a mut [u8], Error> {
    if !there(pointer, len)? {
        return Ok(&mut []);
    }
    // SAFETY: as in `bytes`, and the caller in C promises that nobody else uses them. What is in them is never read.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// Whether there are bytes at all.
fn there(pointer: *const c_void, len: usize) -> Result<bool, Error> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(false),
        (true, _) => Err(missing("buffer")),
        (false, _) if isize::try_from(len).is_err() => Err(Error::misuse("no buffer is that long")),
        (false, _) => Ok(true),
    }
}

/// Frees a text that was handed out.
pub fn free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: the caller in C promises that it is one of ours, and freed once.
        drop(unsafe { CString::from_raw(string) });
    }
}
