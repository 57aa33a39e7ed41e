//! Ways into parsers that nothing else reaches, for the fuzz targets of this project. No promise is made about them.

use crate::formats::{loopaes, plain, truecrypt};

/// Reads a header of TrueCrypt or VeraCrypt that has been decrypted: up to 448 bytes.
pub fn truecrypt_header(bytes: &[u8]) {
    truecrypt::fuzz_header(bytes);
}

/// Reads a key file of loop-AES that is plain text.
pub fn loopaes_keyfile(bytes: &[u8]) {
    loopaes::fuzz_keyfile(bytes);
}

/// Reads a key file of cryptmount's own kind.
pub fn cryptmount_keyfile(bytes: &[u8]) {
    plain::fuzz_keyfile(bytes);
}
