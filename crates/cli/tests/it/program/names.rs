//! A name on the command line moves no cursor and paints nothing, whichever verb or option gets it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::common::*;
use serde_json::json;

const NAME: &str = "\u{1b}[31mx";

/// The long help of a verb.
fn help(verb: &[String]) -> String {
    let mut words = verb.to_vec();
    words.push("--help".into());
    run(&words).succeeds().text()
}

/// Every verb with the words that lead to it, as the help lists them.
fn verbs(of: &[String]) -> Vec<Vec<String>> {
    let text = help(of);
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let names: Vec<_> = names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").collect();
    match names.is_empty() {
        true => vec![of.to_vec()],
        false => names.iter().flat_map(|name| verbs(&[of, &[(*name).to_owned()]].concat())).collect(),
    }
}

/// The options of a verb that take a value.
fn options(verb: &[String]) -> Vec<String> {
    let text = help(verb);
    let option = |line: &str| {
        let (_, option) = line.split_once("--").filter(|(before, _)| before.trim().len() <= 3)?;
        let (name, rest) = option.split_once(' ')?;
        rest.starts_with('<').then(|| format!("--{name}"))
    };
    text.lines().filter_map(option).collect()
}

/// Runs the program in the folder, for at most 20 seconds, and returns all it said.
fn said(folder: &Folder, words: &[String]) -> String {
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "20", "setsid", "--wait", env!("CARGO_BIN_EXE_claviger")]).args(words);
    command.current_dir(folder.path("")).env("CLAVIGER_RUNTIME_DIR", folder.path("runtime"));
    let output = command.stdin(std::process::Stdio::null()).output().expect("it starts");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn every_verb_shows_names_without_their_control_characters() {
    let folder = Folder::new();
    fs::write(folder.path(NAME), "no volume\n".repeat(1000)).expect("a file");
    let all = verbs(&[]);
    assert!(all.len() > 40 && all.contains(&vec!["header".into(), "show".into()]), "{all:?}");
    let quiet = |words: &[String]| {
        let said = said(&folder, words);
        assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{words:?}: {said:?}");
    };
    let mut tried = BTreeSet::new();
    for verb in &all {
        let with = |more: &[&str]| [verb.clone(), more.iter().map(|word| (*word).to_owned()).collect()].concat();
        for more in [&[NAME][..], &[NAME, NAME], &["--json", NAME], &["--json", NAME, NAME]] {
            quiet(&with(more));
        }
        for option in options(verb).into_iter().filter(|option| tried.insert(option.clone())) {
            quiet(&with(&[&option, NAME, NAME]));
        }
    }
    assert!(tried.len() > 60, "{tried:?}");
}

#[test]
fn questions_show_names_without_their_control_characters() {
    let folder = Folder::new();
    let volume = folder.luks2(NAME);
    let wrong = [json!({"expect": "assword: "}), json!({"echo": false}), json!({"send": "wrong\n"})];
    let steps = json!([&wrong[..], &wrong, &wrong].concat());
    let Some((output, code, _)) = on_terminal(steps, &["info", &volume]) else { return };
    assert!(code == 2 && !output.contains(NAME) && output.contains("?[31mx"), "{code} {output:?}");
}
