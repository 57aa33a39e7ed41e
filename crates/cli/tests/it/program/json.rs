//! What verbs print as JSON: every object has the version, and docs/guide/json.md names every field.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::mounts::MountSpace;
use crate::common::*;
use serde_json::Value;

/// Fields that the page describes in words: their contents depend on the format.
const IN_WORDS: &[&str] = &["header", "keyslots", "tokens", "content", "mark", "plan", "areas", "problems", "facts"];

/// Fields that count by name: their members are names.
const COUNTS: &[&str] = &["keys", "ciphers"];

struct Page(String);

impl Page {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/json.md");
        Self(fs::read_to_string(path).expect("a page"))
    }

    /// The text under a heading.
    #[track_caller]
    fn section(&self, heading: &str) -> &str {
        let (_, rest) = self.0.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
        rest.split("\n## ").next().unwrap_or_default()
    }

    /// The fields that neither the section about the verb nor that about all verbs names.
    #[track_caller]
    fn lacks(&self, verb: &str, reported: &Value) -> Vec<String> {
        let (own, common) = (self.section(verb), self.section("Fields that several verbs print"));
        let mut fields = Vec::new();
        add_fields(reported, &mut fields);
        fields.retain(|field| ![own, common].iter().any(|part| part.contains(&format!("`{field}`"))));
        fields.iter().map(|field| format!("{verb}: {field}")).collect()
    }

    #[track_caller]
    fn names(&self, verb: &str, reported: &Value) {
        assert_eq!(self.lacks(verb, reported), [""; 0], "{reported}");
    }
}

