//! A volume in a store of one's own: `cargo run -p claviger-engine --example own_store`.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use claviger_engine::spec::Cost;
use claviger_engine::{Credential, Opening, Secret, Spec, Store, Unlock, formats};

/// Bytes of a block.
const BLOCK: u64 = 64 << 10;

/// Blocks by their number, as they could be kept in a database or in the cloud. One that was never written is all zeros.
struct Blocks {
    len: u64,
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
}

impl Blocks {
    fn new(len: u64) -> Self {
        Self { len, blocks: Mutex::default() }
    }

    /// Calls `each` with every block that a request touches, where the request begins in it, and its part of `buffer`.
    fn each(&self, offset: u64, buffer: &mut [u8], each: impl Fn(&mut [u8], &mut [u8])) -> io::Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut blocks = self.blocks.lock().expect("no thread has panicked");
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let into = (at % BLOCK) as usize;
            let (part, after) = rest.split_at_mut(rest.len().min(BLOCK as usize - into));
            let block = blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
            each(&mut block[into..][..part.len()], part);
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }
}

impl Store for Blocks {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.each(offset, out, |block, out| out.copy_from_slice(block))
    }

    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.each(offset, data, |block, data| block.copy_from_slice(data))
    }

    /// Here, writes are as durable as they get.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> claviger_engine::Result<()> {
    let store: Arc<dyn Store> = Arc::new(Blocks::new(1 << 30));
    let credentials = [Credential::Passphrase(Secret::copy_from(b"correct horse"))];
    // So cheap a derivation is for examples only. `quick` leaves the data area as it is: most of its blocks then do not exist.
    let cost = Cost { kdf: Some("pbkdf2"), iterations: Some(1000), ..Cost::default() };
    formats::by_name("LUKS2")?.create(&store, &Spec { cost, quick: true, ..Spec::default() }, &credentials)?;

    let opened = Opening::store(store).find()?.unlock(&Unlock::with(&credentials))?.bytes()?;
    // The buffer is encrypted in place: what was written is not in it afterwards.
    opened.volume.write_clobbering(1000, &mut b"What nobody else shall read.".to_vec())?;
    let mut bytes = [0; 28];
    opened.volume.read_at(1000, &mut bytes)?;
    assert_eq!(&bytes, b"What nobody else shall read.");
    println!("{} bytes, encrypted with {}", opened.volume.len(), opened.facts.cipher);
    Ok(())
}
