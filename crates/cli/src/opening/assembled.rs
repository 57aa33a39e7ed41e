//! Stores that are put together of other stores, by name: `md:STORE,STORE` is a Linux RAID array, `lvm:GROUP/VOLUME@STORE,STORE` a
//! logical volume of LVM2, `at:OFFSET+SIZE@STORE` a part.
//!
//! A STORE is a path or any other name of a store. It is written in parentheses if it has a comma, an `@` or parentheses itself, so
//! names nest: `lvm:vg/home@(md:a.img,b.img)`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use claviger_engine::store::{Access, SliceStore};
use claviger_engine::{Error, ErrorKind, Result, Store, arrays};

use super::{logical_volume, remote};
use crate::terminal::{output, size};

/// The address of an assembled store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assembled {
    /// A Linux RAID array: which of several, by name or UUID, and the stores that hold its members.
    Array { choice: Option<String>, stores: Vec<PathBuf> },
    /// A logical volume: its name with that of the group, and the stores that hold the group's physical volumes.
    LogicalVolume { name: String, stores: Vec<PathBuf> },
    /// A part: its offset, its size unless it reaches to the end, both in bytes, and the store that holds it.
    Part { at: u64, len: Option<u64>, store: PathBuf },
}

/// The schemes of assembled stores, which helpers of the user cannot have.
pub const SCHEMES: [&str; 4] = ["md", "lvm", "at", "raw"];

impl Assembled {
    /// Parses an address; `None` if the name has neither scheme.
    ///
    /// # Errors
    /// `Misuse`: what is wrong in the name.
    pub fn parse(name: &OsStr) -> Result<Option<Self>> {
        let bytes = name.as_bytes();
        if let Some(rest) = bytes.strip_prefix(b"md:") {
            // The name of an array comes before the first path.
            let before_path = rest.iter().position(|byte| b",(/@".contains(byte)).filter(|at| rest[*at] == b'@');
            let (choice, list) = before_path.map_or((None, rest), |at| (Some(&rest[..at]), &rest[at + 1..]));
            let choice = choice.map(text).transpose()?;
            let stores = names(list)?;
            return match stores.is_empty() {
                true => Err(Error::misuse("no members were given").hint("Write md:STORE,STORE,….")),
                false => Ok(Some(Self::Array { choice, stores })),
            };
        }
        if let Some(rest) = bytes.strip_prefix(b"at:") {
            return part(rest).map(Some);
        }
        let Some(rest) = bytes.strip_prefix(b"lvm:") else { return Ok(None) };
        let wrong =
            |what| Error::misuse(what).hint("Write lvm:GROUP/VOLUME@STORE, or with several stores @STORE,STORE.");
        let (name, list) = before_stores(rest).ok_or_else(|| wrong("the physical volume was not given"))?;
        let stores = names(list)?;
        match stores.is_empty() {
            true => Err(wrong("the physical volume was not given")),
            false if !name.contains(&b'/') => Err(wrong("a logical volume is named by its group, too")),
            false => Ok(Some(Self::LogicalVolume { name: text(name)?, stores })),
        }
    }

    /// Opens all stores, and assembles them. Prints warnings.
    ///
    /// # Errors
    /// `Io` if an array should be writable; those of [`arrays::assemble`], of opening each store and of finding a logical volume.
    pub fn open(&self, access: Access) -> Result<Arc<dyn Store>> {
        match self {
            Self::Array { .. } if access == Access::ReadWrite => {
                Err(read_only(arrays::READ_ONLY, "assemble the array with mdadm"))
            }
            Self::LogicalVolume { stores, .. } if access == Access::ReadWrite && stores.len() > 1 => {
                Err(read_only("a logical volume on several disks is only read", "activate the group with LVM2"))
            }
            Self::Array { choice, stores } => {
                let array = arrays::assemble(all(stores, access)?, choice.as_deref())?;
                array.warnings.iter().for_each(|warning| warn_once(warning));
                Ok(Arc::new(array.store))
            }
            Self::LogicalVolume { name, stores } => {
                logical_volume::in_group(&all(stores, access)?, name, access == Access::ReadWrite)
            }
            Self::Part { len: None, .. } if access == Access::ReadWrite => Err(without_end()),
            Self::Part { at, len, store } => {
                let whole = inner(store, access)?;
                let rest = whole.len().checked_sub(*at).filter(|rest| len.is_none_or(|len| len <= *rest));
                let rest = rest.ok_or_else(|| past_the_end(*at, *len, whole.len()))?;
                Ok(Arc::new(SliceStore::new(whole, *at, len.unwrap_or(rest))?))
            }
        }
    }

