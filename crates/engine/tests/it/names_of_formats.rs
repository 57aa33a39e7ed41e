//! No code outside a format's folder compares the format's name: its row says what it can do.

use std::fs;
use std::path::{Path, PathBuf};

use claviger_engine::file_formats::FILE_FORMATS;
use claviger_engine::formats::FORMATS;

/// The formats themselves, and the tables that find them by name.
const FORMATS_THEMSELVES: [&str; 2] = ["crates/engine/src/formats/", "crates/engine/src/file_formats/"];

/// Files that may compare names, and why.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/serve/src/crypttab/", "a hash is called plain, too"),
    ("crates/lab/", "its facilities, studies and published figures are data with names"),
    ("crates/cli/src/opening/unlock_args.rs", "--random-key takes no --format but plain"),
    ("crates/cli/src/verbs/identify.rs", "the folders of this machine are never NTFS's"),
    ("window/", "it reads names in the program's JSON, and does not know the engine"),
];

/// What comes before a text in a comparison, and what comes after one.
const BEFORE: &[&str] = &["==", "!=", "starts_with(", "contains(", "eq_ignore_ascii_case(", "same_name(", "matches!("];
const BEHIND: &[&str] = &["==", "!=", "=>", "|"];

#[test]
fn no_name_of_a_format_is_compared_outside_its_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace");
    let names = FORMATS.iter().map(|format| format.name()).chain(FILE_FORMATS.iter().map(|format| format.name()));
    let names: Vec<String> = names.chain(["LUKS"]).map(|name| format!("\"{}\"", name.to_ascii_lowercase())).collect();
    let (mut seen, mut found) = (Vec::new(), Vec::new());
    for folder in ["crates", "bindings", "bench", "window"] {
        sources(&root.join(folder), &mut seen);
    }
    assert!(seen.len() > 300, "only {} sources were found", seen.len());
    for path in seen {
        let text = fs::read_to_string(&path).expect("a source");
        let path = path.strip_prefix(&root).expect("below it").display().to_string();
        if FORMATS_THEMSELVES.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        // Tests name what they test.
        let lines = text.lines().take_while(|line| !line.starts_with("mod tests"));
        let compared = lines.enumerate().filter(|(_, line)| compares(line, &names));
        found.extend(compared.map(|(number, line)| (path.clone(), format!("{path}:{}: {}", number + 1, line.trim()))));
    }
    let allowed = |path: &str| ALLOWED.iter().any(|(start, _)| path.starts_with(start));
    let wrong: Vec<_> = found.iter().filter(|(path, _)| !allowed(path)).map(|(_, line)| line).collect();
    assert!(wrong.is_empty(), "ask what the format can do instead: {wrong:#?}");
    let unused = |start: &str| !found.iter().any(|(path, _)| path.starts_with(start));
    let unused: Vec<_> = ALLOWED.iter().filter(|(start, _)| unused(start)).collect();
    assert!(unused.is_empty(), "nothing is compared there any more: {unused:?}");
}

/// The Rust files below that are in a program or library.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        match path.is_dir() {
            _ if ["tests", "tests.rs", "target", "examples"].iter().any(|left_out| name == *left_out) => {}
            true => sources(&path, into),
            false if path.extension().is_some_and(|end| end == "rs") => into.push(path),
            false => {}
        }
    }
}

/// Whether the line compares something with one of these texts, in quotation marks, or with the name of a row.
fn compares(line: &str, names: &[String]) -> bool {
    let line = line.trim().to_ascii_lowercase();
    if line.starts_with("//") {
        return false;
    }
    let around = |name: &String| {
        line.match_indices(name.as_str()).any(|(at, name)| {
            let (before, behind) = (line[..at].trim_end(), line[at + name.len()..].trim_start());
            BEFORE.iter().any(|sign| before.ends_with(sign)) || BEHIND.iter().any(|sign| behind.starts_with(sign))
        })
    };
    // A row is a static: CLEAR.name().
    let row = |name: &String| line.contains(&format!("{}.name()", name.trim_matches('"')));
    names.iter().any(around) || ((line.contains("==") || line.contains("!=")) && names.iter().any(row))
}
