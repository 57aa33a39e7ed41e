//! Encrypted volumes for programs in C. `claviger.h` is made of this file's comments.
//! A pointer to what this library makes is an `Option` of a reference or of a `Box`, so that NULL is seen; `pointers.rs` has what is
//! behind all others.
#![allow(unsafe_code, reason = "names that C links: no block is unsafe here")]

mod pointers;

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

use claviger_bindings::{Job, NewVolume, Options, Secrets, Volume, check_secret};
use claviger_engine::{Error, Secret};

use crate::pointers::{bytes, room, string};

/// What a function returns that did not fail, and the code of an error: the exit status that the program would have.
#[repr(C)]
pub enum ClavigerCode {
    /// It is done.
    Done = 0,
    /// The call makes no sense: an unknown format, a range past the end, a NULL where there must be something.
    Misuse = 1,
    /// Nothing that was given opens the volume.
    WrongCredential = 2,
    /// It is no volume of that format, or of any known one.
    NotThisFormat = 3,
    /// It is damaged, or was cut short.
    Damaged = 4,
    /// It is known what it is, and that cannot be done.
    Unsupported = 5,
    /// A file or device cannot be read or written.
    Io = 6,
    /// Deriving the key takes more memory than there is.
    OutOfMemory = 7,
    /// claviger_cancel() was called.
    Cancelled = 8,
    /// Another process has it open.
    InUse = 9,
    /// A mistake of this library, which has told it on standard error.
    Internal = 10,
}

/// An option with a text. Paths are bytes of any encoding, all else is UTF-8.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum ClavigerText {
    /// The format: `LUKS2`. Without it, that is found out; claviger_create() makes VeraCrypt's.
    Format = 0,
    /// The file with the header, where it is detached.
    Header = 1,
    /// Only this hash; that of a new volume.
    Hash = 2,
    /// Only this cipher; that of a new volume.
    Cipher = 3,
    /// A keyfile, or a folder of them. It may be given several times.
    Keyfile = 4,
    /// A keyfile of the hidden volume that is to be protected. It may be given several times.
    HiddenKeyfile = 5,
    /// The logical volume of LVM2 that is inside: `GROUP/VOLUME` or `VOLUME`.
    LogicalVolume = 6,
    /// The label of a new volume.
    Label = 7,
    /// The key derivation function of a new volume: `argon2id`, `pbkdf2`.
    Kdf = 8,
}

/// An option with a number. Those that are yes or no are 1 or 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum ClavigerNumber {
    /// Whether it is opened for writing. Otherwise nothing is ever written.
    Writable = 0,
    /// The partition of the disk, counted from 1.
    Partition = 1,
    /// The PIM of VeraCrypt.
    Pim = 2,
    /// Only this keyslot.
    Keyslot = 3,
    /// Whether only backups of headers are tried.
    BackupHeader = 4,
    /// Whether what was cut short is opened for reading.
    Truncated = 5,
    /// Whether work is begun that takes more than five minutes for all keyslots, as a hostile header can ask for.
    AllowSlow = 6,
    /// The PIM of the hidden volume that is to be protected.
    HiddenPim = 7,
    /// Where the data begin, in bytes, for formats without a header.
    DataOffset = 8,
    /// Bits of the key, for formats without a header, and of a new volume.
    KeyBits = 9,
    /// Bytes of an encryption sector, for formats without a header, and of a new volume.
    SectorSize = 10,
    /// Whether a new volume is left as zeros where it is not used. Everybody then sees how much is.
    Quick = 11,
    /// Milliseconds that deriving a new volume's key is to take here.
    KdfTime = 12,
    /// Iterations of a new volume's key derivation, exactly.
    KdfIterations = 13,
    /// Memory of a new volume's key derivation, in KiB.
    KdfMemory = 14,
}

/// An option that is secret.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum ClavigerSecret {
    /// The password or passphrase, without a newline; BitLocker's recovery password as it is printed.
    Password = 0,
    /// The volume key itself.
    VolumeKey = 1,
    /// The password of the hidden volume in this one. A write that would damage it is refused, and from then on every write is.
    HiddenPassword = 2,
}