    /// What distinguishes the store from others of the same name.
    ///
    /// # Errors
    /// `Io` if a file is missing.
    pub fn identity(&self) -> Result<String> {
        let of = |name: &PathBuf| match remote::identity(name)? {
            Some(identity) => Ok(identity),
            None => {
                let metadata = remote::file(name).metadata().map_err(|e| Error::from(e).at(name))?;
                Ok(format!("{}:{}", metadata.dev(), metadata.ino()))
            }
        };
        let parts = self.stores().iter().map(of).collect::<Result<Vec<_>>>()?;
        Ok(format!("{:?} {}", self.before_stores(), parts.join(" ")))
    }

    /// The same name, valid in any current folder.
    ///
    /// # Errors
    /// `Io` if a file is missing.
    pub fn absolute(&self) -> Result<PathBuf> {
        let stores = self.stores().iter().map(|name| remote::absolute(name)).collect::<Result<Vec<_>>>()?;
        Ok(with_stores(&self.before_stores(), stores.iter().map(PathBuf::as_path)).into())
    }

    /// A short name without slashes.
    pub fn label(&self) -> String {
        match self {
            Self::Array { choice: None, .. } => "md".to_owned(),
            Self::Array { choice: Some(name), .. } | Self::LogicalVolume { name, .. } => name.replace('/', "-"),
            Self::Part { at, .. } => format!("at-{at}"),
        }
    }

    fn stores(&self) -> &[PathBuf] {
        match self {
            Self::Array { stores, .. } | Self::LogicalVolume { stores, .. } => stores,
            Self::Part { store, .. } => std::slice::from_ref(store),
        }
    }

    fn before_stores(&self) -> String {
        match self {
            Self::Array { choice: None, .. } => "md:".to_owned(),
            Self::Array { choice: Some(choice), .. } => format!("md:{choice}@"),
            Self::LogicalVolume { name, .. } => format!("lvm:{name}@"),
            Self::Part { at, len: None, .. } => format!("at:{at}@"),
            Self::Part { at, len: Some(len), .. } => format!("at:{at}+{len}@"),
        }
    }
}

/// The name of an array: `choice` is needed if the stores also hold members of others.
pub fn array_name<'a>(choice: Option<&str>, stores: impl IntoIterator<Item = &'a Path>) -> OsString {
    with_stores(&choice.map_or_else(|| "md:".to_owned(), |choice| format!("md:{choice}@")), stores)
}

/// The name of a logical volume. `full_name` has that of the group.
pub fn logical_volume_name<'a>(full_name: &str, stores: impl IntoIterator<Item = &'a Path>) -> OsString {
    with_stores(&format!("lvm:{full_name}@"), stores)
}

/// The name of a part. Sizes are in bytes.
pub fn part_name(at: u64, len: Option<u64>, store: &Path) -> OsString {
    with_stores(&Assembled::Part { at, len, store: PathBuf::new() }.before_stores(), [store])
}

fn with_stores<'a>(before: &str, stores: impl IntoIterator<Item = &'a Path>) -> OsString {
    let list: Vec<_> = stores.into_iter().map(|name| in_list(name).into_vec()).collect();
    OsString::from_vec([before.as_bytes(), &list.join(&b","[..])].concat())
}

