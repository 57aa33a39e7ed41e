//! A web server that is also an object store (web.py).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::certificates::Authority;
use crate::tools::program;

/// A server on this machine, which ends on drop.
pub struct Web {
    child: Child,
    folder: PathBuf,
    /// The port it listens on.
    pub port: u16,
}

impl Web {
    /// Serves the contents of a folder, with TLS if certified by an authority. A reported skip without Python.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(folder: &Path, authority: Option<&Authority>) -> Option<Self> {
        let mut command = Command::new(program("python3")?);
        let objects = folder.join("objects");
        fs::create_dir_all(&objects).expect("a folder");
        command.args(["-c", include_str!("web.py")]).arg(&objects).arg(folder.join("log"));
        if let Some(authority) = authority {
            command.args(["server-cert.pem", "server-key.pem"].map(|name| authority.folder().join(name)));
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its port");
        let port = line.trim().parse().expect("a number");
        Some(Self { child, folder: folder.to_owned(), port })
    }

    /// The file that stores the object at this path.
    pub fn object(&self, path: &str) -> PathBuf {
        self.folder.join("objects").join(path.replace('/', "%2F"))
    }

    /// The requests so far: a method and a path in each line.
    pub fn asked(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
