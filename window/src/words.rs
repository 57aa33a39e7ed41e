//! The command line. It is answered like other programs do, without a screen.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::texts::Texts;

/// The exit codes of `claviger`.
pub const USAGE: u8 = 1;
pub const IO: u8 = 6;

/// The action that a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Words {
    /// Open the window, with this file or folder.
    Open(Option<PathBuf>),
    /// Print this on standard output.
    Say(String),
    /// Print this on standard error, and exit with this code.
    Refuse(String, u8),
}

/// Parses the words after the program's name.
pub fn understood(words: impl IntoIterator<Item = OsString>, texts: &Texts) -> Words {
    let (mut path, mut options) = (None, true);
    for word in words {
        match word.to_str().filter(|_| options) {
            Some("--help" | "-h") => return Words::Say(texts.help.to_owned()),
            Some("--version" | "-V") => return Words::Say(format!("claviger-window {}", env!("CARGO_PKG_VERSION"))),
            Some("--") => options = false,
            Some(option) if option.starts_with('-') && option != "-" => {
                return refused(texts.unknown_option.replace("{}", option), USAGE, texts);
            }
            _ if path.is_some() => return refused(texts.one_path.to_owned(), USAGE, texts),
            _ => path = Some(PathBuf::from(word)),
        }
    }
    let Some(path) = path else { return Words::Open(None) };
    let path = std::path::absolute(&path).unwrap_or(path);
    match path.symlink_metadata() {
        Ok(_) => Words::Open(Some(path)),
        Err(e) => refused(format!("{}: {}", path.display(), plain(&e)), IO, texts),
    }
}

fn refused(what: String, code: u8, texts: &Texts) -> Words {
    Words::Refuse(format!("claviger-window: {what}\n{}", texts.try_help), code)
}

/// Without the system's error number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
