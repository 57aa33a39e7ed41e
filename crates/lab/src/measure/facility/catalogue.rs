//! All facilities: ours, others that come with this program, and the user's own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use claviger_engine::formats::same_name;
use claviger_engine::internal::files;
use claviger_engine::{Error, Result};
use rustix::process::geteuid;

use super::{Facility, config_folder, ours, words};

/// Files of data/peers by their names: each name with the file's text.
macro_rules! peers {
    ($($name:literal),*) => { &[$(($name, include_str!(concat!("../../../data/peers/", $name, ".toml")))),*] };
}

/// The facilities of others and the same layers without encryption: `(file name, its text)`.
#[rustfmt::skip]
const PEERS: &[(&str, &str)] = peers![
    "folder", "loop", "ext4", "dm-crypt-luks2", "dm-crypt-luks2-serpent", "dm-crypt-luks1", "dm-crypt-plain",
    "dm-crypt-plain-cbc", "dm-crypt-plain-cbc-128", "isolation-one-process", "isolation-isolated",
    "isolation-registers", "veracrypt", "truecrypt", "gocryptfs", "gocryptfs-xchacha", "encfs", "encfs-paranoia",
    "cryfs", "cryfs-aes", "securefs", "ecryptfs", "ntfs-3g", "qemu-nbd", "qemu-nbd-luks", "nbdkit", "nbdkit-luks",
    "dislocker", "zfs-plain", "zfs", "fscrypt"
];

/// The longest file of a facility, in bytes.
const FILE_MAX: u64 = 256 << 10;

/// The longest name of a facility, in bytes.
const NAME_MAX: usize = 64;

/// Letters that names of facilities are made of besides letters and digits: they stand in tables, in pages and on
/// command lines.
const NAME_SIGNS: &[u8] = b"-_.:/+";

/// Facilities with unique names.
#[derive(Clone, Debug)]
pub struct Catalogue(Vec<Facility>);

impl Catalogue {
    /// Ours, those of others that come with this program, the user's in `$XDG_CONFIG_HOME/claviger/peers/*.toml`, and
    /// those in `more`. A later one replaces an earlier one of the same name, unless the earlier one is ours.
    ///
    /// # Errors
    /// `Misuse` for a file that is not a facility, an unknown baseline, and a user's file if this process is root and the
    /// user is not; `Io`.
    pub fn load(more: Option<&Path>) -> Result<Self> {
        let mut all = Self::built_in()?;
        let users = config_folder().join("peers");
        if users.is_dir() {
            // With sudo, the folder may still be the caller's, whose programs can write to it.
            all.add_folder(&users, must_be_roots)?;
        }
        if let Some(folder) = more {
            all.add_folder(folder, |_| Ok(()))?;
        }
        all.check()?;
        Ok(all)
    }

    /// All of them: ours first, then those of others.
    pub fn all(&self) -> &[Facility] {
        &self.0
    }

    /// Names of those that are measured by default: ours with their default ciphers, and their baseline.
    pub fn defaults(&self) -> Vec<String> {
        ours::defaults()
    }

    /// The facility of this name, whatever its case.
    ///
    /// # Errors
    /// `Misuse` with the most similar name.
    pub fn find(&self, name: &str) -> Result<&Facility> {
        let found = self.0.iter().find(|f| f.name.eq_ignore_ascii_case(name));
        let found = found.or_else(|| self.0.iter().find(|f| same_name(&f.name, name)));
        found.ok_or_else(|| {
            let (wanted, layer) = (name.to_lowercase(), format!("{}/", name.to_lowercase()));
            let of_layer = self.0.iter().filter(|f| f.name.to_lowercase().starts_with(&layer)).map(|f| &*f.name);
            let near = match &of_layer.collect::<Vec<_>>()[..] {
                [] => self.0.iter().min_by_key(|f| distance(&f.name.to_lowercase(), &wanted)).map(|f| f.name.clone()),
                all => Some(all.join(" or ")),
            };
            let near = near.map(|near| format!("Did you mean {near}? ")).unwrap_or_default();
            let what = format!("there is no facility called {name}");
            Error::misuse(what).hint(format!("{near}`claviger lab list` shows all of them."))
        })
    }

