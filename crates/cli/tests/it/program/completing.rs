//! The tab key in bash, zsh and fish, on a terminal, among names that a shell would run.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::common::*;
use claviger_testkit::{terminal, tools};
use serde_json::{Value, json};

/// A shell, the words that start it without anybody's settings, and what it does at first.
struct Shell {
    name: &'static str,
    options: &'static [&'static str],
    /// Takes the script in `$SCRIPT`.
    begin: &'static str,
}

const SHELLS: &[Shell] = &[
    Shell { name: "bash", options: &["--norc", "--noprofile", "-i"], begin: "source $SCRIPT; PS1='rea''dy '" },
    Shell {
        name: "zsh",
        options: &["-f", "-i"],
        begin: "autoload -Uz compinit; compinit -u -d $SCRIPT.dump; zstyle ':completion:*' insert-tab false; \
                source $SCRIPT; unsetopt prompt_sp; PS1='rea''dy '",
    },
    Shell {
        name: "fish",
        options: &["--no-config", "--interactive"],
        begin: "set fish_greeting; source $SCRIPT; function fish_prompt; echo -n 'rea''dy '; end",
    },
];

/// Names in which a shell finds something to do, and those that a blank or a quote would cut.
const NAMES: &[&str] = &[
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned",
    "a&touch pwned",
    "a|touch pwned",
    "a>pwned",
    "(touch pwned)",
    "'; touch pwned; '",
    "\"; touch pwned; \"",
    "it's \"both\"",
    "back\\slash\\",
    "two  blanks",
    " first",
    "new\nline; touch pwned",
    "*[a-z]?{x,y}",
    "#hash",
    "~tilde",
    "!bang!!",
    "\u{fc}ml\u{e4}ut",
];

/// A folder in which `claviger` completes as the program does, and otherwise writes down the words that it is called with.
struct Terminal {
    folder: Folder,
    shell: &'static Shell,
    program: PathBuf,
}

impl Terminal {
    fn new(shell: &'static Shell) -> Option<Self> {
        let program = tools::program(shell.name)?;
        let folder = Folder::new();
        fs::create_dir(folder.path("bin")).expect("a folder");
        let script = format!(
            "#!/bin/sh\n[ -z \"$CLAVIGER_COMPLETE\" ] || exec '{}' \"$@\"\nprintf '%s\\0' \"$@\" >\"$CALLED.new\"\n\
             mv \"$CALLED.new\" \"$CALLED\"\n",
            env!("CARGO_BIN_EXE_claviger")
        );
        let wrapper = folder.path("bin/claviger");
        let mut file = fs::File::create(&wrapper).expect("a file");
        file.write_all(script.as_bytes()).expect("written");
        file.set_permissions(fs::Permissions::from_mode(0o755)).expect("a program");
        let completions = run(["completions", shell.name]).succeeds();
        fs::write(folder.path("script"), completions.out).expect("written");
        Some(Self { folder, shell, program })
    }

    /// The arguments that the program gets from each of the lines, with Tab and then Enter pressed at the end.
    fn called(&self, lines: &[String]) -> Vec<Vec<String>> {
        let called = self.folder.str("called");
        let mut steps = vec![json!({"send": format!("{}\n", self.shell.begin)}), json!({"expect": "ready "})];
        for (i, line) in lines.iter().enumerate() {
            // Seen only once the tab was dealt with: a shell echoes what comes before it.
            steps.extend([json!({"send": format!("{line}\t")}), json!({"quiet": 0.3}), json!({"send": "\n"})]);
            let kept = format!("{called}.{i}");
            let keep =
                "for i in $(seq 200); do [ -e \"$0\" ] && break; sleep 0.05; done; [ ! -e \"$0\" ] || mv \"$0\" \"$1\"";
            steps.push(json!({"run": ["sh", "-c", keep, called, kept]}));
        }
        steps.push(json!({"send": "exit\n"}));
        self.play(Value::from(steps));
        let words = |i: usize| {
            let bytes = fs::read(format!("{called}.{i}")).unwrap_or_default();
            let words = bytes.strip_suffix(b"\0").unwrap_or_default().split(|byte| *byte == 0);
            words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        };
        (0..lines.len()).map(words).collect()
    }

    /// Checks that each line, completed, calls the program with these words, and that nothing else is run.
    #[track_caller]
    fn completes(&self, lines: &[String], wanted: &[Vec<String>]) {
        for ((line, wanted), called) in lines.iter().zip(wanted).zip(&self.called(lines)) {
            assert_eq!(called, wanted, "{}: {line}<TAB>", self.shell.name);
        }
        assert!(!self.folder.path("pwned").exists(), "{}", self.shell.name);
    }

