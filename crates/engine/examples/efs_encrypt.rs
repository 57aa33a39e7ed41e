//! Encrypts a file for a certificate, in a folder that ntfs-3g has mounted with `efs_raw`: `cargo run -p claviger-engine --example
//! efs_encrypt FOLDER NAME CERTIFICATE [aes-256 | 3des | desx]`.

use std::ffi::OsStr;
use std::path::Path;

use claviger_crypto::modes::efs::EfsCipher;
use claviger_engine::file_formats::efs::{self, Place, Recipient};
use claviger_engine::private_keys;
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use claviger_engine::trees::host::HostFolder;
use claviger_engine::{Error, Result, Secret};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = || Error::misuse("usage: efs_encrypt FOLDER NAME CERTIFICATE [aes-256 | 3des | desx]");
    let [folder, name, certificate, rest @ ..] = &args[..] else { return Err(usage()) };
    let cipher = match rest.first().map_or("aes-256", String::as_str) {
        "aes-256" => EfsCipher::Aes256,
        "3des" => EfsCipher::TripleDes,
        "desx" => EfsCipher::Desx,
        _ => return Err(usage()),
    };
    encrypt(Path::new(folder), OsStr::new(name), Path::new(certificate), cipher)
}

/// Encrypts the file `name` in `folder` for the owner of the certificate in a PEM file.
pub fn encrypt(folder: &Path, name: &OsStr, certificate: &Path, cipher: EfsCipher) -> Result<()> {
    let read = private_keys::read_file(certificate, &mut || Ok(Secret::zeroed(0)))?;
    let certificate = read.certificates.first().ok_or_else(|| Error::misuse("there is no certificate in it"))?;
    let folder = HostFolder::open(folder, Access::ReadWrite)?;
    let place = Place { tree: &folder, folder: folder.root(), name, size: None };
    efs::encrypt(place, &[Recipient::of(certificate)?], &[], cipher)
}