    fn built_in() -> Result<Self> {
        let mut all = Self(ours::all());
        for (name, text) in PEERS {
            all.0.push(parse(text, Path::new(name))?);
        }
        Ok(all)
    }

    fn add_folder(&mut self, folder: &Path, allowed: fn(&Path) -> Result<()>) -> Result<()> {
        allowed(folder)?;
        let entries = fs::read_dir(folder).map_err(|e| Error::from(e).at(folder))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        files.sort();
        for path in files {
            allowed(&path)?;
            self.add(parse(&read(&path)?, &path)?).map_err(|e| e.at(&path))?;
        }
        Ok(())
    }

    fn add(&mut self, facility: Facility) -> Result<()> {
        match self.0.iter_mut().find(|f| f.name.eq_ignore_ascii_case(&facility.name)) {
            // A figure under such a name would be taken for one of this program.
            Some(other) if other.is_ours() || other.name != facility.name || ours::is_baseline(&other.name) => {
                let what = format!("the name {} is taken: {}", facility.name, other.title);
                return Err(Error::misuse(what).hint("Give the facility another name."));
            }
            Some(other) => *other = facility,
            None => self.0.push(facility),
        }
        Ok(())
    }

    /// Whether each baseline exists and has no baseline of its own.
    fn check(&self) -> Result<()> {
        for facility in &self.0 {
            let Some(baseline) = &facility.baseline else { continue };
            let wrong = |why: &str| Err(Error::misuse(format!("the baseline of {}, {baseline}, {why}", facility.name)));
            match self.0.iter().find(|f| f.name == *baseline) {
                None => return wrong("is not a facility"),
                Some(f) if f.baseline.is_some() => return wrong("has a baseline of its own"),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

fn parse(text: &str, path: &Path) -> Result<Facility> {
    let facility: Facility = toml::from_str(text).map_err(|e| Error::misuse(e.to_string()).at(path))?;
    check_name(&facility).and_then(|()| words::check(&facility)).map_err(|e| e.at(path))?;
    Ok(facility)
}

fn check_name(facility: &Facility) -> Result<()> {
    let Facility { name, title, about, .. } = facility;
    let sound = |b: u8| b.is_ascii_alphanumeric() || NAME_SIGNS.contains(&b);
    if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(sound) || name.starts_with('-') {
        let what =
            format!("the name {name:?}: use at most {NAME_MAX} letters, digits and -_.:/+, and do not begin with -");
        return Err(Error::misuse(what));
    }
    match [title, about].into_iter().any(|text| text.contains(char::is_control)) {
        true => Err(Error::misuse(format!("the facility {name}: its title and description must be one line each"))),
        false => Ok(()),
    }
}

/// Reads a file of a facility, unless it is too long for one.
fn read(path: &Path) -> Result<String> {
    let read = || -> Result<String> {
        let file = files::open_regular(path)?;
        let bytes = file.map(|file| files::read_at_most(file, FILE_MAX)).transpose()?.flatten();
        let wrong = || Error::misuse(format!("a facility must be in a regular file of at most {FILE_MAX} bytes"));
        String::from_utf8(bytes.ok_or_else(wrong)?).map_err(|_| Error::misuse("a facility's file must be UTF-8"))
    };
    read().map_err(|e| e.at(path))
}

/// Fails if this process is root and somebody else could have written the file.
fn must_be_roots(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).map_err(|e| Error::from(e).at(path))?;
    if !geteuid().is_root() || (metadata.uid() == 0 && metadata.mode() & 0o022 == 0) {
        return Ok(());
    }
    let what = "users other than root can write to it, and root would run its commands";
    Err(Error::misuse(what).at(path).hint("If you trust it, name the folder with --peers. Or set HOME to root's home."))
}

/// The smallest number of insertions, deletions and changes of letters between the two (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, its) in other.iter().enumerate() {
            let changed = corner + usize::from(letter != *its);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_with_the_program_is_sound() {
        let all = Catalogue::built_in().expect("sound files");
        all.check().expect("baselines");
        for facility in all.all() {
            let same = all.all().iter().filter(|f| f.name.eq_ignore_ascii_case(&facility.name)).count();
            assert_eq!(same, 1, "{}", facility.name);
            assert!(facility.about.ends_with('.') && !facility.title.is_empty(), "{}", facility.name);
            assert!(!facility.name.contains([' ', ',']), "{}", facility.name);
        }
        for (file, text) in PEERS {
            let facility = parse(text, Path::new(file)).expect("sound");
            assert!(!facility.open.is_empty() || facility.baseline.is_none(), "{file}");
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/peers");
        assert_eq!(fs::read_dir(folder).expect("a folder").count(), PEERS.len(), "each file is in the table");
        assert!(all.defaults().iter().all(|name| all.find(name).is_ok()));
    }

    #[test]
    fn the_examples_of_the_documents_are_sound() {
        let page =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/facilities.md")).expect("there");
        let lines =
            page.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| !line.starts_with("claviger"));
        let text: String = lines.flat_map(|line| ["\n", line]).collect();
        let examples = text.split("\nname = ").skip(1).map(|example| format!("name = {example}"));
        let examples: Vec<_> =
            examples.map(|example| parse(&example, Path::new("facilities.md")).expect("sound")).collect();
        assert!(examples.len() == 3 && examples[0].create_default.len() == 1 && examples[0].close.len() == 1);
        let mut all = Catalogue::built_in().expect("sound files");
        examples.into_iter().for_each(|example| all.add(example).expect("a name of its own"));
        all.check().expect("each baseline is there");
    }

    #[test]
    fn names_are_found_in_any_case_and_the_nearest_is_told() {
        let all = Catalogue::built_in().expect("sound files");
        assert_eq!(all.find("luks2").expect("there").name, "LUKS2");
        assert_eq!(all.find("NBD/veracrypt:aes-twofish").expect("there").name, "nbd/VeraCrypt:AES-Twofish");
        let e = all.find("verracrypt").expect_err("none").to_string();
        assert!(e.contains("Did you mean VeraCrypt?"), "{e}");
        let e = all.find("DM-crypt").expect_err("only a layer").to_string();
        assert!(e.contains("Did you mean dm-crypt/") && e.contains("dm-crypt/LUKS2 or "), "{e}");
        assert_eq!((distance("kitten", "sitting"), distance("", "abc")), (3, 3));
    }

    #[test]
    fn a_users_file_is_taken_and_a_wrong_one_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let text = PEERS[0].1.replace("name = \"folder\"", "name = \"mine\"");
        fs::write(dir.path().join("mine.toml"), &text).expect("written");
        let mut all = Catalogue::built_in().expect("sound files");
        all.add_folder(dir.path(), |_| Ok(())).expect("taken");
        assert!(all.find("mine").is_ok());
        let named = |name: &str| PEERS[0].1.replace("name = \"folder\"", &format!("name = {name:?}"));
        for wrong in ["LUKS2", "luks2", "plain", "Folder", "GOCRYPTFS", "", "-x", "a b", "a\u{1b}[0m", "a\nb", "<b>"]
            .map(named)
            .into_iter()
            .chain([named(&"x".repeat(65)), text.clone() + &" ".repeat(1 << 20)])
            .chain([text.replace("= \"{store}\"", "= \"here\""), text.replace("title = \"", "title = \"\\u001b")])
            .chain(["baseline = \"folder2\"", "baseline = \"mine\""].map(|line| format!("{line}\n{text}")))
        {
            fs::write(dir.path().join("mine.toml"), &wrong).expect("written");
            let mut all = Catalogue::built_in().expect("sound files");
            let done = all.add_folder(dir.path(), |_| Ok(())).and_then(|()| all.check());
            assert!(done.is_err(), "{}", &wrong[..100]);
        }
        for wrong in ["name = 3".to_owned(), format!("{text}\nnonsense = 1"), text.replace("{store}", "{stroe}")] {
            fs::write(dir.path().join("mine.toml"), wrong).expect("written");
            let e = all.add_folder(dir.path(), |_| Ok(())).expect_err("refused").to_string();
            assert!(e.contains("mine.toml"), "{e}");
        }
    }
}