/// How a volume is opened or created.
pub struct ClavigerOptions {
    options: Options,
    new: NewVolume,
    secrets: Secrets,
    job: Job,
}

/// An open volume.
pub struct ClavigerVolume(Volume);

/// What went wrong.
pub struct ClavigerError {
    code: u8,
    message: CString,
    hint: Option<CString>,
}

/// Where a function says what went wrong.
type ErrorOut<'a> = Option<&'a mut MaybeUninit<*mut ClavigerError>>;

const TEXTS: &[ClavigerText] = {
    use ClavigerText::{Cipher, Format, Hash, Header, HiddenKeyfile, Kdf, Keyfile, Label, LogicalVolume};
    &[Format, Header, Hash, Cipher, Keyfile, HiddenKeyfile, LogicalVolume, Label, Kdf]
};

const NUMBERS: &[ClavigerNumber] = {
    use ClavigerNumber::*;
    &[
        Writable,
        Partition,
        Pim,
        Keyslot,
        BackupHeader,
        Truncated,
        AllowSlow,
        HiddenPim,
        DataOffset,
        KeyBits,
        SectorSize,
        Quick,
        KdfTime,
        KdfIterations,
        KdfMemory,
    ]
};

const SECRETS: &[ClavigerSecret] =
    &[ClavigerSecret::Password, ClavigerSecret::VolumeKey, ClavigerSecret::HiddenPassword];

/// The option that C has a number for: an enum of C may have any.
fn option<T: Copy>(all: &[T], which: c_int) -> Result<T, Error> {
    let found = usize::try_from(which).ok().and_then(|which| all.get(which));
    found.copied().ok_or_else(|| Error::misuse(format!("there is no option with the number {which}")))
}

fn text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

/// Runs `work` and stores its error in `error_out`. A panic becomes an error, too.
fn run_reporting<T>(error_out: ErrorOut<'_>, work: impl FnOnce() -> Result<T, Error>) -> Result<T, c_int> {
    let (code, error) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(e)) => (e.kind.code(), e),
        Err(_) => (ClavigerCode::Internal as u8, Error::misuse("a mistake of this library, told on standard error")),
    };
    if let Some(error_out) = error_out {
        let hint = error.to_try(ToString::to_string).map(text);
        let message = text(Error { hint: None, advice: None, ..error }.to_string());
        error_out.write(Box::into_raw(Box::new(ClavigerError { code, message, hint })));
    }
    Err(code.into())
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(ClavigerCode::Done as c_int)
}

fn missing(what: &str) -> Error {
    Error::misuse(format!("the {what} is NULL"))
}

/// What there must be.
fn needed<T>(given: Option<T>, what: &str) -> Result<T, Error> {
    given.ok_or_else(|| missing(what))
}

fn path_of<'a>(pointer: *const c_char) -> Result<&'a Path, Error> {
    string(pointer, "path").map(|it| Path::new(OsStr::from_bytes(it.to_bytes())))
}

fn as_json(
    json: Option<&mut MaybeUninit<*mut c_char>>,
    error_out: ErrorOut<'_>,
    work: impl FnOnce() -> Result<String, Error>,
) -> c_int {
    code(run_reporting(error_out, || {
        needed(json, "place for the text")?.write(text(work()?).into_raw());
        Ok(())
    }))
}

/// The version of this library. It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// New options, all of them as they usually are. claviger_options_free() frees them.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_options_new() -> Box<ClavigerOptions> {
    let (options, new) = (Options::default(), NewVolume::default());
    Box::new(ClavigerOptions { options, new, secrets: Secrets::default(), job: Job::default() })
}

/// Frees options, and wipes the secrets in them. NULL is none.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_options_free(options: Option<Box<ClavigerOptions>>) {
    drop(options);
}

