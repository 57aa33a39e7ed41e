//! `claviger serve`: serves the plaintext over NBD.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use claviger_engine::formats::Facts;
use claviger_engine::store::{Access, SMALLEST_SECTOR};
use claviger_engine::{Error, Store};
use claviger_serve::inherited;
use claviger_serve::mount;
use claviger_serve::nbd::{Export, NbdAddress, Server, ServerHandle, ServerOptions, ServerTls};
use claviger_serve::sessions::{Live, Runtime, SessionRecord};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Serialize;
use signal_hook::iterator::Signals;

use crate::opening::{OpenArgs, ProtectArgs, remote};
use crate::process::key_process::Locking;
use crate::process::served::{Answering, Counted, ServedArgs, ServedVolume};
use crate::process::{guard, served};
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::{cancel, size};

/// Serve the decrypted volume to other programs over NBD
///
/// Other programs read and write the volume through a socket while this runs; Ctrl-C or SIGTERM writes everything to
/// the disk and ends it. Anybody who can open the socket sees the plaintext; the default socket is in your private
/// folder.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger serve old.tc
  claviger serve --read-only --socket /tmp/private/old.sock old.tc
  claviger serve old.tc --read-only --run 'nbdcopy \"$uri\" image.img'
  claviger serve --tcp 127.0.0.1:10809 old.tc
  claviger serve --tcp 0.0.0.0:10809 --tls /etc/pki/claviger old.tc
  claviger serve --protect-hidden outer.tc

Commands that use it:
  nbdcopy 'nbd+unix:///?socket=PATH' image.img
  qemu-system-x86_64 -drive file='nbd+unix:///?socket=PATH',format=raw
  sudo nbd-client -unix PATH /dev/nbd0 && sudo mount /dev/nbd0 /mnt")]
pub struct Args {
    /// Serve on a Unix socket at PATH, instead of one in your runtime folder
    #[arg(long, value_name = "PATH", conflicts_with = "tcp")]
    socket: Option<PathBuf>,

    /// Serve on a TCP port. All users of this machine can connect; with --tls, other machines can, too
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<SocketAddr>,

    /// Require TLS, with server-cert.pem, server-key.pem and ca-cert.pem in FOLDER
    ///
    /// The files have the same names as for libnbd, nbdkit and qemu. Clients need a certificate from an authority in
    /// ca-cert.pem that is not revoked in ca-crl.pem, if that exists.
    #[arg(long, value_name = "FOLDER")]
    tls: Option<PathBuf>,

    /// Accept clients without a certificate: anybody who can connect sees the plaintext
    #[arg(long, requires = "tls")]
    tls_no_verify_peer: bool,

    /// Serve it read-only
    #[arg(long)]
    read_only: bool,

    /// Name of the export
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,

    /// Run a shell command with $uri and $socket set, serve while it runs, and exit with its status
    #[arg(long, value_name = "COMMAND")]
    run: Option<OsString>,

    #[command(flatten)]
    served: ServedArgs,

    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    protect: ProtectArgs,
}

#[derive(Serialize)]
struct Serving {
    #[serde(flatten)]
    volume: FileName,
    uri: String,
    /// Path of the Unix socket.
    #[serde(flatten)]
    socket: Option<FileName>,
    /// Size of the plaintext, in bytes.
    size: u64,
    /// The sector size for a file system in the volume, in bytes.
    sector_size: u64,
    read_only: bool,
    /// Whether a hidden volume is protected.
    protects_hidden: bool,
    pid: u32,
}

