//! A tang server on loopback.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use claviger_testkit::tools;

const PROGRAMS: &str = "/usr/libexec";

/// tangd behind socat, which ends with this.
pub struct Tang {
    server: Child,
    port: u16,
    keys: tempfile::TempDir,
}

impl Tang {
    /// A new one with keys of its own. A reported skip where its programs are missing.
    pub fn new() -> Option<Self> {
        let socat = tools::program("socat")?;
        let program = |name: &str| Path::new(PROGRAMS).join(name);
        if !program("tangd").exists() {
            return tools::skip("tang is not installed");
        }
        let keys = tempfile::tempdir().expect("a temporary folder");
        tools::run(Command::new(program("tangd-keygen")).arg(keys.path()));
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            drop(listener);
            let mut server = Command::new(&socat)
                .arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr"))
                .arg(format!("SYSTEM:{} {}", program("tangd").display(), keys.path().display()))
                .stderr(Stdio::null())
                .spawn()
                .expect("socat starts");
            let until = Instant::now() + Duration::from_secs(60);
            while server.try_wait().expect("a process").is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Some(Self { server, port, keys });
                }
                assert!(Instant::now() < until, "socat does not listen");
                thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("socat finds no port");
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The file of the key for this algorithm: its name is the key's thumbprint.
    fn key(&self, algorithm: &str) -> PathBuf {
        let files = fs::read_dir(self.keys.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
        let of = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("\"{algorithm}\"")));
        files.into_iter().find(of).expect("a key")
    }

    /// By what people know it.
    pub fn thumbprint(&self) -> String {
        self.key("ES512").file_stem().expect("a name").to_string_lossy().into_owned()
    }

    /// It forgets what volumes were bound to.
    pub fn forget(&self) {
        fs::remove_file(self.key("ECMR")).expect("a file");
    }
}

impl Drop for Tang {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
