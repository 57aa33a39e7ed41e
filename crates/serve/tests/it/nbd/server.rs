//! How a server begins and ends: its socket, its limits, and what it leaves behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Faulty, Gated, Serving, memory, noise, volume, volume_on};
use crate::steady::resident;
use claviger_crypto::dmcrypt::Sectors;
use claviger_crypto::modes::aead::AeadSpecification;
use claviger_engine::volume::integrity;
use claviger_engine::{Acceleration, Error, ErrorKind, Layout, Store, Volume};
use claviger_serve::nbd::{Client, Export, NbdAddress, Server, ServerOptions};
use claviger_testkit::stores::CachedStore;
use claviger_testkit::tools;

fn disk() -> Vec<Export> {
    vec![Export::new("disk", memory(&[0; 4096]))]
}

fn bind(path: &Path) -> Result<Server, Error> {
    Server::bind(&NbdAddress::Unix(path.to_owned()), disk(), ServerOptions::default())
}

#[test]
fn the_socket_is_private_and_goes_with_the_server() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("socket");
    let server = bind(&path).expect("it listens");
    let metadata = fs::symlink_metadata(&path).expect("it is there");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    drop(server);
    assert!(!path.exists());

    let server = bind(&path).expect("it listens again");
    let handle = server.handle();
    let running = thread::spawn(move || server.run());
    drop(Client::connect(&NbdAddress::Unix(path.clone()), "disk").expect("it answers"));
    handle.stop();
    handle.stop(); // twice is once
    running.join().expect("no panic").expect("all is durable");
    assert!(!path.exists());
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0, "nothing is left");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("socket");
    drop(UnixListener::bind(&path).expect("a socket")); // its file stays, and nobody answers
    let server = bind(&path).expect("it takes the place");

    let error = bind(&path).err().expect("it is taken");
    assert!(matches!(error.kind, ErrorKind::InUse { .. }), "{error}");
    assert_eq!(error.path.as_deref(), Some(&*path));
    UnixStream::connect(&path).expect("the first one still listens");

    // A socket that somebody else has put there is not removed.
    fs::remove_file(&path).expect("it is a file");
    let other = UnixListener::bind(&path).expect("a socket");
    drop(server);
    UnixStream::connect(&path).expect("the other one listens");
    drop(other);

    for name in ["file", "folder"] {
        let path = dir.path().join(name);
        if name == "file" { fs::write(&path, b"precious") } else { fs::create_dir(&path) }.expect("it is made");
        let error = bind(&path).err().expect("there is something");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    }
    assert_eq!(fs::read(dir.path().join("file")).expect("it is there"), b"precious");
    let error = bind(&dir.path().join("x".repeat(120))).err().expect("too long");
    assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    let error = bind(&dir.path().join("none/socket")).err().expect("no such folder");
    assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
}

#[test]
fn of_many_servers_that_begin_at_once_one_listens() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for round in 0..20 {
        let path = dir.path().join(format!("socket{round}"));
        drop(UnixListener::bind(&path).expect("a stale socket"));
        let begin = Barrier::new(4);
        let servers: Vec<_> = thread::scope(|s| {
            let one = || {
                begin.wait();
                bind(&path)
            };
            let all: Vec<_> = (0..4).map(|_| s.spawn(one)).collect();
            all.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert_eq!(servers.iter().filter(|s| s.is_ok()).count(), 1);
        UnixStream::connect(&path).expect("it can be reached");
    }
}

#[test]
fn tcp_stays_on_this_machine() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:10809", "[2001:db8::1]:10809", "8.8.8.8:10809"] {
        let address = NbdAddress::Tcp(address.parse().expect("an address"));
        let error = Server::bind(&address, disk(), ServerOptions::default()).err().expect("it is refused");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)) && error.to_string().contains("TLS"), "{error}");
    }
    let first = Server::bind(&NbdAddress::Tcp(([127, 0, 0, 1], 0).into()), disk(), ServerOptions::default())
        .expect("it listens");
    assert!(first.uri("a b").starts_with("nbd://127.0.0.1:") && first.uri("a b").ends_with("/a%20b"));
    let error = Server::bind(first.address(), disk(), ServerOptions::default()).err().expect("it is taken");
    assert!(matches!(error.kind, ErrorKind::InUse { .. }), "{error}");
}

