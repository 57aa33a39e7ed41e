//! What the tests of the program share.

pub mod fido2;
pub mod mounts;
pub mod tang;
pub mod tpm;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use claviger_testkit::{terminal, tools};
use serde_json::{Value, json};

pub const PASSWORD: &str = "open sesame, Claviger!";

/// The program, without a terminal even where the tests have one.
pub fn claviger() -> Command {
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(env!("CARGO_BIN_EXE_claviger")).stdin(Stdio::null());
    command
}

/// The same, ended after five minutes: a test of what hangs fails then.
fn bounded() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "300", "setsid", "--wait", env!("CARGO_BIN_EXE_claviger")]).stdin(Stdio::null());
    command
}

/// The result of a run.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Done {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Checks the exit code and that standard error holds each of `words`.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.err, self.text());
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        self
    }

    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}", self.err, self.text());
        self
    }
}

pub fn done(output: Output) -> Done {
    let code = output.status.code().expect("ended by itself");
    Done { code, out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// Runs the program to its end.
pub fn run<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Done {
    done(bounded().args(args).output().expect("the program starts"))
}

/// Runs the program with `input` on standard input.
pub fn run_with<I: AsRef<std::ffi::OsStr>>(input: &[u8], args: impl IntoIterator<Item = I>) -> Done {
    let mut command = bounded();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may end without reading.
    let _ = stdin.write_all(input);
    drop(stdin);
    done(child.wait_with_output().expect("it ends"))
}

/// A folder with a password file in it.
pub struct Folder {
    dir: tempfile::TempDir,
    pub password: String,
}

impl Folder {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let password = dir.path().join("password");
        fs::write(&password, format!("{PASSWORD}\n")).expect("a password file");
        Self { password: password.display().to_string(), dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn str(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Shell scripts that are found before the programs of the same names, as a `PATH=…` for env.
    pub fn programs<'a>(&self, scripts: impl IntoIterator<Item = (&'a str, String)>) -> String {
        let programs = self.path("programs");
        fs::create_dir(&programs).expect("a folder");
        for (name, script) in scripts {
            let text = programs.join("text");
            fs::write(&text, format!("#!/bin/sh\n{script}\n")).expect("a script");
            // By another process: what this one has open for writing, a child of another test would hold for a moment, and a program
            // that somebody writes does not start.
            tools::run(Command::new("install").args(["-m", "755"]).arg(text).arg(programs.join(name)));
        }
        format!("PATH={}:{}", programs.display(), std::env::var("PATH").expect("PATH"))
    }

    /// A quickly made volume of LUKS2, and its path.
    pub fn luks2(&self, name: &str) -> String {
        let path = self.str(name);
        let cheap =
            ["create", "--format", "LUKS2", "--quick", "--size", "20M", "--kdf", "pbkdf2", "--iterations", "1000"];
        run(cheap.into_iter().chain(["--password-file", &self.password, &path])).succeeds();
        path
    }

    /// A quickly made volume of `size`, and its path.
    pub fn volume(&self, name: &str, size: &str, more: &[&str]) -> String {
        let path = self.str(name);
        let args = [
            "create",
            "--format",
            "TrueCrypt",
            "--quick",
            "--size",
            size,
            "--hash",
            "SHA-512",
            "--password-file",
            &self.password,
            &path,
        ];
        run(args.iter().chain(more)).succeeds();
        path
    }
}

/// The program as it serves. It is killed when this is dropped.
pub struct Served {
    pub child: Child,
    pub pid: u32,
    pub uri: String,
    pub socket: PathBuf,
    pub size: u64,
    pub read_only: bool,
    _out: BufReader<ChildStdout>,
}

impl Served {
    /// Starts it; `args` follow `claviger serve --json`.
    pub fn start<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        tools::with_usual_memory(&mut command).args(["serve", "--json"]).args(args);
        Self::of(command)
    }

    /// Starts such a command.
    pub fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut json = String::new();
        while !json.ends_with("}\n") {
            if out.read_line(&mut json).expect("text") == 0 {
                let mut err = String::new();
                let _ = child.stderr.take().expect("a pipe").read_to_string(&mut err);
                panic!("it does not serve: {json}{err}");
            }
        }
        let value: Value = serde_json::from_str(&json).expect("JSON");
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Self {
            pid: value["pid"].as_u64().expect("a pid") as u32,
            uri: text("uri"),
            socket: text("socket").into(),
            size: value["size"].as_u64().expect("a size"),
            read_only: value["read_only"].as_bool().expect("yes or no"),
            child,
            _out: out,
        }
    }

    pub fn signal(&self, name: &str) {
        tools::run(Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]));
    }

    /// Ends it with SIGTERM and returns its exit code and standard error.
    pub fn stop(mut self) -> Done {
        self.signal("TERM");
        let status = self.child.wait().expect("it ends");
        let mut err = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
        Done { code: status.code().expect("ended by itself"), out: Vec::new(), err }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one command of qemu-io on the served disk: whether it succeeded, and its output.
pub fn qemu_io(uri: &str, command: &str) -> Option<(bool, String)> {
    let qemu_io = tools::program("qemu-io")?;
    let how = if command.starts_with("read") { "-r" } else { "-n" };
    let output = Command::new(qemu_io).args([how, "-f", "raw", "-c", command, uri]).output().expect("qemu-io starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Some versions end with 0 although a command failed.
    Some((output.status.success() && !text.contains("failed") && !text.contains("error"), text))
}

pub fn sha256(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum, of coreutils, starts");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("written");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().expect("a sum").to_owned()
}

/// A file system in memory, of its own, as long as this lives. Root only.
pub struct Tmpfs(pub tempfile::TempDir);

impl Tmpfs {
    pub fn new(options: &str) -> Option<Self> {
        tools::root()?;
        let dir = tempfile::tempdir().expect("a temporary folder");
        tools::run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(dir.path()));
        Some(Self(dir))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn remount(&self, options: &str) {
        tools::run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.path()));
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// What is typed at a question without echo.
pub fn typed(question: &str, text: &str) -> Vec<Value> {
    vec![json!({"expect": question}), json!({"echo": false}), json!({"send": format!("{text}\n")})]
}

/// The same, for several answers.
pub fn all(question: &str, texts: &[&str]) -> Vec<Value> {
    texts.iter().flat_map(|text| typed(question, text)).collect()
}

/// Runs the program on a terminal of its own, where `steps` are played. Output, exit code, and whether the terminal echoes.
pub fn on_terminal(steps: Value, args: &[&str]) -> Option<(String, i64, bool)> {
    let mut command = terminal::played(steps)?;
    let json = tools::run(command.arg(env!("CARGO_BIN_EXE_claviger")).args(args)).stdout;
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let text = json["output"].as_str().expect("text").replace("\r\n", "\n");
    Some((text, json["code"].as_i64().expect("a code"), json["echo"].as_bool().expect("yes or no")))
}
