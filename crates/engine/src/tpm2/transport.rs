//! The connection to a TPM: the kernel's device with its resource manager, or the socket of a software TPM.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::net::sockopt;

use super::wire::LONGEST;
use crate::deadline::{Cancel, Deadline, Exchange};
use crate::error::{Error, Result};

/// The kernel's TPM, with its resource manager.
const DEVICE: &str = "/dev/tpmrm0";

/// The default address of swtpm (tpm2-tss, `tcti-swtpm`).
const SWTPM: (&str, u16) = ("localhost", 2321);

/// The time limit for all commands together: creating an RSA key takes minutes on a slow TPM.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time limit for a software TPM, including the connection.
const PATIENCE_FOR_SOFTWARE: Duration = Duration::from_secs(60);

/// The size of a response header, in bytes: tag, size, code.
const HEADER: usize = 10;

/// Sends one command and receives one response.
pub trait TpmTransport {
    /// Sends a whole command and receives a whole response.
    ///
    /// # Errors
    /// If sending or receiving fails.
    fn exchange(&mut self, command: &[u8]) -> io::Result<Vec<u8>>;
}

/// The address of a TPM, in the notation of systemd and tpm2-tools: `auto`, a path, `device:/dev/tpmrm0`,
/// `swtpm:host=127.0.0.1,port=2321` or `swtpm:path=/run/swtpm.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TpmAddress {
    /// A character device.
    Device(PathBuf),
    /// A software TPM on a TCP port.
    Tcp(String, u16),
    /// A software TPM on a Unix socket.
    Unix(PathBuf),
}

impl Default for TpmAddress {
    fn default() -> Self {
        Self::Device(DEVICE.into())
    }
}

impl FromStr for TpmAddress {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || format!("no TPM is called {text}: use auto, /dev/tpmrm0, swtpm:host=HOST,port=N or swtpm:path=FILE");
        match text.split_once(':') {
            _ if text == "auto" => Ok(Self::default()),
            _ if text.starts_with('/') => Ok(Self::Device(text.into())),
            Some(("device", path)) if path.starts_with('/') => Ok(Self::Device(path.into())),
            Some(("swtpm", options)) => {
                let (mut host, mut port) = (SWTPM.0.to_owned(), SWTPM.1);
                for option in options.split(',').filter(|option| !option.is_empty()) {
                    match option.split_once('=').ok_or_else(wrong)? {
                        ("host", value) => host = value.to_owned(),
                        ("port", value) => port = value.parse().map_err(|_| wrong())?,
                        ("path", value) => return Ok(Self::Unix(value.into())),
                        _ => return Err(wrong()),
                    }
                }
                Ok(Self::Tcp(host, port))
            }
            _ => Err(wrong()),
        }
    }
}

impl TpmAddress {
    /// Connects to the TPM. Setting `cancel` ends every exchange with it.
    ///
    /// # Errors
    /// `Misuse` if there is no such TPM, `Cancelled`, `Io`.
    pub fn connect(&self, cancel: Cancel) -> Result<Box<dyn TpmTransport>> {
        let mut budget = Budget { left: PATIENCE_FOR_SOFTWARE, cancel };
        match self {
            Self::Device(path) => {
                // Nonblocking: poll(2) waits for a response and can be cancelled.
                let waits = OFlags::NONBLOCK.bits().cast_signed();
                let file = OpenOptions::new().read(true).write(true).custom_flags(waits).open(path);
                let file = file.map_err(|e| not_there(e, path))?;
                Ok(Box::new(Device { file, budget: Budget { left: PATIENCE, cancel } }))
            }
            Self::Tcp(host, port) => {
                let connected = budget.spend(|deadline| deadline.connect_tcp(host, *port));
                let socket = connected.map_err(|e| not_there(e, Path::new(host)))?;
                sockopt::set_tcp_nodelay(&socket, true).map_err(io::Error::from)?;
                Ok(Box::new(Stream { socket, budget }))
            }
            Self::Unix(path) => {
                let connected = budget.spend(|deadline| deadline.connect_unix(path));
                let socket = connected.map_err(|e| not_there(e, path))?;
                Ok(Box::new(Stream { socket, budget }))
            }
        }
    }
}

/// The time left for a TPM. Time between commands, while a person enters a PIN, does not count.
struct Budget {
    left: Duration,
    cancel: Cancel,
}

impl Budget {
    fn spend<T>(&mut self, exchange: impl FnOnce(Deadline) -> io::Result<T>) -> io::Result<T> {
        let begun = Instant::now();
        let result = exchange(Deadline::within(self.left, self.cancel));
        self.left = self.left.saturating_sub(begun.elapsed());
        result
    }
}

fn not_there(e: io::Error, path: &Path) -> Error {
    if e.kind() == io::ErrorKind::NotFound {
        return Error::misuse(format!("there is no TPM at {}", path.display()))
            .hint("Give one with --tpm2-device, or enable the TPM in the firmware settings.");
    }
    Error::from(e).at(path)
}

/// The kernel takes a command in one write, and returns the response in one read.
struct Device {
    file: File,
    budget: Budget,
}

impl TpmTransport for Device {
    fn exchange(&mut self, command: &[u8]) -> io::Result<Vec<u8>> {
        let Self { file, budget } = self;
        budget.spend(|deadline| {
            file.write_all(command)?;
            deadline.wait(&*file, PollFlags::IN)?;
            let mut answer = vec![0; LONGEST];
            let len = file.read(&mut answer)?;
            answer.truncate(len);
            Ok(answer)
        })
    }
}

/// A stream of commands and responses, each with its length in the header.
struct Stream {
    socket: OwnedFd,
    budget: Budget,
}

impl TpmTransport for Stream {
    fn exchange(&mut self, command: &[u8]) -> io::Result<Vec<u8>> {
        let Self { socket, budget } = self;
        budget.spend(|deadline| {
            let mut exchange = Exchange::new(socket.as_fd(), deadline);
            exchange.write_all(command)?;
            let mut header = [0; HEADER];
            exchange.read_exact(&mut header)?;
            let len = u32::from_be_bytes([header[2], header[3], header[4], header[5]]) as usize;
            if !(HEADER..=LONGEST).contains(&len) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a TPM: its answer has no length"));
            }
            let mut answer = vec![0; len];
            answer[..HEADER].copy_from_slice(&header);
            exchange.read_exact(&mut answer[HEADER..])?;
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tpm_is_named_as_systemd_and_tpm2_tools_name_it() {
        assert_eq!("auto".parse(), Ok(TpmAddress::Device("/dev/tpmrm0".into())));
        assert_eq!("/dev/tpm1".parse(), Ok(TpmAddress::Device("/dev/tpm1".into())));
        assert_eq!("device:/dev/tpm0".parse(), Ok(TpmAddress::Device("/dev/tpm0".into())));
        assert_eq!("swtpm:".parse(), Ok(TpmAddress::Tcp("localhost".into(), 2321)));
        assert_eq!("swtpm:host=127.0.0.1,port=7".parse(), Ok(TpmAddress::Tcp("127.0.0.1".into(), 7)));
        assert_eq!("swtpm:path=/run/x".parse(), Ok(TpmAddress::Unix("/run/x".into())));
        for wrong in ["", "tpm0", "swtpm", "swtpm:port=x", "swtpm:7", "mssim:host=x", "device:tpm0"] {
            assert!(wrong.parse::<TpmAddress>().is_err(), "{wrong}");
        }
    }
}
