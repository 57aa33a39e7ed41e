//! Volumes of a person's own, in a file of TOML: a name, a volume, a folder, options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result};
use serde::Deserialize;

/// A volume with a place of its own.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Favourite {
    /// The file or device, or a folder that is encrypted file by file.
    volume: PathBuf,
    /// The folder to mount it on.
    dir: PathBuf,
    /// Options of `claviger mount`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// The favourites by their names.
///
/// # Errors
/// `Misuse`, with the place, where the text is not what it should be.
pub fn parse(text: &str) -> Result<BTreeMap<String, Favourite>> {
    let all: BTreeMap<String, Favourite> = toml::from_str(text).map_err(|e| Error::misuse(e.to_string().trim()))?;
    for (name, favourite) in &all {
        // Anything else would be taken as another volume or folder.
        if let Some(option) = favourite.options.iter().find(|o| !o.starts_with('-') || *o == "--") {
            return Err(Error::misuse(format!("{name}: {option:?} is not an option of `claviger mount`"))
                .hint("Write values together with their option: \"--hash=SHA-512\"."));
        }
    }
    Ok(all)
}

impl Favourite {
    /// The volume, below `home` where it begins with `~/`.
    pub fn volume(&self, home: &Path) -> PathBuf {
        at_home(&self.volume, home)
    }

    /// The folder, as above.
    pub fn dir(&self, home: &Path) -> PathBuf {
        at_home(&self.dir, home)
    }
}

/// Other relative paths would mean another file in every folder: they are below `home` too.
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
