//! Asks an NBD server for as much as it gives, for measurements: reads or writes one size at a time, so many at once.
//!
//! ```text
//! nbd_load SOCKET|ADDRESS:PORT read|write|randread|randwrite BLOCK DEPTH CONNECTIONS SECONDS
//! ```
//!
//! With `TLS=FOLDER` in the environment, by TLS with the certificates there, to a server that is called localhost.
//!
//! Each connection has a thread and `DEPTH` requests of `BLOCK` bytes under way. Prints the requests answered in a second, over all
//! connections.

use std::env;
use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use claviger_serve::nbd::{Client, ClientTls, NbdAddress, Replies};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What is asked for.
struct Load {
    address: NbdAddress,
    tls: Option<ClientTls>,
    random: bool,
    writes: bool,
    block: usize,
    depth: usize,
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [socket, mode, block, depth, connections, seconds] = &args[..] else {
        return Err("nbd_load SOCKET read|write|randread|randwrite BLOCK DEPTH CONNECTIONS SECONDS".into());
    };
    let (random, mode) = mode.strip_prefix("rand").map_or((false, &**mode), |mode| (true, mode));
    let writes = mode == "write";
    let address = socket.parse().map_or_else(|_| NbdAddress::Unix(socket.into()), NbdAddress::Tcp);
    let tls = env::var_os("TLS").map(|folder| ClientTls::new(folder.as_ref(), "localhost")).transpose()?;
    let load = Load { address, tls, random, writes, block: block.parse()?, depth: depth.parse()? };
    let (connections, time) = (connections.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let ready = Barrier::new(connections);
    let rates = thread::scope(|scope| {
        let run = |number| {
            let (load, ready) = (&load, &ready);
            scope.spawn(move || load.run(number, ready, time))
        };
        let threads: Vec<_> = (0..connections).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<f64>>>()
    })?;
    let rate: f64 = rates.iter().sum();
    println!("{rate}");
    Ok(())
}

impl Load {
    /// Requests answered in a second over one connection.
    fn run(&self, number: usize, ready: &Barrier, time: Duration) -> Result<f64> {
        let mut client = Client::connect_over(self.tls.as_ref(), &self.address, "", Replies::Structured)?;
        let blocks = client.len() / self.block as u64;
        // A linear congruential generator (Knuth, MMIX): no more than disorder is wanted.
        let mut state = number as u64;
        let mut next = || {
            state = if self.random {
                state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407)
            } else {
                state + 1
            };
            (if self.random { state >> 20 } else { state }) % blocks * self.block as u64
        };
        let mut buffer = vec![0xa5; self.block + 4096];
        let skip = (buffer.as_ptr() as usize).wrapping_neg() % 4096;
        let buffer = &mut buffer[skip..skip + self.block];
        ready.wait();
        let start = Instant::now();
        let mut answered = 0u64;
        while start.elapsed() < time {
            while client.in_flight() < self.depth {
                match self.writes {
                    true => drop(client.submit_write(next(), buffer)?),
                    false => drop(client.submit_read(next(), self.block as u32)),
                }
            }
            client.complete(buffer)?.result?;
            answered += 1;
        }
        let rate = answered as f64 / start.elapsed().as_secs_f64();
        while client.in_flight() > 0 {
            client.complete(buffer)?;
        }
        client.disconnect()?;
        Ok(rate)
    }
}
