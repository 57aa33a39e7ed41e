//! TLS: with programs of others, in both directions, and with peers that are not who they should be.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Serving, memory, more_descriptors, noise};
use claviger_engine::Store;
use claviger_engine::store::MemoryStore;
use claviger_serve::nbd::{Client, ClientTls, Export, NbdAddress, Replies, ServerOptions, ServerTls};
use claviger_testkit::certificates::Authority;
use claviger_testkit::tools::{program, run};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A server with TLS on a port of its own.
fn serving(authority: &Authority, verify_peers: bool, store: Arc<dyn Store>) -> Serving {
    let tls = ServerTls::new(authority.folder(), verify_peers).expect("certificates");
    let options = ServerOptions { tls: Some(tls), ..ServerOptions::default() };
    let anywhere = NbdAddress::Tcp(([127, 0, 0, 1], 0).into());
    Serving::at(&anywhere, temporary(), vec![Export::new("disk", store)], options)
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn port(address: &NbdAddress) -> u16 {
    let NbdAddress::Tcp(address) = address else { panic!("TCP") };
    address.port()
}

/// Our client, with the certificates in `folder`.
fn client(folder: &Path, name: &str, address: &NbdAddress) -> io::Result<Client> {
    let tls = ClientTls::new(folder, name).expect("certificates");
    Client::connect_over(Some(&tls), address, "disk", Replies::Structured)
}

/// Why our client fails, at the latest when it first reads.
fn failure(folder: &Path, name: &str, address: &NbdAddress) -> String {
    let read = client(folder, name, address).and_then(|mut c| c.read_at(0, &mut [0; 512]));
    read.expect_err("it is refused").to_string()
}

#[test]
fn programs_of_others_read_and_write() {
    let folder = temporary();
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let store = memory(&vec![0; 8 * MIB]);
    let serving = serving(&authority, true, Arc::<MemoryStore>::clone(&store));
    let contents = || {
        let mut all = vec![0; 8 * MIB];
        store.read_at(0, &mut all).expect("memory");
        all
    };
    assert!(serving.uri().starts_with("nbds://127.0.0.1:"), "{}", serving.uri());
    let dir = temporary();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    fs::write(&image, noise(8 * MIB, 3)).expect("written");
    if let Some(nbdcopy) = program("nbdcopy") {
        run(Command::new(&nbdcopy).arg(&image).arg(serving.uri()));
        assert!(contents() == noise(8 * MIB, 3));
        run(Command::new(&nbdcopy).arg(serving.uri()).arg(&copy));
        assert!(fs::read(&copy).expect("a copy") == noise(8 * MIB, 3));
    }
    if let Some(nbdinfo) = program("nbdinfo") {
        let output = run(Command::new(nbdinfo).args(["--json", serving.uri()]));
        let json: String = String::from_utf8_lossy(&output.stdout).split_whitespace().collect();
        assert!(json.contains("\"TLS\":true"), "{json}");
    }
    if let Some(nbdsh) = program("nbdsh") {
        let connect = format!("h.set_uri_allow_local_file(True); h.connect_uri('{}')", serving.uri());
        let script = "h.pwrite(b'nbdsh' * 100, 4096); h.flush(); print(h.pread(500, 4096)); h.shutdown()";
        let output = run(Command::new(nbdsh).env("PATH", "/usr/bin:/bin").args(["-c", &connect, "-c", script]));
        assert!(String::from_utf8_lossy(&output.stdout).contains("nbdshnbdsh"));
        assert!(contents()[4096..4596] == b"nbdsh".repeat(100));
    }
    if let Some(qemu) = program("qemu-img") {
        let object = format!("tls-creds-x509,id=t,dir={},endpoint=client", folder.path().display());
        let options = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=t", port(&serving.address));
        run(Command::new(qemu)
            .args(["convert", "-O", "raw", "--object", &object, "--image-opts", &options])
            .arg(&copy));
        assert!(fs::read(&copy).expect("a copy") == contents());
    }
    serving.stop().expect("all is durable");
}

#[test]
fn clients_without_the_right_certificate_are_refused() {
    let (folder, strangers, lent) = (temporary(), temporary(), temporary());
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let Some(stranger) = Authority::with_both(strangers.path()) else { return };
    let serving = serving(&authority, true, memory(&[7; MIB]));
    let refused = |files: &Path, why: &str| {
        let said = failure(files, "localhost", &serving.address);
        assert!(said.contains(why), "{said}");
        if let Some(nbdinfo) = program("nbdinfo") {
            let port = port(&serving.address);
            let uri = format!("nbds://localhost:{port}/disk?tls-certificates={}", files.display());
            assert!(!Command::new(nbdinfo).arg(uri).output().expect("it runs").status.success());
        }
    };
    client(folder.path(), "localhost", &serving.address).expect("the right one is let in");
    let at = |name: &str| lent.path().join(name);
    // None, one of another authority, one that is over, and one that is for servers.
    fs::create_dir(at("none")).expect("a folder");
    fs::copy(folder.path().join("ca-cert.pem"), at("none").join("ca-cert.pem")).expect("copied");
    refused(&at("none"), "requires a certificate");
    stranger.lend("client", &authority, &at("strange"));
    refused(&at("strange"), "authority");
    authority.issue("client", "", -1);
    authority.lend("client", &authority, &at("expired"));
    refused(&at("expired"), "expired");
    for (from, to) in [("server-cert.pem", "client-cert.pem"), ("server-key.pem", "client-key.pem")] {
        fs::copy(folder.path().join(from), at("expired").join(to)).expect("copied");
    }
    refused(&at("expired"), "does not accept our certificate");
    // And in the clear.
    let error = Client::connect(&serving.address, "disk").err().expect("it is refused");
    assert!(error.to_string().contains("requires TLS"), "{error}");
    authority.issue("client", "", 30);
    client(folder.path(), "localhost", &serving.address).expect("the right one is still let in");

    let open = self::serving(&authority, false, memory(&[7; MIB]));
    let mut all = [0; 512];
    client(&at("none"), "localhost", &open.address).expect("let in").read_at(0, &mut all).expect("read");
    assert_eq!(all, [7; 512]);
}

/// Clients that begin with TLS, or do not even begin, and leave it at that.
#[test]
fn unfinished_handshakes_keep_nobody_out() {
    let folder = temporary();
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    more_descriptors();
    let tls = ServerTls::new(authority.folder(), true).expect("certificates");
    let options =
        ServerOptions { tls: Some(tls), handshake_timeout: Duration::from_secs(600), ..ServerOptions::default() };
    let anywhere = NbdAddress::Tcp(([127, 0, 0, 1], 0).into());
    let serving = Serving::at(&anywhere, temporary(), vec![Export::new("disk", memory(&[7; MIB]))], options);
    let begin_tls = [&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 5, 0, 0, 0, 0]].concat();
    for many in [64, 500] {
        let unfinished: Vec<_> = (0..many)
            .map(|nth| {
                let mut stream =
                    std::net::TcpStream::connect(("127.0.0.1", port(&serving.address))).expect("it listens");
                if nth % 2 == 0 {
                    // The header of a record and of a ClientHello, and then nothing.
                    stream.write_all(&[&begin_tls[..], &[22, 3, 1, 2, 0, 1, 0, 1, 252]].concat()).expect("sent");
                }
                stream
            })
            .collect();
        let mut all = [0; 512];
        let client = client(folder.path(), "localhost", &serving.address);
        client.expect("let in").read_at(0, &mut all).expect("read");
        assert_eq!(all, [7; 512]);
        drop(unfinished);
    }
}

