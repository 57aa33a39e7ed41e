//! Remote stores: written data are stored with every server, even if connections break.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use claviger_engine::store::{Access, CountedStore, MemoryStore};
use claviger_engine::{ErrorKind, Store};
use claviger_serve::nbd::remote::RemoteOptions;
use claviger_serve::nbd::{Export, ServerOptions};
use claviger_serve::remote::{Helper, RemoteAddress, Writers, helpers};
use claviger_testkit::random::Random;
use claviger_testkit::tools::{program, run};

use crate::common::{Faulty, Serving, memory, noise};

const MIB: usize = 1 << 20;

/// Little patience, so that tests end.
const QUICK: RemoteOptions = RemoteOptions {
    timeout: Duration::from_secs(20),
    reconnect: Duration::from_secs(20),
    connections: 3,
    cancel: None,
};

fn open(place: &str, access: Access, options: RemoteOptions) -> claviger_engine::Result<Arc<dyn Store>> {
    let place = RemoteAddress::parse(OsStr::new(place), &helpers())?.expect("it is no path");
    place.open(access, options)
}

/// A row of one's own: `nbdkit` with these arguments.
fn nbdkit(arguments: &[&str]) -> RemoteAddress {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let helper = Helper {
        scheme: "mine".into(),
        form: "{file}".into(),
        program: "nbdkit".into(),
        arguments: words(&[&["-f"], arguments].concat()),
        read_only: words(&["-r"]),
        options: Vec::new(),
        environment: Vec::new(),
        package: "nbdkit".into(),
        writers: Writers::Unknown,
        service: String::new(),
        image: None,
    };
    RemoteAddress::Helped(helper, "x".into())
}

