//! Servers over time: one with nothing to do does nothing, and one with much to do does not grow.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use crate::common::{Random, noise};
use crate::mounted::{MountedFolder, transports};
use crate::nbd::server::Apart;
use claviger_serve::nbd::Client;

const MIB: usize = 1 << 20;

/// Bytes of a process's own memory that are resident (proc_pid_status(5)). How much of its program is, is not its own doing.
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// How often any of its threads has begun to run, or would have, had it not run on.
fn switches(pid: u32) -> u64 {
    let count = |status: String| {
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    threads.map(|thread| fs::read_to_string(thread.path().join("status")).map_or(0, count)).sum()
}

/// Large and small requests, by several threads at once: all that a server starts for them would have to end, or to sleep.
fn use_file(file: &File) {
    thread::scope(|scope| {
        for job in 0..8 {
            scope.spawn(move || {
                let mut buffer = noise(MIB, job);
                file.write_all_at(&buffer, job * MIB as u64).expect("written");
                for at in 0..64 {
                    file.read_exact_at(&mut buffer[..4096], job * MIB as u64 + at * 4096).expect("read");
                }
            });
        }
    });
}

#[test]
fn who_has_nothing_to_do_sleeps() {
    const SECONDS: u64 = 3;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let image = dir.path().join("image");
    fs::write(&image, vec![0; 16 * MIB]).expect("there is room");
    let nbd = Apart::start(&image);
    let mut clients: Vec<Client> = (0..4).map(|_| nbd.client()).collect();
    for client in &mut clients {
        client.write_at(512, &noise(MIB, 1)).expect("written");
        client.read_at(0, &mut [0; 4096]).expect("read");
    }
    let places: Vec<_> =
        transports().into_iter().flatten().map(|way| (way, MountedFolder::new(&vec![0; 16 * MIB]))).collect();
    let mounted: Vec<_> = places.iter().map(|(way, place)| place.serve(&["xts", way, "threads=4"])).collect();
    // All of them stay open, and all connections.
    let open: Vec<_> = mounted.iter().map(|mounted| mounted.open()).collect();
    open.iter().for_each(use_file);

    let mut idle = vec![("NBD", nbd.child.id())];
    idle.extend(places.iter().zip(&mounted).map(|((way, _), mounted)| (*way, mounted.pid())));
    // Threads go to rest, and buffers are given back.
    thread::sleep(Duration::from_secs(2));
    let before: Vec<u64> = idle.iter().map(|(_, pid)| switches(*pid)).collect();
    thread::sleep(Duration::from_secs(SECONDS));
    for ((what, pid), before) in idle.into_iter().zip(before) {
        let woken = switches(pid) - before;
        assert!(woken <= SECONDS, "{what}: woken {woken} times in {SECONDS} s");
    }
    drop((clients, open));
    nbd.stop();
}

/// Resident memory once all requests are answered, extra threads have ended, and buffers are returned.
fn at_rest(clients: &mut [Client], server: &Apart, buffer: &mut [u8]) -> u64 {
    for client in clients {
        while client.in_flight() > 0 {
            client.complete(buffer).expect("an answer").result.expect("done");
        }
    }
    thread::sleep(Duration::from_secs(3));
    resident(server.child.id())
}

/// Ten million are asked for by hand: `REQUESTS=10000000 cargo test -p claviger-serve --test it memory_does_not_grow`.
#[test]
fn memory_does_not_grow_with_requests() {
    const FIRST: u64 = 100_000;
    /// Bytes of the largest request, and of those in flight at most: less than any system's socket buffers.
    const LARGEST: usize = 64 << 10;
    const IN_FLIGHT: usize = 16;
    let all = std::env::var("REQUESTS").map_or(5 * FIRST, |number| number.parse().expect("a number"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let image = dir.path().join("image");
    fs::write(&image, vec![0; 16 * MIB]).expect("there is room");
    let server = Apart::start(&image);
    let (mut clients, mut random) = ([server.client(), server.client()], Random::new(7));
    let mut buffer = noise(LARGEST, 1);
    let mut after_first = 0;
    for number in 0..all {
        if number == FIRST {
            after_first = at_rest(&mut clients, &server, &mut buffer);
        }
        let client = &mut clients[number as usize % 2];
        // Most are small and whole sectors; some are neither.
        let odd = number % 128 < 2;
        let len = if odd { 1 + random.below(LARGEST) } else { 4096 };
        let at = random.below((16 * MIB - LARGEST) / 4096 - 1) as u64 * 4096 + if odd { 1234 } else { 0 };
        if client.in_flight() >= IN_FLIGHT {
            client.complete(&mut buffer).expect("an answer").result.expect("done");
        }
        match number % 3 {
            0 => client.submit_write(at, &buffer[..len]).expect("sent"),
            _ => client.submit_read(at, len as u32),
        };
        if number % (FIRST / 2) == 0 {
            while client.in_flight() > 0 {
                client.complete(&mut buffer).expect("an answer").result.expect("done");
            }
            client.flush().expect("durable");
        }
    }
    let at_end = at_rest(&mut clients, &server, &mut buffer);
    eprintln!("{after_first} bytes after {FIRST} requests, {at_end} after {all}");
    // On a busy machine threads come and go, and the allocator keeps a part of what they had. The smallest allocation has 24 bytes: one
    // kept of each request would come to more than twice this.
    const SLACK: u64 = 4 << 20;
    assert!(at_end <= after_first + SLACK, "{after_first} bytes after {FIRST} requests, {at_end} after {all}");
    drop(clients);
    server.stop();
}
