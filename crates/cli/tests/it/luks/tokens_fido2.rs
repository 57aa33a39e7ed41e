//! What a FIDO2 key computes: systemd opens what was enrolled here, and what systemd has enrolled opens.

use std::fs;
use std::path::Path;
use std::process::Command;

use claviger_testkit::tools;
use serde_json::{Value, json};

use crate::common::fido2::Fido2;
use crate::common::*;

const PIN: &str = "4711";

struct Setting {
    folder: Folder,
    volume: String,
    pin: String,
    wrong: String,
}

impl Setting {
    fn new() -> Self {
        let folder = Folder::new();
        let volume = folder.luks2("disk.luks");
        let file = |name: &str, pin: &str| {
            fs::write(folder.path(name), pin).expect("a file");
            folder.str(name)
        };
        let (pin, wrong) = (file("pin", &format!("{PIN}\n")), file("wrong", "1174\n"));
        Self { folder, volume, pin, wrong }
    }

    /// Enrolls with systemd's program; the newest keyslot.
    fn systemd(&self, key: &Fido2, more: &[&str]) -> Option<()> {
        let mut command = Command::new(tools::program("systemd-cryptenroll")?);
        command.arg(format!("--fido2-device={}", key.device)).args(more).arg(&self.volume);
        tools::run(command.env("PASSWORD", PASSWORD).env("PIN", PIN));
        Some(())
    }

    fn add(&self, key: &Fido2, more: &[&str]) -> Done {
        let known =
            ["keyslot", "add", "--fido2", "--fido2-device", &key.device, "--password-file", &self.folder.password];
        run([&known[..], more, &[&self.volume]].concat())
    }

    fn test(&self, key: &Fido2, more: &[&str]) -> Done {
        let by_token = ["keyslot", "test", "--json", "--token-only", "--fido2-device", &key.device];
        run([&by_token[..], more, &[&self.volume]].concat())
    }

    #[track_caller]
    fn opens(&self, key: &Fido2, keyslot: u32, more: &[&str]) {
        let tested = self.test(key, more).succeeds();
        assert_eq!(tested.json()["keyslot"], keyslot);
    }

