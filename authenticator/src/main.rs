//! A FIDO2 key in software. Its device is a pseudoterminal, which libfido2 and claviger open like /dev/hidrawN: each write is a zero byte
//! and a report of 64 bytes, each read a report. Prints the device's path and serves until standard input ends.
//!
//! `claviger-authenticator [--pin PIN] [--no-touch] [--no-hmac-secret]`

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use sha2::{Digest, Sha256};
use soft_fido2::{
    Authenticator, AuthenticatorCallbacks, AuthenticatorConfig, AuthenticatorOptions, Credential, CredentialRef, Result,
    UpResult, UvResult,
};
use soft_fido2_transport::{Cmd, CommandHandler, CtapHidHandler, Packet};

/// The size of a report, in bytes.
const REPORT: usize = 64;

/// The command that asks for the properties of a key (CTAP 2.1, 6.4).
const GET_INFO: u8 = 0x04;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (mut pin, mut touched, mut hmac_secret) = (None, true, true);
    while let Some(word) = words.next() {
        match &*word {
            "--pin" => pin = Some(words.next().ok_or("--pin needs a PIN")?),
            "--no-touch" => touched = false,
            "--no-hmac-secret" => hmac_secret = false,
            _ => return Err(format!("what is {word}?").into()),
        }
    }
    if let Some(pin) = &pin {
        Authenticator::<User>::set_pin_hash(&Sha256::digest(pin));
    }
    let options = AuthenticatorOptions::new()
        .with_client_pin(Some(pin.is_some()))
        .with_pin_uv_auth_token(Some(true))
        .with_make_cred_uv_not_required(Some(true));
    let config = AuthenticatorConfig::builder().extensions(vec!["hmac-secret".to_owned()]).options(options).build();
    let user = User { touches: touched, credentials: Mutex::default() };
    let handler = CtapHidHandler::new(Key { key: Authenticator::with_config(user, config)?, hmac_secret });
    let (device, path) = device()?;
    println!("{}", path.display());
    io::stdout().flush()?;
    thread::spawn(move || serve(device, handler));
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// A pseudoterminal that passes bytes on unchanged, and only in whole reports.
fn device() -> io::Result<(File, std::path::PathBuf)> {
    let device = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&device)?;
    unlockpt(&device)?;
    let mut mode = tcgetattr(&device)?;
    mode.make_raw();
    mode.special_codes[SpecialCodeIndex::VMIN] = REPORT as u8;
    mode.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(&device, OptionalActions::Now, &mode)?;
    let path = ptsname(&device, Vec::new())?;
    Ok((File::from(device), OsString::from_vec(path.into_bytes()).into()))
}

fn serve(mut device: File, mut handler: CtapHidHandler<Key>) {
    loop {
        let mut report = [0; 1 + REPORT];
        if device.read_exact(&mut report).is_err() {
            // Nobody has it open.
            thread::sleep(std::time::Duration::from_millis(5));
            continue;
        }
        let packet = Packet::from_slice(&report[1..]).expect("a report");
        for answer in handler.process_packet(packet).unwrap_or_default() {
            let _ = device.write_all(answer.as_bytes());
        }
    }
}

struct Key {
    key: Authenticator<User>,
    hmac_secret: bool,
}

impl CommandHandler for Key {
    fn handle_command(&mut self, command: Cmd, data: &[u8]) -> soft_fido2_transport::Result<Vec<u8>> {
        if command != Cmd::Cbor {
            return Err(soft_fido2_transport::Error::InvalidCommand);
        }
        let mut answer = Vec::new();
        self.key.handle(data, &mut answer).map_err(|e| soft_fido2_transport::Error::Other(e.to_string()))?;
        if data == [GET_INFO] && self.hmac_secret {
            name_hmac_secret(&mut answer);
        }
        Ok(answer)
    }
}

/// soft-fido2 does not name the extension, because it has one secret for a credential instead of two. Adds it to the answer: a status,
/// and a map whose first entry is the versions (CTAP 2.1, 6.4).
fn name_hmac_secret(answer: &mut Vec<u8>) {
    const VERSIONS: &[u8] = b"\x01\x81\x68FIDO_2_0";
    const EXTENSIONS: &[u8] = b"\x02\x81\x6bhmac-secret";
    assert_eq!((answer[0], &answer[2..2 + VERSIONS.len()]), (0, VERSIONS), "another answer than expected");
    answer[1] += 1;
    answer.splice(2 + VERSIONS.len()..2 + VERSIONS.len(), EXTENSIONS.iter().copied());
}

/// Somebody who touches the key, or not. Credentials are lost when the program ends.
struct User {
    touches: bool,
    credentials: Mutex<HashMap<Vec<u8>, Credential>>,
}

impl AuthenticatorCallbacks for User {
    fn request_up(&self, _info: &str, _user: Option<&str>, _rp: &str) -> Result<UpResult> {
        Ok(if self.touches { UpResult::Accepted } else { UpResult::Timeout })
    }

    fn request_uv(&self, _info: &str, _user: Option<&str>, _rp: &str) -> Result<UvResult> {
        Ok(UvResult::Denied)
    }

    fn write_credential(&self, credential: &CredentialRef) -> Result<()> {
        self.credentials.lock().expect("no panic").insert(credential.id.to_vec(), credential.to_owned());
        Ok(())
    }

    fn read_credential(&self, id: &[u8]) -> Result<Option<Credential>> {
        Ok(self.credentials.lock().expect("no panic").get(id).cloned())
    }

    fn delete_credential(&self, id: &[u8]) -> Result<()> {
        self.credentials.lock().expect("no panic").remove(id);
        Ok(())
    }

    fn list_credentials(&self, rp: &str, user: Option<&[u8]>) -> Result<Vec<Credential>> {
        let credentials = self.credentials.lock().expect("no panic");
        let wanted = |c: &&Credential| c.rp.id == rp && user.is_none_or(|user| c.user.id == user);
        Ok(credentials.values().filter(wanted).cloned().collect())
    }

    fn enumerate_rps(&self) -> Result<Vec<(String, Option<String>, usize)>> {
        Ok(Vec::new())
    }

    fn credential_count(&self) -> Result<usize> {
        Ok(self.credentials.lock().expect("no panic").len())
    }

    fn get_timestamp_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
    }
}
