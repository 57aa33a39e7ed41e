//! Serves a file over NBD until standard input ends: for benchmarks, and for tests that need a server of their own.
//!
//! ```text
//! sleep infinity | nbd_serve unix:/tmp/socket disk.img        the file as it is
//! … nbd_serve tcp:127.0.0.1:10809 disk.img xts                its AES-256-XTS plaintext under a fixed key
//! … nbd_serve unix:/tmp/socket disk.img xor                   its plaintext under a cipher that costs next to nothing
//! … nbd_serve unix:/tmp/socket 64M                            so many zero bytes in memory
//! ```
//!
//! Further words: `direct` (past the page cache; to be the first), `read-only`, `name=NAME`, `spin=MICROSECONDS`.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use claviger_crypto::modes::xts::{Layer, Xts};
use claviger_crypto::pool::Pool;
use claviger_crypto::{Acceleration, ciphers};
use claviger_engine::store::{Access, Bypass, FileStore, MemoryStore};
use claviger_engine::{Error, Layout, Payload, Result, SectorCipher, Segment, Store, Volume};
use claviger_serve::nbd::{Export, NbdAddress, Server, ServerOptions};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, path, words @ ..] = &args[..] else {
        return Err(Error::misuse(
            "nbd_serve unix:PATH|tcp:ADDRESS:PORT FILE|SIZE [direct] [xts|xor] [read-only] [name=…] [spin=…]",
        ));
    };
    let address = match address.split_once(':') {
        Some(("unix", path)) => NbdAddress::Unix(path.into()),
        Some(("tcp", address)) => NbdAddress::Tcp(address.parse().map_err(|_| Error::misuse("no address"))?),
        _ => return Err(Error::misuse("unix:PATH or tcp:ADDRESS:PORT")),
    };
    let read_only = words.iter().any(|w| w == "read-only");
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let mut store: Arc<dyn Store> = match path.strip_suffix('M').and_then(|n| n.parse::<usize>().ok()) {
        Some(mib) => Arc::new(MemoryStore::new(vec![0; mib << 20])),
        None => Arc::new(FileStore::open(Path::new(path), access)?),
    };
    let mut name = String::new();
    let mut options = ServerOptions::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("direct", _) if store.bypass_cache(Bypass::All) => {}
            ("direct", _) => return Err(Error::unsupported("a way past the page cache")),
            ("xts", _) => store = volume(store, Arc::new(aes_xts()))?,
            ("xor", _) => store = volume(store, Arc::new(Xor))?,
            ("name", value) => name = value.to_owned(),
            ("spin", value) => {
                options.spin = Duration::from_micros(value.parse().map_err(|_| Error::misuse("no number"))?);
            }
            ("read-only", _) => {}
            _ => return Err(Error::misuse(format!("{word}: what is that?"))),
        }
    }
    let export = Export { description: format!("{path}, for tests"), read_only, ..Export::new(&name, store) };
    let server = Server::bind(&address, vec![export], options)?;
    println!("{}", server.uri(&name));
    let handle = server.handle();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        handle.stop();
    });
    server.run()
}

fn volume(store: Arc<dyn Store>, cipher: Arc<dyn SectorCipher>) -> Result<Arc<dyn Store>> {
    let len = store.len() - store.len() % cipher.sector_size() as u64;
    let payload = Payload::crypt(cipher, 0);
    let layout = Layout::new(vec![Segment { at: 0, len, stored_at: 0, payload, writable: store.writable() }])?;
    Ok(Arc::new(Volume::new(store, layout).with_pool(Arc::new(Pool::for_this_machine(Duration::ZERO)))))
}

fn aes_xts() -> Xts {
    let key = |byte| ciphers::aes::AES.with_key(&[byte; 32], Acceleration::On);
    Xts::new(vec![Layer { data: key(1), tweak: key(2) }], 512)
}

/// About as cheap as a pass over the data can be.
struct Xor;

impl SectorCipher for Xor {
    fn sector_size(&self) -> usize {
        512
    }

    fn encrypt(&self, _: u64, run: &mut [u8]) {
        run.iter_mut().for_each(|b| *b ^= 0xa5);
    }

    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.encrypt(first, run);
    }
}