/// Parses `OFFSET+SIZE@STORE`.
fn part(text: &[u8]) -> Result<Assembled> {
    let wrong = |what: String| {
        Error::misuse(what).hint("Write at:OFFSET@STORE or at:OFFSET+SIZE@STORE, for example at:1M@disk.img.")
    };
    let (place, list) = before_stores(text).ok_or_else(|| wrong("the store was not given".into()))?;
    let place = self::text(place)?;
    let (at, len) = place.split_once('+').map_or((&*place, None), |(at, len)| (at, Some(len)));
    let bytes = |text: &str| size::parse(text).map_err(wrong);
    let (at, len) = (bytes(at)?, len.map(bytes).transpose()?);
    match <[PathBuf; 1]>::try_from(names(list)?) {
        Ok([store]) => Ok(Assembled::Part { at, len, store }),
        Err(_) => Err(wrong("a part is in one store".into())),
    }
}

/// What comes before the `@`, and the list of stores after it.
fn before_stores(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b'@')?;
    Some((&text[..at], &text[at + 1..]))
}

/// The store as an item of a list: in parentheses if it could be read in another way.
fn in_list(name: &Path) -> OsString {
    let bytes = name.as_os_str().as_bytes();
    match bytes.iter().any(|byte| b",()@".contains(byte)) {
        true => OsString::from_vec([b"(", bytes, b")"].concat()),
        false => name.into(),
    }
}

/// The items of a list, without parentheses around them.
fn names(mut list: &[u8]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    while !list.is_empty() {
        let (item, rest) = match list.strip_prefix(b"(") {
            Some(inside) => {
                let end = closing(inside).ok_or_else(|| Error::misuse("a parenthesis is not closed"))?;
                (&inside[..end], &inside[end + 1..])
            }
            None => list.split_at(list.iter().position(|byte| *byte == b',').unwrap_or(list.len())),
        };
        list = match rest {
            [] => rest,
            [b',', next @ ..] if !next.is_empty() => next,
            _ => return Err(Error::misuse("a store is missing or not separated by a comma").hint("Write STORE,STORE.")),
        };
        if item.is_empty() {
            return Err(Error::misuse("the name of a store is empty").hint("Write STORE,STORE."));
        }
        all.push(OsStr::from_bytes(item).into());
    }
    Ok(all)
}

/// Where the parenthesis closes that was opened before `text`.
fn closing(text: &[u8]) -> Option<usize> {
    let mut open = 1usize;
    text.iter().position(|byte| {
        open += usize::from(*byte == b'(');
        open -= usize::from(*byte == b')');
        open == 0
    })
}

fn text(bytes: &[u8]) -> Result<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::misuse("this name is not UTF-8"))
}

/// Opens the stores of which one is assembled, each with its name for messages.
fn all(names: &[PathBuf], access: Access) -> Result<Vec<(String, Arc<dyn Store>)>> {
    names.iter().map(|name| Ok((name.display().to_string(), inner(name, access)?))).collect()
}

/// Opens a store of which an assembled one is a part.
fn inner(name: &Path, access: Access) -> Result<Arc<dyn Store>> {
    let store = remote::open_disk(name, access)?;
    // Two names of one store look like two stores, and nothing but a file's lock keeps both from being written.
    if access == Access::ReadWrite && store.file().is_none() {
        let what = "writing to a part of a store that is not a local file";
        return Err(Error::unsupported(what).at(name).hint("Add --read-only to `mount` or `serve`."));
    }
    Ok(store)
}

/// Without a size, a write could reach what follows the volume.
fn without_end() -> Error {
    Error::misuse("a part is written only if its size is known")
        .hint("Give it: at:OFFSET+SIZE@STORE. To read the part, add --read-only to `mount` or `serve`.")
}

fn past_the_end(at: u64, len: Option<u64>, whole: u64) -> Error {
    let end = at.saturating_add(len.unwrap_or_default());
    Error::misuse(format!("the part ends at byte {end}, and the store at byte {whole}"))
        .hint("To read as much as there is, omit the size: at:OFFSET@STORE.")
}

