//! What `systemd-cryptenroll` has enrolled on a LUKS2 volume: recovery keys and smart cards.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use claviger_testkit::tools;

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";

/// A volume that the password opens, and `systemd-cryptenroll`.
struct Enrolled {
    folder: Folder,
    volume: String,
    program: PathBuf,
}

impl Enrolled {
    /// A reported skip where the program is missing.
    fn new() -> Option<Self> {
        let program = tools::program("systemd-cryptenroll")?;
        let folder = Folder::new();
        let volume = folder.luks2("disk.luks");
        Some(Self { folder, volume, program })
    }

    /// What the program prints to its standard output.
    fn enroll(&self, how: &str, environment: &[(&str, &str)]) -> String {
        let mut command = Command::new(&self.program);
        command.args([how, &self.volume]).env("PASSWORD", PASSWORD).envs(environment.iter().copied());
        String::from_utf8(tools::run(&mut command).stdout).expect("text")
    }

    fn test(&self, password: &str, more: &[&str]) -> Done {
        let args = [&["keyslot", "test", "--password-file", "-", "--json"], more, &[&self.volume]].concat();
        run_with(password.as_bytes(), args)
    }
}

#[test]
fn a_recovery_key_opens_as_it_is_typed() {
    let Some(enrolled) = Enrolled::new() else { return };
    let printed = enrolled.enroll("--recovery-key", &[]);
    let key = printed.trim();
    assert_eq!(key.len(), 71, "{printed}");
    let plain = key.replace('-', "");
    for typed in [key, &plain, &key.to_uppercase(), &key.replace('-', " ")] {
        assert_eq!(enrolled.test(typed, &[]).succeeds().json()["keyslot"], 1, "{typed}");
    }
    let other = if plain.ends_with('b') { 'c' } else { 'b' };
    enrolled.test(&format!("{}{other}", &plain[..63]), &["--slot", "1"]).fails(2, &["passphrase"]);
    // The other keyslot opens as before, and no token leads to a passphrase by itself.
    assert_eq!(enrolled.test(PASSWORD, &[]).succeeds().json()["keyslot"], 0);
    run(["keyslot", "test", "--token-only", &enrolled.volume]).fails(1, &["no token", "--token-only"]);
}

/// cryptsetup opens it, and `systemd-cryptenroll` knows what the keyslot is for.
#[test]
fn systemd_knows_a_recovery_key_of_ours() {
    let Some(Enrolled { folder, volume, program }) = Enrolled::new() else { return };
    let Some(cryptsetup) = tools::program("cryptsetup") else { return };
    let file = folder.str("recovery");
    let cheap = ["--kdf", "pbkdf2", "--iterations", "1000"];
    let add = ["keyslot", "add", "--recovery-key-file", &file, "--password-file", &folder.password, &volume];
    run(add.into_iter().chain(cheap)).succeeds();
    let listed = tools::run(Command::new(program).arg(&volume)).stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let row = listed.lines().find(|row| row.trim_start().starts_with('1'));
    assert!(row.is_some_and(|row| row.ends_with("recovery")), "{listed}");
    let key = fs::read_to_string(&file).expect("a key");
    fs::write(folder.path("exact"), key.trim_end()).expect("a file");
    let mut test = Command::new(cryptsetup);
    test.args(["open", "--test-passphrase", "--key-slot", "1", "--key-file"]).arg(folder.path("exact")).arg(&volume);
    tools::run(&mut test);
    let typed = key.trim_end().replace('-', "").to_uppercase();
    let tested = run_with(typed.as_bytes(), ["keyslot", "test", "--json", "--password-file", "-", &volume]);
    assert_eq!(tested.succeeds().json()["keyslot"], 1);
    // A file is never overwritten, and another format has no such keys.
    run(add).fails(1, &["exists"]);
    let other = folder.volume("disk.tc", "1M", &[]);
    let elsewhere = ["keyslot", "add", "--recovery-key-file", &folder.str("new"), "--password-file", &folder.password];
    run(elsewhere.into_iter().chain([&other[..]])).fails(1, &["recovery key"]);
    assert!(!folder.path("new").exists());
}

/// A smart card called `my card`, in software, and the environment that shows it.
fn card(folder: &Folder) -> Option<Vec<(&'static str, String)>> {
    for name in ["softhsm2-util", "pkcs11-tool", "openssl"] {
        tools::program(name)?;
    }
    if !Path::new(MODULE).exists() {
        return tools::skip("SoftHSM's module is not where it is looked for");
    }
    let conf = folder.str("softhsm2.conf");
    fs::create_dir(folder.path("tokens")).expect("a folder");
    fs::write(&conf, format!("directories.tokendir = {}\n", folder.str("tokens"))).expect("a file");
    fs::write(folder.path("pin"), "4711\n").expect("a file");
    fs::write(folder.path("wrong"), "1174\n").expect("a file");
    let run = |program: &str, args: &[&str]| {
        tools::run(Command::new(program).args(args).env("SOFTHSM2_CONF", &conf).current_dir(folder.path("")));
    };
    run(
        "openssl",
        &["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=me"],
    );
    run("openssl", &["pkcs8", "-topk8", "-nocrypt", "-in", "key.pem", "-out", "pkcs8.pem"]);
    run("openssl", &["x509", "-in", "cert.pem", "-outform", "DER", "-out", "cert.der"]);
    run("softhsm2-util", &["--init-token", "--free", "--label", "my card", "--so-pin", "12345678", "--pin", "4711"]);
    let import = ["--import", "pkcs8.pem", "--token", "my card", "--label", "mine", "--id", "a1", "--pin", "4711"];
    run("softhsm2-util", &import);
    let write = ["--write-object", "cert.der", "--type", "cert", "--id", "a1"];
    run(
        "pkcs11-tool",
        &[&["--module", MODULE, "--token-label", "my card", "--login", "--pin", "4711"], &write[..]].concat(),
    );
    Some(vec![("SOFTHSM2_CONF", conf), ("PIN", "4711".to_owned())])
}