/// Random reads and writes by several threads, each in its own part, and what one thread reads one after the other.
fn exercise(store: &Arc<dyn Store>, seed: u64, rounds: usize) -> Vec<u8> {
    const THREADS: usize = 3;
    let part = store.len() as usize / THREADS;
    let parts: Vec<Vec<u8>> = thread::scope(|scope| {
        let work = |n: usize| {
            let mut random = Random::new(seed + n as u64);
            let mut model = vec![0; part];
            let base = (n * part) as u64;
            store.read_at(base, &mut model).expect("all of it");
            for _ in 0..rounds {
                let len = 1 + *random.choose(&[1, 511, 512, 4096, 20_000, 70_000, 600_000]);
                let (len, at) = match random.below(4) {
                    // A sector of its own, as volumes ask.
                    0 => (4096.min(part), random.below(part / 4096) * 4096),
                    _ => (len.min(part), random.below(part)),
                };
                let len = len.min(part - at);
                match random.below(5) {
                    0 => {
                        // One piece after the other, and something written in front of it now and then.
                        let mut from = at;
                        while from + 8192 <= part && from < at + 40 * 8192 {
                            let mut read = vec![0; 8192];
                            store.read_at(base + from as u64, &mut read).expect("a read");
                            assert!(read == model[from..from + 8192], "{from} of part {n}");
                            from += 8192;
                            if random.below(8) == 0 && from + 50_000 < part {
                                let some = 1 + random.below(30_000);
                                let bytes = random.bytes(some);
                                let to = from + random.below(20_000);
                                model[to..to + bytes.len()].copy_from_slice(&bytes);
                                store.write_clobbering(base + to as u64, &mut bytes.clone()).expect("a write");
                            }
                        }
                    }
                    1 | 2 => {
                        let bytes = random.bytes(len);
                        model[at..at + len].copy_from_slice(&bytes);
                        store.write_clobbering(base + at as u64, &mut bytes.clone()).expect("a write");
                    }
                    3 if random.below(4) == 0 => store.flush().expect("a flush"),
                    _ => {
                        let mut read = vec![0; len];
                        store.read_at(base + at as u64, &mut read).expect("a read");
                        assert!(read == model[at..at + len], "{at} of part {n}");
                    }
                }
            }
            model
        };
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    store.flush().expect("a flush");
    parts.concat()
}

fn whole(store: &dyn Store) -> Vec<u8> {
    let mut bytes = vec![0; store.len() as usize];
    for (n, piece) in bytes.chunks_mut(MIB).enumerate() {
        store.read_at((n * MIB) as u64, piece).expect("a read");
    }
    bytes
}

#[test]
fn what_is_written_is_there_whoever_serves_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("image");
    let qcow2 = dir.path().join("image.qcow2");
    let (Some(qemu_img), Some(_), Some(_)) = (program("qemu-img"), program("nbdkit"), program("qemu-nbd")) else {
        return;
    };
    run(Command::new(&qemu_img).args(["create", "-q", "-f", "qcow2"]).arg(&qcow2).arg("6M"));
    let file = format!("file={}", image.display());
    let place = |text: String| RemoteAddress::parse(OsStr::new(&text), &helpers()).expect("a place").expect("no path");
    let qcow2_row = helpers().into_iter().find(|h| h.scheme == "qcow2").expect("a row");
    let raw = Helper { scheme: "raw".into(), image: Some("raw".into()), ..qcow2_row };
    let places = [
        ("nbdkit", nbdkit(&["file", &file]), false),
        ("nbdkit without chunks", nbdkit(&["--no-sr", "file", &file]), false),
        ("nbdkit, one request at a time", nbdkit(&["--threads=1", "--filter=noparallel", "file", &file]), false),
        (
            "nbdkit, late and out of order",
            nbdkit(&["--filter=delay", "file", &file, "rdelay=1ms", "wdelay=1ms"]),
            false,
        ),
        (
            "nbdkit, large blocks",
            nbdkit(&[
                "--filter=blocksize-policy",
                "file",
                &file,
                "blocksize-minimum=64K",
                "blocksize-preferred=64K",
                "blocksize-maximum=128K",
                "blocksize-error-policy=error",
            ]),
            false,
        ),
        ("qemu-nbd", RemoteAddress::Helped(raw, image.display().to_string()), false),
        ("qcow2", place(format!("qcow2:{}", qcow2.display())), true),
    ];
    for (n, (who, place, is_qcow2)) in places.into_iter().enumerate() {
        fs::write(&image, noise(6 * MIB, 7)).expect("a file");
        let store = place.open(Access::ReadWrite, QUICK).unwrap_or_else(|e| panic!("{who}: {e}"));
        assert_eq!(store.len(), 6 * MIB as u64, "{who}");
        let expected = exercise(&store, 100 * n as u64, 60);
        assert!(whole(&*store) == expected, "{who}");
        drop(store);
        if is_qcow2 {
            run(Command::new(&qemu_img).args(["convert", "-O", "raw"]).arg(&qcow2).arg(&image));
        }
        assert!(fs::read(&image).expect("a file") == expected, "{who}");
        let store = place.open(Access::ReadOnly, QUICK).unwrap_or_else(|e| panic!("{who}: {e}"));
        assert!(whole(&*store) == expected && !store.writable(), "{who}");
        let refused = store.write_clobbering(0, &mut [1]).expect_err("it is read-only");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}

/// Reading ahead is wasted on readers that take turns at different offsets, so it soon stops.
#[test]
fn several_readers_cost_a_line_little_more_than_they_read() {
    let counted = Arc::new(CountedStore::new(MemoryStore::new(noise(48 * MIB, 3))));
    let serving = Serving::store(Arc::<CountedStore<MemoryStore>>::clone(&counted));
    let store = open(serving.uri(), Access::ReadOnly, QUICK).expect("it opens");
    let mut read = vec![0; MIB / 4];
    let places = (0..12).flat_map(|turn| [0, 16, 32].map(|base| (base + turn) * MIB));
    for at in places.flat_map(|at| (0..4).map(move |n| (at + n * MIB / 4) as u64)) {
        store.read_at(at, &mut read).expect("a read");
    }
    drop(store);
    let (asked, needed) = (counted.traffic().read, 36 * MIB as u64);
    assert!(asked < needed + (24 << 20), "{asked} bytes for {needed}");
    // A sequential reader gets reading ahead again.
    let store = open(serving.uri(), Access::ReadOnly, QUICK).expect("it opens");
    let before = counted.traffic().read;
    (0..16).for_each(|n| store.read_at(n * (MIB as u64 / 4), &mut read).expect("a read"));
    drop(store);
    assert!(counted.traffic().read > before + 5 * MIB as u64, "nothing was asked for ahead");
}

#[test]
fn our_own_server_too_and_it_says_what_it_refuses() {
    let bytes = memory(&noise(6 * MIB, 1));
    let exports = vec![
        Export::new("disk", Arc::<MemoryStore>::clone(&bytes)),
        Export { read_only: true, ..Export::new("a b", memory(&[7; 1000])) },
    ];
    let serving = Serving::with(exports, ServerOptions::default());
    let store = open(serving.uri(), Access::ReadWrite, QUICK).expect("it opens");
    let expected = exercise(&store, 5, 200);
    assert!(whole(&*bytes) == expected);
    let end = store.len();
    assert_eq!(store.read_at(end, &mut [0]).expect_err("the end").kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(store.write_clobbering(end - 1, &mut [0; 2]).expect_err("the end").kind(), io::ErrorKind::UnexpectedEof);

    let other = |name: &str| serving.uri().replace("///disk", &format!("///{name}"));
    let small = open(&other("a%20b"), Access::ReadOnly, QUICK).expect("it opens");
    assert_eq!(whole(&*small), [7; 1000]);
    let kind = |place: &str| match open(place, Access::ReadWrite, QUICK).err().expect(place).kind {
        ErrorKind::Io(e) => e.kind(),
        other => panic!("{other}"),
    };
    assert_eq!(kind(&other("a%20b")), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(kind(&other("none")), io::ErrorKind::NotFound);
    assert_eq!(kind("nbd+unix:///?socket=/nowhere"), io::ErrorKind::NotFound);
    assert_eq!(kind("nbd://127.0.0.1:1/"), io::ErrorKind::ConnectionRefused);
}

/// Bytes that a crash throws back to the last flush.
struct Forgetful {
    now: MemoryStore,
    durable: Mutex<Vec<u8>>,
}

impl Forgetful {
    fn crash(&self) {
        let durable = self.durable.lock().expect("no panic");
        self.now.write_clobbering(0, &mut durable.clone()).expect("memory");
    }
}

impl Store for Forgetful {
    fn len(&self) -> u64 {
        self.now.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.now.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.now.write_clobbering(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        *self.durable.lock().expect("no panic") = whole(&self.now);
        Ok(())
    }
}

/// Stands between a client and a server, and cuts each connection after some bytes.
struct Proxy {
    socket: std::path::PathBuf,
    cuts: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Proxy {
    fn start(
        dir: &Path,
        server: &claviger_serve::nbd::NbdAddress,
        seed: u64,
        between: impl Fn() + Send + 'static,
    ) -> Self {
        let claviger_serve::nbd::NbdAddress::Unix(server) = server.clone() else { panic!("a Unix socket") };
        let socket = dir.join("proxy");
        let listener = UnixListener::bind(&socket).expect("it listens");
        let (cuts, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ended) = (Arc::clone(&cuts), Arc::clone(&over));
        thread::spawn(move || {
            let mut random = Random::new(seed);
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = UnixStream::connect(&server) else { return };
                let limit = if ended.load(Ordering::SeqCst) {
                    usize::MAX
                } else {
                    1000 + {
                        let most = *random.choose(&[3000, MIB, 3 * MIB, 30 * MIB]);
                        random.below(most)
                    }
                };
                // One connection at a time: who comes in the meantime waits.
                forward(client, server, limit);
                between();
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { socket, cuts, over }
    }
}

/// Forwards until so many bytes have gone in either direction, and then ends both ways at once.
fn forward(client: UnixStream, server: UnixStream, limit: usize) {
    let left = AtomicU64::new(limit as u64);
    thread::scope(|scope| {
        let (left, client, server) = (&left, &client, &server);
        let one_way = move |mut from: &UnixStream, mut to: &UnixStream| {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                let before = left.fetch_sub(n as u64, Ordering::SeqCst);
                let n = n.min(usize::try_from(before).unwrap_or(usize::MAX));
                let sent = to.write_all(&buffer[..n]);
                if sent.is_err() || before <= n as u64 || before > limit as u64 {
                    break;
                }
            }
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        };
        scope.spawn(move || one_way(client, server));
        one_way(server, client);
    });
}

#[test]
fn what_a_server_forgets_when_its_connections_end_is_written_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let bytes = noise(6 * MIB, 3);
    let forgetful = Arc::new(Forgetful { now: MemoryStore::new(bytes.clone()), durable: Mutex::new(bytes) });
    let serving = Serving::store(Arc::<Forgetful>::clone(&forgetful));
    let crash = Arc::clone(&forgetful);
    let proxy = Proxy::start(dir.path(), &serving.address, 11, move || {
        // Requests in progress on the old connection end first.
        thread::sleep(Duration::from_millis(20));
        crash.crash();
    });
    let uri = format!("nbd+unix:///disk?socket={}", proxy.socket.display());
    let store = open(&uri, Access::ReadWrite, RemoteOptions { connections: 1, ..QUICK }).expect("it opens");
    let expected = exercise(&store, 21, 60);
    assert!(whole(&*store) == expected);
    assert!(proxy.cuts.load(Ordering::SeqCst) > 5, "there were hardly any cuts");
    proxy.over.store(true, Ordering::SeqCst);
    drop(store);
    forgetful.crash();
    assert!(whole(&forgetful.now) == expected, "what was flushed is durable");
}

/// A server that does the handshake for 1 MiB and then what `then` says with each request of 28 bytes.
fn strange(dir: &Path, flags: u16, then: impl Fn(&mut UnixStream, &[u8; 28]) -> bool + Send + 'static) -> String {
    let socket = dir.join("strange");
    let listener = UnixListener::bind(&socket).expect("it listens");
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            if greet(&mut client, flags).is_err() {
                continue;
            }
            let mut request = [0; 28];
            while client.read_exact(&mut request).is_ok() && then(&mut client, &request) {}
        }
    });
    format!("nbd+unix:///?socket={}", socket.display())
}

fn greet(client: &mut UnixStream, flags: u16) -> io::Result<()> {
    client.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    client.read_exact(&mut [0; 4])?;
    loop {
        let mut header = [0; 16];
        client.read_exact(&mut header)?;
        let option = &header[8..12];
        let mut data = vec![0; u32::from_be_bytes(header[12..].try_into().expect("four")) as usize];
        client.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let len = (data.len() as u32).to_be_bytes();
            client.write_all(
                &[&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], option, &kind.to_be_bytes(), &len, data].concat(),
            )
        };
        if option == [0, 0, 0, 7] {
            reply(3, &[&[0, 0][..], &(MIB as u64).to_be_bytes(), &flags.to_be_bytes()].concat())?;
            return reply(1, &[]);
        }
        reply(1, &[])?;
    }
}

/// The simple reply with `error` to this request.
fn simple(request: &[u8; 28], error: u32) -> Vec<u8> {
    [&[0x67, 0x44, 0x66, 0x98][..], &error.to_be_bytes(), &request[8..16]].concat()
}

fn chunk(request: &[u8; 28], flags: u16, kind: u16, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [&[0x66, 0x8e, 0x33, 0xef][..], &flags.to_be_bytes(), &kind.to_be_bytes(), &request[8..16], &len, data].concat()
}

#[test]
fn servers_that_break_the_protocol_are_errors_and_nothing_else() {
    let at = |offset: u64, len: usize| [&offset.to_be_bytes()[..], &vec![1; len]].concat();
    type Reply = Box<dyn Fn(&[u8; 28]) -> Vec<u8> + Send>;
    let replies: Vec<(&str, Reply)> = vec![
        ("noise", Box::new(|_| vec![0xa5; 64])),
        (
            "another cookie",
            Box::new(|r| {
                simple(
                    &{
                        let mut r = *r;
                        r[15] ^= 0x40;
                        r
                    },
                    0,
                )
            }),
        ),
        ("less than was asked for", Box::new(move |r| chunk(r, 1, 1, &at(0, 100)))),
        ("somewhere else", Box::new(move |r| chunk(r, 1, 1, &at(4096, 4096)))),
        ("before the beginning", Box::new(move |r| chunk(r, 1, 1, &at(u64::MAX - 8, 4096)))),
        ("more than was asked for", Box::new(move |r| chunk(r, 1, 1, &at(0, 4097)))),
        ("twice", Box::new(move |r| [chunk(r, 0, 1, &at(0, 4096)), chunk(r, 1, 1, &at(0, 4096))].concat())),
        ("a hole that is too large", Box::new(|r| chunk(r, 1, 2, &[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]))),
        ("an unknown chunk", Box::new(|r| chunk(r, 1, 77, &[]))),
        ("an error without a number", Box::new(|r| chunk(r, 1, 0x8001, &[0; 6]))),
        ("an error without a text", Box::new(|r| chunk(r, 1, 0x8001, &[0; 3]))),
        ("an end without data", Box::new(|r| chunk(r, 1, 0, &[]))),
    ];
    for (what, reply) in replies {
        let dir = tempfile::tempdir().expect("a folder");
        let uri = strange(dir.path(), 1, move |client, request| client.write_all(&reply(request)).is_ok());
        let impatient = RemoteOptions {
            timeout: Duration::from_millis(700),
            reconnect: Duration::from_millis(300),
            connections: 1,
            ..QUICK
        };
        let store = open(&uri, Access::ReadWrite, impatient).unwrap_or_else(|e| panic!("{what}: {e}"));
        let error = store.read_at(0, &mut vec![0; 4096]).expect_err(what);
        assert_ne!(error.kind(), io::ErrorKind::UnexpectedEof, "{what}: {error}");
    }
    // The same reply twice is one to no request the second time.
    let dir = tempfile::tempdir().expect("a folder");
    let uri = strange(dir.path(), 1, |client, request| {
        let reply = [&simple(request, 0)[..], &[9; 4096]].concat();
        client.write_all(&[&reply[..], &reply].concat()).is_ok()
    });
    let store = open(&uri, Access::ReadOnly, QUICK).expect("it opens");
    let mut read = vec![0; 4096];
    store.read_at(0, &mut read).expect("the first reply");
    store.read_at(8192, &mut read).expect("another connection has been made");
    assert_eq!(read, [9; 4096]);
}

#[test]
fn nobody_waits_for_ever_and_what_may_still_be_written_ends_the_store() {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = strange(dir.path(), 1, |_, _| true);
    let impatient = RemoteOptions {
        timeout: Duration::from_millis(300),
        reconnect: Duration::from_millis(500),
        connections: 1,
        ..QUICK
    };
    let begun = Instant::now();
    let store = open(&uri, Access::ReadOnly, impatient).expect("it opens");
    let error = store.read_at(0, &mut [0; 512]).expect_err("it never answers");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    // It is not tried for ever: the store has ended.
    assert!(store.read_at(0, &mut [0; 512]).is_err() && store.still_whole().is_err());
    assert!(begun.elapsed() < Duration::from_secs(20));

    let dir = tempfile::tempdir().expect("a folder");
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let uri = strange(dir.path(), 1, move |client, request| {
        counted.fetch_add(1, Ordering::SeqCst);
        client.read_exact(&mut vec![0; u32::from_be_bytes(request[24..].try_into().expect("four")) as usize]).is_ok()
    });
    let store = open(&uri, Access::ReadWrite, RemoteOptions { timeout: impatient.timeout, ..QUICK }).expect("it opens");
    let error = store.write_clobbering(0, &mut [0; 512]).expect_err("it never answers");
    assert!(error.to_string().contains("may still take effect"), "{error}");
    assert!(store.write_clobbering(512, &mut [0; 512]).is_err() && store.flush().is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it was not sent again");
}

/// Sends it piece by piece, one now and then.
fn drip(client: &mut UnixStream, pieces: impl IntoIterator<Item = Vec<u8>>) -> bool {
    pieces.into_iter().all(|piece| {
        thread::sleep(Duration::from_millis(100));
        client.write_all(&piece).is_ok()
    })
}

/// Servers that keep sending and never complete an answer, by the part of the protocol that they use.
fn dripping(dir: &Path) -> Vec<(&'static str, String)> {
    let at = |name: &str| {
        let dir = dir.join(name);
        fs::create_dir(&dir).expect("it is new");
        dir
    };
    let greeting = at("greeting").join("strange");
    let listener = UnixListener::bind(&greeting).expect("it listens");
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            thread::spawn(move || drip(&mut client, b"NBDMAGICIHAVEOPT".iter().cycle().map(|byte| vec![*byte])));
        }
    });
    let simple = strange(&at("simple"), 1, |client, request| {
        client.write_all(&simple(request, 0)).is_ok() && drip(client, std::iter::repeat_n(vec![7], 4096))
    });
    let chunks = strange(&at("chunks"), 1, |client, request| {
        let request = *request;
        drip(client, (0..4096_u64).map(|n| chunk(&request, 0, 1, &[&n.to_be_bytes()[..], &[7]].concat())))
    });
    let greeting = format!("nbd+unix:///?socket={}", greeting.display());
    vec![("the greeting", greeting), ("a simple reply", simple), ("chunks", chunks)]
}

