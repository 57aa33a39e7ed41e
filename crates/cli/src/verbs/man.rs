//! `claviger man`: writes the man pages from the same definitions as `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::terminal::exit;

/// Write the man pages
#[derive(clap::Args)]
pub struct Args {
    /// The folder to write them to
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// The files that the program uses, and their purpose.
const FILES: &[(&str, &str)] = &[
    (
        "/run/claviger, $XDG_RUNTIME_DIR/claviger",
        "Root's and a user's private runtime folder: records of mounted and served volumes, and the default socket \
         NAME.sock of a served volume. Without XDG_RUNTIME_DIR, a user's is /run/user/UID/claviger or, if that is \
         missing, /tmp/claviger-UID. CLAVIGER_RUNTIME_DIR sets another one.",
    ),
    ("/etc/crypttab", "Volumes that `claviger attach` opens by name (crypttab(5)); --crypttab gives another file."),
    (
        "~/.config/claviger/favourites.toml",
        "The user's favourites, which `claviger attach` mounts: for each [NAME] the keys volume, dir and options, a \
         list of options of `claviger mount`.",
    ),
    ("/dev/tty", "The terminal on which passwords are asked for."),
];

/// How the program protects secrets, and the limits of that.
const SECURITY: &[&str] = &[
    "Passwords are never accepted on the command line, which every process can read. A --password-file should be \
     readable only by its owner. A new password is never empty; for a volume with keyfiles alone, use \
     --no-password. Started programs, such as that of `serve --run`, cannot read passwords or keys again from the \
     descriptor or standard input that supplied them.",
    "Passwords and keys are kept in locked memory, which is not swapped within the limit on locked memory. It is \
     excluded from core dumps and wiped when no longer needed. While a volume is open, the process makes no core \
     dumps, and the user's other processes cannot read its memory. Root can, and hibernation writes all memory to \
     disk.",
    "Anybody who can open the socket of a served volume sees the plaintext. The default socket is in the user's \
     private folder; a TCP port is open to every user of the machine. With --tls, other machines can connect, and \
     clients need a certificate; the server's private key is in ordinary memory.",
    "While a LUKS2 volume in a file is open for writing, cryptsetup, which takes the same lock, waits until it is \
     closed. `cryptsetup --disable-locks luksDump` still shows its header. If the volume is open with --read-only, \
     cryptsetup waits only to change the header.",
    "In formats without a signature, a wrong password and a damaged header look the same: the header looks random \
     in both cases.",
];

pub fn run(args: &Args) -> anyhow::Result<()> {
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let mut program = crate::command().disable_help_subcommand(true);
    program.build();
    write(args, &program, "claviger")?;
    for verb in program.get_subcommands().filter(|v| !v.is_hide_set()) {
        write(args, verb, &format!("claviger-{}", verb.get_name()))?;
        for part in verb.get_subcommands().filter(|v| !v.is_hide_set() && v.get_name() != "help") {
            write(args, part, &format!("claviger-{}-{}", verb.get_name(), part.get_name()))?;
        }
    }
    Ok(())
}

fn write(args: &Args, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    let path = args.out.join(format!("{name}.1"));
    let mut page = Vec::new();
    render(command, name, &mut page)?;
    fs::write(&path, page).with_context(|| path.display().to_string())
}

fn render(command: &clap::Command, name: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(format!("claviger {version}"))
        .manual("Claviger Manual");
    man.render_title(out)?;
    man.render_name_section(out)?;
    heading(out, "SYNOPSIS")?;
    let mut roff = Roff::new();
    roff.text(synopsis(&command.clone().render_usage().to_string()));
    roff.to_writer(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        heading(out, "VERBS")?;
        for verb in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            let mut roff = Roff::new();
            roff.control("TP", []);
            roff.text([bold(format!("{name}-{}(1)", verb.get_name()))]);
            roff.text([roman(about)]);
            roff.to_writer(out)?;
        }
    }

    heading(out, "EXIT STATUS")?;
    let mut roff = Roff::new();
    for (number, meaning) in exit::rows() {
        roff.control("TP", []);
        roff.text([bold(number.to_string())]);
        roff.text([roman(meaning)]);
    }
    roff.control("PP", []);
    roff.text([roman(crate::JSON_ERRORS)]);
    roff.to_writer(out)?;

    // The table of exit codes at the end of `claviger --help` has a section of its own.
    let examples = help.iter().flat_map(|h| h.split("\n\n")).filter(|part| !part.starts_with("Exit status:"));
    let examples: Vec<_> = examples.collect();
    if !examples.is_empty() {
        heading(out, "EXAMPLES")?;
        for part in examples {
            for line in part.lines().filter(|l| *l != "Examples:") {
                let mut roff = Roff::new();
                match line.strip_prefix("  ") {
                    Some(code) => {
                        roff.control("RS", ["4"]);
                        roff.control("nf", []);
                        roff.text([roman(code)]);
                        roff.control("fi", []);
                        roff.control("RE", []);
                    }
                    None => {
                        roff.control("PP", []);
                        roff.text([roman(line)]);
                    }
                }
                roff.to_writer(out)?;
            }
            writeln!(out, ".PP")?;
        }
    }

    heading(out, "FILES")?;
    for (file, what) in FILES {
        let mut roff = Roff::new();
        roff.control("TP", []);
        roff.text([bold(*file)]);
        roff.text([roman(*what)]);
        roff.to_writer(out)?;
    }
    heading(out, "SECURITY")?;
    for paragraph in SECURITY {
        let mut roff = Roff::new();
        roff.control("PP", []);
        roff.text([roman(*paragraph)]);
        roff.to_writer(out)?;
    }
    heading(out, "SEE ALSO")?;
    let mut roff = Roff::new();
    roff.text([bold("claviger(1)"), roman(", "), bold("nbdcopy(1)"), roman(", "), bold("nbd-client(8)")]);
    roff.to_writer(out)
}

/// The usage as man pages write it: names in bold, values in italics, and braces around options of which one is required.
fn synopsis(usage: &str) -> Vec<Inline> {
    let in_name = |c: &char| c.is_alphanumeric() || *c == '-';
    let usage: Vec<char> = usage.trim_start_matches("Usage: ").replace("<-", "{-").chars().collect();
    let mut text = Vec::new();
    let mut ends = Vec::new();
    for run in usage.chunk_by(|a, b| in_name(a) && in_name(b)) {
        match run {
            ['<'] => ends.push(""),
            ['>'] => text.extend(ends.pop().map(roman)),
            ['{'] => {
                ends.push("}");
                text.push(roman("{"));
            }
            run => {
                let style = match (run.iter().any(in_name), run.iter().any(|c| c.is_lowercase())) {
                    (true, true) => bold,
                    (true, false) => italic,
                    _ => roman,
                };
                text.push(style(run.iter().collect::<String>()));
            }
        }
    }
    text
}

fn heading(out: &mut Vec<u8>, title: &str) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.to_writer(out)
}
