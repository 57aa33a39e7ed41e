//! A format of one's own: `cargo run -p claviger-engine --example own_format`.
//!
//! `Opening` goes by the table `FORMATS`, which is closed. A format that is not in it is used by itself: `Format::open` reads the
//! header, `Header::unlock` turns that and a credential into a layout, and a `Volume` carries the layout out.

use std::sync::Arc;

use claviger_engine::formats::takes::{Parameter, Takes};
use claviger_engine::formats::{Facts, Format, Header, Unlocked, Verdict};
use claviger_engine::store::MemoryStore;
use claviger_engine::{
    Acceleration, Credential, Error, ErrorKind, Layout, Payload, Result, Secret, SectorCipher, Sectors, Segment,
    Specification, Store, Unlock, Volume,
};

/// What a volume begins with.
const MARK: &[u8; 8] = b"SIMPLE\0\x01";

/// Where a sector is that the right key decrypts to zeros, in bytes.
const PROOF_AT: u64 = 512;

/// Where the data begin, in bytes.
const DATA_AT: u64 = 4096;

/// The format. Its volumes open with a key of 512 bits.
struct Simple;

impl Format for Simple {
    fn name(&self) -> &'static str {
        "Simple"
    }

    fn identify(&self, store: &dyn Store) -> Result<Verdict> {
        let mut mark = [0; MARK.len()];
        if store.len() <= DATA_AT {
            return Ok(Verdict::No(vec!["too small".into()]));
        }
        store.read_at(0, &mut mark)?;
        Ok(if mark == *MARK { Verdict::Yes(vec!["its mark".into()]) } else { Verdict::No(vec!["no mark".into()]) })
    }

    fn open(&self, store: &Arc<dyn Store>) -> Result<Box<dyn Header>> {
        match self.identify(&**store)? {
            Verdict::No(why) => Err(Error::new(ErrorKind::NotThisFormat(why.join("; "))).in_format(self.name())),
            _ => Ok(Box::new(SimpleHeader(Arc::clone(store)))),
        }
    }

    fn takes(&self) -> Takes {
        Takes { creating: &[], opening: &[Parameter::VolumeKey] }
    }
}

/// A header that was read, with what it is in.
struct SimpleHeader(Arc<dyn Store>);

impl Header for SimpleHeader {
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let cipher = cipher(with.credentials, with.acceleration)?;
        let mut proof = [0; 512];
        self.0.read_at(PROOF_AT, &mut proof)?;
        cipher.decrypt(0, &mut proof);
        if proof != [0; 512] {
            return Err(ErrorKind::WrongCredential("it is another key".into()).into());
        }
        let len = (self.0.len() - DATA_AT) / 512 * 512;
        let payload = Payload::crypt(cipher, 1);
        let layout = Layout::new(vec![Segment { at: 0, len, stored_at: DATA_AT, payload, writable: true }])?;
        let facts = Facts::new(Simple.name(), "AES", "xts-plain64", &layout);
        Ok(Unlocked::new(layout, facts))
    }

    fn data(&self) -> &Arc<dyn Store> {
        &self.0
    }
}

fn cipher(credentials: &[Credential], acceleration: Acceleration) -> Result<Arc<dyn SectorCipher>> {
    let [Credential::VolumeKey(key)] = credentials else { return Err(Error::misuse("one volume key opens it")) };
    let specification = Specification::parse("aes-xts-plain64").map_err(|e| Error::misuse(e.to_string()))?;
    specification.with_key(key, Sectors::default(), acceleration).map_err(|e| Error::misuse(e.to_string()))
}

/// Makes a volume that fills `store`.
fn create(store: &dyn Store, key: &[Credential]) -> Result<()> {
    let mut proof = [0; 512];
    cipher(key, Acceleration::On)?.encrypt(0, &mut proof);
    store.write_clobbering(PROOF_AT, &mut proof)?;
    store.write_clobbering(0, &mut MARK.clone())?;
    Ok(store.flush()?)
}

fn main() -> Result<()> {
    let key = [Credential::VolumeKey(Secret::copy_from(&[0x5a; 64]))];
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(vec![0; 1 << 20]));
    create(&store, &key)?;

    let header = Simple.open(&store)?;
    let unlocked = header.unlock(&Unlock::with(&key))?;
    println!("{}: {} bytes from byte {} on", unlocked.facts.format, unlocked.facts.size, unlocked.facts.data_offset);
    let volume = Volume::new(Arc::clone(header.data()), unlocked.layout);
    volume.write_clobbering(700, &mut b"What nobody else shall read.".to_vec())?;
    let mut bytes = [0; 28];
    volume.read_at(700, &mut bytes)?;
    assert_eq!(&bytes, b"What nobody else shall read.");

    let wrong = [Credential::VolumeKey(Secret::copy_from(&[0x5b; 64]))];
    assert!(header.unlock(&Unlock::with(&wrong)).is_err());
    Ok(())
}
