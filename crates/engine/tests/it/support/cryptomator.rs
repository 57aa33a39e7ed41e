//! Vaults of Cryptomator, ours and those of pycryptomator, an implementation in Python (github.com/maxpat78/pycryptomator).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use claviger_crypto::hash::SHA256;
use claviger_crypto::modes::aead::Siv;
use claviger_crypto::scrypt::ScryptParams;
use claviger_crypto::{Acceleration, key_wrap};
use claviger_engine::file_formats::cryptomator::{self, CipherCombo};
use claviger_engine::file_formats::{self, FolderSurvey, Stacked};
use claviger_engine::trees::Tree;
use claviger_engine::{Credential, Result, Secret, Unlock};
use claviger_testkit::bitlocker::oracles;
use claviger_testkit::mounts::bounded;
use claviger_testkit::tools;
use serde_json::{Value, json};

use super::gocryptfs::{PASSPHRASE, host, secret};

/// Both ciphers.
pub const COMBOS: [CipherCombo; 2] = [CipherCombo::SivGcm, CipherCombo::SivCtrMac];

/// Files by their paths in a folder.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// Makes a vault, with the same keys as others, that opens without delay.
pub fn create(folder: &Path, combo: CipherCombo) {
    static MADE: [OnceLock<Files>; 2] = [const { OnceLock::new() }; 2];
    let which = COMBOS.iter().position(|known| *known == combo).expect("one of both");
    let files = MADE[which].get_or_init(|| {
        let vault = tempfile::tempdir().expect("a folder");
        cryptomator::create(&*host(vault.path()), &secret(PASSPHRASE), combo, &Unlock::with(&[])).expect("created");
        let [enc, mac] = keys(vault.path());
        let mut kek = Secret::zeroed(32);
        ScryptParams { n: 2, r: 8, p: 1 }
            .derive(PASSPHRASE.as_bytes(), &[7; 8], u64::MAX, &|| true, &mut kek)
            .expect("derived");
        let wrapped = |key: &Secret| json!(STANDARD.encode(key_wrap::wrap(&kek, key, Acceleration::On)));
        change_key_file(vault.path(), |file| {
            file["scryptCostParam"] = json!(2);
            file["scryptSalt"] = json!(STANDARD.encode([7; 8]));
            file["primaryMasterKey"] = wrapped(&enc);
            file["hmacMasterKey"] = wrapped(&mac);
        });
        stored(vault.path())
            .into_iter()
            .map(|path| {
                let bytes = fs::read(&path).expect("read");
                (path.strip_prefix(vault.path()).expect("in it").to_owned(), bytes)
            })
            .collect()
    });
    for (path, bytes) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("one")).and_then(|()| fs::write(path, bytes)).expect("copied");
    }
}

/// All files below a folder, sorted.
pub fn stored(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("listed").map(|entry| entry.expect("an entry")) {
        match entry.file_type().expect("known").is_dir() {
            true => all.extend(stored(&entry.path())),
            false => all.push(entry.path()),
        }
    }
    all.sort();
    all
}

fn change_key_file(vault: &Path, change: impl FnOnce(&mut Value)) {
    let path = vault.join("masterkey.cryptomator");
    let mut file = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    change(&mut file);
    fs::write(&path, file.to_string()).expect("written");
}

/// The keys of a vault.
fn keys(vault: &Path) -> [Secret; 2] {
    let file = fs::read(vault.join("masterkey.cryptomator")).expect("read");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let decoded = |field: &str| STANDARD.decode(file[field].as_str().expect("text")).expect("Base64");
    let cost = ScryptParams { n: file["scryptCostParam"].as_u64().expect("a number"), r: 8, p: 1 };
    let mut kek = Secret::zeroed(32);
    cost.derive(PASSPHRASE.as_bytes(), &decoded("scryptSalt"), u64::MAX, &|| true, &mut kek).expect("derived");
    ["primaryMasterKey", "hmacMasterKey"]
        .map(|key| key_wrap::unwrap(&kek, &decoded(key), Acceleration::On).expect("right"))
}