pub fn run(args: &Args, words: &[OsString]) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    let at = |e: Error| e.at(&args.open.path);
    let read_only = args.read_only || args.open.in_disk_in_file();
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let served = &args.served;
    if served.worked_as_key_process(&args.open, access, &args.protect)? {
        return Ok(());
    }
    if !args.read_only {
        args.open.note_read_only();
    }
    let volume = match served.open_otherwise(&args.open, access, words)? {
        Some(volume) => volume,
        None => served.volume(&args.open, args.open.open_protecting(access, &args.protect)?, access, None)?,
    };
    let ServedVolume { facts, store, locking } = volume;
    cancel::check()?;
    let store = Arc::new(served.counted(&args.open, store, true)?.telling(complaints()));

    let address = match (&args.socket, args.tcp) {
        (Some(path), _) => NbdAddress::Unix(path.clone()),
        (None, Some(address)) => NbdAddress::Tcp(address),
        (None, None) => NbdAddress::Unix(default_socket(&args.open.path)?),
    };
    let read_only = read_only || !store.writable();
    let size = store.len();
    let export = Export { read_only, ..Export::new(args.export.clone(), Arc::<Counted>::clone(&store)) };
    let tls = args.tls.as_deref().map(|folder| ServerTls::new(folder, !args.tls_no_verify_peer)).transpose()?;
    let server = Server::bind(&address, vec![export], ServerOptions { tls, ..ServerOptions::default() })?;
    let serving = Serving {
        volume: FileName::new("volume", &args.open.path),
        uri: server.uri(&args.export),
        socket: match server.address() {
            NbdAddress::Unix(path) => Some(FileName::new("socket", std::path::absolute(path)?)),
            NbdAddress::Tcp(_) => None,
        },
        size,
        sector_size: store.sector_size(),
        read_only,
        protects_hidden: args.protect.asked(),
        pid: std::process::id(),
    };
    // Serves even if `claviger list` cannot show it.
    let _listed = facts.and_then(|facts| list(&args.open.path, &facts, &serving, &store, locking).ok());
    let client = Arc::new(Running::default());
    let signals = watch_signals(server.handle(), Arc::clone(&client))?;
    // A signal may have come before the handlers watched for it.
    cancel::check()?;
    let ended = match &args.run {
        Some(command) => {
            let child = client.start(command, &serving)?;
            let (client, handle) = (Arc::clone(&client), server.handle());
            Some(thread::spawn(move || {
                let status = client.wait(child);
                handle.stop();
                status
            }))
        }
        None => {
            served.ready(&serving)?;
            None
        }
    };
    let ended_well = server.run();
    if store.damage_prevented() {
        output::warn(
            "A write that would have damaged the hidden volume was refused, and so were all later ones. The outer \
             volume lacks the last writes: check its file system.",
        );
    }
    client.terminate();
    let status = ended.map(|thread| thread.join().expect("waiting for a process does not panic")).transpose()?;
    signals.close();
    // Unwritten data matter more than the command's exit status.
    ended_well.map_err(at)?;
    served.key_process.check()?;
    match status.unwrap_or(0) {
        0 => Ok(()),
        status => Err(Silent(status).into()),
    }
}

/// Reports errors on standard error, at most once per second: clients get them, too, but may not show them.
fn complaints() -> impl Fn(&str) + Send + Sync {
    const RARELY: Duration = Duration::from_secs(1);
    let last = Mutex::new((None::<Instant>, 0u64));
    move |what| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.is_some_and(|last| last.elapsed() < RARELY) {
            last.1 += 1;
            return;
        }
        let unsaid = std::mem::take(&mut last.1);
        let others = if unsaid > 0 { format!(", and {unsaid} requests before it") } else { String::new() };
        output::warn(&format!("{what}{others}"));
        last.0 = Some(Instant::now());
    }
}

/// Shows the volume in `claviger list` until the returned value is dropped.
fn list(
    path: &Path,
    facts: &Facts,
    serving: &Serving,
    store: &Arc<Counted>,
    locking: Option<Locking>,
) -> anyhow::Result<(Answering, Live)> {
    let record = served::record(path, Some(facts), serving.size)?;
    let record = SessionRecord { uri: Some(serving.uri.clone()), read_only: serving.read_only, ..record };
    let runtime = Runtime::of_this_user()?;
    forget_killed(&runtime, &record)?;
    let live = runtime.begin(record)?;
    Ok((served::answer(&live, store, Some(facts), locking)?, live))
}

/// Forgets what killed servers of the same volume have left, unless something is still mounted or to be reported: `unmount` means the
/// latest session of a volume, and would end the new one instead.
fn forget_killed(runtime: &Runtime, new: &SessionRecord) -> claviger_engine::Result<()> {
    for session in runtime.sessions()? {
        let SessionRecord { volume, dir, failure, .. } = &session.record;
        if *volume == new.volume && dir.is_none() && failure.is_none() && !session.alive() {
            mount::end(&session, false, Duration::ZERO)?;
        }
    }
    Ok(())
}

