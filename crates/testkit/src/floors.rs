//! Floors of a crate: a module uses only modules on its own floor and below.

use std::fs;
use std::path::{Path, PathBuf};

/// Checks the sources below `src`. The modules in `floors`, from the bottom up, must not name any on a higher floor,
/// and every module must have a floor.
///
/// # Panics
/// If a module breaks either rule.
pub fn check(src: &Path, floors: &[&[&str]]) {
    for file in sources(src).iter().filter(|file| **file != src.join("lib.rs")) {
        let inside = file.strip_prefix(src).expect("it is in there").with_extension("");
        let module = inside.iter().next().expect("a name").to_str().expect("UTF-8");
        let height = floors.iter().position(|floor| floor.contains(&module));
        let above = &floors[1 + height.unwrap_or_else(|| panic!("{module} is on no floor"))..];
        let text = fs::read_to_string(file).expect("a source");
        for line in text.lines().map(str::trim).filter(|line| line.contains("crate::") && !line.starts_with("//")) {
            let mut names = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let up = names.find(|name| above.iter().any(|floor| floor.contains(name)));
            assert_eq!(up, None, "{}: it is on a floor above: {line}", file.display());
            let hides =
                line.split("crate::").skip(1).any(|rest| rest.is_empty() || rest.starts_with(char::is_uppercase));
            assert!(!hides && !line.ends_with("crate::{"), "{}: name the module in the line: {line}", file.display());
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let of = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(of).filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}