    fn play(&self, steps: Value) {
        let path = format!("{}:/usr/bin:/bin", self.folder.str("bin"));
        let home = self.folder.path("");
        let mut command = terminal::played(steps).expect("Python is there");
        command.arg(&self.program).args(self.shell.options);
        command.current_dir(&home).env_clear();
        command.envs([("PATH", path), ("TERM", "xterm".into()), ("LANG", "C.UTF-8".into())]);
        command.envs([("SCRIPT", self.folder.path("script")), ("CALLED", self.folder.path("called"))]);
        command.envs([("HOME", &home), ("XDG_CONFIG_HOME", &home), ("XDG_DATA_HOME", &home)]);
        tools::run(&mut command);
    }
}

/// Each name in a folder of its own, after a path, and after an option with `=`.
fn paths_are_one_word(shell: &'static Shell) {
    let Some(terminal) = Terminal::new(shell) else { return };
    let mut lines = Vec::new();
    let mut wanted = Vec::new();
    for (i, name) in NAMES.iter().enumerate() {
        fs::create_dir(terminal.folder.path(&format!("d{i}"))).expect("a folder");
        fs::write(terminal.folder.path(&format!("d{i}/{name}")), "").expect("a file");
        lines.push(format!("claviger info d{i}/"));
        wanted.push(vec!["info".to_owned(), format!("d{i}/{name}")]);
        if i < 3 {
            lines.push(format!("claviger info --keyfile=d{i}/"));
            wanted.push(vec!["info".to_owned(), format!("--keyfile=d{i}/{name}")]);
        }
    }
    terminal.completes(&lines, &wanted);
}

#[test]
fn bash_gives_a_path_as_one_word() {
    paths_are_one_word(&SHELLS[0]);
}

#[test]
fn zsh_gives_a_path_as_one_word() {
    paths_are_one_word(&SHELLS[1]);
}

#[test]
fn fish_gives_a_path_as_one_word() {
    paths_are_one_word(&SHELLS[2]);
}

/// Favourites, also after a quote; keyslots of a volume with such a name; verbs and options as ever.
fn own_words_are_one_word(shell: &'static Shell) {
    let Some(terminal) = Terminal::new(shell) else { return };
    let names = ["a $(touch pwned)", "b'; touch pwned; '", "c \"`touch pwned`\"", "d\\;*", "e&f", "g\u{1b}]0;x\u{7}"];
    let mut favourites = String::new();
    for name in names {
        favourites += &format!("[{}]\nvolume = \"v\"\ndir = \"d\"\n", json!(name));
    }
    fs::create_dir(terminal.folder.path("claviger")).expect("a folder");
    fs::write(terminal.folder.path("claviger/favourites.toml"), favourites.replace("\\u001b", "\\u001B"))
        .expect("a file");
    terminal.folder.luks2("my $(touch pwned) disk.luks");
    let mut lines: Vec<String> = names[..5].iter().map(|name| format!("claviger attach {}", &name[..1])).collect();
    let mut wanted: Vec<Vec<String>> = names[..5].iter().map(|name| vec!["attach".into(), (*name).into()]).collect();
    let mut add = |line: &str, words: &[&str]| {
        lines.push(line.to_owned());
        wanted.push(words.iter().map(|word| (*word).to_owned()).collect());
    };
    add("claviger attach 'a", &["attach", names[0]]);
    add("claviger attach \"a", &["attach", names[0]]);
    add("claviger attach \"c", &["attach", names[2]]);
    add("claviger attach 'b", &["attach", names[1]]);
    // What a terminal would obey is not offered.
    add("claviger attach g", &["attach", "g"]);
    add(
        "claviger keyslot kill 'my $(touch pwned) disk.luks' ",
        &["keyslot", "kill", "my $(touch pwned) disk.luks", "0"],
    );
    add(
        "claviger keyslot priority 'my $(touch pwned) disk.luks' ",
        &["keyslot", "priority", "my $(touch pwned) disk.luks", "0"],
    );
    add("claviger unmou", &["unmount"]);
    add("claviger create --filesys", &["create", "--filesystem"]);
    add("claviger create --format=veracr", &["create", "--format=VeraCrypt"]);
    add("claviger create --format bitl", &["create", "--format", "BitLocker"]);
    terminal.completes(&lines, &wanted);
}

#[test]
fn bash_quotes_names() {
    own_words_are_one_word(&SHELLS[0]);
}

#[test]
fn zsh_quotes_names() {
    own_words_are_one_word(&SHELLS[1]);
}

#[test]
fn fish_quotes_names() {
    own_words_are_one_word(&SHELLS[2]);
}
