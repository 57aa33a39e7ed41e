//! Copies the plaintext of a volume to a new file, and never has its keys:
//! `cargo run -p claviger-serve --example key_process VOLUME PASSPHRASE_FILE COPY`.
//!
//! The program starts itself a second time. That process, the key process, reads the passphrase, enters its sandbox, unlocks over
//! the stores that the first one reads for it, and decrypts.

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use claviger_engine::key_process::KeyProcess;
use claviger_engine::key_process::volume::{KeylessLayout, Keys};
use claviger_engine::{Credential, Opening, Secret, Store, Unlock, Volume, memory};
use claviger_serve::key_process::{IoSide, KeySide, Terms, cage};

/// Bytes read at a time.
const BUFFER: u64 = 1 << 20;

/// What begins the command line of the key process.
const KEY_PROCESS: &str = "--key-process";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Either of the two processes.
pub fn main() -> Result<()> {
    let args: Vec<_> = env::args_os().skip(1).collect();
    match &args[..] {
        [key_process, volume, passphrase] if key_process == KEY_PROCESS => keep(volume.as_ref(), passphrase.as_ref()),
        [volume, passphrase, copy] => copy_out(volume.as_ref(), passphrase.as_ref(), copy.as_ref()),
        _ => Err("usage: key_process VOLUME PASSPHRASE_FILE COPY".into()),
    }
}

/// The process that opens the files. Copies the plaintext of `volume` to the new file `copy`.
pub fn copy_out(volume: &Path, passphrase: &Path, copy: &Path) -> Result<()> {
    // Before anything of the volume is read. The key process's two descriptors are its standard input and output.
    let (io_side, socket) = IoSide::new()?;
    let memory = io_side.memory().try_clone_to_owned()?;
    let mut command = Command::new(env::current_exe()?);
    command.arg(KEY_PROCESS).args([volume, passphrase]).stdin(socket).stdout(memory);
    let mut key_process = command.spawn()?;
    // What the command holds of the key process's ends would keep its end from being seen.
    drop(command);

    let stores = Opening::path(volume).stores()?;
    let Some(outline) = io_side.serve_until_open::<KeylessLayout>(&stores, &Terms::reading(&|| false))? else {
        return Err(format!("the key process has ended: {}", key_process.wait()?).into());
    };
    let asking: Arc<dyn KeyProcess> =
        Arc::new(io_side.opened(|| eprintln!("the key process has gone: nothing can be read"))?);
    let layout = outline.with_key_process(&asking, &stores.data)?;
    drop(asking);
    let volume = Volume::new(stores.data, layout);

    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy)?;
    let mut buffer = vec![0; volume.len().min(BUFFER) as usize];
    let mut offset = 0;
    while offset < volume.len() {
        let part = &mut buffer[..(volume.len() - offset).min(BUFFER) as usize];
        volume.read_at(offset, part)?;
        out.write_all(part)?;
        offset += part.len() as u64;
    }
    out.sync_all()?;
    // With the volume the key process is let go, wipes its keys and ends.
    drop(volume);
    let ended = key_process.wait()?;
    if ended.success() { Ok(()) } else { Err(format!("the key process has ended: {ended}").into()) }
}

/// The process that has the keys.
fn keep(volume: &Path, passphrase: &Path) -> Result<()> {
    cage::prepare();
    let [socket, memory] = [io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?];
    // Nothing, if the other process could not open the volume.
    let Some(key_side) = KeySide::accept(socket, memory)? else { return Ok(()) };
    let locked = Opening::path(volume).over_stores(key_side.disk(), key_side.header()).find()?;
    let credentials = [Credential::Passphrase(read(passphrase)?)];
    locked.check_key_process(&credentials)?;
    // From here on it can open no file, also not to see how much memory there is.
    memory::available();
    cage::enter(&key_side.descriptors())?;
    let opened = locked.unlock(&Unlock::with(&credentials))?.bytes()?;
    drop(credentials);
    let (layout, store) = (&opened.volume.layout(), opened.volume.store());
    // Nothing is ever encrypted with them.
    let (keys, outline) = (Keys::of(layout, false), KeylessLayout::of(layout, store)?);
    drop(opened);
    Ok(key_side.serve_keys(keys, outline, || Ok(()))?)
}

/// The first line of the file, without its newline.
fn read(passphrase: &Path) -> io::Result<Secret> {
    let mut line = Secret::zeroed(4096);
    let len = File::open(passphrase)?.read(&mut line)?;
    let end = line[..len].iter().position(|byte| *byte == b'\n').unwrap_or(len);
    Ok(Secret::copy_from(&line[..end]))
}
