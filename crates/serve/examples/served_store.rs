//! Serves a store of one's own over NBD, and reads from it as a client: `cargo run -p claviger-serve --example served_store`.

use std::sync::Arc;
use std::{io, thread};

use claviger_engine::Store;
use claviger_serve::nbd::{Client, Export, NbdAddress, Server, ServerOptions};

/// A disk of 64 MiB with nothing behind it: each byte is the low byte of its offset.
struct Counting;

impl Store for Counting {
    fn len(&self) -> u64 {
        64 << 20
    }

    fn writable(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = at as u8);
        Ok(())
    }

    fn write_clobbering(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Port 0 takes any free one. Other users of this machine can connect to it; with Address::Unix they cannot.
    let address = NbdAddress::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&address, vec![Export::new("counting", Arc::new(Counting))], ServerOptions::default())?;
    println!("Serving {}", server.uri("counting"));
    let (address, handle) = (server.address().clone(), server.handle());
    let serving = thread::spawn(move || server.run());

    let mut client = Client::connect(&address, "counting")?;
    let mut bytes = [0; 8];
    client.read_at(0x1234, &mut bytes)?;
    println!("At byte 0x1234 of {}: {bytes:x?}", client.len());
    assert_eq!(bytes, [0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x3b]);
    client.disconnect()?;

    handle.stop();
    serving.join().expect("the server does not panic")?;
    Ok(())
}
