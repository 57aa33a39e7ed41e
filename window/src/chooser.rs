//! Choosing a file, a folder or a device on a page of the window, as a value: for what the desktop's dialog does not show, and where there
//! is none.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub struct Chooser {
    /// The typed path: a folder, whose entries are shown, or a file in one.
    pub text: String,
    /// Folders first.
    pub entries: Vec<Entry>,
    shown: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub path: PathBuf,
    pub folder: bool,
}

impl Chooser {
    pub fn at(folder: &Path) -> Self {
        let mut chooser = Self { text: String::new(), entries: Vec::new(), shown: PathBuf::new() };
        chooser.go(folder);
        chooser
    }

    /// Shows this folder.
    pub fn go(&mut self, folder: &Path) {
        folder.display().to_string().clone_into(&mut self.text);
        self.look();
    }

    /// Reads the typed folder, if it has changed.
    pub fn look(&mut self) {
        let typed = PathBuf::from(self.text.trim());
        if typed != self.shown && typed.is_dir() {
            self.entries = entries(&typed);
            self.shown = typed;
        }
    }

    /// The typed path, if it exists.
    pub fn chosen(&self) -> Option<PathBuf> {
        let path = PathBuf::from(self.text.trim());
        (path.is_absolute() && path.exists()).then_some(path)
    }

    pub fn parent(&self) -> Option<PathBuf> {
        self.shown.parent().map(Path::to_owned)
    }
}

/// The entries of a folder to choose from, without hidden files and devices that are not disks.
fn entries(folder: &Path) -> Vec<Entry> {
    let each = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = fs::metadata(entry.path()).ok()?.file_type();
        let wanted = kind.is_dir() || kind.is_file() || kind.is_block_device();
        (wanted && !name.starts_with('.')).then(|| Entry { name, path: entry.path(), folder: kind.is_dir() })
    };
    let mut all: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(each).collect();
    all.sort_by_key(|entry| (!entry.folder, entry.name.to_lowercase()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_and_hidden_files_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["b", "A.hc", ".hidden"] {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        fs::create_dir(folder.path().join("z")).expect("a folder");
        let mut chooser = Chooser::at(folder.path());
        let names: Vec<_> = chooser.entries.iter().map(|entry| (&*entry.name, entry.folder)).collect();
        assert_eq!(names, [("z", true), ("A.hc", false), ("b", false)]);
        chooser.text += "/b";
        chooser.look();
        assert_eq!((chooser.chosen(), chooser.entries.len()), (Some(folder.path().join("b")), 3));
        chooser.text += "no";
        assert_eq!(chooser.chosen(), None);
        assert!(Chooser::at(Path::new("/dev")).entries.iter().all(|entry| entry.name != "null"));
    }
}