#[test]
fn exports_without_sense_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let address = NbdAddress::Unix(dir.path().join("socket"));
    let twice = disk().into_iter().chain(disk()).collect();
    for exports in [vec![], twice] {
        let error = Server::bind(&address, exports, ServerOptions::default()).err().expect("it is refused");
        assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0, "and nothing is left");
}

#[test]
fn connections_are_limited() {
    let serving = Serving::with(disk(), ServerOptions { max_connections: 3, ..ServerOptions::default() });
    let NbdAddress::Unix(path) = &serving.address else { unreachable!() };
    let mut clients: Vec<Client> = (0..3).map(|_| serving.client()).collect();
    let mut one_more = UnixStream::connect(path).expect("it listens");
    assert_eq!(one_more.read(&mut [0; 1]).expect("it is closed"), 0);
    clients.iter_mut().for_each(|c| c.read_at(0, &mut [0; 512]).expect("it reads"));
    clients.pop().expect("three").disconnect().expect("it ends");
    client_when_free(&serving).read_at(0, &mut [0; 512]).expect("it reads");
}

#[test]
fn a_handshake_takes_only_so_long() {
    let options =
        ServerOptions { handshake_timeout: Duration::from_millis(50), max_connections: 1, ..ServerOptions::default() };
    let serving = Serving::with(disk(), options);
    let NbdAddress::Unix(path) = &serving.address else { unreachable!() };
    // Silent; and one that sends options for ever, one byte at a time.
    let mut silent = UnixStream::connect(path).expect("it listens");
    silent.read_to_end(&mut Vec::new()).expect("it is closed");
    drop(silent);
    let mut slow = loop {
        let mut stream = UnixStream::connect(path).expect("it listens");
        if stream.read_exact(&mut [0; 18]).is_ok() {
            break stream;
        }
    };
    let option = b"\0\0\0\x03IHAVEOPT\0\0\0\x63\0\0\xff\xff".iter().chain(std::iter::repeat(&0));
    for byte in option {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        thread::yield_now();
    }
    drop(slow);
    // A client that has chosen an export may take any time.
    let mut client = client_when_free(&serving);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        thread::yield_now();
    }
    client.read_at(0, &mut [0; 512]).expect("it is still served");
}

#[test]
fn stopping_lets_requests_finish_and_ends_the_idle() {
    let (store, came, go) = Gated::new(&[0; 4096]);
    let serving = Serving::store(store.clone());
    let mut idle = serving.client();
    idle.read_at(0, &mut [0; 16]).expect("it reads");
    let NbdAddress::Unix(path) = serving.address.clone() else { unreachable!() };
    let mut half_open = UnixStream::connect(&path).expect("it listens");
    half_open.read_exact(&mut [0; 18]).expect("it is greeted");
    let mut writer = serving.client();
    let writing = thread::spawn(move || {
        let written = writer.write_at(512, &[7; 1024]);
        (written, writer.read_at(0, &mut [0; 16]))
    });
    came.recv().expect("the write has come");
    serving.handle.stop();
    while idle.read_at(0, &mut [0; 16]).is_ok() {} // the server takes a moment to hear of it
    assert_eq!(half_open.read(&mut [0; 16]).unwrap_or(0), 0, "so does a half-open one");
    go.send(()).expect("it waits");
    let (written, after) = writing.join().expect("no panic");
    written.expect("the write is answered");
    after.expect_err("nothing else is");
    serving.finished().expect("all is durable");
    assert_eq!(store.inner.to_vec()[512..1536], [7; 1024]);
    assert!(!path.exists());
}