/// The first signal ends the command, or otherwise the server.
fn watch_signals(server: ServerHandle, client: Arc<Running>) -> io::Result<signal_hook::iterator::Handle> {
    let mut signals = Signals::new(cancel::SIGNALS)?;
    cancel::serving();
    let handle = signals.handle();
    thread::Builder::new().name("signals".into()).stack_size(64 << 10).spawn(move || {
        for _ in signals.forever() {
            if !client.terminate() {
                server.stop();
            }
        }
    })?;
    Ok(handle)
}

/// The running command of `--run`.
#[derive(Default)]
struct Running(Mutex<Option<Pid>>);

impl Running {
    fn start(&self, command: &OsString, serving: &Serving) -> anyhow::Result<Child> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command).env("uri", &serving.uri);
        match &serving.socket {
            Some(path) => shell.env("socket", &**path),
            None => shell.env_remove("socket"),
        };
        let mut pid = self.lock();
        inherited::pass_on();
        let child = shell.spawn().context("/bin/sh")?;
        *pid = Pid::from_raw(child.id() as i32);
        Ok(child)
    }

    /// Waits until the command exits. Returns its status like a shell: 128 plus the signal's number if a signal ended it.
    fn wait(&self, mut child: Child) -> io::Result<u8> {
        // Not reaped until nobody can signal it any more: the kernel may then reuse the number.
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
        }
        *self.lock() = None;
        let status = child.wait()?;
        let status = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(255);
        Ok(u8::try_from(status).unwrap_or(255))
    }

    /// Asks the command and all of its descendants to end. False if there is no command.
    fn terminate(&self) -> bool {
        self.lock().is_some_and(|pid| {
            let below = descendants(pid);
            let asked = kill_process(pid, Signal::TERM).is_ok();
            for pid in below {
                let _ = kill_process(pid, Signal::TERM);
            }
            asked
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The children of this process and their descendants: a shell that exits does not end its children.
fn descendants(of: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", of.as_raw_pid())).into_iter().flatten().flatten();
    let listed = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: Vec<Pid> = listed
        .flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect();
    children.iter().flat_map(|child| descendants(*child)).chain(children.iter().copied()).collect()
}

impl Report for Serving {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { volume, uri, socket, size, sector_size, read_only, protects_hidden, pid: _ } = self;
        let how = match (read_only, protects_hidden) {
            (true, _) => "read-only",
            (_, true) => "for reading and writing, with the hidden volume protected",
            _ => "for reading and writing",
        };
        writeln!(out, "Serving {volume}, {}, {how}:", size::exact(*size))?;
        writeln!(out, "  {uri}")?;
        writeln!(out, "To copy it:             {}", output::command(["nbdcopy", uri, "image.img"]))?;
        match socket {
            // nbd-client supports certificates, but not from a URI.
            _ if uri.starts_with("nbds") => {}
            Some(path) => {
                // The output is meant for pasting into a shell, so it is quoted.
                let blocks = sector_size.to_string();
                // nbd-client does not ask the server for the block size.
                let large: &[&str] = if *sector_size > SMALLEST_SECTOR { &["-b", &blocks] } else { &[] };
                let command = [&["nbd-client"], large, &["-unix", &**path, "/dev/nbd0"]].concat();
                let command = output::command(command);
                writeln!(out, "As a disk (root):       {command}")?;
            }
            None => {
                let drive = format!("file={uri},format=raw");
                writeln!(out, "With qemu:              {}", output::command(["-drive", &drive]))?;
            }
        }
        writeln!(out, "Ctrl-C writes everything to the disk and ends it.")
    }
}

/// A path for the socket in the user's own folder.
fn default_socket(volume: &Path) -> anyhow::Result<PathBuf> {
    let runtime = Runtime::of_this_user()?;
    let folder = runtime.path();
    let name = remote::label(volume).unwrap_or_else(|| volume.file_name().unwrap_or(volume.as_os_str()).to_owned());
    let socket = |suffix: &str| {
        let mut file = name.clone();
        file.push(suffix);
        file.push(".sock");
        folder.join(file)
    };
    // If volumes in different folders have the same name, the second one gets another socket.
    let answers = |path: &Path| std::os::unix::net::UnixStream::connect(path).is_ok();
    let first = socket("");
    Ok(if answers(&first) { socket(&format!("-{}", std::process::id())) } else { first })
}