#[test]
fn a_server_that_drips_is_not_waited_for_longer_than_a_silent_one() {
    let dir = tempfile::tempdir().expect("a folder");
    for (what, uri) in dripping(dir.path()) {
        let impatient = RemoteOptions { timeout: Duration::from_millis(700), reconnect: Duration::ZERO, ..QUICK };
        let begun = Instant::now();
        let read = open(&uri, Access::ReadOnly, impatient)
            .and_then(|store| Ok(store.read_at(0, &mut [0; 4096])?))
            .expect_err(what);
        assert!(matches!(&read.kind, ErrorKind::Io(e) if e.kind() == io::ErrorKind::TimedOut), "{what}: {read}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
    }
}

#[test]
fn whoever_waits_for_a_server_hears_of_the_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let mute = strange(dir.path(), 1, |_, _| true);
    for (what, uri) in dripping(dir.path()).into_iter().chain([("silence", mute)]) {
        let cancel: &'static AtomicBool = Box::leak(Box::default());
        let patient = RemoteOptions { timeout: Duration::from_secs(600), cancel: Some(cancel), ..QUICK };
        let soon = thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            cancel.store(true, Ordering::SeqCst);
        });
        let begun = Instant::now();
        let read = open(&uri, Access::ReadWrite, patient)
            .and_then(|store| Ok(store.read_at(0, &mut [0; 4096])?))
            .expect_err(what);
        assert!(matches!(read.kind, ErrorKind::Cancelled), "{what}: {read}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        soon.join().expect("no panic");
    }
}