#[test]
fn requests_that_were_sent_before_the_stop_are_answered() {
    let (store, came, go) = Gated::new(&[0; 4096]);
    let serving = Serving::store(store.clone());
    let mut client = serving.client();
    for i in 0..4u8 {
        client.submit_write(u64::from(i) * 512, &[i + 1; 512]).expect("it is sent");
    }
    came.recv().expect("the first has come");
    serving.handle.stop();
    (0..4).for_each(|_| go.send(()).expect("it waits"));
    for _ in 0..4 {
        client.complete(&mut []).expect("an answer").result.expect("success");
    }
    serving.finished().expect("all is durable");
    assert!(store.inner.to_vec()[..2048].chunks(512).zip(1..).all(|(c, i)| c == [i; 512]));
}

#[test]
fn what_takes_longer_than_the_grace_is_cut_off() {
    let options = ServerOptions { grace: Duration::from_millis(20), ..ServerOptions::default() };
    let export = Export::new("disk", memory(&vec![0; 32 << 20]));
    let serving = Serving::with(vec![export], options);
    let mut client = serving.client();
    client.submit_read(0, 32 << 20);
    client.submit_write(0, &[1]).expect("both are sent"); // and the reply to the first has no room on its way
    serving.stop().expect("all is durable");
}

#[test]
fn stopping_flushes_every_store_that_can_be_written() {
    let stores = [(); 3].map(|()| Faulty::new(&[0; 512]));
    let exports = stores.iter().zip(["a", "b", "c"]).map(|(store, name)| Export {
        read_only: name == "b",
        ..Export::new(name, Arc::clone(store) as Arc<dyn Store>)
    });
    let serving = Serving::with(exports.collect(), ServerOptions::default());
    serving.stop().expect("all is durable");
    let flushes = stores.map(|s| s.flushes.load(Ordering::SeqCst));
    assert_eq!(flushes, [1, 0, 1]);

    let store = Faulty::new(&[0; 512]);
    store.fail_flush.store(true, Ordering::SeqCst);
    let error = Serving::store(store).stop().expect_err("the flush fails");
    assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
}

#[test]
fn a_handle_keeps_no_store_open() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("image");
    fs::write(&path, [0; 4096]).expect("a file");
    let serving = Serving::store(volume(&path)); // which has the file to itself
    let handle = serving.handle.clone();
    let mut client = serving.client();
    client.read_at(0, &mut [0; 512]).expect("it reads");
    serving.stop().expect("all is durable");
    drop(volume(&path));
    handle.stop();
}

/// Like a file in the kernel: of two concurrent flushes, only one gets the error of a lost write.
struct LosesOneWrite {
    told: AtomicBool,
    begun: Barrier,
    go_on: Barrier,
}

impl Store for LosesOneWrite {
    fn len(&self) -> u64 {
        4096
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Ok(())
    }
    fn write_clobbering(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> std::io::Result<()> {
        if self.told.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.begun.wait();
        self.go_on.wait();
        Err(std::io::ErrorKind::Other.into())
    }
}

#[test]
fn a_flush_beside_one_that_fails_does_not_succeed() {
    let store = LosesOneWrite { told: AtomicBool::new(false), begun: Barrier::new(2), go_on: Barrier::new(2) };
    let store = Arc::new(store);
    let serving = Serving::store(Arc::clone(&store) as Arc<dyn Store>);
    let (mut one, mut other) = (serving.client(), serving.client());
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(move || one.flush());
        store.begun.wait();
        let second = scope.spawn(move || other.flush());
        store.go_on.wait();
        (first.join().expect("no panic"), second.join().expect("no panic"))
    });
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
    assert!(serving.stop().is_err(), "the last flush tells it once more");
}

