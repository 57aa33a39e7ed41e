//! Copies the plaintext of a volume to a new file: `cargo run -p claviger-engine --example read VOLUME COPY`.
//!
//! The passphrase is the first line of standard input.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use claviger_engine::{Credential, Error, Opening, Pool, Result, Secret, Store, Unlock};

/// Bytes read at a time: enough for several threads to share.
const BUFFER: u64 = 4 << 20;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [volume, copy] = &args[..] else { return Err(Error::misuse("usage: read VOLUME COPY <PASSPHRASE")) };
    read(Path::new(volume), Path::new(copy), passphrase()?)
}

/// The first line of standard input, without its newline.
fn passphrase() -> io::Result<Secret> {
    // The buffer of io::stdin() would keep it and never be wiped.
    let mut line = Secret::zeroed(4096);
    let len = File::open("/dev/stdin")?.read(&mut line)?;
    let end = line[..len].iter().position(|byte| *byte == b'\n').unwrap_or(len);
    Ok(Secret::copy_from(&line[..end]))
}

/// Copies the plaintext of `volume` to the new file `copy`, which nobody else can read.
pub fn read(volume: &Path, copy: &Path, passphrase: Secret) -> Result<()> {
    let locked = Opening::path(volume).find()?;
    let credentials = [Credential::Passphrase(passphrase)];
    let opened = locked.unlock(&Unlock::with(&credentials))?.bytes()?;
    eprintln!("{}, {}: {} bytes", opened.facts.format, opened.facts.cipher, opened.volume.len());
    opened.warnings.iter().for_each(|warning| eprintln!("{warning}"));

    let volume = opened.volume.with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO)));
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy)?;
    let mut buffer = vec![0; volume.len().min(BUFFER) as usize];
    let mut offset = 0;
    while offset < volume.len() {
        let part = &mut buffer[..(volume.len() - offset).min(BUFFER) as usize];
        volume.read_at(offset, part)?;
        out.write_all(part)?;
        offset += part.len() as u64;
    }
    Ok(out.sync_all()?)
}
