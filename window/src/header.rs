//! A volume's header without a password, as values: its keyslots, and whether an operation was interrupted.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::home::size;
use crate::program::Call;
use crate::texts::Texts;

/// What its header says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub format: String,
    pub keyslots: Vec<Keyslot>,
    /// Whether a reencryption or an in-place conversion is unfinished.
    pub half_way: bool,
}

/// Something that opens it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyslot {
    pub number: String,
    pub kind: String,
    /// How the key is derived, and at what cost.
    pub derivation: String,
    /// Its name, its priority, and its faults.
    pub remarks: String,
}

/// Asks what the header says. `options` name the partition.
pub fn show(path: &Path, options: &[String]) -> Call {
    Call::new(["header", "show"]).with(partition(options)).with([path])
}

/// The one option of a mount that other verbs need, too.
pub fn partition(options: &[String]) -> impl Iterator<Item = &String> {
    options.iter().filter(|option| option.starts_with("--partition="))
}

/// The states of a BitLocker volume that is converted in part (`BitLockerFacts::state`).
const HALF_CONVERTED: [&str; 9] = [
    "encryption under way",
    "encryption paused",
    "encryption interrupted",
    "decryption under way",
    "decryption paused",
    "decryption interrupted",
    "conversion under way",
    "conversion paused",
    "conversion interrupted",
];

/// The output of `claviger header show`; `None` if the header can only be read with a password.
pub fn header(shown: &Value, texts: &Texts) -> Option<Header> {
    let about = &shown["header"];
    let list = |name: &str| about[name].as_array().into_iter().flatten();
    let reencrypted = list("requirements").filter_map(Value::as_str).any(|name| name.starts_with("online-reencrypt"));
    let converted = about["state"].as_str().is_some_and(|state| HALF_CONVERTED.contains(&state));
    let tokens: Vec<_> = list("tokens").collect();
    let used = list("keyslots").filter(|slot| slot["active"] != false);
    Some(Header {
        format: shown["format"].as_str()?.to_owned(),
        keyslots: used.map(|slot| keyslot(slot, &tokens, texts)).collect(),
        half_way: reencrypted || converted,
    })
}

fn keyslot(slot: &Value, tokens: &[&Value], texts: &Texts) -> Keyslot {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = slot["number"].as_u64().or(slot["keyslot"].as_u64()).unwrap_or_default();
    // LUKS2 has the kind in a token, which names the keyslot by a number as text; BitLocker has it in the keyslot.
    let named = Value::from(number.to_string());
    let told = |token: &&&Value| token["keyslots"].as_array().is_some_and(|all| all.contains(&named));
    let kind = tokens.iter().find(told).map_or(text(&slot["type"]), |token| text(&token["type"]));
    let kind = match &*kind {
        "" | "luks2" | "password" => texts.password.to_owned(),
        "systemd-recovery" | "recovery password" => texts.recovery_title.to_owned(),
        "systemd-tpm2" => "TPM".to_owned(),
        "systemd-fido2" => "FIDO2".to_owned(),
        _ => kind,
    };
    let kdf = if slot["kdf"].is_object() { &slot["kdf"] } else { slot };
    let name = text(if slot["kdf"].is_object() { &kdf["type"] } else { &slot["kdf"] });
    let iterations = kdf["iterations"].as_u64().map(|count| format!("{count} {}", texts.iterations));
    let memory = kdf["memory"].as_u64().map(size);
    let derivation = [name, text(&kdf["hash"])].into_iter().chain(iterations).chain(memory);
    let remarks = ["name", "hint", "needs", "priority", "opens", "damaged"].map(|field| text(&slot[field]));
    let remarks = remarks.into_iter().filter(|text| !["normal", "the volume"].contains(&&**text));
    let joined =
        |parts: &mut dyn Iterator<Item = String>| parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
    Keyslot {
        number: number.to_string(),
        kind,
        derivation: joined(&mut derivation.into_iter()),
        remarks: joined(&mut remarks.into_iter()),
    }
}

/// A copy in another format that was not finished.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Conversion {
    pub source: PathBuf,
    pub destination: PathBuf,
    /// None for plaintext.
    pub format: Option<String>,
}

/// The interrupted conversion from or to `path`. `claviger convert` notes it in a file beside its destination, which
/// may be in `home` or in the folder of `path`.
pub fn conversion(path: &Path, home: &Path) -> Option<Conversion> {
    let folders = [path.parent().unwrap_or(home), home];
    let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let notes = entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(".part.json"));
    let read = |note: PathBuf| serde_json::from_slice::<Conversion>(&fs::read(note).ok()?).ok();
    let part = |conversion: &Conversion| PathBuf::from(format!("{}.part", conversion.destination.display()));
    let mut begun = notes.filter_map(read).filter(|it| part(it).exists());
    begun.find(|it| [&it.source, &it.destination, &part(it)].contains(&&path.to_owned()))
}

#[cfg(test)]
#[path = "../tests/values/header.rs"]
mod tests;
