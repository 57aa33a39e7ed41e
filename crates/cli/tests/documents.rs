//! Man pages and completions.

mod common;

use std::fs;
use std::process::Command;

use claviger_testkit::tools;
use common::*;

const VERBS: &[&str] = &[
    "identify",
    "info",
    "explain",
    "create",
    "cat",
    "ls",
    "tree",
    "cp",
    "serve",
    "mount",
    "unmount",
    "list",
    "attach",
    "verify",
    "change",
    "convert",
    "detach",
    "header",
    "keyslot",
    "token",
    "resize",
    "reencrypt",
    "keyfile",
    "benchmark",
    "lab",
];

#[test]
fn every_verb_has_a_man_page() {
    let folder = Folder::new();
    let out = folder.str("man");
    run(["man", "--out", &out]).succeeds();
    for name in VERBS.iter().map(|v| format!("claviger-{v}")).chain(["claviger".to_owned()]) {
        let page = fs::read_to_string(folder.path(&format!("man/{name}.1"))).expect("a page");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "FILES", "SECURITY"] {
            assert!(
                page.contains(&format!(".SH {section}")) || page.contains(&format!(".SH \"{section}\"")),
                "{name} {section}"
            );
        }
        let Some(man) = tools::program("man") else { continue };
        let mut command = Command::new(man);
        command.args(["--warnings=w", "-l"]).arg(folder.path(&format!("man/{name}.1")));
        let output = tools::run(command.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").env("MANROFFOPT", ""));
        let (text, warnings) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(warnings, "", "{name}");
        assert!(text.contains("another process has the volume open"), "{text}");
    }
    let page = fs::read_to_string(folder.path("man/claviger-serve.1")).expect("a page");
    assert!(page.contains(".SH EXAMPLES") && page.contains("\\-\\-socket"), "{page}");
}

#[test]
fn shells_complete() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["completions", shell]).succeeds().text();
        for verb in VERBS {
            assert!(script.contains(verb), "{shell} {verb}");
        }
    }
    run(["completions", "tcsh"]).fails(1, &["bash"]);
}
