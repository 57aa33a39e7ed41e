//! Volumes bound by clevis open here, and volumes bound here open with clevis.

use std::fs;
use std::process::Command;

use claviger_testkit::tools;

use crate::common::tang::Tang;
use crate::common::tpm::Tpm;
use crate::common::*;

struct Setting {
    folder: Folder,
    volume: String,
}

impl Setting {
    fn new() -> Option<Self> {
        tools::program("clevis")?;
        let folder = Folder::new();
        let volume = folder.luks2("disk.luks");
        fs::write(folder.path("exact"), PASSWORD).expect("a file");
        Some(Self { folder, volume })
    }

    /// Binds the volume, as its next keyslot.
    fn bind(&self, pin: &str, options: &str, tpm: Option<&Tpm>) {
        let mut command = Command::new("clevis");
        command.args(["luks", "bind", "-y", "-f", "-k", &self.folder.str("exact"), "-d", &self.volume, pin, options]);
        if let Some(tpm) = tpm {
            command.env("TPM2TOOLS_TCTI", tpm.device());
        }
        tools::run(&mut command);
        if let Some(tpm) = tpm {
            tpm.flush();
        }
    }

    fn test(&self, slot: u32, more: &[&str]) -> Done {
        let slot = slot.to_string();
        run([&["keyslot", "test", "--json", "--token-only", "--slot", &slot], more, &[&self.volume]].concat())
    }

    #[track_caller]
    fn opens(&self, slot: u32, more: &[&str]) {
        assert_eq!(self.test(slot, more).succeeds().json()["keyslot"], slot);
    }
}

