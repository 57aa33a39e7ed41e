//! The connection to a FIDO2 key by USB: messages in reports of 64 bytes (CTAP 2.1, section 11.2), through the kernel's hidraw device.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::OFlags;

use crate::deadline::{Cancel, Deadline};
use crate::error::{Error, Result};
use crate::random;

/// The size of a report, in bytes.
const REPORT: usize = 64;

/// The bytes of a message in its first report, and in each further one.
const FIRST: usize = REPORT - 7;
const FURTHER: usize = REPORT - 5;

/// The longest message, in bytes (section 11.2.4).
const LONGEST: usize = FIRST + 128 * FURTHER;

/// The channel on which channels are asked for.
const BROADCAST: [u8; 4] = [0xff; 4];

// Section 11.2.9: the commands, with the bit that marks a message's first report.
const INIT: u8 = 0x86;
const CBOR: u8 = 0x90;
const CANCEL_COMMAND: u8 = 0x91;
const KEEPALIVE: u8 = 0xbb;
const ERROR: u8 = 0xbf;

/// The key waits to be touched (section 11.2.9.2.1).
const PRESENCE_NEEDED: u8 = 2;

/// Another program uses the key (section 11.2.9.1.6).
const CHANNEL_BUSY: u8 = 6;

/// The key takes CBOR messages (section 11.2.9.1.3).
const TAKES_CBOR: u8 = 4;

/// The time limit for an answer, in which people find their key. Keys themselves give up after 30 seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// The time limit for the first answer.
const PATIENCE_FOR_CHANNEL: Duration = Duration::from_secs(3);

/// How long to wait for another program, and how often.
const PAUSE: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 50;

/// Sends one command and receives one answer.
pub trait Fido2Transport {
    /// Sends a whole command and receives a whole answer, which begins with its status. Calls `touch` when the key waits to be touched.
    ///
    /// # Errors
    /// `Io`, `Cancelled`.
    fn call(&mut self, command: &[u8], touch: &dyn Fn()) -> Result<Vec<u8>>;
}

/// Where to look for FIDO2 keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fido2Address {
    /// All that are plugged in.
    #[default]
    Auto,
    /// This device: `/dev/hidraw0`.
    Device(PathBuf),
}

impl FromStr for Fido2Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ if text.starts_with('/') => Ok(Self::Device(text.into())),
            _ => Err(format!("no FIDO2 key is called {text}: use auto, or a device such as /dev/hidraw0")),
        }
    }
}

impl Fido2Address {
    /// The devices of the keys there.
    ///
    /// # Errors
    /// `Misuse` if there is none.
    pub fn devices(&self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Device(path) => Ok(vec![path.clone()]),
            Self::Auto => {
                let devices = plugged_in(Path::new("/sys/class/hidraw"));
                if devices.is_empty() {
                    return Err(Error::misuse("no FIDO2 key is plugged in")
                        .hint("Plug in the key, or give its device with --fido2-device."));
                }
                Ok(devices)
            }
        }
    }

    /// Connects to the key at this path. Setting `cancel` ends every exchange with it.
    ///
    /// # Errors
    /// `Misuse` if there is no key, `Io`, `Cancelled`.
    pub fn connect(path: &Path, cancel: Cancel) -> Result<Box<dyn Fido2Transport>> {
        // Nonblocking: poll(2) waits for a report and can be cancelled. A terminal must not become this program's own.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file = file.map_err(|e| not_there(e, path))?;
        let mut device = Hid { file, channel: BROADCAST, cancel };
        device.open_channel().map_err(|e| e.at(path))?;
        Ok(Box::new(device))
    }
}

/// The devices whose report descriptors begin with FIDO's usage page (section 11.2.8.1; HID 1.11, 6.2.2.7).
fn plugged_in(class: &Path) -> Vec<PathBuf> {
    const USAGE_PAGE: [u8; 3] = [0x06, 0xd0, 0xf1];
    let mut devices = Vec::new();
    for entry in fs::read_dir(class).into_iter().flatten().flatten() {
        let descriptor = fs::read(entry.path().join("device/report_descriptor")).unwrap_or_default();
        if descriptor.starts_with(&USAGE_PAGE) {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    devices.sort();
    devices
}

fn not_there(e: io::Error, path: &Path) -> Error {
    match e.kind() {
        io::ErrorKind::NotFound => Error::misuse(format!("there is no FIDO2 key at {}", path.display()))
            .hint("Plug in the key, or use --fido2-device auto."),
        io::ErrorKind::PermissionDenied => Error::from(e)
            .at(path)
            .hint("Run as root, or install the udev rules for FIDO2 keys (Debian package libfido2-1)."),
        _ => Error::from(e).at(path),
    }
}

struct Hid {
    file: File,
    channel: [u8; 4],
    cancel: Cancel,
}

impl Fido2Transport for Hid {
    fn call(&mut self, command: &[u8], touch: &dyn Fn()) -> Result<Vec<u8>> {
        for _ in 0..ATTEMPTS {
            match self.exchange(CBOR, command, touch, PATIENCE) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    Deadline::within(PAUSE, self.cancel).sleep(PAUSE / 2)?
                }
                answer => return Ok(answer?),
            }
        }
        Err(Error::from(io::Error::other("another program uses the FIDO2 key"))
            .hint("Wait until it is done, and try again."))
    }
}