#[test]
fn a_panic_in_a_store_ends_one_connection_only() {
    struct Panicky;
    impl Store for Panicky {
        fn len(&self) -> u64 {
            4096
        }
        fn read_at(&self, offset: u64, _: &mut [u8]) -> std::io::Result<()> {
            assert_ne!(offset, 13, "planted");
            Ok(())
        }
        fn write_clobbering(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let serving = Serving::with(
        vec![Export::new("disk", Arc::new(Panicky))],
        ServerOptions { max_connections: 2, ..ServerOptions::default() },
    );
    for _ in 0..5 {
        let (mut good, mut bad) = (client_when_free(&serving), client_when_free(&serving));
        bad.read_at(13, &mut [0; 1]).expect_err("the connection is gone");
        good.read_at(0, &mut [0; 512]).expect("it reads");
        good.disconnect().expect("it ends");
    }
    serving.stop().expect("it ends as ever");
}

/// A client, once the server has noticed that others are gone.
fn client_when_free(serving: &Serving) -> Client {
    loop {
        if let Ok(client) = Client::connect(&serving.address, "disk") {
            return client;
        }
        thread::yield_now();
    }
}

/// Serves a volume in a process of its own, for the test below. Ends with its standard input.
#[test]
#[ignore = "run by memory_is_given_back_when_idle"]
fn a_server_of_its_own() {
    let path = std::env::var("CLAVIGER_NBD_FILE").expect("a volume");
    let options = ServerOptions { idle_after: Duration::from_millis(50), ..ServerOptions::default() };
    let serving = Serving::with(vec![Export::new("disk", volume(Path::new(&path)))], options);
    let NbdAddress::Unix(socket) = &serving.address else { unreachable!() };
    println!("socket {}", socket.display());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("it ends");
    serving.stop().expect("all is durable");
}

/// That process.
pub struct Apart {
    pub child: Child,
    pub address: NbdAddress,
}

impl Apart {
    pub fn start(path: &Path) -> Self {
        let mut child = tools::with_usual_memory(&mut Command::new(std::env::current_exe().expect("this program")))
            .args(["--ignored", "--exact", "nbd::server::a_server_of_its_own", "--nocapture"])
            .env("CLAVIGER_NBD_FILE", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let socket = lines.find_map(|line| line.split_once("socket ").map(|(_, socket)| socket.to_owned()));
        // The test harness still has something to say at the end.
        thread::spawn(move || lines.for_each(drop));
        Self { child, address: NbdAddress::Unix(socket.expect("it says where").into()) }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.address, "disk").expect("it answers")
    }

    pub fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}

#[test]
fn memory_is_given_back_when_idle() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("image");
    fs::File::create(&path).and_then(|f| f.set_len(64 << 20)).expect("a file");
    let server = Apart::start(&path);
    let mut clients: Vec<Client> = (0..8).map(|_| server.client()).collect();
    let mut data = noise(32 << 20, 1);
    for client in &mut clients {
        client.write_at(512, &data).expect("it writes");
        client.read_at(0, &mut data).expect("it reads");
    }
    // All of them are still connected.
    let deadline = Instant::now() + Duration::from_secs(60);
    // The allocator keeps up to two buffers a thread; the requests alone were 256 MiB.
    while resident(server.child.id()) > 12 << 20 {
        assert!(Instant::now() < deadline, "{} KiB are still resident", resident(server.child.id()) >> 10);
        thread::yield_now();
    }
    clients.iter_mut().for_each(|c| c.read_at(0, &mut data[..4096]).expect("it is still served"));
    server.stop();
}

#[test]
fn a_sector_that_was_changed_by_others_is_an_error_and_the_rest_is_served() {
    let specification = AeadSpecification::parse("aes-xts-plain64", "hmac(sha256)").expect("it is known");
    let cipher = specification.with_key(&[7; 96], Sectors::default(), Acceleration::On).expect("it fits");
    let store = memory(&vec![0; 2 << 20]);
    integrity::format(&*store, 0, 2 << 20, &*cipher, &mut |_, _| Ok(())).expect("there is room");
    let serve = || {
        let area = integrity::open(&*store, 0, 2 << 20, 32, 512).expect("it is good");
        let segment = integrity::segment(Arc::new(area), 0, Arc::clone(&cipher), true).expect("they fit");
        let layout = Layout::new(vec![segment]).expect("one segment");
        Serving::store(Arc::new(Volume::new(Arc::clone(&store) as Arc<dyn Store>, layout)))
    };
    let mut data = noise(64 << 10, 3);
    let serving = serve();
    serving.client().write_at(0, &data).expect("it is written");
    serving.stop().expect("all is durable");

    // One bit in the place of sector 20, which is known by its ciphertext.
    let (mut stored, mut tag) = (data[20 * 512..][..512].to_vec(), [0; 32]);
    cipher.encrypt(20, &mut stored, &mut tag);
    let at = store.to_vec().chunks(512).position(|sector| sector == stored).expect("it is in its place") as u64 * 512;
    store.write_clobbering(at + 100, &mut [stored[100] ^ 1]).expect("there is room");

    let serving = serve();
    let mut client = serving.client();
    let mut sector = [0; 512];
    let eio = |result: std::io::Result<()>| assert_eq!(result.map_err(|e| e.raw_os_error()), Err(Some(5)));
    for _ in 0..2 {
        eio(client.read_at(20 * 512, &mut sector));
        eio(client.read_at(0, &mut data.clone()));
        client.read_at(21 * 512, &mut sector).expect("its neighbour is good");
        assert!(sector == data[21 * 512..][..512]);
    }
    eio(client.write_at(20 * 512 + 7, &[1; 8]));
    client.write_at(20 * 512, &[4; 512]).expect("all of it can be written");
    client.read_at(0, &mut data).expect("all is good again");
    assert!(data[20 * 512..][..512] == [4; 512]);
    serving.stop().expect("all is durable");
}

/// The promise of CAN_MULTI_CONN ("Transmission flags"): once a write is answered, all connections read it, and a flush on one
/// covers the writes answered on all.
#[test]
fn sixteen_connections_see_one_disk() {
    const CONNECTIONS: usize = 16;
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 64;
    let disk = Arc::new(CachedStore::new(vec![0; CONNECTIONS * BLOCKS * BLOCK], u64::MAX));
    let serving = Serving::store(volume_on(Arc::clone(&disk) as Arc<dyn Store>));
    // Which connection has a block in which round: each time another one.
    let block = |number: usize, connection: usize, round: usize| {
        let of = (connection + round) % CONNECTIONS;
        let bytes = noise(BLOCK, (number * CONNECTIONS * 100 + of * 100 + round) as u64);
        (((number * CONNECTIONS + of) * BLOCK) as u64, bytes)
    };
    let together = Barrier::new(CONNECTIONS);
    thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            let (serving, together, block, disk) = (&serving, &together, &block, &disk);
            scope.spawn(move || {
                let mut client = serving.client();
                let mut read = vec![0; BLOCK];
                for round in 0..4 {
                    for number in 0..BLOCKS {
                        let (at, bytes) = block(number, connection, round);
                        client.submit_write(at, &bytes).expect("sent");
                    }
                    while client.in_flight() > 0 {
                        client.complete(&mut []).expect("an answer").result.expect("written");
                    }
                    together.wait();
                    for number in 0..BLOCKS {
                        let (at, bytes) = block(number, connection + 5, round);
                        client.read_at(at, &mut read).expect("read");
                        assert!(read == bytes, "{connection} reads what another has written");
                    }
                    if connection == round {
                        client.flush().expect("durable");
                        let durable = volume_on(memory(&disk.on_disk()));
                        for other in 0..CONNECTIONS {
                            let (at, bytes) = block(0, other, round);
                            durable.read_at(at, &mut read).expect("read");
                            assert!(read == bytes, "what {other} has written is durable");
                        }
                    }
                    together.wait();
                }
            });
        }
    });
    serving.stop().expect("all is durable");
}
