//! The progress line says which format is tried, and promises no time before one was measured.

use std::fs;

use crate::common::*;
use claviger_testkit::random::Random;
use serde_json::{Value, json};

/// TrueCrypt has no such hash, and each derivation takes VeraCrypt longest.
const SLOW: [&str; 2] = ["--hash", "Streebog"];

fn noise(folder: &Folder) -> String {
    fs::write(folder.path("noise"), Random::new(11).bytes(1 << 20)).expect("a file");
    folder.str("noise")
}

#[test]
fn the_format_that_is_tried_is_named_before_any_time() {
    let folder = Folder::new();
    let noise = noise(&folder);
    let info = ["info", "--progress", "json", "--password-file", &folder.password, &noise];
    let done = run([&info[..], &SLOW].concat()).fails(2, &[]);
    let lines: Vec<Value> = done.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let tried: Vec<_> = lines.iter().filter_map(|line| line["what"].as_str()).collect();
    let begins = tried.iter().position(|what| *what == "Trying VeraCrypt").expect("it is tried");
    assert!(tried[..begins].contains(&"Trying TrueCrypt"), "{tried:?}");
    assert!(tried[begins..].iter().all(|what| *what == "Trying VeraCrypt") && tried.len() > begins + 1, "{tried:?}");
    let first = &lines[begins];
    assert!(first["seconds_left"].is_null() && first["per_second"].is_null(), "{first}");
    assert_eq!(lines.last().map(|last| (&last["seconds_left"], last["done"] == last["all"])), Some((&json!(0), true)));
}

#[test]
fn a_terminal_shows_which_format_is_tried() {
    let folder = Folder::new();
    let noise = noise(&folder);
    for verb in ["info", "explain"] {
        let words = [&[verb, "--password-file", &folder.password, &noise][..], &SLOW].concat();
        let steps = json!([{"expect": "Trying VeraCrypt"}, {"send": "\u{3}"}]);
        let Some((output, code, _)) = on_terminal(steps, &words) else { return };
        assert!(code == 8 && !output.contains(" 0s left"), "{verb}: {code} {output}");
    }
}