#[test]
fn what_is_being_written_is_completed_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let cancel: &'static AtomicBool = Box::leak(Box::default());
    let uri = strange(dir.path(), 1, |client, request| {
        let len = u32::from_be_bytes(request[24..].try_into().expect("four")) as usize;
        let writes = request[7] == 1;
        if writes && client.read_exact(&mut vec![0; len]).is_err() {
            return false;
        }
        cancel.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(300));
        let data = vec![9; if writes { 0 } else { len }];
        client.write_all(&[simple(request, 0), data].concat()).is_ok()
    });
    let store = open(&uri, Access::ReadWrite, RemoteOptions { cancel: Some(cancel), ..QUICK }).expect("it opens");
    store.write_clobbering(0, &mut [1; 512]).expect("it is written");
    let mut read = [0; 512];
    store.read_at(512, &mut read).expect("what was written is read back");
    assert_eq!(read, [9; 512]);
}

/// A server that begins anew forgets what was not flushed. Its next connection works at once, while the one before it still looks whole.
#[test]
fn a_flush_is_none_where_the_server_has_begun_anew_meanwhile() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).expect("it listens");
    let writes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&writes);
    thread::spawn(move || {
        // Flags: FLUSH and MULTI_CONN.
        for (n, client) in listener.incoming().enumerate() {
            let (mut client, seen) = (client.expect("a client"), Arc::clone(&seen));
            thread::spawn(move || -> io::Result<()> {
                greet(&mut client, 1 | 4 | 256)?;
                let mut request = [0; 28];
                loop {
                    client.read_exact(&mut request)?;
                    let mut data = vec![0; u32::from_be_bytes(request[24..].try_into().expect("four")) as usize];
                    match (request[7], n) {
                        // The first server is gone, and answers no reads. Any other request ends that connection.
                        (0, 0) => {}
                        (3, 0) => return Ok(()),
                        (0, _) => client.write_all(&[simple(&request, 0), data].concat())?,
                        (1, _) => {
                            client.read_exact(&mut data)?;
                            seen.lock().expect("no panic").push((n, data[0]));
                            client.write_all(&simple(&request, 0))?;
                        }
                        (3, _) => client.write_all(&simple(&request, 0))?,
                        _ => return Ok(()),
                    }
                }
            });
        }
    });
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let store = open(&uri, Access::ReadWrite, QUICK).expect("it opens");
    store.write_clobbering(0, &mut [7; 512]).expect("it is acknowledged");
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|n| {
                scope.spawn({
                    let store = &store;
                    move || store.read_at(8192 * (n + 1), &mut [0; 512])
                })
            })
            .collect();
        // Both wait for the first connection, so that another one is made.
        thread::sleep(Duration::from_millis(300));
        store.read_at(200_000, &mut [0; 512]).expect("over the second connection");
        assert_eq!(writes.lock().expect("no panic").as_slice(), [(0, 7)]);
        store.flush().expect("a flush");
        let now = writes.lock().expect("no panic").clone();
        assert!(now.len() > 1 && now[1..].iter().all(|write| write.0 > 0 && write.1 == 7), "{now:?}");
        readers.into_iter().for_each(|reader| reader.join().expect("no panic").expect("asked again"));
    });
}

