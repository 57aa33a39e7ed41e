//! The user's own volumes, in a TOML file: a name, a volume, a folder, options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};
use serde::Deserialize;

/// A volume with its mount point.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Favourite {
    /// The file or device, or an encrypted folder.
    volume: PathBuf,
    /// The folder to mount it on.
    dir: PathBuf,
    /// Options of `claviger mount`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// The favourites by name.
///
/// # Errors
/// `Misuse`, with the line, for an invalid text.
pub fn parse(text: &str) -> Result<BTreeMap<String, Favourite>> {
    let all: BTreeMap<String, Favourite> = toml::from_str(text).map_err(|e| Error::misuse(e.to_string().trim()))?;
    for (name, favourite) in &all {
        // Any other word would be taken as a volume or folder.
        if let Some(option) = favourite.options.iter().find(|o| !o.starts_with('-') || *o == "--") {
            return Err(Error::misuse(format!("{name}: {option:?} is not an option of `claviger mount`"))
                .hint("Write values together with their option: \"--hash=SHA-512\"."));
        }
    }
    Ok(all)
}

impl Favourite {
    /// The path of the volume, relative to `home`.
    pub fn volume(&self, home: &Path) -> PathBuf {
        at_home(&self.volume, home)
    }

    /// The path of the folder, relative to `home`.
    pub fn dir(&self, home: &Path) -> PathBuf {
        at_home(&self.dir, home)
    }
}

/// Relative paths are relative to `home`, with or without `~/`: otherwise they would depend on the current folder.
fn at_home(path: &Path, home: &Path) -> PathBuf {
    home.join(path.strip_prefix("~").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_volume_a_folder_and_options() {
        let all = parse(
            "[diary]\nvolume = \"~/d.tc\"\ndir = \"/mnt/d\"\noptions = [\"--read-only\"]\n[b]\nvolume='b'\ndir='c'",
        )
        .expect("TOML");
        let home = Path::new("/home/u");
        let diary = &all["diary"];
        assert_eq!((diary.volume(home), diary.dir(home)), ("/home/u/d.tc".into(), "/mnt/d".into()));
        assert_eq!((all["b"].volume(home), all["b"].options.len()), ("/home/u/b".into(), 0));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, word) in [
            ("[a]\nvolume = 'x'", "dir"),
            ("[a]\nvolume = 'x'\ndir = 'y'\npassword = 'z'", "password"),
            ("[a]\nvolume = 'x'\ndir = 'y'\noptions = ['/etc']", "/etc"),
            ("[a]\nvolume = 'x'\ndir = 'y'\noptions = ['--']", "--"),
            ("a = ", "line 1"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
