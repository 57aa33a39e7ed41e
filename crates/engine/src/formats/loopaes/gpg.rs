//! Key files encrypted by gpg: decrypts and encrypts them with the program `gpg` (GnuPG 2.1 or later).
//!
//! Secrets go through pipes: first the passphrase with its newline, then the file contents. This works because gpg reads a
//! passphrase byte by byte (g10/passphrase.c, `read_passphrase_from_fd`). If a passphrase alone opens a file, gpg runs in a home
//! folder of its own, without the user's keys, options and agent.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_crypto::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, ErrorKind, Result};
use crate::random;

/// The limit for gpg's output, in bytes: a message may decompress endlessly.
const OUTPUT_MAX: usize = 1 << 20;

/// The longest passphrase, in bytes.
const PASSPHRASE_MAX: usize = 4096;

/// What encrypted a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not an OpenPGP message.
    None,
    /// A passphrase.
    Passphrase,
    /// A public key.
    SecretKey,
}

/// Identifies the beginning of a message: a session key encrypted with a passphrase or a public key (RFC 9580, sections 4.2, 5.1,
/// 5.3).
pub(super) fn kind(file: &[u8]) -> Kind {
    const ARMOUR: &[u8] = b"-----BEGIN PGP MESSAGE-----";
    let mut first = [0; 6];
    let begin = match file.trim_ascii_start().strip_prefix(ARMOUR) {
        None => file,
        Some(rest) => {
            // The armour's headers end with an empty line.
            let lines = rest.split(|b| *b == b'\n').skip(1).map(<[u8]>::trim_ascii);
            let data = lines.skip_while(|line| !line.is_empty()).find(|line| !line.is_empty());
            let decoded = data.and_then(|d| d.get(..8)).is_some_and(|d| STANDARD.decode_slice(d, &mut first).is_ok());
            // Armour identifies a message, whatever it contains.
            return if decoded && packet(&first) == Some(1) { Kind::SecretKey } else { Kind::Passphrase };
        }
    };
    match packet(begin) {
        Some(1) => Kind::SecretKey,
        Some(3) => Kind::Passphrase,
        _ => Kind::None,
    }
}

/// Returns the tag of a packet of either kind that begins an encrypted message. Checking the version too keeps text in some
/// encoding from passing for one.
fn packet(bytes: &[u8]) -> Option<u8> {
    let first = *bytes.first()?;
    let (tag, header) = match first {
        0xc0.. => (first & 0x3f, if *bytes.get(1)? < 192 { 2 } else { 3 }),
        0x80.. => (first >> 2 & 0xf, 1 + (1usize << (first & 3))),
        _ => return None,
    };
    let version = *bytes.get(header)?;
    (matches!(tag, 1 | 3) && matches!(version, 2..=6)).then_some(tag)
}

/// Decrypts a key file with gpg: with a passphrase, or with a secret key from the user's keyring and agent.
///
/// # Errors
/// `WrongCredential`, `Malformed`, `Cancelled`, `Io`; `Misuse` for a passphrase that gpg cannot accept; `Unsupported` if gpg is not
/// installed.
pub(super) fn decrypt(file: &[u8], passphrase: Option<&Secret>, cancelled: &dyn Fn() -> bool) -> Result<Secret> {
    let kind = kind(file);
    let home = Home::new()?;
    let run = |options: &[&str]| {
        let mut command = home.gpg(kind == Kind::Passphrase);
        command.args(options).arg("--decrypt");
        let (output, status) = home.run(command, passphrase, file, cancelled)?;
        let messages = home.messages();
        // gpg may not report a truncated message as a failure.
        Ok::<_, Error>((output, status.success() && messages.contains("] DECRYPTION_OKAY"), messages))
    };
    let (mut output, mut decrypted, mut messages) = run(&[])?;
    // Key files from before 2003 have no checksum; if there is one, it must match.
    if !decrypted && messages.contains("not integrity protected") && !cancelled() {
        (output, decrypted, messages) = run(&["--ignore-mdc-error"])?;
    }
    if cancelled() {
        return Err(ErrorKind::Cancelled.into());
    }
    if decrypted {
        return Ok(output);
    }
    let has = |word: &str| messages.contains(word);
    if has("] NODATA")
        || has("] UNEXPECTED")
        || !has("] DECRYPTION_FAILED") && !has("] NO_SECKEY") && !has("PASSPHRASE")
    {
        return Err(ErrorKind::Malformed {
            field: "key file",
            offset: 0,
            what: format!("gpg finds no complete message in it ({})", last_words(&messages)),
        }
        .into());
    }
    if has("NO_SECKEY") && kind == Kind::SecretKey {
        let what = "gpg's keyring has no secret key for the key file".to_owned();
        return Err(Error::new(ErrorKind::WrongCredential(what)).hint(
            "If your keyring is in another folder, set \
             GNUPGHOME.",
        ));
    }
    let what = format!("gpg does not open the key file with this passphrase ({})", last_words(&messages));
    Err(Error::new(ErrorKind::WrongCredential(what))
        .hint("A damaged key file may look like a wrong passphrase: also try a copy of it."))
}