fn add_fields(reported: &Value, fields: &mut Vec<String>) {
    match reported {
        Value::Object(members) => {
            for (name, value) in members.iter().filter(|(name, _)| *name != "json_version") {
                fields.push(
                    name.strip_suffix("_bytes").filter(|name| members.contains_key(*name)).unwrap_or(name).to_owned(),
                );
                if !(IN_WORDS.contains(&&**name) || COUNTS.contains(&&**name) && value.is_object()) {
                    add_fields(value, fields);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_fields(value, fields)),
        _ => {}
    }
}

/// Runs the verb with --json. Each of its objects has the version.
#[track_caller]
fn reported(args: &[String]) -> Value {
    let reported = run(args.iter().map(String::as_str).chain(["--json"])).json();
    let objects = reported.as_array().map_or(vec![&reported], |list| list.iter().collect());
    assert!(objects.iter().all(|object| object["json_version"] == 1), "{args:?}: {reported}");
    reported
}

#[test]
fn the_page_names_every_field() {
    let (page, folder) = (Page::read(), Folder::new());
    let (pw, at) = (&*folder.password, |name: &str| folder.str(name));
    let other = at("other");
    fs::write(&other, "another password").expect("a file");
    let luks = folder.luks2("d.luks");
    let tc = folder.volume("v.tc", "1M", &[]);
    let [bl, plain, private, home, home_folder] = ["d.bl", "d", "p", "h", "h/.Private"].map(at);
    let [recovery, again, copy, raw] = ["recovery", "again", "copy", "raw"].map(at);
    fs::write(&raw, vec![7; 1 << 20]).expect("a file");
    let quick = ["--kdf", "pbkdf2", "--iterations", "1000"];
    let with = |args: &[&'static str], more: &[&str]| -> Vec<String> {
        args.iter().copied().chain(["--password-file", pw]).chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let mut lacks = BTreeSet::new();
    let mut reported = |verb: &str, args: Vec<String>| lacks.extend(page.lacks(verb, &reported(&args)));

    let keys = ["--recovery-password-file", &recovery, "--startup-key", &folder.str("."), &bl];
    reported("create", with(&["create", "--quick", "--format", "BitLocker", "--size", "2M"], &keys));
    reported("create", with(&["create", "--quick", "--format", "plain", "--size", "1M"], &[&plain]));
    reported("create", with(&["create", "--format", "eCryptfs"], &[&private]));
    reported("create", with(&["create", "--format", "eCryptfs", "--home"], &[&home]));
    reported("create", vec!["create".into(), "--list".into()]);
    reported("identify", vec!["identify".into(), luks.clone(), tc.clone(), bl.clone(), private.clone()]);
    reported("find", vec!["find".into(), luks.clone()]);
    for volume in [&luks, &bl, &tc] {
        reported("info", with(&["info"], &[volume]));
        reported("explain", with(&["explain"], &[volume]));
        reported("verify", with(&["verify"], &[volume]));
    }
    for verb in ["info", "explain", "verify"] {
        reported(verb, with(&[verb, "--format", "eCryptfs"], &[&home_folder]));
    }
    reported("verify", with(&["verify", "--deniability"], &[&tc]));
    reported("header", vec!["header".into(), "show".into(), bl.clone()]);
    reported("header", vec!["header".into(), "backup".into(), luks.clone(), at("saved")]);
    reported("header", with(&["header", "restore", "--yes"], &["--from", &at("saved"), &luks]));
    reported("header", vec!["header".into(), "repair".into(), "--yes".into(), luks.clone()]);
    reported("header", ["header", "set", "--label", "x", &luks].map(str::to_owned).to_vec());
    reported("keyslot", ["keyslot", "list", &bl].map(str::to_owned).to_vec());
    let new = ["--new-password-file", &*other];
    reported("keyslot", with(&["keyslot", "add"], &[&new[..], &quick, &[&luks]].concat()));
    reported("keyslot", with(&["keyslot", "test"], &[&luks]));
    reported("keyslot", with(&["keyslot", "kill", "--yes"], &[&luks, "1"]));
    reported("keyslot", with(&["keyslot", "recovery"], &["--output", &again, &bl]));
    reported("keyslot", with(&["keyslot", "suspend"], &[&bl]));
    let (keys, header) = (at("keys"), at("backup"));
    let full = folder.volume("w.tc", "1M", &["--filesystem", "fat"]);
    reported("recovery", with(&["recovery", "make", "--shares", "2:3"], &["--output", &keys, &luks]));
    reported("recovery", with(&["recovery", "replace", "--yes"], &["--output", &at("key2"), &luks]));
    reported("recovery", with(&["recovery", "make"], &["--backup", &header, "--output", &at("key3"), &full]));
    reported("recovery", with(&["recovery", "show"], &["--output", &at("shown"), &home_folder]));
    let check = ["recovery", "check", "--backup", &header, "--password-file", &at("key3"), &full];
    reported("recovery", check.map(str::to_owned).to_vec());
    reported("token", ["token", "list", &luks].map(str::to_owned).to_vec());
    reported("keyfile", vec!["keyfile".into(), at("key")]);
    reported("keyfile", with(&["keyfile", "--efs", "--name", "me"], &[&at("me.pfx")]));
    reported("change", with(&["change"], &["--new-password-file", pw, &tc]));
    reported("change", with(&["change", "--format", "eCryptfs"], &["--new-password-file", pw, &home_folder]));
    reported("convert", with(&["convert", "--raw"], &[&tc, &copy]));
    reported("resize", with(&["resize", "--yes", "--quick", "--size", "2M"], &[&tc]));
    reported("reencrypt", with(&["reencrypt", "--yes"], &[&luks]));
    reported("benchmark", "benchmark --cipher AES --buffer 4096 --repeats 1".split(' ').map(str::to_owned).collect());
    reported("lab", ["lab", "list"].map(str::to_owned).to_vec());
    reported("list", vec!["list".into()]);
    reported("unmount", vec!["unmount".into(), "--all".into()]);
    let mut serve = Command::new("timeout");
    serve.args(["-s", "INT", "3", env!("CARGO_BIN_EXE_claviger"), "serve", "--json", "--password-file", pw, &tc]);
    let serving = done(serve.output().expect("it starts")).json();
    lacks.extend(page.lacks("serve", &serving));
    assert!(lacks.is_empty(), "not on the page: {lacks:#?}");
}

#[test]
fn names_that_are_not_text_are_given_as_bytes() {
    let (page, folder) = (Page::read(), Folder::new());
    let name = OsStr::from_bytes(b"\xfcber.tc");
    let volume = folder.path("").join(name);
    fs::copy(folder.volume("v.tc", "1M", &[]), &volume).expect("a copy");
    let by_hex = |hex: &Value| {
        let digits = hex.as_str().unwrap_or_default().as_bytes().chunks(2);
        let bytes = digits.map(|two| u8::from_str_radix(&String::from_utf8_lossy(two), 16).expect("digits"));
        PathBuf::from(OsStr::from_bytes(&bytes.collect::<Vec<_>>()))
    };
    let path = volume.as_os_str();
    for verb in ["identify", "info", "explain", "verify", "resize", "change"] {
        let mut args: Vec<&OsStr> = vec![OsStr::new(verb), path, OsStr::new("--json")];
        let more: &[&str] = match verb {
            "identify" => &[],
            "resize" => &["--yes", "--quick", "--size", "1M", "--password-file"],
            "change" => &["--new-password-file", &folder.password, "--password-file"],
            _ => &["--password-file"],
        };
        args.extend(more.iter().map(OsStr::new));
        args.extend((!more.is_empty()).then_some(OsStr::new(&folder.password)));
        let reported = run(args).succeeds().json();
        let one = reported.as_array().map_or(&reported, |list| &list[0]);
        assert_eq!(by_hex(&one["path_bytes"]), volume, "{verb}: {reported}");
    }
    fs::write(folder.path("v.tc"), "x").expect("a file");
    for verb in ["ls", "tree"] {
        let reported = run([verb, "--format", "clear", "--json", &folder.str(".")]).succeeds().json();
        page.names(verb, &reported);
        let entries = reported["entries"].as_array().expect("a list");
        let named: Vec<_> = entries.iter().filter(|entry| entry["name_bytes"].is_string()).collect();
        assert!(named.len() == 1 && by_hex(&named[0]["name_bytes"]).as_os_str() == name, "{reported}");
        assert!(entries.len() > 1, "the others are text: {reported}");
    }
    let new = folder.str("new");
    fs::create_dir(&new).expect("a folder");
    let copied = run(["cp", "--format", "clear", "--json", &folder.str("."), ":/v.tc", &new]).succeeds().json();
    page.names("cp", &copied);
}

#[test]
fn the_page_names_what_mounted_volumes_tell() {
    let Some(place) = MountSpace::root() else { return };
    let page = Page::read();
    let (volume, dir) = (place.ext4("v.tc"), place.dir("d"));
    let password = ["--password-file", &place.folder.password];
    let mount = [&["mount", "--json", "--isolate-keys", "--hash=SHA-512"], &password[..], &[&volume, &dir]].concat();
    for (verb, args) in [
        ("mount", mount),
        ("list", vec!["list", "--json"]),
        ("lock", vec!["lock", "--json", &dir]),
        ("unlock", [&["unlock", "--json"], &password[..], &[&dir]].concat()),
        ("unmount", vec!["unmount", "--json", &dir]),
    ] {
        let reported = place.run(&args).succeeds().json();
        assert_eq!(reported["json_version"], 1, "{reported}");
        page.names(verb, &reported);
    }
}

#[test]
fn what_to_try_is_a_field_of_its_own() {
    let folder = Folder::new();
    let volume = folder.volume("v.tc", "1M", &[]);
    let create = ["create", "--json", "--size", "1M", "--password-file", &folder.password, &volume];
    let reported: Value = serde_json::from_str(&run(create).fails(1, &["--force"]).err).expect("one object");
    assert_eq!(reported["json_version"], 1);
    assert_eq!(reported["error"]["hint"], "To replace it, add --force.");
    assert!(
        reported["error"]["message"].as_str().is_some_and(|message| message.contains("already exists")),
        "{reported}"
    );
    assert!(!reported["error"]["message"].as_str().is_some_and(|message| message.contains("--force")), "{reported}");
}