#[test]
fn errors_of_the_server_are_errors_here_and_a_failed_flush_is_the_last_one() {
    let faulty = Faulty::new(&noise(MIB, 2));
    let serving = Serving::store(Arc::<Faulty>::clone(&faulty));
    let store = open(serving.uri(), Access::ReadWrite, QUICK).expect("it opens");
    faulty.bad_byte.store(70_000, Ordering::SeqCst);
    assert!(store.read_at(65536, &mut vec![0; 65536]).is_err());
    store.read_at(0, &mut vec![0; 65536]).expect("the rest can be read");
    *faulty.fail_writes.lock().expect("no panic") = Some(io::ErrorKind::StorageFull);
    assert_eq!(store.write_clobbering(0, &mut [0; 512]).expect_err("full").kind(), io::ErrorKind::StorageFull);
    *faulty.fail_writes.lock().expect("no panic") = None;
    store.write_clobbering(0, &mut [1; 512]).expect("there is room again");
    store.flush().expect("a flush");
    faulty.fail_flush.store(true, Ordering::SeqCst);
    store.write_clobbering(0, &mut [2; 512]).expect("a write");
    assert!(store.flush().is_err());
    faulty.fail_flush.store(false, Ordering::SeqCst);
    assert!(store.flush().is_err(), "what was lost does not come back");
    assert!(store.write_clobbering(0, &mut [3; 512]).is_err());
    store.read_at(0, &mut [0; 512]).expect("it can be read");
}