#[test]
fn servers_that_are_not_who_they_should_be_are_refused() {
    let (folder, strangers, lent) = (temporary(), temporary(), temporary());
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let Some(stranger) = Authority::with_both(strangers.path()) else { return };
    let refused = |authority: &Authority, files: &Path, name: &str, why: &str| {
        let serving = serving(authority, false, memory(&[7; MIB]));
        let said = failure(files, name, &serving.address);
        assert!(said.contains(why), "{said}");
    };
    stranger.lend("client", &stranger, &lent.path().join("stranger"));
    refused(&authority, &lent.path().join("stranger"), "localhost", "not from an authority in ca-cert.pem");
    refused(
        &authority,
        folder.path(),
        "example.org",
        "is for DnsName(\"localhost\"), IpAddress(127.0.0.1), not for example.org",
    );
    refused(&authority, folder.path(), "127.0.0.2", "not for 127.0.0.2");
    authority.issue("server", "DNS:localhost", -1);
    refused(&authority, folder.path(), "localhost", "has expired");
    authority.issue("server", "", 30);
    refused(&authority, folder.path(), "localhost", "no subjectAltName");
    authority.issue("server", "DNS:localhost", 30);
    authority.revoke("server");
    refused(&authority, folder.path(), "localhost", "has been revoked");
}