#[test]
fn what_is_bound_to_a_tang_server_opens() {
    let (Some(setting), Some(tang)) = (Setting::new(), Tang::new()) else { return };
    let url = tang.url();
    setting.bind("tang", &format!(r#"{{"url":"{url}/"}}"#), None);
    setting.opens(1, &["--tang", &url]);
    let shown = run(["header", "show", &setting.volume]).succeeds().text();
    assert!(shown.contains(&format!("the tang server {url}")), "{shown}");
    // That a header names a server is no reason to ask it.
    setting.test(1, &[]).fails(1, &[&url, "--tang"]);
    setting.test(1, &["--tang", "http://127.0.0.1:1"]).fails(1, &[&url]);
    // Without --token-only it is asked first, and a password only if it does not help.
    let first = run(["keyslot", "test", "--json", "--tang", &url, &setting.volume]).succeeds();
    assert_eq!(first.json()["keyslot"], 1);
    tang.forget();
    setting.test(1, &["--tang", &url]).fails(6, &["does not know this key"]);
    drop(tang);
    setting.test(1, &["--tang", &url]).fails(6, &[&url]);
    run(["keyslot", "test", "--tang", &url, &setting.volume]).fails(1, &["No token opens it", "no terminal"]);
}

#[test]
fn what_is_bound_to_a_tpm_opens_and_so_do_shares() {
    let (Some(setting), Some(tang), Some(tpm)) = (Setting::new(), Tang::new(), Tpm::new()) else { return };
    let (url, device) = (tang.url(), tpm.device());
    let by_tang = format!(r#"{{"url":"{url}"}}"#);
    setting.bind("tpm2", r#"{"pcr_ids":"0,7","pcr_bank":"sha256"}"#, Some(&tpm));
    setting.bind("tpm2", r#"{"key":"rsa"}"#, Some(&tpm));
    setting.bind("sss", &format!(r#"{{"t":2,"pins":{{"tang":[{by_tang}],"tpm2":{{}}}}}}"#), Some(&tpm));
    let inner = format!(r#"{{"t":1,"pins":{{"tang":[{by_tang},{by_tang}]}}}}"#);
    let pcr = r#"{"pcr_ids":"7","pcr_bank":"sha256"}"#;
    // A header has not room for all of them.
    let Some(nested) = Setting::new() else { return };
    nested.bind("sss", &format!(r#"{{"t":2,"pins":{{"sss":{inner},"tpm2":[{pcr},{{}}]}}}}"#), Some(&tpm));
    let both = ["--tpm2-device", &device, "--tang", &url];
    for (setting, slot) in [(&setting, 1), (&setting, 2), (&setting, 3), (&nested, 1)] {
        setting.opens(slot, &both);
        tpm.assert_empty();
    }
    tpm.tool("tpm2_pcrextend", &[&format!("7:sha256={}", "5a".repeat(32))]);
    setting.test(1, &both).fails(2, &["PCR 7 (Secure Boot state)", "claviger keyslot reseal"]);
    setting.opens(2, &both);
    // It is bound anew in one step, and clevis opens it.
    let known = ["keyslot", "reseal", "--tpm2-device", &device, "--password-file", &setting.folder.password];
    let reseal = |number: &[&str]| run([&known[..], &[&setting.volume], number].concat());
    reseal(&[]).fails(1, &["keyslot 1 (token 0, PCRs 0, 7)", "keyslot 2 (token 1, no PCRs)"]);
    reseal(&["3"]).fails(1, &["keyslot 3 is not sealed to a TPM alone"]);
    reseal(&["1"]).succeeds();
    setting.opens(1, &["--tpm2-device", &device]);
    let mut clevis = Command::new("clevis");
    clevis.args(["luks", "pass", "-d", &setting.volume, "-s", "1"]).env("TPM2TOOLS_TCTI", &device);
    let passphrase = tools::run(&mut clevis).stdout;
    tpm.flush();
    let by_it = run_with(&passphrase, ["keyslot", "test", "--json", "--password-file", "-", &setting.volume]);
    assert_eq!(by_it.succeeds().json()["keyslot"], 1);
    setting.test(3, &["--tpm2-device", &device]).fails(1, &["--tang"]);
    // One of three shares is lost, and two suffice.
    nested.opens(1, &both);
    nested.test(1, &["--tpm2-device", &device]).fails(2, &["PCR 7 (Secure Boot state)"]);
    tpm.assert_empty();
}

#[test]
fn clevis_opens_what_was_bound_here() {
    let (Some(setting), Some(tang)) = (Setting::new(), Tang::new()) else { return };
    let (url, thumbprint) = (tang.url(), tang.thumbprint());
    let add = ["keyslot", "add", "--password-file", &setting.folder.password, "--bind-tang", &url, &setting.volume];
    run(add.into_iter().chain(["--tang-thumbprint", &thumbprint])).succeeds();
    setting.opens(1, &["--tang", &url]);
    let passphrase = tools::run(Command::new("clevis").args(["luks", "pass", "-d", &setting.volume, "-s", "1"])).stdout;
    let by_it = run_with(&passphrase, ["keyslot", "test", "--json", "--password-file", "-", &setting.volume]);
    assert_eq!(by_it.succeeds().json()["keyslot"], 1);
    let listed = tools::run(Command::new("clevis").args(["luks", "list", "-d", &setting.volume])).stdout;
    assert!(String::from_utf8_lossy(&listed).contains(&url));
    // A server with another thumbprint, one whose thumbprint nobody has confirmed, and no server at all.
    for other in ["AAAA", "-AAA"] {
        run(add.into_iter().chain(["--tang-thumbprint", other])).fails(2, &["a different tang server", &thumbprint]);
    }
    run(add).fails(1, &["--tang-thumbprint", "no terminal"]);
    drop(tang);
    run(add).fails(6, &[&url]);
    assert_eq!(
        run(["token", "list", "--json", &setting.volume]).succeeds().json()["tokens"].as_object().map(|t| t.len()),
        Some(1)
    );
}

#[test]
fn clevis_opens_what_was_bound_to_several_here() {
    let (Some(setting), Some(tang), Some(tpm)) = (Setting::new(), Tang::new(), Tpm::new()) else { return };
    let (url, thumbprint, device) = (tang.url(), tang.thumbprint(), tpm.device());
    let password = &setting.folder.password;
    let add = |more: &[&str]| {
        let known = ["keyslot", "add", "--password-file", password, "--tpm2-device", &device];
        run([&known[..], more, &[&setting.volume]].concat())
    };
    let by_tang = ["--bind-tang", &url, "--tang-thumbprint", &thumbprint];
    add(&["--bind-tpm2", "--tpm2-pcrs", "0+7"]).succeeds();
    add(&[&by_tang[..], &["--bind-tpm2"]].concat()).succeeds();
    add(&[&by_tang[..], &["--bind-tang", &url, "--bind-tpm2", "--bind-threshold", "1"]].concat()).succeeds();
    tpm.assert_empty();
    let by_clevis = |slot: u32| {
        let slot = slot.to_string();
        let mut pass = Command::new("clevis");
        pass.args(["luks", "pass", "-d", &setting.volume, "-s", &slot]).env("TPM2TOOLS_TCTI", &device);
        let passphrase = tools::run(&mut pass).stdout;
        tpm.flush();
        run_with(&passphrase, ["keyslot", "test", "--json", "--password-file", "-", "--slot", &slot, &setting.volume])
            .succeeds();
    };
    let both = ["--tpm2-device", &device, "--tang", &url];
    for slot in 1..=3 {
        by_clevis(slot);
        setting.opens(slot, &both);
        tpm.assert_empty();
    }
    setting.test(2, &both[..2]).fails(1, &["--tang"]);
    setting.test(2, &both[2..]).fails(1, &["no TPM"]);
    setting.opens(3, &both[..2]);
    tpm.tool("tpm2_pcrextend", &[&format!("7:sha256={}", "5a".repeat(32))]);
    setting.test(1, &both).fails(2, &["PCR 7"]);
    setting.test(2, &both).fails(2, &["PCR 7"]);
    setting.opens(3, &both);
    by_clevis(3);
    // What makes no sense is said before anything is written.
    add(&["--bind-tpm2", "--tpm2-pcrs", ""]).fails(1, &["PCR"]);
    add(&[&by_tang[..], &["--bind-threshold", "2"]].concat()).fails(1, &["2 of 1"]);
    add(&[&by_tang[..], &["--bind-threshold", "0"]].concat()).fails(1, &["0 of 1"]);
    add(&["--tpm2-pcrs", "7"]).fails(1, &["--tpm2"]);
    let keyslots = run(["keyslot", "list", "--json", &setting.volume]).succeeds().json();
    assert_eq!(keyslots["keyslots"].as_array().map(Vec::len), Some(4));
}

/// A password or keyfile of any format is sealed in a file: clevis opens it, and its files open.
#[test]
fn a_keyfile_is_sealed() {
    let (Some(setting), Some(tang), Some(tpm)) = (Setting::new(), Tang::new(), Tpm::new()) else { return };
    let (folder, url, device) = (&setting.folder, tang.url(), tpm.device());
    let clevis = |args: &[&str], input: &[u8]| {
        fs::write(folder.path("input"), input).expect("a file");
        let mut command = Command::new("clevis");
        command.args(args).env("TPM2TOOLS_TCTI", &device);
        let out = tools::run(command.stdin(fs::File::open(folder.path("input")).expect("a file"))).stdout;
        tpm.flush();
        out
    };
    let open = |file: &str, more: &[&str]| {
        let opened = run([&["keyfile", "--open", "--tpm2-device", &device], more, &[file]].concat());
        tpm.assert_empty();
        opened
    };
    let bound = |file: &str, more: &[&str]| {
        let known = ["keyfile", "--json", "--bind-tpm2", "--tpm2-device", &device];
        run([&known[..], more, &[file]].concat())
    };
    let (fresh, sealed, both) = (folder.str("fresh.jwe"), folder.str("sealed.jwe"), folder.str("both.jwe"));
    // Random bytes that nobody has seen, and a password that is there already.
    let made = bound(&fresh, &[]).succeeds().json();
    assert_eq!((made["size"].as_u64(), &made["sealed"]), (Some(64), &true.into()));
    let keyfile = open(&fresh, &[]).succeeds().out;
    assert_eq!(keyfile.len(), 64);
    assert!(clevis(&["decrypt"], &fs::read(&fresh).expect("a file")) == keyfile);
    bound(&sealed, &["--seal", &folder.password]).succeeds();
    let password = open(&sealed, &[]).succeeds().out;
    assert!(password == fs::read(&folder.password).expect("a file"));
    let by_it = run_with(&password, ["keyslot", "test", "--password-file", "-", &setting.volume]);
    by_it.succeeds();
    let long: Vec<u8> = (0..1 << 20).map(|i: u32| ((i * 7) >> 3) as u8).collect();
    fs::write(folder.path("long"), &long).expect("a file");
    let by_tang = ["--bind-tang", &url, "--tang-thumbprint", &tang.thumbprint(), "--seal", &folder.str("long")];
    bound(&both, &by_tang).succeeds();
    assert!(open(&both, &["--tang", &url]).succeeds().out == long);
    open(&both, &[]).fails(1, &[&url, "--tang"]);
    assert!(clevis(&["decrypt"], &fs::read(&both).expect("a file")) == long);
    let theirs = folder.str("theirs.jwe");
    fs::write(&theirs, clevis(&["encrypt", "tpm2", "{}"], b"theirs")).expect("a file");
    assert_eq!(open(&theirs, &[]).succeeds().out, b"theirs");

    tpm.tool("tpm2_pcrextend", &[&format!("7:sha256={}", "5a".repeat(32))]);
    open(&fresh, &[]).fails(2, &["fresh.jwe", "PCR 7"]);
    bound(&fresh, &[]).fails(1, &["already exists"]);
    fs::write(folder.path("long"), vec![7; (1 << 20) + 1]).expect("a file");
    fs::remove_file(&both).expect("removed");
    bound(&both, &by_tang[4..]).fails(1, &["long", "1048576"]);
    open(&folder.password, &[]).fails(3, &["JWE"]);
    let mut damaged = fs::read(&sealed).expect("a file");
    let last = damaged.len() - 2;
    // Another letter of base64.
    damaged[last] = if damaged[last] == b'A' { b'B' } else { b'A' };
    fs::write(&sealed, &damaged).expect("a file");
    open(&sealed, &[]).fails(2, &["sealed.jwe"]);
    for word in ["", "....", "a.b.c.d.e", "e30..AAAA.AAAA.AAAA"] {
        fs::write(&sealed, word).expect("a file");
        let code = open(&sealed, &[]).code;
        assert!([1, 3, 4, 5].contains(&code), "{word}: {code}");
    }
    assert!(!folder.path("both.jwe").exists());
}