fn read_only(why: &str, otherwise: &str) -> Error {
    let error = std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, why);
    let hint = format!("Add --read-only to `mount` or `serve`. To change the data, {otherwise}, as root.");
    Error::new(ErrorKind::Io(error)).hint(hint)
}

/// A verb may open the same store several times.
fn warn_once(warning: &str) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(warning.to_owned()) {
        output::warn(warning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> Option<Assembled> {
        Assembled::parse(name.as_ref()).expect(name)
    }

    fn array(choice: Option<&str>, stores: &[&str]) -> Option<Assembled> {
        let stores = stores.iter().map(PathBuf::from).collect();
        Some(Assembled::Array { choice: choice.map(str::to_owned), stores })
    }

    #[test]
    fn names_are_lists_that_nest() {
        assert_eq!(parsed("md:a,b"), array(None, &["a", "b"]));
        assert_eq!(parsed("md:data@a"), array(Some("data"), &["a"]));
        assert_eq!(parsed("md:./a@b,c"), array(None, &["./a@b", "c"]));
        assert_eq!(parsed("md:(a@b),(c,d)"), array(None, &["a@b", "c,d"]));
        assert_eq!(parsed("md:x@(md:y@a,(b,c)),d(1)"), array(Some("x"), &["md:y@a,(b,c)", "d(1)"]));
        let on = |stores: &[&str]| {
            let stores = stores.iter().map(PathBuf::from).collect();
            Some(Assembled::LogicalVolume { name: "vg/home".to_owned(), stores })
        };
        assert_eq!(parsed("lvm:vg/home@(md:a,b)"), on(&["md:a,b"]));
        assert_eq!(parsed("lvm:vg/home@(md:a,b),c"), on(&["md:a,b", "c"]));
        let part = |at, len, store: &str| Some(Assembled::Part { at, len, store: store.into() });
        assert_eq!(parsed("at:1M@disk"), part(1 << 20, None, "disk"));
        assert_eq!(parsed("at:512+4K@(lvm:vg/home@a)"), part(512, Some(4096), "lvm:vg/home@a"));
        assert_eq!((parsed("a,b"), parsed("./md:a"), parsed("mdx:a")), (None, None, None));
    }

    #[test]
    fn invalid_names_are_refused() {
        for (name, word) in [
            ("md:", "no members"),
            ("md:x@", "no members"),
            ("md:a,", "missing"),
            ("md:,a", "empty"),
            ("md:()", "empty"),
            ("md:(a", "not closed"),
            ("md:(a)b", "comma"),
            ("lvm:vg/home", "physical volume"),
            ("lvm:home@a", "group"),
            ("lvm:vg/home@", "physical volume"),
            ("at:512", "not given"),
            ("at:x@a", "unit"),
            ("at:1+@a", "size"),
            ("at:1@a,b", "one store"),
            ("at:1@", "one store"),
        ] {
            let error = Assembled::parse(name.as_ref()).expect_err(name).to_string();
            assert!(error.contains(word), "{name}: {error}");
        }
    }

    #[test]
    fn absolute_names_lead_to_the_same_stores() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("it exists");
        let path = |name: &str| folder.join(name).display().to_string();
        ["a", "b,c"].iter().for_each(|name| std::fs::write(path(name), "").expect("a file"));
        let name = format!("lvm:vg/x@(md:y@{}/./a,({}))", folder.display(), path("b,c"));
        let assembled = parsed(&name).expect("assembled");
        let absolute = assembled.absolute().expect("they exist");
        assert_eq!(absolute, PathBuf::from(format!("lvm:vg/x@(md:y@{},({}))", path("a"), path("b,c"))));
        let again = parsed(absolute.to_str().expect("UTF-8")).expect("assembled");
        assert_eq!(again.identity().expect("they exist"), assembled.identity().expect("they exist"));
    }
}