/// Sets an option of claviger_text, of which a copy is kept.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_options_text(
    options: Option<&mut ClavigerOptions>,
    which: c_int,
    value: *const c_char,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let (ClavigerOptions { options, new, .. }, value) =
            (needed(options, "pointer to options")?, string(value, "text")?);
        let path = || OsStr::from_bytes(value.to_bytes()).into();
        let word = || value.to_str().map(str::to_owned).map_err(|_| Error::misuse("the text is not UTF-8"));
        match option(TEXTS, which)? {
            ClavigerText::Format => options.format = Some(word()?),
            ClavigerText::Header => options.header = Some(path()),
            ClavigerText::Hash => options.hash = Some(word()?),
            ClavigerText::Cipher => options.cipher = Some(word()?),
            ClavigerText::Keyfile => options.keyfiles.push(path()),
            ClavigerText::HiddenKeyfile => options.hidden_keyfiles.push(path()),
            ClavigerText::LogicalVolume => options.logical_volume = Some(word()?),
            ClavigerText::Label => new.label = Some(word()?),
            ClavigerText::Kdf => new.kdf = Some(word()?),
        }
        Ok(())
    };
    code(run_reporting(error, work))
}

/// Sets an option of claviger_number.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_options_number(
    options: Option<&mut ClavigerOptions>,
    which: c_int,
    value: u64,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let ClavigerOptions { options, new, .. } = needed(options, "pointer to options")?;
        let small = || u32::try_from(value).map(Some).map_err(|_| Error::misuse(format!("{value} is too large")));
        let flag = || match value {
            0 | 1 => Ok(value == 1),
            _ => Err(Error::misuse(format!("{value} is neither 0 nor 1"))),
        };
        match option(NUMBERS, which)? {
            ClavigerNumber::Writable => options.writable = flag()?,
            ClavigerNumber::Partition => options.partition = small()?,
            ClavigerNumber::Pim => options.pim = small()?,
            ClavigerNumber::Keyslot => options.keyslot = small()?,
            ClavigerNumber::BackupHeader => options.backup_header = flag()?,
            ClavigerNumber::Truncated => options.truncated = flag()?,
            ClavigerNumber::AllowSlow => options.allow_slow = flag()?,
            ClavigerNumber::HiddenPim => options.hidden_pim = small()?,
            ClavigerNumber::DataOffset => options.headerless.offset = Some(value),
            ClavigerNumber::KeyBits => (options.headerless.key_bits, new.key_bits) = (small()?, small()?),
            ClavigerNumber::SectorSize => (options.headerless.sector_size, new.sector_size) = (small()?, small()?),
            ClavigerNumber::Quick => new.quick = flag()?,
            ClavigerNumber::KdfTime => new.kdf_time_ms = small()?,
            ClavigerNumber::KdfIterations => new.kdf_iterations = small()?,
            ClavigerNumber::KdfMemory => new.kdf_memory_kib = small()?,
        }
        Ok(())
    };
    code(run_reporting(error, work))
}

/// Sets an option of claviger_secret: `len` bytes, which are copied to memory that is locked and wiped. The caller wipes his own.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_options_secret(
    options: Option<&mut ClavigerOptions>,
    which: c_int,
    value: *const c_void,
    len: usize,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let ClavigerOptions { secrets, .. } = needed(options, "pointer to options")?;
        check_secret(len)?;
        let secret = Some(Secret::copy_from(bytes(value, len)?));
        match option(SECRETS, which)? {
            ClavigerSecret::Password => secrets.password = secret,
            ClavigerSecret::VolumeKey => secrets.volume_key = secret,
            ClavigerSecret::HiddenPassword => secrets.hidden_password = secret,
        }
        Ok(())
    };
    code(run_reporting(error, work))
}

/// Ends what is done with these options, on whichever thread: it fails with `CLAVIGER_CODE_CANCELLED`, and so does all that is begun with
/// them later. May be called from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_cancel(options: Option<&ClavigerOptions>) {
    if let Some(ClavigerOptions { job, .. }) = options {
        job.cancel();
    }
}

/// Says in `json` what is at `path`, as a JSON object: `verdict` (`yes`, `possible` or `no`), `candidates` (formats), and what was seen. No
/// password is needed.
/// claviger_string_free() frees it.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_identify(
    path: *const c_char,
    json: Option<&mut MaybeUninit<*mut c_char>>,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    as_json(json, error, || claviger_bindings::identify(path_of(path)?))
}