impl Hid {
    /// Gets a channel of its own (section 11.2.9.1.3). Answers to another program may come before.
    fn open_channel(&mut self) -> Result<()> {
        const CHANNEL: usize = 8;
        const CAPABILITIES: usize = 16;
        let mut nonce = [0; 8];
        random::fill(&mut nonce)?;
        self.send(INIT, &nonce)?;
        let deadline = Deadline::within(PATIENCE_FOR_CHANNEL, self.cancel);
        let no_key = || Error::misuse("this is not a FIDO2 key, or it does not answer");
        loop {
            let answer = self.receive(INIT, &|| {}, deadline).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => no_key(),
                io::ErrorKind::TimedOut => no_key().hint("Unplug the key and plug it in again."),
                _ => e.into(),
            })?;
            if answer.len() <= CAPABILITIES || answer[..CHANNEL] != nonce {
                continue;
            }
            if answer[CAPABILITIES] & TAKES_CBOR == 0 {
                return Err(Error::unsupported("a FIDO key of the first generation (U2F), which computes no secrets"));
            }
            self.channel.copy_from_slice(&answer[CHANNEL..][..4]);
            return Ok(());
        }
    }

    fn exchange(&mut self, command: u8, message: &[u8], touch: &dyn Fn(), patience: Duration) -> io::Result<Vec<u8>> {
        self.send(command, message)?;
        let answer = self.receive(command, touch, Deadline::within(patience, self.cancel));
        let gone = |e: &io::Error| matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ResourceBusy);
        if answer.as_ref().is_err_and(|e| !gone(e)) {
            // Otherwise, the key would go on waiting to be touched.
            let _ = self.send(CANCEL_COMMAND, &[]);
        }
        answer
    }

    fn send(&mut self, command: u8, message: &[u8]) -> io::Result<()> {
        if message.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too long for a FIDO2 key"));
        }
        let (first, rest) = message.split_at(message.len().min(FIRST));
        let [high, low] = (message.len() as u16).to_be_bytes();
        self.report(&[command, high, low], first)?;
        rest.chunks(FURTHER).zip(0..).try_for_each(|(part, sequence)| self.report(&[sequence], part))
    }

    /// Writes a report, after the number of the report, which keys do not have (hidraw.rst).
    fn report(&mut self, head: &[u8], part: &[u8]) -> io::Result<()> {
        let mut report = [0; 1 + REPORT];
        let bytes = [&[0][..], &self.channel, head, part].concat();
        report[..bytes.len()].copy_from_slice(&bytes);
        self.file.write_all(&report)
    }

    /// Receives the answer to a command. Skips reports for other programs.
    fn receive(&mut self, command: u8, touch: &dyn Fn(), deadline: Deadline) -> io::Result<Vec<u8>> {
        let mut asked = false;
        loop {
            let report = self.next_report(deadline)?;
            let len = usize::from(u16::from_be_bytes([report[5], report[6]]));
            match report[4] {
                KEEPALIVE if report[7] == PRESENCE_NEEDED && !std::mem::replace(&mut asked, true) => touch(),
                ERROR if report[7] == CHANNEL_BUSY => return Err(io::ErrorKind::ResourceBusy.into()),
                ERROR => return Err(io::Error::other(format!("the FIDO2 key reports error {:#04x}", report[7]))),
                answered if answered == command && len <= LONGEST => {
                    let mut message = report[7..].to_vec();
                    for sequence in 0..=u8::MAX {
                        if message.len() >= len {
                            break;
                        }
                        let report = self.next_report(deadline)?;
                        if report[4] != sequence {
                            return Err(io::Error::new(
                                io::ErrorKind::InvalidData,
                                "a part of the FIDO2 key's answer is missing",
                            ));
                        }
                        message.extend_from_slice(&report[5..]);
                    }
                    message.truncate(len);
                    return Ok(message);
                }
                // The rest of an answer that an earlier program did not wait for.
                _ => {}
            }
        }
    }

    /// The next report on the channel.
    fn next_report(&mut self, deadline: Deadline) -> io::Result<[u8; REPORT]> {
        loop {
            // Also if reports for others keep coming.
            deadline.left()?;
            let mut report = [0; REPORT];
            let mut filled = 0;
            while filled < REPORT {
                match self.file.read(&mut report[filled..]) {
                    Ok(0) => {
                        let what = "the FIDO2 key was unplugged";
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                    }
                    Ok(len) => filled += len,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => deadline.wait(&self.file, PollFlags::IN)?,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => drop(deadline.left()?),
                    Err(e) => return Err(e),
                }
            }
            if report[..4] == self.channel {
                return Ok(report);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    const CHANNEL: [u8; 4] = [1, 2, 3, 4];

    /// A key's side of a connection, without a key behind it.
    struct Bus(UnixStream);

    impl Bus {
        fn new(cancel: Cancel) -> (Hid, Self) {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            ours.set_nonblocking(true).expect("a socket");
            (Hid { file: File::from(OwnedFd::from(ours)), channel: CHANNEL, cancel }, Self(theirs))
        }

        fn report(&self, channel: [u8; 4], rest: &[u8]) {
            let mut report = [0; REPORT];
            report[..4].copy_from_slice(&channel);
            report[4..][..rest.len()].copy_from_slice(rest);
            (&self.0).write_all(&report).expect("written");
        }

        fn sent(&self) -> [u8; 1 + REPORT] {
            let mut report = [0; 1 + REPORT];
            (&self.0).read_exact(&mut report).expect("a report");
            report
        }
    }

    #[test]
    fn a_long_message_goes_in_parts_and_comes_back_between_reports_for_others() {
        let (mut key, bus) = Bus::new(None);
        let message: Vec<u8> = (0..200).collect();
        bus.report([9; 4], &[CBOR, 0, 1, 0xff]);
        bus.report(CHANNEL, &[INIT, 0, 1, 0xff]);
        for _ in 0..2 {
            bus.report(CHANNEL, &[KEEPALIVE, 0, 1, 1]);
            bus.report(CHANNEL, &[KEEPALIVE, 0, 1, PRESENCE_NEEDED]);
        }
        bus.report(CHANNEL, &[&[CBOR, 0, 200][..], &message[..FIRST]].concat());
        for (part, sequence) in message[FIRST..].chunks(FURTHER).zip(0..) {
            bus.report(CHANNEL, &[&[sequence], part].concat());
            bus.report([9; 4], &[sequence + 1, 0xff]);
        }
        let touched = Cell::new(0);
        assert_eq!(key.call(&message, &|| touched.set(touched.get() + 1)).expect("an answer"), message);
        assert_eq!(touched.get(), 1, "asked for once");
        let sent: Vec<_> = (0..4).map(|_| bus.sent()).collect();
        assert_eq!(sent[0][..8], [0, 1, 2, 3, 4, CBOR, 0, 200]);
        let parts = [&sent[0][8..], &sent[1][6..], &sent[2][6..], &sent[3][6..]].concat();
        assert_eq!(parts[..200], message);
        assert_eq!([sent[1][5], sent[2][5], sent[3][5]], [0, 1, 2]);
    }

    #[test]
    fn a_broken_answer_is_an_error() {
        let error = |reports: &[&[u8]]| {
            let (mut key, bus) = Bus::new(None);
            reports.iter().for_each(|report| bus.report(CHANNEL, report));
            bus.0.shutdown(Shutdown::Write).expect("a socket");
            key.exchange(CBOR, &[], &|| {}, PATIENCE).expect_err("refused").to_string()
        };
        assert!(error(&[&[CBOR, 0, 200], &[1]]).contains("is missing"));
        assert!(error(&[&[ERROR, 0, 1, 0x7f]]).contains("0x7f"));
        assert!(error(&[&[CBOR, 0xff, 0xff]]).contains("unplugged"), "longer than any message");
        assert!(error(&[]).contains("unplugged"));
        let (mut key, bus) = Bus::new(None);
        bus.report(CHANNEL, &[ERROR, 0, 1, CHANNEL_BUSY]);
        bus.report(CHANNEL, &[CBOR, 0, 1, 7]);
        assert_eq!(key.call(&[], &|| {}).expect("the second time"), [7]);
    }

    #[test]
    fn a_key_that_waits_is_told_when_nobody_waits_for_it() {
        static CANCEL: AtomicBool = AtomicBool::new(false);
        let (mut key, bus) = Bus::new(Some(&CANCEL));
        let waiting = thread::spawn(move || key.call(&[1], &|| {}).map_err(|e| e.kind.code()));
        assert_eq!(bus.sent()[5], CBOR);
        CANCEL.store(true, Ordering::SeqCst);
        assert_eq!(bus.sent()[5], CANCEL_COMMAND);
        let cancelled = crate::error::ErrorKind::Cancelled.code();
        assert_eq!(waiting.join().expect("no panic"), Err(cancelled));
    }

    #[test]
    fn only_keys_are_found() {
        let class = tempfile::tempdir().expect("a folder");
        for (name, descriptor) in
            [("hidraw0", &b"\x05\x01\x09\x06"[..]), ("hidraw3", b"\x06\xd0\xf1\x09\x01"), ("x", b"")]
        {
            fs::create_dir_all(class.path().join(name).join("device")).expect("a folder");
            fs::write(class.path().join(name).join("device/report_descriptor"), descriptor).expect("a file");
        }
        assert_eq!(plugged_in(class.path()), [Path::new("/dev/hidraw3")]);
        assert_eq!(plugged_in(&class.path().join("none")), [] as [PathBuf; 0]);
    }
}
