//! What a TPM has sealed: systemd opens what was enrolled here, and what systemd has enrolled opens.

use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use claviger_testkit::bitlocker::maker::{Kind, Made, Protector, ToSeal, Volume};
use claviger_testkit::faults::{self, Fault};
use claviger_testkit::tools;
use serde_json::{Value, json};

use crate::common::tpm::Tpm;
use crate::common::*;
use crate::serving::key_process::ISOLATED;

const PIN: &str = "4711";

struct Setting {
    folder: Folder,
    tpm: Tpm,
    volume: String,
}

impl Setting {
    fn new() -> Option<Self> {
        let tpm = Tpm::new()?;
        let folder = Folder::new();
        let volume = folder.luks2("disk.luks");
        fs::write(folder.path("pin"), format!("{PIN}\n")).expect("a file");
        fs::write(folder.path("wrong"), "1174\n").expect("a file");
        Some(Self { folder, tpm, volume })
    }

    /// Enrolls with systemd's program; the newest keyslot.
    fn systemd(&self, more: &[&str]) -> Option<()> {
        let mut command = Command::new(tools::program("systemd-cryptenroll")?);
        command.arg(format!("--tpm2-device={}", self.tpm.device())).args(more).arg(&self.volume);
        tools::run(command.env("PASSWORD", PASSWORD).env("NEWPIN", PIN));
        self.tpm.flush();
        Some(())
    }

    fn add(&self, more: &[&str]) -> Done {
        let device = self.tpm.device();
        let known = ["keyslot", "add", "--tpm2", "--tpm2-device", &device, "--password-file", &self.folder.password];
        run([&known[..], more, &[&self.volume]].concat())
    }

    fn test(&self, more: &[&str]) -> Done {
        let device = self.tpm.device();
        let by_token = ["keyslot", "test", "--json", "--tpm2-device", &device];
        let tested = run([&by_token[..], more, &[&self.volume]].concat());
        self.tpm.assert_empty();
        tested
    }

    #[track_caller]
    fn opens(&self, keyslot: u32, more: &[&str]) {
        let slot = keyslot.to_string();
        let tested = self.test(&[&["--token-only", "--slot", &slot], more].concat()).succeeds();
        assert_eq!(tested.json()["keyslot"], keyslot);
    }

