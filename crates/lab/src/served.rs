//! The client side of NBD: for a server of somebody else, or one of our own in this process.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use claviger_engine::{Result, Store};
use claviger_serve::nbd::{Address, Client, Export, Handle, Options, Server};

use crate::machine;
use crate::transfer::Device;

/// How long the client polls for a reply before it sleeps, as the server does for requests: a wake-up costs about as
/// much. On a single CPU it would keep the server from running.
const SPIN: Duration = Duration::from_micros(100);

/// A connection to a server of its own. Dropping it stops the server.
pub struct Served {
    connection: Connection,
    handle: Handle,
    server: Option<JoinHandle<Result<()>>>,
}

/// A connection to an NBD server, for sequential transfers with several requests in flight.
pub struct Connection {
    client: Client,
    queue_depth: usize,
    /// Requests in flight, the oldest first.
    under_way: VecDeque<Request>,
    len: u64,
}

/// A request in flight.
struct Request {
    cookie: u64,
    /// The range it reads; `None` for a write.
    reads: Range<u64>,
}

impl Served {
    /// Serves `store` to a client with at most `queue_depth` requests in flight.
    ///
    /// # Errors
    /// `Io` if no socket or thread can be created.
    pub fn new(store: Arc<dyn Store>, queue_depth: usize) -> Result<Self> {
        // The folder goes at the end of this function, with the socket's name: the connection no longer needs it.
        let folder = tempfile::Builder::new().prefix("claviger-lab-").tempdir()?;
        let address = Address::Unix(folder.path().join("socket"));
        let server = Server::bind(&address, vec![Export::new("", store)], Options::default())?;
        let handle = server.handle();
        let server = thread::Builder::new().name("lab-server".into()).spawn(move || server.run())?;
        let mut connection = Connection::to(&address, queue_depth).inspect_err(|_| handle.stop())?;
        if machine::cpus() > 1 {
            connection.client.set_spin(SPIN);
        }
        Ok(Self { connection, handle, server: Some(server) })
    }
}

impl Connection {
    /// Connects to the default export of a server, with at most `queue_depth` requests under way. It sleeps while it
    /// waits.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn to(address: &Address, queue_depth: usize) -> io::Result<Self> {
        let client = Client::connect(address, "")?;
        Ok(Self { len: client.len(), client, queue_depth, under_way: VecDeque::new() })
    }

    /// Waits for the oldest request. Data it read goes to `out`.
    fn complete(&mut self, out: &mut [u8]) -> io::Result<()> {
        let done = self.client.complete(out)?;
        match self.under_way.pop_front() {
            Some(request) if request.cookie == done.cookie => done.result,
            _ => Err(io::Error::other("the server of one thread answers out of order")),
        }
    }

    /// Waits for everything in flight. Data that was read ahead is discarded.
    fn drain(&mut self) -> io::Result<()> {
        let longest = self.under_way.iter().map(|r| r.reads.end - r.reads.start).max().unwrap_or(0);
        let mut thrown_away = vec![0; longest as usize];
        while !self.under_way.is_empty() {
            self.complete(&mut thrown_away)?;
        }
        Ok(())
    }
}

impl Device for Connection {
    /// Reads ahead as far as the queue allows: the next read will be of the next block.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.queue_depth == 1 {
            return self.client.read_at(offset, out);
        }
        let block = out.len() as u64;
        if self.under_way.front().is_some_and(|r| r.reads != (offset..offset + block)) {
            self.drain()?;
        }
        let mut next = offset + self.under_way.len() as u64 * block;
        while self.under_way.len() < self.queue_depth && next + block <= self.len {
            let cookie = self.client.submit_read(next, block as u32);
            self.under_way.push_back(Request { cookie, reads: next..next + block });
            next += block;
        }
        self.complete(out)
    }

    /// Returns with up to as many writes in flight as the queue holds.
    fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if self.queue_depth == 1 {
            return self.client.write_at(offset, data);
        }
        if self.under_way.len() == self.queue_depth {
            self.complete(&mut [])?;
        }
        let cookie = self.client.submit_write(offset, data)?;
        self.under_way.push_back(Request { cookie, reads: 0..0 });
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.client.flush()
    }
}

impl Device for Served {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.connection.read(offset, out)
    }

    fn write(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.connection.write(offset, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(server) = self.server.take() {
            let _ = server.join(); // it has flushed; the data was compared before
        }
    }
}