    /// Opens a keyslot by its token with systemd's plugin for cryptsetup, if that is there.
    fn opens_by_systemd(&self, key: &Fido2, keyslot: u32, pin: &str) -> Option<()> {
        let python = tools::program("python3")?;
        if !Path::new("/usr/lib/x86_64-linux-gnu/cryptsetup/libcryptsetup-token-systemd-fido2.so").exists() {
            return tools::skip("systemd's plugin for cryptsetup is not there");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/luks/tokens_systemd.py");
        let tokens = self.tokens();
        let of_keyslot = |(_, token): &(&String, &Value)| token["keyslots"] == json!([keyslot.to_string()]);
        let (token, _) = tokens.as_object().expect("an object").iter().find(of_keyslot).expect("a token");
        let args = ["systemd-fido2", &self.volume, &key.device, token, pin, ""];
        let opened = tools::run(Command::new(python).arg(script).args(args));
        assert_eq!(String::from_utf8_lossy(&opened.stdout).trim(), keyslot.to_string());
        Some(())
    }

    fn tokens(&self) -> Value {
        run(["token", "list", "--json", &self.volume]).succeeds().json()["tokens"].clone()
    }
}

#[test]
fn what_systemd_has_enrolled_opens() {
    let setting = Setting::new();
    let (Some(plain), Some(with_pin)) = (Fido2::new(&[]), Fido2::new(&["--pin", PIN])) else { return };
    let no_pin = "--fido2-with-client-pin=no";
    let Some(()) = setting.systemd(&plain, &[no_pin]) else { return };
    setting.systemd(&plain, &[no_pin, "--fido2-with-user-presence=no"]);
    setting.systemd(&with_pin, &[]);
    setting.opens(&plain, 1, &["--slot", "1"]);
    setting.opens(&plain, 2, &["--slot", "2"]);
    // The first two tokens are another key's: it is not asked for them.
    setting.opens(&with_pin, 3, &["--fido2-pin-file", &setting.pin]);
    setting.test(&with_pin, &["--slot", "3"]).fails(1, &["no terminal", "--fido2-pin-file"]);
    let described = run(["header", "show", &setting.volume]).succeeds().text();
    assert!(described.contains("a FIDO2 security key"), "{described}");
}

#[test]
fn systemd_opens_what_was_enrolled_and_either_of_two_keys_is_enough() {
    let setting = Setting::new();
    let (Some(first), Some(backup)) = (Fido2::new(&["--pin", PIN]), Fido2::new(&[])) else { return };
    setting.add(&first, &["--fido2-pin-file", &setting.pin]).succeeds();
    let warned = setting.add(&backup, &[]).succeeds();
    assert!(warned.err.contains("has no PIN: anyone who has it can open the volume"), "{}", warned.err);
    setting.add(&backup, &["--fido2-no-pin", "--fido2-no-presence"]).succeeds();
    for (token, [pin, presence]) in [[true, true], [false, true], [false, false]].into_iter().enumerate() {
        let stored = &setting.tokens()[token.to_string()];
        let conditions = ["clientPin", "up", "uv"].map(|what| stored[format!("fido2-{what}-required")].clone());
        assert_eq!(conditions, [json!(pin), json!(presence), json!(false)], "{stored}");
    }
    setting.opens(&first, 1, &["--fido2-pin-file", &setting.pin]);
    setting.opens(&backup, 2, &[]);
    setting.opens(&backup, 3, &["--slot", "3"]);
    setting.opens_by_systemd(&first, 1, PIN);
    setting.opens_by_systemd(&backup, 2, "");
    setting.opens_by_systemd(&backup, 3, "");
    let other = Fido2::new(&[]).expect("it is built");
    setting.test(&other, &[]).fails(2, &["was not enrolled for it", "passphrase"]);
    // Without --token-only a password is asked for after that; here there is no terminal.
    let asked = run(["keyslot", "test", "--fido2-device", &other.device, &setting.volume]);
    asked.fails(1, &["No token opens it: this FIDO2 key was not enrolled", "terminal"]);
}

#[test]
fn a_key_says_why_it_refuses() {
    let setting = Setting::new();
    let Some(key) = Fido2::new(&["--pin", PIN]) else { return };
    setting.add(&key, &["--fido2-pin-file", &setting.wrong]).fails(2, &["wrong PIN", "7 tries left"]);
    setting.add(&key, &["--fido2-pin-file", &setting.pin]).succeeds();
    setting
        .test(&key, &["--fido2-pin-file", &setting.wrong])
        .fails(2, &["wrong PIN", "7 tries left", "blocked for good"]);
    setting.opens(&key, 1, &["--fido2-pin-file", &setting.pin]);
    // After three wrong ones in a row it wants to be plugged in again; after eight it is blocked.
    let refused = |_| setting.test(&key, &["--fido2-pin-file", &setting.wrong]).fails(2, &["FIDO2 key"]).err;
    let refused: Vec<_> = (0..9).map(refused).collect();
    assert!(refused.last().expect("nine").contains("no more PINs") || refused[8].contains("is blocked"), "{refused:?}");

    let untouched = Fido2::new(&["--no-touch"]).expect("it is built");
    setting.add(&untouched, &[]).fails(2, &["was not touched in time"]);
    let old = Fido2::new(&["--no-hmac-secret"]).expect("it is built");
    setting.add(&old, &[]).fails(5, &["without the extension hmac-secret"]);
    setting.add(&old, &["--fido2-with-verification"]).fails(5, &["hmac-secret"]);
    let plain = Fido2::new(&[]).expect("it is built");
    setting.add(&plain, &["--fido2-with-verification"]).fails(1, &["does not recognise its user"]);
    let nowhere = ["keyslot", "test", "--token-only", "--fido2-device", "/dev/hidraw77", &setting.volume];
    run(nowhere).fails(1, &["there is no FIDO2 key at /dev/hidraw77"]);
    let no_key = ["keyslot", "test", "--token-only", "--fido2-device", "/dev/null", &setting.volume];
    run(no_key).fails(1, &["this is not a FIDO2 key"]);
    // Nothing was added by any of them.
    assert_eq!(setting.tokens()["1"], Value::Null);
}

#[test]
fn a_wrong_pin_costs_one_try_however_many_keys_are_enrolled() {
    let setting = Setting::new();
    let (Some(first), Some(second)) = (Fido2::new(&["--pin", PIN]), Fido2::new(&["--pin", PIN])) else { return };
    for key in [&first, &second] {
        setting.add(key, &["--fido2-pin-file", &setting.pin]).succeeds();
    }
    for left in ["7 tries left", "6 tries left"] {
        setting.test(&second, &["--fido2-pin-file", &setting.wrong]).fails(2, &["wrong PIN", left]);
    }
    setting.opens(&second, 2, &["--fido2-pin-file", &setting.pin]);
    setting.opens(&first, 1, &["--fido2-pin-file", &setting.pin]);
}

#[test]
fn a_keyfile_for_any_format_is_sealed_to_a_key() {
    let setting = Setting::new();
    let Some(key) = Fido2::new(&["--pin", PIN]) else { return };
    let (sealed, password) = (setting.folder.str("password.jwe"), setting.folder.password.clone());
    let with_key = ["--fido2-device", &key.device, "--fido2-pin-file", &setting.pin];
    let seal = ["keyfile", "--bind-fido2", "--seal", &password, &sealed];
    run([&seal[..], &with_key].concat()).succeeds();
    let opened = run([&["keyfile", "--open"], &with_key[..], &[&sealed]].concat()).succeeds();
    assert_eq!(opened.out, fs::read(&password).expect("a file"));
    let other = Fido2::new(&[]).expect("it is built");
    run(["keyfile", "--open", "--fido2-device", &other.device, &sealed]).fails(2, &["was not enrolled for it"]);
}

/// Twenty usually, a thousand in `make torture`, which a key in software stores.
#[test]
fn many_are_enrolled_and_opened_each_way() {
    let mut setting = Setting::new();
    let Some(key) = Fido2::new(&[]) else { return };
    for round in 0..tools::much(20, 1000) {
        // A header has room for some thirty tokens.
        if round % 40 == 39 {
            setting = Setting::new();
        }
        if round % 2 == 0 {
            setting.add(&key, &["--kdf", "pbkdf2", "--iterations", "1000"]).succeeds();
            setting.opens_by_systemd(&key, 1, "");
        } else {
            let Some(()) = setting.systemd(&key, &["--fido2-with-client-pin=no"]) else { return };
        }
        setting.opens(&key, 1, &[]);
        // The token stays, without its keyslot, every other time.
        if round % 4 < 2 {
            run(["token", "remove", &setting.volume, "0"]).succeeds();
        }
        run(["keyslot", "kill", "--unproven", "--yes", &setting.volume, "1"]).succeeds();
    }
}