/// How many bytes are hashed to derive a key from a passphrase: the most that gpg takes.
pub const COUNT: &str = "65011712";

/// Creates a key file that `passphrase` opens: `text`, encrypted by gpg with AES-256, as loop-AES's README does.
///
/// # Errors
/// `Misuse` for a passphrase that gpg cannot accept, `Unsupported` if gpg is not installed, `Io`.
pub fn encrypt(text: &Secret, passphrase: &Secret) -> Result<Vec<u8>> {
    let home = Home::new()?;
    let mut command = home.gpg(true);
    command.args(["--cipher-algo", "AES256", "--s2k-digest-algo", "SHA512", "--s2k-mode", "3", "--s2k-count", COUNT]);
    command.args(["--armor", "--symmetric"]);
    let (output, status) = home.run(command, Some(passphrase), text, &|| false)?;
    if !status.success() || output.is_empty() {
        return Err(io::Error::other(format!("gpg fails: {}", last_words(&home.messages()))).into());
    }
    Ok(output.to_vec())
}

/// A folder that only this user can enter, for gpg's files and messages. It is removed on drop.
struct Home(PathBuf);

impl Home {
    fn new() -> Result<Self> {
        let mut random = [0; 8];
        random::fill(&mut random)?;
        let path = std::env::temp_dir().join(format!("claviger-gpg-{:016x}", u64::from_le_bytes(random)));
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| Error::from(e).at(&path))?;
        Ok(Self(path))
    }

    fn messages_file(&self) -> PathBuf {
        self.0.join("messages")
    }

    /// A gpg command in English, so that its messages can be recognised. `without_the_users_keys` means without the user's keys.
    fn gpg(&self, without_the_users_keys: bool) -> Command {
        let mut command = Command::new("gpg");
        command.env("LC_ALL", "C").args(["--batch", "--quiet", "--no-tty", "--status-fd", "2"]);
        if without_the_users_keys {
            command.env_remove("GNUPGHOME").args(["--no-options", "--no-symkey-cache"]).arg("--homedir").arg(&self.0);
            // The agent must not open a dialog: the passphrase is given here, or there is none.
            command.args(["--pinentry-mode", "loopback"]);
        }
        command
    }

    /// Runs gpg to its end or until `cancelled` returns true. Returns its output and exit status.
    ///
    /// # Errors
    /// `Cancelled`: a message may demand any number of derivations. Those of [`decrypt`].
    fn run(
        &self,
        mut command: Command,
        passphrase: Option<&Secret>,
        input: &[u8],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Secret, ExitStatus)> {
        if let Some(passphrase) = passphrase {
            if passphrase.len() > PASSPHRASE_MAX || passphrase.iter().any(|b| matches!(b, b'\n' | 0)) {
                return Err(Error::misuse(format!(
                    "gpg accepts only single-line passphrases of at most {PASSPHRASE_MAX} bytes"
                )));
            }
            // Options go before the command, which the caller has put last.
            let asked: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let mut with = Command::new(command.get_program());
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => with.env(name, value),
                    None => with.env_remove(name),
                };
            }
            with.args(["--pinentry-mode", "loopback", "--passphrase-fd", "0"]).args(asked);
            command = with;
        }
        let messages = File::create(self.messages_file()).map_err(|e| Error::from(e).at(&self.0))?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages).spawn();
        let mut child = child.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                let otherwise = "Or decrypt the key file on another machine.";
                Error::not_installed("a gpg-encrypted key file", ("gpg", "gpg"), otherwise)
            }
            _ => e.into(),
        })?;
        let stdin = child.stdin.take().expect("it is a pipe");
        let output = std::thread::scope(|scope| {
            scope.spawn(move || {
                // If gpg has exited, its messages tell why.
                let _ = tell(stdin, passphrase, input);
            });
            read(&mut child, cancelled)
        });
        let status = child.wait()?;
        Ok((output?, status))
    }

    fn messages(&self) -> String {
        let mut bytes = Vec::new();
        let file = File::open(self.messages_file());
        let _ = file.and_then(|file| file.take(64 << 10).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Home {
    /// Also ends the agent that gpg started.
    fn drop(&mut self) {
        // If an agent ran, the folder of its keys exists.
        if self.0.join("private-keys-v1.d").exists() {
            let mut end = Command::new("gpgconf");
            end.arg("--homedir").arg(&self.0).args(["--kill", "gpg-agent"]);
            let _ = end.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tell(mut gpg: ChildStdin, passphrase: Option<&Secret>, input: &[u8]) -> io::Result<()> {
    if let Some(passphrase) = passphrase {
        gpg.write_all(passphrase)?;
        gpg.write_all(b"\n")?;
    }
    gpg.write_all(input)
}

/// Reads all of gpg's output into memory for secrets. Kills a gpg that writes endlessly or that the caller has cancelled.
fn read(gpg: &mut Child, cancelled: &dyn Fn() -> bool) -> Result<Secret> {
    /// The interval between checks for cancellation.
    const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut pipe = gpg.stdout.take().expect("it is a pipe");
    let mut room = Secret::zeroed(OUTPUT_MAX);
    let mut len = 0;
    loop {
        if len == room.len() {
            gpg.kill()?;
            let what = format!("it decrypts to more than {OUTPUT_MAX} bytes");
            return Err(ErrorKind::Malformed { field: "key file", offset: 0, what }.into());
        }
        if poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&PATIENCE)) == Ok(0) {
            if cancelled() {
                gpg.kill()?;
                return Err(ErrorKind::Cancelled.into());
            }
            continue;
        }
        match pipe.read(&mut room[len..]) {
            Ok(0) => return Ok(Secret::copy_from(&room[..len])),
            Ok(more) => len += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Returns gpg's last message for people.
fn last_words(messages: &str) -> &str {
    let spoken = messages.lines().rfind(|line| !line.starts_with("[GNUPG:]") && !line.trim().is_empty());
    spoken.map_or("it says nothing", |line| line.strip_prefix("gpg: ").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_testkit::tools;

    const GO_ON: &dyn Fn() -> bool = &|| false;

    #[test]
    fn messages_are_told_from_text() {
        for (file, expected) in [
            (&b"\x8c\x0d\x04\x09\x03\x0a"[..], Kind::Passphrase),
            (b"\xc3\x0d\x04\x09\x03\x0a", Kind::Passphrase),
            (b"\x85\x01\x0c\x03\x12\x34", Kind::SecretKey),
            (b"\xc1\xc0\x4c\x03\x12\x34", Kind::SecretKey),
            (b"-----BEGIN PGP MESSAGE-----\nVersion: GnuPG v1\n\njA0ECQMKAAAA\n", Kind::Passphrase),
            (b"-----BEGIN PGP MESSAGE-----\r\n\r\nhQEMAwAAAAAA\r\n", Kind::SecretKey),
            (b"-----BEGIN PGP MESSAGE-----", Kind::Passphrase),
            (b"", Kind::None),
            (b"\x8c", Kind::None),
            ("äöü, a key of a keyboard".as_bytes(), Kind::None),
            (b"ordinary text of a key file", Kind::None),
            (b"\xff\xff\xff\xff\xff", Kind::None),
        ] {
            assert_eq!(kind(file), expected, "{file:?}");
        }
    }

    #[test]
    fn a_missing_gpg_is_named_with_its_package() {
        let home = Home::new().expect("a folder");
        let error = home.run(Command::new("no-such-program"), None, b"", GO_ON).expect_err("it is missing");
        assert!(matches!(error.kind, ErrorKind::Io(_)) && error.to_string().contains("apt install gpg"), "{error}");
    }

    #[test]
    fn key_files_are_encrypted_and_decrypted() {
        let Some(_) = tools::program("gpg") else { return };
        let text = super::super::new_keyfile().expect("random bytes");
        let passphrase = Secret::copy_from("pass phräse".as_bytes());
        let file = encrypt(&text, &passphrase).expect("gpg encrypts");
        assert_eq!(kind(&file), Kind::Passphrase);
        assert!(decrypt(&file, Some(&passphrase), GO_ON).expect("gpg decrypts").same_as(&text));
        let wrong = decrypt(&file, Some(&Secret::copy_from(b"wrong")), GO_ON).expect_err("it is wrong");
        assert!(matches!(wrong.kind, ErrorKind::WrongCredential(_)), "{wrong}");
        let none = decrypt(&file, None, GO_ON).expect_err("there is none");
        assert!(matches!(none.kind, ErrorKind::WrongCredential(_)), "{none}");
        let lines = Secret::copy_from(b"two\nlines");
        assert!(matches!(decrypt(&file, Some(&lines), GO_ON).map_err(|e| e.kind), Err(ErrorKind::Misuse(_))));
        let half = file[..file.len() / 2].to_vec();
        for (damaged, what) in [
            (half, "half of it"),
            (b"\x8c\x0d\x04\x09\x03\x0a".to_vec(), "a beginning"),
            (b"-----BEGIN PGP MESSAGE-----\n\nnothing\n".to_vec(), "an armour"),
        ] {
            let error = decrypt(&damaged, Some(&passphrase), GO_ON).expect_err("it is damaged");
            let expected = matches!(error.kind, ErrorKind::Malformed { .. } | ErrorKind::WrongCredential(_));
            assert!(expected, "{what}: {error}");
        }
    }

    /// gpg needs a while for the longest possible derivation, and is cancelled before that. However soon it ends, the error is the
    /// same.
    #[test]
    fn a_message_that_asks_for_much_work_is_let_go_of() {
        let Some(_) = tools::program("gpg") else { return };
        // RFC 9580, section 5.3.1: version 4, AES-256, S2K 3 with SHA-512, a salt of 8 bytes, the largest count.
        let one = b"\xc3\x0d\x04\x09\x03\x0asaltsalt\xff";
        let file = one.repeat(70_000);
        let error = decrypt(&file, Some(&Secret::copy_from(b"passphrase")), &|| true).expect_err("it is cancelled");
        assert!(matches!(error.kind, ErrorKind::Cancelled), "{error}");
        let error = decrypt(&file, Some(&Secret::copy_from(b"passphrase")), GO_ON).expect_err("it holds nothing");
        assert!(!matches!(error.kind, ErrorKind::Cancelled), "{error}");
    }

    /// GnuPG 1 wrote such messages for ciphers with small blocks.
    #[test]
    fn messages_without_a_checksum_open_and_damaged_ones_do_not() {
        let Some(gpg) = tools::program("gpg") else { return };
        let home = Home::new().expect("a folder");
        let text = super::super::new_keyfile().expect("random bytes");
        let passphrase = Secret::copy_from(b"passphrase");
        let mut command = Command::new(gpg);
        command.arg("--homedir").arg(&home.0).args(["--batch", "--quiet", "--rfc2440", "--cipher-algo", "CAST5"]);
        command.args(["--compress-algo", "none", "--symmetric"]);
        let (mut file, status) = home.run(command, Some(&passphrase), &text, GO_ON).expect("gpg runs");
        assert!(status.success(), "{}", home.messages());
        assert!(decrypt(&file, Some(&passphrase), GO_ON).expect("gpg decrypts").same_as(&text));
        file = Secret::copy_from(&encrypt(&text, &passphrase).expect("gpg encrypts"));
        let middle = file.len() / 2;
        file[middle] = if file[middle] == b'A' { b'B' } else { b'A' };
        assert!(decrypt(&file, Some(&passphrase), GO_ON).is_err(), "the checksum is wrong");
    }
}