#[test]
fn helpers_are_started_again_end_with_the_store_and_say_why_they_do_not_start() {
    if program("nbdkit").is_none() || program("qemu-nbd").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (image, pid_file) = (dir.path().join("image"), dir.path().join("pid"));
    fs::write(&image, noise(MIB, 4)).expect("a file");
    let (file, pid) = (format!("file={}", image.display()), format!("--pidfile={}", pid_file.display()));
    let store = nbdkit(&[&pid, "file", &file]).open(Access::ReadWrite, QUICK).expect("it opens");
    let pid = || fs::read_to_string(&pid_file).ok().and_then(|text| text.trim().parse::<i32>().ok()).expect("a number");
    store.write_clobbering(0, &mut [5; 4096]).expect("a write");
    let first = pid();
    run(Command::new("kill").args(["-9", &first.to_string()]));
    store.write_clobbering(4096, &mut [6; 4096]).expect("another one does it");
    store.flush().expect("a flush");
    let second = pid();
    assert_ne!(first, second);
    drop(store);
    assert!(!Path::new(&format!("/proc/{second}")).exists(), "it has ended");
    assert_eq!(fs::read(&image).expect("a file")[..8192], [[5; 4096], [6; 4096]].concat());

    let said = |place: RemoteAddress| place.open(Access::ReadOnly, QUICK).err().expect("it does not open").to_string();
    let error =
        said(RemoteAddress::parse(OsStr::new("qcow2:/no/such.qcow2"), &helpers()).expect("a place").expect("no path"));
    assert!(error.contains("No such file"), "{error}");
    let error =
        said(RemoteAddress::Helped(Helper { program: "no-such-program".into(), ..helpers().remove(0) }, "x".into()));
    assert!(error.contains("install the package qemu-block-extra"), "{error}");
}