/// How a name is stored in the folder with this ID, in the form in which it is given.
pub fn stored_name(vault: &Path, plain: &str, folder: &[u8]) -> String {
    let [enc, mac] = keys(vault);
    let mut name = plain.as_bytes().to_vec();
    let iv = Siv::new(&Secret::concat(&[&mac, &enc]), Acceleration::On).seal_with(&[folder], &mut name);
    URL_SAFE.encode([&iv[..], &name].concat()) + ".c9r"
}

/// Makes a vault in SIV_CTRMAC one of format 7: without a configuration, and with an authenticated version in the key file.
pub fn make_format_7(vault: &Path) {
    let [_, key] = keys(vault);
    let mut mac = [0; 32];
    SHA256.hmac(&key, &[&7u32.to_be_bytes()], &mut mac);
    change_key_file(vault, |file| {
        file["version"] = json!(7);
        file["versionMac"] = json!(STANDARD.encode(mac));
    });
    fs::remove_file(vault.join("vault.cryptomator")).expect("removed");
}

pub fn open_with(lower: Arc<dyn Tree>, credential: Credential) -> Result<Stacked> {
    file_formats::open(lower, None, &Unlock::with(&[credential]))
}

pub fn open(folder: &Path) -> Stacked {
    open_with(host(folder), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens")
}

/// The problems that a survey with the key finds: paths, and what is wrong.
pub fn survey(folder: &Path) -> Vec<(PathBuf, String)> {
    let format = file_formats::named("Cryptomator").expect("a row");
    let lower = host(folder);
    let tree = open_with(lower.clone(), Credential::Passphrase(secret(PASSPHRASE))).expect("it opens");
    let survey = FolderSurvey::with_contents(format, &*lower, &tree, &mut |_| Ok(())).expect("surveyed");
    survey.problems.into_iter().map(|found| (found.path, found.facts.problem.expect("a problem"))).collect()
}

/// pycryptomator, which `tools/install-deps.sh test` installs. A reported skip where it is missing.
pub struct Program {
    python: PathBuf,
}

impl Program {
    pub fn find() -> Option<Self> {
        let python = oracles::python()?;
        let mut command = bounded(120, &python);
        let there = command.args(["-c", "import pycryptomator"]).stderr(Stdio::null()).status();
        match there.is_ok_and(|status| status.success()) {
            true => Some(Self { python }),
            false => tools::skip("pycryptomator is not installed"),
        }
    }

    /// Runs it with these options on a vault, and gives it lines to read.
    pub fn run(&self, options: &[&str], vault: &Path, lines: &str) -> String {
        let mut command = bounded(120, &self.python);
        command.args(["-m", "pycryptomator"]).args(options).args(["--password", PASSPHRASE]).arg(vault);
        command.env("PYTHONUTF8", "1").env("COLUMNS", "10000");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{options:?} {lines}: {out}{err}");
        out
    }

    /// Makes a vault.
    pub fn init(&self, vault: &Path) {
        self.run(&["--init"], vault, "");
    }

    /// Makes a vault of format 6 of what is in a folder: another program, with the library that pycryptomator needs.
    pub fn make_format_6(&self, folder: &Path, vault: &Path) {
        let mut command = bounded(120, &self.python);
        command.args(["-c", include_str!("cryptomator6.py")]).args([folder, vault]).arg(PASSPHRASE);
        tools::run(command.env("PYTHONUTF8", "1"));
    }

    /// Lets it carry out commands.
    pub fn shell(&self, vault: &Path, commands: &[String]) -> String {
        self.run(&[], vault, &(commands.join("\n") + "\nquit\n"))
    }

    /// Copies a folder of a vault to a folder of this machine.
    pub fn decrypt(&self, vault: &Path, folder: &str, to: &Path) {
        self.shell(vault, &[format!("decrypt {folder} {}", to.display())]);
    }
}
