//! Copies the plaintext of a volume to a new file, and never has its keys:
//! `cargo run -p claviger-serve --example isolated_keys VOLUME PASSPHRASE_FILE COPY`.
//!
//! The program starts itself a second time. That process, the keeper, reads the passphrase, closes its cage, unlocks over what the first
//! one lends it, and decrypts for it.

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use claviger_engine::volume::kept::{Keeper, Keys, Outline};
use claviger_engine::{Credential, Opening, Secret, Store, Unlock, Volume, memory};
use claviger_serve::keeper::{Borrowing, Lending, Terms, cage};

/// Bytes read at a time.
const BUFFER: u64 = 1 << 20;

/// What begins the command line of the keeper.
const KEEPER: &str = "--keeper";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Either of the two processes.
pub fn main() -> Result<()> {
    let args: Vec<_> = env::args_os().skip(1).collect();
    match &args[..] {
        [keeper, volume, passphrase] if keeper == KEEPER => keep(volume.as_ref(), passphrase.as_ref()),
        [volume, passphrase, copy] => copy_out(volume.as_ref(), passphrase.as_ref(), copy.as_ref()),
        _ => Err("usage: isolated_keys VOLUME PASSPHRASE_FILE COPY".into()),
    }
}

/// The process that opens the files. Copies the plaintext of `volume` to the new file `copy`.
pub fn copy_out(volume: &Path, passphrase: &Path, copy: &Path) -> Result<()> {
    // Before anything of the volume is read. The keeper's two descriptors are its standard input and output.
    let (lending, socket) = Lending::new()?;
    let memory = lending.memory().try_clone_to_owned()?;
    let mut command = Command::new(env::current_exe()?);
    command.arg(KEEPER).args([volume, passphrase]).stdin(socket).stdout(memory);
    let mut keeper = command.spawn()?;
    // What the command holds of the keeper's ends would keep its end from being seen.
    drop(command);

    let stores = Opening::path(volume).stores()?;
    let Some(outline) = lending.lend::<Outline>(&stores, &Terms::reading(&|| false))? else {
        return Err(format!("the keeper has ended: {}", keeper.wait()?).into());
    };
    let asking: Arc<dyn Keeper> = Arc::new(lending.opened(|| eprintln!("the keeper has gone: nothing can be read"))?);
    let layout = outline.kept_by(&asking, &stores.data)?;
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
    // With the volume the keeper is let go, wipes its keys and ends.
    drop(volume);
    let ended = keeper.wait()?;
    if ended.success() { Ok(()) } else { Err(format!("the keeper has ended: {ended}").into()) }
}

/// The process that has the keys.
fn keep(volume: &Path, passphrase: &Path) -> Result<()> {
    cage::prepare();
    let [socket, memory] = [io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?];
    // Nothing, if the other process could not open the volume.
    let Some(borrowing) = Borrowing::accept(socket, memory)? else { return Ok(()) };
    let locked = Opening::path(volume).lent(borrowing.disk(), borrowing.header()).find()?;
    let credentials = [Credential::Passphrase(read(passphrase)?)];
    locked.check_isolated(&credentials)?;
    // From here on it can open no file, also not to see how much memory there is.
    memory::available();
    cage::enter(&borrowing.descriptors())?;
    let opened = locked.unlock(&Unlock::with(&credentials))?.bytes()?;
    drop(credentials);
    let (layout, store) = (opened.volume.layout(), opened.volume.store());
    // Nothing is ever encrypted with them.
    let (keys, outline) = (Keys::of(layout, false), Outline::of(layout, store)?);
    drop(opened);
    Ok(borrowing.keep(keys, outline, || Ok(()))?)
}

/// The first line of the file, without its newline.
fn read(passphrase: &Path) -> io::Result<Secret> {
    let mut line = Secret::zeroed(4096);
    let len = File::open(passphrase)?.read(&mut line)?;
    let end = line[..len].iter().position(|byte| *byte == b'\n').unwrap_or(len);
    Ok(Secret::copy_from(&line[..end]))
}
