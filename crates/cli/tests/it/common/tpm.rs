//! A TPM in software.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use claviger_testkit::tools;

/// swtpm, which ends with this.
pub struct Tpm {
    server: Child,
    port: u16,
    state: tempfile::TempDir,
}

impl Tpm {
    /// A new one, whose PCRs are as after a start. A reported skip where swtpm or the tools for it are missing.
    pub fn new() -> Option<Self> {
        tools::program("swtpm")?;
        tools::program("tpm2_pcrextend")?;
        let state = tempfile::tempdir().expect("a temporary folder");
        let (server, port) = start(&state);
        Some(Self { server, port, state })
    }

    /// Starts it again, as a machine does.
    pub fn restart(&mut self) {
        self.end();
        (self.server, self.port) = start(&self.state);
    }

    fn end(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }

    /// Its name for options.
    pub fn device(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// Runs one of tpm2-tools.
    pub fn tool(&self, name: &str, args: &[&str]) -> String {
        let output = tools::run(Command::new(name).args(args).env("TPM2TOOLS_TCTI", self.device()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Removes what others leave in it: it has no resource manager.
    pub fn flush(&self) {
        for what in ["-t", "-l", "-s"] {
            self.tool("tpm2_flushcontext", &[what]);
        }
    }

    /// Checks that nothing was left in it.
    #[track_caller]
    pub fn assert_empty(&self) {
        for what in ["handles-transient", "handles-loaded-session"] {
            assert_eq!(self.tool("tpm2_getcap", &[what]).trim(), "", "{what}");
        }
    }
}

/// The program and its port.
fn start(state: &tempfile::TempDir) -> (Child, u16) {
    // The port after it is for control: both were free a moment ago, and another test may have taken one since.
    for _ in 0..20 {
        let port = free_port();
        let tcp = |port| format!("type=tcp,bindaddr=127.0.0.1,port={port}");
        let mut server = Command::new("swtpm")
            .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear", "--tpmstate"])
            .arg(format!("dir={}", state.path().display()))
            .args(["--server", &tcp(port), "--ctrl", &tcp(port + 1)])
            .stderr(Stdio::null())
            .spawn()
            .expect("swtpm starts");
        // Its control port is opened first.
        let until = Instant::now() + Duration::from_secs(60);
        while server.try_wait().expect("a process").is_none() {
            if TcpStream::connect(("127.0.0.1", port + 1)).is_ok() {
                return (server, port);
            }
            assert!(Instant::now() < until, "swtpm does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("swtpm finds no port");
}

pub fn free_port() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = first.local_addr().expect("an address").port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        self.end();
    }
}