/// Says in `json` why what is at `path` does not open, as a JSON object. With a password or keyfiles in the options they are tried, in
/// the forms that common mistakes give them, too. claviger_string_free() frees it.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_explain(
    path: *const c_char,
    options: Option<&ClavigerOptions>,
    json: Option<&mut MaybeUninit<*mut c_char>>,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let (path, ClavigerOptions { options, secrets, job, .. }) =
            (path_of(path)?, needed(options, "pointer to options")?);
        claviger_bindings::explain(path, options, secrets, job)
    };
    as_json(json, error, work)
}

/// Makes a volume of `size` bytes, headers included, in a new file, which nobody else can read. What exists is never overwritten.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_create(
    path: *const c_char,
    size: u64,
    options: Option<&ClavigerOptions>,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let (path, options) = (path_of(path)?, needed(options, "pointer to options")?);
        let ClavigerOptions { options, new, secrets, job } = options;
        claviger_bindings::create(path, &NewVolume { size, ..new.clone() }, options, secrets, job)
    };
    code(run_reporting(error, work))
}

/// Opens the volume in a file or block device; NULL if that fails. The options are not needed any more afterwards. The file is locked
/// while it is open: readers share it, a writer has it alone. claviger_close() closes it.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_open(
    path: *const c_char,
    options: Option<&ClavigerOptions>,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> Option<Box<ClavigerVolume>> {
    let work = || {
        let (path, ClavigerOptions { options, secrets, job, .. }) =
            (path_of(path)?, needed(options, "pointer to options")?);
        options.clone().find(path, false)?.volume(secrets, job)
    };
    run_reporting(error, work).ok().map(|volume| Box::new(ClavigerVolume(volume)))
}

/// Bytes of the plaintext; 0 for NULL, and in a process that was forked from the one that opened it.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_size(volume: Option<&ClavigerVolume>) -> u64 {
    needed(volume, "volume").and_then(|volume| volume.0.size()).unwrap_or(0)
}

/// Fills `buffer` with the `len` bytes at `offset`, all of them or it fails.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_read(
    volume: Option<&ClavigerVolume>,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let ClavigerVolume(volume) = needed(volume, "volume")?;
        volume.check(offset, len)?;
        volume.read_at(offset, room(buffer, len)?)
    };
    code(run_reporting(error, work))
}

/// Writes `len` bytes to `offset`, all of them or it fails. They are durable once claviger_flush() or claviger_close() has returned
/// `CLAVIGER_CODE_DONE`.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_write(
    volume: Option<&ClavigerVolume>,
    offset: u64,
    data: *const c_void,
    len: usize,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    let work = || {
        let ClavigerVolume(volume) = needed(volume, "volume")?;
        volume.check(offset, len)?;
        volume.write_at(offset, bytes(data, len)?)
    };
    code(run_reporting(error, work))
}

/// Makes all writes durable that have returned.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_flush(
    volume: Option<&ClavigerVolume>,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    code(run_reporting(error, || needed(volume, "volume")?.0.flush()))
}

/// Closes a volume and wipes its keys, once all writes are durable. It is closed also where that fails. NULL is none.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_close(
    volume: Option<Box<ClavigerVolume>>,
    error: Option<&mut MaybeUninit<*mut ClavigerError>>,
) -> c_int {
    code(run_reporting(error, move || volume.map_or(Ok(()), |volume| volume.0.flush())))
}

/// The code of an error; `CLAVIGER_CODE_DONE` for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_error_code(error: Option<&ClavigerError>) -> c_int {
    error.map_or(0, |error| error.code.into())
}

/// What is wrong, in a line, which lives as long as the error; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_error_message(error: Option<&ClavigerError>) -> *const c_char {
    error.map_or(ptr::null(), |error| error.message.as_ptr())
}

/// What to try, in whole sentences, which live as long as the error; NULL where nobody knows.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_error_hint(error: Option<&ClavigerError>) -> *const c_char {
    error.and_then(|error| error.hint.as_ref()).map_or(ptr::null(), |hint| hint.as_ptr())
}

/// Frees an error. NULL is none.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_error_free(error: Option<Box<ClavigerError>>) {
    drop(error);
}

/// Frees a text that claviger_identify() or claviger_explain() has made. NULL is none.
#[unsafe(no_mangle)]
pub extern "C" fn claviger_string_free(string: *mut c_char) {
    pointers::free(string);
}