#[test]
fn a_smart_card_of_systemds_opens() {
    let Some(enrolled) = Enrolled::new() else { return };
    let Some(environment) = card(&enrolled.folder) else { return };
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, &value[..])).collect();
    enrolled.enroll("--pkcs11-token-uri=pkcs11:token=my%20card", &environment);
    let claviger = |args: &[&str]| {
        let mut command = claviger();
        done(command.args(args).arg(&enrolled.volume).envs(environment.iter().copied()).output().expect("it starts"))
    };
    let pin = enrolled.folder.str("pin");
    let with = ["--token-only", "--pkcs11-module", MODULE, "--certificate-password-file", &pin];
    let tested = claviger(&[&["keyslot", "test", "--json"], &with[..]].concat()).succeeds();
    assert_eq!(tested.json()["keyslot"], 1);
    let plain = claviger(&[&["cat"], &with[..]].concat()).succeeds().out;
    assert!(plain == run(["cat", "--password-file", &enrolled.folder.password, &enrolled.volume]).succeeds().out);
    assert!(claviger(&["info", "--password-file", &enrolled.folder.password]).succeeds().text().contains("LUKS2"));

    let wrong = enrolled.folder.str("wrong");
    let with_wrong = ["--token-only", "--pkcs11-module", MODULE, "--certificate-password-file", &wrong];
    claviger(&[&["cat"], &with_wrong[..]].concat()).fails(2, &["wrong PIN", "my card"]);
    // A header never decides alone which module is used: it has to be named. A password in addition is an error.
    claviger(&["cat", "--token-only"]).fails(1, &["--pkcs11-module"]);
    claviger(&[&["cat", "--password-file", &pin], &with[..]].concat()).fails(1, &["--token-only"]);
    claviger(&["cat", "--slot", "0", "--token-only"]).fails(1, &["no token"]);
    // Without --token-only they are options for folders.
    claviger(&["cat", "--pkcs11-module", MODULE]).fails(1, &["folders"]);
}

#[test]
fn a_token_that_cannot_be_used_is_named_with_what_it_takes() {
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    let token = serde_json::json!({
        "type": "systemd-fido2", "keyslots": ["0"], "fido2-credential": "AAAA", "fido2-salt": "AAAA", "fido2-rp": "io.systemd.cryptsetup",
    });
    // Its salt is too short.
    fs::write(folder.path("token.json"), token.to_string()).expect("a file");
    run(["token", "import", &volume, &folder.str("token.json")]).succeeds();
    run(["cat", "--token-only", &volume]).fails(5, &["token 0", "FIDO2 security key", "io.systemd.cryptsetup"]);
}

/// The question reaches systemd's agents; the program with which agents answer gives the password.
#[test]
fn an_agent_of_systemds_is_asked() {
    const REPLY: &str = "/lib/systemd/systemd-reply-password";
    const QUESTIONS: &str = "/run/systemd/ask-password";
    let Some(()) = tools::root() else { return };
    let Some(_) = tools::program("systemd-ask-password") else { return };
    if !Path::new(REPLY).exists() {
        tools::skip::<()>("systemd-reply-password is not there");
        return;
    }
    let folder = Folder::new();
    let volume = folder.luks2("disk.luks");
    // Of questions that others ask at the same time, this one names the volume.
    let socket = || {
        let files = fs::read_dir(QUESTIONS).into_iter().flatten().map(|entry| entry.expect("an entry").path());
        let ours = files.filter_map(|path| fs::read_to_string(path).ok()).find(|text| text.contains(&volume))?;
        assert!(ours.contains("Message=Password ("), "{ours}");
        ours.lines().find_map(|line| line.strip_prefix("Socket=")).map(str::to_owned)
    };
    let answered = |password: &str| {
        let mut asking = claviger();
        asking.args(["--ask", "systemd", "keyslot", "test", "--json", &volume]);
        let asking = asking.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let until = Instant::now() + Duration::from_secs(120);
        let socket = loop {
            match socket() {
                Some(socket) => break socket,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
            assert!(Instant::now() < until, "nobody is asked");
        };
        let mut reply = Command::new(REPLY).args(["1", &socket]).stdin(Stdio::piped()).spawn().expect("it starts");
        reply.stdin.take().expect("a pipe").write_all(password.as_bytes()).expect("written");
        assert!(reply.wait().expect("it ends").success());
        done(asking.wait_with_output().expect("it ends"))
    };
    assert_eq!(answered(PASSWORD).succeeds().json()["keyslot"], 0);
    answered("another one").fails(2, &["passphrase"]);
}
