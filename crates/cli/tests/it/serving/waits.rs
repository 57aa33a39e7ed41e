//! Ctrl-C ends every wait for something outside the program, and the second one ends the program in any case.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use claviger_testkit::tools;

use crate::common::*;

/// Exit code after a cancellation.
const CANCELLED: i32 = 8;

/// Long enough for a busy machine, and far less than any server is waited for.
const SOON: Duration = Duration::from_secs(5);

/// A server that sends some bytes, and then one now and then; it says when somebody has connected.
struct Dripping {
    port: u16,
    connected: Receiver<()>,
}

impl Dripping {
    fn start(greet: impl Fn(&mut TcpStream) + Send + Clone + 'static, drips: &'static [u8]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (tell, connected) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tell, greet) = (tell.clone(), greet.clone());
                thread::spawn(move || {
                    let mut stream = stream;
                    greet(&mut stream);
                    let _ = tell.send(());
                    drip(&mut stream, drips);
                });
            }
        });
        Self { port, connected }
    }
}

/// Sends these bytes over and over, one at a time, until nobody takes them.
fn drip(to: &mut impl Write, bytes: &[u8]) {
    for byte in bytes.iter().cycle() {
        if to.write_all(&[*byte]).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Begins an answer whose header does not end.
fn greet_as_http(stream: &mut TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
}

/// Greets as an NBD server does, and agrees on an export of 64 MiB (the NBD project's `doc/proto.md`).
fn greet_as_nbd(stream: &mut TcpStream) {
    let mut greet = || -> std::io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        stream.read_exact(&mut [0; 4])?;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header)?;
            let len = u32::from_be_bytes(header[12..].try_into().expect("four bytes"));
            stream.read_exact(&mut vec![0; len as usize])?;
            let mut reply = |kind: u32, data: &[u8]| {
                let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
                let len = (data.len() as u32).to_be_bytes();
                stream.write_all(&[&magic, &header[8..12], &kind.to_be_bytes(), &len, data].concat())
            };
            if header[8..12] == [0, 0, 0, 7] {
                // Information about the export: its size, and that there are flags.
                reply(3, &[&[0, 0][..], &(64_u64 << 20).to_be_bytes(), &[0, 1]].concat())?;
                reply(1, &[])?;
                break;
            }
            reply(0x8000_0001, &[])?;
        }
        // The first request, and the beginning of a simple reply to it.
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        stream.write_all(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &request[8..16]].concat())
    };
    let _ = greet();
}

/// The program in a group of processes of its own.
struct Started(Child);

impl Started {
    fn new(folder: &Folder, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        command.args(args).env("XDG_CONFIG_HOME", folder.path("config")).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("it starts"))
    }

    fn interrupt(&self) {
        tools::run(Command::new("kill").args(["-INT", &self.0.id().to_string()]));
    }

    /// The exit code, once it has ended; nothing where it has not for so long.
    fn ends_within(&mut self, time: Duration) -> Option<i32> {
        let until = Instant::now() + time;
        loop {
            match self.0.try_wait().expect("a child") {
                Some(status) => return Some(status.code().unwrap_or(-1)),
                None if Instant::now() > until => return None,
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Whether a process of its group still runs. Ended processes may not have been waited for yet.
    fn is_left(&self) -> bool {
        let group = self.0.id().to_string();
        let runs = |stat: String| {
            // Behind the name, which may hold anything: the state, the parent and the group (proc_pid_stat(5)).
            let (_, behind) = stat.rsplit_once(") ")?;
            let fields: Vec<_> = behind.split(' ').take(3).collect();
            Some(fields[0] != "Z" && fields[2] == group)
        };
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        processes
            .filter_map(|process| fs::read_to_string(process.path().join("stat")).ok())
            .any(|stat| runs(stat) == Some(true))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// A signal ends the program soon, and the volume is as it was.
#[track_caller]
fn one_signal_ends_it(folder: &Folder, volume: &str, connected: &Receiver<()>, args: &[&str]) {
    let before = fs::read(volume).expect("a volume");
    let mut started = Started::new(folder, args);
    let until = Instant::now() + Duration::from_secs(60);
    while connected.recv_timeout(Duration::from_millis(50)).is_err() {
        assert!(Instant::now() < until, "{args:?}: it does not connect");
        assert_eq!(started.ends_within(Duration::ZERO), None, "{args:?}: it has ended before");
    }
    // It waits now.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(started.ends_within(Duration::ZERO), None, "{args:?}: it does not wait");
    started.interrupt();
    assert_eq!(started.ends_within(SOON), Some(CANCELLED), "{args:?}");
    assert!(fs::read(volume).expect("a volume") == before, "{args:?}");
    assert!(fs::File::open(volume).expect("a volume").try_lock().is_ok(), "{args:?}: it is locked");
}

#[test]
fn a_tang_server_that_drips_is_left_at_ctrl_c() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let server = Dripping::start(greet_as_http, b"y");
    let url = format!("http://127.0.0.1:{}", server.port);
    let bind = ["--bind-tang", &url, "--tang-thumbprint", "AAAA"];
    let add = [&["keyslot", "add", "--password-file", &folder.password][..], &bind, &[&volume]].concat();
    one_signal_ends_it(&folder, &volume, &server.connected, &add);
}

#[test]
fn a_tpm_that_drips_is_left_at_ctrl_c() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let server = Dripping::start(|_| (), &[0x80, 1, 0, 0, 0, 200, 0, 0, 0, 0]);
    let path = folder.path("tpm");
    let listener = UnixListener::bind(&path).expect("a socket");
    let (tell, connected) = channel();
    // And one that says nothing at all.
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            kept.push(stream);
            let _ = tell.send(());
        }
    });
    let devices = [
        (format!("swtpm:host=127.0.0.1,port={}", server.port), &server.connected),
        (format!("swtpm:path={}", path.display()), &connected),
    ];
    for (device, connected) in &devices {
        let bind = ["--bind-tpm2", "--tpm2-device", device];
        let add = [&["keyslot", "add", "--password-file", &folder.password][..], &bind, &[&volume]].concat();
        one_signal_ends_it(&folder, &volume, connected, &add);
    }
}

