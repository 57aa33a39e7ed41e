//! Tests that the program accepts every command line in the README, the guide and `--help`.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::Cli;

#[test]
fn commands_in_the_readme_and_the_guide_parse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("docs/facilities.md")];
    pages.extend(fs::read_dir(root.join("docs/guide")).expect("a folder").map(|entry| entry.expect("a file").path()));
    let mut commands = 0;
    for page in pages {
        let Ok(text) = fs::read_to_string(&page) else { continue }; // the folder of pictures
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            commands += usize::from(parses(line, &page.display().to_string()));
        }
    }
    assert!(commands > 70, "only {commands} command lines were found");
}

#[test]
fn examples_of_the_help_parse() {
    fn walk(command: &Command) -> usize {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let here = help.lines().filter(|line| parses(line.trim(), command.get_name())).count();
        here + command.get_subcommands().map(walk).sum::<usize>()
    }
    assert!(walk(&Cli::command()) > 70);
}

/// The page about JSON has a part for each verb that prints it, and names the others.
#[test]
fn the_page_about_json_names_every_verb() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/json.md");
    let page = fs::read_to_string(page).expect("a page");
    fn prints(verb: &Command) -> bool {
        verb.get_arguments().any(|arg| arg.get_long() == Some("json")) || verb.get_subcommands().any(prints)
    }
    for verb in Cli::command().get_subcommands() {
        let name = verb.get_name();
        let entry = if prints(verb) { format!("\n## {name}\n") } else { format!("`{name}`") };
        assert!(page.contains(&entry), "{entry:?}");
    }
}

/// Whether the line runs the program. Fails if the program does not accept the line.
#[track_caller]
fn parses(line: &str, place: &str) -> bool {
    let line = line.trim_start_matches("$ ").trim_start_matches("# ");
    let words = words(line);
    if words.first().is_none_or(|word| word != "claviger") {
        return false;
    }
    if let Err(usage) = Cli::command().try_get_matches_from(&words) {
        panic!("{place}: {line}\n{usage}");
    }
    true
}

/// The words of the first command in a line, as a shell parses them.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '<' | '&' | ';') => break,
            (None, ' ') => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