/// A program that serves, until it is dropped.
struct Other(Child);

impl Other {
    /// Starts it on a free port, once it listens there.
    fn start(command: impl FnOnce(u16) -> Command) -> (Self, NbdAddress) {
        // Free until somebody else takes it, which is unlikely.
        let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a port");
        let mut child = command(address.port()).spawn().expect("it starts");
        let until = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(child.try_wait().expect("a child").is_none() && Instant::now() < until, "it does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        (Self(child), NbdAddress::Tcp(address))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn servers_of_others_are_read_and_written() {
    let (folder, strangers) = (temporary(), temporary());
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let Some(_) = Authority::with_both(strangers.path()) else { return };
    let there_and_back = |address: &NbdAddress, name: &str| {
        let tls = ClientTls::new(authority.folder(), "localhost").expect("certificates");
        let mut client = Client::connect_over(Some(&tls), address, name, Replies::Structured).expect("it lets us in");
        let (data, mut back) = (noise(3 * MIB + 512, 5), vec![0; 3 * MIB + 512]);
        client.write_at(512, &data).expect("written");
        client.flush().expect("durable");
        client.read_at(512, &mut back).expect("read");
        assert!(back == data);
        client.disconnect().expect("said");
        let tls = ClientTls::new(strangers.path(), "localhost").expect("certificates");
        let error = Client::connect_over(Some(&tls), address, name, Replies::Structured).err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        let error = Client::connect(address, name).err().expect("it is refused");
        assert!(error.to_string().contains("requires TLS"), "{error}");
    };
    if let Some(nbdkit) = program("nbdkit") {
        let (_running, address) = Other::start(|port| {
            let mut command = Command::new(&nbdkit);
            command.args(["-f", "-i", "127.0.0.1", "-p", &port.to_string(), "--tls=require", "--tls-verify-peer"]);
            command.arg(format!("--tls-certificates={}", folder.path().display())).args(["memory", "8M"]);
            command
        });
        there_and_back(&address, "");
    }
    if let Some(qemu) = program("qemu-nbd") {
        let dir = temporary();
        let image = dir.path().join("image");
        fs::File::create(&image).and_then(|f| f.set_len(8 << 20)).expect("a file");
        let (_running, address) = Other::start(|port| {
            let mut command = Command::new(&qemu);
            let credentials =
                format!("tls-creds-x509,id=t,dir={},endpoint=server,verify-peer=yes", folder.path().display());
            command.args(["-t", "-f", "raw", "-b", "127.0.0.1", "-p", &port.to_string(), "--object", &credentials]);
            command.args(["--tls-creds", "t", "-x", "disk"]).arg(&image);
            command
        });
        there_and_back(&address, "disk");
        assert!(fs::read(&image).expect("the image")[512..][..3 * MIB + 512] == noise(3 * MIB + 512, 5));
    }
}

/// A server with TLS on a Unix socket.
fn on_a_socket(authority: &Authority, options: ServerOptions) -> Serving {
    let tls = ServerTls::new(authority.folder(), true).expect("certificates");
    Serving::with(vec![Export::new("disk", memory(&noise(4 * MIB, 9)))], ServerOptions { tls: Some(tls), ..options })
}

/// A client that has sent its flags, and nothing more.
fn greeted(serving: &Serving) -> UnixStream {
    let NbdAddress::Unix(path) = &serving.address else { panic!("a Unix socket") };
    let mut stream = UnixStream::connect(path).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    assert_eq!(hear(&mut stream, 18), b"NBDMAGICIHAVEOPT\x00\x03");
    stream.write_all(&[0, 0, 0, 3]).expect("said");
    stream
}

fn option(number: u8, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &[0, 0, 0, number][..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn hear(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut heard = vec![0; len];
    stream.read_exact(&mut heard).expect("an answer");
    heard
}

/// The type of the answer to an option.
fn answer(stream: &mut UnixStream) -> u32 {
    let header = hear(stream, 20);
    hear(stream, u32::from_be_bytes(header[16..].try_into().expect("4")) as usize);
    u32::from_be_bytes(header[12..16].try_into().expect("4"))
}

/// Everything that still arrives.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn nothing_is_told_in_the_clear() {
    const ACK: u32 = 1;
    const INVALID: u32 = (1 << 31) + 3;
    const TLS_REQUIRED: u32 = (1 << 31) + 5;
    let folder = temporary();
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let serving = on_a_socket(&authority, ServerOptions::default());
    let mut client = greeted(&serving);
    // LIST, INFO, GO, structured replies, metadata contexts, and one that nobody knows.
    for number in [3, 6, 7, 8, 10, 99] {
        client.write_all(&option(number, b"")).expect("said");
        assert_eq!(answer(&mut client), TLS_REQUIRED);
    }
    client.write_all(&option(5, b"x")).expect("said");
    assert_eq!(answer(&mut client), INVALID);
    client.write_all(&option(2, b"")).expect("said");
    assert_eq!(answer(&mut client), ACK);
    assert_eq!(rest(client), b"");
    let mut client = greeted(&serving);
    client.write_all(&option(1, b"disk")).expect("said");
    assert_eq!(rest(client), b"", "no size");

    // Plaintext after the demand for TLS, or instead of TLS, ends the connection with at most an alert, which begins with 21.
    let pipelined = [option(5, b""), option(3, b"")].concat();
    let garbage = [option(5, b""), noise(100_000, 3)].concat();
    let cut = [option(5, b""), b"\x16\x03\x01\x02\x00\x01\x00".to_vec()].concat();
    for what in [pipelined, garbage, cut] {
        let mut client = greeted(&serving);
        let _ = client.write_all(&what); // it may not wait for the end
        let _ = client.shutdown(std::net::Shutdown::Write);
        assert_eq!(answer(&mut client), ACK);
        let rest = rest(client);
        assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
    }
    self::client(folder.path(), "localhost", &serving.address).expect("it still serves");
}

#[test]
fn silent_clients_keep_nobody_out_for_long() {
    let folder = temporary();
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let serving = on_a_socket(
        &authority,
        ServerOptions { handshake_timeout: Duration::from_millis(300), ..ServerOptions::default() },
    );
    let silent: Vec<_> = (0..64)
        .map(|_| {
            let mut client = greeted(&serving);
            client.write_all(&option(5, b"")).expect("said");
            assert_eq!(answer(&mut client), 1);
            client
        })
        .collect();
    assert!(silent.into_iter().all(|client| rest(client).is_empty()), "each is sent away");
    client(folder.path(), "localhost", &serving.address).expect("there is room");
}

/// Stands between a client and a server, and does something to what the server sends: `tamper` sees each piece and how much came before,
/// and says whether to continue.
fn between(serving: &Serving, tamper: impl Fn(&mut [u8], usize) -> bool + Send + 'static) -> (TempDir, NbdAddress) {
    let dir = temporary();
    let path = dir.path().join("between");
    let listener = UnixListener::bind(&path).expect("a socket");
    let NbdAddress::Unix(server) = serving.address.clone() else { panic!("a Unix socket") };
    thread::spawn(move || {
        let (mut client, _) = listener.accept()?;
        let mut server = UnixStream::connect(server)?;
        let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || io::copy(&mut from, &mut to));
        let (mut piece, mut before) = (vec![0; 64 << 10], 0);
        loop {
            let len = server.read(&mut piece)?;
            if len == 0 || !tamper(&mut piece[..len], before) {
                let _ = server.shutdown(std::net::Shutdown::Both);
                return client.shutdown(std::net::Shutdown::Both);
            }
            client.write_all(&piece[..len])?;
            before += len;
        }
    });
    (dir, NbdAddress::Unix(path))
}

#[test]
fn what_is_cut_or_changed_on_the_way_is_noticed() {
    let folder = temporary();
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let serving = on_a_socket(&authority, ServerOptions::default());
    let read = |address: &NbdAddress| {
        let mut data = vec![0; MIB];
        client(folder.path(), "localhost", address)?.read_at(0, &mut data)?;
        assert!(data == noise(MIB, 9));
        Ok::<_, io::Error>(())
    };
    let (_dir, untouched) = between(&serving, |_, _| true);
    read(&untouched).expect("it is passed on");
    let (_dir, cut) = between(&serving, |_, before| before < 200_000);
    let error = read(&cut).expect_err("cut");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    // In the data, and in the handshake.
    for at in [100_000_usize, 400] {
        let (_dir, changed) = between(&serving, move |piece, before| {
            if let Some(byte) = at.checked_sub(before).and_then(|i| piece.get_mut(i)) {
                *byte ^= 1;
            }
            true
        });
        let error = read(&changed).expect_err("changed");
        assert!(error.to_string().starts_with("TLS: "), "{error}");
    }
}

/// A server that answers the demand for TLS with `reply`, and whatever the client does then with what follows.
fn pretender(reply: u32, what_follows: &'static [u8]) -> (TempDir, NbdAddress, thread::JoinHandle<Vec<u8>>) {
    let dir = temporary();
    let path = dir.path().join("pretender");
    let listener = UnixListener::bind(&path).expect("a socket");
    let thread = thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(b"NBDMAGICIHAVEOPT\x00\x03").expect("said");
        hear(&mut client, 4);
        assert_eq!(hear(&mut client, 16), option(5, b""));
        let header =
            [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &[0, 0, 0, 5], &reply.to_be_bytes(), &[0; 4]].concat();
        let _ = client.write_all(&[&header, what_follows].concat());
        let _ = client.shutdown(std::net::Shutdown::Write);
        rest(client)
    });
    (dir, NbdAddress::Unix(path), thread)
}

