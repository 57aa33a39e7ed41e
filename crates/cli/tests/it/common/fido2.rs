//! A FIDO2 key in software: the program of the folder `authenticator`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use claviger_testkit::tools;

/// A key, which is unplugged with this.
pub struct Fido2 {
    program: Child,
    pub device: String,
}

impl Fido2 {
    /// A new one. A reported skip where the program is missing.
    pub fn new(options: &[&str]) -> Option<Self> {
        let target = Path::new(env!("CARGO_BIN_EXE_claviger")).ancestors().nth(2).expect("a target folder");
        let program = target.join("authenticator/debug/claviger-authenticator");
        if !program.exists() {
            return tools::skip("the FIDO2 key in software is not built: make build-tests");
        }
        let mut command = Command::new(program);
        let mut program =
            command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the key starts");
        let mut device = String::new();
        BufReader::new(program.stdout.take().expect("a pipe")).read_line(&mut device).expect("the device's path");
        Some(Self { program, device: device.trim_end().to_owned() })
    }
}

impl Drop for Fido2 {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
