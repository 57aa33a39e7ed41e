//! The desktop's settings (light or dark, font, keyboard layout), and opening a folder in it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::portal;
use crate::theme::{FontFile, Fonts};

/// The most recently read settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub dark: Option<bool>,
    /// The layout of the keyboard: `de`.
    pub layout: Option<String>,
}

/// The settings, read by a thread, so that a desktop that does not answer delays nothing.
#[derive(Clone, Default)]
pub struct Desktop(Arc<Mutex<Wishes>>);

impl Desktop {
    pub fn wishes(&self) -> Wishes {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks again, the portal on this bus, and calls `done` afterwards.
    pub fn ask(&self, bus: Option<String>, done: impl FnOnce() + Send + 'static) {
        let wishes = Arc::clone(&self.0);
        thread::spawn(move || {
            let asked = Wishes { dark: bus.as_deref().and_then(portal::dark), layout: layout() };
            *wishes.lock().unwrap_or_else(PoisonError::into_inner) = asked;
            done();
        });
    }
}

fn said(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The font that the desktop has for texts, in two weights.
pub fn fonts() -> Fonts {
    Fonts { regular: font("sans-serif"), bold: font("sans-serif:bold") }
}

fn font(pattern: &str) -> Option<FontFile> {
    let (path, index) = font_named(&said("fc-match", &["--format", "%{file}\n%{index}", pattern])?)?;
    Some(FontFile { bytes: Arc::new(std::fs::read(path).ok()?), index })
}

/// The file, if it holds outlines, and the font's number in it. The upper half of the number is a variant of a variable font.
fn font_named(answer: &str) -> Option<(String, u32)> {
    let (path, index) = answer.split_once('\n')?;
    let outlines = [".ttf", ".otf", ".ttc"].iter().any(|end| path.to_lowercase().ends_with(end));
    outlines.then_some((path.to_owned(), index.trim().parse::<u32>().ok()? & 0xffff))
}

fn layout() -> Option<String> {
    let gnome = || first_source(&said("gsettings", &["get", "org.gnome.desktop.input-sources", "mru-sources"])?);
    let x11 = || named(&said("setxkbmap", &["-query"])?, "layout:");
    let system = || named(&std::fs::read_to_string("/etc/default/keyboard").ok()?, "XKBLAYOUT=");
    gnome().or_else(x11).or_else(system)
}

/// The first of `[('xkb', 'de'), ('xkb', 'us')]`: the one that was used last.
fn first_source(answer: &str) -> Option<String> {
    Some(answer.split('\'').nth(3)?.to_owned())
}

fn named(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
    let value = value.trim().trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}

/// Opens the folder in the desktop's own program, and calls `failed` if there is none.
pub fn open_folder(dir: &Path, failed: impl FnOnce() + Send + 'static) {
    open_by("xdg-open", dir, failed);
}

fn open_by(program: &str, dir: &Path, failed: impl FnOnce() + Send + 'static) {
    let mut open = Command::new(program);
    open.arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    thread::spawn(move || {
        if !open.status().is_ok_and(|status| status.success()) {
            failed();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_open_the_folder_is_noticed() {
        let fails = |program: &str| {
            let (failed, fails) = std::sync::mpsc::channel();
            open_by(program, Path::new("/"), move || failed.send(()).expect("it is awaited"));
            fails.recv().is_ok()
        };
        assert!(fails("false") && fails("/no such program") && !fails("true"));
    }

    #[test]
    fn answers_are_understood() {
        assert_eq!(first_source("[('xkb', 'de+neo'), ('xkb', 'us')]").as_deref(), Some("de+neo"));
        assert_eq!(first_source("@a(ss) []"), None);
        assert_eq!(named("rules: evdev\nlayout:     us,de\n", "layout:").as_deref(), Some("us,de"));
        assert_eq!(named("XKBLAYOUT=\"de\"", "XKBLAYOUT=").as_deref(), Some("de"));
        assert_eq!(named("XKBLAYOUT=\"\"", "XKBLAYOUT="), None);
        assert_eq!(font_named("/f/A.ttf\n131073"), Some(("/f/A.ttf".into(), 1)));
        assert_eq!((font_named("/f/A.pcf\n0"), font_named("")), (None, None));
    }
}