#[test]
fn a_client_that_wants_tls_does_not_go_on_without() {
    let folder = temporary();
    let Some(_) = Authority::with_both(folder.path()) else { return };
    // Unsupported, against a policy, invalid, unknown, and a reply that is no refusal.
    for reply in [(1 << 31) + 1, (1 << 31) + 2, (1 << 31) + 3, (1 << 31) + 77, 2, 3] {
        let (_dir, address, server) = pretender(reply, b"");
        let error = client(folder.path(), "localhost", &address).err().expect("it gives up");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!(server.join().expect("no panic"), b"", "nothing more is said");
    }
    // An answer to GO, injected in the clear.
    let injected = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x00";
    let (_dir, address, server) = pretender(1, injected);
    client(folder.path(), "localhost", &address).err().expect("it gives up");
    let said = server.join().expect("no panic");
    assert!(!said.windows(8).any(|w| w == b"IHAVEOPT"), "nothing more is asked in the clear");
}

#[test]
fn files_that_do_not_fit_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = temporary();
    let Some(authority) = Authority::with_both(folder.path()) else { return };
    let says = |file: &str, what: &str| {
        for error in [ServerTls::new(folder.path(), true).err(), ClientTls::new(folder.path(), "localhost").err()] {
            let Some(error) = error else { continue };
            assert!(error.to_string().contains(what) && error.path == Some(folder.path().join(file)), "{error}");
            return;
        }
        panic!("nobody minds {file}");
    };
    let at = |name: &str| folder.path().join(name);
    for file in ["ca-cert.pem", "server-cert.pem", "server-key.pem", "client-cert.pem", "client-key.pem"] {
        let whole = fs::read(at(file)).expect("a file");
        fs::write(at(file), b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").expect("written");
        says(file, "PEM");
        fs::write(at(file), b"").expect("written");
        says(file, "does not contain a");
        fs::remove_file(at(file)).expect("removed");
        says(file, "does not exist");
        fs::write(at(file), whole).expect("written");
        fs::set_permissions(at(file), fs::Permissions::from_mode(0o600)).expect("made private");
    }
    fs::write(at("ca-crl.pem"), b"x").expect("written");
    says("ca-crl.pem", "does not contain a list");
    fs::remove_file(at("ca-crl.pem")).expect("removed");
    fs::set_permissions(at("server-key.pem"), fs::Permissions::from_mode(0o644)).expect("made public");
    says("server-key.pem", "everybody");
    fs::set_permissions(at("server-key.pem"), fs::Permissions::from_mode(0o640)).expect("made less public");
    fs::copy(at("client-key.pem"), at("server-key.pem")).expect("copied");
    says("server-cert.pem", "cannot be used");
    authority.issue("server", "DNS:localhost", 30);
    ServerTls::new(folder.path(), true).expect("all fits");
    let error = ClientTls::new(folder.path(), "not a name").expect_err("it is refused");
    assert!(error.to_string().contains("neither"), "{error}");
}
