//! Error messages for TPM response codes (TCG, TPM 2.0 Library, Part 2, section 6.6).

use std::io;

use crate::advice::Advice;
use crate::error::{Error, ErrorKind};

/// The TPM is busy: send the command again.
pub const AGAIN: [u32; 3] = [0x908, 0x90a, 0x922];

const OBJECT_MEMORY: u32 = 0x902;
const SESSION_MEMORY: u32 = 0x903;
const LOCKOUT: u32 = 0x921;
// Codes with bit 7 set. Other bits tell which parameter, handle or session is meant.
const FORMAT_1: u32 = 0x080;
const AUTH_FAIL: u32 = 0x08e;
const HANDLE: u32 = 0x08b;
const SIGNATURE: u32 = 0x09b;
const POLICY_FAIL: u32 = 0x09d;
const INTEGRITY: u32 = 0x09f;
const BAD_AUTH: u32 = 0x0a2;

/// The code without the bits for parameter, handle or session.
fn kind(code: u32) -> u32 {
    if code & FORMAT_1 != 0 { code & 0xbf } else { code }
}

/// The error for a response code.
pub fn failure(code: u32) -> Error {
    let refused = |what: &str, hint: &str| Error::new(ErrorKind::WrongCredential(what.into())).hint(hint);
    match kind(code) {
        LOCKOUT => refused(
            "the TPM is locked after too many wrong PINs",
            "Wait until it accepts PINs again, possibly for hours, or open the volume with a passphrase or recovery \
             key.",
        ),
        AUTH_FAIL | BAD_AUTH => refused("wrong PIN", "After a few wrong PINs, the TPM locks for a while."),
        POLICY_FAIL => other_state("PCRs differ from when this was sealed".into()),
        INTEGRITY | HANDLE => refused(
            "another TPM sealed it, or this one was cleared since",
            "Open the volume with a passphrase or recovery key, and seal it anew.",
        )
        .advise(Advice::Reseal),
        SIGNATURE => refused(
            "the signature of the TPM's policy is wrong",
            "Check that the signature file is for \
             this volume's key.",
        ),
        OBJECT_MEMORY | SESSION_MEMORY => Error::from(io::Error::other("the TPM has no room left"))
            .hint("Remove leftovers of other programs with `tpm2_flushcontext -t` and `-l`."),
        kind => io::Error::other(format!("the TPM failed with code {code:#05x} ({kind:#05x})")).into(),
    }
}

/// The error if the machine is not in the state in which the TPM unseals; `what` says how it differs.
pub fn other_state(what: String) -> Error {
    let hint = "This is normal after an update of the firmware, boot loader or their settings. Open the volume with a \
                passphrase or recovery key, and seal it anew.";
    Error::new(ErrorKind::WrongCredential(what)).hint(hint).advise(Advice::Reseal)
}
