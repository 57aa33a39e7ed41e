//! Ways into parsers that nothing else reaches, for the fuzz targets of this project. No promise is made about them.

use crate::file_formats::ecryptfs;
use crate::file_formats::efs::EfsInfo;
use crate::filesystems::ntfs;
use crate::formats::{bitlocker, filevault2, loopaes, luks2, plain, truecrypt};
use crate::private_keys::{self, dpapi};
use crate::{clevis, logical_volumes, tpm2};

/// Reads a header of TrueCrypt or VeraCrypt that has been decrypted: up to 448 bytes.
pub fn truecrypt_header(bytes: &[u8]) {
    truecrypt::fuzz_header(bytes);
}

/// Reads blocks of FileVault 2's metadata that have been decrypted, 8192 bytes each.
pub fn filevault2_metadata(bytes: &[u8]) {
    filevault2::fuzz_metadata(bytes);
}

/// Reads a key file of loop-AES that is plain text.
pub fn loopaes_keyfile(bytes: &[u8]) {
    loopaes::fuzz_keyfile(bytes);
}

/// Reads a key file of cryptmount's own kind.
pub fn cryptmount_keyfile(bytes: &[u8]) {
    plain::fuzz_keyfile(bytes);
}

/// Reads the metadata of a LUKS2 volume that is being reencrypted, which are JSON, and works out its state.
pub fn luks2_reencryption(json: &[u8]) {
    luks2::reencrypt::fuzz_metadata(json);
}

/// Reads a metadata block of BitLocker, its protectors and where they say things are.
pub fn bitlocker_metadata(bytes: &[u8]) {
    bitlocker::fuzz_metadata(bytes);
}

/// Reads what records encryption on write in BitLocker volumes: a volume that begins with it.
pub fn bitlocker_on_write(bytes: &[u8]) {
    bitlocker::fuzz_on_write(bytes);
}

/// Reads a startup key's file.
pub fn bitlocker_startup_key(bytes: &[u8]) {
    bitlocker::fuzz_startup_key(bytes);
}

/// Reads a file in which a passphrase of eCryptfs is wrapped.
pub fn ecryptfs_wrapped(bytes: &[u8]) {
    ecryptfs::fuzz_wrapped(bytes);
}

/// Reads what says for whom a file of NTFS is encrypted, and writes it.
pub fn efs_info(bytes: &[u8]) {
    let Ok(info) = EfsInfo::parse(bytes) else { return };
    let _ = info.for_whom();
    let again = EfsInfo::parse(&info.to_bytes()).expect("what is written is whole");
    assert!(again == info, "what is written reads back");
}

/// Decompresses units of NTFS of both kinds of ends.
pub fn lznt1(bytes: &[u8]) {
    for size in [512, 64 << 10] {
        let _ = ntfs::decompress(bytes, &mut vec![0; size]);
    }
}

/// Reads keys and certificates: PFX, PEM, and DER of each kind.
pub fn private_keys(bytes: &[u8]) {
    private_keys::fuzz(bytes);
}

/// Reads files of Windows' key store, and what is encrypted in them.
pub fn dpapi(bytes: &[u8]) {
    dpapi::fuzz(bytes);
}

/// Reads tokens of systemd and clevis, which are JSON, and a file of signatures for a TPM.
pub fn tokens(json: &[u8]) {
    let Ok(serde_json::Value::Object(token)) = serde_json::from_slice(json) else { return };
    let _ = clevis::Jwe::parse(&token);
    let _ = clevis::Advertisement::parse(json);
    let Ok(mut envelope) = tpm2::Envelope::parse(&token) else { return };
    let _ = envelope.take_signatures(json);
    if let Ok(again) = tpm2::Envelope::parse(&envelope.token()) {
        assert_eq!(again.blob, envelope.blob, "what is written reads back");
    }
}

/// Seals and unseals with a TPM that answers with these bytes: before each answer its length, in two bytes.
pub fn tpm2_answers(bytes: &[u8]) {
    tpm2::fuzz_answers(bytes);
}

/// Reads the metadata of LVM2 that are text, and checks where they let logical volumes be.
pub fn lvm2_metadata(text: &[u8]) {
    logical_volumes::fuzz_metadata(text);
}