#[test]
fn a_server_elsewhere_that_drips_is_left_at_ctrl_c() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let greeting = Dripping::start(|_| (), b"NBDMAGICIHAVEOPT\0\x03");
    let replies = Dripping::start(greet_as_nbd, b"LUKS\xba\xbe");
    let mut servers = vec![
        (format!("nbd://127.0.0.1:{}", greeting.port), greeting.connected),
        (format!("nbd://127.0.0.1:{}", replies.port), replies.connected),
    ];
    if tools::program("nbdkit").is_some() {
        let http = Dripping::start(greet_as_http, b"y");
        servers.push((format!("http://127.0.0.1:{}/volume", http.port), http.connected));
    }
    for (uri, connected) in &servers {
        // A read-only source refuses changes at once.
        let writer = (!uri.starts_with("http:")).then_some(&["keyslot", "remove", "--yes", "--password-file"][..]);
        for verb in [&["info", "--password-file"][..]].into_iter().chain(writer) {
            let args = [verb, &[&folder.password, uri]].concat();
            one_signal_ends_it(&folder, &volume, connected, &args);
        }
    }
}

/// A helper that begins and never speaks.
#[test]
fn a_helper_that_says_nothing_is_left_at_ctrl_c_and_is_gone() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let (program, begun) = (folder.path("mute"), folder.path("begun"));
    fs::write(&program, format!("#!/bin/sh\ntrap '' TERM\n: > {}\nsleep 600 & wait; sleep 600\n", begun.display()))
        .expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let rows = format!("[mute]\nform = \"{{rest}}\"\nprogram = \"{}\"\narguments = []\n", program.display());
    fs::create_dir_all(folder.path("config/claviger")).expect("a folder");
    fs::write(folder.path("config/claviger/helpers.toml"), rows).expect("a file");
    let (tell, connected) = channel();
    thread::spawn(move || {
        while !begun.exists() {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = tell.send(());
    });
    one_signal_ends_it(&folder, &volume, &connected, &["info", "--password-file", &folder.password, "mute:x"]);
    assert!(!runs(&program), "the helper still runs");
}

/// Whether a process has this in its command line.
fn runs(program: &Path) -> bool {
    let name = program.display().to_string();
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(&name))
}

/// A wait in the kernel that only a signal can end: a pipe whose other end nobody opens.
#[test]
fn the_second_ctrl_c_ends_it_wherever_it_waits() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let before = fs::read(&volume).expect("a volume");
    let pipe = folder.str("pipe");
    tools::run(Command::new("mkfifo").arg(&pipe));
    let pw = &folder.password;
    let mut stuck = vec![
        vec!["info", "--password-file", &pipe, &volume],
        vec!["keyslot", "add", "--password-file", pw, "--new-password-file", &pipe, &volume],
        vec!["serve", "--password-file", &pipe, &volume],
        // The key process waits, and is gone as well.
        vec!["serve", "--isolate-keys", "--password-file", &pipe, &volume],
    ];
    // A library that is loaded, and never there.
    let ntfs = folder.str("ntfs");
    if let Some(mkntfs) = tools::program("mkntfs") {
        fs::File::create(&ntfs).and_then(|file| file.set_len(8 << 20)).expect("a file");
        tools::run(Command::new(mkntfs).args(["-F", "-Q", "-q", &ntfs]));
        stuck.push(vec!["ls", "--pkcs11-module", &pipe, &ntfs]);
    }
    for args in stuck {
        let mut started = Started::new(&folder, &args);
        if started.ends_within(Duration::from_secs(1)).is_some() {
            panic!("{args:?}: it does not wait");
        }
        started.interrupt();
        let mut code = started.ends_within(Duration::from_millis(500));
        if code.is_none() {
            started.interrupt();
            code = started.ends_within(Duration::from_secs(2));
        }
        // Where no handler was needed yet, the signal itself ends it.
        assert!(matches!(code, Some(CANCELLED | -1)), "{args:?}: {code:?}");
        let until = Instant::now() + Duration::from_secs(2);
        while started.is_left() {
            assert!(Instant::now() < until, "{args:?}: a process is left");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(fs::read(&volume).expect("a volume") == before, "{args:?}");
    }
}
