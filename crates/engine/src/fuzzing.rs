//! Direct access to internal parsers for this project's fuzz targets, without any promise of stability.

use std::sync::Arc;

use crate::file_formats::efs::EfsInfo;
use crate::file_formats::{cryptomator, ecryptfs, encfs, gocryptfs};
use crate::filesystems::ntfs;
use crate::formats::{bitlocker, filevault2, loopaes, luks2, plain, truecrypt};
use crate::private_keys::{self, dpapi};
use crate::store::Store;
use crate::{arrays, clevis, fido2, logical_volumes, tpm2};

/// Parses a decrypted header of TrueCrypt or VeraCrypt: up to 448 bytes.
pub fn truecrypt_header(bytes: &[u8]) {
    truecrypt::fuzz_header(bytes);
}

/// Assembles and reads an array of the one member in `store`.
pub fn raid_member(store: Arc<dyn Store>) {
    arrays::fuzz_member(store);
}

/// Parses decrypted metadata blocks of FileVault 2, 8192 bytes each.
pub fn filevault2_metadata(bytes: &[u8]) {
    filevault2::fuzz_metadata(bytes);
}

/// Parses a plaintext key file of loop-AES.
pub fn loopaes_keyfile(bytes: &[u8]) {
    loopaes::fuzz_keyfile(bytes);
}

/// Parses a key file in cryptmount's own format.
pub fn cryptmount_keyfile(bytes: &[u8]) {
    plain::fuzz_keyfile(bytes);
}

/// Parses the JSON metadata of a LUKS2 volume in reencryption, and derives its state.
pub fn luks2_reencryption(json: &[u8]) {
    luks2::reencrypt::fuzz_metadata(json);
}

/// Parses a metadata block of BitLocker, with its protectors and offsets.
pub fn bitlocker_metadata(bytes: &[u8]) {
    bitlocker::fuzz_metadata(bytes);
}

/// Parses a volume that begins with BitLocker's records of encryption on write.
pub fn bitlocker_on_write(bytes: &[u8]) {
    bitlocker::fuzz_on_write(bytes);
}

/// Parses the file of a startup key.
pub fn bitlocker_startup_key(bytes: &[u8]) {
    bitlocker::fuzz_startup_key(bytes);
}

/// Parses a file with a wrapped passphrase of eCryptfs.
pub fn ecryptfs_wrapped(bytes: &[u8]) {
    ecryptfs::fuzz_wrapped(bytes);
}

/// Parses the configuration of a gocryptfs folder, and a master key as gocryptfs prints it.
pub fn gocryptfs_config(bytes: &[u8]) {
    gocryptfs::fuzz_config(bytes);
}

/// Parses the configuration and the key file of a Cryptomator vault, and its keys as text.
pub fn cryptomator_vault(bytes: &[u8]) {
    cryptomator::fuzz_vault(bytes);
}

/// Parses the configuration of an EncFS folder, and with what it says each of its lines as a name and a target of a link.
pub fn encfs_config(bytes: &[u8]) {
    encfs::fuzz_config(bytes);
}

/// Parses the recipients of an EFS-encrypted file, and writes them.
pub fn efs_info(bytes: &[u8]) {
    let Ok(info) = EfsInfo::parse(bytes) else { return };
    let _ = info.for_whom();
    let again = EfsInfo::parse(&info.to_bytes()).expect("what is written is whole");
    assert!(again == info, "what is written reads back");
}

/// Decompresses NTFS compression units of the smallest and the largest size.
pub fn lznt1(bytes: &[u8]) {
    for size in [512, 64 << 10] {
        let _ = ntfs::decompress(bytes, &mut vec![0; size]);
    }
}

/// Parses keys and certificates: PFX, PEM, and each kind of DER.
pub fn private_keys(bytes: &[u8]) {
    private_keys::fuzz(bytes);
}

/// Parses files of Windows' key store, and their decrypted contents.
pub fn dpapi(bytes: &[u8]) {
    dpapi::fuzz(bytes);
}

/// Parses JSON tokens of systemd and clevis, and a PCR signature file.
pub fn tokens(json: &[u8]) {
    let Ok(serde_json::Value::Object(token)) = serde_json::from_slice(json) else { return };
    let _ = clevis::Jwe::parse(&token);
    let _ = clevis::Advertisement::parse(json);
    if let Ok(fido2) = fido2::Fido2Token::parse(&token) {
        assert_eq!(fido2::Fido2Token::parse(&fido2.token()).ok(), Some(fido2), "what is written reads back");
    }
    let Ok(mut envelope) = tpm2::Envelope::parse(&token) else { return };
    let _ = envelope.take_signatures(json);
    if let Ok(again) = tpm2::Envelope::parse(&envelope.token()) {
        assert_eq!(again.blob, envelope.blob, "what is written reads back");
    }
}

/// Seals and unseals with a TPM whose responses are these bytes: each response follows its length, in two bytes.
pub fn tpm2_answers(bytes: &[u8]) {
    tpm2::fuzz_answers(bytes);
}

/// Parses a TPM's event log, and guesses with it which PCR has changed.
pub fn tpm2_event_log(bytes: &[u8]) {
    tpm2::fuzz_event_log(bytes);
}

/// Enrolls with a FIDO2 key whose answers are these bytes, and asks it for secrets: each answer follows its length, in two bytes.
pub fn fido2_answers(bytes: &[u8]) {
    fido2::fuzz_answers(bytes);
}

/// Parses LVM2's metadata text, and checks where it places logical volumes.
pub fn lvm2_metadata(text: &[u8]) {
    logical_volumes::fuzz_metadata(text);
}
