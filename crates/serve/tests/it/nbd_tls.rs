//! TLS: with programs of others, in both directions, and with peers that are not who they should be.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Serving, memory, pattern};
use claviger_engine::Store;
use claviger_engine::store::MemoryStore;
use claviger_serve::nbd::{Address, Client, ClientTls, Export, Options, Replies, ServerTls};
use claviger_testkit::certificates::Authority;
use claviger_testkit::tools::{program, run};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A server with TLS on a port of its own.
fn serving(authority: &Authority, verify_peers: bool, store: Arc<dyn Store>) -> Serving {
    let tls = ServerTls::new(authority.folder(), verify_peers).expect("certificates");
    let options = Options { tls: Some(tls), ..Options::default() };
    let nowhere = Address::Tcp(([127, 0, 0, 1], 0).into());
    Serving::at(&nowhere, temporary(), vec![Export::new("disk", store)], options)
}

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn port(address: &Address) -> u16 {
    let Address::Tcp(address) = address else { panic!("TCP") };
    address.port()
}

/// Our client, with the certificates in `folder`.
fn client(folder: &Path, name: &str, address: &Address) -> std::io::Result<Client> {
    let tls = ClientTls::new(folder, name).expect("certificates");
    Client::connect_over(Some(&tls), address, "disk", Replies::Structured)
}

/// Why our client fails, at the latest when it first reads.
fn failure(folder: &Path, name: &str, address: &Address) -> String {
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
    fs::write(&image, pattern(8 * MIB, 3)).expect("written");
    if let Some(nbdcopy) = program("nbdcopy") {
        run(Command::new(&nbdcopy).arg(&image).arg(serving.uri()));
        assert!(contents() == pattern(8 * MIB, 3));
        run(Command::new(&nbdcopy).arg(serving.uri()).arg(&copy));
        assert!(fs::read(&copy).expect("a copy") == pattern(8 * MIB, 3));
    }
    if let Some(nbdinfo) = program("nbdinfo") {
        let output = run(Command::new(nbdinfo).args(["--json", serving.uri()]));
        let json: String = String::from_utf8_lossy(&output.stdout).split_whitespace().collect();
        assert!(json.contains("\"TLS\":true"), "{json}");
    }
    if let Some(nbdsh) = program("nbdsh") {
        let script = "h.pwrite(b'nbdsh' * 100, 4096); h.flush(); print(h.pread(500, 4096)); h.shutdown()";
        let output = run(Command::new(nbdsh).args(["-u", serving.uri(), "-c", script]));
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
    refused(&at("none"), "demands a certificate");
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
    assert!(error.to_string().contains("demands TLS"), "{error}");
    authority.issue("client", "", 30);
    client(folder.path(), "localhost", &serving.address).expect("the right one is still let in");

    let open = self::serving(&authority, false, memory(&[7; MIB]));
    let mut all = [0; 512];
    client(&at("none"), "localhost", &open.address).expect("let in").read_at(0, &mut all).expect("read");
    assert_eq!(all, [7; 512]);
}
