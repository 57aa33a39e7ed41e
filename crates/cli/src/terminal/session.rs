//! The global options (where to ask, how to show progress, the timeouts for servers) and the volume. `main` sets them once.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use claviger_engine::{Error, Result};
use claviger_serve::inherited;
use claviger_serve::nbd::remote::RemoteOptions;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::terminal::advice::NamedVolume;
use crate::terminal::duration;

static SESSION: OnceLock<Session> = OnceLock::new();

/// The values of the global options.
#[derive(Default)]
pub struct Session {
    /// Where to ask for passwords.
    pub ask: Ask,
    /// How to show progress.
    pub shown: Shown,
    /// The file for progress as lines of JSON.
    pub progress_file: Option<File>,
    /// Timeouts and connections of remote stores.
    pub remote: RemoteOptions,
    /// The volume that the command line names.
    pub volume: Option<NamedVolume>,
}

/// The session of this process.
pub fn session() -> &'static Session {
    SESSION.get_or_init(Session::default)
}

/// Where passwords are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Ask {
    /// On this terminal
    #[default]
    Terminal,
    /// Through a systemd password agent: on the desktop, the console or another terminal
    Systemd,
    /// Nowhere, and ask no questions: for programs that start this one
    Nobody,
}

/// How to show progress.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Shown {
    /// A bar on standard error, where that is a terminal
    #[default]
    Bar,
    /// Lines of JSON on standard error: {"what", "done", "all", "unit", "per_second", "seconds_left"}
    Json,
    /// Nothing
    None,
}

/// The options that every verb has.
#[derive(clap::Args)]
pub struct SessionArgs {
    /// Where to ask for passwords and PINs that no option gives
    #[arg(long, global = true, value_name = "WHO", value_enum, default_value_t)]
    ask: Ask,

    /// How to show progress
    #[arg(long, global = true, value_name = "HOW", value_enum, default_value_t, hide_short_help = true)]
    progress: Shown,

    /// Write progress to this open file descriptor, in lines like those of --progress json
    #[arg(long, global = true, value_name = "N", hide_short_help = true)]
    progress_fd: Option<RawFd>,

    /// Timeout for a server's answer [default: 2m]
    #[arg(long, help_heading = "Remote stores (nbd://HOST, rbd:POOL/IMAGE …)", global = true, value_name = "TIME", value_parser = duration::parse, hide_short_help = true)]
    timeout: Option<Duration>,

    /// How long to retry a lost connection; 0s for not at all [default: 1m]
    #[arg(long, help_heading = "Remote stores (nbd://HOST, rbd:POOL/IMAGE …)", global = true, value_name = "TIME", value_parser = duration::parse_or_none, hide_short_help = true)]
    reconnect: Option<Duration>,

    /// Maximum number of connections, if a server allows several [default: 4]
    #[arg(long, help_heading = "Remote stores (nbd://HOST, rbd:POOL/IMAGE …)", global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), hide_short_help = true)]
    connections: Option<u16>,
}

impl SessionArgs {
    /// Puts these options into effect, for a command line that names this volume.
    ///
    /// # Errors
    /// If the descriptor of `--progress-fd` was not inherited.
    pub fn begin(&self, volume: Option<NamedVolume>) -> Result<()> {
        let usual = RemoteOptions::default();
        let remote = RemoteOptions {
            timeout: self.timeout.unwrap_or(usual.timeout),
            reconnect: self.reconnect.unwrap_or(usual.reconnect),
            connections: self.connections.map_or(usual.connections, usize::from),
            ..usual
        };
        let progress_file = self.progress_file()?;
        let session = Session { ask: self.ask, shown: self.progress, progress_file, remote, volume };
        assert!(SESSION.set(session).is_ok(), "nobody uses the session before its options are known");
        Ok(())
    }

    fn progress_file(&self) -> Result<Option<File>> {
        let Some(number) = self.progress_fd else {
            let json = (self.progress == Shown::Json).then(|| io::stderr().as_fd().try_clone_to_owned()).transpose()?;
            return Ok(json.map(File::from));
        };
        let name = format!("--progress-fd {number}");
        let file = inherited::take(number).map_err(|e| Error::from(e).at(name.as_ref()))?;
        // Non-blocking: a slow reader must not delay the work.
        fcntl_setfl(&file, fcntl_getfl(&file).map_err(io::Error::from)? | OFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(Some(file.into()))
    }
}