#[test]
fn a_helper_that_is_killed_again_and_again_loses_nothing() {
    if program("nbdkit").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (image, pid_file) = (dir.path().join("image"), dir.path().join("pid"));
    fs::write(&image, noise(6 * MIB, 4)).expect("a file");
    let (file, pid) = (format!("file={}", image.display()), format!("--pidfile={}", pid_file.display()));
    // Late, so that there are several connections, and much is under way.
    let late = ["--filter=delay", &pid, "file", &file, "rdelay=1ms", "wdelay=2ms"];
    let store = nbdkit(&late).open(Access::ReadWrite, QUICK).expect("it opens");
    let expected = thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let kill = |_: &u32| {
                thread::sleep(Duration::from_millis(80));
                let pid = fs::read_to_string(&pid_file).unwrap_or_default();
                Command::new("kill").args(["-9", pid.trim()]).output().is_ok_and(|output| output.status.success())
            };
            (0..15).filter(kill).count()
        });
        let expected = exercise(&store, 77, 60);
        assert!(killer.join().expect("no panic") > 2, "it was hardly ever killed");
        expected
    });
    assert!(whole(&*store) == expected);
    drop(store);
    assert!(fs::read(&image).expect("a file") == expected);
}

#[test]
fn places_are_told_from_paths() {
    let is_place = |text: &str| RemoteAddress::parse(OsStr::new(text), &helpers()).expect(text).is_some();
    for place in ["nbd://h", "nbds+unix:///x?socket=y", "rbd:pool/image", "s3:bucket/key", "https://h/x", "qcow2:a:b"] {
        assert!(is_place(place), "{place}");
    }
    for path in ["disk.img", "./rbd:x", "/a:b", "rbd", "c:disk", "nbd:x", "C:\\disk"] {
        assert!(!is_place(path), "{path}");
    }
    for wrong in ["nbd+vsock://1", "s3:bucket", "ssh:host"] {
        assert!(RemoteAddress::parse(OsStr::new(wrong), &helpers()).is_err(), "{wrong}");
    }
}
