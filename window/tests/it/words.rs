//! What the program answers without a window.

use std::process::{Command, Output};

fn window(words: &[&str], language: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_claviger-window"));
    for name in ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "LC_ALL", "LC_MESSAGES"] {
        command.env_remove(name);
    }
    command.env("LANG", language).args(words).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_and_version_are_said_on_standard_output() {
    for (words, language, said) in [
        (["--help"], "C", "Usage: claviger-window [VOLUME]"),
        (["-h"], "de_DE.UTF-8", "Aufruf: claviger-window [DATENTRÄGER]"),
        (["--version"], "C", env!("CARGO_PKG_VERSION")),
        (["-V"], "C", "claviger-window"),
    ] {
        let output = window(&words, language);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        assert!(text(&output.stdout).contains(said), "{words:?}: {output:?}");
    }
}

#[test]
fn wrong_words_are_told_on_standard_error() {
    for (words, code, said) in [
        (&["--fullscreen"][..], 1, "claviger-window: unknown option --fullscreen\n"),
        (&["/", "/"], 1, "only one volume"),
        (&["/nowhere/v.hc"], 6, "claviger-window: /nowhere/v.hc: No such file or directory\n"),
        (&["--", "--help"], 6, "No such file or directory"),
        // There is no screen.
        (&[], 6, "the window cannot be opened"),
        (&["/"], 6, "claviger --help"),
    ] {
        let output = window(words, "C");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        assert!(text(&output.stderr).contains(said) && output.stdout.is_empty(), "{words:?}: {output:?}");
        assert!(!text(&output.stderr).contains("os error"), "{output:?}");
    }
}