    /// Opens it with systemd's plugin for cryptsetup, if that is there; `signature` may be empty, like the PIN.
    fn opens_by_systemd(&self, token: u32, pin: &str, signature: &str) -> Option<()> {
        let python = tools::program("python3")?;
        if !Path::new("/usr/lib/x86_64-linux-gnu/cryptsetup/libcryptsetup-token-systemd-tpm2.so").exists() {
            return tools::skip("systemd's plugin for cryptsetup is not there");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/luks/tokens_systemd.py");
        let args = ["systemd-tpm2", &self.volume, &self.tpm.device(), &token.to_string(), pin, signature];
        let opened = tools::run(Command::new(python).arg(script).args(args));
        assert_eq!(String::from_utf8_lossy(&opened.stdout).trim(), (token + 1).to_string());
        self.tpm.flush();
        Some(())
    }

    fn resealing(&self, more: &[&str], keyslot: &[&str]) -> Command {
        let device = self.tpm.device();
        let known = ["keyslot", "reseal", "--tpm2-device", &device, "--password-file", &self.folder.password];
        let mut command = Command::new(env!("CARGO_BIN_EXE_claviger"));
        command.args([&known[..], more, &[&self.volume], keyslot].concat());
        command
    }

    fn reseal(&self, more: &[&str], keyslot: &[&str]) -> Done {
        let resealed = done(self.resealing(more, keyslot).output().expect("it starts"));
        self.tpm.assert_empty();
        resealed
    }

    #[track_caller]
    fn opens_by_password(&self) {
        let tested = run(["keyslot", "test", "--json", "--password-file", &self.folder.password, &self.volume]);
        assert_eq!(tested.succeeds().json()["keyslot"], 0);
    }

    /// As if an update had changed what is measured.
    fn update(&self, pcr: u32) {
        self.tpm.tool("tpm2_pcrextend", &[&format!("{pcr}:sha256={}", "5a".repeat(32))]);
    }

    fn tokens(&self) -> Value {
        run(["token", "list", "--json", &self.volume]).succeeds().json()["tokens"].clone()
    }

    fn replace(&self, token: u32, with: &Value) {
        fs::write(self.folder.path("token.json"), with.to_string()).expect("a file");
        let at = token.to_string();
        run(["token", "import", "--replace", "--at", &at, &self.volume, &self.folder.str("token.json")]).succeeds();
    }
}

#[test]
fn what_systemd_has_sealed_opens() {
    let Some(setting) = Setting::new() else { return };
    let Some(()) = setting.systemd(&["--tpm2-pcrs=7"]) else { return };
    setting.systemd(&["--tpm2-pcrs=0+7", "--tpm2-with-pin=yes"]);
    setting.systemd(&["--tpm2-pcrs="]);
    let pin = setting.folder.str("pin");
    setting.opens(1, &[]);
    setting.opens(2, &["--tpm2-pin-file", &pin]);
    setting.opens(3, &[]);
    setting.test(&["--token-only", "--slot", "2"]).fails(1, &["no terminal", "--tpm2-pin-file"]);
    setting
        .test(&["--token-only", "--slot", "2", "--tpm2-pin-file", &setting.folder.str("wrong")])
        .fails(2, &["wrong PIN"]);
    let described = run(["header", "show", &setting.volume]).succeeds().text();
    assert!(described.contains("PCRs 0, 7, with a PIN"), "{described}");

    // Another state of the machine: the first does not open any more, and the last one never asked for it.
    setting.tpm.tool("tpm2_pcrextend", &[&format!("7:sha256={}", "5a".repeat(32))]);
    setting
        .test(&["--token-only", "--slot", "1"])
        .fails(2, &["PCR 7 (Secure Boot state)", "nothing was measured then", "keyslot reseal"]);
    setting.opens(3, &[]);
    // Without --token-only a password is asked for after that; here there is no terminal.
    setting.test(&["--slot", "1"]).fails(1, &["No token opens it", "PCR 7", "no terminal"]);
    let password = &setting.folder.password;
    assert_eq!(setting.test(&["--password-file", password]).succeeds().json()["keyslot"], 0);
}

#[test]
fn systemd_opens_what_was_sealed_here() {
    let Some(setting) = Setting::new() else { return };
    let pin = setting.folder.str("pin");
    assert_eq!(setting.add(&["--json"]).succeeds().json()["keyslot"], 1);
    setting.add(&["--tpm2-pcrs", "0+4", "--tpm2-with-pin", "--new-tpm2-pin-file", &pin]).succeeds();
    setting.tpm.assert_empty();
    setting.opens(1, &[]);
    setting.opens(2, &["--tpm2-pin-file", &pin]);
    for (token, pin) in [(0, ""), (1, PIN)] {
        let Some(()) = setting.opens_by_systemd(token, pin, "") else { return };
    }
    let keyslots = run(["keyslot", "list", "--json", &setting.volume]).succeeds().json();
    assert_eq!(keyslots["keyslots"][1]["iterations"], 1000, "{keyslots}");
    // Another format has no tokens, so the TPM seals nothing.
    let other = setting.folder.volume("disk.tc", "1M", &[]);
    let device = setting.tpm.device();
    run(["keyslot", "add", "--tpm2", "--tpm2-device", &device, "--password-file", &setting.folder.password, &other])
        .fails(1, &["takes no TPM", "LUKS2 and BitLocker do"]);
    setting.add(&["--tpm2-pcrs", "24"]).fails(1, &["0 to 23"]);
}

/// The TPM counts, and says it.
#[test]
fn too_many_wrong_pins_lock_the_tpm() {
    let Some(setting) = Setting::new() else { return };
    let (pin, wrong) = (setting.folder.str("pin"), setting.folder.str("wrong"));
    setting.tpm.tool("tpm2_dictionarylockout", &["--setup-parameters", "--max-tries=3", "--recovery-time=1000"]);
    setting.add(&["--tpm2-with-pin", "--new-tpm2-pin-file", &pin]).succeeds();
    for _ in 0..3 {
        setting.test(&["--token-only", "--tpm2-pin-file", &wrong]).fails(2, &["wrong PIN"]);
    }
    setting.test(&["--token-only", "--tpm2-pin-file", &pin]).fails(2, &["locked", "passphrase"]);
}

/// Another TPM, none at all, and tokens that nobody could have made.
#[test]
fn what_does_not_fit_is_named() {
    let Some(setting) = Setting::new() else { return };
    let Some(other) = Tpm::new() else { return };
    setting.add(&[]).succeeds();
    let token = setting.tokens()["0"].clone();
    let by = |device: &str| run(["keyslot", "test", "--token-only", "--tpm2-device", device, &setting.volume]);
    by(&other.device()).fails(2, &["another TPM"]);
    other.assert_empty();
    by("/dev/no-tpm").fails(1, &["no TPM at /dev/no-tpm"]);
    run(["keyslot", "test", "--tpm2-device", "tpm", &setting.volume]).fails(1, &["no TPM is called tpm"]);
    for (field, value) in [
        ("tpm2-blob", json!("AAAA")),
        ("tpm2-blob", json!(["AAAA", "AAAA"])),
        ("tpm2-pcrs", json!([99])),
        ("tpm2-pcr-bank", json!("crc32")),
        ("tpm2-policy-hash", json!("xyz")),
        ("tpm2_pcrlock", json!(true)),
    ] {
        let mut damaged = token.clone();
        damaged[field] = value;
        setting.replace(0, &damaged);
        setting.test(&["--token-only"]).fails(5, &["token 0", "TPM"]);
    }
    setting.replace(0, &token);
    setting.opens(1, &[]);
}

/// systemd since version 253 hashes a PIN with a salt; since 254 it seals under a key that stays in the TPM. Its older program and
/// Both, made by tpm2-tools with their known values.
#[test]
fn newer_tokens_open() {
    let Some(setting) = Setting::new() else { return };
    let pin = setting.folder.str("pin");
    let mut salted = [0; 32];
    claviger_crypto::hash::SHA256.pbkdf2(PIN.as_bytes(), b"0123456789abcdef", 10_000, &mut salted, &|| true);
    fs::write(setting.folder.path("salted"), STANDARD.encode(salted)).expect("a file");
    setting.add(&["--tpm2-with-pin", "--new-tpm2-pin-file", &setting.folder.str("salted")]).succeeds();
    let mut token = setting.tokens()["0"].clone();
    token["tpm2_salt"] = STANDARD.encode(b"0123456789abcdef").into();
    setting.replace(0, &token);
    setting.opens(1, &["--tpm2-pin-file", &pin]);

    let at = |name: &str| setting.folder.str(name);
    let tool = |name: &str, args: &[&str]| {
        setting.tpm.tool(name, args);
        setting.tpm.flush();
    };
    for (slot, kind) in [(2u32, "ecc"), (3, "rsa")] {
        let handle = format!("0x8100000{slot}");
        let srk = "restricted|decrypt|fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda";
        setting.tpm.tool("tpm2_createprimary", &["-C", "o", "-G", kind, "-a", srk, "-c", &at("srk")]);
        tool("tpm2_evictcontrol", &["-C", "o", "-c", &at("srk"), &handle]);
        tool("tpm2_readpublic", &["-c", &handle, "-n", &at("name")]);
        tool("tpm2_createpolicy", &["--policy-pcr", "-l", "sha256:7", "-L", &at("policy")]);
        fs::write(at("secret"), [slot as u8; 32]).expect("a file");
        let attributes = ["-a", "fixedtpm|fixedparent", "-L", &at("policy"), "-i", &at("secret")];
        let into = ["-u", &at("pub"), "-r", &at("priv")];
        tool("tpm2_create", &[&["-C", &handle], &attributes[..], &into].concat());
        let read = |name: &str| fs::read(at(name)).expect("a file");
        let name = read("name");
        let handle = u32::from_str_radix(&handle[2..], 16).expect("a number").to_be_bytes();
        let key = [&handle[..], &(name.len() as u16).to_be_bytes(), &name, &[0, 0, 0, 1]].concat();
        fs::write(at("passphrase"), STANDARD.encode([slot as u8; 32])).expect("a file");
        let cheap = ["--kdf", "pbkdf2", "--iterations", "1000", "--new-password-file", &at("passphrase")];
        let add = ["keyslot", "add", "--password-file", &setting.folder.password, &setting.volume];
        run(add.into_iter().chain(cheap)).succeeds();
        let token = json!({
            "type": "systemd-tpm2", "keyslots": [slot.to_string()],
            "tpm2-blob": STANDARD.encode([read("priv"), read("pub")].concat()),
            "tpm2-pcrs": [7], "tpm2-pcr-bank": "sha256", "tpm2-primary-alg": kind, "tpm2-pin": false,
            "tpm2-policy-hash": read("policy").iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "tpm2_srk": STANDARD.encode(&key),
        });
        fs::write(at("token.json"), token.to_string()).expect("a file");
        run(["token", "import", &setting.volume, &at("token.json")]).succeeds();
        setting.opens(slot, &[]);
        // The key that the token names has to be the one that is there.
        let mut other = key;
        other[20] ^= 1;
        let mut wrong = token;
        wrong["tpm2_srk"] = STANDARD.encode(&other).into();
        setting.replace(slot - 1, &wrong);
        setting.test(&["--token-only", "--slot", &slot.to_string()]).fails(2, &["another TPM"]);
    }
}

/// A key process is sealed to a state of the machine: the TPM gives it the key, after each lock again, and only in that state.
#[test]
fn an_isolated_volume_is_opened_by_the_state_of_the_machine() {
    let Some(setting) = Setting::new() else { return };
    setting.add(&["--tpm2-pcrs", "7"]).succeeds();
    let device = setting.tpm.device();
    let by_tpm = ["--token-only", "--tpm2-device", &device];
    let socket = setting.folder.str("s");
    let serve = [&[ISOLATED, "--socket", &socket], &by_tpm[..], &[&setting.volume]].concat();
    let served = Served::start(&serve);
    let unlock = |how: &[&str]| run([&["unlock"], how, &[&setting.volume]].concat());
    run(["lock", &setting.volume]).succeeds();
    unlock(&by_tpm).succeeds();
    let Some((wrote, said)) = qemu_io(&served.uri, "write -P 0x5a 0 1M") else { return };
    assert!(wrote, "{said}");
    run(["lock", &setting.volume]).succeeds();
    setting.update(7);
    unlock(&by_tpm).fails(2, &["PCR 7 (Secure Boot state)"]);
    setting.tpm.assert_empty();
    unlock(&["--password-file", &setting.folder.password]).succeeds();
    let (read, said) = qemu_io(&served.uri, "read -P 0x5a 0 1M").expect("as before");
    assert!(read, "{said}");
}

/// A TPM with the shared storage key, as Windows leaves it.
fn with_storage_key(tpm: &Tpm, folder: &Folder) {
    let srk = "restricted|decrypt|fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda";
    tpm.tool("tpm2_createprimary", &["-C", "o", "-G", "rsa", "-a", srk, "-c", &folder.str("srk")]);
    tpm.tool("tpm2_evictcontrol", &["-C", "o", "-c", &folder.str("srk"), "0x81000001"]);
    tpm.flush();
}

/// Seals this with tpm2-tools as Windows does, and returns the blob of the protector.
fn sealed_as_by_windows(tpm: &Tpm, folder: &Folder, to_seal: &ToSeal) -> Vec<u8> {
    let at = |name: &str| folder.str(name);
    fs::write(at("secret"), &to_seal.secret).expect("a file");
    tpm.tool("tpm2_startauthsession", &["-S", &at("session")]);
    tpm.tool("tpm2_policyauthvalue", &["-S", &at("session")]);
    tpm.tool("tpm2_policypcr", &["-S", &at("session"), "-l", "sha256:7,11", "-L", &at("policy")]);
    tpm.flush();
    let password = format!("hex:{}", to_seal.password.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let how = match to_seal.password.is_empty() {
        true => vec!["-C", "0x81000001", "-a", "fixedtpm|fixedparent|noda"],
        false => vec!["-C", "0x81000001", "-a", "fixedtpm|fixedparent", "-p", &password],
    };
    let sealed = ["-L", &at("policy"), "-i", &at("secret"), "-u", &at("pub"), "-r", &at("priv")];
    tpm.tool("tpm2_create", &[&how[..], &sealed].concat());
    tpm.flush();
    let read = |name: &str| fs::read(at(name)).expect("a file");
    [&read("priv")[..], &read("pub"), &[0, 32], &[7; 32], &[3, 0x80, 8, 0]].concat()
}

/// Windows seals to the TPM by itself. tpm2-tools make the same here, from the metadata, keys and traces of recorded machines.
#[test]
fn what_windows_has_sealed_opens() {
    let Some(tpm) = Tpm::new() else { return };
    let folder = Folder::new();
    let at = |name: &str| folder.str(name);
    with_storage_key(&tpm, &folder);
    let by_tpm = |pin: Option<&str>, startup_key| Protector::Tpm { pin: pin.map(str::to_owned), startup_key };
    let protectors = vec![
        Protector::Password(PASSWORD.into()),
        by_tpm(None, false),
        by_tpm(Some(PIN), false),
        by_tpm(None, true),
        by_tpm(Some(PIN), true),
    ];
    let described = Volume { protectors, ..Volume::new(Kind::Windows8) };
    let to_seal = described.make().to_seal;
    let tpm_blobs = to_seal.iter().map(|one| sealed_as_by_windows(&tpm, &folder, one)).collect();
    let made = Volume { tpm_blobs, ..described }.make();
    let volume = at("disk.bitlocker");
    fs::write(&volume, &made.image).expect("a file");
    let startup_key = |number: usize| {
        let (name, contents) = made.to_seal[number].startup_key.clone().expect("it has one");
        fs::write(at(&name), contents).expect("a file");
        at(&name)
    };
    let keys = [startup_key(2), startup_key(3)];
    fs::write(at("pin"), PIN).expect("a file");
    fs::write(at("wrong"), "12345678").expect("a file");
    let device = tpm.device();
    let open = |args: &[&str]| run([args, &["--token-only", "--tpm2-device", &device, &volume]].concat());
    let pin = ["--tpm2-pin-file", &at("pin")];
    for args in [
        vec!["cat"],
        [&["cat", "--slot", "2"][..], &pin].concat(),
        vec!["cat", "--slot", "3", "--keyfile", &keys[0]],
        [&["cat", "--slot", "4", "--keyfile", &keys[1]][..], &pin].concat(),
    ] {
        assert!(open(&args).succeeds().out == made.plaintext, "{args:?}");
        tpm.assert_empty();
    }
    // What is missing or wrong is named.
    open(&["cat", "--slot", "3"]).fails(1, &["takes its startup key", "--keyfile", ".BEK"]);
    open(&["cat", "--slot", "3", "--keyfile", &keys[1]]).fails(2, &["startup key is for another", ".BEK"]);
    open(&["cat", "--slot", "2"]).fails(1, &["no terminal", "--tpm2-pin-file"]);
    open(&["cat", "--slot", "2", "--tpm2-pin-file", &at("wrong")]).fails(2, &["wrong PIN"]);
    // A keyfile that is given is needed: the plain TPM protector does not count.
    open(&["cat", "--keyfile", &at("pin")]).fails(3, &["not a BitLocker startup key"]);
    let shown = run(["keyslot", "list", &volume]).succeeds().text();
    assert!(shown.contains("its PIN and its startup key"), "{shown}");
    tpm.tool("tpm2_pcrextend", &[&format!("11:sha256={}", "5a".repeat(32))]);
    open(&["cat", "--slot", "1"]).fails(2, &["PCR 11 (unified kernel image and boot phases)"]);
    // A PIN is not even asked for.
    open(&["cat", "--slot", "2"]).fails(2, &["PCR 11"]);
    tpm.assert_empty();
    let explained = run(["explain", "--without-password", "--tpm2-device", &device, &volume]).fails(2, &[]).text();
    assert!(explained.contains("Keyslot 1 does not open by this TPM") && explained.contains("PCR 11"), "{explained}");

    // Sealed anew, each opens again: with the same PIN and the same startup key, which are not asked for.
    let password = ["--password-file", &folder.password, "--tpm2-device", &device];
    let reseal =
        |args: &[&str], number: &str| run([&["keyslot", "reseal"], args, &password, &[&volume, number]].concat());
    reseal(&["--tpm2-with-pin"], "1").fails(1, &["keeps its PIN"]);
    reseal(&[], "0").fails(1, &["keyslot 0 is not sealed to a TPM"]);
    for number in ["1", "2", "3", "4"] {
        let said = reseal(&[], number).succeeds().text();
        assert!(said.contains(&format!("the TPM opens keyslot {number} with PCRs 7, 11")), "{said}");
    }
    assert!(open(&["cat"]).succeeds().out == made.plaintext);
    let with_both = [&["cat", "--slot", "4", "--keyfile", &keys[1]][..], &pin].concat();
    assert!(open(&with_both).succeeds().out == made.plaintext);
    open(&["cat", "--slot", "2", "--tpm2-pin-file", &at("wrong")]).fails(2, &["wrong PIN"]);
    assert!(run(["cat", "--password-file", &folder.password, &volume]).succeeds().out == made.plaintext);
    tpm.assert_empty();
}

/// A removal by the TPM is cut off after the first copy of the metadata, in which the next protector has its number, and given again.
#[test]
fn a_removal_that_is_repeated_removes_nothing_else() {
    let Some(tpm) = Tpm::new() else { return };
    let folder = Folder::new();
    with_storage_key(&tpm, &folder);
    let protectors = vec![Protector::Password(PASSWORD.into())];
    let made = Volume { protectors, ..Volume::new(Kind::Windows8) }.make();
    let (volume, device) = (folder.str("disk.bitlocker"), tpm.device());
    fs::write(&volume, &made.image).expect("a file");
    let by_tpm = ["--tpm2-device", &device, &volume];
    for _ in 0..2 {
        run([&["keyslot", "add", "--tpm2", "--password-file", &folder.password], &by_tpm[..]].concat()).succeeds();
    }
    let guids = || {
        let listed = run(["keyslot", "list", "--json", &volume]).succeeds().json();
        let slots = listed["keyslots"].as_array().expect("a list").iter();
        slots.map(|slot| slot["guid"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let (before, whole) = (guids(), fs::read(&volume).expect("the volume"));
    let remove = || run([&["keyslot", "remove", "--yes", "--token-only", "--slot", "1"], &by_tpm[..]].concat());
    remove().succeeds();
    let first = made.layout.metadata[0] as usize..(made.layout.metadata[0] + made.layout.metadata_len) as usize;
    let mut torn = whole;
    torn[first.clone()].copy_from_slice(&fs::read(&volume).expect("the volume")[first]);
    fs::write(&volume, torn).expect("a file");
    remove().succeeds();
    assert_eq!(guids(), [before[0].clone(), before[2].clone()]);
    let opened = run([&["cat", "--token-only"], &by_tpm[..]].concat()).succeeds();
    assert!(opened.out == made.plaintext);
}

/// A TPM may release anything: what is not a key of the right length is refused.
#[test]
fn what_a_tpm_releases_is_not_trusted() {
    let Some(tpm) = Tpm::new() else { return };
    let folder = Folder::new();
    with_storage_key(&tpm, &folder);
    let protectors = vec![Protector::Tpm { pin: None, startup_key: true }];
    let described = Volume { protectors, ..Volume::new(Kind::Windows8) };
    let to_seal = described.make().to_seal.remove(0);
    let (name, contents) = to_seal.startup_key.clone().expect("it has one");
    fs::write(folder.path(&name), contents).expect("a file");
    for secret in [&b"\x11\0\0\0\x01\0\0\0\0\x20\0\0short"[..], b"\x2c\0", b"\x08\0\0\0\x05\0\0\0"] {
        let blob = sealed_as_by_windows(&tpm, &folder, &ToSeal { secret: secret.into(), ..to_seal.clone() });
        let made = Volume { tpm_blobs: vec![blob], ..described.clone() }.make();
        let volume = folder.str("disk.bitlocker");
        fs::write(&volume, &made.image).expect("a file");
        let with = ["keyslot", "test", "--token-only", "--tpm2-device", &tpm.device(), "--keyfile", &folder.str(&name)];
        let refused = run([&with[..], &[&volume]].concat());
        assert!([4, 5].contains(&refused.code), "{}: {}", refused.code, refused.err);
        tpm.assert_empty();
    }
}

/// Protectors made here have the parts that Windows makes, and open.
#[test]
fn protectors_for_a_tpm_are_made() {
    let Some(tpm) = Tpm::new() else { return };
    let folder = Folder::new();
    let at = |name: &str| folder.str(name);
    let protectors = vec![Protector::Password(PASSWORD.into())];
    let made = Volume { protectors, ..Volume::new(Kind::Windows8) }.make();
    let volume = at("disk.bitlocker");
    fs::write(&volume, &made.image).expect("a file");
    fs::write(at("pin"), PIN).expect("a file");
    fs::write(at("short"), "123").expect("a file");
    let device = tpm.device();
    let add = |args: &[&str]| {
        let with = ["keyslot", "add", "--tpm2", "--tpm2-device", &device, "--password-file", &folder.password];
        run([&with[..], args, &[&volume]].concat())
    };
    add(&[]).fails(5, &["shared storage key", "tpm2_evictcontrol"]);
    with_storage_key(&tpm, &folder);
    let pin = ["--tpm2-with-pin", "--new-tpm2-pin-file", &at("pin")];
    add(&["--tpm2-with-pin", "--new-tpm2-pin-file", &at("short")]).fails(1, &["4 to 20 characters"]);
    fs::create_dir(at("stick")).expect("a folder");
    let stick = ["--startup-key", &at("stick")];
    add(&[]).succeeds();
    add(&pin).succeeds();
    let said = add(&stick).succeeds().text();
    assert!(said.contains("together with the TPM"), "{said}");
    add(&[&pin[..], &stick].concat()).succeeds();
    tpm.assert_empty();
    let kinds: Vec<_> = run(["keyslot", "list", "--json", &volume]).succeeds().json()["keyslots"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|slot| (slot["type"].as_str().expect("text").to_owned(), slot["guid"].as_str().expect("text").to_owned()))
        .collect();
    let of_kind = |kind: &str| kinds.iter().find(|(of, _)| of == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
    let key_of = |kind: &str| format!("{}/{}.BEK", at("stick"), of_kind(kind).1.to_uppercase());
    let open = |args: &[&str]| run([&["cat", "--token-only", "--tpm2-device", &device], args, &[&volume]].concat());
    let (by_pin, keys) =
        (["--tpm2-pin-file", &at("pin")], ["TPM and startup key", "TPM and PIN and startup key"].map(key_of));
    for args in [
        vec![],
        [&["--slot", "2"][..], &by_pin].concat(),
        vec!["--slot", "3", "--keyfile", &keys[0]],
        [&["--slot", "4", "--keyfile", &keys[1]][..], &by_pin].concat(),
    ] {
        assert!(open(&args).succeeds().out == made.plaintext, "{args:?}");
    }
    let test = ["keyslot", "test", "--token-only", "--slot", "2", "--tpm2-device", &device];
    let tested = run([&test[..], &by_pin, &[&volume]].concat()).succeeds().text();
    assert!(tested.ends_with("opens keyslot 2\n"), "{tested}");
    // Other readers ignore what they do not know, and the metadata stay sound.
    run(["verify", "--password-file", &folder.password, &volume]).succeeds();
    let image = fs::read(&volume).expect("the volume");
    assert!(Made { image, ..made.clone() }.expect_readers() > 0);
    run(["keyslot", "kill", "--yes", "--password-file", &folder.password, &volume, "0"]).fails(1, &["without a TPM"]);
    // They can be removed again, also by the TPM itself. The last one gives the volume a new master key, as any other protector does.
    let kill = |number: &str| {
        run(["keyslot", "kill", "--yes", "--password-file", &folder.password, &volume, number]).succeeds()
    };
    for number in ["4", "3"] {
        assert!(kill(number).err.contains("stays the same"), "{number}");
    }
    let remove = ["keyslot", "remove", "--yes", "--token-only", "--slot", "2", "--tpm2-device", &device];
    let removed = run([&remove[..], &by_pin, &[&volume]].concat()).succeeds();
    assert!(removed.err.contains("stays the same"), "{}", removed.err);
    assert!(!kill("1").err.contains("stays the same"));
    run(["keyslot", "add", "--recovery-password", "--password-file", &folder.password, &volume]).succeeds();
    run(["keyslot", "kill", "--yes", "--password-file", &folder.password, &volume, "1"]).succeeds();
    // A LUKS2 volume has tokens, and no startup keys.
    let luks = folder.luks2("disk.luks");
    let with = ["keyslot", "add", "--tpm2", "--tpm2-device", &device, "--password-file", &folder.password];
    run([&with[..], &stick, &[&luks]].concat()).fails(1, &["LUKS2 takes no startup key"]);
}

/// A policy that can be updated: whatever the PCRs are, somebody has to have signed it.
#[test]
fn signed_states_open() {
    let Some(setting) = Setting::new() else { return };
    let Some(_) = tools::program("openssl") else { return };
    let at = |name: &str| setting.folder.str(name);
    let openssl = |args: &[&str]| tools::run(Command::new("openssl").args(args)).stdout;
    openssl(&["genrsa", "-out", &at("key.pem"), "2048"]);
    openssl(&["rsa", "-in", &at("key.pem"), "-pubout", "-out", &at("public.pem")]);
    let sign = |file: &str| {
        setting.tpm.tool("tpm2_createpolicy", &["--policy-pcr", "-l", "sha256:11", "-L", &at("policy")]);
        setting.tpm.flush();
        openssl(&["dgst", "-sha256", "-sign", &at("key.pem"), "-out", &at("signature"), &at("policy")]);
        let read = |name: &str| fs::read(at(name)).expect("a file");
        let der = openssl(&["rsa", "-pubin", "-in", &at("public.pem"), "-RSAPublicKey_out", "-outform", "DER"]);
        let mut hash = [0; 32];
        claviger_crypto::hash::SHA256.checksum(&[&der], &mut hash);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let entry = json!({
            "pcrs": [11], "pkfp": hex(&hash), "pol": hex(&read("policy")), "sig": STANDARD.encode(read("signature")),
        });
        fs::write(at(file), json!({ "sha256": [entry] }).to_string()).expect("a file");
    };
    sign("first.json");
    let signed = ["--tpm2-public-key-pcrs=11", &format!("--tpm2-public-key={}", at("public.pem"))];
    let signature = format!("--tpm2-signature={}", at("first.json"));
    let Some(()) = setting.systemd(&[&["--tpm2-pcrs=7", &signature], &signed[..]].concat()) else { return };
    setting.opens(1, &["--tpm2-signature", &at("first.json")]);
    // Enrolled by this program: by default, no PCR must have its current value.
    let public_key = ["--tpm2-public-key", &at("public.pem")];
    setting.add(&public_key).succeeds();
    let pin = ["--tpm2-with-pin", "--new-tpm2-pin-file", &at("pin"), "--tpm2-pcrs", "7"];
    setting.add(&[&public_key[..], &["--tpm2-public-key-pcrs", "11"], &pin].concat()).succeeds();
    setting.tpm.assert_empty();
    let both_open = |file: &str| {
        setting.opens(2, &["--tpm2-signature", &at(file)]);
        setting.opens(3, &["--tpm2-signature", &at(file), "--tpm2-pin-file", &at("pin")]);
        setting.opens_by_systemd(1, "", &at(file));
        setting.opens_by_systemd(2, PIN, &at(file));
    };
    both_open("first.json");
    setting.add(&["--tpm2-public-key", &at("pin")]).fails(5, &["pin", "RSA"]);
    setting.add(&[&public_key[..], &["--tpm2-public-key-pcrs", ""]].concat()).fails(1, &["PCR"]);
    setting.tpm.tool("tpm2_pcrextend", &[&format!("11:sha256={}", "5a".repeat(32))]);
    setting
        .test(&["--token-only", "--tpm2-signature", &at("first.json")])
        .fails(2, &["requires a signature", "--tpm2-signature"]);
    sign("second.json");
    setting.opens(1, &["--tpm2-signature", &at("second.json")]);
    setting
        .test(&["--token-only", "--slot", "2", "--tpm2-signature", &at("first.json")])
        .fails(2, &["requires a signature"]);
    both_open("second.json");
    // The TPM rejects a signature by another key.
    openssl(&["genrsa", "-out", &at("key.pem"), "2048"]);
    sign("third.json");
    setting.test(&["--token-only", "--tpm2-signature", &at("third.json")]).fails(2, &["signature"]);
}

/// Sealed by systemd or here: after an update, one command seals the keyslot anew.
#[test]
fn after_an_update_a_keyslot_is_sealed_anew() {
    let Some(setting) = Setting::new() else { return };
    let pin = setting.folder.str("pin");
    let with_pin = ["--new-tpm2-pin-file", &pin];
    let Some(()) = setting.systemd(&["--tpm2-pcrs=0+7"]) else { return };
    setting.reseal(&["--json"], &[]).succeeds();
    setting.add(&["--tpm2-with-pin", "--new-tpm2-pin-file", &pin]).succeeds();
    setting.update(7);
    for keyslot in ["1", "2"] {
        let test = setting.test(&["--token-only", "--slot", keyslot]);
        test.fails(2, &["PCR 7 (Secure Boot state)", "In one step: `claviger keyslot reseal"]);
    }
    let several = ["keyslot 1 (token 0, PCRs 0, 7)", "keyslot 2 (token 1, PCR 7, with a PIN)", "disk.luks 1`"];
    setting.reseal(&[], &[]).fails(1, &several);
    setting.reseal(&[], &["0"]).fails(1, &["keyslot 0 is not sealed to a TPM", "token list"]);
    setting.reseal(&[], &["2"]).fails(1, &["no terminal", "--new-tpm2-pin-file"]);

    let resealed = setting.reseal(&["--json"], &["1"]).succeeds().json();
    let expected = json!({ "keyslot": 1, "token": 0, "pcrs": [0, 7], "bank": "sha256", "pin": false });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(resealed[field], *value, "{field}");
    }
    let said = setting.reseal(&with_pin, &["2"]).succeeds().text();
    for words in [
        "the TPM opens keyslot 2 with PCR 7 as it is now and the PIN",
        "old key of keyslot 2",
        "To test it: `claviger keyslot test",
    ] {
        assert!(said.contains(words), "{said}");
    }
    setting.opens(1, &[]);
    setting.opens(2, &["--tpm2-pin-file", &pin]);
    setting.opens_by_password();
    assert_eq!(setting.tokens().as_object().map(serde_json::Map::len), Some(2));
    for (token, pin) in [(0, ""), (1, PIN)] {
        setting.opens_by_systemd(token, pin, "");
    }

    // The options change the policy. With a wrong password, nothing is sealed.
    setting.reseal(&["--tpm2-pcrs", "4", "--tpm2-without-pin"], &["2"]).succeeds();
    setting.update(7);
    setting.opens(2, &[]);
    let described = run(["header", "show", &setting.volume]).succeeds().text();
    assert!(described.contains("PCR 4 (") && !described.contains("with a PIN"), "{described}");
    let before = fs::read(&setting.volume).expect("the volume");
    let wrong = setting.folder.str("wrong");
    let device = setting.tpm.device();
    let by = |device: &str, password: &str| {
        let with = ["keyslot", "reseal", "--tpm2-device", device, "--password-file", password, &setting.volume, "1"];
        run(with)
    };
    by(&device, &wrong).fails(2, &["passphrase"]);
    by("/dev/no-tpm", &setting.folder.password).fails(1, &["no TPM at /dev/no-tpm"]);
    assert!(fs::read(&setting.volume).expect("the volume") == before);
    // Where the TPM still opens it, no password is needed; and another TPM may take over.
    let alone = ["keyslot", "reseal", "--token-only", "--tpm2-device", &device, "--slot", "2", &setting.volume, "1"];
    run(alone).succeeds();
    setting.opens(1, &[]);
    let Some(other) = Tpm::new() else { return };
    by(&other.device(), &setting.folder.password).succeeds();
    setting.test(&["--token-only", "--slot", "1"]).fails(2, &["another TPM", "keyslot reseal"]);
    run(["keyslot", "test", "--token-only", "--slot", "1", "--tpm2-device", &other.device(), &setting.volume])
        .succeeds();
}

/// At every moment the password opens it, and so does what the TPM has sealed: the old or the new.
#[test]
fn wherever_sealing_anew_is_killed_the_tpm_opens_it() {
    let Some(setting) = Setting::new() else { return };
    setting.add(&[]).succeeds();
    let before = fs::read(&setting.volume).expect("the volume");
    let mut kills = 0;
    for fault in [Fault::KilledBefore, Fault::KilledAfter] {
        for nth in 0.. {
            fs::write(&setting.volume, &before).expect("the volume");
            let ended = faults::run(&mut setting.resealing(&[], &[]), &setting.folder.path(""), Some((fault, nth)));
            setting.opens(1, &[]);
            setting.opens_by_password();
            if ended.struck.is_none() {
                assert!(ended.status.success(), "{}", ended.err);
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 6, "{kills}");
    setting.reseal(&[], &[]).succeeds();
    setting.opens(1, &[]);
}

/// The event log of a start tells which PCR changed, and how.
#[test]
fn the_event_log_tells_what_changed() {
    let Some(mut setting) = Setting::new() else { return };
    let hash = |data: &[u8]| {
        let mut hash = [0; 32];
        claviger_crypto::hash::SHA256.checksum(&[data], &mut hash);
        hash
    };
    let le = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
    let name: Vec<u8> = "SecureBoot".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let front = [&[9; 16][..], &10u64.to_le_bytes(), &1u64.to_le_bytes(), &name].concat();
    let state = |on: u8| [&front[..], &[on]].concat();
    let log = setting.folder.str("log");
    // The machine starts, and measures this.
    let start = |setting: &Setting, events: &[(u32, &[u8])]| {
        let spec = [&b"Spec ID Event03\0"[..], &[0, 0, 0, 0, 0, 2, 0, 2, 1, 0, 0, 0, 11, 0, 32, 0, 0]].concat();
        let mut bytes = [&le(&[0, 3]), &[0; 20][..], &le(&[spec.len() as u32]), &spec].concat();
        for (pcr, data) in events {
            let digest = hash(data);
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            setting.tpm.tool("tpm2_pcrextend", &[&format!("{pcr}:sha256={digits}")]);
            let kind = if *pcr == 7 { 0x8000_0001 } else { 0x8000_0003 };
            bytes.extend([&le(&[*pcr, kind, 1]), &[11, 0][..], &digest, &le(&[data.len() as u32]), data].concat());
        }
        fs::write(&log, bytes).expect("a file");
    };
    start(&setting, &[(4, b"boot loader"), (7, &state(0)), (7, b"db")]);
    let pcrs = ["--tpm2-pcrs", "4+7"];
    setting.add(&pcrs).succeeds();
    setting
        .add(&[&pcrs[..], &["--tpm2-with-pin", "--new-tpm2-pin-file", &setting.folder.str("pin")]].concat())
        .succeeds();
    setting.opens(1, &[]);
    let with_log = ["--tpm2-event-log", &log];
    let explain = |setting: &Setting, code: i32| {
        let with = ["explain", "--without-password", "--tpm2-device", &setting.tpm.device()];
        run([&with[..], &with_log, &[&setting.volume]].concat()).fails(code, &[]).text()
    };
    let said = explain(&setting, 2);
    assert!(said.contains("Keyslot 1: the PCRs of this TPM are as when it was sealed"), "{said}");

    setting.tpm.restart();
    start(&setting, &[(4, b"boot loader"), (7, &state(1)), (7, b"db")]);
    let off = "PCR 7 (Secure Boot state) differs from when this was sealed; Secure Boot was off then";
    // Nobody is asked for a PIN in vain.
    for keyslot in ["1", "2"] {
        setting.test(&[&["--token-only", "--slot", keyslot][..], &with_log].concat()).fails(2, &[off, "reseal"]);
    }
    let said = explain(&setting, 2);
    assert!(said.contains(off) && said.contains("claviger keyslot reseal") && !said.contains("PCR 4"), "{said}");
    // Without the log, and with another loader, nobody knows.
    let both = "it is not known which: PCR 4 (boot loader), PCR 7 (Secure Boot state)";
    setting.test(&["--token-only", "--slot", "1"]).fails(2, &[both]);
    setting.tpm.restart();
    start(&setting, &[(4, b"another loader"), (7, &state(0)), (7, b"db")]);
    setting.test(&[&["--token-only", "--slot", "1"][..], &with_log].concat()).fails(2, &[both]);
    setting.reseal(&[], &["1"]).succeeds();
    setting.opens(1, &[]);
    fs::write(&log, b"no log").expect("a file");
    setting.test(&[&["--token-only"][..], &with_log].concat()).fails(4, &["event log", "log"]);
    // Without a TPM, explain says how to ask it.
    let said = run(["explain", "--without-password", &setting.volume]).fails(2, &[]).text();
    assert!(said.contains("which PCR changed") && said.contains("--tpm2-device=auto"), "{said}");
}
