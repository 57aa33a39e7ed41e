//! Error messages for the status of a FIDO2 key's answer (CTAP 2.1, section 8.2).

use std::io;

use crate::error::{Error, ErrorKind};

pub const NO_CREDENTIALS: u8 = 0x2e;

const OPERATION_DENIED: u8 = 0x27;
const KEY_STORE_FULL: u8 = 0x28;
const UNSUPPORTED_OPTION: u8 = 0x2b;
const KEEPALIVE_CANCEL: u8 = 0x2d;
const USER_ACTION_TIMEOUT: u8 = 0x2f;
const PIN_INVALID: u8 = 0x31;
const PIN_BLOCKED: u8 = 0x32;
const PIN_AUTH_BLOCKED: u8 = 0x34;
const PIN_NOT_SET: u8 = 0x35;
pub const PIN_REQUIRED: u8 = 0x36;
const PIN_POLICY_VIOLATION: u8 = 0x37;
const ACTION_TIMEOUT: u8 = 0x3a;
const PRESENCE_REQUIRED: u8 = 0x3b;
const VERIFICATION_BLOCKED: u8 = 0x3c;
const VERIFICATION_INVALID: u8 = 0x3f;

const NOT_ENROLLED: &str = "this FIDO2 key was not enrolled for it, or was reset since";
const WRONG_PIN: &str = "wrong PIN for the FIDO2 key";
const BLOCKED: &str = "the FIDO2 key is blocked after too many wrong PINs";
const UNPLUG: &str = "the FIDO2 key accepts no more PINs until it is plugged in again";
const PIN_DEMANDED: &str = "the FIDO2 key demands its PIN";

/// The error for a status.
pub fn failure(status: u8) -> Error {
    let refused = |what: &str, hint: &str| Error::new(ErrorKind::WrongCredential(what.into())).hint(hint);
    let elsewhere = "Open the volume with a passphrase or recovery key.";
    match status {
        NO_CREDENTIALS => not_enrolled(),
        PIN_INVALID => wrong_pin(None),
        PIN_BLOCKED => refused(BLOCKED, elsewhere),
        PIN_AUTH_BLOCKED => refused(
            UNPLUG,
            "Unplug it, plug it in again, and give the right PIN: a few more wrong ones block it for good.",
        ),
        PIN_NOT_SET => refused("the FIDO2 key has no PIN any more", elsewhere),
        PIN_REQUIRED => Error::misuse(PIN_DEMANDED)
            .hint("Omit --fido2-no-pin. If it has no PIN yet, set one: fido2-token -S DEVICE"),
        PIN_POLICY_VIOLATION => {
            refused("the FIDO2 key demands that its PIN be changed", "To change it: fido2-token -C DEVICE")
        }
        USER_ACTION_TIMEOUT | ACTION_TIMEOUT | PRESENCE_REQUIRED | OPERATION_DENIED => {
            refused("the FIDO2 key was not touched in time", "Try again, and touch it when it blinks.")
        }
        VERIFICATION_BLOCKED | VERIFICATION_INVALID => refused("the FIDO2 key did not recognise you", elsewhere),
        KEEPALIVE_CANCEL => ErrorKind::Cancelled.into(),
        KEY_STORE_FULL => io::Error::other("the FIDO2 key has no room left").into(),
        UNSUPPORTED_OPTION => Error::unsupported("one of these conditions with this FIDO2 key"),
        status => io::Error::other(format!("the FIDO2 key failed with status {status:#04x}")).into(),
    }
}

/// The error if the key did not make the credential.
pub fn not_enrolled() -> Error {
    Error::new(ErrorKind::WrongCredential(NOT_ENROLLED.into()))
        .hint("Plug in the key that was enrolled, or use a passphrase or recovery key.")
}

/// Whether this is the error of a key that did not make the credential: another key may have made it.
pub fn is_not_enrolled(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::WrongCredential(what) if what == NOT_ENROLLED)
}

/// Whether the key refused a PIN, so that the same PIN must not be tried again.
pub fn is_pin_refusal(error: &Error) -> bool {
    let ErrorKind::WrongCredential(what) = &error.kind else { return false };
    what.starts_with(WRONG_PIN) || [BLOCKED, UNPLUG].contains(&&**what)
}

/// Whether the key takes its PIN for a token that does not ask for one.
pub fn demands_pin(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::Misuse(what) if what == PIN_DEMANDED)
}

pub fn is_wrong_pin(error: &Error) -> bool {
    matches!(&error.kind, ErrorKind::WrongCredential(what) if what == WRONG_PIN)
}

/// The error for a wrong PIN, with the number of tries left, if it is known.
pub fn wrong_pin(left: Option<u64>) -> Error {
    let what = match left {
        None => WRONG_PIN.to_owned(),
        Some(0) => return failure(PIN_BLOCKED),
        Some(1) => format!("{WRONG_PIN}: 1 try left"),
        Some(left) => format!("{WRONG_PIN}: {left} tries left"),
    };
    Error::new(ErrorKind::WrongCredential(what)).hint("After the last wrong PIN, the key is blocked for good.")
}
